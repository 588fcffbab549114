//! Reversals: what was done outside and is taken back may be done again.
//!
//! Two kinds of steps take an effect back: a compensation, which the runbook declares for the step it follows, and a
//! step of an undo, whose definition names the receipt. When one succeeds, the key of what it took back starts its next
//! generation in the same turn. Without that, a retry of the run would find the old receipt and reuse the result of
//! something that is not there any more.

use crate::command::{Command, Outcome, Refusal, Reply};
use crate::event::Event;
use crate::id::{ReceiptId, RunId, Scoped, StepId};
use crate::machine::Given;
use crate::receipt::key;
use crate::run::Run;
use crate::stream::StreamId;
use crate::turn::{Loaded, View, effect_key, effect_of, load, of_stream, tenant_of};
use alloc::vec::Vec;

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
