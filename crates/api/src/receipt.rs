//! Receipts: what happened outside, and how it can be taken back.

use crate::Time;
use crate::schema::Word;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::id::{Name, ReceiptId, RunId, StepId};
use windlass_core::receipt::{self, Outcome};

/// A record of an effect on the outside world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Receipt {
    /// Its id.
    #[schemars(with = "String")]
    pub id: ReceiptId,
    /// The run that acted.
    #[schemars(with = "String")]
    pub run: RunId,
    /// The step that acted.
    #[schemars(with = "String")]
    pub step: StepId,
    /// Identifies the effect.
    #[schemars(with = "String")]
    pub key: Name,
    /// Which generation of the key: it grows when an effect was taken back and may happen again.
    pub generation: u32,
    /// What carried it out.
    #[schemars(with = "String")]
    pub tool: Name,
    /// What was asked of it.
    #[schemars(with = "String")]
    pub operation: Name,
    /// Of what.
    #[schemars(with = "String")]
    pub target: Name,
    /// How it came out.
    #[schemars(with = "Word<Outcome>")]
    pub status: Outcome,
    /// Whether it can be taken back.
    pub reversible: bool,
    /// Whether it came after the attempt was given up.
    pub late: bool,
    /// How it can be taken back. Absent once redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverse: Option<Reversal>,
    /// The run that took it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub reversed_by: Option<RunId>,
    /// What was asked. Absent once redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Value>,
    /// What came back. Absent once redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Value>,
    /// When it was recorded.
    pub at: Time,
}

impl From<&receipt::Receipt> for Receipt {
    fn from(receipt: &receipt::Receipt) -> Receipt {
        Receipt {
            id: receipt.id,
            run: receipt.run,
            step: receipt.step.clone(),
            key: receipt.key.clone(),
            generation: receipt.generation,
            tool: receipt.tool.clone(),
            operation: receipt.operation.clone(),
            target: receipt.target.clone(),
            status: receipt.status,
            reversible: receipt.reversible,
            late: receipt.late,
            reverse: receipt.reverse.as_ref().map(Reversal::from),
            reversed_by: receipt.reversed_by,
            request: receipt.request.clone(),
            response: receipt.response.clone(),
            at: receipt.at.into(),
        }
    }
}

/// How an effect can be taken back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reversal {
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
}

impl From<&receipt::Reversal> for Reversal {
    fn from(reversal: &receipt::Reversal) -> Reversal {
        let receipt::Reversal { tool, operation, target, fields } = reversal.clone();
        Reversal { tool, operation, target, fields }
    }
}
