//! A whole life of a log with a fault in every call, of every kind.

use super::*;

const OPS: [Op; 10] =
    [Op::Read, Op::Write, Op::Sync, Op::SetLen, Op::Open, Op::Create, Op::Rename, Op::Remove, Op::SyncDir, Op::ReadDir];

/// What came of a life: LSNs up to `synced` are acknowledged, up to `written` tried.
#[derive(Default)]
struct Life {
    synced: u64,
    written: u64,
    /// The first record that must still be there.
    first: u64,
    errors: Vec<Error>,
}

impl Life {
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.errors.push(error)).ok()
    }
}

/// Makes what is missing of a store.
fn found(disk: &SimDisk) -> Result<()> {
    let fs = disk.fs();
    let dir = Path::new(DIR);
    let store = match StoreFile::create_new(&fs, dir, ID, Timestamp(5)) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => StoreFile::read(&fs, dir)?,
        other => other?,
    };
    if disk.read_raw("/store/CHECKPOINT").is_none() {
        create(&fs, dir, &store, SEGMENT_LEN, Timestamp(5))?;
        CheckpointFile::create(&fs, dir, ID.seed(), &checkpoint(0, 1))?;
    }
    Ok(())
}

/// One process: rotations with and without a spare, for all and for those that may have the reserve,
/// checkpoints, reclaim. It goes on after errors as long as the log is not broken.
fn live(rig: &Rig, life: &mut Life, steps: usize) {
    let Some(opened) = life.note(rig.open()) else { return };
    let mut log = opened.found.log;
    let Some((mut file, ..)) = life.note(CheckpointFile::open(&rig.disk.fs(), Path::new(DIR), ID.seed())) else {
        return;
    };
    let sizes = [30, 1500, 448, 5000, 449, 2500, 1];
    for step in 0..steps {
        if step % 5 == 3 {
            life.note(log.spare().make(u64::MAX));
        }
        if step % 6 == 5 {
            let list = log.segments().list();
            let first = list.iter().rev().nth(1).or(list.last()).unwrap();
            life.first = life.first.max(first.first_lsn.0);
            life.note(file.write(checkpoint(log.durable_lsn().0, first.number)));
            life.note(log.segments().remove_before(file.first_segment()));
        }
        let room = if step % 2 == 0 { Room::Reserve } else { Room::Ordinary };
        life.written = log.next_lsn().0;
        life.note(try_append_in(&mut log, sizes[step % sizes.len()], room));
        if step % 3 != 2 {
            life.note(log.sync());
        }
        life.synced = life.synced.max(log.durable_lsn().0);
        if log.is_broken() {
            return;
        }
    }
}

fn check(rig: &Rig, life: &Life, what: &str) {
    let opened = rig.open().unwrap_or_else(|error| panic!("{what}: {error}"));
    let last = opened.found.last_lsn.0;
    assert!((life.synced..=life.written).contains(&last), "{what}: {last} of {}..={}", life.synced, life.written);
    let lsns = opened.frames.iter().map(|frame| frame.first_lsn.0).collect::<Vec<_>>();
    let first = lsns.first().copied().unwrap_or(last + 1);
    assert!(first <= life.first.max(1), "{what}: begins with {first}, not {}", life.first);
    assert_eq!(lsns, (first..=last).collect::<Vec<_>>(), "{what}");
    assert!(opened.frames.iter().all(|frame| frame.payload == payload(frame.first_lsn.0, frame.payload.len())));
    assert!(opened.found.foreign_files.is_empty(), "{what}");
}

fn sweep(kinds: &[FaultKind], expected: ErrorKind, times: u64) {
    let mut struck_count = 0;
    for kind in kinds {
        for op in OPS {
            for after in 0.. {
                let what = format!("{kind:?} in {op:?} {after}, {times} times");
                let disk = SimDisk::new(after + 1);
                disk.fs().create_dir(Path::new(DIR)).unwrap();
                disk.fs().sync_dir(Path::new("/")).unwrap();
                let rig = Rig::on(disk);
                rig.disk.fail(Fault { op, after, times, kind: *kind });
                let mut life = Life::default();
                let result = found(&rig.disk);
                if life.note(result).is_some() {
                    live(&rig, &mut life, 14);
                    rig.disk.kill();
                    live(&rig, &mut life, 4);
                }
                let struck = rig.disk.injected() > 0;
                for error in &life.errors {
                    let fits = error.kind() == expected || error.kind() == ErrorKind::Poisoned;
                    assert!(struck && fits, "{what}: {error}");
                }
                rig.disk.clear_faults();
                rig.disk.kill();
                found(&rig.disk).unwrap();
                check(&rig, &life, &what);
                rig.disk.power_cut_with(Loss::All);
                check(&rig, &life, &what);
                if !struck {
                    break;
                }
                struck_count += 1;
            }
        }
    }
    assert!(struck_count > 100 * kinds.len(), "only {struck_count} calls were struck");
}

#[test]
fn without_room_in_any_call_the_answer_is_full_and_what_was_synced_stays() {
    sweep(&[FaultKind::Enospc, FaultKind::Edquot], ErrorKind::Full, 1);
}

#[test]
fn without_room_from_any_call_on_the_answer_is_full_and_what_was_synced_stays() {
    sweep(&[FaultKind::Enospc, FaultKind::Edquot], ErrorKind::Full, u64::MAX);
}

#[test]
fn an_error_of_the_system_in_any_call_is_io_and_what_was_synced_stays() {
    let kinds = [FaultKind::Eio, FaultKind::Eacces, FaultKind::Erofs, FaultKind::Emfile];
    sweep(&kinds, ErrorKind::Io, 1);
    sweep(&kinds, ErrorKind::Io, u64::MAX);
}
