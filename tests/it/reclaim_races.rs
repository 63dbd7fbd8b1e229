//! An acknowledged message came back, or the store stopped with a counter below zero: what is carried
//! to the log's end was taken from an answer of the index that settles had overtaken meanwhile. The
//! tables forget who is gone once the index knows, but the older answer did not know it yet.

use reappear::{Delivery, Nack, QueueOptions, State};
use std::collections::BTreeSet;
use std::time::Duration;

use super::machine::{Machine, millis, secs, small};

/// A log whose oldest segment is nearly all that lives: several slices of it will be carried on.
fn with_much_to_carry() -> (Machine, Vec<Delivery>) {
    let machine = Machine::with(small().segment_len(1024 * 1024));
    machine.made("q", QueueOptions::new().max_attempts(None));
    machine.rig.run(machine.queue("q").send_batch((0..800).map(|_| vec![7; 1100]))).unwrap();
    let held = machine.rig.run(machine.queue("q").receive().max(1000).visibility(secs(40_000)).many()).unwrap();
    assert_eq!(held.len(), 800);
    for _ in 0..7 {
        machine.rig.run(machine.queue("noise").send_batch((0..4).map(|_| vec![1; 200_000]))).unwrap();
    }
    // All of it dies at once, and the index does not know it yet.
    let noise = machine.queue("noise");
    let mut purge = Box::pin(noise.purge(&[State::Ready]));
    assert!(machine.rig.poll(&mut purge).is_none());
    machine.rig.step_committer();
    assert_eq!(machine.rig.poll(&mut purge).expect("answered").unwrap(), 28);
    (machine, held)
}

/// One turn for each call, and one of the index after it, so that the carrying is overtaken at every
/// point. Returns how many bytes were carried on.
fn overtake<F: Future>(machine: &Machine, held: &[Delivery], act: impl Fn(Delivery) -> F) -> u64
where
    F::Output: std::fmt::Debug,
{
    machine.rig.clock().advance(secs(11));
    for job in held.iter().rev().take(400) {
        let mut call = Box::pin(act(job.clone()));
        assert!(machine.rig.poll(&mut call).is_none());
        machine.rig.step_committer();
        assert!(machine.rig.poll(&mut call).is_some(), "settled in one turn");
        machine.rig.clock().advance(millis(150));
        machine.rig.step_applier();
    }
    machine.pass(secs(11));
    machine.pass(secs(11));
    machine.rig.run(machine.store().stats()).unwrap().relocated_len
}

/// BB-133: an ack that overtakes the carrying of its message is not undone by it.
#[test]
fn an_acked_message_is_not_carried_back_to_life() {
    let (machine, held) = with_much_to_carry();
    let acked: BTreeSet<_> = held.iter().rev().take(400).map(Delivery::id).collect();
    let carried = overtake(&machine, &held, |job| async move { job.ack().await.unwrap() });
    assert!(carried > 0, "something was carried on");
    let back: Vec<_> = machine.peek("q").into_iter().map(|view| view.id).filter(|id| acked.contains(id)).collect();
    assert!(back.is_empty(), "{} acknowledged messages are back", back.len());
    assert_eq!(machine.counts("q"), [0, 0, 400, 0]);
}

/// BB-133: nor does carrying a message undo a nack that overtook it.
#[test]
fn a_carried_message_keeps_what_happened_to_it_meanwhile() {
    let (machine, held) = with_much_to_carry();
    let nacked: BTreeSet<_> = held.iter().rev().take(400).map(Delivery::id).collect();
    overtake(&machine, &held, |job| async move {
        job.nack_with(Nack::new().delay(Duration::from_secs(30_000)).error("it failed")).await.unwrap();
    });
    assert_eq!(machine.counts("q"), [0, 400, 400, 0]);
    for view in machine.peek("q") {
        let expected = nacked.contains(&view.id).then_some("it failed");
        assert_eq!(view.last_error.as_deref(), expected, "message {}", view.id);
    }
}

/// The committer died of it: what was carried had failed meanwhile, with a longer text than there was room for.
#[test]
fn a_longer_error_than_before_goes_with_the_next_load() {
    let (machine, held) = with_much_to_carry();
    machine.rig.clock().advance(secs(11));
    machine.rig.step_committer();
    machine.rig.step_applier();
    let last = held.iter().rev().take(20).map(Delivery::receipt);
    let queue = machine.queue("q");
    let nack = Nack::new().delay(secs(30_000)).error("e".repeat(4000));
    let mut call = Box::pin(queue.nack_many(last, nack));
    assert!(machine.rig.poll(&mut call).is_none());
    machine.rig.settle();
    assert!(machine.rig.run(call).unwrap().iter().all(Result::is_ok));
    machine.pass(secs(11));
    assert!(machine.rig.run(machine.store().stats()).unwrap().relocated_len > 0);
    assert_eq!(machine.counts("q"), [0, 20, 780, 0]);
}

/// BB-094: a redrive that was overtaken by an ack does not bring the message back.
#[test]
fn an_acked_message_is_not_redriven_back_to_life() {
    let machine = Machine::new();
    let dead = machine.made("dead", QueueOptions::new());
    machine.made("q", QueueOptions::new().max_attempts(1).dead_letter(dead.name().clone()));
    for body in ["acked", "redriven"] {
        machine.send("q", body);
        machine.rig.run(machine.took("q").reject("no")).unwrap();
    }
    let turn = |call: &mut dyn FnMut() -> bool| {
        assert!(!call());
        machine.rig.step_committer();
        call()
    };
    let mut redrive = Box::pin(dead.redrive(Default::default(), None));
    assert!(!turn(&mut || machine.rig.poll(&mut redrive).is_some()), "it waits for the index");
    let mut receive = Box::pin(dead.receive().one());
    let mut job = None;
    turn(&mut || {
        job = machine.rig.poll(&mut receive);
        job.is_some()
    });
    let job = job.unwrap().unwrap().unwrap();
    let mut ack = Box::pin(job.ack());
    assert!(turn(&mut || machine.rig.poll(&mut ack).is_some()), "acknowledged");
    // One more question, so that the index answers the redrive and then takes in the ack.
    let mut peek = Box::pin(dead.peek(None, 10));
    turn(&mut || machine.rig.poll(&mut peek).is_some());
    machine.rig.step_applier();
    machine.rig.settle();
    assert_eq!(machine.rig.poll(&mut redrive).unwrap().unwrap(), 1);
    assert_eq!(machine.counts("dead"), [0; 4]);
    assert_eq!(machine.drain("q"), ["redriven"]);
}
