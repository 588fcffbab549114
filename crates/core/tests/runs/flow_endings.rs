//! How runs end: failures, compensations, `finally`, cancelling, deadlines.

use crate::world::*;
use serde_json::json;
use windlass_core::attempt::{ENDING_MAX, Report};
use windlass_core::code::Code;
use windlass_core::effect::Effect;
use windlass_core::id::RunId;
use windlass_core::run::{Section, Status};
use windlass_core::runbook::{Compensate, Runbook, WaitFor};
use windlass_core::step::Status as S;
use windlass_core::time::Span;

fn env(step: Spec, key: &str, value: &str) -> Spec {
    step.with(|def| {
        def.env.insert(key.to_string(), expr(value));
    })
}

fn whole(steps: Vec<Spec>, on_failure: Vec<Spec>, finally: Vec<Spec>) -> Runbook {
    book(vec![("main", pipeline(steps, on_failure, finally))])
}

fn done() -> Report {
    Report::Done { output: None, exit_code: Some(0.into()) }
}

/// Two steps with compensations, one that fails or is cancelled, and all that comes after.
fn careful() -> World {
    let steps =
        vec![run("a").undo(env(run("undo-a"), "OUT", "output")), run("b").undo(run("undo-b")), run("c")];
    World::new(whole(steps, vec![env(run("f"), "WHY", "error.message")], vec![run("z")]))
}

#[test]
fn a_failure_runs_on_failure_then_compensations_backwards_then_finally() {
    let mut world = careful();
    let id = world.start();
    world.succeed_with(id, "a", Some(json!({ "key": 7 })));
    world.succeed(id, "b");
    world.fail(id, "c", "boom");
    assert_eq!(world.leasable(id), ["f"]);
    assert_eq!(world.step(id, "f").input(), Some(json!({ "env": { "WHY": "boom" } })));
    world.succeed(id, "f");
    assert_eq!(world.leasable(id), ["undo-b"]);
    world.succeed(id, "undo-b");
    assert_eq!(world.step(id, "undo-a").input(), Some(json!({ "env": { "OUT": { "key": 7 } } })));
    world.succeed(id, "undo-a");
    world.succeed(id, "z");
    assert_eq!(world.status(id), Status::Failed);
    assert_eq!(world.run_error(id), "STEP_FAILED: boom");
    world.check_replay();
}

#[test]
fn what_follows_on_the_steps_knows_how_the_run_is_about_to_end() {
    let told = |end: fn(&mut World, RunId)| {
        let status = |id: &str| env(run(id), "S", "run.status");
        let mut world = World::new(whole(vec![run("a")], vec![status("f")], vec![status("y"), status("z")]));
        let id = world.start();
        end(&mut world, id);
        let given =
            |world: &World, step: &str| Some(world.run(id).step(&name(step))?.input()?["env"]["S"].clone());
        if world.leasable(id) == ["f"] {
            assert_eq!(given(&world, "f"), Some(json!("failed")));
            world.succeed(id, "f");
        }
        let first = given(&world, "y").unwrap();
        world.succeed(id, "y");
        assert_eq!(given(&world, "z").as_ref(), Some(&first));
        world.succeed(id, "z");
        assert_eq!(json!(world.status(id)), first);
        first
    };
    assert_eq!(told(|world, id| world.succeed(id, "a")), "completed");
    assert_eq!(told(|world, id| world.fail(id, "a", "boom")), "failed");
    assert_eq!(told(|world, id| drop(world.cancel(id).unwrap())), "cancelled");
}

#[test]
fn a_success_runs_finally_and_nothing_else() {
    let mut world = careful();
    let id = world.start();
    for step in ["a", "b", "c"] {
        world.succeed(id, step);
    }
    assert_eq!(world.leasable(id), ["z"]);
    world.succeed(id, "z");
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

#[test]
fn what_runs_at_the_end_is_bounded_where_nobody_says_how_long() {
    let event = |id: &str| {
        let (event, key) = (name("never"), None);
        wait(id, WaitFor::Event { event, key, timeout: None, continue_on_timeout: false })
    };
    let mut world = World::new(whole(vec![run("a")], vec![event("f")], vec![run("z")]));
    let id = world.start();
    world.fail(id, "a", "boom");
    world.sleep(Span(ENDING_MAX.0 - 1));
    assert_eq!(world.step(id, "f").status, S::WaitingExternal);
    world.sleep(Span(1));
    assert_eq!(world.step(id, "f").status, S::Failed);
    let lease = world.lease(id, "z");
    assert_eq!(lease.timeout_at, Some(world.at + ENDING_MAX));
    world.check_replay();
}

#[test]
fn a_failing_on_failure_does_not_keep_compensations_from_running() {
    let mut world = careful();
    let id = world.start();
    world.succeed(id, "a");
    world.succeed(id, "b");
    world.fail(id, "c", "boom");
    world.fail(id, "f", "chat is down");
    assert_eq!(world.leasable(id), ["undo-b"]);
    world.work(id);
    assert_eq!(world.run_error(id), "STEP_FAILED: boom");
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn a_failing_compensation_does_not_stop_the_others() {
    let mut world = careful();
    let id = world.start();
    world.succeed(id, "a");
    world.succeed(id, "b");
    world.fail(id, "c", "boom");
    world.succeed(id, "f");
    world.fail(id, "undo-b", "cannot");
    world.succeed(id, "undo-a");
    world.succeed(id, "z");
    assert_eq!(world.run_error(id), "STEP_FAILED: boom");
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn compensations_go_backwards_by_completion() {
    let group = parallel("p", vec![run("a").undo(run("undo-a")), run("b").undo(run("undo-b"))]);
    let mut world = World::new(main_book(vec![group, run("c")]));
    let id = world.start();
    world.succeed(id, "b");
    world.succeed(id, "a");
    world.fail(id, "c", "boom");
    assert_eq!(world.leasable(id), ["undo-a"]);
    world.succeed(id, "undo-a");
    assert_eq!(world.leasable(id), ["undo-b"]);
    world.check_replay();
}

#[test]
fn each_item_of_a_foreach_is_compensated_with_its_own_item_and_output() {
    let undo = env(env(run("undo"), "I", "item"), "O", "output");
    let items = run("a").undo(undo).foreach(literal(json!(["x", "y"])), 1, true);
    let mut world = World::new(main_book(vec![items, run("c")]));
    let id = world.start();
    world.succeed_with(id, "a[0]", Some(json!(0)));
    world.succeed_with(id, "a[1]", Some(json!(1)));
    world.fail(id, "c", "boom");
    assert_eq!(world.step(id, "undo[1]").input(), Some(json!({ "env": { "I": "y", "O": 1 } })));
    world.succeed(id, "undo[1]");
    assert_eq!(world.step(id, "undo[0]").input(), Some(json!({ "env": { "I": "x", "O": 0 } })));
    world.succeed(id, "undo[0]");
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn steps_inside_a_compensation_see_the_output_and_item_too() {
    let inner = env(env(run("x"), "O", "output"), "I", "item");
    let items = run("a").undo(steps("undo", vec![inner])).foreach(literal(json!(["i"])), 1, true);
    let mut world = World::new(main_book(vec![items, run("c")]));
    let id = world.start();
    world.succeed_with(id, "a[0]", Some(json!(5)));
    world.fail(id, "c", "boom");
    assert_eq!(world.step(id, "x[0]").input(), Some(json!({ "env": { "I": "i", "O": 5 } })));
    world.work(id);
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn exempt_steps_and_those_that_did_not_succeed_are_not_compensated() {
    let exempt = run("a").with(|def| def.compensate = Compensate::Exempt);
    let steps = vec![exempt, run("b").when("false").undo(run("undo-b")), run("c").undo(run("undo-c"))];
    let mut world = World::new(main_book(steps));
    let id = world.start();
    world.succeed(id, "a");
    world.fail(id, "c", "boom");
    assert_eq!(world.status(id), Status::Failed);
    assert_eq!(world.trace(id), ["a: succeeded", "b: skipped", "c: failed"]);
    world.check_replay();
}

#[test]
fn compensations_are_retried() {
    let undo = run("undo").retry(2, Span::secs(1));
    let mut world = World::new(main_book(vec![run("a").undo(undo), run("b")]));
    let id = world.start();
    world.succeed(id, "a");
    world.lease(id, "b");
    world.cancel(id).unwrap();
    world.stop(id, "b");
    world.fail(id, "undo", "busy");
    assert_eq!(world.status(id), Status::FailedRetryable);
    world.sleep(Span::secs(2));
    world.succeed(id, "undo");
    assert_eq!(world.status(id), Status::Cancelled);
    world.check_replay();
}

#[test]
fn a_failure_in_finally_fails_the_run_and_the_rest_of_it_runs() {
    let mut world = World::new(whole(vec![run("a")], vec![run("f")], vec![run("y"), run("z")]));
    let id = world.start();
    world.succeed(id, "a");
    world.fail(id, "y", "no report");
    world.succeed(id, "z");
    assert_eq!(world.status(id), Status::Failed);
    assert_eq!(world.run_error(id), "STEP_FAILED: no report");
    world.check_replay();
}

#[test]
fn a_step_that_is_cancelled_by_itself_fails_its_run() {
    let mut world = World::new(whole(vec![run("a"), run("b")], vec![run("f")], vec![]));
    let id = world.start();
    world.lease(id, "a");
    world.stop(id, "a");
    assert_eq!(world.step_status(id, "a"), S::Cancelled);
    assert_eq!(world.leasable(id), ["f"]);
    world.succeed(id, "f");
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn a_run_that_has_not_begun_is_cancelled_at_once() {
    let mut world = World::new(main_book(vec![run("a")]));
    let needed = world.start();
    let mut create = world.create("main", json!({}));
    create.needs = vec![needed];
    let id = create.id;
    world.send(&windlass_core::turn::command::Command::Create(Box::new(create))).unwrap();
    assert_eq!(world.status(id), Status::Blocked);
    world.cancel(id).unwrap();
    assert_eq!(world.status(id), Status::Cancelled);
    world.succeed(needed, "a");
    assert_eq!(world.status(id), Status::Cancelled);
    world.check_replay();
}

#[test]
fn a_cancelled_run_starts_nothing_forward_and_cleans_up() {
    let mut world = careful();
    let id = world.start();
    world.succeed(id, "a");
    let epoch = world.lease(id, "b").epoch;
    world.cancel(id).unwrap();
    assert_eq!(world.stopped(id), ["b@1"]);
    assert_eq!(world.run(id).reason().as_deref(), Some("cancelling"));
    assert!(world.leasable(id).is_empty());
    world.report(id, "b", epoch, Report::Stopped).unwrap();
    assert_eq!(world.step_status(id, "b"), S::Cancelled);
    assert_eq!(world.leasable(id), ["undo-a"]);
    world.succeed(id, "undo-a");
    world.succeed(id, "z");
    assert_eq!(world.status(id), Status::Cancelled);
    assert!(!world.trace(id).iter().any(|line| line.starts_with("f:") || line.starts_with("c:")));
    world.check_replay();
}

#[test]
fn a_success_that_comes_after_the_cancel_is_compensated() {
    let mut world = careful();
    let id = world.start();
    world.succeed(id, "a");
    let epoch = world.lease(id, "b").epoch;
    world.cancel(id).unwrap();
    world.report(id, "b", epoch, done()).unwrap();
    assert_eq!(world.step_status(id, "b"), S::Succeeded);
    assert_eq!(world.leasable(id), ["undo-b"]);
    world.work(id);
    assert_eq!(world.status(id), Status::Cancelled);
    world.check_replay();
}

#[test]
fn a_step_that_waits_for_its_guards_after_counts_when_the_run_is_cancelled() {
    let guarded = run("a")
        .undo(run("undo-a"))
        .with(|def| def.after = vec![guard("g", windlass_core::guard::OnFailure::Block)]);
    let mut world = World::new(main_book(vec![guarded, run("b")]));
    let id = world.start();
    world.succeed(id, "a");
    assert_eq!(world.step_status(id, "a"), S::WaitingExternal);
    world.cancel(id).unwrap();
    assert_eq!(world.step_status(id, "a"), S::Succeeded);
    world.succeed(id, "undo-a");
    assert_eq!(world.status(id), Status::Cancelled);
    world.check_replay();
}

#[test]
fn a_second_cancel_is_tolerated_and_an_ended_run_refuses_one() {
    let mut world = careful();
    let id = world.start();
    world.lease(id, "a");
    world.cancel(id).unwrap();
    let lines = world.lines.len();
    world.cancel(id).unwrap();
    assert_eq!(world.lines.len(), lines);
    world.stop(id, "a");
    world.succeed(id, "z");
    assert_eq!(world.status(id), Status::Cancelled);
    assert_eq!(world.cancel(id).unwrap_err().code(), Some(Code::RunTerminalState));
    world.check_replay();
}

#[test]
fn cancelling_voids_open_approvals() {
    let mut world = World::new(main_book(vec![approve("ok"), run("b")]));
    let id = world.start();
    let approval = world.open_approval(id, "ok");
    world.cancel(id).unwrap();
    let after = world.run(id).rare().approvals[&approval.id].status;
    assert_eq!(after, windlass_core::approval::Status::Cancelled);
    assert_eq!(world.status(id), Status::Cancelled);
    let verdict = windlass_core::approval::Verdict::Approved;
    let _ = world.decide(id, approval.id, verdict, approval.action_hash, "bob");
    assert_eq!(world.step_status(id, "ok"), S::Cancelled);
    world.check_replay();
}

#[test]
fn a_cancel_in_on_failure_stops_it_and_compensates() {
    let mut world = careful();
    let id = world.start();
    world.succeed(id, "a");
    world.fail(id, "b", "boom");
    world.lease(id, "f");
    world.cancel(id).unwrap();
    assert_eq!(world.stopped(id), ["f@1"]);
    world.stop(id, "f");
    assert_eq!(world.leasable(id), ["undo-a"]);
    world.work(id);
    assert_eq!(world.status(id), Status::Cancelled);
    world.check_replay();
}

#[test]
fn a_cancel_while_it_compensates_or_finishes_stops_none_of_that() {
    let mut world = careful();
    let id = world.start();
    world.succeed(id, "a");
    world.fail(id, "b", "boom");
    world.succeed(id, "f");
    let epoch = world.lease(id, "undo-a").epoch;
    world.cancel(id).unwrap();
    assert!(world.stopped(id).is_empty());
    world.report(id, "undo-a", epoch, done()).unwrap();
    assert_eq!(world.leasable(id), ["z"]);
    world.succeed(id, "z");
    assert_eq!(world.status(id), Status::Cancelled);
    world.check_replay();

    let mut world = careful();
    let id = world.start();
    for step in ["a", "b", "c"] {
        world.succeed(id, step);
    }
    let epoch = world.lease(id, "z").epoch;
    world.cancel(id).unwrap();
    assert!(world.stopped(id).is_empty());
    world.report(id, "z", epoch, done()).unwrap();
    assert_eq!(world.status(id), Status::Cancelled);
    world.check_replay();
}

#[test]
fn an_approval_of_a_compensation_outlives_a_cancel() {
    let steps = vec![run("a").undo(approve("sure")), run("b")];
    let mut world = World::new(main_book(steps));
    let id = world.start();
    world.succeed(id, "a");
    world.fail(id, "b", "boom");
    let approval = world.open_approval(id, "sure");
    world.cancel(id).unwrap();
    assert_eq!(world.status(id), Status::AwaitingApproval);
    let verdict = windlass_core::approval::Verdict::Approved;
    world.decide(id, approval.id, verdict, approval.action_hash, "bob").unwrap();
    assert_eq!(world.status(id), Status::Cancelled);
    world.check_replay();
}

fn with_deadline() -> World {
    let steps = vec![run("a").undo(run("undo-a")), run("b")];
    let mut main = pipeline(steps, vec![env(run("f"), "WHY", "error.code")], vec![run("z")]);
    main.deadline = Some(Span::secs(60));
    World::new(book(vec![("main", main)]))
}

#[test]
fn a_deadline_fails_the_run_and_everything_after_a_failure_runs() {
    let mut world = with_deadline();
    let id = world.start();
    world.succeed(id, "a");
    world.lease(id, "b");
    world.sleep(Span::secs(60));
    assert_eq!(world.stopped(id), ["b@1"]);
    world.stop(id, "b");
    assert_eq!(world.step_status(id, "b"), S::Cancelled);
    assert_eq!(world.step(id, "f").input(), Some(json!({ "env": { "WHY": "TIMED_OUT" } })));
    world.succeed(id, "f");
    world.succeed(id, "undo-a");
    world.succeed(id, "z");
    assert_eq!(world.status(id), Status::Failed);
    assert!(world.run_error(id).starts_with("TIMED_OUT"), "{}", world.run_error(id));
    world.check_replay();
}

#[test]
fn a_deadline_that_passes_while_it_cleans_up_stops_nothing() {
    let mut world = with_deadline();
    let id = world.start();
    world.succeed(id, "a");
    world.fail(id, "b", "boom");
    let epoch = world.lease(id, "f").epoch;
    world.sleep(Span::secs(60));
    assert!(world.stopped(id).is_empty());
    world.report(id, "f", epoch, done()).unwrap();
    world.succeed(id, "undo-a");
    world.succeed(id, "z");
    assert_eq!(world.status(id), Status::Failed);
    assert_eq!(world.run_error(id), "STEP_FAILED: boom");
    world.check_replay();
}

#[test]
fn a_human_can_cancel_what_handles_a_missed_deadline() {
    let mut world = with_deadline();
    let id = world.start();
    world.sleep(Span::secs(60));
    world.lease(id, "f");
    world.cancel(id).unwrap();
    assert_eq!(world.stopped(id), ["f@1"]);
    world.stop(id, "f");
    world.succeed(id, "z");
    assert_eq!(world.status(id), Status::Cancelled);
    world.check_replay();
}

#[test]
fn a_call_that_compensates_after_the_deadline_is_not_bound_by_it() {
    let steps = vec![run("a").undo(call("undo-a", "sub", &[])), run("b")];
    let mut main = pipeline(steps, vec![], vec![]);
    main.deadline = Some(Span::secs(60));
    let sub = pipeline(vec![run("s")], vec![], vec![]);
    let mut world = World::new(book(vec![("main", main), ("sub", sub)]));
    let id = world.start();
    world.succeed(id, "a");
    world.sleep(Span::secs(61));
    let child = world.child(id, "undo-a");
    world.sleep(Span::secs(1));
    world.succeed(child, "s");
    assert_eq!(world.step_status(id, "undo-a"), S::Succeeded);
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn a_deadline_before_the_beginning_fails_the_run() {
    let mut main = pipeline(vec![run("a")], vec![run("f")], vec![]);
    main.deadline = Some(Span::secs(60));
    let other = pipeline(vec![run("o")], vec![], vec![]);
    let mut world = World::new(book(vec![("main", main), ("other", other)]));
    let needed = world.create("other", json!({}));
    let mut create = world.create("main", json!({}));
    create.needs = vec![needed.id];
    let id = create.id;
    world.send(&windlass_core::turn::command::Command::Create(Box::new(needed))).unwrap();
    world.send(&windlass_core::turn::command::Command::Create(Box::new(create))).unwrap();
    world.sleep(Span::secs(60));
    assert_eq!(world.status(id), Status::Failed);
    assert!(world.trace(id).is_empty());
    world.check_replay();
}

#[test]
fn a_cancelled_run_cancels_its_agents_and_kills_their_sessions() {
    let mut world = World::new(with_coder(main_book(vec![agent("a")])));
    let id = world.start();
    world.decide_policy(id, "a", windlass_core::policy::Verdict::Allow);
    let session = world.start_agent(id, "a");
    world.cancel(id).unwrap();
    assert_eq!(world.stopped(id), ["a@1"]);
    world.stop(id, "a");
    assert!(world.effects.contains(&Effect::Kill { session }));
    assert_eq!(world.run(id).rare().tasks[&name("a")].state_name(), "done");
    assert_eq!(world.status(id), Status::Cancelled);
    world.check_replay();
}

#[test]
fn the_sections_come_in_their_order() {
    let mut world = careful();
    let id = world.start();
    let section = |world: &World| world.run(id).section;
    assert_eq!(section(&world), Section::Main);
    world.succeed(id, "a");
    world.fail(id, "b", "boom");
    assert_eq!(section(&world), Section::OnFailure);
    world.succeed(id, "f");
    assert_eq!(section(&world), Section::Compensate);
    world.succeed(id, "undo-a");
    assert_eq!(section(&world), Section::Finally);
    world.check_replay();
}
