//! Schedules: when they make runs.

use crate::Time;
use crate::schema::Word;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::digest::Digest;
use windlass_core::id::{Name, RunId};
use windlass_core::schedule;
use windlass_core::schedule::{CatchUp, Overlap, Settings};

/// A schedule: makes one run per slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Schedule {
    /// Its name.
    pub name: String,
    /// active, paused, absent or removed.
    pub state: String,
    /// Its runs that are not over.
    #[schemars(with = "Vec<String>")]
    pub running: Vec<RunId>,
    /// How many slots wait for the run before them.
    pub waiting: usize,
    /// How often it is due, where it is due after a span.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    /// When it is due, as cron has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// The time zone of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// How much later than due a run may be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_ms: Option<u64>,
    /// What becomes of slots that passed while nothing ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Word<CatchUp>>")]
    pub catch_up: Option<CatchUp>,
    /// What becomes of a slot while the run before it is not over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Word<Overlap>>")]
    pub overlap: Option<Overlap>,
    /// The pipeline that it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub pipeline: Option<Name>,
    /// The runbook that the runs are pinned to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub runbook_hash: Option<Digest>,
    /// The next times, while it is active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Vec<Time>>,
    /// It makes no run before this time, because a cap is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deferred_until: Option<Time>,
}

impl Schedule {
    /// A schedule and its settings, where it has any. When it is due next is for the caller to add.
    #[must_use]
    pub fn of(schedule: &schedule::Schedule, settings: Option<&Settings>) -> Schedule {
        let every = settings.and_then(|settings| settings.spec.strip_prefix("every "));
        let cron = settings.filter(|_| every.is_none()).map(|settings| settings.spec.to_string());
        Schedule {
            name: schedule.id.name().to_owned(),
            state: schedule.state_name().to_owned(),
            running: schedule.live.iter().copied().collect(),
            waiting: schedule.held.len(),
            every: every.map(str::to_owned),
            cron,
            timezone: settings.map(|settings| settings.timezone.to_string()),
            jitter_ms: settings.map(|settings| settings.jitter.0),
            catch_up: settings.map(|settings| settings.catch_up),
            overlap: settings.map(|settings| settings.overlap),
            pipeline: settings.map(|settings| settings.pipeline.clone()),
            runbook_hash: settings.map(|settings| settings.runbook_hash),
            next: None,
            deferred_until: schedule
                .deferred_at
                .and(schedule.next_at)
                .filter(|_| settings.is_some())
                .map(Time),
        }
    }
}
