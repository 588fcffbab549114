//! The names of shapes that routes answer with, and what each is. Most are structs of `windlass-api`, from which answers are
//! written too; what is only described here is written by hand still.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value};
use windlass_api::{
    List, Problem, Time, approval, care, evidence, hold, lease, policy, queue, receipt, run, schedule, step,
    token, undo, why, worker,
};

/// Makes a schema.
pub type Shape = fn(&mut SchemaGenerator) -> Schema;

/// Every shape that a route can name.
#[must_use]
pub fn all() -> Vec<(&'static str, Shape)> {
    vec![
        ("run", run::Run::json_schema),
        ("step", step::Step::json_schema),
        ("checkpoint", step::Checkpoint::json_schema),
        ("approval", approval::Approval::json_schema),
        ("receipt", receipt::Receipt::json_schema),
        ("lease", lease::Lease::json_schema),
        ("leases", lease::Leases::json_schema),
        ("answered", lease::Answered::json_schema),
        ("item", queue::Item::json_schema),
        ("grant", hold::Grant::json_schema),
        ("lock", hold::Lock::json_schema),
        ("semaphore", hold::Semaphore::json_schema),
        ("runbook", Runbook::json_schema),
        ("plan", Plan::json_schema),
        ("why", why::Why::json_schema),
        ("undo", undo::Undo::json_schema),
        ("delivered", Delivered::json_schema),
        ("token", token::Token::json_schema),
        ("me", token::Me::json_schema),
        ("health", token::Health::json_schema),
        ("list", List::<Object>::json_schema),
        ("problem", Problem::json_schema),
        ("events", Event::json_schema),
        ("reported", queue::Answered::json_schema),
        ("pushed", queue::Pushed::json_schema),
        ("lines", String::json_schema),
        ("card", String::json_schema),
        ("evidence", String::json_schema),
        ("key", evidence::Key::json_schema),
        ("keys", evidence::PublicKeys::json_schema),
        ("verified", care::Verified::json_schema),
        ("queue", queue::Queue::json_schema),
        ("worker", worker::Worker::json_schema),
        ("schedule", schedule::Schedule::json_schema),
        ("redriven", Object::json_schema),
        ("delivery", Object::json_schema),
        ("emitted", Object::json_schema),
        ("ingress", Object::json_schema),
        ("slack", Object::json_schema),
        ("figures", String::json_schema),
        ("saved", lease::Saved::json_schema),
        ("added", lease::Added::json_schema),
        ("policies", policy::Policies::json_schema),
        ("comparison", Object::json_schema),
        ("document", Map::<String, Value>::json_schema),
    ]
}

/// An object of any members.
type Object = Map<String, Value>;

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

/// An event that was delivered.
#[derive(JsonSchema)]
pub struct Delivered {
    /// Its name.
    pub name: String,
    /// Its key.
    pub key: Option<String>,
}
