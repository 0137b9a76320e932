//! The audit file: one JSON object a line, in the order of the transitions.
//!
//! Written by a thread of its own: a slow or full disk delays no demotion. What could not be written is counted, said in the
//! log when it begins and when it ends, and stands in the file as a gap once it can be written again.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Map, Value, json};
use tenure_core::{Instant, Reason};
use tracing::{error, info};
use uuid::Uuid;

use crate::clock;
use crate::config::RoleName;

/// The name of the file in `instance.data_dir`.
const FILE: &str = "audit.jsonl";
/// How many lines may wait for the disk before further ones are lost, and counted.
const QUEUE: usize = 10_000;
/// How long the end of the process waits for the lines that are still queued.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// A transition that the audit tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A claim was granted.
    LeaseAcquire {
        /// What is left of the trust.
        trust: Duration,
    },
    /// The lease was lost, or could not be renewed in time.
    LeaseLost {
        /// Which of the two.
        reason: Reason,
    },
    /// The lease was released, or was not, with why.
    LeaseRelease {
        /// Why not.
        error: Option<String>,
    },
    /// `elected` has returned, or the plugin failed before that. Has exactly one [`PluginStop`](Self::PluginStop).
    PluginStart {
        /// The sha256 of the plugin.
        digest: String,
        /// From the beginning of the start.
        elapsed: Duration,
        /// Why it failed.
        error: Option<String>,
    },
    /// The plugin has stopped.
    PluginStop {
        /// Why leadership ended.
        reason: StopReason,
        /// By `demoted`.
        fuel_used: u64,
        /// From the beginning of `demoted`.
        elapsed: Duration,
        /// What was left of the trust.
        margin: Margin,
        /// How it ended, where `demoted` did not return by itself.
        error: Option<String>,
    },
    /// A tick failed.
    TickFailed {
        /// How many in a row.
        consecutive: u32,
        /// How.
        error: String,
        /// The wasm frames of a trap, innermost first.
        frames: Vec<String>,
    },
    /// The host's own task that ran the plugin panicked.
    WorkPanicked {
        /// How.
        error: String,
    },
}

/// Why a plugin was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// Its term ends, or it failed.
    Of(Reason),
    /// It has done its work: a command that runs once a slot.
    Done,
}

impl StopReason {
    /// In one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Of(reason) => reason.as_str(),
            Self::Done => "done",
        }
    }
}

/// What was left of the trust at some moment: negative where it had run out, nothing where it never ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Margin(Option<i64>);

impl Margin {
    /// The margin at `now`, in microseconds.
    #[must_use]
    pub fn at(now: Instant, trusted_until: Instant) -> Self {
        if trusted_until == Instant::NEVER {
            return Self(None);
        }
        let micros = |duration: Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self(Some(micros(trusted_until.since(now)) - micros(now.since(trusted_until))))
    }

    #[allow(clippy::cast_precision_loss, reason = "milliseconds for people")]
    fn as_ms(self) -> Option<f64> {
        self.0.map(|micros| micros as f64 / 1000.0)
    }
}

impl fmt::Display for Margin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_ms() {
            Some(ms) => write!(f, "{ms:.1} ms"),
            None => f.write_str("without end"),
        }
    }
}

/// A handle on the audit file; cheap to clone.
#[derive(Debug, Clone)]
pub struct Audit {
    lines: SyncSender<Entry>,
    lost: Arc<AtomicU64>,
    instance: Arc<str>,
    /// Tells two processes of the same instance name apart.
    id: Arc<str>,
}

#[derive(Debug)]
enum Entry {
    Line(Map<String, Value>),
    /// Everything before this is to be in the file; then tell.
    Flush(SyncSender<()>),
}

impl Audit {
    /// Opens `data_dir/audit.jsonl`, to add to its end. Several processes may share it.
    ///
    /// # Errors
    ///
    /// Where the folder or the file can't be made or opened.
    pub fn open(data_dir: &Path, instance: &str) -> anyhow::Result<Self> {
        fs::create_dir_all(data_dir)
            .with_context(|| format!("cannot make the data directory {} (instance.data_dir)", data_dir.display()))?;
        let path = data_dir.join(FILE);
        let file = append(&path).with_context(|| format!("cannot open the audit file {}", path.display()))?;
        Self::writing_to(file, path, instance)
    }

    fn writing_to(file: File, path: PathBuf, instance: &str) -> anyhow::Result<Self> {
        let (lines, queue) = mpsc::sync_channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let id = Uuid::new_v4().simple().to_string()[..8].to_owned();
        let id: Arc<str> = id.into();
        let writer = Writer {
            file,
            path,
            lost: lost.clone(),
            instance: instance.to_owned(),
            id: id.clone(),
            failing: false,
            torn: false,
        };
        thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || writer.run(&queue))
            .context("the audit thread")?;
        Ok(Self { lines, lost, instance: instance.into(), id })
    }

    /// Records a transition of `role` in `term`, with the time of now. Never waits.
    pub fn record(&self, role: &RoleName, term: u64, event: Event) {
        let (name, error, details) = describe(event);
        let mut line = Map::new();
        line.insert("ts".to_owned(), timestamp());
        line.insert("event".to_owned(), name.into());
        line.insert("outcome".to_owned(), if error.is_some() { "error" } else { "success" }.into());
        line.insert("instance".to_owned(), (&*self.instance).into());
        line.insert("id".to_owned(), (&*self.id).into());
        line.insert("role".to_owned(), role.as_str().into());
        line.insert("term".to_owned(), term.into());
        if let Value::Object(details) = details {
            line.extend(details);
        }
        if let Some(error) = error {
            line.insert("error".to_owned(), error.into());
        }
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.lines.try_send(Entry::Line(line)) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits, but not for long, until everything recorded is in the file.
    pub fn close(&self) {
        let (done, flushed) = mpsc::sync_channel(1);
        if self.lines.try_send(Entry::Flush(done)).is_ok() {
            let _ = flushed.recv_timeout(CLOSE_WITHIN);
        }
    }
}

/// RFC 3339 in UTC with microseconds.
fn timestamp() -> Value {
    format!("{:.6}", clock::wall()).into()
}

fn ms(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}

/// The name of an event, its error, and what else is to say about it.
fn describe(event: Event) -> (&'static str, Option<String>, Value) {
    match event {
        Event::LeaseAcquire { trust } => {
            let trust_ms = (trust != Duration::MAX).then(|| ms(trust));
            ("lease/acquire", None, json!({ "trust_ms": trust_ms }))
        }
        Event::LeaseLost { reason } => {
            let words = match reason {
                Reason::Unreachable => "no renewal was answered in time",
                _ => "the store says that the lease is another's, or gone",
            };
            ("lease/lost", Some(words.to_owned()), json!({ "reason": reason.as_str() }))
        }
        Event::LeaseRelease { error } => ("lease/release", error, json!({})),
        Event::PluginStart { digest, elapsed, error } => {
            ("plugin/start", error, json!({ "digest": digest, "elapsed_ms": ms(elapsed) }))
        }
        Event::PluginStop { reason, fuel_used, elapsed, margin, error } => {
            let details = json!({
                "reason": reason.as_str(),
                "fuel_used": fuel_used,
                "elapsed_ms": ms(elapsed),
                "margin_ms": margin.as_ms(),
            });
            ("plugin/stop", error, details)
        }
        Event::TickFailed { consecutive, error, frames } => {
            ("plugin/tick-failed", Some(error), json!({ "consecutive": consecutive, "frames": frames }))
        }
        Event::WorkPanicked { error } => ("plugin/panicked", Some(error), json!({})),
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// The thread's side.
struct Writer {
    file: File,
    path: PathBuf,
    lost: Arc<AtomicU64>,
    instance: String,
    id: Arc<str>,
    /// Whether the last write failed.
    failing: bool,
    /// Whether the disk took only a part of the last line.
    torn: bool,
}

impl Writer {
    fn run(mut self, queue: &Receiver<Entry>) {
        while let Ok(entry) = queue.recv() {
            match entry {
                Entry::Line(line) => {
                    let written = self.tell_of_a_gap().and_then(|()| self.write(&line));
                    if written.is_err() {
                        self.lost.fetch_add(1, Ordering::Relaxed);
                    }
                    self.log_changes(written);
                }
                Entry::Flush(done) => {
                    let written = self.tell_of_a_gap();
                    self.log_changes(written);
                    let _ = done.try_send(());
                }
            }
        }
    }

    /// Logs when writing begins to fail and when it works again, not every time.
    fn log_changes(&mut self, written: io::Result<()>) {
        let failed_before = std::mem::replace(&mut self.failing, written.is_err());
        let file = self.path.display();
        match written {
            Ok(()) if failed_before => info!(%file, "the audit file can be written again; it has a gap"),
            Err(problem) if !failed_before => {
                error!(%file, %problem, "the audit file can't be written: lines are being lost");
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Writes how many lines were lost since the last one that was written, if any.
    fn tell_of_a_gap(&mut self) -> io::Result<()> {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost == 0 {
            return Ok(());
        }
        let mut line = Map::new();
        line.insert("ts".to_owned(), timestamp());
        line.insert("event".to_owned(), "audit/gap".into());
        line.insert("outcome".to_owned(), "error".into());
        line.insert("instance".to_owned(), self.instance.as_str().into());
        line.insert("id".to_owned(), (&*self.id).into());
        line.insert("lost".to_owned(), lost.into());
        line.insert("error".to_owned(), "lines could not be written".into());
        self.write(&line).inspect_err(|_| {
            self.lost.fetch_add(lost, Ordering::Relaxed);
        })
    }

    /// One line, in one write, so that processes that share the file do not cut into each other's. A disk that fills up
    /// may take a part of it: the next line then begins with the end of that one.
    fn write(&mut self, line: &Map<String, Value>) -> io::Result<()> {
        let mut bytes = if self.torn { b"\n".to_vec() } else { Vec::new() };
        let begins = bytes.len();
        serde_json::to_writer(&mut bytes, line)?;
        bytes.push(b'\n');
        let written = self.file.write(&bytes)?;
        if written > 0 {
            self.torn = written > begins && written < bytes.len();
        }
        if written < bytes.len() { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn role() -> RoleName {
        RoleName::new("sweeper").unwrap()
    }

    fn lines(path: &Path) -> Vec<Value> {
        fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn lines_stand_in_the_order_of_the_transitions() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(folder.path(), "web-1").unwrap();
        for term in 1..=100 {
            audit.record(&role(), term, Event::LeaseAcquire { trust: Duration::from_millis(9_900) });
        }
        audit.close();
        let lines = lines(&folder.path().join(FILE));
        let terms: Vec<_> = lines.iter().map(|line| line["term"].as_u64().unwrap()).collect();
        assert_eq!(terms, (1..=100).collect::<Vec<_>>());
        assert_eq!(lines[0]["trust_ms"], 9900.0);
        let ts = lines[0]["ts"].as_str().unwrap();
        assert!(ts.ends_with('Z') && ts.len() == "2026-12-01T10:00:00.000000Z".len(), "{ts}");
    }

    #[test]
    fn two_processes_share_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let both = [Audit::open(folder.path(), "a").unwrap(), Audit::open(folder.path(), "b").unwrap()];
        for term in 0..200 {
            both[term % 2].record(&role(), term as u64, Event::LeaseRelease { error: None });
        }
        both.iter().for_each(Audit::close);
        assert_eq!(lines(&folder.path().join(FILE)).len(), 200);
    }

    #[test]
    fn a_full_disk_delays_nothing_and_the_gap_is_counted() {
        let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let audit = Audit::writing_to(full, PathBuf::from("/dev/full"), "web-1").unwrap();
        for term in 0..5 {
            audit.record(&role(), term, Event::LeaseRelease { error: None });
        }
        audit.close();
        assert_eq!(audit.lost.load(Ordering::Relaxed), 5);

        audit.record(&role(), 5, Event::LeaseRelease { error: None });
        audit.close();
        assert_eq!(audit.lost.load(Ordering::Relaxed), 6);
    }

    #[test]
    fn a_disk_that_takes_half_a_line_has_whole_ones_after_it() {
        let (disk, mut reader) = UnixStream::pair().unwrap();
        disk.set_nonblocking(true).unwrap();
        let file = File::from(OwnedFd::from(disk));
        let audit = Audit::writing_to(file, PathBuf::from("disk"), "web-1").unwrap();
        let large = "x".repeat(16 << 20);
        audit.record(&role(), 1, Event::LeaseRelease { error: Some(large) });
        audit.record(&role(), 2, Event::LeaseRelease { error: None });
        audit.close();
        assert_eq!(audit.lost.load(Ordering::Relaxed), 2, "the first fits in part, the second not at all");

        let mut text = vec![0; 16 << 20];
        let begun = reader.read(&mut text).unwrap();
        text.truncate(begun);
        let room = thread::spawn(move || {
            reader.read_to_end(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        });
        while audit.lost.load(Ordering::Relaxed) > 0 {
            audit.close();
        }
        audit.record(&role(), 3, Event::LeaseRelease { error: None });
        audit.close();
        drop(audit);
        let text = room.join().unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let [torn, gap, last] = lines[..] else { panic!("{} lines", lines.len()) };
        assert!(serde_json::from_str::<Value>(torn).is_err());
        let gap: Value = serde_json::from_str(gap).unwrap();
        assert_eq!((&gap["event"], &gap["lost"]), (&json!("audit/gap"), &json!(2)));
        assert_eq!(serde_json::from_str::<Value>(last).unwrap()["term"], 3);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error_that_names_it() {
        let error = Audit::open(Path::new("/dev/null/data"), "web-1").unwrap_err();
        assert!(format!("{error:#}").contains("/dev/null/data (instance.data_dir)"), "{error:#}");
    }

    #[test]
    fn a_margin_may_be_negative() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        assert_eq!(Margin::at(at(10), at(25)).as_ms(), Some(15.0));
        assert_eq!(Margin::at(at(25), at(10)).as_ms(), Some(-15.0));
        assert_eq!(Margin::at(at(25), Instant::NEVER).as_ms(), None);
    }
}
