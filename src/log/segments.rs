//! The table of segments: reading records by position from any thread, and removing what is not
//! needed any more.
//!
//! # Locking
//! One `RwLock` over the table, one over the open files, held for a look-up only; reads happen outside them.
//! The table's may be taken inside the other, never the other way round. Files are opened when first read;
//! when many are open, those of sealed segments are closed again. What is removed is closed.
//!
//! # Crashes
//! Segments go from the front, in order, each unlinked only after a durable checkpoint made it
//! unnecessary. A crash in between leaves some of them; recovery removes them again.
//!
//! # Not here
//! Which segments are not needed: `engine/reclaim.rs`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::env::{File, Fs, OpenMode};
use crate::error::{Damage, Error, Result};
use crate::types::{Lsn, Position};

use super::format::SEGMENT_HEADER_LEN;

/// Files kept open at most: a process may often have no more than 256, for everything it does.
pub(super) const MAX_OPEN_COUNT: usize = 64;

/// The file name of the segment that begins with `base`.
pub(super) fn segment_name(base: Lsn) -> String {
    format!("{base:020}.seg")
}

/// What is known of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentInfo {
    pub(crate) number: u32,
    pub(crate) first_lsn: Lsn,
    /// `None` while it holds no record.
    pub(crate) last_lsn: Option<Lsn>,
    /// Bytes of the file.
    pub(crate) len: u64,
    /// Bytes from its start to the end of its last frame.
    pub(crate) used: u64,
    pub(crate) sealed: bool,
}

pub(super) struct Segment {
    number: u32,
    base: Lsn,
    path: PathBuf,
    len: AtomicU32,
    used: AtomicU32,
    next_lsn: AtomicU64,
    sealed: AtomicBool,
}

impl Segment {
    /// Frames now end at `used`; the next record is `next`.
    pub(super) fn advance(&self, used: u32, next: Lsn) {
        self.next_lsn.store(next.0, Ordering::Release);
        self.used.store(used, Ordering::Release);
    }

    pub(super) fn set_len(&self, len: u32) {
        self.len.store(len, Ordering::Release);
    }

    pub(super) fn seal(&self) {
        self.sealed.store(true, Ordering::Release);
    }

    fn info(&self) -> SegmentInfo {
        let next = Lsn(self.next_lsn.load(Ordering::Acquire));
        SegmentInfo {
            number: self.number,
            first_lsn: self.base,
            last_lsn: (next > self.base).then(|| next.previous()),
            len: self.len.load(Ordering::Acquire).into(),
            used: self.used.load(Ordering::Acquire).into(),
            sealed: self.sealed.load(Ordering::Acquire),
        }
    }
}

/// The read side of the log; shared by all threads.
pub(crate) struct Segments {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    table: RwLock<BTreeMap<u32, Arc<Segment>>>,
    /// By number. Only segments of the table are here.
    open: RwLock<BTreeMap<u32, Arc<dyn File>>>,
}

impl Segments {
    pub(super) fn new(fs: Arc<dyn Fs>, dir: PathBuf) -> Self {
        Self { fs, dir, table: RwLock::default(), open: RwLock::default() }
    }

    /// Adds a segment. `file` is kept open until it is sealed and many others are open.
    pub(super) fn add(&self, info: SegmentInfo, file: Option<Arc<dyn File>>) -> Arc<Segment> {
        let narrow = |len: u64| u32::try_from(len).unwrap_or(u32::MAX);
        let segment = Arc::new(Segment {
            number: info.number,
            base: info.first_lsn,
            path: self.dir.join(segment_name(info.first_lsn)),
            len: narrow(info.len).into(),
            used: narrow(info.used).into(),
            next_lsn: info.last_lsn.map_or(info.first_lsn, |last| last.plus(1)).0.into(),
            sealed: info.sealed.into(),
        });
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.insert(info.number, Arc::clone(&segment));
        drop(table);
        if let Some(file) = file {
            self.keep_open(info.number, file);
        }
        segment
    }

    pub(super) fn get(&self, number: u32) -> Option<Arc<Segment>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// Reads the `at.len` bytes at `at` into `buf`, replacing what it held.
    ///
    /// # Errors
    /// `NotFound` when the segment is gone (what was in it was moved or is settled); `Corrupt` for a
    /// position outside the frames of its segment, or a file that has become shorter; `Io`.
    pub(crate) fn read(&self, at: Position, buf: &mut Vec<u8>) -> Result<()> {
        buf.clear();
        let gone = || Error::not_found(format!("{at} is gone: its segment was reclaimed"));
        let segment = self.get(at.segment).ok_or_else(gone)?;
        let outside = || {
            let offset = at.offset.into();
            let damage = Damage { file: segment.path.clone(), offset, first_lsn: None, last_lsn: None };
            Error::corrupt("a record's position is outside the frames", damage)
        };
        let used = segment.used.load(Ordering::Acquire);
        let end = at.offset.checked_add(at.len).filter(|end| *end <= used).ok_or_else(outside)?;
        if at.offset < SEGMENT_HEADER_LEN || at.offset >= end {
            return Err(outside());
        }
        let file = self.open(&segment).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound if self.get(at.segment).is_none() => gone(),
            _ => Error::io("opening", &segment.path, e),
        })?;
        buf.resize(at.len as usize, 0);
        file.read_exact_at(buf, at.offset.into()).map_err(|e| {
            buf.clear();
            if e.kind() == io::ErrorKind::UnexpectedEof { outside() } else { Error::io("reading", &segment.path, e) }
        })
    }

    fn open(&self, segment: &Segment) -> io::Result<Arc<dyn File>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(&segment.number) {
            return Ok(Arc::clone(file));
        }
        drop(open);
        let file = self.fs.open(&segment.path, OpenMode::Read)?;
        Ok(self.keep_open(segment.number, file))
    }

    /// Keeps a file for the next read, unless somebody was quicker or its segment is gone by now.
    fn keep_open(&self, number: u32, file: Arc<dyn File>) -> Arc<dyn File> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        if !table.contains_key(&number) {
            return file;
        }
        if open.len() >= MAX_OPEN_COUNT {
            let is_sealed = |segment: &Arc<Segment>| segment.sealed.load(Ordering::Acquire);
            open.retain(|number, _| table.get(number).is_some_and(|segment| !is_sealed(segment)));
        }
        Arc::clone(open.entry(number).or_insert(file))
    }

    /// All segments, oldest first.
    pub(crate) fn list(&self) -> Vec<SegmentInfo> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.values().map(|segment| segment.info()).collect()
    }

    /// Bytes of all segments' used parts.
    pub(crate) fn used(&self) -> u64 {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.values().map(|segment| u64::from(segment.used.load(Ordering::Acquire))).sum()
    }

    /// Bytes of all segments' files.
    pub(crate) fn disk_len(&self) -> u64 {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.values().map(|segment| u64::from(segment.len.load(Ordering::Acquire))).sum()
    }

    /// Whether there is a file where the segment must be. Where it cannot be told, yes: reading and writing
    /// will tell.
    pub(crate) fn is_in_place(&self, number: u32) -> bool {
        self.path(number).is_none_or(|path| !matches!(self.fs.metadata(&path), Ok(None)))
    }

    /// The file of a segment.
    pub(crate) fn path(&self, number: u32) -> Option<PathBuf> {
        self.get(number).map(|segment| segment.path.clone())
    }

    /// Removes the segments before `first_segment`, never the active one, and says how many. The
    /// caller guarantees that both slots of the checkpoint name `first_segment` or a later one.
    ///
    /// # Errors
    /// `Io`, `Full`, naming the file: it and those behind it are still listed, and the next call tries again.
    pub(crate) fn remove_before(&self, first_segment: u32) -> Result<u32> {
        let mut removed = 0;
        let result = self.unlink_before(first_segment, &mut removed);
        if removed > 0 {
            self.fs.sync_dir(&self.dir).map_err(|e| Error::io("syncing", &self.dir, e))?;
        }
        result.map(|()| removed)
    }

    fn unlink_before(&self, first_segment: u32, removed: &mut u32) -> Result<()> {
        loop {
            let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
            let Some(oldest) = table.first_entry() else { return Ok(()) };
            let segment = Arc::clone(oldest.get());
            if segment.number >= first_segment || !segment.sealed.load(Ordering::Acquire) {
                return Ok(());
            }
            // Out of the table first: who finds the file gone then also finds the segment gone.
            oldest.remove();
            drop(table);
            if let Err(e) = remove_file(&self.fs, &segment.path) {
                let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
                let path = segment.path.clone();
                table.insert(segment.number, segment);
                return Err(Error::io("removing", &path, e));
            }
            // After the table: nobody keeps it open again.
            self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&segment.number);
            *removed += 1;
        }
    }
}

/// Whether an error means that there is no room.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Removes a file; one that is gone already is no error.
pub(super) fn remove_file(fs: &Arc<dyn Fs>, path: &Path) -> io::Result<()> {
    match fs.remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
