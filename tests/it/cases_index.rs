//! Reported cases of an index that disagrees with the log (06), on the simulated machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use reappear::testing::{Fault, FaultKind, Image, Op, Rig};
use reappear::{ErrorKind, IndexReport, Options, State, Store};

use super::history::{History, count, drain, look};
use super::machine::{STOPS, Stop, secs};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Small segments, and windows so small that most of a backlog is in the index alone.
fn rig(seed: u64) -> Rig {
    let rig = Rig::new(seed);
    rig.set_options(Options::new().segment_len(4096).window(8));
    rig
}

fn stop(rig: &Rig, store: &Store, stop: Stop) {
    match stop {
        Stop::Close => rig.run(store.close()).unwrap(),
        Stop::PowerCut => rig.power_cut(),
        Stop::Kill => rig.kill(),
        Stop::KillWithoutIndex => {
            rig.kill();
            rig.lose_index();
        }
    }
}

fn is_rebuilt(store: &Store) -> bool {
    matches!(store.report().index, IndexReport::Rebuilt { .. })
}

/// A store with a past: much was sent, settled, moved, purged; its log was reclaimed many times.
fn with_a_past(seed: u64, steps: usize) -> (Rig, Store, History) {
    let rig = rig(seed);
    let store = rig.open();
    let mut history = History::new(seed);
    history.create(&rig, &store);
    for _ in 0..steps / 20 {
        history.go(&rig, &store, 20);
        rig.advance(secs(6));
    }
    (rig, store, history)
}

fn segments(rig: &Rig) -> BTreeSet<PathBuf> {
    let files = rig.disk().list_raw().into_iter().map(|(path, _)| path);
    files.filter(|path| path.extension().is_some_and(|e| e == "seg")).collect()
}

/// BB-040: after a long life with many reclaims the index can be thrown away: what is shown, down to every
/// setting, deadline and counter, is the same with it and without.
#[test]
fn a_store_without_its_index_shows_the_same() {
    let mut most = 0;
    for seed in 0..16 {
        for end in STOPS {
            let (rig, store, history) = with_a_past(seed, 400);
            let first = segments(&rig).into_iter().next().unwrap();
            assert!(!first.ends_with("00000000000000000001.seg"), "seed {seed}: nothing was ever reclaimed");
            let before = look(&rig, &store);
            history.check(&before);
            most = most.max(count(&before));
            stop(&rig, &store, end);
            let store = rig.open();
            let rebuilt = matches!(end, Stop::PowerCut | Stop::KillWithoutIndex);
            assert_eq!(is_rebuilt(&store), rebuilt, "seed {seed}, {end:?}: {}", store.report());
            assert!(look(&rig, &store) == before, "seed {seed}, {end:?}");
            rig.kill();
            rig.lose_index();
            let store = rig.open();
            assert!(is_rebuilt(&store), "{}", store.report());
            assert!(look(&rig, &store) == before, "seed {seed}, {end:?}, without the index");
            drain(&rig, &store, &before, &format!("seed {seed}"));
        }
    }
    assert!(most > 200, "the lives are long: {most}");
}

/// All ways in which rows of the index can be wrong: (what, change). `old` are the rows of an earlier time.
fn damages(rows: &Rows, old: &Rows) -> Vec<(String, Rows)> {
    let mut all = Vec::new();
    let mut add = |what: String, change: &dyn Fn(&mut Rows)| {
        let mut changed = rows.clone();
        change(&mut changed);
        if changed != *rows {
            all.push((what, changed));
        }
    };
    let keys: Vec<_> = rows.keys().cloned().collect();
    for (n, key) in keys.iter().enumerate() {
        let row = &rows[key];
        for at in (0..row.len()).step_by(1 + row.len() / 12) {
            for bit in [0, 7] {
                add(format!("row {n}, bit {bit} of byte {at}"), &|rows| rows.get_mut(key).unwrap()[at] ^= 1 << bit);
            }
        }
        for len in [0, 1, row.len() / 2, row.len().saturating_sub(1)] {
            add(format!("row {n} cut to {len}"), &|rows| rows.get_mut(key).unwrap().truncate(len));
        }
        add(format!("row {n} is longer"), &|rows| rows.get_mut(key).unwrap().push(0));
        add(format!("row {n} is gone"), &|rows| _ = rows.remove(key));
        add(format!("row {n} of an earlier time"), &|rows| {
            if let Some(row) = old.get(key) {
                rows.insert(key.clone(), row.clone());
            }
        });
        let other = &keys[(n + 1) % keys.len()];
        add(format!("row {n} under another key"), &|rows| {
            let row = rows[other].clone();
            rows.insert(key.clone(), row);
        });
    }
    for (key, row) in old {
        add("a row that should be gone".to_owned(), &|rows| {
            rows.entry(key.clone()).or_insert_with(|| row.clone());
        });
    }
    add("all rows of an earlier time".to_owned(), &|rows| rows.clone_from(old));
    add("nothing".to_owned(), &|rows| rows.clear());
    all
}

fn rows(rig: &Rig) -> Rows {
    let mut all = Rows::new();
    rig.damage_index(|rows| all.clone_from(rows));
    all
}

/// A store in the middle of its life, and the rows of an earlier time.
fn damageable(seed: u64) -> (Rig, Store, History, Rows) {
    let (rig, store, mut history) = with_a_past(seed, 100);
    let old = rows(&rig);
    history.go(&rig, &store, 60);
    rig.advance(secs(1));
    (rig, store, history, old)
}

/// BB-043: whatever stands in the index when it is opened, each body handed out is the one of its id, and
/// nothing is missing: what is wrong is found, said, and built anew from the log.
#[test]
fn a_damaged_row_is_found_when_the_store_is_opened() {
    for end in [Stop::Close, Stop::Kill] {
        let (rig, store, history, old) = damageable(3);
        let shown = look(&rig, &store);
        stop(&rig, &store, end);
        let (image, good) = (rig.disk().snapshot(), rows(&rig));
        let damages = damages(&good, &old);
        assert!(damages.len() > 100, "{} damages", damages.len());
        restore(&rig, &image, &good);
        assert!(!is_rebuilt(&rig.open()), "undamaged it is used");
        rig.kill();
        for (what, changed) in damages {
            restore(&rig, &image, &changed);
            let store = rig.open();
            let whole_and_old = what.starts_with("all rows");
            assert!(is_rebuilt(&store) || whole_and_old, "{end:?}, {what}: {}", store.report());
            let found = look(&rig, &store);
            history.check(&found);
            assert!(found == shown, "{end:?}, {what}");
            drain(&rig, &store, &shown, &what);
            rig.kill();
        }
    }
}

/// Puts disk and index back, whatever generation the index has got to meanwhile.
fn restore(rig: &Rig, image: &Image, rows: &Rows) {
    rig.disk().restore(image);
    rig.lose_index();
    // An opening that fails right after the index was opened makes the generation that the checkpoint
    // names, so that it is there to be filled.
    rig.disk().fail_on("/store/log", Fault { op: Op::ReadDir, after: 0, times: 1, kind: FaultKind::Eio });
    assert_eq!(rig.try_open().map(drop).unwrap_err().kind(), ErrorKind::Io);
    rig.disk().clear_faults();
    rig.disk().restore(image);
    rig.damage_index(|now| now.clone_from(rows));
}

/// BB-043: the same when the rows change under an open store. There are more of them than it keeps in
/// memory, each queue has its own.
#[test]
fn a_row_that_is_damaged_under_an_open_store_gives_no_wrong_message() {
    let rig = rig(4);
    rig.set_options(Options::new().segment_len(64 * 1024).window(8));
    let store = rig.open();
    let send = |text: &str| {
        for n in 0..400 {
            let queue = store.queue(format!("q{n}").as_str()).unwrap();
            rig.run(queue.send_batch([format!("{text} {n}"), format!("{text} {n} again")])).unwrap();
        }
        rig.advance(secs(11));
    };
    send("first");
    let old = rows(&rig);
    send("second");
    let shown = look(&rig, &store);
    rig.kill();
    let (image, good) = (rig.disk().snapshot(), rows(&rig));
    type Change<'c> = (&'static str, &'c dyn Fn(&Vec<u8>, &mut Vec<u8>, &Vec<u8>));
    let changes: [Change; 7] = [
        ("a bit is flipped", &|_, row, _| row[3] ^= 1),
        ("the last bit is flipped", &|_, row, _| *row.last_mut().unwrap() ^= 0x80),
        ("the front is cut off", &|_, row, _| _ = row.remove(0)),
        ("the end is cut off", &|_, row, _| _ = row.pop()),
        ("empty", &|_, row, _| row.clear()),
        ("of an earlier time", &|key, row, _| row.clone_from(&old[key])),
        ("the neighbour's", &|_, row, next| row.clone_from(next)),
    ];
    for (what, change) in changes {
        restore(&rig, &image, &good);
        let store = rig.open();
        rig.damage_index(|rows| {
            let next: Vec<_> = rows.values().skip(1).cloned().chain([vec![1; 9]]).collect();
            rows.iter_mut().zip(next).for_each(|((key, row), next)| change(key, row, &next));
        });
        assert!(look(&rig, &store) == shown, "each row {what}");
        assert!(rig.run(store.stats()).unwrap().index_in_memory, "each row {what}: it was noticed, and is said");
        drain(&rig, &store, &shown, what);
        rig.run(store.close()).unwrap();
        let store = rig.open();
        assert_eq!(count(&look(&rig, &store)), 0, "each row {what}: {}", store.report());
        rig.kill();
    }
}

/// BB-044: a segment that nothing needs any more, but that was not removed yet, may be in any state.
#[test]
fn a_damaged_segment_that_nothing_needs_is_dropped() {
    let (rig, store, mut history) = with_a_past(5, 100);
    history.go(&rig, &store, 20);
    // All that the log's front is needed for is written again at its end, and nothing can be removed.
    for stats in rig.run(store.queues()).unwrap() {
        let queue = store.queue(stats.name.as_str()).unwrap();
        rig.run(queue.purge(&State::ALL)).unwrap();
        rig.run(queue.configure(stats.options)).unwrap();
    }
    rig.disk().fail_on(".seg", Fault { op: Op::Remove, after: 0, times: u64::MAX, kind: FaultKind::Eio });
    for _ in 0..3 {
        history.go(&rig, &store, 20);
        rig.advance(secs(11));
    }
    let shown = look(&rig, &store);
    rig.kill();
    rig.disk().clear_faults();
    let (image, good) = (rig.disk().snapshot(), rows(&rig));
    let all = segments(&rig);
    drop(rig.open());
    let old: Vec<_> = all.difference(&segments(&rig)).cloned().collect();
    assert!(old.len() > 3, "{} segments were left to be removed", old.len());
    rig.kill();
    for path in &old {
        rig.disk().restore(&image);
        let whole = rig.disk().read_raw(path).unwrap();
        let mut flipped = whole.clone();
        flipped.iter_mut().step_by(97).for_each(|byte| *byte ^= 0x10);
        for bytes in [vec![], whole[..700].to_vec(), vec![0; whole.len()], vec![0xFF; 40], flipped] {
            for with_index in [true, false] {
                restore(&rig, &image, &good);
                if !with_index {
                    rig.lose_index();
                }
                rig.disk().write_raw(path, bytes.clone());
                let store = rig.try_open().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                let name = path.file_name().unwrap().to_str().unwrap();
                assert!(store.report().removed_files.iter().any(|file| file.ends_with(name)), "{}", store.report());
                assert!(!segments(&rig).contains(path));
                assert!(look(&rig, &store) == shown, "{}", path.display());
                rig.kill();
            }
        }
    }
}

/// BB-044: a segment in the middle whose messages are all settled still proves that they are: damaged, it
/// is refused as corruption with nothing changed, and never taken for empty. (The reported wish, to open
/// all the same, is for a log that has nothing before it; here the rule of corruption stands.)
#[test]
fn a_damaged_segment_in_the_middle_is_refused_even_if_all_in_it_is_settled() {
    let rig = rig(6);
    rig.set_options(Options::new().segment_len(4096).max_amplification(100));
    let store = rig.open();
    let (old, busy) = (store.queue("old").unwrap(), store.queue("busy").unwrap());
    rig.run(old.send("pins the first segment")).unwrap();
    for n in 0..12 {
        rig.run(busy.send(format!("{n}:{}", "x".repeat(600)))).unwrap();
        let job = rig.run(busy.receive().one()).unwrap().unwrap();
        rig.run(job.ack()).unwrap();
    }
    let shown = look(&rig, &store);
    rig.kill();
    let (image, good) = (rig.disk().snapshot(), rows(&rig));
    let all: Vec<_> = segments(&rig).into_iter().collect();
    assert!(all.len() >= 4, "{all:?}");
    let (mut refused, mut opened) = (0, 0);
    for path in &all[1..all.len() - 1] {
        let whole = rig.disk().read_raw(path).unwrap();
        let mut flipped = whole.clone();
        flipped[540] ^= 1;
        for bytes in [whole[..0].to_vec(), whole[..900].to_vec(), vec![0; whole.len()], flipped] {
            for with_index in [true, false] {
                restore(&rig, &image, &good);
                if !with_index {
                    rig.lose_index();
                }
                rig.disk().write_raw(path, bytes.clone());
                match rig.try_open() {
                    Ok(store) => {
                        // Not read at all, because the index has what is in it.
                        opened += 1;
                        assert!(with_index && look(&rig, &store) == shown, "{}", path.display());
                    }
                    Err(error) => {
                        refused += 1;
                        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                        assert_eq!(error.damage().map(|damage| &damage.file), Some(path), "{error}");
                        assert!(rig.disk().read_raw(path).unwrap() == bytes, "it is left as it is");
                    }
                }
                rig.kill();
            }
        }
    }
    assert!(refused > 0, "{refused} refused, {opened} opened");
}
