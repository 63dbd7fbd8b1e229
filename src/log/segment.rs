//! Reading one segment from front to back, frame by frame, and looking closely where that stops.
//!
//! # Invariants
//! A step either moves the offset forward or says why it stopped: nothing loops. What is returned as
//! a frame passed both checksums and continues the order, the chain and the opening of the one before
//! it. A read error is returned as that error; it is never taken for the end (15). Memory is bounded
//! by the largest frame.
//!
//! # Not here
//! What a stop means: [`super::recovery`].

use std::path::PathBuf;
use std::sync::Arc;

use crate::env::File;
use crate::error::{Damage, Error, ErrorKind, Result};
use crate::types::{Lsn, Timestamp};

use super::format::{BLOCK_LEN, CLEAN, FRAME_HEADER_LEN, Footer, FrameHeader, SEGMENT_HEADER_LEN, Spot, len32};

/// Bytes per read.
pub(super) const CHUNK_LEN: u32 = 1024 * 1024;

/// Whether no byte was ever written here. Folds whole runs, so that it is fast.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(4096).all(|run| run.iter().fold(0, |all, byte| all | byte) == 0)
}

/// A part of a file in memory.
pub(super) struct Window {
    file: Arc<dyn File>,
    path: PathBuf,
    len: u32,
    bytes: Vec<u8>,
    start: u32,
}

impl Window {
    pub(super) fn new(file: Arc<dyn File>, path: PathBuf) -> Result<Self> {
        let mut window = Self { file, path, len: 0, bytes: Vec::new(), start: 0 };
        window.refresh()?;
        Ok(window)
    }

    /// Forgets what was read, and asks for the file's length again.
    pub(super) fn refresh(&mut self) -> Result<()> {
        let len = self.file.len().map_err(|e| Error::io("measuring", &self.path, e))?;
        self.len = u32::try_from(len).map_err(|_| {
            let damage = Damage { file: self.path.clone(), offset: len, first_lsn: None, last_lsn: None };
            Error::corrupt(format!("{len} bytes, which no segment has,"), damage)
        })?;
        self.bytes.clear();
        Ok(())
    }

    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// `len` bytes at `offset`, or as many as the file has there.
    pub(super) fn get(&mut self, offset: u32, len: u32) -> Result<&[u8]> {
        let len = len.min(self.len.saturating_sub(offset));
        let held = self.start.saturating_add(len32(self.bytes.len()));
        if offset < self.start || offset.saturating_add(len) > held {
            let want = len.max(CHUNK_LEN).min(self.len.saturating_sub(offset));
            self.bytes.resize(want as usize, 0);
            self.start = offset;
            if let Err(e) = self.file.read_exact_at(&mut self.bytes, u64::from(offset)) {
                self.bytes.clear();
                return Err(Error::io("reading", &self.path, e));
            }
            self.file.will_need(u64::from(offset) + u64::from(want), u64::from(CHUNK_LEN));
        }
        let from = offset.saturating_sub(self.start) as usize;
        Ok(self.bytes.get(from..from + len as usize).unwrap_or_default())
    }

    /// Whether everything in `from..to` is zero.
    pub(super) fn is_zero(&mut self, mut from: u32, to: u32) -> Result<bool> {
        let to = to.min(self.len);
        while from < to {
            let part = self.get(from, CHUNK_LEN.min(to - from))?;
            if !is_zero(part) {
                return Ok(false);
            }
            from += len32(part.len());
        }
        Ok(true)
    }
}

/// What stands where no valid frame does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    /// Nothing but zeros to the end of the file, or nothing at all.
    Zeros,
    /// A frame that the end of the file cuts, or that was not written to its end.
    Cut,
    /// A frame with a sector that was never written, or with no header because its write did not begin
    /// there, or did not get beyond it.
    Hole,
    /// Bytes that a cut write does not explain.
    Damaged,
}

/// One step through a segment.
pub(super) enum Step {
    /// A valid frame; the scan now stands behind it.
    Frame(FrameHeader),
    /// The footer; the scan stays before it.
    Footer(Footer),
    /// No valid frame; the scan stays before it.
    Stop(Seen),
}

/// What was found behind a stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beyond {
    /// The highest LSN that any valid header or footer from here on proves durable.
    pub(super) durable: Lsn,
    /// The first valid frame header behind the stop itself.
    pub(super) next_frame: Option<(u32, FrameHeader)>,
    /// End of the last block that is not zero.
    pub(super) end: u32,
    pub(super) epoch: u32,
    pub(super) clock: Timestamp,
}

/// A walk over the frames of one segment.
pub(super) struct Scan {
    pub(super) window: Window,
    pub(super) number: u32,
    /// Where the next frame is expected.
    pub(super) offset: u32,
    /// Its first LSN.
    pub(super) next: Lsn,
    /// Checksum of the header before it.
    pub(super) chain: u32,
    /// The newest opening seen.
    pub(super) epoch: u32,
    seed: u32,
    payload_at: u32,
}

impl Scan {
    /// A scan from the first frame of segment `number`. `chain` is its header's checksum.
    pub(super) fn new(window: Window, seed: u32, number: u32, base: Lsn, chain: u32, epoch: u32) -> Self {
        Self { window, number, offset: SEGMENT_HEADER_LEN, next: base, chain, epoch, seed, payload_at: 0 }
    }

    fn spot(&self, offset: u32) -> Spot {
        Spot { seed: self.seed, segment: self.number, offset }
    }

    /// The valid header at `offset`, if there is one. Its payload and its place are not looked at.
    pub(super) fn header_at(&mut self, offset: u32) -> Result<Option<(FrameHeader, u32)>> {
        let spot = self.spot(offset);
        Ok(FrameHeader::decode(self.window.get(offset, len32(FRAME_HEADER_LEN))?, spot))
    }

    /// # Errors
    /// `Io`; `Unsupported` for a frame that a newer version wrote.
    pub(super) fn step(&mut self) -> Result<Step> {
        let Some((header, crc)) = self.header_at(self.offset)? else {
            let (number, offset, seed) = (self.number, self.offset, self.seed);
            let path = self.window.path.clone();
            let block = self.window.get(offset, BLOCK_LEN)?;
            let footer = Footer::decode(&path, block, number, offset, seed)?;
            if let Some(footer) =
                footer.filter(|footer| footer.chain == self.chain && footer.last == self.next.previous())
            {
                return Ok(Step::Footer(footer));
            }
            return self.look_without_header().map(Step::Stop);
        };
        if header.flags & !CLEAN != 0 {
            let path = self.window.path.display();
            let flags = header.flags;
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "a frame in {path} at offset {} has the flags {flags:#x}; this version knows {CLEAN:#x}",
                    self.offset
                ),
            ));
        }
        let belongs = header.first_lsn == self.next && header.previous == self.chain && header.epoch >= self.epoch;
        if !belongs {
            return Ok(Step::Stop(Seen::Damaged));
        }
        let whole = len32(FRAME_HEADER_LEN) + header.payload_len;
        if self.offset.saturating_add(whole) > self.window.len() {
            return Ok(Step::Stop(Seen::Cut));
        }
        let spot = self.spot(self.offset);
        let bytes = self.window.get(self.offset, whole + 1)?;
        let (frame, end_mark) = bytes.split_at_checked(whole as usize).unwrap_or((bytes, &[]));
        if !header.holds(frame.get(FRAME_HEADER_LEN..).unwrap_or_default(), spot) {
            let hole = frame.chunks(BLOCK_LEN as usize).any(is_zero);
            let seen = if hole { Seen::Hole } else { Seen::Damaged };
            return Ok(Step::Stop(if is_zero(end_mark) { Seen::Cut } else { seen }));
        }
        self.payload_at = self.offset + len32(FRAME_HEADER_LEN);
        self.offset = self.offset.saturating_add(header.len());
        self.next = header.last_lsn().plus(1);
        self.chain = crc;
        self.epoch = header.epoch;
        Ok(Step::Frame(header))
    }

    /// The payload of the frame that the last step returned.
    pub(super) fn payload(&mut self, header: &FrameHeader) -> Result<(u32, &[u8])> {
        Ok((self.payload_at, self.window.get(self.payload_at, header.payload_len)?))
    }

    fn look_without_header(&mut self) -> Result<Seen> {
        let (offset, len) = (self.offset, self.window.len());
        let block = self.window.get(offset, BLOCK_LEN)?;
        let is_cut = block.len() < BLOCK_LEN as usize;
        // A header begins with a byte that is not zero, and so does a record.
        let unwritten = block.first().is_none_or(|first| *first == 0);
        let only_header = is_zero(block.get(FRAME_HEADER_LEN..).unwrap_or_default());
        Ok(if self.window.is_zero(offset, len)? {
            Seen::Zeros
        } else if is_cut {
            Seen::Cut
        } else if unwritten || only_header {
            Seen::Hole
        } else {
            Seen::Damaged
        })
    }

    /// Looks at every block from the stop on for headers and footers that prove something, whatever
    /// stands before them. Does not move the scan.
    pub(super) fn beyond(&mut self) -> Result<Beyond> {
        let stop = self.offset;
        let mut found =
            Beyond { durable: Lsn::ZERO, next_frame: None, end: stop, epoch: self.epoch, clock: Timestamp::ZERO };
        let mut offset = stop;
        while offset < self.window.len() {
            let mut next = offset.saturating_add(BLOCK_LEN);
            if let Some((header, _)) = self.header_at(offset)? {
                found.durable = found.durable.max(header.durable_lsn);
                found.epoch = found.epoch.max(header.epoch);
                found.clock = found.clock.max(header.clock);
                if offset > stop {
                    found.next_frame = found.next_frame.or(Some((offset, header)));
                }
                // A payload may hold anything, a copy of a segment too: what is in it is no evidence.
                next = offset.saturating_add(header.len());
                found.end = next.min(self.window.len());
            } else {
                let (number, seed, path) = (self.number, self.seed, self.window.path.clone());
                let block = self.window.get(offset, BLOCK_LEN)?;
                if let Some(footer) = Footer::decode(&path, block, number, offset, seed)? {
                    found.durable = found.durable.max(footer.last);
                }
                if !is_zero(block) {
                    found.end = next.min(self.window.len());
                }
            }
            offset = next;
        }
        Ok(found)
    }
}
