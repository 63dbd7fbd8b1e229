//! What is kept back for a full disk, and writes that find no room in blocks that are there.

use super::*;

const NEXT: &str = "/store/log/next.spare";
const RESERVE: &str = "/store/log/reserve.spare";

fn opened(rig: &Rig) -> Log {
    rig.open().unwrap().found.log
}

fn rooms(log: &Log) -> (u64, u64) {
    let rooms = log.spare().rooms();
    (rooms.spare, rooms.reserve)
}

fn reserved(log: &mut Log, len: usize) -> Position {
    let at = try_append_in(log, len, Room::Reserve).unwrap();
    log.sync().unwrap();
    at
}

fn newest(log: &Log) -> u64 {
    log.segments().list().last().unwrap().len
}

/// A log of two frames, with spare and reserve ready and no room for anything else.
fn ready_and_full() -> (Rig, Log) {
    let rig = Rig::filled(2, 900);
    let log = opened(&rig);
    log.spare().make(u64::MAX).unwrap();
    rig.fill_up();
    (rig, log)
}

#[test]
fn the_reserve_is_made_first_and_what_is_ready_stays_when_there_is_no_room_for_the_other() {
    let rig = Rig::new();
    let log = opened(&rig);
    let spare = log.spare();
    for (free, ready) in [(4095, (0, 0)), (8191, (0, 4096)), (4095, (0, 4096))] {
        rig.leave(free);
        assert_eq!(spare.make(u64::MAX).unwrap_err().kind(), ErrorKind::Full);
        assert_eq!(rooms(&log), ready);
        assert_eq!(spare.len_on_disk(), ready.0 + ready.1);
        assert!(rig.disk.read_raw(NEXT).is_none());
    }
    rig.leave(4096);
    assert!(spare.make(u64::MAX).unwrap());
    assert!(!spare.make(u64::MAX).unwrap());
    assert_eq!((rooms(&log), spare.len_on_disk()), ((4096, 4096), 8192));
    let files = rig.disk.list_raw().into_iter().filter(|(path, _)| path.starts_with("/store/log"));
    assert_eq!(files.map(|(_, len)| len).sum::<u64>(), spare.len_on_disk() + log.segments().disk_len());
}

#[test]
fn on_a_full_disk_the_reserve_serves_the_frames_that_may_have_it_and_no_others() {
    let (rig, mut log) = ready_and_full();
    assert_eq!(append_synced(&mut log, 2000).segment, 2);
    assert_eq!(rooms(&log), (0, 4096));
    rig.fill_up();
    let before = rig.disk.hash();
    assert_eq!(log.begin(2000, Room::Ordinary).unwrap_err().kind(), ErrorKind::Full);
    assert!(!log.is_broken());
    assert_eq!(rig.disk.hash(), before);
    assert_eq!(reserved(&mut log, 2000).segment, 3);
    assert_eq!((rooms(&log), newest(&log)), ((0, 0), 4096));
    // Room for less than a segment is room for a shorter one.
    rig.leave(3000);
    assert_eq!(reserved(&mut log, 1200).segment, 4);
    assert_eq!(newest(&log), 512 + 1536 + 512);
    rig.fill_up();
    assert_eq!(try_append_in(&mut log, 1200, Room::Reserve).unwrap_err().kind(), ErrorKind::Full);
    rig.disk.set_capacity(None);
    append_synced(&mut log, 2000);
    assert_eq!(newest(&log), 4096);
    rig.disk.kill();
    rig.opens_with(6);
}

#[test]
fn without_a_reserve_a_segment_is_half_as_long_or_a_quarter_down_to_what_the_frame_needs() {
    for (free, len) in [(0, None), (1535, None), (1536, Some(1536)), (2047, Some(1536)), (2048, Some(2048))]
        .into_iter()
        .chain([(3000, Some(2048)), (4095, Some(2048)), (4096, Some(4096))])
    {
        let rig = Rig::filled(3, 900);
        let mut log = opened(&rig);
        // It is full to the last byte: sealing gives nothing back.
        assert_eq!(log.room_left(), 0);
        rig.leave(free);
        let begun = log.begin(447, Room::Reserve);
        assert_eq!(begun.as_ref().err().map(Error::kind), len.map_or(Some(ErrorKind::Full), |_| None), "{free}");
        assert!(!log.is_broken());
        if let Some(len) = len {
            assert_eq!(newest(&log), len, "{free}");
            reserved(&mut log, 447);
        }
        assert_eq!(log.spare().len_on_disk(), 0);
        assert!(rig.disk.read_raw(NEXT).is_none());
        let last = log.durable_lsn().0;
        rig.disk.kill();
        rig.disk.set_capacity(None);
        rig.opens_with(last);
    }
}

#[test]
fn a_frame_longer_than_a_segment_gets_the_blocks_of_both_where_they_are_enough() {
    for first in [0, 2] {
        for (len, fits) in [(6000, true), (7000, true), (8000, false)] {
            let rig = Rig::filled(first, 900);
            let mut log = opened(&rig);
            log.spare().make(u64::MAX).unwrap();
            rig.fill_up();
            assert_eq!(try_append(&mut log, len).unwrap_err().kind(), ErrorKind::Full);
            assert_eq!(rooms(&log), (4096, 4096));
            // An empty segment grows by what both have; a new one is the reserve, grown by what the spare has.
            let fits = fits || first == 0;
            match try_append_in(&mut log, len, Room::Reserve) {
                Ok(_) => assert!(fits),
                Err(error) => {
                    assert!(!fits && error.kind() == ErrorKind::Full);
                    assert_eq!(rooms(&log), (0, 4096), "it serves shorter ones");
                }
            }
            if !fits {
                reserved(&mut log, 900);
            }
            log.sync().unwrap();
            let last = log.durable_lsn().0;
            rig.disk.kill();
            rig.disk.set_capacity(None);
            rig.opens_with(last);
        }
    }
}

#[test]
fn what_an_earlier_opening_left_is_ready_again_on_a_full_disk_and_is_never_trusted() {
    let (rig, log) = ready_and_full();
    drop(log);
    rig.disk.kill();
    [NEXT, RESERVE].iter().for_each(|name| rig.edit(Path::new(name), |bytes| bytes.fill(0xAB)));
    for make in [true, false] {
        let rig = rig.fork();
        let mut log = opened(&rig);
        assert_eq!((rooms(&log), log.spare().len_on_disk()), ((0, 0), 8192));
        if make {
            assert!(log.spare().make(u64::MAX).unwrap());
            assert_eq!(rooms(&log), (4096, 4096));
        }
        reserved(&mut log, 2000);
        rig.fill_up();
        reserved(&mut log, 2000);
        assert_eq!(log.spare().len_on_disk(), 0);
        rig.disk.kill();
        rig.disk.set_capacity(None);
        rig.opens_with(4);
    }
    // As long as it is, where a whole one is longer now.
    let mut rig = rig;
    rig.segment_len = 8192;
    assert!(rig.disk.remove_raw(NEXT));
    rig.fill_up();
    let mut log = opened(&rig);
    assert_eq!(log.spare().make(u64::MAX).unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(rooms(&log), (0, 0));
    reserved(&mut log, 2000);
    assert_eq!(newest(&log), 4096);
    rig.disk.kill();
    rig.disk.set_capacity(None);
    rig.opens_with(3);
}

/// BB-035.
#[test]
fn a_thousand_makes_and_begins_without_room_leave_two_files_at_most() {
    let faults = [None, Some(FaultKind::Enospc), Some(FaultKind::Edquot)];
    for fault in faults {
        let rig = Rig::filled(2, 900);
        let mut log = opened(&rig);
        rig.leave(600);
        let before = rig.disk.list_raw();
        for round in 0..1000 {
            if let Some(kind) = fault {
                let op = [Op::Create, Op::Write, Op::Sync, Op::Rename, Op::Any][round % 5];
                rig.disk.fail(Fault { op, after: round as u64 % 3, times: u64::MAX, kind });
                // Then it is not the capacity that fails it.
                rig.disk.set_capacity(None);
            }
            if log.spare().make(u64::MAX).is_err() || fault.is_none() {
                let room = if round % 2 == 0 { Room::Ordinary } else { Room::Reserve };
                let begun = log.begin(3000, room).map(|_| ());
                assert!(fault.is_some() || begun.is_err_and(|error| error.kind() == ErrorKind::Full));
            }
            rig.disk.clear_faults();
            if log.is_broken() {
                rig.disk.kill();
                log = opened(&rig);
            }
            let extra = rig
                .disk
                .list_raw()
                .into_iter()
                .filter(|(path, _)| path.starts_with("/store") && path.extension().is_some_and(|end| end != "seg"));
            assert!(extra.count() <= 2);
        }
        if fault.is_none() {
            assert_eq!(rig.disk.list_raw(), before);
        }
        rig.disk.set_capacity(None);
        let last = log.written_lsn().0;
        rig.disk.kill();
        assert_eq!(rig.opens_with(last).found.removed_files.len(), 0);
    }
}

#[test]
fn an_append_that_finds_no_room_in_its_blocks_is_written_once_more_without_the_spares() {
    for kind in [FaultKind::Enospc, FaultKind::Edquot] {
        for (times, spares) in [(1, true), (1, false), (2, true), (u64::MAX, true)] {
            let rig = Rig::filled(2, 100);
            let mut log = opened(&rig);
            if spares {
                log.spare().make(u64::MAX).unwrap();
            }
            log.begin(1800, Room::Ordinary).unwrap();
            rig.disk.fail(Fault { op: Op::Write, after: 0, times, kind });
            let mut frame = vec![0; FRAME_HEADER_LEN];
            frame.extend(payload(3, 1800));
            let (calls, syncs) = (rig.disk.calls(Op::Write), rig.disk.calls(Op::Sync));
            let appended = log.append(&mut frame, 1, Timestamp(1));
            assert_eq!(rig.disk.calls(Op::Write), calls + 2);
            assert_eq!(rig.disk.calls(Op::Sync), syncs);
            assert_eq!((rooms(&log), log.spare().len_on_disk()), ((0, 0), 0));
            assert!([NEXT, RESERVE].iter().all(|name| rig.disk.read_raw(name).is_none()));
            rig.disk.clear_faults();
            assert_eq!((appended.is_ok(), log.is_broken()), (times == 1, times > 1));
            assert_eq!(appended.err().map(|error| error.kind()), (times > 1).then_some(ErrorKind::Full));
            if times == 1 {
                log.sync().unwrap();
                assert!(log.spare().make(u64::MAX).unwrap(), "they are made again");
            }
            rig.disk.kill();
            rig.opens_with(if times == 1 { 3 } else { 2 });
        }
    }
}

#[test]
fn a_sync_that_finds_no_room_is_never_done_again() {
    for kind in [FaultKind::Enospc, FaultKind::Edquot] {
        let rig = Rig::filled(2, 100);
        let mut log = opened(&rig);
        append(&mut log, 100);
        rig.disk.fail(Fault { op: Op::Sync, after: 0, times: 1, kind });
        let before = rig.disk.calls(Op::Sync);
        assert_eq!(log.sync().unwrap_err().kind(), ErrorKind::Full);
        assert_eq!(log.sync().unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(rig.disk.calls(Op::Sync), before + 1);
        rig.disk.kill();
        rig.opens_with(3);
    }
}

#[test]
fn no_room_in_any_call_of_a_begin_that_may_have_the_reserve_fails_it_unless_a_sync_broke_the_log() {
    for kind in [FaultKind::Enospc, FaultKind::Edquot] {
        for spares in [true, false] {
            let mut broken = 0;
            for after in 0.. {
                let rig = Rig::filled(2, 900);
                let mut log = opened(&rig);
                if spares {
                    log.spare().make(u64::MAX).unwrap();
                }
                append_synced(&mut log, 900);
                rig.disk.fail(Fault { op: Op::Any, after, times: 1, kind });
                let begun = log.begin(900, Room::Reserve);
                let was_hit = rig.disk.injected() > 0;
                rig.disk.clear_faults();
                assert_ne!(begun.is_ok(), log.is_broken(), "{kind:?} in call {after}: {begun:?}");
                broken += u64::from(log.is_broken());
                if !log.is_broken() {
                    reserved(&mut log, 900);
                }
                let last = log.written_lsn().0;
                rig.disk.kill();
                rig.opens_with(last);
                if !was_hit {
                    break;
                }
            }
            assert_eq!(broken, 2, "the directory, the footer");
        }
    }
}

#[test]
fn a_torn_tail_that_can_not_be_zeroed_for_want_of_room_is_zeroed_without_the_spares() {
    let (rig, mut log) = ready_and_full();
    append(&mut log, 900);
    rig.disk.kill();
    rig.edit(&rig.last_segment(), |bytes| bytes[512 + 2048 + 512..512 + 3072].fill(0));
    rig.disk.fail_on(".seg", Fault { op: Op::Write, after: 1, times: 1, kind: FaultKind::Enospc });
    let opened = rig.opens_with(2);
    assert!(opened.found.torn.is_some());
    assert_eq!(rig.disk.injected(), 1);
    assert!([NEXT, RESERVE].iter().all(|name| rig.disk.read_raw(name).is_none()));
}

#[test]
fn what_was_written_and_what_is_left_add_up() {
    let rig = Rig::filled(1, 100);
    let mut log = opened(&rig);
    assert_eq!((log.written_len(), log.room_left()), (0, 4096 - 3 * 512));
    append_synced(&mut log, 900);
    assert_eq!((log.written_len(), log.room_left()), (1024, 4096 - 3 * 512 - 1024));
    log.begin(usize::try_from(log.room_left()).unwrap() - FRAME_HEADER_LEN - 1, Room::Ordinary).unwrap();
    append_synced(&mut log, 3000);
    append_synced(&mut log, 10);
    assert_eq!((log.written_len(), log.room_left()), (1024 + 3072 + 512, 4096 - 2 * 512 - 512));
    let segments = log.segments();
    let files = || rig.segments().iter().map(|path| rig.disk.read_raw(path).unwrap().len() as u64).sum::<u64>();
    assert_eq!(segments.disk_len(), files());
    assert_eq!(segments.remove_before(3).unwrap(), 2);
    assert_eq!(segments.disk_len(), files());
    assert_eq!(log.written_len(), 1024 + 3072 + 512);
}
