//! `approve … for`: what was shown is what may be done, and nothing else under that approval.

use crate::world::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use windlass_core::approval::{self, Verdict as Says};
use windlass_core::attempt::Report;
use windlass_core::digest::Digest;
use windlass_core::id::RunId;
use windlass_core::policy::Verdict;
use windlass_core::run::Status;
use windlass_core::runbook::{Kind, Runbook, VarDef};
use windlass_core::step::{FailFast, Status as S};
use windlass_core::time::Span;
use windlass_core::turn::command::{Command, Reply};

/// A write of the variable `x`.
fn write_x(id: &str) -> Spec {
    write(id).with(|def| {
        if let Kind::Tool { with, .. } = &mut def.kind {
            *with = expr("vars.x");
        }
    })
}

fn book_of(steps: Vec<Spec>) -> Runbook {
    let mut main = pipeline(steps, Vec::new(), Vec::new());
    main.vars.insert(name("x"), VarDef { default: Some(json!(1)), ..VarDef::default() });
    book(vec![("main", main)])
}

fn say(world: &mut World, id: RunId, step: &str, says: Says) {
    let open = world.open_approval(id, step);
    world.decide(id, open.id, says, open.action_hash, "bob").unwrap();
}

fn change_x(world: &mut World, id: RunId, x: i32) {
    let resume = Command::Resume { run: id, message: None, vars: Some(json!({ "x": x })) };
    world.send(&resume).unwrap();
}

/// What the approval of a step shows of the steps it names.
fn shown(world: &World, id: RunId, step: &str) -> Vec<Value> {
    let fields = world.open_approval(id, step).action.unwrap().fields;
    fields["steps"].as_array().cloned().unwrap()
}

#[test]
fn a_human_sees_the_action_and_the_step_needs_no_other_word() {
    let mut world = World::new(book_of(vec![approve_for("ok", &["w", "s"]), write_x("w"), run("s")]));
    let id = world.start();
    let shown = shown(&world, id, "ok");
    assert_eq!((&shown[0]["step"], &shown[0]["action"]["fields"]), (&json!("w"), &json!(1)));
    assert_eq!(shown[1]["action"]["fields"]["command"], json!("./s"));
    say(&mut world, id, "ok", Says::Approved);
    world.decide_policy(id, "w", Verdict::Allow);
    assert_eq!(json!(world.step(id, "w").action_hash()), shown[0]["action_hash"]);
    let epoch = world.lease(id, "w").epoch;
    world.wrote(id, "w", epoch, json!(1)).unwrap();
    assert_eq!(world.leasable(id), ["s"]);
    world.succeed(id, "s");
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

#[test]
fn a_changed_action_asks_for_itself_and_its_answer_counts() {
    for says in [Says::Approved, Says::Rejected] {
        let mut world = World::new(book_of(vec![approve_for("ok", &["w"]), run("between"), write_x("w")]));
        let id = world.start();
        say(&mut world, id, "ok", Says::Approved);
        change_x(&mut world, id, 2);
        world.succeed(id, "between");
        world.decide_policy(id, "w", Verdict::Allow);
        assert_eq!(world.step_status(id, "w"), S::WaitingApproval);
        assert!(world.try_lease(id, "w", "ex1").is_err());
        let asked = world.open_approval(id, "w");
        assert_eq!(asked.by_step, Some(name("ok")));
        assert_eq!(
            asked.reasons,
            ["`ok` asks for its approval, and its action is not the one that was approved there"]
        );
        say(&mut world, id, "w", says);
        match says {
            Says::Approved => assert_eq!(world.lease(id, "w").input.unwrap()["fields"], json!(2)),
            Says::Rejected => assert_eq!(world.status(id), Status::Failed),
        }
        world.check_replay();
    }
}

#[test]
fn what_cannot_be_rendered_yet_asks_when_it_is_reached() {
    let late = run("late").with(|def| {
        def.env.insert("A".to_string(), expr("steps.a.output"));
    });
    let items = run("each").foreach(literal(json!([1, 2])), 1, true);
    let mut world = World::new(book_of(vec![approve_for("ok", &["late", "each"]), run("a"), late, items]));
    let id = world.start();
    let later = json!({ "step": "late", "when_reached": true });
    assert_eq!(shown(&world, id, "ok"), [later, json!({ "step": "each", "when_reached": true })]);
    say(&mut world, id, "ok", Says::Approved);
    world.succeed_with(id, "a", Some(json!("v1")));
    let asked = world.open_approval(id, "late");
    assert_eq!(asked.action.as_ref().unwrap().fields["env"]["A"], json!("v1"));
    assert_eq!(asked.reasons, ["`ok` asks for its approval, and its action was not known there yet"]);
    say(&mut world, id, "late", Says::Approved);
    world.succeed(id, "late");
    for item in ["each[0]", "each[1]"] {
        assert_eq!(world.step_status(id, item), S::WaitingApproval);
        say(&mut world, id, item, Says::Approved);
        world.succeed(id, item);
    }
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

#[test]
fn it_only_adds_to_what_policy_asks() {
    let mut world = World::new(book_of(vec![approve_for("ok", &["w"]), write_x("w")]));
    let id = world.start();
    say(&mut world, id, "ok", Says::Approved);
    world.decide_policy(id, "w", Verdict::NeedsApproval);
    assert_eq!(world.open_approval(id, "w").by_step, None);
    say(&mut world, id, "w", Says::Approved);
    world.lease(id, "w");
    // And the other way round: policy's approval is not the runbook's.
    let mut world = World::new(book_of(vec![approve_for("ok", &["w"]), run("between"), write_x("w")]));
    let id = world.start();
    say(&mut world, id, "ok", Says::Approved);
    change_x(&mut world, id, 2);
    world.succeed(id, "between");
    world.decide_policy(id, "w", Verdict::NeedsApproval);
    say(&mut world, id, "w", Says::Approved);
    assert_eq!(world.open_approval(id, "w").by_step, Some(name("ok")));
    say(&mut world, id, "w", Says::Approved);
    world.lease(id, "w");
    world.check_replay();
}

#[test]
fn a_no_holds_for_what_runs_beside_it_and_a_skipped_approval_for_nothing() {
    let group = || {
        let ok = approve_for("ok", &["s"]);
        parallel("p", vec![ok, steps("g", vec![run("first"), run("s")])]).with(|def| {
            if let Kind::Parallel { fail_fast, .. } = &mut def.kind {
                *fail_fast = FailFast::No;
            }
        })
    };
    let mut world = World::new(book_of(vec![group()]));
    let id = world.start();
    say(&mut world, id, "ok", Says::Rejected);
    world.succeed(id, "first");
    assert!(world.error(id, "s").starts_with("APPROVAL_REJECTED"), "{}", world.error(id, "s"));
    assert_eq!(world.status(id), Status::Failed);

    // Reached before its approval was given, it asks for itself; the other approval shows it all the same.
    let mut world = World::new(book_of(vec![group()]));
    let id = world.start();
    world.succeed(id, "first");
    assert_eq!(world.open_approval(id, "s").by_step, Some(name("ok")));
    world.check_replay();

    let ok = approve_for("ok", &["s"]).when("false");
    let mut world = World::new(book_of(vec![ok, run("s")]));
    let id = world.start();
    assert_eq!(world.leasable(id), ["s"]);
}

#[test]
fn a_retried_group_and_a_retried_run_ask_again() {
    let group = steps("g", vec![approve_for("ok", &["s"]), run("s")]).retry(2, Span::secs(1));
    let mut world = World::new(book_of(vec![group]));
    let id = world.start();
    say(&mut world, id, "ok", Says::Approved);
    world.fail(id, "s", "boom");
    world.sleep(Span::secs(2));
    say(&mut world, id, "ok#2", Says::Approved);
    assert_eq!(world.leasable(id), ["s#2"]);
    world.fail(id, "s#2", "boom");
    assert_eq!(world.status(id), Status::Failed);

    let mut world = World::new(book_of(vec![approve_for("ok", &["s"]), run("s")]));
    let id = world.start();
    say(&mut world, id, "ok", Says::Approved);
    world.fail(id, "s", "boom");
    let new = RunId(world.id());
    world.send(&Command::Descend { run: id, new, from: None, runbook: None }).unwrap();
    assert_eq!(world.step_status(new, "ok"), S::Succeeded);
    assert_eq!(world.open_approval(new, "s").by_step, Some(name("ok")));
    world.check_replay();
}

/// What may happen on the way to a bound step.
#[derive(Clone, Debug)]
enum Op {
    Change(i32),
    Decide { which: usize, yes: bool, right_hash: bool },
    Policy(Verdict),
    Moved(u8),
    Work,
    Lease,
    Sleep(u64),
    Cancel,
}

fn op() -> impl Strategy<Value = Op> {
    let verdict = prop::sample::select(vec![Verdict::Allow, Verdict::NeedsApproval, Verdict::Deny]);
    prop_oneof![
        3 => (0..4).prop_map(Op::Change),
        6 => (0..4usize, prop::bool::weighted(0.8), prop::bool::weighted(0.9))
            .prop_map(|(which, yes, right_hash)| Op::Decide { which, yes, right_hash }),
        2 => verdict.prop_map(Op::Policy),
        1 => (0..3u8).prop_map(Op::Moved),
        4 => Just(Op::Work),
        6 => Just(Op::Lease),
        1 => (0..90u64).prop_map(Op::Sleep),
        1 => Just(Op::Cancel),
    ]
}

/// A lease of a bound step must have an approval that a human gave to exactly what the step does.
fn check_lease(world: &World, id: RunId, step: &str) -> Result<(), TestCaseError> {
    let hash = json!(world.step(id, step).bound().unwrap().action_hash);
    let yes = world.run(id).rare().approvals.values().any(|a| {
        let fields = a.action.as_ref().map(|action| action.fields.clone()).unwrap_or_default();
        let shown = fields["steps"].as_array().cloned().unwrap_or_default();
        let there =
            a.step.as_str() == "ok" && shown.iter().any(|s| s["step"] == step && s["action_hash"] == hash);
        let here = a.step.as_str() == step && a.by_step.is_some() && json!(a.action_hash) == hash;
        let decided = a.decisions.iter().any(|d| d.decision == Says::Approved);
        a.status == approval::Status::Approved && decided && (there || here)
    });
    prop_assert!(yes, "{step} runs with {hash} and nobody approved that");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_changed_action_never_executes_under_an_old_approval(ops in prop::collection::vec(op(), 0..40)) {
        let shell = run("s").with(|def| { def.env.insert("X".to_string(), expr("vars.x")); });
        let steps = vec![approve_for("ok", &["w", "s"]), run("between"), write_x("w"), shell];
        let mut world = World::new(book_of(steps));
        let id = world.start();
        for op in ops {
            match op {
                Op::Change(x) => {
                    let resume = Command::Resume { run: id, message: None, vars: Some(json!({ "x": x })) };
                    let _ = world.send(&resume);
                }
                Op::Decide { which, yes, right_hash } => {
                    let found = world.run(id).rare().approvals.values().nth(which).cloned();
                    if let Some(found) = found {
                        let hash = if right_hash { found.action_hash } else { Digest([9; 32]) };
                        let says = if yes { Says::Approved } else { Says::Rejected };
                        let _ = world.decide(id, found.id, says, hash, "bob");
                    }
                }
                Op::Policy(verdict) => {
                    if world.run(id).step(&name("w")).is_some() && !world.run(id).is_terminal() {
                        world.decide_policy(id, "w", verdict);
                    }
                }
                Op::Moved(n) => world.policy = Digest([7 + n; 32]),
                Op::Sleep(mins) => world.sleep(Span::mins(mins)),
                Op::Cancel => { let _ = world.cancel(id); }
                Op::Work => {
                    let running = ["between", "w", "s"].iter().find(|step| {
                        world.run(id).step(&name(step)).is_some_and(|step| step.status == S::Running)
                    });
                    if let Some(step) = running {
                        let epoch = world.step(id, step).epoch;
                        let done = Report::Done { output: None, exit_code: None };
                        world.report(id, step, epoch, done).unwrap();
                    }
                }
                Op::Lease => {
                    for step in ["between", "w", "s"] {
                        let leased = world.try_lease(id, step, "ex1");
                        let leased = leased.is_ok_and(|turn| matches!(turn.reply, Reply::Leased(_)));
                        if leased && step != "between" {
                            check_lease(&world, id, step)?;
                        }
                    }
                }
            }
        }
        world.check_replay();
    }
}
