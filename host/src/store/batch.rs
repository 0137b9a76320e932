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
