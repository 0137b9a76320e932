//! The wall clock inside wasm: ends a guest that computes past its deadline.
//!
//! wasmtime checks a counter, the epoch, at every loop and call of a guest. Nothing has to count it up while nothing is
//! due: a thread sleeps until the earliest deadline of any running call, and then bumps the epoch once. Each guest that
//! notices asks its own [`Slot`] whether it is the one that is late.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use tenure_core::Instant;
use wasmtime::EngineWeak;

use crate::clock;

/// The deadline of the call that an instance is in.
#[derive(Debug)]
pub(super) struct Slot {
    at: AtomicU64,
    /// Whether the epoch was bumped for it.
    fired: AtomicBool,
}

impl Slot {
    /// Whether the present call should have ended by now.
    pub(super) fn is_late(&self) -> bool {
        clock::now().as_nanos() >= self.at.load(Ordering::Acquire)
    }

    /// No call runs.
    pub(super) fn disarm(&self) {
        self.at.store(u64::MAX, Ordering::Release);
    }
}

/// The thread that bumps the epoch of one engine. Ends when the last handle is gone.
#[derive(Debug)]
pub(super) struct Watchdog {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// When the thread wakes up next, in nanoseconds; `u64::MAX` while nothing is due.
    wakes_at: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    slots: Vec<Weak<Slot>>,
    ended: bool,
}

impl Watchdog {
    /// Starts the thread for `engine`.
    pub(super) fn start(engine: EngineWeak) -> std::io::Result<Self> {
        let shared =
            Arc::new(Shared { wakes_at: AtomicU64::new(u64::MAX), state: Mutex::default(), changed: Condvar::new() });
        let watched = shared.clone();
        thread::Builder::new().name("watchdog".to_owned()).spawn(move || watched.run(&engine))?;
        Ok(Self { shared })
    }

    /// A slot for a new instance.
    pub(super) fn slot(&self) -> Arc<Slot> {
        let slot = Arc::new(Slot { at: AtomicU64::new(u64::MAX), fired: AtomicBool::new(false) });
        self.shared.lock().slots.push(Arc::downgrade(&slot));
        slot
    }

    /// Watches the call that `slot` stands for until `at`. Takes no lock where the thread wakes up before that anyway:
    /// this runs before every tick.
    pub(super) fn arm(&self, slot: &Slot, at: Instant) {
        slot.fired.store(false, Ordering::Relaxed);
        slot.at.store(at.as_nanos(), Ordering::SeqCst);
        if at.as_nanos() < self.shared.wakes_at.load(Ordering::SeqCst) {
            let _state = self.shared.lock();
            self.shared.wakes_at.fetch_min(at.as_nanos(), Ordering::SeqCst);
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, engine: &EngineWeak) {
        let mut state = self.lock();
        while !state.ended {
            let now = clock::now();
            // Announced before the slots are read: a slot armed meanwhile either is seen here or sees this, and notifies.
            self.wakes_at.store(u64::MAX, Ordering::SeqCst);
            let (mut late, mut next) = (false, u64::MAX);
            state.slots.retain(|slot| {
                let Some(slot) = slot.upgrade() else { return false };
                let at = slot.at.load(Ordering::SeqCst);
                if at > now.as_nanos() {
                    next = next.min(at);
                } else if !slot.fired.swap(true, Ordering::Relaxed) {
                    late = true;
                }
                true
            });
            self.wakes_at.fetch_min(next, Ordering::SeqCst);
            if late {
                let Some(engine) = engine.upgrade() else { return };
                engine.increment_epoch();
            }
            let wait = Instant::from_nanos(self.wakes_at.load(Ordering::SeqCst)).since(clock::now());
            state = if wait.is_zero() {
                continue;
            } else {
                self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }
}
