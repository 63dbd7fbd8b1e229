//! `quarantine/`: what recovery cut, and what cannot be read and would go with its segment. Never
//! deleted by the store.
//!
//! # Crashes
//! A copy is there whole or not at all. The same name and length are the same bytes: it is not written
//! twice.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::env::{EntryKind, File, Fs, OpenMode};
use crate::error::{Error, Result};

use super::layout::{KEPT_TMP_SUFFIX, QUARANTINE_DIR};
use super::segments::remove_file;

/// What is not needed for certain is kept up to so many files and bytes.
const MAX_KEPT_COUNT: usize = 64;
const MAX_KEPT_LEN: u64 = 256 * 1024 * 1024;

/// Writes the content of one file, mapping what fails.
type Write<'w> = dyn FnMut(&dyn File, &dyn Fn(io::Error) -> Error) -> Result<()> + 'w;

/// Keeps `len` bytes, which `write` writes, under `name`, durably. `None`: enough is there already;
/// never so when they `must` be kept.
///
/// # Errors
/// `Full`, `Io`: nothing was kept.
pub(super) fn keep(
    fs: &Arc<dyn Fs>,
    store: &Path,
    name: &str,
    len: u64,
    must: bool,
    write: &mut Write<'_>,
) -> Result<Option<PathBuf>> {
    let dir = store.join(QUARANTINE_DIR);
    match fs.create_dir(&dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(Error::io("creating", &dir, e)),
        _ => fs.sync_dir(store).map_err(|e| Error::io("syncing", store, e))?,
    }
    let (path, tmp) = (dir.join(name), dir.join(format!("{name}{KEPT_TMP_SUFFIX}")));
    let there = fs.read_dir(&dir).map_err(|e| Error::io("listing", &dir, e))?;
    if there.iter().any(|entry| entry.name == name && entry.len == len) {
        return Ok(Some(path));
    }
    let files = there.iter().filter(|entry| entry.kind == EntryKind::File);
    let total = files.clone().map(|entry| entry.len).sum::<u64>();
    if !must && (files.count() >= MAX_KEPT_COUNT || total.saturating_add(len) > MAX_KEPT_LEN) {
        tracing::warn!(dir = %dir.display(), name, "quarantine is full: this is not kept");
        return Ok(None);
    }
    let mut copy = || -> Result<()> {
        let failed = |e| Error::io("writing", &tmp, e);
        remove_file(fs, &tmp).map_err(failed)?;
        let file = fs.open(&tmp, OpenMode::CreateNew).map_err(failed)?;
        write(&*file, &failed)?;
        file.sync_data().and_then(|()| fs.rename(&tmp, &path)).map_err(failed)?;
        fs.sync_dir(&dir).map_err(failed)
    };
    if let Err(error) = copy() {
        let _ = remove_file(fs, &tmp);
        return Err(error);
    }
    Ok(Some(path))
}

/// Keeps bytes that are damaged, before what they stand in goes.
///
/// # Errors
/// As [`keep`].
pub(crate) fn keep_in_quarantine(fs: &Arc<dyn Fs>, store: &Path, name: &str, bytes: &[u8]) -> Result<Option<PathBuf>> {
    keep(fs, store, name, bytes.len() as u64, false, &mut |file, failed| file.write_all_at(bytes, 0).map_err(failed))
}
