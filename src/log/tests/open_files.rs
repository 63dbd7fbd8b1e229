//! How many files are open: a process has few of them to share.

use super::super::segments::MAX_OPEN_COUNT;
use super::*;

fn read(segments: &Segments, number: u32) -> Result<()> {
    segments.read(Position { segment: number, offset: 576, len: 10 }, &mut Vec::new())
}

#[test]
fn no_more_files_stay_open_than_allowed_while_a_log_rotates_and_is_read() {
    let rig = Rig::new();
    let mut log = rig.open().unwrap().found.log;
    for _ in 0..3 * MAX_OPEN_COUNT {
        append_synced(&mut log, 2000);
        assert!(rig.disk.open_count() <= MAX_OPEN_COUNT + 1);
    }
    let segments = log.segments();
    for _ in 0..2 {
        for info in segments.list() {
            read(&segments, info.number).unwrap();
            assert!(rig.disk.open_count() <= MAX_OPEN_COUNT + 1);
        }
    }
}

#[test]
fn a_segment_that_is_removed_is_closed() {
    let rig = Rig::filled(9, 1100);
    let log = rig.open().unwrap().found.log;
    let segments = log.segments();
    let before = rig.disk.open_count();
    (1..=5).for_each(|number| read(&segments, number).unwrap());
    assert_eq!(rig.disk.open_count(), before + 4, "the active one was open");
    segments.remove_before(4).unwrap();
    assert_eq!(rig.disk.open_count(), before + 1);
    rig.disk.fail(Fault { op: Op::Remove, after: 0, times: 1, kind: FaultKind::Eio });
    segments.remove_before(5).unwrap_err();
    read(&segments, 4).unwrap();
    segments.remove_before(5).unwrap();
    assert_eq!(rig.disk.open_count(), before);
}

#[test]
fn threads_that_open_one_file_at_once_or_while_it_is_removed_leave_none_open() {
    for round in 0..20 {
        let rig = Rig::with_seed(round + 1);
        let mut log = rig.open().unwrap().found.log;
        (0..40).for_each(|_| _ = append_synced(&mut log, 1100));
        let last = log.segments().list().last().unwrap().number;
        let segments = log.segments();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for number in (1..last).chain(1..last) {
                        let gone = read(&segments, number).err();
                        assert!(gone.is_none_or(|error| error.kind() == ErrorKind::NotFound));
                    }
                });
            }
            scope.spawn(|| (2..=last).for_each(|first| _ = segments.remove_before(first).unwrap()));
        });
        assert_eq!(segments.list().len(), 1);
        assert_eq!(rig.disk.open_count(), 1, "the active one");
    }
}

#[test]
fn without_a_file_to_open_a_read_or_a_rotation_fails_and_works_when_there_is_one() {
    let rig = Rig::filled(9, 1100);
    let mut log = rig.open().unwrap().found.log;
    let segments = log.segments();
    rig.disk.fail(Fault { op: Op::Any, after: 0, times: u64::MAX, kind: FaultKind::Emfile });
    assert_eq!(read(&segments, 2).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(log.begin(3000, Room::Reserve).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(log.spare().make(u64::MAX).unwrap_err().kind(), ErrorKind::Io);
    assert!(!log.is_broken());
    // What fits goes on.
    append_synced(&mut log, 100);
    rig.disk.clear_faults();
    read(&segments, 2).unwrap();
    append_synced(&mut log, 3000);
    rig.disk.kill();
    rig.disk.fail(Fault { op: Op::Any, after: 7, times: u64::MAX, kind: FaultKind::Emfile });
    assert_eq!(rig.open().err().unwrap().kind(), ErrorKind::Io);
    rig.disk.clear_faults();
    rig.opens_with(11);
}
