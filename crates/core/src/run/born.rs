//! What a run is given when it is created, and what it shares with others of its pipeline.

use super::{Lineage, Subject, Trigger};
use crate::digest::Digest;
use crate::id::{Name, RunId, StepId, WorkspaceId};
use crate::time::Millis;
use crate::trace::{self, Trace};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Where a run belongs. All runs of a pipeline in one place have the same, so the state keeps it once for them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Home {
    /// Whose it is.
    pub tenant: Name,
    /// The subdivision.
    pub namespace: Name,
    /// The runbook it is pinned to.
    pub runbook: Digest,
    /// The pipeline.
    pub pipeline: Name,
    /// Where it runs.
    pub cwd: String,
    /// How many outside writes it may make.
    pub writes_max: Option<u32>,
}

/// What is given when a run is created.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Born {
    /// Its id.
    pub id: RunId,
    /// Where it belongs.
    pub home: Arc<Home>,
    /// Its name for people.
    pub name: Name,
    /// What made it.
    pub trigger: Trigger,
    /// Its place among its retries and forks; absent where it is the first of them.
    lineage: Option<Box<Lineage>>,
    /// What it is about.
    pub subject: Option<Box<Subject>>,
    /// What ties it to something outside.
    pub correlation_id: Option<Name>,
    /// The run and step that called it.
    pub parent: Option<Box<(RunId, StepId)>>,
    /// How many runs called each other above it.
    pub depth: u32,
    /// Higher is sooner.
    pub priority: i32,
    /// When.
    pub created_at: Millis,
    /// When it must be over.
    pub deadline_at: Option<Millis>,
    /// Runs that must be completed first.
    pub needs: Box<[RunId]>,
    /// Pipelines of which a run must be completed first, and none had run when this run was made.
    pub needs_pipelines: Box<[Name]>,
    /// The lock it holds as a whole.
    pub lock: Option<Name>,
    /// Its working directory.
    workspace: Option<Box<WorkspaceId>>,
    /// The run whose effects it takes back, where it was made for that.
    pub takes_back: Option<Box<RunId>>,
}

impl Born {
    /// What a `pipeline:created` says.
    #[must_use]
    pub fn new(e: &crate::event::PipelineCreated, tenant: &Name) -> Born {
        let home = Home {
            tenant: tenant.clone(),
            namespace: e.namespace.clone(),
            runbook: e.runbook_hash,
            pipeline: e.kind.clone(),
            cwd: e.cwd.clone(),
            writes_max: e.writes_max,
        };
        Born {
            id: e.id,
            home: Arc::new(home),
            name: e.name.clone(),
            trigger: e.trigger.clone(),
            lineage: (e.lineage != Lineage::first(e.id)).then(|| Box::new(e.lineage.clone())),
            subject: e.subject.clone().map(Box::new),
            correlation_id: e.correlation_id.clone(),
            parent: e.parent.zip(e.parent_step.clone()).map(Box::new),
            depth: e.depth.unwrap_or(0),
            priority: e.priority.unwrap_or(0),
            created_at: e.created_at_epoch_ms,
            deadline_at: e.deadline_at,
            needs: e.needs.clone().unwrap_or_default().into_boxed_slice(),
            needs_pipelines: e.needs_pipelines.clone().unwrap_or_default().into_boxed_slice(),
            lock: e.lock.clone(),
            workspace: e.workspace.map(Box::new),
            takes_back: e.takes_back.map(Box::new),
        }
    }

    /// Its place among its retries and forks.
    #[must_use]
    pub fn lineage(&self) -> Lineage {
        self.lineage.as_deref().cloned().unwrap_or_else(|| Lineage::first(self.id))
    }

    /// The runs that it was made from: the first of its lineage, its caller, and the one that it takes back.
    #[must_use]
    pub fn kin(&self) -> Vec<RunId> {
        let caller = self.parent.as_deref().map(|(caller, _)| *caller);
        let kin = [Some(self.lineage().root_run), caller, self.takes_back.as_deref().copied()];
        let mut kin: Vec<RunId> = kin.into_iter().flatten().filter(|of| *of != self.id).collect();
        kin.sort_unstable();
        kin.dedup();
        kin
    }

    /// When it, or the first of the runs that it was made from, was made. What any of them left behind may be used in it.
    #[must_use]
    pub fn began(&self) -> Millis {
        let times = self.kin().into_iter().map(RunId::made_at);
        times.fold(self.created_at, Millis::min)
    }

    /// The trace it belongs to.
    #[must_use]
    pub fn trace(&self) -> Trace {
        let root = self.lineage.as_deref().map_or(self.id, |lineage| lineage.root_run);
        trace::of(root, self.trigger.traceparent.as_ref().map(Name::as_str))
    }

    /// Its working directory.
    #[must_use]
    pub fn workspace(&self) -> Option<WorkspaceId> {
        self.workspace.as_deref().copied()
    }
}
