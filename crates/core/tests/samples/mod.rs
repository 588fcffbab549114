//! A sample of every event, built from the events' own descriptions.
//!
//! A sample is a line with a value for each field, read by the decoder. Which value fits is found by asking:
//! for each type there are candidates, and the decoder says which field it refuses. So a new event or a
//! new optional field gets its sample by itself; only a new *type* needs a line in [`candidates`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use windlass_core::digest::{Digest, Salt};
use windlass_core::event::{Event, Spec};
use windlass_core::id::{ItemId, Name, RunId, Scoped, SessionId, WorkspaceId};
use windlass_core::record::{Check, Record};
use windlass_core::stream::StreamId;
use windlass_core::wire::Error;

/// Which fields a sample has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// All of them, and every private value revealed.
    Full,
    /// Only those that must be there; empty lists; every private value redacted.
    Minimal,
}

/// A sample event with what went into it.
pub(crate) struct Sample {
    /// The description it was built from.
    pub(crate) spec: Spec,
    /// The event.
    pub(crate) event: Event,
    /// The fields of the sample before the chain, `(key, raw JSON)`, in the order of the line.
    pub(crate) public: Vec<(String, String)>,
    /// The private values revealed after it: `(field, salt, raw JSON)`.
    pub(crate) private: Vec<(String, Salt, String)>,
}

/// All samples: each event in full, then, where that is another one, with the least it can have.
#[must_use]
pub(crate) fn samples() -> Vec<Sample> {
    let mut all = Vec::new();
    for (full, minimal) in Event::specs().into_iter().zip(Event::specs()) {
        let full = build(full, Fill::Full);
        let minimal = build(minimal, Fill::Minimal);
        let differ = full.event != minimal.event;
        all.push(full);
        if differ {
            all.push(minimal);
        }
    }
    all
}

/// The stream that holds the samples of a kind.
#[must_use]
pub(crate) fn stream(kind: &str) -> StreamId {
    let scoped = |name: &str| Scoped::new(&Name::clean("acme"), &Name::clean("prod"), &Name::clean(name));
    match kind {
        "run" => StreamId::Run(RunId(1)),
        "queue" => StreamId::Queue(scoped("builds")),
        "item" => StreamId::Item(ItemId(1)),
        "lock" => StreamId::Lock(scoped("merge/main")),
        "semaphore" => StreamId::Semaphore(scoped("runners")),
        "worker" => StreamId::Worker(scoped("builder")),
        "schedule" => StreamId::Schedule(scoped("nightly")),
        "trigger" => StreamId::Trigger(scoped("github/72d3162e")),
        "effect" => StreamId::Effect(scoped("run_1/notify")),
        "runbook" => StreamId::Runbook(Digest([7; 32])),
        "deployment" => StreamId::Deployment(scoped("release")),
        "workspace" => StreamId::Workspace(WorkspaceId(1)),
        "session" => StreamId::Session(SessionId(1)),
        "tenant" => StreamId::Tenant(Name::clean("acme")),
        "tokens" => StreamId::Tokens(Name::clean("acme")),
        "signal" => StreamId::Signal(scoped("merged/17")),
        "retired" => StreamId::Retired(Name::clean("acme")),
        // An outbox stands in any stream.
        "system" | "any" => StreamId::System,
        other => panic!("no sample of a stream of kind `{other}`: add one here"),
    }
}

/// Values to try for a type of the documentation, best first.
fn candidates(kind: &str) -> Vec<String> {
    const ID: &str = "0000000000000000000000001a";
    if let Some(prefix) = kind.strip_suffix(" id") {
        return vec![format!("\"{prefix}_{ID}\"")];
    }
    let trigger = r#"{"source":"api","key":"order-17","user":"ann","event_id":"e1"}"#;
    let inherited = format!(r#"{{"step":"build","from":"run_{ID}","output":{{"ok":true}}}}"#);
    let taken = r#"{"step":"build","node":0,"section":"main","tool":"shell","status":"succeeded","attempt":1,"epoch":1,"ended":1}"#;
    let fixed: &[&str] = match kind {
        "number" => &["7"],
        "bool" => &["true"],
        "string" => &[r#""a \"quoted\" line\nand é""#],
        "time" => &["1763245800123"],
        "milliseconds" => &["30000"],
        "name" | "word" => &[r#""build""#],
        "json" => &[r#"{"a":[1,2.5,null,"\t"],"é":{"deep":false}}"#],
        "hex" => &[],
        "stream" => &[r#""lock/acme/prod/merge/main""#],
        "holder" => &[r#""worker:builder""#],
        "actor" => &[r#""user:ann""#],
        "scoped name" => &[r#""acme/prod/builds""#],
        "trigger" => &[trigger],
        "subject" => &[
            r#"{"repo":"acme/shop","pr":"17","url":"https://example.org/acme/shop/17"}"#,
            r#"{"repo":"acme/shop"}"#,
        ],
        "group" => &[r#"{"kind":"parallel","total":3,"width":2,"fail_fast":"stop"}"#],
        "gate" => &[r#""lock:merge/main""#],
        "blocked on" => &[r#"{"lock":"merge/main"}"#],
        "action" => &[r#"{"tool":"http","operation":"post","target":"crm","fields":{"id":1},"risk":"high"}"#],
        "reversal" => &[r#"{"tool":"http","operation":"delete","target":"crm","fields":{"id":1}}"#],
        "lineage" | "inherited step" | "list" | "bound" => &[],
        other => panic!("no sample of type `{other}`: add one to candidates()"),
    };
    let mut list: Vec<String> = fixed.iter().map(ToString::to_string).collect();
    match kind {
        "hex" => list.extend([32, 16, 64].map(|bytes| format!("\"{}\"", "5a".repeat(bytes)))),
        "lineage" => {
            list.push(format!(r#"{{"root_run":"run_{ID}","resumed_from":"run_{ID}","resume_count":1}}"#));
        }
        "inherited step" => list.push(inherited),
        "bound" => list.push(format!(r#"{{"by":["ok"],"action_hash":"{}"}}"#, "5a".repeat(32))),
        "list" => {
            // The description does not say of what: the decoder does.
            for prefix in ["run", "apr", "itm", "ses", "wsp", "rcp", "agt", "ntc"] {
                list.push(format!("[\"{prefix}_{ID}\"]"));
            }
            list.extend([
                format!("[{inherited}]"),
                format!("[{taken}]"),
                r#"[{"input":{"a":1},"output":{"ok":true}}]"#.into(),
                format!(r#"[{{"step":"build","action_hash":"{}"}}]"#, "5a".repeat(32)),
                "[7,8]".into(),
                r#"["guard"]"#.into(),
                r#"["failed"]"#.into(),
                r#"["b","a"]"#.into(),
            ]);
            list.sort_by_key(|value| !value.starts_with(r#"["b""#));
        }
        _ => {}
    }
    list
}

/// What a field's type says: private, optional, and the type itself.
#[must_use]
pub(crate) fn parts(kind: &str) -> (bool, bool, &str) {
    let (private, rest) = kind.strip_prefix("private ").map_or((false, kind), |rest| (true, rest));
    let (optional, rest) = rest.strip_suffix('?').map_or((false, rest), |rest| (true, rest));
    (private, optional, rest)
}

fn build(spec: Spec, fill: Fill) -> Sample {
    let mut values: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (field, kind) in &spec.fields {
        let (_, optional, kind) = parts(kind);
        if fill == Fill::Minimal && optional {
            continue;
        }
        let empty = fill == Fill::Minimal && kind == "list";
        let mut list = if empty { vec!["[]".to_owned()] } else { candidates(kind) };
        list.reverse();
        values.insert(field, list);
    }
    // Each refusal takes a candidate away, so this ends.
    loop {
        let sample = write(&spec, fill, &values);
        match Record::decode(&sample.0, Check::Form) {
            Ok(record) => {
                return Sample { event: record.event, spec, public: sample.1, private: sample.2 };
            }
            Err(Error::Field { field, error }) => {
                let list = values.get_mut(field).unwrap_or_else(|| panic!("{}.{field}: {error}", spec.tag));
                let refused = list.pop().unwrap_or_default();
                if let Error::Word { expected, .. } = *error {
                    list.clear();
                    let word = format!("\"{}\"", expected[0]);
                    list.push(if refused.starts_with('[') { format!("[{word}]") } else { word });
                }
                assert!(!list.is_empty(), "{}.{field}: no candidate fits; the last was {refused}", spec.tag);
            }
            Err(other) => panic!("{}: {other}\n{}", spec.tag, sample.0),
        }
    }
}

type Written = (String, Vec<(String, String)>, Vec<(String, Salt, String)>);

fn write(spec: &Spec, fill: Fill, values: &BTreeMap<&str, Vec<String>>) -> Written {
    let mut public = Vec::new();
    let mut private = Vec::new();
    for (i, (field, kind)) in spec.fields.iter().enumerate() {
        let Some(value) = values.get(field).and_then(|list| list.last()) else { continue };
        if !parts(kind).0 {
            public.push(((*field).to_owned(), value.clone()));
            continue;
        }
        let salt = Salt([u8::try_from(i).unwrap_or(u8::MAX); 16]);
        let digest = Digest::of(&[&salt.0, value.as_bytes()]);
        public.push((format!("{field}_digest"), format!("\"{digest}\"")));
        if fill == Fill::Full {
            private.push(((*field).to_owned(), salt, value.clone()));
        }
    }
    let mut line = format!(
        r#"{{"type":"{}","stream":"{}","ver":1,"at":1763245800123,"tenant":"acme","by":"system""#,
        spec.tag,
        stream(spec.stream)
    );
    for (key, value) in &public {
        let _ = write!(line, ",\"{key}\":{value}");
    }
    let _ = write!(line, ",\"chain\":\"{}\",\"seq\":1", Digest::default());
    for (field, salt, value) in &private {
        let _ = write!(line, ",\"{field}_salt\":\"{salt}\",\"{field}\":{value}");
    }
    line.push('}');
    (line, public, private)
}
