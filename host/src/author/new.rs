//! `tenure plugin new`: a project for a new job that builds with one command.
//!
//! A project is whole: it brings the interfaces, the SDK of its language and the versions of its tools along, as they were when
//! this host was built. So it builds anywhere, with nothing but its language's own package registry, and what it builds fits the
//! host that made it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::ValueEnum;

/// The most characters of a name, which becomes that of a role too.
const LONGEST_NAME: usize = 64;
/// The SDK's own package in a project in Rust.
const SDK: &str = "tenure-guest";

/// What a plugin can be written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// Rust, with the SDK.
    Rust,
    /// Python, with componentize-py.
    Python,
    /// JavaScript, with componentize-qjs.
    Javascript,
    /// C, with clang.
    C,
}

/// A file of a project: its path in there, and what is in it. In text, `{{name}}` and `{{version}}` are filled in.
type Files = &'static [(&'static str, &'static [u8])];

/// The files of a folder, by their paths in it.
macro_rules! files {
    ($folder:literal as $shown:literal: $($path:literal)*) => {
        &[$((concat!($shown, $path), include_bytes!(concat!($folder, $path)) as &[u8])),*]
    };
}

/// Every interface, in the folder `$shown`.
macro_rules! wit {
    ($shown:literal) => {
        files!("../../../guest-sdk/wit/" as $shown:
            "tenure.wit" "deps/clocks/monotonic-clock.wit" "deps/config/store.wit" "deps/http/outgoing-handler.wit"
            "deps/http/types.wit" "deps/io/error.wit" "deps/io/poll.wit" "deps/io/streams.wit"
            "deps/keyvalue/atomics.wit" "deps/keyvalue/batch.wit" "deps/keyvalue/store.wit" "deps/logging/logging.wit")
    };
}

const CONFIGURATION: Files = files!("new/" as "": "tenure.toml");

const RUST: Files = files!("new/rust/" as "": "Cargo.toml" "Makefile" "README.md" "src/lib.rs");
const RUST_MANIFEST: Files = &[
    // More than the project needs: cargo leaves out what it does not, and keeps the versions of the rest.
    ("Cargo.lock", include_bytes!("../../../Cargo.lock")),
    ("tenure-guest/Cargo.toml", include_bytes!("new/rust/tenure-guest.toml")),
    (".gitignore", include_bytes!("new/rust/gitignore")),
];
const RUST_SDK: Files = files!("../../../guest-sdk/src/" as "tenure-guest/src/":
    "http.rs" "job.rs" "leadership.rs" "lib.rs" "logger.rs" "settings.rs" "state.rs");

const PYTHON: Files = files!("new/python/" as "": "Makefile" "README.md" "job.py");
const PYTHON_TOOLS: Files = &[
    ("requirements.txt", include_bytes!("../../../examples/python/requirements.txt")),
    (".gitignore", include_bytes!("new/python/gitignore")),
];

const JAVASCRIPT: Files = files!("new/javascript/" as "": "Makefile" "README.md" "job.js");
const JAVASCRIPT_TOOLS: Files = &[
    ("package.json", include_bytes!("../../../examples/javascript/package.json")),
    ("package-lock.json", include_bytes!("../../../examples/javascript/package-lock.json")),
    (".gitignore", include_bytes!("new/javascript/gitignore")),
];
const JAVASCRIPT_WIT: Files =
    files!("../../../guest-sdk/javascript/wit/" as "wit/": "tenure.wit" "deps/random/random.wit");
const JAVASCRIPT_SHARED_WIT: Files =
    files!("../../../guest-sdk/wit/" as "wit/": "deps/config/store.wit" "deps/logging/logging.wit");

const C: Files = files!("new/c/" as "": "Makefile" "README.md" "job.c");
const C_BINDINGS: Files = files!("../../../guest-sdk/c/" as "bindings/":
    "job_plugin.c" "job_plugin.h" "job_plugin_component_type.o");
const C_IGNORED: Files = &[(".gitignore", include_bytes!("new/c/gitignore"))];

impl Language {
    fn files(self) -> &'static [Files] {
        match self {
            Self::Rust => &[CONFIGURATION, RUST, RUST_MANIFEST, RUST_SDK, wit!("tenure-guest/wit/")],
            Self::Python => &[CONFIGURATION, PYTHON, PYTHON_TOOLS, wit!("wit/")],
            Self::Javascript => &[CONFIGURATION, JAVASCRIPT, JAVASCRIPT_TOOLS, JAVASCRIPT_WIT, JAVASCRIPT_SHARED_WIT],
            Self::C => &[CONFIGURATION, C, C_BINDINGS, C_IGNORED],
        }
    }
}

/// Makes the folder `name` in `parent`, with a project in it, and returns its path.
///
/// # Errors
///
/// Where the name can't be one, where there is something of that name already, and where a file can't be written.
pub fn create(parent: &Path, name: &str, language: Language) -> anyhow::Result<PathBuf> {
    check_name(name)?;
    let folder = parent.join(name);
    if folder.symlink_metadata().is_ok() {
        bail!("{} is there already and is left as it is: choose another name, or remove it", folder.display());
    }
    for (path, contents) in language.files().iter().copied().flatten() {
        let path = folder.join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        }
        fs::write(&path, filled_in(contents, name)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(folder)
}

/// What to do with a new project, for a person to read.
#[must_use]
pub fn what_next(name: &str) -> String {
    format!("Made {name}. To build it and to run it:\n\n    make -C {name}\n    tenure plugin run {name}/{name}.wasm\n")
}

/// A name is that of a folder, a file, a role and a package at once: what all of them allow.
fn check_name(name: &str) -> anyhow::Result<()> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !name.starts_with(|c: char| c.is_ascii_lowercase()) || !name.chars().all(allowed) {
        bail!("{name:?} can't be the name of a plugin: write a lower-case letter, then such letters, digits and `-`");
    }
    if name.len() > LONGEST_NAME {
        bail!("{name:?} has {} characters: a plugin's name has at most {LONGEST_NAME}", name.len());
    }
    if name == SDK {
        bail!("{SDK} is the name of the SDK: choose another one");
    }
    Ok(())
}

fn filled_in(contents: &[u8], name: &str) -> Vec<u8> {
    match std::str::from_utf8(contents) {
        Ok(text) => text.replace("{{name}}", name).replace("{{version}}", env!("CARGO_PKG_VERSION")).into_bytes(),
        Err(_) => contents.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::BTreeSet;

    use super::*;

    const LANGUAGES: [Language; 4] = [Language::Rust, Language::Python, Language::Javascript, Language::C];

    /// The paths of all files below `folder`.
    fn paths(folder: &Path) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if entry.path().is_dir() {
                found.extend(paths(&entry.path()).into_iter().map(|path| format!("{name}/{path}")));
            } else {
                found.insert(name);
            }
        }
        found
    }

    #[test]
    fn nothing_is_left_to_fill_in() {
        let parent = tempfile::tempdir().unwrap();
        for (number, language) in LANGUAGES.into_iter().enumerate() {
            let folder = create(parent.path(), &format!("a-{number}"), language).unwrap();
            for path in paths(&folder) {
                let contents = fs::read(folder.join(&path)).unwrap();
                assert!(!String::from_utf8_lossy(&contents).contains("{{"), "{language:?}: {path}");
            }
            let makefile = fs::read_to_string(folder.join("Makefile")).unwrap();
            assert!(makefile.contains(&format!("a-{number}.wasm")), "{makefile}");
        }
    }

    #[test]
    fn a_project_in_rust_has_the_whole_sdk() {
        let parent = tempfile::tempdir().unwrap();
        let sdk = create(parent.path(), "a", Language::Rust).unwrap().join(SDK);
        let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest-sdk");
        for folder in ["src", "wit"] {
            assert_eq!(paths(&sdk.join(folder)), paths(&original.join(folder)), "add the file to `new.rs`");
        }
        let workspace = include_str!("../../../Cargo.toml");
        let manifest = fs::read_to_string(sdk.join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("[dependencies]\n").nth(1).unwrap();
        for line in dependencies.lines() {
            assert!(workspace.lines().any(|other| other == line), "`{line}` is not as in the workspace");
        }
        let wanted = include_str!("../../../guest-sdk/Cargo.toml").split("[dependencies]\n").nth(1).unwrap();
        let wanted = wanted.lines().take_while(|line| !line.is_empty());
        assert_eq!(
            dependencies.lines().count(),
            wanted.count(),
            "the SDK's dependencies are not those of the original"
        );
    }

    #[test]
    fn a_project_in_python_has_all_interfaces() {
        let parent = tempfile::tempdir().unwrap();
        let folder = create(parent.path(), "a", Language::Python).unwrap();
        let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest-sdk/wit");
        assert_eq!(paths(&folder.join("wit")), paths(&original), "add the file to `new.rs`");
    }

    #[test]
    fn what_is_there_is_left_as_it_is() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("a"), "mine").unwrap();
        let error = create(parent.path(), "a", Language::C).unwrap_err().to_string();
        assert!(error.contains("is there already"), "{error}");
        assert_eq!(fs::read_to_string(parent.path().join("a")).unwrap(), "mine");
    }

    #[test]
    fn names_that_can_not_be_one() {
        let parent = tempfile::tempdir().unwrap();
        let long = "a".repeat(LONGEST_NAME + 1);
        for name in ["", "A", "1", "-a", "a b", "a/b", "..", "a.b", "a_b", "ä", "{{name}}", SDK, &long] {
            assert!(create(parent.path(), name, Language::C).is_err(), "{name:?}");
        }
        assert!(paths(parent.path()).is_empty());
        create(parent.path(), &long[1..], Language::C).unwrap();
    }

    #[test]
    fn a_folder_that_can_not_be_written_is_named() {
        let error = create(Path::new("/proc"), "a", Language::C).unwrap_err();
        assert!(format!("{error:#}").contains("/proc/a"), "{error:#}");
    }
}
