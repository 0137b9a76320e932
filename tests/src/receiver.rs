//! A server on loopback that writes down what it is sent: what the outside world saw of a plugin.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// One request, as it was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// Such as `/slots/1`.
    pub path: String,
    /// `Tenure-Term`.
    pub term: u64,
    /// All headers, their names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body, as text.
    pub body: String,
}

/// Answers every request once it has all of it: with 200, where nothing else was asked for.
pub struct Receiver {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    received: Mutex<Vec<Received>>,
    answers: Mutex<VecDeque<u16>>,
}

impl Receiver {
    /// A server on a free port, which ends with the process.
    ///
    /// # Panics
    ///
    /// Where there is no free port.
    #[must_use]
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared::default());
        let serving = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                // A connection that breaks off has nothing more to say.
                thread::spawn(move || serve(stream, &serving));
            }
        });
        Self { port, shared }
    }

    /// Where it listens, without a slash at the end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The next requests are answered with these statuses.
    pub fn answer_with(&self, statuses: impl IntoIterator<Item = u16>) {
        self.shared.answers.lock().unwrap_or_else(PoisonError::into_inner).extend(statuses);
    }

    /// Everything so far, in its order.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        self.shared.received.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(stream: TcpStream, shared: &Shared) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let (mut first, mut headers) = (String::new(), BTreeMap::new());
        reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            let Some((name, value)) = line.trim().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let number = |name: &str| headers.get(name).and_then(|value| value.parse().ok()).unwrap_or(0_u64);
        let (term, mut body) = (number("tenure-term"), Vec::new());
        reader.by_ref().take(number("content-length")).read_to_end(&mut body).ok()?;
        let path = first.split(' ').nth(1)?.to_owned();
        let body = String::from_utf8_lossy(&body).into_owned();
        shared.received.lock().unwrap_or_else(PoisonError::into_inner).push(Received { path, term, headers, body });
        let status = shared.answers.lock().unwrap_or_else(PoisonError::into_inner).pop_front().unwrap_or(200);
        // In one piece: several small ones would wait for each other.
        let answer = format!("HTTP/1.1 {status} as asked\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(answer.as_bytes()).ok()?;
    }
}
