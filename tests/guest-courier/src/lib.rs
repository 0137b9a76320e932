//! A job whose ticks do what the setting `do` says, and return what came of it as their error: `set a 1; get a` returns
//! `Ok(()); Ok(Some("1"))`. With the setting `log`, ticks write that to the log instead, and succeed.
//!
//! `$term` and `$slot` in `do` stand for the present ones. `pause_ms` is a wait before each step, after a line about it.

use std::thread;
use std::time::Duration;

use tenure_guest::bindings::wasi::http::outgoing_handler;
use tenure_guest::bindings::wasi::http::types::{Fields, OutgoingRequest, Scheme};
use tenure_guest::http::Request;
use tenure_guest::{Error, Handoff, Job, Next, leadership, settings, state};

struct Courier {
    steps: Vec<String>,
    pause: Duration,
    log: bool,
    after: Duration,
}

impl Job for Courier {
    fn elected(_: Option<Handoff>) -> Result<Self, Error> {
        let steps = settings::get("do").unwrap_or_default();
        Ok(Self {
            steps: steps.split(';').map(|step| step.trim().to_owned()).collect(),
            pause: Duration::from_millis(settings::parse("pause_ms")?.unwrap_or(0)),
            log: settings::get("log").is_some(),
            after: Duration::from_millis(settings::parse("after_ms")?.unwrap_or(10)),
        })
    }

    fn tick(&mut self) -> Result<Next, Error> {
        let mut told = Vec::new();
        for step in &self.steps {
            if !self.pause.is_zero() {
                log::info!("before {step}");
                thread::sleep(self.pause);
            }
            told.push(carry_out(step));
        }
        let told = told.join("; ");
        if self.log {
            log::info!("did {told}");
            return Ok(Next::after(self.after));
        }
        Err(told.into())
    }
}

fn carry_out(step: &str) -> String {
    let slot = leadership::slot().map_or(0, |slot| slot.as_millis());
    let step = step.replace("$term", &leadership::term().to_string()).replace("$slot", &slot.to_string());
    let words: Vec<&str> = step.split_whitespace().collect();
    match words.as_slice() {
        ["get", key] => {
            let text = |value: Vec<u8>| String::from_utf8_lossy(&value).into_owned();
            format!("{:?}", state::get(key).map(|value| value.map(text)))
        }
        ["set", key, value] => format!("{:?}", state::set(key, value)),
        ["set-large", key, bytes] => format!("{:?}", state::set(key, vec![b'x'; number(bytes)])),
        ["set-many", key, value] => {
            let entries = [1, 2].map(|at| (format!("{key}{at}"), value.as_bytes().to_vec()));
            format!("{:?}", state::set_many(&entries))
        }
        ["get-many", rest @ ..] => format!("{:?}", state::get_many(rest)),
        ["delete", key] => format!("{:?}", state::delete(key)),
        ["delete-many", rest @ ..] => format!("{:?}", state::delete_many(rest)),
        ["exists", key] => format!("{:?}", state::exists(key)),
        ["increment", key, delta] => format!("{:?}", state::increment(key, number(delta) as u64)),
        ["keys"] => format!("{:?}", state::keys()),
        ["setting", key] => format!("{:?}", settings::get(key)),
        ["settings"] => format!("{:?}", settings::all()),
        ["env", name] => format!("{:?}", std::env::var(name).ok()),
        ["read", path] => format!("{:?}", std::fs::read_to_string(path).map_err(|error| error.kind())),
        ["write", path, text] => format!("{:?}", std::fs::write(path, text).map_err(|error| error.kind())),
        ["print", text] => {
            println!("{text}");
            String::new()
        }
        ["fetch", url] => send(Request::get(url)),
        ["post", url, body] => send(Request::post(url).body(*body)),
        ["post-large", url, bytes] => send(Request::post(url).body(vec![b'x'; number(bytes)])),
        ["header", url, name, value] => send(Request::get(url).header(name, value)),
        ["header-large", url, bytes] => send(Request::get(url).header("x-large", vec![b'x'; number(bytes)])),
        ["within", ms, url] => send(Request::get(url).timeout(Duration::from_millis(number(ms) as u64))),
        ["at-once", url, count] => at_once(url, number(count)),
        other => format!("the courier does not know how to {other:?}"),
    }
}

fn number(text: &str) -> usize {
    text.parse().unwrap_or(0)
}

fn send(request: Request) -> String {
    match request.send() {
        Ok(response) => format!("{} {}", response.status, String::from_utf8_lossy(&response.body)),
        Err(error) => format!("{error:?}"),
    }
}

/// Sends many requests before it looks at any response.
fn at_once(url: &str, count: usize) -> String {
    let authority = url.trim_start_matches("http://").trim_end_matches('/');
    let mut coming = Vec::new();
    for _ in 0..count {
        let request = OutgoingRequest::new(Fields::new());
        let set = request
            .set_scheme(Some(&Scheme::Http))
            .and_then(|()| request.set_authority(Some(authority)))
            .and_then(|()| request.set_path_with_query(Some("/")));
        if set.is_err() {
            return "no URL".to_owned();
        }
        match outgoing_handler::handle(request, None) {
            Ok(response) => coming.push(response),
            Err(code) => return format!("{code:?}"),
        }
    }
    let mut told = Vec::new();
    for response in &coming {
        response.subscribe().block();
        told.push(match response.get() {
            Some(Ok(Ok(response))) => response.status().to_string(),
            Some(Ok(Err(code))) => format!("{code:?}"),
            other => format!("{other:?}"),
        });
    }
    told.sort();
    told.dedup();
    told.join(", ")
}

tenure_guest::export!(Courier);
