//! The sandbox against real wasm: what a plugin may do, and how it is ended when it does anything else.
//!
//! The guests are built by `make guests`; `rogue` (tests/guest) does what its settings say.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tenure::clock;
use tenure::config::RoleName;
use tenure::gate::Gate;
use tenure::grants::Grants;
use tenure::plugin::engine::Engine;
use tenure::plugin::{CallError, Deadline, Image, Instance, Kind, Next, PluginSpec, Seat};
use tenure_core::{Handoff, Instant, Reason};
use tokio::sync::{Notify, watch};

const MIB: u64 = 1 << 20;

fn wasm(name: &str) -> Vec<u8> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let path = target.join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; run `make guests` first", path.display()))
}

fn rogue() -> Vec<u8> {
    wasm("wasm32-wasip2/guest/rogue.wasm")
}

fn spec(settings: &[(&str, &str)]) -> PluginSpec {
    let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    PluginSpec { role: RoleName::new("test").unwrap(), settings, memory: 64 * MIB, grants: Grants::default() }
}

/// An image, and what an instance of it is started with.
struct Stage {
    image: Arc<dyn Image>,
    notice: watch::Sender<bool>,
    resign: Arc<Notify>,
}

impl Stage {
    fn new(bytes: &[u8], spec: &PluginSpec) -> Self {
        let image = Engine::new().unwrap().load(bytes, spec).unwrap();
        Self { image, notice: watch::Sender::new(false), resign: Arc::new(Notify::new()) }
    }

    fn rogue(settings: &[(&str, &str)]) -> Self {
        Self::new(&rogue(), &spec(settings))
    }

    fn seat(&self) -> Seat {
        Seat {
            instance: "host-1".to_owned(),
            gate: Arc::new(Gate::new(7, Instant::NEVER)),
            notice: self.notice.subscribe(),
            resign: self.resign.clone(),
            state: None,
            slot: Arc::default(),
        }
    }

    async fn start(&self) -> Box<dyn Instance> {
        self.image.start(self.seat(), &soon()).await.unwrap()
    }

    async fn elected(&self) -> Box<dyn Instance> {
        let mut instance = self.start().await;
        instance.elected(None, &soon()).await.unwrap();
        instance
    }
}

fn in_ms(ms: u64) -> Deadline {
    let now = clock::now();
    Deadline::new(now, now.plus(Duration::from_millis(ms)))
}

/// A deadline that a call which ends by itself does not meet.
fn soon() -> Deadline {
    in_ms(20_000)
}

/// The call must have ended by then, however loaded the machine is.
const AT_ONCE: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_job_counts_and_hands_over() {
    let stage = Stage::rogue(&[("after_ms", "250")]);
    assert_eq!(stage.image.kind(), Kind::Job);
    let mut instance = stage.start().await;
    instance.elected(Some(Handoff { term: 6, data: b"41".to_vec() }), &soon()).await.unwrap();
    assert_eq!(instance.tick(&soon()).await, Ok(Next::After(Duration::from_millis(250))));
    let left = instance.demoted(Reason::Shutdown, None, 100_000_000, &soon()).await;
    assert_eq!(left, Ok(Some(b"42".to_vec())));
    assert!(instance.fuel_used() > 0);
}

#[tokio::test]
async fn a_core_module_with_metadata_is_made_a_component() {
    let stage = Stage::new(&wasm("wasm32-unknown-unknown/guest/heartbeat.wasm"), &spec(&[("every_ms", "5")]));
    let mut instance = stage.elected().await;
    assert_eq!(instance.tick(&soon()).await, Ok(Next::After(Duration::from_millis(5))));
}

#[tokio::test]
async fn two_roles_of_one_plugin_share_its_code_and_nothing_else() {
    let engine = Engine::new().unwrap();
    let (notice, resign) = (watch::Sender::new(false), Arc::new(Notify::new()));
    let stage = |role: &str, after_ms: &str| {
        let spec = PluginSpec { role: RoleName::new(role).unwrap(), ..spec(&[("after_ms", after_ms)]) };
        let image = engine.load(&rogue(), &spec).unwrap();
        Stage { image, notice: notice.clone(), resign: resign.clone() }
    };
    let (one, other) = (stage("one", "1"), stage("other", "2"));
    assert_eq!(one.image.digest(), other.image.digest());
    let (mut first, mut second) = (one.elected().await, other.elected().await);
    for _ in 0..3 {
        assert_eq!(first.tick(&soon()).await, Ok(Next::After(Duration::from_millis(1))));
    }
    assert_eq!(second.tick(&soon()).await, Ok(Next::After(Duration::from_millis(2))));
    for (instance, count) in [(&mut first, "3"), (&mut second, "1")] {
        let left = instance.demoted(Reason::Shutdown, None, 100_000_000, &soon()).await;
        assert_eq!(left, Ok(Some(count.as_bytes().to_vec())));
    }
}

#[tokio::test]
async fn a_call_past_its_deadline_never_begins() {
    let stage = Stage::rogue(&[]);
    let mut instance = stage.elected().await;
    assert_eq!(instance.tick(&in_ms(0)).await, Err(CallError::CutOff));
    assert!(instance.tick(&soon()).await.unwrap_err().is_fatal());
}

#[tokio::test]
async fn an_error_of_the_plugins_own_leaves_it_alive() {
    let stage = Stage::rogue(&[("tick", "error")]);
    let mut instance = stage.elected().await;
    for _ in 0..2 {
        assert_eq!(instance.tick(&soon()).await, Err(CallError::Failed("the rogue says no".to_owned())));
    }
}

#[tokio::test]
async fn a_spinning_tick_is_cut_off() {
    let stage = Stage::rogue(&[("tick", "spin")]);
    let mut instance = stage.elected().await;
    let began = clock::now();
    assert_eq!(instance.tick(&in_ms(50)).await, Err(CallError::CutOff));
    assert!(clock::now().since(began) < AT_ONCE);
    // And never entered again.
    assert!(instance.tick(&soon()).await.unwrap_err().is_fatal());
}

#[tokio::test]
async fn a_tick_that_fills_all_its_memory_is_cut_off_between_two_fills() {
    let stage = Stage::rogue(&[("tick", "fill")]);
    let mut instance = stage.elected().await;
    let began = clock::now();
    assert_eq!(instance.tick(&in_ms(50)).await, Err(CallError::CutOff));
    assert!(clock::now().since(began) < AT_ONCE);
}

#[tokio::test]
async fn a_deadline_can_be_brought_forward_while_the_guest_sleeps_for_an_hour() {
    let stage = Stage::rogue(&[("tick", "sleep")]);
    let mut instance = stage.elected().await;
    let deadline = Deadline::new(clock::now(), Instant::NEVER);
    let began = clock::now();
    let (ticked, ()) = tokio::join!(instance.tick(&deadline), async {
        tokio::task::yield_now().await;
        deadline.bring_forward(clock::now().plus(Duration::from_millis(20)));
    });
    assert_eq!(ticked, Err(CallError::CutOff));
    assert!(clock::now().since(began) < AT_ONCE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_deadline_can_be_brought_forward_while_the_guest_spins() {
    let stage = Stage::rogue(&[("tick", "spin")]);
    let mut instance = stage.elected().await;
    let deadline = Deadline::new(clock::now(), Instant::NEVER);
    let (ticked, ()) = tokio::join!(instance.tick(&deadline), async {
        deadline.bring_forward(clock::now().plus(Duration::from_millis(20)));
    });
    assert_eq!(ticked, Err(CallError::CutOff));
}

#[tokio::test]
async fn demoted_runs_on_its_fuel() {
    let stage = Stage::rogue(&[("demoted", "spin")]);
    let mut instance = stage.elected().await;
    let ended = instance.demoted(Reason::Shutdown, None, 5_000_000, &soon()).await;
    assert_eq!(ended, Err(CallError::OutOfFuel { fuel: 5_000_000 }));
    assert!(instance.fuel_used() >= 4_900_000, "{}", instance.fuel_used());
}

#[tokio::test]
async fn a_panic_keeps_its_text_and_frames_and_the_next_instance_works() {
    let stage = Stage::rogue(&[("tick", "panic"), ("from_tick", "2")]);
    let mut instance = stage.elected().await;
    instance.tick(&soon()).await.unwrap();
    let Err(CallError::Trapped { message, frames }) = instance.tick(&soon()).await else { panic!("no trap") };
    assert!(message.contains("the rogue panics on purpose"), "{message}");
    assert!(frames.iter().any(|frame| frame.contains("rogue")), "{frames:?}");
    let mut fresh = stage.start().await;
    let left = fresh.demoted(Reason::Failed, Some(&message), 100_000_000, &soon()).await;
    assert_eq!(left, Ok(None));
    assert!(stage.elected().await.tick(&soon()).await.is_ok());
}

#[tokio::test]
async fn recursion_is_a_trap() {
    let stage = Stage::rogue(&[("tick", "recurse")]);
    let Err(CallError::Trapped { message, .. }) = stage.elected().await.tick(&soon()).await else { panic!("no trap") };
    assert!(message.contains("call stack exhausted"), "{message}");
}

#[tokio::test]
async fn memory_has_a_cap_with_a_name() {
    let stage = Stage::rogue(&[("tick", "grow")]);
    let Err(CallError::Limit(words)) = stage.elected().await.tick(&soon()).await else { panic!("no limit") };
    assert!(words.starts_with("memory: ") && words.contains("its limit is 64 MiB"), "{words}");
}

#[tokio::test]
async fn a_notice_wakes_a_guest_that_waits_for_it() {
    let stage = Stage::rogue(&[("tick", "attentive")]);
    let mut instance = stage.elected().await;
    let deadline = soon();
    let (ticked, _) = tokio::join!(instance.tick(&deadline), async { stage.notice.send(true) });
    assert!(ticked.is_ok(), "{ticked:?}");
}

#[tokio::test]
async fn resigning_rings_the_bell() {
    let stage = Stage::rogue(&[("tick", "resign")]);
    stage.elected().await.tick(&soon()).await.unwrap();
    tokio::time::timeout(AT_ONCE, stage.resign.notified()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_tick_ends_beside_two_spinners_on_one_worker() {
    let engine = Engine::new().unwrap();
    let (notice, resign) = (watch::Sender::new(false), Arc::new(Notify::new()));
    let stage = |settings: &[(&str, &str)]| {
        let image = engine.load(&rogue(), &spec(settings)).unwrap();
        Stage { image, notice: notice.clone(), resign: resign.clone() }
    };
    let spinners: Vec<_> = (0..2)
        .map(|_| {
            let stage = stage(&[("tick", "spin")]);
            tokio::spawn(async move {
                let mut instance = stage.elected().await;
                instance.tick(&in_ms(3_000)).await
            })
        })
        .collect();
    let worker = stage(&[]);
    let ticks = tokio::spawn(async move {
        let mut instance = worker.elected().await;
        for _ in 0..20 {
            instance.tick(&soon()).await.unwrap();
            tokio::task::yield_now().await;
        }
        clock::now()
    });
    let ticked_at = ticks.await.unwrap();
    for spinner in spinners {
        assert_eq!(spinner.await.unwrap(), Err(CallError::CutOff));
    }
    assert!(ticked_at < clock::now(), "the ticks waited for the spinners");
}

fn load_error(bytes: &[u8]) -> String {
    match Engine::new().unwrap().load(bytes, &spec(&[])) {
        Ok(_) => panic!("it loads"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_no_plugin_says_what_it_is() {
    assert!(load_error(b"").contains("not WebAssembly"));
    assert!(load_error(b"#!/bin/sh\n").contains("not WebAssembly"));
    assert!(
        load_error(b"\0asm\x01\0\0\0").contains("it exports nothing, but a plugin exports tenure:plugin/job@0.1.0")
    );
    assert!(load_error(&rogue()[..5_000]).contains("not a valid component"));
}

#[test]
fn no_bytes_panic() {
    let good = rogue();
    let engine = Engine::new().unwrap();
    let mut dice = 0x2545_f491_4f6c_dd1d_u64;
    let mut roll = |below: usize| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        usize::try_from(dice % below as u64).unwrap()
    };
    for _ in 0..60 {
        let mut bytes = good.clone();
        for _ in 0..4 {
            let at = roll(bytes.len());
            bytes[at] ^= 1 << roll(8);
        }
        bytes.truncate(bytes.len() - roll(2) * roll(good.len()));
        let _ = engine.load(&bytes, &spec(&[]));
    }
}

#[test]
fn settings_reach_the_plugin() {
    let settings = BTreeMap::from([("after_ms".to_owned(), "77".to_owned())]);
    let spec =
        PluginSpec { role: RoleName::new("test").unwrap(), settings, memory: 64 * MIB, grants: Grants::default() };
    let stage = Stage::new(&rogue(), &spec);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let next = runtime.block_on(async { stage.elected().await.tick(&soon()).await });
    assert_eq!(next, Ok(Next::After(Duration::from_millis(77))));
}
