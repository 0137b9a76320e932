//! Calling out over HTTP. Needs `grants = { http = ["https://…"] }` in the role.
//!
//! The host adds `Tenure-Role` and `Tenure-Term` to every request, so that a server can turn down one of a term that is
//! over. Redirects are not followed: a response with one is a response.

use std::fmt;
use std::time::Duration;

use crate::bindings::wasi::http::outgoing_handler;
use crate::bindings::wasi::http::types::{
    self as wit, ErrorCode, Fields, Method, OutgoingBody, OutgoingRequest, Scheme,
};
use crate::bindings::wasi::io::streams::StreamError;

/// How many bytes are written to a body in one step, and read from one.
const STEP: usize = 4096;
const READ_STEP: u64 = 64 << 10;

/// Why there is no response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The term is over. The request was not sent, or was broken off.
    Fenced,
    /// The role's grants do not cover the URL, or the URL is none. The host's log says more.
    Denied(String),
    /// The server did not answer in time. It may have got the request.
    TimedOut,
    /// Anything else between here and the server. It may have got the request.
    Failed(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fenced => f.write_str("fenced: the term is over"),
            Self::Denied(words) => write!(f, "the request is not allowed: {words}"),
            Self::TimedOut => f.write_str("the server did not answer in time"),
            Self::Failed(words) => write!(f, "the request failed: {words}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<ErrorCode> for Error {
    fn from(code: ErrorCode) -> Self {
        match code {
            ErrorCode::InternalError(Some(words)) if words.starts_with("fenced:") => Self::Fenced,
            ErrorCode::InternalError(Some(words)) => Self::Failed(words),
            ErrorCode::HttpRequestDenied => Self::Denied("no origin in grants.http covers it".to_owned()),
            ErrorCode::DestinationIpProhibited => {
                Self::Denied("the name leads to an address of the host's own machine, which is not granted".to_owned())
            }
            ErrorCode::ConnectionTimeout
            | ErrorCode::ConnectionReadTimeout
            | ErrorCode::ConnectionWriteTimeout
            | ErrorCode::DnsTimeout
            | ErrorCode::HttpResponseTimeout => Self::TimedOut,
            other => Self::Failed(format!("{other:?}")),
        }
    }
}

/// A request that has not been sent.
#[derive(Debug, Clone)]
pub struct Request {
    method: String,
    url: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    timeout: Option<Duration>,
}

/// What the server answered, whatever its status.
#[derive(Debug, Clone)]
pub struct Response {
    /// Such as 200.
    pub status: u16,
    /// Names are in lower case.
    pub headers: Vec<(String, Vec<u8>)>,
    /// All of the body.
    pub body: Vec<u8>,
}

impl Response {
    /// Whether the status is one of success: 200 to 299.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The first header `name`, where it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(&found.1).ok()
    }
}

impl Request {
    /// A request with a method such as `"PUT"`.
    #[must_use]
    pub fn new(method: &str, url: &str) -> Self {
        let (method, url) = (method.to_owned(), url.to_owned());
        Self { method, url, headers: Vec::new(), body: Vec::new(), timeout: None }
    }

    /// A GET.
    #[must_use]
    pub fn get(url: &str) -> Self {
        Self::new("GET", url)
    }

    /// A POST.
    #[must_use]
    pub fn post(url: &str) -> Self {
        Self::new("POST", url)
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// How long connecting, the beginning of the response, and each silence within it may take. The host shortens it to
    /// what is left of its trust.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sends it, and waits for all of the response.
    ///
    /// # Errors
    ///
    /// See [`Error`]. A status such as 500 is a response, not an error.
    pub fn send(mut self) -> Result<Response, Error> {
        let (scheme, authority, path) = split(&self.url)?;
        if !self.body.is_empty() {
            self.headers.push(("content-length".to_owned(), self.body.len().to_string().into_bytes()));
        }
        let fields = Fields::from_list(&self.headers)
            .map_err(|error| Error::Denied(format!("a header is not accepted ({error:?})")))?;
        let request = OutgoingRequest::new(fields);
        let refused = |()| Error::Denied(format!("the method or the URL is none: {} {}", self.method, self.url));
        request.set_method(&method(&self.method)).map_err(refused)?;
        request.set_scheme(Some(&scheme)).map_err(refused)?;
        request.set_authority(Some(authority)).map_err(refused)?;
        request.set_path_with_query(Some(&path)).map_err(refused)?;
        let body = request.body().map_err(refused)?;
        let coming = outgoing_handler::handle(request, self.options())?;
        let written = write(body, &self.body);
        coming.subscribe().block();
        let response = match coming.get() {
            Some(Ok(response)) => response?,
            _ => return Err(Error::Failed("the host gave no response".to_owned())),
        };
        // A server may answer before it has read everything.
        if response.status() < 400 {
            written?;
        }
        let (status, headers) = (response.status(), response.headers().entries());
        Ok(Response { status, headers, body: read(&response)? })
    }

    fn options(&self) -> Option<wit::RequestOptions> {
        let nanoseconds = u64::try_from(self.timeout?.as_nanos()).unwrap_or(u64::MAX);
        let options = wit::RequestOptions::new();
        // This host knows all three.
        let _ = options.set_connect_timeout(Some(nanoseconds));
        let _ = options.set_first_byte_timeout(Some(nanoseconds));
        let _ = options.set_between_bytes_timeout(Some(nanoseconds));
        Some(options)
    }
}

/// Scheme, authority, and path with query.
fn split(url: &str) -> Result<(Scheme, &str, String), Error> {
    let (scheme, rest) = match url.split_once("://") {
        Some(("https", rest)) => (Scheme::Https, rest),
        Some(("http", rest)) => (Scheme::Http, rest),
        _ => return Err(Error::Denied(format!("the URL does not begin with http:// or https://: {url}"))),
    };
    let rest = rest.split('#').next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    Ok((scheme, authority, path))
}

fn method(name: &str) -> Method {
    match name {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "PUT" => Method::Put,
        "DELETE" => Method::Delete,
        "CONNECT" => Method::Connect,
        "OPTIONS" => Method::Options,
        "TRACE" => Method::Trace,
        "PATCH" => Method::Patch,
        other => Method::Other(other.to_owned()),
    }
}

fn write(body: OutgoingBody, bytes: &[u8]) -> Result<(), Error> {
    let broken = |error: StreamError| Error::Failed(format!("the body could not be sent: {}", stream_words(&error)));
    let stream = body.write().map_err(|()| Error::Failed("the body can't be written".to_owned()))?;
    for part in bytes.chunks(STEP) {
        stream.blocking_write_and_flush(part).map_err(broken)?;
    }
    drop(stream);
    Ok(OutgoingBody::finish(body, None)?)
}

fn read(response: &wit::IncomingResponse) -> Result<Vec<u8>, Error> {
    let gone = |()| Error::Failed("the response's body can't be read".to_owned());
    let body = response.consume().map_err(gone)?;
    let stream = body.stream().map_err(gone)?;
    let mut bytes = Vec::new();
    loop {
        match stream.blocking_read(READ_STEP) {
            Ok(part) => bytes.extend(part),
            Err(StreamError::Closed) => return Ok(bytes),
            Err(error) => return Err(Error::Failed(format!("the response broke off: {}", stream_words(&error)))),
        }
    }
}

fn stream_words(error: &StreamError) -> String {
    match error {
        StreamError::Closed => "the other side has closed the connection".to_owned(),
        StreamError::LastOperationFailed(error) => error.to_debug_string(),
    }
}
