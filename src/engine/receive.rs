//! Handing messages out to receivers, in the order of the queue and of the receivers' arrival.
//!
//! # Invariants
//! 4, 5, 6. A hand-out is in the frame before anybody sees it. What nobody saw is given back before
//! any later request is decided.

use std::time::Duration;

use crate::engine::commit::Committer;
use crate::engine::queues::Head;
use crate::engine::wait::{Grant, Reply};
use crate::error::{Error, Result};
use crate::lifecycle::{self, Settle};
use crate::record;
use crate::types::limits::MAX_RECEIVE_COUNT;
use crate::types::{MessageId, QueueId, QueueName, Receipt};

impl Committer {
    pub(crate) fn check_receive(
        &mut self,
        name: &QueueName,
        max: usize,
        visibility: Option<Duration>,
    ) -> Result<(QueueId, Duration)> {
        if !(1..=MAX_RECEIVE_COUNT).contains(&max) {
            return Err(Error::invalid(format!("max is {max}; give 1 to {MAX_RECEIVE_COUNT}")));
        }
        if let Ok(id) = self.queue_id(name)
            && let Some(queue) = self.tables.queues.get(&id)
        {
            let visibility = visibility.unwrap_or_else(|| queue.options.visibility());
            lifecycle::check_visibility(visibility, &queue.options)?;
            return Ok((id, visibility));
        }
        let defaults = &self.shared.options.queue_defaults;
        let visibility = visibility.unwrap_or_else(|| defaults.visibility());
        lifecycle::check_visibility(visibility, defaults)?;
        self.ensure_queue(name).map(|id| (id, visibility))
    }

    /// Serves the receivers that wait in queues where something changed.
    pub(crate) fn dispatch(&mut self) {
        for queue in self.tables.take_woken() {
            self.serve(queue);
        }
    }

    fn serve(&mut self, id: QueueId) {
        while let Some((arrival, waiter)) = self.waiters.first(id) {
            let (max, visibility) = (waiter.max, waiter.visibility);
            let grants = self.hand_out(id, max, visibility);
            if grants.is_empty() {
                break;
            }
            if let Some(waiter) = self.waiters.remove(id, arrival) {
                self.group.reply(waiter.reply, Ok(Reply::Grants(grants)), None);
            }
        }
        if !self.head_is_unknown(id) {
            for waiter in self.waiters.take_overdue(id) {
                self.group.reply(waiter.reply, Ok(Reply::Grants(Vec::new())), None);
            }
        }
    }

    /// Hands out up to `max` messages of a queue, in order.
    fn hand_out(&mut self, id: QueueId, max: usize, visibility: Duration) -> Vec<Grant> {
        let mut grants = Vec::new();
        while grants.len() < max {
            let Some(queue) = self.tables.queues.get(&id) else { break };
            if queue.paused || queue.room_in_flight() == 0 {
                break;
            }
            let head = queue.head();
            match head {
                Head::Ready(_) if !self.group.has_room(record::FIXED_BOUND) => {
                    // The rest goes into the next frame.
                    self.again(id);
                    break;
                }
                Head::Ready(message) => grants.extend(self.grant(id, message, visibility)),
                Head::Cold { priority } => {
                    self.tables.hungry.insert((id, priority));
                    break;
                }
                Head::Empty => break,
            }
        }
        grants
    }

    fn grant(&mut self, queue: QueueId, id: MessageId, visibility: Duration) -> Option<Grant> {
        let entry = *self.tables.entry(queue, id)?;
        self.write(&lifecycle::receive(&entry, visibility, self.group.now), &[]);
        self.require_sync();
        let entry = *self.tables.entry(queue, id)?;
        if let Some(queue) = self.tables.queues.get_mut(&queue) {
            queue.meter.received += 1;
            queue.meter.redelivered += u64::from(entry.receive_count > 1);
        }
        let receipt = Receipt { store: self.shared.store, queue, id, epoch: entry.epoch };
        Some(Grant::new(receipt, entry, &self.shared))
    }

    /// Whether the index must still say what is first in the queue.
    fn head_is_unknown(&self, id: QueueId) -> bool {
        self.tables.queues.get(&id).is_some_and(|queue| {
            !queue.paused && queue.room_in_flight() > 0 && matches!(queue.head(), Head::Cold { .. })
        })
    }

    /// Answers receivers whose time is up with nothing.
    pub(crate) fn expire_waiters(&mut self) {
        while let Some((queue, arrival)) = self.waiters.pop_due(self.group.now) {
            if self.head_is_unknown(queue) || (self.is_woken_again(queue) && self.group.refusal.is_none()) {
                self.waiters.set_overdue(queue, arrival);
            } else if let Some(waiter) = self.waiters.remove(queue, arrival) {
                self.group.reply(waiter.reply, Ok(Reply::Grants(Vec::new())), None);
            }
        }
    }

    /// Hand-outs whose callers went away before they saw them are receivable again, attempt refunded.
    pub(crate) fn give_back(&mut self) {
        while let Some(receipt) = self.given_back.last().copied() {
            if !self.group.has_own_room(record::FIXED_BOUND) {
                return;
            }
            self.given_back.pop();
            let _ = self.settle_one(None, &receipt, Settle::Release);
            self.require_sync();
        }
    }
}
