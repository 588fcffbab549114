//! Who stands behind a command: the requesters of what it asks for.

use super::command::Refusal;
use super::{View, run_of};
use crate::approval::is_unnamed;
use crate::event::Event;
use crate::id::{Name, RunId};
use crate::machine::Given;
use crate::origin::{Actor, Initiator};
use crate::requesters::UNNAMED;
use crate::run::Run;
use alloc::vec::Vec;
use serde_json::Value;

/// The run of an attempt, by the name that its token goes by.
fn run_of_attempt(by: &Actor) -> Option<RunId> {
    let (run, _) = by.id.as_ref()?.as_str().split_once('/')?;
    RunId::parse(run).ok().filter(|_| by.initiator == Initiator::Executor)
}

/// Who stands behind an actor: a person or program itself, behind an attempt's token the requesters of its run, and behind
/// what the engine does by itself nobody.
///
/// # Errors
/// [`Refusal::Need`].
pub(crate) fn of_actor(view: &dyn View, by: &Actor) -> Result<Vec<Name>, Refusal> {
    let unnamed = || alloc::vec![Name::clean(UNNAMED)];
    Ok(match by.initiator {
        Initiator::User | Initiator::Service | Initiator::Agent => {
            by.id.as_ref().map_or_else(unnamed, |id| alloc::vec![id.clone()])
        }
        Initiator::Executor => match run_of_attempt(by).map(|run| run_of(view, &run)).transpose()? {
            Some(Some(run)) => run.requesters(),
            Some(None) | None => unnamed(),
        },
        Initiator::Webhook => unnamed(),
        Initiator::System
        | Initiator::Timeout
        | Initiator::Hold
        | Initiator::Policy
        | Initiator::Approval
        | Initiator::Schedule
        | Initiator::Worker
        | Initiator::Recovery => Vec::new(),
    })
}

/// Who stands behind a delivery that says which user it is from. Slack's are mapped to people here; whatever other senders
/// say of their users, it is the sender who says it.
///
/// # Errors
/// [`Refusal::Need`].
pub(crate) fn of_delivery(view: &dyn View, by: &Actor, user: Option<&Name>) -> Result<Vec<Name>, Refusal> {
    let slack = by.initiator == Initiator::Webhook && by.id.as_ref().is_some_and(|id| id.as_str() == "slack");
    match user {
        Some(user) if slack && !is_unnamed(user) => Ok(alloc::vec![user.clone()]),
        Some(_) | None => of_actor(view, by),
    }
}

/// Who stands behind an external event with data. One that brings nothing shapes nothing.
///
/// # Errors
/// [`Refusal::Need`].
pub(crate) fn of_signal(
    view: &dyn View,
    given: &Given<'_>,
    user: Option<&Name>,
    data: &Value,
) -> Result<Vec<Name>, Refusal> {
    let is_empty = match data {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    if is_empty { Ok(Vec::new()) } else { of_delivery(view, given.by, user) }
}

/// Who stands behind a result that another run had: those who asked for that run. Nobody knows them where it has left.
///
/// # Errors
/// [`Refusal::Need`].
pub(crate) fn of_result(view: &dyn View, run: &Run, from: RunId) -> Result<Vec<Name>, Refusal> {
    if from == run.id() {
        return Ok(Vec::new());
    }
    Ok(run_of(view, &from)?.map_or_else(|| alloc::vec![Name::clean(UNNAMED)], Run::requesters))
}

/// Says of the steps that these facts complete whose data their output is.
pub(crate) fn of_outputs(run: &Run, mut facts: Vec<Event>, from: &[Name]) -> Vec<Event> {
    for fact in &mut facts {
        if let Event::StepCompleted(e) = fact {
            e.asked_by = run.new_requesters(from.to_vec());
        }
    }
    facts
}
