//! Lineage: retries and forks take over what succeeded, and effects are known across all of them.

use crate::world::*;
use serde_json::{Value, json};
use windlass_core::attempt::Report;
use windlass_core::budget::Limits;
use windlass_core::caps::Caps;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::effect::Effect;
use windlass_core::id::{ReceiptId, RunId};
use windlass_core::policy::Verdict;
use windlass_core::receipt::Outcome;
use windlass_core::run::Status;
use windlass_core::step::Status as S;
use windlass_core::turn::command::{Command, Receipted, Refusal, Reply};

fn descend(world: &mut World, run: RunId, from: Option<&str>) -> Result<RunId, Refusal> {
    let new = RunId(world.id());
    let from = from.map(name);
    world.send(&Command::Descend { run, new, from, runbook: None })?;
    Ok(new)
}

#[test]
fn a_retry_takes_over_what_succeeded_and_does_the_rest() {
    let last = run("c").with(|def| {
        def.env.insert("A".to_string(), expr("steps.a.output"));
    });
    let mut world = World::new(main_book(vec![run("a"), run("b"), last]));
    let first = world.start();
    world.succeed_with(first, "a", Some(json!(1)));
    world.fail(first, "b", "boom");
    let second = descend(&mut world, first, None).unwrap();
    assert_eq!(world.leasable(second), ["b"]);
    assert_eq!(world.output(second, "a"), json!(1));
    let lineage = &world.run(second).born.lineage();
    assert_eq!((lineage.root_run, lineage.resumed_from, lineage.resume_count), (first, Some(first), 1));
    world.fail(second, "b", "again");
    let third = descend(&mut world, second, None).unwrap();
    let lineage = &world.run(third).born.lineage();
    assert_eq!((lineage.root_run, lineage.resumed_from, lineage.resume_count), (first, Some(second), 2));
    assert_eq!(world.run(third).rare().inherited[&name("a")].from, first);
    world.succeed(third, "b");
    assert_eq!(world.lease(third, "c").input, Some(json!({ "env": { "A": 1 } })));
    world.check_replay();
}

#[test]
fn a_retry_takes_over_members_of_groups_and_items() {
    let items = run("i").foreach(literal(json!([1, 2])), 2, false);
    let mut world = World::new(main_book(vec![parallel("p", vec![run("a"), run("b")]), items]));
    let first = world.start();
    world.succeed(first, "a");
    world.succeed(first, "b");
    world.succeed_with(first, "i[1]", Some(json!("one")));
    world.fail(first, "i[0]", "boom");
    let second = descend(&mut world, first, None).unwrap();
    assert_eq!(world.leasable(second), ["i[0]"]);
    world.succeed_with(second, "i[0]", Some(json!("zero")));
    assert_eq!(world.output(second, "i"), json!(["zero", "one"]));
    assert_eq!(world.status(second), Status::Completed);
    world.check_replay();
}

/// A run over `before` whose items at `failed` fail, retried over `after`: what is left to do, and the retry's results.
fn again_over(before: &Value, failed: &[usize], after: &Value) -> (Vec<String>, Value) {
    let book = |list: Value| main_book(vec![run("i").foreach(literal(list), 9, false)]);
    let mut world = World::new(book(before.clone()));
    world.load(Digest([7; 32]), book(after.clone()));
    let first = world.start();
    for (n, item) in before.as_array().unwrap().iter().enumerate() {
        let step = format!("i[{n}]");
        match failed.contains(&n) {
            true => world.fail(first, &step, "boom"),
            false => world.succeed_with(first, &step, Some(json!(format!("{item} at {n}")))),
        }
    }
    let new = RunId(world.id());
    let runbook = Some(Digest([7; 32]));
    world.send(&Command::Descend { run: first, new, from: None, runbook }).unwrap();
    let left = world.leasable(new);
    world.work(new);
    world.check_replay();
    (left, world.output(new, "i"))
}

#[test]
fn a_retry_takes_an_items_result_over_where_the_item_is_equal_wherever_it_stands() {
    // Another order, as that of a map was in every process.
    let (left, output) = again_over(&json!(["a", "b", "c"]), &[1], &json!(["b", "c", "a"]));
    assert_eq!(left, ["i[0]"], "only the item that failed runs again");
    assert_eq!((&output[1], &output[2]), (&json!("\"c\" at 2"), &json!("\"a\" at 0")));
    // Items that are new, or changed, run; those that are gone are gone.
    let (left, _) = again_over(&json!([{ "h": 1 }, { "h": 2 }, 3]), &[2], &json!([{ "h": 9 }, { "h": 2 }]));
    assert_eq!(left, ["i[0]"]);
    // Equal items are as many pieces of work as there are of them.
    let (left, _) = again_over(&json!(["a", "a", "b"]), &[1, 2], &json!(["a", "b", "a", "a"]));
    assert_eq!(left, ["i[1]", "i[2]", "i[3]"]);
}

#[test]
fn inner_steps_are_taken_over_by_the_item_around_them() {
    let book = |list: Value| {
        let inner = run("in").foreach(literal(json!([1, 2])), 9, false);
        main_book(vec![steps("o", vec![run("m"), inner]).foreach(literal(list), 9, false)])
    };
    let mut world = World::new(book(json!(["x", "y"])));
    world.load(Digest([7; 32]), book(json!(["y", "x"])));
    let first = world.start();
    for step in ["m[0]", "m[1]", "in[0][0]", "in[0][1]", "in[1][0]"] {
        world.succeed(first, step);
    }
    world.fail(first, "in[1][1]", "boom");
    let new = RunId(world.id());
    let runbook = Some(Digest([7; 32]));
    world.send(&Command::Descend { run: first, new, from: None, runbook }).unwrap();
    assert_eq!(world.leasable(new), ["in[0][1]"], "`y` stands first now");
    world.check_replay();
}

#[test]
fn what_was_compensated_is_done_again() {
    let mut world = World::new(main_book(vec![run("a").undo(run("undo-a")), run("k"), run("b")]));
    let first = world.start();
    world.succeed(first, "a");
    world.succeed(first, "k");
    world.fail(first, "b", "boom");
    world.succeed(first, "undo-a");
    let second = descend(&mut world, first, None).unwrap();
    assert_eq!(world.leasable(second), ["a"]);
    world.succeed(second, "a");
    assert_eq!(world.step_status(second, "k"), S::Succeeded);
    assert_eq!(world.leasable(second), ["b"]);
    world.check_replay();
}

#[test]
fn what_could_not_be_compensated_is_taken_over_and_compensated_later() {
    let mut world = World::new(main_book(vec![run("a").undo(run("undo-a")), run("b")]));
    let first = world.start();
    world.succeed_with(first, "a", Some(json!(1)));
    world.fail(first, "b", "boom");
    world.fail(first, "undo-a", "cannot");
    let second = descend(&mut world, first, None).unwrap();
    assert_eq!(world.leasable(second), ["b"]);
    world.fail(second, "b", "boom");
    assert_eq!(world.leasable(second), ["undo-a"]);
    world.check_replay();
}

#[test]
fn only_a_failed_run_is_retried() {
    let mut world = World::new(main_book(vec![run("a")]));
    let id = world.start();
    assert_eq!(descend(&mut world, id, None).unwrap_err().code(), Some(Code::RunInvalidTransition));
    world.succeed(id, "a");
    assert_eq!(descend(&mut world, id, None).unwrap_err().code(), Some(Code::RunTerminalState));
    world.check_replay();
}

#[test]
fn a_fork_takes_over_what_came_before_a_step() {
    let mut world = World::new(main_book(vec![run("a"), run("b"), run("c")]));
    let first = world.start();
    world.work(first);
    assert_eq!(world.status(first), Status::Completed);
    let fork = descend(&mut world, first, Some("b")).unwrap();
    assert_eq!(world.step_status(fork, "a"), S::Succeeded);
    assert_eq!(world.leasable(fork), ["b"]);
    world.work(fork);
    assert_eq!(world.status(fork), Status::Completed);
    assert_eq!(descend(&mut world, first, Some("nowhere")).unwrap_err().code(), Some(Code::NotFound));
    world.check_replay();
}

#[test]
fn keys_are_those_of_the_root_run() {
    let mut world = World::new(main_book(vec![run("a")]));
    let first = world.start();
    let key = world.lease(first, "a").idempotency_key;
    let failed = Report::Failed { failure: failure("x"), retryable: false, exit_code: None, signal: None };
    world.report(first, "a", 1, failed).unwrap();
    let second = descend(&mut world, first, None).unwrap();
    assert_eq!(world.lease(second, "a").idempotency_key, key);
    assert!(key.as_str().contains(&first.to_string()), "{key}");
    let other = world.start();
    assert_ne!(world.lease(other, "a").idempotency_key, key);
    world.check_replay();
}

#[test]
fn an_effect_that_happened_in_the_lineage_does_not_happen_again() {
    let mut runbook = main_book(vec![write("w"), run("b")]);
    runbook.budget = Some(Limits { tokens: Some(10), ..Limits::default() });
    let mut world = World::new(runbook);
    let first = world.start();
    world.decide_policy(first, "w", Verdict::Allow);
    world.lease(first, "w");
    let receipt = Receipted {
        id: ReceiptId(5),
        status: Outcome::Succeeded,
        reversible: false,
        reverse: None,
        request: None,
        response: Some(json!({ "ticket": 7 })),
    };
    // The executor acted, and then failed for another reason.
    let failed = Report::Failed { failure: failure("x"), retryable: false, exit_code: None, signal: None };
    let (step, receipt) = (name("w"), Some(Box::new(receipt)));
    world.send(&Command::Report { run: first, step, epoch: 1, report: failed, receipt }).unwrap();
    assert_eq!(world.status(first), Status::Failed);
    let second = descend(&mut world, first, None).unwrap();
    world.decide_policy(second, "w", Verdict::Allow);
    world.effects.clear();
    assert_eq!(world.try_lease(second, "w", "ex1").unwrap().reply, Reply::Reused);
    assert!(!world.effects.iter().any(|effect| matches!(effect, Effect::Execute(_))));
    assert_eq!(world.output(second, "w"), json!({ "ticket": 7 }));
    assert!(world.run(second).budget().reserved.is_empty());
    assert_eq!(world.leasable(second), ["b"]);
    world.check_replay();
}

#[test]
fn writes_of_an_earlier_run_do_not_count_against_the_next() {
    let mut runbook = main_book(vec![write("v"), run("b"), write("w")]);
    runbook.caps = Some(Caps { max_writes_per_run: Some(1), ..Caps::default() });
    let mut world = World::new(runbook);
    let first = world.start();
    world.decide_policy(first, "v", Verdict::Allow);
    world.succeed(first, "v");
    world.fail(first, "b", "boom");
    let second = descend(&mut world, first, None).unwrap();
    world.succeed(second, "b");
    world.decide_policy(second, "w", Verdict::Allow);
    world.succeed(second, "w");
    assert_eq!(world.status(second), Status::Completed);
    world.check_replay();
}
