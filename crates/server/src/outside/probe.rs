//! Probes: an effect is outstanding of which nobody knows whether it happened, and the other side is asked.

use super::Hands;
use crate::shell::Environment;
use crate::store::Embedded;
use crate::tools::Seen;
use crate::tools::execute::{Job, Place};
use crate::tools::probe::{Asked, Read};
use crate::tools::session::Witness;
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::sync::Arc;
use windlass_core::attempt::Report;
use windlass_core::command::{Command, Receipted};
use windlass_core::id::Name;
use windlass_core::receipt::{Action, Semantics};
use windlass_core::run::{Actor, Run};
use windlass_core::runbook::{Kind, StepDef};
use windlass_core::scope::{self, Reading};
use windlass_core::step::{Resolution, Status, Step};
use windlass_core::template::{Evaluate, Template};

impl Hands {
    /// Finds out what became of an attempt, and says so. Until then the step waits, and a human may say it too.
    pub(super) fn probe(self: &Arc<Hands>, place: Place, key: Name) {
        if self.tools.is_none() {
            return;
        }
        let (hands, evaluate) = (self.clone(), self.evaluate.clone());
        let looked = (place.clone(), self.witness(place.clone()));
        self.engine.read_then(
            move |store| look(store, looked, key, &*evaluate),
            move |asked| {
                let Ok(Some(asked)) = asked else { return };
                let Some(tools) = &hands.tools else { return };
                let told = hands.clone();
                tools.ask(asked, move |seen, receipt| told.seen(place, seen, receipt));
            },
        );
    }

    fn seen(&self, (run, step, epoch): Place, seen: Seen, receipt: Option<Box<Receipted>>) {
        let probed = true;
        let resolve = |resolution, reason, output| Command::Resolve {
            run,
            step: step.clone(),
            resolution,
            probed,
            reason,
            output,
        };
        match seen {
            Seen::There(success) => {
                let output = Some(success.output);
                let reason = Some("the other side has it".to_owned());
                self.engine.report(Actor::SYSTEM, resolve(Resolution::Done, reason, output.clone()));
                if receipt.is_some() {
                    // The evidence follows the answer: what it says about taking the effect back is worth having.
                    let report = Report::Done { output, exit_code: None };
                    let command = Command::Report { run, step: step.clone(), epoch, report, receipt };
                    self.engine.report(self.by.clone(), command);
                }
            }
            Seen::Absent => {
                let reason = Some("the other side does not have it".to_owned());
                self.engine.report(Actor::SYSTEM, resolve(Resolution::Retry, reason, None));
            }
            Seen::Unsure(why) => {
                eprintln!(
                    "windlass: what became of step `{step}` of {run} cannot be found out: {why}; settle it with `windlass resolve`"
                );
            }
        }
    }
}

/// What is to be asked about a step whose outcome is unknown.
fn look(
    store: &mut Embedded,
    (place, witness): (Place, Witness),
    key: Name,
    evaluate: &dyn Evaluate,
) -> Option<Asked> {
    let (id, step, epoch) = &place;
    let run = store.state().run(*id)?;
    let step = run.step(step).filter(|step| step.status == Status::OutcomeUnknown && step.epoch == *epoch)?;
    let def = store.pipeline(run)?;
    let node = def.node(step.node)?;
    let (action, with) = match &node.kind {
        Kind::Tool { with, .. } => (scope::action(node, step), with.clone()),
        Kind::Run { .. }
        | Kind::Agent { .. }
        | Kind::Parallel { .. }
        | Kind::Steps { .. }
        | Kind::Strategy { .. }
        | Kind::Call { .. }
        | Kind::Approve { .. }
        | Kind::Wait { .. } => {
            // Only its name matters: a command is asked for by its own read.
            let action = Action { fields: Value::Object(Map::new()), ..scope::action(node, step) };
            (action, Template::Map(Default::default()))
        }
    };
    let read = match scope::reading(run, def, step, evaluate) {
        Ok(Reading::Own) => Read::Own,
        Ok(Reading::Tool(action)) => Read::Tool(action, with_of(node)),
        Ok(Reading::Command(command)) => {
            let env = environment(run, step, &key)?;
            Read::Command(command, PathBuf::from(&run.born.home.cwd), env)
        }
        Err(why) => {
            eprintln!("windlass: the read of step `{}` of {id} cannot be made: {why}", step.id);
            return None;
        }
    };
    let input = step.input().unwrap_or(Value::Null);
    let values = input.get("env").and_then(Value::as_object).cloned().unwrap_or_default();
    let env = node
        .env
        .iter()
        .filter_map(|(name, template)| Some((name.clone(), template.clone(), values.get(name)?.clone())));
    let env = env.collect();
    let job = Job {
        witness,
        place: place.clone(),
        tenant: run.born.home.tenant.clone(),
        action,
        with,
        key,
        attempt: step.attempt,
        semantics: Some(step.semantics.unwrap_or(Semantics::Reconcile)),
        timeout: None,
        own_read: node.reconcile.is_none(),
    };
    Some(Asked { job, read, env })
}

/// The definition of the fields of a step's own read.
fn with_of(node: &StepDef) -> Template {
    match node.reconcile.as_deref() {
        Some(Kind::Tool { with, .. }) => with.clone(),
        Some(_) | None => Template::Map(Default::default()),
    }
}

/// What a command that reads gets of its step: what the step itself had, but for its secrets.
fn environment(run: &Run, step: &Step, key: &Name) -> Option<Environment> {
    let mut env = Environment::inherited();
    env.set_own("RUN_ID", &run.id().to_string()).ok()?;
    env.set_own("STEP_ID", step.id.as_str()).ok()?;
    env.set_own("EPOCH", &step.epoch.to_string()).ok()?;
    env.set_own("IDEMPOTENCY_KEY", key.as_str()).ok()?;
    for (name, value) in run.vars.get().as_object().into_iter().flatten() {
        env.set_var(name, value).ok()?;
    }
    Some(env)
}
