//! The borrowed store under the index: an ordered map of short rows with one atomic write.
//!
//! # Not here
//! What a row means: `keys.rs`, `rows.rs`. The two stores: `sled.rs`, `mem.rs`.

use crate::error::Result;

/// Longest value a [`Kv`] takes, in bytes. sled puts pieces of more than 128 KiB into files of their own
/// that it never syncs.
pub(crate) const MAX_VALUE_LEN: usize = 100 * 1024;

/// A key with its new value, `None` to remove it.
pub(crate) type Row = (Vec<u8>, Option<Vec<u8>>);

/// What [`Kv::commit`] is given. No key stands twice.
pub(crate) type Writes = [Row];

/// An ordered map of byte strings. It may lose what was committed since the last
/// [`sync`](Self::sync), but only whole commits, and only a suffix of them.
///
/// After any error the handle is used no more: what it would answer is unknown. Every error is
/// [`Io`](crate::ErrorKind::Io), [`Full`](crate::ErrorKind::Full) when the disk is full, or
/// [`Corrupt`](crate::ErrorKind::Corrupt) when the store itself found damage.
pub(crate) trait Kv: Send {
    /// The value under `key`, as of the last commit.
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Calls `visit` with every row in `from..to`, in order of the keys, until it returns false.
    fn scan(&mut self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()>;

    /// Applies all writes or none. They outlive the end of the process, however it ends; they
    /// outlive the end of the machine only after [`sync`](Self::sync). After an error it is unknown
    /// whether they were applied.
    fn commit(&mut self, writes: &Writes) -> Result<()>;

    /// Makes everything committed before durable.
    fn sync(&mut self) -> Result<()>;

    /// Bytes the store takes on disk; 0 when it takes none or cannot tell.
    fn len_on_disk(&self) -> u64;
}
