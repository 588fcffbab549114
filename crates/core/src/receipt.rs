//! Actions, intents and receipts.

use crate::digest::Digest;
use crate::id::Name;
use crate::policy::Risk;
use crate::wire::nested;
use crate::word::words;
use serde::{Deserialize, Serialize};
use serde_json::Value;

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

impl Action {
    /// The hash that binds an approval to exactly this action.
    #[must_use]
    pub fn hash(&self) -> Digest {
        Digest::of(&[b"windlass action v1\n", &crate::canonical::bytes(self)])
    }
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

nested! { Action = "action", Reversal = "reversal" }
