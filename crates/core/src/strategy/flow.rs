//! How a run moves through a strategy: what the end of an approach leads to.

use super::{Input, Outcome, Strategy};
use crate::code::Code;
use crate::machine::{Decision, Given};
use crate::pipeline::{close, member, open};
use crate::run::Run;
use crate::runbook::{Kind, Pipeline, StepDef};
use crate::scope;
use crate::step::{Failure, Status, Step};

/// A strategy whose approach has ended: done, the next one, or no way left.
pub(crate) fn next(
    run: &Run,
    def: &Pipeline,
    place: u32,
    step: &Step,
    node: &StepDef,
    given: &mut Given<'_>,
) -> Decision {
    let Some(group) = step.group else { return Decision::new() };
    let Kind::Strategy { approaches } = &node.kind else { return Decision::new() };
    let Some(last) = scope::members(run, place).last() else { return Decision::new() };
    let (input, failure) = match (last.status, last.error.as_deref()) {
        (Status::Failed, Some(failure)) => (failed(failure), failure.clone()),
        (Status::Failed, None) => {
            let failure = Failure::new(Code::StepFailed, "the approach failed");
            (failed(&failure), failure)
        }
        (Status::Cancelled, _) => {
            let failure = Failure::new(Code::Cancelled, "the approach was cancelled");
            (failed(&failure), failure)
        }
        // One that was not for this case has neither worked nor failed.
        (Status::Skipped, _) => (Input::Skip, why(run, place)),
        // A member that has ended otherwise has done what it was for.
        (
            Status::Succeeded
            | Status::Pending
            | Status::Ready
            | Status::Running
            | Status::WaitingApproval
            | Status::WaitingExternal
            | Status::FailedRetryable
            | Status::OutcomeUnknown,
            _,
        ) => return close(run, def, place, step, None, node, given),
    };
    let list = approaches.iter().map(|def| def.approach.clone()).collect();
    let Ok(mut strategy) = Strategy::new(run.id(), step.id.clone(), list) else {
        return close(run, def, place, step, Some(failure), node, given);
    };
    strategy.current = group.next - 1;
    let Ok(Decision { facts, reply, .. }) = strategy.decide(&input, given.at) else {
        return close(run, def, place, step, Some(failure), node, given);
    };
    let then = match reply {
        Outcome::TryNext { next } => open(run, def, Some(place), member(node, step, next), next, given),
        Outcome::Exhausted => {
            let failure = Failure::new(Code::StrategyExhausted, failure.message);
            close(run, def, place, step, Some(failure), node, given)
        }
        Outcome::Failed => close(run, def, place, step, Some(failure), node, given),
        Outcome::Success => close(run, def, place, step, None, node, given),
    };
    let mut out = Decision { facts, ..Decision::new() };
    out.join(then);
    out
}

fn failed(failure: &Failure) -> Input {
    if failure.code.as_str() == Code::TimedOut.as_str() {
        Input::TimeOut
    } else {
        Input::Fail { error: failure.message.clone() }
    }
}

/// What a strategy that ends with a skipped approach says: the last failure, where any approach ran at all.
fn why(run: &Run, place: u32) -> Failure {
    let failure = scope::members(run, place).filter_map(|member| member.error.as_deref()).last();
    failure.cloned().unwrap_or_else(|| Failure::new(Code::StepFailed, "every approach was skipped"))
}
