//! Queues and their items: pushing, taking, and reporting on what was taken.

use crate::hold::holder;
use crate::problem::known_or_none;
use crate::{List, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::code::Code;
use windlass_core::id::{ItemId, Name, RunId};
use windlass_core::item;
use windlass_core::machine::Beats;
use windlass_core::packed::Packed;

/// A queue: what is in it, and how it is set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// active, paused, withdrawn where no deployed runbook declares it any more, or absent.
    pub state: String,
    /// How many items wait, delayed ones included.
    pub depth: u64,
    /// How many can be taken now.
    pub ready: u64,
    /// How many wait for their time.
    pub delayed: u64,
    /// How many are worked on.
    pub processing: u64,
    /// How many are done.
    pub completed: u64,
    /// How many failed for good.
    pub failed: u64,
    /// How many were given up after their last attempt.
    pub dead: u64,
    /// The workers that consume it.
    pub workers: Vec<String>,
    /// How long an item is hidden from others after it was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visibility_timeout_ms: Option<u64>,
    /// How often an item is tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// How long an item waits before it is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cooldown_ms: Option<u64>,
    /// Whether items are deduplicated by their keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedupe: Option<bool>,
    /// How many items it may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<u64>,
    /// The queue that items go to which are given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub dead_letter: Option<Name>,
}

/// One piece of work in a queue. Where it was worked on and has left already, only `id`, `queue` and `status` are known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Item {
    /// Its id.
    #[schemars(with = "String")]
    pub id: ItemId,
    /// Its queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub queue: Option<Name>,
    /// What is to be worked on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    pub data: Option<Packed>,
    /// Higher is sooner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// pending, processing, completed, failed or dead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// How often it was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// The fence of the last try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// When it was pushed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pushed_at: Option<Time>,
    /// The key by which it is deduplicated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub dedupe: Option<Name>,
    /// The item that it is made of, in another queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub from: Option<ItemId>,
    /// When it was taken the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_at: Option<Time>,
    /// When it came to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    /// The run that works or worked on it, where a worker made one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub run: Option<RunId>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When it can be taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_eligible_at: Option<Time>,
    /// Who works on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Until when, unless a heartbeat comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// True where it was taken out of the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled: Option<bool>,
    /// After a push: whether an item with its key was there before, which this is then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<bool>,
}

/// The status that is shown of an item: one that was taken out failed, as nothing comes of it.
#[must_use]
pub const fn status(item: &item::Item) -> &'static str {
    match item {
        item::Item::Dropped { .. } => "failed",
        item::Item::Absent { .. }
        | item::Item::Pending { .. }
        | item::Item::Processing { .. }
        | item::Item::Completed { .. }
        | item::Item::Failed { .. }
        | item::Item::Dead { .. } => item.state_name(),
    }
}

impl Item {
    /// An item as it is now; only the id of one that was never pushed.
    #[must_use]
    pub fn of(id: ItemId, item: &item::Item, beats: &Beats) -> Item {
        let Some(body) = item.body() else { return Item::bare(id) };
        let ended = matches!(
            item,
            item::Item::Completed { .. }
                | item::Item::Failed { .. }
                | item::Item::Dead { .. }
                | item::Item::Dropped { .. }
        );
        let under_way = matches!(item, item::Item::Processing { .. });
        let claimed = body.claimed.as_ref().filter(|_| ended || under_way);
        let mut shown = Item {
            queue: Some(body.lot.queue.clone()),
            data: Some(body.data.clone()),
            priority: Some(body.priority),
            status: Some(status(item).to_owned()),
            attempts: Some(body.attempts),
            epoch: Some(body.epoch),
            pushed_at: Some(body.pushed_at.into()),
            dedupe: body.dedupe.clone(),
            from: body.from.as_deref().copied(),
            taken_at: claimed.map(|claimed| claimed.at.into()),
            completed_at: ended.then_some(body.since.into()),
            run: claimed.and_then(|claimed| claimed.run),
            error: body.failure.as_ref().and_then(|failure| failure.error.clone()),
            ..Item::bare(id)
        };
        match item {
            item::Item::Pending { next_eligible_at, .. } => {
                shown.next_eligible_at = next_eligible_at.map(Time);
            }
            item::Item::Processing { claim, .. } => {
                shown.holder = Some(holder(&body.scoped(), &claim.holder));
                shown.expires_at = claim.visible_at.map(|_| body.lives_until(claim, beats).into());
            }
            item::Item::Dead { reason, .. } => shown.error = reason.clone().or(shown.error),
            item::Item::Dropped { reason, .. } => {
                shown.cancelled = Some(true);
                shown.error = Some(reason.as_deref().unwrap_or("taken out of the queue").to_owned());
            }
            item::Item::Absent { .. } | item::Item::Completed { .. } | item::Item::Failed { .. } => {}
        }
        shown
    }

    /// An item of which only the id is known.
    #[must_use]
    pub fn bare(id: ItemId) -> Item {
        Item {
            id,
            queue: None,
            data: None,
            priority: None,
            status: None,
            attempts: None,
            epoch: None,
            pushed_at: None,
            dedupe: None,
            from: None,
            taken_at: None,
            completed_at: None,
            run: None,
            error: None,
            next_eligible_at: None,
            holder: None,
            expires_at: None,
            cancelled: None,
            known: None,
        }
    }
}

/// What was pushed: an item, or as many as came in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Pushed {
    /// They came in a list.
    Many(List<Item>),
    /// One came alone.
    One(Box<Item>),
}

/// One item, or many.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Push {
    /// Many, in one commit: all of them or none.
    Many(Vec<New>),
    /// One.
    One(New),
}

/// An item to push.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct New {
    /// What is to be worked on.
    pub data: Value,
    /// Higher is taken first.
    #[serde(default)]
    pub priority: i32,
    /// How long it waits before it can be taken.
    #[serde(default)]
    pub delay_ms: Option<u64>,
    /// While an item with this key waits or is worked on, a second one is the first.
    #[serde(default)]
    pub dedupe: Option<String>,
}

/// What is said about claims: one, or many.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Reports {
    /// Many.
    Many {
        /// One for each claim.
        items: Vec<Report>,
    },
    /// One.
    One(Report),
}

/// What is said about a claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The item.
    #[serde(alias = "id")]
    pub item: String,
    /// The epoch of the claim.
    pub epoch: u64,
    /// What went wrong, where a try failed.
    #[serde(default)]
    pub error: Option<String>,
    /// Whether another try may help; it may where nothing is said.
    #[serde(default)]
    pub retryable: Option<bool>,
}

/// What the server says of one report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Answered {
    /// The item, as it was given.
    pub item: String,
    /// The epoch, as it was given.
    pub epoch: u64,
    /// True where the item was taken out of the queue meanwhile: stop working on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled: Option<bool>,
    /// Why the report was refused. Absent where it was not.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "known_or_none")]
    #[schemars(with = "Option<String>")]
    pub code: Option<Code>,
    /// The same for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
