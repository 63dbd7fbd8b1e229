//! The index's rows in sled: the only place that names it.
//!
//! # Invariants
//! sled is trusted with speed only. One transaction and a `flush()` for each commit; durability by fsyncs
//! of our own; no call inside a transaction but to the transaction; nothing that spawns, watches or
//! generates; every call behind a wall that turns a panic into an error.
//!
//! # Crashes
//! A process that dies leaves whole commits. A machine that dies may leave anything: the caller then does
//! not open what is there. After an error or a panic sled is not touched again and not even dropped: it
//! may hang, and a lock it holds is one of a directory that is never used again.
//!
//! # Locking
//! One process-wide lock inside sled serves all its databases. So an index makes one call at a time, and after
//! one that hung, sled is never opened again in this process: the lock may be held for ever.
//!
//! # Not here
//! How a call that never returns is told from a slow one: `watched.rs`.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ::sled::transaction::TransactionError;
use ::sled::{Config, Db, IVec, Mode};

use super::kv::{Kv, MAX_VALUE_LEN, Writes};
use super::watched::Watched;
use crate::env::{Fs, OpenMode, TryLock};
use crate::error::{Error, ErrorKind, Result};

/// Memory for sled's own pages.
const CACHE_LEN: u64 = 32 * 1024 * 1024;
/// A node of sled holds up to 16 rows, and a node above a quarter of a segment goes to a file of its own.
const SEGMENT_LEN: usize = 2 * 1024 * 1024;
/// About half a second, when nothing else wants the processor.
const MAX_LOCK_TRIES: usize = 100_000;

/// A call that takes longer is one that never ends.
const LIMIT: Duration = Duration::from_secs(60);
/// Whether a call never ended.
static HUNG: AtomicBool = AtomicBool::new(false);

/// A [`Kv`] in a directory of the real file system.
pub(crate) struct SledKv {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    /// Or why sled is not touched any more.
    db: Result<Db>,
}

impl SledKv {
    /// Opens or creates the store in `dir`, whose parent is created as well if it is missing.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) when `fs` is not the real file system; else the
    /// file system's error or whatever sled fails with, as [`Io`](ErrorKind::Io) or
    /// [`Corrupt`](ErrorKind::Corrupt).
    pub(crate) fn open(fs: Arc<dyn Fs>, dir: &Path) -> Result<Self> {
        if !fs.is_real() {
            return Err(Error::new(ErrorKind::Unsupported, "index: sled needs a real file system"));
        }
        for dir in dir.parent().into_iter().chain([dir]) {
            match fs.create_dir(dir) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(Error::io("index: create", dir, error));
                }
                _ => {}
            }
        }
        remove_unfinished_snapshots(&*fs, dir)?;
        wait_until_closed(&*fs, dir)?;
        let config = Config::new()
            .path(dir)
            .cache_capacity(CACHE_LEN)
            .segment_size(SEGMENT_LEN)
            .flush_every_ms(None)
            .mode(Mode::HighThroughput);
        let db = guard("open", dir, || config.open())?;
        Ok(Self { fs, dir: dir.to_owned(), db: Ok(db) })
    }

    /// As [`open`](Self::open), with a watchdog over this and every later call.
    ///
    /// # Errors
    /// As `open`, and [`Io`](ErrorKind::Io) when sled does not answer, or did not earlier in this process.
    pub(crate) fn open_watched(fs: Arc<dyn Fs>, dir: &Path) -> Result<Watched> {
        let dir = dir.to_owned();
        Watched::open(LIMIT, &HUNG, move || Ok(Box::new(Self::open(fs, &dir)?)))
    }

    /// Removes the store in `dir`, which is not open, or failed and is not used any more. Nothing there is fine.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn remove(fs: &dyn Fs, dir: &Path) -> Result<()> {
        let failed = |error| Error::io("index: remove", dir, error);
        if fs.metadata(dir).map_err(failed)?.is_none() {
            return Ok(());
        }
        // One that failed is still open, and would keep its room as long as the process lives.
        for entry in fs.read_dir(dir).unwrap_or_default() {
            if let Ok(file) = fs.open(&dir.join(entry.name), OpenMode::Write) {
                let _ = file.set_len(0);
            }
        }
        fs.remove_dir_all(dir).map_err(failed)?;
        dir.parent().map_or(Ok(()), |parent| fs.sync_dir(parent)).map_err(failed)
    }

    /// Makes a call of sled, unless an earlier one failed.
    fn call<T>(&mut self, what: &str, call: impl FnOnce(&Db) -> ::sled::Result<T>) -> Result<T> {
        let db = self.db.as_ref().map_err(Error::clone)?;
        let result = guard(what, &self.dir, || call(db));
        if let Err(error) = &result {
            // Dropping it would flush it, which may hang or panic.
            std::mem::forget(std::mem::replace(&mut self.db, Err(error.clone())));
        }
        result
    }
}

/// sled writes a snapshot under such a name first; one that a full disk cut short makes every later open
/// fail as corrupt.
fn remove_unfinished_snapshots(fs: &dyn Fs, dir: &Path) -> Result<()> {
    let entries = fs.read_dir(dir).map_err(|error| Error::io("index: list", dir, error))?;
    for entry in entries.iter().filter(|entry| entry.name.starts_with("snap.") && entry.name.ends_with(".generating")) {
        let path = dir.join(&entry.name);
        fs.remove_file(&path).map_err(|error| Error::io("index: remove", &path, error))?;
    }
    Ok(())
}

/// Waits for sled's own threads: after a `Db` is dropped they can hold its file for a moment, and sled, which
/// never waits for a lock, would refuse to open it again.
fn wait_until_closed(fs: &dyn Fs, dir: &Path) -> Result<()> {
    let file = dir.join("db");
    let failed = |error| Error::io("index: lock", &file, error);
    if fs.metadata(&file).map_err(failed)?.is_none() {
        return Ok(());
    }
    for _ in 0..MAX_LOCK_TRIES {
        match fs.try_lock(&file).map_err(failed)? {
            TryLock::Held(_) => return Ok(()),
            TryLock::Busy { .. } => std::thread::yield_now(),
        }
    }
    Err(Error::new(ErrorKind::Io, format!("index: {} is open somewhere else", dir.display())))
}

/// Runs `call`; an error or a panic of sled comes back as ours.
fn guard<T>(what: &str, dir: &Path, call: impl FnOnce() -> ::sled::Result<T>) -> Result<T> {
    // Whatever a panic left half done is never looked at again: the caller drops what it has.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| failure(what, dir, error)),
        Err(panicked) => {
            let text = panicked.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panicked.downcast_ref::<&str>().copied()).unwrap_or("no text");
            let kind = if is_full(text) { ErrorKind::Full } else { ErrorKind::Io };
            Err(Error::new(kind, format!("index: {what} {}: sled panicked: {text}", dir.display())))
        }
    }
}

/// An error of sled as ours.
fn failure(what: &str, dir: &Path, error: ::sled::Error) -> Error {
    let is_full = is_full(&format!("{error:?}"));
    let kind = match error {
        ::sled::Error::Io(error) => {
            let error = if is_full { io::Error::new(io::ErrorKind::StorageFull, error) } else { error };
            return Error::io(&format!("index: {what}"), dir, error);
        }
        _ if is_full => ErrorKind::Full,
        ::sled::Error::Corruption { .. } => ErrorKind::Corrupt,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("index: {what} {}: {error}", dir.display()))
}

/// Whether an error's text, as a person or as the debugger would see it, tells of a full disk or quota. sled
/// gives one thread's error to another, and to whoever panics, as text.
fn is_full(text: &str) -> bool {
    const SIGNS: [&str; 8] = [
        "StorageFull",
        "QuotaExceeded",
        "No space left on device",
        "Disk quota exceeded",
        "os error 28)",
        "os error 122)",
        "code: 28,",
        "code: 122,",
    ];
    SIGNS.iter().any(|sign| text.contains(sign))
}

impl Drop for SledKv {
    fn drop(&mut self) {
        if let Ok(db) = std::mem::replace(&mut self.db, Err(Error::closed())) {
            // What it could not flush is in the log.
            let _ = guard("close", &self.dir, || {
                drop(db);
                Ok(())
            });
        }
    }
}

impl Kv for SledKv {
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.call("read", |db| db.get(key))?.map(|value| value.to_vec()))
    }

    fn scan(&mut self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.call("scan", |db| {
            for row in db.range(from..to) {
                let (key, value) = row?;
                if !visit(&key, &value) {
                    break;
                }
            }
            Ok(())
        })
    }

    fn commit(&mut self, writes: &Writes) -> Result<()> {
        let longest = writes.iter().filter_map(|(_, value)| value.as_ref()).map(Vec::len).max().unwrap_or(0);
        assert!(longest <= MAX_VALUE_LEN, "a row of {longest} bytes; sled would not keep it in its file");
        let writes: Vec<(IVec, Option<IVec>)> =
            writes.iter().map(|(key, value)| (IVec::from(key.as_slice()), value.as_deref().map(IVec::from))).collect();
        self.call("commit to", |db| {
            let done: Result<(), TransactionError<std::convert::Infallible>> = db.transaction(|rows| {
                for (key, value) in &writes {
                    match value {
                        Some(value) => rows.insert(key.clone(), value.clone())?,
                        None => rows.remove(key.clone())?,
                    };
                }
                Ok(())
            });
            match done {
                Ok(()) => {}
                Err(TransactionError::Storage(error)) => return Err(error),
                Err(TransactionError::Abort(never)) => match never {},
            }
            // Without it sled's unwritten work grows until it hangs.
            db.flush().map(|_| ())
        })
    }

    fn sync(&mut self) -> Result<()> {
        self.call("flush", |db| db.flush().map(|_| ()))?;
        let synced = self.fs.sync_tree(&self.dir);
        let synced = synced.and_then(|()| self.dir.parent().map_or(Ok(()), |parent| self.fs.sync_dir(parent)));
        synced.map_err(|error| Error::io("index: sync", &self.dir, error))
    }

    fn len_on_disk(&self) -> u64 {
        let Ok(db) = &self.db else { return 0 };
        guard("measure", &self.dir, || db.size_on_disk()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(error: ::sled::Error) -> ErrorKind {
        failure("read", Path::new("index/1"), error).kind()
    }

    fn kind_of_panic(panic: impl FnOnce()) -> ErrorKind {
        let failed = guard("read", Path::new("index/1"), || {
            panic();
            Ok(())
        });
        failed.unwrap_err().kind()
    }

    #[test]
    fn a_full_disk_or_quota_is_full_in_whatever_form_sled_tells_of_it() {
        for number in [28, 122] {
            let error = || io::Error::from_raw_os_error(number);
            let text = error().to_string();
            for error in [
                ::sled::Error::Io(error()),
                ::sled::Error::Io(error()).clone(),
                ::sled::Error::Io(error()).clone().clone(),
                ::sled::Error::Io(io::Error::other(error())),
                ::sled::Error::Io(io::Error::other(text.clone())),
                ::sled::Error::Io(io::Error::new(io::ErrorKind::InvalidData, text.clone())),
                ::sled::Error::ReportableBug(format!("cannot write: {text}")),
                ::sled::Error::Unsupported(format!("{:?}", error())),
            ] {
                assert_eq!(kind_of(error.clone()), ErrorKind::Full, "{error:?}");
                assert_eq!(kind_of_panic(|| panic!("it failed: {error:?}")), ErrorKind::Full, "{error:?}");
                assert_eq!(kind_of_panic(|| panic!("sled: {error}")), ErrorKind::Full, "{error}");
            }
        }
        assert_eq!(kind_of_panic(|| panic!("No space left on device (os error 28)")), ErrorKind::Full);
    }

    #[test]
    fn other_errors_of_sled_are_damage_or_the_systems() {
        assert_eq!(kind_of(::sled::Error::Corruption { at: None, bt: () }), ErrorKind::Corrupt);
        for number in [5, 12, 13, 24, 27, 128] {
            assert_eq!(kind_of(::sled::Error::Io(io::Error::from_raw_os_error(number))), ErrorKind::Io);
        }
        assert_eq!(kind_of(::sled::Error::ReportableBug("a bug".to_owned())), ErrorKind::Io);
        assert_eq!(kind_of_panic(|| panic!("a bug")), ErrorKind::Io);
        assert_eq!(kind_of_panic(|| std::panic::panic_any(28)), ErrorKind::Io);
    }
}
