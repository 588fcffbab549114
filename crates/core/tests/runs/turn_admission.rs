//! Admission: every way of starting a run refuses what no run can have, with the same code and text.

use crate::world::*;
use serde_json::{Value, json};
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::id::{ItemId, RunId, WorkspaceId};
use windlass_core::idempotency::Source;
use windlass_core::runbook::{QueueDef, Runbook, ScheduleDef, WorkerDef, WorkspaceDef};
use windlass_core::schedule::{self, CatchUp, Overlap};
use windlass_core::small::Map;
use windlass_core::step::Status;
use windlass_core::stream::StreamId;
use windlass_core::template::Template;
use windlass_core::time::Span;
use windlass_core::turn::command::{Arrival, Command, Create, Deploy, Pushed, Refusal};
use windlass_core::turn::state::Body;
use windlass_core::workspace::Keep;

const TEXT: &str = "the pipeline has a `workspace`, which this version cannot make yet";
const OTHER: Digest = Digest([2; 32]);

/// A runbook whose pipeline `main` has a working directory where that is said, with a worker and a schedule for it, and
/// one that calls it.
fn declared(placed: bool) -> Runbook {
    let main = pipeline(vec![run("a")], Vec::new(), Vec::new());
    let caller = pipeline(vec![call("c", "main", &[])], Vec::new(), Vec::new());
    let mut book = book(vec![("main", main), ("caller", caller)]);
    let git = Template::Literal(json!("."));
    let workspace = WorkspaceDef { git, base: None, branch: None, keep: Keep::Never };
    book.pipelines.get_mut("main").unwrap().workspace = Some(workspace).filter(|_| placed);
    let queue = QueueDef {
        visibility_timeout: Span::secs(30),
        max_attempts: 2,
        cooldown: Span::ZERO,
        dead_letter: None,
        max_depth: None,
        dedupe: false,
        external: None,
    };
    let (of, vars) = (name("main"), Map::new());
    let worker = WorkerDef {
        queue: name("bugs"),
        pipeline: of.clone(),
        concurrency: 1,
        vars: Map::new(),
        wake_on: Vec::new(),
    };
    let schedule = ScheduleDef {
        spec: "every 1h".to_string(),
        timezone: name("UTC"),
        jitter: Span::ZERO,
        catch_up: CatchUp::One,
        overlap: Overlap::Skip,
        pipeline: of,
        vars,
    };
    book.queues = Map::from([(name("bugs"), queue)]);
    book.workers = Map::from([(name("fixer"), worker)]);
    book.schedules = Map::from([(name("hourly"), schedule)]);
    book
}

fn deployed() -> World {
    let mut world = World::new(declared(true));
    let next = [(name("hourly"), world.at + Span::hours(1))].into_iter().collect();
    let deploy = Deploy { deployment: scoped("test"), hash: BOOK, project_root: "/srv".into(), next };
    world.send(&Command::Deploy(Box::new(deploy))).unwrap();
    world
}

#[track_caller]
fn refused(world: &mut World, command: &Command) {
    match world.send(command) {
        Err(Refusal::Error { code, message, .. }) => {
            assert_eq!((code, message.as_str()), (Code::RunbookInvalid, TEXT));
        }
        other => panic!("{other:?}"),
    }
}

fn runs_of_main(world: &World) -> usize {
    let main = |body: &Body| matches!(body, Body::Run(run) if run.born.home.pipeline.as_str() == "main");
    world.state.streams().filter(|(_, stream)| main(&stream.body)).count()
}

#[test]
fn who_asks_for_a_run_is_told() {
    let mut world = deployed();
    let wish = |world: &mut World| Box::new(world.create("main", Value::Null));
    let create = wish(&mut world);
    refused(&mut world, &Command::Create(create));
    let (create, request_hash) = (wish(&mut world), Digest::default());
    refused(&mut world, &Command::Deliver { key: scoped("k"), source: Source::Api, request_hash, create });
    let arrival = Arrival {
        key: scoped("d"),
        source: Source::Hook,
        request_hash,
        creates: vec![*wish(&mut world)],
        signals: Vec::new(),
        to: None,
        response: None,
        failure: None,
        event: None,
        also: Vec::new(),
    };
    refused(&mut world, &Command::Arrive(Box::new(arrival)));
    let input = schedule::Input::RunNow { run: RunId(world.id()), asked_by: Vec::new() };
    refused(&mut world, &Command::Schedule { schedule: scoped("hourly"), input });
    assert_eq!(runs_of_main(&world), 0);
}

#[test]
fn what_the_engine_starts_by_itself_fails_with_it() {
    let mut world = deployed();
    // A slot is over at once.
    world.at = world.at + Span::hours(1);
    let (slots, runs) = (vec![world.at], vec![RunId(world.id())]);
    let input = schedule::Input::Due { slots, next_at: Some(world.at + Span::hours(1)), runs };
    let turn = world.send(&Command::Schedule { schedule: scoped("hourly"), input }).unwrap();
    let tags: Vec<&str> = turn.facts.iter().map(|fact| fact.event.tag()).collect();
    assert_eq!(tags, ["schedule:fired", "schedule:settled"]);
    // A worker's item fails.
    let item =
        Pushed { id: ItemId(7), data: json!({}), priority: 0, not_before: None, dedupe: None, from: None };
    world.send(&Command::Push { queue: scoped("bugs"), item: Box::new(item) }).unwrap();
    let Body::Item(item) = &world.state.stream(&StreamId::Item(ItemId(7))).unwrap().body else { panic!() };
    let failure = item.body().unwrap().failure.clone().unwrap().error.unwrap();
    assert_eq!((item.state_name(), failure), ("failed", format!("RUNBOOK_INVALID: {TEXT}")));
    // A call fails its step.
    let create = world.create("caller", Value::Null);
    world.send(&Command::Create(Box::new(create.clone()))).unwrap();
    assert_eq!(world.step_status(create.id, "c"), Status::Failed);
    assert_eq!(world.error(create.id, "c"), format!("RUNBOOK_INVALID: {TEXT}"));
    assert_eq!(runs_of_main(&world), 0);
}

#[test]
fn a_retry_with_another_runbook_is_refused_and_a_run_that_is_given_a_place_is_made() {
    let mut world = World::new(declared(false));
    world.load(OTHER, declared(true));
    let run = world.start();
    world.fail(run, "a", "no");
    let new = RunId(world.id());
    refused(&mut world, &Command::Descend { run, new, from: None, runbook: Some(OTHER) });
    let place = Some(WorkspaceId(world.id()));
    let create = Create { runbook: OTHER, workspace: place, ..world.create("main", Value::Null) };
    world.send(&Command::Create(Box::new(create))).unwrap();
    assert_eq!(runs_of_main(&world), 2);
}
