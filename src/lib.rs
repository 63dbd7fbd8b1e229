//! Reappear: a durable, disk-backed queue.
#![deny(missing_docs)]
#![deny(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    clippy::too_many_lines,
    clippy::todo,
    clippy::unimplemented,
    clippy::dbg_macro
)]

pub(crate) mod codec;
pub(crate) mod env;
mod error;
mod message;
mod options;
pub(crate) mod record;
#[cfg(feature = "testing")]
pub mod testing;
mod types;

pub use error::{Damage, Error, ErrorKind};
pub use message::{AttributeValue, Attributes, DeadLetter, DeadReason, MessageView, NewMessage};
pub use options::{Backoff, Durability, OnOpen, Options, QueueOptions, Tail};
pub use types::entry::State;
pub use types::id::{MessageId, StoreId};
pub use types::lsn::Lsn;
pub use types::name::QueueName;
pub use types::receipt::Receipt;
pub use types::time::Timestamp;
