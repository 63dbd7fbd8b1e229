//! What is known of every page without reading it: in memory, about 72 bytes a page.
//!
//! # Invariants
//! `count`, `dead`, `held`, `min_segment` and the range of `visible_at` are exact. `min_event` may be too early, never
//! too late: a page is at worst read for nothing.
//!
//! # Not here
//! No I/O: who reads a page, and when, is `query.rs` and `apply.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use super::keys::{Lane, PageKey};
use super::rows::Stamp;
use crate::types::{Entry, MessageId, Phase, QueueId, Timestamp};

/// Which delays count as past: the frame of reference of [`event_of`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Settled(pub(super) Timestamp);

/// The first moment from `from` on at which `entry` changes its state without a call; `None` when there is
/// none. It never falls as `from` and `settled` rise, so a page's earliest one is a lower bound for later.
///
/// A queued message that was never delayed, or whose delay is over at `settled`, has only its expiry.
pub(super) fn event_of(entry: &Entry, from: Timestamp, settled: Settled) -> Option<Timestamp> {
    let ahead = |at: Timestamp| (at >= from && at < Timestamp::MAX).then_some(at);
    let was_delayed = entry.visible_at > entry.sent_at && entry.visible_at > settled.0;
    match entry.phase {
        Phase::Dead => None,
        Phase::Held => ahead(entry.visible_at).or_else(|| ahead(entry.expires_at)),
        Phase::Queued => {
            let delay = ahead(entry.visible_at).filter(|_| was_delayed);
            delay.into_iter().chain(ahead(entry.expires_at)).min()
        }
    }
}

/// One page without its entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PageMeta {
    pub(super) count: u16,
    pub(super) dead: u16,
    pub(super) held: u16,
    pub(super) stamp: Stamp,
    /// The lowest segment of the log that any entry's body or detail stands in; `MAX` when there is none.
    pub(super) min_segment: u32,
    /// Over the entries that are not dead; `MAX` and `ZERO` when there are none.
    pub(super) min_visible: Timestamp,
    pub(super) max_visible: Timestamp,
    /// Not after the earliest event of any entry; `MAX` when there is none.
    pub(super) min_event: Timestamp,
}

impl PageMeta {
    pub(super) fn of(entries: &[Entry], settled: Settled) -> Self {
        let mut meta = Self {
            count: 0,
            dead: 0,
            held: 0,
            stamp: Stamp::default(),
            min_segment: u32::MAX,
            min_visible: Timestamp::MAX,
            max_visible: Timestamp::ZERO,
            min_event: Timestamp::MAX,
        };
        for entry in entries {
            meta.count += 1;
            for record in [entry.body, entry.detail].into_iter().filter(|record| record.is_some()) {
                meta.min_segment = meta.min_segment.min(record.segment);
            }
            match entry.phase {
                Phase::Dead => {
                    meta.dead += 1;
                    continue;
                }
                Phase::Held => meta.held += 1,
                Phase::Queued => {}
            }
            meta.min_visible = meta.min_visible.min(entry.visible_at);
            meta.max_visible = meta.max_visible.max(entry.visible_at);
            if let Some(at) = event_of(entry, Timestamp::ZERO, settled) {
                meta.min_event = meta.min_event.min(at);
            }
        }
        meta
    }

    /// Whether all that is exact is as in `other`.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        let facts =
            |meta: &Self| (meta.count, meta.dead, meta.held, meta.min_segment, meta.min_visible, meta.max_visible);
        facts(self) == facts(other)
    }

    pub(super) fn has_receivable(&self, now: Timestamp) -> bool {
        self.dead < self.count && self.min_visible <= now
    }
}

/// All pages, and those with an event in order of their earliest.
#[derive(Default, Debug)]
pub(super) struct Directory {
    pages: BTreeMap<PageKey, PageMeta>,
    events: BTreeSet<(Timestamp, PageKey)>,
}

impl Directory {
    pub(super) fn new(pages: impl IntoIterator<Item = (PageKey, PageMeta)>) -> Self {
        let pages = BTreeMap::from_iter(pages);
        let events = pages.iter().filter(|(_, meta)| meta.min_event < Timestamp::MAX);
        let events = events.map(|(key, meta)| (meta.min_event, *key)).collect();
        Self { pages, events }
    }

    pub(super) fn len(&self) -> usize {
        self.pages.len()
    }

    pub(super) fn get(&self, key: PageKey) -> Option<&PageMeta> {
        self.pages.get(&key)
    }

    /// Puts a page, or its new state, and returns the old one.
    pub(super) fn put(&mut self, key: PageKey, meta: PageMeta) -> Option<PageMeta> {
        let old = self.pages.insert(key, meta);
        self.move_event(key, old.map_or(Timestamp::MAX, |old| old.min_event), meta.min_event);
        old
    }

    pub(super) fn remove(&mut self, key: PageKey) -> Option<PageMeta> {
        let old = self.pages.remove(&key)?;
        self.move_event(key, old.min_event, Timestamp::MAX);
        Some(old)
    }

    /// Sets when the page's earliest event is, as found by reading it.
    pub(super) fn set_min_event(&mut self, key: PageKey, at: Timestamp) {
        if let Some(meta) = self.pages.get_mut(&key) {
            let old = std::mem::replace(&mut meta.min_event, at);
            self.move_event(key, old, at);
        }
    }

    fn move_event(&mut self, key: PageKey, from: Timestamp, to: Timestamp) {
        if from == to {
            return;
        }
        if from < Timestamp::MAX {
            self.events.remove(&(from, key));
        }
        if to < Timestamp::MAX {
            self.events.insert((to, key));
        }
    }

    /// The next page, by earliest event, after `after` and with one before `until`.
    pub(super) fn due_after(
        &self,
        after: Option<(Timestamp, PageKey)>,
        until: Timestamp,
    ) -> Option<(Timestamp, PageKey)> {
        let from = after.map_or(Unbounded, Excluded);
        self.events.range((from, Unbounded)).next().copied().filter(|(at, _)| *at < until)
    }

    /// The page of `lane` in whose range `id` lies: the last that does not begin after it.
    pub(super) fn covering(&self, lane: Lane, id: MessageId) -> Option<PageKey> {
        let (key, _) = self.pages.range(..=PageKey { lane, first: id }).next_back()?;
        (key.lane == lane).then_some(*key)
    }

    /// The page into which `id` goes: the one in whose range it lies, or the lane's first.
    pub(super) fn home(&self, lane: Lane, id: MessageId) -> Option<PageKey> {
        self.covering(lane, id).or_else(|| {
            let (key, _) = self.pages.range(PageKey { lane, first: id }..).next()?;
            (key.lane == lane).then_some(*key)
        })
    }

    /// All pages from `from` on, over all lanes and queues.
    pub(super) fn pages_from(&self, from: PageKey) -> impl Iterator<Item = (PageKey, &PageMeta)> {
        self.pages.range(from..).map(|(key, meta)| (*key, meta))
    }

    /// The pages of one queue, in order of delivery.
    pub(super) fn pages_of(&self, queue: QueueId) -> impl Iterator<Item = (PageKey, &PageMeta)> {
        let from = PageKey { lane: Lane::first_of(queue), first: MessageId::MIN };
        self.pages_from(from).take_while(move |(key, _)| key.lane.queue == queue)
    }

    /// The page after `key`, whatever lane it is in.
    pub(super) fn after(&self, key: PageKey) -> Option<(PageKey, &PageMeta)> {
        self.pages.range((Excluded(key), Unbounded)).next().map(|(key, meta)| (*key, meta))
    }

    /// The neighbours of `key` in its lane: before and after.
    pub(super) fn neighbours(&self, key: PageKey) -> [Option<(PageKey, &PageMeta)>; 2] {
        let before = self.pages.range(..key).next_back().map(|(key, meta)| (*key, meta));
        [before, self.after(key)].map(|found| found.filter(|(other, _)| other.lane == key.lane))
    }

    /// The first lane after `lane` that has a page.
    pub(super) fn lane_after(&self, lane: Lane) -> Option<Lane> {
        self.after(PageKey { lane, first: MessageId::MAX }).map(|(key, _)| key.lane)
    }

    /// The first lane of all.
    pub(super) fn first_lane(&self) -> Option<Lane> {
        self.pages.keys().next().map(|key| key.lane)
    }

    /// The lanes of one queue that have a page, in order of delivery.
    pub(super) fn lanes_of(&self, queue: QueueId) -> impl Iterator<Item = Lane> {
        let first = self.pages_of(queue).next().map(|(key, _)| key.lane);
        std::iter::successors(first, |lane| self.lane_after(*lane)).take_while(move |lane| lane.queue == queue)
    }

    /// The first page of `lane` from `from` on that holds something receivable at `now`.
    pub(super) fn receivable(&self, lane: Lane, from: MessageId, now: Timestamp) -> Option<PageKey> {
        let start = self.home(lane, from)?;
        let pages = self.pages_from(start).take_while(|(key, _)| key.lane == lane);
        pages.into_iter().find(|(_, meta)| meta.has_receivable(now)).map(|(key, _)| key)
    }
}
