//! What guards are about: what must be gathered, and what was.

use super::{Condition, DEPTH_MAX, IssueFilter};
use crate::id::{Holder, Name, RunId};
use crate::origin;
use crate::small::Map;
use crate::word::words;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

words! {
    /// Where an issue stands.
    IssueStatus {
        /// To be done, or being done.
        Open = "open",
        /// Cannot go on.
        Blocked = "blocked",
        /// Done.
        Done = "done" | "closed",
    }
}

/// An issue, as far as guards care.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Issue {
    /// Its id where it is kept.
    pub id: String,
    /// Where it stands.
    pub status: IssueStatus,
    /// Its labels.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub labels: BTreeSet<String>,
    /// Its milestone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub milestone: Option<String>,
}

/// A branch, as far as it was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BranchInfo {
    /// Whether there is such a branch.
    pub exists: bool,
    /// Whether its worktree has nothing uncommitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clean: Option<bool>,
    /// Whether everything of it is in these other branches.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub merged_into: Map<String, bool>,
}

/// A file, as far as it was looked at. The shell searches it as it reads, so that no content comes here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileInfo {
    /// Whether there is such a file.
    pub exists: bool,
    /// Whether it contains these texts.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub contains: Map<String, bool>,
}

/// A run, as far as guards care.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipelineInfo {
    /// Its status.
    pub status: origin::Status,
    /// The step it is at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Name>,
}

impl PipelineInfo {
    /// Whether the run is at a step, or in a phase.
    #[must_use]
    pub fn is_at(&self, phase: &Name) -> bool {
        self.step.as_ref() == Some(phase) || origin::Status::parse(phase.as_str()) == Some(self.status)
    }
}

/// How a guard's command ended. One that could not be started, or that policy denied, has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandResult {
    /// Whether it exited with 0.
    pub success: bool,
}

/// What the shell gathered. A missing entry means that nobody could say; it never means no.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct GuardInputs {
    /// Who holds a lock. The entry says that the lock was looked up: a lock that nobody ever took is there,
    /// with no holder, and is free; a lock that could not be looked up is not there.
    pub locks: Map<Name, Option<Holder>>,
    /// How many slots of a semaphore are free. One that is not declared is not there.
    pub semaphores: Map<Name, u32>,
    /// The issues of a filter. There may be more than the filter asks for.
    pub issues: Map<IssueFilter, Vec<Issue>>,
    /// Branches, whether they exist or not.
    pub branches: Map<String, BranchInfo>,
    /// Files, whether they exist or not.
    pub files: Map<String, FileInfo>,
    /// Runs. One that nobody knows is not there.
    pub pipelines: Map<RunId, PipelineInfo>,
    /// The newest run of a pipeline. A pipeline that never ran is not there.
    pub latest: Map<Name, PipelineInfo>,
    /// How commands ended.
    pub commands: Map<String, CommandResult>,
    /// Why something could not be gathered: by its command, branch or filter.
    pub reasons: Map<String, String>,
}

/// What must be gathered for a condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Locks to look up.
    pub locks: BTreeSet<Name>,
    /// Semaphores to look up.
    pub semaphores: BTreeSet<Name>,
    /// Issues to list.
    pub issues: BTreeSet<IssueFilter>,
    /// Branches to look at, and the branches that they may have been merged into.
    pub branches: Map<String, BTreeSet<String>>,
    /// Files to look at, and the texts to search for in them.
    pub files: Map<String, BTreeSet<String>>,
    /// Runs to look up.
    pub pipelines: BTreeSet<RunId>,
    /// Pipelines of which to look up the newest run.
    pub latest: BTreeSet<Name>,
    /// Commands to run, through policy.
    pub commands: BTreeSet<String>,
}

/// What must be gathered for a condition and all its parts.
#[must_use]
pub fn needs(condition: &Condition) -> Needs {
    let mut needs = Needs::default();
    needs.add(condition);
    needs
}

impl Needs {
    /// Adds what a condition needs. What is nested too deep is left out, and is unknown therefore.
    pub fn add(&mut self, condition: &Condition) {
        self.add_at(condition, 1);
    }

    fn add_at(&mut self, condition: &Condition, depth: usize) {
        if depth > DEPTH_MAX {
            return;
        }
        match condition {
            Condition::LockFree { lock } | Condition::LockHeld { lock, .. } => {
                self.locks.insert(lock.clone());
            }
            Condition::SemaphoreAvailable { semaphore, .. } => {
                self.semaphores.insert(semaphore.clone());
            }
            Condition::IssuesComplete { filter } | Condition::NoBlockedIssues { filter } => {
                self.issues.insert(filter.clone());
            }
            Condition::BranchExists { branch } | Condition::BranchClean { branch } => {
                self.branches.or_default(branch.clone());
            }
            Condition::BranchMerged { branch, into } => {
                self.branches.or_default(branch.clone()).insert(into.clone());
            }
            Condition::FileExists { path } => {
                self.files.or_default(path.clone());
            }
            Condition::FileContains { path, pattern } => {
                self.files.or_default(path.clone()).insert(pattern.clone());
            }
            Condition::PipelineInPhase { pipeline, .. } | Condition::PipelineComplete { pipeline } => {
                self.pipelines.insert(*pipeline);
            }
            Condition::LatestInPhase { pipeline, .. } | Condition::LatestComplete { pipeline } => {
                self.latest.insert(pipeline.clone());
            }
            // What it is about is known when it is evaluated.
            Condition::Made(_) => {}
            Condition::Command { cmd, .. } => {
                self.commands.insert(cmd.clone());
            }
            Condition::All(_) | Condition::Any(_) | Condition::Not(_) => {
                condition.parts().iter().for_each(|part| self.add_at(part, depth + 1));
            }
        }
    }
}
