//! The small values everything else is made of: ids, positions, names, times, receipts, entries.
//!
//! # Not here
//! No I/O, no clock, no encoding to disk: a value knows how to be made, compared and printed.

pub(crate) mod entry;
pub(crate) mod id;
pub(crate) mod kept_for;
pub(crate) mod limits;
pub(crate) mod lsn;
pub(crate) mod name;
pub(crate) mod receipt;
pub(crate) mod time;

pub(crate) use entry::{Entry, Phase, Place, State};
pub(crate) use id::{MessageId, QueueId, StoreId};
pub(crate) use kept_for::KeptFor;
pub(crate) use lsn::{Lsn, Position};
pub(crate) use name::QueueName;
pub(crate) use receipt::Receipt;
pub(crate) use time::Timestamp;
