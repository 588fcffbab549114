//! Signals by key: for whichever run waits, now or within a day.

use crate::world::*;
use serde_json::{Value, json};
use windlass_core::caps::{FAN_OUT_LEN_MAX, Kept};
use windlass_core::code::Code;
use windlass_core::id::RunId;
use windlass_core::machine::Given;
use windlass_core::run::{Actor, Status};
use windlass_core::runbook::{VarDef, WaitFor};
use windlass_core::signal::{KEPT_MAX, RUNS_MAX, TTL, stream};
use windlass_core::step::Status as S;
use windlass_core::stream::StreamId;
use windlass_core::time::Span;
use windlass_core::turn;
use windlass_core::turn::command::{Command, Refusal, Reply, Signal};
use windlass_core::turn::state::Body;

/// A run waits for `merged` with the key in `vars.pr`.
fn waiting() -> World {
    let event = WaitFor::Event {
        event: name("merged"),
        key: Some(expr("vars.pr")),
        timeout: None,
        continue_on_timeout: false,
    };
    let mut main = pipeline(vec![run("a"), wait("w", event), run("b")], Vec::new(), Vec::new());
    main.vars.insert(name("pr"), VarDef { default: Some(json!("17")), ..VarDef::default() });
    World::new(book(vec![("main", main)]))
}

fn signal(key: &str, event_id: Option<&str>, data: Value) -> Command {
    Command::SignalKey(Box::new(Signal {
        tenant: name("default"),
        namespace: name("default"),
        name: name("merged"),
        key: Some(name(key)),
        data,
        event_id: event_id.map(name),
        user: None,
    }))
}

fn send(world: &mut World, key: &str, data: Value) -> Result<Reply, Refusal> {
    world.send(&signal(key, None, data)).map(|turn| turn.reply)
}

fn kept(world: &World, key: &str) -> usize {
    let id = stream(&name("default"), &name("default"), &name("merged"), Some(&name(key)));
    match world.state.stream(&StreamId::Signal(id)).map(|stream| &stream.body) {
        Some(Body::Signal(signals)) => signals.kept.len(),
        Some(other) => panic!("{other:?}"),
        None => 0,
    }
}

/// A run that stands at its wait.
fn at_wait(world: &mut World, pr: &str) -> RunId {
    let id = world.start_with(json!({ "pr": pr }));
    world.succeed(id, "a");
    id
}

#[test]
fn every_run_that_waits_hears_it_and_nothing_is_kept() {
    let mut world = waiting();
    let (first, second, other) =
        (at_wait(&mut world, "17"), at_wait(&mut world, "17"), at_wait(&mut world, "18"));
    assert_eq!(send(&mut world, "17", json!({ "sha": "abc" })), Ok(Reply::Done));
    for id in [first, second] {
        assert_eq!(world.output(id, "w"), json!({ "sha": "abc" }));
        assert_eq!(world.leasable(id), ["b"]);
    }
    assert_eq!(world.status(other), Status::WaitingExternal);
    assert_eq!(kept(&world, "17"), 0);
    world.check_replay();
}

#[test]
fn what_comes_before_anybody_waits_is_kept_and_taken_once_by_the_first() {
    let mut world = waiting();
    let (first, second) = (world.start(), world.start());
    assert_eq!(send(&mut world, "17", json!(1)), Ok(Reply::SignalKept));
    assert_eq!((kept(&world, "17"), kept(&world, "18")), (1, 0));
    world.succeed(first, "a");
    assert_eq!((world.step_status(first, "w"), world.output(first, "w")), (S::Succeeded, json!(1)));
    world.succeed(second, "a");
    assert_eq!(world.step_status(second, "w"), S::WaitingExternal);
    assert_eq!(kept(&world, "17"), 0);
    // Two that wait their turn are taken in the order they came.
    let (third, fourth) = (world.start_with(json!({ "pr": "18" })), world.start_with(json!({ "pr": "18" })));
    for n in [2, 3] {
        send(&mut world, "18", json!(n)).unwrap();
    }
    for (id, n) in [(third, 2), (fourth, 3)] {
        world.succeed(id, "a");
        assert_eq!(world.output(id, "w"), json!(n));
    }
    world.check_replay();
}

#[test]
fn an_event_for_a_run_by_its_id_is_for_any_of_its_waits_unless_it_has_a_key() {
    let mut world = waiting();
    let (id, other) = (at_wait(&mut world, "17"), at_wait(&mut world, "17"));
    world.signal(id, "merged", Some("18"), json!(0)).unwrap();
    world.signal(id, "closed", None, json!(0)).unwrap();
    assert_eq!(world.step_status(id, "w"), S::WaitingExternal, "neither is what it waits for");
    world.signal(id, "merged", None, json!(1)).unwrap();
    assert_eq!((world.step_status(id, "w"), world.output(id, "w")), (S::Succeeded, json!(1)));
    assert_eq!(world.step_status(other, "w"), S::WaitingExternal, "another run was not named");
    assert_eq!(world.run(id).rare().signals.len(), 2, "the two that nobody waited for");

    // Before the wait, too; the wait's own key goes first, and each is taken once.
    let id = world.start_with(json!({ "pr": "19" }));
    for (key, n) in [(Some("20"), 2), (None, 3), (Some("19"), 4)] {
        world.signal(id, "merged", key, json!(n)).unwrap();
    }
    world.succeed(id, "a");
    assert_eq!(world.output(id, "w"), json!(4));
    let id = world.start_with(json!({ "pr": "19" }));
    for (key, n) in [(Some("20"), 2), (None, 3)] {
        world.signal(id, "merged", key, json!(n)).unwrap();
    }
    world.succeed(id, "a");
    assert_eq!((world.output(id, "w"), world.leasable(id)), (json!(3), vec!["b".to_string()]));
    assert_eq!(world.run(id).rare().signals.len(), 1);
    world.check_replay();
}

#[test]
fn a_kept_event_is_gone_after_a_day_and_a_repeat_is_kept_once() {
    let mut world = waiting();
    for _ in 0..2 {
        let again = signal("17", Some("delivery-1"), json!(1));
        assert_eq!(world.send(&again).unwrap().reply, Reply::SignalKept);
    }
    assert_eq!(kept(&world, "17"), 1);
    world.sleep(Span(TTL.0 - 1));
    assert_eq!(kept(&world, "17"), 1);
    world.sleep(Span(1));
    assert_eq!(kept(&world, "17"), 0);
    let id = at_wait(&mut world, "17");
    assert_eq!(world.step_status(id, "w"), S::WaitingExternal);
    world.check_replay();
}

#[test]
fn another_tenants_event_is_none_of_a_runs_business() {
    let mut world = waiting();
    let id = at_wait(&mut world, "17");
    let Command::SignalKey(mut foreign) = signal("17", None, json!(1)) else { unreachable!() };
    foreign.tenant = name("other");
    assert_eq!(world.send(&Command::SignalKey(foreign)).unwrap().reply, Reply::SignalKept);
    assert_eq!(world.step_status(id, "w"), S::WaitingExternal);
}

#[test]
fn what_a_tenant_keeps_is_counted_up_and_down() {
    let mut world = waiting();
    let kept = |world: &World, tenant: &str| world.state.indexes().kept(&name(tenant));
    send(&mut world, "1", json!("abc")).unwrap();
    send(&mut world, "2", json!("abcdef")).unwrap();
    let id = at_wait(&mut world, "17");
    let now = kept(&world, "default");
    assert_eq!((now.signals, now.signals_len, now.vars_len), (2, 13, r#"{"pr":"17"}"#.len() as u64));
    assert_eq!(kept(&world, "other"), Kept::default());
    let early = at_wait(&mut world, "2");
    assert_eq!(kept(&world, "default").signals_len, 5, "what was taken counts no more");
    for id in [id, early] {
        world.cancel(id).unwrap();
    }
    assert_eq!(kept(&world, "default").vars_len, 0, "nor does a run that has ended");
    world.sleep(TTL);
    let Kept { runbooks, runbooks_len, .. } = kept(&world, "default");
    assert!(runbooks == 1 && runbooks_len > 100, "the runbook stays: {runbooks} of {runbooks_len} bytes");
    assert_eq!(kept(&world, "default"), Kept { runbooks, runbooks_len, ..Kept::default() });
    world.check_replay();
}

#[test]
fn much_data_reaches_few_runs() {
    let mut world = waiting();
    world.records = false;
    at_wait(&mut world, "17");
    let data = json!("x".repeat(FAN_OUT_LEN_MAX as usize / 2));
    at_wait(&mut world, "17");
    let refused = send(&mut world, "17", data.clone()).unwrap_err();
    assert_eq!(refused.code(), Some(Code::CapExceeded));
    at_wait(&mut world, "18");
    assert_eq!(send(&mut world, "18", data), Ok(Reply::Done), "one run gets all of it");
}

#[test]
fn what_is_kept_and_whom_it_reaches_is_bounded() {
    let mut world = waiting();
    world.records = false;
    for n in 0..KEPT_MAX {
        send(&mut world, "17", json!(n)).unwrap();
    }
    let refused = send(&mut world, "17", json!(0)).unwrap_err();
    assert_eq!(refused.code(), Some(Code::CapExceeded));
    assert_eq!(send(&mut world, "18", json!(0)), Ok(Reply::SignalKept), "another key has room");

    // The world looks at all runs after each command, which is too slow for so many.
    let event =
        WaitFor::Event { event: name("merged"), key: None, timeout: None, continue_on_timeout: false };
    let mut world = World::new(main_book(vec![wait("w", event)]));
    let mut next_id = 5_000;
    let mut ids = || {
        next_id += 1;
        next_id
    };
    let (at, policy, by) = (world.at, world.policy, Actor::SYSTEM);
    let lease_ttl = Span::secs(30);
    let mut given = Given { at, by: &by, policy, lease_ttl, evaluate: &Paths, ids: &mut ids };
    let Command::SignalKey(mut signal) = signal("17", None, json!(1)) else { unreachable!() };
    signal.key = None;
    for n in 0..=RUNS_MAX {
        let create = Command::Create(Box::new(world.create("main", Value::Null)));
        turn::drive(&mut world.state, &create, &mut given).unwrap();
        if n + 1 == RUNS_MAX {
            let mut state = world.state.clone();
            let turn = turn::drive(&mut state, &Command::SignalKey(signal.clone()), &mut given).unwrap();
            assert_eq!(turn.reply, Reply::Done);
            assert!(turn.left.is_empty());
        }
    }
    let refused = turn::drive(&mut world.state, &Command::SignalKey(signal), &mut given).unwrap_err();
    assert_eq!(refused.code(), Some(Code::CapExceeded));
}

#[test]
fn a_turn_that_was_cut_short_is_caught_up_with() {
    for bound in 0..4 {
        let mut world = waiting();
        send(&mut world, "17", json!(1)).unwrap();
        let id = world.start();
        world.follow_max = Some(bound);
        world.succeed(id, "a");
        world.catch_up();
        assert_eq!(world.output(id, "w"), json!(1), "bound {bound}");
        assert_eq!((kept(&world, "17"), world.leasable(id)), (0, vec!["b".to_string()]));
        world.check_replay();
    }
}
