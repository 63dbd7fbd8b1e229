//! The most recently used pages, decoded: a consumer works on neighbours.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::keys::PageKey;
use crate::types::Entry;

/// A decoded page: its entries in order of id.
pub(super) type Page = Arc<Vec<Entry>>;

/// Most pages kept: about 8 MiB when all are full.
const MAX_PAGE_COUNT: usize = 256;

#[derive(Default)]
pub(super) struct Cache {
    pages: FxHashMap<PageKey, (u64, Page)>,
    /// By last use, oldest first.
    uses: BTreeMap<u64, PageKey>,
    tick: u64,
}

impl Cache {
    pub(super) fn get(&mut self, key: PageKey) -> Option<Page> {
        let (used, page) = self.pages.get_mut(&key)?;
        self.uses.remove(used);
        self.tick += 1;
        *used = self.tick;
        self.uses.insert(self.tick, key);
        Some(Arc::clone(page))
    }

    pub(super) fn put(&mut self, key: PageKey, page: Page) {
        self.remove(key);
        self.tick += 1;
        self.pages.insert(key, (self.tick, page));
        self.uses.insert(self.tick, key);
        while self.pages.len() > MAX_PAGE_COUNT {
            let Some((_, oldest)) = self.uses.pop_first() else { break };
            self.pages.remove(&oldest);
        }
    }

    /// Takes the page out, so that its owner can change it in place.
    pub(super) fn remove(&mut self, key: PageKey) -> Option<Page> {
        let (used, page) = self.pages.remove(&key)?;
        self.uses.remove(&used);
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::Lane;
    use super::*;
    use crate::types::{MessageId, QueueId};

    #[test]
    fn the_page_that_was_used_longest_ago_goes_first() {
        let key = |first| PageKey { lane: Lane::new(QueueId(1), 0), first: MessageId(first) };
        let mut cache = Cache::default();
        for first in 0..MAX_PAGE_COUNT as u64 {
            cache.put(key(first), Page::default());
        }
        assert!(cache.get(key(0)).is_some(), "used again, so page 1 is the oldest");
        cache.put(key(1000), Page::default());
        assert!(cache.get(key(0)).is_some() && cache.get(key(1)).is_none() && cache.get(key(2)).is_some());
        assert!(cache.remove(key(2)).is_some() && cache.get(key(2)).is_none());
        assert_eq!(cache.pages.len(), cache.uses.len());
    }
}
