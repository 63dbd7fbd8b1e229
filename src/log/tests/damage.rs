//! Bytes that are not what was written: an error or the exact result, never anything else.

use super::super::format::{CLEAN, FrameHeader, Spot};
use super::*;

#[test]
fn one_flipped_bit_anywhere_is_an_error_or_changes_nothing() {
    let rig = Rig::filled(5, 900);
    rig.checkpoint(5, 1);
    let files = rig.disk.list_raw();
    for (path, len) in files {
        // A few of each place of the format are enough: every 37th byte meets every field.
        for at in (0..usize::try_from(len).unwrap()).step_by(37) {
            let mut rig = rig.fork();
            rig.tail = Tail::Truncate;
            rig.edit(&path, |bytes| bytes[at] ^= 1 << (at % 8));
            match rig.open() {
                Ok(opened) => assert_intact(&opened.frames, 5),
                Err(error) => assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported), "{error}"),
            }
        }
    }
}

#[test]
fn a_file_cut_anywhere_is_an_error_or_changes_nothing() {
    let rig = Rig::filled(5, 900);
    rig.checkpoint(5, 1);
    for path in rig.segments() {
        let len = rig.disk.read_raw(&path).unwrap().len();
        for len in (0..len).step_by(101) {
            let rig = rig.fork();
            rig.edit(&path, |bytes| bytes.truncate(len));
            match rig.open() {
                Ok(opened) => assert_intact(&opened.frames, 5),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
            }
        }
    }
}

/// A valid frame header of any content where frame 2 would stand.
fn with_header(edit: impl FnOnce(&mut FrameHeader)) -> Rig {
    let mut rig = Rig::filled(1, 100);
    rig.tail = Tail::Truncate;
    let path = rig.last_segment();
    let spot = Spot { seed: ID.seed(), segment: 1, offset: 1024 };
    let chain = u32::from_le_bytes(rig.disk.read_raw(&path).unwrap()[516..520].try_into().unwrap());
    let content = payload(2, 400);
    let mut header = FrameHeader {
        payload_len: 400,
        payload_crc: super::super::format::payload_crc(&content, spot, 9),
        first_lsn: Lsn(2),
        record_count: 1,
        flags: 0,
        previous: chain,
        epoch: 9,
        durable_lsn: Lsn(1),
        clock: Timestamp(1),
    };
    edit(&mut header);
    rig.edit(&path, |bytes| {
        bytes[1024..1088].copy_from_slice(&header.encode(spot).0);
        bytes[1088..1488].copy_from_slice(&content);
    });
    rig
}

#[test]
fn a_frame_made_by_hand_passes_when_everything_is_right() {
    assert_eq!(with_header(|_| {}).opens_with(2).found.torn, None);
    assert!(with_header(|header| header.flags = CLEAN).opens_with(2).found.ends_clean);
}

#[test]
fn impossible_lengths_and_counts_are_no_frame_whatever_their_checksum() {
    for len in [0, 0x7FFF_FFFF, 0x8000_0000, u32::MAX, 64 * 1024 * 1024 + 1] {
        with_header(|header| header.payload_len = len).opens_with(1);
    }
    with_header(|header| header.payload_len = 64 * 1024 * 1024).opens_with(1);
    with_header(|header| header.payload_len = 399).opens_with(1);
    with_header(|header| header.record_count = 0).opens_with(1);
    with_header(|header| header.durable_lsn = Lsn(2)).opens_with(1);
    with_header(|header| header.first_lsn = Lsn(u64::MAX)).opens_with(1);
}

#[test]
fn frames_out_of_order_chain_or_epoch_are_not_replayed() {
    with_header(|header| header.first_lsn = Lsn(3)).opens_with(1);
    with_header(|header| header.previous ^= 1).opens_with(1);
    with_header(|header| header.epoch = 0).opens_with(1);
}

#[test]
fn a_frame_with_unknown_flags_is_unsupported() {
    let rig = with_header(|header| header.flags = 2);
    let before = rig.disk.hash();
    assert_eq!(rig.open().err().unwrap().kind(), ErrorKind::Unsupported);
    assert_eq!(rig.disk.hash(), before);
}

#[test]
fn a_file_longer_than_any_segment_is_refused_before_anything_is_allocated() {
    let position = Position { segment: 1, offset: 576, len: u32::MAX };
    let rig = Rig::filled(1, 100);
    let segments = rig.open().unwrap().found.log.segments();
    let mut buf = Vec::new();
    assert_eq!(segments.read(position, &mut buf).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(buf.capacity(), 0);
}

#[test]
fn records_are_read_by_position_and_wrong_positions_are_errors() {
    let rig = Rig::new();
    let mut log = rig.open().unwrap().found.log;
    let at = [900, 900, 5000, 10].map(|len| append_synced(&mut log, len));
    let segments = log.segments();
    let mut buf = Vec::new();
    for (lsn, at) in (1..).zip(at) {
        segments.read(at, &mut buf).unwrap();
        assert_eq!(buf, payload(lsn, at.len as usize));
    }
    let wrong = [
        Position { offset: 0, ..at[0] },
        Position { offset: 500_000, ..at[0] },
        Position { len: 0, ..at[0] },
        Position { len: 100_000, ..at[3] },
        Position { offset: u32::MAX, len: u32::MAX, ..at[0] },
    ];
    for at in wrong {
        assert_eq!(segments.read(at, &mut buf).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    let none = segments.read(Position { segment: 99, ..at[0] }, &mut buf).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound);
    let path = segments.path(1).unwrap();
    rig.edit(&path, |bytes| bytes.truncate(700));
    assert_eq!(segments.read(at[0], &mut buf).unwrap_err().kind(), ErrorKind::Corrupt);
}
