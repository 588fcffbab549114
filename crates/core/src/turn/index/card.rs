//! What a stream is filed by, as its body says.

use super::{Card, ItemCard, Kind, WorkerCard, run_card};
use crate::caps::Kept;
use crate::digest::Digest;
use crate::item::Item;
use crate::machine::Beats;
use crate::queue::Spot;
use crate::runbook::Runbook;
use crate::turn::state::{Body, Stream};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;

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
            let outside = lock.holder().filter(|holder| !holder.is_inside());
            card.kind = Kind::Lock(outside.cloned().map(Box::new));
        }
        Body::Semaphore(semaphore) => {
            card.due = semaphore.due(beats);
            let outside = semaphore.holders.keys().filter(|holder| !holder.is_inside());
            card.kind = Kind::Semaphore(outside.cloned().collect());
        }
        Body::Schedule(schedule) => card.due = schedule.due(),
        Body::Trigger(key) => card.due = key.due(),
        Body::Signal(signals) => {
            card.due = signals.due();
            card.kind = Kind::Signals(Box::new(signals.size()));
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
