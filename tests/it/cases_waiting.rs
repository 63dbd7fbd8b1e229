//! Cases from public reports: long polls and lost wake-ups (15), cancellation (16).

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use pollster::block_on;
use reappear::testing::Rig;
use reappear::{Backoff, Durability, Nack, NewMessage, Options, QueueOptions, RedriveFilter, State, Store};

use super::machine::{Machine, STOPS, millis, secs};

/// BB-103: a message that becomes due ends a wait at that moment, sent before or during it.
#[test]
fn a_delayed_message_ends_a_wait_when_it_is_due() {
    for during in [false, true] {
        let machine = Machine::new();
        if !during {
            machine.send("q", NewMessage::new("a").delay(secs(2)));
        }
        let queue = machine.queue("q");
        let mut poll = Box::pin(queue.receive().wait(secs(10)).one());
        assert!(machine.rig.poll(&mut poll).is_none());
        machine.rig.settle();
        if during {
            machine.send("q", NewMessage::new("a").delay(secs(2)));
        }
        machine.pass(millis(1_999));
        assert!(machine.rig.poll(&mut poll).is_none());
        machine.pass(millis(1));
        assert!(machine.rig.poll(&mut poll).expect("it is due").unwrap().is_some());
    }
}

/// What makes a held message receivable again, and after how long.
type Way = (&'static str, fn(&Machine, &reappear::Delivery), Duration);

const WAYS: [Way; 8] = [
    ("nack", |m, job| m.rig.run(job.nack_with(Nack::new().delay(Duration::ZERO))).unwrap(), Duration::ZERO),
    ("nack with delay", |m, job| m.rig.run(job.nack_with(Nack::new().delay(secs(1)))).unwrap(), secs_const(1)),
    ("extend by nothing", |m, job| m.rig.run(job.extend(Duration::ZERO)).unwrap(), Duration::ZERO),
    ("extend to less", |m, job| m.rig.run(job.extend(secs(1))).unwrap(), secs_const(1)),
    ("release", |m, job| m.rig.run(job.release()).unwrap(), Duration::ZERO),
    ("let it lapse", |_, _| {}, secs_const(29)),
    (
        "reject and redrive",
        |m, job| {
            m.rig.run(job.reject("no")).unwrap();
            assert_eq!(m.rig.run(m.queue("q").redrive(RedriveFilter::default(), None)).unwrap(), 1);
        },
        Duration::ZERO,
    ),
    (
        "purge and send",
        |m, _| {
            assert_eq!(m.rig.run(m.queue("q").purge(&State::ALL)).unwrap(), 1);
            m.send("q", "a");
        },
        Duration::ZERO,
    ),
];

const fn secs_const(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// BB-104: whatever makes a message receivable ends a wait at that moment.
#[test]
fn a_wait_ends_when_a_message_comes_back_whatever_the_way() {
    for (way, act, after) in WAYS {
        let machine = Machine::new();
        machine.send("q", "a");
        let job = machine.take_for("q", secs(30)).unwrap();
        let queue = machine.queue("q");
        let mut poll = Box::pin(queue.receive().wait(secs(100)).one());
        assert!(machine.rig.poll(&mut poll).is_none());
        machine.pass(secs(1));
        act(&machine, &job);
        machine.rig.settle();
        if !after.is_zero() {
            assert!(machine.rig.poll(&mut poll).is_none(), "{way}");
            machine.pass(after - millis(1));
            assert!(machine.rig.poll(&mut poll).is_none(), "{way}: not before");
            machine.pass(millis(1));
        }
        assert!(machine.rig.poll(&mut poll).unwrap_or_else(|| panic!("{way}")).unwrap().is_some());
    }
}

/// BB-106: sender and receiver hand a message to and fro with real threads and never stall: the
/// clock stands still, so that no timeout could help them on.
#[test]
fn a_wake_up_is_never_lost_between_looking_and_waiting() {
    let rig = Rig::new(3);
    let store = rig.open_threaded().unwrap();
    let (there, back) = (store.queue("there").unwrap(), store.queue("back").unwrap());
    block_on(there.create(None)).unwrap();
    block_on(back.create(None)).unwrap();
    let rounds = 500;
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..rounds {
                let job = block_on(there.receive().wait(Duration::MAX).one()).unwrap().unwrap();
                block_on(back.send(job.body())).unwrap();
                block_on(job.ack()).unwrap();
            }
        });
        for round in 0..rounds {
            block_on(there.send(format!("{round}"))).unwrap();
            let answer = block_on(back.receive().wait(Duration::MAX).one()).unwrap().unwrap();
            assert_eq!(answer.body(), format!("{round}").as_bytes());
            block_on(answer.ack()).unwrap();
        }
    });
    block_on(store.close()).unwrap();
}

/// BB-106: a waiter that goes away just when it is served does not take the wake-up along.
#[test]
fn a_waiter_that_goes_as_it_is_served_leaves_the_message_to_the_next() {
    for gone in 0..3 {
        for steps in 0..4 {
            let machine = Machine::new();
            let queue = machine.queue("q");
            let mut calls: Vec<_> = (0..5).map(|_| Some(Box::pin(queue.receive().wait(secs(60)).one()))).collect();
            for call in calls.iter_mut().flatten() {
                assert!(machine.rig.poll(call).is_none());
            }
            machine.rig.settle();
            let sends = ["a", "b", "c"];
            let mut send = Box::pin(queue.send_batch(sends));
            assert!(machine.rig.poll(&mut send).is_none());
            for _ in 0..steps {
                machine.rig.step_committer();
                machine.rig.step_applier();
            }
            calls[gone] = None;
            assert_eq!(machine.rig.run(send).unwrap().len(), 3);
            machine.rig.settle();
            let poll = |call| machine.rig.poll(call).map(|got: Result<_, reappear::Error>| got.unwrap());
            let served: Vec<_> = calls.iter_mut().flatten().filter_map(poll).flatten().collect();
            let bodies: BTreeSet<_> = served.iter().map(|job| job.body().to_vec()).collect();
            assert_eq!(bodies.len(), 3, "waiter {gone} gone after {steps} steps");
            assert!(served.iter().all(|job| job.attempts() == 1));
        }
    }
}

/// BB-107: no message in time is an empty result, at its time; without a wait it is there at once.
#[test]
fn a_wait_without_a_message_ends_empty_at_its_time() {
    for load in [false, true] {
        let machine = Machine::new();
        let queue = machine.queue("empty");
        if load {
            machine.rig.run(machine.queue("full").send_batch((0..3_000).map(|n| format!("{n:0>100}")))).unwrap();
            let big = machine.queue("full");
            let mut busy = Box::pin(big.send_batch((0..20).map(|_| vec![7; 500_000])));
            assert!(machine.rig.poll(&mut busy).is_none());
        }
        assert!(machine.rig.run(queue.receive().one()).unwrap().is_none());
        assert!(machine.rig.run(queue.receive().max(1000).many()).unwrap().is_empty());
        for wait in [millis(1), secs(20), secs(3600)] {
            let mut call = Box::pin(queue.receive().wait(wait).one());
            assert!(machine.rig.poll(&mut call).is_none());
            machine.rig.settle();
            machine.pass(wait - millis(1));
            assert!(machine.rig.poll(&mut call).is_none(), "{wait:?}: not before");
            machine.pass(millis(1));
            assert!(machine.rig.poll(&mut call).expect("not later").unwrap().is_none(), "{wait:?}");
        }
    }
}

/// BB-107: a wait shorter than a millisecond is rounded up, and still ends.
#[test]
fn the_shortest_wait_ends_too() {
    let machine = Machine::new();
    let queue = machine.queue("q");
    let mut call = Box::pin(queue.receive().wait(Duration::from_nanos(1)).one());
    assert!(machine.rig.poll(&mut call).is_none());
    machine.rig.settle();
    machine.pass(millis(1));
    assert!(machine.rig.poll(&mut call).unwrap().unwrap().is_none());
}

/// BB-109: with real threads: of receivers dropped in the middle of a hand-over none takes a
/// message along, and none blocks the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_receives_lose_no_message() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().durability(Durability::Os).segment_len(64 * 1024);
    let store = Store::open_with(dir.path().join("s"), options).await.unwrap();
    let queue = store.queue("q").unwrap();
    queue.create(QueueOptions::new().max_attempts(3)).await.unwrap();
    let wanted = 200;
    let sender = queue.clone();
    let sending = tokio::spawn(async move {
        for body in 0..wanted {
            sender.send(format!("{body}")).await.unwrap();
        }
    });
    let mut got = BTreeSet::new();
    let mut round = 0_u64;
    while got.len() < wanted {
        round += 1;
        let receiver = queue.clone();
        let mut task = tokio::spawn(async move { receiver.receive().wait(secs(60)).one().await });
        let mut served = Vec::new();
        let mut is_done = false;
        if round.is_multiple_of(3) {
            tokio::task::yield_now().await;
        } else {
            // The one that loses is dropped wherever it is.
            tokio::select! {
                job = &mut task => {
                    is_done = true;
                    served.push(job.unwrap().unwrap());
                }
                job = queue.receive().wait(secs(60)).one() => served.push(job.unwrap()),
            }
        }
        if !is_done {
            task.abort();
            // It may have come to its end before that.
            if let Ok(job) = task.await {
                served.push(job.unwrap());
            }
        }
        for job in served.into_iter().flatten() {
            job.ack().await.unwrap();
            assert!(got.insert(job.body().to_vec()), "twice");
        }
    }
    sending.await.unwrap();
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.acked, stats.ready, stats.in_flight, stats.dead), (wanted as u64, 0, 0, 0));
    store.close().await.unwrap();
}

/// BB-110: a long poll that was abandoned takes nothing.
#[test]
fn an_abandoned_wait_does_not_take_the_next_message() {
    for settled in [false, true] {
        let machine = Machine::new();
        let queue = machine.queue("q");
        let mut abandoned = Box::pin(queue.receive().wait(secs(60)).max(10).many());
        assert!(machine.rig.poll(&mut abandoned).is_none());
        if settled {
            machine.rig.settle();
        }
        drop(abandoned);
        machine.send("q", "a");
        let job = machine.took("q");
        assert_eq!((job.body(), job.receive_count()), (b"a".as_slice(), 1));
        assert_eq!(machine.rig.run(queue.stats()).unwrap().waiting_receivers, 0);
    }
}

/// BB-112: a send that was dropped is stored whole or not at all, the same before and after a
/// restart, and blocks nothing.
#[test]
fn a_dropped_send_is_stored_whole_or_not_at_all() {
    for round in 0..48 {
        let machine = Machine::new();
        let queue = machine.queue("q");
        let before = machine.send("q", "before");
        let mut call = Box::pin(queue.send_batch(["one", "two"].map(NewMessage::new)));
        let polled = round % 2 == 1;
        if polled {
            assert!(machine.rig.poll(&mut call).is_none());
        }
        for _ in 0..round / 2 % 3 {
            machine.rig.step_committer();
        }
        drop(call);
        let after = machine.send("q", "after");
        assert!(after > before);
        let bodies = |machine: &Machine| machine.peek("q").into_iter().map(|view| view.body).collect::<Vec<_>>();
        let stored = bodies(&machine);
        let whole = [b"before".to_vec(), b"one".to_vec(), b"two".to_vec(), b"after".to_vec()];
        assert!(if polled { stored == whole } else { stored == [&whole[0][..], &whole[3][..]] }, "{stored:?}");
        machine.reopen(STOPS[round / 6 % 4]);
        assert_eq!(bodies(&machine), stored);
        assert_eq!(machine.drain("q").len(), stored.len());
    }
}

/// BB-112: the same when the process dies before the dropped send was answered.
#[test]
fn a_send_cut_off_by_a_crash_is_stored_whole_or_not_at_all() {
    for steps in 0..3 {
        for stop in STOPS {
            let machine = Machine::new();
            machine.send("q", "before");
            let queue = machine.queue("q");
            let mut call = Box::pin(queue.send_batch((0..5).map(|n| format!("{n}"))));
            assert!(machine.rig.poll(&mut call).is_none());
            for _ in 0..steps {
                machine.rig.step_committer();
            }
            drop(call);
            machine.reopen(stop);
            let count = machine.peek("q").len();
            assert!(count == 1 || count == 6, "{stop:?}: {count}");
            assert!(steps == 0 || count == 6, "{stop:?}: what was written is there");
        }
    }
}

/// BB-113: the store needs no runtime and belongs to none: it goes on when one is dropped in the
/// middle of a call, and works from blocking threads and from no runtime at all.
#[test]
fn a_store_outlives_the_runtimes_that_use_it() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().durability(Durability::Os).segment_len(64 * 1024);
    let current = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let first = current();
    let store = first.block_on(Store::open_with(dir.path().join("s"), options)).unwrap();
    let queue = store.queue("q").unwrap();
    block_on(queue.create(QueueOptions::new().backoff(Backoff::NONE))).unwrap();
    for round in 0..50 {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        for body in 0..4 {
            let queue = queue.clone();
            runtime.spawn(async move { queue.send(format!("{round} {body}")).await });
        }
        let waiting = queue.clone();
        runtime.spawn(async move { waiting.receive().wait(secs(3600)).one().await });
        // In the middle of it all.
        runtime.shutdown_background();
        let own = first.block_on(queue.send(format!("own {round}"))).unwrap();
        let blocking = queue.clone();
        let seen = first.block_on(async move {
            tokio::task::spawn_blocking(move || block_on(blocking.peek(None, 10_000)).unwrap()).await.unwrap()
        });
        assert!(seen.iter().any(|view| view.id == own));
    }
    drop(first);
    let stats = block_on(queue.stats()).unwrap();
    assert!(stats.ready + stats.in_flight >= 50, "{stats:?}");
    block_on(store.sync()).unwrap();
    block_on(store.close()).unwrap();
}
