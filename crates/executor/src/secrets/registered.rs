//! What is masked of each run: every secret that one of its attempts used, for as long as the run lives.
//!
//! A step can leave a secret in a file, and a later one print it. So a secret is masked in all that a run puts out, whichever
//! step used it. A process that has just started knows of no use; it takes every secret that the run's runbook names.

use super::Secrets;
use crate::redaction::Redactor;
use crate::shell::Secret;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use windlass_core::id::{Name, RunId};

/// How many runs are known before those that have ended are asked for.
const RUNS_MIN: usize = 1_024;

/// The secrets of the runs that live.
pub struct Registered {
    secrets: Arc<Secrets>,
    runs: Mutex<Runs>,
}

#[derive(Default)]
struct Runs {
    known: BTreeMap<RunId, Vec<Secret>>,
    /// How many there may be until somebody looks which have ended.
    limit: usize,
}

/// The secrets of one run.
#[derive(Clone)]
pub struct OfRun {
    all: Arc<Registered>,
    run: RunId,
}

impl Registered {
    /// Those of a place that has secrets.
    #[must_use]
    pub fn new(secrets: Arc<Secrets>) -> Arc<Registered> {
        let runs = Mutex::new(Runs { known: BTreeMap::new(), limit: RUNS_MIN });
        Arc::new(Registered { secrets, runs })
    }

    fn lock(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The secrets of a run. For one that is not known yet, `names` says which its runbook names; what is not there, or
    /// cannot be masked, is not used by anybody either.
    #[must_use]
    pub fn of(self: &Arc<Self>, run: RunId, tenant: &Name, names: impl FnOnce() -> BTreeSet<Name>) -> OfRun {
        let of = self.later(run);
        if !self.lock().known.contains_key(&run) {
            let found =
                names().into_iter().filter_map(|name| self.secrets.reveal(tenant, name.as_str()).ok());
            let found: Vec<Secret> =
                found.map(|found| Secret { name: found.name, value: found.value }).collect();
            // Another attempt of the run may have come first, and used some.
            self.lock().known.entry(run).or_default();
            found.into_iter().for_each(|secret| of.note(secret));
        }
        of
    }

    /// The secrets of a run, known or not: none until somebody asks for them with the names, or notes one.
    #[must_use]
    pub fn later(self: &Arc<Self>, run: RunId) -> OfRun {
        OfRun { all: self.clone(), run }
    }

    /// The secrets of a run that is known.
    #[must_use]
    pub fn known(self: &Arc<Self>, run: RunId) -> Option<OfRun> {
        self.lock().known.contains_key(&run).then(|| self.later(run))
    }

    /// The runs that are known, when there are so many that somebody should look which of them have ended.
    #[must_use]
    pub fn too_many(&self) -> Option<Vec<RunId>> {
        let mut runs = self.lock();
        if runs.known.len() < runs.limit {
            return None;
        }
        // Nobody else looks meanwhile.
        runs.limit = runs.known.len() * 2;
        Some(runs.known.keys().copied().collect())
    }

    /// Forgets runs that have ended.
    pub fn forget(&self, ended: &[RunId]) {
        let mut runs = self.lock();
        ended.iter().for_each(|run| drop(runs.known.remove(run)));
        runs.limit = (runs.known.len() * 2).max(RUNS_MIN);
    }
}

impl OfRun {
    /// What masks them.
    #[must_use]
    pub fn redactor(&self) -> Redactor {
        let mut redactor = Redactor::new();
        for secret in self.values() {
            // One that cannot be masked was used by nobody.
            let _ = redactor.register(&secret.name, secret.value.as_bytes());
        }
        redactor
    }

    /// From now on this is masked too.
    pub fn note(&self, secret: Secret) {
        let mut runs = self.all.lock();
        let known = runs.known.entry(self.run).or_default();
        // One that was changed meanwhile is another secret, and both are masked.
        if known.iter().all(|one| one.value != secret.value) {
            known.push(secret);
        }
    }

    /// All that is masked.
    #[must_use]
    pub fn values(&self) -> Vec<Secret> {
        self.all.lock().known.get(&self.run).cloned().unwrap_or_default()
    }
}
