//! Checks that need more than one place of the file: references, calls, names, cycles.

use super::build::{Builder, Stand, Use, within};
use super::file::Merged;
use super::holds;
use super::problem::{Place, Problem, suggest};
use super::refs::Scope;
use super::shape;
use super::steps::{Call, Declared, Meta};
use super::vars;
use super::yaml::Node;
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::id::Name;
use windlass_core::runbook::{CALLS_MAX, Error, Node as StepNode, Pipeline, Runbook, VarDef};
use windlass_core::template::Template;

/// What is kept of a pipeline until the whole runbook is known.
pub(super) struct Piece {
    /// Where its name stands.
    pub at: Place,
    pub metas: Vec<Meta>,
    pub calls: Vec<Call>,
    pub names: Vec<(Declared, Name, Place)>,
}

/// What is kept of all pipelines.
#[derive(Default)]
pub(super) struct Checked(BTreeMap<Name, Piece>);

impl Checked {
    pub(super) fn add(&mut self, name: &Name, piece: Piece) {
        self.0.insert(name.clone(), piece);
    }
}

/// Whether the expressions of a pipeline refer to what is there, and approvals to steps that come later.
pub(super) fn pipeline(
    (pipeline, at): (&Pipeline, Place),
    metas: &[Meta],
    uses: &[Use],
    approvals: &[(StepNode, Vec<(Name, Place)>)],
    builder: &mut Builder<'_>,
) {
    holds::locks(pipeline, at, metas, builder);
    let scope = Scope::new(pipeline, metas);
    for one in uses {
        check_use(one, builder, |path| scope.check(path, one.stand));
    }
    for (approval, steps) in approvals {
        for (name, at) in steps {
            match scope.step(name.as_str()) {
                None => builder.unknown(*at, "step", name.as_str(), scope.names()),
                Some(step) if step <= *approval => {
                    let problem = Problem::at(*at, format!("`{name}` does not come after this approval"));
                    builder.notes.add(problem.help("an approval is for steps that are still to come"));
                }
                Some(_) => {}
            }
        }
    }
}

/// Checks what one expression refers to.
fn check_use(
    one: &Use,
    builder: &mut Builder<'_>,
    check: impl Fn(&[String]) -> Result<(), (String, String)>,
) {
    let len = (one.at.end - one.at.start) as usize;
    for reference in one.expression.references() {
        if let Err((message, help)) = check(&reference.path) {
            // Where the text stands byte for byte in the file, the caret can point into it.
            let source =
                builder.sources.get(usize::from(one.at.file)).map_or("", |source| source.text.as_str());
            let written = source.get(one.at.start as usize..one.at.end as usize).unwrap_or_default();
            let root = reference.path.first().map_or("", String::as_str);
            let exact = written.get(reference.at.start..).is_some_and(|text| text.starts_with(root));
            let range = reference.at.start..(reference.at.start + root.len()).min(len);
            let at = if exact { within(one.at, written, &range) } else { one.at };
            let problem = Problem::at(at, message);
            builder.notes.add(if help.is_empty() { problem } else { problem.help(help) });
        }
    }
}

/// Checks the expressions that stand outside of pipelines.
pub(super) fn free_uses(builder: &mut Builder<'_>) {
    for one in std::mem::take(&mut builder.uses) {
        let (known, what): (&[&str], &str) = match one.stand {
            Stand::Worker => (&["item"], "the item's data is `item`"),
            Stand::Trigger => (&["event", "headers"], "what came in is `event`, with its `headers`"),
            Stand::Schedule => (&[], "a schedule knows no values; write them out"),
            Stand::Step(_) | Stand::Foreach(_) | Stand::Outputs | Stand::Before => continue,
        };
        check_use(&one, builder, |path| match path.first().map(String::as_str) {
            Some(root) if known.contains(&root) => Ok(()),
            root => Err((format!("`{}` is not known here", root.unwrap_or_default()), what.to_owned())),
        });
    }
}

/// Whether the parts of a variable's declaration fit each other.
pub(super) fn variable(builder: &mut Builder<'_>, name: &str, node: &Node, var: &VarDef) {
    let own = Name::clean(name);
    let plain = VarDef { one_of: Vec::new(), ..var.clone() };
    let values = node.get("enum").map(Node::items).unwrap_or_default();
    for value in values {
        if let Err(error) = vars::check_var(&own, &plain, &value.json()) {
            builder.notes.add(Problem::at(value.at, error.to_string()).label("a value of `enum`"));
        }
    }
    if let Some((key, list)) = node.entry("enum")
        && list.items().is_empty()
    {
        builder.notes.add(Problem::at(key.at, "`enum` is empty, so no value fits"));
    }
    let Some((key, default)) = node.entry("default") else { return };
    if let Err(error) = vars::check_var(&own, var, &default.json()) {
        builder.notes.add(Problem::at(default.at, error.to_string()).label("the default"));
    }
    if var.required {
        let problem = Problem::at(key.at, format!("`{name}` is required, so its default is never used"));
        builder.notes.add(problem.help("take `required` or `default` away"));
    }
}

/// Checks that need the whole runbook.
pub(super) fn whole(merged: &Merged<'_>, runbook: &Runbook, checked: &Checked, builder: &mut Builder<'_>) {
    for (name, piece) in &checked.0 {
        holds::slots(runbook, name, &piece.metas, builder);
        for call in &piece.calls {
            given(&call.pipeline, &call.vars, runbook, builder);
        }
        for (declared, name, at) in &piece.names {
            match declared {
                Declared::Agent if !runbook.agents.contains_key(name) => {
                    builder.unknown(*at, "agent", name.as_str(), runbook.agents.keys().map(Name::as_str));
                }
                Declared::Semaphore if !runbook.semaphores.contains_key(name) => {
                    builder.unknown(
                        *at,
                        "semaphore",
                        name.as_str(),
                        runbook.semaphores.keys().map(Name::as_str),
                    );
                }
                Declared::Agent | Declared::Semaphore => {}
            }
        }
    }
    declared(merged, runbook, builder);
    cycles(merged, runbook, checked, builder);
    if builder.notes.is_empty()
        && let Err(error) = runbook.validate()
    {
        builder.notes.add(place_of(&error, runbook, checked, error.to_string()));
    }
}

/// Whether a pipeline is there, and takes what it is given.
fn given(
    (pipeline, at): &(Name, Place),
    given: &[(Name, Place, Template)],
    runbook: &Runbook,
    builder: &mut Builder<'_>,
) {
    let Some(def) = runbook.pipelines.get(pipeline) else {
        return builder.unknown(
            *at,
            "pipeline",
            pipeline.as_str(),
            runbook.pipelines.keys().map(Name::as_str),
        );
    };
    for (name, at, value) in given {
        match (def.vars.get(name), value) {
            (None, _) => builder.notes.add_with(|| {
                let message = format!("`{pipeline}` has no variable `{}`", shape::short(name.as_str()));
                let known = def.vars.keys().map(Name::as_str);
                Problem::at(*at, message).help(suggest(name.as_str(), known, "variables"))
            }),
            (Some(var), Template::Literal(value)) => {
                if let Err(error) = vars::check_var(name, var, value) {
                    builder.notes.add(Problem::at(*at, error.to_string()));
                }
            }
            // What an expression gives is known when it runs.
            (Some(_), _) => {}
        }
    }
    for (name, var) in &def.vars {
        if var.required && given.iter().all(|(given, ..)| given != name) {
            let problem = Problem::at(*at, format!("`{pipeline}` needs the variable `{name}`"));
            builder.notes.add(problem.help(format!("add `vars: {{ {name}: … }}`")));
        }
    }
}

/// Whether what is declared beside pipelines names what is there.
fn declared(merged: &Merged<'_>, runbook: &Runbook, builder: &mut Builder<'_>) {
    let queues = || runbook.queues.keys().map(Name::as_str);
    for (section, key) in [("workers", "queue"), ("queues", "dead_letter")] {
        for (own, node) in merged.entries(section) {
            let Some(queue) = node.get(key) else { continue };
            let name = queue.text().unwrap_or_default();
            if !runbook.queues.contains_key(name) {
                builder.unknown(queue.at, "queue", name, queues());
            } else if section == "queues" && name == own.text {
                let problem = Problem::at(queue.at, "the queue is its own `dead_letter`");
                builder.notes.add(problem.help("an item would die into the queue it died in, for ever"));
            }
        }
    }
    for section in ["workers", "schedules", "triggers"] {
        for (own, node) in merged.entries(section) {
            let Some(pipeline) = node.get("pipeline") else { continue };
            let name = Name::clean(pipeline.text().unwrap_or_default());
            let built = match section {
                "workers" => runbook.workers.get(own.text.as_str()).map(|worker| &worker.vars),
                "schedules" => runbook.schedules.get(own.text.as_str()).map(|schedule| &schedule.vars),
                _ => runbook.triggers.get(own.text.as_str()).map(|trigger| &trigger.vars),
            };
            let keys = node.get("vars").map(Node::entries).unwrap_or_default();
            let vars: Vec<(Name, Place, Template)> = keys
                .iter()
                .filter_map(|(key, _)| {
                    let value = built.and_then(|vars| vars.get(key.text.as_str()))?;
                    Some((Name::clean(&key.text), key.at, value.clone()))
                })
                .collect();
            let target = (name, pipeline.at);
            // A worker without `vars` gives the item's own keys, which are known when it comes.
            if section == "workers" && vars.is_empty() && runbook.pipelines.contains_key(&target.0) {
                continue;
            }
            given(&target, &vars, runbook, builder);
        }
    }
    for (own, node) in merged.entries("pipelines") {
        for need in node.get("needs").map(Node::items).unwrap_or_default() {
            let name = need.text().unwrap_or_default();
            if !runbook.pipelines.contains_key(name) {
                builder.unknown(need.at, "pipeline", name, runbook.pipelines.keys().map(Name::as_str));
            } else if name == own.text {
                builder.notes.add(Problem::at(need.at, format!("the pipeline `{name}` needs itself")));
            }
        }
    }
}

/// Pipelines that call or need each other in a circle would never end, or never begin.
fn cycles(merged: &Merged<'_>, runbook: &Runbook, checked: &Checked, builder: &mut Builder<'_>) {
    let calls = |name: &Name| -> Vec<(Name, Place)> {
        checked
            .0
            .get(name)
            .map(|piece| piece.calls.iter().map(|call| call.pipeline.clone()).collect())
            .unwrap_or_default()
    };
    let needs: BTreeMap<Name, Vec<(Name, Place)>> = merged
        .entries("pipelines")
        .iter()
        .map(|(key, node)| {
            let list = node.get("needs").map(Node::items).unwrap_or_default();
            let named = |need: &Node| (Name::clean(need.text().unwrap_or_default()), need.at);
            (Name::clean(&key.text), list.iter().map(named).collect())
        })
        .collect();
    let needs = |name: &Name| needs.get(name).cloned().unwrap_or_default();
    let before = builder.notes.count();
    circle(runbook, &calls, "call each other in a circle", builder);
    if builder.notes.count() == before {
        depth(runbook, &calls, builder);
    }
    circle(runbook, &needs, "need each other in a circle", builder);
}

/// Whether pipelines call each other more deeply than runs may: the last call of such a chain is refused when it is
/// reached. There are no circles.
fn depth(runbook: &Runbook, calls: &dyn Fn(&Name) -> Vec<(Name, Place)>, builder: &mut Builder<'_>) {
    // For each pipeline that some chain of this many calls leads to, one such chain.
    let mut chains: BTreeMap<Name, Vec<Name>> =
        runbook.pipelines.keys().map(|name| (name.clone(), vec![name.clone()])).collect();
    for called in 1..=CALLS_MAX + 1 {
        let mut longer = BTreeMap::new();
        for (name, chain) in &chains {
            for (callee, at) in calls(name) {
                let chain: Vec<Name> = chain.iter().chain([&callee]).cloned().collect();
                if called > CALLS_MAX {
                    let names: Vec<&str> = chain.iter().map(Name::as_str).collect();
                    let message =
                        format!("runs may call each other {CALLS_MAX} deep, and this is the call after that");
                    return builder.notes.add(Problem::at(at, message).help(names.join(" → ")));
                }
                longer.insert(callee, chain);
            }
        }
        chains = longer;
    }
}

fn circle(
    runbook: &Runbook,
    next: &dyn Fn(&Name) -> Vec<(Name, Place)>,
    what: &str,
    builder: &mut Builder<'_>,
) {
    let mut done: BTreeSet<Name> = BTreeSet::new();
    for start in runbook.pipelines.keys() {
        // A walk without recursion: each entry is a pipeline and where its followers are to be gone on with.
        let mut path: Vec<(Name, Vec<(Name, Place)>)> = Vec::new();
        if done.insert(start.clone()) {
            path.push((start.clone(), next(start)));
        }
        while let Some((_, followers)) = path.last_mut() {
            let Some((follower, at)) = followers.pop() else {
                path.pop();
                continue;
            };
            if let Some(from) = path.iter().position(|(name, _)| *name == follower) {
                // A pipeline that needs itself was said already.
                if path.len() - from > 1 || what.starts_with("call") {
                    let names: Vec<&str> = path[from..].iter().map(|(name, _)| name.as_str()).collect();
                    let names = names.join(" → ");
                    let message = format!("pipelines {what}: {names} → {follower}");
                    builder.notes.add(Problem::at(at, message));
                }
            } else if done.insert(follower.clone()) {
                let followers = next(&follower);
                path.push((follower, followers));
            }
        }
    }
}

/// The core's own refusal, at the place it is about as far as that is known.
fn place_of(error: &Error, runbook: &Runbook, checked: &Checked, message: String) -> Problem {
    let step_at = |pipeline: &Name, step: &Name| {
        let piece = checked.0.get(pipeline)?;
        let def = runbook.pipelines.get(pipeline)?;
        let place = def.nodes.iter().position(|node| node.id == *step);
        Some(place.and_then(|place| piece.metas.get(place)).map_or(piece.at, |meta| meta.at))
    };
    let at = match error {
        Error::Duplicate(pipeline, step)
        | Error::Member(pipeline, step)
        | Error::Place(pipeline, step)
        | Error::Unsupported(pipeline, step, _) => step_at(pipeline, step),
        Error::TooMany(pipeline, ..) => checked.0.get(pipeline).map(|piece| piece.at),
        Error::Missing(_, step, ..) | Error::Zero(_, step, _) => {
            runbook.pipelines.keys().find_map(|pipeline| step_at(pipeline, step))
        }
        Error::WakeOn(..) => None,
    };
    match at {
        Some(at) => Problem::at(at, message),
        None => Problem::whole(message),
    }
}

/// Whether a text is five cron fields: minute, hour, day, month, weekday.
pub(super) fn cron(text: &str) -> Result<(), String> {
    const FIELDS: [(&str, u32, u32); 5] =
        [("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7)];
    const WORDS: [&str; 19] = [
        "SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT", "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL",
        "AUG", "SEP", "OCT", "NOV", "DEC",
    ];
    let fields: Vec<&str> = text.split_whitespace().collect();
    if text.len() > 256 || fields.len() != FIELDS.len() {
        return Err(format!("it has {} fields", fields.len()));
    }
    for (field, (name, min, max)) in fields.iter().zip(FIELDS) {
        let value = |text: &str| {
            let days = if name == "weekday" { &WORDS[..7] } else { &WORDS[7..] };
            let word = matches!(name, "weekday" | "month") && days.contains(&text.to_uppercase().as_str());
            let number = text.parse::<u32>().is_ok_and(|n| (min..=max).contains(&n));
            word || number || name == "day" && text == "L"
        };
        let fits = |part: &str| {
            let (range, step) =
                part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
            let range_fits = match range.split_once('-') {
                _ if range == "*" || range == "?" && matches!(name, "day" | "weekday") => true,
                Some((from, to)) => value(from) && value(to),
                None => value(range),
            };
            range_fits
                && step.is_none_or(|step| step.parse::<u32>().is_ok_and(|n| (1..=max.max(1)).contains(&n)))
        };
        if let Some(part) = field.split(',').find(|part| !fits(part)) {
            return Err(format!("`{}` does not fit the {name}", windlass_core::wire::shorten(part)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::cron;

    #[test]
    fn cron_fields_are_checked() {
        for fits in [
            "0 2 * * *",
            "*/5 * * * *",
            "0 0 1,15 * 1-5",
            "0 9-17/2 * JAN-jun MON",
            "59 23 31 12 7",
            "0 0 L * ?",
        ] {
            assert_eq!(cron(fits), Ok(()), "{fits}");
        }
        for wrong in [
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "a * * * *",
            "*/0 * * * *",
            "1-x * * * *",
            "MON * * * *",
            "@daily",
            ", * * * *",
        ] {
            assert!(cron(wrong).is_err(), "{wrong}");
        }
    }
}
