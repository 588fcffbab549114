//! Conditions in words, for the details that people read.

use super::{Condition, IssueFilter};
use crate::wire::shorten;
use alloc::vec::Vec;
use core::fmt;

/// A condition in words, bounded: texts are shortened, groups are counted.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::LockFree { lock } => write!(f, "lock `{}` is free", shorten(lock.as_str())),
            Condition::LockHeld { lock, by } => {
                write!(f, "lock `{}` is held", shorten(lock.as_str()))?;
                by.iter().try_for_each(|by| write!(f, " by `{}`", shorten(&alloc::format!("{by}"))))
            }
            Condition::SemaphoreAvailable { semaphore, slots } => {
                write!(f, "{slots} slots of semaphore `{}` are free", shorten(semaphore.as_str()))
            }
            Condition::IssuesComplete { filter } => write!(f, "all issues {filter} are done"),
            Condition::NoBlockedIssues { filter } => write!(f, "no issue {filter} is blocked"),
            Condition::BranchExists { branch } => write!(f, "branch `{}` exists", shorten(branch)),
            Condition::BranchClean { branch } => write!(f, "branch `{}` is clean", shorten(branch)),
            Condition::BranchMerged { branch, into } => {
                write!(f, "branch `{}` is merged into `{}`", shorten(branch), shorten(into))
            }
            Condition::FileExists { path } => write!(f, "file `{}` exists", shorten(path)),
            Condition::FileContains { path, pattern } => {
                write!(f, "file `{}` contains `{}`", shorten(path), shorten(pattern))
            }
            Condition::PipelineInPhase { pipeline, phase } => {
                write!(f, "run {pipeline} is at `{}`", shorten(phase.as_str()))
            }
            Condition::PipelineComplete { pipeline } => write!(f, "run {pipeline} is completed"),
            Condition::LatestInPhase { pipeline, phase } => {
                let (pipeline, phase) = (shorten(pipeline.as_str()), shorten(phase.as_str()));
                write!(f, "the newest run of `{pipeline}` is at `{phase}`")
            }
            Condition::LatestComplete { pipeline } => {
                write!(f, "the newest run of `{}` is completed", shorten(pipeline.as_str()))
            }
            Condition::Made(_) => f.write_str("what its expressions say holds"),
            Condition::All(parts) => write!(f, "all of {} conditions hold", parts.len()),
            Condition::Any(parts) => write!(f, "any of {} conditions holds", parts.len()),
            // Nested negations are rare, and bounded like everything here.
            Condition::Not(part) => match &**part {
                Condition::Not(_) => f.write_str("a double negation holds"),
                part => write!(f, "it is not so that {part}"),
            },
            Condition::Command { cmd, expect_success: true } => write!(f, "`{}` succeeds", shorten(cmd)),
            Condition::Command { cmd, expect_success: false } => write!(f, "`{}` fails", shorten(cmd)),
        }
    }
}

impl fmt::Display for IssueFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.labels.is_empty() {
            parts.push(alloc::format!("labelled `{}`", shorten(&self.labels.join(", "))));
        }
        if let Some(milestone) = &self.milestone {
            parts.push(alloc::format!("of milestone `{}`", shorten(milestone)));
        }
        if !self.ids.is_empty() {
            parts.push(alloc::format!("with id `{}`", shorten(&self.ids.join(", "))));
        }
        if parts.is_empty() {
            return f.write_str("of any kind");
        }
        f.write_str(&parts.join(" "))
    }
}
