//! Again: what a retry or a fork takes over as it stood, and what it makes anew.

use crate::world::*;
use serde_json::json;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::id::RunId;
use windlass_core::run::Status;
use windlass_core::step::Status as S;
use windlass_core::strategy::FallbackCondition;
use windlass_core::time::Span;
use windlass_core::turn::command::{Claim, Command, Reply, Undo};

fn descend(world: &mut World, run: RunId, from: Option<&str>, runbook: Option<Digest>) -> RunId {
    let new = RunId(world.id());
    let from = from.map(name);
    world.send(&Command::Descend { run, new, from, runbook }).unwrap();
    new
}

/// Two ways, the second of which is taken where the first fails.
fn two_ways(slow: Spec) -> Spec {
    strategy("s", vec![(run("fast"), vec![FallbackCondition::AnyError]), (slow, vec![])])
}

#[test]
fn a_strategy_that_succeeded_is_taken_over_with_the_approach_that_did() {
    let tell = run("t").with(|def| {
        def.env.insert("V".to_string(), expr("steps.s.output.via"));
    });
    let mut world = World::new(main_book(vec![two_ways(run("slow").undo(run("undo-slow"))), tell]));
    let first = world.start();
    world.fail(first, "fast", "no");
    world.succeed_with(first, "slow", Some(json!({ "via": "slow" })));
    world.lease(first, "t");
    for from in [Some("t"), None] {
        if from.is_none() {
            let epoch = world.step(first, "t").epoch;
            let failed = windlass_core::attempt::Report::Failed {
                failure: failure("boom"),
                retryable: false,
                exit_code: None,
                signal: None,
            };
            world.report(first, "t", epoch, failed).unwrap();
            world.fail(first, "undo-slow", "cannot");
        }
        let again = descend(&mut world, first, from, None);
        assert_eq!(world.leasable(again), ["t"], "neither approach runs again");
        assert_eq!(world.step_status(again, "fast"), S::Skipped);
        assert_eq!(world.step_status(again, "slow"), S::Succeeded, "what stood stands in the new run");
        assert_eq!(world.lease(again, "t").input, Some(json!({ "env": { "V": "slow" } })));
        let failed = windlass_core::attempt::Report::Failed {
            failure: failure("boom"),
            retryable: false,
            exit_code: None,
            signal: None,
        };
        world.report(again, "t", 1, failed).unwrap();
        assert_eq!(world.leasable(again), ["undo-slow"], "and is taken back when the new run fails");
    }
    world.check_replay();
}

#[test]
fn an_approach_of_any_kind_stands_as_it_stood() {
    let sub = pipeline(vec![run("c")], vec![], vec![]);
    let kinds = || {
        let each = run("each").foreach(literal(json!([1, 2])), 2, false);
        let gated = steps("gated", vec![approve("ok"), run("slow")]);
        vec![gated, call("slow", "sub", &[]), each]
    };
    for (n, kind) in kinds().into_iter().enumerate() {
        let main = pipeline(vec![two_ways(kind), run("t")], vec![], vec![]);
        let mut world = World::new(book(vec![("main", main), ("sub", sub.clone())]));
        let first = world.start();
        world.fail(first, "fast", "no");
        match n {
            0 => {
                let open = world.open_approval(first, "ok");
                let yes = windlass_core::approval::Verdict::Approved;
                world.decide(first, open.id, yes, open.action_hash, "bob").unwrap();
                world.succeed(first, "slow");
            }
            1 => {
                let child = world.child(first, "slow");
                world.succeed(child, "c");
            }
            _ => {
                world.succeed(first, "each[0]");
                world.succeed(first, "each[1]");
            }
        }
        world.fail(first, "t", "boom");
        let again = descend(&mut world, first, None, None);
        assert_eq!(world.leasable(again), ["t"], "kind {n}");
        assert_eq!(world.output(again, "s"), world.output(first, "s"));
        world.fail(again, "t", "boom");
        let third = descend(&mut world, again, None, None);
        assert_eq!(world.leasable(third), ["t"], "kind {n}, once more");
        world.check_replay();
    }
}

#[test]
fn a_strategy_in_each_item_stands_as_it_stood() {
    let each = two_ways(run("slow")).foreach(literal(json!(["a", "b"])), 2, false);
    let book = |list| {
        let each = each.clone().foreach(literal(list), 2, false);
        main_book(vec![each, run("t")])
    };
    let mut world = World::new(book(json!(["a", "b"])));
    world.load(Digest([7; 32]), book(json!(["b", "c", "a"])));
    let first = world.start();
    world.fail(first, "fast[0]", "no");
    world.succeed(first, "fast[1]");
    world.succeed(first, "slow[0]");
    world.fail(first, "t", "boom");
    let again = descend(&mut world, first, None, None);
    assert_eq!(world.leasable(again), ["t"]);
    // With another list what stands is that of equal items.
    let other = descend(&mut world, first, None, Some(Digest([7; 32])));
    assert_eq!(world.leasable(other), ["fast[1]"], "only the item that is new");
    world.succeed(other, "fast[1]");
    assert_eq!(world.leasable(other), ["t"]);
    assert_eq!(world.step_status(other, "slow[2]"), S::Succeeded);
    world.check_replay();
}

#[test]
fn a_group_that_succeeded_at_a_later_attempt_is_taken_over_whole() {
    let group = |id: &str| steps(id, vec![run("x"), run("y")]).retry(2, Span(50));
    for each in [false, true] {
        let group = if each { group("g").foreach(literal(json!([1, 2])), 2, false) } else { group("g") };
        let mut world = World::new(main_book(vec![group, run("e")]));
        let first = world.start();
        for suffix in if each { vec!["[0]", "[1]"] } else { vec![""] } {
            world.succeed(first, &format!("x{suffix}"));
            world.fail(first, &format!("y{suffix}"), "no");
            world.sleep(Span::secs(1));
            world.succeed(first, &format!("x{suffix}#2"));
            world.succeed(first, &format!("y{suffix}#2"));
        }
        world.fail(first, "e", "boom");
        let again = descend(&mut world, first, None, None);
        assert_eq!(world.leasable(again), ["e"]);
        world.fail(again, "e", "boom");
        let third = descend(&mut world, again, None, None);
        assert_eq!(world.leasable(third), ["e"], "and once more");
        world.succeed(third, "e");
        assert_eq!(world.status(third), Status::Completed);
        world.check_replay();
    }
}

#[test]
fn what_was_taken_back_within_a_group_is_done_again_and_the_rest_stands() {
    let group = parallel("p", vec![run("a").undo(run("undo-a")), run("b")]);
    let inner = steps("o", vec![run("m")]).undo(run("undo-o"));
    let mut world = World::new(main_book(vec![group, inner, run("e")]));
    let first = world.start();
    for step in ["a", "b", "m"] {
        world.succeed(first, step);
    }
    world.fail(first, "e", "boom");
    world.succeed(first, "undo-o");
    world.succeed(first, "undo-a");
    let again = descend(&mut world, first, None, None);
    assert_eq!(world.leasable(again), ["a"]);
    world.succeed(again, "a");
    assert_eq!(world.leasable(again), ["m"], "it was taken back with its group");
    world.check_replay();
}

/// A caller of a run in which `q` failed and `p` stands.
fn half_done(tries: u32) -> (World, RunId, RunId) {
    let sub = pipeline(vec![run("p"), run("q")], vec![], vec![]);
    let main =
        pipeline(vec![run("a"), call("k", "sub", &[]).retry(tries, Span::secs(1)), run("z")], vec![], vec![]);
    let mut world = World::new(book(vec![("main", main), ("sub", sub)]));
    let id = world.start();
    world.succeed(id, "a");
    let child = world.child(id, "k");
    world.succeed(child, "p");
    (world, id, child)
}

#[test]
fn a_call_that_is_tried_again_goes_on_in_the_run_that_it_made() {
    let (mut world, id, child) = half_done(3);
    world.fail(child, "q", "boom");
    world.sleep(Span::secs(5));
    let second = world.child(id, "k");
    assert_ne!(second, child);
    assert_eq!(world.leasable(second), ["q"], "`p` stands");
    world.fail(second, "q", "boom");
    world.sleep(Span::secs(5));
    let third = world.child(id, "k");
    assert_eq!(world.leasable(third), ["q"]);
    world.succeed(third, "q");
    world.succeed(id, "z");
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

#[test]
fn a_fork_makes_the_calls_from_its_step_on_anew_and_a_retry_of_it_goes_on_in_its_own() {
    for from in ["k", "a"] {
        let (mut world, id, child) = half_done(1);
        world.succeed(child, "q");
        world.succeed(id, "z");
        let fork = descend(&mut world, id, Some(from), None);
        if from == "a" {
            world.succeed(fork, "a");
        }
        let called = world.child(fork, "k");
        assert_eq!(world.leasable(called), ["p"], "from {from}");
        world.succeed(called, "p");
        world.fail(called, "q", "boom");
        let again = descend(&mut world, fork, None, None);
        let called = world.child(again, "k");
        assert_eq!(world.leasable(called), ["q"], "the fork's own run goes on");
        world.check_replay();
    }
}

#[test]
fn a_retry_of_a_fork_that_did_not_reach_its_call_makes_the_call_anew() {
    let (mut world, id, child) = half_done(1);
    world.fail(child, "q", "boom");
    let fork = descend(&mut world, id, Some("a"), None);
    world.fail(fork, "a", "boom");
    let again = descend(&mut world, fork, None, None);
    world.succeed(again, "a");
    let called = world.child(again, "k");
    assert_eq!(world.leasable(called), ["p"]);
    world.check_replay();
}

/// Asks for an undo of a run, as it is planned while this was the last one that is known.
fn undo(world: &mut World, of: RunId, seen: Option<RunId>) -> Reply {
    let create = world.create("undo", json!({}));
    let runs = vec![Claim { run: of, path: None, seen }];
    world.send(&Command::Undo(Box::new(Undo { create, runs }))).unwrap().reply
}

#[test]
fn an_undo_that_is_asked_for_twice_is_one_and_what_it_took_back_is_done_again() {
    let main = pipeline(vec![run("a"), run("b"), run("c")], vec![], vec![]);
    // Its steps are named after what they take back, and its place among what has ended.
    let back = pipeline(vec![run("undo-b-2"), run("undo-a-1")], vec![], vec![]);
    let mut world = World::new(book(vec![("main", main), ("undo", back)]));
    let first = world.start();
    world.succeed(first, "a");
    world.succeed(first, "b");
    world.fail(first, "c", "boom");
    let Reply::Created(by) = undo(&mut world, first, None) else { panic!("no undo was made") };
    assert_eq!(undo(&mut world, first, None), Reply::Known { run: Some(by), in_flight: true });
    let new = RunId(world.id());
    for from in [None, Some(name("c"))] {
        let refused = world.send(&Command::Descend { run: first, new, from, runbook: None }).unwrap_err();
        assert_eq!(refused.code(), Some(Code::RunInvalidTransition));
        assert!(refused.to_string().contains("is being taken back"), "{refused}");
    }
    world.succeed(by, "undo-b-2");
    world.fail(by, "undo-a-1", "cannot");
    assert_eq!(
        undo(&mut world, first, None),
        Reply::Known { run: Some(by), in_flight: false },
        "planned before"
    );
    for from in [None, Some("c")] {
        let again = descend(&mut world, first, from, None);
        assert_eq!(world.leasable(again), ["b"], "`a` stands, and `b` was taken back");
        world.fail(again, "b", "boom");
        let third = descend(&mut world, again, None, None);
        assert_eq!(world.leasable(third), ["b"]);
        world.cancel(third).unwrap();
    }
    let Reply::Created(second) = undo(&mut world, first, Some(by)) else { panic!("no undo was made") };
    assert_eq!(world.leasable(second), ["undo-b-2"]);
    world.check_replay();
}

#[test]
fn what_a_run_that_is_not_over_relies_on_is_not_taken_back() {
    let main = pipeline(vec![run("a").undo(run("undo-a")), run("b")], vec![], vec![]);
    let caller = pipeline(vec![call("k", "main", &[]), run("z")], vec![], vec![]);
    let back = pipeline(vec![run("undo-a-1")], vec![], vec![]);
    let mut world = World::new(book(vec![("main", main), ("caller", caller), ("undo", back)]));
    let refused = |world: &mut World, of: RunId, by: RunId| {
        let create = world.create("undo", json!({}));
        let runs = vec![Claim { run: of, path: None, seen: None }];
        let refused = world.send(&Command::Undo(Box::new(Undo { create, runs }))).unwrap_err();
        assert_eq!(refused.code(), Some(Code::RunInvalidTransition));
        assert!(refused.to_string().contains(&by.to_string()), "{refused}");
    };
    let first = world.start();
    world.work(first);
    let fork = descend(&mut world, first, Some("b"), None);
    refused(&mut world, first, fork);
    world.succeed(fork, "b");
    let Reply::Created(by) = undo(&mut world, first, None) else { panic!("no undo was made") };
    // The fork took `a` over, and that is going.
    let new = RunId(world.id());
    let from = Some(name("b"));
    let late = world.send(&Command::Descend { run: fork, new, from, runbook: None }).unwrap_err();
    assert!(late.to_string().contains(&by.to_string()), "{late}");
    let create = world.create("caller", json!({}));
    world.send(&Command::Create(Box::new(create.clone()))).unwrap();
    let child = world.child(create.id, "k");
    world.work(child);
    refused(&mut world, child, create.id);
    world.check_replay();
}

#[test]
fn what_a_later_run_took_back_is_not_taken_over_from_the_first_one() {
    let mut world = World::new(main_book(vec![run("a").undo(run("undo-a")), run("b")]));
    let first = world.start();
    world.succeed(first, "a");
    world.fail(first, "b", "boom");
    world.fail(first, "undo-a", "cannot");
    let again = descend(&mut world, first, None, None);
    world.fail(again, "b", "boom");
    world.succeed(again, "undo-a");
    let other = descend(&mut world, first, None, None);
    assert_eq!(world.leasable(other), ["a"]);
    world.check_replay();
}
