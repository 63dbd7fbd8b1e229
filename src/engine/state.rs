//! The tables of an open store: queues, resident messages, ready windows, timers, counters.
//!
//! ```text
//! queue ─┬─ slots   id ─► resident entry, or the tombstone of one that is gone
//!        ├─ lanes   priority ─► ready: receivable ids below the horizon, all of them
//!        │                      beyond: receivable resident ids at or above it
//!        └─ counts  by state, cold messages included
//! timers    (next event, queue, id) of every resident entry whose event is before the event horizon
//! ```
//!
//! # Invariants
//! 6: a lane's `ready` holds every receivable message below its horizon. 18: `counts` changes with
//! each transition and equals a recount. An entry is evicted only when the index has it as it is.
//!
//! # Locking
//! None: the committer owns it.
//!
//! # Not here
//! What a record does to an entry (`apply.rs`); when the index is asked for more (`commit.rs`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rustc_hash::FxHashMap;

use crate::engine::queues::{Lane, Queue, Slot, Tally};
use crate::engine::stats::QueueMeter;
use crate::options::QueueOptions;
use crate::record::StateSet;
use crate::types::{Entry, Lsn, MessageId, Position, QueueId, QueueName, State, Timestamp};

/// All tables.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) queues: FxHashMap<QueueId, Queue>,
    pub(crate) names: BTreeMap<QueueName, QueueId>,
    timers: BTreeSet<(Timestamp, QueueId, MessageId)>,
    /// Every message whose next event is before this is in `timers`.
    pub(crate) event_horizon: Timestamp,
    changed: VecDeque<(Lsn, QueueId, MessageId)>,
    applied: Lsn,
    window: usize,
    /// Lanes with something ready: what the window is shared among.
    busy_lanes: usize,
    /// Lanes that may need a refill.
    pub(crate) hungry: BTreeSet<(QueueId, i16)>,
    /// Queues in which something may have become receivable since this was last taken.
    woken: Vec<QueueId>,
}

/// A lane's window never gets smaller than this, however many lanes share the whole.
const MIN_WINDOW: usize = 8;
/// Nor larger.
const MAX_WINDOW: usize = 16 * 1024;

impl Tables {
    pub(crate) fn new(window: usize, applied: Lsn, event_horizon: Timestamp) -> Self {
        Self {
            queues: FxHashMap::default(),
            names: BTreeMap::new(),
            timers: BTreeSet::new(),
            event_horizon,
            changed: VecDeque::new(),
            applied,
            window,
            busy_lanes: 0,
            hungry: BTreeSet::new(),
            woken: Vec::new(),
        }
    }

    /// Notes that a waiting receiver of this queue may be served.
    pub(crate) fn wake(&mut self, queue: QueueId) {
        if self.woken.last() != Some(&queue) {
            self.woken.push(queue);
        }
    }

    /// The queues that will be looked at.
    pub(crate) fn woken(&self) -> &[QueueId] {
        &self.woken
    }

    /// The queues to look at for waiting receivers.
    pub(crate) fn take_woken(&mut self) -> Vec<QueueId> {
        let mut woken = std::mem::take(&mut self.woken);
        woken.sort_unstable();
        woken.dedup();
        woken
    }

    pub(crate) fn queue_named(&self, name: &QueueName) -> Option<QueueId> {
        self.names.get(name).copied()
    }

    pub(crate) fn add_queue(
        &mut self,
        id: QueueId,
        name: QueueName,
        options: QueueOptions,
        paused: bool,
        at: Position,
    ) {
        self.names.insert(name.clone(), id);
        self.queues.insert(
            id,
            Queue {
                name,
                options,
                paused,
                defined: at,
                slots: FxHashMap::default(),
                lanes: BTreeMap::new(),
                counts: Tally::default(),
                resident: 0,
                barrier: Lsn::ZERO,
                meter: QueueMeter::default(),
            },
        );
    }

    pub(crate) fn entry(&self, queue: QueueId, id: MessageId) -> Option<&Entry> {
        self.queues.get(&queue)?.entry(id)
    }

    /// Most messages one lane's window may hold.
    pub(crate) fn lane_window(&self) -> usize {
        (self.window / self.busy_lanes.max(1)).clamp(MIN_WINDOW, MAX_WINDOW)
    }

    /// Puts `after` in the place of `before`, which is resident unless it is new. Either may be
    /// missing; they are the same message, perhaps in another queue.
    pub(crate) fn replace(&mut self, before: Option<&Entry>, after: Option<Entry>, lsn: Lsn, now: Timestamp) {
        if let Some(before) = before {
            self.detach(before);
            if after.is_none_or(|after| after.queue != before.queue)
                && let Some(queue) = self.queues.get_mut(&before.queue)
            {
                queue.slots.insert(before.id, Slot::Gone(lsn));
                self.changed.push_back((lsn, before.queue, before.id));
            }
        }
        if let Some(after) = after {
            let state = after.state(now);
            if let Some(queue) = self.queues.get_mut(&after.queue) {
                queue.counts.add(state);
            }
            self.attach(after, state);
            self.changed.push_back((lsn, after.queue, after.id));
        }
    }

    /// Takes a resident entry out of every table and out of the counts.
    fn detach(&mut self, entry: &Entry) {
        let Some(queue) = self.queues.get_mut(&entry.queue) else { return };
        let Some(Slot::Live { counted, .. }) = queue.slots.remove(&entry.id) else { return };
        queue.counts.sub(counted);
        queue.resident -= 1;
        if counted == State::InFlight && queue.options.max_in_flight.is_some() {
            self.wake(entry.queue);
        }
        self.unlist(entry);
    }

    /// Takes an entry out of its lane and the timers.
    fn unlist(&mut self, entry: &Entry) {
        let Some(queue) = self.queues.get_mut(&entry.queue) else { return };
        if let Some(lane) = queue.lanes.get_mut(&Reverse(entry.priority)) {
            let was_ready = lane.ready.remove(&entry.id);
            lane.beyond.remove(&entry.id);
            if was_ready && lane.ready.is_empty() {
                self.busy_lanes = self.busy_lanes.saturating_sub(1);
            }
            if lane.horizon < MessageId::MAX {
                self.hungry.insert((entry.queue, entry.priority));
            } else if lane.is_idle() {
                queue.lanes.remove(&Reverse(entry.priority));
            }
        }
        for at in [entry.visible_at, entry.expires_at] {
            if at < self.event_horizon {
                self.timers.remove(&(at, entry.queue, entry.id));
            }
        }
    }

    /// Makes an entry resident, counted already under `counted`.
    fn attach(&mut self, entry: Entry, counted: State) {
        let window = self.lane_window();
        let Some(queue) = self.queues.get_mut(&entry.queue) else { return };
        if queue.slots.insert(entry.id, Slot::Live { entry, counted }).is_none_or(|slot| matches!(slot, Slot::Gone(_)))
        {
            queue.resident += 1;
        }
        if counted == State::Ready {
            let lane = queue.lanes.entry(Reverse(entry.priority)).or_default();
            let is_last = lane.ready.last().is_none_or(|last| *last < entry.id);
            if lane.horizon == MessageId::MAX && is_last && lane.ready.len() >= window {
                lane.horizon = entry.id;
            }
            if entry.id < lane.horizon {
                if lane.ready.is_empty() {
                    self.busy_lanes += 1;
                }
                lane.ready.insert(entry.id);
                if lane.ready.len() > window + window / 2 {
                    self.trim(entry.queue, entry.priority, window);
                }
            } else {
                lane.beyond.insert(entry.id);
            }
            self.wake(entry.queue);
        }
        if let Some(at) = next_event(&entry, counted)
            && at < self.event_horizon
        {
            self.timers.insert((at, entry.queue, entry.id));
        }
    }

    /// Shortens a lane's window to `window` and lowers its horizon to what was left out.
    fn trim(&mut self, queue_id: QueueId, priority: i16, window: usize) {
        let Some(queue) = self.queues.get_mut(&queue_id) else { return };
        let Some(lane) = queue.lanes.get_mut(&Reverse(priority)) else { return };
        let mut left_out = Vec::new();
        while lane.ready.len() > window
            && let Some(id) = lane.ready.pop_last()
        {
            lane.horizon = id;
            lane.beyond.insert(id);
            left_out.push(id);
        }
        for id in left_out {
            self.evict(queue_id, id);
        }
    }

    /// Lets a resident entry go if the index has it as it is and nothing here needs it.
    pub(crate) fn evict(&mut self, queue_id: QueueId, id: MessageId) {
        let Some(queue) = self.queues.get_mut(&queue_id) else { return };
        let Some(Slot::Live { entry, counted }) = queue.slots.get(&id) else { return };
        let (entry, counted) = (*entry, *counted);
        let timed = next_event(&entry, counted).is_some_and(|at| at < self.event_horizon);
        if entry.lsn > self.applied || timed || counted == State::InFlight {
            return;
        }
        if counted == State::Ready {
            let Some(lane) = queue.lanes.get_mut(&Reverse(entry.priority)) else { return };
            if lane.refilling || lane.ready.contains(&id) {
                return;
            }
            lane.beyond.remove(&id);
            self.hungry.insert((queue_id, entry.priority));
        }
        queue.slots.remove(&id);
        queue.resident -= 1;
    }

    /// The index now has everything up to `applied`.
    pub(crate) fn note_applied(&mut self, applied: Lsn) {
        self.applied = applied;
        while let Some((lsn, queue_id, id)) = self.changed.front().copied()
            && lsn <= applied
        {
            self.changed.pop_front();
            let Some(queue) = self.queues.get_mut(&queue_id) else { continue };
            match queue.slots.get(&id) {
                Some(Slot::Gone(at)) if *at <= applied => {
                    queue.slots.remove(&id);
                }
                Some(Slot::Live { entry, .. }) if entry.lsn <= applied => self.evict(queue_id, id),
                _ => {}
            }
        }
    }

    pub(crate) const fn applied(&self) -> Lsn {
        self.applied
    }

    /// Changes that the index does not have yet.
    pub(crate) fn lag(&self) -> usize {
        self.changed.len()
    }

    /// The first event at or before `now`.
    pub(crate) fn due(&self, now: Timestamp) -> Option<(QueueId, MessageId)> {
        let (at, queue, id) = self.timers.first().copied()?;
        (at <= now).then_some((queue, id))
    }

    /// The entries whose events have come by `now`, at most `most` of them, with their queues.
    pub(crate) fn due_entries(&self, now: Timestamp, most: usize) -> impl Iterator<Item = (&Entry, &Queue)> {
        self.timers.iter().take(most).take_while(move |(at, ..)| *at <= now).filter_map(|(_, queue, id)| {
            let queue = self.queues.get(queue)?;
            Some((queue.entry(*id)?, queue))
        })
    }

    /// Entries that are in flight, at most `most` of them.
    pub(crate) fn in_flight(&self, most: usize) -> Vec<Entry> {
        let slots = self.queues.values().flat_map(|queue| queue.slots.values());
        let mut held: Vec<Entry> = slots
            .filter_map(|slot| match slot {
                Slot::Live { entry, counted: State::InFlight } => Some(*entry),
                _ => None,
            })
            .take(most)
            .collect();
        held.sort_unstable_by_key(|entry| entry.id);
        held
    }

    pub(crate) fn next_timer(&self) -> Option<Timestamp> {
        self.timers.first().map(|(at, ..)| *at)
    }

    /// The event of `entry` has come and left it receivable, without a record.
    pub(crate) fn lapse(&mut self, entry: &Entry, now: Timestamp) {
        self.detach(entry);
        let state = entry.state(now);
        if let Some(queue) = self.queues.get_mut(&entry.queue) {
            queue.counts.add(state);
        }
        self.attach(*entry, state);
        self.evict(entry.queue, entry.id);
    }

    /// Takes in what the index gave, unless the tables know better. Not a change: it is counted.
    pub(crate) fn admit(&mut self, entry: Entry, counted: State) {
        if let Some(queue) = self.queues.get(&entry.queue)
            && !queue.slots.contains_key(&entry.id)
        {
            self.attach(entry, counted);
        }
    }

    /// What the index has of a lane at open: everything, for all that is known.
    pub(crate) fn add_cold_lane(&mut self, queue: QueueId, priority: i16) {
        if let Some(table) = self.queues.get_mut(&queue) {
            table.lanes.entry(Reverse(priority)).or_default().horizon = MessageId::MIN;
            self.hungry.insert((queue, priority));
        }
    }

    /// Takes in an entry whose last deadline had passed when the store went down, so that it is
    /// handled like any deadline that passes. The counts had it as ready.
    pub(crate) fn admit_overdue(&mut self, entry: Entry) {
        if let Some(queue) = self.queues.get_mut(&entry.queue)
            && !queue.slots.contains_key(&entry.id)
        {
            queue.counts.sub(State::Ready);
            queue.counts.add(State::InFlight);
            self.attach(entry, State::InFlight);
        }
    }

    /// A lane's window was refilled: everything receivable below `horizon` is resident now.
    pub(crate) fn raise_horizon(&mut self, queue_id: QueueId, priority: i16, horizon: MessageId) {
        let window = self.lane_window();
        let Some(queue) = self.queues.get_mut(&queue_id) else { return };
        let Some(lane) = queue.lanes.get_mut(&Reverse(priority)) else { return };
        lane.refilling = false;
        // A trim may have lowered it meanwhile. What that left out is still in `beyond`: nothing is
        // evicted from there during a refill.
        lane.horizon = horizon;
        let rest = if horizon == MessageId::MAX { BTreeSet::new() } else { lane.beyond.split_off(&horizon) };
        let mut reached = std::mem::replace(&mut lane.beyond, rest);
        if lane.ready.is_empty() && !reached.is_empty() {
            self.busy_lanes += 1;
        }
        lane.ready.append(&mut reached);
        let still_beyond: Vec<MessageId> = lane.beyond.iter().copied().collect();
        if lane.ready.len() > window + window / 2 {
            self.trim(queue_id, priority, window);
        }
        for id in still_beyond {
            self.evict(queue_id, id);
        }
        self.wake(queue_id);
        if let Some(queue) = self.queues.get_mut(&queue_id)
            && queue.lanes.get(&Reverse(priority)).is_some_and(Lane::is_idle)
        {
            queue.lanes.remove(&Reverse(priority));
        }
    }

    /// Moves the event horizon; what the index has before it is admitted afterwards.
    pub(crate) fn set_event_horizon(&mut self, horizon: Timestamp) {
        let before = std::mem::replace(&mut self.event_horizon, horizon);
        if horizon <= before {
            return;
        }
        // Resident entries with an event in between are not in the timers yet.
        let timed: Vec<_> = self
            .queues
            .iter()
            .flat_map(|(queue, table)| table.slots.iter().map(move |(id, slot)| (*queue, *id, slot)))
            .filter_map(|(queue, id, slot)| match slot {
                Slot::Live { entry, counted } => next_event(entry, *counted).map(|at| (at, queue, id)),
                Slot::Gone(_) => None,
            })
            .filter(|(at, ..)| (before..horizon).contains(at))
            .collect();
        self.timers.extend(timed);
    }

    /// Removes everything in `states` from a queue and returns how many that were, cold ones
    /// included.
    pub(crate) fn purge(&mut self, queue_id: QueueId, states: StateSet, lsn: Lsn) -> u64 {
        let Some(queue) = self.queues.get_mut(&queue_id) else { return 0 };
        let mut removed = 0;
        for state in State::ALL.into_iter().filter(|state| states.contains(*state)) {
            removed += queue.counts.get(state);
        }
        queue.barrier = lsn;
        let gone: Vec<Entry> = queue
            .slots
            .values()
            .filter_map(|slot| match slot {
                Slot::Live { entry, counted } if states.contains(*counted) => Some(*entry),
                _ => None,
            })
            .collect();
        for entry in &gone {
            self.detach(entry);
        }
        let Some(queue) = self.queues.get_mut(&queue_id) else { return removed };
        for entry in &gone {
            queue.slots.insert(entry.id, Slot::Gone(lsn));
            self.changed.push_back((lsn, queue_id, entry.id));
        }
        for state in State::ALL.into_iter().filter(|state| states.contains(*state)) {
            queue.counts.set(state, 0);
        }
        if states.contains(State::Ready) {
            // Nothing receivable is cold any more.
            queue.lanes.values_mut().for_each(|lane| lane.horizon = MessageId::MAX);
            queue.lanes.retain(|_, lane| !lane.is_idle());
        }
        removed
    }

    /// Forgets a queue that was purged before.
    pub(crate) fn remove_queue(&mut self, id: QueueId) {
        if let Some(queue) = self.queues.remove(&id) {
            self.names.remove(&queue.name);
        }
    }
}

/// When an entry next changes its state without a call: its deadline or delay passes, or it expires.
/// Told from the state the tables have it in, so that an event that has come and was not handled yet
/// stays one.
fn next_event(entry: &Entry, counted: State) -> Option<Timestamp> {
    let expiry = (entry.expires_at < Timestamp::MAX).then_some(entry.expires_at);
    match counted {
        State::Dead => None,
        State::InFlight => Some(entry.visible_at),
        State::Delayed => Some(expiry.map_or(entry.visible_at, |at| at.min(entry.visible_at))),
        State::Ready => expiry,
    }
}
