//! `make bench`: each figure against a bare loop over wasmtime or Redis in the same run. Absolute times say little on a
//! machine that others use too; the ratios are what the goals are about.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a benchmark fails by panicking"
)]

mod bare;
mod effects;
mod etcd;

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use system_tests::host::{Host, config, role};
use system_tests::redis::RedisServer;
use system_tests::{plugin, wait_for};
use tempfile::TempDir;
use tenure::clock;
use tenure::config::RoleName;
use tenure::gate::Gate;
use tenure::grants::Grants;
use tenure::plugin::engine::Engine;
use tenure::plugin::{Deadline, Image, PluginSpec, Seat};
use tenure::store::redis::RedisStore;
use tenure::store::{ClaimAsk, HolderInfo, RenewAsk, Store};
use tenure_core::{ClaimId, Instant as BootInstant, TimingInput};
use tokio::sync::{Notify, watch};
use uuid::Uuid;

/// Some measurements of one thing.
struct Sample(Vec<Duration>);

impl Sample {
    fn take(times: usize, mut one: impl FnMut() -> Duration) -> Self {
        let mut all: Vec<_> = (0..times).map(|_| one()).collect();
        all.sort();
        Self(all)
    }

    fn median(&self) -> Duration {
        self.0[self.0.len() / 2]
    }

    fn worst(&self) -> Duration {
        *self.0.last().unwrap()
    }
}

fn row(letter: &str, what: &str, figure: &str, goal: &str) {
    println!("({letter}) {what:<58} {figure:<44} goal: {goal}");
}

fn times(letter: &str, what: &str, sample: &Sample, goal: &str) {
    let figure = format!("median {:.2?}, worst {:.2?} of {}", sample.median(), sample.worst(), sample.0.len());
    row(letter, what, &figure, goal);
}

fn micros(value: i64) -> Duration {
    Duration::from_micros(u64::try_from(value).unwrap_or(0))
}

fn quick(name: &str, url: &str, ttl: &str) -> String {
    config(name, url, ttl, &role("bench", &plugin("quick"), ""))
}

/// (a) SIGTERM of the leader to the next leader's `elected` having returned, less what the plugin's own stop took.
fn hand_over() -> Sample {
    let (redis, folder) = (RedisServer::start(), TempDir::new().unwrap());
    let mut leader = Host::start(folder.path(), "0", &quick("0", &redis.url(), "30s"));
    leader.wait_until_leading("bench");
    let mut number = 0;
    Sample::take(25, || {
        number += 1;
        let next = Host::start(folder.path(), &number.to_string(), &quick("next", &redis.url(), "30s"));
        next.wait_for_log("standing by");
        let asked = jiff::Timestamp::now().as_microsecond();
        leader.signal(Signal::TERM);
        let started = next.wait_until_leading("bench").ts;
        let own = leader.wait_for_event("plugin/stop", |_| true).json["elapsed_ms"].as_f64().unwrap();
        leader.wait();
        leader = next;
        micros(started - asked).saturating_sub(Duration::from_secs_f64(own / 1000.0))
    })
}

/// (b) The end of a killed leader's lease, by the store's clock, to the next leader's `elected` having returned.
fn take_over() -> Sample {
    let (redis, folder) = (RedisServer::start(), TempDir::new().unwrap());
    let mut leader = Host::start(folder.path(), "0", &quick("0", &redis.url(), "1s"));
    leader.wait_until_leading("bench");
    let mut number = 0;
    Sample::take(15, || {
        number += 1;
        let next = Host::start(folder.path(), &number.to_string(), &quick("next", &redis.url(), "1s"));
        next.wait_for_log("standing by");
        leader.kill();
        // A renewal that was under way may still move the end.
        std::thread::sleep(Duration::from_millis(50));
        let ends: i64 = redis.run(&["HGET", "tenure:{bench}:holder", "until"]);
        let started = next.wait_until_leading("bench").ts;
        leader = next;
        micros(started - ends * 1000)
    })
}

/// Roles in a batch of renewals.
const ROLES: usize = 1_000;
/// How long each kind of renewal is measured.
const RENEWING: Duration = Duration::from_secs(4);

/// (c) Renewals of 1,000 roles a second: ours, those of a bare pipeline of the same script, and those of a bare pipeline of
/// a script that only compares and expires.
fn renewals() -> [f64; 3] {
    const WITHIN: Duration = Duration::from_secs(10);
    let redis = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (ttl, mut claims, mut renewals) = (Duration::from_secs(60), Vec::new(), Vec::new());
    for number in 0..ROLES {
        let (role, claim) = (RoleName::new(&format!("role-{number}")).unwrap(), ClaimId(Uuid::new_v4()));
        let holder = HolderInfo { instance: "bench".to_owned(), admin: String::new(), digest: String::new() };
        claims.push(ClaimAsk { role: role.clone(), claim, ttl, seen_term: 0, holder });
        renewals.push(RenewAsk { role, claim, ttl });
    }
    let ours = runtime.block_on(async {
        let store = RedisStore::new(&redis.url(), "tenure").unwrap();
        assert!(store.claim(&claims, WITHIN).await.iter().all(Result::is_ok));
        let mut batches = 0_u32;
        let began = Instant::now();
        while began.elapsed() < RENEWING {
            assert!(store.renew(&renewals, WITHIN).await.iter().all(Result::is_ok));
            batches += 1;
        }
        f64::from(batches) * ROLES as f64 / began.elapsed().as_secs_f64()
    });
    let same = include_str!("../../../host/src/store/redis/renew.lua");
    let least =
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";
    [ours, bare_renewals(&redis, &renewals, same), bare_renewals(&redis, &renewals, least)]
}

/// Renewals a second of a bare pipeline that is made once.
fn bare_renewals(redis: &RedisServer, renewals: &[RenewAsk], script: &str) -> f64 {
    let mut connection = redis.connect();
    let digest: String = redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut connection).unwrap();
    let mut pipeline = redis::pipe();
    for RenewAsk { role, claim, .. } in renewals {
        let keys = ["lease", "holder"].map(|what| format!("tenure:{{{role}}}:{what}"));
        pipeline.cmd("EVALSHA").arg(&digest).arg(2).arg(&keys).arg(claim.to_string()).arg(60_000);
    }
    let mut batches = 0_u32;
    let began = Instant::now();
    while began.elapsed() < RENEWING {
        let answers: Vec<u8> = pipeline.query(&mut connection).unwrap();
        assert!(answers.iter().all(|answer| *answer == 1));
        batches += 1;
    }
    f64::from(batches) * ROLES as f64 / began.elapsed().as_secs_f64()
}

fn spec(settings: &[(&str, &str)]) -> PluginSpec {
    let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    PluginSpec { role: RoleName::new("bench").unwrap(), settings, memory: 64 << 20, grants: Grants::default() }
}

fn image(engine: &Engine, name: &str, settings: &[(&str, &str)]) -> Arc<dyn Image> {
    engine.load(&fs::read(plugin(name)).unwrap(), &spec(settings)).unwrap()
}

fn seat() -> Seat {
    let gate = Arc::new(Gate::new(1, BootInstant::NEVER));
    Seat {
        instance: "bench".to_owned(),
        gate,
        notice: watch::Sender::new(false).subscribe(),
        resign: Arc::new(Notify::new()),
        state: None,
        slot: Arc::default(),
    }
}

fn soon() -> Deadline {
    let now = clock::now();
    Deadline::new(now, now.plus(Duration::from_secs(30)))
}

/// (d) A won claim to `elected` having returned, as the role's task does it: from the lease loop to the plugins' runtime.
fn elections(engine: &Engine, plugins: &tokio::runtime::Runtime) -> Sample {
    let image = image(engine, "quick", &[]);
    let leases = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    Sample::take(500, || {
        leases.block_on(async {
            let began = Instant::now();
            let image = image.clone();
            let work = plugins.spawn(async move {
                let mut instance = image.start(seat(), &soon()).await.unwrap();
                instance.elected(None, &soon()).await.unwrap();
                (Instant::now(), instance)
            });
            let (ended, _instance) = work.await.unwrap();
            ended - began
        })
    })
}

/// (e) How long after its deadline a spinning tick ends.
fn spinners(engine: &Engine, plugins: &tokio::runtime::Runtime, deed: &str) -> Sample {
    let image = image(engine, "rogue", &[("tick", deed)]);
    Sample::take(100, || {
        let image = image.clone();
        plugins
            .block_on(plugins.spawn(async move {
                let mut instance = image.start(seat(), &soon()).await.unwrap();
                instance.elected(None, &soon()).await.unwrap();
                let deadline = clock::now().plus(Duration::from_millis(20));
                instance.tick(&Deadline::new(clock::now(), deadline)).await.unwrap_err();
                clock::now().since(deadline)
            }))
            .unwrap()
    })
}

/// (f) One tick, ours and bare: in turns, so that whatever else the machine does hits both, and the median of each.
fn ticks(engine: &Engine, bare: &bare::Bare, plugins: &tokio::runtime::Runtime) -> [Duration; 2] {
    const TICKS: u32 = 20_000;
    const ROUNDS: usize = 21;
    let image = image(engine, "quick", &[]);
    plugins.block_on(async {
        let mut instance = image.start(seat(), &soon()).await.unwrap();
        instance.elected(None, &soon()).await.unwrap();
        let mut bare = bare.elected().await;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let began = Instant::now();
            for _ in 0..TICKS {
                instance.tick(&soon()).await.unwrap();
            }
            ours.push(began.elapsed() / TICKS);
            let began = Instant::now();
            for _ in 0..TICKS {
                bare.tick().await;
            }
            theirs.push(began.elapsed() / TICKS);
        }
        [ours, theirs].map(|mut all| {
            all.sort();
            all[ROUNDS / 2]
        })
    })
}

fn look_at_the_clock() -> Duration {
    const LOOKS: u32 = 100_000;
    let began = Instant::now();
    for _ in 0..LOOKS {
        std::hint::black_box(clock::now());
    }
    began.elapsed() / LOOKS
}

/// (g) Memory, and CPU at rest, of a host with 1,000 roles, leading and standing by.
fn at_rest() {
    let (redis, folder) = (RedisServer::start(), TempDir::new().unwrap());
    let many = || -> String { (0..ROLES).map(|number| role(&format!("r{number}"), &plugin("quick"), "")).collect() };
    let leading_one =
        Host::start(folder.path(), "one", &config("one", &redis.url(), "30s", &role("r", &plugin("quick"), "")));
    leading_one.wait_until_leading("r");
    let alone = resident(leading_one.pid());
    let leader = Host::start(folder.path(), "leader", &config("leader", &redis.url(), "30s", &many()));
    let led = || leader.audit().iter().filter(|line| line.event() == "plugin/start").count();
    wait_for("the leader to lead all roles", || (led() == ROLES).then_some(()));
    let standby = Host::start(folder.path(), "standby", &config("standby", &redis.url(), "30s", &many()));
    let following = || standby.log_text().matches("standing by").count();
    wait_for("the stand-by to follow all roles", || (following() == ROLES).then_some(()));
    let each = |host: &Host| (resident(host.pid()).saturating_sub(alone)) as f64 / ROLES as f64 / 1024.0;
    row("g", "memory of a leading role", &format!("{:.1} KiB", each(&leader)), "-");
    row("g", "memory of a stand-by role", &format!("{:.1} KiB", each(&standby)), "-");
    for (what, host) in [("leading", &leader), ("standing by", &standby)] {
        let (before, began) = (cpu(host.pid()), Instant::now());
        std::thread::sleep(Duration::from_secs(20));
        let share = (cpu(host.pid()) - before).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
        row("g", &format!("CPU of a host with 1,000 roles at rest, {what}"), &format!("{share:.2} % of a core"), "-");
    }
}

/// Resident memory in bytes.
fn resident(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// CPU time used so far. `/proc` counts it in hundredths of a second.
fn cpu(pid: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

fn of_memory(mib: u64) -> TimingInput {
    TimingInput { memory: mib << 20, ..TimingInput::default() }
}

fn machine() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("make bench, on{model}, {cores} cores, load {}", load.split(' ').next().unwrap_or("?"))
        .replace("on\t: ", "on ")
}

fn main() {
    println!("# {}", machine());
    let theirs = etcd::hand_over(25).map(|sample| sample.median());
    times("a", "SIGTERM of a leader to the next elected, less its stop", &hand_over(), &etcd::goal(theirs));
    times("b", "lease run out after kill -9 to the next elected", &take_over(), "median 5 ms");
    let [ours, same, least] = renewals();
    let figure = format!("{:.2} ({ours:.0} against {same:.0} a second)", ours / same);
    row("c", "renewals of 1,000 roles against a bare pipeline of EVALSHA", &figure, "0.5");
    let figure = format!("{:.2} ({ours:.0} against {least:.0} a second)", ours / least);
    row("c", "and of a script that only compares and expires", &figure, "-");

    let engine = Engine::new().unwrap();
    let plugins = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let quick = fs::read(plugin("quick")).unwrap();
    let bare = bare::Bare::new(&quick);
    let bare_elections = Sample::take(500, || plugins.block_on(bare.elect()));
    let elections = elections(&engine, &plugins);
    let ratio = elections.median().as_secs_f64() / bare_elections.median().as_secs_f64();
    let [fenced, hset, ping] = effects::writes(&plugins);
    let most = bare_elections.median().mul_f64(1.3) + ping;
    let figure = format!("{ratio:.2} ({:.1?} against {:.1?})", elections.median(), bare_elections.median());
    let goal = format!("1.3, and a round trip of {ping:.1?}: {most:.1?}");
    row("d", "won claim to elected, against a bare instantiate and call", &figure, &goal);
    times("e", "a spinner's end past its deadline", &spinners(&engine, &plugins, "spin"), "worst 2 ms");
    let margin =
        format!("worst {:?}, its kill margin", tenure_core::Timing::new(&of_memory(64)).unwrap().kill_margin());
    times("e", "the end of one that fills 60 MiB over and over", &spinners(&engine, &plugins, "fill"), &margin);
    let [ours, bare] = ticks(&engine, &bare, &plugins);
    let figure = format!("{:.2} ({ours:.2?} against {bare:.2?})", ours.as_secs_f64() / bare.as_secs_f64());
    row("f", "a tick against the bare call", &figure, "1.2");
    row(
        "f",
        "one look at the clock, which each tick needs for its deadline",
        &format!("{:.2?}", look_at_the_clock()),
        "-",
    );
    at_rest();

    let figure = format!("{:.2} ({fenced:.1?} against {hset:.1?})", fenced.as_secs_f64() / hset.as_secs_f64());
    row("h", "a fenced write against a bare HSET", &figure, "2.0");
    let figure = format!("{:.2?} (against {ours:.2?} without)", effects::logging_tick(&engine, &plugins));
    row("i", "a tick that logs one line", &figure, "-");
    let (name, compile, cached) = effects::loading();
    let ratio = cached.median().as_secs_f64() / compile.median().as_secs_f64();
    let figure = format!("{ratio:.3} ({:.2?} against {:.2?})", cached.median(), compile.median());
    row("j", &format!("{name} from the cache against compiling it"), &figure, "0.02");
    effects::many_ticks();
}
