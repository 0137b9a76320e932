//! The wall clock inside wasm: ends a guest that computes past its deadline, and has each give way after a while.
//!
//! wasmtime checks a counter, the epoch, at every loop and call of a guest. Nothing has to count it up while nothing is
//! due: a thread sleeps until the earliest end of any running guest's turn, and bumps the epoch until that turn has ended.
//! Each guest that notices asks its own [`Slot`] whether it is late, and gives way to other tasks where it is not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use tenure_core::Instant;
use wasmtime::EngineWeak;

use crate::clock;

/// How long a guest may keep a thread. Fuel makes most guests give way long before, but what a host function does for a
/// guest costs no fuel.
const TURN: Duration = Duration::from_millis(2);
/// How long after one bump the next one follows, while that turn has not ended. One is not enough: a guest that has just
/// found itself in time sets its next look one epoch ahead of whatever the epoch has become meanwhile.
const AGAIN_AFTER: Duration = Duration::from_millis(1);
/// The end of no turn.
const IDLE: u64 = u64::MAX;

/// The turn of an instance: from when a thread enters it until it gives way.
#[derive(Debug)]
pub(super) struct Slot {
    /// When the present call must have ended.
    deadline: AtomicU64,
    /// When the epoch is bumped for it: at the deadline, or when the turn has been long enough.
    due: AtomicU64,
}

impl Slot {
    /// Whether the present call should have ended by now.
    pub(super) fn is_late(&self) -> bool {
        clock::now().as_nanos() >= self.deadline.load(Ordering::Acquire)
    }

    /// The thread has left the instance.
    pub(super) fn end_turn(&self) {
        self.due.store(IDLE, Ordering::Release);
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
        let slot = Arc::new(Slot { deadline: AtomicU64::new(IDLE), due: AtomicU64::new(IDLE) });
        self.shared.lock().slots.push(Arc::downgrade(&slot));
        slot
    }

    /// A thread is about to enter the instance of `slot`, in a call that must end by `deadline`. False where it must not,
    /// since that has passed. Takes no lock where the watchdog wakes up before the turn's end anyway: this runs before
    /// every tick.
    pub(super) fn begin_turn(&self, slot: &Slot, now: Instant, deadline: Instant) -> bool {
        if now >= deadline {
            return false;
        }
        let due = deadline.min(now.plus(TURN)).as_nanos();
        slot.deadline.store(deadline.as_nanos(), Ordering::Release);
        slot.due.store(due, Ordering::SeqCst);
        if due < self.shared.wakes_at.load(Ordering::SeqCst) {
            let _state = self.shared.lock();
            self.shared.wakes_at.fetch_min(due, Ordering::SeqCst);
            self.shared.changed.notify_one();
        }
        true
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
            // Announced before the slots are read: a turn that begins meanwhile either is seen here or sees this, and notifies.
            self.wakes_at.store(u64::MAX, Ordering::SeqCst);
            let (mut over, mut next) = (false, u64::MAX);
            state.slots.retain(|slot| {
                let Some(slot) = slot.upgrade() else { return false };
                let due = slot.due.load(Ordering::SeqCst);
                if due <= now.as_nanos() {
                    (over, next) = (true, next.min(now.plus(AGAIN_AFTER).as_nanos()));
                } else {
                    next = next.min(due);
                }
                true
            });
            self.wakes_at.fetch_min(next, Ordering::SeqCst);
            if over {
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
