//! Reclaiming: what is still needed of the log's oldest segment is written again at the log's end.
//!
//! ```text
//! checkpoint ─► applier: the log is larger than 2 x live + 2 segments ─► what keeps the oldest segment
//!            ◄─ committer: Relocated records, a slice a frame ◄──────────┘
//! next checkpoint ─► nothing needs the segment any more ─► it is removed
//! ```
//!
//! # Invariants
//! 3: a segment goes only when a durable checkpoint says that nothing needs it, so an ack is never
//! forgotten before its message. 19: the loop goes on until the log is small enough. What the index
//! said of a message counts only while nothing was written about it since: later the tables may have
//! forgotten that it changed or is gone.
//!
//! # Crashes
//! A relocated message is there twice; the later record wins. A copy that was not written is made
//! again later.

use std::collections::VecDeque;

use rustc_hash::FxHashSet;

use crate::engine::commit::Committer;
use crate::engine::queues::Slot;
use crate::lifecycle;
use crate::record::{self, Record, Relocated};
use crate::types::{Entry, Lsn, MessageId, QueueId};

/// What is still to be carried to the log's end.
#[derive(Debug)]
pub(crate) struct Relocation {
    segment: u32,
    as_of: Lsn,
    entries: VecDeque<Entry>,
    queues: Vec<QueueId>,
    /// Messages that were written about since `as_of`: what `entries` has of them is out of date.
    touched: FxHashSet<MessageId>,
}

impl Relocation {
    pub(crate) fn none() -> Self {
        Self {
            segment: 0,
            as_of: Lsn::ZERO,
            entries: VecDeque::new(),
            queues: Vec::new(),
            touched: FxHashSet::default(),
        }
    }

    /// Something is written about this message.
    pub(crate) fn touch(&mut self, id: MessageId) {
        if !self.entries.is_empty() && id.0 <= self.as_of.0 {
            self.touched.insert(id);
        }
    }
}

/// Bytes that one frame carries, beside what callers write.
const SLICE_LEN: usize = 256 * 1024;

impl Committer {
    pub(crate) fn plan_relocation(&mut self, as_of: Lsn, segment: u32, entries: Vec<Entry>, queues: Vec<QueueId>) {
        // What changed since `as_of` is still known here: the index has not told of it yet.
        let changed = |entry: &&Entry| {
            let slot = self.tables.queues.get(&entry.queue).and_then(|queue| queue.slots.get(&entry.id));
            match slot {
                Some(Slot::Live { entry, .. }) => entry.lsn > as_of,
                Some(Slot::Gone(_)) => true,
                None => false,
            }
        };
        let touched = entries.iter().filter(changed).map(|entry| entry.id).collect();
        self.relocation = Relocation { segment, as_of, entries: entries.into(), queues, touched };
    }

    /// Most bytes that this turn carries.
    pub(crate) fn relocation_bound(&self) -> usize {
        let queues = self.relocation.queues.len() * QUEUE_BOUND;
        let mut bound = 0;
        for entry in &self.relocation.entries {
            if bound > SLICE_LEN {
                break;
            }
            bound += entry_bound(entry);
        }
        queues + bound
    }

    /// Carries one slice.
    pub(crate) fn relocate(&mut self) {
        if self.group.refusal.is_some() {
            return;
        }
        let mut moved = false;
        for id in std::mem::take(&mut self.relocation.queues) {
            if let Some(queue) = self.tables.queues.get(&id).filter(|q| q.defined.segment == self.relocation.segment) {
                let (name, options, paused) = (queue.name.as_str().to_owned(), queue.options.clone(), queue.paused);
                self.write(&Record::QueueConfigured { queue: id, name, options, paused }, &[]);
                moved = true;
            }
        }
        let mut carried = 0;
        while let Some(entry) = self.relocation.entries.front().copied() {
            if carried > SLICE_LEN || !self.group.has_room(entry_bound(&entry)) {
                break;
            }
            self.relocation.entries.pop_front();
            carried += entry_bound(&entry);
            moved |= self.relocate_one(&entry);
        }
        if moved {
            self.require_sync();
            // Soon there is one more segment that nothing needs.
            self.checkpoint.hurry = self.relocation.entries.is_empty();
        }
    }

    fn relocate_one(&mut self, seen: &Entry) -> bool {
        self.borrowed.push((seen.queue, seen.id));
        if !self.relocation.touched.contains(&seen.id) {
            self.admit(*seen, self.relocation.as_of);
        }
        let segment = self.relocation.segment;
        let Some(entry) = self.tables.entry(seen.queue, seen.id).copied() else { return false };
        if entry.body.segment != segment && entry.detail.segment != segment {
            return false;
        }
        let read = crate::engine::wait::read_whole(&self.shared, &entry);
        let (attributes, body, detail) = match read {
            Ok(read) => read,
            Err(error) => {
                tracing::error!(message = entry.id.0, %error, "a message cannot be carried on; its segment stays");
                return false;
            }
        };
        let relocated = Relocated {
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
        };
        self.write(&Record::Relocated(Box::new(relocated)), &body);
        true
    }

    /// Whether there is more to carry.
    pub(crate) fn is_relocating(&self) -> bool {
        !self.relocation.entries.is_empty() || !self.relocation.queues.is_empty()
    }
}

/// Most bytes of a queue's definition: two names, and numbers.
const QUEUE_BOUND: usize = 2 * record::FIXED_BOUND + 2 * 255;

/// Most bytes of a message's record: what its records have now, and a full set of fields.
const fn entry_bound(entry: &Entry) -> usize {
    entry.body.len as usize + entry.detail.len as usize + 2 * record::FIXED_BOUND
}
