//! One role on one instance: what to do next, given what happened.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use crate::input::{Effect, Input, Reply, Report, RequestId};
use crate::instant::Instant;
use crate::messages::{ClaimId, ClaimReply, Lasts, Reason, Refusal, RefusalReason, RenewReply};
use crate::timing::Timing;

/// How many of its own ended claims an instance remembers, to recognise a request that was delivered late.
const REMEMBERED_CLAIMS: usize = 64;
/// How often a release is tried. It is a courtesy: the lease runs out by itself.
const RELEASE_TRIES: u32 = 2;
/// Stores count what is left of a lease in whole milliseconds, rounded down.
const STORE_ROUNDING: Duration = Duration::from_millis(1);

/// The lease protocol of one role, as a state machine.
#[derive(Debug)]
pub struct Machine {
    timing: Timing,
    /// The highest term that this instance knows of, its own or another's.
    seen_term: u64,
    last_request: u64,
    stopping: bool,
    /// No claim before then.
    cool_until: Instant,
    ended_claims: VecDeque<ClaimId>,
    /// The claim that the last refusal named, so that a new holder is reported once.
    following: Option<ClaimId>,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Follower {
        claim_at: Instant,
        /// Whether `claim_at` includes the jitter of an instance that leads other roles already.
        held_back: bool,
    },
    Claiming(Claiming),
    Leader(Leader),
    Demoting(Demoting),
    Releasing(Releasing),
    Stopped,
}

/// A claim that was asked for, and not refused.
#[derive(Debug)]
struct Claiming {
    claim: ClaimId,
    in_flight: Option<InFlight>,
    failures: u32,
    retry_at: Instant,
    /// The lease was released after the request in flight had left, perhaps too late for it.
    freed: bool,
}

#[derive(Debug)]
struct Leader {
    claim: ClaimId,
    term: u64,
    trusted_until: Instant,
    in_flight: Option<InFlight>,
    failures: u32,
    renew_at: Instant,
}

/// The plugin is being stopped. The lease is still ours, for all we know, unless `lost`.
#[derive(Debug)]
struct Demoting {
    claim: ClaimId,
    term: u64,
    lost: bool,
    /// Whether the plugin is to blame.
    cool_down: bool,
}

/// Nothing runs, but the store may still hold a lease for `claim`.
#[derive(Debug)]
struct Releasing {
    claim: ClaimId,
    term: Option<u64>,
    request: RequestId,
    tries: u32,
}

#[derive(Debug, Clone, Copy)]
struct InFlight {
    request: RequestId,
    /// Before the request left: trust counts from here.
    asked_at: Instant,
}

impl Machine {
    /// A follower that has seen nothing yet, and claims at the first wake-up.
    #[must_use]
    pub fn new(timing: Timing) -> Self {
        Self {
            timing,
            seen_term: 0,
            last_request: 0,
            stopping: false,
            cool_until: Instant::from_nanos(0),
            ended_claims: VecDeque::new(),
            following: None,
            phase: Phase::Follower { claim_at: Instant::from_nanos(0), held_back: false },
        }
    }

    /// When to call [`step`](Self::step) with [`Input::Wake`], if nothing else happens before.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Follower { claim_at, .. } => Some((*claim_at).max(self.cool_until)),
            Phase::Claiming(claiming) if claiming.in_flight.is_none() => Some(claiming.retry_at),
            Phase::Leader(leader) => {
                let step_down_at = self.timing.step_down_at(leader.trusted_until);
                Some(if leader.in_flight.is_none() { step_down_at.min(leader.renew_at) } else { step_down_at })
            }
            Phase::Claiming(_) | Phase::Demoting(_) | Phase::Releasing(_) | Phase::Stopped => None,
        }
        .filter(|at| *at != Instant::NEVER)
    }

    /// Whether the machine was told to stop and holds nothing any more.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        matches!(self.phase, Phase::Stopped)
    }

    /// The term that this instance leads, from the promotion to the demotion.
    #[must_use]
    pub fn leads(&self) -> Option<u64> {
        match &self.phase {
            Phase::Leader(leader) => Some(leader.term),
            _ => None,
        }
    }

    /// Takes in one input at the time `now`, and says what is to be done about it.
    #[must_use]
    pub fn step(&mut self, now: Instant, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        match input {
            Input::Wake { fresh, leading } => self.wake(now, fresh, leading, &mut effects),
            Input::Reply { request, reply } => self.reply(now, request, reply, &mut effects),
            Input::Elected { term, claim } => self.elected(now, term, claim),
            Input::Freed => self.freed(now),
            Input::Failed { term } => self.plugin_ended(term, Reason::Failed, &mut effects),
            Input::Resigned { term } => self.plugin_ended(term, Reason::Resigned, &mut effects),
            Input::Stopped { term } => self.stopped(now, term, &mut effects),
            Input::Stop => self.stop(&mut effects),
        }
        effects
    }

    fn wake(&mut self, now: Instant, fresh: ClaimId, leading: u32, effects: &mut Vec<Effect>) {
        match &mut self.phase {
            Phase::Follower { claim_at, held_back } => {
                if now < (*claim_at).max(self.cool_until) {
                    return;
                }
                let hold_back = self.timing.hold_back(leading, fresh.dice());
                if !*held_back && !hold_back.is_zero() {
                    (*claim_at, *held_back) = (now.plus(hold_back), true);
                    return;
                }
                self.phase = Phase::Claiming(Claiming {
                    claim: fresh,
                    in_flight: None,
                    failures: 0,
                    retry_at: now,
                    freed: false,
                });
                self.ask_for_lease(now, effects);
            }
            Phase::Claiming(claiming) if claiming.in_flight.is_none() && now >= claiming.retry_at => {
                self.ask_for_lease(now, effects);
            }
            Phase::Leader(leader) => {
                let step_down_at = self.timing.step_down_at(leader.trusted_until);
                if now >= step_down_at {
                    self.demote(Reason::Unreachable, effects);
                } else if leader.in_flight.is_none() && now >= leader.renew_at {
                    let request = next(&mut self.last_request);
                    leader.in_flight = Some(InFlight { request, asked_at: now });
                    let within = self.timing.request_within(now, step_down_at);
                    effects.push(Effect::Renew { request, claim: leader.claim, within });
                }
            }
            Phase::Claiming(_) | Phase::Demoting(_) | Phase::Releasing(_) | Phase::Stopped => {}
        }
    }

    fn ask_for_lease(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let Phase::Claiming(claiming) = &mut self.phase else { return };
        let request = next(&mut self.last_request);
        claiming.in_flight = Some(InFlight { request, asked_at: now });
        effects.push(Effect::Claim {
            request,
            claim: claiming.claim,
            seen_term: self.seen_term,
            within: self.timing.request_timeout(),
        });
    }

    fn reply(&mut self, now: Instant, request: RequestId, reply: Reply, effects: &mut Vec<Effect>) {
        match &mut self.phase {
            Phase::Claiming(claiming) => {
                let Some(InFlight { asked_at, .. }) = claiming.in_flight.take_if(|it| it.request == request) else {
                    return;
                };
                let Claiming { claim, freed, .. } = *claiming;
                match reply {
                    Reply::Claim(ClaimReply::Granted { term, lasts }) => {
                        self.granted(now, asked_at, claim, term, lasts, effects);
                    }
                    Reply::Claim(ClaimReply::Refused(refusal)) => self.refused(now, claim, refusal, freed, effects),
                    Reply::None | Reply::Renew(_) | Reply::Release(_) => self.claim_unanswered(now, effects),
                }
            }
            Phase::Leader(leader) => {
                let Some(InFlight { asked_at, .. }) = leader.in_flight.take_if(|it| it.request == request) else {
                    return;
                };
                match reply {
                    Reply::Renew(RenewReply::Renewed) => self.renewed(now, asked_at, effects),
                    Reply::Renew(RenewReply::NotYours) => self.demote(Reason::Lost, effects),
                    Reply::None | Reply::Claim(_) | Reply::Release(_) => self.renewal_unanswered(now, effects),
                }
            }
            Phase::Releasing(releasing) if releasing.request == request => match reply {
                Reply::Release(_) => {
                    if let Some(term) = releasing.term {
                        effects.push(Effect::Report(Report::Released { term }));
                    }
                    self.follow(now, now);
                }
                Reply::None | Reply::Claim(_) | Reply::Renew(_) => self.release_unanswered(now, effects),
            },
            Phase::Follower { .. } | Phase::Demoting(_) | Phase::Releasing(_) | Phase::Stopped => {}
        }
    }

    fn granted(
        &mut self,
        now: Instant,
        asked_at: Instant,
        claim: ClaimId,
        term: u64,
        lasts: Lasts,
        effects: &mut Vec<Effect>,
    ) {
        self.following = None;
        let trusted_until = match lasts {
            Lasts::Ttl => self.timing.trusted_until(asked_at),
            Lasts::Forever => Instant::NEVER,
        };
        if term <= self.seen_term {
            effects.push(Effect::Report(Report::StaleTerm { granted: term, seen: self.seen_term }));
            return self.release(claim, None, effects);
        }
        self.seen_term = term;
        if self.stopping || now >= self.timing.step_down_at(trusted_until) {
            effects.push(Effect::Report(Report::GrantUnused { term }));
            return self.release(claim, None, effects);
        }
        let renew_at = match lasts {
            Lasts::Ttl => self.timing.due_after(asked_at),
            Lasts::Forever => Instant::NEVER,
        };
        self.phase = Phase::Leader(Leader { claim, term, trusted_until, in_flight: None, failures: 0, renew_at });
        effects.push(Effect::Promote { term, claim, trusted_until });
    }

    fn refused(&mut self, now: Instant, claim: ClaimId, refusal: Refusal, freed: bool, effects: &mut Vec<Effect>) {
        self.end_claim(claim);
        let Refusal { reason, term, left } = refusal;
        let look_again = self.timing.due_after(now).max(now.plus(STORE_ROUNDING));
        let claim_at = if freed {
            now
        } else if left.is_zero() {
            look_again
        } else {
            look_again.min(now.plus(left).plus(STORE_ROUNDING))
        };
        match reason {
            RefusalReason::Held { by } => {
                if self.ended_claims.contains(&by) {
                    effects.push(Effect::Report(Report::OrphanFound { claim: by }));
                    return self.release(by, None, effects);
                }
                if self.following.replace(by) != Some(by) {
                    effects.push(Effect::Report(Report::Following { by, term }));
                }
            }
            RefusalReason::Vanished => effects.push(Effect::Report(Report::Vanished { left })),
            RefusalReason::Behind => {
                effects.push(Effect::Report(Report::DataLost { seen: self.seen_term, found: term, wait: left }));
            }
        }
        self.seen_term = self.seen_term.max(term);
        self.follow(now, claim_at);
    }

    /// The claim may have been granted. It is asked again under the same UUID, which the store knows as its own.
    fn claim_unanswered(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let Phase::Claiming(claiming) = &mut self.phase else { return };
        claiming.failures = claiming.failures.saturating_add(1);
        claiming.retry_at = now.plus(self.timing.back_off(claiming.failures));
        let (claim, failures) = (claiming.claim, claiming.failures);
        effects.push(Effect::Report(Report::ClaimUnanswered { failures }));
        if self.stopping {
            // Once: whoever stops the instance has waited for a request timeout already.
            self.end_claim(claim);
            self.ask_for_release(claim, None, RELEASE_TRIES, effects);
        }
    }

    fn renewed(&mut self, now: Instant, asked_at: Instant, effects: &mut Vec<Effect>) {
        let Phase::Leader(leader) = &mut self.phase else { return };
        // The instance was paused. Meanwhile others may have led, and this claim may hold the lease again by a request
        // that was delivered late: a gate that closed by itself stays closed.
        if now >= leader.trusted_until {
            return self.demote(Reason::Unreachable, effects);
        }
        if mem::take(&mut leader.failures) > 0 {
            effects.push(Effect::Report(Report::RenewalsResumed));
        }
        leader.trusted_until = leader.trusted_until.max(self.timing.trusted_until(asked_at));
        leader.renew_at = self.timing.due_after(asked_at);
        effects.push(Effect::Extend { trusted_until: leader.trusted_until });
    }

    fn renewal_unanswered(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let Phase::Leader(leader) = &mut self.phase else { return };
        leader.failures = leader.failures.saturating_add(1);
        leader.renew_at = now.plus(self.timing.back_off(leader.failures));
        let left = self.timing.step_down_at(leader.trusted_until).since(now);
        effects.push(Effect::Report(Report::RenewalUnanswered { failures: leader.failures, left }));
    }

    /// Another instance was elected. Followers learn the term at once; a leader asks the store whether it still leads.
    fn elected(&mut self, now: Instant, term: u64, claim: ClaimId) {
        match &mut self.phase {
            // The push may come before the reply, and must not make our own term one that was seen.
            Phase::Claiming(claiming) if claiming.claim == claim => return,
            Phase::Leader(leader) if term > leader.term && leader.trusted_until != Instant::NEVER => {
                leader.renew_at = leader.renew_at.min(now);
            }
            _ => {}
        }
        self.seen_term = self.seen_term.max(term);
    }

    fn freed(&mut self, now: Instant) {
        match &mut self.phase {
            Phase::Follower { claim_at, held_back } if now < *claim_at => (*claim_at, *held_back) = (now, false),
            Phase::Claiming(claiming) => claiming.freed = true,
            _ => {}
        }
    }

    fn plugin_ended(&mut self, term: u64, reason: Reason, effects: &mut Vec<Effect>) {
        if self.leads() == Some(term) {
            self.demote(reason, effects);
        }
    }

    /// The only way out of leadership, whatever the reason.
    fn demote(&mut self, reason: Reason, effects: &mut Vec<Effect>) {
        let Phase::Leader(Leader { claim, term, trusted_until, .. }) = self.phase else { return };
        effects.push(Effect::Demote { term, reason, trusted_until });
        let cool_down = matches!(reason, Reason::Failed | Reason::Resigned);
        self.phase = Phase::Demoting(Demoting { claim, term, lost: reason == Reason::Lost, cool_down });
    }

    fn stopped(&mut self, now: Instant, term: u64, effects: &mut Vec<Effect>) {
        let Phase::Demoting(Demoting { claim, term: demoted, lost, cool_down }) = self.phase else { return };
        if term != demoted {
            return;
        }
        if cool_down && !self.stopping {
            let wait = self.timing.cool_down();
            self.cool_until = now.plus(wait);
            effects.push(Effect::Report(Report::CoolingDown { wait }));
        }
        if lost {
            self.end_claim(claim);
            self.follow(now, now);
        } else {
            self.release(claim, Some(term), effects);
        }
    }

    fn stop(&mut self, effects: &mut Vec<Effect>) {
        self.stopping = true;
        match &self.phase {
            Phase::Follower { .. } => self.phase = Phase::Stopped,
            // It was asked for and not answered: it may have been granted.
            Phase::Claiming(Claiming { claim, in_flight: None, .. }) => self.release(*claim, None, effects),
            Phase::Leader(_) => self.demote(Reason::Shutdown, effects),
            Phase::Claiming(_) | Phase::Demoting(_) | Phase::Releasing(_) | Phase::Stopped => {}
        }
    }

    fn release(&mut self, claim: ClaimId, term: Option<u64>, effects: &mut Vec<Effect>) {
        self.end_claim(claim);
        self.ask_for_release(claim, term, 1, effects);
    }

    fn ask_for_release(&mut self, claim: ClaimId, term: Option<u64>, tries: u32, effects: &mut Vec<Effect>) {
        let request = next(&mut self.last_request);
        self.phase = Phase::Releasing(Releasing { claim, term, request, tries });
        effects.push(Effect::Release { request, claim, term, within: self.timing.request_timeout() });
    }

    fn release_unanswered(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let Phase::Releasing(Releasing { claim, term, tries, .. }) = self.phase else { return };
        if tries < RELEASE_TRIES {
            return self.ask_for_release(claim, term, tries + 1, effects);
        }
        if let Some(term) = term {
            effects.push(Effect::Report(Report::ReleaseUnanswered { term }));
        }
        self.follow(now, now);
    }

    /// Holds nothing; claims at `claim_at`, or never again where the instance is stopping.
    fn follow(&mut self, now: Instant, claim_at: Instant) {
        self.phase = if self.stopping {
            Phase::Stopped
        } else {
            Phase::Follower { claim_at: claim_at.max(now), held_back: false }
        };
    }

    fn end_claim(&mut self, claim: ClaimId) {
        if self.ended_claims.contains(&claim) {
            return;
        }
        if self.ended_claims.len() == REMEMBERED_CLAIMS {
            self.ended_claims.pop_front();
        }
        self.ended_claims.push_back(claim);
    }
}

fn next(last_request: &mut u64) -> RequestId {
    *last_request += 1;
    RequestId(*last_request)
}
