//! What is absent is the architecture. This test reads the sources and holds it (ARCHITECTURE.md, "What is absent").
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};

/// A word that may stand in some files only, and why.
struct Rule {
    word: &'static str,
    allowed: &'static [&'static str],
    why: &'static str,
}

const RULES: &[Rule] = &[
    Rule { word: "redis::", allowed: &["store/redis"], why: "one file knows Redis" },
    Rule { word: "rusqlite", allowed: &["store/sqlite"], why: "one file knows SQLite" },
    Rule { word: "wasmtime", allowed: &["plugin/"], why: "an upgrade of wasmtime touches one folder" },
    Rule { word: "SystemTime", allowed: &["clock.rs"], why: "time is read in one place" },
    Rule { word: "std::time::Instant", allowed: &[], why: "leases are measured on CLOCK_BOOTTIME" },
    Rule { word: "Instant::now", allowed: &["clock.rs"], why: "time is read in one place" },
    Rule { word: "Timestamp::now", allowed: &["clock.rs"], why: "time is read in one place" },
    Rule { word: "clock_gettime", allowed: &["clock.rs"], why: "time is read in one place" },
    Rule {
        word: "crate::plugin",
        allowed: &["plugin/", "role/", "images.rs", "check.rs", "author/"],
        why: "stores know no plugins",
    },
    Rule {
        word: "crate::store",
        allowed: &["store/", "role/", "supervisor.rs", "check.rs", "config", "author/"],
        why: "plugins know no stores",
    },
    Rule { word: "crate::role", allowed: &["role/", "supervisor.rs"], why: "calls go one way" },
    Rule { word: "crate::supervisor", allowed: &["main.rs", "author/"], why: "calls go one way" },
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The code of a file: without its comments and its tests, which may name what they like.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("\nmod tests {").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

#[test]
fn each_dependency_and_the_clock_stay_where_they_belong() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&source, &mut files);
    assert!(files.len() > 10, "the sources were not found");
    let mut broken = Vec::new();
    for file in &files {
        let name = file.strip_prefix(&source).unwrap().to_str().unwrap().to_owned();
        let code = code(file);
        for rule in RULES {
            let allowed = rule.allowed.iter().any(|prefix| name.starts_with(prefix));
            // `store::redis` is our own module, `redis` the library.
            let named = code.match_indices(rule.word).any(|(at, _)| !code[..at].ends_with("::"));
            if named && !allowed {
                broken.push(format!("{name} names `{}`: {}", rule.word, rule.why));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn core_is_pure_and_lease_arithmetic_is_in_its_timing() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("core");
    let manifest = fs::read_to_string(core.join("Cargo.toml")).unwrap();
    let dependencies: Vec<&str> = manifest
        .split("[dependencies]")
        .nth(1)
        .unwrap()
        .split('[')
        .next()
        .unwrap()
        .lines()
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty())
        .collect();
    assert_eq!(dependencies, ["thiserror", "uuid"], "core has no dependency that does I/O");

    let mut files = Vec::new();
    sources(&core.join("src"), &mut files);
    for file in files {
        let code = code(&file);
        for word in ["async ", "std::fs", "std::net", "std::env", "::now(", "rand::"] {
            assert!(!code.contains(word), "{} names `{word}`: core is pure", file.display());
        }
        if !file.ends_with("timing.rs") {
            for word in [".ttl -", "skew()", ".drain("] {
                assert!(!code.contains(word), "{} computes with `{word}`: that is timing's", file.display());
            }
        }
    }
}
