//! A real process that embeds the store is killed at random moments; afterwards everything it was
//! told is true.
//!
//! The child is this same test binary, called again with `CHILD` set. It says on its output what it
//! is about to do and what came of it, a line each; the parent keeps a model of that. The one call
//! whose answer the kill cut off may or may not have taken effect.

mod child;
mod ended;
mod parent;

/// In the child: which job it does, and on which store.
const CHILD: &str = "REAPPEAR_CRASH_CHILD";
const STORE: &str = "REAPPEAR_CRASH_STORE";
const SEED: &str = "REAPPEAR_CRASH_SEED";

/// The child's entry. In an ordinary run there is nothing to do.
#[test]
fn the_child_does_what_it_is_told() {
    if let Ok(job) = std::env::var(CHILD) {
        child::run(&job);
    }
}

/// Numbers that look random and are the same for the same seed.
#[derive(Debug)]
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}
