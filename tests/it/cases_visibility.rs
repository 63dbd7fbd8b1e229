//! Cases from public reports: visibility, stale receipts, extension (10).

use reappear::{Backoff, Delivery, ErrorKind, Nack, OnOpen, QueueOptions, Receipt};
use std::time::Duration;

use super::machine::{Machine, STOPS, Stop, kind, millis, secs, small};

/// BB-061: who is late changes nothing about the next holder's delivery.
#[test]
fn a_late_holder_does_not_touch_the_next_holders_delivery() {
    for stop in [None, Some(Stop::Kill), Some(Stop::PowerCut), Some(Stop::KillWithoutIndex)] {
        let machine = Machine::new();
        machine.send("q", "a");
        let late = machine.take_for("q", secs(1)).unwrap();
        machine.pass(secs(2));
        let holder = machine.take_for("q", secs(30)).unwrap();
        let before = machine.peek("q");
        if let Some(stop) = stop {
            machine.reopen(stop);
        }
        let (store, receipt) = (machine.store(), late.receipt());
        let rig = &machine.rig;
        let refused = [
            rig.run(store.ack(&receipt)),
            rig.run(store.nack(&receipt, Nack::new())),
            rig.run(store.nack(&receipt, Nack::new().delay(Duration::ZERO))),
            rig.run(store.extend(&receipt, secs(100))),
            rig.run(store.extend(&receipt, Duration::ZERO)),
            rig.run(store.release(&receipt)),
            rig.run(store.reject(&receipt, "no")),
        ];
        for result in refused {
            let error = result.expect_err("the receipt is stale");
            assert_eq!((error.kind(), error.current_epoch()), (ErrorKind::StaleReceipt, Some(2)));
        }
        assert_eq!(machine.peek("q"), before, "deadline, counts and owner are untouched");
        rig.run(store.extend(&holder.receipt(), secs(40))).unwrap();
        rig.run(store.ack(&holder.receipt())).unwrap();
        assert_eq!(machine.counts("q"), [0; 4]);
    }
}

/// BB-062: after the deadline, as long as nobody else has the message, the receipt counts: whether
/// or not somebody looked meanwhile.
#[test]
fn an_ack_after_the_deadline_counts_while_nobody_else_has_the_message() {
    for stop in [None, Some(Stop::Kill), Some(Stop::Close), Some(Stop::KillWithoutIndex)] {
        for looked in [false, true] {
            let machine = Machine::new();
            machine.send("q", "a");
            let receipt = machine.take_for("q", secs(1)).unwrap().receipt();
            if looked {
                machine.pass(millis(1_500));
                assert_eq!(machine.counts("q"), [1, 0, 0, 0]);
            } else {
                machine.rig.clock().advance(millis(1_500));
            }
            if let Some(stop) = stop {
                machine.reopen(stop);
            }
            machine.rig.run(machine.store().ack(&receipt)).unwrap();
            assert_eq!(machine.counts("q"), [0; 4]);
            assert_eq!(kind(machine.rig.run(machine.store().ack(&receipt))), ErrorKind::NotFound);
        }
    }
}

/// BB-062: a strict queue refuses it instead, and what was given back is over in either.
#[test]
fn a_strict_queue_refuses_a_late_ack_and_a_nacked_delivery_is_over() {
    for looked in [false, true] {
        let machine = Machine::new();
        machine.made("strict", QueueOptions::new().strict_deadline(true));
        machine.send("strict", "a");
        let job = machine.take_for("strict", secs(1)).unwrap();
        if looked {
            machine.pass(millis(1_000))
        } else {
            machine.rig.clock().advance(millis(1_000))
        }
        assert_eq!(kind(machine.rig.run(job.ack())), ErrorKind::StaleReceipt);
        assert_eq!(machine.counts("strict"), [1, 0, 0, 0]);
        machine.send("q", "b");
        let job = machine.took("q");
        machine.rig.run(job.nack_with(Nack::new().delay(Duration::ZERO))).unwrap();
        assert_eq!(kind(machine.rig.run(job.ack())), ErrorKind::StaleReceipt);
        assert_eq!(machine.counts("q"), [1, 0, 0, 0]);
    }
}

/// BB-064: an extension counts from the call, for longer and for shorter times.
#[test]
fn an_extension_counts_from_the_call() {
    for (extensions, visible_at) in [(vec![60], 80), (vec![5], 25), (vec![5, 60], 80), (vec![60, 5], 25)] {
        for stop in [None, Some(Stop::Kill), Some(Stop::PowerCut), Some(Stop::Close)] {
            let machine = Machine::new();
            machine.send("q", "a");
            let job = machine.take_for("q", secs(30)).unwrap();
            machine.pass(secs(20));
            for by in &extensions {
                machine.rig.run(job.extend(secs(*by))).unwrap();
            }
            if let Some(stop) = stop {
                machine.reopen(stop);
            }
            machine.pass(secs(visible_at - 20) - millis(1));
            assert_eq!(machine.counts("q"), [0, 0, 1, 0], "{extensions:?} {stop:?}");
            machine.pass(millis(1));
            assert_eq!(machine.counts("q"), [1, 0, 0, 0], "{extensions:?} {stop:?}");
        }
    }
}

/// BB-064: at the moment of expiry an extension either holds whole or is refused.
#[test]
fn an_extension_at_the_moment_of_expiry_holds_or_is_refused() {
    for extends_first in [true, false] {
        let machine = Machine::new();
        machine.send("q", "a");
        let job = machine.take_for("q", secs(1)).unwrap();
        machine.rig.clock().advance(secs(1));
        let queue = machine.queue("q");
        let mut extend = Box::pin(job.extend(secs(10)));
        let mut other = Box::pin(queue.receive().one());
        if extends_first {
            assert!(machine.rig.poll(&mut extend).is_none() && machine.rig.poll(&mut other).is_none());
        } else {
            assert!(machine.rig.poll(&mut other).is_none() && machine.rig.poll(&mut extend).is_none());
        }
        machine.rig.settle();
        let extended = machine.rig.poll(&mut extend).unwrap();
        let taken = machine.rig.poll(&mut other).unwrap().unwrap();
        assert_eq!(extended.is_ok(), taken.is_none(), "one of them has it: {extended:?}");
        assert_eq!(machine.counts("q"), [0, 0, 1, 0]);
    }
}

/// BB-065: an extension is of one delivery; the next begins with the queue's timeout.
#[test]
fn an_extension_does_not_leak_into_the_next_delivery() {
    let machine = Machine::new();
    machine.made("q", QueueOptions::new().visibility_timeout(secs(2)));
    machine.send("q", "a");
    let job = machine.took("q");
    machine.rig.run(job.extend(secs(100))).unwrap();
    machine.rig.run(job.nack_with(Nack::new().delay(Duration::ZERO))).unwrap();
    let _held = machine.took("q");
    machine.pass(millis(1_999));
    assert_eq!(machine.counts("q"), [0, 0, 1, 0]);
    machine.pass(millis(1));
    assert_eq!(machine.counts("q"), [1, 0, 0, 0]);
}

/// BB-067: an expired message is released by time alone.
#[test]
fn a_deadline_passes_although_nothing_else_happens() {
    let abandon = || {
        let machine = Machine::new();
        machine.send("q", "a");
        // Its holder neither settles it nor lets it go.
        std::mem::forget(machine.take_for("q", secs(10)).unwrap());
        machine
    };
    let machine = abandon();
    machine.rig.clock().advance(secs(10));
    assert_eq!(machine.counts("q"), [1, 0, 0, 0], "stats show it");
    let machine = abandon();
    machine.rig.clock().advance(secs(10));
    assert_eq!(machine.took("q").receive_count(), 2, "a receive without a wait returns it");
    let machine = abandon();
    let queue = machine.queue("q");
    let mut poll = Box::pin(queue.receive().wait(secs(60)).one());
    assert!(machine.rig.poll(&mut poll).is_none());
    machine.pass(millis(9_999));
    assert!(machine.rig.poll(&mut poll).is_none());
    machine.pass(millis(1));
    assert!(machine.rig.poll(&mut poll).unwrap().unwrap().is_some(), "a long poll wakes at the deadline");
}

/// BB-068: the wait of a receive that came back early leaves no timer behind.
#[test]
fn a_wait_that_ended_early_does_not_stand_in_for_the_deadline() {
    let machine = Machine::new();
    machine.send("q", "a");
    let queue = machine.queue("q");
    let first = machine.rig.run(queue.receive().wait(secs(5)).visibility(secs(10)).one()).unwrap();
    assert!(first.is_some());
    let mut second = Box::pin(queue.receive().wait(secs(30)).one());
    assert!(machine.rig.poll(&mut second).is_none());
    machine.pass(millis(9_999));
    assert!(machine.rig.poll(&mut second).is_none(), "not at 5 s");
    machine.pass(millis(1));
    assert!(machine.rig.poll(&mut second).unwrap().unwrap().is_some(), "at 10 s");
}

/// BB-070: there is no limit to being extended again and again, only to one extension.
#[test]
fn a_delivery_can_be_extended_for_ever_but_not_beyond_the_limit_at_once() {
    let machine = Machine::new();
    machine.send("q", "a");
    let limit = secs(43_200);
    let job = machine.take_for("q", limit).unwrap();
    for _ in 0..20 {
        machine.pass(limit - secs(1));
        machine.rig.run(job.extend(limit)).unwrap();
    }
    for by in [limit + millis(1), Duration::MAX] {
        let error = machine.rig.run(job.extend(by)).expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("43200s"), "it names the limit: {error}");
    }
    machine.ack(&job);
    machine.made("long", QueueOptions::new().max_visibility_timeout(secs(100 * 3600)));
    machine.send("long", "b");
    assert!(machine.take_for("long", secs(100 * 3600)).is_some(), "a queue can have a limit of its own");
}

/// BB-071: kept over a restart, each message stays hidden to its own deadline, and receipts hold.
#[test]
fn messages_in_flight_at_a_restart_wait_for_their_deadline() {
    for stop in STOPS {
        let machine = Machine::new();
        let hold = |visibility| {
            machine.send("q", format!("{visibility}"));
            machine.take_for("q", secs(visibility)).unwrap().receipt()
        };
        let receipts: Vec<Receipt> = [60, 1, 3600].map(hold).into();
        machine.stop(stop);
        machine.rig.clock().advance(secs(5));
        let report = machine.open();
        assert_eq!((report.redelivered, report.released), (1, 0), "{stop:?}");
        assert_eq!(machine.counts("q"), [1, 0, 2, 0], "{stop:?}");
        let back = machine.took("q");
        assert_eq!((back.body(), back.receive_count()), (b"1".as_slice(), 2), "{stop:?}");
        let acks: Vec<_> =
            receipts.iter().map(|r| machine.rig.run(machine.store().ack(r)).map_err(|e| e.kind())).collect();
        assert_eq!(acks, [Ok(()), Err(ErrorKind::StaleReceipt), Ok(())], "{stop:?}");
    }
}

/// BB-071: with `OnOpen::Release` all are receivable at once, counts kept, receipts stale.
#[test]
fn messages_in_flight_at_a_restart_are_released_if_asked_for() {
    for stop in STOPS {
        let machine = Machine::with(small().on_open(OnOpen::Release));
        for visibility in [60, 1, 3600] {
            machine.send("q", format!("{visibility}"));
        }
        let held: Vec<Delivery> =
            [60, 1, 3600].into_iter().map(|visibility| machine.take_for("q", secs(visibility)).unwrap()).collect();
        machine.stop(stop);
        machine.rig.clock().advance(secs(5));
        let report = machine.open();
        assert_eq!((report.redelivered, report.released), (1, 2), "{stop:?}");
        assert_eq!(machine.counts("q"), [3, 0, 0, 0], "{stop:?}");
        let released = [0, 2].map(|at: usize| kind(machine.rig.run(machine.store().ack(&held[at].receipt()))));
        assert_eq!(released, [ErrorKind::StaleReceipt; 2], "{stop:?}");
        let again = machine.take_many("q", 10);
        let counts: Vec<_> = again.iter().map(|job| (job.receive_count(), job.attempts())).collect();
        assert_eq!(counts, [(2, 2); 3], "{stop:?}");
        machine.leave();
    }
}

/// BB-073: a lease hangs on message, receipt and deadline: what a dead consumer held comes back
/// although the same consumer is there again.
#[test]
fn what_a_dead_consumer_held_comes_back_whoever_asks() {
    let machine = Machine::new();
    for body in 0..10 {
        machine.send("q", body.to_string());
    }
    let _lost = machine.take_many("q", 5);
    machine.reopen(Stop::Kill);
    // The same program again: it goes on receiving and keeps busy.
    let again = machine.take_many("q", 2);
    for job in &again {
        machine.rig.run(job.extend(secs(600))).unwrap();
    }
    machine.pass(secs(60));
    assert_eq!(machine.counts("q"), [8, 0, 2, 0]);
    // Two handles on one queue: letting one go changes nothing for the other.
    let (first, second) = (machine.queue("q"), machine.queue("q"));
    let held = machine.rig.run(first.receive().max(5).visibility(secs(5)).many()).unwrap();
    drop(first);
    assert_eq!(machine.rig.run(second.receive().max(100).many()).unwrap().len(), 3);
    machine.pass(secs(5));
    let back = machine.rig.run(second.receive().max(100).many()).unwrap();
    let ids = |jobs: &[Delivery]| jobs.iter().map(Delivery::id).collect::<Vec<_>>();
    assert_eq!(ids(&back), ids(&held));
}

/// BB-074: nothing renews a lease behind the holder's back; one who worked too long completes
/// nothing twice.
#[test]
fn of_two_holders_only_the_one_with_the_newest_delivery_completes() {
    let machine = Machine::new();
    machine.made("q", QueueOptions::new().visibility_timeout(secs(1)).backoff(Backoff::NONE));
    machine.send("q", "a");
    let slow = machine.took("q");
    machine.pass(secs(5));
    let quick = machine.took("q");
    assert_eq!(kind(machine.rig.run(slow.ack())), ErrorKind::StaleReceipt);
    machine.ack(&quick);
    assert_eq!(kind(machine.rig.run(slow.ack())), ErrorKind::NotFound);
    let stats = machine.rig.run(machine.queue("q").stats()).unwrap();
    assert_eq!((stats.acked, stats.stale_receipts), (1, 1));
}
