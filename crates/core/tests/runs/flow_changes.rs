//! Variables that change under way: what was approved is what runs, whatever changes between a card and its action.

use crate::world::*;
use serde_json::{Value, json};
use windlass_core::approval::{Approval, Status as Settled, Verdict as Says};
use windlass_core::attempt::Report;
use windlass_core::id::RunId;
use windlass_core::policy::Verdict;
use windlass_core::receipt::Semantics;
use windlass_core::run::Status;
use windlass_core::runbook::{Kind, Runbook, VarDef};
use windlass_core::step::Status as S;
use windlass_core::time::Span;
use windlass_core::turn::command::{Command, Reply};

fn book_of(steps: Vec<Spec>) -> Runbook {
    let mut main = pipeline(steps, Vec::new(), Vec::new());
    for var in ["x", "y"] {
        main.vars.insert(name(var), VarDef { default: Some(json!(1)), ..VarDef::default() });
    }
    book(vec![("main", main)])
}

/// A write of the variable `x`.
fn write_x(id: &str) -> Spec {
    write(id).with(|def| {
        if let Kind::Tool { with, .. } = &mut def.kind {
            *with = expr("vars.x");
        }
    })
}

fn change(world: &mut World, id: RunId, vars: Value) {
    world.send(&Command::Resume { run: id, message: None, vars: Some(vars) }).unwrap();
}

fn say(world: &mut World, id: RunId, step: &str, says: Says) {
    let open = world.open_approval(id, step);
    world.decide(id, open.id, says, open.action_hash, "bob").unwrap();
}

/// How often an approval was asked for, and how many of those are void.
fn asked(world: &World, id: RunId) -> (usize, usize) {
    let all: Vec<&Approval> = world.run(id).rare().approvals.values().collect();
    (all.len(), all.iter().filter(|a| a.status == Settled::Cancelled).count())
}

fn ask_for_shell(world: &mut World, id: RunId) {
    let decided = windlass_core::event::PolicyDecided {
        pipeline_id: id,
        verdict: Verdict::NeedsApproval,
        ..allow_shell(world.policy)
    };
    world.send(&Command::PolicyDecided(Box::new(decided))).unwrap();
}

/// A run whose shell steps policy wants approved.
fn governed(steps: Vec<Spec>) -> (World, RunId) {
    let mut world = World::new(book_of(steps));
    let id = world.start();
    ask_for_shell(&mut world, id);
    (world, id)
}

#[test]
fn a_shell_action_holds_everything_that_it_is_given() {
    let step = run("s").with(|def| {
        def.env.insert("E".to_string(), expr("vars.x"));
        def.dir = Some(literal(json!("sub")));
        def.shell = Some("sh".to_owned());
    });
    let mut world = World::new(book_of(vec![run("first"), step]));
    let id = world.start();
    ask_for_shell(&mut world, id);
    say(&mut world, id, "first", Says::Approved);
    world.succeed(id, "first");
    let fields = world.open_approval(id, "s").action.unwrap().fields;
    assert_eq!(fields["command"], "./s");
    assert_eq!(fields["env"], json!({ "E": 1 }));
    assert_eq!(fields["shell"], "sh");
    assert!(fields["dir"].as_str().unwrap().ends_with("sub"), "{fields}");
    assert_eq!(fields["vars"], json!({ "x": 1, "y": 1 }));
    // What is long stands there by its hash, so that no card and no record grows with it.
    change(&mut world, id, json!({ "x": "z".repeat(900_000) }));
    let fields = world.open_approval(id, "s").action.unwrap().fields;
    assert_eq!(fields["vars"]["x"]["bytes"], 900_002);
    assert!(fields["vars"]["x"]["sha256"].is_string() && fields.to_string().len() < 2_000_000);
    let hash = world.open_approval(id, "s").action_hash;
    change(&mut world, id, json!({ "x": format!("{}y", "z".repeat(899_999)) }));
    assert_ne!(world.open_approval(id, "s").action_hash, hash);
    assert_eq!(world.open_approval(id, "s").action.unwrap().fields["vars"]["y"], 1);
    world.check_replay();
}

#[test]
fn a_changed_variable_voids_an_open_approval_and_asks_again() {
    let (mut world, id) = governed(vec![run("s")]);
    let before = world.open_approval(id, "s");
    change(&mut world, id, json!({ "x": 2 }));
    let now = world.open_approval(id, "s");
    assert_ne!(now.action_hash, before.action_hash);
    assert_eq!(now.reasons, ["asked again: the variable `x` was changed"]);
    let old = &world.run(id).rare().approvals.get(&before.id).unwrap().clone();
    assert_eq!(
        (old.status, old.voided.as_deref()),
        (Settled::Cancelled, Some("the variable `x` was changed"))
    );
    assert!(world.decide(id, before.id, Says::Approved, before.action_hash, "bob").is_ok());
    assert_eq!(world.step_status(id, "s"), S::WaitingApproval, "a word on what is void moves nothing");
    say(&mut world, id, "s", Says::Approved);
    assert_eq!(world.lease(id, "s").vars.get(), json!({ "x": 2, "y": 1 }));
    world.check_replay();
}

#[test]
fn a_changed_variable_voids_a_given_approval_of_what_has_not_begun() {
    let (mut world, id) = governed(vec![run("s")]);
    world.send(&Command::Suspend { run: id, reason: None }).unwrap();
    say(&mut world, id, "s", Says::Approved);
    change(&mut world, id, json!({ "x": "production" }));
    assert!(world.leasable(id).is_empty());
    assert_eq!(asked(&world, id), (2, 1));
    say(&mut world, id, "s", Says::Approved);
    assert_eq!(world.lease(id, "s").vars.get()["x"], "production");
    // The same again is no change.
    let (mut world, id) = governed(vec![run("s")]);
    world.send(&Command::Suspend { run: id, reason: None }).unwrap();
    say(&mut world, id, "s", Says::Approved);
    change(&mut world, id, json!({ "x": 1 }));
    assert_eq!((world.leasable(id), asked(&world, id)), (vec!["s".to_owned()], (1, 0)));
    world.check_replay();
}

#[test]
fn an_unchanged_action_keeps_its_approval() {
    for given in [false, true] {
        let mut world = World::new(book_of(vec![write_x("w")]));
        let id = world.start();
        world.decide_policy(id, "w", Verdict::NeedsApproval);
        world.send(&Command::Suspend { run: id, reason: None }).unwrap();
        if given {
            say(&mut world, id, "w", Says::Approved);
        }
        change(&mut world, id, json!({ "y": 2 }));
        assert_eq!(asked(&world, id), (1, 0));
        if !given {
            say(&mut world, id, "w", Says::Approved);
        }
        assert_eq!(world.leasable(id), ["w"]);
        // And one that changes is asked about again: by policy first, and then a human.
        change(&mut world, id, json!({ "x": 2 }));
        assert_eq!(world.leasable(id), [""; 0]);
        world.decide_policy(id, "w", Verdict::NeedsApproval);
        assert_eq!(asked(&world, id), (2, 1));
        say(&mut world, id, "w", Says::Approved);
        assert_eq!(world.lease(id, "w").input.unwrap()["fields"], json!(2));
        world.check_replay();
    }
}

#[test]
fn an_attempt_keeps_what_it_began_with_and_the_next_one_is_asked_about() {
    let (mut world, id) = governed(vec![run("s").retry(3, Span::secs(1))]);
    say(&mut world, id, "s", Says::Approved);
    let lease = world.lease(id, "s");
    change(&mut world, id, json!({ "x": 2 }));
    assert_eq!(world.run(id).vars_of(world.step(id, "s")).get(), json!({ "x": 1, "y": 1 }));
    assert_eq!(asked(&world, id), (1, 0));
    let failed =
        Report::Failed { failure: failure("no"), retryable: true, exit_code: Some(1.into()), signal: None };
    world.report(id, "s", lease.epoch, failed).unwrap();
    world.sleep(Span::secs(9));
    assert_eq!(asked(&world, id), (2, 1), "{:?}", world.trace(id));
    say(&mut world, id, "s", Says::Approved);
    assert_eq!(world.lease(id, "s").vars.get(), json!({ "x": 2, "y": 1 }));
    assert!(world.run(id).rare().vars.is_empty(), "nobody has the earlier variables any more");
    world.check_replay();
}

#[test]
fn what_became_of_a_lost_attempt_is_asked_with_its_own_variables() {
    let step = run("s").with(|def| def.effect = Some(Semantics::AtMostOnce));
    let mut main = pipeline(vec![step], Vec::new(), Vec::new());
    main.vars.insert(name("x"), VarDef { default: Some(json!(1)), ..VarDef::default() });
    let mut world = World::new(book(vec![("main", main)]));
    let id = world.start();
    let step = |world: &World| world.run(id).vars_of(world.step(id, "s")).get();
    if world.try_lease(id, "s", "ex1").is_ok_and(|turn| matches!(turn.reply, Reply::Leased(_))) {
        world.lose(id, "s");
        change(&mut world, id, json!({ "x": 2 }));
        assert_eq!(step(&world), json!({ "x": 1 }));
    }
    world.check_replay();
}

#[test]
fn a_plain_approval_is_for_the_variables_that_were_shown() {
    let mut world = World::new(book_of(vec![approve("ok"), run("s"), run("t")]));
    let id = world.start();
    let first = world.open_approval(id, "ok");
    assert_eq!(first.action.as_ref().unwrap().fields["vars"], json!({ "x": 1, "y": 1 }));
    // Open: it is asked anew.
    change(&mut world, id, json!({ "x": 2 }));
    assert_eq!(world.open_approval(id, "ok").action.unwrap().fields["vars"]["x"], 2);
    say(&mut world, id, "ok", Says::Approved);
    assert_eq!(world.leasable(id), ["s"]);
    // Given: whoever comes next asks again, once for all that follow.
    change(&mut world, id, json!({ "x": 3 }));
    assert!(world.leasable(id).is_empty());
    let again = world.open_approval(id, "s");
    assert_eq!(again.by_step, Some(name("ok")));
    assert_eq!(again.action.as_ref().unwrap().fields["vars"]["x"], 3);
    assert_eq!(again.reasons.last().unwrap(), "asked again: the variable `x` was changed");
    // Open again, and changed again.
    change(&mut world, id, json!({ "x": 4 }));
    assert_eq!(world.open_approval(id, "s").action.unwrap().fields["vars"]["x"], 4);
    say(&mut world, id, "s", Says::Approved);
    world.succeed(id, "s");
    world.succeed(id, "t");
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

#[test]
fn steps_side_by_side_ask_an_earlier_question_once() {
    for says in [Says::Approved, Says::Rejected] {
        let side = parallel("p", vec![run("a"), run("b")]);
        let mut world = World::new(book_of(vec![approve("ok"), run("first"), side]));
        let id = world.start();
        say(&mut world, id, "ok", Says::Approved);
        world.succeed(id, "first");
        change(&mut world, id, json!({ "x": 2 }));
        assert_eq!(asked(&world, id), (2, 1), "{:?}", world.trace(id));
        say(&mut world, id, "a", says);
        match says {
            Says::Approved => assert_eq!(world.leasable(id), ["a", "b"]),
            Says::Rejected => assert_eq!(world.status(id), Status::Failed),
        }
        world.check_replay();
    }
}

#[test]
fn the_one_who_asked_may_end_and_the_question_stays() {
    let quick = run("a").with(|def| def.timeout = Some(Span::secs(5)));
    let group = parallel("p", vec![quick, run("b")]);
    let mut world = World::new(book_of(vec![approve("ok"), group]));
    let id = world.start();
    say(&mut world, id, "ok", Says::Approved);
    change(&mut world, id, json!({ "x": 2 }));
    let open = world.open_approval(id, "a");
    // It expires: both waited for it, and neither runs.
    world.sleep(Span::hours(3));
    assert_eq!(world.run(id).rare().approvals.get(&open.id).unwrap().status, Settled::Expired);
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn what_is_approved_for_steps_is_asked_again_for_those_that_changed() {
    let mut world =
        World::new(book_of(vec![approve_for("ok", &["w", "s"]), run("between"), write_x("w"), run("s")]));
    let id = world.start();
    // Open: the whole of it is asked anew.
    change(&mut world, id, json!({ "y": 2 }));
    assert_eq!(asked(&world, id), (2, 1));
    say(&mut world, id, "ok", Says::Approved);
    // Given: only for what changed, which is the command and not the tool's call.
    change(&mut world, id, json!({ "y": 3 }));
    world.succeed(id, "between");
    world.decide_policy(id, "w", Verdict::Allow);
    let epoch = world.lease(id, "w").epoch;
    world.wrote(id, "w", epoch, json!(1)).unwrap();
    assert_eq!(world.open_approval(id, "s").action.unwrap().fields["vars"]["y"], 3);
    assert_eq!(world.open_approval(id, "s").by_step, Some(name("ok")));
    say(&mut world, id, "s", Says::Approved);
    assert_eq!(world.lease(id, "s").vars.get()["y"], 3);
    world.check_replay();
}

#[test]
fn a_yes_is_taken_over_for_the_same_question_only() {
    for changed in [false, true] {
        let mut world = World::new(book_of(vec![approve("ok"), run("s"), run("t")]));
        let id = world.start();
        say(&mut world, id, "ok", Says::Approved);
        world.succeed(id, "s");
        if changed {
            change(&mut world, id, json!({ "x": 2 }));
        }
        world.cancel(id).unwrap();
        let new = RunId(world.id());
        world.send(&Command::Descend { run: id, new, from: Some(name("t")), runbook: None }).unwrap();
        match changed {
            false => assert_eq!(world.leasable(new), ["t"]),
            true => assert_eq!(world.step_status(new, "ok"), S::WaitingApproval),
        }
        world.check_replay();
    }
}

#[test]
fn the_variables_of_a_called_run_are_its_callers() {
    let child = pipeline(vec![run("c")], Vec::new(), Vec::new());
    let main = pipeline(vec![call("go", "child", &[])], Vec::new(), Vec::new());
    let mut world = World::new(book(vec![("main", main), ("child", child)]));
    let id = world.start();
    let child = world.child(id, "go");
    let refused =
        world.send(&Command::Resume { run: child, message: None, vars: Some(json!({})) }).unwrap_err();
    assert!(refused.to_string().contains("another run called it"), "{refused}");
}
