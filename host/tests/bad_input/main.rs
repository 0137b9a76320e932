//! Whatever is broken, and however: a message that says what, where and what to do, exit code 2, and no panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod configs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use tempfile::TempDir;
use tenure::config::Config;

const VALID: &str = r#"
[instance]
name = "web-1"
data_dir = "data"

[store]
url = "redis://:secret@127.0.0.1:6379/1"
prefix = "tenure"

[lease]
ttl = "30s"
renew_every = "10s"
request_timeout = "5s"
skew = "300ms"

[stop]
grace = "1s"
within = "2s"
fuel = 100_000_000

[role.sweeper]
plugin = "sweeper.wasm"
every = "5s"
tick_timeout = "1m 30s"
settings = { bucket = "a", depth = 3, share = 0.5, dry = false }
memory = "64MiB"
lease = { ttl = "10s", renew_every = "3s", request_timeout = "1s" }
stop = { within = "500ms" }
"#;

/// The lines that a configuration in `tenure.toml` gets, without that name.
fn said(toml: &str) -> Vec<String> {
    let Err(errors) = Config::parse(toml, Path::new("tenure.toml")) else { return Vec::new() };
    errors.lines().iter().map(|line| line.strip_prefix("tenure.toml:").unwrap().to_owned()).collect()
}

/// A plugin that works.
fn heartbeat() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/wasm32-wasip2/guest/heartbeat.wasm");
    assert!(path.exists(), "{} is missing: run `make guests` first", path.display());
    path
}

/// What `tenure check` says of a file, having ended with exit code 2.
fn check(file: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tenure")).arg("check").arg(file).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{}: {said}", file.display());
    assert!(!said.contains("panicked"), "{}: {said}", file.display());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{}", file.display());
    said
}

#[test]
fn every_mistake_has_its_message() {
    let all = configs::all();
    assert!(all.len() >= 60);
    for broken in &all {
        assert_eq!(said(&broken.toml), broken.says, "of\n{}", broken.toml);
    }
}

#[test]
fn the_command_says_the_same_and_exits_with_2() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tenure.toml");
    for broken in configs::all() {
        fs::write(&file, &broken.toml).unwrap();
        let said = check(&file);
        for line in broken.says {
            assert!(said.contains(&format!("tenure.toml:{line}\n")), "{line}\nis missing in\n{said}");
        }
    }
}

#[test]
fn no_password_is_ever_repeated() {
    let mut with_password = configs::all();
    with_password.retain(|broken| broken.toml.contains("hunter2"));
    assert!(with_password.len() >= 5);
    for broken in with_password {
        assert!(!said(&broken.toml).concat().contains("hunter2"), "{}", broken.toml);
    }
}

#[test]
fn files_that_cannot_be_read_say_why() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    for (path, words) in [
        (folder.path().join("missing.toml"), "missing.toml: cannot read the file: No such file"),
        (folder.path().to_owned(), "is a folder; name a TOML file"),
        (PathBuf::from("/dev/zero"), "/dev/zero: is larger than 4 MiB; name a TOML file"),
        (file("latin1.toml", b"# caf\xe9"), "latin1.toml: is not UTF-8 text from byte 5 on"),
        (file("long.toml", &vec![b'#'; 5 << 20]), "long.toml: is larger than 4 MiB"),
        (file("deep.toml", "a.".repeat(1 << 20).as_bytes()), "not TOML"),
        (file("nested.toml", format!("a = {}", "[".repeat(1 << 20)).as_bytes()), "not TOML"),
    ] {
        let said = check(&path);
        assert!(said.contains(words), "{words}\nis missing in\n{said}");
    }
}

#[test]
fn plugins_that_cannot_be_loaded_say_why() {
    let heartbeat = fs::read(heartbeat()).unwrap();
    let flipped = {
        let mut bytes = heartbeat.clone();
        bytes[heartbeat.len() / 2..].iter_mut().for_each(|byte| *byte = !*byte);
        bytes
    };
    let folder = TempDir::new().unwrap();
    let file = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    fs::create_dir(folder.path().join("folder.wasm")).unwrap();
    file("empty.wasm", b"");
    file("text.wasm", b"#!/bin/sh\n");
    file("preamble.wasm", b"\0asm");
    file("truncated.wasm", &heartbeat[..heartbeat.len() / 2]);
    file("flipped.wasm", &flipped);
    file("core.wasm", b"\0asm\x01\0\0\0");
    // `(import "env" "foo" (func))`
    file("import.wasm", b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x02\x0b\x01\x03env\x03foo\0\0");
    file("nothing.wasm", b"\0asm\x0d\0\x01\0");
    file("future.wasm", b"\0asm\xff\0\x01\0");
    let cases = [
        ("missing.wasm", "cannot read the file: No such file"),
        ("folder.wasm", "cannot read the file: Is a directory"),
        ("/dev/zero", "is larger than 512 MiB; name a .wasm file"),
        ("empty.wasm", "not WebAssembly"),
        ("text.wasm", "not WebAssembly"),
        ("preamble.wasm", "not WebAssembly"),
        ("truncated.wasm", "not a valid component"),
        ("flipped.wasm", "not a valid component"),
        ("core.wasm", "it exports nothing, but a plugin exports"),
        ("import.wasm", "a core module that can't be made a component"),
        ("nothing.wasm", "it exports nothing, but a plugin exports"),
        ("future.wasm", "not a valid component"),
    ];
    let roles: String =
        cases.iter().enumerate().map(|(at, (plugin, _))| format!("[role.r{at}]\nplugin = '{plugin}'\n")).collect();
    file("tenure.toml", roles.as_bytes());
    // All of them in one go: nobody mends a file in twelve rounds.
    let said = check(&folder.path().join("tenure.toml"));
    assert_eq!(said.lines().filter(|line| line.starts_with("tenure: ")).count(), cases.len(), "{said}");
    for (at, (plugin, words)) in cases.iter().enumerate() {
        let line = said.lines().find(|line| line.contains(&format!(" role.r{at}: "))).expect(plugin);
        assert!(line.contains(plugin) && line.contains(words), "{words}\nis missing in\n{line}");
    }
}

#[test]
fn a_broken_file_does_not_hide_a_broken_plugin() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tenure.toml");
    fs::write(&file, "[instance]\nnmae = 'x'\n[role.a]\nplugin = 'missing.wasm'\n").unwrap();
    let said = check(&file);
    assert!(said.contains("did you mean `name`?") && said.contains("missing.wasm: cannot read the file"), "{said}");
}

#[test]
fn a_reader_that_went_away_changes_no_exit_code() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tenure.toml");
    for (toml, code) in [(format!("[role.a]\nplugin = '{}'\n", heartbeat().display()), 0), (String::new(), 2)] {
        fs::write(&file, toml).unwrap();
        let gone = || {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            writer
        };
        let mut check = Command::new(env!("CARGO_BIN_EXE_tenure"));
        let status = check.arg("check").arg(&file).stdout(gone()).stderr(gone()).status().unwrap();
        assert_eq!(status.code(), Some(code));
    }
}

#[test]
fn the_command_line_is_checked_too() {
    for arguments in [&["chekc", "x.toml"][..], &["check"], &[], &["check", "--log-level", "a=b=c", "x.toml"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_tenure")).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn the_valid_file_is_valid() {
    assert_eq!(said(VALID), [""; 0]);
}

/// A valid file with some bytes cut out, put in, or taken from elsewhere in it.
fn mutated() -> impl Strategy<Value = String> {
    let change = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..20_usize, ".{0,4}");
    prop::collection::vec(change, 1..6).prop_map(|changes| {
        let mut chars: Vec<char> = VALID.chars().collect();
        for (at, from, length, new) in changes {
            let (at, from) = (at.index(chars.len()), from.index(chars.len()));
            let moved: Vec<char> = chars[from..].iter().take(length).copied().chain(new.chars()).collect();
            let end = (at + length).min(chars.len());
            chars.splice(at..end, moved);
        }
        chars.into_iter().collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn no_text_panics_and_every_message_has_its_place(toml in mutated()) {
        for line in said(&toml) {
            let mut parts = line.splitn(3, ':');
            let place: Vec<usize> = parts.by_ref().take(2).map(|number| number.parse().unwrap()).collect();
            prop_assert!(place[0] >= 1 && place[0] <= toml.lines().count() + 1 && place[1] >= 1, "{}", line);
            prop_assert!(!line.contains('\n'), "{}", line);
        }
    }

    #[test]
    fn no_bytes_panic(toml in ".{0,200}") {
        said(&toml);
    }
}
