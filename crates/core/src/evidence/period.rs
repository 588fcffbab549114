//! Evidence of a period: all runs that began in it, and why nobody left one out.
//!
//! ```text
//!  seals  … n-1 │ n   n+1   …   m │        every one from the first of the period on is there, each bound to the one before
//!               └ from          to ┘       and each with all heads that it covers
//! ```
//!
//! A seal covers every stream that changed since the one before. So where the seals of a period are all there and
//! opened, a run that began in it is under one of them, and its records must be in the bundle; the same holds for the
//! effects. Times are the server's own.

use super::reading::{self, Proofs};
use super::verdict::Verdict;
use super::verify::{CheckKey, Finding, Looked, Walked, look};
use super::{Bundle, Period, Segment};
use crate::digest::Digest;
use crate::event::Event;
use crate::id::{Name, RunId, Scoped};
use crate::stream::StreamId;
use crate::time::Millis;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use serde::Serialize;

/// What is left open about a period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Open {
    /// The last seal is from before the end of the period: what came after it is not covered.
    After {
        /// When the last seal was made.
        sealed_at: Millis,
    },
    /// The bundle was made before the period was over.
    NotOver,
}

/// All runs of a period.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Population {
    /// The period.
    pub period: Period,
    /// When the bundle was made.
    pub made_at: Millis,
    /// The first and the last seal that cover it.
    pub seals: (u64, u64),
    /// The runs that began in it, oldest first.
    pub runs: Vec<Verdict>,
    /// Runs that are under the same seals and began before or after.
    pub others: Vec<RunId>,
    /// What is left open.
    pub not_proved: Vec<Open>,
}

/// Verifies a bundle of a period, as [`verify`](super::verify()) does for a run.
///
/// # Errors
/// Everything that was found.
pub fn verify_period(
    bundle: &Bundle,
    trusted: &BTreeMap<Name, Digest>,
    check: CheckKey<'_>,
) -> Result<Population, Vec<Finding>> {
    let mut looked = look(bundle, trusted, check)?;
    let Some(period) = bundle.manifest.period else { return Err(alloc::vec![Finding::Subject]) };
    let seals = range(&mut looked, period);
    left_out(&mut looked);
    let last_at = looked.seals.get(&seals.1).copied().unwrap_or_default();
    let made_at = looked.manifest.made_at;
    let (contents, walked) = looked.sound()?;
    let mut not_proved = Vec::new();
    if made_at < period.to {
        not_proved.push(Open::NotOver);
    }
    if last_at < period.to {
        not_proved.push(Open::After { sealed_at: last_at });
    }
    let links = Links::of(&walked);
    let segments: BTreeMap<&StreamId, &Segment> = contents.streams.iter().map(|s| (&s.stream, s)).collect();
    let mut population =
        Population { period, made_at, seals, runs: Vec::new(), others: Vec::new(), not_proved };
    for (run, began) in &links.runs {
        if !period.holds(*began) {
            population.others.push(*run);
            continue;
        }
        let streams = links.streams_of(*run, &walked);
        population.runs.push(reading::read(&Proofs {
            run: *run,
            made_at,
            segments: streams.keys().filter_map(|stream| segments.get(*stream).copied()).collect(),
            walked: streams,
            artifacts: &[],
        }));
    }
    let began = |verdict: &Verdict| verdict.origin.as_ref().map(|origin| origin.place.at);
    population.runs.sort_by_key(|verdict| (began(verdict), verdict.run));
    Ok(population)
}

/// The first and the last of the opened seals; they must follow each other, and begin where the period does.
fn range(looked: &mut Looked<'_>, period: Period) -> (u64, u64) {
    let opened: BTreeSet<u64> = looked.contents.opened.iter().map(|opened| opened.seal).collect();
    let (Some(first), Some(last)) = (opened.first().copied(), opened.last().copied()) else {
        looked.findings.push(Finding::NotOpened(1));
        return (0, 0);
    };
    let holes = (first..=last).filter(|number| !opened.contains(number)).take(super::FINDINGS_MAX);
    let holes: Vec<Finding> = holes.map(Finding::NotOpened).collect();
    looked.findings.extend(holes);
    let before = first.checked_sub(1).and_then(|before| looked.seals.get(&before));
    if first != 1 && before.is_none_or(|at| *at > period.from) {
        looked.findings.push(Finding::Begin(first));
    }
    (first, last)
}

/// Runs and effects under the seals whose records are not all there.
fn left_out(looked: &mut Looked<'_>) {
    for opened in &looked.contents.opened {
        for leaf in &opened.leaves {
            let whole = |walked: &Walked| walked.after.ver == 0 && walked.has(leaf);
            let needed = matches!(leaf.stream, StreamId::Run(_) | StreamId::Effect(_));
            if needed && !looked.walked.get(&leaf.stream).is_some_and(whole) {
                looked.findings.push(Finding::LeftOut {
                    stream: leaf.stream.clone(),
                    ver: leaf.ver,
                    seal: opened.seal,
                });
            }
        }
    }
}

/// What belongs to which run.
#[derive(Default)]
struct Links {
    /// When each run began.
    runs: BTreeMap<RunId, Millis>,
    /// Its own stream, its effects', its runbook's and its tenant's.
    streams: BTreeMap<RunId, BTreeSet<StreamId>>,
}

impl Links {
    fn of(walked: &BTreeMap<StreamId, Walked>) -> Links {
        let mut links = Links::default();
        let books = names(walked);
        for (stream, walked) in walked {
            for record in &walked.records {
                match &record.event {
                    Event::PipelineCreated(e) => {
                        links.runs.insert(e.id, record.at);
                        let deployed = books.get(&e.runbook_hash).map(|name| {
                            StreamId::Deployment(Scoped::new(&record.tenant, &e.namespace, name))
                        });
                        let own = [
                            StreamId::Run(e.id),
                            StreamId::Runbook(e.runbook_hash),
                            StreamId::Tenant(record.tenant.clone()),
                        ];
                        links.streams.entry(e.id).or_default().extend(own.into_iter().chain(deployed));
                    }
                    Event::IntentRecorded(e) => {
                        links.streams.entry(e.pipeline_id).or_default().insert(stream.clone());
                    }
                    // tidy: nothing else links a stream to a run.
                    _ => {}
                }
            }
        }
        links
    }

    /// The streams of a run that are there.
    fn streams_of<'a>(
        &self,
        run: RunId,
        walked: &'a BTreeMap<StreamId, Walked>,
    ) -> BTreeMap<&'a StreamId, &'a Walked> {
        let streams = self.streams.get(&run).into_iter().flatten();
        streams.filter_map(|stream| walked.get_key_value(stream)).collect()
    }
}

/// The names of the runbooks that are there.
fn names(walked: &BTreeMap<StreamId, Walked>) -> BTreeMap<Digest, Name> {
    let records = walked.values().flat_map(|walked| &walked.records);
    let named = records.filter_map(|record| match &record.event {
        Event::RunbookLoaded(e) => Some((e.hash, e.name.clone())),
        // tidy: nothing else names a runbook's content.
        _ => None,
    });
    named.collect()
}

#[cfg(test)]
mod tests;
