//! What follows from a decision for other streams, in the words of the machine that decided.
//!
//! A machine knows its own stream. The turn makes a command of each of these and decides it in the same commit; none of
//! them is for the outside, which is what [`Effect`](crate::effect::Effect) is for.

use crate::code::Code;
use crate::event::words::step::Failure;
use crate::id::{Holder, Name, RunId, Scoped, StepId};
use crate::origin::Status;
use crate::time::Millis;
use alloc::string::String;
use serde_json::Value;

/// What a run hears from other streams.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// A lock was granted to the run or its step.
    LockGranted { step: Option<StepId>, lock: Name, epoch: u64 },
    /// A lock is held by another, and the run or step does not wait for it.
    LockBusy { step: Option<StepId>, lock: Name },
    /// Slots were granted to the step.
    SlotsGranted { step: StepId, semaphore: Name, epoch: u64 },
    /// What the run or step held was taken from it: it held too long, or somebody broke the hold.
    HoldLost { step: Option<StepId>, name: Name, broken: bool },
    /// The lock or semaphore cannot be waited for at all.
    HoldRefused { step: Option<StepId>, code: Code, message: String },
    /// A run it waits for, or called, is terminal.
    RunEnded {
        run: RunId,
        step: Option<StepId>,
        status: Status,
        outputs: Option<Value>,
        error: Option<Failure>,
    },
}

/// What follows for another stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Follow {
    /// Take a lock, or stand in line for it where `wait` says so; `oust` cancels the run that holds it.
    TakeLock { lock: Scoped, holder: Holder, wait: bool, oust: bool, give_up_at: Option<Millis> },
    /// Give a lock back, or leave its line.
    LetGoLock { lock: Scoped, holder: Holder },
    /// Take slots of a semaphore, or stand in line for them.
    TakeSlots { semaphore: Scoped, holder: Holder, slots: u32, give_up_at: Option<Millis> },
    /// Give slots back, or leave the line.
    LetGoSlots { semaphore: Scoped, holder: Holder },
    /// Tell a run something.
    Tell { run: RunId, told: Told },
    /// Make the run that a `call` step calls.
    Call { run: RunId, parent: RunId, step: StepId, pipeline: Name, vars: Value },
    /// Cancel a run.
    Cancel { run: RunId, reason: String },
    /// Let a worker look at its queue.
    WakeWorker { worker: Scoped },
}
