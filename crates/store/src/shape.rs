//! The JSON shapes that users and tests bind to: runs, steps, approvals, locks, semaphores, lists and problems.
//!
//! Times are RFC 3339 in UTC here; in records they are epoch milliseconds. A field that has nothing to say is left out.

use crate::log::Verified;
use serde_json::{Map, Value, json};
use windlass_core::approval::Approval;
use windlass_core::attempt;
use windlass_core::budget::{Amount, Limits};
use windlass_core::code::Code;
use windlass_core::id::{Holder, Scoped, StepId};
use windlass_core::lock::{self, Lock};
use windlass_core::machine::Beats;
use windlass_core::packed::Packed;
use windlass_core::receipt::Receipt;
use windlass_core::run::{Cancellation, Checkpoint, Run, Section};
use windlass_core::runbook::{Kind, Pipeline, StepDef};
use windlass_core::scope;
use windlass_core::semaphore::Semaphore;
use windlass_core::step::{Status, Step};
use windlass_core::time::Millis;

/// The version of these shapes.
const SCHEMA_VERSION: u32 = 1;

/// A time as RFC 3339 in UTC, with milliseconds.
#[must_use]
pub fn time(at: Millis) -> String {
    let millis = i64::try_from(at.0).unwrap_or(i64::MAX);
    match jiff::Timestamp::from_millisecond(millis) {
        Ok(stamp) => format!("{stamp:.3}"),
        // Beyond the year 9999; such a time is only ever a mistake, and is shown as it is.
        Err(_) => format!("{}ms", at.0),
    }
}

/// Builds an object, leaving out what is absent.
#[derive(Default)]
struct Object(Map<String, Value>);

impl Object {
    fn put(mut self, key: &str, value: impl Into<Value>) -> Object {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    fn maybe<T: Into<Value>>(self, key: &str, value: Option<T>) -> Object {
        match value {
            Some(value) => self.put(key, value),
            None => self,
        }
    }

    fn at(self, key: &str, at: Option<Millis>) -> Object {
        self.maybe(key, at.map(time))
    }

    fn json(self) -> Value {
        Value::Object(self.0)
    }
}

/// A run, with its steps where `steps` says so.
#[must_use]
pub fn run(run: &Run, def: Option<&Pipeline>, steps: bool, beats: &Beats) -> Value {
    let born = &run.born;
    let lineage = born.lineage();
    let ended = run.ending.as_ref().map(|ending| ending.at);
    let list =
        || Value::Array(run.steps.iter().enumerate().map(|(i, s)| step(run, def, i, s, beats)).collect());
    Object::default()
        .put("id", born.id.to_string())
        .put("pipeline", born.home.pipeline.as_str())
        .put("name", born.name.as_str())
        .put("status", run.status().as_str())
        .maybe("reason", run.reason())
        .put("tenant", born.home.tenant.as_str())
        .put("namespace", born.home.namespace.as_str())
        .put("runbook_hash", born.home.runbook.to_string())
        .put("vars", run.vars.get())
        .put("trigger", json!(born.trigger))
        .maybe("subject", born.subject.as_ref().map(|subject| json!(subject)))
        .maybe("current_step", run.current_step().filter(|_| ended.is_none()).map(|step| step.as_str()))
        .maybe("result", run.ending.as_ref().and_then(|ending| ending.outputs.clone()))
        .maybe("correlation_id", born.correlation_id.as_ref().map(|id| id.as_str()))
        .put("created_at", time(born.created_at))
        .put("updated_at", time(run.updated_at))
        .at("started_at", run.started_at)
        .at("last_heartbeat_at", run.last_heartbeat_at(beats))
        .at("completed_at", ended)
        .maybe("duration_ms", ended.map(|at| at.since(born.created_at).0))
        .put("root_run", lineage.root_run.to_string())
        .maybe("resumed_from", lineage.resumed_from.map(|id| id.to_string()))
        .put("resume_count", lineage.resume_count)
        .maybe("parent_run", born.parent.as_ref().map(|parent| &parent.0).map(|id| id.to_string()))
        .maybe("parent_step", born.parent.as_ref().map(|parent| &parent.1).map(|step| step.to_string()))
        .maybe("takes_back", born.takes_back.as_ref().map(|of| of.to_string()))
        .at("deadline_at", born.deadline_at)
        .maybe("cancellation", run.stopping.as_deref().map(cancellation))
        .maybe("compensation_log", compensations(run))
        .maybe(
            "error",
            run.failure
                .as_ref()
                .map(|failure| json!(failure.1))
                .or(run.orphaned().map(|failure| json!(failure))),
        )
        .maybe("budget", budget(run))
        .put("suspended", run.suspended)
        .put("schema_version", SCHEMA_VERSION)
        .maybe("steps", steps.then(list))
        .json()
}

/// What a run took back, or tried to, in that order; nothing where it did not have to.
fn compensations(run: &Run) -> Option<Value> {
    let own = |step: &&Step| step.section == Section::Compensate && step.compensates.is_some();
    let entry = |step: &Step| {
        Object::default()
            .put("step", step.id.as_str())
            .maybe("compensates", step.compensates.and_then(|place| run.at(place)).map(|of| of.id.as_str()))
            .maybe("run", step.child().map(|child| child.to_string()))
            .put("status", step.status.as_str())
            .put("at", time(step.completed_at.or(step.started_at).unwrap_or(run.updated_at)))
            .maybe("error", step.error.as_ref().map(|error| json!(error)))
            .json()
    };
    let log: Vec<Value> = run.steps.iter().filter(own).map(entry).collect();
    (!log.is_empty()).then_some(Value::Array(log))
}

/// Why a run is stopped, by whom and when.
fn cancellation(stop: &Cancellation) -> Value {
    Object::default()
        .put("initiator", stop.initiator.as_str())
        .maybe("user", stop.user.as_ref().map(|user| user.as_str()))
        .maybe("reason", stop.reason.as_deref())
        .put("at", time(stop.at))
        .json()
}

/// What a run may cost, what it has, and what is set aside; nothing where it neither has a limit nor has cost anything.
fn budget(run: &Run) -> Option<Value> {
    let budget = run.budget();
    let (spent, committed) = (budget.spent, budget.committed());
    if budget.limits == Limits::default() && spent == Amount::default() {
        return None;
    }
    let reserved = Amount {
        usd_micros: committed.usd_micros.saturating_sub(spent.usd_micros),
        tokens: committed.tokens.saturating_sub(spent.tokens),
        time_ms: committed.time_ms.saturating_sub(spent.time_ms),
        writes: committed.writes.saturating_sub(spent.writes),
    };
    let exceeded = budget.exceeded.iter().map(|(step, excess)| {
        json!({ "step": step, "dimension": excess.dimension, "limit": excess.limit, "needed": excess.needed })
    });
    let costs = budget.costs.iter().flat_map(|(provider, models)| {
        models
            .iter()
            .map(move |(model, total)| json!({ "provider": provider, "model": model, "total": total }))
    });
    Some(json!({
        "limits": budget.limits, "spent": spent, "reserved": reserved,
        "exceeded": exceeded.collect::<Vec<_>>(), "costs": costs.collect::<Vec<_>>(),
    }))
}

/// What the runbook says of a shell step: with it, whoever reads of a failure sees what failed.
fn command(node: &StepDef) -> Option<&str> {
    match &node.kind {
        Kind::Run { command } => Some(command),
        // tidy: nothing else has a command.
        _ => None,
    }
}

/// A step of a run.
#[must_use]
pub fn step(run: &Run, def: Option<&Pipeline>, index: usize, step: &Step, beats: &Beats) -> Value {
    let node = def.and_then(|def| def.node(step.node));
    let lease = step.lease.as_ref().filter(|_| step.is_executing());
    let duration = step.completed_at.zip(step.started_at).map(|(to, from)| to.since(from).0);
    let waiting = step.waiting.as_ref();
    let reason = waiting.map(|waiting| match &waiting.on {
        Some(on) => format!("{} {on}", waiting.reason),
        None => waiting.reason.to_string(),
    });
    Object::default()
        .put("id", step.id.as_str())
        .put("index", index)
        .put("tool", step.tool.as_str())
        .put("status", step.status.as_str())
        .maybe("reason", reason)
        .put("attempt", step.attempt)
        .put("epoch", step.epoch)
        .put("section", step.section.as_str())
        .maybe("parent", step.parent.and_then(|place| run.at(place)).map(|parent| parent.id.as_str()))
        .put("group", step.group.is_some())
        .maybe("lease_owner", lease.map(|lease| lease.owner.as_str()))
        .at("last_heartbeat_at", lease.map(|lease| lease.last_seen(&step.holder(run.id()), beats)))
        .at("lease_expires_at", lease.map(|lease| lease.lives_until(&step.holder(run.id()), beats)))
        .at("next_eligible_at", step.next_eligible_at.or(waiting.and_then(|waiting| waiting.until)))
        .maybe("input", step.input.as_ref().map(Packed::get))
        .maybe("output", scope::output(run, step))
        .maybe("error", step.error.as_ref().map(|error| json!(error)))
        .maybe("command", node.filter(|_| step.status == Status::Failed).and_then(command))
        .maybe("output_lost", step.output_lost.as_ref().map(|lost| {
            json!({ "epoch": lost.epoch, "bytes": lost.bytes, "reason": lost.reason, "at": time(lost.at) })
        }))
        .maybe("child_run", step.child().map(|child| child.to_string()))
        .at("started_at", step.started_at)
        .at("completed_at", step.completed_at)
        .maybe("duration_ms", duration)
        .maybe("idempotency_key", node.map(|node| attempt::key(run, node, step).to_string()))
        .json()
}

/// What the steps of a run saved last, and the messages that were put on the run, in the order of time.
#[must_use]
pub fn checkpoints(run: &Run, def: Option<&Pipeline>) -> Vec<Value> {
    let rare = run.rare();
    let of_step = |(id, saved): (&StepId, &Checkpoint)| {
        let step = run.step(id);
        let node = step.zip(def).and_then(|(step, def)| def.node(step.node));
        let agent = node.and_then(|node| match &node.kind {
            Kind::Agent { agent, .. } => Some(agent.to_string()),
            // tidy: every other step is carried out by its tool.
            _ => None,
        });
        let declared = node.and_then(|node| node.checkpoint.as_ref()).is_some_and(|def| def.resumable);
        let entry = Object::default()
            .put("step", id.as_str())
            .maybe("agent", agent.or(step.map(|step| step.tool.to_string())))
            .maybe("status", step.map(|step| step.status.as_str()))
            .maybe("epoch", saved.epoch)
            .maybe("input", step.and_then(Step::input))
            .maybe("output", saved.data.clone())
            .maybe("error", step.and_then(|step| step.error.as_ref()).map(|error| json!(error)))
            .put("at", time(saved.at))
            .put("resumable", saved.resumable || declared && saved.data.is_some())
            .put("idempotent", saved.idempotent)
            .maybe(
                "tokens_used",
                saved.tokens.map(|(input, output)| json!({ "input": input, "output": output })),
            )
            .maybe("duration_ms", step.and_then(|step| step.started_at).map(|from| saved.at.since(from).0))
            .maybe("message", saved.message.clone());
        (saved.at, entry.json())
    };
    let message = |saved: &Checkpoint| {
        let entry = Object::default().put("at", time(saved.at)).maybe("message", saved.message.clone());
        (saved.at, entry.json())
    };
    let mut all: Vec<(Millis, Value)> = rare.checkpoints.iter().map(of_step).collect();
    all.extend(rare.messages.iter().map(message));
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, entry)| entry).collect()
}

/// An approval.
#[must_use]
pub fn approval(approval: &Approval) -> Value {
    let decisions = approval.decisions.iter().map(|decided| {
        Object::default()
            .put("by", decided.by.as_str())
            .put("decision", decided.decision.as_str())
            .put("at", time(decided.at))
            .maybe("reason", decided.reason.clone())
            .put("channel", decided.channel.as_str())
            .put("own_request", decided.own_request)
            .json()
    });
    Object::default()
        .put("id", approval.id.to_string())
        .put("run", approval.run.to_string())
        .put("step", approval.step.as_str())
        .put("status", approval.status.as_str())
        .put("tier", approval.tier.as_str())
        .put("two_person", approval.two_person)
        .put("count", approval.count)
        .put("approvers", json!(approval.approvers))
        .maybe("action", approval.action.as_ref().map(|action| json!(action)))
        .put("action_hash", approval.action_hash.to_string())
        .put("policy_version", approval.policy_version.to_string())
        .put("reasons", json!(approval.reasons))
        .maybe("message", approval.message.clone())
        .put("requested_by", approval.requested_by.as_str())
        .maybe("changed_by", Some(json!(approval.changed_by)).filter(|_| !approval.changed_by.is_empty()))
        .put("requesters", json!(approval.requesters().collect::<Vec<_>>()))
        .put("requested_at", time(approval.requested_at))
        .put("expires_at", time(approval.expires_at))
        .maybe("by_step", approval.by_step.as_ref().map(|step| step.as_str().to_owned()))
        .maybe("voided", approval.voided.clone())
        .put("decisions", Value::Array(decisions.collect()))
        .json()
}

/// A receipt.
#[must_use]
pub fn receipt(receipt: &Receipt) -> Value {
    Object::default()
        .put("id", receipt.id.to_string())
        .put("run", receipt.run.to_string())
        .put("step", receipt.step.as_str())
        .put("key", receipt.key.as_str())
        .put("generation", receipt.generation)
        .put("tool", receipt.tool.as_str())
        .put("operation", receipt.operation.as_str())
        .put("target", receipt.target.as_str())
        .put("status", receipt.status.as_str())
        .put("reversible", receipt.reversible)
        .put("late", receipt.late)
        .maybe("reverse", receipt.reverse.as_ref().map(|reverse| json!(reverse)))
        .maybe("reversed_by", receipt.reversed_by.map(|run| run.to_string()))
        .maybe("request", receipt.request.clone())
        .maybe("response", receipt.response.clone())
        .put("at", time(receipt.at))
        .json()
}

/// A holder as its own tenant knows it.
#[must_use]
pub fn holder(name: &Scoped, holder: &Holder) -> String {
    let text = holder.to_string();
    let own = format!("{}/{}/", name.tenant(), name.namespace());
    text.strip_prefix(&own).map(str::to_owned).unwrap_or(text)
}

fn waiter(name: &Scoped, holder: &Holder, queued_at: Millis, weight: Option<u32>) -> Value {
    Object::default()
        .put("holder", self::holder(name, holder))
        .put("since", time(queued_at))
        .maybe("weight", weight)
        .json()
}

/// A lock.
#[must_use]
pub fn lock(name: &Scoped, lock: &Lock, beats: &Beats) -> Value {
    let hold = match &lock.state {
        lock::State::Held(hold) => Some(hold),
        lock::State::Free => None,
    };
    let waiters = lock.waiters.iter().map(|w| waiter(name, &w.holder, w.queued_at, None));
    Object::default()
        .put("name", name.name())
        .put("state", if hold.is_some() { "held" } else { "free" })
        .maybe("holder", hold.map(|hold| holder(name, &hold.holder)))
        .put("epoch", lock.epoch)
        .at("acquired_at", hold.map(|hold| hold.acquired_at))
        .at("last_heartbeat", lock.last_heartbeat(beats))
        .at("expires_at", lock.expires_at(beats))
        .maybe("metadata", hold.and_then(|hold| hold.metadata.clone()))
        .put("waiters", Value::Array(waiters.collect()))
        .json()
}

/// A semaphore.
#[must_use]
pub fn semaphore(name: &Scoped, semaphore: &Semaphore, beats: &Beats) -> Value {
    let used: u32 = semaphore.holders.values().map(|hold| hold.weight).sum();
    let holders = semaphore.holders.iter().map(|(who, hold)| {
        Object::default()
            .put("holder", holder(name, who))
            .put("weight", hold.weight)
            .put("epoch", hold.epoch)
            .put("acquired_at", time(hold.acquired_at))
            .at("last_heartbeat", semaphore.last_heartbeat(who, beats))
            .at("expires_at", semaphore.expires_at(who, beats))
            .json()
    });
    let waiters = semaphore.waiters.iter().map(|w| waiter(name, &w.holder, w.queued_at, Some(w.weight)));
    Object::default()
        .put("name", name.name())
        .put("capacity", semaphore.config.capacity)
        .put("used", used)
        .put("available", semaphore.available())
        .put("holders", Value::Array(holders.collect()))
        .put("waiters", Value::Array(waiters.collect()))
        .json()
}

/// What checking a log came to.
#[must_use]
pub fn verified(found: &Verified) -> Value {
    json!({ "valid": true, "records": found.records, "streams": found.streams, "warnings": found.warnings })
}

/// A page of a list.
#[must_use]
pub fn list(items: Vec<Value>, next_cursor: Option<String>) -> Value {
    Object::default().put("items", Value::Array(items)).maybe("next_cursor", next_cursor).json()
}

/// A problem in the form of RFC 9457.
#[must_use]
pub fn problem(code: Code, detail: &str) -> Value {
    json!({
        "type": format!("urn:windlass:error:{}", code.as_str()),
        "title": code.title(),
        "status": code.http(),
        "code": code.as_str(),
        "detail": detail,
    })
}
