//! A simulated machine for tests: a disk in memory that loses what was not synced, a clock that
//! moves when told, and a store whose threads are stepped by hand. Only there with the feature
//! `testing`.
//!
//! ```
//! use reappear::testing::Rig;
//! use std::time::Duration;
//!
//! let rig = Rig::new(1);
//! let store = rig.open();
//! let jobs = store.queue("jobs").unwrap();
//! rig.run(jobs.send("cat.png")).unwrap();
//! let job = rig.run(jobs.receive().one()).unwrap().unwrap();
//! drop(job); // its holder dies
//!
//! rig.power_cut();
//! let store = rig.open();
//! let jobs = store.queue("jobs").unwrap();
//! assert!(rig.run(jobs.receive().one()).unwrap().is_none(), "still hidden");
//! rig.advance(Duration::from_secs(60));
//! assert_eq!(rig.run(jobs.receive().one()).unwrap().unwrap().receive_count(), 2);
//! ```
//!
//! # Not here
//! Nothing a program needs in production.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub use crate::env::sim::{Fault, FaultKind, Image, Loss, ManualClock, Op, SimDisk};

use crate::engine::commit::Overlap;
use crate::engine::open::{IndexSite, Site};
use crate::engine::{ByHand, Engine};
use crate::error::{Error, ErrorKind, Result};
use crate::index::{Kv, MemDisk};
use crate::options::Options;
use crate::store::Store;
use crate::types::Timestamp;

#[doc(hidden)]
pub mod fuzzing;

/// Where a simulated store keeps its index: in memory, by generation, outliving the store.
#[derive(Default)]
struct SimIndex {
    disks: Mutex<BTreeMap<u64, MemDisk>>,
    fails: AtomicBool,
    /// Writes that succeed of an index that is made from now on.
    new_succeed: Mutex<Option<usize>>,
}

impl SimIndex {
    fn disks(&self) -> MutexGuard<'_, BTreeMap<u64, MemDisk>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IndexSite for SimIndex {
    fn open(&self, _: &Path, generation: u64) -> Result<Box<dyn Kv>> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Io, "index: the simulated disk was told to fail"));
        }
        let succeed = *self.new_succeed.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || {
            let disk = MemDisk::new();
            disk.fail_after(succeed);
            disk
        };
        Ok(Box::new(self.disks().entry(generation).or_insert_with(fresh).open()))
    }

    fn keep_only(&self, _: &Path, generation: u64) {
        self.disks().retain(|at, _| *at == generation);
    }

    fn least_len(&self) -> u64 {
        0
    }

    fn remove(&self, _: &Path, generation: u64) {
        self.disks().remove(&generation);
    }
}

/// A machine with one store on it, whose threads run only when they are stepped.
///
/// [`run`](Self::run) steps everything until a call returns; [`step_committer`](Self::step_committer)
/// and [`step_applier`](Self::step_applier) leave the interleaving to the test.
pub struct Rig {
    disk: SimDisk,
    clock: ManualClock,
    index: Arc<SimIndex>,
    options: Mutex<Options>,
    running: Mutex<Option<ByHand>>,
}

impl std::fmt::Debug for Rig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rig").field("path", &self.path()).finish_non_exhaustive()
    }
}

/// Turns without a change after which a call counts as waiting.
const QUIET_TURNS: usize = 4;

/// Rounds of stepping that a call may take: a redrive takes one for each 256 messages.
const MAX_ROUNDS: usize = 200;

impl Rig {
    /// A machine with an empty disk. Everything random in it comes from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            disk: SimDisk::new(seed),
            clock: ManualClock::new(Timestamp::from_millis(1_700_000_000_000)),
            index: Arc::default(),
            options: Mutex::new(Options::new().segment_len(4096)),
            running: Mutex::new(None),
        }
    }

    /// The options with which the store is opened from now on. Default: segments of 4 KiB.
    pub fn set_options(&self, options: Options) {
        *self.options.lock().unwrap_or_else(PoisonError::into_inner) = options;
    }

    /// The disk, to break it.
    #[must_use]
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// The store's directory on the simulated disk.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from("/store")
    }

    fn site(&self) -> Site {
        let index: Arc<dyn IndexSite> = Arc::clone(&self.index) as _;
        Site { env: self.disk.env(&self.clock), index }
    }

    fn current_options(&self) -> Options {
        self.options.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn running(&self) -> MutexGuard<'_, Option<ByHand>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the store, to be stepped by hand.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn try_open(&self) -> Result<Store> {
        let (engine, by_hand) = Engine::open_by_hand(&self.site(), &self.path(), self.current_options())?;
        *self.running() = Some(by_hand);
        Ok(Store { engine: Arc::new(engine) })
    }

    /// Opens the store.
    ///
    /// # Panics
    /// When it does not open.
    #[must_use]
    pub fn open(&self) -> Store {
        match self.try_open() {
            Ok(store) => store,
            Err(error) => panic!("the store does not open: {error}"),
        }
    }

    /// Opens the store on the simulated disk and clock, but with threads of its own.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_threaded(&self) -> Result<Store> {
        let engine = Engine::open(&self.site(), &self.path(), self.current_options(), &mut |_| {})?;
        Ok(Store { engine: Arc::new(engine) })
    }

    /// Lets the committer do what there is to do. Returns when it wants to be called again at the
    /// latest; `None` when the store is closed.
    pub fn step_committer(&self) -> Option<Duration> {
        let mut running = self.running();
        let turn = running.as_mut()?.committer.turn();
        if turn.done {
            if let Some(by_hand) = running.take() {
                by_hand.finish();
            }
            return None;
        }
        Some(turn.wake_in)
    }

    /// Lets the applier do what there is to do.
    pub fn step_applier(&self) {
        if let Some(by_hand) = self.running().as_mut() {
            by_hand.applier.turn();
        }
    }

    /// Syncs what was written, if the committer has left that to the syncer: see [`overlap`](Self::overlap).
    pub fn step_syncer(&self) {
        if let Some(by_hand) = self.running().as_mut() {
            by_hand.committer.log.syncer().step(&self.clock);
        }
    }

    /// From now on, until the store is opened again, syncs are left to the syncer.
    pub fn overlap(&self) {
        if let Some(by_hand) = self.running().as_mut() {
            by_hand.committer.overlap = Overlap::Always;
        }
    }

    /// Makes the next segment ready.
    pub fn step_keeper(&self) {
        if let Some(by_hand) = self.running().as_mut() {
            by_hand.committer.shared.space.make_spare();
        }
    }

    /// Steps until nothing changes any more.
    pub fn settle(&self) {
        for _ in 0..QUIET_TURNS {
            self.step_syncer();
            while self.step_committer() == Some(Duration::ZERO) {}
            self.step_applier();
        }
    }

    /// Polls a call once, without stepping.
    pub fn poll<F: Future + Unpin>(&self, call: &mut F) -> Option<F::Output> {
        match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// Steps everything until the call returns; `None` when it waits for something that stepping
    /// alone does not bring, such as the clock.
    pub fn try_run<F: Future>(&self, call: F) -> Option<F::Output> {
        let mut call = pin!(call);
        for _ in 0..MAX_ROUNDS {
            if let Poll::Ready(output) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return Some(output);
            }
            self.settle();
            if let Poll::Ready(output) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return Some(output);
            }
        }
        None
    }

    /// Steps everything until the call returns.
    ///
    /// # Panics
    /// When it never returns: it waits for the clock, or hangs.
    #[track_caller]
    pub fn run<F: Future>(&self, call: F) -> F::Output {
        match self.try_run(call) {
            Some(output) => output,
            None => panic!("the call does not return"),
        }
    }

    /// Moves the clock and lets everything happen that is due.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
        self.settle();
    }

    /// The process dies: what was written stays, synced or not.
    pub fn kill(&self) {
        self.disk.kill();
        self.end();
    }

    /// The power fails: everything not synced is lost, kept or torn, sector by sector, by the seed.
    pub fn power_cut(&self) {
        self.power_cut_with(Loss::RandomSectors);
    }

    /// The power fails, losing what `loss` says.
    pub fn power_cut_with(&self, loss: Loss) {
        self.disk.power_cut_with(loss);
        self.clock.reboot();
        for disk in self.index.disks().values() {
            // What a machine crash leaves of the index is worth nothing; as much as possible is
            // kept here, so that using it would be noticed.
            disk.cut_power(disk.unsynced());
        }
        self.end();
    }

    /// The index is gone: the next open must build it anew.
    pub fn lose_index(&self) {
        self.index.disks().clear();
    }

    /// Breaks the rows of the index in place.
    pub fn damage_index(&self, mut damage: impl FnMut(&mut BTreeMap<Vec<u8>, Vec<u8>>)) {
        for disk in self.index.disks().values() {
            disk.damage(&mut damage);
        }
    }

    /// Lets the index on disk fail after this many more writes; `None`: not any more.
    pub fn fail_index_after(&self, writes: Option<usize>) {
        for disk in self.index.disks().values() {
            disk.fail_after(writes);
        }
    }

    /// Lets each index that is made from now on fail after so many writes; `None`: not any more.
    pub fn fail_new_index_after(&self, writes: Option<usize>) {
        *self.index.new_succeed.lock().unwrap_or_else(PoisonError::into_inner) = writes;
    }

    /// Lets every index on disk fail, also one that would be made now; or not any more.
    pub fn fail_index(&self, fail: bool) {
        self.index.fails.store(fail, Ordering::Relaxed);
        self.fail_index_after(fail.then_some(0));
    }

    fn end(&self) {
        if let Some(by_hand) = self.running().take() {
            by_hand.finish();
        }
    }
}
