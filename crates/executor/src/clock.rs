//! The time of this machine, and ids made of it.
//!
//! ```text
//!   now = max(wall clock, the last time that was seen or recorded + monotonic time since)
//! ```
//!
//! A wall clock that is set back stops nothing: time goes on from where it was, as fast as it passes. One that was ahead and
//! is set right is the same thing. What others name by their own clocks (the time under a signature, `Retry-After`) is
//! compared with [`wall`].

use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use uuid::{ContextV7, Timestamp, Uuid};
use windlass_core::time::{Millis, Span};
use windlass_engine::port::{Clock, Ids};

/// The time that was seen or recorded last, and when that was.
static LAST: Mutex<Option<Anchor>> = Mutex::new(None);

/// Counts ids within a millisecond.
static COUNT: Mutex<ContextV7> = Mutex::new(ContextV7::new());

#[derive(Clone, Copy, Debug)]
struct Anchor {
    at: Millis,
    since: Instant,
}

impl Anchor {
    /// The time by this anchor alone.
    fn goes_on(self, now: Instant) -> Millis {
        let passed = now.saturating_duration_since(self.since).as_millis();
        self.at + Span(u64::try_from(passed).unwrap_or(u64::MAX))
    }
}

/// The time by a wall clock and by what was last seen of it. The anchor moves only where the wall clock is ahead, so that no
/// fraction of a millisecond is lost on the way.
fn onward(last: &mut Option<Anchor>, wall: Millis, now: Instant) -> Millis {
    match *last {
        Some(anchor) if anchor.goes_on(now) >= wall => anchor.goes_on(now),
        Some(_) | None => {
            *last = Some(Anchor { at: wall, since: now });
            wall
        }
    }
}

/// The last millisecond that can be written down as a date: that of the year 9999.
const LAST_MS: u64 = 253_402_300_799_999;

/// What the clock of this machine says, or the nearest time between 1970 and 9999. It may be set, in either direction, at any
/// time.
#[must_use]
pub fn wall() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX).min(LAST_MS))
}

/// The clock of this process.
#[derive(Debug, Default)]
pub struct System;

impl Clock for System {
    fn now(&self) -> Millis {
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        onward(&mut last, wall(), Instant::now())
    }

    fn not_before(&self, at: Millis) {
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        onward(&mut last, at, Instant::now());
    }
}

/// Version 7 UUIDs: sorted by time, also within a millisecond, and unguessable.
#[derive(Debug, Default)]
pub struct Sorted;

impl Ids for Sorted {
    fn next(&mut self) -> u128 {
        fresh()
    }
}

/// A fresh id: above every id that this process made, and above those of before that [`Clock::not_before`] was told of.
#[must_use]
pub fn fresh() -> u128 {
    let Millis(now) = System.now();
    let nanos = u32::try_from(now % 1_000 * 1_000_000).unwrap_or_default();
    Uuid::new_v7(Timestamp::from_unix(&COUNT, now / 1_000, nanos)).as_u128()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn time_goes_on_whatever_the_wall_clock_does() {
        let start = Instant::now();
        let after = |ms: u64| start + Duration::from_millis(ms);
        let mut last = None;
        assert_eq!(onward(&mut last, Millis(10_000), after(0)), Millis(10_000));
        // It goes back by a second, by a day, to the beginning; time passes as it does.
        assert_eq!(onward(&mut last, Millis(9_000), after(1)), Millis(10_001));
        assert_eq!(onward(&mut last, Millis(0), after(250)), Millis(10_250));
        // It jumps ahead, and is set right: what was ahead is kept.
        assert_eq!(onward(&mut last, Millis(90_000), after(300)), Millis(90_000));
        assert_eq!(onward(&mut last, Millis(10_400), after(400)), Millis(90_100));
        // The wall clock that has caught up is the time again.
        assert_eq!(onward(&mut last, Millis(95_000), after(500)), Millis(95_000));
    }

    #[test]
    fn a_thousand_looks_within_a_millisecond_lose_no_time() {
        let start = Instant::now();
        let mut last = Some(Anchor { at: Millis(5_000), since: start });
        for micros in 0..3_000 {
            let now = start + Duration::from_micros(micros);
            assert_eq!(onward(&mut last, Millis(0), now), Millis(5_000 + micros / 1_000));
        }
    }

    #[test]
    fn ids_grow_also_after_a_record_of_the_future() {
        let mut known = fresh();
        let ahead = System.now() + Span(3_600_000);
        System.not_before(ahead);
        for _ in 0..1_000 {
            let next = fresh();
            assert!(next > known);
            known = next;
        }
        assert!(known >> 80 >= u128::from(ahead.0));
    }
}
