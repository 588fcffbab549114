//! What decisions look at: the live streams, and the knowledge of which runs have left memory.

use crate::history::{Filter, History};
use std::collections::BTreeSet;
use std::sync::Arc;
use windlass_core::caps;
use windlass_core::digest::Digest;
use windlass_core::id::{ItemId, Name, RunId, Scoped};
use windlass_core::machine::Beats;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::command::Fact;
use windlass_core::turn::state::State;
use windlass_core::turn::{Found, Overlay, View};
use windlass_engine::fast::Set;

/// How many of the newest runs of a pipeline are looked at for one that did its work.
const NEWEST_MAX: usize = 20;

/// Whether a stream has a name that may come again after it has left memory.
pub(super) fn is_named(stream: &StreamId) -> bool {
    match stream {
        StreamId::Trigger(_)
        | StreamId::Effect(_)
        | StreamId::Lock(_)
        | StreamId::Semaphore(_)
        | StreamId::Signal(_) => true,
        StreamId::Run(_)
        | StreamId::Item(_)
        | StreamId::Queue(_)
        | StreamId::Worker(_)
        | StreamId::Schedule(_)
        | StreamId::Runbook(_)
        | StreamId::Deployment(_)
        | StreamId::Workspace(_)
        | StreamId::Session(_)
        | StreamId::Tenant(_)
        | StreamId::Tokens(_)
        | StreamId::System
        | StreamId::Retired(_) => false,
    }
}

/// The live streams, in front of the history.
pub(super) struct Live {
    pub(super) state: State,
    pub(super) history: Arc<History>,
    /// Runs whose listing is safe, and which may leave.
    listed: Set<RunId>,
    /// Streams that somebody asked for in this turn and that are nowhere. It is kept until the turn is over.
    absent: Set<StreamId>,
    /// Whether a named stream may have left memory.
    pub(super) any_left: bool,
    /// The highest id of a run that has left.
    left_max: Option<RunId>,
    /// Runbooks that are about to leave the log, and are out of memory already.
    pub(super) leaving: BTreeSet<Digest>,
}

impl Live {
    pub(super) fn new(state: State, history: History) -> Live {
        let left_max = history.max_id();
        Live {
            state,
            history: Arc::new(history),
            listed: Set::default(),
            absent: Set::default(),
            any_left: false,
            left_max,
            leaving: BTreeSet::new(),
        }
    }

    /// The history was brought up to the log: says what has left memory.
    pub(super) fn learn(&mut self) -> Result<(), crate::history::Error> {
        self.left_max = self.left_max.max(self.history.max_id());
        self.any_left = self.history.has_streams()?;
        Ok(())
    }

    /// These runs are in the history.
    pub(super) fn flushed(&mut self, runs: Vec<RunId>) {
        self.listed.extend(runs);
    }

    pub(super) fn is_listed(&self, run: RunId) -> bool {
        self.listed.contains(&run)
    }

    /// The listing of a run no longer says everything.
    pub(super) fn unlisted(&mut self, run: RunId) {
        self.listed.remove(&run);
    }

    /// A run has left memory.
    pub(super) fn left(&mut self, run: RunId) {
        self.listed.remove(&run);
        self.absent.remove(&StreamId::Run(run));
        self.left_max = self.left_max.max(Some(run));
    }

    /// Whether a run is in the history and not in memory.
    pub(super) fn has_left(&self, run: RunId) -> bool {
        self.state.run(run).is_none() && matches!(self.history.get(run), Ok(Some(_)))
    }

    /// A stream is neither in memory nor in the history.
    pub(super) fn absent(&mut self, stream: StreamId) {
        self.absent.insert(stream);
    }

    /// A turn is over: the next one looks for itself. Not earlier, as a command that is told of one absent run may ask for
    /// the next.
    pub(super) fn turn_over(&mut self) {
        self.absent.clear();
    }

    /// The time of the newest run that has left.
    pub(super) fn left_at(&self) -> Option<Millis> {
        self.left_max.map(|run| Millis((run.0 >> 80) as u64))
    }
}

impl View for Live {
    fn find(&self, stream: &StreamId) -> Found<'_> {
        match (self.state.find(stream), stream) {
            // Ids grow with time, so a new run is above all that have left, and nobody has to look for it.
            (Found::Absent, StreamId::Run(run))
                if Some(*run) <= self.left_max && !self.absent.contains(stream) =>
            {
                Found::Unloaded
            }
            (Found::Absent, StreamId::Runbook(hash)) if self.leaving.contains(hash) => Found::Unloaded,
            // A name may come again.
            (Found::Absent, named) if self.any_left && is_named(named) && !self.absent.contains(named) => {
                Found::Unloaded
            }
            (found, _) => found,
        }
    }

    fn beats(&self) -> &Beats {
        self.state.beats()
    }

    fn dependents(&self, run: &windlass_core::run::Run) -> Vec<RunId> {
        self.state.dependents(run)
    }

    fn best(&self, queue: &Scoped, n: usize) -> Vec<ItemId> {
        self.state.best(queue, n)
    }

    fn depth(&self, queue: &Scoped, key: Option<&Name>) -> (u64, Option<ItemId>) {
        self.state.depth(queue, key)
    }

    fn consumers(&self, queue: &Scoped) -> Vec<Scoped> {
        self.state.consumers(queue)
    }

    fn deployments(&self, tenant: &Name, namespace: &Name) -> Vec<Scoped> {
        self.state.deployments(tenant, namespace)
    }

    fn admit_run(
        &self,
        tenant: &Name,
        runbook: &Digest,
        beside: &[Digest],
        at: Millis,
    ) -> Result<(), caps::Error> {
        self.state.admit_run(tenant, runbook, beside, at)
    }

    fn admit_step(&self, tenant: &Name, runbook: &Digest) -> Result<(), caps::Error> {
        self.state.admit_step(tenant, runbook)
    }

    fn awaiting(&self, tenant: &Name, namespace: &Name, name: &Name, key: Option<&Name>) -> Vec<RunId> {
        self.state.awaiting(tenant, namespace, name, key)
    }

    fn caps(&self, tenant: &Name) -> caps::Caps {
        self.state.caps(tenant)
    }

    fn kept(&self, tenant: &Name) -> caps::Kept {
        self.state.kept(tenant)
    }

    fn newest_run(&self, tenant: &Name, namespace: &Name, pipeline: &Name) -> Option<RunId> {
        let filter =
            Filter { pipeline: Some(pipeline.clone()), limit: NEWEST_MAX, ..Filter::of(tenant, namespace) };
        // One that cannot be looked up is not known of; what is in memory is. A run that takes another one back is no run
        // of its pipeline's work.
        let ended = self.history.list(&filter).unwrap_or_default();
        let works = |json: &str| {
            serde_json::from_str::<serde_json::Value>(json).is_ok_and(|run| run.get("takes_back").is_none())
        };
        let ended = ended.iter().find(|row| works(&row.json)).map(|row| row.id);
        ended.max(self.state.newest_run(tenant, namespace, pipeline))
    }
}

impl Overlay for Live {
    fn open(&mut self, at: Millis) {
        self.state.open(at);
    }

    fn woken(&mut self) -> Vec<Scoped> {
        self.state.woken()
    }

    fn looked(&mut self, stream: &StreamId, at: Millis) {
        self.state.looked(stream, at);
    }

    fn woken_by(&self, facts: &[Fact]) -> Vec<Scoped> {
        self.state.woken_by(facts)
    }

    fn apply(&mut self, facts: &[Fact], at: Millis) {
        self.state.apply(facts, at);
    }
}
