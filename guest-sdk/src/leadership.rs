//! The role that this instance leads, for as long as it does.

use std::time::Duration;

use crate::bindings::tenure::plugin::leadership as wit;

/// Something that is ready once the host has asked the job to stop.
pub use crate::bindings::wasi::io::poll::Pollable;

/// The role's name, as in the host's configuration.
#[must_use]
pub fn role() -> String {
    wit::role()
}

/// The term: it only ever rises from one leader of the role to the next. Send it along with every effect whose receiver
/// can compare it: that is what makes it a fencing token.
#[must_use]
pub fn term() -> u64 {
    wit::term()
}

/// The name of the host, for people.
#[must_use]
pub fn instance() -> String {
    wit::instance()
}

/// The slot of the role's schedule that the present tick is for, as a time since 1970; none where the role has no
/// schedule. Over a change of leaders a slot has the same time: send it along where a receiver could see a slot twice.
#[must_use]
pub fn slot() -> Option<Duration> {
    wit::slot().map(Duration::from_millis)
}

/// How long the host may still act for this term, if no further renewal succeeds. [`Duration::MAX`] where it has no
/// store and always leads.
#[must_use]
pub fn remaining() -> Duration {
    match wit::remaining_milliseconds() {
        u32::MAX => Duration::MAX,
        ms => Duration::from_millis(ms.into()),
    }
}

/// Whether the host has asked the job to stop.
#[must_use]
pub fn stopping() -> bool {
    wit::stopping()
}

/// Ready once the host has asked the job to stop: wait for it together with whatever else the job waits for.
#[must_use]
pub fn notice() -> Pollable {
    wit::notice()
}

/// Gives the role up: the host ends this term when the present call has returned, and waits for a while before it claims
/// the role again.
pub fn resign() {
    wit::resign();
}
