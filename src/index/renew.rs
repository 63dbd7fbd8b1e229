//! Renewal: a new generation of the rows, made while the index goes on being used.
//!
//! ```text
//! rows of the old store, in order of keys   ███████████████████░░░░░░░░░░░░░░
//!                                                              ▲ cursor
//! rows of the new store                     ███████████████████  each batch writes to both up to here
//! ```
//!
//! A store's files never shrink, and what it holds in memory grows. A copy of the rows alone has neither.
//!
//! # Invariants
//! Between two calls the new store holds exactly the old one's rows up to the cursor, less the meta row.
//! The meta row comes last, in one commit with the last rows: a new store without it is not an index. It
//! takes the old one's place only after all its rows were read back and add up.
//!
//! # Crashes
//! The old store is whole until it is dropped. The caller keeps it until a checkpoint names the new one.
//!
//! # Not here
//! When to renew, where the new store is, and what becomes of the files of either: the engine.

use std::ops::Bound::{Excluded, Unbounded};

use super::keys::{self, Key, PageKey};
use super::kv::{Kv, Row};
use super::rows::encode_meta;
use super::{Index, corrupt, load};
use crate::error::Result;

/// A renewal that is under way.
pub(super) struct Renewal {
    kv: Box<dyn Kv>,
    /// The key of the last row that was copied.
    cursor: Vec<u8>,
}

#[cfg_attr(not(test), expect(dead_code, reason = "the engine does not renew yet"))]
impl Index {
    /// Bytes of all rows but the meta row, keys and values: what is live of [`len_on_disk`](Self::len_on_disk).
    pub(crate) fn rows_len(&self) -> u64 {
        self.rows_len
    }

    /// Bytes of the rows that batches wrote to the present store since it was opened or took the place of
    /// another.
    pub(crate) fn written_len(&self) -> u64 {
        self.written_len
    }

    /// Begins to copy the rows into `kv`, which is empty. A renewal that is under way is given up.
    pub(crate) fn begin_renewal(&mut self, kv: Box<dyn Kv>) {
        self.renewal = Some(Renewal { kv, cursor: keys::META.to_vec() });
    }

    /// Whether a renewal is under way. It is not any more when [`apply`](Self::apply) had to give it up.
    pub(crate) fn is_renewing(&self) -> bool {
        self.renewal.is_some()
    }

    /// Gives a renewal up, if there is one, and drops its store.
    pub(crate) fn abandon_renewal(&mut self) {
        self.renewal = None;
    }

    /// Copies about `max_len` bytes more, at least one row. True when that was the last of it: the new store
    /// was then read through and has taken the place of the old one, which was dropped. What it holds is not
    /// yet [synced](Self::sync). False as well when no renewal is under way.
    ///
    /// # Errors
    /// The renewal is given up. When the new store failed, the index is as it was, and [usable](Self::usable).
    /// When the old one failed, or its rows are not what was written, the index must be discarded.
    pub(crate) fn renew(&mut self, max_len: usize) -> Result<bool> {
        self.usable()?;
        let Some(mut renewal) = self.renewal.take() else { return Ok(false) };
        let read = self.rows_after(&renewal.cursor, max_len);
        let (mut rows, is_rest) = self.note(read)?;
        if let Some((key, _)) = rows.last() {
            renewal.cursor.clone_from(key);
        }
        if !is_rest {
            renewal.kv.commit(&rows)?;
            self.renewal = Some(renewal);
            return Ok(false);
        }
        rows.push((keys::META.to_vec(), Some(encode_meta(&self.meta()))));
        renewal.kv.commit(&rows)?;
        let (meta, loaded) = load(&mut *renewal.kv, self.store)?;
        if (meta, loaded.rows_len) != (self.meta(), self.rows_len) {
            return Err(corrupt("the rows of the new store are not those of the old one"));
        }
        self.kv = renewal.kv;
        self.written_len = 0;
        Ok(true)
    }

    /// Rows behind `cursor`, about `max_len` bytes of them; and whether these are all.
    fn rows_after(&mut self, cursor: &[u8], max_len: usize) -> Result<(Vec<Row>, bool)> {
        let small = self.small.range::<[u8], _>((Excluded(cursor), Unbounded));
        let small = small.map(|(key, stamp)| (key.clone(), *stamp));
        let first = match Key::decode(cursor) {
            Ok(Key::Page(key)) => key,
            _ => PageKey::MIN,
        };
        let pages = self.directory.pages_from(first).map(|(key, meta)| (key.encode(), meta.stamp));
        let mut rest = small.chain(pages.skip_while(|(key, _)| key.as_slice() <= cursor)).peekable();
        let (mut wanted, mut len) = (Vec::new(), 0);
        while let Some((key, stamp)) = rest.next_if(|_| wanted.is_empty() || len < max_len as u64) {
            len += u64::from(stamp.len);
            wanted.push((key, stamp));
        }
        let is_rest = rest.peek().is_none();
        drop(rest);
        let rows = self.neighbours(&wanted)?;
        Ok((rows.into_iter().map(|(key, row)| (key, Some(row))).collect(), is_rest))
    }

    /// Writes what a batch wrote to the new store as well, as far as it was copied.
    pub(super) fn follow(&mut self, mut writes: Vec<Row>) {
        let Some(renewal) = &mut self.renewal else { return };
        writes.retain(|(key, _)| *key <= renewal.cursor && *key != keys::META);
        if writes.is_empty() {
            return;
        }
        if let Err(error) = renewal.kv.commit(&writes) {
            tracing::warn!(%error, "the store to which the index was being copied failed; the index goes on in the old one");
            self.renewal = None;
        }
    }
}
