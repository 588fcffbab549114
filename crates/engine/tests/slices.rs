//! A command with very much to decide: others are served between its slices, and an end in the middle of it loses nothing.
#![allow(clippy::unwrap_used, clippy::panic)] // It is all test; clippy knows only the test functions.

use serde_json::{Value, json};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use windlass_core::caps::{DECISION_LEN_MAX, TURN_LEN_MAX};
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::id::{Name, RunId};
use windlass_core::run::{Actor, Initiator, Source, Trigger};
use windlass_core::runbook::STEPS_MAX;
use windlass_core::stream::StreamId;
use windlass_core::template::{Evaluate, Scope};
use windlass_core::time::Millis;
use windlass_core::turn::Found;
use windlass_core::turn::command::{Command, Create, Refusal, Reply};
use windlass_core::turn::state::Body;
use windlass_engine::conformance::BOOK;
use windlass_engine::fake::{Always, Collected, Counting, Hands, Memory};
use windlass_engine::handle::{Inbox, inbox};
use windlass_engine::port::Store as _;
use windlass_engine::{Engine, Handle, Options, Parts};

/// `all` is the list of all items, and everything else is false.
struct Items;

impl Evaluate for Items {
    fn evaluate(&self, expr: &str, _: &dyn Scope) -> Result<Value, String> {
        Ok(if expr == "all" { (0..1_000).collect() } else { Value::Bool(false) })
    }
}

struct Stage {
    engine: Engine<Memory>,
    inbox: Inbox<Memory>,
    handle: Handle<Memory>,
}

impl Stage {
    /// A loop whose slices are over when they begin, so that it decides one thing that follows in each.
    fn on(store: Memory, ids: u128) -> Stage {
        Stage::with_slices(store, ids, Duration::ZERO)
    }

    fn with_slices(store: Memory, ids: u128, slice: Duration) -> Stage {
        let (handle, inbox) = inbox();
        let parts = Parts {
            store,
            clock: Arc::new(Hands::at(Millis(1_000_000))),
            ids: Box::new(Counting(ids)),
            evaluate: Arc::new(Items),
            policy: Arc::new(Always(Digest([7; 32]))),
            outside: Arc::new(Collected::default()),
        };
        let options = Options { slots: 0, slice, ..Options::default() };
        let mut engine = Engine::new(parts, options, handle.clone());
        engine.recover().unwrap();
        Stage { engine, inbox, handle }
    }

    fn turn(&mut self) {
        self.engine.turn(std::iter::from_fn(|| self.inbox.next()), true).unwrap();
    }

    fn ask(&self, command: Command) -> Receiver<Result<Reply, Refusal>> {
        let (sender, receiver) = channel();
        let sender = Mutex::new(sender);
        self.handle.ask(Actor::SYSTEM, command, move |answer| {
            let _ = sender.lock().unwrap_or_else(PoisonError::into_inner).send(answer);
        });
        receiver
    }

    /// How a run ended.
    fn ended(&mut self, run: RunId) -> (String, Option<String>) {
        match self.engine.store().view().find(&StreamId::Run(run)) {
            Found::Here(Body::Run(run)) => {
                let code = run.failure.as_ref().map(|failure| failure.1.code.as_str().to_owned());
                (run.status().as_str().to_owned(), code)
            }
            Found::Here(_) | Found::Absent | Found::Unloaded => panic!("there is no such run"),
        }
    }

    fn reached(&mut self, run: RunId) -> usize {
        match self.engine.store().view().find(&StreamId::Run(run)) {
            Found::Here(Body::Run(run)) => run.steps.len(),
            Found::Here(_) | Found::Absent | Found::Unloaded => 0,
        }
    }
}

fn load() -> Command {
    let each = json!({
        "id": "each", "kind": { "run": { "command": "true" } },
        "foreach": { "over": { "expr": "all" }, "max_parallel": 1_000, "fail_fast": false },
    });
    let one = json!({ "id": "one", "kind": { "run": { "command": "true" } } });
    // Each item is a group of its own, of steps that are passed by.
    let mut nodes = vec![json!({
        "id": "many", "kind": { "steps": { "steps": (1..=60).collect::<Vec<_>>() } },
        "foreach": { "over": { "expr": "all" }, "max_parallel": 1, "fail_fast": false },
    })];
    nodes.extend(
        (1..=60).map(
            |n| json!({ "id": format!("s{n}"), "kind": { "run": { "command": "true" } }, "when": "no" }),
        ),
    );
    let book = json!({ "name": "b", "version": 1, "pipelines": {
        "many": { "nodes": nodes, "steps": [0] },
        "large": { "nodes": [each], "steps": [0] },
        "small": { "vars": { "t": {} }, "nodes": [one], "steps": [0] },
    } });
    let runbook = Box::new(serde_json::from_value(book).unwrap());
    Command::Load { hash: BOOK, tenant: Name::clean("a"), runbook, source: None }
}

fn create(tenant: &str, id: u128, pipeline: &str) -> Command {
    Command::Create(Box::new(Create {
        id: RunId(id),
        tenant: Name::clean(tenant),
        namespace: Name::clean("default"),
        runbook: BOOK,
        pipeline: Name::clean(pipeline),
        name: Name::clean(pipeline),
        cwd: "/".into(),
        vars: json!({}),
        trigger: Trigger {
            source: Source::Cli,
            key: None,
            user: None,
            event_id: None,
            traceparent: None,
            of: None,
        },
        subject: None,
        correlation_id: None,
        priority: 0,
        needs: Vec::new(),
        parent: None,
        depth: 0,
        deadline_at: None,
        takes_back: None,
        workspace: None,
        policy: Vec::new(),
    }))
}

const LARGE: u128 = 5;
const SMALL: u128 = 6;

/// A loop in the middle of reaching the thousand steps of a run.
fn in_the_middle() -> Stage {
    let mut stage = Stage::on(Memory::default(), 1 << 100);
    let answers = [stage.ask(load()), stage.ask(create("a", LARGE, "large"))];
    (0..40).for_each(|_| stage.turn());
    answers.iter().for_each(|answer| assert!(answer.try_recv().unwrap().is_ok()));
    let reached = stage.reached(RunId(LARGE));
    assert!((2..200).contains(&reached), "{reached} steps were reached in 40 slices");
    stage
}

#[test]
fn another_tenant_is_served_between_the_slices_of_a_large_group() {
    let mut stage = in_the_middle();
    let before = stage.reached(RunId(LARGE));
    let answer = stage.ask(create("b", SMALL, "small"));
    (0..6).for_each(|_| stage.turn());
    assert!(answer.try_recv().unwrap().is_ok());
    assert_eq!(
        stage.reached(RunId(SMALL)),
        1,
        "the small run's step is reached while the large one is under way"
    );
    let after = stage.reached(RunId(LARGE));
    assert!(after < before + 20, "{after} steps were reached meanwhile");
    (0..2_000).for_each(|_| stage.turn());
    assert_eq!(stage.reached(RunId(LARGE)), 1_001, "it comes to its end by itself");
}

#[test]
fn a_cancel_is_answered_when_all_that_follows_is_decided() {
    let mut stage = in_the_middle();
    let run = RunId(LARGE);
    let answer = stage.ask(Command::Cancel { run, initiator: Initiator::User, user: None, reason: None });
    let mut turns = 0;
    let answered = loop {
        stage.turn();
        turns += 1;
        if let Ok(answered) = answer.try_recv() {
            break answered;
        }
        assert!(turns < 1_000);
    };
    assert!(answered.is_ok());
    assert_eq!(stage.ended(run).0, "cancelled", "it was answered after {turns} turns");
}

#[test]
fn an_end_between_two_slices_loses_nothing() {
    let mut store = in_the_middle().engine.into_store();
    // What was written is all that is left.
    store.reload().unwrap();
    let mut stage = Stage::on(store, 1 << 101);
    (0..2_000).for_each(|_| stage.turn());
    assert_eq!(stage.reached(RunId(LARGE)), 1_001);
}

/// Every turn ends after so many decisions, and what is left of the command goes on by itself.
#[test]
fn a_run_has_a_bounded_number_of_steps() {
    let mut stage = Stage::with_slices(Memory::default(), 1 << 100, Duration::MAX);
    let answers = [stage.ask(load()), stage.ask(create("a", LARGE, "many"))];
    (0..60).for_each(|_| stage.turn());
    answers.iter().for_each(|answer| assert!(answer.try_recv().unwrap().is_ok()));
    let reached = stage.reached(RunId(LARGE));
    assert!((STEPS_MAX..STEPS_MAX + 2).contains(&reached), "{reached} steps");
    let run = stage.ended(RunId(LARGE));
    assert_eq!(run, ("failed".to_owned(), Some("CAP_EXCEEDED".to_owned())));
}

/// Like a server's batch: a run of `small` for each.
fn batch(stage: &Stage, count: u128, vars: &Value) -> Receiver<Vec<Result<Reply, Refusal>>> {
    let (sender, receiver) = channel();
    let sender = Mutex::new(sender);
    let one = |n: u128| match create("a", 1_000 + n, "small") {
        Command::Create(create) => Command::Create(Box::new(Create { vars: vars.clone(), ..*create })),
        _ => panic!("it makes a run"),
    };
    stage.handle.ask_many(Actor::SYSTEM, None, (0..count).map(one).collect(), move |answers| {
        let _ = sender.lock().unwrap_or_else(PoisonError::into_inner).send(answers);
    });
    receiver
}

fn made(stage: &mut Stage, count: u128) -> usize {
    let view = stage.engine.store().view();
    (0..count).filter(|n| matches!(view.find(&StreamId::Run(RunId(1_000 + n))), Found::Here(_))).count()
}

#[test]
fn a_batch_is_decided_in_slices_and_answered_whole() {
    let mut stage = Stage::on(Memory::default(), 1 << 100);
    let loaded = stage.ask(load());
    let answer = batch(&stage, 1_000, &json!({}));
    (0..20).for_each(|_| stage.turn());
    assert!(loaded.try_recv().unwrap().is_ok());
    let before = made(&mut stage, 1_000);
    assert!((1..100).contains(&before), "{before} runs were made in 20 slices");
    let small = stage.ask(create("b", SMALL, "small"));
    (0..6).for_each(|_| stage.turn());
    assert!(small.try_recv().unwrap().is_ok(), "another tenant is served meanwhile");
    assert!(made(&mut stage, 1_000) < before + 20);
    assert!(answer.try_recv().is_err(), "it is answered when all of it is decided");
    (0..5_000).for_each(|_| stage.turn());
    let answers = answer.try_recv().unwrap();
    let ids: Vec<RunId> = answers
        .into_iter()
        .map(|answer| match answer.unwrap() {
            Reply::Created(id) => id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids, (0..1_000).map(|n| RunId(1_000 + n)).collect::<Vec<_>>(), "in their order");
}

/// Time is no bound here, so bytes are.
#[test]
fn a_turn_takes_no_more_when_it_comes_to_many_bytes() {
    let mut stage = Stage::with_slices(Memory::default(), 1 << 100, Duration::MAX);
    let loaded = stage.ask(load());
    stage.turn();
    assert!(loaded.try_recv().unwrap().is_ok());
    let mebibyte = json!({ "t": "x".repeat(1 << 20) });
    let answer = batch(&stage, 40, &mebibyte);
    // Each record has the variables, and so has that of what was asked for.
    let mut largest = 0;
    for turn in 1.. {
        let before = made(&mut stage, 40);
        stage.turn();
        largest = largest.max(made(&mut stage, 40) - before);
        if let Ok(answers) = answer.try_recv() {
            assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 40);
            break;
        }
        assert!(turn < 100, "it comes to its end");
    }
    assert!((1..=TURN_LEN_MAX >> 20).contains(&largest), "{largest} MiB in one turn");
}

#[test]
fn what_comes_to_more_than_a_batch_may_have_is_refused_by_itself() {
    let mut stage = Stage::with_slices(Memory::default(), 1 << 100, Duration::MAX);
    let large = match create("a", LARGE, "small") {
        Command::Create(create) => {
            let vars = json!({ "t": "\u{1}".repeat(DECISION_LEN_MAX / 6) });
            Command::Create(Box::new(Create { vars, ..*create }))
        }
        _ => panic!("it makes a run"),
    };
    let answers = [stage.ask(load()), stage.ask(large), stage.ask(create("b", SMALL, "small"))];
    (0..4).for_each(|_| stage.turn());
    let [loaded, large, small] = answers.map(|answer| answer.try_recv().unwrap());
    assert!(loaded.is_ok() && small.is_ok(), "{small:?}");
    assert_eq!(large.unwrap_err().code(), Some(Code::CapExceeded));
}
