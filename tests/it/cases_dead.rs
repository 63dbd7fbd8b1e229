//! Cases from public reports: the dead-letter queue (13).

use reappear::testing::{Fault, FaultKind, Op};
use reappear::{Backoff, DeadReason, ErrorKind, MessageView, NewMessage, QueueOptions, RedriveFilter, State};
use std::time::Duration;

use super::machine::{Machine, STOPS, Stop, kind, millis, secs};

/// A queue `q` with a limit, whose dead go to `dead`.
fn with_dead_letters(machine: &Machine, max: u32) {
    let dead = machine.made("dead", QueueOptions::new().max_attempts(max).backoff(Backoff::NONE));
    let options = QueueOptions::new().max_attempts(max).backoff(Backoff::NONE).dead_letter(dead.name().clone());
    machine.made("q", options);
}

fn exhaust(machine: &Machine, name: &str) -> u32 {
    let mut count = 0;
    while let Some(job) = machine.take(name) {
        machine.rig.run(job.nack()).unwrap();
        count += 1;
    }
    count
}

fn redrive(machine: &Machine, name: &str) -> u64 {
    machine.rig.run(machine.queue(name).redrive(RedriveFilter::default(), None)).unwrap()
}

/// Both queues together.
fn all(machine: &Machine) -> Vec<MessageView> {
    let mut seen = machine.peek("q");
    seen.extend(machine.peek("dead"));
    seen
}

/// BB-086: a move that is cut off anywhere leaves exactly one copy, in one of the queues.
#[test]
fn a_move_to_the_dead_letter_queue_is_whole_wherever_it_is_cut_off() {
    for by_deadline in [true, false] {
        for after in 0..40 {
            for stop in [Stop::Kill, Stop::PowerCut] {
                let machine = Machine::new();
                with_dead_letters(&machine, 1);
                let id = machine.send("q", NewMessage::new("body").attribute("a", "b").priority(3));
                let job = machine.took("q");
                machine.rig.disk().fail(Fault { op: Op::Any, after, times: 1, kind: FaultKind::Crash });
                if by_deadline {
                    machine.pass(secs(60));
                    machine.rig.try_run(machine.queue("dead").receive().one());
                } else {
                    let _ = machine.rig.try_run(job.nack());
                }
                let crashed = machine.rig.disk().is_dead();
                machine.rig.disk().clear_faults();
                machine.reopen(stop);
                machine.rig.settle();
                let seen = all(&machine);
                assert_eq!(seen.len(), 1, "after {after}: {seen:?}");
                assert_eq!((seen[0].id, seen[0].body.as_slice(), seen[0].priority), (id, b"body".as_slice(), 3));
                if !crashed {
                    return;
                }
            }
        }
    }
}

/// BB-086: two receivers at the same used-up message get it once, where it was moved to.
#[test]
fn two_receivers_meet_a_used_up_message_and_neither_gets_it() {
    let machine = Machine::new();
    with_dead_letters(&machine, 1);
    machine.send("q", "a");
    let _lost = machine.took("q");
    machine.rig.clock().advance(secs(60));
    let queue = machine.queue("q");
    let mut both = [Box::pin(queue.receive().one()), Box::pin(queue.receive().one())];
    for call in &mut both {
        assert!(machine.rig.poll(call).is_none());
    }
    machine.rig.settle();
    for call in &mut both {
        assert!(machine.rig.poll(call).unwrap().unwrap().is_none());
    }
    assert_eq!(machine.counts("dead"), [1, 0, 0, 0]);
}

/// BB-088: the count begins anew with the move and with the redrive; the history is kept.
#[test]
fn attempts_begin_anew_in_the_dead_letter_queue_and_after_a_redrive() {
    let machine = Machine::new();
    with_dead_letters(&machine, 3);
    let id = machine.send("q", "a");
    assert_eq!(exhaust(&machine, "q"), 3);
    let moved = machine.peek_one("dead");
    assert_eq!((moved.attempts, moved.receive_count, moved.epoch), (0, 3, 3));
    assert_eq!(moved.dead.as_ref().map(|dead| dead.attempts), Some(3), "the original count is kept");
    assert_eq!(exhaust(&machine, "dead"), 3);
    assert_eq!(machine.counts("dead"), [0, 0, 0, 1], "parked in its own queue, as that has no target");
    assert_eq!(redrive(&machine, "dead"), 1);
    let place = ["q", "dead"].into_iter().find(|name| machine.counts(name)[0] == 1).unwrap();
    assert_eq!(exhaust(&machine, place), 3);
    let last = all(&machine).remove(0);
    assert_eq!((last.id, last.receive_count), (id, 9));
}

/// BB-088: a redrive out of the dead-letter queue gives the source its whole limit again.
#[test]
fn a_redriven_message_has_all_its_attempts() {
    let machine = Machine::new();
    with_dead_letters(&machine, 3);
    machine.send("q", "a");
    exhaust(&machine, "q");
    assert_eq!(redrive(&machine, "dead"), 1);
    assert_eq!(machine.counts("q"), [1, 0, 0, 0], "back to where it came from");
    assert_eq!(exhaust(&machine, "q"), 3);
    assert_eq!(machine.peek_one("dead").receive_count, 6);
}

/// BB-089: a delay counts nothing: all deliveries come after it, and only then is it dead.
#[test]
fn a_delayed_message_is_not_dead_before_it_was_delivered() {
    let machine = Machine::new();
    let dead = machine.made("dead", QueueOptions::new());
    let options = QueueOptions::new().max_attempts(3).visibility_timeout(secs(1)).dead_letter(dead.name().clone());
    machine.made("q", options);
    machine.send("q", NewMessage::new("a").delay(secs(2)));
    let queue = machine.queue("q");
    let mut deliveries = Vec::new();
    let mut poll = Box::pin(queue.receive().wait(secs(100)).one());
    for tenth in 0..70 {
        if let Some(got) = machine.rig.poll(&mut poll) {
            deliveries.push((tenth, got.unwrap().unwrap().attempts()));
            poll = Box::pin(queue.receive().wait(secs(100)).one());
            assert!(machine.rig.poll(&mut poll).is_none());
        }
        let total = machine.counts("q").iter().sum::<u64>() + machine.counts("dead").iter().sum::<u64>();
        assert_eq!(total, 1);
        assert_eq!(machine.counts("dead")[0], u64::from(tenth >= 50), "at {tenth} tenths");
        machine.pass(millis(100));
    }
    assert_eq!(deliveries, [(20, 1), (30, 2), (40, 3)]);
}

/// BB-091: what is dead or was moved is the same message, with its times and where it came from.
#[test]
fn a_dead_message_keeps_its_identity_and_its_times() {
    for moves in [true, false] {
        for stop in STOPS {
            let machine = Machine::new();
            with_dead_letters(&machine, 1);
            if !moves {
                machine.rig.run(machine.queue("q").configure(QueueOptions::new().max_attempts(1))).unwrap();
            }
            machine.pass(secs(1));
            let message = NewMessage::new("body").attribute("name", "value").priority(-7);
            let id = machine.send("q", message);
            let before = machine.peek_one("q");
            machine.pass(secs(5));
            let job = machine.took("q");
            machine.pass(secs(2));
            machine.rig.run(job.nack_with(reappear::Nack::new().error("broken"))).unwrap();
            machine.reopen(stop);
            let after = machine.peek_one(if moves { "dead" } else { "q" });
            assert_eq!((after.id, &after.body, &after.attributes), (id, &before.body, &before.attributes));
            assert_eq!((after.priority, after.sent_at), (-7, before.sent_at));
            assert_eq!(after.first_received_at.map(|at| at.since(after.sent_at)), Some(secs(5)));
            let dead = after.dead.unwrap();
            assert_eq!((dead.reason, dead.origin.as_str(), dead.attempts), (DeadReason::MaxAttempts, "q", 1));
            assert_eq!((dead.at.since(after.sent_at), dead.error.as_deref()), (secs(7), Some("broken")));
        }
    }
}

/// BB-092: a target that is missing, the queue itself, or part of a loop is refused when it is set.
#[test]
fn a_dead_letter_queue_that_cannot_be_is_refused_when_it_is_set() {
    let machine = Machine::new();
    let name = |name: &str| machine.queue(name).name().clone();
    let to = |target: &str| QueueOptions::new().dead_letter(name(target));
    let run = |call| machine.rig.run(call);
    assert_eq!(kind(machine.rig.run(machine.queue("q").create(to("nowhere")))), ErrorKind::NotFound);
    assert_eq!(kind(machine.rig.run(machine.queue("q").create(to("q")))), ErrorKind::InvalidInput);
    assert!(run(machine.queue("q").stats()).is_err(), "no queue is left of it");
    machine.made("a", QueueOptions::new());
    machine.made("b", to("a"));
    machine.made("c", to("b"));
    for loops in ["a", "b", "c"] {
        let refused = machine.rig.run(machine.queue("a").configure(to(loops))).expect_err("a loop");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        assert!(refused.to_string().contains(" -> "), "it shows the loop: {refused}");
    }
    // A limit without a target is fine: the dead stay where they are.
    machine.made("alone", QueueOptions::new().max_attempts(1).backoff(Backoff::NONE));
    machine.send("alone", "x");
    assert_eq!(exhaust(&machine, "alone"), 1);
    assert_eq!(machine.counts("alone"), [0, 0, 0, 1]);
}

/// BB-092: a queue in use as target goes only by force, and then nothing is lost.
#[test]
fn without_its_dead_letter_queue_a_used_up_message_parks_in_its_own() {
    for stop in [None, Some(Stop::Kill), Some(Stop::KillWithoutIndex)] {
        let machine = Machine::new();
        with_dead_letters(&machine, 2);
        machine.send("q", "a");
        machine.rig.run(machine.took("q").nack()).unwrap();
        let dead = machine.queue("dead");
        assert_eq!(kind(machine.rig.run(dead.delete(false))), ErrorKind::InvalidInput);
        assert_eq!(machine.rig.run(dead.delete(true)).unwrap(), 0);
        if let Some(stop) = stop {
            machine.reopen(stop);
        }
        let last = machine.took("q");
        if stop.is_some() {
            machine.pass(secs(60))
        } else {
            machine.rig.run(last.nack()).unwrap()
        }
        assert_eq!(machine.counts("q"), [0, 0, 0, 1], "{stop:?}");
        assert_eq!(machine.peek_one("q").dead.map(|dead| dead.reason), Some(DeadReason::MaxAttempts));
        assert_eq!(redrive(&machine, "q"), 1);
        assert_eq!(machine.counts("q"), [1, 0, 0, 0]);
    }
}

/// BB-094: a redrive that is cut off anywhere loses nothing, and the next one finishes it.
#[test]
fn a_redrive_that_is_cut_off_loses_nothing_and_can_be_done_again() {
    for moved in [true, false] {
        for steps in 0..10 {
            for end in 0..4 {
                let machine = Machine::new();
                with_dead_letters(&machine, 1);
                let source = if moved { "dead" } else { "q" };
                if !moved {
                    machine.rig.run(machine.queue("q").configure(QueueOptions::new().max_attempts(1))).unwrap();
                }
                let bodies: Vec<String> = (0..600).map(|n| format!("{n}")).collect();
                machine.rig.run(machine.queue("q").send_batch(bodies.clone())).unwrap();
                let held = machine.take_many("q", 1000);
                let reject = held.iter().map(reappear::Delivery::receipt);
                let all_dead = machine.rig.run(machine.queue("q").reject_many(reject, "no")).unwrap();
                assert!(all_dead.iter().all(Result::is_ok));
                let queue = machine.queue(source);
                let mut call = Box::pin(queue.redrive(RedriveFilter::default(), None));
                let _ = machine.rig.poll(&mut call);
                for _ in 0..steps {
                    machine.rig.step_committer();
                    machine.rig.step_applier();
                }
                drop(call);
                match end {
                    0 => machine.rig.settle(),
                    1 => drop(machine.reopen(Stop::Kill)),
                    2 => drop(machine.reopen(Stop::PowerCut)),
                    _ => drop(machine.reopen(Stop::KillWithoutIndex)),
                }
                assert_eq!(all(&machine).len(), 600, "after {steps} steps");
                redrive(&machine, source);
                assert_eq!(machine.counts("q"), [600, 0, 0, 0], "after {steps} steps, end {end}");
                assert_eq!(machine.drain("q"), bodies, "each once, in order");
                machine.leave();
            }
        }
    }
}

/// BB-094: a disk that is full in the middle of it refuses, and the rest is redriven later.
#[test]
fn a_redrive_on_a_full_disk_stops_without_a_loss() {
    let machine = Machine::new();
    with_dead_letters(&machine, 1);
    machine.rig.run(machine.queue("q").send_batch((0..600).map(|n| format!("{n}")))).unwrap();
    let held = machine.take_many("q", 1000);
    let reject = held.iter().map(reappear::Delivery::receipt);
    assert_eq!(machine.rig.run(machine.queue("q").reject_many(reject, "no")).unwrap().len(), 600);
    let used: u64 = machine.rig.disk().list_raw().iter().map(|(_, len)| len).sum();
    machine.rig.disk().set_capacity(Some(used));
    let refused = machine.rig.try_run(machine.queue("dead").redrive(RedriveFilter::default(), None));
    machine.rig.disk().set_capacity(None);
    if let Some(Err(error)) = refused {
        assert_eq!(error.kind(), ErrorKind::Full);
    }
    machine.pass(secs(1));
    assert_eq!(all(&machine).len(), 600);
    redrive(&machine, "dead");
    assert_eq!(machine.counts("q"), [600, 0, 0, 0]);
}

/// BB-095: what was taken out of a dead-letter queue stays out.
#[test]
fn what_was_removed_from_a_dead_letter_queue_stays_removed() {
    for stop in STOPS {
        for way in 0..3 {
            let machine = Machine::new();
            with_dead_letters(&machine, 1);
            for body in 0..5 {
                machine.send("q", body.to_string());
            }
            assert_eq!(exhaust(&machine, "q"), 5);
            assert_eq!(machine.counts("dead"), [5, 0, 0, 0]);
            match way {
                0 => assert_eq!(machine.drain("dead").len(), 5),
                1 => assert_eq!(machine.rig.run(machine.queue("dead").purge(&[State::Ready])).unwrap(), 5),
                _ => assert_eq!(redrive(&machine, "dead"), 5),
            }
            machine.reopen(stop);
            machine.reopen(Stop::KillWithoutIndex);
            machine.pass(Duration::from_secs(86_400));
            assert_eq!(machine.counts("dead"), [0; 4], "{stop:?}, way {way}");
            assert_eq!(machine.counts("q")[0], if way == 2 { 5 } else { 0 });
        }
    }
}
