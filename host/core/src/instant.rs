//! Points in time, as numbers that somebody else read.

use std::fmt;
use std::time::Duration;

/// A point in time on the caller's clock, in nanoseconds since an epoch of the caller's choice.
///
/// Core never reads a clock: `std::time::Instant` can only be made by reading one, so it has a type of its own.
/// Arithmetic saturates; [`Instant::NEVER`] is later than every other instant and stays so whatever is added to it or
/// taken from it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// A time that does not come.
    pub const NEVER: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the clock's epoch.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to here; zero where `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        if self == Self::NEVER {
            return Duration::MAX;
        }
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The instant `by` later.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        if self == Self::NEVER {
            return self;
        }
        Self(self.0.saturating_add(nanos(by)))
    }

    pub(crate) fn minus(self, by: Duration) -> Self {
        if self == Self::NEVER {
            return self;
        }
        Self(self.0.saturating_sub(nanos(by)))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER {
            return f.write_str("never");
        }
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}
