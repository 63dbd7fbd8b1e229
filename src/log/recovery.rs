//! Opening the log: read it to its end, tell a torn tail from corruption, repair what may be repaired.
//!
//! A scan goes over the segments to the first place X without a valid frame. D is the highest LSN that is
//! proven durable: by `durable_lsn` of any valid frame before X or, in the same segment, after it, by the
//! checkpoint, by a footer, by a Clean mark.
//!
//! ```text
//! ┌ X in the last ┬ LSN expected ┬ what stands at X             ┬ verdict ───────────────────────────┐
//! │ segment       │ at X         │                              │                                    │
//! ├───────────────┼──────────────┼──────────────────────────────┼────────────────────────────────────┤
//! │ no            │ any          │ any                          │ Corrupt: refuse                    │
//! │ yes           │ <= D         │ any                          │ Corrupt: refuse                    │
//! │ yes           │ > D          │ zeros to the end, or the end │ CleanEnd                           │
//! │ yes           │ > D          │ a frame that has no end      │ Torn: keep a copy, zero, sync      │
//! │ yes           │ > D          │ a frame with a zero sector   │ Torn: keep a copy, zero, sync      │
//! │ yes           │ > D          │ anything else                │ Ambiguous: refuse, or cut if told  │
//! └───────────────┴──────────────┴──────────────────────────────┴────────────────────────────────────┘
//! a read error is that error, wherever it comes; a frame has no end when the file's end cuts it, or where
//! its end mark should be is a zero
//! ```
//!
//! A segment that is not the last ends where its successor's header says; its footer may be missing only
//! while the successor is empty, and is then written. A newest file without a header is a stub: it is
//! removed or made again if nothing durable can have been in it.
//!
//! # Invariants
//! No frame behind X is replayed. What survives is synced before `recover` returns, and what is not
//! proven durable is written again first: after a failed sync of an earlier process the page cache may
//! hold what the disk does not, and a sync alone would not write it. Opening twice gives the same (14).
//!
//! # Crashes
//! Every repair can be cut anywhere and is done again by the next opening: the copy in quarantine has a
//! name made from what is in it; zeroing goes on to the same end; footers and headers are the same bytes.
//!
//! # Not here
//! The repairs themselves: [`super::repair`]. What the records mean: `engine/open.rs`.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::env::{Fs, OpenMode};
use crate::error::{Damage, Error, Result};
use crate::options::Tail;
use crate::types::{Lsn, Timestamp};

use super::checkpoint::Checkpoint;
use super::format::{FOOTER_LEN, Footer, FrameHeader, SEGMENT_HEADER_LEN, SegmentHeader};
use super::layout::{Candidate, Layout, footer_at};
use super::repair;
use super::segment::{Beyond, CHUNK_LEN, Scan, Seen, Step, Window};
use super::store_file::StoreFile;
use super::writer::Log;

/// One valid frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) segment: u32,
    /// Of its header in the file.
    pub(crate) offset: u32,
    pub(crate) payload_offset: u32,
    pub(crate) first_lsn: Lsn,
    pub(crate) record_count: u32,
    pub(crate) durable_lsn: Lsn,
    pub(crate) clock: Timestamp,
    pub(crate) epoch: u32,
    pub(crate) clean: bool,
    pub(crate) payload: &'a [u8],
}

/// How to recover.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecoverOptions {
    /// Length of new segments.
    pub(crate) segment_len: u32,
    /// What to do with an ambiguous last frame.
    pub(crate) tail: Tail,
    pub(crate) checkpoint: Option<Checkpoint>,
    /// Frames that end before this need not be visited.
    pub(crate) from: Lsn,
    pub(crate) now: Timestamp,
    /// Change nothing. The log that is returned can not be written.
    pub(crate) read_only: bool,
}

/// What was cut off the end of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Torn {
    pub(crate) file: PathBuf,
    pub(crate) offset: u64,
    /// To the last byte that was not zero, rounded up to a block.
    pub(crate) bytes: u64,
    /// Where they are kept; `None` when there was no room, or nothing was changed.
    pub(crate) kept: Option<PathBuf>,
    /// A power cut does not explain it; it was cut because the options say so.
    pub(crate) ambiguous: bool,
}

/// A log that is ready to be appended to, and what was found.
pub(crate) struct Recovered {
    pub(crate) log: Log,
    pub(crate) last_lsn: Lsn,
    /// The highest clock in any frame or header that was read.
    pub(crate) clock: Timestamp,
    /// Frames that were read, visited or not.
    pub(crate) frames: u64,
    pub(crate) torn: Option<Torn>,
    /// Leftovers of ours, relative to the store's directory.
    pub(crate) removed_files: Vec<String>,
    /// Not ours, left alone.
    pub(crate) foreign_files: Vec<String>,
    /// The last frame is a Clean mark, and nothing was written after it.
    pub(crate) ends_clean: bool,
}

/// What a stop means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    CleanEnd,
    Torn,
    Ambiguous,
    Corrupt,
}

/// The table above.
pub(super) const fn verdict(is_last: bool, is_proven: bool, seen: Seen) -> Verdict {
    match (is_last, is_proven, seen) {
        (false, _, _) | (true, true, _) => Verdict::Corrupt,
        (true, false, Seen::Zeros) => Verdict::CleanEnd,
        (true, false, Seen::Cut | Seen::Hole) => Verdict::Torn,
        (true, false, Seen::Damaged) => Verdict::Ambiguous,
    }
}

/// Bytes to cut off.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    pub(super) path: PathBuf,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) ambiguous: bool,
}

/// The newest file, if it has no header.
pub(super) struct Stub {
    pub(super) path: PathBuf,
    pub(super) base: Lsn,
    /// Its content, to be kept before it is overwritten.
    pub(super) cut: Option<Cut>,
}

/// What is known after reading everything, before anything is changed.
pub(super) struct Findings {
    pub(super) headers: Vec<(SegmentHeader, u32)>,
    pub(super) next: Lsn,
    pub(super) durable: Lsn,
    pub(super) clock: Timestamp,
    pub(super) epoch: u32,
    pub(super) frames: u64,
    /// The last frame that was read is a Clean mark.
    pub(super) clean: bool,
    /// End of the last segment's frames, and its chain.
    pub(super) tail: u32,
    pub(super) chain: u32,
    /// The last segment has a footer.
    pub(super) sealed: bool,
    pub(super) cut: Option<Cut>,
    pub(super) stub: Option<Stub>,
    /// Segments whose successor vouches for them in their footer's place.
    pub(super) unsealed: Vec<Footer>,
    /// Frames of the last segment that nothing proves durable: offset and last LSN.
    pub(super) unproven: VecDeque<(u32, Lsn)>,
}

/// Reads the log in `dir` from the first segment that is needed to its end, calling `visit` for each
/// frame that ends at `options.from` or later, and repairs its end. `progress` is told bytes done and
/// bytes in all.
///
/// # Errors
/// `Corrupt` for damage to what may have been acknowledged, naming file, offset and LSN range, and for
/// an ambiguous end unless `options.tail` accepts it; `Unsupported`; `Io`; any error of `visit`. Nothing
/// was changed then. Missing room alone never fails it.
pub(crate) fn recover(
    fs: &Arc<dyn Fs>,
    dir: &Path,
    store: &StoreFile,
    options: RecoverOptions,
    visit: &mut dyn FnMut(&Frame<'_>) -> Result<()>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Recovered> {
    if !options.read_only {
        store.writable(dir)?;
    }
    let mut layout = Layout::read(fs, dir, store, options.read_only)?;
    layout.set_aside_old(fs, store, options.checkpoint.as_ref())?;
    let stub = layout.take_stub();
    let headers = layout.check_chain(fs, store)?;
    let total = layout.segments.iter().map(|segment| segment.len).sum();
    let mut pass = Pass { fs, store, options: &options, layout: &layout, visit, progress, done: 0, total };
    let mut findings = Findings {
        next: headers.first().map_or(Lsn::FIRST, |(header, _)| header.base),
        durable: options.checkpoint.map_or(Lsn::ZERO, |checkpoint| checkpoint.durable_lsn),
        clock: headers.iter().map(|(header, _)| header.clock).max().unwrap_or(Timestamp::ZERO),
        epoch: 0,
        frames: 0,
        clean: false,
        tail: SEGMENT_HEADER_LEN,
        chain: 0,
        sealed: false,
        cut: None,
        stub: None,
        unsealed: Vec::new(),
        unproven: VecDeque::new(),
        headers,
    };
    pass.read_all(&mut findings)?;
    if let Some(stub) = stub {
        pass.judge_stub(stub, &mut findings)?;
    } else if findings.sealed {
        let next = findings.next;
        let last = (findings.durable >= next).then_some(findings.durable);
        return Err(layout.missing(next, next, last));
    }
    repair::finish(fs, dir, store, &options, layout, findings)
}

/// One pass over everything.
struct Pass<'p> {
    fs: &'p Arc<dyn Fs>,
    store: &'p StoreFile,
    options: &'p RecoverOptions,
    layout: &'p Layout,
    visit: &'p mut dyn FnMut(&Frame<'_>) -> Result<()>,
    progress: &'p mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
}

impl Pass<'_> {
    fn read_all(&mut self, findings: &mut Findings) -> Result<()> {
        let headers = findings.headers.clone();
        for (index, (segment, (header, crc))) in self.layout.segments.iter().zip(&headers).enumerate() {
            let successor = headers.get(index + 1).map(|(successor, _)| successor);
            findings.epoch = findings.epoch.max(header.epoch);
            if let Some(successor) = successor
                && self.is_vouched(segment, header, successor)?
            {
                findings.next = successor.base;
                findings.durable = findings.durable.max(successor.predecessor.last);
            } else {
                if header.base != findings.next {
                    return Err(self.layout.missing(findings.next, findings.next, Some(header.base.previous())));
                }
                let file = self.fs.open(&segment.path, OpenMode::Read);
                let file = file.map_err(|e| Error::io("opening", &segment.path, e))?;
                let window = Window::new(file, segment.path.clone())?;
                let mut scan = Scan::new(window, self.store.seed(), header.number, header.base, *crc, header.epoch);
                let stop = self.read_segment(&mut scan, findings)?;
                match successor {
                    Some(successor) => close_segment(segment, &scan, &stop, successor, findings)?,
                    None => self.judge_end(segment, &mut scan, stop, findings)?,
                }
            }
            self.done += segment.len;
            (self.progress)(self.done, self.total);
        }
        Ok(())
    }

    /// Whether a segment need not be read: all of it is before `from`, and footer and successor agree.
    fn is_vouched(&self, segment: &Candidate, header: &SegmentHeader, successor: &SegmentHeader) -> Result<bool> {
        let before = successor.predecessor;
        if successor.base > self.options.from || u64::from(before.end) + u64::from(FOOTER_LEN) > segment.len {
            return Ok(false);
        }
        let footer = footer_at(self.fs, &segment.path, header.number, before.end, self.store)?;
        let agrees = |footer: Footer| footer.last == before.last && footer.chain == before.chain;
        Ok(footer.is_some_and(agrees) && before.last.plus(1) == successor.base)
    }

    /// Reads frames to the first place without one.
    fn read_segment(&mut self, scan: &mut Scan, findings: &mut Findings) -> Result<Step> {
        let mut told = 0;
        findings.unproven.clear();
        loop {
            let offset = scan.offset;
            let header = match scan.step()? {
                Step::Frame(header) => header,
                stop => {
                    findings.next = scan.next;
                    findings.epoch = findings.epoch.max(scan.epoch);
                    return Ok(stop);
                }
            };
            findings.frames += 1;
            findings.clean = header.is_clean();
            findings.clock = findings.clock.max(header.clock);
            findings.durable = findings.durable.max(header.durable_lsn);
            findings.unproven.push_back((offset, header.last_lsn()));
            while findings.unproven.front().is_some_and(|(_, last)| *last <= findings.durable) {
                findings.unproven.pop_front();
            }
            if header.last_lsn() >= self.options.from {
                let segment = scan.number;
                let (payload_offset, payload) = scan.payload(&header)?;
                (self.visit)(&frame(segment, offset, payload_offset, &header, payload))?;
            }
            if scan.offset - told >= CHUNK_LEN {
                told = scan.offset;
                (self.progress)(self.done + u64::from(told), self.total);
            }
        }
    }

    /// The end of the last segment's frames.
    fn judge_end(&self, segment: &Candidate, scan: &mut Scan, stop: Step, findings: &mut Findings) -> Result<()> {
        (findings.tail, findings.chain) = (scan.offset, scan.chain);
        let seen = match stop {
            Step::Frame(_) | Step::Stop(Seen::Zeros) => Seen::Zeros,
            Step::Stop(seen) => seen,
            Step::Footer(footer) => {
                findings.sealed = true;
                findings.durable = findings.durable.max(footer.last);
                Seen::Zeros
            }
        };
        let mut beyond = None;
        if seen != Seen::Zeros {
            let found = scan.beyond()?;
            findings.durable = findings.durable.max(found.durable);
            findings.epoch = findings.epoch.max(found.epoch);
            // Somebody may have seen that time.
            findings.clock = findings.clock.max(found.clock);
            beyond = Some(found);
        }
        // A missing successor is told as such, with its name, by the caller.
        let is_proven = findings.next <= findings.durable && !findings.sealed;
        let damage = |last_lsn| Damage {
            file: segment.path.clone(),
            offset: scan.offset.into(),
            first_lsn: Some(findings.next),
            last_lsn,
        };
        let to = beyond.map_or(scan.offset, |found| found.end);
        let cut = Cut { path: segment.path.clone(), from: scan.offset, to, ambiguous: false };
        match verdict(true, is_proven, seen) {
            Verdict::CleanEnd => {}
            Verdict::Torn => findings.cut = Some(cut),
            Verdict::Ambiguous if self.options.tail == Tail::Truncate => {
                findings.cut = Some(Cut { ambiguous: true, ..cut });
            }
            Verdict::Ambiguous => return Err(ambiguous(damage(beyond.and_then(next_after)))),
            Verdict::Corrupt => {
                let last = beyond.and_then(next_after).unwrap_or(findings.durable);
                let what = if seen == Seen::Zeros { "missing records that were durable" } else { "a damaged frame" };
                return Err(Error::corrupt(what, damage(Some(last))));
            }
        }
        Ok(())
    }

    /// The newest file, which has no header. It may have held frames only if the segment before it has
    /// its footer, and then it begins with the next LSN.
    fn judge_stub(&self, stub: Candidate, findings: &mut Findings) -> Result<()> {
        let number = findings.headers.last().map_or(1, |(header, _)| header.number.saturating_add(1));
        let file = self.fs.open(&stub.path, OpenMode::Read).map_err(|e| Error::io("opening", &stub.path, e))?;
        let mut window = Window::new(file, stub.path.clone())?;
        let has_bytes = !window.is_zero(SEGMENT_HEADER_LEN, u32::MAX)?;
        let mut scan = Scan::new(window, self.store.seed(), number, stub.base, 0, 0);
        let beyond = scan.beyond()?;
        findings.durable = findings.durable.max(beyond.durable);
        findings.epoch = findings.epoch.max(beyond.epoch);
        let next = findings.next;
        let is_successor = findings.sealed || findings.headers.is_empty();
        if is_successor && stub.base != next {
            return Err(self.layout.missing(next, next, None));
        }
        let damage = |last_lsn| Damage { file: stub.path.clone(), offset: 0, first_lsn: Some(next), last_lsn };
        let seen = if has_bytes { Seen::Damaged } else { Seen::Hole };
        let cut = Cut { path: stub.path.clone(), from: 0, to: beyond.end, ambiguous: true };
        let cut = match verdict(true, next <= findings.durable, seen) {
            Verdict::CleanEnd | Verdict::Torn => None,
            Verdict::Ambiguous if self.options.tail == Tail::Truncate => Some(cut),
            Verdict::Ambiguous => return Err(ambiguous(damage(None))),
            Verdict::Corrupt => {
                return Err(Error::corrupt("a damaged segment header", damage(Some(findings.durable))));
            }
        };
        findings.stub = Some(Stub { path: stub.path, base: stub.base, cut });
        Ok(())
    }
}

/// A frame as it is shown to the outside.
pub(super) const fn frame<'a>(
    segment: u32,
    offset: u32,
    payload_offset: u32,
    header: &FrameHeader,
    payload: &'a [u8],
) -> Frame<'a> {
    Frame {
        segment,
        offset,
        payload_offset,
        first_lsn: header.first_lsn,
        record_count: header.record_count,
        durable_lsn: header.durable_lsn,
        clock: header.clock,
        epoch: header.epoch,
        clean: header.is_clean(),
        payload,
    }
}

/// The last LSN before the next frame that can be read.
fn next_after(beyond: Beyond) -> Option<Lsn> {
    beyond.next_frame.map(|(_, header)| header.first_lsn.previous())
}

fn ambiguous(damage: Damage) -> Error {
    Error::corrupt(
        "a damaged end that a power cut does not explain (Tail::Truncate or \"reappear repair\" cuts it off)",
        damage,
    )
}

/// The end of a segment that has a successor: where the successor says, and nowhere else.
fn close_segment(
    segment: &Candidate,
    scan: &Scan,
    stop: &Step,
    successor: &SegmentHeader,
    findings: &mut Findings,
) -> Result<()> {
    let before = successor.predecessor;
    let whole = scan.offset == before.end && scan.chain == before.chain && scan.next == before.last.plus(1);
    if !whole || scan.next != successor.base {
        let damage = Damage {
            file: segment.path.clone(),
            offset: scan.offset.into(),
            first_lsn: Some(scan.next),
            last_lsn: Some(before.last).filter(|last| *last >= scan.next),
        };
        return Err(Error::corrupt("a damaged frame", damage));
    }
    findings.durable = findings.durable.max(before.last);
    if !matches!(stop, Step::Footer(_)) {
        let (end, last, chain) = (before.end, before.last, before.chain);
        findings.unsealed.push(Footer { number: before.number, end, last, chain });
    }
    Ok(())
}
