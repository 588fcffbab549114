//! Who counts as having asked: whichever way somebody asks, what comes of it is theirs, and two others have to agree.

use crate::world::*;
use serde_json::{Value, json};
use windlass_core::approval::{self, Approval, Refusal as Why, Verdict as Says};
use windlass_core::digest::Digest;
use windlass_core::event::PolicyDecided;
use windlass_core::id::{ItemId, RunId};
use windlass_core::policy::Verdict;
use windlass_core::requesters::UNNAMED;
use windlass_core::run::{Actor, Initiator, Source};
use windlass_core::runbook::{KeyScope, WaitFor};
use windlass_core::schedule::{self, CatchUp, Overlap};
use windlass_core::stream::StreamId;
use windlass_core::time::{Millis, Span};
use windlass_core::turn::command::{Arrival, Command, Pushed, Reply, Signal};
use windlass_core::turn::state::Body;
use windlass_core::{idempotency, item, queue, worker};

fn user(id: &str) -> Actor {
    Actor::new(Initiator::User, id)
}

/// A step of a run, as its token names it.
fn step_of(run: RunId) -> Actor {
    Actor::new(Initiator::Executor, &format!("{run}/act"))
}

fn waits(id: &str) -> Spec {
    let event = WaitFor::Event { event: name("go"), key: None, timeout: None, continue_on_timeout: false };
    wait(id, event)
}

/// `main` acts; `waiting` hears of something before; `caller` calls that.
fn world() -> World {
    let of = |steps| pipeline(steps, Vec::new(), Vec::new());
    World::new(book(vec![
        ("main", of(vec![run("act")])),
        ("waiting", of(vec![waits("hear"), run("act")])),
        ("caller", of(vec![call("sub", "heard", &[]), run("act")])),
        ("heard", of(vec![waits("hear")])),
    ]))
}

fn start(world: &mut World, pipeline: &str, who: &str) -> RunId {
    let mut create = world.create(pipeline, Value::Null);
    create.trigger.user = Some(name(who));
    create.policy = Vec::new();
    world.send_by(&Command::Create(Box::new(create.clone())), &user(who)).unwrap();
    create.id
}

/// The only run that is not among these.
fn other(world: &World, known: &[RunId]) -> RunId {
    let all: Vec<RunId> = {
        let runs = world.state.streams().filter_map(|(id, stream)| match (&stream.body, id) {
            (Body::Run(_), StreamId::Run(run)) => Some(run),
            _ => None,
        });
        runs.filter(|run| !known.contains(run)).collect()
    };
    assert_eq!(all.len(), 1, "{all:?}");
    all[0]
}

/// What policy asks two humans about.
fn asked(world: &mut World, run: RunId) -> Approval {
    let decided = PolicyDecided {
        pipeline_id: run,
        verdict: Verdict::NeedsApproval,
        two_person: Some(true),
        count: Some(2),
        ..allow_shell(world.policy)
    };
    world.send(&Command::PolicyDecided(Box::new(decided))).unwrap();
    world.open_approval(run, "act")
}

/// These and nobody else asked, none of them may agree, and so many others have to.
fn theirs(world: &mut World, run: RunId, who: &[&str], count: u32) {
    let open = asked(world, run);
    let all: Vec<&str> = open.requesters().map(|name| name.as_str()).collect();
    assert_eq!((all.as_slice(), open.count), (who, count));
    for one in who.iter().filter(|one| !["system", UNNAMED].contains(*one)) {
        let refused = world.decide(run, open.id, Says::Approved, open.action_hash, one).unwrap().reply;
        let own =
            matches!(&refused, Reply::Approval(approval::Reply::Refused { refusal: Why::OwnRequest, .. }));
        assert!(own, "{one}: {refused:?}");
    }
    for n in 0..count {
        assert_eq!(world.open_approval(run, "act").id, open.id, "{n} of {count} is not enough");
        world.decide(run, open.id, Says::Approved, open.action_hash, &format!("other{n}")).unwrap();
    }
    assert_eq!(world.leasable(run), ["act"]);
    world.check_replay();
}

fn with_queue(world: &mut World, max_attempts: u32, dead_letter: Option<&str>) {
    let mut settings = queue::Settings::default();
    (settings.terms.max_attempts, settings.terms.cooldown) = (max_attempts, Span::ZERO);
    settings.terms.dead_letter = dead_letter.map(name);
    world
        .send(&Command::Queue {
            queue: scoped("dead"),
            input: queue::Input::Configure(queue::Settings::default()),
        })
        .unwrap();
    world.send(&Command::Queue { queue: scoped("jobs"), input: queue::Input::Configure(settings) }).unwrap();
    work_on(world, "jobs");
}

fn work_on(world: &mut World, queue: &str) {
    let settings = worker::Settings {
        queue: name(queue),
        pipeline: name("main"),
        runbook_hash: BOOK,
        project_root: String::new(),
        concurrency: 1,
        wake_on: Vec::new(),
        poll: None,
    };
    world.send(&Command::Worker { worker: scoped(queue), input: worker::Input::Start(settings) }).unwrap();
}

fn push(world: &mut World, by: &Actor) -> ItemId {
    let id = ItemId(world.id());
    let item = Pushed { id, data: json!({}), priority: 0, not_before: None, dedupe: None, from: None };
    world.send_by(&Command::Push { queue: scoped("jobs"), item: Box::new(item) }, by).unwrap();
    id
}

fn fail(world: &mut World, run: RunId) {
    world.send(&Command::Cancel { run, initiator: Initiator::System, user: None, reason: None }).unwrap();
}

#[test]
fn an_item_is_of_those_who_pushed_it_and_put_it_back() {
    let mut world = world();
    with_queue(&mut world, 1, None);
    let item = push(&mut world, &user("ann"));
    let first = other(&world, &[]);
    theirs(&mut world, first, &["ann"], 2);
    fail(&mut world, first);
    let back = Command::Item { item, input: item::Input::Retry { data: None } };
    world.send_by(&back, &user("bob")).unwrap();
    let second = other(&world, &[first]);
    theirs(&mut world, second, &["ann", "bob"], 2);
}

#[test]
fn the_copy_of_a_dead_item_is_of_those_who_pushed_the_item() {
    let mut world = world();
    with_queue(&mut world, 1, Some("dead"));
    push(&mut world, &user("ann"));
    let first = other(&world, &[]);
    let decided = PolicyDecided { pipeline_id: first, ..allow_shell(world.policy) };
    world.send(&Command::PolicyDecided(Box::new(decided))).unwrap();
    world.fail(first, "act", "no");
    work_on(&mut world, "dead");
    let second = other(&world, &[first]);
    theirs(&mut world, second, &["ann"], 2);
}

#[test]
fn what_a_step_pushes_is_of_the_requesters_of_its_run() {
    let mut world = world();
    with_queue(&mut world, 1, None);
    let run = start(&mut world, "main", "ann");
    push(&mut world, &step_of(run));
    let made = other(&world, &[run]);
    theirs(&mut world, made, &["ann"], 2);
}

#[test]
fn what_an_executor_or_a_hook_brings_may_be_anybodys() {
    let mut world = world();
    with_queue(&mut world, 1, None);
    push(&mut world, &Actor::new(Initiator::Executor, "local"));
    let run = other(&world, &[]);
    theirs(&mut world, run, &["system", UNNAMED], 3);
    let mut create = world.create("main", Value::Null);
    (create.trigger.source, create.policy) = (Source::Webhook, Vec::new());
    create.trigger.user = Some(name("octocat"));
    let by = Actor::new(Initiator::Webhook, "github");
    world.send_by(&Command::Create(Box::new(create.clone())), &by).unwrap();
    theirs(&mut world, create.id, &["octocat", UNNAMED], 3);
    // Slack's users are mapped to people, or to nobody.
    for (user, asked, count) in [("ann", &["ann"], 2), ("slack:U7", &["slack:U7"], 3)] {
        let mut create = world.create("main", Value::Null);
        (create.trigger.source, create.policy) = (Source::Slack, Vec::new());
        create.trigger.user = Some(name(user));
        let by = Actor::new(Initiator::Webhook, "slack");
        world.send_by(&Command::Create(Box::new(create.clone())), &by).unwrap();
        let open = self::asked(&mut world, create.id);
        assert_eq!(open.requesters().next().map(|name| name.as_str()), Some(asked[0]));
        assert_eq!(open.count, count, "{user}");
    }
}

fn with_schedule(world: &mut World, overlap: Overlap) {
    let settings = schedule::Settings {
        spec: "1h".to_owned(),
        timezone: name("UTC"),
        jitter: Span::ZERO,
        catch_up: CatchUp::None,
        overlap,
        pipeline: name("main"),
        runbook_hash: BOOK,
        vars: Value::Null,
        project_root: String::new(),
    };
    let next_at = Some(world.at + Span::hours(1));
    let input = schedule::Input::Configure { settings, next_at };
    world.send_by(&Command::Schedule { schedule: scoped("sc"), input }, &user("deployer")).unwrap();
}

fn run_now(world: &mut World, who: &str) -> RunId {
    let run = RunId(world.id());
    let input = schedule::Input::RunNow { run, asked_by: Vec::new() };
    world.send_by(&Command::Schedule { schedule: scoped("sc"), input }, &user(who)).unwrap();
    run
}

#[test]
fn a_slot_by_hand_is_of_who_asked_for_it_also_when_it_waits_and_one_by_the_clock_is_nobodys() {
    let mut world = world();
    with_schedule(&mut world, Overlap::Queue);
    let first = run_now(&mut world, "ann");
    let second = run_now(&mut world, "bob");
    assert!(world.state.run(second).is_none(), "it waits for the one before");
    theirs(&mut world, first, &["ann"], 2);
    fail(&mut world, first);
    theirs(&mut world, second, &["bob"], 2);
    fail(&mut world, second);
    world.at = world.at + Span::hours(1);
    let (run, at): (RunId, Millis) = (RunId(world.id()), world.at);
    let input = schedule::Input::Due { slots: vec![at], next_at: Some(at + Span::hours(1)), runs: vec![run] };
    world.send(&Command::Schedule { schedule: scoped("sc"), input }).unwrap();
    theirs(&mut world, run, &["system"], 2);
}

#[test]
fn an_event_is_of_those_behind_the_step_that_emits_it() {
    let mut world = world();
    let run = start(&mut world, "main", "ann");
    for (by, who, count) in [(step_of(run), &["ann"][..], 2), (step_of(RunId(7)), &[UNNAMED], 3)] {
        let mut create = world.create("main", Value::Null);
        (create.trigger.source, create.policy) = (Source::Event, Vec::new());
        create.trigger.user = by.id.clone();
        let arrival = Arrival {
            key: scoped(&format!("e:{}", create.id)),
            source: idempotency::Source::Api,
            request_hash: Digest([1; 32]),
            creates: vec![create.clone()],
            signals: Vec::new(),
            to: None,
            response: None,
            failure: None,
            event: None,
            also: Vec::new(),
        };
        world.send_by(&Command::Arrive(Box::new(arrival)), &by).unwrap();
        let all: Vec<&str> = by.id.iter().map(|id| id.as_str()).chain(who.iter().copied()).collect();
        theirs(&mut world, create.id, &all, count);
    }
}

fn keyed(data: Value) -> Command {
    Command::SignalKey(Box::new(Signal {
        tenant: name("default"),
        namespace: name("default"),
        name: name("go"),
        key: None,
        data,
        event_id: None,
        user: None,
    }))
}

fn direct(run: RunId, data: Value) -> Command {
    Command::Signal { run, name: name("go"), key: None, data, event_id: None }
}

#[test]
fn whoever_brings_the_data_that_a_run_waits_for_asked_too() {
    let mut world = world();
    let run = start(&mut world, "waiting", "bob");
    world.send_by(&direct(run, json!({ "x": 1 })), &user("ann")).unwrap();
    theirs(&mut world, run, &["bob", "ann"], 2);
    let run = start(&mut world, "waiting", "bob");
    world.send_by(&keyed(json!({ "x": 1 })), &user("ann")).unwrap();
    theirs(&mut world, run, &["bob", "ann"], 2);
    // It came before anybody waited for it.
    world.send_by(&keyed(json!({ "x": 1 })), &user("ann")).unwrap();
    let run = start(&mut world, "waiting", "bob");
    theirs(&mut world, run, &["bob", "ann"], 2);
    // Who says no more than that it goes on shapes nothing.
    let run = start(&mut world, "waiting", "bob");
    world.send_by(&direct(run, json!({})), &user("ann")).unwrap();
    theirs(&mut world, run, &["bob"], 2);
}

#[test]
fn a_called_run_and_its_caller_share_their_requesters() {
    let mut world = world();
    let run = start(&mut world, "caller", "bob");
    let called = world.child(run, "sub");
    world.send_by(&direct(called, json!({ "x": 1 })), &user("ann")).unwrap();
    theirs(&mut world, run, &["bob", "ann"], 2);
    let run = start(&mut world, "waiting", "bob");
    world.send_by(&direct(run, json!({ "x": 1 })), &user("ann")).unwrap();
    fail(&mut world, run);
    let (new, from) = (RunId(world.id()), Some(name("act")));
    world.send_by(&Command::Descend { run, new, from, runbook: None }, &step_of(run)).unwrap();
    theirs(&mut world, new, &["bob", "ann"], 2);
}

#[test]
fn whoever_says_what_an_unknown_outcome_was_asked_for_what_follows() {
    let mut world = World::new(main_book(vec![write("first"), run("act")]));
    let run = world.start();
    world.decide_policy(run, "first", Verdict::Allow);
    world.lease(run, "first");
    world.lose(run, "first");
    let resolve = Command::Resolve {
        run,
        step: name("first"),
        resolution: windlass_core::step::Resolution::Done,
        probed: false,
        reason: None,
        output: Some(json!({ "x": 1 })),
    };
    world.send_by(&resolve, &user("bob")).unwrap();
    let known: Vec<String> = world.run(run).requesters().iter().map(ToString::to_string).collect();
    assert_eq!(known, ["ann", "bob"]);
}

#[test]
fn a_result_that_another_run_had_is_of_those_who_asked_for_that_run() {
    let shared = write("first").with(|def| {
        def.key_scope = KeyScope::Tenant;
        def.idempotency_key = Some(literal(json!("fixed")));
    });
    let mut world = World::new(main_book(vec![shared, run("act")]));
    let hers = start(&mut world, "main", "ann");
    world.decide_policy(hers, "first", Verdict::Allow);
    let lease = world.lease(hers, "first");
    world.wrote(hers, "first", lease.epoch, json!({ "v": "chosen by ann" })).unwrap();
    let his = start(&mut world, "main", "bob");
    world.decide_policy(his, "first", Verdict::Allow);
    assert_eq!(world.try_lease(his, "first", "ex1").unwrap().reply, Reply::Reused);
    theirs(&mut world, his, &["bob", "ann"], 2);
}
