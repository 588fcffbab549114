//! Steps of a run, and what they saved.

use crate::Time;
use crate::run::Failure;
use crate::schema::Word;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::attempt;
use windlass_core::id::{Name, RunId, StepId};
use windlass_core::machine::Beats;
use windlass_core::packed::Packed;
use windlass_core::run::{self, Section};
use windlass_core::runbook::{Kind, Pipeline, StepDef};
use windlass_core::scope;
use windlass_core::step::{self, Status};

/// One executable unit of a run, or a group of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Its name in the run.
    #[schemars(with = "String")]
    pub id: StepId,
    /// Its place in the run.
    pub index: usize,
    /// What carries it out.
    #[schemars(with = "String")]
    pub tool: Name,
    /// Where it stands.
    #[schemars(with = "Word<Status>")]
    pub status: Status,
    /// What it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Which try it is.
    pub attempt: u32,
    /// The fence of that try.
    pub epoch: u64,
    /// The section of the pipeline that it belongs to.
    #[schemars(with = "Word<Section>")]
    pub section: Section,
    /// The group that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub parent: Option<StepId>,
    /// Whether it is a group.
    pub group: bool,
    /// Who carries it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub lease_owner: Option<Name>,
    /// When that was last heard of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_at: Option<Time>,
    /// Until when it has the step, unless a heartbeat comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<Time>,
    /// When it may be tried again, or what it waits for is given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_eligible_at: Option<Time>,
    /// What it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    pub input: Option<Packed>,
    /// What it gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    pub output: Option<Packed>,
    /// Why it failed, or why its last attempt did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// The command of a shell step that failed, as the runbook has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// What its last attempt wrote that could not be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_lost: Option<Lost>,
    /// The run that it called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub child_run: Option<RunId>,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    /// How long it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Identifies its effects. Absent where its definition is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub idempotency_key: Option<Name>,
}

/// The steps of a run. `def` is its pipeline, where that is known.
#[must_use]
pub fn all(run: &run::Run, def: Option<&Pipeline>, beats: &Beats) -> Vec<Step> {
    run.steps.iter().enumerate().map(|(index, step)| Step::of(run, def, (index, step), beats)).collect()
}

/// The command of a shell step.
fn command(node: &StepDef) -> Option<String> {
    match &node.kind {
        Kind::Run { command } => Some(command.clone()),
        // tidy: nothing else has a command.
        _ => None,
    }
}

impl Step {
    fn of(
        run: &run::Run,
        def: Option<&Pipeline>,
        (index, step): (usize, &step::Step),
        beats: &Beats,
    ) -> Step {
        let node = def.and_then(|def| def.node(step.node));
        let lease = step.lease.as_ref().filter(|_| step.is_executing());
        let duration = step.completed_at.zip(step.started_at).map(|(to, from)| to.since(from).0);
        let waiting = step.waiting.as_ref();
        let reason = waiting.map(|waiting| match &waiting.on {
            Some(on) => format!("{} {on}", waiting.reason),
            None => waiting.reason.to_string(),
        });
        let holder = step.holder(run.id());
        Step {
            id: step.id.clone(),
            index,
            tool: step.tool.clone(),
            status: step.status,
            reason,
            attempt: step.attempt,
            epoch: step.epoch,
            section: step.section,
            parent: step.parent.and_then(|place| run.at(place)).map(|parent| parent.id.clone()),
            group: step.group.is_some(),
            lease_owner: lease.map(|lease| lease.owner.clone()),
            last_heartbeat_at: lease.map(|lease| lease.last_seen(&holder, beats).into()),
            lease_expires_at: lease.map(|lease| lease.lives_until(&holder, beats).into()),
            next_eligible_at: step.next_eligible_at.or(waiting.and_then(|waiting| waiting.until)).map(Time),
            input: step.input.clone(),
            output: output(run, step),
            error: step.error.as_deref().map(Failure::from),
            command: node.filter(|_| step.status == Status::Failed).and_then(command),
            output_lost: step.output_lost.as_deref().map(Lost::from),
            child_run: step.child(),
            started_at: step.started_at.map(Time),
            completed_at: step.completed_at.map(Time),
            duration_ms: duration,
            idempotency_key: node.map(|node| attempt::key(run, node, step)),
        }
    }
}

/// What a step gave: as it is kept, or put together from the steps of a group.
fn output(run: &run::Run, step: &step::Step) -> Option<Packed> {
    step.output.clone().or_else(|| scope::output(run, step).as_ref().map(Packed::of))
}

/// Output of an attempt that could not be kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Lost {
    /// The fence of the attempt.
    pub epoch: u64,
    /// How many bytes, at least.
    pub bytes: u64,
    /// Why.
    pub reason: String,
    /// When that was known.
    pub at: Time,
}

impl From<&step::OutputLost> for Lost {
    fn from(lost: &step::OutputLost) -> Lost {
        Lost { epoch: lost.epoch, bytes: lost.bytes, reason: lost.reason.clone(), at: lost.at.into() }
    }
}

/// What a step saved last, or a message on the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Checkpoint {
    /// The step; none for a message on the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub step: Option<StepId>,
    /// The agent, or the tool, that carries it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub agent: Option<Name>,
    /// Where the step is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Word<Status>>")]
    pub status: Option<Status>,
    /// The attempt that saved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// What the step was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    pub input: Option<Packed>,
    /// What was saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Why the step failed, or why its last attempt did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// When it was saved.
    pub at: Time,
    /// Whether what was saved serves as the step's output, should its executor be lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumable: Option<bool>,
    /// Whether the step can be done again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotent: Option<bool>,
    /// The tokens that the attempt took so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_used: Option<Tokens>,
    /// How long the step had been at work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// What was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Tokens that an attempt took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tokens {
    /// Those that went in.
    pub input: u64,
    /// Those that came out.
    pub output: u64,
}

/// What the steps of a run saved last, and the messages that were put on the run, in the order of time.
#[must_use]
pub fn checkpoints(run: &run::Run, def: Option<&Pipeline>) -> Vec<Checkpoint> {
    let rare = run.rare();
    let mut all: Vec<Checkpoint> =
        rare.checkpoints.iter().map(|(id, saved)| of_step(run, def, id, saved)).collect();
    all.extend(rare.messages.iter().map(|saved| Checkpoint {
        step: None,
        agent: None,
        status: None,
        epoch: None,
        input: None,
        output: None,
        error: None,
        at: saved.at.into(),
        resumable: None,
        idempotent: None,
        tokens_used: None,
        duration_ms: None,
        message: saved.message.clone(),
    }));
    all.sort_by_key(|saved| saved.at);
    all
}

fn of_step(run: &run::Run, def: Option<&Pipeline>, id: &StepId, saved: &run::Checkpoint) -> Checkpoint {
    let step = run.step(id);
    let node = step.zip(def).and_then(|(step, def)| def.node(step.node));
    let agent = node.and_then(|node| match &node.kind {
        Kind::Agent { agent, .. } => Some(agent.clone()),
        // tidy: every other step is carried out by its tool.
        _ => None,
    });
    let declared = node.and_then(|node| node.checkpoint.as_ref()).is_some_and(|def| def.resumable);
    Checkpoint {
        step: Some(id.clone()),
        agent: agent.or_else(|| step.map(|step| step.tool.clone())),
        status: step.map(|step| step.status),
        epoch: saved.epoch,
        input: step.and_then(|step| step.input.clone()),
        output: saved.data.clone(),
        error: step.and_then(|step| step.error.as_deref()).map(Failure::from),
        at: saved.at.into(),
        resumable: Some(saved.resumable || declared && saved.data.is_some()),
        idempotent: Some(saved.idempotent),
        tokens_used: saved.tokens.map(|(input, output)| Tokens { input, output }),
        duration_ms: step.and_then(|step| step.started_at).map(|from| saved.at.since(from).0),
        message: saved.message.clone(),
    }
}
