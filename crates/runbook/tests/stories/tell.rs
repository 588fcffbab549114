//! How facts, effects and answers are told: one short line each.

use crate::names::Names;
use serde_json::{Map, Value};
use windlass_core::effect::Effect;
use windlass_core::time::Span;
use windlass_core::turn::command::{Refusal, Reply};

/// The longest value of a field that is told whole.
const VALUE_MAX: usize = 100;

/// What every record has, what tells nothing in one tenant and namespace, and what only binds values to the chain.
const UNTOLD: &[&str] = &[
    "type",
    "stream",
    "ver",
    "at",
    "tenant",
    "by",
    "chain",
    "seq",
    "step",
    "lineage",
    "namespace",
    "name",
    "cwd",
    "project_root",
    "invoke_dir",
    "runbook",
    "source",
    "policy_version",
    "correlation_id",
    "node",
    "initial_node",
    "initial_step",
    "created_at_epoch_ms",
    "pipeline_name",
];

/// A record as one line: its tag, what it is about, and its fields in the order of the record.
pub fn fact(names: &mut Names, line: &str) -> String {
    let record: Map<String, Value> = serde_json::from_str(line).expect("a record is JSON");
    let text = |key: &str| record.get(key).and_then(Value::as_str).unwrap_or_default();
    let stream = text("stream");
    let run = stream.strip_prefix("run/").unwrap_or_default();
    let mut about = if run.is_empty() { stream.to_owned() } else { run.to_owned() };
    if let Some(step) = record.get("step").and_then(Value::as_str) {
        about = format!("{about}/{step}");
    }
    let mut told = format!("{} {about}", text("type"));
    let mut fields: Vec<(usize, &String, &Value)> = record
        .iter()
        .filter(|(key, _)| {
            !UNTOLD.contains(&key.as_str()) && !key.ends_with("_salt") && !key.ends_with("_digest")
        })
        .filter(|(key, value)| {
            !(is_empty(value) || key.as_str() == "duration_ms" && value.as_u64() == Some(0))
        })
        // What the stream is called says it already.
        .filter(|(_, value)| value.as_str().is_none_or(|text| text.is_empty() || !stream.ends_with(text)))
        .map(|(key, value)| (line.find(&format!("\"{key}\":")).unwrap_or_default(), key, value))
        .collect();
    fields.sort_by_key(|(place, ..)| *place);
    for (_, key, value) in fields {
        let (key, value) = match (key.strip_suffix("_ms"), value.as_u64()) {
            (Some(key), Some(ms)) => (key, Span(ms).to_string()),
            (Some(_), None) | (None, _) => (key.as_str(), plain(names, value)),
        };
        told.push_str(&format!(" {key}={value}"));
    }
    names.shorten(&told)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn plain(names: &mut Names, value: &Value) -> String {
    let text = match value {
        Value::Object(map) if map.contains_key("source") => {
            let word = |key: &str| map.get(key).and_then(Value::as_str);
            ["source", "of", "user", "key", "event_id"]
                .into_iter()
                .filter_map(word)
                .collect::<Vec<_>>()
                .join(":")
        }
        Value::String(text) if !text.contains([' ', '"', '\n']) => text.clone(),
        Value::String(_)
        | Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::Array(_)
        | Value::Object(_) => {
            String::from_utf8(windlass_core::canonical::bytes(value)).expect("JSON is text")
        }
    };
    let text = names.shorten(&text);
    match text.char_indices().nth(VALUE_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// An effect as one line: what is asked of the outside, and what it is about.
pub fn effect(names: &mut Names, effect: &Effect) -> String {
    let (what, fields) = effect.log_fields();
    let mut told = what.replace('_', " ");
    let field = |key: &str| fields.iter().find(|(name, _)| *name == key).map(|(_, value)| value.clone());
    if let Some(run) = field("run_id") {
        told.push_str(&format!(" {run}"));
        told.push_str(&field("step").map(|step| format!("/{step}")).unwrap_or_default());
    }
    for (key, value) in &fields {
        if !matches!(*key, "run_id" | "step") {
            told.push_str(&format!(" {key}={value}"));
        }
    }
    match effect {
        Effect::Execute(lease) => {
            told.push_str(&format!(" attempt={} epoch={}", lease.attempt, lease.epoch));
            if let Some(input) = lease.input.as_ref().filter(|input| !is_empty(input)) {
                told.push_str(&format!(" input={}", plain(names, input)));
            }
        }
        Effect::Stop { epoch, grace, .. } => told.push_str(&format!(" epoch={epoch} grace={grace}")),
        Effect::EvaluatePolicy { tool, approvals, .. } => {
            told.push_str(&format!(" tool={tool} approvals={approvals}"));
        }
        Effect::Probe { epoch, .. } => told.push_str(&format!(" epoch={epoch}")),
        Effect::GatherGuard { after, .. } => told.push_str(if *after { " after" } else { " before" }),
        Effect::ShowApproval { reminder, .. } => told.push_str(if *reminder { " again" } else { "" }),
        // The fields that go into log lines say enough.
        Effect::ComputeSlots { .. }
        | Effect::ListItems { .. }
        | Effect::TakeItem { .. }
        | Effect::Send { .. }
        | Effect::Kill { .. }
        | Effect::Nudge { .. }
        | Effect::WorktreeAdd { .. }
        | Effect::WorktreeRemove { .. }
        | Effect::Notify { .. } => {}
    }
    names.shorten(&told)
}

/// An answer.
pub fn reply(names: &mut Names, reply: &Reply) -> String {
    let told = match reply {
        Reply::Leased(lease) => {
            format!("leased {}/{} attempt={} epoch={}", lease.run, lease.step, lease.attempt, lease.epoch)
        }
        // tidy: the rest is short and says what it is.
        other => snake(&format!("{other:?}")),
    };
    names.shorten(&told)
}

/// `NotApprover` as `not_approver`.
fn snake(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if c.is_ascii_uppercase() && out.ends_with(|before: char| before.is_ascii_lowercase()) {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// A refusal, by its stable code.
pub fn refusal(names: &mut Names, refusal: &Refusal) -> String {
    let told = match refusal {
        Refusal::Error { code, message, retry_at } => {
            let again = retry_at.map(|at| format!(" (again at {at})")).unwrap_or_default();
            format!("refused {code}: {message}{again}")
        }
        Refusal::Need(streams) => panic!("a state has every stream, and {streams:?} are missing"),
    };
    names.shorten(&told)
}
