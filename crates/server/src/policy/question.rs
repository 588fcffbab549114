//! Questions: everything that policy is told about an action, taken from records.
//!
//! The same question is built from the state of a live run, from the log when history is replayed, and from a
//! case in a test file. So a test shows what will happen.

use super::schema;
use serde_json::{Map, Value, json};
use std::path::Path;
use windlass_core::approval::{self, Approval};
use windlass_core::budget::Amount;
use windlass_core::digest::Digest;
use windlass_core::id::{Name, RunId, Scoped, StepId};
use windlass_core::policy::{self, Purpose, Risk, Scope, scope};
use windlass_core::receipt::Action;
use windlass_core::run::{Run, Source};
use windlass_core::runbook::{Kind, Runbook, StepDef};
use windlass_core::step::Step;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::state::{Body, State};
use windlass_executor::shell::Environment;

/// What policy is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    pub run: RunId,
    /// The step; none where the answer is for all steps of the run that use the tool.
    pub step: Option<StepId>,
    /// The tool.
    pub tool: Name,
    /// What it would do, where it has fields of its own.
    pub action: Option<Action>,
    /// The hash of that.
    pub action_hash: Option<Digest>,
    /// What it is for, where it is no step.
    pub purpose: Option<Purpose>,
    /// Whether it changes something.
    pub writes: bool,
    /// Humans who agreed to exactly this action, each with the policy that asked them.
    pub agreed: Vec<(Name, Digest)>,
    /// Where the run belongs.
    pub about: About,
}

/// What is known about the run behind a question.
#[derive(Clone, Debug, PartialEq)]
pub struct About {
    pub tenant: Name,
    pub namespace: Name,
    pub pipeline: Name,
    /// The pipelines of the runs that it takes back, where it is an undo.
    pub undoes: Vec<Name>,
    /// The runbook's name.
    pub runbook: Name,
    /// The runbook's hash.
    pub runbook_hash: Digest,
    /// What made the run.
    pub source: Source,
    /// The human behind it.
    pub requester: Option<Name>,
    /// The run that called it.
    pub parent: Option<RunId>,
    /// When policy was asked, as it is recorded.
    pub at: Millis,
    /// What the run has spent, with what is set aside.
    pub spent: Amount,
}

impl Question {
    /// The question about a step, as the state has it. `None` if the run or the step is gone: then no answer is needed.
    #[must_use]
    pub fn gather(state: &State, run: RunId, step: &StepId) -> Option<Question> {
        let (run, runbook) = found(state, run)?;
        let step = run.step(step)?;
        let node = runbook.pipelines.get(&run.born.home.pipeline)?.node(step.node)?;
        Some(Question::of(run, runbook, node, step))
    }

    /// The question about a step.
    #[must_use]
    pub fn of(run: &Run, runbook: &Runbook, node: &StepDef, step: &Step) -> Question {
        let own = scope(step.tool.as_str()) == Scope::PerStep;
        // What holds for all steps of a run was not agreed to by those who agreed to one of them.
        let agreed = if own { agreed(run, step) } else { Vec::new() };
        let asked_at = step.waiting.as_ref().map(|waiting| waiting.since);
        Question {
            run: run.id(),
            step: own.then(|| step.id.clone()),
            tool: step.tool.clone(),
            action: own.then(|| windlass_core::scope::action(run, node, step)),
            action_hash: step.action_hash().copied(),
            purpose: None,
            writes: writes(&node.kind),
            agreed,
            about: About::of(run, runbook, asked_at.unwrap_or(run.updated_at)),
        }
    }

    /// The question about all steps of a run that use a tool.
    #[must_use]
    pub fn for_tool(state: &State, run: RunId, tool: &Name) -> Option<Question> {
        let (run, runbook) = found(state, run)?;
        Some(Question {
            run: run.id(),
            step: None,
            tool: tool.clone(),
            action: None,
            action_hash: None,
            purpose: None,
            writes: true,
            agreed: Vec::new(),
            about: About::of(run, runbook, run.updated_at),
        })
    }

    /// The question about a command or a read beside a step.
    #[must_use]
    pub fn beside(
        state: &State,
        (run, step): (RunId, &StepId),
        purpose: Purpose,
        action: Action,
        writes: bool,
    ) -> Option<Question> {
        let (run, runbook) = found(state, run)?;
        Some(Question {
            run: run.id(),
            step: Some(step.clone()),
            tool: action.tool.clone(),
            action_hash: Some(action.hash()),
            action: Some(action),
            purpose: Some(purpose),
            writes,
            agreed: Vec::new(),
            about: About::of(run, runbook, run.updated_at),
        })
    }

    /// The question about telling people something of a run. Who is told, and how, is what the operator has configured, so
    /// it is no write of the runbook's.
    #[must_use]
    pub fn notice(state: &State, run: RunId, action: Action) -> Option<Question> {
        let (run, runbook) = found(state, run)?;
        Some(Question {
            run: run.id(),
            step: None,
            tool: action.tool.clone(),
            action_hash: Some(action.hash()),
            action: Some(action),
            purpose: Some(Purpose::Notice),
            writes: false,
            agreed: Vec::new(),
            about: About::of(run, runbook, run.updated_at),
        })
    }

    /// The question about a command of an external queue, which is run for a worker and not for a step.
    #[must_use]
    pub fn for_queue(
        run: RunId,
        (worker, queue): (&Scoped, &Name),
        runbook_hash: Digest,
        (purpose, action): (Purpose, Action),
        at: Millis,
    ) -> Question {
        Question {
            run,
            step: None,
            tool: action.tool.clone(),
            action_hash: Some(action.hash()),
            action: Some(action),
            purpose: Some(purpose),
            writes: true,
            agreed: Vec::new(),
            about: About {
                tenant: Name::clean(worker.tenant()),
                namespace: Name::clean(worker.namespace()),
                pipeline: queue.clone(),
                undoes: Vec::new(),
                runbook: Name::clean(worker.name()),
                runbook_hash,
                source: Source::Queue,
                requester: None,
                parent: None,
                at,
                spent: Amount::default(),
            },
        }
    }

    /// How risky the action is.
    #[must_use]
    pub fn risk(&self) -> Risk {
        self.action.as_ref().map_or(Risk::Low, |action| action.risk)
    }

    /// The distinct humans who agreed when this policy asked them.
    #[must_use]
    pub fn approvers(&self, version: &Digest) -> Vec<&Name> {
        let mut names: Vec<&Name> =
            self.agreed.iter().filter(|(_, by)| by == version).map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        names
    }

    /// What the core is to be told of this question when policy gives no answer.
    #[must_use]
    pub fn asked(&self, policy_version: Digest) -> policy::Question {
        let approvals = u32::try_from(self.approvers(&policy_version).len()).unwrap_or(u32::MAX);
        policy::Question { policy_version, action_hash: self.action_hash, approvals, risk: self.risk() }
    }

    /// The name of Cedar's action for it.
    pub(super) fn action_name(&self) -> &str {
        schema::action(self.tool.as_str(), self.writes)
    }
}

/// A command beside the steps, as policy sees it: what is run, where, and with which values.
#[must_use]
pub fn command(purpose: Purpose, target: &Name, command: &str, dir: &Path, env: &Environment) -> Action {
    let given: Map<String, Value> = env
        .iter()
        .filter(|(name, _)| name.starts_with("WL_"))
        .map(|(name, value)| (name.to_owned(), json!(value)))
        .collect();
    Action {
        tool: Name::clean("shell"),
        operation: Name::clean(purpose.as_str()),
        target: target.clone(),
        fields: json!({ "command": command, "dir": dir.display().to_string(), "env": given }),
        risk: Risk::Low,
    }
}

impl About {
    /// What is known about a run.
    fn of(run: &Run, runbook: &Runbook, at: Millis) -> About {
        let (home, trigger) = (&run.born.home, &run.born.trigger);
        About {
            tenant: home.tenant.clone(),
            namespace: home.namespace.clone(),
            pipeline: home.pipeline.clone(),
            undoes: runbook.undoes.clone(),
            runbook: runbook.name.clone(),
            runbook_hash: home.runbook,
            source: trigger.source,
            requester: trigger.user.clone(),
            parent: run.born.parent.as_ref().map(|parent| parent.0),
            at,
            spent: run.budget().committed(),
        }
    }
}

/// A run with its runbook.
fn found(state: &State, run: RunId) -> Option<(&Run, &Runbook)> {
    let run = state.run(run)?;
    match &state.stream(&StreamId::Runbook(run.born.home.runbook))?.body {
        Body::Runbook(runbook) => Some((run, runbook)),
        // tidy: the stream of a runbook holds one.
        _ => None,
    }
}

/// Whether a step of this kind changes something. An unknown kind does.
#[must_use]
pub fn writes(kind: &Kind) -> bool {
    match kind {
        Kind::Tool { writes, .. } => *writes,
        Kind::Run { .. } | Kind::Agent { .. } => true,
        Kind::Parallel { .. }
        | Kind::Steps { .. }
        | Kind::Strategy { .. }
        | Kind::Call { .. }
        | Kind::Approve { .. }
        | Kind::Wait { .. } => false,
    }
}

/// Who agreed to what a step is about to do. What is void, or was about another action, does not count.
fn agreed(run: &Run, step: &Step) -> Vec<(Name, Digest)> {
    let counts = |approval: &&Approval| {
        let same = step.action_hash().is_none_or(|hash| *hash == approval.action_hash);
        let open = matches!(approval.status, approval::Status::Requested | approval::Status::Approved);
        approval.step == step.id && approval.by_step.is_none() && same && open
    };
    let mut out = Vec::new();
    for approval in run.rare().approvals.values().filter(counts) {
        for decided in approval.decisions.iter().filter(|d| d.decision == approval::Verdict::Approved) {
            out.push((decided.by.clone(), approval.policy_version));
        }
    }
    out
}
