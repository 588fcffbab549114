//! Undo: what a run did outside, taken back by another run.
//!
//! ```text
//!  run ─▶ its receipts, latest first ─▶ plan: what would be done, and what others changed since
//!                                         └─▶ a runbook with one step for each ─▶ a linked run
//! ```
//!
//! A step with a `compensate` of its own is taken back by that; any other by what its receipt says. The plan is made of
//! records alone, and the run that carries it out is like any other: pinned by a hash, under policy, with receipts. It claims
//! the runs that it takes back ([`windlass_core::turn::undone`]), so a second undo is answered with the first while that is under
//! way, and finds afterwards what was done.

use crate::app::App;
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use windlass_api::undo::{Act, Effect};
use windlass_core::canonical;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::id::{Name, RunId, Scoped, StepId};
use windlass_core::policy::Risk;
use windlass_core::receipt::key::EffectKey;
use windlass_core::receipt::{Action, Outcome, Receipt, Reversal, Semantics};
use windlass_core::run::{Run, Section};
use windlass_core::runbook::{
    CALLS_MAX, Compensate, KeyScope, Kind, Pipeline, Retry, Reverses, Runbook, StepDef, ValueType, VarDef,
};
use windlass_core::scope;
use windlass_core::small;
use windlass_core::step::{Status, Step};
use windlass_core::stream::StreamId;
use windlass_core::template::{Evaluate, Template};
use windlass_core::time::Millis;
use windlass_core::turn::command::Claim;
use windlass_core::turn::effect_key;
use windlass_core::turn::state::Body;
use windlass_core::turn::undone;
use windlass_engine::Leave;
use windlass_executor::secrets::Secrets;
use windlass_executor::tools::session::Session;
use windlass_executor::tools::{Call, Current, TIME_MAX};
use windlass_runbook::Described;
use windlass_store::store::Embedded;

/// The name of the generated runbook and of its pipeline.
const NAME: &str = "undo";
/// The variable that names the run whose effects are taken back.
const OF: &str = "run";

/// Whether something can be taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It can.
    Ready,
    /// Somebody changed it since, or policy does not let that be looked at; it is left alone unless that is forced.
    Conflict(String),
    /// It cannot, and why.
    Not(String),
}

/// One effect of a run, and how it would be taken back.
#[derive(Clone, Debug)]
pub struct Item {
    /// The step that did it.
    pub step: StepId,
    /// The pipeline of the run that did it, and those that the run took back itself.
    pub pipelines: Vec<Name>,
    /// Its receipt.
    pub receipt: Option<Box<Receipt>>,
    /// Whether it can be taken back.
    pub state: State,
    /// By which step.
    def: Option<Box<StepDef>>,
}

impl Item {
    /// As answers show it.
    #[must_use]
    pub fn shown(&self) -> Effect {
        let (state, reason) = match &self.state {
            State::Ready => ("ready", None),
            State::Conflict(reason) => ("conflict", Some(reason)),
            State::Not(reason) => ("irreversible", Some(reason)),
        };
        let did = |receipt: &Receipt| Act {
            tool: receipt.tool.clone(),
            operation: Some(receipt.operation.clone()),
            target: Some(receipt.target.as_str().into()),
            fields: None,
            command: None,
        };
        let undo = match self.def.as_ref().map(|def| &def.kind) {
            Some(Kind::Tool { tool, operation, target, with, .. }) => Some(Act {
                tool: tool.clone(),
                operation: Some(operation.clone()),
                target: Some(text_of(target)),
                fields: Some(text_of(with)),
                command: None,
            }),
            Some(Kind::Run { command }) => Some(Act {
                tool: Name::clean("shell"),
                operation: None,
                target: None,
                fields: None,
                command: Some(command.clone()),
            }),
            Some(_) | None => None,
        };
        Effect {
            step: self.step.clone(),
            state: state.to_owned(),
            reason: reason.map(ToString::to_string),
            receipt: self.receipt.as_ref().map(|receipt| receipt.id),
            did: self.receipt.as_deref().map(did),
            undo,
        }
    }
}

/// A template without expressions, as it is shown.
fn text_of(template: &Template) -> Value {
    template.render(&windlass_core::template::NoExpressions, &Map::new()).unwrap_or(Value::Null)
}

/// What an undo of a run would do, latest effect first. Nothing is done, but the other sides are asked what is left, where
/// policy allows it.
///
/// # Errors
/// A run that is not over.
pub async fn plan(app: &App, run: RunId) -> Result<Plan, (Code, String)> {
    let (evaluate, registry) = (app.evaluate.clone(), app.tools.registry.clone());
    let found = app
        .look(move |store| gather(store, run, With { evaluate: &*evaluate, tools: registry.signatures() }))
        .await;
    let (tenant, mut plan) = found.map_err(|problem| (problem.code, problem.detail))??;
    let tools = &app.tools;
    let secrets = Arc::new(Secrets::new(app.home.root()));
    for item in &mut plan.items {
        let (State::Ready, Some(receipt)) = (&item.state, &item.receipt) else { continue };
        let Some(reverse) = receipt.reverse.as_ref().filter(|_| is_reversal(item)) else { continue };
        if !tools.can_look(reverse.tool.as_str()) {
            continue;
        }
        let leave = match app
            .may_look(receipt.run, receipt.step.clone(), action_of(reverse, tools.registry.signatures()))
            .await
        {
            Ok(leave) => leave,
            Err(refusal) => {
                // Nobody knows what would be overwritten, so that has to be wanted.
                item.state =
                    State::Conflict(format!("policy does not allow to look what is left of it: {refusal}"));
                continue;
            }
        };
        let session = Session::new(tenant.clone(), secrets.clone());
        let Ok(call) = question(reverse, &session, leave) else { continue };
        let left = receipt.response.clone().unwrap_or(Value::Null);
        if let Current::Changed(why) = tools.current(&call, &left, &session).await {
            item.state = State::Conflict(session.mask(&why));
        }
    }
    Ok(plan)
}

/// Whether an item is taken back by what its receipt says, and not by a compensation.
fn is_reversal(item: &Item) -> bool {
    let tool =
        item.receipt.as_ref().and_then(|receipt| receipt.reverse.as_ref()).map(|reverse| &reverse.tool);
    matches!(item.def.as_ref().map(|def| &def.kind), Some(Kind::Tool { tool: by, .. }) if Some(by) == tool)
}

/// The call that would take something back, for looking at what it would find.
fn question(
    reverse: &Reversal,
    session: &Session,
    leave: Leave,
) -> Result<Call, windlass_executor::tools::Trouble> {
    let with = with_of(&reverse.fields);
    let (fields, secret_places) = session.resolve(&with, &reverse.fields)?;
    let Value::Object(fields) = fields else {
        return Err(windlass_executor::tools::Trouble::input("no fields"));
    };
    Ok(Call {
        tool: reverse.tool.to_string(),
        operation: reverse.operation.to_string(),
        target: reverse.target.to_string(),
        fields,
        secret_places,
        key: String::new(),
        attempt: 1,
        timeout: TIME_MAX,
        leave,
    })
}

/// What would take something back, as policy sees it.
fn action_of(reverse: &Reversal, tools: &Described) -> Action {
    let Reversal { tool, operation, target, fields } = reverse.clone();
    let risk = tools.with(|tools| tools.find(tool.as_str()).map_or(Risk::High, |tool| tool.risk));
    Action { tool, operation, target, fields, risk }
}

/// The definition of a reversal's fields. The credential is a reference, which the executor put there; anything else is
/// what it is.
fn with_of(fields: &Value) -> Template {
    let Value::Object(map) = fields else { return Template::Literal(fields.clone()) };
    let secret = map.get("token").and_then(Value::as_object).filter(|token| token.len() == 1);
    let Some(name) = secret.and_then(|token| token.get("$secret")).and_then(Value::as_str) else {
        return Template::Literal(fields.clone());
    };
    let literal = |(key, value): (&String, &Value)| (key.clone(), Template::Literal(value.clone()));
    let mut templates: small::Map<String, Template> = map.iter().map(literal).collect();
    templates.insert("token".to_owned(), Template::Secret(Name::clean(name)));
    Template::Map(templates)
}

/// What an undo would do.
pub struct Plan {
    /// What it would take back, latest effect first.
    pub items: Vec<Item>,
    /// The runs that it takes that back of, the one that was asked for first.
    pub runs: Vec<Claim>,
    /// An undo of any of it that is under way, and whether it takes all of it back.
    pub by: Option<(RunId, bool)>,
    /// The runs that took something of it back before, and when they ended; its own compensations count as itself.
    pub taken_back: Vec<(RunId, Millis)>,
}

type Gathered = Result<(Name, Plan), (Code, String)>;

/// What of a run is gone already, whoever took it back.
#[derive(Default)]
struct Gone {
    /// The places of its steps.
    places: BTreeSet<u32>,
    /// The undo of it, or of a run that it called, that is under way.
    by: Option<RunId>,
    /// The last undo of it.
    seen: Option<RunId>,
}

/// What another run took back of a run, or what it took back itself. The runs that tell are loaded first.
fn gone(store: &mut Embedded, id: RunId) -> Result<Gone, (Code, String)> {
    use windlass_engine::port::Store as _;
    let asked = RefCell::new(BTreeSet::from([id]));
    let mut loaded = 0;
    loop {
        let streams: Vec<StreamId> = asked.borrow().iter().copied().map(StreamId::Run).collect();
        // What cannot be read may have taken something back, and that must not happen twice.
        store.load(&streams).map_err(|fault| (Code::Unavailable, fault.to_string()))?;
        let settled = streams.len() == loaded;
        loaded = streams.len();
        let find = |id: RunId| -> Result<Option<&Run>, Infallible> {
            asked.borrow_mut().insert(id);
            Ok(store.state().run(id))
        };
        let Some(run) = store.state().run(id) else { return Ok(Gone::default()) };
        let (Ok(mut places), Ok(by)) = (undone::steps(&find, run), undone::under_way(&find, run));
        if settled && asked.borrow().len() == loaded {
            // What has a receipt says for itself that it was reversed.
            places.retain(|place| run.at(*place).is_some_and(|step| !step.writes()));
            let own = run.steps.iter().filter(|step| step.status == Status::Succeeded);
            places.extend(own.filter_map(|step| step.compensates));
            let seen = run.rare().undos.last().map(|undo| undo.run);
            return Ok(Gone { places, by, seen });
        }
    }
}

/// The runs that took something of a run back, and when they ended: itself, and undos of it.
fn taken_back(store: &Embedded, run: &Run) -> Vec<(RunId, Millis)> {
    let undos = run.rare().undos.iter().filter_map(|undo| store.state().run(undo.run));
    let did = |by: &&Run| {
        let mut done = by.steps.iter().filter(|step| step.status == Status::Succeeded);
        done.any(|step| by.id() != run.id() || step.compensates.is_some())
    };
    let over = |by: &Run| Some((by.id(), by.ending.as_ref()?.at));
    std::iter::once(run).chain(undos).filter(did).filter_map(over).collect()
}

/// What the records say about a run's effects.
fn gather(store: &mut Embedded, id: RunId, with: With<'_>) -> Gathered {
    let missing = || (Code::NotFound, format!("there is no run `{id}`"));
    let Gone { by, seen, .. } = gone(store, id)?;
    let run = store.state().run(id).ok_or_else(missing)?;
    if !run.is_terminal() {
        let text = format!("the run is {}: cancel it first, its compensations run then", run.status());
        return Err((Code::RunInvalidTransition, text));
    }
    let tenant = run.born.home.tenant.clone();
    let by_whom = by.map(|by| (by, seen == Some(by)));
    let taken_back = taken_back(store, run);
    let mut plan = Plan { items: Vec::new(), runs: Vec::new(), by: by_whom, taken_back };
    items_of(store, id, (&Above::default(), CALLS_MAX), with, &mut plan)?;
    if let Some(by) = by {
        for item in plan.items.iter_mut().filter(|item| item.state == State::Ready) {
            (item.state, item.def) = (State::Not(format!("{by} is taking it back")), None);
        }
    }
    Ok((tenant, plan))
}

/// The items of a run, latest effect first, those of a run that it called in the place of the call.
fn items_of(
    store: &mut Embedded,
    id: RunId,
    (above, depth): (&Above, u32),
    with: With<'_>,
    plan: &mut Plan,
) -> Result<(), (Code, String)> {
    use windlass_engine::port::Store as _;
    let failed = |what: String| (Code::Unavailable, what);
    let missing = || (Code::NotFound, format!("there is no run `{id}`"));
    let gone = gone(store, id)?;
    load_effects(store, id);
    plan.runs.push(Claim {
        run: id,
        path: Some(above.path.clone()).filter(|path| !path.is_empty()),
        seen: gone.seen,
    });
    let run = store.state().run(id).ok_or_else(missing)?;
    let places = (0..).zip(&run.steps).filter(|(place, step)| {
        step.status == Status::Succeeded
            && step.section != Section::Compensate
            && !gone.places.contains(place)
    });
    let mut steps: Vec<&Step> = places.map(|(_, step)| step).collect();
    steps.sort_by_key(|step| std::cmp::Reverse(step.ended));
    // Another run is loaded on the way, so each is looked up again by its name.
    let names: Vec<StepId> = steps.into_iter().map(|step| step.id.clone()).collect();
    for name in names {
        let run = store.state().run(id).ok_or_else(missing)?;
        let def = store.pipeline(run).ok_or_else(|| failed("the run's runbook is not there".to_owned()))?;
        let Some(step) = run.step(&name) else { continue };
        let called = def
            .node(step.node)
            .is_some_and(|node| matches!(node.compensate, Compensate::Called | Compensate::Undeclared));
        let child = step.child().filter(|_| depth > 0 && called && undone::taken_from(run, step).is_none());
        let Some(child) = child else {
            plan.items.extend(item(store, run, def, step, above, with));
            continue;
        };
        let below = above.below(step);
        store.load(&[StreamId::Run(child)]).map_err(|fault| failed(fault.to_string()))?;
        if store.state().run(child).is_none() {
            let state = State::Not(format!("{child}, which it called, is not there any more"));
            let pipelines = pipelines_of(store, store.state().run(id).ok_or_else(missing)?);
            plan.items.push(Item { step: above.shown(&name), pipelines, receipt: None, state, def: None });
            continue;
        }
        items_of(store, child, (&below, depth - 1), with, plan)?;
    }
    Ok(())
}

/// What a plan is made with, beside the store.
#[derive(Clone, Copy)]
struct With<'a> {
    evaluate: &'a dyn Evaluate,
    /// The tools that files describe.
    tools: &'a Described,
}

/// The calls through which the steps of a called run are reached.
#[derive(Default)]
struct Above {
    /// As part of the names of the steps that take those back.
    path: String,
    /// As people read it.
    shown: String,
}

impl Above {
    fn below(&self, call: &Step) -> Above {
        Above { path: undone::path(&self.path, call), shown: format!("{}{}/", self.shown, call.id) }
    }

    fn shown(&self, step: &StepId) -> StepId {
        if self.shown.is_empty() { step.clone() } else { Name::clean(&format!("{}{step}", self.shown)) }
    }
}

/// The pipeline of a run, and where the run is an undo, those that it took back: an undo of that does them again.
fn pipelines_of(store: &Embedded, run: &Run) -> Vec<Name> {
    let runbook =
        match store.state().stream(&StreamId::Runbook(run.born.home.runbook)).map(|found| &found.body) {
            Some(Body::Runbook(runbook)) => Some(runbook),
            Some(_) | None => None,
        };
    let undone = runbook.into_iter().flat_map(|runbook| runbook.undoes.iter().cloned());
    std::iter::once(run.born.home.pipeline.clone()).chain(undone).collect()
}

/// What becomes of one step; none where it did nothing outside and declares nothing.
fn item(
    store: &Embedded,
    run: &Run,
    def: &Pipeline,
    step: &Step,
    above: &Above,
    with: With<'_>,
) -> Option<Item> {
    let node = def.node(step.node)?;
    let stream = effect_key(run, node, step);
    let known: Option<&EffectKey> = stream.as_ref().and_then(|stream| {
        match store.state().stream(&StreamId::Effect(stream.clone())).map(|found| &found.body) {
            Some(Body::Effect(key)) => Some(&**key),
            Some(_) | None => None,
        }
    });
    let receipt = known.and_then(EffectKey::receipt).cloned().map(Box::new);
    let not = |why: String| State::Not(why);
    let mut item = Item {
        step: above.shown(&step.id),
        pipelines: pipelines_of(store, run),
        receipt: receipt.clone(),
        state: State::Ready,
        def: None,
    };
    let reverses = stream.zip(receipt.as_ref().map(|receipt| receipt.id));
    let reverses = reverses.map(|(key, receipt)| Reverses { key, receipt });
    if let Some(receipt) = &receipt {
        if receipt.reversed_by.is_some() {
            item.state = not(format!(
                "{} has taken it back",
                receipt.reversed_by.map_or_else(String::new, |by| by.to_string())
            ));
            return Some(item);
        }
        if receipt.run != run.id() {
            item.state = not(format!("{} did it, and this run reused that: undo that one", receipt.run));
            return Some(item);
        }
    }
    if let Some(from) = undone::taken_from(run, step) {
        let declared = matches!(node.compensate, Compensate::With(_) | Compensate::Called);
        item.state = not(format!("{from} did it, and this run reused that: undo that one"));
        return (declared && !(step.group.is_some() && node.foreach.is_some())).then_some(item);
    }
    match node.compensate {
        Compensate::Exempt => {
            item.state = not("the runbook exempts it".to_owned());
            return item.receipt.is_some().then_some(item);
        }
        // A `foreach` is taken back item by item.
        Compensate::With(_) if step.group.is_some() && node.foreach.is_some() => return None,
        Compensate::With(by) => {
            match scope::compensation(run, def, def.node(by)?, step, with.evaluate) {
                Ok(Some(by)) => item.def = Some(Box::new(compensating(by, run, (above, step), reverses))),
                Ok(None) => item.state = not("its compensation's condition does not hold".to_owned()),
                Err(why) => item.state = not(why),
            }
            return Some(item);
        }
        Compensate::Undeclared | Compensate::Called => {}
    }
    let receipt = receipt.filter(|receipt| receipt.status == Outcome::Succeeded)?;
    match (&receipt.reverse, reverses) {
        (Some(reverse), Some(reverses)) if receipt.reversible => {
            item.def = Some(Box::new(reversing(reverse, (above, step), reverses, with.tools)));
        }
        (_, _) => item.state = not(format!("{} cannot be taken back", receipt.tool)),
    }
    Some(item)
}

/// The step that a compensation becomes.
fn compensating(
    with: StepDef,
    run: &Run,
    (above, of): (&Above, &Step),
    reverses: Option<Reverses>,
) -> StepDef {
    let key = format!("undo:{}:{}", run.id(), of.id);
    StepDef {
        id: undone::name(&above.path, of),
        compensate: Compensate::Undeclared,
        effect: Some(with.effect.unwrap_or(Semantics::Idempotent)),
        idempotency_key: Some(with.idempotency_key.unwrap_or_else(|| Template::Literal(key.into()))),
        key_scope: KeyScope::Tenant,
        reverses,
        ..with
    }
}

/// The step that a reversal becomes.
fn reversing(
    reverse: &Reversal,
    (above, of): (&Above, &Step),
    reverses: Reverses,
    tools: &Described,
) -> StepDef {
    let (risk, semantics) = tools.with(|tools| match tools.find(reverse.tool.as_str()) {
        Some(tool) => (tool.risk, tool.semantics_of(reverse.operation.as_str())),
        None => (Risk::High, None),
    });
    let kind = Kind::Tool {
        tool: reverse.tool.clone(),
        operation: reverse.operation.clone(),
        target: Template::Literal(reverse.target.as_str().into()),
        with: with_of(&reverse.fields),
        writes: true,
        risk,
    };
    let key = format!("undo:{}", reverses.receipt);
    StepDef {
        id: undone::name(&above.path, of),
        kind,
        when: None,
        foreach: None,
        retry: Retry::default(),
        timeout: None,
        before: Vec::new(),
        after: Vec::new(),
        lock: None,
        semaphore: None,
        compensate: Compensate::Undeclared,
        effect: Some(semantics.unwrap_or(Semantics::AtMostOnce)),
        reconcile: None,
        reverses: Some(reverses),
        idempotency_key: Some(Template::Literal(key.into())),
        key_scope: KeyScope::Tenant,
        risk: None,
        checkpoint: None,
        env: small::Map::new(),
        dir: None,
        shell: None,
        runs_on: Vec::new(),
        outputs: small::Map::new(),
    }
}

/// A generated runbook: what is to be taken back, pinned by its hash.
pub struct Undo {
    /// The runbook.
    pub runbook: Runbook,
    /// Its hash.
    pub hash: Digest,
    /// Its one pipeline.
    pub pipeline: Name,
    /// The variables of the run.
    pub vars: Value,
}

/// The runbook that takes these back; none where nothing is left to do. What others changed since is left out, unless
/// `force` says otherwise.
#[must_use]
pub fn runbook(run: RunId, items: &[Item], force: bool) -> Option<Undo> {
    let chosen = items.iter().filter(|item| match item.state {
        State::Ready => true,
        State::Conflict(_) => force,
        State::Not(_) => false,
    });
    let nodes: Vec<StepDef> = chosen.filter_map(|item| item.def.as_deref().cloned()).collect();
    if nodes.is_empty() {
        return None;
    }
    // Also those of which nothing is left to take back: it is their run that was asked for.
    let undoes: BTreeSet<Name> = items.iter().flat_map(|item| item.pipelines.iter().cloned()).collect();
    let of = VarDef { kind: Some(ValueType::String), required: true, ..VarDef::default() };
    let steps = (0..u32::try_from(nodes.len()).unwrap_or(u32::MAX)).collect();
    let vars = small::Map::from([(Name::clean(OF), of)]);
    let pipeline = Pipeline { vars, nodes, steps, ..Pipeline::default() };
    let runbook = Runbook {
        name: Name::clean(NAME),
        version: 1,
        pipelines: small::Map::from([(Name::clean(NAME), pipeline)]),
        queues: small::Map::new(),
        workers: small::Map::new(),
        agents: small::Map::new(),
        schedules: small::Map::new(),
        triggers: small::Map::new(),
        semaphores: small::Map::new(),
        locks: small::Map::new(),
        caps: None,
        budget: None,
        evidence: None,
        issues: None,
        undoes: undoes.into_iter().collect(),
    };
    let hash = Digest::of(&[b"windlass undo v1\n", &canonical::bytes(&json!(runbook))]);
    let vars = json!({ OF: run.to_string() });
    Some(Undo { runbook, hash, pipeline: Name::clean(NAME), vars })
}

/// Reads the effect keys of a run back that are at rest.
fn load_effects(store: &mut Embedded, id: RunId) {
    use windlass_engine::port::Store as _;
    let Some(run) = store.state().run(id) else { return };
    let Some(def) = store.pipeline(run) else { return };
    let keys = run.steps.iter().filter_map(|step| effect_key(run, def.node(step.node)?, step));
    let streams: Vec<StreamId> = keys.map(StreamId::Effect).collect();
    // One that cannot be read is shown as if it had no receipt; reading it again says why.
    let _ = store.load(&streams);
}

/// The receipts of a run, in the order of its steps.
#[must_use]
pub fn receipts(store: &mut Embedded, id: RunId) -> Option<Vec<(Scoped, Receipt)>> {
    use windlass_engine::port::Store as _;
    store.load(&[StreamId::Run(id)]).ok()?;
    load_effects(store, id);
    let run = store.state().run(id)?;
    let def = store.pipeline(run)?;
    let mut found = Vec::new();
    for step in &run.steps {
        let Some(node) = def.node(step.node) else { continue };
        let Some(stream) = effect_key(run, node, step) else { continue };
        if let Some(Body::Effect(key)) =
            store.state().stream(&StreamId::Effect(stream.clone())).map(|found| &found.body)
            && let Some(receipt) = key.receipt()
        {
            found.push((stream, receipt.clone()));
        }
    }
    Some(found)
}
