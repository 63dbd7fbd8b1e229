//! A real disk that is full, and real syncs that fail.
//!
//! The first part makes a small ext4 in a file, mounts it, fills it with a store and drains it again; it
//! needs root, `mkfs.ext4`, `mount` and a loop device. The second lets `strace` fail one sync of a child
//! process after the other. Where something is missing a test says `SKIPPED`, why, and passes.
//!
//! All of it runs in a mount namespace of its own, and the image's file has no name once it is mounted: so
//! nothing is left behind, however the tests end.
//!
//! This binary is its own harness: it must run one test at a time and call itself as the child. It takes
//! `--list`, names of tests, and `--exact`.

mod child;
mod eio;
mod full;
mod image;

use std::panic::catch_unwind;
use std::process::{Command, ExitCode, exit};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Why a test cannot run here.
#[derive(Debug)]
pub struct Skip(pub String);

type Test = (&'static str, fn() -> Result<(), Skip>);

const TESTS: [Test; 7] = [
    ("a_disk_full_of_small_messages_is_drained_and_takes_sends_again", full::small_messages),
    ("a_disk_full_of_single_sends_is_drained_and_takes_sends_again", full::single_sends),
    ("a_store_killed_on_a_full_disk_opens_and_is_drained", full::killed_while_full),
    ("a_disk_that_somebody_else_filled_stops_sends_only", full::filled_by_somebody_else),
    ("a_disk_mounted_read_only_is_refused_and_left_alone", full::mounted_read_only),
    ("whichever_fdatasync_fails_nothing_acknowledged_is_lost", eio::fdatasync),
    ("whichever_fsync_fails_nothing_acknowledged_is_lost", eio::fsync),
];

/// Set where the mount namespace is our own.
const INSIDE: &str = "REAPPEAR_DISK_INSIDE";
/// A test that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    if child::is_wanted() {
        child::run();
        return ExitCode::SUCCESS;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let names: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let named = |test: &&Test| {
        let fits = |name: &&String| if has("--exact") { *name == test.0 } else { test.0.contains(name.as_str()) };
        names.is_empty() || names.iter().any(fits)
    };
    // None is to be left out of an ordinary run.
    let chosen: Vec<Test> = TESTS.iter().filter(named).filter(|_| !has("--ignored")).copied().collect();
    if has("--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    if !chosen.is_empty() && std::env::var_os(INSIDE).is_none() && may_unshare() {
        let own = std::env::current_exe().expect("the path of this binary");
        let mut inside = Command::new("unshare");
        inside.args(["--mount", "--propagation", "private"]).arg(own).args(&args).env(INSIDE, "1");
        let status = inside.status().expect("unshare ran before");
        return if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let failed = chosen.iter().filter(|test| !run(test)).count();
    println!("\n{} tests, {failed} failed", chosen.len());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn may_unshare() -> bool {
    let tried = Command::new("unshare").args(["--mount", "--propagation", "private", "true"]).output();
    tried.is_ok_and(|output| output.status.success())
}

/// Runs one test and says what came of it; `false`: it failed.
fn run((name, test): &Test) -> bool {
    let (done, wait) = channel::<()>();
    let watched = *name;
    std::thread::spawn(move || {
        if wait.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            println!("test {watched} ... FAILED: no end after {LIMIT:?}");
            exit(1);
        }
    });
    let start = Instant::now();
    let result = catch_unwind(test);
    drop(done);
    match &result {
        Ok(Ok(())) => println!("test {name} ... ok, {:.1?}", start.elapsed()),
        Ok(Err(Skip(why))) => println!("test {name} ... SKIPPED: {why}"),
        Err(_) => println!("test {name} ... FAILED, {:.1?}", start.elapsed()),
    }
    result.is_ok()
}
