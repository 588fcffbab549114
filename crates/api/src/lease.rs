//! Leases: the permission to carry out one attempt of a step, and what executors report of it.

use crate::Time;
use crate::schema::Word;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::code::Code;
use windlass_core::id::{AttemptId, Name, RunId, StepId};
use windlass_core::packed::Packed;
use windlass_core::runbook::ValueType;
use windlass_core::small;

/// An executor asks for steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// The executor's name.
    pub executor: String,
    /// How many steps at most.
    #[serde(default = "one")]
    pub max: usize,
    /// How long to wait for the first.
    #[serde(default)]
    pub wait_ms: u64,
    /// What steps with `runs_on` may ask of it.
    #[serde(default)]
    pub labels: Vec<String>,
    /// What it can carry out; shell steps where absent.
    #[serde(default)]
    pub tools: Option<Vec<String>>,
}

fn one() -> usize {
    1
}

/// What was leased to an executor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Leases {
    /// The steps.
    pub items: Vec<Lease>,
    /// Where the server's own steps reach the API: a URL, or `unix:` and the path of a socket.
    #[serde(default)]
    pub server: String,
}

/// The permission to carry out a step, with everything that is needed for it. Secrets are references: the executor has their
/// values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Lease {
    /// The run.
    #[schemars(with = "String")]
    pub run: RunId,
    /// The step.
    #[schemars(with = "String")]
    pub step: StepId,
    /// Which try it is, from 1.
    pub attempt: u32,
    /// The fence: reports under another epoch are refused.
    pub epoch: u64,
    /// What carries it out.
    #[schemars(with = "String")]
    pub tool: Name,
    /// What it is given. Null where nothing.
    pub input: Option<Value>,
    /// Identifies its effects.
    #[schemars(with = "String")]
    pub idempotency_key: Name,
    /// When the lease ends, unless a heartbeat comes.
    pub expires_at: Time,
    /// How long that is from now on.
    #[serde(default)]
    pub ttl_ms: u64,
    /// Whose the run is.
    #[schemars(with = "String")]
    pub tenant: Name,
    /// The subdivision.
    #[schemars(with = "String")]
    pub namespace: Name,
    /// The pipeline that the run executes.
    #[schemars(with = "String")]
    pub pipeline: Name,
    /// The command of a shell step. Null for other steps.
    pub command: Option<String>,
    /// Which shell runs it. Null for the usual one.
    pub shell: Option<String>,
    /// What `env:` adds to its environment. Null where nothing.
    pub env: Option<BTreeMap<String, Env>>,
    /// The fields of a tool as the runbook has them: they say which of them are secrets. Null for other steps.
    #[serde(default)]
    pub with: Option<Value>,
    /// What can be done about the attempt if it is lost: `idempotent`, `at_most_once` or `reconcile`. Null: it is done again.
    #[serde(default)]
    pub semantics: Option<String>,
    /// Whether the tool itself finds out what became of a lost effect.
    #[serde(default)]
    pub own_read: bool,
    /// Where it runs. Null where the runbook does not say.
    pub dir: Option<String>,
    /// How long it may take. Null where there is no limit.
    pub timeout_ms: Option<u64>,
    /// The outputs that it must have, and their types. Null where the definition is not known.
    #[schemars(with = "Option<BTreeMap<String, Word<ValueType>>>")]
    pub outputs: Option<small::Map<Name, ValueType>>,
    /// Whether it may be done again after its executor was lost on the way.
    #[serde(default = "yes")]
    pub repeatable: bool,
    /// The run's variables, as the step is given them.
    #[schemars(with = "Value")]
    pub vars: Packed,
    /// The token for `WL_TOKEN`, good for this attempt alone.
    #[serde(default)]
    pub token: String,
    /// The names of all secrets of its runbook: their values are masked in what it writes.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub secrets: BTreeSet<Name>,
    /// The W3C trace context of the attempt.
    #[serde(default)]
    pub traceparent: String,
}

fn yes() -> bool {
    true
}

impl Lease {
    /// The attempt that it is for.
    #[must_use]
    pub fn id(&self) -> AttemptId {
        AttemptId { run: self.run, step: self.step.clone(), epoch: self.epoch }
    }
}

/// The value of an environment variable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Env {
    /// A text.
    Text(String),
    /// A reference to a secret, whose value the executor has.
    Secret {
        /// The secret's name.
        #[serde(rename = "$secret")]
        #[schemars(with = "String")]
        secret: Name,
    },
}

/// Which attempt an item of a report is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// The run.
    pub run: String,
    /// The step.
    pub step: String,
    /// The fence of the attempt.
    pub epoch: u64,
}

impl From<&AttemptId> for Item {
    fn from(id: &AttemptId) -> Item {
        Item { run: id.run.to_string(), step: id.step.to_string(), epoch: id.epoch }
    }
}

/// The attempts go on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Beats {
    /// Those that go on.
    pub items: Vec<Item>,
    /// How long to wait for news; the heartbeat counts from its arrival.
    #[serde(default)]
    pub wait_ms: u64,
}

/// Several reports, each about one attempt and each answered for itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reports<T> {
    /// One for each attempt.
    pub items: Vec<T>,
}

/// An attempt is about to use secrets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Uses {
    /// The run.
    pub run: String,
    /// The step.
    pub step: String,
    /// The fence of the attempt.
    pub epoch: u64,
    /// The secrets.
    pub secrets: Vec<Used>,
}

/// A secret by its name, and which version of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Used {
    /// Its name.
    pub name: String,
    /// A number, or where the value came from.
    pub version: String,
}

/// An attempt succeeded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Done {
    /// The run.
    pub run: String,
    /// The step.
    pub step: String,
    /// The fence of the attempt.
    pub epoch: u64,
    /// An object with its outputs.
    #[serde(default)]
    pub output: Option<Value>,
    /// How its command exited.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// What kept its command apart from the executor: `sandbox`, `user NAME` or `none`.
    #[serde(default)]
    pub wall: Option<String>,
    /// What a tool got back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Evidence>,
    /// What it cost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub costs: Vec<Spent>,
}

/// What an executor got back from the outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// Made by the executor, so that a repeated report brings the same receipt.
    pub id: String,
    /// `succeeded` or `failed`.
    pub status: String,
    /// Whether it can be taken back.
    #[serde(default)]
    pub reversible: bool,
    /// The call that takes it back: `tool`, `operation`, `target` and `fields`.
    #[serde(default)]
    pub reverse: Option<Value>,
    /// What was asked of the other side.
    #[serde(default)]
    pub request: Option<Value>,
    /// What it answered.
    #[serde(default)]
    pub response: Option<Value>,
}

/// What an attempt cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spent {
    /// Who was paid.
    pub provider: String,
    /// For which model.
    pub model: String,
    /// `usd_micros`, `tokens_input`, `tokens_output`, `time_ms` and `writes`.
    pub total: Value,
}

/// An attempt failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Failed {
    /// The run.
    pub run: String,
    /// The step.
    pub step: String,
    /// The fence of the attempt.
    pub epoch: u64,
    /// Why.
    #[serde(default)]
    pub error: Option<Reason>,
    /// Whether it is worth another try.
    #[serde(default)]
    pub retryable: bool,
    /// How its command exited.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// What kept its command apart from the executor: `sandbox`, `user NAME` or `none`.
    #[serde(default)]
    pub wall: Option<String>,
    /// The signal that ended its command.
    #[serde(default)]
    pub signal: Option<i32>,
    /// What a tool got back: with it, it is known that the effect did not happen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Evidence>,
    /// What it cost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub costs: Vec<Spent>,
    /// The other side asks to be left alone for this long; with `retryable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// Why an attempt failed: a text, or a code with one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Reason {
    /// A text.
    Text(String),
    /// A code and a text.
    Coded {
        /// STEP_FAILED, TIMED_OUT, FORBIDDEN, CANCELLED or OUTCOME_UNKNOWN.
        #[serde(default)]
        code: Option<String>,
        /// For people.
        message: String,
    },
}

/// An attempt was not begun, and its lease is handed back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Returned {
    /// The run.
    pub run: String,
    /// The step.
    pub step: String,
    /// The fence of the attempt.
    pub epoch: u64,
    /// Why.
    #[serde(default)]
    pub reason: Option<String>,
    /// The executor had no room to begin it: it is leased again after this long. An hour at most.
    #[serde(default)]
    pub retry_after_ms: Option<u64>,
}

/// What the server says of one item of a report or a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Answered {
    /// The run, as it was given.
    pub run: String,
    /// The step, as it was given.
    pub step: String,
    /// The epoch, as it was given.
    pub epoch: u64,
    /// After a heartbeat: when the lease ends unless another one comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// After a heartbeat: whether the attempt is to be stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<bool>,
    /// How long it has to end by itself when it is to be stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// Why it was refused. Absent where it was not.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::problem::known_or_none"
    )]
    #[schemars(with = "Option<String>")]
    pub code: Option<Code>,
    /// The same for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl Answered {
    /// The attempt that it is about, where the ids that were given are ids.
    #[must_use]
    pub fn id(&self) -> Option<AttemptId> {
        let (run, step) = (RunId::parse(&self.run).ok()?, StepId::new(&self.step).ok()?);
        Some(AttemptId { run, step, epoch: self.epoch })
    }

    /// The answer to an item that was taken.
    #[must_use]
    pub fn to(item: &Item) -> Answered {
        Answered { run: item.run.clone(), step: item.step.clone(), epoch: item.epoch, ..Answered::default() }
    }
}

/// A step saves its progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// The attempt's own.
    pub epoch: u64,
    /// Whether what is saved serves as the step's output, should its executor be lost.
    #[serde(default)]
    pub resumable: bool,
    /// Whether the step can be done again.
    #[serde(default)]
    pub idempotent: bool,
    /// What is saved.
    #[serde(default)]
    pub data: Option<Map<String, Value>>,
    /// For people.
    #[serde(default)]
    pub message: Option<String>,
    /// The tokens that the attempt took so far.
    #[serde(default)]
    pub tokens_input: Option<u64>,
    /// The tokens that it produced.
    #[serde(default)]
    pub tokens_output: Option<u64>,
}

/// A checkpoint was saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Saved {
    /// The run.
    #[schemars(with = "String")]
    pub run: RunId,
    /// The step.
    #[schemars(with = "String")]
    pub step: StepId,
    /// When.
    pub saved_at: Time,
}

/// A piece of what a step wrote on another machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    /// The attempt's own.
    pub epoch: u64,
    /// Where the piece begins: the `offset` of the answer before, 0 for the first.
    #[serde(default)]
    pub offset: u64,
    /// The lines.
    pub lines: Vec<Wrote>,
}

/// A line that a step wrote.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wrote {
    /// When, in milliseconds since the epoch.
    pub at: u64,
    /// `stdout`, `stderr` or `windlass`.
    pub source: String,
    /// The line.
    pub text: String,
    /// False where the line goes on in the next one.
    #[serde(default = "yes")]
    pub whole: bool,
}

/// A piece was added to what the server has of a step's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Added {
    /// How many bytes the server has now: where the next piece begins.
    pub offset: u64,
    /// Whether it takes no more.
    pub full: bool,
}
