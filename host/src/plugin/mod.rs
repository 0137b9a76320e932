//! What the work of a role asks of a plugin. The traits, in Tenure's words; `wasmtime` is named only in the files below.
//!
//! An [`Image`] is compiled, linked and ready; starting it gives an [`Instance`], which lives for at most one term and is
//! called by one task. Every call ends by its [`Deadline`], whatever the guest does.

mod cache;
mod componentize;
pub mod engine;
mod http;
mod image;
mod imports;
mod instance;
mod keyvalue;
mod limits;
mod output;
mod watchdog;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::{Handoff, Instant, Reason};
use tokio::sync::{Notify, watch};

use crate::clock;
use crate::config::RoleName;
use crate::gate::Gate;
use crate::grants::Grants;
use crate::state::FencedState;

/// A plugin that is compiled, linked for one role, and ready to start.
#[async_trait]
pub trait Image: Send + Sync + 'static {
    /// The sha256 of the plugin's bytes, in hexadecimal.
    fn digest(&self) -> &str;

    /// The interfaces that it imports, for people.
    fn imports(&self) -> &[String];

    /// Which of the two kinds of plugin it is.
    fn kind(&self) -> Kind;

    /// Makes an instance, which runs the guest's start functions.
    ///
    /// # Errors
    ///
    /// [`CallError`] where a start function trapped or did not end by `deadline`, or a limit was met.
    async fn start(&self, seat: Seat, deadline: &Deadline) -> Result<Box<dyn Instance>, CallError>;
}

/// A started plugin, for one term.
///
/// Once a call has returned a [`CallError`] that [`is_fatal`](CallError::is_fatal), the instance can't be entered again.
/// A command has no `elected` and no `demoted` of its own: its whole run is one tick.
#[async_trait]
pub trait Instance: Send {
    /// Leadership begins.
    ///
    /// # Errors
    ///
    /// What the plugin returned, or how it ended.
    async fn elected(&mut self, handoff: Option<Handoff>, deadline: &Deadline) -> Result<(), CallError>;

    /// One piece of work.
    ///
    /// # Errors
    ///
    /// What the plugin returned, or how it ended.
    async fn tick(&mut self, deadline: &Deadline) -> Result<Next, CallError>;

    /// Leadership ends. `failure` is what the instance before this one said when it failed, and this is a fresh one.
    ///
    /// # Errors
    ///
    /// How it ended, where it did not return by `deadline` or needed more than `fuel`.
    async fn demoted(
        &mut self,
        reason: Reason,
        failure: Option<&str>,
        fuel: u64,
        deadline: &Deadline,
    ) -> Result<Option<Vec<u8>>, CallError>;

    /// The fuel that `demoted` used, once it has returned.
    fn fuel_used(&self) -> u64;
}

/// The two kinds of plugin, told apart by their exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Exports `tenure:plugin/job`.
    Job,
    /// Exports only `wasi:cli/run`.
    Command,
}

/// What an image is made for.
#[derive(Debug, Clone)]
pub struct PluginSpec {
    /// The role that it will run.
    pub role: RoleName,
    /// `wasi:config`.
    pub settings: BTreeMap<String, String>,
    /// The most memory that an instance may have, in bytes.
    pub memory: u64,
    /// What else it is given.
    pub grants: Grants,
}

/// The seat that an instance is started for: who leads, and how it is told that this ends.
#[derive(Clone)]
pub struct Seat {
    /// The host's name.
    pub instance: String,
    /// The term's gate: the term, what is left of it, and leave for outward effects.
    pub gate: Arc<Gate>,
    /// True once the plugin has been told to stop.
    pub notice: watch::Receiver<bool>,
    /// Rung by `leadership.resign`.
    pub resign: Arc<Notify>,
    /// The role's state, where there is a store for it.
    pub state: Option<FencedState>,
    /// The slot of the schedule that the present tick is for, in milliseconds since 1970; zero where there is none.
    pub slot: Arc<AtomicU64>,
}

/// What a plugin wants after a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The next tick at once.
    Again,
    /// The next tick after this long.
    After(Duration),
    /// No more ticks in this term.
    Done,
}

/// When a call must have ended. It may be brought forward while the call runs: that is how a notice reaches a tick.
#[derive(Debug)]
pub struct Deadline {
    at: AtomicU64,
    /// When it was made, for the first turn of its first call: one look at the clock less in every tick. Zero afterwards.
    made: AtomicU64,
    moved: Notify,
}

impl Deadline {
    /// A deadline at `at`, for a call that begins `now`.
    #[must_use]
    pub fn new(now: Instant, at: Instant) -> Self {
        Self { at: AtomicU64::new(at.as_nanos()), made: AtomicU64::new(now.as_nanos()), moved: Notify::new() }
    }

    /// The present time.
    fn now(&self) -> Instant {
        match self.made.load(Ordering::Relaxed) {
            0 => clock::now(),
            made => {
                self.made.store(0, Ordering::Relaxed);
                Instant::from_nanos(made)
            }
        }
    }

    /// When the call must have ended, as of now.
    #[must_use]
    pub fn at(&self) -> Instant {
        Instant::from_nanos(self.at.load(Ordering::Acquire))
    }

    /// Brings the deadline forward to `at`; a later `at` changes nothing.
    pub fn bring_forward(&self, at: Instant) {
        if self.at.fetch_min(at.as_nanos(), Ordering::AcqRel) > at.as_nanos() {
            self.moved.notify_waiters();
            self.moved.notify_one();
        }
    }

    /// Waits until the deadline was brought forward. May wake without need.
    pub async fn moved(&self) {
        self.moved.notified().await;
    }
}

/// How a call into a plugin failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The plugin returned an error of its own, and lives.
    #[error("{0}")]
    Failed(String),
    /// The guest trapped or panicked.
    #[error("{message}")]
    Trapped {
        /// The panic's text where there is one, and the trap.
        message: String,
        /// The wasm frames, innermost first.
        frames: Vec<String>,
    },
    /// The call was still running at its deadline, and was ended.
    #[error("cut off at its deadline")]
    CutOff,
    /// The call used up its fuel.
    #[error("cut off: it used its {fuel} units of fuel")]
    OutOfFuel {
        /// The budget.
        fuel: u64,
    },
    /// A limit of the sandbox; the words name it.
    #[error("{0}")]
    Limit(String),
}

impl CallError {
    /// Whether the instance is dead: everything but an error that the plugin returned.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Self::Failed(_))
    }
}

/// Why a plugin file could not be made an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LoadError(pub String);
