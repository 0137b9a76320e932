//! Plugins in other languages than Rust, and what `tenure plugin new` makes: each is built by its own Makefile and runs in a
//! real host.
//!
//! A language whose tools can't be installed here is left out, and the reason is printed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use system_tests::audit::assert_one_at_a_time;
use system_tests::host::{Host, binary, config, role};
use system_tests::{target, wait_for};
use tempfile::TempDir;

const ROLE: &str = "work";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn words(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs `make` in `folder`, as a person would; cargo shares what `make guests` has built.
fn make(folder: &Path, goal: &str) -> Output {
    let mut command = Command::new("make");
    // Where the tests themselves are run by `make`, that one's flags are not for this one.
    for variable in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL"] {
        command.env_remove(variable);
    }
    run(command.arg("-C").arg(folder).arg(goal).env("CARGO_TARGET_DIR", target()))
}

/// Builds the plugin of a folder; none, with the reason printed, where its tools can't be had.
fn built(folder: &Path, plugin: &str) -> Option<PathBuf> {
    let tools = make(folder, "tools");
    if !tools.status.success() {
        eprintln!("SKIPPED: {}", words(&tools));
        return None;
    }
    let made = make(folder, "all");
    assert!(made.status.success(), "{}", words(&made));
    Some(folder.join(plugin))
}

fn has_in_order(log: &str, words: &[&str]) -> bool {
    words.iter().try_fold(log, |log, words| log.split_once(words).map(|(_, rest)| rest)).is_some()
}

/// A folder for a host, and the configuration of one role in it.
struct Scene {
    folder: TempDir,
    toml: String,
}

impl Scene {
    /// Compiles the plugin, which takes longer than a test waits for anything else; afterwards it is in the cache.
    fn new(plugin: &Path, settings: &str, more: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let scene = Self { toml: String::new(), folder }.with(plugin, settings, more);
        fs::create_dir(scene.folder.path().join("a")).unwrap();
        let file = scene.folder.path().join("a/tenure.toml");
        fs::write(&file, &scene.toml).unwrap();
        let check = run(Command::new(binary()).arg("check").arg(&file));
        assert!(check.status.success(), "{}", words(&check));
        scene
    }

    fn with(self, plugin: &Path, settings: &str, more: &str) -> Self {
        let store = format!("sqlite:{}", self.folder.path().join("leases.sqlite").display());
        Self { toml: config("a", &store, "3s", &format!("{}{more}", role(ROLE, plugin, settings))), ..self }
    }

    fn host(&self) -> Host {
        Host::start(self.folder.path(), "a", &self.toml)
    }

    /// Runs a host until its log has `before`, stops it, and looks for `after`; all of it in this order. Then the host has been
    /// elected and demoted, each once.
    fn runs(&self, before: &[&str], after: &[&str]) {
        let mut host = self.host();
        wait_for(&format!("{before:?} in the log"), || has_in_order(&host.log_text(), before).then_some(()));
        host.stop();
        let all = [before, after].concat();
        assert!(has_in_order(&host.log_text(), &all), "not {all:?} in {}", host.log_text());
        let lines = host.audit();
        assert_one_at_a_time(&lines, ROLE, &[]);
        let stop = lines.iter().rfind(|line| line.event() == "plugin/stop").expect("a stop");
        assert_eq!((stop.text("reason"), stop.text("outcome")), ("shutdown", "success"), "{}", stop.json);
        assert!(stop.margin_ms() > 0.0, "{}", stop.json);
    }

    /// Runs a host until its log and its audit have an error with these words.
    fn fails(&self, error: &str) {
        let mut host = self.host();
        host.wait_for_log(error);
        wait_for(&format!("{error:?} in the audit"), || {
            host.audit().iter().any(|line| line.text("error").contains(error)).then_some(())
        });
        host.stop();
    }
}

#[test]
fn a_job_in_python() {
    let Some(plugin) = built(&repository().join("examples/python"), "retention.wasm") else { return };
    let data = TempDir::new().unwrap();
    let grants = format!(
        "grants = {{ dirs = [{{ host = \"{}\", guest = \"/data\", write = true }}] }}\n",
        data.path().display()
    );
    for name in ["1.log", "2.log", "3.log", "kept.txt"] {
        fs::write(data.path().join(name), "").unwrap();
    }
    let scene = Scene::new(&plugin, "pattern = \"*.log\", keep = 1, every_ms = 100", &grants);
    scene.runs(
        &["elected: keeps 1 files; 0 removed so far", "removed ", "removed ", " in term 1"],
        &["demoted: Reason_Shutdown"],
    );
    let names: Vec<_> = fs::read_dir(data.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names.iter().any(|name| name == "kept.txt"), "{names:?}");
    scene.runs(&["elected: keeps 1 files; 2 removed so far"], &["demoted: Reason_Shutdown"]);

    let scene = scene.with(&plugin, "keep = \"many\"", &grants);
    scene.fails("the setting `keep` is 'many', and should be like 5");
    // What nobody catches is a crash. Its traceback is what standard error had.
    let scene = scene.with(&plugin, "pattern = \"/\"", &grants);
    scene.fails("NotImplementedError: Non-relative patterns are unsupported");
    let scene = scene.with(&plugin, "", "");
    scene.fails("no /data: grant it with dirs");
}

#[test]
fn a_job_in_javascript() {
    let Some(plugin) = built(&repository().join("examples/javascript"), "drill.wasm") else { return };
    let scene = Scene::new(&plugin, "targets = \"ä, b\", every_ms = 50", "");
    scene.runs(
        &["elected: 2 targets, the last was none", "drew ä in term 1", "drew b in term 1", "drew ä in term 1"],
        &["demoted: shutdown"],
    );
    // The last draw was handed over, in its own letters; and what comes next is another one.
    let mut host = scene.host();
    host.wait_for_log("in term 2");
    host.stop();
    let log = host.log();
    let messages: Vec<_> = log.iter().filter_map(|line| line["message"].as_str()).collect();
    let last = messages.iter().find_map(|line| line.strip_prefix("elected: 2 targets, the last was ")).unwrap();
    let first = messages.iter().find_map(|line| line.strip_prefix("drew ")?.strip_suffix(" in term 2")).unwrap();
    assert!(["ä", "b"].contains(&last), "{last}");
    assert_ne!(first, last);

    let scene = scene.with(&plugin, "targets = \"only-one\"", "");
    scene.fails("set `targets`: two or more names, with commas between them");
}

#[test]
fn two_instances_in_javascript_draw_differently() {
    let Some(plugin) = built(&repository().join("examples/javascript"), "drill.wasm") else { return };
    let targets: Vec<_> = (0..1000).map(|number| number.to_string()).collect();
    let settings = format!("targets = \"{}\", every_ms = 20", targets.join(","));
    let draws = || {
        // A store of its own: what an earlier leader handed over would change the draws too.
        let scene = Scene::new(&plugin, &settings, "");
        let mut host = scene.host();
        let draws = wait_for("three draws", || {
            let drawn: Vec<_> = host
                .log()
                .iter()
                .filter_map(|line| {
                    line["message"].as_str()?.strip_prefix("drew ")?.split(' ').next().map(str::to_owned)
                })
                .collect();
            (drawn.len() >= 3).then(|| drawn[..3].to_vec())
        });
        host.stop();
        draws
    };
    assert_ne!(draws(), draws(), "a frozen generator draws the same each time");
}

#[test]
fn a_job_in_c() {
    let Some(plugin) = built(&repository().join("examples/c"), "odometer.wasm") else { return };
    let scene = Scene::new(&plugin, "", "memory = \"1MiB\"\n");
    scene.runs(
        &["elected: led for 0 s so far", "led for 1 s, in term 1", "led for 2 s, in term 1"],
        &["demoted after "],
    );
    let mut host = scene.host();
    host.wait_for_log("in term 2");
    host.stop();
    assert!(!host.log_text().contains("led for 0 s so far"), "the count was handed over: {}", host.log_text());
}

#[test]
fn a_command_in_go() {
    let Some(plugin) = built(&repository().join("examples/go-command"), "inbox.wasm") else { return };
    let inbox = TempDir::new().unwrap();
    fs::write(inbox.path().join("a.txt"), "").unwrap();
    let grants = format!("grants = {{ dirs = [{{ host = \"{}\", guest = \"/inbox\" }}] }}\n", inbox.path().display());
    let scene = Scene::new(&plugin, "", &grants);
    scene.runs(&["work watches /inbox in term 1", "new: a.txt"], &["work was told to stop, and does"]);
    scene.runs(&["work watches /inbox in term 2", "new: a.txt"], &["work was told to stop, and does"]);
    let scene = scene.with(&plugin, "", "");
    scene.fails("inbox: open /inbox");
}

/// Makes a project with `tenure plugin new`, builds it with its one command, and lets it lead twice.
fn a_new_project(language: &str, demoted: &str) {
    let folder = TempDir::new().unwrap();
    let new =
        run(Command::new(binary()).args(["plugin", "new", "my-job", "--lang", language]).current_dir(folder.path()));
    assert!(new.status.success(), "{}", words(&new));
    assert!(words(&new).contains("make -C my-job\n"), "{}", words(&new));
    let project = folder.path().join("my-job");
    let Some(plugin) = built(&project, "my-job.wasm") else { return };
    let scene = Scene::new(&plugin, "message = \"round\"", "");
    scene.runs(&["elected in term 1, after 0 ticks", "round 1", "round 2"], &[demoted]);
    scene.runs(&["elected in term 2, after ", "round "], &[demoted]);
    let mut host = scene.host();
    host.wait_for_log("elected in term 3, after ");
    host.stop();
    let log = host.log_text();
    assert!(!log.contains("after 0 ticks"), "the count was handed over: {log}");
    // Its own file is right too. What is compiled already is not compiled again.
    symlink(scene.folder.path().join("a/data"), project.join("tenure-data")).unwrap();
    let check = run(Command::new(binary()).arg("check").arg("tenure.toml").current_dir(&project));
    assert!(check.status.success(), "{}", words(&check));
}

#[test]
fn a_new_project_in_rust() {
    a_new_project("rust", "demoted: Reason::Shutdown");
}

#[test]
fn a_new_project_in_python() {
    a_new_project("python", "demoted: Reason_Shutdown");
}

#[test]
fn a_new_project_in_javascript() {
    a_new_project("javascript", "demoted: shutdown");
}

#[test]
fn a_new_project_in_c() {
    a_new_project("c", "demoted");
}
