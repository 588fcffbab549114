//! Queues and workers through the turn: one run per item, and no item without its worker.

use crate::world::*;
use serde_json::{Value, json};
use windlass_core::caps::Caps;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::effect::Effect;
use windlass_core::event::{Custom, PolicyDecided};
use windlass_core::id::{Holder, ItemId, RunId, Scoped};
use windlass_core::item::{self, Item, Terms};
use windlass_core::pattern::Pattern;
use windlass_core::policy::Verdict;
use windlass_core::run::Status;
use windlass_core::runbook::{Runbook, VarDef, WorkerDef};
use windlass_core::small::Map;
use windlass_core::stream::StreamId;
use windlass_core::time::Span;
use windlass_core::turn::command::{Arrival, Command, Pushed, Refusal, Reply};
use windlass_core::turn::state::Body;
use windlass_core::turn::{FOLLOW_MAX, Turn};
use windlass_core::worker::{WAKE_ON_MAX, Worker};
use windlass_core::{idempotency, lock, queue, worker};

fn fixer(mut steps: Vec<Spec>) -> Runbook {
    if steps.is_empty() {
        steps.push(run("a"));
    }
    let mut fix = pipeline(steps, Vec::new(), Vec::new());
    let bug = VarDef { kind: None, required: true, default: None, one_of: Vec::new(), pattern: None };
    fix.vars.insert(name("bug"), bug);
    book(vec![("fix", fix)])
}

fn settings(max_attempts: u32, cooldown: Span) -> queue::Settings {
    let terms = Terms { max_attempts, cooldown, ..queue::Settings::default().terms };
    queue::Settings { terms, ..queue::Settings::default() }
}

fn configure(world: &mut World, queue: &str, settings: queue::Settings) {
    on_queue(world, queue, queue::Input::Configure(settings));
}

fn on_queue(world: &mut World, queue: &str, input: queue::Input) {
    world.send(&Command::Queue { queue: scoped(queue), input }).unwrap();
}

fn on_worker(world: &mut World, input: worker::Input) {
    world.send(&Command::Worker { worker: scoped("fixer"), input }).unwrap();
}

fn consume(world: &mut World, concurrency: u32) {
    consume_and_listen(world, concurrency, &[]);
}

fn consume_and_listen(world: &mut World, concurrency: u32, wake_on: &[&str]) {
    let settings = worker::Settings {
        queue: name("bugs"),
        pipeline: name("fix"),
        runbook_hash: BOOK,
        project_root: String::new(),
        concurrency,
        wake_on: wake_on.iter().map(|pattern| Pattern::parse(pattern).unwrap()).collect(),
        poll: None,
    };
    on_worker(world, worker::Input::Start(settings));
}

/// A world with the queue `bugs` and a worker that takes so many items at once.
fn world_of(queue: queue::Settings, concurrency: u32) -> World {
    let mut world = World::new(fixer(Vec::new()));
    configure(&mut world, "bugs", queue);
    consume(&mut world, concurrency);
    world
}

fn pushed(world: &mut World, data: Value) -> Pushed {
    Pushed { id: ItemId(world.id()), data, priority: 0, not_before: None, dedupe: None, from: None }
}

fn send(world: &mut World, item: Pushed) -> Result<Reply, Refusal> {
    world.send(&Command::Push { queue: scoped("bugs"), item: Box::new(item) }).map(|turn| turn.reply)
}

fn push(world: &mut World, bug: &str) -> ItemId {
    let item = pushed(world, json!({ "bug": bug }));
    let id = item.id;
    assert_eq!(send(world, item).unwrap(), Reply::Pushed { item: id, known: false });
    id
}

fn item(world: &World, id: ItemId) -> &Item {
    match &world.state.stream(&StreamId::Item(id)).unwrap().body {
        Body::Item(item) => item,
        other => panic!("{other:?}"),
    }
}

fn state(world: &World, id: ItemId) -> &'static str {
    item(world, id).state_name()
}

fn fixer_of(world: &World) -> &Worker {
    match &world.state.stream(&StreamId::Worker(scoped("fixer"))).unwrap().body {
        Body::Worker(worker) => worker,
        other => panic!("{other:?}"),
    }
}

/// The run of an item, with its shell steps allowed.
fn run_of(world: &mut World, id: ItemId) -> RunId {
    let Item::Processing { claim, .. } = item(world, id) else { panic!("{:?}", item(world, id)) };
    let run = claim.run.unwrap();
    if world.run(run).policy().version.is_none() {
        let decided = PolicyDecided { pipeline_id: run, ..allow_shell(world.policy) };
        world.send(&Command::PolicyDecided(Box::new(decided))).unwrap();
    }
    run
}

fn finish(world: &mut World, id: ItemId) {
    let run = run_of(world, id);
    world.work(run);
    assert_eq!(world.status(run), Status::Completed);
}

fn spoil(world: &mut World, id: ItemId) {
    let run = run_of(world, id);
    world.fail(run, "a", "broken");
    assert_eq!(world.status(run), Status::Failed);
}

#[test]
fn a_push_is_claimed_dispatched_and_run_in_its_own_turn() {
    let mut world = world_of(settings(1, Span::ZERO), 1);
    let one = pushed(&mut world, json!({ "bug": "1" }));
    let id = one.id;
    let turn = world.send(&Command::Push { queue: scoped("bugs"), item: Box::new(one) }).unwrap();
    let tags: Vec<_> = turn.facts.iter().map(|fact| fact.event.tag()).collect();
    for tag in
        ["queue:pushed", "queue:taken", "worker:item_dispatched", "pipeline:created", "pipeline:started"]
    {
        assert_eq!(tags.iter().filter(|t| **t == tag).count(), 1, "{tag} in {tags:?}");
    }
    finish(&mut world, id);
    assert_eq!(state(&world, id), "completed");
    assert!(fixer_of(&world).active.is_empty());
    world.check_replay();
}

#[test]
fn a_worker_never_has_more_runs_than_it_may_and_the_next_item_follows_in_the_same_turn() {
    let mut world = world_of(settings(1, Span::ZERO), 2);
    let ids: Vec<_> = (0..5).map(|n| push(&mut world, &n.to_string())).collect();
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(fixer_of(&world).active.len(), 2.min(ids.len() - n));
        assert_eq!(state(&world, *id), "processing");
        finish(&mut world, *id);
    }
    assert!(ids.iter().all(|id| state(&world, *id) == "completed"));
    world.check_replay();
}

#[test]
fn a_failed_item_is_tried_again_after_its_cool_down_by_the_clock_alone() {
    let mut world = world_of(settings(2, Span::mins(1)), 1);
    let id = push(&mut world, "1");
    spoil(&mut world, id);
    assert_eq!(state(&world, id), "pending");
    world.sleep(Span::secs(59));
    assert_eq!(state(&world, id), "pending");
    world.sleep(Span::secs(1));
    assert_eq!(state(&world, id), "processing");
    assert!(world.state.indexes().next_due().is_none(), "what is taken is not due");
    spoil(&mut world, id);
    assert_eq!(state(&world, id), "dead");
    world.check_replay();
}

#[test]
fn an_item_that_came_due_while_its_worker_was_busy_is_not_due_any_more_and_has_its_turn() {
    let mut world = world_of(settings(1, Span::ZERO), 1);
    let busy = push(&mut world, "1");
    let mut late = pushed(&mut world, json!({ "bug": "2" }));
    late.not_before = Some(world.at + Span::mins(1));
    let id = late.id;
    send(&mut world, late).unwrap();
    world.sleep(Span::mins(2));
    assert_eq!(state(&world, id), "pending");
    assert!(world.state.indexes().next_due().is_none());
    finish(&mut world, busy);
    assert_eq!(state(&world, id), "processing");
}

#[test]
fn dead_letters_are_forwarded_once_and_a_missing_queue_keeps_them_in_place() {
    let mut terms = settings(1, Span::ZERO);
    terms.terms.dead_letter = Some(name("graves"));
    let mut world = world_of(terms, 1);
    let lost = push(&mut world, "1");
    spoil(&mut world, lost);
    assert_eq!(state(&world, lost), "dead");
    configure(&mut world, "graves", settings(1, Span::ZERO));
    let id = push(&mut world, "2");
    spoil(&mut world, id);
    // One that is put back and dies again is there already.
    world.send(&Command::Item { item: id, input: item::Input::Retry { data: None } }).unwrap();
    spoil(&mut world, id);
    assert_eq!(state(&world, id), "dead");
    let forwarded: Vec<_> = world
        .state
        .streams()
        .filter_map(|(_, stream)| match &stream.body {
            Body::Item(item) => item.body().filter(|body| body.lot.queue == name("graves")).cloned(),
            _ => None,
        })
        .collect();
    assert_eq!(forwarded.len(), 1);
    assert_eq!((forwarded[0].from.as_deref(), forwarded[0].data.get()), (Some(&id), json!({ "bug": "2" })));
    world.check_replay();
}

#[test]
fn a_dead_letter_is_forwarded_to_a_full_queue_too() {
    let mut terms = settings(1, Span::ZERO);
    terms.terms.dead_letter = Some(name("graves"));
    let mut world = world_of(terms, 1);
    configure(&mut world, "graves", queue::Settings { max_depth: Some(1), ..settings(1, Span::ZERO) });
    for bug in ["1", "2", "3"] {
        let id = push(&mut world, bug);
        spoil(&mut world, id);
    }
    let depth = |world: &World| world.state.indexes().queue(&scoped("graves")).unwrap().depth();
    assert_eq!(depth(&world), 3);
    let item = Box::new(pushed(&mut world, json!(1)));
    let refused = world.send(&Command::Push { queue: scoped("graves"), item }).unwrap_err();
    assert_eq!(refused.code(), Some(Code::QueueFull), "whoever pushes waits");
    world.check_replay();
}

#[test]
fn a_cancelled_run_fails_its_item_for_good() {
    let mut world = world_of(settings(3, Span::ZERO), 1);
    let id = push(&mut world, "1");
    let run = run_of(&mut world, id);
    world.cancel(run).unwrap();
    assert_eq!((world.status(run), state(&world, id)), (Status::Cancelled, "failed"));
    let failure = item(&world, id).body().unwrap().failure.clone().unwrap();
    assert_eq!(failure.error.as_deref(), Some("cancelled"));
    assert!(fixer_of(&world).active.is_empty());
    // By hand it may be tried again.
    world.send(&Command::Item { item: id, input: item::Input::Retry { data: None } }).unwrap();
    finish(&mut world, id);
    world.check_replay();
}

#[test]
fn what_is_put_back_has_a_key_of_its_own_and_room() {
    let mut world = World::new(fixer(Vec::new()));
    configure(&mut world, "bugs", queue::Settings { max_depth: Some(1), ..settings(1, Span::ZERO) });
    let fails = |world: &mut World, key: &str| {
        let item = keyed(world, key, Some(key));
        let id = item.id;
        send(world, item).unwrap();
        let take = Command::Take { queue: scoped("bugs"), holder: Holder::Outside(name("c")) };
        world.send(&take).unwrap();
        let fail = item::Input::Fail { epoch: 1, error: "no".into(), retryable: true };
        world.send(&Command::Item { item: id, input: fail }).unwrap();
        assert_eq!(state(world, id), "failed");
        id
    };
    let (first, other) = (fails(&mut world, "a"), fails(&mut world, "b"));
    let retry = |world: &mut World, item| {
        world.send(&Command::Item { item, input: item::Input::Retry { data: None } }).map_err(|e| e.code())
    };
    let second = keyed(&mut world, "a", Some("a"));
    send(&mut world, second).unwrap();
    assert_eq!(retry(&mut world, first).unwrap_err(), Some(Code::LockBusy), "another has its key");
    assert_eq!(retry(&mut world, other).unwrap_err(), Some(Code::QueueFull));
    assert_eq!((state(&world, first), state(&world, other)), ("failed", "failed"));
    let take = Command::Take { queue: scoped("bugs"), holder: Holder::Outside(name("c")) };
    world.send(&take).unwrap();
    assert_eq!(retry(&mut world, first).unwrap_err(), Some(Code::LockBusy), "and works on it");
    // A queue that nobody declares any more takes its own back.
    on_queue(&mut world, "bugs", queue::Input::Withdraw);
    retry(&mut world, other).unwrap();
    assert_eq!(state(&world, other), "pending");
    world.check_replay();
}

#[test]
fn a_stopped_worker_takes_nothing_and_lets_run_what_runs_and_a_larger_one_takes_more() {
    let mut world = world_of(settings(1, Span::ZERO), 1);
    let (one, two, three) = (push(&mut world, "1"), push(&mut world, "2"), push(&mut world, "3"));
    on_worker(&mut world, worker::Input::Resize { concurrency: 2 });
    assert_eq!((state(&world, two), state(&world, three)), ("processing", "pending"));
    on_worker(&mut world, worker::Input::Stop { reason: None });
    finish(&mut world, one);
    assert_eq!((state(&world, one), state(&world, three)), ("completed", "pending"));
    consume(&mut world, 2);
    assert_eq!(state(&world, three), "processing");
    world.check_replay();
}

#[test]
fn a_paused_queue_takes_pushes_gives_nothing_out_and_wakes_its_workers_when_it_is_resumed() {
    let mut world = world_of(settings(1, Span::ZERO), 2);
    on_queue(&mut world, "bugs", queue::Input::Pause);
    let (one, two) = (push(&mut world, "1"), push(&mut world, "2"));
    assert_eq!((state(&world, one), state(&world, two)), ("pending", "pending"));
    on_queue(&mut world, "bugs", queue::Input::Resume);
    assert_eq!((state(&world, one), state(&world, two)), ("processing", "processing"));
    world.check_replay();
}

#[test]
fn the_higher_priority_goes_first_and_a_delayed_item_waits_for_its_time() {
    let mut world = world_of(settings(1, Span::ZERO), 1);
    let busy = push(&mut world, "0");
    let low = push(&mut world, "1");
    let mut high = pushed(&mut world, json!({ "bug": "2" }));
    high.priority = 5;
    let mut later = pushed(&mut world, json!({ "bug": "3" }));
    later.priority = 9;
    later.not_before = Some(world.at + Span::hours(1));
    let (high_id, later_id) = (high.id, later.id);
    send(&mut world, high).unwrap();
    send(&mut world, later).unwrap();
    finish(&mut world, busy);
    assert_eq!(state(&world, high_id), "processing");
    finish(&mut world, high_id);
    assert_eq!(state(&world, low), "processing");
    finish(&mut world, low);
    assert_eq!(state(&world, later_id), "pending");
    world.sleep(Span::hours(1));
    assert_eq!(state(&world, later_id), "processing");
}

#[test]
fn a_known_key_answers_with_its_item_and_a_full_queue_refuses() {
    let full = queue::Settings { dedupe: true, max_depth: Some(2), ..queue::Settings::default() };
    let mut world = World::new(fixer(Vec::new()));
    configure(&mut world, "bugs", full);
    let first = push(&mut world, "1");
    let again = pushed(&mut world, json!({ "bug": "1" }));
    assert_eq!(send(&mut world, again).unwrap(), Reply::Pushed { item: first, known: true });
    push(&mut world, "2");
    let third = pushed(&mut world, json!({ "bug": "3" }));
    assert_eq!(send(&mut world, third).unwrap_err().code(), Some(Code::QueueFull));
}

#[test]
fn outside_consumers_take_beat_and_report_under_their_epoch_and_silence_ends_the_claim() {
    let mut world = World::new(fixer(Vec::new()));
    configure(&mut world, "bugs", settings(2, Span::ZERO));
    let id = push(&mut world, "1");
    let holder = Holder::Outside(name("ci"));
    let take = Command::Take { queue: scoped("bugs"), holder: holder.clone() };
    let Reply::Item(item::Reply::Taken(grant)) = world.send(&take).unwrap().reply else { panic!() };
    assert_eq!((grant.item, grant.epoch), (id, 1));
    assert_eq!(world.send(&take).unwrap().reply, Reply::Nothing);
    for _ in 0..3 {
        world.sleep(Span::secs(20));
        world.send(&Command::Item { item: id, input: item::Input::Heartbeat { epoch: 1 } }).unwrap();
        let at = world.at;
        world.state.beat(holder.clone(), at);
    }
    assert_eq!(state(&world, id), "processing");
    assert_eq!(world.state.indexes().next_due(), Some(world.at + Span::secs(30)));
    world.sleep(Span::secs(30));
    assert_eq!(state(&world, id), "pending");
    let late = world.send(&Command::Item { item: id, input: item::Input::Complete { epoch: 1 } });
    assert_eq!(late.unwrap_err().code(), Some(Code::LeaseStaleEpoch));
    let Reply::Item(item::Reply::Taken(grant)) = world.send(&take).unwrap().reply else { panic!() };
    let stale = item::Input::Fail { epoch: 1, error: String::new(), retryable: true };
    assert_eq!(
        world.send(&Command::Item { item: id, input: stale }).unwrap_err().code(),
        Some(Code::LeaseStaleEpoch)
    );
    world.send(&Command::Item { item: id, input: item::Input::Complete { epoch: grant.epoch } }).unwrap();
    assert_eq!(state(&world, id), "completed");
    world.check_replay();
}

#[test]
fn an_item_that_cannot_become_a_run_fails_and_the_next_one_has_its_turn() {
    let mut world = world_of(settings(3, Span::ZERO), 1);
    on_queue(&mut world, "bugs", queue::Input::Pause);
    let bad = pushed(&mut world, json!({ "ghost": true }));
    let bad_id = bad.id;
    send(&mut world, bad).unwrap();
    let good = push(&mut world, "1");
    on_queue(&mut world, "bugs", queue::Input::Resume);
    assert_eq!((state(&world, bad_id), state(&world, good)), ("failed", "processing"));
    world.check_replay();
}

#[test]
fn a_run_that_waits_for_a_human_keeps_its_claim() {
    let mut world = World::new(fixer(vec![approve("ok")]));
    configure(&mut world, "bugs", settings(1, Span::ZERO));
    consume(&mut world, 1);
    let id = push(&mut world, "1");
    let run = run_of(&mut world, id);
    assert_eq!(world.status(run), Status::AwaitingApproval);
    world.sleep(Span::mins(50));
    assert_eq!(state(&world, id), "processing");
    world.sleep(Span::mins(20));
    assert_eq!((world.status(run), state(&world, id)), (Status::Failed, "failed"));
    world.check_replay();
}

#[test]
fn the_shell_steps_of_an_items_run_ask_policy_once_and_one_answer_opens_them_all() {
    let mut world = World::new(fixer(vec![parallel("all", vec![run("a"), run("b"), run("c")])]));
    configure(&mut world, "bugs", settings(1, Span::ZERO));
    consume(&mut world, 1);
    let id = push(&mut world, "1");
    let asked = |world: &World| {
        world.effects.iter().filter(|effect| matches!(effect, Effect::EvaluatePolicy { .. })).count()
    };
    assert_eq!(asked(&world), 1);
    let run = run_of(&mut world, id);
    assert_eq!(world.leasable(run), ["a", "b", "c"]);
    world.work(run);
    assert_eq!((world.status(run), asked(&world)), (Status::Completed, 1));
    world.check_replay();
}

#[test]
fn a_denied_run_fails_its_item() {
    let mut world = world_of(settings(1, Span::ZERO), 1);
    let id = push(&mut world, "1");
    let Item::Processing { claim, .. } = item(&world, id) else { panic!() };
    let run = claim.run.unwrap();
    let decided = PolicyDecided { pipeline_id: run, verdict: Verdict::Deny, ..allow_shell(world.policy) };
    world.send(&Command::PolicyDecided(Box::new(decided))).unwrap();
    assert_eq!((world.status(run), state(&world, id)), (Status::Failed, "failed"));
}

#[test]
fn a_dropped_item_cancels_its_run() {
    let mut world = world_of(settings(1, Span::ZERO), 1);
    let id = push(&mut world, "1");
    let run = run_of(&mut world, id);
    world.send(&Command::Item { item: id, input: item::Input::Drop { reason: None } }).unwrap();
    assert_eq!((world.status(run), state(&world, id)), (Status::Cancelled, "dropped"));
    assert!(fixer_of(&world).active.is_empty());
    world.check_replay();
}

#[test]
fn nobody_outside_ends_the_claim_of_a_workers_run() {
    let mut world = world_of(settings(3, Span::ZERO), 1);
    let id = push(&mut world, "1");
    let run = run_of(&mut world, id);
    let before = item(&world, id).clone();
    let fail = |retryable| item::Input::Fail { epoch: 1, error: "no".to_string(), retryable };
    for input in [
        item::Input::Heartbeat { epoch: 1 },
        item::Input::Complete { epoch: 1 },
        item::Input::Return { epoch: 1 },
        fail(true),
        fail(false),
    ] {
        let refused = world.send(&Command::Item { item: id, input }).unwrap_err();
        assert_eq!(refused.code(), Some(Code::LockBusy));
        assert_eq!(item(&world, id), &before);
    }
    let stale = world.send(&Command::Item { item: id, input: item::Input::Return { epoch: 7 } });
    assert_eq!(stale.unwrap_err().code(), Some(Code::LeaseStaleEpoch));
    finish(&mut world, id);
    assert_eq!((world.status(run), state(&world, id)), (Status::Completed, "completed"));
    world.check_replay();
}

#[test]
fn an_item_that_waits_while_its_run_goes_on_blocks_nobody() {
    let mut world = world_of(settings(3, Span::ZERO), 2);
    let odd = push(&mut world, "1");
    let run = run_of(&mut world, odd);
    // An earlier version let somebody else hand the claim back.
    let returned = windlass_core::event::QueueReturned {
        queue_name: name("bugs"),
        item_id: odd,
        namespace: item(&world, odd).body().unwrap().lot.namespace.clone(),
        epoch: 1,
        timed_out: false,
        last_seen: None,
    };
    world.fact(StreamId::Item(odd), returned);
    let next = push(&mut world, "2");
    assert_eq!((state(&world, odd), state(&world, next)), ("pending", "processing"));
    finish(&mut world, next);
    world.work(run);
    let again = run_of(&mut world, odd);
    assert_ne!(again, run, "its place is free, so it has its turn");
    finish(&mut world, odd);
    assert_eq!(state(&world, odd), "completed");
}

#[test]
fn a_worker_makes_variables_of_an_item_as_it_declares_them() {
    let mut book = fixer(Vec::new());
    let vars = Map::from([(name("bug"), expr("item.ticket"))]);
    let def =
        WorkerDef { queue: name("bugs"), pipeline: name("fix"), concurrency: 2, vars, wake_on: Vec::new() };
    book.workers.insert(name("fixer"), def);
    let queue = windlass_core::runbook::QueueDef {
        visibility_timeout: Span::secs(30),
        max_attempts: 1,
        cooldown: Span::ZERO,
        dead_letter: None,
        max_depth: None,
        dedupe: false,
        external: None,
    };
    book.queues.insert(name("bugs"), queue);
    let mut world = World::new(book);
    configure(&mut world, "bugs", settings(1, Span::ZERO));
    consume(&mut world, 2);
    let item = pushed(&mut world, json!({ "ticket": "BUG-7", "noise": true }));
    let good = item.id;
    send(&mut world, item).unwrap();
    let run = run_of(&mut world, good);
    assert_eq!(world.run(run).vars.get(), json!({ "bug": "BUG-7" }));
    // One that has no such key cannot become a run: it fails, and blocks nobody.
    let item = pushed(&mut world, json!({ "noise": true }));
    let bad = item.id;
    send(&mut world, item).unwrap();
    assert_eq!(state(&world, bad), "failed");
    let claimed = self::item(&world, bad).body().unwrap().claimed.clone();
    assert_eq!(claimed.unwrap().run, None, "no run worked on it");
    world.check_replay();
}

/// Somebody takes a lock: an event that has nothing to do with the queue.
fn lock(world: &mut World, lock: &str) -> Turn {
    let ask = lock::Ask { holder: Holder::Outside(name("ci")), metadata: None, wait: true, give_up_at: None };
    world.send(&Command::Lock { lock: scoped(lock), input: lock::Input::Acquire(ask) }).unwrap()
}

#[test]
fn a_worker_is_woken_by_the_events_it_listens_to() {
    let mut world = World::new(fixer(Vec::new()));
    configure(&mut world, "bugs", settings(1, Span::ZERO));
    world.cap(Caps { max_runs_per_min: Some(1), ..Caps::default() });
    consume_and_listen(&mut world, 2, &["lock:acquired(door)"]);
    let first = push(&mut world, "1");
    let second = push(&mut world, "2");
    assert_eq!((state(&world, first), state(&world, second)), ("processing", "pending"));
    // The cap has room again, and nobody has looked at the clock yet.
    world.follow_max = Some(FOLLOW_MAX);
    world.at = world.at + Span::mins(1);
    assert!(lock(&mut world, "window").facts.len() == 1, "another lock does not wake it");
    assert_eq!(state(&world, second), "pending");
    lock(&mut world, "door");
    assert_eq!(state(&world, second), "processing");
    world.check_replay();
}

#[test]
fn a_worker_that_listens_to_everything_looks_once_a_turn() {
    let mut world = World::new(fixer(Vec::new()));
    configure(&mut world, "bugs", settings(1, Span::ZERO));
    consume_and_listen(&mut world, 3, &["*"]);
    // There is nothing to take: the one look is all that follows.
    world.follow_max = Some(1);
    let turn = lock(&mut world, "door");
    assert_eq!((turn.facts.len(), turn.left.len()), (1, 0));
    world.follow_max = None;
    // Its own dispatches are events too, and its runs' steps: every turn comes to its end.
    let items: Vec<ItemId> = (0..5).map(|n| push(&mut world, &n.to_string())).collect();
    assert_eq!(fixer_of(&world).active.len(), 3);
    items.iter().for_each(|id| finish(&mut world, *id));
    assert!(items.iter().all(|id| state(&world, *id) == "completed"));
    // Another tenant's events are none of its business.
    let other = Scoped::parse("other/default/door").unwrap();
    let ask = lock::Ask { holder: Holder::Outside(name("ci")), metadata: None, wait: true, give_up_at: None };
    world.follow_max = Some(0);
    let turn = world.send(&Command::Lock { lock: other, input: lock::Input::Acquire(ask) }).unwrap();
    assert!(turn.left.is_empty());
    world.check_replay();
}

#[test]
fn a_custom_event_wakes_the_workers_of_its_namespace_only() {
    let mut world = World::new(fixer(Vec::new()));
    configure(&mut world, "bugs", settings(1, Span::ZERO));
    consume_and_listen(&mut world, 1, &["custom:door"]);
    world.follow_max = Some(0);
    let mut emitted = |category: &str, key: &str| {
        let event = Custom {
            category: name(category),
            action: name("knock"),
            pipeline_id: None,
            data: json!(null).into(),
        };
        let arrival = Arrival {
            key: Scoped::parse(key).unwrap(),
            source: idempotency::Source::Api,
            request_hash: Digest([1; 32]),
            creates: Vec::new(),
            signals: Vec::new(),
            to: None,
            response: None,
            failure: None,
            event: Some(event),
            also: Vec::new(),
        };
        let turn = world.send(&Command::Arrive(Box::new(arrival))).unwrap();
        let kinds: Vec<String> = turn.facts.iter().map(|fact| fact.event.kind().into_owned()).collect();
        assert_eq!(kinds[1], format!("custom:{category}:knock"), "{kinds:?}");
        turn.left.len()
    };
    let here = scoped("k").to_string();
    assert_eq!(emitted("door", &here), 1);
    assert_eq!(emitted("bell", &format!("{here}2")), 0);
    let (tenant, _) = here.split_once('/').unwrap();
    assert_eq!(emitted("door", &format!("{tenant}/elsewhere/k")), 0);
    assert_eq!(emitted("door", "other/default/k"), 0);
}

/// How many decisions follow when an event wakes a worker that takes an item then.
fn follows(wake_on: &str) -> usize {
    let mut world = World::new(fixer(Vec::new()));
    configure(&mut world, "bugs", settings(1, Span::ZERO));
    world.cap(Caps { max_runs_per_min: Some(1), ..Caps::default() });
    consume_and_listen(&mut world, 2, &[wake_on]);
    push(&mut world, "1");
    let second = push(&mut world, "2");
    world.follow_max = Some(FOLLOW_MAX);
    world.at = world.at + Span::mins(1);
    assert_eq!(state(&world, second), "pending");
    let ends = |bound: &usize| {
        let mut world = world.clone();
        world.follow_max = Some(*bound);
        let turn = lock(&mut world, "door");
        assert!(*bound == 0 || state(&world, second) == "processing");
        turn.left.is_empty()
    };
    (0..100).find(ends).unwrap()
}

#[test]
fn what_comes_of_a_look_wakes_nobody() {
    assert_eq!(follows("*"), follows("lock:acquired"));
}

#[test]
fn a_worker_that_would_never_wake_is_refused_when_it_is_loaded() {
    let mut book = fixer(Vec::new());
    let queue = json!({ "visibility_timeout": 1, "max_attempts": 1, "cooldown": 0 });
    book.queues.insert(name("bugs"), serde_json::from_value(queue).unwrap());
    let def = |wake_on: Vec<String>| WorkerDef {
        queue: name("bugs"),
        pipeline: name("fix"),
        concurrency: 1,
        vars: Map::new(),
        wake_on,
    };
    book.workers.insert(name("fixer"), def(vec!["lock:acquired".into(), "custom:deploy".into()]));
    assert_eq!(book.validate(), Ok(()));
    for bad in [vec!["lock:opened".to_string()], vec!["*".to_string(); WAKE_ON_MAX + 1]] {
        book.workers.insert(name("fixer"), def(bad));
        assert_eq!(book.validate().unwrap_err().code(), Code::RunbookInvalid);
    }
}

fn keyed(world: &mut World, bug: &str, key: Option<&str>) -> Pushed {
    let mut item = pushed(world, json!({ "bug": bug }));
    item.dedupe = key.map(name);
    item
}

fn push_all(world: &mut World, items: Vec<Pushed>) -> Result<Vec<(ItemId, bool)>, Refusal> {
    let turn = world.send(&Command::PushAll { queue: scoped("bugs"), items })?;
    match turn.reply {
        Reply::PushedAll(answers) => Ok(answers),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_array_is_pushed_as_a_whole_or_not_at_all() {
    let mut world = World::new(fixer(Vec::new()));
    configure(&mut world, "bugs", queue::Settings { max_depth: Some(3), ..settings(1, Span::ZERO) });
    let items = vec![
        keyed(&mut world, "1", Some("k")),
        keyed(&mut world, "2", None),
        keyed(&mut world, "3", Some("k")),
    ];
    let (first, second) = (items[0].id, items[1].id);
    assert_eq!(push_all(&mut world, items), Ok(vec![(first, false), (second, false), (first, true)]));
    let lines = world.lines.len();
    let items = vec![keyed(&mut world, "4", None), keyed(&mut world, "5", None)];
    assert_eq!(push_all(&mut world, items).unwrap_err().code(), Some(Code::QueueFull));
    assert_eq!(world.lines.len(), lines, "there was room for one of them, and neither is there");
    let many =
        (0..=windlass_core::turn::dispatch::PUSH_MAX).map(|_| keyed(&mut world, "6", Some("k"))).collect();
    assert_eq!(push_all(&mut world, many).unwrap_err().code(), Some(Code::InvalidInput));
    world.check_replay();
}

#[test]
fn an_outside_consumer_takes_the_best_together_and_a_withdrawn_queue_can_be_emptied() {
    let mut world = World::new(fixer(Vec::new()));
    configure(&mut world, "bugs", settings(2, Span::ZERO));
    let mut items: Vec<Pushed> = (0..4).map(|n| keyed(&mut world, &n.to_string(), None)).collect();
    items[2].priority = 9;
    let best = items[2].id;
    push_all(&mut world, items).unwrap();
    let take = |world: &mut World, max| {
        let holder = Holder::Outside(name("ci"));
        match world.send(&Command::TakeMany { queue: scoped("bugs"), holder, max }).unwrap().reply {
            Reply::Taken(grants) => grants,
            other => panic!("{other:?}"),
        }
    };
    let grants = take(&mut world, 2);
    assert_eq!((grants.len(), grants[0].item, grants[0].epoch), (2, best, 1));
    on_queue(&mut world, "bugs", queue::Input::Withdraw);
    let item = pushed(&mut world, json!({ "bug": "5" }));
    assert_eq!(send(&mut world, item).unwrap_err().code(), Some(Code::NotFound));
    assert_eq!(take(&mut world, 9).len(), 2);
    assert!(take(&mut world, 9).is_empty());
    world.check_replay();
}
