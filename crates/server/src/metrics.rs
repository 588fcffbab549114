//! Figures: what the process counts of itself, for `GET /metrics`.
//!
//! ```text
//!  loop: a batch's facts ─▶ [Noted: a few numbers] ─▶ durable ─▶ counts, once a batch ─▶ /metrics
//! ```
//!
//! The loop only notes numbers. They are counted by whichever thread made the batch durable, under one lock for all of
//! them, so that a fact costs the loop next to nothing. What did not become durable is not counted. Labels are bounded:
//! beyond [`LABELS_MAX`] tenants or pipelines, further ones are counted as `other`.

mod counts;
pub mod expose;
mod noted;
#[cfg(test)]
mod tests;
mod watch;

pub use counts::{Histogram, LABELS_MAX, OTHER};
pub use noted::Noted;
pub use watch::Watch;

use counts::Counts;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use windlass_core::id::Name;
use windlass_core::idempotency::Source as KeySource;
use windlass_core::run::Status;
use windlass_core::time::Millis;

/// What became of an ingress key that a request came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hit {
    /// Nobody had it.
    New,
    /// It was answered before.
    Duplicate,
    /// The first one is still at it.
    InFlight,
    /// The same key came with another request.
    Conflict,
    /// The delivery failed.
    Failed,
}

impl Hit {
    /// As the label says it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Hit::New => "new",
            Hit::Duplicate => "duplicate",
            Hit::InFlight => "in_flight",
            Hit::Conflict => "conflict",
            Hit::Failed => "failed",
        }
    }
}

/// Requests of one route, by method and status.
#[derive(Default)]
struct Http {
    requests: BTreeMap<(&'static str, &'static str, u16), u64>,
    seconds: BTreeMap<&'static str, Histogram>,
}

/// Everything that is counted.
#[derive(Default)]
pub struct Metrics {
    counts: Mutex<Counts>,
    keys: Mutex<BTreeMap<(KeySource, Hit), u64>>,
    http: Mutex<Http>,
    lost_lines: AtomicU64,
}

/// What is looked up when somebody asks, and counted nowhere.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    /// Runs that have not ended, by tenant and status.
    pub active: Vec<(Name, Status, u64)>,
    /// Bytes of the data directory's files.
    pub store_bytes: u64,
    /// How often the log was synced.
    pub syncs: u64,
    /// Memory of the process.
    pub resident_bytes: u64,
    /// Streams that have a head in memory.
    pub streams: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whoever panicked while counting left whole numbers behind.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Metrics {
    /// A batch became durable after so long.
    pub fn committed(&self, noted: &Noted, at: Millis, took: Duration) {
        lock(&self.counts).add(noted, at, took);
    }

    /// A request came with an ingress key.
    pub fn key(&self, source: KeySource, hit: Hit) {
        *lock(&self.keys).entry((source, hit)).or_default() += 1;
    }

    /// A request was answered. Routes are few: they are those that there are.
    pub fn request(&self, route: &'static str, method: &'static str, status: u16, took: Duration) {
        let mut http = lock(&self.http);
        http.seconds.entry(route).or_default().add(took);
        *http.requests.entry((route, method, status)).or_default() += 1;
    }

    /// Log lines that could not be written as fast as they came.
    pub fn lost_line(&self) {
        self.lost_lines.fetch_add(1, Ordering::Relaxed);
    }
}
