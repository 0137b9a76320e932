//! Counts its ticks, over all leaders of its role.

use std::time::Duration;

use tenure_guest::{Error, Handoff, Job, Next, Reason, leadership, settings};

struct Counter {
    message: String,
    ticks: u64,
}

impl Job for Counter {
    fn elected(handoff: Option<Handoff>) -> Result<Self, Error> {
        let message = settings::get("message").unwrap_or_else(|| "tick".to_owned());
        let ticks = match handoff {
            Some(handoff) => String::from_utf8(handoff.data)?.parse()?,
            None => 0,
        };
        log::info!("elected in term {}, after {ticks} ticks", leadership::term());
        Ok(Self { message, ticks })
    }

    fn tick(&mut self) -> Result<Next, Error> {
        self.ticks += 1;
        log::info!("{} {}", self.message, self.ticks);
        Ok(Next::after(Duration::from_secs(1)))
    }

    fn demoted(self, reason: Reason) -> Option<Vec<u8>> {
        log::info!("demoted: {reason:?}");
        Some(self.ticks.to_string().into_bytes())
    }
}

tenure_guest::export!(Counter);
