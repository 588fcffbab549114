//! Locks and semaphores through the turn: between runs, steps and outside holders.

use crate::world::*;
use windlass_core::code::Code;
use windlass_core::command::{Command, Reply};
use windlass_core::effect::Effect;
use windlass_core::id::{Holder, RunId};
use windlass_core::lock::{self, Lock, WAITERS_MAX};
use windlass_core::run::{Initiator, Status};
use windlass_core::schedule::Overlap;
use windlass_core::semaphore;
use windlass_core::state::Body;
use windlass_core::step;
use windlass_core::stream::StreamId;
use windlass_core::time::Span;

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
