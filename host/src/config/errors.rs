//! Everything that is wrong with a configuration.

use std::fmt;

use super::Config;

/// Everything that is wrong with a configuration file.
#[derive(Debug, Clone)]
pub struct ConfigErrors {
    lines: Vec<String>,
    rest: Option<Box<Config>>,
}

impl ConfigErrors {
    pub(super) fn of(lines: Vec<String>, rest: Option<Config>) -> Self {
        Self { lines, rest: rest.map(Box::new) }
    }

    /// The mistakes, each in one line: `FILE:LINE:COLUMN: what is wrong; what to do`.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// What could be read in spite of them: not to be run, but for finding what else is wrong.
    #[must_use]
    pub fn rest(&self) -> Option<&Config> {
        self.rest.as_deref()
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}
