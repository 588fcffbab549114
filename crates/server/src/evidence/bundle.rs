//! Builds a bundle: the records of a run and of the streams it touched, and the proof of each stream up to a seal.

use super::Error;
use super::keys::Key;
use super::proofs::Proofs;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use windlass_core::audit::{Head, Leaf, Rotation, Seal, root};
use windlass_core::event::Event;
use windlass_core::evidence::{About, Bundle, Contents, Inclusion, Segment};
use windlass_core::id::{Name, RunId, Scoped};
use windlass_core::redact::redact;
use windlass_core::stream::StreamId;
use windlass_store::log::{Log, Seqs};

/// Private values that are there whatever the exporter chose: what a reader of the report has to see as it was.
const SHOWN: [&str; 6] = ["action", "card", "message", "reason", "source", "text"];

/// What a bundle is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct What {
    pub run: RunId,
    /// A record before which none of the run stands.
    pub first_seq: u64,
    /// The last record that a seal covers: nothing after it is in the bundle.
    pub through: u64,
    /// Whether variables, outputs, requests and responses are there as values, and not as digests alone.
    pub values: bool,
}

/// A stream's lines, and where the last of them stands.
#[derive(Clone, Default)]
pub(super) struct Taken {
    pub(super) lines: Vec<String>,
    pub(super) last: Option<(Head, u64)>,
}

/// Everything that is needed of the installation's own stream.
#[derive(Default)]
pub(super) struct Seals {
    /// By number: the seal and the last record it covers.
    pub(super) all: BTreeMap<u64, (Seal, u64)>,
    pub(super) rotations: Vec<Rotation>,
}

/// Whether a seal covers everything that a bundle of a run holds of that run.
///
/// # Errors
/// The log cannot be read.
pub fn is_sealed(log: &Log, run: RunId, first_seq: u64, through: u64) -> Result<bool, Error> {
    let all = What { run, first_seq, through: u64::MAX, values: false };
    let own: Vec<StreamId> = linked(log, all)?.0.into_iter().collect();
    let mut news = false;
    log.scan(&own, Seqs { first: through + 1, last: u64::MAX }, &mut |_, _| {
        news = true;
        ControlFlow::Break(())
    })?;
    Ok(!news)
}

/// Puts a bundle together and signs it. It costs the records of the run and of what it touched; what bundles have in
/// common is read once. It is as old as its newest seal, so as long as nothing changes it is the same, byte for byte.
///
/// # Errors
/// There is no such run, the log cannot be read, or what a proof needs was dropped from it.
pub fn gather(log: &Log, proofs: &Proofs, what: What, key: &Key) -> Result<Bundle, Error> {
    let (own, shared) = linked(log, what)?;
    if own.is_empty() {
        return Err(Error::Missing(what.run.to_string()));
    }
    let seqs = Seqs { first: 0, last: what.through };
    let mut taken = take(log, &own, seqs, what.values)?;
    taken.extend(proofs.lines_of(log, &shared, what)?);
    let mut contents = Contents { keys: proofs.rotations(log)?, ..Contents::default() };
    let mut seals = BTreeMap::new();
    for (stream, taken) in taken {
        let Some((head, seq)) = taken.last else { continue };
        let opened = proofs.covering(log, seq)?.ok_or_else(|| unsealed(&stream))?;
        let proof = opened.tree.proof(&stream).ok_or_else(|| unsealed(&stream))?;
        let leaf = Leaf { stream: stream.clone(), ver: head.ver, head: head.head };
        contents.inclusions.push(Inclusion { leaf, seal: opened.seal.number, proof });
        seals.insert(opened.seal.number, opened.seal.clone());
        contents.streams.push(Segment { stream, after: Head::default(), lines: taken.lines });
    }
    contents.inclusions.sort_by_key(|inclusion| inclusion.seal);
    contents.seals = seals.into_values().collect();
    let at = contents.seals.iter().map(|seal| seal.at).max().unwrap_or_default();
    Ok(contents.bundle(About::Run(what.run), at, key.id.clone(), &|bytes| key.sign(bytes)))
}

pub(super) fn unsealed(stream: &StreamId) -> Error {
    Error::Unprovable(format!("no seal covers the last record of {stream}"))
}

/// The run's own stream with those of its effects, and those that it shares with others: its runbook and its tenant.
fn linked(log: &Log, what: What) -> Result<(BTreeSet<StreamId>, BTreeSet<StreamId>), Error> {
    let (mut own, mut shared) = (BTreeSet::new(), BTreeSet::new());
    let (mut tenant, mut namespace, mut book) = (None, None, None);
    let seqs = Seqs { first: what.first_seq, last: what.through };
    log.scan_run(what.run, seqs, &mut |record, _| {
        if let Event::PipelineCreated(e) = &record.event {
            tenant = Some(record.tenant.clone());
            namespace = Some(e.namespace.clone());
            book = Some(e.runbook_hash);
        }
        own.insert(record.stream);
        ControlFlow::Continue(())
    })?;
    if let (Some(tenant), Some(namespace), Some(book)) = (tenant, namespace, book) {
        shared.insert(StreamId::Runbook(book));
        shared.insert(StreamId::Tenant(tenant.clone()));
        shared.extend(deployment(log, &tenant, &namespace, book)?);
    } else {
        own.clear();
    }
    Ok((own, shared))
}

/// Who deployed the runbook, if it was deployed.
pub(super) fn deployment(
    log: &Log,
    tenant: &Name,
    namespace: &Name,
    book: windlass_core::digest::Digest,
) -> Result<Option<StreamId>, Error> {
    let mut name = None;
    log.scan(&[StreamId::Runbook(book)], Seqs::ALL, &mut |record, _| {
        if let Event::RunbookLoaded(e) = &record.event {
            name = Some(e.name.clone());
        }
        ControlFlow::Break(())
    })?;
    Ok(name.map(|name| StreamId::Deployment(Scoped::new(tenant, namespace, &name))))
}

/// All lines of the streams, with or without private values.
pub(super) fn take(
    log: &Log,
    streams: &BTreeSet<StreamId>,
    seqs: Seqs,
    values: bool,
) -> Result<BTreeMap<StreamId, Taken>, Error> {
    let wanted: Vec<StreamId> = streams.iter().cloned().collect();
    let mut taken: BTreeMap<StreamId, Taken> = BTreeMap::new();
    let mut broken = None;
    log.scan(&wanted, seqs, &mut |record, line| {
        let kept = match values {
            true => Ok(line.to_owned()),
            false => redact(line, &|name| !SHOWN.contains(&name)),
        };
        match kept {
            Ok(line) => {
                let stream = taken.entry(record.stream).or_default();
                stream.lines.push(line);
                stream.last = Some((Head { ver: record.ver, head: record.chain }, record.seq));
                ControlFlow::Continue(())
            }
            Err(error) => {
                broken = Some(error.to_string());
                ControlFlow::Break(())
            }
        }
    })?;
    match broken {
        Some(why) => Err(Error::Unprovable(format!("a record cannot be cut: {why}"))),
        None => Ok(taken),
    }
}

pub(super) fn seals(log: &Log) -> Result<Seals, Error> {
    let mut seals = Seals::default();
    log.scan(&[StreamId::System], Seqs::ALL, &mut |record, _| {
        match &record.event {
            Event::SealCreated(e) => {
                let through = e.through.unwrap_or_default();
                seals.all.insert(e.number, (Seal::recorded(e, record.at), through));
            }
            Event::KeyRotated(e) => seals.rotations.push(Rotation::recorded(e)),
            // tidy: the rest of the installation's stream proves nothing.
            _ => {}
        }
        ControlFlow::Continue(())
    })?;
    Ok(seals)
}

impl Seals {
    /// The first seal that covers a record.
    pub(super) fn covering(&self, seq: u64) -> Option<u64> {
        self.all.iter().find(|(_, (_, through))| *through >= seq).map(|(number, _)| *number)
    }

    /// The leaves of some seals: the last record of each stream between the seal before and each. The log is read once.
    ///
    /// # Errors
    /// What a seal covers is not all there any more.
    pub(super) fn open(&self, log: &Log, wanted: &BTreeSet<u64>) -> Result<BTreeMap<u64, Vec<Leaf>>, Error> {
        let gone =
            |number: u64, why: &str| Error::Unprovable(format!("seal {number} cannot be opened: {why}"));
        // The range of each: first and last seq, in ascending order.
        let mut ranges: Vec<(u64, u64, u64)> = Vec::new();
        for number in wanted {
            let (_, through) = self.all.get(number).ok_or_else(|| gone(*number, "it is not in the log"))?;
            let before = number.checked_sub(1).and_then(|before| self.all.get(&before));
            ranges.push((before.map_or(0, |before| before.1) + 1, *through, *number));
        }
        let mut heads: BTreeMap<u64, BTreeMap<StreamId, (Head, u64)>> = BTreeMap::new();
        let mut at = 0;
        let first = ranges.first().map_or(u64::MAX, |range| range.0);
        log.read(first, &mut |record, _| {
            while ranges.get(at).is_some_and(|range| range.1 < record.seq) {
                at += 1;
            }
            let Some((from, _, number)) = ranges.get(at) else { return ControlFlow::Break(()) };
            if record.seq >= *from && !matches!(record.event, Event::SealCreated(_)) {
                let place = (Head { ver: record.ver, head: record.chain }, record.seq);
                heads.entry(*number).or_default().insert(record.stream, place);
            }
            ControlFlow::Continue(())
        })?;
        // What retention took out of the log had heads of its own.
        let last = ranges.last().map_or(0, |range| range.1);
        let mut at = 0;
        log.gone(Seqs { first, last }, &mut |gone| {
            while ranges.get(at).is_some_and(|range| range.1 < gone.seq) {
                at += 1;
            }
            let Some((from, _, number)) = ranges.get(at) else { return };
            let heads = heads.entry(*number).or_default();
            if gone.seq >= *from && heads.get(&gone.stream).is_none_or(|(_, seq)| *seq < gone.seq) {
                heads.insert(gone.stream, (gone.head, gone.seq));
            }
        })?;
        let mut opened = BTreeMap::new();
        for number in wanted {
            let mut ordered: Vec<(StreamId, (Head, u64))> =
                heads.remove(number).unwrap_or_default().into_iter().collect();
            ordered.sort_unstable_by_key(|(_, (_, seq))| *seq);
            let leaf = |(stream, (head, _)): (StreamId, (Head, u64))| Leaf {
                stream,
                ver: head.ver,
                head: head.head,
            };
            let leaves: Vec<Leaf> = ordered.into_iter().map(leaf).collect();
            let holds = self
                .all
                .get(number)
                .is_some_and(|(seal, _)| leaves.len() as u64 == seal.leaves && root(&leaves) == seal.root);
            if !holds {
                return Err(gone(
                    *number,
                    "records beside it were dropped from the log after their retention",
                ));
            }
            opened.insert(*number, leaves);
        }
        Ok(opened)
    }
}
