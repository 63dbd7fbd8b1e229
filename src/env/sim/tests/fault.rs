use rustix::io::Errno;

use super::*;

const EIO: Option<i32> = Some(Errno::IO.raw_os_error());
const ENOSPC: Option<i32> = Some(Errno::NOSPC.raw_os_error());

fn fault(op: Op, kind: FaultKind) -> Fault {
    Fault { op, after: 0, times: 1, kind }
}

#[test]
fn a_fault_strikes_after_so_many_calls_so_many_times_and_is_counted() {
    let disk = disk_with(b"abc");
    let f = open(&disk.fs(), "/f");
    disk.fail(Fault { op: Op::Write, after: 2, times: 2, kind: FaultKind::Enospc });
    let results: Vec<bool> = (0..6).map(|_| f.write_all_at(b"x", 0).is_ok()).collect();
    assert_eq!(results, [true, true, false, false, true, true]);
    assert_eq!((disk.calls(Op::Write), disk.calls(Op::Open), disk.calls(Op::Any)), (6, 1, 7));
    assert_eq!((disk.calls(Op::Sync), disk.injected()), (0, 2));
}

#[test]
fn a_fault_that_strikes_for_ever_ends_when_faults_are_cleared() {
    let disk = disk_with(b"abc");
    let f = open(&disk.fs(), "/f");
    disk.fail(Fault { op: Op::Sync, after: 0, times: u64::MAX, kind: FaultKind::Eio });
    assert!((0..100).all(|_| f.sync_data().is_err()));
    disk.clear_faults();
    f.sync_data().unwrap();
    assert_eq!(disk.injected(), 100);
}

#[test]
fn every_kind_of_call_can_be_struck_and_then_nothing_happened() {
    type Call = fn(&Arc<dyn Fs>, &Arc<dyn File>) -> io::Result<()>;
    let calls: [(Op, Call); 12] = [
        (Op::Read, |_, f| f.read_exact_at(&mut [0], 0)),
        (Op::Write, |_, f| f.write_all_at(b"x", 0)),
        (Op::Sync, |_, f| f.sync_data()),
        (Op::SetLen, |_, f| f.set_len(1)),
        (Op::Open, |fs, _| fs.open(Path::new("/f"), OpenMode::Read).map(|_| ())),
        (Op::Create, |fs, _| fs.create_dir(Path::new("/d"))),
        (Op::Rename, |fs, _| fs.rename(Path::new("/f"), Path::new("/g"))),
        (Op::Remove, |fs, _| fs.remove_file(Path::new("/f"))),
        (Op::SyncDir, |fs, _| fs.sync_dir(Path::new("/"))),
        (Op::SyncTree, |fs, _| fs.sync_tree(Path::new("/"))),
        (Op::ReadDir, |fs, _| fs.read_dir(Path::new("/")).map(|_| ())),
        (Op::Lock, |fs, _| fs.try_lock(Path::new("/LOCK")).map(|_| ())),
    ];
    for (op, call) in calls {
        for armed in [op, Op::Any] {
            let disk = disk_with(b"abc");
            let fs = disk.fs();
            let f = open(&fs, "/f");
            let before = disk.hash();
            disk.fail(fault(armed, FaultKind::Eio));
            assert_eq!(errno(call(&fs, &f)), EIO, "{op:?}");
            assert_eq!((disk.hash(), disk.calls(op)), (before, if op == Op::Open { 2 } else { 1 }), "{op:?}");
            call(&fs, &f).unwrap();
        }
    }
}

#[test]
fn each_kind_of_fault_is_the_error_the_system_gives() {
    let kinds = [
        (FaultKind::Eio, io::Error::from(Errno::IO).kind()),
        (FaultKind::Enospc, io::ErrorKind::StorageFull),
        (FaultKind::Edquot, io::ErrorKind::QuotaExceeded),
        (FaultKind::Eacces, io::ErrorKind::PermissionDenied),
        (FaultKind::Erofs, io::ErrorKind::ReadOnlyFilesystem),
        (FaultKind::Emfile, io::Error::from(Errno::MFILE).kind()),
    ];
    for (kind, expected) in kinds {
        let disk = SimDisk::new(1);
        disk.fail(fault(Op::Create, kind));
        assert_eq!(disk.fs().open(Path::new("/f"), OpenMode::CreateNew).err().unwrap().kind(), expected);
        assert_eq!(disk.list_raw(), vec![]);
    }
}

#[test]
fn too_many_open_files_fail_what_opens_something_and_nothing_else() {
    let disk = disk_with(b"abc");
    let f = open(&disk.fs(), "/f");
    disk.fail(fault(Op::Any, FaultKind::Emfile));
    f.write_all_at(b"x", 0).unwrap();
    f.sync_data().unwrap();
    assert_eq!(disk.open_count(), 1);
    assert_eq!(disk.fs().sync_dir(Path::new("/")).unwrap_err().raw_os_error(), Some(Errno::MFILE.raw_os_error()));
    let again = open(&disk.fs(), "/f");
    assert_eq!(disk.open_count(), 2);
    drop((f, again));
    assert_eq!(disk.open_count(), 0);
}

#[test]
fn a_fault_for_a_path_leaves_other_paths_alone() {
    let disk = disk_with(b"abc");
    disk.write_raw("/log/1.seg", *b"abc");
    let fs = disk.fs();
    disk.fail_on(".seg", fault(Op::Write, FaultKind::Eio));
    open(&fs, "/f").write_all_at(b"x", 0).unwrap();
    assert_eq!(errno(open(&fs, "/log/1.seg").write_all_at(b"x", 0)), EIO);
}

#[test]
fn of_several_faults_each_counts_every_call() {
    let disk = disk_with(b"abc");
    let f = open(&disk.fs(), "/f");
    disk.fail(Fault { op: Op::Write, after: 1, times: 1, kind: FaultKind::Eio });
    disk.fail(Fault { op: Op::Any, after: 3, times: 1, kind: FaultKind::Enospc });
    let codes: Vec<_> = (0..5).map(|_| f.write_all_at(b"x", 0).err().and_then(|e| e.raw_os_error())).collect();
    assert_eq!(codes, [None, EIO, None, ENOSPC, None]);
}

#[test]
fn a_short_write_leaves_half_of_its_bytes() {
    let disk = disk_with(b"0000");
    disk.fail(fault(Op::Write, FaultKind::ShortWrite));
    assert_eq!(errno(open(&disk.fs(), "/f").write_all_at(b"12345678", 2)), EIO);
    assert_eq!(disk.read_raw("/f").unwrap(), b"001234");
}

#[test]
fn after_a_lost_sync_the_next_one_succeeds_and_the_data_is_lost_all_the_same() {
    let disk = disk_with(&[0; 1000]);
    let fs = disk.fs();
    let f = open(&fs, "/f");
    f.write_all_at(&[1; 1000], 0).unwrap();
    disk.fail(fault(Op::Sync, FaultKind::SyncLost));
    assert_eq!(errno(f.sync_data()), EIO);
    f.sync_data().unwrap();
    disk.kill();
    assert_eq!(disk.read_raw("/f"), Some(vec![1; 1000]), "readers still see it");
    open(&disk.fs(), "/f").sync_data().unwrap();
    let rewritten = disk.fork(1);
    disk.power_cut_with(Loss::Nothing);
    assert_eq!(disk.read_raw("/f"), Some(vec![0; 1000]));
    let f = open(&rewritten.fs(), "/f");
    f.write_all_at(&[1; 1000], 0).unwrap();
    f.sync_data().unwrap();
    rewritten.power_cut_with(Loss::All);
    assert_eq!(rewritten.read_raw("/f"), Some(vec![1; 1000]), "only writing it again helps");
}

#[test]
fn a_lost_sync_of_a_tree_loses_every_file_in_it() {
    let disk = disk_with(b"0");
    disk.write_raw("/d/g", *b"0");
    let fs = disk.fs();
    ["/f", "/d/g"].iter().for_each(|path| open(&fs, path).write_all_at(b"1", 0).unwrap());
    disk.fail(fault(Op::SyncTree, FaultKind::SyncLost));
    assert_eq!(errno(fs.sync_tree(Path::new("/"))), EIO);
    fs.sync_tree(Path::new("/")).unwrap();
    disk.power_cut_with(Loss::Nothing);
    assert_eq!((disk.read_raw("/f").unwrap(), disk.read_raw("/d/g").unwrap()), (b"0".to_vec(), b"0".to_vec()));
}

#[test]
fn a_crash_in_a_call_ends_everything_until_the_disk_is_restarted() {
    let disk = disk_with(b"abc");
    let fs = disk.fs();
    let f = open(&fs, "/f");
    disk.fail(Fault { op: Op::Sync, after: 1, times: 1, kind: FaultKind::Crash });
    f.sync_data().unwrap();
    assert!(!disk.is_dead() && is_dead(f.sync_data()) && disk.is_dead());
    assert!(is_dead(f.len()) && is_dead(fs.read_dir(Path::new("/"))));
    assert!(is_dead(disk.fs().read_dir(Path::new("/"))), "a new handle is no restart");
    disk.clear_faults();
    assert!(disk.is_dead());
    disk.kill();
    assert!(is_dead(f.len()));
    open(&disk.fs(), "/f").sync_data().unwrap();
}

#[test]
fn a_crash_in_a_write_leaves_any_first_part_of_it() {
    let mut lens = BTreeSet::new();
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        let f = file(&disk.fs(), "/f");
        disk.fail(fault(Op::Write, FaultKind::Crash));
        assert!(is_dead(f.write_all_at(b"12345", 0)));
        disk.kill();
        let left = disk.read_raw("/f").unwrap();
        assert!(b"12345".starts_with(&left));
        lens.insert(left.len());
    }
    assert_eq!(lens, (0..=5).collect());
}

#[test]
fn a_crash_in_another_call_leaves_it_done_or_not_done() {
    let mut seen = BTreeSet::new();
    for seed in 0..SEEDS {
        let disk = disk_with(b"abc").fork(seed);
        disk.fail(fault(Op::Rename, FaultKind::Crash));
        assert!(is_dead(disk.fs().rename(Path::new("/f"), Path::new("/g"))));
        disk.kill();
        seen.insert(disk.list_raw());
    }
    assert_eq!(seen, BTreeSet::from([vec![(PathBuf::from("/f"), 3)], vec![(PathBuf::from("/g"), 3)]]));
}

#[test]
fn a_crash_while_a_lock_is_taken_leaves_nobody_holding_it() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        disk.fail(fault(Op::Lock, FaultKind::Crash));
        assert!(is_dead(disk.fs().try_lock(Path::new("/LOCK"))));
        disk.kill();
        held(disk.fs().try_lock(Path::new("/LOCK")));
    }
}

#[test]
fn a_flipped_bit_is_one_bit_in_what_is_read_and_none_on_the_disk() {
    let disk = disk_with(&[0; 100]);
    let f = open(&disk.fs(), "/f");
    disk.fail(fault(Op::Any, FaultKind::BitFlipRead));
    f.write_all_at(&[0], 0).unwrap();
    let mut buf = [0; 100];
    f.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(buf.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    f.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(buf, [0; 100]);
    assert_eq!(disk.injected(), 1);
}

#[test]
fn a_disk_that_lies_about_syncs_says_ok_and_loses_everything() {
    let disk = disk_with(b"old");
    let fs = disk.fs();
    disk.lie_about_sync(true);
    let f = open(&fs, "/f");
    f.write_all_at(b"new", 0).unwrap();
    file(&fs, "/g");
    f.sync_data().unwrap();
    sync_dir(&fs, "/");
    fs.sync_tree(Path::new("/")).unwrap();
    disk.power_cut_with(Loss::All);
    assert_eq!(disk.list_raw(), vec![(PathBuf::from("/f"), 3)]);
    assert_eq!(disk.read_raw("/f").unwrap(), b"old");
}

#[test]
fn a_full_disk_takes_what_fits_then_refuses_until_there_is_room_again() {
    let disk = disk_with(&[0; 60]);
    disk.set_capacity(Some(100));
    let fs = disk.fs();
    let available = || fs.info(Path::new("/")).unwrap().available;
    assert_eq!(available(), 40);
    let g = file(&fs, "/g");
    assert_eq!(errno(g.set_len(41)), ENOSPC);
    assert_eq!(errno(g.write_all_at(&[1; 50], 0)), ENOSPC);
    assert_eq!((g.len().unwrap(), available()), (40, 0));
    g.write_all_at(&[2; 40], 0).unwrap();
    open(&fs, "/f").write_all_at(&[2; 60], 0).unwrap();
    assert_eq!(errno(g.write_all_at(&[1], 40)), ENOSPC);
    let (_nothing, room_for_a_name) = (file(&fs, "/empty"), available());
    assert_eq!(room_for_a_name, 0);
    fs.remove_file(Path::new("/f")).unwrap();
    g.write_all_at(&[1; 60], 40).unwrap();
    disk.set_capacity(Some(10));
    assert_eq!((available(), errno(g.set_len(101))), (0, ENOSPC));
    g.set_len(5).unwrap();
    disk.set_capacity(None);
    g.set_len(1000).unwrap();
}

#[test]
fn a_disk_calls_itself_a_network_one_when_told() {
    let disk = SimDisk::new(1);
    assert!(!disk.fs().info(Path::new("/")).unwrap().is_network);
    disk.set_network(true);
    assert!(disk.fs().info(Path::new("/")).unwrap().is_network && !disk.fs().is_real());
}
