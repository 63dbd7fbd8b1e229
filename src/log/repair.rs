//! What recovery changes, after everything was read and judged, and the log that comes out of it.
//!
//! In this order: the torn tail is copied to quarantine, zeroed and synced; a stub is removed or made
//! again; missing footers are written; what is not proven durable is written again; everything is
//! synced; leftovers are removed.
//!
//! # Quarantine
//! A file per cut, `<segment>-<offset>-<checksum>.torn`: never deleted by us. A torn tail, which was
//! never acknowledged, is not kept when there is no room, or when 64 files or 256 MiB are there already;
//! an ambiguous end is cut only after it was kept.
//!
//! # Crashes
//! Each step can be cut and done again: see [`super::recovery`].

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::codec;
use crate::env::{File, Fs, OpenMode};
use crate::error::{Error, ErrorKind, Result};
use crate::types::Lsn;

use super::checkpoint::CheckpointFile;
use super::format::{Footer, Predecessor, SEGMENT_HEADER_LEN, SegmentHeader, len32};
use super::layout::{Candidate, LOG_DIR, Layout};
use super::quarantine;
use super::recovery::{Cut, Findings, RecoverOptions, Recovered, Stub, Torn};
use super::segment::{CHUNK_LEN, Window};
use super::segments::{SegmentInfo, Segments, is_full, remove_file, segment_name};
use super::spare::{Room, SpareMaker, remake, zero_fill};
use super::store_file::StoreFile;
use super::writer::{Active, Log, PendingSeal, activate, first_header};

/// Repairs what [`super::recovery`] found and makes the log.
pub(super) fn finish(
    fs: &Arc<dyn Fs>,
    dir: &Path,
    store: &StoreFile,
    options: &RecoverOptions,
    layout: Layout,
    mut findings: Findings,
) -> Result<Recovered> {
    let spare = Arc::new(SpareMaker::new(Arc::clone(fs), layout.log_dir.clone(), options.segment_len));
    let mut repair =
        Repair { fs, dir, store, options, layout, spare: Arc::clone(&spare), torn: None, removed: Vec::new() };
    let cuts = [findings.cut.clone(), findings.stub.as_ref().and_then(|stub| stub.cut.clone())];
    for cut in cuts.iter().flatten() {
        repair.cut(cut)?;
    }
    let segments = Arc::new(Segments::new(Arc::clone(fs), repair.layout.log_dir.clone()));
    let (active, stub_was_removed) = repair.make_active(&segments, &findings)?;
    let mut log = Log {
        store: *store,
        seed: store.seed(),
        epoch: findings.epoch.saturating_add(1),
        spare,
        segments,
        syncer: Arc::default(),
        active,
        pending_seal: None,
        next_lsn: findings.next,
        durable_lsn: findings.durable.min(findings.next.previous()),
        clock: findings.clock,
        written_len: 0,
        reserved: None,
        broken: None,
    };
    if options.read_only {
        log.broken = Some(Error::new(ErrorKind::Unsupported, "the log was opened for reading only"));
    } else {
        repair.seal(&mut log, &mut findings)?;
        repair.sync_all(&log, &findings)?;
        log.durable_lsn = log.written_lsn();
        repair.remove_leftovers(stub_was_removed)?;
    }
    Ok(Recovered {
        last_lsn: log.written_lsn(),
        clock: findings.clock,
        frames: findings.frames,
        ends_clean: findings.clean && repair.torn.is_none(),
        torn: repair.torn,
        removed_files: repair.removed,
        foreign_files: repair.layout.foreign,
        log,
    })
}

struct Repair<'r> {
    fs: &'r Arc<dyn Fs>,
    dir: &'r Path,
    store: &'r StoreFile,
    options: &'r RecoverOptions,
    layout: Layout,
    spare: Arc<SpareMaker>,
    torn: Option<Torn>,
    /// Relative to the store's directory.
    removed: Vec<String>,
}

impl Repair<'_> {
    fn open(&self, path: &Path) -> Result<Arc<dyn File>> {
        let mode = if self.options.read_only { OpenMode::Read } else { OpenMode::Write };
        self.fs.open(path, mode).map_err(|e| Error::io("opening", path, e))
    }

    /// Keeps what is cut, zeroes it, and makes that durable.
    fn cut(&mut self, cut: &Cut) -> Result<()> {
        let mut kept = None;
        if !self.options.read_only {
            let kept_result = self.keep(cut);
            if cut.ambiguous {
                kept = kept_result?;
            } else if let Err(error) = &kept_result {
                tracing::warn!(%error, "a torn tail could not be kept");
            } else {
                kept = kept_result.ok().flatten();
            }
            let file = self.open(&cut.path)?;
            // These blocks are there: where zeroing them needs room all the same, the spares have it.
            let zeroed = self.spare.insist(|| zero_fill(&file, cut.from, cut.to));
            let zeroed = zeroed.and_then(|()| file.sync_data());
            zeroed.map_err(|e| Error::io("cutting", &cut.path, e))?;
        }
        self.torn = Some(Torn {
            file: cut.path.clone(),
            offset: cut.from.into(),
            bytes: (cut.to - cut.from).into(),
            kept,
            ambiguous: cut.ambiguous,
        });
        Ok(())
    }

    /// Copies what is cut to quarantine. `None`: enough is there already.
    fn keep(&self, cut: &Cut) -> Result<Option<PathBuf>> {
        let mut from = Window::new(self.open(&cut.path)?, cut.path.clone())?;
        let chunks = || (cut.from..cut.to).step_by(CHUNK_LEN as usize).map(|at| (at, CHUNK_LEN.min(cut.to - at)));
        let mut crc = 0;
        for (at, len) in chunks() {
            crc = codec::crc(crc, &[from.get(at, len)?]);
        }
        let segment = cut.path.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{segment}-{}-{crc:08x}.torn", cut.from);
        let len = u64::from(cut.to - cut.from);
        let mut write = |file: &dyn File, failed: &dyn Fn(io::Error) -> Error| {
            chunks()
                .try_for_each(|(at, len)| file.write_all_at(from.get(at, len)?, (at - cut.from).into()).map_err(failed))
        };
        quarantine::keep(self.fs, self.dir, &name, len, cut.ambiguous, &mut write)
    }

    /// Fills the table of segments, and opens or makes the last one. Also returns the stub that is to
    /// be removed.
    fn make_active(&self, segments: &Segments, findings: &Findings) -> Result<(Active, Option<Lsn>)> {
        let mut last = None;
        for (index, (segment, (header, _))) in self.layout.segments.iter().zip(&findings.headers).enumerate() {
            last = Some(match findings.headers.get(index + 1) {
                Some((successor, _)) => {
                    segments.add(sealed_info(segment, header, successor), None);
                    continue;
                }
                None => (segment, header),
            });
        }
        let read_only = self.options.read_only;
        let Some((segment, header)) = last else {
            let stub = findings.stub.as_ref().map(|stub| stub.path.clone()).unwrap_or_default();
            let number = self.options.checkpoint.map_or(1, |checkpoint| checkpoint.first_segment.max(1));
            let header = first_header(self.options.now, findings.epoch.saturating_add(1), number);
            let made = if read_only { self.open(&stub).map(|file| (file, 0)) } else { self.remake(&stub, &header) };
            let (file, len) = made?;
            return Ok((activate(segments, &header, &self.encode(&header), file, len), None));
        };
        let file = self.open(&segment.path)?;
        let used = findings.tail;
        let info = SegmentInfo {
            number: header.number,
            first_lsn: header.base,
            last_lsn: (findings.next > header.base).then(|| findings.next.previous()),
            len: segment.len,
            used: used.into(),
            sealed: findings.sealed,
        };
        let active = Active {
            segment: segments.add(info, Some(Arc::clone(&file))),
            file,
            number: header.number,
            base: header.base,
            len: u32::try_from(segment.len).unwrap_or(u32::MAX),
            tail: used,
            chain: findings.chain,
            sealed: findings.sealed,
        };
        match &findings.stub {
            Some(stub) if !read_only && findings.sealed => Ok((self.replace(segments, active, stub, findings)?, None)),
            Some(stub) if !read_only => Ok((active, Some(stub.base))),
            _ => Ok((active, None)),
        }
    }

    /// Makes the successor of a sealed segment again out of what is left of it. Without room for that the
    /// stub stays, which says the same to the next opening, and the first `begin` tries again.
    fn replace(&self, segments: &Segments, old: Active, stub: &Stub, findings: &Findings) -> Result<Active> {
        let last = findings.next.previous();
        let predecessor = Predecessor { number: old.number, end: old.tail, base: old.base, last, chain: old.chain };
        let header = SegmentHeader {
            number: old.number.saturating_add(1),
            epoch: findings.epoch.saturating_add(1),
            base: findings.next,
            clock: findings.clock,
            predecessor,
        };
        match self.remake(&stub.path, &header) {
            Ok((file, len)) => Ok(activate(segments, &header, &self.encode(&header), file, len)),
            Err(error) if error.kind() == ErrorKind::Full => Ok(old),
            Err(error) => Err(error),
        }
    }

    fn encode(&self, header: &SegmentHeader) -> Vec<u8> {
        header.encode(self.store.id.0, self.store.seed())
    }

    fn remake(&self, path: &Path, header: &SegmentHeader) -> Result<(Arc<dyn File>, u32)> {
        let made = remake(self.fs, path, self.options.segment_len, &self.encode(header));
        made.map_err(|e| Error::io("making again", path, e))
    }

    /// Writes the footers that are missing, and the one before an empty last segment in any case: it
    /// may be visible without being durable.
    fn seal(&self, log: &mut Log, findings: &mut Findings) -> Result<()> {
        if let Some((header, _)) = findings.headers.last()
            && header.predecessor.number > 0
            && findings.headers.len() > 1
            && log.active.number == header.number
            && log.active.tail == SEGMENT_HEADER_LEN
        {
            let Predecessor { number, end, last, chain, .. } = header.predecessor;
            findings.unsealed.retain(|footer| footer.number != number);
            findings.unsealed.push(Footer { number, end, last, chain });
        }
        for footer in &findings.unsealed {
            let Some(segment) = log.segments.get(footer.number) else { continue };
            let Some(path) = log.segments.path(footer.number) else { continue };
            log.pending_seal = Some(PendingSeal { file: self.open(&path)?, segment, footer: *footer });
            match log.finish_seal(Room::Ordinary) {
                // The last one is tried again before the next frame is written; for older ones their
                // successor goes on vouching.
                Err(error) if error.kind() == ErrorKind::Full => {}
                other => other?,
            }
        }
        if log.pending_seal.as_ref().is_some_and(|seal| seal.footer.number + 1 != log.active.number) {
            log.pending_seal = None;
        }
        Ok(())
    }

    /// Makes everything durable that was read and is not known to be.
    fn sync_all(&self, log: &Log, findings: &Findings) -> Result<()> {
        let known = self.options.checkpoint.map_or(Lsn::ZERO, |checkpoint| checkpoint.durable_lsn);
        for (index, segment) in self.layout.segments.iter().enumerate() {
            let last = findings.headers.get(index + 1).map(|(successor, _)| successor.base.previous());
            if last.is_some_and(|last| last <= known) {
                continue;
            }
            let file = self.open(&segment.path)?;
            if let (None, Some((from, _))) = (last, findings.unproven.front()) {
                rewrite(&file, &segment.path, *from, findings.tail)?;
            }
            file.sync_data().map_err(|e| Error::io("syncing", &segment.path, e))?;
        }
        let dir = &self.layout.log_dir;
        log.active.file.sync_data().map_err(|e| Error::io("syncing", dir, e))?;
        self.fs.sync_dir(dir).map_err(|e| Error::io("syncing", dir, e))?;
        self.fs.sync_dir(self.dir).map_err(|e| Error::io("syncing", self.dir, e))
    }

    /// Removes what is of no use, old segments from the front. These go only once neither slot of the
    /// checkpoint needs them: what the newer one says may be visible without being durable.
    ///
    /// # Errors
    /// When the stub can not be removed, which would be taken for damage once segments come behind it. All
    /// else that can not be removed stays until the next opening.
    fn remove_leftovers(&mut self, stub: Option<Lsn>) -> Result<()> {
        if let Some(stub) = stub {
            self.remove(format!("{LOG_DIR}/{}", segment_name(stub)))?;
        }
        let mut names = std::mem::take(&mut self.layout.removable);
        if !self.layout.old.is_empty() {
            match self.confirm_checkpoint() {
                Ok(true) => names.append(&mut self.layout.old),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "segments that are not needed any more are not removed"),
            }
        }
        if let Err(error) = names.into_iter().try_for_each(|name| self.remove(name)) {
            tracing::warn!(%error, "leftovers are not removed");
        }
        if self.removed.is_empty() {
            return Ok(());
        }
        let dir = &self.layout.log_dir;
        self.fs.sync_dir(dir).map_err(|e| Error::io("syncing", dir, e))?;
        self.fs.sync_dir(self.dir).map_err(|e| Error::io("syncing", self.dir, e))
    }

    fn remove(&mut self, name: String) -> Result<()> {
        let path = self.dir.join(&name);
        remove_file(self.fs, &path).map_err(|e| Error::io("removing", &path, e))?;
        self.removed.push(name);
        Ok(())
    }

    /// Has the newest checkpoint in both slots, durably. `false`: it is not the one that recovery was
    /// given. Whoever has the file open already goes on as if nothing had happened: this takes the
    /// generation that its next write takes too.
    fn confirm_checkpoint(&self) -> Result<bool> {
        let (mut file, newest, _) = CheckpointFile::open(self.fs, self.dir, self.store.seed())?;
        let wanted = self.options.checkpoint.map_or(0, |checkpoint| checkpoint.first_segment);
        if newest.first_segment < wanted {
            return Ok(false);
        }
        file.write(newest).map(|()| true)
    }
}

fn sealed_info(segment: &Candidate, header: &SegmentHeader, successor: &SegmentHeader) -> SegmentInfo {
    SegmentInfo {
        number: header.number,
        first_lsn: header.base,
        last_lsn: (successor.base > header.base).then(|| successor.base.previous()),
        len: segment.len,
        used: successor.predecessor.end.into(),
        sealed: true,
    }
}

/// Writes `from..to` again where it stands, a chunk at a time. Without room (some file systems need it
/// even for that) it stays as it is, and the sync that follows says what it can.
fn rewrite(file: &Arc<dyn File>, path: &Path, from: u32, to: u32) -> Result<()> {
    let mut window = Window::new(Arc::clone(file), path.to_owned())?;
    let mut at = from;
    while at < to.min(window.len()) {
        let bytes = window.get(at, CHUNK_LEN.min(to - at))?;
        match file.write_all_at(bytes, at.into()) {
            Err(e) if is_full(&e) => return Ok(()),
            other => other.map_err(|e| Error::io("writing", path, e))?,
        }
        at += len32(bytes.len());
    }
    Ok(())
}
