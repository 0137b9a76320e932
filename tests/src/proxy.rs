//! A network between a host and its store that fails on command.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Forwards connections to a port on 127.0.0.1. What it swallows is gone, as with a network that drops packets and says
/// nothing: no connection is refused or reset.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    to: AtomicU16,
    /// Towards the store.
    swallow_requests: AtomicBool,
    /// Towards the host.
    swallow_replies: AtomicBool,
    closed: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// A proxy that forwards to `port`.
    ///
    /// # Panics
    ///
    /// Where there is no free port.
    #[must_use]
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let own_port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            to: AtomicU16::new(port),
            swallow_requests: AtomicBool::new(false),
            swallow_replies: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let accepting = shared.clone();
        thread::spawn(move || {
            for from in listener.incoming().flatten() {
                if accepting.closed.load(Ordering::SeqCst) {
                    return;
                }
                accepting.clone().serve(from);
            }
        });
        Self { port: own_port, shared }
    }

    /// The URL for `[store]`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Swallows everything, in both directions.
    pub fn black_hole(&self) {
        self.shared.swallow_requests.store(true, Ordering::SeqCst);
        self.shared.swallow_replies.store(true, Ordering::SeqCst);
    }

    /// Lets requests through, and swallows the replies.
    pub fn swallow_replies(&self) {
        self.shared.swallow_replies.store(true, Ordering::SeqCst);
    }

    /// Forwards new connections again. The old ones have lost bytes and are reset.
    pub fn heal(&self) {
        self.shared.swallow_requests.store(false, Ordering::SeqCst);
        self.shared.swallow_replies.store(false, Ordering::SeqCst);
        self.cut();
    }

    /// Resets every connection.
    pub fn cut(&self) {
        for connection in self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Forwards to another port from now on: a fail-over.
    pub fn point_to(&self, port: u16) {
        self.shared.to.store(port, Ordering::SeqCst);
        self.cut();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.cut();
        // Wakes the accepting thread up.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn serve(self: Arc<Self>, from: TcpStream) {
        let Ok(to) = TcpStream::connect(("127.0.0.1", self.to.load(Ordering::SeqCst))) else { return };
        for stream in [&from, &to] {
            let _ = stream.set_nodelay(true);
            let _ = stream.set_read_timeout(Some(Duration::from_secs(600)));
        }
        let (Ok(from_again), Ok(to_again)) = (from.try_clone(), to.try_clone()) else { return };
        if let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) {
            self.connections.lock().unwrap_or_else(PoisonError::into_inner).extend([from, to]);
        }
        let shared = self.clone();
        thread::spawn(move || shared.pump(from, to, |shared| &shared.swallow_requests));
        thread::spawn(move || self.pump(to_again, from_again, |shared| &shared.swallow_replies));
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream, swallow: fn(&Self) -> &AtomicBool) {
        let mut bytes = [0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if !swallow(self).load(Ordering::SeqCst) && to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    }
}
