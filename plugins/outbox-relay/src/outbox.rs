//! Which entries are next, and how often one may be tried.

use std::time::Duration;

/// The longest wait after a failed delivery.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Where entries are moved to that nobody takes.
pub(crate) const DEAD: &str = "dead/";

/// A key as the value of a header: what can't stand in one is written in hexadecimal.
pub(crate) fn header(key: &str) -> String {
    let plain = |c: char| c.is_ascii_graphic() && c != '%';
    key.chars().map(|c| if plain(c) { c.to_string() } else { format!("%{:x}", u32::from(c)) }).collect()
}

/// Where entries are, and how many are taken at once.
pub(crate) struct Outbox {
    pub(crate) prefix: String,
    pub(crate) batch: usize,
}

impl Outbox {
    /// The first entries, in the order of their keys.
    pub(crate) fn next(&self, keys: Vec<String>) -> Vec<String> {
        let mut entries: Vec<String> = keys.into_iter().filter(|key| key.starts_with(&self.prefix)).collect();
        entries.sort_unstable();
        entries.truncate(self.batch);
        entries
    }

    /// Where an entry is moved to that nobody takes.
    pub(crate) fn dead(&self, key: &str) -> String {
        format!("{DEAD}{}", key.strip_prefix(&self.prefix).unwrap_or(key))
    }
}

/// How often the present entry was tried. One counter is enough, since only the first entry is ever tried.
pub(crate) struct Attempts {
    most: Option<u32>,
    key: String,
    count: u32,
    /// In a row.
    unanswered: u32,
}

impl Attempts {
    pub(crate) fn new(most: Option<u32>) -> Self {
        Self { most: most.filter(|most| *most > 0), key: String::new(), count: 0, unanswered: 0 }
    }

    /// Counts a failed attempt, and says whether it was the last that is allowed.
    pub(crate) fn is_last(&mut self, key: &str) -> bool {
        if self.key != key {
            (self.key, self.count) = (key.to_owned(), 0);
        }
        self.count += 1;
        self.unanswered = 0;
        self.most.is_some_and(|most| self.count >= most)
    }

    /// How long to wait before the next attempt after one that was refused.
    pub(crate) fn wait(&self, first: Duration) -> Duration {
        doubled(first, self.count)
    }

    /// The same after one that got no answer, which counts towards nothing.
    pub(crate) fn wait_unanswered(&mut self, first: Duration) -> Duration {
        self.unanswered = self.unanswered.saturating_add(1);
        doubled(first, self.unanswered)
    }

    pub(crate) fn forget(&mut self, key: &str) {
        self.unanswered = 0;
        if self.key == key {
            self.count = 0;
        }
    }
}

fn doubled(first: Duration, times: u32) -> Duration {
    first.saturating_mul(1 << times.saturating_sub(1).min(16)).min(LONGEST_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_in_the_order_of_their_keys() {
        let outbox = Outbox { prefix: "outbox/".to_owned(), batch: 2 };
        let keys = ["outbox/003", "other", "outbox/001", "outbox/002"].map(str::to_owned).to_vec();
        assert_eq!(outbox.next(keys), ["outbox/001", "outbox/002"]);
        assert_eq!(outbox.dead("outbox/001"), "dead/001");
    }

    #[test]
    fn a_key_fits_into_a_header() {
        assert_eq!(header("outbox/0001"), "outbox/0001");
        assert_eq!(header("a b\n%\u{e9}"), "a%20b%a%25%e9");
    }

    #[test]
    fn an_entry_is_tried_so_often_and_no_other_pays_for_it() {
        let mut attempts = Attempts::new(Some(3));
        assert_eq!([attempts.is_last("a"), attempts.is_last("a")], [false, false]);
        assert_eq!(attempts.wait(Duration::from_secs(1)), Duration::from_secs(2));
        assert!(!attempts.is_last("b"), "another entry begins anew");
        assert_eq!([attempts.is_last("b"), attempts.is_last("b")], [false, true]);
        assert_eq!([1, 2].map(|_| attempts.wait_unanswered(Duration::from_secs(1)).as_secs()), [1, 2]);
        let mut endless = Attempts::new(Some(0));
        assert!(!(0..1000).any(|_| endless.is_last("a")));
        assert_eq!(endless.wait(Duration::from_secs(1)), LONGEST_WAIT);
    }
}
