//! A look at the log for tools: no lock, nothing changed, and it goes on behind damage.
//!
//! It works while a writer runs. What a writer can be in the middle of is the end, not damage: an
//! unfinished frame behind which nothing proves it, a newest file without a header. A segment that
//! reclaim removed meanwhile is passed over.
//!
//! # Invariants
//! Every call to [`LogReader::next`] gets further or ends. Damage is told once, with its LSN range; what
//! is told as a frame passed its checksums (15).
//!
//! # Not here
//! What the records say: `inspect/`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::env::{EntryKind, Fs, OpenMode};
use crate::error::{Damage, Error, Result};
use crate::types::{Lsn, Timestamp};

use super::format::{FrameHeader, SEGMENT_HEADER_LEN, SegmentHeader};
use super::layout::{LOG_DIR, base_of};
use super::recovery::{Frame, frame};
use super::segment::{Scan, Seen, Step, Window};
use super::segments::segment_name;
use super::store_file::StoreFile;

/// A valid frame, with its payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OwnedFrame {
    pub(crate) segment: u32,
    pub(crate) offset: u32,
    pub(crate) payload_offset: u32,
    pub(crate) first_lsn: Lsn,
    pub(crate) record_count: u32,
    pub(crate) durable_lsn: Lsn,
    pub(crate) clock: Timestamp,
    pub(crate) epoch: u32,
    pub(crate) clean: bool,
    pub(crate) payload: Vec<u8>,
}

impl OwnedFrame {
    pub(crate) fn borrow(&self) -> Frame<'_> {
        Frame {
            segment: self.segment,
            offset: self.offset,
            payload_offset: self.payload_offset,
            first_lsn: self.first_lsn,
            record_count: self.record_count,
            durable_lsn: self.durable_lsn,
            clock: self.clock,
            epoch: self.epoch,
            clean: self.clean,
            payload: &self.payload,
        }
    }
}

/// What the reader comes by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    Frame(OwnedFrame),
    /// Bytes that were there and are not any more.
    Damage {
        what: &'static str,
        at: Damage,
        len: u64,
    },
    /// Bytes behind the end that are no frame: a write that was cut, or one that goes on just now.
    Tail {
        file: PathBuf,
        offset: u64,
        len: u64,
        seen: Seen,
    },
}

/// The segment that is being read.
struct Current {
    header: SegmentHeader,
    path: PathBuf,
    scan: Scan,
    /// Everything up to here is proven durable.
    durable: Lsn,
}

/// Reads frames from the oldest segment on.
pub(crate) struct LogReader {
    fs: Arc<dyn Fs>,
    log_dir: PathBuf,
    store: StoreFile,
    current: Option<Current>,
    /// Base of the newest segment that was opened or passed over.
    base: Lsn,
    /// What follows the newest frame; `None` before the first segment.
    next: Option<Lsn>,
    /// Segments before this one are passed over.
    from_segment: u32,
    ended: bool,
}

impl LogReader {
    /// # Errors
    /// As [`StoreFile::read`].
    pub(crate) fn open(fs: &Arc<dyn Fs>, dir: &Path) -> Result<Self> {
        Self::open_from(fs, dir, 0)
    }

    /// Like [`open`](Self::open), but begins with segment `number` or the first one after it.
    pub(crate) fn open_from(fs: &Arc<dyn Fs>, dir: &Path, number: u32) -> Result<Self> {
        Ok(Self {
            fs: Arc::clone(fs),
            log_dir: dir.join(LOG_DIR),
            store: StoreFile::read(fs, dir)?,
            current: None,
            base: Lsn::ZERO,
            next: None,
            from_segment: number,
            ended: false,
        })
    }

    /// Which store it is.
    pub(crate) const fn store(&self) -> &StoreFile {
        &self.store
    }

    /// The next frame or damage; `None` at the end. An error (a read that failed, a version that is not
    /// known) is the last thing it gives.
    pub(crate) fn next(&mut self) -> Option<Result<Found>> {
        while !self.ended {
            match self.advance() {
                Ok(Some(found)) => return Some(Ok(found)),
                Ok(None) => {}
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    /// Looks again: after the end, [`next`](Self::next) goes on with what was written since.
    pub(crate) fn again(&mut self) {
        self.ended = false;
    }

    fn advance(&mut self) -> Result<Option<Found>> {
        let Some(current) = &mut self.current else { return self.open_next() };
        let offset = current.scan.offset;
        match current.scan.step()? {
            Step::Frame(header) => Self::take(current, &mut self.next, offset, &header).map(Some),
            Step::Footer(_) => {
                self.current = None;
                let Some((_, base)) = self.successor()? else {
                    self.ended = true;
                    return Ok(self.missing(None));
                };
                debug_assert!(base > self.base, "the listing was filtered");
                Ok(None)
            }
            Step::Stop(_) => self.stopped(),
        }
    }

    fn take(current: &mut Current, next: &mut Option<Lsn>, offset: u32, header: &FrameHeader) -> Result<Found> {
        current.durable = current.durable.max(header.durable_lsn);
        *next = Some(current.scan.next);
        let (payload_offset, payload) = current.scan.payload(header)?;
        Ok(Found::Frame(frame(current.header.number, offset, payload_offset, header, payload).into()))
    }

    /// The names of the segments that are there now.
    fn list(&self) -> Result<Vec<Lsn>> {
        let entries = self.fs.read_dir(&self.log_dir).map_err(|e| Error::io("listing", &self.log_dir, e))?;
        let files = entries.into_iter().filter(|entry| entry.kind == EntryKind::File);
        Ok(files.filter_map(|entry| base_of(&entry.name)).collect())
    }

    /// The file after the current one.
    fn successor(&self) -> Result<Option<(PathBuf, Lsn)>> {
        let next = self.list()?.into_iter().filter(|base| *base > self.base).min();
        Ok(next.map(|base| (self.log_dir.join(segment_name(base)), base)))
    }

    fn missing(&self, until: Option<Lsn>) -> Option<Found> {
        let first = self.next?;
        let at = Damage {
            file: self.log_dir.join(segment_name(first)),
            offset: 0,
            first_lsn: Some(first),
            last_lsn: until.map(Lsn::previous),
        };
        Some(Found::Damage { what: "a missing segment", at, len: 0 })
    }

    /// The window on a segment file and its header, if the file is there and its first block is a header.
    #[expect(clippy::type_complexity, reason = "two optional layers: the file, and a header in it")]
    fn header_of(&self, path: &Path) -> Result<Option<(Window, Option<(SegmentHeader, u32)>)>> {
        let file = match self.fs.open(path, OpenMode::Read) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|e| Error::io("opening", path, e))?,
        };
        let mut window = Window::new(file, path.to_owned())?;
        let block = window.get(0, SEGMENT_HEADER_LEN)?;
        let header = SegmentHeader::decode(path, block, self.store.id.0, self.store.seed())?;
        Ok(Some((window, header.map(|(header, _, crc)| (header, crc)))))
    }

    fn open_next(&mut self) -> Result<Option<Found>> {
        let Some((path, base)) = self.successor()? else {
            self.ended = true;
            return Ok(None);
        };
        // Gone since it was listed: look again.
        let Some((window, header)) = self.header_of(&path)? else { return Ok(None) };
        let before = std::mem::replace(&mut self.base, base);
        let Some((header, crc)) = header else { return self.without_header(path, before, &window) };
        if header.number < self.from_segment {
            return Ok(None);
        }
        // What is missing in between was reclaimed if what was before it is gone too.
        let gap = self.next.is_some_and(|next| next < header.base);
        let found = if gap && self.list()?.contains(&before) { self.missing(Some(header.base)) } else { None };
        self.next = Some(header.base);
        let scan = Scan::new(window, self.store.seed(), header.number, header.base, crc, header.epoch);
        let durable = header.predecessor.last;
        self.current = Some(Current { header, path, scan, durable });
        Ok(found)
    }

    fn without_header(&mut self, file: PathBuf, before: Lsn, window: &Window) -> Result<Option<Found>> {
        let (len, base) = (u64::from(window.len()), self.base);
        let Some((_, after)) = self.successor()? else {
            // It may be in the making: whoever looks again should find it.
            self.base = before;
            self.ended = true;
            let seen = if len < u64::from(SEGMENT_HEADER_LEN) { Seen::Cut } else { Seen::Damaged };
            return Ok((len > 0).then_some(Found::Tail { file, offset: 0, len, seen }));
        };
        self.next = Some(after);
        let at = Damage { file, offset: 0, first_lsn: Some(base), last_lsn: Some(after.previous()) };
        Ok(Some(Found::Damage { what: "a damaged segment header", at, len }))
    }

    /// No valid frame here: the end of the segment, the end of the log, or damage.
    fn stopped(&mut self) -> Result<Option<Found>> {
        // First the successor, then a fresh look: a segment that has one is not written to any more.
        let successor = match self.successor()? {
            Some((path, _)) => self.header_of(&path)?.and_then(|(_, header)| header),
            None => None,
        };
        let Some(current) = &mut self.current else { return Ok(None) };
        current.scan.window.refresh()?;
        let offset = current.scan.offset;
        let seen = match current.scan.step()? {
            Step::Frame(header) => return Self::take(current, &mut self.next, offset, &header).map(Some),
            Step::Footer(_) => return Ok(None),
            Step::Stop(seen) => seen,
        };
        let number = current.header.number;
        let before = successor.map(|(header, _)| header.predecessor).filter(|before| before.number == number);
        if let Some(before) = before {
            if offset == before.end && current.scan.chain == before.chain {
                self.current = None;
                return Ok(None);
            }
            current.durable = current.durable.max(before.last);
        }
        let beyond = current.scan.beyond()?;
        current.durable = current.durable.max(beyond.durable);
        let (file, len) = (current.path.clone(), u64::from(beyond.end.saturating_sub(offset)));
        if current.scan.next > current.durable {
            self.ended = true;
            return Ok((seen != Seen::Zeros).then_some(Found::Tail { file, offset: offset.into(), len, seen }));
        }
        // What proves it was written after it: if it was being written before, it is whole by now.
        current.scan.window.refresh()?;
        if let Step::Frame(header) = current.scan.step()? {
            return Self::take(current, &mut self.next, offset, &header).map(Some);
        }
        Ok(Some(self.skip_damage(beyond.next_frame, beyond.end)))
    }

    /// Goes on with the next frame behind a damaged one, or with the next segment.
    fn skip_damage(&mut self, next_frame: Option<(u32, FrameHeader)>, end: u32) -> Found {
        let Some(mut current) = self.current.take() else {
            self.ended = true;
            return Found::Tail { file: self.log_dir.clone(), offset: 0, len: 0, seen: Seen::Zeros };
        };
        let (offset, first) = (current.scan.offset, current.scan.next);
        let mut at =
            Damage { file: current.path.clone(), offset: offset.into(), first_lsn: Some(first), last_lsn: None };
        let next_frame = next_frame.filter(|(_, header)| header.first_lsn >= first);
        let to = next_frame.map_or(end, |(to, _)| to);
        if let Some((to, header)) = next_frame {
            at.last_lsn = Some(header.first_lsn.previous()).filter(|last| *last >= first);
            current.scan.offset = to;
            current.scan.next = header.first_lsn;
            current.scan.chain = header.previous;
            current.scan.epoch = header.epoch;
            self.current = Some(current);
        } else {
            at.last_lsn = Some(current.durable);
            self.next = Some(current.durable.plus(1));
        }
        Found::Damage { what: "a damaged frame", at, len: u64::from(to.saturating_sub(offset)) }
    }
}

impl From<Frame<'_>> for OwnedFrame {
    fn from(frame: Frame<'_>) -> Self {
        Self {
            segment: frame.segment,
            offset: frame.offset,
            payload_offset: frame.payload_offset,
            first_lsn: frame.first_lsn,
            record_count: frame.record_count,
            durable_lsn: frame.durable_lsn,
            clock: frame.clock,
            epoch: frame.epoch,
            clean: frame.clean,
            payload: frame.payload.to_vec(),
        }
    }
}
