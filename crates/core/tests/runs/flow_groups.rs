//! Groups: steps side by side, in sequence, for each item, in order until one succeeds, and called runs.

use crate::world::*;
use serde_json::{Value, json};
use windlass_core::code::Code;
use windlass_core::lock;
use windlass_core::run::Status;
use windlass_core::runbook::{Kind, Pipeline, Runbook, ValueType, VarDef};
use windlass_core::schedule::Overlap;
use windlass_core::step::{FailFast, Status as S};
use windlass_core::strategy::FallbackCondition as On;
use windlass_core::template::Template;
use windlass_core::time::Span;
use windlass_core::trace;
use windlass_core::turn::command::Command;

fn kill(group: Spec) -> Spec {
    group.with(|def| match &mut def.kind {
        Kind::Parallel { fail_fast, .. } => *fail_fast = FailFast::Kill,
        _ => panic!("only steps side by side are killed"),
    })
}

fn env(step: Spec, key: &str, value: Template) -> Spec {
    step.with(|def| {
        def.env.insert(key.to_string(), value);
    })
}

fn list(items: Value) -> Template {
    literal(items)
}

fn failing(steps: Vec<Spec>) -> Runbook {
    main_book(steps)
}

#[test]
fn parallel_steps_run_side_by_side_and_give_a_map() {
    let mut world = World::new(main_book(vec![parallel("p", vec![run("a"), run("b")]), run("c")]));
    let id = world.start();
    assert_eq!(world.leasable(id), ["a", "b"]);
    world.succeed_with(id, "b", Some(json!(2)));
    assert_eq!(world.leasable(id), ["a"]);
    world.succeed_with(id, "a", Some(json!(1)));
    assert_eq!(world.output(id, "p"), json!({ "a": 1, "b": 2 }));
    assert_eq!(world.leasable(id), ["c"]);
    world.check_replay();
}

#[test]
fn after_a_failure_running_members_finish_and_then_the_group_fails() {
    let mut world = World::new(failing(vec![parallel("p", vec![run("a"), run("b")]), run("c")]));
    let id = world.start();
    let b = world.lease(id, "b").epoch;
    world.fail(id, "a", "boom");
    assert_eq!(world.step_status(id, "p"), S::Running);
    assert!(world.stopped(id).is_empty());
    world.report(id, "b", b, windlass_core::attempt::Report::Done { output: None, exit_code: None }).unwrap();
    assert_eq!(world.step_status(id, "b"), S::Succeeded);
    assert_eq!(world.error(id, "p"), "STEP_FAILED: boom");
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn after_a_failure_no_other_member_starts() {
    let items = run("a").foreach(list(json!([1, 2, 3, 4])), 2, true);
    let mut world = World::new(failing(vec![items]));
    let id = world.start();
    assert_eq!(world.leasable(id), ["a[0]", "a[1]"]);
    let other = world.lease(id, "a[1]").epoch;
    world.fail(id, "a[0]", "boom");
    assert!(world.leasable(id).is_empty());
    let done = windlass_core::attempt::Report::Done { output: None, exit_code: None };
    world.report(id, "a[1]", other, done).unwrap();
    assert_eq!(world.trace(id), ["a: failed", "a[0]: failed", "a[1]: succeeded"]);
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn after_a_failure_members_that_have_not_begun_are_cancelled_and_the_others_finish() {
    let items = || run("a").foreach(list(json!([1, 2, 3])), 2, true);
    let mut world = World::new(failing(vec![items()]));
    let id = world.start();
    world.fail(id, "a[0]", "boom");
    assert_eq!(world.trace(id), ["a: failed", "a[0]: failed", "a[1]: cancelled"]);
    world.check_replay();

    let sequence = steps("s", vec![run("x"), run("y")]);
    let members = vec![
        run("a"),
        run("ready"),
        run("locked").lock("db", Overlap::Queue),
        run("again").retry(2, Span::secs(1)),
        sequence,
    ];
    let mut world = World::new(failing(vec![parallel("p", members)]));
    let holder = windlass_core::id::Holder::Outside(name("ci"));
    let lock = |input| Command::Lock { lock: scoped("db"), input };
    let ask = lock::Ask { holder: holder.clone(), metadata: None, wait: false, give_up_at: None };
    world.send(&lock(lock::Input::Acquire(ask))).unwrap();
    let id = world.start();
    world.fail_retryable(id, "again");
    world.fail(id, "a", "boom");
    assert_eq!(
        (world.step_status(id, "ready"), world.step_status(id, "locked")),
        (S::Cancelled, S::Cancelled)
    );
    // What it waited for goes to nobody.
    world.send(&lock(lock::Input::Release { holder, epoch: None })).unwrap();
    // A sequence that has begun goes on, and so does what is tried again.
    assert_eq!(world.leasable(id), ["x"]);
    world.succeed(id, "x");
    world.succeed(id, "y");
    world.sleep(Span::secs(2));
    world.succeed(id, "again");
    assert_eq!((world.error(id, "p").as_str(), world.status(id)), ("STEP_FAILED: boom", Status::Failed));
    world.check_replay();
}

#[test]
fn a_member_that_has_not_begun_is_not_leased_before_the_flow_came_by() {
    let mut world = World::new(failing(vec![parallel("p", vec![run("a"), run("b")])]));
    let id = world.start();
    let epoch = world.lease(id, "a").epoch;
    world.follow_max = Some(0);
    let failure = windlass_core::step::Failure::new(Code::StepFailed, "boom");
    let report =
        windlass_core::attempt::Report::Failed { failure, retryable: false, exit_code: None, signal: None };
    world.report(id, "a", epoch, report).unwrap();
    assert_eq!(world.step_status(id, "b"), S::Ready);
    let refused = world.try_lease(id, "b", "local").unwrap_err();
    assert_eq!(refused.code(), Some(Code::RunInvalidTransition));
    world.follow_max = None;
    world.catch_up();
    assert_eq!((world.step_status(id, "b"), world.status(id)), (S::Cancelled, Status::Failed));
    world.check_replay();
}

#[test]
fn a_group_that_kills_tells_executors_to_stop_and_cancels_the_rest() {
    let members = vec![run("a"), run("b"), run("c")];
    let mut world = World::new(failing(vec![kill(parallel("p", members))]));
    let id = world.start();
    world.lease(id, "b");
    world.fail(id, "a", "boom");
    assert_eq!(world.step_status(id, "c"), S::Cancelled);
    assert_eq!(world.stopped(id), ["b@1"]);
    world.stop(id, "b");
    assert_eq!(world.step_status(id, "b"), S::Cancelled);
    assert_eq!(world.error(id, "p"), "STEP_FAILED: boom");
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn nothing_opens_inside_a_group_that_kills() {
    let inner = run("i").foreach(list(json!([1, 2, 3, 4])), 2, true);
    let sequence = steps("s", vec![run("x"), run("y")]);
    let mut world = World::new(failing(vec![kill(parallel("p", vec![run("a"), inner, sequence]))]));
    let id = world.start();
    world.lease(id, "i[0]");
    let x = world.lease(id, "x").epoch;
    world.fail(id, "a", "boom");
    let done = windlass_core::attempt::Report::Done { output: None, exit_code: None };
    world.report(id, "x", x, done).unwrap();
    assert!(world.leasable(id).is_empty());
    world.stop(id, "i[0]");
    assert_eq!(
        world.trace(id),
        [
            "p: failed",
            "a: failed",
            "i: cancelled",
            "s: cancelled",
            "i[0]: cancelled",
            "i[1]: cancelled",
            "x: succeeded"
        ]
    );
    world.check_replay();
}

#[test]
fn a_called_run_is_cancelled_by_a_group_that_kills() {
    let main = pipeline(vec![kill(parallel("p", vec![run("a"), call("c", "sub", &[])]))], vec![], vec![]);
    let sub = pipeline(vec![run("s")], vec![], vec![]);
    let mut world = World::new(book(vec![("main", main), ("sub", sub)]));
    let id = world.start();
    let child = world.child(id, "c");
    world.lease(child, "s");
    world.fail(id, "a", "boom");
    assert_eq!(world.stopped(child), ["s@1"]);
    world.stop(child, "s");
    assert_eq!(world.status(child), Status::Cancelled);
    assert_eq!(world.status(id), Status::Failed);
    assert_eq!(world.run_error(id), "STEP_FAILED: boom");
    world.check_replay();
}

#[test]
fn nested_steps_run_in_order_and_the_last_gives_the_output() {
    let inner = steps("in", vec![run("b"), parallel("p", vec![run("c"), run("d")])]);
    let mut world = World::new(main_book(vec![steps("out", vec![run("a"), inner]), run("e")]));
    let id = world.start();
    world.succeed(id, "a");
    world.succeed(id, "b");
    assert_eq!(world.leasable(id), ["c", "d"]);
    world.succeed_with(id, "c", Some(json!(1)));
    world.succeed_with(id, "d", Some(json!(2)));
    assert_eq!(world.output(id, "out"), json!({ "c": 1, "d": 2 }));
    world.succeed(id, "e");
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

#[test]
fn a_condition_is_evaluated_once_and_recorded() {
    let steps = vec![run("a"), run("b").when("steps.a.output.go"), run("c").when("false"), run("d")];
    let mut world = World::new(main_book(steps));
    let id = world.start();
    world.succeed_with(id, "a", Some(json!({ "go": true })));
    world.succeed(id, "b");
    assert_eq!(world.step_status(id, "c"), S::Skipped);
    world.succeed(id, "d");
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

#[test]
fn a_condition_that_fails_or_is_no_boolean_fails_the_step() {
    for (when, text) in [("vars.absent", "no `absent`"), ("1", "neither true nor false")] {
        let mut world = World::new(failing(vec![run("a").when(when), run("b")]));
        let id = world.start();
        assert!(world.error(id, "a").starts_with("EXPRESSION_FAILED"), "{}", world.error(id, "a"));
        assert!(world.error(id, "a").contains(text), "{}", world.error(id, "a"));
        assert_eq!(world.status(id), Status::Failed);
        world.check_replay();
    }
}

#[test]
fn foreach_gives_a_list_in_the_order_of_items() {
    let items = env(run("a").foreach(expr("vars.xs"), 3, true), "X", expr("item"));
    let mut main = pipeline(vec![items], vec![], vec![]);
    main.vars.insert(name("xs"), VarDef::default());
    main.outputs.insert(name("all"), expr("steps.a.output"));
    let mut world = World::new(book(vec![("main", main)]));
    let id = world.start_with(json!({ "xs": ["p", "q", "r"] }));
    assert_eq!(world.lease(id, "a[2]").input, Some(json!({ "env": { "X": "r" } })));
    let done = |output| windlass_core::attempt::Report::Done { output: Some(output), exit_code: None };
    world.report(id, "a[2]", 1, done(json!(2))).unwrap();
    world.succeed_with(id, "a[0]", Some(json!(0)));
    world.succeed_with(id, "a[1]", Some(json!(1)));
    assert_eq!(world.output(id, "a"), json!([0, 1, 2]));
    let outputs = world.run(id).ending.as_ref().unwrap().outputs.clone();
    assert_eq!(outputs, Some(json!({ "all": [0, 1, 2] })));
    world.check_replay();
}

#[test]
fn foreach_over_a_map_of_lists_is_their_product() {
    let over = literal(json!({ "os": ["mac", "win"], "v": [1, 2] }));
    let items = env(run("a").foreach(over, 4, true), "OS", expr("item.os"));
    let mut world = World::new(main_book(vec![items]));
    let id = world.start();
    assert_eq!(world.leasable(id).len(), 4);
    assert_eq!(world.step(id, "a[3]").input(), Some(json!({ "env": { "OS": "win" } })));
    let list = world.step(id, "a").input().unwrap();
    assert_eq!(list[1], json!({ "os": "mac", "v": 2 }));
    world.work(id);
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

#[test]
fn foreach_over_nothing_succeeds_with_an_empty_list() {
    let mut world = World::new(main_book(vec![run("a").foreach(list(json!([])), 1, true)]));
    let id = world.start();
    assert_eq!(world.output(id, "a"), json!([]));
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

#[test]
fn foreach_without_fail_fast_runs_every_item_and_then_fails() {
    let mut world = World::new(failing(vec![run("a").foreach(list(json!([1, 2, 3])), 1, false)]));
    let id = world.start();
    world.fail(id, "a[0]", "boom");
    world.succeed(id, "a[1]");
    world.succeed(id, "a[2]");
    assert_eq!(world.error(id, "a"), "STEP_FAILED: boom");
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn foreach_refuses_more_than_a_thousand_items_and_what_is_no_list() {
    let many: Vec<u32> = (0..1001).collect();
    let product = json!({ "a": (0..32).collect::<Vec<_>>(), "b": (0..32).collect::<Vec<_>>() });
    for (over, text) in [
        (json!(many), "more than 1000"),
        (product, "more than 1000"),
        (json!("text"), "needs a list"),
        (json!({ "a": 1 }), "not a list"),
    ] {
        let mut world = World::new(failing(vec![run("a").foreach(list(over), 1, true)]));
        let id = world.start();
        assert!(world.error(id, "a").contains(text), "{}", world.error(id, "a"));
        assert_eq!(world.status(id), Status::Failed);
        world.check_replay();
    }
    let thousand: Vec<u32> = (0..1000).collect();
    let mut world = World::new(main_book(vec![run("a").foreach(list(json!(thousand)), 1, true)]));
    let id = world.start();
    assert_eq!(world.leasable(id), ["a[0]"]);
}

#[test]
fn steps_inside_an_item_see_the_item_and_each_other() {
    let second = env(env(run("b"), "I", expr("item")), "A", expr("steps.a.output"));
    let group = steps("g", vec![run("a"), second]).foreach(list(json!(["x", "y"])), 2, true);
    let mut world = World::new(main_book(vec![group]));
    let id = world.start();
    world.succeed_with(id, "a[0]", Some(json!("of x")));
    world.succeed_with(id, "a[1]", Some(json!("of y")));
    let input = |world: &World, step: &str| world.step(id, step).input();
    assert_eq!(input(&world, "b[0]"), Some(json!({ "env": { "A": "of x", "I": "x" } })));
    assert_eq!(input(&world, "b[1]"), Some(json!({ "env": { "A": "of y", "I": "y" } })));
    world.succeed_with(id, "b[0]", Some(json!(0)));
    world.succeed_with(id, "b[1]", Some(json!(1)));
    assert_eq!(world.output(id, "g"), json!([0, 1]));
    world.check_replay();
}

#[test]
fn the_timeout_of_a_foreach_is_that_of_each_item() {
    let items = run("a").foreach(list(json!([1, 2])), 1, true).with(|def| def.timeout = Some(Span::secs(60)));
    let mut world = World::new(main_book(vec![items]));
    let id = world.start();
    for step in ["a[0]", "a[1]"] {
        world.lease(id, step);
        world.sleep(Span::secs(40));
        assert!(world.stopped(id).is_empty(), "{step}");
        let done = windlass_core::attempt::Report::Done { output: None, exit_code: None };
        world.report(id, step, 1, done).unwrap();
    }
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

fn approaches() -> Spec {
    let on = |text: &str| vec![On::Error(text.to_string()), On::Timeout];
    strategy("s", vec![(run("a"), on("not a fast-forward")), (run("b"), on("conflict")), (run("c"), vec![])])
}

#[test]
fn a_strategy_ends_with_the_first_success() {
    let mut world = World::new(main_book(vec![approaches()]));
    let id = world.start();
    world.succeed_with(id, "a", Some(json!("merged")));
    assert_eq!(world.output(id, "s"), json!("merged"));
    assert_eq!(world.trace(id), ["s: succeeded", "a: succeeded"]);
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

#[test]
fn a_strategy_falls_back_on_a_text_that_matches() {
    let mut world = World::new(main_book(vec![approaches()]));
    let id = world.start();
    world.fail(id, "a", "fatal: Not a fast-forward");
    assert_eq!(world.leasable(id), ["b"]);
    world.fail(id, "b", "CONFLICT in a.rs");
    world.succeed(id, "c");
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

#[test]
fn a_strategy_falls_back_on_a_timeout() {
    let first = run("a").with(|def| def.timeout = Some(Span::secs(10)));
    let mut world =
        World::new(main_book(vec![strategy("s", vec![(first, vec![On::Timeout]), (run("b"), vec![])])]));
    let id = world.start();
    world.lease(id, "a");
    world.sleep(Span::secs(10));
    assert_eq!(world.stopped(id), ["a@1"]);
    world.stop(id, "a");
    assert_eq!(world.leasable(id), ["b"]);
    world.check_replay();
}

#[test]
fn a_strategy_that_is_used_up_is_exhausted() {
    let any = || vec![On::AnyError];
    let mut world = World::new(failing(vec![strategy("s", vec![(run("a"), any()), (run("b"), any())])]));
    let id = world.start();
    world.fail(id, "a", "one");
    world.fail(id, "b", "two");
    assert_eq!(world.error(id, "s"), "STRATEGY_EXHAUSTED: two");
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

fn caller(step: Spec, sub: Pipeline) -> World {
    let main = pipeline(vec![step, run("z")], vec![], vec![]);
    World::new(book(vec![("main", main), ("sub", sub)]))
}

fn sub() -> Pipeline {
    let mut sub = pipeline(vec![env(run("s"), "X", expr("vars.x"))], vec![], vec![]);
    sub.vars
        .insert(name("x"), VarDef { required: true, kind: Some(ValueType::Integer), ..VarDef::default() });
    sub.outputs.insert(name("y"), expr("steps.s.output.y"));
    sub
}

#[test]
fn a_called_run_gets_variables_and_gives_its_outputs() {
    let mut world = caller(call("c", "sub", &[("x", literal(json!(7)))]), sub());
    let id = world.start();
    let child = world.child(id, "c");
    assert_eq!(world.run(child).born.parent.as_deref(), Some(&(id, name("c"))));
    assert_eq!(world.run(child).born.depth, 1);
    assert_eq!(world.step(child, "s").input(), Some(json!({ "env": { "X": 7 } })));
    world.succeed_with(child, "s", Some(json!({ "y": 8 })));
    assert_eq!(world.output(id, "c"), json!({ "y": 8 }));
    world.succeed(id, "z");
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

#[test]
fn a_call_is_no_executors_lease_so_it_neither_expires_nor_counts() {
    let mut world = caller(call("c", "sub", &[("x", literal(json!(7)))]), sub());
    let id = world.start();
    assert_eq!((world.run(id).leases(), world.run(id).lease_due()), (0, None));
    let child = world.child(id, "c");
    world.lease(child, "s");
    assert_eq!(world.run(child).leases(), 1);
    assert!(world.run(child).lease_due().is_some());
    world.check_replay();
}

#[test]
fn a_called_run_that_fails_fails_its_call() {
    let mut world = caller(call("c", "sub", &[("x", literal(json!(7)))]), sub());
    let id = world.start();
    let child = world.child(id, "c");
    world.fail(child, "s", "boom");
    assert_eq!(world.status(child), Status::Failed);
    assert_eq!(world.error(id, "c"), "STEP_FAILED: boom");
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn a_call_that_cannot_be_made_fails() {
    for vars in [vec![], vec![("x", literal(json!("text")))], vec![("z", literal(json!(1)))]] {
        let mut world = caller(call("c", "sub", &vars), sub());
        let id = world.start();
        assert!(world.error(id, "c").contains("variable"), "{}", world.error(id, "c"));
        assert_eq!(world.status(id), Status::Failed);
        world.check_replay();
    }
}

#[test]
fn a_call_is_tried_again_with_a_new_run() {
    let again = call("c", "sub", &[("x", literal(json!(7)))]).retry(2, Span::secs(1));
    let mut world = caller(again, sub());
    let id = world.start();
    let first = world.child(id, "c");
    world.fail(first, "s", "boom");
    assert_eq!(world.status(id), Status::FailedRetryable);
    world.sleep(Span::secs(2));
    let second = world.child(id, "c");
    assert_ne!(first, second);
    // Each belongs to its caller's trace, below the attempt that made it.
    for (called, epoch) in [(first, 1), (second, 2)] {
        let span = trace::attempt_span(id, &name("c"), epoch);
        let trace = trace::Trace { parent: Some(span), ..world.run(id).born.trace() };
        assert_eq!(world.run(called).born.trace(), trace, "attempt {epoch}");
    }
    world.succeed_with(second, "s", Some(json!({ "y": 1 })));
    assert_eq!(world.leasable(id), ["z"]);
    world.check_replay();
}

#[test]
fn a_call_that_takes_too_long_cancels_its_run_and_times_out() {
    let slow = call("c", "sub", &[("x", literal(json!(7)))]).with(|def| def.timeout = Some(Span::secs(5)));
    let mut world = caller(slow, sub());
    let id = world.start();
    let child = world.child(id, "c");
    world.sleep(Span::secs(5));
    assert_eq!(world.status(child), Status::Cancelled);
    assert!(world.error(id, "c").starts_with("TIMED_OUT"), "{}", world.error(id, "c"));
    world.check_replay();
}

#[test]
fn a_deadline_goes_along_with_a_call() {
    let mut main = pipeline(vec![call("c", "sub", &[("x", literal(json!(7)))])], vec![], vec![]);
    main.deadline = Some(Span::secs(60));
    let mut world = World::new(book(vec![("main", main), ("sub", sub())]));
    let id = world.start();
    let child = world.child(id, "c");
    assert_eq!(world.run(child).born.deadline_at, world.run(id).born.deadline_at);
    world.sleep(Span::secs(60));
    assert!(world.run(child).is_terminal());
    assert_eq!(world.status(id), Status::Failed);
    assert!(world.run_error(id).starts_with("TIMED_OUT"), "{}", world.run_error(id));
    world.check_replay();
}

#[test]
fn runs_call_each_other_eight_deep_and_no_deeper() {
    let main = pipeline(vec![call("c", "main", &[])], vec![], vec![]);
    let mut world = World::new(book(vec![("main", main)]));
    let id = world.start();
    let runs: Vec<_> = world
        .state
        .streams()
        .filter_map(|(_, stream)| match &stream.body {
            windlass_core::turn::state::Body::Run(run) => Some(run.born.depth),
            _ => None,
        })
        .collect();
    assert_eq!(runs.len(), 9);
    assert_eq!(runs.iter().max(), Some(&8));
    assert_eq!(world.status(id), Status::Failed);
    assert!(world.run_error(id).contains("too deeply"), "{}", world.run_error(id));
    world.check_replay();
}

#[test]
fn a_group_that_is_tried_again_has_new_members() {
    let group = steps("g", vec![run("a"), run("b")]).retry(2, Span::secs(1));
    let after = env(run("c"), "A", expr("steps.a.output"));
    let mut world = World::new(main_book(vec![group, after]));
    let id = world.start();
    world.succeed_with(id, "a", Some(json!(1)));
    world.fail(id, "b", "boom");
    assert_eq!(world.status(id), Status::FailedRetryable);
    world.sleep(Span::secs(2));
    assert_eq!(world.leasable(id), ["a#2"]);
    world.succeed_with(id, "a#2", Some(json!(2)));
    world.succeed_with(id, "b#2", Some(json!("b")));
    assert_eq!(world.output(id, "g"), json!("b"));
    assert_eq!(world.step(id, "c").input(), Some(json!({ "env": { "A": 2 } })));
    world.check_replay();
}

#[test]
fn a_group_that_fails_again_fails_with_its_last_failure() {
    let group = steps("g", vec![run("a")]).retry(2, Span::secs(1));
    let mut world = World::new(failing(vec![group]));
    let id = world.start();
    world.fail(id, "a", "first");
    world.sleep(Span::secs(2));
    world.fail(id, "a#2", "second");
    assert_eq!(world.error(id, "g"), "STEP_FAILED: second");
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn a_group_that_takes_too_long_is_stopped_and_times_out() {
    let inner = steps("s", vec![run("a"), run("b")]);
    let group = parallel("p", vec![inner, run("c")]).with(|def| def.timeout = Some(Span::secs(30)));
    let mut world = World::new(failing(vec![group]));
    let id = world.start();
    let a = world.lease(id, "a").epoch;
    world.sleep(Span::secs(30));
    // A stop names its epoch, so one that comes again does nothing.
    assert!(!world.stopped(id).is_empty() && world.stopped(id).iter().all(|stopped| stopped == "a@1"));
    assert_eq!(world.step_status(id, "c"), S::Cancelled);
    let done = windlass_core::attempt::Report::Done { output: None, exit_code: None };
    world.report(id, "a", a, done).unwrap();
    assert_eq!(world.trace(id), ["p: failed", "s: cancelled", "c: cancelled", "a: succeeded"]);
    assert!(world.error(id, "p").starts_with("TIMED_OUT"), "{}", world.error(id, "p"));
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn declared_outputs_that_are_missing_or_of_another_type_fail_the_step() {
    let declared = |step: Spec| {
        step.with(|def| {
            def.outputs.insert(name("n"), ValueType::Integer);
        })
    };
    for (output, text) in [(None, "missing"), (Some(json!({ "n": "1" })), "not an integer")] {
        let mut world = World::new(failing(vec![declared(run("a"))]));
        let id = world.start();
        world.succeed_with(id, "a", output.clone());
        assert!(world.error(id, "a").contains(text), "{}", world.error(id, "a"));
        assert_eq!(world.status(id), Status::Failed);
        world.check_replay();

        let mut world = World::new(failing(vec![declared(steps("g", vec![run("a")]))]));
        let id = world.start();
        world.succeed_with(id, "a", output);
        assert!(world.error(id, "g").contains(text), "{}", world.error(id, "g"));
        world.check_replay();
    }
    let mut world = caller(declared(call("c", "sub", &[("x", literal(json!(1)))])), sub());
    let id = world.start();
    let child = world.child(id, "c");
    world.succeed_with(child, "s", Some(json!({ "y": 8 })));
    assert_eq!(world.error(id, "c"), "STEP_FAILED: the output `n` is missing");
    world.check_replay();
}

#[test]
fn outputs_of_a_pipeline_that_cannot_be_made_fail_the_run() {
    let mut main = pipeline(vec![run("a")], vec![], vec![]);
    main.outputs.insert(name("x"), expr("steps.a.output.x"));
    let mut world = World::new(book(vec![("main", main)]));
    let id = world.start();
    world.succeed(id, "a");
    assert_eq!(world.status(id), Status::Failed);
    assert!(world.run_error(id).starts_with("EXPRESSION_FAILED"), "{}", world.run_error(id));
    world.check_replay();
}

#[test]
fn an_advance_with_nothing_to_do_changes_nothing() {
    let mut world = World::new(main_book(vec![parallel("p", vec![run("a"), run("b")])]));
    let id = world.start();
    world.lease(id, "a");
    let lines = world.lines.len();
    world.send(&Command::Advance(id)).unwrap();
    assert_eq!(world.lines.len(), lines);
}
