//! Random batches; after each, every question is put to the index and to a plain map.

use super::disk::RealFs;
use super::*;

/// Numbers that look random and are the same for the same seed.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0) % end.max(1)
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// In order of delivery.
type Order = (QueueId, std::cmp::Reverse<i16>, MessageId);

#[derive(Clone)]
pub(super) struct Model {
    entries: BTreeMap<Order, Entry>,
    queues: BTreeMap<QueueId, Vec<u8>>,
    lsn: u64,
    clock: u64,
    /// How far events were asked for, and the clock when that began.
    asked: Timestamp,
    began: Timestamp,
}

fn order(place: &Place) -> Order {
    (place.queue, std::cmp::Reverse(place.priority), place.id)
}

impl Model {
    pub(super) fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            queues: BTreeMap::new(),
            lsn: 0,
            clock: 1000,
            asked: Timestamp::ZERO,
            began: Timestamp::ZERO,
        }
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        self.entries.values().copied().collect()
    }

    fn put(&mut self, batch: &mut Batch, place: Place, new: Option<Entry>) {
        batch.changes.insert(place, new);
        match new {
            Some(entry) => self.entries.insert(order(&place), entry),
            None => self.entries.remove(&order(&place)),
        };
    }

    fn send(&mut self, random: &mut Random, batch: &mut Batch) {
        self.lsn += 1 + random.below(2);
        let place = place(1 + random.below(3), random.pick(&[0, 0, 0, 0, 5, -1]), self.lsn);
        let mut new = entry(place, self.clock);
        if random.one_in(4) {
            new.visible_at = Timestamp(self.clock + 1 + random.below(900));
        }
        if random.one_in(4) {
            new.expires_at = Timestamp(self.clock + random.below(2000));
        }
        new.body = Position { segment: 1 + (self.lsn / 100) as u32, offset: random.below(9000) as u32, len: 100 };
        self.put(batch, place, Some(new));
    }

    fn change(&mut self, random: &mut Random, batch: &mut Batch, old: Entry) {
        self.lsn += 1;
        let mut new = Entry { lsn: Lsn(self.lsn), ..old };
        let soon = Timestamp(self.clock + random.below(600));
        match random.below(9) {
            0..3 => {
                (new.phase, new.visible_at) = (Phase::Held, soon);
                (new.epoch, new.receive_count, new.attempts) = (old.epoch + 1, old.receive_count + 1, old.attempts + 1);
                new.received_at = Timestamp(self.clock);
            }
            3 => (new.phase, new.visible_at) = (Phase::Queued, soon),
            4 => {
                (new.phase, new.detail) =
                    (Phase::Dead, Position { segment: 1 + (self.lsn / 100) as u32, offset: 1, len: 9 });
            }
            5 => new.body.segment = 1 + (self.lsn / 100) as u32,
            6 => {
                self.put(batch, old.place(), None);
                new.origin = Some(old.queue);
                new.queue = QueueId(1 + random.below(3));
            }
            _ => return self.put(batch, old.place(), None),
        }
        self.put(batch, new.place(), Some(new));
    }

    fn purge(&mut self, random: &mut Random, batch: &mut Batch) {
        let (queue, now, kind) = (QueueId(1 + random.below(4)), Timestamp(self.clock), random.below(4));
        let remove = move |entry: &Entry| match kind {
            0 => entry.state(now) == State::Dead,
            1 => entry.state(now) == State::Ready,
            2 => !entry.id.0.is_multiple_of(7),
            _ => true,
        };
        self.entries.retain(|(at, ..), entry| *at != queue || !remove(entry));
        batch.purges.push(Purge { queue, remove: Box::new(remove) });
    }

    /// A random batch, which the model has already taken in.
    pub(super) fn batch(&mut self, random: &mut Random) -> Batch {
        self.clock += random.below(40);
        let mut batch = Batch::new(Lsn(0), Timestamp(self.clock));
        if random.one_in(25) {
            self.purge(random, &mut batch);
        }
        let sends = if random.one_in(30) { 1500 } else { random.below(60) };
        (0..sends).for_each(|_| self.send(random, &mut batch));
        let all = self.entries();
        // A run from somewhere, as consumers work; then some from anywhere.
        let start = random.below(all.len() as u64) as usize;
        let run = all.iter().skip(start).take(random.below(120) as usize);
        run.for_each(|entry| self.change(random, &mut batch, *entry));
        for _ in 0..random.below(30) {
            let Some(&old) = all.get(random.below(all.len() as u64) as usize) else { break };
            if self.entries.get(&order(&old.place())) == Some(&old) {
                self.change(random, &mut batch, old);
            }
        }
        // To remove what was never there does nothing.
        batch.changes.entry(place(1 + random.below(5), 0, 1 << 40)).or_insert(None);
        if random.one_in(5) {
            let queue = QueueId(random.below(5));
            let bytes = (!random.one_in(3)).then(|| vec![self.lsn as u8; random.below(50) as usize]);
            match bytes.clone() {
                Some(bytes) => self.queues.insert(queue, bytes),
                None => self.queues.remove(&queue),
            };
            batch.queues.insert(queue, bytes);
        }
        self.lsn += 1;
        batch.applied = Lsn(self.lsn);
        batch
    }

    pub(super) fn reopened(&mut self) {
        self.asked = Timestamp::ZERO;
    }

    /// Every entry of the lane or queue, in order of delivery.
    fn of(&self, queue: QueueId, priority: Option<i16>) -> impl Iterator<Item = &Entry> {
        let keep = move |entry: &&Entry| entry.queue == queue && priority.is_none_or(|p| p == entry.priority);
        self.entries.values().filter(keep)
    }

    fn check_sums(&self, index: &mut Index) {
        assert_eq!((index.applied(), index.clock()), (Lsn(self.lsn), Timestamp(self.clock)));
        let hash = self.entries.values().fold(0, |hash, entry| hash ^ mix_id(entry.id));
        assert_eq!(index.live(), (self.entries.len() as u64, hash));
        let mut uses = BTreeMap::<u32, SegmentUse>::new();
        for entry in self.entries.values() {
            let records = BTreeSet::from([entry.body, entry.detail]);
            let records = records.into_iter().filter(|record| record.is_some());
            let mut segments = BTreeSet::new();
            for record in records {
                let used = uses.entry(record.segment).or_default();
                used.bytes += u64::from(record.len);
                used.messages += u64::from(segments.insert(record.segment));
            }
        }
        assert_eq!(*index.segment_uses(), uses);
        assert_eq!(index.queues().unwrap(), self.queues.clone().into_iter().collect::<Vec<_>>());
        let lanes: BTreeSet<_> = self.entries.keys().map(|(queue, priority, _)| (*queue, *priority)).collect();
        assert_eq!(index.lanes(), lanes.into_iter().map(|(queue, priority)| (queue, priority.0)).collect::<Vec<_>>());
    }

    fn check_whole(&self, index: &mut Index, random: &mut Random) {
        let mut all = vec![];
        index.for_each(&mut |entry| all.push(*entry)).unwrap();
        assert_eq!(all, self.entries());
        let mut held = vec![];
        index.held(&mut |entry| held.push(entry)).unwrap();
        all.retain(|entry| entry.phase == Phase::Held);
        assert_eq!(held, all);
        let now = Timestamp(self.clock - 300 + random.below(900));
        let mut counts = BTreeMap::<QueueId, Counts>::new();
        for entry in self.entries.values() {
            let counts = counts.entry(entry.queue).or_default();
            *match entry.state(now) {
                State::Ready => &mut counts.ready,
                State::Delayed => &mut counts.delayed,
                State::InFlight => &mut counts.in_flight,
                State::Dead => &mut counts.dead,
            } += 1;
        }
        assert_eq!(index.counts(now).unwrap(), counts);
    }

    fn check_lookups(&self, index: &mut Index, random: &mut Random) {
        for _ in 0..20 {
            let (queue, id) = (QueueId(1 + random.below(4)), MessageId(random.below(self.lsn + 2)));
            let expected = self.of(queue, None).find(|entry| entry.id == id);
            assert_eq!(index.get(queue, id).unwrap().as_ref(), expected);
        }
        let queue = QueueId(1 + random.below(4));
        let priority = random.pick(&[0, 0, 5, -1, 3]);
        let now = Timestamp(self.clock - 100 + random.below(300));
        let (mut from, mut found) = (MessageId(random.below(self.lsn)), vec![]);
        let expected: Vec<_> =
            self.of(queue, Some(priority)).filter(|e| e.id >= from && e.is_receivable(now)).copied().collect();
        let max = 1 + random.below(700) as usize;
        loop {
            let (some, next) = index.ready(queue, priority, from, max, now).unwrap();
            assert!(some.len() == max || next.is_none());
            found.extend(some);
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        assert_eq!(found, expected);
    }

    fn check_scan(&self, index: &mut Index, random: &mut Random) {
        let (queue, part) = (QueueId(1 + random.below(4)), 1 + random.below(3));
        let want = |entry: &Entry| entry.id.0.is_multiple_of(part);
        let mut from = random.one_in(2).then(|| (random.pick(&[0, 5, -1, 2]), MessageId(random.below(self.lsn))));
        let start = from.map(|(priority, id)| order(&place(queue.0, priority, id.0)));
        let expected = self.of(queue, None).filter(|e| want(e) && start.is_none_or(|start| order(&e.place()) >= start));
        let expected: Vec<_> = expected.copied().collect();
        let mut found = vec![];
        loop {
            let (some, next) = index.scan(queue, from, 300, &want).unwrap();
            found.extend(some);
            match next {
                Some(_) => from = next,
                None => break,
            }
        }
        assert_eq!(found, expected);
    }

    fn check_segment(&self, index: &mut Index, random: &mut Random) {
        let segment = random.below(2 + self.lsn / 100) as u32;
        let (max, max_len) = (random.pick(&[0, 1, 20, 5000]), random.pick(&[0, 250, 2000, u64::MAX]));
        let mut expected = vec![];
        let mut len = 0;
        for entry in self.entries.values() {
            let records = BTreeSet::from([entry.body, entry.detail]);
            if records.iter().any(|record| record.is_some() && record.segment == segment) {
                len += records.iter().map(|record| u64::from(record.len)).sum::<u64>();
                if expected.len() == max || (len > max_len && !expected.is_empty()) {
                    break;
                }
                expected.push(*entry);
            }
        }
        assert_eq!(index.in_segment(segment, max, max_len).unwrap(), expected);
    }

    /// The event that an answer from `from` on must contain.
    fn must_tell(&self, entry: &Entry, from: Timestamp) -> Option<Timestamp> {
        let before = Timestamp(from.0.saturating_sub(1));
        let delay_is_known = entry.visible_at <= entry.sent_at || entry.visible_at <= self.began;
        if entry.phase == Phase::Queued && delay_is_known {
            return next_event(entry, Timestamp(u64::MAX - 1)).filter(|at| *at >= from);
        }
        next_event(entry, before).filter(|at| *at >= from)
    }

    fn check_events(&mut self, index: &mut Index, random: &mut Random) {
        let (from, until) = (self.asked, Timestamp(self.clock - 50 + random.below(400)));
        if from >= until {
            return;
        }
        if from == Timestamp::ZERO {
            self.began = Timestamp(self.clock);
        }
        let max = 1 + random.below(80) as usize;
        let (found, reached) = index.events(from, until, max).unwrap();
        assert!(from < reached && reached <= until);
        let told: BTreeMap<_, _> = found.iter().map(|entry| (order(&entry.place()), *entry)).collect();
        assert_eq!(told.len(), found.len(), "a message was told twice");
        for (order, entry) in &told {
            assert_eq!(self.entries.get(order), Some(entry));
        }
        for (order, entry) in &self.entries {
            if let Some(at) = self.must_tell(entry, from).filter(|at| *at < reached) {
                assert!(told.contains_key(order), "{entry:?} at {at} is missing from {from} to {reached}");
            }
        }
        // The answer may be dropped and asked for again.
        if !random.one_in(4) {
            self.asked = reached;
        }
    }

    pub(super) fn check(&mut self, index: &mut Index, random: &mut Random) {
        self.check_sums(index);
        self.check_whole(index, random);
        self.check_lookups(index, random);
        self.check_scan(index, random);
        self.check_segment(index, random);
        self.check_events(index, random);
    }
}

fn run(seed: u64, rounds: u64, mut kv: impl FnMut() -> Box<dyn Kv>) {
    let (mut random, mut model) = (Random::new(seed), Model::new());
    let mut index = Index::open(kv(), STORE).unwrap();
    for round in 0..rounds {
        if random.one_in(15) {
            drop(index);
            index = Index::open(kv(), STORE).unwrap();
            model.reopened();
        }
        if random.one_in(20) {
            index.sync().unwrap();
        }
        let batch = model.batch(&mut random);
        index.apply(&batch).unwrap();
        if round % 2 == 0 || random.one_in(3) {
            model.check(&mut index, &mut random);
        }
    }
    assert!(model.entries.len() > 100, "the test has something to look at");
}

#[test]
fn the_index_in_memory_answers_as_a_plain_map_does() {
    for seed in 0..3 {
        let disk = MemDisk::new();
        run(seed, 150, || Box::new(disk.open()));
    }
}

#[test]
fn the_index_in_sled_answers_as_a_plain_map_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index/1");
    run(77, 120, || Box::new(SledKv::open_watched(Arc::new(RealFs), &path).unwrap()));
}

/// When an entry next changes its state without a call, after `now`.
fn next_event(entry: &Entry, now: Timestamp) -> Option<Timestamp> {
    let expiry = (entry.expires_at < Timestamp::MAX).then_some(entry.expires_at);
    match entry.phase {
        Phase::Dead => None,
        Phase::Held if entry.visible_at > now => Some(entry.visible_at),
        Phase::Queued if entry.visible_at > now => Some(expiry.map_or(entry.visible_at, |at| at.min(entry.visible_at))),
        Phase::Queued | Phase::Held => expiry,
    }
}
