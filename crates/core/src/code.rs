//! Codes: every refusal has a stable one, with one HTTP status and one exit code. This is the table.

use crate::word::words;

words! {
    /// A stable error code. `docs/errors` has a page for each.
    Code {
        /// The transition is not in the table of run or step states.
        RunInvalidTransition = "RUN_INVALID_TRANSITION",
        /// The run has ended; nothing can change it.
        RunTerminalState = "RUN_TERMINAL_STATE",
        /// A running run whose executor's heartbeat is stale.
        RunOrphaned = "RUN_ORPHANED",
        /// The resume tree ended in no.
        RunResumeFailed = "RUN_RESUME_FAILED",
        /// The same key came with another request, or is in flight.
        IdempotencyConflict = "IDEMPOTENCY_CONFLICT",
        /// The key was known once and is forgotten.
        IdempotencyExpired = "IDEMPOTENCY_EXPIRED",
        /// Policy says no.
        PolicyDenied = "POLICY_DENIED",
        /// A human said no.
        ApprovalRejected = "APPROVAL_REJECTED",
        /// Nobody decided in time.
        ApprovalExpired = "APPROVAL_EXPIRED",
        /// The decision names another action than the one that waits.
        ApprovalHashMismatch = "APPROVAL_HASH_MISMATCH",
        /// The grant was given to somebody else since.
        LeaseStaleEpoch = "LEASE_STALE_EPOCH",
        /// Nobody knows whether the effect happened.
        OutcomeUnknown = "OUTCOME_UNKNOWN",
        /// Another holds the lock, or the semaphore is full.
        LockBusy = "LOCK_BUSY",
        /// A cap of the tenant or the runbook is reached.
        CapExceeded = "CAP_EXCEEDED",
        /// The budget is used up.
        BudgetExceeded = "BUDGET_EXCEEDED",
        /// The queue has its maximum depth.
        QueueFull = "QUEUE_FULL",
        /// The runbook does not hold together.
        RunbookInvalid = "RUNBOOK_INVALID",
        /// Another deployed runbook declares the same name.
        DeployConflict = "DEPLOY_CONFLICT",
        /// The disk is full; reads go on.
        StoreFull = "STORE_FULL",
        /// The log is damaged below what was acknowledged.
        StoreCorrupt = "STORE_CORRUPT",
        /// There is no such thing, or it is somebody else's.
        NotFound = "NOT_FOUND",
        /// No credential, or one that is not known.
        Unauthorized = "UNAUTHORIZED",
        /// The credential does not reach that far.
        Forbidden = "FORBIDDEN",
        /// A value of the request is out of its bounds or of the wrong type.
        InvalidInput = "INVALID_INPUT",
        /// The address does not take that method.
        MethodNotAllowed = "METHOD_NOT_ALLOWED",
        /// The request did not come in time.
        RequestTimeout = "REQUEST_TIMEOUT",
        /// The body has more bytes than this address takes.
        PayloadTooLarge = "PAYLOAD_TOO_LARGE",
        /// A step failed: its process exited otherwise than with 0, its tool said no, or an output is missing.
        StepFailed = "STEP_FAILED",
        /// An attempt took longer than its `timeout`, or a run longer than its `deadline`.
        TimedOut = "TIMED_OUT",
        /// A guard does not hold.
        GuardFailed = "GUARD_FAILED",
        /// No approach of a strategy is left.
        StrategyExhausted = "STRATEGY_EXHAUSTED",
        /// An expression could not be evaluated.
        ExpressionFailed = "EXPRESSION_FAILED",
        /// A task's recovery attempts are used up.
        TaskStuck = "TASK_STUCK",
        /// The run or step was cancelled.
        Cancelled = "CANCELLED",
        /// Not now: too much waits, or the engine starts or ends.
        Unavailable = "UNAVAILABLE",
        /// A defect of Windlass itself.
        Internal = "INTERNAL",
    }
}

impl Code {
    /// The HTTP status it is answered with.
    #[must_use]
    pub const fn http(self) -> u16 {
        self.row().0
    }

    /// The exit code of a command that it ends.
    #[must_use]
    pub const fn exit(self) -> u8 {
        self.row().1
    }

    /// A short title for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        self.row().2
    }

    const fn row(self) -> (u16, u8, &'static str) {
        match self {
            Code::RunInvalidTransition => (409, 6, "That cannot happen in this state"),
            Code::RunTerminalState => (409, 6, "The run has ended"),
            Code::RunOrphaned => (503, 75, "The run lost its executor"),
            Code::RunResumeFailed => (409, 1, "The run cannot be resumed safely"),
            Code::IdempotencyConflict => (409, 6, "The key belongs to another request"),
            Code::IdempotencyExpired => (410, 6, "The key is no longer remembered"),
            Code::PolicyDenied => (403, 7, "Policy denies it"),
            Code::ApprovalRejected => (409, 1, "The approval was rejected"),
            Code::ApprovalExpired => (410, 1, "The approval expired"),
            Code::ApprovalHashMismatch => (409, 6, "The action is not the one that was shown"),
            Code::LeaseStaleEpoch => (409, 6, "The grant belongs to somebody else by now"),
            Code::OutcomeUnknown => (409, 4, "Nobody knows whether the effect happened"),
            Code::LockBusy => (409, 75, "Somebody else holds it"),
            Code::CapExceeded => (429, 75, "A cap is reached"),
            Code::BudgetExceeded => (402, 4, "The budget is used up"),
            Code::QueueFull => (429, 75, "The queue is full"),
            Code::RunbookInvalid => (422, 2, "The runbook is not valid"),
            Code::DeployConflict => (409, 6, "Another runbook owns the name"),
            Code::StoreFull => (507, 75, "The disk is full"),
            Code::StoreCorrupt => (500, 70, "The log is damaged"),
            Code::NotFound => (404, 5, "Not found"),
            Code::Unauthorized => (401, 7, "A credential is needed"),
            Code::Forbidden => (403, 7, "The credential does not allow it"),
            Code::InvalidInput => (400, 2, "The request is not valid"),
            Code::MethodNotAllowed => (405, 2, "The address does not take that method"),
            Code::RequestTimeout => (408, 75, "The request did not come in time"),
            Code::PayloadTooLarge => (413, 2, "The body is too large"),
            Code::StepFailed => (422, 1, "A step failed"),
            Code::TimedOut => (504, 1, "It took too long"),
            Code::GuardFailed => (409, 1, "A guard does not hold"),
            Code::StrategyExhausted => (422, 1, "Every approach failed"),
            Code::ExpressionFailed => (422, 2, "An expression failed"),
            Code::TaskStuck => (504, 1, "The agent does not get on"),
            Code::Cancelled => (409, 3, "It was cancelled"),
            Code::Unavailable => (503, 75, "Not available at the moment"),
            Code::Internal => (500, 70, "A defect in Windlass"),
        }
    }

    /// The code as a bounded name, for records.
    #[must_use]
    pub fn name(self) -> crate::id::Name {
        crate::id::Name::clean(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_documented_exit_code_and_an_error_status() {
        for &code in Code::ALL {
            assert!((400..600).contains(&code.http()), "{code}");
            assert!([1, 2, 3, 4, 5, 6, 7, 70, 75].contains(&code.exit()), "{code}");
            assert_eq!(Code::parse(code.as_str()), Some(code));
        }
    }
}
