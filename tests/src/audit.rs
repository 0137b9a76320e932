//! What the audit files of several hosts say, taken together.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// One line.
#[derive(Debug, Clone)]
pub struct Line {
    /// Microseconds since 1970.
    pub ts: i64,
    /// The whole line.
    pub json: Value,
}

impl Line {
    /// A field as text; empty where it is missing.
    #[must_use]
    pub fn text(&self, field: &str) -> &str {
        self.json[field].as_str().unwrap_or_default()
    }

    /// The event's name.
    #[must_use]
    pub fn event(&self) -> &str {
        self.text("event")
    }

    /// The term.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.json["term"].as_u64().unwrap_or_default()
    }

    /// What was left of the trust, in milliseconds.
    ///
    /// # Panics
    ///
    /// Where the line has no margin.
    #[must_use]
    pub fn margin_ms(&self) -> f64 {
        self.json["margin_ms"].as_f64().unwrap_or_else(|| panic!("no margin: {}", self.json))
    }
}

/// All lines of an audit file; none where there is no file yet.
///
/// # Panics
///
/// Where a whole line is no JSON, or has no time.
#[must_use]
pub fn read(file: &Path) -> Vec<Line> {
    let text = fs::read_to_string(file).unwrap_or_default();
    // The last line may be half-written.
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    whole
        .lines()
        .map(|line| {
            let json: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            let ts: jiff::Timestamp = json["ts"].as_str().and_then(|ts| ts.parse().ok()).expect("a time in each line");
            Line { ts: ts.as_microsecond(), json }
        })
        .collect()
}

/// When one term of a role began and ended, on one host.
#[derive(Debug, Clone)]
pub struct Span {
    /// The term.
    pub term: u64,
    /// `lease/acquire`.
    pub began: i64,
    /// The last `plugin/stop`, or the end of trust where that came first: past it the gate is closed. None while it lasts.
    pub ended: Option<i64>,
    /// Whether the plugin was started, with success or without: a term that ends before that has nothing to stop.
    pub started: bool,
    /// Which process.
    pub id: String,
}

/// The terms of a role over all `lines`, in their order.
#[must_use]
pub fn spans(lines: &[Line], role: &str) -> Vec<Span> {
    let mut spans: BTreeMap<u64, Span> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.text("role") == role) {
        let id = line.text("id").to_owned();
        match line.event() {
            "lease/acquire" => {
                let span = Span { term: line.term(), began: line.ts, ended: None, started: false, id };
                let other = spans.insert(line.term(), span);
                assert!(other.is_none(), "term {} was acquired twice: {other:?} and {}", line.term(), line.json);
            }
            "plugin/start" => {
                if let Some(span) = spans.get_mut(&line.term()) {
                    span.started = true;
                }
            }
            "plugin/stop" => {
                let late_by = line.json["margin_ms"].as_f64().map_or(0.0, |margin| (margin * 1000.0).min(0.0));
                let span = spans.get_mut(&line.term()).unwrap_or_else(|| panic!("no such term: {}", line.json));
                assert_eq!(span.id, id, "term {} stopped elsewhere", line.term());
                #[allow(clippy::cast_possible_truncation, reason = "microseconds")]
                let ended = line.ts + late_by as i64;
                span.ended = Some(ended);
            }
            _ => {}
        }
    }
    spans.into_values().collect()
}

/// Asserts what the whole of Tenure promises: no two terms of a role overlapped, terms rose, starts and stops pair.
/// `killed` are processes that were ended with SIGKILL, and when: their terms end then.
///
/// # Panics
///
/// Where it does not hold.
pub fn assert_one_at_a_time(lines: &[Line], role: &str, killed: &[(String, i64)]) {
    let mut lines = lines.to_vec();
    lines.sort_by_key(|line| line.ts);
    let spans = spans(&lines, role);
    for pair in spans.windows(2) {
        let [first, second] = pair else { unreachable!() };
        let killed_at = killed.iter().find(|(id, _)| *id == first.id).map(|(_, at)| *at);
        let ended = match (first.ended, killed_at) {
            (Some(ended), _) => ended,
            (None, Some(at)) => at,
            (None, None) if !first.started => continue,
            (None, None) => panic!("term {} never stopped, but term {} began", first.term, second.term),
        };
        assert!(ended <= second.began, "terms {first:?} and {second:?} overlapped by {} µs", ended - second.began);
    }
    let mut open: BTreeMap<&str, u64> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.text("role") == role) {
        match line.event() {
            "plugin/start" => {
                let other = open.insert(line.text("id"), line.term());
                assert!(other.is_none(), "two starts without a stop: {}", line.json);
            }
            "plugin/stop" => {
                let started = open.remove(line.text("id"));
                assert_eq!(started, Some(line.term()), "a stop without its start: {}", line.json);
            }
            _ => {}
        }
    }
    for id in open.keys() {
        assert!(killed.iter().any(|(killed, _)| killed == id), "process {id} never stopped its plugin");
    }
}

/// Asserts that every stop had time left.
///
/// # Panics
///
/// Where one had not.
pub fn assert_margins(lines: &[Line]) {
    for line in lines.iter().filter(|line| line.event() == "plugin/stop") {
        assert!(line.margin_ms() > 0.0, "stopped too late: {}", line.json);
    }
}
