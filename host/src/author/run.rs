//! `tenure plugin run`: runs one plugin without a store and without a file, for whoever is writing it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, anyhow};
use async_trait::async_trait;
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::watch;
use tracing::{error, info};

use super::inspect::role_name;
use crate::config::Config;
use crate::images::{self, Images};
use crate::plugin::engine::{Engine, digest};
use crate::state::{Fence, StateError, StateOp, StateReply, StateStore};
use crate::store::sqlite::{FencedBy, SqliteState};
use crate::store::standalone::StandaloneStore;
use crate::supervisor::{self, Ended};
use crate::words;

/// A file that was written has been quiet for so long.
const QUIET: Duration = Duration::from_millis(200);
/// The most characters of a value that are shown.
const SHOWN: usize = 200;

/// What the command line says.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The plugin: a component, or a core module that can be made one.
    file: PathBuf,
    /// Start the plugin anew, with its hand-off, whenever the file has changed.
    #[arg(long)]
    watch: bool,
    /// A setting. May come several times.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = pair)]
    settings: Vec<(String, String)>,
    /// Where requests may go, such as http://localhost:8080. May come several times; without it, everywhere but to this
    /// machine.
    #[arg(long, value_name = "ORIGIN")]
    http: Vec<String>,
    /// From the start of one tick to the next; without it, as the plugin says.
    #[arg(long)]
    every: Option<String>,
    /// The most memory of the plugin.
    #[arg(long, default_value = "256MiB")]
    memory: String,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Runs the plugin until a signal stops it.
///
/// # Errors
///
/// One line for each thing that is wrong with the file or the options. Within: where it was run, and failed.
pub fn run(options: &Options) -> Result<anyhow::Result<()>, Vec<String>> {
    let one = |error: anyhow::Error| vec![format!("{error:#}")];
    let mut config = configure(options)?;
    let mut images = Images::load(&config)?;
    // In memory: each run begins with nothing.
    let state = Shown(SqliteState::new(Path::new(":memory:"), FencedBy::Caller).map_err(one)?);
    let store = Arc::new(StandaloneStore::new(Arc::new(state)));
    let changes = if options.watch { Some(Changes::of(&options.file).map_err(one)?) } else { None };
    loop {
        let image = config.roles.first().and_then(|role| images.of(&role.name));
        let running = image.map(|image| image.digest().to_owned()).unwrap_or_default();
        let (stop, stopped) = watch::channel(false);
        let next = std::thread::scope(|threads| {
            let watching = changes.as_ref().map(|changes| threads.spawn(|| changes.wait(options, running, &stop)));
            let ended = supervisor::run(config.clone(), images, store.clone(), stopped);
            stop.send_replace(true);
            let next = watching.and_then(|thread| thread.join().ok().flatten());
            ended.map(|ended| next.filter(|_| ended == Ended::Asked))
        });
        match next {
            Ok(Some(next)) => (config, images) = next,
            Ok(None) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error)),
        }
    }
}

/// A configuration for one plugin: what it imports is granted.
fn configure(options: &Options) -> Result<Config, Vec<String>> {
    let file = std::path::absolute(&options.file).unwrap_or_else(|_| options.file.clone());
    let bytes = images::read(&file).map_err(|error| vec![format!("{}: {error}", file.display())])?;
    let engine = Engine::new().map_err(|error| vec![format!("{error:#}")])?.keeping_in(&cache().join(images::COMPILED));
    let found = engine.inspect(&bytes).map_err(|error| vec![format!("{}: {error}", file.display())])?;
    let mut text = String::new();
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let settings: BTreeMap<_, _> = options.settings.iter().map(|(key, value)| (quoted(key), quoted(value))).collect();
    let settings: Vec<_> = settings.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    let everywhere = ["http://*:*".to_owned(), "https://*:*".to_owned()];
    let origins = if options.http.is_empty() { &everywhere[..] } else { &options.http[..] };
    let origins: Vec<_> = origins.iter().map(|origin| quoted(origin)).collect();
    let _ = writeln!(text, "[instance]\nname = \"author\"\ndata_dir = {}", quoted(&cache().to_string_lossy()));
    let _ = writeln!(text, "[role.{:?}]\nplugin = {}", role_name(&file), quoted(&file.to_string_lossy()));
    let _ = writeln!(text, "settings = {{ {} }}\nmemory = {}", settings.join(", "), quoted(&options.memory));
    if let Some(every) = &options.every {
        let _ = writeln!(text, "every = {}", quoted(every));
    }
    let mut grants = Vec::new();
    if found.grants().iter().any(|grant| grant.starts_with("keyvalue")) {
        grants.push("keyvalue = true".to_owned());
    }
    if found.grants().iter().any(|grant| grant.starts_with("http")) || !options.http.is_empty() {
        grants.push(format!("http = [{}]", origins.join(", ")));
    }
    let _ = writeln!(text, "grants = {{ {} }}", grants.join(", "));
    Config::parse(&text, Path::new("the command line")).map_err(|errors| errors.lines().to_vec())
}

/// Where compiled plugins and the audit of such runs are kept.
fn cache() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home).unwrap_or_else(std::env::temp_dir);
    base.join("tenure")
}

/// Watches a file, by the folder that it is in: editors and linkers replace files.
struct Changes {
    events: std::sync::Mutex<mpsc::Receiver<()>>,
    _watcher: RecommendedWatcher,
}

impl Changes {
    fn of(file: &Path) -> anyhow::Result<Self> {
        let file = std::path::absolute(file)?;
        let folder = file.parent().ok_or_else(|| anyhow!("{} is in no folder", file.display()))?;
        let (sender, events) = mpsc::channel();
        let name = file.file_name().map(ToOwned::to_owned);
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Other files of the folder may change all the time.
            if event.is_ok_and(|event| event.paths.iter().any(|path| path.file_name() == name.as_deref())) {
                let _ = sender.send(());
            }
        })
        .with_context(|| format!("cannot watch {}", folder.display()))?;
        watcher
            .watch(folder, RecursiveMode::NonRecursive)
            .with_context(|| format!("cannot watch {}", folder.display()))?;
        Ok(Self { events: std::sync::Mutex::new(events), _watcher: watcher })
    }

    /// Waits for another version than the one with the digest `running` that can be run, and asks the present one to stop.
    /// None where it was stopped before.
    fn wait(&self, options: &Options, running: String, stop: &watch::Sender<bool>) -> Option<(Config, Images)> {
        let events = self.events.lock().ok()?;
        let mut seen = running;
        // Looking at the file is an event too, so this is never quiet for long.
        while !*stop.borrow() {
            // Looked at first: it may have changed before anybody watched.
            let now = images::read(&options.file).map(|bytes| digest(&bytes)).unwrap_or_default();
            if now.is_empty() || now == seen {
                while events.recv_timeout(QUIET).is_err() && !*stop.borrow() {}
                while events.recv_timeout(QUIET).is_ok() {}
                continue;
            }
            seen = now;
            match configure(options).and_then(|config| Images::load(&config).map(|images| (config, images))) {
                Ok(next) => {
                    info!("the file has changed: starting the new version");
                    stop.send_replace(true);
                    return Some(next);
                }
                Err(problems) => {
                    error!("the file has changed, and the old version goes on: {}", problems.join("; "));
                }
            }
        }
        None
    }
}

/// State that says what becomes of it.
struct Shown(SqliteState);

#[async_trait]
impl StateStore for Shown {
    async fn run(&self, fence: &Fence, op: &StateOp, within: Duration) -> Result<StateReply, StateError> {
        let reply = self.0.run(fence, op, within).await;
        if reply.is_ok() {
            match op {
                StateOp::Set(entries) => {
                    entries.iter().for_each(|(key, value)| info!(target: "state", "state: {key} = {}", shown(value)));
                }
                StateOp::Delete(keys) => keys.iter().for_each(|key| info!(target: "state", "state: {key} is deleted")),
                StateOp::Increment { key, .. } => {
                    if let Ok(StateReply::Number(sum)) = &reply {
                        info!(target: "state", "state: {key} = {sum}");
                    }
                }
                StateOp::Get(_) | StateOp::Exists(_) | StateOp::Keys(_) => {}
            }
        }
        reply
    }
}

fn shown(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) if text.chars().count() <= SHOWN => format!("{text:?}"),
        _ => words::bytes(value.len() as u64),
    }
}
