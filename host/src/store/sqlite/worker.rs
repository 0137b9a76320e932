//! A thread that may block, and whoever waits for it no longer than they want to.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::oneshot;

use super::super::StoreError;

/// Something to do with what the thread has.
type Job<T> = Box<dyn FnOnce(&mut T) + Send>;

/// A thread that has a `T`.
pub(super) struct Worker<T> {
    jobs: Sender<Job<T>>,
}

impl<T: Send + 'static> Worker<T> {
    /// A thread that does only what it is asked.
    pub(super) fn start(name: &str, has: T) -> anyhow::Result<Self> {
        Self::start_with_idle(name, has, |_, _| None)
    }

    /// A thread that does what it is asked. After each job, and after each time that `idle` last said, it calls `idle`
    /// with whether it has worked.
    pub(super) fn start_with_idle(
        name: &str,
        mut has: T,
        mut idle: impl FnMut(&mut T, bool) -> Option<Duration> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job<T>>();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let mut wait = idle(&mut has, false);
                loop {
                    match next(&queue, wait) {
                        Ok(job) => {
                            job(&mut has);
                            wait = idle(&mut has, true);
                        }
                        Err(RecvTimeoutError::Timeout) => wait = idle(&mut has, false),
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
            })
            .context("the SQLite thread")?;
        Ok(Self { jobs })
    }

    /// Has `work` done on the thread, and waits for it.
    pub(super) async fn run<R: Send + 'static>(
        &self,
        within: Duration,
        work: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> Result<R, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job: Job<T> = Box::new(move |has| {
            // Who stopped waiting has asked anew: doing it now would only be late.
            if !answer.is_closed() {
                let _ = answer.send(work(has));
            }
        });
        let gone = || StoreError::Unreachable("the SQLite thread has ended".to_owned());
        self.jobs.send(job).map_err(|_| gone())?;
        match tokio::time::timeout(within, answered).await {
            Ok(answer) => answer.map_err(|_| gone()),
            Err(_) => Err(StoreError::TimedOut(within)),
        }
    }
}

fn next<T>(queue: &Receiver<Job<T>>, wait: Option<Duration>) -> Result<Job<T>, RecvTimeoutError> {
    match wait {
        Some(wait) => queue.recv_timeout(wait),
        None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
    }
}
