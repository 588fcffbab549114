//! Deliveries through the turn: one run per key, the first answer for every repeat.

use crate::world::*;
use serde_json::json;
use windlass_core::caps::Caps;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::id::RunId;
use windlass_core::idempotency::{self, Source};
use windlass_core::run::Status;
use windlass_core::stream::StreamId;
use windlass_core::time::Span;
use windlass_core::turn::command::{ARRIVALS_MAX, Arrival, Command, Refusal, Reply, Signal};

fn deliver(world: &mut World, hash: u8, vars: serde_json::Value) -> (RunId, Result<Reply, Refusal>) {
    let create = Box::new(world.create("main", vars));
    let id = create.id;
    let (key, request_hash) = (scoped("gh:1"), Digest([hash; 32]));
    let command = Command::Deliver { key, source: Source::Github, request_hash, create };
    (id, world.send(&command).map(|turn| turn.reply))
}

fn runs(world: &World) -> usize {
    world.state.streams().filter(|(id, _)| matches!(id, StreamId::Run(_))).count()
}

fn world() -> World {
    World::new(main_book(vec![run("a")]))
}

#[test]
fn the_same_delivery_fifty_times_makes_one_run_and_gets_its_first_answer() {
    let mut world = world();
    let (first, reply) = deliver(&mut world, 1, json!(null));
    assert_eq!(reply, Ok(Reply::Created(first)));
    for n in 0..50 {
        let (_, reply) = deliver(&mut world, 1, json!(null));
        assert_eq!(reply, Ok(Reply::Known { run: Some(first), in_flight: false }));
        if n == 25 {
            world.work(first);
            assert_eq!(world.status(first), Status::Completed);
        }
    }
    assert_eq!(runs(&world), 1);
    world.check_replay();
}

#[test]
fn another_request_under_the_key_is_a_conflict() {
    let mut world = world();
    deliver(&mut world, 1, json!(null)).1.unwrap();
    let (_, reply) = deliver(&mut world, 2, json!(null));
    assert_eq!(reply.unwrap_err().code(), Some(Code::IdempotencyConflict));
    assert_eq!(runs(&world), 1);
}

#[test]
fn a_delivery_whose_run_cannot_be_made_claims_nothing() {
    let mut world = world();
    let (_, refused) = deliver(&mut world, 1, json!({ "ghost": 1 }));
    assert_eq!(refused.unwrap_err().code(), Some(Code::InvalidInput));
    let (id, reply) = deliver(&mut world, 2, json!(null));
    assert_eq!(reply, Ok(Reply::Created(id)));
}

fn arrival(hash: u8) -> Arrival {
    Arrival {
        key: scoped("gh:1"),
        source: Source::Github,
        request_hash: Digest([hash; 32]),
        creates: Vec::new(),
        signals: Vec::new(),
        to: None,
        response: Some(json!({ "runs": 2 })),
        failure: None,
        event: None,
        also: Vec::new(),
    }
}

fn signal(key: &str) -> Signal {
    Signal {
        tenant: name("acme"),
        namespace: name("prod"),
        name: name("merged"),
        key: Some(name(key)),
        data: json!(1),
        event_id: Some(name("e1")),
        user: None,
    }
}

fn arrive(world: &mut World, arrival: &Arrival) -> Result<Reply, Refusal> {
    world.send(&Command::Arrive(Box::new(arrival.clone()))).map(|turn| turn.reply)
}

#[test]
fn all_that_a_delivery_sets_going_is_one_commit_and_happens_once() {
    let mut world = world();
    let creates = vec![world.create("main", json!(null)), world.create("main", json!(null))];
    let first = creates[0].id;
    let all = Arrival { creates, signals: vec![signal("17"), signal("18"), signal("17")], ..arrival(1) };
    assert_eq!(arrive(&mut world, &all), Ok(Reply::Created(first)));
    assert_eq!(runs(&world), 2);
    let again = Arrival { creates: vec![world.create("main", json!(null))], ..all.clone() };
    assert_eq!(arrive(&mut world, &again), Ok(Reply::Known { run: Some(first), in_flight: false }));
    assert_eq!(runs(&world), 2);
    let other = Arrival { request_hash: Digest([9; 32]), ..again };
    assert_eq!(arrive(&mut world, &other).unwrap_err().code(), Some(Code::IdempotencyConflict));
    let refer = Command::Key { key: scoped("gh:1"), input: idempotency::Input::Refer };
    let reply = world.send(&refer).unwrap().reply;
    let response = Some(json!({ "runs": 2 }));
    assert_eq!(reply, Reply::Key(idempotency::Reply::Duplicate { run: Some(first), response }));
    let kept = world.events().iter().filter(|event| event.tag() == "signal:kept").count();
    assert_eq!(kept, 2, "one event for a name and key is kept once");
    world.check_replay();
}

#[test]
fn a_delivery_of_which_one_part_is_refused_leaves_nothing() {
    let mut world = world();
    let creates = vec![world.create("main", json!(null)), world.create("main", json!({ "ghost": 1 }))];
    let all = Arrival { creates, ..arrival(1) };
    assert_eq!(arrive(&mut world, &all).unwrap_err().code(), Some(Code::InvalidInput));
    assert_eq!(runs(&world), 0);
    let many = Arrival { signals: vec![signal("17"); ARRIVALS_MAX + 1], ..arrival(1) };
    assert_eq!(arrive(&mut world, &many).unwrap_err().code(), Some(Code::CapExceeded));
    let good = Arrival { signals: vec![signal("17")], ..arrival(2) };
    assert_eq!(arrive(&mut world, &good), Ok(Reply::Done));
}

#[test]
fn the_runs_of_one_delivery_are_counted_together() {
    let caps = Caps { max_runs_per_min: Some(2), ..Caps::default() };
    let mut own = main_book(vec![run("a")]);
    own.caps = Some(caps);
    let mut tenants = world();
    tenants.cap(caps);
    for mut world in [tenants, World::new(own)] {
        let of = |world: &mut World, hash, n| {
            let creates = (0..n).map(|_| world.create("main", json!(null))).collect();
            let arrival = Arrival { creates, key: scoped(&format!("gh:{hash}")), ..arrival(hash) };
            arrive(world, &arrival)
        };
        // More than a minute can ever have: time does not help.
        let refused = of(&mut world, 1, 3).unwrap_err();
        assert!(
            matches!(refused, Refusal::Error { code: Code::CapExceeded, retry_at: None, .. }),
            "{refused:?}"
        );
        assert_eq!(runs(&world), 0);
        of(&mut world, 2, 1).unwrap();
        let refused = of(&mut world, 3, 2).unwrap_err();
        assert!(matches!(refused, Refusal::Error { retry_at: Some(_), .. }), "{refused:?}");
        of(&mut world, 4, 1).unwrap();
        world.sleep(Span::mins(1));
        of(&mut world, 3, 2).unwrap();
        assert_eq!(runs(&world), 4);
    }
}

#[test]
fn a_delivery_that_fails_may_be_tried_three_times() {
    let mut world = world();
    let bad = Arrival { failure: Some("no such variable".into()), ..arrival(1) };
    for _ in 0..3 {
        assert_eq!(arrive(&mut world, &bad), Ok(Reply::Done));
    }
    assert_eq!(arrive(&mut world, &bad), Ok(Reply::Known { run: None, in_flight: false }));
    world.sleep(Span::hours(1));
    let creates = vec![world.create("main", json!(null))];
    let id = creates[0].id;
    assert_eq!(arrive(&mut world, &Arrival { creates, ..arrival(1) }), Ok(Reply::Created(id)));
    world.check_replay();
}

#[test]
fn an_event_for_a_run_is_taken_once() {
    let mut world = world();
    let id = world.start();
    let one = Arrival { signals: vec![signal("17")], to: Some(id), ..arrival(1) };
    assert_eq!(arrive(&mut world, &one), Ok(Reply::Done));
    assert_eq!(arrive(&mut world, &one), Ok(Reply::Known { run: None, in_flight: false }));
    assert_eq!(world.run(id).rare().signals.len(), 1);
    world.check_replay();
}

#[test]
fn it_is_noted_how_runs_move_for_those_who_ask() {
    let mut world = world();
    let id = world.start();
    assert!(world.state.indexes_mut().take_moves().is_empty(), "nobody asked yet");
    world.state.indexes_mut().note_moves();
    world.work(id);
    let moves = world.state.indexes_mut().take_moves();
    let seen: Vec<_> = moves.iter().map(|m| (m.run, m.from, m.to)).collect();
    assert_eq!(seen, [(id, Some(Status::Running), Status::Completed)]);
    assert!(world.state.indexes_mut().take_moves().is_empty());
}

#[test]
fn a_key_expires_by_the_clock_and_may_be_used_anew() {
    let mut world = world();
    let (first, _) = deliver(&mut world, 1, json!(null));
    let refer = Command::Key { key: scoped("gh:1"), input: idempotency::Input::Refer };
    let Reply::Key(idempotency::Reply::Duplicate { run, response }) = world.send(&refer).unwrap().reply
    else {
        panic!("no answer")
    };
    assert_eq!((run, response), (Some(first), Some(json!({ "id": first }))));
    world.sleep(Span::hours(8 * 24));
    assert_eq!(world.send(&refer).unwrap_err().code(), Some(Code::IdempotencyExpired));
    let (second, reply) = deliver(&mut world, 2, json!(null));
    assert_eq!(reply, Ok(Reply::Created(second)));
    assert_eq!(runs(&world), 2);
    world.check_replay();
}

#[test]
fn a_call_whose_run_cannot_be_made_fails_its_step() {
    let child = pipeline(vec![run("b")], Vec::new(), Vec::new());
    let main = pipeline(vec![call("c", "child", &[("ghost", literal(json!(1)))])], Vec::new(), Vec::new());
    let mut world = World::new(book(vec![("main", main), ("child", child)]));
    let id = world.start();
    assert_eq!(world.status(id), Status::Failed);
    let error = world.step(id, "c").error.clone().unwrap();
    assert!(error.message.contains("ghost"), "{error:?}");
    world.check_replay();
}
