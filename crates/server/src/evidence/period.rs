//! Builds the bundle of a period: every seal of it with everything it covers, and the records of all runs and effects under
//! them.

use super::Error;
use super::bundle::{Taken, seals, take, unsealed};
use super::keys::Key;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use windlass_core::audit::{Head, Leaf, Tree};
use windlass_core::digest::Digest;
use windlass_core::event::Event;
use windlass_core::evidence::{About, Bundle, Contents, Inclusion, Opened, Period, STREAMS_MAX, Segment};
use windlass_core::id::{Name, Scoped};
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_store::log::{Log, Seqs};

/// The most seals of a period: more than a month of one every ten seconds.
const SEALS_MAX: u64 = 300_000;

/// Puts a bundle together and signs it. Everything in it must be sealed already.
///
/// # Errors
/// The period is too long or from before the first seal, or what a proof needs was dropped from the log.
pub fn gather(log: &Log, period: Period, values: bool, key: &Key, at: Millis) -> Result<Bundle, Error> {
    let seals = seals(log)?;
    let numbers = covering(seals.all.iter().map(|(number, (seal, _))| (*number, seal.at)), period)?;
    let mut opened = seals.open(log, &numbers)?;
    let under = opened.values().flatten().map(|leaf| &leaf.stream);
    let governed = |stream: &&StreamId| matches!(stream, StreamId::Run(_) | StreamId::Effect(_));
    let mut streams: BTreeSet<StreamId> = under.filter(governed).cloned().collect();
    bounded(&streams)?;
    let governed = streams.clone();
    streams.extend(linked(log, &streams)?);
    bounded(&streams)?;
    let mut contents = Contents { keys: seals.rotations.clone(), ..Contents::default() };
    let mut needed: BTreeMap<u64, Vec<Leaf>> = BTreeMap::new();
    let taken = take(log, &streams, Seqs::ALL, values)?;
    // Their heads may still be known, but what they did is not.
    if let Some(gone) = governed.iter().find(|stream| !taken.contains_key(stream)) {
        let text = format!("{gone} was dropped from the log after its retention");
        return Err(Error::Unprovable(text));
    }
    for (stream, Taken { lines, last }) in taken {
        let Some((head, seq)) = last else { continue };
        let number = seals.covering(seq).ok_or_else(|| unsealed(&stream))?;
        // Under a seal of the period it is listed already.
        if !numbers.contains(&number) {
            let leaf = Leaf { stream: stream.clone(), ver: head.ver, head: head.head };
            needed.entry(number).or_default().push(leaf);
        }
        contents.streams.push(Segment { stream, after: Head::default(), lines });
    }
    let beside = seals.open(log, &needed.keys().copied().collect())?;
    for (number, leaves) in needed {
        let tree = Tree::new(beside.get(&number).map(Vec::as_slice).unwrap_or_default());
        for leaf in leaves {
            let proof = tree.proof(&leaf.stream).ok_or_else(|| unsealed(&leaf.stream))?;
            contents.inclusions.push(Inclusion { leaf, seal: number, proof });
        }
    }
    // The seal before the first one says that nothing is missing in between.
    let before = numbers.first().and_then(|first| first.checked_sub(1));
    let listed: BTreeSet<u64> = numbers.iter().chain(beside.keys()).copied().chain(before).collect();
    contents.seals = listed.iter().filter_map(|n| seals.all.get(n)).map(|(seal, _)| seal.clone()).collect();
    contents.opened = numbers
        .iter()
        .map(|seal| Opened { seal: *seal, leaves: opened.remove(seal).unwrap_or_default() })
        .collect();
    Ok(contents.bundle(About::Period(period), at, key.id.clone(), &|bytes| key.sign(bytes)))
}

fn bounded(streams: &BTreeSet<StreamId>) -> Result<(), Error> {
    if streams.len() <= STREAMS_MAX {
        return Ok(());
    }
    let (count, most) = (streams.len(), STREAMS_MAX);
    Err(Error::Unprovable(format!(
        "the period has {count} streams, and a bundle holds {most} at most: export shorter periods"
    )))
}

/// The seals that cover a period: from the first that was made in it to the second that was made after it. The second,
/// because a record that was decided just before a seal may be written just after it.
fn covering(seals: impl Iterator<Item = (u64, Millis)>, period: Period) -> Result<BTreeSet<u64>, Error> {
    let mut after = 0;
    let numbers: BTreeSet<u64> = seals
        .filter(|(_, at)| *at >= period.from)
        .take_while(|(_, at)| {
            after += u32::from(*at >= period.to);
            after <= 2
        })
        .map(|(number, _)| number)
        .collect();
    match numbers.len() as u64 {
        0 => Err(Error::Unprovable("nothing was recorded since the beginning of the period".to_owned())),
        count if count > SEALS_MAX => Err(Error::Unprovable(format!(
            "the period has {count} seals, and a bundle holds {SEALS_MAX} at most: export shorter periods"
        ))),
        _ => Ok(numbers),
    }
}

/// The runbooks, deployments and tenants of runs.
fn linked(log: &Log, runs: &BTreeSet<StreamId>) -> Result<BTreeSet<StreamId>, Error> {
    let own: Vec<StreamId> = runs.iter().filter(|s| matches!(s, StreamId::Run(_))).cloned().collect();
    let mut linked = BTreeSet::new();
    let mut pinned: BTreeMap<Digest, BTreeSet<(Name, Name)>> = BTreeMap::new();
    log.scan(&own, Seqs::ALL, &mut |record, _| {
        if let Event::PipelineCreated(e) = &record.event {
            linked.insert(StreamId::Tenant(record.tenant.clone()));
            let place = (record.tenant.clone(), e.namespace.clone());
            pinned.entry(e.runbook_hash).or_default().insert(place);
        }
        ControlFlow::Continue(())
    })?;
    let books: Vec<StreamId> = pinned.keys().map(|hash| StreamId::Runbook(*hash)).collect();
    log.scan(&books, Seqs::ALL, &mut |record, _| {
        if let Event::RunbookLoaded(e) = &record.event {
            let places = pinned.get(&e.hash).into_iter().flatten();
            linked
                .extend(places.map(|(tenant, namespace)| {
                    StreamId::Deployment(Scoped::new(tenant, namespace, &e.name))
                }));
        }
        ControlFlow::Continue(())
    })?;
    linked.extend(books);
    Ok(linked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(at: &[u64], from: u64, to: u64) -> Vec<u64> {
        let seals = at.iter().enumerate().map(|(n, at)| (n as u64 + 1, Millis(*at)));
        let period = Period { from: Millis(from), to: Millis(to) };
        covering(seals, period).map(|numbers| numbers.into_iter().collect()).unwrap_or_default()
    }

    #[test]
    fn a_period_is_covered_from_its_first_seal_to_the_second_after_it() {
        let at = [10, 20, 30, 40, 50, 60];
        assert_eq!(numbers(&at, 0, 5), [1, 2]);
        assert_eq!(numbers(&at, 20, 40), [2, 3, 4, 5]);
        assert_eq!(numbers(&at, 21, 31), [3, 4, 5]);
        assert_eq!(numbers(&at, 55, 90), [6]);
        assert!(numbers(&at, 61, 90).is_empty());
    }
}
