//! Records: one state change of one message or queue each, and their bytes.
//!
//! ```text
//! kind u8 │ flags u8 │ meta_len u32 │ [ body_len u32 │ crc u32 ] │ meta (bincode) │ body (raw)
//!                                      └── only with READABLE ──┘
//! ```
//!
//! The frame's CRC covers all of it. A record that is read by position alone, without its frame
//! (`READABLE`), also carries a CRC of its own over message id, meta and body, seeded with the
//! store's identity: bytes of another message never pass for it.
//!
//! # Invariants
//! A record is absolute, never relative ("attempts = 3"), so that replay is last-writer-wins and
//! idempotent (13, 14). Lengths are checked against the format's caps and against the bytes that are
//! there before anything is allocated (15).
//!
//! # Not here
//! What a record does to a message: `engine/apply.rs`. Where it stands: `log/`.

use std::ops::Range;

use bincode::{Decode, Encode};

#[cfg(test)]
mod tests;
mod wire;

pub(crate) use wire::{decode_body, encode_body};

use crate::codec::{self, Reader, Short};
use crate::message::{Attributes, DeadReason};
use crate::options::QueueOptions;
use crate::types::limits::{MAX_BODY_LEN, MAX_RECORD_META_LEN};
use crate::types::{Lsn, MessageId, Phase, QueueId, Timestamp};

/// Which lane of which queue a message stands in, and which message it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
pub(crate) struct Key {
    pub(crate) queue: u64,
    pub(crate) priority: i16,
    pub(crate) id: u64,
}

impl Key {
    pub(crate) const fn queue(self) -> QueueId {
        QueueId(self.queue)
    }

    pub(crate) const fn id(self) -> MessageId {
        MessageId(self.id)
    }
}

/// What is kept with a message besides its entry: read from the log when somebody looks.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub(crate) struct Detail {
    /// Newest nack, rejection or dead-letter text.
    pub(crate) error: Option<String>,
    pub(crate) dead: Option<Died>,
}

/// How and where a message died.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub(crate) struct Died {
    reason: u8,
    at: u64,
    pub(crate) origin: String,
    pub(crate) attempts: u32,
}

impl Died {
    pub(crate) fn new(reason: DeadReason, at: Timestamp, origin: &str, attempts: u32) -> Self {
        let reason = match reason {
            DeadReason::MaxAttempts => 1,
            DeadReason::Rejected => 2,
            DeadReason::Expired => 3,
            DeadReason::Unreadable => 4,
        };
        Self { reason, at: at.0, origin: origin.to_owned(), attempts }
    }

    pub(crate) fn reason(&self) -> Option<DeadReason> {
        Some(match self.reason {
            1 => DeadReason::MaxAttempts,
            2 => DeadReason::Rejected,
            3 => DeadReason::Expired,
            4 => DeadReason::Unreadable,
            _ => return None,
        })
    }

    pub(crate) const fn at(&self) -> Timestamp {
        Timestamp(self.at)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    pub(crate) queue: QueueId,
    pub(crate) priority: i16,
    pub(crate) sent_at: Timestamp,
    pub(crate) visible_at: Timestamp,
    pub(crate) expires_at: Timestamp,
    pub(crate) attributes: Attributes,
}

/// A live message's full state, rewritten at the log's end so that its old segment can go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Relocated {
    pub(crate) key: Key,
    pub(crate) phase: Phase,
    pub(crate) origin: Option<QueueId>,
    pub(crate) epoch: u32,
    pub(crate) receive_count: u32,
    pub(crate) attempts: u32,
    pub(crate) sent_at: Timestamp,
    pub(crate) visible_at: Timestamp,
    pub(crate) expires_at: Timestamp,
    pub(crate) first_received_at: Timestamp,
    pub(crate) received_at: Timestamp,
    pub(crate) detail: Option<Detail>,
    pub(crate) attributes: Attributes,
    /// Its body could not be read any more when it was carried on: the message is dead, and what
    /// stands beside this record is not its body.
    pub(crate) body_lost: bool,
}

/// One logical record. A body, where there is one, is passed beside it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Record {
    /// The queue's id is the record's LSN.
    QueueCreated {
        name: String,
        options: QueueOptions,
    },
    /// The queue's whole definition: also how one is carried to the log's end.
    QueueConfigured {
        queue: QueueId,
        name: String,
        options: QueueOptions,
        paused: bool,
    },
    QueuePaused {
        queue: QueueId,
        paused: bool,
    },
    QueueDeleted {
        queue: QueueId,
    },
    /// The message's id is the record's LSN.
    Sent(Box<Sent>),
    Received {
        key: Key,
        epoch: u32,
        receive_count: u32,
        attempts: u32,
        visible_at: Timestamp,
    },
    Extended {
        key: Key,
        epoch: u32,
        visible_at: Timestamp,
    },
    Nacked {
        key: Key,
        epoch: u32,
        visible_at: Timestamp,
        /// With an error text: what is kept with the message from now on.
        detail: Option<Detail>,
    },
    Released {
        key: Key,
        epoch: u32,
        attempts: u32,
        visible_at: Timestamp,
    },
    Acked {
        key: Key,
        epoch: u32,
    },
    Dead {
        key: Key,
        detail: Detail,
    },
    /// `to` is the queue it is ready in: its own, or its origin.
    Redriven {
        key: Key,
        to: QueueId,
        visible_at: Timestamp,
    },
    /// The dead-letter move: out of `key.queue` into `to`, whole.
    Moved {
        key: Key,
        to: QueueId,
        visible_at: Timestamp,
        detail: Detail,
    },
    Expired {
        key: Key,
    },
    /// Everything in these states (a bit per [`Phase`]/time, see [`StateSet`]) at the frame's clock.
    Purged {
        queue: QueueId,
        states: StateSet,
    },
    Relocated(Box<Relocated>),
    /// Nothing but a frame's header: carries `durable_lsn` and the clock.
    Mark,
    /// The store was closed in order.
    Clean,
}

/// A set of [`State`](crate::State)s, a bit each in the order of `State::ALL`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StateSet(pub(crate) u8);

impl StateSet {
    const fn bit(state: crate::State) -> u8 {
        match state {
            crate::State::Ready => 1,
            crate::State::Delayed => 2,
            crate::State::InFlight => 4,
            crate::State::Dead => 8,
        }
    }

    pub(crate) fn of(states: &[crate::State]) -> Self {
        Self(states.iter().fold(0, |set, state| set | Self::bit(*state)))
    }

    pub(crate) const fn contains(self, state: crate::State) -> bool {
        self.0 & Self::bit(state) != 0
    }
}

/// Most bytes of the fixed part of any record: prefix, key, numbers; names and texts come on top.
pub(crate) const FIXED_BOUND: usize = 96;
/// Most bytes of one attribute besides its name and value: its kind and two lengths.
pub(crate) const ATTRIBUTE_BOUND: usize = 12;

const READABLE: u8 = 1;
/// A reader that does not know the kind may pass over the record.
const IGNORABLE: u8 = 2;

/// The kinds' numbers on disk. Never change one; give new kinds new numbers.
const NAMES: [(u8, &str); 18] = [
    (1, "queue_created"),
    (2, "queue_configured"),
    (3, "queue_paused"),
    (4, "queue_deleted"),
    (10, "sent"),
    (11, "received"),
    (12, "extended"),
    (13, "nacked"),
    (14, "released"),
    (15, "acked"),
    (16, "dead"),
    (17, "redriven"),
    (18, "moved"),
    (19, "expired"),
    (20, "purged"),
    (21, "relocated"),
    (30, "mark"),
    (31, "clean"),
];

impl Record {
    const fn kind(&self) -> u8 {
        match self {
            Self::QueueCreated { .. } => 1,
            Self::QueueConfigured { .. } => 2,
            Self::QueuePaused { .. } => 3,
            Self::QueueDeleted { .. } => 4,
            Self::Sent(_) => 10,
            Self::Received { .. } => 11,
            Self::Extended { .. } => 12,
            Self::Nacked { .. } => 13,
            Self::Released { .. } => 14,
            Self::Acked { .. } => 15,
            Self::Dead { .. } => 16,
            Self::Redriven { .. } => 17,
            Self::Moved { .. } => 18,
            Self::Expired { .. } => 19,
            Self::Purged { .. } => 20,
            Self::Relocated(_) => 21,
            Self::Mark => 30,
            Self::Clean => 31,
        }
    }

    /// The kind as one lower-case word.
    pub(crate) fn name(&self) -> &'static str {
        NAMES.iter().find(|(kind, _)| *kind == self.kind()).map_or("?", |(_, name)| name)
    }

    /// Whether the record is read by position later, and so needs a CRC of its own.
    const fn is_readable(&self) -> bool {
        matches!(
            self,
            Self::Sent(_)
                | Self::Relocated(_)
                | Self::Dead { .. }
                | Self::Moved { .. }
                | Self::Nacked { detail: Some(_), .. }
        )
    }

    /// The attributes it carries, if it carries a message.
    pub(crate) fn into_attributes(self) -> Attributes {
        match self {
            Self::Sent(sent) => sent.attributes,
            Self::Relocated(relocated) => relocated.attributes,
            _ => Attributes::new(),
        }
    }

    /// The message or queue it is about.
    pub(crate) fn subject(&self, lsn: Lsn) -> (Option<QueueId>, Option<MessageId>) {
        match self {
            Self::QueueCreated { .. } => (Some(QueueId(lsn.0)), None),
            Self::QueueConfigured { queue, .. }
            | Self::QueuePaused { queue, .. }
            | Self::QueueDeleted { queue }
            | Self::Purged { queue, .. } => (Some(*queue), None),
            Self::Sent(sent) => (Some(sent.queue), Some(lsn.into())),
            Self::Relocated(relocated) => (Some(relocated.key.queue()), Some(relocated.key.id())),
            Self::Received { key, .. }
            | Self::Extended { key, .. }
            | Self::Nacked { key, .. }
            | Self::Released { key, .. }
            | Self::Acked { key, .. }
            | Self::Dead { key, .. }
            | Self::Redriven { key, .. }
            | Self::Moved { key, .. }
            | Self::Expired { key } => (Some(key.queue()), Some(key.id())),
            Self::Mark | Self::Clean => (None, None),
        }
    }
}

/// Why bytes are not a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bad {
    /// A length points past the bytes that are there, or above the format's cap.
    Length,
    /// The record's own CRC does not match.
    Crc,
    /// The bincode part does not decode, or not to its end.
    Meta,
    /// A kind this version does not know, and that must not be passed over.
    UnknownKind(u8),
}

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Length => f.write_str("a record's length is impossible"),
            Self::Crc => f.write_str("a record's checksum does not match"),
            Self::Meta => f.write_str("a record does not decode"),
            Self::UnknownKind(kind) => write!(f, "a record of the unknown kind {kind}"),
        }
    }
}

impl From<Short> for Bad {
    fn from(_: Short) -> Self {
        Self::Length
    }
}

/// Appends the bytes of `record` to `out` and returns where they stand in it. `seed` is the store's
/// ([`StoreId::seed`](crate::StoreId)); `lsn` is the record's.
pub(crate) fn encode(record: &Record, body: &[u8], lsn: Lsn, seed: u32, out: &mut Vec<u8>) -> Range<usize> {
    let start = out.len();
    let readable = record.is_readable();
    assert!(readable || body.is_empty(), "a record of this kind carries no body");
    out.push(record.kind());
    out.push(if readable { READABLE } else { 0 });
    let head = if readable { 14 } else { 6 };
    out.resize(start + head, 0);
    wire::encode_meta(record, out);
    let meta = start + head..out.len();
    assert!(meta.len() <= MAX_RECORD_META_LEN && body.len() <= MAX_BODY_LEN, "a record above the format's caps");
    out.extend_from_slice(body);
    let (head, content) = out.split_at_mut(meta.start);
    let mut put_fields = |fields: &[[u8; 4]]| {
        // `head` ends with exactly these fields: it was made that long above.
        for (place, field) in head.rchunks_exact_mut(4).zip(fields.iter().rev()) {
            place.copy_from_slice(field);
        }
    };
    if readable {
        let id = record.subject(lsn).1.unwrap_or(MessageId(lsn.0));
        let crc = codec::crc(seed, &[&id.0.to_le_bytes(), content]).to_le_bytes();
        put_fields(&[len_field(meta.len()), len_field(body.len()), crc]);
    } else {
        put_fields(&[len_field(meta.len())]);
    }
    start..out.len()
}

#[expect(clippy::cast_possible_truncation, reason = "the caps asserted above are far below 2^32")]
const fn len_field(len: usize) -> [u8; 4] {
    (len as u32).to_le_bytes()
}

/// The bytes of one record, split but not decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw<'a> {
    pub(crate) kind: u8,
    flags: u8,
    crc: u32,
    pub(crate) meta: &'a [u8],
    pub(crate) body: &'a [u8],
    /// Bytes of the whole record.
    pub(crate) len: usize,
}

impl<'a> Raw<'a> {
    /// Splits the record at the front of `bytes`.
    pub(crate) fn split(bytes: &'a [u8]) -> Result<Self, Bad> {
        let mut reader = Reader::new(bytes);
        let (kind, flags) = (reader.u8()?, reader.u8()?);
        let meta_len = reader.u32()? as usize;
        let (body_len, crc) = if flags & READABLE != 0 { (reader.u32()? as usize, reader.u32()?) } else { (0, 0) };
        if meta_len > MAX_RECORD_META_LEN || body_len > MAX_BODY_LEN {
            return Err(Bad::Length);
        }
        let (meta, body) = (reader.bytes(meta_len)?, reader.bytes(body_len)?);
        Ok(Self { kind, flags, crc, meta, body, len: bytes.len() - reader.remaining() })
    }

    /// Decodes it. `None` for an unknown kind that may be passed over.
    pub(crate) fn decode(&self) -> Result<Option<Record>, Bad> {
        match wire::decode_meta(self.kind, self.meta) {
            Err(Bad::UnknownKind(_)) if self.flags & IGNORABLE != 0 => Ok(None),
            other => other.map(Some),
        }
    }

    /// Whether the record's own CRC holds for the message it is taken for. True for a record that
    /// has none: its frame's CRC vouches for it.
    pub(crate) fn is_intact(&self, id: MessageId, seed: u32) -> bool {
        self.flags & READABLE == 0 || codec::crc(seed, &[&id.0.to_le_bytes(), self.meta, self.body]) == self.crc
    }
}

/// The kind's name, also for kinds that are only seen as a number.
pub(crate) fn kind_name(kind: u8) -> &'static str {
    NAMES.iter().find(|(number, _)| *number == kind).map_or("unknown", |(_, name)| name)
}

/// All records of a frame's payload, in order, with their offsets in it.
pub(crate) fn split_payload(payload: &[u8]) -> impl Iterator<Item = Result<(usize, Raw<'_>), Bad>> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        let rest = payload.get(offset..).filter(|rest| !rest.is_empty())?;
        let raw = Raw::split(rest);
        let at = offset;
        offset = raw.as_ref().map_or(payload.len(), |raw| at + raw.len);
        Some(raw.map(|raw| (at, raw)))
    })
}
