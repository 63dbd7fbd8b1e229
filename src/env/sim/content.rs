//! One file's bytes: what a reader sees, what is on the disk, and what is in between.
//!
//! # Invariants
//! A sector that is not dirty is on the disk as it is read, unless its sync was lost. Bytes of a
//! file beyond what was ever synced are zero.

use std::collections::BTreeMap;

use super::Loss;
use super::rng::Rng;

/// What a disk writes whole.
pub(super) const SECTOR: usize = 512;
/// How many earlier versions of a sector that is written again and again are kept.
const MAX_VERSIONS: usize = 4;

#[derive(Clone, Default)]
pub(super) struct Content {
    now: Vec<u8>,
    disk: Vec<u8>,
    /// The sectors written since their last sync, with what else they held since: the system may
    /// have written any of that to the disk.
    dirty: BTreeMap<usize, Vec<Vec<u8>>>,
}

/// The bytes of a sector that `bytes` has: fewer than a sector at the end, none after it.
fn sector(bytes: &[u8], index: usize) -> &[u8] {
    let start = index.saturating_mul(SECTOR).min(bytes.len());
    let end = start.saturating_add(SECTOR).min(bytes.len());
    bytes.get(start..end).unwrap_or_default()
}

/// Puts `new` into `bytes` at `start`, as far as there is room.
fn overlay(bytes: &mut [u8], start: usize, new: &[u8]) {
    let Some(old) = bytes.get_mut(start..) else { return };
    old.iter_mut().zip(new).for_each(|(old, new)| *old = *new);
}

impl Content {
    /// Bytes that are on the disk already.
    pub(super) fn on_disk(bytes: Vec<u8>) -> Self {
        Self { now: bytes.clone(), disk: bytes, dirty: BTreeMap::new() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.now
    }

    fn touch(&mut self, start: usize, end: usize) {
        if start >= end {
            return;
        }
        for index in start / SECTOR..end.div_ceil(SECTOR) {
            let before = sector(&self.now, index);
            match self.dirty.get_mut(&index) {
                Some(versions) if versions.len() < MAX_VERSIONS => versions.push(before.to_vec()),
                Some(_) => {}
                None => _ = self.dirty.insert(index, Vec::new()),
            }
        }
    }

    pub(super) fn set_len(&mut self, len: usize) {
        let old = self.now.len();
        // Where the disk still has bytes from before an unsynced cut, zeros are news to it.
        self.touch(old, len.min(self.disk.len()));
        self.now.resize(len, 0);
        self.dirty.split_off(&len.div_ceil(SECTOR));
    }

    /// Writes as a whole; the file grows where needed.
    pub(super) fn write(&mut self, start: usize, bytes: &[u8]) {
        let end = start.saturating_add(bytes.len());
        if end > self.now.len() {
            self.set_len(end);
        }
        self.touch(start, end);
        overlay(&mut self.now, start, bytes);
    }

    pub(super) fn sync(&mut self) {
        self.disk.resize(self.now.len(), 0);
        for &index in self.dirty.keys() {
            overlay(&mut self.disk, index * SECTOR, sector(&self.now, index));
        }
        self.dirty.clear();
    }

    /// A sync that fails and takes everything for clean. The length is kept apart from the bytes
    /// and can still be synced.
    pub(super) fn lose_sync(&mut self) {
        self.dirty.clear();
    }

    /// The power goes. What is left is on the disk.
    pub(super) fn cut(&mut self, loss: Loss, rng: &mut Rng) {
        let len = match loss {
            Loss::All => self.disk.len(),
            Loss::Nothing => self.now.len(),
            Loss::Random | Loss::RandomSectors => self.some_len(rng),
        };
        let mut left = std::mem::take(&mut self.disk);
        left.resize(len, 0);
        // Now and then nearly everything is kept or lost, so that a single sector out of many is
        // tried as well.
        let kept_of_8 = [0, 1, 4, 4, 7, 8].get(rng.below(6)).copied().unwrap_or(4);
        for (&index, versions) in &self.dirty {
            let newest = sector(&self.now, index);
            let start = index * SECTOR;
            match loss {
                Loss::All => {}
                Loss::Nothing => overlay(&mut left, start, newest),
                Loss::Random if rng.chance(1, 8) => {
                    let at = rng.below(newest.len());
                    let (head, tail) = newest.split_at_checked(at).unwrap_or((newest, &[]));
                    if rng.chance(1, 2) {
                        overlay(&mut left, start, head);
                    } else {
                        overlay(&mut left, start + at, tail);
                    }
                }
                Loss::Random | Loss::RandomSectors if rng.chance(kept_of_8, 8) => {
                    let other = versions.get(rng.below(4 * versions.len()));
                    overlay(&mut left, start, other.map_or(newest, Vec::as_slice));
                }
                Loss::Random | Loss::RandomSectors => {}
            }
        }
        *self = Self::on_disk(left);
    }

    /// The old length, the new one, or a whole number of sectors in between.
    fn some_len(&self, rng: &mut Rng) -> usize {
        let (old, new) = (self.disk.len(), self.now.len());
        match rng.below(3) {
            0 => old,
            1 => new,
            _ => {
                let (low, high) = (old.min(new), old.max(new));
                let between = low / SECTOR + 1 + rng.below((high - low) / SECTOR + 1);
                (between * SECTOR).clamp(low, high)
            }
        }
    }
}
