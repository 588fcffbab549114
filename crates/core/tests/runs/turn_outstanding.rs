//! What is outstanding follows from the state: after a crash, after a bounded turn, and where streams must be loaded.

use crate::world::*;
use serde_json::json;
use std::collections::BTreeSet;
use windlass_core::attempt::Report;
use windlass_core::caps;
use windlass_core::digest::Digest;
use windlass_core::effect::Effect;
use windlass_core::guard::{GuardInputs, OnFailure};
use windlass_core::id::{Holder, ItemId, Name, RunId, Scoped, SessionId};
use windlass_core::machine::{Beats, Given};
use windlass_core::receipt::Semantics;
use windlass_core::run::{Actor, Status};
use windlass_core::schedule::Overlap;
use windlass_core::step::Resolution;
use windlass_core::stream::StreamId;
use windlass_core::time::{Millis, Span};
use windlass_core::turn::command::{Command, Fact, Pushed, Reply};
use windlass_core::turn::state::{Body, State};
use windlass_core::turn::{Driven, Driver, Found, Overlay, View};
use windlass_core::workspace::session;
use windlass_core::{approval, lock, queue, worker};

/// A runbook in which runs wait for policy, humans, locks, slots and each other.
fn entangled() -> windlass_core::runbook::Runbook {
    let child = pipeline(vec![run("c1").lock("db", Overlap::Queue)], Vec::new(), Vec::new());
    let main = pipeline(
        vec![
            parallel("both", vec![run("a").lock("db", Overlap::Queue), run("b").slots("pool", 1)]),
            call("c", "child", &[]),
            write("w").with(|def| def.effect = Some(Semantics::Reconcile)),
            approve("ok"),
        ],
        Vec::new(),
        vec![run("z")],
    );
    book(vec![("main", main), ("child", child)])
}

fn entangled_world() -> World {
    let mut world = World::new(entangled());
    let config = windlass_core::semaphore::Config { capacity: 1, ..Default::default() };
    let input = windlass_core::semaphore::Input::Configure(config);
    world.send(&Command::Semaphore { semaphore: scoped("pool"), input }).unwrap();
    let (queue, input) = (scoped("jobs"), queue::Input::Configure(queue::Settings::default()));
    world.send(&Command::Queue { queue, input }).unwrap();
    let settings = worker::Settings {
        queue: name("jobs"),
        pipeline: name("child"),
        runbook_hash: BOOK,
        project_root: String::new(),
        concurrency: 1,
        wake_on: Vec::new(),
        poll: None,
    };
    world.send(&Command::Worker { worker: scoped("w"), input: worker::Input::Start(settings) }).unwrap();
    world
}

/// The answer of the outside to an effect; none for what asks for no answer.
fn answer(effect: &Effect, policy: Digest) -> Option<Command> {
    Some(match effect {
        Effect::EvaluatePolicy { run, step, tool, action_hash, .. } => {
            let shared = tool.as_str() == "shell";
            let decided = windlass_core::event::PolicyDecided {
                pipeline_id: *run,
                step: (!shared).then(|| step.clone()),
                tool: tool.clone(),
                action_hash: *action_hash,
                ..allow_shell(policy)
            };
            Command::PolicyDecided(Box::new(decided))
        }
        Effect::GatherGuard { run, step, .. } => {
            Command::Guarded { run: *run, step: step.clone(), inputs: Box::new(GuardInputs::default()) }
        }
        Effect::Probe { run, step, .. } => Command::Resolve {
            run: *run,
            step: step.clone(),
            resolution: Resolution::Retry,
            probed: true,
            reason: None,
            output: None,
        },
        Effect::Stop { run, step, epoch, .. } => Command::Report {
            run: *run,
            step: step.clone(),
            epoch: *epoch,
            report: Report::Stopped,
            receipt: None,
        },
        Effect::Notify { .. } | Effect::ShowApproval { .. } => return None,
        other => panic!("nobody asked for {other:?}"),
    })
}

/// A small generator, so that a history is its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// One thing that somebody does.
fn act(world: &mut World, dice: &mut Dice, runs: &mut Vec<RunId>) {
    let open = world.state.outstanding();
    let answers: Vec<Command> = open.iter().filter_map(|effect| answer(effect, world.policy)).collect();
    let all: Vec<RunId> = world
        .state
        .streams()
        .filter_map(|(id, _)| if let StreamId::Run(id) = id { Some(id) } else { None })
        .collect();
    match dice.roll(10) {
        0 if runs.len() < 4 => {
            // Without what is usually decided beforehand, so that there is something to ask.
            let mut create = world.create("main", json!(null));
            create.policy.clear();
            runs.push(create.id);
            world.send(&Command::Create(Box::new(create))).unwrap();
        }
        1 if runs.len() < 6 => {
            let id = ItemId(world.id());
            let item =
                Pushed { id, data: json!({}), priority: 0, not_before: None, dedupe: None, from: None };
            world.send(&Command::Push { queue: scoped("jobs"), item: Box::new(item) }).unwrap();
        }
        2..=4 if !answers.is_empty() => {
            let _ = world.send(&answers[dice.roll(answers.len())]);
        }
        5..=7 if !all.is_empty() => {
            let id = all[dice.roll(all.len())];
            let Some(step) = world.leasable(id).first().cloned() else { return };
            let Ok(turn) = world.try_lease(id, &step, "ex") else { return };
            let Reply::Leased(lease) = turn.reply else { return };
            match dice.roll(6) {
                0 => drop(world.report(id, &step, lease.epoch, Report::Lost { last_seen: None })),
                1 => {}
                2 => drop(world.report(id, &step, lease.epoch, Report::Returned { reason: None })),
                _ => {
                    let report = Report::Done { output: None, exit_code: Some(0.into()) };
                    drop(world.report(id, &step, lease.epoch, report));
                }
            }
        }
        8 if !all.is_empty() && dice.roll(4) == 0 => drop(world.cancel(all[dice.roll(all.len())])),
        9 => {
            let asked = |id: &RunId| {
                let approvals = world.run(*id).rare().approvals.values();
                let open = |a: &&approval::Approval| a.status == approval::Status::Requested;
                approvals.clone().find(open).map(|a| (*id, a.id, a.action_hash))
            };
            if let Some((id, approval, hash)) = all.iter().find_map(asked) {
                drop(world.decide(id, approval, approval::Verdict::Approved, hash, "bob"));
            }
        }
        _ => {}
    }
}

#[test]
fn whatever_happened_outstanding_is_what_was_released_and_is_not_done() {
    for seed in 0..12 {
        let mut world = entangled_world();
        let (mut dice, mut runs) = (Dice(seed), Vec::new());
        for _ in 0..60 {
            act(&mut world, &mut dice, &mut runs);
            let open = world.state.outstanding();
            for effect in &open {
                let known = world.effects.contains(effect)
                    || matches!(effect, Effect::EvaluatePolicy { tool, .. } if tool.as_str() == "shell");
                assert!(known, "seed {seed}: {effect:?} was never released");
                let Some(command) = answer(effect, world.policy) else { continue };
                let turn = world.would(&command);
                assert!(turn.is_ok_and(|turn| !turn.facts.is_empty()), "seed {seed}: {effect:?} is done");
            }
            for effect in world.effects.iter().filter(|effect| !open.contains(effect)) {
                if matches!(effect, Effect::Execute(_)) {
                    continue;
                }
                let Some(command) = answer(effect, world.policy) else { continue };
                let shared =
                    matches!(effect, Effect::EvaluatePolicy { tool, .. } if tool.as_str() == "shell");
                let turn = world.would(&command);
                let moves =
                    turn.is_ok_and(|turn| turn.facts.iter().any(|f| f.event.tag() != "policy:decided"));
                assert!(!moves || shared, "seed {seed}: {effect:?} is still needed and not outstanding");
            }
        }
    }
}

#[test]
fn an_outside_that_lives_from_outstanding_alone_brings_every_run_to_its_end() {
    for seed in 100..106 {
        let mut world = entangled_world();
        let (mut dice, mut runs) = (Dice(seed), Vec::new());
        for _ in 0..40 {
            act(&mut world, &mut dice, &mut runs);
        }
        for _ in 0..400 {
            world.effects.clear();
            for effect in world.state.outstanding() {
                if let Some(command) = answer(&effect, world.policy) {
                    let _ = world.send(&command);
                }
            }
            let all: Vec<RunId> = world
                .state
                .streams()
                .filter_map(|(id, _)| if let StreamId::Run(id) = id { Some(id) } else { None })
                .collect();
            for id in all {
                // Whoever had a lease before the crash is gone.
                let lost: Vec<_> = windlass_core::attempt::held_by(world.run(id), &name("ex"))
                    .map(|(_, step, epoch)| (step.clone(), epoch))
                    .collect();
                for (step, epoch) in lost {
                    let _ = world.report(id, step.as_str(), epoch, Report::Lost { last_seen: None });
                }
                world.work(id);
                let open = |a: &&approval::Approval| a.status == approval::Status::Requested;
                let asked = world.run(id).rare().approvals.values().find(open).map(|a| (a.id, a.action_hash));
                if let Some((approval, hash)) = asked {
                    drop(world.decide(id, approval, approval::Verdict::Approved, hash, "bob"));
                }
            }
        }
        for (_, stream) in world.state.streams() {
            if let Body::Run(run) = &stream.body {
                assert!(run.is_terminal(), "seed {seed}: {:?}", world.trace(run.id()));
            }
            if let Body::Lock(lock) = &stream.body {
                assert_eq!(lock.holder(), None);
            }
        }
        assert!(world.state.outstanding().is_empty(), "{:?}", world.state.outstanding());
        world.check_replay();
    }
}

#[test]
fn a_session_that_works_for_nobody_is_to_be_killed() {
    let mut world = World::new(main_book(vec![run("a")]));
    let id = world.start();
    let lease = world.lease(id, "a");
    let session = SessionId(world.id());
    let owner = session::Owner { run: id, step: name("a"), epoch: lease.epoch, agent: None, workspace: None };
    let open = session::Input::Open(owner);
    world.send(&Command::Session { session, tenant: name("default"), input: open }).unwrap();
    assert!(world.state.outstanding().is_empty());
    world.report(id, "a", lease.epoch, Report::Done { output: None, exit_code: None }).unwrap();
    assert_eq!(world.state.outstanding(), [Effect::Kill { session }]);
    let gone = Command::Session { session, tenant: name("default"), input: session::Input::Gone };
    world.send(&gone).unwrap();
    assert!(world.state.outstanding().is_empty());
}

/// What can be seen of a world without its ids.
fn summary(world: &World) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (id, stream) in world.state.streams() {
        match &stream.body {
            Body::Run(run) => {
                lines.push(format!(
                    "{} {} {:?}",
                    run.born.home.pipeline,
                    run.status(),
                    world.trace(run.id())
                ));
            }
            Body::Lock(lock) => {
                lines.push(format!("{id} {} {}", lock.holder().is_some(), lock.waiters.len()));
            }
            Body::Semaphore(known) => lines.push(format!("{id} {} {}", known.used(), known.waiters.len())),
            Body::Item(item) => lines.push(format!("item {}", item.state_name())),
            Body::Worker(worker) => lines.push(format!("{id} {}", worker.active.len())),
            _ => {}
        }
    }
    lines.sort();
    lines
}

/// A story with locks, slots, calls, needs, items and a cancel.
fn story(follow_max: Option<usize>) -> Vec<String> {
    let mut world = entangled_world();
    world.follow_max = follow_max;
    let outside = Holder::Outside(name("ci"));
    let ask = lock::Ask { holder: outside.clone(), metadata: None, wait: true, give_up_at: None };
    world.send(&Command::Lock { lock: scoped("db"), input: lock::Input::Acquire(ask) }).unwrap();
    let first = world.start();
    world.catch_up();
    let second = world.start();
    world.catch_up();
    let mut create = world.create("child", json!(null));
    create.needs = vec![first];
    let third = create.id;
    world.send(&Command::Create(Box::new(create))).unwrap();
    world.catch_up();
    for _ in 0..2 {
        let id = ItemId(world.id());
        let item = Pushed { id, data: json!({}), priority: 0, not_before: None, dedupe: None, from: None };
        world.send(&Command::Push { queue: scoped("jobs"), item: Box::new(item) }).unwrap();
        world.catch_up();
    }
    let input = lock::Input::Release { holder: outside, epoch: None };
    world.send(&Command::Lock { lock: scoped("db"), input }).unwrap();
    world.catch_up();
    for round in 0..40 {
        let all: Vec<RunId> = world
            .state
            .streams()
            .filter_map(|(id, _)| if let StreamId::Run(id) = id { Some(id) } else { None })
            .collect();
        for effect in world.state.outstanding() {
            if let Some(command) = answer(&effect, world.policy) {
                let _ = world.send(&command);
                world.catch_up();
            }
        }
        for id in all {
            while let Some(step) = world.leasable(id).first().cloned() {
                let lease = world.lease(id, &step);
                world.catch_up();
                let report = Report::Done { output: None, exit_code: None };
                world.report(id, &step, lease.epoch, report).unwrap();
                world.catch_up();
            }
            if round == 20 && id == second {
                drop(world.cancel(id));
                world.catch_up();
            }
            let open = |a: &&approval::Approval| a.status == approval::Status::Requested;
            let asked = world.run(id).rare().approvals.values().find(open).map(|a| (a.id, a.action_hash));
            if let Some((approval, hash)) = asked.filter(|_| id == first && round > 20) {
                drop(world.decide(id, approval, approval::Verdict::Approved, hash, "bob"));
                world.catch_up();
            }
        }
    }
    assert_eq!(world.status(first), Status::Completed, "{:?}", world.trace(first));
    assert_eq!(world.status(second), Status::Cancelled, "{:?}", world.trace(second));
    assert_eq!(world.status(third), Status::Completed, "{:?}", world.trace(third));
    world.check_replay();
    summary(&world)
}

#[test]
fn turns_of_any_bound_come_to_the_same_end() {
    let whole = story(None);
    for bound in 0..4 {
        assert_eq!(story(Some(bound)), whole, "bound {bound}");
    }
}

/// A view that has no stream until it was asked for.
struct Forgetful {
    all: State,
    loaded: BTreeSet<StreamId>,
}

impl View for Forgetful {
    fn find(&self, stream: &StreamId) -> Found<'_> {
        if self.loaded.contains(stream) { self.all.find(stream) } else { Found::Unloaded }
    }
    fn beats(&self) -> &Beats {
        self.all.beats()
    }
    fn dependents(&self, run: &windlass_core::run::Run) -> Vec<RunId> {
        self.all.dependents(run)
    }
    fn best(&self, queue: &Scoped, n: usize) -> Vec<ItemId> {
        self.all.best(queue, n)
    }
    fn depth(&self, queue: &Scoped, key: Option<&Name>) -> (u64, Option<ItemId>) {
        self.all.depth(queue, key)
    }
    fn consumers(&self, queue: &Scoped) -> Vec<Scoped> {
        self.all.consumers(queue)
    }

    fn deployments(&self, tenant: &Name, namespace: &Name) -> Vec<Scoped> {
        self.all.deployments(tenant, namespace)
    }
    fn admit_run(
        &self,
        tenant: &Name,
        runbook: &Digest,
        beside: &[Digest],
        at: Millis,
    ) -> Result<(), caps::Error> {
        self.all.admit_run(tenant, runbook, beside, at)
    }
    fn admit_step(&self, tenant: &Name, runbook: &Digest) -> Result<(), caps::Error> {
        self.all.admit_step(tenant, runbook)
    }
    fn awaiting(&self, tenant: &Name, namespace: &Name, name: &Name, key: Option<&Name>) -> Vec<RunId> {
        self.all.awaiting(tenant, namespace, name, key)
    }
    fn caps(&self, tenant: &Name) -> caps::Caps {
        self.all.caps(tenant)
    }

    fn kept(&self, tenant: &Name) -> caps::Kept {
        self.all.kept(tenant)
    }
    fn newest_run(&self, tenant: &Name, namespace: &Name, pipeline: &Name) -> Option<RunId> {
        self.all.newest_run(tenant, namespace, pipeline)
    }
}

impl Overlay for Forgetful {
    fn open(&mut self, at: Millis) {
        self.all.open(at);
    }
    fn looked(&mut self, stream: &StreamId, at: Millis) {
        self.all.looked(stream, at);
    }
    fn woken_by(&self, facts: &[Fact]) -> Vec<Scoped> {
        self.all.woken_by(facts)
    }

    fn woken(&mut self) -> Vec<Scoped> {
        self.all.woken()
    }
    fn apply(&mut self, facts: &[Fact], at: Millis) {
        for fact in facts {
            assert!(self.loaded.contains(&fact.stream), "{} was decided unseen", fact.stream);
        }
        self.all.apply(facts, at);
    }
}

/// Drives a command on a view that forgets everything between two turns, loading what it asks for.
fn load_and_drive(state: &State, command: &Command, at: Millis, mut next_id: u128) -> (State, usize) {
    let mut view = Forgetful { all: state.clone(), loaded: BTreeSet::new() };
    let mut ids = || {
        next_id += 1;
        next_id
    };
    let mut given = Given {
        at,
        by: &Actor::SYSTEM,
        policy: POLICY,
        lease_ttl: Span::secs(30),
        evaluate: &Paths,
        ids: &mut ids,
    };
    let mut driver = Driver::new(command.clone());
    for asked in 0..1_000 {
        match driver.go(&mut view, &mut given).unwrap() {
            Driven::Done(turn) => {
                assert!(turn.left.is_empty());
                return (view.all, asked);
            }
            Driven::Paused(..) => panic!("nothing takes its time away"),
            Driven::Needs(paused, streams) => {
                assert!(streams.iter().any(|stream| !view.loaded.contains(stream)), "it asks in circles");
                view.loaded.extend(streams);
                driver = *paused;
            }
        }
    }
    panic!("it never has enough");
}

#[test]
fn a_view_that_forgets_is_asked_for_what_a_whole_run_needs_and_the_run_is_the_same() {
    let mut world = entangled_world();
    let mut other = world.clone();
    let create = world.create("main", json!(null));
    let id = create.id;
    let mut script = vec![Command::Create(Box::new(create))];
    let mut asked = 0;
    while let Some(command) = script.pop() {
        world.send(&command).unwrap();
        let (state, loads) =
            load_and_drive(&other.state, &command, other.at, 1_000_000 + asked as u128 * 1_000);
        (other.state, asked) = (state, asked + loads);
        assert_eq!(summary(&other), summary(&world));
        // Both have the same run, so what is next for one is next for the other; a called run has an id of its own.
        if let Some(step) = world.leasable(id).first().map(|step| name(step)) {
            let owner = name("ex");
            script.push(Command::Report {
                run: id,
                step: step.clone(),
                epoch: world.step(id, step.as_str()).epoch,
                report: Report::Done { output: None, exit_code: None },
                receipt: None,
            });
            script.push(Command::Lease { run: id, step, owner, agent: None, reserve: Default::default() });
        }
    }
    assert_eq!(world.step_status(id, "c"), windlass_core::step::Status::Running);
    assert!(asked > 10, "{asked}");
    let cancel = |world: &World| Command::Cancel {
        run: world.run(id).id(),
        initiator: windlass_core::run::Initiator::User,
        user: None,
        reason: None,
    };
    let command = cancel(&world);
    world.send(&command).unwrap();
    other.state = load_and_drive(&other.state, &command, other.at, 9_000_000).0;
    assert_eq!(summary(&other), summary(&world));
}

fn is_due(world: &World) -> bool {
    world.state.indexes().next_due().is_some_and(|due| due <= world.at)
}

#[test]
fn what_is_due_and_has_nothing_to_record_is_offered_once() {
    // An overdue attempt: its executor is told to stop, once.
    let slow = run("a").with(|def| def.timeout = Some(Span::secs(10)));
    let mut main = pipeline(vec![parallel("p", vec![slow, run("b")])], vec![], vec![]);
    main.deadline = Some(Span::mins(10));
    let mut world = World::new(book(vec![("main", main)]));
    let id = world.start();
    world.lease(id, "a");
    world.sleep(Span::secs(10));
    assert_eq!(world.stopped(id), ["a@1"]);
    assert!(!is_due(&world), "an engine's loop would spin");
    assert_eq!(world.state.indexes().next_due(), Some(world.run(id).born.deadline_at.unwrap()));
    world.sleep(Span::secs(10));
    assert_eq!(world.stopped(id), ["a@1"]);
    // Once the run has changed it is looked at again: a stop names its epoch, so a repeat does nothing.
    world.lease(id, "b");
    assert!(is_due(&world));
    world.sleep(Span::ZERO);
    assert_eq!(world.stopped(id), ["a@1", "a@1"]);
    assert!(!is_due(&world));
    // What comes later is due all the same.
    world.sleep(Span::mins(10));
    assert!(world.run(id).stopping.is_some(), "its deadline passed");
    world.check_replay();

    // A guard that blocks: its question is asked once for each time it is due.
    let guarded = run("a").with(|def| def.before = vec![guard("door", OnFailure::Block)]);
    let mut world = World::new(main_book(vec![guarded]));
    let id = world.start();
    let asked = |world: &World| {
        world.effects.iter().filter(|effect| matches!(effect, Effect::GatherGuard { .. })).count()
    };
    world.guarded(id, "a", "door", Some(false));
    assert_eq!(asked(&world), 1);
    world.sleep(Span::secs(5));
    assert_eq!((asked(&world), is_due(&world)), (2, false));
    world.sleep(Span::secs(5));
    assert_eq!(asked(&world), 2, "the question is on its way");
    world.guarded(id, "a", "door", Some(false));
    world.sleep(Span::secs(5));
    assert_eq!((asked(&world), is_due(&world)), (3, false));
    world.guarded(id, "a", "door", Some(true));
    assert_eq!(world.leasable(id), ["a"]);
    world.check_replay();
}

#[test]
fn heartbeats_of_those_who_hold_nothing_are_forgotten() {
    let mut world = World::new(main_book(vec![run("a"), run("b")]));
    let (id, at) = (world.start(), world.at);
    let holder = Holder::Outside(name("ci"));
    let ask = lock::Ask { holder: holder.clone(), metadata: None, wait: true, give_up_at: None };
    world.send(&Command::Lock { lock: scoped("door"), input: lock::Input::Acquire(ask) }).unwrap();
    let needed = [holder, Holder::Step(id, name("a")), Holder::Run(id)];
    needed.iter().for_each(|holder| world.state.beat(holder.clone(), at));
    for n in 0..10_000 {
        world.state.beat(Holder::Outside(name(&format!("passer-by-{n}"))), at);
        world.state.beat(Holder::Step(RunId(n), name("a")), at);
        assert!(world.state.beats.seen.len() <= 1_025, "{}", world.state.beats.seen.len());
    }
    assert!(needed.iter().all(|holder| world.state.beats.seen.contains_key(holder)));
}
