//! Listing and showing runs: those in memory and those in the history, as one.

use super::{Embedded, RunFilter};
use crate::history;
use crate::shape;
use serde_json::Value;
use windlass_core::id::{Name, RunId};
use windlass_core::run::Run;
use windlass_core::runbook::Pipeline;
use windlass_core::state::{Body, Stream};
use windlass_core::stream::StreamId;
use windlass_core::workspace::{self, session};
use windlass_engine::port::Store;

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

    /// The namespace of what a stream is about, where its name does not say: of a run, or of what belongs to one.
    pub fn namespace_of(&self, stream: &StreamId) -> Option<Name> {
        let of_run = |run: RunId| match self.live.state.run(run) {
            Some(run) => Some(run.born.home.namespace.clone()),
            None => self.live.history.get(run).ok().flatten().map(|row| row.namespace),
        };
        let body = || self.live.state.stream(stream).map(|stream| &stream.body);
        match stream {
            StreamId::Run(run) => of_run(*run),
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

    /// A page of runs, newest first, and where the next begins. It looks at a bounded number of runs in memory, so a page
    /// may be short, or empty, and still not be the last.
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn list_runs(&mut self, filter: &RunFilter) -> Result<(Vec<Value>, Option<RunId>), history::Error> {
        let wanted = filter.limit + 1;
        let high = filter.before.map_or(u128::MAX, |before| before.0.saturating_sub(1));
        let mut runs: Vec<(RunId, Value)> = Vec::new();
        // Below this nobody has looked yet.
        let mut floor = None;
        for (seen, (id, stream)) in self.live.state.runs_between(RunId(0), RunId(high)).rev().enumerate() {
            if let Body::Run(run) = &stream.body
                && filter.takes(run)
            {
                runs.push((id, shape::run(run, None, false)));
            }
            if runs.len() == wanted {
                break;
            }
            if seen + 1 == self.scan_max {
                floor = Some(id);
                break;
            }
        }
        for row in self.live.history.list(&RunFilter { limit: wanted, ..filter.clone() })? {
            // One that is still in memory is shown as it is there.
            if self.live.state.run(row.id).is_none()
                && floor.is_none_or(|floor| row.id > floor)
                && !self.is_retiring(row.id)
                && let Ok(value) = serde_json::from_str(&row.json)
            {
                runs.push((row.id, value));
            }
        }
        runs.sort_by_key(|(id, _)| std::cmp::Reverse(*id));
        let more = runs.len() > filter.limit;
        runs.truncate(filter.limit);
        let next = runs.last().filter(|_| more).map(|(id, _)| *id).or(floor);
        Ok((runs.into_iter().map(|(_, value)| value).collect(), next))
    }

    /// A run, read back from the log where it has left memory.
    pub fn show_run(&mut self, id: RunId, steps: bool) -> Option<Value> {
        self.load(&[StreamId::Run(id)]).ok()?;
        let run = self.live.state.run(id)?;
        Some(shape::run(run, self.pipeline(run), steps))
    }

    /// The definition that a run is pinned to.
    #[must_use]
    pub fn pipeline(&self, run: &Run) -> Option<&Pipeline> {
        match self.live.state.stream(&StreamId::Runbook(run.born.home.runbook)).map(|stream| &stream.body) {
            Some(Body::Runbook(runbook)) => runbook.pipelines.get(&run.born.home.pipeline),
            Some(_) | None => None,
        }
    }
}
