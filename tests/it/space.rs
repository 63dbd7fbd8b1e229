//! Bounded disk: what nobody needs any more gives its space back, a full disk is drained to the last
//! message, and sending goes on by itself when there is room again.

use std::collections::BTreeSet;

use reappear::testing::{Fault, FaultKind, Loss, Op};
use reappear::{Backoff, ErrorKind, KeptFor, MessageId, Nack, NewMessage, Options, QueueOptions, State};

use super::history::look;
use super::machine::{Machine, STOPS, Stop, kind, millis, secs, small};
use super::script::{CHANGES, Plain};

const SEGMENT: u64 = 16 * 1024;

fn used(machine: &Machine) -> u64 {
    machine.rig.disk().list_raw().iter().map(|(_, len)| len).sum()
}

/// A queue whose messages neither die nor wait after a nack.
fn endless() -> QueueOptions {
    QueueOptions::new().max_attempts(None).backoff(Backoff::NONE)
}

fn stats(machine: &Machine) -> reappear::StoreStats {
    machine.rig.run(machine.store().stats()).unwrap()
}

/// Sends, receives and acks `count` messages, and asserts the bound of the disk all the time.
fn churn(machine: &Machine, count: usize, mut between: impl FnMut(usize)) {
    for round in 0..count / 20 {
        machine.rig.run(machine.queue("busy").send_batch((0..20).map(|n| vec![n; 400]))).unwrap();
        assert_eq!(machine.drain("busy").len(), 20);
        machine.rig.step_keeper();
        between(round);
        let stats = stats(machine);
        // Two segments are made ahead, one is written, and a few are on their way out.
        let most = 2 * stats.live_len + 10 * SEGMENT;
        assert!(stats.log_len_on_disk <= most, "round {round}: {} > {most}: {stats:?}", stats.log_len_on_disk);
    }
}

/// After quiet the log is no larger than twice what lives in it and three segments.
fn assert_small(machine: &Machine) {
    for _ in 0..4 {
        machine.pass(secs(11));
    }
    let stats = stats(machine);
    assert!(stats.log_len_on_disk <= 2 * stats.live_len + 3 * SEGMENT, "{stats:?}");
    assert_eq!(stats.reclaim_error, None);
}

/// BB-131: whatever an old message is doing, the log behind it is given back, and it stays as it was.
#[test]
fn one_old_message_pins_nothing_whatever_it_is_doing() {
    type Age = (&'static str, fn(&Machine), fn(&Machine, usize));
    let ages: [Age; 5] = [
        ("unsettled", |m| drop(m.take_for("old", secs(40_000)).unwrap()), |_, _| {}),
        ("delayed for a week", |_| {}, |_, _| {}),
        ("dead", |m| m.rig.run(m.took("old").reject("no")).unwrap(), |_, _| {}),
        ("released again and again", |_| {}, |m, _| m.rig.run(m.took("old").release()).unwrap()),
        (
            "nacked again and again",
            |_| {},
            |m, round| {
                m.rig.run(m.took("old").nack_with(Nack::new().error(format!("failed in round {round}")))).unwrap();
            },
        ),
    ];
    for (age, begin, between) in ages {
        let machine = Machine::with(small());
        machine.made("old", endless());
        let delay = if age.starts_with("delayed") { secs(7 * 86_400) } else { secs(0) };
        machine.send("old", NewMessage::new("the old one").delay(delay));
        begin(&machine);
        churn(&machine, 4000, |round| between(&machine, round));
        assert!(stats(&machine).segments <= 4, "{age}");
        assert_eq!(machine.peek_one("old").body, b"the old one", "{age}");
        for stop in STOPS {
            machine.reopen(stop);
            assert_eq!(machine.peek_one("old").body, b"the old one", "{age} {stop:?}");
        }
        assert_small(&machine);
    }
}

/// BB-131: nor does one that is extended all the time, with its receipt good all the time.
#[test]
fn a_message_that_is_extended_every_second_pins_nothing() {
    let machine = Machine::with(small());
    machine.made("old", endless());
    machine.send("old", "the old one");
    let job = machine.took("old");
    churn(&machine, 4000, |_| {
        machine.pass(secs(1));
        machine.rig.run(job.extend(secs(30))).unwrap();
    });
    machine.ack(&job);
    assert_small(&machine);
    assert_eq!(stats(&machine).live_len, 0);
}

/// A loop of deliveries over many messages is bounded too, however often each comes back.
#[test]
fn release_and_nack_loops_over_many_messages_do_not_grow_the_log() {
    for nack in [false, true] {
        let machine = Machine::with(small());
        let queue = machine.made("q", endless());
        machine.rig.run(queue.send_batch((0..1000).map(|n| format!("{n}")))).unwrap();
        for round in 0..60 {
            let held = machine.take_many("q", 1000);
            let receipts: Vec<_> = held.iter().map(reappear::Delivery::receipt).collect();
            let done = if nack {
                machine.rig.run(queue.nack_many(receipts, Nack::new().error("again"))).unwrap()
            } else {
                machine.rig.run(queue.release_many(receipts)).unwrap()
            };
            assert!(done.iter().all(Result::is_ok));
            machine.rig.settle();
            let stats = stats(&machine);
            // A frame of a thousand records is longer than a segment here.
            let most = 2 * stats.live_len + 3 * SEGMENT + 8 * 64 * 1024;
            assert!(stats.log_len <= most, "round {round}: {} > {most}", stats.log_len);
        }
        assert_eq!(machine.drain("q").len(), 1000);
    }
}

/// Deleting or purging gives the space back, as soon as it is quiet.
#[test]
fn a_purged_and_a_deleted_queue_give_their_space_back() {
    for delete in [false, true] {
        let machine = Machine::with(small());
        machine.send("keep", "kept");
        for _ in 0..20 {
            machine.rig.run(machine.queue("q").send_batch((0..20).map(|n| vec![n; 1000]))).unwrap();
        }
        assert!(stats(&machine).live_len > 20 * SEGMENT);
        let removed = if delete {
            machine.rig.run(machine.queue("q").delete(true)).unwrap()
        } else {
            machine.rig.run(machine.queue("q").purge(&State::ALL)).unwrap()
        };
        assert_eq!(removed, 400);
        assert_small(&machine);
        assert!(stats(&machine).live_len < 200);
        assert_eq!(machine.drain("keep"), ["kept"]);
    }
}

/// Carrying costs a bounded share of what is written, and the figure says how much.
#[test]
fn write_amplification_is_counted_and_bounded() {
    let machine = Machine::with(small());
    // Half of everything lives for long, the other half is settled at once: the worst there is for a log.
    let mut kept = BTreeSet::new();
    for _ in 0..150 {
        let sent = machine.rig.run(machine.queue("q").send_batch((0..10).map(|n| vec![n; 500]))).unwrap();
        kept.extend(sent);
        machine.rig.run(machine.queue("busy").send_batch((0..10).map(|n| vec![n; 500]))).unwrap();
        machine.drain("busy");
        if kept.len() > 100 {
            machine.rig.run(machine.queue("q").purge(&[State::Ready])).unwrap();
            kept.clear();
        }
    }
    let stats = stats(&machine);
    assert!(stats.relocated_len > 0 && stats.written_len > stats.relocated_len, "{stats:?}");
    assert!(stats.write_amplification().unwrap() < 2.0, "{:?}", stats.write_amplification());
}

/// A log that is as small as it can be is left alone: nothing is written when nothing happens.
#[test]
fn a_quiet_store_writes_nothing() {
    for messages in [1, 3, 7, 12, 20, 40] {
        let machine = Machine::with(small());
        machine.rig.run(machine.queue("q").send_batch((0..messages).map(|n| vec![n; 1000]))).unwrap();
        machine.rig.step_keeper();
        assert_small(&machine);
        let before = stats(&machine).written_len;
        for _ in 0..10 {
            machine.pass(secs(60));
        }
        assert_eq!(stats(&machine).written_len, before, "{messages} messages");
    }
}

/// `stats` says what the oldest segment is kept for, and how much is dead.
#[test]
fn stats_say_where_the_bytes_are_and_what_keeps_them() {
    let machine = Machine::with(small().max_amplification(100));
    let first = machine.send("old", vec![1; 1000]);
    assert_eq!(stats(&machine).oldest_segment_kept_for, KeptFor::InUse);
    for _ in 0..4 {
        machine.rig.run(machine.queue("busy").send_batch((0..20).map(|n| vec![n; 1000]))).unwrap();
        machine.drain("busy");
    }
    machine.pass(secs(11));
    let stats = stats(&machine);
    let kept = stats.oldest_segment_kept_for.to_string();
    assert_eq!(kept, format!("message {first} in queue \"old\" (ready)"));
    assert!(stats.dead_len > stats.live_len && stats.dead_len + stats.live_len == stats.log_len, "{stats:?}");
    assert!(stats.amplification().unwrap() > 10.0);
    assert!(stats.reserve_len > 0 && stats.available_len > 0 && !stats.sends_refused);
    machine.drain("old");
    let kept = self::stats(&machine).oldest_segment_kept_for;
    assert!(matches!(kept, KeptFor::Queue { .. } | KeptFor::Checkpoint), "{kept}");
}

// ---- full disks ----------------------------------------------------------------------------------

/// Sends until the first refusal, which must be `Full`. Returns what was sent.
fn fill(machine: &Machine, batch: usize, len: usize) -> Vec<MessageId> {
    let mut sent = Vec::new();
    loop {
        machine.rig.step_keeper();
        let messages = (0..batch).map(|n| {
            let priority = if len == 1000 { 0 } else { i16::try_from((sent.len() + n) % 3).unwrap() };
            NewMessage::new(vec![7; len]).priority(priority)
        });
        match machine.rig.run(machine.queue("q").send_batch(messages)) {
            Ok(ids) => sent.extend(ids),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                assert!(error.to_string().contains("go on"), "it says what still works: {error}");
                return sent;
            }
        }
        assert!(sent.len() < 100_000, "the disk never fills");
    }
}

/// Receives and acks one message after the other, each in frames of its own, until there is none.
fn drain_singly(machine: &Machine) -> Vec<MessageId> {
    let mut got = Vec::new();
    while let Some(job) = machine.take("q") {
        machine.ack(&job);
        got.push(job.id());
        machine.pass(millis(1));
        machine.rig.step_keeper();
    }
    got
}

fn set(ids: Vec<MessageId>) -> BTreeSet<MessageId> {
    let count = ids.len();
    let set = BTreeSet::from_iter(ids);
    assert_eq!(set.len(), count, "none twice");
    set
}

/// BB-031, BB-032, BB-034: a full disk is drained to the last message by the most wasteful consumer there
/// is, with messages of any size and in any order, and then sending works again without anybody's help.
#[test]
fn a_full_disk_is_drained_to_the_last_message_and_then_takes_new_ones() {
    for (batch, len) in [(1, 1000), (50, 40), (20, 500), (1, 0)] {
        let machine = Machine::new();
        machine.send("other", "x");
        machine.rig.disk().set_capacity(Some(used(&machine) + 30 * SEGMENT));
        let sent = fill(&machine, batch, len);
        assert!(sent.len() > 20, "{} messages of {len} bytes found room", sent.len());
        assert_eq!(set(drain_singly(&machine)), set(sent), "batches of {batch}, {len} bytes");
        machine.pass(secs(1));
        machine.rig.step_keeper();
        machine.send("q", "there is room again");
        assert_eq!(machine.drain("q").len(), 1);
        machine.rig.disk().set_capacity(None);
    }
}

/// BB-031: the process or the machine dies while the disk is full: the store opens, and goes on as before.
#[test]
fn a_store_that_died_on_a_full_disk_opens_there_and_is_drained() {
    for stop in STOPS {
        let machine = Machine::new();
        machine.send("other", "x");
        machine.rig.disk().set_capacity(Some(used(&machine) + 20 * SEGMENT));
        let sent = fill(&machine, 10, 100);
        machine.reopen(stop);
        let job = machine.took("q");
        machine.reopen(stop);
        machine.rig.run(machine.store().release(&job.receipt())).unwrap();
        assert_eq!(set(drain_singly(&machine)), set(sent), "{stop:?}");
        machine.rig.disk().set_capacity(None);
        machine.send("q", "there is room again");
        assert_eq!(machine.drain("q").len(), 1);
    }
}

/// When somebody else takes the last byte, what was reserved is left for settling, over a restart too.
#[test]
fn the_reserve_is_left_when_others_fill_the_disk() {
    for stop in STOPS {
        let machine = Machine::new();
        machine.rig.run(machine.queue("q").send_batch((0..30).map(|n| vec![n; 800]))).unwrap();
        machine.rig.step_keeper();
        machine.rig.disk().set_capacity(Some(used(&machine)));
        machine.reopen(stop);
        assert_eq!(drain_singly(&machine).len(), 30, "{stop:?}");
        machine.send("q", "there is room again");
        assert_eq!(machine.drain("q").len(), 1);
        machine.rig.disk().set_capacity(None);
    }
}

/// Everything that gives something back works on a full disk that others have filled; what adds does not.
#[test]
fn on_a_full_disk_every_verb_but_sending_works() {
    let machine = Machine::new();
    machine.made("q", QueueOptions::new().max_attempts(3));
    machine.rig.run(machine.queue("q").send_batch((0..40).map(|n| vec![n; 200]))).unwrap();
    machine.rig.step_keeper();
    machine.rig.disk().set_capacity(Some(used(&machine)));
    let filled = fill(&machine, 1, 900).len();
    let (rig, queue) = (&machine.rig, machine.queue("q"));
    rig.run(machine.took("q").nack()).unwrap();
    rig.run(machine.took("q").extend(secs(100))).unwrap();
    rig.run(machine.took("q").release()).unwrap();
    rig.run(machine.took("q").reject("no")).unwrap();
    rig.run(queue.pause()).unwrap();
    rig.run(queue.resume()).unwrap();
    assert_eq!(rig.run(queue.redrive(Default::default(), None)).unwrap(), 1);
    let mut batch = machine.store().batch();
    batch.ack(machine.took("q")).nack(machine.took("q"), Nack::new());
    rig.run(batch.commit()).unwrap();
    let mut batch = machine.store().batch();
    let job = machine.took("q");
    batch.ack(&job).send(&queue, "the result");
    assert_eq!(kind(rig.run(batch.commit())), ErrorKind::Full, "a batch with a send in it adds");
    rig.run(job.ack()).unwrap();
    assert_eq!(kind(rig.run(queue.send("x"))), ErrorKind::Full);
    assert_eq!(kind(rig.run(machine.queue("new").create(None))), ErrorKind::Full);
    assert_eq!(rig.run(queue.purge(&State::ALL)).unwrap() as usize, 40 + filled - 2);
    rig.run(queue.delete(true)).unwrap();
    machine.pass(secs(1));
    machine.send("other", "there is room again");
    machine.rig.disk().set_capacity(None);
}

/// BB-034, BB-037: who tries again after `Full` until it works has sent each thing once.
#[test]
fn what_was_refused_for_lack_of_room_did_not_happen_and_may_be_tried_again() {
    for stop in STOPS {
        let machine = Machine::new();
        machine.send("other", "x");
        let base = used(&machine);
        for n in 0..200 {
            // Room comes and goes.
            let capacity = if n % 3 == 0 { base } else { base + 12 * SEGMENT };
            machine.rig.disk().set_capacity(Some(capacity));
            let body = format!("{n}:{}", "x".repeat(300));
            while let Err(error) = machine.rig.run(machine.queue("q").send(body.as_str())) {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                machine.rig.disk().set_capacity(None);
                machine.rig.step_keeper();
            }
        }
        machine.rig.disk().set_capacity(None);
        machine.reopen(stop);
        let numbers = machine.drain("q").into_iter().map(|body| body.split(':').next().unwrap().parse().unwrap());
        assert_eq!(numbers.collect::<Vec<usize>>(), (0..200).collect::<Vec<_>>(), "{stop:?}");
    }
}

/// A limit of the store's own works like a full disk, and is never passed.
#[test]
fn max_store_bytes_bounds_the_store_and_is_drained_like_a_full_disk() {
    let limit = 24 * SEGMENT;
    let machine = Machine::with(small().max_store_bytes(limit));
    for _ in 0..3 {
        let sent = fill(&machine, 10, 100);
        assert!(used(&machine) <= limit, "{} of {limit}", used(&machine));
        assert_eq!(set(drain_singly(&machine)), set(sent));
        assert!(used(&machine) <= limit, "{} of {limit}", used(&machine));
        machine.pass(secs(11));
        machine.pass(secs(11));
    }
    let too_small = Options::new().segment_len(16 * 1024).max_store_bytes(3 * SEGMENT);
    machine.stop(Stop::Close);
    machine.rig.set_options(too_small);
    let error = machine.rig.try_open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("max_store_bytes"), "{error}");
    machine.leave();
}

/// BB-035: a day of refusals leaves no junk.
#[test]
fn refusals_for_lack_of_room_leave_no_files_behind() {
    let machine = Machine::new();
    machine.send("q", vec![1; 1000]);
    machine.rig.disk().set_capacity(Some(used(&machine)));
    let files = || machine.rig.disk().list_raw().len();
    fill(&machine, 1, 1000);
    let before = files();
    for _ in 0..1000 {
        assert_eq!(kind(machine.rig.run(machine.queue("q").send(vec![1; 1000]))), ErrorKind::Full);
        machine.rig.step_keeper();
        machine.pass(millis(300));
        assert!(files() <= before + 2, "{:?}", machine.rig.disk().list_raw());
    }
    machine.reopen(Stop::Kill);
    assert!(files() <= before + 2);
    machine.rig.disk().set_capacity(None);
}

/// BB-032: carrying finds no room: it is tried again, the figure says so, nothing is lost.
#[test]
fn reclaim_without_room_is_told_and_tried_again() {
    let machine = Machine::with(small());
    machine.rig.run(machine.queue("q").send_batch((0..12).map(|n| vec![n; 1000]))).unwrap();
    for _ in 0..3 {
        machine.rig.run(machine.queue("busy").send_batch((0..12).map(|n| vec![n; 1000]))).unwrap();
    }
    machine.rig.disk().set_capacity(Some(used(&machine)));
    machine.rig.run(machine.queue("busy").purge(&[State::Ready])).unwrap();
    for _ in 0..4 {
        machine.pass(secs(11));
    }
    assert_eq!(machine.counts("q"), [12, 0, 0, 0]);
    machine.rig.disk().set_capacity(None);
    assert_small(&machine);
    assert_eq!(machine.drain("q").len(), 12);
}

/// BB-136: a damaged message does not keep its segment, and is not handed out as something else: it is
/// set aside, and its bytes are kept beside the log.
#[test]
fn a_body_that_cannot_be_read_any_more_does_not_pin_its_segment() {
    let machine = Machine::with(small());
    let id = machine.send("old", "damaged body");
    machine.send("old", "sound body");
    machine.rig.run(machine.queue("more").send_batch((0..16).map(|n| vec![n; 1000]))).unwrap();
    damage(&machine, b"damaged body");
    churn(&machine, 2000, |_| {});
    machine.rig.run(machine.queue("more").purge(&State::ALL)).unwrap();
    assert_small(&machine);
    for stop in [None, Some(Stop::Kill), Some(Stop::KillWithoutIndex), Some(Stop::Close)] {
        stop.map(|stop| machine.reopen(stop));
        let seen = machine.peek("old");
        assert_eq!(seen.iter().map(|view| view.state).collect::<Vec<_>>(), [State::Dead, State::Ready]);
        let dead = seen[0].dead.as_ref().unwrap();
        assert_eq!((seen[0].id, dead.reason, seen[0].body.len()), (id, reappear::DeadReason::Unreadable, 0));
        assert!(seen[0].unreadable.as_ref().is_some_and(|why| why.contains("quarantine")), "{seen:?}");
    }
    let kept: Vec<_> = machine.rig.disk().list_raw().into_iter().map(|(path, _)| path).collect();
    assert!(kept.iter().any(|path| path.starts_with("/store/quarantine")), "{kept:?}");
    // Put back to work it is found to be unreadable again; never handed out with another body.
    machine.rig.run(machine.queue("old").redrive(Default::default(), None)).unwrap();
    assert_eq!(kind(machine.rig.run(machine.queue("old").receive().one())), ErrorKind::Corrupt);
    assert_eq!(machine.drain("old"), ["sound body"]);
    // It can be carried on as often as it must, and goes like any other.
    churn(&machine, 2000, |_| {});
    assert_eq!(machine.counts("old"), [0, 0, 0, 1]);
    assert_eq!(machine.rig.run(machine.queue("old").purge(&[State::Dead])).unwrap(), 1);
    assert_small(&machine);
}

fn damage(machine: &Machine, body: &[u8]) {
    for (path, _) in machine.rig.disk().list_raw() {
        let mut bytes = machine.rig.disk().read_raw(&path).unwrap();
        if let Some(at) = bytes.windows(body.len()).position(|window| window == body) {
            bytes[at] ^= 1;
            machine.rig.disk().write_raw(&path, bytes);
        }
    }
}

/// BB-136: a segment that cannot be removed is told, and removed later.
#[test]
fn a_segment_that_cannot_be_removed_is_told_and_tried_again() {
    let machine = Machine::with(small());
    machine.rig.disk().fail_on(".seg", Fault { op: Op::Remove, after: 0, times: u64::MAX, kind: FaultKind::Eacces });
    for _ in 0..8 {
        machine.rig.run(machine.queue("busy").send_batch((0..20).map(|n| vec![n; 400]))).unwrap();
        machine.drain("busy");
    }
    machine.pass(secs(11));
    machine.pass(secs(11));
    let why = stats(&machine).reclaim_error.expect("it is told");
    assert!(why.contains("removing") && why.contains(".seg"), "{why}");
    machine.rig.disk().clear_faults();
    assert_small(&machine);
}

/// BB-038: wherever a full disk or quota strikes once, the answer is `Full`, or `Poisoned` where a sync of the
/// log was hit; never corruption, and nothing acknowledged is lost.
#[test]
fn no_room_is_told_as_no_room_wherever_it_strikes() {
    let plain = Plain::new();
    for kind in [FaultKind::Enospc, FaultKind::Edquot] {
        for op in CHANGES {
            for n in 0..plain.count(op) {
                let what = format!("{kind:?} in {op:?} {n}");
                let (run, done, error) = plain.struck(1, Fault { op, after: n, times: 1, kind });
                if let Some(error) = &error {
                    let unknown = [Op::Sync, Op::SyncDir].contains(&op);
                    let is_right = error.kind() == ErrorKind::Full || unknown && error.kind() == ErrorKind::Poisoned;
                    assert!(is_right, "{what}: {error}");
                }
                run.rig.disk().clear_faults();
                run.rig.power_cut_with(Loss::All);
                let found = look(&run.rig, &run.rig.open());
                plain.assert_before_or_after(&found, done, error.is_some(), &what);
            }
        }
    }
}

/// BB-031, BB-038: an opening that finds no room in any call opens all the same, or says that there is none.
#[test]
fn an_opening_without_room_opens_or_says_so() {
    for kind in [FaultKind::Enospc, FaultKind::Edquot] {
        for stop in STOPS {
            let machine = Machine::new();
            machine.rig.run(machine.queue("q").send_batch((0..40).map(|n| vec![n; 500]))).unwrap();
            let before = machine.recount();
            machine.stop(stop);
            let image = machine.rig.disk().snapshot();
            let mut opened = 0;
            for op in CHANGES {
                for n in 0..30 {
                    machine.rig.disk().restore(&image);
                    machine.rig.disk().fail(Fault { op, after: n, times: 1, kind });
                    match machine.rig.try_open() {
                        Ok(_) => opened += 1,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Full, "{op:?} {n} {stop:?}: {error}"),
                    }
                    machine.rig.disk().clear_faults();
                    machine.rig.kill();
                }
            }
            assert!(opened > 100, "{opened} openings");
            machine.rig.disk().restore(&image);
            machine.open();
            assert_eq!(machine.recount(), before);
        }
    }
}

// ---- the index -----------------------------------------------------------------------------------

/// An index that has grown out of proportion is renewed while it is in use, and the old one goes.
#[test]
fn an_index_that_has_outgrown_its_rows_is_renewed_while_it_is_used() {
    let machine = Machine::with(small());
    machine.rig.run(machine.queue("q").send_batch((0..300).map(|n| format!("{n}")))).unwrap();
    let before = stats(&machine).index_generation;
    churn(&machine, 20_000, |round| {
        machine.send("q", format!("{}", 300 + round));
    });
    let stats = stats(&machine);
    assert!(stats.index_generation > before + 1, "{stats:?}");
    assert!(stats.index_len < 1024 * 1024 && !stats.index_in_memory, "{stats:?}");
    for stop in STOPS {
        machine.reopen(stop);
        assert_eq!(machine.counts("q"), [1300, 0, 0, 0], "{stop:?}");
    }
    assert_eq!(machine.drain("q"), (0..1300).map(|n| n.to_string()).collect::<Vec<_>>());
}

/// By hand: the index is made anew from the log, and has the same messages.
#[test]
fn a_rebuild_by_hand_gives_the_same_index() {
    let machine = Machine::new();
    machine.rig.run(machine.queue("q").send_batch((0..300).map(|n| format!("{n}")))).unwrap();
    let held = machine.take_many("q", 20);
    let before = machine.peek("q");
    let report = machine.rig.run(machine.store().rebuild_index()).unwrap();
    assert!(report.agreed && report.messages == 300, "{report:?}");
    assert_eq!(machine.peek("q"), before);
    held.iter().for_each(|job| machine.ack(job));
    for stop in STOPS {
        machine.reopen(stop);
        assert_eq!(machine.counts("q"), [280, 0, 0, 0], "{stop:?}");
    }
    machine.stop(Stop::Close);
    machine.rig.set_options(small().rebuild_index(true));
    let store = machine.rig.open();
    assert!(matches!(store.report().index, reappear::IndexReport::Rebuilt { .. }));
    machine.rig.run(store.close()).unwrap();
    machine.leave();
}

/// While the index is in memory because the one on disk failed, segments are given back all the same, and
/// the store opens at any time with everything in it.
#[test]
fn space_is_given_back_while_the_index_is_in_memory_only() {
    let machine = Machine::with(small());
    machine.send("old", "the old one");
    machine.rig.fail_index(true);
    churn(&machine, 4000, |_| {});
    let stats = stats(&machine);
    assert!(stats.index_in_memory && stats.segments <= 4, "{stats:?}");
    for stop in STOPS {
        machine.rig.fail_index(false);
        let report = machine.reopen(stop);
        assert_eq!(machine.peek_one("old").body, b"the old one", "{stop:?} {report}");
    }
}
