//! What the store's own limits once broke: a call as long as a frame may be stopped the store when anything shared
//! its frame; at `max_store_bytes` the index and then the log grew without end, because what makes them smaller was
//! refused for lack of room; with tiny segments a quiet store wrote for ever; and one damaged error text made a whole
//! queue unreadable.

use reappear::{Backoff, Delivery, ErrorKind, Nack, NewMessage, Options, QueueOptions, State};

use super::machine::{Machine, millis, secs, small};

fn stats(machine: &Machine) -> reappear::StoreStats {
    machine.rig.run(machine.store().stats()).unwrap()
}

fn endless() -> QueueOptions {
    QueueOptions::new().max_attempts(None).backoff(Backoff::NONE)
}

/// A message whose last error text is damaged is as whole as any other.
#[test]
fn a_damaged_error_text_costs_no_more_than_the_text() {
    let machine = Machine::with(small());
    machine.leave();
    machine.made("q", endless());
    machine.send("q", "one");
    machine.send("q", "two");
    machine.rig.run(machine.took("q").nack_with(Nack::new().error("find me please"))).unwrap();
    let files = machine.rig.disk().list_raw();
    let path =
        files.into_iter().map(|(path, _)| path).find(|path| path.to_string_lossy().ends_with("0001.seg")).unwrap();
    let mut bytes = machine.rig.disk().read_raw(&path).unwrap();
    let at = bytes.windows(7).position(|window| window == b"find me").unwrap();
    bytes[at + 5] ^= 1;
    machine.rig.disk().write_raw(&path, bytes);
    let seen = machine.rig.run(machine.queue("q").peek(None, 10));
    assert_eq!(seen.unwrap().len(), 2);
    assert_eq!(machine.take_many("q", 5).len(), 2);
}

/// A call near the longest frame there can be goes alone, whatever else is on its way.
#[test]
fn a_batch_near_the_cap_of_a_frame_is_sent_while_a_segment_is_carried() {
    let machine = Machine::with(Options::new().segment_len(1024 * 1024));
    machine.leave();
    machine.made("q", endless());
    machine.rig.run(machine.queue("q").send_batch((0..400).map(|_| vec![7; 1100]))).unwrap();
    for _ in 0..7 {
        machine.rig.run(machine.queue("noise").send_batch((0..4).map(|_| vec![1; 200_000]))).unwrap();
    }
    let noise = machine.queue("noise");
    let mut purge = Box::pin(noise.purge(&[State::Ready]));
    assert!(machine.rig.poll(&mut purge).is_none());
    machine.rig.step_committer();
    machine.rig.clock().advance(secs(11));
    machine.rig.step_committer();
    machine.rig.step_applier();
    let each = 1024 * 1024 - 300;
    let sent = machine.rig.run(machine.queue("q").send_batch((0..64).map(|_| vec![1; each])));
    assert_eq!(sent.unwrap().len(), 64);
}

/// At the limit an index that has outgrown its rows is renewed all the same, and sends work again.
#[test]
fn a_store_at_its_limit_renews_its_index_and_takes_sends_again_when_drained() {
    let machine = Machine::with(small().segment_len(64 * 1024).max_store_bytes(Some(30 * 64 * 1024)));
    machine.leave();
    machine.made("q", endless());
    while machine.rig.run(machine.queue("q").send_batch((0..20).map(|_| vec![1; 1000]))).is_ok() {
        machine.rig.step_keeper();
    }
    for _ in 0..1000 {
        let jobs = machine.take_many("q", 10);
        machine.rig.run(machine.queue("q").release_many(jobs.iter().map(Delivery::receipt))).unwrap();
        machine.pass(millis(100));
        machine.rig.step_keeper();
    }
    let grown = stats(&machine).index_len;
    while let Some(job) = machine.take("q") {
        machine.ack(&job);
        machine.pass(millis(20));
        machine.rig.step_keeper();
    }
    for _ in 0..5 {
        machine.pass(secs(11));
        machine.rig.step_keeper();
    }
    machine.rig.run(machine.queue("q").send("x")).unwrap_or_else(|error| panic!("index grew to {grown}: {error}"));
}

/// One batch that is longer than a segment, all of it in flight; then small messages until sends are refused, which
/// are then received and given back again and again. Returns the first refusal and how many rounds it took, or none.
fn churn_behind_a_long_batch(machine: &Machine, rounds: usize) -> Option<(usize, reappear::Error)> {
    machine.made("long", endless());
    machine.made("q", endless());
    machine.rig.run(machine.queue("long").send_batch((0..60).map(|_| vec![1; 20_000]))).unwrap();
    let held = machine.rig.run(machine.queue("long").receive().max(60).visibility(secs(40_000)).many()).unwrap();
    assert_eq!(held.len(), 60);
    while machine.rig.run(machine.queue("q").send_batch((0..20).map(|_| vec![1; 100]))).is_ok() {
        machine.rig.step_keeper();
    }
    for round in 0..rounds {
        let result = machine.rig.run(machine.queue("q").receive().max(10).many());
        let result = result.and_then(|jobs| {
            let receipts = jobs.iter().map(Delivery::receipt);
            machine.rig.run(machine.queue("q").release_many(receipts)).map(drop)
        });
        if let Err(error) = result {
            assert_eq!(error.kind(), ErrorKind::Full);
            // For good: nothing that its holders can do is taken any more.
            for _ in 0..20 {
                machine.pass(secs(11));
                machine.rig.step_keeper();
            }
            let acked = machine.rig.run(machine.queue("long").ack_many(held.iter().map(Delivery::receipt)));
            return acked.err().map(|error| (round, error));
        }
        machine.pass(millis(100));
        machine.rig.step_keeper();
    }
    None
}

/// At the limit the log is carried on like anywhere else, and stays bounded whatever consumers do.
#[test]
fn the_log_stays_near_its_limit_behind_a_long_batch() {
    let limit = 2 * 1024 * 1024;
    let machine = Machine::with(small().segment_len(64 * 1024).max_store_bytes(Some(limit)));
    machine.leave();
    let refused = churn_behind_a_long_batch(&machine, 5_000);
    let stats = stats(&machine);
    assert!(refused.is_none(), "{refused:?}: {stats:?}");
    assert!(stats.log_len_on_disk <= limit + 4 * 64 * 1024, "{} bytes: {stats:?}", stats.log_len_on_disk);
}

/// A full disk with a segment longer than others is drained as well.
#[test]
fn a_full_disk_does_not_wedge_behind_a_long_batch() {
    let machine = Machine::with(small().segment_len(64 * 1024));
    machine.leave();
    machine.rig.disk().set_capacity(Some(2 * 1024 * 1024));
    let refused = churn_behind_a_long_batch(&machine, 5_000);
    let stats = stats(&machine);
    machine.rig.disk().set_capacity(None);
    assert!(refused.is_none(), "{refused:?}: {stats:?}");
}

/// What cannot get smaller is not written again for ever.
#[test]
fn a_quiet_store_with_tiny_segments_writes_nothing() {
    for full in [false, true] {
        let machine = Machine::with(small().segment_len(4096));
        machine.leave();
        machine.made("q", endless());
        for _ in 0..100 {
            machine.rig.run(machine.queue("q").send(NewMessage::new(vec![1; 500]))).unwrap();
        }
        machine.rig.step_keeper();
        if full {
            let used: u64 = machine.rig.disk().list_raw().iter().map(|(_, len)| len).sum();
            machine.rig.disk().set_capacity(Some(used));
            while machine.rig.run(machine.queue("q").send(vec![1; 500])).is_ok() {
                machine.rig.step_keeper();
            }
        }
        // Not `pass`: it would not return.
        let quiet = |rounds| {
            for _ in 0..rounds {
                machine.rig.clock().advance(secs(11));
                for _ in 0..60 {
                    machine.rig.step_committer();
                    machine.rig.step_applier();
                }
                machine.rig.step_keeper();
            }
        };
        quiet(80);
        let before = stats(&machine).written_len;
        quiet(10);
        let wrote = stats(&machine).written_len - before;
        machine.rig.disk().set_capacity(None);
        assert_eq!(wrote, 0, "full: {full}");
    }
}

/// Many deaths in the turn of a large send leave the room that was made for it: they come with the next frames.
#[test]
fn what_comes_due_does_not_take_the_room_of_a_request() {
    let machine = Machine::with(small().segment_len(1024 * 1024).window(10_000));
    machine.made("q", QueueOptions::new().max_attempts(1));
    for _ in 0..8 {
        machine.rig.run(machine.queue("q").send_batch((0..1000).map(|_| "x"))).unwrap();
        let held = machine.rig.run(machine.queue("q").receive().max(1000).visibility(secs(5)).many()).unwrap();
        assert_eq!(held.len(), 1000);
    }
    machine.rig.clock().advance(secs(6));
    machine.send("q", vec![1; 500_000]);
    machine.rig.settle();
    assert_eq!(machine.counts("q"), [1, 0, 0, 8000]);
}
