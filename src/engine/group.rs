//! What one frame gathers before it is written: records, answers, changes, questions.

use tokio::sync::OwnedSemaphorePermit;

use crate::engine::applier::{Ask, Change};
use crate::engine::pending::Answered;
use crate::engine::wait::{Reply, ReplyTo};
use crate::error::{Error, Result};
use crate::log::{FRAME_HEADER_LEN, FrameStart};
use crate::types::Timestamp;

/// What one frame gathers.
pub(crate) struct Group {
    /// Room for the header, then the payload.
    pub(crate) frame: Vec<u8>,
    pub(crate) start: FrameStart,
    /// Most bytes the payload may grow to.
    pub(crate) room: usize,
    /// Most bytes of it that are written before the requests are decided: the rest is theirs.
    pub(crate) own: usize,
    pub(crate) records: u32,
    pub(crate) now: Timestamp,
    pub(crate) changes: Vec<Change>,
    pub(crate) replies: Vec<Answered>,
    /// Something in it must be on disk before anyone is answered.
    pub(crate) strict: bool,
    /// It is one request's alone: whatever else is to be done comes in the next turn, which follows at once.
    pub(crate) alone: bool,
    /// Why nothing can be written in this turn.
    pub(crate) refusal: Option<Error>,
    /// Why nothing that adds to the store can.
    pub(crate) send_refusal: Option<Error>,
    /// Questions for the index, asked when the frame is durable.
    pub(crate) asks: Vec<Ask>,
    /// Callers who wait for a sync of everything so far.
    pub(crate) syncs: Vec<ReplyTo>,
}

impl Group {
    pub(crate) fn new() -> Self {
        Self {
            frame: vec![0; FRAME_HEADER_LEN],
            start: FrameStart { segment: 0, payload_offset: 0 },
            room: 0,
            own: 0,
            records: 0,
            now: Timestamp::ZERO,
            changes: Vec::new(),
            replies: Vec::new(),
            strict: false,
            alone: false,
            refusal: None,
            send_refusal: None,
            asks: Vec::new(),
            syncs: Vec::new(),
        }
    }

    pub(crate) fn reset(&mut self, now: Timestamp) {
        self.frame.truncate(FRAME_HEADER_LEN);
        self.room = 0;
        self.own = 0;
        self.records = 0;
        self.now = now;
        self.strict = false;
        self.alone = false;
        self.refusal = None;
        self.send_refusal = None;
    }

    /// Whether a record of at most this many bytes still fits.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.refusal.is_none() && self.frame.len() - FRAME_HEADER_LEN + len <= self.room
    }

    /// The same for what comes before the requests.
    pub(crate) fn has_own_room(&self, len: usize) -> bool {
        self.has_room(len) && self.frame.len() - FRAME_HEADER_LEN + len <= self.own
    }

    pub(crate) fn reply(&mut self, to: ReplyTo, reply: Result<Reply>, room: Option<OwnedSemaphorePermit>) {
        self.replies.push((to, reply, room));
    }

    pub(crate) fn ask(&mut self, ask: Ask) {
        self.asks.push(ask);
    }

    pub(crate) fn sync_for(&mut self, to: ReplyTo) {
        self.syncs.push(to);
    }
}
