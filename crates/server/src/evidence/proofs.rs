//! A bounded cache of what bundles share: opened seals, the rotations of keys, and the records of streams that many runs share. It
//! can be dropped at any time.

use super::Error;
use super::bundle::{Taken, What, take};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use windlass_core::audit::{Head, Leaf, Rotation, Seal, Tree};
use windlass_core::event::Event;
use windlass_core::stream::StreamId;
use windlass_store::log::{Log, Seqs};

/// How many leaves of opened seals are kept: two seals of the largest size.
const LEAVES_KEPT: u64 = 1 << 17;
/// How many bytes of lines of shared streams are kept.
const LINES_KEPT: usize = 8 << 20;
/// How far before a record the seal before it is looked for at first.
const BACK: u64 = 4_096;

/// A seal with the tree under it.
pub(super) struct Opened {
    pub(super) seal: Seal,
    /// The first and the last record that it covers.
    range: (u64, u64),
    pub(super) tree: Tree,
}

#[derive(Default)]
struct Known {
    rotations: Vec<Rotation>,
    /// Up to which record they were looked for.
    rotations_through: u64,
    /// The last one used stands last.
    opened: Vec<Arc<Opened>>,
    /// Without values; each with the last record that was looked at.
    lines: BTreeMap<StreamId, (Taken, u64)>,
    lines_bytes: usize,
}

/// What bundles have in common.
#[derive(Default)]
pub struct Proofs(Mutex<Known>);

impl Proofs {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every change of keys there was.
    pub(super) fn rotations(&self, log: &Log) -> Result<Vec<Rotation>, Error> {
        let mut known = self.lock();
        let seqs = Seqs { first: known.rotations_through + 1, last: log.durable_seq() };
        let mut fresh = Vec::new();
        log.scan(&[StreamId::System], seqs, &mut |record, _| {
            if let Event::KeyRotated(e) = &record.event {
                fresh.push(Rotation::recorded(e));
            }
            ControlFlow::Continue(())
        })?;
        known.rotations.append(&mut fresh);
        known.rotations_through = seqs.last;
        Ok(known.rotations.clone())
    }

    /// The lines of streams that many runs share.
    pub(super) fn lines_of(
        &self,
        log: &Log,
        streams: &BTreeSet<StreamId>,
        what: What,
    ) -> Result<BTreeMap<StreamId, Taken>, Error> {
        let all = Seqs { first: 0, last: what.through };
        if what.values {
            return take(log, streams, all, true);
        }
        let mut known = self.lock();
        let mut found = BTreeMap::new();
        for stream in streams {
            let have = known.lines.get(stream);
            // What was read further already is cut off: the seal of this bundle may be an older one.
            if have.is_some_and(|(taken, _)| taken.last.is_some_and(|(_, seq)| seq > what.through)) {
                found.extend(take(log, &BTreeSet::from([stream.clone()]), all, false)?);
                continue;
            }
            let (mut taken, through) = have.cloned().unwrap_or_default();
            if through < what.through {
                let seqs = Seqs { first: through + 1, ..all };
                let mut more = take(log, &BTreeSet::from([stream.clone()]), seqs, false)?;
                let more = more.remove(stream).unwrap_or_default();
                known.lines_bytes += more.lines.iter().map(String::len).sum::<usize>();
                taken.last = more.last.or(taken.last);
                taken.lines.extend(more.lines);
                // A runbook that left the log and came again began anew.
                if taken.last.is_some_and(|(head, _)| head.ver != taken.lines.len() as u64) {
                    let mut anew = take(log, &BTreeSet::from([stream.clone()]), all, false)?;
                    taken = anew.remove(stream).unwrap_or_default();
                }
                if known.lines_bytes > LINES_KEPT {
                    known.lines.clear();
                    known.lines_bytes = 0;
                } else {
                    known.lines.insert(stream.clone(), (taken.clone(), what.through));
                }
            }
            found.insert(stream.clone(), taken);
        }
        Ok(found)
    }

    /// The seal that covers a record, opened; none where it is not sealed yet.
    pub(super) fn covering(&self, log: &Log, seq: u64) -> Result<Option<Arc<Opened>>, Error> {
        let mut known = self.lock();
        let at = known.opened.iter().position(|opened| (opened.range.0..=opened.range.1).contains(&seq));
        if let Some(at) = at {
            let opened = known.opened.remove(at);
            known.opened.push(opened.clone());
            return Ok(Some(opened));
        }
        let Some(opened) = open(log, seq)?.map(Arc::new) else { return Ok(None) };
        known.opened.push(opened.clone());
        while known.opened.len() > 1
            && known.opened.iter().map(|o| o.tree.leaves()).sum::<u64>() > LEAVES_KEPT
        {
            known.opened.remove(0);
        }
        Ok(Some(opened))
    }
}

/// Finds the seal that covers a record, and what else it covers: the last record of each stream since the seal before.
fn open(log: &Log, seq: u64) -> Result<Option<Opened>, Error> {
    let mut found = None;
    log.scan(&[StreamId::System], Seqs { first: seq, last: u64::MAX }, &mut |record, _| {
        match &record.event {
            Event::SealCreated(e) if e.through.unwrap_or_default() >= seq => {
                found = Some((Seal::recorded(e, record.at), e.through.unwrap_or_default()));
                ControlFlow::Break(())
            }
            // tidy: nothing else covers a record.
            _ => ControlFlow::Continue(()),
        }
    })?;
    let Some((seal, through)) = found else { return Ok(None) };
    let range = (before(log, seq, seal.number)? + 1, through);
    let mut heads: BTreeMap<StreamId, (u64, Head)> = BTreeMap::new();
    // What retention took out of the log had heads of its own.
    log.gone(Seqs { first: range.0, last: through }, &mut |gone| {
        heads.insert(gone.stream, (gone.seq, gone.head));
    })?;
    log.read(range.0, &mut |record, _| {
        if record.seq > through {
            return ControlFlow::Break(());
        }
        let newer = heads.get(&record.stream).is_none_or(|(seq, _)| *seq < record.seq);
        if newer && !matches!(record.event, Event::SealCreated(_)) {
            heads.insert(record.stream, (record.seq, Head { ver: record.ver, head: record.chain }));
        }
        ControlFlow::Continue(())
    })?;
    let leaf = |(stream, (_, head)): (StreamId, (u64, Head))| Leaf { stream, ver: head.ver, head: head.head };
    let tree = Tree::new(&heads.into_iter().map(leaf).collect::<Vec<_>>());
    if tree.leaves() == seal.leaves && tree.root() == seal.root {
        return Ok(Some(Opened { seal, range, tree }));
    }
    let (number, why) = (seal.number, "records beside it were dropped from the log after their retention");
    Err(Error::Unprovable(format!("seal {number} cannot be opened: {why}")))
}

/// The last record that the seal before one covers. It stands before the record that the seal itself covers.
fn before(log: &Log, seq: u64, number: u64) -> Result<u64, Error> {
    let mut back = BACK;
    loop {
        let first = seq.saturating_sub(back);
        let mut through = None;
        log.scan(&[StreamId::System], Seqs { first, last: u64::MAX }, &mut |record, _| {
            match &record.event {
                Event::SealCreated(e) if e.number >= number => ControlFlow::Break(()),
                Event::SealCreated(e) => {
                    through = e.through;
                    ControlFlow::Continue(())
                }
                // tidy: nothing else is a seal.
                _ => ControlFlow::Continue(()),
            }
        })?;
        match through {
            Some(through) => return Ok(through),
            None if first == 0 => return Ok(0),
            None => back = back.saturating_mul(8),
        }
    }
}
