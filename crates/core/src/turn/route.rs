//! Routing: what one stream's decision means for the others, in the same turn.

use crate::code::Code;
use crate::event::Event;
use crate::follow::Told;
use crate::id::{Holder, ItemId, Scoped, StepId};
use crate::lifecycle;
use crate::lock::{self, Lock};
use crate::machine::Given;
use crate::run::{Initiator, Run, Source, Status};
use crate::semaphore::{self, Semaphore};
use crate::step::Failure;
use crate::stream::StreamId;
use crate::turn::calls;
use crate::turn::command::{Command, Outcome, Refusal, Reply};
use crate::turn::system;
use crate::turn::{View, lock_of, name_of, of_decision, of_run, run_of, semaphore_of, tenant_of};
use crate::workspace::Workspace;
use crate::workspace::session::Session;
use alloc::borrow::Cow;
use alloc::vec::Vec;
use serde_json::Value;

/// What those who wait for a run that was cancelled hear.
pub(crate) fn cancelled() -> Failure {
    Failure::new(Code::Cancelled, "cancelled")
}

/// Whoever waits for a run's end hears of it.
pub(crate) fn run_ended(
    view: &dyn View,
    run: &Run,
    status: Status,
    outputs: Option<Value>,
    error: Option<Failure>,
    out: &mut Outcome,
) {
    let id = run.id();
    if let Some((parent, step)) = run.born.parent.as_deref() {
        let (step, outputs, error) = (Some(step.clone()), outputs, error.clone());
        let told = Told::RunEnded { run: id, step, status, outputs, error };
        out.follow.push(Command::Tell { run: *parent, told });
    }
    // Nobody needs a run that takes another one back.
    let dependents = if run.born.takes_back.is_some() { Vec::new() } else { view.dependents(run) };
    for dependent in dependents {
        let told = Told::RunEnded { run: id, step: None, status, outputs: None, error: None };
        out.follow.push(Command::Tell { run: dependent, told });
    }
    if let (Some(workspace), None) = (run.born.workspace(), &run.born.parent) {
        // A called run works in its caller's directory, which outlives it.
        let (tenant, input) = (run.born.home.tenant.clone(), crate::workspace::Input::End(status));
        out.follow.push(Command::Workspace { workspace, tenant, input });
    }
    let trigger = &run.born.trigger;
    // Runs of older versions have the name as their key.
    match (trigger.source, trigger.of.as_ref().or(trigger.key.as_ref()), &trigger.event_id) {
        (Source::Queue, Some(worker), Some(item)) => {
            if let Ok(item) = ItemId::parse(item.as_str()) {
                let (worker, error) = (run.scoped(worker), error.map(|failure| failure.message));
                out.follow.push(Command::SettleItem { item, worker, run: id, status, error });
            }
        }
        (Source::Scheduled, Some(schedule), _) => {
            let input = crate::schedule::Input::Settle { run: id };
            out.follow.push(Command::Schedule { schedule: run.scoped(schedule), input });
        }
        (
            Source::Queue
            | Source::Scheduled
            | Source::Cli
            | Source::Api
            | Source::Webhook
            | Source::Event
            | Source::Slack
            | Source::Call
            | Source::Ui,
            _,
            _,
        ) => {}
    }
}

/// Locks and semaphores.
pub(crate) fn coordinate(
    view: &dyn View,
    command: &Command,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    match command {
        Command::Lock { lock, input } => on_lock(view, lock, input, given),
        Command::LetGoLock { lock, holder } => {
            let Some(known) = lock_of(view, lock)? else { return Ok(Outcome::reply(Reply::Done)) };
            let input = match known.holder() {
                Some(held) if held == holder => lock::Input::Release { holder: holder.clone(), epoch: None },
                Some(_) | None => lock::Input::Abandon { holder: holder.clone() },
            };
            on_lock(view, lock, &input, given)
        }
        Command::OustHolder { lock, by } => oust(view, lock, by, given),
        Command::Semaphore { semaphore, input } => on_semaphore(view, semaphore, input, given),
        Command::LetGoSlots { semaphore, holder } => {
            let Some(known) = semaphore_of(view, semaphore)? else { return Ok(Outcome::reply(Reply::Done)) };
            let input = match known.position(holder) {
                Some(_) => semaphore::Input::Abandon { holder: holder.clone() },
                None => semaphore::Input::Release { holder: holder.clone(), epoch: None },
            };
            on_semaphore(view, semaphore, &input, given)
        }
        // tidy: the turn sends nothing else here.
        _ => Ok(Outcome::reply(Reply::Nothing)),
    }
}

/// Cancels the run that holds a lock, for another that is about to stand in line. Whoever stands there has said so
/// before, and the holder of today may be another one. The cancel is part of this decision and the place in line follows,
/// so that a turn that is cut short in between says it again.
fn oust(view: &dyn View, lock: &Scoped, by: &Holder, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    let nothing = Outcome::reply(Reply::Done);
    let Some(known) = lock_of(view, lock)?.filter(|known| known.position(by).is_none()) else {
        return Ok(nothing);
    };
    let Some(id) = known.holder().and_then(Holder::run).filter(|run| by.run() != Some(*run)) else {
        return Ok(nothing);
    };
    // A run that was called does not cancel the one that called it: it has the lock.
    if from_above(view, by, |above| calls::lock(known, above))?.is_some() {
        return Ok(nothing);
    }
    let Some(run) = run_of(view, &id)? else { return Ok(nothing) };
    let reason = Some(alloc::format!("{by} takes its lock {}", lock.name()));
    match lifecycle::cancel(run, Initiator::System, None, reason, given) {
        Ok(cancelled) => Ok(of_run(view, run, cancelled, Reply::Done)),
        // It has ended and its lock is on its way back.
        Err(_) => Ok(nothing),
    }
}

fn on_lock(
    view: &dyn View,
    lock: &Scoped,
    input: &lock::Input,
    given: &Given<'_>,
) -> Result<Outcome, Refusal> {
    if let (lock::Input::Acquire(ask), Some(known)) = (input, lock_of(view, lock)?)
        && let Some(epoch) = from_above(view, &ask.holder, |above| calls::lock(known, above))?
    {
        let lock = name_of(lock);
        return Ok(has_already(&ask.holder, |step| Some(Told::LockGranted { step, lock, epoch })));
    }
    let known = match lock_of(view, lock)? {
        Some(known) => Cow::Borrowed(known),
        None => Cow::Owned(Lock::above(lock.clone(), system::epochs(view)?)),
    };
    let decided = known.decide(input, view.beats(), given.at).map_err(Refusal::from).and_then(|decided| {
        // One that nobody named before does not exist until its first fact.
        if matches!(known, Cow::Owned(_)) && !decided.facts.is_empty() {
            view.kept(&tenant_of(lock)).admit_lock()?;
        }
        Ok(decided)
    });
    let (mut decided, reply) = match (decided, input) {
        (Ok(decision), _) => decision.answer(()),
        (Err(refusal), lock::Input::Acquire(ask)) => return refused(&ask.holder, refusal),
        (Err(refusal), _) => return Err(refusal),
    };
    // A grant says its epoch itself.
    if let (Cow::Owned(new), Some(Event::LockConfigured(_))) = (&known, decided.facts.first())
        && new.epoch > 0
    {
        decided.facts.splice(0..0, serde_json::to_value(new).map(system::carried));
    }
    Ok(of_decision(StreamId::Lock(lock.clone()), &tenant_of(lock), decided, Reply::Lock(reply)))
}

fn on_semaphore(
    view: &dyn View,
    semaphore: &Scoped,
    input: &semaphore::Input,
    given: &Given<'_>,
) -> Result<Outcome, Refusal> {
    if let (semaphore::Input::Acquire(ask), Some(known)) = (input, semaphore_of(view, semaphore)?)
        && let Some(epoch) = from_above(view, &ask.holder, |above| calls::slots(known, ask.weight, above))?
    {
        let semaphore = name_of(semaphore);
        let told = |step: Option<StepId>| Some(Told::SlotsGranted { step: step?, semaphore, epoch });
        return Ok(has_already(&ask.holder, told));
    }
    let known = match semaphore_of(view, semaphore)? {
        Some(known) => Cow::Borrowed(known),
        None => Cow::Owned(Semaphore::above(semaphore.clone(), system::epochs(view)?)),
    };
    let decided = known.decide(input, view.beats(), given.at).map_err(Refusal::from).and_then(|decided| {
        if matches!(known, Cow::Owned(_)) && !decided.facts.is_empty() {
            view.kept(&tenant_of(semaphore)).admit_semaphore()?;
        }
        Ok(decided)
    });
    let (mut decided, reply) = match (decided, input) {
        (Ok(decision), _) => decision.answer(()),
        (Err(refusal), semaphore::Input::Acquire(ask)) => return refused(&ask.holder, refusal),
        (Err(refusal), _) => return Err(refusal),
    };
    if let (Cow::Owned(new), Some(Event::SemaphoreConfigured(_))) = (&known, decided.facts.first())
        && new.epoch > 0
    {
        decided.facts.splice(0..0, serde_json::to_value(new).map(system::carried));
    }
    let stream = StreamId::Semaphore(semaphore.clone());
    Ok(of_decision(stream, &tenant_of(semaphore), decided, Reply::Semaphore(reply)))
}

/// What a run or step has from those above it on its chain of calls.
fn from_above(
    view: &dyn View,
    holder: &Holder,
    has: impl FnOnce(&[Holder]) -> Option<u64>,
) -> Result<Option<u64>, Refusal> {
    let above = holder.run().map(|run| calls::above(view, run)).transpose()?;
    Ok(above.filter(|above| !above.is_empty()).and_then(|above| has(&above)))
}

/// A run or step that has something from above is told so. The lock or semaphore itself does not change.
fn has_already(holder: &Holder, told: impl FnOnce(Option<StepId>) -> Option<Told>) -> Outcome {
    let (run, told) = match holder {
        Holder::Run(run) => (*run, told(None)),
        Holder::Step(run, step) => (*run, told(Some(step.clone()))),
        // Nobody calls these.
        Holder::Worker(_) | Holder::Outside(_) => return Outcome::reply(Reply::Nothing),
    };
    let mut out = Outcome::reply(Reply::Nothing);
    out.follow.extend(told.map(|told| Command::Tell { run, told }));
    out
}

/// A run or step that cannot even stand in line is told, or it would wait for ever; anybody else is refused.
fn refused(holder: &Holder, refusal: Refusal) -> Result<Outcome, Refusal> {
    let (run, step) = match holder {
        Holder::Run(run) => (*run, None),
        Holder::Step(run, step) => (*run, Some(step.clone())),
        Holder::Worker(_) | Holder::Outside(_) => return Err(refusal),
    };
    let Refusal::Error { code, message, .. } = refusal else { return Err(refusal) };
    let mut out = Outcome::reply(Reply::Nothing);
    out.follow.push(Command::Tell { run, told: Told::HoldRefused { step, code, message } });
    Ok(out)
}

/// Workspaces and sessions.
pub(crate) fn place(view: &dyn View, command: &Command, given: &Given<'_>) -> Result<Outcome, Refusal> {
    let (stream, tenant, decided) = match command {
        Command::Workspace { workspace, tenant, input } => {
            let known = crate::turn::workspace_of(view, workspace)?;
            let decided = match known {
                Some(known) => known.decide(input, given.at)?,
                None => Workspace::new(*workspace).decide(input, given.at)?,
            };
            (StreamId::Workspace(*workspace), tenant, decided)
        }
        Command::Session { session, tenant, input } => {
            let known = crate::turn::session_of(view, session)?;
            let decided = match known {
                Some(known) => known.decide(input, given.at)?,
                None => Session::new(*session).decide(input, given.at)?,
            };
            (StreamId::Session(*session), tenant, decided)
        }
        // tidy: the turn sends nothing else here.
        _ => return Ok(Outcome::reply(Reply::Nothing)),
    };
    Ok(of_decision(stream, tenant, decided, Reply::Done))
}
