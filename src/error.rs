//! The one error type, and what a caller can do about each kind of it.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::types::Lsn;

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, by what the caller can do about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No such queue or message, or it is already settled. Nothing to do: for an ack that is a
    /// repeated one, the work is done.
    NotFound,
    /// A queue or store of that name is there already.
    AlreadyExists,
    /// An argument is out of range. Nothing was written; correct the call.
    InvalidInput,
    /// The receipt's delivery is over: the message was handed out again, given back or set aside.
    /// Stop working on it; whoever holds it now settles it.
    StaleReceipt,
    /// No room: the disk, the configured size, or (for a `try_` call) the request queue is full.
    /// Nothing was written. Try again when there is room.
    Full,
    /// Another process (or another handle in this one) has the store open.
    Locked,
    /// The store is of a format this version does not know, or on a file system it does not trust.
    Unsupported,
    /// Bytes on disk are not what was written. Nothing was changed; the message names the spot and
    /// the command to look further.
    Corrupt,
    /// The operating system refused. Nothing is known to be wrong with the store.
    Io,
    /// A write or sync failed earlier, so what reached the disk is not known. The store refuses
    /// writes until it is opened again; an operation that gets this answer may or may not have
    /// taken effect.
    Poisoned,
    /// The store was closed.
    Closed,
}

impl ErrorKind {
    /// The kind as one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::InvalidInput => "InvalidInput",
            Self::StaleReceipt => "StaleReceipt",
            Self::Full => "Full",
            Self::Locked => "Locked",
            Self::Unsupported => "Unsupported",
            Self::Corrupt => "Corrupt",
            Self::Io => "Io",
            Self::Poisoned => "Poisoned",
            Self::Closed => "Closed",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Any failure of this crate. [`kind`](Self::kind) says what can be done; the text says what
/// happened, with the values that matter.
#[derive(Clone, thiserror::Error)]
#[error("{0}")]
pub struct Error(std::sync::Arc<Repr>);

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Repr {
    kind: ErrorKind,
    message: String,
    #[source]
    source: Option<std::io::Error>,
    current_epoch: Option<u32>,
    damage: Option<Damage>,
    owner_pid: Option<u32>,
}

/// Where damage was found.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Damage {
    /// The damaged file.
    pub file: PathBuf,
    /// The first damaged byte, from the start of the file.
    pub offset: u64,
    /// The first record that cannot be read, where that is known.
    pub first_lsn: Option<Lsn>,
    /// The last record that cannot be read, where that is known.
    pub last_lsn: Option<Lsn>,
}

impl Error {
    fn build(kind: ErrorKind, message: impl Into<String>) -> Repr {
        Repr { kind, message: message.into(), source: None, current_epoch: None, damage: None, owner_pid: None }
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Self::build(kind, message).into())
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, "the store is closed")
    }

    pub(crate) fn stale(message: impl Into<String>, current_epoch: u32) -> Self {
        Self(Repr { current_epoch: Some(current_epoch), ..Self::build(ErrorKind::StaleReceipt, message) }.into())
    }

    pub(crate) fn locked(message: impl Into<String>, owner_pid: Option<u32>) -> Self {
        Self(Repr { owner_pid, ..Self::build(ErrorKind::Locked, message) }.into())
    }

    /// Damage at a spot. `what` is a lower-case fragment; the file, the offset, the LSN range and
    /// the command to look further are put behind it.
    pub(crate) fn corrupt(what: impl fmt::Display, damage: Damage) -> Self {
        let range = match (damage.first_lsn, damage.last_lsn) {
            (Some(first), Some(last)) => format!(", lsn {first} to {last}"),
            (Some(first), None) => format!(", from lsn {first}"),
            _ => String::new(),
        };
        let file = damage.file.display();
        let message = format!(
            "{what} in {file} at offset {}{range}; nothing was changed; look at what can be read with \"reappear dump\"",
            damage.offset
        );
        Self(Repr { damage: Some(damage), ..Self::build(ErrorKind::Corrupt, message) }.into())
    }

    /// An operating system error while doing `what` to `path`, and what to do about it where that is
    /// known. A full disk or quota is [`Full`](ErrorKind::Full); everything else is
    /// [`Io`](ErrorKind::Io).
    pub(crate) fn io(what: &str, path: &Path, source: std::io::Error) -> Self {
        let kind = match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::Full,
            _ => ErrorKind::Io,
        };
        let message = format!("{what} {}: {source}{}", path.display(), advice(&source));
        Self(Repr { source: Some(source), ..Self::build(kind, message) }.into())
    }

    /// Whether a file or directory was not where it must be.
    pub(crate) fn is_missing_file(&self) -> bool {
        self.0.source.as_ref().is_some_and(|source| source.kind() == std::io::ErrorKind::NotFound)
    }

    /// Later answers after a failed write or sync.
    pub(crate) fn poisoned(cause: &Self) -> Self {
        Self::new(
            ErrorKind::Poisoned,
            format!(
                "an earlier write failed ({cause}), so what reached the disk is unknown; open the store again to recover"
            ),
        )
    }

    /// The same error, saying which item of a batch it is about, counted from 1.
    pub(crate) fn in_item(&self, number: usize) -> Self {
        let repr = &self.0;
        let message = format!("item {number}: {}", repr.message);
        Self(
            Repr {
                current_epoch: repr.current_epoch,
                damage: repr.damage.clone(),
                owner_pid: repr.owner_pid,
                ..Self::build(repr.kind, message)
            }
            .into(),
        )
    }

    /// What the caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// For [`StaleReceipt`](ErrorKind::StaleReceipt): the epoch of the message's newest delivery.
    #[must_use]
    pub fn current_epoch(&self) -> Option<u32> {
        self.0.current_epoch
    }

    /// For [`Corrupt`](ErrorKind::Corrupt): where.
    #[must_use]
    pub fn damage(&self) -> Option<&Damage> {
        self.0.damage.as_ref()
    }

    /// For [`Locked`](ErrorKind::Locked): the process that has the store open, where it is known.
    #[must_use]
    pub fn owner_pid(&self) -> Option<u32> {
        self.0.owner_pid
    }
}

/// What a person can do about an error of the operating system.
fn advice(error: &std::io::Error) -> &'static str {
    const FAILING: i32 = rustix::io::Errno::IO.raw_os_error();
    const FILES: [i32; 2] = [rustix::io::Errno::MFILE.raw_os_error(), rustix::io::Errno::NFILE.raw_os_error()];
    match (error.kind(), error.raw_os_error()) {
        (std::io::ErrorKind::PermissionDenied, _) => {
            "; let this process's user read and write the store's directory and all that is in it"
        }
        (std::io::ErrorKind::ReadOnlyFilesystem, _) => {
            "; mount the file system for writing, or read the store with \"reappear dump\""
        }
        (_, Some(FAILING)) => "; the disk may be failing, see the system's log",
        (_, Some(code)) if FILES.contains(&code) => "; raise the limit of open files",
        _ => "",
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({}: {})", self.0.kind, self.0.message)
    }
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}
