//! What a store does when the disk fails or fills, when too much waits, and under each durability
//! policy.

use std::time::Duration;

use reappear::testing::{Fault, FaultKind, Loss, Op, Rig};
use reappear::{Durability, ErrorKind, NewMessage, Options, State};

fn rig(options: Options) -> Rig {
    let rig = Rig::new(11);
    rig.set_options(options.segment_len(4096));
    rig
}

fn count(rig: &Rig, store: &reappear::Store) -> usize {
    rig.run(store.queue("q").unwrap().peek(None, 99_999)).unwrap().len()
}

#[test]
fn a_failed_sync_poisons_the_store_until_it_is_opened_again() {
    for kind in [FaultKind::Eio, FaultKind::SyncLost] {
        let rig = rig(Options::new());
        let store = rig.open();
        let queue = store.queue("q").unwrap();
        rig.run(queue.send("kept")).unwrap();
        rig.disk().fail(Fault { op: Op::Sync, after: 0, times: 1, kind });
        let refused = rig.run(queue.send("unsure")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Poisoned, "{refused}");
        rig.disk().clear_faults();
        for _ in 0..2 {
            assert_eq!(rig.run(queue.send("later")).unwrap_err().kind(), ErrorKind::Poisoned);
            assert_eq!(rig.run(queue.receive().one()).unwrap_err().kind(), ErrorKind::Poisoned);
        }
        assert!(rig.run(store.stats()).unwrap().poisoned.is_some());
        assert!(rig.run(queue.peek(None, 9)).is_ok(), "reads go on");
        rig.power_cut_with(Loss::All);
        let store = rig.open();
        let seen = rig.run(store.queue("q").unwrap().peek(None, 9)).unwrap();
        assert_eq!(seen.first().map(|view| view.body.as_slice()), Some(b"kept".as_slice()));
        assert!(seen.iter().all(|view| view.body != b"later"));
    }
}

/// While one sync is under way the next frames are decided and written. None of them is answered before its
/// own sync, and when one fails, nobody who waits is told that it worked.
#[test]
fn a_sync_behind_answers_just_what_it_covers_and_a_failed_one_nobody() {
    let rig = rig(Options::new());
    let store = rig.open();
    let queue = store.queue("q").unwrap();
    rig.run(queue.send("kept")).unwrap();
    rig.overlap();
    let mut sends: Vec<_> = ["a", "b", "c"].into_iter().map(|body| Box::pin(queue.send(body))).collect();
    for send in &mut sends[..2] {
        assert!(rig.poll(send).is_none());
        rig.step_committer();
    }
    assert!(rig.poll(&mut sends[0]).is_none(), "written, not synced");
    rig.step_syncer();
    assert!(rig.poll(&mut sends[2]).is_none());
    rig.step_committer();
    assert!(rig.poll(&mut sends[0]).is_some_and(|sent| sent.is_ok()), "covered");
    assert!(rig.poll(&mut sends[1]).is_some_and(|sent| sent.is_ok()), "covered by the same sync");
    assert!(rig.poll(&mut sends[2]).is_none(), "written after it");
    let mut peek = Box::pin(queue.peek(None, 9));
    assert!(rig.poll(&mut peek).is_none());
    rig.step_committer();
    rig.step_applier();
    assert!(rig.poll(&mut peek).is_none(), "what is not durable is not shown");
    rig.disk().fail(Fault { op: Op::Sync, after: 0, times: 1, kind: FaultKind::SyncLost });
    rig.step_syncer();
    rig.disk().clear_faults();
    rig.step_committer();
    let refused = rig.poll(&mut sends[2]).expect("answered").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Poisoned, "{refused}");
    assert_eq!(rig.run(queue.send("later")).unwrap_err().kind(), ErrorKind::Poisoned);
    rig.power_cut_with(Loss::All);
    let store = rig.open();
    let seen = rig.run(store.queue("q").unwrap().peek(None, 9)).unwrap();
    let bodies: Vec<&[u8]> = seen.iter().map(|view| view.body.as_slice()).collect();
    assert_eq!(bodies, [b"kept".as_slice(), b"a", b"b"]);
}

#[test]
fn whatever_sync_fails_nothing_acknowledged_is_lost() {
    for nth in 0..40 {
        let rig = rig(Options::new());
        let store = rig.open();
        let queue = store.queue("q").unwrap();
        rig.disk().fail(Fault { op: Op::Sync, after: nth, times: 1, kind: FaultKind::SyncLost });
        let (mut kept, mut refused) = (Vec::new(), Vec::new());
        for i in 0..40 {
            match rig.run(queue.send(format!("{i}:{}", "x".repeat(300)))) {
                Ok(id) => kept.push(id),
                // Where only the making of a next segment failed, nothing happened, and it is tried again.
                Err(error) if error.kind() == ErrorKind::Io => refused.push(format!("{i}:")),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}"),
            }
        }
        rig.disk().clear_faults();
        rig.power_cut_with(Loss::All);
        let store = rig.open();
        // Without the queue nothing was acknowledged.
        let seen = rig.run(store.queue("q").unwrap().peek(None, 99)).unwrap_or_default();
        let ids: Vec<_> = seen.iter().map(|view| view.id).collect();
        assert!(kept.iter().all(|id| ids.contains(id)), "sync {nth}: {} of {} are there", ids.len(), kept.len());
        let is_there = |start: &String| seen.iter().any(|view| view.body.starts_with(start.as_bytes()));
        assert!(!refused.iter().any(is_there), "what was refused as Io never happened");
    }
}

#[test]
fn a_full_disk_refuses_with_nothing_changed_and_works_again_when_there_is_room() {
    let rig = rig(Options::new());
    let store = rig.open();
    let queue = store.queue("q").unwrap();
    rig.run(queue.send("first")).unwrap();
    let used: u64 = rig.disk().list_raw().iter().map(|(_, len)| len).sum();
    rig.disk().set_capacity(Some(used + 8 * 1024));
    let mut sent = 1;
    let refused = loop {
        match rig.run(queue.send("x".repeat(500))) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
    assert_eq!(count(&rig, &store), sent, "a refused send changes nothing");
    rig.disk().set_capacity(None);
    rig.advance(Duration::from_secs(1));
    rig.run(queue.send("room again")).unwrap();
    rig.power_cut();
    assert_eq!(count(&rig, &rig.open()), sent + 1);
}

#[test]
fn a_store_opens_on_a_full_disk() {
    let rig = rig(Options::new());
    let store = rig.open();
    rig.run(store.queue("q").unwrap().send_batch((0..50).map(|i| i.to_string()))).unwrap();
    let used: u64 = rig.disk().list_raw().iter().map(|(_, len)| len).sum();
    rig.power_cut();
    rig.disk().set_capacity(Some(used));
    assert_eq!(count(&rig, &rig.open()), 50);
}

#[test]
fn too_much_that_waits_is_refused_by_try_send_and_waits_in_send() {
    let rig = rig(Options::new().max_body_len(1000).max_pending_len(4000));
    let store = rig.open();
    let queue = store.queue("q").unwrap();
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut call = Box::pin(queue.send(vec![0; 1000]));
        assert!(rig.poll(&mut call).is_none());
        waiting.push(call);
    }
    let mut call = Box::pin(queue.try_send(vec![0; 1000]));
    let refused = rig.poll(&mut call).expect("at once").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Full);
    waiting.push(Box::pin(queue.send(vec![0; 1000])));
    for call in waiting {
        rig.run(call).unwrap();
    }
    assert_eq!(count(&rig, &store), 4);
}

#[test]
fn with_durability_always_nothing_acknowledged_is_lost_in_a_power_cut() {
    let rig = rig(Options::new());
    let store = rig.open();
    rig.run(store.queue("q").unwrap().send_batch(["a", "b"])).unwrap();
    rig.power_cut_with(Loss::All);
    assert_eq!(count(&rig, &rig.open()), 2);
}

#[test]
fn with_an_interval_a_power_cut_loses_at_most_what_it_says_and_a_dead_process_nothing() {
    let every = Duration::from_millis(200);
    for (crash, wait, left) in [(Rig::kill as fn(&Rig), false, 2), (cut, true, 2), (cut, false, 1)] {
        let rig = rig(Options::new().durability(Durability::Interval(every)));
        let store = rig.open();
        let queue = store.queue("q").unwrap();
        rig.run(queue.send("first")).unwrap();
        let policy = rig.run(store.stats()).unwrap().durability;
        assert!(policy.to_string().contains("200ms"), "{policy}");
        rig.run(store.sync()).unwrap();
        rig.run(queue.send("second")).unwrap();
        if wait {
            rig.advance(every);
        }
        crash(&rig);
        assert_eq!(count(&rig, &rig.open()), left);
    }
}

fn cut(rig: &Rig) {
    rig.power_cut_with(Loss::All);
}

#[test]
fn with_durability_os_a_sync_by_hand_is_durable() {
    let rig = rig(Options::new().durability(Durability::Os));
    let store = rig.open();
    let queue = store.queue("q").unwrap();
    let id = rig.run(queue.send("first")).unwrap();
    assert!(rig.run(store.sync()).unwrap().get() >= id.get());
    rig.power_cut_with(Loss::All);
    assert_eq!(count(&rig, &rig.open()), 1);
}

#[test]
fn a_lazy_ack_may_be_undone_by_a_power_cut_but_not_by_the_death_of_the_process() {
    for (crash, left) in [(Rig::kill as fn(&Rig), 0), (cut, 1)] {
        let rig = rig(Options::new());
        let store = rig.open();
        let queue = store.queue("q").unwrap();
        rig.run(queue.send("once")).unwrap();
        let job = rig.run(queue.receive().one()).unwrap().unwrap();
        let mut ack = Box::pin(job.ack_lazily());
        assert!(rig.poll(&mut ack).is_none());
        rig.step_committer();
        assert!(rig.poll(&mut ack).expect("answered without a sync").is_ok());
        crash(&rig);
        assert_eq!(count(&rig, &rig.open()), left);
    }
}

#[test]
fn a_body_that_was_damaged_is_an_error_and_the_queue_goes_on() {
    let rig = rig(Options::new());
    let store = rig.open();
    let queue = store.queue("q").unwrap();
    rig.run(queue.send("damaged body")).unwrap();
    rig.run(queue.send("sound body")).unwrap();
    for (path, _) in rig.disk().list_raw() {
        let mut bytes = rig.disk().read_raw(&path).unwrap();
        if let Some(at) = bytes.windows(12).position(|window| window == b"damaged body") {
            bytes[at] ^= 1;
            rig.disk().write_raw(&path, bytes);
        }
    }
    let refused = rig.run(queue.receive().one()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
    assert!(refused.damage().is_some(), "it names the spot: {refused}");
    let job = rig.run(queue.receive().one()).unwrap().unwrap();
    assert_eq!(job.body(), b"sound body");
    let stats = rig.run(queue.stats()).unwrap();
    assert_eq!((stats.dead, stats.in_flight), (1, 1));
}

#[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
struct Job {
    file: String,
    width: u32,
}

#[test]
fn a_typed_body_round_trips_and_one_that_does_not_decode_stays_in_flight() {
    let rig = rig(Options::new());
    let store = rig.open();
    let queue = store.queue("q").unwrap();
    let job = Job { file: "cat.png".into(), width: 128 };
    rig.run(queue.typed::<Job>().send(&job)).unwrap();
    rig.run(queue.typed::<Job>().json().send(&job)).unwrap();
    let first = rig.run(queue.typed::<Job>().receive().one()).unwrap().unwrap();
    assert_eq!(first.value().unwrap(), job);
    let second = rig.run(queue.typed::<Job>().receive().one()).unwrap().unwrap();
    assert_eq!(second.value().unwrap_err().kind(), ErrorKind::InvalidInput, "JSON is not bincode");
    assert_eq!(rig.run(queue.stats()).unwrap().in_flight, 2);
    rig.run(second.release()).unwrap();
    let again = rig.run(queue.typed::<Job>().json().receive().one()).unwrap().unwrap();
    assert_eq!(again.value().unwrap(), job);
}

/// BB-131: one old message, whatever its state, does not keep the log that came after it.
#[test]
fn one_old_message_pins_no_segments() {
    for state in [State::Delayed, State::Dead, State::InFlight] {
        let rig = rig(Options::new());
        let store = rig.open();
        let (old, busy) = (store.queue("old").unwrap(), store.queue("busy").unwrap());
        let month = Duration::from_secs(30 * 86_400);
        let long = Duration::from_secs(12 * 3600);
        let id = match state {
            State::Delayed => rig.run(old.send(NewMessage::new("old").delay(month))).unwrap(),
            _ => {
                let id = rig.run(old.send("old")).unwrap();
                let job = rig.run(old.receive().visibility(long).one()).unwrap().unwrap();
                if state == State::Dead {
                    rig.run(job.reject("kept as evidence")).unwrap();
                }
                id
            }
        };
        let mut most = 0;
        for _ in 0..600 {
            rig.run(busy.send(vec![b'x'; 400])).unwrap();
            let job = rig.run(busy.receive().one()).unwrap().unwrap();
            rig.run(job.ack()).unwrap();
            rig.settle();
            most = most.max(rig.run(store.stats()).unwrap().log_len);
        }
        // 8 segments between two checkpoints, 2 that are allowed, and what is written meanwhile.
        assert!(most <= 16 * 4096, "{state}: the log grew to {most} bytes");
        rig.power_cut();
        let store = rig.open();
        let seen = rig.run(store.queue("old").unwrap().peek(None, 9)).unwrap();
        assert_eq!((seen.len(), seen[0].id, seen[0].state), (1, id, state));
        assert_eq!(seen[0].body, b"old");
        let reason = (state == State::Dead).then_some("kept as evidence");
        assert_eq!(seen[0].last_error.as_deref(), reason);
    }
}
