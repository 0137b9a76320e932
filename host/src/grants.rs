//! What a role lets its plugin do beyond its own memory. What is not granted is not linked, or is empty.

mod origin;
mod secret;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use self::origin::{Origin, Target, is_local};
pub use self::secret::{Redactor, Secret, SecretSource};

/// `grants` of a role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants {
    /// `keyvalue`: the role's fenced state.
    pub keyvalue: bool,
    /// `http`: where requests may go.
    pub http: Vec<Origin>,
    /// `env`: variables of the plugin's environment.
    pub env: Vec<Variable>,
    /// `secrets`: settings that are read when the plugin starts, and written nowhere.
    pub secrets: BTreeMap<String, SecretSource>,
    /// `dirs`: folders of this machine.
    pub dirs: Vec<Dir>,
}

/// A variable of a plugin's environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Variable {
    /// `"NAME"`: as the host has it, where it has it.
    OfHost(String),
    /// `"NAME=value"`.
    Set(String, String),
}

impl Variable {
    /// The variable as the plugin gets it; none where the host has none of that name.
    #[must_use]
    pub fn resolve(&self) -> Option<(String, String)> {
        match self {
            Self::OfHost(name) => std::env::var(name).ok().map(|value| (name.clone(), value)),
            Self::Set(name, value) => Some((name.clone(), value.clone())),
        }
    }
}

/// A folder of this machine in a plugin's sight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dir {
    /// The folder on this machine.
    pub host: PathBuf,
    /// Its path as the plugin sees it.
    pub guest: String,
    /// Whether the plugin may change what is in it.
    pub write: bool,
}
