//! How much disk and memory a store takes while messages come and go, and what carrying costs.
//!
//! - `lives`: messages are sent, received and acked at constant depth behind one old message that stays:
//!   unsettled, delayed, dead, or extended every second. Nothing may grow.
//! - `loops`: the same messages are handed out and given back again and again, released or nacked.
//! - `latency`: single durable sends while live messages are carried out of the log's oldest segments, and
//!   without that, in alternating rounds.
//!
//! Files are listed every 10 ms by a thread of its own, so that what is checked is the most that there was,
//! not what happened to be there at a sample. A bound that does not hold is printed as `VIOLATED`; the run
//! goes on and ends with status 1.
//!
//! ```text
//! cargo bench --bench space [-- --quick] [lives] [loops] [latency]
//! ```
//!
//! `--quick` is a hundredth of the size, in segments of 4 MiB instead of 64.

#[path = "space/latency.rs"]
mod latency;
#[path = "space/measure.rs"]
mod measure;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reappear::blocking::{Delivery, Queue, Store};
use reappear::{Backoff, Error, Nack, NewMessage, Options, QueueOptions, Receipt, RedriveFilter, State};

use measure::{Run, Summary};

const BODY_LEN: usize = 100;
const BATCH: usize = 100;
const DEPTH: usize = 1000;
const OLD_BODY: &[u8] = b"the message that stays";
const ERROR_TEXT: &str = "upstream answered 503";
/// Longest visibility timeout of a queue by default.
const LONG: Duration = Duration::from_secs(43_200);
const WEEK: Duration = Duration::from_secs(7 * 86_400);

const MIB: u64 = 1024 * 1024;

struct Scale {
    segment_len: u32,
    /// Lives behind each old message, and after how many there is a row.
    lives: u64,
    step: u64,
    /// Messages that are given back, and how often each.
    messages: usize,
    passes: u32,
    /// Messages that are live at the log's front while sends are timed; rounds; time of one without carrying.
    kept: usize,
    rounds: usize,
    window: Duration,
    /// What must hold of the 99th percentile with and without carrying; a short run tells nothing of it.
    max_p99_ratio: f64,
}

const FULL: Scale = Scale {
    segment_len: 64 * 1024 * 1024,
    lives: 10_000_000,
    step: 100_000,
    messages: 100_000,
    passes: 20,
    kept: 300_000,
    rounds: 5,
    window: Duration::from_secs(4),
    max_p99_ratio: 2.0,
};

const QUICK: Scale = Scale {
    segment_len: 4 * 1024 * 1024,
    lives: 100_000,
    step: 10_000,
    messages: 10_000,
    passes: 2,
    kept: 60_000,
    rounds: 1,
    window: Duration::from_secs(1),
    max_p99_ratio: f64::INFINITY,
};

static VIOLATED: AtomicBool = AtomicBool::new(false);

/// A bound: the run goes on when it does not hold, so that all of it is seen.
fn check(holds: bool, what: &str) {
    if !holds {
        VIOLATED.store(true, Ordering::Relaxed);
        println!("VIOLATED: {what}");
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|argument| argument == "--quick" || argument == "--test");
    let scale = if quick { QUICK } else { FULL };
    let parts: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with("--")).collect();
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|name| *name == part);
    println!("{}\n", conditions(&scale));
    let mut runs = Vec::new();
    if wanted("lives") {
        runs.extend([Old::Unsettled, Old::Delayed, Old::Dead, Old::Extended].map(|old| lives(old, &scale)));
    }
    if wanted("loops") {
        runs.extend([Back::Released, Back::Nacked].map(|back| give_back(back, &scale)));
    }
    if !runs.is_empty() {
        println!("{}", Summary::table(&runs));
    }
    if wanted("latency") {
        latency::compare(1, &scale);
        latency::compare(16, &scale);
    }
    println!("load average at the end {}", load());
    if VIOLATED.load(Ordering::Relaxed) {
        println!("a bound was VIOLATED, see above");
        std::process::exit(1);
    }
    println!("all bounds held");
}

/// The last line of what a program prints; what cannot be found out is not worth a failure.
fn told_by(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().last().unwrap_or("unknown").trim().to_owned()
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn conditions(scale: &Scale) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "commit {}, {}, Linux {}, {cores} cores, {} in the temporary directory, {}\nsegments of {} MiB, load average at the beginning {}",
        told_by("git", &["describe", "--always", "--dirty"]),
        told_by("date", &["-u", "+%F %H:%M UTC"]),
        told_by("uname", &["-r"]),
        told_by("df", &["--output=fstype", &std::env::temp_dir().to_string_lossy()]),
        told_by("rustc", &["--version"]),
        u64::from(scale.segment_len) / MIB,
        load(),
    )
}

fn open(path: &Path, scale: &Scale, max_amplification: u32) -> Store {
    let options = Options::new().segment_len(scale.segment_len).max_amplification(max_amplification);
    Store::open_with(path, options).expect("the store opens")
}

fn send_batch(queue: &Queue, len: usize) {
    queue.send_batch((0..BATCH).map(|_| vec![b'x'; len])).expect("sent");
}

/// While messages are carried a receive may give less than it was asked for, although more is there.
fn receive_batch(queue: &Queue) -> Vec<Receipt> {
    let mut receipts = Vec::with_capacity(BATCH);
    while receipts.len() < BATCH {
        let deliveries = queue.receive().max(BATCH - receipts.len()).visibility(LONG).many().expect("received");
        assert!(!deliveries.is_empty(), "as many are there");
        receipts.extend(deliveries.iter().map(|delivery| delivery.receipt()));
    }
    receipts
}

fn all_done(results: Result<Vec<Result<(), Error>>, Error>) {
    for result in results.expect("answered") {
        result.expect("settled");
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Old {
    Unsettled,
    Delayed,
    Dead,
    Extended,
}

impl Old {
    fn name(self) -> &'static str {
        match self {
            Self::Unsettled => "lives, one unsettled",
            Self::Delayed => "lives, one delayed",
            Self::Dead => "lives, one dead",
            Self::Extended => "lives, one extended",
        }
    }

    fn state(self) -> State {
        match self {
            Self::Unsettled | Self::Extended => State::InFlight,
            Self::Delayed => State::Delayed,
            Self::Dead => State::Dead,
        }
    }

    /// Puts the message into the empty queue, in the state in which it stays.
    fn put(self, queue: &Queue) -> Option<Delivery> {
        if self == Self::Delayed {
            queue.send(NewMessage::new(OLD_BODY).delay(WEEK)).expect("sent");
            return None;
        }
        queue.send(OLD_BODY).expect("sent");
        let visibility = if self == Self::Extended { Duration::from_secs(600) } else { LONG };
        let delivery = queue.receive().visibility(visibility).one().expect("received").expect("it is there");
        if self == Self::Dead {
            delivery.reject(ERROR_TEXT).expect("rejected");
        }
        Some(delivery)
    }

    /// After all, in a store that was opened again: it is what it was, and its receipt is good.
    fn verify(self, queue: &Queue, delivery: Option<&Delivery>) {
        let views = queue.peek(self.state(), 10).expect("peeked");
        assert_eq!(views.len(), 1, "the old message is the only one in its state");
        let view = &views[0];
        let receives = u32::from(self != Self::Delayed);
        assert_eq!((view.body.as_slice(), view.receive_count, view.epoch), (OLD_BODY, receives, receives));
        match self {
            Self::Delayed => {
                let hidden = view.visible_at.as_millis() - view.sent_at.as_millis();
                assert_eq!(u128::from(hidden), WEEK.as_millis());
            }
            Self::Dead => {
                assert_eq!(view.dead.as_ref().and_then(|dead| dead.error.as_deref()), Some(ERROR_TEXT));
                assert_eq!(queue.redrive(RedriveFilter::default(), None).expect("redriven"), 1);
            }
            Self::Unsettled | Self::Extended => {
                let receipt = delivery.expect("it was received").receipt();
                all_done(queue.ack_many([receipt]));
            }
        }
    }
}

fn lives(old: Old, scale: &Scale) -> Summary {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("store");
    let store = open(&path, scale, 2);
    let queue = store.queue("lives").expect("a name");
    let delivery = old.put(&queue);
    for _ in 0..DEPTH / BATCH {
        send_batch(&queue, BODY_LEN);
    }
    let mut run = Run::start(old.name(), &store, scale);
    let mut extended = Instant::now();
    for done in (BATCH as u64..=scale.lives).step_by(BATCH) {
        send_batch(&queue, BODY_LEN);
        all_done(queue.ack_many(receive_batch(&queue)));
        if old == Old::Extended && extended.elapsed() >= Duration::from_secs(1) {
            delivery.as_ref().expect("it was received").extend(Duration::from_secs(600)).expect("extended");
            extended = Instant::now();
        }
        if done % scale.step == 0 {
            run.sample(&store, done);
        }
    }
    let summary = run.finish(&store);
    store.close().expect("closed");
    let store = open(&path, scale, 2);
    let queue = store.queue("lives").expect("a name");
    assert_eq!(store.stats().expect("stats").messages, DEPTH as u64 + 1);
    old.verify(&queue, delivery.as_ref());
    store.close().expect("closed");
    summary
}

#[derive(Clone, Copy, PartialEq)]
enum Back {
    Released,
    Nacked,
}

/// All messages are handed out, then all given back; that again and again.
fn give_back(back: Back, scale: &Scale) -> Summary {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("store");
    let store = open(&path, scale, 2);
    let queue = store.queue("loop").expect("a name");
    queue.create(QueueOptions::new().max_attempts(None).backoff(Backoff::NONE)).expect("created");
    for _ in 0..scale.messages / BATCH {
        send_batch(&queue, BODY_LEN);
    }
    let name = if back == Back::Released { "loop, released" } else { "loop, nacked" };
    let mut run = Run::start(name, &store, scale);
    for pass in 1..=u64::from(scale.passes) {
        let held: Vec<_> = (0..scale.messages / BATCH).map(|_| receive_batch(&queue)).collect();
        for receipts in held {
            all_done(match back {
                Back::Released => queue.release_many(receipts),
                Back::Nacked => queue.nack_many(receipts, Nack::new().error(ERROR_TEXT)),
            });
        }
        run.sample(&store, pass * scale.messages as u64);
    }
    let summary = run.finish(&store);
    store.close().expect("closed");
    let store = open(&path, scale, 2);
    let queue = store.queue("loop").expect("a name");
    assert_eq!(queue.stats().expect("stats").ready, scale.messages as u64);
    for view in queue.peek(State::Ready, 1000).expect("peeked") {
        let last_error = (back == Back::Nacked).then_some(ERROR_TEXT);
        assert_eq!((view.body.len(), view.receive_count), (BODY_LEN, scale.passes));
        assert_eq!(view.last_error.as_deref(), last_error);
    }
    store.close().expect("closed");
    summary
}
