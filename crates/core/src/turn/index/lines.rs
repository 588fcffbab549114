//! The lines of runs that a step can be leased of: one for steps that any executor may have, and one for each set of labels.
//!
//! A run stands in every line that one of its steps belongs to. So whoever has a label finds what waits for it at once,
//! however much waits for others.

use super::{LABELS, RunCard, list};
use crate::caps::{Caps, Entry, Fair};
use crate::id::{Name, RunId};
use crate::run::Run;
use crate::runbook::Runbook;
use crate::stream::{StreamId, StreamMap};
use crate::turn::state::{Body, Stream};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Who takes runs from the lines.
#[derive(Clone, Copy, Debug)]
pub struct Taker<'a> {
    /// The only tenant that it serves, and the namespace of it; all of them where absent.
    pub home: Option<(&'a Name, &'a Name)>,
    /// Its labels. It takes what asks for these, or for some of them.
    pub labels: &'a [Name],
    /// Whether it takes what asks for no label.
    pub plain: bool,
}

impl Taker<'_> {
    /// Whether it has every label that is asked for; and takes what asks for none, where it does that.
    #[must_use]
    pub fn takes(&self, wanted: &[Name]) -> bool {
        if wanted.is_empty() { self.plain } else { wanted.iter().all(|label| self.labels.contains(label)) }
    }

    fn next(
        &self,
        line: &mut Fair<RunId>,
        active: &BTreeMap<Name, u32>,
        caps: &BTreeMap<Name, Caps>,
    ) -> Option<Entry<RunId>> {
        match self.home {
            Some(home) => line.next_of(home, active, caps),
            None => line.next(active, caps),
        }
    }
}

/// What steps that can be leased ask of their executors: each once, in order.
pub(super) fn labels(run: &Run, runbook: Option<&Arc<Runbook>>) -> (bool, Vec<Vec<Name>>) {
    let Some(def) = runbook.and_then(|book| book.pipelines.get(&run.born.home.pipeline)) else {
        return (run.leasable().next().is_some(), Vec::new());
    };
    let (mut plain, mut labels) = (false, BTreeSet::new());
    for step in run.leasable() {
        match def.node(step.node).map(|node| &node.runs_on[..]) {
            Some([]) | None => plain = true,
            Some(wanted) => {
                let wanted: BTreeSet<&Name> = wanted.iter().collect();
                labels.insert(wanted.into_iter().cloned().collect());
            }
        }
    }
    (plain, labels.into_iter().collect())
}

/// Whether a step of a runbook asks for a label.
pub(super) fn asks_for_labels(runbook: &Runbook) -> bool {
    runbook.pipelines.values().any(|def| def.nodes.iter().any(|node| !node.runs_on.is_empty()))
}

impl super::Indexes {
    /// Notes which runbooks ask for labels, before their runs are filed: runs come first among streams.
    pub(crate) fn learn(&mut self, streams: &StreamMap<Stream>) {
        for (id, stream) in streams.others() {
            if let (StreamId::Runbook(hash), Body::Runbook(runbook)) = (id, &stream.body)
                && asks_for_labels(runbook)
            {
                self.labelled.insert(hash, runbook.clone());
            }
        }
    }
}

/// Puts a run into every line that one of its steps belongs to.
pub(super) fn line_up(lines: &mut Lines, card: &RunCard, run: RunId) {
    lines.push(&entry(card, run), card.plain, list(Some(card), LABELS));
}

/// Takes a run out of every line.
pub(super) fn leave_line(lines: &mut Lines, card: &RunCard, run: RunId) {
    lines.remove(&entry(card, run), card.plain, list(Some(card), LABELS));
}

fn entry(card: &RunCard, run: RunId) -> Entry<RunId> {
    Entry {
        tenant: card.home.tenant.clone(),
        namespace: card.home.namespace.clone(),
        priority: card.priority,
        seq: card.created_at.0,
        key: run,
    }
}

/// All lines.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    plain: Fair<RunId>,
    labelled: BTreeMap<Vec<Name>, Fair<RunId>>,
    weights: BTreeMap<Name, u32>,
    /// Which line was served last, of those that a taker can choose from.
    served: usize,
}

impl Lines {
    /// Gives a tenant its weight in every line.
    pub(super) fn weigh(&mut self, tenant: &Name, weight: u32) {
        self.weights.insert(tenant.clone(), weight);
        self.plain.weigh(tenant, weight);
        self.labelled.values_mut().for_each(|line| line.weigh(tenant, weight));
    }

    pub(super) fn push(&mut self, entry: &Entry<RunId>, plain: bool, labels: &[Vec<Name>]) {
        if plain {
            self.plain.push(entry.clone());
        }
        for wanted in labels {
            let weights = &self.weights;
            let line = self.labelled.entry(wanted.clone()).or_insert_with(|| {
                let mut line = Fair::new();
                weights.iter().for_each(|(tenant, weight)| line.weigh(tenant, *weight));
                line
            });
            line.push(entry.clone());
        }
    }

    pub(super) fn remove(&mut self, entry: &Entry<RunId>, plain: bool, labels: &[Vec<Name>]) {
        if plain {
            self.plain.remove(entry.clone());
        }
        for wanted in labels {
            if let Some(line) = self.labelled.get_mut(wanted) {
                line.remove(entry.clone());
                if line.is_empty() {
                    self.labelled.remove(wanted);
                }
            }
        }
    }

    /// The next for a taker. The lines it can choose from take turns.
    pub(super) fn next(
        &mut self,
        taker: &Taker<'_>,
        active: &BTreeMap<Name, u32>,
        caps: &BTreeMap<Name, Caps>,
    ) -> Option<Entry<RunId>> {
        let fitting: Vec<Vec<Name>> =
            self.labelled.keys().filter(|wanted| taker.takes(wanted)).cloned().collect();
        let count = fitting.len() + usize::from(taker.plain);
        for turn in 0..count {
            let place = (self.served + 1 + turn) % count;
            let Some(wanted) = fitting.get(place) else {
                if let Some(entry) = taker.next(&mut self.plain, active, caps) {
                    self.served = place;
                    return Some(entry);
                }
                continue;
            };
            let Some(line) = self.labelled.get_mut(wanted) else { continue };
            let found = taker.next(line, active, caps);
            if line.is_empty() {
                self.labelled.remove(wanted);
            }
            if found.is_some() {
                self.served = place;
                return found;
            }
        }
        None
    }

    /// Every run in a line; one in several comes several times.
    pub(super) fn runs(&self) -> impl Iterator<Item = RunId> {
        let lines = core::iter::once(&self.plain).chain(self.labelled.values());
        lines.flat_map(|line| line.entries().map(|(_, _, _, entry)| entry.1))
    }

    /// How many places are taken in all lines.
    pub(super) fn len(&self) -> usize {
        self.plain.len() + self.labelled.values().map(Fair::len).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::name;
    use alloc::vec;

    fn entry(tenant: &str, n: u64) -> Entry<RunId> {
        Entry { tenant: name(tenant), namespace: name("n"), priority: 0, seq: n, key: RunId(u128::from(n)) }
    }

    fn next(lines: &mut Lines, taker: &Taker<'_>) -> Option<u128> {
        lines.next(taker, &BTreeMap::new(), &BTreeMap::new()).map(|entry| entry.key.0)
    }

    #[test]
    fn a_label_is_found_behind_any_number_that_wait_for_others() {
        let mut lines = Lines::default();
        for n in 0..1_000 {
            lines.push(&entry("a", n), true, &[]);
        }
        let (gpu, linux) = (name("gpu"), name("linux"));
        lines.push(&entry("a", 2_000), false, &[vec![gpu.clone(), linux.clone()]]);
        let none = Taker { home: None, labels: &[], plain: false };
        let some = Taker { labels: core::slice::from_ref(&gpu), ..none };
        let all = [linux, gpu.clone()];
        assert_eq!(next(&mut lines, &none), None);
        assert_eq!(next(&mut lines, &some), None, "it has one of two labels");
        assert_eq!(next(&mut lines, &Taker { labels: &all, ..none }), Some(2_000));
        assert_eq!(lines.len(), 1_000);
        assert!(lines.labelled.is_empty(), "an empty line is not kept");
    }

    #[test]
    fn lines_take_turns_and_a_tenants_executor_gets_nobody_elses() {
        let mut lines = Lines::default();
        let gpu = vec![name("gpu")];
        for n in 0..10 {
            lines.push(&entry("a", n), true, &[]);
            lines.push(&entry("b", 100 + n), false, core::slice::from_ref(&gpu));
        }
        let any = Taker { home: None, labels: &gpu, plain: true };
        let first: Vec<u128> = (0..4).filter_map(|_| next(&mut lines, &any)).collect();
        assert_eq!(first.iter().filter(|key| **key >= 100).count(), 2, "{first:?}");
        let (b, n) = (name("b"), name("n"));
        let only = Taker { home: Some((&b, &n)), labels: &gpu, plain: true };
        while let Some(key) = next(&mut lines, &only) {
            assert!(key >= 100);
        }
        assert_eq!(lines.len(), 8);
        lines.remove(&entry("a", 9), true, &[]);
        assert_eq!(lines.runs().count(), 7);
    }
}
