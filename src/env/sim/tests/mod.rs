mod crash;
mod fault;
mod names;
mod same_as_os;

use std::collections::BTreeSet;

use super::*;
use crate::env::{File, LockGuard, OpenMode, TryLock};
use crate::types::Timestamp;

const SEEDS: u64 = 200;

fn file(fs: &Arc<dyn Fs>, path: &str) -> Arc<dyn File> {
    fs.open(Path::new(path), OpenMode::CreateNew).unwrap()
}

fn open(fs: &Arc<dyn Fs>, path: &str) -> Arc<dyn File> {
    fs.open(Path::new(path), OpenMode::Write).unwrap()
}

fn sync_dir(fs: &Arc<dyn Fs>, path: &str) {
    fs.sync_dir(Path::new(path)).unwrap();
}

/// A disk with one file, synced, with its name.
fn disk_with(bytes: &[u8]) -> SimDisk {
    let disk = SimDisk::new(7);
    disk.write_raw("/f", bytes);
    disk
}

/// What `/f` can be after a power cut, over many seeds.
fn outcomes(disk: &SimDisk, loss: Loss) -> BTreeSet<Option<Vec<u8>>> {
    (0..SEEDS)
        .map(|seed| {
            let fork = disk.fork(seed);
            fork.power_cut_with(loss);
            fork.read_raw("/f")
        })
        .collect()
}

/// The sets of files that can be there after a power cut, over many seeds.
fn names_left(disk: &SimDisk) -> BTreeSet<String> {
    (0..SEEDS)
        .map(|seed| {
            let fork = disk.fork(seed);
            fork.power_cut();
            let names = fork.list_raw().into_iter().map(|(path, _)| path.to_string_lossy().into_owned());
            names.collect::<Vec<_>>().join(" ")
        })
        .collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().unwrap().raw_os_error()
}

fn is_dead<T>(result: io::Result<T>) -> bool {
    result.err().is_some_and(|error| error.to_string().contains("process is dead"))
}

fn held(lock: io::Result<TryLock>) -> Box<dyn LockGuard> {
    match lock.unwrap() {
        TryLock::Held(guard) => guard,
        TryLock::Busy { text } => panic!("busy: {text}"),
    }
}

fn busy(lock: io::Result<TryLock>) -> String {
    match lock.unwrap() {
        TryLock::Held(_) => panic!("nobody holds it"),
        TryLock::Busy { text } => text,
    }
}
