//! Time as the store counts it.

use std::fmt;
use std::time::Duration;

/// A moment of the store's clock: whole milliseconds since the Unix epoch.
///
/// The store's clock starts from the wall clock at open, never goes back, and does not follow
/// steps of the wall clock while the store is open; see `docs/semantics.md`, "Time".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct Timestamp(pub(crate) u64);

impl Timestamp {
    pub(crate) const ZERO: Self = Self(0);
    /// Never.
    pub(crate) const MAX: Self = Self(u64::MAX);

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The moment that is `millis` milliseconds after the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// This moment plus `duration`, rounded up to whole milliseconds and saturating at the end of time.
    pub(crate) fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis_up(duration)))
    }

    /// How long after `earlier` this is; zero when it is not after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A duration in whole milliseconds, rounded up: what is asked for is never cut short.
pub(crate) fn millis_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
