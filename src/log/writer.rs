//! The log's end: room, frames, syncs, rotation. Owned by one thread.
//!
//! ```text
//! begin(max) ──► append(frame) ──► sync()        begin may rotate:
//!                                                1 spare ready, or the reserve · 2 old frames synced
//!                                                3 header into the spare, synced · renamed, directory synced
//!                                                4 footer into the old segment, synced
//! ```
//!
//! # Invariants
//! A segment holds frames only after its predecessor's footer is durable, and a footer is only written
//! after its successor is durably there. So a footer without a successor means that a file is missing,
//! and a successor without its predecessor's footer is empty.
//!
//! # Crashes
//! Before the rename: the old segment goes on, the spare is junk. After it: an empty last segment,
//! whose header names the end of the one before it; recovery writes the footer if it is not there.
//! In an append: a torn tail, which recovery cuts.
//!
//! # A full disk
//! A segment that is there has its blocks, so what fits into it needs no room. For the next one, [`Room`] says
//! whether a frame may have what is kept back. Without room `begin` changes nothing.
//!
//! # Not here
//! What is in a frame; when to sync. The engine turns [`Log::is_broken`] into poison.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::env::{File, Fs};
use crate::error::{Error, ErrorKind, Result};
use crate::types::limits::MAX_PAYLOAD_LEN;
use crate::types::{Lsn, Timestamp};

use super::format::{
    CLEAN, END_MARK, FOOTER_LEN, FRAME_HEADER_LEN, Footer, FrameHeader, Predecessor, SEGMENT_HEADER_LEN, SegmentHeader,
    Spot, frame_len, len32, payload_crc,
};
use super::segments::{Segment, SegmentInfo, Segments, segment_name};
use super::spare::{Room, SpareMaker, zero_fill};
use super::store_file::StoreFile;
use super::syncer::{Done, Syncer};

/// Where the payload of the next frame will stand: the position of a record in it is
/// `{segment, payload_offset + offset in the payload, len}`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameStart {
    pub(crate) segment: u32,
    pub(crate) payload_offset: u32,
}

/// The segment that is written to.
pub(super) struct Active {
    pub(super) segment: Arc<Segment>,
    pub(super) file: Arc<dyn File>,
    pub(super) number: u32,
    pub(super) base: Lsn,
    pub(super) len: u32,
    /// Where the next frame goes.
    pub(super) tail: u32,
    /// Checksum of the last header: a frame's, or the segment's own.
    pub(super) chain: u32,
    /// Its footer is there already: nothing may be written behind it.
    pub(super) sealed: bool,
}

/// A footer that must be durable before the next frame is written.
pub(super) struct PendingSeal {
    pub(super) file: Arc<dyn File>,
    pub(super) segment: Arc<Segment>,
    pub(super) footer: Footer,
}

/// The writer.
pub(crate) struct Log {
    pub(super) store: StoreFile,
    pub(super) seed: u32,
    pub(super) epoch: u32,
    pub(super) segments: Arc<Segments>,
    pub(super) spare: Arc<SpareMaker>,
    pub(super) syncer: Arc<Syncer>,
    pub(super) active: Active,
    pub(super) pending_seal: Option<PendingSeal>,
    pub(super) next_lsn: Lsn,
    pub(super) durable_lsn: Lsn,
    pub(super) clock: Timestamp,
    /// Bytes of the frames that were appended.
    pub(super) written_len: u64,
    /// What the last `begin` made room for.
    pub(super) reserved: Option<usize>,
    pub(super) broken: Option<Error>,
}

impl Log {
    /// The LSN of the next record.
    pub(crate) const fn next_lsn(&self) -> Lsn {
        self.next_lsn
    }

    /// The last record that was appended, durable or not.
    pub(crate) const fn written_lsn(&self) -> Lsn {
        self.next_lsn.previous()
    }

    pub(crate) const fn durable_lsn(&self) -> Lsn {
        self.durable_lsn
    }

    /// Whether an error left the end of the log unknown. Everything but reading is refused then.
    pub(crate) const fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    pub(crate) fn segments(&self) -> Arc<Segments> {
        Arc::clone(&self.segments)
    }

    /// Bytes of all segments' used parts.
    pub(crate) fn log_len(&self) -> u64 {
        self.segments.used()
    }

    /// Bytes of frames that were appended since this opening: only ever more, whatever is reclaimed.
    pub(crate) const fn written_len(&self) -> u64 {
        self.written_len
    }

    /// Bytes that are left for frames in the segment that is written to.
    pub(crate) fn room_left(&self) -> u64 {
        let Active { tail, len, sealed, .. } = self.active;
        if sealed { 0 } else { len.saturating_sub(tail).saturating_sub(FOOTER_LEN).into() }
    }

    /// What makes the next segment ready, for another thread.
    pub(crate) fn spare(&self) -> Arc<SpareMaker> {
        Arc::clone(&self.spare)
    }

    /// What syncs behind the writer, for another thread.
    pub(crate) fn syncer(&self) -> Arc<Syncer> {
        Arc::clone(&self.syncer)
    }

    /// The number of the opening, in every frame it writes.
    #[cfg(test)]
    pub(crate) const fn epoch(&self) -> u32 {
        self.epoch
    }

    fn usable(&self) -> Result<()> {
        self.broken.as_ref().map_or(Ok(()), |cause| Err(Error::poisoned(cause)))
    }

    /// Remembers that the end of the log is unknown.
    fn break_with(&mut self, error: Error) -> Error {
        tracing::error!(%error, "the log can not be written any more");
        self.broken = Some(error.clone());
        error
    }

    fn fits(&self, frame: u32) -> bool {
        let Active { tail, len, sealed, .. } = self.active;
        !sealed && u64::from(tail) + u64::from(frame) + u64::from(FOOTER_LEN) <= u64::from(len)
    }

    /// Makes sure that a frame with a payload of up to `max_payload_len` bytes fits behind the tail,
    /// and says where its payload will stand. Rotates when it does not fit; `room` says what the new
    /// segment may be made of.
    ///
    /// # Errors
    /// `Full`: there is no room; what is durable and where the next frame goes is as before, and the
    /// call can be repeated. Anything else: see [`is_broken`](Self::is_broken).
    ///
    /// # Panics
    /// When `max_payload_len` is 0 or above the format's cap.
    pub(crate) fn begin(&mut self, max_payload_len: usize, room: Room) -> Result<FrameStart> {
        assert!((1..=MAX_PAYLOAD_LEN).contains(&max_payload_len), "a frame of {max_payload_len} bytes");
        self.usable()?;
        self.reserved = None;
        let frame = frame_len(max_payload_len);
        if !self.fits(frame) {
            let needed = SEGMENT_HEADER_LEN + frame + FOOTER_LEN;
            if self.active.tail == SEGMENT_HEADER_LEN && !self.active.sealed {
                self.grow(needed, room)?;
            } else {
                self.rotate(needed, room)?;
            }
        }
        self.finish_seal(room)?;
        self.reserved = Some(max_payload_len);
        let payload_offset = self.active.tail + len32(FRAME_HEADER_LEN);
        Ok(FrameStart { segment: self.active.number, payload_offset })
    }

    /// Makes an empty segment as long as its first frame needs. It can not be replaced by the reserve, which
    /// would get the same name, but it can have the reserve's blocks.
    fn grow(&mut self, len: u32, room: Room) -> Result<()> {
        let Active { file, len: old, .. } = &self.active;
        let path = || self.segments.path(self.active.number).unwrap_or_default();
        if let Err(e) = self.write_with(room, || zero_fill(file, *old, len)) {
            // What was added is zeros; it does no harm should it stay.
            let _ = file.set_len((*old).into());
            let error = Error::io("growing", &path(), e);
            return Err(if error.kind() == ErrorKind::Full { error } else { self.break_with(error) });
        }
        if let Err(e) = file.sync_data() {
            let error = Error::io("syncing", &path(), e);
            return Err(self.break_with(error));
        }
        self.active.len = len;
        self.active.segment.set_len(len);
        Ok(())
    }

    /// Does a write that frames wait for, at the price of the spares where `room` allows it.
    fn write_with(&self, room: Room, mut write: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        match room {
            Room::Ordinary => write(),
            Room::Reserve => self.spare.insist(write),
        }
    }

    fn rotate(&mut self, needed: u32, room: Room) -> Result<()> {
        self.finish_seal(room)?;
        self.sync()?;
        self.check_place()?;
        let old = &self.active;
        let last = self.written_lsn();
        let predecessor = Predecessor { number: old.number, end: old.tail, base: old.base, last, chain: old.chain };
        let number = old.number.checked_add(1).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "the log has had 2^32 segments, which is the most it can have")
        })?;
        let header = SegmentHeader { number, epoch: self.epoch, base: self.next_lsn, clock: self.clock, predecessor };
        let bytes = header.encode(self.store.id.0, self.seed);
        let (file, len) = match self.spare.install(room, needed, &segment_name(header.base), &bytes) {
            Ok(installed) => installed,
            Err(failed) if failed.unsure => return Err(self.break_with(failed.error)),
            Err(failed) => return Err(failed.error),
        };
        let next = activate(&self.segments, &header, &bytes, file, len);
        let old = std::mem::replace(&mut self.active, next);
        let footer = Footer { number: old.number, end: old.tail, last, chain: old.chain };
        self.pending_seal = Some(PendingSeal { file: old.file, segment: old.segment, footer });
        tracing::debug!(segment = number, base = header.base.0, len, "rotated");
        self.finish_seal(room)
    }

    /// The directory may have been moved away, and another one may stand in its place: a log that went on
    /// there would be split in two.
    fn check_place(&mut self) -> Result<()> {
        if self.segments.is_in_place(self.active.number) {
            return Ok(());
        }
        let path = self.segments.path(self.active.number).unwrap_or_default();
        let what = format!("the segment that is written to is not at {} any more", path.display());
        Err(self.break_with(Error::new(ErrorKind::Io, what)))
    }

    /// Writes the predecessor's footer, if it is not known to be durable.
    pub(super) fn finish_seal(&mut self, room: Room) -> Result<()> {
        let Some(PendingSeal { file, segment, footer }) = &self.pending_seal else { return Ok(()) };
        let path = self.segments.path(footer.number).unwrap_or_default();
        // Without room for it (it has its room, but not every file system honours that) nothing is
        // lost: the frames before it are durable, and what is written of it is written again.
        let bytes = footer.encode(self.seed);
        if let Err(e) = self.write_with(room, || file.write_all_at(&bytes, footer.end.into())) {
            let error = Error::io("sealing", &path, e);
            return Err(if error.kind() == ErrorKind::Full { error } else { self.break_with(error) });
        }
        if let Err(e) = file.sync_data() {
            return Err(self.break_with(Error::io("syncing", &path, e)));
        }
        let len = footer.end.saturating_add(FOOTER_LEN);
        // Room behind the footer is given back; if that fails it goes with the segment.
        if file.set_len(len.into()).is_ok() {
            segment.set_len(len);
        }
        segment.seal();
        self.pending_seal = None;
        Ok(())
    }

    /// Appends a frame of `record_count` records. `frame` is [`FRAME_HEADER_LEN`] bytes of anything,
    /// then the payload; the header is put into it, end mark and padding behind it. Written with one
    /// write; not synced. Returns the LSN of the last record.
    ///
    /// A write that finds no room is done once more, after the spares were given up: nothing was synced, so the
    /// same bytes at the same place are all there is to it.
    ///
    /// # Errors
    /// Any: the log is broken.
    ///
    /// # Panics
    /// When the payload is longer than the last [`begin`](Self::begin) was told, or empty.
    pub(crate) fn append(&mut self, frame: &mut Vec<u8>, record_count: u32, clock: Timestamp) -> Result<Lsn> {
        self.append_with(frame, record_count, clock, 0)
    }

    /// Like [`append`](Self::append), for the last frame of an orderly close: everything before it is
    /// synced first, so that the frame proves it durable.
    pub(crate) fn append_clean(&mut self, frame: &mut Vec<u8>, record_count: u32, clock: Timestamp) -> Result<Lsn> {
        self.sync()?;
        self.append_with(frame, record_count, clock, CLEAN)
    }

    fn append_with(&mut self, frame: &mut Vec<u8>, record_count: u32, clock: Timestamp, flags: u32) -> Result<Lsn> {
        self.usable()?;
        let reserved = self.reserved.take().unwrap_or(0);
        let payload_len = frame.len().saturating_sub(FRAME_HEADER_LEN);
        assert!(
            (1..=reserved).contains(&payload_len),
            "a payload of {payload_len} bytes where {reserved} were announced"
        );
        assert!(record_count > 0, "a frame without records");
        let spot = Spot { seed: self.seed, segment: self.active.number, offset: self.active.tail };
        let payload = frame.get(FRAME_HEADER_LEN..).unwrap_or_default();
        self.clock = self.clock.max(clock);
        let header = FrameHeader {
            payload_len: len32(payload_len),
            payload_crc: payload_crc(payload, spot, self.epoch),
            first_lsn: self.next_lsn,
            record_count,
            flags,
            previous: self.active.chain,
            epoch: self.epoch,
            durable_lsn: self.durable_lsn,
            clock: self.clock,
        };
        let (bytes, crc) = header.encode(spot);
        frame.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
        frame.push(END_MARK);
        frame.resize(header.len() as usize, 0);
        let Active { file, tail, .. } = &self.active;
        if let Err(e) = self.spare.insist(|| file.write_all_at(frame, (*tail).into())) {
            let path = self.segments.path(self.active.number).unwrap_or_default();
            return Err(self.break_with(Error::io("appending to", &path, e)));
        }
        self.active.tail += header.len();
        self.written_len += u64::from(header.len());
        self.active.chain = crc;
        self.next_lsn = header.last_lsn().plus(1);
        self.active.segment.advance(self.active.tail, self.next_lsn);
        Ok(header.last_lsn())
    }

    /// Makes everything that was appended durable, and says up to where. Waits for a sync that is under way.
    ///
    /// # Errors
    /// Any: the log is broken; a second try could succeed although data is lost.
    pub(crate) fn sync(&mut self) -> Result<Lsn> {
        self.usable()?;
        let done = self.syncer.settle();
        self.absorb(done)?;
        if self.durable_lsn < self.written_lsn() {
            if let Err(e) = self.active.file.sync_data() {
                let path = self.segments.path(self.active.number).unwrap_or_default();
                return Err(self.break_with(Error::io("syncing", &path, e)));
            }
            self.durable_lsn = self.written_lsn();
        }
        Ok(self.durable_lsn)
    }

    /// Has everything that was appended synced by the [syncer](Self::syncer), without waiting for it.
    pub(crate) fn sync_behind(&mut self) {
        if self.durable_lsn < self.written_lsn() && !self.is_broken() {
            let path = || self.segments.path(self.active.number).unwrap_or_default();
            self.syncer.queue(&self.active.file, path, self.written_lsn());
        }
    }

    /// Whether the syncer has something to do, or has done what is not known here yet.
    pub(crate) fn is_syncing(&self) -> bool {
        self.syncer.is_busy()
    }

    /// Takes in what the syncer has done, and says how long each sync took.
    ///
    /// # Errors
    /// Any: the log is broken.
    pub(crate) fn absorb_syncs(&mut self) -> Result<Vec<Duration>> {
        self.usable()?;
        let done = self.syncer.take_done();
        self.absorb(done)
    }

    fn absorb(&mut self, done: Vec<Done>) -> Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(done.len());
        for Done { result, took } in done {
            match result {
                // What a rotation synced in between may be further on.
                Ok(lsn) => self.durable_lsn = self.durable_lsn.max(lsn),
                Err(error) => return Err(self.break_with(error)),
            }
            times.push(took);
        }
        Ok(times)
    }
}

/// Puts a segment that was just made into the table, to be written to.
pub(super) fn activate(
    segments: &Segments,
    header: &SegmentHeader,
    bytes: &[u8],
    file: Arc<dyn File>,
    len: u32,
) -> Active {
    let chain = bytes.last_chunk::<4>().map_or(0, |crc| u32::from_le_bytes(*crc));
    let info = SegmentInfo {
        number: header.number,
        first_lsn: header.base,
        last_lsn: None,
        len: len.into(),
        used: SEGMENT_HEADER_LEN.into(),
        sealed: false,
    };
    Active {
        segment: segments.add(info, Some(Arc::clone(&file))),
        file,
        number: header.number,
        base: header.base,
        len,
        tail: SEGMENT_HEADER_LEN,
        chain,
        sealed: false,
    }
}

/// The first segment of a store.
pub(super) fn first_header(now: Timestamp, epoch: u32, number: u32) -> SegmentHeader {
    SegmentHeader { number, epoch, base: Lsn::FIRST, clock: now, predecessor: Predecessor::NONE }
}

/// What a new log's first segment needs of the outside.
pub(super) fn make_first(
    fs: &Arc<dyn Fs>,
    dir: &std::path::Path,
    store: &StoreFile,
    len: u32,
    now: Timestamp,
) -> Result<()> {
    let header = first_header(now, 1, 1);
    let spare = SpareMaker::new(Arc::clone(fs), dir.to_owned(), len);
    let bytes = header.encode(store.id.0, store.seed());
    let made = spare.install(Room::Ordinary, len, &segment_name(header.base), &bytes);
    made.map(|_| ()).map_err(|failed| failed.error)
}
