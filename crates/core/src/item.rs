//! A queue item: one piece of work, claimed under an epoch, tried until it is done or given up.
//!
//! ```text
//!              ┌── return, expire, fail (cools down) ──┐
//!              ▼                                       │
//!  push ──▶ pending ── take: epoch + 1, attempt + 1 ─▶ processing ── complete ──▶ completed*
//!              ▲ │                                     │  │  └── fail, no other try ───▶ failed*
//!              │ └── drop ──▶ dropped* ◀──── drop ─────┘  └── last try fails or expires ─▶ dead*
//!              └── retry, by hand: attempts start again ──── failed*, dead*
//! ```
//!
//! The epoch only grows, also across a retry by hand, and whoever reports under another one than the claim's
//! changes nothing. Attempts live here and count what was begun: a claim that is handed back gives its
//! attempt back, one that times out does not. `max_attempts` is total tries. A claim of a worker's run has no
//! time-out: the run holds it until it is terminal, however long it waits.

mod body;
pub use body::{Body, Claimed, Failure, Lot, TEXT_LEN_MAX, Terms};

use crate::code::Code;
use crate::event::{Event, QueueCompleted, QueueItemRetry, QueuePushed};
use crate::follow::Follow;
use crate::id::{Holder, ItemId, Name, RunId};
use crate::machine::{Decision, Row, table};
use crate::packed::Packed;
use crate::private::Private;
use crate::time::Millis;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Why an item was dropped that nobody took out.
const RETENTION: &str = "retention";

/// How the reason begins of an item of an external queue that was claimed for a run and could not be taken: the run was never
/// made.
pub const NOT_TAKEN: &str = "it could not be taken";

/// What can happen to an item.
pub const TABLE: &[Row] = table! {
    "absent": "push" => "pending";
    "pending": "push" => "pending";
    "pending": "take" => "processing";
    "pending": "fail" => "pending";
    "pending": "return" => "pending";
    "pending": "drop" => "dropped";
    "pending": "forget" => "pending";
    "processing": "push" => "processing";
    "processing": "take" => "processing";
    "processing": "heartbeat" => "processing";
    "processing": "complete" => "completed";
    "processing": "fail" => "pending" | "failed" | "dead";
    "processing": "return" => "pending";
    "processing": "expire" => "pending" | "failed" | "dead";
    "processing": "drop" => "dropped";
    "processing": "forget" => "processing";
    "completed": "push" => "completed";
    "completed": "complete" => "completed";
    "completed": "forget" => "completed";
    "failed": "push" => "failed";
    "failed": "fail" => "failed";
    "failed": "retry" => "pending";
    "failed": "drop" => "dropped";
    "failed": "forget" => "failed" | "dropped";
    "dead": "push" => "dead";
    "dead": "fail" => "dead";
    "dead": "retry" => "pending";
    "dead": "drop" => "dropped";
    "dead": "forget" => "dead" | "dropped";
    "dropped": "push" => "dropped";
    "dropped": "complete" => "dropped";
    "dropped": "fail" => "dropped";
    "dropped": "return" => "dropped";
    "dropped": "drop" => "dropped";
    "dropped": "forget" => "dropped";
};

/// Who works on an item. The claim's epoch is the body's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Who holds it.
    pub holder: Holder,
    /// The worker that dispatched it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Name>,
    /// The run that works on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// When it is given to another unless it beats; absent where the run holds it until its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visible_at: Option<Millis>,
}

/// An item and where it stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Item {
    /// Nothing was pushed under this id. A push moves it on.
    Absent {
        /// Whose it will be.
        tenant: Name,
    },
    /// Waits to be taken. A worker or an outside consumer moves it on.
    Pending {
        /// The item.
        body: Body,
        /// Not before this time: it was delayed, or cools down.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next_eligible_at: Option<Millis>,
    },
    /// Somebody works on it: the holder moves it on, or its silence.
    Processing {
        /// The item.
        body: Body,
        /// Who.
        claim: Box<Claim>,
    },
    /// Done. Terminal.
    Completed {
        /// The item.
        body: Body,
    },
    /// Failed in a way that another try would not mend, or in a queue that does not try again. Only a retry by hand or a
    /// drop moves it on.
    Failed {
        /// The item.
        body: Body,
    },
    /// The last try failed. Only a retry by hand or a drop moves it on.
    Dead {
        /// The item.
        body: Body,
        /// What became of the last try; absent where it was redacted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// Taken out by somebody. Terminal.
    Dropped {
        /// The item.
        body: Body,
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
}

/// A new item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// The queue.
    pub queue: Name,
    /// Its namespace.
    pub namespace: Name,
    /// The item's id.
    pub id: ItemId,
    /// What is to be worked on.
    pub data: Value,
    /// Higher is taken first.
    pub priority: i32,
    /// What the queue's settings say.
    pub terms: Terms,
    /// Not before this time.
    pub next_eligible_at: Option<Millis>,
    /// The key it is known by while it is not done.
    pub dedupe: Option<Name>,
    /// The dead item that it forwards.
    pub from: Option<ItemId>,
    /// Who counts as having asked for the run that works on it.
    pub asked_by: Vec<Name>,
}

/// A wish to work on an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// Who.
    pub holder: Holder,
    /// The worker that dispatches it.
    pub worker: Option<Name>,
    /// The run made for it.
    pub run: Option<RunId>,
    /// Whether the claim times out. A worker's run does not.
    pub visibility: bool,
}

/// What an item is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Come into being.
    Push(Push),
    /// Be claimed.
    Take(Take),
    /// The holder lives. Not a fact: the caller moves the deadline.
    Heartbeat { epoch: u64 },
    /// The holder is done.
    Complete { epoch: u64 },
    /// The holder's try failed.
    Fail { epoch: u64, error: String, retryable: bool },
    /// The holder hands the claim back unused.
    Return { epoch: u64 },
    /// The holder was silent for too long.
    Expire { epoch: u64, last_seen: Millis },
    /// Somebody puts a failed or dead item back, with new data where that was the fault.
    Retry { data: Option<Value> },
    /// Somebody takes the item out.
    Drop { reason: Option<String> },
    /// It is kept no longer where it failed or died before this time.
    Forget { before: Millis },
}

impl Input {
    /// Its name in the table.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Input::Push(_) => "push",
            Input::Take(_) => "take",
            Input::Heartbeat { .. } => "heartbeat",
            Input::Complete { .. } => "complete",
            Input::Fail { .. } => "fail",
            Input::Return { .. } => "return",
            Input::Expire { .. } => "expire",
            Input::Retry { .. } => "retry",
            Input::Drop { .. } => "drop",
            Input::Forget { .. } => "forget",
        }
    }

    /// Whether it is what a holder says about its claim.
    #[must_use]
    pub const fn is_report(&self) -> bool {
        match self {
            Input::Heartbeat { .. } | Input::Complete { .. } | Input::Fail { .. } | Input::Return { .. } => {
                true
            }
            Input::Push(_)
            | Input::Take(_)
            | Input::Expire { .. }
            | Input::Retry { .. }
            | Input::Drop { .. }
            | Input::Forget { .. } => false,
        }
    }
}

/// What a claim grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The item.
    pub item: ItemId,
    /// The fence: reports under another epoch are refused.
    pub epoch: u64,
    /// Which try this is, from 1.
    pub attempts: u32,
    /// When the claim ends unless it beats.
    pub visible_at: Option<Millis>,
}

/// An item's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is as asked.
    Done,
    /// It was so before; nothing changed.
    AlreadyDone,
    /// The claim.
    Taken(Grant),
    /// The claim holds until then; for good where there is no time.
    Beating(Option<Millis>),
    /// The item was dropped while the claim was held: the result is not kept.
    Dropped,
}

/// Why an item refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing was pushed under this id.
    #[error("there is no such item")]
    NotFound,
    /// The claim ended, or another one was given since.
    #[error("the claim with epoch {epoch} is over; the item is at epoch {current}")]
    Stale { epoch: u64, current: u64 },
    /// Somebody else works on it.
    #[error("the item is claimed by {0}")]
    Busy(Holder),
    /// Its time has not come.
    #[error("not before {0}")]
    NotDue(Millis),
    /// The claim has no time-out: its run ends it.
    #[error("the claim does not time out: it ends with its run")]
    NoTimeout,
    /// That cannot happen in this state.
    #[error("cannot {input} an item that is {state}")]
    State { state: &'static str, input: &'static str },
    /// The item has ended.
    #[error("cannot {input} an item that is {state}")]
    Ended { state: &'static str, input: &'static str },
}

impl Error {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Error::NotFound => Code::NotFound,
            Error::Stale { .. } => Code::LeaseStaleEpoch,
            Error::Busy(_) => Code::LockBusy,
            Error::NotDue(_) | Error::NoTimeout | Error::State { .. } => Code::RunInvalidTransition,
            Error::Ended { .. } => Code::RunTerminalState,
        }
    }
}

type Answer = Result<Decision<Reply>, Error>;

impl Item {
    /// The item before its push. The tenant is its stream's: the facts do not repeat it.
    #[must_use]
    pub const fn absent(tenant: Name) -> Item {
        Item::Absent { tenant }
    }

    /// Its state, as the table names it.
    #[must_use]
    pub const fn state_name(&self) -> &'static str {
        match self {
            Item::Absent { .. } => "absent",
            Item::Pending { .. } => "pending",
            Item::Processing { .. } => "processing",
            Item::Completed { .. } => "completed",
            Item::Failed { .. } => "failed",
            Item::Dead { .. } => "dead",
            Item::Dropped { .. } => "dropped",
        }
    }

    /// What it has in every state, once it was pushed.
    #[must_use]
    pub const fn body(&self) -> Option<&Body> {
        match self {
            Item::Absent { .. } => None,
            Item::Pending { body, .. }
            | Item::Processing { body, .. }
            | Item::Completed { body }
            | Item::Failed { body }
            | Item::Dead { body, .. }
            | Item::Dropped { body, .. } => Some(body),
        }
    }

    /// What it has in every state, to change it.
    fn body_mut(&mut self) -> Option<&mut Body> {
        match self {
            Item::Absent { .. } => None,
            Item::Pending { body, .. }
            | Item::Processing { body, .. }
            | Item::Completed { body }
            | Item::Failed { body }
            | Item::Dead { body, .. }
            | Item::Dropped { body, .. } => Some(body),
        }
    }

    /// Shares what the items of its queue have in common.
    pub(crate) fn share(&mut self, pool: &mut crate::pool::Pool) {
        if let Some(body) = self.body_mut() {
            pool.share_lot(&mut body.lot);
        }
    }

    /// When it next wants to be looked at: when it may be taken, or when its claim times out.
    #[must_use]
    pub const fn due(&self) -> Option<Millis> {
        match self {
            Item::Pending { next_eligible_at, .. } => *next_eligible_at,
            Item::Processing { claim, .. } => claim.visible_at,
            Item::Absent { .. }
            | Item::Completed { .. }
            | Item::Failed { .. }
            | Item::Dead { .. }
            | Item::Dropped { .. } => None,
        }
    }

    /// What would come of an input.
    ///
    /// # Errors
    /// What the table has no row for, a stale epoch, a time that has not come.
    pub fn decide(&self, input: &Input, at: Millis) -> Answer {
        use Item::{Absent, Completed, Dead, Dropped, Failed, Pending, Processing};
        match (self, input) {
            (Absent { .. }, Input::Push(push)) => Ok(push.decide(at)),
            (
                Absent { .. },
                Input::Take(_)
                | Input::Heartbeat { .. }
                | Input::Complete { .. }
                | Input::Fail { .. }
                | Input::Return { .. }
                | Input::Expire { .. }
                | Input::Retry { .. }
                | Input::Drop { .. }
                | Input::Forget { .. },
            ) => Err(Error::NotFound),
            // An id is made once, so this is the same push delivered again.
            (
                Pending { .. }
                | Processing { .. }
                | Completed { .. }
                | Failed { .. }
                | Dead { .. }
                | Dropped { .. },
                Input::Push(_),
            ) => Ok(Decision::reply(Reply::AlreadyDone)),

            (Pending { body, next_eligible_at }, Input::Take(take)) => match next_eligible_at {
                Some(due) if *due > at => Err(Error::NotDue(*due)),
                Some(_) | None => Ok(body.take(take, at)),
            },
            // A run is made for one claim, so its second take is the first one delivered again. An outside
            // holder's is not: two consumers may share a name, and each must get an item of its own.
            (Processing { body, claim }, Input::Take(take)) => {
                if take.run.is_some() && take.run == claim.run && take.holder == claim.holder {
                    Ok(Decision::reply(Reply::Taken(body.grant(claim.visible_at))))
                } else {
                    Err(Error::Busy(claim.holder.clone()))
                }
            }

            (Processing { body, claim }, Input::Heartbeat { epoch }) => {
                body.fence(*epoch)?;
                let until = claim.visible_at.map(|_| at + body.lot.terms.visibility_timeout);
                Ok(Decision::reply(Reply::Beating(until)))
            }
            (Processing { body, .. }, Input::Complete { epoch }) => {
                body.fence(*epoch)?;
                Ok(Decision::reply(Reply::Done).fact(QueueCompleted {
                    queue_name: body.lot.queue.clone(),
                    item_id: body.id,
                    namespace: body.lot.namespace.clone(),
                    epoch: body.epoch,
                }))
            }
            (Processing { body, .. }, Input::Fail { epoch, error, retryable }) => {
                body.fence(*epoch)?;
                Ok(body.fail(error, *retryable, at))
            }
            (Processing { body, .. }, Input::Return { epoch }) => {
                body.fence(*epoch)?;
                Ok(Decision::reply(Reply::Done).fact(body.returned(None)))
            }
            (Processing { body, claim }, Input::Expire { epoch, last_seen }) => {
                body.fence(*epoch)?;
                if claim.visible_at.is_none() {
                    return Err(Error::NoTimeout);
                }
                // Heartbeats before the claim were another holder's.
                let last_seen = (*last_seen).max(body.since);
                let due = last_seen + body.lot.terms.visibility_timeout;
                if due > at { Err(Error::NotDue(due)) } else { Ok(body.expire(last_seen)) }
            }

            // The same report delivered again: its answer got lost, its result did not.
            (Completed { body }, Input::Complete { epoch }) if *epoch == body.epoch => {
                Ok(Decision::reply(Reply::AlreadyDone))
            }
            (Pending { body, .. } | Failed { body } | Dead { body, .. }, Input::Fail { epoch, .. })
                if body.failure.as_ref().is_some_and(|failure| failure.epoch == *epoch) =>
            {
                Ok(Decision::reply(Reply::AlreadyDone))
            }
            // However the last claim ended, it is not held, which is all that its holder asks for.
            (Pending { body, .. }, Input::Return { epoch }) if *epoch == body.epoch => {
                Ok(Decision::reply(Reply::AlreadyDone))
            }
            // Whoever held the item when it was dropped may report without fault; nothing is left to change.
            (
                Dropped { body, .. },
                Input::Complete { epoch } | Input::Fail { epoch, .. } | Input::Return { epoch },
            ) if *epoch == body.epoch => Ok(Decision::reply(Reply::Dropped)),

            (
                Pending { body, .. }
                | Completed { body }
                | Failed { body }
                | Dead { body, .. }
                | Dropped { body, .. },
                Input::Heartbeat { epoch }
                | Input::Complete { epoch }
                | Input::Fail { epoch, .. }
                | Input::Return { epoch }
                | Input::Expire { epoch, .. },
            ) => Err(Error::Stale { epoch: *epoch, current: body.epoch }),

            (Failed { body } | Dead { body, .. }, Input::Retry { data }) => Ok(Decision::reply(Reply::Done)
                .fact(QueueItemRetry {
                    queue_name: body.lot.queue.clone(),
                    item_id: body.id,
                    namespace: body.lot.namespace.clone(),
                    data: data.as_ref().map(|data| Private::New(Packed::of(data))),
                    asked_by: None,
                })),
            (Pending { body, .. } | Failed { body } | Dead { body, .. }, Input::Drop { reason }) => {
                Ok(body.dropped(reason.as_deref()))
            }
            (Processing { body, claim }, Input::Drop { reason }) => {
                let decision = body.dropped(reason.as_deref());
                // Nobody waits for the result any more: the run that works on it need not go on.
                Ok(match claim.run {
                    Some(run) => decision.then([Follow::Cancel {
                        run,
                        reason: alloc::format!("item {} was dropped", body.id),
                    }]),
                    None => decision,
                })
            }
            (Failed { body } | Dead { body, .. }, Input::Forget { before }) if body.since < *before => {
                Ok(body.dropped(Some(RETENTION)))
            }
            // It was put back since, or somebody took it out.
            (
                Pending { .. }
                | Processing { .. }
                | Completed { .. }
                | Failed { .. }
                | Dead { .. }
                | Dropped { .. },
                Input::Forget { .. },
            ) => Ok(Decision::reply(Reply::AlreadyDone)),
            // Dropping twice is one wish delivered twice.
            (Dropped { .. }, Input::Drop { .. }) => Ok(Decision::reply(Reply::AlreadyDone)),

            (Pending { .. } | Processing { .. }, Input::Retry { .. }) => {
                Err(Error::State { state: self.state_name(), input: input.name() })
            }
            (Completed { .. }, Input::Take(_) | Input::Retry { .. } | Input::Drop { .. })
            | (Failed { .. } | Dead { .. }, Input::Take(_)) => {
                Err(Error::Ended { state: self.state_name(), input: input.name() })
            }
            // Whoever dropped it cancelled it, and knows it by that word.
            (Dropped { .. }, Input::Take(_) | Input::Retry { .. }) => {
                Err(Error::Ended { state: "cancelled", input: input.name() })
            }
        }
    }

    /// What a fact makes of it.
    #[must_use]
    pub fn apply(self, event: &Event, at: Millis) -> Item {
        match event {
            Event::QueuePushed(e) => match self {
                Item::Absent { tenant } => {
                    Item::Pending { body: Body::pushed(tenant, e, at), next_eligible_at: e.next_eligible_at }
                }
                known => known,
            },
            Event::QueueTaken(e) => self.moved(at, |mut body| {
                body.epoch = e.epoch;
                body.attempts = e.attempts;
                body.claimed = Some(Box::new(Claimed { at, run: e.pipeline_id }));
                let claim = Claim {
                    holder: e.holder.clone(),
                    worker: e.worker_name.clone(),
                    run: e.pipeline_id,
                    visible_at: e.visible_at,
                };
                Item::Processing { body, claim: Box::new(claim) }
            }),
            Event::QueueReturned(e) => self.moved(at, |mut body| {
                if !e.timed_out {
                    body.attempts = body.attempts.saturating_sub(1);
                }
                Item::Pending { body, next_eligible_at: None }
            }),
            Event::QueueCompleted(_) => self.moved(at, |body| Item::Completed { body }),
            Event::QueueFailed(e) => self.moved(at, |mut body| {
                body.attempts = e.attempts;
                body.failure = Some(Box::new(Failure { epoch: e.epoch, error: e.error.get() }));
                Item::Failed { body }
            }),
            Event::QueueItemRetried(e) => self.moved(at, |mut body| {
                body.attempts = e.attempts;
                Item::Pending { body, next_eligible_at: Some(e.next_eligible_at) }
            }),
            Event::QueueItemRetry(e) => self.moved(at, |mut body| {
                body.attempts = 0;
                body.asked(e.asked_by.as_deref().unwrap_or_default());
                if let Some(data) = &e.data {
                    (body.data, body.redacted) = body::revealed(data);
                }
                Item::Pending { body, next_eligible_at: None }
            }),
            Event::QueueItemDead(e) => self.moved(at, |mut body| {
                body.attempts = e.attempts;
                Item::Dead { body, reason: e.reason.get() }
            }),
            Event::QueueItemDropped(e) => {
                self.moved(at, |body| Item::Dropped { body, reason: e.reason.clone() })
            }
            // Everything else belongs to other streams.
            _ => self,
        }
    }

    /// Moves a pushed item on; one that is not there stays so.
    fn moved(self, at: Millis, to: impl FnOnce(Body) -> Item) -> Item {
        match self {
            Item::Absent { .. } => self,
            Item::Pending { mut body, .. }
            | Item::Processing { mut body, .. }
            | Item::Completed { mut body }
            | Item::Failed { mut body }
            | Item::Dead { mut body, .. }
            | Item::Dropped { mut body, .. } => {
                body.since = at;
                to(body)
            }
        }
    }
}

impl Push {
    fn decide(&self, at: Millis) -> Decision<Reply> {
        Decision::reply(Reply::Done).fact(QueuePushed {
            queue_name: self.queue.clone(),
            item_id: self.id,
            data: Private::New(Packed::of(&self.data)),
            pushed_at_epoch_ms: at,
            namespace: self.namespace.clone(),
            priority: self.priority,
            max_attempts: self.terms.max_attempts,
            cooldown_ms: self.terms.cooldown.0,
            visibility_timeout_ms: self.terms.visibility_timeout.0,
            next_eligible_at: self.next_eligible_at.filter(|due| *due > at),
            dedupe: self.dedupe.clone(),
            dead_letter: self.terms.dead_letter.clone(),
            from: self.from,
            asked_by: Some(self.asked_by.clone()),
        })
    }
}

#[cfg(test)]
mod tests;
