//! The same component on wasmtime alone, with the same settings of the engine and the least that its imports need.

use std::time::{Duration, Instant};

use wasmtime::component::{Component, HasSelf, Linker, Resource, ResourceTable};
use wasmtime::{Config, Engine, Store};
use wasmtime_wasi::p2::DynPollable;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

mod bindings {
    #![allow(clippy::all, unreachable_pub)]
    wasmtime::component::bindgen!({
        path: "../guest-sdk/wit",
        world: "tenure:plugin/job-plugin",
        exports: { default: async },
        with: { "wasi:io/poll": wasmtime_wasi::p2::bindings::io::poll },
    });
}

use bindings::tenure::plugin::leadership;
use bindings::wasi::config::store as config;
use bindings::wasi::logging::logging;
use bindings::{JobPlugin, JobPluginPre};

pub(crate) struct Bare {
    engine: Engine,
    job: JobPluginPre<State>,
}

struct State {
    wasi: WasiCtx,
    table: ResourceTable,
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl leadership::Host for State {
    fn role(&mut self) -> String {
        String::new()
    }
    fn term(&mut self) -> u64 {
        1
    }
    fn instance(&mut self) -> String {
        String::new()
    }
    fn slot(&mut self) -> Option<u64> {
        None
    }
    fn remaining_milliseconds(&mut self) -> u32 {
        1
    }
    fn stopping(&mut self) -> bool {
        false
    }
    fn notice(&mut self) -> Resource<DynPollable> {
        unreachable!("the job asks for no notice")
    }
    fn resign(&mut self) {}
}

impl logging::Host for State {
    fn log(&mut self, _: logging::Level, _: String, _: String) {}
}

impl config::Host for State {
    fn get(&mut self, _: String) -> Result<Option<String>, config::Error> {
        Ok(None)
    }
    fn get_all(&mut self) -> Result<Vec<(String, String)>, config::Error> {
        Ok(Vec::new())
    }
}

impl Bare {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut settings = Config::new();
        settings.consume_fuel(true).epoch_interruption(true).wasm_component_model(true);
        let engine = Engine::new(&settings).unwrap();
        let mut linker = Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut linker).unwrap();
        leadership::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state).unwrap();
        logging::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state).unwrap();
        config::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state).unwrap();
        let component = Component::from_binary(&engine, bytes).unwrap();
        let job = JobPluginPre::new(linker.instantiate_pre(&component).unwrap()).unwrap();
        Self { engine, job }
    }

    /// Instantiates, and calls `elected`.
    pub(crate) async fn elected(&self) -> Elected {
        let state = State { wasi: WasiCtx::builder().build(), table: ResourceTable::new() };
        let mut store = Store::new(&self.engine, state);
        store.set_fuel(u64::MAX).unwrap();
        store.set_epoch_deadline(u64::MAX / 2);
        let job = self.job.instantiate_async(&mut store).await.unwrap();
        job.tenure_plugin_job().call_elected(&mut store, None).await.unwrap().unwrap();
        Elected { store, job }
    }

    /// What that takes.
    pub(crate) async fn elect(&self) -> Duration {
        let began = Instant::now();
        let _instance = self.elected().await;
        began.elapsed()
    }
}

/// An instance after its `elected`.
pub(crate) struct Elected {
    store: Store<State>,
    job: JobPlugin,
}

impl Elected {
    /// One call of `tick`.
    pub(crate) async fn tick(&mut self) {
        self.job.tenure_plugin_job().call_tick(&mut self.store).await.unwrap().unwrap();
    }
}
