//! A delayed message never came, or what was purged came back: a purge met something that was on its way. Answers
//! of the index from before a purge are void, but the one that says what happens next was taken for "nothing"; and
//! messages whose time had come, but for which the frame had no room, were purged as what they had been before.

use reappear::{NewMessage, QueueOptions, State};

use super::machine::{Machine, secs, small};

/// What is delayed beyond the stretch whose events are in memory comes in time, although its queue was purged while
/// the index was asked for the next stretch.
#[test]
fn a_purge_does_not_lose_what_is_about_to_happen() {
    let machine = Machine::new();
    machine.send("q", "ready");
    machine.send("q", NewMessage::new("delayed").delay(secs(70)));
    machine.rig.settle();
    machine.rig.clock().advance(secs(45));
    machine.rig.step_committer();
    let queue = machine.queue("q");
    let mut purge = Box::pin(queue.purge(&[State::Ready]));
    assert!(machine.rig.poll(&mut purge).is_none());
    machine.rig.step_committer();
    assert_eq!(machine.rig.run(purge).unwrap(), 1);
    machine.pass(secs(30));
    assert_eq!(machine.counts("q"), [1, 0, 0, 0]);
    assert_eq!(machine.drain("q"), ["delayed"]);
}

/// More messages die at once than one frame takes, and a purge comes just then: all of them are dead by their time.
#[test]
fn a_purge_takes_each_message_for_what_it_is_by_its_time() {
    let gone_of = |states: &[State]| {
        let machine = Machine::with(small().segment_len(1024 * 1024).window(10_000));
        machine.made("q", QueueOptions::new().max_attempts(1));
        for _ in 0..8 {
            machine.rig.run(machine.queue("q").send_batch((0..1000).map(|_| "x"))).unwrap();
            assert_eq!(
                machine.rig.run(machine.queue("q").receive().max(1000).visibility(secs(5)).many()).unwrap().len(),
                1000
            );
        }
        machine.rig.clock().advance(secs(6));
        let gone = machine.rig.run(machine.queue("q").purge(states)).unwrap();
        machine.rig.settle();
        assert_eq!(machine.counts("q"), [0, 0, 0, 8000 - gone]);
        gone
    };
    assert_eq!(gone_of(&[State::InFlight]), 0);
    assert_eq!(gone_of(&[State::Ready]), 0);
    assert_eq!(gone_of(&[State::Dead]), 8000);
}
