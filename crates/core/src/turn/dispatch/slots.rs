//! Slots: what becomes of a schedule's slots when their time has come, and of the runs they make.
//!
//! ```text
//! clock ─▶ tick ─▶ compute slots (outside) ─▶ due ─▶ fired with its run | held | skipped | deferred
//! ```
//!
//! The effect that asks for slots changes nothing, so after a crash the clock asks again; which slots are settled is in
//! the log, so none of them makes a second run.

use crate::effect::Effect;
use crate::event::{Event, ScheduleFired};
use crate::id::{Name, Scoped};
use crate::idempotency;
use crate::machine::{Decision, Given};
use crate::run::{Source, Trigger};
use crate::schedule::{self, Schedule};
use crate::stream::StreamId;
use crate::turn::command::{Create, Home, Outcome, Refusal, Reply};
use crate::turn::{View, name_of, of_decision, schedule_of, tenant_of};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::ToString as _;
use alloc::vec::Vec;

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
        let decided = within_caps(view, &known, &input, known.decide(&input, given.at)?, given)?;
        let fired: Vec<ScheduleFired> = fired(&decided).cloned().collect();
        let settings = known.settings().cloned();
        known = decided.facts.iter().fold(known, |known, fact| known.apply(fact, given.at));
        out.join(of_decision(StreamId::Schedule(id.clone()), &tenant, decided, Reply::Done));
        for (fired, settings) in fired.into_iter().zip(core::iter::repeat(settings).flatten()) {
            let run = fired.pipeline_id;
            let create = slot_run(id, &settings, &fired);
            match crate::turn::creation::create_for(view, &create, fired.asked_by.unwrap_or_default(), given)
            {
                Ok(created) => {
                    out.join(created);
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

/// The slots that a decision fires: each makes its run in the same commit.
fn fired(decision: &Decision) -> impl Iterator<Item = &ScheduleFired> {
    decision.facts.iter().filter_map(|fact| match fact {
        Event::ScheduleFired(fired) => Some(fired),
        // tidy: only a slot that fires makes a run.
        _ => None,
    })
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
    let book = known.settings().map(|settings| settings.runbook_hash);
    let book = book.filter(|_| fired(&decided).next().is_some());
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
    Ok(Decision { facts, ..Decision::new() })
}

/// The run of a schedule's slot: it is made in the commit that fires the slot, so there is one per slot.
fn slot_run(schedule: &Scoped, settings: &schedule::Settings, fired: &ScheduleFired) -> Create {
    let slot = fired.slot;
    let home = Home {
        tenant: tenant_of(schedule),
        namespace: Name::clean(schedule.namespace()),
        runbook: settings.runbook_hash,
        cwd: settings.project_root.clone(),
    };
    let trigger = Trigger {
        key: idempotency::scheduler(schedule.name(), slot).ok(),
        event_id: Some(Name::clean(&slot.to_string())),
        of: Some(name_of(schedule)),
        ..Trigger::of(Source::Scheduled)
    };
    Create::new(fired.pipeline_id, home, settings.pipeline.clone(), settings.vars.clone(), trigger)
}
