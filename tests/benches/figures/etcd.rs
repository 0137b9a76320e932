//! The same hand-over with `etcdctl lock`, where etcd is installed: SIGTERM of the holder to the next one's lock.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use system_tests::redis::free_port;
use system_tests::{PATIENCE, wait_for};
use tempfile::TempDir;

use crate::Sample;

/// A running etcd with nothing in it.
struct Etcd {
    process: Child,
    endpoint: String,
    _folder: TempDir,
}

/// An `etcdctl lock` and the moment at which it has the lock.
struct Lock {
    process: Child,
    held: Receiver<Instant>,
}

/// Some hand-overs; none where etcd is not installed.
pub(crate) fn hand_over(times: usize) -> Option<Sample> {
    let etcd = Etcd::start()?;
    let mut holder = etcd.lock();
    holder.held.recv_timeout(PATIENCE).unwrap();
    Some(Sample::take(times, || {
        let next = etcd.lock();
        // Two keys below the lock's name: it stands in the queue.
        wait_for("the next one to wait for the lock", || (etcd.waiting() == 2).then_some(()));
        let asked = Instant::now();
        kill_process(Pid::from_child(&holder.process), Signal::TERM).unwrap();
        let held = next.held.recv_timeout(PATIENCE).unwrap();
        holder.process.wait().unwrap();
        holder = next;
        held - asked
    }))
}

impl Etcd {
    fn start() -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let (endpoint, peer) =
            (format!("http://127.0.0.1:{}", free_port()), format!("http://127.0.0.1:{}", free_port()));
        let process = Command::new("etcd")
            .arg("--data-dir")
            .arg(folder.path())
            .args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let etcd = Self { process, endpoint, _folder: folder };
        wait_for("etcd to answer", || etcd.command(&["endpoint", "health"]).status().ok()?.success().then_some(()));
        Some(etcd)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.endpoint]).args(arguments);
        command.stderr(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn lock(&self) -> Lock {
        let mut process = self.command(&["lock", "bench"]).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, held) = mpsc::channel();
        thread::spawn(move || {
            for _ in output.lines().map_while(Result::ok) {
                let _ = sender.send(Instant::now());
            }
        });
        Lock { process, held }
    }

    fn waiting(&self) -> usize {
        let output =
            self.command(&["get", "--prefix", "--keys-only", "bench/"]).stdout(Stdio::piped()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).lines().filter(|line| !line.is_empty()).count()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How much faster than etcd's a hand-over is to be: its goal in words, given etcd's median.
pub(crate) fn goal(theirs: Option<Duration>) -> String {
    match theirs {
        Some(theirs) => format!("median 3 ms, and half of etcdctl lock's {theirs:.2?}"),
        None => "median 3 ms".to_owned(),
    }
}
