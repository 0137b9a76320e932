//! What plugins do that do real work: state, log lines, loading, many ticks.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use system_tests::host::{Host, config};
use system_tests::redis::RedisServer;
use system_tests::{plugin, target, wait_for};
use tempfile::TempDir;
use tenure::config::RoleName;
use tenure::gate::Gate;
use tenure::plugin::engine::Engine;
use tenure::state::{Fence, FencedState, StateOp};
use tenure::store::redis::RedisStore;
use tenure::store::{ClaimAsk, HolderInfo, Store};
use tenure_core::{ClaimId, Instant as BootInstant};
use tokio::runtime::Runtime;
use uuid::Uuid;

use super::{ROLES, Sample, cpu, image, micros, row, seat, soon, spec};

/// Rounds of a comparison, taken in turns; the median of each side counts.
const ROUNDS: usize = 11;

/// One write of 100 bytes: ours through gate and fence, a bare HSET, and a bare PING, which is a round trip.
pub(crate) fn writes(plugins: &Runtime) -> [Duration; 3] {
    const WRITES: u32 = 1_000;
    let redis = RedisServer::start();
    plugins
        .block_on(plugins.spawn(async move {
            let store = RedisStore::new(&redis.url(), "tenure").unwrap();
            let (role, claim) = (RoleName::new("bench").unwrap(), ClaimId(Uuid::new_v4()));
            let holder = HolderInfo { instance: "bench".to_owned(), admin: String::new(), digest: String::new() };
            let ask = ClaimAsk { role: role.clone(), claim, ttl: Duration::from_secs(600), seen_term: 0, holder };
            assert!(store.claim(&[ask], Duration::from_secs(10)).await[0].is_ok());
            let gate = Arc::new(Gate::new(1, BootInstant::NEVER));
            let state = FencedState::new(store.state(), Fence { role, claim, term: 1 }, gate, Duration::from_secs(10));
            let client = redis::Client::open(redis.url()).unwrap();
            let mut bare = client.get_multiplexed_async_connection().await.unwrap();
            let mut all = [Vec::new(), Vec::new(), Vec::new()];
            for _ in 0..ROUNDS {
                let began = Instant::now();
                for at in 0..WRITES {
                    let entry = (format!("key{}", at % 100), vec![b'x'; 100]);
                    state.run(&StateOp::Set([entry].into())).await.unwrap();
                }
                all[0].push(began.elapsed() / WRITES);
                let began = Instant::now();
                for at in 0..WRITES {
                    let mut write = redis::cmd("HSET");
                    write.arg("bare").arg(format!("key{}", at % 100)).arg(vec![b'x'; 100]);
                    write.exec_async(&mut bare).await.unwrap();
                }
                all[1].push(began.elapsed() / WRITES);
                let began = Instant::now();
                for _ in 0..WRITES {
                    redis::cmd("PING").exec_async(&mut bare).await.unwrap();
                }
                all[2].push(began.elapsed() / WRITES);
            }
            all.map(|mut rounds| {
                rounds.sort();
                rounds[ROUNDS / 2]
            })
        }))
        .unwrap()
}

/// A tick that logs one line. The log goes where it goes without a subscriber: the line is made and counted.
pub(crate) fn logging_tick(engine: &Engine, plugins: &Runtime) -> Duration {
    const TICKS: u32 = 900;
    let image = image(engine, "heartbeat", &[("every_ms", "0")]);
    // Fewer than are allowed in a second.
    Sample::take(5, || {
        plugins.block_on(async {
            let mut instance = image.start(seat(), &soon()).await.unwrap();
            instance.elected(None, &soon()).await.unwrap();
            let began = Instant::now();
            for _ in 0..TICKS {
                instance.tick(&soon()).await.unwrap();
            }
            began.elapsed() / TICKS
        })
    })
    .median()
}

/// The largest plugin there is: what it takes to compile it, and to load it from the cache. Its name, too.
pub(crate) fn loading() -> (String, Sample, Sample) {
    let python = target().join("../examples/python/retention.wasm");
    let file = if python.exists() { python } else { plugin("courier") };
    let bytes = fs::read(&file).unwrap();
    let folder = TempDir::new().unwrap();
    let mut spec = spec(&[]);
    spec.grants.keyvalue = true;
    spec.grants.http =
        vec!["https://*"].into_iter().map(|origin| tenure::grants::Origin::parse(origin).unwrap()).collect();
    let load = |engine: Engine| {
        let began = Instant::now();
        engine.load(&bytes, &spec).unwrap();
        began.elapsed()
    };
    let compile = Sample::take(3, || load(Engine::new().unwrap()));
    load(Engine::new().unwrap().keeping_in(folder.path()));
    let cached = Sample::take(9, || load(Engine::new().unwrap().keeping_in(folder.path())));
    (file.file_name().unwrap().to_string_lossy().into_owned(), compile, cached)
}

/// 1,000 jobs that tick every second: the CPU of their host, and how late the worst tick is beside two spinners.
pub(crate) fn many_ticks() {
    let redis = RedisServer::start();
    let punctual = plugin("punctual");
    let jobs: String = (0..ROLES)
        .map(|number| format!("[role.r{number}]\nplugin = \"{}\"\nevery = \"1s\"\n", punctual.display()))
        .collect();
    let spinner = |name: &str| {
        let plugin = plugin("rogue");
        format!(
            "[role.{name}]\nplugin = \"{}\"\ntick_timeout = \"1h\"\nsettings = {{ tick = \"spin\" }}\n",
            plugin.display()
        )
    };
    let spinners = spinner("spinner1") + &spinner("spinner2");
    for (beside, roles) in [("alone", jobs.clone()), ("beside two spinners", jobs + &spinners)] {
        let folder = TempDir::new().unwrap();
        let mut host = Host::start(folder.path(), "host", &config("host", &redis.url(), "30s", &roles));
        let led = || host.audit().iter().filter(|line| line.event() == "plugin/start").count();
        wait_for("the host to lead all roles", || (led() >= ROLES).then_some(()));
        let (before, began) = (cpu(host.pid()), Instant::now());
        std::thread::sleep(Duration::from_secs(15));
        let share = (cpu(host.pid()) - before).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
        host.signal(Signal::TERM);
        host.wait();
        let log = host.log_text();
        let late = log.split("worst lateness ").skip(1).filter_map(|rest| rest.split(' ').next()?.parse::<i64>().ok());
        let worst = micros(late.max().unwrap());
        row(
            "k",
            &format!("1,000 jobs ticking every second, {beside}"),
            &format!("{share:.1} % of a core, worst tick {worst:.2?} late"),
            "-",
        );
    }
}
