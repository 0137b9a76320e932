//! What the lease loop asks of a store. One trait, three stores, one conformance suite (`tests/store_conformance.rs`).
//!
//! Every change is one atomic step in the store. A request that was not answered may still have been carried out, now or
//! later: the claim's UUID makes that harmless, since every request names it.

pub mod batch;
pub mod redis;
pub mod sqlite;
pub mod standalone;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::{ClaimId, ClaimReply, Handoff, ReleaseReply, RenewReply};
use tokio::sync::broadcast;

use crate::config::RoleName;
use crate::state::{StateError, StateStore};

/// The most that a `demoted` may hand over, in bytes.
pub const MAX_HANDOFF: usize = 1 << 20;

/// A store of leases.
///
/// Batches are answered in their order. `within` bounds the whole call: an ask that is not answered by then is
/// [`StoreError::TimedOut`], and the call returns no later, whatever the network does. A failed ask says nothing about
/// its neighbours.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The store in words, for logs and errors; without its password.
    fn describe(&self) -> String;

    /// Tries to take leases. The claim that holds a lease already is granted it again, under the same term and for a full
    /// ttl, so that an unanswered claim can be repeated.
    async fn claim(&self, asks: &[ClaimAsk], within: Duration) -> Vec<Result<Claimed, StoreError>>;

    /// Renews leases for a full ttl from now, in one round trip.
    async fn renew(&self, asks: &[RenewAsk], within: Duration) -> Vec<Result<RenewReply, StoreError>>;

    /// Releases leases, stores what the plugin handed over, and tells the watchers.
    async fn release(&self, asks: &[ReleaseAsk], within: Duration) -> Vec<Result<ReleaseReply, StoreError>>;

    /// Removes the hand-off that an `elected` has succeeded with, where the claim still holds the lease.
    async fn settle_handoff(&self, role: &RoleName, claim: ClaimId, within: Duration) -> Result<(), StoreError>;

    /// The roles' fenced state. Its requests share nothing with those of the leases but the store itself.
    fn state(&self) -> Arc<dyn StateStore>;

    /// What other instances did, as far as the store can push it. Lossy: nothing may depend on an event but speed.
    fn watch(&self) -> broadcast::Receiver<StoreEvent>;
}

/// One claim.
#[derive(Debug, Clone)]
pub struct ClaimAsk {
    /// Which role's lease.
    pub role: RoleName,
    /// The proof in every later request.
    pub claim: ClaimId,
    /// How long the lease lasts.
    pub ttl: Duration,
    /// The highest term that this instance has seen for the role. A store that holds no lease and whose counter is below
    /// it has lost data, perhaps a lease that is still trusted. In the same step it lifts the counter to `seen_term`,
    /// records a lease that runs out a ttl from now and was not released, as one that vanished, and refuses with
    /// [`Behind`](tenure_core::RefusalReason::Behind). It is the store that waits, not the instance: where it loses data
    /// again, the wait begins again, for everybody, and no request that is delivered late cuts it short.
    pub seen_term: u64,
    /// Who asks, for the holder record.
    pub holder: HolderInfo,
}

/// What the holder record says for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderInfo {
    /// `instance.name`. Two instances may share one: the claim is what proves identity.
    pub instance: String,
    /// The admin address; empty where there is none.
    pub admin: String,
    /// The sha256 of the plugin, in hexadecimal.
    pub digest: String,
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// What the protocol needs to know.
    pub reply: ClaimReply,
    /// With a granted lease: what the last `demoted` left and no `elected` has taken over yet.
    pub handoff: Option<Handoff>,
}

/// One renewal.
#[derive(Debug, Clone)]
pub struct RenewAsk {
    /// Which role's lease.
    pub role: RoleName,
    /// The claim that holds it.
    pub claim: ClaimId,
    /// How long the lease lasts from now.
    pub ttl: Duration,
}

/// One release.
#[derive(Debug, Clone)]
pub struct ReleaseAsk {
    /// Which role's lease.
    pub role: RoleName,
    /// The claim that holds it.
    pub claim: ClaimId,
    /// What becomes of the stored hand-off.
    pub handoff: HandoffChange,
}

/// What a release does to the stored hand-off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandoffChange {
    /// Nothing: no `elected` of this term took it over.
    Keep,
    /// It was taken over, and the plugin left nothing new.
    Clear,
    /// The plugin left this.
    Put(Handoff),
}

/// Something that another instance did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreEvent {
    /// A lease was released, in this term: a claim may succeed now.
    Released {
        /// Whose lease.
        role: RoleName,
        /// The term that ended.
        term: u64,
    },
    /// A claim was granted, with this term: so that followers know the highest term at once, not only after their next
    /// refused claim, and notice a store that lost it.
    Elected {
        /// Whose lease.
        role: RoleName,
        /// The new term.
        term: u64,
        /// The claim that has it, so that an instance can tell its own from another's.
        claim: ClaimId,
    },
}

/// Why a store did not answer an ask. None of them says that the ask was not, or will not be, carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No answer within the request timeout.
    #[error("no answer within {}: the store is overloaded, stopped or cut off", crate::words::duration(*.0))]
    TimedOut(Duration),
    /// No connection, or it broke.
    #[error("cannot reach the store: {0}")]
    Unreachable(String),
    /// The store answered, but would not do it.
    #[error("{detail}")]
    Refused {
        /// Which of the known conditions this is.
        condition: Condition,
        /// The condition in words, and what to do about it.
        detail: String,
    },
}

/// The ways in which a store can be up and still refuse. Each is logged as what it is, once, when it begins and when it
/// ends; none of them leaves an instance leading past its trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// A key of ours has a type that we never write.
    WrongType,
    /// The lease key has no expiry: something other than Tenure wrote it, and it would never run out.
    NoExpiry,
    /// The server is at its memory limit and evicts nothing.
    OutOfMemory,
    /// A replica, or a primary without enough replicas.
    ReadOnly,
    /// The user may not run the command or touch the key.
    NoPermission,
    /// The password is wrong or missing.
    Auth,
    /// Another script has run for too long.
    Busy,
    /// The server is loading its data.
    Loading,
    /// A cluster node that does not hold the key.
    Moved,
    /// The holder record was written by a newer Tenure.
    NewerProtocol,
    /// Anything else; the words are the store's own.
    Other,
}

impl From<StoreError> for StateError {
    fn from(error: StoreError) -> Self {
        Self::Unavailable(error.to_string())
    }
}
