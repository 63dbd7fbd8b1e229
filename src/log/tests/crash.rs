//! Kills and power cuts at every call.

use super::*;

/// What a life of a process did: LSNs up to `synced` are acknowledged, up to `written` tried.
struct Life {
    synced: u64,
    written: u64,
}

/// Opens and appends until a call fails or `frames` are there.
fn live(rig: &Rig, frames: usize, life: &mut Life) {
    let Ok(opened) = rig.open() else { return };
    let mut log = opened.found.log;
    let sizes = [30, 1500, 448, 5000, 449, 2500, 1];
    life.written = log.written_lsn().0;
    for index in 0..frames {
        if index % 5 == 3 && log.spare().make(u64::MAX).is_err() {
            return;
        }
        life.written = log.next_lsn().0;
        if try_append(&mut log, sizes[index % sizes.len()]).is_err() {
            return;
        }
        if index % 3 != 2 {
            if log.sync().is_err() {
                return;
            }
            life.synced = log.durable_lsn().0;
        }
    }
}

fn check(rig: &Rig, life: &Life, what: &str) -> u64 {
    let opened = rig.open().unwrap_or_else(|error| panic!("{what}: {error}"));
    let last = opened.found.last_lsn.0;
    assert!((life.synced..=life.written).contains(&last), "{what}: {last} of {}..={}", life.synced, life.written);
    assert_intact(&opened.frames, last);
    assert_eq!(opened.found.log.durable_lsn(), Lsn(last));
    last
}

fn crash_everywhere(loss: Option<Loss>, tail: Tail, seed: u64) {
    let mut after = 0;
    loop {
        let mut rig = Rig::with_seed(seed + after);
        rig.tail = tail;
        rig.disk.fail(Fault { op: Op::Any, after, times: 1, kind: FaultKind::Crash });
        let mut life = Life { synced: 0, written: 0 };
        live(&rig, 14, &mut life);
        let survived = !rig.disk.is_dead();
        rig.disk.clear_faults();
        loss.map_or_else(|| rig.disk.kill(), |loss| rig.disk.power_cut_with(loss));
        let what = format!("crash in call {after}, {loss:?}");
        // The opening after it may crash too, anywhere.
        rig.disk.fail(Fault { op: Op::Any, after: after % 61, times: 1, kind: FaultKind::Crash });
        drop(rig.open());
        rig.disk.clear_faults();
        loss.map_or_else(|| rig.disk.kill(), |loss| rig.disk.power_cut_with(loss));
        let last = check(&rig, &life, &what);
        // Whatever was served once is there for good, over a power cut too.
        rig.disk.power_cut_with(Loss::All);
        let life = Life { synced: last, written: last };
        check(&rig, &life, &what);
        rig.opens_with(last);
        if survived {
            break;
        }
        after += 1;
    }
    assert!(after > 60, "only {after} calls were made");
}

#[test]
fn what_was_synced_survives_a_kill_at_every_call() {
    crash_everywhere(None, Tail::Refuse, 1);
}

#[test]
fn what_was_synced_survives_a_power_cut_at_every_call_that_loses_all() {
    crash_everywhere(Some(Loss::All), Tail::Refuse, 1);
}

#[test]
fn what_was_synced_survives_a_power_cut_at_every_call_that_loses_any_sectors() {
    for round in 0..2 {
        crash_everywhere(Some(Loss::RandomSectors), Tail::Refuse, round * 1000 + 1);
    }
}

#[test]
fn what_was_synced_survives_a_power_cut_at_every_call_that_tears_sectors() {
    // A disk that tears sectors leaves ends that only a person can judge.
    crash_everywhere(Some(Loss::Random), Tail::Truncate, 1);
}

#[test]
fn creating_can_be_cut_at_every_call_and_done_again() {
    for after in 0.. {
        let disk = SimDisk::new(after + 1);
        disk.fs().create_dir(Path::new(DIR)).unwrap();
        disk.fs().sync_dir(Path::new("/")).unwrap();
        let store = StoreFile::create_new(&disk.fs(), Path::new(DIR), ID, Timestamp(5)).unwrap();
        disk.fail(Fault { op: Op::Any, after, times: 1, kind: FaultKind::Crash });
        let cut = create(&disk.fs(), Path::new(DIR), &store, SEGMENT_LEN, Timestamp(5)).is_err();
        disk.clear_faults();
        disk.power_cut_with(Loss::RandomSectors);
        create(&disk.fs(), Path::new(DIR), &store, SEGMENT_LEN, Timestamp(5)).unwrap();
        CheckpointFile::create(&disk.fs(), Path::new(DIR), ID.seed(), &checkpoint(0, 1)).unwrap();
        Rig::on(disk).opens_with(0);
        if !cut {
            break;
        }
    }
}

#[test]
fn a_call_that_fails_anywhere_loses_nothing_and_the_next_opening_goes_on() {
    for kind in [FaultKind::Enospc, FaultKind::Edquot, FaultKind::Eio, FaultKind::SyncLost] {
        for after in 0.. {
            let rig = Rig::with_seed(after + 1);
            rig.disk.fail(Fault { op: Op::Any, after, times: 1, kind });
            let mut life = Life { synced: 0, written: 0 };
            live(&rig, 14, &mut life);
            if rig.disk.injected() == 0 {
                break;
            }
            rig.disk.clear_faults();
            rig.disk.kill();
            let what = format!("{kind:?} in call {after}");
            let last = check(&rig, &life, &what);
            rig.disk.power_cut_with(Loss::All);
            check(&rig, &Life { synced: last, written: last }, &what);
            rig.opens_with(last);
        }
    }
}

#[test]
fn without_room_in_any_call_of_begin_it_can_be_called_again_unless_the_log_is_broken() {
    for after in 0.. {
        let rig = Rig::filled(2, 900);
        let mut log = rig.open().unwrap().found.log;
        append_synced(&mut log, 900);
        rig.disk.fail(Fault { op: Op::Any, after, times: 1, kind: FaultKind::Enospc });
        let begun = log.begin(900, Room::Ordinary);
        let was_hit = rig.disk.injected() > 0;
        rig.disk.clear_faults();
        if let (Err(error), false) = (begun, log.is_broken()) {
            assert_eq!(error.kind(), ErrorKind::Full);
            append_synced(&mut log, 900);
            assert_eq!(log.segments().list().len(), 2);
        }
        let last = log.durable_lsn().0;
        rig.disk.kill();
        rig.opens_with(last);
        if !was_hit {
            break;
        }
    }
}

#[test]
fn a_failed_sync_breaks_the_log_for_good_and_the_next_opening_writes_again_what_it_lost() {
    let rig = Rig::filled(2, 100);
    let mut log = rig.open().unwrap().found.log;
    append(&mut log, 100);
    rig.disk.fail(Fault { op: Op::Sync, after: 0, times: 1, kind: FaultKind::SyncLost });
    assert_eq!(log.sync().unwrap_err().kind(), ErrorKind::Io);
    assert!(log.is_broken());
    assert_eq!(log.sync().unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(log.begin(10, Room::Ordinary).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(log.durable_lsn(), Lsn(2));
    // The frame is in the page cache, clean, and not on the disk. It is served now: it must stay.
    rig.disk.kill();
    let opened = rig.open().unwrap();
    assert_intact(&opened.frames, 3);
    rig.disk.power_cut_with(Loss::All);
    rig.opens_with(3);
}

#[test]
fn a_failed_write_breaks_the_log_and_leaves_a_torn_tail_or_nothing() {
    for kind in [FaultKind::Eio, FaultKind::Enospc, FaultKind::ShortWrite] {
        let rig = Rig::filled(2, 100);
        let mut log = rig.open().unwrap().found.log;
        log.begin(1800, Room::Ordinary).unwrap();
        rig.disk.fail(Fault { op: Op::Write, after: 0, times: u64::MAX, kind });
        let mut frame = payload(3, FRAME_HEADER_LEN + 1800);
        log.append(&mut frame, 1, Timestamp(1)).unwrap_err();
        assert!(log.is_broken());
        rig.disk.clear_faults();
        rig.disk.kill();
        assert_eq!(rig.opens_with(2).found.torn.is_some(), kind == FaultKind::ShortWrite);
    }
}

#[test]
fn each_opening_has_a_higher_epoch_and_its_frames_carry_it() {
    let rig = Rig::new();
    let mut epochs = Vec::new();
    for _ in 0..3 {
        let mut log = rig.open().unwrap().found.log;
        epochs.push(log.epoch());
        append_synced(&mut log, 10);
        rig.disk.kill();
    }
    assert!(epochs.is_sorted_by(|a, b| a < b));
    let frames = rig.open().unwrap().frames;
    assert_eq!(frames.iter().map(|frame| frame.epoch).collect::<Vec<_>>(), epochs);
}

#[test]
fn a_second_opening_changes_no_byte() {
    let rig = Rig::filled(9, 900);
    rig.open().unwrap();
    rig.disk.kill();
    let before = rig.disk.hash();
    rig.open().unwrap();
    assert_eq!(rig.disk.hash(), before);
}

/// A number below `below`, from a seed.
fn dice(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

/// Lives one after another, each with its own crash, with checkpoints and reclaim, on disks of any room.
fn many_lives(seed: u64) {
    let mut luck = seed;
    let mut rig = Rig::with_seed(seed);
    let mut life = Life { synced: 0, written: 0 };
    for number in 0..8 {
        rig.segment_len = [4096, 8192, 5120][usize::try_from(dice(&mut luck, 3)).unwrap()];
        match dice(&mut luck, 2) {
            0 => rig.disk.set_capacity(None),
            _ => rig.leave(dice(&mut luck, 20_000)),
        }
        rig.disk.fail(Fault { op: Op::Any, after: dice(&mut luck, 300), times: 1, kind: FaultKind::Crash });
        if let Ok(opened) = rig.open() {
            run(&rig, opened.found.log, &mut life, &mut luck);
        }
        rig.disk.clear_faults();
        match dice(&mut luck, 4) {
            0 => rig.disk.kill(),
            1 => rig.disk.power_cut_with(Loss::All),
            _ => rig.disk.power_cut_with(Loss::RandomSectors),
        }
        let what = format!("seed {seed}, life {number}");
        let opened = rig.open().unwrap_or_else(|error| panic!("{what}: {error}"));
        let last = opened.found.last_lsn.0;
        assert!((life.synced..=life.written).contains(&last), "{what}: {last} of {}..={}", life.synced, life.written);
        let first = opened.frames.first().map_or(last + 1, |frame| frame.first_lsn.0);
        let lsns = opened.frames.iter().map(|frame| frame.first_lsn.0);
        assert!(lsns.eq(first..=last), "{what}: a gap");
        assert!(opened.frames.iter().all(|frame| frame.payload == payload(frame.first_lsn.0, frame.payload.len())));
        life = Life { synced: last, written: last };
        rig.disk.kill();
    }
}

fn run(rig: &Rig, mut log: Log, life: &mut Life, luck: &mut u64) {
    let Ok((mut file, ..)) = CheckpointFile::open(&rig.disk.fs(), Path::new(DIR), ID.seed()) else { return };
    while !rig.disk.is_dead() {
        let done = match dice(luck, 12) {
            0 => log.spare().make(u64::MAX).map(|_| ()),
            1 | 2 => {
                let list = log.segments().list();
                let first = list[usize::try_from(dice(luck, list.len() as u64)).unwrap()].number;
                file.write(checkpoint(log.durable_lsn().0, first.max(file.first_segment())))
            }
            3 => log.segments().remove_before(file.first_segment()).map(|_| ()),
            4..8 => log.sync().map(|lsn| life.synced = lsn.0),
            _ => {
                let len = [1, 100, 447, 448, 1500, 3000, 7000][usize::try_from(dice(luck, 7)).unwrap()];
                life.written = log.next_lsn().0;
                let room = if dice(luck, 2) == 0 { Room::Ordinary } else { Room::Reserve };
                try_append_in(&mut log, len, room).map(|_| life.synced = log.durable_lsn().0)
            }
        };
        if done.is_err_and(|error| error.kind() != ErrorKind::Full) {
            return;
        }
    }
}

#[test]
fn lives_with_checkpoints_reclaim_and_crashes_lose_nothing_that_was_synced() {
    (1..=30).for_each(many_lives);
}
