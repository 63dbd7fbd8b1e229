//! The index's rows in memory: what takes over when sled fails, and what tests run on.
//!
//! # Crashes
//! The rows are gone with the process, and the index is rebuilt from the log. A test can instead keep them
//! on a `MemDisk`, which loses at will what was not synced, fails, and lets its rows be damaged.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::kv::{Kv, Writes};
use crate::error::{Error, ErrorKind, Result};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Default)]
struct State {
    rows: Rows,
    /// Only on a [`MemDisk`]: what undoes each commit since the last sync, oldest first.
    undo: Option<Vec<Commit>>,
    /// Commits and syncs that still succeed; `None` for all.
    succeed: Option<usize>,
    /// Bytes committed to a [`MemDisk`]: like sled it gives nothing back.
    written_len: u64,
}

/// Keys with the values they had.
type Commit = Vec<(Vec<u8>, Option<Vec<u8>>)>;

impl State {
    fn put(&mut self, key: &[u8], value: Option<&Vec<u8>>) -> Option<Vec<u8>> {
        match value {
            Some(value) => self.rows.insert(key.to_vec(), value.clone()),
            None => self.rows.remove(key),
        }
    }

    fn may_write(&mut self) -> Result<()> {
        match &mut self.succeed {
            None => Ok(()),
            Some(0) => Err(Error::new(ErrorKind::Io, "index: the disk in memory was told to fail")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}

/// A [`Kv`] in memory.
pub(crate) struct MemKv(Arc<Mutex<State>>);

impl MemKv {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kv for MemKv {
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.state().rows.get(key).cloned())
    }

    fn scan(&mut self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        if from < to {
            let state = self.state();
            let mut rows = state.rows.range::<[u8], _>((Included(from), Excluded(to)));
            while rows.next().is_some_and(|(key, value)| visit(key, value)) {}
        }
        Ok(())
    }

    fn commit(&mut self, writes: &Writes) -> Result<()> {
        let mut state = self.state();
        state.may_write()?;
        let mut undo = Vec::new();
        for (key, value) in writes {
            let old = state.put(key, value.as_ref());
            if state.undo.is_some() {
                state.written_len += value.as_ref().map_or(0, |value| (key.len() + value.len()) as u64);
                undo.push((key.clone(), old));
            }
        }
        if let Some(commits) = &mut state.undo {
            commits.push(undo);
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let mut state = self.state();
        state.may_write()?;
        if let Some(commits) = &mut state.undo {
            commits.clear();
        }
        Ok(())
    }

    fn len_on_disk(&self) -> u64 {
        self.state().written_len
    }
}

/// A disk in memory under one [`MemKv`] after the other. Clones are the same disk.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone)]
pub(crate) struct MemDisk(Arc<Mutex<State>>);

#[cfg(any(test, feature = "testing"))]
impl MemDisk {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State { undo: Some(Vec::new()), ..State::default() })))
    }

    /// A store on this disk; drop the one before.
    pub(crate) fn open(&self) -> MemKv {
        MemKv(Arc::clone(&self.0))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits since the last sync: what a power cut may take.
    pub(crate) fn unsynced(&self) -> usize {
        self.state().undo.as_ref().map_or(0, Vec::len)
    }

    /// A power cut that leaves the first `kept` of the unsynced commits. What is left counts as synced.
    pub(crate) fn cut_power(&self, kept: usize) {
        let mut state = self.state();
        let mut commits = state.undo.replace(Vec::new()).unwrap_or_default();
        for (key, value) in commits.drain(kept.min(commits.len())..).rev().flat_map(|commit| commit.into_iter().rev()) {
            state.put(&key, value.as_ref());
        }
    }

    /// From now on `commits` commits or syncs succeed, and all after them fail. `None` ends it.
    pub(crate) fn fail_after(&self, commits: Option<usize>) {
        self.state().succeed = commits;
    }

    /// Lets `damage` change the rows behind the index's back.
    pub(crate) fn damage(&self, damage: impl FnOnce(&mut BTreeMap<Vec<u8>, Vec<u8>>)) {
        damage(&mut self.state().rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(kv: &mut MemKv, key: &str, value: Option<&str>) -> Result<()> {
        kv.commit(&[(key.into(), value.map(Into::into)), ("last".into(), Some(key.into()))])
    }

    fn dump(kv: &mut MemKv) -> Vec<String> {
        let mut rows = vec![];
        kv.scan(b"", b"zz", &mut |key, value| {
            rows.push(format!("{}={}", String::from_utf8_lossy(key), String::from_utf8_lossy(value)));
            true
        })
        .unwrap();
        rows
    }

    #[test]
    fn a_power_cut_takes_whole_commits_from_the_end() {
        for (kept, expected) in [
            (0, vec!["a=1", "last=a"]),
            (1, vec!["a=2", "last=a"]),
            (2, vec!["last=a"]),
            (3, vec!["b=1", "last=b"]),
            (9, vec!["b=1", "last=b"]),
        ] {
            let disk = MemDisk::new();
            let mut kv = disk.open();
            put(&mut kv, "a", Some("1")).unwrap();
            kv.sync().unwrap();
            put(&mut kv, "a", Some("2")).unwrap();
            put(&mut kv, "a", None).unwrap();
            put(&mut kv, "b", Some("1")).unwrap();
            assert_eq!(disk.unsynced(), 3);
            disk.cut_power(kept);
            assert_eq!(dump(&mut disk.open()), expected, "kept {kept}");
        }
    }

    #[test]
    fn it_fails_when_told_and_leaves_the_rows_as_they_were() {
        let disk = MemDisk::new();
        let mut kv = disk.open();
        disk.fail_after(Some(1));
        put(&mut kv, "a", Some("1")).unwrap();
        assert_eq!(put(&mut kv, "a", Some("2")).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(kv.sync().unwrap_err().kind(), ErrorKind::Io);
        disk.fail_after(None);
        assert_eq!(kv.get(b"a").unwrap(), Some(b"1".to_vec()));
        kv.sync().unwrap();
    }

    #[test]
    fn a_scan_ends_before_its_end_and_when_it_is_told() {
        let mut kv = MemKv::new();
        for key in ["a", "b", "c"] {
            put(&mut kv, key, Some("1")).unwrap();
        }
        let mut seen = vec![];
        kv.scan(b"a", b"c", &mut |key, _| {
            seen.push(key.to_vec());
            true
        })
        .unwrap();
        kv.scan(b"a", b"c", &mut |key, _| {
            seen.push(key.to_vec());
            false
        })
        .unwrap();
        kv.scan(b"c", b"a", &mut |_, _| panic!("nothing is between")).unwrap();
        assert_eq!(seen, [b"a", b"b", b"a"]);
    }
}
