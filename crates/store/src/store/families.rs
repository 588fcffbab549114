//! Families: runs that leave the log together, because one of them may need another.
//!
//! A caller that fails takes back what it called; a retry or fork takes back what it took over; an undo is made from the
//! records of the run that it takes back. So a run stays for as long as any of its family is kept: its caller and what it
//! called, the runs of its lineage, and the undos of all those. A run that a run under way `needs` stays as well.

use crate::history::{self, History};
use windlass_core::id::RunId;
use windlass_engine::fast::{Map, Set};

/// How many relations are looked at for one choice. Where there are more, fewer runs are chosen.
const RELATIONS_MAX: usize = 1_000_000;

/// Those of the candidates whose whole family may leave. The candidates are in the order of their ids. `held` has the runs
/// in memory and those that they were made from or need.
pub(super) fn whole(
    history: &History,
    mut candidates: Vec<RunId>,
    held: &Set<RunId>,
) -> Result<Set<RunId>, history::Error> {
    let relations = loop {
        let Some(last) = candidates.last() else { return Ok(Set::default()) };
        let relations = history.kin(*last, RELATIONS_MAX)?;
        if relations.len() < RELATIONS_MAX {
            break relations;
        }
        candidates.truncate(candidates.len() / 2);
    };
    let mut leaving: Set<RunId> = candidates.into_iter().collect();
    let mut kin: Map<RunId, Vec<RunId>> = Map::default();
    let mut stays: Vec<RunId> = leaving.iter().copied().filter(|run| held.contains(run)).collect();
    for (run, of) in relations {
        for (one, other) in [(run, of), (of, run)] {
            if !leaving.contains(&one) {
                continue;
            }
            kin.entry(one).or_default().push(other);
            // One that left the log long ago keeps nobody.
            if !leaving.contains(&other) && (held.contains(&other) || history.has(other)?) {
                stays.push(one);
            }
        }
    }
    while let Some(run) = stays.pop() {
        if leaving.remove(&run) {
            stays.extend(kin.get(&run).into_iter().flatten());
        }
    }
    Ok(leaving)
}
