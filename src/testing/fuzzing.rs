//! Takes bytes from nowhere to the code that reads bytes from disk or from users. Each function
//! must return for every input; it panics when what was read does not hold together.

use crate::record::{self, Raw, Record};
use crate::types::{Lsn, Receipt};

/// Any number will do: it is only written and read back here.
const SEED: u32 = 0x5eed;

/// Reads `text` as a receipt. One that is accepted must print as it was given.
pub fn receipt(text: &str) {
    if let Ok(receipt) = text.parse::<Receipt>() {
        assert_eq!(receipt.to_string(), text, "a receipt is accepted in a spelling that is not its own");
    }
}

/// Reads `payload` as the records of a frame. One that is accepted must be the same after it was
/// written again.
pub fn records(payload: &[u8]) {
    let mut end = 0;
    for (at, raw) in record::split_payload(payload).flatten() {
        assert!(at == end && raw.len > 0, "records overlap or leave a gap");
        end = at + raw.len;
        if let Ok(Some(record)) = raw.decode() {
            written_again(&record, Lsn::FIRST);
        }
    }
    assert!(end <= payload.len(), "a record ends behind the payload");
}

fn written_again(record: &Record, lsn: Lsn) {
    let mut bytes = Vec::new();
    let range = record::encode(record, &[], lsn, SEED, &mut bytes);
    assert_eq!(range.len(), bytes.len());
    let again = Raw::split(&bytes);
    let id = record.subject(lsn).1.unwrap_or_else(|| lsn.into());
    assert!(again.is_ok_and(|raw| raw.is_intact(id, SEED)), "a record just written is not intact");
    assert_eq!(again.and_then(|raw| raw.decode()).as_ref(), Ok(&Some(record.clone())), "a record changes");
}

/// Reads `body` as a typed body of several shapes.
pub fn body(body: &[u8]) {
    let _ = record::decode_body::<Vec<String>>(body);
    let _ = record::decode_body::<std::collections::BTreeMap<String, Vec<u64>>>(body);
    let _ = record::decode_body::<(Option<u128>, Vec<Vec<u8>>, char, f64)>(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_record_are_refused_quietly() {
        for len in 0..64 {
            for byte in [0, 1, 10, 0x7f, 0xff] {
                records(&vec![byte; len]);
                body(&vec![byte; len]);
            }
        }
    }

    #[test]
    fn every_truncation_and_every_flipped_bit_of_a_record_returns() {
        let key = record::Key { queue: 3, priority: -7, id: 9 };
        let mut bytes = Vec::new();
        let nacked = Record::Nacked {
            key,
            epoch: 2,
            visible_at: crate::Timestamp::from_millis(77),
            detail: Some(record::Detail { error: Some("disk on fire".into()), dead: None }),
        };
        let _ = record::encode(&nacked, &[], Lsn::FIRST, SEED, &mut bytes);
        for len in 0..=bytes.len() {
            records(bytes.get(..len).unwrap());
        }
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            records(&bytes);
        }
    }

    #[test]
    fn a_receipt_prints_as_it_was_read() {
        let text = format!("r1-{}-3-9-2", "0f".repeat(16));
        receipt(&format!("{text}-{:08x}", crc32fast::hash(text.as_bytes())));
        receipt("r1-");
        receipt("");
    }
}
