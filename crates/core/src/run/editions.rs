//! Editions: a run's variables as they are and as they were, and which of them each step is given.
//!
//! A step is given the variables of the edition that it was prepared with, and no others: its attempts, its guards and
//! the read that tells whether it happened. A change makes the next edition. What has not begun by then is *stale*: it is
//! prepared anew before it does anything. An edition is kept, once for the run, as long as a step has it.

use super::Run;
use crate::approval;
use crate::digest::Digest;
use crate::id::{Name, StepId};
use crate::packed::Packed;
use crate::requesters;
use crate::run::Section;
use crate::step::{GroupKind, Status, Step, Wait};
use alloc::string::String;
use alloc::vec::Vec;
use serde_json::Value;

impl Run {
    /// The variables that a step is given.
    #[must_use]
    pub fn vars_of(&self, step: &Step) -> &Packed {
        if step.edition == self.edition {
            return &self.vars;
        }
        self.rare().vars.get(&step.edition).unwrap_or(&self.vars)
    }

    /// The variables that changed since a step was prepared.
    #[must_use]
    pub(crate) fn changed_since(&self, step: &Step) -> Vec<String> {
        let (Value::Object(before), Value::Object(now)) = (self.vars_of(step).get(), self.vars.get()) else {
            return Vec::new();
        };
        now.into_iter()
            .filter(|(name, value)| before.get(name) != Some(value))
            .map(|(name, _)| name)
            .collect()
    }

    /// Whether a step was prepared with earlier variables and has not begun, so that it has to be prepared anew. An
    /// `approve` step that succeeded is among them: what it asked may be another question now.
    #[must_use]
    pub fn is_stale(&self, step: &Step) -> bool {
        if step.edition == self.edition || self.ending.is_some() {
            return false;
        }
        match (step.status, step.waiting.as_ref().map(|waiting| waiting.reason)) {
            (Status::Ready, _) => true,
            (
                Status::WaitingApproval | Status::WaitingExternal,
                Some(
                    Wait::Approval
                    | Wait::Policy
                    | Wait::Lock
                    | Wait::Semaphore
                    | Wait::Guard
                    | Wait::Event
                    | Wait::Timer
                    | Wait::Budget,
                ),
            ) => true,
            (Status::Succeeded, _) => is_approval(step),
            // An attempt keeps what it began with, until its guards after or whoever settles it are done with it. What
            // is in back-off, or waits for an executor with room, becomes ready first.
            (
                Status::WaitingApproval | Status::WaitingExternal,
                Some(Wait::GuardAfter | Wait::Escalation | Wait::Backoff | Wait::Executor | Wait::Outcome)
                | None,
            )
            | (Status::Running | Status::OutcomeUnknown | Status::FailedRetryable, _)
            | (Status::Pending | Status::Skipped | Status::Failed | Status::Cancelled, _) => false,
        }
    }

    /// Whether an `approve` step that was answered has not been looked at since the variables changed.
    #[must_use]
    pub(crate) fn is_unsettled(&self) -> bool {
        let stale = |step: &Step| step.status == Status::Succeeded && self.is_stale(step);
        self.flow().iter().filter_map(|place| self.at(place)).any(stale)
    }

    /// Whether every question that was asked before this step is answered as it is now.
    #[must_use]
    pub(crate) fn is_answered(&self, step: &Step) -> bool {
        self.unanswered(step).is_none()
    }

    /// An `approve` step before this one whose question changed after it was answered, and was not answered since; with
    /// what it asks about.
    pub(crate) fn unanswered(&self, step: &Step) -> Option<(&StepId, Digest)> {
        if step.section != Section::Main || self.rare().asking.is_empty() {
            return None;
        }
        let open = |(by, asks): &(&StepId, &Digest)| {
            self.step(by).is_some_and(|asker| self.is_before(asker, step)) && !self.has_answer(by, asks)
        };
        self.rare().asking.iter().find(open).map(|(by, asks)| (by, *asks))
    }

    /// Whether an `approve` step's question changed after it was answered, and has no answer now.
    pub(crate) fn asks_again(&self, asker: &Step) -> bool {
        let open = |asks: &Digest| !self.has_answer(&asker.id, asks);
        self.is_stale(asker) || self.rare().asking.get(&asker.id).is_some_and(open)
    }

    /// Whether the changed question of an `approve` step got its yes.
    pub(crate) fn has_answer(&self, by: &StepId, asks: &Digest) -> bool {
        let yes = |a: &approval::Approval| {
            a.status == approval::Status::Approved && a.by_step.as_ref() == Some(by) && a.action_hash == *asks
        };
        self.rare().approvals.values().any(yes)
    }

    /// Whether one step comes before another in the run: it was reached earlier, and the two are not members of a group
    /// that runs them side by side.
    fn is_before(&self, earlier: &Step, later: &Step) -> bool {
        let (Some(first), Some(second)) = (self.place(&earlier.id), self.place(&later.id)) else {
            return false;
        };
        if first >= second {
            return false;
        }
        let groups = |step: &Step| -> Vec<u32> {
            let up = |place: &u32| self.at(*place).and_then(|group| group.parent);
            core::iter::successors(step.parent, up).collect()
        };
        let around = groups(earlier);
        let shared = groups(later).into_iter().find(|group| around.contains(group));
        let kind = shared.and_then(|place| self.at(place)?.group).map(|group| group.shape.kind);
        !matches!(kind, Some(GroupKind::Parallel | GroupKind::Foreach))
    }

    /// Changed variables: the next edition, where they differ at all.
    pub(super) fn update(&mut self, new: Option<Value>, by: Option<&Name>) {
        let (Some(Value::Object(new)), Value::Object(mut vars)) = (new, self.vars.get()) else { return };
        vars.extend(new);
        let vars = Packed::of(&Value::Object(vars));
        if vars == self.vars {
            return;
        }
        let before = core::mem::replace(&mut self.vars, vars);
        if self.steps.iter().any(|step| step.edition == self.edition && has_use(step)) {
            let edition = self.edition;
            self.rare_mut().vars.insert(edition, before);
        }
        self.edition += 1;
        self.asked(by.into_iter().cloned());
        self.reindex_all();
    }

    /// These count as having asked for what it does from now on.
    pub(super) fn asked(&mut self, by: impl IntoIterator<Item = Name>) {
        let mut by = by.into_iter().peekable();
        if by.peek().is_some() {
            requesters::add(&mut self.rare_mut().changed_by, by);
        }
    }

    /// Editions that no step has any more are forgotten.
    pub(super) fn forget_editions(&mut self) {
        let Some(rare) = self.rare.as_mut().filter(|rare| !rare.vars.is_empty()) else { return };
        let (steps, now) = (&self.steps, self.edition);
        rare.vars.retain(|edition, _| {
            *edition != now && steps.iter().any(|step| step.edition == *edition && has_use(step))
        });
    }
}

/// Whether a step is an `approve` step of the main section, and not a group of them.
fn is_approval(step: &Step) -> bool {
    step.tool.as_str() == "approve" && step.group.is_none() && step.section == Section::Main
}

/// Whether a step may still be asked which variables it was given.
fn has_use(step: &Step) -> bool {
    !step.status.is_terminal() || step.status == Status::Succeeded && is_approval(step)
}
