//! Where a record stands: in the order of the log, and on the disk.

use std::fmt;

/// A log sequence number: the dense, strictly increasing number of a record in the store's log.
/// The first record of a store is 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct Lsn(pub(crate) u64);

impl Lsn {
    /// Before the first record.
    pub(crate) const ZERO: Self = Self(0);
    /// The first record of a store.
    pub(crate) const FIRST: Self = Self(1);

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// An LSN from its number.
    #[must_use]
    pub const fn new(lsn: u64) -> Self {
        Self(lsn)
    }

    /// The LSN `count` records later. A store would need to write for longer than hardware lasts
    /// to reach the end, so it saturates there.
    pub(crate) const fn plus(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }

    pub(crate) const fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Where the bytes of one record stand: segment number, byte offset in the segment's file, and
/// how many bytes the record has in all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Position {
    pub(crate) segment: u32,
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

impl Position {
    /// No record at all. Segment numbers begin at 1, so no record stands here.
    pub(crate) const NONE: Self = Self { segment: 0, offset: 0, len: 0 };

    pub(crate) const fn is_some(self) -> bool {
        self.segment != 0
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {} offset {}", self.segment, self.offset)
    }
}
