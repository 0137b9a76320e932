//! The log: text for a person at a terminal, JSON elsewhere.
//!
//! Written by a thread of its own: whoever reads standard error may be slow, or may have stopped (a pager, Ctrl-S), and
//! neither a renewal nor a demotion waits for a person.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tracing::warn;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// What the compiler of plugins says at `trace` is of no use here, and takes it minutes: only where it is asked for by name.
const QUIET: &str = "cranelift_codegen=info,cranelift_frontend=info,regalloc2=info,wasmtime_internal_cranelift=info";

/// How many lines may wait for the reader before further ones are lost, and counted.
const QUEUE: usize = 4_096;
/// How long the end of the process waits for the lines that are still queued.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// One line of text.
    Text,
    /// One JSON object a line.
    Json,
}

/// Writes the log to standard error from now on. `level` is a level such as `info`, or a filter such as
/// `info,plugin=debug`, where `plugin` is what plugins write. What is still queued is written when the returned log is
/// dropped.
///
/// # Errors
///
/// Where `level` is not one, or no thread can be started.
pub fn set_up(format: LogFormat, level: &str) -> anyhow::Result<Log> {
    let filter = EnvFilter::builder()
        .parse(format!("{QUIET},{level}"))
        .map_err(|error| anyhow::anyhow!("--log-level \"{level}\": {error}; write a level such as info or debug"))?;
    let terminal = io::stderr().is_terminal();
    let registry = tracing_subscriber::registry().with(filter);
    let log = Log::writing_to(io::stderr()).context("cannot start the thread that writes the log")?;
    let lines = log.0.clone();
    let layer = tracing_subscriber::fmt::layer().with_writer(move || lines.clone());
    match format {
        LogFormat::Json => registry.with(layer.json().flatten_event(true).with_target(true)).init(),
        LogFormat::Auto if !terminal => registry.with(layer.json().flatten_event(true)).init(),
        LogFormat::Auto | LogFormat::Text => registry.with(layer.with_ansi(terminal).with_target(false)).init(),
    }
    Ok(log)
}

/// The log of this process, for as long as it is written.
#[derive(Debug)]
#[must_use = "what is still queued is written when it is dropped"]
pub struct Log(Lines);

/// Where lines go that are to be written.
#[derive(Debug, Clone)]
struct Lines {
    queue: SyncSender<Entry>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Entry {
    Line(Vec<u8>),
    /// Everything before this is to be written; then tell.
    Flush(SyncSender<()>),
}

impl Log {
    fn writing_to(output: impl Write + Send + 'static) -> io::Result<Self> {
        let (queue, lines) = mpsc::sync_channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = lost.clone();
        thread::Builder::new().name("log".to_owned()).spawn(move || write(output, &lines, &counted))?;
        Ok(Self(Lines { queue, lost }))
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let (done, flushed) = mpsc::sync_channel(1);
        if self.0.queue.try_send(Entry::Flush(done)).is_ok() {
            let _ = flushed.recv_timeout(FLUSH_WITHIN);
        }
    }
}

/// The thread. Where nobody can read the log, there is nobody to tell.
fn write(mut output: impl Write, lines: &Receiver<Entry>, lost: &AtomicU64) {
    for entry in lines {
        match entry {
            Entry::Line(line) => {
                let _ = output.write_all(&line);
                if let lines @ 1.. = lost.swap(0, Ordering::Relaxed) {
                    warn!(lines, "the log was not read as fast as it was written: some lines are lost");
                }
            }
            Entry::Flush(done) => {
                let _ = done.send(());
            }
        }
    }
}

/// One line a call, which is how `tracing` writes.
impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.queue.try_send(Entry::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Blocks until it may go on, as a pipe does that nobody reads.
    struct Pipe {
        may_go_on: Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // An error where nobody can hold it up any more.
            let _ = self.may_go_on.recv();
            self.written.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_that_nobody_reads_holds_nobody_up() {
        let (go_on, may_go_on) = mpsc::channel();
        let written = Arc::new(Mutex::default());
        let log = Log::writing_to(Pipe { may_go_on, written: written.clone() }).unwrap();
        let mut lines = log.0.clone();
        for number in 0..2 * QUEUE {
            // Returns, or this test never ends.
            lines.write_all(format!("{number}\n").as_bytes()).unwrap();
        }
        let lost = log.0.lost.load(Ordering::Relaxed);
        assert!(lost > 0 && lost <= QUEUE as u64 * 2, "{lost} lost");
        drop(go_on);
        // Once there is room, the last lines are written too.
        while lines.queue.try_send(Entry::Line(b"end\n".to_vec())).is_err() {
            thread::yield_now();
        }
        drop(log);
        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        assert!(text.starts_with("0\n1\n2\n") && text.ends_with("end\n"));
    }
}
