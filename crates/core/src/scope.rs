//! Scope: what names in expressions mean, and what is evaluated when a step is reached.
//!
//! `vars`, `steps.ID.output`, `steps.ID.status`, `item`, `run.id`, `output` (in a compensation), `error` (after a
//! failure) and `run.status` (in `on_failure` and `finally`: how the run is about to end). Of each only what an expression names is built. Inside a group that is repeated, `steps.ID` means the
//! instance of the same repetition.

use crate::digest::Digest;
use crate::guard::Guard;
use crate::id::{Name, StepId};
use crate::machine::Given;
use crate::origin::without_rounds;
use crate::packed::Packed;
use crate::pipeline;
use crate::receipt::{Action, Semantics};
use crate::run::{Run, Section};
use crate::runbook::{Kind, Pipeline, StepDef, WaitFor};
use crate::small;
use crate::step::{Gate, GroupKind, Status, Step};
use crate::template::{Evaluate, Scope, Template, VALUES_LEN_MAX};
use alloc::borrow::Cow;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde_json::{Map, Value, json};

/// So many bytes are read over in the time in which an expression looks at one.
const OVER: usize = 2;
/// How much work it is to see whether a step is one that an expression names.
const STEP_WORK: usize = 32;

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
    given.evaluate.evaluate(expr, &Names::of(run, context))
}

/// The value of a template.
fn render(run: &Run, context: &Context<'_>, template: &Template, given: &Given<'_>) -> Result<Value, String> {
    template.render(given.evaluate, &Names::of(run, context))
}

fn render_name(
    run: &Run,
    context: &Context<'_>,
    template: &Template,
    given: &Given<'_>,
) -> Result<Name, String> {
    template.render_name(given.evaluate, &Names::of(run, context))
}

fn render_map<K: ToString>(
    run: &Run,
    context: &Context<'_>,
    map: &small::Map<K, Template>,
    given: &Given<'_>,
) -> Result<Map<String, Value>, String> {
    map.iter().map(|(key, t)| Ok((key.to_string(), render(run, context, t, given)?))).collect()
}

/// Everything an expression can name. Nothing of it is built before an expression names it.
struct Names<'a> {
    run: &'a Run,
    vars: &'a Packed,
    def: Option<&'a Pipeline>,
    context: Option<&'a Context<'a>>,
}

impl<'a> Names<'a> {
    fn of(run: &'a Run, context: &'a Context<'a>) -> Names<'a> {
        Names { run, vars: &run.vars, def: context.def, context: Some(context) }
    }

    fn steps(&self, wanted: Option<&BTreeSet<String>>) -> Result<Value, String> {
        let suffix =
            self.context.map_or("", |c| c.id.as_str().strip_prefix(c.node.id.as_str()).unwrap_or(""));
        steps(self.run, self.def, suffix, wanted).map(Value::Object)
    }
}

impl Scope for Names<'_> {
    fn get(&self, name: &str, fields: Option<&BTreeSet<String>>) -> Result<Option<Cow<'_, Value>>, String> {
        let Names { run, vars, context, .. } = *self;
        let value = match name {
            "vars" => Some(fields.map_or_else(|| vars.get(), |fields| vars.fields(fields))),
            "run" => Some(match run.section {
                Section::Main | Section::Compensate => json!({ "id": run.id().to_string() }),
                Section::OnFailure | Section::Finally => {
                    json!({ "id": run.id().to_string(), "status": pipeline::outcome(run).as_str() })
                }
            }),
            "steps" => Some(self.steps(fields)?),
            "error" => run.failure.as_ref().map(|failure| {
                let step = failure.0.as_ref().map(ToString::to_string);
                json!({ "code": failure.1.code.as_str(), "message": failure.1.message, "step": step })
            }),
            "item" => context.and_then(|context| item(run, context)),
            "output" => context.and_then(|context| undone(run, context)).map(|step| shown(step.output())),
            // tidy: there are no other names.
            _ => None,
        };
        Ok(value.map(Cow::Owned))
    }

    fn reads(&self, name: &str) -> usize {
        match name {
            // What is not wanted is read over.
            "vars" => self.vars.as_str().len() / OVER,
            "item" => {
                let items = self.context.and_then(|context| around_item(self.run, context));
                items.map_or(0, |(list, _)| list.as_str().len() / OVER)
            }
            "steps" => self.run.steps.len() * STEP_WORK,
            // tidy: the others are found at once.
            _ => 0,
        }
    }
}

/// What a step gave, for expressions: one that gave nothing has an empty map, so that `has` can ask about it.
fn shown(output: Option<Value>) -> Value {
    output.filter(|output| !output.is_null()).unwrap_or_else(|| Value::Object(Map::new()))
}

/// The steps an expression can see, or those of them that it names: of several instances of one definition, the one of
/// the nearest item, and of several tries the last. One that was not reached is `pending`: what runs at the end can ask
/// about every step.
fn steps(
    run: &Run,
    def: Option<&Pipeline>,
    suffix: &str,
    wanted: Option<&BTreeSet<String>>,
) -> Result<Map<String, Value>, String> {
    let is_wanted = |id: &str| wanted.is_none_or(|wanted| wanted.contains(id));
    let mut seen: BTreeMap<&str, (String, &Step)> = BTreeMap::new();
    let suffix = items_of(suffix);
    for step in &run.steps {
        let id = step.id.as_str();
        let base = id.find(['[', '#']).map_or(id, |at| &id[..at]);
        if !is_wanted(base) {
            continue;
        }
        let own = items_of(&id[base.len()..]);
        if suffix.starts_with(&own) && seen.get(base).is_none_or(|(other, _)| other.len() <= own.len()) {
            seen.insert(base, (own, step));
        }
    }
    let mut room = VALUES_LEN_MAX;
    for (base, (_, step)) in &seen {
        room = room.checked_sub(output_len(run, step)).ok_or_else(|| {
            alloc::format!("what `steps.{base}` and others gave is too large; let a step pick what is needed")
        })?;
    }
    let entry = |id: &str, output: Option<Value>, status: Status| {
        (id.to_string(), json!({ "output": shown(output), "status": status.as_str() }))
    };
    let nodes = def.map_or(&[][..], |def| &def.nodes);
    let unseen =
        nodes.iter().map(|node| node.id.as_str()).filter(|id| is_wanted(id) && !seen.contains_key(id));
    let mut steps: Map<String, Value> = unseen.map(|id| entry(id, None, Status::Pending)).collect();
    steps.extend(seen.iter().map(|(base, (_, step))| entry(base, output(run, step), step.status)));
    Ok(steps)
}

/// What a step gave. A `foreach` that did not succeed recorded nothing; what its items gave is still there.
#[must_use]
pub fn output(run: &Run, step: &Step) -> Option<Value> {
    step.output().or_else(|| partial(run, step).and_then(|place| group_output(run, place, step)))
}

/// How long the text is of what a step gave.
fn output_len(run: &Run, step: &Step) -> usize {
    match &step.output {
        Some(output) => output.as_str().len(),
        None => {
            let recorded = step.status == Status::Succeeded && step.group.is_some();
            let place = partial(run, step).or_else(|| run.place(&step.id).filter(|_| recorded));
            place.map_or(0, |place| members_len(run, place))
        }
    }
}

/// The place of a `foreach` that ended without success.
fn partial(run: &Run, step: &Step) -> Option<u32> {
    let failed = matches!(step.status, Status::Failed | Status::Cancelled);
    let foreach = step.group.is_some_and(|group| group.shape.kind == GroupKind::Foreach);
    run.place(&step.id).filter(|_| failed && foreach)
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
    undone_from(run, context.compensates, context.parent)
}

/// The step that a step takes back, or the group around it.
pub(crate) fn undone_by<'a>(run: &'a Run, step: &'a Step) -> Option<&'a Step> {
    if step.section != Section::Compensate {
        return None;
    }
    let at = |place: Option<u32>| place.and_then(|place| run.at(place));
    undone_from(run, at(step.compensates), at(step.parent))
}

fn undone_from<'a>(
    run: &'a Run,
    mut undone: Option<&'a Step>,
    mut group: Option<&'a Step>,
) -> Option<&'a Step> {
    while let (None, Some(around)) = (undone, group) {
        undone = around.compensates.and_then(|i| run.at(i));
        group = around.parent.and_then(|p| run.at(p));
    }
    undone
}

/// The item of the nearest `foreach` around.
fn item(run: &Run, context: &Context<'_>) -> Option<Value> {
    let (items, index) = around_item(run, context)?;
    items.item(index as usize)
}

/// The items of the nearest `foreach` around, and which of them this is.
fn around_item<'a>(run: &'a Run, context: &Context<'a>) -> Option<(&'a Packed, u32)> {
    let (mut index, mut group) = (context.item, context.parent);
    let mut undone = undone(run, context);
    loop {
        if let (Some(index), Some(around)) = (index, group) {
            return Some((around.input.as_ref()?, index));
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

/// What a step needs to pass, and what it is given: evaluated once, when it is reached.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    pub(crate) gates: Vec<Gate>,
    pub(crate) key: Option<Name>,
    pub(crate) action_hash: Option<Digest>,
    pub(crate) semantics: Option<Semantics>,
    pub(crate) input: Option<Value>,
}

/// What can be done about an attempt of which nobody knows whether it had its effect; none where it has none. This is the one
/// place where that is chosen for a step that does not say.
pub(crate) fn semantics(node: &StepDef, is_keyed: bool) -> Option<Semantics> {
    match &node.kind {
        // A command that names its effect has one: at least once, as every command.
        Kind::Run { .. } => node.effect.or(is_keyed.then_some(Semantics::Idempotent)),
        Kind::Tool { writes, .. } => writes.then(|| node.effect.unwrap_or(Semantics::AtMostOnce)),
        Kind::Agent { .. }
        | Kind::Parallel { .. }
        | Kind::Steps { .. }
        | Kind::Strategy { .. }
        | Kind::Call { .. }
        | Kind::Approve { .. }
        | Kind::Wait { .. } => node.effect,
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
    let mut out = Prepared::default();
    if let Some(key) = &node.idempotency_key {
        out.key = Some(render_name(run, context, key, given)?);
    }
    out.semantics = semantics(node, out.key.is_some());
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
        Kind::Tool { tool, operation, target, with, writes: _, risk } => {
            let action = Action {
                tool: tool.clone(),
                operation: operation.clone(),
                target: render_name(run, context, target, given)?,
                fields: render(run, context, with, given)?,
                risk: node.risk.map_or(*risk, |own| own.max(*risk)),
            };
            out.action_hash = Some(action.hash());
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
    // What is asked is what became of the attempt, which had these variables.
    let names = Names { vars: run.vars_of(step), ..Names::of(run, &context) };
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

/// The guards before or after a step, with what their expressions give in their place; none of them is evaluated where there
/// is no expression.
///
/// # Errors
/// The first expression that fails, for people.
pub fn guards(
    run: &Run,
    def: &Pipeline,
    step: &Step,
    after: bool,
    evaluate: &dyn Evaluate,
) -> Result<Vec<Guard>, String> {
    let Some(node) = def.node(step.node) else { return Ok(Vec::new()) };
    let guards = if after { &node.after } else { &node.before };
    if !guards.iter().any(|guard| guard.condition.is_made()) {
        return Ok(guards.clone());
    }
    let context = standing(run, def, node, step);
    let names = Names { vars: run.vars_of(step), ..Names::of(run, &context) };
    let render = |template: &Template| template.render(evaluate, &names);
    let asked = |guard: &Guard| -> Result<Guard, String> {
        Ok(Guard { condition: guard.condition.evaluated(&render)?, ..guard.clone() })
    };
    guards.iter().map(asked).collect()
}

/// Where the expressions of a step that was reached stand.
fn standing<'a>(run: &'a Run, def: &'a Pipeline, node: &'a StepDef, step: &'a Step) -> Context<'a> {
    let parent = step.parent.and_then(|place| run.at(place));
    let compensates = step.compensates.and_then(|place| run.at(place));
    Context { parent, item: step.item, compensates, id: &step.id, node, def: Some(def) }
}

/// The environment variable in which a command finds a variable of its run.
fn variable(name: &str) -> String {
    let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    alloc::format!("WL_VAR_{}", name.chars().map(upper).collect::<String>())
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
    let names = Names::of(run, &context);
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
        // The run that carries it out has variables of its own: the command is given those of this one.
        Kind::Run { .. } => {
            for (name, value) in run.vars.get().as_object().into_iter().flatten() {
                let text = value.as_str().map_or_else(|| value.to_string(), ToString::to_string);
                def.env.insert(variable(name), Template::Literal(Value::String(text)));
            }
        }
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

/// How long the texts are of what the members of a group gave.
fn members_len(run: &Run, place: u32) -> usize {
    members(run, place).filter_map(|step| step.output.as_ref()).map(|output| output.as_str().len()).sum()
}

/// What a group gives: a list for a `foreach`, a map for steps side by side, else what the last one gave. Where that
/// is more than any expression could look at it is not put together: each member keeps what it gave.
#[must_use]
pub(crate) fn group_output(run: &Run, place: u32, step: &Step) -> Option<Value> {
    let shape = step.group?.shape;
    let gathers = matches!(shape.kind, GroupKind::Foreach | GroupKind::Parallel);
    if gathers && members_len(run, place) > VALUES_LEN_MAX {
        return None;
    }
    let members = members(run, place);
    let output = |s: &Step| s.output().unwrap_or(Value::Null);
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
    let names = Names { run, vars: &run.vars, def: Some(def), context: None };
    let rendered: Result<Map<_, _>, String> =
        def.outputs.iter().map(|(key, t)| Ok((key.to_string(), t.render(given.evaluate, &names)?))).collect();
    rendered.map(|map| Some(Value::Object(map)))
}

/// The proposed action of a step: what policy sees and a human approves. Made from what was recorded when the step
/// was prepared and from the pinned definition, so it is the same whenever it is asked for. Everything that a command is
/// given is part of it: text, directory, shell, `env:` and the variables.
#[must_use]
pub fn action(run: &Run, node: &StepDef, step: &Step) -> Action {
    if let (Kind::Tool { .. }, Some(input)) = (&node.kind, &step.input)
        && let Ok(action) = serde_json::from_str(input.as_str())
    {
        return action;
    }
    let input = step.input();
    let (operation, what) = match &node.kind {
        Kind::Run { command } => ("run", of_command(run, node, step, command)),
        Kind::Agent { agent, .. } => ("work", json!({ "agent": agent, "input": input })),
        // One that speaks for others has what it shows of them in its input.
        Kind::Approve { steps, .. } if !steps.is_empty() => ("approve", json!(input)),
        // A plain one lets everything after it go on, with the variables that there are.
        Kind::Approve { .. } => {
            let mut what = json!({ "message": input });
            if let Some(vars) = shown_vars(run, step) {
                what["vars"] = vars;
            }
            ("approve", what)
        }
        Kind::Tool { .. } => ("call", json!({ "input": input })),
        Kind::Call { pipeline, .. } => ("call", json!({ "pipeline": pipeline, "vars": input })),
        Kind::Parallel { .. } | Kind::Steps { .. } | Kind::Strategy { .. } | Kind::Wait { .. } => {
            ("none", Value::Null)
        }
    };
    // Another try at the group around a command with an effect means the same action.
    let declares = node.effect.is_some() || node.idempotency_key.is_some();
    let effective = declares && matches!(node.kind, Kind::Run { .. });
    let target = if effective { Name::clean(&without_rounds(step.id.as_str())) } else { step.id.clone() };
    Action {
        tool: step.tool.clone(),
        operation: Name::clean(operation),
        target,
        fields: what,
        risk: node.risk.unwrap_or(crate::policy::Risk::Low),
    }
}

/// The hash of [`action`]: the recorded one where the step has it.
#[must_use]
pub fn action_hash(run: &Run, node: &StepDef, step: &Step) -> Digest {
    step.action_hash().copied().unwrap_or_else(|| action(run, node, step).hash())
}

/// What an `approve` step asks about; none of any other step.
#[must_use]
pub fn question(run: &Run, def: &Pipeline, step: &Step) -> Option<Digest> {
    let node = def.node(step.node).filter(|node| matches!(node.kind, Kind::Approve { .. }))?;
    Some(action_hash(run, node, step))
}

fn of_command(run: &Run, node: &StepDef, step: &Step, command: &str) -> Value {
    let mut what = Map::new();
    what.insert("command".to_string(), json!(command));
    let input = step.input();
    let part = |name: &str| input.as_ref().and_then(|input| input.get(name)).cloned();
    let (cwd, dir) = (run.born.home.cwd.as_str(), part("dir"));
    let dir = match dir.as_ref().and_then(Value::as_str) {
        Some(dir) if dir.starts_with('/') || cwd.is_empty() => dir.to_string(),
        Some(dir) => alloc::format!("{cwd}/{dir}"),
        None => cwd.to_string(),
    };
    if !dir.is_empty() {
        what.insert("dir".to_string(), Value::String(dir));
    }
    let rest = [
        ("shell", node.shell.as_ref().map(|shell| json!(shell))),
        ("env", part("env")),
        ("vars", shown_vars(run, step)),
    ];
    what.extend(rest.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))));
    Value::Object(what)
}

/// The most bytes of a variable's value that an action holds as they are, and of all of them. What is longer is there as
/// its hash and its beginning: nobody reads it on a card, and it cannot be exchanged all the same.
pub const SHOWN_LEN_MAX: usize = 1_024;
/// The most bytes of all values.
pub const SHOWN_SUM_MAX: usize = 8 * 1_024;
/// How many characters of a longer value are shown.
const BEGINS: usize = 128;

/// The variables that a step is given, as its action holds them.
fn shown_vars(run: &Run, step: &Step) -> Option<Value> {
    let Value::Object(vars) = run.vars_of(step).get() else { return None };
    let mut left = SHOWN_SUM_MAX;
    let mut shown = Map::new();
    // In the order of their names, whatever order the map has: which values are shortened is the same in every process.
    let vars: BTreeMap<String, Value> = vars.into_iter().collect();
    for (name, value) in vars {
        let bytes = crate::canonical::bytes(&value);
        let whole = bytes.len() <= SHOWN_LEN_MAX.min(left);
        left = left.saturating_sub(if whole { bytes.len() } else { BEGINS });
        let short = || {
            let text = value.as_str().map_or_else(|| value.to_string(), ToString::to_string);
            let begins: String = text.chars().take(BEGINS).collect();
            json!({ "begins": begins, "bytes": bytes.len(), "sha256": Digest::of(&[&bytes]) })
        };
        let value = if whole { value } else { short() };
        shown.insert(name, value);
    }
    (!shown.is_empty()).then_some(Value::Object(shown))
}
