//! Fixed-size little-endian fields and seeded checksums, for everything that stands on disk at a
//! known offset: headers, footers, the store file, the checkpoint.
//!
//! Reading never panics and never trusts a length: a read past the end is an error.
//!
//! # Not here
//! Records (bincode, in `record.rs`) and index rows (in `index/rows.rs`).

/// The bytes end before the field does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Short;

/// Takes fields from the front of a byte slice.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn remaining(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Short> {
        let (head, tail) = self.0.split_at_checked(count).ok_or(Short)?;
        self.0 = tail;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let (head, tail) = self.0.split_first_chunk().ok_or(Short)?;
        self.0 = tail;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Short> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_le_bytes)
    }

    /// An unsigned LEB128 number of at most 64 bits. Only the shortest spelling is accepted.
    pub(crate) fn varint(&mut self) -> Result<u64, Short> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            let overflows = shift == 63 && bits > 1;
            let padded = byte == 0 && shift > 0;
            if overflows || padded {
                return Err(Short);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Short)
    }
}

/// Appends `value` as unsigned LEB128.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            return out.push(low);
        }
        out.push(low | 0x80);
    }
}

/// Maps signed to unsigned numbers so that small magnitudes stay small: 0, -1, 1, -2, …
pub(crate) const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

/// The inverse of [`zigzag`].
pub(crate) const fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

/// CRC-32 (IEEE) of `parts` one after the other, starting from `seed`.
pub(crate) fn crc(seed: u32, parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(seed);
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}
