//! The store: opening and closing it, its queues, its figures, and what spans queues.
//!
//! # Not here
//! The verbs on one queue: `queue.rs`. How anything is done: `engine/`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::delivery::{Delivery, settle_many, settle_one};
use crate::engine::report::{OpenReport, RebuildReport, RecoveryProgress};
use crate::engine::stats::{QueueStats, StoreStats};
use crate::engine::wait::{BatchItem, Command, Reply};
use crate::engine::{Engine, real_site};
use crate::error::{Error, ErrorKind, Result};
use crate::inspect::{self, LogRecord};
use crate::lifecycle::Settle;
use crate::message::{Nack, NewMessage};
use crate::options::Options;
use crate::queue::Queue;
use crate::types::{Lsn, MessageId, QueueName, Receipt, StoreId};

/// An open store: a directory with queues in it, for this process alone.
///
/// Cheap to clone; the store is closed when the last clone and the last [`Queue`] of it are gone,
/// or by [`close`](Self::close).
#[derive(Clone)]
pub struct Store {
    pub(crate) engine: Arc<Engine>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("path", &self.engine.path).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store in the directory `path`, creating it if it is missing, and recovers what a
    /// crash left. [`report`](Self::report) says what was found.
    ///
    /// # Errors
    /// `Locked` when it is open already, with the owner's pid; `Corrupt` when acknowledged data is
    /// damaged; `Unsupported` for a newer format or a network file system; `InvalidInput` when
    /// `path` holds something else; `Full`, `Io`.
    ///
    /// # Cancel safety
    /// Dropped, it opens to its end in the background and closes again.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, Options::default()).await
    }

    /// The same with options.
    ///
    /// # Errors
    /// As [`open`](Self::open), and `InvalidInput` for an option out of range.
    pub async fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        Self::open_with_progress(path, options, |_| {}).await
    }

    /// The same, telling how far a long recovery is. `progress` is called on a thread of the
    /// store's own, at most a few hundred times.
    ///
    /// # Errors
    /// As [`open_with`](Self::open_with).
    pub async fn open_with_progress(
        path: impl AsRef<Path>,
        options: Options,
        mut progress: impl FnMut(RecoveryProgress) + Send + 'static,
    ) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let open = move || Engine::open(&real_site(), &path, options, &mut progress);
        let engine = on_own_thread("reappear-open", open).await?;
        Ok(Self { engine: Arc::new(engine) })
    }

    /// What was found and done when the store was opened.
    #[must_use]
    pub fn report(&self) -> &OpenReport {
        &self.engine.report
    }

    /// The store's identity.
    #[must_use]
    pub fn id(&self) -> StoreId {
        self.engine.shared.store
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.engine.path
    }

    /// A handle on the queue of that name. Nothing is read or written: the queue is created when
    /// something is first sent to it, unless that was turned off, or by [`Queue::create`].
    ///
    /// # Errors
    /// `InvalidInput` for a name that is empty, above 255 bytes, or has control characters.
    pub fn queue<N>(&self, name: N) -> Result<Queue>
    where
        N: TryInto<QueueName>,
        Error: From<N::Error>,
    {
        Ok(Queue::new(Arc::clone(&self.engine), name.try_into()?))
    }

    /// Figures of all queues, by name.
    ///
    /// # Errors
    /// `Closed`.
    pub async fn queues(&self) -> Result<Vec<QueueStats>> {
        match self.call(Command::Queues).await? {
            Reply::Queues(queues) => Ok(queues),
            _ => Ok(Vec::new()),
        }
    }

    /// Figures of the store.
    ///
    /// # Errors
    /// `Closed`.
    pub async fn stats(&self) -> Result<StoreStats> {
        match self.call(Command::StoreStats).await? {
            Reply::Store(stats) => Ok(*stats),
            _ => Err(Error::closed()),
        }
    }

    /// An empty batch: any mix of sends and settles over any queues, carried out as one atomic step.
    pub fn batch(&self) -> Batch {
        Batch { engine: Arc::clone(&self.engine), items: Vec::new() }
    }

    /// Settles the delivery of `receipt`: the work is done.
    ///
    /// # Errors
    /// As [`Delivery::ack`], and `InvalidInput` for a receipt of another store.
    pub async fn ack(&self, receipt: &Receipt) -> Result<()> {
        self.settle(receipt, Settle::Ack).await
    }

    /// As [`Delivery::extend`], by receipt.
    ///
    /// # Errors
    /// As there.
    pub async fn extend(&self, receipt: &Receipt, by: Duration) -> Result<()> {
        self.settle(receipt, Settle::Extend(by)).await
    }

    /// As [`Delivery::nack_with`], by receipt.
    ///
    /// # Errors
    /// As there.
    pub async fn nack(&self, receipt: &Receipt, nack: Nack) -> Result<()> {
        self.settle(receipt, Settle::Nack { delay: nack.delay, error: nack.error }).await
    }

    /// As [`Delivery::release`], by receipt.
    ///
    /// # Errors
    /// As there.
    pub async fn release(&self, receipt: &Receipt) -> Result<()> {
        self.settle(receipt, Settle::Release).await
    }

    /// As [`Delivery::reject`], by receipt.
    ///
    /// # Errors
    /// As there.
    pub async fn reject(&self, receipt: &Receipt, reason: impl Into<String>) -> Result<()> {
        self.settle(receipt, Settle::Reject { error: reason.into() }).await
    }

    /// Acknowledges many deliveries, of any queues, with one durable write. One result for each, in
    /// order; those that are refused do not hinder the others.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Closed`: none took effect, or (`Poisoned`) it is not known.
    #[must_use = "each receipt has a result of its own"]
    pub async fn ack_many(&self, receipts: impl IntoIterator<Item = Receipt>) -> Result<Vec<Result<()>>> {
        let items = receipts.into_iter().map(|receipt| (receipt, Settle::Ack)).collect();
        settle_many(&self.engine.shared, None, items, false).await
    }

    /// The whole life of one message, as far as the log still knows it: each record about it, in
    /// order. Empty when nothing is known of it any more. It reads the log from its beginning, which
    /// takes as long as that is; writes go on meanwhile.
    ///
    /// # Errors
    /// `Io`; `Unsupported` for a log of a newer format.
    ///
    /// # Cancel safety
    /// Dropped, it reads on to the end in the background and changes nothing.
    pub async fn history(&self, id: MessageId) -> Result<Vec<LogRecord>> {
        let path = self.engine.path.clone();
        on_own_thread("reappear-history", move || inspect::history(path, id)).await
    }

    /// Builds the index anew from the log, into a new place on disk, while the store is in use. Sends and
    /// settles go on meanwhile; what needs the index (messages outside of memory) waits. Nobody has to:
    /// an index that fails or grows too large is replaced by itself.
    ///
    /// # Errors
    /// `Full`, `Io`: no new index could be made, and the old one is in use as before; `Corrupt` when the
    /// log is damaged; `Poisoned`, `Closed`.
    ///
    /// # Cancel safety
    /// Once it was polled it is carried out.
    pub async fn rebuild_index(&self) -> Result<RebuildReport> {
        match self.call(Command::RebuildIndex).await? {
            Reply::Rebuilt(report) => Ok(report),
            _ => Err(Error::closed()),
        }
    }

    /// Makes everything done so far durable, whatever the durability policy, and says up to where.
    ///
    /// # Errors
    /// `Poisoned`, `Closed`.
    pub async fn sync(&self) -> Result<Lsn> {
        match self.call(Command::Sync).await? {
            Reply::Durable(lsn) => Ok(lsn),
            _ => Err(Error::closed()),
        }
    }

    /// Every record up to here is on disk.
    ///
    /// # Errors
    /// `Closed`.
    pub async fn durable_lsn(&self) -> Result<Lsn> {
        Ok(self.stats().await?.durable_lsn)
    }

    /// Stops new work, finishes what is queued, answers waiting receivers with `Closed`, writes a
    /// checkpoint and marks the store as closed in order. When it returns, the store can be opened
    /// again. Calling it again is fine.
    ///
    /// # Errors
    /// `Poisoned` when the store had failed: the next open recovers.
    ///
    /// # Cancel safety
    /// Once it was polled, the store closes.
    pub async fn close(&self) -> Result<()> {
        self.close_within(Duration::ZERO).await
    }

    /// The same, but goes on taking settles until nothing is in flight any more or `grace` is over.
    ///
    /// # Errors
    /// As [`close`](Self::close).
    pub async fn close_within(&self, grace: Duration) -> Result<()> {
        self.engine.close(grace).await
    }

    async fn settle(&self, receipt: &Receipt, settle: Settle) -> Result<()> {
        settle_one(&self.engine.shared, None, *receipt, settle, false).await
    }

    async fn call(&self, command: Command) -> Result<Reply> {
        self.engine.shared.call(command, false).await
    }
}

/// Runs what reads and writes files for as long as it takes: not on the caller's executor.
async fn on_own_thread<T: Send + 'static>(name: &str, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (done, result) = oneshot::channel();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let _ = done.send(work());
        })
        .map_err(|e| Error::new(ErrorKind::Io, format!("cannot start a thread: {e}")))?;
    result.await.map_err(|_| Error::closed())?
}

/// What can be settled: a delivery, or the receipt of one.
pub trait AsReceipt {
    /// The receipt.
    fn as_receipt(&self) -> Receipt;
}

impl AsReceipt for Receipt {
    fn as_receipt(&self) -> Receipt {
        *self
    }
}

impl AsReceipt for Delivery {
    fn as_receipt(&self) -> Receipt {
        self.receipt()
    }
}

impl<T: AsReceipt> AsReceipt for &T {
    fn as_receipt(&self) -> Receipt {
        (*self).as_receipt()
    }
}

/// Sends and settles that happen together or not at all; see [`Store::batch`].
///
/// With it, taking a message from one queue and putting its results into others is exactly once:
/// ack the input and send the outputs in one batch.
#[must_use = "nothing happens before commit()"]
pub struct Batch {
    engine: Arc<Engine>,
    items: Vec<BatchItem>,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("items", &self.items).finish_non_exhaustive()
    }
}

impl Batch {
    /// Sends a message to a queue of this store.
    pub fn send(&mut self, queue: &Queue, message: impl Into<NewMessage>) -> &mut Self {
        self.items.push(BatchItem::Send(queue.name().clone(), message.into()));
        self
    }

    /// Acknowledges a delivery.
    pub fn ack(&mut self, delivery: impl AsReceipt) -> &mut Self {
        self.settle(delivery, Settle::Ack)
    }

    /// Gives a delivery back as failed.
    pub fn nack(&mut self, delivery: impl AsReceipt, nack: Nack) -> &mut Self {
        self.settle(delivery, Settle::Nack { delay: nack.delay, error: nack.error })
    }

    /// Extends a delivery.
    pub fn extend(&mut self, delivery: impl AsReceipt, by: Duration) -> &mut Self {
        self.settle(delivery, Settle::Extend(by))
    }

    /// Gives a delivery back unworked.
    pub fn release(&mut self, delivery: impl AsReceipt) -> &mut Self {
        self.settle(delivery, Settle::Release)
    }

    /// Sets a delivery aside as dead.
    pub fn reject(&mut self, delivery: impl AsReceipt, reason: impl Into<String>) -> &mut Self {
        self.settle(delivery, Settle::Reject { error: reason.into() })
    }

    fn settle(&mut self, delivery: impl AsReceipt, settle: Settle) -> &mut Self {
        self.items.push(BatchItem::Settle(delivery.as_receipt(), settle));
        self
    }

    /// Carries it all out as one step, durable when this returns. Returns the ids of the messages
    /// sent, in order.
    ///
    /// # Errors
    /// Any refusal of any item, naming it (counted from 1): nothing took effect then. `Full`,
    /// `Poisoned` (all of it or nothing took effect), `Closed`.
    ///
    /// # Cancel safety
    /// Once it was polled it may take effect, whole, although it was dropped.
    pub async fn commit(self) -> Result<Vec<MessageId>> {
        if self.items.is_empty() {
            return Ok(Vec::new());
        }
        match self.engine.shared.call(Command::Batch(self.items), false).await? {
            Reply::Ids(ids) => Ok(ids),
            _ => Ok(Vec::new()),
        }
    }
}
