//! Many waiters and few messages: whatever makes a message receivable wakes exactly one of those who
//! wait, the one who came first, and nobody who has gone takes a wake-up along.

use reappear::{Backoff, Delivery, Nack, NewMessage, Queue, QueueOptions, RedriveFilter};
use std::future::Future;
use std::pin::Pin;

use super::machine::{Machine, millis, secs};

type Wait = Pin<Box<dyn Future<Output = Result<Option<Delivery>, reappear::Error>>>>;

/// The messages before they become receivable, and what makes them so.
struct Source {
    name: &'static str,
    /// Puts this many messages where nobody can receive them.
    hide: fn(&Machine, usize) -> Vec<Delivery>,
    /// Makes them receivable.
    show: fn(&Machine, &[Delivery]),
}

fn send_all(machine: &Machine, count: usize) {
    machine.rig.run(machine.queue("q").send_batch((0..count).map(|n| format!("{n}")))).unwrap();
}

fn take_all(machine: &Machine, count: usize) -> Vec<Delivery> {
    send_all(machine, count);
    let held = machine.rig.run(machine.queue("q").receive().max(count).visibility(secs(20)).many()).unwrap();
    assert_eq!(held.len(), count);
    held
}

fn dead_all(machine: &Machine, count: usize) -> Vec<Delivery> {
    let held = take_all(machine, count);
    for job in &held {
        machine.rig.run(job.reject("no")).unwrap();
    }
    held
}

fn pause_all(machine: &Machine, count: usize) -> Vec<Delivery> {
    machine.rig.run(machine.queue("q").pause()).unwrap();
    send_all(machine, count);
    Vec::new()
}

fn delay_all(machine: &Machine, count: usize) -> Vec<Delivery> {
    let messages = (0..count).map(|n| NewMessage::new(format!("{n}")).delay(secs(20)));
    machine.rig.run(machine.queue("q").send_batch(messages)).unwrap();
    Vec::new()
}

/// All places in flight are taken by others; these messages wait behind them.
fn cap_all(machine: &Machine, count: usize) -> Vec<Delivery> {
    let cap = QueueOptions::new().max_in_flight(u32::try_from(count).unwrap());
    machine.rig.run(machine.queue("q").configure(cap)).unwrap();
    let held = take_all(machine, count);
    send_all(machine, count);
    held
}

const SOURCES: [Source; 10] = [
    Source {
        name: "send",
        hide: |_, count| {
            assert!(count > 0);
            Vec::new()
        },
        show: |machine, _| send_all(machine, 4),
    },
    Source { name: "delay", hide: delay_all, show: |machine, _| machine.pass(secs(20)) },
    Source { name: "deadline", hide: take_all, show: |machine, _| machine.pass(secs(20)) },
    Source {
        name: "nack",
        hide: take_all,
        show: |machine, held| {
            held.iter().for_each(|job| machine.rig.run(job.nack_with(Nack::new().delay(millis(0)))).unwrap());
        },
    },
    Source {
        name: "back-off",
        hide: take_all,
        show: |machine, held| {
            held.iter().for_each(|job| machine.rig.run(job.nack()).unwrap());
            machine.pass(secs(5));
        },
    },
    Source {
        name: "release",
        hide: take_all,
        show: |machine, held| held.iter().for_each(|job| machine.rig.run(job.release()).unwrap()),
    },
    Source {
        name: "shortened visibility",
        hide: take_all,
        show: |machine, held| {
            held.iter().for_each(|job| machine.rig.run(job.extend(secs(1))).unwrap());
            machine.pass(secs(1));
        },
    },
    Source {
        name: "redrive",
        hide: dead_all,
        show: |machine, held| {
            let done = machine.rig.run(machine.queue("q").redrive(RedriveFilter::default(), None)).unwrap();
            assert_eq!(done, held.len() as u64);
        },
    },
    Source {
        name: "resume",
        hide: pause_all,
        show: |machine, _| machine.rig.run(machine.queue("q").resume()).unwrap(),
    },
    Source {
        name: "room under the limit",
        hide: cap_all,
        show: |machine, held| held.iter().for_each(|job| machine.ack(job)),
    },
];

const MESSAGES: usize = 4;
const WAITERS: usize = 9;

fn waiters(machine: &Machine) -> Vec<Option<Wait>> {
    let wait = |_| {
        let mut wait: Wait = Box::pin(machine.queue("q").receive().wait(secs(3600)).one());
        assert!(machine.rig.poll(&mut wait).is_none());
        Some(wait)
    };
    (0..WAITERS).map(wait).collect()
}

fn prepared() -> Machine {
    let machine = Machine::new();
    let backoff = Backoff::fixed(secs(5));
    machine.made("q", QueueOptions::new().max_attempts(None).backoff(backoff));
    machine
}

/// Who was served, by number, with the body.
fn served(machine: &Machine, waits: &mut [Option<Wait>]) -> Vec<usize> {
    let mut served = Vec::new();
    for (number, slot) in waits.iter_mut().enumerate() {
        let got = slot.as_mut().and_then(|wait| machine.rig.poll(wait));
        if let Some(job) = got {
            let job = job.unwrap().expect("nobody is answered with nothing");
            std::mem::forget(job);
            served.push(number);
            *slot = None;
        }
    }
    served
}

#[test]
fn waiters_are_served_in_the_order_of_arrival_whatever_brings_the_messages() {
    for source in SOURCES {
        let machine = prepared();
        let held = (source.hide)(&machine, MESSAGES);
        let mut waits = waiters(&machine);
        machine.rig.settle();
        assert!(served(&machine, &mut waits).is_empty(), "{}: not before", source.name);
        (source.show)(&machine, &held);
        machine.rig.settle();
        assert_eq!(served(&machine, &mut waits), [0, 1, 2, 3], "{}", source.name);
        assert_eq!(machine.rig.run(machine.queue("q").stats()).unwrap().waiting_receivers, 5, "{}", source.name);
    }
}

#[test]
fn waiters_that_have_gone_are_passed_over_whatever_brings_the_messages() {
    for source in SOURCES {
        for gone in [0b1, 0b101, 0b11_0000, 0b1111, 0b1_0101_0101_u32] {
            for before in [true, false] {
                let machine = prepared();
                let held = (source.hide)(&machine, MESSAGES);
                let mut waits = waiters(&machine);
                machine.rig.settle();
                let mut cancel = || {
                    for (number, wait) in waits.iter_mut().enumerate() {
                        if gone & (1 << number) > 0 {
                            *wait = None;
                        }
                    }
                };
                if before {
                    cancel();
                    (source.show)(&machine, &held);
                } else {
                    // They are served, but have not looked yet: what they had goes on to the next.
                    (source.show)(&machine, &held);
                    cancel();
                }
                machine.rig.settle();
                let left: Vec<usize> = (0..WAITERS).filter(|number| gone & (1 << number) == 0).collect();
                let got = served(&machine, &mut waits);
                assert_eq!(got.len(), MESSAGES.min(left.len()), "{} {gone:b} {before}", source.name);
                if before {
                    assert_eq!(got, left[..got.len()], "{} {gone:b}", source.name);
                }
                let ready = machine.counts("q")[0];
                assert_eq!(ready, (MESSAGES - got.len()) as u64, "{}: the rest waits", source.name);
            }
        }
    }
}

/// A call that makes one message receivable.
async fn show_one(source: &str, queue: Queue, job: Option<Delivery>) {
    match (source, job) {
        ("nack", Some(job)) => job.nack_with(Nack::new().delay(millis(0))).await.unwrap(),
        ("release", Some(job)) => job.release().await.unwrap(),
        _ => drop(queue.send("x").await.unwrap()),
    }
}

#[test]
fn no_wake_up_is_lost_in_any_order_of_turns() {
    for source in ["nack", "release", "send"] {
        for order in 0..1 << 10_u32 {
            let machine = prepared();
            let held = if source == "send" { Vec::new() } else { take_all(&machine, 2) };
            let queue = machine.queue("q");
            let mut waits: Vec<Wait> = Vec::new();
            let mut calls: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
            for step in 0..5 {
                // Three come to wait, and in between two messages come.
                if step % 2 == 0 {
                    waits.push(Box::pin(queue.receive().wait(secs(3600)).one()));
                    assert!(machine.rig.poll(waits.last_mut().unwrap()).is_none());
                } else {
                    calls.push(Box::pin(show_one(source, queue.clone(), held.get(step / 2).cloned())));
                    assert!(machine.rig.poll(calls.last_mut().unwrap()).is_none());
                }
                match order >> (2 * step) & 3 {
                    0 => {}
                    1 => drop(machine.rig.step_committer()),
                    2 => machine.rig.step_applier(),
                    _ => machine.rig.settle(),
                }
            }
            // The first has gone, served or not.
            drop(waits.remove(0));
            machine.rig.settle();
            assert!(calls.iter_mut().all(|call| machine.rig.poll(call).is_some()));
            let got = waits.iter_mut().filter_map(|wait| machine.rig.poll(wait)).count();
            assert_eq!(got, 2, "{source}, {order:b}: both messages reach the two who are left");
            machine.leave();
        }
    }
}

#[test]
fn a_wait_that_ends_takes_nothing_from_those_who_go_on_waiting() {
    let machine = prepared();
    let queue = machine.queue("q");
    let mut short: Wait = Box::pin(queue.receive().wait(secs(10)).one());
    let mut long: Wait = Box::pin(queue.receive().wait(secs(100)).one());
    assert!(machine.rig.poll(&mut short).is_none() && machine.rig.poll(&mut long).is_none());
    machine.send("q", NewMessage::new("x").delay(secs(10) + millis(1)));
    machine.pass(secs(10));
    assert!(machine.rig.poll(&mut short).unwrap().unwrap().is_none(), "its time is up");
    assert!(machine.rig.poll(&mut long).is_none());
    machine.pass(millis(1));
    assert!(machine.rig.poll(&mut long).unwrap().unwrap().is_some());
    // At the very moment its time is up, a message still counts.
    let mut last: Wait = Box::pin(queue.receive().wait(secs(10)).one());
    assert!(machine.rig.poll(&mut last).is_none());
    machine.rig.settle();
    machine.send("q", NewMessage::new("y").delay(secs(10)));
    machine.pass(secs(10));
    assert_eq!(machine.rig.poll(&mut last).unwrap().unwrap().unwrap().body(), b"y");
}
