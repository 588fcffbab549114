//! What facts do to a step. Nothing is decided here.

use super::{Failure, Group, Leased, OutputLost, Resolution, Status, Step, Ties, Wait, Waiting};
use crate::event::words::step::{Binding, Bound};
use crate::event::{Event, StepPrepared};
use crate::id::Name;
use crate::packed::Packed;
use crate::private::Private;
use crate::time::Millis;
use alloc::boxed::Box;
use alloc::vec::Vec;

impl Step {
    /// The next attempt has a number and a fence of its own.
    fn next_attempt(&mut self, status: Status) {
        self.status = status;
        self.attempt += 1;
        self.epoch += 1;
        self.lease = None;
        self.timeout_at = None;
    }

    fn end(&mut self, status: Status, at: Millis) {
        self.status = status;
        self.lease = None;
        self.lost_at = None;
        self.timeout_at = None;
        self.waiting = None;
        self.next_eligible_at = None;
        self.completed_at = Some(at);
    }

    fn tie(&mut self, bindings: Option<Vec<Binding>>, bound: Option<Bound>) {
        let ties = Ties { bindings: bindings.unwrap_or_default(), bound };
        self.ties = (ties != Ties::default()).then(|| Box::new(ties));
    }

    /// It starts over with what was rendered for it now. An `approve` step that was answered only asks something else.
    fn prepared(&mut self, e: &StepPrepared) {
        self.input = e.input.as_ref().and_then(Private::value).map(Packed::of);
        self.tie(e.bindings.clone(), e.bound.clone());
        if self.status == Status::Succeeded {
            return;
        }
        self.status = Status::Ready;
        self.group = e.group.map(Group::new);
        self.gates = e.gates.clone().unwrap_or_default().into_boxed_slice();
        self.passed = 0;
        self.key = e.key.clone();
        self.action_hash = e.action_hash.map(Box::new);
        self.waiting = None;
    }

    /// What a fact about this step does to it. Facts about other steps must not come here.
    #[must_use]
    pub fn apply(mut self, event: &Event, at: Millis) -> Step {
        self.fold(event, at);
        self
    }

    /// [`Step::apply`] in place: a step is too large to move for every fact.
    pub(crate) fn fold(&mut self, event: &Event, at: Millis) {
        match event {
            Event::PipelineAdvanced(e) => {
                self.status = Status::Ready;
                self.section = e.section.unwrap_or(self.section);
                self.item = e.item;
                self.group = e.group.map(Group::new);
                self.gates = e.gates.clone().unwrap_or_default().into_boxed_slice();
                self.key = e.key.clone();
                self.action_hash = e.action_hash.map(Box::new);
                self.max_attempts = e.max_attempts.unwrap_or(1);
                self.semantics = e.semantics;
                self.input = e.input.as_ref().and_then(Private::value).map(Packed::of);
                self.edition = e.edition.unwrap_or(0);
                self.tie(e.bindings.clone(), e.bound.clone());
            }
            Event::StepPrepared(e) => {
                self.edition = e.edition;
                if e.changed {
                    self.prepared(e);
                }
            }
            Event::StepSkipped(e) => {
                self.item = e.item;
                self.end(Status::Skipped, at);
            }
            Event::StepStarted(e) => {
                self.status = Status::Running;
                self.lost_at = None;
                self.attempt = e.attempt;
                self.epoch = e.epoch;
                self.lease = match (&e.lease_owner, e.lease_expires_at) {
                    (Some(owner), Some(expires_at)) => {
                        Some(Leased { owner: owner.clone(), expires_at, granted_at: at })
                    }
                    (None, _) | (_, None) => None,
                };
                self.timeout_at = e.timeout_at;
                self.agent = e.agent_id.map(Box::new).or(self.agent.take());
                self.child = e.child.map(Box::new);
                self.started_at = self.started_at.or(Some(at));
                self.waiting = None;
                // A group that is started again starts from its first member.
                self.group = self.group.map(|group| Group::new(group.shape));
            }
            Event::StepWaiting(e) => {
                let reason = e.reason.unwrap_or(Wait::Event);
                let human = matches!(reason, Wait::Approval | Wait::Budget | Wait::Escalation);
                if let Some(output) = e.output.as_ref().and_then(Private::value) {
                    self.output = Some(Packed::of(output));
                }
                if human {
                    // No lock is held while a human sleeps: the gates are passed again afterwards.
                    self.passed = 0;
                }
                // Who stands before a gate has passed those in front of it, and none beyond.
                if let Some(i) = self.gates.iter().position(|gate| gate.waits() == (reason, e.on.as_ref())) {
                    self.passed = i as u32;
                }
                let (on, key) = (e.on.clone(), e.key.clone());
                self.waiting = Some(Box::new(Waiting { reason, on, key, until: e.until, since: at }));
                let status = if human { Status::WaitingApproval } else { Status::WaitingExternal };
                if self.status == Status::Running && reason != Wait::GuardAfter {
                    self.next_attempt(status);
                } else {
                    self.status = status;
                    self.lease = None;
                    self.timeout_at = None;
                }
            }
            Event::StepReady(e) => {
                if matches!(e.after, Wait::Lock | Wait::Semaphore | Wait::Guard) {
                    self.passed += 1;
                }
                self.status = Status::Ready;
                self.waiting = None;
                self.next_eligible_at = None;
            }
            Event::StepCompleted(e) => {
                if let Some(output) = e.output.as_ref().and_then(Private::value) {
                    self.output = Some(Packed::of(output));
                }
                self.error = None;
                self.end(Status::Succeeded, at);
            }
            Event::StepFailed(e) => {
                let message = e.error.get().unwrap_or_default();
                self.error = Some(Box::new(Failure { code: e.code.clone(), message }));
                self.failures += 1;
                self.acted = self.waiting.as_ref().is_some_and(|w| w.reason == Wait::GuardAfter);
                self.end(Status::Failed, at);
            }
            Event::StepRetrying(e) => {
                let message = e.error.get().unwrap_or_default();
                self.error = Some(Box::new(Failure { code: e.code.clone(), message }));
                self.failures += 1;
                self.next_eligible_at = Some(e.next_eligible_at);
                self.next_attempt(Status::FailedRetryable);
            }
            Event::StepReturned(_) => self.next_attempt(Status::Ready),
            Event::StepExpired(e) => {
                self.losses += 1;
                self.lost_at = Some(e.last_seen.unwrap_or(at));
                self.next_attempt(Status::Ready);
            }
            Event::HoldLost(e) => {
                self.lost_at = Some(at);
                self.error = Some(Box::new(Failure::hold_lost(&e.hold)));
            }
            Event::StepUnknown(e) => {
                self.status = Status::OutcomeUnknown;
                self.losses += 1;
                // Who had the lease may still say what became of the attempt, and nobody else.
                self.timeout_at = None;
                let on = e.probe.then(|| Name::clean("probe"));
                let waiting = Waiting { reason: Wait::Outcome, on, key: None, until: None, since: at };
                self.waiting = Some(Box::new(waiting));
            }
            Event::StepResolved(e) if e.resolution == Resolution::Retry => {
                self.waiting = None;
                self.next_attempt(Status::Ready);
            }
            Event::GuardBlocked(e) => {
                if let Some(waiting) = &mut self.waiting {
                    waiting.until = Some(e.retry_at);
                    waiting.on = Some(e.guard.clone());
                }
            }
            Event::StepOutputLost(e) => {
                let lost = OutputLost { epoch: e.epoch, bytes: e.bytes, reason: e.reason.clone(), at };
                self.output_lost = Some(Box::new(lost));
            }
            Event::StepCancelled(_) => self.end(Status::Cancelled, at),
            // tidy: every other event is about something else, or, like the two other resolutions, comes with the
            // fact that ends the step.
            _ => {}
        }
    }
}
