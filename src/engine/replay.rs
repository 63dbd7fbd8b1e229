//! Replay: puts the log's records into an index, at open and when an index is lost.
//!
//! # Invariants
//! 13: the same transition as in live operation gives the same index. Records that the index has
//! already are passed over.
//!
//! # Not here
//! Which index, and from where on: `open.rs`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::engine::applier::{Change, Fold};
use crate::engine::apply::{Written, transition};
use crate::engine::queues::Queue;
use crate::env::Fs;
use crate::error::{Damage, Error, ErrorKind, Result};
use crate::index::Index;
use crate::log::{Found, Frame, LOG_DIR, LogReader};
use crate::record::{self, Raw, Record, StateSet};
use crate::types::{Entry, Lsn, Place, Position, QueueId, QueueName, State};

/// Changes that replay gathers before they go into the index.
const REPLAY_BATCH: usize = 50_000;

/// Why replay stopped.
pub(crate) enum Failure {
    Log(Error),
    /// The index can be thrown away.
    Index(Error),
}

impl Failure {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Log(error) | Self::Index(error) => error,
        }
    }
}

/// Puts records into an index.
pub(crate) struct Replay {
    index: Index,
    fold: Fold,
    rows: BTreeMap<QueueId, Vec<u8>>,
    pub(crate) records: u64,
    seed: u32,
}

impl Replay {
    pub(crate) fn new(mut index: Index, seed: u32) -> Result<Self> {
        let rows = index.queues()?.into_iter().collect();
        Ok(Self { fold: Fold::new(index.applied(), index.clock()), index, rows, records: 0, seed })
    }

    pub(crate) fn frame(&mut self, frame: &Frame<'_>, segments: &Path) -> Result<(), Failure> {
        let mut lsn = frame.first_lsn;
        for item in record::split_payload(frame.payload) {
            let bad = |what: &dyn std::fmt::Display| {
                let file = segments.join(format!("segment {}", frame.segment));
                let damage = Damage { file, offset: frame.offset.into(), first_lsn: Some(lsn), last_lsn: None };
                Failure::Log(Error::corrupt(what, damage))
            };
            let (offset, raw) = item.map_err(|e| bad(&e))?;
            let record = raw.decode().map_err(|e| match e {
                record::Bad::UnknownKind(kind) => Failure::Log(Error::new(
                    ErrorKind::Unsupported,
                    format!("the log has records of kind {kind}, which this version does not know; use a newer one"),
                )),
                other => bad(&other),
            })?;
            if let Some(record) = record.filter(|_| lsn > self.index.applied()) {
                let field = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
                let at = Position {
                    segment: frame.segment,
                    offset: frame.payload_offset.saturating_add(field(offset)),
                    len: field(raw.len),
                };
                self.record(&record, Written { lsn, at, clock: frame.clock }).map_err(Failure::Index)?;
            }
            lsn = lsn.plus(1);
        }
        self.fold.reach(lsn.previous(), frame.clock);
        if self.fold.len() >= REPLAY_BATCH {
            self.fold.flush(&mut self.index).map_err(Failure::Index)?;
        }
        Ok(())
    }

    fn record(&mut self, record: &Record, written: Written) -> Result<()> {
        self.records += 1;
        match record {
            Record::QueueCreated { name, options } => {
                let id = QueueId(written.lsn.0);
                self.set_row(id, Some(encode_row(id, name, options, false, written.at, self.seed)));
            }
            Record::QueueConfigured { queue, name, options, paused } => {
                self.set_row(*queue, Some(encode_row(*queue, name, options, *paused, written.at, self.seed)));
            }
            Record::QueuePaused { queue, paused } => {
                if let Some(row) = self.rows.get(queue).and_then(|row| decode_row(*queue, row)) {
                    let row = encode_row(*queue, row.name.as_str(), &row.options, *paused, row.defined, self.seed);
                    self.set_row(*queue, Some(row));
                }
            }
            Record::QueueDeleted { queue } => {
                let states = StateSet::of(&State::ALL);
                self.add(Change::Purge { queue: *queue, states, at: written.clock });
                self.set_row(*queue, None);
            }
            Record::Purged { queue, states } => {
                self.add(Change::Purge { queue: *queue, states: *states, at: written.clock });
            }
            Record::Mark | Record::Clean => {}
            about_message => {
                let before = self.before(about_message, written.lsn)?;
                let after = transition(before, about_message, written);
                self.add(Change::Message { before: before.as_ref().map(Entry::place), after });
            }
        }
        Ok(())
    }

    /// The message as it stands before the record.
    fn before(&mut self, record: &Record, lsn: Lsn) -> Result<Option<Entry>> {
        let Some(place) = record.place(lsn) else { return Ok(None) };
        if let Some(known) = self.fold.get(&place) {
            return Ok(known);
        }
        if matches!(record, Record::Sent(_)) || place.id.0 > self.index.applied().0 {
            return Ok(None);
        }
        let indexed = self.index.get(place.queue, place.id)?;
        Ok(indexed.filter(|entry| !self.fold.purges(entry)))
    }

    fn set_row(&mut self, id: QueueId, row: Option<Vec<u8>>) {
        match &row {
            Some(row) => self.rows.insert(id, row.clone()),
            None => self.rows.remove(&id),
        };
        self.add(Change::Queue { id, row });
    }

    fn add(&mut self, change: Change) {
        self.fold.add(change, self.index.applied());
    }

    pub(crate) fn finish(mut self) -> Result<Index> {
        self.fold.flush(&mut self.index)?;
        Ok(self.index)
    }
}

/// Rebuilds an index from the log of an open store, up to an LSN that is durable.
pub(crate) fn rebuild_upto(fs: &Arc<dyn Fs>, dir: &Path, index: Index, upto: Lsn, seed: u32) -> Result<Index> {
    let mut replay = Replay::new(index, seed)?;
    let mut reader = LogReader::open(fs, dir)?;
    while let Some(found) = reader.next() {
        match found? {
            Found::Frame(frame) if frame.first_lsn > upto => break,
            Found::Frame(frame) => {
                replay.frame(&frame.borrow(), &dir.join(LOG_DIR)).map_err(Failure::into_error)?;
            }
            Found::Damage { what, at, .. } => return Err(Error::corrupt(what, at)),
            Found::Tail { .. } => {}
        }
    }
    replay.finish()
}

/// A queue's row in the index.
pub(crate) struct Row {
    pub(crate) name: QueueName,
    pub(crate) options: crate::QueueOptions,
    pub(crate) paused: bool,
    pub(crate) defined: Position,
}

pub(crate) fn queue_row(id: QueueId, queue: &Queue, seed: u32) -> Vec<u8> {
    encode_row(id, queue.name.as_str(), &queue.options, queue.paused, queue.defined, seed)
}

fn encode_row(
    id: QueueId,
    name: &str,
    options: &crate::QueueOptions,
    paused: bool,
    defined: Position,
    seed: u32,
) -> Vec<u8> {
    let mut row = Vec::with_capacity(96);
    for field in [defined.segment, defined.offset, defined.len] {
        row.extend_from_slice(&field.to_le_bytes());
    }
    let record = Record::QueueConfigured { queue: id, name: name.to_owned(), options: options.clone(), paused };
    record::encode(&record, &[], Lsn::ZERO, seed, &mut row);
    row
}

pub(crate) fn decode_row(id: QueueId, row: &[u8]) -> Option<Row> {
    let mut reader = crate::codec::Reader::new(row);
    let defined = Position { segment: reader.u32().ok()?, offset: reader.u32().ok()?, len: reader.u32().ok()? };
    let rest = reader.bytes(reader.remaining()).ok()?;
    match Raw::split(rest).ok()?.decode().ok()?? {
        Record::QueueConfigured { queue, name, options, paused } if queue == id => {
            Some(Row { name: QueueName::new(&name).ok()?, options, paused, defined })
        }
        _ => None,
    }
}

impl Record {
    /// Where the message stands that the record is about.
    fn place(&self, lsn: Lsn) -> Option<Place> {
        let priority = match self {
            Self::Sent(sent) => sent.priority,
            Self::Relocated(relocated) => relocated.key.priority,
            Self::Received { key, .. }
            | Self::Extended { key, .. }
            | Self::Nacked { key, .. }
            | Self::Released { key, .. }
            | Self::Acked { key, .. }
            | Self::Dead { key, .. }
            | Self::Redriven { key, .. }
            | Self::Moved { key, .. }
            | Self::Expired { key } => key.priority,
            _ => return None,
        };
        let (queue, id) = self.subject(lsn);
        Some(Place { queue: queue?, priority, id: id? })
    }
}
