//! Deploying through the turn: one commit that configures what the new version declares and withdraws what is gone.

use crate::world::*;
use serde_json::{Value, json};
use windlass_core::caps::Caps;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::effect::Effect;
use windlass_core::id::{Holder, ItemId, RunId};
use windlass_core::policy::Verdict;
use windlass_core::run::{Actor, Initiator};
use windlass_core::runbook::{
    ExternalQueue, LockDef, QueueDef, Runbook, ScheduleDef, SemaphoreDef, TriggerDef, WorkerDef,
};
use windlass_core::schedule::{self, CatchUp, Overlap};
use windlass_core::small::Map;
use windlass_core::stream::StreamId;
use windlass_core::template::Template;
use windlass_core::time::{Millis, Span};
use windlass_core::turn::Turn;
use windlass_core::turn::command::{Command, Deploy, Pushed, Refusal};
use windlass_core::turn::state::Body;
use windlass_core::{lock, queue, worker};

const NEW: Digest = Digest([2; 32]);

fn queue_def() -> QueueDef {
    QueueDef {
        visibility_timeout: Span::secs(30),
        max_attempts: 2,
        cooldown: Span::ZERO,
        dead_letter: None,
        max_depth: Some(5),
        dedupe: false,
        external: None,
    }
}

fn worker_on(queue: &str) -> WorkerDef {
    WorkerDef {
        queue: name(queue),
        pipeline: name("main"),
        concurrency: 2,
        vars: Map::new(),
        wake_on: Vec::new(),
    }
}

fn every_hour() -> ScheduleDef {
    ScheduleDef {
        spec: "every 1h".to_string(),
        timezone: name("UTC"),
        jitter: Span::ZERO,
        catch_up: CatchUp::One,
        overlap: Overlap::Skip,
        pipeline: name("main"),
        vars: Map::new(),
    }
}

fn lock_def(secs: u64) -> LockDef {
    LockDef { heartbeat_timeout: Span::secs(secs), max_hold_duration: None }
}

fn hook() -> TriggerDef {
    TriggerDef {
        source: name("hook"),
        event: None,
        action: None,
        when: None,
        vars: Map::new(),
        pipeline: Some(name("main")),
        signal: None,
        key: None,
        dedupe_window: None,
    }
}

/// A runbook that declares one of each.
fn whole() -> Runbook {
    let mut book = main_book(vec![run("a")]);
    book.queues = Map::from([(name("bugs"), queue_def())]);
    book.workers = Map::from([(name("fixer"), worker_on("bugs"))]);
    book.schedules = Map::from([(name("hourly"), every_hour())]);
    book.locks = Map::from([(name("merge"), lock_def(30))]);
    let builders = SemaphoreDef { capacity: 3, heartbeat_timeout: Span::secs(60) };
    book.semaphores = Map::from([(name("builders"), builders)]);
    book.triggers = Map::from([(name("p1"), hook())]);
    book
}

fn wish(book: &str, hash: Digest, next: Option<Millis>) -> Command {
    let next = next.map(|at| (name("hourly"), at)).into_iter().collect();
    Command::Deploy(Box::new(Deploy { deployment: scoped(book), hash, project_root: "/srv".into(), next }))
}

fn pushed(id: u128, data: Value) -> Pushed {
    Pushed { id: ItemId(id), data, priority: 0, not_before: None, dedupe: None, from: None }
}

fn live_runs(world: &World) -> Vec<RunId> {
    let runs = world.state.streams().filter_map(|(_, stream)| match &stream.body {
        Body::Run(run) => Some(run.id()),
        _ => None,
    });
    runs.collect()
}

#[allow(clippy::needless_pass_by_value)] // The stream is named in the call.
fn body(world: &World, stream: StreamId) -> &Body {
    &world.state.stream(&stream).unwrap_or_else(|| panic!("no {stream}")).body
}

fn state_of(world: &World, stream: StreamId) -> &'static str {
    match body(world, stream) {
        Body::Queue(queue) => queue.state_name(),
        Body::Worker(worker) => worker.state_name(),
        Body::Schedule(schedule) => schedule.state_name(),
        other => panic!("{other:?}"),
    }
}

fn refused(world: &mut World, command: &Command) -> (Code, String) {
    match world.send(command) {
        Err(Refusal::Error { code, message, .. }) => (code, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_commit_configures_everything_and_says_who_did_it() {
    let mut world = World::new(whole());
    let due = world.at + Span::hours(1);
    let ann = Actor { initiator: Initiator::User, id: Some(name("ann")) };
    let turn = world.send_by(&wish("test", BOOK, Some(due)), &ann).unwrap();
    let tags: Vec<&str> = turn.facts.iter().map(|fact| fact.event.tag()).collect();
    for tag in [
        "runbook:deployed",
        "lock:configured",
        "semaphore:configured",
        "queue:created",
        "worker:started",
        "schedule:created",
    ] {
        assert!(tags.contains(&tag), "{tag} is not in {tags:?}");
    }
    let Body::Deployment(active) = body(&world, StreamId::Deployment(scoped("test"))) else { panic!() };
    let active = active.as_ref().as_ref().unwrap();
    assert_eq!((active.hash, active.by.as_ref(), active.at), (BOOK, Some(&name("ann")), world.at));
    assert_eq!(world.state.indexes().next_due(), Some(due));
    assert!(world.send(&wish("test", BOOK, Some(due))).unwrap().facts.is_empty(), "it is so already");
    world.check_replay();
}

#[test]
fn what_the_new_version_does_not_declare_is_withdrawn_and_runs_stay_pinned() {
    let mut world = World::new(whole());
    world.send(&wish("test", BOOK, Some(world.at + Span::hours(1)))).unwrap();
    let push = |id, world: &mut World| {
        let item = pushed(id, json!(null));
        world.send(&Command::Push { queue: scoped("bugs"), item: Box::new(item) })
    };
    for id in 1..=3 {
        push(id, &mut world).unwrap();
    }
    let runs: Vec<RunId> = live_runs(&world);
    assert_eq!(runs.len(), 2, "the worker has two places");
    world.load(NEW, main_book(vec![run("a"), run("b")]));
    world.send(&wish("test", NEW, None)).unwrap();
    assert_eq!(state_of(&world, StreamId::Queue(scoped("bugs"))), "withdrawn");
    assert_eq!(state_of(&world, StreamId::Worker(scoped("fixer"))), "stopped");
    assert_eq!(state_of(&world, StreamId::Schedule(scoped("hourly"))), "removed");
    assert_eq!(world.state.indexes().depth(&scoped("bugs"), None).0, 1, "it keeps its items");
    assert!(runs.iter().all(|run| world.run(*run).born.home.runbook == BOOK));
    let (code, message) = match push(9, &mut world) {
        Err(Refusal::Error { code, message, .. }) => (code, message),
        other => panic!("{other:?}"),
    };
    assert_eq!(code, Code::NotFound);
    assert!(message.contains("no deployed runbook declares"), "{message}");
    // The old version again: everything is as it was, and what waited is worked on.
    world.send(&wish("test", BOOK, Some(world.at + Span::hours(1)))).unwrap();
    assert_eq!(state_of(&world, StreamId::Queue(scoped("bugs"))), "active");
    assert_eq!(state_of(&world, StreamId::Worker(scoped("fixer"))), "started");
    assert_eq!(state_of(&world, StreamId::Schedule(scoped("hourly"))), "active");
    world.check_replay();
}

/// A human stopped, resized and paused; a deployment that says the same of those leaves them alone.
#[test]
fn what_a_human_did_by_hand_outlives_a_deployment() {
    let fixer = || StreamId::Worker(scoped("fixer"));
    let size = |world: &World| match body(world, fixer()) {
        Body::Worker(worker) => worker.settings().unwrap().concurrency,
        other => panic!("{other:?}"),
    };
    let mut world = World::new(whole());
    let next = world.at + Span::hours(1);
    world.send(&wish("test", BOOK, Some(next))).unwrap();
    let on_worker =
        |world: &mut World, input| world.send(&Command::Worker { worker: scoped("fixer"), input }).unwrap();
    on_worker(&mut world, worker::Input::Resize { concurrency: 7 });
    let pause = Command::Schedule { schedule: scoped("hourly"), input: schedule::Input::Pause };
    world.send(&pause).unwrap();
    world.send(&Command::Queue { queue: scoped("bugs"), input: queue::Input::Pause }).unwrap();

    let mut second = whole();
    second.schedules.get_mut("hourly").unwrap().overlap = Overlap::Queue;
    second.queues.get_mut("bugs").unwrap().max_depth = Some(9);
    world.load(NEW, second.clone());
    world.send(&wish("test", NEW, Some(next))).unwrap();
    assert_eq!(
        (state_of(&world, fixer()), size(&world)),
        ("started", 7),
        "the file says what it said before"
    );
    assert_eq!(state_of(&world, StreamId::Schedule(scoped("hourly"))), "paused");
    assert_eq!(state_of(&world, StreamId::Queue(scoped("bugs"))), "paused");

    on_worker(&mut world, worker::Input::Stop { reason: None });
    let third = Digest([3; 32]);
    second.workers.get_mut("fixer").unwrap().concurrency = 4;
    world.load(third, second);
    world.send(&wish("test", third, Some(next))).unwrap();
    assert_eq!((state_of(&world, fixer()), size(&world)), ("stopped", 4), "the file's own number changed");
    let Body::Worker(worker) = body(&world, fixer()) else { panic!() };
    assert_eq!(
        worker.settings().unwrap().runbook_hash,
        third,
        "it is started with the version that is active"
    );
    world.check_replay();
}

#[test]
fn a_declaration_that_another_runbook_owns_refuses_the_whole_deployment() {
    let mut world = World::new(whole());
    world.send(&wish("test", BOOK, None)).unwrap();
    let other = |change: &dyn Fn(&mut Runbook)| {
        let mut book = main_book(vec![run("a")]);
        book.name = name("other");
        change(&mut book);
        book
    };
    type Change<'a> = (&'a str, &'a dyn Fn(&mut Runbook));
    let mut small = queue_def();
    small.max_depth = Some(1);
    let wide = SemaphoreDef { capacity: 9, heartbeat_timeout: Span::secs(60) };
    let changes: [Change<'_>; 6] = [
        ("lock `merge`", &|b| _ = b.locks.insert(name("merge"), lock_def(5))),
        ("semaphore `builders`", &|b| _ = b.semaphores.insert(name("builders"), wide.clone())),
        ("queue `bugs`", &|b| _ = b.queues.insert(name("bugs"), small.clone())),
        ("worker `fixer`", &|b| {
            b.queues.insert(name("bugs"), queue_def());
            b.workers.insert(name("fixer"), worker_on("bugs"));
        }),
        ("schedule `hourly`", &|b| _ = b.schedules.insert(name("hourly"), every_hour())),
        ("trigger `p1`", &|b| _ = b.triggers.insert(name("p1"), hook())),
    ];
    for (n, (what, change)) in changes.into_iter().enumerate() {
        let hash = Digest([10 + n as u8; 32]);
        world.load(hash, other(change));
        let lines = world.lines.len();
        let (code, message) = refused(&mut world, &wish("other", hash, None));
        assert_eq!(code, Code::DeployConflict, "{what}");
        assert!(message.contains(what) && message.contains("`test`"), "{message}");
        assert_eq!(world.lines.len(), lines, "nothing of it happened");
    }
    // The same words about what can be shared are no conflict, and whoever goes leaves it to the other.
    let shared = Digest([30; 32]);
    world.load(
        shared,
        other(&|b| {
            b.queues.insert(name("bugs"), queue_def());
            b.locks.insert(name("merge"), lock_def(30));
        }),
    );
    world.send(&wish("other", shared, None)).unwrap();
    world.load(NEW, main_book(vec![run("b")]));
    world.send(&wish("test", NEW, None)).unwrap();
    assert_eq!(state_of(&world, StreamId::Queue(scoped("bugs"))), "active", "the other still declares it");
    world.check_replay();
}

#[test]
fn a_file_that_is_only_run_gives_its_locks_settings_unless_a_deployed_one_has_a_say() {
    let mut world = World::new(whole());
    let declare = |hash| Command::Declare { tenant: name("default"), namespace: name("default"), hash };
    let capacity = |world: &World| match body(world, StreamId::Semaphore(scoped("builders"))) {
        Body::Semaphore(semaphore) => semaphore.config.capacity,
        other => panic!("{other:?}"),
    };
    world.send(&declare(BOOK)).unwrap();
    assert_eq!(capacity(&world), 3);
    let mut wide = whole();
    wide.name = name("mine");
    wide.semaphores.insert(name("builders"), SemaphoreDef { capacity: 9, heartbeat_timeout: Span::secs(60) });
    world.load(NEW, wide);
    world.send(&declare(NEW)).unwrap();
    assert_eq!(capacity(&world), 9, "nobody deployed anything");
    world.send(&wish("test", BOOK, None)).unwrap();
    world.send(&declare(NEW)).unwrap();
    assert_eq!(capacity(&world), 3);
    assert!(world.state.stream(&StreamId::Queue(scoped("mine"))).is_none());
}

#[test]
fn the_clock_asks_for_slots_once_and_again_after_a_crash() {
    let mut world = World::new(whole());
    let due = world.at + Span::hours(1);
    world.send(&wish("test", BOOK, Some(due))).unwrap();
    world.at = due;
    let tick = Command::Tick(StreamId::Schedule(scoped("hourly")));
    let asked = |world: &mut World| {
        let turn = world.send(&tick).unwrap();
        turn.effects.iter().filter(|e| matches!(e, Effect::ComputeSlots { .. })).count()
    };
    assert_eq!(asked(&mut world), 1);
    assert_eq!(world.state.indexes().due(world.at).count(), 0, "the answer is on its way");
    // A process that comes next does not know that somebody asked.
    let lines = world.lines.clone();
    let mut state = windlass_core::turn::state::State::new();
    state.replay(&lines).unwrap();
    assert_eq!(state.indexes().due(world.at).count(), 1);
    let run = RunId(world.id());
    let input =
        schedule::Input::Due { slots: vec![due], next_at: Some(due + Span::hours(1)), runs: vec![run] };
    world.send(&Command::Schedule { schedule: scoped("hourly"), input }).unwrap();
    assert_eq!(world.run(run).born.home.cwd, "/srv");
    assert_eq!(world.state.indexes().next_due(), Some(due + Span::hours(1)));
}

#[test]
fn a_worker_at_a_rate_cap_comes_back_when_there_is_room() {
    let mut world = World::new(whole());
    world.send(&wish("test", BOOK, None)).unwrap();
    world.cap(Caps { max_runs_per_min: Some(1), ..Caps::default() });
    let first = world.at;
    for id in 1..=2 {
        let item = pushed(id, json!(null));
        world.send(&Command::Push { queue: scoped("bugs"), item: Box::new(item) }).unwrap();
    }
    assert_eq!(live_runs(&world).len(), 1);
    assert_eq!(world.state.indexes().next_due(), Some(first + Span::mins(1)));
    // Another push finds the cap still closed, and says nothing new.
    let lines = world.lines.len();
    let item = pushed(3, json!(null));
    world.send(&Command::Push { queue: scoped("bugs"), item: Box::new(item) }).unwrap();
    assert_eq!(world.lines.len(), lines + 1, "only the push");
    world.at = first + Span::mins(1);
    world.send(&Command::Tick(StreamId::Worker(scoped("fixer")))).unwrap();
    assert_eq!(live_runs(&world).len(), 2);
    world.check_replay();
}

#[test]
fn a_schedule_at_a_rate_cap_fires_its_slot_later_and_a_wish_for_a_run_is_told() {
    let mut world = World::new(whole());
    world.send(&wish("test", BOOK, None)).unwrap();
    world.cap(Caps { max_runs_per_min: Some(1), ..Caps::default() });
    let create = world.create("main", json!(null));
    world.send(&Command::Create(Box::new(create))).unwrap();
    let run = RunId(world.id());
    // Slots count from the deployment on.
    world.at = world.at + Span::secs(1);
    let at = world.at;
    let input = schedule::Input::Due { slots: vec![at], next_at: Some(at + Span::hours(1)), runs: vec![run] };
    let schedule = scoped("hourly");
    world.send(&Command::Schedule { schedule: schedule.clone(), input: input.clone() }).unwrap();
    assert!(world.state.run(run).is_none());
    let room = world.state.indexes().next_due().unwrap();
    assert!(room > at && room <= at + Span::mins(1), "it is looked at again when there is room");
    let now = Command::Schedule {
        schedule: schedule.clone(),
        input: schedule::Input::RunNow { run, asked_by: Vec::new() },
    };
    match world.send(&now) {
        Err(Refusal::Error { code: Code::CapExceeded, retry_at: Some(when), .. }) => assert_eq!(when, room),
        other => panic!("{other:?}"),
    }
    world.at = room;
    world.send(&Command::Schedule { schedule, input }).unwrap();
    assert!(world.state.run(run).is_some());
    world.check_replay();
}

#[test]
fn caps_of_a_runbook_count_all_its_versions() {
    let mut book = whole();
    book.caps = Some(Caps { max_concurrency: Some(1), max_runs_per_min: Some(2), ..Caps::default() });
    let mut world = World::new(book.clone());
    book.locks = Map::new();
    world.load(NEW, book);
    for hash in [BOOK, NEW] {
        let mut create = world.create("main", json!(null));
        create.runbook = hash;
        world.send(&Command::Create(Box::new(create))).unwrap();
    }
    let mut create = world.create("main", json!(null));
    create.runbook = NEW;
    match world.send(&Command::Create(Box::new(create))) {
        Err(Refusal::Error { code: Code::CapExceeded, retry_at: Some(_), .. }) => {}
        other => panic!("{other:?}"),
    }
    let first = world.state.indexes_mut().next_ready().unwrap();
    world.lease(first, "a");
    assert_eq!(world.state.indexes_mut().next_ready(), None, "one step of either version runs at a time");
}

#[test]
fn a_tenant_is_configured_once_and_within_bounds() {
    let mut world = World::new(whole());
    let caps = Caps { max_concurrency: Some(3), ..Caps::default() };
    let tenant = |weight| Command::Tenant {
        tenant: name("acme"),
        caps,
        weight,
        self_approval: None,
        notices: Vec::new(),
    };
    assert_eq!(world.send(&tenant(2)).unwrap().facts.len(), 1);
    assert!(world.send(&tenant(2)).unwrap().facts.is_empty());
    assert_eq!(refused(&mut world, &tenant(0)).0, Code::InvalidInput);
    assert_eq!(refused(&mut world, &tenant(1_001)).0, Code::InvalidInput);
    assert_eq!(world.state.indexes().caps(&name("acme")), caps);
    world.check_replay();
}

#[test]
fn variables_of_a_worker_and_a_schedule_are_rendered_where_they_come_from() {
    let mut book = whole();
    let main = book.pipelines.get_mut("main").unwrap();
    main.vars.insert(name("bug"), Default::default());
    let fixer = book.workers.get_mut("fixer").unwrap();
    fixer.vars.insert(name("bug"), Template::Expr("item.key".to_string()));
    let hourly = book.schedules.get_mut("hourly").unwrap();
    hourly.vars.insert(name("bug"), Template::Literal(json!("nightly")));
    let mut world = World::new(book);
    world.send(&wish("test", BOOK, None)).unwrap();
    let item = pushed(1, json!({ "key": "BUG-7" }));
    world.send(&Command::Push { queue: scoped("bugs"), item: Box::new(item) }).unwrap();
    let run = live_runs(&world)[0];
    assert_eq!(world.run(run).vars.get(), json!({ "bug": "BUG-7" }));
    let run = RunId(world.id());
    let input = schedule::Input::RunNow { run, asked_by: Vec::new() };
    world.send(&Command::Schedule { schedule: scoped("hourly"), input }).unwrap();
    assert_eq!(world.run(run).vars.get(), json!({ "bug": "nightly" }));
}

#[test]
fn an_event_that_wakes_a_worker_has_its_external_queue_listed_at_once() {
    let mut book = whole();
    let external = ExternalQueue { list: "l".into(), take: "t".into(), poll: Span::mins(60) };
    book.queues.get_mut("bugs").unwrap().external = Some(external);
    book.workers.get_mut("fixer").unwrap().wake_on = vec!["lock:acquired".into(), "worker:polled".into()];
    let mut world = World::new(book);
    world.send(&wish("test", BOOK, None)).unwrap();
    let lists =
        |turn: &Turn| turn.effects.iter().filter(|effect| matches!(effect, Effect::ListItems { .. })).count();
    // What its own list leads to is not a reason to list again.
    let polled = Command::Polled { worker: scoped("fixer"), listed: Ok(Vec::new()) };
    assert_eq!(lists(&world.send(&polled).unwrap()), 0);
    let holder = Holder::Outside(name("ci"));
    let ask = lock::Ask { holder, metadata: None, wait: true, give_up_at: None };
    let acquire = Command::Lock { lock: scoped("door"), input: lock::Input::Acquire(ask) };
    assert_eq!(lists(&world.send(&acquire).unwrap()), 1);
    let stop = worker::Input::Stop { reason: None };
    world.send(&Command::Worker { worker: scoped("fixer"), input: stop }).unwrap();
    let release = Command::LetGoLock { lock: scoped("door"), holder: Holder::Outside(name("ci")) };
    world.send(&release).unwrap();
    assert_eq!(lists(&world.send(&acquire).unwrap()), 0, "a stopped worker hears nothing");
}

#[test]
fn an_external_queue_is_listed_and_an_item_taken_there_before_its_run_is_made() {
    let mut book = whole();
    let external = ExternalQueue { list: "l".into(), take: "t".into(), poll: Span::mins(1) };
    book.queues.get_mut("bugs").unwrap().external = Some(external);
    let mut world = World::new(book);
    world.send(&wish("test", BOOK, None)).unwrap();
    let fixer = || StreamId::Worker(scoped("fixer"));
    let turn = world.send(&Command::Tick(fixer())).unwrap();
    assert!(turn.effects.iter().any(|effect| matches!(effect, Effect::ListItems { .. })));
    let mut listed = vec![pushed(1, json!({})), pushed(2, json!({}))];
    for (n, item) in listed.iter_mut().enumerate() {
        item.dedupe = Some(name(&n.to_string()));
    }
    let polled = Command::Polled { worker: scoped("fixer"), listed: Ok(listed) };
    let turn = world.send(&polled).unwrap();
    let takes: Vec<(_, RunId)> = turn
        .effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::TakeItem { item, run, .. } => Some((*item, *run)),
            _ => None,
        })
        .collect();
    assert_eq!(takes.len(), 2);
    assert!(live_runs(&world).is_empty(), "no run before the item is taken");
    let again = |world: &World| {
        world.state.outstanding().iter().filter(|e| matches!(e, Effect::TakeItem { .. })).count()
    };
    assert_eq!(again(&world), 2, "after a crash they are taken again");
    assert_eq!(world.state.indexes().next_due(), Some(world.at + Span::mins(1)));
    // One is ours, the other was somebody else's.
    let took = |(item, run): (_, RunId), error: Option<&str>| Command::TookOutside {
        worker: scoped("fixer"),
        item,
        run,
        error: error.map(str::to_string),
    };
    world.send(&took(takes[0], None)).unwrap();
    world.send(&took(takes[1], Some("gone"))).unwrap();
    assert_eq!(live_runs(&world), [takes[0].1]);
    assert!(world.send(&took(takes[0], None)).unwrap().facts.is_empty(), "told twice");
    assert_eq!(again(&world), 0);
    let Body::Worker(worker) = body(&world, fixer()) else { panic!() };
    assert_eq!(worker.active.len(), 1);
    // One that is taken and then meets a cap stays claimed, and is taken again when there is room.
    world.cap(Caps { max_runs_per_min: Some(2), ..Caps::default() });
    let mut third = pushed(3, json!({}));
    third.dedupe = Some(name("third"));
    let turn = world.send(&Command::Polled { worker: scoped("fixer"), listed: Ok(vec![third]) }).unwrap();
    let take = turn.effects.iter().find_map(|effect| match effect {
        Effect::TakeItem { item, run, .. } => Some((*item, *run)),
        _ => None,
    });
    let create = world.create("main", json!(null));
    world.send(&Command::Create(Box::new(create))).unwrap();
    world.send(&took(take.unwrap(), None)).unwrap();
    assert!(world.state.run(take.unwrap().1).is_none());
    world.at = world.at + Span::mins(1);
    let turn = world.send(&Command::Tick(fixer())).unwrap();
    assert!(turn.effects.iter().any(|effect| matches!(effect, Effect::TakeItem { .. })));
    world.send(&took(take.unwrap(), None)).unwrap();
    assert!(world.state.run(take.unwrap().1).is_some());
    // One that does not fit fails by itself.
    let mut wrong = pushed(4, json!({ "ghost": 1 }));
    wrong.dedupe = Some(name("wrong"));
    world.decide_policy(takes[0].1, "a", Verdict::Allow);
    world.work(takes[0].1);
    let turn = world.send(&Command::Polled { worker: scoped("fixer"), listed: Ok(vec![wrong]) }).unwrap();
    let take = turn.effects.iter().find_map(|effect| match effect {
        Effect::TakeItem { item, run, .. } => Some((*item, *run)),
        _ => None,
    });
    world.send(&took(take.unwrap(), None)).unwrap();
    let Body::Item(item) = body(&world, StreamId::Item(take.unwrap().0)) else { panic!() };
    assert_eq!(item.state_name(), "failed");
    let failed = Command::Polled { worker: scoped("fixer"), listed: Err("no such file".into()) };
    assert_eq!(world.send(&failed).unwrap().facts.len(), 1);
    world.check_replay();
}
