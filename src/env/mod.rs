//! The machine as the store sees it: files, directories, locks and clocks behind three traits.
//!
//! [`os`] is the real one, [`sim`] a disk in memory that can lose what was not synced and a clock
//! that moves when told; [`store_clock`] counts a store's time. Nothing outside `env/os.rs` touches
//! the file system or reads the time.
//!
//! # Durability
//! Nothing is durable before a sync. [`File::sync_data`] makes the file's bytes and length durable;
//! [`Fs::sync_dir`] makes the creations, renames and removals in one directory durable. A file that
//! was created and synced may still be gone after a crash if its directory was not synced.
//!
//! # Not here
//! sled does its own I/O. That is why durability never rests on it (`docs/design.md`).

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(crate) mod os;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod sim;
pub(crate) mod store_clock;

use crate::types::Timestamp;

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OpenMode {
    /// Read only; the file must exist.
    Read,
    /// Read and write; the file must exist.
    Write,
    /// Read and write; the file must not exist yet.
    CreateNew,
}

/// One open file. All methods may be called from several threads at once.
pub(crate) trait File: Send + Sync {
    /// Reads exactly `buf.len()` bytes at `offset`. Retries interrupted and short reads.
    /// `UnexpectedEof` when the file ends before.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `buf` at `offset`, extending the file where needed. Retries interrupted and
    /// short writes. After an error any part of `buf` may have been written. Not durable.
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// fdatasync: when it returns `Ok`, every byte written before and the file's length are
    /// durable. After an error nothing is known, and a second call may succeed although data is
    /// lost: the caller must never retry.
    fn sync_data(&self) -> io::Result<()>;

    /// The file's length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Cuts or extends (with zeros) the file. Not durable.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Starts write-back of `len` bytes at `offset` without waiting for it, where the system can.
    /// A hint: nothing is durable by it.
    fn start_writeback(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Tells the system to bring these bytes into memory. A hint.
    fn will_need(&self, offset: u64, len: u64);
}

/// A held lock; released when dropped, and by the system when the process ends however it ends.
pub(crate) trait LockGuard: Send + Sync {
    /// Replaces the text in the lock file: for messages to people only, it decides nothing.
    fn describe(&self, text: &str) -> io::Result<()>;
}

/// What [`Fs::try_lock`] found.
pub(crate) enum TryLock {
    Held(Box<dyn LockGuard>),
    /// Somebody else holds it; what its file says.
    Busy {
        text: String,
    },
}

/// What a directory entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EntryKind {
    File,
    Dir,
    /// A symbolic link, a device, a socket …: never followed, never touched.
    Other,
}

/// One directory entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DirEntry {
    pub(crate) name: String,
    pub(crate) kind: EntryKind,
    pub(crate) len: u64,
}

/// What is known of the file system under a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FsInfo {
    /// A network file system (NFS, SMB, 9p, FUSE over a network …): locks and syncs are not what
    /// they are locally.
    pub(crate) is_network: bool,
    /// Bytes an unprivileged process can still write.
    pub(crate) available: u64,
}

/// The file system. Paths are absolute or relative to the process's directory. Symbolic links are
/// not followed for the last component of a file that is opened.
pub(crate) trait Fs: Send + Sync {
    /// `CreateNew`: the new file's mode is 0600. Its directory entry is not durable before
    /// [`sync_dir`](Self::sync_dir).
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>>;

    /// Creates one directory with mode 0700; its parent must exist. `AlreadyExists` when it does.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Renames a file or directory in place, replacing a file at `to`. Atomic; not durable before
    /// the parent directories are synced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file. Not durable before its directory is synced.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory and everything in it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// The entries of a directory, sorted by name. Names that are not UTF-8 are shown lossily and
    /// never touched.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>>;

    /// Makes the entries of a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// fsync of every file and directory below `path`, and of `path` itself.
    fn sync_tree(&self, path: &Path) -> io::Result<()>;

    /// What stands at `path`; `None` when nothing does. Does not follow a symbolic link.
    fn metadata(&self, path: &Path) -> io::Result<Option<DirEntry>>;

    /// What is known of the file system under `path`.
    fn info(&self, path: &Path) -> io::Result<FsInfo>;

    /// Takes an advisory lock on `path` (flock), creating the file with mode 0600 if it is
    /// missing. Never waits. Whether the file exists and what it says decides nothing.
    fn try_lock(&self, path: &Path) -> io::Result<TryLock>;

    /// Whether this is the real file system, so that sled, which does its own I/O, can live on it.
    fn is_real(&self) -> bool;
}

/// Time. Both readings are raw; [`store_clock`] makes the store's clock of them.
pub(crate) trait Clock: Send + Sync {
    /// The wall clock. May step in either direction at any time.
    fn wall(&self) -> Timestamp;

    /// Time since some fixed moment of this boot, suspended time included (CLOCK_BOOTTIME). Never
    /// goes back while the machine runs.
    fn boottime(&self) -> Duration;

    /// Identifies this boot of the machine; `None` when it cannot be told.
    fn boot_id(&self) -> Option<[u8; 16]>;

    /// How long a thread may really sleep when it wants to be woken after `wanted` of this clock's
    /// time. The real clock answers with at most a second, so that suspension is noticed.
    fn sleep_for(&self, wanted: Duration) -> Duration;

    /// Calls `wake` whenever the clock was moved by hand. The real clock never calls it.
    fn on_advance(&self, wake: Arc<dyn Fn() + Send + Sync>);
}

/// Everything of the outside that a store is given.
#[derive(Clone)]
pub(crate) struct Env {
    pub(crate) fs: Arc<dyn Fs>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Random bytes for a new store's identity.
    pub(crate) random: Arc<dyn Fn() -> [u8; 16] + Send + Sync>,
}
