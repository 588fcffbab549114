//! Guards: conditions before and after a step.
//!
//! Asking and answering are apart. [`needs`] says what a condition is about; the shell gathers it, which
//! takes files, git and the network; [`check`] answers from what was gathered, and from nothing else.
//!
//! An answer is true, false or unknown. What could not be gathered is unknown, unknown is not passed, and it
//! stays unknown under `not`: otherwise a network that is down would open every guard that says `not`.
//!
//! | | `all` | `any` | `not` |
//! |---|---|---|---|
//! | true | when all are true | when one is true | when it is false |
//! | false | when one is false | when all are false | when it is true |
//! | unknown | otherwise | otherwise | otherwise |

use crate::code::Code;
use crate::id::{Holder, Name, RunId};
use crate::origin;
use crate::template::Template;
use crate::time::Span;
use crate::word::words;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Not;
use serde::{Deserialize, Serialize};
use serde_json::Value;

mod inputs;
mod words;
pub use inputs::{
    BranchInfo, CommandResult, FileInfo, GuardInputs, Issue, IssueStatus, Needs, PipelineInfo, needs,
};

/// How deep conditions may be nested.
pub const DEPTH_MAX: usize = 32;

/// How many conditions one guard may have, its groups included.
pub const CONDITIONS_MAX: usize = 256;

/// How many characters of a reason stand in a guard's detail.
const WHY_MAX: usize = 512;

/// A named condition and what follows when it does not hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// The newest run of the pipeline is at this step, or in this phase.
    LatestInPhase { pipeline: Name, phase: Name },
    /// The newest run of the pipeline is completed.
    LatestComplete { pipeline: Name },
    /// A condition with expressions in it, in the form in which conditions are written here. It is evaluated whenever its
    /// guard is asked.
    Made(Box<Template>),
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

words! {
    /// What is known of a condition.
    Truth {
        /// It holds.
        True = "true",
        /// It does not hold.
        False = "false",
        /// Nobody can say.
        Unknown = "unknown",
    }
}

impl From<bool> for Truth {
    fn from(known: bool) -> Truth {
        if known { Truth::True } else { Truth::False }
    }
}

impl Not for Truth {
    type Output = Truth;
    fn not(self) -> Truth {
        match self {
            Truth::True => Truth::False,
            Truth::False => Truth::True,
            Truth::Unknown => Truth::Unknown,
        }
    }
}

impl Truth {
    /// A fact that may not have been gathered.
    fn known(fact: Option<bool>) -> Truth {
        fact.map_or(Truth::Unknown, Truth::from)
    }

    /// True when all are, false when one is.
    fn all(truths: impl Iterator<Item = Truth>) -> Truth {
        let mut all = Truth::True;
        for truth in truths {
            match truth {
                Truth::True => {}
                Truth::Unknown => all = Truth::Unknown,
                Truth::False => return Truth::False,
            }
        }
        all
    }

    /// True when one is, false when all are: `all` seen from the other side.
    fn any(truths: impl Iterator<Item = Truth>) -> Truth {
        !Truth::all(truths.map(Truth::not))
    }
}

/// Whether a guard holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardResult {
    /// It holds.
    Passed,
    /// It does not hold, or nobody can say.
    Failed {
        /// Which guard.
        guard: Name,
        /// What follows.
        action: OnFailure,
        /// Whether nobody can say.
        unknown: bool,
        /// Which condition is at fault, for people.
        detail: String,
    },
}

/// What comes of all guards before, or after, a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The first guard that does not hold and is more than a warning, or that all is well.
    pub result: GuardResult,
    /// The guards before it that do not hold and only warn.
    pub warnings: Vec<GuardResult>,
}

/// Why a condition is refused when it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is nested too deep.
    #[error("conditions may be nested {DEPTH_MAX} deep")]
    Depth,
    /// It has too many parts.
    #[error("a guard may have {CONDITIONS_MAX} conditions")]
    Conditions,
}

impl Error {
    /// Its stable code.
    #[must_use]
    pub const fn code(self) -> Code {
        match self {
            Error::Depth | Error::Conditions => Code::RunbookInvalid,
        }
    }
}

impl Guard {
    /// Whether the guard holds, by what was gathered.
    #[must_use]
    pub fn evaluate(&self, inputs: &GuardInputs) -> GuardResult {
        let truth = check(&self.condition, inputs);
        if truth == Truth::True {
            return GuardResult::Passed;
        }
        GuardResult::Failed {
            guard: self.name.clone(),
            action: self.on_failure.clone(),
            unknown: truth == Truth::Unknown,
            detail: explain(&self.condition, inputs),
        }
    }
}

/// Evaluates guards in order, up to the first that does not hold and does more than warn.
#[must_use]
pub fn evaluate_all(guards: &[Guard], inputs: &GuardInputs) -> Verdict {
    let mut warnings = Vec::new();
    for guard in guards {
        match guard.evaluate(inputs) {
            GuardResult::Passed => {}
            warning @ GuardResult::Failed { action: OnFailure::Warn, .. } => warnings.push(warning),
            result @ GuardResult::Failed { .. } => return Verdict { result, warnings },
        }
    }
    Verdict { result: GuardResult::Passed, warnings }
}

impl Condition {
    /// Checks the bounds of a condition.
    ///
    /// # Errors
    /// [`Error::Depth`] and [`Error::Conditions`].
    pub fn check_bounds(&self) -> Result<(), Error> {
        self.count(1, &mut 0)
    }

    fn count(&self, depth: usize, seen: &mut usize) -> Result<(), Error> {
        *seen += 1;
        if depth > DEPTH_MAX {
            return Err(Error::Depth);
        }
        if *seen > CONDITIONS_MAX {
            return Err(Error::Conditions);
        }
        self.parts().iter().try_for_each(|part| part.count(depth + 1, seen))
    }

    /// Whether it, or a part of it, has expressions in it.
    #[must_use]
    pub fn is_made(&self) -> bool {
        matches!(self, Condition::Made(_)) || self.parts().iter().any(Condition::is_made)
    }

    /// The condition with what its expressions give in their place.
    ///
    /// # Errors
    /// The first expression that fails, or what it gives that cannot stand there, for people.
    pub fn evaluated(
        &self,
        render: &dyn Fn(&Template) -> Result<Value, String>,
    ) -> Result<Condition, String> {
        let all = |parts: &[Condition]| -> Result<Vec<Condition>, String> {
            parts.iter().map(|part| part.evaluated(render)).collect()
        };
        Ok(match self {
            Condition::Made(template) => serde_json::from_value(render(template)?)
                .map_err(|error| alloc::format!("a condition cannot be asked with these values: {error}"))?,
            Condition::All(parts) => Condition::All(all(parts)?),
            Condition::Any(parts) => Condition::Any(all(parts)?),
            Condition::Not(part) => Condition::Not(Box::new(part.evaluated(render)?)),
            plain => plain.clone(),
        })
    }

    /// The conditions a group is made of.
    fn parts(&self) -> &[Condition] {
        match self {
            Condition::All(parts) | Condition::Any(parts) => parts,
            Condition::Not(part) => core::slice::from_ref(part),
            Condition::LockFree { .. }
            | Condition::LockHeld { .. }
            | Condition::SemaphoreAvailable { .. }
            | Condition::IssuesComplete { .. }
            | Condition::NoBlockedIssues { .. }
            | Condition::BranchExists { .. }
            | Condition::BranchClean { .. }
            | Condition::BranchMerged { .. }
            | Condition::FileExists { .. }
            | Condition::FileContains { .. }
            | Condition::PipelineInPhase { .. }
            | Condition::PipelineComplete { .. }
            | Condition::LatestInPhase { .. }
            | Condition::LatestComplete { .. }
            | Condition::Made(_)
            | Condition::Command { .. } => &[],
        }
    }
}

/// Whether a condition holds, by what was gathered. What is nested too deep is unknown.
#[must_use]
pub fn check(condition: &Condition, inputs: &GuardInputs) -> Truth {
    check_at(condition, inputs, 1)
}

fn check_at(condition: &Condition, inputs: &GuardInputs, depth: usize) -> Truth {
    if depth > DEPTH_MAX {
        return Truth::Unknown;
    }
    match condition {
        Condition::LockFree { lock } => Truth::known(inputs.locks.get(lock).map(Option::is_none)),
        Condition::LockHeld { lock, by } => Truth::known(inputs.locks.get(lock).map(|holder| match by {
            Some(_) => holder == by,
            None => holder.is_some(),
        })),
        Condition::SemaphoreAvailable { semaphore, slots } => {
            Truth::known(inputs.semaphores.get(semaphore).map(|available| available >= slots))
        }
        Condition::IssuesComplete { filter } => {
            check_issues(filter, inputs, |issue| issue.status == IssueStatus::Done)
        }
        Condition::NoBlockedIssues { filter } => {
            check_issues(filter, inputs, |issue| issue.status != IssueStatus::Blocked)
        }
        Condition::BranchExists { branch } => {
            Truth::known(inputs.branches.get(branch).map(|found| found.exists))
        }
        Condition::BranchClean { branch } => Truth::known(inputs.branches.get(branch).and_then(|found| {
            // A branch that does not exist is not clean either: there is nothing to go on with.
            if found.exists { found.clean } else { Some(false) }
        })),
        // A branch that is gone may well have been merged, so only an answer to the question counts.
        Condition::BranchMerged { branch, into } => {
            Truth::known(inputs.branches.get(branch).and_then(|found| found.merged_into.get(into)).copied())
        }
        Condition::FileExists { path } => Truth::known(inputs.files.get(path).map(|found| found.exists)),
        Condition::FileContains { path, pattern } => {
            Truth::known(inputs.files.get(path).and_then(|found| {
                if found.exists { found.contains.get(pattern).copied() } else { Some(false) }
            }))
        }
        Condition::PipelineInPhase { pipeline, phase } => {
            Truth::known(inputs.pipelines.get(pipeline).map(|run| run.is_at(phase)))
        }
        Condition::LatestInPhase { pipeline, phase } => {
            Truth::known(inputs.latest.get(pipeline).map(|run| run.is_at(phase)))
        }
        Condition::LatestComplete { pipeline } => {
            Truth::known(inputs.latest.get(pipeline).map(|run| run.status == origin::Status::Completed))
        }
        // Nobody evaluated it.
        Condition::Made(_) => Truth::Unknown,
        Condition::PipelineComplete { pipeline } => {
            Truth::known(inputs.pipelines.get(pipeline).map(|run| run.status == origin::Status::Completed))
        }
        Condition::Command { cmd, expect_success } => {
            Truth::known(inputs.commands.get(cmd).map(|result| result.success == *expect_success))
        }
        Condition::All(parts) => Truth::all(parts.iter().map(|part| check_at(part, inputs, depth + 1))),
        Condition::Any(parts) => Truth::any(parts.iter().map(|part| check_at(part, inputs, depth + 1))),
        Condition::Not(part) => !check_at(part, inputs, depth + 1),
    }
}

/// Whether all issues of a filter are as they should be. An id that the filter names and nobody found is
/// unknown; a label that no issue has leaves nothing to be done, so the condition holds.
fn check_issues(filter: &IssueFilter, inputs: &GuardInputs, fine: impl Fn(&Issue) -> bool) -> Truth {
    let Some(issues) = inputs.issues.get(filter) else {
        return Truth::Unknown;
    };
    let found = issues.iter().filter(|issue| filter.matches(issue)).map(|issue| Truth::from(fine(issue)));
    let missing = filter.ids.iter().filter(|id| issues.iter().all(|issue| issue.id != **id));
    Truth::all(found.chain(missing.map(|_| Truth::Unknown)))
}

impl IssueFilter {
    fn matches(&self, issue: &Issue) -> bool {
        self.labels.iter().all(|label| issue.labels.contains(label))
            && (self.milestone.is_none() || self.milestone == issue.milestone)
            && (self.ids.is_empty() || self.ids.contains(&issue.id))
    }
}

/// Which condition is at fault: within `all` the first that does not hold, otherwise the whole of it.
fn explain(condition: &Condition, inputs: &GuardInputs) -> String {
    let mut at_fault = condition;
    for _ in 0..DEPTH_MAX {
        let Condition::All(parts) = at_fault else { break };
        // A false part says more than an unknown one.
        let first = |truth| parts.iter().find(|part| check(part, inputs) == truth);
        match first(Truth::False).or_else(|| first(Truth::Unknown)) {
            Some(part) => at_fault = part,
            None => break,
        }
    }
    match check(at_fault, inputs) {
        Truth::True => alloc::format!("it holds that {at_fault}"),
        Truth::False => alloc::format!("it does not hold that {at_fault}"),
        Truth::Unknown => match why_unknown(at_fault, inputs, 1) {
            Some(why) => alloc::format!("nobody can say whether {at_fault}: {}", bounded(why)),
            None => alloc::format!("nobody can say whether {at_fault}"),
        },
    }
}

/// A reason as it stands in a detail: one line of bounded length.
fn bounded(why: &str) -> String {
    why.chars().take(WHY_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Why the first part of a condition that is unknown is so, where that was told.
fn why_unknown<'a>(condition: &Condition, inputs: &'a GuardInputs, depth: usize) -> Option<&'a String> {
    if depth > DEPTH_MAX {
        return None;
    }
    match condition {
        Condition::Command { cmd, .. } => inputs.reasons.get(cmd),
        Condition::BranchExists { branch }
        | Condition::BranchClean { branch }
        | Condition::BranchMerged { branch, .. } => inputs.reasons.get(branch),
        Condition::IssuesComplete { filter } | Condition::NoBlockedIssues { filter } => {
            inputs.reasons.get(&alloc::format!("{filter}"))
        }
        Condition::All(_) | Condition::Any(_) | Condition::Not(_) => {
            condition.parts().iter().find_map(|part| why_unknown(part, inputs, depth + 1))
        }
        Condition::LockFree { .. }
        | Condition::LockHeld { .. }
        | Condition::SemaphoreAvailable { .. }
        | Condition::FileExists { .. }
        | Condition::FileContains { .. }
        | Condition::PipelineInPhase { .. }
        | Condition::PipelineComplete { .. }
        | Condition::LatestInPhase { .. }
        | Condition::LatestComplete { .. }
        | Condition::Made(_) => None,
    }
}

#[cfg(test)]
mod tests;
