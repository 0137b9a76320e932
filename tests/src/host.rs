//! A host process.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::audit::{self, Line};
use crate::redis::pid;
use crate::{target, wait_for};

/// A running `tenure run`, with a folder of its own; killed when dropped.
pub struct Host {
    folder: PathBuf,
    process: Child,
}

/// The text of a configuration.
#[must_use]
pub fn config(name: &str, store_url: &str, ttl: &str, roles: &str) -> String {
    format!(
        "[instance]\nname = \"{name}\"\ndata_dir = \"data\"\n[store]\nurl = \"{store_url}\"\n[lease]\nttl = \"{ttl}\"\n{roles}"
    )
}

/// A role that runs a plugin with some settings, as TOML.
#[must_use]
pub fn role(name: &str, plugin: &Path, settings: &str) -> String {
    format!("[role.{name}]\nplugin = \"{}\"\nsettings = {{ {settings} }}\n", plugin.display())
}

/// The host that was built with the same profile as this test.
///
/// # Panics
///
/// Where it is missing.
#[must_use]
pub fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let binary = test.parent().and_then(Path::parent).expect("cargo's folders").join("tenure");
    assert!(binary.exists(), "{} is missing: `make test` and `make bench` build it", binary.display());
    binary
}

/// Hosts share their compiled plugins, as hosts of different machines could not: compiling is not what the tests wait for.
fn share_compiled(data: &Path) {
    let shared = target().join("tmp/compiled");
    DirBuilder::new().recursive(true).mode(0o700).create(&shared).expect("a folder for compiled plugins");
    fs::create_dir_all(data).expect("a folder for the host's data");
    // Started again in the same folder, it is there already.
    let _ = symlink(shared, data.join("compiled"));
}

impl Host {
    /// Starts a host with this configuration, in the folder `name` below `parent`.
    ///
    /// # Panics
    ///
    /// Where the binary is missing.
    #[must_use]
    pub fn start(parent: &Path, name: &str, config: &str) -> Self {
        let folder = parent.join(name);
        fs::create_dir_all(&folder).expect("a folder for the host");
        let file = folder.join("tenure.toml");
        fs::write(&file, config).expect("to write the configuration");
        share_compiled(&folder.join("data"));
        let log = File::create(folder.join("log.jsonl")).expect("a file for the log");
        let binary = binary();
        let process = Command::new(binary)
            .arg("run")
            .arg(&file)
            .args(["--log-format", "json", "--log-level", "debug,plugin=trace"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("to start the host");
        Self { folder, process }
    }

    /// The lines of its audit file.
    #[must_use]
    pub fn audit(&self) -> Vec<Line> {
        audit::read(&self.folder.join("data/audit.jsonl"))
    }

    /// The lines of its log.
    ///
    /// # Panics
    ///
    /// Where a whole line is no JSON.
    #[must_use]
    pub fn log(&self) -> Vec<Value> {
        let text = self.log_text();
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        whole.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Its log as it is.
    #[must_use]
    pub fn log_text(&self) -> String {
        fs::read_to_string(self.folder.join("log.jsonl")).unwrap_or_default()
    }

    /// Waits until the audit has a line of this event that `fits`.
    pub fn wait_for_event(&self, event: &str, fits: impl Fn(&Line) -> bool) -> Line {
        wait_for(&format!("{event} in the audit of {}", self.folder.display()), || {
            self.audit().into_iter().find(|line| line.event() == event && fits(line))
        })
    }

    /// Waits until the plugin of a role works.
    pub fn wait_until_leading(&self, role: &str) -> Line {
        self.wait_for_event("plugin/start", |line| line.text("role") == role && line.text("outcome") == "success")
    }

    /// Waits until the log contains `words`.
    pub fn wait_for_log(&self, words: &str) {
        wait_for(&format!("\"{words}\" in the log of {}", self.folder.display()), || {
            self.log_text().contains(words).then_some(())
        });
    }

    /// Sends a signal.
    ///
    /// # Panics
    ///
    /// Where the process is gone.
    pub fn signal(&self, signal: Signal) {
        kill_process(pid(&self.process), signal).expect("to signal the host");
    }

    /// Kills the process, and says when, in microseconds since 1970.
    ///
    /// # Panics
    ///
    /// Where it can't be waited for.
    pub fn kill(&mut self) -> i64 {
        self.process.kill().expect("to kill the host");
        self.process.wait().expect("the host to end");
        jiff::Timestamp::now().as_microsecond()
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self) -> ExitStatus {
        wait_for("the host to end", || self.process.try_wait().ok().flatten())
    }

    /// SIGTERM, and waits for a clean end.
    ///
    /// # Panics
    ///
    /// Where it does not end with 0.
    pub fn stop(&mut self) {
        self.signal(Signal::TERM);
        let status = self.wait();
        assert_eq!(status.code(), Some(0), "{}", self.log_text());
    }

    /// The process's number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The process's id in its audit lines.
    ///
    /// # Panics
    ///
    /// Where it has written none.
    #[must_use]
    pub fn id(&self) -> String {
        self.audit().first().expect("a line in the audit").text("id").to_owned()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = kill_process(pid(&self.process), Signal::CONT);
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// All audit lines of some hosts.
#[must_use]
pub fn audits(hosts: &[&Host]) -> Vec<Line> {
    hosts.iter().flat_map(|host| host.audit()).collect()
}
