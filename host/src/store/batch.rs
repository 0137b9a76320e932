//! Requests that fall due together travel together.
//!
//! Each role's task asks for itself, one thing at a time. The desk behind this handle takes whatever has been asked by the
//! time it looks, and makes one call to the store of it, per kind and per timeout. It waits for nobody: a single ask goes
//! out at once, and a call that hangs holds up no other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{ClaimId, ReleaseReply, RenewReply};
use tokio::sync::{mpsc, oneshot};

use super::{ClaimAsk, Claimed, ReleaseAsk, RenewAsk, Store, StoreError};
use crate::config::RoleName;
use crate::state::StateStore;

/// How many asks one call to the store carries at most: a bound on how long the store is busy with one batch.
const MAX_BATCH: usize = 1_000;

/// What a role's task asks the store through.
#[derive(Clone)]
pub struct StoreHandle {
    store: Arc<dyn Store>,
    asks: mpsc::UnboundedSender<Ask>,
}

enum Ask {
    Claim(Waiting<ClaimAsk, Claimed>),
    Renew(Waiting<RenewAsk, RenewReply>),
    Release(Waiting<ReleaseAsk, ReleaseReply>),
}

/// One ask, and who waits for its answer.
struct Waiting<A, R> {
    ask: A,
    within: Duration,
    answer: oneshot::Sender<Result<R, StoreError>>,
}

impl StoreHandle {
    /// A handle on `store`, with a desk on the present runtime that ends with the last handle.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        let (asks, queue) = mpsc::unbounded_channel();
        tokio::spawn(desk(store.clone(), queue));
        Self { store, asks }
    }

    /// See [`Store::claim`].
    ///
    /// # Errors
    ///
    /// See [`StoreError`].
    pub async fn claim(&self, ask: ClaimAsk, within: Duration) -> Result<Claimed, StoreError> {
        self.ask(ask, within, Ask::Claim).await
    }

    /// See [`Store::renew`].
    ///
    /// # Errors
    ///
    /// See [`StoreError`].
    pub async fn renew(&self, ask: RenewAsk, within: Duration) -> Result<RenewReply, StoreError> {
        self.ask(ask, within, Ask::Renew).await
    }

    /// See [`Store::release`].
    ///
    /// # Errors
    ///
    /// See [`StoreError`].
    pub async fn release(&self, ask: ReleaseAsk, within: Duration) -> Result<ReleaseReply, StoreError> {
        self.ask(ask, within, Ask::Release).await
    }

    /// See [`Store::settle_handoff`].
    ///
    /// # Errors
    ///
    /// See [`StoreError`].
    pub async fn settle_handoff(&self, role: &RoleName, claim: ClaimId, within: Duration) -> Result<(), StoreError> {
        self.store.settle_handoff(role, claim, within).await
    }

    /// See [`Store::state`].
    #[must_use]
    pub fn state(&self) -> Arc<dyn StateStore> {
        self.store.state()
    }

    async fn ask<A, R>(&self, ask: A, within: Duration, kind: fn(Waiting<A, R>) -> Ask) -> Result<R, StoreError> {
        let (answer, answered) = oneshot::channel();
        let gone = || StoreError::Unreachable("the store's desk has ended".to_owned());
        self.asks.send(kind(Waiting { ask, within, answer })).map_err(|_| gone())?;
        // The store keeps to `within` itself; this is for one that does not.
        match tokio::time::timeout(within, answered).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(gone())),
            Err(_) => Err(StoreError::TimedOut(within)),
        }
    }
}

async fn desk(store: Arc<dyn Store>, mut queue: mpsc::UnboundedReceiver<Ask>) {
    let mut asks = Vec::new();
    while queue.recv_many(&mut asks, MAX_BATCH).await > 0 {
        let (mut claims, mut renewals, mut releases) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for ask in asks.drain(..) {
            match ask {
                Ask::Claim(waiting) => sort(&mut claims, waiting),
                Ask::Renew(waiting) => sort(&mut renewals, waiting),
                Ask::Release(waiting) => sort(&mut releases, waiting),
            }
        }
        // Renewals first: they are what a leader's time runs out on.
        for (within, batch) in renewals {
            send(
                &store,
                batch,
                move |store: Arc<dyn Store>, asks: Vec<_>| async move { store.renew(&asks, within).await },
            );
        }
        for (within, batch) in releases {
            send(&store, batch, move |store: Arc<dyn Store>, asks: Vec<_>| async move {
                store.release(&asks, within).await
            });
        }
        for (within, batch) in claims {
            send(
                &store,
                batch,
                move |store: Arc<dyn Store>, asks: Vec<_>| async move { store.claim(&asks, within).await },
            );
        }
    }
}

type Batch<A, R> = (Vec<A>, Vec<oneshot::Sender<Result<R, StoreError>>>);

fn sort<A, R>(batches: &mut BTreeMap<Duration, Batch<A, R>>, waiting: Waiting<A, R>) {
    let (asks, answers) = batches.entry(waiting.within).or_default();
    asks.push(waiting.ask);
    answers.push(waiting.answer);
}

fn send<A, R, F>(store: &Arc<dyn Store>, (asks, answers): Batch<A, R>, call: impl FnOnce(Arc<dyn Store>, Vec<A>) -> F)
where
    R: Send + 'static,
    F: Future<Output = Vec<Result<R, StoreError>>> + Send + 'static,
{
    let replies = call(store.clone(), asks);
    tokio::spawn(async move {
        for (answer, reply) in answers.into_iter().zip(replies.await) {
            // Who no longer waits has asked anew.
            let _ = answer.send(reply);
        }
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;

    use async_trait::async_trait;
    use tenure_core::ClaimReply;
    use tokio::sync::broadcast;
    use tokio::task::JoinSet;
    use uuid::Uuid;

    use super::*;
    use crate::store::sqlite::{FencedBy, SqliteState};
    use crate::store::standalone::StandaloneStore;
    use crate::store::{HandoffChange, HolderInfo, StoreEvent};

    const WITHIN: Duration = Duration::from_secs(60);
    /// Calls with this time-out are never answered.
    const HANGS: Duration = Duration::from_millis(50);

    /// Counts the calls, and how many asks each carried.
    struct Counted {
        store: StandaloneStore,
        calls: Mutex<Vec<(&'static str, usize)>>,
    }

    impl Counted {
        async fn count(&self, kind: &'static str, asks: usize, within: Duration) {
            self.calls.lock().unwrap().push((kind, asks));
            if within == HANGS {
                std::future::pending::<()>().await;
            }
        }

        fn take(&self) -> Vec<(&'static str, usize)> {
            std::mem::take(&mut self.calls.lock().unwrap())
        }
    }

    #[async_trait]
    impl Store for Counted {
        fn describe(&self) -> String {
            self.store.describe()
        }

        async fn claim(&self, asks: &[ClaimAsk], within: Duration) -> Vec<Result<Claimed, StoreError>> {
            self.count("claim", asks.len(), within).await;
            self.store.claim(asks, within).await
        }

        async fn renew(&self, asks: &[RenewAsk], within: Duration) -> Vec<Result<RenewReply, StoreError>> {
            self.count("renew", asks.len(), within).await;
            self.store.renew(asks, within).await
        }

        async fn release(&self, asks: &[ReleaseAsk], within: Duration) -> Vec<Result<ReleaseReply, StoreError>> {
            self.count("release", asks.len(), within).await;
            self.store.release(asks, within).await
        }

        async fn settle_handoff(&self, role: &RoleName, claim: ClaimId, within: Duration) -> Result<(), StoreError> {
            self.store.settle_handoff(role, claim, within).await
        }

        fn watch(&self) -> broadcast::Receiver<StoreEvent> {
            self.store.watch()
        }

        fn state(&self) -> Arc<dyn StateStore> {
            self.store.state()
        }
    }

    fn start() -> (Arc<Counted>, StoreHandle) {
        let store = Arc::new(Counted {
            store: StandaloneStore::new(Arc::new(SqliteState::new(Path::new(":memory:"), FencedBy::Caller).unwrap())),
            calls: Mutex::default(),
        });
        (store.clone(), StoreHandle::new(store))
    }

    fn roles(count: usize) -> Vec<(RoleName, ClaimId)> {
        (0..count).map(|at| (RoleName::new(&format!("r{at}")).unwrap(), ClaimId(Uuid::new_v4()))).collect()
    }

    fn claim(role: &RoleName, claim: ClaimId) -> ClaimAsk {
        let holder = HolderInfo { instance: String::new(), admin: String::new(), digest: String::new() };
        ClaimAsk { role: role.clone(), claim, ttl: WITHIN, seen_term: 0, holder }
    }

    fn renewal(role: &RoleName, claim: ClaimId) -> RenewAsk {
        RenewAsk { role: role.clone(), claim, ttl: WITHIN }
    }

    #[tokio::test]
    async fn what_falls_due_together_is_one_call_per_kind() {
        let (store, handle) = start();
        let roles = roles(1_000);
        let mut tasks = JoinSet::new();
        for (role, id) in roles.clone() {
            let handle = handle.clone();
            tasks.spawn(async move { handle.claim(claim(&role, id), WITHIN).await.unwrap().reply });
        }
        assert!(tasks.join_all().await.iter().all(|reply| matches!(reply, ClaimReply::Granted { .. })));
        assert_eq!(store.take(), [("claim", 1_000)]);

        let mut tasks = JoinSet::new();
        for (at, (role, id)) in roles.into_iter().enumerate() {
            let handle = handle.clone();
            tasks.spawn(async move {
                if at % 2 == 0 {
                    assert_eq!(handle.renew(renewal(&role, id), WITHIN).await, Ok(RenewReply::Renewed));
                } else {
                    let ask = ReleaseAsk { role, claim: id, handoff: HandoffChange::Keep };
                    assert_eq!(handle.release(ask, WITHIN).await, Ok(ReleaseReply::Released));
                }
            });
        }
        tasks.join_all().await;
        assert_eq!(store.take(), [("renew", 500), ("release", 500)]);
    }

    #[tokio::test]
    async fn each_gets_the_answer_to_its_own_ask() {
        let (_, handle) = start();
        let roles = roles(10);
        for (role, id) in roles.iter().step_by(2) {
            handle.claim(claim(role, *id), WITHIN).await.unwrap();
        }
        let mut tasks = JoinSet::new();
        for (at, (role, id)) in roles.into_iter().enumerate() {
            let handle = handle.clone();
            tasks.spawn(async move { (at, handle.renew(renewal(&role, id), WITHIN).await.unwrap()) });
        }
        for (at, reply) in tasks.join_all().await {
            assert_eq!(reply, if at % 2 == 0 { RenewReply::Renewed } else { RenewReply::NotYours }, "{at}");
        }
    }

    #[tokio::test]
    async fn a_call_that_hangs_ends_in_time_and_holds_up_no_other() {
        let (store, handle) = start();
        let (role, id) = roles(1).remove(0);
        handle.claim(claim(&role, id), WITHIN).await.unwrap();
        let hangs = tokio::spawn({
            let (handle, ask) = (handle.clone(), renewal(&role, id));
            async move { handle.renew(ask, HANGS).await }
        });
        // Until it hangs in the store.
        while store.calls.lock().unwrap().len() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(handle.renew(renewal(&role, id), WITHIN).await, Ok(RenewReply::Renewed));
        assert_eq!(hangs.await.unwrap(), Err(StoreError::TimedOut(HANGS)));
    }

    #[tokio::test]
    async fn different_time_outs_travel_apart() {
        let (store, handle) = start();
        let roles = roles(2);
        let asks = [(WITHIN, &roles[0]), (WITHIN * 2, &roles[1])];
        let [one, two] = asks.map(|(within, (role, id))| handle.claim(claim(role, *id), within));
        let (one, two) = tokio::join!(one, two);
        assert!(one.is_ok() && two.is_ok());
        assert_eq!(store.take(), [("claim", 1), ("claim", 1)]);
    }
}
