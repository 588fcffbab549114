//! Workers: what they work on.

use crate::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::digest::Digest;
use windlass_core::id::{ItemId, Name, RunId};
use windlass_core::worker;

/// A worker: consumes a queue by making one run per item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Worker {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub state: String,
    /// How many of its runs are not over.
    pub running: usize,
    /// Those runs.
    pub active: Vec<Active>,
    /// The queue that it consumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub queue: Option<Name>,
    /// The pipeline that it runs for each item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub pipeline: Option<Name>,
    /// The runbook that the runs are pinned to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub runbook_hash: Option<Digest>,
    /// How many runs it may have that are not over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Where its runs run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_root: Option<String>,
    /// The events that make it look at its queue, beside those of the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_on: Option<Vec<String>>,
    /// It takes nothing before this time, because a cap is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed_until: Option<Time>,
    /// When its queue is listed next, where the items live elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_poll_at: Option<Time>,
}

/// A run of a worker, and its item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Active {
    /// The item.
    #[schemars(with = "String")]
    pub item: ItemId,
    /// The run.
    #[schemars(with = "String")]
    pub run: RunId,
}

impl From<&worker::Worker> for Worker {
    fn from(worker: &worker::Worker) -> Worker {
        let settings = worker.settings();
        let wake_on =
            |settings: &worker::Settings| settings.wake_on.iter().map(ToString::to_string).collect();
        Worker {
            name: worker.id.name().to_owned(),
            state: worker.state_name().to_owned(),
            running: worker.active.len(),
            active: worker.active.iter().map(|(item, run)| Active { item: *item, run: *run }).collect(),
            queue: settings.map(|settings| settings.queue.clone()),
            pipeline: settings.map(|settings| settings.pipeline.clone()),
            runbook_hash: settings.map(|settings| settings.runbook_hash),
            concurrency: settings.map(|settings| settings.concurrency),
            project_root: settings.map(|settings| settings.project_root.clone()),
            wake_on: settings.map(wake_on),
            delayed_until: worker.delayed_until.map(Time),
            next_poll_at: worker.poll_at.map(Time),
        }
    }
}

/// A worker is to take nothing more.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How many runs a worker may have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// How many runs it may have that are not over.
    pub concurrency: u32,
}
