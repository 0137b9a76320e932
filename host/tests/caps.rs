//! The caps of the sandbox: whatever a plugin takes too much of, it is refused by name, and the host and other instances
//! live. Cases by their numbers in CASES.md.
//!
//! Odd programs are written as text here: commands, since `wasi:cli/run` is the shortest way into a component. The others
//! are deeds of `rogue` (tests/guest), which `make guests` builds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::clock;
use tenure::config::RoleName;
use tenure::gate::Gate;
use tenure::grants::Grants;
use tenure::plugin::engine::Engine;
use tenure::plugin::{CallError, Deadline, Instance, PluginSpec, Seat};
use tenure_core::Instant;
use tokio::sync::{Notify, watch};
use tracing::subscriber::DefaultGuard;

/// One engine, as in a host: what one plugin does must not harm the next.
struct Sandbox {
    engine: Engine,
    /// Nobody is told to stop.
    notice: watch::Sender<bool>,
}

impl Sandbox {
    fn new() -> Self {
        Self { engine: Engine::new().unwrap(), notice: watch::Sender::new(false) }
    }

    async fn start(&self, bytes: &[u8], deed: &str) -> Result<Box<dyn Instance>, CallError> {
        let settings = [("tick".to_owned(), deed.to_owned())].into();
        let (role, grants) = (RoleName::new("test").unwrap(), Grants::default());
        let spec = PluginSpec { role, settings, memory: 64 << 20, grants };
        let image = self.engine.load(bytes, &spec).unwrap();
        let seat = Seat {
            instance: "host-1".to_owned(),
            gate: Arc::new(Gate::new(7, Instant::NEVER)),
            notice: self.notice.subscribe(),
            resign: Arc::new(Notify::new()),
            state: None,
            slot: Arc::default(),
        };
        let mut instance = image.start(seat, &soon()).await?;
        instance.elected(None, &soon()).await?;
        Ok(instance)
    }

    /// What a program is refused, when it starts or when it runs; and then another instance works.
    async fn refusal_of(&self, text: &str) -> String {
        let ended = match self.start(&program(text), "ok").await {
            Ok(mut instance) => instance.tick(&soon()).await.map(drop),
            Err(error) => Err(error),
        };
        self.another_works().await;
        words(ended)
    }

    /// What the rogue is refused in a tick; and then another instance works.
    async fn refusal_of_deed(&self, deed: &str) -> String {
        let ended = self.start(&rogue(), deed).await.unwrap().tick(&soon()).await.map(drop);
        self.another_works().await;
        words(ended)
    }

    async fn another_works(&self) {
        self.start(&rogue(), "ok").await.unwrap().tick(&soon()).await.unwrap();
    }
}

/// The words of a limit that was met.
fn words(ended: Result<(), CallError>) -> String {
    match ended {
        Err(CallError::Limit(words)) => words,
        other => panic!("no limit: {other:?}"),
    }
}

/// A deadline that a call which ends by itself does not meet.
fn soon() -> Deadline {
    let now = clock::now();
    Deadline::new(now, now.plus(Duration::from_secs(20)))
}

fn rogue() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/wasm32-wasip2/guest/rogue.wasm");
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; run `make guests` first", path.display()))
}

/// A command. `text` makes a core instance `$main` that exports `run`, which returns 0.
fn program(text: &str) -> Vec<u8> {
    let whole = format!(
        r#"(component
            {text}
            (func $run (result (result)) (canon lift (core func $main "run")))
            (instance $runs (export "run" (func $run)))
            (export "wasi:cli/run@0.2.0" (instance $runs)))"#
    );
    wat::parse_str(&whole).unwrap_or_else(|error| panic!("{error}"))
}

/// A command made of one core module, of which only `run` does anything.
fn module(items: &str, run: &str) -> String {
    format!(
        r#"(core module $module {items} (func (export "run") (result i32) {run} i32.const 0))
           (core instance $main (instantiate $module))"#
    )
}

/// A command that calls `$f`, a function of an imported interface, with what `run` puts on the stack.
fn caller(import: &str, signature: &str, run: &str) -> String {
    format!(
        r#"{import}
        (core module $memory
            (memory (export "memory") 1000)
            (func (export "realloc") (param i32 i32 i32 i32) (result i32) unreachable))
        (core instance $memory (instantiate $memory))
        (core func $f (canon lower (func $f) (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
        (core module $module
            (import "host" "f" (func $f {signature}))
            (func (export "run") (result i32) {run} i32.const 0))
        (core instance $main (instantiate $module (with "host" (instance (export "f" (func $f))))))"#
    )
}

const LOG: &str = r#"(import "wasi:logging/logging@0.1.0-draft" (instance $logging
        (type $names (enum "trace" "debug" "info" "warn" "error" "critical"))
        (export "level" (type $level (eq $names)))
        (export "log" (func (param "level" $level) (param "context" string) (param "message" string)))))
    (alias export $logging "log" (func $f))"#;

/// `log(info, context, message)`, both of them zeroes from the start of the memory.
fn log(context: usize, message: usize) -> String {
    format!("(call $f (i32.const 2) (i32.const 0) (i32.const {context}) (i32.const 0) (i32.const {message}))")
}

/// Collects what the host logs while it lives.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn collect() -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn p14_a_memory_above_the_cap_is_refused_at_the_start_and_when_it_grows() {
    let sandbox = Sandbox::new();
    for giant in [
        module("(memory 2000)", ""),
        module("(memory 1)", "(if (i32.eq (memory.grow (i32.const 65535)) (i32.const -1)) (then unreachable))"),
        // Memories of 64 bits are memories too.
        module("(memory i64 1)", "(if (i64.eq (memory.grow (i64.const 65536)) (i64.const -1)) (then unreachable))"),
    ] {
        let words = sandbox.refusal_of(&giant).await;
        assert!(words.starts_with("memory: ") && words.contains("its limit is 64 MiB"), "{words}");
    }
}

#[tokio::test]
async fn p14_several_memories_share_one_cap() {
    let words = Sandbox::new().refusal_of(&module("(memory 600) (memory 600)", "")).await;
    assert!(words.starts_with("memory: ") && words.contains("its limit is 64 MiB"), "{words}");
}

#[tokio::test]
async fn p14_a_giant_table_is_refused_at_the_start_and_when_it_grows() {
    let sandbox = Sandbox::new();
    let grow = |by: u32| {
        format!("(if (i32.eq (table.grow (ref.null func) (i32.const {by})) (i32.const -1)) (then unreachable))")
    };
    for giant in [
        module("(table 9000000 funcref)", ""),
        module("(table 1 funcref)", &grow(1_000_000)),
        module("(table 1 funcref)", &grow(u32::MAX)),
        // Together they are as large.
        module("(table 600000 funcref) (table 600000 funcref)", ""),
    ] {
        let words = sandbox.refusal_of(&giant).await;
        assert!(words.starts_with("tables: ") && words.contains("the limit is 1000000"), "{words}");
    }
}

#[tokio::test]
async fn p14_many_memories_tables_and_core_instances_are_refused() {
    let sandbox = Sandbox::new();
    let instances = "(core instance (instantiate $empty))".repeat(64);
    for (many, name) in [
        (module(&"(memory 0)".repeat(17), ""), "memory count too high at 17"),
        (module(&"(table 0 funcref)".repeat(65), ""), "table count too high at 65"),
        (format!("(core module $empty) {instances} {}", module("", "")), "instance count too high at 65"),
    ] {
        let words = sandbox.refusal_of(&many).await;
        assert!(words.starts_with(name) && words.contains("the limits are 64 instances"), "{words}");
    }
}

#[tokio::test]
async fn random_bytes_are_refused_above_a_mebibyte() {
    let import = |name: &str, function: &str| {
        format!(
            r#"(import "{name}" (instance $random (export "{function}" (func (param "len" u64) (result (list u8))))))
               (alias export $random "{function}" (func $f))"#
        )
    };
    let sandbox = Sandbox::new();
    for import in [
        import("wasi:random/random@0.2.0", "get-random-bytes"),
        import("wasi:random/insecure@0.2.0", "get-insecure-random-bytes"),
    ] {
        let words = sandbox
            .refusal_of(&caller(&import, "(param i64 i32)", "(call $f (i64.const 1048577) (i32.const 0))"))
            .await;
        assert!(words.starts_with("random bytes: ") && words.contains("1048576"), "{words}");
    }
}

#[tokio::test]
async fn a_huge_text_for_a_host_function_is_refused() {
    let config = r#"(import "wasi:config/store@0.2.0-rc.1" (instance $config
            (type $cases (variant (case "upstream" string) (case "io" string)))
            (export "error" (type $error (eq $cases)))
            (export "get" (func (param "key" string) (result (result (option string) (error $error)))))))
        (alias export $config "get" (func $f))"#;
    let key = "(call $f (i32.const 0) (i32.const 60000000) (i32.const 0))";
    let sandbox = Sandbox::new();
    for huge in [
        caller(LOG, "(param i32 i32 i32 i32 i32)", &log(5, 60_000_000)),
        caller(LOG, "(param i32 i32 i32 i32 i32)", &log(60_000_000, 5)),
        caller(config, "(param i32 i32 i32)", key),
    ] {
        let words = sandbox.refusal_of(&huge).await;
        assert!(words.starts_with("bytes passed: ") && words.contains("8 MiB"), "{words}");
    }
}

/// A context is a name. It is cut, and so are lines; what is left of both is bounded.
#[tokio::test]
async fn a_long_line_and_a_long_context_are_cut() {
    let (log, _guard) = Log::collect();
    let sandbox = Sandbox::new();
    let text = caller(LOG, "(param i32 i32 i32 i32 i32)", &self::log(1_000_000, 1_000_000));
    sandbox.start(&program(&text), "ok").await.unwrap().tick(&soon()).await.unwrap();
    let text = log.text();
    assert!(text.contains("cut_bytes=991808"), "what was cut is said");
    assert!(text.len() < 100_000, "{} bytes", text.len());
}

#[tokio::test]
async fn p13_a_flood_of_lines_is_capped_and_counted() {
    for deed in ["flood", "log"] {
        let (log, _guard) = Log::collect();
        let sandbox = Sandbox::new();
        let began = clock::now();
        sandbox.start(&rogue(), deed).await.unwrap().tick(&soon()).await.unwrap();
        let seconds = clock::now().since(began).as_secs() + 1;
        let text = log.text();
        let lines = text.lines().filter(|line| line.contains("flood ")).count() as u64;
        // The rogue says a few other things too.
        assert!((990..=1_000 * (seconds + 1)).contains(&lines), "{lines} lines in {seconds} s");
        let report = "the plugin wrote more than 1000 lines a second: some were dropped";
        assert!(text.contains(report), "what was dropped is said, at the latest at the instance's end");
        sandbox.another_works().await;
    }
}

#[tokio::test]
async fn p13_a_line_without_end_is_cut_and_counted() {
    let (log, _guard) = Log::collect();
    let sandbox = Sandbox::new();
    sandbox.start(&rogue(), "endless line").await.unwrap().tick(&soon()).await.unwrap();
    let text = log.text();
    // Of ten million bytes; the last few are still in the guest.
    let cut = text.split("cut_bytes=").nth(1).and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    assert!(cut.is_some_and(|cut: u32| cut > 9_900_000), "{cut:?}");
    assert!(text.len() < 100_000, "{} bytes", text.len());
    sandbox.another_works().await;
}

/// WASI lets a guest write as much as it was told that it may, and no more.
#[tokio::test]
async fn p13_a_write_above_what_was_offered_is_refused() {
    let text = r#"
        (import "wasi:io/error@0.2.0" (instance $errors (export "error" (type (sub resource)))))
        (alias export $errors "error" (type $error))
        (import "wasi:io/streams@0.2.0" (instance $streams
            (export "output-stream" (type $stream (sub resource)))
            (alias outer 1 $error (type $error))
            (type $cases (variant (case "last-operation-failed" (own $error)) (case "closed")))
            (export "stream-error" (type $stream_error (eq $cases)))
            (export "[method]output-stream.write" (func (param "self" (borrow $stream)) (param "contents" (list u8))
                (result (result (error $stream_error)))))))
        (alias export $streams "output-stream" (type $stream))
        (alias export $streams "[method]output-stream.write" (func $write))
        (import "wasi:cli/stdout@0.2.0" (instance $stdout
            (alias outer 1 $stream (type $stream))
            (export "get-stdout" (func (result (own $stream))))))
        (alias export $stdout "get-stdout" (func $get))
        (core module $memory (memory (export "memory") 10))
        (core instance $memory (instantiate $memory))
        (core func $write (canon lower (func $write) (memory (core memory $memory "memory"))))
        (core func $get (canon lower (func $get)))
        (core module $module
            (import "host" "write" (func $write (param i32 i32 i32 i32)))
            (import "host" "get" (func $get (result i32)))
            (func (export "run") (result i32)
                (call $write (call $get) (i32.const 0) (i32.const 65537) (i32.const 0))
                i32.const 0))
        (core instance $main (instantiate $module (with "host" (instance
            (export "write" (func $write)) (export "get" (func $get))))))"#;
    let words = Sandbox::new().refusal_of(text).await;
    assert!(words.starts_with("output: 65537 bytes") && words.contains("the limit is 65536"), "{words}");
}

#[tokio::test]
async fn an_endless_list_of_handles_is_refused() {
    let words = Sandbox::new().refusal_of_deed("hoard").await;
    assert!(words.starts_with("handles: ") && words.contains("10000"), "{words}");
}

/// Handles of a component's own resources are kept by the host too.
#[tokio::test]
async fn an_endless_list_of_a_components_own_handles_is_refused() {
    let text = r#"
        (type $thing (resource (rep i32)))
        (core func $new (canon resource.new $thing))
        (core module $module
            (import "host" "new" (func $new (param i32) (result i32)))
            (func (export "run") (result i32) (loop (drop (call $new (i32.const 1))) (br 0)) i32.const 0))
        (core instance $main (instantiate $module (with "host" (instance (export "new" (func $new))))))"#;
    let words = Sandbox::new().refusal_of(text).await;
    assert!(words.starts_with("handles: ") && words.contains("10000"), "{words}");
}

/// What a host function does for a guest costs no fuel: without a limit of time to a turn, such guests would keep every
/// thread for seconds, and with it every other role.
#[test]
fn p2_guests_that_keep_the_host_busy_give_way() {
    let runtime = tenure::supervisor::plugin_runtime().unwrap();
    let sandbox = Arc::new(Sandbox::new());
    let text = caller(LOG, "(param i32 i32 i32 i32 i32)", &format!("(loop {} (br 0))", log(5, 8_000_000)));
    let bytes = Arc::new(program(&text));
    let latest = runtime.block_on(async {
        let mut worker = sandbox.start(&rogue(), "ok").await.unwrap();
        let mut chatters = Vec::new();
        for _ in 0..=std::thread::available_parallelism().unwrap().get() {
            let (sandbox, bytes) = (sandbox.clone(), bytes.clone());
            chatters.push(tokio::spawn(async move {
                let mut chatterer = sandbox.start(&bytes, "ok").await.unwrap();
                let deadline = Deadline::new(clock::now(), clock::now().plus(Duration::from_secs(3)));
                assert_eq!(chatterer.tick(&deadline).await, Err(CallError::CutOff));
            }));
        }
        let work = tokio::spawn(async move {
            let (mut latest, mut due) = (Duration::ZERO, clock::now());
            for _ in 0..100 {
                due = clock::now().max(due.plus(Duration::from_millis(20)));
                clock::sleep_until(due).await;
                worker.tick(&soon()).await.unwrap();
                latest = latest.max(clock::now().since(due));
            }
            latest
        });
        let latest = work.await.unwrap();
        for chatter in chatters {
            chatter.await.unwrap();
        }
        latest
    });
    assert!(latest < Duration::from_millis(500), "a tick ended {latest:?} after it was due");
}
