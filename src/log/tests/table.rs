//! Torn tail or corruption: the table, and every way to tear the last frame.

use super::super::recovery::{Verdict, verdict};
use super::super::segment::Seen;
use super::*;

#[test]
fn the_verdict_is_the_tables_for_every_combination() {
    let all = [Seen::Zeros, Seen::Cut, Seen::Hole, Seen::Damaged];
    for seen in all {
        assert_eq!(verdict(false, false, seen), Verdict::Corrupt);
        assert_eq!(verdict(false, true, seen), Verdict::Corrupt);
        assert_eq!(verdict(true, true, seen), Verdict::Corrupt);
    }
    let verdicts = all.map(|seen| verdict(true, false, seen));
    assert_eq!(verdicts, [Verdict::CleanEnd, Verdict::Torn, Verdict::Torn, Verdict::Ambiguous]);
}

/// Frame 1, small and durable; then a frame of four sectors that nothing proves.
fn with_unproven_last() -> (Rig, PathBuf, usize) {
    let rig = Rig::filled(1, 100);
    let mut log = rig.open().unwrap().found.log;
    append(&mut log, 3 * 512);
    rig.disk.kill();
    let path = rig.last_segment();
    (rig, path, 512 + 512)
}

#[test]
fn a_zero_rest_of_the_last_segment_is_a_clean_end() {
    let (rig, path, start) = with_unproven_last();
    rig.edit(&path, |bytes| bytes[start..].fill(0));
    assert_eq!(rig.opens_with(1).found.torn, None);
}

#[test]
fn every_subset_of_lost_sectors_is_a_torn_tail() {
    let (rig, path, start) = with_unproven_last();
    for lost in 1_u32..15 {
        let rig = rig.fork();
        rig.edit(&path, |bytes| {
            (0..4).filter(|sector| lost & 1 << sector != 0).for_each(|sector| {
                let at = start + sector * 512;
                bytes[at..at + 512].fill(0);
            });
        });
        let torn = rig.opens_with(1).found.torn.unwrap_or_else(|| panic!("sectors {lost:04b} are lost"));
        assert_eq!((torn.file, torn.offset, torn.ambiguous), (path.clone(), start as u64, false));
        assert_eq!(torn.bytes % 512, 0);
        assert_eq!(rig.disk.read_raw(torn.kept.unwrap()).unwrap().len() as u64, torn.bytes);
    }
}

#[test]
fn a_file_cut_at_any_byte_of_the_last_frame_is_a_torn_tail_until_the_frame_is_whole() {
    let (rig, path, start) = with_unproven_last();
    let payload_end = start + FRAME_HEADER_LEN + 3 * 512;
    for len in (start..start + 700).chain(payload_end - 3..payload_end + 3).chain([start + 4 * 512]) {
        let rig = rig.fork();
        rig.edit(&path, |bytes| bytes.truncate(len));
        let last = if len >= payload_end { 2 } else { 1 };
        let torn = rig.opens_with(last).found.torn;
        assert_eq!(torn.is_some(), len > start && len < payload_end, "cut at {}", len - start);
    }
}

#[test]
fn a_write_that_stopped_at_any_byte_of_the_header_is_a_torn_tail() {
    let (rig, path, start) = with_unproven_last();
    for len in 1..FRAME_HEADER_LEN {
        let rig = rig.fork();
        rig.edit(&path, |bytes| bytes[start + len..].fill(0));
        assert!(rig.opens_with(1).found.torn.is_some(), "{len} bytes were written");
    }
}

#[test]
fn a_write_that_stopped_at_any_byte_is_a_torn_tail_until_the_payload_is_whole() {
    for len in [1, 300, 447, 448, 449, 2 * 512, 1900] {
        let rig = Rig::filled(1, 100);
        let mut log = rig.open().unwrap().found.log;
        append(&mut log, len);
        rig.disk.kill();
        for written in (FRAME_HEADER_LEN..FRAME_HEADER_LEN + len).step_by(61).chain([FRAME_HEADER_LEN + len - 1]) {
            let rig = rig.fork();
            rig.edit(&rig.last_segment(), |bytes| bytes[1024 + written..].fill(0));
            assert!(rig.opens_with(1).found.torn.is_some(), "{written} bytes of {len} were written");
        }
        rig.edit(&rig.last_segment(), |bytes| bytes[1024 + FRAME_HEADER_LEN + len..].fill(0));
        assert_eq!(rig.opens_with(2).found.torn, None);
    }
}

#[test]
fn a_cut_that_stopped_at_any_byte_is_taken_up_again() {
    let (rig, path, start) = with_unproven_last();
    for zeroed in 1..700 {
        let rig = rig.fork();
        rig.edit(&path, |bytes| bytes[start..start + zeroed].fill(0));
        assert!(rig.opens_with(1).found.torn.is_some(), "{zeroed} bytes were zeroed");
    }
}

#[test]
fn zeros_behind_the_end_of_the_file_change_nothing() {
    let (rig, path, _) = with_unproven_last();
    rig.edit(&path, |bytes| bytes.resize(bytes.len() + 4096, 0));
    assert_eq!(rig.opens_with(2).found.torn, None);
}

#[test]
fn a_payload_that_is_wrong_without_a_hole_is_refused_and_cut_only_when_told() {
    let (mut rig, path, start) = with_unproven_last();
    rig.edit(&path, |bytes| bytes[start + 700] ^= 1);
    let damage = rig.corrupt();
    assert_eq!((damage.file, damage.offset, damage.first_lsn), (path, start as u64, Some(Lsn(2))));
    rig.tail = Tail::Truncate;
    let torn = rig.opens_with(1).found.torn.unwrap();
    assert!(torn.ambiguous && torn.kept.is_some());
}

#[test]
fn a_header_that_is_wrong_without_a_hole_is_refused_and_cut_only_when_told() {
    let (mut rig, path, start) = with_unproven_last();
    rig.edit(&path, |bytes| bytes[start + 9] ^= 1);
    assert_eq!(rig.corrupt().offset, start as u64);
    rig.tail = Tail::Truncate;
    assert!(rig.opens_with(1).found.torn.unwrap().ambiguous);
}

#[test]
fn an_ambiguous_end_is_not_cut_when_it_can_not_be_kept() {
    let (mut rig, path, start) = with_unproven_last();
    rig.edit(&path, |bytes| bytes[start + 700] ^= 1);
    rig.tail = Tail::Truncate;
    let used = rig.disk.list_raw().iter().map(|(_, len)| len).sum();
    rig.disk.set_capacity(Some(used));
    let before = rig.disk.hash();
    assert_eq!(rig.open().err().unwrap().kind(), ErrorKind::Full);
    rig.disk.remove_raw("/store/quarantine");
    assert_eq!(rig.disk.hash(), before);
}

#[test]
fn what_the_checkpoint_proves_is_never_a_torn_tail() {
    let (mut rig, path, start) = with_unproven_last();
    rig.checkpoint(2, 1);
    rig.tail = Tail::Truncate;
    rig.edit(&path, |bytes| bytes[start + 512..].fill(0));
    let damage = rig.corrupt();
    assert_eq!((damage.first_lsn, damage.last_lsn), (Some(Lsn(2)), Some(Lsn(2))));
    rig.edit(&path, |bytes| bytes[start..].fill(0));
    assert_eq!(rig.corrupt().offset, start as u64);
    rig.edit(&path, |bytes| bytes.truncate(start));
    assert_eq!(rig.corrupt().offset, start as u64);
}

#[test]
fn what_a_later_frame_proves_is_never_a_torn_tail_whatever_the_hole() {
    // Frame 3 says that 2 is durable.
    let (mut rig, path, start) = with_unproven_last();
    let mut log = rig.open().unwrap().found.log;
    append(&mut log, 40);
    rig.disk.kill();
    rig.tail = Tail::Truncate;
    for sector in 0..4 {
        let rig = rig.fork();
        rig.edit(&path, |bytes| bytes[start + sector * 512..start + sector * 512 + 512].fill(0));
        let damage = rig.corrupt();
        assert_eq!((damage.offset, damage.first_lsn, damage.last_lsn), (start as u64, Some(Lsn(2)), Some(Lsn(2))));
    }
}

#[test]
fn a_later_frame_that_proves_nothing_is_cut_with_the_hole_before_it() {
    let rig = Rig::filled(1, 100);
    let mut log = rig.open().unwrap().found.log;
    (0..3).for_each(|_| _ = append(&mut log, 200));
    rig.disk.kill();
    rig.edit(&rig.last_segment(), |bytes| bytes[1024..1536].fill(0));
    let opened = rig.opens_with(1);
    assert_eq!(opened.found.torn.unwrap().bytes, 3 * 512);
}

#[test]
fn a_clean_mark_proves_what_is_before_it() {
    let mut rig = Rig::new();
    let mut log = rig.open().unwrap().found.log;
    append(&mut log, 100);
    log.begin(1, Room::Ordinary).unwrap();
    log.append_clean(&mut vec![1; FRAME_HEADER_LEN + 1], 1, Timestamp(1)).unwrap();
    log.sync().unwrap();
    rig.disk.kill();
    assert!(rig.open().unwrap().found.ends_clean);
    rig.tail = Tail::Truncate;
    rig.edit(&rig.last_segment(), |bytes| bytes[512..1024].fill(0));
    assert_eq!(rig.corrupt().first_lsn, Some(Lsn(1)));
}

#[test]
fn a_frame_inside_a_lost_frames_payload_proves_nothing() {
    // A message's body may be a copy of the segment it is written to.
    let rig = Rig::filled(2, 100);
    let path = rig.last_segment();
    let copy = rig.disk.read_raw(&path).unwrap()[512..1536].to_vec();
    let mut log = rig.open().unwrap().found.log;
    let start = log.begin(448 + 1024, Room::Ordinary).unwrap().payload_offset as usize - FRAME_HEADER_LEN;
    let mut frame = vec![3; FRAME_HEADER_LEN + 448];
    frame.extend(copy);
    log.append(&mut frame, 1, Timestamp(1)).unwrap();
    rig.disk.kill();
    for lost in [start, start + 512] {
        let rig = rig.fork();
        rig.edit(&path, |bytes| bytes[lost..lost + 512].fill(0));
        assert!(rig.opens_with(2).found.torn.is_some());
    }
}

#[test]
fn a_body_that_looks_like_a_footer_of_another_version_does_not_keep_the_store_shut() {
    let rig = Rig::filled(1, 100);
    let mut log = rig.open().unwrap().found.log;
    log.begin(1000, Room::Ordinary).unwrap();
    let mut frame = vec![3; FRAME_HEADER_LEN + 448];
    frame.extend(*b"REAPPEND\x09\0\0\0");
    frame.extend([7; 512]);
    log.append(&mut frame, 1, Timestamp(1)).unwrap();
    rig.disk.kill();
    rig.edit(&rig.last_segment(), |bytes| bytes[1024..1536].fill(0));
    assert!(rig.opens_with(1).found.torn.is_some());
}

#[test]
fn a_hole_that_is_not_in_the_last_segment_is_corruption() {
    let mut rig = Rig::filled(12, 900);
    rig.tail = Tail::Truncate;
    let first = rig.segments()[0].clone();
    rig.edit(&first, |bytes| bytes[1024..1536].fill(0));
    let damage = rig.corrupt();
    assert_eq!((damage.file, damage.offset, damage.first_lsn), (first, 512, Some(Lsn(1))));
}

#[test]
fn a_read_error_is_that_error_and_not_the_end() {
    let rig = Rig::filled(12, 900);
    let reads = rig.disk.calls(Op::Read);
    rig.open().unwrap();
    let reads = rig.disk.calls(Op::Read) - reads;
    for after in 0..reads {
        let rig = rig.fork();
        rig.disk.fail(Fault { op: Op::Read, after, times: 1, kind: FaultKind::Eio });
        let before = rig.disk.hash();
        let error = rig.open().err().unwrap_or_else(|| panic!("read {after} failed unnoticed"));
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(rig.disk.hash(), before);
    }
}
