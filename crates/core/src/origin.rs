//! Where runs come from and who causes what: actors, triggers, lineages.

use crate::digest::Digest;
use crate::id::{Name, RunId, StepId};
use crate::wire::{self, Reader, Wire, Writer, nested};
use crate::word::words;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

words! {
    /// What caused a transition.
    Initiator {
        /// A human, by command line, API or page.
        User = "user",
        /// A program with a token of its own. It decides on no approval.
        Service = "service",
        /// The engine itself.
        System = "system",
        /// A time that came.
        Timeout = "timeout",
        /// A policy's decision.
        Policy = "policy",
        /// A delivery from outside.
        Webhook = "webhook",
        /// A human's decision on an approval.
        Approval = "approval",
        /// An executor's report.
        Executor = "executor",
        /// An agent's signal.
        Agent = "agent",
        /// A schedule's slot.
        Schedule = "schedule",
        /// A worker's dispatch.
        Worker = "worker",
        /// Recovery after a start.
        Recovery = "recovery",
        /// A lock that was taken away from its run.
        Hold = "hold",
    }
}

impl Initiator {
    /// Whether it asks for things: a person, or a program outside. What it asks for is recorded as an action, before the
    /// facts that come of it.
    #[must_use]
    pub const fn asks(self) -> bool {
        match self {
            Initiator::User | Initiator::Service | Initiator::Webhook | Initiator::Agent => true,
            Initiator::System
            | Initiator::Timeout
            | Initiator::Policy
            | Initiator::Approval
            | Initiator::Executor
            | Initiator::Schedule
            | Initiator::Worker
            | Initiator::Recovery
            | Initiator::Hold => false,
        }
    }

    /// Whether a run that is stopped by it fails. What anything else stops is cancelled.
    #[must_use]
    pub const fn fails(self) -> bool {
        matches!(self, Initiator::Timeout | Initiator::Hold)
    }
}

words! {
    /// What made a run.
    Source {
        /// `windlass run`.
        Cli = "cli",
        /// `POST /v1/runs`.
        Api = "api",
        /// A webhook.
        Webhook = "webhook",
        /// A Slack command.
        Slack = "slack",
        /// A schedule.
        Scheduled = "scheduled" | "scheduler",
        /// A worker for an item of a queue.
        Queue = "queue",
        /// Another run's `call`.
        Call = "call",
        /// The web page.
        Ui = "ui",
        /// A custom event that a trigger matched.
        Event = "event",
    }
}

words! {
    /// A run's status. Derived from its steps, never stored beside them.
    Status {
        /// Created, not begun.
        Pending = "pending" | "queued" | "init" | "Init",
        /// Waits for other runs or for its lock before it begins.
        Blocked = "blocked" | "Blocked",
        /// A step is ready or running.
        Running = "running" | "Running",
        /// Waits for a human.
        AwaitingApproval = "awaiting_approval" | "waiting_approval",
        /// Waits for an event, a lock, a slot or a guard, or is suspended.
        WaitingExternal = "waiting_external",
        /// Waits for the back-off of a step.
        FailedRetryable = "failed_retryable",
        /// Every step succeeded, or was skipped as the runbook says. Terminal.
        Completed = "completed" | "succeeded" | "done" | "Done",
        /// A step failed for good. Terminal.
        Failed = "failed" | "failed_terminal" | "Failed",
        /// Cancelled. Terminal.
        Cancelled = "cancelled" | "canceled",
    }
}

words! {
    /// The part of a pipeline a run is in.
    Section {
        /// `steps`.
        Main = "main",
        /// `on_failure`.
        OnFailure = "on_failure",
        /// The compensations of what succeeded, in reverse order.
        Compensate = "compensate",
        /// `finally`.
        Finally = "finally",
    }
}

impl Section {
    /// Whether a run that is stopped by this starts nothing more here. A wish stops everything that goes forward. A
    /// deadline or a lost lock stops the steps themselves, and what handles the failure runs. What cleans up runs in any
    /// case.
    #[must_use]
    pub fn stopped_by(self, initiator: Initiator) -> bool {
        match self {
            Section::Main => true,
            Section::OnFailure => !initiator.fails(),
            Section::Compensate | Section::Finally => false,
        }
    }
}

impl Status {
    /// Whether nothing changes it any more.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Status::Completed | Status::Failed | Status::Cancelled)
    }

    /// Whether the table of run states has the transition.
    #[must_use]
    pub fn may_become(self, next: Status) -> bool {
        use Status as S;
        match self {
            S::Pending => matches!(next, S::Running | S::Blocked | S::Failed | S::Cancelled),
            S::Blocked => matches!(next, S::Running | S::Failed | S::Cancelled),
            S::Running => !matches!(next, S::Pending | S::Blocked | S::Running),
            S::AwaitingApproval | S::WaitingExternal | S::FailedRetryable => {
                matches!(next, S::Running | S::Failed | S::Cancelled)
            }
            S::Completed | S::Failed | S::Cancelled => false,
        }
    }
}

impl Status {
    /// The transitions that lead from this status to another, as metrics and the audit count them; none where the
    /// table has no way. What waits and then waits for something else was running in between: somebody worked on it.
    #[must_use]
    pub fn path_to(self, next: Status) -> Vec<Status> {
        if self.may_become(next) {
            return alloc::vec![next];
        }
        let through = self.may_become(Status::Running) && Status::Running.may_become(next);
        if through { alloc::vec![Status::Running, next] } else { Vec::new() }
    }
}

/// Who or what caused a record: `user:ann`, `executor:local`, `system`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Actor {
    /// What kind of cause.
    pub initiator: Initiator,
    /// Which one.
    pub id: Option<Name>,
}

impl Actor {
    /// The engine itself.
    pub const SYSTEM: Actor = Actor { initiator: Initiator::System, id: None };

    /// Who it is, where it is somebody who asks for things.
    #[must_use]
    pub fn asker(&self) -> Option<Name> {
        self.id.clone().filter(|_| self.initiator.asks())
    }

    /// An actor with a name.
    #[must_use]
    pub fn new(initiator: Initiator, id: &str) -> Actor {
        Actor { initiator, id: Some(Name::clean(id)) }
    }

    /// Reads `initiator` or `initiator:id`.
    ///
    /// # Errors
    /// An unknown initiator, or an id that is no name.
    pub fn parse(text: &str) -> Result<Actor, crate::id::Error> {
        let (word, id) = match text.split_once(':') {
            Some((word, id)) => (word, Some(Name::new(id)?)),
            None => (text, None),
        };
        match Initiator::parse(word) {
            Some(initiator) => Ok(Actor { initiator, id }),
            None => Err(crate::id::Error::Name(wire::shorten(text))),
        }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.id {
            Some(id) => write!(f, "{}:{id}", self.initiator),
            None => write!(f, "{}", self.initiator),
        }
    }
}

impl Serialize for Actor {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Actor {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        wire::parsed(d, Self::parse)
    }
}

impl Wire for Actor {
    fn kind() -> &'static str {
        "actor"
    }
    fn put(&self, out: &mut Writer<'_>) {
        out.display(self);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, wire::Error> {
        let text = r.text()?;
        match text.split_once(':').map(|(word, id)| (Initiator::parse(word), id)) {
            Some((Some(initiator), id)) => Ok(Actor { initiator, id: Some(r.named(id)?) }),
            Some((None, _)) | None => Ok(Actor::parse(&text)?),
        }
    }
}

/// What made a run, and who.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trigger {
    /// What kind of thing.
    pub source: Source,
    /// The ingress key, where one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Name>,
    /// Who.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Name>,
    /// The source's own id of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<Name>,
    /// The trace that it belongs to, as W3C's `traceparent` spells it, where the request came with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<Name>,
    /// The worker or the schedule, where one made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Name>,
}

impl Trigger {
    /// What is known of a trigger by its kind alone.
    #[must_use]
    pub const fn of(source: Source) -> Trigger {
        Trigger { source, key: None, user: None, event_id: None, traceparent: None, of: None }
    }
}

/// What a run is about, where it is about a repository.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// The repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo: Option<String>,
    /// The pull request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pr: Option<String>,
    /// Where to look at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// A run's place among its retries and forks. Effect keys are scoped to the root.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lineage {
    /// The first run of the lineage.
    pub root_run: RunId,
    /// The run this one goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<RunId>,
    /// How many runs of the lineage came before on this line.
    pub resume_count: u32,
    /// For a run that a step of another one called: the steps through which the root came to call it. So what it does
    /// outside is the same effect when the caller, or its step, is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<Name>,
    /// The step from which it goes on, where it is a fork: that step and what follows it run anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_at: Option<StepId>,
}

impl Lineage {
    /// The lineage of a run that begins one.
    #[must_use]
    pub const fn first(run: RunId) -> Lineage {
        Lineage { root_run: run, resumed_from: None, resume_count: 0, within: None, forked_at: None }
    }

    /// The lineage of what a step of the run is about: of a run that it calls, or of an effect that it takes back.
    #[must_use]
    pub(crate) fn below(&self, step: &str) -> Lineage {
        let step = without_rounds(step);
        let path = match &self.within {
            Some(above) => alloc::format!("{above}>{step}"),
            None => step,
        };
        // A path that is too long for a name is known by its hash.
        let hash = || Name::clean(&Digest::of(&[b"windlass call path v1\n", path.as_bytes()]).to_string());
        let within = Name::new(&path).unwrap_or_else(|_| hash());
        Lineage { within: Some(within), ..Lineage::first(self.root_run) }
    }
}

/// The name of a step without the numbers of the attempts at the groups that it is in (`pay#2`): what it does in the
/// second attempt is what it did in the first.
#[must_use]
pub fn without_rounds(step: &str) -> String {
    let mut rest = step.split('#');
    let mut out = String::from(rest.next().unwrap_or_default());
    rest.for_each(|part| out.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit())));
    out
}

/// What a run waits for before it begins.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum BlockedOn {
    /// Other runs must complete.
    Runs(Vec<RunId>),
    /// The pipeline's lock.
    Lock(Name),
    /// Pipelines that never ran: a run of each must complete.
    Pipelines(Vec<Name>),
    /// The tenant or the pipeline runs as much as it may.
    Cap(Name),
}

/// A result that a run takes over from an earlier one of its lineage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inherited {
    /// The step.
    pub step: StepId,
    /// The run in which it was executed.
    pub from: RunId,
    /// Its output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Which items of the `foreach` steps around it it was for. Absent outside of any, and in records of before there
    /// was such a field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<Digest>,
    /// What was asked, where it is an `approve` step: its yes is good for the same question only. What it is made of, where
    /// it is a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<Digest>,
    /// The run that it called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<RunId>,
    /// The attempt at which it succeeded, where it is a group: it is taken over whole, with the members of that attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

nested! { Trigger = "trigger", Subject = "subject", Lineage = "lineage", BlockedOn = "blocked on", Inherited = "inherited step" of |it| alloc::vec![it.output.as_ref()] }
