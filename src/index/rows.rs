//! Rows and their bytes: a page of entries, the meta row, the uses of segments.
//!
//! ```text
//! row       version u8 │ content │ crc u32 (over key, version, content; seeded with the store)
//! page      count │ dead │ held │ min_segment │ min_visible u64 │ max_visible u64 │ min_event u64 │
//!           ids │ entries
//! id        distance to the id before, less one; the first: distance to the key's first id
//! entry     flags │ sent_at │ [visible_at] │ [expires_at] │ [epoch │ receive_count │ attempts │
//!           first_received_at │ received_at] │ [segment] │ offset │ len │ [lsn] │ [origin] │ [detail]
//! meta      store 16 │ applied u64 │ clock u64 │ live u64 │ hash u64 │ rows u64
//! segments  (segment in the group u8 │ messages │ bytes) …
//! ```
//!
//! Fields without a width are varints. Times, `lsn` and the position are differences from what they
//! are near: `sent_at` and the position from the entry before, `lsn` from the id, the other times from
//! `sent_at`. A message that was sent and not yet touched takes 5 to 9 bytes.
//!
//! # Invariants
//! A flipped bit is an error, never another entry (15). No bytes at all make decoding panic or
//! allocate more than one page.
//!
//! # Not here
//! Which rows there are, and when they are written: `mod.rs`, `apply.rs`.

use std::collections::BTreeMap;

use super::SegmentUse;
use super::directory::{PageMeta, Settled};
use super::keys::{self, PageKey};
use crate::codec::{Reader, Short, crc, put_varint, unzigzag, zigzag};
use crate::types::{Entry, Lsn, MessageId, Phase, Position, QueueId, StoreId, Timestamp};

/// Most entries of a page.
pub(super) const MAX_PAGE_LEN: usize = 256;
/// Segments whose uses share a row.
pub(super) const GROUP_LEN: u32 = 256;

/// Version 1 did not name the lowest segment. An index of another version is damaged like any other, and rebuilt.
const VERSION: u8 = 2;
const CRC_LEN: usize = 4;

/// A row whose bytes are not what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bad;

impl From<Short> for Bad {
    fn from(_: Short) -> Self {
        Self
    }
}

impl From<std::num::TryFromIntError> for Bad {
    fn from(_: std::num::TryFromIntError) -> Self {
        Self
    }
}

/// What is remembered of a row without its bytes: which version is the right one, and how long it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Stamp {
    /// The checksum at the end of the row.
    pub(super) check: u32,
    /// Bytes of the key and the row.
    pub(super) len: u32,
}

impl Stamp {
    fn new(key: &[u8], row: &[u8], check: u32) -> Self {
        // A row that is written is never as long as that.
        Self { check, len: u32::try_from(key.len() + row.len()).unwrap_or(u32::MAX) }
    }
}

/// Begins a row; the content is appended, then [`seal`].
fn begin(capacity: usize) -> Vec<u8> {
    let mut row = Vec::with_capacity(capacity + CRC_LEN + 1);
    row.push(VERSION);
    row
}

/// Ends a row.
fn seal(key: &[u8], mut row: Vec<u8>, seed: u32) -> (Vec<u8>, Stamp) {
    let check = crc(seed, &[key, &row]);
    row.extend_from_slice(&check.to_le_bytes());
    let stamp = Stamp::new(key, &row, check);
    (row, stamp)
}

/// The content of a row whose checksum was found to be right.
fn unseal<'a>(key: &[u8], row: &'a [u8], seed: u32) -> Result<(Reader<'a>, Stamp), Bad> {
    let (sealed, check) = row.split_last_chunk::<CRC_LEN>().ok_or(Bad)?;
    let check = u32::from_le_bytes(*check);
    if crc(seed, &[key, sealed]) != check {
        return Err(Bad);
    }
    let mut reader = Reader::new(sealed);
    if reader.u8()? == VERSION { Ok((reader, Stamp::new(key, row, check))) } else { Err(Bad) }
}

/// A row whose content means nothing to the index.
pub(super) fn encode_opaque(key: &[u8], content: &[u8], seed: u32) -> (Vec<u8>, Stamp) {
    let mut row = begin(content.len());
    row.extend_from_slice(content);
    seal(key, row, seed)
}

/// The content of any row but the meta row.
pub(super) fn decode_opaque<'a>(key: &[u8], row: &'a [u8], seed: u32) -> Result<(&'a [u8], Stamp), Bad> {
    let (mut reader, stamp) = unseal(key, row, seed)?;
    Ok((reader.bytes(reader.remaining())?, stamp))
}

/// What stands once in the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Meta {
    pub(super) store: StoreId,
    pub(super) applied: Lsn,
    pub(super) clock: Timestamp,
    pub(super) live: u64,
    pub(super) hash: u64,
    /// Over the checksums of all other rows: none is missing, none too many, none out of date.
    pub(super) rows: u64,
}

pub(super) fn encode_meta(meta: &Meta) -> Vec<u8> {
    let mut row = begin(56);
    row.extend_from_slice(meta.store.as_bytes());
    for field in [meta.applied.0, meta.clock.0, meta.live, meta.hash, meta.rows] {
        row.extend_from_slice(&field.to_le_bytes());
    }
    seal(&keys::META, row, 0).0
}

/// Not seeded with the store, so that a row of another store can say so.
pub(super) fn decode_meta(row: &[u8]) -> Result<Meta, Bad> {
    let (mut reader, _) = unseal(&keys::META, row, 0)?;
    let meta = Meta {
        store: StoreId(reader.array()?),
        applied: Lsn(reader.u64()?),
        clock: Timestamp(reader.u64()?),
        live: reader.u64()?,
        hash: reader.u64()?,
        rows: reader.u64()?,
    };
    if reader.remaining() == 0 { Ok(meta) } else { Err(Bad) }
}

/// The uses of the segments of one group. `uses` holds these segments only.
pub(super) fn encode_uses<'a>(
    key: &[u8],
    uses: impl Iterator<Item = (&'a u32, &'a SegmentUse)>,
    seed: u32,
) -> (Vec<u8>, Stamp) {
    let mut row = begin(64);
    for (segment, used) in uses {
        let [low, ..] = segment.to_le_bytes();
        row.push(low);
        put_varint(&mut row, used.messages);
        put_varint(&mut row, used.bytes);
    }
    seal(key, row, seed)
}

pub(super) fn decode_uses(
    key: &[u8],
    row: &[u8],
    group: u32,
    seed: u32,
) -> Result<(BTreeMap<u32, SegmentUse>, Stamp), Bad> {
    let (mut reader, stamp) = unseal(key, row, seed)?;
    let mut uses = BTreeMap::new();
    let base = group.checked_mul(GROUP_LEN).ok_or(Bad)?;
    while reader.remaining() > 0 {
        let segment = base + u32::from(reader.u8()?);
        let used = SegmentUse { messages: reader.varint()?, bytes: reader.varint()? };
        if uses.insert(segment, used).is_some() {
            return Err(Bad);
        }
    }
    Ok((uses, stamp))
}

const VISIBLE: u64 = 1;
const EXPIRES: u64 = 1 << 1;
const RECEIVED: u64 = 1 << 2;
const SEGMENT: u64 = 1 << 3;
const LSN: u64 = 1 << 4;
const PHASE_SHIFT: u32 = 5;
const ORIGIN: u64 = 1 << 7;
const DETAIL: u64 = 1 << 8;
const KNOWN: u64 = (1 << 9) - 1;

const fn phase_bits(phase: Phase) -> u64 {
    match phase {
        Phase::Queued => 0,
        Phase::Held => 1 << PHASE_SHIFT,
        Phase::Dead => 2 << PHASE_SHIFT,
    }
}

const fn phase_of(flags: u64) -> Option<Phase> {
    match (flags >> PHASE_SHIFT) & 3 {
        0 => Some(Phase::Queued),
        1 => Some(Phase::Held),
        2 => Some(Phase::Dead),
        _ => None,
    }
}

/// `value` as a signed distance from `base`; any two numbers have one.
const fn distance(value: u64, base: u64) -> u64 {
    zigzag(value.wrapping_sub(base).cast_signed())
}

const fn at_distance(distance: u64, base: u64) -> u64 {
    base.wrapping_add(unzigzag(distance).cast_unsigned())
}

/// What the next entry is encoded against.
#[derive(Clone, Copy, Default)]
struct Near {
    sent_at: u64,
    segment: u32,
    /// Where the record before ends.
    end: u64,
    len: u32,
}

impl Near {
    fn step(&mut self, entry: &Entry) {
        let Position { segment, offset, len } = entry.body;
        *self = Self { sent_at: entry.sent_at.0, segment, end: u64::from(offset) + u64::from(len), len };
    }

    /// Where a record in `segment` is expected.
    const fn expected(&self, segment: u32) -> u64 {
        if segment == self.segment { self.end } else { 0 }
    }
}

fn is_received(e: &Entry) -> bool {
    (e.epoch, e.receive_count, e.attempts) != (0, 0, 0)
        || (e.first_received_at, e.received_at) != (Timestamp::ZERO, Timestamp::ZERO)
}

fn put_entry(out: &mut Vec<u8>, near: &Near, e: &Entry) {
    let flag = |on: bool, bit| if on { bit } else { 0 };
    let flags = phase_bits(e.phase)
        | flag(e.visible_at != e.sent_at, VISIBLE)
        | flag(e.expires_at != Timestamp::MAX, EXPIRES)
        | flag(is_received(e), RECEIVED)
        | flag(e.body.segment != near.segment, SEGMENT)
        | flag(e.lsn.0 != e.id.0, LSN)
        | flag(e.origin.is_some(), ORIGIN)
        | flag(e.detail != Position::NONE, DETAIL);
    put_varint(out, flags);
    put_varint(out, distance(e.sent_at.0, near.sent_at));
    let mut put = |on: u64, value: u64| {
        if flags & on != 0 {
            put_varint(out, value);
        }
    };
    put(VISIBLE, distance(e.visible_at.0, e.sent_at.0));
    put(EXPIRES, distance(e.expires_at.0, e.sent_at.0));
    put(RECEIVED, e.epoch.into());
    put(RECEIVED, e.receive_count.into());
    put(RECEIVED, e.attempts.into());
    put(RECEIVED, distance(e.first_received_at.0, e.sent_at.0));
    put(RECEIVED, distance(e.received_at.0, e.first_received_at.0));
    put(SEGMENT, distance(e.body.segment.into(), near.segment.into()));
    put_varint(out, distance(e.body.offset.into(), near.expected(e.body.segment)));
    put_varint(out, distance(e.body.len.into(), near.len.into()));
    let mut put = |on: u64, value: u64| {
        if flags & on != 0 {
            put_varint(out, value);
        }
    };
    put(LSN, distance(e.lsn.0, e.id.0));
    put(ORIGIN, e.origin.map_or(0, |queue| queue.0));
    put(DETAIL, e.detail.segment.into());
    put(DETAIL, e.detail.offset.into());
    put(DETAIL, e.detail.len.into());
}

fn get_entry(reader: &mut Reader<'_>, near: &Near, page: PageKey, id: MessageId) -> Result<Entry, Bad> {
    let flags = reader.varint()?;
    if flags & !KNOWN != 0 {
        return Err(Bad);
    }
    let phase = phase_of(flags).ok_or(Bad)?;
    let has = |bit: u64| flags & bit != 0;
    let sent_at = at_distance(reader.varint()?, near.sent_at);
    let visible_at = if has(VISIBLE) { at_distance(reader.varint()?, sent_at) } else { sent_at };
    let expires_at = if has(EXPIRES) { at_distance(reader.varint()?, sent_at) } else { u64::MAX };
    let (mut counts, mut first_received_at, mut received_at) = ([0; 3], 0, 0);
    if has(RECEIVED) {
        for count in &mut counts {
            *count = u32::try_from(reader.varint()?)?;
        }
        first_received_at = at_distance(reader.varint()?, sent_at);
        received_at = at_distance(reader.varint()?, first_received_at);
    }
    let [epoch, receive_count, attempts] = counts;
    let segment = match has(SEGMENT) {
        true => at_distance(reader.varint()?, near.segment.into()).try_into()?,
        false => near.segment,
    };
    let offset = at_distance(reader.varint()?, near.expected(segment)).try_into()?;
    let len = at_distance(reader.varint()?, near.len.into()).try_into()?;
    let lsn = if has(LSN) { at_distance(reader.varint()?, id.0) } else { id.0 };
    let origin = if has(ORIGIN) { Some(QueueId(reader.varint()?)) } else { None };
    let mut detail = Position::NONE;
    if has(DETAIL) {
        let mut field = || reader.varint().map_err(Bad::from).and_then(|n| Ok(u32::try_from(n)?));
        detail = Position { segment: field()?, offset: field()?, len: field()? };
    }
    Ok(Entry {
        id,
        queue: page.lane.queue,
        priority: page.lane.priority(),
        phase,
        origin,
        epoch,
        receive_count,
        attempts,
        sent_at: Timestamp(sent_at),
        visible_at: Timestamp(visible_at),
        expires_at: Timestamp(expires_at),
        first_received_at: Timestamp(first_received_at),
        received_at: Timestamp(received_at),
        body: Position { segment, offset, len },
        detail,
        lsn: Lsn(lsn),
    })
}

/// A page's row, and its meta data with the row's stamp. `entries` are 1 to [`MAX_PAGE_LEN`], all of
/// the key's lane, in order of id, none below the key's first id.
pub(super) fn encode_page(
    key: PageKey,
    key_bytes: &[u8],
    entries: &[Entry],
    settled: Settled,
    seed: u32,
) -> (Vec<u8>, PageMeta) {
    assert!((1..=MAX_PAGE_LEN).contains(&entries.len()), "a page of {} entries", entries.len());
    let mut meta = PageMeta::of(entries, settled);
    let mut row = begin(64 + 10 * entries.len());
    for count in [meta.count, meta.dead, meta.held] {
        put_varint(&mut row, count.into());
    }
    put_varint(&mut row, meta.min_segment.into());
    for time in [meta.min_visible, meta.max_visible, meta.min_event] {
        row.extend_from_slice(&time.0.to_le_bytes());
    }
    let mut next = key.first.0;
    for entry in entries {
        put_varint(&mut row, entry.id.0.wrapping_sub(next));
        next = entry.id.0.wrapping_add(1);
    }
    let mut near = Near::default();
    for entry in entries {
        put_entry(&mut row, &near, entry);
        near.step(entry);
    }
    let (row, stamp) = seal(key_bytes, row, seed);
    meta.stamp = stamp;
    (row, meta)
}

/// The front of a page's row: its meta data, and the reader where the ids begin.
fn read_head<'a>(key: &[u8], row: &'a [u8], seed: u32) -> Result<(PageMeta, Reader<'a>), Bad> {
    let (mut reader, stamp) = unseal(key, row, seed)?;
    let mut count = || reader.varint().map_err(Bad::from).and_then(|n| Ok(u16::try_from(n)?));
    let (count, dead, held) = (count()?, count()?, count()?);
    let min_segment = u32::try_from(reader.varint()?)?;
    let mut time = || reader.u64().map(Timestamp);
    let (min_visible, max_visible, min_event) = (time()?, time()?, time()?);
    if !(1..=MAX_PAGE_LEN).contains(&count.into()) || dead.checked_add(held).is_none_or(|sum| sum > count) {
        return Err(Bad);
    }
    Ok((PageMeta { count, dead, held, stamp, min_segment, min_visible, max_visible, min_event }, reader))
}

/// A page's meta data; of the rest only the checksum is looked at.
pub(super) fn decode_page_meta(key: &[u8], row: &[u8], seed: u32) -> Result<PageMeta, Bad> {
    read_head(key, row, seed).map(|(meta, _)| meta)
}

fn read_ids(reader: &mut Reader<'_>, key: PageKey, count: u16) -> Result<Vec<MessageId>, Bad> {
    let mut ids = Vec::with_capacity(count.into());
    let mut next = Some(key.first.0);
    for _ in 0..count {
        let id = next.and_then(|next| next.checked_add(reader.varint().ok()?)).ok_or(Bad)?;
        ids.push(MessageId(id));
        next = id.checked_add(1);
    }
    Ok(ids)
}

/// A page's stamp, and whether it holds `id`: much cheaper than decoding it.
pub(super) fn page_holds(
    key: PageKey,
    key_bytes: &[u8],
    row: &[u8],
    id: MessageId,
    seed: u32,
) -> Result<(Stamp, bool), Bad> {
    let (meta, mut reader) = read_head(key_bytes, row, seed)?;
    let ids = read_ids(&mut reader, key, meta.count)?;
    Ok((meta.stamp, ids.binary_search(&id).is_ok()))
}

/// A page's meta data and all its entries.
pub(super) fn decode_page(
    key: PageKey,
    key_bytes: &[u8],
    row: &[u8],
    seed: u32,
) -> Result<(PageMeta, Vec<Entry>), Bad> {
    let (meta, mut reader) = read_head(key_bytes, row, seed)?;
    let ids = read_ids(&mut reader, key, meta.count)?;
    let mut entries = Vec::with_capacity(ids.len());
    let mut near = Near::default();
    for id in ids {
        let entry = get_entry(&mut reader, &near, key, id)?;
        near.step(&entry);
        entries.push(entry);
    }
    // What has an event depends on the clock of that time; the rest must come out as it was written.
    let agrees = meta.agrees_with(&PageMeta::of(&entries, Settled(Timestamp::MAX)));
    if reader.remaining() == 0 && agrees { Ok((meta, entries)) } else { Err(Bad) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::keys::Lane;
    use super::*;

    const SEED: u32 = 99;

    fn key(first: u64) -> PageKey {
        PageKey { lane: Lane::new(QueueId(7), -3), first: MessageId(first) }
    }

    fn fresh(id: u64) -> Entry {
        let at = Timestamp(1_700_000_000_000 + id / 40);
        Entry {
            id: MessageId(id),
            queue: QueueId(7),
            priority: -3,
            phase: Phase::Queued,
            origin: None,
            epoch: 0,
            receive_count: 0,
            attempts: 0,
            sent_at: at,
            visible_at: at,
            expires_at: Timestamp::MAX,
            first_received_at: Timestamp::ZERO,
            received_at: Timestamp::ZERO,
            body: Position { segment: 3, offset: u32::try_from(id % 50_000 * 1100).unwrap(), len: 1040 },
            detail: Position::NONE,
            lsn: Lsn(id),
        }
    }

    fn any_time() -> impl Strategy<Value = Timestamp> {
        prop_oneof![
            Just(Timestamp::ZERO),
            Just(Timestamp::MAX),
            any::<u64>().prop_map(Timestamp),
            (0..99_u64).prop_map(Timestamp)
        ]
    }

    fn any_position() -> impl Strategy<Value = Position> {
        any::<(u32, u32, u32)>().prop_map(|(segment, offset, len)| Position { segment, offset, len })
    }

    prop_compose! {
        fn any_entry()(
            gap in prop_oneof![1..3_u64, 1..1_u64 << 40],
            phase in prop_oneof![Just(Phase::Queued), Just(Phase::Held), Just(Phase::Dead)],
            origin in any::<Option<u64>>(),
            counts in any::<(u32, u32, u32)>(),
            times in (any_time(), any_time(), any_time(), any_time(), any_time()),
            body in any_position(),
            detail in prop_oneof![Just(Position::NONE), any_position()],
            lsn in any::<u64>(),
        ) -> Entry {
            Entry {
                id: MessageId(gap),
                queue: QueueId(7),
                priority: -3,
                phase,
                origin: origin.map(QueueId),
                epoch: counts.0,
                receive_count: counts.1,
                attempts: counts.2,
                sent_at: times.0,
                visible_at: times.1,
                expires_at: times.2,
                first_received_at: times.3,
                received_at: times.4,
                body,
                detail,
                lsn: Lsn(lsn),
            }
        }
    }

    fn any_page() -> impl Strategy<Value = Vec<Entry>> {
        prop::collection::vec(any_entry(), 1..=MAX_PAGE_LEN).prop_map(|mut entries| {
            let mut id = 0;
            for entry in &mut entries {
                id += entry.id.0;
                entry.id = MessageId(id);
            }
            entries
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_page_is_read_back_as_it_was_written(entries in any_page(), settled in any_time()) {
            let key = key(entries[0].id.0 / 2);
            let bytes = key.encode();
            let (row, meta) = encode_page(key, &bytes, &entries, Settled(settled), SEED);
            prop_assert!(row.len() < super::super::kv::MAX_VALUE_LEN);
            prop_assert_eq!(decode_page_meta(&bytes, &row, SEED), Ok(meta));
            prop_assert_eq!(decode_page(key, &bytes, &row, SEED), Ok((meta, entries.clone())));
            let last = entries[entries.len() - 1].id;
            prop_assert_eq!(page_holds(key, &bytes, &row, last, SEED), Ok((meta.stamp, true)));
            prop_assert_eq!(page_holds(key, &bytes, &row, MessageId(last.0 + 1), SEED), Ok((meta.stamp, false)));
        }

        #[test]
        fn no_bytes_make_decoding_panic(content in prop::collection::vec(any::<u8>(), 0..400), head in any::<bool>()) {
            let key = key(5);
            let bytes = key.encode();
            // With a right head, the random bytes are taken for ids and entries.
            let mut all = if head { [&[3, 0, 0, 0][..], &[0; 24]].concat() } else { vec![] };
            all.extend(content);
            let (row, _) = encode_opaque(&bytes, &all, SEED);
            let _ = decode_page(key, &bytes, &row, SEED);
            let _ = page_holds(key, &bytes, &row, MessageId(9), SEED);
            let _ = decode_uses(&bytes, &row, u32::MAX, SEED);
            let _ = decode_uses(&bytes, &row, 1, SEED);
            let _ = decode_meta(&encode_opaque(&keys::META, &all, 0).0);
            prop_assert!(decode_page(key, &bytes, &all, SEED).is_err());
        }
    }

    #[test]
    fn every_flipped_bit_and_every_other_key_store_or_length_is_refused() {
        let entries: Vec<_> = (100..110).map(fresh).collect();
        let bytes = key(100).encode();
        let (row, _) = encode_page(key(100), &bytes, &entries, Settled(Timestamp::MAX), SEED);
        for bit in 0..row.len() * 8 {
            let mut bad = row.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_page(key(100), &bytes, &bad, SEED), Err(Bad), "bit {bit}");
        }
        for len in 0..row.len() {
            assert_eq!(decode_page_meta(&bytes, &row[..len], SEED), Err(Bad));
        }
        assert_eq!(decode_page(key(99), &key(99).encode(), &row, SEED), Err(Bad));
        assert_eq!(decode_page(key(100), &bytes, &row, SEED + 1), Err(Bad));
    }

    #[test]
    fn a_fresh_message_takes_less_than_10_bytes() {
        let entries: Vec<_> = (1_000_000..1_000_256).map(fresh).collect();
        let bytes = key(1_000_000).encode();
        let (row, _) = encode_page(key(1_000_000), &bytes, &entries, Settled(Timestamp::MAX), SEED);
        assert!(row.len() < 10 * entries.len(), "{} bytes", row.len());
    }

    #[test]
    fn meta_and_uses_are_read_back() {
        let meta = Meta { store: StoreId([5; 16]), applied: Lsn(1), clock: Timestamp(2), live: 3, hash: 4, rows: 5 };
        assert_eq!(decode_meta(&encode_meta(&meta)), Ok(meta));
        let uses: BTreeMap<_, _> =
            [(256, SegmentUse { messages: 1, bytes: 2 }), (511, SegmentUse { messages: u64::MAX, bytes: 0 })].into();
        let key = keys::segments(1);
        let (row, stamp) = encode_uses(&key, uses.iter(), SEED);
        assert_eq!(decode_uses(&key, &row, 1, SEED), Ok((uses, stamp)));
        let key = keys::segments(u32::MAX / GROUP_LEN);
        let (row, _) = encode_uses(&key, [(&u32::MAX, &SegmentUse::default())].into_iter(), SEED);
        assert!(decode_uses(&key, &row, u32::MAX / GROUP_LEN, SEED).is_ok());
    }
}
