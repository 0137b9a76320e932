//! A Redis server of a test's own.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use redis::{Client, Connection, FromRedisValue};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::wait_for;

/// A real `redis-server` on a free loopback port, with nothing in it; ended when dropped.
pub struct RedisServer {
    port: u16,
    arguments: Vec<String>,
    folder: TempDir,
    process: Child,
}

impl RedisServer {
    /// Starts a server.
    ///
    /// # Panics
    ///
    /// Where `redis-server` is missing or does not answer.
    #[must_use]
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with further arguments.
    ///
    /// # Panics
    ///
    /// Where `redis-server` is missing or does not answer.
    #[must_use]
    pub fn with(arguments: &[&str]) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        // Between finding the port free and using it, another process may take it: then try another.
        let (port, process) = (0..10)
            .find_map(|_| {
                let port = free_port();
                let mut process = spawn(port, &arguments, &folder);
                let up = wait_for("redis-server to start or end", || {
                    if process.try_wait().ok().flatten().is_some() {
                        return Some(false);
                    }
                    // A server that wants a password, or is loading, answers too.
                    std::net::TcpStream::connect(("127.0.0.1", port)).is_ok().then_some(true)
                });
                up.then_some((port, process))
            })
            .expect("a free port for redis-server");
        Self { port, arguments, folder, process }
    }

    /// Where it listens, on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL for `[store]`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A connection of the test's own.
    ///
    /// # Panics
    ///
    /// Where the server does not answer.
    #[must_use]
    pub fn connect(&self) -> Connection {
        Client::open(self.url()).expect("a URL").get_connection().expect("redis-server to answer")
    }

    /// Runs one command.
    ///
    /// # Panics
    ///
    /// Where the server refuses it, or the answer is no `T`.
    pub fn run<T: FromRedisValue>(&self, command: &[&str]) -> T {
        let mut request = redis::cmd(command[0]);
        request.arg(&command[1..]);
        request.query(&mut self.connect()).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Stops the process with SIGSTOP: connections stay open, and nothing is answered.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets a paused process go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the process. Its port stays this server's.
    ///
    /// # Panics
    ///
    /// Where the process can't be waited for.
    pub fn kill(&mut self) {
        self.process.kill().expect("to kill redis-server");
        self.process.wait().expect("redis-server to end");
    }

    /// Kills the process and starts an empty one on the same port.
    pub fn restart_empty(&mut self) {
        self.kill();
        self.start_again();
    }

    /// Starts the process again after [`kill`](Self::kill).
    pub fn start_again(&mut self) {
        self.process = spawn(self.port, &self.arguments, &self.folder);
        let port = self.port;
        wait_for("redis-server to start again", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
    }

    fn signal(&self, signal: Signal) {
        kill_process(pid(&self.process), signal).expect("to signal redis-server");
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A port that nobody listened on a moment ago.
///
/// # Panics
///
/// Where there is none.
#[must_use]
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}

pub(crate) fn pid(process: &Child) -> Pid {
    Pid::from_child(process)
}

fn spawn(port: u16, arguments: &[String], folder: &TempDir) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .arg("--dir")
        .arg(folder.path())
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server, which `make test` installs")
}
