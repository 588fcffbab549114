//! Payloads of agents: their activity, the tasks they work on, sessions and workspaces.

use super::payloads;
use crate::event::words::{SignalKind, Stuck};
use crate::id::{AgentId, Name, RunId, SessionId, StepId, WorkspaceId};
use crate::private::Private;
use crate::time::Millis;
use alloc::string::String;
use serde_json::Value;

payloads! {
    /// The agent is idle but lives.
    "agent:waiting" AgentWaiting Signal on "run" { agent_id: AgentId, pipeline_id: RunId, step: StepId }

    /// The agent works: a stuck task recovers.
    "agent:working" AgentWorking Fact on "run" { agent_id: AgentId, pipeline_id: RunId, step: StepId, epoch: u64 }

    /// The agent met an error it named: rate limited, out of credit, unauthorised.
    "agent:failed" AgentFailed Fact on "run" {
        agent_id: AgentId, error: Private<String>, pipeline_id: RunId, step: StepId, epoch: u64, code: Name,
    }

    /// The agent's process ended.
    "agent:exited" AgentExited Fact on "run" {
        agent_id: AgentId, exit_code: Option<i32>, pipeline_id: RunId, step: StepId, epoch: u64,
    }

    /// The agent's session is not there any more.
    "agent:gone" AgentGone Fact on "run" { agent_id: AgentId, pipeline_id: RunId, step: StepId, epoch: u64 }

    /// The agent says that it is done (`complete`) or needs a human (`escalate`). Stored on the run.
    "agent:signal" AgentSignal Fact on "run" {
        agent_id: AgentId, kind: SignalKind, message: Option<Private<String>>, pipeline_id: RunId, step: StepId,
    }

    /// A session lives behind a step's attempt.
    "task:started" TaskStarted Fact on "run" {
        pipeline_id: RunId, step: StepId, agent_id: AgentId, epoch: u64, session: SessionId,
        heartbeat_timeout_ms: u64, max_recovery_attempts: u32, checkpoint_interval_ms: Option<u64>,
    }

    /// The task does not get on. Recovery by `task:nudged`, `task:restarting` or `task:escalated`.
    "task:stuck" TaskStuck Fact on "run" {
        pipeline_id: RunId, step: StepId, epoch: u64, reason: Stuck, last_seen: Option<Millis>, idle_ms: Option<u64>,
    }

    /// A stuck task works again.
    "task:recovered" TaskRecovered Fact on "run" { pipeline_id: RunId, step: StepId, epoch: u64 }

    /// The session was nudged. Counts as a recovery attempt.
    "task:nudged" TaskNudged Fact on "run" { pipeline_id: RunId, step: StepId, epoch: u64, recovery_attempts: u32 }

    /// The session is killed and the task starts again under the next epoch. Counts as a recovery attempt.
    "task:restarting" TaskRestarting Fact on "run" {
        pipeline_id: RunId, step: StepId, epoch: u64, next_epoch: u64, recovery_attempts: u32, session: Option<SessionId>,
    }

    /// The task is done. Terminal.
    "task:completed" TaskCompleted Fact on "run" {
        pipeline_id: RunId, step: StepId, epoch: u64, output: Option<Private<Value>>,
    }

    /// The task failed or its recovery attempts are used up. Terminal.
    "task:failed" TaskFailed Fact on "run" {
        pipeline_id: RunId, step: StepId, epoch: u64, code: Name, cancelled: bool, error: Private<String>,
    }

    /// A human has to look at the task; it is settled by `windlass resolve`.
    "task:escalated" TaskEscalated Fact on "run" {
        pipeline_id: RunId, step: StepId, epoch: u64, message: Option<Private<String>>,
    }

    /// A session exists.
    "session:created" SessionCreated Fact on "session" {
        id: SessionId, pipeline_id: RunId, step: StepId, epoch: u64, agent_id: Option<AgentId>, workspace: Option<WorkspaceId>,
    }

    /// Somebody typed into a session.
    "session:input" SessionInput Action on "session" { id: SessionId, input: Private<String> }

    /// A session is gone.
    "session:deleted" SessionDeleted Fact on "session" { id: SessionId }

    /// A working directory was asked for. Moved on by `workspace:ready` or `workspace:failed`.
    "workspace:created" WorkspaceCreated Fact on "workspace" {
        id: WorkspaceId, path: String, branch: Option<String>, owner: Option<RunId>, mode: Option<crate::event::words::Mode>,
        base: Option<String>, keep: Option<crate::event::words::Keep>,
    }

    /// The working directory can be used.
    "workspace:ready" WorkspaceReady Fact on "workspace" { id: WorkspaceId }

    /// The working directory could not be made.
    "workspace:failed" WorkspaceFailed Fact on "workspace" { id: WorkspaceId, reason: String }

    /// Somebody asked to drop a working directory.
    "workspace:drop" WorkspaceDrop Action on "workspace" { id: WorkspaceId }

    /// The working directory is gone.
    "workspace:deleted" WorkspaceDeleted Fact on "workspace" { id: WorkspaceId }
}
