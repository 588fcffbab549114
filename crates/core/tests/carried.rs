//! What streams that go on are carried by (`stream:carried`), held fast by `golden/carried.jsonl`: once it stands in a log,
//! the records before it may be gone, so every later version has to read every form that an earlier one wrote.
//!
//! The file only grows. Where a form changes, `UPDATE_GOLDEN=1 cargo test -p windlass-core --test carried` adds what is
//! written now; what stood there before stays, and is still read.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

#[allow(dead_code)] // The wire format's tests look at more of a sample.
mod samples;

use samples::{samples, stream};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use windlass_core::digest::Digest;
use windlass_core::event::{Event, StreamCarried};
use windlass_core::id::Name;
use windlass_core::private::Private;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::state::State;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/carried.jsonl");
const AT: Millis = Millis(1_763_245_800_000);

/// What this version carries streams by, after each of the samples, as lines.
fn carried() -> Vec<String> {
    let (mut state, mut lines) = (State::new(), Vec::new());
    let tenant = Name::clean("acme");
    for mut sample in samples() {
        let id = stream(sample.spec.stream);
        if let Event::ScheduleCreated(made) = &mut sample.event {
            // One with variables is not carried: they are private.
            made.vars = Private::New(json!({}));
        }
        // An event that cannot begin a stream waits for nobody: others of its kind can.
        if !id.goes_on() || state.apply_fact(&id, &tenant, &sample.event, AT).is_err() {
            continue;
        }
        let Some(shown) = state.stream(&id).and_then(|stream| stream.body.carried()) else { continue };
        let line = json!({ "stream": id, "state": shown }).to_string();
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// The stream that a line carries on, with what it comes to.
fn read(line: &str) -> (StreamId, Value) {
    let value: Value = serde_json::from_str(line).unwrap();
    let id = StreamId::parse(value["stream"].as_str().unwrap()).unwrap();
    let event = Event::from(StreamCarried { prior: Digest::default(), state: value["state"].clone() });
    let mut state = State::new();
    state.apply_fact(&id, &Name::clean("acme"), &event, AT).unwrap_or_else(|error| panic!("{line}: {error}"));
    let shown = state.stream(&id).unwrap().body.carried().unwrap();
    (id, shown)
}

/// The shape of a value: every path of it. Keys that are data count as one.
fn paths(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(list) => list.iter().for_each(|value| paths(value, &format!("{path}[]"), found)),
        Value::Object(map) => {
            for (key, value) in map {
                let is_word = key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
                paths(value, &format!("{path}.{}", if is_word { key } else { "*" }), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    found.insert(path.to_owned());
}

#[test]
fn every_form_that_a_stream_was_ever_carried_by_is_read() {
    let kept = std::fs::read_to_string(GOLDEN).unwrap_or_default();
    let mut kept: Vec<String> = kept.lines().map(str::to_owned).collect();
    let shape = |lines: &[String]| {
        let mut found = BTreeSet::new();
        for line in lines {
            let (id, _) = read(line);
            let value: Value = serde_json::from_str(line).unwrap();
            paths(&value["state"], id.kind(), &mut found);
        }
        found
    };
    let now = carried();
    let unknown: Vec<String> = shape(&now).difference(&shape(&kept)).cloned().collect();
    if !unknown.is_empty() && std::env::var_os("UPDATE_GOLDEN").is_some() {
        kept.extend(now);
        std::fs::write(GOLDEN, kept.join("\n") + "\n").unwrap();
        return;
    }
    assert!(
        unknown.is_empty(),
        "a form is not in the file yet: run `UPDATE_GOLDEN=1 cargo test -p windlass-core --test carried`: {unknown:#?}"
    );
}

#[test]
fn what_a_stream_is_carried_by_is_all_that_it_came_to() {
    for line in carried() {
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read(&line).1, value["state"], "{line}");
    }
    // Every kind that goes on has a sample.
    let kinds: BTreeSet<&str> = carried().iter().map(|line| read(line).0.kind()).collect();
    for kind in Event::specs().iter().map(|spec| spec.stream).filter(|kind| stream_goes_on(kind)) {
        assert!(kinds.contains(kind), "no {kind} is carried");
    }
}

fn stream_goes_on(kind: &str) -> bool {
    !["any", "system"].contains(&kind) && stream(kind).goes_on()
}
