//! Reported cases of slow starts and big backlogs (22).

use std::path::Path;
use std::process::Command;

use reappear::blocking::Store;
use reappear::testing::{Op, Rig};
use reappear::{IndexReport, NewMessage, Options};

const CHILD: &str = "REAPPEAR_BACKLOG_CHILD";
const SMALL: usize = 60_000;
const LARGE: usize = 40;

/// A figure of `/proc/self/status`, in bytes.
fn memory(figure: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(figure)).unwrap();
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().unwrap() * 1024
}

/// The child: opens the store, takes a little of it, and says how much its memory grew at most.
#[test]
fn the_child_opens_the_backlog() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let before = memory("VmRSS:");
    let store = Store::open(path).unwrap();
    let queue = store.queue("q").unwrap();
    for _ in 0..5 {
        let jobs = queue.receive().max(20).many().unwrap();
        assert_eq!(jobs.len(), 20);
        jobs.iter().for_each(|job| job.ack().unwrap());
    }
    let rebuilt = matches!(store.report().index, IndexReport::Rebuilt { .. });
    println!("\n@{} {rebuilt}", memory("VmHWM:").saturating_sub(before));
}

/// Opens the store in a child. How many bytes its memory grew, and whether the index was built anew.
fn open_in_a_child(path: &Path) -> (u64, bool) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["cases_backlog::the_child_opens_the_backlog", "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    let line = said.lines().find_map(|line| line.strip_prefix('@')).unwrap();
    let (grown, rebuilt) = line.split_once(' ').unwrap();
    (grown.parse().unwrap(), rebuilt.parse().unwrap())
}

/// BB-139: bodies are not in memory, neither after a clean start nor when everything is read again to build
/// the index. The bound: 48 MiB for the process, most of it sled's cache, and 256 bytes for each message of
/// the window, which holds all of these.
#[test]
fn a_backlog_is_opened_in_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs");
    let store = Store::open(&path).unwrap();
    let queue = store.queue("q").unwrap();
    for n in 0..SMALL / 1000 {
        queue.send_batch((0..1000).map(|_| NewMessage::new(vec![u8::try_from(n).unwrap(); 1024]))).unwrap();
    }
    for _ in 0..LARGE {
        queue.send(NewMessage::new(vec![7; 1024 * 1024]).priority(1)).unwrap();
    }
    let bodies = (SMALL * 1024 + LARGE * 1024 * 1024) as u64;
    store.close().unwrap();
    drop((store, queue));
    let bound = 48 * 1024 * 1024 + (SMALL as u64) * 256;
    assert!(bound < bodies, "more than the bodies would be no bound");
    for without_index in [false, true] {
        if without_index {
            std::fs::remove_dir_all(path.join("index")).unwrap();
        }
        let (grown, rebuilt) = open_in_a_child(&path);
        assert_eq!(rebuilt, without_index);
        println!("memory grew by {grown} bytes for {bodies} bytes of bodies, index rebuilt: {rebuilt}");
        assert!(grown < bound, "memory grew by {grown} bytes, the bound is {bound}; index rebuilt: {rebuilt}");
    }
}

/// BB-140: damage to one row of the index costs one pass over the log, as if there were no index.
#[test]
fn a_damaged_index_costs_one_pass_over_the_log() {
    let rig = Rig::new(1);
    rig.set_options(Options::new().segment_len(16 * 1024));
    let store = rig.open();
    for n in 0..50 {
        let queue = store.queue(format!("q{n}").as_str()).unwrap();
        rig.run(queue.send_batch((0..40).map(|n| format!("{n}:{}", "x".repeat(500))))).unwrap();
    }
    rig.run(store.close()).unwrap();
    assert!(rig.disk().list_raw().len() > 50, "a log of many segments");
    let reads = || {
        let before = rig.disk().calls(Op::Read);
        let store = rig.open();
        let report = store.report().clone();
        assert_eq!(rig.run(store.queues()).unwrap().iter().map(|queue| queue.ready).sum::<u64>(), 2000);
        rig.run(store.close()).unwrap();
        (rig.disk().calls(Op::Read) - before, report)
    };
    let (kept, report) = reads();
    assert_eq!(report.index, IndexReport::Kept, "{report}");
    rig.lose_index();
    let (whole, report) = reads();
    assert!(matches!(report.index, IndexReport::Rebuilt { .. }), "{report}");
    let mut row = 0;
    rig.damage_index(|rows| {
        row = rows.len() / 2;
        rows.values_mut().nth(row).unwrap()[2] ^= 1;
    });
    let (damaged, report) = reads();
    assert!(matches!(report.index, IndexReport::Rebuilt { .. }), "{report}");
    assert!(damaged <= whole + kept, "row {row}: {damaged} reads; {whole} for a whole pass, {kept} for none");
    let len: u64 = rig.disk().list_raw().iter().map(|(_, len)| len).sum();
    assert!(report.replayed_records >= 2000 && whole < 20 * len / 4096, "{whole} reads of {len} bytes");
}
