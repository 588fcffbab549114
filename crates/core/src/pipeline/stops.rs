//! How runs and groups are stopped: what nobody carries out ends, and executors of the rest are told.

use super::wind_up;
use crate::code::Code;
use crate::gate;
use crate::machine::{Decision, Given};
use crate::run::{Cancellation, Initiator, Run};
use crate::step::{self, FailFast, Failure, Status, Step, Wait};
use alloc::string::ToString;

/// With so many facts one move ends: a group that is stopped may have thousands of members.
const MOVE_MAX: usize = 256;

/// The failure of a run that a deadline or the loss of its lock stopped. What anything else stops is cancelled.
pub(super) fn failure(stop: &Cancellation) -> Option<Failure> {
    let code = match stop.initiator {
        Initiator::Timeout => return Some(Failure::new(Code::TimedOut, "the run's deadline passed")),
        Initiator::Hold => Code::LockBusy,
        Initiator::User
        | Initiator::Service
        | Initiator::Webhook
        | Initiator::Agent
        | Initiator::System
        | Initiator::Policy
        | Initiator::Approval
        | Initiator::Executor
        | Initiator::Schedule
        | Initiator::Worker
        | Initiator::Recovery => return None,
    };
    Some(Failure::new(code, stop.reason.clone().unwrap_or_else(|| "its lock was taken away".to_string())))
}

/// Ends what a cancelled run need not wait for. Executors are told to stop by the command that cancels; what they
/// still report, counts.
pub(super) fn stop(run: &Run, given: &mut Given<'_>) -> Decision {
    let mut out = Decision::new();
    for step in run.live() {
        let under_way = match step.group {
            Some(group) => group.open > 0,
            None => matches!(step.status, Status::Running | Status::OutcomeUnknown),
        };
        if !under_way {
            wind_up(run, step, given, &mut out);
        }
        if out.facts.len() >= MOVE_MAX {
            // The flow comes by again for the others.
            break;
        }
    }
    out
}

/// Ends the members of a group that nobody carries out, then tells the executors of the others to stop. They are told
/// again whenever the flow comes by: a stop names its epoch, so a repeat does nothing.
pub(crate) fn kill_members(run: &Run, place: u32, given: &mut Given<'_>) -> Decision {
    let mut out = Decision::new();
    let leased = |step: &Step| step.status == Status::Running && step.group.is_none();
    for step in run.live().filter(|step| under(run, step, place) && !leased(step)) {
        if step.group.is_none_or(|group| group.open == 0) && step.status != Status::OutcomeUnknown {
            wind_up(run, step, given, &mut out);
        }
        if out.facts.len() >= MOVE_MAX {
            break;
        }
    }
    if out.facts.is_empty() {
        let under_way = run.live().filter(|step| under(run, step, place) && leased(step));
        under_way.for_each(|step| gate::stop(run, step, &mut out));
    }
    out
}

/// Ends the members of a group that have not begun, because another one failed. Those that run are let finish.
pub(super) fn keep_out(run: &Run, place: u32, given: &mut Given<'_>) -> Decision {
    let mut out = Decision::new();
    for step in run.live().filter(|step| step.parent == Some(place) && !has_begun(step)) {
        wind_up(run, step, given, &mut out);
        if out.facts.len() >= MOVE_MAX {
            break;
        }
    }
    out
}

/// Whether the group of a step lets it begin no more. An executor may ask for it before the flow came by.
pub(crate) fn is_kept_out(run: &Run, step: &Step) -> bool {
    let group = step.parent.and_then(|place| run.at(place)).and_then(|group| group.group);
    group.is_some_and(|group| group.is_closed()) && !has_begun(step)
}

/// Whether a step has begun. One that was tried has, and for an `approve` or a `wait` to wait is all it does.
fn has_begun(step: &Step) -> bool {
    let waits_for_its_turn = |reason: Wait| match reason {
        Wait::Approval | Wait::Policy | Wait::Lock | Wait::Semaphore | Wait::Guard | Wait::Budget => true,
        Wait::GuardAfter
        | Wait::Event
        | Wait::Timer
        | Wait::Escalation
        | Wait::Backoff
        | Wait::Outcome
        | Wait::Executor => false,
    };
    let before = match step.status {
        Status::Ready => true,
        Status::WaitingApproval | Status::WaitingExternal => {
            step.waiting.as_ref().is_some_and(|waiting| waits_for_its_turn(waiting.reason))
        }
        Status::Pending
        | Status::Running
        | Status::FailedRetryable
        | Status::OutcomeUnknown
        | Status::Succeeded
        | Status::Skipped
        | Status::Failed
        | Status::Cancelled => false,
    };
    !before || step.attempt > 1 || matches!(step.tool.as_str(), "approve" | "wait")
}

/// The groups around a step, from the inside out.
pub(crate) fn around<'a>(run: &'a Run, step: &Step) -> impl Iterator<Item = (u32, &'a Step)> {
    let group = |place: u32| Some((place, run.at(place)?));
    core::iter::successors(step.parent.and_then(group), move |(_, step)| step.parent.and_then(group))
}

/// Whether a step belongs to a group, at any depth.
fn under(run: &Run, step: &Step, place: u32) -> bool {
    around(run, step).any(|(around, _)| around == place)
}

pub(super) fn overdue(step: &Step, given: &Given<'_>) -> bool {
    step.timeout_at.is_some_and(|timeout| timeout <= given.at)
}

/// Whether a group's members are stopped: its time is up, it lost what it held, or one failed and it kills the others.
pub(super) fn stopping(step: &Step, given: &Given<'_>) -> bool {
    let kills = |group: step::Group| group.failed > 0 && group.shape.fail_fast == FailFast::Kill;
    let lost = step.lost_hold().is_some();
    step.group.is_some_and(|group| kills(group) || overdue(step, given) || lost)
}

/// Whether a group around the step is being stopped.
pub(crate) fn halted(run: &Run, step: &Step, given: &Given<'_>) -> bool {
    around(run, step).any(|(_, group)| stopping(group, given))
}
