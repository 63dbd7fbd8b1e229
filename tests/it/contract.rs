//! The tables of the contract, row by row: receipts, counters, which index is used at open.

use std::time::Duration;

use reappear::testing::Rig;
use reappear::{
    Backoff, Delivery, ErrorKind, IndexReport, Nack, Options, Queue, QueueOptions, Receipt, RedriveFilter, State,
};

const VISIBILITY: Duration = Duration::from_secs(10);
const LATE: Duration = Duration::from_secs(11);

/// A store with one queue and one message, which is handed out.
struct Held {
    rig: Rig,
    queue: Queue,
    store: reappear::Store,
    job: Delivery,
}

fn held(options: QueueOptions) -> Held {
    let rig = Rig::new(7);
    let store = rig.open();
    let queue = store.queue("q").unwrap();
    rig.run(queue.create(options.backoff(Backoff::NONE))).unwrap();
    rig.run(queue.send("body")).unwrap();
    let job = receive(&rig, &queue).expect("it is there");
    Held { rig, queue, store, job }
}

fn receive(rig: &Rig, queue: &Queue) -> Option<Delivery> {
    rig.run(queue.receive().visibility(VISIBILITY).one()).unwrap()
}

type Verb = (&'static str, fn(&Held, &Receipt) -> Result<(), reappear::Error>);

const VERBS: [Verb; 5] = [
    ("ack", |h, r| h.rig.run(h.store.ack(r))),
    ("extend", |h, r| h.rig.run(h.store.extend(r, VISIBILITY))),
    ("nack", |h, r| h.rig.run(h.store.nack(r, Nack::new()))),
    ("release", |h, r| h.rig.run(h.store.release(r))),
    ("reject", |h, r| h.rig.run(h.store.reject(r, "no"))),
];

// ---- receipts ------------------------------------------------------------------------------------

#[test]
fn a_current_receipt_counts_before_its_deadline() {
    for (name, verb) in VERBS {
        let h = held(QueueOptions::new());
        assert!(verb(&h, &h.job.receipt()).is_ok(), "{name}");
    }
}

#[test]
fn a_current_receipt_counts_after_its_deadline_if_nobody_else_received_the_message() {
    for (name, verb) in VERBS {
        let h = held(QueueOptions::new());
        h.rig.advance(LATE);
        assert!(verb(&h, &h.job.receipt()).is_ok(), "{name}");
    }
}

#[test]
fn a_strict_queue_takes_no_receipt_after_its_deadline() {
    for (name, verb) in VERBS {
        let h = held(QueueOptions::new().strict_deadline(true));
        h.rig.advance(LATE);
        assert_eq!(verb(&h, &h.job.receipt()).unwrap_err().kind(), ErrorKind::StaleReceipt, "{name}");
    }
}

#[test]
fn a_receipt_is_stale_after_nack_release_and_reject() {
    for (ending, end) in VERBS.into_iter().filter(|(name, _)| ["nack", "release", "reject"].contains(name)) {
        for (name, verb) in VERBS {
            let h = held(QueueOptions::new());
            end(&h, &h.job.receipt()).unwrap();
            let refused = verb(&h, &h.job.receipt()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::StaleReceipt, "{name} after {ending}");
            assert_eq!(refused.current_epoch(), Some(1));
        }
    }
}

#[test]
fn an_older_receipt_is_stale_and_changes_nothing() {
    for (name, verb) in VERBS {
        let h = held(QueueOptions::new());
        h.rig.advance(LATE);
        let second = receive(&h.rig, &h.queue).expect("it reappeared");
        let before = h.rig.run(h.queue.peek(None, 9)).unwrap();
        let refused = verb(&h, &h.job.receipt()).unwrap_err();
        assert_eq!((refused.kind(), refused.current_epoch()), (ErrorKind::StaleReceipt, Some(2)), "{name}");
        assert_eq!(h.rig.run(h.queue.peek(None, 9)).unwrap(), before, "{name} changed something");
        h.rig.run(second.ack()).unwrap();
    }
}

#[test]
fn any_receipt_of_a_message_that_is_gone_is_not_found() {
    for (name, verb) in VERBS {
        let h = held(QueueOptions::new());
        h.rig.run(h.job.ack()).unwrap();
        assert_eq!(verb(&h, &h.job.receipt()).unwrap_err().kind(), ErrorKind::NotFound, "{name}");
        // Also when the tables have forgotten it and only the index could know.
        h.rig.run(h.queue.send("another")).unwrap();
        h.rig.advance(Duration::from_secs(30));
        assert_eq!(verb(&h, &h.job.receipt()).unwrap_err().kind(), ErrorKind::NotFound, "{name}, later");
    }
}

#[test]
fn a_receipt_is_stale_after_the_message_moved_to_a_dead_letter_queue() {
    for (name, verb) in VERBS {
        let h = held(QueueOptions::new());
        let dead = h.store.queue("dead").unwrap();
        h.rig.run(dead.create(None)).unwrap();
        h.rig.run(h.queue.configure(QueueOptions::new().dead_letter("dead".parse().ok()))).unwrap();
        h.rig.run(h.job.reject("no")).unwrap();
        h.rig.advance(Duration::from_secs(30));
        assert_eq!(verb(&h, &h.job.receipt()).unwrap_err().kind(), ErrorKind::StaleReceipt, "{name}");
        let moved = h.rig.run(dead.peek(None, 9)).unwrap();
        assert_eq!((moved.len(), moved[0].state), (1, State::Ready));
    }
}

#[test]
fn a_receipt_of_another_store_or_queue_is_invalid() {
    let (a, b) = (held(QueueOptions::new()), Rig::new(8));
    let store = b.open();
    assert_eq!(b.run(store.ack(&a.job.receipt())).unwrap_err().kind(), ErrorKind::InvalidInput);
    let other = a.store.queue("other").unwrap();
    a.rig.run(other.create(None)).unwrap();
    let results = a.rig.run(other.ack_many([a.job.receipt()])).unwrap();
    assert_eq!(results[0].as_ref().unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_receipt_prints_and_parses_and_a_mistyped_one_is_refused() {
    let h = held(QueueOptions::new());
    let text = h.job.receipt().to_string();
    assert_eq!(text.parse::<Receipt>().unwrap(), h.job.receipt());
    for at in 0..text.len() {
        let mut typo = text.clone().into_bytes();
        typo[at] = if typo[at] == b'1' { b'2' } else { b'1' };
        let typo = String::from_utf8(typo).unwrap();
        assert_eq!(typo.parse::<Receipt>().unwrap_err().kind(), ErrorKind::InvalidInput, "{typo}");
    }
}

// ---- counters ------------------------------------------------------------------------------------

/// (receive_count, attempts, epoch)
fn counts(h: &Held) -> (u32, u32, u32) {
    let view = h.rig.run(h.queue.peek(None, 9)).unwrap().remove(0);
    (view.receive_count, view.attempts, view.epoch)
}

#[test]
fn receiving_raises_all_three_counters() {
    assert_eq!(counts(&held(QueueOptions::new())), (1, 1, 1));
}

#[test]
fn a_passed_deadline_a_nack_a_reject_and_a_crash_raise_none() {
    let h = held(QueueOptions::new());
    h.rig.advance(LATE);
    assert_eq!(counts(&h), (1, 1, 1), "deadline");
    for (name, verb) in VERBS.into_iter().filter(|(name, _)| ["nack", "reject", "extend"].contains(name)) {
        let h = held(QueueOptions::new());
        verb(&h, &h.job.receipt()).unwrap();
        assert_eq!(counts(&h), (1, 1, 1), "{name}");
    }
    for crash in [Rig::kill, Rig::power_cut] {
        let Held { rig, .. } = held(QueueOptions::new());
        crash(&rig);
        let store = rig.open();
        let view = rig.run(store.queue("q").unwrap().peek(None, 9)).unwrap().remove(0);
        assert_eq!((view.receive_count, view.attempts, view.epoch), (1, 1, 1));
    }
}

#[test]
fn a_release_and_a_cancelled_receive_refund_the_attempt() {
    let h = held(QueueOptions::new());
    h.rig.run(h.job.release()).unwrap();
    assert_eq!(counts(&h), (1, 0, 1));
    let mut call = Box::pin(h.queue.receive().many());
    assert!(h.rig.poll(&mut call).is_none());
    h.rig.settle();
    drop(call);
    h.rig.settle();
    assert_eq!(counts(&h), (2, 0, 2));
}

#[test]
fn a_redrive_sets_attempts_to_zero_and_nothing_else() {
    let h = held(QueueOptions::new());
    h.rig.run(h.job.reject("no")).unwrap();
    assert_eq!(h.rig.run(h.queue.redrive(RedriveFilter::default(), None)).unwrap(), 1);
    assert_eq!(counts(&h), (1, 0, 1));
}

// ---- which index is used at open -----------------------------------------------------------------

fn reopened(rig: &Rig) -> IndexReport {
    let store = rig.open();
    let seen = rig.run(store.queue("q").unwrap().peek(None, 99)).unwrap();
    assert_eq!(seen.len(), 10, "{:?}", store.report());
    store.report().index.clone()
}

/// A store that has been checkpointed, and written to after that.
fn written() -> Rig {
    let rig = Rig::new(9);
    let store = rig.open();
    let queue = store.queue("q").unwrap();
    rig.run(queue.send_batch((0..9).map(|i| i.to_string()))).unwrap();
    rig.advance(Duration::from_secs(30));
    rig.run(queue.send("last")).unwrap();
    rig
}

fn closed() -> Rig {
    let rig = written();
    // The rig has the store open; another handle on it is not needed to close it.
    rig.kill();
    let store = rig.open();
    rig.run(store.close()).unwrap();
    rig
}

#[test]
fn after_a_clean_close_the_index_is_used_as_it_is() {
    let rig = closed();
    assert_eq!(reopened(&rig), IndexReport::Kept);
}

#[test]
fn after_a_clean_close_the_index_is_used_after_a_restart_of_the_machine_too() {
    let rig = closed();
    rig.power_cut();
    assert_eq!(reopened(&rig), IndexReport::Kept);
}

#[test]
fn after_the_process_died_the_rest_of_the_log_is_replayed() {
    let rig = written();
    rig.kill();
    assert_eq!(reopened(&rig), IndexReport::Replayed);
}

fn reason(rig: &Rig) -> String {
    match reopened(rig) {
        IndexReport::Rebuilt { reason } => reason,
        other => panic!("it was not rebuilt but {other:?}"),
    }
}

#[test]
fn after_the_machine_died_the_index_is_rebuilt() {
    let rig = written();
    rig.power_cut();
    assert!(reason(&rig).contains("restarted"));
}

#[test]
fn without_a_boot_id_the_index_of_a_dead_process_is_rebuilt() {
    let rig = written();
    rig.clock().set_boot_id(None);
    rig.kill();
    assert!(reason(&rig).contains("restarted"));
}

#[test]
fn a_lost_index_is_rebuilt() {
    for rig in [written(), closed()] {
        rig.kill();
        rig.lose_index();
        assert!(reason(&rig).contains("checkpoint"));
    }
}

#[test]
fn a_damaged_index_is_rebuilt() {
    let rig = closed();
    rig.damage_index(|rows| rows.values_mut().for_each(|row| row[0] ^= 0x40));
    reason(&rig);
}

#[test]
fn an_index_with_a_missing_row_is_rebuilt() {
    let rig = closed();
    rig.damage_index(|rows| drop(rows.pop_first()));
    reason(&rig);
}

#[test]
fn an_index_that_fails_while_the_store_is_open_is_replaced_by_one_in_memory_and_then_by_a_new_one_on_disk() {
    let rig = written();
    rig.kill();
    {
        let store = rig.open();
        let queue = store.queue("q").unwrap();
        let generation = rig.run(store.stats()).unwrap().index_generation;
        rig.fail_index_after(Some(0));
        let job = rig.run(queue.receive().one()).unwrap().unwrap();
        rig.run(job.ack()).unwrap();
        assert_eq!(rig.run(queue.peek(None, 99)).unwrap().len(), 9);
        assert!(rig.run(store.stats()).unwrap().index_in_memory);
        rig.run(queue.send("one more")).unwrap();
        rig.advance(Duration::from_secs(30));
        let stats = rig.run(store.stats()).unwrap();
        assert_eq!((stats.index_in_memory, stats.index_generation, stats.messages), (false, generation + 1, 10));
    }
    rig.kill();
    reopened(&rig);
}

// ---- a store that is not what it should be -------------------------------------------------------

#[test]
fn random_bytes_in_place_of_a_file_are_an_error_or_change_nothing_but_never_an_empty_store() {
    let rig = closed();
    for (path, len) in rig.disk().list_raw() {
        for fill in [0_u8, 0xff, 0x5a] {
            let image = rig.disk().snapshot();
            let mut noise = u64::from(fill) + len;
            let bytes: Vec<u8> = (0..len)
                .map(|_| {
                    noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    if fill == 0x5a { noise.to_be_bytes()[0] } else { fill }
                })
                .collect();
            rig.disk().write_raw(&path, bytes);
            match rig.try_open() {
                Ok(store) => {
                    let seen = rig.run(store.queue("q").unwrap().peek(None, 99)).unwrap();
                    assert_eq!(seen.len(), 10, "{} filled with {fill}", path.display());
                }
                Err(error) => {
                    let expected = [ErrorKind::Corrupt, ErrorKind::Unsupported].contains(&error.kind());
                    assert!(expected, "{}: {error}", path.display());
                }
            }
            rig.kill();
            rig.disk().restore(&image);
        }
    }
}

#[test]
fn a_missing_file_is_an_error_or_changes_nothing_but_never_an_empty_store() {
    let rig = closed();
    for (path, _) in rig.disk().list_raw() {
        let image = rig.disk().snapshot();
        rig.disk().remove_raw(&path);
        match rig.try_open() {
            Ok(store) => {
                let seen = rig.run(store.queue("q").unwrap().peek(None, 99)).unwrap();
                assert_eq!(seen.len(), 10, "without {}", path.display());
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{}: {error}", path.display()),
        }
        rig.kill();
        rig.disk().restore(&image);
    }
}

#[test]
fn a_second_opening_in_the_same_process_is_locked_and_names_the_owner() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs");
    let store = reappear::blocking::Store::open(&path).unwrap();
    let refused = reappear::blocking::Store::open(&path).unwrap_err();
    assert_eq!((refused.kind(), refused.owner_pid()), (ErrorKind::Locked, Some(std::process::id())));
    store.close().unwrap();
    reappear::blocking::Store::open(&path).unwrap();
}

#[test]
fn a_network_file_system_is_refused_unless_it_is_allowed() {
    let rig = Rig::new(3);
    rig.disk().set_network(true);
    assert_eq!(rig.try_open().unwrap_err().kind(), ErrorKind::Unsupported);
    rig.set_options(Options::new().segment_len(4096).allow_network_fs(true));
    let _ = rig.open();
}
