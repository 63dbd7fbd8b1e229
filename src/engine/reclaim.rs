//! Reclaiming: what is still needed of the log's oldest segment is written again at the log's end.
//!
//! ```text
//! checkpoint ─► applier: the log is too large for what is live in it ─► what keeps the oldest segment,
//!               with its bytes (survey.rs)
//!            ◄─ committer: Relocated records, a slice a frame ◄──────────┘   then the next load, until
//! next checkpoint ─► nothing needs the segment any more ─► it is removed    the segment is empty
//! ```
//!
//! # Invariants
//! 3: a segment goes only when a durable checkpoint says that nothing needs it, so an ack is never
//! forgotten before its message. 19: the loop goes on until the log is small enough, and it writes at
//! most `1 / (A - 1)` bytes for each byte that it frees, A being `max_amplification`: the log that it
//! goes once around has at least that share of it dead. What the index said of a message counts only
//! while nothing was written about it since: later the tables may have forgotten that it changed or is
//! gone.
//!
//! While callers are there, what is carried goes along in their frames: at most what they send and
//! otherwise may write, so that it keeps up with them (what A allows frees two bytes for each one), and one
//! message at least. Frames of its own wait until nobody has asked for anything for a while; callers
//! who come just then wait for one of them. While sends are refused for lack of space nothing waits.
//!
//! # Crashes
//! A relocated message is there twice; the later record wins. A copy that was not written is made
//! again later.

use std::collections::VecDeque;
use std::time::Duration;

use rustc_hash::FxHashSet;

use crate::engine::applier::Ask;
use crate::engine::commit::Committer;
use crate::engine::queues::Slot;
use crate::lifecycle;
use crate::message::{Attributes, DeadReason};
use crate::record::{self, Detail, Died, Record, Relocated};
use crate::types::{Entry, Lsn, MessageId, Phase, QueueId};

/// A message to be carried: as the index has it, and what its records hold.
#[derive(Debug)]
pub(crate) struct Cargo {
    pub(crate) entry: Entry,
    pub(crate) attributes: Attributes,
    /// Or why it cannot be read any more.
    pub(crate) body: Result<Vec<u8>, String>,
    pub(crate) detail: Option<Detail>,
}

/// What is still to be carried to the log's end.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) segment: u32,
    pub(crate) as_of: Lsn,
    pub(crate) cargo: VecDeque<Cargo>,
    pub(crate) queues: Vec<QueueId>,
    /// Bytes that are live in the segment.
    pub(crate) live_len: u64,
    /// There is more in it than this.
    pub(crate) more: bool,
}

/// A load on its way.
#[derive(Debug)]
pub(crate) struct Relocation {
    load: Load,
    /// Messages that were written about since `as_of`: what the load has of them is out of date.
    touched: FxHashSet<MessageId>,
    /// Most bytes that this turn carries; `None`: it waits for callers to come or to be gone.
    slice_len: Option<usize>,
}

impl Relocation {
    pub(crate) fn none() -> Self {
        let load =
            Load { segment: 0, as_of: Lsn::ZERO, cargo: VecDeque::new(), queues: Vec::new(), live_len: 0, more: false };
        Self { load, touched: FxHashSet::default(), slice_len: None }
    }

    /// Something is written about this message.
    pub(crate) fn touch(&mut self, id: MessageId) {
        if !self.load.cargo.is_empty() && id.0 <= self.load.as_of.0 {
            self.touched.insert(id);
        }
    }

    fn is_empty(&self) -> bool {
        self.load.cargo.is_empty() && self.load.queues.is_empty()
    }
}

/// Bytes that one frame carries: beside what callers write, at least and at most; and when nobody writes.
const MIN_SLICE_LEN: usize = 1024;
const MAX_SLICE_LEN: usize = 8 * 1024 * 1024;
const IDLE_SLICE_LEN: usize = 64 * 1024;
/// So long after the last request nobody is there.
const IDLE_AFTER: Duration = Duration::from_millis(5);
/// Most bytes of a queue's definition: two names, and numbers.
const QUEUE_BOUND: usize = 2 * record::FIXED_BOUND + 2 * 255;

impl Committer {
    pub(crate) fn plan_relocation(&mut self, load: Load) {
        if self.ending {
            return;
        }
        if self.idle_carried > self.log.log_len() {
            // All of it was written again and nobody wrote anything: it will not get smaller.
            return;
        }
        // What is carried gives back more than it takes, so the store's own limit does not count here.
        let space = &self.shared.space;
        let has = space.ready(self.log.room_left()).saturating_add(space.free_on_disk());
        if has < load.live_len {
            let (needs, segment) = (load.live_len, load.segment);
            let why =
                format!("segment {segment} holds {needs} live bytes, and there is room for {has} to carry them on");
            tracing::warn!(reason = why, "the oldest segment of the log stays for now");
            self.shared.space.note_reclaim(Some(why));
            self.checkpoint.retry = true;
            return;
        }
        // What changed since `as_of` is still known here: the index has not told of it yet.
        let changed = |entry: &Entry| {
            let slot = self.tables.queues.get(&entry.queue).and_then(|queue| queue.slots.get(&entry.id));
            match slot {
                Some(Slot::Live { entry, .. }) => entry.lsn > load.as_of,
                Some(Slot::Gone(_)) => true,
                None => false,
            }
        };
        let entries = load.cargo.iter().map(|cargo| &cargo.entry);
        let touched = entries.filter(|entry| changed(entry)).map(|entry| entry.id).collect();
        self.relocation = Relocation { load, touched, slice_len: None };
    }

    /// Most bytes that this turn carries beside what is sent and what else may be written. `asked`: there are
    /// requests.
    pub(crate) fn relocation_bound(&mut self, sending: usize, others: usize, asked: bool) -> usize {
        if self.ending {
            // Nothing may come after the mark of an orderly close.
            self.relocation = Relocation::none();
        }
        if asked {
            self.last_asked = self.clock.boottime();
        }
        let beside = sending + others;
        self.relocation.slice_len = if beside > 0 {
            Some(beside.clamp(MIN_SLICE_LEN, MAX_SLICE_LEN))
        } else {
            self.carrying_waits().is_zero().then_some(IDLE_SLICE_LEN)
        };
        self.slice_bound()
    }

    /// How long what is to be carried waits for callers to come or to be gone.
    pub(crate) fn carrying_waits(&self) -> Duration {
        if self.crowded_by.is_some() {
            return Duration::ZERO;
        }
        (self.last_asked + IDLE_AFTER).saturating_sub(self.clock.boottime())
    }

    /// The same, when no more than this fits.
    pub(crate) fn shorten_slice(&mut self, len: usize) -> usize {
        self.relocation.slice_len = Some(len);
        let bound = self.slice_bound();
        if bound <= len { bound } else { 0 }
    }

    fn slice_bound(&self) -> usize {
        let Some(slice_len) = self.relocation.slice_len else { return 0 };
        let load = &self.relocation.load;
        let queues = load.queues.iter().map(|_| QUEUE_BOUND);
        let mut bound = 0;
        for len in queues.chain(load.cargo.iter().map(Cargo::bound)) {
            // One at least, however long it is.
            if bound > 0 && bound + len > slice_len {
                break;
            }
            bound += len;
        }
        bound
    }

    /// Carries one slice.
    pub(crate) fn relocate(&mut self) {
        if self.group.records > 0 {
            self.idle_carried = 0;
        }
        let Some(slice_len) = self.relocation.slice_len.filter(|_| !self.relocation.is_empty()) else { return };
        let before = self.group.frame.len();
        let mut has_room = true;
        while let Some(id) = self.relocation.load.queues.last().copied() {
            has_room = self.group.has_room(QUEUE_BOUND) && self.group.frame.len() - before < slice_len;
            if !has_room {
                break;
            }
            self.relocation.load.queues.pop();
            self.carry_queue(id);
        }
        while has_room && let Some(cargo) = self.relocation.load.cargo.pop_front() {
            let carried = self.group.frame.len() - before;
            has_room = self.group.has_room(cargo.bound()) && (carried == 0 || carried + cargo.bound() <= slice_len);
            if has_room {
                self.carry(cargo);
            } else {
                self.relocation.load.cargo.push_front(cargo);
            }
        }
        let carried = self.group.frame.len() - before;
        if carried > 0 {
            self.require_sync();
            self.meter.carried_len += carried as u64;
            self.idle_carried += carried as u64;
        }
        if self.relocation.is_empty() {
            if self.relocation.load.more {
                self.group.ask(Ask::Relocate { crowded: self.crowded_by.is_some(), len: slice_len });
            } else {
                // Now there is one more segment that nothing needs.
                self.checkpoint.hurry = true;
            }
            self.relocation = Relocation::none();
        } else if carried == 0 && !has_room && self.group.records == 0 {
            // There is no room for it even in a frame of its own: it is tried again after a checkpoint.
            self.relocation = Relocation::none();
        }
    }

    fn carry_queue(&mut self, id: QueueId) {
        let segment = self.relocation.load.segment;
        if let Some(queue) = self.tables.queues.get(&id).filter(|queue| queue.defined.segment == segment) {
            let (name, options, paused) = (queue.name.as_str().to_owned(), queue.options.clone(), queue.paused);
            self.write(&Record::QueueConfigured { queue: id, name, options, paused }, &[]);
        }
    }

    fn carry(&mut self, cargo: Cargo) {
        let Cargo { entry: seen, attributes, body, detail } = cargo;
        self.borrowed.push((seen.queue, seen.id));
        if !self.relocation.touched.contains(&seen.id) {
            self.admit(seen, self.relocation.load.as_of);
        }
        let segment = self.relocation.load.segment;
        let Some(entry) = self.tables.entry(seen.queue, seen.id).copied() else { return };
        if entry.body != seen.body || entry.body.segment != segment && entry.detail.segment != segment {
            return;
        }
        let detail = if entry.detail == seen.detail {
            detail
        } else {
            // It failed once more since. If that is in this very frame, it cannot be read yet; if it is longer, there
            // may be no room for it: the message is carried with the next load.
            let newest = self.shared.read_detail(&entry).ok().filter(|_| entry.detail.len <= seen.detail.len);
            let Some(newest) = newest else { return };
            Some(newest)
        };
        let mut relocated = Relocated {
            key: lifecycle::key(&entry),
            phase: entry.phase,
            origin: entry.origin,
            epoch: entry.epoch,
            receive_count: entry.receive_count,
            attempts: entry.attempts,
            sent_at: entry.sent_at,
            visible_at: entry.visible_at,
            expires_at: entry.expires_at,
            first_received_at: entry.first_received_at,
            received_at: entry.received_at,
            detail,
            attributes,
            body_lost: false,
        };
        let body = body.unwrap_or_else(|error| {
            self.lose_body(&entry, error, &mut relocated);
            Vec::new()
        });
        self.write(&Record::Relocated(Box::new(relocated)), &body);
    }

    /// A body that cannot be read any more must not keep the segment for ever: the message is set aside
    /// as dead, without it.
    fn lose_body(&mut self, entry: &Entry, error: String, relocated: &mut Relocated) {
        relocated.body_lost = true;
        if entry.phase == Phase::Dead && relocated.detail.as_ref().is_some_and(|detail| detail.dead.is_some()) {
            return;
        }
        let Some(queue) = self.tables.queues.get_mut(&entry.queue) else { return };
        queue.meter.died += 1;
        let died = Died::new(DeadReason::Unreadable, self.group.now, queue.name.as_str(), entry.attempts);
        relocated.phase = Phase::Dead;
        relocated.detail = Some(Detail { error: Some(error), dead: Some(died) });
    }

    /// Whether there is more to carry.
    pub(crate) fn is_relocating(&self) -> bool {
        !self.relocation.is_empty()
    }
}

impl Cargo {
    /// Most bytes of the record: what its records have now, and a full set of fields.
    fn bound(&self) -> usize {
        let Entry { body, detail, .. } = &self.entry;
        let error_len = self.body.as_ref().err().map_or(0, |error| error.len() + record::FIXED_BOUND + 255);
        body.len as usize + detail.len as usize + error_len + 2 * record::FIXED_BOUND
    }
}
