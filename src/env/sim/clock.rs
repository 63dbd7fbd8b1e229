//! A clock that moves only when told.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::super::Clock;
use crate::types::Timestamp;

/// What the boot clock shows right after a boot.
const BOOTTIME_AT_BOOT: Duration = Duration::from_millis(1500);
/// How long a thread may really sleep: it is woken when the clock is moved.
const SLEEP: Duration = Duration::from_secs(3600);

type Wake = Arc<dyn Fn() + Send + Sync>;

/// A clock for tests: time stands still until it is moved by hand. Clones are the same clock.
#[derive(Clone)]
pub struct ManualClock {
    state: Arc<Mutex<State>>,
}

struct State {
    /// Since the Unix epoch. Kept in nanoseconds, so that small steps add up.
    wall: Duration,
    boottime: Duration,
    boots: u128,
    boot_id: Option<[u8; 16]>,
    wakes: Vec<Wake>,
}

impl ManualClock {
    /// A clock of a machine that has just booted, at this wall time.
    #[must_use]
    pub fn new(wall: Timestamp) -> Self {
        let state = State {
            wall: Duration::from_millis(wall.0),
            boottime: BOOTTIME_AT_BOOT,
            boots: 1,
            boot_id: Some(1_u128.to_be_bytes()),
            wakes: Vec::new(),
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets time pass: wall clock and boot clock move on together, and whoever waits is woken.
    pub fn advance(&self, by: Duration) {
        let wakes = {
            let mut state = self.lock();
            state.wall = state.wall.saturating_add(by);
            state.boottime = state.boottime.saturating_add(by);
            state.wakes.clone()
        };
        // Outside the lock: who is woken looks at the clock.
        wakes.iter().for_each(|wake| wake());
    }

    /// Steps the wall clock, in either direction, as an administrator does. Nobody is woken.
    pub fn set_wall(&self, wall: Timestamp) {
        self.lock().wall = Duration::from_millis(wall.0);
    }

    /// What identifies the present boot; `None`: it can not be told.
    pub fn set_boot_id(&self, boot_id: Option<[u8; 16]>) {
        self.lock().boot_id = boot_id;
    }

    /// The machine boots again, in no time: a new boot id, and the boot clock starts anew.
    pub fn reboot(&self) {
        let mut state = self.lock();
        state.boots += 1;
        state.boot_id = Some(state.boots.to_be_bytes());
        state.boottime = BOOTTIME_AT_BOOT;
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> Timestamp {
        Timestamp(u64::try_from(self.lock().wall.as_millis()).unwrap_or(u64::MAX))
    }

    fn boottime(&self) -> Duration {
        self.lock().boottime
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        self.lock().boot_id
    }

    fn sleep_for(&self, _wanted: Duration) -> Duration {
        SLEEP
    }

    fn on_advance(&self, wake: Wake) {
        self.lock().wakes.push(wake);
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("ManualClock")
            .field("wall", &state.wall)
            .field("boottime", &state.boottime)
            .field("boots", &state.boots)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn advancing_moves_both_clocks_and_stepping_moves_the_wall_clock_only() {
        let clock = ManualClock::new(Timestamp(5000));
        let boot = clock.boottime();
        clock.advance(Duration::from_secs(2));
        assert_eq!((clock.wall(), clock.boottime()), (Timestamp(7000), boot + Duration::from_secs(2)));
        clock.set_wall(Timestamp(1));
        assert_eq!((clock.wall(), clock.boottime()), (Timestamp(1), boot + Duration::from_secs(2)));
    }

    #[test]
    fn a_reboot_gives_a_new_boot_id_and_a_small_boottime_and_keeps_the_wall_clock() {
        let clock = ManualClock::new(Timestamp(5000));
        let first = clock.boot_id();
        clock.advance(Duration::from_secs(1000));
        clock.reboot();
        assert_ne!(clock.boot_id(), first);
        assert_eq!((clock.wall(), clock.boottime()), (Timestamp(1_005_000), BOOTTIME_AT_BOOT));
        clock.set_boot_id(None);
        assert_eq!(clock.boot_id(), None);
    }

    #[test]
    fn whoever_is_woken_can_read_the_clock_and_sees_the_new_time() {
        let clock = ManualClock::new(Timestamp(0));
        let seen = Arc::new(AtomicU64::new(0));
        let (reader, to) = (clock.clone(), Arc::clone(&seen));
        clock.on_advance(Arc::new(move || to.store(reader.wall().0, Ordering::SeqCst)));
        clock.set_wall(Timestamp(500));
        assert_eq!(seen.load(Ordering::SeqCst), 0, "a step of the wall clock wakes nobody");
        clock.advance(Duration::from_millis(7));
        assert_eq!(seen.load(Ordering::SeqCst), 507);
    }
}
