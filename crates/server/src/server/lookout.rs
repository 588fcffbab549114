//! The lookout: a thread that serves requests stays awake for a moment when something was just asked or answered.
//!
//! To wake a sleeping thread can take as long as to sync a batch, and where callers wait for each other (for a lock that goes
//! from hand to hand, for example) every turn would pay for it. So a task keeps the thread looking at its connections
//! while the next request or answer is likely to be near, and gives way to everybody else meanwhile. It ends by
//! itself: a server that nobody asks anything sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::Notify;

/// How long to look out after a request or an answer; and how long where the one before came in time.
const EAGER_US: u64 = 200;
const EAGER_US_MAX: u64 = 400;

/// Keeps a thread of the runtime awake while something is near.
#[derive(Clone)]
pub(super) struct Lookout {
    seen: Arc<Seen>,
}

struct Seen {
    began: Instant,
    /// Until when to look out, in microseconds since it began.
    until_us: AtomicU64,
    /// Nobody looks out: whoever sees something wakes the task.
    asleep: AtomicBool,
    wake: Notify,
}

impl Lookout {
    /// Begins on the runtime of the caller, and ends with it.
    pub(super) fn start() -> Lookout {
        let seen = Arc::new(Seen {
            began: Instant::now(),
            until_us: AtomicU64::new(0),
            asleep: AtomicBool::new(true),
            wake: Notify::new(),
        });
        tokio::spawn(look_out(seen.clone()));
        Lookout { seen }
    }

    /// Something was asked or answered.
    pub(super) fn near(&self) {
        let now = self.seen.now_us();
        let in_time = now < self.seen.until_us.load(Ordering::Relaxed);
        let until = now + if in_time { EAGER_US_MAX } else { EAGER_US };
        self.seen.until_us.store(until, Ordering::Relaxed);
        // Should the task be falling asleep just now, it misses this one, and somebody is woken instead.
        if self.seen.asleep.load(Ordering::Relaxed) {
            self.seen.wake.notify_one();
        }
    }
}

impl Seen {
    fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

async fn look_out(seen: Arc<Seen>) {
    loop {
        seen.asleep.store(true, Ordering::Relaxed);
        seen.wake.notified().await;
        seen.asleep.store(false, Ordering::Relaxed);
        while seen.now_us() < seen.until_us.load(Ordering::Relaxed) {
            std::thread::yield_now();
            // The runtime looks at its connections before it comes back here.
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn until(lookout: &Lookout, asleep: bool) {
        let reached = async {
            while lookout.seen.asleep.load(Ordering::Relaxed) != asleep {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), reached).await.unwrap();
    }

    #[tokio::test]
    async fn it_looks_out_when_something_was_near_and_sleeps_when_nothing_follows() {
        let lookout = Lookout::start();
        for _ in 0..3 {
            until(&lookout, true).await;
            lookout.near();
            // A busy machine may be slower than the time that this gives: it ends when the test says so.
            lookout.seen.until_us.store(u64::MAX, Ordering::Relaxed);
            until(&lookout, false).await;
            lookout.seen.until_us.store(0, Ordering::Relaxed);
        }
        until(&lookout, true).await;
    }

    #[tokio::test]
    async fn what_comes_in_time_makes_it_look_out_longer() {
        let lookout = Lookout::start();
        let near_for = |expected_us: u64| {
            let before = lookout.seen.now_us();
            lookout.near();
            let after = lookout.seen.now_us();
            let until = lookout.seen.until_us.load(Ordering::Relaxed);
            assert!((before + expected_us..=after + expected_us).contains(&until));
        };
        near_for(EAGER_US);
        // As if the time that this gave were not over when the next one comes.
        lookout.seen.until_us.store(u64::MAX, Ordering::Relaxed);
        near_for(EAGER_US_MAX);
        // As if it were.
        lookout.seen.until_us.store(0, Ordering::Relaxed);
        near_for(EAGER_US);
    }
}
