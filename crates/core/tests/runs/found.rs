//! What the properties found, as examples: random cases need not come by again.

use crate::world::*;
use serde_json::{Value, json};
use windlass_core::attempt::Report;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::effect::Effect;
use windlass_core::event::PolicyDecided;
use windlass_core::id::RunId;
use windlass_core::policy::Verdict;
use windlass_core::run::Status;
use windlass_core::runbook::WaitFor;
use windlass_core::schedule::Overlap;
use windlass_core::stream::StreamId;
use windlass_core::time::Span;
use windlass_core::turn::command::{Command, Reply};
use windlass_core::turn::state::{Snapshot, State};

fn done() -> Report {
    Report::Done { output: None, exit_code: Some(0.into()) }
}

fn shell_is(world: &mut World, id: RunId, verdict: Verdict) {
    let decided = PolicyDecided { pipeline_id: id, verdict, ..allow_shell(world.policy) };
    world.send(&Command::PolicyDecided(Box::new(decided))).unwrap();
}

#[test]
fn a_step_that_nobody_leased_cannot_be_reported_done() {
    let event = WaitFor::Event { event: name("go"), key: None, timeout: None, continue_on_timeout: false };
    for spec in [wait("a", event), write("a"), parallel("a", vec![run("b")]), approve("a")] {
        let mut world = World::new(main_book(vec![spec]));
        let id = world.start();
        let epoch = world.step(id, "a").epoch;
        let refusal = world.report(id, "a", epoch, done()).unwrap_err();
        assert_eq!(refusal.code(), Some(Code::RunInvalidTransition));
    }
}

#[test]
fn a_call_does_not_take_an_executors_place() {
    let child = pipeline(vec![run("c")], vec![], vec![]);
    let main = pipeline(vec![call("a", "child", &[])], vec![], vec![]);
    let mut world = World::new(book(vec![("main", main), ("child", child)]));
    let id = world.start();
    assert_eq!((world.run(id).leases(), world.run(id).lease_due()), (0, None));
    let epoch = world.step(id, "a").epoch;
    assert!(world.report(id, "a", epoch, done()).is_err());
}

#[test]
fn policy_is_asked_again_when_it_moved_before_the_lease() {
    let mut world = World::new(main_book(vec![run("a")]));
    let id = world.start();
    world.policy = Digest([8; 32]);
    let turn = world.try_lease(id, "a", "ex1").unwrap();
    assert_eq!(turn.reply, Reply::Nothing);
    assert!(turn.effects.iter().any(|effect| matches!(effect, Effect::EvaluatePolicy { .. })));
    shell_is(&mut world, id, Verdict::Allow);
    world.work(id);
    assert_eq!(world.status(id), Status::Completed);
}

#[test]
fn a_denied_step_fails_though_it_has_a_lock_to_take() {
    let mut world = World::new(main_book(vec![run("a").lock("l", Overlap::Queue)]));
    let mut create = world.create("main", Value::Null);
    create.policy[0].verdict = Verdict::Deny;
    world.send(&Command::Create(Box::new(create.clone()))).unwrap();
    assert_eq!(world.status(create.id), Status::Failed);
    assert_eq!(world.step(create.id, "a").error.as_ref().unwrap().code, Code::PolicyDenied.name());
}

#[test]
fn a_run_that_has_ended_does_not_fail_again_by_a_late_begin() {
    let mut world = World::new(main_book(vec![run("a")]));
    let needed = world.start();
    let mut create = world.create("main", Value::Null);
    create.needs = vec![needed];
    world.send(&Command::Create(Box::new(create.clone()))).unwrap();
    world.cancel(needed).unwrap();
    assert_eq!(world.status(create.id), Status::Failed);
    let refusal = world.send(&Command::Begin(create.id)).unwrap_err();
    assert_eq!(refusal.code(), Some(Code::RunTerminalState));
}

#[test]
fn the_members_of_nested_groups_that_are_retried_have_names_of_their_own() {
    let inner = steps("inner", vec![run("a")]).retry(2, Span::secs(1));
    let mut world = World::new(main_book(vec![steps("outer", vec![inner]).retry(2, Span::secs(1))]));
    let id = world.start();
    for member in ["a", "a#2", "a#2#1", "a#2#2"] {
        assert_eq!(world.leasable(id), [member]);
        world.fail(id, member, "no");
        world.sleep(Span::secs(2));
    }
    assert_eq!(world.status(id), Status::Failed);
}

#[test]
fn a_member_whose_back_off_ends_when_its_groups_time_is_up_stays_ended() {
    let outer = steps("outer", vec![run("a").retry(2, Span::secs(10))]);
    let outer = outer.with(|def| def.timeout = Some(Span::mins(1)));
    let mut world = World::new(main_book(vec![outer]));
    let id = world.start();
    world.fail(id, "a", "no");
    world.sleep(Span::mins(2));
    assert_eq!(world.status(id), Status::Failed);
    assert_eq!(world.trace(id), ["outer: failed", "a: cancelled"]);
}

#[test]
fn a_cancelled_run_keeps_the_approvals_of_what_cleans_up() {
    let main = pipeline(vec![run("a")], vec![], vec![approve("b"), run("c")]);
    let mut world = World::new(book(vec![("main", main)]));
    let id = world.start();
    world.succeed(id, "a");
    world.cancel(id).unwrap();
    let open = world.open_approval(id, "b");
    let yes = windlass_core::approval::Verdict::Approved;
    world.decide(id, open.id, yes, open.action_hash, "bob").unwrap();
    let lease = world.lease(id, "c");
    world.report(id, "c", lease.epoch, done()).unwrap();
    assert_eq!(world.status(id), Status::Cancelled);
}

#[test]
fn a_restart_leaves_leasable_what_was_so_under_a_policy_that_moved() {
    let mut world = World::new(main_book(vec![parallel("p", vec![write("a"), write("b")])]));
    let id = world.start();
    world.decide_policy(id, "a", Verdict::Allow);
    world.policy = Digest([8; 32]);
    world.decide_policy(id, "b", Verdict::Allow);
    let saved = world.state.save(&StreamId::Run(id)).unwrap();
    let saved: Snapshot = serde_json::from_value(json!(saved)).unwrap();
    let mut restarted = State::new();
    restarted.restore(saved).unwrap();
    let leasable: Vec<String> =
        restarted.run(id).unwrap().leasable().map(|step| step.id.to_string()).collect();
    assert_eq!(world.leasable(id), leasable);
}
