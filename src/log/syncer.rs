//! The syncer: makes what was written durable while the log's owner goes on writing.
//!
//! ```text
//! owner:   append ─ sync_behind ─ append ─ sync_behind ─ absorb_syncs …
//! syncer:             └─ fdatasync ───────────┘└─ fdatasync ──────┘
//! ```
//!
//! # Invariants
//! A file's write error is reported once, to whoever syncs next. So the owner never syncs beside the
//! syncer: it takes back what has not begun, waits for what has, and a failure found there is its own.
//!
//! # Locking
//! One lock, for a swap; never over I/O.
//!
//! # Not here
//! When to sync: the engine. The owner's own sync: `writer.rs`.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::env::{Clock, File};
use crate::error::{Error, Result};
use crate::types::Lsn;

/// What is to be synced: a file, and the last record that is durable then.
struct Job {
    file: Arc<dyn File>,
    path: PathBuf,
    lsn: Lsn,
}

#[derive(Default)]
struct State {
    queued: Option<Job>,
    is_running: bool,
    /// What the owner does not know yet.
    done: Vec<Done>,
    is_stopped: bool,
}

/// The end of one sync.
pub(crate) struct Done {
    pub(crate) result: Result<Lsn>,
    pub(crate) took: Duration,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Syncer {
    state: Mutex<State>,
    signal: Condvar,
}

impl Syncer {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is whole after each line, so a panic leaves it usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the file synced soon. What was queued and has not begun is replaced: the newer one covers it.
    pub(super) fn queue(&self, file: &Arc<dyn File>, path: impl FnOnce() -> PathBuf, lsn: Lsn) {
        let mut state = self.state();
        match &mut state.queued {
            Some(job) if Arc::ptr_eq(&job.file, file) => job.lsn = lsn,
            queued => *queued = Some(Job { file: Arc::clone(file), path: path(), lsn }),
        }
        let is_idle = !state.is_running;
        drop(state);
        if is_idle {
            self.signal.notify_all();
        }
    }

    /// Whether a sync is queued, under way, or done without the owner's knowing.
    pub(super) fn is_busy(&self) -> bool {
        let state = self.state();
        state.is_running || state.queued.is_some() || !state.done.is_empty()
    }

    /// What was done since the last call.
    pub(super) fn take_done(&self) -> Vec<Done> {
        std::mem::take(&mut self.state().done)
    }

    /// Takes back what has not begun and waits for what has.
    pub(super) fn settle(&self) -> Vec<Done> {
        let mut state = self.state();
        state.queued = None;
        let settled = self.signal.wait_while(state, |state| state.is_running);
        std::mem::take(&mut settled.unwrap_or_else(PoisonError::into_inner).done)
    }

    /// Does one sync if one is queued, and says whether it did.
    pub(crate) fn step(&self, clock: &dyn Clock) -> bool {
        let job = {
            let mut state = self.state();
            let job = state.queued.take();
            state.is_running = job.is_some();
            job
        };
        let Some(Job { file, path, lsn }) = job else { return false };
        let before = clock.boottime();
        let result = file.sync_data().map(|()| lsn).map_err(|e| Error::io("syncing", &path, e));
        let took = clock.boottime().saturating_sub(before);
        let mut state = self.state();
        state.is_running = false;
        if result.is_err() {
            // After a failure the end of the log is unknown; another sync would only hide that.
            state.queued = None;
        }
        state.done.push(Done { result, took });
        drop(state);
        self.signal.notify_all();
        true
    }

    /// The thread's body, until [`stop`](Self::stop). `tell` is called after each sync.
    pub(crate) fn run(&self, clock: &dyn Clock, tell: impl Fn()) {
        loop {
            let state = self.state();
            let waited = self.signal.wait_while(state, |state| state.queued.is_none() && !state.is_stopped);
            let is_stopped = waited.unwrap_or_else(PoisonError::into_inner).is_stopped;
            if is_stopped {
                return;
            }
            if self.step(clock) {
                tell();
            }
        }
    }

    pub(crate) fn stop(&self) {
        self.state().is_stopped = true;
        self.signal.notify_all();
    }
}
