//! The one engine of a process: settings, loading, and the measure of this machine's speed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sha2::{Digest, Sha256};
use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime::{Config, Module, OptLevel, Store};
use wasmtime_wasi::p2::bindings::CommandPre;

use super::cache::Cache;
use super::componentize::{Form, componentize};
use super::image::{ExportsPre, Prepared, WasmImage};
use super::imports::bindings::JobPluginPre;
use super::imports::{self, Guest, Linked, OFFERED};
use super::watchdog::Watchdog;
use super::{Image, Kind, LoadError, PluginSpec};
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
    linkers: Mutex<HashMap<Linked, Linker<Guest>>>,
    /// What is in use: roles that run the same bytes with the same interfaces share them.
    prepared: Mutex<HashMap<(String, Linked), Weak<Prepared>>>,
    cache: Option<Cache>,
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
        let fuel_per_ms = measure(&engine)?;
        let watchdog = Watchdog::start(engine.weak())?;
        Ok(Self {
            clockwork: Arc::new(Clockwork { engine, watchdog }),
            linkers: Mutex::default(),
            prepared: Mutex::default(),
            cache: None,
            fuel_per_ms,
        })
    }

    /// Keeps compiled plugins in `folder`, and takes them from there.
    #[must_use]
    pub fn keeping_in(mut self, folder: &Path) -> Self {
        self.cache = Cache::open(folder, &self.clockwork.engine);
        self
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
        let key = (digest(bytes), Linked::by(&spec.grants));
        let known = self.prepared.lock().unwrap_or_else(PoisonError::into_inner).get(&key).and_then(Weak::upgrade);
        let prepared = match known {
            Some(prepared) => prepared,
            None => {
                let prepared = Arc::new(self.prepare(bytes, &key.0, key.1)?);
                let mut all = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
                all.retain(|_, used| used.strong_count() > 0);
                all.insert(key, Arc::downgrade(&prepared));
                prepared
            }
        };
        Ok(Arc::new(WasmImage::new(self.clockwork.clone(), prepared, spec)))
    }

    /// What a plugin is, wants and gives, without linking it.
    ///
    /// # Errors
    ///
    /// [`LoadError`] where the bytes are no component and can't be made one.
    pub fn inspect(&self, bytes: &[u8]) -> Result<Inspection, LoadError> {
        let digest = digest(bytes);
        let (form, component) = self.compile(bytes, &digest)?;
        let (imports, exports) = (self.imports(&component), self.exports(&component));
        let kind = kind_of(&exports).map(|kind| kind.kind());
        Ok(Inspection { digest, form, kind, imports, exports })
    }

    fn prepare(&self, bytes: &[u8], digest: &str, linked: Linked) -> Result<Prepared, LoadError> {
        let (_, component) = self.compile(bytes, digest)?;
        let kind = kind_of(&self.exports(&component))?;
        let imports = self.imports(&component);
        if let Some(words) = not_granted(&imports, linked) {
            return Err(LoadError(words));
        }
        let instance = self.link(&component, linked).map_err(|error| missing_import(&imports, &error))?;
        let exports = kind.prepare(instance).map_err(|error| {
            LoadError(format!("its exports do not fit: {error:#}; build it against guest-sdk/wit of this version"))
        })?;
        Ok(Prepared { digest: digest.to_owned(), imports, exports })
    }

    /// The compiled component, from the cache where it is there.
    fn compile(&self, bytes: &[u8], digest: &str) -> Result<(Form, Component), LoadError> {
        let engine = &self.clockwork.engine;
        let (form, component) = componentize(engine, bytes)?;
        if let Some(component) = self.cache.as_ref().and_then(|cache| cache.load(engine, digest)) {
            return Ok((form, component));
        }
        let component = Component::from_binary(engine, &component)
            .map_err(|error| LoadError(format!("not a valid component: {error:#}")))?;
        if let Some(cache) = &self.cache {
            cache.keep(digest, &component);
        }
        Ok((form, component))
    }

    fn link(&self, component: &Component, linked: Linked) -> wasmtime::Result<InstancePre<Guest>> {
        let mut linkers = self.linkers.lock().unwrap_or_else(PoisonError::into_inner);
        let linker = match linkers.entry(linked) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let mut linker = Linker::new(&self.clockwork.engine);
                imports::link(&mut linker, linked)?;
                place.insert(linker)
            }
        };
        linker.instantiate_pre(component)
    }

    fn imports(&self, component: &Component) -> Vec<String> {
        let types = component.component_type();
        types.imports(&self.clockwork.engine).map(|(name, _)| name.to_owned()).collect()
    }

    fn exports(&self, component: &Component) -> Vec<String> {
        let types = component.component_type();
        types.exports(&self.clockwork.engine).map(|(name, _)| name.to_owned()).collect()
    }
}

/// What a plugin file is.
#[derive(Debug)]
pub struct Inspection {
    /// The sha256 of its bytes, in hexadecimal.
    pub digest: String,
    /// In which form it is written.
    pub form: Form,
    /// Which kind of plugin it is, or why it is none.
    pub kind: Result<Kind, LoadError>,
    /// The interfaces that it imports.
    pub imports: Vec<String>,
    /// The interfaces that it exports.
    pub exports: Vec<String>,
}

impl Inspection {
    /// What gives a plugin an interface that it imports: in words, for a table.
    #[must_use]
    pub fn given_by(import: &str) -> String {
        match GRANTED.iter().find(|granted| import.starts_with(granted.interfaces)) {
            Some(granted) => format!("grants: {}", granted.example),
            None if import.starts_with("wasi:filesystem/") => "always; folders by grants: dirs".to_owned(),
            None if import.starts_with("wasi:cli/environment@") => "always; more variables by grants: env".to_owned(),
            None if import.starts_with("wasi:sockets/") => "always; no address is allowed".to_owned(),
            None if ALWAYS.iter().any(|package| import.starts_with(package)) => "always".to_owned(),
            None => "not offered by this host".to_owned(),
        }
    }

    /// The grants that its imports need, as they are written in a role.
    #[must_use]
    pub fn grants(&self) -> Vec<&'static str> {
        GRANTED
            .iter()
            .filter(|granted| granted.wanted_by(&self.imports).is_some())
            .map(|granted| granted.example)
            .collect()
    }
}

/// Packages that every plugin may import.
const ALWAYS: [&str; 8] = [
    "tenure:plugin/leadership@",
    "wasi:logging/logging@",
    "wasi:config/store@",
    "wasi:cli/",
    "wasi:clocks/",
    "wasi:filesystem/",
    "wasi:io/",
    "wasi:random/",
];

/// Interfaces that are linked only where a grant says so.
struct Granted {
    interfaces: &'static str,
    example: &'static str,
    is_linked: fn(Linked) -> bool,
}

const GRANTED: [Granted; 2] = [
    Granted { interfaces: "wasi:keyvalue/", example: "keyvalue = true", is_linked: |linked| linked.keyvalue },
    Granted { interfaces: "wasi:http/", example: "http = [\"https://…\"]", is_linked: |linked| linked.http },
];

impl Granted {
    fn wanted_by<'i>(&self, imports: &'i [String]) -> Option<&'i String> {
        imports.iter().find(|import| import.starts_with(self.interfaces))
    }
}

/// What a plugin wants and its role does not grant.
fn not_granted(imports: &[String], linked: Linked) -> Option<String> {
    let missing: Vec<_> = GRANTED
        .iter()
        .filter(|granted| !(granted.is_linked)(linked))
        .filter_map(|granted| granted.wanted_by(imports).map(|import| (import.as_str(), granted.example)))
        .collect();
    let (imports, grants): (Vec<_>, Vec<_>) = missing.into_iter().unzip();
    (!imports.is_empty()).then(|| {
        format!(
            "it imports {}, which its role does not grant: write grants = {{ {} }}",
            imports.join(" and "),
            grants.join(", ")
        )
    })
}

fn kind_of(exports: &[String]) -> Result<ExportsKind, LoadError> {
    if exports.iter().any(|name| name == JOB_VERSION) {
        return Ok(ExportsKind::Job);
    }
    if let Some(other) = exports.iter().find(|name| name.starts_with(JOB)) {
        return Err(LoadError(format!(
            "it exports {other}, but this host runs {JOB_VERSION}: build it with the guest SDK of this version"
        )));
    }
    if exports.iter().any(|name| name.starts_with(RUN)) {
        return Ok(ExportsKind::Command);
    }
    let found = if exports.is_empty() { "nothing".to_owned() } else { exports.join(", ") };
    Err(LoadError(format!(
        "it exports {found}, but a plugin exports {JOB_VERSION} (a job) or {RUN}x (a command): for a job, use \
         `tenure_guest::export!`; for a command, build a program with a `main` for wasm32-wasip2"
    )))
}

/// Names the import that could not be linked.
fn missing_import(imports: &[String], error: &wasmtime::Error) -> LoadError {
    let words = format!("{error:#}");
    LoadError(match imports.iter().find(|name| words.contains(name.as_str())) {
        Some(import) => format!(
            "it imports {import}, which this host does not offer in this form ({words}); offered are {OFFERED}: \
             build the plugin without that import, or against an offered version"
        ),
        None => format!("its imports do not fit ({words}); offered are {OFFERED}"),
    })
}

/// Which of the two kinds of exports a component has.
enum ExportsKind {
    Job,
    Command,
}

impl ExportsKind {
    fn kind(&self) -> Kind {
        match self {
            Self::Job => Kind::Job,
            Self::Command => Kind::Command,
        }
    }

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

/// The sha256 of a plugin's bytes, in hexadecimal.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
