//! The documents that follow from the code: `docs/events.md`, the index of `docs/errors`, the error pages, and the
//! index of `docs/machines`.
//!
//! `UPDATE_DOCS=1 cargo test -p windlass-core` renews what is generated; the error pages are written by hand
//! and only checked.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use windlass_core::code::Code;
use windlass_core::event::{Category, Event, Spec};

fn docs(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(path)
}

/// Compares a generated document with the one that is kept, or renews it where `UPDATE_DOCS` is set.
fn keep_current(path: &str, text: &str) {
    let file = docs(path);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        kept == text,
        "docs/{path} is out of date: run `UPDATE_DOCS=1 cargo test -p windlass-core`, look at the change, commit it"
    );
}

fn namespace(tag: &str) -> &str {
    tag.split_once(':').map_or(tag, |(namespace, _)| namespace)
}

#[test]
fn events_are_documented() {
    let mut out = String::from(
        "# Events\n\n\
        Everything that can stand in the log. A **fact** became true and changes state when it is applied; a \
        **signal** tells that something happened; an **action** is what somebody asked for, and what comes of it \
        are facts.\n\n\
        A record is one flat JSON object: `type`, `stream`, `ver`, `at`, `tenant`, `by`, the fields below in their \
        order, `chain`, `seq`, and last the private values. Times are milliseconds since 1970-01-01T00:00:00Z. `?` \
        marks a field that may be absent. Of a *private* field `x` only `x_digest` stands before `chain`; `x_salt` \
        and `x` stand after `seq` and can be taken away without breaking the proof.\n\n\
        Generated from the code; `scripts/test` fails when it is out of date.\n",
    );
    let specs = Event::specs();
    let facts = specs.iter().filter(|s| s.category == Category::Fact).count();
    let mut order: Vec<&str> = Vec::new();
    let mut groups: BTreeMap<&str, Vec<&Spec>> = BTreeMap::new();
    for spec in &specs {
        let namespace = namespace(spec.tag);
        if !order.contains(&namespace) {
            order.push(namespace);
        }
        groups.entry(namespace).or_default().push(spec);
    }
    let _ = writeln!(out, "\n{} events, {facts} of them facts, in {} namespaces.", specs.len(), order.len());
    for namespace in order {
        let _ =
            writeln!(out, "\n## {namespace}\n\n| tag | | stream | fields | meaning |\n|---|---|---|---|---|");
        for spec in &groups[namespace] {
            let doc: Vec<_> = spec.doc.iter().map(|line| line.trim()).collect();
            let _ = writeln!(
                out,
                "| `{}` | {} | {} | {} | {} |",
                spec.tag,
                spec.category.as_str(),
                spec.stream,
                fields(spec),
                doc.join(" ").replace('|', "\\|")
            );
        }
    }
    keep_current("events.md", &out);
}

fn fields(spec: &Spec) -> String {
    let field = |(name, kind): &(&str, String)| {
        let (private, kind) =
            kind.strip_prefix("private ").map_or(("", kind.as_str()), |kind| ("*private* ", kind));
        match kind.strip_suffix('?') {
            Some(kind) => format!("`{name}?` {private}{kind}"),
            None => format!("`{name}` {private}{kind}"),
        }
    };
    let list: Vec<String> = spec.fields.iter().map(field).collect();
    list.join(", ")
}

#[test]
fn tags_are_unique_and_keep_to_the_convention() {
    let word = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
            && !text.starts_with('_')
            && !text.ends_with('_')
    };
    let mut seen = BTreeSet::new();
    for spec in Event::specs() {
        assert!(seen.insert(spec.tag), "{} stands twice", spec.tag);
        // The one tag that stands alone: it is addressed to a human, not to a part of the engine.
        if spec.tag == "escalate" {
            continue;
        }
        let parts: Vec<&str> = spec.tag.split(':').collect();
        assert!(parts.len() == 2 && parts.iter().all(|p| word(p)), "{} is not namespace:action", spec.tag);
    }
}

/// Verbs in the imperative: what is asked for, not what became true.
const IMPERATIVE: &[&str] = &[
    "acquire", "advance", "approve", "block", "cancel", "complete", "create", "decide", "delete", "deploy",
    "drop", "expire", "export", "fail", "fork", "input", "kill", "load", "merge", "nudge", "pause", "post",
    "push", "redact", "reject", "release", "request", "resize", "restart", "resume", "retry", "return",
    "run", "send", "skip", "start", "stop", "suspend", "take", "undo", "update", "withdraw",
];

#[test]
fn facts_are_not_imperative_and_actions_are() {
    for spec in Event::specs() {
        let action = spec.tag.rsplit([':', '_']).next().unwrap_or_default();
        let imperative = IMPERATIVE.contains(&action);
        match spec.category {
            // The one fact with an action's name: logs and clients know the manual retry under it.
            Category::Fact => assert!(!imperative || spec.tag == "queue:item_retry", "{}", spec.tag),
            Category::Action => assert!(imperative, "{}: add its verb to IMPERATIVE", spec.tag),
            Category::Signal => {}
        }
    }
}

/// Field names are part of the format as well.
#[test]
fn field_names_are_plain_and_do_not_collide_with_the_envelope() {
    const ENVELOPE: &[&str] = &["type", "stream", "ver", "at", "tenant", "by", "chain", "seq"];
    for spec in Event::specs() {
        let mut seen = BTreeSet::new();
        assert!(!spec.doc.is_empty() && spec.doc.iter().any(|line| !line.trim().is_empty()), "{}", spec.tag);
        for (field, _) in &spec.fields {
            assert!(seen.insert(*field), "{}.{field} stands twice", spec.tag);
            assert!(!ENVELOPE.contains(field), "{}.{field} is a key of the envelope", spec.tag);
            assert!(!field.ends_with("_digest") && !field.ends_with("_salt"), "{}.{field}", spec.tag);
        }
    }
}

/// What clients were promised: these tags with at least these fields.
const PROMISED: &[(&str, &[&str])] = &[
    ("command:run", &["pipeline_id", "pipeline_name", "project_root", "invoke_dir", "command", "args"]),
    ("timer:start", &["id"]),
    ("agent:waiting", &["agent_id"]),
    ("system:shutdown", &[]),
    ("runbook:loaded", &["hash", "version", "runbook"]),
    (
        "pipeline:created",
        &[
            "id",
            "kind",
            "name",
            "runbook_hash",
            "cwd",
            "vars",
            "initial_step",
            "created_at_epoch_ms",
            "namespace",
        ],
    ),
    ("pipeline:advanced", &["id", "step"]),
    ("pipeline:updated", &["id", "vars"]),
    ("pipeline:deleted", &["id"]),
    ("step:started", &["pipeline_id", "step", "agent_id"]),
    ("step:waiting", &["pipeline_id", "step", "reason"]),
    ("step:completed", &["pipeline_id", "step"]),
    ("step:failed", &["pipeline_id", "step", "error"]),
    ("shell:exited", &["pipeline_id", "step", "exit_code"]),
    ("agent:working", &["agent_id"]),
    ("agent:failed", &["agent_id", "error"]),
    ("agent:exited", &["agent_id", "exit_code"]),
    ("agent:gone", &["agent_id"]),
    ("session:created", &["id", "pipeline_id"]),
    ("session:deleted", &["id"]),
    ("workspace:created", &["id", "path", "branch", "owner", "mode"]),
    ("workspace:ready", &["id"]),
    ("workspace:failed", &["id", "reason"]),
    ("workspace:deleted", &["id"]),
    (
        "worker:started",
        &["worker_name", "project_root", "runbook_hash", "queue_name", "concurrency", "namespace"],
    ),
    ("worker:wake", &["worker_name"]),
    ("worker:poll_complete", &["worker_name", "items"]),
    ("worker:item_dispatched", &["worker_name", "item_id", "pipeline_id"]),
    ("worker:stopped", &["worker_name"]),
    ("queue:pushed", &["queue_name", "item_id", "data", "pushed_at_epoch_ms", "namespace"]),
    ("queue:taken", &["queue_name", "item_id", "worker_name", "namespace"]),
    ("queue:completed", &["queue_name", "item_id", "namespace"]),
    ("queue:failed", &["queue_name", "item_id", "error", "namespace"]),
    ("queue:item_retry", &["queue_name", "item_id", "namespace"]),
    ("queue:item_dead", &["queue_name", "item_id", "namespace"]),
    ("session:input", &["id", "input"]),
    ("pipeline:resume", &["id", "message", "vars"]),
    ("pipeline:cancel", &["id"]),
    ("workspace:drop", &["id"]),
    ("agent:signal", &["agent_id", "kind", "message"]),
];

#[test]
fn promised_tags_and_fields_are_there() {
    let specs: BTreeMap<&str, Spec> = Event::specs().into_iter().map(|spec| (spec.tag, spec)).collect();
    for (tag, fields) in PROMISED {
        let spec = specs.get(tag).unwrap_or_else(|| panic!("{tag} is missing"));
        for field in *fields {
            assert!(spec.fields.iter().any(|(name, _)| name == field), "{tag}.{field} is missing");
        }
    }
}

#[test]
fn error_codes_are_indexed() {
    let mut out = String::from(
        "# Errors\n\n\
        Every refusal has a stable code with one HTTP status and one exit code. The exit codes: 1 failed, 2 bad \
        usage or an invalid runbook, 3 cancelled, 4 waiting for a human, 5 not found, 6 conflict, 7 refused, 70 \
        internal error, 75 temporarily unavailable.\n\n\
        Generated from the code; `scripts/test` fails when it is out of date.\n\n\
        | code | HTTP | exit | |\n|---|---|---|---|\n",
    );
    for code in Code::ALL {
        let _ =
            writeln!(out, "| [{code}]({code}.md) | {} | {} | {} |", code.http(), code.exit(), code.title());
    }
    keep_current("errors/README.md", &out);
}

/// A page begins with its code and title, states status and exit code as the table has them, and says what
/// happened, why, and what to do.
#[test]
fn error_pages_agree_with_the_table() {
    for code in Code::ALL {
        let path = docs(&format!("errors/{code}.md"));
        let page = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{code}: {e}"));
        let head = format!(
            "# {code}\n\n{}. HTTP status {}, exit code {}.\n\n",
            code.title(),
            code.http(),
            code.exit()
        );
        assert!(page.starts_with(&head), "docs/errors/{code}.md must begin with:\n{head}");
        let mut rest = page.as_str();
        for part in ["\n## What happened\n\n", "\n## Why\n\n", "\n## What to do\n\n"] {
            let Some((_, after)) = rest.split_once(part) else {
                panic!("docs/errors/{code}.md lacks {part:?}")
            };
            rest = after;
        }
        let lines = page.lines().count();
        assert!((10..=30).contains(&lines), "docs/errors/{code}.md has {lines} lines");
    }
}

/// The file of each machine's table, and the page that its test draws.
const MACHINES: &[(&str, &str)] = &[
    ("approval.rs", "approval"),
    ("audit.rs", "sealer"),
    ("budget.rs", "budget"),
    ("idempotency.rs", "ingress_key"),
    ("item.rs", "item"),
    ("lifecycle.rs", "run"),
    ("lock.rs", "lock"),
    ("queue.rs", "queue"),
    ("receipt/key.rs", "effect_key"),
    ("schedule.rs", "schedule"),
    ("semaphore.rs", "semaphore"),
    ("signal.rs", "signal"),
    ("step.rs", "step"),
    ("strategy.rs", "strategy"),
    ("task.rs", "task"),
    ("worker.rs", "worker"),
    ("workspace.rs", "workspace"),
    ("workspace/session.rs", "session"),
];

/// Every file below a directory, as paths relative to it.
fn files(root: &Path, below: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root.join(below)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{below}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(root, &format!("{path}/")));
        } else {
            found.push(path);
        }
    }
    found
}

#[test]
fn every_machine_has_its_page_and_the_index_has_them_all() {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    let has_table = |path: &String| {
        std::fs::read_to_string(source.join(path)).unwrap().contains("\npub const TABLE: &[Row] = table!")
    };
    let tables: BTreeSet<String> = files(&source, "").into_iter().filter(has_table).collect();
    assert_eq!(tables, MACHINES.iter().map(|(file, _)| (*file).to_string()).collect());
    let pages: BTreeSet<String> = files(&docs("machines"), "").into_iter().collect();
    let expected = MACHINES.iter().map(|(_, page)| format!("{page}.md"));
    assert_eq!(pages, expected.chain(["README.md".to_string()]).collect());

    let mut out = String::from(
        "# Machines\n\n\
        A page for each machine of the core, drawn by its table test from what the test saw: every input was fed to a \
        sample of every state. Bold is where it led, a code is how it was refused. `UPDATE_DOCS=1 cargo test -p \
        windlass-core` renews the pages, and run once more this index.\n\n\
        | machine | table | pairs | what it is |\n|---|---|---|---|\n",
    );
    let mut total = 0;
    let mut machines = MACHINES.to_vec();
    machines.sort_by_key(|(_, page)| *page);
    for (file, page) in machines {
        let text = std::fs::read_to_string(docs(&format!("machines/{page}.md"))).unwrap();
        let about = text.lines().nth(2).unwrap();
        let count = text.lines().find_map(|line| line.split_once(" pairs of state and input")).unwrap().0;
        total += count.parse::<u32>().unwrap();
        let _ = writeln!(out, "| [{page}]({page}.md) | `{file}` | {count} | {about} |");
    }
    let _ = writeln!(out, "\n{total} pairs in all.");
    keep_current("machines/README.md", &out);
}
