//! How callers and the committer meet: requests go into an inbox, answers come back as futures.
//!
//! ```text
//! caller ──room──► inbox ──► committer ──reply──► caller
//!                    ▲                              │ dropped before it saw its deliveries
//!                    └───────── given back ◄────────┘
//! ```
//!
//! # Invariants
//! 17: every request is answered: if the committer goes away, its end of the answer is dropped and
//! the caller gets an error. A hand-out that nobody saw is given back before any later request is
//! decided.
//!
//! # Locking
//! `inbox` is held for a push or a swap, never over I/O and never while another lock is taken.
//!
//! # Not here
//! What requests do: `decide.rs`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, oneshot};

use crate::engine::applier::Answer;
use crate::engine::report::RebuildReport;
use crate::engine::space::Space;
use crate::engine::stats::{QueueStats, StoreStats};
use crate::env::store_clock::StoreClock;
use crate::error::{Error, ErrorKind, Result};
use crate::lifecycle::Settle;
use crate::log::Segments;
use crate::message::{DeadReason, NewMessage};
use crate::options::{Durability, Options, QueueOptions};
use crate::record::{Bad, Detail, Raw, Record};
use crate::types::{Entry, Lsn, MessageId, Position, QueueName, Receipt, State, StoreId, Timestamp};

/// Which dead messages are redriven. Everything that is given must hold.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RedriveFilter {
    /// Only these.
    pub ids: Option<Vec<MessageId>>,
    /// Only those that died for this reason.
    pub reason: Option<DeadReason>,
}

/// One step of a [`Batch`](crate::Batch).
#[derive(Clone, Debug)]
pub(crate) enum BatchItem {
    Settle(Receipt, Settle),
    Send(QueueName, NewMessage),
}

/// What a caller asks for.
#[derive(Debug)]
pub(crate) enum Command {
    Create {
        queue: QueueName,
        options: Option<QueueOptions>,
    },
    Configure {
        queue: QueueName,
        options: QueueOptions,
    },
    Pause {
        queue: QueueName,
        paused: bool,
    },
    Delete {
        queue: QueueName,
        force: bool,
    },
    Send {
        queue: QueueName,
        messages: Vec<NewMessage>,
    },
    Receive {
        queue: QueueName,
        max: usize,
        wait: Duration,
        visibility: Option<Duration>,
    },
    Settle {
        queue: Option<QueueName>,
        items: Vec<(Receipt, Settle)>,
    },
    Batch(Vec<BatchItem>),
    Redrive {
        queue: QueueName,
        filter: RedriveFilter,
        max: u64,
    },
    Purge {
        queue: QueueName,
        states: Vec<State>,
    },
    Peek {
        queue: QueueName,
        state: Option<State>,
        max: usize,
    },
    /// Where messages in flight stand now; those that are not any more are left out.
    Find(Vec<Receipt>),
    QueueStats(QueueName),
    Queues,
    StoreStats,
    RebuildIndex,
    Sync,
}

/// What a caller gets.
#[derive(Debug)]
pub(crate) enum Reply {
    Done,
    Ids(Vec<MessageId>),
    Grants(Vec<Grant>),
    Each(Vec<Result<()>>),
    Count(u64),
    Seen(Vec<Seen>),
    Queues(Vec<QueueStats>),
    Store(Box<StoreStats>),
    Rebuilt(RebuildReport),
    Durable(Lsn),
}

/// An entry as it was at the time of a peek, with what is needed to show it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) entry: Entry,
    pub(crate) state: State,
}

pub(crate) type ReplyTo = oneshot::Sender<Result<Reply>>;

/// A request in the inbox.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) reply: ReplyTo,
    /// A weaker durability than the store's, for this call.
    pub(crate) lazy: bool,
    /// Room in the inbox, given back when the request is answered.
    pub(crate) room: Option<OwnedSemaphorePermit>,
}

/// One hand-out on its way to the caller. Until it is [kept](Self::keep), dropping it gives the
/// message back with its attempt refunded.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) receipt: Receipt,
    pub(crate) entry: Entry,
    shared: Option<Arc<Shared>>,
}

impl Grant {
    pub(crate) fn new(receipt: Receipt, entry: Entry, shared: &Arc<Shared>) -> Self {
        Self { receipt, entry, shared: Some(Arc::clone(shared)) }
    }

    /// The caller has it now.
    pub(crate) fn keep(&mut self) {
        self.shared = None;
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            shared.give_back(self.receipt);
        }
    }
}

/// What waits for the committer.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) requests: VecDeque<Request>,
    /// Hand-outs that nobody saw: decided before any request.
    pub(crate) given_back: Vec<Receipt>,
    pub(crate) answers: VecDeque<Answer>,
    /// The store is being closed; settles are taken until then.
    pub(crate) closing: Option<Timestamp>,
    /// Something outside the inbox changed: the clock was moved by hand, a sync is done, the store is being closed.
    pub(crate) nudged: bool,
    /// So many requests wake the committer; 0: it is awake.
    wakes_at: usize,
}

impl Inbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty() && !self.is_urgent()
    }

    /// Whether there is something else than requests.
    fn is_urgent(&self) -> bool {
        !self.given_back.is_empty() || !self.answers.is_empty() || self.nudged
    }

    /// Takes everything out; a close stays known.
    pub(crate) fn take(&mut self) -> Self {
        let closing = self.closing;
        std::mem::replace(self, Self { closing, ..Self::default() })
    }
}

/// What callers, committer and applier share.
pub(crate) struct Shared {
    pub(crate) store: StoreId,
    pub(crate) seed: u32,
    pub(crate) options: Options,
    pub(crate) clock: StoreClock,
    pub(crate) segments: Arc<Segments>,
    pub(crate) space: Space,
    inbox: Mutex<Inbox>,
    signal: Condvar,
    room: Arc<Semaphore>,
    closed: AtomicBool,
    /// Why a thread of the store died, if one did.
    died: OnceLock<Error>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("store", &self.store).finish_non_exhaustive()
    }
}

/// Bytes of room a request takes besides what it carries.
const REQUEST_WEIGHT: usize = 256;

impl Command {
    /// Whether all it does is to settle deliveries: taken while a store closes.
    fn only_settles(&self) -> bool {
        match self {
            Self::Settle { .. } => true,
            Self::Batch(items) => items.iter().any(|item| matches!(item, BatchItem::Settle(..))),
            _ => false,
        }
    }

    /// Whether it adds to what the store must keep: refused first when space is short.
    pub(crate) fn adds(&self) -> bool {
        match self {
            Self::Send { .. } | Self::Create { .. } => true,
            Self::Batch(items) => items.iter().any(|item| matches!(item, BatchItem::Send(..))),
            _ => false,
        }
    }

    /// Bytes of room it takes in the inbox.
    fn weight(&self) -> usize {
        let carried = match self {
            Self::Send { messages, .. } => messages.iter().map(|m| m.weight() + REQUEST_WEIGHT).sum(),
            Self::Settle { items, .. } => items.iter().map(|(_, settle)| settle.text_len() + REQUEST_WEIGHT).sum(),
            Self::Batch(items) => items
                .iter()
                .map(|item| match item {
                    BatchItem::Settle(_, settle) => settle.text_len() + REQUEST_WEIGHT,
                    BatchItem::Send(_, message) => message.weight() + REQUEST_WEIGHT,
                })
                .sum(),
            _ => 0,
        };
        carried + REQUEST_WEIGHT
    }
}

impl Shared {
    pub(crate) fn new(
        store: StoreId,
        options: Options,
        clock: StoreClock,
        segments: Arc<Segments>,
        space: Space,
    ) -> Self {
        Self {
            store,
            seed: store.seed(),
            room: Arc::new(Semaphore::new(options.max_pending_len)),
            options,
            clock,
            segments,
            space,
            inbox: Mutex::default(),
            signal: Condvar::new(),
            closed: AtomicBool::new(false),
            died: OnceLock::new(),
        }
    }

    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // A panic while it is held leaves it whole: every change is one push or one swap.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks and waits for the answer.
    ///
    /// Cancel safe up to the point where the request is in the inbox; from there it is carried out
    /// even if the caller goes away. Deliveries that the caller did not see are given back.
    pub(crate) async fn call(self: &Arc<Self>, command: Command, lazy: bool) -> Result<Reply> {
        let room = self.admit(command.weight()).await?;
        let answer = self.submit(command, lazy, Some(room))?;
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }

    /// The same, but answers `Full` instead of waiting for room.
    pub(crate) async fn try_call(self: &Arc<Self>, command: Command) -> Result<Reply> {
        let weight = self.check_weight(command.weight())?;
        let room = match Arc::clone(&self.room).try_acquire_many_owned(weight) {
            Ok(room) => room,
            Err(TryAcquireError::Closed) => return Err(self.gone()),
            Err(TryAcquireError::NoPermits) => {
                return Err(Error::new(
                    ErrorKind::Full,
                    format!(
                        "{} bytes of requests wait for the log already (max_pending_len)",
                        self.options.max_pending_len
                    ),
                ));
            }
        };
        let answer = self.submit(command, false, Some(room))?;
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }

    fn check_weight(&self, weight: usize) -> Result<u32> {
        match u32::try_from(weight) {
            Ok(small) if weight <= self.options.max_pending_len => Ok(small),
            _ => Err(Error::invalid(format!(
                "the call carries {weight} bytes; at most max_pending_len ({}) can be taken at once",
                self.options.max_pending_len
            ))),
        }
    }

    async fn admit(&self, weight: usize) -> Result<OwnedSemaphorePermit> {
        let weight = self.check_weight(weight)?;
        Arc::clone(&self.room).acquire_many_owned(weight).await.map_err(|_| self.gone())
    }

    /// Puts a request into the inbox.
    pub(crate) fn submit(
        &self,
        command: Command,
        lazy: bool,
        room: Option<OwnedSemaphorePermit>,
    ) -> Result<oneshot::Receiver<Result<Reply>>> {
        let (reply, answer) = oneshot::channel();
        let wakes = {
            let mut inbox = self.inbox();
            let taken = match inbox.closing {
                None => true,
                Some(until) => command.only_settles() && self.clock.now() < until,
            };
            if !taken || self.closed.load(Ordering::Acquire) {
                return Err(self.gone());
            }
            inbox.requests.push_back(Request { command, reply, lazy, room });
            // Once: a call for each request would cost more than the request.
            let wakes = inbox.wakes_at > 0 && inbox.requests.len() >= inbox.wakes_at;
            if wakes {
                inbox.wakes_at = 0;
            }
            wakes
        };
        if wakes {
            self.signal.notify_one();
        }
        Ok(answer)
    }

    fn give_back(&self, receipt: Receipt) {
        self.inbox().given_back.push(receipt);
        self.signal.notify_one();
    }

    pub(crate) fn answer(&self, answer: Answer) {
        self.inbox().answers.push_back(answer);
        self.signal.notify_one();
    }

    /// Wakes the committer because the clock was moved.
    pub(crate) fn nudge(&self) {
        self.inbox().nudged = true;
        self.signal.notify_one();
    }

    /// Takes no more requests, except settles within `grace`; what is queued is finished.
    pub(crate) fn begin_close(&self, grace: Duration) {
        let until = self.clock.now().after(grace);
        {
            let mut inbox = self.inbox();
            inbox.closing = Some(inbox.closing.map_or(until, |earlier| earlier.min(until)));
            inbox.nudged = true;
        }
        self.signal.notify_one();
    }

    /// Whether a thread of the store died.
    pub(crate) fn has_died(&self) -> bool {
        self.died.get().is_some()
    }

    /// Sleeps until there are so many requests, something else is in the inbox, the store closes, or the
    /// time is up.
    pub(crate) fn wait_for_work(&self, timeout: Duration, requests: usize) {
        let mut inbox = self.inbox();
        inbox.wakes_at = requests;
        // Spurious and early wake-ups are fine: the committer looks again.
        let woken = self
            .signal
            .wait_timeout_while(inbox, timeout, |inbox| !inbox.is_urgent() && inbox.requests.len() < requests);
        woken.unwrap_or_else(PoisonError::into_inner).0.wakes_at = 0;
    }

    /// Sleeps until the applier has answered, or the time is up.
    pub(crate) fn wait_for_answer(&self, timeout: Duration) {
        let inbox = self.inbox();
        let woken = self.signal.wait_timeout_while(inbox, timeout, |inbox| inbox.answers.is_empty() && !inbox.nudged);
        drop(woken.unwrap_or_else(PoisonError::into_inner));
    }

    /// Nothing is answered any more.
    pub(crate) fn set_closed(&self) {
        self.closed.store(true, Ordering::Release);
        self.room.close();
        let left = std::mem::take(&mut *self.inbox());
        drop(left);
    }

    /// A thread of the store died.
    pub(crate) fn set_died(&self, error: Error) {
        tracing::error!(%error, "the store stopped");
        let _ = self.died.set(error);
        self.set_closed();
    }

    /// Why there is no answer.
    pub(crate) fn gone(&self) -> Error {
        self.died.get().cloned().unwrap_or_else(Error::closed)
    }

    pub(crate) fn durability(&self) -> Durability {
        self.options.durability
    }

    /// Reads the record at `at`, which must be about message `id`.
    ///
    /// # Errors
    /// `Corrupt` with the position when the bytes are not that record; `Io` when they cannot be read.
    pub(crate) fn read_record(&self, at: Position, id: MessageId) -> Result<(Record, Vec<u8>)> {
        let mut bytes = Vec::new();
        self.segments.read(at, &mut bytes)?;
        let bad = |what: String| {
            let file = self.segments.path(at.segment).unwrap_or_default();
            let damage = crate::error::Damage { file, offset: at.offset.into(), first_lsn: None, last_lsn: None };
            Error::corrupt(format!("message {id} cannot be read: {what}"), damage)
        };
        let raw = Raw::split(&bytes).map_err(|e| bad(e.to_string()))?;
        if raw.len != bytes.len() || !raw.is_intact(id, self.seed) {
            return Err(bad(Bad::Crc.to_string()));
        }
        let record =
            raw.decode().map_err(|e| bad(e.to_string()))?.ok_or_else(|| bad("its kind is unknown".to_owned()))?;
        let body_start = bytes.len() - raw.body.len();
        bytes.drain(..body_start);
        Ok((record, bytes))
    }

    /// The same; in place of one that is damaged, that it is. A message is not less whole for it.
    ///
    /// # Errors
    /// `NotFound` when its segment is gone; `Io`.
    pub(crate) fn read_detail_or_say(&self, entry: &Entry) -> Result<Detail> {
        match self.read_detail(entry) {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                Ok(Detail { error: Some(format!("its last error cannot be read: {error}")), dead: None })
            }
            result => result,
        }
    }

    /// What is kept with a message: its last error and how it died.
    pub(crate) fn read_detail(&self, entry: &Entry) -> Result<Detail> {
        if !entry.detail.is_some() {
            return Ok(Detail::default());
        }
        Ok(match self.read_record(entry.detail, entry.id)?.0 {
            Record::Nacked { detail: Some(detail), .. }
            | Record::Dead { detail, .. }
            | Record::Moved { detail, .. } => detail,
            Record::Relocated(relocated) => relocated.detail.unwrap_or_default(),
            other => {
                tracing::warn!(message = entry.id.0, kind = other.name(), "a detail stands in a record that has none");
                Detail::default()
            }
        })
    }
}
