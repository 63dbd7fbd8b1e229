//! One queue's table: its resident messages, its lanes, its counters. Drawing in `state.rs`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::engine::stats::QueueMeter;
use crate::options::QueueOptions;
use crate::types::{Entry, Lsn, MessageId, Position, QueueName, State, Timestamp};

/// Messages by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally([u64; 4]);

impl Tally {
    const fn index(state: State) -> usize {
        match state {
            State::Ready => 0,
            State::Delayed => 1,
            State::InFlight => 2,
            State::Dead => 3,
        }
    }

    pub(crate) fn get(&self, state: State) -> u64 {
        self.0.get(Self::index(state)).copied().unwrap_or(0)
    }

    pub(crate) fn set(&mut self, state: State, count: u64) {
        if let Some(place) = self.0.get_mut(Self::index(state)) {
            *place = count;
        }
    }

    pub(crate) fn add(&mut self, state: State) {
        self.set(state, self.get(state) + 1);
    }

    pub(crate) fn sub(&mut self, state: State) {
        let count = self.get(state).checked_sub(1);
        assert!(count.is_some(), "a counter of {state} messages would go below zero");
        self.set(state, count.unwrap_or(0));
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// A place in a queue's table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot {
    /// Resident; `counted` is the state under which it stands in the queue's counts.
    Live { entry: Entry, counted: State },
    /// Gone by the record with this LSN. Kept until the index knows, so that an older answer of the
    /// index does not bring it back.
    Gone(Lsn),
}

/// The messages of one priority of one queue.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) ready: BTreeSet<MessageId>,
    pub(crate) beyond: BTreeSet<MessageId>,
    pub(crate) horizon: MessageId,
    /// The index was asked for more; until it answers nothing in `beyond` may be evicted.
    pub(crate) refilling: bool,
}

impl Default for Lane {
    fn default() -> Self {
        Self { ready: BTreeSet::new(), beyond: BTreeSet::new(), horizon: MessageId::MAX, refilling: false }
    }
}

impl Lane {
    pub(crate) fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.beyond.is_empty() && self.horizon == MessageId::MAX && !self.refilling
    }
}

/// One queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) name: QueueName,
    pub(crate) options: QueueOptions,
    pub(crate) paused: bool,
    /// The record with its whole definition.
    pub(crate) defined: Position,
    pub(crate) slots: FxHashMap<MessageId, Slot>,
    pub(crate) lanes: BTreeMap<Reverse<i16>, Lane>,
    pub(crate) counts: Tally,
    /// Live entries in `slots`.
    pub(crate) resident: u64,
    /// Answers of the index from before this are void: the last purge.
    pub(crate) barrier: Lsn,
    pub(crate) meter: QueueMeter,
}

impl Queue {
    pub(crate) fn entry(&self, id: MessageId) -> Option<&Entry> {
        match self.slots.get(&id)? {
            Slot::Live { entry, .. } => Some(entry),
            Slot::Gone(_) => None,
        }
    }

    /// Whether the tables alone can tell if the message exists.
    pub(crate) fn knows(&self, id: MessageId) -> bool {
        self.slots.contains_key(&id) || self.counts.total() == self.resident
    }

    /// A resident entry, with the state under which it is counted.
    pub(crate) fn resident_entry(&self, id: MessageId) -> Option<(Entry, State)> {
        match self.slots.get(&id)? {
            Slot::Live { entry, counted } => Some((*entry, *counted)),
            Slot::Gone(_) => None,
        }
    }

    /// The receivable message that was sent first, as far as the windows reach.
    pub(crate) fn oldest_ready(&self) -> Option<&Entry> {
        self.lanes.values().filter_map(|lane| lane.ready.first()).min().and_then(|id| self.entry(*id))
    }

    /// When the longest-held message in flight was handed out.
    pub(crate) fn oldest_in_flight(&self) -> Option<Timestamp> {
        let held = self.slots.values().filter_map(|slot| match slot {
            Slot::Live { entry, counted: State::InFlight } => Some(entry.received_at),
            _ => None,
        });
        held.min()
    }

    /// How many more may be in flight.
    pub(crate) fn room_in_flight(&self) -> usize {
        let limit = self.options.max_in_flight.map_or(u64::MAX, u64::from);
        usize::try_from(limit.saturating_sub(self.counts.get(State::InFlight))).unwrap_or(usize::MAX)
    }

    /// The next message in order, or that the index must be asked first.
    pub(crate) fn head(&self) -> Head {
        for (Reverse(priority), lane) in &self.lanes {
            if let Some(id) = lane.ready.first() {
                return Head::Ready(*id);
            }
            if lane.horizon < MessageId::MAX {
                return Head::Cold { priority: *priority };
            }
        }
        Head::Empty
    }
}

/// What stands first in a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Head {
    Ready(MessageId),
    /// Unknown before the lane's window is refilled.
    Cold {
        priority: i16,
    },
    Empty,
}
