//! External queues: the items live elsewhere; a command lists them, and a command takes one.
//!
//! ```text
//! clock ─▶ list (outside) ─▶ polled: new items are pushed ─▶ dispatch: claimed for a run ─▶ take (outside)
//!                                                                      run made ◀─ took │ refused ─▶ item dropped
//! ```
//!
//! What is listed is known by its key while it waits or is worked on, so listing it again pushes nothing. The claim is
//! recorded before the command that takes runs: after a crash it runs again, for the same item and the same run.

use super::{make_run, on_worker, push_all};
use crate::command::{Command, Outcome, Pushed, Refusal, Reply};
use crate::effect::Effect;
use crate::id::{ItemId, RunId, Scoped};
use crate::item::{self, Item};
use crate::machine::Given;
use crate::state::{Body, State};
use crate::stream::StreamId;
use crate::turn::{View, item_of, of_stream, run_of, tenant_of, worker_of};
use crate::worker::{self, Worker};
use alloc::string::String;
use alloc::vec::Vec;

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
        Ok(items) => match push_all(view, &queue, items, given) {
            Ok((out, _)) => (Some((out, items.len())), None),
            Err(needs @ Refusal::Need(_)) => return Err(needs),
            Err(Refusal::Error { message, .. }) => (None, Some(message)),
        },
        Err(message) => (None, Some(message.clone())),
    };
    let count = pushed.as_ref().map_or(0, |(_, count)| u32::try_from(*count).unwrap_or(u32::MAX));
    let mut out = on_worker(view, id, &worker::Input::Polled { listed: count, error }, given)?;
    if let Some((pushed, _)) = pushed {
        out.facts.extend(pushed.facts);
        out.follow.extend(pushed.follow);
    }
    Ok(out)
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
    view.admit_run(&tenant_of(id), &settings.runbook_hash, given.at)?;
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
    let failed = match (held.and_then(Item::body), worker.settings(), error) {
        (Some(body), Some(settings), None) => match make_run(view, id, settings, (item, body), run, given) {
            Err(Refusal::Error { code, message, .. }) => alloc::format!("{code}: {message}"),
            made => return made,
        },
        (_, _, Some(error)) => error.clone(),
        // It was dropped meanwhile.
        (None, _, None) | (_, None, None) => String::from("the item is not there any more"),
    };
    let settle =
        Command::SettleItem { item, worker: id.clone(), run, succeeded: false, error: Some(failed.clone()) };
    let mut out = Outcome::reply(Reply::Done);
    if let Some(known) = held {
        // Not its fault and not to be tried again here: the next list shows it if it is still to be had.
        let reason = Some(alloc::format!("it could not be taken: {failed}"));
        let dropped = known.decide(&item::Input::Drop { reason }, given.at)?;
        out = of_stream(StreamId::Item(item), &tenant_of(id), dropped.facts, Reply::Done);
    }
    out.follow.push(settle);
    Ok(out)
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
