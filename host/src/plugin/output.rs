//! What a guest prints or logs, as lines of the host's log: cut where too long, dropped and counted where too many.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::Instant;
use tokio::io::AsyncWrite;
use tracing::{debug, enabled, error, info, trace, warn};
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};

use super::limits::Refused;
use crate::clock;
use crate::config::RoleName;
use crate::grants::Redactor;

/// The most bytes of one line; the rest of it is dropped.
const MAX_LINE: usize = 8 << 10;
/// The most lines of one instance in one [`WINDOW`].
const MAX_LINES: u32 = 1_000;
const WINDOW: Duration = Duration::from_secs(1);
/// The most bytes of the name that a guest gives to a part of itself.
const MAX_CONTEXT: usize = 256;
/// How much a guest may write at once to a stream.
const WRITE_PERMIT: usize = 64 << 10;
/// How many of the last lines on standard error are kept: a panic's message stands there.
const LAST_WORDS: usize = 8;

/// How much a line matters.
#[derive(Debug, Clone, Copy)]
pub(super) enum Level {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

impl Level {
    /// Whether the host's log takes lines of this level.
    fn is_shown(self) -> bool {
        match self {
            Self::Trace => enabled!(target: "plugin", tracing::Level::TRACE),
            Self::Debug => enabled!(target: "plugin", tracing::Level::DEBUG),
            Self::Info => enabled!(target: "plugin", tracing::Level::INFO),
            Self::Warn => enabled!(target: "plugin", tracing::Level::WARN),
            Self::Error => enabled!(target: "plugin", tracing::Level::ERROR),
        }
    }
}

/// All output of one instance.
#[derive(Debug, Clone)]
pub(super) struct Output(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    role: RoleName,
    term: u64,
    redactor: Redactor,
    window_ends: Instant,
    lines: u32,
    dropped: u64,
    last_words: VecDeque<String>,
}

impl Output {
    pub(super) fn new(role: RoleName, term: u64, redactor: Redactor) -> Self {
        let window_ends = Instant::from_nanos(0);
        let last_words = VecDeque::new();
        Self(Arc::new(Mutex::new(State { role, term, redactor, window_ends, lines: 0, dropped: 0, last_words })))
    }

    /// What the guest says, line by line, from the part of it that `context` names.
    pub(super) fn lines(&self, level: Level, context: &str, text: &str) {
        let mut state = self.lock();
        let context = state.redactor.redact(context).into_owned();
        let context = &context[..context.floor_char_boundary(MAX_CONTEXT)];
        // One by one, so that no guest writes what looks like a line of the host's.
        let mut lines = text.lines();
        for line in lines.by_ref().take(MAX_LINES as usize) {
            state.line(level, context, line, 0);
        }
        state.dropped += lines.count() as u64;
    }

    /// A line of one of its streams, of which `cut` more bytes were dropped.
    fn stream_line(&self, name: &str, line: &str, cut: usize) {
        self.lock().line(Level::Info, name, line, cut);
    }

    /// What the guest says of itself, without its secrets.
    pub(super) fn redact(&self, words: &str) -> String {
        self.lock().redactor.redact(words).into_owned()
    }

    /// The last lines on standard error: what a panic said. Forgets them.
    pub(super) fn take_last_words(&self) -> Option<String> {
        let lines: Vec<String> = self.lock().last_words.drain(..).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    /// Keeps a line that may say why the guest is about to trap.
    pub(super) fn last_words(&self, line: &str) {
        self.lock().last_words(line);
    }

    /// A stream of the guest's, as lines.
    pub(super) fn stream(&self, name: &'static str) -> LineStream {
        LineStream { output: self.clone(), name }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn line(&mut self, level: Level, context: &str, line: &str, cut: usize) {
        // What nobody sees does not use up the lines of what somebody does.
        if !level.is_shown() {
            return;
        }
        let now = clock::now();
        if now >= self.window_ends {
            self.report_dropped();
            (self.window_ends, self.lines) = (now.plus(WINDOW), 0);
        }
        if self.lines == MAX_LINES {
            self.dropped += 1;
            return;
        }
        self.lines += 1;
        let line = self.redactor.redact(line);
        let kept = line.floor_char_boundary(MAX_LINE);
        let (line, cut) = (&line[..kept], cut + line.len() - kept);
        let (role, term) = (&self.role, self.term);
        match level {
            _ if cut > 0 => warn!(target: "plugin", %role, term, context, cut_bytes = cut, "{line}"),
            Level::Trace => trace!(target: "plugin", %role, term, context, "{line}"),
            Level::Debug => debug!(target: "plugin", %role, term, context, "{line}"),
            Level::Info => info!(target: "plugin", %role, term, context, "{line}"),
            Level::Warn => warn!(target: "plugin", %role, term, context, "{line}"),
            Level::Error => error!(target: "plugin", %role, term, context, "{line}"),
        }
    }

    fn report_dropped(&mut self) {
        if self.dropped > 0 {
            let (role, term, lines) = (&self.role, self.term, self.dropped);
            warn!(target: "plugin", %role, term, lines, "the plugin wrote more than {MAX_LINES} lines a second: some were dropped");
            self.dropped = 0;
        }
    }

    fn last_words(&mut self, line: &str) {
        if self.last_words.len() == LAST_WORDS {
            self.last_words.pop_front();
        }
        let line = self.redactor.redact(line);
        self.last_words.push_back(line[..line.floor_char_boundary(MAX_LINE)].to_owned());
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.report_dropped();
    }
}

/// Standard output or standard error of a guest.
pub(super) struct LineStream {
    output: Output,
    name: &'static str,
}

impl IsTerminal for LineStream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for LineStream {
    /// Only asked for by WASI 0.3, which is not linked.
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(LineWriter { output: self.output.clone(), name: self.name, partial: Vec::new(), cut: 0 })
    }
}

/// Cuts what is written into lines.
struct LineWriter {
    output: Output,
    name: &'static str,
    partial: Vec<u8>,
    /// How many bytes of the present line were dropped, since it is over the limit.
    cut: usize,
}

impl LineWriter {
    fn end_line(&mut self) {
        let cut = mem::take(&mut self.cut);
        if self.partial.is_empty() {
            return;
        }
        let line = String::from_utf8_lossy(&self.partial);
        let line = line.trim_end_matches('\r');
        self.output.stream_line(self.name, line, cut);
        if self.name == "stderr" {
            self.output.last_words(line);
        }
        self.partial.clear();
    }
}

#[async_trait]
impl Pollable for LineWriter {
    async fn ready(&mut self) {}
}

#[async_trait]
impl OutputStream for LineWriter {
    fn write(&mut self, bytes: bytes::Bytes) -> StreamResult<()> {
        if bytes.len() > WRITE_PERMIT {
            // By WASI's own rules. Cutting it into lines would keep the thread for too long.
            let (name, len) = (self.name, bytes.len());
            return Err(StreamError::Trap(wasmtime::Error::new(Refused(format!(
                "output: {len} bytes were written to {name} at once, the limit is {WRITE_PERMIT}; ask with check-write"
            )))));
        }
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = match part.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (part, false),
            };
            let kept = text.len().min(MAX_LINE - self.partial.len());
            self.partial.extend_from_slice(&text[..kept]);
            self.cut += text.len() - kept;
            if ends {
                self.end_line();
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_PERMIT)
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        self.end_line();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::grants::SecretSource;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_message_is_written_by_lines_without_its_secrets() {
        let (log, file) = (Log::default(), tempfile::NamedTempFile::new().unwrap());
        std::fs::write(file.path(), "hunter2\nhunter3\n").unwrap();
        let secret = SecretSource::File(file.path().to_owned()).read().unwrap();
        let output = Output::new(RoleName::new("test").unwrap(), 7, Redactor::new([&secret]));
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            output.lines(Level::Info, "of hunter2", "one hunter2\nhunter3\nERROR forged");
        });
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines.iter().all(|line| line.contains(" INFO ") && line.contains("role=test")), "{text}");
        assert!(!text.contains("hunter"), "{text}");
    }
}
