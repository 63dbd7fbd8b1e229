//! The index: where each live message stands and in which state, without its body.
//!
//! ```text
//!            directory (memory)                rows (sled, or memory)
//!   lane ──► page: first id, counts, times ──► up to 256 entries, delta-coded
//!                                              queues · uses of segments · meta {applied, clock, sums}
//! ```
//!
//! A row covers a run of neighbouring messages of one lane, because a row costs about as much to write
//! as a page of them. The directory says which pages a question concerns; only these are read.
//!
//! # Invariants
//! `applied` and all rows up to it change in one transaction, so the index is always the state as of one
//! LSN (12, 13). Every row has a checksum, the directory knows the checksum of every page's right row, and
//! the meta row has the sum over all rows: a row that is damaged, missing, left over or out of date is an
//! error, never a wrong answer (15). Order is (priority descending, id ascending) (6).
//!
//! # Crashes
//! The rows are as of the last commit when the process dies, and of no use when the machine dies; the
//! caller sets them aside and rebuilds (`docs/design.md`, "Recovery"). After any error the same.
//!
//! # Locking
//! None: the applier owns the index and makes every call.
//!
//! # Not here
//! What a record does to a message, and when to rebuild or to renew: the engine.

use std::collections::BTreeMap;
use std::sync::Arc;

mod apply;
mod cache;
mod directory;
mod keys;
mod kv;
mod mem;
mod query;
mod renew;
mod rows;
mod sled;
#[cfg(test)]
mod tests;
mod watched;

pub(crate) use kv::{Kv, MAX_VALUE_LEN};
#[cfg(any(test, feature = "testing"))]
pub(crate) use mem::MemDisk;
pub(crate) use mem::MemKv;
pub(crate) use sled::SledKv;

use self::cache::{Cache, Page};
use self::directory::{Directory, PageMeta, Settled};
use self::keys::{Key, PageKey};
use self::renew::Renewal;
use self::rows::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{Entry, Lsn, MessageId, Place, QueueId, StoreId, Timestamp};

/// What is applied in one transaction: the purges first, each to what the index held before, then the
/// changes. A batch that only moves `applied` is fine.
pub(crate) struct Batch {
    pub(crate) purges: Vec<Purge>,
    /// New states, `None` for messages that are gone. To remove what is not there does nothing.
    pub(crate) changes: BTreeMap<Place, Option<Entry>>,
    /// New definitions, in the engine's own bytes, `None` for queues that are gone.
    pub(crate) queues: BTreeMap<QueueId, Option<Vec<u8>>>,
    /// The newest LSN that the batch contains; never below that of the batch before.
    pub(crate) applied: Lsn,
    /// The store's clock at that LSN.
    pub(crate) clock: Timestamp,
}

impl Batch {
    /// A batch that changes nothing but `applied` and the clock.
    #[cfg(test)]
    pub(crate) fn new(applied: Lsn, clock: Timestamp) -> Self {
        Self { purges: Vec::new(), changes: BTreeMap::new(), queues: BTreeMap::new(), applied, clock }
    }
}

/// Removes all messages of a queue for which `remove` is true.
pub(crate) struct Purge {
    pub(crate) queue: QueueId,
    pub(crate) remove: Box<dyn Fn(&Entry) -> bool + Send>,
}

/// Messages of one queue by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) ready: u64,
    pub(crate) delayed: u64,
    pub(crate) in_flight: u64,
    pub(crate) dead: u64,
}

/// What of a segment is still needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SegmentUse {
    /// Live messages whose body or detail record stands in the segment.
    pub(crate) messages: u64,
    /// Bytes of these records.
    pub(crate) bytes: u64,
}

/// A well mixed hash of a message's id. The hash of a set of messages is the xor of theirs.
pub(crate) const fn mix_id(id: MessageId) -> u64 {
    mix(id.0)
}

/// Every bit of the result depends on every bit of `value`; different values give different results.
const fn mix(value: u64) -> u64 {
    let mut x = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// An error of the index itself: its bytes are not what was written.
fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("index: {what}"))
}

/// Which stretches of events were asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    settled: Settled,
    /// The latest `from`; `None` before the first question.
    from: Option<Timestamp>,
}

impl Asked {
    /// A delay that ends by the clock is no event to come, unless its stretch is yet to be asked for:
    /// then the caller has not learned of it and must be told.
    fn advance(&mut self, clock: Timestamp) {
        let to = self.from.map_or(clock, |from| clock.min(Timestamp(from.0.saturating_sub(1))));
        self.settled = Settled(self.settled.0.max(to));
    }
}

/// The index over one [`Kv`].
pub(crate) struct Index {
    kv: Box<dyn Kv>,
    store: StoreId,
    seed: u32,
    applied: Lsn,
    clock: Timestamp,
    live: u64,
    /// Xor of [`mix_id`] over all live messages.
    hash: u64,
    /// Sum of the mixed checksums of all rows but the meta row.
    row_sum: u64,
    /// Sum of the lengths of the same rows.
    rows_len: u64,
    written_len: u64,
    uses: BTreeMap<u32, SegmentUse>,
    /// The rows that are no pages.
    small: BTreeMap<Vec<u8>, Stamp>,
    directory: Directory,
    cache: Cache,
    asked: Asked,
    /// Rows of the batch that is being applied; empty between batches.
    pending: BTreeMap<PageKey, Option<Vec<u8>>>,
    renewal: Option<Renewal>,
    /// Why the index cannot be used any more.
    broken: Option<Error>,
}

impl Index {
    /// Opens what `kv` holds; an empty one is a fresh index with `applied` = [`Lsn::ZERO`]. Looks at every
    /// row, and decodes none of the entries.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) when the rows are another store's, or any of them is damaged,
    /// missing or too many; else what `kv` answers.
    pub(crate) fn open(mut kv: Box<dyn Kv>, store: StoreId) -> Result<Self> {
        let (meta, loaded) = load(&mut *kv, store)?;
        Ok(Self {
            kv,
            store,
            seed: store.seed(),
            applied: meta.applied,
            clock: meta.clock,
            live: meta.live,
            hash: meta.hash,
            row_sum: meta.rows,
            rows_len: loaded.rows_len,
            written_len: 0,
            uses: loaded.uses,
            small: loaded.small,
            directory: Directory::new(loaded.pages),
            cache: Cache::default(),
            asked: Asked { settled: Settled(meta.clock), from: None },
            pending: BTreeMap::new(),
            renewal: None,
            broken: None,
        })
    }

    /// The meta row as of now.
    fn meta(&self) -> rows::Meta {
        rows::Meta {
            store: self.store,
            applied: self.applied,
            clock: self.clock,
            live: self.live,
            hash: self.hash,
            rows: self.row_sum,
        }
    }

    /// The newest LSN whose effect is in the index.
    pub(crate) fn applied(&self) -> Lsn {
        self.applied
    }

    /// The clock of the newest batch.
    pub(crate) fn clock(&self) -> Timestamp {
        self.clock
    }

    /// How many messages live, and the xor of their ids' [`mix_id`].
    pub(crate) fn live(&self) -> (u64, u64) {
        (self.live, self.hash)
    }

    /// The segments that are still needed. A message whose body and detail are the same record uses it once.
    pub(crate) fn segment_uses(&self) -> &BTreeMap<u32, SegmentUse> {
        &self.uses
    }

    /// Makes everything applied before durable, by fsyncs of our own.
    ///
    /// # Errors
    /// What the store under the index answers; discard the index then.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.usable()?;
        let result = self.kv.sync();
        self.note(result)
    }

    /// Bytes on disk; 0 for an index in memory.
    pub(crate) fn len_on_disk(&self) -> u64 {
        self.kv.len_on_disk()
    }

    /// Rows in all.
    #[cfg(test)]
    pub(crate) fn row_count(&self) -> usize {
        self.directory.len() + self.small.len() + 1
    }

    /// The error because of which every further call fails, if there was one.
    pub(crate) fn usable(&self) -> Result<()> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Remembers an error, so that nothing is asked of the index after it.
    fn note<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.broken = Some(error.clone());
        }
        result
    }

    /// The row of a page that the directory knows.
    fn page_row(&mut self, key: PageKey, key_bytes: &[u8]) -> Result<Vec<u8>> {
        let found = match self.pending.get(&key) {
            Some(row) => row.clone(),
            None => self.kv.get(key_bytes)?,
        };
        found.ok_or_else(|| Self::bad_page(key, "is missing"))
    }

    /// Rows that are next to each other, by their keys and stamps; in one scan, because each call of the store
    /// under the index has its price.
    fn neighbours(&mut self, stamps: &[(Vec<u8>, Stamp)]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let [(first, _), ..] = stamps else { return Ok(Vec::new()) };
        let end = stamps.last().map_or_else(Vec::new, |(last, _)| [last.as_slice(), &[0]].concat());
        let mut rows = Vec::with_capacity(stamps.len());
        self.kv.scan(first, &end, &mut |key, row| {
            rows.push((key.to_vec(), row.to_vec()));
            rows.len() <= stamps.len()
        })?;
        let mut is_right = rows.len() == stamps.len();
        for ((key, row), (wanted, stamp)) in rows.iter().zip(stamps) {
            let found = rows::decode_opaque(key, row, self.seed);
            is_right &= key == wanted && found.is_ok_and(|(_, found)| found == *stamp);
        }
        if is_right {
            Ok(rows)
        } else {
            Err(corrupt(format!("a row from {first:02x?} on is damaged, missing or too many")))
        }
    }

    fn check_page(&self, key: PageKey, stamp: Stamp) -> Result<()> {
        match self.directory.get(key) {
            Some(meta) if meta.stamp == stamp => Ok(()),
            _ => Err(Self::bad_page(key, "is out of date")),
        }
    }

    fn bad_page(key: PageKey, what: &str) -> Error {
        let PageKey { lane, first } = key;
        corrupt(format!("the page of queue {}, priority {}, from message {first} {what}", lane.queue, lane.priority()))
    }

    /// The entries of a page that the directory knows. `keep` puts them among the recently used.
    fn page(&mut self, key: PageKey, keep: bool) -> Result<Page> {
        if let Some(page) = self.cache.get(key) {
            return Ok(page);
        }
        let page = Arc::new(self.read_page(key)?);
        if keep {
            self.cache.put(key, Arc::clone(&page));
        }
        Ok(page)
    }

    fn read_page(&mut self, key: PageKey) -> Result<Vec<Entry>> {
        let key_bytes = key.encode();
        let row = self.page_row(key, &key_bytes)?;
        let (meta, entries) = rows::decode_page(key, &key_bytes, &row, self.seed)
            .map_err(|rows::Bad| Self::bad_page(key, "is damaged"))?;
        self.check_page(key, meta.stamp)?;
        Ok(entries)
    }
}

/// Reads all rows of `kv`, which must be those of `store` and add up to the meta row.
fn load(kv: &mut dyn Kv, store: StoreId) -> Result<(rows::Meta, Loading)> {
    let meta = match kv.get(&keys::META)? {
        Some(row) => rows::decode_meta(&row).map_err(|_| corrupt("the meta row is damaged"))?,
        None => rows::Meta { store, applied: Lsn::ZERO, clock: Timestamp::ZERO, live: 0, hash: 0, rows: 0 },
    };
    if meta.store != store {
        return Err(corrupt(format!("it belongs to store {}, not to {store}", meta.store)));
    }
    let mut loading = Loading { seed: store.seed(), ..Loading::default() };
    let mut result = Ok(());
    kv.scan(&keys::LOWEST, &keys::HIGHEST, &mut |key, row| {
        result = loading.row(key, row);
        result.is_ok()
    })?;
    result?;
    if (loading.live, loading.row_sum) != (meta.live, meta.rows) {
        return Err(corrupt(format!(
            "its rows hold {} messages and do not add up to the {} of the meta row",
            loading.live, meta.live
        )));
    }
    Ok((meta, loading))
}

/// What [`load`] gathers.
#[derive(Default)]
struct Loading {
    seed: u32,
    pages: Vec<(PageKey, PageMeta)>,
    uses: BTreeMap<u32, SegmentUse>,
    small: BTreeMap<Vec<u8>, Stamp>,
    live: u64,
    row_sum: u64,
    rows_len: u64,
}

impl Loading {
    fn row(&mut self, key: &[u8], row: &[u8]) -> Result<()> {
        let stamp = self.take(key, row).map_err(|rows::Bad| corrupt(format!("the row {key:02x?} is damaged")))?;
        if let Some(stamp) = stamp {
            self.row_sum = self.row_sum.wrapping_add(mix(stamp.check.into()));
            self.rows_len += u64::from(stamp.len);
        }
        Ok(())
    }

    /// Takes one row in; returns its stamp when it counts towards the sums.
    fn take(&mut self, key: &[u8], row: &[u8]) -> Result<Option<Stamp>, rows::Bad> {
        let stamp = match Key::decode(key)? {
            Key::Meta => return Ok(None),
            Key::Page(page) => {
                let meta = rows::decode_page_meta(key, row, self.seed)?;
                self.live += u64::from(meta.count);
                self.pages.push((page, meta));
                return Ok(Some(meta.stamp));
            }
            Key::Queue(_) => rows::decode_opaque(key, row, self.seed)?.1,
            Key::Segments(group) => {
                let (uses, stamp) = rows::decode_uses(key, row, group, self.seed)?;
                self.uses.extend(uses);
                stamp
            }
        };
        self.small.insert(key.to_vec(), stamp);
        Ok(Some(stamp))
    }
}
