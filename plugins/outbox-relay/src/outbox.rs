//! Which entries are next, and how often one may be tried.

use std::time::Duration;

/// The longest wait after a failed delivery.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

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
        format!("dead/{}", key.strip_prefix(&self.prefix).unwrap_or(key))
    }
}

/// How often the present entry was tried. One counter is enough, since only the first entry is ever tried.
pub(crate) struct Attempts {
    most: Option<u32>,
    key: String,
    count: u32,
}

impl Attempts {
    pub(crate) fn new(most: Option<u32>) -> Self {
        Self { most: most.filter(|most| *most > 0), key: String::new(), count: 0 }
    }

    /// Counts a failed attempt, and says whether it was the last that is allowed.
    pub(crate) fn is_last(&mut self, key: &str) -> bool {
        if self.key != key {
            (self.key, self.count) = (key.to_owned(), 0);
        }
        self.count += 1;
        self.most.is_some_and(|most| self.count >= most)
    }

    /// How long to wait before the next attempt.
    pub(crate) fn wait(&self, first: Duration) -> Duration {
        first.saturating_mul(1 << self.count.saturating_sub(1).min(16)).min(LONGEST_WAIT)
    }

    pub(crate) fn forget(&mut self, key: &str) {
        if self.key == key {
            self.count = 0;
        }
    }
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
    fn an_entry_is_tried_so_often_and_no_other_pays_for_it() {
        let mut attempts = Attempts::new(Some(3));
        assert_eq!([attempts.is_last("a"), attempts.is_last("a")], [false, false]);
        assert_eq!(attempts.wait(Duration::from_secs(1)), Duration::from_secs(2));
        assert!(!attempts.is_last("b"), "another entry begins anew");
        assert_eq!([attempts.is_last("b"), attempts.is_last("b")], [false, true]);
        let mut endless = Attempts::new(Some(0));
        assert!(!(0..1000).any(|_| endless.is_last("a")));
        assert_eq!(endless.wait(Duration::from_secs(1)), LONGEST_WAIT);
    }
}
