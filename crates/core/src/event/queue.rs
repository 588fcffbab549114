//! Payloads of queues, their items and the workers that consume them.

use super::payloads;
use crate::digest::Digest;
use crate::id::{Holder, ItemId, Name, RunId};
use crate::packed::Packed;
use crate::private::Private;
use crate::time::Millis;
use alloc::string::String;
use alloc::vec::Vec;
use serde_json::Value;

payloads! {
    /// A queue exists, or its settings changed.
    "queue:created" QueueCreated Fact on "queue" {
        queue_name: Name, namespace: Name, visibility_timeout_ms: u64, max_attempts: u32, cooldown_ms: u64,
        max_depth: Option<u64>, dead_letter: Option<Name>, dedupe: bool,
    }

    /// Nothing is taken from the queue until it is resumed; pushes go on.
    "queue:paused" QueuePaused Fact on "queue" { queue_name: Name, namespace: Name }

    /// A paused queue goes on.
    "queue:resumed" QueueResumed Fact on "queue" { queue_name: Name, namespace: Name }

    /// No deployed runbook declares the queue any more: nothing is pushed, what it holds can still be taken.
    "queue:withdrawn" QueueWithdrawn Fact on "queue" { queue_name: Name, namespace: Name }

    /// An item exists and is `pending`, eligible at once or at `next_eligible_at`. Wakes the queue's workers. `asked_by` are
    /// those who count as having asked for the run that works on it.
    "queue:pushed" QueuePushed Fact on "item" {
        queue_name: Name, item_id: ItemId, data: Private<Packed>, pushed_at_epoch_ms: Millis, namespace: Name,
        priority: i32, max_attempts: u32, cooldown_ms: u64, visibility_timeout_ms: u64,
        next_eligible_at: Option<Millis>, dedupe: Option<Name>, dead_letter: Option<Name>, from: Option<ItemId>,
        asked_by: Option<Vec<Name>>,
    }

    /// A `pending` item is `processing` under a claim with an epoch.
    "queue:taken" QueueTaken Fact on "item" {
        queue_name: Name, item_id: ItemId, worker_name: Option<Name>, namespace: Name,
        holder: Holder, epoch: u64, attempts: u32, visible_at: Option<Millis>, pipeline_id: Option<RunId>,
    }

    /// The claim was handed back, or its visibility time-out ran out (which counts as an attempt): `pending` again.
    "queue:returned" QueueReturned Fact on "item" {
        queue_name: Name, item_id: ItemId, namespace: Name, epoch: u64, timed_out: bool, last_seen: Option<Millis>,
    }

    /// The item is done. Terminal.
    "queue:completed" QueueCompleted Fact on "item" {
        queue_name: Name, item_id: ItemId, namespace: Name, epoch: u64,
    }

    /// An attempt failed. With `next_eligible_at` the item cools down as `pending`; without, it is `failed`, or
    /// `queue:item_dead` follows.
    "queue:failed" QueueFailed Fact on "item" {
        queue_name: Name, item_id: ItemId, error: Private<String>, namespace: Name, epoch: u64, attempts: u32,
    }

    /// Somebody put a failed or dead item back by hand: its attempts start again. `asked_by` counts them to its requesters.
    "queue:item_retry" QueueItemRetry Fact on "item" {
        queue_name: Name, item_id: ItemId, namespace: Name, data: Option<Private<Packed>>, asked_by: Option<Vec<Name>>,
    }

    /// The item goes back to `pending` by itself, after the cool-down.
    "queue:item_retried" QueueItemRetried Fact on "item" {
        queue_name: Name, item_id: ItemId, namespace: Name, attempts: u32, next_eligible_at: Millis,
    }

    /// The last attempt failed. The item stays in place and is forwarded where a dead-letter queue is named.
    "queue:item_dead" QueueItemDead Fact on "item" {
        queue_name: Name, item_id: ItemId, namespace: Name, attempts: u32, reason: Private<String>, forwarded_to: Option<Name>,
    }

    /// Somebody took the item out of the queue. Terminal.
    "queue:item_dropped" QueueItemDropped Fact on "item" {
        queue_name: Name, item_id: ItemId, namespace: Name, reason: Option<String>,
    }

    /// A worker consumes its queue.
    "worker:started" WorkerStarted Fact on "worker" {
        worker_name: Name, project_root: String, runbook_hash: Digest, queue_name: Name, concurrency: u32, namespace: Name,
        pipeline: Name, wake_on: Vec<String>, poll_ms: Option<u64>,
    }

    /// A deployment gave a worker that somebody stopped other settings; it stays stopped, and is started with them.
    "worker:configured" WorkerConfigured Fact on "worker" {
        worker_name: Name, project_root: String, runbook_hash: Digest, queue_name: Name, concurrency: u32, namespace: Name,
        pipeline: Name, wake_on: Vec<String>, poll_ms: Option<u64>,
    }

    /// Something happened that the worker should look at: an item, a finished run, an event of `wake_on`.
    "worker:wake" WorkerWake Signal on "worker" { worker_name: Name, cause: Option<Name> }

    /// An external queue was listed.
    "worker:poll_complete" WorkerPollComplete Signal on "worker" { worker_name: Name, items: Private<Value> }

    /// An external queue was listed, or could not be; it is listed again at `next_at`.
    "worker:polled" WorkerPolled Fact on "worker" {
        worker_name: Name, listed: u32, next_at: Millis, error: Option<Private<String>>,
    }

    /// A cap lets the worker make no run before `until`; it looks at its queue again then.
    "worker:delayed" WorkerDelayed Fact on "worker" { worker_name: Name, until: Millis, reason: String }

    /// The worker took an item and made a run for it.
    "worker:item_dispatched" WorkerItemDispatched Fact on "worker" {
        worker_name: Name, item_id: ItemId, pipeline_id: RunId, epoch: u64,
    }

    /// The item's run is terminal: the worker has a place free.
    "worker:item_settled" WorkerItemSettled Fact on "worker" {
        worker_name: Name, item_id: ItemId, pipeline_id: RunId, succeeded: bool,
    }

    /// The worker may run more or fewer items at once; what runs, goes on.
    "worker:resized" WorkerResized Fact on "worker" { worker_name: Name, concurrency: u32 }

    /// The worker takes nothing more.
    "worker:stopped" WorkerStopped Fact on "worker" { worker_name: Name, reason: Option<String> }
}
