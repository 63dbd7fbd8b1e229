//! The file system's calls on a simulated disk: each asks first whether the process still lives and
//! whether a fault strikes.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use super::tree::{NodeId, Tree};
use super::{FaultKind, Op, SimDisk, State, dead};
use crate::env::{DirEntry, EntryKind, File, Fs, FsInfo, LockGuard, OpenMode, TryLock};

/// Who holds which file's lock.
#[derive(Default)]
pub(super) struct Locks {
    held: BTreeMap<NodeId, u64>,
    next: u64,
}

/// One generation's view of the disk.
#[derive(Clone)]
pub(super) struct SimFs {
    disk: SimDisk,
    generation: u64,
}

struct SimFile {
    fs: SimFs,
    path: PathBuf,
    node: NodeId,
    is_writable: bool,
    /// Keeps the file while it is open, removed or not.
    _open: Arc<()>,
}

struct SimLock {
    file: SimFile,
    ticket: u64,
}

impl SimFs {
    pub(super) const fn new(disk: SimDisk, generation: u64) -> Self {
        Self { disk, generation }
    }

    fn alive<T>(&self, act: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.lock();
        if state.is_dead || state.generation != self.generation {
            return Err(dead());
        }
        act(&mut state)
    }

    /// One call. `act` learns of a fault only when it has a part of its own in it.
    fn call<T>(
        &self,
        op: Op,
        path: &Path,
        act: impl FnOnce(&mut State, Option<FaultKind>) -> io::Result<T>,
    ) -> io::Result<T> {
        // What a call did that nobody lives to learn of. It goes only after the disk is unlocked: a
        // lock guard locks the disk when it is dropped.
        let mut unseen = None;
        self.alive(|state| match state.faults.strike(op, path) {
            None => act(state, None),
            Some(kind) if kind.is_partial(op) => act(state, Some(kind)),
            Some(FaultKind::Crash) => {
                unseen = state.luck.chance(1, 2).then(|| act(state, None));
                state.is_dead = true;
                Err(dead())
            }
            Some(kind) => Err(kind.error()),
        })
    }

    fn file(&self, state: &State, path: &Path, node: NodeId, is_writable: bool) -> io::Result<SimFile> {
        let open = state.tree.open_token(node)?;
        Ok(SimFile { fs: self.clone(), path: path.to_owned(), node, is_writable, _open: open })
    }
}

fn entry(tree: &Tree, name: String, node: NodeId) -> DirEntry {
    DirEntry { name, kind: tree.kind(node), len: tree.len(node) }
}

impl Fs for SimFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let op = if mode == OpenMode::CreateNew { Op::Create } else { Op::Open };
        self.call(op, path, |state, _| {
            let node = match mode {
                OpenMode::Read | OpenMode::Write => state.tree.find(path)?,
                OpenMode::CreateNew => {
                    let spot = state.tree.spot(path)?;
                    state.tree.create_file(&spot)?
                }
            };
            let file: Arc<dyn File> = Arc::new(self.file(state, path, node, mode != OpenMode::Read)?);
            Ok(file)
        })
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.call(Op::Create, path, |state, _| {
            let spot = state.tree.spot(path)?;
            state.tree.create_dir(&spot).map(|_| ())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(Op::Rename, from, |state, _| state.tree.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.call(Op::Remove, path, |state, _| state.tree.remove_file(path))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.call(Op::Remove, path, |state, _| state.tree.remove_dir_all(path))
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.call(Op::ReadDir, path, |state, _| {
            let tree = &state.tree;
            let entries = tree.entries(tree.find(path)?)?;
            Ok(entries.map(|(name, node)| entry(tree, name.clone(), node)).collect())
        })
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.call(Op::SyncDir, path, |state, _| {
            let dir = state.tree.find(path)?;
            if state.lies_about_sync {
                return Ok(());
            }
            state.tree.sync_dir(dir)
        })
    }

    fn sync_tree(&self, path: &Path) -> io::Result<()> {
        self.call(Op::SyncTree, path, |state, fault| {
            let top = state.tree.find(path)?;
            if state.lies_about_sync && fault.is_none() {
                return Ok(());
            }
            for node in state.tree.below(top) {
                match (state.tree.kind(node), fault) {
                    (EntryKind::File, None) => state.tree.content_mut(node)?.sync(),
                    (EntryKind::File, Some(_)) => state.tree.content_mut(node)?.lose_sync(),
                    (EntryKind::Dir, None) => state.tree.sync_dir(node)?,
                    (EntryKind::Dir | EntryKind::Other, _) => {}
                }
            }
            fault.map_or(Ok(()), |kind| Err(kind.error()))
        })
    }

    fn metadata(&self, path: &Path) -> io::Result<Option<DirEntry>> {
        self.call(Op::ReadDir, path, |state, _| {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            match state.tree.find(path) {
                Ok(node) => Ok(Some(entry(&state.tree, name, node))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn info(&self, path: &Path) -> io::Result<FsInfo> {
        self.alive(|state| {
            state.tree.find(path)?;
            Ok(FsInfo { is_network: state.is_network, available: state.available() })
        })
    }

    fn try_lock(&self, path: &Path) -> io::Result<TryLock> {
        self.call(Op::Lock, path, |state, _| {
            let node = match state.tree.find(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let spot = state.tree.spot(path)?;
                    state.tree.create_file(&spot)?
                }
                found => found?,
            };
            let text = String::from_utf8_lossy(state.tree.content(node)?.bytes()).into_owned();
            if state.locks.held.contains_key(&node) {
                return Ok(TryLock::Busy { text });
            }
            let file = self.file(state, path, node, true)?;
            let ticket = state.locks.next;
            state.locks.next += 1;
            state.locks.held.insert(node, ticket);
            Ok(TryLock::Held(Box::new(SimLock { file, ticket })))
        })
    }

    fn is_real(&self) -> bool {
        false
    }
}

impl SimFile {
    fn writable(&self, otherwise: Errno) -> io::Result<()> {
        if self.is_writable { Ok(()) } else { Err(otherwise.into()) }
    }
}

/// How many of `wanted` bytes more fit on the disk.
fn room(state: &State, wanted: u64) -> u64 {
    if state.capacity.is_some() { wanted.min(state.available()) } else { wanted }
}

fn count(bytes: &[u8]) -> u64 {
    bytes.len() as u64
}

impl File for SimFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.fs.call(Op::Read, &self.path, |state, fault| {
            let bytes = state.tree.content(self.node)?.bytes();
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            let found = start.checked_add(buf.len()).and_then(|end| bytes.get(start..end));
            match found {
                Some(found) => buf.copy_from_slice(found),
                None if buf.is_empty() => {}
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
            if fault == Some(FaultKind::BitFlipRead) {
                let at = state.luck.below(buf.len());
                let bit = state.luck.below(8);
                buf.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << bit);
            }
            Ok(())
        })
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.fs.call(Op::Write, &self.path, |state, fault| {
            if buf.is_empty() {
                return Ok(());
            }
            self.writable(Errno::BADF)?;
            Tree::checked_len(offset.saturating_add(count(buf)))?;
            let start = Tree::checked_len(offset)?;
            let (part, after) = match fault {
                Some(FaultKind::Crash) => (state.luck.below(buf.len() + 1), Some(dead())),
                Some(kind) => (buf.len() / 2, Some(kind.error())),
                None => (buf.len(), None),
            };
            state.is_dead |= fault == Some(FaultKind::Crash);
            let part = buf.get(..part).unwrap_or(buf);
            let growth = offset.saturating_add(count(part)).saturating_sub(state.tree.len(self.node));
            // Like the real one: what fits is written, then there is no space.
            let missing = usize::try_from(growth - room(state, growth)).unwrap_or(usize::MAX);
            let fitting = part.get(..part.len().saturating_sub(missing)).unwrap_or_default();
            if !fitting.is_empty() {
                state.tree.content_mut(self.node)?.write(start, fitting);
            }
            match after {
                Some(error) => Err(error),
                None if missing > 0 => Err(Errno::NOSPC.into()),
                None => Ok(()),
            }
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.fs.call(Op::Sync, &self.path, |state, fault| {
            let lies = state.lies_about_sync;
            let content = state.tree.content_mut(self.node)?;
            match fault {
                Some(kind) => {
                    content.lose_sync();
                    return Err(kind.error());
                }
                None if lies => {}
                None => content.sync(),
            }
            Ok(())
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.fs.alive(|state| Ok(count(state.tree.content(self.node)?.bytes())))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.fs.call(Op::SetLen, &self.path, |state, _| {
            self.writable(Errno::INVAL)?;
            let new = Tree::checked_len(len)?;
            let growth = len.saturating_sub(state.tree.len(self.node));
            if room(state, growth) < growth {
                return Err(Errno::NOSPC.into());
            }
            state.tree.content_mut(self.node)?.set_len(new);
            Ok(())
        })
    }

    fn start_writeback(&self, _offset: u64, _len: u64) -> io::Result<()> {
        self.fs.alive(|_| Ok(()))
    }

    fn will_need(&self, _offset: u64, _len: u64) {}
}

impl LockGuard for SimLock {
    /// Counts as a change of length and a write.
    fn describe(&self, text: &str) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(text.as_bytes(), 0)
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.file.fs.disk.lock();
        let is_mine = state.locks.held.get(&self.file.node) == Some(&self.ticket);
        if state.generation == self.file.fs.generation && is_mine {
            state.locks.held.remove(&self.file.node);
        }
    }
}
