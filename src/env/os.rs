//! The real file system and the real clock.
//!
//! # Invariants
//! A file is opened without following a symbolic link in its last component, is closed on exec, and
//! is a regular file: a pipe or a device in its place is an error, and opening it never waits.
//! Interrupted and short reads and writes are continued here, so no caller sees one.
//!
//! # Crashes
//! Nothing is durable before a sync; see [`File`]. A failed sync is handed up once and never
//! repeated: the kernel reports it once, and a second sync succeeds although the data is lost.
//!
//! # Locking
//! Files and file systems have no lock of their own: reads and writes name their offset. The store's
//! lock is flock, tied to the open file: the kernel releases it when the process ends, however it
//! ends, and never while the process is only stopped.
//!
//! # Not here
//! Policy: which file is synced when, what a busy lock means, whether a network disk is acceptable.
#![expect(clippy::disallowed_methods, reason = "the one place that may touch the file system and the time")]

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{Advice, FlockOperation, OFlags};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;
use rustix::time::ClockId;

use super::{Clock, DirEntry, EntryKind, Env, File, Fs, FsInfo, LockGuard, OpenMode, TryLock};
use crate::types::Timestamp;

#[cfg(not(target_os = "linux"))]
compile_error!("reappear is built for Linux: its locks, syncs and clocks are checked there only");

/// Most bytes of a lock file that are read for a message.
const MAX_LOCK_TEXT_LEN: u64 = 4096;
/// How often a lock file that was replaced while it was being locked is opened again.
const MAX_LOCK_TRIES: u32 = 16;
/// How often a directory is gone through again because a file in it went away meanwhile.
const MAX_SYNC_PASSES: u32 = 16;
/// Longest real sleep, so that a suspended machine is noticed soon after it wakes.
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// The machine this process runs on.
pub(crate) fn os_env() -> Env {
    Env { fs: Arc::new(OsFs), clock: Arc::new(OsClock), random: Arc::new(random) }
}

/// The real file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OsFs;

struct OsFile(fs::File);

struct OsLock(fs::File);

/// Reads until `buf` is full, going on after interrupted and short reads.
fn read_fully(
    mut buf: &mut [u8],
    mut offset: u64,
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<()> {
    while !buf.is_empty() {
        let count = match read(buf, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        buf = buf.get_mut(count..).ok_or_else(too_many)?;
        offset = advanced(offset, count)?;
    }
    Ok(())
}

/// Writes all of `buf`, going on after interrupted and short writes.
fn write_fully(
    mut buf: &[u8],
    mut offset: u64,
    mut write: impl FnMut(&[u8], u64) -> io::Result<usize>,
) -> io::Result<()> {
    while !buf.is_empty() {
        let count = match write(buf, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        buf = buf.get(count..).ok_or_else(too_many)?;
        offset = advanced(offset, count)?;
    }
    Ok(())
}

fn too_many() -> io::Error {
    io::Error::other("the system reports more bytes than it was given")
}

fn advanced(offset: u64, count: usize) -> io::Result<u64> {
    u64::try_from(count).ok().and_then(|count| offset.checked_add(count)).ok_or_else(|| Errno::INVAL.into())
}

impl File for OsFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        read_fully(buf, offset, |part, at| self.0.read_at(part, at))
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        write_fully(buf, offset, |part, at| self.0.write_at(part, at))
    }

    /// An interrupted sync is an error like any other: the kernel may have dropped a write error
    /// together with it, so that a repeated sync would succeed with data lost.
    fn sync_data(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.0)?)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    /// Linux starts to write dirty pages when told that they are not needed, and drops from its
    /// cache those of them that are clean by then. sync_file_range would not drop any, but cannot
    /// be called without unsafe code.
    fn start_writeback(&self, offset: u64, len: u64) -> io::Result<()> {
        // Length 0 would mean "to the end of the file".
        let Some(len) = NonZeroU64::new(len) else { return Ok(()) };
        Ok(rustix::fs::fadvise(&self.0, offset, Some(len), Advice::DontNeed)?)
    }

    fn will_need(&self, offset: u64, len: u64) {
        if let Some(len) = NonZeroU64::new(len) {
            // A hint: there is nothing to do when it is refused.
            let _ = rustix::fs::fadvise(&self.0, offset, Some(len), Advice::WillNeed);
        }
    }
}

/// Options that every open shares. Without NONBLOCK the open of a pipe would wait for its other end.
fn open_options() -> fs::OpenOptions {
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let mut options = fs::OpenOptions::new();
    options.read(true).mode(0o600).custom_flags(flags.bits().cast_signed());
    options
}

/// Refuses what is not a regular file.
fn regular(file: fs::File) -> io::Result<fs::File> {
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        Ok(file)
    } else if kind.is_dir() {
        Err(Errno::ISDIR.into())
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    }
}

fn open_dir(path: &Path) -> io::Result<fs::File> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    fs::OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

fn entry(name: &std::ffi::OsStr, meta: &fs::Metadata) -> DirEntry {
    let kind = match meta.file_type() {
        // A name that cannot be said exactly is of nothing we made.
        _ if name.to_str().is_none() => EntryKind::Other,
        kind if kind.is_file() => EntryKind::File,
        kind if kind.is_dir() => EntryKind::Dir,
        _ => EntryKind::Other,
    };
    let len = if kind == EntryKind::File { meta.len() } else { 0 };
    DirEntry { name: name.to_string_lossy().into_owned(), kind, len }
}

/// `None` when what was looked for went away.
fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Fs for OsFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut options = open_options();
        match mode {
            OpenMode::Read => {}
            OpenMode::Write => _ = options.write(true),
            OpenMode::CreateNew => _ = options.write(true).create_new(true),
        }
        Ok(Arc::new(OsFile(regular(options.open(path)?)?)))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for found in fs::read_dir(path)? {
            let found = found?;
            if let Some(meta) = unless_gone(found.metadata())? {
                entries.push(entry(&found.file_name(), &meta));
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::fsync(open_dir(path)?)?)
    }

    fn sync_tree(&self, path: &Path) -> io::Result<()> {
        if fs::symlink_metadata(path)?.is_file() {
            return sync_file(path);
        }
        sync_dir_tree(path)
    }

    fn metadata(&self, path: &Path) -> io::Result<Option<DirEntry>> {
        let meta = unless_gone(fs::symlink_metadata(path))?;
        Ok(meta.map(|meta| entry(path.file_name().unwrap_or(path.as_os_str()), &meta)))
    }

    fn info(&self, path: &Path) -> io::Result<FsInfo> {
        let room = rustix::fs::statvfs(path)?;
        let magic = i128::from(rustix::fs::statfs(path)?.f_type) & 0xFFFF_FFFF;
        Ok(FsInfo { is_network: is_network(magic), available: room.f_bavail.saturating_mul(room.f_frsize) })
    }

    fn try_lock(&self, path: &Path) -> io::Result<TryLock> {
        for _ in 0..MAX_LOCK_TRIES {
            let file = regular(open_options().write(true).create(true).open(path)?)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if is_at(&file, path)? => return Ok(TryLock::Held(Box::new(OsLock(file)))),
                // Somebody removed or replaced the file between open and lock: what was locked is
                // not what the next one will find.
                Ok(()) | Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Ok(TryLock::Busy { text: lock_text(file.as_fd()) }),
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "the lock file is being replaced all the time"))
    }

    fn is_real(&self) -> bool {
        true
    }
}

/// Whether `path` still leads to this open file.
fn is_at(file: &fs::File, path: &Path) -> io::Result<bool> {
    let held = file.metadata()?;
    let found = unless_gone(fs::symlink_metadata(path))?;
    Ok(found.is_some_and(|found| (found.dev(), found.ino()) == (held.dev(), held.ino())))
}

/// What a lock file says, as far as it can be read: it goes into a message and nowhere else.
fn lock_text(file: std::os::fd::BorrowedFd<'_>) -> String {
    let mut bytes = vec![0; usize::try_from(MAX_LOCK_TEXT_LEN).unwrap_or(0)];
    let len = rustix::io::pread(file, &mut bytes, 0).unwrap_or(0);
    String::from_utf8_lossy(bytes.get(..len).unwrap_or_default()).into_owned()
}

impl LockGuard for OsLock {
    fn describe(&self, text: &str) -> io::Result<()> {
        self.0.set_len(0)?;
        write_fully(text.as_bytes(), 0, |part, at| self.0.write_at(part, at))
    }
}

fn sync_file(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::fsync(open_options().open(path)?)?)
}

/// fsync of everything below a directory, links not followed, then of the directory itself.
fn sync_dir_tree(path: &Path) -> io::Result<()> {
    for _ in 0..MAX_SYNC_PASSES {
        let mut is_stable = true;
        for found in fs::read_dir(path)? {
            let found = found?;
            let synced = found.file_type().and_then(|kind| match kind {
                kind if kind.is_dir() => sync_dir_tree(&found.path()),
                kind if kind.is_file() => sync_file(&found.path()),
                _ => Ok(()),
            });
            is_stable &= unless_gone(synced)?.is_some();
        }
        // What went away may be back under another name that was not seen: look again.
        if is_stable {
            return Ok(rustix::fs::fsync(open_dir(path)?)?);
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "files come and go while they are being synced"))
}

/// Whether the file system with this magic number (statfs) lives on other machines, or may: a FUSE
/// file system does not tell.
const fn is_network(magic: i128) -> bool {
    matches!(
        magic,
        0x0000_6969 // NFS
        | 0x0000_517B // SMB
        | 0xFE53_4D42 // SMB2
        | 0xFF53_4D42 // CIFS
        | 0x0102_1997 // 9P
        | 0x6573_5546 // FUSE
        | 0x5346_414F // AFS
        | 0x6B41_4653 // kAFS
        | 0x7375_7245 // Coda
        | 0x00C3_6400 // Ceph
        | 0x0BD0_0BD0 // Lustre
        | 0x0000_564C // NCP
        | 0x0116_1970 // GFS2
        | 0x7461_636F // OCFS2
        | 0x4750_4653 // GPFS
        | 0x1983_0326 // BeeGFS
        | 0x2003_0528 // OrangeFS
        | 0xAAD7_AAEA // PanFS
        | 0x6163_6673 // ACFS
        | 0x786F_4256 // a VirtualBox shared folder
        | 0xBACB_ACBC // a VMware shared folder
    )
}

/// The real clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OsClock;

impl Clock for OsClock {
    /// A wall clock before 1970 reads as 1970.
    fn wall(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    fn boottime(&self) -> Duration {
        Duration::try_from(rustix::time::clock_gettime(ClockId::Boottime)).unwrap_or_default()
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        parse_boot_id(&fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?)
    }

    fn sleep_for(&self, wanted: Duration) -> Duration {
        wanted.min(MAX_SLEEP)
    }

    fn on_advance(&self, _wake: Arc<dyn Fn() + Send + Sync>) {}
}

/// A UUID as text, to its bytes.
fn parse_boot_id(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim_end().chars().filter(|&c| c != '-').collect();
    if digits.len() != 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

/// 16 bytes that no other store has.
fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    loop {
        match rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty()) {
            // Up to 256 bytes come whole or not at all.
            Ok(16) => return bytes,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return random_without_the_system_call(),
        }
    }
}

/// Where getrandom is forbidden (a strict sandbox): the standard library's hash seeds come from the
/// next best source of the system. A store's identity must be unique, not secret.
fn random_without_the_system_call() -> [u8; 16] {
    let draw = |salt: u64| {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u64(salt);
        hasher.write_u128(OsClock.boottime().as_nanos());
        u128::from(hasher.finish())
    };
    (draw(1) << 64 | draw(2)).to_be_bytes()
}

#[cfg(test)]
mod tests;
