//! Undo: what a run did outside, taken back by another run.
//!
//! ```text
//!  run ─▶ its receipts, latest first ─▶ plan: what would be done, and what others changed since
//!                                         └─▶ a runbook with one step for each ─▶ a linked run
//! ```
//!
//! A step with a `compensate` of its own is taken back by that; any other by what its receipt says. The plan is made of
//! records alone, and the run that carries it out is like any other: pinned by a hash, under policy, with receipts. Its
//! steps are known tenant-wide by what they take back, so a second undo finds that it was done.

use crate::app::App;
use crate::runbook::tools;
use crate::secrets::Secrets;
use crate::store::{Embedded, RunFilter};
use crate::tools::session::Session;
use crate::tools::{Call, Current, TIME_MAX, Tools};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use windlass_core::canonical;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::id::{Name, RunId, Scoped, StepId};
use windlass_core::policy::Risk;
use windlass_core::receipt::key::EffectKey;
use windlass_core::receipt::{Outcome, Receipt, Reversal, Semantics};
use windlass_core::run::{Run, Section};
use windlass_core::runbook::{
    Compensate, KeyScope, Kind, Pipeline, Retry, Reverses, Runbook, StepDef, ValueType, VarDef,
};
use windlass_core::scope;
use windlass_core::small;
use windlass_core::state::Body;
use windlass_core::step::{Status, Step};
use windlass_core::stream::StreamId;
use windlass_core::template::{Evaluate, Template};
use windlass_core::turn::effect_key;

/// The name of the generated runbook and of its pipeline.
const NAME: &str = "undo";
/// How many undos are looked through for those of one run.
const EARLIER_MAX: usize = 500;
/// The variable that names the run whose effects are taken back.
const OF: &str = "run";

/// Whether something can be taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It can.
    Ready,
    /// Somebody changed it since; it is left alone unless that is forced.
    Conflict(String),
    /// It cannot, and why.
    Not(String),
}

/// One effect of a run, and how it would be taken back.
#[derive(Clone, Debug)]
pub struct Item {
    /// The step that did it.
    pub step: StepId,
    /// Its receipt.
    pub receipt: Option<Box<Receipt>>,
    /// Whether it can be taken back.
    pub state: State,
    /// By which step.
    def: Option<Box<StepDef>>,
}

impl Item {
    /// As it is shown.
    #[must_use]
    pub fn json(&self) -> Value {
        let (state, reason) = match &self.state {
            State::Ready => ("ready", None),
            State::Conflict(reason) => ("conflict", Some(reason)),
            State::Not(reason) => ("irreversible", Some(reason)),
        };
        let mut item = json!({ "step": self.step, "state": state });
        if let Some(reason) = reason {
            item["reason"] = json!(reason);
        }
        if let Some(receipt) = &self.receipt {
            item["receipt"] = json!(receipt.id.to_string());
            item["did"] =
                json!({ "tool": receipt.tool, "operation": receipt.operation, "target": receipt.target });
        }
        item["undo"] = match self.def.as_ref().map(|def| &def.kind) {
            Some(Kind::Tool { tool, operation, target, with, .. }) => {
                json!({ "tool": tool, "operation": operation, "target": plain(target), "fields": plain(with) })
            }
            Some(Kind::Run { command }) => json!({ "tool": "shell", "command": command }),
            Some(_) | None => Value::Null,
        };
        item
    }
}

/// A template without expressions, as it is shown.
fn plain(template: &Template) -> Value {
    template.render(&windlass_core::template::NoExpressions, &Map::new()).unwrap_or(Value::Null)
}

/// What an undo of a run would do, latest effect first. Nothing is done, but the other sides are asked.
///
/// # Errors
/// A run that is not over.
pub async fn plan(app: &App, run: RunId) -> Result<Vec<Item>, (Code, String)> {
    let evaluate = app.evaluate.clone();
    let found = app.look(move |store| gather(store, run, &*evaluate)).await;
    let (tenant, mut items) = found.map_err(|problem| (problem.code, problem.detail))??;
    let tools = Tools::new(app.tools.clone()).map_err(|why| (Code::Internal, why))?;
    let secrets = Arc::new(Secrets::new(app.home.root()));
    for item in &mut items {
        let (State::Ready, Some(receipt)) = (&item.state, &item.receipt) else { continue };
        let Some(reverse) = receipt.reverse.as_ref().filter(|_| is_reversal(item)) else { continue };
        let session = Session::new(tenant.clone(), secrets.clone());
        let Ok(call) = question(reverse, &session) else { continue };
        let left = receipt.response.clone().unwrap_or(Value::Null);
        if let Current::Changed(why) = tools.current(&call, &left, &session).await {
            item.state = State::Conflict(session.mask(&why));
        }
    }
    Ok(items)
}

/// Whether an item is taken back by what its receipt says, and not by a compensation.
fn is_reversal(item: &Item) -> bool {
    let tool =
        item.receipt.as_ref().and_then(|receipt| receipt.reverse.as_ref()).map(|reverse| &reverse.tool);
    matches!(item.def.as_ref().map(|def| &def.kind), Some(Kind::Tool { tool: by, .. }) if Some(by) == tool)
}

/// The call that would take something back, for looking at what it would find.
fn question(reverse: &Reversal, session: &Session) -> Result<Call, crate::tools::Trouble> {
    let with = with_of(&reverse.fields);
    let (fields, secret_places) = session.resolve(&with, &reverse.fields)?;
    let Value::Object(fields) = fields else { return Err(crate::tools::Trouble::input("no fields")) };
    Ok(Call {
        tool: reverse.tool.to_string(),
        operation: reverse.operation.to_string(),
        target: reverse.target.to_string(),
        fields,
        secret_places,
        key: String::new(),
        attempt: 1,
        timeout: TIME_MAX,
    })
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

type Gathered = Result<(Name, Vec<Item>), (Code, String)>;

/// What the records say about a run's effects.
fn gather(store: &mut Embedded, id: RunId, evaluate: &dyn Evaluate) -> Gathered {
    use windlass_engine::port::Store as _;
    let failed = |what: String| (Code::Unavailable, what);
    store.load(&[StreamId::Run(id)]).map_err(|fault| failed(fault.to_string()))?;
    let missing = || (Code::NotFound, format!("there is no run `{id}`"));
    let home = &store.state().run(id).ok_or_else(missing)?.born.home;
    let (tenant, namespace) = (home.tenant.clone(), home.namespace.clone());
    let earlier = taken_back(store, (&tenant, &namespace), id)?;
    let run = store.state().run(id).ok_or_else(missing)?;
    if !run.is_terminal() {
        let text = format!("the run is {}: cancel it first, its compensations run then", run.status());
        return Err((Code::RunInvalidTransition, text));
    }
    let def = store.pipeline(run).ok_or_else(|| failed("the run's runbook is not there".to_owned()))?;
    let undone: BTreeSet<u32> = run
        .steps
        .iter()
        .filter(|step| step.status == Status::Succeeded)
        .filter_map(|step| step.compensates)
        .collect();
    let mut steps: Vec<(u32, &Step)> = (0..).zip(&run.steps).collect();
    steps.retain(|(place, step)| {
        step.status == Status::Succeeded
            && step.section != Section::Compensate
            && !undone.contains(place)
            && !earlier.contains(id_of(step).as_str())
    });
    steps.sort_by_key(|(_, step)| std::cmp::Reverse(step.ended));
    let items = steps.into_iter().filter_map(|(_, step)| item(store, run, def, step, evaluate));
    Ok((tenant, items.collect()))
}

/// The names of the steps by which earlier undos of the run took something back. A command leaves no receipt, so
/// only this tells that it was run.
fn taken_back(
    store: &mut Embedded,
    (tenant, namespace): (&Name, &Name),
    of: RunId,
) -> Result<BTreeSet<String>, (Code, String)> {
    use windlass_engine::port::Store as _;
    let pipeline = Some(Name::clean(NAME));
    let mut filter = RunFilter { pipeline, limit: EARLIER_MAX, ..RunFilter::of(tenant, namespace) };
    let (of, mut seen) = (of.to_string(), 0);
    let mut ids: Vec<RunId> = Vec::new();
    while seen < EARLIER_MAX {
        // What cannot be read may have taken something back, and that must not happen twice.
        let (runs, next) = store.list_runs(&filter).map_err(|error| (error.code(), error.to_string()))?;
        seen += runs.len();
        let ours = runs.iter().filter(|run| run["correlation_id"] == of.as_str());
        ids.extend(ours.filter_map(|run| RunId::parse(run["id"].as_str()?).ok()));
        filter.before = next;
        if next.is_none() {
            break;
        }
    }
    let mut names = BTreeSet::new();
    for id in ids {
        store.load(&[StreamId::Run(id)]).map_err(|fault| (Code::Unavailable, fault.to_string()))?;
        let steps = store.state().run(id).map(|run| run.steps.as_slice()).unwrap_or_default();
        let done = steps.iter().filter(|step| step.status == Status::Succeeded && step.semantics.is_some());
        // What has a receipt says for itself that it was reversed.
        names.extend(done.filter(|step| !step.writes()).map(|step| step.id.to_string()));
    }
    Ok(names)
}

/// What becomes of one step; none where it did nothing outside and declares nothing.
fn item(store: &Embedded, run: &Run, def: &Pipeline, step: &Step, evaluate: &dyn Evaluate) -> Option<Item> {
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
    let mut item = Item { step: step.id.clone(), receipt: receipt.clone(), state: State::Ready, def: None };
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
    match node.compensate {
        Compensate::Exempt => {
            item.state = not("the runbook exempts it".to_owned());
            return item.receipt.is_some().then_some(item);
        }
        // A `foreach` is taken back item by item.
        Compensate::With(_) if step.group.is_some() && node.foreach.is_some() => return None,
        Compensate::With(with) => {
            match scope::compensation(run, def, def.node(with)?, step, evaluate) {
                Ok(Some(with)) => item.def = Some(Box::new(compensating(with, run, step, reverses))),
                Ok(None) => item.state = not("its compensation's condition does not hold".to_owned()),
                Err(why) => item.state = not(why),
            }
            return Some(item);
        }
        Compensate::Undeclared => {}
    }
    let receipt = receipt.filter(|receipt| receipt.status == Outcome::Succeeded)?;
    match (&receipt.reverse, reverses) {
        (Some(reverse), Some(reverses)) if receipt.reversible => {
            item.def = Some(Box::new(reversing(reverse, step, reverses)));
        }
        (_, _) => item.state = not(format!("{} cannot be taken back", receipt.tool)),
    }
    Some(item)
}

/// The step that a compensation becomes.
fn compensating(with: StepDef, run: &Run, of: &Step, reverses: Option<Reverses>) -> StepDef {
    let key = format!("undo:{}:{}", run.id(), of.id);
    StepDef {
        id: id_of(of),
        compensate: Compensate::Undeclared,
        effect: Some(with.effect.unwrap_or(Semantics::Idempotent)),
        idempotency_key: Some(with.idempotency_key.unwrap_or_else(|| Template::Literal(key.into()))),
        key_scope: KeyScope::Tenant,
        reverses,
        ..with
    }
}

/// The step that a reversal becomes.
fn reversing(reverse: &Reversal, of: &Step, reverses: Reverses) -> StepDef {
    let known = tools::find(reverse.tool.as_str());
    let kind = Kind::Tool {
        tool: reverse.tool.clone(),
        operation: reverse.operation.clone(),
        target: Template::Literal(reverse.target.as_str().into()),
        with: with_of(&reverse.fields),
        writes: true,
        risk: known.map_or(Risk::High, |tool| tool.risk),
    };
    let semantics = known.and_then(|tool| tool.semantics_of(reverse.operation.as_str()));
    let key = format!("undo:{}", reverses.receipt);
    StepDef {
        id: id_of(of),
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

/// The name of the step that takes another one back. Steps of a run have names of their own, so these have too.
fn id_of(of: &Step) -> Name {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' };
    let name: String = of.id.as_str().chars().map(plain).collect();
    Name::clean(&format!("undo-{name}-{}", of.ended))
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
    };
    let hash = Digest::of(&[b"windlass undo v1\n", &canonical::bytes(&json!(runbook))]);
    let vars = json!({ OF: run.to_string() });
    Some(Undo { runbook, hash, pipeline: Name::clean(NAME), vars })
}

/// The receipts of a run, in the order of its steps.
#[must_use]
pub fn receipts(store: &mut Embedded, id: RunId) -> Option<Vec<(Scoped, Receipt)>> {
    use windlass_engine::port::Store as _;
    store.load(&[StreamId::Run(id)]).ok()?;
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
