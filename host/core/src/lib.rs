//! The lease protocol of Tenure.
#![forbid(unsafe_code)]
mod instant;
mod messages;
mod timing;

pub use instant::Instant;
pub use messages::{ClaimId, ClaimReply, Handoff, Lasts, Reason, Refusal, RefusalReason, ReleaseReply, RenewReply};
pub use timing::{KILL_MARGIN, MIN_TTL, StopBudget, Timing, TimingError, TimingInput};
