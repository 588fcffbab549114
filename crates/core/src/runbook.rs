//! Runbooks: the validated definition that runs are pinned to.
//!
//! Parsing lives elsewhere; what comes here has its defaults merged, its names resolved and its texts split
//! into literals and expressions. A pipeline's steps stand in one list, and groups name their members by
//! their place in it, so a record can say which definition it means with a number. A member always stands
//! after its group, so there are no cycles.

mod approach;
mod validate;
pub use approach::{Approach, FallbackCondition};

use crate::approval::Tier;
use crate::budget::Limits;
use crate::caps::Caps;
use crate::code::Code;
pub use crate::event::words::Evidence;
use crate::guard::Guard;
use crate::id::{Name, ReceiptId, Scoped};
use crate::policy::Risk;
use crate::receipt::Semantics;
use crate::schedule::{CatchUp, Overlap};
use crate::small::Map;
use crate::step::FailFast;
use crate::template::{Expr, Template};
use crate::time::Span;
use crate::word::words;
use crate::workspace::Keep;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The place of a step in [`Pipeline::nodes`].
pub type Node = u32;

/// The most steps a pipeline may define.
pub const NODES_MAX: usize = 10_000;
/// The most items a `foreach` may have.
pub const ITEMS_MAX: usize = 1_000;
/// The most steps of a run, those of all items and tries together. What ends a run may have as many again.
pub const STEPS_MAX: usize = 50_000;
/// The most steps an `approve` step may name.
pub const NAMED_MAX: usize = 100;
/// How deep groups may be nested.
pub const DEPTH_MAX: u32 = 32;
/// How deep runs may call runs.
pub const CALLS_MAX: u32 = 8;

/// A whole runbook.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Runbook {
    /// The identity under which it is deployed.
    pub name: Name,
    /// The version of this form.
    pub version: u32,
    /// Its pipelines.
    pub pipelines: Map<Name, Pipeline>,
    /// Its queues.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub queues: Map<Name, QueueDef>,
    /// Its workers.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub workers: Map<Name, WorkerDef>,
    /// Its agents.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub agents: Map<Name, AgentDef>,
    /// Its schedules.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub schedules: Map<Name, ScheduleDef>,
    /// Its triggers.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub triggers: Map<Name, TriggerDef>,
    /// Its semaphores.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub semaphores: Map<Name, SemaphoreDef>,
    /// Its locks.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub locks: Map<Name, LockDef>,
    /// What it may do at most: can only tighten the tenant's caps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caps: Option<Caps>,
    /// What it may cost at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Limits>,
    /// Of which of its runs a bundle of evidence is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// The command that lists issues, for guards that ask about them; the configuration's where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issues: Option<String>,
    /// The pipelines whose runs it takes back, where it was made for an undo: policy is told of them. No file can say it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undoes: Vec<Name>,
}

impl Runbook {
    /// The secrets that its steps name, wherever they may stand.
    #[must_use]
    pub fn secrets(&self) -> BTreeSet<Name> {
        let mut names = BTreeSet::new();
        for step in self.pipelines.iter().flat_map(|(_, pipeline)| &pipeline.nodes) {
            step.env.iter().for_each(|(_, template)| template.secrets(&mut names));
            for kind in [Some(&step.kind), step.reconcile.as_deref()].into_iter().flatten() {
                if let Kind::Tool { with, .. } = kind {
                    with.secrets(&mut names);
                }
            }
        }
        names
    }
}

/// A named sequence of steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// What it takes.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub vars: Map<Name, VarDef>,
    /// What it gives to a caller.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub outputs: Map<Name, Template>,
    /// A lock held by the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockUse>,
    /// What a run may cost at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Limits>,
    /// How long a run may take, waits included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Span>,
    /// Pipelines of which the newest run must be completed first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<Name>,
    /// The working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceDef>,
    /// Every step of the pipeline, groups before their members.
    pub nodes: Vec<StepDef>,
    /// The steps of the sequence.
    pub steps: Vec<Node>,
    /// What runs after a failure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_failure: Vec<Node>,
    /// What runs at the end in any case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finally: Vec<Node>,
}

/// A variable of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VarDef {
    /// Its type; any where absent.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<ValueType>,
    /// Whether it must be given.
    #[serde(default)]
    pub required: bool,
    /// What it is when it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    /// What it may be.
    #[serde(default, rename = "enum", skip_serializing_if = "Vec::is_empty")]
    pub one_of: Vec<Value>,
    /// What it must look like: a regular expression, which the evaluator of expressions knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
}

words! {
    /// The type of a variable or an output.
    ValueType {
        /// Text.
        String = "string",
        /// A number.
        Number = "number",
        /// A whole number.
        Integer = "integer" | "int",
        /// True or false.
        Bool = "bool" | "boolean",
        /// A list.
        List = "list" | "array",
        /// A map.
        Map = "map" | "object",
        /// Anything.
        Any = "any",
    }
}

impl ValueType {
    /// Whether a value is of the type. There is no coercion.
    #[must_use]
    pub fn fits(self, value: &Value) -> bool {
        match self {
            ValueType::String => value.is_string(),
            ValueType::Number => value.is_number(),
            ValueType::Integer => value.is_i64() || value.is_u64(),
            ValueType::Bool => value.is_boolean(),
            ValueType::List => value.is_array(),
            ValueType::Map => value.is_object(),
            ValueType::Any => true,
        }
    }

    /// One of it, for messages.
    #[must_use]
    pub const fn noun(self) -> &'static str {
        match self {
            ValueType::String => "a string",
            ValueType::Number => "a number",
            ValueType::Integer => "an integer",
            ValueType::Bool => "a bool",
            ValueType::List => "a list",
            ValueType::Map => "a map",
            ValueType::Any => "a value",
        }
    }
}

/// A step as it is defined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepDef {
    /// Its name, unique in the pipeline; made up where the runbook gives none.
    pub id: Name,
    /// What it does.
    pub kind: Kind,
    /// Whether it runs at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Expr>,
    /// For which items it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreach: Option<Foreach>,
    /// How often it is tried.
    #[serde(default)]
    pub retry: Retry,
    /// How long an attempt may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// What must hold before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<Guard>,
    /// What must hold after.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<Guard>,
    /// The lock it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockUse>,
    /// The slots it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub semaphore: Option<SemaphoreUse>,
    /// What takes its effect back.
    #[serde(default)]
    pub compensate: Compensate,
    /// What can be done about a lost attempt; absent, it is run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Semantics>,
    /// The read that tells what became of a lost attempt, where `effect` is to reconcile and the tool's own does not
    /// serve: a command, or a tool that only reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconcile: Option<Box<Kind>>,
    /// The effect that it takes back, where it is a step of an undo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverses: Option<Reverses>,
    /// What identifies its side effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<Template>,
    /// How far that identity reaches.
    #[serde(default)]
    pub key_scope: KeyScope,
    /// How risky it is, where that is more than the tool says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub risk: Option<Risk>,
    /// How it saves its progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointDef>,
    /// Its environment.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub env: Map<String, Template>,
    /// Where it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<Template>,
    /// Which shell runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// Which executors may run it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs_on: Vec<Name>,
    /// What it must give.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub outputs: Map<Name, ValueType>,
}

/// An effect that a step takes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reverses {
    /// Its key.
    pub key: Scoped,
    /// Its receipt.
    pub receipt: ReceiptId,
}

/// What a step does: exactly one of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Kind {
    /// A shell command. Values reach it only through the environment.
    Run { command: String },
    /// A tool call. `writes` says whether it changes something outside.
    Tool { tool: Name, operation: Name, target: Template, with: Template, writes: bool, risk: Risk },
    /// An agent's work.
    Agent { agent: Name, prompt: Template },
    /// Steps side by side.
    Parallel { steps: Vec<Node>, fail_fast: FailFast },
    /// A sequence as one step.
    Steps { steps: Vec<Node> },
    /// Approaches in order, until one succeeds.
    Strategy { approaches: Vec<ApproachDef> },
    /// Another pipeline as a child run.
    Call { pipeline: Name, vars: Map<Name, Template> },
    /// A human's decision, as a step of its own or for the steps it names.
    Approve {
        message: Template,
        approvers: Vec<Name>,
        count: u32,
        tier: Tier,
        expires: Span,
        steps: Vec<Name>,
    },
    /// A time, or an external event.
    Wait { wait: WaitFor },
}

impl Kind {
    /// What carries it out, as `step.tool` names it.
    #[must_use]
    pub fn tool(&self) -> &str {
        match self {
            Kind::Run { .. } => "shell",
            Kind::Tool { tool, .. } => tool.as_str(),
            Kind::Agent { .. } => "agent",
            Kind::Parallel { .. } => "parallel",
            Kind::Steps { .. } => "steps",
            Kind::Strategy { .. } => "strategy",
            Kind::Call { .. } => "call",
            Kind::Approve { .. } => "approve",
            Kind::Wait { .. } => "wait",
        }
    }

    /// The members of a group.
    #[must_use]
    pub fn members(&self) -> Vec<Node> {
        match self {
            Kind::Parallel { steps, .. } | Kind::Steps { steps } => steps.clone(),
            Kind::Strategy { approaches } => approaches.iter().map(|approach| approach.node).collect(),
            Kind::Run { .. }
            | Kind::Tool { .. }
            | Kind::Agent { .. }
            | Kind::Call { .. }
            | Kind::Approve { .. }
            | Kind::Wait { .. } => Vec::new(),
        }
    }
}

/// One approach of a strategy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApproachDef {
    /// The step that carries it out.
    pub node: Node,
    /// Its name, and which failures the next approach is for.
    pub approach: Approach,
}

/// What a `wait` step waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum WaitFor {
    /// A time.
    Time { span: Span },
    /// An external event.
    Event { event: Name, key: Option<Template>, timeout: Option<Span>, continue_on_timeout: bool },
}

/// The items a step runs for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Foreach {
    /// A list, or a map of lists whose product it is.
    pub over: Template,
    /// How many run at once.
    pub max_parallel: u32,
    /// Whether a failed one keeps the rest from starting.
    pub fail_fast: bool,
}

/// How often a step is tried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// How many tries in all; the kind's own number where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// How long to wait after each failure; the last holds for all further ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backoff: Vec<Span>,
    /// Which failures are worth another try: texts they contain. Empty: those the tool calls retryable, and any
    /// failure of a step that says `retry`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<String>,
}

/// A lock that is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockUse {
    /// Its name.
    pub name: Template,
    /// What happens while another holds it.
    pub overlap: Overlap,
}

/// Slots that are used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SemaphoreUse {
    /// Its name.
    pub name: Template,
    /// How many slots.
    pub weight: u32,
}

/// What takes a step's effect back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Compensate {
    /// Nothing is declared.
    #[default]
    Undeclared,
    /// Nothing, and that is meant.
    Exempt,
    /// This step, which sees `output`.
    With(Node),
    /// Nothing of its own: the pipeline that the step calls has compensations, and its run is taken back by those.
    Called,
}

words! {
    /// How far an effect key reaches.
    KeyScope {
        /// A run with its retries and forks.
        Lineage = "lineage",
        /// Everything of the tenant.
        Tenant = "tenant",
    }
}

#[allow(clippy::derivable_impls)] // The words macro has no place for `#[default]`.
impl Default for KeyScope {
    fn default() -> Self {
        KeyScope::Lineage
    }
}

/// How a step saves its progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointDef {
    /// How often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Span>,
    /// Whether its saved output serves instead of a repeat.
    pub resumable: bool,
}

/// A working directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceDef {
    /// The repository.
    pub git: Template,
    /// What the branch starts from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Template>,
    /// The branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<Template>,
    /// When it is kept.
    pub keep: Keep,
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueDef {
    /// How long an outside consumer may keep an item without a heartbeat.
    pub visibility_timeout: Span,
    /// How many tries in all.
    pub max_attempts: u32,
    /// How long a failed item waits.
    pub cooldown: Span,
    /// Where dead items go too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<Name>,
    /// How many items may wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<u64>,
    /// Whether a key stands for one waiting item.
    #[serde(default)]
    pub dedupe: bool,
    /// Commands that list and take, where the items live elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalQueue>,
}

/// A queue whose items live elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExternalQueue {
    /// The command that lists items as JSON.
    pub list: String,
    /// The command that takes one.
    pub take: String,
    /// How often to look.
    pub poll: Span,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerDef {
    /// The queue it consumes.
    pub queue: Name,
    /// The pipeline it runs for each item.
    pub pipeline: Name,
    /// How many runs may be under way.
    pub concurrency: u32,
    /// How an item becomes variables; its own keys where empty.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub vars: Map<Name, Template>,
    /// Events that wake it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wake_on: Vec<String>,
}

/// An agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentDef {
    /// The command that starts it.
    pub command: Vec<String>,
    /// How its screen is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Name>,
    /// What follows when something happens to it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub on: Map<AgentEvent, AgentAction>,
    /// How long it may be silent.
    pub heartbeat_timeout: Span,
    /// How often it may be nudged and restarted.
    pub max_recovery_attempts: u32,
    /// What it may cost at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Limits>,
}

words! {
    /// What can happen to an agent.
    AgentEvent {
        /// It is idle.
        Idle = "idle",
        /// It asks something.
        Prompt = "prompt",
        /// It met an error.
        Error = "error",
        /// Its session is gone.
        Dead = "dead",
        /// It does not get on.
        Stuck = "stuck",
    }
}

/// What follows when something happens to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AgentAction {
    /// Remind it.
    Nudge,
    /// Take it as done.
    Done,
    /// Take it as failed.
    Fail,
    /// Start it again, at most that often.
    Restart(u32),
    /// Ask a human.
    Escalate,
    /// Run a command: success is done.
    Gate(String),
}

/// A schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleDef {
    /// `cron` fields, or `every` and a span.
    pub spec: String,
    /// The time zone of the cron fields.
    pub timezone: Name,
    /// By how much a slot may be moved.
    pub jitter: Span,
    /// What happens to missed slots.
    pub catch_up: CatchUp,
    /// What happens while the run before is under way.
    pub overlap: Overlap,
    /// The pipeline.
    pub pipeline: Name,
    /// Its variables.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub vars: Map<Name, Template>,
}

/// A trigger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriggerDef {
    /// The source: `github`, `slack`, a hook's name, or `custom` for custom events.
    pub source: Name,
    /// The event or command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Name>,
    /// The event's action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Name>,
    /// Whether it applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Expr>,
    /// How the payload becomes variables.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub vars: Map<Name, Template>,
    /// The pipeline it runs, or
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<Name>,
    /// the signal it sends to the run that waits for `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<Name>,
    /// The key of the signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Template>,
    /// How long the same event of the same thing is taken for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedupe_window: Option<Span>,
}

/// A semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SemaphoreDef {
    /// How many slots.
    pub capacity: u32,
    /// How long an outside holder may be silent.
    pub heartbeat_timeout: Span,
}

/// A lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockDef {
    /// How long an outside holder may be silent.
    pub heartbeat_timeout: Span,
    /// How long anybody may hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_hold_duration: Option<Span>,
}

/// Why a definition does not hold together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Two steps of a pipeline have one name.
    #[error("pipeline `{0}`: two steps are called `{1}`")]
    Duplicate(Name, Name),
    /// A group names a member that does not stand after it.
    #[error("pipeline `{0}`: step `{1}` names a member that is not there")]
    Member(Name, Name),
    /// A step belongs to two groups, or to none.
    #[error("pipeline `{0}`: step `{1}` does not have exactly one place")]
    Place(Name, Name),
    /// More than the bound.
    #[error("pipeline `{0}`: more than {1} {2}")]
    TooMany(Name, usize, &'static str),
    /// A name that nothing bears.
    #[error("{0} `{1}` names {2} `{3}`, which is not there")]
    Missing(&'static str, Name, &'static str, Name),
    /// Something that the language has and this version cannot keep: refused rather than ignored.
    #[error("pipeline `{0}`, `{1}`: {2} is not supported yet")]
    Unsupported(Name, Name, &'static str),
    /// A worker that would never wake as it says.
    #[error("worker `{0}`: {1}")]
    WakeOn(Name, String),
    /// A number that makes no sense.
    #[error("{0} `{1}`: {2} must be at least 1")]
    Zero(&'static str, Name, &'static str),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        Code::RunbookInvalid
    }
}

impl Pipeline {
    /// The definition at a place.
    #[must_use]
    pub fn node(&self, node: Node) -> Option<&StepDef> {
        self.nodes.get(node as usize)
    }
}

#[cfg(test)]
mod tests;
