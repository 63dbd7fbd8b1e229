//! What opening a store tells: while it runs, and at its end.

use std::path::PathBuf;
use std::time::Duration;

use crate::options::Durability;
use crate::types::Lsn;

/// What a long recovery tells while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RecoveryProgress {
    /// Bytes of the log that are read.
    pub done_len: u64,
    /// Bytes of the log that have to be read.
    pub total_len: u64,
}

/// What became of the index at open.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum IndexReport {
    /// The store is new.
    Created,
    /// It was used as it was.
    Kept,
    /// It was used, and brought up to the end of the log.
    Replayed,
    /// It was built anew from the log.
    Rebuilt {
        /// Why.
        reason: String,
    },
}

/// What building the index anew from the log gave; see [`Store::rebuild_index`](crate::Store::rebuild_index).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RebuildReport {
    /// Messages in it.
    pub messages: u64,
    /// Whether the index that it replaces had the same messages.
    pub agreed: bool,
    /// The generation that is in use now.
    pub generation: u64,
}

/// A last frame that was never acknowledged and was cut off.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TornTail {
    /// The segment.
    pub file: PathBuf,
    /// The first byte cut.
    pub offset: u64,
    /// How many bytes were cut; a copy is in `quarantine/` if there was room.
    pub len: u64,
}

/// What was found and done when a store was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OpenReport {
    /// Whether the store is new.
    pub created: bool,
    /// When a write counts as done, and so what a power cut may lose.
    pub durability: Durability,
    /// Records that were replayed into the index.
    pub replayed_records: u64,
    /// The last record of the log.
    pub last_lsn: Lsn,
    /// The last frame, if it was torn by a crash and cut off.
    pub torn_tail: Option<TornTail>,
    /// What became of the index.
    pub index: IndexReport,
    /// Messages whose deadline passed while nobody was looking and that are receivable again.
    pub redelivered: u64,
    /// Messages in flight that were released because of [`OnOpen::Release`](crate::OnOpen::Release).
    pub released: u64,
    /// Messages whose last deadline passed and that are dead or moved to a dead-letter queue.
    pub dead_lettered: u64,
    /// How far the wall clock stands behind the store's clock, if it does: it was set back.
    pub clock_step_back: Option<Duration>,
    /// One of the two checkpoint slots was damaged; the other one was used.
    pub checkpoint_slot_damaged: bool,
    /// Own leftovers that were removed.
    pub removed_files: Vec<String>,
    /// Files in the store's directories that are not the store's. They were left alone.
    pub foreign_files: Vec<String>,
    /// How long opening took.
    pub duration: Duration,
}

impl std::fmt::Display for OpenReport {
    /// What a person wants to know, in one line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = if self.created { "created" } else { "opened" };
        write!(f, "{what} in {:?} at lsn {}", self.duration, self.last_lsn)?;
        match &self.index {
            IndexReport::Created | IndexReport::Kept => {}
            IndexReport::Replayed => write!(f, "; {} records replayed", self.replayed_records)?,
            IndexReport::Rebuilt { reason } => {
                write!(f, "; index rebuilt from {} records ({reason})", self.replayed_records)?;
            }
        }
        if let Some(torn) = &self.torn_tail {
            write!(f, "; {} bytes of a torn write cut off {} at {}", torn.len, torn.file.display(), torn.offset)?;
        }
        for (count, what) in [
            (self.redelivered, "messages are receivable again"),
            (self.released, "messages were released"),
            (self.dead_lettered, "messages ran out of attempts"),
        ] {
            if count > 0 {
                write!(f, "; {count} {what}")?;
            }
        }
        if let Some(step) = self.clock_step_back {
            write!(f, "; the wall clock is {step:?} behind the store's")?;
        }
        if self.durability != Durability::Always {
            write!(f, "; durability {}", self.durability)?;
        }
        if self.checkpoint_slot_damaged {
            f.write_str("; one checkpoint slot was damaged, the other one was used")?;
        }
        if !self.foreign_files.is_empty() {
            write!(f, "; left alone: {}", self.foreign_files.join(", "))?;
        }
        Ok(())
    }
}
