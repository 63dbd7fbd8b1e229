//! Redriving: dead messages go back to work, a slice of the index at a time.
//!
//! # Crashes
//! Each slice is a frame of its own. After a crash in between some are redriven and some are not;
//! running it again finishes the job, and none is redriven twice.

use crate::engine::applier::Ask;
use crate::engine::commit::Committer;
use crate::engine::queues::Slot;
use crate::engine::wait::{RedriveFilter, Reply, ReplyTo};
use crate::error::Error;
use crate::lifecycle;
use crate::record::{self, Record};
use crate::types::{Entry, Lsn, MessageId, Phase, QueueId, State};

/// One redrive on its way.
pub(crate) struct Redrive {
    queue: QueueId,
    filter: RedriveFilter,
    left: u64,
    done: u64,
    reply: ReplyTo,
}

/// What the index gave for one.
pub(crate) struct Slice {
    redrive: Redrive,
    as_of: Lsn,
    entries: Vec<Entry>,
    next: Option<(i16, MessageId)>,
}

/// Messages that one frame redrives.
const SLICE: usize = 256;

impl Slice {
    fn bound(&self) -> usize {
        self.entries.len() * 2 * record::FIXED_BOUND
    }
}

impl Committer {
    pub(crate) fn start_redrive(&mut self, queue: QueueId, filter: RedriveFilter, max: u64, reply: ReplyTo) {
        let redrive = Redrive { queue, filter, left: max, done: 0, reply };
        self.ask_dead(redrive, None);
    }

    fn ask_dead(&mut self, redrive: Redrive, from: Option<(i16, MessageId)>) {
        let token = self.token();
        self.group.ask(Ask::Dead { token, queue: redrive.queue, from, max: SLICE });
        self.redrives.insert(token, redrive);
    }

    pub(crate) fn dead_fetched(&mut self, token: u64, as_of: Lsn, entries: Vec<Entry>, next: Option<(i16, MessageId)>) {
        if let Some(redrive) = self.redrives.remove(&token) {
            // At once: a later answer of the index lets the tables forget what changed since this one.
            let newest = |entry: Entry| match self
                .tables
                .queues
                .get(&entry.queue)
                .and_then(|queue| queue.slots.get(&entry.id))
            {
                Some(Slot::Gone(_)) => None,
                Some(Slot::Live { entry, .. }) => Some(*entry),
                None => Some(entry),
            };
            let entries = entries.into_iter().filter_map(newest).collect();
            self.slices.push(Slice { redrive, as_of, entries, next });
        }
    }

    /// Most bytes that the slices at hand can write.
    pub(crate) fn slices_bound(&self) -> usize {
        self.slices.iter().map(Slice::bound).sum()
    }

    pub(crate) fn redrive_slices(&mut self) {
        for slice in std::mem::take(&mut self.slices) {
            let fits = !self.group.alone && self.group.has_room(slice.bound());
            if fits || self.group.refusal.is_some() {
                self.redrive_slice(slice);
            } else {
                // By the next frame the tables may have forgotten what changed since: it is asked for again.
                let from = slice.entries.first().map(|entry| (entry.priority, entry.id));
                self.ask_dead(slice.redrive, from);
            }
        }
    }

    fn redrive_slice(&mut self, slice: Slice) {
        let Slice { mut redrive, as_of, entries, next } = slice;
        if let Some(refusal) = &self.group.refusal {
            return self.group.reply(redrive.reply, Err(refusal.clone()), None);
        }
        let Some(queue) = self.tables.queues.get(&redrive.queue) else {
            return self.group.reply(redrive.reply, Err(Error::not_found("the queue was deleted meanwhile")), None);
        };
        if as_of < queue.barrier {
            // It was purged since: what the index gave may be gone.
            let from = entries.first().map(|entry| (entry.priority, entry.id));
            return self.ask_dead(redrive, from);
        }
        for entry in entries {
            if redrive.left == 0 {
                break;
            }
            self.borrowed.push((entry.queue, entry.id));
            self.admit(entry, as_of);
            self.redrive_one(&mut redrive, entry.id);
        }
        match next {
            Some(from) if redrive.left > 0 => self.ask_dead(redrive, Some(from)),
            _ => self.group.reply(redrive.reply, Ok(Reply::Count(redrive.done)), None),
        }
    }

    fn redrive_one(&mut self, redrive: &mut Redrive, id: MessageId) {
        let now = self.group.now;
        let Some(entry) = self.tables.entry(redrive.queue, id).copied() else { return };
        let to = match entry.phase {
            Phase::Dead => Some(entry.queue),
            _ if entry.state(now) == State::InFlight => None,
            // It came by a move: back to where it came from, if that is still there.
            _ => entry.origin.map(|origin| if self.tables.queues.contains_key(&origin) { origin } else { entry.queue }),
        };
        let Some(to) = to.filter(|_| self.wanted(&redrive.filter, &entry)) else { return };
        self.write(&Record::Redriven { key: lifecycle::key(&entry), to, visible_at: now }, &[]);
        self.require_sync();
        redrive.done += 1;
        redrive.left -= 1;
    }

    fn wanted(&self, filter: &RedriveFilter, entry: &Entry) -> bool {
        let by_id = filter.ids.as_ref().is_none_or(|ids| ids.contains(&entry.id));
        by_id
            && filter.reason.is_none_or(|reason| {
                let died = self.shared.read_detail(entry).ok().and_then(|detail| detail.dead);
                died.and_then(|died| died.reason()) == Some(reason)
            })
    }
}
