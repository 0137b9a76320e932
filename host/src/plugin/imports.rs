//! What a guest may call, and the state behind it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use async_trait::async_trait;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::watch;
use wasmtime::component::{HasSelf, Linker, Resource, ResourceTable};
use wasmtime_wasi::cli::{IsTerminal, StdinStream};
use wasmtime_wasi::p2::{DynPollable, InputStream, Pollable, StreamError, StreamResult, subscribe};
use wasmtime_wasi::{FsPerms, WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtxView, WasiHttpView};

use self::bindings::tenure::plugin::leadership;
use self::bindings::wasi::config::store as config;
use self::bindings::wasi::logging::logging;
use super::http::HttpOut;
use super::keyvalue::bindings::wasi::keyvalue::{atomics, batch, store};
use super::limits::{self, Limits};
use super::output::{Level, Output};
use super::{CallError, PluginSpec, Seat};
use crate::grants::{Dir, Grants, Origin, Redactor, Secret, Variable};

/// What `bindgen!` makes of `guest-sdk/wit`.
pub(super) mod bindings {
    #![allow(missing_docs, unreachable_pub, clippy::all)]
    wasmtime::component::bindgen!({
        path: "../guest-sdk/wit",
        world: "tenure:plugin/job-plugin",
        imports: { "tenure:plugin/leadership.notice": trappable },
        exports: { default: async },
        with: { "wasi:io/poll": wasmtime_wasi::p2::bindings::io::poll },
    });
}

/// What this host links, for the person whose plugin imports something else.
pub(super) const OFFERED: &str = "tenure:plugin/leadership@0.1.0, wasi:logging/logging@0.1.0-draft, \
     wasi:config/store@0.2.0-rc.1, wasi:cli, clocks, filesystem, io, random and sockets of WASI 0.2, and where they are \
     granted wasi:keyvalue@0.2.0-draft and wasi:http/outgoing-handler of WASI 0.2";

/// The most random bytes that a guest gets in one call.
const MAX_RANDOM: u64 = 1 << 20;

/// The host's side of one instance.
pub(super) struct Guest {
    wasi: WasiCtx,
    pub(super) table: ResourceTable,
    pub(super) limits: Limits,
    pub(super) output: Output,
    http: HttpOut,
    role: String,
    given: Arc<Given>,
    secrets: BTreeMap<String, Secret>,
    pub(super) seat: Seat,
}

/// What every instance of an image gets.
pub(super) struct Given {
    settings: BTreeMap<String, String>,
    origins: Arc<[Origin]>,
    grants: Grants,
}

impl Given {
    pub(super) fn new(spec: &PluginSpec) -> Self {
        let (settings, grants) = (spec.settings.clone(), spec.grants.clone());
        Self { settings, origins: grants.http.clone().into(), grants }
    }
}

impl Guest {
    /// The host's side of a new instance, with its secrets as they are now.
    pub(super) fn new(spec: &PluginSpec, given: Arc<Given>, seat: Seat) -> Result<Self, CallError> {
        let term = seat.gate.term();
        let mut secrets = BTreeMap::new();
        for (key, source) in &given.grants.secrets {
            let secret = source.read().map_err(|words| CallError::Failed(format!("the secret `{key}`: {words}")))?;
            secrets.insert(key.clone(), secret);
        }
        let output = Output::new(spec.role.clone(), term, Redactor::new(secrets.values()));
        let mut wasi = WasiCtx::builder();
        for (name, value) in given.grants.env.iter().filter_map(Variable::resolve) {
            wasi.env(name, value);
        }
        if let slot @ 1.. = seat.slot.load(Ordering::Relaxed) {
            wasi.env("TENURE_SLOT", slot.to_string());
        }
        for dir in &given.grants.dirs {
            open_dir(&mut wasi, dir).map_err(|error| {
                CallError::Failed(format!("the folder {} of grants.dirs: {error}", dir.host.display()))
            })?;
        }
        // Everything that is not given here is denied: no sockets, no other files, nothing else of the host's environment.
        let wasi = wasi
            .arg(spec.role.as_str())
            .env("TENURE_ROLE", spec.role.as_str())
            .env("TENURE_TERM", term.to_string())
            .env("TENURE_INSTANCE", &seat.instance)
            .stdin(UntilNotice(seat.notice.clone()))
            .stdout(output.stream("stdout"))
            .stderr(output.stream("stderr"))
            .allow_tcp(false)
            .allow_udp(false)
            .max_random_size(MAX_RANDOM)
            .build();
        Ok(Self {
            wasi,
            table: limits::handle_table(),
            limits: Limits::new(spec.memory),
            output,
            http: HttpOut::new(spec.role.clone(), given.origins.clone(), &seat),
            role: spec.role.to_string(),
            given,
            secrets,
            seat,
        })
    }
}

fn open_dir(wasi: &mut wasmtime_wasi::WasiCtxBuilder, dir: &Dir) -> wasmtime::Result<()> {
    let may = if dir.write { FsPerms::ReadWrite } else { FsPerms::ReadOnly };
    wasi.preopened_dir(&dir.host, &dir.guest, may)?;
    Ok(())
}

/// What is linked only where it is granted. Everything else that a grant gives is a value, not an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Linked {
    pub(super) keyvalue: bool,
    pub(super) http: bool,
}

impl Linked {
    pub(super) fn by(grants: &Grants) -> Self {
        Self { keyvalue: grants.keyvalue, http: !grants.http.is_empty() }
    }
}

/// Links what every role has, and what `linked` says.
pub(super) fn link(linker: &mut Linker<Guest>, linked: Linked) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_async(linker)?;
    if linked.keyvalue {
        store::add_to_linker::<_, HasSelf<Guest>>(linker, |guest| guest)?;
        atomics::add_to_linker::<_, HasSelf<Guest>>(linker, |guest| guest)?;
        batch::add_to_linker::<_, HasSelf<Guest>>(linker, |guest| guest)?;
    }
    if linked.http {
        wasmtime_wasi_http::p2::add_only_http_to_linker_async(linker)?;
    }
    leadership::add_to_linker::<_, HasSelf<Guest>>(linker, |guest| guest)?;
    logging::add_to_linker::<_, HasSelf<Guest>>(linker, |guest| guest)?;
    config::add_to_linker::<_, HasSelf<Guest>>(linker, |guest| guest)
}

impl WasiView for Guest {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for Guest {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        let (hooks, ctx) = self.http.split();
        WasiHttpCtxView { hooks, ctx, table: &mut self.table }
    }
}

impl leadership::Host for Guest {
    fn role(&mut self) -> String {
        self.role.clone()
    }

    fn term(&mut self) -> u64 {
        self.seat.gate.term()
    }

    fn instance(&mut self) -> String {
        self.seat.instance.clone()
    }

    fn slot(&mut self) -> Option<u64> {
        Some(self.seat.slot.load(Ordering::Relaxed)).filter(|slot| *slot > 0)
    }

    fn remaining_milliseconds(&mut self) -> u32 {
        u32::try_from(self.seat.gate.remaining().as_millis()).unwrap_or(u32::MAX)
    }

    fn stopping(&mut self) -> bool {
        *self.seat.notice.borrow()
    }

    fn notice(&mut self) -> wasmtime::Result<Resource<DynPollable>> {
        let notice = self.table.push(Notice(self.seat.notice.clone()))?;
        subscribe(&mut self.table, notice)
    }

    fn resign(&mut self) {
        self.seat.resign.notify_one();
    }
}

impl logging::Host for Guest {
    fn log(&mut self, level: logging::Level, context: String, message: String) {
        let level = match level {
            logging::Level::Trace => Level::Trace,
            logging::Level::Debug => Level::Debug,
            logging::Level::Info => Level::Info,
            logging::Level::Warn => Level::Warn,
            logging::Level::Error => Level::Error,
            logging::Level::Critical => {
                // What a panic hook writes that has no standard error to write to.
                self.output.last_words(&message);
                Level::Error
            }
        };
        self.output.lines(level, &context, &message);
    }
}

impl config::Host for Guest {
    fn get(&mut self, key: String) -> Result<Option<String>, config::Error> {
        let secret = || self.secrets.get(&key).map(|secret| secret.reveal().to_owned());
        Ok(self.given.settings.get(&key).cloned().or_else(secret))
    }

    /// Without the secrets: whoever asks for all mostly wants to print them.
    fn get_all(&mut self) -> Result<Vec<(String, String)>, config::Error> {
        Ok(self.given.settings.iter().map(|(key, value)| (key.clone(), value.clone())).collect())
    }
}

/// Waits for the notice to stop; for ever where there can be none any more.
async fn noticed(notice: &mut watch::Receiver<bool>) {
    if notice.wait_for(|stopping| *stopping).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Ready once the guest has been told to stop.
struct Notice(watch::Receiver<bool>);

#[async_trait]
impl Pollable for Notice {
    async fn ready(&mut self) {
        noticed(&mut self.0).await;
    }
}

/// A standard input on which nothing ever comes but its end, and that is the notice to stop.
#[derive(Clone)]
struct UntilNotice(watch::Receiver<bool>);

impl IsTerminal for UntilNotice {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdinStream for UntilNotice {
    /// Only asked for by WASI 0.3, which is not linked.
    fn async_stream(&self) -> Box<dyn AsyncRead + Send + Sync> {
        Box::new(Silent)
    }

    fn p2_stream(&self) -> Box<dyn InputStream> {
        Box::new(self.clone())
    }
}

#[async_trait]
impl Pollable for UntilNotice {
    async fn ready(&mut self) {
        noticed(&mut self.0).await;
    }
}

impl InputStream for UntilNotice {
    fn read(&mut self, _size: usize) -> StreamResult<bytes::Bytes> {
        if *self.0.borrow() { Err(StreamError::Closed) } else { Ok(bytes::Bytes::new()) }
    }
}

/// An input that has nothing and never ends.
struct Silent;

impl AsyncRead for Silent {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Poll::Pending
    }
}
