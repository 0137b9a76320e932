//! Which slots of a wall-clock grid are due. Times are whole seconds since 1970.

/// A grid with a slot every so many seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    /// From one slot to the next; never zero.
    pub(crate) every: u64,
    /// How many missed slots are made up for at the most: the latest ones.
    pub(crate) catch_up: u64,
}

impl Grid {
    /// The slot that `time` is in.
    pub(crate) fn slot(self, time: u64) -> u64 {
        time - time % self.every
    }

    /// The slots after `last`, up to `now`, that are to be emitted, in their order.
    pub(crate) fn due(self, last: u64, now: u64) -> Vec<u64> {
        let passed = self.slot(now).saturating_sub(last) / self.every;
        let latest = passed.min(self.catch_up.saturating_add(1));
        (0..latest).rev().map(|back| self.slot(now) - back * self.every).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRID: Grid = Grid { every: 60, catch_up: 3 };

    #[test]
    fn within_a_slot_nothing_is_due() {
        assert!(GRID.due(120, 179).is_empty());
    }

    #[test]
    fn a_slot_is_due_once() {
        assert_eq!(GRID.due(120, 180), [180]);
        assert!(GRID.due(180, 181).is_empty());
    }

    #[test]
    fn missed_slots_are_made_up_for_in_order() {
        assert_eq!(GRID.due(120, 301), [180, 240, 300]);
    }

    #[test]
    fn but_no_more_than_asked_for() {
        assert_eq!(GRID.due(120, 3600), [3420, 3480, 3540, 3600]);
        assert_eq!(Grid { catch_up: 0, ..GRID }.due(120, 3600), [3600]);
    }

    #[test]
    fn a_clock_that_goes_back_emits_nothing() {
        assert!(GRID.due(3600, 120).is_empty());
    }
}
