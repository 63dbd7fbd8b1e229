//! Cases from public reports: duplicates and races (11), receive counts (12).

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use pollster::block_on;
use reappear::testing::Rig;
use reappear::{Backoff, DeadReason, Delivery, Durability, ErrorKind, Nack, OnOpen, Options, QueueOptions, Store};

use super::machine::{Machine, STOPS, Stop, kind, millis, secs, small};

/// BB-076: a nack and an ack of one receipt at once: exactly one wins, and the next holder's
/// delivery is whole.
#[test]
fn of_a_nack_and_an_ack_at_once_exactly_one_wins() {
    let rig = Rig::new(1);
    let store = rig.open_threaded().unwrap();
    let queue = store.queue("q").unwrap();
    block_on(queue.create(QueueOptions::new().max_attempts(None))).unwrap();
    let mut won = [0, 0];
    for round in 0..300 {
        let id = block_on(queue.send(format!("{round}"))).unwrap();
        let job = block_on(queue.receive().one()).unwrap().unwrap();
        let (acked, nacked) = thread::scope(|scope| {
            let ack = || block_on(job.ack());
            let nack = || block_on(job.nack_with(Nack::new().delay(Duration::ZERO)));
            // Whoever starts first has better chances.
            if round % 2 == 0 {
                let other = scope.spawn(nack);
                (ack(), other.join().unwrap())
            } else {
                let other = scope.spawn(ack);
                let nacked = nack();
                (other.join().unwrap(), nacked)
            }
        });
        match (acked, nacked) {
            (Ok(()), Err(error)) => {
                won[0] += 1;
                assert_eq!(error.kind(), ErrorKind::NotFound);
                assert!(block_on(queue.receive().one()).unwrap().is_none(), "acked, and back again");
            }
            (Err(error), Ok(())) => {
                won[1] += 1;
                assert_eq!(error.kind(), ErrorKind::StaleReceipt);
                // B takes it and dies: it comes back after its timeout.
                let lost = block_on(queue.receive().one()).unwrap().unwrap();
                assert_eq!((lost.id(), lost.receive_count()), (id, 2));
                assert_eq!(kind(block_on(job.ack())), ErrorKind::StaleReceipt);
                rig.clock().advance(secs(60));
                let back = block_on(queue.receive().wait(secs(1)).one()).unwrap().unwrap();
                assert_eq!((back.id(), back.receive_count()), (id, 3));
                block_on(back.ack()).unwrap();
            }
            both => panic!("{both:?}"),
        }
    }
    assert_eq!(won[0] + won[1], 300);
    block_on(store.close()).unwrap();
}

/// BB-077: an ack at the deadline, while others look for the message: acked, or handed out whole.
#[test]
fn an_ack_at_the_deadline_is_done_or_the_message_comes_back_whole() {
    for order in 0..6 {
        for early in [0, 1] {
            let machine = Machine::new();
            machine.send("q", reappear::NewMessage::new("body").attribute("a", "b"));
            let job = machine.take_for("q", secs(1)).unwrap();
            let queue = machine.queue("q");
            machine.rig.clock().advance(millis(1_000 - early));
            let mut ack = Box::pin(job.ack());
            let mut other = Box::pin(queue.receive().one());
            let mut stats = Box::pin(queue.stats());
            let polls: [&mut dyn FnMut() -> bool; 3] = [
                &mut || machine.rig.poll(&mut ack).is_some(),
                &mut || machine.rig.poll(&mut other).is_some(),
                &mut || machine.rig.poll(&mut stats).is_some(),
            ];
            for at in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]][order] {
                assert!(!polls[at](), "nothing was stepped yet");
            }
            machine.rig.settle();
            let acked = machine.rig.poll(&mut ack).unwrap();
            match machine.rig.poll(&mut other).unwrap().unwrap() {
                None => acked.unwrap(),
                Some(again) => {
                    assert_eq!(kind(acked), ErrorKind::StaleReceipt);
                    assert_eq!((again.body(), again.attributes().len()), (b"body".as_slice(), 1));
                    machine.ack(&again);
                }
            }
            assert_eq!(machine.counts("q"), [0; 4]);
        }
    }
}

/// BB-077: the same with real threads and a real clock, at a visibility of 1 ms.
#[test]
fn an_acked_message_never_comes_back_whatever_its_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().durability(Durability::Os).segment_len(64 * 1024);
    let store = block_on(Store::open_with(dir.path().join("s"), options)).unwrap();
    let queue = store.queue("q").unwrap();
    let wanted = 300;
    block_on(queue.create(QueueOptions::new().max_attempts(None))).unwrap();
    block_on(queue.send_batch((0..wanted).map(|n| format!("body {n}")))).unwrap();
    let work = || {
        let mut acked = Vec::new();
        loop {
            let jobs = block_on(queue.receive().max(3).visibility(millis(1)).wait(millis(20)).many()).unwrap();
            for job in &jobs {
                assert!(job.body().starts_with(b"body "), "never without its body");
                match block_on(job.ack()) {
                    Ok(()) => acked.push(job.id()),
                    Err(error) => {
                        assert!(matches!(error.kind(), ErrorKind::StaleReceipt | ErrorKind::NotFound), "{error}");
                    }
                }
            }
            let stats = block_on(queue.stats()).unwrap();
            if jobs.is_empty() && stats.ready + stats.in_flight == 0 {
                return acked;
            }
        }
    };
    let acked: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..3).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert_eq!(acked.len(), wanted, "each was acked");
    assert_eq!(acked.iter().collect::<BTreeSet<_>>().len(), wanted, "and once");
    block_on(store.close()).unwrap();
}

/// BB-079: at a shutdown, wherever it is cut off, nothing that was prefetched is lost.
#[test]
fn a_prefetch_that_is_given_back_at_shutdown_survives_a_kill_at_any_point() {
    for round in 0..60 {
        let machine = Machine::new();
        let ids: Vec<_> = (0..50).map(|body| machine.send("q", body.to_string())).collect();
        let held = machine.take_many("q", 50);
        let done: Vec<_> = held[..10].iter().map(Delivery::receipt).collect();
        assert!(machine.rig.run(machine.queue("q").ack_many(done)).unwrap().iter().all(Result::is_ok));
        let queue = machine.queue("q");
        let back: Vec<_> = held[10..].iter().map(Delivery::receipt).collect();
        let mut release = Box::pin(queue.release_many(back));
        let _ = machine.rig.poll(&mut release);
        if round % 3 > 0 {
            machine.rig.step_committer();
        }
        if round % 3 > 1 {
            machine.rig.step_applier();
        }
        drop(release);
        machine.reopen(STOPS[round / 3 % 4]);
        let ready = machine.counts("q")[0];
        assert!(ready == 0 || ready == 40, "all were released, or none: {ready}");
        machine.pass(secs(60));
        let again = machine.take_many("q", 100);
        assert_eq!(again.iter().map(Delivery::id).collect::<Vec<_>>(), ids[10..], "round {round}");
    }
}

/// BB-080: with a limit of N a message is handed out N times, counted from 1, and then is dead.
#[test]
fn a_message_is_handed_out_exactly_as_often_as_the_limit_says() {
    for max in 1..=4 {
        for nacks in [true, false] {
            let machine = Machine::new();
            machine.made("q", QueueOptions::new().max_attempts(max).backoff(Backoff::NONE));
            machine.send("q", "a");
            let mut seen = Vec::new();
            while let Some(job) = machine.take("q") {
                seen.push((job.receive_count(), job.attempts(), job.epoch()));
                if nacks { machine.rig.run(job.nack()).unwrap() } else { machine.pass(secs(60)) }
            }
            assert_eq!(seen, (1..=max).map(|n| (n, n, n)).collect::<Vec<_>>(), "nacks: {nacks}");
            assert_eq!(machine.counts("q"), [0, 0, 0, 1]);
            let dead = machine.peek_one("q").dead.unwrap();
            assert_eq!((dead.reason, dead.attempts), (DeadReason::MaxAttempts, max));
        }
    }
}

/// BB-080: a limit of none at all is refused, wherever it is set.
#[test]
fn a_limit_of_zero_attempts_is_refused() {
    let machine = Machine::new();
    let zero = QueueOptions::new().max_attempts(0);
    let queue = machine.queue("q");
    assert_eq!(kind(machine.rig.run(queue.create(zero.clone()))), ErrorKind::InvalidInput);
    machine.send("q", "a");
    assert_eq!(kind(machine.rig.run(queue.configure(zero.clone()))), ErrorKind::InvalidInput);
    assert_eq!(machine.took("q").body(), b"a");
    machine.stop(Stop::Close);
    machine.rig.set_options(small().queue_defaults(zero));
    assert_eq!(kind(machine.rig.try_open()), ErrorKind::InvalidInput);
}

/// BB-082: a message that kills the process each time is handed out as often as the limit says,
/// then set aside, and the others are done.
#[test]
fn a_message_that_kills_its_process_ends_up_dead() {
    for on_open in [OnOpen::Release, OnOpen::Keep] {
        for stop in [Stop::Kill, Stop::PowerCut, Stop::KillWithoutIndex] {
            let defaults = QueueOptions::new().max_attempts(3);
            let machine = Machine::with(small().on_open(on_open).queue_defaults(defaults));
            for body in ["a", "boom", "b", "c", "boom", "d"] {
                machine.send("q", body);
            }
            let (mut blasts, mut done) = (0, 0);
            for _ in 0..50 {
                match machine.take("q") {
                    Some(job) if job.body() == b"boom" => {
                        blasts += 1;
                        machine.reopen(stop);
                    }
                    Some(job) => {
                        done += 1;
                        machine.ack(&job);
                    }
                    None => machine.pass(secs(60)),
                }
            }
            assert_eq!((blasts, done), (6, 4), "{on_open:?} {stop:?}");
            assert_eq!(machine.counts("q"), [0, 0, 0, 2], "{on_open:?} {stop:?}");
        }
    }
}

/// BB-083: a receive that was dropped before it returned counts for nothing.
#[test]
fn a_receive_that_nobody_saw_does_not_use_up_an_attempt() {
    let machine = Machine::new();
    machine.made("q", QueueOptions::new().max_attempts(2));
    let id = machine.send("q", "a");
    for round in 0..200_u32 {
        let queue = machine.queue("q");
        let mut call = Box::pin(queue.receive().wait(secs(20)).one());
        assert!(machine.rig.poll(&mut call).is_none());
        for _ in 0..round % 4 {
            machine.rig.step_committer();
            if round % 8 > 4 {
                machine.rig.step_applier();
            }
        }
        drop(call);
        machine.rig.settle();
        let seen = machine.peek_one("q");
        assert_eq!((seen.state, seen.attempts), (reappear::State::Ready, 0), "round {round}");
    }
    let job = machine.took("q");
    assert_eq!((job.id(), job.attempts()), (id, 1), "its first attempt");
    // What was written for receives that nobody saw stays in the life-long count.
    assert_eq!(job.receive_count(), job.epoch());
}

/// BB-085: a message shows that it was taken and not finished.
#[test]
fn a_delivery_that_was_never_settled_leaves_a_trace() {
    for stop in [None, Some(Stop::Kill), Some(Stop::KillWithoutIndex)] {
        let machine = Machine::new();
        machine.send("q", "a");
        machine.pass(secs(1));
        let first = machine.took("q");
        machine.pass(secs(70));
        let last = machine.took("q");
        if let Some(stop) = stop {
            machine.reopen(stop);
        } else {
            machine.pass(secs(60));
        }
        let seen = machine.peek_one("q");
        assert_eq!((seen.receive_count, seen.attempts, seen.epoch), (2, 2, 2));
        assert_eq!(seen.first_received_at.map(|at| at.since(seen.sent_at)), Some(secs(1)));
        assert_eq!(seen.last_received_at.map(|at| at.since(first.sent_at())), Some(secs(71)));
        assert_eq!(seen.visible_at, last.visible_at(), "the last deadline");
        if stop.is_none() {
            assert_eq!(machine.rig.run(machine.queue("q").stats()).unwrap().deadlines_passed, 2);
        }
        machine.pass(secs(60));
        machine.rig.run(machine.took("q").nack_with(Nack::new().error("it broke"))).unwrap();
        assert_eq!(machine.peek_one("q").last_error.as_deref(), Some("it broke"));
    }
}

/// BB-082: released at open, a delivery whose attempts are used up was the last one.
#[test]
fn releasing_at_open_does_not_give_a_used_up_message_another_attempt() {
    for moves in [true, false] {
        let machine = Machine::with(small().on_open(OnOpen::Release));
        let dead = machine.made("dead", QueueOptions::new());
        let options = QueueOptions::new().max_attempts(1);
        machine.made("q", if moves { options.dead_letter(dead.name().clone()) } else { options });
        machine.send("q", "used up");
        machine.send("other", "has more");
        let _lost = (machine.took("q"), machine.took("other"));
        let report = machine.reopen(Stop::Kill);
        assert_eq!((report.released, report.dead_lettered, report.redelivered), (1, 1, 0));
        assert_eq!(machine.counts("other"), [1, 0, 0, 0]);
        assert_eq!(machine.counts("q"), [0, 0, 0, u64::from(!moves)]);
        assert_eq!(machine.counts("dead"), [u64::from(moves), 0, 0, 0]);
    }
}

/// BB-082: the report tells what came back from what died and from what expired.
#[test]
fn the_report_counts_what_happened_while_the_store_was_closed() {
    for stop in STOPS {
        let machine = Machine::new();
        machine.made("once", QueueOptions::new().max_attempts(1));
        machine.made("kept", QueueOptions::new().keep_expired(true));
        for (queue, count) in [("again", 3), ("once", 2)] {
            for body in 0..count {
                machine.send(queue, body.to_string());
            }
            assert_eq!(machine.take_many(queue, 10).len(), count);
        }
        for queue in ["kept", "gone"] {
            machine.send(queue, reappear::NewMessage::new("x").ttl(secs(30)));
        }
        machine.send("late", reappear::NewMessage::new("x").delay(secs(30)));
        machine.stop(stop);
        machine.rig.clock().advance(secs(60));
        let report = machine.open();
        assert_eq!((report.redelivered, report.dead_lettered, report.released), (3, 2, 0), "{stop:?}");
        let counts = ["again", "once", "kept", "gone", "late"].map(|queue| machine.counts(queue));
        assert_eq!(counts, [[3, 0, 0, 0], [0, 0, 0, 2], [0, 0, 0, 1], [0; 4], [1, 0, 0, 0]], "{stop:?}");
    }
}
