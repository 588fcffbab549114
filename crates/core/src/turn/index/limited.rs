//! Runbooks with caps of their own: what their runs use of them, and which runs wait until there is room.
//!
//! A runbook's caps hold for its own runs, beside those of the tenant; so they can only tighten. All versions of one name
//! are counted together, and each run is held to the caps of the version it is pinned to: a new version cannot begin
//! anew beside the old one. A run that could be leased from and may not is parked instead of standing in line, so that
//! nobody picks it in vain. As many come back into line as there is room for.

use crate::caps::{Caps, Error, Window};
use crate::digest::Digest;
use crate::id::{Name, RunId};
use crate::time::Millis;
use alloc::collections::{BTreeMap, BTreeSet};

/// What the runs of one runbook use, in all its versions, tenant by tenant.
#[derive(Clone, Debug, Default)]
pub(super) struct Limited {
    /// The caps of each version that has some.
    caps: BTreeMap<Digest, Caps>,
    tenants: BTreeMap<Name, Use>,
}

#[derive(Clone, Debug, Default)]
struct Use {
    active: u32,
    /// Runs that a step can be leased of, parked ones among them.
    ready: BTreeSet<RunId>,
    /// Those that may not, by the version whose caps say so.
    parked: BTreeMap<Digest, BTreeSet<RunId>>,
    window: Window,
}

impl Use {
    fn parked_len(&self) -> usize {
        self.parked.values().map(BTreeSet::len).sum()
    }

    fn unpark(&mut self, version: &Digest, run: RunId) {
        if let Some(runs) = self.parked.get_mut(version) {
            runs.remove(&run);
            if runs.is_empty() {
                self.parked.remove(version);
            }
        }
    }
}

impl Limited {
    /// A version has these caps.
    pub(super) fn cap(&mut self, version: Digest, caps: Caps) {
        self.caps.insert(version, caps);
    }

    /// A version is gone; says whether another still has caps.
    pub(super) fn uncap(&mut self, version: &Digest) -> bool {
        self.caps.remove(version);
        !self.caps.is_empty()
    }

    fn caps(&self, version: &Digest) -> Caps {
        self.caps.get(version).copied().unwrap_or_default()
    }

    /// A run was made.
    pub(super) fn made(&mut self, tenant: &Name, at: Millis) {
        self.tenants.entry(tenant.clone()).or_default().window.record(at);
    }

    /// A run has so many steps under way, and had so many.
    pub(super) fn moved(&mut self, tenant: &Name, was: u32, is: u32) {
        let usage = self.tenants.entry(tenant.clone()).or_default();
        usage.active = (usage.active + is).saturating_sub(was);
    }

    /// A step of the run can be leased, or none can. Says whether it may stand in line.
    pub(super) fn ready(&mut self, tenant: &Name, version: &Digest, run: RunId, ready: bool) -> bool {
        let full = self.admit_step(tenant, version).is_err();
        let usage = self.tenants.entry(tenant.clone()).or_default();
        usage.unpark(version, run);
        if !ready {
            usage.ready.remove(&run);
            return false;
        }
        usage.ready.insert(run);
        if full {
            usage.parked.entry(*version).or_default().insert(run);
        }
        !full
    }

    /// Takes a parked run that has room by now. Those in line come first: each of them may take a place.
    pub(super) fn unpark(&mut self, tenant: &Name) -> Option<RunId> {
        let Limited { caps, tenants } = self;
        let usage = tenants.get_mut(tenant)?;
        let in_line = usage.ready.len() - usage.parked_len();
        let used = u64::from(usage.active) + in_line as u64;
        let has_room = |version: &&Digest| {
            let max = caps.get(*version).and_then(|caps| caps.max_concurrency);
            max.is_none_or(|max| used < u64::from(max))
        };
        let version = *usage.parked.keys().find(has_room)?;
        let run = usage.parked.get(&version)?.first().copied()?;
        usage.unpark(&version, run);
        Some(run)
    }

    pub(super) fn admit_step(&self, tenant: &Name, version: &Digest) -> Result<(), Error> {
        self.caps(version).admit_step(self.tenants.get(tenant).map_or(0, |usage| usage.active))
    }

    pub(super) fn admit_run(
        &self,
        tenant: &Name,
        version: &Digest,
        beside: usize,
        at: Millis,
    ) -> Result<(), Error> {
        match self.tenants.get(tenant) {
            Some(usage) => self.caps(version).admit_run(&usage.window, beside, at),
            None => self.caps(version).admit_run(&Window::default(), beside, at),
        }
    }

    /// Everything that is parked.
    pub(super) fn parked(&self) -> impl Iterator<Item = RunId> {
        self.tenants.values().flat_map(|usage| usage.parked.values().flatten().copied())
    }

    /// What follows from the streams alone: who is parked and when runs were made is history.
    pub(super) fn derived(&self) -> impl Iterator<Item = (&Name, u32, &BTreeSet<RunId>)> {
        let uses = self.tenants.iter().map(|(tenant, usage)| (tenant, usage.active, &usage.ready));
        uses.filter(|(_, active, ready)| *active > 0 || !ready.is_empty())
    }
}
