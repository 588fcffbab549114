//! The table of runs: every input is fed to samples of every status, in whole turns, and what happened is drawn to
//! `docs/machines/run.md`.
//!
//! A run's status follows from its steps, so a row says where the run stands after the turn that the input made; the
//! way there may lead through `running`. That such a way exists in the design's table is checked for each of them.

use crate::testing;
use crate::world::*;
use std::collections::BTreeMap;
use windlass_core::approval;
use windlass_core::attempt::Report;
use windlass_core::code::Code;
use windlass_core::follow::Told;
use windlass_core::id::{ApprovalId, Holder, RunId};
use windlass_core::lifecycle::TABLE;
use windlass_core::machine::Given;
use windlass_core::policy::Verdict;
use windlass_core::run::{Actor, Status};
use windlass_core::runbook::WaitFor;
use windlass_core::schedule::Overlap;
use windlass_core::step::Resolution;
use windlass_core::stream::StreamId;
use windlass_core::time::Span;
use windlass_core::turn::FOLLOW_MAX;
use windlass_core::turn::command::{Command, Refusal};
use windlass_core::turn::{self, Overlay};
use windlass_core::{lock, step};

/// A world in which one run is the sample.
#[derive(Clone)]
struct Sample {
    world: World,
    id: RunId,
}

impl Sample {
    fn of(steps: Vec<Spec>) -> Sample {
        Sample::in_book(main_book(steps))
    }

    fn in_book(book: windlass_core::runbook::Runbook) -> Sample {
        let mut world = World::new(book);
        // Samples are made by single decisions, so what follows from those is left over.
        world.follow_max = Some(FOLLOW_MAX);
        let id = world.start();
        Sample { world, id }
    }

    /// A run that exists and was not begun: the turn that creates one begins it, so only half of it is done here.
    fn pending(needs_lock: bool) -> Sample {
        Sample::pending_in(held_book(needs_lock), needs_lock)
    }

    fn pending_in(book: windlass_core::runbook::Runbook, needs_lock: bool) -> Sample {
        let mut world = World::new(book);
        // Samples are made by single decisions, so what follows from those is left over.
        world.follow_max = Some(FOLLOW_MAX);
        let mut create = world.create("main", serde_json::Value::Null);
        create.deadline_at = needs_lock.then(|| world.at + Span::mins(5));
        let mut ids = || 1;
        let mut given = Given {
            at: world.at,
            by: &Actor::SYSTEM,
            policy: world.policy,
            lease_ttl: Span::secs(30),
            evaluate: &Paths,
            ids: &mut ids,
        };
        let id = create.id;
        let outcome = turn::decide(&world.state, &Command::Create(Box::new(create)), &mut given).unwrap();
        let at = world.at;
        world.state.apply(&outcome.facts, at);
        Sample { world, id }
    }

    fn then(mut self, act: impl FnOnce(&mut World, RunId)) -> Sample {
        act(&mut self.world, self.id);
        self
    }

    /// The step the inputs are about: the one the run is at.
    fn step(&self) -> String {
        self.world.run(self.id).current_step().map_or("a".to_string(), ToString::to_string)
    }

    fn epoch(&self) -> u64 {
        self.world.run(self.id).step(&name(&self.step())).map_or(1, |step| step.epoch)
    }
}

/// One step, in a pipeline that is held by a lock where asked.
fn held_book(locked: bool) -> windlass_core::runbook::Runbook {
    overlapping_book(locked, Overlap::Queue)
}

fn overlapping_book(locked: bool, overlap: Overlap) -> windlass_core::runbook::Runbook {
    let mut main = pipeline(vec![run("a")], vec![], vec![]);
    main.lock = locked
        .then(|| windlass_core::runbook::LockUse { name: literal(serde_json::json!("whole")), overlap });
    book(vec![("main", main)])
}

fn outsider_takes(world: &mut World, lock: &str) {
    let holder = Holder::Outside(name("ann"));
    let input = lock::Input::Acquire(lock::Ask { holder, metadata: None, wait: false, give_up_at: None });
    world.send(&Command::Lock { lock: scoped(lock), input }).unwrap();
}

/// A run that needs another one, which is at its only step.
fn blocked_on_run() -> Sample {
    let mut world = World::new(main_book(vec![run("a")]));
    // Samples are made by single decisions, so what follows from those is left over.
    world.follow_max = Some(FOLLOW_MAX);
    let needed = world.start();
    let mut create = world.create("main", serde_json::Value::Null);
    create.needs = vec![needed];
    world.send(&Command::Create(Box::new(create.clone()))).unwrap();
    Sample { world, id: create.id }
}

fn blocked_on_lock() -> Sample {
    let mut world = World::new(held_book(true));
    // Samples are made by single decisions, so what follows from those is left over.
    world.follow_max = Some(FOLLOW_MAX);
    outsider_takes(&mut world, "whole");
    let id = world.start();
    Sample { world, id }
}

fn event_wait(id: &str, timeout: Option<Span>) -> Spec {
    let event = name("go");
    wait(id, WaitFor::Event { event, key: None, timeout, continue_on_timeout: false })
}

fn lost(sample: &mut Sample) -> Result<(), Refusal> {
    let (step, epoch) = (sample.step(), sample.epoch());
    sample.world.report(sample.id, &step, epoch, Report::Lost { last_seen: None }).map(drop)
}

/// A lost write that nobody can ask about.
fn unknown() -> Sample {
    let mut sample = Sample::of(vec![write("a")]).then(|world, id| {
        world.decide_policy(id, "a", Verdict::Allow);
        world.lease(id, "a");
    });
    lost(&mut sample).unwrap();
    sample
}

fn states() -> Vec<(&'static str, Sample)> {
    let one = || Sample::of(vec![run("a")]);
    let retried = || Sample::of(vec![run("a").retry(2, Span::secs(10))]);
    let suspend =
        |world: &mut World, run: RunId| drop(world.send(&Command::Suspend { run, reason: None }).unwrap());
    let leased = |world: &mut World, id: RunId| drop(world.lease(id, "a"));
    let fail = |world: &mut World, id: RunId| world.fail(id, "a", "no");
    let cancel = |world: &mut World, id: RunId| drop(world.cancel(id).unwrap());
    let approve_it = |world: &mut World, id: RunId| {
        let open = world.open_approval(id, "a");
        world.decide(id, open.id, approval::Verdict::Approved, open.action_hash, "bob").unwrap();
    };
    let calling = || {
        let child = pipeline(vec![run("c")], vec![], vec![]);
        let main = pipeline(vec![call("a", "child", &[])], vec![], vec![]);
        Sample::in_book(book(vec![("main", main), ("child", child)]))
    };
    vec![
        ("pending", Sample::pending(false)),
        ("pending", Sample::pending(false).then(suspend)),
        ("pending", Sample::pending(true).then(|world, _| outsider_takes(world, "whole"))),
        (
            "pending",
            Sample::pending_in(overlapping_book(true, Overlap::Skip), true)
                .then(|world, _| outsider_takes(world, "whole")),
        ),
        ("blocked", blocked_on_run()),
        ("blocked", blocked_on_run().then(suspend)),
        ("blocked", blocked_on_lock()),
        (
            "blocked",
            Sample::pending(true).then(|world, id| {
                outsider_takes(world, "whole");
                world.send(&Command::Begin(id)).unwrap();
            }),
        ),
        ("running", one()),
        ("running", one().then(leased)),
        ("running", one().then(leased).then(suspend)),
        ("running", one().then(leased).then(cancel)),
        ("running", retried().then(leased)),
        ("running", calling()),
        (
            "running",
            Sample::of(vec![write("a")]).then(|world, id| {
                world.decide_policy(id, "a", Verdict::Allow);
                world.lease(id, "a");
            }),
        ),
        ("awaiting_approval", Sample::of(vec![approve("a")])),
        ("awaiting_approval", Sample::of(vec![approve("a"), run("b")])),
        ("awaiting_approval", Sample::of(vec![approve("a")]).then(suspend)),
        (
            "awaiting_approval",
            Sample::of(vec![write("a")])
                .then(|world, id| world.decide_policy(id, "a", Verdict::NeedsApproval)),
        ),
        ("awaiting_approval", unknown()),
        ("waiting_external", Sample::of(vec![event_wait("a", None)])),
        ("waiting_external", Sample::of(vec![event_wait("a", Some(Span::mins(1))), run("b")])),
        ("waiting_external", Sample::of(vec![wait("a", WaitFor::Time { span: Span::mins(1) })])),
        ("waiting_external", one().then(suspend)),
        ("waiting_external", Sample::of(vec![write("a")])),
        ("failed_retryable", retried().then(fail)),
        ("completed", one().then(|world, id| world.work(id))),
        ("completed", Sample::of(vec![approve("a")]).then(approve_it)),
        ("failed", one().then(fail)),
        ("cancelled", one().then(cancel)),
        ("cancelled", Sample::of(vec![approve("a")]).then(cancel)),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Input {
    Begin,
    Cancel,
    Suspend,
    Resume,
    Retry,
    Fork,
    Signal,
    Lease,
    Done,
    Failed,
    Lost,
    Approve,
    Reject,
    Due,
    Resolve(Resolution),
    ChildEnded(Status),
    NeededEnded(Status),
    LockGranted,
}

fn inputs() -> Vec<(&'static str, Input)> {
    vec![
        ("begin", Input::Begin),
        ("cancel", Input::Cancel),
        ("suspend", Input::Suspend),
        ("resume", Input::Resume),
        ("retry", Input::Retry),
        ("fork", Input::Fork),
        ("signal", Input::Signal),
        ("lease", Input::Lease),
        ("done", Input::Done),
        ("failed", Input::Failed),
        ("lost", Input::Lost),
        ("approve", Input::Approve),
        ("reject", Input::Reject),
        ("due", Input::Due),
        ("resolve", Input::Resolve(Resolution::Done)),
        ("resolve", Input::Resolve(Resolution::Retry)),
        ("resolve", Input::Resolve(Resolution::Fail)),
        ("child_ended", Input::ChildEnded(Status::Completed)),
        ("child_ended", Input::ChildEnded(Status::Failed)),
        ("needed_ended", Input::NeededEnded(Status::Completed)),
        ("needed_ended", Input::NeededEnded(Status::Failed)),
        ("lock_granted", Input::LockGranted),
    ]
}

fn feed(sample: &mut Sample, input: Input) -> Result<(), Refusal> {
    let (run, step, epoch) = (sample.id, name(&sample.step()), sample.epoch());
    let new = RunId(sample.world.id());
    let report = |report| Command::Report { run, step: step.clone(), epoch, report, receipt: None };
    let decide = |world: &World, decision| {
        let found = world.run(run).rare().approvals.values().next();
        let attempt = approval::Attempt {
            decision,
            by: name("bob"),
            human: true,
            groups: Vec::new(),
            action_hash: found.map(|a| a.action_hash).unwrap_or_default(),
            channel: approval::Channel::Cli,
            reason: None,
            card: None,
        };
        let approval = found.map_or(ApprovalId(1), |a| a.id);
        Command::Decide { run, approval, input: approval::Input::Decide(attempt) }
    };
    let command = match input {
        Input::Begin => Command::Begin(run),
        Input::Cancel => return sample.world.cancel(run).map(drop),
        Input::Suspend => Command::Suspend { run, reason: None },
        Input::Resume => Command::Resume { run, message: None, vars: None },
        Input::Retry => Command::Descend { run, new, from: None, runbook: None },
        Input::Fork => Command::Descend { run, new, from: Some(step), runbook: None },
        Input::Signal => {
            let data = serde_json::json!(1);
            Command::Signal { run, name: name("go"), key: None, data, event_id: None }
        }
        Input::Lease => {
            let (owner, reserve) = (name("ex2"), Default::default());
            Command::Lease { run, step, owner, agent: None, reserve }
        }
        Input::Done => report(Report::Done { output: None, exit_code: Some(0.into()) }),
        Input::Failed => report(Report::Failed {
            failure: failure("no"),
            retryable: false,
            exit_code: Some(1.into()),
            signal: None,
        }),
        Input::Lost => report(Report::Lost { last_seen: None }),
        Input::Approve => decide(&sample.world, approval::Verdict::Approved),
        Input::Reject => decide(&sample.world, approval::Verdict::Rejected),
        Input::Due => {
            let due = sample.world.run(run).due();
            sample.world.at = due.unwrap_or(sample.world.at + Span::hours(2));
            Command::Tick(StreamId::Run(run))
        }
        Input::Resolve(resolution) => {
            Command::Resolve { run, step, resolution, probed: false, reason: None, output: None }
        }
        Input::ChildEnded(status) => {
            let child = sample.world.run(run).step(&step).and_then(|step| step.child()).unwrap_or(RunId(1));
            let told = Told::RunEnded { run: child, step: Some(step), status, outputs: None, error: None };
            Command::Tell { run, told }
        }
        // The run that it needs really completes; that it did not is hearsay, which begin would not ask about again.
        Input::NeededEnded(Status::Completed) if !sample.world.run(run).born.needs.is_empty() => {
            let needed = sample.world.run(run).born.needs[0];
            sample.world.work(needed);
            return Ok(());
        }
        Input::NeededEnded(status) => {
            let needed = sample.world.run(run).born.needs.first().copied().unwrap_or(RunId(1));
            let told = Told::RunEnded { run: needed, step: None, status, outputs: None, error: None };
            Command::Tell { run, told }
        }
        Input::LockGranted => {
            let told = Told::LockGranted { step: None, lock: name("whole"), epoch: 7 };
            Command::Tell { run, told }
        }
    };
    sample.world.send(&command).map(drop)
}

#[test]
fn the_table_of_runs_is_what_happens() {
    testing::Proof {
        name: "run",
        about: "One durable execution of a pipeline. Its status follows from its steps: a row says where the run \
                stands after the turn that the input made, and the way there may lead through `running`. `due` is a \
                tick at the run's own next time, `lost` a lease that ran out.",
        table: TABLE,
        states: states(),
        inputs: inputs(),
    }
    .check(|sample, input| {
        let mut sample = sample.clone();
        let before = sample.world.state.clone();
        let fed = feed(&mut sample, *input);
        if let Err(refusal) = fed {
            assert!(before == sample.world.state, "{input:?} was refused and changed something");
            return Err(refusal.code().unwrap());
        }
        Ok(sample.world.status(sample.id).as_str())
    });
}

#[test]
fn samples_are_in_the_status_they_stand_for_and_cover_all_nine() {
    let mut seen = std::collections::BTreeSet::new();
    for (status, sample) in states() {
        assert_eq!(sample.world.status(sample.id).as_str(), status, "{:?}", sample.world.trace(sample.id));
        seen.insert(status);
    }
    assert_eq!(seen.len(), 9);
}

#[test]
fn what_the_table_of_runs_has_not_is_refused_with_its_code() {
    for (from, sample) in states() {
        for (input_name, input) in inputs() {
            let mut sample = sample.clone();
            let Err(refusal) = feed(&mut sample, input) else { continue };
            let code = refusal.code().unwrap();
            let terminal = sample.world.run(sample.id).is_terminal();
            let expected = if terminal { Code::RunTerminalState } else { Code::RunInvalidTransition };
            // What a run has not is not there, whatever its status: a step that was not reached, an approval that
            // nobody asked for. One that waits to be told what a step did says so.
            let unknown =
                code == Code::RunResumeFailed && (from, input_name) == ("awaiting_approval", "resume");
            assert!(
                code == expected || code == Code::NotFound || unknown,
                "{from} + {input_name}: {refusal}"
            );
        }
    }
}

#[test]
fn every_row_leads_where_the_design_lets_a_run_go() {
    for row in TABLE {
        let from = Status::parse(row.from).unwrap();
        for to in row.to {
            let to = Status::parse(to).unwrap();
            let way = from == to || !from.path_to(to).is_empty();
            assert!(way, "{} + {} → {to}: there is no such way", row.from, row.input);
        }
    }
}

#[test]
fn the_transitions_of_runs_are_those_of_the_design() {
    use Status as S;
    let design: BTreeMap<Status, Vec<Status>> = BTreeMap::from([
        (S::Pending, vec![S::Running, S::Blocked, S::Failed, S::Cancelled]),
        (S::Blocked, vec![S::Running, S::Failed, S::Cancelled]),
        (
            S::Running,
            vec![
                S::Completed,
                S::Failed,
                S::Cancelled,
                S::AwaitingApproval,
                S::WaitingExternal,
                S::FailedRetryable,
            ],
        ),
        (S::AwaitingApproval, vec![S::Running, S::Failed, S::Cancelled]),
        (S::WaitingExternal, vec![S::Running, S::Failed, S::Cancelled]),
        (S::FailedRetryable, vec![S::Running, S::Failed, S::Cancelled]),
    ]);
    let all = [
        S::Pending,
        S::Blocked,
        S::Running,
        S::AwaitingApproval,
        S::WaitingExternal,
        S::FailedRetryable,
        S::Completed,
        S::Failed,
        S::Cancelled,
    ];
    for from in all {
        for to in all {
            let has = design.get(&from).is_some_and(|list| list.contains(&to));
            assert_eq!(from.may_become(to), has, "{from} → {to}");
        }
        assert_eq!(from.is_terminal(), !design.contains_key(&from));
    }
}

#[test]
fn a_run_that_waits_for_its_lock_does_not_begin_without_it() {
    let mut sample = blocked_on_lock();
    feed(&mut sample, Input::Begin).unwrap();
    assert_eq!(sample.world.status(sample.id), Status::Blocked);
    let release = lock::Input::Release { holder: Holder::Outside(name("ann")), epoch: None };
    sample.world.send(&Command::Lock { lock: scoped("whole"), input: release }).unwrap();
    assert_eq!(sample.world.status(sample.id), Status::Running);
    assert_eq!(sample.world.step_status(sample.id, "a"), step::Status::Ready);
}
