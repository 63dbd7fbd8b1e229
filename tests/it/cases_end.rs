//! Reported cases of lengths and headers, shutdown, signals, panics, and changed formats and options.

use std::path::Path;
use std::time::Duration;

use reappear::blocking;
use reappear::testing::{Rig, fuzzing};
use reappear::{ErrorKind, Options, State};

/// BB-020: a length that cannot be is refused before anything is allocated, and reading goes on or
/// ends, but never stands still.
#[test]
fn an_impossible_length_is_refused() {
    for meta_len in [0_u32, 1, 5, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
        for body_len in [0_u32, 1, 13, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
            for kind in [1_u8, 10, 11, 15, 16, 21, 30, 200] {
                let mut record = vec![kind, 1];
                record.extend(meta_len.to_le_bytes());
                record.extend(body_len.to_le_bytes());
                record.extend([0; 64]);
                fuzzing::records(&record);
                record[1] = 0;
                fuzzing::records(&record);
            }
        }
    }
}

/// BB-022: a file full of zeros is an error or is made anew; opening never hangs.
#[test]
fn a_file_full_of_zeros_is_an_error_or_is_made_anew() {
    let rig = Rig::new(5);
    let store = rig.open();
    rig.run(store.queue("q").unwrap().send_batch((0..60).map(|i| format!("{i}:{}", "x".repeat(200))))).unwrap();
    rig.run(store.close()).unwrap();
    for (path, len) in rig.disk().list_raw() {
        let image = rig.disk().snapshot();
        rig.disk().write_raw(&path, vec![0; usize::try_from(len).unwrap()]);
        match rig.try_open() {
            Ok(store) => {
                assert_eq!(rig.run(store.queue("q").unwrap().stats()).unwrap().ready, 60, "{}", path.display())
            }
            Err(error) => {
                assert!([ErrorKind::Corrupt, ErrorKind::Unsupported].contains(&error.kind()), "{error}");
                assert!(rig.disk().read_raw(&path).is_some(), "nothing is deleted");
            }
        }
        rig.kill();
        rig.disk().restore(&image);
    }
}

/// BB-154: closing ends every wait at once, may be done twice, and dropping without it does not hang.
#[test]
fn closing_ends_every_wait() {
    let dir = tempfile::tempdir().unwrap();
    let store = blocking::Store::open(dir.path().join("jobs")).unwrap();
    let queue = store.queue("q").unwrap();
    queue.create(None).unwrap();
    std::thread::scope(|scope| {
        let waits: Vec<_> =
            (0..100).map(|_| scope.spawn(|| queue.receive().wait(Duration::from_secs(3600)).one())).collect();
        while queue.stats().unwrap().waiting_receivers < 100 {
            std::thread::yield_now();
        }
        store.close().unwrap();
        for wait in waits {
            assert_eq!(wait.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
        }
    });
    store.close().unwrap();
    assert_eq!(queue.send("late").unwrap_err().kind(), ErrorKind::Closed);
    let other = blocking::Store::open(dir.path().join("other")).unwrap();
    other.queue("q").unwrap().send("x").unwrap();
    drop(other);
    blocking::Store::open(dir.path().join("other")).unwrap();
}

/// BB-155: what was worked on when a store closes can still be acknowledged within the grace.
#[test]
fn an_ack_within_the_grace_of_a_close_counts() {
    let rig = Rig::new(6);
    let store = rig.open();
    let queue = store.queue("q").unwrap();
    rig.run(queue.send_batch(["a", "b"])).unwrap();
    let jobs = rig.run(queue.receive().max(2).many()).unwrap();
    let mut close = Box::pin(store.close_within(Duration::from_secs(30)));
    assert!(rig.poll(&mut close).is_none());
    rig.settle();
    assert_eq!(rig.run(queue.send("new work")).unwrap_err().kind(), ErrorKind::Closed);
    rig.run(jobs[0].ack()).unwrap();
    assert!(rig.poll(&mut close).is_none(), "one is still held");
    rig.run(jobs[1].ack()).unwrap();
    rig.run(close).unwrap();
    assert_eq!(rig.run(jobs[1].ack()).unwrap_err().kind(), ErrorKind::Closed);
    assert!(rig.run(rig.open().queue("q").unwrap().peek(None, 9)).unwrap().is_empty());
}

/// BB-155: and what was not acknowledged in time comes back later.
#[test]
fn a_close_does_not_wait_longer_than_its_grace() {
    let rig = Rig::new(6);
    let store = rig.open();
    let queue = store.queue("q").unwrap();
    rig.run(queue.send("a")).unwrap();
    let job = rig.run(queue.receive().one()).unwrap().unwrap();
    let mut close = Box::pin(store.close_within(Duration::from_secs(30)));
    assert!(rig.poll(&mut close).is_none());
    rig.advance(Duration::from_secs(31));
    rig.run(close).unwrap();
    assert_eq!(rig.run(job.ack()).unwrap_err().kind(), ErrorKind::Closed);
    let store = rig.open();
    assert_eq!(rig.run(store.queue("q").unwrap().stats()).unwrap().in_flight, 1);
}

/// BB-157: a panic while a delivery is held leaves it to its deadline, and everyone else goes on.
#[test]
fn a_panic_in_a_holder_leaves_the_message_to_its_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let store = blocking::Store::open(dir.path().join("jobs")).unwrap();
    let queue = store.queue("q").unwrap();
    queue.send_batch(["boom", "next"]).unwrap();
    let holder = queue.clone();
    let panicked = std::thread::spawn(move || {
        let _job = holder.receive().one().unwrap().unwrap();
        panic!("the work went wrong");
    });
    assert!(panicked.join().is_err());
    let stats = queue.stats().unwrap();
    assert_eq!((stats.in_flight, stats.ready), (1, 1));
    assert_eq!(queue.receive().one().unwrap().unwrap().body(), b"next");
}

/// BB-158: a newer version of any file is refused with both numbers, and nothing is written.
#[test]
fn a_newer_format_is_unsupported_and_stays_untouched() {
    let rig = Rig::new(7);
    let store = rig.open();
    rig.run(store.queue("q").unwrap().send("x")).unwrap();
    rig.run(store.close()).unwrap();
    let mut refused = 0;
    for (path, _) in rig.disk().list_raw() {
        // Every format has its version as a u32 within its first 16 bytes.
        for at in (0..16).step_by(4) {
            let image = rig.disk().snapshot();
            let mut bytes = rig.disk().read_raw(&path).unwrap();
            if bytes.get(at..at + 4) != Some(&1_u32.to_le_bytes()) {
                continue;
            }
            bytes[at] = 9;
            rig.disk().write_raw(&path, bytes);
            let hash = rig.disk().hash();
            if let Err(error) = rig.try_open()
                && error.kind() == ErrorKind::Unsupported
            {
                assert!(error.to_string().contains('9') && error.to_string().contains('1'), "{error}");
                assert_eq!(rig.disk().hash(), hash, "{} was written to", path.display());
                refused += 1;
            }
            rig.kill();
            rig.disk().restore(&image);
        }
    }
    assert!(refused >= 2, "STORE and the segments have versions; {refused} were refused");
}

/// BB-160: other options for an existing store are fine.
#[test]
fn changed_options_leave_a_store_usable() {
    let rig = Rig::new(8);
    rig.set_options(Options::new().segment_len(32 * 1024));
    let body = vec![b'x'; 10_000];
    let mut sent = 0;
    for (segment_len, max_body_len) in [(32 * 1024, 20_000), (4096, 20_000), (1024 * 1024, 20_000), (8192, 100)] {
        let options = Options::new().segment_len(segment_len).max_body_len(max_body_len);
        rig.set_options(options.max_pending_len(64 * 1024));
        let store = rig.open();
        let queue = store.queue("q").unwrap();
        for _ in 0..5 {
            match rig.run(queue.send(body.clone())) {
                Ok(_) => sent += 1,
                Err(error) => assert_eq!((error.kind(), max_body_len), (ErrorKind::InvalidInput, 100)),
            }
        }
        let seen = rig.run(queue.peek(State::Ready, 99)).unwrap();
        assert_eq!(seen.len(), sent);
        assert!(seen.iter().all(|view| view.body == body));
        rig.power_cut();
    }
    let store = rig.open();
    let job = rig.run(store.queue("q").unwrap().receive().one()).unwrap().unwrap();
    assert_eq!(job.body(), body, "longer than what is accepted now, but delivered");
}

/// BB-152: no signal handler of ours is needed: whatever ends the process, the store opens clean.
#[test]
fn a_signal_at_any_moment_leaves_a_store_that_opens() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs");
    let lines = dir.path().join("lines");
    std::fs::write(&lines, (0..20_000).map(|i| format!("{i}\n")).collect::<String>()).unwrap();
    for (round, signal) in ["INT", "TERM", "HUP", "QUIT", "PIPE", "KILL"].iter().cycle().take(18).enumerate() {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_reappear"))
            .args([Path::new("send"), &path, Path::new("q"), Path::new("--lines"), &lines])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let out = std::io::BufReader::new(child.stdout.take().unwrap());
        // Its own words say when it is at work; more of them each round, so that moments differ.
        let mut said = std::io::BufRead::lines(out);
        let ids: Vec<u64> = said.by_ref().take(1 + round * 50).filter_map(|l| l.ok()?.parse().ok()).collect();
        let kill = std::process::Command::new("sh")
            .args(["-c", &format!("kill -s {signal} {}", child.id())])
            .status()
            .unwrap();
        assert!(kill.success());
        // It may ignore the signal, as it does SIGPIPE; nobody listens any more then.
        drop(said);
        child.wait().unwrap();
        let store = blocking::Store::open(&path).unwrap();
        assert!(store.report().torn_tail.is_none(), "SIG{signal}: {}", store.report());
        let queue = store.queue("q").unwrap();
        let there: std::collections::BTreeSet<u64> =
            queue.peek(None, usize::MAX).unwrap().iter().map(|view| view.id.get()).collect();
        assert!(ids.iter().all(|id| there.contains(id)), "SIG{signal}: an acknowledged message is gone");
        queue.purge(&State::ALL).unwrap();
        store.close().unwrap();
    }
}
