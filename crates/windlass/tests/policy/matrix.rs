//! Everything that executes or sends, under every answer of policy: without a recorded allow, nothing reaches the canary.
//! Each execution is counted, where it happens and in the log, and has an allow of its own or shares one as the design
//! says: a command without fields of its own is decided once for its run.
//!
//! What there is, is asked of the code: a new kind of step or a new purpose of a command does not compile here before it
//! has a row. The tools have theirs in `tools`.

use crate::ALL;
use crate::outside::{Request, Server, World, say};
use crate::support::{Project, until};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::policy::Purpose;
use windlass_core::runbook::Kind;

/// What policy answers to what a row is about.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Allow,
    Deny,
    Ask,
    Broken,
}

/// How a row comes to act.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// By a run of these steps, or of this whole pipeline.
    Steps(&'static str),
    Pipeline(&'static str),
    /// By the read of an effect whose attempt was lost.
    Lost(&'static str),
    /// By an external queue, in this command.
    Queue(Purpose),
    /// By a notice of a failed run, in this channel.
    Notice(&'static str),
    /// By the look of `undo` at what is left of this step's effect.
    TakenBack(&'static str),
}

impl Way {
    /// What a command or read beside the steps is for.
    fn purpose(self) -> Purpose {
        match self {
            Way::Steps(_) | Way::Pipeline(_) => Purpose::Guard,
            Way::Lost(_) => Purpose::Reconcile,
            Way::Queue(purpose) => purpose,
            Way::Notice(_) => Purpose::Notice,
            Way::TakenBack(_) => Purpose::Undo,
        }
    }
}

/// What leaves a trace where it runs, and what is seen by the server at `URL`.
const RUN: &str = "echo ran >> trace";

const STEPS: &[Way] = &[
    Way::Steps("- { id: a, run: 'echo ran >> trace' }"),
    Way::Steps("- { id: a, http: { url: 'URL/read' } }"),
    Way::Steps("- { id: a, http: { url: 'URL/write', method: POST, json: { a: 1 } } }"),
    Way::Steps("- { id: a, foreach: [1, 2], run: 'echo ran >> trace' }"),
    Way::Steps("- { id: a, retry: { max_attempts: 2, backoff: [10ms] }, run: 'echo ran >> trace; exit 1' }"),
];
const PARALLEL: &[Way] = &[Way::Steps("- parallel: [ { id: a, run: 'echo ran >> trace' } ]")];
const GROUP: &[Way] = &[Way::Steps("- steps: [ { id: a, run: 'echo ran >> trace' } ]")];
const STRATEGY: &[Way] = &[Way::Steps(
    "- strategy: [ { id: one, run: 'echo ran >> trace; exit 1' }, { id: two, run: 'echo ran >> trace' } ]",
)];
const CALL: &[Way] = &[Way::Pipeline(
    "  p: { steps: [ { id: c, call: other } ] }
  other: { steps: [ { id: a, run: 'echo ran >> trace' } ] }",
)];
/// Where what executes stands, beside the steps.
const SECTIONS: &[Way] = &[
    Way::Pipeline(
        "  p: { steps: [ { id: t, transform: { value: '${{ 1 / 0 }}' } } ], on_failure: [ { id: a, run: 'echo ran >> trace' } ] }",
    ),
    Way::Pipeline(
        "  p: { steps: [ { id: t, transform: { value: 1 } } ], finally: [ { id: a, run: 'echo ran >> trace' } ] }",
    ),
    Way::Pipeline(
        "  p: { steps: [ { id: t, transform: { value: 1 }, compensate: { run: 'echo ran >> trace' } }, { id: u, transform: { value: '${{ 1 / 0 }}' } } ] }",
    ),
];
const GUARDS: &[Way] = &[
    Way::Steps(
        "- { id: t, transform: { value: 1 }, guard: [ { command: 'echo ran >> trace', on_failure: fail } ] }",
    ),
    Way::Steps(
        "- { id: t, transform: { value: 1 }, guard: { after: [ { command: 'echo ran >> trace', on_failure: fail } ] } }",
    ),
    // The repository's own configuration names a program that git starts.
    Way::Steps("- { id: t, transform: { value: 1 }, guard: [ { branch_exists: main, on_failure: fail } ] }"),
];
const ISSUES: &[Way] = &[
    Way::Steps(
        "- { id: t, transform: { value: 1 }, guard: [ { no_blocked_issues: { labels: [x] }, on_failure: fail } ] }",
    ),
    // The runbook's own command.
    Way::Pipeline(
        "  p: { steps: [ { id: t, transform: { value: 1 }, guard: [ { no_blocked_issues: { labels: [x] }, on_failure: fail } ] } ] }
issues: { command: 'echo ran >> trace; echo []' }",
    ),
];
const READS: &[Way] =
    &[Way::Lost("{ run: 'echo ran >> trace' }"), Way::Lost("{ http: { url: 'URL/read' } }")];

const NOTICES: &[Way] = &[Way::Notice("command: 'echo ran >> trace'"), Way::Notice("webhook: 'URL/notice'")];

/// One of each service that can be asked.
const LOOKS: &[Way] = &[
    Way::TakenBack("github.comment: { repo: o/r, number: 1, body: x }"),
    Way::TakenBack("slack.post: { channel: '#a', text: done }"),
    Way::TakenBack("servicenow.update: { table: incident, sys_id: a1, fields: { state: '6' } }"),
];

/// The rows of a kind of step.
fn of_kind(kind: &Kind) -> &'static [Way] {
    match kind {
        Kind::Run { .. } | Kind::Tool { .. } => STEPS,
        Kind::Parallel { .. } => PARALLEL,
        Kind::Steps { .. } => GROUP,
        Kind::Strategy { .. } => STRATEGY,
        Kind::Call { .. } => CALL,
        // An agent cannot be started in this version; the two others start and send nothing.
        Kind::Agent { .. } | Kind::Approve { .. } | Kind::Wait { .. } => &[],
    }
}

/// The rows of a purpose beside the steps.
fn of_purpose(purpose: Purpose) -> &'static [Way] {
    match purpose {
        Purpose::Guard => GUARDS,
        Purpose::Issues => ISSUES,
        Purpose::Reconcile => READS,
        Purpose::List => &[Way::Queue(Purpose::List)],
        Purpose::Take => &[Way::Queue(Purpose::Take)],
        Purpose::Notice => NOTICES,
        Purpose::Undo => LOOKS,
    }
}

fn rules(answer: Answer, only: Option<Purpose>) -> String {
    // What only moves the run along is allowed, so that what the row is about is reached.
    let about = match only {
        Some(purpose) => format!("when {{ context has operation && context.operation == \"{purpose}\" }}"),
        None => "unless { action == Windlass::Action::\"transform\" }".to_owned(),
    };
    match answer {
        Answer::Allow => ALL.to_owned(),
        Answer::Deny => {
            format!("{ALL}@id(\"no\") @reason(\"no\")\nforbid (principal, action, resource) {about};\n")
        }
        Answer::Ask => format!(
            "{ALL}@id(\"ask\") @reason(\"ask\") @approval(\"count: 1\")\nforbid (principal, action, resource) {about} unless {{ context.approvals >= 1 }};\n"
        ),
        Answer::Broken => "this is no policy\n".to_owned(),
    }
}

struct Stage {
    project: Project,
    outside: Server,
    /// What happened while the stage was set.
    before: usize,
}

impl Stage {
    fn new(book: &str, policy: &str) -> Stage {
        Stage::before(Server::start(|_: &Request| say(200, &json!({ "ok": true }))), book, policy)
    }

    fn before(outside: Server, book: &str, policy: &str) -> Stage {
        let mut project = Project::with(&book.replace("URL", &outside.url()));
        for service in ["GITHUB_API", "SERVICENOW", "SLACK_API"] {
            project = project.env(&format!("WINDLASS_{service}_URL"), &outside.url());
        }
        for token in ["GITHUB_TOKEN", "SERVICENOW_TOKEN", "SLACK_BOT_TOKEN"] {
            project = project.env(&format!("WINDLASS_SECRET_{token}"), "tok-1234567890");
        }
        let project =
            project.env("WINDLASS_HTTP_ALLOW_PRIVATE", "127.0.0.1").env("WINDLASS_PROBE_WAIT", "50ms");
        // git leaves a trace like everything else that is started.
        let path = std::env::var("PATH").unwrap_or_default();
        let script =
            format!("echo git >> {}\nPATH='{path}' exec git \"$@\"\n", project.path("trace").display());
        project.script("bin/git", &script);
        let project = {
            let first = format!("{}:{path}", project.path("bin").display());
            project.env("PATH", &first)
        };
        project.write("policy/a.cedar", policy);
        project.write("windlass.yaml", format!("issues: {{ command: '{RUN}; echo []' }}\n"));
        let git =
            "git init -q -b main . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x";
        let made = std::process::Command::new("bash").args(["-c", git]).current_dir(project.root()).status();
        assert!(made.unwrap().success());
        Stage { project, outside, before: 0 }
    }

    /// How often something executed or was sent.
    fn canaries(&self) -> usize {
        self.project.read("trace").lines().count() + self.outside.seen().len() - self.before
    }

    fn executions(&self) -> Executions {
        Executions::of(&self.project.windlass(&["events"]).code(0).lines())
    }
}

/// What was carried out, as the log has it.
#[derive(Debug, Default)]
pub(crate) struct Executions {
    /// Attempts that act outside of the process; each had an allow before it began.
    pub(crate) attempts: usize,
    /// Commands and reads beside the steps that were allowed, by the hash of what was asked about.
    pub(crate) beside: BTreeSet<(String, String)>,
}

impl Executions {
    /// Goes through a log in its order.
    pub(crate) fn of(events: &[Value]) -> Executions {
        let mut found = Executions::default();
        let mut steps: BTreeMap<(String, String), (String, Value)> = BTreeMap::new();
        let (mut once, mut own) = (BTreeSet::new(), BTreeSet::new());
        for event in events {
            let of = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
            let place = (of("pipeline_id"), of("step"));
            match event["type"].as_str().unwrap() {
                "pipeline:advanced" => {
                    steps.insert((of("id"), of("step")), (of("tool"), event["action_hash"].clone()));
                }
                "policy:decided" if event["verdict"] != "allow" => {}
                "policy:decided" if event["purpose"].is_string() => {
                    found.beside.insert((of("purpose"), of("action_hash")));
                }
                "policy:decided" if event["step"].is_string() => {
                    own.insert((place, event["action_hash"].to_string()));
                }
                "policy:decided" => {
                    once.insert((of("pipeline_id"), of("tool")));
                }
                "step:started" if event["lease_owner"].is_string() => {
                    let (tool, hash) = steps[&place].clone();
                    if ["transform", "call"].contains(&tool.as_str()) {
                        continue;
                    }
                    let by_run = once.contains(&(place.0.clone(), tool.clone())) && hash.is_null();
                    let allowed = by_run || own.contains(&(place, hash.to_string()));
                    assert!(allowed, "an attempt of {tool} began without an allow of its action: {event}");
                    found.attempts += 1;
                }
                _ => {}
            }
        }
        found
    }
}

/// Runs a row under an answer.
fn play(way: Way, answer: Answer) -> Stage {
    match way {
        Way::Steps(steps) => {
            let book = format!("name: book\npipelines:\n  p:\n    steps:\n      {steps}\n");
            run(&book, answer)
        }
        Way::Pipeline(pipelines) => run(&format!("name: book\npipelines:\n{pipelines}\n"), answer),
        Way::Lost(read) => lost(read, answer),
        Way::Queue(purpose) => queue(purpose, answer),
        Way::Notice(channel) => notice(channel, answer),
        Way::TakenBack(step) => taken_back(step, answer),
    }
}

fn run(book: &str, answer: Answer) -> Stage {
    let stage = Stage::new(book, &rules(answer, None));
    // It comes to its end, or to a wait for somebody.
    stage.project.windlass(&["run", "book.yaml", "p", "--no-wait", "--json"]);
    stage
}

/// A step is allowed and its process dies under it; then policy answers about the read.
fn lost(read: &str, answer: Answer) -> Stage {
    let book = format!(
        "name: book\npipelines:\n  p:\n    steps:\n      - {{ id: a, effect: {{ reconcile: {read} }}, run: 'echo began >> began; exec sleep 1000' }}\n"
    );
    let stage = Stage::new(&book, &rules(Answer::Allow, None));
    let holder = stage.project.start(&["run", "book.yaml", "--json"]);
    stage.project.await_file("began");
    holder.kill();
    let before = stage.project.events("policy:decided").len();
    stage.project.write("policy/a.cedar", rules(answer, None));
    let mut server = stage.project.start(&["serve", "--listen", "127.0.0.1:0"]);
    if answer == Answer::Broken {
        // A server does not begin with rules that it cannot read; what takes the run up otherwise asks nobody.
        server.wait();
        let resumed = stage.project.start(&["resume", "--json"]);
        until("policy's word on the read", || {
            (stage.project.events("policy:decided").len() > before).then_some(())
        });
        drop(resumed.kill());
        return stage;
    }
    server.await_line("windlass serves ");
    until("the read, or policy's word on it", || {
        let asked = stage.project.events("policy:decided").len() > before;
        (if answer == Answer::Allow { stage.canaries() > 0 } else { asked }).then_some(())
    });
    drop(server.kill());
    stage
}

fn queue(purpose: Purpose, answer: Answer) -> Stage {
    let (list, take) = if purpose == Purpose::List { (RUN, "true") } else { ("true", RUN) };
    let book = format!(
        "name: book
queues:
  outside: {{ external: {{ list: '{list}; echo \"[{{\\\"id\\\":\\\"1\\\"}}]\"', take: '{take}', poll: 1s }} }}
workers:
  w: {{ queue: outside, pipeline: p }}
pipelines:
  p: {{ steps: [ {{ id: t, transform: {{ value: 1 }} }} ] }}
"
    );
    let stage = Stage::new(&book, &rules(answer, Some(purpose)));
    if answer == Answer::Broken {
        // A server does not begin with rules that it cannot read; so it loses them while it serves.
        stage.project.write("policy/a.cedar", rules(Answer::Deny, Some(purpose)));
    }
    let mut server = stage.project.start(&["serve", "--listen", "127.0.0.1:0"]);
    server.await_line("windlass serves ");
    if answer == Answer::Broken {
        stage.project.write("policy/a.cedar", rules(Answer::Broken, None));
    }
    stage.project.windlass(&["deploy", "book.yaml"]).code(0);
    let polled = || stage.project.events("worker:polled").len();
    until("the queue to be looked at", || {
        (if answer == Answer::Allow { stage.canaries() > 0 } else { polled() >= 2 }).then_some(())
    });
    drop(server.kill());
    stage
}

fn notice(channel: &str, answer: Answer) -> Stage {
    let book =
        "name: book\npipelines:\n  p: { steps: [ { id: t, transform: { value: '${{ 1 / 0 }}' } } ] }\n";
    let stage = Stage::new(book, &rules(if answer == Answer::Broken { Answer::Deny } else { answer }, None));
    let channel = channel.replace("URL", &stage.outside.url());
    stage.project.write("windlass.yaml", format!("notices: {{ on: [failed], {channel} }}\n"));
    let mut server = stage.project.start(&["serve", "--listen", "127.0.0.1:0"]);
    server.await_line("windlass serves ");
    if answer == Answer::Broken {
        // A server does not begin with rules that it cannot read; so it loses them while it serves.
        stage.project.write("policy/a.cedar", rules(Answer::Broken, None));
    }
    stage.project.windlass(&["run", "book.yaml", "p", "--json"]).code(1);
    until("the notice to be done with", || (!stage.project.events("notice:sent").is_empty()).then_some(()));
    drop(server.kill());
    stage
}

/// A step is allowed and does its work; then policy answers about looking what is left of that.
fn taken_back(step: &str, answer: Answer) -> Stage {
    let world = World::default();
    let record = json!({ "state": "1", "sys_mod_count": "0" });
    world.things().records.insert(("incident".into(), "a1".into()), record);
    let outside = Server::start(move |request: &Request| world.answer(request));
    let book = format!("name: book\npipelines:\n  p: {{ steps: [ {{ id: a, {step} }} ] }}\n");
    let mut stage = Stage::before(outside, &book, &rules(Answer::Allow, None));
    let run = stage.project.windlass(&["run", "book.yaml", "p", "--json"]).code(0).last();
    stage.before = stage.canaries();
    stage.project.write("policy/a.cedar", rules(answer, None));
    let args = ["undo", run["id"].as_str().unwrap(), "--dry-run", "--json"];
    let plan = stage.project.windlass(&args).code(0).json();
    let (state, reason) = (&plan["items"][0]["state"], &plan["items"][0]["reason"]);
    if answer == Answer::Allow {
        assert_eq!(state, "ready", "{plan}");
    } else {
        // What could not be looked at is taken back only where that is forced.
        let because = reason.as_str().is_some_and(|reason| reason.contains("policy does not allow"));
        assert!(state == "conflict" && because, "{answer:?}: {plan}");
    }
    // What is asked again and has not changed is recorded once.
    let decided = stage.project.events("policy:decided").len();
    stage.project.windlass(&args).code(0);
    assert_eq!(stage.project.events("policy:decided").len(), decided, "{step} under {answer:?}");
    stage
}

fn check(ways: &[Way]) {
    for way in ways {
        for answer in [Answer::Allow, Answer::Deny, Answer::Ask, Answer::Broken] {
            let stage = play(*way, answer);
            let (happened, log) = (stage.canaries(), stage.executions());
            let whole = matches!(way, Way::Steps(_) | Way::Pipeline(_));
            if answer != Answer::Allow {
                assert_eq!(happened, 0, "{way:?} under {answer:?}");
                assert!(!whole || log.attempts + log.beside.len() == 0, "{way:?} under {answer:?}: {log:?}");
                continue;
            }
            let counted = log.attempts + log.beside.len();
            match way {
                Way::Steps(_) | Way::Pipeline(_) => {
                    assert!(happened > 0, "{way:?} does not happen at all");
                    assert_eq!(happened, counted, "{way:?}: {log:?}");
                }
                // The same is asked again as long as nobody knows, or whenever a queue is looked at: one action, one hash.
                Way::Lost(_) | Way::Queue(_) | Way::Notice(_) | Way::TakenBack(_) => {
                    let purpose = way.purpose().to_string();
                    let own = log.beside.iter().filter(|(asked, _)| *asked == purpose).count();
                    assert!(happened > 0, "{way:?} does not happen at all");
                    assert_eq!(own, 1, "{way:?}: {log:?}");
                }
            }
        }
    }
}

#[test]
fn steps_of_every_kind_happen_only_with_a_recorded_allow() {
    check(of_kind(&Kind::Run { command: String::new() }));
}

#[test]
fn groups_and_calls_happen_only_with_a_recorded_allow() {
    check(&[PARALLEL, GROUP, STRATEGY, CALL].concat());
    assert!(of_kind(&Kind::Steps { steps: Vec::new() }).len() == GROUP.len());
}

#[test]
fn what_ends_or_undoes_a_run_happens_only_with_a_recorded_allow() {
    check(SECTIONS);
}

#[test]
fn commands_of_guards_and_issues_happen_only_with_a_recorded_allow() {
    check(&[of_purpose(Purpose::Guard), of_purpose(Purpose::Issues)].concat());
}

#[test]
fn reads_of_lost_effects_happen_only_with_a_recorded_allow() {
    check(of_purpose(Purpose::Reconcile));
}

#[test]
fn commands_of_external_queues_happen_only_with_a_recorded_allow() {
    check(&[of_purpose(Purpose::List), of_purpose(Purpose::Take)].concat());
}

#[test]
fn notices_happen_only_with_a_recorded_allow() {
    check(of_purpose(Purpose::Notice));
}

#[test]
fn looks_before_an_undo_happen_only_with_a_recorded_allow() {
    check(of_purpose(Purpose::Undo));
}
