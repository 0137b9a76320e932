//! Checks URLs, and tells of every change between up and down, once, whoever leads.
//!
//! What is known of each target is in the role's state. A change is recorded after somebody was told of it: where a leader ends
//! between the two, the next one tells again, under the same idempotency key.

mod health;

use std::time::Duration;

use tenure_guest::http::{self, Request};
use tenure_guest::{Error, Handoff, Job, Next, leadership, settings, state};

use crate::health::{Health, alert};

struct Probe {
    /// Never empty.
    targets: Vec<String>,
    /// Which of them is next.
    next: usize,
    alert_url: String,
    threshold: u32,
    timeout: Duration,
    every: Duration,
}

impl Job for Probe {
    fn elected(_: Option<Handoff>) -> Result<Self, Error> {
        let targets = settings::get("targets").ok_or("set `targets`: the URLs to check, with spaces between them")?;
        let targets: Vec<String> = targets.split_whitespace().map(str::to_owned).collect();
        if targets.is_empty() {
            return Err("the setting `targets` names no URL".into());
        }
        let threshold = settings::parse("threshold")?.unwrap_or(3);
        if threshold == 0 {
            return Err("the setting `threshold` must be at least 1".into());
        }
        Ok(Self {
            targets,
            next: 0,
            alert_url: settings::get("alert_url").ok_or("set `alert_url`: who is told of a change")?,
            threshold,
            timeout: Duration::from_secs(settings::parse("timeout_s")?.unwrap_or(5)),
            every: Duration::from_secs(settings::parse("every_s")?.unwrap_or(30)),
        })
    }

    /// One target: a round of many that hang would take longer than a tick may.
    fn tick(&mut self) -> Result<Next, Error> {
        let target = self.targets[self.next].clone();
        // First, so that one target's error is not in the way of the others.
        self.next = (self.next + 1) % self.targets.len();
        match self.check(&target) {
            // Whoever leads now checks it.
            Err(error) if error.downcast_ref() == Some(&state::Error::Fenced) => return Ok(Next::Done),
            other => other?,
        }
        Ok(if self.next == 0 { Next::after(self.every) } else { Next::Again })
    }
}

impl Probe {
    fn check(&self, target: &str) -> Result<(), Error> {
        let (ok, why) = match Request::get(target).timeout(self.timeout).send() {
            Ok(response) => (response.status < 400, format!("it answered {}", response.status)),
            Err(http::Error::Fenced) => return Err(state::Error::Fenced.into()),
            Err(error @ http::Error::Denied(_)) => return Err(format!("{target}: {error}").into()),
            Err(error) => (false, error.to_string()),
        };
        let key = format!("probe/{target}");
        let known = state::get(&key)?.map(|text| Health::parse(&text)).unwrap_or_default();
        let (health, is_news) = known.after(ok, self.threshold);
        if is_news {
            self.tell(target, health, &why)?;
        }
        if health != known {
            state::set(&key, health.text())?;
        }
        Ok(())
    }

    fn tell(&self, target: &str, health: Health, why: &str) -> Result<(), Error> {
        // The next leader, should it tell of the same change again, counts the same.
        let key = format!("{} {target} {}", leadership::role(), health.changes);
        let body = alert(target, health, why).to_string();
        log::warn!("{body}");
        let response = Request::post(&self.alert_url)
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .timeout(self.timeout)
            .body(body)
            .send();
        match response {
            Ok(response) if response.is_success() => Ok(()),
            Ok(response) => Err(format!("the alert was answered with {}", response.status).into()),
            Err(http::Error::Fenced) => Err(state::Error::Fenced.into()),
            Err(error) => Err(format!("the alert: {error}").into()),
        }
    }
}

tenure_guest::export!(Probe);
