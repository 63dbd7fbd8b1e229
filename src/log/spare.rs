//! The segments that are made before they are needed: zero-filled and synced, so that an append is a write
//! into blocks that are there.
//!
//! ```text
//! next.spare       the next segment
//! reserve.spare    the reserve: becomes a segment when the disk has no room for another one, and only for
//!                  frames after which less is needed
//! ```
//!
//! Files that an earlier opening left are used again: their blocks are ours, so that needs no room. They are
//! filled with zeros again first.
//!
//! # Invariants
//! At most these two files are there beside the segments, however often making one fails: a part of a new
//! one is removed, one that was there before keeps its length.
//!
//! # Crashes
//! A file has no meaning before it is renamed: its content is never trusted after a restart.
//!
//! # Locking
//! A mutex for each file, held while it is made, and by a rotation until it has its new name: a rotation
//! that finds the spare half made waits for it, which is shorter than making it again. The reserve's is
//! taken after the spare's. How long they are can be asked without waiting.
//!
//! # Not here
//! Which frames may use the reserve: the engine.

use std::io;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::env::{File, Fs, OpenMode};
use crate::error::{Error, ErrorKind, Result};

use super::format::BLOCK_LEN;
use super::segment::CHUNK_LEN;
use super::segments::{is_full, remove_file};

const NEXT_NAME: &str = "next.spare";
const RESERVE_NAME: &str = "reserve.spare";
/// The files that are made here.
pub(super) const SPARE_NAMES: [&str; 2] = [NEXT_NAME, RESERVE_NAME];

/// What a frame may use when a new segment must be made for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// What the disk has for everybody.
    Ordinary,
    /// When there is none of that, what is kept back for frames after which less is needed; and when that
    /// is gone, a segment as short as need be.
    Reserve,
}

/// Bytes of the files that are ready to become a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rooms {
    pub(crate) spare: u64,
    pub(crate) reserve: u64,
}

/// Makes spare segments.
pub(crate) struct SpareMaker {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    len: u32,
    next: Place,
    reserve: Place,
}

/// One of the two files.
struct Place {
    path: PathBuf,
    slot: Mutex<Option<Spare>>,
    /// Length of what is in the slot.
    ready_len: AtomicU64,
    /// Length of the file, ready or not.
    file_len: AtomicU64,
}

/// A file of `len` zeros.
struct Spare {
    file: Arc<dyn File>,
    len: u32,
}

/// What a new segment must be.
struct Order<'o> {
    /// Bytes it must have at least.
    needed: u32,
    target: PathBuf,
    header: &'o [u8],
}

/// Why a new segment is not there.
pub(super) struct NotInstalled {
    pub(super) error: Error,
    /// Its name may or may not be there, or the disk failed a write or a sync: nothing is written any more.
    pub(super) unsure: bool,
}

impl NotInstalled {
    fn sure(error: Error) -> Self {
        Self { error, unsure: false }
    }

    fn is_full(&self) -> bool {
        !self.unsure && self.error.kind() == ErrorKind::Full
    }
}

impl Place {
    fn new(fs: &Arc<dyn Fs>, path: PathBuf) -> Self {
        let left = fs.metadata(&path).ok().flatten().map_or(0, |entry| entry.len);
        Self { path, slot: Mutex::new(None), ready_len: AtomicU64::new(0), file_len: left.into() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Spare>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, slot: &mut Option<Spare>, spare: Spare) {
        self.ready_len.store(spare.len.into(), Ordering::Release);
        *slot = Some(spare);
    }

    fn take(&self, slot: &mut Option<Spare>) -> Option<Spare> {
        self.ready_len.store(0, Ordering::Release);
        slot.take()
    }

    fn ready_len(&self) -> u64 {
        self.ready_len.load(Ordering::Acquire)
    }

    fn file_len(&self) -> u64 {
        self.file_len.load(Ordering::Acquire)
    }

    fn set_file_len(&self, len: u64) {
        self.file_len.store(len, Ordering::Release);
    }
}

impl SpareMaker {
    pub(super) fn new(fs: Arc<dyn Fs>, dir: PathBuf, len: u32) -> Self {
        let [next, reserve] = SPARE_NAMES.map(|name| Place::new(&fs, dir.join(name)));
        Self { fs, dir, len, next, reserve }
    }

    /// Has the reserve and one spare ready, the reserve first, taking at most `budget` more bytes of the disk.
    /// `false`: they were ready already. May take as long as writing two segments.
    ///
    /// # Errors
    /// `Full`, `Io`: one of them is not there; what is ready stays. It can be called again.
    pub(crate) fn make(&self, budget: u64) -> Result<bool> {
        let before = self.len_on_disk();
        let made = self.make_in(&self.reserve, budget)?;
        let taken = self.len_on_disk().saturating_sub(before);
        Ok(self.make_in(&self.next, budget.saturating_sub(taken))? || made)
    }

    fn make_in(&self, place: &Place, budget: u64) -> Result<bool> {
        let mut slot = place.lock();
        if slot.is_some() {
            return Ok(false);
        }
        if budget < u64::from(self.len).saturating_sub(place.file_len()) {
            return Err(Error::new(
                ErrorKind::Full,
                format!("{budget} bytes may be taken for {}", place.path.display()),
            ));
        }
        // Trying would take the disk's last bytes for a moment, in which a frame may need them. Not every
        // file system can tell what is free; 0 may mean that.
        let free = self.fs.info(&self.dir).map_or(0, |info| info.available);
        if free > 0 && free.saturating_add(place.file_len()) < self.len.into() {
            return Err(Error::new(ErrorKind::Full, format!("{free} bytes are free for {}", place.path.display())));
        }
        let spare = self.fill(place, self.len, self.len).map_err(|failed| failed.error)?;
        place.put(&mut slot, spare);
        Ok(true)
    }

    /// What is ready. Never waits.
    pub(crate) fn rooms(&self) -> Rooms {
        Rooms { spare: self.next.ready_len(), reserve: self.reserve.ready_len() }
    }

    /// Bytes of both files, ready or not. Never waits.
    pub(crate) fn len_on_disk(&self) -> u64 {
        self.next.file_len() + self.reserve.file_len()
    }

    /// Removes both files, for the blocks they hold. They are made again when there is room.
    pub(crate) fn give_up(&self) {
        for place in [&self.next, &self.reserve] {
            self.discard(place, &mut place.lock());
        }
    }

    /// Does a write into blocks that are there. Some file systems need room even for that: without it
    /// the spares are given up and the write is done once more.
    pub(super) fn insist(&self, mut write: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        match write() {
            Err(error) if is_full(&error) => {
                tracing::warn!(%error, "no room for a write into a file that is there: the spare segments go");
                self.give_up();
                write()
            }
            done => done,
        }
    }

    fn discard(&self, place: &Place, slot: &mut Option<Spare>) {
        drop(place.take(slot));
        match remove_file(&self.fs, &place.path) {
            Ok(()) => place.set_file_len(0),
            // It is filled again the next time.
            Err(error) => tracing::debug!(%error, path = %place.path.display(), "a spare segment was not removed"),
        }
    }

    /// Fills a file with `len` zeros. Where there is no room for them, one that was there already is taken
    /// as long as it is, if that is at least `least`.
    fn fill(&self, place: &Place, len: u32, least: u32) -> Result<Spare, NotInstalled> {
        let path = &place.path;
        let failed = |what, e| NotInstalled::sure(Error::io(what, path, e));
        let file = match self.fs.open(path, OpenMode::Write) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.fs.open(path, OpenMode::CreateNew).map_err(|e| failed("creating", e))?
            }
            other => other.map_err(|e| failed("opening", e))?,
        };
        let there = file.len().map_err(|e| failed("measuring", e))?;
        let fill = |len: u32| -> io::Result<u32> {
            zero_fill(&file, 0, len)?;
            if file.len()? > u64::from(len) {
                file.set_len(len.into())?;
            }
            file.sync_data()?;
            Ok(len)
        };
        let as_it_is = u32::try_from(there).unwrap_or(len).min(len) / BLOCK_LEN * BLOCK_LEN;
        let filled = match fill(len) {
            Err(e) if is_full(&e) && (least..len).contains(&as_it_is) => fill(as_it_is),
            done => done,
        };
        match filled {
            Ok(len) => {
                place.set_file_len(len.into());
                Ok(Spare { file, len })
            }
            Err(e) => {
                // A part of a new one is of no use; what an earlier opening left is room that is ours.
                let now = file.len().unwrap_or(there);
                if there == 0 {
                    drop(file);
                    let _ = remove_file(&self.fs, path);
                } else if now > there {
                    let _ = file.set_len(there);
                }
                place.set_file_len(now.min(there));
                let unsure = !is_full(&e);
                Err(NotInstalled { unsure, ..failed("filling", e) })
            }
        }
    }

    /// Makes a spare the segment `name` of at least `needed` bytes, beginning with `header`, durably.
    /// Returns the file and its length.
    ///
    /// It is the spare that is ready, or a file that is filled now. Where there is no room and `room` allows
    /// it, it is the reserve, or a segment of half the length, a quarter …, down to what is needed.
    pub(super) fn install(
        &self,
        room: Room,
        needed: u32,
        name: &str,
        header: &[u8],
    ) -> Result<(Arc<dyn File>, u32), NotInstalled> {
        let order = Order { needed, target: self.dir.join(name), header };
        let whole = self.len.max(needed);
        let mut next = self.next.lock();
        if room == Room::Ordinary {
            return self.install_from(&self.next, &mut next, whole, whole, &order);
        }
        let mut failed = match self.install_from(&self.next, &mut next, whole, needed, &order) {
            Err(failed) if failed.is_full() => failed,
            done => return done,
        };
        // What is left of it could not be written or is too short: its blocks may be what is missing.
        self.discard(&self.next, &mut next);
        let mut reserve = self.reserve.lock();
        if self.reserve.file_len() > 0 {
            failed = match self.install_from(&self.reserve, &mut reserve, whole, needed, &order) {
                Err(failed) if failed.is_full() => failed,
                done => return done,
            };
            // It stays for frames that fit: where it could not be made longer, no other file can be as long.
            if self.reserve.file_len() < u64::from(needed) {
                return Err(failed);
            }
        }
        self.discard(&self.reserve, &mut reserve);
        for len in shorter(whole, needed) {
            failed = match self.install_from(&self.next, &mut next, len, needed, &order) {
                Err(failed) if failed.is_full() => failed,
                done => return done,
            };
        }
        Err(failed)
    }

    /// Makes the file of one place a segment: what is ready, or filled now as [`fill`](Self::fill) does.
    fn install_from(
        &self,
        place: &Place,
        slot: &mut Option<Spare>,
        len: u32,
        least: u32,
        order: &Order<'_>,
    ) -> Result<(Arc<dyn File>, u32), NotInstalled> {
        let failed = |what, e| NotInstalled::sure(Error::io(what, &place.path, e));
        let mut spare = match place.take(slot) {
            Some(spare) => spare,
            None => self.fill(place, len, least)?,
        };
        if spare.len < order.needed {
            if let Err(e) = zero_fill(&spare.file, spare.len, order.needed) {
                // What was added is zeros; it does no harm should it stay.
                let _ = spare.file.set_len(spare.len.into());
                place.put(slot, spare);
                return Err(failed("growing", e));
            }
            spare.len = order.needed;
            place.set_file_len(spare.len.into());
        }
        // From here on the slot is empty until the file has its name: whatever fails, the next one
        // starts by filling the file again.
        let prepared = spare.file.write_all_at(order.header, 0).and_then(|()| spare.file.sync_data());
        prepared.map_err(|e| NotInstalled { unsure: !is_full(&e), ..failed("preparing", e) })?;
        if let Err(e) = self.fs.rename(&place.path, &order.target) {
            let unsure = !is_full(&e);
            return Err(NotInstalled { unsure, ..failed("renaming", e) });
        }
        place.set_file_len(0);
        let synced = self.fs.sync_dir(&self.dir);
        synced.map_err(|e| NotInstalled { error: Error::io("syncing", &self.dir, e), unsure: true })?;
        Ok((spare.file, spare.len))
    }
}

/// The lengths below `whole` that are tried when there is no room, longest first.
fn shorter(whole: u32, needed: u32) -> impl Iterator<Item = u32> {
    let halves = iter::successors(Some(whole / 2), |len| Some(len / 2)).map(|len| len / BLOCK_LEN * BLOCK_LEN);
    halves.take_while(move |len| *len > needed).chain([needed])
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
            file.set_len(there.into())?;
            zero_fill(&file, 0, there)?;
            there
        }
        Err(e) => {
            let _ = file.set_len(there.into());
            return Err(e);
        }
    };
    file.sync_data()?;
    file.write_all_at(header, 0)?;
    file.sync_data()?;
    Ok((file, len))
}
