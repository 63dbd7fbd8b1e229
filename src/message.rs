//! What a user puts in and gets out: a new message, its attributes, and what is kept with a dead one.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::types::limits::{MAX_ATTRIBUTE_COUNT, MAX_ATTRIBUTES_LEN, MAX_DELAY};
use crate::types::{MessageId, QueueName, Timestamp};

/// The value of an attribute.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AttributeValue {
    /// Text.
    String(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl AttributeValue {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::String(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The text, if it is text.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            Self::Bytes(_) => None,
        }
    }
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<Vec<u8>> for AttributeValue {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<&[u8]> for AttributeValue {
    fn from(bytes: &[u8]) -> Self {
        Self::Bytes(bytes.to_owned())
    }
}

/// The attributes of a message: names and values beside the body, in order of name.
pub type Attributes = BTreeMap<String, AttributeValue>;

/// A message that is to be sent. Everything but the body has a default, so a body is enough:
///
/// ```
/// use reappear::NewMessage;
/// use std::time::Duration;
///
/// let plain: NewMessage = "cat.png".into();
/// let urgent = NewMessage::new("dog.png").priority(10).delay(Duration::from_secs(5)).attribute("kind", "photo");
/// # let _ = (plain, urgent);
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NewMessage {
    pub(crate) body: Vec<u8>,
    pub(crate) attributes: Attributes,
    pub(crate) priority: i16,
    pub(crate) delay: Duration,
    pub(crate) ttl: Option<Duration>,
}

impl NewMessage {
    /// A message with this body, receivable at once, of priority 0, that never expires.
    pub fn new(body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    /// Adds an attribute, or replaces the one of that name.
    #[must_use]
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<AttributeValue>) -> Self {
        self.attributes.insert(name.into(), value.into());
        self
    }

    /// Larger is handed out first; among equal priorities the order of sending holds.
    #[must_use]
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    /// Hidden for this long after it is sent.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Gone (or dead, if the queue says so) when it was not taken within this time after sending.
    /// A message that is in flight does not expire before it comes back.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Bytes this message takes of a request queue's room.
    pub(crate) fn weight(&self) -> usize {
        self.body.len() + attributes_len(&self.attributes)
    }

    /// Everything that can be told without the queue.
    pub(crate) fn validate(&self, max_body_len: usize) -> Result<()> {
        if self.body.len() > max_body_len {
            return Err(Error::invalid(format!("body has {} bytes; max_body_len is {max_body_len}", self.body.len())));
        }
        validate_attributes(&self.attributes)?;
        for (what, given) in [("delay", Some(self.delay)), ("ttl", self.ttl)] {
            if given.is_some_and(|given| given > MAX_DELAY) {
                return Err(Error::invalid(format!("{what} is longer than {} days", MAX_DELAY.as_secs() / 86_400)));
            }
        }
        if self.ttl.is_some_and(|ttl| ttl.is_zero() || ttl <= self.delay) {
            return Err(Error::invalid(
                "ttl is not longer than delay: the message would expire before it could be received",
            ));
        }
        Ok(())
    }
}

fn attributes_len(attributes: &Attributes) -> usize {
    attributes.iter().map(|(name, value)| name.len() + value.len()).sum()
}

fn validate_attributes(attributes: &Attributes) -> Result<()> {
    if attributes.len() > MAX_ATTRIBUTE_COUNT {
        return Err(Error::invalid(format!(
            "{} attributes given; at most {MAX_ATTRIBUTE_COUNT} are allowed",
            attributes.len()
        )));
    }
    let len = attributes_len(attributes);
    if len > MAX_ATTRIBUTES_LEN {
        return Err(Error::invalid(format!(
            "attributes have {len} bytes in all; at most {MAX_ATTRIBUTES_LEN} are allowed"
        )));
    }
    if attributes.contains_key("") {
        return Err(Error::invalid("an attribute has an empty name"));
    }
    Ok(())
}

impl<T: Into<Vec<u8>>> From<T> for NewMessage {
    fn from(body: T) -> Self {
        Self::new(body)
    }
}

/// What to say when giving a message back: how long to hide it, and why it failed.
///
/// ```
/// use reappear::Nack;
/// use std::time::Duration;
///
/// let later = Nack::new().delay(Duration::from_secs(30)).error("upstream answered 503");
/// # let _ = later;
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Nack {
    pub(crate) delay: Option<Duration>,
    pub(crate) error: Option<String>,
}

impl Nack {
    /// Hidden for the queue's back-off, without an error text.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Hidden for this long instead of the queue's back-off.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Why it failed, 4 KiB at most; kept with the message.
    #[must_use]
    pub fn error(mut self, error: impl Into<String>) -> Self {
        self.error = Some(error.into());
        self
    }
}

/// Why a message is dead, or was moved to a dead-letter queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DeadReason {
    /// `max_attempts` hand-outs did not settle it.
    MaxAttempts,
    /// A holder rejected it.
    Rejected,
    /// It expired, in a queue that keeps expired messages.
    Expired,
    /// Its body could not be read back from the disk.
    Unreadable,
}

impl DeadReason {
    /// The reason as one lower-case word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxAttempts => "max_attempts",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Unreadable => "unreadable",
        }
    }
}

impl std::fmt::Display for DeadReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// What is kept with a message that is dead or came by a dead-letter move.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Why.
    pub reason: DeadReason,
    /// When.
    pub at: Timestamp,
    /// The queue in which it died.
    pub origin: QueueName,
    /// Attempts used when it died.
    pub attempts: u32,
    /// The last error or rejection text, if one was given.
    pub error: Option<String>,
}

/// A message as [`peek`](crate::Queue::peek) shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MessageView {
    /// The message.
    pub id: MessageId,
    /// Its state at the time of the call.
    pub state: crate::State,
    /// Its body; empty when it is unreadable.
    pub body: Vec<u8>,
    /// Its attributes; empty when it is unreadable.
    pub attributes: Attributes,
    /// Why body and attributes cannot be read back from the disk, if they cannot.
    pub unreadable: Option<String>,
    /// Its priority.
    pub priority: i16,
    /// When it was sent.
    pub sent_at: Timestamp,
    /// From when on it can be received.
    pub visible_at: Timestamp,
    /// When it expires, if it does.
    pub expires_at: Option<Timestamp>,
    /// When it was first handed out, if it was.
    pub first_received_at: Option<Timestamp>,
    /// When it was last handed out, if it was.
    pub last_received_at: Option<Timestamp>,
    /// Hand-outs for life.
    pub receive_count: u32,
    /// Hand-outs that count towards `max_attempts`.
    pub attempts: u32,
    /// Epoch of the newest hand-out.
    pub epoch: u32,
    /// Text of the newest nack or rejection, if one was given.
    pub last_error: Option<String>,
    /// Present when it is dead or came by a dead-letter move.
    pub dead: Option<DeadLetter>,
}
