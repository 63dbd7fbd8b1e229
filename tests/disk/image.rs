//! A small ext4 in a file, mounted for as long as it is used.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Skip;

const LEN: u64 = 64 * 1024 * 1024;

/// Unmounted and removed when dropped, also by a panic.
pub struct Disk {
    dir: tempfile::TempDir,
}

impl Disk {
    /// Makes and mounts one.
    pub fn new() -> Result<Self, Skip> {
        if !rustix::process::geteuid().is_root() {
            return Err(Skip("mounting needs root".to_owned()));
        }
        let dir = tempfile::tempdir().expect("a directory for the image");
        let (image, at) = (dir.path().join("image"), dir.path().join("mnt"));
        File::create(&image).and_then(|file| file.set_len(LEN)).expect("the image's file");
        fs::create_dir(&at).expect("the place to mount it");
        // Nothing kept back for root, who runs this, and nothing that is written later.
        let make = ["-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
        call(Command::new("mkfs.ext4").args(make).arg(&image))?;
        call(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at))?;
        let disk = Self { dir };
        // The loop device holds it open; once that is gone, so are its blocks.
        fs::remove_file(image).expect("the image's name");
        Ok(disk)
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// Where the store goes.
    pub fn store(&self) -> PathBuf {
        self.path().join("store")
    }

    /// Bytes that can still be written.
    pub fn available(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.path()).expect("the file system is there");
        stat.f_bavail * stat.f_frsize
    }

    /// Mounts it anew: `ro` or `rw`.
    pub fn remount(&self, how: &str) {
        let how = format!("remount,{how}");
        call(Command::new("mount").args(["-o", &how]).arg(self.path())).unwrap_or_else(|Skip(why)| panic!("{why}"));
    }

    /// Writes a file that takes all that is left, to the last byte.
    pub fn take_the_rest(&self) -> PathBuf {
        let path = self.path().join("foreign");
        let mut file = File::create(&path).expect("a file that is not the store's");
        for len in [1024 * 1024, 4096, 1] {
            let bytes = vec![b'f'; len];
            while file.write_all(&bytes).and_then(|()| file.sync_data()).is_ok() {}
        }
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let path = self.path();
        let unmount = |path: &Path, how: &[&str]| call(Command::new("umount").args(how).arg(path));
        // A store that a panic left open may still have threads there.
        if unmount(&path, &[]).is_err()
            && let Err(Skip(why)) = unmount(&path, &["--lazy"])
        {
            println!("{} stays mounted: {why}", path.display());
        }
    }
}

/// Runs a program of the system; what it said when it failed.
fn call(command: &mut Command) -> Result<(), Skip> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| Skip(format!("{program} does not run: {error}")))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(Skip(format!("{program}: {}", said.trim()))) }
}
