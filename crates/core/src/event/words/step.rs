//! The words of steps, and the parts of them that records carry.

use super::{Overlap, Semantics};
use crate::code::Code;
use crate::digest::Digest;
use crate::id::{Name, RunId, StepId, textual};
use crate::origin::Section;
use crate::time::Millis;
use crate::wire::{self, Reader, Wire, Writer, nested};
use crate::word::words;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

words! {
    /// A step's status.
    Status {
        /// Not reached yet.
        Pending = "pending",
        /// Can be leased, once its gates are passed.
        Ready = "ready",
        /// Leased, or a group whose members are under way.
        Running = "running",
        /// Waits for a human's approval.
        WaitingApproval = "waiting_approval",
        /// Waits for a lock, a slot, a guard, an event or a time.
        WaitingExternal = "waiting_external",
        /// Waits for its back-off.
        FailedRetryable = "failed_retryable",
        /// Nobody knows whether its effect happened.
        OutcomeUnknown = "outcome_unknown",
        /// Done. Terminal.
        Succeeded = "succeeded" | "completed",
        /// Never ran, as the runbook says. Terminal.
        Skipped = "skipped",
        /// Failed for good. Terminal.
        Failed = "failed" | "failed_terminal",
        /// Cancelled. Terminal.
        Cancelled = "cancelled" | "canceled",
    }
}

words! {
    /// What a step waits for, or waited for.
    Wait {
        /// A human's approval of its action.
        Approval = "approval",
        /// Policy's decision.
        Policy = "policy",
        /// A lock.
        Lock = "lock",
        /// Slots of a semaphore.
        Semaphore = "semaphore",
        /// Its guards before.
        Guard = "guard",
        /// Its guards after.
        GuardAfter = "guard_after",
        /// An external event.
        Event = "event",
        /// A time.
        Timer = "timer",
        /// More budget.
        Budget = "budget",
        /// A human who looks at a stuck or asking agent.
        Escalation = "escalation",
        /// Its back-off.
        Backoff = "backoff",
        /// The settling of an unknown outcome.
        Outcome = "outcome",
        /// Room where it is to be carried out: nothing of it could be begun.
        Executor = "executor",
    }
}

words! {
    /// How an unknown outcome or an escalation was settled.
    Resolution {
        /// It happened, or was done by hand.
        Done = "done",
        /// It did not happen: again.
        Retry = "retry",
        /// Give up.
        Fail = "fail",
    }
}

words! {
    /// Why a step never ran.
    Skip {
        /// Its `when` is false.
        When = "when",
        /// Its lock is held, and its `overlap` says skip.
        Overlap = "overlap",
        /// The group around it is taken over from an earlier run, and it gave nothing to that.
        TakenOver = "taken_over",
    }
}

words! {
    /// How a group runs its members.
    GroupKind {
        /// One after the other; the first failure ends it.
        Sequence = "sequence",
        /// Side by side.
        Parallel = "parallel",
        /// The same for each item of a list.
        Foreach = "foreach",
        /// One after the other until one succeeds.
        Strategy = "strategy",
    }
}

words! {
    /// What a failed member means for the others of its group.
    FailFast {
        /// The others run all the same.
        No = "no",
        /// None starts; those under way finish.
        Stop = "stop",
        /// None starts; those under way are cancelled.
        Kill = "kill",
    }
}

/// The shape of a group, fixed when it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// How it runs its members.
    pub kind: GroupKind,
    /// How many it has.
    pub total: u32,
    /// How many may be under way at once.
    pub width: u32,
    /// What a failed one means for the others.
    pub fail_fast: FailFast,
}

nested! { Shape = "group" }

/// A failure: a stable code and a text for people.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// The code.
    pub code: Name,
    /// What happened.
    pub message: String,
}

impl Failure {
    /// A failure with one of our own codes.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code: code.name(), message: message.into() }
    }

    /// That of whoever loses a lock or slots before it gives them back.
    #[must_use]
    pub fn hold_lost(name: &Name) -> Failure {
        Failure::new(Code::LockBusy, alloc::format!("the hold on `{name}` was taken away"))
    }
}

/// The action of a later step, as it was shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// The step.
    pub step: StepId,
    /// What its action hashed to.
    pub action_hash: Digest,
}

/// What a named step is held to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// The `approve` steps that name it.
    pub by: Vec<StepId>,
    /// What its action hashes to, now that it is reached.
    pub action_hash: Digest,
}

nested! { Binding = "binding", Bound = "bound" }

/// Something a step has to pass between approval and lease, in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gate {
    /// A lock: `lock:NAME`; `lock?:NAME` where the step is skipped rather than kept waiting; `lock!:NAME` where
    /// whoever holds it is cancelled.
    Lock { name: Name, overlap: Overlap },
    /// Slots of a semaphore: `slots:N:NAME`.
    Slots { name: Name, slots: u32 },
    /// The guards before: `guard`.
    Guard,
}

impl Gate {
    /// What a step before it waits for.
    #[must_use]
    pub fn waits(&self) -> (Wait, Option<&Name>) {
        match self {
            Gate::Lock { name, .. } => (Wait::Lock, Some(name)),
            Gate::Slots { name, .. } => (Wait::Semaphore, Some(name)),
            Gate::Guard => (Wait::Guard, None),
        }
    }

    /// Reads a gate.
    ///
    /// # Errors
    /// Text that is none.
    pub fn parse(text: &str) -> Result<Gate, crate::id::Error> {
        let bad = || crate::id::Error::Name(wire::shorten(text));
        if text == "guard" {
            return Ok(Gate::Guard);
        }
        let (kind, rest) = text.split_once(':').ok_or_else(bad)?;
        match kind {
            "lock" => Ok(Gate::Lock { name: Name::new(rest)?, overlap: Overlap::Queue }),
            "lock?" => Ok(Gate::Lock { name: Name::new(rest)?, overlap: Overlap::Skip }),
            "lock!" => Ok(Gate::Lock { name: Name::new(rest)?, overlap: Overlap::Cancel }),
            "slots" => {
                let (slots, name) = rest.split_once(':').ok_or_else(bad)?;
                Ok(Gate::Slots { name: Name::new(name)?, slots: slots.parse().map_err(|_| bad())? })
            }
            // tidy: any other text is no gate.
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Gate::Lock { name, overlap: Overlap::Queue } => write!(f, "lock:{name}"),
            Gate::Lock { name, overlap: Overlap::Skip } => write!(f, "lock?:{name}"),
            Gate::Lock { name, overlap: Overlap::Cancel } => write!(f, "lock!:{name}"),
            Gate::Slots { name, slots } => write!(f, "slots:{slots}:{name}"),
            Gate::Guard => f.write_str("guard"),
        }
    }
}

textual!(Gate, "gate");

/// A step of a run that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Taken {
    /// Its name.
    pub step: StepId,
    /// Its definition.
    pub node: u32,
    /// The group it belongs to, by its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// Its section.
    pub section: Section,
    /// What carried it out.
    pub tool: Name,
    /// How it ended.
    pub status: Status,
    /// Its last attempt.
    pub attempt: u32,
    /// The fence of that.
    pub epoch: u64,
    /// Its item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    /// Its shape, where it is a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Shape>,
    /// How many members the group began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<u32>,
    /// The declared key of its effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Name>,
    /// The hash of its action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_hash: Option<Digest>,
    /// What can be done about a lost attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub semantics: Option<Semantics>,
    /// The run that it called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<RunId>,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Millis>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Millis>,
    /// Its place among the ended steps.
    pub ended: u32,
    /// Whether it acted to its end, and failed at its guards after.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub acted: bool,
}

/// What such a step was given and gave, which stands outside of the chain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Values {
    /// What it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// What it gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
}

nested! { Taken = "taken step", Values = "values of a taken step" of |it| alloc::vec![it.input.as_ref(), it.output.as_ref()] }
