//! Runs all roles of one instance, and ends them in order.
//!
//! Two runtimes that share no thread: leases are kept on this thread, plugins run on threads of their own, so that no
//! plugin, however it behaves, delays a renewal.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::audit::Audit;
use crate::config::{Config, RoleName, StoreConfig};
use crate::images::Images;
use crate::role::{Host, Mail, Role};
use crate::store::batch::StoreHandle;
use crate::store::redis::RedisStore;
use crate::store::sqlite::{FencedBy, SqliteState, SqliteStore};
use crate::store::standalone::StandaloneStore;
use crate::store::{Store, StoreEvent};

/// How long the plugins' threads may take to end after everything has stopped. Nothing runs on them by then; a blocking
/// call of the operating system is all that could hold one up.
const THREADS_END_WITHIN: Duration = Duration::from_secs(1);

/// How many turns of guests a busy thread takes before it looks what else is due.
const TURNS_BEFORE_A_LOOK: u32 = 8;

/// Where the roles' state is kept without a store, in `instance.data_dir`.
const STATE_FILE: &str = "state.sqlite";

/// What ended a run in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// A signal.
    Signalled,
    /// Whoever started it.
    Asked,
}

/// Runs the instance until a signal stops it, or `asked` turns true.
///
/// # Errors
///
/// Where something that every role needs cannot be set up, or a role's task panicked. By then every role has stopped.
pub fn run(
    config: Config,
    images: Images,
    store: Arc<dyn Store>,
    asked: watch::Receiver<bool>,
) -> anyhow::Result<Ended> {
    let audit = Audit::open(&config.data_dir, &config.instance)?;
    let plugins = plugin_runtime()?;
    let leases = Builder::new_current_thread().enable_all().build().context("the lease loop")?;
    let outcome = leases.block_on(supervise(config, images, store, asked, audit.clone(), plugins.handle().clone()));
    drop(leases);
    // After a second signal there is nothing to wait for.
    plugins.shutdown_timeout(if outcome.is_ok() { THREADS_END_WITHIN } else { Duration::ZERO });
    audit.close();
    outcome
}

/// The runtime that plugins run on.
///
/// # Errors
///
/// Where its threads can't be started.
pub fn plugin_runtime() -> anyhow::Result<Runtime> {
    Builder::new_multi_thread()
        .thread_name("plugins")
        // Orders from the lease loop and timers that have run out are looked for after so many turns of guests. The
        // default of 61 is made for shorter turns.
        .global_queue_interval(TURNS_BEFORE_A_LOOK)
        .event_interval(TURNS_BEFORE_A_LOOK)
        .enable_all()
        .build()
        .context("cannot start the plugins' threads")
}

async fn supervise(
    config: Config,
    images: Images,
    store: Arc<dyn Store>,
    mut asked: watch::Receiver<bool>,
    audit: Audit,
    plugins: tokio::runtime::Handle,
) -> anyhow::Result<Ended> {
    let mut stop = StopSignals::listen()?;
    info!(instance = %config.instance, store = %store.describe(), roles = config.roles.len(), "tenure is running");
    let events = store.watch();
    let host = Arc::new(Host {
        name: config.instance,
        store: StoreHandle::new(store),
        audit,
        plugins,
        fuel_per_ms: images.fuel_per_ms(),
        leading: AtomicU32::new(0),
    });

    let mut roles = JoinSet::new();
    let mut mailboxes = HashMap::new();
    for role in config.roles {
        let image = images.of(&role.name).ok_or_else(|| anyhow!("role {} has no plugin loaded", role.name))?;
        let (mailbox, mail) = mpsc::unbounded_channel();
        mailboxes.insert(role.name.clone(), mailbox);
        roles.spawn(Role::new(host.clone(), Arc::new(role), image, mail).run());
    }
    let mut mailboxes = Mailboxes(mailboxes);
    let delivery = tokio::spawn(mailboxes.clone().deliver(events));

    let (mut panicked, mut ended) = (None, Ended::Asked);
    loop {
        tokio::select! {
            ended = roles.join_next() => match ended {
                Some(Ok(())) => {}
                // Leases that nobody renews must not look alive: stop the others in order, and say so.
                Some(Err(panic)) => {
                    panicked = Some(panic);
                    mailboxes.stop_all();
                }
                None => break,
            },
            name = stop.next() => {
                if mailboxes.is_stopping() {
                    bail!("{name} again: exiting now, without waiting for the plugins to stop");
                }
                info!("{name}: stopping every role and releasing its lease");
                ended = Ended::Signalled;
                mailboxes.stop_all();
            }
            () = wanted(&mut asked), if !mailboxes.is_stopping() => mailboxes.stop_all(),
        }
    }
    delivery.abort();
    match panicked {
        Some(panic) => Err(anyhow!(panic).context("a role's task panicked; every other role was stopped in order")),
        None => {
            info!("every role has stopped");
            Ok(ended)
        }
    }
}

/// Waits until somebody asks for the end.
async fn wanted(asked: &mut watch::Receiver<bool>) {
    if asked.wait_for(|asked| *asked).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The store that a configuration names.
///
/// # Errors
///
/// Where it can't be opened.
pub fn open_store(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    Ok(match &config.store {
        StoreConfig::Standalone => {
            let state = SqliteState::new(&config.data_dir.join(STATE_FILE), FencedBy::Caller)?;
            Arc::new(StandaloneStore::new(Arc::new(state)))
        }
        StoreConfig::Redis { url, prefix } => Arc::new(RedisStore::new(url, prefix)?),
        StoreConfig::Sqlite { path } => Arc::new(SqliteStore::open(path)?),
    })
}

/// Where to reach each role's task.
#[derive(Clone)]
struct Mailboxes(HashMap<RoleName, mpsc::UnboundedSender<Mail>>);

impl Mailboxes {
    /// Hands on what the store pushes, each to the role that it is about.
    async fn deliver(self, mut events: broadcast::Receiver<StoreEvent>) {
        loop {
            match events.recv().await {
                Ok(event) => {
                    let (StoreEvent::Released { role, .. } | StoreEvent::Elected { role, .. }) = &event;
                    if let Some(mailbox) = self.0.get(role) {
                        let _ = mailbox.send(Mail::Store(event));
                    }
                }
                Err(RecvError::Lagged(missed)) => {
                    warn!(missed, "the store pushed more than could be handed on: roles look for themselves");
                }
                Err(RecvError::Closed) => return,
            }
        }
    }

    fn stop_all(&mut self) {
        for (_, mailbox) in self.0.drain() {
            let _ = mailbox.send(Mail::Stop);
        }
    }

    fn is_stopping(&self) -> bool {
        self.0.is_empty()
    }
}

/// The signals that end the process.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl StopSignals {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// The next signal to stop, by name.
    async fn next(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hang_up.recv() => {
                    warn!("SIGHUP: this version reads its file once, at the start; restart the host to apply a change");
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;
    use std::sync::atomic::Ordering;

    use async_trait::async_trait;
    use tempfile::TempDir;

    use super::*;
    use crate::plugin::{CallError, Deadline, Image, Instance, Kind, Seat};

    /// A plugin whose host has a bug.
    #[derive(Default)]
    struct Buggy {
        /// In the role's own task.
        digest_panics: bool,
        /// In the task of the term.
        start_panics: bool,
        starts: AtomicU32,
        /// Of threads that started it.
        threads: Mutex<Vec<String>>,
        /// Of threads that asked for its digest.
        digest_asked_by: Mutex<Vec<String>>,
    }

    fn this_thread() -> String {
        std::thread::current().name().unwrap_or_default().to_owned()
    }

    #[async_trait]
    impl Image for Buggy {
        fn digest(&self) -> &str {
            assert!(!self.digest_panics, "a bug in the role's task");
            self.digest_asked_by.lock().unwrap().push(this_thread());
            "digest"
        }

        fn imports(&self) -> &[String] {
            &[]
        }

        fn kind(&self) -> Kind {
            Kind::Job
        }

        async fn start(&self, _: Seat, _: &Deadline) -> Result<Box<dyn Instance>, CallError> {
            self.threads.lock().unwrap().push(this_thread());
            self.starts.fetch_add(1, Ordering::SeqCst);
            assert!(!self.start_panics, "a bug in the term's task");
            Err(CallError::Failed("no plugin in this test".to_owned()))
        }
    }

    fn buggy(digest_panics: bool, start_panics: bool) -> Arc<Buggy> {
        Arc::new(Buggy { digest_panics, start_panics, ..Buggy::default() })
    }

    /// Runs roles without a store until `done`, or until the supervisor ends by itself.
    fn run_until(roles: &[(&str, Arc<Buggy>)], done: impl Fn() -> bool) -> Option<anyhow::Result<Ended>> {
        let folder = TempDir::new().unwrap();
        let toml = roles.iter().map(|(name, _)| format!("[role.{name}]\nplugin = \"x\"\nlease = {{ ttl = \"1s\" }}\n"));
        let config = Config::parse(&toml.collect::<String>(), Path::new("tenure.toml")).unwrap();
        let images = roles.iter().map(|(name, image)| {
            let image: Arc<dyn Image> = image.clone();
            (RoleName::new(name).unwrap(), image)
        });
        let images = Images::of_images(images.collect());
        let audit = Audit::open(folder.path(), "test").unwrap();
        let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = open_store(&config).unwrap();
            let (_never, asked) = watch::channel(false);
            let supervised = supervise(config, images, store, asked, audit, runtime.handle().clone());
            let watched = async {
                while !done() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::select! {
                outcome = supervised => Some(outcome),
                () = watched => None,
                () = tokio::time::sleep(Duration::from_secs(60)) => panic!("nothing happened"),
            }
        })
    }

    #[test]
    fn e1_a_panic_in_a_roles_task_stops_the_others_and_is_an_error() {
        let outcome = run_until(&[("bad", buggy(true, false)), ("good", buggy(false, false))], || false);
        let error = outcome.expect("the supervisor ends").unwrap_err();
        assert!(format!("{error:#}").contains("a role's task panicked"), "{error:#}");
    }

    #[test]
    fn plugins_and_leases_share_no_thread() {
        let folder = TempDir::new().unwrap();
        let toml = format!("[instance]\ndata_dir = {:?}\n[role.r]\nplugin = \"x\"\n", folder.path());
        let config = Config::parse(&toml, Path::new("tenure.toml")).unwrap();
        let image = buggy(false, false);
        let plugin: Arc<dyn Image> = image.clone();
        let images = Images::of_images([(RoleName::new("r").unwrap(), plugin)].into());
        let store = open_store(&config).unwrap();
        let (_never, asked) = watch::channel(false);
        // Ends with the process of this test.
        std::thread::Builder::new().name("leases".to_owned()).spawn(|| run(config, images, store, asked)).unwrap();
        let ends = crate::clock::now().plus(Duration::from_secs(60));
        while image.threads.lock().unwrap().len() < 2 {
            assert!(crate::clock::now() < ends, "nothing happened");
            std::thread::yield_now();
        }
        assert!(image.threads.lock().unwrap().iter().all(|thread| thread == "plugins"));
        // The claim, which names the digest, comes first.
        assert_eq!(image.digest_asked_by.lock().unwrap()[0], "leases");
    }

    #[test]
    fn e1_a_panic_in_a_terms_task_restarts_the_role() {
        let image = buggy(false, true);
        let restarted = run_until(&[("bad", image.clone())], || image.starts.load(Ordering::SeqCst) >= 2);
        assert!(restarted.is_none(), "the role's own task lives");
    }
}
