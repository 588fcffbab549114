//! Effects: everything a machine can ask for, as data. A machine never acts.
//!
//! An effect is either for another stream, and then the turn hands it on before anything is committed, or
//! for the outside, and then it is released after the commit. [`Effect::route`] says which.

use crate::digest::Digest;
use crate::event::Event;
pub use crate::event::words::Notice;
use crate::event::words::effect::{Action, Semantics};
use crate::id::{
    AgentId, ApprovalId, Holder, ItemId, Name, NoticeId, RunId, Scoped, SessionId, StepId, WorkspaceId,
};
use crate::packed::Packed;
use crate::time::{Millis, Span};
use crate::word::words;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use serde_json::Value;

words! {
    /// How a branch is merged.
    MergeMode {
        /// Only forward.
        Ff = "ff",
        /// Rebased first.
        Rebase = "rebase",
        /// With a merge commit.
        Merge = "merge",
        /// As one commit.
        Squash = "squash",
    }
}

/// Where an effect goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To another stream, in the same turn.
    Inside,
    /// Outside, after the commit.
    Outside,
}

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

/// What a run hears from other streams and from the outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// A lock was granted to the run or its step.
    LockGranted { step: Option<StepId>, lock: Name, epoch: u64 },
    /// A lock is held by another, and the run or step does not wait for it.
    LockBusy { step: Option<StepId>, lock: Name },
    /// Slots were granted to the step.
    SlotsGranted { step: StepId, semaphore: Name, epoch: u64 },
    /// What the run or step held was taken from it: it held too long, or somebody broke the hold.
    HoldLost { step: Option<StepId>, name: Name, broken: bool },
    /// The lock or semaphore cannot be waited for at all.
    HoldRefused { step: Option<StepId>, code: crate::code::Code, message: String },
    /// A run it waits for, or called, is terminal.
    RunEnded {
        run: RunId,
        step: Option<StepId>,
        status: crate::origin::Status,
        outputs: Option<Value>,
        error: Option<crate::event::words::step::Failure>,
    },
}

/// Everything that can be asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Put an event on its stream and on the bus.
    Emit(Box<Event>),

    // Locks and semaphores.
    /// Take a lock, or stand in line for it where `wait` says so; `oust` cancels the run that holds it.
    AcquireLock { lock: Scoped, holder: Holder, wait: bool, oust: bool, give_up_at: Option<Millis> },
    /// Give a lock back, or leave its line.
    ReleaseLock { lock: Scoped, holder: Holder },
    /// Take slots of a semaphore, or stand in line for them.
    AcquireSemaphore { semaphore: Scoped, holder: Holder, slots: u32, give_up_at: Option<Millis> },
    /// Give slots back, or leave the line.
    ReleaseSemaphore { semaphore: Scoped, holder: Holder },

    // Runs.
    /// Tell a run something.
    Tell { run: RunId, told: Told },
    /// Make a child run for a `call` step.
    StartChild { run: RunId, parent: RunId, step: StepId, pipeline: Name, vars: Value },
    /// Cancel a child run.
    CancelRun { run: RunId, reason: String },

    // Queues and workers.
    /// Forward a dead item.
    DeadLetter { queue: Scoped, item: ItemId, data: Value, priority: i32 },
    /// Let a worker look at its queue.
    WakeWorker { worker: Scoped },
    /// The run behind an item is terminal.
    SettleItem {
        item: ItemId,
        worker: Scoped,
        run: RunId,
        status: crate::origin::Status,
        error: Option<String>,
    },
    /// The run behind a schedule's slot is terminal.
    SettleSlot { schedule: Scoped, run: RunId },
    /// Make the run of a schedule's slot.
    StartSlot {
        schedule: Scoped,
        run: RunId,
        slot: Millis,
        pipeline: Name,
        runbook: Digest,
        vars: Value,
        project_root: String,
        asked_by: Vec<Name>,
    },
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
    /// Start an agent's session in a workspace.
    Spawn {
        session: SessionId,
        agent: AgentId,
        workspace: Option<WorkspaceId>,
        command: String,
        run: RunId,
        step: StepId,
        epoch: u64,
    },
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
    /// Merge a branch.
    Merge { branch: String, into: String, mode: MergeMode },

    // People.
    /// Tell somebody.
    Notify { notice: NoticeId, title: String, message: String, sound: bool },
    /// Show an approval to those who may decide it, again where `reminder` is set.
    ShowApproval { approval: ApprovalId, run: RunId, reminder: bool },

    // Storage and time.
    /// Put a message on a run.
    Checkpoint { run: RunId, message: String },
    /// Look at a stream again at a time.
    Wake { stream: crate::stream::StreamId, at: Millis },
}

impl Effect {
    /// Where it goes.
    #[must_use]
    pub fn route(&self) -> Route {
        match self {
            Effect::Emit(_)
            | Effect::AcquireLock { .. }
            | Effect::ReleaseLock { .. }
            | Effect::AcquireSemaphore { .. }
            | Effect::ReleaseSemaphore { .. }
            | Effect::Tell { .. }
            | Effect::StartChild { .. }
            | Effect::CancelRun { .. }
            | Effect::DeadLetter { .. }
            | Effect::WakeWorker { .. }
            | Effect::SettleItem { .. }
            | Effect::SettleSlot { .. }
            | Effect::StartSlot { .. }
            | Effect::Checkpoint { .. } => Route::Inside,
            Effect::Execute(_)
            | Effect::Stop { .. }
            | Effect::EvaluatePolicy { .. }
            | Effect::GatherGuard { .. }
            | Effect::Probe { .. }
            | Effect::Spawn { .. }
            | Effect::Send { .. }
            | Effect::Kill { .. }
            | Effect::Nudge { .. }
            | Effect::WorktreeAdd { .. }
            | Effect::WorktreeRemove { .. }
            | Effect::Merge { .. }
            | Effect::Notify { .. }
            | Effect::ShowApproval { .. }
            | Effect::ComputeSlots { .. }
            | Effect::ListItems { .. }
            | Effect::TakeItem { .. }
            | Effect::Wake { .. } => Route::Outside,
        }
    }

    /// Its name and what it concerns, for log lines.
    #[must_use]
    pub fn log_fields(&self) -> (&'static str, Vec<(&'static str, String)>) {
        use alloc::string::ToString;
        let run_step =
            |run: &RunId, step: &StepId| alloc::vec![("run_id", run.to_string()), ("step", step.to_string())];
        match self {
            Effect::Emit(event) => ("emit", alloc::vec![("type", event.tag().to_string())]),
            Effect::AcquireLock { lock, holder, .. } => {
                ("acquire_lock", alloc::vec![("lock", lock.to_string()), ("holder", holder.to_string())])
            }
            Effect::ReleaseLock { lock, holder } => {
                ("release_lock", alloc::vec![("lock", lock.to_string()), ("holder", holder.to_string())])
            }
            Effect::AcquireSemaphore { semaphore, holder, slots, .. } => (
                "acquire_semaphore",
                alloc::vec![
                    ("semaphore", semaphore.to_string()),
                    ("holder", holder.to_string()),
                    ("slots", slots.to_string())
                ],
            ),
            Effect::ReleaseSemaphore { semaphore, holder } => (
                "release_semaphore",
                alloc::vec![("semaphore", semaphore.to_string()), ("holder", holder.to_string())],
            ),
            Effect::Tell { run, .. } => ("tell", alloc::vec![("run_id", run.to_string())]),
            Effect::StartChild { run, parent, .. } => {
                ("start_child", alloc::vec![("run_id", run.to_string()), ("parent", parent.to_string())])
            }
            Effect::CancelRun { run, .. } => ("cancel_run", alloc::vec![("run_id", run.to_string())]),
            Effect::DeadLetter { queue, item, .. } => {
                ("dead_letter", alloc::vec![("queue", queue.to_string()), ("item", item.to_string())])
            }
            Effect::WakeWorker { worker } => ("wake_worker", alloc::vec![("worker", worker.to_string())]),
            Effect::SettleItem { item, run, .. } => {
                ("settle_item", alloc::vec![("item", item.to_string()), ("run_id", run.to_string())])
            }
            Effect::SettleSlot { schedule, run } => {
                ("settle_slot", alloc::vec![("schedule", schedule.to_string()), ("run_id", run.to_string())])
            }
            Effect::StartSlot { schedule, run, .. } => {
                ("start_slot", alloc::vec![("schedule", schedule.to_string()), ("run_id", run.to_string())])
            }
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
            Effect::Spawn { run, step, .. } => ("spawn", run_step(run, step)),
            Effect::Send { session, .. } => ("send", alloc::vec![("session", session.to_string())]),
            Effect::Kill { session } => ("kill", alloc::vec![("session", session.to_string())]),
            Effect::Nudge { session, .. } => ("nudge", alloc::vec![("session", session.to_string())]),
            Effect::WorktreeAdd { path, .. } => ("worktree_add", alloc::vec![("path", path.clone())]),
            Effect::WorktreeRemove { path, .. } => ("worktree_remove", alloc::vec![("path", path.clone())]),
            Effect::Merge { branch, into, .. } => {
                ("merge", alloc::vec![("branch", branch.clone()), ("into", into.clone())])
            }
            Effect::Notify { title, .. } => ("notify", alloc::vec![("title", title.clone())]),
            Effect::ShowApproval { approval, .. } => {
                ("show_approval", alloc::vec![("approval", approval.to_string())])
            }
            Effect::Checkpoint { run, .. } => ("checkpoint", alloc::vec![("run_id", run.to_string())]),
            Effect::Wake { stream, at } => {
                ("wake", alloc::vec![("stream", stream.to_string()), ("at", at.to_string())])
            }
        }
    }
}
