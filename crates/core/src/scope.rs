//! Scope: what names in expressions mean, and what is evaluated when a step is reached.
//!
//! `vars`, `steps.ID.output`, `steps.ID.status`, `item`, `run.id`, `output` (in a compensation) and `error` (after a
//! failure). It is built only where there is an expression at all. Inside a group that is repeated, `steps.ID`
//! means the instance of the same repetition.

use crate::digest::Digest;
use crate::id::{Name, StepId};
use crate::machine::Given;
use crate::pipeline::Prepared;
use crate::receipt::{Action, Semantics};
use crate::run::Run;
use crate::runbook::{Kind, Pipeline, StepDef, WaitFor};
use crate::small;
use crate::step::{Gate, GroupKind, Status, Step};
use crate::template::{Evaluate, Template};
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde_json::{Map, Value, json};

/// Where an expression stands.
pub struct Context<'a> {
    /// The group around it.
    pub parent: Option<&'a Step>,
    /// Which item it is for, where it is an instance itself.
    pub item: Option<u32>,
    /// The step it takes back.
    pub compensates: Option<&'a Step>,
    /// The name of the step it belongs to.
    pub id: &'a StepId,
    /// The definition it belongs to.
    pub node: &'a StepDef,
    /// The pipeline, whose steps it can name. None where it is evaluated ahead of its time: what was not reached then
    /// is not known yet, rather than known as not reached.
    pub def: Option<&'a Pipeline>,
}

/// The value of an expression.
///
/// # Errors
/// The evaluator's message.
pub fn evaluate(run: &Run, context: &Context<'_>, expr: &str, given: &Given<'_>) -> Result<Value, String> {
    given.evaluate.evaluate(expr, &names(run, context.def, Some(context)))
}

/// The value of a template. Literal ones cost no scope.
fn render(run: &Run, context: &Context<'_>, template: &Template, given: &Given<'_>) -> Result<Value, String> {
    if template.is_literal() {
        return template.render(given.evaluate, &Map::new());
    }
    template.render(given.evaluate, &names(run, context.def, Some(context)))
}

fn render_name(
    run: &Run,
    context: &Context<'_>,
    template: &Template,
    given: &Given<'_>,
) -> Result<Name, String> {
    if template.is_literal() {
        return template.render_name(given.evaluate, &Map::new());
    }
    template.render_name(given.evaluate, &names(run, context.def, Some(context)))
}

fn render_map<K: ToString>(
    run: &Run,
    context: &Context<'_>,
    map: &small::Map<K, Template>,
    given: &Given<'_>,
) -> Result<Map<String, Value>, String> {
    map.iter().map(|(key, t)| Ok((key.to_string(), render(run, context, t, given)?))).collect()
}

/// Everything an expression can name.
fn names(run: &Run, def: Option<&Pipeline>, context: Option<&Context<'_>>) -> Map<String, Value> {
    let mut names = Map::new();
    names.insert("vars".to_string(), run.vars.get());
    names.insert("run".to_string(), json!({ "id": run.id().to_string() }));
    let suffix = context.map_or("", |c| c.id.as_str().strip_prefix(c.node.id.as_str()).unwrap_or(""));
    names.insert("steps".to_string(), Value::Object(steps(run, def, suffix)));
    if let Some(failure) = &run.failure {
        let step = failure.0.as_ref().map(ToString::to_string);
        let error = json!({ "code": failure.1.code.as_str(), "message": failure.1.message, "step": step });
        names.insert("error".to_string(), error);
    }
    if let Some(context) = context {
        if let Some(item) = item(run, context) {
            names.insert("item".to_string(), item);
        }
        if let Some(step) = undone(run, context) {
            names.insert("output".to_string(), shown(step.output()));
        }
    }
    names
}

/// What a step gave, for expressions: one that gave nothing has an empty map, so that `has` can ask about it.
fn shown(output: Option<Value>) -> Value {
    output.filter(|output| !output.is_null()).unwrap_or_else(|| Value::Object(Map::new()))
}

/// The steps an expression can see: of several instances of one definition, the one of the nearest item, and of
/// several tries the last. One that was not reached is `pending`: what runs at the end can ask about every step.
fn steps(run: &Run, def: Option<&Pipeline>, suffix: &str) -> Map<String, Value> {
    let mut seen: BTreeMap<&str, (String, &Step)> = BTreeMap::new();
    let suffix = items_of(suffix);
    for step in &run.steps {
        let id = step.id.as_str();
        let base = id.find(['[', '#']).map_or(id, |at| &id[..at]);
        let own = items_of(&id[base.len()..]);
        if suffix.starts_with(&own) && seen.get(base).is_none_or(|(other, _)| other.len() <= own.len()) {
            seen.insert(base, (own, step));
        }
    }
    let entry = |id: &str, output: Option<Value>, status: Status| {
        (id.to_string(), json!({ "output": shown(output), "status": status.as_str() }))
    };
    let nodes = def.map_or(&[][..], |def| &def.nodes);
    let unseen = nodes.iter().map(|node| node.id.as_str()).filter(|id| !seen.contains_key(id));
    let mut steps: Map<String, Value> = unseen.map(|id| entry(id, None, Status::Pending)).collect();
    steps.extend(seen.iter().map(|(base, (_, step))| entry(base, output(run, step), step.status)));
    steps
}

/// What a step gave. A `foreach` that did not succeed recorded nothing; what its items gave is still there.
#[must_use]
pub fn output(run: &Run, step: &Step) -> Option<Value> {
    let partial = || {
        let failed = matches!(step.status, Status::Failed | Status::Cancelled);
        let foreach = step.group.is_some_and(|group| group.shape.kind == GroupKind::Foreach);
        let place = run.place(&step.id).filter(|_| failed && foreach)?;
        group_output(run, place, step)
    };
    step.output().or_else(partial)
}

/// The items in a name's suffix, without the tries: `[0]#2[3]` is for `[0][3]`.
fn items_of(suffix: &str) -> String {
    let mut tried = false;
    let item = |c: &char| {
        tried = *c == '#' || tried && *c != '[';
        !tried
    };
    suffix.chars().filter(item).collect()
}

/// The step that a compensation around takes back.
fn undone<'a>(run: &'a Run, context: &Context<'a>) -> Option<&'a Step> {
    let mut group = context.parent;
    let mut undone = context.compensates;
    while let (None, Some(around)) = (undone, group) {
        undone = around.compensates.and_then(|i| run.at(i));
        group = around.parent.and_then(|p| run.at(p));
    }
    undone
}

/// The item of the nearest `foreach` around.
fn item(run: &Run, context: &Context<'_>) -> Option<Value> {
    let (mut index, mut group) = (context.item, context.parent);
    let mut undone = undone(run, context);
    loop {
        if let (Some(index), Some(around)) = (index, group) {
            return around.input.as_ref()?.item(index as usize);
        }
        // A compensation stands where the step it takes back stood.
        let around = match group {
            Some(around) => around,
            None => undone.take()?,
        };
        index = around.item;
        group = around.parent.and_then(|p| run.at(p));
    }
}

/// What a step needs to pass and what it is given.
///
/// # Errors
/// The first expression that fails, for people.
pub(crate) fn prepare(run: &Run, context: &Context<'_>, given: &Given<'_>) -> Result<Prepared, String> {
    let node = context.node;
    if let (Some(foreach), None) = (&node.foreach, context.item) {
        let over = render(run, context, &foreach.over, given)?;
        return Ok(Prepared { input: Some(items(over)?), ..Prepared::default() });
    }
    let mut out = Prepared { semantics: node.effect, ..Prepared::default() };
    if let Some(key) = &node.idempotency_key {
        out.key = Some(render_name(run, context, key, given)?);
    }
    let surroundings = || -> Result<Map<String, Value>, String> {
        let mut input = Map::new();
        if !node.env.is_empty() {
            input.insert("env".to_string(), Value::Object(render_map(run, context, &node.env, given)?));
        }
        if let Some(dir) = &node.dir {
            input.insert("dir".to_string(), render(run, context, dir, given)?);
        }
        Ok(input)
    };
    match &node.kind {
        Kind::Run { .. } => {
            out.input = Some(surroundings()?).filter(|map| !map.is_empty()).map(Value::Object);
        }
        Kind::Tool { tool, operation, target, with, writes, risk } => {
            let action = Action {
                tool: tool.clone(),
                operation: operation.clone(),
                target: render_name(run, context, target, given)?,
                fields: render(run, context, with, given)?,
                risk: node.risk.map_or(*risk, |own| own.max(*risk)),
            };
            out.action_hash = Some(action.hash());
            out.semantics = writes.then(|| node.effect.unwrap_or(Semantics::AtMostOnce));
            out.input = Some(json!(action));
        }
        Kind::Agent { prompt, .. } => {
            let mut input = surroundings()?;
            input.insert("prompt".to_string(), render(run, context, prompt, given)?);
            out.input = Some(Value::Object(input));
        }
        Kind::Call { vars, .. } => out.input = Some(Value::Object(render_map(run, context, vars, given)?)),
        Kind::Approve { message, .. } => out.input = Some(render(run, context, message, given)?),
        Kind::Wait { wait: WaitFor::Event { key: Some(key), .. } } => {
            out.key = Some(render_name(run, context, key, given)?);
        }
        Kind::Wait { .. } | Kind::Parallel { .. } | Kind::Steps { .. } | Kind::Strategy { .. } => {}
    }
    out.gates = gates(run, context, given)?;
    Ok(out)
}

/// What tells whether the effect of a lost attempt happened, rendered.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
    /// The tool that carried it out knows how to ask.
    Own,
    /// A call of a tool that only reads.
    Tool(Action),
    /// A command.
    Command(String),
}

/// The read by which a step of this definition reconciles.
///
/// # Errors
/// The first expression that fails, for people.
pub fn reading(run: &Run, def: &Pipeline, step: &Step, evaluate: &dyn Evaluate) -> Result<Reading, String> {
    let Some(node) = def.node(step.node) else { return Err("its definition is not there".to_string()) };
    let Some(read) = &node.reconcile else { return Ok(Reading::Own) };
    let context = standing(run, def, node, step);
    let names = names(run, context.def, Some(&context));
    match &**read {
        Kind::Run { command } => Ok(Reading::Command(command.clone())),
        Kind::Tool { tool, operation, target, with, risk, .. } => Ok(Reading::Tool(Action {
            tool: tool.clone(),
            operation: operation.clone(),
            target: target.render_name(evaluate, &names)?,
            fields: with.render(evaluate, &names)?,
            risk: *risk,
        })),
        Kind::Agent { .. }
        | Kind::Parallel { .. }
        | Kind::Steps { .. }
        | Kind::Strategy { .. }
        | Kind::Call { .. }
        | Kind::Approve { .. }
        | Kind::Wait { .. } => Err("only a command or a tool that reads can reconcile".to_string()),
    }
}

/// Where the expressions of a step that was reached stand.
fn standing<'a>(run: &'a Run, def: &'a Pipeline, node: &'a StepDef, step: &'a Step) -> Context<'a> {
    let parent = step.parent.and_then(|place| run.at(place));
    let compensates = step.compensates.and_then(|place| run.at(place));
    Context { parent, item: step.item, compensates, id: &step.id, node, def: Some(def) }
}

/// The compensation of a step with everything in it rendered, so that another run can carry it out; none where its
/// condition does not hold.
///
/// # Errors
/// The first expression that fails, or that it is of a kind that cannot stand alone.
pub fn compensation(
    run: &Run,
    pipeline: &Pipeline,
    with: &StepDef,
    of: &Step,
    evaluate: &dyn Evaluate,
) -> Result<Option<StepDef>, String> {
    let context = Context {
        parent: None,
        item: None,
        compensates: Some(of),
        id: &with.id,
        node: with,
        def: Some(pipeline),
    };
    let names = names(run, context.def, Some(&context));
    let mut def = with.clone();
    if let Some(when) = def.when.take() {
        match evaluate.evaluate(&when, &names)? {
            Value::Bool(true) => {}
            Value::Bool(false) => return Ok(None),
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
                return Err("its `when` is neither true nor false".to_string());
            }
        }
    }
    let fix = |template: &mut Template| -> Result<(), String> {
        *template = template.fixed(evaluate, &names)?;
        Ok(())
    };
    match &mut def.kind {
        Kind::Run { .. } => {}
        Kind::Tool { target, with, .. } => {
            fix(target)?;
            fix(with)?;
        }
        Kind::Agent { .. }
        | Kind::Parallel { .. }
        | Kind::Steps { .. }
        | Kind::Strategy { .. }
        | Kind::Call { .. }
        | Kind::Approve { .. }
        | Kind::Wait { .. } => return Err("its compensation is neither a command nor a tool".to_string()),
    }
    let rest = def.env.values_mut().chain(&mut def.dir).chain(&mut def.idempotency_key);
    let holds = def.lock.as_mut().map(|lock| &mut lock.name);
    rest.chain(holds).chain(def.semaphore.as_mut().map(|slots| &mut slots.name)).try_for_each(fix)?;
    if def.foreach.is_some() {
        return Err("its compensation runs for items".to_string());
    }
    Ok(Some(def))
}

/// The gates of a step: holds in the order of their names, so that no two steps wait for each other; guards last.
fn gates(run: &Run, context: &Context<'_>, given: &Given<'_>) -> Result<Vec<Gate>, String> {
    let node = context.node;
    let mut gates = Vec::new();
    if let Some(lock) = &node.lock {
        gates.push(Gate::Lock { name: render_name(run, context, &lock.name, given)?, overlap: lock.overlap });
    }
    if let Some(semaphore) = &node.semaphore {
        let name = render_name(run, context, &semaphore.name, given)?;
        gates.push(Gate::Slots { name, slots: semaphore.weight });
    }
    gates.sort_by(|a, b| hold_name(a).cmp(&hold_name(b)));
    if !node.before.is_empty() {
        gates.push(Gate::Guard);
    }
    Ok(gates)
}

fn hold_name(gate: &Gate) -> Option<&Name> {
    match gate {
        Gate::Lock { name, .. } | Gate::Slots { name, .. } => Some(name),
        Gate::Guard => None,
    }
}

/// The items of a `foreach`: a list, or the product of a map of lists.
fn items(over: Value) -> Result<Value, String> {
    match over {
        Value::Array(_) => Ok(over),
        Value::Object(map) => {
            let mut product: Vec<Map<String, Value>> = alloc::vec![Map::new()];
            // Maps have one order, that of their keys: the items are the same list in every process.
            let map: BTreeMap<String, Value> = map.into_iter().collect();
            for (key, list) in map {
                let Value::Array(list) = list else { return Err(alloc::format!("`{key}` is not a list")) };
                if product.len().saturating_mul(list.len()) > crate::runbook::ITEMS_MAX {
                    return Err("the product has more than 1000 items".to_string());
                }
                let with = |so_far: &Map<String, Value>, value: &Value| {
                    let mut next = so_far.clone();
                    next.insert(key.clone(), value.clone());
                    next
                };
                product = product.iter().flat_map(|so_far| list.iter().map(|v| with(so_far, v))).collect();
            }
            Ok(Value::Array(product.into_iter().map(Value::Object).collect()))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            Err("`foreach` needs a list, or a map of lists".to_string())
        }
    }
}

/// The members of a group's present try: one that is tried again keeps the earlier ones, as they ended.
pub(crate) fn members(run: &Run, place: u32) -> impl Iterator<Item = &Step> {
    let all = || run.steps.iter().filter(move |step| step.parent == Some(place));
    let now = run.at(place).and_then(|step| step.group).map_or(0, |group| group.next as usize);
    all().skip(all().count().saturating_sub(now))
}

/// What a group gives: a list for a `foreach`, a map for steps side by side, else what the last one gave.
#[must_use]
pub(crate) fn group_output(run: &Run, place: u32, step: &Step) -> Option<Value> {
    let members = members(run, place);
    let output = |s: &Step| s.output().unwrap_or(Value::Null);
    let shape = step.group?.shape;
    match shape.kind {
        GroupKind::Foreach => {
            let mut list: Vec<Value> = members.map(output).collect();
            // Items that were not begun have given nothing either: each has its place in the list.
            list.resize(list.len().max(shape.total as usize), Value::Null);
            Some(Value::Array(list))
        }
        GroupKind::Parallel => {
            let base = |s: &Step| {
                let id = s.id.as_str();
                id.find(['[', '#']).map_or(id, |at| &id[..at]).to_string()
            };
            Some(Value::Object(members.map(|s| (base(s), output(s))).collect()))
        }
        GroupKind::Sequence | GroupKind::Strategy => {
            members.filter(|s| s.status == Status::Succeeded).last().map(output).filter(|v| !v.is_null())
        }
    }
}

/// What a run gives to its caller.
///
/// # Errors
/// The first expression that fails.
pub(crate) fn outputs(run: &Run, def: &Pipeline, given: &Given<'_>) -> Result<Option<Value>, String> {
    if def.outputs.is_empty() {
        return Ok(None);
    }
    let names = names(run, Some(def), None);
    let rendered: Result<Map<_, _>, String> =
        def.outputs.iter().map(|(key, t)| Ok((key.to_string(), t.render(given.evaluate, &names)?))).collect();
    rendered.map(|map| Some(Value::Object(map)))
}

/// The proposed action of a step: what policy sees and a human approves. Made from what was recorded when the step
/// was reached and from the pinned definition, so it is the same whenever it is asked for.
#[must_use]
pub fn action(node: &StepDef, step: &Step) -> Action {
    if let (Kind::Tool { .. }, Some(input)) = (&node.kind, &step.input)
        && let Ok(action) = serde_json::from_str(input.as_str())
    {
        return action;
    }
    let input = step.input();
    let (operation, what) = match &node.kind {
        Kind::Run { command } => ("run", json!({ "command": command, "input": input })),
        Kind::Agent { agent, .. } => ("work", json!({ "agent": agent, "input": input })),
        // One that speaks for others has what it shows of them in its input.
        Kind::Approve { steps, .. } if !steps.is_empty() => ("approve", json!(input)),
        Kind::Approve { steps, .. } => ("approve", json!({ "message": input, "steps": steps })),
        Kind::Tool { .. } => ("call", json!({ "input": input })),
        Kind::Call { pipeline, .. } => ("call", json!({ "pipeline": pipeline, "vars": input })),
        Kind::Parallel { .. } | Kind::Steps { .. } | Kind::Strategy { .. } | Kind::Wait { .. } => {
            ("none", Value::Null)
        }
    };
    Action {
        tool: step.tool.clone(),
        operation: Name::clean(operation),
        target: step.id.clone(),
        fields: what,
        risk: node.risk.unwrap_or(crate::policy::Risk::Low),
    }
}

/// The hash of [`action`]: the recorded one where the step has it.
#[must_use]
pub fn action_hash(node: &StepDef, step: &Step) -> Digest {
    step.action_hash().copied().unwrap_or_else(|| action(node, step).hash())
}
