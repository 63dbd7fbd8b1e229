//! Counts of what happened in a random run, so that a fault that is never injected is seen.

use std::collections::BTreeMap;

/// What happened over all seeds, by name.
#[derive(Default, Clone, Debug)]
pub struct Seen(BTreeMap<&'static str, u64>);

/// What must happen in any run of some length.
const KINDS: [&str; 21] = [
    "sent",
    "sends refused",
    "delivered",
    "settled",
    "settles refused",
    "redriven",
    "purged",
    "deleted",
    "rebuilt",
    "carried",
    "index failed",
    "index damaged",
    "index renewed",
    "index in memory",
    "opened without an index",
    "disk filled",
    "killed",
    "slot damaged",
    "power cut",
    "closed",
    "compared",
];

impl Seen {
    pub fn add(&mut self, what: &'static str, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    pub fn plus(mut self, other: Self) -> Self {
        other.0.into_iter().for_each(|(what, count)| self.add(what, count));
        self
    }

    pub fn assert_all_happened(&self) {
        let missing: Vec<_> = KINDS.iter().filter(|what| !self.0.contains_key(*what)).collect();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}
