//! Runs, as every answer shows them.

use crate::Time;
use crate::budget::Budget;
use crate::schema::Word;
use crate::step::{self, Step};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::digest::Digest;
use windlass_core::id::{Name, RunId, StepId};
use windlass_core::machine::Beats;
use windlass_core::packed::Packed;
use windlass_core::run::{self, Cancellation, Initiator, Section, Source, Status};
use windlass_core::runbook::Pipeline;

/// The version of the shape of runs.
const SCHEMA_VERSION: u32 = 1;

/// One durable execution of a pipeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// Its id.
    #[schemars(with = "String")]
    pub id: RunId,
    /// The pipeline that it executes.
    #[schemars(with = "String")]
    pub pipeline: Name,
    /// A name for people.
    #[schemars(with = "String")]
    pub name: Name,
    /// The name of its runbook, as long as that is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub runbook: Option<Name>,
    /// Where it stands.
    #[schemars(with = "Word<Status>")]
    pub status: Status,
    /// What it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whose it is.
    #[schemars(with = "String")]
    pub tenant: Name,
    /// The subdivision.
    #[schemars(with = "String")]
    pub namespace: Name,
    /// The runbook that it is pinned to.
    #[schemars(with = "String")]
    pub runbook_hash: Digest,
    /// Its variables. Absent where its records have left the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    pub vars: Option<Packed>,
    /// What made it.
    pub trigger: Trigger,
    /// What it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Subject>,
    /// The step that it is at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub current_step: Option<StepId>,
    /// Its outputs, once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// What ties it to something outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub correlation_id: Option<Name>,
    /// When it was made.
    pub created_at: Time,
    /// When something last happened to it.
    pub updated_at: Time,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When an executor of one of its steps was last heard of, while one has a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_at: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    /// How long it took from when it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The first run of its lineage.
    #[schemars(with = "String")]
    pub root_run: RunId,
    /// The run that it goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub resumed_from: Option<RunId>,
    /// How many runs of its lineage came before it.
    #[serde(default)]
    pub resume_count: u32,
    /// The run that called it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub parent_run: Option<RunId>,
    /// The step that called it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub parent_step: Option<StepId>,
    /// The run whose effects it takes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub takes_back: Option<RunId>,
    /// When it must be over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Time>,
    /// Why it is being stopped, or was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancellation: Option<Stopped>,
    /// What it compensated, or tried to, in that order. Absent where nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensation_log: Option<Vec<Compensated>>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// What it may cost, what it has cost, and what is reserved. Absent where it has no limit and cost nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Whether nothing of it is leased until it is resumed.
    #[serde(default)]
    pub suspended: bool,
    /// The version of this shape.
    #[serde(default)]
    pub schema_version: u32,
    /// Its steps; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<Step>>,
}

impl Run {
    /// A run as lists show it. Its runbook's name is for the caller to add.
    #[must_use]
    pub fn listed(run: &run::Run, beats: &Beats) -> Run {
        let born = &run.born;
        let lineage = born.lineage();
        let ended = run.ending.as_ref().map(|ending| ending.at);
        let failure = run.failure.as_ref().map(|failure| Failure::from(&failure.1));
        Run {
            id: born.id,
            pipeline: born.home.pipeline.clone(),
            name: born.name.clone(),
            runbook: None,
            status: run.status(),
            reason: run.reason(),
            tenant: born.home.tenant.clone(),
            namespace: born.home.namespace.clone(),
            runbook_hash: born.home.runbook,
            vars: Some(run.vars.clone()),
            trigger: (&born.trigger).into(),
            subject: born.subject.as_deref().map(Subject::from),
            current_step: run.current_step().filter(|_| ended.is_none()).cloned(),
            result: run.ending.as_ref().and_then(|ending| ending.outputs.clone()),
            correlation_id: born.correlation_id.clone(),
            created_at: born.created_at.into(),
            updated_at: run.updated_at.into(),
            started_at: run.started_at.map(Time),
            last_heartbeat_at: run.last_heartbeat_at(beats).map(Time),
            completed_at: ended.map(Time),
            duration_ms: ended.map(|at| at.since(born.created_at).0),
            root_run: lineage.root_run,
            resumed_from: lineage.resumed_from,
            resume_count: lineage.resume_count,
            parent_run: born.parent.as_deref().map(|(run, _)| *run),
            parent_step: born.parent.as_deref().map(|(_, step)| step.clone()),
            takes_back: born.takes_back.as_deref().copied(),
            deadline_at: born.deadline_at.map(Time),
            cancellation: run.stopping.as_deref().map(Stopped::from),
            compensation_log: compensations(run),
            error: failure.or_else(|| run.orphaned().as_ref().map(Failure::from)),
            budget: Budget::of(&run.budget()),
            suspended: run.suspended,
            schema_version: SCHEMA_VERSION,
            steps: None,
        }
    }

    /// A run with its steps. `def` is its pipeline, where that is known.
    #[must_use]
    pub fn whole(run: &run::Run, def: Option<&Pipeline>, beats: &Beats) -> Run {
        Run { steps: Some(step::all(run, def, beats)), ..Run::listed(run, beats) }
    }
}

/// What a run compensated; nothing where it did not have to.
fn compensations(run: &run::Run) -> Option<Vec<Compensated>> {
    let own = run.steps.iter().filter(|step| step.section == Section::Compensate);
    let entry = |step: &windlass_core::step::Step| {
        let of = step.compensates?;
        Some(Compensated {
            step: step.id.clone(),
            compensates: run.at(of).map(|of| of.id.clone()),
            run: step.child(),
            status: step.status,
            at: step.completed_at.or(step.started_at).unwrap_or(run.updated_at).into(),
            error: step.error.as_deref().map(Failure::from),
        })
    };
    let log: Vec<Compensated> = own.filter_map(entry).collect();
    (!log.is_empty()).then_some(log)
}

/// What made a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trigger {
    /// The kind of source.
    #[schemars(with = "Word<Source>")]
    pub source: Source,
    /// The idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub key: Option<Name>,
    /// Who asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub user: Option<Name>,
    /// The source's own id of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub event_id: Option<Name>,
    /// The W3C trace context that the request came with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub traceparent: Option<Name>,
    /// The worker or the schedule that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub of: Option<Name>,
}

impl From<&run::Trigger> for Trigger {
    fn from(trigger: &run::Trigger) -> Trigger {
        let run::Trigger { source, key, user, event_id, traceparent, of } = trigger.clone();
        Trigger { source, key, user, event_id, traceparent, of }
    }
}

/// What a run is about, where it is about a repository.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Subject {
    /// The repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo: Option<String>,
    /// The pull request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pr: Option<String>,
    /// Where to look at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

impl From<&run::Subject> for Subject {
    fn from(subject: &run::Subject) -> Subject {
        let run::Subject { repo, pr, url } = subject.clone();
        Subject { repo, pr, url }
    }
}

/// Why a run is stopped, by whom and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stopped {
    /// What stops it.
    #[schemars(with = "Word<Initiator>")]
    pub initiator: Initiator,
    /// Who.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub user: Option<Name>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When.
    pub at: Time,
}

impl From<&Cancellation> for Stopped {
    fn from(stop: &Cancellation) -> Stopped {
        let (user, reason) = (stop.user.clone(), stop.reason.clone());
        Stopped { initiator: stop.initiator, user, reason, at: stop.at.into() }
    }
}

/// A step whose effect was compensated, or was to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Compensated {
    /// The step that compensates.
    #[schemars(with = "String")]
    pub step: StepId,
    /// The step whose effect that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub compensates: Option<StepId>,
    /// The run that it called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub run: Option<RunId>,
    /// Where it stands.
    #[schemars(with = "Word<windlass_core::step::Status>")]
    pub status: windlass_core::step::Status,
    /// When it ended, or began.
    pub at: Time,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// Why something failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// A stable code.
    #[schemars(with = "String")]
    pub code: Name,
    /// For people. Absent where the records have left the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl From<&windlass_core::step::Failure> for Failure {
    fn from(failure: &windlass_core::step::Failure) -> Failure {
        Failure { code: failure.code.clone(), message: Some(failure.message.clone()) }
    }
}

impl Failure {
    /// The text for people, empty where there is none.
    #[must_use]
    pub fn text(&self) -> &str {
        self.message.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The row of an ended run as older versions wrote it: without what is private, and with what is not shown any more.
    fn row() -> Value {
        json!({
            "id": "run_01k9g6a4pnf5c8x2v0q7d3w1zz", "pipeline": "deploy", "name": "b/deploy", "status": "failed",
            "tenant": "acme", "namespace": "default", "runbook_hash": "00".repeat(32),
            "trigger": { "source": "queue", "of": "worker", "event_id": "itm_01k9g6a4pnf5c8x2v0q7d3w1zz" },
            "created_at": "2025-11-19T23:39:15.123Z", "updated_at": "2025-11-19T23:40:15.123Z",
            "completed_at": "2025-11-19T23:40:15.123Z", "duration_ms": 60_000,
            "root_run": "run_01k9g6a4pnf5c8x2v0q7d3w1zz", "resume_count": 0, "error": { "code": "STEP_FAILED" },
            "suspended": false, "schema_version": 1, "something_older": true,
        })
    }

    #[test]
    fn a_row_of_an_older_version_can_be_read() {
        let run: Run = serde_json::from_value(row()).unwrap();
        assert_eq!((run.status, run.vars, run.steps), (Status::Failed, None, None));
        assert_eq!(run.error.map(|error| error.message), Some(None));
    }

    #[test]
    fn what_has_no_value_is_left_out() {
        let run: Run = serde_json::from_value(row()).unwrap();
        let mut wanted = row();
        wanted.as_object_mut().unwrap().remove("something_older");
        assert_eq!(serde_json::to_value(&run).unwrap(), wanted);
    }

    #[test]
    fn values_that_users_own_come_back_as_they_were() {
        let mut shown = row();
        shown["vars"] = json!({ "a": [1, 2.5, { "b": null }], "c": "ü" });
        let run: Run = serde_json::from_str(&shown.to_string()).unwrap();
        assert_eq!(serde_json::to_value(&run).unwrap()["vars"], shown["vars"]);
        // Through a tree of values too, which is how the command line reads answers.
        assert_eq!(Run::deserialize(&shown).unwrap(), run);
    }
}
