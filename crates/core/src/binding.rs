//! Bindings: an `approve` step that speaks for later steps, and what it is worth when they are reached.
//!
//! ```text
//! approve `for: [deploy]` is reached ──▶ deploy's action is rendered, shown and hashed ──▶ a human says yes
//! deploy is reached ──▶ its action has that hash ──▶ goes on
//!                   └─▶ it has another, or could not be rendered then ──▶ asks for itself, with the reason
//! ```
//!
//! The rules:
//! - What the human sees is what is bound: hash and action of each named step stand in the approval's own action, so
//!   they are covered by its hash. The hashes stand in the open in `pipeline:advanced`.
//! - A step that cannot be rendered yet, because it needs what other steps give or runs for items of its own, is not
//!   bound by the `approve` step, which passes with what could be. It asks for itself when it is reached.
//! - A step whose action is not the approved one, or that is reached before its `approve` step was, asks for itself
//!   too, with the same approvers, count, tier and expiry.
//! - An `approve` step that was passed by as its `when` says binds nothing. One that failed lets none of its steps run.
//! - It only adds to what policy asks: an approval that policy wants is another one.
//! - Where its own question changes after it was answered, because a variable did, it is asked again, by whichever step
//!   after it is next.
//! - An approval is bound to its run. A run that goes on from another asks again.

use crate::approval::{Approval, Status as Decided};
pub use crate::event::words::step::{Binding, Bound};
use crate::id::{Name, StepId};
use crate::machine::Given;
use crate::run::Run;
use crate::runbook::{Kind, Node, Pipeline, StepDef};
use crate::scope::{self, Context};
use crate::step::{Status, Step};
use alloc::string::ToString;
use alloc::vec::Vec;
use serde_json::{Value, json};

impl Run {
    /// Whether every `approve` step that names the step approved the action it has.
    #[must_use]
    pub fn released(&self, step: &Step) -> bool {
        step.bound().is_none_or(|bound| bound.by.iter().all(|by| self.covers(by, step, bound)))
    }

    /// Whether a human said yes to exactly this action of the step, on behalf of one `approve` step.
    pub(crate) fn covers(&self, by: &StepId, step: &Step, bound: &Bound) -> bool {
        let shown = |binding: &Binding| binding.step == step.id && binding.action_hash == bound.action_hash;
        let was_shown = self.step(by).is_some_and(|approver| approver.bindings().iter().any(shown));
        let yes = |a: &Approval| {
            let own = a.step == step.id && a.by_step.as_ref() == Some(by);
            // Whoever was asked again by a step after it was shown the same.
            let again = a.by_step.as_ref() == Some(by) && self.rare().asking.get(by) == Some(&a.action_hash);
            own && a.action_hash == bound.action_hash
                || was_shown && (a.step == *by && a.by_step.is_none() || again)
        };
        self.rare().approvals.values().any(|a| a.status == Decided::Approved && yes(a))
    }
}

/// The `approve` steps of a pipeline that name others: found once, when a run begins.
#[must_use]
pub(crate) fn approvers(def: &Pipeline) -> Vec<Node> {
    let names = |node: &StepDef| matches!(&node.kind, Kind::Approve { steps, .. } if !steps.is_empty());
    (0..).zip(&def.nodes).filter(|(_, node)| names(node)).map(|(place, _)| place).collect()
}

/// What an `approve` step that is reached binds, and what it shows: each named step with its action, where it has one
/// already.
pub(crate) fn propose(
    run: &Run,
    def: &Pipeline,
    approver: &Context<'_>,
    message: &Value,
    given: &Given<'_>,
) -> (Vec<Binding>, Value) {
    let Kind::Approve { steps, .. } = &approver.node.kind else { return (Vec::new(), message.clone()) };
    let (mut bindings, mut shown) = (Vec::new(), Vec::new());
    for name in steps {
        match rendered(run, def, approver, name, given) {
            Some(step) => {
                let (step, node) = step;
                let (id, action_hash) = (step.id.clone(), scope::action_hash(run, node, &step));
                shown.push(json!({
                    "step": id, "action_hash": action_hash, "action": scope::action(run, node, &step),
                }));
                bindings.push(Binding { step: id, action_hash });
            }
            None => shown.push(json!({ "step": name, "when_reached": true })),
        }
    }
    (bindings, json!({ "message": message, "steps": shown }))
}

/// A later step as it would be reached now.
fn rendered<'a>(
    run: &Run,
    def: &'a Pipeline,
    approver: &Context<'_>,
    name: &Name,
    given: &Given<'_>,
) -> Option<(Step, &'a StepDef)> {
    let (place, node) = (0..).zip(&def.nodes).find(|(_, node)| node.id == *name)?;
    let suffix = suffix(def, approver, place)?;
    let id = Name::clean(&alloc::format!("{name}{suffix}"));
    let context =
        Context { parent: approver.parent, item: None, compensates: None, id: &id, node, def: None };
    let prepared = scope::prepare(run, &context, given).ok()?;
    let mut step = Step::pending(id, place, Name::clean(node.kind.tool()));
    step.prepare(prepared.action_hash, prepared.input.as_ref(), run.edition);
    Some((step, node))
}

/// What the instance of a later step adds to its name: that of the group it shares with the `approve` step. None where
/// items stand in between: nobody knows yet how many there will be.
fn suffix<'a>(def: &Pipeline, approver: &Context<'a>, node: Node) -> Option<&'a str> {
    let shared = approver.parent.map(|parent| parent.node);
    let mut at = node;
    loop {
        let inner = def.node(at)?;
        let parent = (0..).zip(&def.nodes).find(|(_, group)| group.kind.members().contains(&at));
        let parent = parent.map(|(place, _)| place);
        if inner.foreach.is_some() {
            return None;
        }
        if parent == shared {
            return Some(approver.id.as_str().strip_prefix(approver.node.id.as_str()).unwrap_or(""));
        }
        match parent {
            Some(parent) => at = parent,
            // It stands outside of the approval's group.
            None => return Some(""),
        }
    }
}

/// What a step that is reached is held to: by the `approve` steps that name it and were not passed by.
pub(crate) fn bound(run: &Run, def: &Pipeline, node: &StepDef, step: &Step) -> Option<Bound> {
    let mut by = Vec::new();
    for &place in run.approvers() {
        let Some(approver) = def.node(place) else { continue };
        if !matches!(&approver.kind, Kind::Approve { steps, .. } if steps.contains(&node.id)) {
            continue;
        }
        match instance(run, place, step) {
            Some(found) if found.status == Status::Skipped => {}
            Some(found) => by.push(found.id.clone()),
            None => by.push(approver.id.clone()),
        }
    }
    if by.is_empty() {
        return None;
    }
    Some(Bound { by, action_hash: scope::action_hash(run, node, step) })
}

/// The instance of an `approve` step that speaks for a step: the last one in a group around it, or in none.
fn instance<'a>(run: &'a Run, approver: Node, step: &Step) -> Option<&'a Step> {
    let around = |group: u32| {
        let up = |place: &u32| run.at(*place).and_then(|group| group.parent);
        core::iter::successors(step.parent, up).any(|place| place == group)
    };
    let speaks = |s: &&Step| s.node == approver && s.group.is_none() && s.parent.is_none_or(around);
    run.steps.iter().rev().find(speaks)
}

/// Why a step asks for itself.
pub(crate) fn reason(run: &Run, by: &StepId, step: &Step) -> alloc::string::String {
    let bound = run.step(by).map(|approver| approver.bindings().iter().any(|b| b.step == step.id));
    let why = match bound {
        Some(true) => "its action is not the one that was approved there",
        Some(false) => "its action was not known there yet",
        None => "it was reached first",
    };
    alloc::format!("`{by}` asks for its approval, and {why}")
}

/// The definition of the `approve` step behind a name in the run.
pub(crate) fn definition<'a>(run: &Run, def: &'a Pipeline, by: &StepId) -> Option<&'a StepDef> {
    match run.step(by) {
        Some(approver) => def.node(approver.node),
        None => def.nodes.iter().find(|node| node.id.to_string() == by.as_str()),
    }
}
