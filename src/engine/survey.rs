//! The applier's view of space: which segments are needed, what is to be carried out of the oldest one,
//! and what the figures say.
//!
//! # Invariants
//! 15: a record that cannot be read is set aside with its reason, and what is left of its bytes is kept in
//! `quarantine/` before anything else happens to it. 19: see `reclaim.rs`.
//!
//! # Not here
//! Writing anything: `reclaim.rs`. Removing segments: `log/segments.rs`.

use std::collections::VecDeque;

use crate::engine::applier::{Answer, Applier};
use crate::engine::reclaim::{Cargo, Load};
use crate::engine::stats::StoreStats;
use crate::error::{Error, ErrorKind, Result};
use crate::log::{SegmentInfo, keep_in_quarantine};
use crate::record::Detail;
use crate::types::limits::MAX_ERROR_LEN;
use crate::types::{Entry, KeptFor, Position, QueueName};

/// Messages that one load carries at most, and bytes, unless callers write so much that more is wanted.
const MAX_LOAD_COUNT: usize = 16 * 1024;
const MAX_LOAD_LEN: u64 = 1024 * 1024;

impl Applier {
    /// Tells the other threads how large the index is, and how much the fullest segment holds.
    pub(crate) fn note_figures(&self) {
        let fullest = self.index.segment_uses().values().map(|uses| uses.messages).max();
        self.shared.space.note_index(
            self.index.len_on_disk(),
            self.live_len(),
            self.index.live().0,
            fullest.unwrap_or(0),
        );
    }

    fn live_len(&self) -> u64 {
        self.index.segment_uses().values().map(|uses| uses.bytes).sum()
    }

    /// Whether the log from this segment on is too large for what is live in it. While space is short, an
    /// eighth of it that is dead is too much; with less it would be written again and again for the sake of
    /// frame headers.
    fn is_too_large(&self, first: u32, crowded: bool) -> bool {
        let options = &self.shared.options;
        let (live, segment) = (self.live_len(), u64::from(options.segment_len));
        let (mut len, mut used) = (self.shared.space.spare_len(), 0);
        for other in self.shared.segments.list().into_iter().filter(|other| other.number >= first) {
            len += other.len;
            used += other.used;
        }
        // Whatever lives: the segment that is written, the next one, the reserve.
        let most = live.saturating_mul(options.max_amplification.into()) + 3 * segment;
        len > most || crowded && used.saturating_sub(live) > live / 8 + segment
    }

    fn live_in(&self, segment: u32) -> u64 {
        self.index.segment_uses().get(&segment).map_or(0, |uses| uses.bytes)
    }

    /// The oldest segment, if it could go.
    fn oldest(&self) -> Option<SegmentInfo> {
        let segments = self.shared.segments.list();
        segments.first().copied().filter(|oldest| oldest.sealed && segments.len() > 1)
    }

    /// Whether there is something to give back at once.
    pub(crate) fn may_reclaim(&self) -> bool {
        self.oldest().is_some() && self.is_too_large(0, false)
    }

    /// When the log is too large: what keeps its oldest segment, to be carried to its end.
    pub(crate) fn propose_relocation(&mut self, crowded: bool, wanted: u64) {
        // Those before it go by themselves, or cannot be removed and do not matter here.
        let segment = self.first_needed();
        let segments = self.shared.segments.list();
        let Some(oldest) = segments.into_iter().find(|other| other.number == segment && other.sealed) else { return };
        let is_half_dead = self.live_in(segment) * 2 < oldest.used;
        if !(self.is_too_large(segment, crowded) || crowded && is_half_dead) {
            return;
        }
        let as_of = self.index.applied();
        let live_len = self.live_in(segment);
        let entries = self.read(|index| index.in_segment(segment, MAX_LOAD_COUNT, MAX_LOAD_LEN.max(wanted)));
        let queues: Vec<_> =
            self.definitions.iter().filter(|(_, defined)| **defined == segment).map(|(id, _)| *id).collect();
        let here = self.index.segment_uses().get(&segment).map_or(0, |uses| uses.messages);
        let more = (entries.len() as u64) < here;
        let cargo: Result<VecDeque<Cargo>> =
            entries.into_iter().filter_map(|entry| self.load(entry).transpose()).collect();
        match cargo {
            Ok(cargo) if cargo.is_empty() && queues.is_empty() => {}
            Ok(cargo) => {
                let load = Load { segment, as_of, cargo, queues, live_len, more };
                self.shared.answer(Answer::Relocate(load));
            }
            Err(error) => {
                tracing::error!(%error, segment, "what a segment holds cannot be carried on; it stays for now");
                self.shared.space.note_reclaim(Some(error.to_string()));
            }
        }
    }

    /// Reads what a message's records hold. `None`: it is gone already.
    ///
    /// # Errors
    /// `Io`: it may be readable later.
    fn load(&self, entry: Entry) -> Result<Option<Cargo>> {
        let detail = match self.shared.read_detail(&entry) {
            Ok(detail) => entry.detail.is_some().then_some(detail),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.keep(&entry, entry.detail)?;
                Some(Detail { error: Some(short(&error)), dead: None })
            }
            Err(error) => return Err(error),
        };
        let read = if entry.body.is_some() {
            self.shared.read_record(entry.body, entry.id)
        } else {
            Err(Error::new(ErrorKind::Corrupt, "its body is lost"))
        };
        let (attributes, body) = match read {
            Ok((record, body)) => (record.into_attributes(), Ok(body)),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                if entry.body.is_some() {
                    tracing::error!(message = entry.id.0, %error, "a message cannot be read; it is set aside");
                    self.keep(&entry, entry.body)?;
                }
                (crate::Attributes::new(), Err(short(&error)))
            }
            Err(error) => return Err(error),
        };
        Ok(Some(Cargo { entry, attributes, body, detail }))
    }

    /// Keeps the bytes of a damaged record before its segment goes.
    fn keep(&self, entry: &Entry, at: Position) -> Result<()> {
        let mut bytes = Vec::new();
        match self.shared.segments.read(at, &mut bytes) {
            // There are no bytes to keep.
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(()),
            other => other?,
        }
        let name = format!("message-{}-at-{}-{}.damaged", entry.id, at.segment, at.offset);
        keep_in_quarantine(&self.fs, &self.dir, &name, &bytes).map(|_| ())
    }

    /// The oldest segment that holds a live message, a message's last error or dead reason, or a
    /// queue's definition; the newest one in any case.
    pub(crate) fn first_needed(&self) -> u32 {
        let newest = self.shared.segments.list().last().map_or(1, |segment| segment.number);
        let defined = self.definitions.values().copied().min().unwrap_or(newest);
        let uses = self.index.segment_uses().iter().find(|(_, uses)| uses.messages > 0);
        uses.map_or(newest, |(number, _)| *number).min(defined).min(newest)
    }

    /// Why the oldest segment of the log is still there.
    fn kept_for(&mut self, stats: &StoreStats) -> KeptFor {
        let Some(oldest) = self.oldest().map(|oldest| oldest.number) else { return KeptFor::InUse };
        if let Some(entry) = self.read(|index| index.in_segment(oldest, 1, u64::MAX)).first() {
            let name = self.queue_name(entry.queue);
            return KeptFor::Message { id: entry.id, queue: name, state: entry.state(stats.now) };
        }
        let defined = self.definitions.iter().find(|(_, defined)| **defined == oldest).map(|(id, _)| *id);
        defined.map_or(KeptFor::Checkpoint, |id| KeptFor::Queue { queue: self.queue_name(id) })
    }

    fn queue_name(&mut self, id: crate::types::QueueId) -> Option<QueueName> {
        let rows = self.read(crate::index::Index::queues);
        let row = rows.into_iter().find(|(other, _)| *other == id);
        row.and_then(|(id, row)| crate::engine::replay::decode_row(id, &row)).map(|row| row.name)
    }

    /// Puts in what the committer does not know.
    pub(crate) fn complete(&mut self, stats: &mut StoreStats) {
        stats.live_len = self.live_len();
        stats.dead_len = stats.log_len.saturating_sub(stats.live_len);
        stats.oldest_segment_kept_for = self.kept_for(stats);
        stats.index_len = self.index.len_on_disk();
        stats.index_generation = self.index_generation;
        stats.index_in_memory = self.in_memory;
        stats.messages = self.index.live().0;
        stats.reclaim_error = self.shared.space.reclaim_error();
    }
}

/// An error's text as it may be kept with a message.
fn short(error: &Error) -> String {
    let mut text = error.to_string();
    text.truncate(text.floor_char_boundary(MAX_ERROR_LEN));
    text
}
