//! The TOML file, read into types that are checked: later code never checks again.

mod section;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Timing, TimingInput};
use toml::de::DeTable;

pub use self::section::ConfigErrors;
use self::section::{Problems, Section};
use crate::store::redis::RedisStore;

/// The fuel of `demoted`, where the file does not say.
const STOP_FUEL: u64 = 100_000_000;
/// How long a tick may take, where the file does not say.
const TICK_TIMEOUT: Duration = Duration::from_secs(30);
/// A plugin's memory, where the file does not say.
const MEMORY: u64 = 64 << 20;
/// The least and the most memory that a plugin may be given.
const MEMORY_BOUNDS: (u64, u64) = (1 << 20, 4 << 30);
/// The most characters that `instance.name` and `store.prefix` may have.
const MAX_NAME: usize = 255;
/// A configuration is written by people: a file above this size is another one.
const MAX_FILE: u64 = 4 << 20;

/// A role's name: `[a-z0-9][a-z0-9._-]*`, at most 64 characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RoleName(Arc<str>);

impl RoleName {
    /// The most characters that a name may have.
    pub const MAX: usize = 64;

    /// A checked name.
    ///
    /// # Errors
    ///
    /// The rule that `name` breaks, in words.
    pub fn new(name: &str) -> Result<Self, String> {
        let first = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let rest = |c: char| first(c) || matches!(c, '.' | '_' | '-');
        if name.is_empty() || name.len() > Self::MAX || !name.starts_with(first) || !name.chars().all(rest) {
            return Err(format!(
                "a role's name has 1 to {} of the characters a-z, 0-9, `.`, `_`, `-` and starts with a letter or digit",
                Self::MAX
            ));
        }
        Ok(Self(name.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A configuration in which everything is checked that can be checked without opening another file.
#[derive(Debug, Clone)]
pub struct Config {
    /// `instance.name`: only for people.
    pub instance: String,
    /// `instance.data_dir`: where the audit log goes.
    pub data_dir: PathBuf,
    /// Where the leases are kept.
    pub store: StoreConfig,
    /// The roles, by name.
    pub roles: Vec<RoleConfig>,
}

/// `[store]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreConfig {
    /// No `[store]`: one instance, which always leads.
    Standalone,
    /// `redis://`, `rediss://` or `unix://`, with the key prefix.
    Redis {
        /// The whole URL, password and all.
        url: String,
        /// What every key starts with.
        prefix: String,
    },
    /// `sqlite:FILE`.
    Sqlite {
        /// The file.
        path: PathBuf,
    },
}

/// One `[role.NAME]`.
#[derive(Debug, Clone)]
pub struct RoleConfig {
    /// The role.
    pub name: RoleName,
    /// The plugin file.
    pub plugin: PathBuf,
    /// From the start of one tick to the start of the next; absent: the plugin says.
    pub every: Option<Duration>,
    /// The longest that `elected` or one tick of a job may take.
    pub tick_timeout: Duration,
    /// `wasi:config`.
    pub settings: BTreeMap<String, String>,
    /// The most memory that the plugin may have, in bytes.
    pub memory: u64,
    /// The fuel of `demoted`.
    pub stop_fuel: u64,
    /// The lease and the stop budget.
    pub timing: Timing,
}

impl Config {
    /// Reads a file. Relative paths in it are relative to its folder.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it, not only the first.
    pub fn read(path: &Path) -> Result<Self, ConfigErrors> {
        let unreadable = |words: String| ConfigErrors(vec![format!("{}: {words}", path.display())]);
        let found = fs::metadata(path).map_err(|error| unreadable(format!("cannot read the file: {error}")))?;
        if found.is_dir() {
            return Err(unreadable("is a folder; name a TOML file".to_owned()));
        }
        if found.len() > MAX_FILE {
            return Err(unreadable(format!("is larger than {}; name a TOML file", crate::words::bytes(MAX_FILE))));
        }
        let bytes = fs::read(path).map_err(|error| unreadable(format!("cannot read the file: {error}")))?;
        let text = String::from_utf8(bytes).map_err(|error| unreadable(format!("is not UTF-8 text: {error}")))?;
        Self::parse(&text, path)
    }

    /// Reads a text that stands in the file `path`.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it, not only the first.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigErrors> {
        let problems = Problems::new(path, text);
        let (table, mistakes) = DeTable::parse_recoverable(text);
        for mistake in mistakes {
            problems.add(mistake.span().map_or(0, |span| span.start), format_args!("not TOML: {}", mistake.message()));
        }
        let config = Self::from_table(table.get_ref(), path.parent().unwrap_or(Path::new("")), &problems);
        match problems.into_errors() {
            None => Ok(config),
            Some(errors) => Err(errors),
        }
    }

    fn from_table(table: &DeTable<'_>, folder: &Path, problems: &Problems<'_>) -> Self {
        let file = Section::new("", 0, table, problems);
        let (instance, data_dir) = read_instance(file.table("instance"), folder);
        let store = read_store(file.table("store"), folder);
        let mut lease = TimingInput::default();
        if let Some(section) = file.table("lease") {
            read_lease(&section, &mut lease);
            section.finish();
        }
        let mut stop_fuel = STOP_FUEL;
        if let Some(section) = file.table("stop") {
            read_stop(&section, &mut lease, &mut stop_fuel);
            section.finish();
        }
        let mut roles = Vec::new();
        match file.table("role") {
            Some(section) => {
                for (name, section) in section.tables() {
                    roles.extend(read_role(name, section, folder, &lease, stop_fuel));
                }
            }
            None => problems.add(0, "no role: name at least one, as [role.NAME] with a `plugin`"),
        }
        file.finish();
        Self { instance, data_dir, store, roles }
    }
}

fn read_instance(section: Option<Section<'_>>, folder: &Path) -> (String, PathBuf) {
    let mut name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut data_dir = folder.join("tenure-data");
    if let Some(section) = section {
        if let Some((given, at)) = section.string("name", "a name for people such as \"web-1\"") {
            if given.is_empty() || given.len() > MAX_NAME || given.chars().any(char::is_control) {
                section.problem(
                    at,
                    "name",
                    format_args!("write 1 to {MAX_NAME} characters without control characters"),
                );
            }
            given.clone_into(&mut name);
        }
        if let Some((given, at)) = section.string("data_dir", "a folder such as \"./tenure-data\"") {
            if given.is_empty() {
                section.problem(at, "data_dir", "is empty; name a folder");
            }
            data_dir = folder.join(given);
        }
        section.finish();
    }
    (name, data_dir)
}

fn read_store(section: Option<Section<'_>>, folder: &Path) -> StoreConfig {
    let Some(section) = section else { return StoreConfig::Standalone };
    let known = "redis://HOST:PORT, rediss://HOST:PORT, unix:///SOCKET or sqlite:FILE";
    let prefix = match section.string("prefix", "the beginning of every key, such as \"tenure\"") {
        Some((prefix, at)) => {
            let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '{' | '}');
            if prefix.is_empty() || prefix.len() > MAX_NAME || prefix.contains(odd) {
                let words = format!("write 1 to {MAX_NAME} characters without spaces and braces");
                section.problem(at, "prefix", words);
            }
            prefix.to_owned()
        }
        None => "tenure".to_owned(),
    };
    let mut store = StoreConfig::Standalone;
    match section.string("url", known) {
        Some((url, at)) => match read_url(url, &prefix, folder) {
            Ok(read) => store = read,
            // The URL may hold a password: the words never repeat it.
            Err(words) => section.problem(at, "url", format_args!("{words}; write {known}")),
        },
        None => section.problem(section.at, "url", format_args!("is missing; write {known}, or leave [store] out")),
    }
    section.finish();
    store
}

fn read_url(url: &str, prefix: &str, folder: &Path) -> Result<StoreConfig, String> {
    if let Some(file) = url.strip_prefix("sqlite:") {
        if file.is_empty() {
            return Err("names no file".to_owned());
        }
        return Ok(StoreConfig::Sqlite { path: folder.join(file) });
    }
    let scheme = url.split(':').next().filter(|scheme| scheme.len() < url.len()).unwrap_or_default();
    if !matches!(scheme, "redis" | "rediss" | "unix" | "redis+unix") {
        return Err(if scheme.is_empty() {
            "has no scheme".to_owned()
        } else {
            format!("has a scheme that is not known, `{}`", scheme.escape_debug())
        });
    }
    RedisStore::new(url, prefix).map_err(|error| format!("can't be read ({error:#})"))?;
    Ok(StoreConfig::Redis { url: url.to_owned(), prefix: prefix.to_owned() })
}

fn read_lease(section: &Section<'_>, timing: &mut TimingInput) {
    let given = TimingInput {
        ttl: section.duration("ttl"),
        renew_every: section.duration("renew_every"),
        request_timeout: section.duration("request_timeout"),
        skew: section.duration("skew"),
        ..TimingInput::default()
    };
    if given.ttl.is_some() {
        // What was written for another ttl does not fit this one: the rest follows from it anew.
        (timing.renew_every, timing.request_timeout, timing.skew) = (None, None, None);
    }
    timing.ttl = given.ttl.or(timing.ttl);
    timing.renew_every = given.renew_every.or(timing.renew_every);
    timing.request_timeout = given.request_timeout.or(timing.request_timeout);
    timing.skew = given.skew.or(timing.skew);
}

fn read_stop(section: &Section<'_>, timing: &mut TimingInput, fuel: &mut u64) {
    timing.grace = section.duration("grace").or(timing.grace);
    timing.within = section.duration("within").or(timing.within);
    *fuel = section.count("fuel").unwrap_or(*fuel);
}

fn read_role(
    name: &str,
    section: Section<'_>,
    folder: &Path,
    lease: &TimingInput,
    mut stop_fuel: u64,
) -> Option<RoleConfig> {
    let name = RoleName::new(name).map_err(|rule| section.problem(section.at, "", rule)).ok();
    let plugin = match section.string("plugin", "a file such as \"plugins/sweeper.wasm\"") {
        Some((plugin, at)) => {
            if plugin.is_empty() {
                section.problem(at, "plugin", "is empty; name a .wasm file");
            }
            folder.join(plugin)
        }
        None => {
            section.problem(section.at, "plugin", "is missing; name a .wasm file");
            PathBuf::new()
        }
    };
    let mut timing = lease.clone();
    if let Some(section) = section.table("lease") {
        read_lease(&section, &mut timing);
        section.finish();
    }
    if let Some(section) = section.table("stop") {
        read_stop(&section, &mut timing, &mut stop_fuel);
        section.finish();
    }
    let timing = Timing::new(&timing).map_err(|error| section.problem(section.at, "lease", error)).ok();
    let positive = |key, given: Option<Duration>| {
        if given.is_some_and(|given| given.is_zero()) {
            section.problem(section.at, key, "must be longer than zero");
        }
        given
    };
    let every = positive("every", section.duration("every"));
    let tick_timeout = positive("tick_timeout", section.duration("tick_timeout")).unwrap_or(TICK_TIMEOUT);
    let settings = section.table("settings").map(|settings| settings.texts()).unwrap_or_default();
    let memory = section.size("memory", MEMORY_BOUNDS).unwrap_or(MEMORY);
    section.finish();
    Some(RoleConfig {
        name: name?,
        plugin,
        every,
        tick_timeout,
        settings: settings.into_iter().collect(),
        memory,
        stop_fuel,
        timing: timing?,
    })
}
