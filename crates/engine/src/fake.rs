//! Fakes for simulation: stores in memory, a clock that only tests move, ids that count.
//!
//! [`Memory`] keeps everything, as the embedded store does. [`Forgetful`] keeps nothing between turns but what was
//! committed: every stream has to be loaded, as from a database, and one that a decision did not ask for is not there.

use crate::port::{Batch, Clock, Fault, Found, Ids, Leased, Outside, Policy, Store};
use crate::release::Released;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use windlass_core::caps;
use windlass_core::digest::Digest;
use windlass_core::id::{Holder, ItemId, Name, RunId, Scoped, StepId};
use windlass_core::machine::Beats;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::command::Fact;
use windlass_core::turn::index::Taker;
use windlass_core::turn::state::{Body, State};
use windlass_core::turn::{self, Overlay, View};

/// A fact as it was committed.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// When.
    pub at: Millis,
    /// The fact.
    pub fact: Fact,
}

/// What a start finds in a state that has every stream.
#[must_use]
pub fn found(state: &State) -> Found {
    let last_at = state.streams().map(|(_, stream)| stream.at).max();
    let leases = leases(state, |_| true);
    Found { commands: state.left_over(), effects: state.outstanding(), leases, last_at }
}

/// The steps of a state that are leased to executors, of the streams that are asked for.
#[must_use]
pub fn leases(state: &State, mut of: impl FnMut(&StreamId) -> bool) -> Vec<Leased> {
    let runs = state.streams().filter(|(id, _)| of(id)).filter_map(|(_, stream)| match &stream.body {
        Body::Run(run) => Some(run),
        // tidy: nothing else has steps.
        _ => None,
    });
    runs.flat_map(|run| run_leases(run)).collect()
}

/// The steps of a run that are leased to executors.
pub fn run_leases(run: &windlass_core::run::Run) -> impl Iterator<Item = Leased> + '_ {
    run.live().filter(|step| step.is_executing()).filter_map(|step| {
        let lease = step.lease.as_ref()?;
        let since = step.started_at.unwrap_or_default();
        Some(Leased {
            run: run.id(),
            step: step.id.clone(),
            epoch: step.epoch,
            owner: lease.owner.clone(),
            since,
        })
    })
}

/// The steps of a run that can be leased.
#[must_use]
pub fn leasable(state: &State, run: RunId) -> Vec<StepId> {
    state.run(run).map(|run| run.leasable().map(|step| step.id.clone()).collect()).unwrap_or_default()
}

/// What both fakes pick, from a state that has everything.
macro_rules! picks {
    ($($state:ident).+) => {
        fn pick_ready(&mut self, taker: &Taker<'_>) -> Option<(RunId, Vec<StepId>)> {
            let run = self.$($state).+.indexes_mut().next_ready_for(taker)?;
            Some((run, leasable(&self.$($state).+, run)))
        }

        fn put_back(&mut self, run: RunId) {
            self.$($state).+.indexes_mut().put_back(run);
        }

        fn pick_due(&mut self, at: Millis, max: usize) -> Vec<StreamId> {
            self.$($state).+.indexes().due(at).take(max).cloned().collect()
        }

        fn next_due(&mut self) -> Option<Millis> {
            self.$($state).+.indexes().next_due()
        }

        fn pick_expired(&mut self, at: Millis) -> Vec<Leased> {
            let due: BTreeSet<StreamId> = self.$($state).+.indexes().leases_due(at).cloned().collect();
            leases(&self.$($state).+, |id| due.contains(id))
        }

        fn idle(&mut self, _: Millis) -> bool {
            false
        }

        fn has_room(&mut self) -> bool {
            !self.full
        }

        fn newest(&self) -> Option<Millis> {
            self.$($state).+.streams().map(|(_, stream)| stream.at).max()
        }

        fn recover(&mut self, at: Millis) -> Result<Found, Fault> {
            self.$($state).+.beats.since = at;
            Ok(found(&self.$($state).+))
        }
    };
}

/// A store that keeps everything in memory.
#[derive(Default)]
pub struct Memory {
    all: State,
    /// What is durable.
    pub kept: Vec<Kept>,
    /// Whether it has no room.
    pub full: bool,
    /// A batch failed, and nothing was loaded since.
    broken: bool,
}

/// The state that facts fold to.
#[must_use]
pub fn replay(kept: &[Kept]) -> State {
    let mut state = State::new();
    for Kept { at, fact } in kept {
        state.apply(std::slice::from_ref(fact), *at);
    }
    state
}

impl Memory {
    /// A store with these facts in it: as after a crash.
    #[must_use]
    pub fn from(kept: Vec<Kept>) -> Memory {
        Memory { all: replay(&kept), kept, full: false, broken: false }
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.all
    }
}

impl Store for Memory {
    picks!(all);

    fn view(&mut self) -> &mut dyn Overlay {
        &mut self.all
    }

    fn load(&mut self, _: &[StreamId]) -> Result<(), Fault> {
        Ok(())
    }

    fn commit(&mut self, batch: Batch, _: bool) {
        self.broken |= self.full;
        if self.broken {
            return (batch.done)(Err(Fault::Full("no room in memory".into())));
        }
        self.kept.extend(batch.facts.into_iter().map(|decided| Kept { at: decided.at, fact: decided.fact }));
        (batch.done)(Ok(()));
    }

    fn reload(&mut self) -> Result<(), Fault> {
        self.all = replay(&self.kept);
        self.broken = false;
        Ok(())
    }

    fn beat(&mut self, holder: Holder, at: Millis) {
        self.all.beat(holder, at);
    }
}

/// A store that forgets every stream after each commit.
#[derive(Default)]
pub struct Forgetful {
    /// Only its indexes are looked at: they stand for the tables of a database.
    all: State,
    view: Loaded,
    /// What is durable.
    pub kept: Vec<Kept>,
    /// Whether it has no room.
    pub full: bool,
    broken: bool,
}

/// The streams that were asked for.
#[derive(Default)]
struct Loaded {
    state: State,
    known: BTreeSet<StreamId>,
    /// What the indexes say.
    hints: State,
    /// A fact came for a stream that nobody loaded.
    blind: Option<StreamId>,
}

impl Forgetful {
    /// A store with these facts in it: as after a crash.
    #[must_use]
    pub fn from(kept: Vec<Kept>) -> Forgetful {
        let all = replay(&kept);
        let view = Loaded { hints: all.clone(), ..Loaded::default() };
        Forgetful { all, view, kept, full: false, broken: false }
    }

    /// The stream of the first fact that was decided without looking at it.
    #[must_use]
    pub fn blind(&self) -> Option<&StreamId> {
        self.view.blind.as_ref()
    }
}

impl Store for Forgetful {
    picks!(view.hints);

    fn view(&mut self) -> &mut dyn Overlay {
        &mut self.view
    }

    fn load(&mut self, streams: &[StreamId]) -> Result<(), Fault> {
        for id in streams {
            if self.view.known.insert(id.clone()) {
                for Kept { at, fact } in self.kept.iter().filter(|kept| kept.fact.stream == *id) {
                    self.view.state.apply(std::slice::from_ref(fact), *at);
                }
            }
        }
        Ok(())
    }

    fn commit(&mut self, batch: Batch, _: bool) {
        self.broken |= self.full;
        if self.broken {
            return (batch.done)(Err(Fault::Full("no room in memory".into())));
        }
        for decided in batch.facts {
            self.all.apply(std::slice::from_ref(&decided.fact), decided.at);
            self.kept.push(Kept { at: decided.at, fact: decided.fact });
        }
        let beats = std::mem::take(&mut self.view.state.beats);
        let blind = self.view.blind.take();
        self.view = Loaded { hints: self.all.clone(), blind, ..Loaded::default() };
        self.view.state.beats = beats;
        (batch.done)(Ok(()));
    }

    fn reload(&mut self) -> Result<(), Fault> {
        let Forgetful { kept, full, .. } = std::mem::take(self);
        *self = Forgetful::from(kept);
        self.full = full;
        Ok(())
    }

    fn beat(&mut self, holder: Holder, at: Millis) {
        self.view.state.beats.seen.insert(holder.clone(), at);
        self.all.beat(holder, at);
    }
}

impl View for Loaded {
    fn find(&self, stream: &StreamId) -> turn::Found<'_> {
        if self.known.contains(stream) { self.state.find(stream) } else { turn::Found::Unloaded }
    }

    fn beats(&self) -> &Beats {
        self.state.beats()
    }

    fn dependents(&self, run: &windlass_core::run::Run) -> Vec<RunId> {
        self.hints.dependents(run)
    }

    fn best(&self, queue: &Scoped, n: usize) -> Vec<ItemId> {
        self.hints.best(queue, n)
    }

    fn depth(&self, queue: &Scoped, key: Option<&Name>) -> (u64, Option<ItemId>) {
        self.hints.depth(queue, key)
    }

    fn consumers(&self, queue: &Scoped) -> Vec<Scoped> {
        self.hints.consumers(queue)
    }

    fn deployments(&self, tenant: &Name, namespace: &Name) -> Vec<Scoped> {
        self.hints.deployments(tenant, namespace)
    }

    fn admit_run(
        &self,
        tenant: &Name,
        runbook: &Digest,
        beside: &[Digest],
        at: Millis,
    ) -> Result<(), caps::Error> {
        self.hints.admit_run(tenant, runbook, beside, at)
    }

    fn admit_step(&self, tenant: &Name, runbook: &Digest) -> Result<(), caps::Error> {
        self.hints.admit_step(tenant, runbook)
    }

    fn awaiting(&self, tenant: &Name, namespace: &Name, name: &Name, key: Option<&Name>) -> Vec<RunId> {
        self.hints.awaiting(tenant, namespace, name, key)
    }

    fn caps(&self, tenant: &Name) -> caps::Caps {
        self.hints.caps(tenant)
    }

    fn kept(&self, tenant: &Name) -> caps::Kept {
        self.hints.kept(tenant)
    }

    fn newest_run(&self, tenant: &Name, namespace: &Name, pipeline: &Name) -> Option<RunId> {
        self.hints.newest_run(tenant, namespace, pipeline)
    }
}

impl Overlay for Loaded {
    fn open(&mut self, at: Millis) {
        self.hints.open(at);
    }

    fn woken(&mut self) -> Vec<Scoped> {
        self.hints.woken()
    }

    fn looked(&mut self, stream: &StreamId, at: Millis) {
        self.hints.looked(stream, at);
    }

    fn woken_by(&self, facts: &[Fact]) -> Vec<Scoped> {
        self.hints.woken_by(facts)
    }

    fn apply(&mut self, facts: &[Fact], at: Millis) {
        for fact in facts {
            if !self.known.contains(&fact.stream) && self.blind.is_none() {
                self.blind = Some(fact.stream.clone());
            }
        }
        self.state.apply(facts, at);
        self.hints.apply(facts, at);
    }
}

/// A clock that only tests move.
#[derive(Debug)]
pub struct Hands(AtomicU64);

impl Hands {
    /// A clock that shows this time.
    #[must_use]
    pub fn at(at: Millis) -> Hands {
        Hands(AtomicU64::new(at.0))
    }

    /// Moves it on.
    pub fn pass(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::AcqRel);
    }
}

impl Clock for Hands {
    fn now(&self) -> Millis {
        Millis(self.0.load(Ordering::Acquire))
    }

    fn not_before(&self, at: Millis) {
        self.0.fetch_max(at.0, Ordering::AcqRel);
    }
}

/// Ids that count.
#[derive(Debug, Default)]
pub struct Counting(pub u128);

impl Ids for Counting {
    fn next(&mut self) -> u128 {
        self.0 += 1;
        self.0
    }
}

/// A policy of one version.
#[derive(Debug)]
pub struct Always(pub Digest);

impl Policy for Always {
    fn version(&self) -> Digest {
        self.0
    }
}

/// Keeps what was released, for a test to look at and act on.
#[derive(Debug, Default)]
pub struct Collected(Mutex<Vec<Released>>);

impl Collected {
    /// What was released since somebody last asked.
    pub fn take(&self) -> Vec<Released> {
        self.0.lock().map(|mut list| std::mem::take(&mut *list)).unwrap_or_default()
    }
}

impl Outside for Collected {
    fn start(&self, released: Released) {
        if let Ok(mut list) = self.0.lock() {
            list.push(released);
        }
    }

    fn fatal(&self, _: &Fault) {}
}
