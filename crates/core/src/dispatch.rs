//! Dispatch: queues, items, workers and schedules, and the runs they make.

use crate::code::Code;
use crate::command::{Command, Create, Outcome, Pushed, Refusal, Reply};
use crate::digest::Digest;
use crate::effect::Effect;
use crate::event::Event;
use crate::id::{Holder, ItemId, Name, RunId, Scoped};
use crate::item::{self, Claim, Item, Take};
use crate::machine::{Decision, Given};
use crate::queue::{self, Queue};
use crate::route;
use crate::run::{Source, Trigger};
use crate::schedule::{self, Schedule};
use crate::stream::StreamId;
use crate::template::Template;
use crate::time::Millis;
use crate::turn::{
    View, item_of, missing, name_of, of_stream, queue_of, runbook_of, schedule_of, tenant_of, worker_of,
};
use crate::worker::{self, Worker};
use alloc::collections::VecDeque;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde_json::{Map, Value};

/// What the commands about queues, items, workers and schedules come to.
pub(crate) fn decide(view: &dyn View, command: &Command, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    match command {
        Command::Queue { queue, input } => {
            let known = queue_of(view, queue)?.cloned().unwrap_or_else(|| Queue::new(queue.clone()));
            let Decision { facts, effects, reply } = known.decide(input, given.at)?;
            let stream = StreamId::Queue(queue.clone());
            let moved = !facts.is_empty();
            let mut out = of_stream(stream, &tenant_of(queue), facts, Reply::Queue(reply));
            if moved {
                // A queue that is declared or resumed may have items that wait.
                wake(view, queue, &mut out);
            }
            Ok(routed(out, effects))
        }
        Command::Push { queue, item } => push(view, queue, item, given),
        Command::Forward { queue, item, data, priority } => {
            forward(view, queue, *item, data.clone(), *priority, given)
        }
        Command::Take { queue, holder } => take(view, queue, holder, given),
        Command::Item { item, input } => on_item(view, *item, input, given),
        Command::Worker { worker, input } => on_worker(view, worker, input, given),
        Command::Dispatch { worker } => dispatch(view, worker, given),
        Command::SettleItem { item, worker, run, succeeded, error } => {
            settle(view, *item, worker, *run, *succeeded, error.as_ref(), given)
        }
        Command::Schedule { schedule, input } => on_schedule(view, schedule, input, given),
        // tidy: the turn sends nothing else here.
        _ => Ok(Outcome::reply(Reply::Nothing)),
    }
}

/// Lets the workers of a queue look at it.
fn wake(view: &dyn View, queue: &Scoped, out: &mut Outcome) {
    out.follow.extend(view.consumers(queue).into_iter().map(|worker| Command::Dispatch { worker }));
}

/// What an item's decision comes to. A dead item is forwarded in the commit that buries it, so that it is not
/// forwarded twice; a dead-letter queue that is gone or full leaves it where it is.
fn of_item(
    view: &dyn View,
    id: ItemId,
    tenant: &Name,
    (facts, effects): (Vec<Event>, Vec<Effect>),
    reply: Reply,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let mut out = of_stream(StreamId::Item(id), tenant, facts, reply);
    for effect in effects {
        let Effect::DeadLetter { queue, item, data, priority } = effect else {
            route::other(effect, &mut out);
            continue;
        };
        match forward(view, &queue, item, data, priority, given) {
            Ok(forwarded) => {
                out.facts.extend(forwarded.facts);
                out.follow.extend(forwarded.follow);
            }
            Err(needs @ Refusal::Need(_)) => return Err(needs),
            Err(Refusal::Error { .. }) => {}
        }
    }
    Ok(out)
}

/// Puts a dead item into another queue, as a new one.
fn forward(
    view: &dyn View,
    queue: &Scoped,
    item: ItemId,
    data: Value,
    priority: i32,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let id = ItemId(given.id());
    push(view, queue, &Pushed { id, data, priority, not_before: None, dedupe: None, from: Some(item) }, given)
}

/// The clock's look at an item: a claim whose holder was silent for too long ends. An item whose time came is
/// handed to its workers by the turn itself.
pub(crate) fn tick(view: &dyn View, id: ItemId, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    let Some(Item::Processing { body, claim: Claim { visible_at: Some(_), holder, .. } }) =
        item_of(view, &id)?
    else {
        return Ok(Outcome::reply(Reply::Done));
    };
    let last_seen = view.beats().last_seen(holder, body.since);
    if last_seen + body.terms.visibility_timeout > given.at {
        return Ok(Outcome::reply(Reply::Done));
    }
    on_item(view, id, &item::Input::Expire { epoch: body.epoch, last_seen }, given)
}

fn routed(mut out: Outcome, effects: Vec<Effect>) -> Outcome {
    effects.into_iter().for_each(|effect| route::other(effect, &mut out));
    out
}

fn push(view: &dyn View, queue: &Scoped, pushed: &Pushed, given: &Given<'_>) -> Result<Outcome, Refusal> {
    let known = queue_of(view, queue)?.ok_or_else(|| missing("queue", &queue.name()))?;
    let key = known.key(pushed.dedupe.as_ref(), &pushed.data);
    let (depth, first) = view.depth(queue, key.as_ref());
    let terms = match known.decide(&queue::Input::Push { depth, known: first }, given.at)?.reply {
        queue::Reply::Known(item) => return Ok(Outcome::reply(Reply::Pushed { item, known: true })),
        queue::Reply::Admitted(terms) => terms,
        queue::Reply::Done | queue::Reply::AlreadyDone | queue::Reply::Open => {
            return Ok(Outcome::reply(Reply::Nothing));
        }
    };
    let tenant = tenant_of(queue);
    let input = item::Input::Push(item::Push {
        queue: name_of(queue),
        namespace: Name::clean(queue.namespace()),
        id: pushed.id,
        data: pushed.data.clone(),
        priority: pushed.priority,
        terms,
        next_eligible_at: pushed.not_before,
        dedupe: key,
        from: pushed.from,
    });
    let new = item_of(view, &pushed.id)?.cloned().unwrap_or_else(|| Item::absent(tenant.clone()));
    let Decision { facts, effects, .. } = new.decide(&input, given.at)?;
    let reply = Reply::Pushed { item: pushed.id, known: false };
    let mut out = routed(of_stream(StreamId::Item(pushed.id), &tenant, facts, reply), effects);
    wake(view, queue, &mut out);
    Ok(out)
}

fn take(view: &dyn View, queue: &Scoped, holder: &Holder, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    let known = queue_of(view, queue)?.ok_or_else(|| missing("queue", &queue.name()))?;
    known.decide(&queue::Input::Take, given.at)?;
    let Some(&best) = view.best(queue, 1).first() else { return Ok(Outcome::reply(Reply::Nothing)) };
    let take = Take { holder: holder.clone(), worker: None, run: None, visibility: true };
    on_item(view, best, &item::Input::Take(take), given)
}

fn on_item(
    view: &dyn View,
    id: ItemId,
    input: &item::Input,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let item = item_of(view, &id)?.ok_or_else(|| missing("item", &id))?;
    let Decision { facts, effects, reply } = item.decide(input, given.at)?;
    let queue = item.body().map(item::Body::scoped).ok_or_else(|| missing("item", &id))?;
    let tenant = tenant_of(&queue);
    let wakes = !facts.is_empty();
    let mut out = of_item(view, id, &tenant, (facts, effects), Reply::Item(reply), given)?;
    if wakes {
        wake(view, &queue, &mut out);
    }
    Ok(out)
}

fn on_worker(
    view: &dyn View,
    id: &Scoped,
    input: &worker::Input,
    given: &Given<'_>,
) -> Result<Outcome, Refusal> {
    let known = worker_of(view, id)?.cloned().unwrap_or_else(|| Worker::new(id.clone()));
    let Decision { facts, effects, .. } = known.decide(input, given.at)?;
    Ok(routed(of_stream(StreamId::Worker(id.clone()), &tenant_of(id), facts, Reply::Done), effects))
}

/// Takes the best item for a worker that has room, and makes its run: the claim, the run and the dispatch are one
/// commit.
fn dispatch(view: &dyn View, id: &Scoped, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    let Some(worker) = worker_of(view, id)? else { return Ok(Outcome::reply(Reply::Nothing)) };
    let Some(settings) = worker.settings().filter(|_| worker.capacity_left() > 0) else {
        return Ok(Outcome::reply(Reply::Nothing));
    };
    let Some(queue) = &worker.queue() else { return Ok(Outcome::reply(Reply::Nothing)) };
    let open =
        queue_of(view, queue)?.is_some_and(|known| known.decide(&queue::Input::Take, given.at).is_ok());
    let Some(best) = view.best(queue, 1).first().copied().filter(|_| open) else {
        return Ok(Outcome::reply(Reply::Nothing));
    };
    let item = item_of(view, &best)?.ok_or_else(|| missing("item", &best))?;
    let Some(body) = item.body() else { return Ok(Outcome::reply(Reply::Nothing)) };
    let run = RunId(given.id());
    let tenant = tenant_of(id);
    let take = Take {
        holder: Holder::Worker(name_of(id)),
        worker: Some(name_of(id)),
        run: Some(run),
        visibility: false,
    };
    let taken = item.decide(&item::Input::Take(take), given.at)?;
    let epoch = match &taken.reply {
        item::Reply::Taken(grant) => grant.epoch,
        item::Reply::Done | item::Reply::AlreadyDone | item::Reply::Beating(_) | item::Reply::Dropped => {
            return Ok(Outcome::reply(Reply::Nothing));
        }
    };
    let dispatched = worker.decide(&worker::Input::Dispatch { item: best, run, epoch }, given.at)?;
    let create = Create {
        id: run,
        tenant: tenant.clone(),
        namespace: Name::clean(id.namespace()),
        runbook: settings.runbook_hash,
        pipeline: settings.pipeline.clone(),
        name: settings.pipeline.clone(),
        cwd: settings.project_root.clone(),
        vars: Value::Null,
        trigger: Trigger {
            source: Source::Queue,
            key: Some(name_of(id)),
            user: None,
            event_id: Some(Name::clean(&best.to_string())),
        },
        subject: None,
        correlation_id: None,
        priority: body.priority,
        needs: Vec::new(),
        parent: None,
        depth: 0,
        deadline_at: None,
        workspace: None,
        policy: Vec::new(),
    };
    let made = variables(view, settings, id, &body.data, given)
        .and_then(|vars| crate::creation::create(view, &Create { vars, ..create }, given));
    match made {
        Ok(mut out) => {
            out.facts.extend(of_stream(StreamId::Item(best), &tenant, taken.facts, Reply::Done).facts);
            let stream = StreamId::Worker(id.clone());
            out.facts.extend(of_stream(stream, &tenant, dispatched.facts, Reply::Done).facts);
            // There may be room for another.
            out.follow.push(Command::Dispatch { worker: id.clone() });
            Ok(out)
        }
        Err(needs @ Refusal::Need(_)) => Err(needs),
        // An item that cannot become a run is at fault itself: it fails, and the next one has its turn.
        Err(Refusal::Error { code, message }) if code != Code::CapExceeded => {
            let claimed = taken.facts.iter().fold(item.clone(), |item, fact| item.apply(fact, given.at));
            let fail =
                item::Input::Fail { epoch, error: alloc::format!("{code}: {message}"), retryable: false };
            let failed = claimed.decide(&fail, given.at)?;
            let facts = taken.facts.into_iter().chain(failed.facts).collect();
            let mut out = of_item(view, best, &tenant, (facts, failed.effects), Reply::Done, given)?;
            out.follow.push(Command::Dispatch { worker: id.clone() });
            Ok(out)
        }
        Err(refusal) => Err(refusal),
    }
}

/// The variables of an item's run: as the worker declares them, with the item's data as `item`; its own keys where
/// nothing is declared.
fn variables(
    view: &dyn View,
    settings: &worker::Settings,
    id: &Scoped,
    data: &Value,
    given: &Given<'_>,
) -> Result<Value, Refusal> {
    let runbook = runbook_of(view, &settings.runbook_hash)?;
    let declared = runbook.and_then(|runbook| runbook.workers.get(id.name())).map(|worker| &worker.vars);
    let Some(declared) = declared.filter(|vars| !vars.is_empty()) else { return Ok(data.clone()) };
    let scope = Map::from_iter([("item".to_string(), data.clone())]);
    let render = |(name, template): (&Name, &Template)| {
        let value = template.render(given.evaluate, &scope);
        Ok((name.to_string(), value.map_err(|message| Refusal::new(Code::ExpressionFailed, message))?))
    };
    Ok(Value::Object(declared.iter().map(render).collect::<Result<Map<_, _>, Refusal>>()?))
}

/// The run of a worker's item has ended: the claim ends with it, and the worker has a place free.
fn settle(
    view: &dyn View,
    id: ItemId,
    worker: &Scoped,
    run: RunId,
    succeeded: bool,
    error: Option<&String>,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let tenant = tenant_of(worker);
    let mut out = Outcome::reply(Reply::Done);
    if let Some(item @ Item::Processing { body, claim }) = item_of(view, &id)?
        && claim.run == Some(run)
    {
        let epoch = body.epoch;
        let input = if succeeded {
            item::Input::Complete { epoch }
        } else {
            let error = error.cloned().unwrap_or_else(|| "its run did not complete".to_string());
            item::Input::Fail { epoch, error, retryable: true }
        };
        let Decision { facts, effects, .. } = item.decide(&input, given.at)?;
        out = of_item(view, id, &tenant, (facts, effects), Reply::Done, given)?;
    }
    if let Some(known) = worker_of(view, worker)? {
        let input = worker::Input::Settle { item: id, run, succeeded };
        let Decision { facts, effects, .. } = known.decide(&input, given.at)?;
        out.facts.extend(of_stream(StreamId::Worker(worker.clone()), &tenant, facts, Reply::Done).facts);
        out = routed(out, effects);
    }
    Ok(out)
}

fn on_schedule(
    view: &dyn View,
    id: &Scoped,
    input: &schedule::Input,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let mut known = schedule_of(view, id)?.cloned().unwrap_or_else(|| Schedule::new(id.clone()));
    let tenant = tenant_of(id);
    let mut out = Outcome::reply(Reply::Done);
    let mut inputs = VecDeque::from([input.clone()]);
    while let Some(input) = inputs.pop_front() {
        let Decision { facts, effects, .. } = known.decide(&input, given.at)?;
        known = facts.iter().fold(known, |known, fact| known.apply(fact, given.at));
        out.facts.extend(of_stream(StreamId::Schedule(id.clone()), &tenant, facts, Reply::Done).facts);
        for effect in effects {
            let Effect::StartSlot { schedule, run, slot, pipeline, runbook, vars } = effect else {
                route::other(effect, &mut out);
                continue;
            };
            let create = slot_run(&schedule, run, slot, pipeline, runbook, vars);
            match crate::creation::create(view, &create, given) {
                Ok(created) => {
                    out.facts.extend(created.facts);
                    out.follow.extend(created.follow);
                }
                Err(needs @ Refusal::Need(_)) => return Err(needs),
                // A slot whose run cannot be made is over at once, or it would keep all later ones from firing. Each
                // time there is one slot less that waits, so this ends.
                Err(Refusal::Error { .. }) => inputs.push_back(schedule::Input::Settle { run }),
            }
        }
    }
    Ok(out)
}

/// The run of a schedule's slot: it is made in the commit that fires the slot, so there is one per slot.
fn slot_run(
    schedule: &Scoped,
    run: RunId,
    slot: Millis,
    pipeline: Name,
    runbook: Digest,
    vars: Value,
) -> Create {
    Create {
        id: run,
        tenant: tenant_of(schedule),
        namespace: Name::clean(schedule.namespace()),
        runbook,
        name: pipeline.clone(),
        pipeline,
        cwd: String::new(),
        vars,
        trigger: Trigger {
            source: Source::Scheduled,
            key: Some(name_of(schedule)),
            user: None,
            event_id: Some(Name::clean(&slot.to_string())),
        },
        subject: None,
        correlation_id: None,
        priority: 0,
        needs: Vec::new(),
        parent: None,
        depth: 0,
        deadline_at: None,
        workspace: None,
        policy: Vec::new(),
    }
}
