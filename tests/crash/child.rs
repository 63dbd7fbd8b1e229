//! What the process does that gets killed.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use reappear::blocking::{Queue, Store};
use reappear::{Backoff, Nack, Options, QueueOptions, Receipt};

use crate::{Dice, SEED, STORE};

pub fn options() -> Options {
    Options::new().segment_len(64 * 1024)
}

/// Says one line to the parent, at once. The mark tells it from the test harness's own output.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n@{text}").and_then(|()| out.flush()).expect("the parent listens");
}

pub fn run(job: &str) {
    let path = PathBuf::from(std::env::var_os(STORE).expect("the store is named"));
    let seed = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let store = Store::open_with(path, options()).expect("the store opens");
    say("opened");
    match job {
        "mixed" => mixed(&store, Dice(seed)),
        "verbs" => verbs(&store),
        "ack" => ack_and_exit(&store),
        "poison" => poison(&store),
        _ => panic!("there is no job {job:?}"),
    }
}

/// Random calls without an end.
fn mixed(store: &Store, mut dice: Dice) {
    let queues = ["a", "b"].map(|name| store.queue(name).unwrap());
    for queue in &queues {
        let _ = queue.create(QueueOptions::new().max_attempts(None).backoff(Backoff::NONE));
    }
    let mut held: Vec<Receipt> = Vec::new();
    loop {
        let queue = &queues[usize::try_from(dice.below(2)).unwrap()];
        match dice.below(10) {
            0..3 => send(queue, &mut dice),
            3..6 => receive(queue, &mut dice, &mut held),
            6..9 if !held.is_empty() => {
                let at = usize::try_from(dice.below(held.len() as u64)).unwrap();
                let receipt = held.swap_remove(at);
                settle(store, &receipt, &mut dice);
            }
            _ => {
                let Some(receipt) = held.pop() else { continue };
                let tag = dice.below(u64::MAX);
                say(&format!("batch {} {tag}", receipt.id()));
                let mut batch = store.batch();
                batch.ack(receipt).send(queue, body(tag));
                match batch.commit() {
                    Ok(ids) => say(&format!("sent {}", ids[0])),
                    Err(error) => say(&format!("refused {}", error.kind())),
                }
            }
        }
    }
}

pub fn body(tag: u64) -> Vec<u8> {
    let mut body = tag.to_string().into_bytes();
    body.resize(20 + usize::try_from(tag % 900).unwrap(), b'.');
    body
}

fn send(queue: &Queue, dice: &mut Dice) {
    let tag = dice.below(u64::MAX);
    say(&format!("send {tag}"));
    let id = queue.send(body(tag)).expect("sent");
    say(&format!("sent {id}"));
}

fn receive(queue: &Queue, dice: &mut Dice, held: &mut Vec<Receipt>) {
    let visibility = [Duration::from_millis(2), Duration::from_secs(3600)][usize::try_from(dice.below(2)).unwrap()];
    say(&format!("receive {}", queue.name()));
    let max = 1 + usize::try_from(dice.below(3)).unwrap();
    let got = queue.receive().max(max).visibility(visibility).many().expect("received");
    let seen: Vec<String> = got
        .iter()
        .map(|d| {
            let tag: u64 = String::from_utf8_lossy(d.body()).trim_end_matches('.').parse().expect("a tag");
            assert_eq!(d.body(), body(tag), "a body was changed");
            format!("{}:{}:{}:{tag}", d.id(), d.epoch(), d.receive_count())
        })
        .collect();
    held.extend(got.iter().map(|d| d.receipt()));
    say(&format!("got {}", seen.join(" ")));
}

fn settle(store: &Store, receipt: &Receipt, dice: &mut Dice) {
    let id = receipt.id();
    let verb = ["ack", "ack", "ack", "nack", "release", "extend"][usize::try_from(dice.below(6)).unwrap()];
    say(&format!("{verb} {id}"));
    let result = match verb {
        "ack" => store.ack(receipt),
        "nack" => store.nack(receipt, Nack::new().error("killed soon")),
        "release" => store.release(receipt),
        _ => store.extend(receipt, Duration::from_secs(7)),
    };
    match result {
        Ok(()) => say("ok"),
        Err(error) => say(&format!("refused {}", error.kind())),
    }
}

/// BB-025: each verb once; the parent kills right after the answer.
fn verbs(store: &Store) {
    let queue = store.queue("q").unwrap();
    let visible = Duration::from_secs(3600);
    let id = queue.send("acked").unwrap();
    let job = queue.receive().visibility(visible).one().unwrap().unwrap();
    assert_eq!(job.id(), id);
    job.ack().unwrap();
    for text in ["held", "nacked", "extended"] {
        queue.send(text).unwrap();
    }
    let jobs = queue.receive().max(3).visibility(visible).many().unwrap();
    jobs[1].nack_with(Nack::new().delay(Duration::ZERO)).unwrap();
    jobs[2].extend(Duration::from_secs(7200)).unwrap();
    say("ready");
    wait_to_be_killed();
}

fn wait_to_be_killed() -> ! {
    loop {
        std::thread::park();
    }
}

/// BB-028: everything is received and acknowledged, then the process ends without closing.
fn ack_and_exit(store: &Store) {
    let queue = store.queue("q").unwrap();
    let jobs = queue.receive().max(1000).many().unwrap();
    let results = queue.ack_many(jobs.iter().map(|job| job.receipt())).unwrap();
    assert!(results.iter().all(Result::is_ok));
    say(&format!("acked {}", jobs.len()));
    std::process::exit(0);
}

/// BB-082: a message that takes its process down with it.
fn poison(store: &Store) {
    let queue = store.queue("q").unwrap();
    while let Some(job) = queue.receive().visibility(Duration::from_millis(1)).one().unwrap() {
        if job.body() == b"boom" {
            say(&format!("boom {}", job.attempts()));
            std::process::abort();
        }
        job.ack().unwrap();
    }
    say("idle");
    store.close().unwrap();
}
