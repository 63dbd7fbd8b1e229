//! The next segment, made ready before it is needed: zero-filled and synced, so that an append is a
//! write into blocks that are there.
//!
//! It is the file `next.spare`. One that an earlier opening left is used again: its blocks are the
//! reserve with which a full disk can still be drained. It is filled with zeros again first.
//!
//! # Crashes
//! The file has no meaning before it is renamed: its content is never trusted after a restart.
//!
//! # Locking
//! One mutex, held while the file is made, and by a rotation until the file has its new name: a
//! rotation that finds the spare half made waits for it, which is shorter than making it again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::env::{File, Fs, OpenMode};
use crate::error::{Error, Result};

use super::segment::CHUNK_LEN;
use super::segments::{is_full, remove_file};

pub(super) const SPARE_NAME: &str = "next.spare";

/// Makes spare segments.
pub(crate) struct SpareMaker {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    len: u32,
    slot: Mutex<Option<Spare>>,
}

struct Spare {
    file: Arc<dyn File>,
    len: u32,
}

/// Why a new segment is not there.
pub(super) struct NotInstalled {
    pub(super) error: Error,
    /// Its name may or may not be there: what the log ends with is unknown.
    pub(super) unsure: bool,
}

impl SpareMaker {
    pub(super) fn new(fs: Arc<dyn Fs>, dir: PathBuf, len: u32) -> Self {
        Self { fs, dir, len, slot: Mutex::new(None) }
    }

    /// Has one spare ready. `false`: it was ready already. May take as long as writing a segment.
    ///
    /// # Errors
    /// `Full`, `Io`: there is no spare; nothing else changed. It can be called again.
    pub(crate) fn make(&self) -> Result<bool> {
        let mut slot = self.lock();
        if slot.is_some() {
            return Ok(false);
        }
        *slot = Some(self.fill(self.len)?);
        Ok(true)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.lock().is_some()
    }

    pub(crate) fn ready_len(&self) -> u64 {
        self.lock().as_ref().map_or(0, |spare| spare.len.into())
    }

    pub(crate) fn len_on_disk(&self) -> u64 {
        self.fs.metadata(&self.path()).ok().flatten().map_or(0, |entry| entry.len)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Spare>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self) -> PathBuf {
        self.dir.join(SPARE_NAME)
    }

    fn fill(&self, len: u32) -> Result<Spare> {
        let path = self.path();
        let (file, is_new) = match self.fs.open(&path, OpenMode::Write) {
            Ok(file) => (file, false),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let file = self.fs.open(&path, OpenMode::CreateNew);
                (file.map_err(|e| Error::io("creating", &path, e))?, true)
            }
            Err(e) => return Err(Error::io("opening", &path, e)),
        };
        let filled = zero_fill(&file, 0, len).and_then(|()| {
            if file.len()? > u64::from(len) {
                file.set_len(len.into())?;
            }
            file.sync_data()
        });
        if let Err(e) = filled {
            // A part of a new one is of no use; what an earlier opening left is room that is ours.
            if is_new {
                drop(file);
                let _ = remove_file(&self.fs, &path);
            }
            return Err(Error::io("filling", &path, e));
        }
        Ok(Spare { file, len })
    }

    /// Makes the spare (one of at least `len` bytes) the segment `name`, beginning with `header`,
    /// durably. Returns the file and its length.
    pub(super) fn install(
        &self,
        len: u32,
        name: &str,
        header: &[u8],
    ) -> std::result::Result<(Arc<dyn File>, u32), NotInstalled> {
        let sure = |error| NotInstalled { error, unsure: false };
        let (path, target) = (self.path(), self.dir.join(name));
        let mut slot = self.lock();
        let mut spare = match slot.take() {
            Some(spare) => spare,
            None => self.fill(len.max(self.len)).map_err(sure)?,
        };
        // From here on the slot is empty until the file has its name: whatever fails, the next one
        // starts by filling the file again.
        let prepare = |spare: &mut Spare| -> io::Result<()> {
            if spare.len < len {
                zero_fill(&spare.file, spare.len, len)?;
                spare.len = len;
            }
            spare.file.write_all_at(header, 0)?;
            spare.file.sync_data()
        };
        prepare(&mut spare).map_err(|e| sure(Error::io("preparing", &path, e)))?;
        if let Err(e) = self.fs.rename(&path, &target) {
            let error = Error::io("renaming", &path, e);
            let unsure = error.kind() != crate::ErrorKind::Full;
            return Err(NotInstalled { error, unsure });
        }
        let synced = self.fs.sync_dir(&self.dir);
        synced.map_err(|e| NotInstalled { error: Error::io("syncing", &self.dir, e), unsure: true })?;
        Ok((spare.file, spare.len))
    }
}

/// Writes zeros to `from..to`, starting write-back as it goes so that the sync at the end is short.
pub(super) fn zero_fill(file: &Arc<dyn File>, from: u32, to: u32) -> io::Result<()> {
    let zeros = vec![0; CHUNK_LEN.min(to.saturating_sub(from)) as usize];
    let mut at = from;
    while at < to {
        let len = CHUNK_LEN.min(to - at);
        file.write_all_at(zeros.get(..len as usize).unwrap_or(&zeros), at.into())?;
        // A hint: without it the sync takes longer.
        let _ = file.start_writeback(at.into(), len.into());
        at += len;
    }
    Ok(())
}

/// Re-makes a segment file in place: zeros to `len` at least, then `header`; synced. Until the header
/// is there it is a stub that holds nothing.
pub(super) fn remake(fs: &Arc<dyn Fs>, path: &Path, len: u32, header: &[u8]) -> io::Result<(Arc<dyn File>, u32)> {
    let file = fs.open(path, OpenMode::Write)?;
    let there = u32::try_from(file.len()?).unwrap_or(u32::MAX);
    let len = match zero_fill(&file, 0, len.max(there)) {
        Ok(()) => len.max(there),
        // No room for a whole one: what the file has already will do, if it holds anything at all.
        Err(e) if is_full(&e) && there >= crate::options::MIN_SEGMENT_LEN => {
            zero_fill(&file, 0, there)?;
            there
        }
        Err(e) => return Err(e),
    };
    file.sync_data()?;
    file.write_all_at(header, 0)?;
    file.sync_data()?;
    Ok((file, len))
}
