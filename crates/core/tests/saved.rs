//! The saved form of streams, held fast by `golden/saved.txt`: every path of it, and the type of what stands there.
//!
//! A snapshot of another form is not read, so whatever changes here needs another [`Snapshot::FORM`]. The samples of
//! every event are folded into a stream of each kind, and what is saved after each of them is looked at. Raise the
//! form first; then `UPDATE_GOLDEN=1 cargo test -p windlass-core --test saved` writes the file anew.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

#[allow(dead_code)] // The wire format's tests look at more of a sample.
mod samples;

use samples::{samples, stream};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use windlass_core::digest::Digest;
use windlass_core::event::{Event, StreamCarried};
use windlass_core::id::{Name, RunId};
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::state::{Body, Snapshot, State};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/saved.txt");

/// Adds every path of a value. Keys that are data (ids, names, numbers) all count as one.
fn paths(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(list) => {
            list.iter().for_each(|value| paths(value, &format!("{path}[]"), found));
            "list"
        }
        Value::Object(map) => {
            for (key, value) in map {
                let is_word = key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
                let key = if is_word && key != "build" { key } else { "*" };
                paths(value, &format!("{path}.{key}"), found);
            }
            "object"
        }
    };
    found.insert(format!("{path} {kind}"));
}

/// A stream that says what it came to begins anew as just that.
fn goes_on(state: &State, id: &StreamId, tenant: &Name, at: Millis) {
    let body = &state.stream(id).unwrap().body;
    let Some(came_to) = body.carried() else { return };
    assert!(id.goes_on(), "{id} ends, and so cannot be carried on");
    let mut anew = State::new();
    let event = StreamCarried { prior: Digest::default(), state: came_to }.into();
    anew.apply_fact(id, tenant, &event, at).unwrap();
    assert_eq!(&anew.stream(id).unwrap().body, body, "{id} goes on as something else");
}

/// Every path of what is saved of a stream of each kind.
fn saved() -> BTreeSet<String> {
    let (mut state, mut found) = (State::new(), BTreeSet::new());
    let run = StreamId::Run(RunId::parse("run_0000000000000000000000001a").unwrap());
    let (tenant, mut at) = (Name::clean("acme"), Millis(1_763_245_800_000));
    for mut sample in samples() {
        let id = match &mut sample.event {
            // What is loaded as a runbook has to be one.
            Event::RunbookLoaded(loaded) => {
                loaded.runbook = json!({ "name": "b", "version": 1, "pipelines": { "p": {
                    "nodes": [{ "id": "a", "kind": { "run": { "command": "true" } } }], "steps": [0] } } });
                stream(sample.spec.stream)
            }
            // A run has the id that it was created with.
            _ if sample.spec.stream == "run" => run.clone(),
            _ => stream(sample.spec.stream),
        };
        at = Millis(at.0 + 1);
        // An event that cannot begin a stream waits for nobody: others of its kind can.
        if state.apply_fact(&id, &tenant, &sample.event, at).is_err() {
            continue;
        }
        let saved = serde_json::to_value(state.save(&id).unwrap()).unwrap();
        paths(&saved["state"], sample.spec.stream, &mut found);
        let back: Snapshot = serde_json::from_str(&saved.to_string()).unwrap();
        if let Body::Run(run) = &back.state.body {
            assert_eq!(
                run.steps.capacity(),
                run.steps.len(),
                "a run that was read takes no more than it needs"
            );
        }
        assert_eq!(Some(back), state.save(&id), "{}", sample.spec.tag);
        goes_on(&state, &id, &tenant, at);
    }
    for kind in Event::specs().iter().map(|spec| spec.stream) {
        assert!(found.contains(&format!("{kind} object")), "nothing is saved of a {kind}");
    }
    found
}

#[test]
fn what_is_saved_changes_with_its_form_alone() {
    let form = format!("form {}", Snapshot::FORM);
    let kept = std::fs::read_to_string(GOLDEN).unwrap_or_default();
    let (kept_form, kept_paths) = kept.split_once('\n').unwrap_or_default();
    let kept_paths: BTreeSet<String> = kept_paths.lines().map(str::to_owned).collect();
    let found = saved();
    if kept_form != form && std::env::var_os("UPDATE_GOLDEN").is_some() {
        let lines: Vec<&str> = found.iter().map(String::as_str).collect();
        std::fs::write(GOLDEN, format!("{form}\n{}\n", lines.join("\n"))).unwrap();
        return;
    }
    let other: Vec<&String> = found.symmetric_difference(&kept_paths).collect();
    assert!(
        kept_form == form && other.is_empty(),
        "what is saved has changed since {kept_form}: raise Snapshot::FORM, then run `UPDATE_GOLDEN=1 cargo test -p \
         windlass-core --test saved`: {other:#?}"
    );
}
