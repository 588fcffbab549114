//! Encoding: from facts to the lines of a batch, chained to the head of each stream.
//!
//! The encoder runs ahead of the disk: while one group is being synced, the next is encoded. So what it changes can be
//! taken back, for a batch that does not follow and for groups that found no room.

use super::error::Error;
use super::replay::KnownStreams;
use super::salts::Salts;
use super::walk::BATCH_MAX;
use super::{Batch, Done, Durable, Entry};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use windlass_core::audit::Head;
use windlass_core::digest::Digest;
use windlass_core::event::Event;
use windlass_core::record::Draft;
use windlass_core::stream::StreamId;
use windlass_core::turn::command::Fact;
use windlass_core::turn::state::Snapshot;
use windlass_engine::fast::Map;
use windlass_engine::port::Decided;

/// The head of every stream that facts may follow in.
pub(super) type Heads = Map<StreamId, Head>;

/// What a snapshot is told, once what came before is durable.
pub(super) enum Saving {
    /// A snapshot begins: the log must be read from this seq on. The second number is how often streams were dropped before.
    Begin(u64, u64),
    /// A stream, with its head filled in.
    Stream(Box<Snapshot>),
    /// A stream that is no longer live, and where it ended.
    Gone(StreamId, Head),
    /// That was all.
    End,
}

/// A batch that is encoded and not durable.
struct Pending {
    done: Done,
    durable: Durable,
    /// The heads before, in the order in which they were changed.
    undo: Vec<(StreamId, Option<Head>)>,
    /// The last seq before.
    seq: u64,
}

/// Batches that are written and synced together.
#[derive(Default)]
pub(super) struct Group {
    /// Their lines.
    pub(super) bytes: Vec<u8>,
    pub(super) count: u64,
    pub(super) seq: u64,
    pending: Vec<Pending>,
    pub(super) saving: Vec<Saving>,
}

impl Group {
    /// Tells everybody that it is durable, in order.
    pub(super) fn succeed(&mut self) {
        for pending in self.pending.drain(..) {
            (pending.done)(Ok(pending.durable));
        }
    }

    /// Tells everybody that it is not, in order.
    pub(super) fn fail(&mut self, error: &Error) {
        self.saving.clear();
        for pending in self.pending.drain(..) {
            (pending.done)(Err(error.clone()));
        }
    }

    /// Whether no caller waits for it.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Empties it and keeps its memory, unless one large batch made it grow.
    pub(super) fn clear(&mut self, keep_bytes: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(keep_bytes);
        self.count = 0;
        self.pending.clear();
        self.saving.clear();
    }
}

/// Turns batches into lines.
pub(super) struct Encoder {
    heads: Heads,
    /// What recovery found, until it is made into heads.
    found: KnownStreams,
    /// The last seq that was given out.
    seq: u64,
    salts: Salts,
    /// What is encoded and waits for the disk.
    pub(super) group: Group,
    /// Whether a snapshot is under way.
    saving: bool,
    /// How often streams were dropped.
    drops: Arc<AtomicU64>,
    /// Where the batch that is being encoded begins in the group.
    line_start: usize,
}

impl Encoder {
    pub(super) fn new(found: KnownStreams, seq: u64, salts: Salts, drops: Arc<AtomicU64>) -> Encoder {
        let (heads, group) = (Heads::default(), Group::default());
        Encoder { heads, found, seq, salts, group, saving: false, drops, line_start: 0 }
    }

    /// Makes heads of what recovery found: of all but what had ended before. There may be millions, so that it is done
    /// beside whatever else a start has to do, and by whoever comes first.
    pub(super) fn settle(&mut self) {
        if self.found.is_empty() {
            return;
        }
        let found = std::mem::take(&mut self.found);
        self.heads.reserve(found.len());
        let live = found.into_iter().filter(|(_, known)| !known.gone || known.head.ver > known.saved);
        self.heads.extend(live.map(|(stream, known)| (stream, known.head)));
    }

    /// Encodes a batch into the group. One that does not follow is answered at once and leaves nothing.
    pub(super) fn encode(&mut self, batch: Batch) {
        let Batch { entries, done } = batch;
        let (len, count, seq, saved) =
            (self.group.bytes.len(), self.group.count, self.seq, self.group.saving.len());
        let saving = self.saving;
        self.line_start = len;
        let (mut undo, mut chains) = (Vec::new(), Vec::new());
        let result = entries.into_iter().try_for_each(|entry| self.entry(entry, &mut undo, &mut chains));
        match result {
            Ok(()) => {
                self.group.seq = self.seq;
                let durable = Durable { first_seq: seq + 1, last_seq: self.seq, chains };
                self.group.pending.push(Pending { done, durable, undo, seq });
            }
            Err(error) => {
                self.undo(undo);
                self.seq = seq;
                self.saving = saving;
                self.group.bytes.truncate(len);
                self.group.count = count;
                self.group.saving.truncate(saved);
                done(Err(error));
            }
        }
    }

    fn entry(
        &mut self,
        entry: Entry,
        undo: &mut Vec<(StreamId, Option<Head>)>,
        chains: &mut Vec<Digest>,
    ) -> Result<(), Error> {
        match entry {
            Entry::Facts { facts, vers } => {
                undo.reserve(facts.len());
                chains.reserve(facts.len());
                for (decided, ver) in facts.into_iter().zip(vers) {
                    self.fact(decided, ver, undo, chains)?;
                }
            }
            Entry::Remember(stream, head) => {
                undo.push((stream.clone(), self.heads.insert(stream, head)));
            }
            Entry::Forget(stream) => {
                if let Some(head) = self.heads.remove(&stream) {
                    if self.saving {
                        self.group.saving.push(Saving::Gone(stream.clone(), head));
                    }
                    undo.push((stream, Some(head)));
                }
            }
            Entry::Begin => {
                self.saving = true;
                let drops = self.drops.load(Ordering::Acquire);
                self.group.saving.push(Saving::Begin(self.seq + 1, drops));
            }
            Entry::Snapshot(snapshot) => self.snapshot(snapshot)?,
            Entry::End => {
                self.saving = false;
                self.group.saving.push(Saving::End);
            }
        }
        Ok(())
    }

    fn fact(
        &mut self,
        Decided { fact, by, at }: Decided,
        ver: u64,
        undo: &mut Vec<(StreamId, Option<Head>)>,
        chains: &mut Vec<Digest>,
    ) -> Result<(), Error> {
        let Fact { stream, tenant, mut event } = fact;
        let known = self.heads.get_mut(&stream);
        let before = known.as_deref().copied();
        let head = before.unwrap_or_default();
        if head.ver.checked_add(1) != Some(ver) {
            return Err(Error::Gap { stream, have: head.ver, ver });
        }
        // Only here is it known what the chain was before.
        if let Event::StreamCarried(carried) = &mut event {
            carried.prior = head.head;
        }
        let draft = Draft { stream: &stream, ver, at, tenant: &tenant, by: &by, event: &event };
        let (seq, salts) = (self.seq + 1, &mut self.salts);
        let bytes = &mut self.group.bytes;
        let chain = draft.encode(&head.head, seq, &mut || salts.draw(), bytes);
        bytes.push(b'\n');
        let len = bytes.len() - self.line_start;
        if len > BATCH_MAX {
            return Err(Error::TooLarge { bytes: len, max: BATCH_MAX });
        }
        self.seq = seq;
        self.group.count += 1;
        chains.push(chain);
        let after = Head { ver, head: chain };
        match known {
            Some(head) => *head = after,
            None => drop(self.heads.insert(stream.clone(), after)),
        }
        undo.push((stream, before));
        Ok(())
    }

    /// A stream's head is known only here; the store knows its version.
    fn snapshot(&mut self, mut snapshot: Box<Snapshot>) -> Result<(), Error> {
        let head = self.heads.get(&snapshot.stream).copied().unwrap_or_default();
        if head.ver != snapshot.state.ver {
            return Err(Error::Gap { stream: snapshot.stream, have: head.ver, ver: snapshot.state.ver });
        }
        snapshot.state.head = head.head;
        self.group.saving.push(Saving::Stream(snapshot));
        Ok(())
    }

    fn undo(&mut self, undo: Vec<(StreamId, Option<Head>)>) {
        for (stream, before) in undo.into_iter().rev() {
            match before {
                Some(head) => drop(self.heads.insert(stream, head)),
                None => drop(self.heads.remove(&stream)),
            }
        }
    }

    /// Takes the group, with an empty one in its place.
    pub(super) fn take(&mut self, empty: Group) -> Group {
        std::mem::replace(&mut self.group, empty)
    }

    /// Takes back a group that was not written, and what was encoded after it; says who waits for what was taken back.
    pub(super) fn take_back(&mut self, failed: &mut Group) {
        let later = std::mem::take(&mut self.group.pending);
        self.group.clear(usize::MAX);
        failed.pending.extend(later);
        let Some(seq) = failed.pending.first().map(|pending| pending.seq) else { return };
        let undos: Vec<_> =
            failed.pending.iter_mut().rev().map(|pending| std::mem::take(&mut pending.undo)).collect();
        undos.into_iter().for_each(|undo| self.undo(undo));
        self.seq = seq;
        self.group.seq = seq;
    }

    /// Whether facts may follow in a stream.
    pub(super) fn is_live(&self, stream: &StreamId) -> bool {
        self.heads.contains_key(stream)
    }

    /// How many streams have a head.
    pub(super) fn live(&self) -> usize {
        self.heads.len()
    }
}
