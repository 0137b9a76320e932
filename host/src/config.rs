//! The TOML file, read into types that are checked: later code never checks again.

mod errors;
mod grants;
mod role;
mod section;

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_core::TimingInput;
use toml::de::DeTable;

pub use self::errors::ConfigErrors;
use self::role::{Defaults, MEMORY, STOP_FUEL, read_lease, read_role, read_stop};
pub use self::role::{OnFailure, Pace, RoleConfig};
use self::section::{Problems, Section};
use crate::store::redis::RedisStore;

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

impl Config {
    /// Reads a file. Relative paths in it are relative to its folder.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it, not only the first.
    pub fn read(path: &Path) -> Result<Self, ConfigErrors> {
        let unreadable = |words: String| ConfigErrors::of(vec![format!("{}: {words}", path.display())], None);
        let no_file = |error| unreadable(format!("cannot read the file: {error}"));
        let file = File::open(path).map_err(no_file)?;
        if file.metadata().map_err(no_file)?.is_dir() {
            return Err(unreadable("is a folder; name a TOML file".to_owned()));
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(no_file)?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(unreadable(format!("is larger than {}; name a TOML file", crate::words::bytes(MAX_FILE))));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            unreadable(format!("is not UTF-8 text from byte {} on; name a TOML file", error.utf8_error().valid_up_to()))
        })?;
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
        if !mistakes.is_empty() {
            // Whatever else seems wrong may follow from these.
            for mistake in mistakes {
                let at = mistake.span().map_or(0, |span| span.start);
                problems.add(at, format_args!("not TOML: {}", mistake.message()));
            }
            return Err(ConfigErrors::of(problems.into_lines(), None));
        }
        let config = Self::from_table(table.get_ref(), path.parent().unwrap_or(Path::new("")), &problems);
        let lines = problems.into_lines();
        if lines.is_empty() { Ok(config) } else { Err(ConfigErrors::of(lines, Some(config))) }
    }

    fn from_table(table: &DeTable<'_>, folder: &Path, problems: &Problems<'_>) -> Self {
        let file = Section::new("", 0, table, problems);
        let (instance, data_dir) = read_instance(file.table("instance"), folder);
        let store = read_store(file.table("store"), folder);
        let (lease, stop) = (file.table("lease"), file.table("stop"));
        let mut shared =
            Defaults { timing: TimingInput { memory: MEMORY, ..TimingInput::default() }, stop_fuel: STOP_FUEL };
        if let Some(lease) = &lease {
            read_lease(lease, &mut shared.timing);
        }
        if let Some(stop) = &stop {
            read_stop(stop, &mut shared);
        }
        let (mut sections, mut roles, mut unfit) = (Vec::new(), Vec::new(), None);
        match file.table("role") {
            Some(section) if !section.is_empty() => sections = section.tables(),
            None if file.has("role") => {}
            _ => problems.add(0, "no role: name at least one, as [role.NAME] with a `plugin`"),
        }
        for (name, section) in sections {
            match read_role(name, section, folder, &shared) {
                Ok(role) => roles.extend(role),
                Err(error) => unfit = Some(error),
            }
        }
        // Once, where it is written, and not for every role that has nothing else.
        if let (Some(error), Some(section)) = (unfit, lease.as_ref().or(stop.as_ref())) {
            problems.add(section.at, error);
        }
        lease.into_iter().chain(stop).for_each(Section::finish);
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
        None => {
            if !section.has("url") {
                section.problem(section.at, "url", format_args!("is missing; write {known}, or leave [store] out"));
            }
        }
    }
    section.finish();
    store
}

fn read_url(url: &str, prefix: &str, folder: &Path) -> Result<StoreConfig, String> {
    if let Some(file) = url.strip_prefix("sqlite:") {
        return match file {
            "" => Err("names no file".to_owned()),
            ":memory:" => Err("names a database in memory, which no other host could share".to_owned()),
            _ if file.starts_with("//") && !file.starts_with("///") => {
                Err("has the `//` of a host, where only a file is named".to_owned())
            }
            _ => Ok(StoreConfig::Sqlite { path: folder.join(file) }),
        };
    }
    let scheme = url.split_once(':').map(|(scheme, _)| scheme).filter(|scheme| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
    });
    match scheme {
        Some("redis" | "rediss" | "unix" | "redis+unix") => {}
        Some(scheme) => return Err(format!("has a scheme that is not known, `{scheme}`")),
        None => return Err("has no scheme".to_owned()),
    }
    RedisStore::new(url, prefix).map_err(|error| format!("can't be read ({error:#})"))?;
    Ok(StoreConfig::Redis { url: url.to_owned(), prefix: prefix.to_owned() })
}
