use super::*;

/// A new file with synced bytes whose name is not synced.
fn nameless() -> (SimDisk, Arc<dyn Fs>) {
    let disk = SimDisk::new(3);
    let fs = disk.fs();
    let f = file(&fs, "/f");
    f.write_all_at(b"abc", 0).unwrap();
    f.sync_data().unwrap();
    (disk, fs)
}

#[test]
fn a_new_file_can_be_gone_until_its_directory_is_synced() {
    let (disk, fs) = nameless();
    assert_eq!(outcomes(&disk, Loss::All), BTreeSet::from([None]));
    assert_eq!(outcomes(&disk, Loss::Random), BTreeSet::from([None, Some(b"abc".to_vec())]));
    sync_dir(&fs, "/");
    assert_eq!(outcomes(&disk, Loss::All), BTreeSet::from([Some(b"abc".to_vec())]));
}

#[test]
fn a_synced_name_of_an_unsynced_file_can_lead_to_an_empty_file() {
    let disk = SimDisk::new(3);
    let fs = disk.fs();
    file(&fs, "/f").write_all_at(b"abc", 0).unwrap();
    sync_dir(&fs, "/");
    assert_eq!(outcomes(&disk, Loss::All), BTreeSet::from([Some(vec![])]));
}

#[test]
fn a_removed_file_can_come_back_until_its_directory_is_synced() {
    let disk = disk_with(b"abc");
    let fs = disk.fs();
    fs.remove_file(Path::new("/f")).unwrap();
    assert_eq!(disk.read_raw("/f"), None);
    assert_eq!(outcomes(&disk, Loss::Random), BTreeSet::from([None, Some(b"abc".to_vec())]));
    sync_dir(&fs, "/");
    assert_eq!(outcomes(&disk, Loss::Random), BTreeSet::from([None]));
}

#[test]
fn an_unsynced_rename_leaves_the_old_name_or_the_new_one_and_never_both_or_none() {
    let disk = disk_with(b"abc");
    let fs = disk.fs();
    fs.rename(Path::new("/f"), Path::new("/g")).unwrap();
    assert_eq!(names_left(&disk), set(&["/f", "/g"]));
    sync_dir(&fs, "/");
    assert_eq!(names_left(&disk), set(&["/g"]));
}

#[test]
fn a_rename_over_a_file_leaves_one_of_the_two_whole() {
    let disk = disk_with(b"old");
    disk.write_raw("/tmp", *b"new");
    disk.fs().rename(Path::new("/tmp"), Path::new("/f")).unwrap();
    assert_eq!(outcomes(&disk, Loss::Random), BTreeSet::from([Some(b"old".to_vec()), Some(b"new".to_vec())]));
}

#[test]
fn a_rename_between_directories_happens_in_both_or_in_neither() {
    let disk = SimDisk::new(3);
    disk.write_raw("/a/f", *b"abc");
    disk.write_raw("/b/x", *b"x");
    let fs = disk.fs();
    fs.rename(Path::new("/a/f"), Path::new("/b/f")).unwrap();
    assert_eq!(names_left(&disk), set(&["/a/f /b/x", "/b/f /b/x"]));
    sync_dir(&fs, "/b");
    assert_eq!(names_left(&disk), set(&["/b/f /b/x"]), "and the sync of one takes the other along");
}

#[test]
fn of_one_directory_the_changes_before_a_kept_one_are_kept() {
    let disk = SimDisk::new(3);
    let fs = disk.fs();
    ["/1", "/2", "/3"].iter().for_each(|name| _ = file(&fs, name));
    assert_eq!(names_left(&disk), set(&["", "/1", "/1 /2", "/1 /2 /3"]));
}

#[test]
fn two_directories_lose_their_changes_independently() {
    let disk = SimDisk::new(3);
    let fs = disk.fs();
    ["/a", "/b"].iter().for_each(|name| fs.create_dir(Path::new(name)).unwrap());
    sync_dir(&fs, "/");
    file(&fs, "/a/f");
    file(&fs, "/b/f");
    assert_eq!(names_left(&disk), set(&["", "/a/f", "/b/f", "/a/f /b/f"]));
    sync_dir(&fs, "/b");
    assert_eq!(names_left(&disk), set(&["/b/f", "/a/f /b/f"]));
}

#[test]
fn a_directory_whose_own_name_is_not_synced_takes_all_in_it_along() {
    let disk = SimDisk::new(3);
    let fs = disk.fs();
    fs.create_dir(Path::new("/d")).unwrap();
    file(&fs, "/d/f").sync_data().unwrap();
    sync_dir(&fs, "/d");
    disk.power_cut_with(Loss::All);
    assert_eq!(disk.fs().read_dir(Path::new("/")).unwrap(), vec![]);
}

#[test]
fn syncing_a_tree_makes_all_in_it_durable_and_nothing_beside_it() {
    let disk = SimDisk::new(3);
    let fs = disk.fs();
    fs.create_dir(Path::new("/d")).unwrap();
    fs.create_dir(Path::new("/d/e")).unwrap();
    file(&fs, "/d/e/f").write_all_at(b"abc", 0).unwrap();
    file(&fs, "/beside");
    fs.sync_tree(Path::new("/d")).unwrap();
    assert_eq!(disk.fork(1).read_raw("/d/e/f").unwrap(), b"abc");
    assert!(names_left(&disk).contains(""), "its own name is its parent's");
    let root = disk.fork(2);
    root.fs().sync_tree(Path::new("/")).unwrap();
    root.power_cut_with(Loss::All);
    assert_eq!(root.read_raw("/d/e/f").unwrap(), b"abc");
}

#[test]
fn a_removed_directory_can_come_back_with_part_of_what_was_in_it() {
    let disk = SimDisk::new(3);
    disk.write_raw("/d/1", *b"1");
    disk.write_raw("/d/2", *b"2");
    let fs = disk.fs();
    fs.remove_dir_all(Path::new("/d")).unwrap();
    assert_eq!(names_left(&disk), set(&["", "/d/2", "/d/1 /d/2"]));
    sync_dir(&fs, "/");
    assert_eq!(names_left(&disk), set(&[""]));
}

#[test]
fn a_removed_file_is_read_and_written_through_its_open_handle_and_is_then_forgotten() {
    let disk = disk_with(b"abc");
    let fs = disk.fs();
    let f = open(&fs, "/f");
    fs.remove_file(Path::new("/f")).unwrap();
    sync_dir(&fs, "/");
    f.write_all_at(b"x", 0).unwrap();
    let mut buf = [0; 3];
    f.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"xbc");
    let len = |disk: &SimDisk| disk.lock().tree.node_count();
    assert_eq!(len(&disk), 2, "the root and the file");
    let killed = disk.fork(1);
    assert_eq!(len(&killed), 1, "and whoever dies has nothing open");
    drop(f);
    sync_dir(&fs, "/");
    assert_eq!(len(&disk), 1);
}

#[test]
fn raw_changes_are_durable_and_seen_by_open_handles() {
    let (disk, fs) = nameless();
    let f = open(&fs, "/f");
    disk.write_raw("/f", *b"damage");
    disk.write_raw("/new/dir/g", *b"g");
    let mut buf = [0; 6];
    f.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"damage");
    assert_eq!(names_left(&disk), set(&["/f /new/dir/g"]));
    assert!(disk.remove_raw("/new") && !disk.remove_raw("/new"));
    assert_eq!(names_left(&disk), set(&["/f"]));
    assert_eq!(disk.list_raw(), vec![(PathBuf::from("/f"), 6)]);
}

#[test]
fn a_lock_is_held_until_it_is_dropped_and_by_one_alone() {
    let disk = SimDisk::new(3);
    let fs = disk.fs();
    let path = Path::new("/LOCK");
    let guard = held(fs.try_lock(path));
    guard.describe("process 1234, a long text").unwrap();
    guard.describe("process 4711").unwrap();
    assert_eq!(busy(disk.fs().try_lock(path)), "process 4711");
    drop(guard);
    let again = held(fs.try_lock(path));
    assert_eq!(disk.read_raw("/LOCK").unwrap(), b"process 4711", "an old text decides nothing");
    fs.remove_file(path).unwrap();
    let other = held(fs.try_lock(path));
    drop(again);
    busy(fs.try_lock(path));
    drop(other);
    assert_eq!(errno(fs.try_lock(Path::new("/"))), Some(rustix::io::Errno::ISDIR.raw_os_error()));
}
