//! Options of a store and of a queue, with their checks.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::types::QueueName;
use crate::types::limits::{DEFAULT_MAX_BODY_LEN, MAX_BODY_LEN, MAX_DELAY, MAX_VISIBILITY};
use crate::types::time::millis_up;

/// When a write counts as done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Durability {
    /// A call returns after its record is on disk (fdatasync). Nothing acknowledged is ever lost.
    #[default]
    Always,
    /// A call returns after its record was given to the kernel; the disk follows within this time.
    /// A power cut can lose that much acknowledged work; the death of the process loses none.
    Interval(Duration),
    /// A call returns after its record was given to the kernel, which writes it when it likes. A
    /// power cut can lose what the kernel had not written, typically 30 s; the death of the process
    /// loses none.
    Os,
}

impl std::fmt::Display for Durability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Always => f.write_str("always: nothing acknowledged is lost"),
            Self::Interval(d) => write!(f, "interval: a power cut may lose the last {d:?}"),
            Self::Os => f.write_str("os: a power cut may lose what the kernel had not written"),
        }
    }
}

/// What happens at open to messages that were in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum OnOpen {
    /// They stay hidden until their deadline; their receipts stay good. For holders that outlive
    /// the process that embeds the store.
    #[default]
    Keep,
    /// They are receivable at once, attempts stay counted, their receipts are stale. For holders
    /// that lived in this process.
    Release,
}

/// What to do with a last frame that is damaged in a way a power cut does not explain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Tail {
    /// Refuse to open: a person should look.
    #[default]
    Refuse,
    /// Copy it to quarantine, cut it off and go on. Never applied to what is proven durable.
    Truncate,
}

/// How a store is opened. `Options::default()` is safe as it is.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) durability: Durability,
    pub(crate) create: bool,
    pub(crate) create_queues: bool,
    pub(crate) on_open: OnOpen,
    pub(crate) tail: Tail,
    pub(crate) segment_len: u32,
    pub(crate) max_body_len: usize,
    pub(crate) max_pending_len: usize,
    pub(crate) allow_network_fs: bool,
    pub(crate) queue_defaults: QueueOptions,
    pub(crate) window: usize,
    pub(crate) max_amplification: u32,
    pub(crate) max_store_bytes: Option<u64>,
    pub(crate) rebuild_index: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::Always,
            create: true,
            create_queues: true,
            on_open: OnOpen::Keep,
            tail: Tail::Refuse,
            segment_len: 64 * 1024 * 1024,
            max_body_len: DEFAULT_MAX_BODY_LEN,
            max_pending_len: 64 * 1024 * 1024,
            allow_network_fs: false,
            queue_defaults: QueueOptions::default(),
            window: 256 * 1024,
            max_amplification: 2,
            max_store_bytes: None,
            rebuild_index: false,
        }
    }
}

/// Smallest segment, in bytes: a header, one small frame, a footer.
pub(crate) const MIN_SEGMENT_LEN: u32 = 4 * 1024;
/// Largest segment, in bytes.
pub(crate) const MAX_SEGMENT_LEN: u32 = 1024 * 1024 * 1024;

impl Options {
    /// The defaults: durable, created if missing, nothing to configure to be safe.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// When a write counts as done. Default: [`Durability::Always`].
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Whether a missing store is created. Default: yes.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Whether sending to an unknown queue creates it. Default: yes.
    #[must_use]
    pub fn create_queues(mut self, create_queues: bool) -> Self {
        self.create_queues = create_queues;
        self
    }

    /// What happens at open to messages that were in flight. Default: [`OnOpen::Keep`].
    #[must_use]
    pub fn on_open(mut self, on_open: OnOpen) -> Self {
        self.on_open = on_open;
        self
    }

    /// What to do with an ambiguous last frame. Default: [`Tail::Refuse`].
    #[must_use]
    pub fn tail(mut self, tail: Tail) -> Self {
        self.tail = tail;
        self
    }

    /// Length of new log segments in bytes, 4 KiB to 1 GiB. Segments that are there keep theirs.
    /// Default: 64 MiB.
    #[must_use]
    pub fn segment_len(mut self, segment_len: u32) -> Self {
        self.segment_len = segment_len;
        self
    }

    /// Longest body accepted, in bytes, 16 MiB at most. Longer ones that are there are still
    /// delivered. Default: 1 MiB.
    #[must_use]
    pub fn max_body_len(mut self, max_body_len: usize) -> Self {
        self.max_body_len = max_body_len;
        self
    }

    /// Most bytes of requests that wait for the log at a time; beyond it calls wait, and `try_`
    /// calls answer [`Full`](crate::ErrorKind::Full). Default: 64 MiB.
    #[must_use]
    pub fn max_pending_len(mut self, max_pending_len: usize) -> Self {
        self.max_pending_len = max_pending_len;
        self
    }

    /// Whether a network file system is accepted, where locks and syncs may not hold. Default: no.
    #[must_use]
    pub fn allow_network_fs(mut self, allow: bool) -> Self {
        self.allow_network_fs = allow;
        self
    }

    /// Options of queues that are created without any of their own.
    #[must_use]
    pub fn queue_defaults(mut self, defaults: QueueOptions) -> Self {
        self.queue_defaults = defaults;
        self
    }

    /// Most messages of waiting backlog that are held in memory, over all queues, about 200 bytes
    /// each. Default: 262,144.
    #[must_use]
    pub fn window(mut self, window: usize) -> Self {
        self.window = window;
        self
    }

    /// How large the log may be for each byte that is live in it, 2 to 100, before what is live in its
    /// oldest part is written again at its end. More means less to write and more disk used. Default: 2.
    #[must_use]
    pub fn max_amplification(mut self, max_amplification: u32) -> Self {
        self.max_amplification = max_amplification;
        self
    }

    /// Most bytes that the store may take on disk, log and index together; at least 4 segments and 16 MiB
    /// (for a moment, while the index is renewed, a new one comes on top). When it is near, sends answer [`Full`](crate::ErrorKind::Full) while everything that frees space goes
    /// on, as on a full disk. Default: none, the disk is the limit.
    #[must_use]
    pub fn max_store_bytes(mut self, max_store_bytes: impl Into<Option<u64>>) -> Self {
        self.max_store_bytes = max_store_bytes.into();
        self
    }

    /// Whether the index is built anew from the log at this open, whatever state it is in. Default: no.
    #[must_use]
    pub fn rebuild_index(mut self, rebuild: bool) -> Self {
        self.rebuild_index = rebuild;
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let len = self.segment_len;
        if !(MIN_SEGMENT_LEN..=MAX_SEGMENT_LEN).contains(&len) || !len.is_multiple_of(512) {
            return Err(Error::invalid(format!(
                "segment_len is {len}; give {MIN_SEGMENT_LEN} to {MAX_SEGMENT_LEN}, a multiple of 512"
            )));
        }
        if self.max_body_len > MAX_BODY_LEN {
            return Err(Error::invalid(format!(
                "max_body_len is {}; at most {MAX_BODY_LEN} are allowed",
                self.max_body_len
            )));
        }
        if self.max_pending_len < self.max_body_len || self.max_pending_len > 1024 * 1024 * 1024 {
            return Err(Error::invalid(format!(
                "max_pending_len is {}; give at least max_body_len ({}) and at most 1 GiB",
                self.max_pending_len, self.max_body_len
            )));
        }
        if matches!(self.durability, Durability::Interval(d) if d.is_zero() || d > Duration::from_secs(3600)) {
            return Err(Error::invalid(
                "durability interval must be more than 0 and at most an hour; use Always to sync each write",
            ));
        }
        if self.window < 8 {
            return Err(Error::invalid(format!("window is {}; give at least 8 messages", self.window)));
        }
        if !(2..=100).contains(&self.max_amplification) {
            return Err(Error::invalid(format!("max_amplification is {}; give 2 to 100", self.max_amplification)));
        }
        self.queue_defaults.validate()
    }
}

/// Back-off after a nack that names no delay: `initial × factor^(attempts-1)`, at most `max`,
/// varied by up to `jitter_percent` either way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Backoff {
    /// Delay after the first attempt, in milliseconds.
    pub initial_ms: u64,
    /// Growth per attempt.
    pub factor: u32,
    /// Longest delay, in milliseconds.
    pub max_ms: u64,
    /// 0 to 100.
    pub jitter_percent: u8,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial_ms: 1000, factor: 2, max_ms: 300_000, jitter_percent: 20 }
    }
}

impl Backoff {
    /// No delay at all: a nacked message is receivable at once.
    pub const NONE: Self = Self { initial_ms: 0, factor: 1, max_ms: 0, jitter_percent: 0 };

    /// Exponential from `initial`, doubling, up to `max`, with 20 % jitter.
    #[must_use]
    pub fn exponential(initial: Duration, max: Duration) -> Self {
        Self { initial_ms: millis_up(initial), max_ms: millis_up(max), ..Self::default() }
    }

    /// The same delay each time, without jitter.
    #[must_use]
    pub fn fixed(delay: Duration) -> Self {
        Self { initial_ms: millis_up(delay), factor: 1, max_ms: millis_up(delay), jitter_percent: 0 }
    }

    /// The delay after this many attempts. `dice` is any number; the same number gives the same delay.
    pub(crate) fn delay(&self, attempts: u32, dice: u64) -> Duration {
        let growth = u64::from(self.factor).saturating_pow(attempts.saturating_sub(1));
        let base = self.initial_ms.saturating_mul(growth).min(self.max_ms);
        let spread = base / 100 * u64::from(self.jitter_percent) + base % 100 * u64::from(self.jitter_percent) / 100;
        Duration::from_millis(base - spread + dice % (2 * spread + 1))
    }
}

/// Options of one queue, durable with it. Begin with [`new`](Self::new) and set what differs.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueueOptions {
    /// How long a received message stays hidden, in milliseconds.
    pub visibility_timeout_ms: u64,
    /// Longest visibility timeout a call may ask for, in milliseconds.
    pub max_visibility_timeout_ms: u64,
    /// Hand-outs after which a message that was not settled is dead; `None`: never.
    pub max_attempts: Option<u32>,
    /// Delay after a nack that names none.
    pub backoff: Backoff,
    /// Most messages in flight at a time; `None`: no limit.
    pub max_in_flight: Option<u32>,
    /// The queue that dead messages are moved to; `None`: they stay as Dead.
    pub dead_letter: Option<String>,
    /// Whether expired messages become Dead instead of going away.
    pub keep_expired: bool,
    /// Whether a receipt is stale as soon as its deadline has passed.
    pub strict_deadline: bool,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            visibility_timeout_ms: 60_000,
            max_visibility_timeout_ms: 43_200_000,
            max_attempts: Some(10),
            backoff: Backoff::default(),
            max_in_flight: None,
            dead_letter: None,
            keep_expired: false,
            strict_deadline: false,
        }
    }
}

impl QueueOptions {
    /// The defaults: 60 s visibility timeout (12 h at most), dead after 10 attempts, back-off from
    /// 1 s to 5 min, no limit in flight.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How long a received message stays hidden. Default: 60 s.
    #[must_use]
    pub fn visibility_timeout(mut self, timeout: Duration) -> Self {
        self.visibility_timeout_ms = millis_up(timeout);
        self
    }

    /// Longest visibility timeout a call may ask for. Default: 12 h; at most 366 days.
    #[must_use]
    pub fn max_visibility_timeout(mut self, timeout: Duration) -> Self {
        self.max_visibility_timeout_ms = millis_up(timeout);
        self
    }

    /// Hand-outs after which a message that was not settled is dead; `None`: never. Default: 10.
    #[must_use]
    pub fn max_attempts(mut self, max_attempts: impl Into<Option<u32>>) -> Self {
        self.max_attempts = max_attempts.into();
        self
    }

    /// Delay after a nack that names none.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Most messages in flight at a time; `None`: no limit. Default: none.
    #[must_use]
    pub fn max_in_flight(mut self, max_in_flight: impl Into<Option<u32>>) -> Self {
        self.max_in_flight = max_in_flight.into();
        self
    }

    /// The queue that dead messages are moved to; `None`: they stay here as Dead. It must exist
    /// when this is configured. Default: none.
    #[must_use]
    pub fn dead_letter(mut self, queue: impl Into<Option<QueueName>>) -> Self {
        self.dead_letter = queue.into().map(|name| name.as_str().to_owned());
        self
    }

    /// Whether expired messages become Dead instead of going away. Default: no.
    #[must_use]
    pub fn keep_expired(mut self, keep: bool) -> Self {
        self.keep_expired = keep;
        self
    }

    /// Whether a receipt is stale as soon as its deadline has passed, even if nobody else received
    /// the message meanwhile. Default: no.
    #[must_use]
    pub fn strict_deadline(mut self, strict: bool) -> Self {
        self.strict_deadline = strict;
        self
    }

    pub(crate) fn visibility(&self) -> Duration {
        Duration::from_millis(self.visibility_timeout_ms)
    }

    pub(crate) fn max_visibility(&self) -> Duration {
        Duration::from_millis(self.max_visibility_timeout_ms)
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let max = millis_up(MAX_VISIBILITY);
        if self.max_visibility_timeout_ms == 0 || self.max_visibility_timeout_ms > max {
            return Err(Error::invalid(format!(
                "max_visibility_timeout must be more than 0 and at most {} days",
                max / 86_400_000
            )));
        }
        if self.visibility_timeout_ms == 0 || self.visibility_timeout_ms > self.max_visibility_timeout_ms {
            return Err(Error::invalid(format!(
                "visibility_timeout must be more than 0 and at most max_visibility_timeout ({:?})",
                self.max_visibility()
            )));
        }
        if self.max_attempts == Some(0) {
            return Err(Error::invalid(
                "max_attempts is 0: no message could ever be received; give at least 1, or None for no limit",
            ));
        }
        if self.max_in_flight == Some(0) {
            return Err(Error::invalid("max_in_flight is 0: nothing could be received; pause the queue instead"));
        }
        let backoff = &self.backoff;
        if backoff.jitter_percent > 100 || backoff.factor == 0 || backoff.max_ms > millis_up(MAX_DELAY) {
            return Err(Error::invalid(
                "backoff needs a factor of at least 1, jitter of at most 100 percent and a max of at most 100 years",
            ));
        }
        if let Some(name) = &self.dead_letter {
            QueueName::new(name)?;
        }
        Ok(())
    }
}
