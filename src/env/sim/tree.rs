//! Files and directories: the names as they are now, the names on the disk, and the changes in
//! between.
//!
//! # Invariants
//! A directory's names on the disk, with all pending changes done in order, are its names now.
//! A change of two directories (a rename) reaches the disk in both at once. Whatever can still be
//! reached, by name now, by name after a power cut or through an open file, is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use super::Loss;
use super::content::Content;
use super::rng::Rng;
use crate::env::EntryKind;

/// Names a file or directory for life.
pub(super) type NodeId = u64;

pub(super) const ROOT: NodeId = 0;

/// Longest file: more is a test's mistake, not a reason to take all memory.
const MAX_FILE_LEN: u64 = 2 << 30;

#[derive(Clone, Default)]
struct Names {
    now: BTreeMap<String, NodeId>,
    disk: BTreeMap<String, NodeId>,
}

enum Node {
    File {
        content: Content,
        /// Held by every open file too: more than one means that it is open.
        open: Arc<()>,
    },
    Dir(Names),
}

impl Node {
    fn file(content: Content) -> Self {
        Self::File { content, open: Arc::new(()) }
    }
}

impl Clone for Node {
    /// Nobody has the copy open.
    fn clone(&self) -> Self {
        match self {
            Self::File { content, .. } => Self::file(content.clone()),
            Self::Dir(names) => Self::Dir(names.clone()),
        }
    }
}

/// One change of names that is not on the disk yet: a name goes, a name comes, or both at once.
#[derive(Clone)]
struct Change {
    unlink: Option<(NodeId, String)>,
    link: Option<(NodeId, String, NodeId)>,
}

impl Change {
    fn dirs(&self) -> impl Iterator<Item = NodeId> {
        let from = self.unlink.as_ref().map(|(dir, _)| *dir);
        from.into_iter().chain(self.link.as_ref().map(|(dir, ..)| *dir))
    }
}

#[derive(Clone)]
pub(super) struct Tree {
    nodes: BTreeMap<NodeId, Node>,
    next: NodeId,
    pending: Vec<Change>,
}

/// Where a path leads: its directory, its last name, and what stands there.
pub(super) struct Spot {
    pub(super) dir: NodeId,
    pub(super) name: String,
    pub(super) node: Option<NodeId>,
}

/// The names of a path, `.` and `..` worked out.
fn parts(path: &Path) -> io::Result<Vec<&str>> {
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => parts.push(name.to_str().ok_or(Errno::INVAL)?),
            Component::ParentDir => _ = parts.pop(),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(parts)
}

impl Tree {
    pub(super) fn new() -> Self {
        let nodes = BTreeMap::from([(ROOT, Node::Dir(Names::default()))]);
        Self { nodes, next: ROOT + 1, pending: Vec::new() }
    }

    fn names(&self, dir: NodeId) -> io::Result<&Names> {
        match self.nodes.get(&dir) {
            Some(Node::Dir(names)) => Ok(names),
            Some(Node::File { .. }) => Err(Errno::NOTDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    pub(super) fn content(&self, file: NodeId) -> io::Result<&Content> {
        match self.nodes.get(&file) {
            Some(Node::File { content, .. }) => Ok(content),
            Some(Node::Dir(_)) => Err(Errno::ISDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    pub(super) fn content_mut(&mut self, file: NodeId) -> io::Result<&mut Content> {
        match self.nodes.get_mut(&file) {
            Some(Node::File { content, .. }) => Ok(content),
            Some(Node::Dir(_)) => Err(Errno::ISDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    /// A token that keeps the file while it is held.
    pub(super) fn open_token(&self, file: NodeId) -> io::Result<Arc<()>> {
        match self.nodes.get(&file) {
            Some(Node::File { open, .. }) => Ok(Arc::clone(open)),
            Some(Node::Dir(_)) => Err(Errno::ISDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    pub(super) fn kind(&self, node: NodeId) -> EntryKind {
        match self.nodes.get(&node) {
            Some(Node::File { .. }) => EntryKind::File,
            Some(Node::Dir(_)) => EntryKind::Dir,
            None => EntryKind::Other,
        }
    }

    /// A file's length; 0 for anything else.
    pub(super) fn len(&self, node: NodeId) -> u64 {
        self.content(node).map_or(0, |content| content.bytes().len() as u64)
    }

    /// What stands at a path.
    pub(super) fn find(&self, path: &Path) -> io::Result<NodeId> {
        let mut node = ROOT;
        for name in parts(path)? {
            node = *self.names(node)?.now.get(name).ok_or(Errno::NOENT)?;
        }
        Ok(node)
    }

    /// Where a path leads; its directory must exist.
    pub(super) fn spot(&self, path: &Path) -> io::Result<Spot> {
        let mut parts = parts(path)?;
        let name = parts.pop().ok_or(Errno::EXIST)?.to_owned();
        let mut dir = ROOT;
        for part in parts {
            dir = *self.names(dir)?.now.get(part).ok_or(Errno::NOENT)?;
        }
        let node = self.names(dir)?.now.get(&name).copied();
        Ok(Spot { dir, name, node })
    }

    /// The entries of a directory, sorted by name.
    pub(super) fn entries(&self, dir: NodeId) -> io::Result<impl Iterator<Item = (&String, NodeId)>> {
        Ok(self.names(dir)?.now.iter().map(|(name, node)| (name, *node)))
    }

    fn add(&mut self, node: Node) -> NodeId {
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, node);
        id
    }

    /// Does a change to the names now, or to those on the disk.
    fn apply(&mut self, change: &Change, pick: fn(&mut Names) -> &mut BTreeMap<String, NodeId>) {
        if let Some((dir, name)) = &change.unlink
            && let Some(Node::Dir(names)) = self.nodes.get_mut(dir)
        {
            pick(names).remove(name);
        }
        if let Some((dir, name, node)) = &change.link
            && let Some(Node::Dir(names)) = self.nodes.get_mut(dir)
        {
            pick(names).insert(name.clone(), *node);
        }
    }

    fn change(&mut self, change: Change) {
        self.apply(&change, |names| &mut names.now);
        self.pending.push(change);
    }

    fn link_new(&mut self, spot: &Spot, node: Node) -> io::Result<NodeId> {
        if spot.node.is_some() {
            return Err(Errno::EXIST.into());
        }
        let node = self.add(node);
        self.change(Change { unlink: None, link: Some((spot.dir, spot.name.clone(), node)) });
        Ok(node)
    }

    pub(super) fn create_file(&mut self, spot: &Spot) -> io::Result<NodeId> {
        self.link_new(spot, Node::file(Content::default()))
    }

    pub(super) fn create_dir(&mut self, spot: &Spot) -> io::Result<NodeId> {
        self.link_new(spot, Node::Dir(Names::default()))
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let from = self.spot(from)?;
        let to = self.spot(to)?;
        let node = from.node.ok_or(Errno::NOENT)?;
        if to.node == Some(node) {
            return Ok(());
        }
        let is_dir = self.kind(node) == EntryKind::Dir;
        if is_dir && self.is_below(to.dir, node) {
            return Err(Errno::INVAL.into());
        }
        if let Some(old) = to.node {
            if self.is_below(from.dir, old) {
                return Err(Errno::NOTEMPTY.into());
            }
            match (is_dir, self.names(old)) {
                (false, Ok(_)) => return Err(Errno::ISDIR.into()),
                (true, Err(_)) => return Err(Errno::NOTDIR.into()),
                (true, Ok(names)) if !names.now.is_empty() => return Err(Errno::NOTEMPTY.into()),
                _ => {}
            }
        }
        self.change(Change { unlink: Some((from.dir, from.name)), link: Some((to.dir, to.name, node)) });
        Ok(())
    }

    /// Whether `node` is `dir` or stands somewhere below it.
    fn is_below(&self, node: NodeId, dir: NodeId) -> bool {
        node == dir || self.names(dir).is_ok_and(|names| names.now.values().any(|&n| self.is_below(node, n)))
    }

    pub(super) fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        let spot = self.spot(path)?;
        match self.kind(spot.node.ok_or(Errno::NOENT)?) {
            EntryKind::Dir => Err(Errno::ISDIR.into()),
            EntryKind::File | EntryKind::Other => {
                self.change(Change { unlink: Some((spot.dir, spot.name)), link: None });
                Ok(())
            }
        }
    }

    pub(super) fn remove_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let spot = self.spot(path)?;
        let dir = spot.node.ok_or(Errno::NOENT)?;
        let inside: Vec<String> = self.names(dir)?.now.keys().cloned().collect();
        for name in inside {
            let child = path.join(name);
            match self.kind(self.find(&child)?) {
                EntryKind::Dir => self.remove_dir_all(&child)?,
                EntryKind::File | EntryKind::Other => self.remove_file(&child)?,
            }
        }
        self.change(Change { unlink: Some((spot.dir, spot.name)), link: None });
        Ok(())
    }

    /// Puts a directory's changes on the disk. Those that touch another directory too take that
    /// one's earlier changes along.
    pub(super) fn sync_dir(&mut self, dir: NodeId) -> io::Result<()> {
        self.names(dir)?;
        let mut dirs = BTreeSet::from([dir]);
        let mut chosen = Vec::new();
        let mut rest = Vec::new();
        for change in std::mem::take(&mut self.pending).into_iter().rev() {
            if change.dirs().any(|dir| dirs.contains(&dir)) {
                dirs.extend(change.dirs());
                chosen.push(change);
            } else {
                rest.push(change);
            }
        }
        rest.reverse();
        self.pending = rest;
        chosen.iter().rev().for_each(|change| self.apply(change, |names| &mut names.disk));
        self.collect();
        Ok(())
    }

    /// The files and directories at and below a node: a directory after what is in it.
    pub(super) fn below(&self, node: NodeId) -> Vec<NodeId> {
        let mut found = Vec::new();
        if let Ok(names) = self.names(node) {
            names.now.values().for_each(|&child| found.extend(self.below(child)));
        }
        found.push(node);
        found
    }

    /// The power goes: chance decides which changes are on the disk, and that is then how it is.
    pub(super) fn cut(&mut self, loss: Loss, rng: &mut Rng) {
        // Now and then all or nothing.
        let lost_of_4 = match loss {
            Loss::All => 4,
            Loss::Nothing => 0,
            Loss::Random | Loss::RandomSectors => [0, 1, 1, 4].get(rng.below(4)).copied().unwrap_or(1),
        };
        // A change that is lost takes all later ones of its directories with it.
        let mut lost = BTreeSet::new();
        for change in std::mem::take(&mut self.pending) {
            if change.dirs().any(|dir| lost.contains(&dir)) || rng.chance(lost_of_4, 4) {
                lost.extend(change.dirs());
            } else {
                self.apply(&change, |names| &mut names.disk);
            }
        }
        for node in self.nodes.values_mut() {
            match node {
                Node::Dir(names) => names.now.clone_from(&names.disk),
                Node::File { content, .. } => content.cut(loss, rng),
            }
        }
        self.close_all();
    }

    /// Nobody has a file open any more: whoever had died.
    pub(super) fn close_all(&mut self) {
        for node in self.nodes.values_mut() {
            if let Node::File { open, .. } = node {
                *open = Arc::new(());
            }
        }
        self.collect();
    }

    /// Forgets what nobody can reach any more.
    fn collect(&mut self) {
        let mut reached = BTreeSet::new();
        let mut todo = vec![ROOT];
        todo.extend(self.pending.iter().filter_map(|change| change.link.as_ref().map(|(.., node)| *node)));
        todo.extend(self.nodes.iter().filter_map(|(id, node)| match node {
            Node::File { open, .. } if Arc::strong_count(open) > 1 => Some(*id),
            Node::File { .. } | Node::Dir(_) => None,
        }));
        while let Some(node) = todo.pop() {
            if reached.insert(node)
                && let Ok(names) = self.names(node)
            {
                todo.extend(names.now.values().chain(names.disk.values()));
            }
        }
        self.nodes.retain(|id, _| reached.contains(id));
    }

    /// How many open files there are, those without a name included.
    #[cfg(test)]
    pub(super) fn open_count(&self) -> usize {
        let handles = |node: &Node| match node {
            Node::File { open, .. } => Arc::strong_count(open) - 1,
            Node::Dir(_) => 0,
        };
        self.nodes.values().map(handles).sum()
    }

    #[cfg(test)]
    pub(super) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The bytes of all files that have a name.
    pub(super) fn used(&self) -> u64 {
        self.below(ROOT).into_iter().map(|node| self.len(node)).sum()
    }

    /// How long a file may become: `Errno::FBIG` above.
    pub(super) fn checked_len(len: u64) -> io::Result<usize> {
        usize::try_from(len).ok().filter(|_| len <= MAX_FILE_LEN).ok_or_else(|| Errno::FBIG.into())
    }

    /// All files with their bytes, sorted by path.
    pub(super) fn files(&self) -> BTreeMap<PathBuf, &[u8]> {
        let mut files = BTreeMap::new();
        self.walk(ROOT, Path::new("/"), &mut |path, content| {
            if let Some(content) = content {
                files.insert(path.to_owned(), content.bytes());
            }
        });
        files
    }

    fn walk<'a>(&'a self, node: NodeId, path: &Path, see: &mut impl FnMut(&Path, Option<&'a Content>)) {
        match self.nodes.get(&node) {
            Some(Node::File { content, .. }) => see(path, Some(content)),
            Some(Node::Dir(names)) => {
                see(path, None);
                names.now.iter().for_each(|(name, &child)| self.walk(child, &path.join(name), see));
            }
            None => {}
        }
    }

    /// FNV-1a over every path, kind, length and byte.
    pub(super) fn hash(&self) -> u64 {
        let mut hash = 0xCBF2_9CE4_8422_2325_u64;
        let mut add = |bytes: &[u8]| {
            for &byte in bytes {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
            }
        };
        self.walk(ROOT, Path::new("/"), &mut |path, content| {
            add(path.as_os_str().as_encoded_bytes());
            match content {
                Some(content) => {
                    add(&[0, 1]);
                    add(&(content.bytes().len() as u64).to_le_bytes());
                    add(content.bytes());
                }
                None => add(&[0, 2]),
            }
        });
        hash
    }

    pub(super) fn read_raw(&self, path: &Path) -> Option<Vec<u8>> {
        self.content(self.find(path).ok()?).ok().map(|content| content.bytes().to_vec())
    }

    /// Puts a file on the disk, with the directories it needs.
    pub(super) fn write_raw(&mut self, path: &Path, bytes: Vec<u8>) -> io::Result<()> {
        let mut dir = ROOT;
        let mut names: Vec<String> = parts(path)?.into_iter().map(str::to_owned).collect();
        let name = names.pop().ok_or(Errno::ISDIR)?;
        for name in names {
            let node = self.names(dir)?.now.get(&name).copied();
            let spot = Spot { dir, name, node };
            let node = node.map_or_else(|| self.create_dir(&spot), Ok)?;
            self.sync_dir(dir)?;
            dir = node;
        }
        let node = self.names(dir)?.now.get(&name).copied();
        let spot = Spot { dir, name, node };
        let file = node.map_or_else(|| self.create_file(&spot), Ok)?;
        *self.content_mut(file)? = Content::on_disk(bytes);
        self.sync_dir(dir)
    }

    pub(super) fn remove_raw(&mut self, path: &Path) -> bool {
        let Ok(Spot { dir, node: Some(node), .. }) = self.spot(path) else { return false };
        let gone = if self.kind(node) == EntryKind::Dir { self.remove_dir_all(path) } else { self.remove_file(path) };
        gone.and_then(|()| self.sync_dir(dir)).is_ok()
    }
}
