//! What each request does: checks, rules, records, and the answer.
//!
//! # Invariants
//! 9: a refused verb writes nothing. 10: a request is decided whole; everything that can refuse a
//! batch is looked at before its first record is written.
//!
//! # Not here
//! The rules themselves (`lifecycle.rs`); when the frame is written (`commit.rs`).

use std::time::Duration;

use crate::engine::applier::Ask;
use crate::engine::commit::Committer;
use crate::engine::state::Head;
use crate::engine::stats::advise;
use crate::engine::wait::{BatchItem, Command, Grant, Reply, Request};
use crate::engine::waiters::Waiter;
use crate::error::{Error, ErrorKind, Result};
use crate::lifecycle::{self, Outcome, Settle, Timeout};
use crate::message::{DeadReason, NewMessage};
use crate::options::QueueOptions;
use crate::record::{self, Detail, Died, Record, Sent, StateSet};
use crate::types::limits::{MAX_PAYLOAD_LEN, MAX_RECEIVE_COUNT};
use crate::types::{Entry, Lsn, MessageId, QueueId, QueueName, Receipt, State, Timestamp};

/// A request that waits for the index.
pub(crate) struct Parked {
    request: Request,
    wanted: Vec<(QueueId, MessageId)>,
}

/// Where a receipt's message is.
enum Found {
    At(QueueId),
    Gone,
    /// The index must be asked.
    Unknown,
}

impl Committer {
    /// Most bytes that this request can write.
    pub(crate) fn bound(&self, command: &Command) -> usize {
        let queue_bound = |name: &QueueName| {
            let missing = !self.tables.names.contains_key(name);
            if missing { 2 * record::FIXED_BOUND + 2 * 255 } else { 0 }
        };
        let send = |message: &NewMessage| {
            message.weight() + message.attributes.len() * record::ATTRIBUTE_BOUND + 2 * record::FIXED_BOUND
        };
        let settle = |receipt: &Receipt, settle: &Settle| {
            let mut bound = 2 * record::FIXED_BOUND + settle.text_len();
            if !matches!(settle, Settle::Ack | Settle::Release)
                && let Some(queue) = self.tables.queues.get(&receipt.queue)
            {
                // It may die of it, and then takes its last error along.
                bound +=
                    queue.name.as_str().len() + queue.entry(receipt.id).map_or(0, |entry| entry.detail.len as usize);
            }
            bound
        };
        match command {
            Command::Create { .. } | Command::Configure { .. } => 2 * record::FIXED_BOUND + 2 * 255,
            Command::Pause { .. } | Command::Delete { .. } | Command::Purge { .. } => record::FIXED_BOUND,
            Command::Send { queue, messages } => queue_bound(queue) + messages.iter().map(send).sum::<usize>(),
            Command::Receive { queue, max, .. } => {
                queue_bound(queue) + (*max).min(MAX_RECEIVE_COUNT) * record::FIXED_BOUND
            }
            Command::Settle { items, .. } => items.iter().map(|(receipt, s)| settle(receipt, s)).sum(),
            Command::Batch(items) => items
                .iter()
                .map(|item| match item {
                    BatchItem::Settle(receipt, s) => settle(receipt, s),
                    BatchItem::Send(queue, message) => queue_bound(queue) + send(message),
                })
                .sum(),
            // Each slice makes its own room.
            Command::Redrive { .. } => 0,
            Command::Peek { .. } | Command::QueueStats(_) | Command::Queues | Command::StoreStats | Command::Sync => 0,
        }
    }

    /// Decides one request, or parks it.
    pub(crate) fn decide(&mut self, request: Request) {
        let bound = self.bound(&request.command);
        let refusal = if bound > MAX_PAYLOAD_LEN {
            Some(Error::invalid(format!(
                "the call would write {bound} bytes at once; at most {MAX_PAYLOAD_LEN} are allowed"
            )))
        } else if Self::command_writes(&request.command) {
            self.group.refusal.clone()
        } else {
            None
        };
        if let Some(error) = refusal {
            return self.group.reply(request.reply, Err(error), request.room);
        }
        let missing = self.missing(&request.command);
        if !missing.is_empty() {
            return self.park(request, missing);
        }
        let Request { command, reply, lazy, room, .. } = request;
        let before = self.group.frame.len();
        let result = match command {
            Command::Receive { queue, max, wait, visibility } => {
                let until = self.group.now.after(wait);
                match self.check_receive(&queue, max, visibility) {
                    Ok((queue, visibility)) => {
                        self.tables.wake(queue);
                        return self.waiters.push(queue, Waiter { reply, max, visibility, until });
                    }
                    Err(error) => Err(error),
                }
            }
            Command::Peek { queue, state, max } => match self.queue_id(&queue) {
                Ok(queue) => {
                    let now = self.group.now;
                    return self.group.ask(Ask::Peek { queue, state, max, now, reply });
                }
                Err(error) => Err(error),
            },
            Command::StoreStats => {
                let stats = Box::new(self.store_stats());
                return self.group.ask(Ask::Stats { stats, reply });
            }
            Command::Sync => return self.group.sync_for(reply),
            Command::Redrive { queue, filter, max } => match self.queue_id(&queue) {
                Ok(queue) => return self.start_redrive(queue, filter, max, reply),
                Err(error) => Err(error),
            },
            Command::Send { queue, messages } => self.send(&queue, messages),
            Command::Settle { queue, items } => Ok(Reply::Each(self.settle_each(queue.as_ref(), items))),
            Command::Batch(items) => self.batch(items),
            Command::Create { queue, options } => self.create(queue, options),
            Command::Configure { queue, options } => self.configure(&queue, options),
            Command::Pause { queue, paused } => self.pause(&queue, paused),
            Command::Delete { queue, force } => self.delete(&queue, force),
            Command::Purge { queue, states } => self.purge(&queue, &states),
            Command::QueueStats(queue) => {
                self.queue_id(&queue).map(|id| Reply::Queues(self.queue_stats(id).into_iter().collect()))
            }
            Command::Queues => {
                let ids: Vec<QueueId> = self.tables.names.values().copied().collect();
                Ok(Reply::Queues(ids.into_iter().filter_map(|id| self.queue_stats(id)).collect()))
            }
        };
        if self.group.frame.len() > before && !lazy {
            self.require_sync();
        }
        self.group.reply(reply, result, room);
    }

    // ---- cold entries ---------------------------------------------------------------------------

    /// Messages that must be brought into memory before this command can be decided.
    fn missing(&self, command: &Command) -> Vec<(QueueId, MessageId)> {
        let receipts: Vec<&Receipt> = match command {
            Command::Settle { items, .. } => items.iter().map(|(receipt, _)| receipt).collect(),
            Command::Batch(items) => items
                .iter()
                .filter_map(|item| match item {
                    BatchItem::Settle(receipt, _) => Some(receipt),
                    BatchItem::Send(..) => None,
                })
                .collect(),
            _ => return Vec::new(),
        };
        if !receipts.iter().any(|receipt| matches!(self.locate(receipt), Found::Unknown)) {
            return Vec::new();
        }
        // All of them, in both places, so that the answer is of one moment: what is resident now may
        // not be any more when it comes.
        let places = |receipt: &Receipt| {
            let id = receipt.id;
            self.places(receipt.queue).map(move |queue| (queue, id))
        };
        receipts.into_iter().flat_map(places).collect()
    }

    /// Where a message of this queue may be: in it, or where it may have been moved as dead.
    fn places(&self, queue: QueueId) -> impl Iterator<Item = QueueId> + use<> {
        [Some(queue), self.dead_letter_of(queue)].into_iter().flatten()
    }

    fn locate(&self, receipt: &Receipt) -> Found {
        for id in self.places(receipt.queue) {
            let Some(queue) = self.tables.queues.get(&id) else { continue };
            if queue.entry(receipt.id).is_some() {
                return Found::At(id);
            }
            if !queue.knows(receipt.id) && !self.absent.contains(&(id, receipt.id)) {
                return Found::Unknown;
            }
        }
        Found::Gone
    }

    pub(crate) fn dead_letter_of(&self, id: QueueId) -> Option<QueueId> {
        let name = self.tables.queues.get(&id)?.options.dead_letter.as_deref()?;
        self.tables.queue_named(&QueueName::new(name).ok()?)
    }

    fn park(&mut self, request: Request, wanted: Vec<(QueueId, MessageId)>) {
        let token = self.token();
        self.group.ask(Ask::Get { token, wanted: wanted.clone() });
        self.parked.insert(token, Parked { request, wanted });
    }

    pub(crate) fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// The index answered: the request goes back in line, with the entries resident for this turn.
    pub(crate) fn fetched(&mut self, token: u64, as_of: Lsn, entries: Vec<Entry>) -> Option<Request> {
        let Parked { request, wanted } = self.parked.remove(&token)?;
        for entry in entries {
            self.admit(entry, as_of);
        }
        let current = |queue: &QueueId| self.tables.queues.get(queue).is_none_or(|queue| as_of >= queue.barrier);
        let known: Vec<_> = wanted.into_iter().filter(|(queue, _)| current(queue)).collect();
        self.absent.extend(known.iter().copied());
        self.borrowed.extend(known);
        Some(request)
    }

    // ---- sending --------------------------------------------------------------------------------

    fn send(&mut self, queue: &QueueName, messages: Vec<NewMessage>) -> Result<Reply> {
        for message in &messages {
            message.validate(self.shared.options.max_body_len)?;
        }
        if messages.is_empty() {
            return Ok(Reply::Ids(Vec::new()));
        }
        let queue = self.ensure_queue(queue)?;
        Ok(Reply::Ids(messages.into_iter().map(|message| self.send_one(queue, message)).collect()))
    }

    fn send_one(&mut self, queue: QueueId, message: NewMessage) -> MessageId {
        let now = self.group.now;
        let sent = Sent {
            queue,
            priority: message.priority,
            sent_at: now,
            visible_at: now.after(message.delay),
            expires_at: message.ttl.map_or(Timestamp::MAX, |ttl| now.after(ttl)),
            attributes: message.attributes,
        };
        let lsn = self.write(&Record::Sent(Box::new(sent)), &message.body);
        if let Some(queue) = self.tables.queues.get_mut(&queue) {
            queue.meter.sent += 1;
        }
        lsn.into()
    }

    pub(crate) fn queue_id(&self, name: &QueueName) -> Result<QueueId> {
        self.tables.queue_named(name).ok_or_else(|| Error::not_found(format!("there is no queue {:?}", name.as_str())))
    }

    /// The queue of that name, created with the store's defaults if that is allowed.
    fn ensure_queue(&mut self, name: &QueueName) -> Result<QueueId> {
        match self.queue_id(name) {
            Err(_) if self.shared.options.create_queues => {
                let mut options = self.shared.options.queue_defaults.clone();
                // The dead-letter queue itself is created from the same defaults.
                options.dead_letter = options.dead_letter.filter(|target| target != name.as_str());
                self.create_queue(name, options)
            }
            found => found,
        }
    }

    // ---- receiving ------------------------------------------------------------------------------

    fn check_receive(
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
            if !self.group.has_room(record::FIXED_BOUND) {
                return;
            }
            self.given_back.pop();
            let _ = self.settle_one(None, &receipt, Settle::Release);
            self.require_sync();
        }
    }

    // ---- settling -------------------------------------------------------------------------------

    fn settle_each(&mut self, queue: Option<&QueueName>, items: Vec<(Receipt, Settle)>) -> Vec<Result<()>> {
        items.into_iter().map(|(receipt, settle)| self.settle_one(queue, &receipt, settle)).collect()
    }

    /// Checks a receipt against the message as it is. `only` is the queue through which it came.
    fn check(&mut self, only: Option<&QueueName>, receipt: &Receipt, settle: &Settle) -> Result<Entry> {
        settle.validate()?;
        if receipt.store != self.shared.store {
            return Err(Error::invalid(format!(
                "the receipt is of store {}, this is {}",
                receipt.store, self.shared.store
            )));
        }
        if let Some(name) = only
            && self.tables.queue_named(name) != Some(receipt.queue)
        {
            return Err(Error::invalid(format!("the receipt is of another queue than {:?}", name.as_str())));
        }
        let entry = match self.locate(receipt) {
            Found::At(queue) => self.tables.entry(queue, receipt.id).copied(),
            Found::Gone | Found::Unknown => None,
        };
        let now = self.group.now;
        let Some(queue) = self.tables.queues.get_mut(&receipt.queue) else {
            return Err(Error::not_found(format!("the queue of message {} is gone", receipt.id)));
        };
        let checked = lifecycle::check_receipt(entry.as_ref(), receipt, queue.options.strict_deadline, now);
        if checked.as_ref().is_err_and(|error| error.kind() == ErrorKind::StaleReceipt) {
            queue.meter.stale_receipts += 1;
        }
        checked?;
        entry.ok_or_else(|| Error::not_found(format!("message {} is gone", receipt.id)))
    }

    fn settle_one(&mut self, only: Option<&QueueName>, receipt: &Receipt, settle: Settle) -> Result<()> {
        let entry = self.check(only, receipt, &settle)?;
        let outcome = self.outcome(&entry, settle)?;
        self.carry_out(&entry, outcome);
        Ok(())
    }

    fn outcome(&mut self, entry: &Entry, settle: Settle) -> Result<Outcome> {
        let dice = self.dice();
        let now = self.group.now;
        let queue = self.tables.queues.get(&entry.queue).ok_or_else(|| Error::not_found("the queue is gone"))?;
        lifecycle::settle(entry, &queue.options, settle, now, dice)
    }

    fn carry_out(&mut self, entry: &Entry, outcome: Outcome) {
        let now = self.group.now;
        if let Some(queue) = self.tables.queues.get_mut(&entry.queue) {
            let over = !matches!(outcome, Outcome::Write(Record::Extended { .. } | Record::Released { .. }));
            if over {
                queue.meter.settled(now.since(entry.received_at));
                queue.meter.late_settles += u64::from(entry.visible_at <= now);
            }
            queue.meter.acked += u64::from(matches!(outcome, Outcome::Write(Record::Acked { .. })));
        }
        match outcome {
            Outcome::Write(mut record) => {
                if let Record::Nacked { detail: Some(detail), .. } = &mut record
                    && entry.origin.is_some()
                {
                    // How it died before it was moved here stays with it.
                    detail.dead = self.shared.read_detail(entry).ok().and_then(|detail| detail.dead);
                }
                self.write(&record, &[]);
            }
            Outcome::Die { reason, error } => self.die(entry, reason, error),
        }
    }

    /// Sets a message aside: in its own queue, or by a move to the dead-letter queue.
    fn die(&mut self, entry: &Entry, reason: DeadReason, error: Option<String>) {
        let last_error = || self.shared.read_detail(entry).ok().and_then(|detail| detail.error);
        let error = error.or_else(last_error);
        let now = self.group.now;
        let Some(queue) = self.tables.queues.get_mut(&entry.queue) else { return };
        queue.meter.died += 1;
        let dead = Some(Died::new(reason, now, queue.name.as_str(), entry.attempts));
        let detail = Detail { error, dead };
        let key = lifecycle::key(entry);
        // What cannot be read would not be readable there either.
        let target = self.dead_letter_of(entry.queue).filter(|_| reason != DeadReason::Unreadable);
        let record = match target {
            Some(to) => Record::Moved { key, to, visible_at: now, detail },
            None => Record::Dead { key, detail },
        };
        self.write(&record, &[]);
    }

    /// Handles what has come due: deadlines, delays, expiries.
    pub(crate) fn fire_timers(&mut self) {
        let now = self.group.now;
        while let Some((queue_id, id)) = self.tables.due(now) {
            let Some(queue) = self.tables.queues.get_mut(&queue_id) else { return };
            let Some((entry, counted)) = queue.resident_entry(id) else { return };
            let timeout = lifecycle::timeout(&entry, &queue.options, now);
            let len = 2 * record::FIXED_BOUND + queue.name.as_str().len() + entry.detail.len as usize;
            if timeout != Timeout::Ready && !self.group.has_room(len) {
                // Before anything else is decided, these come first in the next turn.
                return self.again(queue_id);
            }
            if counted == State::InFlight {
                queue.meter.deadlines_passed += 1;
            }
            match timeout {
                Timeout::Ready => self.tables.lapse(&entry, now),
                Timeout::Die(reason) => {
                    self.die(&entry, reason, None);
                    self.require_sync();
                }
                Timeout::Expire => {
                    queue.meter.expired += 1;
                    self.write(&Record::Expired { key: lifecycle::key(&entry) }, &[]);
                    self.require_sync();
                }
            }
        }
    }

    /// For a store that is opened with [`OnOpen::Release`](crate::OnOpen): every delivery that is
    /// still out is over; attempts stay counted. Returns how many that were.
    pub(crate) fn release_all(&mut self) -> u64 {
        let mut released = 0;
        loop {
            let held = self.tables.in_flight(1024);
            if held.is_empty() {
                return released;
            }
            self.begin_alone(held.len() * record::FIXED_BOUND);
            if self.group.refusal.is_some() {
                return released;
            }
            for entry in held {
                released += 1;
                let (key, epoch, attempts) = (lifecycle::key(&entry), entry.epoch, entry.attempts);
                self.write(&Record::Released { key, epoch, attempts, visible_at: self.group.now }, &[]);
            }
            self.end_alone();
        }
    }

    // ---- batches --------------------------------------------------------------------------------

    fn batch(&mut self, items: Vec<BatchItem>) -> Result<Reply> {
        let numbered = |index: usize, error: &Error| error.in_item(index + 1);
        let mut outcomes = Vec::with_capacity(items.len());
        let mut settled = std::collections::BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            outcomes.push(match item {
                BatchItem::Send(queue, message) => {
                    message.validate(self.shared.options.max_body_len).map_err(|e| numbered(index, &e))?;
                    if !self.shared.options.create_queues {
                        self.queue_id(queue).map_err(|e| numbered(index, &e))?;
                    }
                    None
                }
                BatchItem::Settle(receipt, settle) => {
                    if !settled.insert(receipt.id) {
                        let twice = Error::invalid(format!("message {} is settled twice", receipt.id));
                        return Err(numbered(index, &twice));
                    }
                    let entry = self.check(None, receipt, settle).map_err(|e| numbered(index, &e))?;
                    let outcome = self.outcome(&entry, settle.clone()).map_err(|e| numbered(index, &e))?;
                    Some((entry, outcome))
                }
            });
        }
        // Nothing below can be refused any more.
        let mut ids = Vec::new();
        for (item, outcome) in items.into_iter().zip(outcomes) {
            match (item, outcome) {
                (BatchItem::Send(queue, message), _) => {
                    let queue = self.ensure_queue(&queue)?;
                    ids.push(self.send_one(queue, message));
                }
                (BatchItem::Settle(..), Some((entry, outcome))) => self.carry_out(&entry, outcome),
                (BatchItem::Settle(..), None) => {}
            }
        }
        Ok(Reply::Ids(ids))
    }

    // ---- queues ---------------------------------------------------------------------------------

    fn create(&mut self, name: QueueName, options: Option<QueueOptions>) -> Result<Reply> {
        if self.tables.names.contains_key(&name) {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("queue {:?} is there already", name.as_str())));
        }
        let options = options.unwrap_or_else(|| self.shared.options.queue_defaults.clone());
        self.create_queue(&name, options).map(|_| Reply::Done)
    }

    fn create_queue(&mut self, name: &QueueName, options: QueueOptions) -> Result<QueueId> {
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

    fn configure(&mut self, name: &QueueName, options: QueueOptions) -> Result<Reply> {
        let id = self.queue_id(name)?;
        self.check_options(name, &options)?;
        let paused = self.tables.queues.get(&id).is_some_and(|queue| queue.paused);
        self.write(&Record::QueueConfigured { queue: id, name: name.as_str().to_owned(), options, paused }, &[]);
        self.tables.wake(id);
        Ok(Reply::Done)
    }

    fn pause(&mut self, name: &QueueName, paused: bool) -> Result<Reply> {
        let id = self.queue_id(name)?;
        if self.tables.queues.get(&id).is_some_and(|queue| queue.paused != paused) {
            self.write(&Record::QueuePaused { queue: id, paused }, &[]);
        }
        Ok(Reply::Done)
    }

    fn delete(&mut self, name: &QueueName, force: bool) -> Result<Reply> {
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

    fn purge(&mut self, name: &QueueName, states: &[State]) -> Result<Reply> {
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

    // ---- figures --------------------------------------------------------------------------------

    fn queue_stats(&self, id: QueueId) -> Option<crate::QueueStats> {
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

    fn store_stats(&self) -> crate::StoreStats {
        let micros = Duration::from_micros;
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
            index_len: 0,
            index_in_memory: false,
            resident: self.tables.queues.values().map(|queue| queue.resident).sum(),
            frames: self.meter.frames,
            records: self.meter.records,
            sync_times: self.meter.sync_times.as_ref().and_then(|times| crate::Percentiles::of(times, micros)),
            poisoned: self.poison.as_ref().map(ToString::to_string),
        }
    }
}
