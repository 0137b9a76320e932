//! Pull any plug: hosts, stores and networks that fail, and the audit files of all hosts as the judge.
//!
//! Cases by their numbers in CASES.md.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use system_tests::audit::{assert_margins, assert_one_at_a_time, spans};
use system_tests::disk::SmallDisk;
use system_tests::host::{Host, audits, config, role};
use system_tests::proxy::Proxy;
use system_tests::redis::RedisServer;
use system_tests::{holds_for, plugin, wait_for};
use tempfile::TempDir;

const ROLE: &str = "counter";

fn counter(name: &str, url: &str, ttl: &str) -> String {
    config(name, url, ttl, &role(ROLE, &plugin("rogue"), "after_ms = 5"))
}

/// A leader and a stand-by on one store, each with a URL of its own.
fn pair(folder: &Path, urls: [&str; 2], ttl: &str) -> [Host; 2] {
    let leader = Host::start(folder, "a", &counter("a", urls[0], ttl));
    leader.wait_until_leading(ROLE);
    let standby = Host::start(folder, "b", &counter("b", urls[1], ttl));
    standby.wait_for_log("standing by");
    [leader, standby]
}

fn check(hosts: &[&Host], killed: &[(String, i64)]) {
    assert_one_at_a_time(&audits(hosts), ROLE, killed);
}

/// The counts that a host's plugin has written to the log.
fn counts(host: &Host) -> Vec<u64> {
    host.log_text().lines().filter_map(|line| line.split("\"count ").nth(1)?.split('"').next()?.parse().ok()).collect()
}

#[test]
fn sigterm_hands_over() {
    let (redis, folder) = (RedisServer::start(), TempDir::new().unwrap());
    let [mut a, mut b] = pair(folder.path(), [&redis.url(), &redis.url()], "10s");
    wait_for("some counts", || (counts(&a).len() > 10).then_some(()));
    a.stop();
    // Long before the lease would have run out.
    b.wait_until_leading(ROLE);
    let handed_over = *counts(&a).last().unwrap();
    let taken_over = wait_for("a count of the new leader", || counts(&b).first().copied());
    assert_eq!(taken_over, handed_over + 1, "what `demoted` left reached the next `elected`");
    b.stop();
    check(&[&a, &b], &[]);
    assert_margins(&audits(&[&a, &b]));
    assert_eq!(redis.run::<u64>(&["EXISTS", "tenure:{counter}:lease"]), 0);
}

#[test]
fn e19_kill_9_is_followed_by_a_take_over_when_the_lease_runs_out() {
    let (redis, folder) = (RedisServer::start(), TempDir::new().unwrap());
    let [mut a, mut b] = pair(folder.path(), [&redis.url(), &redis.url()], "1s");
    let id = a.id();
    let at = a.kill();
    let began = b.wait_until_leading(ROLE).ts;
    assert!(began - at < 2_000_000, "{} µs after the kill", began - at);
    b.stop();
    check(&[&a, &b], &[(id, at)]);
    assert_margins(&b.audit());
}

#[test]
fn a_leader_that_was_paused_past_its_lease_does_nothing_any_more() {
    let (redis, folder) = (RedisServer::start(), TempDir::new().unwrap());
    let [mut a, mut b] = pair(folder.path(), [&redis.url(), &redis.url()], "1s");
    a.signal(Signal::STOP);
    b.wait_until_leading(ROLE);
    let before = counts(&a).len();
    a.signal(Signal::CONT);
    let stop = a.wait_for_event("plugin/stop", |_| true);
    assert!(stop.margin_ms() < 0.0, "a pause past the trust is recorded as what it is: {}", stop.json);
    // The tick that the pause caught may end; no further one begins.
    assert!(counts(&a).len() <= before + 1, "{} ticks after the pause", counts(&a).len() - before);
    a.wait_for_log("standing by");
    a.stop();
    b.stop();
    check(&[&a, &b], &[]);
    assert_margins(&b.audit());
}

#[test]
fn e2_a_black_holed_store_stops_the_plugin_before_trust_ends() {
    let (redis, folder) = (RedisServer::start(), TempDir::new().unwrap());
    let proxy = Proxy::to(redis.port());
    let [mut a, mut b] = pair(folder.path(), [&proxy.url(), &redis.url()], "1s");
    proxy.black_hole();
    let stop = a.wait_for_event("plugin/stop", |_| true);
    assert_eq!(stop.text("reason"), "unreachable");
    b.wait_until_leading(ROLE);
    proxy.heal();
    a.wait_for_log("standing by");
    a.stop();
    b.stop();
    check(&[&a, &b], &[]);
    assert_margins(&audits(&[&a, &b]));
    assert!(a.log_text().contains("no answer within"), "the cause is in the log");
}

#[test]
fn e3_client_pause_stops_the_plugin_in_time_and_somebody_leads_after_it() {
    let (redis, folder) = (RedisServer::start(), TempDir::new().unwrap());
    let [mut a, mut b] = pair(folder.path(), [&redis.url(), &redis.url()], "1s");
    redis.run::<String>(&["CLIENT", "PAUSE", "3000", "ALL"]);
    a.wait_for_event("plugin/stop", |line| line.text("reason") == "unreachable");
    wait_for("somebody to lead after the pause", || {
        let lines = audits(&[&a, &b]);
        (spans(&lines, ROLE).iter().filter(|span| span.ended.is_none()).count() == 1).then_some(())
    });
    a.stop();
    b.stop();
    check(&[&a, &b], &[]);
    assert_margins(&audits(&[&a, &b]));
}

#[test]
fn e5_a_store_that_was_away_for_longer_than_a_ttl_is_led_again() {
    let (redis, folder) = (RedisServer::start(), TempDir::new().unwrap());
    let proxy = Proxy::to(redis.port());
    let mut a = Host::start(folder.path(), "a", &counter("a", &proxy.url(), "1s"));
    a.wait_until_leading(ROLE);
    proxy.black_hole();
    a.wait_for_event("lease/lost", |_| true);
    holds_for(Duration::from_millis(1_500), "no leader while the store is away", || {
        a.audit().iter().filter(|line| line.event() == "lease/acquire").count() == 1
    });
    proxy.heal();
    a.wait_for_event("plugin/start", |line| line.term() > 1);
    a.stop();
    check(&[&a], &[]);
}

#[test]
fn e14_script_flush_changes_nothing() {
    let (redis, folder) = (RedisServer::start(), TempDir::new().unwrap());
    let [mut a, mut b] = pair(folder.path(), [&redis.url(), &redis.url()], "1s");
    holds_for(Duration::from_secs(3), "the first term", || {
        redis.run::<String>(&["SCRIPT", "FLUSH"]);
        a.audit().iter().all(|line| line.event() != "lease/lost")
    });
    redis.run::<String>(&["SCRIPT", "FLUSH"]);
    a.stop();
    b.wait_until_leading(ROLE);
    redis.run::<String>(&["SCRIPT", "FLUSH"]);
    b.stop();
    check(&[&a, &b], &[]);
    assert_margins(&audits(&[&a, &b]));
}

#[test]
fn e16_a_store_that_comes_back_empty_while_the_leader_is_cut_off() {
    let (mut redis, folder) = (RedisServer::start(), TempDir::new().unwrap());
    let proxy = Proxy::to(redis.port());
    let [mut a, mut b] = pair(folder.path(), [&proxy.url(), &redis.url()], "2s");
    // The first term is 1: then an empty store's first term would look like a higher one.
    proxy.black_hole();
    redis.restart_empty();
    b.wait_until_leading(ROLE);
    proxy.heal();
    a.wait_for_event("plugin/stop", |_| true);
    b.wait_for_log("the store lost data");
    a.stop();
    b.stop();
    check(&[&a, &b], &[]);
    assert_margins(&audits(&[&a, &b]));
    let terms: Vec<u64> = spans(&audits(&[&a, &b]), ROLE).iter().map(|span| span.term).collect();
    assert_eq!(terms, [1, 2], "terms rise across the loss");
}

#[test]
fn e16_a_lease_key_that_is_deleted_by_hand_is_waited_out() {
    let (redis, folder) = (RedisServer::start(), TempDir::new().unwrap());
    let proxy = Proxy::to(redis.port());
    let [mut a, mut b] = pair(folder.path(), [&proxy.url(), &redis.url()], "2s");
    proxy.black_hole();
    assert_eq!(redis.run::<u64>(&["DEL", "tenure:{counter}:lease"]), 1);
    b.wait_for_log("the lease key is gone");
    b.wait_until_leading(ROLE);
    proxy.heal();
    a.stop();
    b.stop();
    check(&[&a, &b], &[]);
    assert_margins(&audits(&[&a, &b]));
}

#[test]
fn e16_a_replica_that_missed_the_last_claim_is_promoted() {
    let (primary, folder) = (RedisServer::start(), TempDir::new().unwrap());
    let replica = RedisServer::with(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    let [to_b, to_c] = [Proxy::to(primary.port()), Proxy::to(primary.port())];
    let [mut a, mut b] = pair(folder.path(), [&primary.url(), &to_b.url()], "2s");
    wait_for("the replica to have the first term", || {
        let term: Option<u64> = redis::cmd("GET").arg("tenure:{counter}:term").query(&mut replica.connect()).ok()?;
        (term? == 1).then_some(())
    });
    replica.run::<String>(&["REPLICAOF", "NO", "ONE"]);
    // The second term is known to the old primary and to the stand-by, and not to the new primary.
    a.stop();
    b.wait_for_event("plugin/start", |line| line.term() == 2);
    let mut c = Host::start(folder.path(), "c", &counter("c", &to_c.url(), "2s"));
    c.wait_for_log("standing by");
    to_b.black_hole();
    to_c.point_to(replica.port());
    c.wait_for_event("plugin/start", |line| line.term() == 3);
    to_b.heal();
    b.stop();
    c.stop();
    check(&[&a, &b, &c], &[]);
    assert_margins(&audits(&[&a, &b, &c]));
}

#[test]
fn e6_a_signal_at_any_step_of_a_claim_starts_nothing_and_leaves_no_lease() {
    let (redis, folder) = (RedisServer::start(), TempDir::new().unwrap());
    for step in 0..12_u64 {
        let name = format!("host-{step}");
        let mut host = Host::start(folder.path(), &name, &counter(&name, &redis.url(), "10s"));
        host.wait_for_log("tenure is running");
        std::thread::sleep(Duration::from_micros(step * 300));
        host.stop();
        check(&[&host], &[]);
        assert_eq!(redis.run::<u64>(&["EXISTS", "tenure:{counter}:lease"]), 0, "at step {step}");
    }
}

#[test]
fn e7_a_claim_whose_answer_is_lost_starts_nothing_and_is_recognised_later() {
    let (redis, folder) = (RedisServer::start(), TempDir::new().unwrap());
    let proxy = Proxy::to(redis.port());
    proxy.swallow_replies();
    let mut a = Host::start(folder.path(), "a", &counter("a", &proxy.url(), "3s"));
    a.wait_for_log("a claim got no answer");
    assert!(a.audit().is_empty(), "nothing started");
    proxy.heal();
    a.wait_until_leading(ROLE);
    a.stop();
    check(&[&a], &[]);
    assert_eq!(redis.run::<u64>(&["EXISTS", "tenure:{counter}:lease"]), 0);
}

#[test]
fn e9_two_instances_of_one_name_do_not_both_lead() {
    let (redis, folder) = (RedisServer::start(), TempDir::new().unwrap());
    let toml = counter("web", &redis.url(), "1s");
    let mut a = Host::start(folder.path(), "a", &toml);
    a.wait_until_leading(ROLE);
    let mut b = Host::start(folder.path(), "b", &toml);
    b.wait_for_log("standing by");
    holds_for(Duration::from_secs(2), "one leader", || b.audit().is_empty());
    a.stop();
    b.wait_until_leading(ROLE);
    b.stop();
    check(&[&a, &b], &[]);
}

#[test]
fn e10_a_busy_script_does_not_end_renewals() {
    let (redis, folder) = (RedisServer::with(&["--busy-reply-threshold", "100"]), TempDir::new().unwrap());
    let mut a = Host::start(folder.path(), "a", &counter("a", &redis.url(), "8s"));
    a.wait_until_leading(ROLE);
    let spin = "local t = redis.call('TIME')[1] + 3 while tonumber(redis.call('TIME')[1]) < t do end return 1";
    assert_eq!(redis.run::<u64>(&["EVAL", spin, "0"]), 1);
    let until = redis.run::<u64>(&["HGET", "tenure:{counter}:holder", "until"]);
    wait_for("the next renewal", || {
        (redis.run::<u64>(&["HGET", "tenure:{counter}:holder", "until"]) > until).then_some(())
    });
    a.stop();
    assert!(a.audit().iter().all(|line| line.event() != "lease/lost"), "the term went on");
    check(&[&a], &[]);
}

#[test]
fn e15_a_stalled_server_with_200_roles_is_stopped_for_in_time_and_led_again_once() {
    let (redis, folder) = (RedisServer::start(), TempDir::new().unwrap());
    let names: Vec<String> = (0..200).map(|number| format!("r{number}")).collect();
    let roles: String = names.iter().map(|name| role(name, &plugin("rogue"), "after_ms = 200")).collect();
    let mut a = Host::start(folder.path(), "a", &config("a", &redis.url(), "3s", &roles));
    let mut b = Host::start(folder.path(), "b", &config("b", &redis.url(), "3s", &roles));
    let leading = |a: &Host, b: &Host| {
        let lines = audits(&[a, b]);
        names.iter().filter(|name| spans(&lines, name).iter().any(|span| span.ended.is_none())).count()
    };
    wait_for("all roles to be led", || (leading(&a, &b) == 200).then_some(()));
    redis.pause();
    wait_for("all roles to be stopped", || (leading(&a, &b) == 0).then_some(()));
    redis.resume();
    wait_for("all roles to be led again", || (leading(&a, &b) == 200).then_some(()));
    a.stop();
    wait_for("one host to lead all", || (leading(&a, &b) == 200).then_some(()));
    b.stop();
    let lines = audits(&[&a, &b]);
    for name in &names {
        assert_one_at_a_time(&lines, name, &[]);
    }
    assert_margins(&lines);
}

#[test]
fn e20_a_store_that_is_not_there_and_one_that_speaks_no_tls_are_said_to_be() {
    let (redis, folder) = (RedisServer::start(), TempDir::new().unwrap());
    let nobody = system_tests::redis::free_port();
    let mut a = Host::start(folder.path(), "a", &counter("a", &format!("redis://127.0.0.1:{nobody}"), "2s"));
    a.wait_for_log("refused");
    a.stop();
    let tls = format!("rediss://127.0.0.1:{}", redis.port());
    let mut b = Host::start(folder.path(), "b", &counter("b", &tls, "2s"));
    b.wait_for_log("the store did not do as asked");
    b.stop();
    assert!(a.audit().is_empty() && b.audit().is_empty(), "nobody leads without a store");
}

#[test]
fn a_full_disk_under_sqlite_leaves_nobody_leading_until_there_is_room() {
    let Some(disk) = SmallDisk::mount() else { return };
    let folder = TempDir::new().unwrap();
    let url = format!("sqlite:{}", disk.path().join("leases.sqlite").display());
    let [mut a, mut b] = pair(folder.path(), [&url, &url], "1s");
    disk.fill();
    let stop = a.wait_for_event("plugin/stop", |_| true);
    assert_eq!(stop.text("reason"), "unreachable");
    a.wait_for_log("the disk is full: free some of it");
    let leading = || spans(&audits(&[&a, &b]), ROLE).iter().filter(|span| span.ended.is_none()).count();
    holds_for(Duration::from_millis(2_500), "no leader while the disk is full", || leading() == 0);
    disk.free();
    wait_for("somebody to lead again", || (leading() == 1).then_some(()));
    a.stop();
    b.stop();
    check(&[&a, &b], &[]);
    assert_margins(&audits(&[&a, &b]));
}

#[test]
fn a_tick_that_may_take_longer_than_the_trust_ends_with_it() {
    let (redis, folder) = (RedisServer::start(), TempDir::new().unwrap());
    let proxy = Proxy::to(redis.port());
    let roles = format!("{}tick_timeout = \"1h\"\n", role(ROLE, &plugin("rogue"), "tick = \"sleep\""));
    let mut a = Host::start(folder.path(), "a", &config("a", &proxy.url(), "1s", &roles));
    a.wait_for_log("\"count 1\"");
    let mut b = Host::start(folder.path(), "b", &counter("b", &redis.url(), "1s"));
    b.wait_for_log("standing by");
    proxy.black_hole();
    let stop = a.wait_for_event("plugin/stop", |_| true);
    assert_eq!(stop.text("reason"), "unreachable");
    b.wait_until_leading(ROLE);
    proxy.heal();
    a.wait_for_log("standing by");
    a.stop();
    b.stop();
    check(&[&a, &b], &[]);
    assert_margins(&audits(&[&a, &b]));
}
