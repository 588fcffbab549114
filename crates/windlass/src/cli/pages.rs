//! The page of each error code, as it stands in `docs/errors`: what it means, and what to do.

macro_rules! pages {
    ($($name:literal)+) => {
        &[$(($name, include_str!(concat!("../../../../docs/errors/", $name, ".md")))),+]
    };
}

/// The pages, by the name of the code.
pub(super) const PAGES: &[(&str, &str)] = pages! {
    "APPROVAL_EXPIRED"
    "APPROVAL_HASH_MISMATCH"
    "APPROVAL_REJECTED"
    "BUDGET_EXCEEDED"
    "CANCELLED"
    "CAP_EXCEEDED"
    "DEPLOY_CONFLICT"
    "EXPRESSION_FAILED"
    "FORBIDDEN"
    "GUARD_FAILED"
    "IDEMPOTENCY_CONFLICT"
    "IDEMPOTENCY_EXPIRED"
    "INTERNAL"
    "INVALID_INPUT"
    "LEASE_STALE_EPOCH"
    "LOCK_BUSY"
    "METHOD_NOT_ALLOWED"
    "NOT_FOUND"
    "OUTCOME_UNKNOWN"
    "PAYLOAD_TOO_LARGE"
    "POLICY_DENIED"
    "QUEUE_FULL"
    "REQUEST_TIMEOUT"
    "RUNBOOK_INVALID"
    "RUN_INVALID_TRANSITION"
    "RUN_ORPHANED"
    "RUN_RESUME_FAILED"
    "RUN_TERMINAL_STATE"
    "STEP_FAILED"
    "STORE_CORRUPT"
    "STORE_FULL"
    "STRATEGY_EXHAUSTED"
    "TASK_STUCK"
    "TIMED_OUT"
    "UNAUTHORIZED"
    "UNAVAILABLE"
};

#[cfg(test)]
mod tests {
    use super::PAGES;
    use windlass_core::code::Code;

    #[test]
    fn every_code_has_its_page() {
        for code in Code::ALL {
            let page = PAGES.iter().find(|(name, _)| *name == code.as_str());
            assert!(page.is_some_and(|(name, page)| page.contains(name)), "{code}");
        }
        assert_eq!(PAGES.len(), Code::ALL.len());
    }
}
