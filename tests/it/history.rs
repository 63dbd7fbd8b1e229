//! Where a store runs, all that it shows, and a long random life for it.

use std::collections::BTreeMap;

use pollster::block_on;
use reappear::testing::Rig;
use reappear::{
    Backoff, Error, MessageId, MessageView, Nack, NewMessage, QueueOptions, Receipt, RedriveFilter, State, Store,
};

use super::machine::secs;

/// What carries a call to its end.
pub(crate) trait Host {
    fn run<F: Future>(&self, call: F) -> F::Output;
}

impl Host for Rig {
    fn run<F: Future>(&self, call: F) -> F::Output {
        Self::run(self, call)
    }
}

/// A store with threads of its own, on the real disk.
pub(crate) struct Real;

impl Host for Real {
    fn run<F: Future>(&self, call: F) -> F::Output {
        block_on(call)
    }
}

/// A queue: whether it is paused, its options, its messages.
pub(crate) type Shown = (bool, QueueOptions, Vec<MessageView>);

/// All that a store shows, by queue.
pub(crate) type Look = BTreeMap<String, Shown>;

/// What `store` shows, with its counters checked.
pub(crate) fn look(host: &impl Host, store: &Store) -> Look {
    let all = glance(host, store).unwrap();
    for stats in host.run(store.queues()).unwrap() {
        let name = stats.name.as_str();
        let seen = &all[name].2;
        let count = |state| seen.iter().filter(|view| view.state == state).count() as u64;
        let counted = [State::Ready, State::Delayed, State::InFlight, State::Dead].map(count);
        assert_eq!([stats.ready, stats.delayed, stats.in_flight, stats.dead], counted, "counters of {name}");
        assert!(seen.iter().all(|view| view.unreadable.is_none()), "{name} has a message without its body");
    }
    all
}

pub(crate) fn glance(host: &impl Host, store: &Store) -> Result<Look, Error> {
    let mut all = Look::new();
    for stats in host.run(store.queues())? {
        let seen = host.run(store.queue(stats.name.as_str())?.peek(None, 100_000))?;
        all.insert(stats.name.as_str().to_owned(), (stats.paused, stats.options, seen));
    }
    Ok(all)
}

/// How many messages are shown.
pub(crate) fn count(look: &Look) -> usize {
    look.values().map(|(.., seen)| seen.len()).sum()
}

const QUEUES: [&str; 4] = ["a", "b", "c", "dead"];

/// Random calls of every verb. All times are hours, so that nothing changes by itself meanwhile.
pub(crate) struct History {
    dice: u64,
    held: Vec<Receipt>,
    /// Every body that was sent.
    pub(crate) sent: BTreeMap<MessageId, Vec<u8>>,
}

impl History {
    pub(crate) fn new(seed: u64) -> Self {
        Self { dice: seed, held: Vec::new(), sent: BTreeMap::new() }
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        // Numbers that look random and are the same for the same seed (SplitMix64).
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.dice ^ (self.dice >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % end as u64).unwrap()
    }

    fn options(&mut self) -> QueueOptions {
        let attempts = [None, Some(2), Some(3)][self.below(3)];
        let dead = (self.below(2) == 0).then(|| "dead".parse().unwrap());
        QueueOptions::new().max_attempts(attempts).backoff(Backoff::fixed(secs(4 * 3600))).dead_letter(dead)
    }

    /// The queues, before the first step.
    pub(crate) fn create(&mut self, host: &impl Host, store: &Store) {
        for name in QUEUES.into_iter().rev() {
            let options = if name == "dead" { QueueOptions::new() } else { self.options() };
            host.run(store.queue(name).unwrap().create(options)).unwrap();
        }
    }

    /// That many calls. Everything but a refusal for good reason must work.
    pub(crate) fn go(&mut self, host: &impl Host, store: &Store, steps: usize) {
        for _ in 0..steps {
            let queue = store.queue(QUEUES[self.below(3)]).unwrap();
            let name = queue.name().as_str().to_owned();
            match self.below(100) {
                0..30 => {
                    let messages: Vec<_> = (0..1 + self.below(6)).map(|_| self.message()).collect();
                    let bodies: Vec<_> = messages.iter().map(|(body, _)| body.clone()).collect();
                    let ids = host.run(queue.send_batch(messages.into_iter().map(|(_, message)| message))).unwrap();
                    self.sent.extend(ids.into_iter().zip(bodies));
                }
                30..60 => {
                    let call = queue.receive().max(1 + self.below(6)).visibility(secs(10 * 3600));
                    for job in host.run(call.many()).unwrap() {
                        assert_eq!(job.body(), self.sent[&job.id()], "the body of message {}", job.id());
                        self.held.push(job.receipt());
                    }
                }
                60..90 => self.settle(host, store),
                90..93 => _ = host.run(queue.redrive(RedriveFilter::default(), 5)).unwrap(),
                93..94 => _ = host.run(queue.purge(&[State::Delayed, State::Dead])).unwrap(),
                94..96 => {
                    host.run(queue.pause()).unwrap();
                    host.run(queue.resume()).unwrap();
                }
                96..98 => {
                    let options = self.options();
                    host.run(queue.configure(options)).unwrap();
                }
                98 if name == "c" => {
                    host.run(queue.delete(true)).unwrap();
                    let options = self.options();
                    host.run(queue.create(options)).unwrap();
                }
                _ => _ = host.run(store.queue("dead").unwrap().redrive(RedriveFilter::default(), 3)).unwrap(),
            }
        }
    }

    fn message(&mut self) -> (Vec<u8>, NewMessage) {
        let fill = self.below(400);
        let mut body = self.below(usize::MAX).to_string().into_bytes();
        body.resize(body.len() + fill, b'x');
        let mut message = NewMessage::new(body.clone()).priority(i16::try_from(self.below(3)).unwrap());
        if self.below(5) == 0 {
            message = message.delay(secs(3 * 3600)).attribute("why", "later");
        }
        if self.below(9) == 0 {
            message = message.ttl(secs(9 * 3600));
        }
        (body, message)
    }

    fn settle(&mut self, host: &impl Host, store: &Store) {
        for _ in 0..2 {
            if self.held.is_empty() {
                return;
            }
            let at = self.below(self.held.len());
            let receipt = self.held.swap_remove(at);
            // What was purged, or went with its queue, is refused.
            let _ = match self.below(10) {
                0..6 => host.run(store.ack(&receipt)),
                6 => host.run(store.nack(&receipt, Nack::new().error("it failed"))),
                7 => host.run(store.reject(&receipt, "no good")),
                8 => host.run(store.release(&receipt)),
                _ => host.run(store.extend(&receipt, secs(11 * 3600))),
            };
        }
    }

    /// Each message that is shown has the body that was sent under its id.
    #[track_caller]
    pub(crate) fn check(&self, look: &Look) {
        for view in look.values().flat_map(|(.., seen)| seen) {
            assert_eq!(Some(&view.body), self.sent.get(&view.id), "the body of message {}", view.id);
        }
    }
}

/// Receives and acknowledges all that is receivable; it is what was shown as ready, in its order.
#[track_caller]
pub(crate) fn drain(host: &impl Host, store: &Store, shown: &Look, what: &str) {
    for (name, (paused, _, seen)) in shown {
        let queue = store.queue(name.as_str()).unwrap();
        let mut ready = seen.iter().filter(|view| view.state == State::Ready && !paused);
        loop {
            let jobs = host.run(queue.receive().max(100).many()).unwrap();
            if jobs.is_empty() {
                break;
            }
            for job in &jobs {
                let view = ready.next().unwrap_or_else(|| panic!("{what}: {} came from nowhere", job.id()));
                assert_eq!((job.id(), job.body()), (view.id, view.body.as_slice()), "{what}: in {name}");
            }
            let done = host.run(queue.ack_many(jobs.iter().map(|job| job.receipt()))).unwrap();
            assert!(done.iter().all(Result::is_ok), "{what}: {done:?}");
        }
        assert_eq!(ready.next().map(|view| view.id), None, "{what}: {name} gives nothing more");
    }
}
