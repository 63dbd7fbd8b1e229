//! Why the oldest segment of a log is still there.

use crate::types::{MessageId, QueueName, State};

/// What the oldest segment of a log is still there for.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KeptFor {
    /// It is the one that is written to.
    InUse,
    /// A message in it, or the last error of one. There may be more.
    Message {
        /// The message.
        id: MessageId,
        /// Its queue.
        queue: Option<QueueName>,
        /// Its state.
        state: State,
    },
    /// The definition of a queue.
    Queue {
        /// The queue.
        queue: Option<QueueName>,
    },
    /// Nothing but the next checkpoint, which lets it go.
    Checkpoint,
}

impl std::fmt::Display for KeptFor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = |queue: &Option<QueueName>| {
            queue.as_ref().map_or_else(|| "a queue".to_owned(), |queue| format!("queue {:?}", queue.as_str()))
        };
        match self {
            Self::InUse => f.write_str("it is being written"),
            Self::Message { id, queue, state } => write!(f, "message {id} in {} ({state})", name(queue)),
            Self::Queue { queue } => write!(f, "the definition of {}", name(queue)),
            Self::Checkpoint => f.write_str("nothing: it goes at the next checkpoint"),
        }
    }
}
