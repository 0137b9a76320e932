//! No store at all: one instance, which leads every role at once.
//!
//! Terms and hand-offs live as long as the process. A lease lasts until it is released, since there is nobody else to give
//! it to. State is kept by whatever it is given.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::{ClaimId, ClaimReply, Handoff, Lasts, Refusal, RefusalReason, ReleaseReply, RenewReply};
use tokio::sync::broadcast;

use super::{ClaimAsk, Claimed, HandoffChange, ReleaseAsk, RenewAsk, Store, StoreError, StoreEvent};
use crate::config::RoleName;
use crate::state::{Fence, StateError, StateOp, StateReply, StateStore};

/// How many events a watcher may fall behind.
const EVENTS: usize = 1_024;

/// The store of an instance that has none.
pub struct StandaloneStore {
    leases: Arc<Leases>,
    state: Arc<StandaloneState>,
    events: broadcast::Sender<StoreEvent>,
}

#[derive(Default)]
struct Leases(Mutex<HashMap<RoleName, Lease>>);

#[derive(Debug, Default)]
struct Lease {
    held_by: Option<ClaimId>,
    term: u64,
    handoff: Option<Handoff>,
}

impl Leases {
    fn lock(&self) -> MutexGuard<'_, HashMap<RoleName, Lease>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with a lease that `claim` holds; none where it does not.
    fn with_held<T>(&self, role: &RoleName, claim: ClaimId, work: impl FnOnce(&mut Lease) -> T) -> Option<T> {
        self.lock().get_mut(role).filter(|lease| lease.held_by == Some(claim)).map(work)
    }
}

/// State, and the leases that it is fenced by.
struct StandaloneState {
    leases: Arc<Leases>,
    kept: Arc<dyn StateStore>,
}

#[async_trait]
impl StateStore for StandaloneState {
    async fn run(&self, fence: &Fence, op: &StateOp, within: Duration) -> Result<StateReply, StateError> {
        let present = self.leases.with_held(&fence.role, fence.claim, |lease| lease.term == fence.term);
        if present != Some(true) {
            return Err(StateError::Fenced { term: fence.term });
        }
        self.kept.run(fence, op, within).await
    }
}

impl StandaloneStore {
    /// A store in which nobody leads anything yet. The roles' state is kept in `state`.
    #[must_use]
    pub fn new(state: Arc<dyn StateStore>) -> Self {
        let leases = Arc::new(Leases::default());
        let state = Arc::new(StandaloneState { leases: leases.clone(), kept: state });
        Self { leases, state, events: broadcast::Sender::new(EVENTS) }
    }

    fn claim_one(&self, ask: &ClaimAsk) -> Claimed {
        let mut roles = self.leases.lock();
        let lease = roles.entry(ask.role.clone()).or_default();
        match lease.held_by {
            Some(by) if by != ask.claim => {
                let refusal = Refusal { reason: RefusalReason::Held { by }, term: lease.term, left: Duration::ZERO };
                return Claimed { reply: ClaimReply::Refused(refusal), handoff: None };
            }
            Some(_) => {}
            None => {
                lease.term = lease.term.max(ask.seen_term) + 1;
                lease.held_by = Some(ask.claim);
                let (role, term, claim) = (ask.role.clone(), lease.term, ask.claim);
                let _ = self.events.send(StoreEvent::Elected { role, term, claim });
            }
        }
        let reply = ClaimReply::Granted { term: lease.term, lasts: Lasts::Forever };
        Claimed { reply, handoff: lease.handoff.clone() }
    }

    fn release_one(&self, ask: &ReleaseAsk) -> ReleaseReply {
        let released = self.leases.with_held(&ask.role, ask.claim, |lease| {
            lease.held_by = None;
            match &ask.handoff {
                HandoffChange::Keep => {}
                HandoffChange::Clear => lease.handoff = None,
                HandoffChange::Put(handoff) => lease.handoff = Some(handoff.clone()),
            }
            lease.term
        });
        let Some(term) = released else { return ReleaseReply::NotYours };
        let _ = self.events.send(StoreEvent::Released { role: ask.role.clone(), term });
        ReleaseReply::Released
    }
}

#[async_trait]
impl Store for StandaloneStore {
    fn describe(&self) -> String {
        "none: this instance always leads".to_owned()
    }

    async fn claim(&self, asks: &[ClaimAsk], _within: Duration) -> Vec<Result<Claimed, StoreError>> {
        asks.iter().map(|ask| Ok(self.claim_one(ask))).collect()
    }

    async fn renew(&self, asks: &[RenewAsk], _within: Duration) -> Vec<Result<RenewReply, StoreError>> {
        asks.iter()
            .map(|ask| {
                Ok(self
                    .leases
                    .with_held(&ask.role, ask.claim, |_| ())
                    .map_or(RenewReply::NotYours, |()| RenewReply::Renewed))
            })
            .collect()
    }

    async fn release(&self, asks: &[ReleaseAsk], _within: Duration) -> Vec<Result<ReleaseReply, StoreError>> {
        asks.iter().map(|ask| Ok(self.release_one(ask))).collect()
    }

    async fn settle_handoff(&self, role: &RoleName, claim: ClaimId, _within: Duration) -> Result<(), StoreError> {
        self.leases.with_held(role, claim, |lease| lease.handoff = None);
        Ok(())
    }

    fn watch(&self) -> broadcast::Receiver<StoreEvent> {
        self.events.subscribe()
    }

    fn state(&self) -> Arc<dyn StateStore> {
        self.state.clone()
    }
}
