//! Reversals: what was done outside and is taken back may be done again.
//!
//! Two kinds of steps take an effect back: a compensation, which the runbook declares for the step it follows, and a
//! step of an undo, whose definition names the receipt. When one succeeds, the key of what it took back starts its next
//! generation in the same turn. Without that, a retry of the run would find the old receipt and reuse the result of
//! something that is not there any more.
//!
//! What a called run did is taken back by a run of its own: it is told how the steps of the called run ended, begins with
//! their compensations, and has nothing else to do. To the caller it is one more compensation, in the order of the others.

use crate::event::PipelineAdvanced;
use crate::id::{Name, RunId, StepId};
use crate::items;
use crate::pipeline;
use crate::private::Private;
use crate::run::{Lineage, Run, Section};
use crate::runbook::{Compensate, NODES_MAX, Node, Pipeline};
use crate::scope;
use crate::step::{self, Gate, Step};
use alloc::string::ToString;
use alloc::vec::Vec;

/// The run that a step takes back: one that stands for the call itself, because nothing is declared that would take
/// the call back.
pub(crate) fn takes_back(run: &Run, step: &Step) -> Option<RunId> {
    let call = step.compensates.and_then(|place| run.at(place))?;
    (call.node == step.node).then(|| call.child()).flatten()
}

/// The name of the step that takes a call back: one that no other step has or can have.
pub(crate) fn name(run: &Run, def: &Pipeline, call: &Step) -> StepId {
    let free = |name: &StepId| run.step(name).is_none() && def.nodes.iter().all(|node| node.id != *name);
    let made = |n: u32| match n {
        1 => Name::clean(&alloc::format!("undo-{}", call.id)),
        n => Name::clean(&alloc::format!("undo{n}-{}", call.id)),
    };
    (1..NODES_MAX as u32 + 2).map(made).find(free).unwrap_or_else(|| made(1))
}

/// How a step that takes a call back is reached: it holds what the call held, and nothing is evaluated again.
pub(crate) fn reached(call: &Step, blank: PipelineAdvanced) -> PipelineAdvanced {
    let holds = call.gates.iter().filter(|gate| !matches!(gate, Gate::Guard)).cloned();
    let gates: Vec<Gate> = holds.collect();
    let input = call.child().map(|child| Private::New(serde_json::json!({ "takes_back": child })));
    PipelineAdvanced { gates: Some(gates).filter(|gates| !gates.is_empty()), input, ..blank }
}

/// The lineage in which the effect of a step has its key. What is taken back may be done again by another run, and is to
/// be taken back again then: so a compensation belongs to the run that did what it takes back, below the lineage.
pub(crate) fn lineage(run: &Run, step: &Step) -> Lineage {
    let lineage = run.born.lineage();
    let Some(undone) = scope::undone_by(run, step) else { return lineage };
    let actor = match &run.born.takes_back {
        Some(of) => **of,
        None => items::taken_over(run, undone).map_or(run.id(), |inherited| inherited.from),
    };
    // A key means the same effect in every try at a group; what has none was done in each of them.
    let tried = undone.semantics.is_none() && undone.id.as_str().contains('#');
    match (tried, actor == lineage.root_run) {
        (false, true) => lineage,
        (false, false) => lineage.below(&actor.to_string()),
        (true, _) => lineage.below(&alloc::format!("{actor}:{}", undone.id.as_str().replace('#', "@"))),
    }
}

/// Whether a step is of a compensation that came to its end. What is there now was done after that, and nothing of it is
/// taken back yet.
pub(crate) fn has_taken_back(run: &Run, step: &Step) -> bool {
    let around = core::iter::successors(Some(step), |step| step.parent.and_then(|place| run.at(place)));
    let mut back = around.filter(|step| step.compensates.is_some());
    back.any(|step| step.status == step::Status::Succeeded)
}

/// What had its effect and can be taken back, latest first.
pub(crate) fn compensable<'a>(run: &'a Run, def: &Pipeline) -> Vec<(&'a Step, Node)> {
    let mut list: Vec<_> = run
        .steps
        .iter()
        .filter(|step| step.status == step::Status::Succeeded || step.acted)
        .filter(|step| step.section != Section::Compensate)
        .filter_map(|step| {
            let node = def.node(step.node)?;
            match node.compensate {
                Compensate::With(with) if !pipeline::is_foreach(node, step) => Some((step, with)),
                Compensate::Called if step.child().is_some() => Some((step, step.node)),
                Compensate::With(_) | Compensate::Called | Compensate::Exempt | Compensate::Undeclared => {
                    None
                }
            }
        })
        .collect();
    list.sort_unstable_by_key(|(step, _)| core::cmp::Reverse(step.ended));
    list
}
