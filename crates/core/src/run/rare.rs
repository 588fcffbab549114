//! What few runs have, kept apart so that the many are small.

use crate::approval::Approval;
use crate::digest::Digest;
use crate::id::{ApprovalId, Name, NoticeId, RunId, StepId};
use crate::origin::Inherited;
use crate::packed::Packed;
use crate::small::Map;
use crate::task::Task;
use crate::time::Millis;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An external event that nobody waited for yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// Its name.
    pub name: Name,
    /// Its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Name>,
    /// What came with it.
    pub data: Value,
}

/// A step's saved progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// When.
    pub at: Millis,
    /// Whether its output serves instead of a repeat.
    pub resumable: bool,
    /// Whether a repeat is safe.
    pub idempotent: bool,
    /// By which attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// The tokens that the attempt took so far, in and out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<(u64, u64)>,
    /// What was saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// What was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A message to the outside that was asked for and not sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// What it is for.
    pub kind: crate::effect::Notice,
    /// The step it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepId>,
    /// What it says.
    pub message: String,
}

/// An undo that takes a run back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Undoing {
    /// The run that does it.
    pub run: RunId,
    /// The calls through which it reaches this run, as its steps are named after them. None for the run that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// What few runs have; kept apart so that the many are small.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rare {
    /// Approvals by their ids.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub approvals: Map<ApprovalId, Approval>,
    /// External events that came early.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signals: Vec<Kept>,
    /// Results of earlier runs of the lineage.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub inherited: Map<StepId, Inherited>,
    /// The last checkpoint of each step.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub checkpoints: Map<StepId, Checkpoint>,
    /// The last messages put on the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Checkpoint>,
    /// Agents at work, by their steps.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub tasks: Map<StepId, Task>,
    /// Messages to the outside that were asked for and not sent.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub notices: Map<NoticeId, Wanted>,
    /// Guards that gave up waiting at this time.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub guards: Map<StepId, Millis>,
    /// Earlier editions of the variables, as long as a step has one of them.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub vars: Map<u32, Packed>,
    /// `approve` steps whose question changed after it was answered, with the action that is asked about now.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub asking: Map<StepId, Digest>,
    /// Who counts as having asked for what it does, beside its trigger's user: `requesters`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed_by: Vec<Name>,
    /// The runs that earlier attempts of `call` steps made: the last one of each step.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub called: Map<StepId, RunId>,
    /// The undos that take it back, alone or with its caller, in the order in which they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undos: Vec<Undoing>,
    /// The retries and forks that go on from it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub later: Vec<RunId>,
    /// When it was found without an executor, until one has a step of it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orphaned_at: Option<Millis>,
}

impl Rare {
    pub(super) const EMPTY: Rare = Rare {
        approvals: Map::new(),
        signals: Vec::new(),
        inherited: Map::new(),
        checkpoints: Map::new(),
        messages: Vec::new(),
        tasks: Map::new(),
        notices: Map::new(),
        guards: Map::new(),
        vars: Map::new(),
        asking: Map::new(),
        changed_by: Vec::new(),
        called: Map::new(),
        undos: Vec::new(),
        later: Vec::new(),
        orphaned_at: None,
    };
}
