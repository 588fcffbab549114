//! Deliveries through the turn: one run per key, the first answer for every repeat.

use crate::world::*;
use serde_json::json;
use windlass_core::code::Code;
use windlass_core::command::{Command, Refusal, Reply};
use windlass_core::digest::Digest;
use windlass_core::id::RunId;
use windlass_core::idempotency::{self, Source};
use windlass_core::run::Status;
use windlass_core::stream::StreamId;
use windlass_core::time::Span;

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
