//! Steps: one executable unit of a run, or a group of them, from reached to ended.
//!
//! ```text
//! pending ──▶ ready ──▶ running ──▶ succeeded
//!    │          ▲ │        │  ├───▶ failed
//!    ▼          │ ▼        │  └───▶ failed_retryable ──▶ ready
//! skipped      waiting_* ◀─┤
//!                          └──▶ outcome_unknown ──▶ succeeded, ready, failed
//! ```
//!
//! A step that is not terminal can be cancelled. An attempt runs under a lease with an epoch; whoever reports
//! under another epoch changes nothing. The epoch and the attempt grow when a lease is handed back, expires or
//! fails, so at most one lease is live. A group has no lease: the flow in `pipeline` starts and ends it.

mod fold;
mod parts;
mod taken;
pub use crate::event::words::step::{
    FailFast, Failure, Gate, GroupKind, Resolution, Shape, Skip, Status, Taken, Values, Wait,
};
use parts::Ties;
pub use parts::{Group, Leased, OutputLost, Waiting};

use crate::code::Code;
use crate::digest::Digest;
use crate::event::words::step::{Binding, Bound};
use crate::event::{
    Event, PipelineAdvanced, StepCancelled, StepCompleted, StepExpired, StepFailed, StepPrepared, StepReady,
    StepResolved, StepRetrying, StepReturned, StepSkipped, StepStarted, StepUnknown, StepWaiting,
};
use crate::id::{AgentId, Holder, Name, RunId, StepId};
use crate::machine::{Decision, Row, table};
use crate::origin::Section;
use crate::packed::Packed;
use crate::private::Private;
use crate::receipt::Semantics;
use crate::time::{Millis, Span};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a step does with each input. What is not here is `RUN_INVALID_TRANSITION`, or `RUN_TERMINAL_STATE`.
pub const TABLE: &[Row] = table! {
    "pending": "reach" => "ready";
    "pending": "skip" => "skipped";
    "pending": "cancel" => "cancelled";
    "ready": "lease" => "running";
    "ready": "prepare" => "ready";
    "ready": "confirm" => "ready";
    "ready": "wait_approval" => "waiting_approval";
    "ready": "wait_external" => "waiting_external";
    "ready": "cancel" => "cancelled";
    "running": "succeed" => "succeeded";
    "running": "fail" => "failed";
    "running": "fail_retryable" => "failed_retryable";
    "running": "wait_approval" => "waiting_approval";
    "running": "wait_external" => "waiting_external";
    "running": "lose" => "ready" | "outcome_unknown" | "failed";
    "running": "return" => "ready";
    "running": "cancel" => "cancelled";
    "waiting_approval": "open" => "ready";
    "waiting_approval": "prepare" => "ready";
    "waiting_approval": "confirm" => "waiting_approval";
    "waiting_approval": "fail" => "failed";
    "waiting_approval": "cancel" => "cancelled";
    "waiting_external": "open" => "ready";
    "waiting_external": "prepare" => "ready";
    "waiting_external": "confirm" => "waiting_external";
    "waiting_external": "succeed" => "succeeded";
    "waiting_external": "skip" => "skipped";
    "waiting_external": "fail" => "failed";
    "waiting_external": "cancel" => "cancelled";
    "failed_retryable": "open" => "ready";
    "failed_retryable": "fail" => "failed";
    "failed_retryable": "cancel" => "cancelled";
    "outcome_unknown": "resolve_done" => "succeeded";
    "outcome_unknown": "resolve_retry" => "ready";
    "outcome_unknown": "resolve_fail" => "failed";
    "outcome_unknown": "succeed" => "succeeded";
    "outcome_unknown": "cancel" => "cancelled";
    "succeeded": "prepare" => "succeeded";
    "succeeded": "confirm" => "succeeded";
};

/// A lease that is lost this often ends the step: something about it kills its executors.
pub const LOSSES_MAX: u32 = 100;

/// A step of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Its name in the run.
    pub id: StepId,
    /// Its definition's place in the pinned runbook.
    pub node: u32,
    /// The group it belongs to, by its place in the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// The section it belongs to.
    pub section: Section,
    /// What carries it out.
    pub tool: Name,
    /// Where it is.
    pub status: Status,
    /// The number of the current or next attempt, from 1.
    pub attempt: u32,
    /// The fence of the current or next attempt, from 1.
    pub epoch: u64,
    /// How many attempts failed.
    pub failures: u32,
    /// How many leases were lost.
    pub losses: u32,
    /// How many attempts may fail in all.
    pub max_attempts: u32,
    /// Which item of its `foreach` it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    /// The step whose effect it takes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensates: Option<u32>,
    /// The lease in force; of an attempt whose outcome is unknown, the one that ran out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Leased>,
    /// When the attempt is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_at: Option<Millis>,
    /// When the back-off is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_eligible_at: Option<Millis>,
    /// What it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Box<Waiting>>,
    /// What is left to pass before it can be leased.
    #[serde(default, skip_serializing_if = "<[Gate]>::is_empty")]
    pub gates: Box<[Gate]>,
    /// How many of the gates are passed.
    pub passed: u32,
    /// The declared key of its side effect; the lineage and the step's name otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Name>,
    /// What its proposed action hashes to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    action_hash: Option<Box<Digest>>,
    /// What can be done about a lost attempt: absent, it is run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub semantics: Option<Semantics>,
    /// The rendered input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Packed>,
    /// Which edition of the run's variables it is given.
    #[serde(default, skip_serializing_if = "parts::is_first")]
    pub edition: u32,
    /// What came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Packed>,
    /// Why it failed, or why its last attempt did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Box<Failure>>,
    /// How far it is, where it is a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// The child run of a `call`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    child: Option<Box<RunId>>,
    /// The agent at work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agent: Option<Box<AgentId>>,
    /// What binds it to approvals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ties: Option<Box<Ties>>,
    /// When its first attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Millis>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Millis>,
    /// When the executor of a lost attempt was last heard of, until another has the step; of a group, when it lost its hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_at: Option<Millis>,
    /// The place among the run's ended steps, from 1: compensations go through it backwards.
    pub ended: u32,
    /// Whether it acted to its end and failed only at its guards after: its effect is there, and is taken back like that
    /// of a step that succeeded.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub acted: bool,
    /// What the last attempt wrote that could not be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_lost: Option<Box<OutputLost>>,
}

/// What can happen to a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// The flow reached it.
    Reach(Box<PipelineAdvanced>),
    /// The run's variables changed before it began.
    Prepare(Box<StepPrepared>),
    /// The flow passed it by.
    Skip(Box<StepSkipped>),
    /// Somebody carries it out, or the flow starts a group.
    Lease {
        owner: Option<Name>,
        ttl: Span,
        timeout: Option<Span>,
        agent: Option<AgentId>,
        child: Option<RunId>,
    },
    /// It waits for something; `output` is kept for the guards after.
    Wait { reason: Wait, on: Option<Name>, key: Option<Name>, until: Option<Millis>, output: Option<Value> },
    /// What it waited for is there.
    Open { after: Wait, on: Option<Name>, epoch: Option<u64> },
    /// The attempt succeeded, or what it waited for was all there was to do.
    Succeed { epoch: u64, output: Option<Value>, reused_from: Option<RunId> },
    /// The attempt failed, and another follows where `retry_at` says when.
    Fail { epoch: u64, failure: Failure, retry_at: Option<Millis> },
    /// The executor hands its lease back unused.
    Return { epoch: u64, reason: Option<String> },
    /// The lease ran out, or the executor is known to be dead. `again`: a checkpoint says that a repeat is safe.
    Lose { epoch: u64, last_seen: Option<Millis>, again: bool },
    /// A human or a probe says what became of it.
    Resolve {
        epoch: u64,
        resolution: Resolution,
        probed: bool,
        output: Option<Value>,
        reason: Option<String>,
    },
    /// It shall not go on.
    Cancel { reason: Option<String> },
}

impl Input {
    /// Its name in the table.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Input::Reach(_) => "reach",
            Input::Prepare(prepared) if prepared.changed => "prepare",
            Input::Prepare(_) => "confirm",
            Input::Skip(_) => "skip",
            Input::Lease { .. } => "lease",
            Input::Wait { reason: Wait::Approval | Wait::Budget | Wait::Escalation, .. } => "wait_approval",
            Input::Wait { .. } => "wait_external",
            Input::Open { .. } => "open",
            Input::Succeed { .. } => "succeed",
            Input::Fail { retry_at: None, .. } => "fail",
            Input::Fail { retry_at: Some(_), .. } => "fail_retryable",
            Input::Return { .. } => "return",
            Input::Lose { .. } => "lose",
            Input::Resolve { resolution: Resolution::Done, .. } => "resolve_done",
            Input::Resolve { resolution: Resolution::Retry, .. } => "resolve_retry",
            Input::Resolve { resolution: Resolution::Fail, .. } => "resolve_fail",
            Input::Cancel { .. } => "cancel",
        }
    }
}

/// Why a step refuses an input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The table does not have it.
    #[error("step `{step}` is {status}: it cannot {input}")]
    Transition {
        /// The step.
        step: StepId,
        /// Where it is.
        status: Status,
        /// What was asked.
        input: &'static str,
    },
    /// It has ended.
    #[error("step `{step}` has ended as {status}")]
    Terminal {
        /// The step.
        step: StepId,
        /// How.
        status: Status,
    },
    /// The report is about an earlier attempt.
    #[error(
        "step `{step}` is at epoch {current}, the report is of epoch {reported}: somebody else has the lease by now"
    )]
    StaleEpoch {
        /// The step.
        step: StepId,
        /// Its epoch.
        current: u64,
        /// The report's.
        reported: u64,
    },
    /// Something still has to be passed.
    #[error("step `{step}` has not passed `{gate}` yet")]
    GateClosed {
        /// The step.
        step: StepId,
        /// The next gate.
        gate: Gate,
    },
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Transition { .. } | Error::GateClosed { .. } => Code::RunInvalidTransition,
            Error::Terminal { .. } => Code::RunTerminalState,
            Error::StaleEpoch { .. } => Code::LeaseStaleEpoch,
        }
    }
}

impl Status {
    /// Whether nothing changes it any more.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Status::Succeeded | Status::Skipped | Status::Failed | Status::Cancelled)
    }
}

impl Step {
    /// A step that was not reached yet.
    #[must_use]
    pub fn pending(id: StepId, node: u32, tool: Name) -> Step {
        Step {
            id,
            node,
            parent: None,
            section: Section::Main,
            tool,
            status: Status::Pending,
            attempt: 1,
            epoch: 1,
            failures: 0,
            losses: 0,
            max_attempts: 1,
            item: None,
            compensates: None,
            lease: None,
            timeout_at: None,
            next_eligible_at: None,
            waiting: None,
            gates: Box::default(),
            passed: 0,
            key: None,
            action_hash: None,
            semantics: None,
            input: None,
            edition: 0,
            output: None,
            error: None,
            group: None,
            child: None,
            agent: None,
            ties: None,
            started_at: None,
            completed_at: None,
            lost_at: None,
            ended: 0,
            acted: false,
            output_lost: None,
        }
    }

    /// The name of its state in the table.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        self.status.as_str()
    }

    /// The gate that is next.
    #[must_use]
    pub fn next_gate(&self) -> Option<&Gate> {
        self.gates.get(self.passed as usize)
    }

    /// The gates it has passed: what it holds.
    #[must_use]
    pub fn held(&self) -> &[Gate] {
        &self.gates[..(self.passed as usize).min(self.gates.len())]
    }

    /// What its proposed action hashes to.
    #[must_use]
    pub fn action_hash(&self) -> Option<&Digest> {
        self.action_hash.as_deref()
    }

    /// The actions of later steps that it shows, where it is an `approve` step.
    #[must_use]
    pub fn bindings(&self) -> &[Binding] {
        self.ties.as_ref().map_or(&[], |ties| &ties.bindings)
    }

    /// What it is held to, where an `approve` step names it.
    #[must_use]
    pub fn bound(&self) -> Option<&Bound> {
        self.ties.as_ref().and_then(|ties| ties.bound.as_ref())
    }

    /// What was rendered for it, before it is reached.
    pub(crate) fn prepare(&mut self, action_hash: Option<Digest>, input: Option<&Value>, edition: u32) {
        self.edition = edition;
        self.action_hash = action_hash.map(Box::new);
        self.input = input.map(Packed::of);
    }

    /// Why a group fails that lost what it held, once its members have ended.
    #[must_use]
    pub fn lost_hold(&self) -> Option<&Failure> {
        let lost = self.group.is_some() && self.status == Status::Running && self.lost_at.is_some();
        self.error.as_deref().filter(|_| lost)
    }

    /// The child run of a `call`.
    #[must_use]
    pub fn child(&self) -> Option<RunId> {
        self.child.as_deref().copied()
    }

    /// The agent at work.
    #[must_use]
    pub fn agent(&self) -> Option<AgentId> {
        self.agent.as_deref().copied()
    }

    /// The rendered input.
    #[must_use]
    pub fn input(&self) -> Option<Value> {
        self.input.as_ref().map(Packed::get)
    }

    /// What came of it.
    #[must_use]
    pub fn output(&self) -> Option<Value> {
        self.output.as_ref().map(Packed::get)
    }

    /// What comes after its definition's name in its own, for the members of a group.
    #[must_use]
    pub fn suffix<'a>(&'a self, definition: &Name) -> &'a str {
        self.id.as_str().strip_prefix(definition.as_str()).unwrap_or("")
    }

    /// Whether it changes something outside.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.action_hash.is_some() && self.semantics.is_some()
    }

    /// Whether an attempt that ends without a word leaves an unknown outcome.
    #[must_use]
    pub fn may_be_unknown(&self) -> bool {
        matches!(self.semantics, Some(Semantics::AtMostOnce | Semantics::Reconcile))
    }

    /// Who holds its locks and slots.
    #[must_use]
    pub fn holder(&self, run: RunId) -> Holder {
        Holder::Step(run, self.id.clone())
    }

    /// When it next wants to be looked at: a lease, a time-out, a back-off or a wait that ends.
    #[must_use]
    pub fn due(&self) -> Option<Millis> {
        let waits = self.waiting.as_ref().and_then(|w| w.until);
        match self.status {
            Status::Running => self.timeout_at,
            Status::WaitingApproval | Status::WaitingExternal => waits,
            Status::FailedRetryable => self.next_eligible_at,
            Status::Pending | Status::Ready | Status::OutcomeUnknown => None,
            Status::Succeeded | Status::Skipped | Status::Failed | Status::Cancelled => None,
        }
    }

    /// Whether an executor carries it out: neither the flow, which runs groups, nor a child run.
    #[must_use]
    pub fn is_executing(&self) -> bool {
        self.status == Status::Running && self.lease.is_some() && self.child.is_none()
    }

    /// Whether an executor may report on it under this epoch: its attempt is under way, or was lost and not settled.
    ///
    /// # Errors
    /// A stale epoch, or no such attempt.
    pub fn must_be_attempted(&self, epoch: u64) -> Result<(), Error> {
        self.fenced(epoch)?;
        if self.is_executing() || self.status == Status::OutcomeUnknown {
            return Ok(());
        }
        Err(self.refused("be reported on"))
    }

    fn refuse(&self, input: &Input) -> Error {
        self.refused(input.name())
    }

    fn refused(&self, input: &'static str) -> Error {
        if self.status.is_terminal() {
            Error::Terminal { step: self.id.clone(), status: self.status }
        } else {
            Error::Transition { step: self.id.clone(), status: self.status, input }
        }
    }

    fn fenced(&self, reported: u64) -> Result<(), Error> {
        if reported == self.epoch {
            return Ok(());
        }
        Err(Error::StaleEpoch { step: self.id.clone(), current: self.epoch, reported })
    }

    /// What the input comes to. `run` is whose step it is.
    ///
    /// # Errors
    /// What the table does not have, a stale epoch, a gate that is not passed.
    pub fn decide(&self, run: RunId, input: &Input, at: Millis) -> Result<Decision, Error> {
        use Status as S;
        let done = Decision::new();
        match (self.status, input) {
            (S::Pending, Input::Reach(advanced)) => Ok(done.fact((**advanced).clone())),
            // A step whose lock is held, and whose `overlap` says skip, is passed by after it was reached.
            (S::Pending | S::WaitingExternal, Input::Skip(skipped)) => Ok(done.fact((**skipped).clone())),

            // One that succeeded is an `approve` step: only what it asks is another question.
            (S::Ready | S::WaitingApproval | S::WaitingExternal | S::Succeeded, Input::Prepare(prepared)) => {
                Ok(done.fact((**prepared).clone()))
            }

            (S::Ready, Input::Lease { owner, ttl, timeout, agent, child }) => {
                if let Some(gate) = self.next_gate() {
                    return Err(Error::GateClosed { step: self.id.clone(), gate: gate.clone() });
                }
                Ok(done.fact(StepStarted {
                    pipeline_id: run,
                    step: self.id.clone(),
                    agent_id: *agent,
                    attempt: self.attempt,
                    epoch: self.epoch,
                    lease_expires_at: owner.as_ref().map(|_| at + *ttl),
                    lease_owner: owner.clone(),
                    timeout_at: timeout.map(|span| at + span),
                    action_hash: self.action_hash().copied(),
                    child: *child,
                }))
            }

            (S::Ready | S::Running, Input::Wait { reason, on, key, until, output }) => {
                Ok(done.fact(StepWaiting {
                    pipeline_id: run,
                    step: self.id.clone(),
                    reason: Some(*reason),
                    on: on.clone(),
                    key: key.clone(),
                    until: *until,
                    source: None,
                    output: output.clone().map(Private::New),
                }))
            }

            (
                S::WaitingApproval | S::WaitingExternal | S::FailedRetryable,
                Input::Open { after, on, epoch },
            ) => Ok(done.fact(StepReady {
                pipeline_id: run,
                step: self.id.clone(),
                after: *after,
                on: on.clone(),
                epoch: *epoch,
            })),

            // A report of success also settles an unknown outcome: it is the evidence that was missing.
            (
                S::Running | S::WaitingExternal | S::OutcomeUnknown,
                Input::Succeed { epoch, output, reused_from },
            ) => {
                self.fenced(*epoch)?;
                Ok(done.fact(self.completed(run, output.clone(), *reused_from, at)))
            }

            (S::Running, Input::Fail { epoch, failure, retry_at: Some(retry_at) }) => {
                self.fenced(*epoch)?;
                Ok(done.fact(StepRetrying {
                    pipeline_id: run,
                    step: self.id.clone(),
                    epoch: *epoch,
                    attempt: self.attempt,
                    code: failure.code.clone(),
                    next_eligible_at: *retry_at,
                    error: Private::New(failure.message.clone()),
                }))
            }
            (
                S::Running | S::WaitingApproval | S::WaitingExternal | S::FailedRetryable,
                Input::Fail { epoch, failure, retry_at: None },
            ) => {
                self.fenced(*epoch)?;
                Ok(done.fact(self.failed(run, failure.clone(), at)))
            }

            (S::Running, Input::Return { epoch, reason }) => {
                self.fenced(*epoch)?;
                Ok(done.fact(StepReturned {
                    pipeline_id: run,
                    step: self.id.clone(),
                    epoch: *epoch,
                    reason: reason.clone(),
                }))
            }

            (S::Running, Input::Lose { epoch, last_seen, again }) => {
                self.fenced(*epoch)?;
                Ok(done.fact(self.lost(run, *last_seen, at, *again)))
            }

            (S::OutcomeUnknown, Input::Resolve { epoch, resolution, probed, output, reason }) => {
                self.fenced(*epoch)?;
                let resolved = done.fact(StepResolved {
                    pipeline_id: run,
                    step: self.id.clone(),
                    epoch: *epoch,
                    resolution: *resolution,
                    probed: *probed,
                    reason: reason.clone(),
                });
                Ok(match resolution {
                    Resolution::Done => resolved.fact(self.completed(run, output.clone(), None, at)),
                    Resolution::Retry => resolved,
                    Resolution::Fail => {
                        let message = reason.clone().unwrap_or_else(|| "given up".to_string());
                        resolved.fact(self.failed(run, Failure::new(Code::OutcomeUnknown, message), at))
                    }
                })
            }

            (
                S::Pending
                | S::Ready
                | S::Running
                | S::WaitingApproval
                | S::WaitingExternal
                | S::FailedRetryable
                | S::OutcomeUnknown,
                Input::Cancel { reason },
            ) => Ok(done.fact(StepCancelled {
                pipeline_id: run,
                step: self.id.clone(),
                epoch: self.epoch,
                duration_ms: self.duration(at),
                reason: reason.clone(),
            })),

            // An attempt that was overtaken hears so, whatever became of the step since.
            (
                S::Pending
                | S::Ready
                | S::Running
                | S::WaitingApproval
                | S::WaitingExternal
                | S::FailedRetryable
                | S::OutcomeUnknown
                | S::Succeeded
                | S::Skipped
                | S::Failed
                | S::Cancelled,
                Input::Succeed { epoch, .. }
                | Input::Fail { epoch, .. }
                | Input::Return { epoch, .. }
                | Input::Lose { epoch, .. }
                | Input::Resolve { epoch, .. },
            ) => {
                self.fenced(*epoch)?;
                Err(self.refuse(input))
            }
            (
                S::Pending
                | S::Ready
                | S::Running
                | S::WaitingApproval
                | S::WaitingExternal
                | S::FailedRetryable
                | S::OutcomeUnknown
                | S::Succeeded
                | S::Skipped
                | S::Failed
                | S::Cancelled,
                Input::Reach(_)
                | Input::Prepare(_)
                | Input::Skip(_)
                | Input::Lease { .. }
                | Input::Wait { .. }
                | Input::Open { .. }
                | Input::Cancel { .. },
            ) => Err(self.refuse(input)),
        }
    }

    fn duration(&self, at: Millis) -> u64 {
        self.started_at.map_or(0, |start| at.since(start).0)
    }

    fn completed(
        &self,
        run: RunId,
        output: Option<Value>,
        reused_from: Option<RunId>,
        at: Millis,
    ) -> StepCompleted {
        StepCompleted {
            pipeline_id: run,
            step: self.id.clone(),
            epoch: self.epoch,
            attempt: self.attempt,
            duration_ms: self.duration(at),
            reused_from,
            output: output.or_else(|| self.output()).map(Private::New),
            asked_by: None,
        }
    }

    fn failed(&self, run: RunId, failure: Failure, at: Millis) -> StepFailed {
        StepFailed {
            pipeline_id: run,
            step: self.id.clone(),
            epoch: self.epoch,
            attempt: self.attempt,
            code: failure.code,
            duration_ms: self.duration(at),
            error: Private::New(failure.message),
        }
    }

    /// A lost attempt of a plain step is run again; of an outside write it depends on what can be known.
    fn lost(&self, run: RunId, last_seen: Option<Millis>, at: Millis, again: bool) -> Event {
        match self.semantics.filter(|_| !again) {
            Some(semantics @ (Semantics::AtMostOnce | Semantics::Reconcile)) => StepUnknown {
                pipeline_id: run,
                step: self.id.clone(),
                epoch: self.epoch,
                last_seen,
                probe: semantics == Semantics::Reconcile,
            }
            .into(),
            Some(Semantics::Idempotent) | None if self.losses + 1 < LOSSES_MAX => StepExpired {
                pipeline_id: run,
                step: self.id.clone(),
                epoch: self.epoch,
                last_seen,
                lease_owner: self.lease.as_ref().map(|lease| lease.owner.clone()),
            }
            .into(),
            Some(Semantics::Idempotent) | None => {
                let message = "every attempt lost its executor; look at what the step does to it";
                self.failed(run, Failure::new(Code::RunOrphaned, message), at).into()
            }
        }
    }
}

#[cfg(test)]
mod tests;
