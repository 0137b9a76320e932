//! Leases in one SQLite file, for several host processes on one machine.
//!
//! Times in it are `CLOCK_BOOTTIME` with the boot's id: a lease of another boot is over. Everything that may block runs on a
//! thread of its own, and whoever asks waits for it no longer than the request timeout.

mod file;
mod state;
mod worker;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::{ClaimId, ReleaseReply, RenewReply};
use tokio::sync::broadcast;

use self::file::LeaseFile;
pub use self::state::{FencedBy, SqliteState};
use self::worker::Worker;
use super::{ClaimAsk, Claimed, ReleaseAsk, RenewAsk, Store, StoreError, StoreEvent};
use crate::config::RoleName;
use crate::state::StateStore;

/// How often the thread looks for other processes' changes.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How many events a watcher may fall behind.
const EVENTS: usize = 4_096;

/// The outcome of a batch: of all of it, or of each ask.
type Replies<R> = Result<Vec<Result<R, StoreError>>, StoreError>;

/// Leases in one SQLite file.
pub struct SqliteStore {
    described: String,
    worker: Worker<LeaseFile>,
    state: Arc<SqliteState>,
    events: broadcast::Sender<StoreEvent>,
}

impl SqliteStore {
    /// Opens `path`, and makes it and its folder where they are missing.
    ///
    /// # Errors
    ///
    /// Where it can't be made or opened, or is no SQLite database.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let file = LeaseFile::open(path)?;
        let events = broadcast::Sender::new(EVENTS);
        let watchers = events.clone();
        let worker = Worker::start_with_idle("sqlite", file, move |file, worked| {
            if file.changed_elsewhere() || worked {
                for event in file.new_events() {
                    let _ = watchers.send(event);
                }
            }
            Some(LOOK_EVERY)
        })?;
        let state = Arc::new(SqliteState::new(path, FencedBy::Leases)?);
        Ok(Self { described: format!("sqlite file {}", path.display()), worker, state, events })
    }

    async fn run<T: Send + 'static>(
        &self,
        within: Duration,
        work: impl FnOnce(&mut LeaseFile) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.worker.run(within, move |file| file.wait_at_most(within).and_then(|()| work(file))).await?
    }

    async fn batch<A: Clone + Send + Sync + 'static, R: Send + 'static>(
        &self,
        asks: &[A],
        within: Duration,
        work: fn(&mut LeaseFile, &[A]) -> Replies<R>,
    ) -> Vec<Result<R, StoreError>> {
        let owned: Arc<[A]> = asks.into();
        match self.run(within, move |file| work(file, &owned)).await {
            Ok(replies) => replies,
            Err(error) => asks.iter().map(|_| Err(error.clone())).collect(),
        }
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn describe(&self) -> String {
        self.described.clone()
    }

    async fn claim(&self, asks: &[ClaimAsk], within: Duration) -> Vec<Result<Claimed, StoreError>> {
        self.batch(asks, within, LeaseFile::claim).await
    }

    async fn renew(&self, asks: &[RenewAsk], within: Duration) -> Vec<Result<RenewReply, StoreError>> {
        self.batch(asks, within, LeaseFile::renew).await
    }

    async fn release(&self, asks: &[ReleaseAsk], within: Duration) -> Vec<Result<ReleaseReply, StoreError>> {
        self.batch(asks, within, LeaseFile::release).await
    }

    async fn settle_handoff(&self, role: &RoleName, claim: ClaimId, within: Duration) -> Result<(), StoreError> {
        let role = role.clone();
        self.run(within, move |file| file.settle_handoff(&role, claim)).await
    }

    fn watch(&self) -> broadcast::Receiver<StoreEvent> {
        self.events.subscribe()
    }

    fn state(&self) -> Arc<dyn StateStore> {
        self.state.clone()
    }
}
