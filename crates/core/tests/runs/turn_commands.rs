//! Commands with an effect of their own, through the turn: an intent before, a receipt after, and nothing twice.
//! A command that declares nothing stays a plain step.

use crate::world::*;
use serde_json::{Value, json};
use windlass_core::attempt::{Exit, Report};
use windlass_core::caps::Caps;
use windlass_core::code::Code;
use windlass_core::effect::{Effect, Lease};
use windlass_core::event::{CheckpointSaved, Event};
use windlass_core::id::RunId;
use windlass_core::private::Private;
use windlass_core::receipt::key::{EffectKey, State as KeyState};
use windlass_core::receipt::{Outcome, Semantics};
use windlass_core::run::Status;
use windlass_core::runbook::{KeyScope, Kind};
use windlass_core::step::{Failure, Resolution, Status as S};
use windlass_core::stream::StreamId;
use windlass_core::time::Span;
use windlass_core::turn::Turn;
use windlass_core::turn::command::{Command, Reply};
use windlass_core::turn::state::Body;

/// A command that must not happen twice.
fn once(id: &str) -> Spec {
    effective(id, Semantics::AtMostOnce)
}

fn effective(id: &str, semantics: Semantics) -> Spec {
    run(id).with(|def| def.effect = Some(semantics))
}

fn keyed(spec: Spec) -> Spec {
    spec.with(|def| {
        def.key_scope = KeyScope::Tenant;
        def.idempotency_key = Some(literal(json!("deploy-1")));
    })
}

fn world_of(spec: Spec) -> World {
    World::new(main_book(vec![spec]))
}

/// The keys that effects stand under.
fn keys(world: &World) -> Vec<EffectKey> {
    let keys = world.state.streams().filter_map(|(_, stream)| match &stream.body {
        Body::Effect(key) => Some((**key).clone()),
        _ => None,
    });
    keys.collect()
}

fn key(world: &World) -> EffectKey {
    let keys = keys(world);
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys[0].clone()
}

fn tags(turn: &Turn) -> Vec<&'static str> {
    turn.facts.iter().map(|fact| fact.event.tag()).collect()
}

fn executes(turn: &Turn) -> bool {
    turn.effects.iter().any(|effect| matches!(effect, Effect::Execute(_)))
}

fn retry(world: &mut World, run: RunId) -> RunId {
    let new = RunId(world.id());
    world.send(&Command::Descend { run, new, from: None, runbook: None }).unwrap();
    new
}

fn done(world: &mut World, id: RunId, step: &str, lease: &Lease, output: Option<Value>) {
    world.report(id, step, lease.epoch, Report::Done { output, exit_code: Some(0.into()) }).unwrap();
}

/// The command was not begun, because of what stands under its key.
fn is_refused(world: &mut World, id: RunId, step: &str, code: Code) {
    assert!(!executes(&world.try_lease(id, step, "ex2").unwrap()));
    assert_eq!(world.step(id, step).error.clone().unwrap().code.as_str(), code.as_str());
    assert_eq!(world.status(id), Status::Failed);
}

/// Nothing was executed: what came of it before serves.
fn is_reused(world: &mut World, id: RunId, step: &str, output: Option<Value>) {
    let turn = world.try_lease(id, step, "ex2").unwrap();
    assert_eq!((turn.reply.clone(), executes(&turn)), (Reply::Reused, false));
    assert_eq!((world.step_status(id, step), world.step(id, step).output()), (S::Succeeded, output));
}

#[test]
fn the_intent_of_a_command_is_in_the_commit_of_its_lease_and_its_receipt_in_that_of_its_end() {
    let key_alone = || run("s").with(|def| def.idempotency_key = Some(literal(json!("k"))));
    for (spec, semantics) in [
        (once("s"), Semantics::AtMostOnce),
        (effective("s", Semantics::Idempotent), Semantics::Idempotent),
        (effective("s", Semantics::Reconcile), Semantics::Reconcile),
        // A command is at-least-once where nothing else is said.
        (key_alone(), Semantics::Idempotent),
    ] {
        let mut world = world_of(spec);
        let id = world.start();
        let turn = world.try_lease(id, "s", "ex1").unwrap();
        assert_eq!(tags(&turn), ["step:started", "intent:recorded"]);
        let Effect::Execute(lease) = &turn.effects[0] else { panic!("{:?}", turn.effects) };
        let lease = lease.clone();
        let known = key(&world);
        assert_eq!(lease.idempotency_key, known.key);
        let KeyState::Intended { intent } = &known.state else { panic!("{known:?}") };
        assert_eq!((intent.tool.as_str(), intent.operation.as_str()), ("shell", "run"));
        assert_eq!((intent.semantics, intent.attempt.epoch), (semantics, lease.epoch));
        let hash = intent.action_hash;
        done(&mut world, id, "s", &lease, Some(json!({ "n": 1 })));
        assert_eq!(world.status(id), Status::Completed);
        let known = key(&world);
        let receipt = known.receipt().unwrap();
        assert_eq!((receipt.status, receipt.late), (Outcome::Succeeded, false));
        assert_eq!(receipt.request, Some(json!({ "action_hash": hash })));
        assert_eq!(receipt.response, Some(json!({ "n": 1 })));
        world.check_replay();
    }
}

#[test]
fn a_plain_command_has_no_key_and_three_records() {
    let mut world = world_of(run("s"));
    let id = world.start();
    assert_eq!(tags(&world.try_lease(id, "s", "ex1").unwrap()), ["step:started"]);
    world.report(id, "s", 1, Report::Done { output: None, exit_code: Some(0.into()) }).unwrap();
    assert_eq!((world.status(id), keys(&world).len()), (Status::Completed, 0));
}

#[test]
fn of_two_retries_side_by_side_one_acts_and_a_later_one_reuses_its_output() {
    let mut world = world_of(once("s"));
    let first = world.start();
    world.fail(first, "s", "no");
    assert_eq!((world.status(first), key(&world).state_name()), (Status::Failed, "failed"));
    let (one, two) = (retry(&mut world, first), retry(&mut world, first));
    let lease = world.lease(one, "s");
    is_refused(&mut world, two, "s", Code::IdempotencyConflict);
    done(&mut world, one, "s", &lease, Some(json!(7)));
    assert_eq!(world.status(one), Status::Completed);
    let three = retry(&mut world, first);
    is_reused(&mut world, three, "s", Some(json!(7)));
    assert_eq!(world.status(three), Status::Completed);
    world.check_replay();
}

#[test]
fn a_tenants_key_is_one_effect_in_every_run() {
    let mut other = keyed(once("s"));
    if let Kind::Run { command } = &mut other.def.kind {
        *command = "./other".to_string();
    }
    let book_of = |other: Spec| {
        let two = pipeline(vec![other], Vec::new(), Vec::new());
        book(vec![("main", pipeline(vec![keyed(once("s"))], Vec::new(), Vec::new())), ("two", two)])
    };
    let mut world = World::new(book_of(other));
    let start_two = |world: &mut World| {
        let create = world.create("two", Value::Null);
        world.send(&Command::Create(Box::new(create.clone()))).unwrap();
        create.id
    };
    let first = world.start();
    let lease = world.lease(first, "s");
    let beside = world.start();
    is_refused(&mut world, beside, "s", Code::IdempotencyConflict);
    done(&mut world, first, "s", &lease, Some(json!("v1")));
    let second = world.start();
    is_reused(&mut world, second, "s", Some(json!("v1")));
    let different = start_two(&mut world);
    is_refused(&mut world, different, "s", Code::IdempotencyConflict);
    assert_eq!(key(&world).key.as_str(), "tenant/deploy-1");
    world.check_replay();
}

#[test]
fn another_try_at_a_group_or_a_call_does_not_do_again_what_was_done() {
    let group = || steps("g", vec![once("s"), run("after")]).retry(2, Span::secs(1));
    let mut world = world_of(group());
    let id = world.start();
    world.succeed_with(id, "s", Some(json!(1)));
    world.fail(id, "after", "no");
    world.sleep(Span::mins(1));
    is_reused(&mut world, id, "s#2", Some(json!(1)));
    world.succeed(id, "after#2");
    assert_eq!((world.status(id), keys(&world).len()), (Status::Completed, 1));
    world.check_replay();

    let sub = pipeline(vec![once("s"), run("after")], Vec::new(), Vec::new());
    let main = pipeline(vec![call("c", "sub", &[]).retry(2, Span::secs(1))], Vec::new(), Vec::new());
    let mut world = World::new(book(vec![("main", main), ("sub", sub)]));
    let id = world.start();
    let first = world.child(id, "c");
    world.succeed_with(first, "s", Some(json!(1)));
    world.fail(first, "after", "no");
    world.sleep(Span::mins(1));
    let second = world.child(id, "c");
    assert_ne!(first, second);
    // The called run that is made anew takes over what stands.
    let stands = (world.step_status(second, "s"), world.step(second, "s").output());
    assert_eq!(stands, (S::Succeeded, Some(json!(1))));
    world.succeed(second, "after");
    assert_eq!((world.status(id), keys(&world).len()), (Status::Completed, 1));
    world.check_replay();
}

#[test]
fn a_command_that_is_lost_is_unknown_until_a_human_says_and_so_is_its_key() {
    for (resolution, status, state) in [
        (Resolution::Done, Status::Completed, "succeeded"),
        (Resolution::Retry, Status::Running, "failed"),
        (Resolution::Fail, Status::Failed, "unknown"),
    ] {
        let mut world = world_of(keyed(once("s")));
        let id = world.start();
        world.lease(id, "s");
        world.lose(id, "s");
        assert_eq!((world.status(id), key(&world).state_name()), (Status::AwaitingApproval, "unknown"));
        let beside = world.start();
        is_refused(&mut world, beside, "s", Code::OutcomeUnknown);
        world.resolve(id, "s", resolution, None).unwrap();
        assert_eq!((world.status(id), key(&world).state_name()), (status, state));
        let after = world.start();
        match resolution {
            Resolution::Done => is_reused(&mut world, after, "s", None),
            Resolution::Retry => assert!(executes(&world.try_lease(id, "s", "ex2").unwrap())),
            Resolution::Fail => is_refused(&mut world, after, "s", Code::OutcomeUnknown),
        }
        world.check_replay();
    }
}

#[test]
fn an_idempotent_command_that_is_lost_is_done_again_under_its_key_and_no_other_action_is() {
    let mut world = world_of(keyed(run("s")));
    let id = world.start();
    let first = world.lease(id, "s");
    world.lose(id, "s");
    let second = world.lease(id, "s");
    assert_eq!((second.epoch, second.idempotency_key), (first.epoch + 1, first.idempotency_key));
    // The process that has it stops: the command may have begun.
    world.report(id, "s", second.epoch, Report::Returned { reason: None }).unwrap();
    assert_eq!(key(&world).state_name(), "unknown");
    let third = world.lease(id, "s");
    done(&mut world, id, "s", &third, None);
    assert_eq!((world.status(id), key(&world).state_name()), (Status::Completed, "succeeded"));
    world.check_replay();
}

/// An exit says what became of a command. Being killed, by its time or by a signal, does not.
#[test]
fn what_a_command_that_fails_says_of_its_effect() {
    let failed = |code, exit_code, signal| Report::Failed {
        failure: Failure::new(code, "no"),
        retryable: false,
        exit_code,
        signal,
    };
    for (report, step, state) in [
        (failed(Code::StepFailed, Some(1.into()), None), S::Failed, "failed"),
        // It was never begun.
        (failed(Code::StepFailed, None, None), S::Failed, "failed"),
        // It did what it is for, and did not give what is declared.
        (failed(Code::StepFailed, Some(0.into()), None), S::Failed, "succeeded"),
        (failed(Code::TimedOut, None, None), S::OutcomeUnknown, "unknown"),
        (failed(Code::StepFailed, Some(137.into()), Some(9)), S::OutcomeUnknown, "unknown"),
        (Report::Stopped, S::OutcomeUnknown, "unknown"),
        (Report::Returned { reason: None }, S::Ready, "failed"),
    ] {
        let mut world = world_of(once("s"));
        let id = world.start();
        let epoch = world.lease(id, "s").epoch;
        world.report(id, "s", epoch, report.clone()).unwrap();
        assert_eq!((world.step_status(id, "s"), key(&world).state_name()), (step, state), "{report:?}");
        if matches!(report, Report::Failed { exit_code: Some(Exit { code: 1, .. }), .. }) {
            let receipt = key(&world).receipt().unwrap().clone();
            assert_eq!(receipt.response, Some(json!({ "code": "STEP_FAILED", "exit_code": 1 })));
        }
        world.check_replay();
    }
}

#[test]
fn a_failed_command_is_tried_again_under_its_key() {
    let mut world = world_of(once("s").retry(2, Span::secs(1)));
    let id = world.start();
    world.fail(id, "s", "no");
    world.sleep(Span::mins(1));
    world.succeed(id, "s");
    assert_eq!((world.status(id), key(&world).state_name()), (Status::Completed, "succeeded"));
    world.check_replay();
}

#[test]
fn a_command_that_was_compensated_is_done_again_by_a_retry() {
    let mut world = World::new(main_book(vec![once("s").undo(run("u")), run("x")]));
    let first = world.start();
    world.succeed(first, "s");
    assert!(key(&world).receipt().unwrap().reversible);
    world.fail(first, "x", "no");
    world.succeed(first, "u");
    assert_eq!((world.status(first), key(&world).generation), (Status::Failed, 2));
    let second = retry(&mut world, first);
    assert!(executes(&world.try_lease(second, "s", "ex1").unwrap()));
    world.check_replay();
}

/// What a lost command saved serves, and its key says so: nobody does again what is done.
#[test]
fn a_checkpoint_that_serves_settles_the_key_too() {
    for (resumable, idempotent, step, state) in [
        (true, false, S::Succeeded, "succeeded"),
        (false, true, S::Ready, "failed"),
        (false, false, S::OutcomeUnknown, "unknown"),
    ] {
        let mut world = world_of(once("s"));
        let id = world.start();
        let lease = world.lease(id, "s");
        let saved = CheckpointSaved {
            pipeline_id: id,
            step: Some(name("s")),
            epoch: Some(lease.epoch),
            resumable,
            idempotent,
            tokens_input: None,
            tokens_output: None,
            message: None,
            data: Some(Private::New(json!({ "at": 1 }))),
        };
        world.send(&Command::Checkpoint(Box::new(saved))).unwrap();
        world.lose(id, "s");
        assert_eq!((world.step_status(id, "s"), key(&world).state_name()), (step, state));
        match step {
            S::Succeeded => assert_eq!(key(&world).receipt().unwrap().response, Some(json!({ "at": 1 }))),
            S::Ready => assert!(executes(&world.try_lease(id, "s", "ex2").unwrap())),
            _ => {}
        }
        world.check_replay();
    }
}

#[test]
fn a_cap_on_writes_is_for_tools() {
    let mut world = world_of(once("s"));
    world.cap(Caps { max_writes_per_run: Some(0), ..Caps::default() });
    let id = world.start();
    world.succeed(id, "s");
    assert_eq!(world.status(id), Status::Completed);
}

#[test]
fn a_late_success_settles_the_key_of_a_command() {
    let mut world = world_of(once("s"));
    let id = world.start();
    let lease = world.lease(id, "s");
    world.lose(id, "s");
    world.resolve(id, "s", Resolution::Fail, None).unwrap();
    let report = Report::Done { output: Some(json!(3)), exit_code: Some(0.into()) };
    assert_eq!(tags(&world.report(id, "s", lease.epoch, report).unwrap()), ["receipt:recorded"]);
    let again = retry(&mut world, id);
    is_reused(&mut world, again, "s", Some(json!(3)));
    let effects = world.state.streams().filter(|(id, _)| matches!(id, StreamId::Effect(_))).count();
    assert_eq!(effects, 1);
    assert!(world.events().iter().any(|event| matches!(event, Event::IntentLost(_))));
    world.check_replay();
}
