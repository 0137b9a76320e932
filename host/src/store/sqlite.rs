//! Leases in one SQLite file, for several host processes on one machine.
//!
//! Times in it are `CLOCK_BOOTTIME` with the boot's id: a lease of another boot is over. Everything that may block runs on a
//! thread of its own, and whoever asks waits for it no longer than the request timeout.

mod file;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use tenure_core::{ClaimId, ReleaseReply, RenewReply};
use tokio::sync::{broadcast, oneshot};

use self::file::LeaseFile;
use super::{ClaimAsk, Claimed, ReleaseAsk, RenewAsk, Store, StoreError, StoreEvent};
use crate::config::RoleName;

/// How often the thread looks for other processes' changes.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How many events a watcher may fall behind.
const EVENTS: usize = 4_096;

/// The outcome of a batch: of all of it, or of each ask.
type Replies<R> = Result<Vec<Result<R, StoreError>>, StoreError>;

/// Something to do with the file, on its thread.
type Job = Box<dyn FnOnce(&mut LeaseFile) + Send>;

/// Leases in one SQLite file.
pub struct SqliteStore {
    described: String,
    jobs: Sender<Job>,
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
        let (jobs, queue) = mpsc::channel();
        let events = broadcast::Sender::new(EVENTS);
        let watchers = events.clone();
        thread::Builder::new()
            .name("sqlite".to_owned())
            .spawn(move || work(file, &queue, &watchers))
            .context("the SQLite thread")?;
        Ok(Self { described: format!("sqlite file {}", path.display()), jobs, events })
    }

    async fn run<T: Send + 'static>(
        &self,
        within: Duration,
        work: impl FnOnce(&mut LeaseFile) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |file| {
            // Who stopped waiting has asked anew: doing it now would only be late.
            if !answer.is_closed() {
                let _ = answer.send(file.wait_at_most(within).and_then(|()| work(file)));
            }
        });
        let gone = || StoreError::Unreachable("the SQLite thread has ended".to_owned());
        self.jobs.send(job).map_err(|_| gone())?;
        match tokio::time::timeout(within, answered).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(gone())),
            Err(_) => Err(StoreError::TimedOut(within)),
        }
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

/// The thread: does what is asked, and looks for what other processes did while nothing is.
fn work(mut file: LeaseFile, queue: &Receiver<Job>, events: &broadcast::Sender<StoreEvent>) {
    loop {
        let asked = if events.receiver_count() > 0 {
            queue.recv_timeout(LOOK_EVERY)
        } else {
            queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        let worked = match asked {
            Ok(job) => {
                job(&mut file);
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if file.changed_elsewhere() || worked {
            for event in file.new_events() {
                let _ = events.send(event);
            }
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
}
