//! A job that is to tick every second, and measures how late the worst tick was. Says so when it is demoted.

use std::time::{Duration, Instant};

use tenure_guest::{Error, Handoff, Job, Next, Reason};

/// What the role's `every` says.
const EVERY: Duration = Duration::from_secs(1);

struct Punctual {
    last: Option<Instant>,
    worst: Duration,
}

impl Job for Punctual {
    fn elected(_: Option<Handoff>) -> Result<Self, Error> {
        Ok(Self { last: None, worst: Duration::ZERO })
    }

    fn tick(&mut self) -> Result<Next, Error> {
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            self.worst = self.worst.max((now - last).saturating_sub(EVERY));
        }
        Ok(Next::Again)
    }

    fn demoted(self, _: Reason) -> Option<Vec<u8>> {
        log::info!("worst lateness {} us", self.worst.as_micros());
        None
    }
}

tenure_guest::export!(Punctual);
