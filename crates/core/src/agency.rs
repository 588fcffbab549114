//! Agency: what happens to an agent's task, and what that means for its step.
//!
//! | the task | the step |
//! |---|---|
//! | is done | succeeds |
//! | fails, or is given up on | fails |
//! | needs a human | waits for one: an escalation |
//! | is started again | goes back: the next lease brings the next session, under the next epoch |

use crate::event::Event;
use crate::id::StepId;
use crate::machine::{Decision, Given};
use crate::pipeline;
use crate::private::Private;
use crate::run::{Error, Run};
use crate::runbook::{Kind, Runbook};
use crate::step::{self, Failure, Status, Wait};
use crate::task::{self, Config, Task};
use alloc::string::ToString;

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
    let fresh;
    let task = match (run.rare.tasks.get(id), input) {
        (Some(task), _) => task,
        (None, task::Input::Start { .. }) => {
            let agent = step.agent.ok_or_else(|| Error::Missing("agent of step", id.to_string()))?;
            fresh = Task::new(run.id(), id.clone(), agent, step.epoch, config(run, runbook, step.node));
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
    let facts = out.facts.clone();
    for fact in &facts {
        let input = match fact {
            Event::TaskCompleted(e) => {
                let output = e.output.as_ref().and_then(Private::get);
                step::Input::Succeed { epoch: step.epoch, output, reused_from: None }
            }
            Event::TaskFailed(e) if e.cancelled => step::Input::Cancel { reason: e.error.get() },
            Event::TaskFailed(e) => {
                let failure = Failure { code: e.code.clone(), message: e.error.get().unwrap_or_default() };
                step::Input::Fail { epoch: step.epoch, failure, retry_at: None }
            }
            Event::TaskEscalated(_) => {
                step::Input::Wait { reason: Wait::Escalation, on: None, key: None, until: None, output: None }
            }
            Event::TaskRestarting(_) => step::Input::Return {
                epoch: step.epoch,
                reason: Some("its session is started again".to_string()),
            },
            // tidy: the others say something of the task alone.
            _ => continue,
        };
        if step.status == Status::Running {
            pipeline::end(run, step, input, given, &mut out);
        }
    }
    Ok(out)
}

/// How patient a task is, as its agent's definition says.
fn config(run: &Run, runbook: &Runbook, node: u32) -> Config {
    let def = runbook.pipelines.get(&run.born.pipeline).and_then(|def| def.node(node));
    let agent = match def.map(|def| &def.kind) {
        Some(Kind::Agent { agent, .. }) => runbook.agents.get(agent),
        Some(
            Kind::Run { .. }
            | Kind::Tool { .. }
            | Kind::Parallel { .. }
            | Kind::Steps { .. }
            | Kind::Strategy { .. }
            | Kind::Call { .. }
            | Kind::Approve { .. }
            | Kind::Wait { .. },
        )
        | None => None,
    };
    let interval = def.and_then(|def| def.checkpoint.as_ref()).and_then(|checkpoint| checkpoint.interval);
    match agent {
        Some(agent) => Config {
            heartbeat_timeout: agent.heartbeat_timeout,
            max_recovery_attempts: agent.max_recovery_attempts,
            checkpoint_interval: interval,
        },
        None => Config::default(),
    }
}
