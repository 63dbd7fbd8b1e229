//! Queues as a whole: creating, configuring, pausing, purging, deleting them, and their figures.
//!
//! # Invariants
//! 18: figures are read off the tables' counters.

use std::time::Duration;

use crate::engine::commit::Committer;
use crate::engine::stats::advise;
use crate::engine::wait::Reply;
use crate::error::{Error, ErrorKind, Result};
use crate::options::QueueOptions;
use crate::record::{Record, StateSet};
use crate::types::{QueueId, QueueName, State};

impl Committer {
    pub(crate) fn create(&mut self, name: QueueName, options: Option<QueueOptions>) -> Result<Reply> {
        if self.tables.names.contains_key(&name) {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("queue {:?} is there already", name.as_str())));
        }
        let options = options.unwrap_or_else(|| self.shared.options.queue_defaults.clone());
        self.create_queue(&name, options).map(|_| Reply::Done)
    }

    pub(crate) fn create_queue(&mut self, name: &QueueName, options: QueueOptions) -> Result<QueueId> {
        self.check_options(name, &options)?;
        let lsn = self.write(&Record::QueueCreated { name: name.as_str().to_owned(), options }, &[]);
        Ok(QueueId(lsn.0))
    }

    /// The options by themselves, and that the dead-letter queues form no loop.
    fn check_options(&self, name: &QueueName, options: &QueueOptions) -> Result<()> {
        options.validate()?;
        let mut target = options.dead_letter.clone();
        let mut passed = vec![name.as_str().to_owned()];
        while let Some(next) = target {
            if passed.contains(&next) {
                passed.push(next);
                return Err(Error::invalid(format!("dead-letter queues form a loop: {}", passed.join(" -> "))));
            }
            let Some(queue) =
                self.tables.queue_named(&QueueName::new(&next)?).and_then(|id| self.tables.queues.get(&id))
            else {
                return Err(Error::not_found(format!(
                    "the dead-letter queue {next:?} does not exist; create it first"
                )));
            };
            target = queue.options.dead_letter.clone();
            passed.push(next);
            // A target that vanished later ends the chain: the message parks there.
            target = target.filter(|t| QueueName::new(t).is_ok_and(|t| self.tables.names.contains_key(&t)));
        }
        Ok(())
    }

    pub(crate) fn configure(&mut self, name: &QueueName, options: QueueOptions) -> Result<Reply> {
        let id = self.queue_id(name)?;
        self.check_options(name, &options)?;
        let paused = self.tables.queues.get(&id).is_some_and(|queue| queue.paused);
        self.write(&Record::QueueConfigured { queue: id, name: name.as_str().to_owned(), options, paused }, &[]);
        self.tables.wake(id);
        Ok(Reply::Done)
    }

    pub(crate) fn pause(&mut self, name: &QueueName, paused: bool) -> Result<Reply> {
        let id = self.queue_id(name)?;
        if self.tables.queues.get(&id).is_some_and(|queue| queue.paused != paused) {
            self.write(&Record::QueuePaused { queue: id, paused }, &[]);
        }
        Ok(Reply::Done)
    }

    pub(crate) fn delete(&mut self, name: &QueueName, force: bool) -> Result<Reply> {
        let id = self.queue_id(name)?;
        let count = self.tables.queues.get(&id).map_or(0, |queue| queue.counts.total());
        if count > 0 && !force {
            return Err(Error::invalid(format!(
                "queue {:?} holds {count} messages; delete it with force",
                name.as_str()
            )));
        }
        let user = self.tables.queues.values().find(|q| q.options.dead_letter.as_deref() == Some(name.as_str()));
        if let Some(user) = user.filter(|_| !force) {
            return Err(Error::invalid(format!(
                "queue {:?} is the dead-letter queue of {:?}; configure that one first, or delete with force",
                name.as_str(),
                user.name.as_str()
            )));
        }
        self.write(&Record::QueueDeleted { queue: id }, &[]);
        for waiter in self.waiters.take_queue(id) {
            let gone = Error::not_found(format!("queue {:?} was deleted", name.as_str()));
            self.group.reply(waiter.reply, Err(gone), None);
        }
        Ok(Reply::Count(count))
    }

    pub(crate) fn purge(&mut self, name: &QueueName, states: &[State]) -> Result<Reply> {
        let id = self.queue_id(name)?;
        let Some(queue) = self.tables.queues.get(&id) else { return Ok(Reply::Count(0)) };
        let set = StateSet::of(states);
        let count =
            State::ALL.into_iter().filter(|state| set.contains(*state)).map(|state| queue.counts.get(state)).sum();
        if count > 0 {
            self.write(&Record::Purged { queue: id, states: set }, &[]);
        }
        Ok(Reply::Count(count))
    }

    pub(crate) fn queue_stats(&self, id: QueueId) -> Option<crate::QueueStats> {
        let queue = self.tables.queues.get(&id)?;
        let now = self.group.now;
        let meter = &queue.meter;
        let settle_times = meter.settle_times();
        let advice = settle_times.and_then(|times| advise(queue.options.visibility(), times, meter.late_settles));
        Some(crate::QueueStats {
            name: queue.name.clone(),
            paused: queue.paused,
            options: queue.options.clone(),
            ready: queue.counts.get(State::Ready),
            delayed: queue.counts.get(State::Delayed),
            in_flight: queue.counts.get(State::InFlight),
            dead: queue.counts.get(State::Dead),
            oldest_ready: queue.oldest_ready().map(|entry| now.since(entry.sent_at)),
            oldest_in_flight: queue.oldest_in_flight().map(|at| now.since(at)),
            waiting_receivers: self.waiters.count_of(id) as u64,
            sent: meter.sent,
            received: meter.received,
            redelivered: meter.redelivered,
            acked: meter.acked,
            deadlines_passed: meter.deadlines_passed,
            late_settles: meter.late_settles,
            stale_receipts: meter.stale_receipts,
            expired: meter.expired,
            died: meter.died,
            settle_times,
            advice,
        })
    }

    pub(crate) fn store_stats(&self) -> crate::StoreStats {
        let micros = Duration::from_micros;
        let space = &self.shared.space;
        crate::StoreStats {
            id: self.shared.store,
            durability: self.shared.durability(),
            now: self.group.now,
            queues: self.tables.queues.len() as u64,
            messages: self.tables.queues.values().map(|queue| queue.counts.total()).sum(),
            last_lsn: self.log.written_lsn(),
            durable_lsn: self.log.durable_lsn(),
            applied_lsn: self.tables.applied(),
            segments: self.shared.segments.list().len() as u64,
            log_len: self.log.log_len(),
            live_len: 0,
            dead_len: 0,
            log_len_on_disk: space.log_len(),
            oldest_segment_kept_for: crate::KeptFor::InUse,
            reserve_len: space.ready(self.log.room_left()),
            available_len: space.available(),
            sends_refused: self.crowded_by.is_some(),
            written_len: self.log.written_len(),
            relocated_len: self.meter.carried_len,
            reclaim_error: None,
            index_len: 0,
            index_generation: 0,
            index_in_memory: false,
            resident: self.tables.queues.values().map(|queue| queue.resident).sum(),
            frames: self.meter.frames,
            syncs: self.meter.syncs,
            records: self.meter.records,
            sync_times: self.meter.sync_times.as_ref().and_then(|times| crate::Percentiles::of(times, micros)),
            poisoned: self.poison.as_ref().map(ToString::to_string),
        }
    }
}
