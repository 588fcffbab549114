//! Renewal: what changed variables mean for steps that were reached and have not begun, and for what humans said of them.
//!
//! ```text
//! variables change ─▶ each stale step ─┬─ is what it was ─▶ goes on, its approvals stand
//!                                      └─ is another ─▶ its approvals are void ─▶ ready: gates, policy, humans again
//!                  ─▶ each answered question ── is another ─▶ its yes is void ─▶ whoever comes next asks it again
//! ```
//!
//! A command is given every variable, so each change makes it another. A tool's call is what is rendered for it. An
//! `approve` step asks about its message and, where it names no steps, about the variables that everything after it runs
//! with; the steps that it names are held to what was shown of each ([`crate::binding`]). The invariant: nothing begins
//! that is not what was approved ([`Run::is_stale`], [`Run::unanswered`]).

use crate::approval::{self, Approval};
use crate::code::Code;
use crate::digest::Digest;
use crate::event::{PipelineAdvanced, StepPrepared};
use crate::gate;
use crate::machine::{Decision, Given};
use crate::packed::Packed;
use crate::pipeline::{self, Place};
use crate::private::Private;
use crate::run::Run;
use crate::runbook::{Kind, Pipeline, StepDef};
use crate::scope;
use crate::step::{self, Failure, Group, Status, Step, Wait};
use alloc::string::String;
use alloc::vec::Vec;
use serde_json::{Value, json};

/// How many variables a reason names.
const NAMED_MAX: usize = 8;

/// Prepares a stale step anew.
pub(crate) fn renew(
    run: &Run,
    def: &Pipeline,
    node: &StepDef,
    step: &Step,
    given: &mut Given<'_>,
) -> Decision {
    let parent = step.parent.and_then(|place| run.at(place));
    let compensates = step.compensates.and_then(|place| run.at(place));
    let place = Place { id: step.id.clone(), node: step.node, parent, item: step.item, compensates };
    let context =
        scope::Context { parent, item: step.item, compensates, id: &place.id, node, def: Some(def) };
    let prepared = pipeline::prepare(run, def, &context, &place, given);
    match prepared {
        Ok(advanced) if step.status == Status::Succeeded => {
            question(run, node, step, &place, &advanced, given)
        }
        Ok(advanced) => start_over(run, node, step, &place, &advanced, given),
        Err(message) if step.status == Status::Succeeded => {
            let text = alloc::format!("what it asks cannot be said any more: {message}");
            let mut advanced = pipeline::blank(run, node, &place);
            let names = matches!(&node.kind, Kind::Approve { steps, .. } if !steps.is_empty());
            let input = if names { json!({ "message": text, "steps": [] }) } else { json!(text) };
            advanced.input = Some(Private::New(input));
            question(run, node, step, &place, &advanced, given)
        }
        Err(message) if step.status == Status::Ready => {
            pipeline::refuse(run, step, Code::ExpressionFailed, &message, given)
        }
        Err(message) => {
            let mut out = Decision::new();
            let failure = Failure::new(Code::ExpressionFailed, message);
            let input = step::Input::Fail { epoch: step.epoch, failure, retry_at: None };
            pipeline::end(run, step, input, given, &mut out);
            out
        }
    }
}

/// A step that has not begun.
fn start_over(
    run: &Run,
    node: &StepDef,
    step: &Step,
    place: &Place<'_>,
    advanced: &PipelineAdvanced,
    given: &Given<'_>,
) -> Decision {
    if !is_another(node, step, advanced) {
        return prepared(run, step, advanced, (false, None), given);
    }
    let mut out = Decision::new();
    out.follow.extend(gate::release(run, step));
    if step.waiting.as_ref().is_some_and(|waiting| waiting.reason == Wait::Guard) {
        gate::stop(run, step, &mut out);
    }
    let own = |a: &&Approval| {
        // A question that it asks for an earlier step is not about itself.
        let asked = a.by_step.as_ref().and_then(|by| run.rare().asking.get(by));
        a.step == step.id && asked != Some(&a.action_hash)
    };
    let mut about: Vec<&Approval> = run.rare().approvals.values().filter(own).filter(in_force).collect();
    if !about.is_empty() {
        let hash = scope::action_hash(run, node, &pipeline::fresh(run, place, advanced));
        about.retain(|approval| approval.action_hash != hash);
    }
    void(run, step, &about, given, &mut out);
    let Decision { facts, .. } = prepared(run, step, advanced, (true, advanced.action_hash), given);
    out.facts.extend(facts);
    out
}

/// An `approve` step that was answered.
fn question(
    run: &Run,
    node: &StepDef,
    step: &Step,
    place: &Place<'_>,
    advanced: &PipelineAdvanced,
    given: &Given<'_>,
) -> Decision {
    let names = matches!(&node.kind, Kind::Approve { steps, .. } if !steps.is_empty());
    let message = |input: Option<Value>| input.and_then(|mut input| Some(input.get_mut("message")?.take()));
    let now = advanced.input.as_ref().and_then(Private::get);
    if names && message(step.input()) == message(now) {
        return prepared(run, step, advanced, (false, None), given);
    }
    let hash = scope::action_hash(run, node, &pipeline::fresh(run, place, advanced));
    let asked = run.rare().asking.get(&step.id);
    let about = |a: &&Approval| {
        let own = a.step == step.id && a.by_step.is_none();
        own || a.by_step.as_ref() == Some(&step.id) && asked == Some(&a.action_hash)
    };
    let about: Vec<&Approval> = run.rare().approvals.values().filter(about).filter(in_force).collect();
    let mut out = Decision::new();
    void(run, step, &about, given, &mut out);
    for waiting in about.iter().flat_map(|approval| gate::waiting_for(run, approval.id)) {
        let input = step::Input::Open { after: Wait::Approval, on: None, epoch: None };
        out.facts.extend(waiting.decide(run.id(), &input, given.at).unwrap_or_default().facts);
    }
    let Decision { facts, .. } = prepared(run, step, advanced, (true, Some(hash)), given);
    out.facts.extend(facts);
    out
}

/// Whether a step that has not begun is another one with what was rendered for it now.
fn is_another(node: &StepDef, step: &Step, now: &PipelineAdvanced) -> bool {
    let takes_all = match &node.kind {
        Kind::Run { .. } | Kind::Agent { .. } => true,
        Kind::Approve { steps, .. } => steps.is_empty(),
        Kind::Tool { .. }
        | Kind::Parallel { .. }
        | Kind::Steps { .. }
        | Kind::Strategy { .. }
        | Kind::Call { .. }
        | Kind::Wait { .. } => false,
    };
    let input = now.input.as_ref().and_then(Private::value).map(Packed::of);
    takes_all && now.group.is_none()
        || step.input != input
        || *step.gates != *now.gates.as_deref().unwrap_or_default()
        || step.key != now.key
        || step.action_hash() != now.action_hash.as_ref()
        || step.group.map(|group| group.shape) != now.group.map(|shape| Group::new(shape).shape)
        || step.bindings() != now.bindings.as_deref().unwrap_or_default()
        || step.bound() != now.bound.as_ref()
}

fn in_force(approval: &&Approval) -> bool {
    matches!(approval.status, approval::Status::Requested | approval::Status::Approved)
}

/// Makes approvals void, with the variables that did it.
fn void(run: &Run, step: &Step, about: &[&Approval], given: &Given<'_>, out: &mut Decision) {
    if about.is_empty() {
        return;
    }
    let names = run.changed_since(step);
    let named: Vec<String> = names.iter().take(NAMED_MAX).map(|name| alloc::format!("`{name}`")).collect();
    let more = if names.len() > NAMED_MAX { " and others" } else { "" };
    let reason = match names.len() {
        1 => alloc::format!("the variable {} was changed", named.join(", ")),
        _ => alloc::format!("the variables {}{more} were changed", named.join(", ")),
    };
    for approval in about {
        let input = approval::Input::Void { reason: reason.clone() };
        if let Ok(voided) = approval.decide(&input, given.at) {
            out.join(voided);
        }
    }
}

/// The record of it.
fn prepared(
    run: &Run,
    step: &Step,
    now: &PipelineAdvanced,
    (changed, action_hash): (bool, Option<Digest>),
    given: &Given<'_>,
) -> Decision {
    let now = changed.then_some(now);
    let fact = StepPrepared {
        pipeline_id: run.id(),
        step: step.id.clone(),
        edition: run.edition,
        changed,
        group: now.and_then(|now| now.group),
        gates: now.and_then(|now| now.gates.clone()),
        key: now.and_then(|now| now.key.clone()),
        action_hash,
        input: now.and_then(|now| now.input.clone()),
        bindings: now.and_then(|now| now.bindings.clone()),
        bound: now.and_then(|now| now.bound.clone()),
    };
    step.decide(run.id(), &step::Input::Prepare(alloc::boxed::Box::new(fact)), given.at).unwrap_or_default()
}
