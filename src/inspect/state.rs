//! What the log adds up to: the queues, and the state of every live message.
//!
//! Records are absolute, so adding up is: the newest record about a message says how it stands.
//!
//! # Invariants
//! 13 and 14, as in `engine/apply.rs`: a record about a message that is not there changes nothing.
//!
//! # Not here
//! What the store would do next: a message that expired, or used up its attempts, while nobody had
//! the store open is shown as the log has it.

use std::collections::BTreeMap;
use std::path::Path;

use super::fields::{QueueSettings, dead_letter};
use super::space::SpaceState;
use super::walk::{Seen, Step, Walk};
use super::{Item, LogRecord};
use crate::env::os::os_env;
use crate::error::Result;
use crate::message::DeadLetter;
use crate::options::QueueOptions;
use crate::record::{Detail, Record, StateSet};
use crate::types::{KeptFor, Lsn, MessageId, Phase, Position, QueueId, QueueName, StoreId, Timestamp};

/// A queue as the log has it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueueState {
    /// Its number in the store.
    pub queue: u64,
    /// Its name.
    pub name: QueueName,
    /// Its options.
    pub options: QueueSettings,
    /// Whether it is paused.
    pub paused: bool,
}

/// A live message as the log has it, without its body and attributes.
#[derive(Clone, Debug)]
pub struct MessageState {
    id: MessageId,
    queue: QueueId,
    priority: i16,
    phase: Phase,
    epoch: u32,
    receive_count: u32,
    attempts: u32,
    sent_at: Timestamp,
    visible_at: Timestamp,
    expires_at: Timestamp,
    first_received_at: Timestamp,
    received_at: Timestamp,
    moved: bool,
    body_len: usize,
    detail: Option<Box<Detail>>,
    /// The records that have the body, and the last error or how it died.
    records: [Position; 2],
}

impl MessageState {
    /// The message.
    #[must_use]
    pub const fn id(&self) -> MessageId {
        self.id
    }

    /// The number of the queue it is in.
    #[must_use]
    pub const fn queue(&self) -> u64 {
        self.queue.0
    }

    /// Its state at the time `now`.
    #[must_use]
    pub fn state(&self, now: Timestamp) -> crate::State {
        match self.phase {
            Phase::Dead => crate::State::Dead,
            Phase::Held if self.visible_at > now => crate::State::InFlight,
            Phase::Queued if self.visible_at > now => crate::State::Delayed,
            Phase::Queued | Phase::Held => crate::State::Ready,
        }
    }

    /// Its priority.
    #[must_use]
    pub const fn priority(&self) -> i16 {
        self.priority
    }

    /// Epoch of the newest hand-out; 0 before the first.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Hand-outs for life.
    #[must_use]
    pub const fn receive_count(&self) -> u32 {
        self.receive_count
    }

    /// Hand-outs that count towards `max_attempts`.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// When it was sent.
    #[must_use]
    pub const fn sent_at(&self) -> Timestamp {
        self.sent_at
    }

    /// From when on it can be received.
    #[must_use]
    pub const fn visible_at(&self) -> Timestamp {
        self.visible_at
    }

    /// When it expires, if it does.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        (self.expires_at < Timestamp::MAX).then_some(self.expires_at)
    }

    /// When it was first handed out, if it was.
    #[must_use]
    pub fn first_received_at(&self) -> Option<Timestamp> {
        (self.first_received_at > Timestamp::ZERO).then_some(self.first_received_at)
    }

    /// When it was last handed out, if it was.
    #[must_use]
    pub fn last_received_at(&self) -> Option<Timestamp> {
        (self.received_at > Timestamp::ZERO).then_some(self.received_at)
    }

    /// Length of its body in bytes.
    #[must_use]
    pub const fn body_len(&self) -> usize {
        self.body_len
    }

    /// Text of the newest nack or rejection, if one was given.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.detail.as_deref().and_then(|detail| detail.error.as_deref())
    }

    /// Present when it is dead or came by a dead-letter move.
    #[must_use]
    pub fn dead(&self) -> Option<DeadLetter> {
        let shown = self.moved || self.phase == Phase::Dead;
        self.detail.as_deref().filter(|_| shown).and_then(dead_letter)
    }
}

/// Queues and live messages while records are added up.
#[derive(Default)]
pub(super) struct Fold {
    queues: BTreeMap<QueueId, (QueueName, QueueOptions, bool)>,
    /// The segment in which each queue is defined.
    defined: BTreeMap<QueueId, u32>,
    messages: BTreeMap<MessageId, MessageState>,
    /// Messages other than this one are passed over.
    only: Option<MessageId>,
}

impl Fold {
    pub(super) fn only(id: MessageId) -> Self {
        Self { only: Some(id), ..Self::default() }
    }

    pub(super) fn holds(&self, id: MessageId) -> bool {
        self.messages.contains_key(&id)
    }

    pub(super) fn apply(&mut self, seen: &Seen) {
        let Ok(record) = &seen.record else { return };
        match record {
            Record::QueueCreated { name, options } => self.define(seen, QueueId(seen.lsn.0), name, options, false),
            Record::QueueConfigured { queue, name, options, paused } => {
                self.define(seen, *queue, name, options, *paused)
            }
            Record::QueuePaused { queue, paused } => {
                if let Some(queue) = self.queues.get_mut(queue) {
                    queue.2 = *paused;
                }
            }
            Record::QueueDeleted { queue } => {
                self.queues.remove(queue);
                self.defined.remove(queue);
                self.messages.retain(|_, message| message.queue != *queue);
            }
            Record::Purged { queue, states } => self.purge(*queue, *states, seen.clock),
            Record::Mark | Record::Clean => {}
            about_message => {
                if let Some(id) = seen.id.filter(|id| self.only.is_none_or(|only| only == *id)) {
                    let before = self.messages.remove(&id);
                    if let Some(after) = after(before, about_message, seen) {
                        self.messages.insert(id, after);
                    }
                }
            }
        }
    }

    fn define(&mut self, seen: &Seen, id: QueueId, name: &str, options: &QueueOptions, paused: bool) {
        if let Ok(name) = QueueName::new(name) {
            self.defined.insert(id, seen.segment);
            self.queues.insert(id, (name, options.clone(), paused));
        }
    }

    fn purge(&mut self, queue: QueueId, states: StateSet, at: Timestamp) {
        self.messages.retain(|_, message| message.queue != queue || !states.contains(message.state(at)));
    }
}

/// The message after a record about it.
fn after(before: Option<MessageState>, record: &Record, seen: &Seen) -> Option<MessageState> {
    match record {
        Record::Sent(_) | Record::Relocated(_) => return whole(record, seen),
        Record::Acked { .. } | Record::Expired { .. } => return None,
        _ => {}
    }
    let mut message = before?;
    match record {
        Record::Received { epoch, receive_count, attempts, visible_at, .. } => {
            message.phase = Phase::Held;
            message.epoch = *epoch;
            message.receive_count = *receive_count;
            message.attempts = *attempts;
            message.visible_at = *visible_at;
            message.received_at = seen.clock;
            if message.first_received_at == Timestamp::ZERO {
                message.first_received_at = seen.clock;
            }
        }
        Record::Extended { visible_at, .. } => message.visible_at = *visible_at,
        Record::Nacked { visible_at, detail, .. } => {
            message.phase = Phase::Queued;
            message.visible_at = *visible_at;
            if let Some(detail) = detail {
                message.set_detail(detail, seen);
            }
        }
        Record::Released { attempts, visible_at, .. } => {
            message.phase = Phase::Queued;
            message.attempts = *attempts;
            message.visible_at = *visible_at;
        }
        Record::Dead { detail, .. } => {
            message.phase = Phase::Dead;
            message.set_detail(detail, seen);
        }
        Record::Redriven { to, visible_at, .. } => {
            message.requeue(*to, *visible_at, false);
        }
        Record::Moved { to, visible_at, detail, .. } => {
            message.requeue(*to, *visible_at, true);
            message.set_detail(detail, seen);
        }
        _ => {}
    }
    Some(message)
}

impl MessageState {
    fn set_detail(&mut self, detail: &Detail, seen: &Seen) {
        self.detail = Some(Box::new(detail.clone()));
        let [body, _] = self.records;
        self.records = [body, seen.position()];
    }

    /// As new in the queue `to`: it is somebody's wish that it is handled, so it does not expire.
    fn requeue(&mut self, to: QueueId, visible_at: Timestamp, moved: bool) {
        self.queue = to;
        self.phase = Phase::Queued;
        self.attempts = 0;
        self.visible_at = visible_at;
        self.expires_at = Timestamp::MAX;
        self.moved = moved;
    }
}

/// The message from a record that has all of it.
fn whole(record: &Record, seen: &Seen) -> Option<MessageState> {
    match record {
        Record::Sent(sent) => Some(MessageState {
            id: seen.lsn.into(),
            queue: sent.queue,
            priority: sent.priority,
            phase: Phase::Queued,
            epoch: 0,
            receive_count: 0,
            attempts: 0,
            sent_at: sent.sent_at,
            visible_at: sent.visible_at,
            expires_at: sent.expires_at,
            first_received_at: Timestamp::ZERO,
            received_at: Timestamp::ZERO,
            moved: false,
            body_len: seen.body_len,
            detail: None,
            records: [seen.position(), Position::NONE],
        }),
        Record::Relocated(r) => Some(MessageState {
            id: r.key.id(),
            queue: r.key.queue(),
            priority: r.key.priority,
            phase: r.phase,
            epoch: r.epoch,
            receive_count: r.receive_count,
            attempts: r.attempts,
            sent_at: r.sent_at,
            visible_at: r.visible_at,
            expires_at: r.expires_at,
            first_received_at: r.first_received_at,
            received_at: r.received_at,
            moved: r.origin.is_some(),
            body_len: seen.body_len,
            detail: r.detail.clone().map(Box::new),
            records: [seen.position(), Position::NONE],
        }),
        _ => None,
    }
}

/// The queues and live messages of a store, added up from its log without a lock.
#[derive(Debug)]
#[non_exhaustive]
pub struct StoreState {
    /// The store's identity.
    pub store: StoreId,
    /// When the store was created.
    pub created: Timestamp,
    /// The store's clock at the last record.
    pub clock: Timestamp,
    /// The last record.
    pub last_lsn: Lsn,
    /// Every record up to here is proven to be on disk. The newest are usually on disk too, but
    /// nothing written behind them says so yet.
    pub durable_lsn: Lsn,
    /// Whether the store was closed in order behind the last record.
    pub closed_in_order: bool,
    /// Records that were added up.
    pub records: u64,
    /// Bytes of these records.
    pub records_len: u64,
    /// Damage and a torn end, where there are any: what follows may rest on what is lost.
    pub findings: Vec<Item>,
    /// Records that cannot be decoded or whose own checksum does not hold: the first hundred.
    pub bad_records: Vec<LogRecord>,
    /// Where the bytes are.
    pub space: SpaceState,
    queues: Vec<QueueState>,
    messages: BTreeMap<MessageId, MessageState>,
}

/// Most bad records that are kept to be shown.
const MAX_BAD_RECORDS: usize = 100;

impl StoreState {
    /// Adds up the log of the store in the directory `path`. Takes no lock and changes nothing;
    /// memory is bounded by the live messages.
    ///
    /// # Errors
    /// As [`Log::open`](super::Log::open), and `Io` for a read that failed. Damage is no error but
    /// among the [`findings`](Self::findings).
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let mut walk = Walk::open(path.as_ref(), false)?;
        let mut fold = Fold::default();
        let mut state = Self {
            store: walk.store().id,
            created: walk.store().created,
            clock: walk.store().created,
            last_lsn: Lsn::ZERO,
            durable_lsn: Lsn::ZERO,
            closed_in_order: false,
            records: 0,
            records_len: 0,
            findings: Vec::new(),
            bad_records: Vec::new(),
            space: SpaceState::measure(path.as_ref()),
            queues: Vec::new(),
            messages: BTreeMap::new(),
        };
        while let Some(step) = walk.next() {
            match step? {
                Step::Record(seen) => state.add(*seen, &mut fold, &walk),
                Step::Damage { what, at, len } => state.findings.push(Item::Damage { what, at, len }),
                Step::Tail { file, offset, len, ambiguous } => {
                    state.findings.push(Item::Tail { file, offset, len, ambiguous });
                }
            }
        }
        let queues = fold.queues.into_iter();
        state.queues = queues
            .map(|(id, (name, options, paused))| QueueState { queue: id.0, name, options: (&options).into(), paused })
            .collect();
        state.queues.sort_by(|a, b| a.name.cmp(&b.name));
        state.messages = fold.messages;
        state.attribute_space(&fold.defined);
        Ok(state)
    }

    /// Tells what of the log is live, and what the oldest segment is kept for.
    fn attribute_space(&mut self, defined: &BTreeMap<QueueId, u32>) {
        let now = self.now();
        let records = || self.messages.values().flat_map(|message| message.records.map(|at| (at, message)));
        let live_len = records().map(|(at, _)| u64::from(at.len)).sum();
        let name = |id: QueueId| self.queues.iter().find(|queue| queue.queue == id.0).map(|queue| queue.name.clone());
        let oldest = self.space.oldest_segment;
        let message = records().find(|(at, _)| at.is_some() && at.segment == oldest).map(|(_, message)| message);
        let queue = defined.iter().find(|(_, segment)| **segment == oldest).map(|(id, _)| *id);
        let kept_for = match (message, queue) {
            _ if self.space.segments < 2 => KeptFor::InUse,
            (Some(message), _) => {
                KeptFor::Message { id: message.id, queue: name(message.queue), state: message.state(now) }
            }
            (None, Some(id)) => KeptFor::Queue { queue: name(id) },
            (None, None) => KeptFor::Checkpoint,
        };
        self.space.live_len = live_len;
        self.space.dead_len = self.records_len.saturating_sub(live_len);
        self.space.oldest_segment_kept_for = kept_for;
    }

    fn add(&mut self, seen: Seen, fold: &mut Fold, walk: &Walk) {
        self.clock = self.clock.max(seen.clock);
        self.last_lsn = seen.lsn;
        self.durable_lsn = self.durable_lsn.max(seen.durable_lsn);
        self.records += 1;
        self.records_len += seen.len as u64;
        self.space.oldest_segment = self.space.oldest_segment.min(seen.segment);
        self.closed_in_order = matches!(seen.record, Ok(Record::Clean));
        fold.apply(&seen);
        if (seen.record.is_err() || !seen.crc_ok) && self.bad_records.len() < MAX_BAD_RECORDS {
            self.bad_records.push(LogRecord::new(seen, walk.names()));
        }
    }

    /// The time to look at the messages: the wall clock, or the last record's time if that is later.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.max(os_env().clock.wall())
    }

    /// The queues, by name.
    #[must_use]
    pub fn queues(&self) -> &[QueueState] {
        &self.queues
    }

    /// The queue of that name.
    #[must_use]
    pub fn queue(&self, name: &str) -> Option<&QueueState> {
        self.queues.iter().find(|queue| queue.name.as_str() == name)
    }

    /// One live message.
    #[must_use]
    pub fn message(&self, id: MessageId) -> Option<&MessageState> {
        self.messages.get(&id)
    }

    /// All live messages, by id.
    pub fn messages(&self) -> impl Iterator<Item = &MessageState> {
        self.messages.values()
    }
}
