//! Reading a TOML table key by key, and saying of every mistake where it stands and what to do.

use std::cell::RefCell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::SignedDuration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Keys that a later version will know, so that nobody looks for a typing error in them.
const LATER: &[&str] = &["admin", "watch", "trusted_keys", "swap"];
/// Below this likeness (1 is equal), another key is no suggestion.
const ALIKE: f64 = 0.75;

/// Collects what is wrong with one file.
pub(super) struct Problems<'t> {
    path: PathBuf,
    text: &'t str,
    found: RefCell<Vec<(usize, String)>>,
}

impl<'t> Problems<'t> {
    pub(super) fn new(path: &Path, text: &'t str) -> Self {
        Self { path: path.to_owned(), text, found: RefCell::default() }
    }

    /// Something is wrong at the byte `at` of the text.
    pub(super) fn add(&self, at: usize, words: impl fmt::Display) {
        let before = &self.text[..self.text.floor_char_boundary(at.min(self.text.len()))];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        self.found.borrow_mut().push((at, format!("{}:{line}:{column}: {words}", self.path.display())));
    }

    /// In the order in which they stand in the file.
    pub(super) fn into_lines(self) -> Vec<String> {
        let mut found = self.found.into_inner();
        found.sort_by_key(|(at, _)| *at);
        found.into_iter().map(|(_, line)| line).collect()
    }
}

/// A table of the file. Reading a key makes it known; [`finish`](Self::finish) reports the others.
pub(super) struct Section<'a> {
    /// As in `[role.sweeper]`; empty for the file itself.
    name: String,
    table: &'a DeTable<'a>,
    /// Where the table begins.
    pub(super) at: usize,
    problems: &'a Problems<'a>,
    known: RefCell<Vec<&'static str>>,
}

/// What was found where something else was expected.
fn found(value: &DeValue<'_>) -> String {
    match value {
        // It may be a URL with a password.
        DeValue::String(_) => "a string".to_owned(),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {}", number.as_str()),
        DeValue::Boolean(value) => format!("`{value}`"),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

impl<'a> Section<'a> {
    pub(super) fn new(name: &str, at: usize, table: &'a DeTable<'a>, problems: &'a Problems<'a>) -> Self {
        Self { name: name.to_owned(), table, at, problems, known: RefCell::default() }
    }

    /// The full name of a key of this table, as one would write it: `lease.ttl`.
    fn path(&self, key: &str) -> String {
        let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let key = if !key.is_empty() && key.chars().all(bare) { key.to_owned() } else { format!("{key:?}") };
        if self.name.is_empty() { key } else { format!("{}.{key}", self.name) }
    }

    /// Something is wrong with the value of `key`, which stands `at`.
    pub(super) fn problem(&self, at: usize, key: &str, words: impl fmt::Display) {
        self.problems.add(at, format_args!("{}: {words}", self.path(key)));
    }

    /// Something is wrong with the table as a whole.
    pub(super) fn problem_here(&self, words: impl fmt::Display) {
        self.problems.add(self.at, format_args!("{}: {words}", self.name));
    }

    fn value(&self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.known.borrow_mut().push(key);
        self.table.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    /// Whether nothing stands in the table.
    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Whether the table has `key`, of whatever type.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    fn wrong_type(&self, key: &str, value: &Spanned<DeValue<'_>>, expected: &str) {
        self.problem(value.span().start, key, format_args!("{} where {expected} is expected", found(value.get_ref())));
    }

    /// A string, and where it stands.
    pub(super) fn string(&self, key: &'static str, expected: &str) -> Option<(&'a str, usize)> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::String(text) => Some((text, value.span().start)),
            _ => {
                self.wrong_type(key, value, expected);
                None
            }
        }
    }

    /// A table within this one.
    pub(super) fn table(&self, key: &'static str) -> Option<Section<'a>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(Section::new(&self.path(key), value.span().start, table, self.problems)),
            _ => {
                self.wrong_type(key, value, &format!("a table such as [{}]", self.path(key)));
                None
            }
        }
    }

    /// All tables within this one: their names, where these stand, and they.
    pub(super) fn tables(&self) -> Vec<(&'a str, Section<'a>)> {
        let mut tables = Vec::new();
        for (name, value) in self.table {
            let (key, at) = (name.get_ref().as_ref(), name.span().start);
            match value.get_ref() {
                DeValue::Table(table) => tables.push((key, Section::new(&self.path(key), at, table, self.problems))),
                _ => self.wrong_type(key, value, &format!("a table such as [{}]", self.path(key))),
            }
        }
        tables
    }

    /// A length of time.
    pub(super) fn duration(&self, key: &'static str) -> Option<Duration> {
        let expected = "a length of time such as \"1m 30s\" or \"500ms\"";
        let (text, at) = self.string(key, expected)?;
        match text.parse::<SignedDuration>().map(Duration::try_from) {
            Ok(Ok(duration)) => Some(duration),
            Ok(Err(_)) => {
                self.problem(at, key, format_args!("{text:?} is negative; write {expected}"));
                None
            }
            // The parser's own words are about units that make no sense here, such as months.
            Err(_) => {
                self.problem(
                    at,
                    key,
                    format_args!("{text:?} is no length of time; write one in h, m, s or ms, such as \"1m 30s\""),
                );
                None
            }
        }
    }

    /// A length of time that is longer than nothing.
    pub(super) fn positive_duration(&self, key: &'static str) -> Option<Duration> {
        let duration = self.duration(key)?;
        if duration.is_zero() {
            self.problem(self.at_key(key), key, "must be longer than zero");
            return None;
        }
        Some(duration)
    }

    /// Where the value of `key` stands.
    pub(super) fn at_key(&self, key: &str) -> usize {
        self.table.get(key).map_or(self.at, |value| value.span().start)
    }

    /// `true` or `false`.
    pub(super) fn boolean(&self, key: &'static str) -> Option<bool> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Boolean(value) => Some(*value),
            _ => {
                self.wrong_type(key, value, "`true` or `false`");
                None
            }
        }
    }

    /// One of some words.
    pub(super) fn choice<T: Copy>(&self, key: &'static str, choices: &[(&str, T)]) -> Option<T> {
        let words: Vec<String> = choices.iter().map(|(word, _)| format!("{word:?}")).collect();
        let expected = words.join(" or ");
        let (text, at) = self.string(key, &expected)?;
        let chosen = choices.iter().find(|(word, _)| *word == text).map(|(_, choice)| *choice);
        if chosen.is_none() {
            self.problem(at, key, format_args!("{text:?} is no choice; write {expected}"));
        }
        chosen
    }

    fn array(&self, key: &'static str, expected: &str) -> &'a [Spanned<DeValue<'a>>] {
        let Some(value) = self.value(key) else { return &[] };
        match value.get_ref() {
            DeValue::Array(items) => items,
            _ => {
                self.wrong_type(key, value, expected);
                &[]
            }
        }
    }

    /// An array of strings, and where each stands.
    pub(super) fn strings(&self, key: &'static str, expected: &str) -> Vec<(&'a str, usize)> {
        let mut strings = Vec::new();
        for item in self.array(key, expected) {
            match item.get_ref() {
                DeValue::String(text) => strings.push((text.as_ref(), item.span().start)),
                _ => self.wrong_type(key, item, "a string"),
            }
        }
        strings
    }

    /// An array of tables.
    pub(super) fn array_of_tables(&self, key: &'static str, expected: &str) -> Vec<Section<'a>> {
        let mut tables = Vec::new();
        for item in self.array(key, expected) {
            match item.get_ref() {
                DeValue::Table(table) => {
                    tables.push(Section::new(&self.path(key), item.span().start, table, self.problems));
                }
                _ => self.wrong_type(key, item, "a table"),
            }
        }
        tables
    }

    /// Every key of this table with its string, and where that stands.
    pub(super) fn each_string(&self, expected: &str) -> Vec<(&'a str, &'a str, usize)> {
        let mut strings = Vec::new();
        for (name, value) in self.table {
            match value.get_ref() {
                DeValue::String(text) => strings.push((name.get_ref().as_ref(), text.as_ref(), value.span().start)),
                _ => self.wrong_type(name.get_ref(), value, expected),
            }
        }
        strings
    }

    /// A number of bytes within `bounds`.
    pub(super) fn size(&self, key: &'static str, bounds: (u64, u64)) -> Option<u64> {
        let expected = "a size such as \"64MiB\"";
        let (text, at) = self.string(key, expected)?;
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = match text[digits.len()..].trim() {
            "KiB" => 1_u64 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => 0,
        };
        let size = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).filter(|size| *size > 0);
        let Some(size) = size else {
            self.problem(at, key, format_args!("{text:?} is no size; write {expected}, with KiB, MiB or GiB"));
            return None;
        };
        if size < bounds.0 || size > bounds.1 {
            let (least, most) = (crate::words::bytes(bounds.0), crate::words::bytes(bounds.1));
            self.problem(at, key, format_args!("{text:?} is out of bounds; write a size from {least} to {most}"));
            return None;
        }
        Some(size)
    }

    /// A positive whole number.
    pub(super) fn count(&self, key: &'static str) -> Option<u64> {
        let value = self.value(key)?;
        let expected = "a whole number from 1 up, such as 100_000_000,";
        let DeValue::Integer(number) = value.get_ref() else {
            self.wrong_type(key, value, expected);
            return None;
        };
        let number = u64::from_str_radix(number.as_str(), number.radix()).ok().filter(|number| *number > 0);
        if number.is_none() {
            self.wrong_type(key, value, expected);
        }
        number
    }

    /// A whole number from 1 to `most`.
    pub(super) fn count_up_to(&self, key: &'static str, most: u64) -> Option<u64> {
        let count = self.count(key)?;
        if count > most {
            self.problem(self.at_key(key), key, format_args!("{count} is too much; write at most {most}"));
            return None;
        }
        Some(count)
    }

    /// Every key of this table with its value as text.
    pub(super) fn texts(&self) -> Vec<(String, String)> {
        let mut texts = Vec::new();
        for (name, value) in self.table {
            let key = name.get_ref().as_ref();
            let text = match value.get_ref() {
                DeValue::String(text) => text.to_string(),
                DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                    Ok(number) => number.to_string(),
                    Err(_) => number.to_string(),
                },
                DeValue::Float(number) => number.as_str().to_owned(),
                DeValue::Boolean(value) => value.to_string(),
                DeValue::Datetime(date) => date.to_string(),
                DeValue::Array(_) | DeValue::Table(_) => {
                    self.wrong_type(key, value, "a string, a number or a boolean");
                    continue;
                }
            };
            texts.push((key.to_owned(), text));
        }
        texts
    }

    /// Reports every key that was not read.
    pub(super) fn finish(self) {
        let known = self.known.borrow();
        for name in self.table.keys() {
            let key = name.get_ref().as_ref();
            if known.contains(&key) {
                continue;
            }
            let near = known
                .iter()
                .map(|known| (strsim::jaro_winkler(key, known), *known))
                .filter(|(likeness, _)| *likeness >= ALIKE)
                .max_by(|a, b| a.0.total_cmp(&b.0));
            let advice = match near {
                _ if LATER.contains(&key) => "this version does not have it yet".to_owned(),
                Some((_, near)) => format!("did you mean `{near}`?"),
                None => format!("known here are {}", known.join(", ")),
            };
            self.problem(name.span().start, key, format_args!("unknown key; {advice}"));
        }
    }
}
