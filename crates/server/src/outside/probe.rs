//! Probes: an effect is outstanding of which nobody knows whether it happened, and the other side is asked.

use super::Hands;
use crate::policy::question::{self, Question};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use windlass_core::attempt::Report;
use windlass_core::code::Code;
use windlass_core::id::{AttemptId, Name, RunId, StepId};
use windlass_core::policy::Purpose;
use windlass_core::receipt::Action;
use windlass_core::run::{Actor, Run};
use windlass_core::runbook::{Kind, StepDef};
use windlass_core::scope::{self, Reading};
use windlass_core::step::{Resolution, Status, Step};
use windlass_core::stream::StreamId;
use windlass_core::template::{Evaluate, Template};
use windlass_core::turn::command::{Command, Receipted, Refusal};
use windlass_engine::Leave;
use windlass_engine::port::Fault;
use windlass_executor::secrets::OfRun;
use windlass_executor::shell::{Environment, Told};
use windlass_executor::tools::Seen;
use windlass_executor::tools::execute::Job;
use windlass_executor::tools::probe::{Asked, NotAllowed, Read};
use windlass_executor::tools::session::Witness;
use windlass_store::store::Embedded;

impl Hands {
    /// Finds out what became of an attempt, and says so. Until then the step waits, and a human may say it too.
    pub(super) fn probe(self: &Arc<Hands>, attempt: AttemptId, key: Name) {
        if self.executor.is_none() {
            return;
        }
        let (hands, evaluate) = (self.clone(), self.evaluate.clone());
        let looked = (attempt.clone(), self.witness(attempt.clone()), self.registered.later(attempt.run));
        self.engine.read_then(
            move |store| look(store, looked, key, &*evaluate),
            move |asked| {
                let Ok(Some(Looked { job, masked, read, env, action, writes })) = asked else { return };
                let Some(executor) = &hands.executor else { return };
                // What the answer holds of them is masked: they are found now, and not while everybody waits.
                drop(hands.registered.of(attempt.run, &job.tenant, || masked));
                let (told, asking) = (hands.clone(), hands.clone());
                let (run, step) = (attempt.run, attempt.step.clone());
                let allow = Arc::new(move || asking.may_read(run, &step, &action, writes));
                executor.calls().ask(Asked { allow, job, read, env }, move |seen, receipt| {
                    told.seen(attempt, seen, receipt);
                });
            },
        );
    }

    /// Asks policy whether a read may be made. It is asked anew each time: a day may pass between two reads.
    fn may_read(
        &self,
        run: RunId,
        step: &StepId,
        action: &Action,
        writes: bool,
    ) -> Result<Leave, NotAllowed> {
        let (id, about) = (step.clone(), action.clone());
        let asked = self.engine.read(move |store| {
            Question::beside(store.state(), (run, &id), Purpose::Reconcile, about, writes)
        });
        let question = asked.ok().flatten().ok_or(NotAllowed::Moot)?;
        self.permitted(&question, None).map_err(|refusal| match refusal.code() {
            Some(Code::RunTerminalState | Code::RunInvalidTransition | Code::NotFound) => NotAllowed::Moot,
            Some(_) | None => NotAllowed::Because(format!("policy does not allow the read: {refusal}")),
        })
    }

    /// Asks policy whether what is left of a step's effect may be looked at, before that is taken back.
    pub(super) fn may_look(&self, run: RunId, step: StepId, action: Action) -> Result<Leave, Refusal> {
        use windlass_engine::port::Store as _;
        let asked = self.engine.read(move |store| {
            store.load(&[StreamId::Run(run)])?;
            Ok::<_, Fault>(Question::beside(store.state(), (run, &step), Purpose::Undo, action, false))
        })?;
        let question = asked.map_err(|fault| Refusal::new(fault.code(), fault.to_string()))?;
        let question = question.ok_or_else(|| Refusal::new(Code::NotFound, "the run is not there"))?;
        self.permitted(&question, None)
    }

    fn seen(&self, attempt: AttemptId, seen: Seen, receipt: Option<Box<Receipted>>) {
        let (probed, run, step) = (true, attempt.run, attempt.step.clone());
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
                    self.report_with(attempt, Report::Done { output, exit_code: None }, receipt);
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

/// What is to be asked, and how policy sees it.
struct Looked {
    job: Job,
    /// The secrets that the run's runbook names.
    masked: BTreeSet<Name>,
    read: Read,
    env: Vec<(String, Template, Value)>,
    action: Action,
    writes: bool,
}

/// What is to be asked about a step whose outcome is unknown.
fn look(
    store: &mut Embedded,
    (attempt, witness, masked): (AttemptId, Witness, OfRun),
    key: Name,
    evaluate: &dyn Evaluate,
) -> Option<Looked> {
    let unknown = |step: &&Step| step.status == Status::OutcomeUnknown && step.epoch == attempt.epoch;
    let run = store.state().run(attempt.run)?;
    let step = run.step(&attempt.step).filter(unknown)?;
    let def = store.pipeline(run)?;
    let node = def.node(step.node)?;
    let (action, with) = match &node.kind {
        Kind::Tool { with, .. } => (scope::action(run, node, step), with.clone()),
        Kind::Run { .. }
        | Kind::Agent { .. }
        | Kind::Parallel { .. }
        | Kind::Steps { .. }
        | Kind::Strategy { .. }
        | Kind::Call { .. }
        | Kind::Approve { .. }
        | Kind::Wait { .. } => {
            // Only its name matters: a command is asked for by its own read.
            let action = Action { fields: Value::Object(Map::new()), ..scope::action(run, node, step) };
            (action, Template::Map(Default::default()))
        }
    };
    let (read, asked, writes) = match scope::reading(run, def, step, evaluate) {
        Ok(Reading::Own) => (Read::Own, action.clone(), false),
        Ok(Reading::Tool(action)) => (Read::Tool(action.clone(), with_of(node)), action, false),
        Ok(Reading::Command(command)) => {
            let (env, dir) = (environment(run, step, &key)?, PathBuf::from(&run.born.home.cwd));
            let action = question::command(Purpose::Reconcile, &step.id, &command, &dir, &env);
            (Read::Command(command, dir, env), action, true)
        }
        Err(why) => {
            eprintln!("windlass: the read of step `{}` of {} cannot be made: {why}", step.id, attempt.run);
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
        run: masked,
        id: attempt.clone(),
        tenant: run.born.home.tenant.clone(),
        action,
        with,
        key,
        attempt: step.attempt,
        semantics: step.semantics,
        timeout: None,
        own_read: node.reconcile.is_none(),
    };
    let masked = store.runbook(run)?.secrets();
    Some(Looked { job, masked, read, env, action: asked, writes })
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
    let attempt = AttemptId::new(run.id(), &step.id, step.epoch);
    let vars = run.vars_of(step).get();
    Environment::of_step(&Told { attempt: &attempt, key: key.as_str(), vars: &vars, reach: None }).ok()
}
