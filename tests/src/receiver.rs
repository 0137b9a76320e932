//! A server on loopback that writes down what it is sent: what the outside world saw of a plugin.

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
}

/// Answers every request with 200, once it has all of it.
pub struct Receiver {
    port: u16,
    received: Arc<Mutex<Vec<Received>>>,
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
        let received = Arc::new(Mutex::new(Vec::new()));
        let record = received.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let record = record.clone();
                // A connection that breaks off has nothing more to say.
                thread::spawn(move || serve(stream, &record));
            }
        });
        Self { port, received }
    }

    /// Where it listens, without a slash at the end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Everything so far, in its order.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(stream: TcpStream, record: &Mutex<Vec<Received>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let (mut first, mut term, mut length) = (String::new(), 0, 0);
        reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            match line.trim().to_ascii_lowercase().split_once(": ") {
                Some(("tenure-term", value)) => term = value.parse().ok()?,
                Some(("content-length", value)) => length = value.parse().ok()?,
                Some(_) => {}
                None => break,
            }
        }
        reader.read_exact(&mut vec![0; length]).ok()?;
        let path = first.split(' ').nth(1)?.to_owned();
        record.lock().unwrap_or_else(PoisonError::into_inner).push(Received { path, term });
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
    }
}
