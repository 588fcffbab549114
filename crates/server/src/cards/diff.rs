//! What an action would change: each of its values, compared with what the run read before.
//!
//! ```text
//!  ~ fields.state: "new" → "resolved"       the run read another value
//!  = fields.priority: "1"                   the run read the same value
//!  + fields.close_notes: "disk full"        the run did not read it
//! ```

use super::text::visible;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What begins a line that goes on with the value above it.
pub const QUOTES: char = ' ';
/// Where the values that are set stand in an action, and where the read ones stand in an output.
const WRAPPERS: [&str; 4] = ["fields", "json", "record", "result"];

/// The values of a read by their paths, as far as it gave one record.
#[must_use]
pub fn record(output: &Value) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    if let Value::Object(fields) = unwrapped(output) {
        for (path, value) in leaves(fields) {
            // A reference is read as an object and set by its value.
            let path = path.strip_suffix(".value").map(str::to_owned).unwrap_or(path);
            found.insert(path, value.clone());
        }
    }
    found
}

/// What stands in the wrappings of an answer: `{"json": {"result": …}}`.
fn unwrapped(value: &Value) -> &Value {
    let mut inner = value;
    // An answer is wrapped once or twice.
    for _ in 0..WRAPPERS.len() {
        let next = inner.as_object().and_then(|fields| WRAPPERS.iter().find_map(|key| fields.get(*key)));
        match next.filter(|next| next.is_object()) {
            Some(next) => inner = next,
            None => break,
        }
    }
    inner
}

/// Every value in an object that is not itself an object with something in it, or a list of such, with its path. The depth is that of
/// JSON that was read, which its reader bounds.
fn leaves(fields: &Map<String, Value>) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    // In the order of their names, as they are hashed: one action has one card.
    let mut names: Vec<(&String, &Value)> = fields.iter().collect();
    names.sort_unstable_by_key(|(name, _)| *name);
    for (name, value) in names {
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                let below = leaves(inner).into_iter();
                found.extend(below.map(|(path, value)| (format!("{}.{path}", key(name)), value)));
            }
            Value::Array(items)
                if items.iter().any(|item| item.as_object().is_some_and(|map| !map.is_empty())) =>
            {
                for (n, item) in items.iter().enumerate() {
                    match item {
                        Value::Object(inner) if !inner.is_empty() => {
                            let below = leaves(inner).into_iter();
                            found.extend(
                                below.map(|(path, value)| (format!("{}[{n}].{path}", key(name)), value)),
                            );
                        }
                        other => found.push((format!("{}[{n}]", key(name)), other)),
                    }
                }
            }
            other => found.push((key(name), other)),
        }
    }
    found
}

/// A name as part of a path; one that could be taken for something else is quoted.
fn key(name: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    if !name.is_empty() && name.chars().all(plain) {
        return visible(name);
    }
    literal(&Value::String(name.to_owned()))
}

fn literal(value: &Value) -> String {
    visible(&value.to_string())
}

/// A text of several lines, which is shown as such.
fn lines_of(value: &Value) -> Option<Vec<String>> {
    let text = value.as_str().filter(|text| text.contains('\n'))?;
    Some(text.split('\n').map(visible).collect())
}

/// What the fields of an action would change, line by line.
#[must_use]
pub fn lines(fields: &Value, before: &BTreeMap<String, Value>) -> Vec<String> {
    let Value::Object(fields) = fields else { return vec![format!("+ {}", literal(fields))] };
    let mut out = Vec::new();
    for (path, value) in leaves(fields) {
        let bare = WRAPPERS.iter().find_map(|wrapper| path.strip_prefix(wrapper)?.strip_prefix('.'));
        let known = before.get(bare.unwrap_or(&path));
        out.extend(change(&path, known, value));
    }
    out
}

fn change(path: &str, before: Option<&Value>, after: &Value) -> Vec<String> {
    let whole = |sign: char, value: &Value| -> Vec<String> {
        let text = lines_of(value).unwrap_or_else(|| vec![literal(value)]);
        text.iter().map(|line| format!("{QUOTES} {sign} | {line}")).collect()
    };
    let long = lines_of(after).is_some() || before.is_some_and(|value| lines_of(value).is_some());
    match before {
        Some(known) if known == after => vec![format!("= {path}: {}", literal(after))],
        Some(known) if long => [vec![format!("~ {path}:")], whole('-', known), whole('+', after)].concat(),
        Some(known) => vec![format!("~ {path}: {} → {}", literal(known), literal(after))],
        None if long => [vec![format!("+ {path}:")], whole('+', after)].concat(),
        None => vec![format!("+ {path}: {}", literal(after))],
    }
}
