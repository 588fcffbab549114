//! Creation: how runs come to be, once per delivery, with variables that fit.

use crate::budget::Limits;
use crate::caps::Caps;
use crate::code::Code;
use crate::digest::Digest;
use crate::event::{CommandRun, Event, PipelineCreated, PipelineInherited};
use crate::follow::Told;
use crate::id::{Name, RunId, Scoped, StepId, WorkspaceId};
use crate::idempotency::{self, Key};
use crate::items;
use crate::lifecycle;
use crate::machine::{Decision, Given};
use crate::packed::Packed;
use crate::private::Private;
use crate::requesters;
use crate::run::{Lineage, Run, Section, Source, Status, Trigger};
use crate::runbook::{Pipeline, Runbook, VarDef};
use crate::step::{Failure, Step};
use crate::stream::StreamId;
use crate::template::Evaluate;
use crate::trace;
use crate::turn::command::{ARRIVALS_MAX, Arrival, Command, Create, Home, Outcome, Refusal, Reply, Signal};
use crate::turn::needs;
use crate::turn::undone;
use crate::turn::{
    Loaded, View, key_of, load, missing, name_of, of_run, of_stream, run_of, runbook_of, tenant_of,
};
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;
use serde_json::{Map, Value};

/// Makes a run and lets it begin. A step whose call cannot be made is told, or it would wait for ever.
pub(crate) fn create(view: &dyn View, create: &Create, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    let asked_by = asked_by(view, create, given)?;
    create_for(view, create, asked_by, given)
}

/// The same for a run that somebody else asked for than who sends the command.
pub(crate) fn create_for(
    view: &dyn View,
    create: &Create,
    asked_by: Vec<Name>,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let made = new(view, create, asked_by, &[], given);
    let made = made.and_then(|made| crate::turn::admitted(&made.facts).map(|_| made));
    match (made, &create.parent) {
        (Err(Refusal::Error { code, message, .. }), Some((parent, step))) => {
            let (status, error) = (Status::Failed, Some(Failure::new(code, message)));
            let told =
                Told::RunEnded { run: create.id, step: Some(step.clone()), status, outputs: None, error };
            let mut out = Outcome::reply(Reply::Nothing);
            out.follow.push(Command::Tell { run: *parent, told });
            Ok(out)
        }
        (made, Some((parent, _))) => {
            let mut made = made?;
            // Its caller may have been suspended since it asked for it.
            if run_of(view, parent)?.is_some_and(|caller| caller.suspended) {
                made.follow.insert(0, crate::turn::suspend_called(*parent, create.id));
            }
            Ok(made)
        }
        (made, None) => made,
    }
}

/// Makes the run that a `call` step calls.
pub(crate) fn call(
    view: &dyn View,
    id: RunId,
    (parent, step): (RunId, &StepId),
    (pipeline, vars): (&Name, &Value),
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let caller = run_of(view, &parent)?.ok_or_else(|| missing("run", &parent))?;
    let calling = caller.step(step);
    let forward = calling.is_some_and(|step| step.section == Section::Main);
    let born = &caller.born;
    let home = Home {
        tenant: born.home.tenant.clone(),
        namespace: born.home.namespace.clone(),
        runbook: born.home.runbook,
        cwd: born.home.cwd.clone(),
    };
    let trigger = Trigger {
        user: born.trigger.user.clone(),
        traceparent: Some(handed_on(caller, step)),
        ..Trigger::of(Source::Call)
    };
    let create = Create {
        subject: born.subject.as_deref().cloned(),
        correlation_id: born.correlation_id.clone(),
        priority: born.priority,
        parent: Some((parent, step.clone())),
        depth: born.depth + 1,
        // What cleans up after a deadline is not bound by it.
        deadline_at: born.deadline_at.filter(|_| forward),
        // A called run works in its caller's directory.
        workspace: born.workspace(),
        policy: caller.policy().for_child(id),
        takes_back: calling.and_then(|step| crate::reversal::takes_back(caller, step)),
        ..Create::new(id, home, pipeline.clone(), vars.clone(), trigger)
    };
    self::create(view, &create, given)
}

/// The trace of a run, handed on by one of its steps to the run that the step calls.
fn handed_on(run: &Run, step: &StepId) -> Name {
    let trace = run.born.trace();
    let epoch = run.step(step).map_or(0, |step| step.epoch);
    Name::clean(&trace::traceparent(trace, trace::attempt_span(run.id(), step, epoch)))
}

/// A new run, beside those of these runbooks that the same commit makes before it.
pub(crate) fn new(
    view: &dyn View,
    create: &Create,
    mut asked_by: Vec<Name>,
    beside: &[Digest],
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    if run_of(view, &create.id)?.is_some() {
        return Err(Refusal::new(Code::IdempotencyConflict, "a run with this id exists"));
    }
    if let Some(of) = create.takes_back {
        return super::reversal::create(view, create, asked_by, of, given);
    }
    let runbook = runbook_of(view, &create.runbook)?.ok_or_else(|| missing("runbook", &create.runbook))?;
    let def = pipeline(runbook, &create.pipeline)?;
    let (needs, never) = needs::of_new(view, create, def)?;
    if create.parent.is_none() {
        view.admit_run(&create.tenant, &create.runbook, beside, given.at)?;
    }
    let lineage = match &create.parent {
        Some((parent, step)) => {
            let caller = run_of(view, parent)?.ok_or_else(|| missing("run", parent))?;
            // A called run belongs to its caller's lineage, below the step that calls it.
            let above = caller.step(step).map(|step| crate::reversal::lineage(caller, step));
            above.unwrap_or_else(|| caller.born.lineage()).below(step.as_str())
        }
        None => Lineage::first(create.id),
    };
    let caps = view.caps(&create.tenant).tighten(runbook.caps.unwrap_or_default());
    let needs = Some(needs).filter(|needs| !needs.is_empty());
    let needs_pipelines = Some(never).filter(|never| !never.is_empty());
    let created =
        PipelineCreated { needs, needs_pipelines, ..created(create, (runbook, caps), def, lineage, given)? };
    admit_vars(view, create, &created)?;
    let inherited = goes_on_from(view, create, &created)?;
    if let Some(earlier) =
        inherited.as_ref().map(|inherited| run_of(view, &inherited.from)).transpose()?.flatten()
    {
        requesters::add(&mut asked_by, earlier.requesters());
    }
    let created = PipelineCreated { asked_by: beside_user(create, asked_by), ..created };
    let made = Decision::new().fact(created);
    let made = inherited.into_iter().fold(made, Decision::fact);
    Ok(born(create, asked(create).into_iter().fold(made, Decision::fact)))
}

/// Who counts as having asked for a run: of a called one, those who asked for its caller.
pub(crate) fn asked_by(view: &dyn View, create: &Create, given: &Given<'_>) -> Result<Vec<Name>, Refusal> {
    match &create.parent {
        Some((parent, _)) => {
            let caller = run_of(view, parent)?.ok_or_else(|| missing("run", parent))?;
            Ok(caller.requesters())
        }
        None => super::requesters::of_delivery(view, given.by, create.trigger.user.as_ref()),
    }
}

/// Those who asked for a run beside its trigger's user, as its first fact says it.
pub(crate) fn beside_user(create: &Create, asked_by: Vec<Name>) -> Option<Vec<Name>> {
    let others = asked_by.into_iter().filter(|name| Some(name) != create.trigger.user.as_ref());
    Some(others.collect::<Vec<Name>>()).filter(|others| !others.is_empty())
}

/// How many runs of a lineage are looked through for an earlier run of a call.
const EARLIER_MAX: usize = 100;

/// What a called run takes over from an earlier one, where its caller goes on from a run that called it with the same
/// variables, and that call did not come to its end or was taken back: what a retry of the called run would.
fn goes_on_from(
    view: &dyn View,
    create: &Create,
    created: &PipelineCreated,
) -> Result<Option<PipelineInherited>, Refusal> {
    let Some((parent, step)) = &create.parent else { return Ok(None) };
    let Some(caller) = run_of(view, parent)? else { return Ok(None) };
    let Some(step) = caller.step(step) else { return Ok(None) };
    // A call that is tried again goes on in the run that its last attempt made.
    if let Some(last) = caller.rare().called.get(&step.id) {
        return takes_over(view, create, created, *last);
    }
    let mut at = caller;
    for _ in 0..EARLIER_MAX {
        let Lineage { resumed_from, forked_at, .. } = at.born.lineage();
        let Some(earlier) = resumed_from.map(|id| run_of(view, &id)).transpose()?.flatten() else { break };
        at = earlier;
        let call = items::earlier_call(earlier, caller, step);
        // A fork runs its step and what follows anew.
        if let Some(from) = forked_at {
            let place = |step: &StepId| earlier.place(step);
            if call
                .and_then(|call| place(&call.id))
                .is_none_or(|call| place(&from).is_none_or(|from| from <= call))
            {
                break;
            }
        }
        let Some(call) = call else { continue };
        if crate::reversal::has_taken_back(earlier, call) {
            break;
        }
        // Where the call was taken back, the run that did so knows what is left of it.
        let place = earlier.place(&call.id);
        let back = earlier.steps.iter().rev().find(|step| step.compensates == place && place.is_some());
        let last = back.filter(|back| back.node == call.node).and_then(Step::child).or(call.child());
        return last.map_or(Ok(None), |last| takes_over(view, create, created, last));
    }
    Ok(None)
}

/// What a called run takes over from this earlier one, where that was called with the same variables.
fn takes_over(
    view: &dyn View,
    create: &Create,
    created: &PipelineCreated,
    last: RunId,
) -> Result<Option<PipelineInherited>, Refusal> {
    // One that is not there any more has nothing to go on from.
    if run_of(view, &last)?.is_none() {
        return Ok(None);
    }
    let Loaded { run: last, def } = load(view, last)?;
    let same = last.is_terminal()
        && last.born.home.pipeline == create.pipeline
        && last.born.home.runbook == create.runbook
        && created.vars.value() == Some(&last.vars);
    if !same {
        return Ok(None);
    }
    let back = undone::taken_back(view, last)?;
    let steps = lifecycle::kept(last, def, (None, &back), true);
    let (id, from) = (create.id, last.id());
    let told = PipelineInherited { id, from, steps: Private::New(steps.clone()) };
    Ok((!steps.is_empty()).then_some(told))
}

/// Whether the tenant may keep the variables of a further run.
fn admit_vars(view: &dyn View, create: &Create, created: &PipelineCreated) -> Result<(), Refusal> {
    let len = created.vars.value().map_or(0, |vars| vars.as_str().len()) as u64;
    Ok(view.kept(&create.tenant).admit_vars(len)?)
}

/// What a person or a program asked for, where one did.
fn asked(create: &Create) -> Option<CommandRun> {
    let command = match create.trigger.source {
        Source::Cli => "windlass run",
        Source::Api => "POST /v1/runs",
        Source::Ui => "run",
        Source::Webhook
        | Source::Slack
        | Source::Scheduled
        | Source::Queue
        | Source::Call
        | Source::Event => return None,
    };
    Some(CommandRun {
        pipeline_id: create.id,
        pipeline_name: create.pipeline.clone(),
        project_root: create.cwd.clone(),
        invoke_dir: create.cwd.clone(),
        command: alloc::format!("{command} {}", create.pipeline),
        args: Private::New(Packed::of(&create.vars)),
    })
}

fn pipeline<'a>(runbook: &'a Runbook, name: &Name) -> Result<&'a Pipeline, Refusal> {
    runbook.pipelines.get(name).ok_or_else(|| missing("pipeline", name))
}

/// Whether a run of a pipeline can have the working directory that it declares. Every way of starting a run comes by here.
///
/// # Errors
/// It declares one, and the run is given none: this version makes none itself.
pub fn has_place(def: &Pipeline, given: Option<WorkspaceId>) -> Result<(), (Code, &'static str)> {
    match (&def.workspace, given) {
        (None, _) | (Some(_), Some(_)) => Ok(()),
        (Some(_), None) => {
            Err((Code::RunbookInvalid, "the pipeline has a `workspace`, which this version cannot make yet"))
        }
    }
}

/// The facts of a new run, and its beginning.
pub(crate) fn born(create: &Create, decision: Decision) -> Outcome {
    let stream = StreamId::Run(create.id);
    let policy = create.policy.iter().map(|decided| {
        let mut decided = decided.clone();
        decided.pipeline_id = create.id;
        Event::from(decided)
    });
    let facts: Vec<Event> = decision.facts.into_iter().chain(policy).collect();
    let mut out = of_stream(stream, &create.tenant, facts, Reply::Created(create.id));
    out.follow.push(Command::Begin(create.id));
    out
}

pub(crate) fn created(
    create: &Create,
    (runbook, caps): (&Runbook, Caps),
    def: &Pipeline,
    lineage: Lineage,
    given: &Given<'_>,
) -> Result<PipelineCreated, Refusal> {
    has_place(def, create.workspace).map_err(|(code, message)| Refusal::new(code, message))?;
    let vars = variables(def, &create.vars, given.evaluate)?;
    let packed = Packed::of(&vars);
    let lock = match &def.lock {
        None => None,
        Some(lock) => {
            let mut scope = Map::new();
            scope.insert("vars".to_string(), vars);
            let name = lock.name.render_name(given.evaluate, &scope);
            Some(name.map_err(|message| Refusal::new(Code::ExpressionFailed, message))?)
        }
    };
    let own_deadline = def.deadline.map(|span| given.at + span);
    let budget = runbook.budget.iter().chain(&def.budget);
    let lowest = |pick: fn(&Limits) -> Option<u64>| budget.clone().filter_map(pick).min();
    let first = def.steps.first().copied();
    Ok(PipelineCreated {
        id: create.id,
        kind: create.pipeline.clone(),
        name: create.name.clone(),
        runbook_hash: create.runbook,
        cwd: create.cwd.clone(),
        vars: Private::New(packed),
        initial_step: first.and_then(|node| def.node(node)).map(|node| node.id.clone()),
        created_at_epoch_ms: given.at,
        namespace: create.namespace.clone(),
        trigger: create.trigger.clone(),
        lineage,
        subject: create.subject.clone(),
        correlation_id: create.correlation_id.clone(),
        deadline_at: own_deadline.into_iter().chain(create.deadline_at).min(),
        priority: Some(create.priority).filter(|&priority| priority != 0),
        parent: create.parent.as_ref().map(|(run, _)| *run),
        parent_step: create.parent.as_ref().map(|(_, step)| step.clone()),
        depth: Some(create.depth).filter(|&depth| depth > 0),
        needs: None,
        lock,
        initial_node: first,
        budget_usd_micros: lowest(|b| b.usd_micros),
        budget_tokens: lowest(|b| b.tokens),
        writes_max: caps.max_writes_per_run,
        workspace: create.workspace,
        budget_time_ms: lowest(|b| b.time_ms),
        budget_writes: lowest(|b| b.writes),
        needs_pipelines: None,
        asked_by: None,
        takes_back: create.takes_back,
        evidence: runbook.evidence,
    })
}

/// The variables of a run: what was given, what is default, and nothing else.
fn variables(def: &Pipeline, given: &Value, evaluate: &dyn Evaluate) -> Result<Value, Refusal> {
    let empty = Map::new();
    let given = match given {
        Value::Object(map) => map,
        Value::Null => &empty,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(invalid("the variables are not a map"));
        }
    };
    if let Some(unknown) = given.keys().find(|key| !def.vars.contains_key(key.as_str())) {
        return Err(invalid(&alloc::format!(
            "the pipeline has no variable `{}`",
            crate::wire::shorten(unknown)
        )));
    }
    let mut vars = Map::new();
    for (name, var) in &def.vars {
        match (given.get(name.as_str()), &var.default) {
            (Some(value), _) => {
                fits(name, var, value, evaluate)?;
                vars.insert(name.to_string(), value.clone());
            }
            // It was looked at when the runbook was loaded.
            (None, Some(value)) => drop(vars.insert(name.to_string(), value.clone())),
            (None, None) if var.required => {
                return Err(invalid(&alloc::format!("the variable `{name}` is required")));
            }
            (None, None) => {}
        }
    }
    Ok(Value::Object(vars))
}

/// Variables of a run that are changed on the way: each must be one the pipeline has, and fit.
pub(crate) fn changed(def: &Pipeline, vars: &Value, evaluate: &dyn Evaluate) -> Result<(), Refusal> {
    let Value::Object(vars) = vars else { return Err(invalid("the variables are not a map")) };
    for (name, value) in vars {
        let unknown =
            || invalid(&alloc::format!("the pipeline has no variable `{}`", crate::wire::shorten(name)));
        let (name, var) = def.vars.get_key_value(name.as_str()).ok_or_else(unknown)?;
        fits(name, var, value, evaluate)?;
    }
    Ok(())
}

fn fits(name: &Name, var: &VarDef, value: &Value, evaluate: &dyn Evaluate) -> Result<(), Refusal> {
    if let Some(kind) = var.kind.filter(|kind| !kind.fits(value)) {
        return Err(invalid(&alloc::format!("the variable `{name}` is not {}", kind.noun())));
    }
    if !var.one_of.is_empty() && !var.one_of.contains(value) {
        return Err(invalid(&alloc::format!("the variable `{name}` is none of the values it may have")));
    }
    if let Some(pattern) = &var.pattern {
        let matches = match value {
            Value::String(text) => evaluate.matches(pattern, text),
            Value::Number(number) => evaluate.matches(pattern, &number.to_string()),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
        };
        if !matches {
            return Err(invalid(&alloc::format!("the variable `{name}` does not match `{pattern}`")));
        }
    }
    Ok(())
}

fn invalid(message: &str) -> Refusal {
    Refusal::new(Code::InvalidInput, message)
}

/// Makes a run for a delivery. The key is claimed in the commit that creates the run, so there is one per key.
pub(crate) fn deliver(
    view: &dyn View,
    key: &Scoped,
    source: idempotency::Source,
    request_hash: Digest,
    create: &Create,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let claim = idempotency::Input::Claim { source, request_hash, run: Some(create.id) };
    let Claimed { key: known, facts, attempt } = match claimed(view, key, &claim, given)? {
        Ok(claimed) => claimed,
        Err(known) => return Ok(Outcome::reply(known)),
    };
    let mut out = self::create(view, create, given)?;
    let response = serde_json::json!({ "id": create.id });
    let complete =
        idempotency::Input::Complete { attempt, run: Some(create.id), response: Some(response), ttl: None };
    settle(&known, key, facts, &complete, given, &mut out)?;
    Ok(out)
}

/// Does all that a delivery sets going, in the commit that claims its key.
pub(crate) fn arrive(view: &dyn View, arrival: &Arrival, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    let Arrival { key, source, request_hash, creates, signals, to, response, failure, event, also } = arrival;
    if creates.len() + signals.len() > ARRIVALS_MAX {
        let message = alloc::format!("one delivery can set {ARRIVALS_MAX} runs and signals going");
        return Err(Refusal::new(Code::CapExceeded, message));
    }
    let first = creates.first().map(|create| create.id);
    let claim = idempotency::Input::Claim { source: *source, request_hash: *request_hash, run: first };
    let Claimed { key: known, mut facts, attempt } = match claimed(view, key, &claim, given)? {
        Ok(claimed) => claimed,
        Err(known) => return Ok(Outcome::reply(known)),
    };
    facts.extend(event.clone().map(Event::from));
    let mut out = Outcome::reply(first.map_or(Reply::Done, Reply::Created));
    if let Some(error) = failure {
        let fail = idempotency::Input::Fail { attempt, error: error.clone() };
        settle(&known, key, facts, &fail, given, &mut out)?;
        return Ok(out);
    }
    let mut beside = Vec::new();
    for create in creates {
        let asked_by = asked_by(view, create, given)?;
        let made = new(view, create, asked_by, &beside, given)?;
        beside.push(create.runbook);
        out.join(made);
    }
    for signal in signals {
        let sent = match to {
            None => super::signals::arrive(view, signal, given)?,
            Some(run) => {
                let Signal { name, key, data, event_id, user, .. } = signal;
                let asked_by = super::requesters::of_signal(view, given, user.as_ref(), data)?;
                let run = load(view, *run)?.run;
                let told = lifecycle::signal(
                    run,
                    name,
                    key.as_ref(),
                    data,
                    (event_id.as_ref(), crate::signal::source(given).as_ref(), asked_by),
                    given,
                )?;
                of_run(view, run, told, Reply::Done)
            }
        };
        // What reaches a stream that another signal has reached is decided on what that one did.
        if sent.facts.iter().any(|fact| out.facts.iter().any(|other| other.stream == fact.stream)) {
            out.follow.push(again(*to, signal));
        } else {
            out.join(sent);
        }
    }
    for (other, ttl) in also {
        let request_hash = Digest::of(&[other.to_string().as_bytes()]);
        let claim = idempotency::Input::Claim { source: *source, request_hash, run: first };
        let claimed = match claimed(view, other, &claim, given)? {
            Ok(claimed) => claimed,
            Err(known) => return Ok(Outcome::reply(known)),
        };
        let (attempt, response) = (claimed.attempt, response.clone());
        let complete = idempotency::Input::Complete { attempt, run: first, response, ttl: Some(*ttl) };
        settle(&claimed.key, other, claimed.facts, &complete, given, &mut out)?;
    }
    let complete =
        idempotency::Input::Complete { attempt, run: first, response: response.clone(), ttl: None };
    settle(&known, key, facts, &complete, given, &mut out)?;
    Ok(out)
}

/// A signal as a command of its own.
fn again(to: Option<RunId>, signal: &Signal) -> Command {
    let Signal { name, key, data, event_id, .. } = signal.clone();
    match to {
        None => Command::SignalKey(Box::new(signal.clone())),
        Some(run) => Command::Signal { run, name, key, data, event_id },
    }
}

/// A key that was claimed just now.
struct Claimed {
    key: Key,
    facts: Vec<Event>,
    attempt: u32,
}

/// Claims a key; the inner error is the answer to a delivery that was known.
fn claimed(
    view: &dyn View,
    key: &Scoped,
    claim: &idempotency::Input,
    given: &Given<'_>,
) -> Result<Result<Claimed, Reply>, Refusal> {
    let known = key_of(view, key)?.cloned().unwrap_or_else(|| Key::new(name_of(key)));
    let decided = known.decide(claim, given.at)?;
    let own = match claim {
        idempotency::Input::Claim { run, .. } => *run,
        // tidy: nothing else claims.
        _ => None,
    };
    let attempt = match decided.reply {
        idempotency::Reply::New { attempt } => attempt,
        idempotency::Reply::Retry { attempt, run } if run.is_none() || run == own => attempt,
        idempotency::Reply::Retry { run, .. }
        | idempotency::Reply::Duplicate { run, .. }
        | idempotency::Reply::Exhausted { run, .. }
        | idempotency::Reply::Failed { run, .. } => return Ok(Err(Reply::Known { run, in_flight: false })),
        idempotency::Reply::InFlight { run } => return Ok(Err(Reply::Known { run, in_flight: true })),
        idempotency::Reply::Done | idempotency::Reply::Nothing => {
            return Err(Refusal::new(Code::Internal, "a claim was neither granted nor refused"));
        }
    };
    Ok(Ok(Claimed { key: known, facts: decided.facts, attempt }))
}

/// Ends a claim in the commit that made it.
fn settle(
    known: &Key,
    key: &Scoped,
    claimed: Vec<Event>,
    end: &idempotency::Input,
    given: &Given<'_>,
    out: &mut Outcome,
) -> Result<(), Refusal> {
    let after = claimed.iter().fold(known.clone(), |known, fact| known.apply(fact, given.at));
    let ended = after.decide(end, given.at)?;
    let facts: Vec<Event> = claimed.into_iter().chain(ended.facts).collect();
    out.facts.extend(of_stream(StreamId::Trigger(key.clone()), &tenant_of(key), facts, Reply::Done).facts);
    Ok(())
}

/// Makes a run that goes on from another: a retry, or a fork from a step, perhaps with another runbook.
pub(crate) fn descend(
    view: &dyn View,
    id: RunId,
    new: RunId,
    from: Option<&StepId>,
    runbook: Option<Digest>,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    if run_of(view, &new)?.is_some() {
        return Err(Refusal::new(Code::IdempotencyConflict, "a run with this id exists"));
    }
    let Loaded { run, def: of } = load(view, id)?;
    let born_of = &run.born;
    let hash = runbook.unwrap_or(born_of.home.runbook);
    let runbook = runbook_of(view, &hash)?.ok_or_else(|| missing("runbook", &hash))?;
    let def = pipeline(runbook, &born_of.home.pipeline)?;
    let home = Home {
        tenant: born_of.home.tenant.clone(),
        namespace: born_of.home.namespace.clone(),
        runbook: hash,
        cwd: born_of.home.cwd.clone(),
    };
    let (pipeline, trigger) = (born_of.home.pipeline.clone(), born_of.trigger.clone());
    // Whoever called the first run has heard of its end; this one answers to nobody.
    let create = Create {
        name: born_of.name.clone(),
        subject: born_of.subject.as_deref().cloned(),
        correlation_id: born_of.correlation_id.clone(),
        priority: born_of.priority,
        depth: born_of.depth,
        workspace: born_of.workspace(),
        policy: run.policy().for_child(new),
        ..Create::new(new, home, pipeline, run.vars.get(), trigger)
    };
    let caps = view.caps(&create.tenant).tighten(runbook.caps.unwrap_or_default());
    let created = created(&create, (runbook, caps), def, born_of.lineage(), given)?;
    admit_vars(view, &create, &created)?;
    let back = undone::taken_back(view, run)?;
    let by = super::requesters::of_actor(view, given.by)?;
    let descended = lifecycle::descend(run, of, new, from, &back, created, by)?;
    let mut out = born(&create, descended);
    let action: Event = match from {
        Some(step) => crate::event::PipelineFork { id, new, from: step.clone() }.into(),
        None => crate::event::PipelineRetry { id, new }.into(),
    };
    // The earlier run's stream says where it goes on; a run that has ended takes actions, which change nothing.
    out.facts.extend(of_stream(StreamId::Run(id), &create.tenant, alloc::vec![action], Reply::Done).facts);
    Ok(out)
}
