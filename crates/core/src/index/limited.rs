//! Runbooks with caps of their own: what their runs use of them, and which runs wait until there is room.
//!
//! A runbook's caps hold for its own runs, beside those of the tenant; so they can only tighten. A run that could be leased
//! from and may not is parked instead of standing in line, so that nobody picks it in vain. As many come back into line as
//! there is room for.

use crate::caps::{Caps, Error, Window};
use crate::id::{Name, RunId};
use crate::time::Millis;
use alloc::collections::{BTreeMap, BTreeSet};

/// What the runs of one runbook use, tenant by tenant.
#[derive(Clone, Debug, Default)]
pub(super) struct Limited {
    pub(super) caps: Caps,
    tenants: BTreeMap<Name, Use>,
}

#[derive(Clone, Debug, Default)]
struct Use {
    active: u32,
    /// Runs that a step can be leased of, parked ones among them.
    ready: BTreeSet<RunId>,
    parked: BTreeSet<RunId>,
    window: Window,
}

impl Limited {
    pub(super) fn new(caps: Caps) -> Limited {
        Limited { caps, tenants: BTreeMap::new() }
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
    pub(super) fn ready(&mut self, tenant: &Name, run: RunId, ready: bool) -> bool {
        let full = self.is_full(tenant);
        let usage = self.tenants.entry(tenant.clone()).or_default();
        usage.parked.remove(&run);
        if !ready {
            usage.ready.remove(&run);
            return false;
        }
        usage.ready.insert(run);
        if full {
            usage.parked.insert(run);
        }
        !full
    }

    /// Whether as many steps run as may.
    pub(super) fn is_full(&self, tenant: &Name) -> bool {
        self.admit_step(tenant).is_err()
    }

    /// Takes a parked run that has room by now. Those in line come first: each of them may take a place.
    pub(super) fn unpark(&mut self, tenant: &Name) -> Option<RunId> {
        let max = self.caps.max_concurrency?;
        let usage = self.tenants.get_mut(tenant)?;
        let in_line = usage.ready.len() - usage.parked.len();
        if u64::from(usage.active) + in_line as u64 >= u64::from(max) {
            return None;
        }
        usage.parked.pop_first()
    }

    pub(super) fn admit_step(&self, tenant: &Name) -> Result<(), Error> {
        self.caps.admit_step(self.tenants.get(tenant).map_or(0, |usage| usage.active))
    }

    pub(super) fn admit_run(&self, tenant: &Name, at: Millis) -> Result<(), Error> {
        match self.tenants.get(tenant) {
            Some(usage) => self.caps.admit_run(&usage.window, at),
            None => self.caps.admit_run(&Window::default(), at),
        }
    }

    /// Everything that is parked.
    pub(super) fn parked(&self) -> impl Iterator<Item = RunId> {
        self.tenants.values().flat_map(|usage| usage.parked.iter().copied())
    }

    /// What follows from the streams alone: who is parked and when runs were made is history.
    pub(super) fn derived(&self) -> impl Iterator<Item = (&Name, u32, &BTreeSet<RunId>)> {
        let uses = self.tenants.iter().map(|(tenant, usage)| (tenant, usage.active, &usage.ready));
        uses.filter(|(_, active, ready)| *active > 0 || !ready.is_empty())
    }
}
