//! The applier: brings the index up to the log, and reads it for the committer.
//!
//! ```text
//! committer ──tasks (durable changes, questions) in order──► fold ──one transaction──► index
//!     ▲                                                                                  │
//!     └──────────────── answers (applied up to, entries as of) in order ─────────────────┘
//! ```
//!
//! Changes are folded: of many changes to one message the last one counts, and a message that was
//! sent and settled meanwhile leaves nothing. A question first brings the index up to the point at
//! which it was asked, so its answer is exact as of that LSN.
//!
//! # Invariants
//! 12: only durable changes come here, and each transaction sets `applied_lsn`. 13: `Fold` is also
//! what replay uses.
//!
//! # Crashes
//! A transaction is there or not; what is missing is replayed from the log at the next open.
//!
//! # Locking
//! The task list is locked for a push or a swap only.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::engine::open::IndexSite;
use crate::engine::reclaim::Load;
use crate::engine::renewal::Renewals;
use crate::engine::replay::decode_row;
use crate::engine::wait::{Reply, ReplyTo, Seen, Shared};
use crate::env::{Clock, Fs};
use crate::error::Result;
use crate::index::{Batch, Index, MemKv, Purge};
use crate::log::{Checkpoint, CheckpointFile, NO_INDEX};
use crate::record::StateSet;
use crate::types::{Entry, Lsn, MessageId, Phase, Place, QueueId, State, Timestamp};

/// What one record changed.
#[derive(Debug)]
pub(crate) enum Change {
    /// A message: where it stood before, what it is now.
    Message { before: Option<Place>, after: Option<Entry> },
    /// A queue's row; `None`: the queue is gone.
    Queue { id: QueueId, row: Option<Vec<u8>> },
    /// Everything of a queue in these states at that time.
    Purge { queue: QueueId, states: StateSet, at: Timestamp },
}

/// Changes on their way into the index.
pub(crate) struct Fold {
    batch: Batch,
    count: usize,
}

impl Fold {
    pub(crate) fn new(applied: Lsn, clock: Timestamp) -> Self {
        Self {
            batch: Batch {
                purges: Vec::new(),
                changes: std::collections::BTreeMap::new(),
                queues: std::collections::BTreeMap::new(),
                applied,
                clock,
            },
            count: 0,
        }
    }

    /// The newest state of a message that was changed since the last flush: `Some(None)` if it is
    /// gone, `None` if nothing is known here.
    pub(crate) fn get(&self, place: &Place) -> Option<Option<Entry>> {
        self.batch.changes.get(place).copied()
    }

    /// Whether a purge since the last flush takes what the index still has at this place.
    pub(crate) fn purges(&self, entry: &Entry) -> bool {
        self.batch.purges.iter().any(|purge| purge.queue == entry.queue && (purge.remove)(entry))
    }

    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    /// Takes in one change. `indexed` is what the index has: what was sent after it and is gone
    /// again never gets there.
    pub(crate) fn add(&mut self, change: Change, indexed: Lsn) {
        self.count += 1;
        match change {
            Change::Message { before, after } => {
                if let Some(place) = before.filter(|place| after.is_none_or(|after| after.place() != *place)) {
                    if place.id.0 > indexed.0 {
                        self.batch.changes.remove(&place);
                    } else {
                        self.batch.changes.insert(place, None);
                    }
                }
                if let Some(entry) = after {
                    self.batch.changes.insert(entry.place(), Some(entry));
                }
            }
            Change::Queue { id, row } => {
                self.batch.queues.insert(id, row);
            }
            Change::Purge { queue, states, at } => {
                let hit = move |entry: &Entry| states.contains(entry.state(at));
                let lanes = Place { queue, priority: i16::MIN, id: MessageId::MIN }..=Place {
                    queue,
                    priority: i16::MAX,
                    id: MessageId::MAX,
                };
                for (_, entry) in self.batch.changes.range_mut(lanes) {
                    *entry = entry.filter(|entry| !hit(entry));
                }
                self.batch.purges.push(Purge { queue, remove: Box::new(hit) });
            }
        }
    }

    /// Everything up to `lsn` was added.
    pub(crate) fn reach(&mut self, lsn: Lsn, clock: Timestamp) {
        self.batch.applied = self.batch.applied.max(lsn);
        self.batch.clock = self.batch.clock.max(clock);
    }

    /// Puts everything into the index, as one transaction.
    pub(crate) fn flush(&mut self, index: &mut Index) -> Result<()> {
        if self.batch.applied > index.applied() || self.count > 0 {
            index.apply(&self.batch)?;
            *self = Self::new(self.batch.applied, self.batch.clock);
        }
        Ok(())
    }
}

/// What the committer wants to know of the index.
#[derive(Debug)]
pub(crate) enum Ask {
    /// The next receivable entries of a lane.
    Ready { queue: QueueId, priority: i16, from: MessageId, max: usize, now: Timestamp },
    /// Everything with an event in a stretch of time.
    Events { from: Timestamp, until: Timestamp },
    /// These messages, for the parked request `token`.
    Get { token: u64, wanted: Vec<(QueueId, MessageId)> },
    /// Dead or moved-in messages of a queue, for the parked request `token`.
    Dead { token: u64, queue: QueueId, from: Option<(i16, MessageId)>, max: usize },
    /// Messages to look at; answered to the caller.
    Peek { queue: QueueId, state: Option<State>, max: usize, now: Timestamp, reply: ReplyTo },
    /// The store's figures, completed with the index's; answered to the caller.
    Stats { stats: Box<crate::StoreStats>, reply: ReplyTo },
    /// Sync the index and write a checkpoint. While space is short, more is carried out of the oldest
    /// segment.
    Checkpoint { durable: Lsn, clean: bool, crowded: bool },
    /// What else keeps the oldest segment; about `len` bytes of it are wanted at once.
    Relocate { crowded: bool, len: usize },
    /// Build the index anew from the log; answered to the caller.
    Rebuild { reply: ReplyTo },
}

/// What the applier tells the committer. Entries are exact as of an LSN.
#[derive(Debug)]
pub(crate) enum Answer {
    Applied(Lsn),
    Ready {
        queue: QueueId,
        priority: i16,
        as_of: Lsn,
        entries: Vec<Entry>,
        next: Option<MessageId>,
    },
    Events {
        as_of: Lsn,
        entries: Vec<Entry>,
        reached: Timestamp,
    },
    Got {
        token: u64,
        as_of: Lsn,
        entries: Vec<Entry>,
    },
    Dead {
        token: u64,
        as_of: Lsn,
        entries: Vec<Entry>,
        next: Option<(i16, MessageId)>,
    },
    Checkpointed {
        lsn: Lsn,
        result: Result<Next>,
    },
    /// Another index on disk is in use: a checkpoint should name it.
    Renewed,
    /// What must be carried to the log's end before its oldest segment can go.
    Relocate(Load),
}

/// When the next checkpoint is wanted, beside those that news of the log bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    NotSoon,
    /// It lets segments go: both slots must do without them.
    AtOnce,
    /// Something could not be removed; after the usual time it may be.
    InTime,
}

/// Work for the applier, in order.
pub(crate) enum Task {
    Changes { changes: Vec<Change>, lsn: Lsn, clock: Timestamp },
    Ask(Ask),
    Stop,
}

/// The list of tasks, shared with the committer.
#[derive(Default)]
pub(crate) struct Tasks {
    list: Mutex<VecDeque<Task>>,
    signal: Condvar,
}

impl Tasks {
    fn list(&self) -> MutexGuard<'_, VecDeque<Task>> {
        // Every change under the lock is one push or one swap, so a panic leaves it whole.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, task: Task) {
        self.list().push_back(task);
        self.signal.notify_one();
    }

    fn take(&self) -> VecDeque<Task> {
        std::mem::take(&mut *self.list())
    }

    /// Sleeps until there is a task or the time is up.
    fn wait(&self, timeout: Duration) {
        let list = self.list();
        drop(self.signal.wait_timeout_while(list, timeout, |list| list.is_empty()));
    }
}

/// Changes that are folded at most before they are applied.
const MAX_FOLDED: usize = 50_000;
/// Time for which changes are folded at most.
const MAX_LAG: Duration = Duration::from_millis(100);
/// Entries of one answer about events.
const MAX_EVENTS: usize = 64 * 1024;

/// See the module.
pub(crate) struct Applier {
    pub(crate) shared: Arc<Shared>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) index: Index,
    pub(crate) fold: Fold,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) checkpoint: CheckpointFile,
    pub(crate) index_generation: u64,
    pub(crate) in_memory: bool,
    pub(crate) site: Arc<dyn IndexSite>,
    pub(crate) renewals: Renewals,
    /// The segment in which each queue is defined.
    pub(crate) definitions: BTreeMap<QueueId, u32>,
    pub(crate) fs: Arc<dyn Fs>,
    pub(crate) dir: PathBuf,
    /// When the oldest folded change came.
    pub(crate) since: Option<Duration>,
}

impl Applier {
    /// Does what there is to do. Returns whether to go on.
    pub(crate) fn turn(&mut self) -> bool {
        for task in self.tasks.take() {
            match task {
                Task::Changes { changes, lsn, clock } => self.take_in(changes, lsn, clock),
                Task::Ask(ask) => self.answer(ask),
                Task::Stop => return false,
            }
        }
        if self.since.is_some_and(|since| self.clock.boottime().saturating_sub(since) >= MAX_LAG) {
            self.bring_up();
        }
        self.go_on_renewing();
        true
    }

    /// The thread's body.
    pub(crate) fn run(mut self) {
        while self.turn() {
            let timeout = match self.since {
                _ if self.index.is_renewing() => Duration::ZERO,
                Some(_) => MAX_LAG,
                None => Duration::from_secs(60),
            };
            self.tasks.wait(timeout);
        }
    }

    fn take_in(&mut self, changes: Vec<Change>, lsn: Lsn, clock: Timestamp) {
        if lsn <= self.index.applied() {
            return;
        }
        let indexed = self.index.applied();
        for change in changes {
            if let Change::Queue { id, row } = &change {
                match row.as_ref().and_then(|row| decode_row(*id, row)) {
                    Some(row) => self.definitions.insert(*id, row.defined.segment),
                    None => self.definitions.remove(id),
                };
            }
            self.fold.add(change, indexed);
        }
        self.fold.reach(lsn, clock);
        self.since.get_or_insert_with(|| self.clock.boottime());
        if self.fold.len() >= MAX_FOLDED {
            self.bring_up();
        }
    }

    /// Applies what was folded and tells the committer.
    fn bring_up(&mut self) {
        self.since = None;
        let before = self.index.applied();
        if let Err(error) = self.fold.flush(&mut self.index) {
            self.fall_back(&error);
        }
        let applied = self.index.applied();
        if applied > before {
            self.note_figures();
            self.shared.answer(Answer::Applied(applied));
        }
    }

    /// The index failed: from now on one in memory, rebuilt from the log, takes its place, until a new one
    /// on disk is made.
    pub(crate) fn fall_back(&mut self, error: &crate::Error) {
        tracing::error!(%error, "the index on disk failed; one in memory takes its place");
        let upto = self.fold_target();
        let rebuilt = Index::open(Box::new(MemKv::new()), self.shared.store)
            .and_then(|index| crate::engine::replay::rebuild_upto(&self.fs, &self.dir, index, upto, self.shared.seed));
        match rebuilt {
            Ok(index) => {
                self.index = index;
                self.in_memory = true;
                self.note_failed();
                self.note_figures();
                self.fold = Fold::new(self.index.applied(), self.index.clock());
            }
            Err(error) => self.shared.set_died(error),
        }
    }

    fn fold_target(&self) -> Lsn {
        self.fold.batch.applied
    }

    /// Runs a read of the index; on an error once more on the one that takes its place.
    pub(crate) fn read<T: Default>(&mut self, mut read: impl FnMut(&mut Index) -> Result<T>) -> T {
        match read(&mut self.index) {
            Ok(value) => value,
            Err(error) => {
                self.fall_back(&error);
                read(&mut self.index).unwrap_or_else(|error| {
                    self.shared.set_died(error);
                    T::default()
                })
            }
        }
    }

    fn answer(&mut self, ask: Ask) {
        self.bring_up();
        let as_of = self.index.applied();
        match ask {
            Ask::Ready { queue, priority, from, max, now } => {
                let (entries, next) = self.read(|index| index.ready(queue, priority, from, max, now));
                self.shared.answer(Answer::Ready { queue, priority, as_of, entries, next });
            }
            Ask::Events { from, until } => {
                let (entries, reached) = self.read(|index| {
                    index.events(from, until, MAX_EVENTS).map(|(entries, reached)| (entries, Some(reached)))
                });
                self.shared.answer(Answer::Events { as_of, entries, reached: reached.unwrap_or(until) });
            }
            Ask::Get { token, wanted } => {
                let entries =
                    wanted.iter().filter_map(|(queue, id)| self.read(|index| index.get(*queue, *id))).collect();
                self.shared.answer(Answer::Got { token, as_of, entries });
            }
            Ask::Dead { token, queue, from, max } => {
                let wanted = |entry: &Entry| entry.phase == Phase::Dead || entry.origin.is_some();
                let (entries, next) = self.read(|index| index.scan(queue, from, max, &wanted));
                self.shared.answer(Answer::Dead { token, as_of, entries, next });
            }
            Ask::Peek { queue, state, max, now, reply } => {
                let seen = self.peek(queue, state, max, now);
                let _ = reply.send(Ok(Reply::Seen(seen)));
            }
            Ask::Stats { mut stats, reply } => {
                self.complete(&mut stats);
                let _ = reply.send(Ok(Reply::Store(stats)));
            }
            Ask::Checkpoint { durable, clean, crowded } => {
                self.shared.space.note_reclaim(None);
                let result = self.checkpoint(durable, clean);
                if let Err(error) = &result {
                    self.shared.space.note_reclaim(Some(error.to_string()));
                }
                if result.is_ok() && !clean {
                    self.propose_relocation(crowded, 0);
                    self.renew_if_worth_it();
                }
                self.shared.answer(Answer::Checkpointed { lsn: as_of, result });
            }
            Ask::Relocate { crowded, len } => self.propose_relocation(crowded, len as u64),
            Ask::Rebuild { reply } => {
                let _ = reply.send(self.rebuild().map(Reply::Rebuilt));
            }
        }
    }

    fn peek(&mut self, queue: QueueId, state: Option<State>, max: usize, now: Timestamp) -> Vec<Seen> {
        let mut seen = Vec::new();
        let mut from = None;
        loop {
            let wanted = |entry: &Entry| state.is_none_or(|state| entry.state(now) == state);
            let left = max.saturating_sub(seen.len());
            let (entries, next) = self.read(|index| index.scan(queue, from, left, &wanted));
            seen.extend(entries.into_iter().map(|entry| Seen { entry, state: entry.state(now) }));
            from = next;
            if from.is_none() || seen.len() >= max {
                return seen;
            }
        }
    }

    fn checkpoint(&mut self, durable: Lsn, clean: bool) -> Result<Next> {
        if !self.in_memory
            && let Err(error) = self.index.sync()
        {
            self.fall_back(&error);
        }
        let (live_count, live_hash) = self.index.live();
        let first_segment = self.first_needed();
        self.checkpoint.write(Checkpoint {
            generation: 0,
            lsn: self.index.applied(),
            durable_lsn: durable,
            first_segment,
            boot_id: self.clock.boot_id(),
            // The log alone has everything: without an index on disk the next open rebuilds it.
            index_generation: if self.in_memory { NO_INDEX } else { self.index_generation },
            live_count,
            live_hash,
            clock: self.index.clock(),
            clean: clean && self.index.applied() == durable,
        })?;
        self.remove_old_generations();
        // Either slot may be the one that is read next: what both can do without may go.
        let removed = self.shared.segments.remove_before(self.checkpoint.first_segment());
        match removed {
            Ok(0) => {}
            Ok(removed) => tracing::debug!(removed, "segments that nothing live needs were removed"),
            Err(error) => {
                tracing::warn!(%error, "segments that nothing live needs stay; it is tried again");
                self.shared.space.note_reclaim(Some(error.to_string()));
                return Ok(Next::InTime);
            }
        }
        Ok(if self.checkpoint.first_segment() < first_segment { Next::AtOnce } else { Next::NotSoon })
    }
}
