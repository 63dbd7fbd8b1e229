//! Reported cases of syncs and durability (04): a sync that fails, a power cut under each policy, a crash
//! in every call that changes the disk.

use std::collections::BTreeSet;
use std::time::Duration;

use reappear::testing::{Fault, FaultKind, Loss, Op, Rig};
use reappear::{Durability, Error, ErrorKind, MessageId, Nack, Options, QueueOptions, RedriveFilter, State};

use super::history::look;
use super::machine::{Machine, STOPS, Stop, millis, secs};
use super::script::{CHANGES, Plain, Run};

fn once(op: Op, after: u64, kind: FaultKind) -> Fault {
    Fault { op, after, times: 1, kind }
}

/// Every verb that writes.
fn writes(run: &Run) -> Vec<(&'static str, Result<(), Error>)> {
    let (rig, store) = (&run.rig, &run.store);
    let (q, new) = (store.queue("q").unwrap(), store.queue("new").unwrap());
    let job = run.a_delivery();
    let mut batch = store.batch();
    batch.send(&q, "in a batch");
    vec![
        ("send", rig.run(q.send("later")).map(drop)),
        ("send_batch", rig.run(q.send_batch(["a", "b"])).map(drop)),
        ("try_send", rig.run(q.try_send("later")).map(drop)),
        ("receive", rig.run(q.receive().one()).map(drop)),
        ("ack", rig.run(job.ack())),
        ("ack_lazily", rig.run(job.ack_lazily())),
        ("extend", rig.run(job.extend(secs(60)))),
        ("nack", rig.run(job.nack_with(Nack::new()))),
        ("release", rig.run(job.release())),
        ("reject", rig.run(job.reject("no"))),
        ("batch", rig.run(batch.commit()).map(drop)),
        ("create", rig.run(new.create(None))),
        ("configure", rig.run(q.configure(QueueOptions::new()))),
        ("pause", rig.run(q.pause())),
        ("resume", rig.run(q.resume())),
        ("purge", rig.run(q.purge(&State::ALL)).map(drop)),
        ("redrive", rig.run(q.redrive(RedriveFilter::default(), None)).map(drop)),
        ("delete", rig.run(q.delete(true)).map(drop)),
        ("sync", rig.run(store.sync()).map(drop)),
    ]
}

/// BB-023: whichever sync or write of a run over all verbs fails, the call it was for says so, every
/// write after it is refused until the store is opened again, and what was acknowledged is there then.
#[test]
fn after_a_failed_sync_nothing_is_acknowledged_and_nothing_acknowledged_is_lost() {
    let plain = Plain::new();
    let mut poisoned = 0;
    for (op, kind) in [
        (Op::Sync, FaultKind::Eio),
        (Op::Sync, FaultKind::SyncLost),
        (Op::SyncDir, FaultKind::Eio),
        (Op::Write, FaultKind::Eio),
        (Op::Write, FaultKind::ShortWrite),
    ] {
        for n in 0..plain.count(op) {
            let what = format!("{kind:?} at {op:?} {n}");
            let (run, done, error) = plain.struck(1, once(op, n, kind));
            if let Some(error) = &error {
                assert_eq!(error.kind(), ErrorKind::Poisoned, "{what}: {error}");
                assert!(error.to_string().contains("open the store again"), "{what}: {error}");
            }
            assert_eq!(run.rig.disk().injected(), 1, "{what}: it never came to it");
            if error.is_some() && done > 7 {
                poisoned += 1;
                for (verb, result) in writes(&run) {
                    let refused = result.expect_err(verb);
                    assert_eq!(refused.kind(), ErrorKind::Poisoned, "{what}, {verb}: {refused}");
                }
                assert!(run.rig.run(run.store.stats()).unwrap().poisoned.is_some());
                assert!(run.rig.run(run.store.queue("q").unwrap().peek(None, 99)).is_ok(), "{what}: reads go on");
            }
            for _ in 0..2 {
                // A second time: what the first opening found must be on the disk itself by then.
                run.rig.power_cut_with(Loss::All);
                let store = run.rig.open();
                let found = look(&run.rig, &store);
                plain.assert_before_or_after(&found, done, error.is_some(), &what);
            }
        }
    }
    assert!(poisoned > 100, "only {poisoned} runs were poisoned");
}

/// BB-023: the same when the process only dies: what the failed sync left in the page cache is on the
/// disk once it was seen by an opening.
#[test]
fn what_an_opening_shows_after_a_failed_sync_stays() {
    let plain = Plain::new();
    for n in 0..plain.count(Op::Sync) {
        let what = format!("sync {n}");
        let (run, done, error) = plain.struck(1, once(Op::Sync, n, FaultKind::SyncLost));
        run.rig.kill();
        let found = look(&run.rig, &run.rig.open());
        plain.assert_before_or_after(&found, done, error.is_some(), &what);
        run.rig.power_cut_with(Loss::All);
        let again = look(&run.rig, &run.rig.open());
        assert!(again == found, "{what}: what was shown is gone");
    }
}

#[derive(Clone, Copy, Debug)]
enum End {
    Kill,
    Cut(Loss),
}

/// BB-029, BB-134: a crash in any call that changes the disk, of whatever verb, of rotation, checkpoint and the
/// removal of segments, leaves the state before the call or the one after it, and nothing damaged.
#[test]
fn a_crash_in_any_call_leaves_the_state_before_it_or_after_it() {
    let plain = Plain::new();
    for op in CHANGES {
        for n in 0..plain.count(op) {
            for (seed, end) in [(1, End::Kill), (2, End::Cut(Loss::All)), (3, End::Cut(Loss::RandomSectors))] {
                let what = format!("crash at {op:?} {n}, {end:?}");
                let (run, done, error) = plain.struck(seed, once(op, n, FaultKind::Crash));
                assert!(run.rig.disk().is_dead(), "{what}: it never came to it");
                match end {
                    End::Kill => run.rig.kill(),
                    End::Cut(loss) => run.rig.power_cut_with(loss),
                }
                let store = run.rig.try_open().unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(store.report().foreign_files.is_empty(), "{what}: {}", store.report());
                let found = look(&run.rig, &store);
                plain.assert_before_or_after(&found, done, error.is_some(), &what);
                run.rig.run(store.queue("after").unwrap().send("works on")).unwrap();
                run.rig.kill();
                run.rig.lose_index();
                let mut again = look(&run.rig, &run.rig.open());
                assert!(again.remove("after").is_some() && again == found, "{what}: rebuilt");
            }
        }
    }
}

/// BB-029: the opening that follows may be struck as well, at any of its calls.
#[test]
fn a_crash_while_recovering_changes_nothing_of_what_is_recovered() {
    let plain = Plain::new();
    for n in (0..plain.count(Op::Write)).step_by(7) {
        let what = |m: u64| format!("crash at write {n}, then at call {m} of the opening");
        let (run, done, error) = plain.struck(n, once(Op::Write, n, FaultKind::Crash));
        run.rig.power_cut();
        let image = run.rig.disk().snapshot();
        for m in 0.. {
            run.rig.disk().restore(&image);
            run.rig.disk().fail(once(Op::Any, m, FaultKind::Crash));
            let opened = run.rig.try_open().is_ok();
            let struck = run.rig.disk().is_dead();
            assert!(opened || struck, "{}", what(m));
            run.rig.disk().clear_faults();
            if m % 2 == 0 {
                run.rig.kill()
            } else {
                run.rig.power_cut()
            }
            let found = look(&run.rig, &run.rig.open());
            plain.assert_before_or_after(&found, done, error.is_some(), &what(m));
            run.rig.kill();
            if !struck {
                break;
            }
        }
    }
}

/// BB-025: handles that are cloned and dropped, and time that passes, take nothing away from what a call
/// acknowledged; the log alone is enough.
#[test]
fn every_acknowledged_verb_is_in_effect_however_the_store_ends() {
    for later in [Duration::ZERO, secs(30)] {
        for stop in STOPS {
            let machine = Machine::new();
            machine.made("q", QueueOptions::new().visibility_timeout(secs(3600)));
            for _ in 0..3 {
                drop((machine.store().clone(), machine.queue("q").clone()));
            }
            for body in ["acked", "held", "nacked", "extended"] {
                machine.send("q", body);
            }
            let jobs = machine.take_many("q", 4);
            machine.ack(&jobs[0]);
            machine.rig.run(jobs[2].nack_with(Nack::new().delay(Duration::ZERO))).unwrap();
            machine.rig.run(jobs[3].extend(secs(7200))).unwrap();
            machine.pass(later);
            machine.reopen(stop);
            let seen = machine.peek("q");
            let seen: Vec<_> = seen.iter().map(|view| (view.body.as_slice(), view.state, view.epoch)).collect();
            let expected = [
                (b"held".as_slice(), State::InFlight, 1),
                (b"nacked".as_slice(), State::Ready, 1),
                (b"extended".as_slice(), State::InFlight, 1),
            ];
            assert_eq!(seen, expected, "{stop:?} after {later:?}");
        }
    }
}

/// Sends at random moments. What was sent, each with the moment of its answer; and the moment of the end.
fn send_for_a_while(rig: &Rig, policy: Durability, seed: u64) -> (Vec<(MessageId, Duration)>, Duration) {
    rig.set_options(Options::new().segment_len(4096).durability(policy));
    let store = rig.open();
    assert_eq!(rig.run(store.stats()).unwrap().durability, policy, "the policy in force is shown");
    let queue = store.queue("q").unwrap();
    rig.run(queue.create(None)).unwrap();
    rig.run(store.sync()).unwrap();
    let mut dice = seed;
    let (mut now, mut sent) = (Duration::ZERO, Vec::new());
    for n in 0..20 + seed % 60 {
        // Numbers that look random and are the same for the same seed (Knuth's MMIX generator).
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pause = millis(dice >> 58);
        rig.advance(pause);
        now += pause;
        sent.push((rig.run(queue.send(format!("{n}:{}", "x".repeat(200)))).unwrap(), now));
    }
    (sent, now)
}

/// BB-026: `Always` loses nothing in a power cut; an interval loses what is younger than itself at most;
/// under each policy what is left is the front of what was sent, whole, and a dead process loses nothing.
#[test]
fn a_power_cut_loses_what_the_policy_says_and_no_more() {
    let every = millis(100);
    for policy in [Durability::Always, Durability::Interval(every), Durability::Os] {
        let mut lost = 0;
        for seed in 0..70 {
            for loss in [Some(Loss::All), Some(Loss::RandomSectors), None] {
                let rig = Rig::new(seed);
                let (sent, end) = send_for_a_while(&rig, policy, seed);
                match loss {
                    Some(loss) => rig.power_cut_with(loss),
                    None => rig.kill(),
                }
                let store = rig.open();
                let seen = rig.run(store.queue("q").unwrap().peek(None, 1000)).unwrap();
                let there: BTreeSet<_> = seen.iter().map(|view| view.id).collect();
                let (kept, gone): (Vec<_>, Vec<_>) = sent.iter().partition(|(id, _)| there.contains(id));
                let what = format!("{policy}; seed {seed}, {loss:?}");
                assert_eq!(kept.len(), seen.len(), "{what}: nothing comes from nowhere");
                assert!(kept.iter().all(|kept| gone.iter().all(|gone| kept < gone)), "{what}: a hole");
                let allowed = match (loss, policy) {
                    (None, _) | (_, Durability::Always) => Duration::ZERO,
                    (_, Durability::Interval(every)) => every,
                    _ => Duration::MAX,
                };
                assert!(
                    gone.iter().all(|(_, at)| end.saturating_sub(*at) < allowed),
                    "{what}: lost what was sent {:?} before the end",
                    gone.first().map(|(_, at)| end - *at)
                );
                lost += gone.len();
            }
        }
        assert_eq!(lost > 0, policy != Durability::Always, "{policy}: {lost} were lost");
    }
}

/// BB-026: an interval runs from the last sync, and ends though nothing else happens; a sync by hand counts
/// under every policy; and what each policy may lose stands in its text.
#[test]
fn an_idle_store_is_synced_when_its_interval_is_over() {
    for (policy, word) in [
        (Durability::Always, "nothing acknowledged"),
        (Durability::Interval(millis(100)), "100ms"),
        (Durability::Os, "kernel"),
    ] {
        assert!(policy.to_string().contains(word), "{policy}");
        for by_hand in [false, true] {
            let rig = Rig::new(3);
            rig.set_options(Options::new().durability(policy));
            let store = rig.open();
            rig.run(store.queue("q").unwrap().send("x")).unwrap();
            if by_hand {
                rig.run(store.sync()).unwrap();
            } else if policy == Durability::Os {
                continue;
            }
            rig.advance(millis(100));
            let stats = rig.run(store.stats()).unwrap();
            assert_eq!(stats.durable_lsn, stats.last_lsn, "{policy}");
            rig.power_cut_with(Loss::All);
            let store = rig.open();
            assert_eq!(rig.run(store.queue("q").unwrap().stats()).unwrap().ready, 1, "{policy}");
        }
    }
}

/// BB-026: however lax the policy, a close leaves nothing to lose.
#[test]
fn a_closed_store_loses_nothing_in_a_power_cut_under_any_policy() {
    for policy in [Durability::Always, Durability::Interval(secs(3600)), Durability::Os] {
        let machine = Machine::with(Options::new().segment_len(4096).durability(policy));
        for n in 0..30 {
            machine.send("q", format!("{n}:{}", "x".repeat(300)));
        }
        machine.stop(Stop::Close);
        machine.rig.power_cut_with(Loss::All);
        machine.open();
        assert_eq!(machine.counts("q"), [30, 0, 0, 0], "{policy}");
    }
}
