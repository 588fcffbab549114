//! Streams that users name: they leave memory when they are at rest, and are read back when their name comes again.
//!
//! ```text
//!  first record ─▶ a row in the history ─▶ at rest for a while ─▶ out of memory
//!                                                ▲                     │ the name comes again
//!                                                └─── read back ◀──────┘ version, head and epochs go on
//! ```
//!
//! Invariant: a stream is out of memory only where its row is committed. What a crash takes of the rows is taken together
//! with the place up to which the log is indexed, and found there again.

use super::live::is_named;
use super::{Embedded, LINGER, Lookups, fault};
use crate::log::{Entry, Seqs};
use std::ops::ControlFlow;
use windlass_core::audit::Head;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_engine::port::Fault;

/// How many named streams linger before the oldest leave earlier.
const RESTING_MAX: usize = 4_096;
/// How many leave in one turn.
const LEAVE_MAX: usize = 64;

/// A stream that came to rest.
pub(super) struct Resting {
    stream: StreamId,
    at: Millis,
    /// The batch that brought it there.
    batch: u64,
}

impl Embedded {
    /// A batch has facts of a named stream, the last of them with this version.
    pub(super) fn note_named(&mut self, stream: &StreamId, first: bool, births: Lookups<'_>) {
        if first {
            // Its records stand after what is durable now.
            births.push((stream.to_string(), self.log.durable_seq() + 1));
            super::retention::lock(&self.going).came_again(stream);
        }
        let Some(found) = self.live.state.stream(stream) else { return };
        if found.body.is_at_rest() {
            let (stream, at) = (stream.clone(), found.at);
            self.resting.push_back(Resting { stream, at, batch: self.batches });
        }
    }

    /// Named streams that are in memory and at rest are on their way out.
    pub(super) fn note_resting(&mut self) {
        let found = self.live.state.others();
        let resting = found.filter(|(id, stream)| is_named(id) && stream.body.is_at_rest());
        let mut resting: Vec<Resting> =
            resting.map(|(stream, found)| Resting { stream, at: found.at, batch: 0 }).collect();
        resting.sort_by_key(|resting| resting.at);
        self.resting = resting.into();
    }

    /// Lets named streams leave memory that have been at rest for a while.
    pub(super) fn names_leave(&mut self, at: Millis, durable: u64, gone: &mut Vec<Entry>) {
        let mut left = 0;
        // A snapshot under way counts on what it has not taken yet.
        while left < LEAVE_MAX && self.saving.is_none() {
            let Some(next) = self.resting.front() else { return };
            let old = next.at + LINGER <= at || self.resting.len() > RESTING_MAX;
            if !old || next.batch > durable {
                return;
            }
            let Some(Resting { stream, at: since, .. }) = self.resting.pop_front() else { return };
            // Something happened to it since: it comes to rest again.
            let rests = self
                .live
                .state
                .stream(&stream)
                .is_some_and(|found| found.at == since && found.body.is_at_rest());
            if !rests {
                continue;
            }
            left += 1;
            // Without its row nobody would find it again; it stays for another time.
            if !matches!(self.live.history.stream(&stream.to_string()), Ok(Some(_))) {
                self.resting.push_back(Resting { stream, at: since, batch: durable });
                continue;
            }
            // Nothing was written since it was read back: whoever comes next reads it again.
            self.remember.retain(|(other, _)| *other != stream);
            self.live.state.evict(&stream);
            self.live.any_left = true;
            gone.push(Entry::Forget(stream));
        }
    }

    /// Reads a named stream back, where it left memory.
    pub(super) fn load_named(&mut self, stream: &StreamId) -> Result<(), Fault> {
        if self.live.state.stream(stream).is_some() {
            return Ok(());
        }
        // From here on it cannot be dropped, unless it was.
        let is_gone = super::retention::lock(&self.going).comes_back(stream);
        let row = match is_gone {
            true => None,
            false => {
                let row = self.live.history.stream(&stream.to_string());
                row.map_err(|error| Fault::Corrupt(error.to_string()))?
            }
        };
        let Some(first) = row else {
            self.live.absent(stream.clone());
            return Ok(());
        };
        let mut head = None;
        let state = &mut self.live.state;
        let seqs = Seqs { first, last: u64::MAX };
        let scanned = self.log.scan(std::slice::from_ref(stream), seqs, &mut |record, _| {
            head = Some(Head { ver: record.ver, head: record.chain });
            // The scan has checked that it follows.
            let _ = state.fold_event(&record);
            ControlFlow::Continue(())
        });
        scanned.map_err(|error| fault(&error))?;
        self.live.state.refresh(stream);
        match head {
            Some(head) => {
                self.remember.push((stream.clone(), head));
                // It leaves again by itself.
                let at = self.live.state.stream(stream).map_or(Millis(0), |found| found.at);
                self.resting.push_back(Resting { stream: stream.clone(), at, batch: self.batches });
            }
            None => self.live.absent(stream.clone()),
        }
        Ok(())
    }
}
