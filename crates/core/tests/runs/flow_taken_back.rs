//! What called runs did is taken back with their caller, and a caller that is tried again goes on in them.

use crate::world::*;
use serde_json::{Value, json};
use windlass_core::id::RunId;
use windlass_core::run::Status;
use windlass_core::runbook::{Compensate, Pipeline, Runbook, VarDef};
use windlass_core::schedule::Overlap;
use windlass_core::step::Status as S;
use windlass_core::turn::command::Command;

/// A called pipeline of two steps that can be taken back and one that cannot.
fn sub() -> Pipeline {
    let undo = run("undo-a").with(|def| {
        def.env.insert("OUT".to_string(), expr("output"));
        def.env.insert("X".to_string(), expr("vars.x"));
    });
    let steps = vec![run("a").undo(undo), run("plain"), run("b").undo(run("undo-b"))];
    let mut sub = pipeline(steps, vec![], vec![run("sub-finally")]);
    sub.vars.insert(name("x"), VarDef { default: Some(json!(0)), ..VarDef::default() });
    sub
}

fn world(steps: Vec<Spec>) -> World {
    World::new(books(steps))
}

fn books(steps: Vec<Spec>) -> Runbook {
    let mid = pipeline(vec![call("down", "sub", &[]), run("m").undo(run("undo-m"))], vec![], vec![]);
    book(vec![("main", pipeline(steps, vec![], vec![run("z")])), ("sub", sub()), ("mid", mid)])
}

/// Carries out all that the run has to do forward.
fn complete(world: &mut World, id: RunId) {
    for step in ["a", "plain", "b", "sub-finally"] {
        world.succeed_with(id, step, Some(json!({ "of": step })));
    }
    assert_eq!(world.status(id), Status::Completed);
}

/// Carries out what takes a run back, and says in which order.
fn taken_back(world: &mut World, id: RunId) -> Vec<String> {
    let mut order = Vec::new();
    while let Some(step) = world.leasable(id).first().cloned() {
        world.succeed(id, &step);
        order.push(step);
    }
    order
}

fn retry(world: &mut World, run: RunId) -> RunId {
    let new = RunId(world.id());
    world.send(&Command::Descend { run, new, from: None, runbook: None }).unwrap();
    new
}

#[test]
fn a_failed_caller_takes_its_completed_runs_back_in_reverse_order() {
    let exempt = call("kept", "sub", &[]).with(|def| def.compensate = Compensate::Exempt);
    let steps = vec![
        run("first").undo(run("undo-first")),
        call("c", "sub", &[("x", literal(json!(7)))]).lock("db", Overlap::Queue),
        exempt,
        run("last").undo(run("undo-last")),
        run("breaks"),
    ];
    let mut world = world(steps);
    let id = world.start();
    world.succeed(id, "first");
    let child = world.child(id, "c");
    complete(&mut world, child);
    let kept = world.child(id, "kept");
    complete(&mut world, kept);
    world.succeed(id, "last");
    world.fail(id, "breaks", "boom");
    assert_eq!(world.leasable(id), ["undo-last"]);
    world.succeed(id, "undo-last");
    let back = world.child(id, "undo-c");
    assert_eq!(world.run(back).born.takes_back.as_deref(), Some(&child));
    assert_eq!(
        world.run(back).born.lineage().root_run,
        id,
        "effects are those of the run that is taken back"
    );
    assert_eq!(world.leasable(back), ["undo-b"]);
    world.succeed(back, "undo-b");
    let input = json!({ "env": { "OUT": { "of": "a" }, "X": 7 } });
    assert_eq!(world.step(back, "undo-a").input(), Some(input), "it sees what its own run saw");
    world.succeed(back, "undo-a");
    assert_eq!(world.status(back), Status::Completed, "neither its steps nor its `finally` run again");
    assert_eq!(world.step_status(id, "undo-c"), S::Succeeded);
    assert_eq!(world.leasable(id), ["undo-first"], "what the call before it did comes after it");
    world.succeed(id, "undo-first");
    world.succeed(id, "z");
    assert_eq!(world.status(id), Status::Failed);
    assert_eq!(world.run_error(id), "STEP_FAILED: boom");
    assert_eq!(world.status(child), Status::Completed, "what has ended stays as it ended");
    world.check_replay();
}

#[test]
fn a_cancelled_caller_takes_back_the_runs_of_all_levels() {
    let mut world = world(vec![call("c", "mid", &[]), run("waits")]);
    let id = world.start();
    let mid = world.child(id, "c");
    let down = world.child(mid, "down");
    complete(&mut world, down);
    world.succeed(mid, "m");
    world.cancel(id).unwrap();
    let back = world.child(id, "undo-c");
    assert_eq!(world.leasable(back), ["undo-m"]);
    world.succeed(back, "undo-m");
    let deep = world.child(back, "undo-down");
    assert_eq!(taken_back(&mut world, deep), ["undo-b", "undo-a"]);
    assert_eq!(world.status(back), Status::Completed);
    world.succeed(id, "z");
    assert_eq!(world.status(id), Status::Cancelled);
    world.check_replay();
}

#[test]
fn each_item_of_a_foreach_is_taken_back_once_and_one_that_failed_takes_itself_back() {
    let each = call("c", "sub", &[("x", expr("item"))]).foreach(literal(json!([1, 2, 3])), 3, false);
    let mut world = world(vec![each]);
    let id = world.start();
    let (one, two, three) = (world.child(id, "c[0]"), world.child(id, "c[1]"), world.child(id, "c[2]"));
    complete(&mut world, two);
    complete(&mut world, one);
    world.succeed(three, "a");
    world.fail(three, "plain", "boom");
    world.succeed(three, "undo-a");
    world.succeed(three, "sub-finally");
    for (step, of) in [("undo-c[0]", one), ("undo-c[1]", two)] {
        let back = world.child(id, step);
        assert_eq!(world.run(back).born.takes_back.as_deref(), Some(&of));
        assert_eq!(taken_back(&mut world, back), ["undo-b", "undo-a"]);
    }
    world.succeed(id, "z");
    assert_eq!(world.status(id), Status::Failed);
    assert_eq!(world.run(id).steps.iter().filter(|step| step.compensates.is_some()).count(), 2);
    world.check_replay();
}

#[test]
fn a_compensation_that_fails_is_the_failure_of_its_call_and_the_others_go_on() {
    let mut world = world(vec![run("first").undo(run("undo-first")), call("c", "sub", &[]), run("breaks")]);
    let id = world.start();
    world.succeed(id, "first");
    let child = world.child(id, "c");
    complete(&mut world, child);
    world.fail(id, "breaks", "boom");
    let back = world.child(id, "undo-c");
    world.fail(back, "undo-b", "stuck");
    world.succeed(back, "undo-a");
    assert_eq!(world.status(back), Status::Failed);
    assert_eq!(world.step_status(id, "undo-c"), S::Failed);
    world.succeed(id, "undo-first");
    world.succeed(id, "z");
    assert_eq!(world.run_error(id), "STEP_FAILED: boom");
    world.check_replay();
}

#[test]
fn a_call_of_what_has_no_compensations_makes_no_run_to_take_it_back() {
    let plain = pipeline(vec![run("p")], vec![], vec![]);
    let main = pipeline(vec![call("c", "plain", &[]), run("breaks")], vec![], vec![]);
    let mut world = World::new(book(vec![("main", main), ("plain", plain)]));
    let id = world.start();
    let child = world.child(id, "c");
    world.succeed(child, "p");
    world.fail(id, "breaks", "boom");
    assert_eq!(world.status(id), Status::Failed);
    assert_eq!(world.run(id).steps.len(), 2);
}

/// However small the turns are, as after a kill between any two of them, the same is taken back, and once.
#[test]
fn turns_that_are_cut_short_take_back_the_same_and_once() {
    let mut world = world(vec![call("c", "mid", &[]), run("breaks")]);
    let id = world.start();
    let mid = world.child(id, "c");
    let down = world.child(mid, "down");
    complete(&mut world, down);
    world.succeed(mid, "m");
    world.follow_max = Some(1);
    world.fail(id, "breaks", "boom");
    let mut order = Vec::new();
    for _ in 0..50 {
        world.catch_up();
        let runs: Vec<RunId> =
            world.state.runs_between(RunId(0), RunId(u128::MAX)).map(|(id, _)| id).collect();
        let Some((run, step)) =
            runs.iter().find_map(|run| Some((*run, world.leasable(*run).first()?.clone())))
        else {
            break;
        };
        world.succeed(run, &step);
        order.push(step);
    }
    assert_eq!(order, ["undo-m", "undo-b", "undo-a", "z"]);
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn a_caller_that_is_tried_again_goes_on_in_its_called_runs() {
    let mut world = world(vec![call("c", "sub", &[])]);
    let id = world.start();
    let child = world.child(id, "c");
    world.succeed_with(child, "a", Some(json!(1)));
    world.succeed_with(child, "plain", Some(json!(2)));
    world.fail(child, "b", "boom");
    world.succeed(child, "undo-a");
    world.succeed(child, "sub-finally");
    world.succeed(id, "z");
    let again = retry(&mut world, id);
    let second = world.child(again, "c");
    assert_eq!(world.leasable(second), ["a"], "what was taken back is done again");
    world.succeed(second, "a");
    assert_eq!(world.output(second, "plain"), json!(2), "what stands is not done again");
    assert_eq!(world.leasable(second), ["b"]);
    world.check_replay();
}

#[test]
fn a_caller_that_is_tried_again_makes_what_was_taken_back_anew_and_takes_back_what_it_took_over() {
    let mut world = world(vec![call("kept", "sub", &[]), call("c", "sub", &[]), run("breaks")]);
    let id = world.start();
    let kept = world.child(id, "kept");
    complete(&mut world, kept);
    let child = world.child(id, "c");
    complete(&mut world, child);
    world.fail(id, "breaks", "boom");
    let back = world.child(id, "undo-c");
    taken_back(&mut world, back);
    // The other one cannot be taken back: it stands.
    let stands = world.child(id, "undo-kept");
    world.fail(stands, "undo-b", "stuck");
    world.fail(stands, "undo-a", "stuck");
    world.succeed(id, "z");
    let again = retry(&mut world, id);
    assert_eq!(world.step_status(again, "kept"), S::Succeeded, "it was not taken back");
    let second = world.child(again, "c");
    assert_eq!(world.leasable(second), ["a"]);
    world.succeed(second, "a");
    assert_eq!(world.leasable(second), ["b"], "`plain` stands");
    world.succeed(second, "b");
    world.succeed(second, "sub-finally");
    world.fail(again, "breaks", "again");
    let back = world.child(again, "undo-c");
    assert_eq!(taken_back(&mut world, back), ["undo-b", "undo-a"]);
    let kept_back = world.child(again, "undo-kept");
    assert_eq!(world.run(kept_back).born.takes_back.as_deref(), Some(&kept), "it is the run that did it");
    world.check_replay();
}

#[test]
fn a_called_run_with_other_variables_begins_from_its_start() {
    let mut first = books(vec![run("one"), call("c", "sub", &[("x", expr("steps.one.output"))])]);
    if let Some(main) = first.pipelines.get_mut("main") {
        main.finally.clear();
        main.nodes.retain(|node| node.id.as_str() != "z");
    }
    let mut world = World::new(first);
    let id = world.start();
    world.succeed_with(id, "one", Some(Value::from(1)));
    let child = world.child(id, "c");
    world.succeed(child, "a");
    world.succeed(child, "plain");
    world.fail(child, "b", "boom");
    world.succeed(child, "undo-a");
    world.succeed(child, "sub-finally");
    let new = RunId(world.id());
    world.send(&Command::Descend { run: id, new, from: Some(name("one")), runbook: None }).unwrap();
    world.succeed_with(new, "one", Some(Value::from(2)));
    let second = world.child(new, "c");
    world.succeed(second, "a");
    assert_eq!(world.leasable(second), ["plain"]);
    world.check_replay();
}
