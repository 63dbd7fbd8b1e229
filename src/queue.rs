//! A queue: the verbs.
//!
//! # Not here
//! What they do: `engine/decide.rs` and `lifecycle.rs`.

use std::sync::Arc;

use crate::delivery::{Receive, dead_letter, read_message, settle_many};
use crate::engine::Engine;
use crate::engine::stats::QueueStats;
use crate::engine::wait::{Command, RedriveFilter, Reply, Seen};
use crate::error::{Error, ErrorKind, Result};
use crate::lifecycle::Settle;
use crate::message::{MessageView, Nack, NewMessage};
use crate::options::QueueOptions;
use crate::typed::{Bincode, Typed};
use crate::types::{MessageId, QueueName, Receipt, State, Timestamp};

/// A handle on one queue of an open store. Cheap to clone; see [`Store::queue`](crate::Store::queue).
#[derive(Clone)]
pub struct Queue {
    engine: Arc<Engine>,
    name: QueueName,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Queue {
    pub(crate) fn new(engine: Arc<Engine>, name: QueueName) -> Self {
        Self { engine, name }
    }

    /// The queue's name.
    #[must_use]
    pub fn name(&self) -> &QueueName {
        &self.name
    }

    /// Sends a message. It is durable when this returns.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # pollster::block_on(async {
    /// use reappear::{NewMessage, Store};
    ///
    /// let store = Store::open(dir.path().join("jobs")).await?;
    /// let thumbs = store.queue("thumbnails")?;
    /// thumbs.send("cat.png").await?;
    /// thumbs.send(NewMessage::new("dog.png").priority(10)).await?;
    /// # store.close().await?;
    /// # Ok::<(), reappear::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` for a body, attribute, delay or ttl out of range; `NotFound` for an unknown
    /// queue if queues are not created on use; `Full`; `Poisoned` (it may have been sent); `Closed`.
    ///
    /// # Cancel safety
    /// Once it was polled the message may be sent although it was dropped: whole or not at all.
    pub async fn send(&self, message: impl Into<NewMessage>) -> Result<MessageId> {
        self.send_batch([message.into()]).await?.pop().ok_or_else(Error::closed)
    }

    /// Like [`send`](Self::send), but answers `Full` at once instead of waiting when too many
    /// requests wait for the log already.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn try_send(&self, message: impl Into<NewMessage>) -> Result<MessageId> {
        let command = Command::Send { queue: self.name.clone(), messages: vec![message.into()] };
        match self.engine.shared.try_call(command).await? {
            Reply::Ids(mut ids) => ids.pop().ok_or_else(Error::closed),
            _ => Err(Error::closed()),
        }
    }

    /// Sends messages, all or none, with one durable write. Returns their ids in order.
    ///
    /// # Errors
    /// As [`send`](Self::send), and `InvalidInput` when they are more than can be taken at once
    /// (`max_pending_len`, or 64 MiB for one atomic step).
    ///
    /// # Cancel safety
    /// As [`send`](Self::send).
    pub async fn send_batch<M: Into<NewMessage>>(
        &self,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Vec<MessageId>> {
        let messages = messages.into_iter().map(Into::into).collect();
        match self.call(Command::Send { queue: self.name.clone(), messages }).await? {
            Reply::Ids(ids) => Ok(ids),
            _ => Ok(Vec::new()),
        }
    }

    /// Begins a receive: add what is wanted, then [`one`](Receive::one) or [`many`](Receive::many).
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # pollster::block_on(async {
    /// # let store = reappear::Store::open(dir.path().join("jobs")).await?;
    /// # let thumbs = store.queue("thumbnails")?;
    /// # thumbs.send("cat.png").await?;
    /// use std::time::Duration;
    ///
    /// if let Some(job) = thumbs.receive().wait(Duration::from_secs(20)).one().await? {
    ///     println!("{} bytes, attempt {}", job.body().len(), job.attempts());
    ///     job.ack().await?;
    /// }
    /// # store.close().await?;
    /// # Ok::<(), reappear::Error>(()) }).unwrap();
    /// ```
    pub fn receive(&self) -> Receive {
        Receive::new(Arc::clone(&self.engine.shared), self.name.clone())
    }

    /// Acknowledges many deliveries of this queue with one durable write. One result for each, in
    /// order; those that are refused do not hinder the others.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Closed`. Each result: as [`Delivery::ack`](crate::Delivery::ack), and
    /// `InvalidInput` for a receipt of another queue or store.
    #[must_use = "each receipt has a result of its own"]
    pub async fn ack_many(&self, receipts: impl IntoIterator<Item = Receipt>) -> Result<Vec<Result<()>>> {
        self.settle_many(receipts, Settle::Ack).await
    }

    /// Extends many deliveries; see [`ack_many`](Self::ack_many).
    ///
    /// # Errors
    /// As there.
    #[must_use = "each receipt has a result of its own"]
    pub async fn extend_many(
        &self,
        receipts: impl IntoIterator<Item = Receipt>,
        by: std::time::Duration,
    ) -> Result<Vec<Result<()>>> {
        self.settle_many(receipts, Settle::Extend(by)).await
    }

    /// Gives many deliveries back as failed; see [`ack_many`](Self::ack_many).
    ///
    /// # Errors
    /// As there.
    #[must_use = "each receipt has a result of its own"]
    pub async fn nack_many(&self, receipts: impl IntoIterator<Item = Receipt>, nack: Nack) -> Result<Vec<Result<()>>> {
        self.settle_many(receipts, Settle::Nack { delay: nack.delay, error: nack.error }).await
    }

    /// Gives many deliveries back unworked; see [`ack_many`](Self::ack_many).
    ///
    /// # Errors
    /// As there.
    #[must_use = "each receipt has a result of its own"]
    pub async fn release_many(&self, receipts: impl IntoIterator<Item = Receipt>) -> Result<Vec<Result<()>>> {
        self.settle_many(receipts, Settle::Release).await
    }

    /// Sets many deliveries aside as dead; see [`ack_many`](Self::ack_many).
    ///
    /// # Errors
    /// As there.
    #[must_use = "each receipt has a result of its own"]
    pub async fn reject_many(
        &self,
        receipts: impl IntoIterator<Item = Receipt>,
        reason: impl Into<String>,
    ) -> Result<Vec<Result<()>>> {
        self.settle_many(receipts, Settle::Reject { error: reason.into() }).await
    }

    async fn settle_many(
        &self,
        receipts: impl IntoIterator<Item = Receipt>,
        settle: Settle,
    ) -> Result<Vec<Result<()>>> {
        let items = receipts.into_iter().map(|receipt| (receipt, settle.clone())).collect();
        settle_many(&self.engine.shared, Some(&self.name), items, false).await
    }

    /// Puts dead messages back to work, attempts 0, up to `max` of them; messages that came here by
    /// a dead-letter move go back to their own queue, if it is still there. Returns how many.
    ///
    /// Done in steps: after a crash or a cancel, call it again and it finishes; none is put back
    /// twice.
    ///
    /// # Errors
    /// `NotFound` for an unknown queue; `Full`, `Poisoned`, `Closed`.
    pub async fn redrive(&self, filter: RedriveFilter, max: impl Into<Option<u64>>) -> Result<u64> {
        let max = max.into().unwrap_or(u64::MAX);
        self.count(Command::Redrive { queue: self.name.clone(), filter, max }).await
    }

    /// Shows up to `max` messages in the order of delivery, of one state or of all. Changes nothing.
    ///
    /// # Errors
    /// `NotFound` for an unknown queue; `Io`, `Closed`.
    pub async fn peek(&self, state: impl Into<Option<State>>, max: usize) -> Result<Vec<MessageView>> {
        let state = state.into();
        loop {
            let command = Command::Peek { queue: self.name.clone(), state, max };
            let Reply::Seen(seen) = self.call(command).await? else { return Ok(Vec::new()) };
            match seen.iter().map(|seen| self.view(seen)).collect() {
                // A message was carried to the log's end meanwhile: look again.
                Err(error) if Error::kind(&error) == ErrorKind::NotFound => {}
                result => return result,
            }
        }
    }

    fn view(&self, seen: &Seen) -> Result<MessageView> {
        let Seen { entry, state } = seen;
        let shared = &self.engine.shared;
        let (attributes, body, unreadable) = match read_message(shared, entry) {
            Ok((attributes, body)) => (attributes, body, None),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                (crate::Attributes::new(), Vec::new(), Some(error.to_string()))
            }
            Err(error) => return Err(error),
        };
        let detail = shared.read_detail_or_say(entry)?;
        let some = |at: Timestamp| (at > Timestamp::ZERO).then_some(at);
        let is_dead = *state == State::Dead || entry.origin.is_some();
        Ok(MessageView {
            id: entry.id,
            state: *state,
            body,
            attributes,
            unreadable,
            priority: entry.priority,
            sent_at: entry.sent_at,
            visible_at: entry.visible_at,
            expires_at: (entry.expires_at < Timestamp::MAX).then_some(entry.expires_at),
            first_received_at: some(entry.first_received_at),
            last_received_at: some(entry.received_at),
            receive_count: entry.receive_count,
            attempts: entry.attempts,
            epoch: entry.epoch,
            dead: if is_dead { dead_letter(&detail) } else { None },
            last_error: detail.error,
        })
    }

    /// Figures of this queue.
    ///
    /// # Errors
    /// `NotFound` for an unknown queue; `Closed`.
    pub async fn stats(&self) -> Result<QueueStats> {
        match self.call(Command::QueueStats(self.name.clone())).await? {
            Reply::Queues(mut queues) => queues.pop().ok_or_else(Error::closed),
            _ => Err(Error::closed()),
        }
    }

    /// Removes every message in one of these states and returns the exact count. Messages in flight
    /// are removed only if [`State::InFlight`] is named; their receipts answer `NotFound` then.
    ///
    /// # Errors
    /// `NotFound` for an unknown queue; `Full`, `Poisoned`, `Closed`.
    pub async fn purge(&self, states: &[State]) -> Result<u64> {
        self.count(Command::Purge { queue: self.name.clone(), states: states.to_owned() }).await
    }

    /// Hands nothing out from now on, over restarts too. Sending and settling go on.
    ///
    /// # Errors
    /// `NotFound` for an unknown queue; `Full`, `Poisoned`, `Closed`.
    pub async fn pause(&self) -> Result<()> {
        self.done(Command::Pause { queue: self.name.clone(), paused: true }).await
    }

    /// Undoes [`pause`](Self::pause).
    ///
    /// # Errors
    /// As there.
    pub async fn resume(&self) -> Result<()> {
        self.done(Command::Pause { queue: self.name.clone(), paused: false }).await
    }

    /// Creates the queue, with options of its own or with the store's defaults.
    ///
    /// # Errors
    /// `AlreadyExists`; `InvalidInput` for an option out of range or a loop of dead-letter queues;
    /// `NotFound` for a dead-letter queue that does not exist; `Full`, `Poisoned`, `Closed`.
    pub async fn create(&self, options: impl Into<Option<QueueOptions>>) -> Result<()> {
        self.done(Command::Create { queue: self.name.clone(), options: options.into() }).await
    }

    /// Replaces the queue's options. Messages that are there follow the new ones from now on;
    /// deadlines that run are kept.
    ///
    /// # Errors
    /// As [`create`](Self::create), and `NotFound` for an unknown queue.
    pub async fn configure(&self, options: QueueOptions) -> Result<()> {
        self.done(Command::Configure { queue: self.name.clone(), options }).await
    }

    /// Deletes the queue. One that holds messages, or is the dead-letter queue of another, only
    /// with `force`. Returns how many messages went with it.
    ///
    /// # Errors
    /// `NotFound` for an unknown queue; `InvalidInput` where `force` is needed; `Full`, `Poisoned`,
    /// `Closed`.
    pub async fn delete(&self, force: bool) -> Result<u64> {
        self.count(Command::Delete { queue: self.name.clone(), force }).await
    }

    /// The same queue, for bodies that are serde values of type `T` in bincode.
    #[must_use]
    pub fn typed<T>(&self) -> Typed<T, Bincode> {
        Typed::new(self.clone())
    }

    async fn call(&self, command: Command) -> Result<Reply> {
        self.engine.shared.call(command, false).await
    }

    async fn done(&self, command: Command) -> Result<()> {
        self.call(command).await.map(|_| ())
    }

    async fn count(&self, command: Command) -> Result<u64> {
        match self.call(command).await? {
            Reply::Count(count) => Ok(count),
            _ => Ok(0),
        }
    }
}
