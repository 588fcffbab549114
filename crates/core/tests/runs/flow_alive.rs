//! Runs without an executor, and what a step that lost its own goes on with.

use crate::world::*;
use serde_json::{Value, json};
use windlass_core::attempt::Report;
use windlass_core::budget::Limits;
use windlass_core::event::CheckpointSaved;
use windlass_core::id::RunId;
use windlass_core::private::Private;
use windlass_core::receipt::Semantics;
use windlass_core::run::{ORPHAN_AFTER, Status};
use windlass_core::runbook::CheckpointDef;
use windlass_core::step::Status as S;
use windlass_core::time::{Millis, Span};
use windlass_core::turn::command::Command;

/// What a step saves.
fn save(
    world: &mut World,
    id: RunId,
    (resumable, idempotent): (bool, bool),
    data: Option<Value>,
    tokens: u64,
) {
    let epoch = world.step(id, "a").epoch;
    let saved = CheckpointSaved {
        pipeline_id: id,
        step: Some(name("a")),
        epoch: Some(epoch),
        resumable,
        idempotent,
        tokens_input: (tokens > 0).then_some(tokens),
        tokens_output: None,
        message: None,
        data: data.map(Private::New),
    };
    world.send(&Command::Checkpoint(Box::new(saved))).unwrap();
}

fn started(step: Spec) -> (World, RunId) {
    let mut world = World::new(main_book(vec![step, run("z")]));
    let id = world.start();
    world.lease(id, "a");
    (world, id)
}

#[test]
fn a_run_whose_executor_was_not_heard_of_for_long_is_an_orphan_until_another_has_its_step() {
    let (mut world, id) = started(run("a"));
    let last = world.at;
    world.report(id, "a", 1, Report::Lost { last_seen: Some(last) }).unwrap();
    world.sleep(Span(ORPHAN_AFTER.0 - 1));
    assert_eq!(world.run(id).orphaned(), None);
    world.sleep(Span(1));
    assert_eq!(world.status(id), Status::Running);
    let found = world.tags(id).iter().filter(|tag| *tag == "pipeline:orphaned").count();
    assert_eq!(found, 1);
    let failure = world.run(id).orphaned().expect("it is an orphan");
    assert_eq!(failure.code.as_str(), "RUN_ORPHANED");
    assert_eq!(world.run(id).last_heartbeat_at(&world.state.beats), Some(last));
    assert_eq!(world.run(id).reason().as_deref(), Some("RUN_ORPHANED"));
    world.sleep(ORPHAN_AFTER);
    assert_eq!(
        world.tags(id).iter().filter(|tag| *tag == "pipeline:orphaned").count(),
        1,
        "it is found once"
    );
    world.lease(id, "a");
    assert_eq!((world.run(id).orphaned(), world.run(id).reason()), (None, None));
    world.check_replay();
}

#[test]
fn a_heartbeat_moves_the_end_of_a_lease_and_the_last_sign_of_its_run() {
    let (mut world, id) = started(run("a"));
    let holder = world.step(id, "a").holder(id);
    let lease = world.step(id, "a").lease.clone().unwrap();
    assert_eq!(lease.lives_until(&holder, &world.state.beats), lease.expires_at);
    let seen = Millis(lease.granted_at.0 + 45_000);
    world.state.beat(holder.clone(), seen);
    let ttl = Span(lease.expires_at.0 - lease.granted_at.0);
    assert_eq!(lease.lives_until(&holder, &world.state.beats), seen + ttl);
    assert_eq!(world.run(id).last_heartbeat_at(&world.state.beats), Some(seen));
    world.report(id, "a", 1, Report::Done { output: None, exit_code: Some(0.into()) }).unwrap();
    assert_eq!(world.run(id).last_heartbeat_at(&world.state.beats), None);
}

/// The resume tree, for a command that must not be done twice: what it saved, what is declared, where it ends.
#[test]
fn the_resume_tree_asks_the_checkpoint_before_the_effect() {
    let data = || Some(json!({ "n": 1 }));
    let once = || run("a").with(|def| def.effect = Some(Semantics::AtMostOnce));
    let declared =
        || once().with(|def| def.checkpoint = Some(CheckpointDef { interval: None, resumable: true }));
    let cases = [
        (once(), None, S::OutcomeUnknown),
        (once(), Some(((false, false), data())), S::OutcomeUnknown),
        (once(), Some(((false, true), None)), S::Ready),
        (once(), Some(((true, false), data())), S::Succeeded),
        (declared(), Some(((false, false), data())), S::Succeeded),
        (declared(), None, S::OutcomeUnknown),
        (run("a"), Some(((false, false), data())), S::Ready),
    ];
    for (n, (step, saved, expected)) in cases.into_iter().enumerate() {
        let (mut world, id) = started(step);
        if let Some((says, data)) = saved {
            save(&mut world, id, says, data, 0);
        }
        world.lose(id, "a");
        assert_eq!(world.step_status(id, "a"), expected, "case {n}");
        world.check_replay();
    }
}

#[test]
fn what_has_nothing_to_resume_from_does_not_take_the_place_of_what_has() {
    let (mut world, id) = started(run("a"));
    save(&mut world, id, (true, false), Some(json!({ "n": 1 })), 0);
    save(&mut world, id, (false, false), None, 40);
    world.lose(id, "a");
    assert_eq!(world.output(id, "a"), json!({ "n": 1 }));
}

#[test]
fn tokens_that_a_command_saved_count_toward_the_budget() {
    let mut book = main_book(vec![run("a"), run("z")]);
    book.budget = Some(Limits { tokens: Some(1_000), ..Limits::default() });
    let mut world = World::new(book);
    let id = world.start();
    world.lease(id, "a");
    save(&mut world, id, (false, false), None, 100);
    save(&mut world, id, (false, false), None, 250);
    world.report(id, "a", 1, Report::Done { output: None, exit_code: Some(0.into()) }).unwrap();
    assert_eq!(world.run(id).budget().spent.tokens, 250, "an attempt says how many it took so far");
    world.check_replay();
}
