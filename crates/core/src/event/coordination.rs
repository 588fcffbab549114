//! Payloads of locks and semaphores.

use super::payloads;
use crate::id::{Holder, Name, RunId, StepId};
use crate::private::Private;
use crate::time::Millis;
use serde_json::Value;

payloads! {
    /// A lock's time-outs, from the runbook that declares it.
    "lock:configured" LockConfigured Fact on "lock" {
        lock: Name, heartbeat_timeout_ms: u64, max_hold_ms: Option<u64>,
    }

    /// The lock is held by another: the holder stands in line. Moved on by `lock:acquired` or `lock:abandoned`.
    "lock:queued" LockQueued Fact on "lock" {
        lock: Name, holder: Holder, metadata: Option<Private<Value>>, give_up_at: Option<Millis>,
    }

    /// The holder has the lock under `epoch`, higher than any before.
    "lock:acquired" LockAcquired Fact on "lock" {
        lock: Name, holder: Holder, epoch: u64, queued: bool, metadata: Option<Private<Value>>,
    }

    /// A holder that stopped beating, or held too long, lost the lock; the next in line gets it.
    "lock:reclaimed" LockReclaimed Fact on "lock" {
        lock: Name, holder: Holder, epoch: u64, last_seen: Option<Millis>, overdue: bool,
    }

    /// The holder gave the lock back, or somebody broke it.
    "lock:released" LockReleased Fact on "lock" {
        lock: Name, holder: Holder, epoch: u64, broken: bool,
    }

    /// A waiter left the line.
    "lock:abandoned" LockAbandoned Fact on "lock" { lock: Name, holder: Holder }

    /// Somebody broke the hold of a run, or of one of its steps, on a lock or on slots. The run or the step fails.
    "hold:broken" HoldBroken Fact on "run" { pipeline_id: RunId, step: Option<StepId>, hold: Name }

    /// A `running` group lost its lock or its slots: its members are stopped, and then it fails.
    "hold:lost" HoldLost Fact on "run" { pipeline_id: RunId, step: StepId, hold: Name }

    /// A semaphore's capacity and time-out. Lowering the capacity only stops new grants.
    "semaphore:configured" SemaphoreConfigured Fact on "semaphore" {
        semaphore: Name, capacity: u32, heartbeat_timeout_ms: u64,
    }

    /// Too few slots are free: the holder stands in line.
    "semaphore:queued" SemaphoreQueued Fact on "semaphore" {
        semaphore: Name, holder: Holder, weight: u32, give_up_at: Option<Millis>,
    }

    /// The holder has `weight` slots under `epoch`.
    "semaphore:acquired" SemaphoreAcquired Fact on "semaphore" {
        semaphore: Name, holder: Holder, weight: u32, epoch: u64, queued: bool,
    }

    /// The holder has more slots than before.
    "semaphore:increased" SemaphoreIncreased Fact on "semaphore" {
        semaphore: Name, holder: Holder, weight: u32, epoch: u64,
    }

    /// A holder that stopped beating lost its slots.
    "semaphore:reclaimed" SemaphoreReclaimed Fact on "semaphore" {
        semaphore: Name, holder: Holder, weight: u32, epoch: u64, last_seen: Option<Millis>,
    }

    /// The holder gave its slots back, or somebody broke the hold.
    "semaphore:released" SemaphoreReleased Fact on "semaphore" {
        semaphore: Name, holder: Holder, weight: u32, epoch: u64, broken: bool,
    }

    /// A waiter left the line.
    "semaphore:abandoned" SemaphoreAbandoned Fact on "semaphore" { semaphore: Name, holder: Holder }
}
