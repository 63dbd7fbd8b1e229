use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::PathBuf;

use super::*;

fn dir() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    (dir, path)
}

fn interrupted() -> io::Error {
    io::ErrorKind::Interrupted.into()
}

fn held(lock: io::Result<TryLock>) -> Box<dyn LockGuard> {
    match lock.unwrap() {
        TryLock::Held(guard) => guard,
        TryLock::Busy { text } => panic!("busy: {text}"),
    }
}

fn busy(lock: io::Result<TryLock>) -> String {
    match lock.unwrap() {
        TryLock::Held(_) => panic!("nobody holds it"),
        TryLock::Busy { text } => text,
    }
}

#[test]
fn short_and_interrupted_reads_are_continued_where_they_stopped() {
    let source: Vec<u8> = (0..100).collect();
    let mut calls = 0;
    let mut buf = [0; 50];
    read_fully(&mut buf, 10, |part, at| {
        calls += 1;
        if calls % 2 == 0 {
            return Err(interrupted());
        }
        let count = part.len().min(7);
        let at = usize::try_from(at).unwrap();
        part[..count].copy_from_slice(&source[at..at + count]);
        Ok(count)
    })
    .unwrap();
    assert_eq!(buf, source[10..60]);
}

#[test]
fn short_and_interrupted_writes_are_continued_where_they_stopped() {
    let mut target = vec![0; 100];
    let mut calls = 0;
    write_fully(&[9; 50], 10, |part, at| {
        calls += 1;
        if calls % 3 == 0 {
            return Err(interrupted());
        }
        let count = part.len().min(7);
        let at = usize::try_from(at).unwrap();
        target[at..at + count].copy_from_slice(&part[..count]);
        Ok(count)
    })
    .unwrap();
    assert_eq!(target, [vec![0; 10], vec![9; 50], vec![0; 40]].concat());
}

#[test]
fn a_write_of_nothing_is_an_error_and_so_is_a_read_past_the_end() {
    assert_eq!(write_fully(&[1], 0, |_, _| Ok(0)).unwrap_err().kind(), io::ErrorKind::WriteZero);
    assert_eq!(read_fully(&mut [1], 0, |_, _| Ok(0)).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    write_fully(&[], 0, |_, _| panic!("there is nothing to write")).unwrap();
    read_fully(&mut [], 0, |_, _| panic!("there is nothing to read")).unwrap();
}

#[test]
fn an_error_in_the_middle_is_handed_up_and_not_tried_again() {
    let mut calls = 0;
    let result = write_fully(&[1; 10], 0, |_, _| {
        calls += 1;
        if calls == 1 { Ok(4) } else { Err(Errno::IO.into()) }
    });
    assert_eq!((result.unwrap_err().raw_os_error(), calls), (Some(Errno::IO.raw_os_error()), 2));
}

#[test]
fn a_system_that_counts_wrong_and_an_offset_past_the_end_of_numbers_are_errors() {
    assert!(write_fully(&[1, 2], 0, |_, _| Ok(3)).is_err());
    assert!(read_fully(&mut [1, 2], 0, |_, _| Ok(3)).is_err());
    assert!(write_fully(&[1, 2], u64::MAX, |_, _| Ok(1)).is_err());
    let (_keep, dir) = dir();
    let file = OsFs.open(&dir.join("f"), OpenMode::CreateNew).unwrap();
    assert!(file.write_all_at(&[1], u64::MAX).is_err());
    assert!(file.read_exact_at(&mut [1], u64::MAX).is_err());
}

#[test]
fn what_is_written_is_read_back_and_a_file_grows_with_zeros() {
    let (_keep, dir) = dir();
    let path = dir.join("f");
    let file = OsFs.open(&path, OpenMode::CreateNew).unwrap();
    file.write_all_at(b"abc", 5).unwrap();
    file.set_len(10).unwrap();
    file.sync_data().unwrap();
    file.start_writeback(0, 10).unwrap();
    file.start_writeback(0, 0).unwrap();
    file.will_need(0, 10);
    OsFs.sync_dir(&dir).unwrap();
    let again = OsFs.open(&path, OpenMode::Read).unwrap();
    let mut buf = [1; 10];
    again.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!((&buf, again.len().unwrap()), (b"\0\0\0\0\0abc\0\0", 10));
    assert_eq!(again.read_exact_at(&mut buf, 1).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert!(again.write_all_at(b"x", 0).is_err(), "opened for reading");
}

#[test]
fn files_and_directories_are_for_their_owner_alone() {
    let (_keep, dir) = dir();
    OsFs.create_dir(&dir.join("d")).unwrap();
    OsFs.open(&dir.join("f"), OpenMode::CreateNew).unwrap();
    drop(held(OsFs.try_lock(&dir.join("l"))));
    let mode = |name: &str| fs::metadata(dir.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode("d"), mode("f"), mode("l")], [0o700, 0o600, 0o600]);
}

#[test]
fn an_existing_file_is_not_created_again_and_a_missing_one_not_opened() {
    let (_keep, dir) = dir();
    let path = dir.join("f");
    for mode in [OpenMode::Read, OpenMode::Write] {
        assert_eq!(OsFs.open(&path, mode).err().unwrap().kind(), io::ErrorKind::NotFound);
    }
    OsFs.open(&path, OpenMode::CreateNew).unwrap();
    assert_eq!(OsFs.open(&path, OpenMode::CreateNew).err().unwrap().kind(), io::ErrorKind::AlreadyExists);
}

#[test]
fn a_symbolic_link_is_not_followed_by_open_nor_lock_nor_metadata() {
    let (_keep, dir) = dir();
    let (target, link) = (dir.join("target"), dir.join("link"));
    fs::write(&target, "secret").unwrap();
    symlink(&target, &link).unwrap();
    for mode in [OpenMode::Read, OpenMode::Write, OpenMode::CreateNew] {
        assert!(OsFs.open(&link, mode).is_err());
    }
    assert!(OsFs.try_lock(&link).is_err());
    assert_eq!(OsFs.metadata(&link).unwrap().unwrap().kind, EntryKind::Other);
    assert_eq!(fs::read(&target).unwrap(), b"secret");
}

#[test]
fn a_pipe_or_a_directory_in_the_place_of_a_file_is_an_error_at_once() {
    let (_keep, dir) = dir();
    let pipe = dir.join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    for mode in [OpenMode::Read, OpenMode::Write] {
        assert!(OsFs.open(&pipe, mode).is_err());
        assert_eq!(OsFs.open(&dir, mode).err().unwrap().kind(), io::ErrorKind::IsADirectory);
    }
    assert!(OsFs.try_lock(&pipe).is_err());
    OsFs.sync_tree(&dir).unwrap();
}

#[test]
fn a_directory_is_listed_by_name_with_kinds_and_lengths() {
    use std::os::unix::ffi::OsStrExt;
    let (_keep, dir) = dir();
    fs::write(dir.join("b"), "12345").unwrap();
    OsFs.create_dir(&dir.join("a")).unwrap();
    symlink("nowhere", dir.join("c")).unwrap();
    fs::write(dir.join(std::ffi::OsStr::from_bytes(b"d\xFF")), "").unwrap();
    let entry = |name: &str, kind, len| DirEntry { name: name.to_owned(), kind, len };
    let expected = vec![
        entry("a", EntryKind::Dir, 0),
        entry("b", EntryKind::File, 5),
        entry("c", EntryKind::Other, 0),
        entry("d\u{FFFD}", EntryKind::Other, 0),
    ];
    assert_eq!(OsFs.read_dir(&dir).unwrap(), expected);
    assert_eq!(OsFs.metadata(&dir.join("b")).unwrap(), Some(entry("b", EntryKind::File, 5)));
    assert_eq!(OsFs.metadata(&dir.join("nothing")).unwrap(), None);
    assert!(OsFs.metadata(&dir.join("b/below-a-file")).is_err());
}

#[test]
fn renaming_replaces_and_removing_removes() {
    let (_keep, dir) = dir();
    let (a, b, sub) = (dir.join("a"), dir.join("b"), dir.join("sub"));
    fs::write(&a, "new").unwrap();
    fs::write(&b, "old").unwrap();
    OsFs.rename(&a, &b).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"new");
    OsFs.remove_file(&b).unwrap();
    assert_eq!(OsFs.remove_file(&b).unwrap_err().kind(), io::ErrorKind::NotFound);
    OsFs.create_dir(&sub).unwrap();
    assert_eq!(OsFs.create_dir(&sub).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    fs::write(sub.join("x"), "").unwrap();
    OsFs.remove_dir_all(&sub).unwrap();
    assert_eq!(OsFs.read_dir(&dir).unwrap(), vec![]);
}

#[test]
fn a_tree_is_synced_without_following_links_out_of_it() {
    let (_keep, dir) = dir();
    fs::create_dir_all(dir.join("a/b/c")).unwrap();
    fs::write(dir.join("a/b/f"), "x").unwrap();
    // Followed, this would never end.
    symlink(&dir, dir.join("a/b/c/up")).unwrap();
    symlink("nowhere", dir.join("dangling")).unwrap();
    OsFs.sync_tree(&dir).unwrap();
    OsFs.sync_tree(&dir.join("a/b/f")).unwrap();
    assert_eq!(OsFs.sync_tree(&dir.join("missing")).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(OsFs.sync_dir(&dir.join("a/b/f")).unwrap_err().kind(), io::ErrorKind::NotADirectory);
}

#[test]
fn a_lock_is_held_until_it_is_dropped_and_says_who_holds_it() {
    let (_keep, dir) = dir();
    let path = dir.join("LOCK");
    let guard = held(OsFs.try_lock(&path));
    guard.describe("process 1234, a long text").unwrap();
    guard.describe("process 4711").unwrap();
    assert_eq!(busy(OsFs.try_lock(&path)), "process 4711");
    assert_eq!(busy(OsFs.try_lock(&path)), "process 4711", "a refused try leaves no trace");
    drop(guard);
    let again = held(OsFs.try_lock(&path));
    assert_eq!(fs::read(&path).unwrap(), b"process 4711", "an old text decides nothing");
    drop(again);
}

#[test]
fn a_lock_file_that_was_removed_under_its_holder_is_another_file() {
    let (_keep, dir) = dir();
    let path = dir.join("LOCK");
    let first = held(OsFs.try_lock(&path));
    fs::remove_file(&path).unwrap();
    let second = held(OsFs.try_lock(&path));
    drop(first);
    busy(OsFs.try_lock(&path));
    drop(second);
}

#[test]
fn a_lock_in_a_missing_directory_is_an_error_and_not_busy() {
    let (_keep, dir) = dir();
    assert_eq!(OsFs.try_lock(&dir.join("no/LOCK")).err().unwrap().kind(), io::ErrorKind::NotFound);
}

#[test]
fn local_disks_are_told_from_network_ones() {
    for local in [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x2FC1_2FC1, 0x794C_7630] {
        assert!(!is_network(local), "{local:x}");
    }
    for network in [0x6969, 0x517B, 0xFF53_4D42, 0x0102_1997, 0x6573_5546, 0x00C3_6400] {
        assert!(is_network(network), "{network:x}");
    }
    let (_keep, dir) = dir();
    assert!(OsFs.info(&dir).unwrap().available > 0);
    assert!(OsFs.info(&dir.join("missing")).is_err());
}

#[test]
fn the_clocks_run_and_a_boot_keeps_its_id() {
    let clock = OsClock;
    assert!(clock.wall() > Timestamp(1_700_000_000_000));
    let before = clock.boottime();
    assert!(before > Duration::ZERO && clock.boottime() >= before);
    assert_eq!(clock.boot_id(), clock.boot_id());
    assert_eq!(clock.sleep_for(Duration::from_secs(60)), MAX_SLEEP);
    assert_eq!(clock.sleep_for(Duration::from_millis(3)), Duration::from_millis(3));
}

#[test]
fn a_boot_id_is_read_exactly_or_not_at_all() {
    let text = "01234567-89ab-cdef-0123-456789abcdef\n";
    let bytes = [0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF];
    assert_eq!(parse_boot_id(text), <[u8; 16]>::try_from([bytes, bytes].concat()).ok());
    for bad in ["", "0123", "+1234567-89ab-cdef-0123-456789abcdef", "g1234567-89ab-cdef-0123-456789abcdef"] {
        assert_eq!(parse_boot_id(bad), None, "{bad}");
    }
}

#[test]
fn random_bytes_differ_each_time_even_without_the_system_call() {
    assert_ne!(random(), random());
    assert_ne!(random_without_the_system_call(), random_without_the_system_call());
    let env = os_env();
    assert!(env.fs.is_real());
    assert_ne!((env.random)(), [0; 16]);
}
