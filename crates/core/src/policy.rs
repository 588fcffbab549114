//! Policy decisions.

use crate::word::words;

words! {
    /// What policy says. It never warns.
    Verdict {
        /// Go on.
        Allow = "allow",
        /// No.
        Deny = "deny",
        /// Ask a human.
        NeedsApproval = "needs_approval",
    }
}

words! {
    /// How risky an action is: the higher of what the tool and the runbook say.
    Risk {
        /// Little.
        Low = "low",
        /// Some.
        Medium = "medium",
        /// Much.
        High = "high",
    }
}
