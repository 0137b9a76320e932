//! All lease arithmetic, and nothing else does any.
//!
//! ```text
//! trusted_until = asked_at + ttl - skew             asked_at: before the request left
//! drain         = grace + within + kill margin
//! step_down_at  = trusted_until - drain
//! renew_every + 2 * request_timeout <= ttl - skew - drain
//! ```
//!
//! The last line is checked once, in [`Timing::new`]: one failed renewal and one more try still fit before the instance
//! has to step down.

use std::time::Duration;

use crate::instant::Instant;

/// The shortest ttl that is accepted: below it, timer slack and round trips eat the lease.
pub const MIN_TTL: Duration = Duration::from_secs(1);
/// The longest: a crashed holder's role idles for as long, and the arithmetic stays far from its ends.
pub const MAX_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// What is kept back at least between the end of a plugin's budget and the end of trust, for the cutting off itself.
pub const MIN_KILL_MARGIN: Duration = Duration::from_millis(50);
/// And for each MiB of the plugin's memory: nothing can interrupt one instruction that fills all of it. On a machine
/// that was busy otherwise it took 1.4 ms a MiB at 64 MiB; `make bench` measures it.
const KILL_MARGIN_PER_MIB: Duration = Duration::from_millis(2);
/// How much of the ttl the clocks may drift apart, where nothing else is asked for: at least this.
const MIN_SKEW: Duration = Duration::from_millis(20);

/// The checked durations of one role's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    ttl: Duration,
    renew_every: Duration,
    request_timeout: Duration,
    skew: Duration,
    grace: Duration,
    within: Duration,
    cool_down: Duration,
    kill_margin: Duration,
}

/// What the configuration says; what it does not say follows from the ttl.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimingInput {
    /// `lease.ttl`; 30 s.
    pub ttl: Option<Duration>,
    /// `lease.renew_every`; ttl / 3.
    pub renew_every: Option<Duration>,
    /// `lease.request_timeout`; ttl / 6.
    pub request_timeout: Option<Duration>,
    /// `lease.skew`; ttl / 100, at least 20 ms.
    pub skew: Option<Duration>,
    /// `stop.grace`; ttl / 30.
    pub grace: Option<Duration>,
    /// `stop.within`; ttl / 15.
    pub within: Option<Duration>,
    /// `on_failure.cool_down`; the ttl.
    pub cool_down: Option<Duration>,
    /// The most memory of the plugin, in bytes: the kill margin grows with it.
    pub memory: u64,
}

/// Durations that cannot keep the promise. Times are in words, for the person who wrote them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// Below the floor.
    #[error("lease.ttl = {0:?} is too short: at least {MIN_TTL:?}")]
    TtlTooShort(Duration),
    /// Above the ceiling.
    #[error("lease.ttl = {0:?} is too long: at most {MAX_TTL:?}, since a crashed holder's role idles for as long")]
    TtlTooLong(Duration),
    /// A duration of nothing.
    #[error("{0} must be longer than zero")]
    Zero(&'static str),
    /// Skew and drain leave nothing to lead in.
    #[error(
        "lease.ttl = {ttl:?} leaves no time to lead: lease.skew = {skew:?}, stop.grace = {grace:?}, \
         stop.within = {within:?} and the kill margin of {kill_margin:?} add up to {sum:?}; raise lease.ttl, or lower \
         stop.within or memory"
    )]
    NoTimeToLead {
        /// `lease.ttl`
        ttl: Duration,
        /// `lease.skew`
        skew: Duration,
        /// `stop.grace`
        grace: Duration,
        /// `stop.within`
        within: Duration,
        /// What the role's memory asks for.
        kill_margin: Duration,
        /// Of all but the ttl.
        sum: Duration,
    },
    /// A failed renewal and one more try do not fit.
    #[error(
        "lease.renew_every = {renew_every:?} and twice lease.request_timeout = {request_timeout:?} add up to {sum:?}, but \
         only {room:?} of lease.ttl = {ttl:?} are left before the instance must step down (skew {skew:?}, drain {drain:?}); \
         lower lease.renew_every or lease.request_timeout, or raise lease.ttl"
    )]
    TooTight {
        /// `lease.renew_every`
        renew_every: Duration,
        /// `lease.request_timeout`
        request_timeout: Duration,
        /// `renew_every + 2 * request_timeout`
        sum: Duration,
        /// `ttl - skew - drain`
        room: Duration,
        /// `lease.ttl`
        ttl: Duration,
        /// `lease.skew`
        skew: Duration,
        /// `grace + within + kill margin`
        drain: Duration,
    },
}

/// How long each part of one demotion may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopBudget {
    /// A running tick may finish until then.
    pub grace_until: Instant,
    /// `demoted` may take this long.
    pub within: Duration,
    /// Everything has ended by then, the kill margin before the end of trust.
    pub ends_by: Instant,
    /// The fuel of `demoted`.
    pub fuel: u64,
}

impl StopBudget {
    /// When a `demoted` that starts `now` is cut off.
    #[must_use]
    pub fn cut_off_at(&self, now: Instant) -> Instant {
        now.plus(self.within).min(self.ends_by)
    }
}

/// The kill margin of a plugin with so many bytes of memory.
fn kill_margin(memory: u64) -> Duration {
    let mib = u32::try_from(memory.div_ceil(1 << 20)).unwrap_or(u32::MAX);
    MIN_KILL_MARGIN.max(KILL_MARGIN_PER_MIB.saturating_mul(mib))
}

/// A part of a duration in whole milliseconds, since people read it.
fn part(whole: Duration, parts: u32) -> Duration {
    let part = whole / parts;
    part - Duration::from_nanos(u64::from(part.subsec_nanos() % 1_000_000))
}

impl Timing {
    /// Fills in what `input` leaves open, and checks the sums.
    ///
    /// # Errors
    ///
    /// [`TimingError`], which names the keys and prints the sum.
    pub fn new(input: &TimingInput) -> Result<Self, TimingError> {
        let ttl = input.ttl.unwrap_or(Duration::from_secs(30));
        if ttl < MIN_TTL {
            return Err(TimingError::TtlTooShort(ttl));
        }
        if ttl > MAX_TTL {
            return Err(TimingError::TtlTooLong(ttl));
        }
        let timing = Self {
            ttl,
            renew_every: input.renew_every.unwrap_or(part(ttl, 3)),
            request_timeout: input.request_timeout.unwrap_or(part(ttl, 6)),
            skew: input.skew.unwrap_or(part(ttl, 100).max(MIN_SKEW)),
            grace: input.grace.unwrap_or(part(ttl, 30)),
            within: input.within.unwrap_or(part(ttl, 15)),
            cool_down: input.cool_down.unwrap_or(ttl),
            kill_margin: kill_margin(input.memory),
        };
        timing.check()?;
        Ok(timing)
    }

    fn check(&self) -> Result<(), TimingError> {
        for (key, value) in [
            ("lease.renew_every", self.renew_every),
            ("lease.request_timeout", self.request_timeout),
            ("lease.skew", self.skew),
            ("stop.within", self.within),
        ] {
            if value.is_zero() {
                return Err(TimingError::Zero(key));
            }
        }
        let Self { ttl, renew_every, request_timeout, skew, grace, within, cool_down: _, kill_margin } = self.clone();
        let drain = self.drain();
        let taken = skew.saturating_add(drain);
        let Some(room) = ttl.checked_sub(taken).filter(|room| !room.is_zero()) else {
            return Err(TimingError::NoTimeToLead { ttl, skew, grace, within, kill_margin, sum: taken });
        };
        let sum = renew_every.saturating_add(request_timeout.saturating_mul(2));
        if sum > room {
            return Err(TimingError::TooTight { renew_every, request_timeout, sum, room, ttl, skew, drain });
        }
        Ok(())
    }

    /// How long the store keeps a lease after a request.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// From one renewal to the next, and the longest that a follower waits before it asks again.
    #[must_use]
    pub fn renew_every(&self) -> Duration {
        self.renew_every
    }

    /// How long one request may go unanswered.
    #[must_use]
    pub fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// What the clocks of the instance and of the store may drift apart during one ttl.
    #[must_use]
    pub fn skew(&self) -> Duration {
        self.skew
    }

    /// How long a running tick may go on after the notice.
    #[must_use]
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// How long `demoted` may take.
    #[must_use]
    pub fn within(&self) -> Duration {
        self.within
    }

    /// What is kept back between the end of the plugin's budget and the end of trust.
    #[must_use]
    pub fn kill_margin(&self) -> Duration {
        self.kill_margin
    }

    /// What a demotion may take altogether.
    #[must_use]
    pub fn drain(&self) -> Duration {
        self.grace.saturating_add(self.within).saturating_add(self.kill_margin)
    }

    /// Up to when a lease is trusted that was granted by a request that left after `asked_at`.
    #[must_use]
    pub fn trusted_until(&self, asked_at: Instant) -> Instant {
        asked_at.plus(self.ttl.saturating_sub(self.skew))
    }

    /// When a demotion has to begin so that it ends within the trust.
    #[must_use]
    pub fn step_down_at(&self, trusted_until: Instant) -> Instant {
        trusted_until.minus(self.drain())
    }

    /// When the next renewal, or a follower's next look, is due that follows one at `from`: after `renew_every`, rounded
    /// down to a grid of an eighth of it. The grid is what lets many roles that fell out of step travel together again.
    pub(crate) fn due_after(&self, from: Instant) -> Instant {
        let due = from.plus(self.renew_every).as_nanos();
        let grid = u64::try_from(self.renew_every.as_nanos() / 8).unwrap_or(u64::MAX).max(1);
        Instant::from_nanos(due - due % grid)
    }

    /// How long to wait before asking again after `failures` unanswered requests in a row: not at all after the first,
    /// then from an eighth of the request timeout on, doubling up to half of `renew_every`.
    pub(crate) fn back_off(&self, failures: u32) -> Duration {
        let Some(doublings) = failures.checked_sub(2) else { return Duration::ZERO };
        let wait = (self.request_timeout / 8).saturating_mul(1 << doublings.min(16));
        wait.min(self.renew_every / 2)
    }

    /// How long an instance that leads `leading` roles already holds back before a claim, so that one that leads fewer
    /// gets in first: a sixteenth step, chosen by `dice`, of a millisecond a role, up to a quarter of `renew_every`. Steps,
    /// so that the claims of many roles still travel together.
    pub(crate) fn hold_back(&self, leading: u32, dice: u64) -> Duration {
        let spread = Duration::from_millis(u64::from(leading)).min(self.renew_every / 4);
        spread / 16 * u32::try_from(dice % 16).unwrap_or(0)
    }

    /// How long one request may take that is sent `now` by a leader: never past the time to step down.
    pub(crate) fn request_within(&self, now: Instant, step_down_at: Instant) -> Duration {
        self.request_timeout.min(step_down_at.since(now))
    }

    /// How long the instance leaves a role alone whose plugin failed on it.
    #[must_use]
    pub fn cool_down(&self) -> Duration {
        self.cool_down
    }

    /// The budgets of a demotion that starts `now`. Where less is left than grace and within ask for, both shrink in
    /// proportion, and the fuel to what `fuel_per_ms` burns in what remains of within.
    #[must_use]
    pub fn stop_budget(&self, now: Instant, trusted_until: Instant, stop_fuel: u64, fuel_per_ms: u64) -> StopBudget {
        let wanted = self.grace.saturating_add(self.within);
        let left = trusted_until.minus(self.kill_margin).since(now);
        if left >= wanted {
            let ends_by = now.plus(wanted);
            return StopBudget { grace_until: now.plus(self.grace), within: self.within, ends_by, fuel: stop_fuel };
        }
        let share = left.as_secs_f64() / wanted.as_secs_f64();
        let within = self.within.mul_f64(share);
        let burnt =
            u64::try_from(within.as_micros().saturating_mul(u128::from(fuel_per_ms)) / 1000).unwrap_or(u64::MAX);
        StopBudget {
            grace_until: now.plus(self.grace.mul_f64(share)),
            within,
            ends_by: now.plus(left),
            fuel: stop_fuel.min(burnt),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // It is a test.

    use proptest::prelude::*;

    use super::*;

    fn timing() -> Timing {
        Timing::new(&TimingInput::default()).unwrap()
    }

    #[test]
    fn the_first_retry_is_at_once_and_later_ones_wait_longer_and_longer() {
        let waits: Vec<_> = (0..8).map(|failures| timing().back_off(failures).as_millis()).collect();
        assert_eq!(waits, [0, 0, 625, 1250, 2500, 5000, 5000, 5000]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_back_off_is_longer_than_half_a_renewal(failures: u32) {
            prop_assert!(timing().back_off(failures) <= timing().renew_every() / 2);
            prop_assert!(timing().back_off(failures) <= timing().back_off(failures.saturating_add(1)));
        }

        #[test]
        fn a_hold_back_grows_with_the_roles_led_up_to_a_quarter_of_a_renewal(leading: u32, dice: u64) {
            let timing = timing();
            let hold_back = timing.hold_back(leading, dice);
            prop_assert!(hold_back < timing.renew_every() / 4);
            prop_assert!(hold_back <= Duration::from_millis(u64::from(leading)));
            prop_assert!(hold_back <= timing.hold_back(leading.saturating_add(1), dice));
            prop_assert_eq!(timing.hold_back(0, dice), Duration::ZERO);
        }

        #[test]
        fn what_is_due_lies_on_the_grid_and_at_most_an_eighth_early(from in 0..u64::MAX / 2) {
            let (timing, from) = (timing(), Instant::from_nanos(from));
            let (due, eighth) = (timing.due_after(from), timing.renew_every() / 8);
            prop_assert!(due <= from.plus(timing.renew_every()) && due > from.plus(eighth * 7));
            prop_assert_eq!(u128::from(due.as_nanos()) % eighth.as_nanos(), 0);
        }
    }
}
