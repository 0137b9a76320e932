//! What the lease loop and a store say to each other, and why leadership ends.

use std::fmt;
use std::time::Duration;

use uuid::Uuid;

/// One try to take a lease. Whoever can name the claim holds what it holds; nothing else proves identity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClaimId(pub Uuid);

impl ClaimId {
    /// The only randomness that core sees: bits of a fresh claim's UUID.
    pub(crate) fn dice(self) -> u64 {
        self.0.as_u64_pair().1
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A store's answer to a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimReply {
    /// The claim holds the lease.
    Granted {
        /// The fencing token: higher than every earlier one of the role.
        term: u64,
        /// How long the store keeps the lease for it.
        lasts: Lasts,
    },
    /// It does not.
    Refused(Refusal),
}

/// How long a granted lease lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lasts {
    /// For the ttl, counted from when the store carried the request out.
    Ttl,
    /// Until it is released: the store has no other instance to give it to.
    Forever,
}

/// Why a claim was refused, and what a follower should know about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Why.
    pub reason: RefusalReason,
    /// The store's last term for the role; with [`Behind`](RefusalReason::Behind), the one before it was lifted.
    pub term: u64,
    /// After this long, asking again may succeed: what is left of the present lease, or of the one that vanished. Zero
    /// where the store cannot say.
    pub left: Duration,
}

/// Why a claim was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalReason {
    /// Another claim holds the lease.
    Held {
        /// That claim.
        by: ClaimId,
    },
    /// The lease is gone, but was neither released nor has it run out: somebody deleted or evicted it, and its holder
    /// may still trust it.
    Vanished,
    /// The store's counter was below a term that the instance has seen: it lost data, perhaps a lease that is still
    /// trusted. It has lifted the counter, and refuses every claim for a ttl, by its own clock.
    Behind,
}

/// A store's answer to a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenewReply {
    /// The lease lasts for a full ttl again.
    Renewed,
    /// The claim does not hold the lease.
    NotYours,
}

/// A store's answer to a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReleaseReply {
    /// The lease is free.
    Released,
    /// The claim did not hold it; nothing was changed.
    NotYours,
}

/// What a `demoted` left for the next `elected`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handoff {
    /// The term that it was left in.
    pub term: u64,
    /// The plugin's own bytes.
    pub data: Vec<u8>,
}

/// Why leadership ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The instance is stopping.
    Shutdown,
    /// The plugin asked for it.
    Resigned,
    /// The plugin failed to start, or failed too often.
    Failed,
    /// The store says that the lease is not ours.
    Lost,
    /// No renewal was answered in time.
    Unreachable,
}

impl Reason {
    /// The word for logs and the audit.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Shutdown => "shutdown",
            Self::Resigned => "resigned",
            Self::Failed => "failed",
            Self::Lost => "lost",
            Self::Unreachable => "unreachable",
        }
    }
}
