//! The effect keys of steps: which step has one, and what its reports say about the effect.
//!
//! A tool that writes has one, and a command that declares an effect or a key. Both go one way: the intent is in the
//! commit of the lease, the receipt in that of the report. A tool brings its receipt; a command speaks by its exit.

use super::{View, effect_of};
use crate::attempt::{self, Exit, Report};
use crate::code::Code;
use crate::event::Event;
use crate::id::{AttemptId, Name, Scoped};
use crate::machine::Given;
use crate::receipt::{self, Outcome, Semantics, key};
use crate::run::Run;
use crate::runbook::{KeyScope, Kind, StepDef};
use crate::step::Step;
use crate::turn::command::{Receipted, Refusal};
use alloc::boxed::Box;
use alloc::vec::Vec;
use serde_json::json;

/// The effect key of a step that writes outside, or of a command that declares an effect, with its stream. Plain steps
/// have none.
#[must_use]
pub fn effect_key(run: &Run, node: &StepDef, step: &Step) -> Option<Scoped> {
    if !step.writes() && !is_effective(node, step) {
        return None;
    }
    // A key of the whole tenant is the same effect in each of its namespaces, so its stream is in none of them.
    let namespace = match node.key_scope {
        KeyScope::Lineage => run.born.home.namespace.clone(),
        KeyScope::Tenant => Name::clean("_"),
    };
    Some(Scoped::new(&run.born.home.tenant, &namespace, &attempt::key(run, node, step)))
}

/// Whether the step is a command that declares an effect.
fn is_effective(node: &StepDef, step: &Step) -> bool {
    step.semantics.is_some() && matches!(node.kind, Kind::Run { .. })
}

/// What an effect key makes of what is known about its effect. What it refuses is not worth losing the word for that
/// came with it.
pub(super) fn settle_key(
    view: &dyn View,
    stream: Option<&Scoped>,
    inputs: Vec<key::Input>,
    given: &Given<'_>,
) -> Result<Vec<Event>, Refusal> {
    let Some(known) = stream.map(|stream| effect_of(view, stream)).transpose()?.flatten() else {
        return Ok(Vec::new());
    };
    let (mut known, mut settled) = (known.clone(), Vec::new());
    for input in inputs {
        let Ok(decision) = known.decide(&input, given.at) else { break };
        known = decision.facts.iter().fold(known, |known, fact| known.apply(fact, given.at));
        settled.extend(decision.facts);
    }
    Ok(settled)
}

/// What a report says about the effect itself, where it brings no receipt of its own.
pub(super) fn evidence(
    report: &Report,
    receipted: Option<&Receipted>,
    (run, node, step): (&Run, &StepDef, &Step),
    epoch: u64,
    given: &mut Given<'_>,
) -> Vec<key::Input> {
    let attempt = attempt_of(run, step, epoch);
    let lost = key::Input::Lost { attempt: attempt.clone() };
    let not_done = |lost| {
        let outcome = receipt::Settled::NotDone;
        alloc::vec![lost, key::Input::Settle { attempt, outcome, probed: false }]
    };
    let command = matches!(node.kind, Kind::Run { .. });
    let mut said = |status, response| {
        let request = command.then(|| json!({ "action_hash": crate::scope::action_hash(run, node, step) }));
        let id = crate::id::ReceiptId(given.id());
        let receipt = Receipted { id, status, reversible: false, reverse: None, request, response };
        alloc::vec![receipt_input(&receipt, (run, node, step), epoch)]
    };
    match (receipted, report) {
        (Some(receipt), _) => alloc::vec![receipt_input(receipt, (run, node, step), epoch)],
        // It happened: the output is all that is known of it.
        (None, Report::Done { output, .. }) => said(Outcome::Succeeded, output.clone()),
        // It did what it is for, and did not give what is declared.
        (None, Report::Failed { exit_code: Some(Exit { code: 0, .. }), .. }) if is_told(node, report) => {
            said(Outcome::Succeeded, None)
        }
        (None, Report::Failed { failure, exit_code, .. }) if is_told(node, report) => {
            let exit_code = exit_code.as_ref().map(|exit| exit.code);
            let response = json!({ "code": failure.code.as_str(), "exit_code": exit_code });
            said(Outcome::Failed, Some(response))
        }
        // A command that may be repeated is handed back also where it had begun.
        (None, Report::Returned { .. }) if command && step.semantics == Some(Semantics::Idempotent) => {
            alloc::vec![lost]
        }
        // It was not begun, so another may.
        (None, Report::Returned { .. } | Report::Postponed { .. }) => not_done(lost),
        // What a command saved serves instead of a repeat, or says that it may be repeated.
        (None, Report::Lost { .. })
            if command && epoch == step.epoch && attempt::is_saved(run, node, step) =>
        {
            let saved = run.rare().checkpoints.get(&step.id);
            said(Outcome::Succeeded, saved.and_then(|saved| saved.data.clone()))
        }
        (None, Report::Lost { .. })
            if command
                && step.may_be_unknown()
                && attempt::resume(run, Some(node), step) == attempt::Resume::Replay =>
        {
            not_done(lost)
        }
        // A failure without a receipt may have come before or after the effect: it proves nothing.
        (None, Report::Lost { .. } | Report::Stopped | Report::Failed { .. } | Report::Deferred { .. }) => {
            alloc::vec![lost]
        }
    }
}

/// Whether a failure without a receipt says that the effect did not happen. A command says so by its exit, and who could
/// not begin it says so too; one that is killed, by its time-out or by a signal, says nothing.
pub(super) fn is_told(node: &StepDef, report: &Report) -> bool {
    match report {
        Report::Failed { failure, signal, .. } => {
            let killed = signal.is_some() || failure.code.as_str() == Code::TimedOut.as_str();
            matches!(node.kind, Kind::Run { .. }) && !killed
        }
        Report::Done { .. }
        | Report::Deferred { .. }
        | Report::Stopped
        | Report::Returned { .. }
        | Report::Postponed { .. }
        | Report::Lost { .. } => false,
    }
}

fn receipt_input(
    receipted: &Receipted,
    (run, node, step): (&Run, &StepDef, &Step),
    epoch: u64,
) -> key::Input {
    // What the tool cannot take back, the runbook may know how to.
    let compensated = matches!(node.compensate, crate::runbook::Compensate::With(_));
    key::Input::Receipt(Box::new(key::Report {
        receipt_id: receipted.id,
        attempt: attempt_of(run, step, epoch),
        status: receipted.status,
        reversible: receipted.reversible || compensated,
        reverse: receipted.reverse.clone(),
        request: receipted.request.clone(),
        response: receipted.response.clone(),
    }))
}

/// The attempt as its effect key knows it.
pub(super) fn attempt_of(run: &Run, step: &Step, epoch: u64) -> AttemptId {
    AttemptId::new(run.id(), &step.id, epoch)
}
