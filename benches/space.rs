//! That disk use is bounded, and that carrying live messages out of old segments does not hurt.
//!
//! 1. Ten million lives pass behind one old message that stays: unsettled, delayed, dead, or extended every
//!    second. 2. A hundred thousand messages are released, or nacked, over and over. 3. Sends with and without
//!    carrying, in alternating rounds of one run.
//!
//! ```text
//! cargo bench --bench space [-- --quick]
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use reappear::blocking::{Queue, Store};
use reappear::{AsReceipt, Backoff, Nack, NewMessage, Options, QueueOptions};

const BODY_LEN: usize = 100;
const BATCH: usize = 100;
const DEPTH: usize = 1000;
/// Bounds that are asserted. Over twice what lives, at any time: the two segments that are made ahead, the one that
/// is written, and those on their way out, of which a machine that does much else has more. After quiet: three.
const MOST_SEGMENTS: u64 = 12;
const MOST_INDEX_LEN: u64 = 64 * 1024 * 1024;

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick" || argument == "--test");
    // The quick run is a hundredth of all, of the segments too, so that the log rotates as often.
    let (lives, segment_len) = if quick { (100_000, 640 * 1024) } else { (10_000_000, 64 * 1024 * 1024) };
    println!("segments of {segment_len} bytes");
    println!("lives behind an old message: {lives} each, {BODY_LEN} B, in batches of {BATCH}, constant depth {DEPTH}");
    for age in ["unsettled", "delayed a week", "dead", "extended every second"] {
        behind(age, lives, segment_len);
    }
    let (messages, rounds) = if quick { (10_000, 3) } else { (100_000, 20) };
    println!("\n{messages} messages handed out and given back {rounds} times");
    for nack in [false, true] {
        loops((messages, rounds), nack, segment_len);
    }
    println!();
    for callers in [1, 16] {
        latency(callers, if quick { (1, 20_000) } else { (5, 100_000) });
    }
}

fn queue_options() -> QueueOptions {
    QueueOptions::new().max_attempts(None).backoff(Backoff::NONE)
}

/// Bytes of the files below a directory.
fn len_below(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let len = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => len_below(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.map(len).sum()
}

fn resident_len() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

const fn mib(bytes: u64) -> u64 {
    bytes / (1024 * 1024)
}

/// The largest of what was seen on the way.
struct Most {
    segment_len: u64,
    log: u64,
    over: u64,
    index: u64,
    resident: u64,
}

impl Most {
    fn new(segment_len: u32) -> Self {
        Self { segment_len: segment_len.into(), log: 0, over: 0, index: 0, resident: 0 }
    }

    /// The bound at all times: what is made ahead and written, and segments on their way out.
    fn look(&mut self, store: &Store, dir: &Path) {
        let stats = store.stats().expect("stats");
        let log = len_below(&dir.join("log"));
        self.log = self.log.max(log);
        self.over = self.over.max(log.saturating_sub(2 * stats.live_len));
        self.index = self.index.max(len_below(&dir.join("index")));
        self.resident = self.resident.max(resident_len());
        let bound = MOST_SEGMENTS * self.segment_len + 2 * stats.live_len;
        assert!(log <= bound, "the log has {log} bytes, more than {bound}: {stats:?}");
        assert!(self.index <= MOST_INDEX_LEN, "the index has {} bytes", self.index);
    }

    fn text(&self) -> String {
        format!(
            "at most: log {} MiB ({:.1} segments over 2 x live), index {} MiB, resident {} MiB",
            mib(self.log),
            self.over as f64 / self.segment_len as f64,
            mib(self.index),
            mib(self.resident)
        )
    }
}

/// After quiet, within a bounded time: how many segments over twice what lives the log's files are.
fn after_quiet(store: &Store, dir: &Path, segment_len: u32) -> f64 {
    let started = Instant::now();
    loop {
        let live = store.stats().expect("stats").live_len;
        let over = len_below(&dir.join("log")).saturating_sub(2 * live) as f64 / f64::from(segment_len);
        if over <= 3.0 {
            return over;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{over} segments over twice what lives, after a minute");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn pass_lives(queue: &Queue, count: usize) {
    for _ in 0..count / BATCH {
        queue.send_batch((0..BATCH).map(|_| vec![b'x'; BODY_LEN])).expect("sent");
        let jobs = queue.receive().max(BATCH).many().expect("received");
        let done = queue.ack_many(jobs.iter().map(AsReceipt::as_receipt)).expect("acked");
        assert!(done.iter().all(Result::is_ok));
    }
}

fn behind(age: &str, lives: usize, segment_len: u32) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("s");
    let store = Store::open_with(&path, Options::new().segment_len(segment_len)).expect("opened");
    let (old, busy) = (store.queue("old").expect("a name"), store.queue("busy").expect("a name"));
    old.create(queue_options()).expect("created");
    let delay = if age.starts_with("delayed") { Duration::from_secs(7 * 86_400) } else { Duration::ZERO };
    old.send(NewMessage::new("the old one").delay(delay)).expect("sent");
    let held = (!age.starts_with("delayed"))
        .then(|| old.receive().visibility(Duration::from_secs(40_000)).one().expect("received").expect("it is there"));
    if age == "dead" {
        held.as_ref().expect("held").reject("no").expect("rejected");
    }
    for _ in 0..DEPTH / BATCH {
        busy.send_batch((0..BATCH).map(|_| vec![b'x'; BODY_LEN])).expect("sent");
    }
    let (mut most, mut rates) = (Most::new(segment_len), Vec::new());
    let mut extended = Instant::now();
    let step = lives / 100;
    for _ in 0..100 {
        let started = Instant::now();
        for _ in 0..step / 1000 {
            pass_lives(&busy, 1000);
            if age.starts_with("extended") && extended.elapsed() >= Duration::from_secs(1) {
                held.as_ref().expect("held").extend(Duration::from_secs(30)).expect("extended");
                extended = Instant::now();
            }
        }
        rates.push(step as f64 / started.elapsed().as_secs_f64());
        most.look(&store, &path);
    }
    let stats = store.stats().expect("stats");
    let over = after_quiet(&store, &path, segment_len);
    store.close().expect("closed");
    drop((store, old, busy));
    let store = Store::open(&path).expect("opened again");
    let seen = store.queue("old").expect("a name").peek(None, 10).expect("peeked");
    assert_eq!(seen.iter().map(|view| view.body.as_slice()).collect::<Vec<_>>(), [b"the old one"]);
    let tenth = |from: usize| rates[from..from + 10].iter().sum::<f64>() / 10.0;
    println!(
        "{age}: {:.0} lives/s in the first tenth, {:.0} in the last; {}; after quiet {over:.1} segments over 2 x live; \
         write amplification {:.3}; index generation {}",
        tenth(0),
        tenth(90),
        most.text(),
        stats.write_amplification().unwrap_or(1.0),
        stats.index_generation
    );
}

fn loops((messages, rounds): (usize, usize), nack: bool, segment_len: u32) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("s");
    let store = Store::open_with(&path, Options::new().segment_len(segment_len)).expect("opened");
    let queue = store.queue("q").expect("a name");
    queue.create(queue_options()).expect("created");
    for _ in 0..messages / BATCH {
        queue.send_batch((0..BATCH).map(|_| vec![b'x'; BODY_LEN])).expect("sent");
    }
    let (mut most, started) = (Most::new(segment_len), Instant::now());
    for _ in 0..rounds {
        let mut receipts = Vec::with_capacity(messages);
        loop {
            let jobs = queue.receive().max(1000).visibility(Duration::from_secs(40_000)).many().expect("received");
            if jobs.is_empty() {
                break;
            }
            receipts.extend(jobs.iter().map(AsReceipt::as_receipt));
        }
        assert_eq!(receipts.len(), messages);
        for part in receipts.chunks(1000) {
            let done = if nack {
                queue.nack_many(part.iter().copied(), Nack::new().error("again"))
            } else {
                queue.release_many(part.iter().copied())
            };
            assert!(done.expect("given back").iter().all(Result::is_ok));
        }
        most.look(&store, &path);
    }
    let rate = (messages * rounds) as f64 / started.elapsed().as_secs_f64();
    let stats = store.stats().expect("stats");
    let over = after_quiet(&store, &path, segment_len);
    let what = if nack { "nacked" } else { "released" };
    println!(
        "{what}: {rate:.0} deliveries/s; {}; after quiet {over:.1} segments over 2 x live; write amplification {:.3}",
        most.text(),
        stats.write_amplification().unwrap_or(1.0)
    );
    store.close().expect("closed");
}

/// Sends of 1 KiB beside live messages of 1 KiB: once where the log may be a hundred times what lives,
/// once where it may be twice that, so that carrying goes on all the time.
fn latency(callers: usize, (rounds, live): (usize, usize)) {
    let mut times = [Histogram::<u64>::new(3).expect("a histogram"), Histogram::<u64>::new(3).expect("a histogram")];
    let mut carried = [0; 2];
    for _ in 0..rounds {
        for (which, amplification) in [100, 2].into_iter().enumerate() {
            let (samples, bytes) = latency_round(callers, live, amplification);
            times[which].add(&samples).expect("added");
            carried[which] += bytes;
        }
    }
    let [without, with] = &times;
    let at = |times: &Histogram<u64>, q| Duration::from_nanos(times.value_at_quantile(q));
    println!(
        "sends of 1 KiB, {callers} callers, {rounds} rounds: without carrying p50 {:?} p99 {:?} ({} MiB carried); with \
         p50 {:?} p99 {:?} ({} MiB carried); ratio of p99 {:.2}",
        at(without, 0.5),
        at(without, 0.99),
        mib(carried[0]),
        at(with, 0.5),
        at(with, 0.99),
        mib(carried[1]),
        with.value_at_quantile(0.99) as f64 / without.value_at_quantile(0.99) as f64
    );
}

fn latency_round(callers: usize, live: usize, amplification: u32) -> (Histogram<u64>, u64) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = Options::new().max_amplification(amplification).segment_len(16 * 1024 * 1024);
    let store = Store::open_with(dir.path().join("s"), options).expect("opened");
    let (keep, busy) = (store.queue("keep").expect("a name"), store.queue("busy").expect("a name"));
    // What stays and what goes, mixed in every segment; then nearly all of what goes is gone at once.
    for _ in 0..live / BATCH {
        keep.send_batch((0..BATCH / 2).map(|_| vec![b'x'; 1024])).expect("sent");
        for _ in 0..3 {
            busy.send_batch((0..BATCH).map(|_| vec![b'x'; 1024])).expect("sent");
        }
    }
    let before = store.stats().expect("stats").relocated_len;
    busy.purge(&[reappear::State::Ready]).expect("purged");
    let mut all = Histogram::<u64>::new(3).expect("a histogram");
    std::thread::scope(|scope| {
        let caller = || {
            let mut times = Histogram::<u64>::new(3).expect("a histogram");
            let started = Instant::now();
            while started.elapsed() < Duration::from_secs(3) {
                let at = Instant::now();
                busy.send(vec![b'x'; 1024]).expect("sent");
                times.record(u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)).expect("recorded");
            }
            times
        };
        let threads: Vec<_> = (0..callers).map(|_| scope.spawn(caller)).collect();
        for thread in threads {
            all.add(thread.join().expect("no panic")).expect("added");
        }
    });
    let carried = store.stats().expect("stats").relocated_len - before;
    store.close().expect("closed");
    (all, carried)
}
