//! Durable sends by 64 callers against the physical limit of the same disk in the same run.
//!
//! `bare` writes the same bytes into a file that was filled with zeros before, as many at once as the store
//! had synced at once in the round before: one `pwrite` and one `fdatasync` a group, nothing else. Rounds of
//! both alternate, so that a noisy machine disturbs both alike; what counts is the ratio of the medians. The
//! store stays open: making it is not counted, making its segments is.
//!
//! ```text
//! cargo bench --bench commit [-- --quick]
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use reappear::Store;

const CALLERS: usize = 64;
const BODY_LEN: usize = 1024;
/// What one `Sent` record of such a body takes in the log.
const RECORD_LEN: usize = BODY_LEN + 40;
const FRAME_HEADER_LEN: usize = 64;
const BLOCK_LEN: usize = 512;
const FILE_LEN: usize = 64 * 1024 * 1024;

struct Round {
    rate: f64,
    group: f64,
    sync_p50: Duration,
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick" || argument == "--test");
    let (rounds, messages) = if quick { (1, 6_400) } else { (9, 128_000) };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut sync_times = Histogram::<u64>::new(3).expect("a histogram");
    let (mut stores, mut bares) = (Vec::new(), Vec::new());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let store = runtime.block_on(Store::open(dir.path().join("store"))).expect("the store opens");
    let file = bare_file(&dir.path().join("bare"));
    // The first round tells the size of a group.
    let mut group = runtime.block_on(store_round(&store, messages / 4)).group;
    for round in 0..rounds {
        let bare = bare_round(&file, messages, group, &mut sync_times);
        let store = runtime.block_on(store_round(&store, messages));
        group = store.group;
        println!(
            "round {round}: bare {:.0}/s in groups of {:.1}, fdatasync p50 {:?}; store {:.0}/s in groups of {:.1}, {:?}",
            bare.rate, bare.group, bare.sync_p50, store.rate, store.group, store.sync_p50
        );
        bares.push(bare.rate);
        stores.push(store.rate);
    }
    runtime.block_on(store.close()).expect("closed");
    let at = |quantile| Duration::from_nanos(sync_times.value_at_quantile(quantile));
    println!("fdatasync p50 {:?} p99 {:?}", at(0.5), at(0.99));
    let (bare, store) = (median(&mut bares), median(&mut stores));
    println!("sends, {BODY_LEN} B, {CALLERS} callers, single calls, durable, median of {rounds}:");
    println!("bare {bare:.0}/s, store {store:.0}/s, ratio {:.2}", store / bare);
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// 64 tasks, each sending one message at a time.
async fn store_round(store: &Store, messages: usize) -> Round {
    let queue = store.queue("bench").expect("a name");
    queue.create(None).await.ok();
    let before = store.stats().await.expect("stats");
    let start = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..CALLERS {
        let queue = queue.clone();
        callers.spawn(async move {
            for _ in 0..messages / CALLERS {
                queue.send(vec![b'x'; BODY_LEN]).await.expect("sent");
            }
        });
    }
    callers.join_all().await;
    let took = start.elapsed().as_secs_f64();
    let after = store.stats().await.expect("stats");
    Round {
        rate: messages as f64 / took,
        group: (after.records - before.records) as f64 / (after.syncs - before.syncs) as f64,
        sync_p50: after.sync_times.map_or(Duration::ZERO, |times| times.p50),
    }
}

fn bare_file(path: &Path) -> File {
    let file = File::options().create(true).truncate(true).write(true).open(path).expect("a file");
    let zeros = vec![0; 1024 * 1024];
    for at in (0..FILE_LEN).step_by(zeros.len()) {
        file.write_all_at(&zeros, at as u64).expect("zero-filled");
    }
    file.sync_all().expect("synced");
    file
}

/// The same bytes in the same groups, and nothing else.
fn bare_round(file: &File, messages: usize, group: f64, sync_times: &mut Histogram<u64>) -> Round {
    let group = group.round().max(1.0) as usize;
    let frame_len = (FRAME_HEADER_LEN + group * RECORD_LEN).next_multiple_of(BLOCK_LEN);
    let frame = vec![b'x'; frame_len];
    let mut at = 0;
    let start = Instant::now();
    for _ in 0..messages / group {
        if at + frame_len > FILE_LEN {
            at = 0;
        }
        file.write_all_at(&frame, at as u64).expect("written");
        let before = Instant::now();
        file.sync_data().expect("synced");
        sync_times.record(u64::try_from(before.elapsed().as_nanos()).unwrap_or(u64::MAX)).expect("recorded");
        at += frame_len;
    }
    let took = start.elapsed().as_secs_f64();
    let sync_p50 = Duration::from_nanos(sync_times.value_at_quantile(0.5));
    Round { rate: (messages / group * group) as f64 / took, group: group as f64, sync_p50 }
}
