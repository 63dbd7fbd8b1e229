//! From record to record through the log, learning the queues' names on the way.
//!
//! # Invariants
//! A record that cannot be split or decoded is told with its reason, and the next one or the next
//! frame follows. LSNs are the frame's, so a record that is passed over shifts no other.
//!
//! # Not here
//! What a record looks like from outside: `fields.rs`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::env::os::os_env;
use crate::error::{Damage, Result};
use crate::log::{Found, LogReader, OwnedFrame, StoreFile};
use crate::record::{Bad, Record, kind_name, split_payload};
use crate::types::{Lsn, MessageId, Position, QueueId, QueueName, Timestamp};

/// Queue id -> name, as far as their definitions were seen.
pub(super) type Names = BTreeMap<QueueId, QueueName>;

/// One record, and where it stands.
pub(super) struct Seen {
    pub(super) lsn: Lsn,
    pub(super) segment: u32,
    /// Of the record itself, in the segment's file.
    pub(super) offset: u32,
    pub(super) len: usize,
    pub(super) clock: Timestamp,
    pub(super) durable_lsn: Lsn,
    /// The number of the kind on disk; `None` when not even that could be told.
    pub(super) code: Option<u8>,
    pub(super) kind: &'static str,
    pub(super) queue: Option<QueueId>,
    pub(super) id: Option<MessageId>,
    pub(super) crc_ok: bool,
    /// `Err`: why it cannot be decoded.
    pub(super) record: Result<Record, Bad>,
    /// Empty when bodies are not asked for.
    pub(super) body: Vec<u8>,
    pub(super) body_len: usize,
}

impl Seen {
    /// Where the record is.
    pub(super) fn position(&self) -> Position {
        let len = u32::try_from(self.len).unwrap_or(u32::MAX);
        Position { segment: self.segment, offset: self.offset, len }
    }
}

pub(super) enum Step {
    Record(Box<Seen>),
    Damage { what: &'static str, at: Damage, len: u64 },
    Tail { file: PathBuf, offset: u64, len: u64, ambiguous: bool },
}

/// The frame that is being taken apart.
struct Open {
    frame: OwnedFrame,
    /// Where its next record begins in the payload.
    offset: usize,
    lsn: Lsn,
}

pub(super) struct Walk {
    reader: LogReader,
    seed: u32,
    open: Option<Open>,
    names: Names,
    with_bodies: bool,
}

impl Walk {
    pub(super) fn open(dir: &Path, with_bodies: bool) -> Result<Self> {
        let reader = LogReader::open(&os_env().fs, dir)?;
        let seed = reader.store().id.seed();
        Ok(Self { reader, seed, open: None, names: Names::new(), with_bodies })
    }

    pub(super) const fn store(&self) -> &StoreFile {
        self.reader.store()
    }

    pub(super) const fn names(&self) -> &Names {
        &self.names
    }

    pub(super) fn again(&mut self) {
        self.reader.again();
    }

    pub(super) fn next(&mut self) -> Option<Result<Step>> {
        loop {
            if let Some(seen) = self.take() {
                return Some(Ok(Step::Record(Box::new(seen))));
            }
            match self.reader.next()? {
                Ok(Found::Frame(frame)) => {
                    let lsn = frame.first_lsn;
                    self.open = Some(Open { frame, offset: 0, lsn });
                }
                Ok(Found::Damage { what, at, len }) => return Some(Ok(Step::Damage { what, at, len })),
                Ok(Found::Tail { file, offset, len, seen }) => {
                    let ambiguous = seen == crate::log::Seen::Damaged;
                    return Some(Ok(Step::Tail { file, offset, len, ambiguous }));
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// The next record of the open frame.
    fn take(&mut self) -> Option<Seen> {
        let open = self.open.as_mut()?;
        let rest = open.frame.payload.get(open.offset..).unwrap_or_default();
        let Some(raw) = split_payload(rest).next() else {
            self.open = None;
            return None;
        };
        let (lsn, frame) = (open.lsn, &open.frame);
        let in_file = u32::try_from(open.offset).unwrap_or(u32::MAX);
        let mut seen = Seen {
            lsn,
            segment: frame.segment,
            offset: frame.payload_offset.saturating_add(in_file),
            len: rest.len(),
            clock: frame.clock,
            durable_lsn: frame.durable_lsn,
            code: None,
            kind: "unknown",
            queue: None,
            id: None,
            crc_ok: true,
            record: Err(Bad::Length),
            body: Vec::new(),
            body_len: 0,
        };
        open.lsn = lsn.plus(1);
        // What cannot be split ends the frame: where the next record begins is not known.
        open.offset = open.frame.payload.len();
        if let Ok((_, raw)) = raw {
            open.offset = open.offset - rest.len() + raw.len;
            seen.len = raw.len;
            seen.code = Some(raw.kind);
            seen.kind = kind_name(raw.kind);
            seen.body_len = raw.body.len();
            if self.with_bodies {
                seen.body = raw.body.to_vec();
            }
            seen.record = raw.decode().and_then(|record| record.ok_or(Bad::UnknownKind(raw.kind)));
            if let Ok(record) = &seen.record {
                (seen.queue, seen.id) = record.subject(lsn);
                seen.crc_ok = raw.is_intact(seen.id.unwrap_or(lsn.into()), self.seed);
                learn(&mut self.names, record, lsn);
            }
        }
        Some(seen)
    }
}

fn learn(names: &mut Names, record: &Record, lsn: Lsn) {
    let (id, name) = match record {
        Record::QueueCreated { name, .. } => (QueueId(lsn.0), name),
        Record::QueueConfigured { queue, name, .. } => (*queue, name),
        _ => return,
    };
    if let Ok(name) = QueueName::new(name) {
        names.insert(id, name);
    }
}
