//! The committer: the one thread that decides, writes and answers.
//!
//! ```text
//! turn:  take the inbox ─► answers of the applier into the tables
//!        ─► room in the log for everything that may be written ─► hand-outs given back
//!        ─► timers ─► requests in order ─► waiting receivers          each: decide, encode, apply
//!        ─► one write, one sync ─► answer callers ─► changes to the applier
//! ```
//!
//! # Invariants
//! 10: what one request writes is in one frame. 11: LSNs and the clock only rise. 16: after poison
//! nothing is written and nothing that would have been is acknowledged.
//!
//! # Crashes
//! Before the sync nobody was told anything. After it, recovery finds the frame.
//!
//! # Locking
//! The inbox for a swap; nothing over I/O.
//!
//! # Not here
//! What each request does: `decide.rs`. Opening: `open.rs`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use rustc_hash::FxHashSet;

use crate::engine::applier::{Answer, Ask, Change, Task, Tasks};
use crate::engine::apply::{Written, transition};
use crate::engine::checkpoint::{CheckpointPlan, Closing, Turn};
use crate::engine::decide::Parked;
use crate::engine::group::Group;
use crate::engine::reclaim::Relocation;
use crate::engine::redrive::{Redrive, Slice};
use crate::engine::state::Tables;
use crate::engine::wait::{Command, Inbox, Reply, Request, Shared};
use crate::engine::waiters::Waiters;
use crate::env::Clock;
use crate::error::{Error, Result};
use crate::log::{FRAME_HEADER_LEN, Log};
use crate::options::Durability;
use crate::record::{self, Record};
use crate::types::{Entry, Lsn, MessageId, Position, QueueId, QueueName, Receipt, State, Timestamp};

/// Figures since open.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) frames: u64,
    pub(crate) records: u64,
    /// Bytes of frames that were only carried to the log's end.
    pub(crate) carried_len: u64,
    pub(crate) sync_times: Option<Histogram<u64>>,
}

/// See the module.
pub(crate) struct Committer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) tables: Tables,
    pub(crate) waiters: Waiters,
    pub(crate) group: Group,
    pub(crate) parked: BTreeMap<u64, Parked>,
    pub(crate) next_token: u64,
    pub(crate) redrives: BTreeMap<u64, Redrive>,
    pub(crate) slices: Vec<Slice>,
    pub(crate) relocation: Relocation,
    /// Bytes that were carried since anybody else wrote.
    pub(crate) idle_carried: u64,
    /// When somebody last asked for something.
    pub(crate) last_asked: Duration,
    /// Hand-outs that nobody saw and that are not given back yet.
    pub(crate) given_back: Vec<Receipt>,
    /// Messages that the index does not have either: known for this turn.
    pub(crate) absent: FxHashSet<(QueueId, MessageId)>,
    /// Messages that were made resident for this turn only.
    pub(crate) borrowed: Vec<(QueueId, MessageId)>,
    /// Queues with more to do than fitted into this turn's frame.
    pub(crate) unfinished: Vec<QueueId>,
    pub(crate) meter: Meter,
    pub(crate) poison: Option<Error>,
    pub(crate) log: Log,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) leftover: VecDeque<Request>,
    /// The active segment, and how many messages were sent into it.
    pub(crate) sent_here: (u32, u64),
    /// A send of so many bytes was refused for lack of space: getting some back is urgent.
    pub(crate) crowded_by: Option<u64>,
    /// Written but not yet given to the applier, because not yet durable.
    pub(crate) unsynced: Vec<Change>,
    /// The applier has been given everything up to here.
    handed_over: Lsn,
    pub(crate) events_asked: bool,
    pub(crate) last_write: Duration,
    pub(crate) last_sync: Duration,
    /// The last frame is not vouched for by another one yet.
    pub(crate) unmarked: bool,
    pub(crate) checkpoint: CheckpointPlan,
    pub(crate) closing: Closing,
    /// The store is being closed.
    pub(crate) ending: bool,
    /// Until when a store that is being closed waits for holders to settle.
    pub(crate) close_at: Option<Timestamp>,
    dice: u64,
}

/// How far ahead of the clock events are brought into memory, and when the next stretch is asked for.
const EVENT_STRETCH: Duration = Duration::from_secs(60);
const EVENT_AHEAD: Duration = Duration::from_secs(20);
/// Changes the index may lag behind before the committer waits for it.
const MAX_INDEX_LAG: usize = 2_000_000;

impl Committer {
    pub(crate) fn new(
        shared: Arc<Shared>,
        tasks: Arc<Tasks>,
        tables: Tables,
        log: Log,
        clock: Arc<dyn Clock>,
        checkpoint_lsn: Lsn,
    ) -> Self {
        let boot = clock.boottime();
        Self {
            checkpoint: CheckpointPlan {
                asked: false,
                hurry: false,
                retry: false,
                lsn: checkpoint_lsn,
                at: boot,
                written_len: 0,
            },
            handed_over: log.durable_lsn(),
            dice: shared.clock.now().0 ^ u64::from(shared.seed),
            shared,
            tasks,
            tables,
            log,
            clock,
            waiters: Waiters::default(),
            group: Group::new(),
            parked: BTreeMap::new(),
            next_token: 0,
            redrives: BTreeMap::new(),
            slices: Vec::new(),
            relocation: Relocation::none(),
            idle_carried: 0,
            last_asked: boot,
            given_back: Vec::new(),
            absent: FxHashSet::default(),
            borrowed: Vec::new(),
            unfinished: Vec::new(),
            meter: Meter { frames: 0, records: 0, carried_len: 0, sync_times: Histogram::new(2).ok() },
            poison: None,
            leftover: VecDeque::new(),
            sent_here: (0, 0),
            crowded_by: None,
            unsynced: Vec::new(),
            events_asked: false,
            last_write: boot,
            last_sync: boot,
            unmarked: false,
            closing: Closing::No,
            ending: false,
            close_at: None,
        }
    }

    /// Does everything that can be done now.
    pub(crate) fn turn(&mut self) -> Turn {
        let inbox = {
            let mut inbox = self.shared.inbox();
            let closing = inbox.closing;
            std::mem::replace(&mut *inbox, Inbox { closing, ..Inbox::default() })
        };
        self.leftover.extend(inbox.requests);
        self.given_back.extend(inbox.given_back);
        let now = self.now();
        self.group.reset(now);
        for queue in std::mem::take(&mut self.unfinished) {
            self.tables.wake(queue);
        }
        let retries = self.absorb(inbox.answers);
        let batch = self.make_room(retries);
        if !self.group.alone {
            self.give_back();
            self.fire_timers();
        }
        batch.into_iter().for_each(|request| self.decide(request));
        self.redrive_slices();
        if !self.group.alone {
            self.dispatch();
            self.relocate();
            self.expire_waiters();
        }
        self.commit();
        self.publish();
        self.hand_over();
        self.ask_for_more();
        self.forget_borrowed();
        self.keep_house(inbox.closing);
        self.plan()
    }

    /// More is to be done in this queue than fits into the frame: in the next turn, which follows
    /// at once.
    pub(crate) fn again(&mut self, queue: QueueId) {
        self.unfinished.push(queue);
    }

    pub(crate) fn is_woken_again(&self, queue: QueueId) -> bool {
        self.unfinished.contains(&queue)
    }

    fn forget_borrowed(&mut self) {
        self.absent.clear();
        for (queue, id) in std::mem::take(&mut self.borrowed) {
            self.tables.evict(queue, id);
        }
    }

    /// The store's clock, held back until everything that happens by then is in memory.
    fn now(&self) -> Timestamp {
        self.shared.clock.now().min(Timestamp(self.tables.event_horizon.0.saturating_sub(1)))
    }

    /// Takes in what the applier answered. Returns the requests that were parked for it.
    fn absorb(&mut self, answers: VecDeque<Answer>) -> Vec<Request> {
        let mut retries = Vec::new();
        for answer in answers {
            match answer {
                Answer::Applied(lsn) => self.tables.note_applied(lsn),
                Answer::Ready { queue, priority, as_of, entries, next } => {
                    self.refilled(queue, priority, as_of, entries, next);
                }
                Answer::Events { as_of, entries, reached } => self.take_events(as_of, entries, reached),
                Answer::Got { token, as_of, entries } => retries.extend(self.fetched(token, as_of, entries)),
                Answer::Dead { token, as_of, entries, next } => {
                    self.dead_fetched(token, as_of, entries, next);
                }
                Answer::Relocate(load) => self.plan_relocation(load),
                Answer::Renewed => self.checkpoint.hurry = true,
                Answer::Checkpointed { lsn, result } => self.checkpointed(lsn, result),
            }
        }
        retries
    }

    /// Moves the event horizon over what comes next. Where a queue was purged since, it is not known which of it
    /// is left, so the index is asked again.
    fn take_events(&mut self, as_of: Lsn, entries: Vec<Entry>, reached: Timestamp) {
        self.events_asked = false;
        let is_void = |entry: &Entry| self.tables.queues.get(&entry.queue).is_some_and(|queue| as_of < queue.barrier);
        if entries.iter().any(is_void) {
            return;
        }
        self.tables.set_event_horizon(reached);
        for entry in entries {
            self.admit(entry, as_of);
        }
    }

    /// Makes an entry resident that the index gave as of an LSN, unless it was purged since.
    pub(crate) fn admit(&mut self, entry: Entry, as_of: Lsn) {
        let current = self.tables.queues.get(&entry.queue).is_some_and(|queue| as_of >= queue.barrier);
        if current {
            self.tables.admit(entry, entry.state(self.group.now));
        }
    }

    fn refilled(&mut self, queue: QueueId, priority: i16, as_of: Lsn, entries: Vec<Entry>, next: Option<MessageId>) {
        let Some(table) = self.tables.queues.get_mut(&queue) else { return };
        if as_of < table.barrier {
            if let Some(lane) = table.lanes.get_mut(&std::cmp::Reverse(priority)) {
                let horizon = lane.horizon;
                self.tables.raise_horizon(queue, priority, horizon);
                self.tables.hungry.insert((queue, priority));
            }
            return;
        }
        for entry in entries {
            self.admit(entry, as_of);
        }
        self.tables.raise_horizon(queue, priority, next.unwrap_or(MessageId::MAX));
        self.tables.hungry.insert((queue, priority));
    }

    /// Writes one record and applies it. The caller has made sure that it fits.
    pub(crate) fn write(&mut self, record: &Record, body: &[u8]) -> Lsn {
        let lsn = self.log.next_lsn().plus(self.group.records.into());
        let range = record::encode(record, body, lsn, self.shared.seed, &mut self.group.frame);
        self.group.records += 1;
        let field = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let at = Position {
            segment: self.group.start.segment,
            offset: self.group.start.payload_offset.saturating_add(field(range.start - FRAME_HEADER_LEN)),
            len: field(range.len()),
        };
        self.apply(record, Written { lsn, at, clock: self.group.now });
        lsn
    }

    /// Marks that what was written for the current request must be synced before the answer.
    pub(crate) fn require_sync(&mut self) {
        self.group.strict = true;
    }

    fn apply(&mut self, record: &Record, written: Written) {
        match record {
            Record::QueueCreated { name, options } => {
                let id = QueueId(written.lsn.0);
                if let Ok(name) = QueueName::new(name) {
                    self.tables.add_queue(id, name, options.clone(), false, written.at);
                }
                self.note_queue(id);
            }
            Record::QueueConfigured { queue, options, paused, .. } => {
                if let Some(table) = self.tables.queues.get_mut(queue) {
                    table.options = options.clone();
                    table.paused = *paused;
                    table.defined = written.at;
                }
                self.note_queue(*queue);
            }
            Record::QueuePaused { queue, paused } => {
                if let Some(table) = self.tables.queues.get_mut(queue) {
                    table.paused = *paused;
                }
                self.tables.wake(*queue);
                self.note_queue(*queue);
            }
            Record::QueueDeleted { queue } => {
                let states = record::StateSet::of(&State::ALL);
                self.tables.purge(*queue, states, written.lsn);
                self.tables.remove_queue(*queue);
                self.group.changes.push(Change::Purge { queue: *queue, states, at: written.clock });
                self.group.changes.push(Change::Queue { id: *queue, row: None });
            }
            Record::Purged { queue, states } => {
                self.tables.purge(*queue, *states, written.lsn);
                self.group.changes.push(Change::Purge { queue: *queue, states: *states, at: written.clock });
            }
            Record::Mark | Record::Clean => {}
            about_message => self.apply_to_message(about_message, written),
        }
    }

    fn apply_to_message(&mut self, record: &Record, written: Written) {
        let (Some(queue), Some(id)) = record.subject(written.lsn) else { return };
        self.relocation.touch(id);
        let before = self.tables.entry(queue, id).copied();
        let after = transition(before, record, written);
        self.tables.replace(before.as_ref(), after, written.lsn, written.clock);
        self.group.changes.push(Change::Message { before: before.as_ref().map(Entry::place), after });
    }

    fn note_queue(&mut self, id: QueueId) {
        if let Some(queue) = self.tables.queues.get(&id) {
            let row = crate::engine::replay::queue_row(id, queue, self.shared.seed);
            self.group.changes.push(Change::Queue { id, row: Some(row) });
        }
    }

    /// Writes and syncs the frame.
    fn commit(&mut self) {
        if self.group.records == 0 {
            return;
        }
        self.meter.frames += 1;
        self.meter.records += u64::from(self.group.records);
        let (frame, records, now) = (&mut self.group.frame, self.group.records, self.group.now);
        let written = match self.closing {
            Closing::Settling => self.log.append_clean(frame, records, now),
            Closing::No | Closing::Done => self.log.append(frame, records, now),
        };
        self.last_write = self.clock.boottime();
        self.unmarked = true;
        self.unsynced.append(&mut self.group.changes);
        let result = match (written, self.shared.durability()) {
            (Ok(_), Durability::Always) if self.group.strict => self.sync(),
            (written, _) => written.map(|_| ()),
        };
        if let Err(error) = result {
            self.poison(error);
        }
    }

    /// Makes everything written durable.
    pub(crate) fn sync(&mut self) -> Result<()> {
        if self.log.durable_lsn() < self.log.written_lsn() {
            let before = self.clock.boottime();
            self.log.sync()?;
            let after = self.clock.boottime();
            self.last_sync = after;
            if let Some(times) = &mut self.meter.sync_times {
                let micros = after.saturating_sub(before).as_micros();
                // It grows with what is recorded; without memory for that the sample is left out.
                let _ = times.record(u64::try_from(micros).unwrap_or(u64::MAX).max(1));
            }
        }
        Ok(())
    }

    /// Gives the applier what is durable by now.
    pub(crate) fn hand_over(&mut self) {
        let lsn = self.log.durable_lsn();
        if lsn == self.log.written_lsn() && lsn > self.handed_over {
            self.handed_over = lsn;
            let changes = std::mem::take(&mut self.unsynced);
            self.tasks.push(Task::Changes { changes, lsn, clock: self.group.now });
        }
    }

    /// From now on nothing is written.
    pub(crate) fn poison(&mut self, error: Error) {
        if self.poison.is_none() {
            tracing::error!(%error, "a write failed: the store takes no more writes until it is opened again");
            self.poison = Some(error);
        }
    }

    /// Answers everyone whose request is done.
    fn publish(&mut self) {
        let failed = self.group.records > 0 && self.poison.is_some();
        for (to, reply, _room) in std::mem::take(&mut self.group.replies) {
            let reply = match &self.poison {
                // Whether it took effect is not known; only what was refused anyway is sure.
                Some(cause) if failed && reply.is_ok() => Err(Error::poisoned(cause)),
                _ => reply,
            };
            // Deliveries that nobody takes give themselves back when they are dropped.
            let _ = to.send(reply);
        }
        for to in std::mem::take(&mut self.group.syncs) {
            let synced = match &self.poison {
                Some(cause) => Err(Error::poisoned(cause)),
                None => self.sync().inspect_err(|error| self.poison = Some(error.clone())),
            };
            let _ = to.send(synced.map(|()| Reply::Durable(self.log.durable_lsn())));
        }
    }

    pub(crate) fn ask_index(&mut self, ask: Ask) {
        // A question is answered as of everything decided so far, so that must be durable.
        if self.poison.is_none()
            && let Err(error) = self.sync()
        {
            self.poison(error);
        }
        self.hand_over();
        self.tasks.push(Task::Ask(ask));
    }

    /// Asks the index for what will be needed soon.
    fn ask_for_more(&mut self) {
        for ask in std::mem::take(&mut self.group.asks) {
            self.ask_index(ask);
        }
        let window = self.tables.lane_window();
        for (queue, priority) in std::mem::take(&mut self.tables.hungry) {
            let lane = self.tables.queues.get_mut(&queue).and_then(|q| q.lanes.get_mut(&std::cmp::Reverse(priority)));
            let Some(lane) = lane else { continue };
            if lane.refilling || lane.horizon == MessageId::MAX || lane.ready.len() > window / 2 {
                continue;
            }
            lane.refilling = true;
            let (from, max) = (lane.horizon, window - lane.ready.len());
            self.ask_index(Ask::Ready { queue, priority, from, max, now: self.group.now });
        }
        let from = self.tables.event_horizon;
        if !self.events_asked && self.shared.clock.now().after(EVENT_AHEAD) >= from {
            self.events_asked = true;
            let until = self.shared.clock.now().after(EVENT_STRETCH);
            // From here on, what is new belongs into the timers too; what is older comes with the answer.
            self.ask_index(Ask::Events { from, until });
        }
    }

    /// Begins a frame that no caller waits for.
    pub(crate) fn begin_alone(&mut self, room: usize) {
        let now = self.now();
        self.group.reset(now);
        self.reserve(0, room, 0);
    }

    /// Writes it.
    pub(crate) fn end_alone(&mut self) {
        self.group.strict = true;
        self.commit();
    }

    /// Writes a frame of one record that no caller waits for.
    pub(crate) fn write_alone(&mut self, record: &Record) {
        self.begin_alone(record::FIXED_BOUND);
        if self.group.refusal.is_none() {
            self.write(record, &[]);
            self.end_alone();
        }
    }

    /// A number that differs each time, for jitter.
    pub(crate) fn dice(&mut self) -> u64 {
        // Weyl sequence with a finaliser (Steele, Lea, Flood 2014: SplitMix64).
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.dice ^ (self.dice >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The thread's body, until the store is closed.
    pub(crate) fn run(&mut self) {
        loop {
            let turn = self.turn();
            if turn.done || self.shared.has_died() {
                return;
            }
            if self.tables.lag() > MAX_INDEX_LAG {
                // The index is far behind: taking more would only fill the memory.
                self.shared.wait_for_answer(Duration::from_millis(100));
            } else if !turn.wake_in.is_zero() {
                self.shared.wait_for_work(self.clock.sleep_for(turn.wake_in));
            }
        }
    }

    pub(crate) fn command_writes(command: &Command) -> bool {
        !matches!(
            command,
            Command::Peek { .. }
                | Command::Find(_)
                | Command::QueueStats(_)
                | Command::Queues
                | Command::StoreStats
                | Command::RebuildIndex
                | Command::Sync
        )
    }
}
