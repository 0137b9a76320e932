//! What a machine is told, and what it wants done.

use std::time::Duration;

use crate::instant::Instant;
use crate::messages::{ClaimId, ClaimReply, Reason, ReleaseReply, RenewReply};

/// Names one request of one machine, so that the reply to an older one can be told apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestId(pub(crate) u64);

/// Something that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// The time of [`Machine::wake_at`](crate::Machine::wake_at) has come, or may have.
    Wake {
        /// A UUID that was never used before, for a claim that may begin now. Its bits are also the machine's only dice.
        fresh: ClaimId,
        /// How many roles this instance leads already.
        leading: u32,
    },
    /// The end of a request. Every request gets exactly one, after its `within` at the latest.
    Reply {
        /// Which request.
        request: RequestId,
        /// What the store said.
        reply: Reply,
    },
    /// The store pushed that a claim of another instance, or an own one, was granted.
    Elected {
        /// The new term.
        term: u64,
        /// The claim that has it.
        claim: ClaimId,
    },
    /// The store pushed that the lease was released.
    Freed,
    /// The plugin of this term failed to start, or failed too often.
    Failed {
        /// Which term.
        term: u64,
    },
    /// The plugin of this term gives the role up.
    Resigned {
        /// Which term.
        term: u64,
    },
    /// The plugin of this term has stopped, its gate is closed, and that is recorded.
    Stopped {
        /// Which term.
        term: u64,
    },
    /// The instance is to stop.
    Stop,
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// To a claim.
    Claim(ClaimReply),
    /// To a renewal.
    Renew(RenewReply),
    /// To a release.
    Release(ReleaseReply),
    /// No answer, or an error: it may have been carried out, or may still be.
    None,
}

/// Something to do, in the order given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Ask the store for the lease.
    Claim {
        /// Names the reply.
        request: RequestId,
        /// Under which claim.
        claim: ClaimId,
        /// The highest term seen; a store whose counter is below it has lost data, and waits a ttl before it grants.
        seen_term: u64,
        /// After this long, the reply is [`Reply::None`].
        within: Duration,
    },
    /// Renew the lease.
    Renew {
        /// Names the reply.
        request: RequestId,
        /// The claim that holds it.
        claim: ClaimId,
        /// After this long, the reply is [`Reply::None`].
        within: Duration,
    },
    /// Release the lease, or whatever the claim may hold.
    Release {
        /// Names the reply.
        request: RequestId,
        /// The claim.
        claim: ClaimId,
        /// The term that ended with it; none where no term was begun under this claim.
        term: Option<u64>,
        /// After this long, the reply is [`Reply::None`].
        within: Duration,
    },
    /// Leadership begins: open a gate and start the plugin.
    Promote {
        /// The fencing token.
        term: u64,
        /// The claim that holds the lease.
        claim: ClaimId,
        /// The gate's end.
        trusted_until: Instant,
    },
    /// A renewal was answered: move the gate's end on.
    Extend {
        /// The gate's new end.
        trusted_until: Instant,
    },
    /// Leadership ends: stop the plugin, close the gate, record it, and say [`Input::Stopped`].
    Demote {
        /// The term that ends.
        term: u64,
        /// Why. With [`Reason::Lost`] the gate closes at once.
        reason: Reason,
        /// All of it must end by then.
        trusted_until: Instant,
    },
    /// Tell people.
    Report(Report),
}

/// What people should know. Nothing depends on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// Another instance leads.
    Following {
        /// Its claim.
        by: ClaimId,
        /// Its term.
        term: u64,
    },
    /// A claim got no answer; it is asked again under the same UUID.
    ClaimUnanswered {
        /// How often in a row.
        failures: u32,
    },
    /// A renewal got no answer.
    RenewalUnanswered {
        /// How often in a row.
        failures: u32,
        /// What is left until the instance must step down.
        left: Duration,
    },
    /// The first answered renewal after some that were not.
    RenewalsResumed,
    /// The lease key is gone, but was not released and has not run out.
    Vanished {
        /// How long it is waited out.
        left: Duration,
    },
    /// The store's counter is below a term that was seen: it lost data.
    DataLost {
        /// The highest term seen.
        seen: u64,
        /// The store's counter.
        found: u64,
        /// How long the store waits out what it may have lost.
        wait: Duration,
    },
    /// A claim of this instance that had ended holds the lease: its request was delivered late. It is released.
    OrphanFound {
        /// That claim.
        claim: ClaimId,
    },
    /// The store granted a term that is not above one that was seen. The claim is released, and not trusted.
    StaleTerm {
        /// The granted term.
        granted: u64,
        /// The highest term seen.
        seen: u64,
    },
    /// The grant came too late to lead with, or while stopping. The claim is released.
    GrantUnused {
        /// The granted term.
        term: u64,
    },
    /// The lease is released.
    Released {
        /// The term that ended with it.
        term: u64,
    },
    /// The release got no answer; the lease runs out by itself.
    ReleaseUnanswered {
        /// The term that ended with it.
        term: u64,
    },
    /// The instance leaves the role alone for a while, so that another gets its chance.
    CoolingDown {
        /// For how long.
        wait: Duration,
    },
}
