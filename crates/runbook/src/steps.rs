//! Steps: from nested YAML to one flat list, groups before their members.
//!
//! Every step becomes a node, compensations too. What the core's definition has no room for and the later checks need
//! (where a step stands in the file, what is around it) is kept beside the nodes.

use super::build::{Builder, Secrets, Stand};
use super::modifiers::{self, Inherited};
use super::problem::{Place, Problem};
use super::shape::{self, Shape};
use super::tables;
use super::tools::{self, EMIT, SAFE_METHODS, Tool, Tools, Writes};
use super::yaml::{self, Node, Value};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::approval::Tier;
use windlass_core::gate::APPROVAL_EXPIRES;
use windlass_core::id::Name;
use windlass_core::pattern;
use windlass_core::runbook::{ApproachDef, Compensate, Kind, NODES_MAX, Node as StepNode, StepDef, WaitFor};
use windlass_core::small;
use windlass_core::step::FailFast;
use windlass_core::strategy::{APPROACHES_MAX, Approach, FallbackCondition};
use windlass_core::template::{Part, Template};

/// Which list of the pipeline a step belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Section {
    Main,
    OnFailure,
    Finally,
}

/// What is known of a step beside its definition.
#[derive(Clone, Debug)]
pub(super) struct Meta {
    pub at: Place,
    /// The group around it; for a compensation the step that it takes back.
    pub parent: Option<StepNode>,
    /// Which list it belongs to.
    pub section: Section,
    /// The compensation that it is, or is part of.
    pub undo: Option<StepNode>,
    /// Whether it runs for items.
    pub foreach: bool,
    /// Whether its members run side by side.
    pub parallel: bool,
    /// Whether the runbook names it.
    pub named: bool,
}

/// A call of another pipeline.
#[derive(Debug)]
pub(super) struct Call {
    /// The called pipeline, and where it is named.
    pub pipeline: (Name, Place),
    /// The variables that are given, and where.
    pub vars: Vec<(Name, Place, Template)>,
}

/// The steps of a pipeline while they are built.
pub(super) struct Steps<'b, 'a> {
    pub builder: &'b mut Builder<'a>,
    /// The definitions, in their places. A group's is there when its members are.
    pub nodes: Vec<Option<StepDef>>,
    /// What is known beside them.
    pub metas: Vec<Meta>,
    pub calls: Vec<Call>,
    /// The steps that approvals speak for: the approval, its names and where they stand.
    pub approvals: Vec<(StepNode, Vec<(Name, Place)>)>,
    /// Agents and semaphores that steps use, and where they are named.
    pub names: Vec<(Declared, Name, Place)>,
    ids: Ids,
    /// How many environment variables all steps have together.
    pub env_count: usize,
}

/// What a runbook declares and steps use by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Declared {
    Agent,
    Semaphore,
}

/// Where a step is put.
#[derive(Clone, Copy)]
struct Around {
    parent: Option<StepNode>,
    section: Section,
    undo: Option<StepNode>,
}

/// Names of steps: those of the runbook, and those made up.
struct Ids {
    given: BTreeSet<String>,
    used: BTreeSet<String>,
    next: BTreeMap<String, u32>,
}

impl Ids {
    /// A name that no other step has. Made of what the step does and a number, so it is the same as long as the steps before
    /// it are.
    fn make(&mut self, base: &str, numbered: bool) -> Name {
        let next = self.next.entry(base.to_owned()).or_insert(0);
        loop {
            *next += 1;
            let id = if *next == 1 && !numbered { base.to_owned() } else { format!("{base}-{next}") };
            if !self.given.contains(&id) && self.used.insert(id.clone()) {
                return Name::clean(&id);
            }
        }
    }
}

/// Every `id` in a list of steps, however deep.
fn given_ids(node: &Node, ids: &mut BTreeSet<String>) {
    match &node.value {
        Value::Map(entries) => {
            for (key, value) in entries {
                match (key.text.as_str(), value.text()) {
                    ("id", Some(id)) => drop(ids.insert(id.to_owned())),
                    _ => given_ids(value, ids),
                }
            }
        }
        Value::List(items) => items.iter().for_each(|item| given_ids(item, ids)),
        Value::Null | Value::Bool(_) | Value::Number(..) | Value::Text(_) => {}
    }
}

impl<'b, 'a> Steps<'b, 'a> {
    /// Steps of a pipeline that is written as `node`.
    pub(super) fn new(builder: &'b mut Builder<'a>, node: &Node) -> Self {
        let mut given = BTreeSet::new();
        for key in ["steps", "on_failure", "finally"] {
            if let Some(list) = node.get(key) {
                given_ids(list, &mut given);
            }
        }
        let ids = Ids { given, used: BTreeSet::new(), next: BTreeMap::new() };
        let (nodes, metas) = (Vec::new(), Vec::new());
        Steps {
            builder,
            nodes,
            metas,
            calls: Vec::new(),
            approvals: Vec::new(),
            names: Vec::new(),
            ids,
            env_count: 0,
        }
    }

    /// A list of steps of the pipeline itself.
    pub(super) fn section(
        &mut self,
        list: &Node,
        section: Section,
        inherited: &Inherited<'_>,
    ) -> Vec<StepNode> {
        let around = Around { parent: None, section, undo: None };
        self.members(list, around, inherited, "the list")
    }

    fn members(
        &mut self,
        list: &Node,
        around: Around,
        inherited: &Inherited<'_>,
        what: &str,
    ) -> Vec<StepNode> {
        if list.items().is_empty() {
            self.builder.notes.add(Problem::at(list.at, format!("{what} needs at least one step")));
        }
        list.items().iter().filter_map(|item| self.step(item, around, inherited, None)).collect()
    }

    /// Puts a step into the list, and its members and its compensation after it.
    fn step(
        &mut self,
        node: &Node,
        around: Around,
        inherited: &Inherited<'_>,
        made: Option<Name>,
    ) -> Option<StepNode> {
        let head = node.entries().first().map_or(node.at, |(key, _)| key.at);
        if self.nodes.len() >= NODES_MAX {
            self.builder.notes.add(Problem::whole(format!("a pipeline may have {NODES_MAX} steps")));
            return None;
        }
        // The shape was checked: there is exactly one kind.
        let kind_key = tables::STEP.kinds(node, self.builder.tools).first().copied()?.clone();
        let place = self.nodes.len() as StepNode;
        let undo = if around.undo == Some(UNDO) { Some(place) } else { around.undo };
        self.nodes.push(None);
        self.metas.push(Meta {
            at: head,
            parent: around.parent,
            section: around.section,
            undo,
            foreach: node.get("foreach").is_some(),
            parallel: kind_key.text == "parallel",
            named: node.get("id").is_some(),
        });
        let id = made.unwrap_or_else(|| self.id(node, &kind_key.text));
        let inside = Around { parent: Some(place), undo, ..around };
        let inherited = inherited.and(node);
        let kind = self.kind(node, &kind_key, place, inside, &inherited)?;
        let mut def = modifiers::step(self, node, id, kind, place, &inherited);
        def.compensate = self.compensation(node, inside, &inherited, &def.id);
        self.nodes[place as usize] = Some(def);
        Some(place)
    }

    fn id(&mut self, node: &Node, kind: &str) -> Name {
        match node.get("id") {
            Some(id) => {
                let name = self.builder.name(id);
                if !self.ids.used.insert(name.to_string()) {
                    let problem = Problem::at(id.at, format!("another step is called `{name}` already"));
                    self.builder
                        .notes
                        .add(problem.help("ids are unique in a pipeline, compensations included"));
                }
                name
            }
            None if self.builder.tools.find(kind).is_some() => self.ids.make(kind, false),
            None if kind == "tool" => {
                let tool = node.get("tool").and_then(Node::text).unwrap_or("tool").to_owned();
                self.ids.make(&tool, false)
            }
            None if kind == "run" => self.ids.make("step", true),
            None => self.ids.make(kind, true),
        }
    }

    fn compensation(
        &mut self,
        node: &Node,
        inside: Around,
        inherited: &Inherited<'_>,
        id: &Name,
    ) -> Compensate {
        let Some((key, body)) = node.entry("compensate") else { return Compensate::Undeclared };
        if body.value == Value::Bool(false) {
            return Compensate::Exempt;
        }
        if inside.undo.is_some() {
            let problem = Problem::at(key.at, "a compensation cannot have a compensation of its own");
            self.builder.notes.add(problem);
            return Compensate::Undeclared;
        }
        // Its made-up name says what it takes back.
        let base = format!("undo-{id}");
        let made = body.get("id").is_none().then(|| self.ids.make(&base, false));
        let around = Around { undo: Some(UNDO), ..inside };
        let place = self.step(body, around, &inherited.outside(), made);
        place.map_or(Compensate::Undeclared, Compensate::With)
    }

    fn kind(
        &mut self,
        node: &Node,
        key: &yaml::Key,
        place: StepNode,
        inside: Around,
        inherited: &Inherited<'_>,
    ) -> Option<Kind> {
        let stand = Stand::Step(place);
        let value = node.get(&key.text)?;
        Some(match key.text.as_str() {
            "run" => Kind::Run { command: self.builder.command(value, "run") },
            "tool" => return self.tool_by_name(node, value, stand),
            "agent" => {
                let agent = self.builder.name(value);
                self.names.push((Declared::Agent, agent.clone(), value.at));
                Kind::Agent { agent, prompt: self.prompt(node, key, stand) }
            }
            "parallel" => {
                let steps = self.members(value, inside, inherited, "`parallel`");
                Kind::Parallel { steps, fail_fast: fail_fast(node) }
            }
            "steps" => Kind::Steps { steps: self.members(value, inside, inherited, "`steps`") },
            "strategy" => Kind::Strategy { approaches: self.approaches(value, inside, inherited) },
            "call" => self.call(node, value, stand),
            "approve" => self.approve(node, value, place),
            "wait" => Kind::Wait { wait: self.wait(value, stand) },
            name => return self.builder.tools.find(name).map(|tool| self.tool(tool, value, stand)),
        })
    }

    fn prompt(&mut self, node: &Node, key: &yaml::Key, stand: Stand) -> Template {
        match node.get("prompt") {
            Some(prompt) => self.builder.template(prompt, stand, Secrets::Refused),
            None => {
                let problem = Problem::at(key.at, "an agent needs a `prompt`: what it is asked to do");
                self.builder.notes.add(problem);
                Template::Literal(Json::Null)
            }
        }
    }

    fn approaches(&mut self, list: &Node, inside: Around, inherited: &Inherited<'_>) -> Vec<ApproachDef> {
        if !(1..=APPROACHES_MAX).contains(&list.items().len()) {
            let message =
                format!("a strategy has 1 to {APPROACHES_MAX} approaches, not {}", list.items().len());
            self.builder.notes.add(Problem::at(list.at, message));
        }
        let mut approaches = Vec::new();
        for item in list.items() {
            let Some(node) = self.step(item, inside, inherited, None) else { continue };
            let on = item.get("fallback_on");
            let condition = |text: String| match text.as_str() {
                "any" => FallbackCondition::AnyError,
                "timeout" => FallbackCondition::Timeout,
                _ => FallbackCondition::Error(text),
            };
            let fallback_on = self.builder.texts(on).into_iter().map(condition).collect();
            let name =
                self.nodes[node as usize].as_ref().map_or_else(|| Name::clean("_"), |def| def.id.clone());
            let approach = Approach { name, fallback_on };
            if let (Err(error), Some(on)) = (approach.check(), on) {
                self.builder.notes.add(Problem::at(on.at, error.to_string()));
            }
            approaches.push(ApproachDef { node, approach });
        }
        approaches
    }

    fn call(&mut self, node: &Node, value: &Node, stand: Stand) -> Kind {
        let pipeline = self.builder.name(value);
        let vars = variables(self.builder, node.get("vars"), stand);
        self.calls.push(Call { pipeline: (pipeline.clone(), value.at), vars: vars.clone() });
        Kind::Call { pipeline, vars: vars.into_iter().map(|(name, _, value)| (name, value)).collect() }
    }

    fn approve(&mut self, node: &Node, value: &Node, place: StepNode) -> Kind {
        let message = value.get("message").unwrap_or(value);
        let steps: Vec<(Name, Place)> = value
            .get("for")
            .map(Node::items)
            .unwrap_or_default()
            .iter()
            .map(|item| (self.builder.name(item), item.at))
            .collect();
        if !steps.is_empty() {
            self.approvals.push((place, steps.clone()));
        }
        Kind::Approve {
            message: self.builder.template(message, Stand::Step(place), Secrets::Refused),
            approvers: self.builder.names(value.get("approvers")),
            count: value.get("count").map_or(1, |count| self.builder.count(count)),
            tier: node.get("risk").and_then(Node::text).and_then(Tier::parse).unwrap_or(Tier::Low),
            expires: value.get("expires").map_or(APPROVAL_EXPIRES, |span| self.builder.span(span)),
            steps: steps.into_iter().map(|(name, _)| name).collect(),
        }
    }

    fn wait(&mut self, value: &Node, stand: Stand) -> WaitFor {
        let Some(event) = value.get("event") else {
            return WaitFor::Time { span: self.builder.span(value) };
        };
        let continues = value.get("on_timeout").and_then(Node::text) == Some("continue");
        if let (Some((key, _)), None) = (value.entry("on_timeout"), value.get("timeout")) {
            let problem = Problem::at(key.at, "`on_timeout` goes with `timeout`, which is not there");
            self.builder.notes.add(problem.help("without a `timeout` the step waits for ever"));
        }
        WaitFor::Event {
            event: self.builder.name(event),
            key: value.get("key").map(|key| self.builder.template(key, stand, Secrets::Refused)),
            timeout: value.get("timeout").map(|span| self.builder.span(span)),
            continue_on_timeout: continues,
        }
    }

    /// The read that tells what became of a lost attempt: a command, or a tool that changes nothing.
    pub(super) fn reading(&mut self, node: &Node, place: StepNode) -> Option<Box<Kind>> {
        let (key, value) = node.entries().first().filter(|_| node.entries().len() <= 2)?;
        let stand = Stand::Step(place);
        let kind = match key.text.as_str() {
            "run" => Some(Kind::Run { command: self.builder.command(value, "run") }),
            "tool" => self.tool_by_name(node, value, stand),
            name => self.builder.tools.find(name).map(|tool| self.tool(tool, value, stand)),
        };
        let alone = node.entries().len() == 1 || key.text == "tool" && node.get("with").is_some();
        match kind {
            Some(Kind::Run { .. } | Kind::Tool { writes: false, .. }) if alone => kind.map(Box::new),
            Some(_) | None => {
                let message =
                    "a read for `reconcile` is one command, or one call of a tool that changes nothing";
                let help = "for example `reconcile: { servicenow.get: { table: incident, query: … } }`";
                self.builder.notes.add(Problem::at(node.at, message).help(help));
                None
            }
        }
    }

    /// `tool: NAME` with its fields in `with`.
    fn tool_by_name(&mut self, node: &Node, value: &Node, stand: Stand) -> Option<Kind> {
        let name = value.text().unwrap_or_default();
        let Some(tool) = self.builder.tools.find(name) else {
            let own = match name {
                "shell" => Some("`run`"),
                "agent" | "wait" => Some("the key of that name"),
                _ => None,
            };
            match own {
                Some(key) => self.builder.notes.add(
                    Problem::at(value.at, format!("`{name}` is not called by `tool`"))
                        .help(format!("use {key}")),
                ),
                None => {
                    self.builder.unknown(value.at, "tool", name, tools::TOOLS.iter().map(|tool| tool.name));
                }
            }
            return None;
        };
        let nothing = Node { at: value.at, value: Value::Map(Vec::new()) };
        let with = node.get("with").unwrap_or(&nothing);
        let tools = self.builder.tools;
        shape::check(with, &Shape::Table(&tool.fields), "with", tools, &mut self.builder.notes);
        Some(self.tool(tool, with, stand))
    }

    fn tool(&mut self, tool: &Tool<'_>, with: &Node, stand: Stand) -> Kind {
        let mut fields = small::Map::new();
        for (key, value) in with.entries() {
            let field = match tool.fields.shape_of(&key.text, Tools::OWN) {
                Some(Shape::Command) => Template::Literal(self.builder.command(value, &key.text).into()),
                _ if tool.secrets.contains(&key.text.as_str()) => {
                    self.builder.template(value, stand, Secrets::Allowed)
                }
                _ => self.builder.template(value, stand, Secrets::Refused),
            };
            fields.insert(key.text.clone(), field);
        }
        if tool.name == EMIT
            && let (Some(node), Some(Template::Literal(Json::String(text)))) =
                (with.get("type"), fields.get("type"))
            && let Err(error) = pattern::custom_type(text)
        {
            self.builder.notes.add(Problem::at(node.at, error.to_string()));
        }
        let method = with.get("method").and_then(Node::text).unwrap_or("GET");
        let writes = match tool.writes {
            Writes::No => false,
            Writes::Yes => true,
            Writes::ByMethod => !SAFE_METHODS.contains(&method),
        };
        let operation =
            if tool.writes == Writes::ByMethod { method.to_lowercase() } else { tool.operation.to_owned() };
        let target = target(tool, &fields);
        if let Template::Literal(Json::String(text)) = &target
            && let Err(error) = Name::new(text)
        {
            self.builder.notes.add(Problem::at(with.at, format!("the target of the tool: {error}")));
        }
        let literal = fields.values().all(|field| matches!(field, Template::Literal(_)));
        Kind::Tool {
            tool: Name::clean(tool.name),
            operation: Name::clean(&operation),
            target,
            with: if literal { Template::Literal(with_json(&fields)) } else { Template::Map(fields) },
            writes,
            risk: tool.risk,
        }
    }
}

/// Stands for the compensation itself until its place is known.
const UNDO: StepNode = StepNode::MAX;

fn with_json(fields: &small::Map<String, Template>) -> Json {
    let literal = |(key, field): (&String, &Template)| match field {
        Template::Literal(value) => (key.clone(), value.clone()),
        Template::Expr(_)
        | Template::Text(_)
        | Template::Secret(_)
        | Template::List(_)
        | Template::Map(_) => (key.clone(), Json::Null),
    };
    fields.iter().map(literal).collect()
}

/// What a tool acts on: its target fields, joined by slashes.
fn target(tool: &Tool<'_>, fields: &small::Map<String, Template>) -> Template {
    let mut parts: Vec<Part> = Vec::new();
    for field in tool.target.iter().filter_map(|name| fields.get(*name)) {
        if !parts.is_empty() {
            parts.push(Part::Literal("/".to_owned()));
        }
        match field {
            Template::Literal(Json::String(text)) => parts.push(Part::Literal(text.clone())),
            Template::Literal(value) => parts.push(Part::Literal(value.to_string())),
            Template::Expr(expr) => parts.push(Part::Expr(expr.clone())),
            Template::Text(text) => parts.extend(text.clone()),
            // No target field takes secrets, lists or maps: their shapes are texts.
            Template::Secret(_) | Template::List(_) | Template::Map(_) => {}
        }
    }
    if parts.is_empty() {
        return Template::Literal(tool.otherwise.into());
    }
    let literal: Option<String> = parts
        .iter()
        .map(|part| match part {
            Part::Literal(text) => Some(text.as_str()),
            Part::Expr(_) => None,
        })
        .collect();
    match literal {
        Some(text) => Template::Literal(text.into()),
        None => Template::Text(parts),
    }
}

/// The variables that are given to a pipeline, and where they stand.
pub(super) fn variables(
    builder: &mut Builder<'_>,
    node: Option<&Node>,
    stand: Stand,
) -> Vec<(Name, Place, Template)> {
    let mut vars = Vec::new();
    for (key, value) in node.map(Node::entries).unwrap_or_default() {
        let template = builder.template(value, stand, Secrets::Refused);
        vars.push((Name::clean(&key.text), key.at, template));
    }
    vars
}

/// What a failure means for the other members.
fn fail_fast(node: &Node) -> FailFast {
    match node.get("fail_fast").map(|value| &value.value) {
        Some(Value::Bool(false)) => FailFast::No,
        Some(Value::Text(_)) => FailFast::Kill,
        Some(Value::Bool(true) | Value::Null | Value::Number(..) | Value::List(_) | Value::Map(_)) | None => {
            FailFast::Stop
        }
    }
}
