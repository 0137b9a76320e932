//! Delivers the entries of an outbox in the role's state to a URL, in the order of their keys.
//!
//! An entry is removed when its delivery was acknowledged, and only then: over a change of leaders an entry may be delivered
//! twice, and none is lost or overtaken.

mod outbox;

use std::time::Duration;

use tenure_guest::http::{self, Request};
use tenure_guest::{Error, Handoff, Job, Next, settings, state};

use crate::outbox::{Attempts, Outbox};

struct Relay {
    url: String,
    content_type: String,
    timeout: Duration,
    poll: Duration,
    outbox: Outbox,
    attempts: Attempts,
}

/// What came of one delivery.
enum Delivery {
    Acknowledged,
    Refused(String),
    Fenced,
}

impl Job for Relay {
    fn elected(_: Option<Handoff>) -> Result<Self, Error> {
        let prefix = settings::get("prefix").unwrap_or_else(|| "outbox/".to_owned());
        let batch = settings::parse("batch")?.unwrap_or(100);
        if batch == 0 {
            return Err("the setting `batch` must be at least 1".into());
        }
        Ok(Self {
            url: settings::get("url").ok_or("set `url`: where entries are delivered")?,
            content_type: settings::get("content_type").unwrap_or_else(|| "application/octet-stream".to_owned()),
            timeout: Duration::from_secs(settings::parse("timeout_s")?.unwrap_or(10)),
            poll: Duration::from_millis(settings::parse("poll_ms")?.unwrap_or(1000)),
            outbox: Outbox { prefix, batch },
            attempts: Attempts::new(settings::parse("max_attempts")?),
        })
    }

    fn tick(&mut self) -> Result<Next, Error> {
        let keys = match state::keys() {
            Ok(keys) => self.outbox.next(keys),
            Err(state::Error::Fenced) => return Ok(Next::Done),
            Err(error) => return Err(error.into()),
        };
        let more = keys.len() == self.outbox.batch;
        for key in keys {
            let Some(entry) = state::get(&key)? else { continue };
            match self.deliver(&key, entry.clone()) {
                Delivery::Acknowledged => {
                    state::delete(&key)?;
                    self.attempts.forget(&key);
                }
                Delivery::Refused(why) if self.attempts.is_last(&key) => {
                    let dead = self.outbox.dead(&key);
                    log::error!("{key}: {why}; after so many attempts it is moved to {dead}");
                    state::set(&dead, entry)?;
                    state::delete(&key)?;
                    self.attempts.forget(&key);
                }
                Delivery::Refused(why) => {
                    // Nothing overtakes it.
                    let wait = self.attempts.wait(self.poll);
                    log::warn!("{key}: {why}; again in {wait:?}");
                    return Ok(Next::after(wait));
                }
                Delivery::Fenced => return Ok(Next::Done),
            }
        }
        Ok(if more { Next::Again } else { Next::after(self.poll) })
    }
}

impl Relay {
    fn deliver(&self, key: &str, entry: Vec<u8>) -> Delivery {
        let request = Request::post(&self.url)
            .header("content-type", &self.content_type)
            .header("idempotency-key", key)
            .timeout(self.timeout)
            .body(entry);
        match request.send() {
            Ok(response) if response.is_success() => Delivery::Acknowledged,
            Ok(response) => Delivery::Refused(format!("the server answered {}", response.status)),
            Err(http::Error::Fenced) => Delivery::Fenced,
            Err(error) => Delivery::Refused(error.to_string()),
        }
    }
}

tenure_guest::export!(Relay);
