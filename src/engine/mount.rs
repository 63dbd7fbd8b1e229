//! Mounting: the tables of a store that is being opened, made of its index; and the look at every hidden
//! message.
//!
//! # Invariants
//! 8, 18: what time alone changed while nobody had the store open is handled by the timers, like any other
//! event.
//!
//! # Not here
//! Where the index comes from: `open.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::engine::commit::Committer;
use crate::engine::replay::decode_row;
use crate::engine::report::OpenReport;
use crate::engine::state::Tables;
use crate::error::{Error, ErrorKind, Result};
use crate::index::Index;
use crate::lifecycle::{self, Timeout};
use crate::message::DeadReason;
use crate::options::OnOpen;
use crate::types::{Entry, Phase, QueueId, State, Timestamp};

/// How far ahead of the clock events are loaded at open.
const FIRST_STRETCH: Duration = Duration::from_secs(60);
/// Messages with an event in the first stretch that are loaded at open at most.
const MAX_FIRST_EVENTS: usize = 256 * 1024;

/// The tables, and the segment in which each queue is defined.
pub(crate) fn mount(index: &mut Index, window: usize, now: Timestamp) -> Result<(Tables, BTreeMap<QueueId, u32>)> {
    Ok((mount_tables(index, window, now)?, definitions(index)?))
}

fn definitions(index: &mut Index) -> Result<BTreeMap<QueueId, u32>> {
    let rows = index.queues()?.into_iter();
    Ok(rows.filter_map(|(id, row)| decode_row(id, &row).map(|row| (id, row.defined.segment))).collect())
}

/// The tables as they were when the last record was written, so that everything that time alone
/// changed since is handled by the timers like any other event.
fn mount_tables(index: &mut Index, window: usize, now: Timestamp) -> Result<Tables> {
    let then = index.clock();
    let (events, reached) = index.events(Timestamp::ZERO, now.after(FIRST_STRETCH), MAX_FIRST_EVENTS)?;
    let mut tables = Tables::new(window, index.applied(), reached);
    for (id, row) in index.queues()? {
        let row =
            decode_row(id, &row).ok_or_else(|| Error::new(ErrorKind::Corrupt, "a queue's row does not decode"))?;
        tables.add_queue(id, row.name, row.options, row.paused, row.defined);
    }
    for (id, counts) in index.counts(then)? {
        if let Some(queue) = tables.queues.get_mut(&id) {
            queue.counts.set(State::Ready, counts.ready);
            queue.counts.set(State::Delayed, counts.delayed);
            queue.counts.set(State::InFlight, counts.in_flight);
            queue.counts.set(State::Dead, counts.dead);
        }
    }
    for (queue, priority) in index.lanes() {
        tables.add_cold_lane(queue, priority);
    }
    for entry in events {
        tables.admit_at_open(entry, then);
    }
    let mut held = Vec::new();
    index.held(&mut |entry| held.push(entry))?;
    for entry in held {
        tables.admit_at_open(entry, then);
    }
    Ok(tables)
}

impl Tables {
    /// Takes in an entry that may need attention; one that just waits stays cold.
    fn admit_at_open(&mut self, entry: Entry, then: Timestamp) {
        let Some(queue) = self.queues.get(&entry.queue) else { return };
        let state = entry.state(then);
        let exhausted = lifecycle::attempts_used_up(&entry, &queue.options);
        match (entry.phase, state) {
            (Phase::Held, State::Ready) if exhausted => self.admit_overdue(entry),
            (_, State::Ready) if entry.expires_at == Timestamp::MAX => {}
            _ => self.admit(entry, state),
        }
    }
}

/// Looks at every hidden message: what is past its deadline comes back or dies, and with
/// [`OnOpen::Release`] everything comes back.
pub(crate) fn scan_hidden(committer: &mut Committer, on_open: OnOpen, report: &mut OpenReport) {
    let now = committer.shared.clock.now();
    for (entry, queue) in committer.tables.due_entries(now, usize::MAX) {
        match lifecycle::timeout(entry, &queue.options, now) {
            Timeout::Die(DeadReason::MaxAttempts) => report.dead_lettered += 1,
            Timeout::Ready if entry.phase == Phase::Held => report.redelivered += 1,
            _ => {}
        }
    }
    loop {
        committer.turn();
        if committer.tables.due(committer.group.now).is_none() || committer.group.refusal.is_some() {
            break;
        }
    }
    if on_open == OnOpen::Release {
        let died = |committer: &Committer| committer.tables.queues.values().map(|queue| queue.meter.died).sum::<u64>();
        let before = died(committer);
        report.released = committer.release_all();
        report.dead_lettered += died(committer) - before;
    }
}
