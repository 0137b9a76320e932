//! What the system tests are made of: a Redis of their own, a network that fails on command, host processes, and the audit
//! files that these leave.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

pub mod audit;
pub mod disk;
pub mod host;
pub mod proxy;
pub mod receiver;
pub mod redis;

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything takes that is to happen, on a machine that does ten other things.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `look` finds something, and returns it. The only way in which these tests wait for anything.
///
/// # Panics
///
/// After [`PATIENCE`], with `what` was waited for.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Looks at something over and over for as long as `time`, and fails when it stops holding.
///
/// # Panics
///
/// When `holds` returns false.
pub fn holds_for(time: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while began.elapsed() < time {
        assert!(holds(), "{what} stopped holding after {:?}", began.elapsed());
        thread::sleep(Duration::from_millis(2));
    }
}

/// The folder that cargo builds into.
///
/// # Panics
///
/// Where the test was not built by cargo.
#[must_use]
pub fn target() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target").canonicalize().expect("cargo's target folder")
}

/// A plugin that `make guests` has built.
///
/// # Panics
///
/// Where it has not.
#[must_use]
pub fn plugin(name: &str) -> PathBuf {
    let path = target().join(format!("wasm32-wasip2/guest/{name}.wasm"));
    assert!(path.exists(), "{} is missing: run `make guests` first", path.display());
    path
}
