//! Guards: conditions before and after a step.

use crate::id::{Holder, Name, RunId};
use crate::time::Span;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A named condition and what follows when it does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    /// Its name, for messages.
    pub name: Name,
    /// What must hold.
    pub condition: Condition,
    /// What follows when it does not, or when nobody can say.
    pub on_failure: OnFailure,
}

/// Which issues a condition is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IssueFilter {
    /// The labels they must have, all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// The milestone they must belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub milestone: Option<String>,
    /// The ids they must have, any of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
}

/// What a guard asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Condition {
    /// Nobody holds the lock. One that nobody ever took is free.
    LockFree { lock: Name },
    /// Somebody holds the lock: this holder, where one is named.
    LockHeld { lock: Name, by: Option<Holder> },
    /// That many slots are free.
    SemaphoreAvailable { semaphore: Name, slots: u32 },
    /// All issues of the filter are done.
    IssuesComplete { filter: IssueFilter },
    /// No issue of the filter is blocked.
    NoBlockedIssues { filter: IssueFilter },
    /// The branch exists.
    BranchExists { branch: String },
    /// The branch has nothing uncommitted.
    BranchClean { branch: String },
    /// Everything of the branch is in `into`.
    BranchMerged { branch: String, into: String },
    /// The file exists.
    FileExists { path: String },
    /// The file contains the text.
    FileContains { path: String, pattern: String },
    /// The run is at this step, or in this phase.
    PipelineInPhase { pipeline: RunId, phase: Name },
    /// The run is completed.
    PipelineComplete { pipeline: RunId },
    /// All of them hold.
    All(Vec<Condition>),
    /// One of them holds.
    Any(Vec<Condition>),
    /// It does not hold. Unknown stays unknown.
    Not(Box<Condition>),
    /// The command succeeds, or fails where that is expected.
    Command { cmd: String, expect_success: bool },
}

/// What follows when a guard does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum OnFailure {
    /// Wait until it holds.
    Block,
    /// Say so and go on.
    Warn,
    /// Ask again after `delay`, and give up after `give_up`.
    Retry { delay: Span, give_up: Option<Span> },
    /// Fail the step.
    Fail { message: String },
}
