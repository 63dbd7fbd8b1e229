//! A disk that is full: sends are refused and change nothing, everything that makes room goes on, and
//! sends work again by themselves. And one that is mounted read-only.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use reappear::ErrorKind;
use reappear::blocking::{Queue, Store};

use crate::Skip;
use crate::child::{BATCH, body, options, start};
use crate::image::Disk;

/// Within which a send works again once there is room.
const SOON: Duration = Duration::from_secs(1);
/// Messages that a single consumer takes, one by one with a sync for each call, before others join in:
/// what costs most room for least work.
const ALONE: usize = 2000;
const CONSUMERS: usize = 16;

/// Which body each id has.
type Sent = BTreeMap<u64, Vec<u8>>;

fn open(disk: &Disk) -> Store {
    Store::open_with(disk.store(), options()).unwrap_or_else(|error| panic!("the store does not open: {error}"))
}

/// How the store and the disk stand, to be told with a failure.
fn state(disk: &Disk, store: &Store) -> String {
    let stats = store.stats().map(|stats| {
        format!(
            "log {} bytes in {} segments, {} of them live; index {} bytes; {} messages",
            stats.log_len, stats.segments, stats.live_len, stats.index_len, stats.messages
        )
    });
    format!("{} bytes of the disk are free; {}", disk.available(), stats.unwrap_or_else(|error| error.to_string()))
}

/// Sends in batches of `batch` until the disk is full or `enough` were sent.
fn fill(disk: &Disk, store: &Store, len: usize, batch: usize, enough: usize) -> Sent {
    let queue = store.queue("q").unwrap();
    let mut sent = Sent::new();
    while sent.len() < enough {
        let bodies: Vec<_> = (sent.len()..sent.len() + batch).map(|n| body(n, len)).collect();
        match queue.send_batch(bodies.clone()) {
            Ok(ids) => sent.extend(ids.into_iter().map(|id| id.get()).zip(bodies)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}; {}", state(disk, store));
                break;
            }
        }
    }
    println!("  {} messages of {len} bytes are sent; {}", sent.len(), state(disk, store));
    sent
}

/// Sends are refused now, as full and not as anything worse. One or another may find room that carrying made.
fn assert_full(disk: &Disk, store: &Store, sent: &mut Sent) {
    let queue = store.queue("q").unwrap();
    let mut refused = 0;
    for _ in 0..2000 {
        match queue.send(body(0, 4000)) {
            Ok(id) => drop(sent.insert(id.get(), body(0, 4000))),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}; {}", state(disk, store));
                refused += 1;
                if refused == 20 {
                    break;
                }
            }
        }
    }
    assert_eq!(refused, 20, "the disk is full; {}", state(disk, store));
    let stats = store.stats().unwrap();
    assert_eq!(stats.poisoned, None, "a full disk is nothing that must be recovered from");
}

/// Receives and acknowledges one by one until nothing comes any more, or `max` were done.
fn consume(disk: &Disk, store: &Store, left: &Mutex<Sent>, max: usize, consumers: usize) {
    let queue = store.queue("q").unwrap();
    let budget = AtomicUsize::new(max);
    let take = || budget.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
    let one_by_one = || {
        while take() && settle_one(&queue, left).unwrap_or_else(|what| panic!("{what}; {}", state(disk, store))) {}
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..consumers).map(|_| scope.spawn(one_by_one)).collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}

/// `false`: there is nothing more.
fn settle_one(queue: &Queue, left: &Mutex<Sent>) -> Result<bool, String> {
    let count = || left.lock().map_or(0, |left| left.len());
    let got = queue.receive().visibility(Duration::from_secs(3600)).one();
    let got = got.map_err(|error| format!("a receive is refused with {} to go: {error}", count()))?;
    let Some(job) = got else { return Ok(false) };
    let id = job.id().get();
    let Some(expected) = left.lock().map_err(|_| "another consumer failed")?.remove(&id) else {
        return Err(format!("message {id} came twice, or from nowhere"));
    };
    if job.body() != expected {
        return Err(format!("message {id} has another body"));
    }
    job.ack().map_err(|error| format!("an ack is refused with {} to go: {error}", count()))?;
    Ok(true)
}

fn drain(disk: &Disk, store: &Store, sent: Sent) {
    let start = Instant::now();
    let (count, left) = (sent.len(), Mutex::new(sent));
    consume(disk, store, &left, ALONE, 1);
    consume(disk, store, &left, usize::MAX, CONSUMERS);
    let left = left.into_inner().unwrap();
    assert!(left.is_empty(), "{} of {count} messages are lost; {}", left.len(), state(disk, store));
    println!("  {count} messages were drained in {:.1?}; {}", start.elapsed(), state(disk, store));
}

/// A send works, after a second at most, without anything being opened again.
fn assert_sends_again(disk: &Disk, store: &Store) {
    let queue = store.queue("q").unwrap();
    let start = Instant::now();
    loop {
        match queue.send("room again") {
            Ok(_) => break,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}; {}", state(disk, store));
                assert!(start.elapsed() < SOON, "still refused: {error}; {}", state(disk, store));
                std::thread::yield_now();
            }
        }
    }
    let job = queue.receive().one().unwrap().expect("it was sent");
    assert_eq!(job.body(), b"room again");
    job.ack().unwrap();
}

/// Nothing comes back after the store was opened again.
fn assert_stays_empty(disk: &Disk, store: Store) {
    store.close().unwrap_or_else(|error| panic!("the store does not close: {error}"));
    drop(store);
    let store = open(disk);
    let left = store.queue("q").unwrap().peek(None, 10).unwrap();
    assert!(left.is_empty(), "{left:?} came back");
    store.close().unwrap();
}

fn fill_and_drain(len: usize, batch: usize) -> Result<(), Skip> {
    let disk = Disk::new()?;
    let store = open(&disk);
    // Twice: the second time the disk is full of what the first one left.
    for _ in 0..2 {
        let mut sent = fill(&disk, &store, len, batch, usize::MAX);
        assert!(sent.len() * len > 10_000_000, "only {} messages fitted", sent.len());
        assert_full(&disk, &store, &mut sent);
        drain(&disk, &store, sent);
        assert_sends_again(&disk, &store);
    }
    assert_stays_empty(&disk, store);
    Ok(())
}

pub fn small_messages() -> Result<(), Skip> {
    fill_and_drain(100, BATCH)
}

pub fn single_sends() -> Result<(), Skip> {
    fill_and_drain(1024, 1)
}

pub fn killed_while_full() -> Result<(), Skip> {
    let disk = Disk::new()?;
    let (mut child, lines) = start("fill", &disk.store());
    let mut sent = Sent::new();
    for line in lines {
        if let Some(kind) = line.strip_prefix("refused ") {
            assert_eq!(kind, "Full");
            child.kill().unwrap();
            break;
        }
        for id in line.split(' ') {
            let body = body(sent.len(), 100);
            sent.insert(id.parse().unwrap(), body);
        }
    }
    child.wait().unwrap();
    assert!(sent.len() > 100_000, "the child sent only {}", sent.len());
    let store = open(&disk);
    println!("  {}", store.report());
    assert_full_or_as_before(&disk, &store, &mut sent);
    drain(&disk, &store, sent);
    assert_sends_again(&disk, &store);
    assert_stays_empty(&disk, store);
    Ok(())
}

/// Opening may have made room for a little; not for much.
fn assert_full_or_as_before(disk: &Disk, store: &Store, sent: &mut Sent) {
    let more = fill(disk, store, 100, 1, 50_000);
    assert!(more.len() < 50_000, "the disk is not full any more");
    sent.extend(more);
    assert_full(disk, store, sent);
}

pub fn filled_by_somebody_else() -> Result<(), Skip> {
    let disk = Disk::new()?;
    let store = open(&disk);
    let mut sent = fill(&disk, &store, 1024, BATCH, 20_000);
    assert!(disk.available() > 20_000_000, "half of it is free");
    let foreign = disk.take_the_rest();
    println!("  a foreign file took the rest; {}", state(&disk, &store));
    let more = fill(&disk, &store, 1024, 1, 10_000);
    assert!(more.len() < 10_000, "there was room for all of it");
    sent.extend(more);
    assert_full(&disk, &store, &mut sent);
    let left = Mutex::new(sent);
    consume(&disk, &store, &left, 1000, 1);
    consume(&disk, &store, &left, 4000, CONSUMERS);
    assert_eq!(store.stats().unwrap().messages, left.lock().unwrap().len() as u64);
    std::fs::remove_file(foreign).unwrap();
    assert_sends_behind(&disk, &store, &left);
    drain(&disk, &store, left.into_inner().unwrap());
    assert_stays_empty(&disk, store);
    Ok(())
}

/// As [`assert_sends_again`], where other messages are before it.
fn assert_sends_behind(disk: &Disk, store: &Store, left: &Mutex<Sent>) {
    let queue = store.queue("q").unwrap();
    let start = Instant::now();
    loop {
        match queue.send("room again") {
            Ok(id) => {
                left.lock().unwrap().insert(id.get(), b"room again".to_vec());
                return;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}; {}", state(disk, store));
                assert!(start.elapsed() < SOON, "still refused: {error}; {}", state(disk, store));
                std::thread::yield_now();
            }
        }
    }
}

/// What cannot be written is not opened, with a word on what to do, and is as it was afterwards.
pub fn mounted_read_only() -> Result<(), Skip> {
    let disk = Disk::new()?;
    let store = open(&disk);
    let sent = fill(&disk, &store, 100, BATCH, 1000);
    store.close().unwrap();
    drop(store);
    disk.remount("ro");
    let error = Store::open_with(disk.store(), options()).expect_err("it cannot be written");
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("mount the file system for writing"), "{error}");
    let records = reappear::inspect::Log::open(disk.store()).unwrap().filter(Result::is_ok).count();
    assert!(records >= sent.len(), "a look into it needs no writing: {records} records");
    disk.remount("rw");
    let store = open(&disk);
    drain(&disk, &store, sent);
    assert_stays_empty(&disk, store);
    Ok(())
}
