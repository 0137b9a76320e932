//! What only Redis can be asked: a server that forgets, stalls, refuses, or is cut off.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::thread;

use system_tests::proxy::Proxy;
use system_tests::redis::{RedisServer, free_port};
use tempfile::TempDir;
use tenure::store::redis::RedisStore;
use tenure_core::Handoff;

use super::*;

const LEASE: &str = "tenure:{sweeper}:lease";
const TERM: &str = "tenure:{sweeper}:term";
const HOLDER: &str = "tenure:{sweeper}:holder";
const HISTORY: &str = "tenure:{sweeper}:history";
/// A time-out that a test waits out.
const BRIEF: Duration = Duration::from_millis(400);
/// How much later than its time-out a call may return on a busy machine.
const SLACK: Duration = Duration::from_millis(400);

fn open(url: &str) -> RedisStore {
    RedisStore::new(url, "tenure").unwrap()
}

fn start() -> (RedisServer, RedisStore) {
    let server = RedisServer::start();
    let store = open(&server.url());
    (server, store)
}

/// Asserts that a claim is not answered, in time, and returns why.
async fn unanswered(store: &RedisStore) -> StoreError {
    let began = Instant::now();
    let reply = only(store.claim(&[claim_ask(&role(), fresh(), LONG, 0)], BRIEF).await);
    assert!(began.elapsed() < BRIEF + SLACK, "returned after {:?}", began.elapsed());
    match reply {
        Err(error @ (StoreError::TimedOut(_) | StoreError::Unreachable(_))) => error,
        other => panic!("answered: {other:?}"),
    }
}

#[tokio::test]
async fn the_keys_are_those_that_are_documented() {
    let (server, store) = start();
    let holder = fresh();
    claim(&store, holder, LONG).await;
    assert_eq!(server.run::<String>(&["GET", LEASE]), holder.to_string());
    assert_eq!(server.run::<u64>(&["GET", TERM]), 1);
    assert_eq!(server.run::<i64>(&["PTTL", TERM]), -1);
    let record: HashMap<String, String> = server.run(&["HGETALL", HOLDER]);
    for (field, value) in [
        ("instance", "web-1"),
        ("term", "1"),
        ("released", "0"),
        ("admin", "127.0.0.1:7400"),
        ("digest", "ab12"),
        ("protocol", "1"),
    ] {
        assert_eq!(record[field], value, "{field}");
    }
    let (since, until): (u64, u64) = (record["since"].parse().unwrap(), record["until"].parse().unwrap());
    assert_eq!(until - since, 600_000);
    release(&store, holder, HandoffChange::Put(Handoff { term: 1, data: b"x y".to_vec() })).await;
    assert_eq!(server.run::<u64>(&["EXISTS", LEASE]), 0);
    assert_eq!(server.run::<String>(&["HGET", HOLDER, "released"]), "1");
    assert_eq!(server.run::<String>(&["GET", "tenure:{sweeper}:handoff"]), "1 x y");
    assert_eq!(server.run::<u64>(&["XLEN", HISTORY]), 2);
}

#[tokio::test]
async fn prefixes_keep_stores_apart() {
    let (server, store) = start();
    claim(&store, fresh(), LONG).await;
    let elsewhere = RedisStore::new(&server.url(), "staging").unwrap();
    assert_eq!(term(&claim(&elsewhere, fresh(), LONG).await), 1);
    assert_eq!(server.run::<u64>(&["EXISTS", "staging:{sweeper}:lease"]), 1);
}

#[tokio::test]
async fn e11_a_renewal_in_flight_never_brings_a_released_lease_back() {
    let (server, store) = start();
    for _ in 0..50 {
        let holder = fresh();
        claim(&store, holder, LONG).await;
        let renewals = [RenewAsk { role: role(), claim: holder, ttl: LONG }];
        let (_, released, _) = tokio::join!(
            store.renew(&renewals, WITHIN),
            release(&store, holder, HandoffChange::Keep),
            store.renew(&renewals, WITHIN)
        );
        assert_eq!(released, ReleaseReply::Released);
        assert_eq!(server.run::<u64>(&["EXISTS", LEASE]), 0);
    }
}

#[tokio::test]
async fn e12_a_thousand_renewals_do_not_add_up() {
    let (server, store) = start();
    let holder = fresh();
    claim(&store, holder, LONG).await;
    for _ in 0..1_000 {
        assert_eq!(renew(&store, holder, LONG).await, RenewReply::Renewed);
    }
    let left: u128 = server.run(&["PTTL", LEASE]);
    assert!(left <= LONG.as_millis(), "{left} ms");
}

#[tokio::test]
async fn e13_a_claim_whose_answer_was_lost_is_known_when_it_is_asked_again() {
    let (server, _) = start();
    let proxy = Proxy::to(server.port());
    let store = open(&proxy.url());
    let (holder, other_role) = (fresh(), RoleName::new("another").unwrap());
    // Connected, so that it is the claim's answer that is lost.
    only(store.claim(&[claim_ask(&other_role, fresh(), LONG, 0)], WITHIN).await).unwrap();
    proxy.swallow_replies();
    let lost = only(store.claim(&[claim_ask(&role(), holder, LONG, 0)], BRIEF).await);
    assert_eq!(lost, Err(StoreError::TimedOut(BRIEF)));
    assert_eq!(server.run::<String>(&["GET", LEASE]), holder.to_string());
    proxy.heal();
    renew_in_time(&store, holder).await;
    assert_eq!(term(&claim(&store, holder, LONG).await), 1);
}

#[tokio::test]
async fn e14_forgotten_scripts_are_loaded_again() {
    let (server, store) = start();
    let flush = || server.run::<()>(&["SCRIPT", "FLUSH"]);
    for expected in 1..=3 {
        let holder = fresh();
        flush();
        assert_eq!(term(&claim(&store, holder, LONG).await), expected);
        flush();
        assert_eq!(renew(&store, holder, LONG).await, RenewReply::Renewed);
        flush();
        store.settle_handoff(&role(), holder, WITHIN).await.unwrap();
        flush();
        assert_eq!(release(&store, holder, HandoffChange::Keep).await, ReleaseReply::Released);
    }
}

#[tokio::test]
async fn e16_a_server_that_comes_back_empty_is_waited_out() {
    let (mut server, store) = start();
    let holder = fresh();
    claim(&store, holder, LONG).await;
    server.restart_empty();
    let began = Instant::now();
    let reply = loop {
        match try_claim(&store, fresh(), SHORT, 1).await {
            Ok(reply) => break reply,
            Err(StoreError::Unreachable(_)) => assert!(began.elapsed() < PATIENCE, "never connected again"),
            Err(other) => panic!("{other}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    assert_eq!(refusal(&reply), (RefusalReason::Behind, 0, SHORT));
    assert_eq!(renew(&store, holder, LONG).await, RenewReply::NotYours);
    assert_eq!(term(&claim_in_time(&store, LONG, 1).await.1), 2);
}

#[tokio::test]
async fn e16_a_deleted_lease_is_waited_out_also_by_its_claim() {
    let (server, store) = start();
    let (holder, ttl) = (fresh(), Duration::from_secs(1));
    let began = Instant::now();
    claim(&store, holder, ttl).await;
    assert_eq!(server.run::<u64>(&["DEL", LEASE]), 1);
    for claimant in [fresh(), holder] {
        let (reason, term, left) = refusal(&claim(&store, claimant, ttl).await);
        assert_eq!((reason, term), (RefusalReason::Vanished, 1));
        assert!(left <= ttl, "{left:?}");
    }
    assert_eq!(renew(&store, holder, ttl).await, RenewReply::NotYours);
    assert_eq!(server.run::<u64>(&["EXISTS", LEASE]), 0);
    assert_eq!(term(&claim_in_time(&store, LONG, 1).await.1), 2);
    assert!(began.elapsed() >= ttl, "granted {:?} after a claim for {ttl:?}", began.elapsed());
}

#[tokio::test]
async fn a_value_that_tenure_never_writes_is_a_condition_that_names_the_key() {
    for (command, key) in [
        (vec!["RPUSH", LEASE, "x"], "tenure:{sweeper}:*"),
        (vec!["SET", LEASE, "no claim", "PX", "600000"], LEASE),
        (vec!["SET", TERM, "seven"], TERM),
        (vec!["SET", HOLDER, "x"], "tenure:{sweeper}:*"),
        (vec!["SET", HISTORY, "x"], "tenure:{sweeper}:*"),
    ] {
        let (server, store) = start();
        server.run::<::redis::Value>(&command);
        let (condition, words) = condition(try_claim(&store, fresh(), LONG, 0).await);
        assert_eq!(condition, Condition::WrongType, "{command:?}");
        assert!(words.contains(key) && words.contains("DEL"), "{command:?}: {words}");
    }
}

#[tokio::test]
async fn a_lease_without_expiry_is_a_condition_that_names_the_key() {
    let (server, store) = start();
    server.run::<()>(&["SET", LEASE, &fresh().to_string()]);
    let (condition, words) = condition(try_claim(&store, fresh(), LONG, 0).await);
    assert_eq!(condition, Condition::NoExpiry);
    assert!(words.contains(LEASE) && words.contains("DEL"), "{words}");
}

#[tokio::test]
async fn a_record_of_a_newer_tenure_is_left_alone() {
    let (server, store) = start();
    server.run::<u64>(&["HSET", HOLDER, "protocol", "2"]);
    let (condition, words) = condition(try_claim(&store, fresh(), LONG, 0).await);
    assert_eq!(condition, Condition::NewerProtocol);
    assert!(words.contains("sweeper"), "{words}");
    assert_eq!(server.run::<u64>(&["EXISTS", LEASE, TERM]), 0);
}

#[tokio::test]
async fn one_ask_that_fails_harms_none_of_its_batch() {
    let (server, store) = start();
    server.run::<u64>(&["RPUSH", "tenure:{r1}:lease", "x"]);
    let asks: Vec<_> =
        (0..3).map(|number| claim_ask(&RoleName::new(&format!("r{number}")).unwrap(), fresh(), LONG, 0)).collect();
    // The first time all of them are loaded again as well.
    for _ in 0..2 {
        let [first, second, third] = store.claim(&asks, WITHIN).await.try_into().unwrap();
        assert_eq!((term(&first.unwrap()), term(&third.unwrap())), (1, 1));
        assert_eq!(condition(second).0, Condition::WrongType);
    }
}

#[tokio::test]
async fn a_full_server_refuses_claims_and_still_renews_and_releases() {
    let (server, store) = start();
    let holder = fresh();
    claim(&store, holder, LONG).await;
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let elsewhere = claim_ask(&RoleName::new("another").unwrap(), fresh(), LONG, 0);
    let (condition, words) = condition(only(store.claim(&[elsewhere], WITHIN).await));
    assert_eq!(condition, Condition::OutOfMemory);
    assert!(words.contains("maxmemory"), "{words}");
    assert_eq!(renew(&store, holder, LONG).await, RenewReply::Renewed);
    assert_eq!(release(&store, holder, HandoffChange::Keep).await, ReleaseReply::Released);
}

#[tokio::test]
async fn a_replica_is_a_condition() {
    let (server, store) = start();
    server.run::<()>(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    let (condition, words) = condition(try_claim(&store, fresh(), LONG, 0).await);
    assert_eq!(condition, Condition::ReadOnly);
    assert!(words.contains("primary"), "{words}");
}

#[tokio::test]
async fn a_user_without_permission_is_a_condition() {
    let (server, _) = start();
    for (user, rights) in
        [("noscripts", "-evalsha"), ("noload", "-script"), ("nokeys", "resetkeys"), ("nowrites", "-set")]
    {
        server.run::<()>(&["ACL", "SETUSER", user, "on", ">pw", "~*", "&*", "+@all", rights]);
        let store = open(&format!("redis://{user}:pw@127.0.0.1:{}", server.port()));
        let (condition, words) = condition(try_claim(&store, fresh(), LONG, 0).await);
        assert_eq!(condition, Condition::NoPermission, "{user}: {words}");
        server.run::<()>(&["SCRIPT", "FLUSH"]);
    }
}

#[tokio::test]
async fn a_user_without_the_channel_leads_all_the_same() {
    let (server, _) = start();
    // No channels are what Redis 7 gives a new user.
    server.run::<()>(&["ACL", "SETUSER", "deaf", "on", ">pw", "~tenure:*", "resetchannels", "+@all"]);
    let store = open(&format!("redis://deaf:pw@127.0.0.1:{}", server.port()));
    for expected in 1..=2 {
        let holder = fresh();
        assert_eq!(term(&claim(&store, holder, LONG).await), expected);
        assert_eq!(release(&store, holder, HandoffChange::Keep).await, ReleaseReply::Released);
    }
}

#[tokio::test]
async fn a_password_is_used_and_never_shown() {
    let server = RedisServer::with(&["--requirepass", "secret"]);
    let port = server.port();
    let right = open(&format!("redis://:secret@127.0.0.1:{port}"));
    assert_eq!(term(&claim(&right, fresh(), LONG).await), 1);
    assert!(!right.describe().contains("secret"), "{}", right.describe());
    for url in [format!("redis://:guessed@127.0.0.1:{port}"), format!("redis://127.0.0.1:{port}")] {
        let (condition, words) = condition(try_claim(&open(&url), fresh(), LONG, 0).await);
        assert_eq!(condition, Condition::Auth, "{words}");
        assert!(words.contains("store.url") && !words.contains("guessed"), "{words}");
    }
}

#[test]
fn a_url_that_is_none_is_refused_without_connecting() {
    for url in
        ["", "redis://", "http://:secret@host", "redis://host:port", "redis://:secret@host:99999", "redis://host/x"]
    {
        let Err(error) = RedisStore::new(url, "tenure") else { panic!("{url} was taken") };
        let words = format!("{error:#}");
        assert!(words.contains("URL") && !words.contains("secret"), "{url}: {words}");
    }
}

#[tokio::test]
async fn a_unix_socket_will_do() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("redis.sock");
    let _server = RedisServer::with(&["--unixsocket", socket.to_str().unwrap()]);
    let store = open(&format!("unix://{}", socket.display()));
    assert_eq!(term(&claim(&store, fresh(), LONG).await), 1);
}

#[tokio::test]
async fn e10_a_busy_script_is_a_condition_and_passes() {
    let server = RedisServer::with(&["--busy-reply-threshold", "100"]);
    let store = open(&server.url());
    let holder = fresh();
    claim(&store, holder, LONG).await;
    let mut spinner = server.connect();
    let spinning = thread::spawn(move || {
        ::redis::cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut spinner).expect_err("killed")
    });
    let began = Instant::now();
    let words = loop {
        match try_renew(&store, holder, LONG).await {
            Err(StoreError::Refused { condition, detail }) => {
                assert_eq!(condition, Condition::Busy);
                break detail;
            }
            // The spinner has not begun yet.
            Ok(RenewReply::Renewed) => assert!(began.elapsed() < PATIENCE, "never busy"),
            other => panic!("{other:?}"),
        }
    };
    assert!(words.contains("SCRIPT KILL"), "{words}");
    server.run::<()>(&["SCRIPT", "KILL"]);
    spinning.join().unwrap();
    renew_in_time(&store, holder).await;
}

#[tokio::test]
async fn a_cluster_node_without_the_key_is_a_condition() {
    let server = RedisServer::with(&["--cluster-enabled", "yes"]);
    let (condition, words) = condition(try_claim(&open(&server.url()), fresh(), LONG, 0).await);
    assert_eq!(condition, Condition::Moved, "{words}");
}

/// A server that says the same to everything.
fn says(reply: &'static str) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(1..) = stream.read(&mut bytes) {
                    // One for each command, of which each is an array.
                    let commands = bytes.iter().filter(|byte| **byte == b'*').count();
                    let _ = stream.write_all(reply.repeat(commands.max(1)).as_bytes());
                    bytes.fill(0);
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn a_server_that_is_loading_is_a_condition() {
    let port = says("-LOADING Redis is loading the dataset in memory\r\n");
    let (condition, words) = condition(try_claim(&open(&format!("redis://127.0.0.1:{port}")), fresh(), LONG, 0).await);
    assert_eq!(condition, Condition::Loading, "{words}");
}

#[tokio::test]
async fn a_server_without_protocol_3_is_said_to_be_too_old() {
    let port = says("-ERR unknown command `HELLO`, with args beginning with: `3`\r\n");
    let (_, words) = condition(try_claim(&open(&format!("redis://127.0.0.1:{port}")), fresh(), LONG, 0).await);
    assert!(words.contains("Redis 6.2"), "{words}");
}

#[tokio::test]
async fn e20_nobody_listening_is_said_at_once() {
    let store = open(&format!("redis://127.0.0.1:{}", free_port()));
    let began = Instant::now();
    let error = try_claim(&store, fresh(), LONG, 0).await.unwrap_err();
    assert!(began.elapsed() < WITHIN / 2, "returned after {:?}", began.elapsed());
    assert!(matches!(&error, StoreError::Unreachable(words) if words.contains("refused")), "{error}");
}

#[tokio::test]
async fn e20_tls_to_a_port_without_it_is_bounded_and_said() {
    let server = RedisServer::start();
    let error = unanswered(&open(&format!("rediss://127.0.0.1:{}", server.port()))).await;
    assert!(error.to_string().contains("TLS"), "{error}");
}

/// An authority of the test's own, and a certificate of it for 127.0.0.1: `ca.pem`, `server.pem` and `server.key`.
fn certify(folder: &Path) {
    let openssl = |arguments: &str| {
        let output = Command::new("openssl").args(arguments.split(' ')).current_dir(folder).output().expect("openssl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"));
    openssl(&format!("req {key} -keyout server.key -out server.csr -subj /CN=server"));
    fs::write(folder.join("server.ext"), "subjectAltName = IP:127.0.0.1\nbasicConstraints = CA:FALSE\n").unwrap();
    openssl("x509 -req -in server.csr -CA ca.pem -CAkey ca.key -out server.pem -days 2 -extfile server.ext");
}

#[tokio::test]
async fn tls_trusts_what_the_machine_trusts() {
    // Trust is read from the environment: the half of this test that trusts is a process of its own.
    if let Ok(url) = std::env::var("TENURE_TEST_TLS_URL") {
        assert_eq!(term(&claim(&open(&url), fresh(), LONG).await), 1);
        return;
    }
    let folder = TempDir::new().unwrap();
    certify(folder.path());
    let file = |name| folder.path().join(name).to_str().unwrap().to_owned();
    let port = free_port().to_string();
    let _server = RedisServer::with(
        &[
            ["--tls-port", &port],
            ["--tls-cert-file", &file("server.pem")],
            ["--tls-key-file", &file("server.key")],
            ["--tls-ca-cert-file", &file("ca.pem")],
            ["--tls-auth-clients", "no"],
        ]
        .concat(),
    );
    let url = format!("rediss://127.0.0.1:{port}");

    let stranger = try_claim(&open(&url), fresh(), LONG, 0).await.unwrap_err();
    assert!(stranger.to_string().contains("certificate"), "{stranger}");

    let trusting = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "redis::tls_trusts_what_the_machine_trusts"])
        .env("TENURE_TEST_TLS_URL", url)
        .env("SSL_CERT_FILE", file("ca.pem"))
        .output()
        .unwrap();
    assert!(trusting.status.success(), "{}", String::from_utf8_lossy(&trusting.stdout));
}

#[tokio::test]
async fn e3_a_paused_server_is_not_waited_for() {
    let (server, store) = start();
    let holder = fresh();
    claim(&store, holder, LONG).await;
    server.run::<()>(&["CLIENT", "PAUSE", "2000", "ALL"]);
    unanswered(&store).await;
    unanswered(&store).await;
    renew_in_time(&store, holder).await;
}

#[tokio::test]
async fn e15_a_stopped_server_is_not_waited_for() {
    let (server, store) = start();
    let holder = fresh();
    claim(&store, holder, LONG).await;
    server.pause();
    unanswered(&store).await;
    unanswered(&store).await;
    server.resume();
    renew_in_time(&store, holder).await;
}

#[tokio::test]
async fn e2_a_black_hole_holds_up_no_call_past_its_own_time_out() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let store = Arc::new(open(&proxy.url()));
    let holder = fresh();
    claim(&*store, holder, LONG).await;
    proxy.black_hole();
    // The first to give up drops the connection; a patient one then connects anew, which takes it all of its time. Those
    // that wait on the old connection still return in theirs.
    let calls: Vec<_> = [BRIEF / 2, BRIEF, BRIEF * 2, BRIEF * 10]
        .into_iter()
        .enumerate()
        .map(|(at, within)| {
            let (store, late) = (store.clone(), at == 3);
            tokio::spawn(async move {
                if late {
                    tokio::time::sleep(BRIEF * 3 / 4).await;
                }
                let began = Instant::now();
                let ask = RenewAsk { role: role(), claim: holder, ttl: LONG };
                let reply = only(store.renew(&[ask], within).await);
                (within, began.elapsed(), reply)
            })
        })
        .collect();
    for call in calls {
        let (within, took, reply) = call.await.unwrap();
        assert!(reply.is_err(), "{reply:?}");
        assert!(took < within + SLACK, "returned after {took:?} of {within:?}");
    }
    proxy.heal();
    renew_in_time(&*store, holder).await;
}

#[tokio::test]
async fn who_stops_waiting_harms_nobody_who_waits() {
    let (server, store) = start();
    let holder = fresh();
    claim(&store, holder, LONG).await;
    server.pause();
    {
        let waiting = try_renew(&store, holder, LONG);
        tokio::pin!(waiting);
        {
            let dropped = try_renew(&store, holder, LONG);
            tokio::pin!(dropped);
            // Both are sent.
            assert!(tokio::time::timeout(BRIEF, async { tokio::join!(&mut dropped, &mut waiting) }).await.is_err());
        }
        server.resume();
        assert_eq!(waiting.await, Ok(RenewReply::Renewed));
    }
    assert_eq!(renew(&store, holder, LONG).await, RenewReply::Renewed);
}

#[tokio::test]
async fn after_a_cut_and_a_fail_over_the_next_request_connects_and_watches_again() {
    let (first, second) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::to(first.port());
    let store = open(&proxy.url());
    let mut events = store.watch();
    claim(&store, fresh(), LONG).await;
    events.recv().await.unwrap();
    proxy.point_to(second.port());
    let began = Instant::now();
    let holder = fresh();
    while try_claim(&store, holder, LONG, 0).await.is_err() {
        assert!(began.elapsed() < PATIENCE, "never connected again");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(second.run::<String>(&["GET", LEASE]), holder.to_string());
    let event = tokio::time::timeout(PATIENCE, events.recv()).await.expect("an event in time");
    assert!(event.is_ok(), "{event:?}");
}
