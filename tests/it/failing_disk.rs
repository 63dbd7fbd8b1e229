//! A disk that refuses: no permission, read-only, failing, on a network, gone.
//!
//! When a store is opened it gives an error that names the path and what to do, and nothing is changed; a
//! store that is open refuses writes only where it no longer knows what reached the disk.

use std::fs;
use std::path::Path;

use pollster::block_on;
use reappear::testing::{Fault, FaultKind, Loss, Op, Rig};
use reappear::{Error, ErrorKind, Options, Store};

use super::history::{History, Look, Real, look};
use super::script::Plain;

const REFUSALS: [(FaultKind, &str); 3] =
    [(FaultKind::Eacces, "read and write"), (FaultKind::Erofs, "for writing"), (FaultKind::Eio, "system's log")];

fn always(op: Op, kind: FaultKind) -> Fault {
    Fault { op, after: 0, times: u64::MAX, kind }
}

fn once(op: Op, after: u64, kind: FaultKind) -> Fault {
    Fault { op, after, times: 1, kind }
}

#[track_caller]
fn assert_says_what_to_do(error: &Error, advice: &str, what: &str) {
    assert_eq!(error.kind(), ErrorKind::Io, "{what}: {error}");
    let text = error.to_string();
    assert!(text.contains("/store") && text.contains(advice), "{what}: {text}");
}

/// A store with a past, closed or killed.
fn with_a_past(closed: bool) -> (Rig, Look) {
    let rig = Rig::new(9);
    let store = rig.open();
    let mut history = History::new(9);
    history.create(&rig, &store);
    history.go(&rig, &store, 80);
    let shown = look(&rig, &store);
    if closed {
        rig.run(store.close()).unwrap();
    } else {
        rig.kill();
    }
    (rig, shown)
}

#[test]
fn a_disk_that_refuses_everything_is_reported_when_the_store_is_opened() {
    for (kind, advice) in REFUSALS {
        for closed in [true, false] {
            let (rig, shown) = with_a_past(closed);
            let hash = rig.disk().hash();
            rig.disk().fail(always(Op::Any, kind));
            let error = rig.try_open().unwrap_err();
            assert_says_what_to_do(&error, advice, &format!("{kind:?}"));
            assert_eq!(rig.disk().hash(), hash, "nothing was changed");
            rig.disk().clear_faults();
            assert!(look(&rig, &rig.open()) == shown);
        }
        let rig = Rig::new(1);
        rig.disk().fail(always(Op::Create, kind));
        assert_says_what_to_do(&rig.try_open().unwrap_err(), advice, "a new store");
        rig.disk().clear_faults();
        assert!(rig.disk().list_raw().is_empty(), "nothing is there");
        assert!(rig.open().report().created);
    }
}

/// Each single call of the opening, of whatever kind.
#[test]
fn whichever_call_of_an_opening_is_refused_nothing_is_lost() {
    for (kind, advice) in REFUSALS {
        for closed in [true, false] {
            let (rig, shown) = with_a_past(closed);
            let image = rig.disk().snapshot();
            let (mut refused, mut opened) = (0, 0);
            for n in 0.. {
                let what = format!("{kind:?} in call {n}, closed: {closed}");
                let injected = rig.disk().injected();
                rig.disk().fail(once(Op::Any, n, kind));
                match rig.try_open() {
                    Ok(store) => {
                        opened += 1;
                        // The fault may strike only now.
                        rig.disk().clear_faults();
                        assert!(look(&rig, &store) == shown, "{what}");
                    }
                    Err(error) => {
                        refused += 1;
                        rig.disk().clear_faults();
                        assert_says_what_to_do(&error, advice, &what);
                    }
                }
                let struck = rig.disk().injected() > injected;
                rig.kill();
                assert!(look(&rig, &rig.open()) == shown, "{what}: opened afterwards");
                rig.kill();
                rig.disk().restore(&image);
                if !struck {
                    break;
                }
            }
            assert!(refused > 5 && opened > 0, "{kind:?}: {refused} refused, {opened} opened");
        }
    }
}

/// Any call of a running store: a write or a sync that failed poisons it, nothing else does; reads go on;
/// what was acknowledged is there afterwards.
#[test]
fn a_running_store_is_poisoned_by_failed_writes_and_syncs_only() {
    let plain = Plain::new();
    let mut wrong = Vec::new();
    for (kind, _) in REFUSALS {
        for op in [Op::Write, Op::Sync, Op::SetLen, Op::Create, Op::Rename, Op::Remove, Op::SyncDir] {
            for n in 0..plain.count(op) {
                let what = format!("{kind:?} in {op:?} {n}");
                let (run, done, error) = plain.struck(1, once(op, n, kind));
                assert_eq!(run.rig.disk().injected(), 1, "{what}: it never came to it");
                let stats = run.rig.run(run.store.stats());
                if let Ok(stats) = &stats {
                    let unknown = [Op::Write, Op::Sync, Op::Rename, Op::SyncDir].contains(&op);
                    if stats.poisoned.is_some() && !unknown {
                        wrong.push(format!("{what}: {:?}", stats.poisoned));
                    }
                    let seen = run.rig.run(run.store.queue("q").unwrap().peek(None, 99));
                    assert!(seen.is_ok() || done < 2, "{what}: reads go on");
                }
                if let Some(error) = &error {
                    let kinds = [ErrorKind::Poisoned, ErrorKind::Io];
                    assert!(kinds.contains(&error.kind()), "{what}: {error}");
                    assert!(error.to_string().contains("/store/"), "{what}: {error}");
                }
                run.rig.power_cut_with(Loss::All);
                let found = look(&run.rig, &run.rig.open());
                plain.assert_before_or_after(&found, done, error.is_some(), &what);
            }
        }
    }
    assert!(wrong.is_empty(), "{} needlessly poisoned:\n{}", wrong.len(), wrong.join("\n"));
}

/// A body that cannot be read now is an error of that call, and comes with the next one.
#[test]
fn a_failed_read_is_the_error_of_that_call_only() {
    for (kind, advice) in REFUSALS {
        for op in [Op::Read, Op::Open] {
            let rig = Rig::new(2);
            rig.set_options(Options::new().segment_len(4096));
            let store = rig.open();
            let queue = store.queue("q").unwrap();
            for n in 0..8 {
                rig.run(queue.send(format!("{n}:{}", "x".repeat(900)))).unwrap();
            }
            // Opened again, so that the sealed segments are not open.
            rig.kill();
            let store = rig.open();
            let queue = store.queue("q").unwrap();
            rig.disk().fail_on(".seg", once(op, 0, kind));
            let error = rig.run(queue.receive().one()).unwrap_err();
            assert_says_what_to_do(&error, advice, &format!("{kind:?} in {op:?}"));
            assert_eq!(rig.run(store.stats()).unwrap().poisoned, None);
            assert_eq!(rig.run(queue.stats()).unwrap().ready, 8, "it was given back");
            let job = rig.run(queue.receive().one()).unwrap().unwrap();
            assert!(job.body().starts_with(b"0:"));
            assert_eq!((job.attempts(), job.receive_count()), (1, 2), "the attempt was refunded");
            rig.run(job.ack()).unwrap();
        }
    }
}

#[test]
fn a_network_file_system_is_refused_unless_it_is_allowed() {
    let rig = Rig::new(1);
    rig.disk().set_network(true);
    let error = rig.try_open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("/store") && error.to_string().contains("network"), "{error}");
    assert!(rig.disk().list_raw().is_empty(), "nothing was made");
    rig.disk().set_network(false);
    let store = rig.open();
    rig.run(store.queue("q").unwrap().send("x")).unwrap();
    rig.run(store.close()).unwrap();
    rig.disk().set_network(true);
    let hash = rig.disk().hash();
    assert_eq!(rig.try_open().unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(rig.disk().hash(), hash);
    rig.set_options(Options::new().allow_network_fs(true));
    let store = rig.open();
    assert_eq!(rig.run(store.queue("q").unwrap().stats()).unwrap().ready, 1);
}

fn tiny() -> Options {
    Options::new().segment_len(4096)
}

/// BB-151: the log's directory goes away under a running store, which is noticed at the next rotation at
/// the latest; nothing is made in its place, and where it still exists everything acknowledged is in it.
#[test]
fn a_log_that_disappears_is_noticed_and_not_made_again() {
    type Way = (&'static str, fn(&Path));
    let ways: [Way; 3] = [
        ("removed", |log| fs::remove_dir_all(log).unwrap()),
        ("renamed", |log| fs::rename(log, log.with_extension("away")).unwrap()),
        ("replaced", |log| {
            fs::rename(log, log.with_extension("away")).unwrap();
            fs::create_dir(log).unwrap();
        }),
    ];
    for (way, act) in ways {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let store = block_on(Store::open_with(&path, tiny())).unwrap();
        let queue = store.queue("q").unwrap();
        block_on(queue.send("before")).unwrap();
        act(&path.join("log"));
        let sent = (0..40).take_while(|_| block_on(queue.send(vec![1; 1000])).is_ok()).count();
        assert!(sent < 40, "{way}: {sent} sends went into nowhere");
        let error = block_on(queue.send("x")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned, "{way}: {error}");
        assert!(error.to_string().contains("log"), "{way}: {error}");
        assert!(block_on(store.stats()).unwrap().poisoned.is_some());
        let _ = block_on(store.close());
        drop((store, queue));
        let left = fs::read_dir(path.join("log")).map(|entries| entries.count()).unwrap_or(0);
        assert_eq!(left, 0, "{way}: nothing is made in its place");
        let error = block_on(Store::open_with(&path, tiny())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{way}: it is not taken for empty: {error}");
        if way != "removed" {
            let _ = fs::remove_dir(path.join("log"));
            fs::rename(path.join("log.away"), path.join("log")).unwrap();
            let store = block_on(Store::open_with(&path, tiny())).unwrap();
            let seen = block_on(store.queue("q").unwrap().peek(None, 100)).unwrap();
            assert!(seen.len() > sent, "{way}: what was acknowledged is there");
            block_on(store.close()).unwrap();
        }
    }
}

/// BB-151: the same for the files in the store's directory: an open store does not need their names.
#[test]
fn files_that_disappear_do_not_stop_an_open_store_and_are_told_at_the_next_opening() {
    for (name, kind) in [("CHECKPOINT", ErrorKind::Corrupt), ("STORE", ErrorKind::Corrupt)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let store = block_on(Store::open_with(&path, tiny())).unwrap();
        let mut history = History::new(1);
        history.create(&Real, &store);
        fs::rename(path.join(name), path.join("kept")).unwrap();
        history.go(&Real, &store, 50);
        let shown = look(&Real, &store);
        let _ = block_on(store.close());
        drop(store);
        assert!(!path.join(name).exists(), "{name} is not made again");
        let error = block_on(Store::open_with(&path, tiny())).unwrap_err();
        assert_eq!(error.kind(), kind, "{name}: {error}");
        fs::rename(path.join("kept"), path.join(name)).unwrap();
        let store = block_on(Store::open_with(&path, tiny())).unwrap();
        assert!(look(&Real, &store) == shown, "{name}");
        block_on(store.close()).unwrap();
    }
}
