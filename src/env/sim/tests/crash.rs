use super::super::content::SECTOR;
use super::*;

#[test]
fn what_was_synced_is_never_lost() {
    let disk = SimDisk::new(1);
    let fs = disk.fs();
    let f = file(&fs, "/f");
    f.write_all_at(&[1; 3000], 0).unwrap();
    f.sync_data().unwrap();
    sync_dir(&fs, "/");
    for loss in [Loss::All, Loss::Nothing, Loss::Random, Loss::RandomSectors] {
        assert_eq!(outcomes(&disk, loss), BTreeSet::from([Some(vec![1; 3000])]));
    }
}

#[test]
fn a_killed_process_loses_nothing_but_nothing_becomes_durable_by_it() {
    let disk = disk_with(&[0; 600]);
    open(&disk.fs(), "/f").write_all_at(&[1; 600], 0).unwrap();
    disk.kill();
    assert_eq!(disk.read_raw("/f"), Some(vec![1; 600]));
    disk.power_cut_with(Loss::All);
    assert_eq!(disk.read_raw("/f"), Some(vec![0; 600]));
}

#[test]
fn losing_all_gives_the_last_sync_and_losing_nothing_the_last_write() {
    let disk = disk_with(&[0; 2000]);
    open(&disk.fs(), "/f").write_all_at(&[1; 3000], 100).unwrap();
    assert_eq!(outcomes(&disk, Loss::All), BTreeSet::from([Some(vec![0; 2000])]));
    let new = [vec![0; 100], vec![1; 3000]].concat();
    assert_eq!(outcomes(&disk, Loss::Nothing), BTreeSet::from([Some(new)]));
}

#[test]
fn each_unsynced_sector_is_kept_or_lost_on_its_own() {
    let disk = disk_with(&[0; 3 * SECTOR]);
    open(&disk.fs(), "/f").write_all_at(&[1; 3 * SECTOR], 0).unwrap();
    let expected: BTreeSet<_> =
        (0..8_u8).map(|bits| Some((0..3).flat_map(|i| vec![bits >> i & 1; SECTOR]).collect::<Vec<u8>>())).collect();
    assert_eq!(outcomes(&disk, Loss::RandomSectors), expected);
}

#[test]
fn a_sector_can_be_torn_from_either_end_and_holds_old_or_new_bytes_only() {
    let disk = disk_with(&[0; SECTOR]);
    open(&disk.fs(), "/f").write_all_at(&[1; SECTOR], 0).unwrap();
    let (mut head_first, mut tail_first) = (false, false);
    for outcome in outcomes(&disk, Loss::Random) {
        let bytes = outcome.unwrap();
        assert_eq!(bytes.len(), SECTOR);
        let changes = bytes.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(changes <= 1 && bytes.iter().all(|&byte| byte <= 1));
        head_first |= bytes[0] == 1 && bytes[SECTOR - 1] == 0;
        tail_first |= bytes[0] == 0 && bytes[SECTOR - 1] == 1;
    }
    assert!(head_first && tail_first);
}

#[test]
fn only_the_sectors_that_were_written_are_at_risk() {
    let disk = disk_with(&[0; 3 * SECTOR]);
    open(&disk.fs(), "/f").write_all_at(&[1], SECTOR as u64 + 5).unwrap();
    for outcome in outcomes(&disk, Loss::Random) {
        let mut bytes = outcome.unwrap();
        bytes[SECTOR + 5] = 0;
        assert_eq!(bytes, [0; 3 * SECTOR]);
    }
}

#[test]
fn a_sector_that_was_written_twice_can_be_left_as_it_was_in_between() {
    let disk = disk_with(&[0; SECTOR]);
    let f = open(&disk.fs(), "/f");
    f.write_all_at(&[1; SECTOR], 0).unwrap();
    f.write_all_at(&[2; SECTOR], 0).unwrap();
    let expected: BTreeSet<_> = [0, 1, 2].into_iter().map(|byte| Some(vec![byte; SECTOR])).collect();
    assert_eq!(outcomes(&disk, Loss::RandomSectors), expected);
}

#[test]
fn an_unsynced_growth_can_leave_the_old_length_the_new_one_or_zeros_in_between() {
    let disk = disk_with(&[7; 100]);
    open(&disk.fs(), "/f").write_all_at(&[1; 1500], 100).unwrap();
    let lens: BTreeSet<usize> =
        outcomes(&disk, Loss::RandomSectors).into_iter().map(|bytes| bytes.unwrap().len()).collect();
    assert_eq!(lens, BTreeSet::from([100, 512, 1024, 1536, 1600]));
    for outcome in outcomes(&disk, Loss::RandomSectors) {
        let bytes = outcome.unwrap();
        assert_eq!(bytes[..100], [7; 100], "what was synced stays whatever the length");
        assert!(bytes[100..].iter().all(|&byte| byte <= 1));
    }
}

#[test]
fn an_unsynced_cut_can_bring_the_old_bytes_back_and_a_synced_one_can_not() {
    let disk = disk_with(&[7; 1000]);
    let f = open(&disk.fs(), "/f");
    f.set_len(10).unwrap();
    let left = outcomes(&disk, Loss::Random);
    assert!(left.contains(&Some(vec![7; 10])) && left.contains(&Some(vec![7; 1000])));
    f.sync_data().unwrap();
    assert_eq!(outcomes(&disk, Loss::Random), BTreeSet::from([Some(vec![7; 10])]));
}

#[test]
fn bytes_that_were_cut_off_do_not_come_back_when_the_file_grows_again_and_is_synced() {
    let disk = disk_with(&[7; 1500]);
    let f = open(&disk.fs(), "/f");
    f.set_len(10).unwrap();
    f.set_len(1500).unwrap();
    let expected = [vec![7; 10], vec![0; 1490]].concat();
    assert_eq!(disk.read_raw("/f"), Some(expected.clone()));
    f.sync_data().unwrap();
    assert_eq!(outcomes(&disk, Loss::All), BTreeSet::from([Some(expected)]));
}

#[test]
fn after_a_power_cut_all_that_is_left_is_durable() {
    let disk = disk_with(&[0; 5000]);
    let f = open(&disk.fs(), "/f");
    f.write_all_at(&[1; 6000], 0).unwrap();
    file(&disk.fs(), "/g");
    for seed in 0..SEEDS {
        let fork = disk.fork(seed);
        fork.power_cut();
        let left = fork.hash();
        fork.power_cut_with(Loss::All);
        assert_eq!(fork.hash(), left);
    }
}

#[test]
fn a_sync_of_one_file_makes_no_other_file_durable() {
    let disk = disk_with(b"old");
    let fs = disk.fs();
    open(&fs, "/f").write_all_at(b"new", 0).unwrap();
    let g = file(&fs, "/g");
    g.write_all_at(b"g", 0).unwrap();
    g.sync_data().unwrap();
    disk.power_cut_with(Loss::All);
    assert_eq!(disk.read_raw("/f").unwrap(), b"old");
}

#[test]
fn handles_file_systems_and_locks_of_an_ended_life_are_dead() {
    for end in [SimDisk::kill, SimDisk::power_cut, |disk: &SimDisk| disk.restore(&disk.snapshot())] {
        let disk = disk_with(b"abc");
        let fs = disk.fs();
        let f = open(&fs, "/f");
        let lock = held(fs.try_lock(Path::new("/LOCK")));
        end(&disk);
        let calls = disk.calls(Op::Any);
        assert!(is_dead(f.read_exact_at(&mut [0], 0)) && is_dead(f.write_all_at(b"x", 0)));
        assert!(is_dead(f.sync_data()) && is_dead(f.len()) && is_dead(f.set_len(0)));
        assert!(is_dead(f.start_writeback(0, 1)));
        assert!(is_dead(fs.open(Path::new("/f"), OpenMode::Read)) && is_dead(fs.read_dir(Path::new("/"))));
        assert!(is_dead(fs.info(Path::new("/"))) && is_dead(fs.remove_file(Path::new("/f"))));
        assert!(is_dead(fs.try_lock(Path::new("/LOCK"))) && is_dead(lock.describe("x")));
        assert_eq!(disk.calls(Op::Any), calls, "the dead are not counted");
        let next = disk.fs();
        let new_lock = held(next.try_lock(Path::new("/LOCK")));
        drop(lock);
        busy(next.try_lock(Path::new("/LOCK")));
        drop(new_lock);
        assert_eq!(disk.read_raw("/f").unwrap(), b"abc");
    }
}

#[test]
fn the_same_seed_and_the_same_calls_give_the_same_outcome() {
    let run = |seed: u64| {
        let disk = SimDisk::new(seed);
        let fs = disk.fs();
        for name in ["/a", "/b", "/c"] {
            let f = file(&fs, name);
            f.write_all_at(&[1; 9000], 0).unwrap();
            f.sync_data().unwrap();
            f.write_all_at(&[2; 9000], 3000).unwrap();
        }
        let random = (disk.env(&ManualClock::new(Timestamp(0))).random)();
        disk.power_cut();
        (disk.hash(), random)
    };
    assert_eq!((0..20).map(run).collect::<Vec<_>>(), (0..20).map(run).collect::<Vec<_>>());
    assert!((0..20).map(run).collect::<BTreeSet<_>>().len() > 10, "and other seeds give others");
}

#[test]
fn random_bytes_that_a_store_draws_do_not_change_the_luck_of_a_crash() {
    let run = |draws: usize| {
        let disk = disk_with(&[0; 9000]);
        let env = disk.env(&ManualClock::new(Timestamp(0)));
        (0..draws).for_each(|_| _ = (env.random)());
        open(&env.fs, "/f").write_all_at(&[1; 9000], 0).unwrap();
        disk.power_cut();
        disk.hash()
    };
    assert_eq!(run(0), run(5));
}

#[test]
fn a_snapshot_brings_back_bytes_and_what_of_them_was_unsynced() {
    let disk = disk_with(b"old");
    open(&disk.fs(), "/f").write_all_at(b"new", 0).unwrap();
    let image = disk.snapshot();
    disk.remove_raw("/f");
    disk.restore(&image);
    assert_eq!(disk.read_raw("/f").unwrap(), b"new");
    disk.power_cut_with(Loss::All);
    assert_eq!(disk.read_raw("/f").unwrap(), b"old");
}

#[test]
fn a_fork_is_a_disk_of_its_own() {
    let disk = disk_with(b"old");
    disk.set_capacity(Some(100));
    let fork = disk.fork(1);
    fork.write_raw("/f", *b"fork");
    assert_eq!(disk.read_raw("/f").unwrap(), b"old");
    assert_eq!(fork.fs().info(Path::new("/")).unwrap().available, 96);
    assert_ne!(disk.hash(), fork.hash());
    fork.write_raw("/f", *b"old");
    assert_eq!(disk.hash(), fork.hash());
}
