//! Cases from public reports: clocks (09) and delays (14).

use reappear::{Backoff, ErrorKind, Nack, NewMessage, QueueOptions, Timestamp};
use std::time::Duration;

use super::machine::{Machine, STOPS, Stop, kind, millis, secs};

fn wall(machine: &Machine) -> u64 {
    machine.rig.run(machine.store().stats()).unwrap().now.as_millis()
}

/// BB-055: a wall clock set back delays neither a deadline nor a delay.
#[test]
fn a_clock_set_back_delays_nothing() {
    for back in [secs(1), secs(12 * 3600), secs(40 * 365 * 86_400)] {
        let machine = Machine::new();
        machine.send("held", "a");
        let _held = machine.take_for("held", secs(10)).unwrap();
        machine.send("late", NewMessage::new("b").delay(secs(10)));
        machine.pass(secs(5));
        let at = wall(&machine).saturating_sub(u64::try_from(back.as_millis()).unwrap());
        machine.rig.clock().set_wall(Timestamp::from_millis(at));
        machine.pass(millis(4_999));
        assert!(machine.take("held").is_none() && machine.take("late").is_none());
        machine.pass(millis(1));
        assert_eq!(machine.took("held").receive_count(), 2);
        assert_eq!(machine.took("late").receive_count(), 1);
    }
}

/// BB-055: nor does one set back while the store is closed.
#[test]
fn a_clock_set_back_between_two_openings_makes_no_wait_longer() {
    for stop in STOPS {
        let machine = Machine::new();
        machine.send("q", "a");
        let _held = machine.take_for("q", secs(10)).unwrap();
        machine.pass(secs(4));
        // Something is written, so that the time is known.
        machine.send("other", "b");
        machine.stop(stop);
        let noon = Timestamp::from_millis(1_600_000_000_000);
        machine.rig.clock().set_wall(noon);
        let report = machine.open();
        assert!(report.clock_step_back.is_some(), "{stop:?}: {report:?}");
        machine.pass(millis(5_999));
        assert!(machine.take("q").is_none(), "{stop:?}");
        machine.pass(millis(1));
        assert_eq!(machine.took("q").receive_count(), 2, "{stop:?}");
    }
}

/// BB-056: a wall clock moved anywhere makes no timer fire early and none late.
#[test]
fn a_clock_that_jumps_fires_no_timer() {
    let day = 86_400_000;
    for jump in [Some(day), Some(-day), Some(50 * 365 * day), None] {
        let machine = Machine::new();
        for body in 0..40 {
            machine.send("q", body.to_string());
        }
        let held = machine.rig.run(machine.queue("q").receive().max(40).visibility(secs(3600)).many()).unwrap();
        assert_eq!(held.len(), 40);
        let now = i64::try_from(wall(&machine)).unwrap();
        let to = jump.map_or(0, |jump: i64| u64::try_from(now + jump).unwrap());
        machine.rig.clock().set_wall(Timestamp::from_millis(to));
        machine.rig.settle();
        assert_eq!(machine.counts("q"), [0, 0, 40, 0], "{jump:?}");
        machine.pass(millis(3_599_999));
        assert_eq!(machine.counts("q"), [0, 0, 40, 0], "{jump:?}");
        machine.pass(millis(1));
        assert_eq!(machine.counts("q"), [40, 0, 0, 0], "{jump:?}");
        // After a restart the deadlines would be where the clock now stands, not where it stood.
        machine.leave();
    }
}

/// BB-058: what opening takes is not added to a delay: deadlines are points in time.
#[test]
fn the_time_a_store_is_closed_counts_towards_a_delay() {
    for stop in STOPS {
        for down in [0, 1_000, 3_000, 4_999, 5_000, 9_000] {
            let machine = Machine::new();
            for body in 0..10 {
                machine.send("q", NewMessage::new(body.to_string()).delay(secs(5)));
            }
            machine.stop(stop);
            machine.rig.clock().advance(millis(down));
            machine.open();
            if down < 5_000 {
                machine.pass(millis(4_999 - down));
                assert_eq!(machine.counts("q"), [0, 10, 0, 0], "{stop:?} down for {down} ms");
                machine.pass(millis(1));
            }
            assert_eq!(machine.counts("q"), [10, 0, 0, 0], "{stop:?} down for {down} ms");
        }
    }
}

/// BB-059: times above the limits are refused, and nothing is written.
#[test]
fn times_out_of_range_are_refused() {
    let machine = Machine::new();
    let queue = machine.made("q", QueueOptions::new());
    let rig = &machine.rig;
    let over = secs(43_200) + millis(1);
    for visibility in [Duration::ZERO, over, secs(u32::MAX.into()), Duration::MAX] {
        assert_eq!(kind(rig.run(queue.receive().visibility(visibility).one())), ErrorKind::InvalidInput);
    }
    let century = secs(100 * 366 * 86_400);
    for delay in [century + millis(1), secs(u32::MAX.into()), Duration::MAX] {
        assert_eq!(kind(rig.run(queue.send(NewMessage::new("x").delay(delay)))), ErrorKind::InvalidInput);
        assert_eq!(kind(rig.run(queue.send(NewMessage::new("x").ttl(delay)))), ErrorKind::InvalidInput);
    }
    assert_eq!(kind(rig.run(queue.send(NewMessage::new("x").ttl(Duration::ZERO)))), ErrorKind::InvalidInput);
    machine.send("q", "a");
    let job = machine.took("q");
    for by in [over, secs(u32::MAX.into()), Duration::MAX] {
        assert_eq!(kind(rig.run(job.extend(by))), ErrorKind::InvalidInput);
    }
    for delay in [century + millis(1), Duration::MAX] {
        assert_eq!(kind(rig.run(job.nack_with(Nack::new().delay(delay)))), ErrorKind::InvalidInput);
    }
    assert_eq!(machine.peek_one("q").visible_at, job.visible_at(), "refused calls change nothing");
}

/// BB-059: at, just before and just after a deadline no figure wraps; the largest times are taken.
#[test]
fn figures_at_a_deadline_are_zero_and_never_wrap() {
    let machine = Machine::new();
    let queue = machine.queue("q");
    machine.send("q", "a");
    let job = machine.took("q");
    let stats = |name| machine.rig.run(machine.queue(name).stats()).unwrap();
    for (pass, in_flight) in [(59_999, 1), (1, 0), (1, 0), (86_400_000, 0)] {
        machine.pass(millis(pass));
        let now = stats("q");
        assert_eq!((now.in_flight, now.ready), (in_flight, 1 - in_flight));
        assert_eq!(now.oldest_in_flight.is_some(), in_flight == 1);
        assert!(now.oldest_ready.is_none_or(|age| age < secs(100_000)), "{now:?}");
    }
    machine.ack(&job);
    // The smallest time is one millisecond, not none.
    machine.send("q", NewMessage::new("b").delay(Duration::from_nanos(1)));
    assert_eq!(machine.counts("q"), [0, 1, 0, 0]);
    machine.pass(millis(1));
    assert_eq!(machine.counts("q"), [1, 0, 0, 0]);
    let held = machine.take_for("q", Duration::from_nanos(1)).unwrap();
    assert_eq!(machine.counts("q"), [0, 0, 1, 0]);
    machine.pass(millis(1));
    assert_eq!(machine.counts("q"), [1, 0, 0, 0]);
    machine.ack(&held);
    // The longest delay there is, and a wait without end.
    machine.send("q", NewMessage::new("c").delay(secs(100 * 366 * 86_400)));
    let mut waiting = Box::pin(queue.receive().wait(Duration::MAX).one());
    assert!(machine.rig.poll(&mut waiting).is_none());
    machine.pass(secs(365 * 86_400));
    assert!(machine.rig.poll(&mut waiting).is_none());
    assert_eq!(machine.counts("q"), [0, 1, 0, 0]);
}

/// BB-097: a delay goes on over a restart and needs no call to end.
#[test]
fn a_delayed_message_is_delivered_at_its_time_after_a_restart() {
    for stop in STOPS {
        for polls in [true, false] {
            let machine = Machine::new();
            machine.send("q", NewMessage::new("a").delay(secs(3)));
            machine.pass(secs(1));
            machine.reopen(stop);
            let queue = machine.queue("q");
            let mut poll = Box::pin(queue.receive().wait(secs(60)).one());
            if polls {
                assert!(machine.rig.poll(&mut poll).is_none());
            }
            machine.pass(millis(1_999));
            assert!(!polls || machine.rig.poll(&mut poll).is_none(), "{stop:?}: not before");
            machine.pass(millis(1));
            let got = if polls { machine.rig.poll(&mut poll).unwrap().unwrap() } else { machine.take("q") };
            assert_eq!(got.expect("delivered at 3 s").receive_count(), 1, "{stop:?}");
        }
    }
}

/// BB-098: over days of delays, set, cancelled and fired in any order, none is ever late.
#[test]
fn delayed_messages_go_on_being_promoted_for_days() {
    let machine = Machine::new();
    let mut dice = 0x2545_f491_4f6c_dd1d_u64;
    let mut roll = |below: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % below
    };
    let until = secs(10 * 86_400);
    let mut time = Duration::ZERO;
    let mut fired = 0;
    machine.send("q", NewMessage::new("job").delay(secs(2)));
    let mut due = secs(2);
    while time < until {
        // Others come and go meanwhile: a timer that is set and cancelled must leave nothing.
        machine.send("noise", NewMessage::new("n").delay(millis(1 + roll(5_000_000))));
        if let Some(job) = machine.take("noise") {
            if roll(2) == 0 { machine.ack(&job) } else { machine.rig.run(job.extend(secs(1 + roll(9_000)))).unwrap() }
        }
        let early = millis(roll(u64::try_from((due - time).as_millis()).unwrap()));
        machine.pass(early);
        assert!(machine.take("q").is_none(), "not before its time");
        machine.pass(due - time - early);
        time = due;
        let job = machine.take("q").unwrap_or_else(|| panic!("late at {time:?}, after {fired}"));
        machine.ack(&job);
        fired += 1;
        let delay = secs(2) + millis(roll(3_598_000));
        machine.send("q", NewMessage::new("job").delay(delay));
        due = time + delay;
    }
    assert!(fired > 300, "{fired}");
}

/// BB-100: among messages that become due at the same moment, priority decides.
#[test]
fn of_messages_due_at_once_the_more_urgent_comes_first() {
    let machine = Machine::new();
    machine.send("q", NewMessage::new("low").delay(secs(3)).priority(-5));
    machine.send("q", NewMessage::new("high").delay(secs(3)).priority(5));
    machine.send("q", NewMessage::new("middle").delay(secs(3)));
    let queue = machine.queue("q");
    let mut waiting = Box::pin(queue.receive().wait(secs(10)).one());
    assert!(machine.rig.poll(&mut waiting).is_none());
    machine.pass(secs(3));
    let first = machine.rig.poll(&mut waiting).unwrap().unwrap().unwrap();
    assert_eq!(first.body(), b"high");
    machine.ack(&first);
    assert_eq!(machine.drain("q"), ["middle", "low"]);
}

/// BB-101: a nack's delay holds and its attempt counts; a move and a redrive are without delay.
#[test]
fn a_nack_says_later_but_count() {
    for stop in [None, Some(Stop::Kill), Some(Stop::KillWithoutIndex)] {
        let machine = Machine::new();
        machine.made("dead", QueueOptions::new().backoff(Backoff::fixed(secs(5))));
        let dead = machine.queue("dead").name().clone();
        let source = QueueOptions::new().backoff(Backoff::fixed(secs(5))).max_attempts(3).dead_letter(dead);
        machine.made("q", source);
        machine.send("q", "a");
        machine.rig.run(machine.took("q").nack_with(Nack::new().delay(secs(2)))).unwrap();
        let maybe = |machine: &Machine| stop.map(|stop| machine.reopen(stop));
        maybe(&machine);
        machine.pass(millis(1_999));
        assert!(machine.take("q").is_none());
        machine.pass(millis(1));
        let second = machine.took("q");
        assert_eq!((second.receive_count(), second.attempts()), (2, 2));
        // Without a delay of its own: the queue's.
        machine.rig.run(second.nack()).unwrap();
        maybe(&machine);
        machine.pass(millis(4_999));
        assert!(machine.take("q").is_none());
        machine.pass(millis(1));
        machine.rig.run(machine.took("q").nack()).unwrap();
        maybe(&machine);
        assert_eq!(machine.counts("dead"), [1, 0, 0, 0], "a move has no delay");
        assert_eq!(machine.rig.run(machine.queue("dead").redrive(Default::default(), None)).unwrap(), 1);
        maybe(&machine);
        let back = machine.took("q");
        assert_eq!((back.receive_count(), back.attempts()), (4, 1), "nor has a redrive");
    }
}
