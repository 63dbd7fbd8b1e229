//! What waits until the log is durable up to a point: answers, changes, questions.
//!
//! ```text
//! frame written ──► answers  (at the last frame that had to be synced) ──► callers
//!              └──► changes, questions, calls for a sync (at the frame) ──► applier, callers
//! ```
//!
//! # Invariants
//! Everything goes out in the order in which it was decided. 16: after poison, what was not durable is
//! answered with an error and never given to the applier.
//!
//! # Not here
//! When the log is synced: `commit.rs`.

use std::collections::VecDeque;

use tokio::sync::OwnedSemaphorePermit;

use crate::engine::applier::{Ask, Change, Task};
use crate::engine::commit::Committer;
use crate::engine::group::Group;
use crate::engine::wait::{Reply, ReplyTo};
use crate::error::{Error, Result};
use crate::types::{Lsn, Timestamp};

/// An answer, and the room in the inbox that its request took.
pub(crate) type Answered = (ReplyTo, Result<Reply>, Option<OwnedSemaphorePermit>);

/// The answers of one turn.
struct Answers {
    /// What must be durable first.
    at: Lsn,
    /// The last record that was written for them.
    lsn: Lsn,
    list: Vec<Answered>,
}

/// What else one turn leaves.
struct Rest {
    lsn: Lsn,
    clock: Timestamp,
    changes: Vec<Change>,
    asks: Vec<Ask>,
    syncs: Vec<ReplyTo>,
}

/// See the module.
pub(crate) struct Pending {
    answers: VecDeque<Answers>,
    rest: VecDeque<Rest>,
    /// Callers in `answers`.
    count: usize,
    /// The last record that must be durable before anybody is told of it.
    strict: Lsn,
    /// A question or a caller waits for everything up to here.
    wanted: Lsn,
}

impl Pending {
    pub(crate) const fn new() -> Self {
        Self { answers: VecDeque::new(), rest: VecDeque::new(), count: 0, strict: Lsn::ZERO, wanted: Lsn::ZERO }
    }

    /// Takes what a turn gathered. `lsn` is the last record that it wrote, or that was written before it.
    pub(crate) fn launch(&mut self, group: &mut Group, lsn: Lsn, strict: bool) {
        if strict {
            self.strict = lsn;
        }
        if !group.replies.is_empty() {
            self.count += group.replies.len();
            let list = std::mem::take(&mut group.replies);
            self.answers.push_back(Answers { at: self.strict, lsn, list });
        }
        let (changes, asks) = (std::mem::take(&mut group.changes), std::mem::take(&mut group.asks));
        let syncs = std::mem::take(&mut group.syncs);
        if !asks.is_empty() || !syncs.is_empty() {
            self.wanted = lsn;
        }
        if !(changes.is_empty() && asks.is_empty() && syncs.is_empty()) {
            self.rest.push_back(Rest { lsn, clock: group.now, changes, asks, syncs });
        }
    }

    /// A question that is to be answered as of everything up to `lsn`, the last record written.
    pub(crate) fn ask(&mut self, ask: Ask, lsn: Lsn, clock: Timestamp) {
        self.wanted = lsn;
        match self.rest.back_mut() {
            Some(rest) if rest.lsn == lsn => rest.asks.push(ask),
            _ => self.rest.push_back(Rest { lsn, clock, changes: Vec::new(), asks: vec![ask], syncs: Vec::new() }),
        }
    }

    /// Up to where somebody waits for the log to be durable.
    pub(crate) fn wanted(&self) -> Lsn {
        self.wanted.max(self.strict)
    }

    /// Callers that wait for their answer.
    pub(crate) const fn callers(&self) -> usize {
        self.count
    }
}

impl Committer {
    /// Lets everything go whose time has come.
    pub(crate) fn release(&mut self) {
        self.release_answers();
        self.release_rest();
    }

    fn release_answers(&mut self) {
        let durable = self.log.durable_lsn();
        let is_poisoned = self.poison.is_some();
        while let Some(answers) = self.pending.answers.pop_front_if(|a| is_poisoned || a.at <= durable) {
            self.pending.count -= answers.list.len();
            let is_lost = is_poisoned && (answers.at > durable || answers.lsn > self.log.written_lsn());
            for (to, reply, _room) in answers.list {
                let reply = match &self.poison {
                    // Whether it took effect is not known; only what was refused anyway is sure.
                    Some(cause) if is_lost && reply.is_ok() => Err(Error::poisoned(cause)),
                    _ => reply,
                };
                // Deliveries that nobody takes give themselves back when they are dropped.
                let _ = to.send(reply);
            }
        }
    }

    fn release_rest(&mut self) {
        let durable = self.log.durable_lsn();
        let is_poisoned = self.poison.is_some();
        let mut changes = Vec::new();
        while let Some(rest) = self.pending.rest.pop_front_if(|rest| is_poisoned || rest.lsn <= durable) {
            if rest.lsn <= durable {
                if changes.is_empty() {
                    changes = rest.changes;
                } else {
                    changes.extend(rest.changes);
                }
                if !rest.asks.is_empty() || self.pending.rest.front().is_none_or(|next| next.lsn > durable) {
                    self.hand_over(std::mem::take(&mut changes), rest.lsn, rest.clock);
                }
            }
            rest.asks.into_iter().for_each(|ask| self.tasks.push(Task::Ask(ask)));
            for to in rest.syncs {
                let synced =
                    self.poison.as_ref().map_or(Ok(Reply::Durable(durable)), |cause| Err(Error::poisoned(cause)));
                let _ = to.send(synced);
            }
        }
    }

    /// Gives the applier what is durable by now.
    fn hand_over(&mut self, changes: Vec<Change>, lsn: Lsn, clock: Timestamp) {
        if lsn > self.handed_over {
            self.handed_over = lsn;
            self.tasks.push(Task::Changes { changes, lsn, clock });
        }
    }
}
