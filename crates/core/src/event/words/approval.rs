//! The words of approvals.

use crate::word::words;

words! {
    /// An approval's status.
    Status {
        /// Somebody has to decide.
        Requested = "requested",
        /// Enough humans said yes. Moved on only where what they said it to changes before it is done.
        Approved = "approved",
        /// A human said no. Terminal.
        Rejected = "rejected",
        /// Nobody decided in time. Terminal.
        Expired = "expired",
        /// Void. Terminal.
        Cancelled = "cancelled" | "canceled",
    }
}

words! {
    /// What a human decides.
    Verdict {
        /// Yes.
        Approved = "approved",
        /// No.
        Rejected = "rejected",
    }
}

words! {
    /// How much is at stake.
    Tier {
        /// Little.
        Low = "low",
        /// Some.
        Medium = "medium" | "med",
        /// Much.
        High = "high",
    }
}

words! {
    /// Where a decision came from.
    Channel {
        /// The command line.
        Cli = "cli",
        /// The API.
        Api = "api",
        /// Slack.
        Slack = "slack",
        /// The web page.
        Ui = "ui",
    }
}

words! {
    /// Why an attempt to decide was refused.
    Refusal {
        /// The action is not the one that was shown.
        HashMismatch = "hash_mismatch",
        /// Too late.
        Expired = "expired",
        /// Somebody decided before.
        AlreadyDecided = "already_decided",
        /// The requester may not approve.
        OwnRequest = "own_request",
        /// The same human approved before.
        SameHuman = "same_human",
        /// Not among the approvers.
        NotApprover = "not_approver",
        /// A step's own token, or a caller without a name, cannot approve.
        NotHuman = "not_human",
    }
}

words! {
    /// Why an approval was shown.
    Showing {
        /// It was asked for.
        Requested = "requested",
        /// Nobody decided yet.
        Reminded = "reminded",
        /// Nobody decided for long, and others are asked too.
        Escalated = "escalated",
        /// Somebody decided, or it is over.
        Updated = "updated",
    }
}
