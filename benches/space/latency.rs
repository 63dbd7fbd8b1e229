//! What carrying costs those who send meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use reappear::{Options, State, StoreStats};

use crate::measure::{Written, mib};
use crate::{BATCH, Scale, all_done, check, open, receive_batch, send_batch};

/// Bytes of a body.
const SENT_LEN: usize = 1024;

/// Sends of a while: how long each took, in all that counts.
struct Sends {
    times: Histogram<u64>,
    took: Duration,
    stats: StoreStats,
    /// To the device, by everybody.
    written: u64,
}

/// A store whose front is live, with so much dead behind it that all of the front is carried when it is
/// opened with `max_amplification` 2.
fn fill(path: &Path, scale: &Scale) {
    let store = open(path, scale, 100);
    let kept = store.queue("kept").expect("a name");
    let messages = kept.stats().map_or(0, |stats| stats.ready);
    for _ in 0..(scale.kept - messages as usize) / BATCH {
        send_batch(&kept, SENT_LEN);
    }
    let passing = store.queue("passing").expect("a name");
    let segment = u64::from(scale.segment_len);
    while let stats = store.stats().expect("stats")
        && stats.log_len_on_disk < 2 * stats.live_len + 7 * segment
    {
        for _ in 0..100 {
            send_batch(&passing, SENT_LEN);
            all_done(passing.ack_many(receive_batch(&passing)));
        }
    }
    store.close().expect("closed");
}

/// Sends by so many callers, one call at a time. With carrying (`max_amplification` 2) only those sends
/// count that were made while bytes were carried, from one look at the figures to the next.
async fn timed_sends(path: &Path, callers: u64, max_amplification: u32, scale: &Scale) -> Sends {
    let options = Options::new().segment_len(scale.segment_len).max_amplification(max_amplification);
    let (start, written) = (Instant::now(), Written::so_far(path));
    let store = reappear::Store::open_with(path, options).await.expect("the store opens");
    let queue = store.queue("sent").expect("a name");
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (queue, stop, count) = (queue.clone(), Arc::clone(&stop), Arc::clone(&count));
        tasks.spawn(async move {
            let mut samples = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let before = start.elapsed();
                queue.send(vec![b'x'; SENT_LEN]).await.expect("sent");
                samples.push((before, start.elapsed()));
                count.fetch_add(1, Ordering::Relaxed);
            }
            samples
        });
    }
    let opened = start.elapsed();
    let carries = max_amplification == 2;
    // (from, to) of the intervals that count; when bytes were last carried.
    let (mut intervals, mut active) = (Vec::new(), opened);
    let (mut from, mut carried) = (opened, store.stats().await.expect("stats").relocated_len);
    let stats = loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let stats = store.stats().await.expect("stats");
        let to = start.elapsed();
        if !carries || stats.relocated_len > carried {
            intervals.push((from, to));
            active = to;
        }
        (from, carried) = (to, stats.relocated_len);
        let over = if carries { to - active > Duration::from_secs(1) } else { to - opened > scale.window };
        if over || count.load(Ordering::Relaxed) > 200_000 {
            break stats;
        }
    };
    stop.store(true, Ordering::Relaxed);
    let mut times = Histogram::new(3).expect("a histogram");
    for (before, after) in tasks.join_all().await.into_iter().flatten() {
        if intervals.iter().any(|(from, to)| (*from..*to).contains(&before)) {
            times.record((after - before).as_nanos() as u64).expect("recorded");
        }
    }
    let took = intervals.iter().map(|(from, to)| *to - *from).sum();
    queue.purge(&[State::Ready]).await.expect("purged");
    store.close().await.expect("closed");
    Sends { times, took, stats, written: Written::so_far(path).since(written).device }
}

pub fn compare(callers: u64, scale: &Scale) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("store");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    println!(
        "sends of {SENT_LEN} B by {callers} callers, single calls, durable; {} messages at the log's front",
        scale.kept
    );
    println!(
        "{:>5} {:<9} {:>8} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>12} {:>8} {:>10}",
        "round",
        "carrying",
        "sends",
        "s",
        "/s",
        "p50 ms",
        "p99 ms",
        "max ms",
        "sync p50",
        "sync p99",
        "carried MiB",
        "w. amp.",
        "device MiB"
    );
    let mut all = [Histogram::<u64>::new(3).expect("a histogram"), Histogram::new(3).expect("a histogram")];
    let mut ratios = Vec::new();
    for round in 0..scale.rounds {
        fill(&path, scale);
        let both = [100, 2].map(|max| runtime.block_on(timed_sends(&path, callers, max, scale)));
        for ((sends, all), carrying) in both.iter().zip(&mut all).zip(["without", "with"]) {
            all.add(&sends.times).expect("added");
            let count = sends.times.len();
            let [sync_p50, sync_p99] = sends
                .stats
                .sync_times
                .map_or([f64::NAN; 2], |times| [times.p50, times.p99].map(|time| time.as_secs_f64() * 1e3));
            let seconds = sends.took.as_secs_f64();
            println!(
                "{round:>5} {carrying:<9} {count:>8} {seconds:>6.1} {:>8.0} {} {:>8.3} {:>8.3} {:>12.1} {:>8.3} {:>10.1}",
                count as f64 / seconds,
                percentiles(&sends.times),
                sync_p50,
                sync_p99,
                mib(sends.stats.relocated_len),
                sends.stats.write_amplification().unwrap_or(f64::NAN),
                mib(sends.written)
            );
        }
        check(both[0].stats.relocated_len == 0, "bytes were carried in a round without carrying");
        check(
            both[1].stats.relocated_len > 0 && !both[1].times.is_empty(),
            "nothing was carried while sends were timed",
        );
        ratios.push(p99_ratio(&both[1].times, &both[0].times));
    }
    for (times, carrying) in all.iter().zip(["without", "with"]) {
        println!("{:>5} {carrying:<9} {:>8} {:>15} {}", "all", times.len(), "", percentiles(times));
    }
    ratios.sort_by(f64::total_cmp);
    let (ratio, median) = (p99_ratio(&all[1], &all[0]), ratios[ratios.len() / 2]);
    println!(
        "p99 with / without: {ratio:.2} over all rounds, median of the rounds {median:.2}, most {:.2}\n",
        ratios[ratios.len() - 1]
    );
    check(ratio <= scale.max_p99_ratio, &format!("{callers} callers: p99 is {ratio:.2} times as long while carrying"));
}

fn percentiles(times: &Histogram<u64>) -> String {
    let at = |nanos: u64| nanos as f64 / 1e6;
    let (p50, p99) = (times.value_at_quantile(0.5), times.value_at_quantile(0.99));
    format!("{:>8.3} {:>8.3} {:>8.3}", at(p50), at(p99), at(times.max()))
}

fn p99_ratio(with: &Histogram<u64>, without: &Histogram<u64>) -> f64 {
    with.value_at_quantile(0.99) as f64 / without.value_at_quantile(0.99) as f64
}
