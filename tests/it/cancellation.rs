//! Receives that are dropped at every point of their way: what they took is receivable at once, and
//! those who wait get it.
//!
//! A call is driven by hand: polled once, then the committer and the applier take turns in an order
//! of their own, then it is dropped. Every order up to a length is tried.

use reappear::{Delivery, NewMessage, QueueOptions, State};

use super::machine::{Machine, STOPS, secs};

/// Every order of turns up to this length.
const MAX_TURNS: u32 = 6;

/// Takes turns as the bits say, and polls where `polls` says.
fn turns(machine: &Machine, count: u32, order: u32) {
    for turn in 0..count {
        if order & (1 << turn) > 0 {
            machine.rig.step_committer();
        } else {
            machine.rig.step_applier();
        }
    }
}

fn every_order(mut test: impl FnMut(u32, u32)) {
    for count in 0..=MAX_TURNS {
        for order in 0..1 << count {
            test(count, order);
        }
    }
}

/// Three messages, as they must be while nobody has them.
fn assert_untouched(machine: &Machine, what: &str) {
    for view in machine.peek("q") {
        assert_eq!((view.state, view.attempts), (State::Ready, 0), "{what}");
        assert_eq!(view.epoch, view.receive_count, "{what}");
    }
    assert_eq!(machine.counts("q"), [3, 0, 0, 0], "{what}");
}

#[test]
fn a_receive_dropped_at_any_point_leaves_everything_receivable_at_once() {
    every_order(|count, order| {
        let machine = Machine::new();
        machine.made("q", QueueOptions::new().max_attempts(1));
        machine.rig.run(machine.queue("q").send_batch(["a", "b", "c"])).unwrap();
        let mut call = Box::pin(machine.queue("q").receive().max(2).wait(secs(60)).many());
        assert!(machine.rig.poll(&mut call).is_none());
        turns(&machine, count, order);
        drop(call);
        let what = format!("{count} turns, {order:b}");
        // The very next receive gets them: no time passes, and a limit of one attempt is not used up.
        let mut next = Box::pin(machine.queue("q").receive().max(10).many());
        assert!(machine.rig.poll(&mut next).is_none());
        machine.rig.step_committer();
        let got: Vec<Delivery> = machine.rig.poll(&mut next).expect(&what).unwrap();
        assert_eq!(got.iter().map(Delivery::body).collect::<Vec<_>>(), [b"a", b"b", b"c"], "{what}");
        assert!(got.iter().all(|job| job.attempts() == 1), "{what}");
        for job in &got {
            machine.rig.run(job.release()).unwrap();
        }
        assert_untouched(&machine, &what);
    });
}

#[test]
fn a_receive_dropped_before_it_was_polled_or_decided_takes_nothing() {
    let machine = Machine::new();
    machine.rig.run(machine.queue("q").send_batch(["a", "b", "c"])).unwrap();
    drop(machine.queue("q").receive().many());
    machine.rig.settle();
    let mut call = Box::pin(machine.queue("q").receive().max(3).many());
    assert!(machine.rig.poll(&mut call).is_none());
    drop(call);
    machine.rig.settle();
    assert_untouched(&machine, "never decided");
    assert!(machine.peek("q").iter().all(|view| view.receive_count == 0));
}

#[test]
fn what_a_dropped_receive_had_goes_to_those_who_wait() {
    every_order(|count, order| {
        for sent_first in [true, false] {
            let machine = Machine::new();
            let queue = machine.queue("q");
            if sent_first {
                machine.rig.run(queue.send_batch(["a", "b", "c"])).unwrap();
            }
            let mut first = Box::pin(queue.receive().max(3).wait(secs(60)).many());
            let mut others: Vec<_> = (0..3).map(|_| Box::pin(queue.receive().wait(secs(60)).one())).collect();
            assert!(machine.rig.poll(&mut first).is_none());
            for other in &mut others {
                assert!(machine.rig.poll(other).is_none());
            }
            if !sent_first {
                let mut send = Box::pin(queue.send_batch(["a", "b", "c"]));
                assert!(machine.rig.poll(&mut send).is_none());
            }
            turns(&machine, count, order);
            drop(first);
            machine.rig.settle();
            let got = others.iter_mut().map(|other| machine.rig.poll(other).expect("served").unwrap().unwrap());
            let got: Vec<_> = got.map(|job| (job.body().to_vec(), job.attempts())).collect();
            let expected = ["a", "b", "c"].map(|body| (body.as_bytes().to_vec(), 1));
            assert_eq!(got, expected, "{count} turns, {order:b}: in the order of arrival");
        }
    });
}

#[test]
fn a_dropped_receive_that_a_crash_overtook_is_a_delivery_nobody_acknowledged() {
    for count in 0..4 {
        for stop in STOPS {
            let machine = Machine::new();
            machine.send("q", "a");
            let mut call = Box::pin(machine.queue("q").receive().one());
            assert!(machine.rig.poll(&mut call).is_none());
            turns(&machine, count, u32::MAX);
            drop(call);
            machine.reopen(stop);
            let view = machine.peek_one("q");
            assert!(view.attempts <= 1 && view.receive_count <= 1);
            machine.pass(secs(60));
            assert_eq!(machine.took("q").body(), b"a", "{stop:?}");
        }
    }
}

#[test]
fn dropping_a_receive_frees_its_place_under_the_limit_in_flight() {
    every_order(|count, order| {
        let machine = Machine::new();
        machine.made("q", QueueOptions::new().max_in_flight(1));
        machine.rig.run(machine.queue("q").send_batch(["a", "b"])).unwrap();
        let queue = machine.queue("q");
        let mut first = Box::pin(queue.receive().wait(secs(60)).one());
        let mut second = Box::pin(queue.receive().wait(secs(60)).one());
        assert!(machine.rig.poll(&mut first).is_none() && machine.rig.poll(&mut second).is_none());
        turns(&machine, count, order);
        drop(first);
        machine.rig.settle();
        let job = machine.rig.poll(&mut second).expect("the place is free").unwrap().unwrap();
        assert_eq!(job.body(), b"a", "{count} turns, {order:b}");
    });
}

#[test]
fn a_dropped_receive_gives_back_what_lies_cold() {
    every_order(|count, order| {
        if count < MAX_TURNS {
            return;
        }
        let machine = Machine::with(super::machine::small().window(1024));
        let messages = (0..1_600).map(|n| NewMessage::new(format!("{n}")).priority(if n % 2 == 0 { 1 } else { 0 }));
        machine.rig.run(machine.queue("q").send_batch(messages)).unwrap();
        machine.reopen(STOPS[0]);
        let mut call = Box::pin(machine.queue("q").receive().max(1000).many());
        assert!(machine.rig.poll(&mut call).is_none());
        turns(&machine, count, order);
        drop(call);
        let expected = (0..1_600).step_by(2).chain((1..1_600).step_by(2)).map(|n| n.to_string());
        assert_eq!(machine.drain("q"), expected.collect::<Vec<_>>(), "{order:b}");
        machine.leave();
    });
}
