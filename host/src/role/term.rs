//! The work of one term, on the plugins' runtime: starts the plugin, ticks it, and stops it in time.
//!
//! A [`Term`] begins with a promotion and ends with an order from the role's task. Between the two it may start several
//! instances of the plugin, one after the other: a tick that traps costs its instance, not the role. However the term
//! goes, there is one way out ([`Term::run`]'s last lines): plugin stopped, gate closed, recorded, and only then is the
//! role's task told, which releases the lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::{ClaimId, Handoff, Instant, Reason, StopBudget};
use tokio::sync::{Notify, mpsc, watch};
use tracing::{error, info, warn};

use super::Host;
use super::slots::Slots;
use crate::audit::{Event, Margin, StopReason};
use crate::clock;
use crate::config::{Pace, RoleConfig};
use crate::gate::Gate;
use crate::plugin::{CallError, Deadline, Image, Instance, Kind, Next, Seat};
use crate::schedule::Slot;
use crate::state::{Fence, FencedState, StateError};
use crate::store::{HandoffChange, MAX_HANDOFF};
use crate::words;

/// The order to end a term.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ending {
    /// Why.
    pub(super) reason: Reason,
    /// Everything ends by then.
    pub(super) trusted_until: Instant,
}

/// What the role's task learns while the term goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// An `elected` has succeeded: the stored hand-off was taken over.
    Elected,
    /// The plugin failed to start, or failed too often.
    Failed,
    /// The plugin gives the role up.
    Resigned,
}

/// What an instance has that won an election.
pub(super) struct Won {
    pub(super) claim: ClaimId,
    pub(super) gate: Arc<Gate>,
    /// What the store had for the next `elected`.
    pub(super) handoff: Option<Handoff>,
}

/// One term of one role on this instance.
pub(super) struct Term {
    host: Arc<Host>,
    role: Arc<RoleConfig>,
    image: Arc<dyn Image>,
    gate: Arc<Gate>,
    order: watch::Receiver<Option<Ending>>,
    news: mpsc::UnboundedSender<News>,
    notice: watch::Sender<bool>,
    resign: Arc<Notify>,
    /// The order, once it has come, with its budget: made once, so that every part of the demotion counts from it.
    ending: Option<(Ending, StopBudget)>,
    /// For the next `elected`: what the store had, or what an instance of this term left when it failed.
    handoff: Option<Handoff>,
    /// Whether an `elected` of this term took over what the store had.
    took_over: bool,
    /// In a row.
    failures: u32,
    state: FencedState,
    /// Where the role has a schedule.
    slots: Option<Slots>,
    /// The slot of the present tick; zero where there is none.
    slot: Arc<AtomicU64>,
}

/// How an instance of the plugin failed while the term went on.
struct Failure {
    error: CallError,
    /// Before its `elected` had returned.
    starting: bool,
}

impl Term {
    pub(super) fn new(
        host: Arc<Host>,
        role: Arc<RoleConfig>,
        image: Arc<dyn Image>,
        won: Won,
        order: watch::Receiver<Option<Ending>>,
        news: mpsc::UnboundedSender<News>,
    ) -> Self {
        let Won { claim, gate, handoff } = won;
        let fence = Fence { role: role.name.clone(), claim, term: gate.term() };
        let state = FencedState::new(host.store.state(), fence, gate.clone(), role.timing.request_timeout());
        let slots = match &role.pace {
            Pace::Slots(schedule) => Some(Slots::new(role.name.clone(), schedule.clone(), state.clone())),
            Pace::Plugin | Pace::Every(_) => None,
        };
        Self {
            host,
            role,
            image,
            gate,
            order,
            news,
            notice: watch::Sender::new(false),
            resign: Arc::new(Notify::new()),
            ending: None,
            handoff,
            took_over: false,
            failures: 0,
            state,
            slots,
            slot: Arc::default(),
        }
    }

    /// Works until the order to end has been carried out, and says what becomes of the stored hand-off.
    pub(super) async fn run(mut self) -> HandoffChange {
        loop {
            let worked = self.one_instance().await;
            if self.ending.is_some() {
                break;
            }
            // A command that has done the work of its slot.
            let Err(failure) = worked else { continue };
            self.failures += 1;
            if !self.always_leads() && (failure.starting || self.failures >= self.role.on_failure.give_up_after) {
                let _ = self.news.send(News::Failed);
                break;
            }
            self.idle_until(clock::now().plus(self.back_off())).await;
        }
        self.ordered().await;
        self.gate.close();
        match self.handoff.take() {
            Some(handoff) if handoff.term == self.gate.term() => HandoffChange::Put(handoff),
            None if self.took_over => HandoffChange::Clear,
            // What the store had is still there, for whoever takes it over.
            _ => HandoffChange::Keep,
        }
    }

    /// Starts an instance, lets it work, and stops it: all that is in the audit between a start and its stop. Returns
    /// without a failure after the order to end, and where a command has done the work of its slot.
    async fn one_instance(&mut self) -> Result<(), Failure> {
        // A command has a run of its own for each slot; a job waits for slots between its ticks.
        let slot = match self.image.kind() {
            Kind::Command => self.await_slot().await,
            Kind::Job => None,
        };
        // Where trust has run out, the order to end is on its way.
        if self.gate.permit().is_err() || self.order_has_come() {
            self.ordered().await;
            return Ok(());
        }
        let began = clock::now();
        let deadline = Deadline::new(began, began.plus(self.role.tick_timeout));
        let (image, seat) = (self.image.clone(), self.seat());
        let started = self.under_order(&deadline, image.start(seat, &deadline)).await;
        let mut instance = match started {
            // It came while the instance was being made, and nothing of the plugin's own has run.
            _ if self.order_has_come() => return Ok(()),
            Ok(instance) => instance,
            Err(error) => {
                self.record_start(began, Some(&error));
                self.stop(None, Some(&error)).await;
                return Err(Failure { error, starting: true });
            }
        };
        let handoff = self.handoff.clone();
        let elected = self.under_order(&deadline, instance.elected(handoff, &deadline)).await;
        self.record_start(began, elected.as_ref().err());
        let worked = match elected {
            Ok(()) => {
                self.handoff = None;
                self.took_over = true;
                let _ = self.news.send(News::Elected);
                self.work(instance.as_mut(), slot).await.map_err(|error| Failure { error, starting: false })
            }
            Err(error) => Err(Failure { error, starting: true }),
        };
        self.stop(Some(instance), worked.as_ref().err().map(|failure| &failure.error)).await;
        worked
    }

    /// Ticks until the order to end (and then the running tick has ended), until the plugin has failed, or, in the slot of
    /// a command, once.
    async fn work(&mut self, instance: &mut dyn Instance, of_command: Option<Slot>) -> Result<(), CallError> {
        // Where `elected` has resigned, nothing is ticked.
        self.idle_until(clock::now()).await;
        loop {
            let slot = match of_command {
                Some(slot) => Some(slot),
                None => self.await_slot().await,
            };
            if self.gate.permit().is_err() || self.order_has_come() {
                self.ordered().await;
                return Ok(());
            }
            let began = clock::now();
            let ends = match self.image.kind() {
                Kind::Job => began.plus(self.role.tick_timeout),
                // Its one tick is its whole run.
                Kind::Command => Instant::NEVER,
            };
            let deadline = Deadline::new(began, ends);
            let ticked = self.under_order(&deadline, instance.tick(&deadline)).await;
            let next_at = match ticked {
                Ok(next) => {
                    self.failures = 0;
                    self.end_slot(slot).await;
                    if of_command.is_some() {
                        return Ok(());
                    }
                    self.next_tick(began, next)
                }
                Err(error) => {
                    self.record_tick_failed(&error);
                    let given_up = self.failures + 1 >= self.role.on_failure.give_up_after && !self.always_leads();
                    if error.is_fatal() || given_up {
                        return Err(error);
                    }
                    self.failures += 1;
                    clock::now().plus(self.back_off())
                }
            };
            self.idle_until(next_at).await;
            // A job that never waits must not keep the runtime's other tasks waiting.
            tokio::task::coop::consume_budget().await;
        }
    }

    /// When the tick after one that began at `began` is due.
    fn next_tick(&self, began: Instant, next: Next) -> Instant {
        match (next, &self.role.pace) {
            (Next::Done, _) => Instant::NEVER,
            (_, Pace::Every(every)) => began.plus(*every),
            (_, Pace::Slots(_)) | (Next::Again, Pace::Plugin) => began,
            (Next::After(wait), Pace::Plugin) => clock::now().plus(wait),
        }
    }

    /// Waits for the next slot, and records it where it is never to be repeated. None where the role has no schedule, and
    /// where the order to end came first.
    async fn await_slot(&mut self) -> Option<Slot> {
        let mut slots = self.slots.take()?;
        let mut tries = 0;
        let slot = loop {
            let found = match self.unless_ordered(slots.next()).await {
                Some(Ok(Some(due))) => match self.unless_ordered(clock::sleep_until_wall(due.at)).await {
                    Some(()) => self.unless_ordered(slots.begin(due.slot)).await.map(|begun| begun.map(|()| due.slot)),
                    None => None,
                },
                Some(Ok(None)) => {
                    warn!(role = %self.role.name, "the schedule has no slot any more");
                    self.ordered().await;
                    None
                }
                Some(Err(error)) => Some(Err(error)),
                None => None,
            };
            match found {
                None => break None,
                Some(Ok(slot)) => break Some(slot),
                Some(Err(error)) => {
                    // Nothing was started: the slot is still there when the store is.
                    warn!(role = %self.role.name, term = self.gate.term(), %error, "the schedule's record can't be had");
                    tries += 1;
                    self.idle_until(clock::now().plus(self.role.on_failure.back_off(tries))).await;
                }
            }
        };
        self.slots = Some(slots);
        self.slot.store(slot.map_or(0, |slot| slot.0), Ordering::Relaxed);
        slot
    }

    /// Records a slot whose tick did not fail, where it may be repeated but not lost. Belongs to the tick: once the order to
    /// end has come, it may take the grace and no longer, whether the store answers or not.
    async fn end_slot(&mut self, slot: Option<Slot>) {
        let Some(slot) = slot else { return };
        let Some(mut slots) = self.slots.take() else { return };
        let ended = tokio::select! {
            biased;
            ended = slots.end(slot) => ended,
            () = self.grace_over() => Err(StateError::Unavailable("no answer within the grace".to_owned())),
        };
        self.slots = Some(slots);
        if let Err(error) = ended {
            let (role, term) = (&self.role.name, self.gate.term());
            warn!(%role, term, %slot, %error, "the slot could not be recorded: it will be repeated");
        }
    }

    /// Waits until the order to end has come and the grace is over.
    async fn grace_over(&mut self) {
        self.ordered().await;
        if let Some((_, budget)) = &self.ending {
            clock::sleep_until(budget.grace_until).await;
        }
    }

    /// Waits for `what`, but no longer than until the order to end.
    async fn unless_ordered<T>(&mut self, what: impl Future<Output = T>) -> Option<T> {
        let resign = self.resign.clone();
        tokio::select! {
            biased;
            () = self.ordered() => None,
            () = resign.notified() => {
                self.resigned().await;
                None
            }
            done = what => Some(done),
        }
    }

    /// Waits until `at`, or for the order to end; passes on the plugin's wish to resign meanwhile.
    async fn idle_until(&mut self, at: Instant) {
        let _ = self.unless_ordered(clock::sleep_until(at)).await;
    }

    /// The plugin gives the role up: no further tick, since the order to end follows.
    async fn resigned(&mut self) {
        info!(role = %self.role.name, term = self.gate.term(), "the plugin resigns");
        let _ = self.news.send(News::Resigned);
        self.ordered().await;
    }

    /// Ends an instance: `demoted` on its budget, on a fresh instance where this one can't be entered again; then the
    /// gate (where the term ends with it), the store of the instance, and the record, in this order.
    async fn stop(&mut self, instance: Option<Box<dyn Instance>>, failure: Option<&CallError>) {
        let began = clock::now();
        let (ending, budget) = self.ending.unwrap_or_else(|| {
            let ending = Ending { reason: Reason::Failed, trusted_until: self.gate.trusted_until() };
            (ending, self.budget(began, ending))
        });
        let (mut fuel_used, mut problem) = (0, None);
        if let (Some(instance), Kind::Job) = (instance, self.image.kind()) {
            match self.demoted(instance, ending.reason, failure, budget).await {
                Ok((data, fuel)) => {
                    fuel_used = fuel;
                    problem = self.keep_handoff(data).err();
                }
                Err(error) => problem = Some(error),
            }
        }
        let trusted_until = self.ending.map_or(ending.trusted_until, |(ending, _)| ending.trusted_until);
        if self.ending.is_some() {
            self.gate.close();
        }
        let reason = match (self.ending, failure) {
            (None, None) => StopReason::Done,
            _ => StopReason::Of(ending.reason),
        };
        self.record_stop(reason, began, trusted_until, fuel_used, problem.as_ref());
    }

    /// Calls `demoted` once, and drops the instance.
    async fn demoted(
        &mut self,
        mut instance: Box<dyn Instance>,
        reason: Reason,
        failure: Option<&CallError>,
        budget: StopBudget,
    ) -> Result<(Option<Vec<u8>>, u64), CallError> {
        let now = clock::now();
        let deadline = Deadline::new(now, budget.cut_off_at(now));
        let crash = failure.filter(|failure| failure.is_fatal()).map(CallError::to_string);
        if crash.is_some() {
            drop(instance);
            let (image, seat) = (self.image.clone(), self.seat());
            instance = self.until_end(&deadline, image.start(seat, &deadline)).await?;
        }
        let call = instance.demoted(reason, crash.as_deref(), budget.fuel, &deadline);
        let data = self.until_end(&deadline, call).await?;
        Ok((data, instance.fuel_used()))
    }

    fn seat(&self) -> Seat {
        Seat {
            instance: self.host.name.clone(),
            gate: self.gate.clone(),
            notice: self.notice.subscribe(),
            resign: self.resign.clone(),
            state: Some(self.state.clone()),
            slot: self.slot.clone(),
        }
    }

    /// Whether the lease never ends: no other instance could take the role over, so it is never given up.
    fn always_leads(&self) -> bool {
        self.gate.trusted_until() == Instant::NEVER
    }

    fn back_off(&self) -> Duration {
        self.role.on_failure.back_off(self.failures)
    }

    /// Keeps what a `demoted` left for the next `elected`, in this term or after it.
    fn keep_handoff(&mut self, data: Option<Vec<u8>>) -> Result<(), CallError> {
        let Some(data) = data else { return Ok(()) };
        if data.len() > MAX_HANDOFF {
            let (left, most) = (words::bytes(data.len() as u64), words::bytes(MAX_HANDOFF as u64));
            return Err(CallError::Limit(format!(
                "hand-off: `demoted` left {left}, the limit is {most}: it is dropped"
            )));
        }
        self.handoff = Some(Handoff { term: self.gate.term(), data });
        Ok(())
    }

    /// Whether there is an order to end, or nobody left to give one.
    fn order_has_come(&self) -> bool {
        self.ending.is_some() || self.order.has_changed().unwrap_or(true)
    }

    /// Waits for the order to end, passes the notice on, and starts the clock of the demotion. Returns at once where all
    /// that has happened.
    async fn ordered(&mut self) {
        if self.ending.is_some() {
            return;
        }
        let ending = match self.order.wait_for(Option::is_some).await {
            Ok(ending) => *ending,
            // The role's task is gone, and with it whoever renews.
            Err(_) => None,
        };
        let ending =
            ending.unwrap_or_else(|| Ending { reason: Reason::Shutdown, trusted_until: self.gate.trusted_until() });
        self.ending = Some((ending, self.budget(clock::now(), ending)));
        self.notice.send_replace(true);
    }

    fn budget(&self, now: Instant, ending: Ending) -> StopBudget {
        self.role.timing.stop_budget(now, ending.trusted_until, self.role.stop_fuel, self.host.fuel_per_ms)
    }

    /// Waits for a call that may go on for the grace, and no longer, once the order to end has come.
    async fn under_order<T>(&mut self, deadline: &Deadline, call: impl Future<Output = T>) -> T {
        self.drive(deadline, |budget| budget.grace_until, call).await
    }

    /// Waits for a call that is itself part of ending an instance, and may go on to the end of the demotion.
    async fn until_end<T>(&mut self, deadline: &Deadline, call: impl Future<Output = T>) -> T {
        self.drive(deadline, |budget| budget.ends_by, call).await
    }

    async fn drive<T>(
        &mut self,
        deadline: &Deadline,
        bound: fn(&StopBudget) -> Instant,
        call: impl Future<Output = T>,
    ) -> T {
        tokio::pin!(call);
        if self.ending.is_none() {
            tokio::select! {
                biased;
                result = &mut call => return result,
                () = self.ordered() => {}
            }
        }
        if let Some((_, budget)) = &self.ending {
            deadline.bring_forward(bound(budget));
        }
        call.await
    }

    fn record_start(&self, began: Instant, error: Option<&CallError>) {
        let elapsed = clock::now().since(began);
        let (role, term) = (&self.role.name, self.gate.term());
        match error {
            None => info!(%role, term, elapsed = %words::duration(elapsed), "the plugin works"),
            Some(error) => error!(%role, term, %error, frames = %frames(error), "the plugin failed to start"),
        }
        self.record(Event::PluginStart { digest: self.image.digest().to_owned(), elapsed, error: in_words(error) });
    }

    fn record_tick_failed(&self, error: &CallError) {
        let consecutive = self.failures + 1;
        let (role, term) = (&self.role.name, self.gate.term());
        warn!(%role, term, %error, frames = %frames(error), consecutive, "a tick failed");
        let frames = match error {
            CallError::Trapped { frames, .. } => frames.clone(),
            _ => Vec::new(),
        };
        self.record(Event::TickFailed { consecutive, error: error.to_string(), frames });
    }

    fn record_stop(
        &self,
        reason: StopReason,
        began: Instant,
        trusted_until: Instant,
        fuel_used: u64,
        error: Option<&CallError>,
    ) {
        let now = clock::now();
        let margin = Margin::at(now, trusted_until);
        let (role, term, why) = (&self.role.name, self.gate.term(), reason.as_str());
        match error {
            None => info!(%role, term, reason = why, %margin, "the plugin has stopped"),
            Some(error) => warn!(%role, term, reason = why, %margin, %error, "the plugin was stopped"),
        }
        self.record(Event::PluginStop { reason, fuel_used, elapsed: now.since(began), margin, error: in_words(error) });
    }

    fn record(&self, event: Event) {
        self.host.audit.record(&self.role.name, self.gate.term(), event);
    }
}

fn in_words(error: Option<&CallError>) -> Option<String> {
    error.map(ToString::to_string)
}

/// The wasm frames of a trap in one line; empty where there are none.
fn frames(error: &CallError) -> String {
    match error {
        CallError::Trapped { frames, .. } => frames.join(" < "),
        _ => String::new(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU32;

    use async_trait::async_trait;
    use tempfile::TempDir;
    use uuid::Uuid;

    use super::*;
    use crate::audit::Audit;
    use crate::config::Config;
    use crate::store::batch::StoreHandle;
    use crate::store::sqlite::{FencedBy, SqliteState};
    use crate::store::standalone::StandaloneStore;

    /// A job without a sandbox that counts its ticks, and notes how long its `demoted` was given.
    #[derive(Default)]
    struct Counter {
        ticks: AtomicU32,
        demoted_within: Mutex<Option<Duration>>,
        demoted_fuel: AtomicU64,
    }

    #[async_trait]
    impl Image for Arc<Counter> {
        fn digest(&self) -> &str {
            "digest"
        }

        fn imports(&self) -> &[String] {
            &[]
        }

        fn kind(&self) -> Kind {
            Kind::Job
        }

        async fn start(&self, _: Seat, _: &Deadline) -> Result<Box<dyn Instance>, CallError> {
            Ok(Box::new(self.clone()))
        }
    }

    #[async_trait]
    impl Instance for Arc<Counter> {
        async fn elected(&mut self, _: Option<Handoff>, _: &Deadline) -> Result<(), CallError> {
            Ok(())
        }

        async fn tick(&mut self, _: &Deadline) -> Result<Next, CallError> {
            self.ticks.fetch_add(1, Ordering::SeqCst);
            Ok(Next::After(Duration::from_millis(1)))
        }

        async fn demoted(
            &mut self,
            _: Reason,
            _: Option<&str>,
            fuel: u64,
            deadline: &Deadline,
        ) -> Result<Option<Vec<u8>>, CallError> {
            self.demoted_fuel.store(fuel, Ordering::SeqCst);
            *self.demoted_within.lock().unwrap() = Some(deadline.at().since(clock::now()));
            Ok(Some(b"left".to_vec()))
        }

        fn fuel_used(&self) -> u64 {
            0
        }
    }

    /// A term that is trusted for `trust`, and the sender of its order to end.
    fn term(counter: &Arc<Counter>, trust: Duration, folder: &TempDir) -> (Term, watch::Sender<Option<Ending>>) {
        let config = Config::parse("[role.counter]\nplugin = \"x\"", Path::new("tenure.toml")).unwrap();
        let store = StoreHandle::new(Arc::new(StandaloneStore::new(Arc::new(
            SqliteState::new(Path::new(":memory:"), FencedBy::Caller).unwrap(),
        ))));
        let host = Host {
            name: "test".to_owned(),
            store,
            audit: Audit::open(folder.path(), "test").unwrap(),
            plugins: tokio::runtime::Handle::current(),
            fuel_per_ms: 1_000_000,
            leading: AtomicU32::new(0),
        };
        let gate = Arc::new(Gate::new(3, clock::now().plus(trust)));
        let (order, received) = watch::channel(None);
        let (news, _) = mpsc::unbounded_channel();
        let image = Arc::new(counter.clone());
        let role = Arc::new(config.roles[0].clone());
        let won = Won { claim: ClaimId(Uuid::nil()), gate, handoff: None };
        (Term::new(Arc::new(host), role, image, won, received, news), order)
    }

    #[tokio::test]
    async fn past_the_trust_no_tick_starts_even_where_nobody_gives_the_order() {
        let (counter, folder) = (Arc::new(Counter::default()), TempDir::new().unwrap());
        let (term, order) = term(&counter, Duration::from_millis(100), &folder);
        let gate = term.gate.clone();
        let work = tokio::spawn(term.run());
        while gate.permit().is_ok() {
            tokio::task::yield_now().await;
        }
        let (before, ends) = (counter.ticks.load(Ordering::SeqCst), clock::now().plus(Duration::from_millis(100)));
        assert!(before > 0, "it ticked while it was trusted");
        while clock::now() < ends {
            tokio::task::yield_now().await;
            // One more may have been let through just before.
            assert!(counter.ticks.load(Ordering::SeqCst) <= before + 1);
        }
        order.send_replace(Some(Ending { reason: Reason::Unreachable, trusted_until: clock::now() }));
        assert_eq!(work.await.unwrap(), HandoffChange::Put(Handoff { term: 3, data: b"left".to_vec() }));
    }

    #[tokio::test]
    async fn demoted_gets_its_own_time_and_not_what_the_grace_left() {
        let (counter, folder) = (Arc::new(Counter::default()), TempDir::new().unwrap());
        let (term, order) = term(&counter, Duration::from_secs(60), &folder);
        let (gate, within) = (term.gate.clone(), term.role.timing.within());
        order.send_replace(Some(Ending { reason: Reason::Shutdown, trusted_until: gate.trusted_until() }));
        // The order came first: nothing starts.
        assert_eq!(term.run().await, HandoffChange::Keep);
        assert!(counter.demoted_within.lock().unwrap().is_none());
        assert!(gate.permit().is_err(), "the gate is closed");

        let (term, order) = self::term(&counter, Duration::from_secs(60), &folder);
        let trusted_until = term.gate.trusted_until();
        let work = tokio::spawn(term.run());
        while counter.ticks.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        order.send_replace(Some(Ending { reason: Reason::Shutdown, trusted_until }));
        work.await.unwrap();
        let given = counter.demoted_within.lock().unwrap().unwrap();
        assert!(given <= within, "{given:?} of {within:?}");
    }

    #[tokio::test]
    async fn where_little_is_left_of_the_trust_time_and_fuel_shrink() {
        let (counter, folder) = (Arc::new(Counter::default()), TempDir::new().unwrap());
        let (term, order) = term(&counter, Duration::from_secs(60), &folder);
        let work = tokio::spawn(term.run());
        while counter.ticks.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        // 3 s are asked for. 150 ms less the kill margin are left, and two thirds of that for `demoted`.
        let trusted_until = clock::now().plus(Duration::from_millis(150));
        order.send_replace(Some(Ending { reason: Reason::Unreachable, trusted_until }));
        work.await.unwrap();
        let (within, fuel) =
            (counter.demoted_within.lock().unwrap().unwrap(), counter.demoted_fuel.load(Ordering::SeqCst));
        assert!(within < Duration::from_millis(70), "{within:?}");
        // A million units a millisecond.
        assert!((1..70_000_000).contains(&fuel), "{fuel}");
    }
}
