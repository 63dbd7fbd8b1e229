//! `CHECKPOINT`: how far the index is, where the log begins, and what is proven durable.
//!
//! ```text
//! ┌ slot 0, 4 KiB ┬ slot 1, 4 KiB ┐   written in turn: generation g stands in slot g mod 2
//! └───────────────┴───────────────┘
//! ```
//!
//! # Invariants
//! `checkpoint_lsn <= applied_lsn <= durable_lsn` (12). Both slots are always written, so a slot
//! that does not read is damage, or the write that a crash cut.
//!
//! # Crashes
//! A crash in a write can tear only the older slot; the newer one stays. What is removed because of a
//! checkpoint must be unnecessary to the other slot too, which may have to serve in its place:
//! see [`CheckpointFile::first_segment`]. A write that finds no room is like such a crash, and is done again.
//!
//! # Not here
//! When a checkpoint is taken: `engine/checkpoint.rs`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::codec::{Reader, Short};
use crate::env::{File, Fs, OpenMode};
use crate::error::{Damage, Error, Result};
use crate::types::{Lsn, Timestamp};

use super::format::{finish_block, read_block, start_block};
use super::segments::is_full;
use super::store_file::write_beside;

pub(crate) const CHECKPOINT_FILE: &str = "CHECKPOINT";
const MAGIC: [u8; 8] = *b"REAPPCHK";
const SLOT_LEN: usize = 4096;

/// In the place of an index's generation: there is none on disk.
pub(crate) const NO_INDEX: u64 = 0;

/// One checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Checkpoint {
    /// Counts the writes; [`CheckpointFile`] sets it.
    pub(crate) generation: u64,
    /// Everything up to here is in the index, durably.
    pub(crate) lsn: Lsn,
    pub(crate) durable_lsn: Lsn,
    /// Segments before this one are not needed any more.
    pub(crate) first_segment: u32,
    /// The boot it was written in.
    pub(crate) boot_id: Option<[u8; 16]>,
    pub(crate) index_generation: u64,
    pub(crate) live_count: u64,
    pub(crate) live_hash: u64,
    pub(crate) clock: Timestamp,
    /// Written by an orderly close.
    pub(crate) clean: bool,
}

impl Checkpoint {
    fn encode(&self, seed: u32) -> Vec<u8> {
        let mut out = start_block(MAGIC);
        out.extend(self.generation.to_le_bytes());
        out.extend(self.lsn.0.to_le_bytes());
        out.extend(self.durable_lsn.0.to_le_bytes());
        out.extend(self.first_segment.to_le_bytes());
        out.push(u8::from(self.clean));
        out.push(u8::from(self.boot_id.is_some()));
        out.extend([0; 2]);
        out.extend(self.boot_id.unwrap_or_default());
        out.extend(self.index_generation.to_le_bytes());
        out.extend(self.live_count.to_le_bytes());
        out.extend(self.live_hash.to_le_bytes());
        out.extend(self.clock.0.to_le_bytes());
        finish_block(out, SLOT_LEN, seed)
    }

    fn fields(reader: &mut Reader<'_>) -> Result<Self, Short> {
        let (generation, lsn, durable_lsn) = (reader.u64()?, Lsn(reader.u64()?), Lsn(reader.u64()?));
        let (first_segment, clean, has_boot_id) = (reader.u32()?, reader.u8()?, reader.u8()?);
        reader.bytes(2)?;
        let boot_id = reader.array()?;
        Ok(Self {
            generation,
            lsn,
            durable_lsn,
            first_segment,
            boot_id: (has_boot_id == 1).then_some(boot_id),
            index_generation: reader.u64()?,
            live_count: reader.u64()?,
            live_hash: reader.u64()?,
            clock: Timestamp(reader.u64()?),
            clean: clean == 1,
        })
    }
}

/// The open file.
pub(crate) struct CheckpointFile {
    file: Arc<dyn File>,
    path: PathBuf,
    seed: u32,
    newest: Checkpoint,
    /// `first_segment` of the other slot.
    other_first_segment: u32,
    failed: Option<Error>,
}

impl CheckpointFile {
    /// Makes `CHECKPOINT` with `checkpoint` in both slots, durably. A file that is there is replaced.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub(crate) fn create(fs: &Arc<dyn Fs>, dir: &Path, seed: u32, checkpoint: &Checkpoint) -> Result<Self> {
        let even = Checkpoint { generation: 2, ..*checkpoint };
        let odd = Checkpoint { generation: 1, ..*checkpoint };
        let bytes = [even.encode(seed), odd.encode(seed)].concat();
        write_beside(fs, dir, CHECKPOINT_FILE, &bytes)?;
        Self::open(fs, dir, seed).map(|(file, ..)| file)
    }

    /// Opens it. The `bool`: one slot is damaged, the other was used.
    ///
    /// # Errors
    /// `NotFound` when there is no such entry; `Corrupt` when neither slot reads; `Unsupported`.
    pub(crate) fn open(fs: &Arc<dyn Fs>, dir: &Path, seed: u32) -> Result<(Self, Checkpoint, bool)> {
        let path = dir.join(CHECKPOINT_FILE);
        let Some(entry) = fs.metadata(&path).map_err(|e| Error::io("looking at", &path, e))? else {
            return Err(Error::not_found(format!("{} is missing", path.display())));
        };
        let file = fs.open(&path, OpenMode::Write).map_err(|e| Error::io("opening", &path, e))?;
        let mut slots = [None, None];
        for (slot, start) in slots.iter_mut().zip([0, SLOT_LEN as u64]) {
            if entry.len < start + SLOT_LEN as u64 {
                continue;
            }
            let mut bytes = vec![0; SLOT_LEN];
            file.read_exact_at(&mut bytes, start).map_err(|e| Error::io("reading", &path, e))?;
            let block = read_block(&path, &bytes, MAGIC, seed)?;
            *slot = block.and_then(|mut block| Checkpoint::fields(&mut block.fields).ok());
        }
        // A slot in the wrong place is a copy that was made by hand.
        let slots =
            [slots[0].filter(|slot| slot.generation % 2 == 0), slots[1].filter(|slot| slot.generation % 2 == 1)];
        let damaged = slots.contains(&None);
        let Some(newest) = slots.into_iter().flatten().max_by_key(|slot| slot.generation) else {
            let damage = Damage { file: path, offset: 0, first_lsn: None, last_lsn: None };
            return Err(Error::corrupt("both slots of the checkpoint are damaged", damage));
        };
        let first_segments = slots.into_iter().flatten().map(|slot| slot.first_segment);
        let other_first_segment = first_segments.min().unwrap_or(newest.first_segment);
        Ok((Self { file, path, seed, newest, other_first_segment, failed: None }, newest, damaged))
    }

    /// Writes `checkpoint` over the older slot and syncs it. Its generation is set here.
    ///
    /// # Errors
    /// `Full` from the write: the slot may be torn, the other one stands, and the next call writes the same
    /// slot again. `Io`, and whatever the sync says: the slot's content is unknown, the other one stands.
    /// Nothing is written any more: every later call gives the same error.
    pub(crate) fn write(&mut self, checkpoint: Checkpoint) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let next = Checkpoint { generation: self.newest.generation + 1, ..checkpoint };
        let start = (next.generation % 2) * SLOT_LEN as u64;
        let write = self.file.write_all_at(&next.encode(self.seed), start).map_err(|e| ("writing", e));
        let may_try_again = write.as_ref().is_err_and(|(_, e)| is_full(e));
        if let Err((what, e)) = write.and_then(|()| self.file.sync_data().map_err(|e| ("syncing", e))) {
            let error = Error::io(what, &self.path, e);
            if !may_try_again {
                self.failed = Some(error.clone());
            }
            return Err(error);
        }
        self.other_first_segment = self.newest.first_segment;
        self.newest = next;
        Ok(())
    }

    /// The newest checkpoint.
    #[cfg(test)]
    pub(crate) const fn newest(&self) -> &Checkpoint {
        &self.newest
    }

    /// The first segment that either slot still needs. Only those before it may be removed: should
    /// the newer slot ever be damaged, the other one must find what it names.
    pub(crate) fn first_segment(&self) -> u32 {
        self.newest.first_segment.min(self.other_first_segment)
    }
}
