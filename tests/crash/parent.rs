//! Kills, and the model of what the child was told.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use reappear::blocking::Store;
use reappear::{MessageView, State};

use crate::child::{body, options};
use crate::{CHILD, Dice, SEED, STORE};

const ROUNDS: u64 = 60;

pub fn start(job: &str, store: &Path, seed: u64) -> (Child, Receiver<String>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["the_child_does_what_it_is_told", "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, job)
        .env(STORE, store)
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let (says, lines) = channel();
    std::thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            if let Some(text) = line.strip_prefix('@') {
                let _ = says.send(text.to_owned());
            }
        }
    });
    (child, lines)
}

/// A message as the child was told of it.
#[derive(Clone, Debug)]
struct Known {
    tag: u64,
    epoch: u32,
}

#[derive(Default)]
struct Model {
    live: BTreeMap<u64, Known>,
    /// The call whose answer is missing.
    open: Option<String>,
    highest: u64,
    calls: u64,
    deliveries: u64,
}

impl Model {
    fn hear(&mut self, line: &str) {
        let mut words = line.split(' ');
        match words.next().unwrap_or("") {
            "opened" => {}
            "sent" => {
                let id: u64 = words.next().unwrap().parse().unwrap();
                assert!(id > self.highest, "id {id} after {}", self.highest);
                self.highest = id;
                let call = self.answered();
                let tag = call.rsplit(' ').next().unwrap().parse().unwrap();
                if let Some(acked) = call.strip_prefix("batch ") {
                    let acked: u64 = acked.split(' ').next().unwrap().parse().unwrap();
                    assert!(self.live.remove(&acked).is_some(), "{acked} was acked twice");
                }
                self.live.insert(id, Known { tag, epoch: 0 });
            }
            "got" => {
                self.answered();
                for seen in words.filter(|word| !word.is_empty()) {
                    let numbers: Vec<u64> = seen.split(':').map(|n| n.parse().unwrap()).collect();
                    let known = self.live.get_mut(&numbers[0]).unwrap_or_else(|| panic!("{seen} came after its ack"));
                    assert_eq!(numbers[3], known.tag, "the body of another message");
                    known.epoch += 1;
                    assert_eq!((numbers[1], numbers[2]), (known.epoch.into(), known.epoch.into()), "epoch of {seen}");
                    self.deliveries += 1;
                }
            }
            "ok" => {
                let call = self.answered();
                if let Some(id) = call.strip_prefix("ack ") {
                    assert!(self.live.remove(&id.parse().unwrap()).is_some(), "{id} was acked twice");
                }
            }
            "refused" => drop(self.answered()),
            _ => {
                assert!(self.open.is_none(), "two calls at a time");
                self.open = Some(line.to_owned());
            }
        }
    }

    fn answered(&mut self) -> String {
        self.calls += 1;
        self.open.take().expect("an answer without a call")
    }

    /// Compares with what the store has, and takes over what the open call may have done.
    fn agree(&mut self, store: &Store) {
        let open = self.open.take().unwrap_or_default();
        let word = |n: usize| open.split(' ').nth(n).and_then(|w| w.parse::<u64>().ok());
        let (maybe_gone, maybe_new) = match open.split(' ').next() {
            Some("ack") => (word(1), None),
            Some("batch") => (word(1), word(2)),
            Some("send") => (None, word(1)),
            _ => (None, None),
        };
        let mut found: BTreeMap<u64, MessageView> = BTreeMap::new();
        for queue in store.queues().unwrap() {
            let seen = store.queue(queue.name.as_str()).unwrap().peek(None, usize::MAX).unwrap();
            let count = |state| seen.iter().filter(|view| view.state == state).count() as u64;
            let recount = (count(State::Ready), count(State::Delayed), count(State::InFlight), count(State::Dead));
            assert_eq!((queue.ready, queue.delayed, queue.in_flight, queue.dead), recount, "counters");
            found.extend(seen.into_iter().map(|view| (view.id.get(), view)));
        }
        let (mut gone, mut new) = (false, false);
        for (id, view) in &found {
            match self.live.get(id) {
                Some(known) => {
                    assert_eq!(view.body, body(known.tag), "body of {id}");
                    let received = open.starts_with("receive");
                    let exact = view.epoch == known.epoch || received && view.epoch == known.epoch + 1;
                    assert!(exact && view.receive_count == view.epoch, "epoch {} of {id}: {known:?}", view.epoch);
                }
                None => {
                    assert_eq!(Some(&view.body), maybe_new.map(body).as_ref(), "{id} came from nowhere");
                    new = true;
                }
            }
        }
        for id in self.live.keys().filter(|id| !found.contains_key(id)) {
            assert_eq!(Some(*id), maybe_gone, "{id} is lost");
            gone = true;
        }
        assert!(!open.starts_with("batch") || gone == new, "half a batch");
        self.highest = found.keys().max().copied().unwrap_or(0).max(self.highest);
        let tag = |view: &MessageView| String::from_utf8_lossy(&view.body).trim_end_matches('.').parse().unwrap();
        self.live = found.iter().map(|(id, view)| (*id, Known { tag: tag(view), epoch: view.epoch })).collect();
    }
}

#[test]
fn nothing_acknowledged_is_lost_over_sixty_kills() {
    let seed = std::env::var("REAPPEAR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("REAPPEAR_SEED={seed}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let mut dice = Dice(seed);
    let mut model = Model::default();
    for round in 0..ROUNDS {
        let (mut child, lines) = start("mixed", &path, seed * 1000 + round);
        let until = Duration::from_millis(2 + dice.below(60));
        let mut fatal: Option<Instant> = None;
        loop {
            let left = fatal.map_or(Duration::from_secs(30), |at| at.saturating_duration_since(Instant::now()));
            match lines.recv_timeout(left) {
                Ok(line) => {
                    if line == "opened" {
                        fatal = Some(Instant::now() + until);
                    }
                    model.hear(&line);
                    if fatal.is_some_and(|at| Instant::now() >= at) {
                        break;
                    }
                }
                Err(_) if fatal.is_some() => break,
                Err(error) => panic!("round {round}: the child says nothing: {error}"),
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        lines.iter().for_each(|line| model.hear(&line));
        let store = Store::open_with(&path, options()).unwrap();
        model.agree(&store);
        store.close().unwrap();
    }
    println!("{ROUNDS} kills, {} calls, {} deliveries", model.calls, model.deliveries);
    assert!(model.calls > ROUNDS * 5 && model.deliveries > ROUNDS, "the child hardly got to work");
}
