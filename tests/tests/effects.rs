//! What the outside world sees of plugins that keep state and call out, over every kind of change of leaders.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use system_tests::audit::assert_one_at_a_time;
use system_tests::host::{Host, audits, config};
use system_tests::receiver::Receiver;
use system_tests::redis::RedisServer;
use system_tests::{plugin, wait_for};
use tempfile::TempDir;

/// A role that runs a courier, which may keep state and call the receiver.
fn courier(name: &str, receiver: &Receiver, steps: &str, more: &str) -> String {
    let (plugin, url) = (plugin("courier"), receiver.url());
    format!(
        "[role.{name}]\nplugin = \"{}\"\ngrants = {{ keyvalue = true, http = [\"{url}\"] }}\n{more}\n\
         settings = {{ do = \"{steps}\", log = 1, after_ms = 1, pause_ms = 40 }}\n",
        plugin.display()
    )
}

/// Both walls at once, from outside: a leader that is paused past its lease in the middle of a tick, at each of its calls,
/// and goes on when another leads.
#[test]
fn a_leader_that_was_paused_past_its_lease_has_no_effect_any_more() {
    let (folder, redis, receiver) = (TempDir::new().unwrap(), RedisServer::start(), Receiver::start());
    let url = receiver.url();
    let calls = [
        "set who $term".to_owned(),
        format!("post {url}/post/$term x"),
        "increment count 1".to_owned(),
        "set-many who $term".to_owned(),
        format!("fetch {url}/fetch/$term"),
        "delete count".to_owned(),
        "get who".to_owned(),
    ];
    let role = courier("courier", &receiver, &calls.join("; "), "");
    let start = |name: &str| Host::start(folder.path(), name, &config(name, &redis.url(), "1s", &role));
    let mut hosts = [start("a"), start("b")];
    let mut connection = redis.connect();
    for call in &calls {
        let leads = wait_for("a leader", || hosts.iter().position(leads_now));
        let (old, new) = (&hosts[leads], &hosts[1 - leads]);
        let old_term = latest_term(old);
        // The last thing that it does for a while is to say that it is about to make this call.
        let before = format!("before {call}");
        let said = old.log_text().matches(&before).count();
        wait_for(&before, || (old.log_text().matches(&before).count() > said).then_some(()));
        old.signal(Signal::STOP);
        let began = new.wait_for_event("plugin/start", |line| line.term() > old_term);
        let new_term = began.term();
        wait_for("a request of the new leader", || {
            receiver.received().iter().any(|one| one.term == new_term).then_some(())
        });
        let seen = receiver.received().len();
        old.signal(Signal::CONT);
        old.wait_for_event("plugin/stop", |line| line.term() == old_term);
        wait_for("the new leader to go on", || (receiver.received().len() > seen + 2).then_some(()));
        let late: Vec<_> = receiver.received().split_off(seen).into_iter().filter(|one| one.term <= old_term).collect();
        assert!(late.is_empty(), "after the pause at `{call}`: {late:?}");
        let state: BTreeMap<String, String> =
            redis::cmd("HGETALL").arg("tenure:{courier}:state").query(&mut connection).unwrap();
        for key in ["who", "who1", "who2"] {
            assert_eq!(state[key], new_term.to_string(), "{key} after the pause at `{call}`");
        }
    }
    hosts.iter_mut().for_each(Host::stop);
    let hosts: Vec<&Host> = hosts.iter().collect();
    assert_one_at_a_time(&audits(&hosts), "courier", &[]);
}

/// The last term that a host began.
fn latest_term(host: &Host) -> u64 {
    host.audit()
        .iter()
        .filter(|line| line.event() == "plugin/start")
        .map(system_tests::audit::Line::term)
        .max()
        .unwrap_or(0)
}

/// Whether its plugin has started in a term that has not ended.
fn leads_now(host: &Host) -> bool {
    let audit = host.audit();
    let last =
        |event: &str| audit.iter().filter(|line| line.event() == event).map(system_tests::audit::Line::term).max();
    last("plugin/start") > last("plugin/stop")
}

/// Both deliveries side by side, on hosts that are killed at random: what the receiver wrote down decides.
#[test]
fn slots_are_fired_as_promised_over_thirty_kills() {
    let (folder, redis, receiver) = (TempDir::new().unwrap(), RedisServer::start(), Receiver::start());
    let url = receiver.url();
    let role = |name: &str, more: &str| {
        courier(name, &receiver, &format!("post {url}/{name}/$slot x"), &format!("cron = \"* * * * * *\"\n{more}"))
    };
    let roles = role("once", "delivery = \"at-most-once\"\ncatch_up = \"all\"")
        + &role("always", "delivery = \"at-least-once\"\ncatch_up_max = 1000");
    let text = |name: &str| config(name, &redis.url(), "1s", &roles);
    let mut hosts = ["a", "b"].map(|name| Host::start(folder.path(), name, &text(name)));
    let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
    let mut kills = 0;
    while kills < 30 {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let count = receiver.received().len();
        let leads = wait_for("a leader", || hosts.iter().position(leads_now));
        // At any moment of a slot's second, once in a while before anything was sent.
        let until = Instant::now() + Duration::from_millis((dice >> 33) % 1100);
        wait_for("the moment", || (Instant::now() >= until).then_some(()));
        if kills % 3 == 0 {
            wait_for("a request", || (receiver.received().len() > count).then_some(()));
        }
        hosts[leads].kill();
        kills += 1;
        // With an audit file of its own, which says whether it leads.
        let name = format!("host-{kills}");
        hosts[leads] = Host::start(folder.path(), &name, &text(&name));
    }
    // The last leader catches up with the present.
    let quiet = receiver.received().len();
    wait_for("more requests", || (receiver.received().len() > quiet + 4).then_some(()));
    drop(hosts);

    let mut fired: BTreeMap<&str, BTreeMap<u64, u32>> = BTreeMap::new();
    let received = receiver.received();
    for one in &received {
        let (role, slot) = one.path[1..].split_once('/').unwrap();
        *fired.entry(role).or_default().entry(slot.parse().unwrap()).or_default() += 1;
    }
    for slots in fired.values() {
        assert!(slots.keys().all(|slot| slot % 1000 == 0), "slots are whole seconds");
        assert!(slots.len() > 10, "{slots:?}");
    }
    let twice: Vec<_> = fired["once"].iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "fired twice: {twice:?}");
    let always: Vec<u64> = fired["always"].keys().copied().collect();
    let missed: Vec<_> = always.windows(2).filter(|pair| pair[1] - pair[0] != 1000).collect();
    assert!(missed.is_empty(), "missed: {missed:?}");
}

#[test]
fn a_role_says_when_it_is_given_up_and_for_how_long() {
    let (folder, redis) = (TempDir::new().unwrap(), RedisServer::start());
    let role = format!(
        "[role.r]\nplugin = \"{}\"\nsettings = {{ tick = \"panic\" }}\n\
         on_failure = {{ give_up_after = 2, back_off = \"5ms\", cool_down = \"1h\" }}\n",
        plugin("rogue").display()
    );
    let mut host = Host::start(folder.path(), "a", &config("a", &redis.url(), "2s", &role));
    host.wait_for_event("lease/release", |_| true);
    host.wait_for_log("leaving the role to others for 1 h");
    let failed: Vec<_> = host.audit().into_iter().filter(|line| line.event() == "plugin/tick-failed").collect();
    assert_eq!(failed.len(), 2);
    assert!(failed[0].text("error").contains("the rogue panics on purpose"));
    assert!(failed[0].json["frames"].as_array().unwrap().iter().any(|frame| frame.as_str().unwrap().contains("rogue")));
    host.stop();
}
