//! Steps.

use crate::word::words;

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
        /// Its list is empty.
        Empty = "empty",
        /// Nothing to do: a `wait` that may time out, did.
        Continued = "continued",
    }
}
