//! Dispatch: queues, items, workers and schedules, and the runs they make.

mod external;
mod slots;

pub(crate) use slots::tick_schedule;

use crate::code::Code;
use crate::event::Event;
use crate::id::{Holder, ItemId, Name, RunId, Scoped};
use crate::idempotency;
use crate::item::{self, Item, Take};
use crate::machine::{Decision, Given};
use crate::queue::{self, Queue};
use crate::requesters;
use crate::run::{Source, Status, Trigger};
use crate::stream::StreamId;
use crate::template::Template;
use crate::time::Millis;
use crate::turn::command::{Command, Create, Home, Outcome, Pushed, Refusal, Reply};
use crate::turn::deployment::gather;
use crate::turn::{
    View, item_of, missing, name_of, of_decision, of_stream, queue_of, runbook_of, tenant_of, worker_of,
};
use crate::worker::{self, Worker};
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde_json::{Map, Value};

/// The most items that are pushed at once.
pub const PUSH_MAX: usize = 1_000;
/// The most items that are taken at once.
pub const TAKE_MAX: usize = 1_000;

/// What the commands about queues, items, workers and schedules come to.
pub(crate) fn decide(view: &dyn View, command: &Command, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    match command {
        Command::Queue { queue, input } => {
            let known = queue_of(view, queue)?.cloned().unwrap_or_else(|| Queue::new(queue.clone()));
            let (decided, reply) = known.decide(input, given.at)?.answer(());
            let stream = StreamId::Queue(queue.clone());
            let moved = !decided.facts.is_empty();
            let mut out = of_decision(stream, &tenant_of(queue), decided, Reply::Queue(reply));
            if moved {
                // A queue that is declared or resumed may have items that wait.
                wake(view, queue, &mut out);
            }
            Ok(out)
        }
        Command::Push { queue, item } => {
            push(view, queue, item, &crate::turn::requesters::of_actor(view, given.by)?, given)
        }
        Command::PushAll { queue, items } => {
            let asked_by = crate::turn::requesters::of_actor(view, given.by)?;
            let (mut out, answers) = push_all(view, queue, items, &asked_by, given)?;
            out.reply = Reply::PushedAll(answers);
            Ok(out)
        }
        Command::Take { queue, holder } => take(view, queue, holder, given),
        Command::TakeMany { queue, holder, max } => take_many(view, queue, holder, *max, given),
        Command::Polled { worker, listed } => external::polled(view, worker, listed, given),
        Command::TookOutside { worker, item, run, error } => {
            external::took(view, worker, *item, *run, error.as_ref(), given)
        }
        Command::Item { item, input } => on_item(view, *item, input, given),
        Command::Worker { worker, input: worker::Input::Wake { cause } } => {
            look(view, worker, cause.as_ref(), given)
        }
        Command::Worker { input: worker::Input::Decided(decided), .. }
            if decided.policy_version != given.policy =>
        {
            Err(Refusal::new(Code::PolicyDenied, "the policy that was asked is no longer in force"))
        }
        Command::Worker { worker, input } => on_worker(view, worker, input, given),
        Command::Dispatch { worker } => dispatch(view, worker, given),
        Command::Wake { worker } => wake_one(view, worker, given),
        Command::SettleItem { item, worker, run, status, error } => {
            settle(view, *item, worker, (*run, *status), error.as_ref(), given)
        }
        Command::Schedule { schedule, input } => slots::on_schedule(view, schedule, input, given),
        // tidy: the turn sends nothing else here.
        _ => Ok(Outcome::reply(Reply::Nothing)),
    }
}

/// Lets the workers of a queue look at it, because of what happened to its items.
fn wake(view: &dyn View, queue: &Scoped, out: &mut Outcome) {
    let cause = out.facts.first().map(|fact| Name::clean(fact.event.tag()));
    let look = |worker| Command::Worker { worker, input: worker::Input::Wake { cause: cause.clone() } };
    out.follow.extend(view.consumers(queue).into_iter().map(look));
}

/// A worker is told to look at its queue. One that is idle is woken, which is on record, where there is something to
/// take; one that works and has room just looks.
fn look(
    view: &dyn View,
    id: &Scoped,
    cause: Option<&Name>,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let Some(worker) = worker_of(view, id)? else { return Ok(Outcome::reply(Reply::Nothing)) };
    let Some(queue) = worker.queue().filter(|_| worker.active.is_empty() && worker.capacity_left() > 0)
    else {
        return dispatch(view, id, given);
    };
    let open =
        queue_of(view, &queue)?.is_some_and(|known| known.decide(&queue::Input::Take, given.at).is_ok());
    if !open || next_item(view, worker, &queue).is_none() {
        return Ok(Outcome::reply(Reply::Nothing));
    }
    on_worker(view, id, &worker::Input::Wake { cause: cause.cloned() }, given)
}

/// An event woke a worker: it looks at its queue, which is listed, too, where the items live elsewhere.
fn wake_one(view: &dyn View, id: &Scoped, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    let mut out = match look(view, id, None, given) {
        // What is here cannot be taken now; what is elsewhere is listed all the same.
        Err(Refusal::Error { .. }) => Outcome::reply(Reply::Nothing),
        looked => looked?,
    };
    if let Some(worker) = worker_of(view, id)?
        && let worker::State::Started(settings) = &worker.state
        && settings.poll.is_some()
    {
        if out.facts.is_empty() {
            let Decision { facts, .. } = worker.decide(&worker::Input::Wake { cause: None }, given.at)?;
            out.facts = of_stream(StreamId::Worker(id.clone()), &tenant_of(id), facts, Reply::Done).facts;
        }
        out.effects.push(external::list(id, settings));
    }
    Ok(out)
}

/// What an item's decision comes to. A dead item is forwarded in the commit that buries it, so that it is not
/// forwarded twice; a dead-letter queue that is gone leaves it where it is.
fn of_item(
    view: &dyn View,
    id: ItemId,
    tenant: &Name,
    decision: Decision,
    reply: Reply,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let to = decision.facts.iter().find_map(|fact| match fact {
        Event::QueueItemDead(dead) => {
            dead.forwarded_to.as_ref().map(|queue| Scoped::new(tenant, &dead.namespace, queue))
        }
        // tidy: nothing else is forwarded.
        _ => None,
    });
    let mut out = of_decision(StreamId::Item(id), tenant, decision, reply);
    let Some(queue) = to else { return Ok(out) };
    match forward(view, &queue, id, given) {
        Ok(forwarded) => out.join(forwarded),
        Err(needs @ Refusal::Need(_)) => return Err(needs),
        Err(Refusal::Error { .. }) => {}
    }
    Ok(out)
}

/// Puts a dead item into another queue, as a new one. One that was put back and died again is there already, as long as
/// nobody has worked on it; a queue that knows items by their data tells them apart itself.
fn forward(view: &dyn View, queue: &Scoped, item: ItemId, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    let body = item_of(view, &item)?.and_then(Item::body).ok_or_else(|| missing("item", &item))?;
    let id = ItemId(given.id());
    let by_data = queue_of(view, queue)?.and_then(Queue::settings).is_some_and(|known| known.dedupe);
    let dedupe = (!by_data).then(|| Name::clean(&alloc::format!("dead:{item}")));
    // Nobody asked for the copy who did not ask for the item.
    let asked_by = body.lot.asked_by.clone();
    let asked_by = asked_by.unwrap_or_else(|| alloc::vec![Name::clean(requesters::UNNAMED)]);
    let (data, priority) = (body.data.get(), body.priority);
    let pushed = Pushed { id, data, priority, not_before: None, dedupe, from: Some(item) };
    push(view, queue, &pushed, &asked_by, given)
}

/// The clock's look at an item: a claim whose holder was silent for too long ends. An item whose time came is
/// handed to its workers by the turn itself.
pub(crate) fn tick(view: &dyn View, id: ItemId, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    let Some(Item::Processing { body, claim }) = item_of(view, &id)? else {
        return Ok(Outcome::reply(Reply::Done));
    };
    if claim.visible_at.is_none() || body.lives_until(claim, view.beats()) > given.at {
        return Ok(Outcome::reply(Reply::Done));
    }
    let last_seen = view.beats().last_seen(&claim.holder, body.since);
    on_item(view, id, &item::Input::Expire { epoch: body.epoch, last_seen }, given)
}

fn push(
    view: &dyn View,
    queue: &Scoped,
    pushed: &Pushed,
    asked_by: &[Name],
    given: &Given<'_>,
) -> Result<Outcome, Refusal> {
    let (mut out, answers) = push_all(view, queue, core::slice::from_ref(pushed), asked_by, given)?;
    if let Some(&(item, known)) = answers.first() {
        out.reply = Reply::Pushed { item, known };
    }
    Ok(out)
}

/// Pushes items, all of them or none: the queue is full for one as for all. Says of each whether it was known.
fn push_all(
    view: &dyn View,
    queue: &Scoped,
    items: &[Pushed],
    asked_by: &[Name],
    given: &Given<'_>,
) -> Result<(Outcome, Vec<(ItemId, bool)>), Refusal> {
    if items.len() > PUSH_MAX {
        return Err(Refusal::new(Code::InvalidInput, alloc::format!("at most {PUSH_MAX} items at once")));
    }
    gather(view, items.iter().map(|pushed| StreamId::Item(pushed.id)))?;
    let known = queue_of(view, queue)?.ok_or(queue::Error::NotFound)?;
    let tenant = tenant_of(queue);
    let (mut out, mut answers) = (Outcome::reply(Reply::Nothing), Vec::new());
    let (mut depth, _) = view.depth(queue, None);
    // What this push itself brings, which no index knows yet.
    let mut own: BTreeMap<Name, ItemId> = BTreeMap::new();
    for pushed in items {
        let key = known.key(pushed.dedupe.as_ref(), &pushed.data);
        let first = key.as_ref().and_then(|key| {
            let here = own.get(key).copied();
            here.or_else(|| view.depth(queue, Some(key)).1)
        });
        let forwarded = pushed.from.is_some();
        let admit = queue::Input::Push { depth, known: first, forwarded };
        let terms = match known.decide(&admit, given.at)?.reply {
            queue::Reply::Known(item) => {
                answers.push((item, true));
                continue;
            }
            queue::Reply::Admitted(terms) => terms,
            queue::Reply::Done | queue::Reply::AlreadyDone | queue::Reply::Open => continue,
        };
        depth += 1;
        own.extend(key.clone().map(|key| (key, pushed.id)));
        let new = item_of(view, &pushed.id)?.cloned().unwrap_or_else(|| Item::absent(tenant.clone()));
        let input = item::Input::Push(new_item(queue, (pushed, asked_by), terms, key));
        let (decided, _) = new.decide(&input, given.at)?.answer(());
        out.join(of_decision(StreamId::Item(pushed.id), &tenant, decided, Reply::Done));
        answers.push((pushed.id, false));
    }
    wake(view, queue, &mut out);
    Ok((out, answers))
}

fn new_item(
    queue: &Scoped,
    (pushed, asked_by): (&Pushed, &[Name]),
    terms: item::Terms,
    key: Option<Name>,
) -> item::Push {
    item::Push {
        queue: name_of(queue),
        namespace: Name::clean(queue.namespace()),
        id: pushed.id,
        data: pushed.data.clone(),
        priority: pushed.priority,
        terms,
        next_eligible_at: pushed.not_before,
        dedupe: key,
        from: pushed.from,
        asked_by: asked_by.to_vec(),
    }
}

/// Takes the best items for an outside consumer, as many as there are and it wants.
fn take_many(
    view: &dyn View,
    queue: &Scoped,
    holder: &Holder,
    max: u32,
    given: &Given<'_>,
) -> Result<Outcome, Refusal> {
    let known = queue_of(view, queue)?.ok_or(queue::Error::NotFound)?;
    known.decide(&queue::Input::Take, given.at)?;
    let best = view.best(queue, (max as usize).min(TAKE_MAX));
    gather(view, best.iter().map(|item| StreamId::Item(*item)))?;
    let tenant = tenant_of(queue);
    let (mut out, mut grants) = (Outcome::reply(Reply::Nothing), Vec::new());
    for id in best {
        let take = Take { holder: holder.clone(), worker: None, run: None, visibility: true };
        let Some(item) = item_of(view, &id)? else { continue };
        // A hint may be old: what cannot be taken is not.
        let Ok(Decision { facts, reply: item::Reply::Taken(grant), .. }) =
            item.decide(&item::Input::Take(take), given.at)
        else {
            continue;
        };
        out.facts.extend(of_stream(StreamId::Item(id), &tenant, facts, Reply::Done).facts);
        grants.push(grant);
    }
    out.reply = Reply::Taken(grants);
    Ok(out)
}

fn take(view: &dyn View, queue: &Scoped, holder: &Holder, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    let known = queue_of(view, queue)?.ok_or(queue::Error::NotFound)?;
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
    let (mut decided, reply) = item.decide(input, given.at)?.answer(());
    for fact in &mut decided.facts {
        if let Event::QueueItemRetry(e) = fact {
            e.asked_by =
                Some(crate::turn::requesters::of_actor(view, given.by)?).filter(|names| !names.is_empty());
        }
    }
    // What is said here comes from outside. A worker's run alone ends its claim, which is settled with its worker's
    // place: see `settle`.
    if let Item::Processing { claim, .. } = item
        && claim.worker.is_some()
        && input.is_report()
    {
        return Err(item::Error::Busy(claim.holder.clone()).into());
    }
    let body = item.body().ok_or_else(|| missing("item", &id))?;
    let queue = body.scoped();
    if let item::Input::Retry { .. } = input {
        let (depth, known) = view.depth(&queue, body.dedupe.as_ref());
        let back = queue::Input::PutBack { depth, known };
        queue_of(view, &queue)?.ok_or(queue::Error::NotFound)?.decide(&back, given.at)?;
    }
    let tenant = tenant_of(&queue);
    let wakes = !decided.facts.is_empty();
    let mut out = of_item(view, id, &tenant, decided, Reply::Item(reply), given)?;
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
    let (decided, _) = known.decide(input, given.at)?.answer(());
    Ok(of_decision(StreamId::Worker(id.clone()), &tenant_of(id), decided, Reply::Done))
}

/// The best item that a worker does not work on already. One that waits although its run goes on is passed over: those
/// behind it are not at fault.
fn next_item(view: &dyn View, worker: &Worker, queue: &Scoped) -> Option<ItemId> {
    let is_free = |item: &ItemId| !worker.active.contains_key(item);
    let best = view.best(queue, 1).first().copied()?;
    if is_free(&best) {
        return Some(best);
    }
    // Of so many, one at least is free.
    view.best(queue, worker.active.len() + 1).into_iter().find(is_free)
}

/// Takes the best item for a worker that has room, and makes its run: the claim, the run and the dispatch are one
/// commit. An item that lives elsewhere is taken there first, and its run is made when that is done.
fn dispatch(view: &dyn View, id: &Scoped, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    let Some(worker) = worker_of(view, id)? else { return Ok(Outcome::reply(Reply::Nothing)) };
    let Some(settings) = worker.settings().filter(|_| worker.capacity_left() > 0) else {
        return Ok(Outcome::reply(Reply::Nothing));
    };
    let Some(queue) = &worker.queue() else { return Ok(Outcome::reply(Reply::Nothing)) };
    let open =
        queue_of(view, queue)?.is_some_and(|known| known.decide(&queue::Input::Take, given.at).is_ok());
    let Some(best) = next_item(view, worker, queue).filter(|_| open) else {
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
    let taken = item.decide(&item::Input::Take(take.clone()), given.at)?;
    let epoch = match &taken.reply {
        item::Reply::Taken(grant) => grant.epoch,
        item::Reply::Done | item::Reply::AlreadyDone | item::Reply::Beating(_) | item::Reply::Dropped => {
            return Ok(Outcome::reply(Reply::Nothing));
        }
    };
    let dispatched = worker.decide(&worker::Input::Dispatch { item: best, run, epoch }, given.at)?;
    let made = match settings.poll {
        None => make_run(view, id, settings, (best, body), run, given),
        Some(_) => external::take(view, id, settings, (best, body), run, given),
    };
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
        // Time alone helps: the worker comes back by itself.
        Err(Refusal::Error { message, retry_at: Some(until), .. }) => {
            on_worker(view, id, &worker::Input::Delay { until, reason: message }, given)
        }
        // An item that cannot become a run is at fault itself: it fails, and the next one has its turn.
        Err(Refusal::Error { code, message, .. }) if code != Code::CapExceeded => {
            // The run that was meant for it is not made, so the claim names none.
            let taken = item.decide(&item::Input::Take(Take { run: None, ..take }), given.at)?;
            let claimed = taken.facts.iter().fold(item.clone(), |item, fact| item.apply(fact, given.at));
            let fail =
                item::Input::Fail { epoch, error: alloc::format!("{code}: {message}"), retryable: false };
            let (mut decided, _) = taken.answer(());
            decided.join(claimed.decide(&fail, given.at)?);
            let mut out = of_item(view, best, &tenant, decided, Reply::Done, given)?;
            out.follow.push(Command::Dispatch { worker: id.clone() });
            Ok(out)
        }
        Err(refusal) => Err(refusal),
    }
}

/// The run of a worker's item.
fn make_run(
    view: &dyn View,
    id: &Scoped,
    settings: &worker::Settings,
    (item, body): (ItemId, &item::Body),
    run: RunId,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let vars = variables(view, settings, id, &body.data.get(), given)?;
    let home = Home {
        tenant: tenant_of(id),
        namespace: Name::clean(id.namespace()),
        runbook: settings.runbook_hash,
        cwd: settings.project_root.clone(),
    };
    let trigger = Trigger {
        key: idempotency::queue(item, body.epoch + 1).ok(),
        event_id: Some(Name::clean(&item.to_string())),
        of: Some(name_of(id)),
        ..Trigger::of(Source::Queue)
    };
    let create = Create::new(run, home, settings.pipeline.clone(), vars, trigger);
    let create = Create { priority: body.priority, ..create };
    // Of an item of before it was known, anybody may have pushed it.
    let asked_by = body.lot.asked_by.clone().unwrap_or_else(|| alloc::vec![Name::clean(requesters::UNNAMED)]);
    crate::turn::creation::create_for(view, &create, asked_by, given)
}

/// The clock's look at a worker: a cap has room again, or its external queue is to be listed.
pub(crate) fn tick_worker(view: &dyn View, id: &Scoped, given: &Given<'_>) -> Result<Outcome, Refusal> {
    let mut out = Outcome::reply(Reply::Done);
    let Some(worker) = worker_of(view, id)? else { return Ok(out) };
    let is_due = |time: Option<Millis>| time.is_some_and(|due| due <= given.at);
    if is_due(worker.delayed_until) {
        out.follow.push(Command::Dispatch { worker: id.clone() });
        out.effects.extend(external::take_again(view, worker)?);
    }
    if let worker::State::Started(settings) = &worker.state
        && is_due(worker.poll_at)
    {
        out.effects.push(external::list(id, settings));
    }
    Ok(out)
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

/// The run of a worker's item has ended: the claim ends with it, and the worker has a place free. A failed run is a failed
/// try; one that somebody cancelled is not tried again, or the cancel would only begin it anew.
fn settle(
    view: &dyn View,
    id: ItemId,
    worker: &Scoped,
    (run, status): (RunId, Status),
    error: Option<&String>,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let succeeded = status == Status::Completed;
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
            item::Input::Fail { epoch, error, retryable: status != Status::Cancelled }
        };
        let (decided, _) = item.decide(&input, given.at)?.answer(());
        out = of_item(view, id, &tenant, decided, Reply::Done, given)?;
    }
    if let Some(known) = worker_of(view, worker)? {
        let input = worker::Input::Settle { item: id, run, succeeded };
        let (decided, _) = known.decide(&input, given.at)?.answer(());
        out.join(of_decision(StreamId::Worker(worker.clone()), &tenant, decided, Reply::Done));
    }
    Ok(out)
}
