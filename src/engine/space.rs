//! Space: how much the log may still take, and when sends are refused so that everything that frees
//! space goes on.
//!
//! ```text
//! room:  rest of the active segment │ spare │ reserve │ what the disk, or `max_store_bytes`, still gives
//!        └─────────── must stay enough to receive and ack what the fullest segment holds ────────────┘
//! ```
//!
//! Sends never take the reserve: blocks that are there already and that nobody else on the disk can take.
//! When all but it is gone, or what is left would not do to drain the store, sends are refused.
//!
//! # Invariants
//! 17, 19. What is refused for lack of space was refused before anything of it was decided. A refusal is
//! not remembered: each send looks again.
//!
//! # Not here
//! Getting space back: `reclaim.rs`, `survey.rs`. Segments and the spare: `log/`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::commit::Committer;
use crate::engine::queues::Queue;
use crate::engine::wait::Request;
use crate::env::Fs;
use crate::error::{Error, ErrorKind, Result};
use crate::lifecycle::{self, Timeout};
use crate::log::{FRAME_HEADER_LEN, Room, Segments, SpareMaker};
use crate::options::Options;
use crate::record;
use crate::types::Entry;
use crate::types::limits::MAX_PAYLOAD_LEN;

/// Bytes of the log that it takes to receive and ack one message, each in a frame of its own: two blocks.
const DRAIN_LEN: u64 = 2 * 512;
/// Bytes that a message's record has more after it was carried: 56 were measured with a last error, 30 without.
const CARRIED_MORE_LEN: u64 = 56;
/// What a send takes at least, to tell whether space is short.
const SMALL_SEND_LEN: u64 = 2 * 1024;
/// Kept free in any case: frames for the end of a store and the like.
const MIN_KEPT_LEN: u64 = 64 * 1024;
/// Most bytes one frame gathers, unless a single request needs more.
const MAX_GROUP_LEN: usize = 8 * 1024 * 1024;
/// And of what no request asks for: hand-outs given back, timers, redrives, hand-outs to those who wait.
const MAX_OWN_LEN: usize = 8 * 1024 * 1024;
/// Hand-outs to waiting receivers for which one frame makes room.
const MAX_HANDED_OUT: usize = 4096;
/// Timers that one frame handles.
const MAX_TIMERS: usize = 1024;

/// What the threads of a store tell each other about space.
pub(crate) struct Space {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    segments: Arc<Segments>,
    spare: Arc<SpareMaker>,
    segment_len: u64,
    limit: Option<u64>,
    /// As the applier last saw it: bytes of the index on disk, live messages in the segment that has most of
    /// them, bytes that are live in the log, live messages.
    index_len: AtomicU64,
    fullest: AtomicU64,
    live_len: AtomicU64,
    /// Bytes of the longest segment: one is as long as its first frame.
    longest: AtomicU64,
    messages: AtomicU64,
    /// The last try to make a spare found no room: what the disk says is free cannot be had.
    is_tight: AtomicBool,
    reclaim_error: Mutex<Option<String>>,
}

impl Space {
    pub(crate) fn new(
        fs: Arc<dyn Fs>,
        dir: PathBuf,
        segments: Arc<Segments>,
        spare: Arc<SpareMaker>,
        options: &Options,
    ) -> Self {
        Self {
            fs,
            dir,
            segments,
            spare,
            segment_len: options.segment_len.into(),
            limit: options.max_store_bytes,
            index_len: AtomicU64::new(0),
            fullest: AtomicU64::new(0),
            live_len: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            is_tight: AtomicBool::new(false),
            reclaim_error: Mutex::new(None),
        }
    }

    /// The applier's figures.
    pub(crate) fn note_index(&self, index_len: u64, live_len: u64, messages: u64, fullest: u64) {
        self.live_len.store(live_len, Ordering::Relaxed);
        let longest = self.segments.list().into_iter().map(|segment| segment.len).max();
        self.longest.store(longest.unwrap_or(0), Ordering::Relaxed);
        self.messages.store(messages, Ordering::Relaxed);
        self.index_len.store(index_len, Ordering::Relaxed);
        self.fullest.store(fullest, Ordering::Relaxed);
    }

    /// Makes the reserve and the spare if there is room for them. `false`: there is none, look again later.
    pub(crate) fn make_spare(&self) -> bool {
        let budget = self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.store_len()));
        let made = self.spare.make(budget);
        if let Err(error) = &made {
            tracing::debug!(%error, "no spare segment could be made");
        }
        let is_tight = made.as_ref().is_err_and(|error| error.kind() == ErrorKind::Full);
        self.is_tight.store(is_tight, Ordering::Relaxed);
        made.is_ok()
    }

    pub(crate) fn is_tight(&self) -> bool {
        self.is_tight.load(Ordering::Relaxed)
    }

    /// Bytes of the log's files, with what is made ahead.
    pub(crate) fn log_len(&self) -> u64 {
        self.segments.disk_len() + self.spare_len()
    }

    /// Bytes of the files that are made ahead.
    pub(crate) fn spare_len(&self) -> u64 {
        self.spare.len_on_disk()
    }

    /// Bytes that the store takes on disk.
    pub(crate) fn store_len(&self) -> u64 {
        self.log_len() + self.index_len.load(Ordering::Relaxed)
    }

    /// Bytes that the disk has, whatever the store may take of it. Where it cannot be told, the writes
    /// themselves will.
    pub(crate) fn free_on_disk(&self) -> u64 {
        self.fs.info(&self.dir).map_or(u64::MAX, |info| info.available)
    }

    /// Bytes that the store can still get of the disk.
    pub(crate) fn available(&self) -> u64 {
        if self.is_tight() {
            return 0;
        }
        let free = self.free_on_disk();
        self.limit.map_or(free, |limit| free.min(limit.saturating_sub(self.store_len())))
    }

    /// Bytes of the log that can be written without asking the disk for more, `left` of them in the
    /// active segment.
    pub(crate) fn ready(&self, left: u64) -> u64 {
        let rooms = self.spare.rooms();
        left + rooms.spare + rooms.reserve
    }

    /// Bytes that must be there to drain the store: one segment after the other, or, where
    /// messages go in another order than they came, by carrying what is left of each, which needs room to
    /// begin with and leaves up to an eighth (see `survey.rs`) dead. And that the index grows by meanwhile.
    fn kept_len(&self, sent_here: u64) -> u64 {
        let in_order = DRAIN_LEN * self.fullest.load(Ordering::Relaxed).max(sent_here);
        let live = self.live_len.load(Ordering::Relaxed);
        let growth = CARRIED_MORE_LEN * self.messages.load(Ordering::Relaxed);
        let longest = self.longest.load(Ordering::Relaxed).max(self.segment_len);
        let by_carrying = live / 8 + growth + live.min(3 * longest);
        let log = in_order.max(by_carrying).max(MIN_KEPT_LEN.min(self.segment_len));
        log + self.index_len.load(Ordering::Relaxed)
    }

    /// Why a send of `room` bytes is refused, if it is.
    fn refusal(&self, room: u64, left: u64, sent_here: u64) -> Option<Error> {
        let kept = self.kept_len(sent_here);
        let ready = self.ready(left);
        let fits = room <= left || room < self.spare.rooms().spare;
        if fits && ready >= room + kept {
            return None;
        }
        let available = self.available();
        if (fits || available >= self.segment_len) && ready.saturating_add(available) >= room + kept {
            return None;
        }
        let dir = self.dir.display();
        let what = match self.limit {
            Some(limit) if self.store_len().saturating_add(self.segment_len + kept) >= limit => {
                format!("the store in {dir} takes {} bytes of the {limit} it may (max_store_bytes)", self.store_len())
            }
            _ => format!("the disk under {dir} is nearly full, {available} bytes are free"),
        };
        Some(Error::new(
            ErrorKind::Full,
            format!(
                "{what}; what is left is kept for receiving and settling, which go on; sending works again when there is room"
            ),
        ))
    }

    /// That the file that is written to is still there: what goes into one that was removed is lost.
    ///
    /// # Errors
    /// `Io` when it is not.
    pub(crate) fn check_presence(&self) -> Result<()> {
        if self.segments.list().last().is_none_or(|active| self.segments.is_in_place(active.number)) {
            return Ok(());
        }
        let dir = self.dir.display();
        Err(Error::new(ErrorKind::Io, format!("the files of the store are not in {dir} any more")))
    }

    /// Notes how the last try to get space back went.
    pub(crate) fn note_reclaim(&self, error: Option<String>) {
        *self.reclaim_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    pub(crate) fn reclaim_error(&self) -> Option<String> {
        self.reclaim_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Committer {
    /// Whether what was refused last, or any small send, would be refused now.
    pub(crate) fn look_at_space(&mut self) {
        let room = self.crowded_by.unwrap_or(SMALL_SEND_LEN);
        let refusal = self.shared.space.refusal(room, self.log.room_left(), self.sent_here.1);
        self.crowded_by = refusal.map(|_| room);
    }

    /// Makes room in the log for all that this turn may write, and says which requests it takes, `retries`
    /// first. One so large that nothing else fits into its frame is taken alone.
    pub(crate) fn make_room(&mut self, retries: Vec<Request>) -> Vec<Request> {
        for request in retries.into_iter().rev() {
            self.leftover.push_front(request);
        }
        let (mut batch, mut sending, mut asked) = (Vec::new(), 0, 0);
        while let Some(request) = self.leftover.front() {
            let bound = self.bound(&request.command);
            if !batch.is_empty() && sending + asked + bound > MAX_GROUP_LEN {
                break;
            }
            // What is larger than any frame is refused, and takes no room.
            let bound = if bound > MAX_PAYLOAD_LEN { 0 } else { bound };
            if request.command.adds() {
                sending += bound
            } else {
                asked += bound
            }
            batch.extend(self.leftover.pop_front());
        }
        let own = 2 * self.given_back.len() * record::FIXED_BOUND + self.timers_bound() + self.slices_bound();
        let own = (own + self.waiting_bound()).min(MAX_OWN_LEN);
        let carried = self.relocation_bound(sending, asked + own, !batch.is_empty());
        self.group.alone = sending + asked + own + carried > MAX_PAYLOAD_LEN;
        let (own, carried) = if self.group.alone { (0, 0) } else { (own, carried) };
        self.group.own = own;
        self.reserve(sending, asked + own, carried);
        batch
    }

    /// Most bytes of the hand-outs to receivers that wait in queues where something was found.
    fn waiting_bound(&self) -> usize {
        let demand: usize = self.tables.woken().iter().map(|queue| self.waiters.demand(*queue)).sum();
        demand.min(MAX_HANDED_OUT) * record::FIXED_BOUND
    }

    /// Makes sure that this many bytes of payload fit into the log: of sends, of everything else, and of
    /// what is carried to its end. Sends go without first, then what is carried.
    pub(crate) fn reserve(&mut self, sending: usize, settling: usize, carried: usize) {
        self.group.refusal = self.poison.as_ref().map(Error::poisoned);
        if self.group.refusal.is_some() {
            return;
        }
        if sending > 0 {
            let room = sending as u64 + settling as u64 + carried as u64;
            self.group.send_refusal = self.shared.space.refusal(room, self.log.room_left(), self.sent_here.1);
            self.crowded_by = self.group.send_refusal.as_ref().map(|_| room);
            if self.group.send_refusal.is_none() {
                match self.begin(sending + settling + carried, Room::Ordinary) {
                    Some(error) => {
                        self.crowded_by = (error.kind() == ErrorKind::Full).then_some(room);
                        self.group.send_refusal = Some(error);
                    }
                    None => return,
                }
            }
        }
        let Some(error) = self.begin(settling + carried, Room::Reserve) else { return };
        // What is carried can do with the rest of the segment, or wait.
        let left = usize::try_from(self.log.room_left()).unwrap_or(usize::MAX);
        let carried =
            if carried > 0 { self.shorten_slice(left.saturating_sub(settling + FRAME_HEADER_LEN + 1)) } else { 0 };
        if carried > 0 && self.begin(settling + carried, Room::Reserve).is_none() {
            return;
        }
        self.group.refusal = self.begin(settling, Room::Reserve).and(Some(error));
    }

    /// Begins a frame. Returns why that cannot be, if nothing was changed by trying; otherwise it is poison.
    fn begin(&mut self, room: usize, from: Room) -> Option<Error> {
        if room == 0 || self.poison.is_some() {
            return None;
        }
        match self.log.begin(room, from) {
            Ok(start) => {
                if start.segment != self.sent_here.0 {
                    self.sent_here = (start.segment, 0);
                    self.look_at_space();
                }
                self.group.start = start;
                self.group.room = room;
                None
            }
            // What is written to files that are gone is lost.
            Err(error) if self.log.is_broken() || error.is_missing_file() => {
                self.poison(error);
                self.group.refusal = self.poison.as_ref().map(Error::poisoned);
                None
            }
            Err(unchanged) => Some(unchanged),
        }
    }

    /// Most bytes that the timers due now can write: a death, or a hand-out to one who waits.
    fn timers_bound(&self) -> usize {
        let bound = |(entry, queue): (&Entry, &Queue)| {
            if lifecycle::timeout(entry, &queue.options, self.group.now) == Timeout::Ready {
                record::FIXED_BOUND
            } else {
                2 * record::FIXED_BOUND + queue.name.as_str().len() + entry.detail.len as usize
            }
        };
        self.tables.due_entries(self.group.now, MAX_TIMERS).map(bound).sum()
    }
}
