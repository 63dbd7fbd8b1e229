//! The view for tools.

use super::*;

fn read_all(rig: &Rig) -> Vec<Found> {
    let mut reader = LogReader::open(&rig.disk.fs(), Path::new(DIR)).unwrap();
    std::iter::from_fn(|| reader.next()).map(|found| found.unwrap()).collect()
}

fn frames(found: &[Found]) -> Vec<u64> {
    let frames = found.iter().filter_map(|found| match found {
        Found::Frame(frame) => Some(frame.first_lsn.0),
        _ => None,
    });
    frames.collect()
}

fn damages(found: &[Found]) -> Vec<(u64, Option<u64>, Option<u64>)> {
    let damages = found.iter().filter_map(|found| match found {
        Found::Damage { at, .. } => Some((at.offset, at.first_lsn.map(|lsn| lsn.0), at.last_lsn.map(|lsn| lsn.0))),
        _ => None,
    });
    damages.collect()
}

#[test]
fn a_whole_log_is_read_frame_by_frame_and_unchanged() {
    let rig = Rig::filled(9, 1100);
    let before = rig.disk.hash();
    let found = read_all(&rig);
    assert_eq!(found.len(), 9);
    assert_eq!(frames(&found), (1..=9).collect::<Vec<_>>());
    assert_eq!(rig.disk.hash(), before);
    let mut reader = LogReader::open_from(&rig.disk.fs(), Path::new(DIR), 3).unwrap();
    assert!(matches!(reader.next(), Some(Ok(Found::Frame(frame))) if frame.first_lsn == Lsn(5) && frame.segment == 3));
}

#[test]
fn it_goes_on_behind_a_damaged_frame_header_segment_header_and_a_missing_segment() {
    let rig = Rig::filled(9, 1100);
    let segments = rig.segments();
    rig.edit(&segments[0], |bytes| bytes[700] ^= 1);
    rig.edit(&segments[1], |bytes| bytes[520] ^= 1);
    rig.edit(&segments[2], |bytes| bytes[40] ^= 1);
    rig.disk.remove_raw(&segments[3]);
    let found = read_all(&rig);
    assert_eq!(frames(&found), [2, 4, 9]);
    let expected = [(512, 1, 1), (512, 3, 3), (0, 5, 8)];
    let found = damages(&found);
    assert_eq!(found[..2], expected.map(|(at, a, b)| (at, Some(a), Some(b)))[..2]);
    assert_eq!(found.last().unwrap().2, Some(8));
}

#[test]
fn a_missing_last_segment_is_damage_and_a_stub_is_the_end() {
    let rig = Rig::filled(9, 1100);
    rig.disk.write_raw(rig.last_segment(), *b"x");
    assert!(matches!(read_all(&rig).last(), Some(Found::Tail { len: 1, .. })));
    rig.disk.remove_raw(rig.last_segment());
    assert_eq!(damages(&read_all(&rig)), [(0, Some(9), None)]);
}

#[test]
fn an_unfinished_frame_is_the_end_unless_something_proves_it() {
    let rig = Rig::filled(2, 100);
    rig.edit(&rig.last_segment(), |bytes| bytes[1100] ^= 1);
    let found = read_all(&rig);
    assert_eq!(frames(&found), [1]);
    assert!(matches!(found.last(), Some(Found::Tail { offset: 1024, len: 512, .. })));
    let rig = Rig::filled(3, 100);
    rig.edit(&rig.last_segment(), |bytes| bytes[1100] ^= 1);
    let found = read_all(&rig);
    assert_eq!((frames(&found), damages(&found)), (vec![1, 3], vec![(1024, Some(2), Some(2))]));
}

#[test]
fn it_follows_a_writer_over_rotations_and_passes_over_what_reclaim_removes() {
    let rig = Rig::new();
    let mut log = rig.open().unwrap().found.log;
    let segments = log.segments();
    append_synced(&mut log, 1100);
    let mut reader = LogReader::open(&rig.disk.fs(), Path::new(DIR)).unwrap();
    let mut next = || match reader.next() {
        Some(Ok(Found::Frame(frame))) => frame.first_lsn.0,
        other => panic!("{other:?}"),
    };
    assert_eq!(next(), 1);
    (0..8).for_each(|_| _ = append_synced(&mut log, 1100));
    assert_eq!([next(), next()], [2, 3]);
    segments.remove_before(4).unwrap();
    assert_eq!([next(), next()], [4, 7]);
}

#[test]
fn frames_of_a_newer_version_end_it_with_an_error() {
    let rig = Rig::filled(9, 1100);
    rig.edit(&rig.segments()[1], |bytes| bytes[8] = 9);
    let mut reader = LogReader::open(&rig.disk.fs(), Path::new(DIR)).unwrap();
    let results = std::iter::from_fn(|| reader.next()).collect::<Vec<_>>();
    assert_eq!(results.len(), 3);
    assert_eq!(results[2].as_ref().unwrap_err().kind(), ErrorKind::Unsupported);
}
