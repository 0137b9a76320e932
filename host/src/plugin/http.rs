//! `wasi:http/outgoing-handler`: requests of a plugin, behind its role's list of origins and its term's gate.
//!
//! The list is asked before a request is made, and once more of the address that its name leads to ([`connect`]). The gate
//! is asked before a request is made, and again before every byte that is written to the network.

mod connect;

use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::uri::Scheme;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::warn;
use wasmtime_wasi_http::{
    DEFAULT_FORBIDDEN_HEADERS, Error, ForbiddenHeaderFilter, RequestOptions, WasiBody, WasiHttpCtx, WasiHttpHooks,
};

use self::connect::{Connector, Refusal};
use super::Seat;
use super::limits::MAX_HEADERS;
use crate::config::RoleName;
use crate::gate::Gate;
use crate::grants::{Origin, Target};

/// The most requests of one instance that are under way at once.
const MAX_REQUESTS: usize = 32;
/// The most bytes of one request's body.
const MAX_BODY: u64 = 16 << 20;
/// How long connecting may take, where the plugin does not say.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long the response may take to begin, where the plugin does not say.
const RESPOND_WITHIN: Duration = Duration::from_secs(60);
/// How long an unused connection is kept open for the next request.
const KEEP_OPEN: Duration = Duration::from_secs(30);

/// Headers that say who asks, for servers that check. No plugin can set them.
const ROLE: HeaderName = HeaderName::from_static("tenure-role");
const TERM: HeaderName = HeaderName::from_static("tenure-term");
/// What all headers of the host's own begin with.
const RESERVED: &str = "tenure-";

type Outcome = wasmtime_wasi_http::Result<(Response<WasiBody>, Box<dyn Future<Output = Result<(), Error>> + Send>)>;

/// The requests of one instance.
pub(super) struct HttpOut {
    ctx: WasiHttpCtx,
    requests: Requests,
}

/// How they are made.
struct Requests {
    role: RoleName,
    origins: Arc<[Origin]>,
    gate: Arc<Gate>,
    under_way: Arc<Semaphore>,
    /// Made with the first request. Its connections end with the instance: each belongs to one term.
    client: OnceLock<Client<HttpsConnector<Connector>, OutgoingBody>>,
}

impl HttpOut {
    pub(super) fn new(role: RoleName, origins: Arc<[Origin]>, seat: &Seat) -> Self {
        let mut ctx = WasiHttpCtx::new();
        ctx.set_field_size_limit(MAX_HEADERS);
        let under_way = Arc::new(Semaphore::new(MAX_REQUESTS));
        let requests = Requests { role, origins, gate: seat.gate.clone(), under_way, client: OnceLock::new() };
        Self { ctx, requests }
    }

    /// In the two parts that the library wants side by side.
    pub(super) fn split(&mut self) -> (&mut dyn WasiHttpHooks, &mut WasiHttpCtx) {
        (&mut self.requests, &mut self.ctx)
    }
}

impl Requests {
    fn client(&self) -> Result<Client<HttpsConnector<Connector>, OutgoingBody>, Error> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls()?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(Connector::new(self.gate.clone(), self.origins.clone()));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(KEEP_OPEN)
            .pool_max_idle_per_host(MAX_REQUESTS)
            .build(connector);
        Ok(self.client.get_or_init(|| client).clone())
    }

    /// The list and the gate, before anything is done.
    fn allow(&self, request: &Request<WasiBody>) -> Result<OwnedSemaphorePermit, Error> {
        self.gate.permit().map_err(|refused| fenced(refused.term))?;
        let uri = request.uri();
        let authority = uri.authority().ok_or(Error::HttpRequestUriInvalid)?;
        let https = uri.scheme() == Some(&Scheme::HTTPS);
        let port = authority.port_u16().unwrap_or(if https { 443 } else { 80 });
        let target = Target { https, host: authority.host(), port, path: uri.path() };
        let plain = !authority.as_str().contains('@');
        if !plain || !self.origins.iter().any(|origin| origin.allows(target)) {
            let (role, term) = (&self.role, self.gate.term());
            let scheme = if https { "https" } else { "http" };
            let (host, path) = (target.host, target.path);
            warn!(
                %role, term,
                "a request to {scheme}://{host}:{port}{path} is refused: no origin in role.{role}.grants.http covers it"
            );
            return Err(Error::HttpRequestDenied);
        }
        // Who waits for an earlier response can try again.
        self.under_way.clone().try_acquire_owned().map_err(|_| Error::ConnectionLimitReached)
    }

    fn send(&self, request: Request<WasiBody>, options: Option<RequestOptions>) -> Result<Sending, Error> {
        let under_way = self.allow(&request)?;
        let client = self.client()?;
        let options = options.unwrap_or_default();
        let gate = self.gate.clone();
        let mut request = request.map(|body| OutgoingBody { body, left: MAX_BODY, gate: gate.clone() });
        let headers = request.headers_mut();
        headers.insert(ROLE, HeaderValue::from_str(self.role.as_str()).map_err(|_| Error::HttpProtocolError)?);
        headers.insert(TERM, HeaderValue::from(gate.term()));
        let connect_within = options.connect_timeout.unwrap_or(CONNECT_WITHIN);
        let respond_within = options.first_byte_timeout.unwrap_or(RESPOND_WITHIN);
        let between = options.between_bytes_timeout.unwrap_or(RESPOND_WITHIN);
        Ok(Box::pin(async move {
            let exchange = async {
                let timeout = connect_within.saturating_add(respond_within);
                let response = tokio::time::timeout(
                    timeout,
                    connect::CONNECT_WITHIN.scope(connect_within, client.request(request)),
                );
                match response.await {
                    Ok(response) => response.map_err(|error| explain(&error)),
                    Err(_) => Err(Error::HttpResponseTimeout),
                }
            };
            let response = tokio::select! {
                biased;
                response = exchange => response?,
                () = gate.ended() => return Err(fenced(gate.term())),
            };
            Ok(response.map(|body| ResponseBody { body, between, silent: None, _under_way: under_way }.boxed_unsync()))
        }))
    }
}

type Sending = Pin<Box<dyn Future<Output = Result<Response<WasiBody>, Error>> + Send>>;

impl WasiHttpHooks for Requests {
    fn forbidden_header_filter(&mut self) -> ForbiddenHeaderFilter {
        Arc::new(|name| DEFAULT_FORBIDDEN_HEADERS.contains(name) || name.as_str().starts_with(RESERVED))
    }

    fn send_request(
        &mut self,
        request: Request<WasiBody>,
        options: Option<RequestOptions>,
        _processed: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = Outcome> + Send> {
        let sending = self.send(request, options);
        Box::new(async move {
            let response = sending?.await?;
            // Connections are driven by tasks of the client's.
            let driven: Box<dyn Future<Output = Result<(), Error>> + Send> = Box::new(async { Ok(()) });
            Ok((response, driven))
        })
    }
}

/// What the SDK tells from every other failure by its first word.
fn fenced(term: u64) -> Error {
    Error::InternalError(Some(format!("fenced: term {term} is over")))
}

/// The machine's own certificates, read once.
fn tls() -> Result<ClientConfig, Error> {
    static CONFIG: OnceLock<Result<ClientConfig, String>> = OnceLock::new();
    let config = CONFIG.get_or_init(|| {
        let config = ClientConfig::builder().with_native_roots().map_err(|error| {
            format!("no certificates to check servers with ({error}): install ca-certificates, or set SSL_CERT_FILE")
        })?;
        Ok(config.with_no_client_auth())
    });
    config.clone().map_err(|words| Error::InternalError(Some(words)))
}

/// The cause of a failed exchange, as the standard's own kinds have it.
fn explain(error: &(dyn StdError + 'static)) -> Error {
    let mut cause = Some(error);
    while let Some(present) = cause {
        if let Some(refusal) = present.downcast_ref::<Refusal>() {
            return refusal.kind();
        }
        if let Some(tls) = present.downcast_ref::<rustls::Error>() {
            return match tls {
                rustls::Error::InvalidCertificate(_) => Error::TlsCertificateError,
                _ => Error::TlsProtocolError,
            };
        }
        if let Some(own) = present.downcast_ref::<Error>() {
            return match own {
                Error::HttpRequestBodySize(size) => Error::HttpRequestBodySize(*size),
                Error::InternalError(words) => Error::InternalError(words.clone()),
                other => Error::InternalError(Some(other.to_string())),
            };
        }
        if let Some(io) = present.downcast_ref::<std::io::Error>() {
            // What it wraps says more, and is not its source.
            if let Some(inner) = io.get_ref() {
                cause = Some(inner);
                continue;
            }
            match io.kind() {
                std::io::ErrorKind::ConnectionRefused => return Error::ConnectionRefused,
                std::io::ErrorKind::ConnectionReset
                | std::io::ErrorKind::BrokenPipe
                | std::io::ErrorKind::UnexpectedEof => return Error::ConnectionTerminated,
                std::io::ErrorKind::TimedOut => return Error::ConnectionTimeout,
                _ => {}
            }
        }
        if let Some(hyper) = present.downcast_ref::<hyper::Error>()
            && hyper.is_incomplete_message()
        {
            return Error::HttpResponseIncomplete;
        }
        cause = present.source();
    }
    Error::InternalError(Some(error.to_string()))
}

/// A request's body: no more of it is read once the term is over, and no more than the limit.
struct OutgoingBody {
    body: WasiBody,
    left: u64,
    gate: Arc<Gate>,
}

impl Body for OutgoingBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Err(refused) = self.gate.permit() {
            return Poll::Ready(Some(Err(fenced(refused.term))));
        }
        if let Some(Ok(frame)) = &frame {
            let size = frame.data_ref().map_or(0, |data| data.len() as u64);
            match self.left.checked_sub(size) {
                Some(left) => self.left = left,
                None => return Poll::Ready(Some(Err(Error::HttpRequestBodySize(Some(MAX_BODY))))),
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response's body. It counts as under way until it is dropped, and may not fall silent for too long.
struct ResponseBody {
    body: Incoming,
    between: Duration,
    silent: Option<Pin<Box<tokio::time::Sleep>>>,
    _under_way: OwnedSemaphorePermit,
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(frame) => {
                self.silent = None;
                Poll::Ready(frame.map(|frame| frame.map_err(|error| explain(&error))))
            }
            Poll::Pending => {
                let between = self.between;
                let silent = self.silent.get_or_insert_with(|| Box::pin(tokio::time::sleep(between)));
                std::task::ready!(silent.as_mut().poll(context));
                Poll::Ready(Some(Err(Error::ConnectionReadTimeout)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
