//! The engine of an open store: its parts, its threads, its end.
//!
//! ```text
//! open.rs ──► Committer (commit, decide, redrive, waiters; tables in state.rs)
//!        └──► Applier   (index)          Keeper (next segment)          Syncer (log/syncer.rs)
//!             Shared    (inbox: how callers reach the committer; wait.rs)
//! ```
//!
//! # Crashes
//! A panic of a thread stops the store: every waiting and later call is answered with `Poisoned`.
//!
//! # Not here
//! What users see: `store.rs`, `queue.rs`.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;

use crate::env::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::index::{Kv, SledKv};
use crate::options::Options;

pub(crate) mod admin;
pub(crate) mod applier;
pub(crate) mod apply;
pub(crate) mod checkpoint;
pub(crate) mod commit;
pub(crate) mod decide;
pub(crate) mod group;
pub(crate) mod keeper;
pub(crate) mod mount;
pub(crate) mod open;
pub(crate) mod pending;
pub(crate) mod queues;
pub(crate) mod receive;
pub(crate) mod reclaim;
pub(crate) mod redrive;
pub(crate) mod renewal;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod space;
pub(crate) mod state;
pub(crate) mod stats;
pub(crate) mod survey;
pub(crate) mod wait;
pub(crate) mod waiters;

use applier::Task;
use commit::{Committer, Overlap};
use keeper::Keeper;
use open::{IndexSite, Opened, Site};
use report::{OpenReport, RecoveryProgress};
use wait::Shared;

/// sled writes whole segments of 2 MiB, and needs a few of them.
const LEAST_INDEX_LEN: u64 = 8 * 1024 * 1024;

/// Where sled keeps the index.
struct SledSite(Env);

impl IndexSite for SledSite {
    fn open(&self, dir: &Path, generation: u64) -> Result<Box<dyn Kv>> {
        Ok(Box::new(SledKv::open_watched(Arc::clone(&self.0.fs), &dir.join(generation.to_string()))?))
    }

    fn keep_only(&self, dir: &Path, generation: u64) {
        let keep = generation.to_string();
        for entry in self.0.fs.read_dir(dir).unwrap_or_default() {
            if entry.name != keep && entry.name.parse::<u64>().is_ok() {
                self.discard(&dir.join(entry.name));
            }
        }
    }

    fn least_len(&self) -> u64 {
        LEAST_INDEX_LEN
    }

    fn remove(&self, dir: &Path, generation: u64) {
        self.discard(&dir.join(generation.to_string()));
    }
}

impl SledSite {
    fn discard(&self, dir: &Path) {
        if let Err(error) = SledKv::remove(&*self.0.fs, dir) {
            tracing::warn!(%error, "an index that is not used any more stays on disk");
        }
    }
}

/// The real machine.
pub(crate) fn real_site() -> Site {
    let env = crate::env::os::os_env();
    Site { index: Arc::new(SledSite(env.clone())), env }
}

/// An open store with its threads.
pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) report: OpenReport,
    pub(crate) path: PathBuf,
    thread: Mutex<Option<JoinHandle<()>>>,
    done: watch::Receiver<bool>,
}

impl Engine {
    /// Opens the store in `path` and starts its threads.
    pub(crate) fn open(
        site: &Site,
        path: &Path,
        options: Options,
        progress: &mut dyn FnMut(RecoveryProgress),
    ) -> Result<Self> {
        let opened = open::open(site, path, options, progress)?;
        let shared = Arc::clone(&opened.committer.shared);
        let report = opened.report.clone();
        let nudge = Arc::downgrade(&shared);
        site.env.clock.on_advance(Arc::new(move || {
            if let Some(shared) = nudge.upgrade() {
                shared.nudge();
            }
        }));
        let (finished, done) = watch::channel(false);
        let thread = spawn("reappear-commit", move || {
            run(opened);
            let _ = finished.send(true);
        })?;
        Ok(Self { shared, report, path: path.to_owned(), thread: Mutex::new(Some(thread)), done })
    }

    /// Ends the store: see [`Store::close`](crate::Store::close). Idempotent.
    pub(crate) async fn close(&self, grace: Duration) -> Result<()> {
        self.shared.begin_close(grace);
        let mut done = self.done.clone();
        // The sender goes away only with the thread, which is an end as well.
        let _ = done.wait_for(|done| *done).await;
        if self.shared.has_died() { Err(self.shared.gone()) } else { Ok(()) }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.begin_close(Duration::ZERO);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|e| Error::new(ErrorKind::Io, format!("cannot start a thread: {e}")))
}

/// Runs a thread's body; a panic in it stops the store.
fn guard(shared: &Arc<Shared>, name: &str, body: impl FnOnce()) {
    if let Err(panic) = std::panic::catch_unwind(AssertUnwindSafe(body)) {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        shared.set_died(Error::new(ErrorKind::Poisoned, format!("the {name} thread panicked: {text}")));
    }
}

/// The committer's thread: everything of the store lives and ends in it.
fn run(opened: Opened) {
    let Opened { mut committer, applier, lock, .. } = opened;
    let shared = Arc::clone(&committer.shared);
    let tasks = Arc::clone(&committer.tasks);
    let keeper = Arc::new(Keeper::new(Arc::clone(&shared)));
    let syncer = committer.log.syncer();
    let helpers = start_helpers(&committer, applier, &keeper);
    match &helpers {
        Ok(_) => {
            committer.overlap = Overlap::Crowd;
            guard(&shared, "committer", || committer.run());
        }
        Err(error) => shared.set_died(error.clone()),
    }
    tasks.push(Task::Stop);
    keeper.stop();
    syncer.stop();
    drop(committer);
    for helper in helpers.into_iter().flatten() {
        let _ = helper.join();
    }
    drop(lock);
    shared.set_closed();
}

fn start_helpers(
    committer: &Committer,
    applier: applier::Applier,
    keeper: &Arc<Keeper>,
) -> Result<[JoinHandle<()>; 3]> {
    let shared = || Arc::clone(&committer.shared);
    let (for_applier, for_keeper, for_syncer) = (shared(), shared(), shared());
    let (keeper, syncer, clock) = (Arc::clone(keeper), committer.log.syncer(), Arc::clone(&committer.clock));
    Ok([
        spawn("reappear-apply", move || guard(&for_applier, "applier", || applier.run()))?,
        spawn("reappear-keep", move || guard(&for_keeper, "keeper", || keeper.run()))?,
        spawn("reappear-sync", move || guard(&for_syncer, "syncer", || syncer.run(&*clock, || for_syncer.nudge())))?,
    ])
}

/// The parts of a store whose threads a test steps by hand.
#[cfg(any(test, feature = "testing"))]
pub(crate) struct ByHand {
    pub(crate) committer: commit::Committer,
    pub(crate) applier: applier::Applier,
    finished: watch::Sender<bool>,
    lock: Box<dyn crate::env::LockGuard>,
}

#[cfg(any(test, feature = "testing"))]
impl ByHand {
    /// The store was closed in order, or the process died.
    pub(crate) fn finish(self) {
        let Self { committer, applier, finished, lock, .. } = self;
        let shared = Arc::clone(&committer.shared);
        drop((committer, applier, lock));
        shared.set_closed();
        let _ = finished.send(true);
    }
}

#[cfg(any(test, feature = "testing"))]
impl Engine {
    /// Opens the store in `path` without threads.
    pub(crate) fn open_by_hand(site: &Site, path: &Path, options: Options) -> Result<(Self, ByHand)> {
        let Opened { committer, applier, lock, report } = open::open(site, path, options, &mut |_| {})?;
        let shared = Arc::clone(&committer.shared);
        let (finished, done) = watch::channel(false);
        let engine = Self { shared, report, path: path.to_owned(), thread: Mutex::new(None), done };
        Ok((engine, ByHand { committer, applier, finished, lock }))
    }
}
