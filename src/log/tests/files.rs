//! Files that are missing, empty, in the way, of another version or of another store.

use super::*;
use crate::error::Damage;

/// Nine frames in segments of two.
fn five_segments() -> Rig {
    let rig = Rig::filled(9, 1100);
    assert_eq!(rig.segments().len(), 5, "two frames of 1536 bytes fit a segment");
    rig
}

fn name(damage: &Damage) -> &str {
    damage.file.file_name().unwrap().to_str().unwrap()
}

#[test]
fn a_missing_middle_segment_is_named_with_its_lsns() {
    let rig = five_segments();
    rig.disk.remove_raw(&rig.segments()[2]);
    let damage = rig.corrupt();
    assert_eq!(name(&damage), "00000000000000000005.seg");
    assert_eq!((damage.first_lsn, damage.last_lsn), (Some(Lsn(5)), Some(Lsn(6))));
}

#[test]
fn two_missing_middle_segments_are_one_gap() {
    let rig = five_segments();
    let segments = rig.segments();
    rig.disk.remove_raw(&segments[1]);
    rig.disk.remove_raw(&segments[2]);
    let damage = rig.corrupt();
    assert_eq!((damage.first_lsn, damage.last_lsn), (Some(Lsn(3)), Some(Lsn(6))));
}

#[test]
fn a_missing_first_segment_is_named_when_the_checkpoint_needs_it() {
    let rig = five_segments();
    rig.disk.remove_raw(&rig.segments()[0]);
    let damage = rig.corrupt();
    assert_eq!(name(&damage), "00000000000000000001.seg");
    assert_eq!((damage.first_lsn, damage.last_lsn), (Some(Lsn(1)), Some(Lsn(2))));
}

#[test]
fn a_missing_last_segment_is_named_because_its_predecessor_is_sealed() {
    let mut rig = five_segments();
    rig.disk.remove_raw(rig.last_segment());
    let damage = rig.corrupt();
    assert_eq!((name(&damage), damage.first_lsn), ("00000000000000000009.seg", Some(Lsn(9))));
    rig.ignore_checkpoint = true;
    assert_eq!(name(&rig.corrupt()), "00000000000000000009.seg");
    rig.ignore_checkpoint = false;
    rig.checkpoint(9, 5);
    let damage = rig.corrupt();
    assert_eq!(name(&damage), "00000000000000000009.seg");
    assert_eq!((damage.first_lsn, damage.last_lsn), (Some(Lsn(9)), Some(Lsn(9))));
}

#[test]
fn a_log_without_any_segment_or_directory_is_damage_and_not_a_new_store() {
    let rig = five_segments();
    rig.segments().iter().for_each(|path| assert!(rig.disk.remove_raw(path)));
    rig.corrupt();
    rig.checkpoint(9, 1);
    assert_eq!(rig.corrupt().last_lsn, Some(Lsn(9)));
    rig.disk.remove_raw("/store/log");
    rig.corrupt();
}

#[test]
fn segments_before_the_checkpoints_first_are_removed_whatever_is_in_them() {
    let rig = five_segments();
    rig.checkpoint(9, 3);
    let segments = rig.segments();
    rig.disk.write_raw(&segments[0], []);
    rig.edit(&segments[1], |bytes| bytes.fill(0xFF));
    let opened = rig.open().unwrap();
    assert_eq!(opened.found.removed_files, ["log/00000000000000000001.seg", "log/00000000000000000003.seg"]);
    assert_eq!(opened.frames[0].first_lsn, Lsn(5));
    assert_eq!(rig.segments(), segments[2..]);
}

#[test]
fn whole_segments_of_zeros_are_corrupt_when_old_and_when_proven() {
    let rig = five_segments();
    for path in &rig.segments()[..4] {
        let rig = rig.fork();
        rig.edit(path, |bytes| bytes.fill(0));
        assert_eq!((&rig.corrupt().file, rig.corrupt().offset), (path, 0));
    }
    rig.checkpoint(9, 1);
    rig.edit(&rig.last_segment(), |bytes| bytes.fill(0));
    let damage = rig.corrupt();
    assert_eq!((damage.first_lsn, damage.last_lsn), (Some(Lsn(9)), Some(Lsn(9))));
}

#[test]
fn a_newest_segment_of_zeros_in_which_nothing_was_proven_is_made_again() {
    let rig = five_segments();
    rig.edit(&rig.last_segment(), |bytes| bytes.fill(0));
    rig.opens_with(8);
}

#[test]
fn the_only_segment_of_zeros_is_made_again_only_if_nothing_was_proven() {
    let rig = Rig::new();
    rig.edit(&rig.last_segment(), |bytes| bytes.fill(0));
    rig.opens_with(0);
    rig.checkpoint(1, 1);
    rig.edit(&rig.last_segment(), |bytes| bytes.fill(0));
    assert_eq!(rig.corrupt().first_lsn, Some(Lsn(1)));
}

#[test]
fn a_stub_of_the_next_segment_is_removed_and_nothing_is_lost() {
    let rig = Rig::filled(1, 1100);
    let header = rig.disk.read_raw(rig.last_segment()).unwrap()[..512].to_vec();
    let half = header[..256].to_vec();
    for stub in [vec![], vec![0], half, vec![0; 512], vec![0; 4096]] {
        for name in ["00000000000000000002.seg", "00000000000000000099.seg"] {
            let rig = rig.fork();
            rig.disk.write_raw(format!("/store/log/{name}"), stub.clone());
            let opened = rig.opens_with(1);
            assert_eq!(opened.found.removed_files, [format!("log/{name}")]);
            assert_eq!(rig.segments().len(), 1);
        }
    }
}

#[test]
fn a_stub_behind_a_sealed_segment_is_made_again_and_the_log_goes_on() {
    let rig = five_segments();
    for stub in [vec![], vec![0], vec![0; 512], vec![0xFF; 300], vec![0; 4096], vec![0; 5000]] {
        let rig = rig.fork();
        rig.disk.write_raw(rig.last_segment(), stub);
        rig.opens_with(8);
    }
}

#[test]
fn a_stub_with_bytes_behind_its_header_is_for_a_person_to_judge() {
    let mut rig = five_segments();
    rig.edit(&rig.last_segment(), |bytes| bytes[3] ^= 1);
    assert_eq!(rig.corrupt().offset, 0);
    rig.tail = Tail::Truncate;
    let opened = rig.opens_with(8);
    assert!(opened.found.torn.unwrap().kept.is_some());
}

#[test]
fn a_damaged_header_of_a_newest_segment_that_proves_itself_is_corrupt() {
    let mut rig = Rig::filled(10, 1100);
    rig.tail = Tail::Truncate;
    rig.edit(&rig.last_segment(), |bytes| bytes[3] ^= 1);
    let damage = rig.corrupt();
    assert_eq!((damage.first_lsn, damage.last_lsn), (Some(Lsn(9)), Some(Lsn(9))));
}

#[test]
fn a_segment_under_another_name_or_of_another_store_is_refused() {
    let rig = five_segments();
    let bytes = rig.disk.read_raw(&rig.segments()[1]).unwrap();
    rig.disk.write_raw("/store/log/00000000000000000077.seg", bytes);
    rig.corrupt();
    let rig = five_segments();
    let path = rig.segments()[1].clone();
    let other = StoreFile { id: StoreId([8; 16]), ..StoreFile::read(&rig.disk.fs(), Path::new(DIR)).unwrap() };
    let header = super::super::writer::first_header(Timestamp(1), 1, 2).encode(other.id.0, other.id.seed());
    rig.edit(&path, |bytes| bytes[..512].copy_from_slice(&header));
    assert_eq!(rig.corrupt().file, path);
    assert!(rig.open().err().unwrap().to_string().contains("another store"));
}

#[test]
fn frames_of_another_place_segment_opening_or_store_never_pass() {
    use super::super::format::{FrameHeader, Spot};
    let header = FrameHeader {
        payload_len: 1,
        payload_crc: 0,
        first_lsn: Lsn(5),
        record_count: 1,
        flags: 0,
        previous: 0,
        epoch: 2,
        durable_lsn: Lsn(4),
        clock: Timestamp(9),
    };
    let spot = Spot { seed: 1, segment: 2, offset: 512 };
    let (bytes, crc) = header.encode(spot);
    assert_eq!(FrameHeader::decode(&bytes, spot), Some((header, crc)));
    for other in [Spot { seed: 2, ..spot }, Spot { segment: 3, ..spot }, Spot { offset: 1024, ..spot }] {
        assert_eq!(FrameHeader::decode(&bytes, other), None);
    }
    // A frame of an earlier opening at the same place, where a newer one was: what follows does not
    // continue it.
    let rig = Rig::filled(2, 100);
    let old = rig.disk.read_raw(rig.last_segment()).unwrap();
    rig.edit(&rig.last_segment(), |bytes| bytes[1024..].fill(0));
    let mut log = rig.open().unwrap().found.log;
    append_synced(&mut log, 90);
    append_synced(&mut log, 90);
    rig.disk.kill();
    rig.edit(&rig.last_segment(), |bytes| bytes[1024..1536].copy_from_slice(&old[1024..1536]));
    assert_eq!(rig.corrupt().first_lsn, Some(Lsn(3)));
}

/// BB-137.
#[test]
fn leftovers_of_ours_are_removed_and_foreign_files_are_left_and_named_once() {
    let rig = Rig::filled(1, 100);
    let ours =
        ["STORE.tmp", "CHECKPOINT.tmp", "log/1.seg.tmp", "log/old.spare", "quarantine/1.seg-512-0badcafe.kept.tmp"];
    let kept = ["quarantine/1.seg-512-0badcafe.torn", "quarantine/notes.tmp"];
    kept.iter().for_each(|name| rig.disk.write_raw(Path::new(DIR).join(name), *b"for a person"));
    let foreign = ["notes.txt", "log/1.seg", "log/README"];
    ours.iter().chain(&foreign).for_each(|name| rig.disk.write_raw(Path::new(DIR).join(name), *b"x"));
    rig.disk.write_raw("/store/log/00000000000000000050.seg/inner", *b"a directory with a segment's name");
    rig.disk.write_raw("/store/log/next.spare", *b"junk from before");
    rig.disk.write_raw("/store/log/reserve.spare", *b"junk from before");
    let opened = rig.opens_with(1);
    assert_eq!(sorted(opened.found.removed_files), sorted(ours.map(String::from).to_vec()));
    let named = ["log/00000000000000000050.seg", "log/1.seg", "log/README", "notes.txt"];
    assert_eq!(sorted(opened.found.foreign_files), named);
    foreign.iter().for_each(|name| assert!(rig.disk.read_raw(Path::new(DIR).join(name)).is_some()));
    ours.iter().for_each(|name| assert!(rig.disk.read_raw(Path::new(DIR).join(name)).is_none()));
    kept.iter().for_each(|name| assert!(rig.disk.read_raw(Path::new(DIR).join(name)).is_some()));
}

#[test]
fn a_leftover_that_can_not_be_removed_stays_until_the_next_opening_but_not_a_stub() {
    for kind in [FaultKind::Eacces, FaultKind::Eio, FaultKind::Enospc] {
        let rig = five_segments();
        rig.disk.write_raw("/store/log/x.tmp", *b"x");
        rig.checkpoint(9, 3);
        rig.disk.fail(Fault { op: Op::Remove, after: 1, times: 1, kind });
        let opened = rig.open().unwrap();
        assert_eq!(opened.found.removed_files, ["log/x.tmp"]);
        assert_eq!((opened.frames[0].first_lsn, opened.found.last_lsn), (Lsn(5), Lsn(9)));
        rig.disk.kill();
        let opened = rig.open().unwrap();
        assert_eq!(opened.found.removed_files.len(), 2);
        assert_eq!(opened.found.last_lsn, Lsn(9));
        // A file without a header would stand between segments once the log goes on.
        let rig = Rig::filled(1, 100);
        rig.disk.write_raw("/store/log/00000000000000000099.seg", *b"");
        rig.disk.fail(Fault { op: Op::Remove, after: 0, times: 1, kind });
        assert!(rig.open().err().unwrap().to_string().contains("00000000000000000099.seg"));
        rig.opens_with(1);
    }
}

#[test]
fn spares_of_any_length_that_an_earlier_opening_left_are_made_whole_or_left_as_long_as_they_were() {
    for len in [0, 1, 511, 4095, 4096, 9000] {
        let rig = Rig::filled(2, 900);
        let names = ["/store/log/next.spare", "/store/log/reserve.spare"];
        names.iter().for_each(|name| rig.disk.write_raw(name, vec![0xAB; len]));
        let lens = |rig: &Rig| names.map(|name| rig.disk.read_raw(name).map(|bytes| bytes.len()));
        let full = rig.fork();
        full.fill_up();
        let spare = opened_log(&full).spare();
        assert_eq!(spare.len_on_disk(), 2 * len as u64);
        if len < 4096 {
            assert_eq!(spare.make(u64::MAX).unwrap_err().kind(), ErrorKind::Full);
            assert!(lens(&full)[1].is_none_or(|left| left == len), "{len}");
            assert_eq!((spare.rooms().spare, spare.rooms().reserve), (0, 0));
            full.disk.set_capacity(None);
        }
        for (rig, spare) in [(&rig, opened_log(&rig).spare()), (&full, spare)] {
            assert!(spare.make(u64::MAX).unwrap());
            assert_eq!(lens(rig), [Some(4096), Some(4096)]);
            assert_eq!(spare.len_on_disk(), 8192);
            names.iter().for_each(|name| assert!(rig.disk.read_raw(name).unwrap().iter().all(|byte| *byte == 0)));
            rig.disk.kill();
            let opened = rig.opens_with(2);
            assert!(opened.found.removed_files.is_empty() && opened.found.foreign_files.is_empty());
        }
    }
}

fn opened_log(rig: &Rig) -> Log {
    rig.open().unwrap().found.log
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

#[test]
fn an_unknown_version_or_feature_is_unsupported_and_nothing_is_written() {
    let rig = five_segments();
    for path in [PathBuf::from("/store/STORE"), PathBuf::from("/store/CHECKPOINT"), rig.segments()[0].clone()] {
        let rig = rig.fork();
        rig.edit(&path, |bytes| bytes[8] = 2);
        let before = rig.disk.hash();
        let error = rig.open().err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("version 2") && error.to_string().contains("version 1"), "{error}");
        assert_eq!(rig.disk.hash(), before);
    }
    for (feature, readable) in [(12, false), (16, true)] {
        let mut rig = rig.fork();
        rig.edit(Path::new("/store/STORE"), |bytes| {
            bytes[feature] = 1;
            let crc = crate::codec::crc(0, &[&bytes[..508]]);
            bytes[508..].copy_from_slice(&crc.to_le_bytes());
        });
        assert_eq!(rig.open().err().unwrap().kind(), ErrorKind::Unsupported);
        rig.read_only = true;
        assert_eq!(rig.open().is_ok(), readable);
    }
}

#[test]
fn a_damaged_store_file_is_corrupt_and_a_missing_one_is_not_found() {
    let rig = five_segments();
    let edits: [fn(&mut Vec<u8>); 4] =
        [|bytes| bytes.fill(0), |bytes| bytes.clear(), |bytes| bytes[30] ^= 1, |bytes| bytes.truncate(511)];
    for edit in edits {
        let rig = rig.fork();
        rig.edit(Path::new("/store/STORE"), edit);
        rig.corrupt();
        let again = StoreFile::create_new(&rig.disk.fs(), Path::new(DIR), ID, Timestamp(1));
        assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
    }
    rig.disk.remove_raw("/store/STORE");
    assert_eq!(rig.open().err().unwrap().kind(), ErrorKind::NotFound);
}

#[test]
fn creating_over_a_log_or_a_damaged_first_segment_is_refused() {
    let rig = Rig::new();
    let fs = rig.disk.fs();
    let store = StoreFile::read(&fs, Path::new(DIR)).unwrap();
    let again = || create(&fs, Path::new(DIR), &store, SEGMENT_LEN, Timestamp(5));
    again().unwrap();
    rig.edit(&rig.last_segment(), |bytes| bytes.fill(0));
    assert_eq!(again().unwrap_err().kind(), ErrorKind::Corrupt);
    let rig = five_segments();
    let again = create(&rig.disk.fs(), Path::new(DIR), &store, SEGMENT_LEN, Timestamp(5));
    assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
}

#[test]
fn another_segment_length_at_reopen_is_fine() {
    let mut rig = five_segments();
    let mut last = 9;
    for segment_len in [8192, 65536, 4096] {
        rig.segment_len = segment_len;
        let opened = rig.open().unwrap();
        assert_intact(&opened.frames, last);
        let mut log = opened.found.log;
        (0..20).for_each(|_| _ = append_synced(&mut log, 700));
        last += 20;
        assert!(log.segments().list().iter().any(|info| info.len == u64::from(segment_len)));
        rig.disk.kill();
    }
    rig.opens_with(last);
}

#[test]
fn whole_segments_below_from_are_skipped_on_the_word_of_their_footers() {
    let mut rig = five_segments();
    let before = rig.disk.calls(Op::Read);
    rig.open().unwrap();
    let all = rig.disk.calls(Op::Read) - before;
    rig.from = Lsn(7);
    let opened = rig.open().unwrap();
    assert!(rig.disk.calls(Op::Read) - before - all < all + 4);
    assert_eq!(opened.frames.iter().map(|frame| frame.first_lsn.0).collect::<Vec<_>>(), [7, 8, 9]);
    assert_eq!(opened.found.frames, 3);
    // A footer that is damaged vouches for nothing: the segment is read.
    let path = rig.segments()[0].clone();
    rig.edit(&path, |bytes| *bytes.last_mut().unwrap() ^= 1);
    assert_eq!(rig.open().unwrap().found.frames, 5);
}

#[test]
fn a_checkpoint_slot_that_is_damaged_gives_way_to_the_other_and_is_reported() {
    let rig = Rig::new();
    let fs = rig.disk.fs();
    let open = || CheckpointFile::open(&fs, Path::new(DIR), ID.seed());
    let (mut file, first, damaged) = open().unwrap();
    assert!(!damaged && first.durable_lsn == Lsn::ZERO);
    file.write(checkpoint(10, 2)).unwrap();
    assert_eq!((file.newest().durable_lsn, file.first_segment()), (Lsn(10), 1));
    file.write(checkpoint(20, 3)).unwrap();
    assert_eq!((file.newest().generation, file.first_segment()), (4, 2));
    let path = Path::new("/store/CHECKPOINT");
    for (at, durable) in [(0, 10), (4096, 20)] {
        let rig = rig.fork();
        rig.edit(path, |bytes| bytes[at + 40] ^= 1);
        let (mut file, found, damaged) = CheckpointFile::open(&rig.disk.fs(), Path::new(DIR), ID.seed()).unwrap();
        assert!(damaged);
        assert_eq!(found.durable_lsn, Lsn(durable));
        file.write(checkpoint(30, 3)).unwrap();
        let (_, found, damaged) = CheckpointFile::open(&rig.disk.fs(), Path::new(DIR), ID.seed()).unwrap();
        assert_eq!((found.durable_lsn, damaged), (Lsn(30), false));
    }
    rig.edit(path, |bytes| bytes.fill(0));
    assert_eq!(open().err().unwrap().kind(), ErrorKind::Corrupt);
    rig.disk.remove_raw(path);
    assert_eq!(open().err().unwrap().kind(), ErrorKind::NotFound);
}

#[test]
fn a_power_cut_in_a_checkpoint_leaves_the_old_or_the_new_one() {
    for seed in 1..60 {
        let rig = Rig::with_seed(seed);
        let (mut file, ..) = CheckpointFile::open(&rig.disk.fs(), Path::new(DIR), ID.seed()).unwrap();
        file.write(checkpoint(10, 1)).unwrap();
        rig.disk.fail(Fault { op: Op::Any, after: seed % 3, times: 1, kind: FaultKind::Crash });
        let written = file.write(checkpoint(20, 1)).is_ok();
        rig.disk.clear_faults();
        rig.disk.power_cut();
        let (_, found, _) = CheckpointFile::open(&rig.disk.fs(), Path::new(DIR), ID.seed()).unwrap();
        assert!(found.durable_lsn == Lsn(20) || !written && found.durable_lsn == Lsn(10));
    }
}

#[test]
fn a_checkpoint_that_failed_once_is_not_tried_again_unless_only_room_was_missing() {
    let sticky = [
        (Op::Sync, FaultKind::SyncLost, ErrorKind::Io),
        (Op::Sync, FaultKind::Enospc, ErrorKind::Full),
        (Op::Write, FaultKind::Eio, ErrorKind::Io),
        (Op::Write, FaultKind::ShortWrite, ErrorKind::Io),
    ];
    for (op, kind, expected) in sticky {
        let rig = Rig::new();
        let (mut file, ..) = CheckpointFile::open(&rig.disk.fs(), Path::new(DIR), ID.seed()).unwrap();
        rig.disk.fail(Fault { op, after: 0, times: 1, kind });
        assert_eq!(file.write(checkpoint(10, 1)).unwrap_err().kind(), expected);
        assert_eq!(file.write(checkpoint(20, 1)).unwrap_err().kind(), expected);
        assert_eq!(file.newest().durable_lsn, Lsn::ZERO);
    }
    for kind in [FaultKind::Enospc, FaultKind::Edquot] {
        let rig = Rig::new();
        let (mut file, ..) = CheckpointFile::open(&rig.disk.fs(), Path::new(DIR), ID.seed()).unwrap();
        file.write(checkpoint(10, 2)).unwrap();
        rig.disk.fail(Fault { op: Op::Write, after: 0, times: 3, kind });
        for durable in 20..23 {
            assert_eq!(file.write(checkpoint(durable, 5)).unwrap_err().kind(), ErrorKind::Full);
            assert_eq!((file.newest().durable_lsn, file.first_segment()), (Lsn(10), 1));
        }
        // A part of the slot may have been written.
        let start = (file.newest().generation + 1) % 2 * 4096;
        rig.edit(Path::new("/store/CHECKPOINT"), |bytes| bytes[usize::try_from(start).unwrap() + 40] ^= 1);
        let (_, found, damaged) = CheckpointFile::open(&rig.disk.fs(), Path::new(DIR), ID.seed()).unwrap();
        assert_eq!((found.durable_lsn, damaged), (Lsn(10), true));
        file.write(checkpoint(23, 5)).unwrap();
        assert_eq!((file.newest().durable_lsn, file.first_segment()), (Lsn(23), 2));
        let (_, found, damaged) = CheckpointFile::open(&rig.disk.fs(), Path::new(DIR), ID.seed()).unwrap();
        assert_eq!((found.durable_lsn, damaged), (Lsn(23), false));
    }
}
