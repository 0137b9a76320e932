//! What a guest prints or logs, as lines of the host's log: cut where too long, dropped and counted where too many.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::Instant;
use tokio::io::AsyncWrite;
use tracing::{debug, error, info, trace, warn};
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use crate::clock;
use crate::config::RoleName;
use crate::grants::Redactor;

/// The most bytes of one line; the rest of it is dropped.
const MAX_LINE: usize = 8 << 10;
/// The most lines of one instance in one [`WINDOW`].
const MAX_LINES: u32 = 1_000;
const WINDOW: Duration = Duration::from_secs(1);
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

    /// One line of the guest's, from the part of it that `context` names.
    pub(super) fn line(&self, level: Level, context: &str, line: &str) {
        self.lock().line(level, context, line);
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
    fn line(&mut self, level: Level, context: &str, line: &str) {
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
        let cut = line.floor_char_boundary(MAX_LINE);
        let (line, cut) = (&line[..cut], line.len() - cut);
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
        Box::new(LineWriter { output: self.output.clone(), name: self.name, partial: Vec::new(), skipping: false })
    }
}

/// Cuts what is written into lines.
struct LineWriter {
    output: Output,
    name: &'static str,
    partial: Vec<u8>,
    /// The present line is over the limit: the rest of it is dropped.
    skipping: bool,
}

impl LineWriter {
    fn end_line(&mut self) {
        self.skipping = false;
        if self.partial.is_empty() {
            return;
        }
        let line = String::from_utf8_lossy(&self.partial);
        let line = line.trim_end_matches('\r');
        self.output.line(Level::Info, self.name, line);
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
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = match part.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (part, false),
            };
            if !self.skipping {
                // One byte more than a line may have, so that the cut is seen and said.
                let room = (MAX_LINE + 1).saturating_sub(self.partial.len());
                self.partial.extend_from_slice(&text[..text.len().min(room)]);
                self.skipping = text.len() > room;
            }
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
