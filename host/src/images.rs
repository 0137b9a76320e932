//! Every role's plugin, loaded before anybody is elected.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use crate::config::{Config, RoleConfig, RoleName};
use crate::plugin::engine::{self, Engine};
use crate::plugin::{Image, LoadError, PluginSpec};
use crate::words;

/// A plugin above this size is another file: components of interpreters with their libraries have tens of megabytes.
const MAX_FILE: u64 = 512 << 20;

/// Where compiled plugins are kept, in `instance.data_dir`.
pub const COMPILED: &str = "compiled";

/// The images of a configuration's roles, compiled, linked and ready to start.
pub struct Images {
    engine: Engine,
    by_role: HashMap<RoleName, Arc<dyn Image>>,
}

impl Images {
    /// Loads the plugin of every role.
    ///
    /// # Errors
    ///
    /// One line for each role whose plugin could not be loaded.
    pub fn load(config: &Config) -> Result<Self, Vec<String>> {
        let engine = Engine::new().map_err(|error| vec![format!("cannot set up the sandbox: {error}")])?;
        let engine = engine.keeping_in(&config.data_dir.join(COMPILED));
        let mut by_role = HashMap::new();
        let mut problems = Vec::new();
        for role in &config.roles {
            match load(&engine, role) {
                Ok(image) => {
                    by_role.insert(role.name.clone(), image);
                }
                Err(error) => {
                    problems.push(format!("role.{}: plugin {}: {error}", role.name, role.plugin.display()));
                }
            }
        }
        if problems.is_empty() { Ok(Self { engine, by_role }) } else { Err(problems) }
    }

    /// Images of a test's own.
    #[cfg(test)]
    pub(crate) fn of_images(by_role: HashMap<RoleName, Arc<dyn Image>>) -> Self {
        Self { engine: Engine::new().unwrap(), by_role }
    }

    /// The image of a role.
    #[must_use]
    pub fn of(&self, role: &RoleName) -> Option<Arc<dyn Image>> {
        self.by_role.get(role).cloned()
    }

    /// How much fuel this machine burns in a millisecond.
    #[must_use]
    pub fn fuel_per_ms(&self) -> u64 {
        self.engine.fuel_per_ms()
    }
}

fn load(engine: &Engine, role: &RoleConfig) -> Result<Arc<dyn Image>, LoadError> {
    let bytes = read(&role.plugin)?;
    if let Some(pinned) = &role.sha256 {
        let found = engine::digest(&bytes);
        if found != *pinned {
            return Err(LoadError(format!(
                "its sha256 is {found}, and not the one that is pinned: put the right file there, or change role.{}.sha256",
                role.name
            )));
        }
    }
    for (key, source) in &role.grants.secrets {
        source.read().map_err(|words| LoadError(format!("its secret `{key}` ({source}): {words}")))?;
    }
    if let Some(dir) = role.grants.dirs.iter().find(|dir| !dir.host.is_dir()) {
        return Err(LoadError(format!("its folder {} (grants.dirs) is not there: make it", dir.host.display())));
    }
    let spec = PluginSpec {
        role: role.name.clone(),
        settings: role.settings.clone(),
        memory: role.memory,
        grants: role.grants.clone(),
    };
    engine.load(&bytes, &spec)
}

/// The bytes of a plugin file.
///
/// # Errors
///
/// Where it can't be read, or is too large to be one: it may be a device without end.
pub fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    let unreadable = |error: io::Error| LoadError(format!("cannot read the file: {error}"));
    let mut bytes = Vec::new();
    File::open(path).map_err(unreadable)?.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(LoadError(format!("is larger than {}; name a .wasm file", words::bytes(MAX_FILE))));
    }
    Ok(bytes)
}
