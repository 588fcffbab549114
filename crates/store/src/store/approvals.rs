//! Approvals: those of runs in memory by an index, and those of runs that have left it by the history.

use super::Embedded;
use super::listing::range;
use crate::history;
use std::collections::BTreeMap;
use windlass_core::approval::{Approval, Status};
use windlass_core::id::{ApprovalId, Name, RunId};
use windlass_core::stream::StreamId;
use windlass_engine::port::{Fault, Store as _};

/// How many approvals of the history the beginning of an id may mean, those of others included.
const MEANT_MAX: usize = 100;

/// Why approvals could not be looked up.
#[derive(Debug, thiserror::Error)]
pub enum Lookup {
    /// The history.
    #[error(transparent)]
    History(#[from] history::Error),
    /// The log.
    #[error("a run that has left memory cannot be read back: {0}")]
    Log(Fault),
}

/// Which approvals a list shows, in the order in which they were asked for.
#[derive(Clone, Debug)]
pub struct ApprovalFilter {
    /// Whose.
    pub tenant: Name,
    /// The subdivision.
    pub namespace: Name,
    /// How they stand.
    pub status: Option<Status>,
    /// Those after this one: where the page before ended.
    pub after: Option<ApprovalId>,
    /// How many at most.
    pub limit: usize,
}

impl Embedded {
    /// The run of an approval, in memory or not.
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn approval_run(&self, id: ApprovalId) -> Result<Option<RunId>, history::Error> {
        if let Some(run) = self.live.state.indexes().approval(id) {
            return Ok(Some(run));
        }
        let listed = self.live.history.approvals(id, id, 1)?;
        Ok(listed.into_iter().map(|(_, run)| run).find(|run| !self.is_retiring(*run)))
    }

    /// The approvals of a namespace that an id, or the beginning of one, means: two at most. A run that has left memory
    /// is read back for it.
    ///
    /// # Errors
    /// The history or the log cannot be read.
    pub fn find_approvals(
        &mut self,
        (tenant, namespace): (&Name, &Name),
        text: &str,
    ) -> Result<Vec<Approval>, Lookup> {
        let Some((low, high)) = range(text, "apr_") else { return Ok(Vec::new()) };
        let state = &self.live.state;
        let is_there = |run: RunId| {
            state
                .run(run)
                .is_some_and(|run| run.born.home.tenant == *tenant && run.born.home.namespace == *namespace)
        };
        let live = state.indexes().approvals_from(ApprovalId(low)).take(self.scan_max);
        let live = live.take_while(|(id, _)| id.0 <= high).filter(|(_, run)| is_there(*run));
        let mut meant: BTreeMap<ApprovalId, RunId> = live.take(2).collect();
        if meant.len() < 2 {
            for (id, run) in self.live.history.approvals(ApprovalId(low), ApprovalId(high), MEANT_MAX)? {
                let row = self.live.history.get(run)?;
                let mine = row.is_some_and(|row| row.tenant == *tenant && row.namespace == *namespace);
                if mine && !self.is_retiring(run) {
                    meant.insert(id, run);
                }
            }
        }
        let mut found = Vec::new();
        for (id, run) in meant.into_iter().take(2) {
            self.load(&[StreamId::Run(run)]).map_err(Lookup::Log)?;
            found.extend(self.live.state.run(run).and_then(|run| run.rare().approvals.get(&id)).cloned());
        }
        Ok(found)
    }

    /// A page of the approvals of runs in memory, and where the next begins. It looks at a bounded number of them, so a
    /// page may be short and still not be the last.
    #[must_use]
    pub fn list_approvals(&self, filter: &ApprovalFilter) -> (Vec<Approval>, Option<ApprovalId>) {
        let state = &self.live.state;
        let from = filter.after.map_or(ApprovalId(0), |after| ApprovalId(after.0.saturating_add(1)));
        let (mut page, mut last) = (Vec::new(), None);
        for (seen, (id, run)) in state.indexes().approvals_from(from).enumerate() {
            if page.len() == filter.limit || seen == self.scan_max {
                return (page, last);
            }
            last = Some(id);
            let Some(run) = state.run(run) else { continue };
            let home = &run.born.home;
            let mine = home.tenant == filter.tenant && home.namespace == filter.namespace;
            let wanted = |approval: &&Approval| filter.status.is_none_or(|status| approval.status == status);
            if let Some(approval) = run.rare().approvals.get(&id).filter(|_| mine).filter(wanted) {
                page.push(approval.clone());
            }
        }
        (page, None)
    }
}
