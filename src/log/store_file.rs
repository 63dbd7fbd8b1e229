//! `STORE`: which store this is, and which format. Written once, never changed.
//!
//! # Crashes
//! It is written beside its name, synced, then renamed: it is there whole or not at all. Bytes that
//! are not whole are damage, never "nothing here".
//!
//! # Not here
//! Whether a directory without `STORE` may become a store: `engine/open.rs`.

use std::path::Path;
use std::sync::Arc;

use crate::codec::Short;
use crate::env::{Fs, OpenMode};
use crate::error::{Damage, Error, ErrorKind, Result};
use crate::types::{StoreId, Timestamp};

use super::format::{Features, finish_block, read_block, start_block};

pub(crate) const STORE_FILE: &str = "STORE";
const MAGIC: [u8; 8] = *b"REAPPEAR";
const LEN: usize = 512;

/// What `STORE` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StoreFile {
    pub(crate) id: StoreId,
    pub(crate) created: Timestamp,
    pub(crate) version: u32,
    pub(crate) features: Features,
}

impl StoreFile {
    fn encode(id: StoreId, created: Timestamp) -> Vec<u8> {
        let mut out = start_block(MAGIC);
        out.extend(id.0);
        out.extend(created.0.to_le_bytes());
        finish_block(out, LEN, 0)
    }

    /// Makes `STORE` in `dir`, durably.
    ///
    /// # Errors
    /// `AlreadyExists` when there is one, whatever it holds; `Io`, `Full`: nothing is there then but
    /// perhaps a temporary file, which the next call overwrites.
    pub(crate) fn create_new(fs: &Arc<dyn Fs>, dir: &Path, id: StoreId, created: Timestamp) -> Result<Self> {
        let path = dir.join(STORE_FILE);
        if fs.metadata(&path).map_err(|e| Error::io("looking at", &path, e))?.is_some() {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("{} exists already", path.display())));
        }
        write_beside(fs, dir, STORE_FILE, &Self::encode(id, created))?;
        Self::read(fs, dir)
    }

    /// Reads and checks `STORE`.
    ///
    /// # Errors
    /// `NotFound` when there is no such entry at all; `Unsupported` for a version or features that
    /// are not known; `Corrupt` for everything else that is not what was written.
    pub(crate) fn read(fs: &Arc<dyn Fs>, dir: &Path) -> Result<Self> {
        let path = dir.join(STORE_FILE);
        let Some(entry) = fs.metadata(&path).map_err(|e| Error::io("looking at", &path, e))? else {
            return Err(Error::not_found(format!("there is no store at {}", dir.display())));
        };
        let damage = || Damage { file: path.clone(), offset: 0, first_lsn: None, last_lsn: None };
        if entry.len < LEN as u64 {
            return Err(Error::corrupt(format!("{} of {LEN} bytes are there", entry.len), damage()));
        }
        let mut bytes = [0; LEN];
        let file = fs.open(&path, OpenMode::Read).map_err(|e| Error::io("opening", &path, e))?;
        file.read_exact_at(&mut bytes, 0).map_err(|e| Error::io("reading", &path, e))?;
        let block = read_block(&path, &bytes, MAGIC, 0)?;
        let mut block = block.ok_or_else(|| Error::corrupt("the store's description is damaged", damage()))?;
        let mut read = || -> Result<Self, Short> {
            let (id, created) = (StoreId(block.fields.array()?), Timestamp(block.fields.u64()?));
            Ok(Self { id, created, version: super::format::FORMAT_VERSION, features: block.features })
        };
        read().map_err(|_| Error::corrupt("the store's description is damaged", damage()))
    }

    /// # Errors
    /// `Unsupported` when the store has features that must be known to write to it.
    pub(crate) fn writable(&self, dir: &Path) -> Result<()> {
        self.features.writable(&dir.join(STORE_FILE))
    }

    pub(super) fn seed(&self) -> u32 {
        self.id.seed()
    }
}

/// Writes a small file whole or not at all: beside its name, synced, renamed, directory synced.
pub(super) fn write_beside(fs: &Arc<dyn Fs>, dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let (path, tmp) = (dir.join(name), dir.join(format!("{name}.tmp")));
    let write = || -> std::io::Result<()> {
        match fs.remove_file(&tmp) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let file = fs.open(&tmp, OpenMode::CreateNew)?;
        file.write_all_at(bytes, 0)?;
        file.sync_data()?;
        fs.rename(&tmp, &path)?;
        fs.sync_dir(dir)
    };
    write().map_err(|e| Error::io("writing", &path, e))
}
