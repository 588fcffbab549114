//! What is counted of committed batches.

use super::noted::{Noted, Step};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;
use windlass_core::id::Name;
use windlass_core::run::Status;
use windlass_core::time::{Millis, Span};
use windlass_core::turn::index::Move;

/// The most tenants, and the most pipelines, that have figures of their own.
pub const LABELS_MAX: usize = 100;
/// What all further ones are called.
pub const OTHER: &str = "other";
/// The most steps in line that are measured at once.
const LINE_MAX: usize = 200_000;
/// A step that is in line for longer was lost sight of.
const LINE_AGE_MAX: Span = Span::hours(24);

/// Upper bounds of the buckets, in microseconds: from a fast commit to a long run.
pub(super) const BOUNDS_MICROS: [u64; 18] = [
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    1_000_000,
    5_000_000,
    30_000_000,
    120_000_000,
    600_000_000,
    3_600_000_000,
    86_400_000_000,
];

/// How often something took how long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// One for each bound, and one for what is beyond.
    pub(super) buckets: [u64; BOUNDS_MICROS.len() + 1],
    pub(super) sum_micros: u64,
    pub(super) count: u64,
}

impl Histogram {
    /// Takes one more.
    pub fn add(&mut self, took: Duration) {
        self.add_micros(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    pub(super) fn add_micros(&mut self, micros: u64) {
        let at = BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        self.buckets[at] += 1;
        self.sum_micros = self.sum_micros.saturating_add(micros);
        self.count += 1;
    }
}

/// Numbers for steps are spread already.
#[derive(Default)]
pub(super) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

/// Names that have figures of their own, up to a bound.
#[derive(Debug, Default)]
pub(super) struct Labels(BTreeMap<Name, ()>);

impl Labels {
    /// The name itself, or the one that all further ones share.
    pub(super) fn of(&mut self, name: &Name) -> Name {
        if let Some((known, ())) = self.0.get_key_value(name) {
            return known.clone();
        }
        if self.0.len() >= LABELS_MAX {
            return Name::clean(OTHER);
        }
        self.0.insert(name.clone(), ());
        name.clone()
    }

    /// The same without a new name: for what is only looked at.
    pub(super) fn known(&self, name: &Name) -> Name {
        if self.0.contains_key(name) || self.0.len() < LABELS_MAX { name.clone() } else { Name::clean(OTHER) }
    }
}

/// All counts.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) tenants: Labels,
    pub(super) pipelines: Labels,
    pub(super) transitions: BTreeMap<(Name, Option<Status>, Status), u64>,
    pub(super) durations: BTreeMap<(Name, Name, Status), Histogram>,
    pub(super) queued: Histogram,
    pub(super) held: Histogram,
    pub(super) commits: Histogram,
    pub(super) facts: u64,
    line: HashMap<u64, Millis, BuildHasherDefault<AsItIs>>,
}

impl Counts {
    /// Counts a batch.
    pub(super) fn add(&mut self, noted: &Noted, at: Millis, took: Duration) {
        self.commits.add(took);
        self.facts += noted.facts;
        for step in &noted.steps {
            self.step(*step, at);
        }
        for one in &noted.moves {
            self.moved(one, noted);
        }
    }

    fn step(&mut self, step: Step, at: Millis) {
        match step {
            Step::Ready(number) => {
                if self.line.len() >= LINE_MAX {
                    self.line.retain(|_, since| *since + LINE_AGE_MAX > at);
                }
                if self.line.len() < LINE_MAX {
                    self.line.insert(number, at);
                }
            }
            Step::Leased(number) => {
                if let Some(since) = self.line.remove(&number) {
                    self.queued.add_micros(at.since(since).0.saturating_mul(1_000));
                }
            }
            Step::Left(number) => {
                self.line.remove(&number);
            }
            Step::Ended(number, duration_ms) => {
                self.line.remove(&number);
                self.held.add_micros(duration_ms.saturating_mul(1_000));
            }
        }
    }

    fn moved(&mut self, one: &Move, noted: &Noted) {
        if one.from.is_none() && one.to.is_terminal() {
            // It ended long ago and was read back: a run begins otherwise.
            return;
        }
        let tenant = self.tenants.of(&one.home.tenant);
        *self.transitions.entry((tenant.clone(), one.from, one.to)).or_default() += 1;
        if let (true, Some(ms)) = (one.to.is_terminal(), noted.ends.get(&one.run)) {
            let pipeline = self.pipelines.of(&one.home.pipeline);
            let histogram = self.durations.entry((pipeline, tenant, one.to)).or_default();
            histogram.add_micros(ms.saturating_mul(1_000));
        }
    }
}
