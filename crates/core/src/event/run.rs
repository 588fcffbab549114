//! Payloads of runs: runbooks, the life of a run, checkpoints, signals, costs.

use super::payloads;
use crate::digest::Digest;
use crate::event::words::Evidence;
use crate::event::words::effect::Semantics;
use crate::event::words::step::{Binding, Bound};
use crate::event::words::step::{Gate, Shape, Taken, Values};
use crate::id::{Name, RunId, StepId, WorkspaceId};
use crate::origin::{BlockedOn, Inherited, Lineage, Section, Subject, Trigger};
use crate::packed::Packed;
use crate::private::Private;
use crate::time::Millis;
use alloc::string::String;
use alloc::vec::Vec;
use serde_json::Value;

payloads! {
    /// A person or a program asked for the run that `pipeline:created` before it made: by which command, with which
    /// variables, where.
    "command:run" CommandRun Signal on "run" {
        pipeline_id: RunId, pipeline_name: Name, project_root: String, invoke_dir: String, command: String,
        args: Private<Packed>,
    }

    /// A runbook's content is known under its hash. Runs are pinned to it.
    "runbook:loaded" RunbookLoaded Fact on "runbook" {
        hash: Digest, version: u32, runbook: Value, name: Name, source: Option<Private<String>>,
    }

    /// A runbook became the active version of its name; schedules, triggers, queues and workers follow it.
    "runbook:deployed" RunbookDeployed Fact on "deployment" {
        name: Name, hash: Digest, namespace: Name, replaces: Option<Digest>, deployed_by: Option<Name>,
        project_root: Option<String>,
    }

    /// A name has no active version any more: schedules and triggers ended with it, its workers stopped. Runs that are pinned
    /// to `hash`, the last one, go on.
    "runbook:withdrawn" RunbookWithdrawn Fact on "deployment" {
        name: Name, hash: Digest, namespace: Name,
    }

    /// A run exists and is `pending`. Moved on by `pipeline:started` or `pipeline:blocked`.
    "pipeline:created" PipelineCreated Fact on "run" {
        id: RunId, kind: Name, name: Name, runbook_hash: Digest, cwd: String, vars: Private<Packed>,
        initial_step: Option<StepId>, created_at_epoch_ms: Millis, namespace: Name,
        trigger: Trigger, lineage: Lineage, subject: Option<Subject>, correlation_id: Option<Name>,
        deadline_at: Option<Millis>, priority: Option<i32>, parent: Option<RunId>, parent_step: Option<StepId>,
        depth: Option<u32>, needs: Option<Vec<RunId>>, lock: Option<Name>, initial_node: Option<u32>,
        budget_usd_micros: Option<u64>, budget_tokens: Option<u64>, writes_max: Option<u32>, workspace: Option<WorkspaceId>,
        budget_time_ms: Option<u64>, budget_writes: Option<u64>, needs_pipelines: Option<Vec<Name>>,
        asked_by: Option<Vec<Name>>,
        takes_back: Option<RunId>, evidence: Option<Evidence>,
    }

    /// A `pending` run of a lineage takes over results of an earlier run: what is reached and listed here
    /// completes without being executed again.
    "pipeline:inherited" PipelineInherited Fact on "run" {
        id: RunId, from: RunId, steps: Private<Vec<Inherited>>,
    }

    /// A `pending` run takes back what a called run did that had completed (`of`): it has that run's steps as they ended,
    /// and begins with their compensations. `values` are the inputs and outputs of the steps, in their order.
    "pipeline:reverses" PipelineReverses Fact on "run" {
        id: RunId, of: RunId, steps: Vec<Taken>, values: Private<Vec<Values>>,
    }

    /// A `pending` run waits for other runs, for pipelines that never ran, or for its lock. Moved on by `pipeline:unblocked`.
    "pipeline:blocked" PipelineBlocked Fact on "run" {
        id: RunId, on: BlockedOn,
    }

    /// What a `blocked` run waited for is there: `epoch` fences the lock where it was one.
    "pipeline:unblocked" PipelineUnblocked Fact on "run" {
        id: RunId, epoch: Option<u64>,
    }

    /// A `pending` or unblocked run begins. `approvers` are the definitions of `approve` steps that name others.
    "pipeline:started" PipelineStarted Fact on "run" {
        id: RunId, steps: u32, approvers: Option<Vec<u32>>,
    }

    /// The run reached a step: it exists and is `ready`. A lease, a gate or the flow moves it on. Carries what
    /// was rendered for it, so that nothing is evaluated twice. `edition` counts the changes of the run's variables before
    /// it: the step is given the variables as they were then. An `approve` step says with `bindings` which actions of
    /// later steps it shows; a step that one names says with `bound` what it is held to.
    "pipeline:advanced" PipelineAdvanced Fact on "run" {
        id: RunId, step: StepId, node: u32, parent: Option<StepId>, section: Option<Section>,
        tool: Name, item: Option<u32>, compensates: Option<StepId>, group: Option<Shape>, gates: Option<Vec<Gate>>,
        key: Option<Name>, action_hash: Option<Digest>, max_attempts: Option<u32>, semantics: Option<Semantics>,
        input: Option<Private<Value>>, bindings: Option<Vec<Binding>>, bound: Option<Bound>, edition: Option<u32>,
    }

    /// Variables of a run were changed (`resume --var`): from here on it has the next edition of them. What was prepared
    /// with an earlier one and has not begun is prepared anew (`step:prepared`).
    "pipeline:updated" PipelineUpdated Fact on "run" {
        id: RunId, vars: Private<Value>, message: Option<Private<String>>, user: Option<Name>,
    }

    /// The run goes to another section: `on_failure`, `compensate` or `finally`. The first failure stands here.
    "pipeline:entered" PipelineEntered Fact on "run" {
        id: RunId, section: Section, steps: u32, code: Option<Name>, step: Option<StepId>, error: Option<Private<String>>,
    }

    /// Nothing of the run is leased until it is resumed.
    "pipeline:suspended" PipelineSuspended Fact on "run" {
        id: RunId, reason: Option<String>,
    }

    /// A suspended run goes on.
    "pipeline:resumed" PipelineResumed Fact on "run" {
        id: RunId, message: Option<Private<String>>,
    }

    /// Nothing new starts forward; compensations and `finally` run; then `pipeline:cancelled` follows.
    "pipeline:cancelling" PipelineCancelling Fact on "run" {
        id: RunId, initiator: crate::origin::Initiator, user: Option<Name>, reason: Option<String>,
    }

    /// Every step is succeeded, or skipped by a condition that the runbook declares. Terminal.
    "pipeline:completed" PipelineCompleted Fact on "run" {
        id: RunId, duration_ms: u64, outputs: Option<Private<Value>>,
    }

    /// The run failed and its `on_failure`, compensations and `finally` are over. Terminal.
    "pipeline:failed" PipelineFailed Fact on "run" {
        id: RunId, duration_ms: u64, code: Name, step: Option<StepId>, error: Private<String>,
    }

    /// The run was cancelled; the compensation log is what ran in section `compensate`. Terminal.
    "pipeline:cancelled" PipelineCancelled Fact on "run" {
        id: RunId, duration_ms: u64, compensated: Vec<StepId>,
    }

    /// Recovery found a `running` run whose executor's heartbeat is stale; its steps' leases expire.
    "pipeline:orphaned" PipelineOrphaned Fact on "run" {
        id: RunId, last_heartbeat_at: Option<Millis>, resumed: bool,
    }

    /// The run, its records and its output left the store by retention. It stands in a stream of its tenant for what left, as the
    /// run's own is gone; the head that a seal covers stays for the proof of what was sealed beside it.
    "pipeline:deleted" PipelineDeleted Fact on "retired" {
        id: RunId, reason: Option<String>,
    }

    /// Somebody asked to resume a run.
    "pipeline:resume" PipelineResume Action on "run" {
        id: RunId, message: Option<Private<String>>, vars: Private<Value>,
    }

    /// Somebody asked to cancel a run.
    "pipeline:cancel" PipelineCancel Action on "run" {
        id: RunId, reason: Option<String>,
    }

    /// Somebody asked to suspend a run.
    "pipeline:suspend" PipelineSuspend Action on "run" {
        id: RunId, reason: Option<String>,
    }

    /// Somebody retried a `failed` run: `new` is the linked run that reuses its successful results.
    "pipeline:retry" PipelineRetry Action on "run" {
        id: RunId, new: RunId,
    }

    /// Somebody forked a run from a step: `new` is the linked run.
    "pipeline:fork" PipelineFork Action on "run" {
        id: RunId, new: RunId, from: StepId,
    }

    /// Somebody asked to undo a run's effects: `new` is the linked run that reverses them. It stands in the stream of each
    /// called run too; there `path` names the calls through which `new` reaches it.
    "pipeline:undo" PipelineUndo Action on "run" {
        id: RunId, new: RunId, path: Option<String>,
    }

    /// A step saved its progress (`step` set), or a message was put on the run (`step` absent).
    "checkpoint:saved" CheckpointSaved Fact on "run" {
        pipeline_id: RunId, step: Option<StepId>, epoch: Option<u64>, resumable: bool, idempotent: bool,
        tokens_input: Option<u64>, tokens_output: Option<u64>, message: Option<Private<String>>, data: Option<Private<Value>>,
    }

    /// An external event arrived for a run that is not waiting for it yet: kept until it is.
    "signal:received" SignalReceived Fact on "run" {
        pipeline_id: RunId, name: Name, key: Option<Name>, source: Option<Name>, event_id: Option<Name>, data: Private<Value>,
        asked_by: Option<Vec<Name>>,
    }

    /// A waiting step took an external event. Each is consumed once.
    "signal:consumed" SignalConsumed Fact on "run" {
        pipeline_id: RunId, step: StepId, name: Name, key: Option<Name>,
    }

    /// An external event came by its key, and no run waited for it: kept until one does, or until `expires_at`.
    "signal:kept" SignalKept Fact on "signal" {
        name: Name, key: Option<Name>, event_id: Option<Name>, expires_at: Millis, data: Private<Value>,
        source: Option<Name>, asked_by: Option<Vec<Name>>,
    }

    /// A step that began to wait took a kept event: the oldest with this `expires_at`. Each is taken once.
    "signal:taken" SignalTaken Fact on "signal" {
        name: Name, key: Option<Name>, expires_at: Millis, pipeline_id: RunId, step: StepId,
    }

    /// Nobody waited for these events in time.
    "signal:expired" SignalExpired Fact on "signal" { until: Millis, count: u32 }

    /// Part of the budget is set aside for an attempt; settled by `cost:recorded`, or given back by
    /// `budget:released`.
    "budget:reserved" BudgetReserved Fact on "run" {
        pipeline_id: RunId, step: StepId, epoch: u64, usd_micros: u64, tokens: u64, time_ms: Option<u64>, writes: Option<u64>,
    }

    /// The attempt ended without a cost: what was set aside for it is free again.
    "budget:released" BudgetReleased Fact on "run" {
        pipeline_id: RunId, step: StepId, epoch: u64,
    }

    /// The budget is used up: the step waits for an approval, its work is kept.
    "budget:exceeded" BudgetExceeded Fact on "run" {
        pipeline_id: RunId, step: StepId, dimension: crate::event::words::Dimension, limit: u64, needed: u64,
    }

    /// A human raised the budget to these limits; 0 leaves one as it is.
    "budget:raised" BudgetRaised Fact on "run" {
        pipeline_id: RunId, usd_micros: u64, tokens: u64, time_ms: u64, writes: Option<u64>,
    }

    /// What an attempt cost. Releases its reservation.
    "cost:recorded" CostRecorded Fact on "run" {
        pipeline_id: RunId, step: StepId, epoch: u64, provider: Name, model: Name, usd_micros: u64,
        tokens_input: u64, tokens_output: u64, time_ms: Option<u64>, writes: Option<u64>,
    }
}
