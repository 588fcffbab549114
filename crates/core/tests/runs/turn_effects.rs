//! Outside writes through the turn: an intent before, a receipt after, and nothing twice.

use crate::world::*;
use serde_json::json;
use windlass_core::attempt::Report;
use windlass_core::code::Code;
use windlass_core::effect::Effect;
use windlass_core::event::Event;
use windlass_core::id::{ReceiptId, RunId};
use windlass_core::policy::Verdict;
use windlass_core::receipt;
use windlass_core::receipt::Semantics;
use windlass_core::receipt::key::{EffectKey, State as KeyState};
use windlass_core::run::Status;
use windlass_core::runbook::{KeyScope, Kind};
use windlass_core::step::{self, Resolution};
use windlass_core::turn::Turn;
use windlass_core::turn::command::{Command, Reply};
use windlass_core::turn::state::Body;

fn shared(id: &str) -> Spec {
    write(id).with(|def| {
        def.key_scope = KeyScope::Tenant;
        def.idempotency_key = Some(literal(json!("sn:1")));
    })
}

/// A world whose `main` has the one write `w`.
fn world_of(spec: Spec) -> World {
    World::new(main_book(vec![spec]))
}

/// A run whose write is allowed and can be leased.
fn allowed(world: &mut World) -> RunId {
    let id = world.start();
    world.decide_policy(id, "w", Verdict::Allow);
    id
}

fn key(world: &World) -> EffectKey {
    let keys = world.state.streams().filter_map(|(_, stream)| match &stream.body {
        Body::Effect(key) => Some((**key).clone()),
        _ => None,
    });
    let keys: Vec<_> = keys.collect();
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys[0].clone()
}

fn tags(turn: &Turn) -> Vec<&'static str> {
    turn.facts.iter().map(|fact| fact.event.tag()).collect()
}

fn executes(turn: &Turn) -> bool {
    turn.effects.iter().any(|effect| matches!(effect, Effect::Execute(_)))
}

fn resolve(world: &mut World, id: RunId, resolution: Resolution) {
    let (step, probed, reason, output) = (name("w"), false, None, None);
    world.send(&Command::Resolve { run: id, step, resolution, probed, reason, output }).unwrap();
}

#[test]
fn lease_and_intent_are_one_turn_and_the_receipt_comes_with_the_report() {
    let mut world = world_of(write("w"));
    let id = allowed(&mut world);
    let turn = world.try_lease(id, "w", "ex1").unwrap();
    assert_eq!(tags(&turn), ["step:started", "intent:recorded"]);
    let Effect::Execute(lease) = &turn.effects[0] else { panic!("{:?}", turn.effects) };
    assert_eq!(
        lease.idempotency_key,
        key(&world).key,
        "the tool is given the key that the intent stands under"
    );
    let turn = world.wrote(id, "w", 1, json!({ "ok": true })).unwrap();
    assert!(tags(&turn).contains(&"receipt:recorded") && tags(&turn).contains(&"step:completed"));
    assert_eq!(world.status(id), Status::Completed);
    assert_eq!(key(&world).state_name(), "succeeded");
    world.check_replay();
}

#[test]
fn no_policy_or_a_deny_means_no_lease_and_no_intent() {
    let mut world = world_of(write("w"));
    let id = world.start();
    assert!(world.try_lease(id, "w", "ex1").is_err());
    world.decide_policy(id, "w", Verdict::Deny);
    assert!(world.try_lease(id, "w", "ex1").is_err());
    assert_eq!(world.status(id), Status::Failed);
    assert!(!world.effects.iter().any(|effect| matches!(effect, Effect::Execute(_))));
    assert!(!world.events().iter().any(|event| matches!(event, Event::IntentRecorded(_))));
    world.check_replay();
}

#[test]
fn a_write_lost_between_intent_and_receipt_is_unknown_and_nobody_tries_again_silently() {
    for (resolution, status, key_state) in [
        (Resolution::Done, Status::Completed, "succeeded"),
        (Resolution::Retry, Status::Running, "failed"),
        (Resolution::Fail, Status::Failed, "unknown"),
    ] {
        let mut world = world_of(write("w"));
        let id = allowed(&mut world);
        let lease = world.lease(id, "w");
        let turn = world.report(id, "w", lease.epoch, Report::Lost { last_seen: None }).unwrap();
        assert!(tags(&turn).contains(&"step:unknown") && tags(&turn).contains(&"intent:lost"));
        assert_eq!((world.status(id), key(&world).state_name()), (Status::AwaitingApproval, "unknown"));
        assert!(world.try_lease(id, "w", "ex2").is_err());
        resolve(&mut world, id, resolution);
        assert_eq!((world.status(id), key(&world).state_name()), (status, key_state));
        if resolution == Resolution::Retry {
            assert!(executes(&world.try_lease(id, "w", "ex2").unwrap()));
        }
        world.check_replay();
    }
}

#[test]
fn an_idempotent_write_is_done_again_under_the_same_key() {
    let mut world = world_of(write("w").with(|def| def.effect = Some(Semantics::Idempotent)));
    let id = allowed(&mut world);
    let first = world.lease(id, "w");
    world.report(id, "w", first.epoch, Report::Lost { last_seen: None }).unwrap();
    let second = world.lease(id, "w");
    assert_eq!(second.idempotency_key, first.idempotency_key);
    assert_eq!(second.epoch, first.epoch + 1);
    world.wrote(id, "w", second.epoch, json!(1)).unwrap();
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

#[test]
fn a_probe_asks_for_the_key_that_the_tool_was_given() {
    let spec = write("w").with(|def| {
        def.effect = Some(Semantics::Reconcile);
        def.idempotency_key = Some(literal(json!("sn:1")));
    });
    let mut world = world_of(spec);
    let id = allowed(&mut world);
    let lease = world.lease(id, "w");
    let turn = world.report(id, "w", lease.epoch, Report::Lost { last_seen: None }).unwrap();
    let asked = turn.effects.iter().find_map(|effect| match effect {
        Effect::Probe { key, .. } => Some(key.clone()),
        _ => None,
    });
    assert_eq!(asked, Some(lease.idempotency_key));
}

#[test]
fn a_lease_handed_back_unused_may_be_given_again() {
    let mut world = world_of(write("w"));
    let id = allowed(&mut world);
    let lease = world.lease(id, "w");
    world.report(id, "w", lease.epoch, Report::Returned { reason: None }).unwrap();
    assert!(executes(&world.try_lease(id, "w", "ex2").unwrap()));
    world.check_replay();
}

#[test]
fn a_write_that_is_stopped_without_a_receipt_is_unknown() {
    let mut world = world_of(write("w"));
    let id = allowed(&mut world);
    let lease = world.lease(id, "w");
    world.cancel(id).unwrap();
    world.report(id, "w", lease.epoch, Report::Stopped).unwrap();
    assert_eq!(world.step_status(id, "w"), step::Status::OutcomeUnknown);
    resolve(&mut world, id, Resolution::Fail);
    assert_eq!(world.status(id), Status::Cancelled);
    world.check_replay();
}

#[test]
fn a_done_report_is_a_receipt_where_it_brings_none() {
    let mut world = world_of(shared("w"));
    let id = allowed(&mut world);
    world.succeed_with(id, "w", Some(json!(7)));
    let second = allowed(&mut world);
    assert_eq!(world.try_lease(second, "w", "ex1").unwrap().reply, Reply::Reused);
    assert_eq!(world.step(second, "w").output(), Some(json!(7)));
}

#[test]
fn a_tenants_key_serves_every_run_and_namespace_with_the_first_answer() {
    let mut world = world_of(shared("w"));
    let first = allowed(&mut world);
    let lease = world.lease(first, "w");
    world.wrote(first, "w", lease.epoch, json!({ "sys": 1 })).unwrap();
    for namespace in ["default", "other"] {
        let mut create = world.create("main", json!(null));
        create.namespace = name(namespace);
        let second = create.id;
        world.send(&Command::Create(Box::new(create))).unwrap();
        world.decide_policy(second, "w", Verdict::Allow);
        let turn = world.try_lease(second, "w", "ex1").unwrap();
        assert_eq!(turn.reply, Reply::Reused);
        assert!(!executes(&turn));
        assert_eq!(world.status(second), Status::Completed);
        assert_eq!(world.step(second, "w").output(), Some(json!({ "sys": 1 })));
    }
    world.check_replay();
}

#[test]
fn another_action_under_the_same_key_is_a_conflict() {
    let mut other = shared("w");
    if let Kind::Tool { with, .. } = &mut other.def.kind {
        *with = literal(json!({ "state": "closed" }));
    }
    let one = pipeline(vec![shared("w")], Vec::new(), Vec::new());
    let two = pipeline(vec![other], Vec::new(), Vec::new());
    let mut world = World::new(book(vec![("main", one), ("two", two)]));
    let first = allowed(&mut world);
    let lease = world.lease(first, "w");
    world.wrote(first, "w", lease.epoch, json!(1)).unwrap();
    let create = world.create("two", json!(null));
    let second = create.id;
    world.send(&Command::Create(Box::new(create))).unwrap();
    world.decide_policy(second, "w", Verdict::Allow);
    let turn = world.try_lease(second, "w", "ex1").unwrap();
    assert!(!executes(&turn));
    let error = world.step(second, "w").error.clone().unwrap();
    assert_eq!(error.code.as_str(), Code::IdempotencyConflict.as_str());
    assert_eq!(world.status(second), Status::Failed);
    world.check_replay();
}

#[test]
fn a_run_that_is_at_it_keeps_another_run_away() {
    let mut world = world_of(shared("w"));
    let first = allowed(&mut world);
    world.lease(first, "w");
    let second = allowed(&mut world);
    assert!(!executes(&world.try_lease(second, "w", "ex2").unwrap()));
    assert_eq!(world.status(second), Status::Failed);
}

#[test]
fn a_retry_of_the_lineage_reuses_the_receipt_even_where_the_step_failed() {
    let mut world = World::new(main_book(vec![write("w").with(|def| {
        def.outputs.insert(name("id"), windlass_core::runbook::ValueType::String);
    })]));
    let first = allowed(&mut world);
    let lease = world.lease(first, "w");
    // The effect happened, but its output is not what the runbook declares.
    world.wrote(first, "w", lease.epoch, json!({})).unwrap();
    assert_eq!(world.status(first), Status::Failed);
    let new = RunId(world.id());
    world.send(&Command::Descend { run: first, new, from: None, runbook: None }).unwrap();
    world.decide_policy(new, "w", Verdict::Allow);
    let turn = world.try_lease(new, "w", "ex1").unwrap();
    assert_eq!(turn.reply, Reply::Reused);
    assert_eq!(world.status(new), Status::Completed);
    world.check_replay();
}

#[test]
fn a_reversal_starts_a_new_generation_of_the_key() {
    let mut world = world_of(shared("w"));
    let first = allowed(&mut world);
    let lease = world.lease(first, "w");
    world.wrote(first, "w", lease.epoch, json!(1)).unwrap();
    let known = key(&world);
    let (stream, _) = world.state.streams().find(|(_, s)| matches!(s.body, Body::Effect(_))).unwrap();
    let windlass_core::stream::StreamId::Effect(scoped) = stream.clone() else { panic!() };
    let receipt = known.receipt().unwrap().id;
    world.send(&Command::Reverse { key: scoped, receipt, by: first }).unwrap();
    assert_eq!(key(&world).generation, 2);
    let second = allowed(&mut world);
    assert!(executes(&world.try_lease(second, "w", "ex1").unwrap()));
    world.check_replay();
}

#[test]
fn a_receipt_after_the_runs_end_is_kept_in_the_effects_stream_only() {
    let mut world = world_of(write("w"));
    let id = allowed(&mut world);
    let lease = world.lease(id, "w");
    world.report(id, "w", lease.epoch, Report::Lost { last_seen: None }).unwrap();
    resolve(&mut world, id, Resolution::Fail);
    let before = world.run(id).clone();
    let turn = world.wrote(id, "w", lease.epoch, json!(1)).unwrap();
    assert_eq!(tags(&turn), ["receipt:recorded"]);
    assert_eq!(*world.run(id), before);
    let KeyState::Succeeded { receipt: Some(receipt), .. } = key(&world).state else { panic!() };
    assert!(receipt.late);
    let again = world.wrote(id, "w", lease.epoch + 5, json!(1));
    assert_eq!(again.unwrap_err().code(), Some(Code::LeaseStaleEpoch));
    world.check_replay();
}

#[test]
fn a_failed_receipt_lets_the_next_attempt_act() {
    let mut world = world_of(write("w"));
    let id = allowed(&mut world);
    let lease = world.lease(id, "w");
    let receipt = Some(Box::new(world.receipt(receipt::Outcome::Failed, json!("503"))));
    let report = Report::Failed { failure: failure("503"), retryable: true, exit_code: None, signal: None };
    world.send(&Command::Report { run: id, step: name("w"), epoch: lease.epoch, report, receipt }).unwrap();
    assert_eq!(world.status(id), Status::FailedRetryable);
    world.sleep(windlass_core::time::Span::mins(1));
    assert!(executes(&world.try_lease(id, "w", "ex1").unwrap()));
    assert_ne!(key(&world).receipt().map(|r| r.id), Some(ReceiptId(0)));
    world.check_replay();
}
