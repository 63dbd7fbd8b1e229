//! The index against a plain map of all messages, on both stores, over reopening, damage and power cuts.

#![expect(clippy::cast_possible_truncation, reason = "the numbers in these tests are small")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::rows::MAX_PAGE_LEN;
use super::{Batch, Counts, Index, Kv, MemDisk, MemKv, Purge, SegmentUse, SledKv, mix, mix_id};
use crate::error::ErrorKind;
use crate::types::{Entry, Lsn, MessageId, Phase, Place, Position, QueueId, State, StoreId, Timestamp};

mod disk;
mod model;
mod renew;

const STORE: StoreId = StoreId([7; 16]);

fn open(kv: impl Kv + 'static) -> Index {
    Index::open(Box::new(kv), STORE).unwrap()
}

fn place(queue: u64, priority: i16, id: u64) -> Place {
    Place { queue: QueueId(queue), priority, id: MessageId(id) }
}

fn entry(place: Place, at: u64) -> Entry {
    let Place { queue, priority, id } = place;
    Entry {
        id,
        queue,
        priority,
        phase: Phase::Queued,
        origin: None,
        epoch: 0,
        receive_count: 0,
        attempts: 0,
        sent_at: Timestamp(at),
        visible_at: Timestamp(at),
        expires_at: Timestamp::MAX,
        first_received_at: Timestamp::ZERO,
        received_at: Timestamp::ZERO,
        body: Position { segment: 1, offset: 512, len: 100 },
        detail: Position::NONE,
        lsn: Lsn(id.0),
    }
}

/// A batch that puts fresh messages.
fn puts(places: impl IntoIterator<Item = Place>, applied: u64) -> Batch {
    let mut batch = Batch::new(Lsn(applied), Timestamp(applied));
    batch.changes.extend(places.into_iter().map(|place| (place, Some(entry(place, applied)))));
    batch
}

fn removes(places: impl IntoIterator<Item = Place>, applied: u64) -> Batch {
    let mut batch = Batch::new(Lsn(applied), Timestamp(applied));
    batch.changes.extend(places.into_iter().map(|place| (place, None)));
    batch
}

fn ids(index: &mut Index) -> Vec<u64> {
    let mut ids = vec![];
    index.for_each(&mut |entry| ids.push(entry.id.0)).unwrap();
    ids
}

/// Rows that are neither pages nor the meta row: one group of segments in these tests.
const OTHER_ROWS: usize = 2;

fn pages(index: &Index) -> usize {
    index.row_count() - OTHER_ROWS
}

#[test]
fn appended_messages_fill_their_pages_and_inserted_ones_split_them_in_half() {
    let mut index = open(MemKv::new());
    for (n, chunk) in (0..10 * MAX_PAGE_LEN as u64).collect::<Vec<_>>().chunks(100).enumerate() {
        index.apply(&puts(chunk.iter().map(|id| place(1, 0, id * 10)), n as u64 + 1)).unwrap();
    }
    assert_eq!(pages(&index), 10);
    index.apply(&puts([place(1, 0, 5)], 100)).unwrap();
    assert_eq!(pages(&index), 11);
    let mut expected: Vec<_> = (0..10 * MAX_PAGE_LEN as u64).map(|id| id * 10).collect();
    expected.insert(1, 5);
    assert_eq!(ids(&mut index), expected);
}

#[test]
fn messages_moved_in_below_the_first_page_stay_few_pages() {
    let disk = MemDisk::new();
    let mut index = open(disk.open());
    for id in (1..=1000).rev() {
        index.apply(&puts([place(1, 0, id)], 2000 - id)).unwrap();
    }
    assert!(pages(&index) <= 8, "{} pages", pages(&index));
    assert_eq!(ids(&mut index), (1..=1000).collect::<Vec<_>>());
    assert_eq!(ids(&mut open(disk.open())), (1..=1000).collect::<Vec<_>>());
}

#[test]
fn a_lane_that_is_emptied_at_random_gives_its_pages_back() {
    let mut index = open(MemKv::new());
    index.apply(&puts((0..100 * MAX_PAGE_LEN as u64).map(|id| place(1, 0, id)), 1)).unwrap();
    let (gone, kept): (Vec<_>, Vec<_>) = (0..100 * MAX_PAGE_LEN as u64).partition(|id| !mix(*id).is_multiple_of(20));
    for (n, chunk) in gone.chunks(500).enumerate() {
        index.apply(&removes(chunk.iter().map(|id| place(1, 0, *id)), n as u64 + 2)).unwrap();
    }
    assert!(pages(&index) <= 25, "{} pages for {} messages", pages(&index), kept.len());
    assert_eq!(ids(&mut index), kept);
    index.apply(&removes(kept.iter().map(|id| place(1, 0, *id)), 1000)).unwrap();
    assert_eq!((index.row_count(), index.live(), index.lanes()), (1, (0, 0), vec![]));
    assert!(index.segment_uses().is_empty());
}

#[test]
fn a_queue_whose_messages_all_have_their_own_priority_works() {
    let mut index = open(MemKv::new());
    let places: Vec<_> =
        (-1000..1000_i16).map(|n| place(3, n, mix(n.unsigned_abs().into()) ^ u64::from(n < 0))).collect();
    index.apply(&puts(places.iter().copied(), 1)).unwrap();
    assert_eq!(index.lanes(), (-1000..1000).rev().map(|n| (QueueId(3), n)).collect::<Vec<_>>());
    for place in &places {
        assert_eq!(index.get(QueueId(3), place.id).unwrap().unwrap().place(), *place);
    }
    assert_eq!(index.get(QueueId(3), MessageId(12345)).unwrap(), None);
    assert_eq!(index.get(QueueId(2), places[0].id).unwrap(), None);
    assert_eq!(index.get(QueueId(4), places[0].id).unwrap(), None);
}

#[test]
fn the_last_id_and_the_ends_of_time_are_ordinary() {
    let disk = MemDisk::new();
    let mut index = open(disk.open());
    let mut last = entry(place(1, i16::MIN, u64::MAX), 1);
    last.visible_at = Timestamp::MAX;
    let mut batch = puts([place(1, i16::MAX, 0)], 1);
    batch.changes.insert(last.place(), Some(last));
    index.apply(&batch).unwrap();
    let mut index = open(disk.open());
    let now = Timestamp::MAX;
    assert_eq!(index.ready(QueueId(1), i16::MIN, MessageId::MAX, 9, now).unwrap(), (vec![last], None));
    assert_eq!(index.events(Timestamp::ZERO, Timestamp::MAX, 9).unwrap(), (vec![], Timestamp::MAX));
    assert_eq!(index.get(QueueId(1), MessageId::MAX).unwrap(), Some(last));
    let (all, more) = index.scan(QueueId(1), None, 9, &|_| true).unwrap();
    assert_eq!((all.len(), more), (2, None));
}

#[test]
fn many_events_of_one_moment_come_together_and_the_next_slice_goes_on() {
    let mut index = open(MemKv::new());
    let mut batch = Batch::new(Lsn(1), Timestamp(1));
    for id in 0..3000 {
        let mut held = entry(place(1, 0, id), 1);
        (held.phase, held.visible_at) = (Phase::Held, Timestamp(if id % 3 == 0 { 50 } else { 100 + id % 2 }));
        batch.changes.insert(held.place(), Some(held));
    }
    index.apply(&batch).unwrap();
    let mut from = Timestamp::ZERO;
    let mut sizes = vec![];
    while from < Timestamp(1000) {
        let (found, reached) = index.events(from, Timestamp(1000), 10).unwrap();
        sizes.push(found.len());
        from = reached;
    }
    assert_eq!(sizes, [1000, 1000, 1000, 0]);
    let (again, _) = index.events(Timestamp::ZERO, Timestamp(1000), 10_000).unwrap();
    assert_eq!(again.len(), 3000, "an earlier stretch can be asked for again");
}

#[test]
fn a_scan_is_cut_into_bounded_slices() {
    let mut index = open(MemKv::new());
    index.apply(&puts((0..200 * MAX_PAGE_LEN as u64).map(|id| place(1, 0, id)), 1)).unwrap();
    let (mut from, mut slices, mut found) = (None, 0, vec![]);
    loop {
        let (some, next) = index.scan(QueueId(1), from, 1000, &|entry| entry.id.0 % 20_000 == 7).unwrap();
        found.extend(some.iter().map(|entry| entry.id.0));
        slices += 1;
        from = next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!((found, slices), (vec![7, 20_007, 40_007], 4));
}

#[test]
fn a_queue_row_that_is_too_long_is_refused_and_nothing_else_happens() {
    let mut index = open(MemKv::new());
    let mut batch = puts([place(1, 0, 1)], 1);
    batch.queues.insert(QueueId(1), Some(vec![0; super::MAX_VALUE_LEN]));
    assert_eq!(index.apply(&batch).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!((index.applied(), ids(&mut index)), (Lsn::ZERO, vec![]));
    index.apply(&puts([place(1, 0, 1)], 1)).unwrap();
}

#[test]
fn a_detail_in_the_record_of_the_body_is_counted_once() {
    let mut index = open(MemKv::new());
    let mut moved = entry(place(1, 0, 1), 1);
    moved.detail = moved.body;
    let mut apart = entry(place(1, 0, 2), 1);
    apart.detail = Position { segment: 1, offset: 4096, len: 50 };
    let mut far = entry(place(1, 0, 3), 1);
    far.detail = Position { segment: 700, offset: 4096, len: 50 };
    let mut batch = Batch::new(Lsn(1), Timestamp(1));
    batch.changes.extend([moved, apart, far].map(|entry| (entry.place(), Some(entry))));
    index.apply(&batch).unwrap();
    let expected = [(1, SegmentUse { messages: 3, bytes: 350 }), (700, SegmentUse { messages: 1, bytes: 50 })];
    assert_eq!(*index.segment_uses(), BTreeMap::from(expected));
    index.apply(&removes([place(1, 0, 3)], 2)).unwrap();
    assert_eq!(*index.segment_uses(), BTreeMap::from([(1, SegmentUse { messages: 2, bytes: 250 })]));
}

#[test]
fn to_find_what_stands_in_the_oldest_segment_no_other_page_is_read() {
    let (disk, len) = (MemDisk::new(), MAX_PAGE_LEN as u64);
    let mut index = open(disk.open());
    let mut batch = puts((0..20 * len).map(|id| place(1, 0, id)), 1);
    for entry in batch.changes.values_mut().flatten() {
        entry.body.segment = 5 + (entry.id.0 / len) as u32;
        entry.detail =
            if entry.id.0 == 12 * len { Position { segment: 5, offset: 9, len: 50 } } else { Position::NONE };
    }
    index.apply(&batch).unwrap();
    let mut index = open(disk.open());
    disk.damage(|rows| {
        let mut page = 0;
        rows.retain(|key, _| {
            page += u64::from(key[0] == 0x10);
            key[0] != 0x10 || [1, 13].contains(&page)
        });
    });
    let mut found: Vec<_> = index.in_segment(5, 9999, u64::MAX).unwrap().iter().map(|entry| entry.id.0).collect();
    assert_eq!(found.pop(), Some(12 * len));
    assert_eq!(found, (0..len).collect::<Vec<_>>());
    assert_eq!(index.in_segment(5, 9999, 0).unwrap().len(), 1);
    assert_eq!(index.in_segment(5, 9999, 350).unwrap().len(), 3);
    assert_eq!(index.in_segment(4, 9999, u64::MAX).unwrap(), []);
    assert_eq!(index.in_segment(6, 9999, u64::MAX).unwrap_err().kind(), ErrorKind::Corrupt);
}
