//! What the stores under the index do, and what damage to them does.

#![expect(clippy::disallowed_methods, reason = "sled is only tested on the real file system")]

use std::fs;
use std::io;

use super::model::{Model, Random};
use super::*;
use crate::env::{DirEntry, EntryKind, File, Fs, FsInfo, LockGuard, OpenMode, TryLock};

/// As much of the real file system as sled's directory needs.
pub(super) struct RealFs;

/// Unlocks when it is dropped and so closed.
struct Locked(#[expect(dead_code, reason = "held open")] fs::File);

impl LockGuard for Locked {
    fn describe(&self, _: &str) -> io::Result<()> {
        not_here()
    }
}

fn not_here<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

impl Fs for RealFs {
    fn open(&self, _: &Path, _: OpenMode) -> io::Result<Arc<dyn File>> {
        not_here()
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }
    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        not_here()
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }
    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let entry = |entry: fs::DirEntry| DirEntry {
            name: entry.file_name().to_string_lossy().into_owned(),
            kind: EntryKind::File,
            len: 0,
        };
        fs::read_dir(path)?.map(|found| found.map(entry)).collect()
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        fs::File::open(path)?.sync_all()
    }
    fn sync_tree(&self, path: &Path) -> io::Result<()> {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() { self.sync_tree(&entry.path())? } else { self.sync_dir(&entry.path())? }
        }
        self.sync_dir(path)
    }
    fn metadata(&self, path: &Path) -> io::Result<Option<DirEntry>> {
        let found = DirEntry { name: String::new(), kind: EntryKind::Dir, len: 0 };
        Ok(path.exists().then_some(found))
    }
    fn info(&self, _: &Path) -> io::Result<FsInfo> {
        not_here()
    }
    fn try_lock(&self, path: &Path) -> io::Result<TryLock> {
        let file = fs::File::open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(TryLock::Held(Box::new(Locked(file)))),
            Err(fs::TryLockError::WouldBlock) => Ok(TryLock::Busy { text: String::new() }),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }
    fn is_real(&self) -> bool {
        true
    }
}

fn all(index: &mut Index) -> crate::error::Result<Vec<Entry>> {
    let mut all = vec![];
    index.for_each(&mut |entry| all.push(*entry))?;
    Ok(all)
}

/// A disk with some thousand messages, and what is on it.
fn filled(seed: u64) -> (MemDisk, Vec<Entry>) {
    let (mut random, mut model, disk) = (Random::new(seed), Model::new(), MemDisk::new());
    let mut index = open(disk.open());
    for _ in 0..60 {
        index.apply(&model.batch(&mut random)).unwrap();
    }
    (disk, model.entries())
}

/// Changes one row somehow.
fn damage(rows: &mut BTreeMap<Vec<u8>, Vec<u8>>, random: &mut Random) {
    let nth = |random: &mut Random, len: usize| random.below(len as u64) as usize;
    let key = rows.keys().nth(nth(random, rows.len())).unwrap().clone();
    match random.below(6) {
        0 => {
            rows.remove(&key);
        }
        1 => {
            let other = rows.values().nth(nth(random, rows.len())).unwrap().clone();
            rows.insert(key, other);
        }
        2 => {
            let row = rows.get_mut(&key).unwrap();
            row.truncate(nth(random, row.len()));
        }
        3 => {
            let row = rows.remove(&key).unwrap();
            let mut moved = key;
            let at = nth(random, moved.len());
            moved[at] ^= 1 << random.below(8);
            rows.insert(moved, row);
        }
        _ => {
            let row = rows.get_mut(&key).unwrap();
            let at = nth(random, row.len());
            row[at] ^= 1 << random.below(8);
        }
    }
}

#[test]
fn damage_is_an_error_or_changes_nothing_that_is_told() {
    let mut random = Random::new(5);
    let (disk, expected) = filled(1);
    let mut whole = BTreeMap::new();
    disk.damage(|rows| whole = rows.clone());
    let mut refused = 0;
    for _ in 0..300 {
        disk.damage(|rows| damage(rows, &mut random));
        let mut is_same = false;
        disk.damage(|rows| is_same = *rows == whole);
        match Index::open(Box::new(disk.open()), STORE) {
            Ok(mut index) => {
                assert!(is_same, "opening looks at every row");
                assert_eq!(all(&mut index).unwrap(), expected);
            }
            Err(error) => {
                refused += 1;
                assert_eq!(error.kind(), ErrorKind::Corrupt);
            }
        }
        // The same under an index that is already open.
        disk.damage(|rows| rows.clone_from(&whole));
        let mut index = open(disk.open());
        disk.damage(|rows| damage(rows, &mut random));
        match all(&mut index) {
            Ok(all) => assert_eq!(all, expected),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                assert!(index.counts(Timestamp(1)).is_err(), "after an error there are no answers");
            }
        }
        disk.damage(|rows| rows.clone_from(&whole));
    }
    assert!(refused > 250);
}

#[test]
fn a_row_of_an_earlier_state_is_noticed_at_open_and_when_read() {
    let (disk, _) = filled(2);
    let mut index = open(disk.open());
    let mut old = BTreeMap::new();
    disk.damage(|rows| old = rows.clone());
    let mut changed = all(&mut index).unwrap()[0];
    changed.epoch += 1;
    let mut batch = Batch::new(Lsn(1 << 30), index.clock());
    batch.changes.insert(changed.place(), Some(changed));
    index.apply(&batch).unwrap();
    let mut index = open(disk.open());
    disk.damage(|rows| {
        let stale = old.iter().find(|(key, row)| key[0] == 0x10 && rows[*key] != **row).unwrap();
        rows.insert(stale.0.clone(), stale.1.clone());
    });
    assert_eq!(index.get(changed.queue, changed.id).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(Index::open(Box::new(disk.open()), STORE).err().unwrap().kind(), ErrorKind::Corrupt);
}

#[test]
fn an_index_of_another_store_is_refused_by_name() {
    let (disk, _) = filled(3);
    let error = Index::open(Box::new(disk.open()), StoreId([8; 16])).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains(&STORE.to_string()), "{error}");
}

#[test]
fn a_power_cut_leaves_the_state_of_one_batch() {
    for kept in 0..12 {
        let (mut random, mut model, disk) = (Random::new(kept), Model::new(), MemDisk::new());
        let mut index = open(disk.open());
        let mut states = vec![];
        for round in 0..20 {
            states.push((index.applied(), model.entries()));
            if round == 10 {
                index.sync().unwrap();
            }
            index.apply(&model.batch(&mut random)).unwrap();
        }
        states.push((index.applied(), model.entries()));
        assert_eq!(disk.unsynced(), 10);
        disk.cut_power(kept as usize);
        let mut index = open(disk.open());
        let (applied, entries) = &states[10 + (kept as usize).min(10)];
        assert_eq!((index.applied(), &all(&mut index).unwrap()), (*applied, entries));
    }
}

#[test]
fn after_a_failed_commit_the_index_answers_nothing_and_the_rows_are_whole() {
    let (disk, expected) = filled(4);
    let mut index = open(disk.open());
    disk.fail_after(Some(0));
    let batch = puts([place(1, 0, 1 << 35)], 1 << 35);
    assert_eq!(index.apply(&batch).unwrap_err().kind(), ErrorKind::Io);
    disk.fail_after(None);
    assert_eq!(index.apply(&batch).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(index.get(QueueId(1), MessageId(1)).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(all(&mut open(disk.open())).unwrap(), expected);
}

#[test]
fn sled_keeps_what_was_applied_over_dropping_and_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index/1");
    for round in 0..50 {
        let mut index = open(SledKv::open(Arc::new(RealFs), &path).unwrap());
        assert_eq!((index.applied(), index.live().0), (Lsn(round), round * 300));
        index.apply(&puts((0..300).map(|id| place(1, 0, round * 300 + id)), round + 1)).unwrap();
        assert!(index.len_on_disk() > 0);
    }
    SledKv::remove(&RealFs, &path).unwrap();
    SledKv::remove(&RealFs, &path).unwrap();
    assert!(!path.exists());
}

#[test]
fn an_unfinished_snapshot_of_sled_does_not_hinder_opening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("1");
    open(SledKv::open(Arc::new(RealFs), &path).unwrap()).apply(&puts([place(1, 0, 1)], 1)).unwrap();
    fs::write(path.join("snap.0000.generating"), b"half of it").unwrap();
    let mut index = open(SledKv::open(Arc::new(RealFs), &path).unwrap());
    assert_eq!(ids(&mut index), [1]);
    assert!(!path.join("snap.0000.generating").exists());
}

#[test]
fn sled_that_cannot_open_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("1");
    let first = SledKv::open(Arc::new(RealFs), &path).unwrap();
    let second = SledKv::open(Arc::new(RealFs), &path).err().unwrap();
    assert_eq!(second.kind(), ErrorKind::Io);
    drop(first);
    fs::write(path.join("conf"), b"segment_size: 12").unwrap();
    assert!(SledKv::open(Arc::new(RealFs), &path).is_err());
    assert_eq!(SledKv::open(Arc::new(RealFs), &dir.path().join("a/b/c")).err().unwrap().kind(), ErrorKind::Io);
}

#[test]
fn bytes_changed_under_sled_are_an_error_or_the_right_answer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("1");
    let mut index = open(SledKv::open(Arc::new(RealFs), &path).unwrap());
    for n in 0..40 {
        index.apply(&puts((0..500).map(|id| place(1, 0, n * 500 + id)), n + 1)).unwrap();
    }
    let expected = all(&mut index).unwrap();
    drop(index);
    let whole = fs::read(path.join("db")).unwrap();
    let mut random = Random::new(1);
    for _ in 0..20 {
        let mut bytes = whole.clone();
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
        fs::write(path.join("db"), &bytes).unwrap();
        for entry in fs::read_dir(&path).unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with("snap.") {
                fs::remove_file(entry.path()).unwrap();
            }
        }
        let opened = SledKv::open(Arc::new(RealFs), &path).and_then(|kv| Index::open(Box::new(kv), STORE));
        if let Ok(found) = opened.and_then(|mut index| all(&mut index).map(|all| (index.applied(), all))) {
            // An older state, whole, is replayed from; a wrong one is not found.
            let n = usize::try_from(found.0.0).unwrap();
            assert_eq!(found.1, expected[..n * 500]);
        }
    }
}
