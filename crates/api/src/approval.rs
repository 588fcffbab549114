//! Approvals: a human's decision, bound to exactly one action.

use crate::Time;
use crate::schema::Word;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::approval::{self, Channel, Status, Tier, Verdict};
use windlass_core::digest::Digest;
use windlass_core::id::{ApprovalId, Name, RunId, StepId};
use windlass_core::policy::Risk;
use windlass_core::receipt;

/// A request for a human's decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Approval {
    /// Its id.
    #[schemars(with = "String")]
    pub id: ApprovalId,
    /// The run that waits.
    #[schemars(with = "String")]
    pub run: RunId,
    /// The step that waits.
    #[schemars(with = "String")]
    pub step: StepId,
    /// Where it stands.
    #[schemars(with = "Word<Status>")]
    pub status: Status,
    /// How much is at stake.
    #[schemars(with = "Word<Tier>")]
    pub tier: Tier,
    /// Whether two humans have to agree, neither of them the requester.
    pub two_person: bool,
    /// How many humans have to agree.
    pub count: u32,
    /// The names and groups that may decide. Empty where anybody with the scope may.
    #[schemars(with = "Vec<String>")]
    pub approvers: Vec<Name>,
    /// Exactly what would be done. Absent once redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    /// The hash of exactly that.
    #[schemars(with = "String")]
    pub action_hash: Digest,
    /// The policy that asks.
    #[schemars(with = "String")]
    pub policy_version: Digest,
    /// Why it asks.
    pub reasons: Vec<String>,
    /// What the runbook adds for the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Who wants it done.
    #[schemars(with = "String")]
    pub requested_by: Name,
    /// Who changed the run's variables since, or retried or forked it: they count as requesters too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Option<Vec<String>>")]
    pub changed_by: Vec<Name>,
    /// All who count as requesters, `requested_by` first. `unnamed` stands for a requester without a name.
    #[schemars(with = "Vec<String>")]
    pub requesters: Vec<Name>,
    /// When it was asked for.
    pub requested_at: Time,
    /// Until when it can be decided.
    pub expires_at: Time,
    /// The `approve` step on whose behalf another one asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub by_step: Option<StepId>,
    /// Why it is void, where it was withdrawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voided: Option<String>,
    /// What was decided.
    pub decisions: Vec<Decided>,
    /// What people are shown. Only where one approval is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<String>,
    /// The hash of exactly that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub card_hash: Option<Digest>,
}

impl From<&approval::Approval> for Approval {
    fn from(approval: &approval::Approval) -> Approval {
        Approval {
            id: approval.id,
            run: approval.run,
            step: approval.step.clone(),
            status: approval.status,
            tier: approval.tier,
            two_person: approval.two_person,
            count: approval.count,
            approvers: approval.approvers.clone(),
            action: approval.action.as_ref().map(Action::from),
            action_hash: approval.action_hash,
            policy_version: approval.policy_version,
            reasons: approval.reasons.clone(),
            message: approval.message.clone(),
            requested_by: approval.requested_by.clone(),
            changed_by: approval.changed_by.clone(),
            requesters: approval.requesters().cloned().collect(),
            requested_at: approval.requested_at.into(),
            expires_at: approval.expires_at.into(),
            by_step: approval.by_step.clone(),
            voided: approval.voided.clone(),
            decisions: approval.decisions.iter().map(Decided::from).collect(),
            card: None,
            card_hash: None,
        }
    }
}

/// What one human decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Decided {
    /// Who.
    #[schemars(with = "String")]
    pub by: Name,
    /// What.
    #[schemars(with = "Word<Verdict>")]
    pub decision: Verdict,
    /// When.
    pub at: Time,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Where it was said.
    #[schemars(with = "Word<Channel>")]
    pub channel: Channel,
    /// Whether they had asked for it themselves.
    pub own_request: bool,
}

impl From<&approval::Decided> for Decided {
    fn from(decided: &approval::Decided) -> Decided {
        Decided {
            by: decided.by.clone(),
            decision: decided.decision,
            at: decided.at.into(),
            reason: decided.reason.clone(),
            channel: decided.channel,
            own_request: decided.own_request,
        }
    }
}

/// An action on the outside world: what policy sees, what a human approves, what is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Action {
    /// The tool.
    #[schemars(with = "String")]
    pub tool: Name,
    /// What it does.
    #[schemars(with = "String")]
    pub operation: Name,
    /// What it does it to.
    #[schemars(with = "String")]
    pub target: Name,
    /// With which values.
    pub fields: Value,
    /// How risky it is.
    #[schemars(with = "Word<Risk>")]
    pub risk: Risk,
}

impl From<&receipt::Action> for Action {
    fn from(action: &receipt::Action) -> Action {
        let receipt::Action { tool, operation, target, fields, risk } = action.clone();
        Action { tool, operation, target, fields, risk }
    }
}

/// A human decides on an approval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decide {
    /// `approved` or `rejected`.
    pub decision: String,
    /// The hash of the action that was shown.
    pub action_hash: String,
    /// Why. A rejection needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The hash of the card that was shown, where it was: `card_hash` of the approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card_hash: Option<String>,
    /// Where it was shown: `cli` or `api`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
}
