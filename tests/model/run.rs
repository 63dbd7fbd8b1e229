//! One seed: random operations on a store and on the model, compared after each.

use std::time::Duration;

use reappear::testing::{Loss, Rig};
use reappear::{Backoff, ErrorKind, Nack, NewMessage, Options, Queue, QueueOptions, Receipt, State, Store};

use crate::model::{Message, Model, Phase, QueueRules, Refusal, Settle};

const QUEUES: usize = 3;
const STEPS: u64 = 120;

/// What happened over all seeds.
#[derive(Default, Clone, Copy, Debug)]
pub struct Totals {
    sends: u64,
    deliveries: u64,
    settles: u64,
    refusals: u64,
    deaths: u64,
    redriven: u64,
    purged: u64,
    batches: u64,
    kills: u64,
    power_cuts: u64,
    closes: u64,
    rebuilds: u64,
    halfway: u64,
}

impl Totals {
    pub fn plus(self, o: Self) -> Self {
        Self {
            sends: self.sends + o.sends,
            deliveries: self.deliveries + o.deliveries,
            settles: self.settles + o.settles,
            refusals: self.refusals + o.refusals,
            deaths: self.deaths + o.deaths,
            redriven: self.redriven + o.redriven,
            purged: self.purged + o.purged,
            batches: self.batches + o.batches,
            kills: self.kills + o.kills,
            power_cuts: self.power_cuts + o.power_cuts,
            closes: self.closes + o.closes,
            rebuilds: self.rebuilds + o.rebuilds,
            halfway: self.halfway + o.halfway,
        }
    }

    pub fn assert_all_happened(&self) {
        let all = format!("{self:?}");
        assert!(!all.contains(": 0,") && !all.contains(": 0 "), "something never happened: {all}");
    }
}

pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).unwrap_or(0)
    }
}

/// A delivery that somebody holds or once held.
#[derive(Clone, Copy)]
struct Held {
    queue: usize,
    receipt: Receipt,
}

struct World<'t> {
    rig: Rig,
    store: Option<Store>,
    queues: Vec<Queue>,
    model: Model,
    held: Vec<Held>,
    dice: Dice,
    totals: &'t mut Totals,
    sent: u64,
}

pub fn seed(seed: u64, totals: &mut Totals) {
    let mut dice = Dice(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x5eed);
    let rig = Rig::new(seed);
    let segment_len = [4096, 8192, 65_536][usize::try_from(dice.below(3)).unwrap()];
    // Tiny windows, so that most of a backlog is cold.
    let window = [8, 8, 64, 1024][usize::try_from(dice.below(4)).unwrap()];
    rig.set_options(Options::new().segment_len(segment_len).window(window));
    let mut world = World {
        rig,
        store: None,
        queues: Vec::new(),
        model: Model { now: 1_700_000_000_000, ..Model::default() },
        held: Vec::new(),
        dice,
        totals,
        sent: 0,
    };
    world.open();
    world.create_queues();
    for _ in 0..STEPS {
        world.step();
        world.model.tick();
    }
    world.compare();
    world.end();
    world.open();
    world.compare();
    world.drain();
}

impl World<'_> {
    fn open(&mut self) {
        let store = self.rig.open();
        if std::env::var_os("REAPPEAR_SEED").is_some() {
            println!("at {}: {:?}", self.model.now, store.report());
        }
        self.queues = (0..QUEUES).map(|i| store.queue(format!("q{i}").as_str()).unwrap()).collect();
        self.store = Some(store);
        self.rig.settle();
        self.model.tick();
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("the store is open")
    }

    fn create_queues(&mut self) {
        // From the last to the first, so that a dead-letter queue is there when it is named.
        let mut rules = Vec::new();
        for i in (0..QUEUES).rev() {
            let rule = QueueRules {
                max_attempts: self.dice.chance(80).then(|| 1 + u32::try_from(self.dice.below(3)).unwrap()),
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
            self.rig.run(self.queues[i].create(options)).unwrap();
            rules.push(rule);
        }
        rules.reverse();
        self.model.queues = rules;
    }

    fn step(&mut self) {
        match self.dice.below(100) {
            0..25 => self.send(),
            25..50 => self.receive(),
            50..72 => self.settle(),
            72..76 => self.batch(),
            76..86 => self.advance(),
            86..88 => self.redrive(),
            88 => self.purge(),
            89..91 => self.pause(),
            91 => self.compare(),
            92..95 => self.cancelled_receive(),
            95 => self.send_and_crash(),
            _ => {
                self.end();
                self.open();
                self.compare();
            }
        }
    }

    fn queue(&mut self) -> usize {
        usize::try_from(self.dice.below(QUEUES as u64)).unwrap()
    }

    fn message(&mut self) -> (NewMessage, Message) {
        self.sent += 1;
        let len = [0, 3, 100, 700][usize::try_from(self.dice.below(4)).unwrap()];
        let mut body = format!("{}:", self.sent).into_bytes();
        body.resize(body.len() + len, b'x');
        let priority = i16::try_from(self.dice.below(3)).unwrap() - 1;
        let delay = if self.dice.chance(25) { 1 + self.dice.below(20_000) } else { 0 };
        let ttl = self.dice.chance(15).then(|| delay + 1 + self.dice.below(60_000));
        let mut new = NewMessage::new(body.clone()).priority(priority).delay(Duration::from_millis(delay));
        if let Some(ttl) = ttl {
            new = new.ttl(Duration::from_millis(ttl));
        }
        let message = Message {
            id: 0,
            queue: 0,
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
        };
        (new, message)
    }

    fn add(&mut self, queue: usize, id: u64, message: Message) {
        assert!(self.model.messages.keys().all(|other| *other != id), "id {id} was used before");
        self.model.messages.insert(id, Message { id, queue, ..message });
        self.totals.sends += 1;
    }

    fn send(&mut self) {
        let queue = self.queue();
        let count = if self.dice.chance(30) { 1 + self.dice.below(20) } else { 1 };
        let (new, expected): (Vec<_>, Vec<_>) = (0..count).map(|_| self.message()).unzip();
        let ids = self.rig.run(self.queues[queue].send_batch(new)).unwrap();
        for (id, message) in ids.into_iter().zip(expected) {
            self.add(queue, id.get(), message);
        }
    }

    fn receive(&mut self) {
        let queue = self.queue();
        let max = 1 + usize::try_from(self.dice.below(4)).unwrap();
        let visibility = 1 + self.dice.below(30_000);
        let call = self.queues[queue].receive().max(max).visibility(Duration::from_millis(visibility));
        let got = self.rig.run(call.many()).unwrap();
        self.expect(queue, max, visibility, &got);
        for delivery in got {
            let m = &self.model.messages[&delivery.id().get()];
            assert_eq!(delivery.body(), m.body);
            let counts = (delivery.epoch(), delivery.receive_count(), delivery.attempts());
            assert_eq!(counts, (m.epoch, m.receive_count, m.attempts));
            self.held.push(Held { queue, receipt: delivery.receipt() });
            self.totals.deliveries += 1;
        }
    }

    /// What a receive gave is the front of what is receivable: not all of it where more is cold than
    /// fits into the window, but never nothing when there is something.
    fn expect(&mut self, queue: usize, max: usize, visibility: u64, got: &[reappear::Delivery]) {
        let ids: Vec<u64> = got.iter().map(|delivery| delivery.id().get()).collect();
        let rules = self.model.queues[queue];
        let there = if rules.paused { Vec::new() } else { self.model.in_order(queue, |m| self.model.is_receivable(m)) };
        assert!(ids.len() <= max && (ids.is_empty() == there.is_empty()), "got {ids:?} of {there:?}, at most {max}");
        assert_eq!(ids, there[..ids.len()], "received from q{queue} at {}", self.model.now);
        self.model.receive(queue, ids.len(), visibility);
    }

    fn verb(&mut self) -> Settle {
        match self.dice.below(10) {
            0..5 => Settle::Ack,
            5 => Settle::Nack(self.dice.below(5_000)),
            6 => Settle::Extend(self.dice.below(3) * 7_000),
            7 => Settle::Release,
            8 => Settle::Reject,
            _ => Settle::Nack(0),
        }
    }

    fn pick(&mut self) -> Option<Held> {
        let len = self.held.len() as u64;
        if len == 0 {
            return None;
        }
        // Mostly a recent one; sometimes one that has long been stale.
        let back = if self.dice.chance(70) { self.dice.below(len.min(4)) } else { self.dice.below(len) };
        Some(self.held[usize::try_from(len - 1 - back).unwrap()])
    }

    fn settle(&mut self) {
        let Some(Held { queue, receipt }) = self.pick() else { return };
        let verb = self.verb();
        let store = self.store();
        let result = match verb {
            Settle::Ack => self.rig.run(store.ack(&receipt)),
            Settle::Nack(delay) => {
                let nack = Nack::new().delay(Duration::from_millis(delay)).error("it failed");
                self.rig.run(store.nack(&receipt, nack))
            }
            Settle::Extend(by) => self.rig.run(store.extend(&receipt, Duration::from_millis(by))),
            Settle::Release => self.rig.run(store.release(&receipt)),
            Settle::Reject => self.rig.run(store.reject(&receipt, "no good")),
        };
        let before = self.dead();
        let expected = self.model.settle(queue, receipt.id().get(), receipt.epoch(), verb);
        self.totals.deaths += self.dead().saturating_sub(before);
        assert_eq!(result.map_err(|e| e.kind()), expected.map_err(kind), "{verb:?} of {receipt}");
        if expected.is_ok() { self.totals.settles += 1 } else { self.totals.refusals += 1 }
    }

    fn dead(&self) -> u64 {
        self.model.messages.values().filter(|m| m.phase == Phase::Dead || m.origin.is_some()).count() as u64
    }

    fn batch(&mut self) {
        let mut picks: Vec<Held> = (0..1 + self.dice.below(2)).filter_map(|_| self.pick()).collect();
        picks.dedup_by_key(|held| held.receipt.id());
        let queue = self.queue();
        let (new, message) = self.message();
        let mut batch = self.store().batch();
        for held in &picks {
            batch.ack(held.receipt);
        }
        batch.send(&self.queues[queue], new);
        let result = self.rig.run(batch.commit());
        let mut expected = Ok(());
        for held in &picks {
            expected = expected.and(self.model.check(held.queue, held.receipt.id().get(), held.receipt.epoch()));
        }
        match (result, expected) {
            (Ok(ids), Ok(())) => {
                self.totals.batches += 1;
                for held in &picks {
                    let (id, epoch) = (held.receipt.id().get(), held.receipt.epoch());
                    self.model.settle(held.queue, id, epoch, Settle::Ack).unwrap();
                }
                self.add(queue, ids[0].get(), message);
            }
            (Err(error), Err(refusal)) => assert_eq!(error.kind(), kind(refusal)),
            (result, expected) => panic!("a batch gave {result:?}, not {expected:?}"),
        }
    }

    fn advance(&mut self) {
        let by = [1, 500, 5_000, 40_000, 200_000][usize::try_from(self.dice.below(5)).unwrap()];
        let by = 1 + self.dice.below(by);
        self.model.now += by;
        self.rig.advance(Duration::from_millis(by));
    }

    fn redrive(&mut self) {
        let queue = self.queue();
        let max = 1 + self.dice.below(5);
        let done = self.rig.run(self.queues[queue].redrive(Default::default(), max)).unwrap();
        assert_eq!(done, self.model.redrive(queue, max), "redriven in q{queue}");
        self.totals.redriven += done;
    }

    fn purge(&mut self) {
        let queue = self.queue();
        let states: Vec<State> = State::ALL.into_iter().filter(|_| self.dice.chance(40)).collect();
        let gone = self.rig.run(self.queues[queue].purge(&states)).unwrap();
        let now = self.model.now;
        let before = self.model.messages.len();
        self.model.messages.retain(|_, m| m.queue != queue || !states.contains(&state(m, now)));
        assert_eq!(gone, (before - self.model.messages.len()) as u64, "purged from q{queue}: {states:?}");
        self.totals.purged += gone;
    }

    fn pause(&mut self) {
        let queue = self.queue();
        let paused = !self.model.queues[queue].paused;
        self.model.queues[queue].paused = paused;
        let handle = &self.queues[queue];
        if paused { self.rig.run(handle.pause()).unwrap() } else { self.rig.run(handle.resume()).unwrap() }
    }

    /// A receive that is dropped somewhere on its way leaves everything as it was, but for epochs
    /// and receive counts of what had been handed out.
    fn cancelled_receive(&mut self) {
        let queue = self.queue();
        let mut call = Box::pin(self.queues[queue].receive().max(3).visibility(Duration::from_secs(9)).many());
        let mut finished = self.rig.poll(&mut call);
        for _ in 0..self.dice.below(4) {
            if self.dice.chance(50) {
                self.rig.step_committer();
            } else {
                self.rig.step_applier();
            }
            if self.dice.chance(30) && finished.is_none() {
                finished = self.rig.poll(&mut call);
            }
        }
        if let Some(got) = finished {
            // It returned: somebody had the messages in hand.
            return self.expect(queue, 3, 9_000, &got.unwrap());
        }
        drop(call);
        self.rig.settle();
        let seen = self.rig.run(self.queues[queue].peek(None, usize::MAX)).unwrap();
        for view in seen {
            let m = self.model.messages.get_mut(&view.id.get()).expect("it is in the model");
            if view.epoch != m.epoch {
                assert_eq!((view.epoch, view.receive_count), (m.epoch + 1, m.receive_count + 1));
                assert_eq!(view.attempts, m.attempts, "the attempt is refunded");
                m.epoch += 1;
                m.receive_count += 1;
                m.phase = Phase::Queued;
                m.visible_exact = false;
                m.visible_at = self.model.now;
            }
        }
    }

    /// A send that the crash may have cut off: it is there whole, or not at all.
    fn send_and_crash(&mut self) {
        let queue = self.queue();
        let (new, message) = self.message();
        let mut call = Box::pin(self.queues[queue].send(new));
        let mut sent = self.rig.poll(&mut call);
        if self.dice.chance(60) {
            self.rig.step_committer();
            sent = sent.or_else(|| self.rig.poll(&mut call));
        }
        drop(call);
        self.crash();
        self.open();
        let found = self.rig.run(self.queues[queue].peek(None, usize::MAX)).unwrap();
        let found = found.into_iter().find(|view| view.body == message.body);
        assert!(found.is_some() || !matches!(sent, Some(Ok(_))), "an acknowledged send is lost");
        self.totals.halfway += 1;
        if let Some(view) = found {
            self.add(queue, view.id.get(), message);
        }
    }

    fn crash(&mut self) {
        if self.dice.chance(50) {
            self.rig.kill();
            self.totals.kills += 1;
            if self.dice.chance(30) {
                self.rig.lose_index();
                self.totals.rebuilds += 1;
            }
        } else {
            let loss = [Loss::All, Loss::Nothing, Loss::RandomSectors][usize::try_from(self.dice.below(3)).unwrap()];
            self.rig.power_cut_with(loss);
            self.totals.power_cuts += 1;
        }
        self.queues.clear();
        self.store = None;
    }

    fn end(&mut self) {
        if self.dice.chance(25) {
            self.rig.run(self.store().close()).unwrap();
            self.totals.closes += 1;
            self.queues.clear();
            self.store = None;
        } else {
            self.crash();
        }
        if self.dice.chance(50) {
            // Time passes while the store is down.
            let by = self.dice.below(50_000);
            self.model.now += by;
            self.rig.clock().advance(Duration::from_millis(by));
        }
    }

    fn compare(&mut self) {
        let now = self.model.now;
        for queue in 0..QUEUES {
            let seen = self.rig.run(self.queues[queue].peek(None, usize::MAX)).unwrap();
            let expected = self.model.in_order(queue, |_| true);
            let ids: Vec<u64> = seen.iter().map(|view| view.id.get()).collect();
            assert_eq!(ids, expected, "messages of q{queue} at {now}");
            let stats = self.rig.run(self.queues[queue].stats()).unwrap();
            let count = |wanted| seen.iter().filter(|view| view.state == wanted).count() as u64;
            let counted = (stats.ready, stats.delayed, stats.in_flight, stats.dead);
            let recount = (count(State::Ready), count(State::Delayed), count(State::InFlight), count(State::Dead));
            assert_eq!(counted, recount, "counters of q{queue}");
            for view in &seen {
                let m = &self.model.messages[&view.id.get()];
                assert_eq!(view.body, m.body);
                assert_eq!(view.state, state(m, now), "state of {} at {now}", m.id);
                let counts = (view.epoch, view.receive_count, view.attempts, view.priority);
                assert_eq!(counts, (m.epoch, m.receive_count, m.attempts, m.priority), "counts of {}", m.id);
                assert!(!m.visible_exact || view.visible_at.as_millis() == m.visible_at, "visible_at of {}", m.id);
                let dead = m.phase == Phase::Dead || m.origin.is_some();
                assert_eq!(view.dead.is_some(), dead, "dead letter of {}", m.id);
            }
        }
    }

    /// Faults are over: everything that is not dead can be taken out.
    fn drain(&mut self) {
        for queue in 0..QUEUES {
            if self.model.queues[queue].paused {
                self.rig.run(self.queues[queue].resume()).unwrap();
                self.model.queues[queue].paused = false;
            }
        }
        for _ in 0..40 {
            self.model.now += 60_000;
            self.rig.advance(Duration::from_secs(60));
            self.model.tick();
            for queue in 0..QUEUES {
                while !self.model.in_order(queue, |m| self.model.is_receivable(m)).is_empty() {
                    let got = self.rig.run(self.queues[queue].receive().max(100).many()).unwrap();
                    self.expect(queue, 100, 60_000, &got);
                    let results = self.rig.run(self.queues[queue].ack_many(got.iter().map(|d| d.receipt()))).unwrap();
                    assert!(results.iter().all(Result::is_ok), "{results:?}");
                    for delivery in got {
                        self.model.messages.remove(&delivery.id().get());
                    }
                }
            }
        }
        assert!(self.model.messages.values().all(|m| m.phase == Phase::Dead), "something never came back");
        self.compare();
    }
}

pub fn state(m: &Message, now: u64) -> State {
    match m.phase {
        Phase::Dead => State::Dead,
        Phase::Held if m.visible_at > now => State::InFlight,
        Phase::Queued if m.visible_at > now => State::Delayed,
        _ => State::Ready,
    }
}

pub fn kind(refusal: Refusal) -> ErrorKind {
    match refusal {
        Refusal::Stale => ErrorKind::StaleReceipt,
        Refusal::NotFound => ErrorKind::NotFound,
    }
}
