//! The log on a simulated disk, with segments so small that every test rotates.

use std::path::{Path, PathBuf};

use super::reader::OwnedFrame;
use super::*;
use crate::env::sim::{Fault, FaultKind, Loss, Op, SimDisk};
use crate::options::Tail;
use crate::types::{Position, StoreId};

mod crash;
mod damage;
mod files;
mod golden;
mod open_files;
mod reader;
mod reserve;
mod space;
mod sweep;
mod table;

const DIR: &str = "/store";
const SEGMENT_LEN: u32 = 4096;
const ID: StoreId = StoreId([7; 16]);

/// A store's log on a disk, and how it is opened.
struct Rig {
    disk: SimDisk,
    segment_len: u32,
    tail: Tail,
    from: Lsn,
    read_only: bool,
    ignore_checkpoint: bool,
}

/// What an opening gave.
struct Opened {
    found: Recovered,
    frames: Vec<OwnedFrame>,
}

fn checkpoint(durable: u64, first_segment: u32) -> Checkpoint {
    Checkpoint {
        generation: 0,
        lsn: Lsn::ZERO,
        durable_lsn: Lsn(durable),
        first_segment,
        boot_id: Some([9; 16]),
        index_generation: 3,
        live_count: 4,
        live_hash: 5,
        clock: Timestamp(6),
        clean: false,
    }
}

/// Bytes that depend on `seed` alone, none of them zero.
fn payload(seed: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((seed * 31 + at as u64 * 7) % 255 + 1).unwrap()).collect()
}

fn try_append(log: &mut Log, len: usize) -> Result<Position> {
    try_append_in(log, len, Room::Ordinary)
}

fn try_append_in(log: &mut Log, len: usize, room: Room) -> Result<Position> {
    let start = log.begin(len, room)?;
    let mut frame = vec![0xEE; FRAME_HEADER_LEN];
    frame.extend(payload(log.next_lsn().0, len));
    let clock = Timestamp(1000 + log.next_lsn().0);
    log.append(&mut frame, 1, clock)?;
    Ok(Position { segment: start.segment, offset: start.payload_offset, len: u32::try_from(len).unwrap() })
}

fn append(log: &mut Log, len: usize) -> Position {
    try_append(log, len).unwrap()
}

fn append_synced(log: &mut Log, len: usize) -> Position {
    let at = append(log, len);
    log.sync().unwrap();
    at
}

impl Rig {
    fn new() -> Self {
        Self::with_seed(1)
    }

    fn with_seed(seed: u64) -> Self {
        let disk = SimDisk::new(seed);
        let fs = disk.fs();
        fs.create_dir(Path::new(DIR)).unwrap();
        fs.sync_dir(Path::new("/")).unwrap();
        let store = StoreFile::create_new(&fs, Path::new(DIR), ID, Timestamp(5)).unwrap();
        create(&fs, Path::new(DIR), &store, SEGMENT_LEN, Timestamp(5)).unwrap();
        CheckpointFile::create(&fs, Path::new(DIR), ID.seed(), &checkpoint(0, 1)).unwrap();
        Self::on(disk)
    }

    fn on(disk: SimDisk) -> Self {
        Self {
            disk,
            segment_len: SEGMENT_LEN,
            tail: Tail::Refuse,
            from: Lsn::ZERO,
            read_only: false,
            ignore_checkpoint: false,
        }
    }

    /// A copy in which something else can be tried.
    fn fork(&self) -> Self {
        Self { disk: self.disk.fork(1), ..*self }
    }

    fn open(&self) -> Result<Opened> {
        let fs = self.disk.fs();
        let store = StoreFile::read(&fs, Path::new(DIR))?;
        let checkpoint =
            if self.ignore_checkpoint { None } else { Some(CheckpointFile::open(&fs, Path::new(DIR), ID.seed())?.1) };
        let options = RecoverOptions {
            segment_len: self.segment_len,
            tail: self.tail,
            checkpoint,
            from: self.from,
            now: Timestamp(100),
            read_only: self.read_only,
        };
        let mut frames = Vec::new();
        let mut visit = |frame: &Frame<'_>| -> Result<()> {
            frames.push(OwnedFrame::from(*frame));
            Ok(())
        };
        let found =
            recover(&fs, Path::new(DIR), &store, options, &mut visit, &mut |done, total| assert!(done <= total))?;
        Ok(Opened { found, frames })
    }

    fn checkpoint(&self, durable: u64, first_segment: u32) {
        let (mut file, ..) = CheckpointFile::open(&self.disk.fs(), Path::new(DIR), ID.seed()).unwrap();
        // Into both slots, as a store does before it removes segments.
        file.write(checkpoint(durable, first_segment)).unwrap();
        file.write(checkpoint(durable, first_segment)).unwrap();
    }

    /// Lets the disk have room for so many bytes more.
    fn leave(&self, free: u64) {
        let used = self.disk.list_raw().iter().map(|(_, len)| len).sum::<u64>();
        self.disk.set_capacity(Some(used + free));
    }

    fn fill_up(&self) {
        self.leave(0);
    }

    /// A log of `count` synced frames of `len` bytes each.
    fn filled(count: usize, len: usize) -> Self {
        let rig = Self::new();
        let mut log = rig.open().unwrap().found.log;
        (0..count).for_each(|_| _ = append_synced(&mut log, len));
        drop(log);
        rig.disk.kill();
        rig
    }

    /// The segment files, oldest first.
    fn segments(&self) -> Vec<PathBuf> {
        let files = self.disk.list_raw().into_iter().map(|(path, _)| path);
        files.filter(|path| path.extension().is_some_and(|e| e == "seg") && path.starts_with("/store/log")).collect()
    }

    fn last_segment(&self) -> PathBuf {
        self.segments().pop().unwrap()
    }

    fn edit(&self, path: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.disk.read_raw(path).unwrap();
        edit(&mut bytes);
        self.disk.write_raw(path, bytes);
    }

    /// Opens expecting `Corrupt`, and that nothing was changed. Returns where.
    fn corrupt(&self) -> crate::error::Damage {
        let before = self.disk.hash();
        let error = self.open().err().expect("damage was not noticed");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(self.disk.hash(), before, "something was changed");
        error.damage().unwrap().clone()
    }

    /// Opens, checks that exactly the frames 1 to `last` are there, appends one, and opens again: it
    /// is there and no torn tail is. Returns the first opening.
    fn opens_with(&self, last: u64) -> Opened {
        let mut opened = self.open().unwrap();
        assert_intact(&opened.frames, last);
        assert_eq!(opened.found.last_lsn, Lsn(last));
        append_synced(&mut opened.found.log, 100);
        self.disk.kill();
        let again = self.open().unwrap();
        assert_eq!(again.found.torn, None, "a torn tail was found twice");
        assert_intact(&again.frames, last + 1);
        opened
    }
}

/// The frames are one record each, 1 to `last`, as `append` made them.
fn assert_intact(frames: &[OwnedFrame], last: u64) {
    let lsns = frames.iter().map(|frame| frame.first_lsn.0).collect::<Vec<_>>();
    assert_eq!(lsns, (1..=last).collect::<Vec<_>>());
    for frame in frames {
        assert_eq!(frame.payload, payload(frame.first_lsn.0, frame.payload.len()));
    }
}
