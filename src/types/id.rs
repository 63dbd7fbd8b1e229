//! Identities: of a message, of a queue inside the store, of the store itself.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::types::Lsn;

/// The identity of a message: the log sequence number of the record that sent it.
///
/// Unique in its store, increasing with each send, never reused, and kept for the message's whole
/// life: over redelivery, a dead-letter move, redrive, relocation and a rebuild of the index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct MessageId(pub(crate) u64);

impl MessageId {
    pub(crate) const MIN: Self = Self(0);
    pub(crate) const MAX: Self = Self(u64::MAX);

    /// The id as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// An id from a number that [`get`](Self::get) gave.
    #[must_use]
    pub const fn new(id: u64) -> Self {
        Self(id)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for MessageId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.parse().map(Self).map_err(|_| Error::invalid(format!("message id {text:?} is not a number")))
    }
}

impl From<Lsn> for MessageId {
    fn from(lsn: Lsn) -> Self {
        Self(lsn.0)
    }
}

/// The identity of a queue inside its store: the LSN of the record that created it. A queue that
/// is deleted and created again under the same name is another queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct QueueId(pub(crate) u64);

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The identity of a store: 16 random bytes drawn when it was created.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub(crate) [u8; 16]);

impl StoreId {
    /// The 16 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The start value of every checksum in this store, so that bytes of another store never pass.
    pub(crate) fn seed(&self) -> u32 {
        crc32fast::hash(&self.0)
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreId({self})")
    }
}

impl FromStr for StoreId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::invalid(format!("store id {text:?} is not 32 hexadecimal digits"));
        if text.len() != 32 || !text.is_ascii() {
            return Err(bad());
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| bad())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }
}
