//! Undo: taking back what a run did outside.

use crate::Time;
use crate::run::Run;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::id::{Name, ReceiptId, RunId, StepId};

/// A run is to be taken back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// Take back also what others changed since.
    #[serde(default)]
    pub force: bool,
}

/// What an undo does, or would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Undo {
    /// The run whose effects are taken back.
    #[schemars(with = "String")]
    pub of: RunId,
    /// Its effects, latest first, with how each is taken back or why not.
    pub items: Vec<Effect>,
    /// Where nothing is done: which runs took something back before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_back: Option<Vec<TakenBack>>,
    /// The run that does it; absent where nothing is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
}

/// A run that took something back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TakenBack {
    /// The run.
    #[schemars(with = "String")]
    pub run: RunId,
    /// When it ended.
    pub at: Time,
}

/// One effect of a run, and how it would be taken back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Effect {
    /// The step that did it.
    #[schemars(with = "String")]
    pub step: StepId,
    /// `ready`, `conflict` or `irreversible`.
    pub state: String,
    /// Why it is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub receipt: Option<ReceiptId>,
    /// What was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub did: Option<Act>,
    /// What would be done. Null where nothing can be.
    pub undo: Option<Act>,
}

/// Something that a tool or a shell does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Act {
    /// The tool.
    #[schemars(with = "String")]
    pub tool: Name,
    /// What it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub operation: Option<Name>,
    /// What it does it to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Value>,
    /// With which values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Value>,
    /// The command of a shell step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}
