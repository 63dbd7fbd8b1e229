//! Applying a batch: merging changes into pages, splitting and joining pages, one commit.
//!
//! ```text
//! changes of a lane, in order of id     ─►  runs, one per page they fall into
//! page ∪ run  ─►  more than 256: appended ─► full pages and a rest; inserted ─► even pieces
//!             ─►  few left: joined with a neighbour that has few, too
//! ```
//!
//! # Invariants
//! A page's key stays when messages leave its front; it changes only when one comes in below it. Pages
//! of a lane never overlap.
//!
//! # Crashes
//! Nothing is written before the one commit at the end. After an error the memory may be ahead of the
//! rows, so the index refuses all that follows.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::keys::{self, Lane, PageKey};
use super::kv::{Row, Writes};
use super::rows::{GROUP_LEN, MAX_PAGE_LEN, Stamp, encode_meta, encode_opaque, encode_page, encode_uses};
use super::{Batch, Index, MAX_VALUE_LEN, Purge, mix, mix_id};
use crate::error::{Error, Result};
use crate::types::{Entry, MessageId, Place};

/// A page that shrank below this is joined with a neighbour …
const JOIN_BELOW: usize = MAX_PAGE_LEN / 4;
/// … if both together have no more than this.
const JOINED_MAX: usize = MAX_PAGE_LEN / 2;

type Change<'a> = (&'a Place, &'a Option<Entry>);

/// What a merge did to a page.
struct Merged {
    entries: Vec<Entry>,
    is_changed: bool,
    /// No new entry came before an old one.
    is_append: bool,
}

/// Small rows to write, and which groups of segments changed.
#[derive(Default)]
struct Small {
    writes: Vec<Row>,
    groups: BTreeSet<u32>,
}

impl Index {
    /// Applies a whole batch in one transaction.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) when a queue's bytes are too long, and nothing was
    /// changed. Everything else: it is unknown whether the batch was applied, every later call gives
    /// the same error, and the index must be discarded.
    ///
    /// # Panics
    /// When the batch is older than what is applied, or an entry does not stand at its place.
    pub(crate) fn apply(&mut self, batch: &Batch) -> Result<()> {
        self.usable()?;
        assert!(batch.applied >= self.applied, "batch {} after {}", batch.applied, self.applied);
        let room = MAX_VALUE_LEN - 64;
        if let Some(long) = batch.queues.values().flatten().find(|bytes| bytes.len() > room) {
            return Err(Error::invalid(format!("a queue's row has {} bytes; at most {room} are allowed", long.len())));
        }
        let result = self.try_apply(batch);
        self.note(result)
    }

    fn try_apply(&mut self, batch: &Batch) -> Result<()> {
        self.clock = self.clock.max(batch.clock);
        self.applied = batch.applied;
        self.asked.advance(self.clock);
        let mut small = Small::default();
        for purge in &batch.purges {
            self.purge(purge, &mut small)?;
        }
        self.change(batch, &mut small)?;
        for (queue, bytes) in &batch.queues {
            let key = keys::queue(*queue);
            let row = bytes.as_ref().map(|bytes| encode_opaque(&key, bytes, self.seed));
            self.put_small(&mut small, key, row);
        }
        for group in std::mem::take(&mut small.groups) {
            let (key, first) = (keys::segments(group), group * GROUP_LEN);
            let mut uses = self.uses.range(first..=first + (GROUP_LEN - 1)).peekable();
            let row = uses.peek().is_some().then(|| encode_uses(&key, uses, self.seed));
            self.put_small(&mut small, key, row);
        }
        let mut writes = small.writes;
        let pages = std::mem::take(&mut self.pending);
        writes.extend(pages.into_iter().map(|(key, row)| (key.encode(), row)));
        writes.push((keys::META.to_vec(), Some(encode_meta(&self.meta()))));
        self.kv.commit(&writes)?;
        self.written_len += len_of(&writes);
        self.follow(writes);
        Ok(())
    }

    fn put_small(&mut self, small: &mut Small, key: Vec<u8>, row: Option<(Vec<u8>, Stamp)>) {
        let stamp = row.as_ref().map(|(_, stamp)| *stamp);
        let old = match stamp {
            Some(stamp) => self.small.insert(key.clone(), stamp),
            None => self.small.remove(&key),
        };
        self.move_sum(old, stamp);
        if old.is_some() || row.is_some() {
            small.writes.push((key, row.map(|(row, _)| row)));
        }
    }

    fn move_sum(&mut self, old: Option<Stamp>, new: Option<Stamp>) {
        let sum = |stamp: Option<Stamp>| stamp.map_or(0, |stamp| mix(stamp.check.into()));
        let len = |stamp: Option<Stamp>| stamp.map_or(0, |stamp| u64::from(stamp.len));
        self.row_sum = self.row_sum.wrapping_sub(sum(old)).wrapping_add(sum(new));
        self.rows_len = self.rows_len + len(new) - len(old);
    }

    fn purge(&mut self, purge: &Purge, small: &mut Small) -> Result<()> {
        let pages: Vec<_> = self.directory.pages_of(purge.queue).map(|(key, _)| key).collect();
        // From the back: what a page is joined with was purged before, or is purged after.
        for key in pages.into_iter().rev() {
            let page = self.page(key, false)?;
            let (removed, kept): (Vec<_>, Vec<_>) = page.iter().copied().partition(|entry| (purge.remove)(entry));
            if !removed.is_empty() {
                removed.iter().for_each(|entry| self.forget(entry, small));
                self.store(key.lane, Some(key), Merged { entries: kept, is_changed: true, is_append: false })?;
            }
        }
        Ok(())
    }

    fn change(&mut self, batch: &Batch, small: &mut Small) -> Result<()> {
        let mut changes = batch.changes.iter().peekable();
        let mut run: Vec<Change<'_>> = Vec::new();
        while let Some((place, _)) = changes.peek() {
            let lane = Lane::of(place);
            let page = self.directory.home(lane, place.id);
            let end = page.and_then(|key| self.directory.neighbours(key)[1]).map(|(key, _)| key.first);
            run.clear();
            while let Some(change) =
                changes.next_if(|(place, _)| Lane::of(place) == lane && end.is_none_or(|end: MessageId| place.id < end))
            {
                run.push(change);
            }
            let old = page.map_or(Ok(Vec::new()), |key| self.take_page(key))?;
            let merged = self.merge(old, &run, small);
            match page {
                Some(key) if !merged.is_changed => self.cache.put(key, Arc::new(merged.entries)),
                _ => self.store(lane, page, Merged { is_append: merged.is_append && end.is_none(), ..merged })?,
            }
        }
        Ok(())
    }

    /// The entries of a page for changing.
    fn take_page(&mut self, key: PageKey) -> Result<Vec<Entry>> {
        match self.cache.remove(key) {
            Some(page) => Ok(Arc::unwrap_or_clone(page)),
            None => self.read_page(key),
        }
    }

    /// Merges `run` into `old`, both in order of id.
    fn merge(&mut self, old: Vec<Entry>, run: &[Change<'_>], small: &mut Small) -> Merged {
        let mut merged =
            Merged { entries: Vec::with_capacity(old.len() + run.len()), is_changed: false, is_append: true };
        let mut old = old.into_iter().peekable();
        for (place, new) in run {
            assert!(new.is_none_or(|new| new.place() == **place), "an entry that does not stand at its place");
            while let Some(entry) = old.next_if(|entry| entry.id.cmp(&place.id) == Ordering::Less) {
                merged.entries.push(entry);
            }
            let before = old.next_if(|entry| entry.id == place.id);
            if before == **new {
                merged.entries.extend(before);
                continue;
            }
            merged.is_changed = true;
            match (before, new) {
                (Some(before), Some(new)) if (before.body, before.detail) == (new.body, new.detail) => {}
                _ => {
                    if let Some(before) = before {
                        self.forget(&before, small);
                    }
                    if let Some(new) = new {
                        merged.is_append &= before.is_some() || old.peek().is_none();
                        self.learn(new, small);
                    }
                }
            }
            merged.entries.extend(**new);
        }
        merged.entries.extend(old);
        merged
    }

    /// Writes what became of a page (`None`: of a lane without any) as one page, several, or none.
    fn store(&mut self, lane: Lane, page: Option<PageKey>, merged: Merged) -> Result<()> {
        let Merged { mut entries, is_append, .. } = merged;
        let Some(lowest) = entries.first().map(|entry| entry.id) else {
            page.into_iter().for_each(|key| self.remove_page(key));
            return Ok(());
        };
        let mut key = match page {
            Some(key) if key.first <= lowest => key,
            _ => PageKey { lane, first: lowest },
        };
        if let Some(old) = page.filter(|old| *old != key) {
            self.remove_page(old);
        }
        if page.is_some() && entries.len() < JOIN_BELOW {
            key = self.join(key, &mut entries)?;
        }
        let pieces = entries.len().div_ceil(MAX_PAGE_LEN);
        let piece_len = if is_append { MAX_PAGE_LEN } else { entries.len().div_ceil(pieces) };
        if pieces == 1 {
            self.put_page(key, entries);
            return Ok(());
        }
        let mut rest = entries.into_iter();
        loop {
            let piece: Vec<_> = rest.by_ref().take(piece_len).collect();
            self.put_page(key, piece);
            match rest.as_slice().first() {
                Some(next) => key = PageKey { lane, first: next.id },
                None => return Ok(()),
            }
        }
    }

    /// Takes a neighbour's entries in when both are few; returns the key of the page they make together.
    fn join(&mut self, key: PageKey, entries: &mut Vec<Entry>) -> Result<PageKey> {
        let few = |other: &(PageKey, &super::PageMeta)| usize::from(other.1.count) + entries.len() <= JOINED_MAX;
        let [before, after] = self.directory.neighbours(key).map(|other| other.filter(few).map(|(key, _)| key));
        if let Some(other) = after {
            entries.extend(self.take_page(other)?);
            self.remove_page(other);
        } else if let Some(other) = before {
            let mut all = self.take_page(other)?;
            all.append(entries);
            *entries = all;
            self.remove_page(key);
            return Ok(other);
        }
        Ok(key)
    }

    fn put_page(&mut self, key: PageKey, entries: Vec<Entry>) {
        let (row, meta) = encode_page(key, &key.encode(), &entries, self.asked.settled, self.seed);
        let old = self.directory.put(key, meta);
        self.move_sum(old.map(|old| old.stamp), Some(meta.stamp));
        self.cache.put(key, Arc::new(entries));
        self.pending.insert(key, Some(row));
    }

    fn remove_page(&mut self, key: PageKey) {
        self.cache.remove(key);
        // A page that is not in the directory has no row: it was to get one in this batch at most.
        if let Some(old) = self.directory.remove(key) {
            self.move_sum(Some(old.stamp), None);
            self.pending.insert(key, None);
        }
    }

    fn learn(&mut self, entry: &Entry, small: &mut Small) {
        self.live += 1;
        self.hash ^= mix_id(entry.id);
        for (segment, messages, bytes) in uses_of(entry) {
            let used = self.uses.entry(segment).or_default();
            used.messages += messages;
            used.bytes += bytes;
            small.groups.insert(segment / GROUP_LEN);
        }
    }

    fn forget(&mut self, entry: &Entry, small: &mut Small) {
        self.live -= 1;
        self.hash ^= mix_id(entry.id);
        for (segment, messages, bytes) in uses_of(entry) {
            if let Some(used) = self.uses.get_mut(&segment) {
                used.messages -= messages;
                used.bytes -= bytes;
                if used.messages == 0 {
                    self.uses.remove(&segment);
                }
            }
            small.groups.insert(segment / GROUP_LEN);
        }
    }
}

/// Bytes of these rows.
fn len_of(writes: &Writes) -> u64 {
    let len = |(key, row): &Row| (key.len() + row.as_ref().map_or(0, Vec::len)) as u64;
    writes.iter().map(len).sum()
}

/// The segments an entry needs: segment, 1 if it was not named before, bytes.
fn uses_of(entry: &Entry) -> impl Iterator<Item = (u32, u64, u64)> {
    let Entry { body, detail, .. } = *entry;
    let body_use = body.is_some().then(|| (body.segment, 1, u64::from(body.len)));
    let is_own_record = detail.is_some() && detail != body;
    let is_new_segment = !body.is_some() || body.segment != detail.segment;
    let detail_use = is_own_record.then(|| (detail.segment, u64::from(is_new_segment), u64::from(detail.len)));
    body_use.into_iter().chain(detail_use)
}
