//! What bincode sees of each record: private forms, so that a public type can change without them.
//! Golden bytes (`tests`) pin every one.

use std::collections::BTreeMap;

use bincode::{Decode, Encode};

use super::{Bad, Detail, Key, Record, Relocated, Sent, StateSet};
use crate::error::{Error, Result};
use crate::message::{AttributeValue, Attributes};
use crate::options::{Backoff, QueueOptions};
use crate::types::limits::{MAX_BODY_LEN, MAX_RECORD_META_LEN};
use crate::types::{Phase, QueueId, Timestamp};

#[derive(Encode, Decode)]
enum WireValue {
    String(String),
    Bytes(Vec<u8>),
}

type WireAttributes = Vec<(String, WireValue)>;

#[derive(Encode, Decode)]
struct WireOptions {
    visibility_timeout_ms: u64,
    max_visibility_timeout_ms: u64,
    max_attempts: Option<u32>,
    backoff: (u64, u32, u64, u8),
    max_in_flight: Option<u32>,
    dead_letter: Option<String>,
    keep_expired: bool,
    strict_deadline: bool,
}

#[derive(Encode, Decode)]
struct WireSent {
    queue: u64,
    priority: i16,
    sent_at: u64,
    visible_after: u64,
    expires_at: Option<u64>,
    attributes: WireAttributes,
}

#[derive(Encode, Decode)]
struct WireRelocated {
    key: Key,
    phase: u8,
    origin: Option<u64>,
    counts: (u32, u32, u32),
    /// Sent, visible (after that), expires, first and last received.
    times: (u64, u64, Option<u64>, u64, u64),
    detail: Option<Detail>,
    attributes: WireAttributes,
}

impl From<&QueueOptions> for WireOptions {
    fn from(o: &QueueOptions) -> Self {
        let Backoff { initial_ms, factor, max_ms, jitter_percent } = o.backoff;
        Self {
            visibility_timeout_ms: o.visibility_timeout_ms,
            max_visibility_timeout_ms: o.max_visibility_timeout_ms,
            max_attempts: o.max_attempts,
            backoff: (initial_ms, factor, max_ms, jitter_percent),
            max_in_flight: o.max_in_flight,
            dead_letter: o.dead_letter.clone(),
            keep_expired: o.keep_expired,
            strict_deadline: o.strict_deadline,
        }
    }
}

impl From<WireOptions> for QueueOptions {
    fn from(o: WireOptions) -> Self {
        let (initial_ms, factor, max_ms, jitter_percent) = o.backoff;
        Self {
            visibility_timeout_ms: o.visibility_timeout_ms,
            max_visibility_timeout_ms: o.max_visibility_timeout_ms,
            max_attempts: o.max_attempts,
            backoff: Backoff { initial_ms, factor, max_ms, jitter_percent },
            max_in_flight: o.max_in_flight,
            dead_letter: o.dead_letter,
            keep_expired: o.keep_expired,
            strict_deadline: o.strict_deadline,
        }
    }
}

fn to_wire(attributes: &Attributes) -> WireAttributes {
    let value = |value: &AttributeValue| match value {
        AttributeValue::String(text) => WireValue::String(text.clone()),
        AttributeValue::Bytes(bytes) => WireValue::Bytes(bytes.clone()),
    };
    attributes.iter().map(|(name, v)| (name.clone(), value(v))).collect()
}

fn from_wire(attributes: WireAttributes) -> Attributes {
    let value = |value| match value {
        WireValue::String(text) => AttributeValue::String(text),
        WireValue::Bytes(bytes) => AttributeValue::Bytes(bytes),
    };
    attributes.into_iter().map(|(name, v)| (name, value(v))).collect::<BTreeMap<_, _>>()
}

const fn some_time(at: Timestamp) -> Option<u64> {
    if at.0 == u64::MAX { None } else { Some(at.0) }
}

fn time_or_never(at: Option<u64>) -> Timestamp {
    at.map_or(Timestamp::MAX, Timestamp)
}

const fn phase_code(phase: Phase) -> u8 {
    match phase {
        Phase::Queued => 0,
        Phase::Held => 1,
        Phase::Dead => 2,
    }
}

/// In the place of a phase: dead, and its body is lost.
const BODY_LOST: u8 = 3;

fn phase_of(code: u8) -> Option<Phase> {
    [Phase::Queued, Phase::Held, Phase::Dead].into_iter().find(|phase| phase_code(*phase) == code)
}

const CONFIG: bincode::config::Configuration<
    bincode::config::LittleEndian,
    bincode::config::Varint,
    bincode::config::Limit<MAX_RECORD_META_LEN>,
> = bincode::config::standard().with_limit::<MAX_RECORD_META_LEN>();

fn put<T: Encode>(out: &mut Vec<u8>, value: T) {
    // Writing to a Vec cannot fail, and no type here refuses to be encoded.
    let encoded = bincode::encode_into_std_write(value, out, CONFIG);
    assert!(encoded.is_ok(), "a record that cannot be encoded: {encoded:?}");
}

pub(super) fn encode_meta(record: &Record, out: &mut Vec<u8>) {
    match record {
        Record::QueueCreated { name, options } => put(out, (name, WireOptions::from(options))),
        Record::QueueConfigured { queue, name, options, paused } => {
            put(out, (queue.0, name, WireOptions::from(options), paused));
        }
        Record::QueuePaused { queue, paused } => put(out, (queue.0, paused)),
        Record::QueueDeleted { queue } => put(out, queue.0),
        Record::Sent(sent) => put(
            out,
            WireSent {
                queue: sent.queue.0,
                priority: sent.priority,
                sent_at: sent.sent_at.0,
                visible_after: sent.visible_at.0.saturating_sub(sent.sent_at.0),
                expires_at: some_time(sent.expires_at),
                attributes: to_wire(&sent.attributes),
            },
        ),
        Record::Received { key, epoch, receive_count, attempts, visible_at } => {
            put(out, (key, epoch, receive_count, attempts, visible_at.0));
        }
        Record::Extended { key, epoch, visible_at } => put(out, (key, epoch, visible_at.0)),
        Record::Nacked { key, epoch, visible_at, detail } => put(out, (key, epoch, visible_at.0, detail)),
        Record::Released { key, epoch, attempts, visible_at } => put(out, (key, epoch, attempts, visible_at.0)),
        Record::Acked { key, epoch } => put(out, (key, epoch)),
        Record::Dead { key, detail } => put(out, (key, detail)),
        Record::Redriven { key, to, visible_at } => put(out, (key, to.0, visible_at.0)),
        Record::Moved { key, to, visible_at, detail } => put(out, (key, to.0, visible_at.0, detail)),
        Record::Expired { key } => put(out, key),
        Record::Purged { queue, states } => put(out, (queue.0, states.0)),
        Record::Relocated(r) => put(
            out,
            WireRelocated {
                key: r.key,
                phase: if r.body_lost { BODY_LOST } else { phase_code(r.phase) },
                origin: r.origin.map(|queue| queue.0),
                counts: (r.epoch, r.receive_count, r.attempts),
                times: (
                    r.sent_at.0,
                    r.visible_at.0.wrapping_sub(r.sent_at.0),
                    some_time(r.expires_at),
                    r.first_received_at.0,
                    r.received_at.0,
                ),
                detail: r.detail.clone(),
                attributes: to_wire(&r.attributes),
            },
        ),
        Record::Mark | Record::Clean => {}
    }
}

fn get<T: Decode<()>>(meta: &[u8]) -> Result<T, Bad> {
    let (value, used) = bincode::decode_from_slice(meta, CONFIG).map_err(|_| Bad::Meta)?;
    if used == meta.len() { Ok(value) } else { Err(Bad::Meta) }
}

pub(super) fn decode_meta(kind: u8, meta: &[u8]) -> Result<Record, Bad> {
    Ok(match kind {
        1 => {
            let (name, options): (String, WireOptions) = get(meta)?;
            Record::QueueCreated { name, options: options.into() }
        }
        2 => {
            let (queue, name, options, paused): (u64, String, WireOptions, bool) = get(meta)?;
            Record::QueueConfigured { queue: QueueId(queue), name, options: options.into(), paused }
        }
        3 => {
            let (queue, paused) = get(meta)?;
            Record::QueuePaused { queue: QueueId(queue), paused }
        }
        4 => Record::QueueDeleted { queue: QueueId(get(meta)?) },
        10 => Record::Sent(Box::new(decode_sent(get(meta)?))),
        11 => {
            let (key, epoch, receive_count, attempts, visible_at) = get(meta)?;
            Record::Received { key, epoch, receive_count, attempts, visible_at: Timestamp(visible_at) }
        }
        12 => {
            let (key, epoch, visible_at) = get(meta)?;
            Record::Extended { key, epoch, visible_at: Timestamp(visible_at) }
        }
        13 => {
            let (key, epoch, visible_at, detail) = get(meta)?;
            Record::Nacked { key, epoch, visible_at: Timestamp(visible_at), detail }
        }
        14 => {
            let (key, epoch, attempts, visible_at) = get(meta)?;
            Record::Released { key, epoch, attempts, visible_at: Timestamp(visible_at) }
        }
        15 => {
            let (key, epoch) = get(meta)?;
            Record::Acked { key, epoch }
        }
        16 => {
            let (key, detail) = get(meta)?;
            Record::Dead { key, detail }
        }
        17 => {
            let (key, to, visible_at) = get(meta)?;
            Record::Redriven { key, to: QueueId(to), visible_at: Timestamp(visible_at) }
        }
        18 => {
            let (key, to, visible_at, detail) = get(meta)?;
            Record::Moved { key, to: QueueId(to), visible_at: Timestamp(visible_at), detail }
        }
        19 => Record::Expired { key: get(meta)? },
        20 => {
            let (queue, states) = get(meta)?;
            Record::Purged { queue: QueueId(queue), states: StateSet(states) }
        }
        21 => Record::Relocated(Box::new(decode_relocated(get(meta)?)?)),
        30 if meta.is_empty() => Record::Mark,
        31 if meta.is_empty() => Record::Clean,
        30 | 31 => return Err(Bad::Meta),
        _ => return Err(Bad::UnknownKind(kind)),
    })
}

fn decode_sent(wire: WireSent) -> Sent {
    Sent {
        queue: QueueId(wire.queue),
        priority: wire.priority,
        sent_at: Timestamp(wire.sent_at),
        visible_at: Timestamp(wire.sent_at.saturating_add(wire.visible_after)),
        expires_at: time_or_never(wire.expires_at),
        attributes: from_wire(wire.attributes),
    }
}

fn decode_relocated(wire: WireRelocated) -> Result<Relocated, Bad> {
    let (epoch, receive_count, attempts) = wire.counts;
    let (sent_at, visible_after, expires_at, first_received_at, received_at) = wire.times;
    let body_lost = wire.phase == BODY_LOST;
    let phase = if body_lost { Some(Phase::Dead) } else { phase_of(wire.phase) };
    Ok(Relocated {
        key: wire.key,
        phase: phase.ok_or(Bad::Meta)?,
        origin: wire.origin.map(QueueId),
        epoch,
        receive_count,
        attempts,
        sent_at: Timestamp(sent_at),
        visible_at: Timestamp(sent_at.wrapping_add(visible_after)),
        expires_at: time_or_never(expires_at),
        first_received_at: Timestamp(first_received_at),
        received_at: Timestamp(received_at),
        detail: wire.detail,
        attributes: from_wire(wire.attributes),
        body_lost,
    })
}

const BODY_CONFIG: bincode::config::Configuration<
    bincode::config::LittleEndian,
    bincode::config::Varint,
    bincode::config::Limit<MAX_BODY_LEN>,
> = bincode::config::standard().with_limit::<MAX_BODY_LEN>();

/// A serde value as a bincode body.
pub(crate) fn encode_body<T: serde::Serialize>(value: &T) -> Result<Vec<u8>> {
    bincode::serde::encode_to_vec(value, BODY_CONFIG)
        .map_err(|e| Error::invalid(format!("the value cannot be encoded as a body: {e}")))
}

/// The inverse of [`encode_body`]; trailing bytes are an error.
pub(crate) fn decode_body<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T> {
    let bad =
        |why: String| Error::invalid(format!("the body does not decode as {}: {why}", std::any::type_name::<T>()));
    let (value, used) = bincode::serde::decode_from_slice(body, BODY_CONFIG).map_err(|e| bad(e.to_string()))?;
    if used == body.len() { Ok(value) } else { Err(bad(format!("{} bytes are left over", body.len() - used))) }
}
