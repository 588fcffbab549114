//! What keeps a step or a run waiting: events, locks, slots, guards, policy, approvals, other runs, suspension.

use crate::world::*;
use serde_json::{Value, json};
use windlass_core::approval::{self, Verdict as Says};
use windlass_core::attempt::Report;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::effect::Effect;
use windlass_core::guard::OnFailure;
use windlass_core::id::{Holder, RunId};
use windlass_core::policy::Verdict;
use windlass_core::run::{SIGNALS_MAX, Status};
use windlass_core::runbook::{LockUse, VarDef, WaitFor};
use windlass_core::schedule::Overlap;
use windlass_core::semaphore;
use windlass_core::step::{Status as S, Wait};
use windlass_core::stream::StreamId;
use windlass_core::time::Span;
use windlass_core::turn::command::{Command, Reply};
use windlass_core::turn::state::Body;

fn event(id: &str, key: Option<&str>, timeout: Option<Span>, continue_on_timeout: bool) -> Spec {
    let key = key.map(expr);
    wait(id, WaitFor::Event { event: name("merged"), key, timeout, continue_on_timeout })
}

fn holder(world: &World, lock: &str) -> Option<Holder> {
    match &world.state.stream(&StreamId::Lock(scoped(lock)))?.body {
        Body::Lock(lock) => lock.holder().cloned(),
        _ => None,
    }
}

fn of_step(id: RunId, step: &str) -> Option<Holder> {
    Some(Holder::Step(id, name(step)))
}

fn done() -> Report {
    Report::Done { output: None, exit_code: Some(0.into()) }
}

fn needs(world: &mut World, needed: &[RunId]) -> RunId {
    let mut create = world.create("main", Value::Null);
    create.needs = needed.to_vec();
    let id = create.id;
    world.send(&Command::Create(Box::new(create))).unwrap();
    id
}

// Events and times.

#[test]
fn a_wait_for_an_event_ends_with_its_data() {
    let mut world = World::new(main_book(vec![event("w", None, None, false), run("b")]));
    let id = world.start();
    world.signal(id, "other", None, json!(0)).unwrap();
    world.signal(id, "merged", Some("k"), json!(0)).unwrap();
    assert_eq!(world.status(id), Status::WaitingExternal);
    world.signal(id, "merged", None, json!({ "pr": 7 })).unwrap();
    assert_eq!(world.output(id, "w"), json!({ "pr": 7 }));
    assert_eq!(world.leasable(id), ["b"]);
    world.check_replay();
}

#[test]
fn an_early_event_is_kept_and_taken_once() {
    let steps = vec![run("a"), event("v", None, None, false), event("w", None, None, false)];
    let mut world = World::new(main_book(steps));
    let id = world.start();
    world.signal(id, "merged", None, json!(1)).unwrap();
    world.succeed(id, "a");
    assert_eq!((world.step_status(id, "v"), world.output(id, "v")), (S::Succeeded, json!(1)));
    assert_eq!(world.step_status(id, "w"), S::WaitingExternal);
    world.signal(id, "merged", None, json!(2)).unwrap();
    assert_eq!(world.output(id, "w"), json!(2));
    assert!(world.run(id).rare().signals.is_empty());
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

#[test]
fn an_event_is_for_the_step_with_its_key() {
    let side =
        parallel("p", vec![event("v", Some("\"x\""), None, false), event("w", Some("\"y\""), None, false)]);
    let mut world = World::new(main_book(vec![side]));
    let id = world.start();
    world.signal(id, "merged", Some("y"), json!(1)).unwrap();
    assert_eq!((world.step_status(id, "v"), world.step_status(id, "w")), (S::WaitingExternal, S::Succeeded));
    world.check_replay();
}

#[test]
fn an_event_that_does_not_come_fails_the_step_or_lets_it_go_on() {
    for (goes_on, step, status) in
        [(false, S::Failed, Status::Failed), (true, S::Succeeded, Status::Completed)]
    {
        let mut world = World::new(main_book(vec![event("w", None, Some(Span::secs(60)), goes_on)]));
        let id = world.start();
        world.sleep(Span::secs(60));
        assert_eq!((world.step_status(id, "w"), world.status(id)), (step, status));
        world.check_replay();
    }
}

#[test]
fn early_events_are_bounded_but_one_that_is_waited_for_always_arrives() {
    let mut world = World::new(main_book(vec![event("w", None, None, false), run("b")]));
    world.records = false;
    let id = world.start();
    for _ in 0..SIGNALS_MAX {
        world.signal(id, "other", None, json!(0)).unwrap();
    }
    assert_eq!(world.signal(id, "other", None, json!(0)).unwrap_err().code(), Some(Code::InvalidInput));
    world.signal(id, "merged", None, json!(0)).unwrap();
    assert_eq!(world.leasable(id), ["b"]);
}

// Suspension and status.

#[test]
fn a_suspended_run_leases_nothing_and_what_is_under_way_goes_on() {
    let mut world = World::new(main_book(vec![parallel("p", vec![run("a"), run("b")]), run("c")]));
    let id = world.start();
    world.lease(id, "a");
    world.send(&Command::Suspend { run: id, reason: None }).unwrap();
    assert_eq!(world.status(id), Status::Running);
    assert!(world.leasable(id).is_empty());
    let refused = world.try_lease(id, "b", "ex1").unwrap_err();
    assert_eq!(refused.code(), Some(Code::RunInvalidTransition));
    world.report(id, "a", 1, done()).unwrap();
    assert_eq!(world.status(id), Status::WaitingExternal);
    assert_eq!(world.run(id).reason().as_deref(), Some("suspended"));
    world.send(&Command::Resume { run: id, message: None, vars: None }).unwrap();
    world.work(id);
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

fn with_var(steps: Vec<Spec>) -> World {
    let mut main = pipeline(steps, vec![], vec![]);
    let integer = Some(windlass_core::runbook::ValueType::Integer);
    main.vars.insert(name("x"), VarDef { default: Some(json!(1)), kind: integer, ..VarDef::default() });
    World::new(book(vec![("main", main)]))
}

#[test]
fn a_resume_changes_variables_and_leaves_a_message() {
    let second = run("b").with(|def| {
        def.env.insert("X".to_string(), expr("vars.x"));
    });
    let mut world = with_var(vec![run("a"), second]);
    let id = world.start();
    let message = Some("try this".to_string());
    world
        .send(&Command::Resume { run: id, message: message.clone(), vars: Some(json!({ "x": 2 })) })
        .unwrap();
    assert_eq!(world.run(id).rare().messages[0].message, message);
    world.succeed(id, "a");
    assert_eq!(world.lease(id, "b").input, Some(json!({ "env": { "X": 2 } })));
    for vars in [json!({ "x": "text" }), json!({ "y": 1 }), json!([1])] {
        let refused = world.send(&Command::Resume { run: id, message: None, vars: Some(vars) }).unwrap_err();
        assert_eq!(refused.code(), Some(Code::InvalidInput));
    }
    let nothing = world.send(&Command::Resume { run: id, message: None, vars: None }).unwrap_err();
    assert_eq!(nothing.code(), Some(Code::RunInvalidTransition));
    world.check_replay();
}

#[test]
fn a_resume_ends_a_backoff_at_once() {
    let mut world = World::new(main_book(vec![run("a").retry(2, Span::hours(1))]));
    let id = world.start();
    world.fail(id, "a", "boom");
    world.send(&Command::Resume { run: id, message: None, vars: None }).unwrap();
    world.succeed(id, "a");
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

#[test]
fn a_backoff_that_ends_while_suspended_waits_for_the_resume() {
    let mut world = World::new(main_book(vec![run("a").retry(2, Span::secs(10))]));
    let id = world.start();
    world.fail(id, "a", "boom");
    world.send(&Command::Suspend { run: id, reason: None }).unwrap();
    assert_eq!(world.status(id), Status::WaitingExternal);
    world.sleep(Span::mins(1));
    assert_eq!(world.step_status(id, "a"), S::FailedRetryable);
    world.send(&Command::Resume { run: id, message: None, vars: None }).unwrap();
    assert_eq!(world.leasable(id), ["a"]);
    world.check_replay();
}

/// The members of a group, each in another state, strongest first: the run is where the first of them is.
#[test]
fn the_status_of_a_run_is_that_of_its_strongest_step() {
    let members =
        vec![run("a"), approve("b"), event("c", None, None, false), run("d").retry(2, Span::hours(1))];
    let mut world = World::new(main_book(vec![parallel("p", members)]));
    let id = world.start();
    world.fail(id, "d", "boom");
    assert_eq!(world.status(id), Status::Running);
    world.lease(id, "a");
    assert_eq!(world.status(id), Status::Running);
    world.report(id, "a", 1, done()).unwrap();
    assert_eq!(world.status(id), Status::AwaitingApproval);
    world.send(&Command::Suspend { run: id, reason: None }).unwrap();
    assert_eq!(world.status(id), Status::AwaitingApproval);
    world.send(&Command::Resume { run: id, message: None, vars: None }).unwrap();
    world.fail(id, "d", "again");
    let approval = world.open_approval(id, "b");
    world.decide(id, approval.id, Says::Approved, approval.action_hash, "bob").unwrap();
    assert_eq!(world.status(id), Status::WaitingExternal);
    world.signal(id, "merged", None, json!(0)).unwrap();
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

// Other runs.

#[test]
fn a_run_waits_for_the_runs_it_needs() {
    let mut world = World::new(main_book(vec![run("a")]));
    let (first, second) = (world.start(), world.start());
    let id = needs(&mut world, &[first, second]);
    assert_eq!(world.status(id), Status::Blocked);
    world.succeed(first, "a");
    assert_eq!(world.status(id), Status::Blocked);
    world.succeed(second, "a");
    assert_eq!(world.status(id), Status::Running);
    let late = needs(&mut world, &[first]);
    assert_eq!(world.status(late), Status::Running);
    world.check_replay();
}

#[test]
fn a_run_fails_when_one_it_needs_does_not_complete() {
    let mut world = World::new(main_book(vec![run("a")]));
    let (failed, cancelled) = (world.start(), world.start());
    let (b, c) = (needs(&mut world, &[failed]), needs(&mut world, &[cancelled]));
    world.fail(failed, "a", "boom");
    world.cancel(cancelled).unwrap();
    assert_eq!((world.status(b), world.status(c)), (Status::Failed, Status::Failed));
    let late = needs(&mut world, &[failed]);
    assert_eq!(world.status(late), Status::Failed);
    world.check_replay();
}

#[test]
fn the_lock_of_a_run_is_given_in_order_and_back_at_every_end() {
    let mut main = pipeline(vec![run("a")], vec![], vec![]);
    main.lock = Some(LockUse { name: literal(json!("L")), overlap: Overlap::Queue });
    let mut world = World::new(book(vec![("main", main)]));
    let runs: Vec<RunId> = (0..5).map(|_| world.start()).collect();
    let status = |world: &World| runs.iter().map(|id| world.status(*id)).collect::<Vec<_>>();
    assert_eq!(status(&world)[..2], [Status::Running, Status::Blocked]);
    world.succeed(runs[0], "a");
    assert_eq!(status(&world)[..3], [Status::Completed, Status::Running, Status::Blocked]);
    world.cancel(runs[2]).unwrap();
    world.fail(runs[1], "a", "boom");
    assert_eq!(status(&world)[3], Status::Running);
    world.cancel(runs[3]).unwrap();
    assert_eq!(status(&world)[4], Status::Running);
    world.succeed(runs[4], "a");
    assert_eq!(holder(&world, "L"), None);
    world.check_replay();
}

// Locks and slots of steps.

#[test]
fn a_lock_is_kept_across_attempts_and_handed_over_at_the_end() {
    let locked = run("a").lock("L", Overlap::Queue).retry(2, Span::secs(1));
    let mut world = World::new(main_book(vec![locked]));
    let (first, second) = (world.start(), world.start());
    assert_eq!(holder(&world, "L"), of_step(first, "a"));
    assert_eq!(world.status(second), Status::WaitingExternal);
    world.lease(first, "a");
    world.lose(first, "a");
    assert_eq!(holder(&world, "L"), of_step(first, "a"));
    world.fail(first, "a", "boom");
    assert_eq!(holder(&world, "L"), of_step(first, "a"));
    world.sleep(Span::secs(2));
    world.succeed(first, "a");
    assert_eq!(holder(&world, "L"), of_step(second, "a"));
    assert_eq!(world.leasable(second), ["a"]);
    world.check_replay();
}

#[test]
fn a_lock_is_released_at_every_ending() {
    #[allow(clippy::type_complexity)] // Five ways to end, by name.
    let end: [(&str, fn(&mut World, RunId)); 5] = [
        ("success", |world, id| world.succeed(id, "a")),
        ("failure", |world, id| world.fail(id, "a", "boom")),
        ("cancel before the lease", |world, id| drop(world.cancel(id).unwrap())),
        ("cancel after the lease", |world, id| {
            world.lease(id, "a");
            world.cancel(id).unwrap();
            world.stop(id, "a");
        }),
        ("time-out", |world, id| {
            world.lease(id, "a");
            world.sleep(Span::secs(10));
            world.stop(id, "a");
        }),
    ];
    for (how, end) in end {
        let locked = run("a").lock("L", Overlap::Queue).with(|def| def.timeout = Some(Span::secs(10)));
        let mut world = World::new(main_book(vec![locked]));
        let id = world.start();
        assert_eq!(holder(&world, "L"), of_step(id, "a"), "{how}");
        end(&mut world, id);
        assert!(world.run(id).is_terminal(), "{how}");
        assert_eq!(holder(&world, "L"), None, "{how}");
        world.check_replay();
    }
}

#[test]
fn slots_are_shared_waited_for_and_given_back() {
    let mut world = World::new(main_book(vec![run("a").slots("builders", 2)]));
    let config = semaphore::Config { capacity: 4, ..semaphore::Config::default() };
    let (semaphore, input) = (scoped("builders"), semaphore::Input::Configure(config));
    world.send(&Command::Semaphore { semaphore, input }).unwrap();
    let runs: Vec<RunId> = (0..4).map(|_| world.start()).collect();
    let ready = |world: &World| runs.iter().map(|id| world.leasable(*id).len()).collect::<Vec<_>>();
    assert_eq!(ready(&world), [1, 1, 0, 0]);
    world.fail(runs[1], "a", "boom");
    assert_eq!(ready(&world), [1, 0, 1, 0]);
    world.cancel(runs[0]).unwrap();
    assert_eq!(ready(&world), [0, 0, 1, 1]);
    world.check_replay();
}

#[test]
fn a_group_holds_its_lock_while_its_members_run() {
    let mut world =
        World::new(main_book(vec![steps("g", vec![run("a"), run("b")]).lock("L", Overlap::Queue)]));
    let id = world.start();
    world.succeed(id, "a");
    assert_eq!(holder(&world, "L"), of_step(id, "g"));
    world.succeed(id, "b");
    assert_eq!(holder(&world, "L"), None);
    world.check_replay();
}

// Guards.

fn before(on_failure: OnFailure) -> (World, RunId) {
    let guarded = run("a").with(|def| def.before = vec![guard("g", on_failure)]);
    let mut world = World::new(main_book(vec![guarded]));
    let id = world.start();
    assert_eq!(world.step_status(id, "a"), S::WaitingExternal);
    let gathers = |effect: &Effect| matches!(effect, Effect::GatherGuard { after: false, .. });
    assert!(world.effects.iter().any(gathers));
    (world, id)
}

#[test]
fn a_guard_that_blocks_is_asked_until_it_holds() {
    let (mut world, id) = before(OnFailure::Block);
    world.guarded(id, "a", "g", Some(false));
    world.guarded(id, "a", "g", None);
    assert_eq!(world.status(id), Status::WaitingExternal);
    world.effects.clear();
    world.sleep(Span::secs(5));
    assert!(world.effects.iter().any(|effect| matches!(effect, Effect::GatherGuard { .. })));
    world.guarded(id, "a", "g", Some(true));
    assert_eq!(world.leasable(id), ["a"]);
    world.check_replay();
}

#[test]
fn a_guard_that_warns_lets_the_step_go_on() {
    for known in [Some(false), None] {
        let (mut world, id) = before(OnFailure::Warn);
        world.guarded(id, "a", "g", known);
        assert_eq!(world.leasable(id), ["a"]);
        assert!(world.tags(id).iter().any(|tag| tag == "guard:warned"), "{:?}", world.tags(id));
        world.check_replay();
    }
}

#[test]
fn a_guard_that_fails_or_is_unknown_fails_the_step() {
    for known in [Some(false), None] {
        let (mut world, id) = before(OnFailure::Fail { message: "not now".to_string() });
        world.guarded(id, "a", "g", known);
        assert_eq!(world.error(id, "a"), "GUARD_FAILED: not now");
        assert_eq!(world.status(id), Status::Failed);
        world.check_replay();
    }
}

#[test]
fn a_guard_that_retries_gives_up_in_the_end() {
    let (mut world, id) = before(OnFailure::Retry { delay: Span::secs(30), give_up: Some(Span::secs(60)) });
    world.guarded(id, "a", "g", Some(false));
    world.sleep(Span::secs(30));
    world.guarded(id, "a", "g", Some(false));
    assert_eq!(world.step_status(id, "a"), S::WaitingExternal);
    world.sleep(Span::secs(30));
    world.guarded(id, "a", "g", Some(false));
    assert!(world.error(id, "a").starts_with("GUARD_FAILED"), "{}", world.error(id, "a"));
    world.check_replay();
}

#[test]
fn guards_after_hold_back_a_step_a_group_and_a_call() {
    let after = |step: Spec| step.with(|def| def.after = vec![guard("g", OnFailure::Block)]);
    let sub = pipeline(vec![run("s")], vec![], vec![]);
    for (step, id_of) in [(run("a"), "a"), (steps("g", vec![run("s")]), "g"), (call("c", "sub", &[]), "c")] {
        let main = pipeline(vec![after(step), run("z")], vec![], vec![]);
        let mut world = World::new(book(vec![("main", main), ("sub", sub.clone())]));
        let id = world.start();
        match id_of {
            "a" => world.succeed_with(id, "a", Some(json!(1))),
            "g" => world.succeed_with(id, "s", Some(json!(1))),
            _ => {
                let child = world.child(id, "c");
                world.work(child);
            }
        }
        assert_eq!(world.step_status(id, id_of), S::WaitingExternal, "{id_of}");
        assert!(world.leasable(id).is_empty());
        world.guarded(id, id_of, "g", Some(true));
        assert_eq!(world.step_status(id, id_of), S::Succeeded, "{id_of}");
        if id_of != "c" {
            assert_eq!(world.output(id, id_of), json!(1));
        }
        assert_eq!(world.leasable(id), ["z"]);
        world.check_replay();
    }
}

// Policy and approvals.

#[test]
fn a_step_waits_for_policy_and_a_deny_fails_it() {
    let mut world = World::new(main_book(vec![write("w").retry(3, Span::secs(1))]));
    let id = world.start();
    assert_eq!(world.step(id, "w").waiting.as_ref().map(|w| w.reason), Some(Wait::Policy));
    assert!(world.effects.iter().any(|effect| matches!(effect, Effect::EvaluatePolicy { .. })));
    assert_eq!(world.status(id), Status::WaitingExternal);
    world.decide_policy(id, "w", Verdict::Deny);
    assert!(world.error(id, "w").starts_with("POLICY_DENIED"), "{}", world.error(id, "w"));
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn a_policy_that_moved_is_asked_again_before_the_lease() {
    let mut world = World::new(main_book(vec![write("w")]));
    let id = world.start();
    world.decide_policy(id, "w", Verdict::Allow);
    assert_eq!(world.leasable(id), ["w"]);
    world.policy = Digest([8; 32]);
    world.effects.clear();
    assert_eq!(world.try_lease(id, "w", "ex1").unwrap().reply, Reply::Nothing);
    assert!(world.effects.iter().any(|effect| matches!(effect, Effect::EvaluatePolicy { .. })));
    assert!(!world.effects.iter().any(|effect| matches!(effect, Effect::Execute(_))));
    world.decide_policy(id, "w", Verdict::Allow);
    world.lease(id, "w");
    world.check_replay();
}

#[test]
fn an_answer_of_an_older_policy_is_void_and_it_is_asked_again() {
    let mut world = World::new(main_book(vec![write("w")]));
    let id = world.start();
    let step = world.step(id, "w");
    let decided = windlass_core::event::PolicyDecided {
        pipeline_id: id,
        step: Some(step.id.clone()),
        tool: step.tool.clone(),
        action_hash: step.action_hash().copied(),
        ..allow_shell(world.policy)
    };
    world.policy = Digest([8; 32]);
    world.effects.clear();
    world.send(&Command::PolicyDecided(Box::new(decided))).unwrap();
    assert_eq!(world.step(id, "w").waiting.as_ref().map(|w| w.reason), Some(Wait::Policy));
    assert!(world.effects.iter().any(|effect| matches!(effect, Effect::EvaluatePolicy { .. })));
    world.check_replay();
}

#[test]
fn an_approve_step_waits_for_a_human() {
    let mut world = World::new(main_book(vec![approve("ok"), run("b")]));
    let id = world.start();
    assert_eq!(world.status(id), Status::AwaitingApproval);
    assert!(world.effects.iter().any(|effect| matches!(effect, Effect::ShowApproval { .. })));
    let approval = world.open_approval(id, "ok");
    let _ = world.decide(id, approval.id, Says::Approved, Digest([9; 32]), "bob");
    assert_eq!(world.status(id), Status::AwaitingApproval);
    world.decide(id, approval.id, Says::Approved, approval.action_hash, "bob").unwrap();
    assert_eq!(world.leasable(id), ["b"]);
    world.check_replay();
}

#[test]
fn a_rejected_or_expired_approval_fails_the_step() {
    for rejected in [true, false] {
        let mut world = World::new(main_book(vec![approve("ok").retry(3, Span::secs(1)), run("b")]));
        let id = world.start();
        let approval = world.open_approval(id, "ok");
        if rejected {
            world.decide(id, approval.id, Says::Rejected, approval.action_hash, "bob").unwrap();
        } else {
            world.sleep(Span::hours(1));
        }
        let code = if rejected { "APPROVAL_REJECTED" } else { "APPROVAL_EXPIRED" };
        assert!(world.error(id, "ok").starts_with(code), "{}", world.error(id, "ok"));
        assert_eq!(world.status(id), Status::Failed);
        let _ = world.decide(id, approval.id, Says::Approved, approval.action_hash, "bob");
        assert_eq!(world.step_status(id, "ok"), S::Failed);
        world.check_replay();
    }
}

#[test]
fn what_policy_wants_approved_waits_and_holds_no_lock_meanwhile() {
    let mut world = World::new(main_book(vec![write("w").lock("L", Overlap::Queue)]));
    let id = world.start();
    world.decide_policy(id, "w", Verdict::NeedsApproval);
    assert_eq!(world.status(id), Status::AwaitingApproval);
    assert_eq!(holder(&world, "L"), None);
    let approval = world.open_approval(id, "w");
    assert_eq!(Some(approval.action_hash), world.step(id, "w").action_hash().copied());
    world.decide(id, approval.id, Says::Approved, approval.action_hash, "bob").unwrap();
    assert_eq!(holder(&world, "L"), of_step(id, "w"));
    world.lease(id, "w");
    world.check_replay();
}

#[test]
fn a_policy_that_moved_makes_an_approval_void_and_a_human_is_asked_again() {
    let mut world = World::new(main_book(vec![write("w").lock("L", Overlap::Queue)]));
    let id = world.start();
    world.decide_policy(id, "w", Verdict::NeedsApproval);
    let first = world.open_approval(id, "w");
    world.decide(id, first.id, Says::Approved, first.action_hash, "bob").unwrap();
    assert_eq!(holder(&world, "L"), of_step(id, "w"));
    world.policy = Digest([8; 32]);
    assert_eq!(world.try_lease(id, "w", "ex1").unwrap().reply, Reply::Nothing);
    world.decide_policy(id, "w", Verdict::NeedsApproval);
    let second = world.open_approval(id, "w");
    assert_ne!(first.id, second.id);
    assert_eq!(holder(&world, "L"), None);
    world.decide(id, second.id, Says::Approved, second.action_hash, "bob").unwrap();
    world.lease(id, "w");
    world.check_replay();
}

#[test]
fn an_approval_of_a_step_that_ends_otherwise_is_void() {
    let group = parallel("p", vec![approve("ok"), run("a")]).with(|def| def.timeout = Some(Span::secs(60)));
    let mut world = World::new(main_book(vec![group]));
    let id = world.start();
    let approval = world.open_approval(id, "ok");
    world.sleep(Span::secs(60));
    assert_eq!(world.status(id), Status::Failed);
    assert_eq!(world.run(id).rare().approvals[&approval.id].status, approval::Status::Cancelled);
    world.check_replay();
}
