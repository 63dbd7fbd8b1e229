//! The keeper: has the next segment ready before the log needs it.
//!
//! # Locking
//! One flag under one lock, never held over I/O.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::engine::wait::Shared;

/// See the module.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    stopped: Mutex<bool>,
    signal: Condvar,
}

/// A log that rotates faster than this makes its own next segment.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// After a failure (a full disk, mostly) it is not tried again before.
const RETRY_AFTER: Duration = Duration::from_millis(250);

impl Keeper {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, stopped: Mutex::new(false), signal: Condvar::new() }
    }

    /// The thread's body.
    pub(crate) fn run(&self) {
        let mut pause = LOOK_EVERY;
        while !self.wait(pause) {
            if !self.is_needed_soon() {
                continue;
            }
            pause = if self.shared.space.make_spare() { LOOK_EVERY } else { RETRY_AFTER };
        }
    }

    /// Whether the active segment is filled far enough: a store that writes little makes no spare.
    fn is_needed_soon(&self) -> bool {
        let segments = self.shared.segments.list();
        self.shared.space.is_tight()
            || segments.last().is_some_and(|active| active.used.saturating_mul(4) >= active.len)
    }

    /// Sleeps; returns whether to stop.
    fn wait(&self, pause: Duration) -> bool {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = self.signal.wait_timeout_while(stopped, pause, |stopped| !*stopped);
        *woken.unwrap_or_else(PoisonError::into_inner).0
    }

    pub(crate) fn stop(&self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.signal.notify_all();
    }
}
