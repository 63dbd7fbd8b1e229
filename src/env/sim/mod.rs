//! A disk in memory that loses exactly what was not synced, and a clock that moves when told.
//!
//! ```text
//!  SimFs, SimFile, SimLock (one generation: one life of the process)
//!        │ every call: dead? fault? then
//!        ▼
//!  tree: names as they are now │ names on the disk │ changes in between, in order
//!        ▼
//!  content: bytes as they are now │ bytes on the disk │ sectors in between
//! ```
//!
//! # Invariants
//! The same seed and the same calls give the same outcome. Nothing but a sync, a power cut's luck or
//! the `_raw` methods moves anything to the disk.
//!
//! # Crashes
//! [`SimDisk::kill`]: the process dies, all that was written stays, synced or not, and is still not
//! synced. [`SimDisk::power_cut`]: the machine dies. Of each file, each sector written since its
//! last sync is kept, lost or torn on its own, and the length is the old one, the new one or one in
//! between. Of each directory, the changes since its last sync are kept up to some point; a rename
//! between two directories happens in both or in neither. What is left is then on the disk.
//!
//! # Locking
//! One mutex around everything. It is never held while foreign code runs.
//!
//! # Not here
//! Links, permissions, users. Files share no blocks, so nobody sees another file's old bytes.

mod clock;
mod content;
mod fault;
mod fs;
mod rng;
mod tree;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Env, Fs};
use fault::Faults;
use rng::Rng;
use tree::Tree;

pub use clock::ManualClock;
pub use fault::{Fault, FaultKind, Op};

/// What a simulated disk says is free when no capacity is set: 1 TiB.
const UNLIMITED: u64 = 1 << 40;

/// What happens in a power cut to what was not synced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// All of it is lost.
    All,
    /// None of it is lost.
    Nothing,
    /// Any part of it is lost; a sector may be torn at any byte.
    Random,
    /// Any part of it is lost, but a sector of 512 bytes is kept or lost as a whole, as most disks
    /// promise.
    RandomSectors,
}

/// A disk in memory, to try what crashes and faults do. Clones are the same disk.
///
/// A disk has generations: one for each life of the process that uses it. [`kill`](Self::kill),
/// [`power_cut`](Self::power_cut) and [`restore`](Self::restore) end a generation. What was opened
/// in it stays dead, so that left-over threads of a store that "died" change nothing any more.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

/// All that stands on a disk, synced or not, at one moment.
#[derive(Clone)]
pub struct Image(Tree);

struct State {
    tree: Tree,
    /// Decides the outcome of crashes and faults.
    luck: Rng,
    /// Makes the random bytes of `Env`, so that their use does not change the outcome of crashes.
    ids: Rng,
    generation: u64,
    /// A `Crash` fault struck: nothing works before the next generation.
    is_dead: bool,
    faults: Faults,
    locks: fs::Locks,
    capacity: Option<u64>,
    is_network: bool,
    lies_about_sync: bool,
}

impl State {
    fn new(tree: Tree, seed: u64) -> Self {
        let mut luck = Rng::new(seed);
        let ids = Rng::new(luck.next());
        Self {
            tree,
            luck,
            ids,
            generation: 0,
            is_dead: false,
            faults: Faults::default(),
            locks: fs::Locks::default(),
            capacity: None,
            is_network: false,
            lies_about_sync: false,
        }
    }

    fn end_generation(&mut self) {
        self.generation += 1;
        self.is_dead = false;
        self.locks = fs::Locks::default();
    }

    fn available(&self) -> u64 {
        self.capacity.map_or(UNLIMITED, |capacity| capacity.saturating_sub(self.tree.used()))
    }
}

impl SimDisk {
    /// An empty disk with a root directory, `/`. Paths are absolute or relative to it.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::of(State::new(Tree::new(), seed))
    }

    fn of(state: State) -> Self {
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A test that panicked in between is failing anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An environment of the present generation with this disk and that clock.
    pub(crate) fn env(&self, clock: &ManualClock) -> Env {
        let disk = self.clone();
        let random = move || disk.lock().ids.bytes16();
        Env { fs: self.fs(), clock: Arc::new(clock.clone()), random: Arc::new(random) }
    }

    /// The file system, for the present generation: after a crash take a new one.
    pub(crate) fn fs(&self) -> Arc<dyn Fs> {
        Arc::new(fs::SimFs::new(self.clone(), self.lock().generation))
    }

    /// The process dies. What it wrote stays, whether it was synced or not, and is still unsynced;
    /// its handles and locks are gone.
    pub fn kill(&self) {
        let mut state = self.lock();
        state.end_generation();
        state.tree.close_all();
    }

    /// The machine loses power: as [`power_cut_with`](Self::power_cut_with)`(Loss::Random)`.
    pub fn power_cut(&self) {
        self.power_cut_with(Loss::Random);
    }

    /// The machine loses power. Handles and locks are gone; of what was not synced, `loss` decides
    /// what is left; what is left is synced.
    pub fn power_cut_with(&self, loss: Loss) {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.end_generation();
        state.tree.cut(loss, &mut state.luck);
    }

    /// Arms a fault. Several can be armed; each counts all calls it matches, and the first armed
    /// that is due strikes.
    pub fn fail(&self, fault: Fault) {
        self.lock().faults.arm(fault, None);
    }

    /// Arms a fault for calls whose path contains `part`.
    pub fn fail_on(&self, part: &str, fault: Fault) {
        self.lock().faults.arm(fault, Some(part.to_owned()));
    }

    /// Disarms all faults. A disk that is dead by a `Crash` stays dead until it is restarted.
    pub fn clear_faults(&self) {
        self.lock().faults.clear();
    }

    /// How many calls of this kind were made so far, those that faults struck included.
    /// [`Op::Any`]: calls of all kinds.
    #[must_use]
    pub fn calls(&self, op: Op) -> u64 {
        self.lock().faults.calls(op)
    }

    /// How many faults struck so far.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.lock().faults.injected()
    }

    /// Whether a `Crash` fault struck and the disk was not restarted since.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.lock().is_dead
    }

    /// Whether syncs do nothing and say `Ok`, like a drive that ignores them.
    pub fn lie_about_sync(&self, lie: bool) {
        self.lock().lies_about_sync = lie;
    }

    /// Most bytes that all files together can have; `None`: no limit. Files that are too long
    /// already stay as they are.
    pub fn set_capacity(&self, capacity: Option<u64>) {
        self.lock().capacity = capacity;
    }

    /// Whether the disk calls itself a network file system.
    pub fn set_network(&self, is_network: bool) {
        self.lock().is_network = is_network;
    }

    /// A file's bytes as a reader sees them; `None` when there is no such file.
    #[must_use]
    pub fn read_raw(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        self.lock().tree.read_raw(path.as_ref())
    }

    /// Puts a file on the disk, synced, with its directories; what it held is replaced, in open
    /// handles too. Works past faults and capacity.
    ///
    /// # Panics
    /// When a directory stands at `path`, or a file in its way.
    pub fn write_raw(&self, path: impl AsRef<Path>, bytes: impl Into<Vec<u8>>) {
        let path = path.as_ref();
        let done = self.lock().tree.write_raw(path, bytes.into());
        assert!(done.is_ok(), "can not write {} raw: {done:?}", path.display());
    }

    /// Takes a file or a directory with all it holds off the disk. Whether there was one.
    pub fn remove_raw(&self, path: impl AsRef<Path>) -> bool {
        self.lock().tree.remove_raw(path.as_ref())
    }

    /// All files with their lengths, sorted by path.
    #[must_use]
    pub fn list_raw(&self) -> Vec<(PathBuf, u64)> {
        let state = self.lock();
        state.tree.files().into_iter().map(|(path, bytes)| (path, bytes.len() as u64)).collect()
    }

    /// All that is on the disk now, synced or not.
    #[must_use]
    pub fn snapshot(&self) -> Image {
        Image(self.lock().tree.clone())
    }

    /// Puts the disk back to an image. Ends the generation.
    pub fn restore(&self, image: &Image) {
        let mut state = self.lock();
        state.end_generation();
        state.tree = image.0.clone();
        state.tree.close_all();
    }

    /// A disk of its own with the same contents, synced and unsynced, the same capacity and manners,
    /// no faults and no handles: to try several outcomes of a crash from one moment.
    #[must_use]
    pub fn fork(&self, seed: u64) -> Self {
        let state = self.lock();
        let mut fork = State::new(state.tree.clone(), seed);
        fork.tree.close_all();
        fork.capacity = state.capacity;
        fork.is_network = state.is_network;
        fork.lies_about_sync = state.lies_about_sync;
        Self::of(fork)
    }

    /// How many open files there are, locks included.
    #[cfg(test)]
    pub(crate) fn open_count(&self) -> usize {
        self.lock().tree.open_count()
    }

    /// A hash of all paths and bytes as a reader sees them. Equal contents have equal hashes, on
    /// every machine.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.lock().tree.hash()
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("SimDisk")
            .field("generation", &state.generation)
            .field("is_dead", &state.is_dead)
            .field("files", &state.tree.files().len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("files", &self.0.files().len()).finish_non_exhaustive()
    }
}

/// The error of every call on a disk of an ended generation, or after a `Crash`.
fn dead() -> io::Error {
    io::Error::other("process is dead: the simulated disk was killed or cut; take a new environment from it")
}

#[cfg(test)]
mod tests;
