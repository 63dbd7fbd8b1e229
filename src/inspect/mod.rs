//! A look into a store for tools: without a lock, without a change, whatever state it is in.
//!
//! ```text
//! Log        every record, in order, with damage and the torn end     reads on behind damage
//! StoreState the queues and live messages that the log adds up to     memory by live messages
//! history    the records about one message
//! ```
//!
//! It works on a store that is open elsewhere, a closed one, a copy, a broken one.
//!
//! ```
//! # let dir = tempfile::tempdir().unwrap();
//! # pollster::block_on(async {
//! use reappear::inspect::{Item, Log};
//!
//! let path = dir.path().join("jobs");
//! let store = reappear::Store::open(&path).await?;
//! store.queue("thumbnails")?.send("cat.png").await?;
//! for item in Log::open(&path)? {
//!     if let Item::Record(record) = item? {
//!         println!("{} {} {} bytes", record.lsn, record.kind, record.body.len());
//!     }
//! }
//! # store.close().await?;
//! # Ok::<(), reappear::Error>(()) }).unwrap();
//! ```
//!
//! # Invariants
//! Nothing is created, changed, locked or repaired. Bytes from disk give a record or a description of
//! what is wrong with them, never a panic (15).
//!
//! # Not here
//! How bytes are told from damage: `log/reader.rs`. Putting a store right: opening it.

use std::path::{Path, PathBuf};

use crate::error::{Damage, Result};
use crate::types::{MessageId, StoreId, Timestamp};

mod fields;
mod space;
mod state;
mod walk;

pub use fields::{Fields, LogRecord, QueueSettings};
pub use space::SpaceState;
pub use state::{MessageState, QueueState, StoreState};

use state::Fold;
use walk::{Step, Walk};

/// What stands in a log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Item {
    /// A record whose frame passed its checksums.
    Record(Box<LogRecord>),
    /// Bytes that were there and are not any more: a damaged frame, a missing segment. The reading
    /// goes on behind it.
    Damage {
        /// What is damaged, as a lower-case fragment.
        what: &'static str,
        /// Where, and which records are lost.
        at: Damage,
        /// How many bytes are passed over; 0 when the whole file is missing.
        len: u64,
    },
    /// Bytes behind the end of the log that are no frame: a write that a crash cut off, or one that
    /// goes on at this moment. Opening the store cuts them off.
    Tail {
        /// The segment's file.
        file: PathBuf,
        /// Where the last valid frame ends, in bytes from the start of the file.
        offset: u64,
        /// How many bytes are there.
        len: u64,
        /// Whether a power cut does not explain them, so that opening refuses unless told to cut.
        ambiguous: bool,
    },
}

/// The records of a store's log, oldest first: an iterator of [`Item`]s.
///
/// An error is the last thing it gives.
pub struct Log {
    walk: Walk,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("store", &self.store()).finish_non_exhaustive()
    }
}

impl Log {
    /// Opens the log of the store in the directory `path` for reading. Takes no lock.
    ///
    /// # Errors
    /// `NotFound` when there is no store; `Corrupt` when the store's description is damaged;
    /// `Unsupported` for a newer format; `Io`.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self { walk: Walk::open(path.as_ref(), true)? })
    }

    /// The store's identity.
    #[must_use]
    pub fn store(&self) -> StoreId {
        self.walk.store().id
    }

    /// When the store was created, by the wall clock of that moment.
    #[must_use]
    pub fn created(&self) -> Timestamp {
        self.walk.store().created
    }

    /// Looks again after the end was reached: the iterator goes on with what was written since.
    pub fn again(&mut self) {
        self.walk.again();
    }
}

impl Iterator for Log {
    type Item = Result<Item>;

    fn next(&mut self) -> Option<Result<Item>> {
        Some(self.walk.next()?.map(|step| match step {
            Step::Record(seen) => {
                let record = LogRecord::new(*seen, self.walk.names());
                Item::Record(Box::new(record))
            }
            Step::Damage { what, at, len } => Item::Damage { what, at, len },
            Step::Tail { file, offset, len, ambiguous } => Item::Tail { file, offset, len, ambiguous },
        }))
    }
}

/// The whole life of one message as the log still knows it: each record about it, in order. A purge
/// or the deletion of its queue is among them if it took the message.
///
/// # Errors
/// As [`Log::open`], and `Io` for a read that failed.
pub fn history(path: impl AsRef<Path>, id: MessageId) -> Result<Vec<LogRecord>> {
    let mut walk = Walk::open(path.as_ref(), true)?;
    let mut fold = Fold::only(id);
    let mut records = Vec::new();
    while let Some(step) = walk.next() {
        let Step::Record(seen) = step? else { continue };
        let was_there = fold.holds(id);
        fold.apply(&seen);
        if seen.id == Some(id) || (was_there && !fold.holds(id)) {
            records.push(LogRecord::new(*seen, walk.names()));
        }
    }
    Ok(records)
}
