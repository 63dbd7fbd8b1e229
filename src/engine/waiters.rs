//! Receivers that wait for a message, in the order in which they came.
//!
//! # Invariants
//! 17: a waiter is answered with messages, with nothing when its time is up, or with an error when
//! the queue or the store goes. One whose caller has gone is passed over.
//!
//! # Not here
//! Handing messages out: `decide.rs`. There is no lost wake-up to guard against: whoever makes a
//! message receivable and whoever serves the waiters is the same thread.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::engine::wait::ReplyTo;
use crate::types::{QueueId, Timestamp};

/// One receiver that waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) reply: ReplyTo,
    pub(crate) max: usize,
    pub(crate) visibility: Duration,
    pub(crate) until: Timestamp,
}

/// All receivers that wait, by queue and arrival.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    queues: FxHashMap<QueueId, BTreeMap<u64, Waiter>>,
    deadlines: BTreeSet<(Timestamp, QueueId, u64)>,
    /// Their time is up, but whether there is a message for them is not known yet.
    overdue: BTreeSet<(QueueId, u64)>,
    next: u64,
    /// Waiters at which those whose callers have gone are swept out again.
    sweep_at: usize,
    count: usize,
}

/// Fewer waiters than this are not worth a sweep.
const MIN_SWEEP: usize = 64;

impl Waiters {
    pub(crate) fn push(&mut self, queue: QueueId, waiter: Waiter) {
        if self.count >= self.sweep_at.max(MIN_SWEEP) {
            self.sweep();
            self.sweep_at = self.count * 2;
        }
        let arrival = self.next;
        self.next += 1;
        self.count += 1;
        if waiter.until < Timestamp::MAX {
            self.deadlines.insert((waiter.until, queue, arrival));
        }
        self.queues.entry(queue).or_default().insert(arrival, waiter);
    }

    /// Lets those go whose callers have gone.
    fn sweep(&mut self) {
        let gone: Vec<(QueueId, u64)> = self
            .queues
            .iter()
            .flat_map(|(queue, waiters)| waiters.iter().map(move |(arrival, waiter)| (*queue, *arrival, waiter)))
            .filter(|(.., waiter)| waiter.reply.is_closed())
            .map(|(queue, arrival, _)| (queue, arrival))
            .collect();
        for (queue, arrival) in gone {
            self.remove(queue, arrival);
        }
    }

    /// The first waiter of a queue whose caller is still there.
    pub(crate) fn first(&mut self, queue: QueueId) -> Option<(u64, &Waiter)> {
        while let Some((arrival, waiter)) = self.queues.get(&queue)?.first_key_value() {
            if !waiter.reply.is_closed() {
                break;
            }
            let arrival = *arrival;
            self.remove(queue, arrival);
        }
        self.queues.get(&queue)?.first_key_value().map(|(arrival, waiter)| (*arrival, waiter))
    }

    pub(crate) fn remove(&mut self, queue: QueueId, arrival: u64) -> Option<Waiter> {
        let waiters = self.queues.get_mut(&queue)?;
        let waiter = waiters.remove(&arrival)?;
        if waiters.is_empty() {
            self.queues.remove(&queue);
        }
        self.deadlines.remove(&(waiter.until, queue, arrival));
        self.overdue.remove(&(queue, arrival));
        self.count -= 1;
        Some(waiter)
    }

    /// The next waiter whose time is up.
    pub(crate) fn pop_due(&mut self, now: Timestamp) -> Option<(QueueId, u64)> {
        let (at, queue, arrival) = self.deadlines.first().copied().filter(|(at, ..)| *at <= now)?;
        self.deadlines.remove(&(at, queue, arrival));
        Some((queue, arrival))
    }

    /// Its time is up, but it is answered only when the queue's head is known.
    pub(crate) fn set_overdue(&mut self, queue: QueueId, arrival: u64) {
        self.overdue.insert((queue, arrival));
    }

    /// Those of a queue whose time was up before its head was known.
    pub(crate) fn take_overdue(&mut self, queue: QueueId) -> Vec<Waiter> {
        let due: Vec<u64> = self.overdue.range((queue, 0)..=(queue, u64::MAX)).map(|(_, arrival)| *arrival).collect();
        due.into_iter().filter_map(|arrival| self.remove(queue, arrival)).collect()
    }

    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|(at, ..)| *at)
    }

    pub(crate) fn count_of(&self, queue: QueueId) -> usize {
        self.queues.get(&queue).map_or(0, |waiters| waiters.values().filter(|w| !w.reply.is_closed()).count())
    }

    /// Messages that the waiters of a queue would take.
    pub(crate) fn demand(&self, queue: QueueId) -> usize {
        self.queues.get(&queue).map_or(0, |waiters| waiters.values().map(|waiter| waiter.max).sum())
    }

    /// All waiters of a queue that is being deleted.
    pub(crate) fn take_queue(&mut self, queue: QueueId) -> Vec<Waiter> {
        let arrivals: Vec<u64> = self.queues.get(&queue).map(|w| w.keys().copied().collect()).unwrap_or_default();
        arrivals.into_iter().filter_map(|arrival| self.remove(queue, arrival)).collect()
    }

    /// All waiters of a store that is being closed.
    pub(crate) fn take_all(&mut self) -> Vec<Waiter> {
        let queues: Vec<QueueId> = self.queues.keys().copied().collect();
        queues.into_iter().flat_map(|queue| self.take_queue(queue)).collect()
    }
}
