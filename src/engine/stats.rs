//! What is observed: meters that the committer keeps, and the figures made of them.
//!
//! # Invariants
//! 18: counts by state are the tables' own; nothing here is counted twice.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::options::Durability;
use crate::types::{KeptFor, Timestamp};

/// Events of one queue since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct QueueMeter {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) redelivered: u64,
    pub(crate) acked: u64,
    pub(crate) deadlines_passed: u64,
    pub(crate) late_settles: u64,
    pub(crate) stale_receipts: u64,
    pub(crate) expired: u64,
    pub(crate) died: u64,
    settle_times: Option<Box<Histogram<u64>>>,
}

impl QueueMeter {
    /// A delivery was settled (ack, nack or reject) after `took`.
    pub(crate) fn settled(&mut self, took: Duration) {
        if self.settle_times.is_none() {
            // Two digits, growing with what is recorded: a few KiB for a queue that is used.
            self.settle_times = Histogram::new(2).ok().map(Box::new);
        }
        if let Some(times) = &mut self.settle_times {
            // It grows with what is recorded; without memory for that the sample is left out.
            let _ = times.record(u64::try_from(took.as_millis()).unwrap_or(u64::MAX).max(1));
        }
    }

    pub(crate) fn settle_times(&self) -> Option<Percentiles> {
        self.settle_times.as_deref().and_then(|times| Percentiles::of(times, Duration::from_millis))
    }
}

/// Percentiles of a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Percentiles {
    /// How many were measured.
    pub count: u64,
    /// Half took no longer than this.
    pub p50: Duration,
    /// 99 of 100 took no longer than this.
    pub p99: Duration,
    /// None took longer.
    pub max: Duration,
}

impl Percentiles {
    pub(crate) fn of(times: &Histogram<u64>, unit: impl Fn(u64) -> Duration) -> Option<Self> {
        let at = |quantile| unit(times.value_at_quantile(quantile));
        (!times.is_empty()).then(|| Self { count: times.len(), p50: at(0.5), p99: at(0.99), max: unit(times.max()) })
    }
}

/// Figures of one queue. Counts by state are exact at the time of the call and include what is on
/// disk only; event counts are since the store was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueueStats {
    /// The queue.
    pub name: crate::QueueName,
    /// Whether it is paused.
    pub paused: bool,
    /// Its options.
    pub options: crate::QueueOptions,
    /// Receivable now.
    pub ready: u64,
    /// Hidden until their delay or back-off is over.
    pub delayed: u64,
    /// Handed out, deadline not passed.
    pub in_flight: u64,
    /// Set aside.
    pub dead: u64,
    /// Time since the oldest receivable message was sent; `None` without one.
    pub oldest_ready: Option<Duration>,
    /// Time since the longest-held message in flight was handed out; `None` without one.
    pub oldest_in_flight: Option<Duration>,
    /// Receivers that wait for a message.
    pub waiting_receivers: u64,
    /// Messages sent.
    pub sent: u64,
    /// Hand-outs.
    pub received: u64,
    /// Hand-outs of messages that had been handed out before.
    pub redelivered: u64,
    /// Messages acknowledged.
    pub acked: u64,
    /// Deadlines that passed before the delivery was settled.
    pub deadlines_passed: u64,
    /// Settles that came after their deadline and still counted.
    pub late_settles: u64,
    /// Settles refused because the receipt was stale.
    pub stale_receipts: u64,
    /// Messages that expired.
    pub expired: u64,
    /// Messages that became dead.
    pub died: u64,
    /// Time from hand-out to settle.
    pub settle_times: Option<Percentiles>,
    /// What to change about the visibility timeout, if the figures prove it wrong.
    pub advice: Option<TimeoutAdvice>,
}

/// Figures of the store.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct StoreStats {
    /// The store's identity.
    pub id: crate::StoreId,
    /// When a write counts as done, and so what a power cut may lose.
    pub durability: Durability,
    /// The store's clock.
    pub now: Timestamp,
    /// Queues.
    pub queues: u64,
    /// Live messages.
    pub messages: u64,
    /// The last record written.
    pub last_lsn: crate::Lsn,
    /// Every record up to here is on disk.
    pub durable_lsn: crate::Lsn,
    /// Every record up to here is in the index.
    pub applied_lsn: crate::Lsn,
    /// Segments of the log, the active one included.
    pub segments: u64,
    /// Bytes of the log that hold frames.
    pub log_len: u64,
    /// Bytes of the log that live messages need.
    pub live_len: u64,
    /// Bytes of the log that nobody needs any more: settled messages, what was done with others.
    pub dead_len: u64,
    /// Bytes of the log's files on disk, with what is allocated ahead.
    pub log_len_on_disk: u64,
    /// What the oldest segment of the log is still there for.
    pub oldest_segment_kept_for: KeptFor,
    /// Bytes that are allocated and not written: what a full disk leaves for receiving and settling.
    pub reserve_len: u64,
    /// Bytes that the disk, or `max_store_bytes`, still gives.
    pub available_len: u64,
    /// Whether sends were last refused for lack of space.
    pub sends_refused: bool,
    /// Bytes written to the log since open.
    pub written_len: u64,
    /// Bytes of these that only carried live messages out of old segments.
    pub relocated_len: u64,
    /// Why the last try to give space back did not succeed, if it did not.
    pub reclaim_error: Option<String>,
    /// Bytes of the index on disk.
    pub index_len: u64,
    /// Which index on disk is used, or was used last: each new one has the next number.
    pub index_generation: u64,
    /// Whether the index on disk failed and one in memory stands in for it. A new one on disk is made
    /// as soon as that is possible.
    pub index_in_memory: bool,
    /// Messages that are held in memory.
    pub resident: u64,
    /// Frames written since open.
    pub frames: u64,
    /// Syncs of the log since open. One covers all frames that were written by then.
    pub syncs: u64,
    /// Records written since open.
    pub records: u64,
    /// Time of a sync (fdatasync) of the log since open.
    pub sync_times: Option<Percentiles>,
    /// Why the store refuses writes, if it does.
    pub poisoned: Option<String>,
}

impl StoreStats {
    /// Bytes of the log per live byte; `None` while nothing is live.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn amplification(&self) -> Option<f64> {
        (self.live_len > 0).then(|| self.log_len as f64 / self.live_len as f64)
    }

    /// Bytes written to the log per byte that callers wrote, since open; `None` before the first.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn write_amplification(&self) -> Option<f64> {
        let by_callers = self.written_len.saturating_sub(self.relocated_len);
        (by_callers > 0).then(|| self.written_len as f64 / by_callers as f64)
    }

    /// Records that share one sync, on average.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn records_per_frame(&self) -> Option<f64> {
        (self.frames > 0).then(|| self.records as f64 / self.frames as f64)
    }
}

/// A visibility timeout that the figures prove wrong, and what to set instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TimeoutAdvice {
    /// Whether it is too short (or far too long).
    pub too_short: bool,
    /// The queue's visibility timeout.
    pub visibility_timeout: Duration,
    /// 99 of 100 deliveries were settled within this time.
    pub p99: Duration,
    /// What to set.
    pub suggested: Duration,
}

impl std::fmt::Display for TimeoutAdvice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, why) = if self.too_short {
            ("too short", "deadlines pass while holders still work")
        } else {
            ("far too long", "after a crash messages stay hidden needlessly")
        };
        write!(
            f,
            "visibility timeout {:?} is {what} ({why}; p99 of settling is {:?}): set {:?}",
            self.visibility_timeout, self.p99, self.suggested
        )
    }
}

/// Deliveries that must have been settled before anything is advised.
const MIN_SETTLES: u64 = 100;

/// The advice, if the figures prove anything.
pub(crate) fn advise(timeout: Duration, times: Percentiles, late_settles: u64) -> Option<TimeoutAdvice> {
    if times.count < MIN_SETTLES {
        return None;
    }
    let round_up =
        |d: Duration| Duration::from_secs(d.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX).max(1));
    let too_short = times.p99 >= timeout * 4 / 5 && (late_settles > 0 || times.p99 >= timeout);
    let too_long = timeout > Duration::from_secs(60) && timeout >= times.max.saturating_mul(100) && late_settles == 0;
    let suggested = round_up(times.p99.saturating_mul(3));
    (too_short || too_long).then_some(TimeoutAdvice {
        too_short,
        visibility_timeout: timeout,
        p99: times.p99,
        suggested,
    })
}
