//! The one engine of a process: settings, loading, and the measure of this machine's speed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sha2::{Digest, Sha256};
use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime::{Config, Module, OptLevel, Store};
use wasmtime_wasi::p2::bindings::CommandPre;
use wit_component::ComponentEncoder;

use super::image::{ExportsPre, Prepared, WasmImage};
use super::imports::bindings::JobPluginPre;
use super::imports::{self, Guest, OFFERED};
use super::watchdog::Watchdog;
use super::{Image, LoadError, PluginSpec};
use crate::clock;

/// The interface that makes a component a job.
const JOB: &str = "tenure:plugin/job";
const JOB_VERSION: &str = "tenure:plugin/job@0.1.0";
/// The interface that makes a component a command, of any version of WASI 0.2.
const RUN: &str = "wasi:cli/run@0.2.";

/// How much fuel is burnt to measure this machine: about ten milliseconds' worth.
const CALIBRATION_FUEL: u64 = 10_000_000;
/// `(module (func (export "spin") (local i64) (loop (local.set 0 (i64.add (i64.mul (local.get 0) (i64.const 3)) (i64.const 1))) (br 0))))`
const SPINNER: &[u8] = b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x07\x08\x01\x04spin\0\0\x0a\x15\x01\x13\
    \x01\x01\x7e\x03\x40\x20\0\x42\x03\x7e\x42\x01\x7c\x21\0\x0c\0\x0b\x0b";

/// What every call into a guest needs: wasmtime's engine, and the watchdog that bumps its epoch.
pub(super) struct Clockwork {
    pub(super) engine: wasmtime::Engine,
    pub(super) watchdog: Watchdog,
}

/// Compiles and links plugins.
pub struct Engine {
    clockwork: Arc<Clockwork>,
    linker: Linker<Guest>,
    /// What is in use, by digest: roles that run the same bytes share them.
    prepared: Mutex<HashMap<String, Weak<Prepared>>>,
    fuel_per_ms: u64,
}

impl Engine {
    /// An engine, with this machine measured.
    ///
    /// # Errors
    ///
    /// Where wasmtime does not support this machine, or no thread can be started.
    pub fn new() -> anyhow::Result<Self> {
        let mut config = Config::new();
        config
            .consume_fuel(true)
            .epoch_interruption(true)
            .wasm_component_model(true)
            .cranelift_opt_level(OptLevel::Speed);
        let engine = wasmtime::Engine::new(&config)?;
        let mut linker = Linker::new(&engine);
        imports::link(&mut linker)?;
        let fuel_per_ms = measure(&engine)?;
        let watchdog = Watchdog::start(engine.weak())?;
        Ok(Self {
            clockwork: Arc::new(Clockwork { engine, watchdog }),
            linker,
            prepared: Mutex::default(),
            fuel_per_ms,
        })
    }

    /// How much fuel this machine burns in a millisecond.
    #[must_use]
    pub fn fuel_per_ms(&self) -> u64 {
        self.fuel_per_ms
    }

    /// Makes an image of a plugin's bytes. Takes as long as compiling takes: seconds, for a large plugin.
    ///
    /// # Errors
    ///
    /// [`LoadError`], which says what is wrong with the bytes and what to do about it.
    pub fn load(&self, bytes: &[u8], spec: &PluginSpec) -> Result<Arc<dyn Image>, LoadError> {
        let digest = hex(&Sha256::digest(bytes));
        let known = self.prepared.lock().unwrap_or_else(PoisonError::into_inner).get(&digest).and_then(Weak::upgrade);
        let prepared = match known {
            Some(prepared) => prepared,
            None => {
                let prepared = Arc::new(self.prepare(bytes, digest.clone())?);
                let mut all = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
                all.retain(|_, used| used.strong_count() > 0);
                all.insert(digest, Arc::downgrade(&prepared));
                prepared
            }
        };
        Ok(Arc::new(WasmImage::new(self.clockwork.clone(), prepared, spec)))
    }

    fn prepare(&self, bytes: &[u8], digest: String) -> Result<Prepared, LoadError> {
        let encoded;
        let component = match bytes.get(..8) {
            Some([0, b'a', b's', b'm', 1, 0, 0, 0]) => {
                encoded = self.componentize(bytes)?;
                &encoded
            }
            Some([0, b'a', b's', b'm', ..]) => bytes,
            _ => return Err(LoadError("not WebAssembly: the file does not start with `\\0asm`".to_owned())),
        };
        let component = Component::from_binary(&self.clockwork.engine, component)
            .map_err(|error| LoadError(format!("not a valid component: {error:#}")))?;
        let kind = self.kind_of(&component)?;
        let linked =
            self.linker.instantiate_pre(&component).map_err(|error| self.missing_import(&component, &error))?;
        let exports = kind.prepare(linked).map_err(|error| {
            LoadError(format!("its exports do not fit: {error:#}; build it against guest-sdk/wit of this version"))
        })?;
        Ok(Prepared { digest, exports })
    }

    /// Makes a component of a core module that carries the metadata of one.
    fn componentize(&self, bytes: &[u8]) -> Result<Vec<u8>, LoadError> {
        Module::validate(&self.clockwork.engine, bytes)
            .map_err(|error| LoadError(format!("not a valid core module: {error:#}")))?;
        ComponentEncoder::default().module(bytes).and_then(|mut encoder| encoder.encode()).map_err(|error| {
            LoadError(format!(
                "a core module that can't be made a component ({error:#}): build it for wasm32-wasip2, or with \
                 wit-bindgen for wasm32-unknown-unknown"
            ))
        })
    }

    fn kind_of(&self, component: &Component) -> Result<ExportsKind, LoadError> {
        let types = component.component_type();
        let names: Vec<&str> = types.exports(&self.clockwork.engine).map(|(name, _)| name).collect();
        if names.contains(&JOB_VERSION) {
            return Ok(ExportsKind::Job);
        }
        if let Some(other) = names.iter().find(|name| name.starts_with(JOB)) {
            return Err(LoadError(format!(
                "it exports {other}, but this host runs {JOB_VERSION}: build it with the guest SDK of this version"
            )));
        }
        if names.iter().any(|name| name.starts_with(RUN)) {
            return Ok(ExportsKind::Command);
        }
        let found = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
        Err(LoadError(format!(
            "it exports {found}, but a plugin exports {JOB_VERSION} (a job) or {RUN}x (a command): for a job, use \
             `tenure_guest::export!`; for a command, build a program with a `main` for wasm32-wasip2"
        )))
    }

    /// Names the import that could not be linked.
    fn missing_import(&self, component: &Component, error: &wasmtime::Error) -> LoadError {
        let words = format!("{error:#}");
        let types = component.component_type();
        let import = types.imports(&self.clockwork.engine).map(|(name, _)| name).find(|name| words.contains(*name));
        LoadError(match import {
            Some(import) => format!(
                "it imports {import}, which this host does not offer in this form ({words}); offered are {OFFERED}: \
                 build the plugin without that import, or against an offered version"
            ),
            None => format!("its imports do not fit ({words}); offered are {OFFERED}"),
        })
    }
}

/// Which of the two kinds of exports a component has.
enum ExportsKind {
    Job,
    Command,
}

impl ExportsKind {
    fn prepare(self, linked: InstancePre<Guest>) -> wasmtime::Result<ExportsPre> {
        Ok(match self {
            Self::Job => ExportsPre::Job(JobPluginPre::new(linked)?),
            Self::Command => ExportsPre::Command(CommandPre::new(linked)?),
        })
    }
}

/// Burns a known amount of fuel and looks at the clock.
fn measure(engine: &wasmtime::Engine) -> wasmtime::Result<u64> {
    let module = Module::from_binary(engine, SPINNER)?;
    let mut store = Store::new(engine, ());
    store.set_epoch_deadline(u64::MAX / 2);
    let instance = wasmtime::Instance::new(&mut store, &module, &[])?;
    let spin = instance.get_typed_func::<(), ()>(&mut store, "spin")?;
    store.set_fuel(CALIBRATION_FUEL)?;
    let began = clock::now();
    // Ends by running out of fuel, which is the point.
    let _ = spin.call(&mut store, ());
    let took = clock::now().since(began).as_micros().max(1);
    Ok(u64::try_from(u128::from(CALIBRATION_FUEL) * 1000 / took).unwrap_or(u64::MAX).max(1))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
