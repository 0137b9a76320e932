//! A plugin, compiled and linked: shared by all roles that run the same bytes.

use std::sync::Arc;

use async_trait::async_trait;
use wasmtime_wasi::p2::bindings::CommandPre;

use super::engine::Clockwork;
use super::imports::bindings::JobPluginPre;
use super::imports::{Given, Guest};
use super::instance::{Exports, Room, WasmInstance};
use super::{CallError, Deadline, Image, Instance, Kind, PluginSpec, Seat};

/// A component whose imports are linked and whose exports are checked.
pub(super) struct Prepared {
    pub(super) digest: String,
    pub(super) imports: Vec<String>,
    pub(super) exports: ExportsPre,
}

/// The exports that make it one kind of plugin or the other.
pub(super) enum ExportsPre {
    Job(JobPluginPre<Guest>),
    Command(CommandPre<Guest>),
}

/// A plugin, ready to start for one role.
pub(super) struct WasmImage {
    clockwork: Arc<Clockwork>,
    prepared: Arc<Prepared>,
    spec: PluginSpec,
    given: Arc<Given>,
}

impl WasmImage {
    pub(super) fn new(clockwork: Arc<Clockwork>, prepared: Arc<Prepared>, spec: &PluginSpec) -> Self {
        Self { clockwork, prepared, spec: spec.clone(), given: Arc::new(Given::new(spec)) }
    }
}

#[async_trait]
impl Image for WasmImage {
    fn digest(&self) -> &str {
        &self.prepared.digest
    }

    fn imports(&self) -> &[String] {
        &self.prepared.imports
    }

    fn kind(&self) -> Kind {
        match self.prepared.exports {
            ExportsPre::Job(_) => Kind::Job,
            ExportsPre::Command(_) => Kind::Command,
        }
    }

    async fn start(&self, seat: Seat, deadline: &Deadline) -> Result<Box<dyn Instance>, CallError> {
        let guest = Guest::new(&self.spec, self.given.clone(), seat)?;
        let mut room = Room::new(self.clockwork.clone(), guest).map_err(|error| CallError::Limit(error.to_string()))?;
        let exports = room
            .call(u64::MAX, deadline, async |store| {
                Ok(match &self.prepared.exports {
                    ExportsPre::Job(job) => Exports::Job(job.instantiate_async(store).await?),
                    ExportsPre::Command(command) => Exports::Command(command.instantiate_async(store).await?),
                })
            })
            .await?;
        Ok(Box::new(WasmInstance::new(room, exports)))
    }
}
