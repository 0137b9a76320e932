//! Connections of a plugin's requests: only to addresses that its grants cover, and nothing is written past the trust.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tower_service::Service;
use wasmtime_wasi_http::Error;

use crate::gate::Gate;
use crate::grants::{Origin, Target, is_local};

tokio::task_local! {
    /// How long the present request may take to connect.
    pub(super) static CONNECT_WITHIN: Duration;
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the name is not known, or the name server does not answer")]
    NotFound,
    #[error("the name leads to an address of this machine or its link, which is not granted by itself")]
    Prohibited,
    #[error("no connection in time")]
    TimedOut,
    #[error("fenced: term {0} is over")]
    Fenced(u64),
}

impl Refusal {
    /// As the standard's own kinds have it.
    pub(super) fn kind(&self) -> Error {
        match self {
            Self::NotFound => Error::DnsError { rcode: None, info_code: None },
            Self::Prohibited => Error::DestinationIpProhibited,
            Self::TimedOut => Error::ConnectionTimeout,
            Self::Fenced(term) => super::fenced(*term),
        }
    }
}

/// Makes the connections of one instance.
#[derive(Clone)]
pub(super) struct Connector {
    gate: Arc<Gate>,
    origins: Arc<[Origin]>,
}

impl Connector {
    pub(super) fn new(gate: Arc<Gate>, origins: Arc<[Origin]>) -> Self {
        Self { gate, origins }
    }

    async fn connect(self, uri: Uri) -> io::Result<Wire> {
        let https = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default();
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        // Connections are shared between requests: their paths were asked about before.
        let local = self
            .origins
            .iter()
            .any(|origin| origin.names_local() && origin.allows_host(Target { https, host, port, path: "/" }));
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let found: Vec<SocketAddr> = match bare.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => lookup_host((bare, port)).await.map_err(|_| io::Error::other(Refusal::NotFound))?.collect(),
        };
        let mut last = io::Error::other(if found.is_empty() { Refusal::NotFound } else { Refusal::Prohibited });
        for address in found {
            if is_local(address.ip()) && !local {
                continue;
            }
            if let Err(refused) = self.gate.permit() {
                return Err(io::Error::other(Refusal::Fenced(refused.term)));
            }
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Wire { stream: TokioIo::new(Gated { stream, gate: self.gate.clone() }) });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Service<Uri> for Connector {
    type Response = Wire;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Wire>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let within = CONNECT_WITHIN.try_with(|within| *within).unwrap_or(super::CONNECT_WITHIN);
        let connecting = self.clone().connect(uri);
        Box::pin(async move {
            tokio::time::timeout(within, connecting).await.unwrap_or_else(|_| Err(io::Error::other(Refusal::TimedOut)))
        })
    }
}

/// A connection, in the terms of hyper.
pub(super) struct Wire {
    stream: TokioIo<Gated>,
}

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl hyper::rt::Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A stream that takes a permit before every write: whatever was prepared while the host was paused stays unsent.
struct Gated {
    stream: TcpStream,
    gate: Arc<Gate>,
}

impl AsyncRead for Gated {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Gated {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.gate.permit() {
            Ok(_) => Pin::new(&mut self.stream).poll_write(context, bytes),
            Err(refused) => Poll::Ready(Err(io::Error::other(Refusal::Fenced(refused.term)))),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
