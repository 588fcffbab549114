//! Modifiers: what every step may say beside its kind, and what it inherits.
//!
//! Defaults of the file, the pipeline's environment and what the groups around say are merged here, the nearest last, so
//! that the definition is whole and nothing needs to be looked up when a step runs.

use super::build::{Builder, Secrets, Stand};
use super::guards;
use super::problem::Problem;
use super::steps::{Declared, Steps};
use super::tools::Tools;
use super::yaml::{Node, Value};
use std::collections::BTreeMap;
use std::rc::Rc;
use windlass_core::id::Name;
use windlass_core::policy::Risk;
use windlass_core::receipt::Semantics;
use windlass_core::runbook::{
    CheckpointDef, Compensate, Foreach, KeyScope, Kind, LockUse, Node as StepNode, Retry, SemaphoreUse,
    StepDef, ValueType,
};
use windlass_core::schedule::Overlap;
use windlass_core::small;

/// The most environment variables of one step.
pub(super) const ENV_MAX: usize = 256;
/// The most environment variables of all steps of a pipeline, what is inherited counted for each.
pub(super) const ENV_TOTAL_MAX: usize = 100_000;

/// What a step gets from around it.
#[derive(Clone, Default)]
pub(super) struct Inherited<'n> {
    /// Shared until a step adds to it; most add nothing.
    env: Rc<BTreeMap<&'n str, &'n Node>>,
    dir: Option<&'n Node>,
    shell: Option<&'n Node>,
    runs_on: Option<&'n Node>,
    timeout: Option<&'n Node>,
    retry: Option<&'n Node>,
    /// What the pipeline and the file say, for compensations, which stand outside of the step they take back.
    base: Option<Rc<Inherited<'n>>>,
}

impl<'n> Inherited<'n> {
    /// What the file's defaults and the pipeline say.
    pub(super) fn new(defaults: Option<&'n Node>, pipeline: &'n Node) -> Inherited<'n> {
        let mut base = Inherited::default();
        if let Some(defaults) = defaults {
            base.take(defaults);
            (base.timeout, base.retry) = (defaults.get("timeout"), defaults.get("retry"));
        }
        base.take_env(pipeline);
        base.base = Some(Rc::new(base.clone()));
        base
    }

    fn take_env(&mut self, node: &'n Node) {
        // One more than there may be is enough to be refused later, and keeps copies small.
        let entries = node.get("env").map(Node::entries).unwrap_or_default();
        if entries.is_empty() {
            return;
        }
        let env = Rc::make_mut(&mut self.env);
        for (key, value) in entries.iter().take(ENV_MAX + 1) {
            env.insert(&key.text, value);
        }
    }

    fn take(&mut self, node: &'n Node) {
        self.take_env(node);
        self.dir = node.get("dir").or(self.dir);
        self.shell = node.get("shell").or(self.shell);
        self.runs_on = node.get("runs_on").or(self.runs_on);
    }

    /// With what a step says itself.
    pub(super) fn and<'m>(&self, node: &'m Node) -> Inherited<'m>
    where
        'n: 'm,
    {
        let mut own: Inherited<'m> = self.clone();
        own.take(node);
        own
    }

    /// What a compensation inherits.
    pub(super) fn outside(&self) -> Inherited<'n> {
        match &self.base {
            Some(base) => Inherited { base: self.base.clone(), ..(**base).clone() },
            None => Inherited::default(),
        }
    }
}

/// The definition of a step, but for its compensation.
pub(super) fn step(
    steps: &mut Steps<'_, '_>,
    node: &Node,
    id: Name,
    kind: Kind,
    place: StepNode,
    inherited: &Inherited<'_>,
) -> StepDef {
    let stand = Stand::Step(place);
    refuse_unfit(steps.builder, node, &kind);
    let executes = matches!(kind, Kind::Run { .. } | Kind::Tool { .. } | Kind::Agent { .. });
    let env = if takes_env(&kind) { environment(steps, node, stand, inherited) } else { small::Map::new() };
    if let Some(semaphore) = node.get("semaphore") {
        let name = semaphore.get("name").unwrap_or(semaphore);
        if let Some(text) = name.text().filter(|text| !text.contains("${{")) {
            steps.names.push((Declared::Semaphore, Name::clean(text), name.at));
        }
    }
    let reconcile = node.get("effect").and_then(|effect| steps.reading(effect.get("reconcile")?, place));
    let builder = &mut *steps.builder;
    let effect = node.get("effect").and_then(|effect| semantics(builder, effect, &kind));
    let (before, after) =
        node.get("guard").map(|guard| guards::guards(builder, guard, stand)).unwrap_or_default();
    let shell = inherited.shell.filter(|_| matches!(kind, Kind::Run { .. }));
    let (dir, runs_on) = (inherited.dir.filter(|_| takes_env(&kind)), inherited.runs_on.filter(|_| executes));
    let timeout = node.get("timeout").or(inherited.timeout.filter(|_| executes));
    let retry_node = node.get("retry").or(inherited.retry.filter(|_| executes));
    let word = |key: &str| node.get(key).and_then(Node::text);
    StepDef {
        id,
        // Like the list of items itself it is evaluated once, before there is any item.
        when: node.get("when").map(|when| {
            let before = if node.get("foreach").is_some() { Stand::Foreach(place) } else { stand };
            builder.condition(when, before)
        }),
        foreach: node.get("foreach").map(|over| foreach(builder, node, over, place)),
        retry: retry_node.map(|node| retry(builder, node)).unwrap_or_default(),
        timeout: timeout.map(|span| builder.span(span)),
        before,
        after,
        lock: node.get("lock").map(|lock| lock_use(builder, lock, stand)),
        semaphore: node.get("semaphore").map(|semaphore| semaphore_use(builder, semaphore, stand)),
        compensate: Compensate::Undeclared,
        effect: effect.or_else(|| declared(&kind, builder.tools)),
        reconcile,
        reverses: None,
        idempotency_key: node
            .get("idempotency_key")
            .map(|key| builder.template(key, stand, Secrets::Refused)),
        key_scope: word("key_scope").and_then(KeyScope::parse).unwrap_or_default(),
        risk: word("risk").and_then(Risk::parse),
        checkpoint: node.get("checkpoint").map(|checkpoint| CheckpointDef {
            interval: checkpoint.get("interval").map(|span| builder.span(span)),
            resumable: checkpoint.get("resumable").is_some_and(|truth| builder.truth(truth)),
        }),
        env,
        dir: dir.map(|dir| builder.template(dir, stand, Secrets::Refused)),
        shell: shell.and_then(Node::text).map(str::to_owned),
        runs_on: builder.names(runs_on),
        outputs: outputs(node),
        kind,
    }
}

fn takes_env(kind: &Kind) -> bool {
    matches!(kind, Kind::Run { .. } | Kind::Agent { .. })
}

fn is_group(kind: &Kind) -> bool {
    matches!(kind, Kind::Parallel { .. } | Kind::Steps { .. } | Kind::Strategy { .. })
}

/// What a step says that would mean nothing for its kind is refused rather than ignored.
fn refuse_unfit(builder: &mut Builder<'_>, node: &Node, kind: &Kind) {
    let runs = matches!(kind, Kind::Run { .. });
    let waits = matches!(kind, Kind::Wait { .. } | Kind::Approve { .. });
    let acts = matches!(kind, Kind::Run { .. } | Kind::Tool { .. } | Kind::Agent { .. });
    let keyed = matches!(kind, Kind::Run { .. } | Kind::Tool { .. });
    let rules: [(&str, bool, &str); 10] = [
        ("env", takes_env(kind) || is_group(kind), "only commands and agents have an environment"),
        ("dir", takes_env(kind) || is_group(kind), "only commands and agents have a working directory"),
        ("shell", runs || is_group(kind), "only `run` has a shell"),
        ("runs_on", acts || is_group(kind), "an executor runs only commands, tools and agents"),
        ("timeout", !waits, "`wait` has a `timeout` of its own, and `approve` has `expires`"),
        ("retry", !waits, "there is nothing to try again"),
        ("effect", acts, "only commands, tools and agents have an effect of their own"),
        ("checkpoint", acts, "only commands, tools and agents save their progress"),
        ("idempotency_key", keyed, "only what a command or a tool does has a key"),
        ("key_scope", keyed, "only what a command or a tool does has a key"),
    ];
    if let Some((key, checkpoint)) = node.entry("checkpoint")
        && !matches!(kind, Kind::Agent { .. })
        && checkpoint.get("interval").is_some()
    {
        let message = "`interval` is for agents: a command saves its own progress when it has some";
        builder.notes.add(Problem::at(key.at, message));
    }
    // A tool's call is known by what it does to what; what a command does only its author knows.
    if let Some((key, scope)) = node.entry("key_scope")
        && runs
        && scope.text() == Some("tenant")
        && node.get("idempotency_key").is_none()
    {
        let problem = Problem::at(key.at, "`key_scope: tenant` needs an `idempotency_key` for a command");
        builder.notes.add(
            problem.help("say what it does once for all runs: `idempotency_key: deploy-${{ vars.version }}`"),
        );
    }
    for (key, fits, why) in rules {
        if let (false, Some((key, _))) = (fits, node.entry(key)) {
            let tool = kind.tool();
            let article = if tool.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
            let message = format!("`{}` means nothing for {article} `{tool}` step: {why}", key.text);
            builder.notes.add(Problem::at(key.at, message));
        }
    }
}

fn environment(
    steps: &mut Steps<'_, '_>,
    node: &Node,
    stand: Stand,
    inherited: &Inherited<'_>,
) -> small::Map<String, windlass_core::template::Template> {
    steps.env_count += inherited.env.len();
    if inherited.env.len() > ENV_MAX || steps.env_count > ENV_TOTAL_MAX {
        let message =
            format!("a step may have {ENV_MAX} environment variables, and all steps {ENV_TOTAL_MAX}");
        steps.builder.notes.add(Problem::at(node.at, message));
        return small::Map::new();
    }
    let builder = &mut *steps.builder;
    inherited
        .env
        .iter()
        .map(|(key, value)| ((*key).to_owned(), builder.env_value(value, key, stand)))
        .collect()
}

fn foreach(builder: &mut Builder<'_>, node: &Node, over: &Node, place: StepNode) -> Foreach {
    let fits = match &over.value {
        Value::List(items) => items.len() <= windlass_core::runbook::ITEMS_MAX,
        Value::Map(entries) => entries.iter().all(|(_, list)| match &list.value {
            Value::List(_) => true,
            Value::Text(text) => text.contains("${{"),
            Value::Null | Value::Bool(_) | Value::Number(..) | Value::Map(_) => false,
        }),
        Value::Text(text) => text.trim().starts_with("${{") && text.trim().ends_with("}}"),
        Value::Null | Value::Bool(_) | Value::Number(..) => false,
    };
    if !fits {
        let message = "`foreach` needs a list of at most 1000 items, or a map of lists";
        let help =
            "write the items, or one expression that gives them: `foreach: ${{ steps.list.output.names }}`";
        builder.notes.add(Problem::at(over.at, message).label(format!("this is {}", over.kind())).help(help));
    }
    if let (Some(kill), None) =
        (node.get("fail_fast").filter(|value| value.text().is_some()), node.get("parallel"))
    {
        let problem =
            Problem::at(kill.at, "`kill` is for `parallel`; items of a `foreach` finish what they began");
        builder.notes.add(problem.help("write `true` or `false`"));
    }
    Foreach {
        over: builder.template(over, Stand::Foreach(place), Secrets::Refused),
        max_parallel: node.get("max_parallel").map_or(1, |max| builder.count(max)),
        fail_fast: node.get("fail_fast").is_none_or(|fail_fast| fail_fast.value != Value::Bool(false)),
    }
}

pub(super) fn retry(builder: &mut Builder<'_>, node: &Node) -> Retry {
    if let Value::Number(..) = node.value {
        return Retry { max_attempts: Some(builder.count(node)), ..Retry::default() };
    }
    let backoff = node.get("backoff").map(Node::items).unwrap_or_default();
    Retry {
        max_attempts: node.get("max_attempts").map(|max| builder.count(max)),
        backoff: backoff.iter().take(64).map(|span| builder.span(span)).collect(),
        on: builder.texts(node.get("on")),
    }
}

pub(super) fn lock_use(builder: &mut Builder<'_>, node: &Node, stand: Stand) -> LockUse {
    let name = node.get("name").unwrap_or(node);
    check_literal_name(builder, name, "lock");
    let overlap = node.get("overlap").and_then(Node::text).and_then(Overlap::parse);
    LockUse {
        name: builder.template(name, stand, Secrets::Refused),
        overlap: overlap.unwrap_or(Overlap::Queue),
    }
}

fn semaphore_use(builder: &mut Builder<'_>, node: &Node, stand: Stand) -> SemaphoreUse {
    let name = node.get("name").unwrap_or(node);
    check_literal_name(builder, name, "semaphore");
    SemaphoreUse {
        name: builder.template(name, stand, Secrets::Refused),
        weight: node.get("weight").map_or(1, |weight| builder.count(weight)),
    }
}

/// A name that is no expression must be one now, not only when the step is reached.
fn check_literal_name(builder: &mut Builder<'_>, node: &Node, what: &str) {
    if !node.text().unwrap_or_default().contains("${{") {
        builder.free_name(node, what);
    }
}

fn semantics(builder: &mut Builder<'_>, node: &Node, kind: &Kind) -> Option<Semantics> {
    let Some(word) = node.text() else {
        // The one map there can be: a read of the runbook's own.
        return Some(Semantics::Reconcile);
    };
    let semantics = Semantics::parse(word);
    let asks = match kind {
        Kind::Tool { tool, operation, .. } => {
            builder.tools.find(tool.as_str()).and_then(|tool| tool.semantics_of(operation.as_str()))
                == Some(Semantics::Reconcile)
        }
        Kind::Run { .. }
        | Kind::Agent { .. }
        | Kind::Parallel { .. }
        | Kind::Steps { .. }
        | Kind::Strategy { .. }
        | Kind::Call { .. }
        | Kind::Approve { .. }
        | Kind::Wait { .. } => false,
    };
    if semantics == Some(Semantics::Reconcile) && !asks {
        let problem =
            Problem::at(node.at, "nothing here knows how to ask the other side what became of the effect");
        builder.notes.add(problem.help(
            "say by which read: `effect: { reconcile: { run: ./is-done } }`; or write `idempotent` or `at_most_once`",
        ));
    }
    semantics
}

/// What the tool itself declares.
fn declared(kind: &Kind, tools: Tools<'_>) -> Option<Semantics> {
    match kind {
        Kind::Tool { tool, operation, writes: true, .. } => {
            tools.find(tool.as_str()).and_then(|tool| tool.semantics_of(operation.as_str()))
        }
        Kind::Tool { .. }
        | Kind::Run { .. }
        | Kind::Agent { .. }
        | Kind::Parallel { .. }
        | Kind::Steps { .. }
        | Kind::Strategy { .. }
        | Kind::Call { .. }
        | Kind::Approve { .. }
        | Kind::Wait { .. } => None,
    }
}

fn outputs(node: &Node) -> small::Map<Name, ValueType> {
    let entries = node.get("outputs").map(Node::entries).unwrap_or_default();
    entries
        .iter()
        .map(|(key, kind)| {
            let kind = kind.text().and_then(ValueType::parse).unwrap_or(ValueType::Any);
            (Name::clean(&key.text), kind)
        })
        .collect()
}
