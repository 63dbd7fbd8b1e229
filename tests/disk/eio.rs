//! Syncs of a real process that fail, one after the other.

use std::collections::BTreeSet;
use std::process::Command;

use reappear::blocking::Store;

use crate::Skip;
use crate::child::{ROUNDS, body, options, prepare};

/// The first so many syncs of each thread fail, one in each run.
const RUNS: usize = 20;

pub fn fdatasync() -> Result<(), Skip> {
    each("fdatasync")
}

pub fn fsync() -> Result<(), Skip> {
    each("fsync")
}

fn each(call: &str) -> Result<(), Skip> {
    let probe = Command::new("strace").args(["-f", "-o", "/dev/null", "true"]).output();
    let probe = probe.map_err(|error| Skip(format!("strace does not run: {error}")))?;
    if !probe.status.success() {
        return Err(Skip(format!("strace: {}", String::from_utf8_lossy(&probe.stderr).trim())));
    }
    let outcomes: Vec<Outcome> = (1..=RUNS).map(|n| run(call, n)).collect();
    let poisoned = outcomes.iter().filter(|outcome| outcome.refused > 0).count();
    let unopened = outcomes.iter().filter(|outcome| outcome.unopened).count();
    println!("  {call}: {poisoned} runs were poisoned, {unopened} did not open");
    assert!(poisoned + unopened > 1, "no sync ever failed");
    Ok(())
}

/// What the child was told.
#[derive(Default)]
struct Outcome {
    sent: Vec<(u64, usize)>,
    acked: BTreeSet<u64>,
    /// What the call of which the answer was an error may have done.
    unsure: Vec<String>,
    refused: usize,
    unopened: bool,
    done: bool,
}

impl Outcome {
    fn hear(&mut self, line: &str, asked: &mut String) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "unopened" => self.unopened = true,
            "send" | "ack" => line.clone_into(asked),
            "refused" => {
                assert_eq!(rest, "Poisoned", "after \"{asked}\"");
                self.refused += 1;
                self.unsure.push(std::mem::take(asked));
            }
            "sent" | "acked" | "received" | "nothing" => {
                assert_eq!(self.refused, 0, "\"{line}\" after the store was poisoned");
                match word {
                    "sent" => {
                        let n = asked.trim_start_matches("send ").parse().expect("what was asked for");
                        self.sent.push((rest.parse().expect("an id"), n));
                    }
                    "acked" => _ = self.acked.insert(rest.parse().expect("an id")),
                    _ => {}
                }
            }
            "done" => self.done = true,
            _ => panic!("the child says {line:?}"),
        }
    }
}

/// One run of the child, whose threads' `n`th sync fails, and what its store holds afterwards.
fn run(call: &str, n: usize) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-o", "/dev/null", "-e", &format!("trace={call}")]);
    strace.args(["-e", &format!("inject={call}:error=EIO:when={n}")]);
    strace.arg(std::env::current_exe().unwrap());
    prepare(&mut strace, "work", &path);
    let output = strace.output().expect("strace ran before");
    let mut outcome = Outcome::default();
    let mut asked = String::new();
    String::from_utf8_lossy(&output.stdout).lines().for_each(|line| outcome.hear(line, &mut asked));
    assert!(outcome.done || outcome.unopened, "{call} {n}: the child did not come to its end: {:?}", output.status);
    if outcome.refused == 0 && !outcome.unopened {
        assert_eq!(outcome.sent.len(), ROUNDS, "{call} {n}: nothing failed");
    }
    let store = Store::open_with(&path, options().segment_len(4096));
    let store = store.unwrap_or_else(|error| panic!("{call} {n}: the store does not open: {error}"));
    check(&store, &outcome, &format!("{call} {n}"));
    store.close().unwrap();
    outcome
}

/// Everything that was acknowledged is in effect, and nothing that nobody asked for.
fn check(store: &Store, outcome: &Outcome, what: &str) {
    let queue = store.queue("q").unwrap();
    let seen = if store.queues().unwrap().is_empty() { Vec::new() } else { queue.peek(None, usize::MAX).unwrap() };
    for (id, n) in &outcome.sent {
        let view = seen.iter().find(|view| view.id.get() == *id);
        if outcome.acked.contains(id) {
            assert!(view.is_none(), "{what}: message {id} was acknowledged and is back");
        } else if let Some(view) = view {
            assert_eq!(view.body, body(*n, 700), "{what}: the body of message {id}");
        } else {
            assert!(outcome.unsure.contains(&format!("ack {id}")), "{what}: message {id} is lost");
        }
    }
    for view in &seen {
        let known = outcome.sent.iter().any(|(id, _)| view.id.get() == *id);
        let unsure = |asked: &String| {
            asked.strip_prefix("send ").is_some_and(|n| n.parse().is_ok_and(|n| view.body == body(n, 700)))
        };
        // Only the first that was refused can have reached the disk.
        assert!(known || outcome.unsure.first().is_some_and(unsure), "{what}: message {} came from nowhere", view.id);
    }
}
