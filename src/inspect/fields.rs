//! A record as tools see it: plain fields with the contract's names.
//!
//! # Not here
//! How it is printed: that is the tool's.

use std::time::Duration;

use super::walk::{Names, Seen};
use crate::message::{Attributes, DeadLetter};
use crate::options::{Backoff, QueueOptions};
use crate::record::{Detail, Record, Relocated, Sent};
use crate::types::{Lsn, MessageId, Phase, QueueId, QueueName, State, Timestamp};

/// One record of the log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LogRecord {
    /// Its number in the log.
    pub lsn: Lsn,
    /// The number of the segment it stands in.
    pub segment: u32,
    /// Where it begins in the segment's file, in bytes.
    pub offset: u32,
    /// Its length in bytes.
    pub len: usize,
    /// What it says, as one lower-case word; `unknown` for a kind this version does not know.
    pub kind: &'static str,
    /// The kind's number on disk, if it could be read.
    pub kind_code: Option<u8>,
    /// The store's clock when it was written.
    pub time: Timestamp,
    /// Every record up to here was known to be on disk when this one was written.
    pub durable_lsn: Lsn,
    /// The queue it is about, by its number in the store.
    pub queue: Option<u64>,
    /// The queue's name; `None` when its definition was not seen on the way.
    pub queue_name: Option<QueueName>,
    /// The message it is about.
    pub id: Option<MessageId>,
    /// Whether the record's own checksum holds. Records without one are vouched for by their frame.
    pub crc_ok: bool,
    /// Why it cannot be decoded, if it cannot. Its fields are empty then.
    pub undecoded: Option<String>,
    /// What it says in detail.
    pub fields: Fields,
    /// The message's attributes, where the record carries them.
    pub attributes: Attributes,
    /// The message's body, where the record carries it.
    pub body: Vec<u8>,
}

/// What a record says: each kind fills those of these that it has.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Fields {
    /// The delivery it belongs to.
    pub epoch: Option<u32>,
    /// Hand-outs for life, from now on.
    pub receive_count: Option<u32>,
    /// Hand-outs that count towards `max_attempts`, from now on.
    pub attempts: Option<u32>,
    /// The message's priority.
    pub priority: Option<i16>,
    /// When the message was sent.
    pub sent_at: Option<Timestamp>,
    /// From when on the message can be received.
    pub visible_at: Option<Timestamp>,
    /// When the message expires.
    pub expires_at: Option<Timestamp>,
    /// When the message was first handed out.
    pub first_received_at: Option<Timestamp>,
    /// When the message was last handed out.
    pub last_received_at: Option<Timestamp>,
    /// The error text of a nack, a rejection or a dead message.
    pub error: Option<String>,
    /// Why, when and where the message died.
    pub dead: Option<DeadLetter>,
    /// The queue that the message goes to.
    pub to_queue: Option<u64>,
    /// Its name, if its definition was seen.
    pub to_queue_name: Option<QueueName>,
    /// Of a relocated message: whether it is queued, held or dead.
    pub phase: Option<&'static str>,
    /// The states that a purge takes.
    pub states: Option<Vec<State>>,
    /// The name of a queue that is created or configured.
    pub name: Option<String>,
    /// The options of a queue that is created or configured.
    pub options: Option<QueueSettings>,
    /// Whether the queue is paused from now on.
    pub paused: Option<bool>,
}

/// The options of a queue, to be read.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueueSettings {
    /// How long a received message stays hidden.
    pub visibility_timeout: Duration,
    /// Longest visibility timeout a call may ask for.
    pub max_visibility_timeout: Duration,
    /// Hand-outs after which a message that was not settled is dead; `None`: never.
    pub max_attempts: Option<u32>,
    /// Delay after a nack that names none.
    pub backoff: Backoff,
    /// Most messages in flight at a time; `None`: no limit.
    pub max_in_flight: Option<u32>,
    /// The queue that dead messages are moved to.
    pub dead_letter: Option<QueueName>,
    /// Whether expired messages become Dead instead of going away.
    pub keep_expired: bool,
    /// Whether a receipt is stale as soon as its deadline has passed.
    pub strict_deadline: bool,
}

impl From<&QueueOptions> for QueueSettings {
    fn from(options: &QueueOptions) -> Self {
        Self {
            visibility_timeout: options.visibility(),
            max_visibility_timeout: options.max_visibility(),
            max_attempts: options.max_attempts,
            backoff: options.backoff,
            max_in_flight: options.max_in_flight,
            dead_letter: options.dead_letter.as_deref().and_then(|name| QueueName::new(name).ok()),
            keep_expired: options.keep_expired,
            strict_deadline: options.strict_deadline,
        }
    }
}

impl LogRecord {
    pub(super) fn new(seen: Seen, names: &Names) -> Self {
        let (fields, attributes, undecoded) = match seen.record {
            Ok(record) => {
                let (fields, attributes) = fields(record, names);
                (fields, attributes, None)
            }
            Err(bad) => (Fields::default(), Attributes::new(), Some(bad.to_string())),
        };
        Self {
            lsn: seen.lsn,
            segment: seen.segment,
            offset: seen.offset,
            len: seen.len,
            kind: seen.kind,
            kind_code: seen.code,
            time: seen.clock,
            durable_lsn: seen.durable_lsn,
            queue: seen.queue.map(|queue| queue.0),
            queue_name: seen.queue.and_then(|queue| names.get(&queue)).cloned(),
            id: seen.id,
            crc_ok: seen.crc_ok,
            undecoded,
            fields,
            attributes,
            body: seen.body,
        }
    }
}

/// How a message died, as users see it.
pub(super) fn dead_letter(detail: &Detail) -> Option<DeadLetter> {
    let died = detail.dead.as_ref()?;
    Some(DeadLetter {
        reason: died.reason()?,
        at: died.at(),
        origin: QueueName::new(&died.origin).ok()?,
        attempts: died.attempts,
        error: detail.error.clone(),
    })
}

fn fields(record: Record, names: &Names) -> (Fields, Attributes) {
    let mut f = Fields::default();
    let to = |f: &mut Fields, queue: QueueId| {
        f.to_queue = Some(queue.0);
        f.to_queue_name = names.get(&queue).cloned();
    };
    match record {
        Record::QueueCreated { name, options } => {
            f.options = Some((&options).into());
            f.name = Some(name);
        }
        Record::QueueConfigured { name, options, paused, .. } => {
            f.options = Some((&options).into());
            f.name = Some(name);
            f.paused = Some(paused);
        }
        Record::QueuePaused { paused, .. } => f.paused = Some(paused),
        Record::Sent(sent) => return of_sent(*sent),
        Record::Relocated(relocated) => return of_relocated(*relocated),
        Record::Received { epoch, receive_count, attempts, visible_at, .. } => {
            f.epoch = Some(epoch);
            f.receive_count = Some(receive_count);
            f.attempts = Some(attempts);
            f.visible_at = Some(visible_at);
        }
        Record::Extended { epoch, visible_at, .. } => {
            f.epoch = Some(epoch);
            f.visible_at = Some(visible_at);
        }
        Record::Nacked { epoch, visible_at, detail, .. } => {
            f.epoch = Some(epoch);
            f.visible_at = Some(visible_at);
            f.error = detail.and_then(|detail| detail.error);
        }
        Record::Released { epoch, attempts, visible_at, .. } => {
            f.epoch = Some(epoch);
            f.attempts = Some(attempts);
            f.visible_at = Some(visible_at);
        }
        Record::Acked { epoch, .. } => f.epoch = Some(epoch),
        Record::Dead { detail, .. } => {
            f.dead = dead_letter(&detail);
            f.error = detail.error;
        }
        Record::Redriven { to: queue, visible_at, .. } => {
            to(&mut f, queue);
            f.attempts = Some(0);
            f.visible_at = Some(visible_at);
        }
        Record::Moved { to: queue, visible_at, detail, .. } => {
            to(&mut f, queue);
            f.attempts = Some(0);
            f.visible_at = Some(visible_at);
            f.dead = dead_letter(&detail);
            f.error = detail.error;
        }
        Record::Purged { states, .. } => {
            f.states = Some(State::ALL.into_iter().filter(|state| states.contains(*state)).collect());
        }
        Record::QueueDeleted { .. } | Record::Expired { .. } | Record::Mark | Record::Clean => {}
    }
    (f, Attributes::new())
}

fn of_sent(sent: Sent) -> (Fields, Attributes) {
    let fields = Fields {
        priority: Some(sent.priority),
        sent_at: Some(sent.sent_at),
        visible_at: Some(sent.visible_at),
        expires_at: (sent.expires_at < Timestamp::MAX).then_some(sent.expires_at),
        ..Fields::default()
    };
    (fields, sent.attributes)
}

fn of_relocated(r: Relocated) -> (Fields, Attributes) {
    let mut f = Fields::default();
    let some = |at: Timestamp| (at > Timestamp::ZERO).then_some(at);
    f.priority = Some(r.key.priority);
    f.epoch = Some(r.epoch);
    f.receive_count = Some(r.receive_count);
    f.attempts = Some(r.attempts);
    f.sent_at = Some(r.sent_at);
    f.visible_at = Some(r.visible_at);
    f.expires_at = (r.expires_at < Timestamp::MAX).then_some(r.expires_at);
    f.first_received_at = some(r.first_received_at);
    f.last_received_at = some(r.received_at);
    f.phase = Some(match r.phase {
        _ if r.body_lost => "dead_without_body",
        Phase::Queued => "queued",
        Phase::Held => "held",
        Phase::Dead => "dead",
    });
    f.dead = r.detail.as_ref().and_then(dead_letter);
    f.error = r.detail.and_then(|detail| detail.error);
    (f, r.attributes)
}
