//! Small changes to ordered sets and counts, of which nothing empty is kept.

use crate::id::{Name, RunId};
use crate::run::{BlockedOn, Home, Run};
use crate::stream::StreamId;
use crate::time::Millis;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// What a blocked run waits for: one run, or any of a pipeline (tenant, namespace, name).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Needed {
    Run(RunId),
    Pipeline(Name, Name, Name),
}

impl Needed {
    /// What a run waits for.
    pub(super) fn by(run: &Run) -> Vec<Needed> {
        let home = &run.born.home;
        match run.blocked.as_deref() {
            Some(BlockedOn::Runs(runs)) => runs.iter().map(|run| Needed::Run(*run)).collect(),
            Some(BlockedOn::Pipelines(names)) => {
                names.iter().map(|name| Needed::pipeline(home, name)).collect()
            }
            Some(BlockedOn::Lock(_) | BlockedOn::Cap(_)) | None => Vec::new(),
        }
    }

    /// A pipeline, in the tenant and namespace of a run.
    pub(super) fn pipeline(home: &Home, name: &Name) -> Needed {
        Needed::Pipeline(home.tenant.clone(), home.namespace.clone(), name.clone())
    }
}

/// A stream has another time.
pub(super) fn move_time(
    set: &mut BTreeSet<(Millis, StreamId)>,
    id: &StreamId,
    old: Option<Millis>,
    new: Option<Millis>,
) {
    if old == new {
        return;
    }
    if let Some(old) = old {
        set.remove(&(old, id.clone()));
    }
    if let Some(new) = new {
        set.insert((new, id.clone()));
    }
}

/// Takes a value out of a set, and the set with it where it was the last.
pub(super) fn unlink<K: Ord, V: Ord>(map: &mut BTreeMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(set) = map.get_mut(key) {
        set.remove(value);
        if set.is_empty() {
            map.remove(key);
        }
    }
}

/// What one has becomes another list.
pub(super) fn relink<K: Ord + Copy, V: Copy>(map: &mut BTreeMap<K, V>, owner: V, was: &[K], is: &[K]) {
    if was != is {
        was.iter().for_each(|key| _ = map.remove(key));
        map.extend(is.iter().map(|key| (*key, owner)));
    }
}

/// Counts up or down; what is counted down to nothing is not kept.
pub(super) fn count<K: Ord + Clone, N>(map: &mut BTreeMap<K, N>, key: &K, n: N, up: bool)
where
    N: Copy + Default + PartialEq + core::ops::AddAssign + core::ops::SubAssign,
{
    if n == N::default() {
        return;
    }
    let slot = map.entry(key.clone()).or_default();
    if up {
        *slot += n;
    } else {
        *slot -= n;
    }
    if *slot == N::default() {
        map.remove(key);
    }
}
