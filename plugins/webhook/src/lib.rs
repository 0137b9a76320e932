//! Calls a URL: on the role's schedule, or every so often.
//!
//! A call is tried several times under one idempotency key, which over a change of leaders is the same for a slot of the
//! schedule, so that a receiver can tell a repeated call from a new one.

mod call;

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tenure_guest::http::{self, Request};
use tenure_guest::{Error, Handoff, Job, Next, leadership, settings};

/// How often a wait between two tries looks whether the role is being given up.
const LOOK_EVERY: Duration = Duration::from_millis(50);

struct Webhook {
    url: String,
    method: String,
    body: Vec<u8>,
    headers: Vec<(String, String)>,
    /// Likely a secret, and those are read by name.
    authorization: Option<String>,
    signing_key: Option<String>,
    timeout: Duration,
    tries: u32,
    first_wait: Duration,
    /// How long all tries of a slot may take.
    within: Duration,
    /// Where the role has no schedule.
    every: Duration,
    /// The call that is under way: its key, and how often it was tried.
    under_way: Option<(String, u32)>,
}

/// What came of one try.
enum Tried {
    Done,
    GivenUp(String),
    Again(Duration),
    /// The term is over: whoever leads now makes the call.
    Fenced,
}

impl Job for Webhook {
    fn elected(_: Option<Handoff>) -> Result<Self, Error> {
        let text = |key: &str, default: &str| settings::get(key).unwrap_or_else(|| default.to_owned());
        let seconds = |key, default| settings::parse(key).map(|value| Duration::from_secs(value.unwrap_or(default)));
        let own = settings::all().into_iter();
        let own = own.filter_map(|(key, value)| Some((key.strip_prefix("header.")?.to_owned(), value)));
        Ok(Self {
            url: settings::get("url").ok_or("set `url`: what to call")?,
            method: text("method", "POST"),
            body: text("body", "").into_bytes(),
            headers: [("content-type".to_owned(), text("content_type", "application/json"))]
                .into_iter()
                .chain(own)
                .collect(),
            authorization: settings::get("authorization"),
            signing_key: settings::get("signing_key"),
            timeout: seconds("timeout_s", 5)?,
            tries: settings::parse::<u32>("retries")?.unwrap_or(3).saturating_add(1),
            first_wait: Duration::from_millis(settings::parse("retry_after_ms")?.unwrap_or(500)),
            within: seconds("within_s", 20)?,
            every: seconds("every_s", 60)?,
            under_way: None,
        })
    }

    fn tick(&mut self) -> Result<Next, Error> {
        let slot = leadership::slot();
        let (key, mut tries) = match self.under_way.take() {
            Some(call) => call,
            None => (self.new_key(slot)?, 0),
        };
        let began = Instant::now();
        loop {
            tries += 1;
            match self.try_once(&key, tries)? {
                Tried::Done => {
                    log::info!("{} {} as {key}, at try {tries}", self.method, self.url);
                    return Ok(Next::after(self.every));
                }
                Tried::GivenUp(why) => return Err(format!("{} {} as {key}: {why}", self.method, self.url).into()),
                Tried::Fenced => return Ok(Next::Done),
                Tried::Again(wait) if slot.is_none() => {
                    self.under_way = Some((key, tries));
                    return Ok(Next::after(wait));
                }
                // A slot is one tick: its tries are made within it.
                Tried::Again(wait) if began.elapsed() + wait > self.within => {
                    return Err(format!("{key}: no further try fits into within_s = {}", self.within.as_secs()).into());
                }
                Tried::Again(wait) => {
                    if !rest(wait) {
                        return Err(format!("{key} is left to the next leader after {tries} tries").into());
                    }
                }
            }
        }
    }
}

impl Webhook {
    fn new_key(&self, slot: Option<Duration>) -> Result<String, Error> {
        let role = leadership::role();
        Ok(match slot {
            Some(slot) => format!("{role}-{}", slot.as_millis()),
            None => format!("{role}-{}-{}", leadership::term(), since_1970()?.as_millis()),
        })
    }

    fn try_once(&self, key: &str, tries: u32) -> Result<Tried, Error> {
        let mut request = Request::new(&self.method, &self.url).header("idempotency-key", key).timeout(self.timeout);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        if let Some(signing_key) = &self.signing_key {
            let signature = call::signature(signing_key, since_1970()?.as_secs(), &self.body);
            request = request.header("webhook-signature", signature);
        }
        let (why, retry_after) = match request.body(self.body.clone()).send() {
            Ok(response) if response.is_success() => return Ok(Tried::Done),
            Ok(response) if !call::may_be_retried(response.status) => {
                return Ok(Tried::GivenUp(format!("the server answered {}", response.status)));
            }
            Ok(response) => {
                (format!("the server answered {}", response.status), response.header("retry-after").map(str::to_owned))
            }
            Err(http::Error::Fenced) => return Ok(Tried::Fenced),
            Err(error @ http::Error::Denied(_)) => return Ok(Tried::GivenUp(error.to_string())),
            Err(error) => (error.to_string(), None),
        };
        if tries >= self.tries {
            return Ok(Tried::GivenUp(format!("{why}, at the last of {tries} tries")));
        }
        let wait = call::wait(self.first_wait, tries, retry_after.as_deref());
        log::warn!("{key}: {why}; again in {wait:?}");
        Ok(Tried::Again(wait))
    }
}

/// Waits; false where the role is being given up meanwhile.
fn rest(mut wait: Duration) -> bool {
    while !wait.is_zero() && !leadership::stopping() {
        let step = wait.min(LOOK_EVERY);
        thread::sleep(step);
        wait -= step;
    }
    !leadership::stopping()
}

fn since_1970() -> Result<Duration, Error> {
    Ok(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?)
}

tenure_guest::export!(Webhook);
