//! What is masked of each run: every secret that one of its attempts used, for as long as the run lives.
//!
//! A step can leave a secret in a file, and a later one print it. So a secret is masked in all that a run puts out, whichever
//! step used it. A process that has just started knows of no use; it takes every secret that the run's runbook names,
//! as it is now and as it was given since the run began ([`super::given`]).

use super::Secrets;
use crate::redaction::Redactor;
use crate::shell::Secret;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use windlass_core::id::{Name, RunId};
use windlass_core::time::Millis;

/// How many runs are known before those that have ended are asked for.
const RUNS_MIN: usize = 1_024;

/// The most bytes of values that were changed since a run began and are masked in it, the newest of each secret first.
const EARLIER_MAX: usize = Redactor::TOTAL_MAX / 2;

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

    /// Where they come from.
    #[must_use]
    pub fn secrets(&self) -> &Arc<Secrets> {
        &self.secrets
    }

    fn lock(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The secrets of a run. For one that is not known yet, `names` says which its runbook names, and `began` when it or
    /// what it goes on from was made: what they may have been given since is masked. What is not there, or cannot be masked,
    /// is not used by anybody either.
    #[must_use]
    pub fn of(
        self: &Arc<Self>,
        (run, began): (RunId, Millis),
        tenant: &Name,
        names: impl FnOnce() -> BTreeSet<Name>,
    ) -> OfRun {
        let of = self.later(run);
        if !self.lock().known.contains_key(&run) {
            let names = names();
            let secret = |name: &Name, value| Secret { name: name.to_string(), value };
            let now = names.iter().filter_map(|name| {
                self.secrets.reveal(tenant, name.as_str()).ok().map(|found| secret(name, found.value))
            });
            let mut found: Vec<Secret> = now.collect();
            // What steps use now comes first: they fail where it cannot be masked.
            let mut room = EARLIER_MAX;
            for name in &names {
                for value in self.secrets.given_since(tenant, name.as_str(), began).into_iter().rev() {
                    if found.iter().any(|known| known.value == value) {
                        continue;
                    }
                    let Some(left) = room.checked_sub(value.len()) else { break };
                    room = left;
                    found.push(secret(name, value));
                }
            }
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
