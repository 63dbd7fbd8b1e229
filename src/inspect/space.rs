//! Where a store's bytes are: its files by their lengths, its log by what is live in it.

use std::path::Path;

use crate::env::os::os_env;
use crate::env::{EntryKind, Fs};
use crate::types::KeptFor;

/// Where the bytes of a store are. Lengths of files are as of one look at the directories; while the store
/// is in use they may be a little older or newer than what the log adds up to.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SpaceState {
    /// Segments of the log.
    pub segments: u64,
    /// The number of the oldest one that has a record; `u32::MAX` without any record.
    pub oldest_segment: u32,
    /// What that one is still there for.
    pub oldest_segment_kept_for: KeptFor,
    /// Bytes of the segments' files, of which the last is longer than what is written in it.
    pub log_len_on_disk: u64,
    /// Bytes of records that live messages need.
    pub live_len: u64,
    /// Bytes of all other records.
    pub dead_len: u64,
    /// Bytes of the files that are made ahead: the next segment, and the reserve for a full disk.
    pub reserve_len: u64,
    /// Bytes of the index on disk.
    pub index_len: u64,
    /// Bytes that were cut off or could not be read, and are kept for a person to look at.
    pub quarantine_len: u64,
}

impl SpaceState {
    /// Looks at the files. What cannot be listed counts as nothing.
    pub(super) fn measure(store: &Path) -> Self {
        let fs = os_env().fs;
        let log = fs.read_dir(&store.join("log")).unwrap_or_default();
        let with_ending = |ending: &'static str| log.iter().filter(move |entry| entry.name.ends_with(ending));
        Self {
            segments: with_ending(".seg").count() as u64,
            oldest_segment: u32::MAX,
            oldest_segment_kept_for: KeptFor::InUse,
            log_len_on_disk: with_ending(".seg").map(|entry| entry.len).sum(),
            live_len: 0,
            dead_len: 0,
            reserve_len: with_ending(".spare").map(|entry| entry.len).sum(),
            index_len: len_below(&*fs, &store.join("index"), 2),
            quarantine_len: len_below(&*fs, &store.join("quarantine"), 1),
        }
    }
}

/// Bytes of the files in a directory, and so many levels below it.
fn len_below(fs: &dyn Fs, dir: &Path, levels: u32) -> u64 {
    let entries = fs.read_dir(dir).unwrap_or_default();
    let len = |entry: crate::env::DirEntry| match entry.kind {
        EntryKind::Dir if levels > 0 => len_below(fs, &dir.join(entry.name), levels - 1),
        _ => entry.len,
    };
    entries.into_iter().map(len).sum()
}
