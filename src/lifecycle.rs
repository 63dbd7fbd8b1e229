//! The rules of the queue, and nothing but the rules: what a verb does to a message in a given
//! state at a given time, or why it is refused. Pure functions; `docs/semantics.md` in code.
//!
//! ```text
//!  send ──► Queued ──receive──► Held ──ack──► gone
//!             ▲  ▲               │ │ │
//!             │  └─nack, release─┘ │ └─reject, attempts used up──► Dead ──redrive──► Queued
//!             └──deadline passes───┘ (still Held: its receipt counts until the next receive)
//! ```
//!
//! # Invariants
//! 4, 5, 8 and 9: an epoch is handed out once; a receipt of another epoch changes nothing.
//!
//! # Not here
//! Which message is next, what is resident, what is written: `engine/`.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::message::DeadReason;
use crate::options::QueueOptions;
use crate::record::{Detail, Key, Record};
use crate::types::limits::{MAX_DELAY, MAX_ERROR_LEN};
use crate::types::{Entry, Phase, Receipt, Timestamp};

/// What a holder can do with a delivery.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Settle {
    Ack,
    Extend(Duration),
    Nack {
        delay: Option<Duration>,
        error: Option<String>,
    },
    Release,
    Reject {
        error: String,
    },
    /// The body could not be read back: not a caller's verb, but settled like one.
    SetAside {
        error: String,
    },
}

impl Settle {
    /// Everything that can be told without the message.
    pub(crate) fn validate(&self) -> Result<()> {
        let text = match self {
            Self::Nack { error, .. } => error.as_deref(),
            Self::Reject { error } | Self::SetAside { error } => Some(error.as_str()),
            _ => None,
        };
        if let Some(len) = text.map(str::len).filter(|len| *len > MAX_ERROR_LEN) {
            return Err(Error::invalid(format!(
                "the error text has {len} bytes; at most {MAX_ERROR_LEN} are kept with a message"
            )));
        }
        if let Self::Nack { delay: Some(delay), .. } = self
            && *delay > MAX_DELAY
        {
            return Err(Error::invalid(format!("delay is longer than {} days", MAX_DELAY.as_secs() / 86_400)));
        }
        Ok(())
    }

    /// Bytes of text it carries.
    pub(crate) fn text_len(&self) -> usize {
        match self {
            Self::Nack { error, .. } => error.as_ref().map_or(0, String::len),
            Self::Reject { error } | Self::SetAside { error } => error.len(),
            _ => 0,
        }
    }
}

/// What comes of a verb.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// This record.
    Write(Record),
    /// The message dies: set aside in its queue or moved to the dead-letter queue.
    Die { reason: DeadReason, error: Option<String> },
}

pub(crate) const fn key(entry: &Entry) -> Key {
    Key { queue: entry.queue.0, priority: entry.priority, id: entry.id.0 }
}

/// The receipt table of the contract. `entry` is the message the receipt names, if it still lives.
pub(crate) fn check_receipt(entry: Option<&Entry>, receipt: &Receipt, strict: bool, now: Timestamp) -> Result<()> {
    let Some(entry) = entry else {
        return Err(Error::not_found(format!("message {} is gone: it was settled, expired or purged", receipt.id)));
    };
    let stale =
        |why: &str| Err(Error::stale(format!("receipt of message {} is stale: {why}", receipt.id), entry.epoch));
    if entry.epoch != receipt.epoch {
        return stale(&format!("it was handed out again (epoch {}, the receipt has {})", entry.epoch, receipt.epoch));
    }
    if entry.phase != Phase::Held {
        return stale("the delivery was given back or set aside");
    }
    if strict && entry.visible_at <= now {
        return stale("its deadline has passed and the queue is strict about deadlines");
    }
    Ok(())
}

/// What `settle` does to `entry`, whose receipt was checked. `dice` varies the back-off.
pub(crate) fn settle(
    entry: &Entry,
    options: &QueueOptions,
    settle: Settle,
    now: Timestamp,
    dice: u64,
) -> Result<Outcome> {
    let key = key(entry);
    let epoch = entry.epoch;
    Ok(match settle {
        Settle::Ack => Outcome::Write(Record::Acked { key, epoch }),
        Settle::Extend(by) if by.is_zero() => give_back(entry, options, now, None),
        Settle::Extend(by) => {
            check_visibility(by, options)?;
            Outcome::Write(Record::Extended { key, epoch, visible_at: now.after(by) })
        }
        Settle::Nack { delay, error } => {
            let delay = delay.unwrap_or_else(|| options.backoff.delay(entry.attempts, dice));
            give_back(entry, options, now.after(delay), error)
        }
        Settle::Release => {
            let attempts = entry.attempts.saturating_sub(1);
            Outcome::Write(Record::Released { key, epoch, attempts, visible_at: now })
        }
        Settle::Reject { error } => Outcome::Die { reason: DeadReason::Rejected, error: Some(error) },
        Settle::SetAside { error } => Outcome::Die { reason: DeadReason::Unreadable, error: Some(error) },
    })
}

fn give_back(entry: &Entry, options: &QueueOptions, visible_at: Timestamp, error: Option<String>) -> Outcome {
    if attempts_used_up(entry, options) {
        return Outcome::Die { reason: DeadReason::MaxAttempts, error };
    }
    let detail = error.map(|error| Detail { error: Some(error), dead: None });
    Outcome::Write(Record::Nacked { key: key(entry), epoch: entry.epoch, visible_at, detail })
}

pub(crate) fn attempts_used_up(entry: &Entry, options: &QueueOptions) -> bool {
    options.max_attempts.is_some_and(|max| entry.attempts >= max)
}

/// A visibility timeout that a call asks for.
pub(crate) fn check_visibility(visibility: Duration, options: &QueueOptions) -> Result<()> {
    if visibility.is_zero() {
        return Err(Error::invalid("visibility is zero: the message would be receivable by others at once"));
    }
    if visibility > options.max_visibility() {
        return Err(Error::invalid(format!(
            "visibility of {visibility:?} is above the queue's max_visibility_timeout of {:?}",
            options.max_visibility()
        )));
    }
    Ok(())
}

/// Hands `entry` out until `now + visibility`.
pub(crate) fn receive(entry: &Entry, visibility: Duration, now: Timestamp) -> Record {
    Record::Received {
        key: key(entry),
        epoch: entry.epoch.saturating_add(1),
        receive_count: entry.receive_count.saturating_add(1),
        attempts: entry.attempts.saturating_add(1),
        visible_at: now.after(visibility),
    }
}

/// What time alone does to `entry` once its next event has passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Timeout {
    /// It is receivable; nothing is written.
    Ready,
    /// Its last deadline passed.
    Die(DeadReason),
    /// Its time to live passed.
    Expire,
}

pub(crate) fn timeout(entry: &Entry, options: &QueueOptions, now: Timestamp) -> Timeout {
    if entry.phase == Phase::Held && attempts_used_up(entry, options) {
        return Timeout::Die(DeadReason::MaxAttempts);
    }
    match entry.expires_at <= now {
        true if options.keep_expired => Timeout::Die(DeadReason::Expired),
        true => Timeout::Expire,
        false => Timeout::Ready,
    }
}
