//! What facts do to a run. Nothing is decided here.

use super::{
    Cancellation, Checkpoint, Ending, Kept, MESSAGES_MAX, Rare, Run, Section, Status, Undoing, Wanted,
    sequence,
};
use crate::approval::Approval;
use crate::budget::{Budget, Limits};
use crate::event::Event;
use crate::id::{ApprovalId, Name, StepId};
use crate::packed::Packed;
use crate::private::Private;
use crate::step::{self, Failure, Step};
use crate::task::{self, Task};
use crate::time::Millis;
use alloc::boxed::Box;
use alloc::sync::Arc;
use serde_json::Value;

impl Run {
    fn change(&mut self, step: &StepId, event: &Event, at: Millis) {
        let Some(i) = self.place(step) else { return };
        let Some(slot) = self.steps.get_mut(i as usize) else { return };
        let before = slot.status.is_terminal();
        slot.fold(event, at);
        if slot.status.is_terminal() && !before {
            if let Some(policy) = self.policy.as_mut().filter(|policy| !policy.steps.is_empty()) {
                Arc::make_mut(policy).fold(event);
            }
            self.ended += 1;
            slot.ended = self.ended;
            self.member_ended(i);
        }
        self.reindex(i);
        self.forget_editions();
    }

    /// Adds a step that was reached or passed by, and counts it in its group.
    fn reach(&mut self, step: &StepId, node: u32, tool: &Name, parent: Option<&StepId>) {
        let Err(at) = self.named(step) else { return };
        let i = self.steps.len() as u32;
        let mut new = Step::pending(step.clone(), node, tool.clone());
        new.section = self.section;
        new.parent = parent.and_then(|parent| self.place(parent));
        let parent = new.parent;
        if self.steps.len() == self.steps.capacity() {
            // Many runs wait at their first step for long: room for one is what they need.
            self.steps.reserve_exact(self.steps.len().max(1));
        }
        self.steps.push(new);
        if self.index.is_empty() {
            self.index.reserve_exact(1);
        }
        self.index.insert(at, i);
        let group = match parent {
            Some(p) => self.steps.get_mut(p as usize).and_then(|step| step.group.as_mut()),
            None => Some(&mut self.root),
        };
        if let Some(group) = group {
            group.next += 1;
            group.open += 1;
        }
        if let Some(p) = parent {
            self.reindex(p);
        }
    }

    /// A step of the run that this one takes back, as it ended.
    fn take(&mut self, step: Step) {
        let Err(at) = self.named(&step.id) else { return };
        self.index.insert(at, self.steps.len() as u32);
        self.ended = self.ended.max(step.ended);
        self.steps.push(step);
    }

    fn member_ended(&mut self, i: u32) {
        let Some(step) = self.steps.get(i as usize) else { return };
        let bad = matches!(step.status, step::Status::Failed | step::Status::Cancelled);
        let (parent, section) = (step.parent, step.section);
        let group = match parent {
            Some(p) => self.steps.get_mut(p as usize).and_then(|step| step.group.as_mut()),
            None if section == self.section => Some(&mut self.root),
            None => None,
        };
        if let Some(group) = group {
            group.open = group.open.saturating_sub(1);
            group.failed += u32::from(bad);
        }
        if let Some(p) = parent {
            self.reindex(p);
        }
    }

    fn end(&mut self, status: Status, duration_ms: u64, outputs: Option<Value>, at: Millis) {
        self.ending = Some(Box::new(Ending { status, at, duration_ms, outputs, deleted: false }));
        self.blocked = None;
        // No step follows.
        self.steps.shrink_to_fit();
    }

    /// What a fact does to the run. Facts of other streams leave it as it is.
    #[must_use]
    pub fn apply(mut self, event: &Event, at: Millis) -> Run {
        self.fold(event, at);
        self
    }

    /// [`Run::apply`] in place: a run is too large to move for every fact.
    pub fn fold(&mut self, event: &Event, at: Millis) {
        self.updated_at = at;
        match event {
            Event::PipelineInherited(e) => {
                for step in e.steps.get().unwrap_or_default() {
                    self.rare_mut().inherited.insert(step.step.clone(), step);
                }
            }
            Event::PipelineReverses(e) => {
                let mut values = e.values.get().unwrap_or_default().into_iter();
                for taken in &e.steps {
                    self.take(taken.clone().step(&values.next().unwrap_or_default()));
                }
            }
            Event::PipelineBlocked(e) => self.blocked = Some(Box::new(e.on.clone())),
            Event::PipelineUnblocked(_) => self.blocked = None,
            Event::PipelineStarted(e) => {
                self.blocked = None;
                self.started_at = Some(at);
                self.root = sequence(Section::Main, e.steps);
                self.approvers = e.approvers.clone().unwrap_or_default().into_boxed_slice();
            }
            Event::PipelineUpdated(e) => self.update(e.vars.get(), e.user.as_ref()),
            Event::PipelineEntered(e) => {
                self.section = e.section;
                self.root = sequence(e.section, e.steps);
                if let Some(code) = &e.code {
                    let message = e.error.as_ref().and_then(Private::get).unwrap_or_default();
                    let failure = (e.step.clone(), Failure { code: code.clone(), message });
                    self.failure.get_or_insert_with(|| Box::new(failure));
                }
            }
            Event::PipelineSuspended(_) => self.suspended = true,
            Event::PipelineResumed(_) => self.suspended = false,
            Event::PipelineCancelling(e) => {
                self.stopping = Some(Box::new(Cancellation {
                    initiator: e.initiator,
                    user: e.user.clone(),
                    reason: e.reason.clone(),
                    at,
                }));
                self.suspended = false;
            }
            Event::PipelineCompleted(e) => {
                self.end(Status::Completed, e.duration_ms, e.outputs.as_ref().and_then(Private::get), at);
            }
            Event::PipelineFailed(e) => {
                let message = e.error.get().unwrap_or_default();
                let failure = (e.step.clone(), Failure { code: e.code.clone(), message });
                self.failure.get_or_insert_with(|| Box::new(failure));
                self.end(Status::Failed, e.duration_ms, None, at);
            }
            Event::PipelineCancelled(e) => self.end(Status::Cancelled, e.duration_ms, None, at),
            Event::PipelineDeleted(_) => self.forget(),
            Event::PipelineRetry(e) => self.rare_mut().later.push(e.new),
            Event::PipelineFork(e) => self.rare_mut().later.push(e.new),
            Event::PipelineUndo(e) => {
                self.rare_mut().undos.push(Undoing { run: e.new, path: e.path.clone() });
            }

            Event::PipelineAdvanced(e) => {
                self.reach(&e.step, e.node, &e.tool, e.parent.as_ref());
                let compensates = e.compensates.as_ref().and_then(|step| self.place(step));
                self.change(&e.step, event, at);
                if let Some(i) = self.place(&e.step) {
                    self.steps[i as usize].compensates = compensates;
                }
            }
            Event::StepSkipped(e) => {
                self.reach(&e.step, e.node, &e.tool, e.parent.as_ref());
                self.change(&e.step, event, at);
            }
            Event::StepPrepared(e) => {
                let answered = self.step(&e.step).is_some_and(|step| step.status == step::Status::Succeeded);
                self.change(&e.step, event, at);
                if let Some(asks) = e.action_hash.filter(|_| answered && e.changed) {
                    self.rare_mut().asking.insert(e.step.clone(), asks);
                    // Whatever comes after it waits for the answer.
                    self.reindex_all();
                }
            }
            Event::PipelineOrphaned(_) => self.rare_mut().orphaned_at = Some(at),
            Event::StepStarted(e) => {
                if let Some(rare) = &mut self.rare {
                    rare.orphaned_at = None;
                }
                self.writes += u32::from(self.step(&e.step).is_some_and(Step::writes));
                let before = self.step(&e.step).and_then(Step::child);
                if let Some(before) = before.filter(|before| e.child.is_some_and(|child| child != *before)) {
                    self.rare_mut().called.insert(e.step.clone(), before);
                }
                self.change(&e.step, event, at);
            }
            Event::StepWaiting(e) => self.change(&e.step, event, at),
            Event::StepReady(e) => {
                if let Some(rare) = &mut self.rare {
                    rare.guards.remove(&e.step);
                }
                self.change(&e.step, event, at);
            }
            Event::StepCompleted(e) => {
                // What an earlier run of the lineage did is no write of this one.
                let reused = e.reused_from.is_some() && self.step(&e.step).is_some_and(Step::writes);
                self.writes = self.writes.saturating_sub(u32::from(reused));
                self.asked(e.asked_by.iter().flatten().cloned());
                self.change(&e.step, event, at);
            }
            Event::StepFailed(e) => self.change(&e.step, event, at),
            Event::StepRetrying(e) => self.change(&e.step, event, at),
            Event::StepReturned(e) => self.change(&e.step, event, at),
            Event::StepExpired(e) => self.change(&e.step, event, at),
            Event::StepUnknown(e) => self.change(&e.step, event, at),
            Event::StepResolved(e) => self.change(&e.step, event, at),
            Event::StepCancelled(e) => self.change(&e.step, event, at),
            Event::StepOutputLost(e) => self.change(&e.step, event, at),
            Event::HoldLost(e) => self.change(&e.step, event, at),
            Event::GuardBlocked(e) => {
                if let Some(give_up) = e.give_up_at {
                    self.rare_mut().guards.insert(e.step.clone(), give_up);
                }
                self.change(&e.step, event, at);
            }

            // It stands for no step, so none moves.
            Event::PolicyDecided(e) if e.purpose.is_some() => {
                Arc::make_mut(self.policy.get_or_insert_default()).fold(event);
            }
            Event::PolicyDecided(e) => {
                let ledger = Arc::make_mut(self.policy.get_or_insert_default());
                let moved = ledger.version != Some(e.policy_version);
                ledger.fold(event);
                match &e.step {
                    // Under another policy none of the earlier answers counts, so every step is filed anew.
                    Some(step) if !moved => {
                        if let Some(i) = self.place(step) {
                            self.reindex(i);
                        }
                    }
                    Some(_) | None => self.reindex_all(),
                }
            }
            Event::ApprovalRequested(e) => {
                self.rare_mut().approvals.insert(e.approval_id, Approval::new(e, at));
            }
            Event::ApprovalDecided(e) => self.change_approval(e.approval_id, event, at),
            Event::ApprovalRefused(e) => self.change_approval(e.approval_id, event, at),
            Event::ApprovalReminded(e) => self.change_approval(e.approval_id, event, at),
            Event::ApprovalShown(e) => self.change_approval(e.approval_id, event, at),
            Event::ApprovalExpired(e) => self.change_approval(e.approval_id, event, at),
            Event::ApprovalCancelled(e) => self.change_approval(e.approval_id, event, at),

            Event::SignalReceived(e) => {
                let data = e.data.get().unwrap_or(Value::Null);
                self.rare_mut().signals.push(Kept { name: e.name.clone(), key: e.key.clone(), data });
                self.asked(e.asked_by.iter().flatten().cloned());
            }
            Event::SignalConsumed(e) => {
                let taken = |kept: &Kept| kept.name == e.name && kept.key == e.key;
                if let Some(rare) = &mut self.rare
                    && let Some(i) = rare.signals.iter().position(taken)
                {
                    rare.signals.remove(i);
                }
            }
            Event::CheckpointSaved(e) => {
                let tokens = (e.tokens_input.unwrap_or(0), e.tokens_output.unwrap_or(0));
                let mut saved = Checkpoint {
                    at,
                    resumable: e.resumable,
                    idempotent: e.idempotent,
                    epoch: e.epoch,
                    tokens: (e.tokens_input.is_some() || e.tokens_output.is_some()).then_some(tokens),
                    data: e.data.as_ref().and_then(Private::get),
                    message: e.message.as_ref().and_then(Private::get),
                };
                match &e.step {
                    Some(step) => {
                        // What has nothing to resume from does not take the place of what has.
                        if let Some(last) = self.rare().checkpoints.get(step)
                            && saved.data.is_none()
                            && !saved.resumable
                        {
                            saved.data.clone_from(&last.data);
                            saved.resumable = last.resumable;
                            saved.idempotent |= last.idempotent;
                        }
                        self.rare_mut().checkpoints.insert(step.clone(), saved);
                    }
                    None => {
                        let messages = &mut self.rare_mut().messages;
                        if messages.len() == MESSAGES_MAX {
                            messages.remove(0);
                        }
                        messages.push(saved);
                    }
                }
            }
            Event::BudgetReserved(_)
            | Event::BudgetReleased(_)
            | Event::BudgetExceeded(_)
            | Event::BudgetRaised(_)
            | Event::CostRecorded(_) => {
                let blank = || Box::new(Budget::new(self.born.id, Limits::default()));
                let budget = self.budget.take().unwrap_or_else(blank);
                self.budget = Some(Box::new(budget.apply(event, at)));
            }
            Event::NoticeRequested(e) => {
                let message = e.message.get().unwrap_or_default();
                let wanted = Wanted { kind: e.kind, step: e.step.clone(), message };
                self.rare_mut().notices.insert(e.notice, wanted);
            }
            Event::NoticeSent(e) => {
                if let Some(rare) = &mut self.rare {
                    rare.notices.remove(&e.notice);
                }
            }

            Event::TaskStarted(e) => {
                let task = match self.rare_mut().tasks.remove(&e.step) {
                    Some(task) if !matches!(task.state, task::State::Done { .. }) => task.apply(event, at),
                    Some(_) | None => Task::started(e, at),
                };
                self.rare_mut().tasks.insert(e.step.clone(), task);
            }
            Event::TaskStuck(e) => self.change_task(&e.step, event, at),
            Event::TaskRecovered(e) => self.change_task(&e.step, event, at),
            Event::TaskNudged(e) => self.change_task(&e.step, event, at),
            Event::TaskRestarting(e) => self.change_task(&e.step, event, at),
            Event::TaskCompleted(e) => self.change_task(&e.step, event, at),
            Event::TaskFailed(e) => self.change_task(&e.step, event, at),
            Event::TaskEscalated(e) => self.change_task(&e.step, event, at),
            Event::AgentSignal(e) => self.change_task(&e.step, event, at),
            Event::AgentWorking(e) => self.change_task(&e.step, event, at),
            Event::AgentFailed(e) => self.change_task(&e.step, event, at),
            Event::AgentExited(e) => self.change_task(&e.step, event, at),
            Event::AgentGone(e) => self.change_task(&e.step, event, at),

            // tidy: what is left are notes (a shell's exit code, a strategy's fallback, a passed guard), signals and
            // other actions, which change nothing, and the facts of other streams.
            _ => {}
        }
    }

    pub(super) fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    fn change_approval(&mut self, id: ApprovalId, event: &Event, at: Millis) {
        let Some(rare) = &mut self.rare else { return };
        let Some(approval) = rare.approvals.remove(&id) else { return };
        let step = approval.step.clone();
        let question = approval.by_step.as_ref().is_some_and(|by| rare.asking.contains_key(by));
        rare.approvals.insert(id, approval.apply(event, at));
        if question {
            self.reindex_all();
        } else if let Some(i) = self.place(&step) {
            self.reindex(i);
        }
    }

    fn change_task(&mut self, step: &StepId, event: &Event, at: Millis) {
        if let Some(rare) = &mut self.rare
            && let Some(task) = rare.tasks.remove(step)
        {
            rare.tasks.insert(step.clone(), task.apply(event, at));
        }
    }

    /// Retention took the values; ids, times and endings stay.
    fn forget(&mut self) {
        self.vars = Packed::of(&Value::Null);
        for step in &mut self.steps {
            step.input = None;
            step.output = None;
        }
        self.rare = None;
        if let Some(ending) = &mut self.ending {
            ending.outputs = None;
            ending.deleted = true;
        }
    }
}
