//! Reversals across streams: the run that takes another one back, and the effect keys that start a new generation.

use super::command::{Command, Create, Outcome, Refusal, Reply};
use super::{Loaded, View, creation, effect_key, effect_of, load, missing, of_stream, runbook_of, tenant_of};
use crate::event::{Event, PipelineCreated, PipelineReverses};
use crate::id::{Name, ReceiptId, RunId, Scoped, StepId};
use crate::machine::{Decision, Given};
use crate::private::Private;
use crate::receipt::key;
use crate::requesters;
use crate::run::{Lineage, Run, Status};
use crate::step::Step;
use crate::stream::StreamId;
use alloc::vec::Vec;

/// Makes the run that takes back what another did that had completed.
pub(crate) fn create(
    view: &dyn View,
    create: &Create,
    asked_by: Vec<Name>,
    of: RunId,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let Loaded { run, def } = load(view, of)?;
    if run.ending.as_ref().is_none_or(|ending| ending.status != Status::Completed || ending.deleted) {
        return Err(run.refuse("be taken back").into());
    }
    let home = &run.born.home;
    let create = Create {
        runbook: home.runbook,
        pipeline: home.pipeline.clone(),
        name: run.born.name.clone(),
        cwd: home.cwd.clone(),
        vars: run.vars.get(),
        ..create.clone()
    };
    let runbook = runbook_of(view, &home.runbook)?.ok_or_else(|| missing("runbook", &home.runbook))?;
    let caps = view.caps(&create.tenant).tighten(runbook.caps.unwrap_or_default());
    let before = run.born.lineage();
    let lineage =
        Lineage { resumed_from: Some(of), resume_count: before.resume_count + 1, forked_at: None, ..before };
    let made = creation::created(&create, (runbook, caps), def, lineage, given)?;
    // It takes back what these shaped.
    let mut asked_by = asked_by;
    requesters::add(&mut asked_by, run.requesters());
    let asked_by = creation::beside_user(&create, asked_by);
    // It is not bound by the time that the work itself may take.
    let made =
        PipelineCreated { deadline_at: None, initial_step: None, initial_node: None, asked_by, ..made };
    let steps = run.steps.iter().map(Step::taken).collect();
    let values = Private::New(run.steps.iter().map(Step::values).collect());
    let told = PipelineReverses { id: create.id, of, steps, values };
    Ok(creation::born(&create, Decision::new().fact(made).fact(told)))
}

/// What follows from the steps that these facts complete. Most steps take nothing back, and are passed by without a
/// look at their definition.
pub(crate) fn commands(run: &Run, facts: &[Event]) -> Vec<Command> {
    let completed = facts.iter().filter_map(|fact| match fact {
        Event::StepCompleted(e) => Some(&e.step),
        // tidy: nothing else completes a step.
        _ => None,
    });
    let takes_back = |id: &&StepId| {
        run.step(id).is_some_and(|step| step.compensates.is_some() || step.semantics.is_some())
    };
    completed.filter(takes_back).map(|step| Command::Reversed { run: run.id(), step: step.clone() }).collect()
}

/// Settles the key of what a step has taken back, where it has one.
pub(crate) fn reversed(
    view: &dyn View,
    run: RunId,
    step: &StepId,
    given: &Given<'_>,
) -> Result<Outcome, Refusal> {
    let loaded = load(view, run)?;
    let Some((stream, receipt)) = target(view, &loaded, step)? else {
        return Ok(Outcome::reply(Reply::Nothing));
    };
    let Some(known) = effect_of(view, &stream)? else { return Ok(Outcome::reply(Reply::Nothing)) };
    let decided = known.decide(&key::Input::Reverse { receipt_id: receipt, by: run }, given.at)?;
    Ok(of_stream(StreamId::Effect(stream.clone()), &tenant_of(&stream), decided.facts, Reply::Done))
}

/// The key and the receipt of what a step takes back.
fn target(
    view: &dyn View,
    loaded: &Loaded<'_>,
    step: &StepId,
) -> Result<Option<(Scoped, ReceiptId)>, Refusal> {
    let run = loaded.run;
    let step = run.need(step)?;
    if let Some(reverses) = &loaded.node(step)?.reverses {
        // A generated definition cannot reach into another tenant.
        let own = reverses.key.tenant() == run.born.home.tenant.as_str();
        return Ok(own.then(|| (reverses.key.clone(), reverses.receipt)));
    }
    let Some(undone) = step.compensates.and_then(|place| run.at(place)) else { return Ok(None) };
    let Some(stream) = effect_key(run, loaded.node(undone)?, undone) else { return Ok(None) };
    let receipt = effect_of(view, &stream)?.and_then(key::EffectKey::receipt).map(|receipt| receipt.id);
    Ok(receipt.map(|receipt| (stream, receipt)))
}
