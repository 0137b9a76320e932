//! A started plugin, and the three mechanisms that end a call for certain.
//!
//! Each for what the others miss: *fuel* counts work, and yields to the runtime while it does; the *epoch* is the wall
//! clock inside wasm, and yields too; the *timeout* around the call is for a guest that waits in a host function.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use async_trait::async_trait;
use tenure_core::{Handoff, Reason};
use wasmtime::{AsContextMut, Store, Trap, UpdateDeadline, WasmBacktrace};
use wasmtime_wasi::I32Exit;
use wasmtime_wasi::p2::bindings::Command;

use super::engine::Clockwork;
use super::imports::Guest;
use super::imports::bindings::JobPlugin;
use super::imports::bindings::exports::tenure::plugin::job;
use super::limits::{self, MAX_HANDLES, MAX_PASSED};
use super::watchdog::Slot;
use super::{CallError, Deadline, Instance, Next};
use crate::clock;

/// How much a guest may compute before other tasks of the runtime get their turn: a fraction of a millisecond.
const YIELD_INTERVAL: u64 = 200_000;
/// More than any call can use up.
const PLENTY: u64 = u64::MAX;
/// The most frames of a trap that are kept, and of each the most bytes.
const MAX_FRAMES: usize = 32;
const MAX_FRAME: usize = 256;
/// The most bytes of a plugin's own words that are kept of one failure.
const MAX_MESSAGE: usize = 4 << 10;

/// The exports of a started plugin.
pub(super) enum Exports {
    Job(JobPlugin),
    Command(Command),
}

/// An instance of a plugin, in a store of its own.
pub(super) struct WasmInstance {
    room: Room,
    exports: Exports,
}

/// A store, and what bounds the calls into it.
pub(super) struct Room {
    store: Store<Guest>,
    clockwork: Arc<Clockwork>,
    slot: Arc<Slot>,
    /// A call trapped or was dropped half-way: wasmtime's state is not to be relied on any more.
    dead: bool,
    /// What the last call was given.
    fuel: u64,
}

impl Room {
    pub(super) fn new(clockwork: Arc<Clockwork>, guest: Guest) -> wasmtime::Result<Self> {
        let slot = clockwork.watchdog.slot();
        let mut store = Store::new(&clockwork.engine, guest);
        store.limiter(|guest| &mut guest.limits);
        store.set_max_component_handles(MAX_HANDLES);
        store.set_hostcall_fuel(MAX_PASSED);
        store.set_fuel(PLENTY)?;
        store.fuel_async_yield_interval(Some(YIELD_INTERVAL))?;
        store.set_epoch_deadline(1);
        let own = slot.clone();
        store.epoch_deadline_callback(move |_| {
            Ok(if own.is_late() { UpdateDeadline::Interrupt } else { UpdateDeadline::Yield(1) })
        });
        Ok(Self { store, clockwork, slot, dead: false, fuel: PLENTY })
    }

    /// Runs one call into the guest, until it returns or has to end.
    pub(super) async fn call<T>(
        &mut self,
        fuel: u64,
        deadline: &Deadline,
        call: impl AsyncFnOnce(&mut Store<Guest>) -> wasmtime::Result<T>,
    ) -> Result<T, CallError> {
        if self.dead {
            return Err(CallError::Limit("the instance has failed before and can't be entered again".to_owned()));
        }
        // Until the call has returned: whoever drops this future leaves a dead instance behind.
        self.dead = true;
        // What an earlier call was refused and coped with does not explain this one's end.
        let _ = self.store.data_mut().limits.take_refusal();
        // No call uses up plenty, so there is plenty left.
        if fuel != PLENTY || self.fuel != PLENTY {
            self.store.set_fuel(fuel).map_err(|error| self.explain(&error, fuel))?;
            self.fuel = fuel;
        }
        let ended = within(deadline, &self.clockwork, &self.slot, call(&mut self.store)).await;
        match ended {
            Some(Ok(value)) => {
                self.dead = false;
                Ok(value)
            }
            Some(Err(error)) => Err(self.explain(&error, fuel)),
            None => Err(CallError::CutOff),
        }
    }

    /// An error that the plugin returned.
    fn own_words(&self, words: &str) -> CallError {
        let mut words = self.store.data().output.redact(words);
        words.truncate(words.floor_char_boundary(MAX_MESSAGE));
        CallError::Failed(words)
    }

    /// What went wrong, in the words of the plugin where it had any.
    fn explain(&mut self, error: &wasmtime::Error, fuel: u64) -> CallError {
        match error.downcast_ref::<Trap>() {
            Some(Trap::Interrupt) => return CallError::CutOff,
            Some(Trap::OutOfFuel) => return CallError::OutOfFuel { fuel },
            _ => {}
        }
        let guest = self.store.data_mut();
        let refusal = guest.limits.take_refusal().or_else(|| limits::refused(error));
        let last_words = guest.output.take_last_words();
        let cause = match error.downcast_ref::<I32Exit>() {
            Some(I32Exit(code)) => format!("it exited with code {code}"),
            None => error.root_cause().to_string(),
        };
        if let Some(refusal) = refusal {
            return CallError::Limit(refusal);
        }
        let mut message = match last_words {
            Some(words) => format!("{words} ({cause})"),
            None => cause,
        };
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        CallError::Trapped { message, frames: frames(error) }
    }
}

/// Waits for `call` up to its deadline, which may come nearer meanwhile. None: the deadline came while it was not running,
/// because it waited in a host function or for its next turn, or before it began.
async fn within<T>(
    deadline: &Deadline,
    clockwork: &Clockwork,
    slot: &Slot,
    call: impl Future<Output = T>,
) -> Option<T> {
    let mut call = pin!(call);
    let mut turns = poll_fn(|context| {
        if !clockwork.watchdog.begin_turn(slot, deadline.now(), deadline.at()) {
            return Poll::Ready(None);
        }
        let polled = call.as_mut().poll(context);
        slot.end_turn();
        polled.map(Some)
    });
    loop {
        let at = deadline.at();
        tokio::select! {
            biased;
            ended = &mut turns => return ended,
            () = clock::sleep_until(at) => return None,
            () = deadline.moved() => {}
        }
    }
}

/// The names of the guest's functions on the stack, innermost first.
fn frames(error: &wasmtime::Error) -> Vec<String> {
    let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() else { return Vec::new() };
    backtrace
        .frames()
        .iter()
        .take(MAX_FRAMES)
        .map(|frame| match frame.func_name() {
            Some(name) => {
                let mut name = rustc_demangle::demangle(name).to_string();
                name.truncate(name.floor_char_boundary(MAX_FRAME));
                name
            }
            None => format!("function {}", frame.func_index()),
        })
        .collect()
}

impl WasmInstance {
    pub(super) fn new(room: Room, exports: Exports) -> Self {
        Self { room, exports }
    }
}

#[async_trait]
impl Instance for WasmInstance {
    async fn elected(&mut self, handoff: Option<Handoff>, deadline: &Deadline) -> Result<(), CallError> {
        let Exports::Job(plugin) = &self.exports else { return Ok(()) };
        let handoff = handoff.map(|Handoff { term, data }| job::Handoff { term, data });
        let call = async |store: &mut Store<Guest>| {
            plugin.tenure_plugin_job().call_elected(store.as_context_mut(), handoff.as_ref()).await
        };
        self.room.call(PLENTY, deadline, call).await?.map_err(|words| self.room.own_words(&words))
    }

    async fn tick(&mut self, deadline: &Deadline) -> Result<Next, CallError> {
        match &self.exports {
            Exports::Job(plugin) => {
                let call = async |store: &mut Store<Guest>| plugin.tenure_plugin_job().call_tick(store).await;
                let next =
                    self.room.call(PLENTY, deadline, call).await?.map_err(|words| self.room.own_words(&words))?;
                Ok(match next {
                    job::Next::Again => Next::Again,
                    job::Next::After(ms) => Next::After(std::time::Duration::from_millis(ms.into())),
                    job::Next::Done => Next::Done,
                })
            }
            Exports::Command(command) => {
                let call = async |store: &mut Store<Guest>| match command.wasi_cli_run().call_run(store).await {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(())) => Err(wasmtime::Error::msg("it returned an error")),
                    Err(error) if error.downcast_ref::<I32Exit>().is_some_and(|exit| exit.0 == 0) => Ok(()),
                    Err(error) => Err(error),
                };
                self.room.call(PLENTY, deadline, call).await?;
                // It has exited, and can't be entered again.
                self.room.dead = true;
                Ok(Next::Done)
            }
        }
    }

    async fn demoted(
        &mut self,
        reason: Reason,
        failure: Option<&str>,
        fuel: u64,
        deadline: &Deadline,
    ) -> Result<Option<Vec<u8>>, CallError> {
        let Exports::Job(plugin) = &self.exports else { return Ok(None) };
        let reason = match (failure, reason) {
            (Some(failure), _) => job::Reason::Crashed(failure.to_owned()),
            (None, Reason::Shutdown) => job::Reason::Shutdown,
            (None, Reason::Resigned) => job::Reason::Resigned,
            (None, Reason::Failed) => job::Reason::Failed,
            (None, Reason::Lost) => job::Reason::Lost,
            (None, Reason::Unreachable) => job::Reason::Unreachable,
        };
        let call = async |store: &mut Store<Guest>| plugin.tenure_plugin_job().call_demoted(store, &reason).await;
        self.room.call(fuel, deadline, call).await
    }

    fn fuel_used(&self) -> u64 {
        self.room.fuel.saturating_sub(self.room.store.get_fuel().unwrap_or(0))
    }
}
