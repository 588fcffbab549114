//! Locks and semaphores through the turn: between runs, steps and outside holders.

use crate::world::*;
use windlass_core::caps::NAMES_MAX;
use windlass_core::code::Code;
use windlass_core::effect::Effect;
use windlass_core::event::{
    LockAcquired, LockConfigured, LockReleased, PipelineSuspended, SemaphoreConfigured,
};
use windlass_core::id::{Holder, RunId, Scoped};
use windlass_core::lock::{self, Lock, WAITERS_MAX};
use windlass_core::run::{Initiator, Status};
use windlass_core::schedule::Overlap;
use windlass_core::semaphore;
use windlass_core::step;
use windlass_core::stream::StreamId;
use windlass_core::time::{Millis, Span};
use windlass_core::turn::command::{Command, Fact, Refusal, Reply};
use windlass_core::turn::state::Body;
use windlass_core::turn::{Overlay, Turn, View};

fn locked(overlap: Overlap) -> World {
    World::new(main_book(vec![run("a").lock("db", overlap)]))
}

fn outside(text: &str) -> Holder {
    Holder::Outside(name(text))
}

fn acquire(world: &mut World, holder: &Holder, give_up_at: Option<Span>) -> lock::Reply {
    let give_up_at = give_up_at.map(|span| world.at + span);
    let ask = lock::Ask { holder: holder.clone(), metadata: None, wait: true, give_up_at };
    let turn = world.send(&Command::Lock { lock: scoped("db"), input: lock::Input::Acquire(ask) }).unwrap();
    let Reply::Lock(reply) = turn.reply else { panic!("{:?}", turn.reply) };
    reply
}

fn release(world: &mut World, holder: &Holder) {
    let input = lock::Input::Release { holder: holder.clone(), epoch: None };
    world.send(&Command::Lock { lock: scoped("db"), input }).unwrap();
}

fn db(world: &World) -> &Lock {
    match &world.state.stream(&StreamId::Lock(scoped("db"))).unwrap().body {
        Body::Lock(lock) => lock,
        other => panic!("{other:?}"),
    }
}

fn step_holder(run: RunId) -> Holder {
    Holder::Step(run, name("a"))
}

fn declare(world: &mut World, capacity: u32) {
    let config = semaphore::Config { capacity, ..semaphore::Config::default() };
    let input = semaphore::Input::Configure(config);
    world.send(&Command::Semaphore { semaphore: scoped("pool"), input }).unwrap();
}

#[test]
fn a_lock_goes_from_hand_to_hand_in_the_order_of_the_line() {
    let mut world = locked(Overlap::Queue);
    let first = world.start();
    assert!(matches!(acquire(&mut world, &outside("ci"), None), lock::Reply::Queued { position: 1 }));
    let second = world.start();
    assert_eq!(world.status(second), Status::WaitingExternal);
    world.succeed(first, "a");
    assert_eq!(db(&world).holder(), Some(&outside("ci")));
    assert!(world.leasable(second).is_empty());
    release(&mut world, &outside("ci"));
    assert_eq!(db(&world).holder(), Some(&step_holder(second)));
    assert_eq!(world.leasable(second), ["a"]);
    world.work(second);
    assert_eq!(db(&world).holder(), None);
    world.check_replay();
}

#[test]
fn a_silent_outside_holder_loses_the_lock_to_the_step_that_waits_and_a_beating_one_keeps_it() {
    let mut world = locked(Overlap::Queue);
    acquire(&mut world, &outside("ci"), None);
    let id = world.start();
    world.sleep(Span::secs(50));
    let at = world.at;
    world.state.beat(outside("ci"), at);
    world.sleep(Span::secs(50));
    assert_eq!(db(&world).holder(), Some(&outside("ci")));
    world.sleep(Span::secs(10));
    assert_eq!(db(&world).holder(), Some(&step_holder(id)));
    assert_eq!(world.leasable(id), ["a"]);
    world.check_replay();
}

#[test]
fn a_broken_hold_fails_the_step_that_had_it_wherever_it_is() {
    let broken = Command::Lock { lock: scoped("db"), input: lock::Input::Break { epoch: None } };
    // Leased.
    let mut world = locked(Overlap::Queue);
    let id = world.start();
    world.lease(id, "a");
    let turn = world.send(&broken).unwrap();
    assert!(turn.effects.iter().any(|effect| matches!(effect, Effect::Stop { .. })));
    assert_eq!(world.step(id, "a").error.as_ref().unwrap().code.as_str(), Code::LockBusy.as_str());
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
    // Ready to be leased.
    let mut world = locked(Overlap::Queue);
    let id = world.start();
    world.send(&broken).unwrap();
    assert_eq!(world.status(id), Status::Failed);
    // On its way to its slots.
    let mut world = World::new(main_book(vec![run("a").lock("db", Overlap::Queue).slots("pool", 1)]));
    declare(&mut world, 1);
    let ask = semaphore::Ask { holder: outside("ci"), weight: 1, wait: true, give_up_at: None };
    world
        .send(&Command::Semaphore { semaphore: scoped("pool"), input: semaphore::Input::Acquire(ask) })
        .unwrap();
    let id = world.start();
    assert_eq!(world.step(id, "a").waiting.as_ref().unwrap().reason, step::Wait::Semaphore);
    world.send(&broken).unwrap();
    assert_eq!(world.status(id), Status::Failed);
    world.check_replay();
}

/// A run that holds its pipeline's lock, with a step done that can be taken back and the next one under way.
fn holding() -> (World, RunId) {
    let first = run("a").undo(run("back"));
    let mut main = pipeline(vec![first, run("b"), run("c")], vec![run("sorry")], vec![run("tidy")]);
    main.lock = Some(windlass_core::runbook::LockUse {
        name: literal(serde_json::json!("db")),
        overlap: Overlap::Queue,
    });
    let mut world = World::new(book(vec![("main", main)]));
    let max = lock::Config { max_hold_duration: Some(Span::mins(2)), ..lock::Config::default() };
    world.send(&Command::Lock { lock: scoped("db"), input: lock::Input::Configure(max) }).unwrap();
    let id = world.start();
    world.succeed(id, "a");
    (world, id)
}

/// What follows on the loss: what ran is stopped, the failure is handled, what was done is taken back, and the end tidied.
fn fails_for_its_lock(world: &mut World, id: RunId) {
    assert!(world.leasable(id).is_empty());
    world.stop(id, "b");
    let handled: Vec<String> = ["sorry", "back", "tidy"]
        .iter()
        .flat_map(|step| {
            let now = world.leasable(id);
            world.succeed(id, step);
            now
        })
        .collect();
    assert_eq!(handled, ["sorry", "back", "tidy"]);
    assert_eq!(world.status(id), Status::Failed);
    let failure = &world.run(id).failure.as_ref().unwrap().1;
    assert_eq!(failure.code.as_str(), Code::LockBusy.as_str());
    assert_eq!(failure.message, "the hold on `db` was taken away");
    world.check_replay();
}

#[test]
fn a_run_that_holds_its_lock_too_long_is_stopped_and_fails() {
    let (mut world, id) = holding();
    world.lease(id, "b");
    let second = world.start();
    assert_eq!(world.status(second), Status::Blocked);
    world.sleep(Span::mins(2));
    assert_eq!(world.stopped(id), ["b@1"]);
    assert_eq!(db(&world).holder(), Some(&Holder::Run(second)));
    fails_for_its_lock(&mut world, id);
    assert_eq!(db(&world).holder(), Some(&Holder::Run(second)), "what it lost is not given back by it");
}

#[test]
fn a_run_whose_lock_is_broken_is_stopped_and_fails() {
    let (mut world, id) = holding();
    world.lease(id, "b");
    world.send(&Command::Lock { lock: scoped("db"), input: lock::Input::Break { epoch: None } }).unwrap();
    assert_eq!(world.stopped(id), ["b@1"]);
    assert!(world.tags(id).contains(&"hold:broken".to_string()));
    fails_for_its_lock(&mut world, id);
}

/// The run was not told, as when the process ended in between: it hears of it before its next step begins.
#[test]
fn a_run_that_was_not_told_of_its_lost_lock_starts_nothing_more() {
    let (mut world, id) = holding();
    let lost = LockReleased { lock: name("db"), holder: Holder::Run(id), epoch: 1, broken: true };
    world.fact(StreamId::Lock(scoped("db")), lost);
    assert!(!matches!(world.try_lease(id, "b", "ex1").unwrap().reply, Reply::Leased(_)));
    assert!(world.run(id).stopping.is_some());
    assert_eq!(world.step_status(id, "b"), step::Status::Cancelled);

    let (mut world, id) = holding();
    let lost = LockReleased { lock: name("db"), holder: Holder::Run(id), epoch: 1, broken: true };
    world.fact(StreamId::Lock(scoped("db")), lost);
    world.catch_up();
    assert_eq!(world.step_status(id, "b"), step::Status::Cancelled, "recovery finds it");
}

#[test]
fn an_undeclared_semaphore_or_one_that_is_too_small_fails_the_step_with_a_clear_error() {
    for (capacity, weight) in [(None, 1), (Some(2), 3)] {
        let mut world = World::new(main_book(vec![run("a").slots("pool", weight)]));
        if let Some(capacity) = capacity {
            declare(&mut world, capacity);
        }
        let id = world.start();
        assert_eq!(world.status(id), Status::Failed);
        let error = world.step(id, "a").error.clone().unwrap();
        assert!(!error.message.is_empty(), "{error:?}");
        world.check_replay();
    }
}

#[test]
fn a_full_line_fails_the_step_that_comes_to_it() {
    let mut world = locked(Overlap::Queue);
    world.records = false;
    acquire(&mut world, &outside("ci"), None);
    for n in 0..WAITERS_MAX {
        acquire(&mut world, &outside(&format!("w{n}")), None);
    }
    let id = world.start();
    assert_eq!(world.status(id), Status::Failed);
}

#[test]
fn slots_are_shared_by_weight_and_handed_over_in_the_same_turn() {
    let mut world = World::new(main_book(vec![run("a").slots("pool", 2)]));
    declare(&mut world, 4);
    let ids: Vec<_> = (0..4).map(|_| world.start()).collect();
    let ready =
        |world: &World| -> Vec<bool> { ids.iter().map(|id| !world.leasable(*id).is_empty()).collect() };
    assert_eq!(ready(&world), [true, true, false, false]);
    world.succeed(ids[1], "a");
    assert_eq!(ready(&world), [true, false, true, false]);
    world.cancel(ids[2]).unwrap();
    assert_eq!(ready(&world), [true, false, false, true]);
    declare(&mut world, 1);
    assert_eq!(ready(&world), [true, false, false, true], "lowering takes nothing away");
    world.check_replay();
}

#[test]
fn a_waiter_that_gives_up_leaves_the_line_by_the_clock() {
    let mut world = locked(Overlap::Queue);
    let id = world.start();
    acquire(&mut world, &outside("ci"), Some(Span::secs(5)));
    assert_eq!(db(&world).position(&outside("ci")), Some(1));
    world.sleep(Span::secs(5));
    assert_eq!(db(&world).position(&outside("ci")), None);
    world.work(id);
    assert_eq!(db(&world).holder(), None);
}

#[test]
fn overlap_skips_the_step_or_cancels_the_run_that_holds() {
    let mut world = locked(Overlap::Skip);
    let (first, second) = (world.start(), world.start());
    assert_eq!((world.status(first), world.status(second)), (Status::Running, Status::Completed));
    assert_eq!(world.step_status(second, "a"), step::Status::Skipped);

    let mut world = locked(Overlap::Cancel);
    let (first, second) = (world.start(), world.start());
    assert_eq!((world.status(first), world.leasable(second)), (Status::Cancelled, vec!["a".to_string()]));
    world.check_replay();
}

#[test]
fn a_second_begin_does_not_let_a_run_pass_its_lock() {
    let mut def = pipeline(vec![run("a")], Vec::new(), Vec::new());
    def.lock = run("x").lock("db", Overlap::Queue).def.lock;
    let mut world = World::new(book(vec![("main", def)]));
    let (first, second) = (world.start(), world.start());
    assert_eq!((world.status(first), world.status(second)), (Status::Running, Status::Blocked));
    world.send(&Command::Begin(second)).unwrap();
    assert_eq!(world.status(second), Status::Blocked);
    world.work(first);
    assert_eq!(world.status(second), Status::Running);
    world.work(second);
    assert_eq!(db(&world).holder(), None);
    world.check_replay();
}

/// One step, in a pipeline that is held by the lock `db`.
fn whole(overlap: Overlap) -> World {
    let mut main = pipeline(vec![run("a")], vec![], vec![]);
    main.lock = Some(windlass_core::runbook::LockUse { name: literal(serde_json::json!("db")), overlap });
    World::new(book(vec![("main", main)]))
}

#[test]
fn a_pipeline_that_skips_ends_at_once_while_another_run_has_its_lock() {
    let mut world = whole(Overlap::Skip);
    let first = world.start();
    assert_eq!(world.leasable(first), ["a"]);
    let second = world.start();
    assert_eq!(world.status(second), Status::Cancelled);
    let stop = world.run(second).stopping.clone().unwrap();
    assert_eq!((stop.initiator, stop.reason.as_deref()), (Initiator::System, Some("overlap")));
    assert_eq!(db(&world).holder(), Some(&Holder::Run(first)));
    assert_eq!(db(&world).position(&Holder::Run(second)), None);
    world.work(first);
    let third = world.start();
    assert_eq!(world.leasable(third), ["a"]);
    world.check_replay();
}

#[test]
fn a_pipeline_that_cancels_stops_the_holder_and_waits_in_line() {
    let mut world = whole(Overlap::Cancel);
    let first = world.start();
    world.lease(first, "a");
    let second = world.start();
    assert_eq!(world.status(second), Status::Blocked);
    assert!(world.run(first).stopping.is_some());
    assert_eq!(world.stopped(first), ["a@1"]);
    // It is asked again, as recovery does: whoever has the lock by then is not stopped for it.
    world.stop(first, "a");
    assert_eq!(world.status(first), Status::Cancelled);
    assert_eq!(world.leasable(second), ["a"]);
    world.check_replay();

    let mut world = whole(Overlap::Cancel);
    acquire(&mut world, &outside("ci"), None);
    let first = world.start();
    let second = world.start();
    release(&mut world, &outside("ci"));
    assert_eq!(world.leasable(first), ["a"]);
    world.send(&Command::OustHolder { lock: scoped("db"), by: Holder::Run(second) }).unwrap();
    assert!(world.run(first).stopping.is_none(), "a second word ousts nobody");
    world.check_replay();
}

fn suspend(world: &mut World, run: RunId) {
    world.send(&Command::Suspend { run, reason: None }).unwrap();
}

fn resume(world: &mut World, run: RunId) {
    world.send(&Command::Resume { run, message: None, vars: None }).unwrap();
}

#[test]
fn a_suspended_step_leaves_the_line_and_stands_in_it_again_when_its_run_is_resumed() {
    let mut world = locked(Overlap::Queue);
    let ids: Vec<RunId> = (0..3).map(|_| world.start()).collect();
    suspend(&mut world, ids[1]);
    assert_eq!(db(&world).position(&step_holder(ids[1])), None);
    world.catch_up();
    assert_eq!(db(&world).position(&step_holder(ids[1])), None, "recovery leaves it out, too");
    world.succeed(ids[0], "a");
    assert_eq!(db(&world).holder(), Some(&step_holder(ids[2])));
    resume(&mut world, ids[1]);
    assert_eq!(db(&world).position(&step_holder(ids[1])), Some(1));
    world.work(ids[2]);
    world.work(ids[1]);
    assert_eq!(world.status(ids[1]), Status::Completed);
    world.check_replay();
}

#[test]
fn a_suspended_step_leaves_the_line_for_slots() {
    let mut world = World::new(main_book(vec![run("a").slots("pool", 1)]));
    declare(&mut world, 1);
    let ids: Vec<RunId> = (0..3).map(|_| world.start()).collect();
    suspend(&mut world, ids[1]);
    world.succeed(ids[0], "a");
    assert_eq!(world.leasable(ids[2]), ["a"]);
    resume(&mut world, ids[1]);
    world.work(ids[2]);
    assert_eq!(world.leasable(ids[1]), ["a"]);
    world.check_replay();
}

#[test]
fn a_suspended_run_that_waits_for_its_lock_lets_others_pass() {
    let mut world = whole(Overlap::Queue);
    let ids: Vec<RunId> = (0..3).map(|_| world.start()).collect();
    suspend(&mut world, ids[1]);
    world.catch_up();
    world.send(&Command::Begin(ids[1])).unwrap();
    assert_eq!(db(&world).position(&Holder::Run(ids[1])), None);
    world.work(ids[0]);
    assert_eq!((world.status(ids[1]), world.leasable(ids[2])), (Status::Blocked, vec!["a".to_string()]));
    resume(&mut world, ids[1]);
    assert_eq!(db(&world).position(&Holder::Run(ids[1])), Some(1));
    world.work(ids[2]);
    world.work(ids[1]);
    assert_eq!(world.status(ids[1]), Status::Completed);
    assert_eq!(db(&world).holder(), None);
    world.check_replay();
}

/// The lock was granted just before, and the run has not been told.
#[test]
fn what_a_suspended_run_is_granted_all_the_same_goes_on_to_the_next() {
    let mut world = locked(Overlap::Queue);
    let ids: Vec<RunId> = (0..2).map(|_| world.start()).collect();
    suspend(&mut world, ids[1]);
    let to_it = LockAcquired {
        lock: name("db"),
        holder: step_holder(ids[1]),
        epoch: 2,
        queued: true,
        metadata: None,
    };
    world.succeed(ids[0], "a");
    world.fact(StreamId::Lock(scoped("db")), to_it);
    world.catch_up();
    assert_eq!(db(&world).holder(), None);
    resume(&mut world, ids[1]);
    assert_eq!(world.leasable(ids[1]), ["a"]);
}

fn caller() -> World {
    let main = pipeline(vec![call("c", "child", &[]), run("z")], vec![], vec![]);
    let child = pipeline(vec![call("d", "leaf", &[]), run("c2")], vec![], vec![]);
    let leaf = pipeline(vec![run("c1")], vec![], vec![]);
    World::new(book(vec![("main", main), ("child", child), ("leaf", leaf)]))
}

#[test]
fn a_run_is_suspended_and_resumed_with_what_it_called() {
    let mut world = caller();
    let id = world.start();
    let child = world.child(id, "c");
    let leaf = world.child(child, "d");
    world.lease(leaf, "c1");
    suspend(&mut world, id);
    assert!(world.run(child).suspended && world.run(leaf).suspended);
    world
        .report(
            leaf,
            "c1",
            1,
            windlass_core::attempt::Report::Done { output: None, exit_code: Some(0.into()) },
        )
        .unwrap();
    assert_eq!(world.status(leaf), Status::WaitingExternal, "nothing more of it starts, not even its end");
    for run in [id, child] {
        assert_eq!(world.status(run), Status::WaitingExternal);
        assert_eq!(world.run(run).reason().as_deref(), Some("suspended"));
    }
    let refused = world.send(&Command::Resume { run: child, message: None, vars: None }).unwrap_err();
    assert_eq!(refused.code(), Some(Code::RunInvalidTransition));
    resume(&mut world, id);
    assert!(!world.run(child).suspended);
    assert_eq!((world.status(leaf), world.leasable(child)), (Status::Completed, vec!["c2".to_string()]));
    world.work(child);
    world.work(id);
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}

/// As when the process ended between the two.
#[test]
fn a_called_run_that_was_not_told_is_suspended_when_that_is_found() {
    let mut world = caller();
    let id = world.start();
    let child = world.child(id, "c");
    world.fact(StreamId::Run(id), PipelineSuspended { id, reason: None });
    world.catch_up();
    assert!(world.run(child).suspended);
    world.check_replay();
}

#[test]
fn a_group_whose_lock_is_broken_stops_its_members_and_fails_for_that() {
    let locked =
        |group: Spec| World::new(main_book(vec![group.lock("db", Overlap::Queue).retry(2, Span::secs(1))]));
    let list = literal(serde_json::json!([1, 2]));
    let inner = || run("i").foreach(list.clone(), 1, false);
    for group in [
        steps("g", vec![run("a"), run("b")]),
        parallel("g", vec![run("a"), inner()]),
        strategy("g", vec![(run("a"), vec![]), (run("b"), vec![])]),
        steps("g", vec![parallel("p", vec![run("a"), run("b")]), run("c")]),
    ] {
        let mut world = locked(group);
        let id = world.start();
        world.lease(id, "a");
        world.send(&Command::Lock { lock: scoped("db"), input: lock::Input::Break { epoch: None } }).unwrap();
        world.catch_up();
        assert_eq!(world.stopped(id).first().map(String::as_str), Some("a@1"));
        assert!(world.leasable(id).is_empty(), "nothing more of it starts");
        world.stop(id, "a");
        let failure = world.step(id, "g").error.clone().unwrap();
        assert_eq!(failure.code.as_str(), Code::LockBusy.as_str());
        assert_eq!(failure.message, "the hold on `db` was taken away");
        assert_eq!((world.status(id), world.leasable(id).len()), (Status::Failed, 0));
        world.check_replay();
    }
}

/// Names so many locks and semaphores, without a turn for each.
fn name_many(world: &mut World, number: u64) {
    for n in 0..number {
        let (id, scoped) = (name(&format!("n{n}")), scoped(&format!("n{n}")));
        let lock = LockConfigured { lock: id.clone(), heartbeat_timeout_ms: 60_000, max_hold_ms: None };
        let semaphore = SemaphoreConfigured { semaphore: id, capacity: 1, heartbeat_timeout_ms: 60_000 };
        let streams = [StreamId::Lock(scoped.clone()), StreamId::Semaphore(scoped)];
        for (stream, event) in streams.into_iter().zip([lock.into(), semaphore.into()]) {
            let fact = Fact { stream, tenant: name("default"), event };
            world.state.apply(std::slice::from_ref(&fact), world.at);
        }
    }
}

#[test]
fn a_tenant_has_so_many_locks_and_semaphores_and_those_that_exist_go_on() {
    let mut world = locked(Overlap::Queue);
    // What is applied here is on no record.
    world.records = false;
    name_many(&mut world, NAMES_MAX - 1);
    let lock = |id: &str| {
        let ask =
            lock::Ask { holder: outside("ci"), metadata: None, wait: false, give_up_at: Some(Millis(0)) };
        Command::Lock { lock: Scoped::parse(id).unwrap(), input: lock::Input::Acquire(ask) }
    };
    let semaphore = |id: &str| {
        let config = semaphore::Config { capacity: 1, ..semaphore::Config::default() };
        let input = semaphore::Input::Configure(config);
        Command::Semaphore { semaphore: scoped(id), input }
    };
    let code = |refused: Result<Turn, Refusal>| refused.unwrap_err().code();
    // The last ones have a place.
    world.send(&lock("default/default/last")).unwrap();
    world.send(&semaphore("last")).unwrap();
    assert_eq!(world.state.kept(&name("default")).locks, NAMES_MAX);
    assert_eq!(code(world.send(&lock("default/default/more"))), Some(Code::CapExceeded));
    assert_eq!(code(world.send(&semaphore("more"))), Some(Code::CapExceeded));
    // A step is told, or it would wait for ever.
    let id = world.start();
    assert_eq!(world.step_status(id, "a"), step::Status::Failed);
    assert_eq!(world.error(id, "a"), format!("CAP_EXCEEDED: locks: {NAMES_MAX} is the most of a tenant"));
    // What is there is still used, what is given back without ever being taken takes no place, and another tenant has its own.
    world.send(&lock("default/default/n7")).unwrap();
    world.send(&Command::LetGoLock { lock: scoped("more"), holder: outside("ci") }).unwrap();
    world.send(&lock("acme/default/more")).unwrap();
    // One that leaves memory makes room.
    world.state.evict(&StreamId::Lock(scoped("n8")));
    world.send(&lock("default/default/more")).unwrap();
    world.check_indexes();
}
