//! What each tenant keeps in memory of what it may keep: counted from the cards of its streams.

use super::sets::count;
use super::{Card, Indexes, Kind};
use crate::caps::Kept;
use crate::id::Name;
use crate::stream::StreamId;

impl Card {
    /// What the stream keeps of what a tenant may keep.
    fn kept(&self) -> Kept {
        match &self.kind {
            Kind::Run(run) => Kept { vars_len: u64::from(run.vars_len), ..Kept::default() },
            Kind::Signals(kept) => **kept,
            Kind::Runbook(book) => book.1,
            Kind::Lock(_) => Kept { locks: 1, ..Kept::default() },
            Kind::Semaphore(_) => Kept { semaphores: 1, ..Kept::default() },
            Kind::Plain | Kind::Item(_) | Kind::Worker(_) => Kept::default(),
        }
    }
}

impl Indexes {
    /// Counts what a stream keeps of what its tenant may keep.
    pub(super) fn file_kept(&mut self, id: &StreamId, old: &Card, new: &Card) {
        let (was, is) = (old.kept(), new.kept());
        if was == is {
            return;
        }
        let tenant = match (id, &new.kind, &old.kind) {
            (StreamId::Signal(name) | StreamId::Lock(name) | StreamId::Semaphore(name), ..) => {
                Some(Name::clean(name.tenant()))
            }
            (_, Kind::Runbook(book), _) | (_, Kind::Plain, Kind::Runbook(book)) => Some(book.0.clone()),
            // tidy: of all others only runs keep something.
            _ => new.run().or(old.run()).map(|run| run.home.tenant.clone()),
        };
        if let Some(tenant) = tenant {
            count(&mut self.kept, &tenant, is, true);
            count(&mut self.kept, &tenant, was, false);
        }
    }

    /// What a tenant keeps in memory.
    #[must_use]
    pub fn kept(&self, tenant: &Name) -> Kept {
        self.kept.get(tenant).copied().unwrap_or_default()
    }
}
