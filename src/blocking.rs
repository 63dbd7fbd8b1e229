//! The same words without async: for programs that have no runtime and need none.
//!
//! Every call blocks its thread until it is answered. It may be made from any thread, also from one
//! of a runtime, which it then blocks.
//!
//! ```
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("jobs");
//! use reappear::blocking::Store;
//! use std::time::Duration;
//!
//! let store = Store::open(path)?;
//! let thumbs = store.queue("thumbnails")?;
//! thumbs.send("cat.png")?;
//! while let Some(job) = thumbs.receive().wait(Duration::from_millis(1)).one()? {
//!     println!("{}", String::from_utf8_lossy(job.body()));
//!     job.ack()?;
//! }
//! store.close()?;
//! # Ok::<(), reappear::Error>(())
//! ```
//!
//! # Not here
//! What each call does and how it fails: the methods of the same name in the crate's root.

use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use pollster::block_on;

use crate::error::Result;
use crate::{
    AsReceipt, Error, Lsn, MessageId, MessageView, Nack, NewMessage, OpenReport, Options, QueueName, QueueOptions,
    QueueStats, RebuildReport, Receipt, RecoveryProgress, RedriveFilter, State, StoreId, StoreStats,
};

/// Defines blocking methods by the async ones of the same name on `self.0`.
macro_rules! blocking {
    ($($name:ident($($arg:ident: $type:ty),*) -> $output:ty;)*) => {
        $(
            #[doc = concat!("As the async `", stringify!($name), "`.")]
            ///
            /// # Errors
            /// As there.
            pub fn $name(&self, $($arg: $type),*) -> Result<$output> {
                block_on(self.0.$name($($arg),*))
            }
        )*
    };
}

/// See [`crate::Store`].
#[derive(Clone, Debug)]
pub struct Store(crate::Store);

impl Store {
    /// See [`crate::Store::open`].
    ///
    /// # Errors
    /// As there.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        block_on(crate::Store::open(path)).map(Self)
    }

    /// See [`crate::Store::open_with`].
    ///
    /// # Errors
    /// As there.
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        block_on(crate::Store::open_with(path, options)).map(Self)
    }

    /// See [`crate::Store::open_with_progress`].
    ///
    /// # Errors
    /// As there.
    pub fn open_with_progress(
        path: impl AsRef<Path>,
        options: Options,
        progress: impl FnMut(RecoveryProgress) + Send + 'static,
    ) -> Result<Self> {
        block_on(crate::Store::open_with_progress(path, options, progress)).map(Self)
    }

    /// See [`crate::Store::queue`].
    ///
    /// # Errors
    /// As there.
    pub fn queue<N>(&self, name: N) -> Result<Queue>
    where
        N: TryInto<QueueName>,
        Error: From<N::Error>,
    {
        self.0.queue(name).map(Queue)
    }

    /// See [`crate::Store::batch`].
    pub fn batch(&self) -> Batch {
        Batch(self.0.batch())
    }

    /// See [`crate::Store::report`].
    #[must_use]
    pub fn report(&self) -> &OpenReport {
        self.0.report()
    }

    /// See [`crate::Store::id`].
    #[must_use]
    pub fn id(&self) -> StoreId {
        self.0.id()
    }

    /// See [`crate::Store::path`].
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    blocking! {
        queues() -> Vec<QueueStats>;
        stats() -> StoreStats;
        ack(receipt: &Receipt) -> ();
        extend(receipt: &Receipt, by: Duration) -> ();
        nack(receipt: &Receipt, nack: Nack) -> ();
        release(receipt: &Receipt) -> ();
        reject(receipt: &Receipt, reason: impl Into<String>) -> ();
        ack_many(receipts: impl IntoIterator<Item = Receipt>) -> Vec<Result<()>>;
        rebuild_index() -> RebuildReport;
        sync() -> Lsn;
        durable_lsn() -> Lsn;
        close() -> ();
        close_within(grace: Duration) -> ();
    }
}

/// See [`crate::Queue`].
#[derive(Clone, Debug)]
pub struct Queue(crate::Queue);

impl Queue {
    /// See [`crate::Queue::name`].
    #[must_use]
    pub fn name(&self) -> &QueueName {
        self.0.name()
    }

    /// See [`crate::Queue::receive`].
    pub fn receive(&self) -> Receive {
        Receive(self.0.receive())
    }

    /// See [`crate::Queue::send_batch`].
    ///
    /// # Errors
    /// As there.
    pub fn send_batch<M: Into<NewMessage>>(&self, messages: impl IntoIterator<Item = M>) -> Result<Vec<MessageId>> {
        block_on(self.0.send_batch(messages))
    }

    blocking! {
        send(message: impl Into<NewMessage>) -> MessageId;
        try_send(message: impl Into<NewMessage>) -> MessageId;
        ack_many(receipts: impl IntoIterator<Item = Receipt>) -> Vec<Result<()>>;
        extend_many(receipts: impl IntoIterator<Item = Receipt>, by: Duration) -> Vec<Result<()>>;
        nack_many(receipts: impl IntoIterator<Item = Receipt>, nack: Nack) -> Vec<Result<()>>;
        release_many(receipts: impl IntoIterator<Item = Receipt>) -> Vec<Result<()>>;
        reject_many(receipts: impl IntoIterator<Item = Receipt>, reason: impl Into<String>) -> Vec<Result<()>>;
        redrive(filter: RedriveFilter, max: impl Into<Option<u64>>) -> u64;
        peek(state: impl Into<Option<State>>, max: usize) -> Vec<MessageView>;
        stats() -> QueueStats;
        purge(states: &[State]) -> u64;
        pause() -> ();
        resume() -> ();
        create(options: impl Into<Option<QueueOptions>>) -> ();
        configure(options: QueueOptions) -> ();
        delete(force: bool) -> u64;
    }
}

/// See [`crate::Receive`].
#[derive(Clone, Debug)]
#[must_use = "nothing is received before one() or many() is called"]
pub struct Receive(crate::Receive);

impl Receive {
    /// See [`crate::Receive::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self(self.0.wait(wait))
    }

    /// See [`crate::Receive::max`].
    pub fn max(self, max: usize) -> Self {
        Self(self.0.max(max))
    }

    /// See [`crate::Receive::visibility`].
    pub fn visibility(self, visibility: Duration) -> Self {
        Self(self.0.visibility(visibility))
    }

    /// See [`crate::Receive::one`].
    ///
    /// # Errors
    /// As there.
    pub fn one(self) -> Result<Option<Delivery>> {
        Ok(block_on(self.0.one())?.map(Delivery))
    }

    /// See [`crate::Receive::many`].
    ///
    /// # Errors
    /// As there.
    pub fn many(self) -> Result<Vec<Delivery>> {
        Ok(block_on(self.0.many())?.into_iter().map(Delivery).collect())
    }
}

/// See [`crate::Delivery`], whose readers it has: body, attributes, counts.
#[derive(Clone, Debug)]
pub struct Delivery(crate::Delivery);

impl Delivery {
    blocking! {
        ack() -> ();
        ack_lazily() -> ();
        extend(by: Duration) -> ();
        nack() -> ();
        nack_with(nack: Nack) -> ();
        release() -> ();
        reject(reason: impl Into<String>) -> ();
    }

    /// See [`crate::Delivery::into_body`].
    #[must_use]
    pub fn into_body(self) -> Vec<u8> {
        self.0.into_body()
    }
}

impl Deref for Delivery {
    type Target = crate::Delivery;

    fn deref(&self) -> &crate::Delivery {
        &self.0
    }
}

impl AsReceipt for Delivery {
    fn as_receipt(&self) -> Receipt {
        self.0.receipt()
    }
}

/// See [`crate::Batch`].
#[derive(Debug)]
#[must_use = "nothing happens before commit()"]
pub struct Batch(crate::Batch);

impl Batch {
    /// See [`crate::Batch::send`].
    pub fn send(&mut self, queue: &Queue, message: impl Into<NewMessage>) -> &mut Self {
        self.0.send(&queue.0, message);
        self
    }

    /// See [`crate::Batch::ack`].
    pub fn ack(&mut self, delivery: impl AsReceipt) -> &mut Self {
        self.0.ack(delivery);
        self
    }

    /// See [`crate::Batch::nack`].
    pub fn nack(&mut self, delivery: impl AsReceipt, nack: Nack) -> &mut Self {
        self.0.nack(delivery, nack);
        self
    }

    /// See [`crate::Batch::extend`].
    pub fn extend(&mut self, delivery: impl AsReceipt, by: Duration) -> &mut Self {
        self.0.extend(delivery, by);
        self
    }

    /// See [`crate::Batch::release`].
    pub fn release(&mut self, delivery: impl AsReceipt) -> &mut Self {
        self.0.release(delivery);
        self
    }

    /// See [`crate::Batch::reject`].
    pub fn reject(&mut self, delivery: impl AsReceipt, reason: impl Into<String>) -> &mut Self {
        self.0.reject(delivery, reason);
        self
    }

    /// See [`crate::Batch::commit`].
    ///
    /// # Errors
    /// As there.
    pub fn commit(self) -> Result<Vec<MessageId>> {
        block_on(self.0.commit())
    }
}
