//! Faults: which call fails how.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::dead;

/// A kind of call to the disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Op {
    /// Reading bytes of a file.
    Read,
    /// Writing bytes of a file.
    Write,
    /// Syncing a file.
    Sync,
    /// Changing a file's length.
    SetLen,
    /// Opening a file that is there.
    Open,
    /// Creating a file or a directory.
    Create,
    /// Renaming a file or a directory.
    Rename,
    /// Removing a file, or a directory with all it holds.
    Remove,
    /// Syncing a directory.
    SyncDir,
    /// Syncing a directory with all it holds.
    SyncTree,
    /// Listing a directory, or looking what stands at a path.
    ReadDir,
    /// Taking a lock.
    Lock,
    /// Any of these.
    Any,
}

/// What a fault does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FaultKind {
    /// An input/output error; nothing happened.
    Eio,
    /// No space left; nothing happened.
    Enospc,
    /// Quota exceeded; nothing happened.
    Edquot,
    /// Permission denied; nothing happened.
    Eacces,
    /// Read-only file system; nothing happened.
    Erofs,
    /// Too many open files; nothing happened. For calls that open something; others are not counted.
    Emfile,
    /// Half of the bytes are written, then an input/output error. For other calls: as `Eio`.
    ShortWrite,
    /// The sync fails, and what was to be synced counts as clean: a second sync succeeds, readers
    /// still see it, and a power cut loses it. As Linux does. For other calls: as `Eio`.
    SyncLost,
    /// The process or the machine dies in this call: it fails, and so does every call after it,
    /// until [`kill`](super::SimDisk::kill) or [`power_cut`](super::SimDisk::power_cut) says which
    /// of them it was. Chance decides whether the call took effect; of a write, any first part.
    Crash,
    /// One bit that is read is wrong; the call succeeds. Reads only; other calls are not counted.
    BitFlipRead,
}

/// One armed fault: `after` matching calls still succeed, the next `times` fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Which calls it matches.
    pub op: Op,
    /// How many matching calls still succeed.
    pub after: u64,
    /// How many fail then; `u64::MAX`: all.
    pub times: u64,
    /// What happens to them.
    pub kind: FaultKind,
}

impl FaultKind {
    /// What a struck call answers.
    pub(super) fn error(self) -> io::Error {
        match self {
            Self::Enospc => Errno::NOSPC.into(),
            Self::Edquot => Errno::DQUOT.into(),
            Self::Eacces => Errno::ACCESS.into(),
            Self::Erofs => Errno::ROFS.into(),
            Self::Emfile => Errno::MFILE.into(),
            Self::Crash => dead(),
            Self::Eio | Self::ShortWrite | Self::SyncLost | Self::BitFlipRead => Errno::IO.into(),
        }
    }

    /// Whether a call of this kind can fail so.
    const fn can_strike(self, op: Op) -> bool {
        match self {
            Self::BitFlipRead => matches!(op, Op::Read),
            Self::Emfile => !matches!(op, Op::Read | Op::Write | Op::Sync | Op::SetLen | Op::Rename | Op::Remove),
            _ => true,
        }
    }

    /// Whether a struck call of this kind still does something that only itself knows how to do.
    pub(super) const fn is_partial(self, op: Op) -> bool {
        matches!(
            (self, op),
            (Self::ShortWrite | Self::Crash, Op::Write)
                | (Self::SyncLost, Op::Sync | Op::SyncTree)
                | (Self::BitFlipRead, Op::Read)
        )
    }
}

struct Armed {
    fault: Fault,
    part: Option<String>,
}

impl Armed {
    fn matches(&self, op: Op, path: &Path) -> bool {
        (self.fault.op == Op::Any || self.fault.op == op)
            && self.fault.kind.can_strike(op)
            && self.part.as_ref().is_none_or(|part| path.to_string_lossy().contains(part.as_str()))
    }
}

/// The armed faults and the counts of calls.
#[derive(Default)]
pub(super) struct Faults {
    armed: Vec<Armed>,
    calls: BTreeMap<Op, u64>,
    injected: u64,
}

impl Faults {
    pub(super) fn arm(&mut self, fault: Fault, part: Option<String>) {
        self.armed.push(Armed { fault, part });
    }

    pub(super) fn clear(&mut self) {
        self.armed.clear();
    }

    pub(super) fn calls(&self, op: Op) -> u64 {
        if op == Op::Any { self.calls.values().sum() } else { self.calls.get(&op).copied().unwrap_or(0) }
    }

    pub(super) const fn injected(&self) -> u64 {
        self.injected
    }

    /// Counts a call, and says what strikes it.
    pub(super) fn strike(&mut self, op: Op, path: &Path) -> Option<FaultKind> {
        *self.calls.entry(op).or_default() += 1;
        let mut struck = None;
        for armed in self.armed.iter_mut().filter(|armed| armed.matches(op, path)) {
            let fault = &mut armed.fault;
            if fault.after > 0 {
                fault.after -= 1;
            } else if fault.times > 0 && struck.is_none() {
                if fault.times != u64::MAX {
                    fault.times -= 1;
                }
                struck = Some(fault.kind);
            }
        }
        self.injected += u64::from(struck.is_some());
        struck
    }
}
