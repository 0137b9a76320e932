//! The only reader of time.
//!
//! Leases are measured on `CLOCK_BOOTTIME`: it goes on while the machine is suspended, as the store's clock does, so a
//! machine that wakes up knows that its leases are over. Everything else gets the time as an argument.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tenure_core::Instant;

/// How far a sleep may overshoot after the machine was suspended: tokio's timers do not count suspended time.
const SUSPEND_CHECK: Duration = Duration::from_millis(500);

/// The present time on `CLOCK_BOOTTIME`.
#[must_use]
pub fn now() -> Instant {
    let time = clock_gettime(ClockId::Boottime);
    // The kernel's boot clock is never negative, and 64 bits of nanoseconds last for 584 years of uptime.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Instant::from_nanos(seconds * 1_000_000_000 + nanos)
}

/// The wall clock, for people: audit lines and logs. Never used to decide anything.
#[must_use]
pub fn wall() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// Sleeps until the wall clock shows `at`, in milliseconds since 1970, however it is set meanwhile.
pub async fn sleep_until_wall(at: u64) {
    loop {
        let now = u64::try_from(wall().as_millisecond()).unwrap_or(0);
        if now >= at {
            return;
        }
        tokio::time::sleep(Duration::from_millis(at - now).min(SUSPEND_CHECK)).await;
    }
}

/// Sleeps until `at`; at once where `at` has passed, for ever where it is [`Instant::NEVER`].
///
/// Looks at the clock again at least twice a second, so that a resumed machine notices what it slept through.
pub async fn sleep_until(at: Instant) {
    if at == Instant::NEVER {
        std::future::pending::<()>().await;
    }
    loop {
        let left = at.since(now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(SUSPEND_CHECK)).await;
    }
}
