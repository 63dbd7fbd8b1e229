//! The one place that says what a record does to a message: live and in replay alike.
//!
//! # Invariants
//! 13 and 14: the result depends on the record, its place and its frame's clock alone, never on the
//! time at which it is applied. Applying a record twice is applying it once.
//!
//! # Not here
//! Whether a record may be written at all: `lifecycle.rs`.

use crate::record::{Record, Relocated, Sent};
use crate::types::{Entry, Lsn, MessageId, Phase, Position, Timestamp};

/// Where and when a record was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Written {
    pub(crate) lsn: Lsn,
    pub(crate) at: Position,
    /// The frame's clock.
    pub(crate) clock: Timestamp,
}

/// The message after `record`, from the message before it. `None`: there is no such message.
///
/// A record about a message that is not there changes nothing: the message was relocated behind
/// this record, or settled, and that is told by a later record or was told by an earlier one.
pub(crate) fn transition(before: Option<Entry>, record: &Record, written: Written) -> Option<Entry> {
    let Written { lsn, at, clock } = written;
    match record {
        Record::Sent(sent) => return Some(fresh(sent, written)),
        Record::Relocated(relocated) => return Some(relocate(relocated, written)),
        _ => {}
    }
    let mut entry = before?;
    entry.lsn = lsn;
    match record {
        Record::Received { epoch, receive_count, attempts, visible_at, .. } => {
            entry.phase = Phase::Held;
            entry.epoch = *epoch;
            entry.receive_count = *receive_count;
            entry.attempts = *attempts;
            entry.visible_at = *visible_at;
            entry.received_at = clock;
            if entry.first_received_at == Timestamp::ZERO {
                entry.first_received_at = clock;
            }
        }
        Record::Extended { visible_at, .. } => entry.visible_at = *visible_at,
        Record::Nacked { visible_at, detail, .. } => {
            entry.phase = Phase::Queued;
            entry.visible_at = *visible_at;
            if detail.is_some() {
                entry.detail = at;
            }
        }
        Record::Released { attempts, visible_at, .. } => {
            entry.phase = Phase::Queued;
            entry.attempts = *attempts;
            entry.visible_at = *visible_at;
        }
        Record::Dead { .. } => {
            entry.phase = Phase::Dead;
            entry.detail = at;
        }
        Record::Redriven { to, visible_at, .. } => {
            entry.queue = *to;
            entry.origin = None;
            entry.phase = Phase::Queued;
            entry.attempts = 0;
            entry.visible_at = *visible_at;
            // Its time to live is over or nearly so; who redrives wants it handled.
            entry.expires_at = Timestamp::MAX;
        }
        Record::Moved { key, to, visible_at, .. } => {
            entry.origin = Some(key.queue());
            entry.queue = *to;
            entry.phase = Phase::Queued;
            entry.attempts = 0;
            entry.visible_at = *visible_at;
            entry.expires_at = Timestamp::MAX;
            entry.detail = at;
        }
        Record::Acked { .. } | Record::Expired { .. } => return None,
        Record::Sent(_)
        | Record::Relocated(_)
        | Record::QueueCreated { .. }
        | Record::QueueConfigured { .. }
        | Record::QueuePaused { .. }
        | Record::QueueDeleted { .. }
        | Record::Purged { .. }
        | Record::Mark
        | Record::Clean => {}
    }
    Some(entry)
}

fn fresh(sent: &Sent, written: Written) -> Entry {
    Entry {
        id: MessageId::from(written.lsn),
        queue: sent.queue,
        priority: sent.priority,
        phase: Phase::Queued,
        origin: None,
        epoch: 0,
        receive_count: 0,
        attempts: 0,
        sent_at: sent.sent_at,
        visible_at: sent.visible_at,
        expires_at: sent.expires_at,
        first_received_at: Timestamp::ZERO,
        received_at: Timestamp::ZERO,
        body: written.at,
        detail: Position::NONE,
        lsn: written.lsn,
    }
}

fn relocate(r: &Relocated, written: Written) -> Entry {
    Entry {
        id: r.key.id(),
        queue: r.key.queue(),
        priority: r.key.priority,
        phase: r.phase,
        origin: r.origin,
        epoch: r.epoch,
        receive_count: r.receive_count,
        attempts: r.attempts,
        sent_at: r.sent_at,
        visible_at: r.visible_at,
        expires_at: r.expires_at,
        first_received_at: r.first_received_at,
        received_at: r.received_at,
        body: if r.body_lost { Position::NONE } else { written.at },
        detail: if r.detail.is_some() { written.at } else { Position::NONE },
        lsn: written.lsn,
    }
}
