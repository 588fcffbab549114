//! What is taken back may be done again; what the other side puts off is tried when it said.

use crate::world::*;
use serde_json::json;
use windlass_core::attempt::{DEFER_MAX, Report};
use windlass_core::effect::Effect;
use windlass_core::id::{RunId, Scoped};
use windlass_core::policy::Verdict;
use windlass_core::receipt;
use windlass_core::receipt::Semantics;
use windlass_core::receipt::key::EffectKey;
use windlass_core::run::Status;
use windlass_core::runbook::{KeyScope, Kind, Reverses};
use windlass_core::scope::{self, Reading};
use windlass_core::stream::StreamId;
use windlass_core::time::Span;
use windlass_core::turn::command::{Command, Reply};
use windlass_core::turn::state::Body;

/// The key whose name ends like this.
fn key(world: &World, end: &str) -> (Scoped, EffectKey) {
    let found = world.state.streams().find_map(|(id, stream)| match (id, &stream.body) {
        (StreamId::Effect(scoped), Body::Effect(key)) if scoped.as_str().ends_with(end) => {
            Some((scoped, (**key).clone()))
        }
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no key ends with {end}"))
}

/// Lets a write through and carries it out.
fn done(world: &mut World, id: RunId, step: &str) {
    world.decide_policy(id, step, Verdict::Allow);
    let lease = world.lease(id, step);
    world.wrote(id, step, lease.epoch, json!({ "ok": true })).unwrap();
}

#[test]
fn what_a_compensation_took_back_is_done_again_by_a_retry() {
    let steps = vec![write("w").undo(write("u")), run("x")];
    let mut world = World::new(main_book(steps));
    let first = world.start();
    done(&mut world, first, "w");
    assert_eq!(key(&world, "/w").1.state_name(), "succeeded");
    world.fail(first, "x", "no");
    done(&mut world, first, "u");
    assert_eq!(world.status(first), Status::Failed);
    let (_, taken_back) = key(&world, "/w");
    assert_eq!((taken_back.state_name(), taken_back.generation), ("free", 2));
    assert_eq!(taken_back.receipt().unwrap().reversed_by, Some(first));
    assert_eq!(key(&world, "/u").1.state_name(), "succeeded", "a compensation has a receipt of its own");
    let new = RunId(world.id());
    world.send(&Command::Descend { run: first, new, from: None, runbook: None }).unwrap();
    world.decide_policy(new, "w", Verdict::Allow);
    let turn = world.try_lease(new, "w", "ex1").unwrap();
    assert!(turn.effects.iter().any(|effect| matches!(effect, Effect::Execute(_))), "{:?}", turn.reply);
    world.check_replay();
}

#[test]
fn a_group_that_compensates_takes_back_when_all_of_it_succeeded() {
    let mut world =
        World::new(main_book(vec![write("w").undo(steps("u", vec![run("a"), run("b")])), run("x")]));
    let id = world.start();
    done(&mut world, id, "w");
    world.fail(id, "x", "no");
    world.succeed(id, "a");
    assert_eq!(key(&world, "/w").1.generation, 1);
    world.succeed(id, "b");
    assert_eq!(key(&world, "/w").1.generation, 2);
    world.check_replay();
}

#[test]
fn a_step_of_an_undo_settles_the_key_that_it_names_and_no_other_tenants() {
    for (tenant, generation) in [("default", 2), ("other", 1)] {
        let mut world = World::new(main_book(vec![write("w").undo(run("never"))]));
        let first = world.start();
        done(&mut world, first, "w");
        let (scoped, known) = key(&world, "/w");
        let receipt = known.receipt().unwrap().id;
        let named = Scoped::parse(&scoped.as_str().replacen("default", tenant, 1)).unwrap();
        let undo = write("r").with(|def| {
            def.effect = Some(Semantics::Idempotent);
            def.reverses = Some(Reverses { key: named, receipt });
        });
        let hash = windlass_core::digest::Digest([9; 32]);
        world.load(hash, book(vec![("undo", pipeline(vec![undo], vec![], vec![]))]));
        let mut create = world.create("undo", json!({}));
        create.runbook = hash;
        let second = create.id;
        world.send(&Command::Create(Box::new(create))).unwrap();
        done(&mut world, second, "r");
        let (_, after) = key(&world, "/w");
        assert_eq!(after.generation, generation);
        assert_eq!(after.receipt().and_then(|r| r.reversed_by), (generation == 2).then_some(second));
        world.check_replay();
    }
}

#[test]
fn what_the_other_side_puts_off_waits_as_long_as_it_asks_within_a_bound() {
    for (after, least) in [(Span::mins(20), Span::mins(20)), (Span::hours(9), DEFER_MAX)] {
        let mut world = World::new(main_book(vec![write("w")]));
        let id = world.start();
        world.decide_policy(id, "w", Verdict::Allow);
        let lease = world.lease(id, "w");
        let receipt = Some(Box::new(world.receipt(receipt::Outcome::Failed, json!(429))));
        let report = Report::Deferred { failure: failure("429"), after };
        let at = world.at;
        let command = Command::Report { run: id, step: name("w"), epoch: lease.epoch, report, receipt };
        world.send(&command).unwrap();
        assert_eq!(world.step(id, "w").next_eligible_at, Some(at + least));
        world.sleep(least);
        assert_eq!(
            world.try_lease(id, "w", "ex1").map(|turn| matches!(turn.reply, Reply::Leased(_))),
            Ok(true)
        );
        world.check_replay();
    }
}

#[test]
fn a_put_off_without_a_receipt_is_an_unknown_outcome() {
    let mut world = World::new(main_book(vec![write("w")]));
    let id = world.start();
    world.decide_policy(id, "w", Verdict::Allow);
    let lease = world.lease(id, "w");
    let report = Report::Deferred { failure: failure("503"), after: Span::secs(1) };
    world.report(id, "w", lease.epoch, report).unwrap();
    assert_eq!(world.status(id), Status::AwaitingApproval);
    world.check_replay();
}

#[test]
fn a_tools_call_without_a_declared_key_is_known_tenant_wide_by_what_it_does() {
    let wide = |id: &str| write(id).with(|def| def.key_scope = KeyScope::Tenant);
    let mut world = World::new(main_book(vec![wide("w")]));
    let first = world.start();
    done(&mut world, first, "w");
    let (scoped, _) = key(&world, "");
    assert!(scoped.name().starts_with("tenant/servicenow.update:incident/1:"), "{scoped}");
    let second = world.start();
    world.decide_policy(second, "w", Verdict::Allow);
    assert_eq!(world.try_lease(second, "w", "ex1").unwrap().reply, Reply::Reused);
    world.check_replay();
}

#[test]
fn a_read_for_reconcile_is_rendered_where_its_step_stands() {
    let read = Kind::Tool {
        tool: name("http"),
        operation: name("get"),
        target: expr("vars.x"),
        with: windlass_core::template::Template::Map([("url".to_string(), expr("vars.x"))].into()),
        writes: false,
        risk: windlass_core::policy::Risk::Low,
    };
    let spec = write("w").with(|def| {
        def.effect = Some(Semantics::Reconcile);
        def.reconcile = Some(Box::new(read));
    });
    let mut def = pipeline(vec![spec], vec![], vec![]);
    def.vars.insert(name("x"), Default::default());
    let mut world = World::new(book(vec![("main", def.clone())]));
    let id = world.start_with(json!({ "x": "https://a" }));
    let read = scope::reading(world.run(id), &def, world.step(id, "w"), &Paths).unwrap();
    let Reading::Tool(action) = read else { panic!("{read:?}") };
    assert_eq!((action.target.as_str(), &action.fields), ("https://a", &json!({ "url": "https://a" })));
}

/// Carries a step out, a tool's or a command's.
fn did(world: &mut World, id: RunId, step: &str) {
    match world.step(id, step).tool.as_str() {
        "shell" => world.succeed(id, step),
        _ => done(world, id, step),
    }
}

/// What each of two tries did is there twice, so it is taken back twice: a compensation's key is of what it takes back.
#[test]
fn what_is_done_again_is_taken_back_again() {
    let once = |id: &str| run(id).with(|def| def.effect = Some(Semantics::AtMostOnce));
    let calls = || call("u", "sub", &[]);
    for (w, u, end) in [
        (write("w"), write("u"), "u"),
        (once("w"), once("u"), "u"),
        (run("w"), once("u"), "u"),
        (once("w"), steps("g", vec![once("u")]), "u"),
        (once("w"), calls(), "in"),
    ] {
        let main = pipeline(vec![w.undo(u), run("x")], vec![], vec![]);
        let sub = pipeline(vec![once("in")], vec![], vec![]);
        let mut world = World::new(book(vec![("main", main), ("sub", sub)]));
        let mut id = world.start();
        for again in [false, true] {
            if again {
                let new = RunId(world.id());
                world.send(&Command::Descend { run: id, new, from: None, runbook: None }).unwrap();
                id = new;
            }
            did(&mut world, id, "w");
            world.fail(id, "x", "no");
            // What was said of the compensation of the first try does not serve for that of the second.
            let run = if end == "in" { world.child(id, "u") } else { id };
            did(&mut world, run, end);
            assert_eq!(world.status(id), Status::Failed);
        }
        world.check_replay();
    }
}

#[test]
fn a_compensation_that_failed_is_tried_again_under_its_key_by_the_run_that_takes_over_what_was_done() {
    let once = |id: &str| run(id).with(|def| def.effect = Some(Semantics::AtMostOnce));
    let mut world = World::new(main_book(vec![once("w").undo(once("u")), run("x")]));
    let first = world.start();
    world.succeed(first, "w");
    world.fail(first, "x", "no");
    let lost = world.lease(first, "u");
    world.lose(first, "u");
    world.resolve(first, "u", windlass_core::step::Resolution::Fail, None).unwrap();
    let second = RunId(world.id());
    world.send(&Command::Descend { run: first, new: second, from: None, runbook: None }).unwrap();
    // It took over what the first did, and nobody knows whether that was taken back.
    world.fail(second, "x", "no");
    assert_eq!(world.try_lease(second, "u", "ex1").unwrap().reply, Reply::Done);
    assert_eq!(world.step(second, "u").error.as_ref().unwrap().code.as_str(), "OUTCOME_UNKNOWN");
    assert!(key(&world, "/u").1.key == lost.idempotency_key);
    world.check_replay();
}

#[test]
fn what_every_try_at_a_group_did_is_taken_back() {
    let once = run("u").with(|def| def.effect = Some(Semantics::AtMostOnce));
    let group = steps("g", vec![run("w").undo(once), run("x")]).retry(2, Span::secs(1));
    let mut world = World::new(main_book(vec![group]));
    let id = world.start();
    for round in ["", "#2"] {
        world.sleep(Span::mins(1));
        world.succeed(id, &format!("w{round}"));
        world.fail(id, &format!("x{round}"), "no");
    }
    world.succeed(id, "u#2");
    world.succeed(id, "u");
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}
