//! What decisions look at: the live streams, and the knowledge of which runs have left memory.

use crate::history::{Filter, History};
use windlass_core::caps;
use windlass_core::command::Fact;
use windlass_core::digest::Digest;
use windlass_core::id::{ItemId, Name, RunId, Scoped};
use windlass_core::machine::Beats;
use windlass_core::state::State;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::{Found, Overlay, View};
use windlass_engine::fast::Set;

/// The live streams, in front of the history.
pub(super) struct Live {
    pub(super) state: State,
    pub(super) history: History,
    /// Runs whose listing is safe, and which may leave.
    listed: Set<RunId>,
    /// Runs that somebody asked for in this turn and that are nowhere.
    absent: Set<RunId>,
    /// The highest id of a run that has left.
    left_max: Option<RunId>,
}

impl Live {
    pub(super) fn new(state: State, history: History) -> Live {
        let left_max = history.max_id();
        Live { state, history, listed: Set::default(), absent: Set::default(), left_max }
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
        self.left_max = self.left_max.max(Some(run));
    }

    /// Whether a run is in the history and not in memory.
    pub(super) fn has_left(&self, run: RunId) -> bool {
        self.state.run(run).is_none() && matches!(self.history.get(run), Ok(Some(_)))
    }

    /// A run is neither in memory nor in the history.
    pub(super) fn absent(&mut self, run: RunId) {
        self.absent.insert(run);
    }
}

impl View for Live {
    fn find(&self, stream: &StreamId) -> Found<'_> {
        match (self.state.find(stream), stream) {
            // Ids grow with time, so a new run is above all that have left, and nobody has to look for it.
            (Found::Absent, StreamId::Run(run))
                if Some(*run) <= self.left_max && !self.absent.contains(run) =>
            {
                Found::Unloaded
            }
            (found, _) => found,
        }
    }

    fn beats(&self) -> &Beats {
        self.state.beats()
    }

    fn dependents(&self, run: RunId) -> Vec<RunId> {
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

    fn newest_run(&self, tenant: &Name, namespace: &Name, pipeline: &Name) -> Option<RunId> {
        let filter = Filter { pipeline: Some(pipeline.clone()), limit: 1, ..Filter::of(tenant, namespace) };
        // One that cannot be looked up is not known of; what is in memory is.
        let ended = self.history.list(&filter).unwrap_or_default().first().map(|row| row.id);
        ended.max(self.state.newest_run(tenant, namespace, pipeline))
    }
}

impl Overlay for Live {
    fn open(&mut self, at: Millis) {
        self.absent.clear();
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
