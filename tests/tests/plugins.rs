//! Plugins that misbehave, in real hosts: each is stopped in time, and the role lives on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use system_tests::audit::{assert_margins, assert_one_at_a_time};
use system_tests::host::{Host, audits, config, role};
use system_tests::redis::RedisServer;
use system_tests::{holds_for, plugin, wait_for};
use tempfile::TempDir;

const ROLE: &str = "rogue";

/// A host with one rogue in it, and the end of everything that it needs.
struct Scene {
    redis: RedisServer,
    folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        Self { redis: RedisServer::start(), folder: TempDir::new().unwrap() }
    }

    fn host(&self, name: &str, more: &str, settings: &str) -> Host {
        let roles = format!("{}{more}", role(ROLE, &plugin("rogue"), settings));
        Host::start(self.folder.path(), name, &config(name, &self.redis.url(), "2s", &roles))
    }
}

fn check(hosts: &[&Host]) {
    let lines = audits(hosts);
    assert_one_at_a_time(&lines, ROLE, &[]);
    assert_margins(&lines);
}

/// Starts a host whose plugin does `settings`, waits until its first tick runs, and stops it.
fn stopped_while(settings: &str) -> (Scene, Host) {
    let scene = Scene::new();
    let mut host = scene.host("a", "", settings);
    host.wait_until_leading(ROLE);
    host.wait_for_log("\"count 1\"");
    host.stop();
    check(&[&host]);
    (scene, host)
}

#[test]
fn p1_a_spinning_tick() {
    stopped_while("tick = \"spin\"");
}

#[test]
fn p3_a_tick_that_sleeps_for_an_hour() {
    stopped_while("tick = \"sleep\"");
}

#[test]
fn e4_a_demoted_that_spins_is_cut_off_before_anybody_else_starts() {
    let scene = Scene::new();
    let mut a = scene.host("a", "", "demoted = \"spin\"");
    a.wait_until_leading(ROLE);
    let mut b = scene.host("b", "", "");
    b.wait_for_log("standing by");
    a.stop();
    b.wait_until_leading(ROLE);
    b.stop();
    check(&[&a, &b]);
    let stop = a.wait_for_event("plugin/stop", |_| true);
    assert_eq!(stop.text("outcome"), "error");
    assert!(stop.text("error").contains("cut off"), "{}", stop.json);
}

#[test]
fn e4_a_demoted_that_sleeps_is_cut_off() {
    let scene = Scene::new();
    let mut host = scene.host("a", "", "demoted = \"sleep\"");
    host.wait_until_leading(ROLE);
    host.stop();
    check(&[&host]);
    assert_eq!(host.wait_for_event("plugin/stop", |_| true).text("error"), "cut off at its deadline");
}

#[test]
fn a_tick_that_ignores_the_notice_is_cut_off_after_the_grace() {
    let (_scene, host) = stopped_while("tick = \"deaf\", ms = 60000");
    host.wait_for_log("cleaning up: Reason::Crashed");
}

#[test]
fn p6_p15_a_panic_in_a_tick_costs_an_instance_and_not_the_role() {
    let scene = Scene::new();
    let mut host = scene.host("a", "", "tick = \"panic\", from_tick = 3");
    host.wait_for_event("plugin/tick-failed", |_| true);
    let again = wait_for("a second start in the same term", || {
        let lines = host.audit();
        lines.iter().filter(|line| line.event() == "plugin/start").nth(1).cloned()
    });
    assert_eq!(again.term(), 1);
    host.stop();
    check(&[&host]);
    let failed = host.wait_for_event("plugin/tick-failed", |_| true);
    assert!(failed.text("error").contains("the rogue panics on purpose"), "{}", failed.json);
    let frames = host.log().into_iter().find(|line| line["message"] == "a tick failed").unwrap();
    assert!(frames["frames"].as_str().unwrap().contains("rogue"), "{frames}");
}

#[test]
fn p11_deep_recursion_is_a_failed_tick() {
    let scene = Scene::new();
    let mut host = scene.host("a", "", "tick = \"recurse\"");
    let failed = host.wait_for_event("plugin/tick-failed", |_| true);
    assert!(failed.text("error").contains("call stack exhausted"), "{}", failed.json);
    host.stop();
    check(&[&host]);
}

#[test]
fn a_trap_in_elected_gives_the_role_up_with_a_cool_down() {
    let scene = Scene::new();
    let mut a = scene.host("a", "", "elected = \"trap\"");
    let start = a.wait_for_event("plugin/start", |_| true);
    assert_eq!(start.text("outcome"), "error");
    a.wait_for_event("lease/release", |_| true);
    let mut b = scene.host("b", "", "");
    b.wait_until_leading(ROLE);
    a.stop();
    b.stop();
    check(&[&a, &b]);
}

#[test]
fn an_error_in_elected_calls_demoted_on_the_same_instance() {
    let scene = Scene::new();
    let mut host = scene.host("a", "", "elected = \"error\"");
    host.wait_for_event("lease/release", |_| true);
    host.stop();
    host.wait_for_log("cleaning up: Reason::Failed");
    check(&[&host]);
}

#[test]
fn e17_a_plugin_that_keeps_failing_gives_the_role_to_another_host() {
    let scene = Scene::new();
    let mut a = scene.host("a", "", "tick = \"error\"");
    a.wait_until_leading(ROLE);
    let mut b = scene.host("b", "", "");
    b.wait_until_leading(ROLE);
    a.wait_for_log("leaving the role to others");
    a.stop();
    b.stop();
    check(&[&a, &b]);
    let failures = a.audit().iter().filter(|line| line.event() == "plugin/tick-failed").count();
    assert_eq!(failures, 5);
}

#[test]
fn e17_a_plugin_that_hangs_gives_the_role_up() {
    let scene = Scene::new();
    let roles = format!("{}tick_timeout = \"100ms\"\n", role(ROLE, &plugin("rogue"), "tick = \"spin\""));
    let mut a = Host::start(scene.folder.path(), "a", &config("a", &scene.redis.url(), "2s", &roles));
    a.wait_until_leading(ROLE);
    let mut b = scene.host("b", "", "");
    b.wait_until_leading(ROLE);
    a.stop();
    b.stop();
    check(&[&a, &b]);
}

#[test]
fn e18_as_many_spinners_as_workers_delay_no_renewal() {
    let scene = Scene::new();
    let workers = std::thread::available_parallelism().unwrap().get();
    let spinners: String =
        (0..=workers).map(|number| role(&format!("s{number}"), &plugin("rogue"), "tick = \"spin\"")).collect();
    let mut host = scene.host("a", &spinners, "");
    host.wait_until_leading(ROLE);
    host.wait_until_leading(&format!("s{workers}"));
    holds_for(Duration::from_secs(4), "every first term", || {
        host.audit().iter().all(|line| line.event() != "lease/lost")
    });
    host.stop();
    check(&[&host]);
}

#[test]
fn p5_a_start_function_that_loops_ends_within_its_limit() {
    let scene = Scene::new();
    let roles = format!("{}tick_timeout = \"200ms\"\n", role(ROLE, &plugin("endless_start"), ""));
    let mut host = Host::start(scene.folder.path(), "a", &config("a", &scene.redis.url(), "2s", &roles));
    let start = host.wait_for_event("plugin/start", |_| true);
    assert!(start.text("error").contains("cut off"), "{}", start.json);
    host.wait_for_event("lease/release", |_| true);
    host.stop();
    check(&[&host]);
}

#[test]
fn resigning_gives_the_role_to_another_host() {
    let scene = Scene::new();
    let mut a = scene.host("a", "", "tick = \"resign\", from_tick = 3");
    a.wait_until_leading(ROLE);
    let mut b = scene.host("b", "", "");
    b.wait_until_leading(ROLE);
    a.stop();
    b.stop();
    check(&[&a, &b]);
    assert_eq!(a.wait_for_event("plugin/stop", |_| true).text("reason"), "resigned");
}

#[test]
fn a_second_signal_exits_without_waiting() {
    let scene = Scene::new();
    let roles = format!(
        "{}stop = {{ within = \"15s\" }}\nlease = {{ ttl = \"60s\" }}\n",
        role(ROLE, &plugin("rogue"), "demoted = \"sleep\"")
    );
    let mut host = Host::start(scene.folder.path(), "a", &config("a", &scene.redis.url(), "60s", &roles));
    host.wait_until_leading(ROLE);
    host.signal(Signal::TERM);
    host.wait_for_log("demoted with");
    host.signal(Signal::TERM);
    assert_eq!(host.wait().code(), Some(1), "{}", host.log_text());
    assert!(host.audit().iter().all(|line| line.event() != "plugin/stop"), "it did not wait for the stop");
}

#[test]
fn done_keeps_the_lease_and_ticks_no_more() {
    let scene = Scene::new();
    let mut host = scene.host("a", "", "tick = \"done\"");
    host.wait_for_log("\"count 1\"");
    holds_for(Duration::from_secs(3), "one tick", || !host.log_text().contains("\"count 2\""));
    host.stop();
    assert_eq!(host.wait_for_event("plugin/stop", |_| true).term(), 1);
    check(&[&host]);
}

#[test]
fn every_sets_the_pace() {
    let scene = Scene::new();
    let roles = format!("{}every = \"50ms\"\n", role(ROLE, &plugin("rogue"), "after_ms = 3600000"));
    let mut host = Host::start(scene.folder.path(), "a", &config("a", &scene.redis.url(), "2s", &roles));
    host.wait_for_log("\"count 5\"");
    host.stop();
    check(&[&host]);
}

#[test]
fn without_a_store_the_role_is_kept_through_failures() {
    let folder = TempDir::new().unwrap();
    let toml = format!("[instance]\ndata_dir = \"data\"\n{}", role(ROLE, &plugin("rogue"), "elected = \"error\""));
    let mut host = Host::start(folder.path(), "a", &toml);
    wait_for("a third start", || {
        (host.audit().iter().filter(|line| line.event() == "plugin/start").count() >= 3).then_some(())
    });
    host.stop();
    assert!(host.audit().iter().all(|line| line.term() == 1), "one term, whatever fails");
}

#[test]
fn two_hosts_share_a_sqlite_file() {
    let folder = TempDir::new().unwrap();
    let url = format!("sqlite:{}", folder.path().join("leases.sqlite").display());
    let toml = |name| config(name, &url, "2s", &role(ROLE, &plugin("rogue"), ""));
    let mut a = Host::start(folder.path(), "a", &toml("a"));
    a.wait_until_leading(ROLE);
    let mut b = Host::start(folder.path(), "b", &toml("b"));
    b.wait_for_log("standing by");
    a.stop();
    b.wait_until_leading(ROLE);
    let id = b.id();
    let at = b.kill();
    let mut c = Host::start(folder.path(), "c", &toml("c"));
    c.wait_until_leading(ROLE);
    c.stop();
    let lines = audits(&[&a, &b, &c]);
    assert_one_at_a_time(&lines, ROLE, &[(id, at)]);
    assert_margins(&lines);
    assert!(fs::metadata(folder.path().join("leases.sqlite")).is_ok());
}
