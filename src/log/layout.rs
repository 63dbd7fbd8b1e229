//! What lies in the directories: segments in order, files to remove, files that are not ours.
//!
//! # Invariants
//! Only regular files with a name of ours are ever opened or removed. A link, a directory or a file of
//! another name is foreign: left alone, and named once.
//!
//! # Not here
//! What is inside the segments behind their headers: [`super::recovery`].

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::env::{EntryKind, Fs, OpenMode};
use crate::error::{Damage, Error, Result};
use crate::types::Lsn;

use super::checkpoint::{CHECKPOINT_FILE, Checkpoint};
use super::format::{FOOTER_LEN, Footer, SEGMENT_HEADER_LEN, SegmentHeader};
use super::segments::segment_name;
use super::spare::SPARE_NAMES;
use super::store_file::{STORE_FILE, StoreFile};

pub(crate) const LOG_DIR: &str = "log";
pub(crate) const QUARANTINE_DIR: &str = "quarantine";
/// How the name of a copy that is being made in quarantine ends.
pub(super) const KEPT_TMP_SUFFIX: &str = ".kept.tmp";

/// A file with a segment's name.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) path: PathBuf,
    /// The LSN in its name.
    pub(super) base: Lsn,
    pub(super) len: u64,
    /// Its header and the header's checksum; `None` when the block is not a header.
    pub(super) header: Option<(SegmentHeader, u32)>,
}

/// The LSN in a segment's file name.
pub(super) fn base_of(name: &str) -> Option<Lsn> {
    let digits = name.strip_suffix(".seg").filter(|digits| digits.len() == 20)?;
    let base = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())??;
    (base > 0).then_some(Lsn(base))
}

/// Everything below a store's directory that concerns the log.
pub(super) struct Layout {
    pub(super) log_dir: PathBuf,
    /// In order of their names.
    pub(super) segments: Vec<Candidate>,
    /// Ours, and of no use: relative to the store's directory.
    pub(super) removable: Vec<String>,
    /// Segments that are not needed any more, oldest first: relative to the store's directory.
    pub(super) old: Vec<String>,
    pub(super) foreign: Vec<String>,
}

impl Layout {
    /// # Errors
    /// `Corrupt` for a segment of another store or under a wrong name; `Unsupported`; `Io`.
    pub(super) fn read(fs: &Arc<dyn Fs>, dir: &Path, store: &StoreFile, read_only: bool) -> Result<Self> {
        let log_dir = dir.join(LOG_DIR);
        let mut layout =
            Self { log_dir, segments: Vec::new(), removable: Vec::new(), old: Vec::new(), foreign: Vec::new() };
        for entry in fs.read_dir(dir).map_err(|e| Error::io("listing", dir, e))? {
            let name = entry.name;
            if entry.kind == EntryKind::File
                && [STORE_FILE, CHECKPOINT_FILE].map(|ours| format!("{ours}.tmp")).contains(&name)
            {
                layout.removable.push(name);
            } else if entry.kind == EntryKind::Dir && name == QUARANTINE_DIR {
                layout.removable.extend(half_kept(fs, &dir.join(name)));
            } else if !is_ours(&name) {
                layout.foreign.push(name);
            }
        }
        let entries = fs.read_dir(&layout.log_dir).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => layout.nothing("the log's directory is missing"),
            _ => Error::io("listing", &layout.log_dir, e),
        })?;
        for entry in entries {
            let (name, path) = (format!("{LOG_DIR}/{}", entry.name), layout.log_dir.join(&entry.name));
            let is_file = entry.kind == EntryKind::File;
            match base_of(&entry.name) {
                Some(base) if is_file => {
                    let header = read_header(fs, &path, base, entry.len, store, read_only)?;
                    layout.segments.push(Candidate { path, base, len: entry.len, header });
                }
                _ if is_file && SPARE_NAMES.contains(&entry.name.as_str()) => {}
                _ if is_file && (entry.name.ends_with(".tmp") || entry.name.ends_with(".spare")) => {
                    layout.removable.push(name);
                }
                _ => layout.foreign.push(name),
            }
        }
        layout.segments.sort_by_key(|segment| segment.base);
        Ok(layout)
    }

    fn nothing(&self, what: &str) -> Error {
        let damage = Damage { file: self.log_dir.clone(), offset: 0, first_lsn: None, last_lsn: None };
        Error::corrupt(what, damage)
    }

    /// The segment that begins with `base` should be there, and is not.
    pub(super) fn missing(&self, base: Lsn, first: Lsn, last: Option<Lsn>) -> Error {
        let file = self.log_dir.join(segment_name(base));
        Error::corrupt("a missing segment", Damage { file, offset: 0, first_lsn: Some(first), last_lsn: last })
    }

    /// Sets aside the segments that the checkpoint says are not needed: a crash came before they were
    /// removed. Whatever state they are in does not matter any more.
    ///
    /// # Errors
    /// `Corrupt` when the first one that is needed is missing or has no header.
    pub(super) fn set_aside_old(
        &mut self,
        fs: &Arc<dyn Fs>,
        store: &StoreFile,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<()> {
        if self.segments.is_empty() {
            let mut error = self.nothing("the log holds no segment");
            if let Some(checkpoint) = checkpoint.filter(|checkpoint| checkpoint.durable_lsn > Lsn::ZERO) {
                let (file, last_lsn) = (self.log_dir.clone(), Some(checkpoint.durable_lsn));
                let damage = Damage { file, offset: 0, first_lsn: Some(Lsn::FIRST), last_lsn };
                error = Error::corrupt("the log holds no segment", damage);
            }
            return Err(error);
        }
        let Some(checkpoint) = checkpoint else { return Ok(()) };
        let number_of = |segment: &Candidate| segment.header.map(|(header, _)| header.number);
        if let Some(first) =
            self.segments.iter().position(|segment| number_of(segment) == Some(checkpoint.first_segment))
        {
            for segment in self.segments.drain(..first) {
                self.old.push(format!("{LOG_DIR}/{}", segment_name(segment.base)));
            }
            return Ok(());
        }
        let later = self.segments.iter().find_map(|segment| {
            let (header, _) = segment.header.filter(|(header, _)| header.number > checkpoint.first_segment)?;
            Some(header)
        });
        let Some(later) = later else {
            // Nothing with a header is needed. A file that is alone may be the stub of the very first.
            if self.segments.len() == 1 && checkpoint.first_segment <= 1 && checkpoint.durable_lsn == Lsn::ZERO {
                return Ok(());
            }
            let last = Some(checkpoint.durable_lsn);
            let newest = self.segments.last();
            if let Some(headless) = newest.filter(|segment| segment.header.is_none()) {
                return Err(headless.damaged_header(last));
            }
            let footer = newest.and_then(|segment| footer_of(fs, segment, store));
            return Err(footer.map(|footer| footer.last.plus(1)).map_or_else(
                || self.nothing("none of the segments that the checkpoint needs is there"),
                |next| self.missing(next, next, last.filter(|last| *last >= next)),
            ));
        };
        let last = later.base.previous();
        let damaged = self.segments.iter().rfind(|segment| segment.header.is_none() && segment.base < later.base);
        Err(match damaged {
            Some(segment) => segment.damaged_header(Some(last)),
            None => self.missing(later.predecessor.base, later.predecessor.base, Some(last)),
        })
    }

    /// Takes the newest file off the list if it has no header.
    pub(super) fn take_stub(&mut self) -> Option<Candidate> {
        self.segments.pop_if(|newest| newest.header.is_none())
    }

    /// All segments that are left have a header, follow each other and know each other.
    ///
    /// # Errors
    /// `Corrupt`, naming the file that is damaged or missing and its LSN range.
    pub(super) fn check_chain(&self, fs: &Arc<dyn Fs>, store: &StoreFile) -> Result<Vec<(SegmentHeader, u32)>> {
        let mut headers = Vec::with_capacity(self.segments.len());
        for (index, segment) in self.segments.iter().enumerate() {
            let Some((header, crc)) = segment.header else {
                let next = self.segments.get(index + 1).map(|next| next.base.previous());
                return Err(segment.damaged_header(next));
            };
            let follows = headers.last().is_none_or(|(before, _): &(SegmentHeader, u32)| {
                header.number == before.number + 1
                    && header.predecessor.number == before.number
                    && header.predecessor.base == before.base
            });
            if !follows {
                let first = index.checked_sub(1).and_then(|before| self.segments.get(before));
                let known = first.and_then(|segment| footer_of(fs, segment, store));
                let first = known.map_or(header.predecessor.base, |footer| footer.last.plus(1));
                return Err(self.missing(header.predecessor.base, first, Some(header.base.previous())));
            }
            headers.push((header, crc));
        }
        Ok(headers)
    }
}

impl Candidate {
    pub(super) fn damaged_header(&self, last: Option<Lsn>) -> Error {
        let last_lsn = last.filter(|last| *last >= self.base);
        let damage = Damage { file: self.path.clone(), offset: 0, first_lsn: Some(self.base), last_lsn };
        Error::corrupt("a damaged segment header", damage)
    }
}

/// Whether an entry of the store's directory has a name of ours. The index's own generations are the
/// index's business.
fn is_ours(name: &str) -> bool {
    [STORE_FILE, CHECKPOINT_FILE, LOG_DIR, QUARANTINE_DIR, "LOCK"].contains(&name) || name.starts_with("index")
}

/// Copies in quarantine that were never finished. All else there is for people.
fn half_kept(fs: &Arc<dyn Fs>, dir: &Path) -> Vec<String> {
    // What can not be listed stays: nothing depends on it.
    let files = fs.read_dir(dir).unwrap_or_default().into_iter().filter(|entry| entry.kind == EntryKind::File);
    let ours = files.filter(|entry| entry.name.ends_with(KEPT_TMP_SUFFIX));
    ours.map(|entry| format!("{QUARANTINE_DIR}/{}", entry.name)).collect()
}

/// The header of the segment at `path`, `None` when its first block is not one.
fn read_header(
    fs: &Arc<dyn Fs>,
    path: &Path,
    base: Lsn,
    len: u64,
    store: &StoreFile,
    read_only: bool,
) -> Result<Option<(SegmentHeader, u32)>> {
    if len < u64::from(SEGMENT_HEADER_LEN) {
        return Ok(None);
    }
    let file = fs.open(path, OpenMode::Read).map_err(|e| Error::io("opening", path, e))?;
    let mut block = [0; SEGMENT_HEADER_LEN as usize];
    file.read_exact_at(&mut block, 0).map_err(|e| Error::io("reading", path, e))?;
    let Some((header, features, crc)) = SegmentHeader::decode(path, &block, store.id.0, store.seed())? else {
        return Ok(None);
    };
    if !read_only {
        features.writable(path)?;
    }
    if header.base != base {
        let damage = Damage { file: path.to_owned(), offset: 0, first_lsn: Some(header.base), last_lsn: None };
        return Err(Error::corrupt(format!("a segment that was called {},", segment_name(header.base)), damage));
    }
    Ok(Some((header, crc)))
}

/// The footer of a segment whose successor is missing, where it can be found without a scan: sealed
/// segments end with it. Only to say in an error what is missing.
fn footer_of(fs: &Arc<dyn Fs>, segment: &Candidate, store: &StoreFile) -> Option<Footer> {
    let offset = u32::try_from(segment.len).ok()?.checked_sub(FOOTER_LEN)?;
    footer_at(fs, &segment.path, segment.header?.0.number, offset, store).ok()?
}

/// The footer at `offset`, if there is a valid one.
pub(super) fn footer_at(
    fs: &Arc<dyn Fs>,
    path: &Path,
    number: u32,
    offset: u32,
    store: &StoreFile,
) -> Result<Option<Footer>> {
    let file = fs.open(path, OpenMode::Read).map_err(|e| Error::io("opening", path, e))?;
    let mut block = [0; FOOTER_LEN as usize];
    match file.read_exact_at(&mut block, offset.into()) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other.map_err(|e| Error::io("reading", path, e))?,
    }
    Footer::decode(path, &block, number, offset, store.seed())
}
