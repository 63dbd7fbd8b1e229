//! Questions: which pages each one reads, and what it answers.
//!
//! # Invariants
//! An answer is exact as of [`Index::applied`]. A question that can be long is bounded and says where to
//! go on.

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;

use super::directory::{PageMeta, event_of};
use super::keys::{self, HIGHEST, Key, Lane, PageKey};
use super::{Counts, Index, corrupt, rows};
use crate::error::Result;
use crate::types::{Entry, MessageId, Position, QueueId, State, Timestamp};

/// Most pages that one [`Index::scan`] reads.
const MAX_SCAN_PAGES: usize = 64;

/// A place in a queue's order of delivery.
type Cursor = (i16, MessageId);

impl Counts {
    fn add(&mut self, state: State, count: u64) {
        *match state {
            State::Ready => &mut self.ready,
            State::Delayed => &mut self.delayed,
            State::InFlight => &mut self.in_flight,
            State::Dead => &mut self.dead,
        } += count;
    }

    /// Adds a page whose messages are all on one side of `now`; false when they are not.
    fn add_page(&mut self, meta: &PageMeta, now: Timestamp) -> bool {
        let [count, dead, held] = [meta.count, meta.dead, meta.held].map(u64::from);
        if dead == count {
            self.add(State::Dead, dead);
        } else if meta.max_visible <= now {
            self.add(State::Dead, dead);
            self.add(State::Ready, count - dead);
        } else if meta.min_visible > now {
            self.add(State::Dead, dead);
            self.add(State::InFlight, held);
            self.add(State::Delayed, count - dead - held);
        } else {
            return false;
        }
        true
    }
}

impl Index {
    /// The message, or `None` when it is not in this queue. Reads at most one page of each lane, and
    /// decodes only the one that holds it.
    ///
    /// # Errors
    /// As everywhere here: [`Corrupt`](crate::ErrorKind::Corrupt) when a row is not what was written, or
    /// what the store under the index answers; discard the index then.
    pub(crate) fn get(&mut self, queue: QueueId, id: MessageId) -> Result<Option<Entry>> {
        self.usable()?;
        let mut next = self.directory.lanes_of(queue).next();
        while let Some(lane) = next.filter(|lane| lane.queue == queue) {
            if let Some(key) = self.directory.covering(lane, id) {
                let found = self.find(key, id);
                if let Some(entry) = self.note(found)? {
                    return Ok(Some(entry));
                }
            }
            next = self.directory.lane_after(lane);
        }
        Ok(None)
    }

    fn find(&mut self, key: PageKey, id: MessageId) -> Result<Option<Entry>> {
        let page = match self.cache.get(key) {
            Some(page) => page,
            None => {
                let key_bytes = key.encode();
                let row = self.page_row(key, &key_bytes)?;
                let (stamp, holds) = rows::page_holds(key, &key_bytes, &row, id, self.seed)
                    .map_err(|rows::Bad| Self::bad_page(key, "is damaged"))?;
                self.check_page(key, stamp)?;
                if !holds {
                    return Ok(None);
                }
                self.page(key, true)?
            }
        };
        let at = page.binary_search_by_key(&id, |entry| entry.id).ok();
        Ok(at.and_then(|at| page.get(at)).copied())
    }

    /// Up to `max` messages of a lane that are receivable at `now`, from id `from` on, in order; and the id
    /// to go on from, `None` when there are no more. Pages without any are not read.
    pub(crate) fn ready(
        &mut self,
        queue: QueueId,
        priority: i16,
        from: MessageId,
        max: usize,
        now: Timestamp,
    ) -> Result<(Vec<Entry>, Option<MessageId>)> {
        self.usable()?;
        let lane = Lane::new(queue, priority);
        let mut found = Vec::new();
        let mut at = from;
        while let Some(key) = self.directory.receivable(lane, at, now) {
            if found.len() >= max {
                return Ok((found, Some(at.max(key.first))));
            }
            let page = self.page(key, true);
            let page = self.note(page)?;
            for entry in page.iter().filter(|entry| entry.id >= from && entry.is_receivable(now)) {
                if found.len() >= max {
                    return Ok((found, Some(entry.id)));
                }
                found.push(*entry);
            }
            match self.directory.neighbours(key) {
                [_, Some((next, _))] => at = next.first,
                _ => return Ok((found, None)),
            }
        }
        Ok((found, None))
    }

    /// Messages whose next event without a call (a deadline or delay that ends, an expiry) is in
    /// `from..until`, by time; and how far the answer reaches: every event before that is in it. It reaches
    /// beyond `from`, and holds more than `max` only if more have the same first moment. A few messages
    /// may be in it whose event the caller knows already.
    ///
    /// `from` is [`Timestamp::ZERO`] at first, then what was reached. The first answer so has all that
    /// has not happened by [`clock`](Self::clock), and every message in flight, even past its deadline. What
    /// was asked for may be asked for again.
    pub(crate) fn events(&mut self, from: Timestamp, until: Timestamp, max: usize) -> Result<(Vec<Entry>, Timestamp)> {
        self.usable()?;
        let found = self.find_events(from, until, max.max(1));
        self.note(found)
    }

    fn find_events(&mut self, from: Timestamp, until: Timestamp, max: usize) -> Result<(Vec<Entry>, Timestamp)> {
        if self.asked.from.is_some_and(|asked| asked > from) {
            self.forget_asked()?;
        }
        self.asked.from = Some(from);
        let mut found = Found { events: Vec::new(), reached: until, max, cut_at: 2 * max };
        let mut read = FxHashSet::default();
        let mut at = None;
        while let Some(due) = self.directory.due_after(at, found.reached) {
            at = Some(due);
            // A page read in this call comes again at the place of its true earliest event.
            if read.insert(due.1) {
                self.read_events(due.1, from, &mut found)?;
            }
        }
        found.cut();
        Ok((found.events.into_iter().map(|(_, entry)| entry).collect(), found.reached))
    }

    fn read_events(&mut self, key: PageKey, from: Timestamp, found: &mut Found) -> Result<()> {
        let page = self.page(key, false)?;
        let mut earliest = Timestamp::MAX;
        for entry in page.iter() {
            if let Some(at) = event_of(entry, from, self.asked.settled) {
                earliest = earliest.min(at);
                found.add(at, entry);
            }
        }
        self.directory.set_min_event(key, earliest);
        Ok(())
    }

    /// Takes the pages' earliest events from their rows again, where they are as of the beginning of time.
    fn forget_asked(&mut self) -> Result<()> {
        let mut heads = Vec::new();
        let seed = self.seed;
        self.kv.scan(&PageKey::MIN.encode(), &HIGHEST, &mut |bytes, row| {
            if let (Ok(Key::Page(key)), Ok(meta)) = (Key::decode(bytes), rows::decode_page_meta(bytes, row, seed)) {
                heads.push((key, meta));
            }
            true
        })?;
        if heads.len() != self.directory.len() {
            return Err(corrupt("a page is missing or damaged"));
        }
        for (key, meta) in heads {
            self.check_page(key, meta.stamp)?;
            self.directory.set_min_event(key, meta.min_event);
        }
        Ok(())
    }

    /// Visits every message that is handed out, whether its deadline has passed or not. Other pages are
    /// not read.
    pub(crate) fn held(&mut self, visit: &mut dyn FnMut(Entry)) -> Result<()> {
        self.each_page(|meta| meta.held > 0, &mut |entry| {
            if entry.phase == crate::types::Phase::Held {
                visit(*entry);
            }
        })
    }

    /// Visits every message, queue by queue, in order of delivery.
    #[cfg(test)]
    pub(crate) fn for_each(&mut self, visit: &mut dyn FnMut(&Entry)) -> Result<()> {
        self.each_page(|_| true, visit)
    }

    /// Messages whose body or detail stands in this segment of the log: up to `max`, with records of up to
    /// `max_len` bytes in all, at least one. Meant for the oldest segment in use: pages without a record there
    /// or in an older one are not read.
    pub(crate) fn in_segment(&mut self, segment: u32, max: usize, max_len: u64) -> Result<Vec<Entry>> {
        self.usable()?;
        let wanted = |(key, meta): (PageKey, &PageMeta)| (meta.min_segment <= segment).then_some(key);
        let (mut found, mut len) = (Vec::new(), 0);
        let mut next = self.directory.pages_from(PageKey::MIN).find_map(wanted);
        while let Some(key) = next.filter(|_| found.len() < max) {
            let page = self.page(key, false);
            let here = |record: Position| record.is_some() && record.segment == segment;
            for entry in self.note(page)?.iter().filter(|entry| here(entry.body) || here(entry.detail)) {
                let records = [Some(entry.body), Some(entry.detail).filter(|detail| *detail != entry.body)];
                len += records.into_iter().flatten().map(|record| u64::from(record.len)).sum::<u64>();
                if found.len() >= max || (len > max_len && !found.is_empty()) {
                    return Ok(found);
                }
                found.push(*entry);
            }
            next = self.directory.pages_from(key).skip(1).find_map(wanted);
        }
        Ok(found)
    }

    fn each_page(&mut self, want: impl Fn(&PageMeta) -> bool, visit: &mut dyn FnMut(&Entry)) -> Result<()> {
        self.usable()?;
        let mut next = self.directory.pages_from(PageKey::MIN).find(|(_, meta)| want(meta)).map(|(key, _)| key);
        while let Some(key) = next {
            let page = self.page(key, false);
            self.note(page)?.iter().for_each(&mut *visit);
            let mut after = self.directory.pages_from(key).skip(1);
            next = after.find(|(_, meta)| want(meta)).map(|(key, _)| key);
        }
        Ok(())
    }

    /// Up to `max` messages of a queue that `want` accepts, in order of delivery, beginning at `from`; and
    /// where to go on, `None` at the queue's end. Reads at most 64 pages, so a cursor can come back
    /// with few or no messages.
    pub(crate) fn scan(
        &mut self,
        queue: QueueId,
        from: Option<Cursor>,
        max: usize,
        want: &dyn Fn(&Entry) -> bool,
    ) -> Result<(Vec<Entry>, Option<Cursor>)> {
        self.usable()?;
        let mut found = Vec::new();
        let mut next = self.scan_start(queue, from);
        for _ in 0..MAX_SCAN_PAGES {
            let Some(key) = next else { return Ok((found, None)) };
            let start =
                from.filter(|(priority, _)| *priority == key.lane.priority()).map_or(MessageId::MIN, |(_, id)| id);
            let page = self.page(key, false);
            for entry in self.note(page)?.iter().filter(|entry| entry.id >= start && want(entry)) {
                if found.len() >= max.max(1) {
                    return Ok((found, Some((entry.priority, entry.id))));
                }
                found.push(*entry);
            }
            next = self.directory.after(key).map(|(key, _)| key).filter(|key| key.lane.queue == queue);
        }
        Ok((found, next.map(|key| (key.lane.priority(), key.first))))
    }

    fn scan_start(&self, queue: QueueId, from: Option<Cursor>) -> Option<PageKey> {
        let first = match from {
            None => PageKey { lane: Lane::first_of(queue), first: MessageId::MIN },
            Some((priority, id)) => {
                let lane = Lane::new(queue, priority);
                self.directory.covering(lane, id).unwrap_or(PageKey { lane, first: id })
            }
        };
        self.directory.pages_from(first).next().map(|(key, _)| key).filter(|key| key.lane.queue == queue)
    }

    /// Messages by queue and state at `now`; queues without any are missing. Reads only pages with
    /// messages on both sides of `now`.
    pub(crate) fn counts(&mut self, now: Timestamp) -> Result<BTreeMap<QueueId, Counts>> {
        self.usable()?;
        let mut counts = BTreeMap::<QueueId, Counts>::new();
        let mut mixed = Vec::new();
        for (key, meta) in self.directory.pages_from(PageKey::MIN) {
            if !counts.entry(key.lane.queue).or_default().add_page(meta, now) {
                mixed.push(key);
            }
        }
        for key in mixed {
            let page = self.page(key, false);
            let counts = counts.entry(key.lane.queue).or_default();
            self.note(page)?.iter().for_each(|entry| counts.add(entry.state(now), 1));
        }
        Ok(counts)
    }

    /// The lanes that hold messages: queue and priority, in order of delivery within a queue.
    pub(crate) fn lanes(&self) -> Vec<(QueueId, i16)> {
        let lanes = std::iter::successors(self.directory.first_lane(), |lane| self.directory.lane_after(*lane));
        lanes.map(|lane| (lane.queue, lane.priority())).collect()
    }

    /// All queues with the bytes that the engine gave.
    pub(crate) fn queues(&mut self) -> Result<Vec<(QueueId, Vec<u8>)>> {
        self.usable()?;
        let read = self.queue_rows();
        self.note(read)
    }

    fn queue_rows(&mut self) -> Result<Vec<(QueueId, Vec<u8>)>> {
        let stamps = self.small.range(keys::queue(QueueId(0))..keys::segments(0));
        let stamps: Vec<_> = stamps.map(|(key, stamp)| (key.clone(), *stamp)).collect();
        let mut queues = Vec::with_capacity(stamps.len());
        for (key, row) in self.neighbours(&stamps)? {
            if let (Ok(Key::Queue(queue)), Ok((bytes, _))) =
                (Key::decode(&key), rows::decode_opaque(&key, &row, self.seed))
            {
                queues.push((queue, bytes.to_vec()));
            }
        }
        Ok(queues)
    }
}

/// Events gathered so far.
struct Found {
    events: Vec<(Timestamp, Entry)>,
    /// All events before this are wanted.
    reached: Timestamp,
    max: usize,
    /// When there are so many, [`cut`](Self::cut) is worth its sorting.
    cut_at: usize,
}

impl Found {
    fn add(&mut self, at: Timestamp, entry: &Entry) {
        if at < self.reached {
            self.events.push((at, *entry));
            if self.events.len() >= self.cut_at {
                self.cut();
                self.cut_at = 2 * self.events.len().max(self.max);
            }
        }
    }

    /// Leaves the first `max` events, all or none of the same moment, at least those of the first moment.
    fn cut(&mut self) {
        self.events.sort_unstable_by_key(|(at, entry)| (*at, entry.place()));
        let Some((over, _)) = self.events.get(self.max) else { return };
        let first = self.events.first().map_or(*over, |(at, _)| *at);
        self.reached = if *over > first { *over } else { Timestamp(over.0.saturating_add(1)) };
        self.events.truncate(self.events.partition_point(|(at, _)| *at < self.reached));
    }
}
