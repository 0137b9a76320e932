//! When a role's ticks are due by the wall clock, and what becomes of slots that passed without one. Decides, and does
//! nothing: time is an argument.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds};
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The longest jitter.
pub const MAX_JITTER: Duration = Duration::from_secs(3600);

/// A moment that a tick belongs to, in milliseconds since 1970. Over a change of leaders it has the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u64);

/// The schedule of a role.
#[derive(Debug, Clone)]
pub struct Schedule {
    /// When slots are.
    pub cadence: Cadence,
    /// Each slot is fired up to this much later: by how much follows from role and slot, on every host the same.
    pub jitter: Duration,
    /// What happens where a leader ends in the middle of a slot.
    pub delivery: Delivery,
    /// What happens to slots that passed without a tick.
    pub catch_up: CatchUp,
}

/// When slots are.
#[derive(Debug, Clone)]
pub enum Cadence {
    /// Multiples of this since 1970.
    Every(Duration),
    /// As a cron pattern says, by the clocks of a time zone.
    Cron(Box<Cron>, TimeZone),
}

/// What happens where a leader ends in the middle of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The slot is recorded before its tick: it may be lost, and is never repeated.
    AtMostOnce,
    /// The slot is recorded after its tick: it may be repeated, and is never lost.
    AtLeastOnce,
}

/// What happens to slots that passed without a tick, because nobody led or a tick took too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CatchUp {
    /// They are skipped.
    None,
    /// The last of them is fired.
    Last,
    /// All of them are fired in their order, but no more than the latest so many.
    All(u32),
}

/// The next slot to fire, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// The slot.
    pub slot: Slot,
    /// When to fire it, in milliseconds since 1970: now, where that has passed.
    pub at: u64,
}

impl Slot {
    /// The millisecond that `time` is in. Before 1970 there are no slots.
    #[must_use]
    pub fn at(time: Timestamp) -> Self {
        Self(u64::try_from(time.as_millisecond()).unwrap_or(0))
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match i64::try_from(self.0).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()) {
            Some(time) => write!(f, "{time}"),
            None => write!(f, "{} ms", self.0),
        }
    }
}

impl Cadence {
    /// Reads a cron pattern of five fields, or of six with seconds.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in words.
    pub fn cron(pattern: &str, zone: TimeZone) -> Result<Self, String> {
        let parser = CronParser::builder().seconds(Seconds::Optional).build();
        let cron = parser.parse(pattern).map_err(|error| error.to_string())?;
        Ok(Self::Cron(Box::new(cron), zone))
    }

    /// The first slot after `slot`.
    fn after(&self, slot: Slot) -> Option<Slot> {
        match self {
            Self::Every(every) => {
                let every = ms(*every);
                (slot.0 / every).checked_add(1)?.checked_mul(every).map(Slot)
            }
            Self::Cron(cron, zone) => {
                let next = cron.find_next_occurrence(&zoned(slot, zone)?, false).ok()?;
                Some(Slot::at(next.timestamp()))
            }
        }
    }

    /// The last slot up to `time`, where `first` is one of them.
    ///
    /// Only looks forward, since the library's two directions differ where clocks are set back: halves the time in which
    /// the slot may be, until none comes after what was found.
    fn up_to(&self, time: u64, first: Slot) -> Slot {
        let (mut found, mut none_after) = (first, time);
        while found.0 < none_after {
            let middle = Slot(found.0 + (none_after - found.0) / 2);
            match self.after(middle) {
                Some(slot) if slot.0 <= time => found = slot,
                _ if middle == found => break,
                _ => none_after = middle.0,
            }
        }
        found
    }
}

impl Schedule {
    /// The next slot after `last`, at the time `now` (both on the wall clock). Whoever waits for a slot that is still to
    /// come fires it then, without asking again. None: there is none any more.
    #[must_use]
    pub fn next(&self, role: &str, last: Slot, now: u64) -> Option<Due> {
        let first = self.cadence.after(last)?;
        let due = self.due(role, first);
        if due.at > now {
            return Some(due);
        }
        let mut newest = self.cadence.up_to(now, first);
        // With jitter, the last ones may still be to come.
        while newest > first && self.due(role, newest).at > now {
            newest = self.cadence.up_to(newest.0 - 1, first);
        }
        match self.catch_up {
            CatchUp::None => self.cadence.after(newest).map(|slot| self.due(role, slot)),
            CatchUp::Last => Some(self.due(role, newest)),
            CatchUp::All(most) => Some(self.due(role, self.oldest(first, newest, most))),
        }
    }

    /// The first of the latest `most` slots from `first` to `newest`.
    fn oldest(&self, first: Slot, newest: Slot, most: u32) -> Slot {
        let from_first = (1..most).try_fold(first, |slot, _| self.cadence.after(slot).filter(|next| *next <= newest));
        match from_first {
            // Mostly there are fewer.
            None => first,
            Some(last) if last == newest => first,
            Some(_) => (1..most).fold(newest, |slot, _| self.cadence.up_to(slot.0 - 1, first)),
        }
    }

    fn due(&self, role: &str, slot: Slot) -> Due {
        let jitter = ms(self.jitter);
        let late = if jitter == 0 {
            0
        } else {
            // Its keys are fixed: the same number on every host.
            let mut hasher = DefaultHasher::new();
            (role, slot).hash(&mut hasher);
            hasher.finish() % jitter
        };
        Due { slot, at: slot.0.saturating_add(late) }
    }
}

fn zoned(slot: Slot, zone: &TimeZone) -> Option<jiff::Zoned> {
    Some(Timestamp::from_millisecond(i64::try_from(slot.0).ok()?).ok()?.to_zoned(zone.clone()))
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn schedule(cadence: Cadence, catch_up: CatchUp) -> Schedule {
        Schedule { cadence, jitter: Duration::ZERO, delivery: Delivery::AtMostOnce, catch_up }
    }

    fn every(seconds: u64, catch_up: CatchUp) -> Schedule {
        schedule(Cadence::Every(Duration::from_secs(seconds)), catch_up)
    }

    fn cron(pattern: &str, zone: &str) -> Cadence {
        Cadence::cron(pattern, TimeZone::get(zone).unwrap()).unwrap()
    }

    fn time(text: &str) -> Slot {
        Slot::at(text.parse().unwrap())
    }

    /// The slots from `from` on, in UTC.
    fn slots(cadence: &Cadence, from: &str, count: usize) -> Vec<String> {
        let mut slot = time(from);
        (0..count)
            .map(|_| {
                slot = cadence.after(slot).unwrap();
                slot.to_string()
            })
            .collect()
    }

    #[test]
    fn a_slot_to_come_is_waited_for() {
        let due = every(60, CatchUp::Last).next("r", Slot(60_000), 90_000);
        assert_eq!(due, Some(Due { slot: Slot(120_000), at: 120_000 }));
    }

    #[test]
    fn missed_slots_are_skipped_or_made_up_for() {
        let next = |catch_up| every(60, catch_up).next("r", Slot(60_000), 330_000).unwrap().slot;
        assert_eq!(next(CatchUp::None), Slot(360_000));
        assert_eq!(next(CatchUp::Last), Slot(300_000));
        assert_eq!(next(CatchUp::All(100)), Slot(120_000));
        assert_eq!(next(CatchUp::All(2)), Slot(240_000), "the latest two");
        assert_eq!(next(CatchUp::All(1)), Slot(300_000));
    }

    #[test]
    fn a_year_of_missed_seconds_takes_no_time() {
        let cadence = cron("* * * * * *", "UTC");
        let (last, now) = (time("2025-01-01T00:00:00Z"), time("2026-01-01T00:00:00.5Z"));
        let due = schedule(cadence, CatchUp::All(3)).next("r", last, now.0).unwrap();
        assert_eq!(due.slot.to_string(), "2025-12-31T23:59:58Z");
    }

    #[test]
    fn five_fields_are_minutes_and_six_are_seconds() {
        let from = "2026-12-01T10:00:00Z";
        assert_eq!(slots(&cron("*/5 * * * *", "UTC"), from, 2), ["2026-12-01T10:05:00Z", "2026-12-01T10:10:00Z"]);
        assert_eq!(slots(&cron("*/5 * * * * *", "UTC"), from, 2), ["2026-12-01T10:00:05Z", "2026-12-01T10:00:10Z"]);
        let error = Cadence::cron("every day", TimeZone::UTC).unwrap_err();
        assert!(!error.is_empty());
    }

    #[test]
    fn a_pattern_that_never_comes_has_no_slot() {
        let never = schedule(cron("0 0 30 2 *", "UTC"), CatchUp::Last);
        assert_eq!(never.next("r", time("2026-01-01T00:00:00Z"), time("2026-01-01T00:00:01Z").0), None);
    }

    #[test]
    fn a_daily_slot_in_the_hour_that_is_skipped_comes_right_after_it() {
        // On 2026-03-29 clocks in Berlin go from 02:00 to 03:00, which is 01:00 UTC.
        let daily = cron("30 2 * * *", "Europe/Berlin");
        let found = slots(&daily, "2026-03-27T12:00:00Z", 3);
        assert_eq!(found, ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]);
    }

    #[test]
    fn a_daily_slot_in_the_hour_that_comes_twice_comes_once() {
        // On 2026-10-25 clocks in Berlin go from 03:00 back to 02:00, which is 01:00 UTC.
        let daily = cron("30 2 * * *", "Europe/Berlin");
        let found = slots(&daily, "2026-10-24T12:00:00Z", 2);
        assert_eq!(found, ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
    }

    #[test]
    fn what_is_due_every_so_often_is_due_in_both_hours() {
        let quarterly = cron("*/30 * * * *", "Europe/Berlin");
        let found = slots(&quarterly, "2026-10-24T23:59:59Z", 5);
        let expected = ["00:00", "00:30", "01:00", "01:30", "02:00"].map(|time| format!("2026-10-25T{time}:00Z"));
        assert_eq!(found, expected);
    }

    #[test]
    fn jitter_is_the_same_everywhere_and_spreads() {
        let jittered = Schedule { jitter: Duration::from_secs(30), ..every(60, CatchUp::Last) };
        let at = |role: &str, slot| jittered.due(role, Slot(slot)).at;
        assert_eq!(at("a", 60_000), at("a", 60_000));
        let offsets: Vec<u64> = (1..100).map(|minute| at("a", minute * 60_000) - minute * 60_000).collect();
        assert!(offsets.iter().all(|offset| *offset < 30_000));
        assert!(offsets.iter().max().unwrap() - offsets.iter().min().unwrap() > 20_000, "{offsets:?}");
    }

    #[test]
    fn a_slot_whose_jitter_is_still_running_is_no_missed_one() {
        let jittered = Schedule { jitter: Duration::from_secs(30), ..every(60, CatchUp::None) };
        for minute in 1..100 {
            let slot = Slot(minute * 60_000);
            let due = jittered.due("r", slot).at;
            if due > slot.0 {
                let next = jittered.next("r", Slot(slot.0 - 60_000), due - 1).unwrap();
                assert_eq!(next, Due { slot, at: due });
            }
        }
    }

    proptest! {
        /// The last slot up to a time is the one that walking forward comes to, through every change of clocks.
        #[test]
        fn the_last_slot_is_found(
            start in 1_735_689_600_u64..1_830_297_600,
            pattern in prop::sample::select(vec!["30 2 * * *", "*/20 * * * *", "0 1-3 * * *", "15 30 2 * * SUN", "0 * * * *"]),
            zone in prop::sample::select(vec!["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"]),
        ) {
            let cadence = cron(pattern, zone);
            let first = cadence.after(Slot(start * 1000)).unwrap();
            let mut slot = first;
            for _ in 0..40 {
                let next = cadence.after(slot).unwrap();
                prop_assert!(next > slot);
                for time in [slot.0, slot.0 + 1, next.0 - 1] {
                    prop_assert_eq!(cadence.up_to(time, first), slot);
                }
                slot = next;
            }
        }

        /// Slot by slot, whatever the times: no slot twice, none out of order.
        #[test]
        fn slots_only_rise(waits in prop::collection::vec(0_u64..200_000, 1..40), most in 1_u32..5, jitter in 0_u64..60) {
            for catch_up in [CatchUp::None, CatchUp::Last, CatchUp::All(most)] {
                let schedule = Schedule { jitter: Duration::from_secs(jitter), ..every(60, catch_up) };
                let (mut now, mut last) = (1_000_000_u64, Slot(1_000_000));
                for wait in &waits {
                    now += wait;
                    let due = schedule.next("r", last, now).unwrap();
                    prop_assert!(due.slot > last);
                    now = now.max(due.at);
                    last = due.slot;
                }
            }
        }
    }
}
