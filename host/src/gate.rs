//! The first wall: no outward effect without a permit, and no permit past the trust.
//!
//! One gate a term. The role's task extends it with each renewal that was answered; the work asks it before everything
//! that the outside world could notice. Late means refused, whatever the task scheduler did meanwhile, because the gate
//! reads the clock itself and needs nobody to close it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::Instant;
use tokio::sync::Notify;

use crate::clock;

/// Holds a term and the time up to which it is trusted.
#[derive(Debug)]
pub struct Gate {
    term: u64,
    /// Nanoseconds of the trusted instant; zero once closed, and then for good.
    trusted_until: AtomicU64,
    closed: Notify,
}

/// Leave for one outward effect of one term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permit {
    /// The term that the effect belongs to: the fencing token.
    pub term: u64,
    /// The effect must be over by then.
    pub until: Instant,
}

/// The gate is closed: the term is over, or its trust has run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("refused: term {term} is over on this instance")]
pub struct Refused {
    /// The term that was asked for.
    pub term: u64,
}

impl Gate {
    /// An open gate for `term`.
    #[must_use]
    pub fn new(term: u64, trusted_until: Instant) -> Self {
        Self { term, trusted_until: AtomicU64::new(trusted_until.as_nanos()), closed: Notify::new() }
    }

    /// The term that this gate stands for.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Up to when the term is trusted; the zero instant once the gate is closed.
    #[must_use]
    pub fn trusted_until(&self) -> Instant {
        Instant::from_nanos(self.trusted_until.load(Ordering::Acquire))
    }

    /// What is left of the trust, on the clock of now.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.trusted_until().since(clock::now())
    }

    /// Leave for one outward effect.
    ///
    /// # Errors
    ///
    /// [`Refused`] where the gate is closed or the trust has run out.
    pub fn permit(&self) -> Result<Permit, Refused> {
        let until = self.trusted_until();
        if clock::now() < until { Ok(Permit { term: self.term, until }) } else { Err(Refused { term: self.term }) }
    }

    /// Moves the end of the trust on after an answered renewal. A closed gate stays closed, and trust never shrinks.
    pub fn extend(&self, trusted_until: Instant) {
        // `fetch_update` and not `fetch_max`: zero means closed, and must win over every extension.
        let _ = self.trusted_until.fetch_update(Ordering::AcqRel, Ordering::Acquire, |present| {
            (present != 0 && trusted_until.as_nanos() > present).then_some(trusted_until.as_nanos())
        });
    }

    /// Closes the gate, at once and for good.
    pub fn close(&self) {
        self.trusted_until.store(0, Ordering::Release);
        self.closed.notify_waiters();
    }

    /// Waits until there is no permit any more: for effects that take a while, to be broken off.
    pub async fn ended(&self) {
        loop {
            let closed = self.closed.notified();
            let until = self.trusted_until();
            if clock::now() >= until {
                return;
            }
            tokio::select! {
                () = closed => {}
                () = clock::sleep_until(until) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_an_hour() -> Instant {
        Instant::from_nanos(clock::now().as_nanos() + 3_600_000_000_000)
    }

    #[test]
    fn a_permit_names_the_term() {
        let gate = Gate::new(7, in_an_hour());
        assert_eq!(gate.permit().map(|permit| permit.term), Ok(7));
    }

    #[test]
    fn trust_that_ran_out_refuses_without_being_told() {
        let gate = Gate::new(7, Instant::from_nanos(clock::now().as_nanos()));
        assert_eq!(gate.permit(), Err(Refused { term: 7 }));
    }

    #[test]
    fn a_closed_gate_cannot_be_extended() {
        let gate = Gate::new(7, in_an_hour());
        gate.close();
        gate.extend(in_an_hour());
        assert_eq!(gate.permit(), Err(Refused { term: 7 }));
        assert_eq!(gate.remaining(), Duration::ZERO);
    }

    #[tokio::test]
    async fn the_end_is_waited_for_and_moves_with_the_trust() {
        let soon = |ms| clock::now().plus(Duration::from_millis(ms));
        let gate = Gate::new(7, soon(20));
        let end = soon(120);
        gate.extend(end);
        gate.ended().await;
        assert!(clock::now() >= end);
        let gate = Gate::new(7, in_an_hour());
        tokio::join!(gate.ended(), async { gate.close() });
    }

    #[test]
    fn trust_never_shrinks() {
        let late = in_an_hour();
        let gate = Gate::new(7, late);
        gate.extend(clock::now());
        assert_eq!(gate.trusted_until(), late);
    }
}
