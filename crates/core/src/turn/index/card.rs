//! What a stream is filed by, as its body says.

use super::{Card, ItemCard, Kind, WorkerCard, run_card};
use crate::caps::Kept;
use crate::digest::Digest;
use crate::id::Holder;
use crate::item::Item;
use crate::machine::Beats;
use crate::queue::Spot;
use crate::runbook::Runbook;
use crate::turn::state::{Body, Stream};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

pub(super) fn card(stream: &Stream, beats: &Beats, books: &BTreeMap<Digest, Arc<Runbook>>) -> Card {
    let mut card = Card::default();
    match &stream.body {
        Body::Run(run) => {
            card.due = run.due();
            card.lease_due = run.lease_due();
            card.kind = Kind::Run(run_card(run, books.get(&run.born.home.runbook)));
        }
        Body::Item(item) => {
            card.due = item.due();
            let mut beaten = None;
            if let Item::Processing { body, claim } = &**item
                && claim.visible_at.is_some()
            {
                let last_seen = beats.last_seen(&claim.holder, body.since);
                card.due = Some(last_seen + body.lot.terms.visibility_timeout);
                beaten = Some(Box::new(claim.holder.clone()));
            }
            if let (Some(body), Some(spot)) = (item.body(), Spot::of(item)) {
                card.kind = Kind::Item(ItemCard { lot: body.lot.clone(), spot, beaten });
            }
        }
        Body::Lock(lock) => {
            card.due = lock.due(beats);
            card.kind = held(lock.holder().into_iter());
        }
        Body::Semaphore(semaphore) => {
            card.due = semaphore.due(beats);
            card.kind = held(semaphore.holders.keys());
        }
        Body::Schedule(schedule) => card.due = schedule.due(),
        Body::Trigger(key) => card.due = key.due(),
        Body::Signal(signals) => {
            card.due = signals.due();
            card.kind = Kind::Signals(signals.size());
        }
        Body::Runbook(runbook) => {
            card.kind = Kind::Runbook(Box::new((stream.tenant.clone(), Kept::of_runbook(runbook))));
        }
        Body::Worker(worker) => {
            card.due = worker.due_after(None);
            if let (Some(queue), Some(settings)) = (worker.queue(), worker.settings()) {
                let wake_on = settings.wake_on.clone();
                card.kind = Kind::Worker(Box::new(WorkerCard { queue, wake_on }));
            }
        }
        Body::Queue(_)
        | Body::Retired(_)
        | Body::Effect(_)
        | Body::Deployment(_)
        | Body::Workspace(_)
        | Body::Session(_)
        | Body::Tenant(_)
        | Body::Tokens(_)
        | Body::System(_) => {}
    }
    card
}

fn held<'a>(holders: impl Iterator<Item = &'a Holder>) -> Kind {
    let outside: Vec<Holder> = holders.filter(|holder| !holder.is_inside()).cloned().collect();
    if outside.is_empty() { Kind::Plain } else { Kind::Held(outside) }
}
