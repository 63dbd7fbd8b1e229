//! Cases from public reports: size and content (24), names and paths (25), batches (28).

use std::collections::BTreeMap;
use std::path::Path;

use pollster::block_on;
use reappear::{ErrorKind, Nack, NewMessage, Options, QueueName, QueueOptions, RedriveFilter, Store};

use super::machine::{Machine, STOPS, Stop, kind, secs, small};

/// BB-145: what is too large is refused with an error to the caller, and nothing of it is stored.
#[test]
fn too_large_a_message_is_refused_whole() {
    let machine = Machine::with(small().max_body_len(1000));
    let queue = machine.queue("q");
    let last = |machine: &Machine| machine.rig.run(machine.store().stats()).unwrap().last_lsn;
    let before = last(&machine);
    for len in [1001, 2000, 1_000_000] {
        let error = machine.rig.run(queue.send(vec![1; len])).expect_err("too large");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("1000"), "it names the limit: {error}");
    }
    let batch = [vec![1; 10], vec![2; 1001], vec![3; 10]];
    assert_eq!(kind(machine.rig.run(queue.send_batch(batch))), ErrorKind::InvalidInput);
    assert_eq!(kind(machine.rig.run(queue.try_send(vec![1; 1001]))), ErrorKind::InvalidInput);
    assert_eq!(last(&machine), before, "nothing was written, not even the queue");
    machine.rig.run(queue.send(vec![1; 1000])).unwrap();
    assert_eq!(machine.took("q").body().len(), 1000);
}

/// BB-145: attributes have limits too, each refused by itself.
#[test]
fn too_many_or_too_large_attributes_are_refused() {
    let machine = Machine::new();
    let queue = machine.queue("q");
    let many = |count: usize| {
        (0..count).fold(NewMessage::new("x"), |message, n| message.attribute(format!("name {n}"), "value"))
    };
    let long = |len: usize| NewMessage::new("x").attribute("n", vec![1; len - 1]);
    for message in [many(65), long(64 * 1024 + 1), NewMessage::new("x").attribute("", "value")] {
        assert_eq!(kind(machine.rig.run(queue.send(message))), ErrorKind::InvalidInput);
    }
    for message in [many(64), long(64 * 1024)] {
        machine.rig.run(queue.send(message)).unwrap();
    }
    machine.reopen(Stop::KillWithoutIndex);
    assert_eq!(machine.took("q").attributes().len(), 64);
    assert_eq!(machine.took("q").attributes()["n"].len(), 64 * 1024 - 1);
}

/// BB-145: a batch above what can wait for the log is refused; many large ones in a row are not.
#[test]
fn a_batch_above_the_limit_is_refused_and_the_rest_goes_on() {
    let machine = Machine::with(small().max_body_len(200_000).max_pending_len(300_000).segment_len(512 * 1024));
    let queue = machine.queue("q");
    let batch = [vec![1; 200_000], vec![2; 200_000]];
    assert_eq!(kind(machine.rig.run(queue.send_batch(batch))), ErrorKind::InvalidInput);
    for n in 0..20 {
        machine.rig.run(queue.send(vec![n; 200_000])).unwrap();
    }
    machine.reopen(Stop::Kill);
    for n in 0..20 {
        let job = machine.took("q");
        assert!(job.body().len() == 200_000 && job.body().iter().all(|byte| *byte == n));
        machine.ack(&job);
    }
}

/// BB-146: an empty body is a body like any other.
#[test]
fn an_empty_body_round_trips() {
    for stop in STOPS {
        let machine = Machine::new();
        let dead = machine.made("dead", QueueOptions::new());
        machine.made("q", QueueOptions::new().max_attempts(1).dead_letter(dead.name().clone()));
        let messages = ["", "first", "", "second"].map(NewMessage::new);
        machine.rig.run(machine.queue("q").send_batch(messages)).unwrap();
        machine.send("q", NewMessage::new("").attribute("only", "attributes"));
        machine.reopen(stop);
        let seen: Vec<_> = machine.peek("q").into_iter().map(|view| (view.body, view.unreadable)).collect();
        let bodies = ["", "first", "", "second", ""].map(|body| (body.as_bytes().to_vec(), None));
        assert_eq!(seen, bodies, "{stop:?}");
        let held = machine.take_many("q", 10);
        assert_eq!(held.iter().map(|job| job.body()).collect::<Vec<_>>(), bodies.map(|(body, _)| body));
        assert_eq!(held[4].attributes()["only"].as_str(), Some("attributes"));
        for job in &held {
            machine.rig.run(job.reject("")).unwrap();
        }
        assert_eq!(machine.counts("dead"), [5, 0, 0, 0]);
        machine.reopen(stop);
        assert_eq!(machine.rig.run(machine.queue("dead").redrive(RedriveFilter::default(), None)).unwrap(), 5);
        assert_eq!(machine.drain("q"), ["", "first", "", "second", ""]);
    }
}

/// BB-146: bodies of any bytes and any length come back as they were.
#[test]
fn every_body_comes_back_as_it_was() {
    let machine = Machine::new();
    let lens = [0, 1, 2, 7, 255, 256, 447, 448, 449, 511, 512, 513, 1023, 4096, 16_000, 16_384, 70_000];
    let bodies: Vec<Vec<u8>> = lens.iter().flat_map(|len| [0, 0xFF, b'R'].map(|byte| vec![byte; *len])).collect();
    for body in &bodies {
        machine.rig.run(machine.queue("q").send(body.as_slice())).unwrap();
    }
    for stop in STOPS {
        machine.reopen(stop);
        let seen: Vec<_> = machine.peek("q").into_iter().map(|view| view.body).collect();
        assert!(seen == bodies, "{stop:?}");
    }
}

/// BB-148: names are limited in bytes, to the number the error says; a refused one leaves no trace.
#[test]
fn names_have_a_limit_in_bytes() {
    let machine = Machine::new();
    for (unit, width) in [("a", 1), ("é", 2), ("😀", 4)] {
        for len in [254_usize, 255, 256, 257, 4096] {
            let name = format!("{}{}", unit.repeat(len / width), "x".repeat(len % width));
            assert_eq!(name.len(), len);
            let made = QueueName::new(&name);
            if len > 255 {
                let error = made.expect_err("too long");
                assert_eq!(error.kind(), ErrorKind::InvalidInput);
                assert!(error.to_string().contains(&format!("{len} bytes; at most 255")), "{error}");
                assert_eq!(kind(machine.store().queue(name.as_str()).map(|_| ())), ErrorKind::InvalidInput);
            } else {
                let dead = machine.made(&name, QueueOptions::new());
                let other = format!("s{}", &name[unit.len()..]);
                machine.made(&other, QueueOptions::new().max_attempts(1).dead_letter(dead.name().clone()));
                machine.send(&other, "x");
                machine.rig.run(machine.took(&other).nack_with(Nack::new().error("e".repeat(4096)))).unwrap();
                machine.reopen(Stop::KillWithoutIndex);
                let moved = machine.took(&name);
                assert_eq!(moved.dead_letter().unwrap().origin.as_str(), other);
                machine.ack(&moved);
                for name in [&other, &name] {
                    machine.rig.run(machine.queue(name).delete(false)).unwrap();
                }
            }
        }
    }
    assert!(machine.rig.run(machine.store().queues()).unwrap().is_empty());
}

/// BB-149: each name is refused, or is a queue of its own, over restarts; none is a file name.
#[test]
fn a_name_is_refused_or_is_a_queue_of_its_own() {
    let machine = Machine::new();
    let paths = |machine: &Machine| -> Vec<_> {
        let files = machine.rig.disk().list_raw().into_iter().map(|(path, _)| path);
        files.filter(|path| path.extension().is_none_or(|e| e != "seg")).collect()
    };
    let before = paths(&machine);
    for refused in ["", "a\0b", "a\nb", "\t", "\u{7f}", "\u{85}"] {
        assert_eq!(kind(machine.store().queue(refused).map(|_| ())), ErrorKind::InvalidInput, "{refused:?}");
    }
    let names = [
        " a ",
        "a",
        "a/b",
        "../x",
        "..",
        ".",
        "/",
        "a\\b",
        "CON",
        "nul.txt",
        "Q",
        "q",
        "\u{e9}",
        "e\u{301}",
        "\u{202e}abc",
        "\u{200b}",
        "😀",
        "%2F",
        "*",
        "?",
        "$HOME",
        "LOCK",
        "STORE",
        "CHECKPOINT",
        "log",
        "index",
        "quarantine",
        "STORE.tmp",
        "0000000001.seg",
        "-rf",
        "\"quoted\"",
        "ﬁ",
        "fi",
        "ß",
        "SS",
    ];
    for name in names {
        machine.rig.run(machine.queue(name).create(None)).unwrap();
        machine.send(name, name);
    }
    for stop in STOPS {
        machine.reopen(stop);
        let all: BTreeMap<_, _> = machine.recount();
        assert_eq!(all.len(), names.len(), "none was taken for another");
        for name in names {
            assert_eq!(all[name].len(), 1, "{name:?}");
            assert_eq!(all[name][0].body, name.as_bytes());
        }
    }
    for name in names {
        assert_eq!(machine.rig.run(machine.queue(name).delete(true)).unwrap(), 1);
    }
    assert_eq!(paths(&machine), before, "no file bears a queue's name");
}

fn tiny() -> Options {
    Options::new().segment_len(4096)
}

/// BB-151: when the directory goes away under a running store, calls fail before long, and no
/// empty store is made in its place.
#[test]
fn a_directory_that_disappears_is_noticed_and_not_made_again() {
    type Way = (&'static str, fn(&Path));
    let ways: [Way; 3] = [
        ("removed", |path| std::fs::remove_dir_all(path).unwrap()),
        ("renamed", |path| std::fs::rename(path, path.with_extension("away")).unwrap()),
        ("replaced", |path| {
            std::fs::rename(path, path.with_extension("away")).unwrap();
            std::fs::create_dir(path).unwrap();
        }),
    ];
    for (way, act) in ways {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let store = block_on(Store::open_with(&path, tiny())).unwrap();
        let queue = store.queue("q").unwrap();
        block_on(queue.send("before")).unwrap();
        act(&path);
        // A spare segment may be there already; then the next one must be made.
        let sent = (0..40).take_while(|_| block_on(queue.send(vec![1; 1000])).is_ok()).count();
        assert!(sent < 40, "{way}: {sent} sends went into nowhere");
        assert_eq!(kind(block_on(queue.send("x"))), ErrorKind::Poisoned, "{way}");
        let _ = block_on(store.close());
        drop((store, queue));
        let left = std::fs::read_dir(&path).map(|entries| entries.count()).unwrap_or(0);
        assert_eq!(left, 0, "{way}: nothing is made in its place");
        if way != "removed" {
            let store = block_on(Store::open_with(path.with_extension("away"), tiny())).unwrap();
            let seen = block_on(store.queue("q").unwrap().peek(None, 100)).unwrap();
            assert!(seen.len() > sent, "{way}: what was acknowledged is there");
            block_on(store.close()).unwrap();
        }
    }
}

/// BB-161: each receipt of a batch has a result of its own, in order, and the good ones are done.
#[test]
fn one_bad_receipt_does_not_fail_the_others() {
    for verb in 0..5 {
        for stop in STOPS {
            let machine = Machine::new();
            for name in ["q", "other"] {
                machine.rig.run(machine.queue(name).send_batch(["a", "b", "c", "d"])).unwrap();
            }
            let stale = machine.took("q");
            machine.rig.run(stale.nack_with(Nack::new().delay(secs(1000)))).unwrap();
            let gone = machine.took("q");
            machine.ack(&gone);
            let (good, last) = (machine.took("q"), machine.took("q"));
            let foreign = machine.took("other");
            let receipts = [&good, &stale, &gone, &good, &foreign, &last].map(|job| job.receipt());
            let queue = machine.queue("q");
            let rig = &machine.rig;
            let results = match verb {
                0 => rig.run(queue.ack_many(receipts)),
                1 => rig.run(queue.extend_many(receipts, secs(100))),
                2 => rig.run(queue.nack_many(receipts, Nack::new().delay(secs(100)))),
                3 => rig.run(queue.release_many(receipts)),
                _ => rig.run(queue.reject_many(receipts, "no")),
            };
            let kinds: Vec<_> = results.unwrap().into_iter().map(|result| result.map_err(|e| e.kind())).collect();
            let twice = match verb {
                0 => Err(ErrorKind::NotFound),
                1 => Ok(()),
                _ => Err(ErrorKind::StaleReceipt),
            };
            let expected = [
                Ok(()),
                Err(ErrorKind::StaleReceipt),
                Err(ErrorKind::NotFound),
                twice,
                Err(ErrorKind::InvalidInput),
                Ok(()),
            ];
            assert_eq!(kinds, expected, "verb {verb}");
            machine.reopen(stop);
            let counts = [[0, 1, 0, 0], [0, 1, 2, 0], [0, 3, 0, 0], [2, 1, 0, 0], [0, 1, 0, 2]];
            assert_eq!(machine.counts("q"), counts[verb], "verb {verb}, {stop:?}");
            assert_eq!(machine.counts("other"), [3, 0, 1, 0]);
        }
    }
}

/// BB-161: cut off in the middle, a batch of settles is done whole or not at all, and never twice.
#[test]
fn a_batch_of_settles_that_is_cut_off_is_whole_or_undone() {
    for steps in 0..3 {
        for stop in STOPS {
            let machine = Machine::new();
            machine.rig.run(machine.queue("q").send_batch((0..20).map(|n| format!("{n}")))).unwrap();
            let receipts: Vec<_> = machine.take_many("q", 20).iter().map(|job| job.receipt()).collect();
            let queue = machine.queue("q");
            let mut call = Box::pin(queue.ack_many(receipts));
            assert!(machine.rig.poll(&mut call).is_none());
            for _ in 0..steps {
                machine.rig.step_committer();
            }
            let answered = machine.rig.poll(&mut call).is_some();
            drop(call);
            machine.reopen(stop);
            let left = machine.peek("q").len();
            assert!(left == 0 || left == 20 && !answered, "{stop:?} after {steps} steps: {left}");
        }
    }
}
