//! Which directories are a tenant's: where others than the owner may act, no step of another tenant works in, above or below
//! one. These are the directories of its active deployments, and of its runs whose steps have begun.
//!
//! ```text
//!  deployments, live runs ──▶ in the order below, those that overlap none of another tenant ──▶ what others are refused
//! ```
//!
//! First come, first served, with two exceptions: what the owner deployed comes first, and a directory that is named by way
//! of a symbolic link comes after those that are not, because who made the link can point it elsewhere at any time.
//! What everybody has (the system's directories, `/srv`, `/tmp`, what `sandbox:` gives) is no tenant's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use windlass_core::id::{Name, RunId};
use windlass_core::time::Millis;
use windlass_core::turn::state::State;
use windlass_engine::Handle;
use windlass_executor::shell::Author;
use windlass_executor::shell::walls::{self, Sandbox};
use windlass_store::store::Embedded;

/// How long it is good what the paths were found to lead to.
const GOOD: Duration = Duration::from_secs(1);
/// The owner's tenant.
const OWNERS: &str = "default";
/// Places where directories of several tenants lie: none of them is one tenant's.
const SHARED: [&str; 10] =
    ["/srv", "/home", "/root", "/tmp", "/var", "/var/lib", "/var/tmp", "/mnt", "/media", "/data"];

/// The directories of tenants.
pub struct Roots {
    engine: Handle<Embedded>,
    /// What the sandbox of every step gives and never gives.
    sandbox: Sandbox,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    deployed: BTreeMap<(Name, String), Millis>,
    /// Runs whose steps have begun. Those that have ended leave when the paths are looked at again.
    live: BTreeMap<(Name, String), BTreeSet<RunId>>,
    found: Option<(Instant, Arc<Vec<Root>>)>,
}

/// A directory and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Root {
    tenant: Name,
    path: PathBuf,
}

/// What a path leads to; what is not there yet is below what is.
pub(crate) fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    for at in path.ancestors() {
        if let Ok(real) = at.canonicalize() {
            return real.join(path.strip_prefix(at).unwrap_or(Path::new("")));
        }
    }
    path
}

fn overlap(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// Whether a directory can be one tenant's.
fn can_be_ones(path: &Path, sandbox: &Sandbox) -> bool {
    let holds = |place: &Path| place.starts_with(path);
    !walls::is_of_the_system(path)
        && !SHARED.iter().map(Path::new).any(holds)
        && !sandbox.home.as_deref().is_some_and(holds)
        && !sandbox.read.iter().any(|given| holds(&real(given)))
        && !sandbox.write.iter().chain(&sandbox.closed).any(|place| overlap(&real(place), path))
}

/// Those that come first, without what overlaps one of another tenant.
fn first_served(wanted: impl Iterator<Item = (Name, PathBuf)>) -> Vec<Root> {
    let mut served: Vec<Root> = Vec::new();
    for (tenant, path) in wanted {
        if !served.iter().any(|root| root.tenant != tenant && overlap(&root.path, &path)) {
            served.push(Root { tenant, path });
        }
    }
    served
}

impl Roots {
    /// None yet. `sandbox` is what every step's has.
    #[must_use]
    pub fn new(engine: Handle<Embedded>, sandbox: Sandbox) -> Roots {
        Roots { engine, sandbox, table: Mutex::default() }
    }

    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of what is deployed.
    pub fn learn(&self, state: &State) {
        let mut deployed = BTreeMap::<(Name, String), Millis>::new();
        for (tenant, active) in state.deployed().filter(|(_, active)| !active.project_root.is_empty()) {
            let at = deployed.entry((tenant.clone(), active.project_root.clone())).or_insert(active.at);
            *at = (*at).min(active.at);
        }
        let mut table = self.table();
        (table.deployed, table.found) = (deployed, None);
    }

    /// What a command of this tenant may not have, because it is another's.
    ///
    /// # Errors
    /// It may not begin in this directory.
    pub fn of_others(&self, author: &Author, dir: &Path) -> Result<Vec<PathBuf>, String> {
        let tenant = match author {
            Author::Tenant(tenant) => Some(tenant),
            Author::Run { tenant, run, home } => {
                self.hold(tenant, *run, home);
                Some(tenant)
            }
            Author::Nobody | Author::Tool | Author::Configuration => None,
        };
        if *author != Author::Tool {
            self.check(tenant, dir)?;
        }
        let found = self.found();
        let others = found.iter().filter(|root| Some(&root.tenant) != tenant);
        Ok(others.map(|root| root.path.clone()).collect())
    }

    /// Whether a tenant may have a directory.
    ///
    /// # Errors
    /// It is another's, or everybody's.
    pub fn check(&self, tenant: Option<&Name>, dir: &Path) -> Result<(), String> {
        let real = real(dir);
        if tenant.is_none_or(|tenant| tenant.as_str() != OWNERS) && walls::is_of_the_system(&real) {
            return Err(format!(
                "{} is one of the directories that every step reads: give the step another `dir:`",
                dir.display()
            ));
        }
        let is_others = |roots: &[Root]| {
            roots.iter().any(|root| Some(&root.tenant) != tenant && overlap(&root.path, &real))
        };
        if !is_others(&self.found()) {
            return Ok(());
        }
        // A run may have ended since.
        self.table().found = None;
        if !is_others(&self.found()) {
            return Ok(());
        }
        Err(format!(
            "{} is in, above or below the directory of a deployment or a run of another tenant: name another one, with \
             `dir:` for a step or `project_root` for a deployment",
            dir.display()
        ))
    }

    /// A run's directory is its tenant's for as long as it lives.
    fn hold(&self, tenant: &Name, run: RunId, home: &str) {
        let mut table = self.table();
        let runs = table.live.entry((tenant.clone(), home.to_owned())).or_default();
        let is_new = runs.is_empty();
        runs.insert(run);
        if is_new {
            table.found = None;
        }
    }

    fn found(&self) -> Arc<Vec<Root>> {
        let live: Vec<RunId> = {
            let table = self.table();
            if let Some((at, found)) = &table.found
                && at.elapsed() < GOOD
            {
                return found.clone();
            }
            table.live.values().flatten().copied().collect()
        };
        // Without the lock: the engine has its own work to do first.
        let ended = self.ended(live);
        let mut table = self.table();
        table.live.retain(|_, runs| {
            runs.retain(|run| !ended.contains(run));
            !runs.is_empty()
        });
        let own = |tenant: &Name| tenant.as_str() == OWNERS;
        let mut wanted: Vec<_> = table
            .deployed
            .iter()
            .map(|((tenant, root), at)| {
                let path = real(Path::new(root));
                let by_link = std::path::absolute(root).is_ok_and(|named| named != path);
                ((!own(tenant), by_link, *at), tenant.clone(), path)
            })
            .collect();
        wanted.sort_by_key(|(order, _, _)| *order);
        let mut runs: Vec<_> = table
            .live
            .iter()
            .filter_map(|((tenant, home), runs)| {
                Some((*runs.first()?, tenant.clone(), real(Path::new(home))))
            })
            .collect();
        runs.sort_by_key(|(first, _, _)| *first);
        let wanted = wanted.into_iter().map(|(_, tenant, path)| (tenant, path));
        let wanted = wanted.chain(runs.into_iter().map(|(_, tenant, path)| (tenant, path)));
        let found = Arc::new(first_served(wanted.filter(|(_, path)| can_be_ones(path, &self.sandbox))));
        table.found = Some((Instant::now(), found.clone()));
        found
    }

    fn ended(&self, live: Vec<RunId>) -> BTreeSet<RunId> {
        if live.is_empty() {
            return BTreeSet::new();
        }
        let asked = self.engine.read(move |store| {
            let lives = |run: &RunId| store.state().run(*run).is_some_and(|run| !run.is_terminal());
            live.into_iter().filter(|run| !lives(run)).collect()
        });
        // An engine that is gone begins nothing any more.
        asked.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_first_is_served_and_nobody_else_above_or_below() {
        let wanted = [
            ("a", "/srv/a"),
            ("b", "/srv/a"),
            ("b", "/srv"),
            ("b", "/srv/a/x"),
            ("a", "/srv/a/y"),
            ("b", "/srv/ab"),
        ];
        let wanted = wanted.map(|(tenant, path)| (Name::clean(tenant), PathBuf::from(path)));
        let served: Vec<_> = first_served(wanted.into_iter())
            .into_iter()
            .map(|root| format!("{} {}", root.tenant, root.path.display()))
            .collect();
        assert_eq!(served, ["a /srv/a", "a /srv/a/y", "b /srv/ab"]);
    }

    #[test]
    fn what_everybody_has_is_no_tenants() {
        let sandbox = Sandbox {
            read: vec!["/srv/tools".into()],
            write: vec!["/srv/cache".into()],
            closed: vec!["/srv/windlass/data".into()],
            home: Some("/home/ann".into()),
        };
        for path in [
            "/",
            "/srv",
            "/usr",
            "/usr/src/app",
            "/opt/app",
            "/etc/x",
            "/home",
            "/home/ann",
            "/var",
            "/srv/tools",
            "/srv/cache",
            "/srv/cache/x",
            "/srv/windlass",
            "/srv/windlass/data/x",
        ] {
            assert!(!can_be_ones(Path::new(path), &sandbox), "{path}");
        }
        for path in [
            "/srv/acme",
            "/home/ann/acme",
            "/home/bob",
            "/srv/tools/acme",
            "/var/lib/acme",
            "/srv/windlass/acme",
        ] {
            assert!(can_be_ones(Path::new(path), &sandbox), "{path}");
        }
    }

    #[test]
    fn a_path_leads_where_its_links_do_also_below_what_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("a")).unwrap();
        std::os::unix::fs::symlink(root.join("a"), root.join("link")).unwrap();
        assert_eq!(real(&root.join("link/x/y")), root.join("a/x/y"));
        assert_eq!(real(&root.join("link")), root.join("a"));
    }
}
