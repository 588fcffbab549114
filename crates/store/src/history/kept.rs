//! What a row keeps of a run beside its columns: nothing private, and nothing that only matters while it runs.
//!
//! The keys are those that answers have for a run. Rows that were written before this form existed have more of them;
//! readers skip what they do not need. The rest of a run is read back from the log.

use serde::Serialize;
use windlass_core::digest::Digest;
use windlass_core::id::{Name, RunId, StepId};
use windlass_core::run::{Initiator, Run, Status, Subject, Trigger};
use windlass_core::time::Millis;

/// The version of what answers show of a run.
const SCHEMA_VERSION: u32 = 1;

/// A run as its row keeps it.
#[derive(Serialize)]
pub(super) struct Kept<'a> {
    id: RunId,
    pipeline: &'a Name,
    name: &'a Name,
    status: Status,
    tenant: &'a Name,
    namespace: &'a Name,
    runbook_hash: Digest,
    trigger: &'a Trigger,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<&'a Subject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<&'a Name>,
    created_at: String,
    updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completed_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
    root_run: RunId,
    #[serde(skip_serializing_if = "Option::is_none")]
    resumed_from: Option<RunId>,
    resume_count: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_run: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_step: Option<&'a StepId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    takes_back: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cancellation: Option<Stopped<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failed<'a>>,
    suspended: bool,
    schema_version: u32,
}

#[derive(Serialize)]
struct Stopped<'a> {
    initiator: Initiator,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    at: String,
}

/// The text of a failure is private.
#[derive(Serialize)]
struct Failed<'a> {
    code: &'a Name,
}

/// A time as answers have it.
fn time(at: Millis) -> String {
    let stamp = i64::try_from(at.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    // Beyond the year 9999; such a time is only ever a mistake, and is kept as it is.
    stamp.map_or_else(|| format!("{}ms", at.0), |stamp| format!("{stamp:.3}"))
}

impl Kept<'_> {
    pub(super) fn of(run: &Run) -> Kept<'_> {
        let born = &run.born;
        let lineage = born.lineage();
        let ended = run.ending.as_ref().map(|ending| ending.at);
        Kept {
            id: born.id,
            pipeline: &born.home.pipeline,
            name: &born.name,
            status: run.status(),
            tenant: &born.home.tenant,
            namespace: &born.home.namespace,
            runbook_hash: born.home.runbook,
            trigger: &born.trigger,
            subject: born.subject.as_deref(),
            correlation_id: born.correlation_id.as_ref(),
            created_at: time(born.created_at),
            updated_at: time(run.updated_at),
            started_at: run.started_at.map(time),
            completed_at: ended.map(time),
            duration_ms: ended.map(|at| at.since(born.created_at).0),
            root_run: lineage.root_run,
            resumed_from: lineage.resumed_from,
            resume_count: lineage.resume_count,
            parent_run: born.parent.as_deref().map(|(run, _)| *run),
            parent_step: born.parent.as_deref().map(|(_, step)| step),
            takes_back: born.takes_back.as_deref().copied(),
            deadline_at: born.deadline_at.map(time),
            cancellation: run.stopping.as_deref().map(|stop| Stopped {
                initiator: stop.initiator,
                user: stop.user.as_ref(),
                reason: stop.reason.as_deref(),
                at: time(stop.at),
            }),
            error: run.failure.as_ref().map(|failure| Failed { code: &failure.1.code }),
            suspended: run.suspended,
            schema_version: SCHEMA_VERSION,
        }
    }
}
