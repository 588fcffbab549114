//! What an item has in every state, and the facts that follow from what happens to it.
//!
//! The machine next door says which of these may happen when; here is what each of them records.

use super::{Claim, Decision, Error, Grant, Reply, Take};
use crate::event::{
    QueueFailed, QueueItemDead, QueueItemDropped, QueueItemRetried, QueuePushed, QueueReturned, QueueTaken,
};
use crate::id::{ItemId, Name, RunId, Scoped};
use crate::machine::Beats;
use crate::packed::Packed;
use crate::private::Private;
use crate::requesters;
use crate::time::{Millis, Span};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// The most bytes that are kept of an error or a reason.
pub const TEXT_LEN_MAX: usize = 4096;

/// What an item takes over from its queue when it is pushed. A later change of the queue does not touch it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// How many tries there are in total.
    pub max_attempts: u32,
    /// How long an item rests after a failed try.
    pub cooldown: Span,
    /// How long an outside consumer may be silent.
    pub visibility_timeout: Span,
    /// Where dead items are forwarded to, in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<Name>,
}

/// The last failed try.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// The claim that reported it.
    pub epoch: u64,
    /// What went wrong; absent where it was redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The last claim, which is known after it has ended too.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claimed {
    /// When it was given.
    pub at: Millis,
    /// The run that worked on the item, where one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
}

/// What the items of one queue have in common. A million of them share one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lot {
    /// Whose they are.
    pub tenant: Name,
    /// The subdivision of the tenant.
    pub namespace: Name,
    /// The queue they are in.
    pub queue: Name,
    /// What they took over from it.
    pub terms: Terms,
    /// Who counts as having asked for the runs that work on them; absent in records of before it was known.
    pub asked_by: Option<Vec<Name>>,
}

/// What an item has in every state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Body {
    /// Where it is, and what it took over from there.
    pub lot: Arc<Lot>,
    /// The item itself.
    pub id: ItemId,
    /// What is to be worked on; null where it was redacted.
    pub data: Packed,
    /// Whether the data was taken out of the log.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub redacted: bool,
    /// Higher is taken first.
    pub priority: i32,
    /// When it was pushed. Among equals the older is taken first.
    pub pushed_at: Millis,
    /// The key that keeps a second one out while this one is pending or processing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedupe: Option<Name>,
    /// The dead item that this one forwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Box<ItemId>>,
    /// Tries begun since it was pushed or put back by hand.
    pub attempts: u32,
    /// The highest epoch ever granted; 0 before the first claim.
    pub epoch: u64,
    /// The last failed try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Box<Failure>>,
    /// Since when it is in its state.
    pub since: Millis,
    /// The last claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed: Option<Box<Claimed>>,
}

/// The saved form: there may be a million of it, so it has no keys.
type SavedLot<N> = (N, N, N, u32, Span, Span, Option<N>, Option<Vec<Name>>);

impl Serialize for Lot {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let Lot { tenant, namespace, queue, terms, asked_by } = self;
        let Terms { max_attempts, cooldown, visibility_timeout, dead_letter } = terms;
        let (dead_letter, asked_by) = (dead_letter.as_ref(), asked_by.clone());
        let saved: SavedLot<&Name> =
            (tenant, namespace, queue, *max_attempts, *cooldown, *visibility_timeout, dead_letter, asked_by);
        saved.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Lot {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let saved = SavedLot::<Name>::deserialize(d)?;
        let (tenant, namespace, queue, max_attempts, cooldown, visibility_timeout, dead_letter, asked_by) =
            saved;
        let terms = Terms { max_attempts, cooldown, visibility_timeout, dead_letter };
        Ok(Lot { tenant, namespace, queue, terms, asked_by })
    }
}

impl Lot {
    /// The queue, with its tenant and namespace.
    #[must_use]
    pub fn scoped(&self) -> Scoped {
        Scoped::new(&self.tenant, &self.namespace, &self.queue)
    }
}

impl Body {
    /// The queue, with its tenant and namespace.
    #[must_use]
    pub fn scoped(&self) -> Scoped {
        self.lot.scoped()
    }

    /// Until when a claim that times out lasts, as far as its holder has been heard of.
    #[must_use]
    pub fn lives_until(&self, claim: &Claim, beats: &Beats) -> Millis {
        beats.last_seen(&claim.holder, self.since) + self.lot.terms.visibility_timeout
    }

    /// What a push makes.
    pub(super) fn pushed(tenant: Name, e: &QueuePushed, at: Millis) -> Body {
        let (data, redacted) = revealed(&e.data);
        let terms = Terms {
            max_attempts: e.max_attempts,
            cooldown: Span(e.cooldown_ms),
            visibility_timeout: Span(e.visibility_timeout_ms),
            dead_letter: e.dead_letter.clone(),
        };
        let (namespace, queue) = (e.namespace.clone(), e.queue_name.clone());
        Body {
            lot: Arc::new(Lot { tenant, namespace, queue, terms, asked_by: e.asked_by.clone() }),
            id: e.item_id,
            data,
            redacted,
            priority: e.priority,
            pushed_at: e.pushed_at_epoch_ms,
            dedupe: e.dedupe.clone(),
            from: e.from.map(Box::new),
            attempts: 0,
            epoch: 0,
            failure: None,
            since: at,
            claimed: None,
        }
    }

    /// Somebody else asked for it.
    pub(super) fn asked(&mut self, more: &[Name]) {
        if !more.is_empty() {
            let lot = Arc::make_mut(&mut self.lot);
            requesters::add(lot.asked_by.get_or_insert_default(), more.iter().cloned());
        }
    }

    /// Refuses every other epoch than the current claim's.
    pub(super) fn fence(&self, epoch: u64) -> Result<(), Error> {
        if epoch == self.epoch { Ok(()) } else { Err(Error::Stale { epoch, current: self.epoch }) }
    }

    /// The current claim's grant.
    pub(super) fn grant(&self, visible_at: Option<Millis>) -> Grant {
        Grant { item: self.id, epoch: self.epoch, attempts: self.attempts, visible_at }
    }

    /// A new claim, under the next epoch.
    pub(super) fn take(&self, take: &Take, at: Millis) -> Decision<Reply> {
        let grant = Grant {
            item: self.id,
            epoch: self.epoch.saturating_add(1),
            attempts: self.attempts.saturating_add(1),
            visible_at: take.visibility.then(|| at + self.lot.terms.visibility_timeout),
        };
        let fact = QueueTaken {
            queue_name: self.lot.queue.clone(),
            item_id: self.id,
            worker_name: take.worker.clone(),
            namespace: self.lot.namespace.clone(),
            holder: take.holder.clone(),
            epoch: grant.epoch,
            attempts: grant.attempts,
            visible_at: grant.visible_at,
            pipeline_id: take.run,
        };
        Decision::reply(Reply::Taken(grant)).fact(fact)
    }

    /// A failed try: again after a rest, for good, or the last one.
    pub(super) fn fail(&self, error: &str, retryable: bool, at: Millis) -> Decision<Reply> {
        let decision = Decision::reply(Reply::Done).fact(self.failed(error));
        if !retryable || self.has_one_try() {
            decision
        } else if self.is_last_try() {
            self.die(decision, error)
        } else {
            decision.fact(QueueItemRetried {
                queue_name: self.lot.queue.clone(),
                item_id: self.id,
                namespace: self.lot.namespace.clone(),
                attempts: self.attempts,
                next_eligible_at: at + self.lot.terms.cooldown,
            })
        }
    }

    /// A silent holder lost its claim. The return is recorded in any case, because it says who was last seen when.
    pub(super) fn expire(&self, last_seen: Millis) -> Decision<Reply> {
        const WHY: &str = "the visibility time-out ran out";
        let decision = Decision::reply(Reply::Done).fact(self.returned(Some(last_seen)));
        if self.has_one_try() {
            decision.fact(self.failed(WHY))
        } else if self.is_last_try() {
            self.die(decision, WHY)
        } else {
            decision
        }
    }

    fn failed(&self, error: &str) -> QueueFailed {
        QueueFailed {
            queue_name: self.lot.queue.clone(),
            item_id: self.id,
            error: Private::New(cut(error)),
            namespace: self.lot.namespace.clone(),
            epoch: self.epoch,
            attempts: self.attempts,
        }
    }

    /// Whether its queue neither tries again nor hands on what failed: a failure is final then, and nothing died of it.
    fn has_one_try(&self) -> bool {
        self.lot.terms.max_attempts <= 1 && self.lot.terms.dead_letter.is_none()
    }

    fn is_last_try(&self) -> bool {
        self.attempts >= self.lot.terms.max_attempts
    }

    fn die(&self, decision: Decision<Reply>, reason: &str) -> Decision<Reply> {
        // Redacted data cannot be handed on: the item stays here only.
        let forward = self.lot.terms.dead_letter.as_ref().filter(|_| !self.redacted);
        decision.fact(QueueItemDead {
            queue_name: self.lot.queue.clone(),
            item_id: self.id,
            namespace: self.lot.namespace.clone(),
            attempts: self.attempts,
            reason: Private::New(cut(reason)),
            forwarded_to: forward.cloned(),
        })
    }

    /// The claim is over without a result; `last_seen` where it timed out.
    pub(super) fn returned(&self, last_seen: Option<Millis>) -> QueueReturned {
        QueueReturned {
            queue_name: self.lot.queue.clone(),
            item_id: self.id,
            namespace: self.lot.namespace.clone(),
            epoch: self.epoch,
            timed_out: last_seen.is_some(),
            last_seen,
        }
    }

    /// Somebody took the item out.
    pub(super) fn dropped(&self, reason: Option<&str>) -> Decision<Reply> {
        Decision::reply(Reply::Done).fact(QueueItemDropped {
            queue_name: self.lot.queue.clone(),
            item_id: self.id,
            namespace: self.lot.namespace.clone(),
            reason: reason.map(cut),
        })
    }
}

/// What is kept of an item's data, and whether it was taken out of the log.
pub(super) fn revealed(data: &Private<Packed>) -> (Packed, bool) {
    (data.get().unwrap_or_else(|| Packed::of(&Value::Null)), data.value().is_none())
}

/// The text, or as much of it as is kept.
fn cut(text: &str) -> String {
    String::from(&text[..text.floor_char_boundary(TEXT_LEN_MAX)])
}
