//! Runs: one durable execution of a pipeline, folded from its facts.
//!
//! A run's status is derived from what its records say, never stored beside them. The first that holds:
//!
//! | holds | status |
//! |---|---|
//! | an ending is recorded | `completed`, `failed` or `cancelled` |
//! | it has not begun | `pending`, or `blocked` on runs, a lock or a cap |
//! | a step is running, or ready while the run is not suspended | `running` |
//! | a step waits for approval, is `outcome_unknown`, escalated or out of budget | `awaiting_approval` |
//! | a step waits for an event, a lock, a slot, a guard or policy, or the run is suspended | `waiting_external` |
//! | a step is in back-off | `failed_retryable` |
//!
//! This file holds the state and what facts do to it. What is decided stands beside it: [`crate::lifecycle`]
//! begins, stops and ends runs, [`crate::pipeline`] moves them through their definition, [`crate::gate`] lets
//! steps pass, [`crate::attempt`] leases them and takes reports.

mod alive;
mod asked;
mod born;
mod editions;
mod fold;
mod places;
mod rare;
mod saved;
pub use alive::ORPHAN_AFTER;
pub use born::{Born, Home};
pub use places::Places;
pub use rare::{Checkpoint, Kept, Rare, Undoing, Wanted};
use saved::Saved;

use crate::approval::Approval;
use crate::budget::{Budget, Limits};
use crate::code::Code;
use crate::digest::Digest;
use crate::id::{Holder, Name, RunId, Scoped, StepId};
use crate::packed::Packed;
use crate::policy::Ledger;
use crate::pool::Pool;
use crate::step::{self, FailFast, Failure, Group, GroupKind, Shape, Step};
use crate::time::Millis;
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::origin::{
    Actor, BlockedOn, Inherited, Initiator, Lineage, Section, Source, Status, Subject, Trigger,
};

/// Why a run is stopped before its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cancellation {
    /// What stops it: a deadline (`timeout`) or a lost lock (`hold`) makes it fail, everything else makes it cancelled.
    pub initiator: Initiator,
    /// Who.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Name>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When.
    pub at: Millis,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ending {
    /// `completed`, `failed` or `cancelled`.
    pub status: Status,
    /// When.
    pub at: Millis,
    /// How long it took since it was created.
    pub duration_ms: u64,
    /// What it gives to a caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Value>,
    /// Whether a `pipeline:deleted` followed: the values are gone.
    pub deleted: bool,
}

/// The most early events a run keeps.
pub const SIGNALS_MAX: usize = 1_000;
/// The most messages a run keeps.
pub const MESSAGES_MAX: usize = 100;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, from = "Saved", into = "Saved")]
pub struct Run {
    /// What was given when it was created.
    pub born: Box<Born>,
    /// Its variables.
    pub vars: Packed,
    /// How often they were changed.
    pub edition: u32,
    /// When its last fact was recorded.
    pub updated_at: Millis,
    /// When it began.
    pub started_at: Option<Millis>,
    /// What it waits for before it begins.
    pub blocked: Option<Box<BlockedOn>>,
    /// Where in the pipeline it is.
    pub section: Section,
    /// The sequence of the section.
    pub root: Group,
    /// The first failure.
    pub failure: Option<Box<(Option<StepId>, Failure)>>,
    /// Whether nothing is leased.
    pub suspended: bool,
    /// Whether and why nothing new starts forward.
    pub stopping: Option<Box<Cancellation>>,
    /// How it ended.
    pub ending: Option<Box<Ending>>,
    /// The steps it has reached, in the order it reached them.
    pub steps: Vec<Step>,
    /// How many of them have ended.
    pub ended: u32,
    /// What policy decided. Runs of which it said the same share one, and none has one before it said anything.
    policy: Option<Arc<Ledger>>,
    /// What it may cost and did; absent where nothing limits it and nothing was spent.
    budget: Option<Box<Budget>>,
    /// Outside writes so far.
    pub writes: u32,
    /// The definitions of its `approve` steps that name others.
    approvers: Box<[u32]>,
    /// What few runs have.
    rare: Option<Box<Rare>>,

    // Derived from the above, not saved.
    /// The steps by their names.
    index: Vec<u32>,
    flow: Places,
    ready: Places,
    live: Places,
}

/// Why a run refuses an input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It has ended.
    #[error("run {run} has ended as {status}")]
    Terminal {
        /// The run.
        run: RunId,
        /// How.
        status: Status,
    },
    /// It cannot happen in this state.
    #[error("run {run} is {status}: it cannot {input}")]
    Transition {
        /// The run.
        run: RunId,
        /// Where it is.
        status: Status,
        /// What was asked.
        input: &'static str,
    },
    /// It stands at a step of which nobody knows what it did.
    #[error(
        "run {0} cannot be resumed: nobody knows what step `{1}` did. Find out, and settle it with `windlass resolve {0} {1} done|retry|fail`"
    )]
    Unknown(RunId, StepId),
    /// Its variables are its caller's, who may have been approved with them.
    #[error(
        "the variables of run {0} stay as they are: another run called it with them. Change those of its caller"
    )]
    Called(RunId),
    /// It is suspended with its caller.
    #[error("run {0} goes on with its caller, which is suspended: resume run {1}")]
    CallerSuspended(RunId, RunId),
    /// A step refuses it.
    #[error(transparent)]
    Step(#[from] step::Error),
    /// There is no such step, approval or definition.
    #[error("{0} `{1}` is not there")]
    Missing(&'static str, String),
    /// An approval refuses it.
    #[error(transparent)]
    Approval(#[from] crate::approval::Error),
    /// A budget refuses it.
    #[error(transparent)]
    Budget(#[from] crate::budget::Error),
    /// A task refuses it.
    #[error(transparent)]
    Task(#[from] crate::task::Error),
    /// Policy does not allow it, or has not been asked.
    #[error("policy does not allow step `{0}` of this run")]
    Policy(StepId),
    /// More than the bound.
    #[error("run {0} has {1} {2} already")]
    TooMany(RunId, usize, &'static str),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Terminal { .. } => Code::RunTerminalState,
            Error::Transition { .. } | Error::Called(_) | Error::CallerSuspended(..) => {
                Code::RunInvalidTransition
            }
            Error::Unknown(..) => Code::RunResumeFailed,
            Error::Step(error) => error.code(),
            Error::Missing(..) => Code::NotFound,
            Error::Approval(error) => error.code(),
            Error::Budget(error) => error.code(),
            Error::Task(error) => error.code(),
            Error::Policy(_) => Code::PolicyDenied,
            Error::TooMany(..) => Code::InvalidInput,
        }
    }
}

/// The seeds of a view for people: a pipeline's phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not begun.
    Init,
    /// Waits before it begins.
    Blocked(BlockedOn),
    /// At this step.
    Running(Option<StepId>),
    /// Done.
    Done,
    /// Failed; `recoverable` where a retry can go on from what succeeded.
    Failed { error: String, recoverable: bool },
    /// Cancelled.
    Cancelled,
}

impl Run {
    /// The run that a `pipeline:created` makes.
    #[must_use]
    pub fn create(e: &crate::event::PipelineCreated, tenant: &Name, at: Millis) -> Run {
        Run {
            born: Box::new(Born::new(e, tenant)),
            vars: e.vars.get().unwrap_or_else(|| Packed::of(&Value::Null)),
            edition: 0,
            updated_at: at,
            started_at: None,
            blocked: None,
            section: Section::Main,
            root: sequence(Section::Main, 0),
            failure: None,
            suspended: false,
            stopping: None,
            ending: None,
            steps: Vec::new(),
            ended: 0,
            policy: None,
            budget: Some(limits(e))
                .filter(|limits| *limits != Limits::default())
                .map(|limits| Box::new(Budget::new(e.id, limits))),
            writes: 0,
            approvers: Box::default(),
            rare: e.asked_by.clone().map(|changed_by| Box::new(Rare { changed_by, ..Rare::EMPTY })),
            index: Vec::new(),
            flow: Places::default(),
            ready: Places::default(),
            live: Places::default(),
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> RunId {
        self.born.id
    }

    /// A name in its tenant and namespace.
    #[must_use]
    pub fn scoped(&self, name: &Name) -> Scoped {
        Scoped::new(&self.born.home.tenant, &self.born.home.namespace, name)
    }

    /// What policy decided.
    #[must_use]
    pub fn policy(&self) -> &Ledger {
        static EMPTY: Ledger = Ledger::EMPTY;
        self.policy.as_deref().unwrap_or(&EMPTY)
    }

    /// What it may cost and did.
    #[must_use]
    pub fn budget(&self) -> Cow<'_, Budget> {
        match &self.budget {
            Some(budget) => Cow::Borrowed(budget),
            None => Cow::Owned(Budget::new(self.id(), Limits::default())),
        }
    }

    /// The definitions of its `approve` steps that name others.
    #[must_use]
    pub fn approvers(&self) -> &[u32] {
        &self.approvers
    }

    /// What few runs have.
    #[must_use]
    pub fn rare(&self) -> &Rare {
        static EMPTY: Rare = Rare::EMPTY;
        self.rare.as_deref().unwrap_or(&EMPTY)
    }

    /// Takes what is equal to something that many runs have from there, so that it is kept once.
    pub(crate) fn share(&mut self, pool: &mut Pool) {
        pool.share_home(&mut self.born.home);
        if self.born.name == self.born.home.pipeline {
            self.born.name = self.born.home.pipeline.clone();
        }
        if let Some(policy) = &mut self.policy {
            pool.share_ledger(policy);
        }
    }

    /// The same for the names in it, which whoever reads a saved run has made anew.
    pub(crate) fn share_names(&mut self, pool: &mut Pool) {
        let Born { name, trigger, .. } = &mut *self.born;
        pool.share_name(name);
        trigger.user.iter_mut().for_each(|user| pool.share_name(user));
        for step in &mut self.steps {
            pool.share_name(&mut step.id);
            pool.share_name(&mut step.tool);
        }
    }

    /// Who holds its own lock.
    #[must_use]
    pub fn holder(&self) -> Holder {
        Holder::Run(self.born.id)
    }

    /// The place of a step.
    #[must_use]
    pub fn place(&self, step: &StepId) -> Option<u32> {
        self.named(step).ok().and_then(|at| self.index.get(at).copied())
    }

    /// Where a name stands among the names, or would.
    fn named(&self, step: &StepId) -> Result<usize, usize> {
        let name = |place: &u32| self.steps.get(*place as usize).map(|step| &step.id);
        self.index.binary_search_by(|place| name(place).cmp(&Some(step)))
    }

    /// A step by its name.
    #[must_use]
    pub fn step(&self, step: &StepId) -> Option<&Step> {
        self.place(step).and_then(|i| self.steps.get(i as usize))
    }

    /// A step by its place.
    #[must_use]
    pub fn at(&self, place: u32) -> Option<&Step> {
        self.steps.get(place as usize)
    }

    /// A step that must be there.
    ///
    /// # Errors
    /// [`Error::Missing`] where it is not.
    pub fn need(&self, step: &StepId) -> Result<&Step, Error> {
        self.step(step).ok_or_else(|| Error::Missing("step", alloc::string::ToString::to_string(step)))
    }

    /// Steps that the flow has to look at, in the order they were reached.
    #[must_use]
    pub fn flow(&self) -> &Places {
        &self.flow
    }

    /// Steps that can be leased.
    pub fn leasable(&self) -> impl Iterator<Item = &Step> {
        let open = !self.suspended && self.ending.is_none();
        self.ready.iter().filter(move |_| open).filter_map(|i| self.at(i))
    }

    /// Steps that have not ended.
    pub fn live(&self) -> impl Iterator<Item = &Step> {
        self.live.iter().filter_map(|i| self.at(i))
    }

    /// Whether it is over.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.ending.is_some()
    }

    /// Whether it is stopped by what makes it fail, a deadline or the loss of its lock, rather than by somebody's wish.
    #[must_use]
    pub fn stop_fails(&self) -> bool {
        self.stopping.as_ref().is_some_and(|stop| stop.initiator.fails())
    }

    /// Whether it is being stopped, and this section with it.
    #[must_use]
    pub fn stops(&self, section: Section) -> bool {
        self.stopping.as_ref().is_some_and(|stop| section.stopped_by(stop.initiator))
    }

    /// Where it is: derived, by the precedence at the top of this file.
    #[must_use]
    pub fn status(&self) -> Status {
        if let Some(ending) = &self.ending {
            return ending.status;
        }
        if self.started_at.is_none() {
            return if self.blocked.is_some() { Status::Blocked } else { Status::Pending };
        }
        let (mut human, mut external, mut backoff, mut idle) = (false, false, false, true);
        for step in self.live() {
            match step.status {
                step::Status::Ready if !self.suspended => return Status::Running,
                // What it called is suspended with it.
                step::Status::Running if self.suspended && step.child().is_some() => external = true,
                step::Status::Running if step.group.is_none() => return Status::Running,
                step::Status::WaitingApproval | step::Status::OutcomeUnknown => human = true,
                step::Status::WaitingExternal => external = true,
                step::Status::FailedRetryable => backoff = true,
                // A group is where its members are. The rest have ended.
                step::Status::Ready
                | step::Status::Running
                | step::Status::Pending
                | step::Status::Succeeded
                | step::Status::Skipped
                | step::Status::Failed
                | step::Status::Cancelled => continue,
            }
            idle = false;
        }
        if human {
            Status::AwaitingApproval
        } else if external || self.suspended {
            Status::WaitingExternal
        } else if backoff && !idle {
            Status::FailedRetryable
        } else {
            // Between two steps of one turn.
            Status::Running
        }
    }

    /// What it waits for, for people and for `run.reason`.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        use alloc::string::ToString;
        if self.stopping.is_some() && self.ending.is_none() {
            return Some("cancelling".to_string());
        }
        if self.suspended {
            return Some("suspended".to_string());
        }
        match self.blocked.as_deref() {
            Some(BlockedOn::Runs(runs)) => return Some(alloc::format!("{} other runs", runs.len())),
            Some(BlockedOn::Pipelines(names)) => {
                let names: Vec<&str> = names.iter().map(Name::as_str).collect();
                return Some(alloc::format!("pipeline {}", names.join(", ")));
            }
            Some(BlockedOn::Lock(lock)) => return Some(alloc::format!("lock {lock}")),
            Some(BlockedOn::Cap(cap)) => return Some(alloc::format!("cap {cap}")),
            None => {}
        }
        if let Some(failure) = self.orphaned() {
            return Some(failure.code.to_string());
        }
        self.live().find_map(|step| {
            let waiting = step.waiting.as_ref()?;
            let on = waiting.on.as_ref().map_or(String::new(), |on| alloc::format!(" {on}"));
            Some(alloc::format!("{}{on}", waiting.reason))
        })
    }

    /// The step it is at: the first under way, else the last one reached.
    #[must_use]
    pub fn current_step(&self) -> Option<&StepId> {
        let leaf = |step: &&Step| step.group.is_none();
        self.live().find(leaf).or_else(|| self.steps.last()).map(|step| &step.id)
    }

    /// Its phase in the words of pipelines.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.status() {
            Status::Pending => Phase::Init,
            Status::Blocked => {
                Phase::Blocked(self.blocked.as_deref().cloned().unwrap_or(BlockedOn::Runs(Vec::new())))
            }
            Status::Running
            | Status::AwaitingApproval
            | Status::WaitingExternal
            | Status::FailedRetryable => Phase::Running(self.current_step().cloned()),
            Status::Completed => Phase::Done,
            Status::Failed => {
                let error = self.failure.as_ref().map_or(String::new(), |failure| failure.1.message.clone());
                Phase::Failed {
                    error,
                    recoverable: !self.ending.as_ref().is_some_and(|ending| ending.deleted),
                }
            }
            Status::Cancelled => Phase::Cancelled,
        }
    }

    /// When it next wants a tick: a deadline, a time-out, a back-off, a wait, an approval that expires.
    #[must_use]
    pub fn due(&self) -> Option<Millis> {
        self.dues().min()
    }

    /// When it wants one after this.
    #[must_use]
    pub fn due_after(&self, at: Millis) -> Option<Millis> {
        self.dues().filter(|due| *due > at).min()
    }

    fn dues(&self) -> impl Iterator<Item = Millis> {
        let open = self.ending.is_none();
        let deadline = self.born.deadline_at.filter(|_| self.stopping.is_none());
        let steps = self.live().filter_map(Step::due);
        let approvals = self.rare().approvals.values().filter_map(Approval::due);
        let orphan = self.silent_since().filter(|_| self.rare().orphaned_at.is_none());
        let steps = steps.chain(orphan.map(|since| since + ORPHAN_AFTER));
        deadline.into_iter().chain(steps).chain(approvals).filter(move |_| open)
    }

    /// Leases of executors. A call is the engine's own: its child has executors and a life of its own.
    fn leased(&self) -> impl Iterator<Item = &step::Leased> {
        self.live().filter(|step| step.is_executing()).filter_map(|step| step.lease.as_ref())
    }

    /// How many of its steps are leased to an executor.
    #[must_use]
    pub fn leases(&self) -> u32 {
        self.leased().count() as u32
    }

    /// When its first lease runs out, unless it was extended.
    #[must_use]
    pub fn lease_due(&self) -> Option<Millis> {
        self.leased().map(|lease| lease.expires_at).min()
    }

    fn reindex_all(&mut self) {
        for i in 0..self.steps.len() as u32 {
            self.reindex(i);
        }
    }

    /// Files a step where the flow, the executors and the clock find it.
    fn reindex(&mut self, i: u32) {
        let Some(step) = self.steps.get(i as usize) else { return };
        let live = !step.status.is_terminal();
        let stale = self.is_stale(step);
        let (flow, lease) = match step.status {
            step::Status::Ready => {
                let lease = self.is_leasable(step);
                (!lease, lease)
            }
            step::Status::Running => {
                let wants = step.group.is_some_and(|group| group.wants_attention());
                (wants || step.lost_hold().is_some(), false)
            }
            step::Status::Pending
            | step::Status::WaitingApproval
            | step::Status::WaitingExternal
            | step::Status::FailedRetryable
            | step::Status::OutcomeUnknown
            | step::Status::Succeeded
            | step::Status::Skipped
            | step::Status::Failed
            | step::Status::Cancelled => (false, false),
        };
        // Whatever it waits for, the flow prepares it anew first.
        let (flow, lease) = if stale { (true, false) } else { (flow, lease) };
        for (set, member) in [(&mut self.live, live), (&mut self.flow, flow), (&mut self.ready, lease)] {
            set.set(i, member);
        }
    }

    /// Whether an executor may have it as far as the run knows. The lease asks policy's version again.
    fn is_leasable(&self, step: &Step) -> bool {
        step.group.is_none()
            && step.next_gate().is_none()
            && !matches!(step.tool.as_str(), "call" | "approve" | "wait")
            && self.allowed(step, None)
            && self.released(step)
            && self.is_answered(step)
    }

    /// Whether policy allows the step's action, and a human approved it where policy says so. With a version, only
    /// what was decided under it counts.
    #[must_use]
    pub fn allowed(&self, step: &Step, version: Option<&Digest>) -> bool {
        use crate::policy::Verdict;
        let ledger = self.policy();
        let Some(version) = version.or(ledger.version.as_ref()) else { return false };
        let Some(decision) = ledger.standing(&step.id, &step.tool, step.action_hash(), version) else {
            return false;
        };
        match decision.verdict {
            Verdict::Allow => true,
            Verdict::Deny => false,
            Verdict::NeedsApproval => self.approved(step, &decision.policy_version),
        }
    }

    /// Whether a human approved exactly this action under this policy.
    #[must_use]
    pub fn approved(&self, step: &Step, version: &Digest) -> bool {
        // A step without an action of its own is recorded once and never rendered again, so what was shown to the
        // human is what it does.
        let permits = |a: &&Approval| a.permits(step.action_hash().unwrap_or(&a.action_hash), version);
        // One on behalf of an `approve` step adds to what policy asks and does not take its place.
        let own = |a: &&Approval| a.step == step.id && a.by_step.is_none();
        self.rare().approvals.values().filter(own).any(|a| permits(&a))
    }
}

/// The sequence of a section. What cleans up does not stop at the first failure.
fn sequence(section: Section, total: u32) -> Group {
    let fail_fast = match section {
        Section::Main | Section::OnFailure => FailFast::Stop,
        Section::Compensate | Section::Finally => FailFast::No,
    };
    Group::new(Shape { kind: GroupKind::Sequence, total, width: 1, fail_fast })
}

/// What a run may cost, as it was created.
fn limits(e: &crate::event::PipelineCreated) -> Limits {
    Limits {
        usd_micros: e.budget_usd_micros,
        tokens: e.budget_tokens,
        time_ms: e.budget_time_ms,
        writes: e.budget_writes,
    }
}
