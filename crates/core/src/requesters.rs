//! Requesters: who counts as having asked for what a run does, along the chain of its causes.
//!
//! ```text
//! person ─▶ run ─▶ its step's token, `emit`, `call` ─▶ event, item, signal ─▶ another run ─▶ …
//! ```
//!
//! Whoever asked for something may not approve it where policy or the setting says so, so no way to ask may lose them. The
//! set is a fact of the run: its trigger's user, and those whom `pipeline:created` and later facts name beside that one. It
//! only grows. A slot that the clock made has no requester. Somebody who is not known by a name of their own (the sender of
//! a hook, an executor) is [`UNNAMED`] in it.

use crate::approval::is_unnamed;
use crate::command::Refusal;
use crate::event::Event;
use crate::id::{Name, RunId};
use crate::machine::Given;
use crate::origin::{Actor, Initiator};
use crate::run::Run;
use crate::turn::{View, run_of};
use alloc::vec::Vec;
use serde_json::Value;

/// Stands for somebody who asked and is not known by a name of their own.
pub const UNNAMED: &str = "unnamed";
/// The most requesters that are known of a run or an item. One more counts as unnamed.
pub const REQUESTERS_MAX: usize = 64;

/// Adds those who are not in the set.
pub(crate) fn add(known: &mut Vec<Name>, more: impl IntoIterator<Item = Name>) {
    for name in more {
        // One place is kept for all who do not fit.
        let fits = known.len() + 1 < REQUESTERS_MAX || name.as_str() == UNNAMED;
        let name = if fits || known.contains(&name) { name } else { Name::clean(UNNAMED) };
        if !known.contains(&name) {
            known.push(name);
        }
    }
}

/// Who asked for a run so far.
#[must_use]
pub fn of_run(run: &Run) -> Vec<Name> {
    let mut all: Vec<Name> = run.born.trigger.user.iter().cloned().collect();
    add(&mut all, run.rare().changed_by.iter().cloned());
    all
}

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
            Some(Some(run)) => of_run(run),
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

/// Those of them who are not requesters of the run yet, as a fact says it.
pub(crate) fn new_to(run: &Run, more: Vec<Name>) -> Option<Vec<Name>> {
    let known = of_run(run);
    let new: Vec<Name> = more.into_iter().filter(|name| !known.contains(name)).collect();
    Some(new).filter(|new| !new.is_empty())
}

/// Says of the steps that these facts complete whose data their output is.
pub(crate) fn of_outputs(run: &Run, mut facts: Vec<Event>, from: &[Name]) -> Vec<Event> {
    for fact in &mut facts {
        if let Event::StepCompleted(e) = fact {
            e.asked_by = new_to(run, from.to_vec());
        }
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::name;

    #[test]
    fn a_set_has_a_bound_and_whoever_does_not_fit_is_unnamed() {
        let mut known = Vec::new();
        add(&mut known, (0..REQUESTERS_MAX + 9).map(|n| name(&alloc::format!("p{n}"))));
        assert_eq!(known.len(), REQUESTERS_MAX);
        assert_eq!(known.last().map(Name::as_str), Some(UNNAMED));
        add(&mut known, [name("p0"), name("late"), name(UNNAMED)]);
        assert_eq!(known.len(), REQUESTERS_MAX, "those who are known change nothing");
        assert_eq!(known[0], name("p0"), "nobody is forgotten");
    }
}
