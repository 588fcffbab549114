//! The stories of the suite: each about something that a store could get wrong.

use super::{Act, POLICY, Story, create, run};
use serde_json::{Value, json};
use windlass_core::approval::{Attempt, Channel, Verdict as Vote};
use windlass_core::digest::Digest;
use windlass_core::event::PolicyDecided;
use windlass_core::id::{Holder, ItemId, Name, RunId, Scoped, StepId};
use windlass_core::policy::{Risk, Verdict};
use windlass_core::run::Initiator;
use windlass_core::small::Map;
use windlass_core::time::Millis;
use windlass_core::turn::command::{Command, Deploy, Pushed};
use windlass_core::{queue, semaphore, worker};

/// What policy says in every story.
pub(super) fn allowed(
    (pipeline_id, step): (RunId, Option<StepId>),
    tool: Name,
    action_hash: Option<Digest>,
    approvals: u32,
) -> PolicyDecided {
    PolicyDecided {
        pipeline_id,
        step,
        tool,
        verdict: Verdict::Allow,
        policy_version: POLICY,
        action_hash,
        approvals,
        rules: Vec::new(),
        reasons: Vec::new(),
        risk: Risk::Low,
        tier: None,
        count: None,
        two_person: None,
        approvers: None,
        expires_ms: None,
        purpose: None,
    }
}

/// What a human says in every story.
pub(super) fn agreed(action_hash: Digest) -> Attempt {
    Attempt {
        decision: Vote::Approved,
        by: Name::clean("ann"),
        human: true,
        groups: Vec::new(),
        action_hash,
        channel: Channel::Cli,
        reason: None,
        card: None,
    }
}

fn ask(command: Command) -> Act {
    Act::Ask(Box::new(command))
}

fn shell(id: &str) -> Value {
    json!({ "id": id, "kind": { "run": { "command": id } } })
}

fn with(mut step: Value, key: &str, value: Value) -> Value {
    step[key] = value;
    step
}

fn book(pipelines: &Value) -> Value {
    json!({ "name": "story", "version": 1, "pipelines": pipelines })
}

/// A pipeline of these steps, one after the other.
fn sequence(steps: &[Value]) -> Value {
    let places: Vec<usize> = (0..steps.len()).collect();
    json!({ "nodes": steps, "steps": places })
}

fn scoped(name: &str) -> Scoped {
    Scoped::new(&Name::clean("default"), &Name::clean("default"), &Name::clean(name))
}

fn ok() -> Act {
    Act::Succeed(Value::Null)
}

fn cancel(n: u128) -> Act {
    let (initiator, reason) = (Initiator::User, Some("enough".to_owned()));
    ask(Command::Cancel { run: run(n), initiator, user: None, reason })
}

/// All stories.
#[must_use]
#[allow(clippy::too_many_lines)] // A list; each entry stands for itself.
pub fn stories() -> Vec<Story> {
    let two = || book(&json!({ "p": with(sequence(&[shell("a"), shell("b")]), "vars", json!({ "n": {} })) }));
    let hold = json!({ "name": { "literal": "only" }, "overlap": "queue" });
    let slots = json!({ "name": { "literal": "builders" }, "weight": 2 });
    let retry = json!({ "max_attempts": 2, "backoff": [5_000] });
    let event = json!({ "id": "w", "kind": { "wait": { "wait": { "event": {
        "event": "go", "key": null, "timeout": 60_000, "continue_on_timeout": false } } } } });
    let approve = json!({ "id": "ok", "kind": { "approve": { "message": { "literal": "Go?" }, "approvers": [],
        "count": 1, "tier": "low", "expires": 3_600_000, "steps": [] } } });
    let each = json!({ "over": { "expr": "vars.list" }, "max_parallel": 2, "fail_fast": true });
    let signal = Command::Signal {
        run: run(1),
        name: Name::clean("go"),
        key: None,
        data: json!({ "x": 1 }),
        event_id: None,
    };
    vec![
        Story {
            name: "two steps",
            runbook: two(),
            acts: vec![ask(create(1, "p", Value::Null)), ok(), Act::Succeed(json!({ "x": 1 }))],
        },
        Story {
            name: "a run is made once",
            runbook: two(),
            acts: vec![ask(create(1, "p", Value::Null)), ask(create(1, "p", Value::Null)), ok(), ok()],
        },
        Story {
            name: "a lost attempt is tried again after a restart",
            runbook: two(),
            acts: vec![ask(create(1, "p", Value::Null)), Act::Restart, ok(), Act::Restart, ok()],
        },
        Story {
            name: "two runs and one lock",
            runbook: book(&json!({ "p": sequence(&[with(shell("a"), "lock", hold)]) })),
            acts: vec![ask(create(1, "p", Value::Null)), ask(create(2, "p", Value::Null)), ok(), ok()],
        },
        Story {
            name: "three runs and two slots",
            runbook: book(&json!({ "p": sequence(&[with(shell("a"), "semaphore", slots)]) })),
            acts: vec![
                ask(Command::Semaphore {
                    semaphore: scoped("builders"),
                    input: semaphore::Input::Configure(semaphore::Config {
                        capacity: 4,
                        heartbeat_timeout: windlass_core::time::Span::secs(60),
                    }),
                }),
                ask(create(1, "p", Value::Null)),
                ask(create(2, "p", Value::Null)),
                ask(create(3, "p", Value::Null)),
                ok(),
                ok(),
                ok(),
            ],
        },
        Story {
            name: "a failure and its second try",
            runbook: book(&json!({ "p": sequence(&[with(shell("a"), "retry", retry), shell("b")]) })),
            acts: vec![
                ask(create(1, "p", Value::Null)),
                Act::Fail("boom"),
                Act::Pass(10_000),
                ok(),
                Act::Fail("for good"),
            ],
        },
        Story {
            name: "an event that comes",
            runbook: book(&json!({ "p": sequence(&[event.clone(), shell("b")]) })),
            acts: vec![ask(create(1, "p", Value::Null)), ask(signal.clone()), ok()],
        },
        Story {
            name: "an event that does not come",
            runbook: book(&json!({ "p": sequence(&[event, shell("b")]) })),
            acts: vec![ask(create(1, "p", Value::Null)), Act::Pass(61_000), ask(signal)],
        },
        Story {
            name: "an approval",
            runbook: book(&json!({ "p": sequence(&[approve, shell("b")]) })),
            acts: vec![ask(create(1, "p", Value::Null)), Act::Approve, ok()],
        },
        Story {
            name: "items side by side",
            runbook: book(&json!({ "p": with(sequence(&[with(shell("a"), "foreach", each)]), "vars",
                json!({ "list": { "required": true } })) })),
            acts: vec![ask(create(1, "p", json!({ "list": [1, 2, 3] }))), ok(), ok(), ok()],
        },
        Story {
            name: "a called pipeline",
            runbook: book(&json!({
                "p": sequence(&[json!({ "id": "c", "kind": { "call": { "pipeline": "q", "vars": {} } } })]),
                "q": sequence(&[shell("x")]),
            })),
            acts: vec![ask(create(1, "p", Value::Null)), ok()],
        },
        Story {
            name: "a cancelled run",
            runbook: two(),
            acts: vec![ask(create(1, "p", Value::Null)), cancel(1), cancel(1)],
        },
        Story {
            name: "a suspended run",
            runbook: two(),
            acts: vec![
                ask(create(1, "p", Value::Null)),
                ask(Command::Suspend { run: run(1), reason: None }),
                ok(),
                ask(Command::Resume { run: run(1), message: None, vars: None }),
                ok(),
                // After a restart the first step has to be done again.
                ok(),
            ],
        },
        Story {
            name: "a failed run goes on as another",
            runbook: two(),
            acts: vec![
                ask(create(1, "p", Value::Null)),
                ok(),
                Act::Fail("boom"),
                ask(Command::Descend { run: run(1), new: run(2), from: None, runbook: None }),
                ok(),
            ],
        },
        Story {
            name: "a queue and its worker",
            runbook: two(),
            acts: vec![
                ask(Command::Queue { queue: scoped("jobs"), input: queue_input() }),
                ask(Command::Worker { worker: scoped("w"), input: worker_input() }),
                ask(push(1)),
                ask(push(2)),
                ok(),
                ok(),
                ok(),
                ok(),
            ],
        },
        Story {
            name: "a runbook is deployed, and what follows it works",
            runbook: deployable(two()),
            acts: vec![
                ask(deploy("/first")),
                ask(Command::PushAll { queue: scoped("jobs"), items: vec![item(1), item(2), item(3)] }),
                ok(),
                ok(),
                ask(Command::TakeMany {
                    queue: scoped("jobs"),
                    holder: Holder::Outside(Name::clean("c")),
                    max: 5,
                }),
                ask(deploy("/second")),
                ok(),
                ok(),
                ok(),
                ok(),
            ],
        },
        Story {
            name: "a full disk",
            runbook: two(),
            acts: vec![
                ask(create(1, "p", Value::Null)),
                Act::Fill,
                ask(create(2, "p", Value::Null)),
                ok(),
                Act::Drain,
                ask(create(3, "p", Value::Null)),
                ok(),
                ok(),
                ok(),
                // A restart finds room, so there is one more run to end; and what was kept is done again.
                ok(),
                ok(),
                ok(),
            ],
        },
    ]
}

fn item(n: u128) -> Pushed {
    Pushed {
        id: ItemId(n),
        data: json!({ "n": n as u64 }),
        priority: 0,
        not_before: None,
        dedupe: None,
        from: None,
    }
}

fn push(n: u128) -> Command {
    Command::Push { queue: scoped("jobs"), item: Box::new(item(n)) }
}

/// A runbook that declares a queue, a worker, a schedule, a lock and a semaphore.
fn deployable(mut book: Value) -> Value {
    let terms = json!({ "visibility_timeout": 30_000, "max_attempts": 1, "cooldown": 0 });
    book["queues"] = json!({ "jobs": terms });
    book["workers"] = json!({ "w": { "queue": "jobs", "pipeline": "p", "concurrency": 1 } });
    let hourly = json!({
        "spec": "every 1h", "timezone": "UTC", "jitter": 0, "catch_up": "one", "overlap": "skip", "pipeline": "p",
    });
    book["schedules"] = json!({ "hourly": hourly });
    book["locks"] = json!({ "merge": { "heartbeat_timeout": 60_000 } });
    book["semaphores"] = json!({ "builders": { "capacity": 2, "heartbeat_timeout": 60_000 } });
    book
}

fn deploy(root: &str) -> Command {
    let next = Map::from([(Name::clean("hourly"), Millis(u64::MAX / 2))]);
    let (deployment, project_root) = (scoped("book"), root.to_owned());
    Command::Deploy(Box::new(Deploy { deployment, hash: super::BOOK, project_root, next }))
}

fn queue_input() -> queue::Input {
    queue::Input::Configure(queue::Settings::default())
}

fn worker_input() -> worker::Input {
    let name = Name::clean;
    worker::Input::Start(worker::Settings {
        queue: name("jobs"),
        pipeline: name("p"),
        runbook_hash: super::BOOK,
        project_root: "/".to_owned(),
        concurrency: 1,
        wake_on: Vec::new(),
        poll: None,
    })
}
