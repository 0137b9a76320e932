//! Delivers the entries of an outbox in the role's state to a URL, in the order of their keys.
//!
//! An entry is removed when its delivery was acknowledged, and only then: over a change of leaders an entry may be delivered
//! twice, and none is lost or overtaken.

mod outbox;

use std::time::{Duration, Instant};

use tenure_guest::http::{self, Request};
use tenure_guest::{Error, Handoff, Job, Next, leadership, settings, state};

use crate::outbox::{Attempts, Outbox};

/// After so long a tick delivers no further entry: a slow server is no reason to be cut off.
const LONGEST_TICK: Duration = Duration::from_secs(5);

struct Relay {
    url: String,
    authorization: Option<String>,
    content_type: String,
    timeout: Duration,
    poll: Duration,
    outbox: Outbox,
    attempts: Attempts,
}

/// What came of one delivery.
enum Delivery {
    Acknowledged,
    /// By an answer other than 2xx: it may be the entry's fault.
    Refused(String),
    /// The server can't be reached, or says nothing: it is not the entry's fault.
    Unanswered(String),
    /// The host does not let it through: the role's grants are wrong.
    Denied(String),
    Fenced,
}

impl Job for Relay {
    fn elected(_: Option<Handoff>) -> Result<Self, Error> {
        let prefix = settings::get("prefix").unwrap_or_else(|| "outbox/".to_owned());
        let batch = settings::parse("batch")?.unwrap_or(100);
        if outbox::DEAD.starts_with(&prefix) {
            return Err(
                format!("the setting `prefix` covers `{}`, where entries go that nobody takes", outbox::DEAD).into()
            );
        }
        if batch == 0 {
            return Err("the setting `batch` must be at least 1".into());
        }
        Ok(Self {
            url: settings::get("url").ok_or("set `url`: where entries are delivered")?,
            authorization: settings::get("authorization"),
            content_type: settings::get("content_type").unwrap_or_else(|| "application/octet-stream".to_owned()),
            timeout: Duration::from_secs(settings::parse("timeout_s")?.unwrap_or(10)),
            poll: Duration::from_millis(settings::parse("poll_ms")?.unwrap_or(1000)),
            outbox: Outbox { prefix, batch },
            attempts: Attempts::new(settings::parse("max_attempts")?),
        })
    }

    fn tick(&mut self) -> Result<Next, Error> {
        match self.drain() {
            // Whoever leads now delivers the rest.
            Err(error) if error.downcast_ref() == Some(&state::Error::Fenced) => Ok(Next::Done),
            other => other,
        }
    }
}

impl Relay {
    /// Delivers a batch, or as much of it as a tick has time for.
    fn drain(&mut self) -> Result<Next, Error> {
        let began = Instant::now();
        let keys = self.outbox.next(state::keys()?);
        let more = keys.len() == self.outbox.batch;
        for key in keys {
            if leadership::stopping() || began.elapsed() > LONGEST_TICK {
                return Ok(Next::Again);
            }
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
                Delivery::Unanswered(why) => {
                    let wait = self.attempts.wait_unanswered(self.poll);
                    log::warn!("{key}: {why}; again in {wait:?}");
                    return Ok(Next::after(wait));
                }
                Delivery::Denied(why) => return Err(format!("{key}: {why}").into()),
                Delivery::Fenced => return Err(state::Error::Fenced.into()),
            }
        }
        Ok(if more { Next::Again } else { Next::after(self.poll) })
    }

    fn deliver(&self, key: &str, entry: Vec<u8>) -> Delivery {
        let request = Request::post(&self.url)
            .header("content-type", &self.content_type)
            .header("idempotency-key", outbox::header(key))
            .timeout(self.timeout)
            .body(entry);
        let request = match &self.authorization {
            Some(authorization) => request.header("authorization", authorization),
            None => request,
        };
        match request.send() {
            Ok(response) if response.is_success() => Delivery::Acknowledged,
            Ok(response) => Delivery::Refused(format!("the server answered {}", response.status)),
            Err(http::Error::Fenced) => Delivery::Fenced,
            Err(error @ http::Error::Denied(_)) => Delivery::Denied(error.to_string()),
            Err(error) => Delivery::Unanswered(error.to_string()),
        }
    }
}

tenure_guest::export!(Relay);
