//! Schedules and workspaces through the turn: one run per slot, and a directory that ends with its run.

use crate::world::*;
use serde_json::json;
use windlass_core::digest::Digest;
use windlass_core::effect::Effect;
use windlass_core::id::{RunId, WorkspaceId};
use windlass_core::run::{Source, Status};
use windlass_core::runbook::Runbook;
use windlass_core::schedule::{CatchUp, Input, Overlap, Schedule, Settings};
use windlass_core::small::Map;
use windlass_core::stream::StreamId;
use windlass_core::time::{Millis, Span};
use windlass_core::turn::command::{Command, Deploy};
use windlass_core::turn::state::Body;
use windlass_core::workspace::{self, Keep, Mode};

fn nightly() -> Runbook {
    main_book(vec![run("a")])
}

fn settings(overlap: Overlap) -> Settings {
    Settings {
        spec: "0 2 * * *".to_string(),
        timezone: name("UTC"),
        jitter: Span::ZERO,
        catch_up: CatchUp::One,
        overlap,
        pipeline: name("main"),
        runbook_hash: BOOK,
        vars: json!({}),
        project_root: String::new(),
    }
}

fn tell(world: &mut World, input: Input) {
    world.send(&Command::Schedule { schedule: scoped("nightly"), input }).unwrap();
}

fn world_of(settings: Settings) -> World {
    let mut world = World::new(nightly());
    tell(&mut world, Input::Configure { settings, next_at: None });
    world
}

/// The next slot comes: an hour later.
fn slot(world: &mut World) -> (Millis, RunId) {
    world.at = world.at + Span::hours(1);
    let (slot, run) = (world.at, RunId(world.id()));
    tell(world, Input::Due { slots: vec![slot], next_at: None, runs: vec![run] });
    (slot, run)
}

fn schedule(world: &World) -> &Schedule {
    match &world.state.stream(&StreamId::Schedule(scoped("nightly"))).unwrap().body {
        Body::Schedule(schedule) => schedule,
        other => panic!("{other:?}"),
    }
}

fn finish(world: &mut World, id: RunId) {
    world.decide_policy(id, "a", windlass_core::policy::Verdict::Allow);
    world.work(id);
    assert_eq!(world.status(id), Status::Completed);
}

fn exists(world: &World, id: RunId) -> bool {
    world.state.run(id).is_some()
}

#[test]
fn a_slot_makes_one_run_however_often_it_is_reported() {
    let mut world = world_of(settings(Overlap::Skip));
    let (slot, run) = slot(&mut world);
    assert_eq!(world.run(run).born.trigger.source, Source::Scheduled);
    for _ in 0..50 {
        let runs = vec![RunId(world.id())];
        tell(&mut world, Input::Due { slots: vec![slot], next_at: None, runs });
    }
    let runs = world.state.streams().filter(|(id, _)| matches!(id, StreamId::Run(_))).count();
    assert_eq!(runs, 1);
    finish(&mut world, run);
    assert!(schedule(&world).live.is_empty());
    world.check_replay();
}

#[test]
fn a_slot_whose_run_cannot_be_made_is_over_at_once_and_blocks_nothing() {
    let mut world = world_of(Settings { vars: json!({ "ghost": 1 }), ..settings(Overlap::Skip) });
    let (_, lost) = slot(&mut world);
    assert!(!exists(&world, lost) && schedule(&world).live.is_empty());
    tell(&mut world, Input::Configure { settings: settings(Overlap::Skip), next_at: None });
    let (_, next) = slot(&mut world);
    assert!(exists(&world, next));
    world.check_replay();
}

fn directory(world: &mut World, keep: Keep) -> (RunId, WorkspaceId) {
    let mut create = world.create("main", json!(null));
    let (run, workspace) = (create.id, WorkspaceId(world.id()));
    create.workspace = Some(workspace);
    let spec = workspace::Spec {
        path: "/w".to_string(),
        branch: Some("b".to_string()),
        base: None,
        owner: Some(run),
        mode: Mode::Worktree,
        keep,
    };
    for input in [workspace::Input::Create(spec), workspace::Input::Ready] {
        world.send(&Command::Workspace { workspace, tenant: name("default"), input }).unwrap();
    }
    world.send(&Command::Create(Box::new(create))).unwrap();
    (run, workspace)
}

fn place(world: &World, id: WorkspaceId) -> &'static str {
    match &world.state.stream(&StreamId::Workspace(id)).unwrap().body {
        Body::Workspace(place) => place.state_name(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_workspace_goes_or_stays_as_its_runs_end_says() {
    for (keep, fails, left) in [
        (Keep::OnFailure, false, "dropping"),
        (Keep::OnFailure, true, "ready"),
        (Keep::Never, true, "dropping"),
        (Keep::Always, false, "ready"),
    ] {
        let mut world = World::new(nightly());
        let (run, workspace) = directory(&mut world, keep);
        if fails {
            world.fail(run, "a", "no");
        } else {
            world.work(run);
        }
        assert_eq!(place(&world, workspace), left, "{keep} {fails}");
        let remove = |effect: &Effect| matches!(effect, Effect::WorktreeRemove { .. });
        assert_eq!(world.state.outstanding().iter().any(remove), left == "dropping");
        world.check_replay();
    }
}

fn wish(hash: Digest) -> Deploy {
    let (deployment, project_root) = (scoped("test"), "/srv".to_string());
    Deploy { deployment, hash, project_root, next: Map::new() }
}

#[test]
fn a_runbook_is_loaded_once_and_deployed_under_its_name() {
    let mut world = World::new(nightly());
    let lines = world.lines.len();
    world.load(BOOK, nightly());
    assert_eq!(world.lines.len(), lines);
    let deploy = |hash| Command::Deploy(Box::new(wish(hash)));
    assert!(world.send(&deploy(Digest([9; 32]))).is_err());
    world.send(&deploy(BOOK)).unwrap();
    assert!(world.send(&deploy(BOOK)).unwrap().facts.is_empty());
    world.load(Digest([2; 32]), nightly());
    world.send(&deploy(Digest([2; 32]))).unwrap();
    let active = &world.state.stream(&StreamId::Deployment(scoped("test"))).unwrap().body;
    let Body::Deployment(active) = active else { panic!("{active:?}") };
    let active = active.as_ref().as_ref().unwrap();
    assert_eq!((active.hash, active.replaces, active.at), (Digest([2; 32]), Some(BOOK), world.at));
    world.check_replay();
}
