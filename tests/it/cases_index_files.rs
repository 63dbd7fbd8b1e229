//! Reported cases of an index that disagrees with the log (06), with sled on the real disk: its files are
//! gone, cut, flipped, replaced, old, or not files at all, at open and under an open store.
//!
//! Whatever is done to it, the store shows what it showed before, and says what became of the index.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use pollster::block_on;
use reappear::{ErrorKind, IndexReport, Options, Store};

use super::history::{History, Look, Real, count, drain, look};

fn open(path: &Path) -> Store {
    block_on(Store::open_with(path, small())).unwrap()
}

/// Windows so small that most of a backlog is in the index alone.
fn small() -> Options {
    Options::new().segment_len(1024 * 1024).window(8)
}

fn close(store: Store) {
    block_on(store.close()).unwrap();
}

/// Copies a directory, replacing what is at `to`.
fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    for entry in walkdir::WalkDir::new(from) {
        let entry = entry.unwrap();
        let target = to.join(entry.path().strip_prefix(from).unwrap());
        if entry.file_type().is_dir() {
            fs::create_dir_all(target).unwrap();
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Replaces one file or directory of a store by that of another.
fn transplant(name: &str, from: &Path, to: &Path) {
    if from.join(name).is_dir() {
        copy(&from.join(name), &to.join(name));
    } else {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

/// All bytes of a store's log.
fn log_bytes(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(path.join("log")).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Lets the index's thread come to rest, so that the files can be copied as a killed process leaves them.
fn come_to_rest(store: &Store) {
    let stats = block_on(store.stats()).unwrap();
    assert_eq!(stats.applied_lsn, stats.durable_lsn);
}

/// Copies of one store: closed, and as its process left it when it was killed.
struct Copies {
    closed: PathBuf,
    killed: PathBuf,
    shown: Look,
    killed_shown: Look,
    history: History,
}

impl Copies {
    fn new(dir: &Path, seed: u64) -> Self {
        let (path, closed, killed) = (dir.join("live"), dir.join("closed"), dir.join("killed"));
        let store = open(&path);
        let mut history = History::new(seed);
        history.create(&Real, &store);
        history.go(&Real, &store, 300);
        let shown = look(&Real, &store);
        close(store);
        copy(&path, &closed);
        let store = open(&path);
        history.go(&Real, &store, 60);
        let killed_shown = look(&Real, &store);
        come_to_rest(&store);
        copy(&path, &killed);
        close(store);
        assert!(count(&shown) > 50 && shown != killed_shown);
        Self { closed, killed, shown, killed_shown, history }
    }

    fn each(&self) -> [(&'static str, &Path, &Look); 2] {
        [("closed", &self.closed, &self.shown), ("killed", &self.killed, &self.killed_shown)]
    }
}

/// What became of the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Used,
    Rebuilt,
    InMemory,
}

/// Opens a store whose index was tampered with: it must show what it showed, give it all out, and do the
/// same again.
#[track_caller]
fn open_and_compare(path: &Path, shown: &Look, what: &str) -> Fate {
    let store = open(path);
    let found = look(&Real, &store);
    assert!(found == *shown, "{what}: {}", store.report());
    drain(&Real, &store, shown, what);
    let left = look(&Real, &store);
    let in_memory = block_on(store.stats()).unwrap().index_in_memory;
    let rebuilt = matches!(store.report().index, IndexReport::Rebuilt { .. });
    close(store);
    let store = open(path);
    assert!(look(&Real, &store) == left, "{what}, opened again: {}", store.report());
    close(store);
    match (in_memory, rebuilt) {
        (true, _) => Fate::InMemory,
        (_, true) => Fate::Rebuilt,
        _ => Fate::Used,
    }
}

fn index_files(store: &Path) -> Vec<PathBuf> {
    let entries = walkdir::WalkDir::new(store.join("index")).sort_by_file_name();
    let files = entries.into_iter().map(Result::unwrap).filter(|entry| entry.file_type().is_file());
    files.map(|entry| entry.path().strip_prefix(store).unwrap().to_owned()).collect()
}

/// BB-040, BB-025: the directory of the index may be deleted at any time, as operators do.
#[test]
fn an_index_that_was_deleted_is_built_anew() {
    let dir = tempfile::tempdir().unwrap();
    let copies = Copies::new(dir.path(), 1);
    let path = dir.path().join("s");
    for (how, from, shown) in copies.each() {
        copies.history.check(shown);
        copy(from, &path);
        assert_eq!(open_and_compare(&path, shown, how), Fate::Used, "{how}: undamaged it is used");
        copy(from, &path);
        fs::remove_dir_all(path.join("index")).unwrap();
        assert_eq!(open_and_compare(&path, shown, how), Fate::Rebuilt, "{how}, and the directory deleted");
        for file in index_files(from) {
            copy(from, &path);
            fs::remove_file(path.join(&file)).unwrap();
            let what = format!("{how}, and {} deleted", file.display());
            let fate = open_and_compare(&path, shown, &what);
            assert!(!file.ends_with("db") || fate == Fate::Rebuilt, "{what}: {fate:?}");
        }
    }
}

/// Each file of the index cut off at many places.
#[test]
fn an_index_whose_files_are_cut_off_is_built_anew() {
    let dir = tempfile::tempdir().unwrap();
    let copies = Copies::new(dir.path(), 2);
    let path = dir.path().join("s");
    for (how, from, shown) in copies.each() {
        for file in index_files(from) {
            let len = fs::metadata(from.join(&file)).unwrap().len();
            for to in [0, 1, len / 16, len / 3, len / 2, len.saturating_sub(1)] {
                copy(from, &path);
                fs::File::options().write(true).open(path.join(&file)).unwrap().set_len(to).unwrap();
                let what = format!("{how}, and {} cut to {to} of {len}", file.display());
                let fate = open_and_compare(&path, shown, &what);
                assert!(to > 0 || !file.ends_with("db") || fate == Fate::Rebuilt, "{what}: {fate:?}");
            }
        }
    }
}

/// One bit of any byte that holds anything.
#[test]
fn a_flipped_bit_in_the_index_changes_nothing_that_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let copies = Copies::new(dir.path(), 3);
    let path = dir.path().join("s");
    let mut noticed = 0;
    for (how, from, shown) in copies.each() {
        for file in index_files(from) {
            let good = fs::read(from.join(&file)).unwrap();
            let written: Vec<_> = (0..good.len()).filter(|at| good[*at] != 0).collect();
            for at in written.iter().step_by(1 + written.len() / 24) {
                copy(from, &path);
                let mut bad = good.clone();
                bad[*at] ^= 1 << (at % 8);
                fs::write(path.join(&file), bad).unwrap();
                let what = format!("{how}, and byte {at} of {} flipped", file.display());
                noticed += u32::from(open_and_compare(&path, shown, &what) != Fate::Used);
            }
        }
    }
    assert!(noticed > 5, "only {noticed} flips were noticed");
}

/// What stands where the files of the index should be may be of any kind.
#[test]
fn an_index_that_is_not_made_of_files_is_built_anew_or_kept_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let copies = Copies::new(dir.path(), 4);
    let path = dir.path().join("s");
    let replace_by_dir = |file: &Path| {
        fs::remove_file(file).unwrap();
        fs::create_dir(file).unwrap();
    };
    for (how, from, shown) in copies.each() {
        let generation = index_files(from)[0].parent().unwrap().to_owned();
        for file in index_files(from) {
            copy(from, &path);
            replace_by_dir(&path.join(&file));
            let what = format!("{how}, and {} is a directory", file.display());
            assert_ne!(open_and_compare(&path, shown, &what), Fate::Used, "{what}");
        }
        copy(from, &path);
        fs::remove_dir_all(path.join(&generation)).unwrap();
        fs::write(path.join(&generation), "a file").unwrap();
        assert_eq!(open_and_compare(&path, shown, "the generation is a file"), Fate::Rebuilt, "{how}");
        copy(from, &path);
        fs::remove_dir_all(path.join("index")).unwrap();
        fs::write(path.join("index"), "a file").unwrap();
        assert_eq!(open_and_compare(&path, shown, "the index is a file"), Fate::InMemory, "{how}");
        copy(from, &path);
        fs::remove_dir_all(path.join(&generation)).unwrap();
        std::os::unix::fs::symlink("nowhere", path.join(&generation)).unwrap();
        assert_ne!(open_and_compare(&path, shown, "the generation is a dangling link"), Fate::Used, "{how}");
    }
}

/// A snapshot that a full disk cut short must not stand in the way of any later opening.
#[test]
fn an_unfinished_snapshot_of_the_index_does_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let copies = Copies::new(dir.path(), 5);
    let path = dir.path().join("s");
    for (how, from, shown) in copies.each() {
        for bytes in [&b""[..], b"cut short", &[0xFF; 4096]] {
            copy(from, &path);
            let generation = path.join(index_files(from)[0].parent().unwrap());
            let left = generation.join("snap.00000000000000FF.generating");
            fs::write(&left, bytes).unwrap();
            assert_eq!(open_and_compare(&path, shown, how), Fate::Used, "{how}");
            assert!(!left.exists());
        }
    }
}

/// BB-041: index and checkpoint of an earlier time beside a later log: the log wins, and what is sent then
/// comes behind all that was there.
#[test]
fn an_older_index_or_checkpoint_beside_the_log_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let copies = Copies::new(dir.path(), 6);
    let path = dir.path().join("s");
    let (a, b) = (&copies.closed, &copies.killed);
    for old in [&["index"][..], &["CHECKPOINT"], &["index", "CHECKPOINT"]] {
        copy(b, &path);
        old.iter().for_each(|name| transplant(name, a, &path));
        let what = format!("old: {old:?}");
        let store = open(&path);
        assert!(look(&Real, &store) == copies.killed_shown, "{what}: {}", store.report());
        let last = copies.killed_shown.values().flat_map(|(.., seen)| seen).map(|view| view.id).max();
        let queue = store.queue("new").unwrap();
        let ids = block_on(queue.send_batch((0..10).map(|n| n.to_string()))).unwrap();
        assert!(ids.iter().all(|id| Some(*id) > last), "{what}: they follow");
        let mut shown = look(&Real, &store);
        drain(&Real, &store, &shown, &what);
        close(store);
        assert_eq!(shown.remove("new").map(|(.., seen)| seen.len()), Some(10));
        assert!(shown == copies.killed_shown, "{what}: nothing was overwritten");
    }
}

/// BB-041, the other way round: the log of an earlier time. With the checkpoint of its own time it is as it
/// was; with a later one that proves more than the log has, it is refused and left alone.
#[test]
fn an_older_log_beside_a_later_index_is_as_it_was_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let copies = Copies::new(dir.path(), 7);
    let path = dir.path().join("s");
    // The later time, with a checkpoint of its own.
    copy(&copies.killed, &path);
    close(open(&path));
    let later = dir.path().join("later");
    copy(&path, &later);
    copy(&copies.closed, &path);
    transplant("index", &later, &path);
    assert_eq!(open_and_compare(&path, &copies.shown, "a later index"), Fate::Rebuilt);
    for names in [&["CHECKPOINT"][..], &["index", "CHECKPOINT"]] {
        copy(&copies.closed, &path);
        names.iter().for_each(|name| transplant(name, &later, &path));
        let before = log_bytes(&path);
        let error = block_on(Store::open_with(&path, small())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "later: {names:?}: {error}");
        assert!(log_bytes(&path) == before, "later: {names:?}: nothing is changed");
    }
}

/// BB-041 where the log's front was given up meanwhile: an old index is of no use and no harm; with the old
/// checkpoint the front looks as if somebody had deleted it, which is refused.
#[test]
fn an_older_index_beside_a_log_that_was_reclaimed_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (live, path) = (dir.path().join("live"), dir.path().join("s"));
    let tiny = || Options::new().segment_len(4096).window(8);
    let mut history = History::new(8);
    let store = block_on(Store::open_with(&live, tiny())).unwrap();
    history.create(&Real, &store);
    history.go(&Real, &store, 60);
    close(store);
    let old = dir.path().join("old");
    copy(&live, &old);
    let store = block_on(Store::open_with(&live, tiny())).unwrap();
    let first = log_bytes(&live).into_keys().next().unwrap();
    while first.exists() {
        history.go(&Real, &store, 20);
    }
    let shown = look(&Real, &store);
    close(store);
    copy(&live, &path);
    transplant("index", &old, &path);
    let store = block_on(Store::open_with(&path, tiny())).unwrap();
    assert!(matches!(store.report().index, IndexReport::Rebuilt { .. }), "{}", store.report());
    assert!(look(&Real, &store) == shown);
    close(store);
    copy(&live, &path);
    transplant("CHECKPOINT", &old, &path);
    let before = log_bytes(&path);
    let error = block_on(Store::open_with(&path, tiny())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("a missing segment"), "{error}");
    assert!(log_bytes(&path) == before);
}

/// The index is tampered with under an open store: no call fails, and nothing is lost or wrong, then or after.
#[test]
fn an_index_that_is_destroyed_under_an_open_store_changes_nothing() {
    type Way = (&'static str, fn(&Path, &Path));
    let ways: [Way; 5] = [
        ("its directory is deleted", |index, _| fs::remove_dir_all(index).unwrap()),
        ("its directory is renamed", |index, _| fs::rename(index, index.with_extension("away")).unwrap()),
        ("its file is cut to nothing", |_, db| {
            fs::File::options().write(true).open(db).unwrap().set_len(0).unwrap();
        }),
        ("its file is overwritten", |_, db| {
            let len = fs::metadata(db).unwrap().len();
            let file = fs::File::options().write(true).open(db).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &vec![0xA5; usize::try_from(len).unwrap()], 0).unwrap();
        }),
        ("its file is deleted", |_, db| fs::remove_file(db).unwrap()),
    ];
    for (n, (way, act)) in ways.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let store = open(&path);
        let mut history = History::new(20 + n as u64);
        history.create(&Real, &store);
        history.go(&Real, &store, 200);
        close(store);
        // Opened again, so that not all of it is in memory.
        let store = open(&path);
        let file = index_files(&path).into_iter().find(|file| file.ends_with("db")).unwrap();
        act(&path.join("index"), &path.join(file));
        history.go(&Real, &store, 300);
        let shown = look(&Real, &store);
        history.check(&shown);
        close(store);
        let store = open(&path);
        assert!(look(&Real, &store) == shown, "{way}: {}", store.report());
        drain(&Real, &store, &shown, way);
        close(store);
    }
}
