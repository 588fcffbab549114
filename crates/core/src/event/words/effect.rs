//! The words of effects on the outside world: what is asked of policy, done, and found out.

use crate::id::Name;
use crate::wire::nested;
use crate::word::words;
use serde::{Deserialize, Serialize};
use serde_json::Value;

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

words! {
    /// What a command or a read is for that is no step of a run, and is asked about for itself.
    Purpose {
        /// A guard looks at the world.
        Guard = "guard",
        /// A guard asks which issues there are.
        Issues = "issues",
        /// The other side is asked whether an effect happened.
        Reconcile = "reconcile",
        /// An external queue is listed.
        List = "list",
        /// An item of an external queue is taken.
        Take = "take",
        /// People are told something.
        Notice = "notice",
        /// The other side is asked what is left of an effect that somebody wants to take back.
        Undo = "undo",
    }
}

words! {
    /// How an effect came out.
    Outcome {
        /// It happened.
        Succeeded = "succeeded",
        /// It was refused and did not happen.
        Failed = "failed",
    }
}

words! {
    /// What can be done about an intent without a receipt.
    Semantics {
        /// Do it again under the same key.
        Idempotent = "idempotent",
        /// Ask the other side.
        Reconcile = "reconcile",
        /// Ask a human.
        AtMostOnce = "at_most_once",
    }
}

words! {
    /// How an intent without a receipt was settled.
    Settled {
        /// It happened.
        Done = "done",
        /// It did not: it may be tried again.
        NotDone = "not_done",
        /// It is given up.
        Abandoned = "abandoned",
    }
}

/// A proposed action on the outside world: what policy sees, what a human approves, what is done.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// The tool, `servicenow.update`.
    pub tool: Name,
    /// What it does, `update`.
    pub operation: Name,
    /// What it does it to.
    pub target: Name,
    /// With which values.
    pub fields: Value,
    /// How risky it is.
    pub risk: Risk,
}

/// How an effect can be taken back.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reversal {
    /// The tool.
    pub tool: Name,
    /// What it does.
    pub operation: Name,
    /// What it does it to.
    pub target: Name,
    /// With which values.
    pub fields: Value,
}

nested! {
    Action = "action" of |it| alloc::vec![Some(&it.fields)],
    Reversal = "reversal" of |it| alloc::vec![Some(&it.fields)],
}
