//! Guards: from what a runbook writes to the core's conditions.

use super::build::{Builder, Secrets, Stand};
use super::problem::Problem;
use super::tables::CONDITIONS;
use super::text;
use super::yaml::{Node, Value};
use windlass_core::guard::{Condition, Guard, IssueFilter, OnFailure};
use windlass_core::id::{Holder, Name, RunId};
use windlass_core::small::Map;
use windlass_core::template::Template;

/// The guards before and after a step.
pub(super) fn guards(builder: &mut Builder<'_>, node: &Node, stand: Stand) -> (Vec<Guard>, Vec<Guard>) {
    match &node.value {
        Value::List(items) => (all(builder, items, stand), Vec::new()),
        Value::Null | Value::Bool(_) | Value::Number(..) | Value::Text(_) | Value::Map(_) => {
            let mut side =
                |key: &str| node.get(key).map(|list| all(builder, list.items(), stand)).unwrap_or_default();
            (side("before"), side("after"))
        }
    }
}

fn all(builder: &mut Builder<'_>, items: &[Node], stand: Stand) -> Vec<Guard> {
    items.iter().map(|item| guard(builder, item, stand)).collect()
}

fn guard(builder: &mut Builder<'_>, node: &Node, stand: Stand) -> Guard {
    let condition = condition(builder, node, stand);
    if let Err(error) = condition.check_bounds() {
        builder.notes.add(Problem::at(node.at, error.to_string()));
    }
    let name = match node.get("name") {
        Some(name) => builder.name(name),
        None => Name::clean(kind(node).map_or("guard", |(kind, _)| kind)),
    };
    let on_failure = match node.get("on_failure") {
        Some(action) => on_failure(builder, action),
        None => OnFailure::Block,
    };
    Guard { name, condition, on_failure }
}

fn on_failure(builder: &mut Builder<'_>, node: &Node) -> OnFailure {
    match node.text() {
        Some("warn") => OnFailure::Warn,
        // What does not hold says which guard it is, and which lock, file or run.
        Some("fail") => OnFailure::Fail { message: String::new() },
        Some(_) => OnFailure::Block,
        None => match (node.get("retry"), node.get("fail")) {
            (Some(delay), _) => OnFailure::Retry {
                delay: builder.span(delay),
                give_up: node.get("for").map(|give_up| builder.span(give_up)),
            },
            (None, Some(text)) => OnFailure::Fail { message: text.text().unwrap_or_default().to_owned() },
            (None, None) => OnFailure::Block,
        },
    }
}

/// The condition's key and what it holds.
fn kind(node: &Node) -> Option<(&str, &Node)> {
    let is_condition = |key: &str| CONDITIONS.contains(&key);
    node.entries()
        .iter()
        .find(|(key, _)| is_condition(&key.text))
        .map(|(key, value)| (key.text.as_str(), value))
}

fn condition(builder: &mut Builder<'_>, node: &Node, stand: Stand) -> Condition {
    // The shape was checked: there is exactly one condition.
    let Some((kind, value)) = kind(node) else { return Condition::All(Vec::new()) };
    if let Some(made) = made(builder, kind, value, stand) {
        return made;
    }
    // A condition with one field takes it bare.
    let latest = is_latest(value);
    let field = |key: &str| value.get(key).unwrap_or(value);
    let text = |key: &str| field(key).text().unwrap_or_default().to_owned();
    match kind {
        "lock_free" => Condition::LockFree { lock: builder.free_name(field("lock"), "lock") },
        "lock_held" => Condition::LockHeld {
            lock: builder.free_name(field("lock"), "lock"),
            by: value.get("by").and_then(|by| holder(builder, by)),
        },
        "semaphore_available" => Condition::SemaphoreAvailable {
            semaphore: builder.free_name(field("semaphore"), "semaphore"),
            slots: value.get("slots").map_or(1, |slots| builder.count(slots)),
        },
        "issues_complete" => Condition::IssuesComplete { filter: filter(builder, value) },
        "no_blocked_issues" => Condition::NoBlockedIssues { filter: filter(builder, value) },
        "branch_exists" => Condition::BranchExists { branch: text("branch") },
        "branch_clean" => Condition::BranchClean { branch: text("branch") },
        "branch_merged" => Condition::BranchMerged { branch: text("branch"), into: text("into") },
        "file_exists" => Condition::FileExists { path: text("path") },
        "file_contains" => Condition::FileContains { path: text("path"), pattern: text("pattern") },
        "pipeline_in_phase" if latest => Condition::LatestInPhase {
            pipeline: builder.free_name(field("pipeline"), "pipeline"),
            phase: builder.free_name(field("phase"), "phase"),
        },
        "pipeline_complete" if latest => {
            Condition::LatestComplete { pipeline: builder.free_name(field("pipeline"), "pipeline") }
        }
        "pipeline_in_phase" => Condition::PipelineInPhase {
            pipeline: run(builder, field("pipeline")),
            phase: builder.free_name(field("phase"), "phase"),
        },
        "pipeline_complete" => Condition::PipelineComplete { pipeline: run(builder, field("pipeline")) },
        "any" => Condition::Any(parts(builder, value, stand)),
        "not" => Condition::Not(Box::new(condition(builder, value, stand))),
        "command" => Condition::Command {
            cmd: builder.command(field("cmd"), "command"),
            expect_success: value.get("expect_success").is_none_or(|expect| builder.truth(expect)),
        },
        _ => Condition::All(parts(builder, value, stand)),
    }
}

fn parts(builder: &mut Builder<'_>, node: &Node, stand: Stand) -> Vec<Condition> {
    if node.items().is_empty() {
        builder.notes.add(Problem::at(node.at, "a group of conditions needs at least one"));
    }
    node.items().iter().map(|item| condition(builder, item, stand)).collect()
}

/// Whether a condition is about the newest run of a pipeline, and not about one run.
fn is_latest(value: &Node) -> bool {
    value.get("latest").is_some_and(|latest| latest.value == Value::Bool(true))
}

/// Whether there is an expression in a value.
fn has_expression(node: &Node) -> bool {
    match &node.value {
        Value::Text(text) => text.contains(text::OPEN),
        Value::List(items) => items.iter().any(has_expression),
        Value::Map(entries) => entries.iter().any(|(_, value)| has_expression(value)),
        Value::Null | Value::Bool(_) | Value::Number(..) => false,
    }
}

/// A condition with expressions in it, in the form that the core reads once they are evaluated; none where there are none,
/// for groups, and for commands, which get values through the environment.
fn made(builder: &mut Builder<'_>, kind: &str, value: &Node, stand: Stand) -> Option<Condition> {
    let bare = match kind {
        "lock_free" | "lock_held" => "lock",
        "semaphore_available" => "semaphore",
        "branch_exists" | "branch_clean" => "branch",
        "file_exists" => "path",
        "pipeline_complete" => "pipeline",
        "issues_complete" | "no_blocked_issues" | "branch_merged" | "file_contains" | "pipeline_in_phase" => {
            ""
        }
        // tidy: groups and commands.
        _ => return None,
    };
    if !has_expression(value) {
        return None;
    }
    let mut fields: Map<String, Template> = Map::new();
    if value.entries().is_empty() {
        fields.insert(bare.to_owned(), builder.template(value, stand, Secrets::Refused));
    }
    for (key, value) in value.entries().iter().filter(|(key, _)| key.text != "latest") {
        fields.insert(key.text.clone(), builder.template(value, stand, Secrets::Refused));
    }
    let kind = match (kind, is_latest(value)) {
        ("pipeline_complete", true) => "latest_complete",
        ("pipeline_in_phase", true) => "latest_in_phase",
        (kind, _) => kind,
    };
    match kind {
        "semaphore_available" if !fields.contains_key("slots") => {
            fields.insert("slots".to_owned(), Template::Literal(1.into()));
        }
        "issues_complete" | "no_blocked_issues" => {
            fields = Map::from([("filter".to_owned(), Template::Map(fields))]);
        }
        // tidy: the others have their fields as they are written.
        _ => {}
    }
    let condition = Map::from([(kind.to_owned(), Template::Map(fields))]);
    Some(Condition::Made(Box::new(Template::Map(condition))))
}

fn filter(builder: &mut Builder<'_>, node: &Node) -> IssueFilter {
    let filter = IssueFilter {
        labels: builder.texts(node.get("labels")),
        milestone: node.get("milestone").and_then(Node::text).map(str::to_owned),
        ids: builder.texts(node.get("ids")),
    };
    if filter.labels.is_empty() && filter.milestone.is_none() && filter.ids.is_empty() {
        let problem = Problem::at(node.at, "this asks about every issue there is");
        builder.notes.add(problem.help("name `labels`, a `milestone` or `ids`"));
    }
    filter
}

fn run(builder: &mut Builder<'_>, node: &Node) -> RunId {
    RunId::parse(node.text().unwrap_or_default()).unwrap_or_else(|error| {
        builder.notes.add(Problem::at(node.at, error.to_string()).label("expected a run's id"));
        RunId(0)
    })
}

fn holder(builder: &mut Builder<'_>, node: &Node) -> Option<Holder> {
    match Holder::parse(node.text().unwrap_or_default()) {
        Ok(holder) => Some(holder),
        Err(error) => {
            builder.notes.add(Problem::at(node.at, error.to_string()).label("expected a holder"));
            None
        }
    }
}
