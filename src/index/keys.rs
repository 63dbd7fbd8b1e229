//! Keys of the index's rows: their order as bytes is the order in which messages are delivered.
//!
//! ```text
//! meta      01
//! queue     02 │ queue u64 BE
//! segments  03 │ number of the group u32 BE
//! page      10 │ queue u64 BE │ rank u16 BE │ first id u64 BE
//! ```
//!
//! # Invariants
//! The rank falls as the priority rises, so that byte order is (priority descending, id ascending) (6).

use crate::codec::{Reader, Short};
use crate::types::{MessageId, Place, QueueId};

/// Longest key, in bytes.
const MAX_KEY_LEN: usize = 19;

pub(super) const META: [u8; 1] = [0x01];
const QUEUE: u8 = 0x02;
const SEGMENTS: u8 = 0x03;
const PAGE: u8 = 0x10;

/// Below and above every key.
pub(super) const LOWEST: [u8; 1] = [0];
pub(super) const HIGHEST: [u8; 1] = [0xff];

/// A queue and a priority. Ordered by queue, then larger priority first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Lane {
    pub(super) queue: QueueId,
    rank: u16,
}

impl Lane {
    pub(super) const fn new(queue: QueueId, priority: i16) -> Self {
        Self { queue, rank: !(priority.cast_unsigned() ^ 0x8000) }
    }

    pub(super) const fn of(place: &Place) -> Self {
        Self::new(place.queue, place.priority)
    }

    /// The lane of `queue` that is delivered first, should it exist.
    pub(super) const fn first_of(queue: QueueId) -> Self {
        Self { queue, rank: 0 }
    }

    pub(super) const fn priority(self) -> i16 {
        (!self.rank ^ 0x8000).cast_signed()
    }
}

/// A page: its lane, and a number that none of its ids is below.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct PageKey {
    pub(super) lane: Lane,
    pub(super) first: MessageId,
}

impl PageKey {
    pub(super) const MIN: Self = Self { lane: Lane::first_of(QueueId(0)), first: MessageId::MIN };

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut key = Vec::with_capacity(MAX_KEY_LEN);
        key.push(PAGE);
        key.extend_from_slice(&self.lane.queue.0.to_be_bytes());
        key.extend_from_slice(&self.lane.rank.to_be_bytes());
        key.extend_from_slice(&self.first.0.to_be_bytes());
        key
    }
}

pub(super) fn queue(id: QueueId) -> Vec<u8> {
    let mut key = vec![QUEUE];
    key.extend_from_slice(&id.0.to_be_bytes());
    key
}

pub(super) fn segments(group: u32) -> Vec<u8> {
    let mut key = vec![SEGMENTS];
    key.extend_from_slice(&group.to_be_bytes());
    key
}

/// A key read back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
    Meta,
    Queue(QueueId),
    Segments(u32),
    Page(PageKey),
}

impl Key {
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Short> {
        let mut reader = Reader::new(bytes);
        let key = match reader.u8()? {
            0x01 => Self::Meta,
            QUEUE => Self::Queue(QueueId(reader.array().map(u64::from_be_bytes)?)),
            SEGMENTS => Self::Segments(reader.array().map(u32::from_be_bytes)?),
            PAGE => {
                let queue = QueueId(reader.array().map(u64::from_be_bytes)?);
                let rank = reader.array().map(u16::from_be_bytes)?;
                let first = MessageId(reader.array().map(u64::from_be_bytes)?);
                Self::Page(PageKey { lane: Lane { queue, rank }, first })
            }
            _ => return Err(Short),
        };
        if reader.remaining() == 0 { Ok(key) } else { Err(Short) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_the_bytes_is_the_order_of_delivery() {
        let page =
            |queue, priority, first| PageKey { lane: Lane::new(QueueId(queue), priority), first: MessageId(first) };
        let pages = [
            page(1, i16::MAX, 0),
            page(1, 1, 5),
            page(1, 0, 3),
            page(1, 0, 256),
            page(1, 0, u64::MAX),
            page(1, -1, 0),
            page(1, i16::MIN, 9),
            page(256, 7, 1),
        ];
        assert!(pages.is_sorted() && pages.iter().map(PageKey::encode).is_sorted());
        for key in pages {
            assert_eq!(Key::decode(&key.encode()), Ok(Key::Page(key)));
        }
        for priority in [i16::MIN, -1, 0, 1, i16::MAX] {
            assert_eq!(Lane::new(QueueId(1), priority).priority(), priority);
        }
    }

    #[test]
    fn other_keys_are_read_back_and_strangers_are_refused() {
        assert_eq!(Key::decode(&META), Ok(Key::Meta));
        assert_eq!(Key::decode(&queue(QueueId(77))), Ok(Key::Queue(QueueId(77))));
        assert_eq!(Key::decode(&segments(3)), Ok(Key::Segments(3)));
        for bad in [&[][..], &[0x44], &[0x01, 0], &[0x02, 1], &[0x10; 18], &[0x10; 20]] {
            assert_eq!(Key::decode(bad), Err(Short));
        }
    }
}
