//! From a file to an image: the cache, the forms of plugins, what is missing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tenure::clock;
use tenure::config::{Config, RoleName};
use tenure::gate::Gate;
use tenure::grants::Grants;
use tenure::images::Images;
use tenure::plugin::engine::{Engine, digest};
use tenure::plugin::{CallError, Deadline, Image, Kind, Next, PluginSpec, Seat};
use tenure_core::Instant;
use tokio::sync::{Notify, watch};

fn wasm(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/wasm32-wasip2/guest").join(name);
    assert!(path.exists(), "{} is missing: run `make guests` first", path.display());
    path
}

fn spec(memory: u64) -> PluginSpec {
    let (role, settings) = (RoleName::new("test").unwrap(), BTreeMap::new());
    PluginSpec { role, settings, memory, grants: Grants::default() }
}

fn seat() -> Seat {
    Seat {
        instance: "host-1".to_owned(),
        gate: Arc::new(Gate::new(7, Instant::NEVER)),
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

async fn runs(image: &dyn Image) -> Result<Next, CallError> {
    let mut instance = image.start(seat(), &soon()).await?;
    instance.elected(None, &soon()).await?;
    instance.tick(&soon()).await
}

/// A cache in a folder of its own, and a plugin.
struct Scene {
    folder: TempDir,
    bytes: Vec<u8>,
}

impl Scene {
    fn new() -> Self {
        Self { folder: TempDir::new().unwrap(), bytes: fs::read(wasm("heartbeat.wasm")).unwrap() }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("compiled")
    }

    fn load(&self) -> Arc<dyn Image> {
        Engine::new().unwrap().keeping_in(&self.cache()).load(&self.bytes, &spec(64 << 20)).unwrap()
    }

    fn entries(&self) -> Vec<PathBuf> {
        fs::read_dir(self.cache()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    fn entry(&self) -> PathBuf {
        let [entry] = &self.entries()[..] else { panic!("not one entry: {:?}", self.entries()) };
        entry.clone()
    }

    /// Whether the next load uses the entry, which it says by its time; and whether the plugin works either way.
    async fn is_hit(&self) -> bool {
        let entry = self.entry();
        let old = SystemTime::now() - Duration::from_secs(3600);
        File::open(&entry).unwrap().set_modified(old).unwrap();
        let file = || fs::symlink_metadata(self.entry()).unwrap().ino();
        let before = file();
        assert!(runs(&*self.load()).await.is_ok());
        // A new one is another file.
        file() == before && fs::metadata(entry).unwrap().modified().unwrap() > old + Duration::from_secs(60)
    }
}

#[tokio::test]
async fn a_compiled_plugin_is_kept_and_used_again() {
    let scene = Scene::new();
    assert!(runs(&*scene.load()).await.is_ok());
    assert_eq!(fs::metadata(scene.entry()).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(scene.cache()).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(scene.is_hit().await);
}

#[tokio::test]
async fn p7_an_entry_in_any_doubt_is_a_miss() {
    let scene = Scene::new();
    scene.load();
    let good = fs::read(scene.entry()).unwrap();
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let mut older = good.clone();
    older[15] = 0;
    for (what, bytes) in [
        ("empty", &[][..]),
        ("foreign", b"\x7fELF nonsense that is long enough to have a head and a digest of thirty-two bytes"),
        ("cut in the head", &good[..20]),
        ("cut in the code", &good[..good.len() - 100]),
        ("longer", &[&good[..], b"x"].concat()),
        ("changed", &flipped),
        ("of another layout", &older),
    ] {
        fs::write(scene.entry(), bytes).unwrap();
        assert!(!scene.is_hit().await, "{what}");
        assert!(scene.is_hit().await, "{what}: it was made anew");
    }
    // Sealed for another plugin, under this one's name.
    let other = Scene { folder: TempDir::new().unwrap(), bytes: fs::read(wasm("metronome.wasm")).unwrap() };
    other.load();
    fs::copy(other.entry(), scene.entry()).unwrap();
    assert!(!scene.is_hit().await);
    // Open to others.
    fs::set_permissions(scene.entry(), Permissions::from_mode(0o666)).unwrap();
    assert!(!scene.is_hit().await);
    // A link, even to a good one.
    let aside = scene.folder.path().join("aside");
    fs::rename(scene.entry(), &aside).unwrap();
    symlink(&aside, scene.cache().join(aside_name(&scene))).unwrap();
    assert!(!scene.is_hit().await);
}

/// The name of the one entry, which is in a cache of the same plugin.
fn aside_name(scene: &Scene) -> String {
    let twin = Scene { folder: TempDir::new().unwrap(), bytes: scene.bytes.clone() };
    twin.load();
    twin.entry().file_name().unwrap().to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_folder_that_others_can_write_is_no_cache() {
    let scene = Scene::new();
    fs::create_dir(scene.cache()).unwrap();
    fs::set_permissions(scene.cache(), Permissions::from_mode(0o777)).unwrap();
    assert!(runs(&*scene.load()).await.is_ok());
    assert!(scene.entries().is_empty());
    // Nor is a file.
    let scene = Scene::new();
    fs::write(scene.cache(), "").unwrap();
    assert!(runs(&*scene.load()).await.is_ok());
}

#[tokio::test]
async fn a_program_for_wasi_0_1_is_a_command() {
    let hello = wat::parse_str(
        r#"(module
            (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 1)
            (data (i32.const 8) "hello\n")
            (func (export "_start")
                (i32.store (i32.const 0) (i32.const 8))
                (i32.store (i32.const 4) (i32.const 6))
                (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 20)))
                (call $exit (i32.const 0))))"#,
    )
    .unwrap();
    let engine = Engine::new().unwrap();
    let image = engine.load(&hello, &spec(64 << 20)).unwrap();
    assert_eq!(image.kind(), Kind::Command);
    assert_eq!(runs(&*image).await, Ok(Next::Done));
    assert_eq!(engine.inspect(&hello).unwrap().form.to_string(), "a core module for WASI 0.1");
}

#[test]
fn p12_what_is_missing_is_named_with_its_mend() {
    let engine = Engine::new().unwrap();
    let load = |bytes: &[u8]| engine.load(bytes, &spec(64 << 20)).err().expect("it loads").to_string();
    let component = |import: &str| {
        let text = format!(
            r#"(component
                (import "{import}" (instance $i (export "f" (func))))
                (core module $m (func (export "run") (result i32) i32.const 0))
                (core instance $c (instantiate $m))
                (func $run (result (result)) (canon lift (core func $c "run")))
                (instance $r (export "run" (func $run)))
                (export "wasi:cli/run@0.2.0" (instance $r)))"#
        );
        wat::parse_str(text).unwrap()
    };
    let told = load(&component("acme:queue/push@1.0.0"));
    assert!(told.starts_with("it imports acme:queue/push@1.0.0, which this host does not offer"), "{told}");
    assert!(told.contains("offered are tenure:plugin/leadership@0.1.0") && told.contains("build the plugin"), "{told}");
    let told = load(&component("tenure:plugin/leadership@0.9.0"));
    assert!(told.contains("tenure:plugin/leadership@0.9.0") && told.contains("leadership@0.1.0"), "{told}");
    let told = load(&fs::read(wasm("courier.wasm")).unwrap());
    assert_eq!(
        told,
        "it imports wasi:keyvalue/store@0.2.0-draft and wasi:http/types@0.2.4, which its role does not grant: write \
         grants = { keyvalue = true, http = [\"https://…\"] }"
    );
}

#[tokio::test]
async fn p10_a_plugin_that_does_not_fit_fails_alone() {
    let engine = Engine::new().unwrap();
    let bytes = fs::read(wasm("heartbeat.wasm")).unwrap();
    let (small, large) = (engine.load(&bytes, &spec(1 << 20)).unwrap(), engine.load(&bytes, &spec(64 << 20)).unwrap());
    let Err(CallError::Limit(words)) = runs(&*small).await else { panic!("it fits") };
    assert!(words.starts_with("memory: ") && words.ends_with("raise `memory` in its role"), "{words}");
    assert!(runs(&*large).await.is_ok());
}

/// What loading the plugins of a file says.
fn problems(role: &str) -> Vec<String> {
    let folder = TempDir::new().unwrap();
    let text = format!("[role.a]\nplugin = {:?}\n{role}", wasm("heartbeat.wasm"));
    let config = Config::parse(&text, &folder.path().join("tenure.toml")).unwrap();
    Images::load(&config).err().unwrap_or_default()
}

#[test]
fn a_pin_a_secret_and_a_folder_are_looked_at_before_the_start() {
    let right = digest(&fs::read(wasm("heartbeat.wasm")).unwrap());
    assert_eq!(problems(&format!("sha256 = '{}'", right.to_uppercase())), [""; 0]);
    let told = problems(&format!("sha256 = '{}'", "0".repeat(64)));
    assert!(told[0].contains(&format!("its sha256 is {right}, and not the one that is pinned")), "{told:?}");
    let told = problems("grants = { secrets = { key = 'file:no/such' } }");
    assert!(told[0].contains("its secret `key` (file:") && told[0].contains("cannot read the file"), "{told:?}");
    let told = problems("grants = { dirs = [{ host = 'no/such', guest = '/x' }] }");
    assert!(told[0].contains("no/such (grants.dirs) is not there: make it"), "{told:?}");
}
