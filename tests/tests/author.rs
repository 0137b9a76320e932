//! `tenure plugin inspect` and `run`, as an author uses them; and HTTPS, whose authorities come from the environment.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use system_tests::host::binary;
use system_tests::redis::free_port;
use system_tests::{plugin, wait_for};
use tempfile::TempDir;

/// `tenure plugin run`, with its log in a file; killed when dropped.
struct Run {
    process: Child,
    log: std::path::PathBuf,
}

impl Run {
    fn start(folder: &Path, name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let log = folder.join(name);
        let process = Command::new(binary())
            .args(["plugin", "run", "--log-format", "text"])
            .args(arguments)
            .env("XDG_CACHE_HOME", folder.join("cache"))
            .env_remove("SSL_CERT_FILE")
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { process, log }
    }

    fn wait_for(&self, words: &str) {
        wait_for(words, || fs::read_to_string(&self.log).ok().filter(|log| log.contains(words)));
    }

    /// Ctrl-C, and its exit code.
    fn stop(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.process), Signal::INT).unwrap();
        wait_for("the end", || self.process.try_wait().ok().flatten()).code()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_plugin_runs_without_a_store_and_a_new_build_takes_over() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("My Job.wasm");
    fs::copy(plugin("rogue"), &file).unwrap();
    let run = Run::start(folder.path(), "log", &[file.to_str().unwrap(), "--watch", "--set", "after_ms=5"], &[]);
    run.wait_for("count 3");
    fs::write(&file, "half a file").unwrap();
    run.wait_for("the old version goes on");
    // Another build of the same: one more section, which says nothing.
    let other = [&fs::read(plugin("rogue")).unwrap()[..], &[0, 2, 1, b'x']].concat();
    fs::write(&file, other).unwrap();
    run.wait_for("starting the new version");
    run.wait_for("term=2");
    let log = fs::read_to_string(&run.log).unwrap();
    let left = log.split("demoted with ").nth(1).and_then(|rest| rest.split(':').next()).unwrap().to_owned();
    run.wait_for(&format!("elected with {left}"));
    assert_eq!(run.stop(), Some(0));
}

#[test]
fn state_is_shown_and_a_wrong_file_is_said_to_be_one() {
    let folder = TempDir::new().unwrap();
    let courier = plugin("courier");
    let run =
        Run::start(folder.path(), "log", &[courier.to_str().unwrap(), "--set", "do=set a 1", "--set", "log=1"], &[]);
    run.wait_for("state: a = \"1\"");
    assert_eq!(run.stop(), Some(0));
    let output = Command::new(binary()).args(["plugin", "inspect"]).arg(&courier).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("kind      a job\n") && said.contains("grants = { keyvalue = true, http = ["), "{said}");
    let output = Command::new(binary()).args(["plugin", "inspect", "Cargo.toml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not WebAssembly"));
}

#[test]
fn https_is_checked_against_the_machines_authorities() {
    let folder = TempDir::new().unwrap();
    let (key, cert) = (folder.path().join("key.pem"), folder.path().join("cert.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let port = free_port().to_string();
    let mut server = Command::new("openssl")
        .args(["s_server", "-quiet", "-www", "-accept", &port, "-key"])
        .arg(&key)
        .arg("-cert")
        .arg(&cert)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let url = format!("https://localhost:{port}");
    let steps = format!("do=fetch {url}/");
    let arguments =
        [plugin("courier"), "--http".into(), url.into(), "--set".into(), steps.into(), "--set".into(), "log=1".into()];
    let arguments: Vec<&str> = arguments.iter().map(|argument| argument.to_str().unwrap()).collect();
    let trusted = Run::start(folder.path(), "trusted", &arguments, &[("SSL_CERT_FILE", cert.to_str().unwrap())]);
    trusted.wait_for("did 200 ");
    assert_eq!(trusted.stop(), Some(0));
    let unknown = Run::start(folder.path(), "unknown", &arguments, &[]);
    wait_for("a refusal", || {
        let log = fs::read_to_string(&unknown.log).ok()?;
        // On a machine without any authority it is said that there is none.
        (log.contains("TlsCertificateError") || log.contains("no certificates to check")).then_some(())
    });
    drop(unknown);
    server.kill().unwrap();
    server.wait().unwrap();
}
