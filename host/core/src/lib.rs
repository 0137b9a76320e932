//! The lease protocol of Tenure, as a pure state machine: no async, no clock, no I/O, no randomness.
//!
//! Several instances of a host run; for each role at most one of them may act at any moment. Each instance has one
//! [`Machine`] a role. It is told what happened and when ([`Machine::step`]), says what is to be done ([`Effect`]), and
//! when it wants to be woken ([`Machine::wake_at`]). Whoever drives it reads the clock, talks to the store and runs the
//! plugin; the machine decides.
//!
//! # The protocol
//!
//! The store grants the lease of a role to one claim at a time, for a ttl, with a term that only rises. A leader trusts
//! its lease for less than the ttl, counted from *before* the request left that was answered; see [`timing`](Timing).
//! It renews; where renewals go unanswered, it begins to step down early enough that the plugin has stopped by the end of
//! trust. Only then is the lease released.
//!
//! Every claim carries the highest term that its instance has seen. A store whose counter is below that has lost data,
//! perhaps a lease that is still trusted: it lifts its counter and grants nothing for a ttl. It is the store that waits,
//! so that a second loss, which an instance could not tell from the first, begins the wait again.
//!
//! # Invariants
//!
//! `tests/histories.rs` asserts each of them over random histories of several machines with lost, late and doubled
//! requests, stores that lose data, clocks that drift within the skew, and instances that are paused; and it says what is
//! beyond the protocol.
//!
//! 1. **One gate.** At most one instance has an open gate for a role at any moment.
//! 2. **Terms rise.** Each promotion has a higher term than every promotion before it, on any instance.
//! 3. **Pairs.** Every promotion has exactly one demotion, of the same term, before the next promotion of the instance.
//! 4. **Stop, then release.** The lease of a term is released only after [`Input::Stopped`] for that term.
//! 5. **Stale replies change nothing.** A reply to any but the present request leaves the machine as it was.
//! 6. **In time.** The demotion begins, at the latest, when the drain still fits before the end of trust.
#![forbid(unsafe_code)]

mod input;
mod instant;
mod machine;
mod messages;
mod timing;

pub use input::{Effect, Input, Reply, Report, RequestId};
pub use instant::Instant;
pub use machine::Machine;
pub use messages::{ClaimId, ClaimReply, Handoff, Lasts, Reason, Refusal, RefusalReason, ReleaseReply, RenewReply};
pub use timing::{MAX_TTL, MIN_KILL_MARGIN, MIN_TTL, StopBudget, Timing, TimingError, TimingInput};
