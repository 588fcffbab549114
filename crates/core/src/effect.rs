//! Effects: what a machine asks of the outside, as data. A machine never acts.
//!
//! An effect is released after the commit of the facts that it came with. What is asked of other streams is a
//! [`Follow`](crate::follow::Follow), and is decided before that commit.

use crate::digest::Digest;
pub use crate::event::words::Notice;
use crate::event::words::effect::{Action, Semantics};
use crate::id::{ApprovalId, ItemId, Name, NoticeId, RunId, Scoped, SessionId, StepId, WorkspaceId};
use crate::packed::Packed;
use crate::time::{Millis, Span};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use serde_json::Value;

/// The permission to carry out one attempt of a step, as an executor gets it.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// The run.
    pub run: RunId,
    /// The step.
    pub step: StepId,
    /// Which try this is, from 1.
    pub attempt: u32,
    /// The fence: results under another epoch are refused.
    pub epoch: u64,
    /// What carries it out.
    pub tool: Name,
    /// The rendered input.
    pub input: Option<Value>,
    /// The variables that it is given: those that it was prepared with, and approved.
    pub vars: Packed,
    /// What identifies the side effect.
    pub idempotency_key: Name,
    /// What can be done about an attempt of which nobody knows whether it had its effect; absent where it has none.
    pub semantics: Option<Semantics>,
    /// When the lease ends unless it is extended.
    pub expires_at: Millis,
    /// When the attempt is stopped.
    pub timeout_at: Option<Millis>,
    /// Whose it is.
    pub owner: Name,
    /// The place of the step's definition in the pinned runbook.
    pub node: u32,
}

/// Everything that can be asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    // Queues and schedules.
    /// Compute which slots of a schedule passed since one time up to another, and when the next is.
    ComputeSlots {
        schedule: Scoped,
        settings: Box<crate::event::words::Settings>,
        after: Millis,
        until: Millis,
    },
    /// List the external queue of a worker.
    ListItems { worker: Scoped, runbook: Digest, queue: Name, project_root: String },
    /// Take an item of an external queue there, for a run that is made when that is done.
    TakeItem {
        worker: Scoped,
        runbook: Digest,
        queue: Name,
        project_root: String,
        item: ItemId,
        run: RunId,
        data: Value,
    },

    // Execution.
    /// Carry out an attempt. Only the release of a committed lease makes one.
    Execute(Box<Lease>),
    /// Stop an attempt: its process tree is gone after the grace time.
    Stop { run: RunId, step: StepId, epoch: u64, grace: Span },
    /// Ask policy about an action.
    EvaluatePolicy {
        run: RunId,
        step: StepId,
        tool: Name,
        action: Option<Box<Action>>,
        action_hash: Option<Digest>,
        approvals: u32,
    },
    /// Gather what a step's guards need.
    GatherGuard { run: RunId, step: StepId, node: u32, after: bool },
    /// Ask the other side whether an effect happened.
    Probe { run: RunId, step: StepId, epoch: u64, key: Name },

    // Sessions.
    /// Type into a session.
    Send { session: SessionId, input: String, notice: Option<NoticeId> },
    /// End a session.
    Kill { session: SessionId },
    /// Remind an idle session of its work.
    Nudge { session: SessionId, notice: Option<NoticeId> },

    // Git.
    /// Make a worktree.
    WorktreeAdd { workspace: WorkspaceId, branch: String, base: Option<String>, path: String },
    /// Remove a worktree.
    WorktreeRemove { workspace: WorkspaceId, path: String },

    // People.
    /// Tell somebody.
    Notify { notice: NoticeId, title: String, message: String, sound: bool },
    /// Show an approval to those who may decide it, again where `reminder` is set.
    ShowApproval { approval: ApprovalId, run: RunId, reminder: bool },
}

impl Effect {
    /// Its name and what it concerns, for log lines.
    #[must_use]
    pub fn log_fields(&self) -> (&'static str, Vec<(&'static str, String)>) {
        use alloc::string::ToString;
        let run_step =
            |run: &RunId, step: &StepId| alloc::vec![("run_id", run.to_string()), ("step", step.to_string())];
        match self {
            Effect::ComputeSlots { schedule, .. } => {
                ("compute_slots", alloc::vec![("schedule", schedule.to_string())])
            }
            Effect::ListItems { worker, .. } => ("list_items", alloc::vec![("worker", worker.to_string())]),
            Effect::TakeItem { worker, item, .. } => {
                ("take_item", alloc::vec![("worker", worker.to_string()), ("item", item.to_string())])
            }
            Effect::Execute(lease) => ("execute", run_step(&lease.run, &lease.step)),
            Effect::Stop { run, step, .. } => ("stop", run_step(run, step)),
            Effect::EvaluatePolicy { run, step, .. } => ("evaluate_policy", run_step(run, step)),
            Effect::GatherGuard { run, step, .. } => ("gather_guard", run_step(run, step)),
            Effect::Probe { run, step, .. } => ("probe", run_step(run, step)),
            Effect::Send { session, .. } => ("send", alloc::vec![("session", session.to_string())]),
            Effect::Kill { session } => ("kill", alloc::vec![("session", session.to_string())]),
            Effect::Nudge { session, .. } => ("nudge", alloc::vec![("session", session.to_string())]),
            Effect::WorktreeAdd { path, .. } => ("worktree_add", alloc::vec![("path", path.clone())]),
            Effect::WorktreeRemove { path, .. } => ("worktree_remove", alloc::vec![("path", path.clone())]),
            Effect::Notify { title, .. } => ("notify", alloc::vec![("title", title.clone())]),
            Effect::ShowApproval { approval, .. } => {
                ("show_approval", alloc::vec![("approval", approval.to_string())])
            }
        }
    }
}
