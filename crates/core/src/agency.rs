//! Agency: what happens to an agent's task, and what that means for its step.
//!
//! | the task | the step |
//! |---|---|
//! | is done | succeeds |
//! | fails, or is given up on | fails |
//! | needs a human | waits for one: an escalation |
//! | is started again | goes back: the next lease brings the next session, under the next epoch |

use crate::attempt::{self, Report};
use crate::event::{Escalate, Event};
use crate::gate;
use crate::id::StepId;
use crate::machine::{Decision, Given};
use crate::private::Private;
use crate::run::{Error, Run};
use crate::runbook::{Kind, Runbook, StepDef};
use crate::step::{self, Failure, Resolution, Status, Step, Wait};
use crate::task::{self, Config, State, Task};
use alloc::string::{String, ToString};
use serde_json::Value;

/// Something happens to the task of a step.
///
/// # Errors
/// There is no such step or task, its epoch is stale, or the run has ended.
pub fn task(
    run: &Run,
    runbook: &Runbook,
    id: &StepId,
    input: &task::Input,
    given: &mut Given<'_>,
) -> Result<Decision, Error> {
    run.must_live()?;
    let step = run.need(id)?;
    let def = runbook.pipelines.get(&run.born.home.pipeline).and_then(|def| def.node(step.node));
    let def = def.ok_or_else(|| Error::Missing("definition of step", id.to_string()))?;
    let known = run.rare().tasks.get(id);
    let fresh;
    let task = match (known, input) {
        // A step that is tried again has a new task.
        (Some(Task { state: State::Done { .. }, epoch, .. }), task::Input::Start { epoch: next, .. })
            if next > epoch =>
        {
            fresh = new(run, runbook, def, step)?;
            &fresh
        }
        (Some(task), _) => task,
        (None, task::Input::Start { .. }) => {
            fresh = new(run, runbook, def, step)?;
            &fresh
        }
        (
            None,
            task::Input::Heartbeat { .. }
            | task::Input::Recover { .. }
            | task::Input::Signal { .. }
            | task::Input::Succeed { .. }
            | task::Input::Fail { .. }
            | task::Input::Cancel { .. }
            | task::Input::Resolve { .. }
            | task::Input::Tick { .. },
        ) => return Err(Error::Missing("task of step", id.to_string())),
    };
    let mut out = task.decide(input, given.at)?;
    let calls = out.facts.iter().find_map(|fact| call(run, fact));
    let became = out.facts.iter().find_map(became);
    let Some(became) = became else { return Ok(out) };
    // The step is looked at as it is once the task has moved, so that its end finds no live task.
    let run = out.facts.iter().fold(run.clone(), |run, fact| run.apply(fact, given.at));
    let step = run.need(id)?;
    let moved = match step.status {
        Status::Running => under_way(&run, def, step, became, given)?,
        Status::WaitingApproval => escalated(&run, def, step, became, given)?,
        // The step has gone on without the task, or ended before it.
        Status::Pending
        | Status::Ready
        | Status::WaitingExternal
        | Status::FailedRetryable
        | Status::OutcomeUnknown
        | Status::Succeeded
        | Status::Skipped
        | Status::Failed
        | Status::Cancelled => Decision::new(),
    };
    out.join(moved);
    // The call for a human stands behind what became of the step.
    out.facts.extend(calls);
    Ok(out)
}

/// The call for a human that an escalation is, for those who listen to the run.
fn call(run: &Run, fact: &Event) -> Option<Event> {
    match fact {
        Event::TaskEscalated(e) => {
            let message = e.message.clone().unwrap_or_else(|| Private::New(String::new()));
            Some(Escalate { pipeline_id: run.id(), step: Some(e.step.clone()), message }.into())
        }
        // tidy: nothing else calls for a human.
        _ => None,
    }
}

/// What became of a task, as far as its step is concerned.
enum Became {
    Done(Option<Value>),
    Failed(Failure),
    Cancelled,
    Escalated,
    Restarting,
}

fn became(fact: &Event) -> Option<Became> {
    match fact {
        Event::TaskCompleted(e) => Some(Became::Done(e.output.as_ref().and_then(Private::get))),
        Event::TaskFailed(e) if e.cancelled => Some(Became::Cancelled),
        Event::TaskFailed(e) => {
            let message = e.error.get().unwrap_or_default();
            Some(Became::Failed(Failure { code: e.code.clone(), message }))
        }
        Event::TaskEscalated(_) => Some(Became::Escalated),
        Event::TaskRestarting(_) => Some(Became::Restarting),
        // tidy: the others say something of the task alone.
        _ => None,
    }
}

/// A task is its step's attempt: what becomes of it goes the way of every report.
fn under_way(
    run: &Run,
    def: &StepDef,
    step: &Step,
    became: Became,
    given: &mut Given<'_>,
) -> Result<Decision, Error> {
    let report = match became {
        Became::Done(output) => Report::Done { output, exit_code: None },
        Became::Failed(failure) => {
            Report::Failed { failure, retryable: false, exit_code: None, signal: None }
        }
        Became::Cancelled => Report::Stopped,
        Became::Restarting => Report::Returned { reason: Some("its session is started again".to_string()) },
        Became::Escalated => {
            let reason = Wait::Escalation;
            let input = step::Input::Wait { reason, on: None, key: None, until: None, output: None };
            let mut out = attempt::settle(run, def, step, &input, Decision::new(), given)?;
            out.follow.extend(gate::release(run, step));
            return Ok(out);
        }
    };
    attempt::report(run, def, step, step.epoch, &report, given)
}

/// A task that a human was called for comes to an end, or begins again: its step with it.
fn escalated(
    run: &Run,
    def: &StepDef,
    step: &Step,
    became: Became,
    given: &mut Given<'_>,
) -> Result<Decision, Error> {
    let missing = match &became {
        Became::Done(output) => attempt::missing_output(def, output.as_ref()),
        Became::Failed(_) | Became::Cancelled | Became::Restarting | Became::Escalated => None,
    };
    let (resolution, reason, output) = match became {
        Became::Done(_) if missing.is_some() => (Resolution::Fail, missing, None),
        Became::Done(output) => (Resolution::Done, None, output),
        Became::Failed(failure) => (Resolution::Fail, Some(failure.message), None),
        Became::Cancelled => (Resolution::Fail, Some("cancelled".to_string()), None),
        Became::Restarting => (Resolution::Retry, None, None),
        Became::Escalated => return Ok(Decision::new()),
    };
    attempt::resolve(run, step, resolution, false, reason, output, given)
}

fn new(run: &Run, runbook: &Runbook, def: &StepDef, step: &Step) -> Result<Task, Error> {
    let agent = step.agent().ok_or_else(|| Error::Missing("agent of step", step.id.to_string()))?;
    Ok(Task::new(run.id(), step.id.clone(), agent, step.epoch, config(runbook, def)))
}

/// How patient a task is, as its agent's definition says.
fn config(runbook: &Runbook, def: &StepDef) -> Config {
    let agent = match &def.kind {
        Kind::Agent { agent, .. } => runbook.agents.get(agent),
        Kind::Run { .. }
        | Kind::Tool { .. }
        | Kind::Parallel { .. }
        | Kind::Steps { .. }
        | Kind::Strategy { .. }
        | Kind::Call { .. }
        | Kind::Approve { .. }
        | Kind::Wait { .. } => None,
    };
    let interval = def.checkpoint.as_ref().and_then(|checkpoint| checkpoint.interval);
    match agent {
        Some(agent) => Config {
            heartbeat_timeout: agent.heartbeat_timeout,
            max_recovery_attempts: agent.max_recovery_attempts,
            checkpoint_interval: interval,
        },
        None => Config::default(),
    }
}
