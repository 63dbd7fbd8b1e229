//! Random calls while the threads take their turns in any order: the index lags, fails, is damaged, renewed and
//! rebuilt, the disk fills up and empties, the log's front is carried on, the process dies. Compared with the
//! model, and with a store that is built anew from its log.

use std::time::Duration;

use reappear::testing::{Loss, Rig};
use reappear::{
    Backoff, Durability, Error, ErrorKind, MessageView, Nack, NewMessage, Options, Queue, QueueOptions, Receipt, State,
    Store,
};

use crate::model::{Message, Model, Phase, QueueRules, Settle};
use crate::run::{Dice, kind, state};
use crate::seen::Seen;

const QUEUES: usize = 3;
const STEPS: u64 = 150;

/// A delivery that somebody holds or once held, and which of the queues of its name it came from.
#[derive(Clone, Copy)]
struct Held {
    queue: usize,
    receipt: Receipt,
    made: u64,
}

struct World<'s> {
    rig: Rig,
    store: Option<Store>,
    queues: Vec<Queue>,
    /// How often each queue was made.
    made: Vec<u64>,
    options: Vec<QueueOptions>,
    model: Model,
    held: Vec<Held>,
    dice: Dice,
    seen: &'s mut Seen,
    sent: u64,
    /// Time that passed since everything was settled.
    unsettled: u64,
    /// The disk may be full.
    is_tight: bool,
    /// A power cut loses what was acknowledged.
    is_lazy: bool,
    carried: u64,
    generation: u64,
}

pub fn seed(seed: u64, seen: &mut Seen) {
    let mut dice = Dice(seed.wrapping_mul(0x9fb2_1c65_1e98_df25) ^ 0xd150);
    let rig = Rig::new(seed);
    let segment_len = [4096, 4096, 8192, 32_768][dice.pick(4)];
    let window = [8, 8, 64, 1024][dice.pick(4)];
    let mut options = Options::new().segment_len(segment_len).window(window);
    let is_lazy = dice.chance(20);
    if is_lazy {
        let every = Durability::Interval(Duration::from_millis(500));
        options = options.durability(if dice.chance(50) { Durability::Os } else { every });
    }
    rig.set_options(options);
    let mut world = World {
        rig,
        store: None,
        queues: Vec::new(),
        made: vec![0; QUEUES],
        options: Vec::new(),
        model: Model { now: 1_700_000_000_000, ..Model::default() },
        held: Vec::new(),
        dice,
        seen,
        sent: 0,
        unsettled: 0,
        is_tight: false,
        is_lazy,
        carried: 0,
        generation: 0,
    };
    world.open();
    world.make_queues();
    for _ in 0..STEPS {
        world.step();
        world.model.tick();
    }
    world.compare();
    world.compare_with_rebuilt();
    world.drain();
}

impl World<'_> {
    /// Runs a call, with turns of all threads in any order until it returns.
    fn run<F: Future>(&mut self, call: F) -> F::Output {
        let mut call = Box::pin(call);
        for _ in 0..600 {
            if let Some(output) = self.rig.poll(&mut call) {
                return output;
            }
            self.turn();
        }
        panic!("the call does not return");
    }

    fn turn(&mut self) {
        match self.dice.below(13) {
            0..6 => drop(self.rig.step_committer()),
            6..9 => self.rig.step_applier(),
            9..12 => self.rig.step_syncer(),
            _ => self.rig.step_keeper(),
        }
    }

    fn store(&self) -> Store {
        self.store.clone().expect("the store is open")
    }

    fn open(&mut self) {
        let store = self.rig.open();
        if self.dice.chance(50) {
            self.rig.overlap();
        }
        if std::env::var_os("REAPPEAR_SEED").is_some() {
            println!("at {}: {:?}", self.model.now, store.report());
        }
        self.queues = (0..QUEUES).map(|i| store.queue(format!("q{i}").as_str()).unwrap()).collect();
        self.store = Some(store);
        self.unsettled = 0;
        self.carried = 0;
        self.generation = 0;
        self.rig.settle();
        self.model.tick();
    }

    fn make_queues(&mut self) {
        // From the last to the first, so that a dead-letter queue is there when it is named.
        let mut rules = Vec::new();
        for i in (0..QUEUES).rev() {
            let rule = QueueRules {
                max_attempts: self.dice.chance(70).then(|| 1 + u32::try_from(self.dice.below(4)).unwrap()),
                dead_letter: (i + 1 < QUEUES && self.dice.chance(50)).then_some(i + 1),
                keep_expired: self.dice.chance(30),
                strict: self.dice.chance(20),
                paused: false,
                exists: true,
            };
            let options = QueueOptions::new()
                .max_attempts(rule.max_attempts)
                .keep_expired(rule.keep_expired)
                .strict_deadline(rule.strict)
                .backoff(Backoff::NONE)
                .dead_letter(rule.dead_letter.map(|to| format!("q{to}").parse().unwrap()));
            let queue = self.queues[i].clone();
            self.run(queue.create(options.clone())).unwrap();
            rules.push(rule);
            self.options.push(options);
        }
        self.options.reverse();
        rules.reverse();
        // Stands for all that were deleted.
        rules.push(QueueRules { exists: false, dead_letter: None, ..rules[0] });
        self.model.queues = rules;
    }

    fn step(&mut self) {
        match self.dice.below(200) {
            0..45 => self.send(),
            45..85 => self.receive(),
            85..130 => self.settle(),
            130..150 => self.advance(),
            150..156 => self.redrive(),
            156..160 => self.purge(),
            160 | 161 => self.delete(),
            162 | 163 => self.configure(),
            164..168 => self.rebuild(),
            168..174 => self.hurt_index(),
            174..180 => self.change_capacity(),
            180 => self.compare(),
            181..184 => self.crash(),
            184 => self.close(),
            185 => self.compare_with_rebuilt(),
            186..196 => (0..self.dice.below(12)).for_each(|_| self.turn()),
            _ => self.look(),
        }
    }

    fn queue(&mut self) -> (usize, Queue) {
        let i = self.dice.pick(QUEUES);
        (i, self.queues[i].clone())
    }

    /// Whether a call was refused for lack of space, as it may be when the disk is full.
    fn refused<T>(&mut self, result: &Result<T, Error>, what: &'static str) -> bool {
        let full = self.is_tight && result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Full);
        if full {
            self.seen.add(what, 1);
        }
        full
    }

    fn send(&mut self) {
        let (queue, handle) = self.queue();
        let count = if self.dice.chance(30) { 1 + self.dice.below(25) } else { 1 };
        let mut new = Vec::new();
        let mut expected = Vec::new();
        for _ in 0..count {
            self.sent += 1;
            let mut body = format!("{}:", self.sent).into_bytes();
            let len = [0, 3, 100, 700, 3000][self.dice.pick(5)];
            body.resize(body.len() + len, b'x');
            let priority = i16::try_from(self.dice.below(2)).unwrap();
            let delay = if self.dice.chance(20) { 1 + self.dice.below(100_000) } else { 0 };
            let ttl = self.dice.chance(8).then(|| delay + 1 + self.dice.below(200_000));
            let mut message = NewMessage::new(body.clone()).priority(priority).delay(Duration::from_millis(delay));
            if let Some(ttl) = ttl {
                message = message.ttl(Duration::from_millis(ttl));
            }
            new.push(message);
            expected.push(Message {
                id: 0,
                queue,
                body,
                priority,
                phase: Phase::Queued,
                visible_at: self.model.now + delay,
                visible_exact: true,
                expires_at: ttl.map_or(u64::MAX, |ttl| self.model.now + ttl),
                epoch: 0,
                receive_count: 0,
                attempts: 0,
                origin: None,
            });
        }
        let result = self.run(handle.send_batch(new));
        if self.refused(&result, "sends refused") {
            return;
        }
        for (id, message) in result.unwrap().into_iter().zip(expected) {
            let id = id.get();
            let other = self.model.messages.insert(id, Message { id, ..message });
            assert!(other.is_none(), "id {id} was used before");
            self.seen.add("sent", 1);
        }
    }

    fn receive(&mut self) {
        let (queue, handle) = self.queue();
        let most = if self.dice.chance(30) { 60 } else { 4 };
        let max = 1 + self.dice.pick(most);
        let visibility = 1 + self.dice.below(90_000);
        let result = self.run(handle.receive().max(max).visibility(Duration::from_millis(visibility)).many());
        if self.refused(&result, "settles refused") {
            return;
        }
        let got = result.unwrap();
        let ids: Vec<u64> = got.iter().map(|delivery| delivery.id().get()).collect();
        let there = self.model.in_order(queue, |m| self.model.is_receivable(m));
        assert!(ids.len() <= max && (self.is_tight || ids.is_empty() == there.is_empty()), "got {ids:?} of {there:?}");
        assert_eq!(ids, there[..ids.len()], "received from q{queue} at {}", self.model.now);
        self.model.receive(queue, ids.len(), visibility);
        for delivery in got {
            let m = &self.model.messages[&delivery.id().get()];
            assert_eq!(delivery.body(), m.body);
            let counts = (delivery.epoch(), delivery.receive_count(), delivery.attempts());
            assert_eq!(counts, (m.epoch, m.receive_count, m.attempts));
            self.held.push(Held { queue, receipt: delivery.receipt(), made: self.made[queue] });
            self.seen.add("delivered", 1);
        }
    }

    fn settle(&mut self) {
        let len = self.held.len();
        if len == 0 {
            return;
        }
        let recent = if self.dice.chance(70) { len.min(12) } else { len };
        let back = self.dice.pick(recent);
        let Held { queue, receipt, made } = self.held[len - 1 - back];
        let verb = match self.dice.below(10) {
            0..5 => Settle::Ack,
            5 | 6 => Settle::Nack(self.dice.below(90_000)),
            7 => Settle::Extend(self.dice.below(3) * 40_000),
            8 => Settle::Release,
            _ => Settle::Reject,
        };
        let store = self.store();
        let result = match verb {
            Settle::Ack => self.run(store.ack(&receipt)),
            Settle::Nack(delay) => {
                let text = "e".repeat(self.dice.pick(200));
                let nack = Nack::new().delay(Duration::from_millis(delay)).error(text);
                self.run(store.nack(&receipt, nack))
            }
            Settle::Extend(by) => self.run(store.extend(&receipt, Duration::from_millis(by))),
            Settle::Release => self.run(store.release(&receipt)),
            Settle::Reject => self.run(store.reject(&receipt, "no good")),
        };
        if self.refused(&result, "settles refused") {
            return;
        }
        let result = result.map_err(|error| error.kind());
        if made != self.made[queue] {
            return assert_eq!(result, Err(ErrorKind::NotFound), "{receipt} is of a queue that was deleted");
        }
        let expected = self.model.settle(queue, receipt.id().get(), receipt.epoch(), verb);
        assert_eq!(result, expected.map_err(kind), "{verb:?} of {receipt} at {}", self.model.now);
        self.seen.add("settled", u64::from(result.is_ok()));
    }

    fn advance(&mut self) {
        if self.dice.chance(70) && self.unsettled < 10_000 {
            // Nobody notices before the next call.
            let by = 1 + self.dice.below(8_000);
            self.model.now += by;
            self.unsettled += by;
            self.rig.clock().advance(Duration::from_millis(by));
            return;
        }
        self.rig.settle();
        let by = 1 + self.dice.below(100_000);
        self.model.now += by;
        self.unsettled = 0;
        self.rig.advance(Duration::from_millis(by));
    }

    fn redrive(&mut self) {
        let (queue, handle) = self.queue();
        let max = 1 + self.dice.below(50);
        let result = self.run(handle.redrive(Default::default(), max));
        if self.refused(&result, "settles refused") {
            // Some slices may have been written.
            return self.follow_redrive(queue);
        }
        let done = result.unwrap();
        assert_eq!(done, self.model.redrive(queue, max), "redriven in q{queue}");
        self.seen.add("redriven", done);
    }

    fn follow_redrive(&mut self, queue: usize) {
        self.widen();
        let seen = self.peek(queue);
        let left = seen.iter().filter(|view| view.dead.is_some()).count();
        let is_dead = |m: &Message| m.queue == queue && (m.phase == Phase::Dead || m.origin.is_some());
        let before = self.model.messages.values().filter(|m| is_dead(m)).count();
        assert_eq!(before, left, "a slice is whole or not at all");
    }

    fn purge(&mut self) {
        let (queue, handle) = self.queue();
        let states: Vec<State> = State::ALL.into_iter().filter(|_| self.dice.chance(40)).collect();
        let result = self.run(handle.purge(&states));
        if self.refused(&result, "settles refused") {
            return;
        }
        let gone = result.unwrap();
        let (now, before) = (self.model.now, self.model.messages.len());
        self.model.messages.retain(|_, m| m.queue != queue || !states.contains(&state(m, now)));
        assert_eq!(gone, (before - self.model.messages.len()) as u64, "purged from q{queue}: {states:?}");
        self.seen.add("purged", gone);
    }

    fn delete(&mut self) {
        self.widen();
        let (queue, handle) = self.queue();
        let gone = self.run(handle.delete(true)).unwrap();
        let before = self.model.messages.len();
        self.model.messages.retain(|_, m| m.queue != queue);
        assert_eq!(gone, (before - self.model.messages.len()) as u64, "deleted with q{queue}");
        self.model.messages.values_mut().filter(|m| m.origin == Some(queue)).for_each(|m| m.origin = Some(QUEUES));
        self.seen.add("deleted", gone);
        let options = self.options[queue].clone();
        self.run(handle.create(options)).unwrap();
        self.made[queue] += 1;
    }

    fn configure(&mut self) {
        let (queue, handle) = self.queue();
        let options = self.options[queue].clone();
        let result = self.run(handle.configure(options));
        if !self.refused(&result, "settles refused") {
            result.unwrap();
        }
    }

    fn rebuild(&mut self) {
        let store = self.store();
        if self.dice.chance(50) {
            // Nobody waits for it.
            drop(self.rig.poll(&mut Box::pin(store.rebuild_index())));
            return;
        }
        if let Ok(report) = self.run(store.rebuild_index()) {
            assert!(report.agreed, "the index had what the log has: {report:?}");
            self.seen.add("rebuilt", 1);
        }
    }

    fn hurt_index(&mut self) {
        match self.dice.below(5) {
            0 => {
                self.rig.fail_index(true);
                self.seen.add("index failed", 1);
            }
            1 => self.rig.fail_index_after(Some(self.dice.pick(20))),
            2 => {
                let at = self.dice.next();
                self.rig.damage_index(|rows| {
                    let len = rows.len().max(1) as u64;
                    if let Some(row) = rows.values_mut().nth(usize::try_from(at % len).unwrap())
                        && let Some(byte) = row.last_mut()
                    {
                        *byte ^= 1;
                    }
                });
                self.seen.add("index damaged", 1);
            }
            _ => self.rig.fail_index(false),
        }
    }

    fn change_capacity(&mut self) {
        if self.dice.chance(40) {
            return self.widen();
        }
        let used: u64 = self.rig.disk().list_raw().iter().map(|(_, len)| len).sum();
        let free = [0, 1_000, 5_000, 20_000, 60_000][self.dice.pick(5)];
        self.rig.disk().set_capacity(Some(used + free));
        self.is_tight = true;
        self.seen.add("disk filled", 1);
    }

    /// There is room again.
    fn widen(&mut self) {
        self.rig.disk().set_capacity(None);
        self.rig.step_keeper();
        self.rig.settle();
        self.is_tight = false;
    }

    fn look(&mut self) {
        let store = self.store();
        let stats = self.run(store.stats()).unwrap();
        assert!(stats.poisoned.is_none(), "{:?}", stats.poisoned);
        self.seen.add("index in memory", u64::from(stats.index_in_memory));
        self.seen.add("carried", stats.relocated_len - self.carried);
        self.seen.add("index renewed", u64::from(stats.index_generation > self.generation && self.generation > 0));
        self.carried = stats.relocated_len;
        self.generation = stats.index_generation;
    }

    fn crash(&mut self) {
        if self.is_lazy || self.dice.chance(50) {
            self.rig.kill();
            self.seen.add("killed", 1);
            if self.dice.chance(30) {
                self.rig.lose_index();
                self.seen.add("opened without an index", 1);
            }
            if self.dice.chance(20) {
                self.damage_checkpoint();
            }
        } else {
            let loss = [Loss::All, Loss::Nothing, Loss::RandomSectors][self.dice.pick(3)];
            self.rig.power_cut_with(loss);
            self.seen.add("power cut", 1);
        }
        self.reopen();
    }

    /// One slot does not read any more; always the same one, because the other must.
    fn damage_checkpoint(&mut self) {
        let path = self.rig.path().join("CHECKPOINT");
        let Some(mut bytes) = self.rig.disk().read_raw(&path) else { return };
        bytes[100] ^= 1;
        self.rig.disk().write_raw(&path, bytes);
        self.seen.add("slot damaged", 1);
    }

    fn close(&mut self) {
        let store = self.store();
        let result = self.run(store.close());
        assert!(result.is_ok() || self.is_tight, "{result:?}");
        // For a close that found no room.
        self.rig.kill();
        self.seen.add("closed", 1);
        self.reopen();
    }

    fn reopen(&mut self) {
        self.queues.clear();
        self.store = None;
        if self.dice.chance(50) {
            let by = self.dice.below(50_000);
            self.model.now += by;
            self.rig.clock().advance(Duration::from_millis(by));
        }
        if self.dice.chance(50) {
            self.rig.disk().set_capacity(None);
            self.is_tight = false;
        }
        if self.is_tight && self.rig.try_open().is_err() {
            self.rig.disk().set_capacity(None);
            self.is_tight = false;
        }
        self.rig.kill();
        self.open();
    }

    fn peek(&mut self, queue: usize) -> Vec<MessageView> {
        let handle = self.queues[queue].clone();
        self.run(handle.peek(None, usize::MAX)).unwrap()
    }

    /// All messages of all queues, the counters checked against them.
    fn recount(&mut self) -> Vec<Vec<MessageView>> {
        let mut all = Vec::new();
        for queue in 0..QUEUES {
            let seen = self.peek(queue);
            let handle = self.queues[queue].clone();
            let stats = self.run(handle.stats()).unwrap();
            let count = |wanted| seen.iter().filter(|view| view.state == wanted).count() as u64;
            let recount = State::ALL.map(count);
            let counted = State::ALL.map(|state| match state {
                State::Ready => stats.ready,
                State::Delayed => stats.delayed,
                State::InFlight => stats.in_flight,
                _ => stats.dead,
            });
            assert_eq!(counted, recount, "counters of q{queue}");
            all.push(seen);
        }
        all
    }

    fn compare(&mut self) {
        self.widen();
        let now = self.model.now;
        for (queue, seen) in self.recount().into_iter().enumerate() {
            let expected = self.model.in_order(queue, |_| true);
            let ids: Vec<u64> = seen.iter().map(|view| view.id.get()).collect();
            assert_eq!(ids, expected, "messages of q{queue} at {now}");
            for view in &seen {
                let m = &self.model.messages[&view.id.get()];
                assert_eq!(view.body, m.body);
                assert_eq!(view.state, state(m, now), "state of {} at {now}", m.id);
                let counts = (view.epoch, view.receive_count, view.attempts, view.priority);
                assert_eq!(counts, (m.epoch, m.receive_count, m.attempts, m.priority), "counts of {}", m.id);
                assert!(!m.visible_exact || view.visible_at.as_millis() == m.visible_at, "visible_at of {}", m.id);
                assert_eq!(view.dead.is_some(), m.phase == Phase::Dead || m.origin.is_some(), "dead: {}", m.id);
            }
        }
        self.seen.add("compared", 1);
    }

    /// A store that is built anew from its log shows the same messages.
    fn compare_with_rebuilt(&mut self) {
        self.widen();
        self.rig.fail_index(false);
        let before = self.recount();
        self.rig.kill();
        self.rig.lose_index();
        self.open();
        assert_eq!(self.recount(), before, "a store built anew from its log shows the same messages");
    }

    /// Faults are over: everything that is not dead can be taken out.
    fn drain(&mut self) {
        for _ in 0..6 {
            self.model.now += 100_000;
            self.rig.advance(Duration::from_secs(100));
            self.model.tick();
            for queue in 0..QUEUES {
                while !self.model.in_order(queue, |m| self.model.is_receivable(m)).is_empty() {
                    let handle = self.queues[queue].clone();
                    let got = self.run(handle.receive().max(100).many()).unwrap();
                    let ids: Vec<u64> = got.iter().map(|delivery| delivery.id().get()).collect();
                    assert_eq!(ids, self.model.receive(queue, ids.len(), 60_000));
                    let results = self.run(handle.ack_many(got.iter().map(|d| d.receipt()))).unwrap();
                    assert!(results.iter().all(Result::is_ok), "{results:?}");
                    ids.iter().for_each(|id| drop(self.model.messages.remove(id)));
                }
            }
        }
        assert!(self.model.messages.values().all(|m| m.phase == Phase::Dead), "something never came back");
        self.compare();
    }
}
