//! Cases from public reports: order and starvation (17), purge and deletion (18), ids (20).

use reappear::{Backoff, Delivery, ErrorKind, MessageId, Nack, NewMessage, OpenReport, QueueOptions, State, Timestamp};
use std::collections::BTreeSet;
use std::time::Duration;

use super::machine::{Machine, STOPS, Stop, kind, millis, secs, small};

fn disk_len(machine: &Machine) -> u64 {
    machine.rig.disk().list_raw().iter().map(|(_, len)| len).sum()
}

/// BB-115: a nack costs the log a few bytes and never the body; the disk stays small.
#[test]
fn a_nack_loop_copies_no_bodies() {
    let machine = Machine::with(small().segment_len(64 * 1024));
    machine.made("q", QueueOptions::new().max_attempts(None).backoff(Backoff::NONE));
    let queue = machine.queue("q");
    let count = 50;
    machine.rig.run(queue.send_batch((0..count).map(|_| vec![7; 1024]))).unwrap();
    let rounds = 40;
    let before = machine.rig.run(machine.store().stats()).unwrap();
    for _ in 0..rounds {
        let held = machine.take_many("q", count);
        assert_eq!(held.len(), count);
        let receipts = held.iter().map(Delivery::receipt);
        let nacked = machine.rig.run(queue.nack_many(receipts, Nack::new())).unwrap();
        assert!(nacked.iter().all(Result::is_ok));
    }
    let after = machine.rig.run(machine.store().stats()).unwrap();
    let records = after.records - before.records;
    assert!(records <= 2 * rounds * count as u64 + rounds, "{records} records");
    // One nack by itself: two blocks for the hand-out and the nack, at most, and no copy of a body.
    let one = machine.took("q");
    let len = machine.rig.run(machine.store().stats()).unwrap().log_len;
    machine.rig.run(one.nack()).unwrap();
    let grown = machine.rig.run(machine.store().stats()).unwrap().log_len.saturating_sub(len);
    assert!(grown <= 512, "one nack took {grown} bytes");
}

/// BB-115: what the loop wrote is given back, so that the disk does not fill.
#[test]
fn a_nack_loop_does_not_fill_the_disk() {
    let segment = 64 * 1024;
    let machine = Machine::with(small().segment_len(segment));
    machine.made("q", QueueOptions::new().max_attempts(None).backoff(Backoff::NONE));
    let queue = machine.queue("q");
    machine.rig.run(queue.send_batch((0..50).map(|_| vec![7; 1024]))).unwrap();
    for _ in 0..120 {
        let receipts: Vec<_> = machine.take_many("q", 50).iter().map(Delivery::receipt).collect();
        let nacked = machine.rig.run(queue.nack_many(receipts, Nack::new())).unwrap();
        assert!(nacked.iter().all(Result::is_ok));
        machine.pass(secs(1));
        machine.rig.step_keeper();
    }
    machine.pass(secs(60));
    let limit = 2 * 50 * 1100 + 5 * u64::from(segment);
    assert!(disk_len(&machine) <= limit, "{} bytes on disk, {limit} allowed", disk_len(&machine));
}

/// BB-116: messages never received keep the order of sending over restarts of any kind.
#[test]
fn messages_keep_their_order_over_restarts() {
    let machine = Machine::new();
    let bodies: Vec<String> = (0..500).map(|n| format!("{n}")).collect();
    for part in bodies.chunks(25) {
        machine.rig.run(machine.queue("q").send_batch(part.iter().map(String::as_str))).unwrap();
    }
    for stop in STOPS.into_iter().cycle().take(8) {
        machine.reopen(stop);
        let seen: Vec<_> = machine.peek("q").into_iter().map(|view| view.body).collect();
        assert!(seen.iter().eq(bodies.iter().map(String::as_bytes).collect::<Vec<_>>().iter()), "{stop:?}");
    }
    assert_eq!(machine.drain("q"), bodies);
}

/// BB-116: what was received, delayed or given back stands where it stood, restart or not.
#[test]
fn a_message_never_loses_its_place() {
    for stop in [None, Some(Stop::Close), Some(Stop::Kill), Some(Stop::PowerCut), Some(Stop::KillWithoutIndex)] {
        let machine = Machine::new();
        machine.made("q", QueueOptions::new().max_attempts(None).backoff(Backoff::NONE));
        let mut expected = Vec::new();
        for n in 0..300 {
            let delay = if n % 3 == 1 { millis(1 + n * 7 % 900) } else { Duration::ZERO };
            let priority = if n % 10 == 0 { 5 } else { 0 };
            machine.send("q", NewMessage::new(format!("{n}")).delay(delay).priority(priority));
            expected.push((-priority, n));
        }
        expected.sort_unstable();
        let held = machine.take_many("q", 100);
        for (at, job) in held.iter().enumerate() {
            match at % 4 {
                0 => machine.rig.run(job.nack()).unwrap(),
                1 => machine.rig.run(job.release()).unwrap(),
                2 => machine.rig.run(job.extend(secs(1))).unwrap(),
                _ => {}
            }
        }
        if let Some(stop) = stop {
            machine.reopen(stop);
        }
        machine.pass(secs(60));
        let order = machine.drain("q");
        assert_eq!(order, expected.iter().map(|(_, n)| n.to_string()).collect::<Vec<_>>(), "{stop:?}");
    }
}

/// BB-118: consumers of other queues are served whatever is going on in one.
#[test]
fn a_busy_queue_does_not_starve_the_others() {
    let machine = Machine::new();
    for round in 0..20 {
        machine.rig.run(machine.queue("a").send_batch((0..2_000).map(|n| format!("{n}")))).unwrap();
        machine.send("b", format!("{round}"));
        machine.send("c", format!("{round}"));
        let (a, b, c) = (machine.queue("a"), machine.queue("b"), machine.queue("c"));
        let mut busy: Vec<_> = (0..4).map(|_| Box::pin(a.receive().max(1000).many())).collect();
        let mut others = [Box::pin(b.receive().one()), Box::pin(c.receive().one())];
        for call in &mut busy[..2] {
            assert!(machine.rig.poll(call).is_none());
        }
        for call in &mut others {
            assert!(machine.rig.poll(call).is_none());
        }
        for call in &mut busy[2..] {
            assert!(machine.rig.poll(call).is_none());
        }
        // Two turns: what does not fit into one frame goes into the next.
        machine.rig.step_committer();
        machine.rig.step_committer();
        let served = others.each_mut().map(|call| machine.rig.poll(call).expect("served at once"));
        for job in served {
            let job = job.unwrap().unwrap();
            assert_eq!(job.body(), format!("{round}").as_bytes());
            machine.ack(&job);
        }
        machine.rig.run(a.purge(&State::ALL)).unwrap();
    }
}

/// BB-119: a place in flight is free again as soon as its message is not in flight any more.
#[test]
fn the_limit_in_flight_counts_only_what_is_in_flight() {
    type Way = (&'static str, fn(&Machine, Vec<Delivery>));
    let ways: [Way; 7] = [
        ("lapse", |m, _| m.pass(secs(60))),
        ("purge", |m, _| {
            m.rig.run(m.queue("q").purge(&State::ALL)).unwrap();
        }),
        ("ack", |m, held| held.iter().for_each(|job| m.ack(job))),
        ("reject", |m, held| held.iter().for_each(|job| m.rig.run(job.reject("no")).unwrap())),
        ("nack", |m, held| held.iter().for_each(|job| m.rig.run(job.nack()).unwrap())),
        ("delete and create", |m, _| {
            m.rig.run(m.queue("q").delete(true)).unwrap();
            m.made("q", QueueOptions::new().max_in_flight(10));
        }),
        ("kill and lapse", |m, _| {
            m.reopen(Stop::Kill);
            assert!(m.take("q").is_none(), "still in flight");
            m.pass(secs(60));
        }),
    ];
    for (way, free) in ways {
        let machine = Machine::new();
        machine.made("q", QueueOptions::new().max_in_flight(10));
        machine.rig.run(machine.queue("q").send_batch((0..10).map(|n| format!("{n}")))).unwrap();
        let held = machine.take_many("q", 100);
        assert_eq!(held.len(), 10);
        machine.send("q", "one more");
        assert!(machine.take("q").is_none(), "{way}: the limit holds");
        free(&machine, held);
        if machine.counts("q")[0] == 0 {
            machine.send("q", "one more");
        }
        assert!(machine.take("q").is_some(), "{way}");
    }
}

/// BB-119: and a limit that was raised or lifted frees places at once, for those who wait too.
#[test]
fn raising_the_limit_in_flight_serves_who_waits() {
    for limit in [Some(3), None] {
        let machine = Machine::new();
        machine.made("q", QueueOptions::new().max_in_flight(2));
        machine.rig.run(machine.queue("q").send_batch(["a", "b", "c"])).unwrap();
        let _held = machine.take_many("q", 10);
        let queue = machine.queue("q");
        let mut waiting = Box::pin(queue.receive().wait(secs(30)).one());
        assert!(machine.rig.poll(&mut waiting).is_none());
        machine.rig.settle();
        assert!(machine.rig.poll(&mut waiting).is_none());
        machine.rig.run(queue.configure(QueueOptions::new().max_in_flight(limit))).unwrap();
        assert_eq!(machine.rig.poll(&mut waiting).unwrap().unwrap().unwrap().body(), b"c");
    }
}

/// BB-121: what was purged is gone for good: over deadlines, waits, restarts and rebuilds.
#[test]
fn purged_messages_never_come_back() {
    for stop in STOPS {
        let machine = Machine::new();
        let queue = machine.queue("q");
        for n in 0..30 {
            let delay = if n % 3 == 0 { secs(n) } else { Duration::ZERO };
            machine.send("q", NewMessage::new(format!("{n}")).delay(delay).ttl(secs(1000)));
        }
        let held = machine.take_many("q", 8);
        machine.rig.run(held[0].reject("no")).unwrap();
        machine.rig.run(held[1].extend(secs(5))).unwrap();
        machine.pass(secs(5) - millis(1));
        // One deadline passes while the purge is on its way.
        let mut purge = Box::pin(queue.purge(&State::ALL));
        assert!(machine.rig.poll(&mut purge).is_none());
        machine.rig.clock().advance(millis(1));
        machine.rig.settle();
        assert_eq!(machine.rig.poll(&mut purge).unwrap().unwrap(), 30);
        let mut polls: Vec<_> = (0..5).map(|_| Box::pin(queue.receive().wait(secs(10_000)).one())).collect();
        for poll in &mut polls {
            assert!(machine.rig.poll(poll).is_none());
        }
        machine.pass(secs(2_000));
        for poll in &mut polls {
            assert!(machine.rig.poll(poll).is_none(), "nothing comes");
        }
        for job in &held {
            assert_eq!(kind(machine.rig.run(machine.store().ack(&job.receipt()))), ErrorKind::NotFound);
        }
        machine.reopen(stop);
        machine.reopen(Stop::KillWithoutIndex);
        assert_eq!(machine.counts("q"), [0; 4], "{stop:?}");
        assert!(machine.peek("q").is_empty());
    }
}

/// BB-121: a purge takes the states it is given and no other.
#[test]
fn a_purge_takes_only_the_states_that_are_named() {
    let all = [State::Ready, State::Delayed, State::InFlight, State::Dead];
    for named in 0..16_usize {
        for stop in [None, Some(Stop::KillWithoutIndex)] {
            let machine = Machine::new();
            let queue = machine.queue("q");
            machine.rig.run(queue.send_batch((0..6).map(|n| format!("{n}")))).unwrap();
            let held = machine.take_many("q", 3);
            machine.rig.run(held[0].reject("no")).unwrap();
            machine.send("q", NewMessage::new("late").delay(secs(50)));
            let states: Vec<State> =
                all.into_iter().enumerate().filter(|(n, _)| named & (1 << n) > 0).map(|(_, s)| s).collect();
            let before = machine.counts("q");
            assert_eq!(before, [3, 1, 2, 1]);
            let gone: u64 = (0..4).filter(|n| named & (1 << n) > 0).map(|n| before[n]).sum();
            assert_eq!(machine.rig.run(queue.purge(&states)).unwrap(), gone);
            if let Some(stop) = stop {
                machine.reopen(stop);
            }
            let left: Vec<u64> = (0..4).map(|n| if named & (1 << n) > 0 { 0 } else { before[n] }).collect();
            assert_eq!(machine.counts("q")[..], left[..], "{states:?}");
        }
    }
}

/// BB-122: after many purges and deletions the store is as small and opens as before.
#[test]
fn many_purges_and_deletions_leave_nothing_behind() {
    let machine = Machine::new();
    let mut looks: Vec<(usize, OpenReport, u64)> = Vec::new();
    for round in 0..6 {
        for _ in 0..60 {
            machine.send("q", "x");
            assert_eq!(machine.rig.run(machine.queue("q").purge(&[State::Ready])).unwrap(), 1);
            machine.rig.run(machine.queue("come and go").create(None)).unwrap();
            machine.send("come and go", "y");
            assert_eq!(machine.rig.run(machine.queue("come and go").delete(true)).unwrap(), 1);
        }
        machine.pass(secs(11));
        machine.pass(secs(11));
        let report = machine.reopen(if round % 2 == 0 { Stop::Close } else { Stop::Kill });
        looks.push((machine.rig.disk().list_raw().len(), report, disk_len(&machine)));
        assert_eq!(machine.rig.run(machine.store().queues()).unwrap().len(), 1);
        assert_eq!(machine.counts("q"), [0; 4]);
    }
    let (first, last) = (&looks[0], &looks[5]);
    assert!(last.0 <= first.0 + 4, "files: {} at first, {} at last", first.0, last.0);
    assert!(last.2 <= first.2 + 5 * 16 * 1024, "bytes: {} at first, {} at last", first.2, last.2);
}

/// BB-128: an empty store goes on counting where it was: no id comes twice, no receipt fits anew.
#[test]
fn ids_go_on_after_everything_was_consumed() {
    for stop in STOPS {
        let machine = Machine::with(small().segment_len(4096));
        let mut last = MessageId::new(0);
        let mut receipts = Vec::new();
        for _ in 0..3 {
            for body in 0..10 {
                let id = machine.send("q", body.to_string());
                assert!(id > last, "{stop:?}");
                last = id;
            }
            for job in machine.take_many("q", 10) {
                receipts.push(job.receipt());
                machine.ack(&job);
            }
            // Time for everything that reclaims what is dead.
            machine.pass(secs(30));
            machine.rig.step_keeper();
            machine.pass(secs(30));
            machine.reopen(stop);
            let id = machine.send("q", "new");
            assert!(id > last, "{stop:?}");
            last = id;
            for receipt in &receipts {
                assert_eq!(kind(machine.rig.run(machine.store().ack(receipt))), ErrorKind::NotFound);
            }
            machine.ack(&machine.took("q"));
        }
    }
}

/// BB-130: restarts as fast as can be, with the clock still or going back, give no id twice.
#[test]
fn rapid_restarts_give_no_id_twice() {
    for back in [0, 3_600_000] {
        let machine = Machine::new();
        let mut ids = BTreeSet::new();
        let mut wall = 1_700_000_000_000_u64;
        for restart in 0..60 {
            for _ in 0..3 {
                let id = machine.send("q", "x");
                assert!(ids.last().is_none_or(|last| *last < id), "restart {restart}");
                ids.insert(id);
            }
            machine.stop(STOPS[restart % 4]);
            wall -= back;
            machine.rig.clock().set_wall(Timestamp::from_millis(wall));
            machine.open();
        }
        assert_eq!(ids.len(), 180);
        assert_eq!(machine.peek("q").len(), 180);
    }
}
