//! The words and small parts that payloads are made of. They stand below the machines, which speak them too.

pub mod approval;
pub mod effect;
pub mod step;

pub use effect::Semantics;

use crate::digest::Digest;
use crate::id::Name;
use crate::time::Span;
use crate::word::words;
use alloc::string::String;
use serde::{Deserialize, Serialize};
use serde_json::Value;

words! {
    /// What a budget limits.
    Dimension {
        /// Money, in millionths of a dollar.
        Usd = "usd",
        /// Tokens of models.
        Tokens = "tokens",
        /// Time, in milliseconds.
        Time = "time",
        /// Writes to the outside.
        Writes = "writes",
    }
}

words! {
    /// What a one-shot message is for.
    Notice {
        /// Tell a human.
        Notify = "notify",
        /// Tell a human that an approval waits.
        Approval = "approval",
        /// Remind a human of an approval.
        Reminder = "reminder",
        /// Tell a human that an agent needs one.
        Escalation = "escalation",
        /// Nudge a session.
        Nudge = "nudge",
        /// Type into a session.
        Send = "send",
        /// Tell a human that a run has failed.
        Failed = "failed",
    }
}

words! {
    /// What happens to slots that passed while nothing ran.
    CatchUp {
        /// They are skipped.
        None = "none",
        /// One run stands for all of them.
        One = "one",
        /// Each gets its run.
        All = "all",
    }
}

words! {
    /// What happens to a slot while the run before it is still under way.
    Overlap {
        /// The slot is skipped.
        Skip = "skip",
        /// Its run waits.
        Queue = "queue",
        /// The run before is cancelled.
        Cancel = "cancel",
    }
}

/// What a runbook declares of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// `cron` or `every`, as written.
    pub spec: String,
    /// Where its hours are counted.
    pub timezone: Name,
    /// How much later than its slot a run may begin.
    pub jitter: Span,
    /// What happens to missed slots.
    pub catch_up: CatchUp,
    /// What happens while a run is under way.
    pub overlap: Overlap,
    /// What a slot runs.
    pub pipeline: Name,
    /// In which version.
    pub runbook_hash: Digest,
    /// With which variables.
    pub vars: Value,
    /// Where its runs run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub project_root: String,
}

words! {
    /// Why a slot made no run.
    SkipReason {
        /// The run before is still under way.
        Overlap = "overlap",
        /// It passed while nothing ran.
        Missed = "missed",
        /// The schedule was paused.
        Paused = "paused",
    }
}

words! {
    /// What an agent says of its own accord.
    SignalKind {
        /// It is done.
        Complete = "complete",
        /// It needs a human.
        Escalate = "escalate",
    }
}

words! {
    /// Why a task is stuck.
    Stuck {
        /// Nothing was heard of it for longer than its heartbeat time-out.
        NoHeartbeat = "no_heartbeat",
        /// It lives, but has been idle for too long.
        NoProgress = "no_progress",
        /// Its session is gone.
        SessionDead = "session_dead",
    }
}

words! {
    /// When a working directory is kept after its run.
    Keep {
        /// When the run did not complete.
        OnFailure = "on_failure",
        /// Always.
        Always = "always",
        /// Never.
        Never = "never",
    }
}

words! {
    /// How a working directory is made.
    Mode {
        /// A git worktree.
        Worktree = "worktree",
        /// A plain folder.
        Folder = "folder",
    }
}

words! {
    /// Of which runs a bundle of evidence is made, where it is not only of those with an effect, an approval or a denial.
    Evidence {
        /// Of every run.
        Always = "always",
    }
}

words! {
    /// What a token allows.
    Scope {
        /// Look.
        Read = "read",
        /// Start, resume and cancel runs of deployed runbooks.
        Run = "run",
        /// Bring runbooks: whoever may do that runs commands on the server.
        Deploy = "deploy",
        /// Decide on approvals and settle what is unknown.
        Approve = "approve",
        /// Lease steps and report on them.
        Execute = "execute",
        /// Break holds, hand out tokens.
        Admin = "admin",
    }
}

words! {
    /// Where a delivery came from.
    Source {
        /// A GitHub webhook.
        Github = "github" | "github_webhook",
        /// An API call.
        Api = "api",
        /// A Slack command or action.
        Slack = "slack",
        /// A schedule's slot.
        Scheduler = "scheduler",
        /// Any other signed hook.
        Hook = "hook",
        /// The command line.
        Cli = "cli",
        /// An item of a queue.
        Queue = "queue",
    }
}
