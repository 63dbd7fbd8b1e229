#![doc = include_str!("../README.md")]
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

pub mod blocking;
pub(crate) mod codec;
mod delivery;
pub(crate) mod engine;
pub(crate) mod env;
mod error;
pub(crate) mod index;
pub mod inspect;
pub(crate) mod lifecycle;
pub(crate) mod log;
mod message;
mod options;
mod queue;
pub(crate) mod record;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod typed;
mod types;

pub use delivery::{Delivery, Receive};
pub use engine::report::{IndexReport, OpenReport, RebuildReport, RecoveryProgress, TornTail};
pub use engine::stats::{Percentiles, QueueStats, StoreStats, TimeoutAdvice};
pub use engine::wait::RedriveFilter;
pub use error::{Damage, Error, ErrorKind};
pub use message::{AttributeValue, Attributes, DeadLetter, DeadReason, MessageView, Nack, NewMessage};
pub use options::{Backoff, Durability, OnOpen, Options, QueueOptions, Tail};
pub use queue::Queue;
pub use store::{AsReceipt, Batch, Store};
#[cfg(feature = "json")]
pub use typed::Json;
pub use typed::{Bincode, BodyFormat, Typed, TypedDelivery, TypedReceive};
pub use types::entry::State;
pub use types::id::{MessageId, StoreId};
pub use types::kept_for::KeptFor;
pub use types::lsn::Lsn;
pub use types::name::QueueName;
pub use types::receipt::Receipt;
pub use types::time::Timestamp;
