//! The file: its pipelines and everything else that it declares, put together and checked as a whole.

use super::build::{Builder, Secrets, Stand};
use super::check::{self, Checked, Piece};
use super::cron;
use super::modifiers::{self, Inherited};
use super::pattern::{self, Pattern as Regex};
use super::problem::{Place, Problem};
use super::shape;
use super::steps::{Section, Steps, variables};
use super::yaml::{Key, Node};
use std::collections::BTreeMap;
use windlass_core::budget::Limits;
use windlass_core::caps::Caps;
use windlass_core::id::Name;
use windlass_core::pattern::Pattern;
use windlass_core::queue;
use windlass_core::runbook::{
    AgentAction, AgentDef, AgentEvent, Evidence, ExternalQueue, LockDef, Pipeline, QueueDef, Runbook,
    ScheduleDef, SemaphoreDef, TriggerDef, ValueType, VarDef, WorkerDef, WorkspaceDef,
};
use windlass_core::schedule::{CatchUp, Overlap};
use windlass_core::small;
use windlass_core::task;
use windlass_core::time::Span;
use windlass_core::workspace::Keep;

/// The version of the form that is written.
const VERSION: u32 = 1;
/// The default heartbeat timeout of outside holders of locks and slots.
const HOLDER_TIMEOUT: Span = Span::secs(60);

/// The files of a runbook as one.
pub(super) struct Merged<'n> {
    /// What stands once.
    singles: BTreeMap<&'n str, &'n Node>,
    /// What stands under a name: pipelines, queues and so on.
    sections: BTreeMap<&'n str, Vec<(&'n Key, &'n Node)>>,
}

impl<'n> Merged<'n> {
    /// Puts the files together. What two of them declare is refused.
    pub(super) fn new(files: &'n [Node], builder: &mut Builder<'_>) -> Merged<'n> {
        let mut merged = Merged { singles: BTreeMap::new(), sections: BTreeMap::new() };
        for (n, file) in files.iter().enumerate() {
            for (key, value) in file.entries() {
                match key.text.as_str() {
                    "include" => {}
                    "name" if n > 0 => {
                        builder.notes.add(Problem::at(
                            key.at,
                            "an included file has no `name`: it is part of another",
                        ));
                    }
                    "name" | "defaults" | "caps" | "budget" | "evidence" | "issues" => {
                        if merged.singles.insert(&key.text, value).is_some() {
                            let message = format!("`{}` stands in another file already", key.text);
                            builder.notes.add(Problem::at(key.at, message));
                        }
                    }
                    section => merged.section(section, value, builder),
                }
            }
        }
        merged
    }

    fn section(&mut self, section: &'n str, value: &'n Node, builder: &mut Builder<'_>) {
        let known = self.sections.entry(section).or_default();
        // Names are unique within a file; only other files need to be looked at.
        let before: BTreeMap<&str, ()> = known.iter().map(|(key, _)| (key.text.as_str(), ())).collect();
        for (key, value) in value.entries() {
            if before.contains_key(key.text.as_str()) {
                let message = format!("`{}` stands under `{section}` in another file already", key.text);
                builder.notes.add(Problem::at(key.at, message));
            } else {
                known.push((key, value));
            }
        }
    }

    pub(super) fn entries(&self, section: &str) -> &[(&'n Key, &'n Node)] {
        self.sections.get(section).map_or(&[], Vec::as_slice)
    }
}

/// Builds the definition from files whose shapes were checked.
pub(super) fn build(files: &[Node], builder: &mut Builder<'_>) -> Runbook {
    let merged = Merged::new(files, builder);
    let name = match merged.singles.get("name") {
        Some(name) => builder.name(name),
        None => {
            let at = files.first().map_or(Place::default(), |file| file.at);
            let problem = Problem::at(Place { end: at.start, ..at }, "the runbook needs a `name`");
            builder
                .notes
                .add(problem.help("it is the identity under which the runbook is deployed: `name: triage`"));
            Name::clean("_")
        }
    };
    let mut checked = Checked::default();
    let pipelines = pipelines(&merged, builder, &mut checked);
    let runbook = Runbook {
        name,
        version: VERSION,
        pipelines,
        queues: section(&merged, "queues", builder, queue),
        workers: section(&merged, "workers", builder, worker),
        agents: section(&merged, "agents", builder, agent),
        schedules: section(&merged, "schedules", builder, schedule),
        triggers: section(&merged, "triggers", builder, trigger),
        semaphores: section(&merged, "semaphores", builder, semaphore),
        locks: section(&merged, "locks", builder, lock),
        caps: merged.singles.get("caps").map(|node| caps(builder, node)),
        budget: merged.singles.get("budget").map(|node| limits_of(builder, node)),
        evidence: merged.singles.get("evidence").and_then(|node| Evidence::parse(node.text()?)),
        issues: merged
            .singles
            .get("issues")
            .and_then(|node| node.get("command"))
            .map(|node| builder.command(node, "command")),
        undoes: Vec::new(),
    };
    check::whole(&merged, &runbook, &checked, builder);
    let mut runbook = runbook.with_called_compensations();
    crate::risks::raise(&mut runbook);
    runbook
}

fn section<T>(
    merged: &Merged<'_>,
    section: &str,
    builder: &mut Builder<'_>,
    read: impl Fn(&mut Builder<'_>, &Node) -> T,
) -> small::Map<Name, T> {
    let built =
        merged.entries(section).iter().map(|(key, node)| (Name::clean(&key.text), read(builder, node)));
    let built: small::Map<Name, T> = built.collect();
    check::free_uses(builder);
    built
}

fn pipelines(
    merged: &Merged<'_>,
    builder: &mut Builder<'_>,
    checked: &mut Checked,
) -> small::Map<Name, Pipeline> {
    let defaults = merged.singles.get("defaults").copied();
    let mut pipelines = small::Map::new();
    for (key, node) in merged.entries("pipelines") {
        let name = Name::clean(&key.text);
        let pipeline = pipeline(&name, key, node, defaults, builder, checked);
        pipelines.insert(name, pipeline);
    }
    pipelines
}

fn pipeline(
    name: &Name,
    key: &Key,
    node: &Node,
    defaults: Option<&Node>,
    builder: &mut Builder<'_>,
    checked: &mut Checked,
) -> Pipeline {
    let vars = node.get("vars").map(|vars| variables_of(builder, vars)).unwrap_or_default();
    let outputs = variables(builder, node.get("outputs"), Stand::Outputs);
    let lock = node.get("lock").map(|lock| modifiers::lock_use(builder, lock, Stand::Before));
    let workspace = node.get("workspace").map(|workspace| workspace_of(builder, workspace));
    let needs = builder.names(node.get("needs"));
    let deadline = node.get("deadline").map(|span| builder.span(span));
    let budget = node.get("budget").map(|limits| limits_of(builder, limits));
    let inherited = Inherited::new(defaults, node);
    let mut steps = Steps::new(builder, node);
    let mut list = |key: &str, section: Section| match node.get(key) {
        Some(list) => steps.section(list, section, &inherited),
        None => Vec::new(),
    };
    let main = list("steps", Section::Main);
    let on_failure = list("on_failure", Section::OnFailure);
    let finally = list("finally", Section::Finally);
    let Steps { nodes, metas, calls, approvals, names, .. } = steps;
    let uses = std::mem::take(&mut builder.uses);
    // A step that could not be built was noted; without it the rest has no meaning.
    let Some(nodes) = nodes.into_iter().collect::<Option<Vec<_>>>() else {
        if builder.notes.is_empty() {
            builder.notes.add(Problem::at(key.at, "a step of this pipeline is not complete"));
        }
        return Pipeline { vars, ..Pipeline::default() };
    };
    let pipeline = Pipeline {
        vars,
        outputs: outputs.into_iter().map(|(name, _, value)| (name, value)).collect(),
        lock,
        budget,
        deadline,
        needs,
        workspace,
        nodes,
        steps: main,
        on_failure,
        finally,
    };
    check::pipeline((&pipeline, key.at), &metas, &uses, &approvals, builder);
    checked.add(name, Piece { at: key.at, metas, calls, names });
    pipeline
}

fn variables_of(builder: &mut Builder<'_>, node: &Node) -> small::Map<Name, VarDef> {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    let mut vars = small::Map::new();
    for (key, node) in node.entries() {
        if let Some(other) = seen.insert(key.text.to_uppercase(), &key.text) {
            let message = format!("`{}` and `{other}` would be the same environment variable", key.text);
            builder.notes.add(Problem::at(key.at, message).help("give one of them another name"));
        }
        vars.insert(Name::clean(&key.text), variable(builder, &key.text, node));
    }
    vars
}

fn variable(builder: &mut Builder<'_>, name: &str, node: &Node) -> VarDef {
    let literal = |builder: &mut Builder<'_>, node: &Node| {
        if let windlass_core::template::Template::Literal(value) =
            builder.template(node, Stand::Before, Secrets::Refused)
        {
            return Some(value);
        }
        builder
            .notes
            .add(Problem::at(node.at, "an expression cannot stand in the declaration of a variable"));
        None
    };
    let var = VarDef {
        kind: node.get("type").and_then(Node::text).and_then(ValueType::parse),
        required: node.get("required").is_some_and(|truth| builder.truth(truth)),
        default: node.get("default").and_then(|value| literal(builder, value)),
        one_of: node
            .get("enum")
            .map(Node::items)
            .unwrap_or_default()
            .iter()
            .filter_map(|value| literal(builder, value))
            .collect(),
        pattern: node.get("pattern").and_then(|pattern| pattern_of(builder, pattern)),
    };
    check::variable(builder, name, node, &var);
    var
}

/// A pattern that compiles, within what those of a runbook may need together. What is over that is not compiled.
fn pattern_of(builder: &mut Builder<'_>, node: &Node) -> Option<String> {
    let text = node.text()?;
    let (known, size) = &mut builder.patterns;
    if known.contains(text) {
        return Some(text.to_owned());
    }
    if *size < pattern::SIZES_MAX {
        let compiled = pattern::known(text);
        // To find out that one does not compile takes about as long as to compile the largest.
        *size += compiled.as_ref().as_ref().map_or(pattern::SIZE_MAX, Regex::size);
        match &*compiled {
            Err(message) => {
                let problem = Problem::at(node.at, "`pattern` is not a regular expression");
                builder.notes.add(problem.help(message.clone()));
                return None;
            }
            Ok(_) if *size <= pattern::SIZES_MAX => {
                known.insert(text.to_owned());
                return Some(text.to_owned());
            }
            Ok(_) => {}
        }
    }
    let shown = windlass_core::wire::shorten(text);
    let message = format!("with `{shown}` the patterns of this runbook are more than it may have");
    let help = "`\\w` and other classes of all languages need much: write what is meant, like `[a-z0-9_]`";
    builder.notes.add(Problem::at(node.at, message).help(help));
    None
}

fn workspace_of(builder: &mut Builder<'_>, node: &Node) -> WorkspaceDef {
    let mut field =
        |key: &str| node.get(key).map(|value| builder.template(value, Stand::Before, Secrets::Refused));
    let git = field("git").unwrap_or(windlass_core::template::Template::Literal(".".into()));
    WorkspaceDef {
        git,
        base: field("base"),
        branch: field("branch"),
        keep: node.get("keep").and_then(Node::text).and_then(Keep::parse).unwrap_or(Keep::OnFailure),
    }
}

fn caps(builder: &mut Builder<'_>, node: &Node) -> Caps {
    let mut cap = |key: &str| node.get(key).map(|value| builder.count(value));
    Caps {
        max_concurrency: cap("max_concurrency"),
        max_runs_per_min: cap("max_runs_per_min"),
        max_writes_per_run: cap("max_writes_per_run"),
        ..Caps::default()
    }
}

fn limits_of(builder: &mut Builder<'_>, node: &Node) -> Limits {
    Limits {
        usd_micros: node.get("usd").and_then(shape::money),
        tokens: node.get("tokens").map(|tokens| builder.number(tokens)),
        time_ms: node.get("time").map(|span| builder.span(span).0),
        writes: node.get("writes").map(|writes| builder.number(writes)),
    }
}

fn queue(builder: &mut Builder<'_>, node: &Node) -> QueueDef {
    let default = queue::Settings::default().terms;
    let retry = node.get("retry");
    let of_retry = |key: &str| retry.and_then(|retry| retry.get(key));
    QueueDef {
        visibility_timeout: node
            .get("visibility_timeout")
            .map_or(default.visibility_timeout, |span| builder.span(span)),
        max_attempts: of_retry("max_attempts").map_or(default.max_attempts, |max| builder.count(max)),
        cooldown: of_retry("cooldown").map_or(default.cooldown, |span| builder.span(span)),
        dead_letter: node.get("dead_letter").map(|queue| builder.name(queue)),
        max_depth: node.get("max_depth").map(|max| builder.number(max)),
        dedupe: node.get("dedupe").is_some_and(|truth| builder.truth(truth)),
        external: node.get("external").map(|external| {
            let mut command =
                |key: &str| external.get(key).map(|node| builder.command(node, key)).unwrap_or_default();
            let (list, take) = (command("list"), command("take"));
            ExternalQueue {
                list,
                take,
                poll: external.get("poll").map_or(Span::ZERO, |span| builder.span(span)),
            }
        }),
    }
}

/// A name that the shape requires, so it is there.
fn named(builder: &mut Builder<'_>, node: &Node, key: &str) -> Name {
    node.get(key).map_or_else(|| Name::clean("_"), |name| builder.name(name))
}

fn given(
    builder: &mut Builder<'_>,
    node: &Node,
    stand: Stand,
) -> small::Map<Name, windlass_core::template::Template> {
    let vars = variables(builder, node.get("vars"), stand);
    vars.into_iter().map(|(name, _, value)| (name, value)).collect()
}

fn worker(builder: &mut Builder<'_>, node: &Node) -> WorkerDef {
    WorkerDef {
        queue: named(builder, node, "queue"),
        pipeline: named(builder, node, "pipeline"),
        concurrency: node.get("concurrency").map_or(1, |concurrency| builder.count(concurrency)),
        vars: given(builder, node, Stand::Worker),
        wake_on: builder.texts(node.get("wake_on")),
    }
}

fn agent(builder: &mut Builder<'_>, node: &Node) -> AgentDef {
    let default = task::Config::default();
    let command = node.get("command").map(Node::items).unwrap_or_default();
    let mut on = small::Map::new();
    for event in AgentEvent::ALL {
        if let Some(action) = node.get(&format!("on_{event}")) {
            on.insert(*event, agent_action(builder, action));
        }
    }
    if command.is_empty() {
        builder.notes.add(Problem::at(node.at, "the `command` of an agent is empty"));
    }
    AgentDef {
        command: command.iter().map(|word| builder.command(word, "command")).collect(),
        profile: node.get("profile").map(|profile| builder.name(profile)),
        on,
        heartbeat_timeout: node
            .get("heartbeat_timeout")
            .map_or(default.heartbeat_timeout, |span| builder.span(span)),
        max_recovery_attempts: node
            .get("max_recovery_attempts")
            .map_or(default.max_recovery_attempts, |max| builder.count(max)),
        budget: node.get("budget").map(|limits| limits_of(builder, limits)),
    }
}

fn agent_action(builder: &mut Builder<'_>, node: &Node) -> AgentAction {
    match node.text() {
        Some("nudge") => AgentAction::Nudge,
        Some("done") => AgentAction::Done,
        Some("fail") => AgentAction::Fail,
        Some(_) => AgentAction::Escalate,
        None => match (node.get("restart"), node.get("gate")) {
            (Some(times), _) => AgentAction::Restart(builder.count(times)),
            (None, Some(gate)) => AgentAction::Gate(builder.command(gate, "gate")),
            (None, None) => AgentAction::Escalate,
        },
    }
}

fn schedule(builder: &mut Builder<'_>, node: &Node) -> ScheduleDef {
    let before = builder.notes.count();
    let word = |key: &str| node.get(key).and_then(Node::text);
    let spec = match (node.get("cron"), word("every")) {
        (Some(cron), _) => {
            let fields = cron.text().unwrap_or_default().trim().to_owned();
            if let Err(message) = check::cron(&fields) {
                let problem = Problem::at(cron.at, format!("`cron` is not a schedule: {message}"));
                builder
                    .notes
                    .add(problem.help("five fields are minute, hour, day, month and weekday: '0 2 * * *'"));
            }
            fields
        }
        (None, every) => format!("every {}", every.unwrap_or_default()),
    };
    let timezone = node.get("timezone").map_or_else(|| Name::clean("UTC"), |zone| timezone(builder, zone));
    if builder.notes.count() == before {
        slots(builder, node, &spec, &timezone);
    }
    ScheduleDef {
        spec,
        timezone,
        jitter: node.get("jitter").map_or(Span::ZERO, |span| builder.span(span)),
        catch_up: word("catch_up").and_then(CatchUp::parse).unwrap_or(CatchUp::None),
        overlap: word("overlap").and_then(Overlap::parse).unwrap_or(Overlap::Skip),
        pipeline: named(builder, node, "pipeline"),
        vars: given(builder, node, Stand::Schedule),
    }
}

/// A schedule without slots could not be deployed.
fn slots(builder: &mut Builder<'_>, node: &Node, spec: &str, zone: &Name) {
    let Err(error) = cron::Spec::parse(spec, zone.as_str()) else { return };
    let at = match &error {
        cron::Error::Fields(..) | cron::Error::Never(_) => node.get("cron"),
        // What is no span at all has been told of.
        cron::Error::Every(span) if crate::span::parse(span).is_err() => return,
        cron::Error::Every(_) => node.get("every"),
        cron::Error::Zone(_) => node.get("timezone"),
    };
    builder.notes.add(Problem::at(at.map_or(node.at, |at| at.at), error.to_string()));
}

fn timezone(builder: &mut Builder<'_>, node: &Node) -> Name {
    let text = node.text().unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '+' | '-' | '/');
    if text.is_empty() || text.len() > 64 || !text.chars().all(plain) {
        let problem = Problem::at(node.at, "`timezone` is not the name of a time zone");
        builder.notes.add(problem.help("write a name such as `Europe/Berlin` or `UTC`"));
    }
    Name::clean(text)
}

/// The longest that the same event is taken for one.
const WINDOW_MAX: Span = Span::hours(1);

/// The source of custom events.
const CUSTOM: &str = "custom";

/// The category and the action of the custom events that a trigger is for.
fn custom(builder: &mut Builder<'_>, node: &Node) -> (Option<Name>, Option<Name>) {
    match node.text().map(Pattern::parse) {
        Some(Ok(Pattern::Custom(category, action))) => {
            (Some(Name::clean(&category)), action.as_deref().map(Name::clean))
        }
        Some(Ok(Pattern::Namespace(space, None))) if space == CUSTOM => (None, None),
        Some(Ok(Pattern::Every | Pattern::Namespace(..) | Pattern::Tag(..)) | Err(_)) | None => {
            let problem = Problem::at(node.at, "`on` is no pattern of custom events");
            let help = "write `custom:category:action`, `custom:category` or `custom:*`";
            builder.notes.add(problem.help(help));
            (None, None)
        }
    }
}

fn trigger(builder: &mut Builder<'_>, node: &Node) -> TriggerDef {
    let (github, slack) = (node.get("github"), node.get("slack"));
    let source = match (github, slack, node.get("hook")) {
        (Some(_), _, _) => Name::clean("github"),
        (None, Some(_), _) => Name::clean("slack"),
        (None, None, Some(hook)) => {
            let name = builder.name(hook);
            if matches!(name.as_str(), "github" | "slack" | CUSTOM) {
                let problem = Problem::at(hook.at, format!("`{name}` is not a hook of its own"));
                let key = if name.as_str() == CUSTOM { "on" } else { name.as_str() };
                builder.notes.add(problem.help(format!("use the key `{key}`")));
            }
            name
        }
        (None, None, None) if node.get("on").is_some() => Name::clean(CUSTOM),
        // The shape was checked: one of them is there.
        (None, None, None) => Name::clean("_"),
    };
    let (category, own_action) = node.get("on").map_or((None, None), |on| custom(builder, on));
    let event = github.and_then(|github| github.get("event")).map(|event| builder.name(event)).or(category);
    let command = slack.and_then(|slack| slack.get("command"));
    let target = |key: &str| node.get(key).is_some();
    match (target("pipeline"), target("signal"), target("key")) {
        (true, false, _) | (false, true, true) => {}
        (false, true, false) => {
            let problem = Problem::at(node.at, "`signal` needs a `key`: which waiting run it is for");
            builder.notes.add(problem);
        }
        (true, true, _) | (false, false, _) => {
            let problem =
                Problem::at(node.at, "a trigger runs a `pipeline`, or sends a `signal` with a `key`");
            builder.notes.add(problem.label("exactly one of the two is needed"));
        }
    }
    TriggerDef {
        source,
        event: event.or_else(|| command.map(|command| builder.free_name(command, "command"))),
        action: github
            .and_then(|github| github.get("action"))
            .map(|action| builder.name(action))
            .or(own_action),
        when: node.get("when").map(|when| builder.condition(when, Stand::Trigger)),
        vars: given(builder, node, Stand::Trigger),
        pipeline: node.get("pipeline").map(|pipeline| builder.name(pipeline)),
        signal: node.get("signal").map(|signal| builder.name(signal)),
        key: node.get("key").map(|key| builder.template(key, Stand::Trigger, Secrets::Refused)),
        dedupe_window: node.get("dedupe_window").map(|span| {
            let window = builder.span(span);
            if window == Span::ZERO || window > WINDOW_MAX {
                let problem = Problem::at(
                    span.at,
                    format!("`dedupe_window` is more than nothing, and {WINDOW_MAX} at most"),
                );
                builder.notes.add(problem);
            }
            window
        }),
    }
}

fn semaphore(builder: &mut Builder<'_>, node: &Node) -> SemaphoreDef {
    SemaphoreDef {
        capacity: node.get("capacity").map_or(1, |capacity| builder.count(capacity)),
        heartbeat_timeout: node.get("heartbeat_timeout").map_or(HOLDER_TIMEOUT, |span| builder.span(span)),
    }
}

fn lock(builder: &mut Builder<'_>, node: &Node) -> LockDef {
    LockDef {
        heartbeat_timeout: node.get("heartbeat_timeout").map_or(HOLDER_TIMEOUT, |span| builder.span(span)),
        max_hold_duration: node.get("max_hold_duration").map(|span| builder.span(span)),
    }
}
