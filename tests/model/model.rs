//! The contract of `docs/semantics.md`, as simply as it can be said.

use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    Queued,
    Held,
    Dead,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    pub id: u64,
    pub queue: usize,
    pub body: Vec<u8>,
    pub priority: i16,
    pub phase: Phase,
    pub visible_at: u64,
    /// When it came back by a rule of its own (a move), its time of coming is only bounded.
    pub visible_exact: bool,
    pub expires_at: u64,
    pub epoch: u32,
    pub receive_count: u32,
    pub attempts: u32,
    pub origin: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueRules {
    pub max_attempts: Option<u32>,
    pub dead_letter: Option<usize>,
    pub keep_expired: bool,
    pub strict: bool,
    pub paused: bool,
    pub exists: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    Stale,
    NotFound,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settle {
    Ack,
    Nack(u64),
    Extend(u64),
    Release,
    Reject,
}

#[derive(Default)]
pub struct Model {
    pub now: u64,
    pub queues: Vec<QueueRules>,
    pub messages: BTreeMap<u64, Message>,
}

impl Model {
    /// What time alone brings about.
    pub fn tick(&mut self) {
        let now = self.now;
        let due: Vec<u64> = self.messages.keys().copied().collect();
        for id in due {
            let Some(m) = self.messages.get(&id) else { continue };
            let rules = self.queues[m.queue];
            let used_up = rules.max_attempts.is_some_and(|max| m.attempts >= max);
            if m.phase == Phase::Held && m.visible_at <= now && used_up {
                self.die(id);
            } else if m.phase != Phase::Dead && m.expires_at <= now && !(m.phase == Phase::Held && m.visible_at > now) {
                if rules.keep_expired { self.die(id) } else { drop(self.messages.remove(&id)) }
            }
        }
    }

    fn die(&mut self, id: u64) {
        let now = self.now;
        let m = self.messages.get_mut(&id).expect("it lives");
        match self.queues[m.queue].dead_letter.filter(|to| self.queues[*to].exists) {
            Some(to) => {
                m.origin = Some(m.queue);
                m.queue = to;
                m.phase = Phase::Queued;
                m.attempts = 0;
                m.visible_at = now;
                m.visible_exact = false;
                m.expires_at = u64::MAX;
            }
            None => m.phase = Phase::Dead,
        }
    }

    pub fn is_receivable(&self, m: &Message) -> bool {
        m.phase != Phase::Dead && m.visible_at <= self.now
    }

    /// Ids in the order of delivery.
    pub fn in_order(&self, queue: usize, keep: impl Fn(&Message) -> bool) -> Vec<u64> {
        let mut found: Vec<&Message> = self.messages.values().filter(|m| m.queue == queue && keep(m)).collect();
        found.sort_by_key(|m| (std::cmp::Reverse(m.priority), m.id));
        found.into_iter().map(|m| m.id).collect()
    }

    pub fn receive(&mut self, queue: usize, max: usize, visibility: u64) -> Vec<u64> {
        if self.queues[queue].paused {
            return Vec::new();
        }
        let mut ids = self.in_order(queue, |m| self.is_receivable(m));
        ids.truncate(max);
        for id in &ids {
            let now = self.now;
            let m = self.messages.get_mut(id).expect("it lives");
            m.phase = Phase::Held;
            m.epoch += 1;
            m.receive_count += 1;
            m.attempts += 1;
            m.visible_at = now + visibility;
            m.visible_exact = true;
        }
        ids
    }

    pub fn check(&self, queue: usize, id: u64, epoch: u32) -> Result<(), Refusal> {
        let m = self.messages.get(&id).ok_or(Refusal::NotFound)?;
        // A receipt leads to its own queue and to that queue's dead-letter queue, no further.
        if m.queue != queue && self.queues[queue].dead_letter != Some(m.queue) {
            return Err(Refusal::NotFound);
        }
        let late = self.queues[queue].strict && m.visible_at <= self.now;
        if m.epoch != epoch || m.phase != Phase::Held || late { Err(Refusal::Stale) } else { Ok(()) }
    }

    pub fn settle(&mut self, queue: usize, id: u64, epoch: u32, settle: Settle) -> Result<(), Refusal> {
        self.check(queue, id, epoch)?;
        let now = self.now;
        let m = self.messages.get_mut(&id).expect("it was checked");
        let used_up = self.queues[m.queue].max_attempts.is_some_and(|max| m.attempts >= max);
        match settle {
            Settle::Ack => drop(self.messages.remove(&id)),
            Settle::Nack(_) | Settle::Extend(0) if used_up => self.die(id),
            Settle::Nack(delay) => {
                m.phase = Phase::Queued;
                m.visible_at = now + delay;
            }
            Settle::Extend(0) => {
                m.phase = Phase::Queued;
                m.visible_at = now;
            }
            Settle::Extend(by) => m.visible_at = now + by,
            Settle::Release => {
                m.phase = Phase::Queued;
                m.attempts -= 1;
                m.visible_at = now;
            }
            Settle::Reject => self.die(id),
        }
        Ok(())
    }

    pub fn redrive(&mut self, queue: usize, max: u64) -> u64 {
        let now = self.now;
        let is_candidate = |m: &Message| {
            m.phase == Phase::Dead || m.origin.is_some() && !(m.phase == Phase::Held && m.visible_at > now)
        };
        let mut ids = self.in_order(queue, is_candidate);
        ids.truncate(usize::try_from(max).unwrap_or(usize::MAX));
        for id in &ids {
            let m = self.messages.get_mut(id).expect("it lives");
            if m.phase != Phase::Dead
                && let Some(origin) = m.origin.filter(|origin| self.queues[*origin].exists)
            {
                m.queue = origin;
            }
            m.origin = None;
            m.phase = Phase::Queued;
            m.attempts = 0;
            m.visible_at = now;
            m.visible_exact = false;
            m.expires_at = u64::MAX;
        }
        ids.len() as u64
    }
}
