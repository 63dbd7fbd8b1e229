//! Processes that end in other ways than by a kill in the middle of work.

use std::time::Duration;

use reappear::blocking::Store;
use reappear::{DeadReason, QueueOptions, State};

use crate::child::options;
use crate::parent::start;

/// BB-025: every operation that returned is in effect after a kill at once.
#[test]
fn a_kill_right_after_the_answer_undoes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (mut child, lines) = start("verbs", &path, 0);
    while lines.recv_timeout(Duration::from_secs(30)).unwrap() != "ready" {}
    child.kill().unwrap();
    child.wait().unwrap();
    for lose_index in [false, true] {
        if lose_index {
            std::fs::remove_dir_all(path.join("index")).unwrap();
        }
        let store = Store::open_with(&path, options()).unwrap();
        let seen = store.queue("q").unwrap().peek(None, 10).unwrap();
        let seen: Vec<_> = seen.iter().map(|view| (view.body.as_slice(), view.state, view.epoch)).collect();
        let expected = [
            (b"held".as_slice(), State::InFlight, 1),
            (b"nacked".as_slice(), State::Ready, 1),
            (b"extended".as_slice(), State::InFlight, 1),
        ];
        assert_eq!(seen, expected, "with the index lost: {lose_index}");
        store.close().unwrap();
    }
}

/// BB-028: an ack is durable when it returns, not when something is dropped.
#[test]
fn what_was_acked_stays_gone_when_the_process_exits_without_closing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::open_with(&path, options()).unwrap();
    store.queue("q").unwrap().send_batch((0..100).map(|i| i.to_string())).unwrap();
    store.close().unwrap();
    let (mut child, lines) = start("ack", &path, 0);
    assert!(child.wait().unwrap().success());
    assert!(lines.iter().any(|line| line == "acked 100"));
    let store = Store::open_with(&path, options()).unwrap();
    assert!(store.queue("q").unwrap().receive().one().unwrap().is_none());
}

/// BB-046: the lock goes with the process, however it ends.
#[test]
fn a_killed_owner_leaves_no_lock_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    for _ in 0..20 {
        let (mut child, lines) = start("verbs", &path, 0);
        assert_eq!(lines.recv_timeout(Duration::from_secs(30)).unwrap(), "opened");
        let refused = Store::open_with(&path, options()).unwrap_err();
        assert_eq!(refused.kind(), reappear::ErrorKind::Locked);
        assert_eq!(refused.owner_pid(), Some(child.id()), "{refused}");
        child.kill().unwrap();
        child.wait().unwrap();
        let store = Store::open_with(&path, options()).unwrap();
        store.queue("q").unwrap().purge(&State::ALL).ok();
        store.close().unwrap();
    }
}

/// BB-082: a message that kills its process at every start is dead after its attempts; the others
/// are done.
#[test]
fn a_poison_message_ends_dead_and_the_others_are_done() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::open_with(&path, options()).unwrap();
    let queue = store.queue("q").unwrap();
    queue.create(QueueOptions::new().max_attempts(3)).unwrap();
    queue.send_batch(["one", "boom", "two"]).unwrap();
    store.close().unwrap();
    drop((store, queue));
    let mut booms = Vec::new();
    let mut idle = false;
    for _ in 0..50 {
        let (mut child, lines) = start("poison", &path, 0);
        child.wait().unwrap();
        for line in lines.iter() {
            booms.extend(line.strip_prefix("boom ").map(|attempts| attempts.parse::<u32>().unwrap()));
            idle |= line == "idle";
        }
        if idle {
            break;
        }
    }
    assert_eq!(booms, [1, 2, 3], "handed out three times, counted over crashes");
    let store = Store::open_with(&path, options()).unwrap();
    let seen = store.queue("q").unwrap().peek(None, 10).unwrap();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!((seen[0].body.as_slice(), seen[0].state), (b"boom".as_slice(), State::Dead));
    assert_eq!(seen[0].dead.as_ref().map(|dead| (dead.reason, dead.attempts)), Some((DeadReason::MaxAttempts, 3)));
}
