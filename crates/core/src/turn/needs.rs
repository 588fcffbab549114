//! Needs: the runs that must be completed before another begins.
//!
//! A run needs those that whoever asked for it named, and the newest run of each pipeline that its own names in `needs`.
//! Both are looked for here, whoever makes the run. A pipeline that never ran is waited for: its first run to end counts.
//!
//! ```text
//! pending ─▶ blocked on runs ─▶ blocked on pipelines ─▶ blocked on its lock ─▶ running
//! ```

use crate::event::Event;
use crate::id::{Name, RunId};
use crate::lifecycle;
use crate::machine::{Decision, Given};
use crate::run::{BlockedOn, Run, Status};
use crate::runbook::Pipeline;
use crate::turn::command::{Create, Outcome, Refusal, Reply};
use crate::turn::{Loaded, View, load, missing, of_run, run_of};
use alloc::vec::Vec;

/// What a new run needs: runs, and pipelines that never ran.
pub(crate) fn of_new(
    view: &dyn View,
    create: &Create,
    def: &Pipeline,
) -> Result<(Vec<RunId>, Vec<Name>), Refusal> {
    let (mut runs, mut never) = (create.needs.clone(), Vec::new());
    for name in &def.needs {
        match view.newest_run(&create.tenant, &create.namespace, name) {
            Some(newest) => runs.push(newest),
            None => never.push(name.clone()),
        }
    }
    for needed in &runs {
        run_of(view, needed)?.ok_or_else(|| missing("run", needed))?;
    }
    Ok((runs, never))
}

/// Begins a run, or says what it waits for.
pub(crate) fn begin(view: &dyn View, id: RunId, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    let Loaded { run, def } = load(view, id)?;
    run.must_live()?;
    let begun = begun(view, run, def, (&run.born.needs, &run.born.needs_pipelines), given)?;
    Ok(of_run(view, run, begun, Reply::Done))
}

/// A run that this one may need has ended.
pub(crate) fn ended(
    view: &dyn View,
    Loaded { run, def }: &Loaded<'_>,
    (other, status): (RunId, Status),
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let pipeline = run_of(view, &other)?.map(|other| &other.born.home.pipeline);
    let mut out = lifecycle::needed_ended(run, (other, pipeline), status, given)?;
    if out.facts.iter().any(|fact| matches!(fact, Event::PipelineUnblocked(_))) {
        // What it waits for next, or its first step, is in the same decision: a blocked run does not become pending again.
        let after = out.facts.iter().fold((*run).clone(), |run, fact| run.apply(fact, given.at));
        let pipelines: &[Name] = match run.blocked.as_deref() {
            Some(BlockedOn::Runs(_)) => &run.born.needs_pipelines,
            Some(BlockedOn::Pipelines(_) | BlockedOn::Lock(_) | BlockedOn::Cap(_)) | None => &[],
        };
        let begun = begun(view, &after, def, (&[], pipelines), given)?;
        out.join(begun);
    }
    Ok(of_run(view, run, out, Reply::Done))
}

fn begun(
    view: &dyn View,
    run: &Run,
    def: &Pipeline,
    (runs, pipelines): (&[RunId], &[Name]),
    given: &mut Given<'_>,
) -> Result<Decision, Refusal> {
    let (mut runs, mut never) = (runs.to_vec(), Vec::new());
    for name in pipelines {
        // One that never ran when this run was made may have run since.
        match view.newest_run(&run.born.home.tenant, &run.born.home.namespace, name) {
            Some(newest) => runs.push(newest),
            None => never.push(name.clone()),
        }
    }
    let mut unmet = Vec::new();
    for needed in runs {
        match run_of(view, &needed)?.map(Run::status) {
            // One that is not there any more was completed and forgotten, or never was: creation checked that.
            None | Some(Status::Completed) => {}
            Some(status @ (Status::Failed | Status::Cancelled)) => {
                return Ok(lifecycle::needed_failed(run, needed, status, given));
            }
            Some(
                Status::Pending
                | Status::Blocked
                | Status::Running
                | Status::AwaitingApproval
                | Status::WaitingExternal
                | Status::FailedRetryable,
            ) => unmet.push(needed),
        }
    }
    let on = match (unmet.is_empty(), never.is_empty()) {
        (false, _) => Some(BlockedOn::Runs(unmet)),
        (true, false) => Some(BlockedOn::Pipelines(never)),
        (true, true) => None,
    };
    Ok(lifecycle::begin(run, def, on)?)
}
