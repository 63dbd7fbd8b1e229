//! The store's clock: starts from the wall clock at open, then counts elapsed time only.
//!
//! ```text
//! now = max(persisted, wall at open) + boot time since open
//! ```
//!
//! # Invariants
//! Never decreasing (11): not between calls of any thread, and not across opens, because what was
//! persisted is never passed below. A step of the wall clock while the store is open has no effect:
//! nothing becomes due early, and nothing waits longer than it was told to.
//!
//! # Crashes
//! The newest persisted time is the clock of the last durable frame. What was read after it and not
//! written is repeated after a crash; nobody outside has seen a record with it.
//!
//! # Not here
//! Persisting the time (`log/`), and timers (`engine/`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Clock;
use crate::types::Timestamp;

/// At open the wall clock was behind the store's last time: it was set back, or it was ahead when
/// the store was last open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClockStep {
    /// The newest time the store had written.
    pub(crate) persisted: Timestamp,
    /// The wall clock at open.
    pub(crate) wall: Timestamp,
}

impl ClockStep {
    /// How far the wall clock was behind.
    pub(crate) const fn behind(&self) -> Duration {
        self.persisted.since(self.wall)
    }
}

/// The clock all of a store's times are of. Shared by all threads.
pub(crate) struct StoreClock {
    clock: Arc<dyn Clock>,
    base: Timestamp,
    boot_at_open: Duration,
    /// The newest answer, in milliseconds.
    last: AtomicU64,
}

impl StoreClock {
    /// Starts the clock. `persisted` is the newest time found in the store, `ZERO` for a new one.
    /// Also answers whether the wall clock was behind it.
    pub(crate) fn new(clock: Arc<dyn Clock>, persisted: Timestamp) -> (Self, Option<ClockStep>) {
        let wall = clock.wall();
        let step = (wall < persisted).then_some(ClockStep { persisted, wall });
        let base = wall.max(persisted);
        let boot_at_open = clock.boottime();
        (Self { clock, base, boot_at_open, last: AtomicU64::new(base.0) }, step)
    }

    /// The time now, rounded down to whole milliseconds, so that nothing is ever due early.
    pub(crate) fn now(&self) -> Timestamp {
        let elapsed = self.clock.boottime().saturating_sub(self.boot_at_open);
        let elapsed = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let now = self.base.0.saturating_add(elapsed);
        // A thread that read the boot time before another one, but comes here after it, must not
        // answer less than the other did.
        Timestamp(self.last.fetch_max(now, Ordering::Relaxed).max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::super::sim::ManualClock;
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const NOON: Timestamp = Timestamp(1_700_000_000_000);

    fn open(clock: &ManualClock, persisted: Timestamp) -> (StoreClock, Option<ClockStep>) {
        StoreClock::new(Arc::new(clock.clone()), persisted)
    }

    #[test]
    fn a_new_store_starts_at_the_wall_clock_and_sees_no_step() {
        let clock = ManualClock::new(NOON);
        let (store, step) = open(&clock, Timestamp::ZERO);
        assert_eq!((store.now(), step), (NOON, None));
        clock.advance(Duration::from_millis(1500));
        assert_eq!(store.now(), Timestamp(NOON.0 + 1500));
    }

    /// BB-055.
    #[test]
    fn a_wall_clock_set_back_twelve_hours_delays_nothing() {
        let clock = ManualClock::new(NOON);
        let (store, _) = open(&clock, Timestamp::ZERO);
        let due = store.now().after(Duration::from_secs(10));
        clock.advance(Duration::from_secs(5));
        clock.set_wall(Timestamp(NOON.0 - 12 * 3_600_000));
        assert_eq!(due.since(store.now()), Duration::from_secs(5));
        clock.advance(Duration::from_secs(5));
        assert_eq!(store.now(), due);
    }

    /// BB-056.
    #[test]
    fn a_wall_clock_that_jumps_anywhere_makes_nothing_due_early_or_late() {
        let clock = ManualClock::new(NOON);
        let (store, _) = open(&clock, Timestamp::ZERO);
        let due = store.now().after(HOUR);
        let day = 86_400_000;
        for wall in [NOON.0 + day, NOON.0 - day, NOON.0 + 50 * 365 * day, 0, u64::MAX] {
            clock.set_wall(Timestamp(wall));
            assert_eq!(due.since(store.now()), HOUR, "wall {wall}");
        }
        clock.advance(HOUR - Duration::from_nanos(1));
        assert!(store.now() < due);
        clock.advance(Duration::from_nanos(1));
        assert_eq!(store.now(), due);
    }

    /// BB-059.
    #[test]
    fn what_is_left_is_zero_after_the_deadline_and_never_wraps() {
        let clock = ManualClock::new(NOON);
        let (store, _) = open(&clock, Timestamp::ZERO);
        let now = store.now();
        for due in [now, now.after(Duration::ZERO), Timestamp(now.0 - 1), Timestamp::ZERO] {
            assert_eq!(due.since(store.now()), Duration::ZERO);
        }
        assert_eq!(now.after(Duration::from_nanos(1)).since(store.now()), Duration::from_millis(1));
        assert_eq!(now.after(Duration::MAX), Timestamp::MAX);
    }

    #[test]
    fn a_store_whose_time_is_at_the_end_stays_there() {
        let clock = ManualClock::new(NOON);
        let (store, step) = open(&clock, Timestamp::MAX);
        clock.advance(HOUR);
        assert_eq!(store.now(), Timestamp::MAX);
        assert_eq!(step.map(|s| s.behind()), Some(Duration::from_millis(u64::MAX - NOON.0)));
    }

    #[test]
    fn a_wall_clock_behind_the_persisted_time_is_reported_and_not_followed() {
        let clock = ManualClock::new(NOON);
        let persisted = Timestamp(NOON.0 + 90_000);
        let (store, step) = open(&clock, persisted);
        assert_eq!(step, Some(ClockStep { persisted, wall: NOON }));
        assert_eq!(step.unwrap().behind(), Duration::from_secs(90));
        assert_eq!(store.now(), persisted);
        clock.advance(Duration::from_secs(1));
        assert_eq!(store.now(), Timestamp(persisted.0 + 1000), "time goes on from there at once");
    }

    #[test]
    fn a_lease_is_never_longer_after_reopening_than_before() {
        let clock = ManualClock::new(NOON);
        let (store, _) = open(&clock, Timestamp::ZERO);
        clock.advance(HOUR);
        let persisted = store.now();
        let due = persisted.after(HOUR);
        clock.reboot();
        clock.set_wall(Timestamp::ZERO);
        let (store, step) = open(&clock, persisted);
        assert!(step.is_some());
        assert_eq!(due.since(store.now()), HOUR);
    }

    #[test]
    fn suspended_time_counts_even_when_the_wall_clock_does_not_show_it() {
        let clock = ManualClock::new(NOON);
        let (store, _) = open(&clock, Timestamp::ZERO);
        clock.advance(8 * HOUR);
        clock.set_wall(NOON);
        assert_eq!(store.now(), NOON.after(8 * HOUR));
    }

    #[test]
    fn time_is_rounded_down_and_small_steps_add_up() {
        let clock = ManualClock::new(NOON);
        let (store, _) = open(&clock, Timestamp::ZERO);
        for _ in 0..9 {
            clock.advance(Duration::from_micros(100));
            assert_eq!(store.now(), NOON);
        }
        clock.advance(Duration::from_micros(100));
        assert_eq!(store.now(), Timestamp(NOON.0 + 1));
    }

    #[test]
    fn a_boot_clock_that_restarts_under_an_open_store_does_not_turn_time_back() {
        let clock = ManualClock::new(NOON);
        let (store, _) = open(&clock, Timestamp::ZERO);
        clock.advance(HOUR);
        let before = store.now();
        clock.reboot();
        assert_eq!(store.now(), before);
    }

    #[test]
    fn no_thread_sees_time_go_back() {
        let clock = ManualClock::new(NOON);
        let (store, _) = open(&clock, Timestamp::ZERO);
        let newest = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let seen = newest.load(Ordering::SeqCst);
                        let now = store.now();
                        assert!(now.0 >= seen);
                        newest.fetch_max(now.0, Ordering::SeqCst);
                        clock.advance(Duration::from_micros(300));
                    }
                });
            }
        });
    }
}
