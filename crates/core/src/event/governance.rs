//! Payloads of governance: policy, approvals, intents and receipts, ingress keys, schedules.

use super::payloads;
use crate::digest::Digest;
use crate::event::words::Source;
use crate::event::words::approval::{Channel, Refusal, Showing, Status, Tier, Verdict as Decision};
use crate::event::words::effect::{Action, Outcome, Reversal, Semantics, Settled};
use crate::event::words::effect::{Purpose, Risk, Verdict};
use crate::event::words::{CatchUp, Overlap, SkipReason};
use crate::id::{ApprovalId, Name, ReceiptId, RunId, StepId};
use crate::private::Private;
use crate::time::Millis;
use alloc::string::String;
use alloc::vec::Vec;
use serde_json::Value;

payloads! {
    /// A policy folder was loaded and is in force under its hash; none configured is the built-in one.
    "policy:loaded" PolicyLoaded Fact on "tenant" {
        policy_version: Digest, builtin: bool, policies: u32, text: Option<Private<String>>,
    }

    /// Policy looked at a proposed action. `step` absent: decided once for the run and `tool`. `purpose`: it was about a
    /// command or read beside the steps (a guard's, a `reconcile`, an external queue's), and holds for no step. Those of
    /// external queues stand in their worker's stream.
    "policy:decided" PolicyDecided Fact on "run" {
        pipeline_id: RunId, step: Option<StepId>, tool: Name, verdict: Verdict, policy_version: Digest,
        action_hash: Option<Digest>, approvals: u32, rules: Vec<String>, reasons: Vec<String>, risk: Risk,
        tier: Option<Tier>, count: Option<u32>, two_person: Option<bool>, approvers: Option<Vec<Name>>, expires_ms: Option<u64>,
        purpose: Option<Purpose>,
    }

    /// A human must decide. Bound to action hash, policy version, run, step and expiry. `by_step` is the `approve` step on
    /// whose behalf it is asked for; absent: policy, or the step itself. `changed_by` are all who
    /// count as having asked beside `requested_by`: for the item, event, call or slot that the run comes of, by changing its
    /// variables, by retrying or forking it, by the data of a signal.
    "approval:requested" ApprovalRequested Fact on "run" {
        approval_id: ApprovalId, pipeline_id: RunId, step: StepId, tier: Tier, two_person: bool, count: u32,
        approvers: Vec<Name>, action_hash: Digest, policy_version: Digest, reasons: Vec<String>, requested_by: Name,
        expires_at: Millis, self_approval: bool, message: Option<Private<String>>, action: Private<Action>,
        by_step: Option<StepId>, changed_by: Option<Vec<Name>>,
    }

    /// A human decided. The first rejection, or the last approval that was missing, settles it.
    "approval:decided" ApprovalDecided Fact on "run" {
        approval_id: ApprovalId, pipeline_id: RunId, step: StepId, decision: Decision, decided_by: Name, action_hash: Digest,
        channel: Channel, settled: bool, own_request: bool, reason: Option<Private<String>>, card: Option<Digest>,
    }

    /// An attempt to decide that was refused: the wrong human, a changed action, too late. For the audit; changes nothing.
    "approval:refused" ApprovalRefused Fact on "run" {
        approval_id: ApprovalId, pipeline_id: RunId, step: StepId, decided_by: Name, refusal: Refusal, channel: Channel,
    }

    /// Somebody was reminded of an open approval.
    "approval:reminded" ApprovalReminded Fact on "run" { approval_id: ApprovalId, pipeline_id: RunId, step: StepId, reminders: u32 }

    /// People were shown a card: its exact bytes, where it stands, and how the approval stood on it. Without a place it is the
    /// text that the command line and the API show. A decision says by `card` which one it was made on.
    "approval:shown" ApprovalShown Fact on "run" {
        approval_id: ApprovalId, pipeline_id: RunId, step: StepId, channel: Channel, showing: Showing, to: Option<Name>,
        place: Option<Name>, status: Status, decisions: u32, reminders: u32, card_hash: Digest, card: Private<String>,
    }

    /// Nobody decided in time: the step fails. Expiry never approves.
    "approval:expired" ApprovalExpired Fact on "run" { approval_id: ApprovalId, pipeline_id: RunId, step: StepId }

    /// The approval is void: the run was cancelled, or the action or the policy changed.
    "approval:cancelled" ApprovalCancelled Fact on "run" {
        approval_id: ApprovalId, pipeline_id: RunId, step: StepId, reason: String,
    }

    /// What is about to be done outside, committed before it is done.
    "intent:recorded" IntentRecorded Fact on "effect" {
        key: Name, generation: u32, pipeline_id: RunId, step: StepId, epoch: u64, tool: Name, operation: Name,
        target: Name, action_hash: Digest, semantics: Semantics,
    }

    /// What happened. A successful one under a key is the last of its generation.
    "receipt:recorded" ReceiptRecorded Fact on "effect" {
        receipt_id: ReceiptId, key: Name, generation: u32, pipeline_id: RunId, step: StepId, epoch: u64, tool: Name,
        operation: Name, target: Name, status: Outcome, reversible: bool, late: bool,
        reverse: Option<Private<Reversal>>, request: Option<Private<Value>>, response: Option<Private<Value>>,
    }

    /// A later receipt reversed the effect: the key's next generation may execute again.
    "receipt:reversed" ReceiptReversed Fact on "effect" {
        receipt_id: ReceiptId, key: Name, generation: u32, reversed_by: RunId,
    }

    /// The attempt died between intent and receipt: nobody knows whether the effect happened. Moved on by
    /// `intent:settled`, by a late `receipt:recorded`, or, where the tool is idempotent, by the next intent.
    "intent:lost" IntentLost Fact on "effect" {
        key: Name, generation: u32, pipeline_id: RunId, step: StepId, epoch: u64,
    }

    /// An intent without a receipt was settled by a probe or a human.
    "intent:settled" IntentSettled Fact on "effect" {
        key: Name, generation: u32, pipeline_id: RunId, step: StepId, epoch: u64, outcome: Settled, probed: bool,
    }

    /// A delivery claimed its key in the commit that creates its run.
    "trigger:claimed" TriggerClaimed Fact on "trigger" {
        key: Name, source: Source, request_hash: Digest, run: Option<RunId>, attempts: u32, expires_at: Millis, lock_expires_at: Millis,
    }

    /// The delivery was answered; repeats get the same answer until `expires_at`.
    "trigger:completed" TriggerCompleted Fact on "trigger" {
        key: Name, source: Source, run: Option<RunId>, expires_at: Millis, response: Option<Private<Value>>,
    }

    /// The delivery failed; a repeat may try again while attempts are left.
    "trigger:failed" TriggerFailed Fact on "trigger" {
        key: Name, source: Source, attempts: u32, expires_at: Millis, error: Private<String>,
    }

    /// The key is forgotten.
    "trigger:expired" TriggerExpired Fact on "trigger" { key: Name, source: Source }

    /// A schedule exists, or its settings changed.
    "schedule:created" ScheduleCreated Fact on "schedule" {
        schedule: Name, namespace: Name, spec: String, timezone: Name, jitter_ms: u64, catch_up: CatchUp, overlap: Overlap,
        pipeline: Name, runbook_hash: Digest, next_at: Option<Millis>, vars: Private<Value>,
        project_root: Option<String>,
    }

    /// A slot made a run. One per slot.
    "schedule:fired" ScheduleFired Fact on "schedule" {
        schedule: Name, slot: Millis, pipeline_id: RunId, manual: bool, next_at: Option<Millis>, asked_by: Option<Vec<Name>>,
    }

    /// A slot passed without a run.
    "schedule:skipped" ScheduleSkipped Fact on "schedule" {
        schedule: Name, slot: Millis, reason: SkipReason, next_at: Option<Millis>,
    }

    /// The slot waits until the run before it is terminal; `schedule:fired` follows for the same slot and run.
    "schedule:queued" ScheduleQueued Fact on "schedule" {
        schedule: Name, slot: Millis, pipeline_id: RunId, manual: bool, next_at: Option<Millis>, asked_by: Option<Vec<Name>>,
    }

    /// A cap lets the schedule make no run yet: what is due is looked at again at `next_at`.
    "schedule:deferred" ScheduleDeferred Fact on "schedule" { schedule: Name, next_at: Millis, reason: String }

    /// The slot's run is terminal.
    "schedule:settled" ScheduleSettled Fact on "schedule" { schedule: Name, pipeline_id: RunId }

    /// The schedule makes no runs until it is resumed.
    "schedule:paused" SchedulePaused Fact on "schedule" { schedule: Name }

    /// A paused schedule goes on at `next_at`.
    "schedule:resumed" ScheduleResumed Fact on "schedule" { schedule: Name, next_at: Option<Millis> }

    /// The active runbook does not declare the schedule any more.
    "schedule:removed" ScheduleRemoved Fact on "schedule" { schedule: Name }
}
