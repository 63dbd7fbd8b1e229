//! The bytes of a segment: its header, its frames' headers, its footer. `docs/format.md` draws them.
//!
//! ```text
//! ┌ segment header ┬ frame ──────────────────────────────┬ frame ─ ─ ┬ footer ┬ zeros ─ ─
//! │ 512            │ header 64 │ payload │ FF │ pad 512 │           │ 512    │
//! ```
//!
//! # Invariants
//! A header that passes its checksum was written by this store, in this segment, at this offset:
//! the checksum starts from all three. Every length is checked against the format's cap before it
//! is used (15). A frame ends with a byte that is not zero: where it is zero, the write did not get
//! there.
//!
//! # Not here
//! Whether a valid frame belongs where it stands (order, chain): [`super::segment`].

use std::path::Path;

use crate::codec::{self, Reader, Short};
use crate::error::{Damage, Error, ErrorKind, Result};
use crate::types::limits::MAX_PAYLOAD_LEN;
use crate::types::{Lsn, Timestamp};

/// The one format version that is written and read.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// Frames and footers stand on multiples of this: what a disk writes as a whole or not at all.
pub(crate) const BLOCK_LEN: u32 = 512;
/// Bytes of a frame before its payload.
pub(crate) const FRAME_HEADER_LEN: usize = 64;
pub(super) const SEGMENT_HEADER_LEN: u32 = BLOCK_LEN;
pub(super) const FOOTER_LEN: u32 = BLOCK_LEN;

const FRAME_MAGIC: [u8; 4] = *b"RFRM";
const SEGMENT_MAGIC: [u8; 8] = *b"REAPPSEG";
const FOOTER_MAGIC: [u8; 8] = *b"REAPPEND";
const CRC_LEN: usize = 4;

/// Stands behind a frame's payload.
pub(super) const END_MARK: u8 = 0xFF;

/// The frame is the last one of an orderly close.
pub(super) const CLEAN: u32 = 1;

/// The number as a length in a file. Callers pass lengths below the format's caps, which are far
/// below 2^32; anything else becomes a length that fits nowhere.
pub(super) fn len32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Bytes a frame takes in the file: header, payload, end mark, padding.
pub(super) fn frame_len(payload_len: usize) -> u32 {
    len32(payload_len.saturating_add(FRAME_HEADER_LEN + 1).next_multiple_of(BLOCK_LEN as usize))
}

/// What a file needs a reader to know. A bit that is not known in `incompatible` forbids reading,
/// in `read_only_compatible` writing; in `compatible` it forbids nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Features {
    pub(crate) incompatible: u32,
    pub(crate) read_only_compatible: u32,
    pub(crate) compatible: u32,
}

impl Features {
    /// # Errors
    /// `Unsupported` when a bit is set that forbids writing.
    pub(super) fn writable(self, path: &Path) -> Result<()> {
        if self.read_only_compatible == 0 {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{} has the features {:#x} that must be known to write to it; this version knows none",
                path.display(),
                self.read_only_compatible
            ),
        ))
    }
}

/// The start of a block's fields: its magic, this version, no features.
pub(super) fn start_block(magic: [u8; 8]) -> Vec<u8> {
    let mut fields = magic.to_vec();
    for field in [FORMAT_VERSION, 0, 0, 0] {
        fields.extend(field.to_le_bytes());
    }
    fields
}

/// `fields`, zeros, and the checksum in the last four of `len` bytes.
pub(super) fn finish_block(mut fields: Vec<u8>, len: usize, seed: u32) -> Vec<u8> {
    assert!(fields.len() + CRC_LEN <= len, "a block with more fields than room");
    fields.resize(len - CRC_LEN, 0);
    let crc = codec::crc(seed, &[&fields]);
    fields.extend(crc.to_le_bytes());
    fields
}

/// A block whose checksum holds: its features, its other fields, its checksum.
pub(super) struct Block<'a> {
    pub(super) features: Features,
    pub(super) fields: Reader<'a>,
    pub(super) crc: u32,
}

/// Reads a block made by [`start_block`] and [`finish_block`]; `None` when it is damaged.
///
/// The version is looked at before the checksum, whose place a later version may move.
///
/// # Errors
/// `Unsupported`, naming what was found and what is known.
pub(super) fn read_block<'a>(path: &Path, bytes: &'a [u8], magic: [u8; 8], seed: u32) -> Result<Option<Block<'a>>> {
    let mut fields = Reader::new(bytes);
    let (Ok(found), Ok(version)) = (fields.array::<8>(), fields.u32()) else { return Ok(None) };
    if found != magic {
        return Ok(None);
    }
    if version != FORMAT_VERSION {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{} has format version {version}; this version of reappear supports version {FORMAT_VERSION}",
                path.display()
            ),
        ));
    }
    let Some(crc) = intact(bytes, seed) else { return Ok(None) };
    let mut read = || -> Result<Features, Short> {
        Ok(Features { incompatible: fields.u32()?, read_only_compatible: fields.u32()?, compatible: fields.u32()? })
    };
    let Ok(features) = read() else { return Ok(None) };
    if features.incompatible != 0 {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{} has the features {:#x}, without which it cannot be read; this version of reappear supports none",
                path.display(),
                features.incompatible
            ),
        ));
    }
    Ok(Some(Block { features, fields, crc }))
}

/// The checksum in a block's last four bytes, if it holds.
fn intact(bytes: &[u8], seed: u32) -> Option<u32> {
    let (content, crc) = bytes.split_last_chunk::<CRC_LEN>()?;
    let crc = u32::from_le_bytes(*crc);
    (codec::crc(seed, &[content]) == crc).then_some(crc)
}

/// What a segment says of the one before it. Number 0: there was none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Predecessor {
    pub(crate) number: u32,
    /// Offset behind its last frame, where its footer stands.
    pub(crate) end: u32,
    pub(crate) base: Lsn,
    pub(crate) last: Lsn,
    /// Checksum of its last frame's header.
    pub(crate) chain: u32,
}

impl Predecessor {
    pub(super) const NONE: Self = Self { number: 0, end: 0, base: Lsn::ZERO, last: Lsn::ZERO, chain: 0 };
}

/// The first block of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentHeader {
    pub(crate) number: u32,
    pub(crate) epoch: u32,
    pub(crate) base: Lsn,
    pub(crate) clock: Timestamp,
    pub(crate) predecessor: Predecessor,
}

impl SegmentHeader {
    /// The block's bytes. Its last four are where the chain of the segment's frames starts.
    pub(super) fn encode(&self, store: [u8; 16], seed: u32) -> Vec<u8> {
        let mut out = start_block(SEGMENT_MAGIC);
        out.extend(store);
        out.extend(self.number.to_le_bytes());
        out.extend(self.epoch.to_le_bytes());
        out.extend(self.base.0.to_le_bytes());
        out.extend(self.clock.0.to_le_bytes());
        out.extend(self.predecessor.number.to_le_bytes());
        out.extend(self.predecessor.end.to_le_bytes());
        out.extend(self.predecessor.base.0.to_le_bytes());
        out.extend(self.predecessor.last.0.to_le_bytes());
        out.extend(self.predecessor.chain.to_le_bytes());
        finish_block(out, SEGMENT_HEADER_LEN as usize, seed)
    }

    /// The header, its features and its checksum; `None` when the block is damaged.
    ///
    /// # Errors
    /// `Unsupported` for a version or features that are not known; `Corrupt` for a segment of
    /// another store.
    pub(super) fn decode(
        path: &Path,
        bytes: &[u8],
        store: [u8; 16],
        seed: u32,
    ) -> Result<Option<(Self, Features, u32)>> {
        // The store's seed would make a foreign segment look damaged; say what it is.
        if let Some(found) = bytes.get(24..40)
            && found != store
            && intact(bytes, crate::types::StoreId(found.try_into().unwrap_or_default()).seed()).is_some()
        {
            let damage = Damage { file: path.to_owned(), offset: 0, first_lsn: None, last_lsn: None };
            return Err(Error::corrupt("a segment of another store", damage));
        }
        let Some(mut block) = read_block(path, bytes, SEGMENT_MAGIC, seed)? else { return Ok(None) };
        let header = Self::fields(&mut block.fields).ok().filter(|header| header.number > 0);
        Ok(header.map(|header| (header, block.features, block.crc)))
    }

    fn fields(reader: &mut Reader<'_>) -> Result<Self, Short> {
        reader.bytes(16)?;
        let (number, epoch) = (reader.u32()?, reader.u32()?);
        let (base, clock) = (Lsn(reader.u64()?), Timestamp(reader.u64()?));
        let (before, end) = (reader.u32()?, reader.u32()?);
        let predecessor = Predecessor {
            number: before,
            end,
            base: Lsn(reader.u64()?),
            last: Lsn(reader.u64()?),
            chain: reader.u32()?,
        };
        Ok(Self { number, epoch, base, clock, predecessor })
    }
}

/// The block behind a sealed segment's last frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Footer {
    pub(crate) number: u32,
    /// Its own offset: the end of the frames.
    pub(crate) end: u32,
    pub(crate) last: Lsn,
    pub(crate) chain: u32,
}

impl Footer {
    pub(super) fn encode(&self, seed: u32) -> Vec<u8> {
        let mut out = start_block(FOOTER_MAGIC);
        out.extend(self.number.to_le_bytes());
        out.extend(self.end.to_le_bytes());
        out.extend(self.last.0.to_le_bytes());
        out.extend(self.chain.to_le_bytes());
        finish_block(out, FOOTER_LEN as usize, seed)
    }

    /// The footer of segment `number` at `offset`, or `None` when these bytes are none.
    pub(super) fn decode(path: &Path, bytes: &[u8], number: u32, offset: u32, seed: u32) -> Result<Option<Self>> {
        // The checksum first: a message's body may look like the footer of another version.
        if !bytes.starts_with(&FOOTER_MAGIC) || intact(bytes, seed).is_none() {
            return Ok(None);
        }
        let Some(mut block) = read_block(path, bytes, FOOTER_MAGIC, seed)? else { return Ok(None) };
        let mut read = || -> Result<Self, Short> {
            let fields = &mut block.fields;
            Ok(Self { number: fields.u32()?, end: fields.u32()?, last: Lsn(fields.u64()?), chain: fields.u32()? })
        };
        Ok(read().ok().filter(|footer| footer.number == number && footer.end == offset))
    }
}

/// Where a frame stands, as far as its checksums are concerned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) seed: u32,
    pub(super) segment: u32,
    pub(super) offset: u32,
}

impl Spot {
    /// A frame's checksums start here: bytes of another store, segment, place or opening never pass.
    fn frame_seed(self, epoch: u32) -> u32 {
        codec::crc(self.seed, &[&self.segment.to_le_bytes(), &self.offset.to_le_bytes(), &epoch.to_le_bytes()])
    }
}

/// A frame's first 64 bytes, without magic and own checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameHeader {
    pub(crate) payload_len: u32,
    pub(crate) payload_crc: u32,
    pub(crate) first_lsn: Lsn,
    pub(crate) record_count: u32,
    pub(crate) flags: u32,
    /// Checksum of the frame header before it, or of the segment header.
    pub(crate) previous: u32,
    pub(crate) epoch: u32,
    pub(crate) durable_lsn: Lsn,
    pub(crate) clock: Timestamp,
}

impl FrameHeader {
    /// LSN of the frame's last record.
    pub(crate) const fn last_lsn(&self) -> Lsn {
        self.first_lsn.plus(self.record_count.saturating_sub(1) as u64)
    }

    pub(crate) const fn is_clean(&self) -> bool {
        self.flags & CLEAN != 0
    }

    /// Bytes in the file, padding included.
    pub(super) fn len(&self) -> u32 {
        frame_len(self.payload_len as usize)
    }

    /// The 64 bytes, and their checksum, which the next frame carries.
    pub(super) fn encode(&self, spot: Spot) -> ([u8; FRAME_HEADER_LEN], u32) {
        let mut fields = Vec::with_capacity(FRAME_HEADER_LEN);
        fields.extend(self.payload_len.to_le_bytes());
        fields.extend(self.payload_crc.to_le_bytes());
        fields.extend(self.first_lsn.0.to_le_bytes());
        fields.extend(self.record_count.to_le_bytes());
        fields.extend(self.flags.to_le_bytes());
        fields.extend(self.previous.to_le_bytes());
        fields.extend(self.epoch.to_le_bytes());
        fields.extend(self.durable_lsn.0.to_le_bytes());
        fields.extend(self.clock.0.to_le_bytes());
        fields.extend(0_u64.to_le_bytes());
        let crc = codec::crc(spot.frame_seed(self.epoch), &[&fields]);
        let mut out = [0; FRAME_HEADER_LEN];
        let bytes = FRAME_MAGIC.into_iter().chain(crc.to_le_bytes()).chain(fields);
        out.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
        (out, crc)
    }

    /// The header at `spot` and its checksum; `None` when these bytes are none. Whatever it says
    /// can be believed: the checksum holds, and the lengths are within the format's caps.
    pub(super) fn decode(bytes: &[u8], spot: Spot) -> Option<(Self, u32)> {
        let rest = bytes.get(..FRAME_HEADER_LEN)?.strip_prefix(&FRAME_MAGIC)?;
        let (crc, fields) = rest.split_first_chunk::<CRC_LEN>()?;
        let crc = u32::from_le_bytes(*crc);
        let header = Self::fields(&mut Reader::new(fields)).ok()?;
        let holds = codec::crc(spot.frame_seed(header.epoch), &[fields]) == crc;
        let possible = (1..=MAX_PAYLOAD_LEN).contains(&(header.payload_len as usize))
            && header.record_count > 0
            && header.durable_lsn < header.first_lsn
            && header.first_lsn.0.checked_add(u64::from(header.record_count)).is_some();
        (holds && possible).then_some((header, crc))
    }

    fn fields(reader: &mut Reader<'_>) -> Result<Self, Short> {
        Ok(Self {
            payload_len: reader.u32()?,
            payload_crc: reader.u32()?,
            first_lsn: Lsn(reader.u64()?),
            record_count: reader.u32()?,
            flags: reader.u32()?,
            previous: reader.u32()?,
            epoch: reader.u32()?,
            durable_lsn: Lsn(reader.u64()?),
            clock: Timestamp(reader.u64()?),
        })
    }

    /// Whether `payload` is what was written.
    pub(super) fn holds(&self, payload: &[u8], spot: Spot) -> bool {
        payload_crc(payload, spot, self.epoch) == self.payload_crc
    }
}

/// The checksum of a payload at `spot`, written in opening `epoch`.
pub(super) fn payload_crc(payload: &[u8], spot: Spot, epoch: u32) -> u32 {
    codec::crc(spot.frame_seed(epoch), &[payload])
}
