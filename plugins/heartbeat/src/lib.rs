//! Writes a line each tick, with role and term.

use std::time::Duration;

use tenure_guest::{Error, Handoff, Job, Next, Reason, leadership, settings};

struct Heartbeat {
    message: String,
    every: Duration,
    beats: u64,
}

impl Job for Heartbeat {
    fn elected(_: Option<Handoff>) -> Result<Self, Error> {
        let message = settings::get("message").unwrap_or_else(|| "beat".to_owned());
        let every = Duration::from_millis(settings::parse("every_ms")?.unwrap_or(1000));
        log::info!("elected: {} leads {} in term {}", leadership::instance(), leadership::role(), leadership::term());
        Ok(Self { message, every, beats: 0 })
    }

    fn tick(&mut self) -> Result<Next, Error> {
        self.beats += 1;
        log::info!("{} {} (role {}, term {})", self.message, self.beats, leadership::role(), leadership::term());
        Ok(Next::after(self.every))
    }

    fn demoted(self, reason: Reason) -> Option<Vec<u8>> {
        log::info!("demoted after {} beats: {reason:?}", self.beats);
        None
    }
}

tenure_guest::export!(Heartbeat);
