//! Listing and showing runs: those in memory and those in the history, as one.

use super::{Embedded, PAGE_LEN_MAX, RunFilter};
use crate::history;
use crate::log::{self, Log, Seqs};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use windlass_core::id::{Name, RunId, StepId};
use windlass_core::idempotency;
use windlass_core::machine::Beats;
use windlass_core::run::Run;
use windlass_core::runbook::{Pipeline, Runbook};
use windlass_core::step::{self, OutputLost, Step};
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::state::{Body, State, Stream};
use windlass_core::workspace::{self, session};
use windlass_engine::port::Store;

/// The attempts of a run, for whoever follows what they write.
#[derive(Clone, Debug)]
pub struct Followed {
    /// The run's version.
    pub ver: u64,
    /// Whether it has ended.
    pub over: bool,
    /// Its steps.
    pub steps: Vec<Attempts>,
}

/// The attempts of a step, for whoever follows what they write.
#[derive(Clone, Debug)]
pub struct Attempts {
    /// The step.
    pub id: StepId,
    /// Its last epoch.
    pub epochs: u64,
    /// Whether it failed.
    pub failed: bool,
    /// What it wrote and could not be kept.
    pub lost: Option<Box<OutputLost>>,
}

/// How many bytes of records are read for one page of runs. At least one run is.
const READ_BACK_MAX: usize = 16 << 20;

/// A run on a page of a list.
#[derive(Clone, Debug)]
pub enum Listed<T> {
    /// It is in memory, and this is what the caller made of it.
    Live(RunId, T),
    /// It has left memory, and this is what the history knows of it.
    Left(Box<history::Row>),
}

impl<T> Listed<T> {
    /// The run.
    pub fn id(&self) -> RunId {
        match self {
            Listed::Live(id, _) => *id,
            Listed::Left(row) => row.id,
        }
    }
}

/// What a caller made of runs, and the first that was too much to read.
pub type ReadBack<T> = (BTreeMap<RunId, T>, Option<RunId>);

/// Reads runs back from the log. Nobody waits for it but who asked.
///
/// # Errors
/// The log cannot be read.
pub fn read_back<T>(
    log: &Log,
    places: &[(RunId, Seqs)],
    show: impl Fn(&Run) -> T,
) -> Result<ReadBack<T>, log::Error> {
    let (mut shown, mut bytes) = (BTreeMap::new(), 0);
    for (id, seqs) in places {
        if bytes > READ_BACK_MAX {
            return Ok((shown, Some(*id)));
        }
        let mut scratch = State::new();
        log.scan(&[StreamId::Run(*id)], *seqs, &mut |record, line| {
            bytes += line.len();
            // A record that does not follow was checked by the scan already.
            let _ = scratch.fold_event(&record);
            ControlFlow::Continue(())
        })?;
        // One that has left the log meanwhile is shown by what is known of it.
        if let Some(run) = scratch.run(*id) {
            shown.insert(*id, show(run));
        }
    }
    Ok((shown, None))
}

impl RunFilter {
    /// All runs of a namespace.
    #[must_use]
    pub fn of(tenant: &Name, namespace: &Name) -> RunFilter {
        RunFilter {
            tenant: tenant.clone(),
            namespace: namespace.clone(),
            status: None,
            pipeline: None,
            repo: None,
            origin: history::Origin::default(),
            since: None,
            before: None,
            limit: 50,
        }
    }

    fn takes(&self, run: &Run) -> bool {
        let born = &run.born;
        let repo = || born.subject.as_ref().and_then(|subject| subject.repo.as_deref());
        born.home.tenant == self.tenant
            && born.home.namespace == self.namespace
            && self.status.is_none_or(|status| run.status() == status)
            && self.pipeline.as_ref().is_none_or(|pipeline| born.home.pipeline == *pipeline)
            && self.repo.as_deref().is_none_or(|wanted| repo() == Some(wanted))
            && self.since.is_none_or(|since| born.created_at >= since)
            && self.origin.takes(born.home.runbook, &born.trigger)
    }
}

/// The lowest and highest ids that begin with a text, with or without the prefix of their kind.
pub(super) fn range(text: &str, prefix: &str) -> Option<(u128, u128)> {
    const LEN: usize = 26;
    let bare = text.strip_prefix(prefix).unwrap_or(text);
    if bare.is_empty() || bare.len() > LEN || !bare.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return None;
    }
    let fill = |with: char| {
        let padded: String = bare.chars().chain(std::iter::repeat_n(with, LEN - bare.len())).collect();
        // Ids of every kind are written alike after their prefix.
        RunId::parse(&format!("run_{padded}")).ok().map(|id| id.0)
    };
    let low = fill('0')?;
    // The first character holds three bits only, so what is above the highest id is taken as the highest.
    let high = fill('z').unwrap_or(u128::MAX);
    Some((low, high))
}

impl Embedded {
    /// The runs of a namespace that an id, or the beginning of one, means: two at most.
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn find_runs(
        &mut self,
        tenant: &Name,
        namespace: &Name,
        text: &str,
    ) -> Result<Vec<RunId>, history::Error> {
        let Some((low, high)) = range(text, "run_") else { return Ok(Vec::new()) };
        let (low, high) = (RunId(low), RunId(high));
        let is_there = |stream: &Stream| match &stream.body {
            Body::Run(run) => run.born.home.tenant == *tenant && run.born.home.namespace == *namespace,
            // tidy: only runs are looked for.
            _ => false,
        };
        let live = self.live.state.runs_between(low, high).filter(|(_, stream)| is_there(stream));
        let mut found: Vec<RunId> = live.map(|(run, _)| run).take(2).collect();
        if found.len() < 2 {
            let listed = self.live.history.find((tenant, namespace), low, high, 2)?;
            found.extend(listed.into_iter().filter(|run| !self.is_retiring(*run)));
            found.sort_unstable();
            found.dedup();
            found.truncate(2);
        }
        Ok(found)
    }

    /// Whose a run is, in memory or not.
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn tenant_of(&self, run: RunId) -> Result<Option<Name>, history::Error> {
        match self.live.state.run(run) {
            Some(run) => Ok(Some(run.born.home.tenant.clone())),
            None => Ok(self.live.history.get(run)?.map(|row| row.tenant)),
        }
    }

    /// Whether a run ended before a time, or is not known any more.
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn is_past(&self, run: RunId, before: Millis) -> Result<bool, history::Error> {
        let ended = match self.live.state.run(run) {
            Some(run) => run.ending.as_ref().map(|ending| ending.at),
            None => match self.live.history.get(run)? {
                Some(row) => row.completed_at,
                None => return Ok(true),
            },
        };
        Ok(ended.is_some_and(|at| at < before))
    }

    /// The namespace of what a stream is about, where its name does not say: of a run, or of what belongs to one.
    pub fn namespace_of(&self, stream: &StreamId) -> Option<Name> {
        let of_run = |run: RunId| match self.live.state.run(run) {
            Some(run) => Some(run.born.home.namespace.clone()),
            None => self.live.history.get(run).ok().flatten().map(|row| row.namespace),
        };
        let body = || self.live.state.stream(stream).map(|stream| &stream.body);
        match stream {
            StreamId::Run(run) => of_run(*run),
            StreamId::Trigger(_) => match body()? {
                Body::Trigger(key) => match &key.state {
                    idempotency::State::Processing { delivery, .. }
                    | idempotency::State::Completed { delivery, .. }
                    | idempotency::State::Failed { delivery, .. } => of_run(delivery.run?),
                    idempotency::State::Absent | idempotency::State::Expired => None,
                },
                // tidy: the stream of an ingress key holds one.
                _ => None,
            },
            StreamId::Item(_) => match body()? {
                Body::Item(item) => item.body().map(|item| item.lot.namespace.clone()),
                // tidy: the stream of an item holds one.
                _ => None,
            },
            StreamId::Workspace(_) => match body()? {
                Body::Workspace(place) => match &place.state {
                    workspace::State::Creating(spec)
                    | workspace::State::Ready(spec)
                    | workspace::State::Dropping(spec) => of_run(spec.owner?),
                    workspace::State::Absent | workspace::State::Failed | workspace::State::Deleted => None,
                },
                // tidy: the stream of a workspace holds one.
                _ => None,
            },
            StreamId::Session(_) => match body()? {
                Body::Session(session) => match &session.state {
                    session::State::Live(owner) => of_run(owner.run),
                    session::State::Absent | session::State::Deleted => None,
                },
                // tidy: the stream of a session holds one.
                _ => None,
            },
            // tidy: the others say it by their names, or belong to no namespace.
            _ => None,
        }
    }

    /// How many attempts are under way.
    #[must_use]
    pub fn leases(&self) -> u32 {
        self.live.state.indexes().active_total()
    }

    /// A page of runs, newest first, and where the next begins. It looks at a bounded number of runs in memory and shows a
    /// bounded number of bytes, so a page may be short, or empty, and still not be the last.
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn list_runs<T>(
        &mut self,
        filter: &RunFilter,
        show: impl Fn(&Run, &Beats) -> T,
    ) -> Result<(Vec<Listed<T>>, Option<RunId>), history::Error> {
        let wanted = filter.limit + 1;
        let high = filter.before.map_or(u128::MAX, |before| before.0.saturating_sub(1));
        let mut runs: Vec<Listed<T>> = Vec::new();
        let mut bytes = 0;
        // Below this nobody has looked yet.
        let mut floor = None;
        for (seen, (id, stream)) in self.live.state.runs_between(RunId(0), RunId(high)).rev().enumerate() {
            if let Body::Run(run) = &stream.body
                && filter.takes(run)
            {
                bytes += run.vars.as_str().len();
                runs.push(Listed::Live(id, show(run, &self.live.state.beats)));
            }
            if runs.len() == wanted {
                break;
            }
            if seen + 1 == self.scan_max || bytes > PAGE_LEN_MAX {
                floor = Some(id);
                break;
            }
        }
        let page = self.live.history.page(&RunFilter { limit: wanted, ..filter.clone() })?;
        if page.floor > floor {
            // There may be further ones below it.
            floor = page.floor;
            runs.retain(|run| floor.is_none_or(|floor| run.id() >= floor));
        }
        let rows = page.rows;
        for row in rows {
            // One that is still in memory is shown as it is there.
            if self.live.state.run(row.id).is_none()
                && floor.is_none_or(|floor| row.id >= floor)
                && !self.is_retiring(row.id)
            {
                runs.push(Listed::Left(Box::new(row)));
            }
        }
        runs.sort_by_key(|run| std::cmp::Reverse(run.id()));
        let more = runs.len() > filter.limit;
        runs.truncate(filter.limit);
        let next = runs.last().filter(|_| more).map(Listed::id).or(floor);
        Ok((runs, next))
    }

    /// Where in the log the records of runs are that have left memory.
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn places_of(&self, runs: &[RunId]) -> Result<Vec<(RunId, Seqs)>, history::Error> {
        let mut places = Vec::with_capacity(runs.len());
        for run in runs {
            let row = self.live.history.get(*run)?.filter(|_| !self.is_retiring(*run));
            places.extend(row.map(|row| (*run, Seqs { first: row.first_seq, last: row.last_seq })));
        }
        Ok(places)
    }

    /// What a caller makes of a run and its pipeline, where that is known. The run is read back from the log where it has
    /// left memory.
    pub fn show_run<T>(
        &mut self,
        id: RunId,
        show: impl FnOnce(&Run, Option<&Pipeline>, &Beats) -> T,
    ) -> Option<T> {
        self.load(&[StreamId::Run(id)]).ok()?;
        let run = self.live.state.run(id)?;
        Some(show(run, self.pipeline(run), &self.live.state.beats))
    }

    /// The runbook that a run is pinned to.
    #[must_use]
    pub fn runbook(&self, run: &Run) -> Option<&Runbook> {
        match self.live.state.stream(&StreamId::Runbook(run.born.home.runbook)).map(|stream| &stream.body) {
            Some(Body::Runbook(runbook)) => Some(runbook),
            Some(_) | None => None,
        }
    }

    /// The attempts of a run, where it has changed since it had this version; read back from the log where it has left
    /// memory. The outer nothing: there is no such run.
    #[allow(clippy::option_option)] // A run that is not there is not one that has not changed.
    pub fn followed(&mut self, id: RunId, ver: Option<u64>) -> Option<Option<Followed>> {
        self.load(&[StreamId::Run(id)]).ok()?;
        let now = self.live.state.stream(&StreamId::Run(id))?.ver;
        if ver == Some(now) {
            return Some(None);
        }
        let run = self.live.state.run(id)?;
        let step = |step: &Step| Attempts {
            id: step.id.clone(),
            epochs: step.epoch,
            failed: step.status == step::Status::Failed,
            lost: step.output_lost.clone(),
        };
        Some(Some(Followed {
            ver: now,
            over: run.is_terminal(),
            steps: run.steps.iter().map(step).collect(),
        }))
    }

    /// The definition that a run is pinned to.
    #[must_use]
    pub fn pipeline(&self, run: &Run) -> Option<&Pipeline> {
        self.runbook(run)?.pipelines.get(&run.born.home.pipeline)
    }
}
