//! One example for each rule of the protocol, in the order of DESIGN.md 3. `E` numbers are those of CASES.md.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)] // It is a test.

use std::time::Duration;

use tenure_core::{
    ClaimId, ClaimReply, Effect, Input, Instant, Lasts, Machine, Reason, Refusal, RefusalReason, ReleaseReply,
    RenewReply, Reply, Report, RequestId, Timing, TimingInput,
};
use uuid::Uuid;

const TTL: u64 = 30_000;
const RENEW_EVERY: u64 = 10_000;
const REQUEST_TIMEOUT: u64 = 5000;
/// A skew of 300 ms, a grace of 1 s, 2 s within and a kill margin of 50 ms.
const TRUST: u64 = TTL - 300;
const STEP_DOWN: u64 = TRUST - 3050;
/// Renewals and looks are due on a grid: up to an eighth early.
const GRID: u64 = RENEW_EVERY / 8;
/// Whose dice fall on the longest hold-back.
const LONGEST: u128 = 15;

fn timing() -> Timing {
    Timing::new(&TimingInput::default()).unwrap()
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn claim(number: u128) -> ClaimId {
    ClaimId(Uuid::from_u128(number))
}

/// An instance with one machine, and a clock in milliseconds.
struct Instance {
    machine: Machine,
    now: u64,
    leading: u32,
    fresh: u128,
}

/// What a request asked for.
#[derive(Debug, Clone, Copy)]
struct Asked {
    request: RequestId,
    claim: ClaimId,
    within: Duration,
}

impl Instance {
    fn new() -> Self {
        Self { machine: Machine::new(timing()), now: 1000, leading: 0, fresh: 100 }
    }

    /// It leads term 7, from a claim at 1 s that was granted at once.
    fn leading() -> Self {
        let mut it = Self::new();
        let asked = it.claims();
        let effects = it.granted(asked, 7);
        assert!(matches!(effects[..], [Effect::Promote { term: 7, .. }]), "{effects:?}");
        it
    }

    /// A claim was refused: another holds the lease in term 7 for the whole ttl.
    fn following() -> Self {
        let mut it = Self::new();
        let asked = it.claims();
        it.refused(asked, RefusalReason::Held { by: claim(1) }, 7, TTL);
        it
    }

    fn at(&self, ms_from_start: u64) -> Instant {
        Instant::from_nanos((1000 + ms_from_start) * 1_000_000)
    }

    fn step(&mut self, input: Input) -> Vec<Effect> {
        self.machine.step(Instant::from_nanos(self.now * 1_000_000), input)
    }

    fn wake(&mut self) -> Vec<Effect> {
        self.fresh += 16; // The dice stay on zero.
        self.step(Input::Wake { fresh: claim(self.fresh), leading: self.leading })
    }

    /// Moves the clock to the next wake-up, and wakes.
    fn sleep(&mut self) -> Vec<Effect> {
        self.now = self.wakes_at().max(self.now);
        self.wake()
    }

    /// In milliseconds, rounded up.
    fn wakes_at(&self) -> u64 {
        self.machine.wake_at().expect("it waits for a time").as_nanos().div_ceil(1_000_000)
    }

    /// How long it sleeps now.
    fn sleeps(&self) -> u64 {
        self.wakes_at().saturating_sub(self.now)
    }

    fn reply(&mut self, asked: Asked, reply: Reply) -> Vec<Effect> {
        self.step(Input::Reply { request: asked.request, reply })
    }

    fn claims(&mut self) -> Asked {
        claimed(&self.sleep())
    }

    fn granted(&mut self, asked: Asked, term: u64) -> Vec<Effect> {
        self.reply(asked, Reply::Claim(ClaimReply::Granted { term, lasts: Lasts::Ttl }))
    }

    fn refused(&mut self, asked: Asked, reason: RefusalReason, term: u64, left: u64) -> Vec<Effect> {
        self.reply(asked, Reply::Claim(ClaimReply::Refused(Refusal { reason, term, left: ms(left) })))
    }

    /// The request gets no answer within its time.
    fn unanswered(&mut self, asked: Asked) -> Vec<Effect> {
        self.now += u64::try_from(asked.within.as_millis()).unwrap();
        self.reply(asked, Reply::None)
    }
}

fn claimed(effects: &[Effect]) -> Asked {
    let [Effect::Claim { request, claim, within, .. }] = effects[..] else { panic!("no claim: {effects:?}") };
    Asked { request, claim, within }
}

fn renewed(effects: &[Effect]) -> Asked {
    let [Effect::Renew { request, claim, within }] = effects[..] else { panic!("no renewal: {effects:?}") };
    Asked { request, claim, within }
}

/// The release among the effects, and the term that it names.
fn released(effects: &[Effect]) -> (Asked, Option<u64>) {
    let Some(Effect::Release { request, claim, term, within }) = effects.last() else {
        panic!("no release: {effects:?}")
    };
    (Asked { request: *request, claim: *claim, within: *within }, *term)
}

fn demoted(effects: &[Effect]) -> Reason {
    let [Effect::Demote { reason, .. }] = effects[..] else { panic!("no demotion: {effects:?}") };
    reason
}

const RENEWED: Reply = Reply::Renew(RenewReply::Renewed);
const RELEASED: Reply = Reply::Release(ReleaseReply::Released);

// ------------------------------------------------------------------------------------- one request, stale replies

#[test]
fn a_new_machine_claims_at_the_first_wake_up() {
    assert_eq!(Instance::new().claims().within, ms(REQUEST_TIMEOUT));
}

#[test]
fn trust_counts_from_before_the_request_left() {
    let mut it = Instance::new();
    let asked = it.claims();
    it.now += 400;
    let trusted_until = it.at(TRUST);
    assert_eq!(it.granted(asked, 7), [Effect::Promote { term: 7, claim: asked.claim, trusted_until }]);
    assert_eq!(it.machine.leads(), Some(7));
}

#[test]
fn an_answered_renewal_extends_trust_from_when_it_was_asked() {
    let mut it = Instance::leading();
    let asked = renewed(&it.sleep());
    let asked_at = it.now;
    it.now += 700;
    assert_eq!(it.reply(asked, RENEWED), [Effect::Extend { trusted_until: it.at(asked_at - 1000 + TRUST) }]);
}

#[test]
fn one_request_is_in_flight_at_a_time() {
    let mut it = Instance::leading();
    let _ = renewed(&it.sleep());
    it.now += 100;
    assert_eq!(it.wake(), []);
    let mut it = Instance::new();
    it.claims();
    assert_eq!(it.wake(), []);
    assert_eq!(it.machine.wake_at(), None, "the reply is sure to come");
}

#[test]
fn a_reply_to_an_older_request_changes_nothing() {
    let mut it = Instance::new();
    let first = it.claims();
    it.unanswered(first);
    let second = it.claims();
    let before = format!("{:?}", it.machine);
    assert_eq!(it.granted(first, 7), []);
    assert_eq!(format!("{:?}", it.machine), before);
    assert!(matches!(it.granted(second, 7)[..], [Effect::Promote { .. }]));
}

#[test]
fn a_late_answer_to_a_renewal_is_not_taken_for_one_to_the_next() {
    let mut it = Instance::leading();
    let first = renewed(&it.sleep());
    it.unanswered(first);
    let second = renewed(&it.sleep());
    for late in [RENEWED, Reply::Renew(RenewReply::NotYours)] {
        assert_eq!(it.reply(first, late), []);
    }
    assert!(matches!(it.reply(second, RENEWED)[..], [Effect::Report(_), Effect::Extend { .. }]));
}

#[test]
fn a_late_answer_to_a_release_is_not_taken_for_one_to_the_next() {
    let mut it = Instance::leading();
    it.step(Input::Stop);
    let (first, _) = released(&it.step(Input::Stopped { term: 7 }));
    let (second, _) = released(&it.unanswered(first));
    assert_eq!(it.reply(first, RELEASED), []);
    assert!(!it.machine.is_stopped());
    it.reply(second, RELEASED);
    assert!(it.machine.is_stopped());
}

#[test]
fn a_renewal_in_flight_is_forgotten_when_leadership_ends() {
    // E11
    let mut it = Instance::leading();
    let asked = renewed(&it.sleep());
    assert_eq!(demoted(&it.step(Input::Stop)), Reason::Shutdown);
    assert_eq!(it.reply(asked, RENEWED), []);
    let (release, _) = released(&it.step(Input::Stopped { term: 7 }));
    assert_eq!(it.reply(asked, RENEWED), []);
    it.reply(release, RELEASED);
    assert!(it.machine.is_stopped());
}

// -------------------------------------------------------------------------------------------------- renewals

#[test]
fn renewals_follow_each_other_at_renew_every_on_a_grid() {
    let mut it = Instance::leading();
    for _ in 0..1000 {
        let slept = it.sleeps();
        assert!((RENEW_EVERY - GRID..=RENEW_EVERY).contains(&slept), "{slept} ms");
        let asked = renewed(&it.sleep());
        it.reply(asked, RENEWED);
    }
}

#[test]
fn a_failed_renewal_is_tried_again_at_once_and_then_with_back_off_until_the_step_down() {
    // E2, E3, E10
    let mut it = Instance::leading();
    let mut waits = Vec::new();
    let effects = loop {
        let effects = it.sleep();
        if !matches!(effects[..], [Effect::Renew { .. }]) {
            break effects;
        }
        let asked = renewed(&effects);
        it.now += 10; // A connection that is refused fails fast.
        it.reply(asked, Reply::None);
        waits.push(it.sleeps());
    };
    assert_eq!(waits[..6], [0, 625, 1250, 2500, 5000, 5000]);
    assert_eq!(it.now, 1000 + STEP_DOWN);
    assert_eq!(demoted(&effects), Reason::Unreachable);
}

#[test]
fn no_renewal_reaches_past_the_step_down() {
    let mut it = Instance::leading();
    loop {
        let effects = it.sleep();
        if let [Effect::Demote { .. }] = effects[..] {
            break;
        }
        let asked = renewed(&effects);
        assert!(it.now - 1000 + u64::try_from(asked.within.as_millis()).unwrap() <= STEP_DOWN);
        it.unanswered(asked);
    }
    assert_eq!(it.now, 1000 + STEP_DOWN);
}

#[test]
fn a_renewal_that_is_still_in_flight_does_not_hold_up_the_step_down() {
    let mut it = Instance::leading();
    it.now = 1000 + STEP_DOWN - 1;
    let asked = renewed(&it.wake());
    assert_eq!(asked.within, ms(1));
    assert_eq!(demoted(&it.sleep()), Reason::Unreachable);
    assert_eq!(it.now, 1000 + STEP_DOWN);
}

#[test]
fn one_answer_ends_the_failures() {
    // E10
    let mut it = Instance::leading();
    let asked = renewed(&it.sleep());
    it.unanswered(asked);
    let asked = renewed(&it.sleep());
    let effects = it.reply(asked, RENEWED);
    assert!(matches!(effects[..], [Effect::Report(Report::RenewalsResumed), Effect::Extend { .. }]), "{effects:?}");
    let asked = renewed(&it.sleep());
    it.unanswered(asked);
    assert_eq!(it.sleeps(), 0, "it is the first failure again");
}

#[test]
fn not_yours_demotes_at_once_and_nothing_is_released() {
    let mut it = Instance::leading();
    let asked = renewed(&it.sleep());
    assert_eq!(demoted(&it.reply(asked, Reply::Renew(RenewReply::NotYours))), Reason::Lost);
    assert_eq!(it.step(Input::Stopped { term: 7 }), []);
    it.claims();
}

#[test]
fn an_answer_after_the_end_of_trust_does_not_open_the_gate_again() {
    // Paused; meanwhile another led, and a claim that was delivered late took the lease again.
    let mut it = Instance::leading();
    it.now = 1000 + STEP_DOWN - 1;
    let asked = renewed(&it.wake());
    it.now = 1000 + TRUST;
    assert_eq!(demoted(&it.reply(asked, RENEWED)), Reason::Unreachable);
}

#[test]
fn an_answer_between_the_step_down_and_the_end_of_trust_still_counts() {
    let mut it = Instance::leading();
    it.now = 1000 + STEP_DOWN - 1;
    let asked = renewed(&it.wake());
    it.now = 1000 + TRUST - 1;
    assert!(matches!(it.reply(asked, RENEWED)[..], [Effect::Extend { .. }]));
}

#[test]
fn a_leader_that_hears_of_a_higher_term_asks_the_store_at_once() {
    let mut it = Instance::leading();
    it.now += 100;
    it.step(Input::Elected { term: 8, claim: claim(1) });
    assert_eq!(it.sleeps(), 0);
    let _ = renewed(&it.sleep());
}

#[test]
fn news_of_its_own_election_moves_nobody() {
    let mut it = Instance::new();
    let asked = it.claims();
    it.step(Input::Elected { term: 7, claim: asked.claim });
    assert!(matches!(it.granted(asked, 7)[..], [Effect::Promote { term: 7, .. }]));
    it.step(Input::Elected { term: 7, claim: asked.claim });
    assert!(it.sleeps() > RENEW_EVERY / 2);
}

// ----------------------------------------------------------------------------------------------------- claims

#[test]
fn an_unanswered_claim_is_asked_again_under_the_same_uuid() {
    // E7, E13
    let mut it = Instance::new();
    let first = it.claims();
    let effects = it.unanswered(first);
    assert_eq!(effects, [Effect::Report(Report::ClaimUnanswered { failures: 1 })]);
    assert_eq!(it.machine.leads(), None);
    let second = it.claims();
    assert_eq!((second.claim, it.now), (first.claim, 1000 + REQUEST_TIMEOUT));
    assert_eq!(
        it.granted(second, 7),
        [Effect::Promote { term: 7, claim: first.claim, trusted_until: it.at(REQUEST_TIMEOUT + TRUST) }]
    );
}

#[test]
fn unanswered_claims_are_repeated_for_ever_with_back_off() {
    // E5: an outage of any length makes nobody give up, and ends within half a renew interval.
    let mut it = Instance::new();
    let first = it.claims();
    it.unanswered(first);
    for _ in 0..1000 {
        assert!(it.sleeps() <= RENEW_EVERY / 2);
        let asked = it.claims();
        assert_eq!(asked.claim, first.claim);
        it.unanswered(asked);
    }
}

#[test]
fn a_grant_that_came_too_late_to_lead_with_is_released() {
    let mut it = Instance::new();
    let asked = it.claims();
    it.now += STEP_DOWN;
    let effects = it.granted(asked, 7);
    assert_eq!(effects[0], Effect::Report(Report::GrantUnused { term: 7 }));
    let (release, term) = released(&effects);
    assert_eq!((release.claim, term, it.machine.leads()), (asked.claim, None, None));
}

#[test]
fn a_term_that_is_not_above_one_seen_is_not_trusted() {
    // E16
    let mut it = Instance::following();
    let asked = it.claims();
    let effects = it.granted(asked, 7);
    assert_eq!(effects[0], Effect::Report(Report::StaleTerm { granted: 7, seen: 7 }));
    assert_eq!((released(&effects).0.claim, it.machine.leads()), (asked.claim, None));
}

#[test]
fn every_claim_carries_the_highest_term_seen() {
    let seen = |it: &mut Instance| match it.sleep()[..] {
        [Effect::Claim { seen_term, .. }] => seen_term,
        _ => panic!("no claim"),
    };
    assert_eq!(seen(&mut Instance::new()), 0);
    let mut it = Instance::following();
    it.step(Input::Elected { term: 9, claim: claim(2) });
    it.step(Input::Elected { term: 8, claim: claim(1) });
    assert_eq!(seen(&mut it), 9);
    let mut it = Instance::leading();
    let asked = renewed(&it.sleep());
    it.reply(asked, Reply::Renew(RenewReply::NotYours));
    it.step(Input::Stopped { term: 7 });
    assert_eq!(seen(&mut it), 7, "its own term is one of them");
}

#[test]
fn an_ended_claim_of_its_own_is_recognised_and_released() {
    // E13: its request was delivered after it had been refused.
    let mut it = Instance::new();
    let ended = it.claims();
    it.refused(ended, RefusalReason::Held { by: claim(1) }, 7, 100);
    let asked = it.claims();
    let effects = it.refused(asked, RefusalReason::Held { by: ended.claim }, 8, TTL);
    assert_eq!(effects[0], Effect::Report(Report::OrphanFound { claim: ended.claim }));
    let (release, term) = released(&effects);
    assert_eq!((release.claim, term), (ended.claim, None));
    it.reply(release, RELEASED);
    assert_eq!(it.sleeps(), 0, "the role idles for no longer");
    assert_ne!(it.claims().claim, ended.claim);
}

#[test]
fn a_holder_is_reported_once() {
    let mut it = Instance::new();
    let by = claim(1);
    for expected in [vec![Effect::Report(Report::Following { by, term: 7 })], vec![], vec![]] {
        let asked = it.claims();
        assert_eq!(it.refused(asked, RefusalReason::Held { by }, 7, TTL), expected);
    }
}

// -------------------------------------------------------------------------------------------------- followers

#[test]
fn a_follower_claims_when_the_lease_runs_out() {
    // E19
    let mut it = Instance::new();
    let asked = it.claims();
    it.refused(asked, RefusalReason::Held { by: claim(1) }, 7, 1234);
    assert_eq!(it.sleeps(), 1235, "stores round down");
    it.claims();
}

#[test]
fn a_follower_looks_again_after_renew_every() {
    let slept = Instance::following().sleeps();
    assert!((RENEW_EVERY - GRID..=RENEW_EVERY).contains(&slept), "{slept} ms");
}

#[test]
fn a_follower_claims_as_soon_as_the_lease_is_freed() {
    let mut it = Instance::following();
    it.now += 10;
    assert_eq!(it.step(Input::Freed), []);
    assert_eq!(it.sleeps(), 0);
    it.claims();
}

#[test]
fn a_release_while_a_claim_is_in_flight_is_not_missed() {
    let mut it = Instance::new();
    let asked = it.claims();
    it.step(Input::Freed);
    it.refused(asked, RefusalReason::Held { by: claim(1) }, 7, TTL);
    assert_eq!(it.sleeps(), 0);
}

#[test]
fn an_instance_that_leads_other_roles_holds_back_and_more_so_the_more_it_leads() {
    let mut held_back = Vec::new();
    for leading in [0, 16, 160, 1600, 1_000_000] {
        let mut it = Instance::following();
        it.step(Input::Freed);
        it.leading = leading;
        let effects = it.step(Input::Wake { fresh: claim(LONGEST), leading });
        held_back.push(if effects.is_empty() { it.sleeps() } else { 0 });
        if effects.is_empty() {
            it.claims();
        }
    }
    assert_eq!(held_back, [0, 15, 150, 1500, (RENEW_EVERY * 15).div_ceil(64)]);
}

// ---------------------------------------------------------------------------------------- stores that lost something

#[test]
fn a_lease_that_vanished_is_waited_out() {
    // E16
    let mut it = Instance::new();
    let asked = it.claims();
    let effects = it.refused(asked, RefusalReason::Vanished, 7, 4000);
    assert_eq!(effects, [Effect::Report(Report::Vanished { left: ms(4000) })]);
    assert_eq!(it.sleeps(), 4001);
    it.claims();
}

#[test]
fn a_store_that_lost_data_is_reported_and_asked_again_with_the_highest_term() {
    // E16: the store itself waits, by its own clock, and has lifted its counter.
    let mut it = Instance::following();
    let asked = it.claims();
    let effects = it.refused(asked, RefusalReason::Behind, 2, TTL);
    assert_eq!(effects, [Effect::Report(Report::DataLost { seen: 7, found: 2, wait: ms(TTL) })]);
    assert!(it.sleeps() <= RENEW_EVERY);
    assert!(matches!(it.sleep()[..], [Effect::Claim { seen_term: 7, .. }]));
}

// ----------------------------------------------------------------------------------------- demotion and release

#[test]
fn the_lease_is_released_only_after_the_plugin_has_stopped() {
    // E4
    let mut it = Instance::leading();
    assert_eq!(demoted(&it.step(Input::Resigned { term: 7 })), Reason::Resigned);
    it.now += 100;
    assert_eq!((it.wake(), it.machine.wake_at()), (vec![], None));
    assert_eq!(it.step(Input::Stopped { term: 6 }), [], "another term");
    let effects = it.step(Input::Stopped { term: 7 });
    let (release, term) = released(&effects);
    assert_eq!(term, Some(7));
    assert_eq!(it.reply(release, RELEASED), [Effect::Report(Report::Released { term: 7 })]);
}

#[test]
fn a_promotion_has_one_demotion_whatever_else_is_said() {
    // E8
    let mut it = Instance::leading();
    assert_eq!(demoted(&it.step(Input::Failed { term: 7 })), Reason::Failed);
    for input in [Input::Failed { term: 7 }, Input::Resigned { term: 7 }, Input::Stop, Input::Stop, Input::Freed] {
        assert_eq!(it.step(input), []);
    }
    assert!(matches!(it.step(Input::Stopped { term: 7 })[..], [Effect::Release { .. }]));
}

#[test]
fn what_an_earlier_plugin_says_is_not_held_against_this_one() {
    let mut it = Instance::leading();
    assert_eq!(it.step(Input::Failed { term: 6 }), []);
    assert_eq!(it.step(Input::Resigned { term: 6 }), []);
    assert_eq!(it.machine.leads(), Some(7));
}

#[test]
fn a_release_is_tried_twice_and_then_left_to_the_ttl() {
    let mut it = Instance::leading();
    it.step(Input::Stop);
    let (first, _) = released(&it.step(Input::Stopped { term: 7 }));
    let (second, _) = released(&it.unanswered(first));
    assert_eq!(second.claim, first.claim);
    assert_eq!(it.unanswered(second), [Effect::Report(Report::ReleaseUnanswered { term: 7 })]);
    assert!(it.machine.is_stopped());
}

#[test]
fn an_instance_whose_plugin_failed_leaves_the_role_alone_for_a_while() {
    // E17
    for input in [Input::Failed { term: 7 }, Input::Resigned { term: 7 }] {
        let mut it = Instance::leading();
        it.step(input);
        let effects = it.step(Input::Stopped { term: 7 });
        assert_eq!(effects[0], Effect::Report(Report::CoolingDown { wait: timing().cool_down() }));
        let (release, _) = released(&effects);
        it.reply(release, RELEASED);
        it.step(Input::Freed); // Its own.
        assert_eq!(it.wake(), []);
        assert_eq!(it.sleeps(), TTL);
        it.claims();
    }
}

#[test]
fn an_instance_that_could_not_reach_the_store_claims_again_at_once() {
    // E5
    let mut it = Instance::leading();
    it.now = 1000 + STEP_DOWN;
    assert_eq!(demoted(&it.wake()), Reason::Unreachable);
    let (release, _) = released(&it.step(Input::Stopped { term: 7 }));
    let (release, _) = released(&it.unanswered(release));
    it.unanswered(release);
    assert_eq!(it.sleeps(), 0);
    it.claims();
}

// ------------------------------------------------------------------------------------- stopping at each step (E6)

#[test]
fn a_follower_that_stops_has_stopped() {
    let mut it = Instance::following();
    assert_eq!(it.step(Input::Stop), []);
    assert!(it.machine.is_stopped());
    assert_eq!((it.wake(), it.machine.wake_at()), (vec![], None));
    it.step(Input::Freed);
    assert_eq!(it.machine.wake_at(), None);
}

#[test]
fn stopped_while_its_claim_is_in_flight_it_releases_what_is_granted() {
    let mut it = Instance::new();
    let asked = it.claims();
    assert_eq!(it.step(Input::Stop), []);
    assert!(!it.machine.is_stopped());
    let effects = it.granted(asked, 7);
    assert_eq!(effects[0], Effect::Report(Report::GrantUnused { term: 7 }));
    let (release, term) = released(&effects);
    assert_eq!((release.claim, term), (asked.claim, None));
    assert_eq!(it.step(Input::Stop), [], "a second time changes nothing");
    it.reply(release, RELEASED);
    assert!(it.machine.is_stopped());
}

#[test]
fn stopped_while_its_claim_is_in_flight_and_refused_it_has_stopped() {
    let mut it = Instance::new();
    let asked = it.claims();
    it.step(Input::Stop);
    it.refused(asked, RefusalReason::Held { by: claim(1) }, 7, TTL);
    assert!(it.machine.is_stopped());
}

#[test]
fn stopped_while_its_claim_is_in_flight_and_unanswered_it_releases_once() {
    let mut it = Instance::new();
    let asked = it.claims();
    it.step(Input::Stop);
    let (release, _) = released(&it.unanswered(asked));
    assert_eq!(release.claim, asked.claim);
    it.unanswered(release);
    assert!(it.machine.is_stopped());
    assert_eq!(it.now, 1000 + 2 * REQUEST_TIMEOUT);
}

#[test]
fn stopped_between_two_tries_of_a_claim_it_releases_what_the_first_may_have_got() {
    let mut it = Instance::new();
    let first = it.claims();
    it.unanswered(first);
    let asked = it.claims();
    it.unanswered(asked);
    assert!(it.sleeps() > 0);
    let (release, term) = released(&it.step(Input::Stop));
    assert_eq!((release.claim, term), (first.claim, None));
    it.reply(release, Reply::Release(ReleaseReply::NotYours));
    assert!(it.machine.is_stopped());
}

#[test]
fn stopped_while_it_releases_it_has_stopped_after_that() {
    let mut it = Instance::leading();
    it.step(Input::Resigned { term: 7 });
    let (release, _) = released(&it.step(Input::Stopped { term: 7 }));
    assert_eq!(it.step(Input::Stop), []);
    it.reply(release, RELEASED);
    assert!(it.machine.is_stopped());
}

#[test]
fn a_leader_that_stops_demotes_releases_and_has_stopped() {
    let mut it = Instance::leading();
    assert_eq!(demoted(&it.step(Input::Stop)), Reason::Shutdown);
    assert_eq!(it.step(Input::Stop), []);
    let (release, term) = released(&it.step(Input::Stopped { term: 7 }));
    assert_eq!(term, Some(7));
    it.reply(release, RELEASED);
    assert!(it.machine.is_stopped());
}

// ---------------------------------------------------------------------------------------------- without a store

#[test]
fn a_lease_that_lasts_for_ever_is_never_renewed_and_never_given_up() {
    let mut it = Instance::new();
    let asked = it.claims();
    let effects = it.reply(asked, Reply::Claim(ClaimReply::Granted { term: 1, lasts: Lasts::Forever }));
    assert_eq!(effects, [Effect::Promote { term: 1, claim: asked.claim, trusted_until: Instant::NEVER }]);
    assert_eq!(it.machine.wake_at(), None);
    it.now = u64::MAX / 1_000_000;
    assert_eq!(it.wake(), []);
    it.step(Input::Elected { term: 9, claim: claim(1) });
    assert_eq!((it.wake(), it.machine.wake_at()), (vec![], None));
    assert_eq!(demoted(&it.step(Input::Stop)), Reason::Shutdown);
}
