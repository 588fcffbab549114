//! External queues: the items live elsewhere; a command lists them, and a command takes one.
//!
//! ```text
//! clock ─▶ list (outside) ─▶ polled: new items are pushed ─▶ dispatch: claimed for a run ─▶ take (outside)
//!                                                                      run made ◀─ took │ refused ─▶ item dropped
//! ```
//!
//! What is listed is known by its key while it waits or is worked on, so listing it again pushes nothing. The claim is
//! recorded before the command that takes runs: after a crash it runs again, for the same item and the same run.

use super::{make_run, of_item, on_worker, push_all};
use crate::effect::Effect;
use crate::event::WorkerPollComplete;
use crate::follow::Follow;
use crate::id::{ItemId, RunId, Scoped};
use crate::item::{self, Item};
use crate::machine::Given;
use crate::private::Private;
use crate::stream::StreamId;
use crate::turn::command::{Outcome, Pushed, Refusal, Reply};
use crate::turn::state::{Body, State};
use crate::turn::{View, item_of, name_of, of_stream, run_of, tenant_of, worker_of};
use crate::worker::{self, Worker};
use alloc::string::String;
use alloc::vec::Vec;
use serde_json::Value;

/// The question what the queue of a worker holds.
pub(super) fn list(worker: &Scoped, settings: &worker::Settings) -> Effect {
    Effect::ListItems {
        worker: worker.clone(),
        runbook: settings.runbook_hash,
        queue: settings.queue.clone(),
        project_root: settings.project_root.clone(),
    }
}

/// A list came, or did not. What does not fit into the queue is listed again the next time.
pub(super) fn polled(
    view: &dyn View,
    id: &Scoped,
    listed: &Result<Vec<Pushed>, String>,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let Some(queue) = worker_of(view, id)?.and_then(Worker::queue) else {
        return Ok(Outcome::reply(Reply::Nothing));
    };
    let (pushed, error) = match listed {
        Ok(items) => {
            match push_all(view, &queue, items, &crate::turn::requesters::of_actor(view, given.by)?, given) {
                Ok((out, answers)) => (Some((out, items.len(), found(items, &answers))), None),
                Err(needs @ Refusal::Need(_)) => return Err(needs),
                Err(Refusal::Error { message, .. }) => (None, Some(message)),
            }
        }
        Err(message) => (None, Some(message.clone())),
    };
    let count = pushed.as_ref().map_or(0, |(_, count, _)| u32::try_from(*count).unwrap_or(u32::MAX));
    let mut out = on_worker(view, id, &worker::Input::Polled { listed: count, error }, given)?;
    if let Some((pushed, _, found)) = pushed {
        if !found.is_empty() {
            let items = Private::New(Value::Array(found));
            let complete = WorkerPollComplete { worker_name: name_of(id), items };
            let stream = StreamId::Worker(id.clone());
            out.facts
                .extend(of_stream(stream, &tenant_of(id), alloc::vec![complete.into()], Reply::Done).facts);
        }
        out.join(pushed);
    }
    Ok(out)
}

/// What a list brought that was not known before.
fn found(items: &[Pushed], answers: &[(ItemId, bool)]) -> Vec<Value> {
    let new = |item: &&Pushed| answers.iter().any(|(id, known)| *id == item.id && !known);
    items.iter().filter(new).map(|item| item.data.clone()).collect()
}

/// The command that takes an item, for a run that a cap admits.
pub(super) fn take(
    view: &dyn View,
    id: &Scoped,
    settings: &worker::Settings,
    (item, body): (ItemId, &item::Body),
    run: RunId,
    given: &Given<'_>,
) -> Result<Outcome, Refusal> {
    view.admit_run(&tenant_of(id), &settings.runbook_hash, &[], given.at)?;
    let mut out = Outcome::reply(Reply::Done);
    out.effects.push(taking(id, settings, (item, body), run));
    Ok(out)
}

fn taking(
    worker: &Scoped,
    settings: &worker::Settings,
    (item, body): (ItemId, &item::Body),
    run: RunId,
) -> Effect {
    Effect::TakeItem {
        worker: worker.clone(),
        runbook: settings.runbook_hash,
        queue: settings.queue.clone(),
        project_root: settings.project_root.clone(),
        item,
        run,
        data: body.data.get(),
    }
}

/// The command that takes an item has ended. Where it did not succeed, somebody else has the item, or nobody can.
pub(super) fn took(
    view: &dyn View,
    id: &Scoped,
    item: ItemId,
    run: RunId,
    error: Option<&String>,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let Some(worker) = worker_of(view, id)? else { return Ok(Outcome::reply(Reply::Nothing)) };
    let claimed = worker.active.get(&item) == Some(&run);
    if !claimed || run_of(view, &run)?.is_some() {
        return Ok(Outcome::reply(Reply::Done));
    }
    let held = item_of(view, &item)?
        .filter(|known| matches!(known, Item::Processing { claim, .. } if claim.run == Some(run)));
    let Some(known) = held else {
        // It was dropped meanwhile; the worker has its place back.
        return settle(view, (item, id, run), given);
    };
    if let Some(error) = error {
        // Not its fault and not to be tried again here: the next list shows it if it is still to be had.
        let reason = Some(alloc::format!("{}: {error}", item::NOT_TAKEN));
        return give_up(view, known, &item::Input::Drop { reason }, (item, id, run), given);
    }
    let (Some(body), Some(settings)) = (known.body(), worker.settings()) else {
        return Ok(Outcome::reply(Reply::Nothing));
    };
    match make_run(view, id, settings, (item, body), run, given) {
        // The cap had room when the item was claimed. It stays claimed until there is room again.
        Err(Refusal::Error { message, retry_at: Some(until), .. }) => {
            on_worker(view, id, &worker::Input::Delay { until, reason: message }, given)
        }
        // An item that cannot become a run is at fault itself.
        Err(Refusal::Error { code, message, .. }) => {
            let error = alloc::format!("{code}: {message}");
            let fail = item::Input::Fail { epoch: body.epoch, error, retryable: false };
            give_up(view, known, &fail, (item, id, run), given)
        }
        made => made,
    }
}

/// Ends what a claim was for, and gives the worker its place back.
fn give_up(
    view: &dyn View,
    known: &Item,
    input: &item::Input,
    place: (ItemId, &Scoped, RunId),
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let (mut decided, _) = known.decide(input, given.at)?.answer(());
    // The run that a drop would cancel was never made.
    decided.follow.retain(|follow| !matches!(follow, Follow::Cancel { .. }));
    let mut out = of_item(view, place.0, &tenant_of(place.1), decided, Reply::Done, given)?;
    out.join(settle(view, place, given)?);
    Ok(out)
}

fn settle(
    view: &dyn View,
    (item, worker, run): (ItemId, &Scoped, RunId),
    given: &Given<'_>,
) -> Result<Outcome, Refusal> {
    on_worker(view, worker, &worker::Input::Settle { item, run, succeeded: false }, given)
}

/// Takes again what a cap kept from becoming a run.
pub(super) fn take_again(view: &dyn View, worker: &Worker) -> Result<Vec<Effect>, Refusal> {
    let Some(settings) = worker.settings().filter(|settings| settings.poll.is_some()) else {
        return Ok(Vec::new());
    };
    let mut effects = Vec::new();
    for (&item, &run) in &worker.active {
        if run_of(view, &run)?.is_none()
            && let Some(body) = item_of(view, &item)?.and_then(Item::body)
        {
            effects.push(taking(&worker.id, settings, (item, body), run));
        }
    }
    Ok(effects)
}

impl State {
    /// Items of external queues that are claimed for runs which are not made yet: they are taken there, again after a
    /// crash.
    pub(crate) fn to_be_taken(&self, worker: &Worker) -> Vec<Effect> {
        let Some(settings) = worker.settings().filter(|settings| settings.poll.is_some()) else {
            return Vec::new();
        };
        let open = worker.active.iter().filter(|(_, run)| self.run(**run).is_none());
        let taking = |(&id, &run): (&ItemId, &RunId)| match self.stream(&StreamId::Item(id)).map(|s| &s.body)
        {
            Some(Body::Item(known)) => known.body().map(|body| taking(&worker.id, settings, (id, body), run)),
            Some(_) | None => None,
        };
        open.filter_map(taking).collect()
    }
}
