//! Renewing the index: a new generation on disk, made while the old one is in use.
//!
//! | why | from |
//! |---|---|
//! | its files are much larger than its rows, or much was written to it: sled gives neither back | its rows |
//! | the same, and there is no room for a new one: first into memory | its rows |
//! | it failed, or was in the way, and one in memory took its place | the rows in memory |
//! | somebody asked for it | the log |
//!
//! # Invariants
//! 13: rows are copied as they are, and read back before they are used; a rebuild replays the log.
//!
//! # Crashes
//! The checkpoint names a generation, and that one's files stay until a later checkpoint names another. A
//! generation that is half made, or made and not named yet, is removed at the next open.
//!
//! # Not here
//! How rows are copied: `index/renew.rs`. Which index is used at open: `open.rs`.

use std::time::Duration;

use crate::engine::applier::{Answer, Applier, Fold};
use crate::engine::open::INDEX_DIR;
use crate::engine::replay::rebuild_upto;
use crate::engine::report::RebuildReport;
use crate::error::Result;
use crate::index::{Index, Kv, MemKv};
use crate::log::NO_INDEX;

/// When the index was or will be renewed.
#[derive(Debug, Default)]
pub(crate) struct Renewals {
    /// Not before this.
    after: Duration,
    /// There are files of a generation that is not used any more.
    has_old: bool,
    /// The one under way goes into memory, because there is no room.
    into_memory: bool,
}

/// Files of so many bytes beyond the rows are fine, whatever the rows are; with small segments, less.
const FREE_LEN: u64 = 32 * 1024 * 1024;
const FREE_SEGMENTS: u64 = 8;
/// And files of so many times the rows.
const FREE_FACTOR: u64 = 4;
/// Rows of so many bytes, and so many times the rows that there are, may be written before what sled keeps in
/// memory is let go.
const WRITTEN_LEN: u64 = 1024 * 1024 * 1024;
const WRITTEN_FACTOR: u64 = 16;
/// Rows of so many bytes may be held in memory while there is no room for them on disk.
const MAX_IN_MEMORY_LEN: u64 = 64 * 1024 * 1024;
/// Bytes of rows that are copied between two tasks.
const SLICE_LEN: usize = 1024 * 1024;
/// After a failure it is not tried again before.
const RETRY_AFTER: Duration = Duration::from_secs(10);

impl Applier {
    /// Begins a new generation if the present one has grown too large, or is in memory only.
    pub(crate) fn renew_if_worth_it(&mut self) {
        let now = self.clock.boottime();
        if self.index.is_renewing() || now < self.renewals.after || !(self.in_memory || self.has_outgrown()) {
            return;
        }
        let rows = self.index.rows_len();
        if self.shared.space.free_on_disk() < 2 * rows + self.free_len() {
            // Through memory it goes without room, and gives back what the old one takes.
            if !self.in_memory && rows <= MAX_IN_MEMORY_LEN {
                self.renewals.into_memory = true;
                self.index.begin_renewal(Box::new(MemKv::new()));
            }
            return;
        }
        self.renewals.into_memory = false;
        match self.next_kv() {
            Ok(kv) => self.index.begin_renewal(kv),
            Err(error) => {
                tracing::warn!(%error, "no new index can be made on disk; it is tried again");
                self.renewals.after = now + RETRY_AFTER;
            }
        }
    }

    fn has_outgrown(&self) -> bool {
        let rows = self.index.rows_len();
        self.index.len_on_disk() > self.free_len() + FREE_FACTOR * rows
            || self.index.written_len() > WRITTEN_LEN + WRITTEN_FACTOR * rows
    }

    fn free_len(&self) -> u64 {
        let options = &self.shared.options;
        let by_limit = options.max_store_bytes.map_or(u64::MAX, |limit| limit / 4);
        FREE_LEN.min(FREE_SEGMENTS * u64::from(options.segment_len)).min(by_limit).max(self.site.least_len())
    }

    /// An empty place for the generation after the present one.
    fn next_kv(&self) -> Result<Box<dyn Kv>> {
        let dir = self.dir.join(INDEX_DIR);
        self.site.remove(&dir, self.index_generation + 1);
        self.site.open(&dir, self.index_generation + 1)
    }

    /// Copies one more slice, if a renewal is under way.
    pub(crate) fn go_on_renewing(&mut self) {
        if !self.index.is_renewing() {
            return;
        }
        match self.index.renew(SLICE_LEN) {
            Ok(false) => {}
            Ok(true) => self.renewed(),
            Err(error) => {
                tracing::warn!(%error, "the new index could not be made; it is tried again");
                self.renewals.after = self.clock.boottime() + RETRY_AFTER;
                if self.index.usable().is_err() {
                    self.fall_back(&error);
                }
            }
        }
    }

    fn renewed(&mut self) {
        self.renewals.has_old = true;
        self.in_memory = std::mem::take(&mut self.renewals.into_memory);
        if !self.in_memory {
            self.index_generation += 1;
        }
        tracing::info!(generation = self.index_generation, in_memory = self.in_memory, "a new index is in use");
        self.note_figures();
        self.shared.answer(Answer::Renewed);
    }

    /// The index on disk failed: its files are of no use any more, and may be what fills the disk.
    pub(crate) fn note_failed(&mut self) {
        self.renewals.has_old = true;
    }

    /// After a checkpoint: what no checkpoint needs is removed.
    pub(crate) fn remove_old_generations(&mut self) {
        if self.renewals.has_old && !self.index.is_renewing() {
            self.renewals.has_old = false;
            let used = if self.in_memory { NO_INDEX } else { self.index_generation };
            self.site.keep_only(&self.dir.join(INDEX_DIR), used);
        }
    }

    /// Replaces the index by one made from the log.
    pub(crate) fn rebuild(&mut self) -> Result<RebuildReport> {
        self.index.abandon_renewal();
        self.renewals.into_memory = false;
        let empty = Index::open(self.next_kv()?, self.shared.store)?;
        let upto = self.index.applied();
        let rebuilt = rebuild_upto(&self.fs, &self.dir, empty, upto, self.shared.seed)?;
        let agreed = rebuilt.live() == self.index.live() && rebuilt.applied() == upto;
        if !agreed {
            tracing::error!("the index did not have the messages that the log has");
        }
        self.fold = Fold::new(rebuilt.applied(), rebuilt.clock());
        self.index = rebuilt;
        self.renewed();
        Ok(RebuildReport { messages: self.index.live().0, agreed, generation: self.index_generation })
    }
}
