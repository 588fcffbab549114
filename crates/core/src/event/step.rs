//! Payloads of steps: leases, waits, endings, strategies, guards.

use super::payloads;
use crate::digest::Digest;
use crate::event::words::step::{Binding, Bound};
use crate::event::words::step::{Gate, Resolution, Shape, Wait};
use crate::id::{AgentId, Name, RunId, StepId};
use crate::private::Private;
use crate::time::Millis;
use alloc::string::String;
use alloc::vec::Vec;
use serde_json::Value;

payloads! {
    /// A `ready` step is `running`: leased under an epoch. The lease and the intent are this one record; it is
    /// the permission to act. A group is started by the flow and has no lease.
    "step:started" StepStarted Fact on "run" {
        pipeline_id: RunId, step: StepId, agent_id: Option<AgentId>, attempt: u32, epoch: u64,
        lease_owner: Option<Name>, lease_expires_at: Option<Millis>, timeout_at: Option<Millis>,
        action_hash: Option<Digest>, child: Option<RunId>,
    }

    /// The run's variables changed before the step began, and it was prepared with the present `edition` of them. Where
    /// this makes it another step (`changed`), what stands here takes the place of what was rendered before, and the step
    /// is `ready` again. An `approve` step that has succeeded stays so: its question changed, and what comes after it in
    /// the run asks it again.
    "step:prepared" StepPrepared Fact on "run" {
        pipeline_id: RunId, step: StepId, edition: u32, changed: bool, group: Option<Shape>, gates: Option<Vec<Gate>>,
        key: Option<Name>, action_hash: Option<Digest>, input: Option<Private<Value>>, bindings: Option<Vec<Binding>>,
        bound: Option<Bound>,
    }

    /// A step waits: for an approval it is `waiting_approval`, for anything else `waiting_external`.
    "step:waiting" StepWaiting Fact on "run" {
        pipeline_id: RunId, step: StepId, reason: Option<Wait>, on: Option<Name>, key: Option<Name>,
        until: Option<Millis>, source: Option<Name>, output: Option<Private<Value>>,
    }

    /// What the step waited for is there, its back-off is over, or a human said retry: it is `ready`.
    "step:ready" StepReady Fact on "run" {
        pipeline_id: RunId, step: StepId, after: Wait, on: Option<Name>, epoch: Option<u64>,
    }

    /// The step `succeeded`. `reused_from` names the run whose result or receipt served. `asked_by` are those who count as
    /// having asked from now on, because the output is theirs: whoever resolved the step, the requesters of a called run.
    /// Terminal.
    "step:completed" StepCompleted Fact on "run" {
        pipeline_id: RunId, step: StepId, epoch: u64, attempt: u32, duration_ms: u64, reused_from: Option<RunId>,
        output: Option<Private<Value>>, asked_by: Option<Vec<Name>>,
    }

    /// The step `failed`. Terminal.
    "step:failed" StepFailed Fact on "run" {
        pipeline_id: RunId, step: StepId, epoch: u64, attempt: u32, code: Name, duration_ms: u64, error: Private<String>,
    }

    /// The attempt failed and another follows at `next_eligible_at`: the step is `failed_retryable`.
    "step:retrying" StepRetrying Fact on "run" {
        pipeline_id: RunId, step: StepId, epoch: u64, attempt: u32, code: Name, next_eligible_at: Millis, error: Private<String>,
    }

    /// An executor handed its lease back unused: the step is `ready` again under the next epoch.
    "step:returned" StepReturned Fact on "run" {
        pipeline_id: RunId, step: StepId, epoch: u64, reason: Option<String>,
    }

    /// The lease ran out: the step is `ready` again under the next epoch. `last_seen` is the last heartbeat.
    "step:expired" StepExpired Fact on "run" {
        pipeline_id: RunId, step: StepId, epoch: u64, last_seen: Option<Millis>, lease_owner: Option<Name>,
    }

    /// An intent without a receipt: nobody knows whether the effect happened. A probe or a human settles it.
    "step:unknown" StepUnknown Fact on "run" {
        pipeline_id: RunId, step: StepId, epoch: u64, last_seen: Option<Millis>, probe: bool,
    }

    /// A human or a probe settled an `outcome_unknown` or an escalation.
    "step:resolved" StepResolved Fact on "run" {
        pipeline_id: RunId, step: StepId, epoch: u64, resolution: Resolution, probed: bool, reason: Option<String>,
    }

    /// The step's condition is false, its lock's overlap says so, or the group around it is taken over from an earlier run
    /// and it gave nothing to that: it never runs. Terminal.
    "step:skipped" StepSkipped Fact on "run" {
        pipeline_id: RunId, step: StepId, node: u32, parent: Option<StepId>, section: Option<crate::origin::Section>,
        reason: crate::event::words::step::Skip, tool: Name, item: Option<u32>,
    }

    /// The step was cancelled. Terminal.
    "step:cancelled" StepCancelled Fact on "run" {
        pipeline_id: RunId, step: StepId, epoch: u64, duration_ms: u64, reason: Option<String>,
    }

    /// A shell step's process ended. The step's own ending follows. `wall` is what kept it apart from its server or executor:
    /// `sandbox`, `user NAME`, or `none`.
    "shell:exited" ShellExited Fact on "run" {
        pipeline_id: RunId, step: StepId, exit_code: i32, epoch: u64, signal: Option<i32>, wall: Option<Name>,
    }

    /// What an attempt wrote could not all be kept: how many bytes of it are lost, and why. The command was not disturbed.
    "step:output_lost" StepOutputLost Fact on "run" {
        pipeline_id: RunId, step: StepId, epoch: u64, bytes: u64, reason: String,
    }

    /// An attempt was given a secret: its name, and which version of it. Committed before the value is used.
    "secret:used" SecretUsed Fact on "run" {
        pipeline_id: RunId, step: StepId, epoch: u64, secret: Name, version: Name,
    }

    /// An approach failed in a way that the next one is for.
    "strategy:fallback" StrategyFallback Fact on "run" {
        pipeline_id: RunId, step: StepId, from: u32, to: u32, matched: String,
    }

    /// The last approach failed.
    "strategy:exhausted" StrategyExhausted Fact on "run" {
        pipeline_id: RunId, step: StepId, approaches: u32,
    }

    /// The guards before or after a step hold.
    "guard:passed" GuardPassed Fact on "run" {
        pipeline_id: RunId, step: StepId, after: bool, asked: Option<Vec<String>>,
    }

    /// A guard does not hold, and says that this is worth a warning only.
    "guard:warned" GuardWarned Fact on "run" {
        pipeline_id: RunId, step: StepId, after: bool, guard: Name, unknown: bool, detail: String,
    }

    /// A guard does not hold: the step waits, and the guard is asked again at `retry_at`.
    "guard:blocked" GuardBlocked Fact on "run" {
        pipeline_id: RunId, step: StepId, after: bool, guard: Name, unknown: bool, retry_at: Millis,
        give_up_at: Option<Millis>, detail: String,
    }

    /// A guard does not hold, and that ends the step; `step:failed` follows.
    "guard:failed" GuardFailed Fact on "run" {
        pipeline_id: RunId, step: StepId, after: bool, guard: Name, unknown: bool, detail: String,
    }
}
