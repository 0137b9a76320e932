//! The plugins that people deploy as they are, each against a real receiver.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::process::Command;

use rustix::process::Signal;
use system_tests::host::{Host, audits, config};
use system_tests::receiver::{Received, Receiver};
use system_tests::redis::RedisServer;
use system_tests::{plugin, wait_for};
use tempfile::TempDir;

/// A role with a plugin that may keep state and call the receiver.
fn role(name: &str, wasm: &str, receiver: &Receiver, settings: &str, more: &str) -> String {
    format!(
        "[role.{name}]\nplugin = \"{}\"\nsettings = {{ {settings} }}\n{more}\n[role.{name}.grants]\nkeyvalue = true\n\
         http = [\"{}\"]\n",
        plugin(wasm).display(),
        receiver.url()
    )
}

fn received(receiver: &Receiver, count: usize) -> Vec<Received> {
    wait_for(&format!("{count} requests"), || Some(receiver.received()).filter(|all| all.len() >= count))
}

#[test]
fn a_webhook_is_signed_and_tried_again_under_one_key() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    receiver.answer_with([500, 429, 200, 404]);
    let secret = folder.path().join("key");
    std::fs::write(&secret, "hush-hush\n").unwrap();
    let settings = format!(
        "url = \"{}/hook\", body = '{{\"a\":1}}', retry_after_ms = 10, every_s = 1, \"header.x-own\" = \"yes\"",
        receiver.url()
    );
    let roles = role("hook", "webhook", &receiver, &settings, "")
        + &format!("secrets = {{ signing_key = \"file:{}\" }}\n", secret.display());
    let text = format!("[instance]\nname = \"one\"\ndata_dir = \"data\"\n{roles}");
    let mut host = Host::start(folder.path(), "one", &text);
    let all = received(&receiver, 5);
    let keys: Vec<&str> = all.iter().map(|one| one.headers["idempotency-key"].as_str()).collect();
    assert!(keys[0] == keys[1] && keys[1] == keys[2], "{keys:?}");
    assert!(keys[2] != keys[3] && keys[3] != keys[4], "after a success, and after what is final: {keys:?}");
    for one in &all {
        assert_eq!((one.path.as_str(), one.body.as_str()), ("/hook", r#"{"a":1}"#));
        assert_eq!((one.headers["x-own"].as_str(), one.headers["content-type"].as_str()), ("yes", "application/json"));
        let (seconds, hex) = one.headers["webhook-signature"].strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
        let check = format!("printf '%s.%s' {seconds} '{}' | openssl dgst -sha256 -hmac hush-hush", one.body);
        let output = Command::new("sh").args(["-c", &check]).output().unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).trim().ends_with(hex));
    }
    host.wait_for_log("the server answered 404");
    assert!(!host.log_text().contains("hush-hush"));
    host.stop();
}

#[test]
fn a_webhook_with_a_schedule_has_one_key_a_slot() {
    let (folder, redis, receiver) = (TempDir::new().unwrap(), RedisServer::start(), Receiver::start());
    receiver.answer_with([503, 503]);
    let settings = format!("url = \"{}\", retry_after_ms = 10", receiver.url());
    let roles = role("hook", "webhook", &receiver, &settings, "cron = \"* * * * * *\"");
    let mut host = Host::start(folder.path(), "one", &config("one", &redis.url(), "2s", &roles));
    let all = received(&receiver, 4);
    let keys: Vec<&str> = all.iter().map(|one| one.headers["idempotency-key"].as_str()).collect();
    assert!(keys[0] == keys[1] && keys[1] == keys[2] && keys[2] != keys[3], "{keys:?}");
    let slot: u64 = keys[0].strip_prefix("hook-").unwrap().parse().unwrap();
    assert_eq!(slot % 1000, 0);
    host.stop();
}

#[test]
fn an_outbox_is_delivered_in_order_over_kills() {
    let (folder, redis, receiver) = (TempDir::new().unwrap(), RedisServer::start(), Receiver::start());
    // Not everything goes well.
    receiver.answer_with((0..200).map(|at| if at % 7 == 3 { 503 } else { 200 }));
    let settings = format!("url = \"{}/events\", poll_ms = 20, batch = 5", receiver.url());
    let roles = role("relay", "outbox_relay", &receiver, &settings, "");
    let text = |name: &str| config(name, &redis.url(), "1s", &roles);
    let mut hosts = ["a", "b"].map(|name| Host::start(folder.path(), name, &text(name)));
    let mut connection = redis.connect();
    const ENTRIES: usize = 120;
    for at in 0..ENTRIES {
        let entry = format!("outbox/{at:04}");
        let () = redis::cmd("HSET")
            .arg("tenure:{relay}:state")
            .arg(entry)
            .arg(format!("event {at}"))
            .query(&mut connection)
            .unwrap();
    }
    for kill in 0..3 {
        let seen = receiver.received().len();
        received(&receiver, seen + 5);
        let leads = |host: &Host| host.audit().iter().any(|line| line.event() == "plugin/start");
        let latest = |host: &Host| host.audit().iter().map(system_tests::audit::Line::term).max().unwrap_or(0);
        let at = (0..2).filter(|at| leads(&hosts[*at])).max_by_key(|at| latest(&hosts[*at])).unwrap();
        hosts[at].kill();
        let name = format!("host-{kill}");
        hosts[at] = Host::start(folder.path(), &name, &text(&name));
    }
    wait_for("an empty outbox", || {
        let keys: Vec<String> = redis::cmd("HKEYS").arg("tenure:{relay}:state").query(&mut connection).unwrap();
        keys.iter().all(|key| !key.starts_with("outbox/")).then_some(())
    });
    let all = receiver.received();
    let order: Vec<usize> = all.iter().map(|one| one.body.strip_prefix("event ").unwrap().parse().unwrap()).collect();
    assert!(order.windows(2).all(|pair| pair[1] == pair[0] || pair[1] == pair[0] + 1), "{order:?}");
    assert_eq!((order[0], order[order.len() - 1]), (0, ENTRIES - 1));
    assert!(
        all.iter()
            .all(|one| one.headers["idempotency-key"]
                == format!("outbox/{:04}", one.body[6..].parse::<usize>().unwrap()))
    );
}

#[test]
fn what_nobody_takes_is_moved_out_of_the_way_where_that_is_asked_for() {
    let (folder, redis, receiver) = (TempDir::new().unwrap(), RedisServer::start(), Receiver::start());
    receiver.answer_with([400, 400, 200]);
    let mut connection = redis.connect();
    for entry in ["outbox/1", "outbox/2"] {
        let () = redis::cmd("HSET").arg("tenure:{relay}:state").arg(entry).arg(entry).query(&mut connection).unwrap();
    }
    let settings = format!("url = \"{}\", poll_ms = 10, max_attempts = 2", receiver.url());
    let roles = role("relay", "outbox_relay", &receiver, &settings, "");
    let mut host = Host::start(folder.path(), "one", &config("one", &redis.url(), "2s", &roles));
    let bodies: Vec<String> = received(&receiver, 3).into_iter().map(|one| one.body).collect();
    assert_eq!(bodies, ["outbox/1", "outbox/1", "outbox/2"]);
    wait_for("the rest", || {
        let keys: Vec<String> = redis::cmd("HKEYS").arg("tenure:{relay}:state").query(&mut connection).unwrap();
        (keys.iter().filter(|key| !key.starts_with("tenure/")).collect::<Vec<_>>() == ["dead/1"]).then_some(())
    });
    host.stop();
}

#[test]
fn a_probe_tells_of_each_change_once_whoever_leads() {
    let (folder, redis) = (TempDir::new().unwrap(), RedisServer::start());
    let (target, alerts) = (Receiver::start(), Receiver::start());
    target.answer_with([200, 500, 500]);
    target.answer_with(std::iter::repeat_n(503, 40));
    let settings = format!(
        "targets = \"{}/health\", alert_url = \"{}/alert\", threshold = 3, every_s = 0",
        target.url(),
        alerts.url()
    );
    let roles = format!(
        "[role.uptime]\nplugin = \"{}\"\nsettings = {{ {settings} }}\n\
         grants = {{ keyvalue = true, http = [\"{}\", \"{}\"] }}\n",
        plugin("probe").display(),
        target.url(),
        alerts.url()
    );
    let mut first = Host::start(folder.path(), "a", &config("a", &redis.url(), "2s", &roles));
    let told = received(&alerts, 1);
    assert!(told[0].body.contains(r#""state":"down","because":"it answered 50"#), "{}", told[0].body);
    first.signal(Signal::TERM);
    first.wait();
    let seen = target.received().len();
    let mut second = Host::start(folder.path(), "b", &config("b", &redis.url(), "2s", &roles));
    let told = received(&alerts, 2);
    assert!(told[1].body.contains(r#""state":"up","because":"it answered 200""#), "{}", told[1].body);
    assert!(target.received().len() > seen + 3);
    let keys: Vec<&str> = told.iter().map(|one| one.headers["idempotency-key"].as_str()).collect();
    assert_eq!(keys, [1, 2].map(|change| format!("uptime {}/health {change}", target.url())));
    second.stop();
    assert!(audits(&[&first, &second]).iter().all(|line| line.event() != "plugin/tick-failed"));
}

#[test]
fn an_outage_moves_no_entry_aside() {
    let (folder, redis, receiver) = (TempDir::new().unwrap(), RedisServer::start(), Receiver::start());
    let mut connection = redis.connect();
    let () = redis::cmd("HSET").arg("tenure:{relay}:state").arg("outbox/1").arg("x").query(&mut connection).unwrap();
    // Nobody listens there.
    let port = system_tests::redis::free_port();
    let nowhere = format!("url = \"http://127.0.0.1:{port}\", poll_ms = 5, max_attempts = 1");
    let roles = role("relay", "outbox_relay", &receiver, &nowhere, "")
        .replace(&receiver.url(), &format!("http://127.0.0.1:{port}"));
    let mut host = Host::start(folder.path(), "one", &config("one", &redis.url(), "2s", &roles));
    wait_for("some attempts", || (host.log_text().matches("ConnectionRefused; again in").count() > 4).then_some(()));
    host.stop();
    let keys: Vec<String> = redis::cmd("HKEYS").arg("tenure:{relay}:state").query(&mut connection).unwrap();
    assert!(keys.contains(&"outbox/1".to_owned()) && !keys.iter().any(|key| key.starts_with("dead/")), "{keys:?}");
}
