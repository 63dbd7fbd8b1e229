//! Receiving: the request, and what comes of it.
//!
//! # Not here
//! Who gets which message: `engine/decide.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::wait::{Command, Grant, Reply, Shared};
use crate::error::{Error, ErrorKind, Result};
use crate::lifecycle::Settle;
use crate::message::{Attributes, DeadLetter, Nack};
use crate::record::Detail;
use crate::types::{Entry, MessageId, QueueName, Receipt, Timestamp};

/// A receive that is being put together; see [`Queue::receive`](crate::Queue::receive).
#[derive(Clone, Debug)]
#[must_use = "nothing is received before one() or many() is called"]
pub struct Receive {
    shared: Arc<Shared>,
    queue: QueueName,
    max: usize,
    wait: Duration,
    visibility: Option<Duration>,
}

impl Receive {
    pub(crate) fn new(shared: Arc<Shared>, queue: QueueName) -> Self {
        Self { shared, queue, max: 1, wait: Duration::ZERO, visibility: None }
    }

    /// Waits up to this long for a message. Default: not at all. There is no upper bound.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Takes up to this many messages, 1 to 1,000. Default: 1. It does not wait for more than are
    /// there.
    pub fn max(mut self, max: usize) -> Self {
        self.max = max;
        self
    }

    /// How long the messages stay hidden, instead of the queue's visibility timeout.
    pub fn visibility(mut self, visibility: Duration) -> Self {
        self.visibility = Some(visibility);
        self
    }

    /// Receives one message; `None` when there is none in time. The delivery is durable before it
    /// is returned.
    ///
    /// # Errors
    /// `InvalidInput` for a visibility out of range; `NotFound` for an unknown queue if queues are
    /// not created on use; `Corrupt` when the message's body cannot be read back (it is set aside
    /// as dead then, and the next call goes on with the next message); `Full`, `Poisoned`, `Closed`.
    ///
    /// # Cancel safety
    /// Dropped before it returns, it leaves every message receivable at once, attempt refunded.
    pub async fn one(mut self) -> Result<Option<Delivery>> {
        self.max = 1;
        Ok(self.many().await?.pop())
    }

    /// Receives up to [`max`](Self::max) messages, in order; none when there is none in time.
    ///
    /// # Errors
    /// As [`one`](Self::one); `Corrupt` only if no other message could be delivered instead.
    ///
    /// # Cancel safety
    /// As [`one`](Self::one).
    pub async fn many(self) -> Result<Vec<Delivery>> {
        let Self { shared, queue, max, wait, visibility } = self;
        let command = Command::Receive { queue: queue.clone(), max, wait, visibility };
        let Reply::Grants(grants) = shared.call(command, false).await? else { return Ok(Vec::new()) };
        let mut deliveries = Vec::with_capacity(grants.len());
        let mut unreadable = None;
        let mut places = grants.iter().map(|grant| (grant.receipt.id, grant.entry)).collect();
        for (index, grant) in grants.iter().enumerate() {
            let rest = grants.get(index..).unwrap_or_default();
            match read_current(&shared, &queue, grant, &mut places, rest).await {
                Ok(delivery) => deliveries.push(delivery),
                // Purged while it was on its way.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    tracing::error!(message = grant.entry.id.0, %error, "a message cannot be read; it is set aside");
                    set_aside(&shared, &grant.receipt, &error).await?;
                    unreadable = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        // From here on nothing can fail or be cancelled: the caller has them.
        for mut grant in grants {
            grant.keep();
        }
        match unreadable {
            Some(error) if deliveries.is_empty() => Err(error),
            _ => Ok(deliveries),
        }
    }
}

/// Reads what was handed out. If it was carried to the log's end meanwhile, it is asked for where it and
/// the `rest` stand now.
async fn read_current(
    shared: &Arc<Shared>,
    queue: &QueueName,
    grant: &Grant,
    places: &mut BTreeMap<MessageId, Entry>,
    rest: &[Grant],
) -> Result<Delivery> {
    let gone = || Error::not_found(format!("message {} is gone", grant.receipt.id));
    loop {
        let entry = *places.get(&grant.receipt.id).ok_or_else(gone)?;
        match Delivery::read(shared, queue, grant.receipt, entry) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let receipts = rest.iter().map(|grant| grant.receipt).collect();
                let Reply::Seen(seen) = shared.call(Command::Find(receipts), false).await? else { return Err(error) };
                *places = seen.into_iter().map(|seen| (seen.entry.id, seen.entry)).collect();
                // Still said to be where it is not: then the log lacks it.
                let now = places.get(&grant.receipt.id);
                now.filter(|now| now.body != entry.body || now.detail != entry.detail).ok_or(error)?;
            }
            result => return result,
        }
    }
}

async fn set_aside(shared: &Arc<Shared>, receipt: &Receipt, error: &Error) -> Result<()> {
    let settle = Settle::SetAside { error: error.to_string() };
    settle_one(shared, None, *receipt, settle, false).await
}

/// Settles one delivery.
pub(crate) async fn settle_one(
    shared: &Arc<Shared>,
    queue: Option<&QueueName>,
    receipt: Receipt,
    settle: Settle,
    lazy: bool,
) -> Result<()> {
    settle_many(shared, queue, vec![(receipt, settle)], lazy).await?.pop().unwrap_or(Ok(()))
}

/// Settles many deliveries with one durable write; one result for each.
pub(crate) async fn settle_many(
    shared: &Arc<Shared>,
    queue: Option<&QueueName>,
    items: Vec<(Receipt, Settle)>,
    lazy: bool,
) -> Result<Vec<Result<()>>> {
    match shared.call(Command::Settle { queue: queue.cloned(), items }, lazy).await? {
        Reply::Each(results) => Ok(results),
        _ => Ok(Vec::new()),
    }
}

/// A message that was handed out. Settle it with [`ack`](Self::ack) when the work is done.
///
/// Dropping it does nothing: the message reappears when its deadline passes.
#[derive(Clone)]
pub struct Delivery {
    shared: Arc<Shared>,
    queue: QueueName,
    receipt: Receipt,
    entry: Entry,
    detail: Detail,
    attributes: Attributes,
    body: Vec<u8>,
}

impl std::fmt::Debug for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delivery")
            .field("queue", &self.queue)
            .field("id", &self.receipt.id)
            .field("receive_count", &self.entry.receive_count)
            .field("body_len", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// The body and attributes of a message, from the log.
pub(crate) fn read_message(shared: &Shared, entry: &Entry) -> Result<(Attributes, Vec<u8>)> {
    if !entry.body.is_some() {
        let what = "its body was damaged and is lost; what was left of it is in quarantine";
        return Err(Error::new(ErrorKind::Corrupt, format!("message {} cannot be read: {what}", entry.id)));
    }
    let (record, body) = shared.read_record(entry.body, entry.id)?;
    Ok((record.into_attributes(), body))
}

/// How a message died, as users see it.
pub(crate) fn dead_letter(detail: &Detail) -> Option<DeadLetter> {
    let died = detail.dead.as_ref()?;
    Some(DeadLetter {
        reason: died.reason()?,
        at: died.at(),
        origin: QueueName::new(&died.origin).ok()?,
        attempts: died.attempts,
        error: detail.error.clone(),
    })
}

impl Delivery {
    fn read(shared: &Arc<Shared>, queue: &QueueName, receipt: Receipt, entry: Entry) -> Result<Self> {
        let (attributes, body) = read_message(shared, &entry)?;
        let detail = shared.read_detail_or_say(&entry)?;
        Ok(Self { shared: Arc::clone(shared), queue: queue.clone(), receipt, entry, detail, attributes, body })
    }

    /// The message's id.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.receipt.id
    }

    /// The queue it was received from.
    #[must_use]
    pub fn queue(&self) -> &QueueName {
        &self.queue
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The body, without a copy.
    #[must_use]
    pub fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// The attributes, by name.
    #[must_use]
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// The right to settle this delivery, to be passed on.
    #[must_use]
    pub fn receipt(&self) -> Receipt {
        self.receipt
    }

    /// The message's priority.
    #[must_use]
    pub fn priority(&self) -> i16 {
        self.entry.priority
    }

    /// How often the message was handed out in its life, this time included: 1 for the first.
    #[must_use]
    pub fn receive_count(&self) -> u32 {
        self.entry.receive_count
    }

    /// Hand-outs that count towards `max_attempts`, this one included.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.entry.attempts
    }

    /// Which hand-out this is. Together with the id it identifies one delivery for ever.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.receipt.epoch
    }

    /// When the message was sent.
    #[must_use]
    pub fn sent_at(&self) -> Timestamp {
        self.entry.sent_at
    }

    /// When it was first handed out.
    #[must_use]
    pub fn first_received_at(&self) -> Timestamp {
        self.entry.first_received_at
    }

    /// When it reappears if it is neither settled nor extended. Later extensions are not seen here.
    #[must_use]
    pub fn visible_at(&self) -> Timestamp {
        self.entry.visible_at
    }

    /// The error text of the newest nack, if one was given.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.detail.error.as_deref()
    }

    /// How and where it died, if it came by a dead-letter move.
    #[must_use]
    pub fn dead_letter(&self) -> Option<DeadLetter> {
        self.entry.origin.and_then(|_| dead_letter(&self.detail))
    }

    /// The work is done: the message is gone for good, durably, when this returns.
    ///
    /// # Errors
    /// `StaleReceipt` when the delivery is over (it was handed out again, given back, set aside);
    /// `NotFound` when the message was settled already; `Full`, `Poisoned`, `Closed`.
    ///
    /// # Cancel safety
    /// Once it was polled it may take effect although it was dropped.
    pub async fn ack(&self) -> Result<()> {
        self.settle(Settle::Ack, false).await
    }

    /// Like [`ack`](Self::ack), but returns before it is on disk: a power cut may undo it, and the
    /// message reappears then. The death of the process does not.
    ///
    /// # Errors
    /// As [`ack`](Self::ack).
    pub async fn ack_lazily(&self) -> Result<()> {
        self.settle(Settle::Ack, true).await
    }

    /// Hides it until `by` from now (not from its present deadline). Zero gives it back like a nack
    /// without delay.
    ///
    /// # Errors
    /// As [`ack`](Self::ack), and `InvalidInput` above the queue's `max_visibility_timeout`.
    pub async fn extend(&self, by: Duration) -> Result<()> {
        self.settle(Settle::Extend(by), false).await
    }

    /// The work failed: it reappears after the queue's back-off, or is dead if its attempts are
    /// used up.
    ///
    /// # Errors
    /// As [`ack`](Self::ack).
    pub async fn nack(&self) -> Result<()> {
        self.nack_with(Nack::new()).await
    }

    /// The same, with a delay or an error text.
    ///
    /// # Errors
    /// As [`ack`](Self::ack), and `InvalidInput` for a delay above 100 years or a text above 4 KiB.
    pub async fn nack_with(&self, nack: Nack) -> Result<()> {
        self.settle(Settle::Nack { delay: nack.delay, error: nack.error }, false).await
    }

    /// Given back unworked: receivable now, the attempt refunded. For shutdowns.
    ///
    /// # Errors
    /// As [`ack`](Self::ack).
    pub async fn release(&self) -> Result<()> {
        self.settle(Settle::Release, false).await
    }

    /// It can never be worked: dead now, with a reason.
    ///
    /// # Errors
    /// As [`ack`](Self::ack), and `InvalidInput` for a reason above 4 KiB.
    pub async fn reject(&self, reason: impl Into<String>) -> Result<()> {
        self.settle(Settle::Reject { error: reason.into() }, false).await
    }

    async fn settle(&self, settle: Settle, lazy: bool) -> Result<()> {
        settle_one(&self.shared, None, self.receipt, settle, lazy).await
    }
}
