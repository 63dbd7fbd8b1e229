//! Room: frames that just fit, frames longer than a segment, a full disk, spares, quarantine.

use super::*;

#[test]
fn a_frame_that_ends_where_the_footer_must_begin_fits_and_one_byte_more_rotates() {
    let room = SEGMENT_LEN as usize - 2 * 512 - FRAME_HEADER_LEN - 1;
    for (len, segment) in [(room - 1, 1), (room, 1)] {
        let rig = Rig::new();
        let mut log = rig.open().unwrap().found.log;
        assert_eq!(append_synced(&mut log, len).segment, segment);
        rig.disk.kill();
        let before = rig.disk.read_raw(rig.last_segment()).unwrap();
        rig.opens_with(1);
        assert_eq!(rig.segments().len(), 2);
        let after = rig.disk.read_raw(&rig.segments()[0]).unwrap();
        assert_eq!(after[..512 + 3072 - 512], before[..512 + 3072 - 512], "earlier bytes changed");
    }
    let rig = Rig::filled(1, 10);
    let mut log = rig.open().unwrap().found.log;
    assert_eq!(append_synced(&mut log, room - 512).segment, 1);
    assert_eq!(append_synced(&mut log, room + 1).segment, 2);
}

#[test]
fn a_last_segment_that_ends_with_its_last_frame_goes_on_in_the_next() {
    let rig = Rig::filled(2, 900);
    let path = rig.last_segment();
    for room in [0, 1, 63, 64, 511, 512, 513] {
        let rig = rig.fork();
        rig.edit(&path, |bytes| bytes.truncate(512 + 2048 + room));
        assert_eq!(rig.opens_with(2).found.torn, None);
        assert_eq!(rig.segments().len(), 2);
    }
}

#[test]
fn a_payload_longer_than_a_segment_gets_a_segment_as_long_as_it_needs() {
    for first in [10, 20_000] {
        let rig = Rig::new();
        let mut log = rig.open().unwrap().found.log;
        log.spare().make(u64::MAX).unwrap();
        append_synced(&mut log, first);
        append_synced(&mut log, 50_000);
        append_synced(&mut log, 10);
        let used = log.log_len();
        assert_eq!(used, log.segments().list().iter().map(|info| info.used).sum::<u64>());
        rig.disk.kill();
        rig.opens_with(3);
    }
}

#[test]
fn without_room_for_a_segment_begin_changes_nothing_and_works_when_there_is_room() {
    for first in [900, 1] {
        let rig = Rig::filled(first, 900);
        let mut log = rig.open().unwrap().found.log;
        rig.leave(100);
        let before = rig.disk.hash();
        for _ in 0..3 {
            assert_eq!(log.begin(3000, Room::Ordinary).unwrap_err().kind(), ErrorKind::Full);
            assert!(!log.is_broken());
            assert_eq!(rig.disk.hash(), before);
        }
        if first == 1 {
            // What fits goes on.
            append_synced(&mut log, 500);
        }
        rig.disk.set_capacity(None);
        append_synced(&mut log, 3000);
        let last = log.durable_lsn().0;
        rig.disk.kill();
        rig.opens_with(last);
    }
}

#[test]
fn a_spare_that_is_ready_serves_a_rotation_on_a_full_disk() {
    let rig = Rig::filled(2, 900);
    let mut log = rig.open().unwrap().found.log;
    let spare = log.spare();
    assert!(spare.make(u64::MAX).unwrap());
    assert!(!spare.make(u64::MAX).unwrap(), "it is ready already");
    rig.fill_up();
    append_synced(&mut log, 2000);
    assert_eq!(spare.make(u64::MAX).unwrap_err().kind(), ErrorKind::Full);
    assert!(rig.disk.read_raw("/store/log/next.spare").is_none(), "a part of a spare is of no use");
    rig.disk.kill();
    rig.opens_with(3);
}

#[test]
fn a_spare_that_an_earlier_opening_left_is_used_on_a_full_disk_and_never_trusted() {
    let rig = Rig::filled(2, 900);
    rig.open().unwrap().found.log.spare().make(u64::MAX).unwrap();
    rig.disk.kill();
    assert!(rig.disk.remove_raw("/store/log/reserve.spare"));
    rig.edit(Path::new("/store/log/next.spare"), |bytes| bytes.fill(0xAB));
    rig.fill_up();
    let mut log = rig.open().unwrap().found.log;
    append_synced(&mut log, 2000);
    append_synced(&mut log, 10);
    rig.disk.kill();
    let again = rig.open().unwrap();
    assert_intact(&again.frames, 4);
    assert_eq!(again.found.torn, None);
}

#[test]
fn a_full_disk_does_not_keep_a_torn_tail_from_being_cut() {
    let rig = Rig::filled(1, 100);
    let mut log = rig.open().unwrap().found.log;
    append(&mut log, 1500);
    rig.disk.kill();
    rig.edit(&rig.last_segment(), |bytes| bytes[1536..2048].fill(0));
    rig.fill_up();
    let opened = rig.opens_with(1);
    assert_eq!(opened.found.torn.unwrap().kept, None);
}

#[test]
fn a_full_disk_does_not_keep_a_broken_newest_header_from_being_mended() {
    let rig = Rig::filled(2, 900);
    let mut log = rig.open().unwrap().found.log;
    append(&mut log, 2000);
    rig.disk.kill();
    let path = rig.last_segment();
    rig.edit(&path, |bytes| bytes.fill(0));
    let full = rig.fork();
    full.fill_up();
    full.opens_with(2);
    // Nor does an empty file, for which there is no room: what there is is served, and the log goes on
    // when there is room.
    rig.disk.write_raw(&path, []);
    rig.fill_up();
    let mut opened = rig.open().unwrap();
    assert_intact(&opened.frames, 2);
    assert_eq!(opened.found.log.begin(10, Room::Ordinary).unwrap_err().kind(), ErrorKind::Full);
    rig.disk.kill();
    assert_intact(&rig.open().unwrap().frames, 2);
    let mut log = opened_again(&rig);
    rig.disk.set_capacity(None);
    append_synced(&mut log, 10);
    rig.disk.kill();
    rig.opens_with(3);
}

fn opened_again(rig: &Rig) -> Log {
    rig.open().unwrap().found.log
}

#[test]
fn a_torn_tail_is_kept_until_quarantine_is_full_and_what_is_there_is_never_removed() {
    let rig = Rig::filled(1, 100);
    let mut log = rig.open().unwrap().found.log;
    append(&mut log, 1500);
    rig.disk.kill();
    rig.edit(&rig.last_segment(), |bytes| bytes[1536..2048].fill(0));
    for count in [63, 64] {
        let rig = rig.fork();
        (0..count).for_each(|at| rig.disk.write_raw(format!("/store/quarantine/{at}"), *b"x"));
        let torn = rig.opens_with(1).found.torn.unwrap();
        assert_eq!(torn.kept.is_some(), count == 63);
        assert!(rig.disk.read_raw("/store/quarantine/0").is_some());
    }
}

#[test]
fn a_segment_that_can_not_be_removed_is_named_and_stays_until_the_next_call_removes_it() {
    for kind in [FaultKind::Eacces, FaultKind::Erofs, FaultKind::Eio, FaultKind::Enospc] {
        let rig = Rig::filled(9, 1100);
        let segments = rig.open().unwrap().found.log.segments();
        let path = segments.path(2).unwrap();
        for times in [1, 2] {
            rig.disk.fail(Fault { op: Op::Remove, after: 2 - times, times: 1, kind });
            let error = segments.remove_before(4).unwrap_err();
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
            assert_eq!(error.kind(), if kind == FaultKind::Enospc { ErrorKind::Full } else { ErrorKind::Io });
            assert_eq!(segments.list().iter().map(|info| info.number).collect::<Vec<_>>(), [2, 3, 4, 5]);
            let mut bytes = Vec::new();
            segments.read(Position { segment: 2, offset: 576, len: 1100 }, &mut bytes).unwrap();
            assert_eq!(bytes, payload(3, 1100));
        }
        assert_eq!(segments.remove_before(4).unwrap(), 2);
        rig.checkpoint(9, 4);
        rig.disk.kill();
        assert_eq!(rig.open().unwrap().found.last_lsn, Lsn(9));
        assert_eq!(rig.segments().len(), 2);
    }
}

#[test]
fn segments_are_removed_from_the_front_and_never_the_active_one() {
    let rig = Rig::filled(9, 1100);
    rig.checkpoint(9, 3);
    let log = rig.open().unwrap().found.log;
    let segments = log.segments();
    assert_eq!(segments.list().first().unwrap().number, 3);
    assert_eq!(segments.remove_before(4).unwrap(), 1);
    assert_eq!(segments.remove_before(4).unwrap(), 0);
    rig.disk.fail(Fault { op: Op::Remove, after: 0, times: 1, kind: FaultKind::Eio });
    segments.remove_before(5).unwrap_err();
    assert_eq!(segments.list().first().unwrap().number, 4);
    assert_eq!(segments.remove_before(99).unwrap(), 1);
    assert_eq!(segments.list().len(), 1);
    assert_eq!(rig.segments().len(), 1);
    let at = Position { segment: 3, offset: 576, len: 10 };
    assert_eq!(segments.read(at, &mut Vec::new()).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn read_only_recovery_changes_nothing_and_gives_a_log_that_can_not_be_written() {
    let mut rig = Rig::filled(2, 900);
    let mut log = rig.open().unwrap().found.log;
    append(&mut log, 1500);
    rig.disk.kill();
    rig.disk.write_raw("/store/log/x.tmp", *b"x");
    rig.edit(&rig.last_segment(), |bytes| bytes[1024..1536].fill(0));
    rig.read_only = true;
    let before = rig.disk.hash();
    let mut opened = rig.open().unwrap();
    assert_intact(&opened.frames, 2);
    assert!(opened.found.log.is_broken() && opened.found.log.begin(1, Room::Ordinary).is_err());
    assert!(opened.found.removed_files.is_empty());
    assert_eq!(rig.disk.hash(), before);
}
