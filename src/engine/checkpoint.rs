//! What the committer does for nobody in particular: marks, late syncs, checkpoints, the end.
//!
//! # Invariants
//! 12: a checkpoint names what the index has durably, never more.
//!
//! # Crashes
//! The last frame of an idle log gets a mark behind it, so that damage to it is told from a torn
//! write. A close ends with a Clean frame and then a clean checkpoint; without either, the next
//! open takes the store as one whose process died.

use std::time::Duration;

use crate::engine::applier::{Ask, Next};
use crate::engine::commit::Committer;
use crate::error::{Error, Result};
use crate::options::Durability;
use crate::record::Record;
use crate::types::{Lsn, Timestamp};

/// How far a store is with closing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Closing {
    No,
    /// The last frame is written; the applier has been asked for the last checkpoint.
    Settling,
    Done,
}

#[derive(Debug)]
pub(crate) struct CheckpointPlan {
    pub(crate) asked: bool,
    /// The next one is due at once: it will find a segment that can go.
    pub(crate) hurry: bool,
    /// One is wanted in time although nothing else happens: something was left to do.
    pub(crate) retry: bool,
    /// The last one that was written, and when.
    pub(crate) lsn: Lsn,
    pub(crate) at: Duration,
    /// Bytes that had been written to the log by then.
    pub(crate) written_len: u64,
}

/// What a turn leaves to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Turn {
    /// When to look again, even if nothing comes in.
    pub(crate) wake_in: Duration,
    pub(crate) done: bool,
}

/// An idle log's last frame gets a mark behind it after this.
const MARK_AFTER: Duration = Duration::from_secs(1);
const CHECKPOINT_EVERY: Duration = Duration::from_secs(10);
/// Bytes of the log between two checkpoints at most, and never more than a segment: so that of what
/// nobody needs any more there is never much more than one.
const CHECKPOINT_LEN: u64 = 64 * 1024 * 1024;
/// While sends are refused for lack of space.
const CROWDED_EVERY: Duration = Duration::from_millis(250);
/// After a refusal for lack of room, when to look again.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Nothing is waited for longer, so that a suspended machine is noticed.
const MAX_IDLE: Duration = Duration::from_secs(60);

impl Committer {
    /// Everything that is not for a caller: marks, syncs that are due, checkpoints, closing.
    pub(crate) fn keep_house(&mut self, closing: Option<Timestamp>) {
        let now = self.clock.boottime();
        if self.poison.is_none() {
            if self.sync_due().is_some_and(|due| now >= due) {
                self.sync();
            }
            if self.unmarked && closing.is_none() && now.saturating_sub(self.last_write) >= MARK_AFTER {
                self.write_alone(&Record::Mark);
                self.unmarked = false;
            }
        }
        let plan = &self.checkpoint;
        let news = self.log.durable_lsn() > plan.lsn || plan.retry;
        let (every, len) = self.checkpoint_rhythm();
        let due = now.saturating_sub(plan.at) >= every || self.log.written_len() - plan.written_len >= len;
        if (news && due || plan.hurry) && !plan.asked && closing.is_none() {
            self.checkpoint.asked = true;
            self.checkpoint.hurry = false;
            self.checkpoint.retry = false;
            self.look_at_space();
            if let Err(error) = self.shared.space.check_presence() {
                return self.poison(error);
            }
            let (durable, crowded) = (self.log.durable_lsn(), self.crowded_by.is_some());
            self.ask_index(Ask::Checkpoint { durable, clean: false, crowded });
        }
        self.ending = closing.is_some();
        if let Some(until) = closing {
            self.close(until);
        }
    }

    /// After which time and how many bytes of the log a checkpoint is due.
    fn checkpoint_rhythm(&self) -> (Duration, u64) {
        let len = CHECKPOINT_LEN.min(self.shared.options.segment_len.into());
        if self.crowded_by.is_some() { (CROWDED_EVERY, len / 4) } else { (CHECKPOINT_EVERY, len) }
    }

    pub(crate) fn checkpointed(&mut self, lsn: Lsn, result: Result<Next>) {
        self.checkpoint.asked = false;
        self.checkpoint.at = self.clock.boottime();
        self.checkpoint.written_len = self.log.written_len();
        match result {
            Ok(next) => {
                self.checkpoint.lsn = lsn;
                self.checkpoint.retry |= next == Next::InTime;
                self.checkpoint.hurry |= next == Next::AtOnce;
            }
            Err(error) => tracing::warn!(%error, "no checkpoint was written; it is tried again"),
        }
        if self.closing == Closing::Settling {
            self.closing = Closing::Done;
        }
    }

    /// One step towards the end: everybody is answered, the log ends with a Clean mark, the index
    /// is brought up to it and checkpointed.
    fn close(&mut self, until: Timestamp) {
        for waiter in self.waiters.take_all() {
            let _ = waiter.reply.send(Err(Error::closed()));
        }
        let busy = !self.leftover.is_empty()
            || !self.parked.is_empty()
            || !self.redrives.is_empty()
            || !self.given_back.is_empty() && self.group.refusal.is_none()
            || !self.shared.inbox().is_empty();
        let held = self.group.now < until && self.tables.in_flight(1).len() == 1;
        self.close_at = held.then_some(until);
        if busy || held || self.closing != Closing::No {
            return;
        }
        self.closing = Closing::Settling;
        if self.poison.is_none() {
            self.write_alone(&Record::Clean);
        }
        if self.poison.is_some() {
            self.closing = Closing::Done;
            return;
        }
        self.ask_index(Ask::Checkpoint { durable: self.log.durable_lsn(), clean: true, crowded: false });
    }

    fn sync_due(&self) -> Option<Duration> {
        let waiting = self.log.durable_lsn() < self.log.written_lsn() && !self.log.is_syncing();
        match self.shared.durability() {
            _ if !waiting => None,
            Durability::Interval(every) => Some(self.last_sync.saturating_add(every)),
            // Settles that asked for less than the store's durability still follow soon.
            Durability::Always => Some(self.last_write.saturating_add(MARK_AFTER)),
            Durability::Os => None,
        }
    }

    /// When to look again.
    pub(crate) fn plan(&self) -> Turn {
        let now = self.shared.clock.now();
        let boot = self.clock.boottime();
        let mut wake_in = MAX_IDLE;
        if self.group.refusal.is_some() {
            wake_in = RETRY_AFTER;
        } else {
            let known = |at: &Timestamp| *at < self.tables.event_horizon;
            let times = [self.tables.next_timer(), self.waiters.next_deadline(), self.close_at];
            // What comes after the event horizon is looked at when the horizon has moved.
            for at in times.into_iter().flatten().filter(known) {
                wake_in = wake_in.min(at.since(now));
            }
        }
        if !self.events_asked {
            wake_in = wake_in.min(Timestamp(self.tables.event_horizon.0.saturating_sub(20_000)).since(now));
        }
        let mark = self.unmarked.then(|| self.last_write + MARK_AFTER);
        let news = self.log.durable_lsn() > self.checkpoint.lsn || self.checkpoint.retry;
        let checkpoint = (news && !self.checkpoint.asked).then(|| self.checkpoint.at + self.checkpoint_rhythm().0);
        if self.poison.is_none() && !self.ending {
            for at in [mark, checkpoint, self.sync_due()].into_iter().flatten() {
                wake_in = wake_in.min(at.saturating_sub(boot));
            }
        }
        let can_write = self.group.refusal.is_none() && !self.ending;
        if can_write && self.is_relocating() {
            wake_in = wake_in.min(self.carrying_waits());
        }
        if !self.leftover.is_empty() || self.group.alone || can_write && !self.unfinished.is_empty() {
            wake_in = Duration::ZERO;
        }
        Turn { wake_in, done: self.closing == Closing::Done }
    }
}
