//! The committer: the one thread that decides, writes and answers.
//!
//! ```text
//! turn:  take the inbox ─► answers of the applier into the tables
//!        ─► room in the log for everything that may be written ─► hand-outs given back
//!        ─► timers ─► requests in order ─► waiting receivers          each: decide, encode, apply
//!        ─► one write, one sync ─► answer callers ─► changes to the applier
//! ```
//!
//! While one caller is there, the committer syncs itself. With more, the log's syncer does it while the
//! next turn is decided; one sync covers all frames that are written by then:
//!
//! ```text
//! committer  decide 1 · write 1 · decide 2 · write 2 ·  answer 1 · decide 3 · write 3 · answer 2
//! syncer                        └──── fdatasync 1 ────┘└──── fdatasync 2 ────┘
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

use crate::engine::applier::{Answer, Ask, Change, Tasks};
use crate::engine::apply::{Written, transition};
use crate::engine::checkpoint::{CheckpointPlan, Closing, Turn};
use crate::engine::decide::Parked;
use crate::engine::group::Group;
use crate::engine::pending::Pending;
use crate::engine::reclaim::Relocation;
use crate::engine::redrive::{Redrive, Slice};
use crate::engine::state::Tables;
use crate::engine::wait::{Command, Request, Shared};
use crate::engine::waiters::Waiters;
use crate::env::Clock;
use crate::error::Error;
use crate::log::{FRAME_HEADER_LEN, Log};
use crate::options::Durability;
use crate::record::{self, Record};
use crate::types::{Entry, Lsn, MessageId, Position, QueueId, QueueName, Receipt, State, Timestamp};

/// Figures since open.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) frames: u64,
    pub(crate) records: u64,
    pub(crate) syncs: u64,
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
    /// What waits for the log to be durable.
    pub(crate) pending: Pending,
    /// The applier has been given everything up to here.
    pub(crate) handed_over: Lsn,
    /// When the syncer syncs in its place.
    pub(crate) overlap: Overlap,
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

/// When the log's syncer syncs in the committer's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Overlap {
    /// While the store is opened there is no syncer yet.
    Never,
    /// When more than one caller waits: for one alone it would only cost a change of threads.
    Crowd,
    /// For tests.
    #[cfg_attr(not(any(test, feature = "testing")), expect(dead_code))]
    Always,
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
            meter: Meter { frames: 0, records: 0, syncs: 0, carried_len: 0, sync_times: Histogram::new(2).ok() },
            poison: None,
            leftover: VecDeque::new(),
            sent_here: (0, 0),
            crowded_by: None,
            pending: Pending::new(),
            overlap: Overlap::Never,
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
        let inbox = self.shared.inbox().take();
        self.leftover.extend(inbox.requests);
        self.given_back.extend(inbox.given_back);
        self.absorb_syncs();
        self.release();
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
        self.ask_for_more();
        self.forget_borrowed();
        self.keep_house(inbox.closing);
        self.sync_wanted();
        self.release();
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

    /// Writes the frame. What it gathered waits until it is durable, as far as it must be.
    fn commit(&mut self) {
        let records = self.group.records;
        let last = self.log.written_lsn().plus(records.into());
        let is_strict = self.group.strict && self.shared.durability() == Durability::Always;
        self.pending.launch(&mut self.group, last, records > 0 && is_strict);
        if records == 0 {
            return;
        }
        self.meter.frames += 1;
        self.meter.records += u64::from(records);
        let (frame, now) = (&mut self.group.frame, self.group.now);
        let written = match self.closing {
            Closing::Settling => self.log.append_clean(frame, records, now),
            Closing::No | Closing::Done => self.log.append(frame, records, now),
        };
        self.last_write = self.clock.boottime();
        self.unmarked = true;
        if let Err(error) = written {
            self.poison(error);
        }
    }

    /// Has the log synced if anybody waits for that.
    fn sync_wanted(&mut self) {
        if self.pending.wanted() > self.log.durable_lsn() {
            self.sync();
        }
    }

    /// Makes everything written durable, now or soon.
    pub(crate) fn sync(&mut self) {
        if self.poison.is_some() || self.log.durable_lsn() >= self.log.written_lsn() {
            return;
        }
        let is_behind = match self.overlap {
            Overlap::Never => false,
            Overlap::Crowd => self.pending.callers() > 1 || self.log.is_syncing(),
            Overlap::Always => true,
        };
        if is_behind {
            return self.log.sync_behind();
        }
        let before = self.clock.boottime();
        match self.log.sync() {
            Ok(_) => self.note_sync(self.clock.boottime().saturating_sub(before)),
            Err(error) => self.poison(error),
        }
    }

    fn note_sync(&mut self, took: Duration) {
        self.last_sync = self.clock.boottime();
        self.meter.syncs += 1;
        if let Some(times) = &mut self.meter.sync_times {
            // It grows with what is recorded; without memory for that the sample is left out.
            let _ = times.record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1));
        }
    }

    /// Takes in what the syncer has done.
    fn absorb_syncs(&mut self) {
        if self.poison.is_some() {
            return;
        }
        match self.log.absorb_syncs() {
            Ok(times) => times.into_iter().for_each(|took| self.note_sync(took)),
            Err(error) => self.poison(error),
        }
    }

    /// From now on nothing is written.
    pub(crate) fn poison(&mut self, error: Error) {
        if self.poison.is_none() {
            tracing::error!(%error, "a write failed: the store takes no more writes until it is opened again");
            self.poison = Some(error);
        }
    }

    /// Asks the index, as of everything decided so far: when that is durable.
    pub(crate) fn ask_index(&mut self, ask: Ask) {
        self.pending.ask(ask, self.log.written_lsn(), self.group.now);
    }

    /// Asks the index for what will be needed soon.
    fn ask_for_more(&mut self) {
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
        self.sync_wanted();
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
                self.shared.wait_for_work(self.clock.sleep_for(turn.wake_in), self.worth_waking());
            }
        }
    }

    /// Requests that are worth a turn: during a sync, half as many as wait for it, so that the next one has as
    /// much to do and few frames are written for it.
    fn worth_waking(&self) -> usize {
        if self.log.is_syncing() { (self.pending.callers() / 2).max(1) } else { 1 }
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
