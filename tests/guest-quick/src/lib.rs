//! A job that does nothing, so that a benchmark sees what the host does around it.

use std::time::Duration;

use tenure_guest::{Error, Handoff, Job, Next};

struct Quick;

impl Job for Quick {
    fn elected(_: Option<Handoff>) -> Result<Self, Error> {
        Ok(Self)
    }

    fn tick(&mut self) -> Result<Next, Error> {
        Ok(Next::after(Duration::from_secs(3600)))
    }
}

tenure_guest::export!(Quick);
