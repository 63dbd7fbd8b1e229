//! What the store knows of one message besides its body: the row of the index and of the tables.

use crate::types::{Lsn, MessageId, Position, QueueId, Timestamp};

/// The durable part of a message's state. Together with the clock it gives the [`State`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Phase {
    /// Waits in its queue, at once or from `visible_at`.
    Queued,
    /// Handed out; the receipt of its epoch still counts. After `visible_at` it is receivable again.
    Held,
    /// Set aside.
    Dead,
}

/// The state of a message as users see it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum State {
    /// Receivable now, unless its queue is paused.
    Ready,
    /// Receivable from `visible_at`.
    Delayed,
    /// Handed out, its deadline not passed.
    InFlight,
    /// Set aside, until it is redriven or purged.
    Dead,
}

impl State {
    /// All states, in the order in which they are reported.
    pub const ALL: [Self; 4] = [Self::Ready, Self::Delayed, Self::InFlight, Self::Dead];

    /// The state as one lower-case word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Delayed => "delayed",
            Self::InFlight => "in_flight",
            Self::Dead => "dead",
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for State {
    type Err = crate::Error;

    fn from_str(text: &str) -> crate::error::Result<Self> {
        Self::ALL
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| crate::Error::invalid(format!("state {text:?} is none of ready, delayed, in_flight, dead")))
    }
}

/// One live message. Its body and attributes stand in the log at `body`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) id: MessageId,
    pub(crate) queue: QueueId,
    pub(crate) priority: i16,
    pub(crate) phase: Phase,
    /// The queue it came from by a dead-letter move.
    pub(crate) origin: Option<QueueId>,
    /// Raised by 1 at each hand-out, never reset.
    pub(crate) epoch: u32,
    /// Hand-outs for life.
    pub(crate) receive_count: u32,
    /// Hand-outs that count towards `max_attempts`.
    pub(crate) attempts: u32,
    pub(crate) sent_at: Timestamp,
    pub(crate) visible_at: Timestamp,
    /// `Timestamp::MAX` when it never expires.
    pub(crate) expires_at: Timestamp,
    /// First hand-out; `Timestamp::ZERO` before it.
    pub(crate) first_received_at: Timestamp,
    /// Last hand-out; `Timestamp::ZERO` before the first.
    pub(crate) received_at: Timestamp,
    /// The record with the body: `Sent` or `Relocated`.
    pub(crate) body: Position,
    /// The record with the last error text or the dead reason; `Position::NONE` without one.
    pub(crate) detail: Position,
    /// The last record that changed this entry.
    pub(crate) lsn: Lsn,
}

impl Entry {
    pub(crate) fn state(&self, now: Timestamp) -> State {
        match self.phase {
            Phase::Dead => State::Dead,
            Phase::Held if self.visible_at > now => State::InFlight,
            Phase::Queued if self.visible_at > now => State::Delayed,
            Phase::Queued | Phase::Held => State::Ready,
        }
    }

    pub(crate) fn is_receivable(&self, now: Timestamp) -> bool {
        self.phase != Phase::Dead && self.visible_at <= now
    }
}

/// Where a message stands in the index: its queue, its lane (priority), its place in the lane.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Place {
    pub(crate) queue: QueueId,
    pub(crate) priority: i16,
    pub(crate) id: MessageId,
}

impl Entry {
    pub(crate) const fn place(&self) -> Place {
        Place { queue: self.queue, priority: self.priority, id: self.id }
    }
}
