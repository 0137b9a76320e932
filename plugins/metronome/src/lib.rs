//! Emits one event for every slot of a wall-clock grid: the clock of a log pipeline, of which exactly one may tick.
//!
//! The last slot travels in the hand-off, so that an orderly change of leaders repeats and misses none.

mod grid;

use std::time::{Duration, SystemTime};

use tenure_guest::{Error, Handoff, Job, Next, Reason, leadership, settings};

use crate::grid::Grid;

struct Metronome {
    event: String,
    grid: Grid,
    /// The last slot that was emitted, or that passed before there was a metronome.
    last: u64,
}

impl Job for Metronome {
    fn elected(handoff: Option<Handoff>) -> Result<Self, Error> {
        let every = settings::parse("every_s")?.unwrap_or(60);
        if every == 0 {
            return Err("the setting `every_s` must be at least 1".into());
        }
        let event = settings::get("event").unwrap_or_else(|| "tick".to_owned());
        if !event.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) {
            return Err("the setting `event` may have letters, digits, `.`, `_` and `-`".into());
        }
        let grid = Grid { every, catch_up: settings::parse("catch_up")?.unwrap_or(10) };
        let last = match handoff {
            Some(handoff) => String::from_utf8(handoff.data)?.parse()?,
            None => grid.slot(now()?),
        };
        Ok(Self { event, grid, last })
    }

    fn tick(&mut self) -> Result<Next, Error> {
        let now = now()?;
        for slot in self.grid.due(self.last, now) {
            let (event, role, term) = (&self.event, leadership::role(), leadership::term());
            println!(r#"{{"event":"{event}","slot":{slot},"role":"{role}","term":{term}}}"#);
            self.last = slot;
        }
        let next = self.grid.slot(now) + self.grid.every;
        Ok(Next::after(Duration::from_secs(next - now)))
    }

    fn demoted(self, reason: Reason) -> Option<Vec<u8>> {
        log::info!("the last slot was {}: {reason:?}", self.last);
        Some(self.last.to_string().into_bytes())
    }
}

/// Seconds since 1970.
fn now() -> Result<u64, Error> {
    Ok(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs())
}

tenure_guest::export!(Metronome);
