//! Golden bytes: what is written today must be read for ever.

use super::*;
use crate::message::AttributeValue;
use crate::options::Backoff;
use crate::{State, StoreId};

const STORE: StoreId = StoreId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
const LSN: Lsn = Lsn(42);
const PAGE: &str = include_str!("../../docs/format.md");

fn key() -> Key {
    Key { queue: 7, priority: -3, id: 300 }
}

fn options() -> QueueOptions {
    QueueOptions {
        visibility_timeout_ms: 60_000,
        max_visibility_timeout_ms: 43_200_000,
        max_attempts: Some(10),
        backoff: Backoff { initial_ms: 1000, factor: 2, max_ms: 300_000, jitter_percent: 20 },
        max_in_flight: None,
        dead_letter: Some("dead".to_owned()),
        keep_expired: true,
        strict_deadline: false,
    }
}

fn detail() -> Detail {
    let dead = Died::new(DeadReason::Rejected, Timestamp(5), "jobs", 3);
    Detail { error: Some("bad".to_owned()), dead: Some(dead) }
}

fn attributes() -> Attributes {
    let text = ("kind".to_owned(), AttributeValue::String("png".to_owned()));
    Attributes::from([text, ("raw".to_owned(), AttributeValue::Bytes(vec![0, 255]))])
}

fn sent() -> Sent {
    Sent {
        queue: QueueId(7),
        priority: 1,
        sent_at: Timestamp(1000),
        visible_at: Timestamp(1250),
        expires_at: Timestamp::MAX,
        attributes: attributes(),
    }
}

fn relocated() -> Relocated {
    Relocated {
        key: key(),
        phase: Phase::Held,
        origin: Some(QueueId(6)),
        epoch: 4,
        receive_count: 5,
        attempts: 2,
        sent_at: Timestamp(1),
        visible_at: Timestamp(100_000),
        expires_at: Timestamp(200_000),
        first_received_at: Timestamp(2),
        received_at: Timestamp(3),
        detail: Some(detail()),
        attributes: attributes(),
        body_lost: false,
    }
}

/// One of each kind, its body, and its bytes.
fn golden() -> Vec<(Record, &'static [u8], &'static str)> {
    let (epoch, receive_count, attempts, visible_at) = (4, 5, 2, Timestamp(100_000));
    let (sent, relocated) = (sent(), relocated());
    vec![
        (
            Record::QueueCreated { name: "jobs".to_owned(), options: options() },
            b"",
            "010022000000046a6f6273fb60eafc002e9302010afbe80302fce093040014000104646561640100",
        ),
        (
            Record::QueueConfigured { queue: QueueId(7), name: "jobs".to_owned(), options: options(), paused: true },
            b"",
            "02002400000007046a6f6273fb60eafc002e9302010afbe80302fce09304001400010464656164010001",
        ),
        (Record::QueuePaused { queue: QueueId(7), paused: true }, b"", "0300020000000701"),
        (Record::QueueDeleted { queue: QueueId(7) }, b"", "04000100000007"),
        (
            Record::Sent(Box::new(sent)),
            b"hello",
            "0a011a00000005000000edfe477a0702fbe803fa0002046b696e640003706e6703726177010200ff68656c6c6f",
        ),
        (
            Record::Received { key: key(), epoch, receive_count, attempts, visible_at },
            b"",
            "0b000d0000000705fb2c01040502fca0860100",
        ),
        (Record::Extended { key: key(), epoch, visible_at }, b"", "0c000b0000000705fb2c0104fca0860100"),
        (Record::Nacked { key: key(), epoch, visible_at, detail: None }, b"", "0d000c0000000705fb2c0104fca086010000"),
        (
            Record::Nacked {
                key: key(),
                epoch,
                visible_at,
                detail: Some(Detail { error: Some("bad".to_owned()), dead: None }),
            },
            b"",
            "0d011200000000000000a51028c20705fb2c0104fca086010001010362616400",
        ),
        (Record::Released { key: key(), epoch, attempts, visible_at }, b"", "0e000c0000000705fb2c010402fca0860100"),
        (Record::Acked { key: key(), epoch }, b"", "0f00060000000705fb2c0104"),
        (
            Record::Dead { key: key(), detail: detail() },
            b"",
            "100113000000000000006a71e9710705fb2c010103626164010205046a6f627303",
        ),
        (Record::Redriven { key: key(), to: QueueId(6), visible_at }, b"", "11000b0000000705fb2c0106fca0860100"),
        (
            Record::Moved { key: key(), to: QueueId(6), visible_at, detail: Detail::default() },
            b"",
            "12010d00000000000000d82eeaa40705fb2c0106fca08601000000",
        ),
        (Record::Expired { key: key() }, b"", "1300050000000705fb2c01"),
        (
            Record::Purged { queue: QueueId(7), states: StateSet::of(&[State::Ready, State::Dead]) },
            b"",
            "1400020000000709",
        ),
        (
            Record::Relocated(Box::new(relocated)),
            b"hello",
            "15013b000000050000006f4ed85e0705fb2c0101010604050201fc9f86010001fc400d03000203010103626164010205046a6f62730302046b696e640003706e6703726177010200ff68656c6c6f",
        ),
        (Record::Mark, b"", "1e0000000000"),
        (Record::Clean, b"", "1f0000000000"),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn every_kind_has_its_golden_bytes_and_decodes_from_them() {
    let mut kinds = Vec::new();
    for (record, body, expected) in golden() {
        let mut out = vec![0xEE; 3];
        let range = encode(&record, body, LSN, STORE.seed(), &mut out);
        assert_eq!(range, 3..out.len());
        assert_eq!(hex(&out[3..]), expected, "{}", record.name());
        let bytes = unhex(expected);
        let raw = Raw::split(&bytes).unwrap();
        assert_eq!((raw.len, raw.body, raw.decode().unwrap()), (bytes.len(), body, Some(record.clone())));
        assert!(raw.is_intact(record.subject(LSN).1.unwrap_or(MessageId(LSN.0)), STORE.seed()));
        assert_eq!(kind_name(raw.kind), record.name());
        kinds.push(raw.kind);
    }
    kinds.dedup();
    assert_eq!(kinds, NAMES.map(|(kind, _)| kind), "a kind has no golden bytes");
}

#[test]
fn records_cut_anywhere_or_with_a_byte_too_many_are_refused() {
    for (record, _, bytes) in golden() {
        let bytes = unhex(bytes);
        for len in 0..bytes.len() {
            assert_eq!(Raw::split(&bytes[..len]).err(), Some(Bad::Length), "{} of {len} bytes", record.name());
        }
        let raw = Raw::split(&bytes).unwrap();
        let mut meta = raw.meta.to_vec();
        meta.push(0);
        assert_eq!(Raw { meta: &meta, ..raw }.decode(), Err(Bad::Meta));
    }
}

#[test]
fn lengths_above_the_caps_are_refused_before_anything_is_allocated() {
    let over = len_field(MAX_RECORD_META_LEN + 1);
    let bytes = [&[15, 0][..], &over, &[0; 64]].concat();
    assert_eq!(Raw::split(&bytes).err(), Some(Bad::Length));
    let bytes = [&[10, READABLE, 0, 0, 0, 0][..], &u32::MAX.to_le_bytes(), &[0; 64]].concat();
    assert_eq!(Raw::split(&bytes).err(), Some(Bad::Length));
    // A name that says it is longer than memory.
    let meta = [&[253][..], &u64::MAX.to_le_bytes()].concat();
    let raw = Raw { kind: 1, flags: 0, crc: 0, meta: &meta, body: &[], len: 0 };
    assert_eq!(raw.decode(), Err(Bad::Meta));
}

#[test]
fn an_unknown_kind_is_refused_unless_it_may_be_passed_over() {
    let raw = Raw::split(&[99, 0, 0, 0, 0, 0]).unwrap().decode();
    assert_eq!(raw, Err(Bad::UnknownKind(99)));
    assert_eq!(Raw::split(&[99, IGNORABLE, 0, 0, 0, 0]).unwrap().decode(), Ok(None));
}

#[test]
fn a_records_own_checksum_holds_for_its_message_in_its_store_only() {
    let (record, body, _) = golden().into_iter().find(|(record, ..)| matches!(record, Record::Sent(_))).unwrap();
    let mut bytes = Vec::new();
    encode(&record, body, LSN, STORE.seed(), &mut bytes);
    assert!(Raw::split(&bytes).unwrap().is_intact(MessageId(42), STORE.seed()));
    assert!(!Raw::split(&bytes).unwrap().is_intact(MessageId(43), STORE.seed()));
    assert!(!Raw::split(&bytes).unwrap().is_intact(MessageId(42), 1));
    *bytes.last_mut().unwrap() ^= 1;
    assert!(!Raw::split(&bytes).unwrap().is_intact(MessageId(42), STORE.seed()));
}

#[test]
fn a_payload_splits_into_its_records_and_their_offsets() {
    let mut payload = Vec::new();
    let records = golden();
    let ranges = records.iter().map(|(record, body, _)| encode(record, body, LSN, STORE.seed(), &mut payload));
    let ranges = ranges.collect::<Vec<_>>();
    let split =
        split_payload(&payload).map(|found| found.map(|(at, raw)| at..at + raw.len)).collect::<Result<Vec<_>, _>>();
    assert_eq!(split.unwrap(), ranges);
    payload.push(15);
    let split = split_payload(&payload).collect::<Vec<_>>();
    assert_eq!(split.len(), records.len() + 1);
    assert_eq!(split.last().unwrap().as_ref().err(), Some(&Bad::Length));
}

/// The payload of the frame that the page shows, which `log` decodes the frame of.
#[test]
fn the_pages_frame_holds_the_record_it_says() {
    let (_, rest) = PAGE.split_once("```hex frame\n").unwrap();
    let (rows, _) = rest.split_once("```").unwrap();
    let bytes = rows.lines().flat_map(|row| row.split_whitespace().skip(1)).flat_map(unhex).collect::<Vec<_>>();
    let len = u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize;
    let payload = &bytes[64..64 + len];
    let (record, body, golden) = golden().into_iter().find(|(record, ..)| matches!(record, Record::Sent(_))).unwrap();
    assert_eq!(hex(payload), golden);
    let raw = Raw::split(payload).unwrap();
    assert_eq!((raw.decode().unwrap(), raw.body, raw.len), (Some(record.clone()), body, len));
    let mut again = Vec::new();
    encode(&record, body, LSN, STORE.seed(), &mut again);
    assert_eq!(again, payload);
}
