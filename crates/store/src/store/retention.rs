//! Retention: what ended long ago leaves the history and the log.
//!
//! Runs are nowhere to be found from the moment they are chosen, then their records leave the log, and then their rows the
//! history. A process that ends in between finds them again at the next time, because their rows are still there. Items
//! and keys are chosen by the log itself: by the time of the last record of each that is in memory no more.
//!
//! An effect key leaves with the last run of its lineage, because then nobody can retry it. One that the runbook widened
//! beyond its lineage stays for ever.
//!
//! A runbook leaves that nothing refers to: neither a run that is listed, nor a deployment, worker or schedule. It is out of
//! memory from the moment it is chosen, so whoever runs or deploys it asks the store for it, and then it stays.

use super::live::is_named;
use super::{Embedded, families, fault};
use crate::history::{self, History};
use crate::log::{Batch, Compacted, Entry, Error, Head, Log, Rule, Seqs};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use windlass_core::digest::Digest;
use windlass_core::id::{ItemId, RunId, Scoped};
use windlass_core::item::Item;
use windlass_core::schedule;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::state::Body;
use windlass_engine::fast::Set;
use windlass_engine::port::{Fault, Store as _};

/// How many runs leave at once. More leave the next time.
const RETIRED_MAX: usize = 200_000;
/// How many are looked at, where most of them stay because one of their family does.
const LOOKED_MAX: usize = 1_600_000;
/// How many runbooks are chosen at once. More leave the next time.
const RUNBOOKS_MAX: usize = 1_000;
/// How many runs of a lineage are looked at. A lineage with more of them stays until some have left.
const LINEAGE_MAX: usize = 10_000;

/// What ended before these times may leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// Runs, with the keys of their effects.
    pub runs: Millis,
    /// Items that are done.
    pub items: Millis,
    /// Ingress keys, and events that were kept for them.
    pub keys: Millis,
    /// Runbooks that nothing refers to.
    pub runbooks: Millis,
}

/// Items that failed or died a while ago.
#[derive(Debug, Default)]
pub struct FailedItems {
    /// Which.
    pub items: Vec<ItemId>,
    /// Where to go on looking; nothing where all were looked at.
    pub next: Option<ItemId>,
}

/// What leaves, and the log that it leaves. It is carried out wherever there is time for it.
pub struct Retiring {
    log: Arc<Log>,
    history: Arc<History>,
    before: Before,
    runs: Arc<Set<RunId>>,
    runbooks: BTreeSet<Digest>,
    /// The lineages of runs in memory.
    roots: Set<RunId>,
    /// Named streams in memory: one that was read back may go on before the log hears of it.
    held: Set<StreamId>,
    going: Arc<Mutex<Going>>,
    /// One of so many bytes must go, or it is not worth a copy of the rest; 0 where it always is.
    share: u64,
    /// The last record that a seal covers; what is newer stays.
    sealed_through: u64,
}

/// What is about to go, and what came back meanwhile.
#[derive(Default)]
pub(super) struct Going {
    /// Whether anything is about to go.
    active: bool,
    back: BTreeSet<StreamId>,
    gone: BTreeSet<StreamId>,
}

impl Going {
    /// A stream is read back; says whether it is gone. Where it is not, it will not go before the next time.
    pub(super) fn comes_back(&mut self, stream: &StreamId) -> bool {
        if self.active && !self.gone.contains(stream) {
            self.back.insert(stream.clone());
        }
        self.gone.contains(stream)
    }

    /// A stream that went begins anew.
    pub(super) fn came_again(&mut self, stream: &StreamId) {
        self.gone.remove(stream);
    }
}

pub(super) fn lock(going: &Mutex<Going>) -> MutexGuard<'_, Going> {
    going.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The version of a runbook that a stream cannot do without.
fn used_runbook(body: &Body) -> Option<Digest> {
    match body {
        Body::Run(run) => Some(run.born.home.runbook),
        Body::Deployment(active) => active.as_ref().as_ref().map(|active| active.hash),
        Body::Worker(worker) => worker.settings().map(|settings| settings.runbook_hash),
        Body::Schedule(plan) => match &plan.state {
            schedule::State::Active(settings) | schedule::State::Paused(settings) => {
                Some(settings.runbook_hash)
            }
            schedule::State::Absent | schedule::State::Removed => None,
        },
        // tidy: nothing else runs one.
        _ => None,
    }
}

/// The first run of the lineage that an effect key belongs to; none where it is wider.
fn root_of(key: &Scoped) -> Option<RunId> {
    RunId::parse(key.name().split_once('/')?.0).ok()
}

impl Retiring {
    /// The log that they leave.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// How many runs leave.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether neither a run nor a runbook leaves.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.runbooks.is_empty()
    }

    /// It is carried out only where one of so many bytes can go.
    #[must_use]
    pub fn worth(mut self, share: u64) -> Retiring {
        self.share = share;
        self
    }

    /// It is carried out only where seals cover everything that goes, up to this record.
    #[must_use]
    pub fn sealed(mut self, through: u64) -> Retiring {
        self.sealed_through = through;
        self
    }

    /// Takes their records out of the log. `note` puts on record that locks and semaphores with epochs up to a number go, and
    /// says whether it did; it is called before anything goes.
    ///
    /// # Errors
    /// As for any compaction; the log is as it was then.
    pub fn carry_out(&self, note: &dyn Fn(u64) -> bool) -> Result<Compacted, Error> {
        self.log.compact(&Noting { retiring: self, note })
    }

    /// The runs of which nothing is in the log any more.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn gone(&self) -> Result<Vec<RunId>, Error> {
        let gone = lock(&self.going).gone.clone();
        let mut runs = Vec::with_capacity(self.runs.len());
        for run in self.runs.iter() {
            let stream = StreamId::Run(*run);
            let mut there = false;
            if !gone.contains(&stream) {
                // It went before, or somebody wrote to it lately.
                self.log.scan(std::slice::from_ref(&stream), Seqs::ALL, &mut |_, _| {
                    there = true;
                    ControlFlow::Break(())
                })?;
            }
            if !there {
                runs.push(*run);
            }
        }
        Ok(runs)
    }

    /// Whether a run of a lineage is kept.
    fn keeps(&self, root: RunId) -> bool {
        if self.roots.contains(&root) {
            return true;
        }
        // What cannot be looked up is kept.
        let Ok(lineage) = self.history.lineage(root, LINEAGE_MAX) else { return true };
        lineage.len() == LINEAGE_MAX || lineage.iter().any(|run| !self.runs.contains(run))
    }
}

/// A retirement with the way to put on record what must be known of what goes.
struct Noting<'a> {
    retiring: &'a Retiring,
    note: &'a dyn Fn(u64) -> bool,
}

impl Rule for Noting<'_> {
    fn stays(&self, stream: &StreamId, last: Millis) -> bool {
        self.retiring.stays(stream, last)
    }

    fn carried_before(&self) -> Millis {
        self.retiring.carried_before()
    }

    fn is_noted(&self, epochs: u64) -> bool {
        (self.note)(epochs)
    }

    fn may_roll(&self) -> bool {
        self.retiring.may_roll()
    }

    fn sealed_through(&self) -> u64 {
        self.retiring.sealed_through
    }

    fn is_worth(&self, found: &Compacted) -> bool {
        self.retiring.is_worth(found)
    }

    fn replacing(
        &self,
        dropped: &BTreeSet<StreamId>,
        replace: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.retiring.replacing(dropped, replace)
    }
}

impl Rule for Retiring {
    fn stays(&self, stream: &StreamId, last: Millis) -> bool {
        match stream {
            named if self.held.contains(named) => true,
            StreamId::Run(run) => !self.runs.contains(run),
            StreamId::Runbook(hash) => !self.runbooks.contains(hash),
            StreamId::Item(_) => last >= self.before.items,
            StreamId::Trigger(_) | StreamId::Signal(_) | StreamId::Lock(_) | StreamId::Semaphore(_) => {
                last >= self.before.keys
            }
            StreamId::Effect(key) => {
                last >= self.before.runs || root_of(key).is_none_or(|root| self.keeps(root))
            }
            // tidy: the others go on.
            _ => true,
        }
    }

    fn carried_before(&self) -> Millis {
        self.before.keys
    }

    fn may_roll(&self) -> bool {
        true
    }

    fn is_worth(&self, found: &Compacted) -> bool {
        let all = found.bytes_kept.saturating_add(found.bytes_dropped);
        found.bytes_dropped > 0 && (self.share == 0 || found.bytes_dropped.saturating_mul(self.share) >= all)
    }

    fn replacing(
        &self,
        dropped: &BTreeSet<StreamId>,
        replace: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut going = lock(&self.going);
        if !dropped.is_disjoint(&going.back) {
            return Ok(());
        }
        replace()?;
        going.gone.clone_from(dropped);
        Ok(())
    }
}

impl Embedded {
    /// Chooses the runs that ended before a time and have left memory. They are gone for everybody from here on.
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn retire(&mut self, before: Before) -> Result<Retiring, history::Error> {
        self.retiring = Arc::new(self.choose_runs(before.runs)?);
        let runbooks = self.choose_runbooks(before.runbooks)?;
        let live = self.live.state.runs_between(RunId(0), RunId(u128::MAX));
        let roots =
            live.filter_map(|(run, _)| Some(self.live.state.run(run)?.born.lineage().root_run)).collect();
        let held = self.live.state.others().map(|(stream, _)| stream);
        let held = held.filter(is_named).collect();
        self.going = Arc::new(Mutex::new(Going { active: true, ..Going::default() }));
        Ok(Retiring {
            log: self.log.clone(),
            history: self.live.history.clone(),
            before,
            runs: self.retiring.clone(),
            runbooks,
            roots,
            held,
            going: self.going.clone(),
            share: 0,
            sealed_through: u64::MAX,
        })
    }

    /// Chooses runs that ended before a time, have left memory, and are needed by nobody who stays.
    fn choose_runs(&self, before: Millis) -> Result<Set<RunId>, history::Error> {
        let state = &self.live.state;
        let mut held: Set<RunId> = Set::default();
        for (id, _) in state.runs_between(RunId(0), RunId(u128::MAX)) {
            held.insert(id);
            if let Some(run) = state.run(id) {
                held.extend(run.born.kin());
                held.extend(run.born.needs.iter().filter(|_| !run.is_terminal()));
            }
        }
        let mut looked = RETIRED_MAX;
        loop {
            let ended = self.live.history.ended_before(before, looked)?;
            let all = ended.len() < looked || looked >= LOOKED_MAX;
            let ended = ended.into_iter().filter(|run| !held.contains(run)).collect();
            let runs = families::whole(&self.live.history, ended, &held)?;
            // Families that stay must not keep those that were made after them.
            if all || runs.len() >= RETIRED_MAX / 2 {
                return Ok(runs);
            }
            looked = looked.saturating_mul(2);
        }
    }

    /// Takes runbooks out of memory that were stored before a time and that nothing refers to, a bounded number of them;
    /// returns all that are about to leave the log.
    fn choose_runbooks(&mut self, before: Millis) -> Result<BTreeSet<Digest>, history::Error> {
        // A snapshot under way counts on what it has not taken yet.
        if self.saving.is_some() {
            return Ok(self.live.leaving.clone());
        }
        let state = &self.live.state;
        let runs = state.runs_between(RunId(0), RunId(u128::MAX)).map(|(_, stream)| stream);
        let others = state.others().map(|(_, stream)| stream);
        let used: BTreeSet<Digest> =
            runs.chain(others).filter_map(|stream| used_runbook(&stream.body)).collect();
        let stored = state.streams_from(StreamId::Runbook(Digest([0; 32])));
        let stored = stored.map_while(|(id, stream)| match id {
            StreamId::Runbook(hash) => Some((*hash, stream.at)),
            // tidy: the next kind begins.
            _ => None,
        });
        let idle = stored.filter(|(hash, at)| *at < before && !used.contains(hash)).map(|(hash, _)| hash);
        let mut chosen = Vec::new();
        for hash in idle {
            if chosen.len() == RUNBOOKS_MAX {
                break;
            }
            if !self.live.history.has_runbook(&hash)? {
                chosen.push(hash);
            }
        }
        let mut gone = Vec::with_capacity(chosen.len());
        for hash in chosen {
            self.live.state.evict(&StreamId::Runbook(hash));
            self.live.leaving.insert(hash);
            gone.push(Entry::Forget(StreamId::Runbook(hash)));
        }
        if !gone.is_empty() {
            self.log.submit(Batch { entries: gone, done: Box::new(|_| {}) });
        }
        Ok(self.live.leaving.clone())
    }

    /// Runbooks that were to leave the log and did not are in memory again.
    pub(super) fn runbooks_stay(&mut self, went: &BTreeSet<StreamId>) {
        self.live.leaving.retain(|hash| !went.contains(&StreamId::Runbook(*hash)));
        for hash in self.live.leaving.clone() {
            // One that cannot be read stays out of memory, and is read when somebody wants it.
            let _ = self.load_runbook(hash);
        }
    }

    /// Reads a runbook back that was about to leave the log. It cannot be dropped any more, unless it was.
    pub(super) fn load_runbook(&mut self, hash: Digest) -> Result<(), Fault> {
        if !self.live.leaving.contains(&hash) {
            return Ok(());
        }
        let stream = StreamId::Runbook(hash);
        if !lock(&self.going).comes_back(&stream) {
            let (state, mut head) = (&mut self.live.state, None);
            let scanned = self.log.scan(std::slice::from_ref(&stream), Seqs::ALL, &mut |record, _| {
                head = Some(Head { ver: record.ver, head: record.chain });
                // The scan has checked that it follows.
                let _ = state.fold_event(&record);
                ControlFlow::Continue(())
            });
            scanned.map_err(|error| fault(&error))?;
            self.live.state.refresh(&stream);
            // Nothing is written to it, so nobody else would tell the log, and no snapshot would be whole.
            let entries = head.map(|head| Entry::Remember(stream, head)).into_iter().collect();
            self.log.submit(Batch { entries, done: Box::new(|_| {}) });
        }
        self.live.leaving.remove(&hash);
        Ok(())
    }

    /// These runs are out of the log; the others that were chosen stay for another time. Those that went are known until
    /// the next time, because their rows leave the history a little later. `anything` says whether records left the log.
    pub fn retired(&mut self, gone: &[RunId], anything: bool) {
        self.retiring = Arc::new(gone.iter().copied().collect());
        if !gone.is_empty() {
            self.live.history.remove(gone);
        }
        let went = {
            let mut going = lock(&self.going);
            going.active = false;
            going.back.clear();
            std::mem::take(&mut going.gone)
        };
        self.runbooks_stay(&went);
        let names = went.iter().filter(|stream| is_named(stream)).map(ToString::to_string);
        self.live.history.remove_streams(names.collect());
        if anything || !went.is_empty() {
            // Those from before would bring them back, so they were removed.
            self.save();
        }
    }

    /// The oldest run that is in memory or in the log.
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn oldest_run(&self) -> Result<Option<RunId>, history::Error> {
        let live = self.live.state.runs_between(RunId(0), RunId(u128::MAX)).next().map(|(run, _)| run);
        let ended = self.live.history.ended_before(Millis(u64::MAX >> 16), 1)?.first().copied();
        Ok([live, ended].into_iter().flatten().min())
    }

    /// How many runs could be chosen.
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn ended_before(&self, before: Millis) -> Result<usize, history::Error> {
        Ok(self.choose_runs(before)?.len())
    }

    /// Looks at so many items after one, and finds those that failed or died before a time.
    #[must_use]
    pub fn failed_items(&self, after: ItemId, before: Millis, count: usize) -> FailedItems {
        let mut found = FailedItems::default();
        let after = StreamId::Item(after);
        let items = self.live.state.streams_after(Some(&after));
        let items = items.map_while(|(_, stream)| match &stream.body {
            Body::Item(item) => Some((item, stream.at)),
            // tidy: the next kind begins.
            _ => None,
        });
        let mut seen = 0;
        for (item, at) in items.take(count) {
            seen += 1;
            let Some(body) = item.body() else { continue };
            found.next = Some(body.id);
            if at < before && matches!(**item, Item::Failed { .. } | Item::Dead { .. }) {
                found.items.push(body.id);
            }
        }
        if seen < count {
            found.next = None;
        }
        found
    }

    /// Lets everything that has ended leave memory, as soon as it may; says whether there is more.
    pub fn let_all_leave(&mut self) -> bool {
        self.idle(Millis(u64::MAX / 2));
        self.lingering() > 0 || self.saving.is_some()
    }

    /// Whether a run is about to leave.
    pub(super) fn is_retiring(&self, run: RunId) -> bool {
        self.retiring.contains(&run)
    }

    /// How many runs the history has.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn listed(&self) -> Result<u64, history::Error> {
        self.live.history.count()
    }
}
