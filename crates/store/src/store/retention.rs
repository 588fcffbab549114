//! Retention: runs that ended long ago leave the history and the log.
//!
//! They are nowhere to be found from the moment they are chosen, then their records leave the log, and then their rows the
//! history. A process that ends in between finds them again at the next time, because their rows are still there.

use super::Embedded;
use crate::history;
use crate::log::{Compacted, Error, Log};
use std::sync::Arc;
use windlass_core::id::RunId;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_engine::fast::Set;

/// How many runs leave at once. More leave the next time.
const RETIRED_MAX: usize = 200_000;

/// Runs that leave, and the log that they leave. It is carried out wherever there is time for it.
pub struct Retiring {
    log: Arc<Log>,
    runs: Arc<Set<RunId>>,
}

impl Retiring {
    /// How many they are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether they are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Takes their records out of the log.
    ///
    /// # Errors
    /// As for any compaction; the log is as it was then.
    pub fn carry_out(&self) -> Result<Compacted, Error> {
        self.log.compact(&|stream| !matches!(stream, StreamId::Run(run) if self.runs.contains(run)))
    }
}

impl Embedded {
    /// Chooses the runs that ended before a time and have left memory. They are gone for everybody from here on.
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn retire(&mut self, before: Millis) -> Result<Retiring, history::Error> {
        let ended = self.live.history.ended_before(before, RETIRED_MAX)?;
        let runs = ended.into_iter().filter(|run| self.live.state.run(*run).is_none()).collect();
        self.retiring = Arc::new(runs);
        Ok(Retiring { log: self.log.clone(), runs: self.retiring.clone() })
    }

    /// Their records are out of the log, or stay for another time. Those that went are known until the next time, because
    /// their rows leave the history a little later.
    pub fn retired(&mut self, gone: bool) {
        if gone {
            self.live.history.remove(&self.retiring.iter().copied().collect::<Vec<_>>());
            // A snapshot from before would bring them back.
            self.save();
        } else {
            self.retiring = Arc::default();
        }
    }

    /// Whether a run is about to leave.
    pub(super) fn is_retiring(&self, run: RunId) -> bool {
        self.retiring.contains(&run)
    }

    /// How many runs the history has.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn listed(&self) -> Result<u64, history::Error> {
        self.live.history.count()
    }
}
