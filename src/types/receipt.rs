//! Receipts: the right to settle one delivery.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::types::{MessageId, QueueId, StoreId};

/// Proof of one delivery of one message. It settles or extends that delivery and no other: the
/// epoch in it is raised by every hand-out and never reset.
///
/// It prints as one word and parses back, so that a program can pass it on:
/// `r1-<store>-<queue>-<message>-<epoch>-<check>`. The check catches a mistyped receipt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Receipt {
    pub(crate) store: StoreId,
    pub(crate) queue: QueueId,
    pub(crate) id: MessageId,
    pub(crate) epoch: u32,
}

impl Receipt {
    /// The store that handed the message out.
    #[must_use]
    pub const fn store(&self) -> StoreId {
        self.store
    }

    /// The message.
    #[must_use]
    pub const fn id(&self) -> MessageId {
        self.id
    }

    /// Which hand-out of the message this is, from 1.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("r1-{}-{}-{}-{}", self.store, self.queue, self.id, self.epoch);
        write!(f, "{text}-{:08x}", crc32fast::hash(text.as_bytes()))
    }
}

impl FromStr for Receipt {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| Error::invalid(format!("receipt {text:?} {why}"));
        let (signed, check) = text.rsplit_once('-').ok_or_else(|| bad("is not of the form r1-…"))?;
        let mut parts = signed.split('-');
        let mut part = || parts.next().ok_or_else(|| bad("is cut short"));
        if part()? != "r1" {
            return Err(bad("is not of the form r1-…"));
        }
        let store = part()?.parse()?;
        let queue = part()?.parse().map_err(|_| bad("has a queue that is not a number"))?;
        let id = part()?.parse()?;
        let epoch = part()?.parse().map_err(|_| bad("has an epoch that is not a number"))?;
        let receipt = Self { store, queue: QueueId(queue), id, epoch };
        // Printing it again catches everything else: other spellings of a number, more parts.
        if check != format!("{:08x}", crc32fast::hash(signed.as_bytes())) || receipt.to_string() != text {
            return Err(bad("does not match its check digits; copy it whole"));
        }
        Ok(receipt)
    }
}
