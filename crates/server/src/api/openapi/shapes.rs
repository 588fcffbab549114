//! The shapes of answers, as the document describes them. Nothing is made of these types but their schemas: answers are
//! written by `shape`, which leaves out what has nothing to say, and more fields may be added at any time.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value};
use windlass_api::{List, Problem, Time, lease};

/// Makes a schema.
pub type Shape = fn(&mut SchemaGenerator) -> Schema;

/// Every shape that a route can name.
#[must_use]
pub fn all() -> Vec<(&'static str, Shape)> {
    vec![
        ("run", Run::json_schema),
        ("step", Step::json_schema),
        ("checkpoint", Checkpoint::json_schema),
        ("approval", Approval::json_schema),
        ("receipt", Receipt::json_schema),
        ("lease", lease::Lease::json_schema),
        ("leases", lease::Leases::json_schema),
        ("answered", lease::Answered::json_schema),
        ("item", Item::json_schema),
        ("grant", Grant::json_schema),
        ("lock", Lock::json_schema),
        ("semaphore", Semaphore::json_schema),
        ("runbook", Runbook::json_schema),
        ("plan", Plan::json_schema),
        ("why", Why::json_schema),
        ("undo", Undo::json_schema),
        ("delivered", Delivered::json_schema),
        ("token", Token::json_schema),
        ("me", Me::json_schema),
        ("health", Health::json_schema),
        ("list", List::<Object>::json_schema),
        ("problem", Problem::json_schema),
        ("events", Event::json_schema),
        ("pushed", Pushed::json_schema),
        ("lines", String::json_schema),
        ("card", String::json_schema),
        ("evidence", String::json_schema),
        ("key", Object::json_schema),
        ("verified", Object::json_schema),
        ("queue", Object::json_schema),
        ("worker", Object::json_schema),
        ("schedule", Object::json_schema),
        ("redriven", Object::json_schema),
        ("delivery", Object::json_schema),
        ("emitted", Object::json_schema),
        ("ingress", Object::json_schema),
        ("slack", Object::json_schema),
        ("figures", String::json_schema),
        ("saved", lease::Saved::json_schema),
        ("added", lease::Added::json_schema),
        ("policy", Object::json_schema),
        ("comparison", Object::json_schema),
        ("document", Map::<String, Value>::json_schema),
    ]
}

/// An object of any members.
type Object = Map<String, Value>;

/// One durable execution of a pipeline.
#[derive(JsonSchema)]
#[schemars(rename = "Run")]
pub struct Run {
    /// Its id.
    pub id: String,
    /// The pipeline that it executes.
    pub pipeline: String,
    /// A name for people.
    pub name: String,
    /// The name of its runbook, as long as that is stored.
    pub runbook: Option<String>,
    /// Where it stands.
    pub status: RunStatus,
    /// What it waits for.
    pub reason: Option<String>,
    /// Whose it is.
    pub tenant: String,
    /// The subdivision.
    pub namespace: String,
    /// The runbook that it is pinned to.
    pub runbook_hash: String,
    /// Its variables; not in lists.
    pub vars: Option<Value>,
    /// What made it.
    pub trigger: Trigger,
    /// What it is about.
    pub subject: Option<Object>,
    /// The step that it is at.
    pub current_step: Option<String>,
    /// What it came to.
    pub result: Option<Value>,
    /// What ties it to something outside.
    pub correlation_id: Option<String>,
    /// When it was made.
    pub created_at: Time,
    /// When something last happened to it.
    pub updated_at: Time,
    /// When it began.
    pub started_at: Option<Time>,
    /// When an executor of one of its steps was last heard of, while one has a step.
    pub last_heartbeat_at: Option<Time>,
    /// When it ended.
    pub completed_at: Option<Time>,
    /// How long it took.
    pub duration_ms: Option<u64>,
    /// The first run of its lineage.
    pub root_run: String,
    /// The run that it goes on from.
    pub resumed_from: Option<String>,
    /// How many runs of its lineage came before it.
    pub resume_count: u32,
    /// Why it is being stopped.
    pub cancellation: Option<Object>,
    /// Why it failed.
    pub error: Option<Failure>,
    /// What it may cost, what it has cost, and what is set aside.
    pub budget: Option<Object>,
    /// Whether nothing of it is leased until it is resumed.
    pub suspended: bool,
    /// The version of this shape.
    pub schema_version: u32,
    /// Its steps; not in lists.
    pub steps: Option<Vec<Step>>,
}

/// Where a run stands.
#[derive(JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// It has not begun.
    Pending,
    /// It waits for runs or a lock before it begins.
    Blocked,
    /// A step is ready or under way.
    Running,
    /// A human has to decide.
    AwaitingApproval,
    /// It waits for an event, a lock, a slot or a guard.
    WaitingExternal,
    /// A step waits for its next attempt.
    FailedRetryable,
    /// It came to its end.
    Completed,
    /// It did not.
    Failed,
    /// Somebody stopped it.
    Cancelled,
}

/// What made a run.
#[derive(JsonSchema)]
pub struct Trigger {
    /// The kind of source: cli, api, webhook, slack, scheduled, queue, call, ui, event.
    pub source: String,
    /// The idempotency key.
    pub key: Option<String>,
    /// Who asked.
    pub user: Option<String>,
    /// The source's own id of it.
    pub event_id: Option<String>,
}

/// Why something failed.
#[derive(JsonSchema)]
pub struct Failure {
    /// A stable code.
    pub code: String,
    /// For people.
    pub message: Option<String>,
}

/// One executable unit of a run.
#[derive(JsonSchema)]
pub struct Step {
    /// Its name in the run.
    pub id: String,
    /// Its place in the run.
    pub index: u64,
    /// What carries it out.
    pub tool: String,
    /// Where it stands.
    pub status: String,
    /// What it waits for.
    pub reason: Option<String>,
    /// Which try it is.
    pub attempt: u64,
    /// The fence of that try.
    pub epoch: u64,
    /// Who carries it out.
    pub lease_owner: Option<String>,
    /// When that was last heard of.
    pub last_heartbeat_at: Option<Time>,
    /// Until when, unless a heartbeat comes.
    pub lease_expires_at: Option<Time>,
    /// When it may be tried again.
    pub next_eligible_at: Option<Time>,
    /// What it was given.
    pub input: Option<Value>,
    /// What it gave.
    pub output: Option<Value>,
    /// Why it failed.
    pub error: Option<Failure>,
    /// The command of a shell step that failed, as the runbook has it.
    pub command: Option<String>,
    /// What its last attempt wrote that could not be kept: how many bytes, and why.
    pub output_lost: Option<Value>,
    /// When it began.
    pub started_at: Option<Time>,
    /// When it ended.
    pub completed_at: Option<Time>,
    /// How long it took.
    pub duration_ms: Option<u64>,
    /// What its effects are known by.
    pub idempotency_key: Option<String>,
}

/// A human's decision, bound to exactly one action.
#[derive(JsonSchema)]
pub struct Approval {
    /// Its id.
    pub id: String,
    /// The run that waits.
    pub run: String,
    /// The step that does.
    pub step: String,
    /// requested, approved, rejected, expired or cancelled.
    pub status: String,
    /// How much is at stake.
    pub tier: String,
    /// Whether two humans have to agree.
    pub two_person: bool,
    /// Exactly what would be done.
    pub action: Option<Object>,
    /// The hash of exactly that.
    pub action_hash: String,
    /// The policy that asks.
    pub policy_version: String,
    /// Why it asks.
    pub reasons: Vec<String>,
    /// Who wants it done.
    pub requested_by: String,
    /// Who changed the run's variables since, or retried or forked it: they count as who asked, too.
    pub changed_by: Option<Vec<String>>,
    /// Everybody who counts as having asked for it, `requested_by` first; `unnamed` stands for somebody without a name of
    /// their own.
    pub requesters: Vec<String>,
    /// Until when it can be decided.
    pub expires_at: Time,
    /// The `approve` step on whose behalf another one asks.
    pub by_step: Option<String>,
    /// Why it is void, where it was withdrawn.
    pub voided: Option<String>,
    /// What was decided.
    pub decisions: Vec<Decided>,
    /// What people are shown.
    pub card: Option<String>,
    /// The hash of exactly that.
    pub card_hash: Option<String>,
}

/// One human's word.
#[derive(JsonSchema)]
pub struct Decided {
    /// Whose.
    pub by: String,
    /// approved or rejected.
    pub decision: String,
    /// When.
    pub at: Time,
    /// Why.
    pub reason: Option<String>,
    /// Where it was said.
    pub channel: String,
}

/// What happened outside.
#[derive(JsonSchema)]
pub struct Receipt {
    /// Its id.
    pub id: String,
    /// The run.
    pub run: String,
    /// The step.
    pub step: String,
    /// What the effect is known by.
    pub key: String,
    /// What carried it out.
    pub tool: String,
    /// What was asked of it.
    pub operation: String,
    /// Of what.
    pub target: String,
    /// Whether it happened.
    pub status: String,
    /// Whether it can be taken back.
    pub reversible: bool,
    /// When.
    pub at: Time,
}

/// One piece of work in a queue.
#[derive(JsonSchema)]
pub struct Item {
    /// Its id.
    pub id: String,
    /// Its queue.
    pub queue: String,
    /// What is to be worked on.
    pub data: Option<Value>,
    /// Higher is sooner.
    pub priority: i32,
    /// pending, processing, completed, failed or dead.
    pub status: String,
    /// How often it was tried.
    pub attempts: u64,
    /// The fence of the last try.
    pub epoch: u64,
    /// When it was taken the last time.
    pub taken_at: Option<Time>,
    /// When it came to its end.
    pub completed_at: Option<Time>,
    /// The run that works or worked on it, where a worker made one.
    pub run: Option<String>,
}

/// What a step saved last, or a message on the run.
#[derive(JsonSchema)]
pub struct Checkpoint {
    /// The step; none for a message on the run.
    pub step: Option<String>,
    /// The agent, or the tool, that carries it out.
    pub agent: Option<String>,
    /// Where the step is.
    pub status: Option<String>,
    /// The attempt that saved it.
    pub epoch: Option<u64>,
    /// What the step was given.
    pub input: Option<Value>,
    /// What was saved.
    pub output: Option<Value>,
    /// Why the step failed, or why its last attempt did.
    pub error: Option<Failure>,
    /// When it was saved.
    pub at: Time,
    /// Whether what was saved serves as the step's output, should its executor be lost.
    pub resumable: Option<bool>,
    /// Whether the step can be done again.
    pub idempotent: Option<bool>,
    /// The tokens that the attempt took so far: `input` and `output`.
    pub tokens_used: Option<Object>,
    /// How long the step had been at work.
    pub duration_ms: Option<u64>,
    /// What was said.
    pub message: Option<String>,
}

/// What was pushed: an item, or as many as came in a list.
#[derive(JsonSchema)]
#[serde(untagged)]
pub enum Pushed {
    /// One came alone.
    One(Item),
    /// They came in a list.
    Many {
        /// What they are, in the same order.
        items: Vec<Item>,
    },
}

/// One of the Server-Sent Events.
#[derive(JsonSchema)]
pub struct Event {
    /// The seq of the record, to go on from.
    pub id: String,
    /// The type of the record.
    pub event: String,
    /// The record, as JSON.
    pub data: String,
}

/// What is held, by whom, under which fence.
#[derive(JsonSchema)]
pub struct Grant {
    /// What.
    pub name: String,
    /// By whom.
    pub holder: Option<String>,
    /// The fence.
    pub epoch: Option<u64>,
    /// How many slots.
    pub weight: Option<u32>,
    /// Since when.
    pub acquired_at: Option<Time>,
    /// Until when, unless a heartbeat comes.
    pub expires_at: Option<Time>,
    /// What became of the request.
    pub result: Option<String>,
}

/// A lock, and who waits for it.
#[derive(JsonSchema)]
pub struct Lock {
    /// Its name.
    pub name: String,
    /// free or held.
    pub state: String,
    /// By whom.
    pub holder: Option<String>,
    /// The fence of the last hold.
    pub epoch: u64,
    /// Since when.
    pub acquired_at: Option<Time>,
    /// When the holder was last heard of, where it beats.
    pub last_heartbeat: Option<Time>,
    /// Until when, unless a heartbeat comes.
    pub expires_at: Option<Time>,
    /// What the holder says about itself.
    pub metadata: Option<Value>,
    /// Who waits, in their order.
    pub waiters: Vec<Object>,
}

/// A semaphore, and who waits for its slots.
#[derive(JsonSchema)]
pub struct Semaphore {
    /// Its name.
    pub name: String,
    /// How many slots there are.
    pub capacity: u32,
    /// How many are used.
    pub used: u32,
    /// How many are free.
    pub available: u32,
    /// By whom.
    pub holders: Vec<Object>,
    /// Who waits, in their order.
    pub waiters: Vec<Object>,
}

/// A runbook, pinned by its content.
#[derive(JsonSchema)]
pub struct Runbook {
    /// The hash of its content.
    pub hash: String,
    /// Its name.
    pub name: String,
    /// Its pipelines.
    pub pipelines: Vec<String>,
    /// Whether it is the active version of its name.
    pub deployed: Option<bool>,
    /// When it was stored.
    pub loaded_at: Option<Time>,
    /// Its content, as it was understood.
    pub runbook: Option<Object>,
}

/// What a run would do.
#[derive(JsonSchema)]
pub struct Plan {
    /// The runbook.
    pub runbook_hash: String,
    /// The pipeline.
    pub pipeline: String,
    /// With which variables.
    pub vars: Value,
    /// Its steps.
    pub steps: Vec<Object>,
}

/// What a run waits for.
#[derive(JsonSchema)]
pub struct Why {
    /// The run.
    pub run: String,
    /// Where it stands.
    pub status: Option<String>,
    /// The chain of reasons.
    pub because: Vec<Object>,
}

/// What an undo does, or would do.
#[derive(JsonSchema)]
pub struct Undo {
    /// The run whose effects are taken back.
    pub of: String,
    /// Its effects, latest first, with how each is taken back or why not.
    pub items: Vec<Object>,
    /// Where nothing is done: which runs took something back before, and when they ended.
    pub taken_back: Option<Vec<Object>>,
    /// The run that does it; absent where nothing is done.
    pub run: Option<Run>,
}

/// An event that was delivered.
#[derive(JsonSchema)]
pub struct Delivered {
    /// Its name.
    pub name: String,
    /// Its key.
    pub key: Option<String>,
}

/// A token, as far as anybody but its bearer knows it.
#[derive(JsonSchema)]
pub struct Token {
    /// What it is called.
    pub id: String,
    /// Whose things it shows.
    pub tenant: String,
    /// The subdivision.
    pub namespace: String,
    /// For whom it stands.
    pub name: String,
    /// Whether that is a human.
    pub human: bool,
    /// What the bearer belongs to.
    pub groups: Vec<String>,
    /// What it allows.
    pub scopes: Vec<String>,
    /// Who handed it out.
    pub created_by: String,
    /// When.
    pub created_at: Time,
    /// Until when it is good.
    pub expires_at: Option<Time>,
    /// Since when it is good for nothing.
    pub revoked_at: Option<Time>,
    /// The token itself; only in the answer that made it.
    pub token: Option<String>,
}

/// Who the caller is.
#[derive(JsonSchema)]
pub struct Me {
    /// Its name.
    pub name: String,
    /// Whether it is a human.
    pub human: bool,
    /// Whose things it sees.
    pub tenant: String,
    /// The subdivision.
    pub namespace: String,
    /// What it belongs to.
    pub groups: Vec<String>,
    /// What it may do.
    pub scopes: Vec<String>,
    /// What it shows for itself.
    pub client: String,
}

/// How the process is.
#[derive(JsonSchema)]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// Whether the process stays when nothing is left to do, as a server does.
    pub stays: bool,
}
