//! The log: bytes in order. It knows frames of opaque payload, record counts and LSNs.
//!
//! ```text
//! log/  00000000000000000001.seg   00000000000000004711.seg   next.spare  reserve.spare
//!       └ header frame frame … footer ┘ └ header frame frame … zeros ┘   the next one, and what is kept back
//! ```
//!
//! [`recover`] reads it and gives a [`Log`] to append to; [`Segments`] reads records by position from any
//! thread; [`LogReader`] shows it to tools, without a lock. `STORE` and `CHECKPOINT`, whose bytes are made
//! alike, are here too. `docs/format.md` is the truth for bytes.
//!
//! # Invariants
//! LSNs are dense and strictly increasing, the clock never decreases (11). Damage gives an error or the
//! exact result (15).
//!
//! # Not here
//! Queues, messages, what a record is.

use std::path::Path;
use std::sync::Arc;

use crate::env::Fs;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{Lsn, Timestamp};

mod checkpoint;
mod format;
mod layout;
mod quarantine;
mod reader;
mod recovery;
mod repair;
mod segment;
mod segments;
mod spare;
mod store_file;
mod syncer;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use checkpoint::{Checkpoint, CheckpointFile, NO_INDEX};
pub(crate) use format::FRAME_HEADER_LEN;
pub(crate) use layout::LOG_DIR;
pub(crate) use quarantine::keep_in_quarantine;
pub(crate) use reader::{Found, LogReader, OwnedFrame};
pub(crate) use recovery::{Frame, RecoverOptions, Recovered, recover};
pub(crate) use segment::Seen;
pub(crate) use segments::{SegmentInfo, Segments};
pub(crate) use spare::{Room, SpareMaker};
pub(crate) use store_file::StoreFile;
pub(crate) use writer::{FrameStart, Log};

/// Makes the log's directory with its first segment, durably. A half-made one is completed; a whole one
/// is left as it is.
///
/// # Errors
/// `AlreadyExists` when a log with other segments is there; `Corrupt` when the first one is damaged;
/// `Full`; `Io`.
pub(crate) fn create(fs: &Arc<dyn Fs>, dir: &Path, store: &StoreFile, segment_len: u32, now: Timestamp) -> Result<()> {
    let log_dir = dir.join(LOG_DIR);
    match fs.create_dir(&log_dir) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(Error::io("creating", &log_dir, e)),
        _ => {}
    }
    let layout = layout::Layout::read(fs, dir, store, false)?;
    let is_first = |segment: &layout::Candidate| segment.base == Lsn::FIRST;
    if !layout.segments.iter().all(is_first) {
        return Err(Error::new(ErrorKind::AlreadyExists, format!("{} holds a log already", log_dir.display())));
    }
    // Only an empty file may be written over: what has bytes was a segment, and is damaged.
    if let Some(segment) = layout.segments.iter().find(|segment| segment.header.is_none() && segment.len > 0) {
        return Err(segment.damaged_header(None));
    }
    if layout.segments.iter().all(|segment| segment.header.is_none()) {
        writer::make_first(fs, &log_dir, store, segment_len, now)?;
    }
    fs.sync_dir(&log_dir).map_err(|e| Error::io("syncing", &log_dir, e))?;
    fs.sync_dir(dir).map_err(|e| Error::io("syncing", dir, e))
}
