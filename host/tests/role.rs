//! The rules of a demotion (DESIGN.md 6 and 7), against a whole role: a store and a plugin that the test holds the strings
//! of, and one list of what happened, in its order.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tempfile::TempDir;
use tenure::audit::Audit;
use tenure::clock;
use tenure::config::Config;
use tenure::gate::Gate;
use tenure::plugin::{CallError, Deadline, Image, Instance, Kind, Next, Seat};
use tenure::role::{Host, Mail, Role};
use tenure::state::{Fence, StateError, StateOp, StateReply, StateStore};
use tenure::store::batch::StoreHandle;
use tenure::store::{ClaimAsk, Claimed, HandoffChange, ReleaseAsk, RenewAsk, Store, StoreError, StoreEvent};
use tenure_core::{ClaimId, ClaimReply, Handoff, Lasts, Reason, ReleaseReply, RenewReply};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinHandle;
use uuid::Uuid;

/// Longer than anything takes that is to happen, and shorter than what the tests set up not to happen.
const PATIENCE: Duration = Duration::from_secs(20);
/// The fuel of `demoted` in these tests.
const FUEL: u64 = 12_345;

/// What happened. Instances of the plugin have numbers, from 1.
#[derive(Debug, Clone, PartialEq)]
enum Happened {
    Started(u32),
    Elected(u32, Option<Handoff>),
    Ticked(u32),
    /// A tick heard the notice; whether it then got a permit.
    Heard {
        permit: bool,
    },
    /// A tick was ended at its deadline.
    CutOff(u32),
    Demoted {
        number: u32,
        reason: Reason,
        crash: bool,
        fuel: u64,
        permit: bool,
    },
    Dropped(u32),
    /// The lease was released; whether the plugin could still have got a permit.
    Released {
        change: HandoffChange,
        permit: bool,
    },
}

use Happened::*;

/// What a tick does.
#[derive(Debug, Clone, Copy)]
enum Deed {
    Next(Next),
    /// Waits for the notice.
    Attentive,
    /// Waits for ever.
    Deaf,
    Trap,
    Resign,
    /// From now on, the store answers no change of the state.
    Hang,
}

/// The plugin and the store, and all that the test knows of them.
struct Stage {
    tick: Deed,
    /// The instance is made, and not ready before the order to end has come.
    starts_slowly: bool,
    elected_resigns: bool,
    /// `demoted` waits for ever.
    demoted_is_deaf: bool,
    /// `demoted` traps.
    demoted_traps: bool,
    leaves: Vec<u8>,
    list: Mutex<Vec<Happened>>,
    starts: AtomicU32,
    /// Of threads that ran the plugin.
    threads: Mutex<Vec<String>>,
    gate: Mutex<Option<Arc<Gate>>>,
    term: AtomicU64,
    /// The store says that the lease is another's.
    lost: AtomicBool,
    state_hangs: AtomicBool,
    events: broadcast::Sender<StoreEvent>,
}

impl Stage {
    fn new(tick: Deed) -> Self {
        Self {
            tick,
            starts_slowly: false,
            elected_resigns: false,
            demoted_is_deaf: false,
            demoted_traps: false,
            leaves: b"left".to_vec(),
            list: Mutex::default(),
            starts: AtomicU32::new(0),
            threads: Mutex::default(),
            gate: Mutex::default(),
            term: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            state_hangs: AtomicBool::new(false),
            events: broadcast::Sender::new(16),
        }
    }

    fn happened(&self, what: Happened) {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        if !matches!(what, Released { .. }) {
            self.threads.lock().unwrap().push(thread);
        }
        self.list.lock().unwrap().push(what);
    }

    fn list(&self) -> Vec<Happened> {
        self.list.lock().unwrap().clone()
    }

    fn permit(&self) -> bool {
        self.gate.lock().unwrap().as_ref().is_some_and(|gate| gate.permit().is_ok())
    }
}

/// The plugin.
struct Puppet(Arc<Stage>);

struct PuppetInstance {
    stage: Arc<Stage>,
    number: u32,
    seat: Seat,
}

#[async_trait]
impl Image for Puppet {
    fn digest(&self) -> &str {
        "digest"
    }

    fn imports(&self) -> &[String] {
        &[]
    }

    fn kind(&self) -> Kind {
        Kind::Job
    }

    async fn start(&self, mut seat: Seat, deadline: &Deadline) -> Result<Box<dyn Instance>, CallError> {
        let number = self.0.starts.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.happened(Started(number));
        *self.0.gate.lock().unwrap() = Some(seat.gate.clone());
        if self.0.starts_slowly {
            by(deadline, seat.notice.wait_for(|told| *told)).await?.unwrap();
        }
        Ok(Box::new(PuppetInstance { stage: self.0.clone(), number, seat }))
    }
}

/// Waits for `what`, as the sandbox does: up to the deadline, wherever that moves.
async fn by<T>(deadline: &Deadline, what: impl Future<Output = T>) -> Result<T, CallError> {
    tokio::pin!(what);
    loop {
        tokio::select! {
            done = &mut what => return Ok(done),
            () = clock::sleep_until(deadline.at()) => return Err(CallError::CutOff),
            () = deadline.moved() => {}
        }
    }
}

fn trap() -> CallError {
    CallError::Trapped { message: "on purpose".to_owned(), frames: Vec::new() }
}

#[async_trait]
impl Instance for PuppetInstance {
    async fn elected(&mut self, handoff: Option<Handoff>, _: &Deadline) -> Result<(), CallError> {
        self.stage.happened(Elected(self.number, handoff));
        if self.stage.elected_resigns {
            self.seat.resign.notify_one();
        }
        Ok(())
    }

    async fn tick(&mut self, deadline: &Deadline) -> Result<Next, CallError> {
        self.stage.happened(Ticked(self.number));
        match self.stage.tick {
            Deed::Next(next) => Ok(next),
            Deed::Attentive => {
                by(deadline, self.seat.notice.wait_for(|told| *told)).await?.unwrap();
                self.stage.happened(Heard { permit: self.stage.permit() });
                Ok(Next::Again)
            }
            Deed::Deaf => {
                let ended = by(deadline, std::future::pending::<Next>()).await;
                self.stage.happened(CutOff(self.number));
                ended
            }
            Deed::Trap => Err(trap()),
            Deed::Hang => {
                self.stage.state_hangs.store(true, Ordering::SeqCst);
                Ok(Next::Again)
            }
            Deed::Resign => {
                self.seat.resign.notify_one();
                Err(trap())
            }
        }
    }

    async fn demoted(
        &mut self,
        reason: Reason,
        failure: Option<&str>,
        fuel: u64,
        deadline: &Deadline,
    ) -> Result<Option<Vec<u8>>, CallError> {
        let (number, crash, permit) = (self.number, failure.is_some(), self.stage.permit());
        self.stage.happened(Demoted { number, reason, crash, fuel, permit });
        if self.stage.demoted_is_deaf {
            by(deadline, std::future::pending::<()>()).await?;
        }
        if self.stage.demoted_traps {
            return Err(trap());
        }
        Ok(Some(self.stage.leaves.clone()))
    }

    fn fuel_used(&self) -> u64 {
        0
    }
}

impl Drop for PuppetInstance {
    fn drop(&mut self) {
        self.stage.happened(Dropped(self.number));
    }
}

/// The store: it grants every claim, and forgets all state at once.
struct PuppetStore(Arc<Stage>);

#[async_trait]
impl Store for PuppetStore {
    fn describe(&self) -> String {
        "a puppet".to_owned()
    }

    async fn claim(&self, asks: &[ClaimAsk], _: Duration) -> Vec<Result<Claimed, StoreError>> {
        let seen = asks.iter().map(|ask| ask.seen_term).max().unwrap_or(0);
        let term = self.0.term.fetch_max(seen, Ordering::SeqCst).max(seen) + 1;
        self.0.term.store(term, Ordering::SeqCst);
        self.0.lost.store(false, Ordering::SeqCst);
        asks.iter()
            .map(|_| Ok(Claimed { reply: ClaimReply::Granted { term, lasts: Lasts::Ttl }, handoff: None }))
            .collect()
    }

    async fn renew(&self, asks: &[RenewAsk], _: Duration) -> Vec<Result<RenewReply, StoreError>> {
        let reply = if self.0.lost.load(Ordering::SeqCst) { RenewReply::NotYours } else { RenewReply::Renewed };
        asks.iter().map(|_| Ok(reply)).collect()
    }

    async fn release(&self, asks: &[ReleaseAsk], _: Duration) -> Vec<Result<ReleaseReply, StoreError>> {
        asks.iter()
            .map(|ask| {
                self.0.happened(Released { change: ask.handoff.clone(), permit: self.0.permit() });
                Ok(ReleaseReply::Released)
            })
            .collect()
    }

    async fn settle_handoff(&self, _: &tenure::config::RoleName, _: ClaimId, _: Duration) -> Result<(), StoreError> {
        Ok(())
    }

    fn state(&self) -> Arc<dyn StateStore> {
        Arc::new(PuppetState(self.0.clone()))
    }

    fn watch(&self) -> broadcast::Receiver<StoreEvent> {
        self.0.events.subscribe()
    }
}

struct PuppetState(Arc<Stage>);

#[async_trait]
impl StateStore for PuppetState {
    async fn run(&self, _: &Fence, op: &StateOp, within: Duration) -> Result<StateReply, StateError> {
        match op {
            StateOp::Get(keys) => Ok(StateReply::Values(vec![None; keys.len()])),
            _ if self.0.state_hangs.load(Ordering::SeqCst) => {
                tokio::time::sleep(within).await;
                Err(StateError::Unavailable("it hung".to_owned()))
            }
            _ => Ok(StateReply::Done),
        }
    }
}

/// A role that runs.
struct Scene {
    stage: Arc<Stage>,
    mailbox: mpsc::UnboundedSender<Mail>,
    role: JoinHandle<()>,
    folder: TempDir,
    audit: Audit,
    plugins: Runtime,
}

impl Scene {
    /// With these keys in the role's table.
    fn start(stage: Stage, keys: &str) -> Self {
        let stage = Arc::new(stage);
        let folder = TempDir::new().unwrap();
        let toml = format!("[role.puppet]\nplugin = \"x\"\n{keys}");
        let config = Config::parse(&toml, Path::new("tenure.toml")).unwrap();
        let plugins =
            Builder::new_multi_thread().worker_threads(1).thread_name("plugins").enable_all().build().unwrap();
        let audit = Audit::open(folder.path(), "test").unwrap();
        let host = Host {
            name: "test".to_owned(),
            store: StoreHandle::new(Arc::new(PuppetStore(stage.clone()))),
            audit: audit.clone(),
            plugins: plugins.handle().clone(),
            fuel_per_ms: 1_000,
            leading: AtomicU32::new(0),
        };
        let (mailbox, mail) = mpsc::unbounded_channel();
        let image = Arc::new(Puppet(stage.clone()));
        let role = Role::new(Arc::new(host), Arc::new(config.roles[0].clone()), image, mail);
        let role = tokio::spawn(role.run());
        Self { stage, mailbox, role, folder, audit, plugins }
    }

    async fn wait_for(&self, what: impl Fn(&[Happened]) -> bool) {
        let ends = clock::now().plus(PATIENCE);
        while !what(&self.stage.list()) {
            assert!(clock::now() < ends, "it did not happen: {:?}", self.stage.list());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn wait_until_ticking(&self) {
        self.wait_for(|list| list.iter().any(|what| matches!(what, Ticked(_)))).await;
    }

    /// Stops the role in order, and returns what happened and what the audit says of it.
    async fn stop(self) -> (Vec<Happened>, Vec<Value>) {
        self.mailbox.send(Mail::Stop).unwrap();
        tokio::time::timeout(PATIENCE, self.role).await.expect("the role ends").unwrap();
        self.plugins.shutdown_background();
        self.audit.close();
        let text = std::fs::read_to_string(self.folder.path().join("audit.jsonl")).unwrap();
        (self.stage.list(), text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }
}

/// Budgets that are never met, so that a test can tell what did not wait for them.
const PATIENT: &str = "lease = { ttl = \"10m\" }\nstop = { grace = \"1m\", within = \"1m\", fuel = 12_345 }\n";
/// A grace and a budget that are soon over.
const BRISK: &str = "lease = { ttl = \"10m\" }\nstop = { grace = \"100ms\", within = \"100ms\", fuel = 12_345 }\n";

fn position(list: &[Happened], what: impl Fn(&Happened) -> bool) -> usize {
    list.iter().position(what).unwrap_or_else(|| panic!("it did not happen: {list:?}"))
}

fn events(audit: &[Value]) -> Vec<&str> {
    audit.iter().map(|line| line["event"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn an_orderly_demotion_leaves_the_gate_open_until_the_plugin_has_stopped() {
    let scene = Scene::start(Stage::new(Deed::Attentive), PATIENT);
    scene.wait_until_ticking().await;
    let began = clock::now();
    let (list, audit) = scene.stop().await;
    assert!(clock::now().since(began) < PATIENCE, "the notice came at once, and nothing waited for the budgets");
    let demoted = Demoted { number: 1, reason: Reason::Shutdown, crash: false, fuel: FUEL, permit: true };
    let left = Handoff { term: 1, data: b"left".to_vec() };
    assert_eq!(
        list,
        [
            Started(1),
            Elected(1, None),
            Ticked(1),
            Heard { permit: true },
            demoted,
            Dropped(1),
            // Only then: closed, recorded, released.
            Released { change: HandoffChange::Put(left), permit: false },
        ]
    );
    assert_eq!(events(&audit), ["lease/acquire", "plugin/start", "plugin/stop", "lease/release"]);
}

#[tokio::test]
async fn an_order_to_end_that_comes_during_the_start_elects_nobody() {
    let stage = Stage { starts_slowly: true, ..Stage::new(Deed::Attentive) };
    let scene = Scene::start(stage, PATIENT);
    scene.wait_for(|list| list.contains(&Started(1))).await;
    let (list, audit) = scene.stop().await;
    assert_eq!(list, [Started(1), Dropped(1), Released { change: HandoffChange::Keep, permit: false }]);
    assert_eq!(events(&audit), ["lease/acquire", "lease/release"]);
}

#[tokio::test]
async fn a_lost_lease_closes_the_gate_at_once_and_releases_nothing() {
    let scene = Scene::start(Stage::new(Deed::Attentive), PATIENT);
    scene.wait_until_ticking().await;
    scene.stage.lost.store(true, Ordering::SeqCst);
    // Another's higher term: a leader asks the store at once whether it still leads.
    let (role, claim) = (tenure::config::RoleName::new("puppet").unwrap(), ClaimId(Uuid::max()));
    scene.mailbox.send(Mail::Store(StoreEvent::Elected { role, term: 99, claim })).unwrap();
    scene.wait_for(|list| list.contains(&Dropped(1))).await;
    let (list, audit) = scene.stop().await;
    let heard = position(&list, |what| matches!(what, Heard { .. }));
    assert_eq!(list[heard], Heard { permit: false });
    let demoted = Demoted { number: 1, reason: Reason::Lost, crash: false, fuel: FUEL, permit: false };
    assert_eq!(list[heard + 1], demoted);
    let is_of_this_term = |change: &HandoffChange| matches!(change, HandoffChange::Put(left) if left.term == 1);
    let released = |what: &Happened| matches!(what, Released { change, .. } if is_of_this_term(change));
    assert!(!list.iter().any(released), "the lease is not ours to release: {list:?}");
    assert_eq!(events(&audit)[..4], ["lease/acquire", "plugin/start", "lease/lost", "plugin/stop"]);
}

#[tokio::test]
async fn a_tick_that_may_take_an_hour_ends_with_the_grace() {
    let scene = Scene::start(Stage::new(Deed::Deaf), &format!("{BRISK}tick_timeout = \"1h\"\n"));
    scene.wait_until_ticking().await;
    let (list, audit) = scene.stop().await;
    let cut_off = position(&list, |what| *what == CutOff(1));
    // It can't be entered again: a fresh instance is told.
    assert_eq!(
        list[cut_off + 1..cut_off + 5],
        [
            Dropped(1),
            Started(2),
            Demoted { number: 2, reason: Reason::Shutdown, crash: true, fuel: FUEL, permit: true },
            Dropped(2),
        ]
    );
    assert_eq!(events(&audit)[2..], ["plugin/tick-failed", "plugin/stop", "lease/release"]);
    let margin = audit[3]["margin_ms"].as_f64().unwrap();
    assert!(margin > 0.0, "{margin} ms left");
}

#[tokio::test]
async fn a_store_that_hangs_while_a_slot_is_recorded_holds_no_demotion_up() {
    let schedule = "cron = \"* * * * * *\"\ndelivery = \"at-least-once\"\n";
    let scene = Scene::start(Stage::new(Deed::Hang), &format!("{schedule}{BRISK}"));
    scene.wait_until_ticking().await;
    let (list, audit) = scene.stop().await;
    let demoted = Demoted { number: 1, reason: Reason::Shutdown, crash: false, fuel: FUEL, permit: true };
    assert_eq!(list[3..5], [demoted, Dropped(1)]);
    let margin = audit[2]["margin_ms"].as_f64().unwrap();
    assert!(margin > 0.0, "{margin} ms left");
}

#[tokio::test]
async fn a_demoted_that_does_not_end_is_cut_off_before_the_release() {
    let stage = Stage { demoted_is_deaf: true, ..Stage::new(Deed::Attentive) };
    let scene = Scene::start(stage, BRISK);
    scene.wait_until_ticking().await;
    let (list, audit) = scene.stop().await;
    let end = list.len();
    assert_eq!(list[end - 2], Dropped(1));
    assert_eq!(list[end - 1], Released { change: HandoffChange::Clear, permit: false });
    assert_eq!(audit[2]["event"], "plugin/stop");
    assert_eq!(audit[2]["error"], "cut off at its deadline");
}

#[tokio::test]
async fn a_trapped_instance_is_demoted_once_and_on_a_fresh_one() {
    for demoted_traps in [false, true] {
        let stage = Stage { demoted_traps, ..Stage::new(Deed::Trap) };
        let scene = Scene::start(stage, PATIENT);
        scene.wait_for(|list| list.contains(&Started(3))).await;
        let (list, _) = scene.stop().await;
        let crashed = Demoted { number: 2, reason: Reason::Failed, crash: true, fuel: FUEL, permit: true };
        assert_eq!(
            list[..8],
            [Started(1), Elected(1, None), Ticked(1), Dropped(1), Started(2), crashed, Dropped(2), Started(3)]
        );
    }
}

#[tokio::test]
async fn what_elected_resigns_is_not_ticked() {
    let stage = Stage { elected_resigns: true, ..Stage::new(Deed::Next(Next::Again)) };
    let scene = Scene::start(stage, PATIENT);
    scene.wait_for(|list| list.iter().any(|what| matches!(what, Released { .. }))).await;
    let (list, _) = scene.stop().await;
    assert!(!list.contains(&Ticked(1)), "{list:?}");
}

#[tokio::test]
async fn resigning_before_a_trap_is_heard_before_another_instance_works() {
    let scene = Scene::start(Stage::new(Deed::Resign), PATIENT);
    scene.wait_for(|list| list.iter().any(|what| matches!(what, Released { .. }))).await;
    let (list, _) = scene.stop().await;
    assert_eq!(list.iter().filter(|what| matches!(what, Elected(..))).count(), 1, "{list:?}");
}

#[tokio::test]
async fn a_hand_off_that_is_too_large_is_in_the_audit_and_not_in_the_store() {
    let stage = Stage { leaves: vec![0; (1 << 20) + 1], ..Stage::new(Deed::Attentive) };
    let scene = Scene::start(stage, PATIENT);
    scene.wait_until_ticking().await;
    let (list, audit) = scene.stop().await;
    assert_eq!(list.last(), Some(&Released { change: HandoffChange::Clear, permit: false }));
    let error = audit[2]["error"].as_str().unwrap();
    assert!(error.starts_with("hand-off: ") && error.contains("the limit is 1 MiB"), "{error}");
}

#[tokio::test]
async fn the_plugin_says_when_it_is_ticked_next() {
    let ticks = |list: &[Happened]| list.iter().filter(|what| **what == Ticked(1)).count();
    for next in [Next::After(Duration::from_secs(3600)), Next::Done] {
        let scene = Scene::start(Stage::new(Deed::Next(next)), PATIENT);
        scene.wait_until_ticking().await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let (list, _) = scene.stop().await;
        assert_eq!(ticks(&list), 1, "{next:?}");
    }
    for next in [Next::After(Duration::from_millis(10)), Next::Again] {
        let scene = Scene::start(Stage::new(Deed::Next(next)), PATIENT);
        scene.wait_for(|list| ticks(list) > 5).await;
        scene.stop().await;
    }
}

#[tokio::test]
async fn the_plugin_runs_on_the_plugins_threads_only() {
    let scene = Scene::start(Stage::new(Deed::Trap), PATIENT);
    scene.wait_for(|list| list.contains(&Started(3))).await;
    let stage = scene.stage.clone();
    scene.stop().await;
    let threads = stage.threads.lock().unwrap();
    assert!(threads.iter().all(|thread| thread == "plugins"), "{threads:?}");
}
