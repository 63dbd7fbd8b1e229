//! What each request does: checks, rules, records, and the answer.
//!
//! # Invariants
//! 9: a refused verb writes nothing. 10: a request is decided whole; everything that can refuse a
//! batch is looked at before its first record is written.
//!
//! # Not here
//! The rules themselves (`lifecycle.rs`); when the frame is written (`commit.rs`).

use crate::engine::applier::Ask;
use crate::engine::commit::Committer;
use crate::engine::wait::{BatchItem, Command, Reply, Request, Seen};
use crate::engine::waiters::Waiter;
use crate::error::{Error, ErrorKind, Result};
use crate::lifecycle::{self, Outcome, Settle, Timeout, attempts_used_up};
use crate::message::{DeadReason, NewMessage};
use crate::record::{self, Detail, Died, Record, Sent};
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
            Command::Peek { .. }
            | Command::Find(_)
            | Command::QueueStats(_)
            | Command::Queues
            | Command::StoreStats
            | Command::RebuildIndex
            | Command::Sync => 0,
        }
    }

    /// Decides one request, or parks it.
    pub(crate) fn decide(&mut self, request: Request) {
        if let Some(error) = self.refusal(&request.command) {
            return self.group.reply(request.reply, Err(error), request.room);
        }
        if matches!(request.command, Command::Purge { .. }) && self.tables.due(self.group.now).is_some() {
            // What has come due and found no room in this frame must not be purged as what it was before: by its
            // time it is something else, and that is what the index and a replay go by.
            return self.leftover.push_front(request);
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
            Command::RebuildIndex => return self.group.ask(Ask::Rebuild { reply }),
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
            Command::Find(receipts) => Ok(self.find(&receipts)),
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

    /// Why the command is refused whatever it is about.
    fn refusal(&self, command: &Command) -> Option<Error> {
        let bound = self.bound(command);
        if bound > MAX_PAYLOAD_LEN {
            let most = MAX_PAYLOAD_LEN;
            return Some(Error::invalid(format!(
                "the call would write {bound} bytes at once; at most {most} are allowed"
            )));
        }
        let for_sends = self.group.send_refusal.as_ref().filter(|_| command.adds());
        self.group.refusal.as_ref().or(for_sends).filter(|_| Self::command_writes(command)).cloned()
    }

    fn find(&self, receipts: &[Receipt]) -> Reply {
        let find = |receipt: &Receipt| {
            let entry = self.tables.entry(receipt.queue, receipt.id).filter(|entry| entry.epoch == receipt.epoch)?;
            Some(Seen { entry: *entry, state: entry.state(self.group.now) })
        };
        Reply::Seen(receipts.iter().filter_map(find).collect())
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
        // What changed since the answer is still known here, but may be forgotten before the request is decided.
        let is_new = |(queue, id): &(QueueId, MessageId)| {
            self.tables.queues.get(queue).is_some_and(|queue| queue.slots.contains_key(id))
        };
        self.absent.extend(known.iter().filter(|place| !is_new(place)).copied());
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
        self.sent_here.1 += 1;
        if let Some(queue) = self.tables.queues.get_mut(&queue) {
            queue.meter.sent += 1;
        }
        lsn.into()
    }

    pub(crate) fn queue_id(&self, name: &QueueName) -> Result<QueueId> {
        self.tables.queue_named(name).ok_or_else(|| Error::not_found(format!("there is no queue {:?}", name.as_str())))
    }

    /// The queue of that name, created with the store's defaults if that is allowed.
    pub(crate) fn ensure_queue(&mut self, name: &QueueName) -> Result<QueueId> {
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

    pub(crate) fn settle_one(&mut self, only: Option<&QueueName>, receipt: &Receipt, settle: Settle) -> Result<()> {
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
            if timeout != Timeout::Ready && !self.group.has_own_room(len) {
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
    /// still out is over; attempts stay counted, and who has none left dies. Returns how many are
    /// receivable again.
    pub(crate) fn release_all(&mut self) -> u64 {
        let mut released = 0;
        loop {
            let held = self.tables.in_flight(1024);
            if held.is_empty() {
                return released;
            }
            self.begin_alone(held.iter().map(|entry| self.release_bound(entry)).sum());
            if self.group.refusal.is_some() {
                return released;
            }
            for entry in held {
                let used_up =
                    self.tables.queues.get(&entry.queue).is_some_and(|q| attempts_used_up(&entry, &q.options));
                if used_up {
                    self.die(&entry, DeadReason::MaxAttempts, None);
                    continue;
                }
                released += 1;
                let (key, epoch, attempts) = (lifecycle::key(&entry), entry.epoch, entry.attempts);
                self.write(&Record::Released { key, epoch, attempts, visible_at: self.group.now }, &[]);
            }
            self.end_alone();
        }
    }

    /// Most bytes of the end of one delivery, should the message die of it.
    fn release_bound(&self, entry: &Entry) -> usize {
        let name_len = self.tables.queues.get(&entry.queue).map_or(0, |queue| queue.name.as_str().len());
        2 * record::FIXED_BOUND + name_len + entry.detail.len as usize
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
}
