//! The contract's table of verbs: each refusal with its kind and nothing written; the defaults; every
//! kind of error is reached.

use reappear::testing::{Fault, FaultKind, Op, Rig};
use reappear::{
    Backoff, Delivery, Durability, ErrorKind, Nack, NewMessage, OnOpen, Options, QueueOptions, RedriveFilter, State,
};
use std::collections::BTreeSet;
use std::time::Duration;

use super::machine::{Machine, Stop, kind, secs, small};

fn last_lsn(machine: &Machine) -> reappear::Lsn {
    machine.rig.run(machine.store().stats()).unwrap().last_lsn
}

/// Runs `calls`, which must all be refused with `wanted`, and checks that nothing was written.
fn refused(machine: &Machine, wanted: ErrorKind, calls: impl FnOnce(&Machine) -> Vec<(&'static str, ErrorKind)>) {
    let before = last_lsn(machine);
    for (call, got) in calls(machine) {
        assert_eq!(got, wanted, "{call}");
    }
    assert_eq!(last_lsn(machine), before, "a refused call writes nothing");
}

#[test]
fn every_verb_refuses_an_unknown_queue_where_queues_are_not_created() {
    let machine = Machine::with(small().create_queues(false));
    refused(&machine, ErrorKind::NotFound, |m| {
        let (rig, queue) = (&m.rig, m.queue("unknown"));
        let mut batch = m.store().batch();
        batch.send(&queue, "x");
        vec![
            ("send", kind(rig.run(queue.send("x")))),
            ("try_send", kind(rig.run(queue.try_send("x")))),
            ("send_batch", kind(rig.run(queue.send_batch(["x", "y"])))),
            ("batch", kind(rig.run(batch.commit()))),
            ("receive", kind(rig.run(queue.receive().one()))),
            ("redrive", kind(rig.run(queue.redrive(RedriveFilter::default(), None)))),
            ("peek", kind(rig.run(queue.peek(None, 1)))),
            ("stats", kind(rig.run(queue.stats()))),
            ("purge", kind(rig.run(queue.purge(&State::ALL)))),
            ("pause", kind(rig.run(queue.pause()))),
            ("resume", kind(rig.run(queue.resume()))),
            ("configure", kind(rig.run(queue.configure(QueueOptions::new())))),
            ("delete", kind(rig.run(queue.delete(true)))),
        ]
    });
}

#[test]
fn where_queues_are_created_only_sending_and_receiving_create_them() {
    let machine = Machine::new();
    refused(&machine, ErrorKind::NotFound, |m| {
        let (rig, queue) = (&m.rig, m.queue("unknown"));
        vec![
            ("redrive", kind(rig.run(queue.redrive(RedriveFilter::default(), None)))),
            ("peek", kind(rig.run(queue.peek(None, 1)))),
            ("stats", kind(rig.run(queue.stats()))),
            ("purge", kind(rig.run(queue.purge(&State::ALL)))),
            ("pause", kind(rig.run(queue.pause()))),
            ("configure", kind(rig.run(queue.configure(QueueOptions::new())))),
            ("delete", kind(rig.run(queue.delete(false)))),
        ]
    });
    assert!(machine.take("received").is_none(), "an empty queue is no error");
    machine.send("sent", "x");
    assert_eq!(machine.rig.run(machine.store().queues()).unwrap().len(), 2);
}

#[test]
fn arguments_out_of_range_are_refused() {
    let machine = Machine::new();
    machine.send("q", "x");
    let job = machine.took("q");
    let other = machine.queue("other");
    machine.rig.run(other.create(None)).unwrap();
    refused(&machine, ErrorKind::InvalidInput, |m| {
        let (rig, queue) = (&m.rig, m.queue("q"));
        let text = || "e".repeat(4 * 1024 + 1);
        vec![
            ("a long body", kind(rig.run(queue.send(vec![0; 1024 * 1024 + 1])))),
            ("a ttl within the delay", kind(rig.run(queue.send(NewMessage::new("x").delay(secs(5)).ttl(secs(5)))))),
            ("max 0", kind(rig.run(queue.receive().max(0).many()))),
            ("max 1001", kind(rig.run(queue.receive().max(1001).many()))),
            ("visibility 0", kind(rig.run(queue.receive().visibility(Duration::ZERO).one()))),
            ("visibility above the limit", kind(rig.run(queue.receive().visibility(secs(43_201)).one()))),
            ("extend above the limit", kind(rig.run(job.extend(secs(43_201))))),
            ("a long error text", kind(rig.run(job.nack_with(Nack::new().error(text()))))),
            ("a long reason", kind(rig.run(job.reject(text())))),
            ("delete with messages", kind(rig.run(queue.delete(false)))),
        ]
    });
    machine.ack(&job);
}

#[test]
fn options_of_a_queue_out_of_range_are_refused_at_create_and_configure() {
    let machine = Machine::new();
    machine.made("q", QueueOptions::new());
    let wrong = [
        QueueOptions::new().visibility_timeout(Duration::ZERO),
        QueueOptions::new().visibility_timeout(secs(43_201)),
        QueueOptions::new().max_visibility_timeout(Duration::ZERO),
        QueueOptions::new().max_visibility_timeout(secs(366 * 86_400 + 1)),
        QueueOptions::new().max_attempts(0),
        QueueOptions::new().max_in_flight(0),
        QueueOptions::new().backoff(Backoff::fixed(Duration::MAX)),
    ];
    refused(&machine, ErrorKind::InvalidInput, |m| {
        let both = |options: &QueueOptions| {
            [
                ("create", kind(m.rig.run(m.queue("new").create(options.clone())))),
                ("configure", kind(m.rig.run(m.queue("q").configure(options.clone())))),
            ]
        };
        wrong.iter().flat_map(both).collect()
    });
    assert_eq!(kind(machine.rig.run(machine.queue("q").create(None))), ErrorKind::AlreadyExists);
}

#[test]
fn options_of_a_store_out_of_range_are_refused_and_nothing_is_made() {
    let wrong = [
        Options::new().segment_len(4095),
        Options::new().segment_len(4096 + 1),
        Options::new().segment_len(u32::MAX),
        Options::new().max_body_len(16 * 1024 * 1024 + 1),
        Options::new().max_pending_len(1024),
        Options::new().durability(Durability::Interval(Duration::ZERO)),
        Options::new().durability(Durability::Interval(secs(3601))),
        Options::new().window(7),
        Options::new().queue_defaults(QueueOptions::new().max_attempts(0)),
    ];
    for options in wrong {
        let rig = Rig::new(1);
        let shown = format!("{options:?}");
        rig.set_options(options);
        assert_eq!(kind(rig.try_open()), ErrorKind::InvalidInput, "{shown}");
        assert!(rig.disk().list_raw().is_empty(), "{shown}");
    }
}

#[test]
fn every_settle_refuses_a_receipt_that_is_stale_or_gone() {
    let machine = Machine::new();
    machine.send("q", "a");
    machine.send("q", "b");
    let stale = machine.took("q");
    machine.rig.run(stale.release()).unwrap();
    let gone = machine.took("q");
    machine.ack(&gone);
    for job in [&stale, &gone] {
        // The released message was the one received and acknowledged next.
        refused(&machine, ErrorKind::NotFound, |m| settles(m, job));
    }
    let stale = machine.took("q");
    machine.rig.run(stale.release()).unwrap();
    refused(&machine, ErrorKind::StaleReceipt, |m| settles(m, &stale));
}

fn settles(m: &Machine, job: &Delivery) -> Vec<(&'static str, ErrorKind)> {
    let rig = &m.rig;
    let mut batch = m.store().batch();
    batch.send(&m.queue("q"), "never sent").ack(job);
    vec![
        ("ack", kind(rig.run(job.ack()))),
        ("ack_lazily", kind(rig.run(job.ack_lazily()))),
        ("extend", kind(rig.run(job.extend(secs(1))))),
        ("extend by nothing", kind(rig.run(job.extend(Duration::ZERO)))),
        ("nack", kind(rig.run(job.nack()))),
        ("release", kind(rig.run(job.release()))),
        ("reject", kind(rig.run(job.reject("no")))),
        ("batch", kind(rig.run(batch.commit()))),
    ]
}

#[test]
fn a_refused_item_refuses_the_whole_batch_and_is_named() {
    let machine = Machine::new();
    machine.rig.run(machine.queue("q").send_batch(["a", "b"])).unwrap();
    let (first, gone) = (machine.took("q"), machine.took("q"));
    machine.ack(&gone);
    let before = last_lsn(&machine);
    let mut batch = machine.store().batch();
    batch.ack(&first).send(&machine.queue("made by it"), "x").ack(&gone);
    let error = machine.rig.run(batch.commit()).expect_err("its third item is refused");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().starts_with("item 3: "), "{error}");
    let mut twice = machine.store().batch();
    twice.ack(&first).extend(&first, secs(5));
    assert_eq!(kind(machine.rig.run(twice.commit())), ErrorKind::InvalidInput);
    assert_eq!(last_lsn(&machine), before);
    assert_eq!(machine.rig.run(machine.store().queues()).unwrap().len(), 1);
    machine.ack(&first);
}

#[test]
fn the_defaults_are_those_of_the_contract() {
    let machine = Machine::new();
    machine.send("q", "x");
    let options = machine.rig.run(machine.queue("q").stats()).unwrap().options;
    let spelled_out = QueueOptions::new()
        .visibility_timeout(secs(60))
        .max_visibility_timeout(secs(43_200))
        .max_attempts(10)
        .backoff(Backoff::exponential(secs(1), secs(300)))
        .max_in_flight(None)
        .dead_letter(None)
        .keep_expired(false)
        .strict_deadline(false);
    assert_eq!(options, spelled_out);
    assert_eq!(machine.rig.run(machine.store().stats()).unwrap().durability, Durability::Always);
    assert_eq!(OnOpen::default(), OnOpen::Keep);
    // Ten deliveries, with back-off from 1 s, doubling up to 5 min, a fifth either way.
    for attempt in 1..=10_u32 {
        let job = machine.took("q");
        assert_eq!((job.attempts(), job.priority()), (attempt, 0));
        let before = machine.rig.run(machine.store().stats()).unwrap().now;
        machine.rig.run(job.nack()).unwrap();
        if attempt < 10 {
            let delay = machine.peek_one("q").visible_at.since(before);
            let middle = secs(300).min(secs(1 << (attempt - 1)));
            assert!(middle * 4 / 5 <= delay && delay <= middle * 6 / 5, "attempt {attempt}: {delay:?}");
            machine.pass(delay);
        }
    }
    assert_eq!(machine.counts("q"), [0, 0, 0, 1]);
}

#[test]
fn every_kind_of_error_is_reached() {
    let mut seen = BTreeSet::new();
    let mut see = |kind: ErrorKind| seen.insert(kind.as_str());
    let machine = Machine::new();
    let (rig, queue) = (&machine.rig, machine.queue("q"));
    see(kind(rig.run(queue.stats())));
    rig.run(queue.create(None)).unwrap();
    see(kind(rig.run(queue.create(None))));
    see(kind(rig.run(queue.receive().max(0).many())));
    machine.send("q", "x");
    let job = machine.took("q");
    rig.run(job.release()).unwrap();
    see(kind(rig.run(job.ack())));
    see(kind(rig.try_open()));
    let used: u64 = rig.disk().list_raw().iter().map(|(_, len)| len).sum();
    rig.disk().set_capacity(Some(used));
    let full = (0..100).find_map(|_| rig.run(queue.send(vec![0; 1000])).err()).expect("the disk is full");
    see(full.kind());
    rig.disk().set_capacity(None);
    let store = machine.store();
    machine.stop(Stop::Close);
    see(kind(rig.run(store.stats())));
    rig.disk().fail(Fault { op: Op::Open, after: 0, times: u64::MAX, kind: FaultKind::Eio });
    see(kind(rig.try_open()));
    rig.disk().clear_faults();
    rig.disk().set_network(true);
    see(kind(rig.try_open()));
    rig.disk().set_network(false);
    machine.open();
    rig.disk().fail(Fault { op: Op::Sync, after: 0, times: 1, kind: FaultKind::SyncLost });
    let queue = machine.queue("q");
    let _ = rig.run(queue.send("x"));
    see(kind(rig.run(queue.send("x"))));
    rig.disk().clear_faults();
    machine.stop(Stop::Kill);
    rig.disk().write_raw(rig.path().join("STORE"), vec![7; 512]);
    see(kind(rig.try_open()));
    let all = [
        "AlreadyExists",
        "Closed",
        "Corrupt",
        "Full",
        "InvalidInput",
        "Io",
        "Locked",
        "NotFound",
        "Poisoned",
        "StaleReceipt",
        "Unsupported",
    ];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), all);
}
