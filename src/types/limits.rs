//! The format's caps. What is read from disk is checked against these, never against today's
//! options, so that a store written with larger options still opens.

/// Longest body that can be configured, in bytes.
pub(crate) const MAX_BODY_LEN: usize = 16 * 1024 * 1024;
/// Longest body accepted unless configured otherwise, in bytes.
pub(crate) const DEFAULT_MAX_BODY_LEN: usize = 1024 * 1024;
/// Most attributes of one message.
pub(crate) const MAX_ATTRIBUTE_COUNT: usize = 64;
/// Most bytes of all names and values of one message's attributes.
pub(crate) const MAX_ATTRIBUTES_LEN: usize = 64 * 1024;
/// Longest queue name, in bytes.
pub(crate) const MAX_QUEUE_NAME_LEN: usize = 255;
/// Longest error or reason text kept with a message, in bytes.
pub(crate) const MAX_ERROR_LEN: usize = 4 * 1024;
/// Most messages one receive can ask for.
pub(crate) const MAX_RECEIVE_COUNT: usize = 1000;
/// Most bytes of the bincode part of a record: attributes, a queue's name and options, an error
/// text, and the fixed fields with room to spare.
pub(crate) const MAX_RECORD_META_LEN: usize = MAX_ATTRIBUTES_LEN + 2 * MAX_QUEUE_NAME_LEN + MAX_ERROR_LEN + 8 * 1024;
/// Most bytes of one frame's payload: one atomic group.
pub(crate) const MAX_PAYLOAD_LEN: usize = 64 * 1024 * 1024;
/// Longest visibility timeout that can be configured.
pub(crate) const MAX_VISIBILITY: std::time::Duration = std::time::Duration::from_secs(366 * 24 * 3600);
/// Longest delay or time to live, so that no sum of times comes near the end of the clock.
pub(crate) const MAX_DELAY: std::time::Duration = std::time::Duration::from_secs(100 * 366 * 24 * 3600);
