//! The TOML file, read into types that are checked: later code never checks again.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::Timing;

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
