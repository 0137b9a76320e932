//! When a target counts as down, and when as up again.

use serde_json::{Value, json};

/// What is known of one target. Kept in the role's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Health {
    /// Whether people were told that it is down.
    pub(crate) down: bool,
    /// How many checks in a row have said otherwise.
    pub(crate) contrary: u32,
    /// How many changes people were told of.
    pub(crate) changes: u64,
}

impl Health {
    /// The text in the state. Whatever can't be read counts as nothing known.
    pub(crate) fn parse(text: &[u8]) -> Self {
        let read = || {
            let mut words = std::str::from_utf8(text).ok()?.split(' ');
            let (state, contrary, changes) = (words.next()?, words.next()?, words.next()?);
            Some(Self { down: state == "down", contrary: contrary.parse().ok()?, changes: changes.parse().ok()? })
        };
        read().unwrap_or_default()
    }

    pub(crate) fn text(self) -> String {
        format!("{} {} {}", self.word(), self.contrary, self.changes)
    }

    /// What it counts as.
    pub(crate) fn word(self) -> &'static str {
        if self.down { "down" } else { "up" }
    }

    /// What is known after one more check, and whether that is news: `threshold` checks in a row that say otherwise are.
    pub(crate) fn after(self, ok: bool, threshold: u32) -> (Self, bool) {
        if ok != self.down {
            return (Self { contrary: 0, ..self }, false);
        }
        let contrary = self.contrary.saturating_add(1);
        if contrary >= threshold {
            (Self { down: !self.down, contrary: 0, changes: self.changes + 1 }, true)
        } else {
            (Self { contrary, ..self }, false)
        }
    }
}

/// The body of an alert.
pub(crate) fn alert(url: &str, health: Health, why: &str) -> Value {
    json!({ "url": url, "state": health.word(), "because": why })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is news over some checks.
    fn news(checks: &[bool]) -> Vec<(usize, bool)> {
        let mut health = Health::default();
        let mut news = Vec::new();
        for (at, ok) in checks.iter().enumerate() {
            let is_news;
            (health, is_news) = health.after(*ok, 3);
            if is_news {
                news.push((at, health.down));
            }
        }
        news
    }

    #[test]
    fn three_failures_in_a_row_are_news_once() {
        assert_eq!(news(&[false; 10]), [(2, true)]);
        assert_eq!(news(&[false, false, true, false, false, true]), []);
    }

    #[test]
    fn and_so_are_three_successes() {
        let checks = [false, false, false, true, true, false, true, true, true, true];
        assert_eq!(news(&checks), [(2, true), (8, false)]);
    }

    #[test]
    fn what_is_known_survives_the_state() {
        let health = Health { down: true, contrary: 2, changes: 7 };
        assert_eq!(Health::parse(health.text().as_bytes()), health);
        assert_eq!(Health::parse(b"nonsense"), Health::default());
    }
}
