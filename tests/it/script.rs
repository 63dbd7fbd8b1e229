//! One fixed run over every verb, on a simulated disk whose calls can be struck one by one.
//!
//! The run is the same each time, message for message, so what a struck run leaves can be compared
//! with what the undisturbed run had shown before and after the step that was struck.

use std::cell::RefCell;
use std::collections::BTreeMap;

use reappear::testing::{Fault, Op, Rig};
use reappear::{
    Backoff, Delivery, Error, ErrorKind, MessageView, Nack, NewMessage, Options, QueueOptions, RedriveFilter, State,
    Store,
};

use super::history::{Look, Shown, glance, look};
use super::machine::secs;

/// Whether two runs show the same. Numbers of records are not the same in both where one of them was
/// disturbed in what nobody called for, so ids are left out; the messages stand in their order.
fn is_same(a: &Look, b: &Look) -> bool {
    let same_view = |(a, b): (&MessageView, &MessageView)| {
        let mut a = a.clone();
        a.id = b.id;
        a == *b
    };
    let same_queue = |((name, a), (other, b)): ((&String, &Shown), (&String, &Shown))| {
        let settings = (name, a.0, &a.1, a.2.len()) == (other, b.0, &b.1, b.2.len());
        settings && a.2.iter().zip(&b.2).all(same_view)
    };
    a.len() == b.len() && a.iter().zip(b).all(same_queue)
}

/// A store in the middle of the run.
pub(crate) struct Run {
    pub(crate) rig: Rig,
    pub(crate) store: Store,
    /// Deliveries of the queue `q` in the order in which they came, and of the others.
    held: RefCell<Vec<Delivery>>,
}

/// One step is one call, or one move of the clock.
type Step = (&'static str, fn(&Run) -> Result<(), Error>);

const NOISE: Step = ("send much", |run| run.send("noise", vec![b'n'; 700]));
const TAKE: Step = ("receive it", |run| run.receive("noise", 1));
const DONE: Step = ("ack it", |run| run.settle(run.last(), |job| run.rig.run(job.ack())));

/// The verbs, each once at least, with rotation, checkpoints, and the carrying and removal of segments.
/// Lazy acks are not among them: they may be undone.
const VERBS: [Step; 33] = [
    ("create a dead-letter queue", |run| run.rig.run(run.store.queue("dead")?.create(None))),
    ("create a queue", |run| run.rig.run(run.store.queue("q")?.create(rules()))),
    ("send a batch", |run| {
        let bodies = (0..12).map(|n| format!("{n}:{}", "b".repeat(400)));
        run.rig.run(run.store.queue("q")?.send_batch(bodies)).map(drop)
    }),
    ("send with a delay", |run| run.send("q", NewMessage::new("later").delay(secs(90)).priority(3))),
    ("send with a ttl", |run| run.send("q", NewMessage::new("short-lived").ttl(secs(5000)))),
    ("receive several", |run| run.receive("q", 9)),
    ("extend", |run| run.settle(0, |job| run.rig.run(job.extend(secs(7200))))),
    ("ack", |run| run.settle(0, |job| run.rig.run(job.ack()))),
    ("nack", |run| run.settle(1, |job| run.rig.run(job.nack_with(Nack::new().delay(secs(30)).error("not this time"))))),
    ("reject into the dead-letter queue", |run| run.settle(2, |job| run.rig.run(job.reject("no good")))),
    ("release", |run| run.settle(3, |job| run.rig.run(job.release()))),
    ("ack many", |run| {
        let receipts: Vec<_> = run.held.borrow()[4..6].iter().map(Delivery::receipt).collect();
        run.rig.run(run.store.ack_many(receipts))?.into_iter().collect()
    }),
    ("hand over in one batch", |run| {
        let mut batch = run.store.batch();
        batch.ack(&run.held.borrow()[6]).send(&run.store.queue("other")?, "handed over");
        run.rig.run(batch.commit()).map(drop)
    }),
    ("make the next segment ready", |run| {
        run.rig.step_keeper();
        Ok(())
    }),
    ("pause", |run| run.rig.run(run.store.queue("q")?.pause())),
    ("resume", |run| run.rig.run(run.store.queue("q")?.resume())),
    ("configure", |run| run.rig.run(run.store.queue("q")?.configure(rules().keep_expired(true)))),
    ("redrive a moved message", |run| {
        run.rig.run(run.store.queue("dead")?.redrive(RedriveFilter::default(), None)).map(drop)
    }),
    ("purge", |run| run.rig.run(run.store.queue("q")?.purge(&[State::Delayed])).map(drop)),
    ("receive in another queue", |run| run.receive("other", 1)),
    ("reject where there is no dead-letter queue", |run| {
        run.settle(run.last(), |job| run.rig.run(job.reject("set aside")))
    }),
    ("redrive", |run| run.rig.run(run.store.queue("other")?.redrive(RedriveFilter::default(), None)).map(drop)),
    ("let an idle second pass", |run| run.pass(2)),
    ("let deadlines pass", |run| run.pass(3700)),
    ("receive what came back", |run| run.receive("q", 2)),
    ("let a lifetime pass", |run| run.pass(1500)),
    ("create the queue of much", |run| run.rig.run(run.store.queue("noise")?.create(None))),
    ("let a checkpoint come", |run| run.pass(11)),
    ("try to send", |run| run.rig.run(run.store.queue("q")?.try_send("tried")).map(drop)),
    ("let another checkpoint come", |run| run.pass(11)),
    ("sync", |run| run.rig.run(run.store.sync()).map(drop)),
    ("delete a queue", |run| run.rig.run(run.store.queue("other")?.delete(true)).map(drop)),
    ("send at last", |run| run.send("q", "last")),
];

fn rules() -> QueueOptions {
    let dead = "dead".parse().ok();
    QueueOptions::new().max_attempts(3).visibility_timeout(secs(3600)).backoff(Backoff::NONE).dead_letter(dead)
}

/// All steps: the verbs, then much that comes and goes, so that the log's front is given up.
pub(crate) fn steps() -> Vec<Step> {
    let end: [Step; 2] =
        [("let a checkpoint come", |run| run.pass(11)), ("close", |run| run.rig.run(run.store.close()))];
    let noise = std::iter::repeat_n([NOISE, TAKE, DONE], 14).flatten();
    VERBS.into_iter().chain(noise).chain(end).collect()
}

impl Run {
    /// A store on a new disk, opened.
    pub(crate) fn begin(seed: u64) -> Self {
        let rig = Rig::new(seed);
        // The smallest segments, so that every few steps rotate.
        rig.set_options(Options::new().segment_len(4096));
        let store = rig.open();
        Self { rig, store, held: RefCell::default() }
    }

    fn send(&self, queue: &str, message: impl Into<NewMessage>) -> Result<(), Error> {
        self.rig.run(self.store.queue(queue)?.send(message)).map(drop)
    }

    fn receive(&self, queue: &str, max: usize) -> Result<(), Error> {
        let got = self.rig.run(self.store.queue(queue)?.receive().max(max).many())?;
        assert!(!got.is_empty(), "the run is made so that there is something in {queue}");
        self.held.borrow_mut().extend(got);
        Ok(())
    }

    fn last(&self) -> usize {
        self.held.borrow().len() - 1
    }

    fn settle(&self, at: usize, act: impl Fn(&Delivery) -> Result<(), Error>) -> Result<(), Error> {
        act(&self.held.borrow()[at])
    }

    fn pass(&self, time: u64) -> Result<(), Error> {
        self.rig.advance(secs(time));
        Ok(())
    }

    /// A delivery that nobody settled yet.
    pub(crate) fn a_delivery(&self) -> Delivery {
        self.held.borrow()[7].clone()
    }

    /// Goes on until a step fails or the disk is dead. Says how many steps returned `Ok`, and the error.
    fn go(&self, plain: &[Look]) -> (usize, Option<Error>) {
        let steps = steps();
        for (n, (name, step)) in steps.iter().enumerate() {
            if let Err(error) = step(self) {
                return (n, Some(error));
            }
            // Also in the runs that are not struck later: looking moves the index's thread.
            let seen = if n + 1 < steps.len() { glance(&self.rig, &self.store).ok() } else { None };
            if self.rig.disk().is_dead() || self.is_poisoned() {
                return (n + 1, None);
            }
            if let Some(seen) = seen {
                assert!(is_same(&plain[n + 1], &seen), "after {name}: the run is not the same each time");
            }
        }
        (steps.len(), None)
    }

    fn is_poisoned(&self) -> bool {
        match self.rig.run(self.store.stats()) {
            Ok(stats) => stats.poisoned.is_some(),
            Err(error) => error.kind() != ErrorKind::Closed,
        }
    }
}

/// The undisturbed run.
pub(crate) struct Plain {
    /// What was shown before the first step, and after each.
    looks: Vec<Look>,
    /// Calls of each kind that were made before the first step and at the end.
    calls: BTreeMap<Op, (u64, u64)>,
}

/// Calls that change something on the disk.
pub(crate) const CHANGES: [Op; 7] = [Op::Write, Op::Sync, Op::SetLen, Op::Create, Op::Rename, Op::Remove, Op::SyncDir];

impl Plain {
    pub(crate) fn new() -> Self {
        let run = Run::begin(1);
        let disk = run.rig.disk();
        let before = CHANGES.map(|op| disk.calls(op));
        let mut looks = vec![look(&run.rig, &run.store)];
        let steps = steps();
        for (n, (name, step)) in steps.iter().enumerate() {
            step(&run).unwrap_or_else(|error| panic!("{name}: {error}"));
            let before_close = looks.last().cloned().unwrap_or_default();
            looks.push(if n + 1 < steps.len() { look(&run.rig, &run.store) } else { before_close });
        }
        let calls = CHANGES.into_iter().zip(before).map(|(op, before)| (op, (before, disk.calls(op)))).collect();
        Self { looks, calls }
    }

    /// How many calls of this kind the steps make.
    pub(crate) fn count(&self, op: Op) -> u64 {
        let (before, after) = self.calls[&op];
        assert!(after > before, "the run makes no call of the kind {op:?}");
        after - before
    }

    /// The run, struck. Says how many steps returned `Ok`, and the error.
    pub(crate) fn struck(&self, seed: u64, fault: Fault) -> (Run, usize, Option<Error>) {
        let run = Run::begin(seed);
        run.rig.disk().fail(fault);
        let (done, error) = run.go(&self.looks);
        (run, done, error)
    }

    /// What was found after opening again is what was there before the struck step or after it; after
    /// it if it was acknowledged.
    #[track_caller]
    pub(crate) fn assert_before_or_after(&self, found: &Look, done: usize, failed: bool, what: &str) {
        let after = if failed { self.looks.get(done + 1) } else { None };
        if !is_same(found, &self.looks[done]) && !after.is_some_and(|after| is_same(found, after)) {
            let short = |look: &Look| -> Vec<_> {
                let ids =
                    |seen: &[MessageView]| seen.iter().map(|v| (v.id.get(), v.state, v.epoch)).collect::<Vec<_>>();
                look.iter().map(|(name, (paused, _, seen))| (name.clone(), *paused, ids(seen))).collect()
            };
            let name = steps().get(done).map_or("none any more", |(name, _)| *name);
            panic!(
                "{what}, in the step \"{name}\":\nfound  {:?}\nbefore {:?}\nafter  {:?}",
                short(found),
                short(&self.looks[done]),
                after.map(short)
            );
        }
    }
}
