//! The durations: what follows from the ttl, what is refused in which words, and what a demotion may take.
#![allow(clippy::unwrap_used, missing_docs)] // It is a test.

use std::time::Duration;

use proptest::prelude::*;
use tenure_core::{Instant, MAX_TTL, MIN_KILL_MARGIN, MIN_TTL, Timing, TimingError, TimingInput};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn at(at: u64) -> Instant {
    Instant::from_nanos(at * 1_000_000)
}

fn ttl(ttl: Duration) -> TimingInput {
    TimingInput { ttl: Some(ttl), ..TimingInput::default() }
}

fn refusal(input: &TimingInput) -> String {
    Timing::new(input).unwrap_err().to_string()
}

// -------------------------------------------------------------------------------------------- the configuration

#[test]
fn everything_follows_from_the_ttl() {
    let timing = Timing::new(&TimingInput::default()).unwrap();
    assert_eq!(timing, Timing::new(&ttl(ms(30_000))).unwrap());
    assert_eq!((timing.ttl(), timing.renew_every(), timing.request_timeout()), (ms(30_000), ms(10_000), ms(5000)));
    assert_eq!((timing.skew(), timing.grace(), timing.within()), (ms(300), ms(1000), ms(2000)));
    assert_eq!(timing.drain(), ms(3000) + MIN_KILL_MARGIN);
    assert_eq!(timing.trusted_until(at(1000)), at(1000 + 29_700));
    assert_eq!(timing.step_down_at(timing.trusted_until(at(1000))), at(1000 + 26_650));
}

#[test]
fn a_ttl_of_a_second_alone_is_enough() {
    let timing = Timing::new(&ttl(MIN_TTL)).unwrap();
    assert_eq!(timing.skew(), ms(20), "a hundredth would be less than clocks and timers need");
}

#[test]
fn a_ttl_below_the_floor_or_above_the_ceiling_is_refused() {
    // E12
    let short = refusal(&ttl(MIN_TTL - Duration::from_nanos(1)));
    assert_eq!(short, "lease.ttl = 999.999999ms is too short: at least 1s");
    assert_eq!(refusal(&ttl(Duration::ZERO)), "lease.ttl = 0ns is too short: at least 1s");
    assert!(Timing::new(&ttl(MAX_TTL)).is_ok());
    let long = refusal(&ttl(Duration::MAX));
    assert!(long.starts_with("lease.ttl = ") && long.contains("is too long: at most 2592000s"), "{long}");
}

#[test]
fn a_duration_of_nothing_is_refused_by_name() {
    let none = Some(Duration::ZERO);
    for (input, key) in [
        (TimingInput { renew_every: none, ..TimingInput::default() }, "lease.renew_every"),
        (TimingInput { request_timeout: none, ..TimingInput::default() }, "lease.request_timeout"),
        (TimingInput { skew: none, ..TimingInput::default() }, "lease.skew"),
        (TimingInput { within: none, ..TimingInput::default() }, "stop.within"),
    ] {
        assert_eq!(refusal(&input), format!("{key} must be longer than zero"));
    }
    assert!(Timing::new(&TimingInput { grace: none, ..TimingInput::default() }).is_ok(), "no grace is a choice");
}

#[test]
fn a_ttl_that_leaves_no_time_to_lead_is_refused_with_the_sum() {
    let words = refusal(&TimingInput { within: Some(ms(40_000)), ..TimingInput::default() });
    for part in ["lease.ttl = 30s", "lease.skew = 300ms", "stop.grace = 1s", "stop.within = 40s", "50ms", "41.35s"] {
        assert!(words.contains(part), "{part}: {words}");
    }
    let exactly = TimingInput { within: Some(ms(30_000 - 300 - 1000 - 50)), ..TimingInput::default() };
    assert!(matches!(Timing::new(&exactly), Err(TimingError::NoTimeToLead { .. })));
    let huge = TimingInput { within: Some(Duration::MAX), grace: Some(Duration::MAX), ..TimingInput::default() };
    assert!(matches!(Timing::new(&huge), Err(TimingError::NoTimeToLead { .. })));
}

#[test]
fn a_renewal_and_two_tries_that_do_not_fit_are_refused_with_both_keys_and_the_sum() {
    let input = TimingInput { renew_every: Some(ms(20_000)), ..TimingInput::default() };
    let words = refusal(&input);
    for part in ["lease.renew_every = 20s", "lease.request_timeout = 5s", "30s", "26.65s", "300ms", "3.05s"] {
        assert!(words.contains(part), "{part}: {words}");
    }
    let fits = TimingInput { renew_every: Some(ms(16_650)), ..TimingInput::default() };
    assert!(Timing::new(&fits).is_ok());
    let over = TimingInput { renew_every: Some(ms(16_651)), ..TimingInput::default() };
    assert!(matches!(Timing::new(&over), Err(TimingError::TooTight { .. })));
    let huge = TimingInput { request_timeout: Some(Duration::MAX), ..TimingInput::default() };
    assert!(matches!(Timing::new(&huge), Err(TimingError::TooTight { .. })));
}

// ---------------------------------------------------------------------------------------------------- the budget

#[test]
fn a_demotion_in_time_has_the_whole_budget() {
    let timing = Timing::new(&TimingInput::default()).unwrap();
    let budget = timing.stop_budget(at(0), at(10_000), 1_000_000, 100);
    assert_eq!((budget.grace_until, budget.within, budget.ends_by), (at(1000), ms(2000), at(3000)));
    assert_eq!(budget.fuel, 1_000_000);
    assert_eq!(budget.cut_off_at(at(200)), at(2200), "a short grace is not added to within");
    assert_eq!(budget.cut_off_at(at(1000)), at(3000));
    assert_eq!(budget.cut_off_at(at(2500)), at(3000), "a long one is taken from it");
}

#[test]
fn a_late_demotion_shrinks_in_proportion_and_its_fuel_with_it() {
    let timing = Timing::new(&TimingInput::default()).unwrap();
    // Half of grace and within is left.
    let budget = timing.stop_budget(at(0), at(1550), 1_000_000, 100);
    assert_eq!((budget.grace_until, budget.within, budget.ends_by), (at(500), ms(1000), at(1500)));
    assert_eq!(budget.fuel, 100_000, "what 1000 ms burn");
    assert_eq!(timing.stop_budget(at(0), at(1550), 5000, 100).fuel, 5000, "never more than was asked for");
}

#[test]
fn a_demotion_after_the_end_of_trust_has_no_budget() {
    let timing = Timing::new(&TimingInput::default()).unwrap();
    for now in [at(10_000), at(9950), at(60_000)] {
        let budget = timing.stop_budget(now, at(10_000), 1_000_000, 100);
        assert_eq!((budget.grace_until, budget.within, budget.ends_by, budget.fuel), (now, ms(0), now, 0));
    }
}

#[test]
fn a_trust_without_end_has_the_whole_budget() {
    let timing = Timing::new(&TimingInput::default()).unwrap();
    let budget = timing.stop_budget(at(5), Instant::NEVER, u64::MAX, u64::MAX);
    assert_eq!((budget.within, budget.ends_by, budget.fuel), (ms(2000), at(3005), u64::MAX));
    assert_eq!(timing.step_down_at(Instant::NEVER), Instant::NEVER);
}

fn any_timing() -> impl Strategy<Value = Timing> {
    let part = || prop::option::of(1..6_000_000_000_u64);
    (prop::option::of(1_000_000_000..100_000_000_000_u64), part(), part(), part(), part(), part()).prop_filter_map(
        "refused",
        |(ttl, renew_every, request_timeout, skew, grace, within)| {
            let nanos = |it: Option<u64>| it.map(Duration::from_nanos);
            let (ttl, renew_every, request_timeout) = (nanos(ttl), nanos(renew_every), nanos(request_timeout));
            let (skew, grace, within) = (nanos(skew), nanos(grace), nanos(within));
            Timing::new(&TimingInput {
                ttl,
                renew_every,
                request_timeout,
                skew,
                grace,
                within,
                cool_down: None,
                memory: 0,
            })
            .ok()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_accepted_timing_keeps_what_its_sum_says(timing in any_timing(), asked_at in 0..u64::MAX / 4) {
        let asked_at = Instant::from_nanos(asked_at);
        let trusted_until = timing.trusted_until(asked_at);
        let tries = timing.renew_every() + timing.request_timeout() * 2;
        prop_assert!(asked_at.plus(tries) <= timing.step_down_at(trusted_until));
        prop_assert!(timing.step_down_at(trusted_until).plus(timing.drain()) == trusted_until);
        prop_assert!(trusted_until < asked_at.plus(timing.ttl()));
    }

    #[test]
    fn no_budget_shrinks_before_the_step_down(timing in any_timing(), asked_at in 0..u64::MAX / 4, part in 0.0..=1.0) {
        let asked_at = Instant::from_nanos(asked_at);
        let trusted_until = timing.trusted_until(asked_at);
        let step_down_at = timing.step_down_at(trusted_until);
        let now = asked_at.plus(step_down_at.since(asked_at).mul_f64(part)).min(step_down_at);
        let budget = timing.stop_budget(now, trusted_until, 123, 1);
        prop_assert_eq!((budget.grace_until, budget.within), (now.plus(timing.grace()), timing.within()));
        prop_assert_eq!((budget.fuel, budget.ends_by), (123, now.plus(timing.grace() + timing.within())));
        prop_assert!(budget.ends_by.plus(MIN_KILL_MARGIN) <= trusted_until);
    }

    #[test]
    fn whenever_it_starts_a_demotion_ends_the_kill_margin_before_the_trust(
        timing in any_timing(), now in 0..200_000_000_000_u64, trusted in 0..200_000_000_000_u64, fuel: u64, per_ms: u64,
    ) {
        let (now, trusted_until) = (Instant::from_nanos(now), Instant::from_nanos(trusted));
        let budget = timing.stop_budget(now, trusted_until, fuel, per_ms);
        prop_assert!(budget.ends_by.plus(MIN_KILL_MARGIN) <= trusted_until || budget.ends_by == now);
        prop_assert!(budget.grace_until <= budget.ends_by && budget.cut_off_at(budget.grace_until) <= budget.ends_by);
        prop_assert!(budget.fuel <= fuel && budget.within <= timing.within());
    }
}

#[test]
fn the_kill_margin_grows_with_the_memory() {
    let margin =
        |mib: u64| Timing::new(&TimingInput { memory: mib << 20, ..TimingInput::default() }).unwrap().kill_margin();
    assert_eq!([0, 1, 25, 64, 512].map(margin), [50, 50, 50, 128, 1024].map(ms));
    let tight = TimingInput { ttl: Some(ms(1000)), memory: 4 << 30, ..TimingInput::default() };
    let error = Timing::new(&tight).unwrap_err().to_string();
    assert!(error.contains("the kill margin of 8.192s") && error.contains("lower stop.within or memory"), "{error}");
}
