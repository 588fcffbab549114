//! Attempts: leases, retries, time-outs, losses, unknown outcomes, agents, budgets and checkpoints.

use crate::world::*;
use serde_json::json;
use windlass_core::attempt::{self, Report, Resume};
use windlass_core::budget::{Amount, Limits};
use windlass_core::caps::Caps;
use windlass_core::code::Code;
use windlass_core::effect::Effect;
use windlass_core::event::CheckpointSaved;
use windlass_core::id::{NoticeId, RunId};
use windlass_core::policy::Verdict;
use windlass_core::receipt::Semantics;
use windlass_core::run::Status;
use windlass_core::runbook::Retry;
use windlass_core::step::{LOSSES_MAX, Resolution, Status as S, Wait};
use windlass_core::task::{Input as Task, Recovery, SignalKind};
use windlass_core::time::{Millis, Span};
use windlass_core::turn::command::{Command, Reply};

fn done() -> Report {
    Report::Done { output: None, exit_code: Some(0.into()) }
}

/// A run at its first step, an outside write that policy allows.
fn writing(semantics: Option<Semantics>) -> (World, RunId) {
    let mut world = World::new(main_book(vec![write("w").with(|def| def.effect = semantics), run("z")]));
    let id = world.start();
    world.decide_policy(id, "w", Verdict::Allow);
    (world, id)
}

#[test]
fn a_failed_attempt_is_tried_again_after_its_backoff() {
    let mut world = World::new(main_book(vec![run("a").retry(3, Span::secs(100))]));
    let id = world.start();
    world.fail(id, "a", "boom");
    assert_eq!(world.status(id), Status::FailedRetryable);
    let step = world.step(id, "a");
    assert_eq!((step.attempt, step.epoch, step.failures), (2, 2, 1));
    let wait = step.next_eligible_at.unwrap().since(world.at);
    assert!((Span::secs(80)..=Span::secs(120)).contains(&wait), "{wait:?}");
    world.sleep(Span::secs(79));
    assert_eq!(world.status(id), Status::FailedRetryable);
    world.sleep(Span::secs(41));
    assert_eq!(world.lease(id, "a").epoch, 2);
    let report = Report::Failed { failure: failure("x"), retryable: false, exit_code: None, signal: None };
    world.report(id, "a", 2, report).unwrap();
    world.sleep(Span::secs(120));
    world.fail(id, "a", "third");
    assert_eq!(world.error(id, "a"), "STEP_FAILED: third");
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn jitter_reaches_a_fifth_to_either_side_and_no_further() {
    let (mut low, mut high) = (u64::MAX, 0);
    for seed in 0..=4096u128 {
        let mut ids = || seed;
        let mut given = windlass_core::machine::Given {
            at: Millis(0),
            by: &windlass_core::run::Actor::SYSTEM,
            policy: POLICY,
            lease_ttl: Span::secs(30),
            evaluate: &Paths,
            ids: &mut ids,
        };
        let span = given.jitter(Span(10_000)).0;
        (low, high) = (low.min(span), high.max(span));
    }
    assert_eq!((low, high), (8_000, 12_000));
}

#[test]
fn a_retry_that_says_on_what_ignores_other_failures() {
    let retry =
        Retry { max_attempts: Some(3), backoff: vec![Span::secs(1)], on: vec!["timeout".to_string()] };
    let mut world = World::new(main_book(vec![run("a").with(|def| def.retry = retry)]));
    let id = world.start();
    world.fail(id, "a", "read timeout");
    assert_eq!(world.status(id), Status::FailedRetryable);
    world.sleep(Span::secs(2));
    world.fail(id, "a", "syntax error");
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn a_tool_is_tried_five_times_on_retryable_errors_only() {
    let (mut world, id) = writing(Some(Semantics::Idempotent));
    for (tries, backoff) in attempt::BACKOFF.iter().enumerate() {
        world.fail_retryable(id, "w");
        let step = world.step(id, "w");
        assert_eq!(step.failures as usize, tries + 1);
        let wait = step.next_eligible_at.unwrap().since(world.at).0;
        assert!((backoff.0 * 4 / 5..=backoff.0 * 6 / 5).contains(&wait), "{wait} is not about {backoff:?}");
        world.sleep(Span::mins(15));
    }
    world.fail_retryable(id, "w");
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();

    let (mut world, id) = writing(Some(Semantics::Idempotent));
    world.fail(id, "w", "bad request");
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn a_shell_step_is_tried_once() {
    let mut world = World::new(main_book(vec![run("a")]));
    let id = world.start();
    world.fail_retryable(id, "a");
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

#[test]
fn no_retry_is_planned_past_the_deadline() {
    let mut main = pipeline(vec![run("a").retry(5, Span::mins(10))], vec![], vec![]);
    main.deadline = Some(Span::mins(5));
    let mut world = World::new(book(vec![("main", main)]));
    let id = world.start();
    world.fail(id, "a", "boom");
    assert_eq!(world.status(id), Status::Failed);
    assert_eq!(world.run_error(id), "STEP_FAILED: boom");
    world.check_replay();
}

#[test]
fn an_attempt_whose_time_is_up_is_stopped_times_out_and_is_tried_again() {
    let slow = run("a").retry(2, Span::secs(1)).with(|def| def.timeout = Some(Span::secs(10)));
    let mut world = World::new(main_book(vec![slow]));
    let id = world.start();
    world.lease(id, "a");
    world.sleep(Span::secs(9));
    assert!(world.stopped(id).is_empty());
    world.sleep(Span::secs(1));
    assert_eq!(world.stopped(id), ["a@1"]);
    world.stop(id, "a");
    assert!(world.error(id, "a").starts_with("TIMED_OUT"), "{}", world.error(id, "a"));
    assert_eq!(world.status(id), Status::FailedRetryable);
    world.sleep(Span::secs(2));
    world.succeed(id, "a");
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

#[test]
fn a_lease_that_is_lost_or_handed_back_is_given_again_under_the_next_epoch() {
    let mut world = World::new(main_book(vec![run("a")]));
    let id = world.start();
    world.lease(id, "a");
    world.lose(id, "a");
    let step = world.step(id, "a");
    assert_eq!((step.status, step.epoch, step.attempt, step.losses), (S::Ready, 2, 2, 1));
    let lease = world.lease(id, "a");
    assert_eq!((lease.epoch, lease.attempt), (2, 2));
    world.report(id, "a", 2, Report::Returned { reason: None }).unwrap();
    let step = world.step(id, "a");
    assert_eq!((step.status, step.epoch, step.losses, step.failures), (S::Ready, 3, 1, 0));
    world.succeed(id, "a");
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

#[test]
fn a_step_that_could_not_be_begun_is_handed_back_and_waits_before_it_is_leased_again() {
    let mut world = World::new(main_book(vec![run("a")]));
    let id = world.start();
    let postponed = || Report::Postponed { reason: "Too many open files".into(), after: Span::secs(2) };
    world.lease(id, "a");
    world.report(id, "a", 1, postponed()).unwrap();
    let step = world.step(id, "a");
    assert_eq!((step.status, step.epoch, step.losses, step.failures), (S::WaitingExternal, 2, 0, 0));
    let waiting = step.waiting.clone().unwrap();
    assert_eq!((waiting.reason, waiting.on.unwrap().as_str()), (Wait::Executor, "Too many open files"));
    assert_eq!(world.status(id), Status::WaitingExternal);
    assert!(world.try_lease(id, "a", "ex").is_err(), "not before its time");
    world.sleep(Span::secs(2));
    assert_eq!(world.lease(id, "a").epoch, 2);
    // Somebody who does not want to wait has it tried at once.
    world.report(id, "a", 2, postponed()).unwrap();
    world.send(&Command::Resume { run: id, message: None, vars: None }).unwrap();
    world.lease(id, "a");
    world.report(id, "a", 3, postponed()).unwrap();
    // A cancel does not wait for it.
    world.cancel(id).unwrap();
    assert_eq!(world.status(id), Status::Cancelled);
    world.check_replay();
}

#[test]
fn a_step_that_cannot_be_begun_any_more_is_cancelled_with_its_run() {
    let mut world = World::new(main_book(vec![run("a")]));
    let id = world.start();
    world.lease(id, "a");
    world.cancel(id).unwrap();
    let postponed = Report::Postponed { reason: "Cannot allocate memory".into(), after: Span::secs(2) };
    world.report(id, "a", 1, postponed).unwrap();
    assert_eq!(world.status(id), Status::Cancelled);
    world.check_replay();
}

#[test]
fn a_stale_report_is_refused_and_changes_nothing() {
    let mut world = World::new(main_book(vec![run("a"), run("b")]));
    let id = world.start();
    world.lease(id, "a");
    world.lose(id, "a");
    world.lease(id, "a");
    let lines = world.lines.len();
    let failed =
        Report::Failed { failure: failure("x"), retryable: false, exit_code: Some(1.into()), signal: None };
    let lost = Report::Lost { last_seen: None };
    for report in [done(), failed, Report::Stopped, Report::Returned { reason: None }, lost] {
        let refused = world.report(id, "a", 1, report.clone()).unwrap_err();
        assert_eq!(refused.code(), Some(Code::LeaseStaleEpoch), "{report:?}");
    }
    assert_eq!(world.lines.len(), lines);
    world.report(id, "a", 2, done()).unwrap();
    assert_eq!(world.report(id, "a", 1, done()).unwrap_err().code(), Some(Code::LeaseStaleEpoch));
    // The same report once more is answered as it was; another one is refused.
    let lines = world.lines.len();
    world.report(id, "a", 2, done()).unwrap();
    assert_eq!(world.report(id, "a", 2, Report::Stopped).unwrap_err().code(), Some(Code::RunTerminalState));
    assert_eq!(world.lines.len(), lines);
    world.check_replay();
}

#[test]
fn a_step_that_kills_its_executors_fails_in_the_end() {
    let mut world = World::new(main_book(vec![run("a")]));
    world.records = false;
    let id = world.start();
    for _ in 0..LOSSES_MAX {
        assert_eq!(world.status(id), Status::Running);
        world.lease(id, "a");
        world.lose(id, "a");
    }
    assert!(world.error(id, "a").starts_with("RUN_ORPHANED"), "{}", world.error(id, "a"));
    assert_eq!(world.status(id), Status::Failed);
}

#[test]
fn a_lost_write_that_may_happen_once_waits_for_a_human() {
    for (resolution, step, run) in [
        (Resolution::Done, S::Succeeded, Status::Running),
        (Resolution::Retry, S::Ready, Status::Running),
        (Resolution::Fail, S::Failed, Status::Failed),
    ] {
        let (mut world, id) = writing(None);
        world.lease(id, "w");
        world.lose(id, "w");
        assert_eq!(world.step_status(id, "w"), S::OutcomeUnknown);
        assert_eq!(world.status(id), Status::AwaitingApproval);
        assert!(world.effects.iter().any(|effect| matches!(effect, Effect::Notify { .. })));
        assert!(world.leasable(id).is_empty());
        let resumed = world.send(&Command::Resume { run: id, message: None, vars: None });
        assert_eq!(resumed.unwrap_err().code(), Some(Code::RunResumeFailed), "nobody knows what it did");
        world.resolve(id, "w", resolution, Some(json!({ "by": "hand" }))).unwrap();
        assert_eq!((world.step_status(id, "w"), world.status(id)), (step, run), "{resolution:?}");
        if resolution == Resolution::Done {
            assert_eq!(world.output(id, "w"), json!({ "by": "hand" }));
        }
        if resolution == Resolution::Retry {
            assert_eq!(world.lease(id, "w").epoch, 2);
        }
        world.check_replay();
    }
}

#[test]
fn a_lost_idempotent_write_is_done_again_under_the_same_key() {
    let (mut world, id) = writing(Some(Semantics::Idempotent));
    let first = world.lease(id, "w").idempotency_key;
    world.lose(id, "w");
    assert_eq!(world.step_status(id, "w"), S::Ready);
    assert_eq!(world.lease(id, "w").idempotency_key, first);
    world.check_replay();
}

#[test]
fn a_write_that_is_stopped_without_a_receipt_is_unknown_and_not_retried() {
    let slow = write("w").retry(3, Span::secs(1)).with(|def| def.timeout = Some(Span::secs(10)));
    let mut world = World::new(main_book(vec![slow]));
    let id = world.start();
    world.decide_policy(id, "w", Verdict::Allow);
    world.lease(id, "w");
    world.sleep(Span::secs(10));
    world.stop(id, "w");
    assert_eq!(world.step_status(id, "w"), S::OutcomeUnknown);
    world.resolve(id, "w", Resolution::Retry, None).unwrap();
    assert_eq!(world.lease(id, "w").epoch, 2);
    world.check_replay();
}

#[test]
fn a_late_success_settles_an_unknown_outcome() {
    let (mut world, id) = writing(None);
    world.lease(id, "w");
    world.lose(id, "w");
    world.report(id, "w", 1, done()).unwrap();
    assert_eq!(world.step_status(id, "w"), S::Succeeded);
    assert_eq!(world.leasable(id), ["z"]);
    world.check_replay();
}

#[test]
fn an_unknown_outcome_keeps_a_cancelled_run_waiting() {
    let (mut world, id) = writing(None);
    world.lease(id, "w");
    world.cancel(id).unwrap();
    world.lose(id, "w");
    assert_eq!(world.status(id), Status::AwaitingApproval);
    world.resolve(id, "w", Resolution::Fail, None).unwrap();
    assert_eq!(world.status(id), Status::Cancelled);
    world.check_replay();
}

#[test]
fn a_run_may_write_so_often_and_no_more() {
    let mut runbook = main_book(vec![write("v"), write("w")]);
    runbook.caps = Some(Caps { max_writes_per_run: Some(1), ..Caps::default() });
    let mut world = World::new(runbook);
    let id = world.start();
    world.decide_policy(id, "v", Verdict::Allow);
    world.succeed(id, "v");
    world.decide_policy(id, "w", Verdict::Allow);
    world.try_lease(id, "w", "ex1").unwrap();
    assert!(world.error(id, "w").starts_with("CAP_EXCEEDED"), "{}", world.error(id, "w"));
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

fn reserve(world: &mut World, id: RunId, step: &str, usd_micros: u64) -> Reply {
    let reserve = Amount { usd_micros, ..Amount::default() };
    let lease = Command::Lease { run: id, step: name(step), owner: name("ex1"), agent: None, reserve };
    world.send(&lease).unwrap().reply
}

#[test]
fn only_the_attempt_that_holds_the_lease_says_which_secrets_it_uses() {
    let mut world = World::new(book(vec![("main", pipeline(vec![run("a")], vec![], vec![]))]));
    let id = world.start();
    assert!(matches!(reserve(&mut world, id, "a", 0), Reply::Leased(_)));
    let used =
        |epoch| Command::Secrets { run: id, step: name("a"), epoch, used: vec![(name("api"), name("3"))] };
    world.send(&used(1)).unwrap();
    let stale = world.send(&used(2)).unwrap_err();
    assert_eq!(stale.code(), Some(Code::LeaseStaleEpoch));
    world.report(id, "a", 1, done()).unwrap();
    assert_eq!(world.send(&used(1)).unwrap_err().code(), Some(Code::RunTerminalState));
    world.check_replay();
}

#[test]
fn a_budget_that_is_used_up_waits_for_a_human_and_keeps_the_work() {
    let mut main = pipeline(vec![parallel("p", vec![run("a"), run("b")])], vec![], vec![]);
    main.budget = Some(Limits { usd_micros: Some(100), ..Limits::default() });
    let mut world = World::new(book(vec![("main", main)]));
    let id = world.start();
    assert!(matches!(reserve(&mut world, id, "a", 80), Reply::Leased(_)));
    assert_eq!(reserve(&mut world, id, "b", 30), Reply::Nothing);
    assert_eq!(world.step_status(id, "b"), S::WaitingApproval);
    let cost = windlass_core::budget::Cost {
        provider: name("p"),
        model: name("m"),
        total: windlass_core::budget::Total { usd_micros: 90, ..Default::default() },
    };
    world.send(&Command::Cost { run: id, step: name("a"), epoch: 1, costs: vec![cost] }).unwrap();
    world.report(id, "a", 1, done()).unwrap();
    assert_eq!(world.status(id), Status::AwaitingApproval);
    assert_eq!(world.step_status(id, "a"), S::Succeeded);
    let to = Amount { usd_micros: 200, ..Amount::default() };
    world.send(&Command::Raise { run: id, to }).unwrap();
    assert!(matches!(reserve(&mut world, id, "b", 30), Reply::Leased(_)));
    world.report(id, "b", 1, done()).unwrap();
    assert_eq!(world.status(id), Status::Completed);
    assert_eq!(world.run(id).budget().reserved.len(), 0);
    world.check_replay();
}

#[test]
fn a_run_counts_its_own_writes_and_waits_for_more() {
    let mut main = pipeline(vec![write("v"), write("w")], vec![], vec![]);
    main.budget = Some(Limits { writes: Some(1), ..Limits::default() });
    let mut world = World::new(book(vec![("main", main)]));
    let id = world.start();
    world.decide_policy(id, "v", Verdict::Allow);
    world.succeed(id, "v");
    assert_eq!(world.run(id).budget().spent.writes, 1);
    world.decide_policy(id, "w", Verdict::Allow);
    world.try_lease(id, "w", "ex1").unwrap();
    assert_eq!(
        (world.step_status(id, "w"), world.status(id)),
        (S::WaitingApproval, Status::AwaitingApproval)
    );
    world.send(&Command::Raise { run: id, to: Amount { writes: 2, ..Amount::default() } }).unwrap();
    world.succeed(id, "w");
    assert_eq!((world.run(id).budget().spent.writes, world.status(id)), (2, Status::Completed));
    world.check_replay();
}

#[test]
fn a_run_counts_the_time_of_its_attempts_beside_what_a_model_cost() {
    let mut main = pipeline(vec![run("a"), run("b")], vec![], vec![]);
    main.budget = Some(Limits { time_ms: Some(5_000), usd_micros: Some(100), ..Limits::default() });
    let mut world = World::new(book(vec![("main", main)]));
    let id = world.start();
    world.lease(id, "a");
    world.sleep(Span::secs(6));
    world.report(id, "a", 1, done()).unwrap();
    let spent = world.run(id).budget().spent;
    assert!(spent.time_ms >= 6_000, "{spent:?}");
    // What it cost in money is reported afterwards, and counts once.
    for _ in 0..2 {
        let cost = windlass_core::budget::Cost {
            provider: name("p"),
            model: name("m"),
            total: windlass_core::budget::Total { usd_micros: 40, ..Default::default() },
        };
        world.send(&Command::Cost { run: id, step: name("a"), epoch: 1, costs: vec![cost] }).unwrap();
    }
    assert_eq!(world.run(id).budget().spent.usd_micros, 40);
    world.try_lease(id, "b", "ex1").unwrap();
    assert_eq!(world.step_status(id, "b"), S::WaitingApproval);
    assert_eq!(world.step_status(id, "a"), S::Succeeded);
    world.send(&Command::Raise { run: id, to: Amount { time_ms: 60_000, ..Amount::default() } }).unwrap();
    world.succeed(id, "b");
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

#[test]
fn what_was_set_aside_is_free_however_the_step_ends() {
    let mut main = pipeline(vec![run("a").retry(2, Span::secs(1))], vec![], vec![]);
    main.budget = Some(Limits { usd_micros: Some(100), ..Limits::default() });
    let mut world = World::new(book(vec![("main", main)]));
    let id = world.start();
    let held = |world: &World| world.run(id).budget().reserved.len();
    reserve(&mut world, id, "a", 80);
    assert_eq!(held(&world), 1);
    world.lose(id, "a");
    assert_eq!(held(&world), 0);
    reserve(&mut world, id, "a", 80);
    let failed = Report::Failed { failure: failure("x"), retryable: false, exit_code: None, signal: None };
    world.report(id, "a", 2, failed).unwrap();
    assert_eq!(held(&world), 0);
    world.sleep(Span::secs(2));
    reserve(&mut world, id, "a", 80);
    world.cancel(id).unwrap();
    world.stop(id, "a");
    assert_eq!(held(&world), 0);
    world.check_replay();
}

/// A run at an agent's step with a live session.
fn working(step: Spec) -> (World, RunId) {
    let mut world = World::new(with_coder(main_book(vec![step, run("z")])));
    let id = world.start();
    world.decide_policy(id, "a", Verdict::Allow);
    world.start_agent(id, "a");
    (world, id)
}

fn signal(epoch: u64, kind: SignalKind) -> Task {
    Task::Signal { epoch, kind, message: None, notice: NoticeId(9) }
}

#[test]
fn an_agent_that_signals_complete_ends_its_step() {
    let (mut world, id) = working(agent("a"));
    world.task(id, "a", signal(1, SignalKind::Complete)).unwrap();
    assert_eq!(world.step_status(id, "a"), S::Succeeded);
    assert_eq!(world.leasable(id), ["z"]);
    world.check_replay();
}

#[test]
fn an_agent_that_escalates_waits_for_a_human() {
    for (resolution, status) in
        [(Resolution::Done, S::Succeeded), (Resolution::Retry, S::Ready), (Resolution::Fail, S::Failed)]
    {
        let (mut world, id) = working(agent("a"));
        let session = world.run(id).rare().tasks[&name("a")].session.unwrap();
        world.task(id, "a", signal(1, SignalKind::Escalate)).unwrap();
        assert_eq!(world.status(id), Status::AwaitingApproval);
        world.resolve(id, "a", resolution, Some(json!(1))).unwrap();
        assert_eq!(world.step_status(id, "a"), status, "{resolution:?}");
        assert!(world.effects.contains(&Effect::Kill { session }));
        if resolution == Resolution::Retry {
            world.start_agent(id, "a");
            assert_eq!(world.run(id).rare().tasks[&name("a")].epoch, 2);
            world.task(id, "a", signal(2, SignalKind::Complete)).unwrap();
            assert_eq!(world.step_status(id, "a"), S::Succeeded);
        }
        world.check_replay();
    }
}

#[test]
fn an_escalated_agent_may_still_finish_by_itself() {
    let (mut world, id) = working(agent("a"));
    world.task(id, "a", signal(1, SignalKind::Escalate)).unwrap();
    world.task(id, "a", signal(1, SignalKind::Complete)).unwrap();
    assert_eq!(world.step_status(id, "a"), S::Succeeded);
    assert_eq!(world.leasable(id), ["z"]);
    world.check_replay();
}

#[test]
fn an_escalated_agent_ends_with_its_cancelled_run() {
    let (mut world, id) = working(agent("a"));
    let session = world.run(id).rare().tasks[&name("a")].session.unwrap();
    world.task(id, "a", signal(1, SignalKind::Escalate)).unwrap();
    world.cancel(id).unwrap();
    assert!(world.effects.contains(&Effect::Kill { session }));
    assert_eq!(world.run(id).rare().tasks[&name("a")].state_name(), "done");
    assert_eq!(world.status(id), Status::Cancelled);
    world.check_replay();
}

#[test]
fn a_restarted_agent_comes_back_under_the_next_epoch_and_keeps_its_lock() {
    let locked = agent("a").lock("tree", windlass_core::schedule::Overlap::Queue);
    let (mut world, id) = working(locked);
    world.task(id, "a", Task::Recover { epoch: 1, action: Recovery::Restart }).unwrap();
    assert_eq!((world.step_status(id, "a"), world.step(id, "a").epoch), (S::Ready, 2));
    let other = world.start();
    world.decide_policy(other, "a", Verdict::Allow);
    assert_eq!(world.step_status(other, "a"), S::WaitingExternal);
    world.start_agent(id, "a");
    let stale = world.task(id, "a", signal(1, SignalKind::Complete)).unwrap_err();
    assert_eq!(stale.code(), Some(Code::LeaseStaleEpoch));
    world.task(id, "a", signal(2, SignalKind::Complete)).unwrap();
    assert_eq!(world.step_status(other, "a"), S::Ready);
    world.check_replay();
}

#[test]
fn an_agent_that_fails_is_tried_again_with_a_new_task() {
    let (mut world, id) = working(agent("a").retry(2, Span::secs(1)));
    let error = "gave up".to_string();
    world.task(id, "a", Task::Fail { epoch: 1, code: Code::StepFailed, error }).unwrap();
    assert_eq!(world.status(id), Status::FailedRetryable);
    world.sleep(Span::secs(2));
    world.start_agent(id, "a");
    world.task(id, "a", signal(2, SignalKind::Complete)).unwrap();
    assert_eq!(world.step_status(id, "a"), S::Succeeded);
    world.check_replay();
}

fn saved(run: RunId, epoch: u64, resumable: bool, idempotent: bool) -> Command {
    Command::Checkpoint(Box::new(CheckpointSaved {
        pipeline_id: run,
        step: Some(name("w")),
        epoch: Some(epoch),
        resumable,
        idempotent,
        tokens_input: None,
        tokens_output: None,
        message: None,
        data: Some(json!({ "page": 3 }).into()),
    }))
}

#[test]
fn the_resume_tree_reuses_replays_or_asks() {
    let (mut world, id) = writing(None);
    let tree = |world: &World| attempt::resume(world.run(id), None, world.step(id, "w"));
    assert_eq!(tree(&world), Resume::Ask);
    assert_eq!(world.send(&saved(id, 1, true, false)).unwrap_err().code(), Some(Code::RunInvalidTransition));
    world.lease(id, "w");
    world.send(&saved(id, 1, false, true)).unwrap();
    assert_eq!(tree(&world), Resume::Replay);
    world.send(&saved(id, 1, true, false)).unwrap();
    assert_eq!(tree(&world), Resume::Reuse);
    assert_eq!(world.send(&saved(id, 7, true, false)).unwrap_err().code(), Some(Code::LeaseStaleEpoch));
    world.check_replay();

    let (world, id) = writing(Some(Semantics::Idempotent));
    assert_eq!(attempt::resume(world.run(id), None, world.step(id, "w")), Resume::Replay);
}

/// Two runs of a step each, in a runbook with these caps.
fn capped(tenant: Caps, own: Caps) -> (World, RunId, RunId) {
    let mut book = main_book(vec![parallel("p", vec![run("a"), run("b")])]);
    book.caps = Some(own);
    let mut world = World::new(book);
    world.cap(tenant);
    let (first, second) = (world.start(), world.start());
    (world, first, second)
}

#[test]
fn a_lease_by_name_stops_at_the_caps_of_tenant_and_runbook() {
    let some = |n| Caps { max_concurrency: Some(n), ..Caps::default() };
    for (tenant, own) in
        [(some(1), Caps::default()), (Caps::default(), some(1)), (some(9), some(1)), (some(1), some(9))]
    {
        let (mut world, first, second) = capped(tenant, own);
        let epoch = world.lease(first, "a").epoch;
        for (run, step) in [(first, "b"), (second, "a")] {
            let before = world.lines.len();
            let refused = world.try_lease(run, step, "ex1").unwrap_err();
            assert_eq!(refused.code(), Some(Code::CapExceeded), "{tenant:?} {own:?}");
            assert_eq!(world.lines.len(), before, "nothing changed");
        }
        // It is worth asking again.
        world.report(first, "a", epoch, Report::Done { output: None, exit_code: Some(0.into()) }).unwrap();
        world.lease(second, "a");
        world.check_replay();
    }
}

#[test]
fn nobody_picks_a_run_whose_runbook_is_at_its_cap_and_the_next_comes_when_there_is_room() {
    let own = Caps { max_concurrency: Some(2), ..Caps::default() };
    let (mut world, first, second) = capped(Caps::default(), own);
    let third = world.start();
    let mut picked = Vec::new();
    let mut leases = Vec::new();
    while let Some(run) = world.state.indexes_mut().next_ready() {
        let step = world.leasable(run).first().cloned().unwrap();
        leases.push((run, step.clone(), world.lease(run, &step).epoch));
        picked.push(run);
    }
    assert_eq!(picked.len(), 2, "{picked:?}");
    // Each end makes room for one, until all are done.
    for _ in 0..4 {
        let (run, step, epoch) = leases.remove(0);
        world.report(run, &step, epoch, Report::Done { output: None, exit_code: Some(0.into()) }).unwrap();
        let next = world.state.indexes_mut().next_ready().expect("there is room");
        assert_eq!(world.state.indexes_mut().next_ready(), None, "there is no more room");
        let step = world.leasable(next).first().cloned().unwrap();
        leases.push((next, step.clone(), world.lease(next, &step).epoch));
    }
    for (run, step, epoch) in leases {
        world.report(run, &step, epoch, Report::Done { output: None, exit_code: Some(0.into()) }).unwrap();
    }
    assert!([first, second, third].iter().all(|run| world.status(*run) == Status::Completed));
    // One that is parked and cancelled keeps no place from the others.
    let (mut world, first, second) = capped(Caps::default(), Caps { max_concurrency: Some(1), ..own });
    let third = world.start();
    let epoch = world.lease(first, "a").epoch;
    assert_eq!(world.state.indexes_mut().next_ready(), None);
    world.cancel(second).unwrap();
    world.report(first, "a", epoch, Report::Done { output: None, exit_code: Some(0.into()) }).unwrap();
    let both = [world.state.indexes_mut().next_ready(), world.state.indexes_mut().next_ready()];
    assert!(both[0].is_some_and(|run| [first, third].contains(&run)), "{both:?}");
    world.check_replay();
}

#[test]
fn a_runbook_tightens_how_many_runs_and_writes_its_tenant_may_have() {
    let rate = |n| Caps { max_runs_per_min: Some(n), ..Caps::default() };
    for (tenant, own, fits) in [(rate(1), rate(9), 1), (rate(9), rate(2), 2), (Caps::default(), rate(1), 1)] {
        let mut book = main_book(vec![run("a")]);
        book.caps = Some(own);
        let mut world = World::new(book);
        world.cap(tenant);
        for n in 0..3 {
            let create = world.create("main", serde_json::Value::Null);
            let made = world.send(&Command::Create(Box::new(create))).map_err(|refused| refused.code());
            assert_eq!(made.is_ok(), n < fits, "{tenant:?} {own:?} {n}");
            assert!(made.is_ok() || made == Err(Some(Code::CapExceeded)));
        }
        world.sleep(Span::mins(1));
        world.start();
    }
    let writes = |n| Caps { max_writes_per_run: Some(n), ..Caps::default() };
    for (tenant, own, max) in
        [(writes(1), writes(2), 1), (writes(3), writes(2), 2), (writes(4), Caps::default(), 4)]
    {
        let (world, first, _) = capped(tenant, own);
        assert_eq!(world.run(first).born.home.writes_max, Some(max));
    }
}
