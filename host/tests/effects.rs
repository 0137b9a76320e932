//! What a plugin can do to the outside, and what stops it: state, HTTP, settings, secrets, folders.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use tenure::clock;
use tenure::config::RoleName;
use tenure::gate::Gate;
use tenure::grants::{Dir, Grants, Origin, SecretSource, Variable};
use tenure::plugin::engine::Engine;
use tenure::plugin::{CallError, Deadline, Instance, PluginSpec, Seat};
use tenure::state::{Fence, FencedState, StateError, StateOp, StateReply, StateStore};
use tenure_core::{ClaimId, Instant};
use tokio::sync::{Notify, watch};

/// A store that holds no lease: whatever gets as far as here has passed the gate.
#[derive(Default)]
struct Shelf {
    state: Mutex<HashMap<String, Vec<u8>>>,
    hangs: bool,
}

#[async_trait]
impl StateStore for Shelf {
    async fn run(&self, _: &Fence, op: &StateOp, _: Duration) -> Result<StateReply, StateError> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        let mut state = self.state.lock().unwrap();
        Ok(match op {
            StateOp::Get(keys) => StateReply::Values(keys.iter().map(|key| state.get(key).cloned()).collect()),
            StateOp::Exists(key) => StateReply::Found(state.contains_key(key)),
            StateOp::Keys(_) => StateReply::Keys { keys: state.keys().cloned().collect(), cursor: None },
            StateOp::Set(entries) => {
                state.extend(entries.clone());
                StateReply::Done
            }
            StateOp::Delete(keys) => {
                keys.iter().for_each(|key| drop(state.remove(key)));
                StateReply::Done
            }
            StateOp::Increment { delta, .. } => StateReply::Number(*delta),
        })
    }
}

/// An HTTP server on loopback that keeps the heads and bodies of what it is sent.
struct Server {
    port: u16,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Answers every request with what `answer` makes of its first line; not at all where that is empty.
    fn start(answer: fn(&str) -> String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, seen) = (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(Vec::new())));
        let keeps = seen.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let keeps = keeps.clone();
                thread::spawn(move || serve(stream, &keeps, answer));
            }
        });
        Self { port, seen }
    }

    fn ok() -> Self {
        Self::start(|_| "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi".to_owned())
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn seen(&self) -> MutexGuard<'_, Vec<String>> {
        self.seen.lock().unwrap()
    }
}

fn serve(stream: TcpStream, seen: &Mutex<Vec<String>>, answer: fn(&str) -> String) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
            head.push_str(&line);
        }
        seen.lock().unwrap().push(head.clone());
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        seen.lock().unwrap().last_mut().unwrap().push_str(&String::from_utf8_lossy(&body[..length.min(100)]));
        let answer = answer(head.lines().next().unwrap_or_default());
        if answer.is_empty() {
            thread::sleep(Duration::from_secs(60));
        }
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// A courier, and what it is started with.
struct Scene {
    grants: Grants,
    settings: BTreeMap<String, String>,
    gate: Arc<Gate>,
    shelf: Arc<Shelf>,
}

impl Scene {
    fn new(grants: Grants) -> Self {
        let gate = Arc::new(Gate::new(7, clock::now().plus(Duration::from_secs(3600))));
        Self { grants, settings: BTreeMap::new(), gate, shelf: Arc::default() }
    }

    fn calling(origins: &[&str]) -> Self {
        let http = origins.iter().map(|origin| Origin::parse(origin).unwrap()).collect();
        Self::new(Grants { http, keyvalue: true, ..Grants::default() })
    }

    async fn start(&self, steps: &str) -> Result<Box<dyn Instance>, CallError> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/wasm32-wasip2/guest/courier.wasm");
        let bytes = std::fs::read(&path).unwrap_or_else(|_| panic!("{} is missing: run `make guests`", path.display()));
        let mut settings = self.settings.clone();
        settings.insert("do".to_owned(), steps.to_owned());
        // Linked whatever is granted here: what it may do is asked when it does it.
        let mut grants = self.grants.clone();
        grants.keyvalue = true;
        if grants.http.is_empty() {
            grants.http.push(Origin::parse("https://nowhere.invalid").unwrap());
        }
        let role = RoleName::new("courier").unwrap();
        let spec = PluginSpec { role: role.clone(), settings, memory: 128 << 20, grants };
        let image = engine().load(&bytes, &spec).unwrap();
        let fence = Fence { role, claim: ClaimId(uuid::Uuid::nil()), term: 7 };
        let state = FencedState::new(self.shelf.clone(), fence, self.gate.clone(), Duration::from_secs(60));
        let seat = Seat {
            instance: "host-1".to_owned(),
            gate: self.gate.clone(),
            notice: watch::Sender::new(false).subscribe(),
            resign: Arc::new(Notify::new()),
            state: Some(state),
            slot: Arc::default(),
        };
        let mut instance = image.start(seat, &soon()).await?;
        instance.elected(None, &soon()).await.unwrap();
        Ok(instance)
    }

    /// What comes of some steps.
    async fn told(&self, steps: &str) -> String {
        let mut instance = self.start(steps).await.unwrap();
        match instance.tick(&soon()).await {
            Err(CallError::Failed(words)) => words,
            other => panic!("{steps}: {other:?}"),
        }
    }
}

/// Compiled once for all tests, each of which is a process.
fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::new().unwrap().keeping_in(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled")))
}

fn soon() -> Deadline {
    let now = clock::now();
    Deadline::new(now, now.plus(Duration::from_secs(30)))
}

#[tokio::test]
async fn state_is_read_and_written() {
    let scene = Scene::calling(&[]);
    let told =
        scene.told("get a; set a 1; get a; set-many b 2; get-many b1 c; exists a; delete a; exists a; keys").await;
    let expected = r#"Ok(None); Ok(()); Ok(Some("1")); Ok(()); Ok([Some([50]), None]); Ok(true); Ok(()); Ok(false)"#;
    assert!(told.starts_with(expected), "{told}");
    let told = scene.told("delete-many b1 b2; keys; increment n 5").await;
    assert_eq!(told, "Ok(()); Ok([]); Ok(5)");
}

#[tokio::test]
async fn limits_of_state_reach_the_plugin_as_refusals() {
    let scene = Scene::calling(&[]);
    let told = scene.told("set-large a 1048577; set tenure/slot 1; get tenure/slot").await;
    assert!(told.contains(r#"Err(Refused("the value of \"a\" has 1.0 MiB, the limit is 1 MiB"#), "{told}");
    assert_eq!(told.matches("are the host's own").count(), 2, "{told}");
}

/// Every call of the state and of HTTP, with nothing between it and the outside but the gate.
#[tokio::test]
async fn past_the_trust_no_call_has_an_effect() {
    let server = Server::ok();
    let scene = Scene::calling(&[&server.url()]);
    let url = server.url();
    for step in [
        "set a 1",
        "set-many a 1",
        "delete b",
        "delete-many b",
        "increment n 1",
        "get b",
        "get-many b",
        "exists b",
        "keys",
        &format!("fetch {url}"),
        &format!("post {url} x"),
        &format!("at-once {url} 3"),
    ] {
        let scene = Scene {
            gate: Arc::new(Gate::new(7, clock::now().plus(Duration::from_secs(60)))),
            ..Scene::calling(&[&url])
        };
        scene.shelf.state.lock().unwrap().insert("b".to_owned(), b"kept".to_vec());
        let mut instance = scene.start(step).await.unwrap();
        scene.gate.close();
        let Err(CallError::Failed(told)) = instance.tick(&soon()).await else { panic!("{step}: no answer") };
        assert!(told.to_ascii_lowercase().contains("fenced"), "{step}: {told}");
        assert_eq!(scene.shelf.state.lock().unwrap().len(), 1, "{step}");
    }
    assert_eq!(scene.told(&format!("fetch {url}")).await, "200 hi", "the server was there");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn p4_a_store_that_hangs_holds_up_no_demotion() {
    let scene = Scene { shelf: Arc::new(Shelf { hangs: true, ..Shelf::default() }), ..Scene::calling(&[]) };
    let mut instance = scene.start("set a 1").await.unwrap();
    let deadline = Deadline::new(clock::now(), Instant::NEVER);
    let began = clock::now();
    let (ticked, ()) = tokio::join!(instance.tick(&deadline), async {
        tokio::task::yield_now().await;
        deadline.bring_forward(clock::now().plus(Duration::from_millis(20)));
    });
    assert_eq!(ticked, Err(CallError::CutOff));
    assert!(clock::now().since(began) < Duration::from_secs(5));
}

#[tokio::test]
async fn requests_say_who_asks_and_no_plugin_can_say_otherwise() {
    let server = Server::ok();
    let scene = Scene::calling(&[&server.url()]);
    let url = server.url();
    let told =
        scene.told(&format!("post {url}/hook?a=b hello; header {url} tenure-term 99; header {url} x-own yes")).await;
    assert!(
        told.starts_with("200 hi; Denied(\"a header is not accepted (HeaderError::Forbidden)\"); 200 hi"),
        "{told}"
    );
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen[0].starts_with("POST /hook?a=b HTTP/1.1\r\n") && seen[0].ends_with("hello"), "{}", seen[0]);
    assert!(seen.iter().all(|head| head.contains("tenure-role: courier\r\n") && head.contains("tenure-term: 7\r\n")));
    assert!(seen[1].contains("x-own: yes"));
}

#[tokio::test]
async fn what_is_not_granted_is_not_called() {
    let server = Server::ok();
    let (url, port) = (server.url(), server.port);
    let path = Scene::calling(&[&format!("{url}/v1")]);
    let told =
        path.told(&format!("fetch {url}/v1/x; fetch {url}/v2; fetch {url}/v1/../v2; fetch {url}/v1/%2e%2e/v2")).await;
    assert!(told.starts_with("200 hi; Denied(") && told.matches("Denied(").count() == 3, "{told}");
    // A wildcard covers no address of this machine, in whatever dress.
    let any = Scene::calling(&["http://*:*", "https://*:*"]);
    for host in
        ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "127.1", "2130706433", "0x7f.0.0.1"]
    {
        let told = any.told(&format!("fetch http://{host}:{port}/")).await;
        let prohibited = told.contains("the name leads to an address of the host's own machine");
        let unknown = told.contains("DnsError");
        assert!(prohibited || unknown, "{host}: {told}");
    }
    let told = any.told(&format!("fetch http://user@127.0.0.1:{port}/; fetch ftp://127.0.0.1/")).await;
    assert_eq!(told.matches("Denied(").count(), 2, "{told}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_not_followed() {
    let server = Server::start(|line| match line {
        "GET /from HTTP/1.1" => "HTTP/1.1 302 Found\r\nlocation: /to\r\ncontent-length: 0\r\n\r\n".to_owned(),
        _ => "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi".to_owned(),
    });
    let scene = Scene::calling(&[&server.url()]);
    assert_eq!(scene.told(&format!("fetch {}/from", server.url())).await, "302 ");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_server_that_hangs_is_waited_for_as_long_as_asked_and_trusted() {
    let server = Server::start(|_| String::new());
    let scene = Scene::calling(&[&server.url()]);
    let began = clock::now();
    assert_eq!(scene.told(&format!("within 50 {}", server.url())).await, "TimedOut");
    // The trust ends while the plugin waits.
    let scene = Scene { gate: Arc::new(Gate::new(7, clock::now().plus(Duration::from_millis(300)))), ..scene };
    assert_eq!(scene.told(&format!("fetch {}", server.url())).await, "Fenced");
    assert!(clock::now().since(began) < Duration::from_secs(20));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_failure_with_its_cause() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let scene = Scene::calling(&[&format!("http://127.0.0.1:{port}"), "http://no-such-name.invalid"]);
    let told = scene.told(&format!("fetch http://127.0.0.1:{port}/; fetch http://no-such-name.invalid/")).await;
    assert!(told.contains("ConnectionRefused") && told.contains("DnsError"), "{told}");
}

#[tokio::test]
async fn caps_of_requests_have_names() {
    let server = Server::ok();
    let scene = Scene::calling(&[&server.url()]);
    let url = server.url();
    let told = scene.told(&format!("post-large {url} 16777216; post-large {url} 16777217")).await;
    assert!(told.starts_with("200 hi; Failed(") && told.contains("HttpRequestBodySize(Some(16777216))"), "{told}");
    let mut instance = scene.start(&format!("header-large {url} 70000")).await.unwrap();
    let Err(CallError::Limit(words)) = instance.tick(&soon()).await else { panic!("no limit") };
    assert!(words.starts_with("headers: ") && words.contains("64 KiB"), "{words}");
    let hanging = Server::start(|_| String::new());
    let scene = Scene {
        gate: Arc::new(Gate::new(7, clock::now().plus(Duration::from_millis(800)))),
        ..Scene::calling(&[&hanging.url()])
    };
    let told = scene.told(&format!("at-once {} 33", hanging.url())).await;
    assert!(told.contains("ErrorCode::ConnectionLimitReached"), "{told}");
}

#[tokio::test]
async fn secrets_are_settings_that_nobody_writes_down() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "s3cr3t-token\n").unwrap();
    let secrets = [("token".to_owned(), SecretSource::File(file.clone()))].into();
    let mut scene = Scene::new(Grants { secrets, ..Grants::default() });
    scene.settings.insert("plain".to_owned(), "seen".to_owned());
    let told = scene.told("setting token; settings; setting plain").await;
    assert!(told.starts_with(r#"Some("[secret]"); "#), "{told}");
    assert!(told.contains(r#"("plain", "seen")"#) && !told.contains(r#"("token""#), "{told}");
    // It is read anew for each instance.
    std::fs::write(&file, "another-one").unwrap();
    assert!(scene.told("setting token").await.contains("[secret]"));
    std::fs::remove_file(&file).unwrap();
    let Err(CallError::Failed(words)) = scene.start("setting token").await else { panic!("it started") };
    assert!(words.starts_with("the secret `token`: cannot read the file"), "{words}");
}

#[tokio::test]
async fn the_environment_and_folders_are_what_is_granted() {
    let folder = tempfile::TempDir::new().unwrap();
    for name in ["read", "write"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
        std::fs::write(folder.path().join(name).join("file"), name).unwrap();
    }
    let dir = |name: &str, write| Dir { host: folder.path().join(name), guest: format!("/{name}"), write };
    let env =
        vec![Variable::Set("MODE".to_owned(), "fast".to_owned()), Variable::OfHost("CARGO_MANIFEST_DIR".to_owned())];
    let scene = Scene::new(Grants { env, dirs: vec![dir("read", false), dir("write", true)], ..Grants::default() });
    let told = scene.told("env MODE; env TENURE_ROLE; env PATH; read /read/file; read /write/file").await;
    assert_eq!(told, r#"Some("fast"); Some("courier"); None; Ok("read"); Ok("write")"#);
    assert!(scene.told("env CARGO_MANIFEST_DIR").await.contains("host"));
    let told = scene.told("write /read/new x; write /write/new x; read /etc/passwd; read /read/../write/file").await;
    assert!(told.contains("; Ok(()); Err("), "{told}");
    assert!(!folder.path().join("read/new").exists() && folder.path().join("write/new").exists());
    assert_eq!(told.matches("Err(").count(), 3, "{told}");
}

#[tokio::test]
async fn nothing_is_granted_by_itself() {
    let told =
        Scene::new(Grants::default()).told("env PATH; env HOME; read /etc/passwd; fetch http://127.0.0.1:1/").await;
    assert!(told.starts_with("None; None; Err(") && told.contains("Denied("), "{told}");
}
