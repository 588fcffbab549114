//! The words of steps, and what a step may have beside its status: a wait, a lease, gates to pass, members to run.

use crate::binding::{Binding, Bound};
use crate::id::{Holder, Name, textual};
use crate::machine::Beats;
use crate::schedule::Overlap;
use crate::time::{Millis, Span};
use crate::wire::{self, Reader, Wire, Writer, nested};
use crate::word::words;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

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

/// What a step waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Waiting {
    /// What kind of thing.
    pub reason: Wait,
    /// Which one: a lock, a semaphore, an event, a guard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<Name>,
    /// The event's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Name>,
    /// When something happens by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Millis>,
    /// Since when.
    pub since: Millis,
}

/// Output of an attempt that could not be kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputLost {
    /// Which attempt, by its fence.
    pub epoch: u64,
    /// How many bytes of it, at least.
    pub bytes: u64,
    /// Why.
    pub reason: String,
    /// When that was known.
    pub at: Millis,
}

/// What binds a step to approvals: as one that speaks for others, or as one of those.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ties {
    pub(super) bindings: Vec<Binding>,
    pub(super) bound: Option<Bound>,
}

/// Whether an edition of variables is the first, as most are.
#[allow(clippy::trivially_copy_pass_by_ref)] // Serde asks like this.
pub(super) fn is_first(edition: &u32) -> bool {
    *edition == 0
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

/// A lease in force.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leased {
    /// Who has it.
    pub owner: Name,
    /// When it ends unless it is extended.
    pub expires_at: Millis,
    /// When it was given.
    pub granted_at: Millis,
}

impl Leased {
    /// When its executor was last known to live.
    #[must_use]
    pub fn last_seen(&self, holder: &Holder, beats: &Beats) -> Millis {
        beats.last_seen(holder, self.granted_at)
    }

    /// When it ends unless its executor is heard of again: heartbeats are no facts, so no record says so.
    #[must_use]
    pub fn lives_until(&self, holder: &Holder, beats: &Beats) -> Millis {
        self.last_seen(holder, beats) + Span(self.expires_at.since(self.granted_at).0)
    }
}

/// How far a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// What was fixed when it was reached.
    pub shape: Shape,
    /// The member that is next.
    pub next: u32,
    /// How many are under way.
    pub open: u32,
    /// How many failed or were cancelled.
    pub failed: u32,
}

impl Group {
    /// A group of which nothing has begun.
    #[must_use]
    pub fn new(shape: Shape) -> Group {
        Group { shape, next: 0, open: 0, failed: 0 }
    }

    /// Whether another member may begin.
    #[must_use]
    pub fn may_open(&self) -> bool {
        let room = self.next < self.shape.total && self.open < self.shape.width;
        room && (self.failed == 0
            || self.shape.fail_fast == FailFast::No
            || self.shape.kind == GroupKind::Strategy)
    }

    /// Whether the flow has something to do here: begin a member, stop the others, or end the group.
    #[must_use]
    pub fn wants_attention(&self) -> bool {
        let kill = self.failed > 0 && self.shape.fail_fast == FailFast::Kill;
        self.open == 0 || kill || self.may_open()
    }
}

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
