//! Slots: what becomes of a schedule's slots when their time has come, and of the runs they make.
//!
//! ```text
//! clock ─▶ tick ─▶ compute slots (outside) ─▶ due ─▶ fired with its run | held | skipped | deferred
//! ```
//!
//! The effect that asks for slots changes nothing, so after a crash the clock asks again; which slots are settled is in
//! the log, so none of them makes a second run.

use crate::digest::Digest;
use crate::effect::Effect;
use crate::event::Event;
use crate::id::{Name, RunId, Scoped};
use crate::idempotency;
use crate::machine::{Decision, Given};
use crate::run::{Source, Trigger};
use crate::schedule::{self, Schedule};
use crate::stream::StreamId;
use crate::time::Millis;
use crate::turn::command::{Create, Outcome, Refusal, Reply};
use crate::turn::route;
use crate::turn::{View, name_of, of_stream, schedule_of, tenant_of};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use serde_json::Value;

/// The clock's look at a schedule: the shell computes which slots passed.
pub(crate) fn tick_schedule(view: &dyn View, id: &Scoped, given: &Given<'_>) -> Result<Outcome, Refusal> {
    let mut out = Outcome::reply(Reply::Done);
    if let Some(known) = schedule_of(view, id)?
        && known.due().is_some_and(|due| due <= given.at)
        && let schedule::State::Active(settings) = &known.state
    {
        let (settings, after, until) = (Box::new(settings.clone()), known.last_slot, given.at);
        out.effects.push(Effect::ComputeSlots { schedule: id.clone(), settings, after, until });
    }
    Ok(out)
}

pub(super) fn on_schedule(
    view: &dyn View,
    id: &Scoped,
    input: &schedule::Input,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let mut known = schedule_of(view, id)?.cloned().unwrap_or_else(|| Schedule::new(id.clone()));
    let tenant = tenant_of(id);
    let mut out = Outcome::reply(Reply::Done);
    let input = match input {
        schedule::Input::RunNow { run, .. } => schedule::Input::RunNow {
            run: *run,
            asked_by: crate::turn::requesters::of_actor(view, given.by)?,
        },
        // tidy: nobody asks for anything else.
        input => input.clone(),
    };
    let mut inputs = VecDeque::from([input]);
    while let Some(input) = inputs.pop_front() {
        let decided = known.decide(&input, given.at)?;
        let Decision { facts, effects, .. } = within_caps(view, &known, &input, decided, given)?;
        known = facts.iter().fold(known, |known, fact| known.apply(fact, given.at));
        out.facts.extend(of_stream(StreamId::Schedule(id.clone()), &tenant, facts, Reply::Done).facts);
        for effect in effects {
            let Effect::StartSlot { schedule, run, slot, pipeline, runbook, vars, project_root, asked_by } =
                effect
            else {
                route::other(effect, &mut out);
                continue;
            };
            let create = slot_run(&schedule, run, slot, pipeline, runbook, (vars, project_root));
            match crate::turn::creation::create_for(view, &create, asked_by, given) {
                Ok(created) => {
                    out.facts.extend(created.facts);
                    out.follow.extend(created.follow);
                    out.reply = Reply::Created(run);
                }
                Err(needs @ Refusal::Need(_)) => return Err(needs),
                // Somebody asked for this one and is told.
                Err(refusal) if matches!(input, schedule::Input::RunNow { .. }) => return Err(refusal),
                // A slot whose run cannot be made is over at once, or it would keep all later ones from firing. Each
                // time there is one slot less that waits, so this ends.
                Err(Refusal::Error { .. }) => inputs.push_back(schedule::Input::Settle { run }),
            }
        }
    }
    Ok(out)
}

/// What was decided, unless it would make a run that a cap refuses for now: then what is due stays due, and is looked at
/// again when there is room. Somebody who asked for a run is told instead.
fn within_caps(
    view: &dyn View,
    known: &Schedule,
    input: &schedule::Input,
    decided: Decision,
    given: &Given<'_>,
) -> Result<Decision, Refusal> {
    let book = decided.effects.iter().find_map(|effect| match effect {
        Effect::StartSlot { runbook, .. } => Some(*runbook),
        // tidy: only a slot makes a run.
        _ => None,
    });
    let refused = book.and_then(|book| view.admit_run(&tenant_of(&known.id), &book, &[], given.at).err());
    let Some(refused) = refused else { return Ok(decided) };
    let Some(until) = refused.retry_at() else { return Ok(decided) };
    if let schedule::Input::RunNow { .. } = input {
        return Err(refused.into());
    }
    let keeps = |fact: &Event| matches!(fact, Event::ScheduleSettled(_) | Event::ScheduleResumed(_));
    let mut facts: Vec<Event> = decided.facts.into_iter().filter(keeps).collect();
    let after = facts.iter().fold(known.clone(), |known, fact| known.apply(fact, given.at));
    let defer = schedule::Input::Defer { until, reason: refused.to_string() };
    facts.extend(after.decide(&defer, given.at)?.facts);
    Ok(Decision { facts, effects: Vec::new(), reply: () })
}

/// The run of a schedule's slot: it is made in the commit that fires the slot, so there is one per slot.
fn slot_run(
    schedule: &Scoped,
    run: RunId,
    slot: Millis,
    pipeline: Name,
    runbook: Digest,
    (vars, cwd): (Value, String),
) -> Create {
    Create {
        id: run,
        tenant: tenant_of(schedule),
        namespace: Name::clean(schedule.namespace()),
        runbook,
        name: pipeline.clone(),
        pipeline,
        cwd,
        vars,
        trigger: Trigger {
            source: Source::Scheduled,
            key: idempotency::scheduler(schedule.name(), slot).ok(),
            user: None,
            event_id: Some(Name::clean(&slot.to_string())),
            traceparent: None,
            of: Some(name_of(schedule)),
        },
        subject: None,
        correlation_id: None,
        priority: 0,
        needs: Vec::new(),
        parent: None,
        depth: 0,
        deadline_at: None,
        workspace: None,
        policy: Vec::new(),
        takes_back: None,
    }
}
