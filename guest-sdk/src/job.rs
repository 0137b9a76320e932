//! A job as a type, and how the host's calls reach it.

use std::time::Duration;

use crate::bindings::exports::tenure::plugin::job as wit;
use crate::{Error, logger};

/// What an earlier leader's [`Job::demoted`] left.
pub use wit::Handoff;
/// Why leadership ends.
pub use wit::Reason;

/// Work that only one instance may do.
pub trait Job: Sized {
    /// Leadership begins: makes the job. `handoff` is what the last [`demoted`](Self::demoted) left, here or on another
    /// host.
    ///
    /// # Errors
    ///
    /// An error gives the role up; its words go to the host's log.
    fn elected(handoff: Option<Handoff>) -> Result<Self, Error>;

    /// One piece of work: short, because between ticks the job can be stopped at once.
    ///
    /// # Errors
    ///
    /// An error is logged and counted, and the next tick comes after a back-off. After several in a row the host gives
    /// the role up.
    fn tick(&mut self) -> Result<Next, Error>;

    /// Leadership ends: leaves what the next [`elected`](Self::elected) should have. Runs on the host's stop budget, and
    /// is cut off at its end.
    fn demoted(self, reason: Reason) -> Option<Vec<u8>> {
        let _ = reason;
        None
    }

    /// Leadership ends and there is no job: `elected` failed, or an earlier instance panicked or was cut off and this is
    /// a fresh one. What must be tidied up outside is tidied up here.
    fn clean_up(reason: Reason) -> Option<Vec<u8>> {
        let _ = reason;
        None
    }
}

/// When a job wants its next tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// At once.
    Again,
    /// After this long; in whole milliseconds, rounded up, at most 49 days.
    After(Duration),
    /// Not in this term. The host goes on holding the lease, so that nobody else does the work again.
    Done,
}

impl Next {
    /// The next tick comes after `wait`.
    #[must_use]
    pub fn after(wait: Duration) -> Self {
        Self::After(wait)
    }
}

impl From<Next> for wit::Next {
    fn from(next: Next) -> Self {
        match next {
            Next::Again => Self::Again,
            // Rounded up: half a millisecond is not "at once".
            Next::After(wait) => Self::After(u32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)),
            Next::Done => Self::Done,
        }
    }
}

/// The type behind [`export!`](crate::export): where the one job of a plugin lives.
pub trait Exported {
    /// The job.
    type Job: Job;

    /// Gives access to the job, if there is one.
    fn with<T>(work: impl FnOnce(&mut Option<Self::Job>) -> T) -> T;
}

/// An error with its causes, for the host's log.
#[allow(clippy::needless_pass_by_value, reason = "it is what `map_err` passes")]
fn words(error: Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words.push_str(": ");
        words.push_str(&cause.to_string());
        source = cause.source();
    }
    words
}

impl<E: Exported> wit::Guest for E {
    fn elected(handoff: Option<Handoff>) -> Result<(), String> {
        logger::set_up();
        let job = E::Job::elected(handoff).map_err(words)?;
        E::with(|place| *place = Some(job));
        Ok(())
    }

    fn tick() -> Result<wit::Next, String> {
        E::with(|job| match job {
            Some(job) => job.tick().map(Into::into).map_err(words),
            None => Err("a tick without an election".to_owned()),
        })
    }

    fn demoted(reason: Reason) -> Option<Vec<u8>> {
        logger::set_up();
        match E::with(Option::take) {
            Some(job) => job.demoted(reason),
            None => E::Job::clean_up(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_rounded_up_and_end_somewhere() {
        for (wait, ms) in [
            (Duration::ZERO, 0),
            (Duration::from_micros(1), 1),
            (Duration::from_millis(5), 5),
            (Duration::from_nanos(5_000_001), 6),
            (Duration::MAX, u32::MAX),
        ] {
            assert!(matches!(wit::Next::from(Next::after(wait)), wit::Next::After(after) if after == ms), "{wait:?}");
        }
    }
}
