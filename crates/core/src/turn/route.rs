//! Routing: what one stream's decision means for the others, in the same turn.

use crate::code::Code;
use crate::effect::{Effect, Route, Told};
use crate::event::Event;
use crate::id::{Holder, ItemId, Name, Scoped, StepId};
use crate::lifecycle;
use crate::lock::{self, Lock};
use crate::machine::{Decision, Given};
use crate::reversal;
use crate::run::{Initiator, Run, Section, Source, Status, Trigger};
use crate::semaphore::{self, Semaphore};
use crate::step::Failure;
use crate::stream::StreamId;
use crate::trace;
use crate::turn::calls;
use crate::turn::command::{Command, Create, Outcome, Refusal, Reply};
use crate::turn::system;
use crate::turn::{View, lock_of, name_of, of_run, of_stream, run_of, semaphore_of, tenant_of};
use crate::workspace::Workspace;
use crate::workspace::session::Session;
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;
use serde_json::Value;

/// Sorts a run's effects: commands for other streams, facts of its own, the rest for the outside.
pub(crate) fn effects(effects: Vec<Effect>, run: &Run, out: &mut Outcome) {
    for effect in effects {
        match effect {
            Effect::Emit(event) => own_fact(run, *event, out),
            Effect::Checkpoint { message, .. } => {
                own_fact(run, lifecycle::checkpoint_message(run, message).into(), out);
            }
            Effect::StartChild { run: id, parent, step, pipeline, vars } => {
                let caller = run.step(&step);
                let forward = caller.is_some_and(|step| step.section == Section::Main);
                let takes_back = caller.and_then(|step| reversal::takes_back(run, step));
                let create = Create {
                    id,
                    tenant: run.born.home.tenant.clone(),
                    namespace: run.born.home.namespace.clone(),
                    runbook: run.born.home.runbook,
                    name: pipeline.clone(),
                    pipeline,
                    cwd: run.born.home.cwd.clone(),
                    vars,
                    trigger: Trigger {
                        source: Source::Call,
                        key: None,
                        user: run.born.trigger.user.clone(),
                        event_id: None,
                        traceparent: Some(handed_on(run, &step)),
                        of: None,
                    },
                    subject: run.born.subject.as_deref().cloned(),
                    correlation_id: run.born.correlation_id.clone(),
                    priority: run.born.priority,
                    needs: Vec::new(),
                    parent: Some((parent, step)),
                    depth: run.born.depth + 1,
                    // What cleans up after a deadline is not bound by it.
                    deadline_at: run.born.deadline_at.filter(|_| forward),
                    workspace: run.born.workspace(),
                    policy: run.policy().for_child(id),
                    takes_back,
                };
                out.follow.push(Command::Create(Box::new(create)));
            }
            effect => other(effect, out),
        }
    }
}

/// The trace of a run, handed on by one of its steps to the run that the step calls.
fn handed_on(run: &Run, step: &StepId) -> Name {
    let trace = run.born.trace();
    let epoch = run.step(step).map_or(0, |step| step.epoch);
    Name::clean(&trace::traceparent(trace, trace::attempt_span(run.id(), step, epoch)))
}

fn own_fact(run: &Run, event: Event, out: &mut Outcome) {
    let fact = of_stream(StreamId::Run(run.id()), &run.born.home.tenant, alloc::vec![event], Reply::Done);
    out.facts.extend(fact.facts);
}

/// Sorts effects that need no run to be understood.
pub(crate) fn other(effect: Effect, out: &mut Outcome) {
    debug_assert!(!matches!(effect, Effect::StartChild { .. }));
    match effect {
        Effect::AcquireLock { lock, holder, wait, oust, give_up_at } => {
            if oust {
                out.follow.push(Command::OustHolder { lock: lock.clone(), by: holder.clone() });
            }
            let input = lock::Input::Acquire(lock::Ask { holder, metadata: None, wait, give_up_at });
            out.follow.push(Command::Lock { lock, input });
        }
        Effect::ReleaseLock { lock, holder } => out.follow.push(Command::LetGoLock { lock, holder }),
        Effect::AcquireSemaphore { semaphore, holder, slots, give_up_at } => {
            let ask = semaphore::Ask { holder, weight: slots, wait: true, give_up_at };
            out.follow.push(Command::Semaphore { semaphore, input: semaphore::Input::Acquire(ask) });
        }
        Effect::ReleaseSemaphore { semaphore, holder } => {
            out.follow.push(Command::LetGoSlots { semaphore, holder });
        }
        Effect::Tell { run, told } => out.follow.push(Command::Tell { run, told }),
        Effect::CancelRun { run, reason } => {
            let (initiator, reason) = (Initiator::System, Some(reason));
            out.follow.push(Command::Cancel { run, initiator, user: None, reason });
        }
        Effect::DeadLetter { queue, item, data, priority } => {
            out.follow.push(Command::Forward { queue, item, data, priority });
        }
        Effect::WakeWorker { worker } => out.follow.push(Command::Dispatch { worker }),
        Effect::SettleItem { item, worker, run, status, error } => {
            out.follow.push(Command::SettleItem { item, worker, run, status, error });
        }
        Effect::SettleSlot { schedule, run } => {
            let input = crate::schedule::Input::Settle { run };
            out.follow.push(Command::Schedule { schedule, input });
        }
        outside => {
            debug_assert_eq!(outside.route(), Route::Outside);
            out.effects.push(outside);
        }
    }
}

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
    let Decision { mut facts, effects, reply } = match (known.decide(input, view.beats(), given.at), input) {
        (Ok(decision), _) => decision,
        (Err(error), lock::Input::Acquire(ask)) => return refused(&ask.holder, error.into()),
        (Err(error), _) => return Err(error.into()),
    };
    // A grant says its epoch itself.
    if let (Cow::Owned(new), Some(Event::LockConfigured(_))) = (&known, facts.first())
        && new.epoch > 0
    {
        facts.splice(0..0, serde_json::to_value(new).map(system::carried));
    }
    let mut out = of_stream(StreamId::Lock(lock.clone()), &tenant_of(lock), facts, Reply::Lock(reply));
    effects.into_iter().for_each(|effect| other(effect, &mut out));
    Ok(out)
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
    let decided = known.decide(input, view.beats(), given.at);
    let Decision { mut facts, effects, reply } = match (decided, input) {
        (Ok(decision), _) => decision,
        (Err(error), semaphore::Input::Acquire(ask)) => return refused(&ask.holder, error.into()),
        (Err(error), _) => return Err(error.into()),
    };
    if let (Cow::Owned(new), Some(Event::SemaphoreConfigured(_))) = (&known, facts.first())
        && new.epoch > 0
    {
        facts.splice(0..0, serde_json::to_value(new).map(system::carried));
    }
    let stream = StreamId::Semaphore(semaphore.clone());
    let mut out = of_stream(stream, &tenant_of(semaphore), facts, Reply::Semaphore(reply));
    effects.into_iter().for_each(|effect| other(effect, &mut out));
    Ok(out)
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
    let (stream, tenant, facts, effects) = match command {
        Command::Workspace { workspace, tenant, input } => {
            let known = crate::turn::workspace_of(view, workspace)?;
            let decided = match known {
                Some(known) => known.decide(input, given.at)?,
                None => Workspace::new(*workspace).decide(input, given.at)?,
            };
            (StreamId::Workspace(*workspace), tenant, decided.facts, decided.effects)
        }
        Command::Session { session, tenant, input } => {
            let known = crate::turn::session_of(view, session)?;
            let decided = match known {
                Some(known) => known.decide(input, given.at)?,
                None => Session::new(*session).decide(input, given.at)?,
            };
            (StreamId::Session(*session), tenant, decided.facts, decided.effects)
        }
        // tidy: the turn sends nothing else here.
        _ => return Ok(Outcome::reply(Reply::Nothing)),
    };
    let mut out = of_stream(stream, tenant, facts, Reply::Done);
    effects.into_iter().for_each(|effect| other(effect, &mut out));
    Ok(out)
}
