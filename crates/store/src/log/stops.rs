//! Where readers stopped: so that a reader who reads on begins there, and not at the beginning of a file.
//!
//! A page of the log costs one seek then, and not a walk through the segment it stands in. What is kept is a hint: a
//! reader who finds no stop walks through the file.

use super::index::Index;
use super::layout::Piece;
use super::walk::Tie;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// How many stops are kept; the oldest makes room.
const STOPS_MAX: usize = 64;

/// A place in a file where a batch begins, with what that batch follows from.
#[derive(Clone)]
pub(super) struct Stop {
    /// Tells the file. It does not keep it, so that what compaction replaces goes.
    index: Weak<Index>,
    pub(super) offset: u64,
    pub(super) tie: Tie,
}

impl Stop {
    /// Whether the stop is in this file.
    pub(super) fn is_in(&self, piece: &Piece) -> bool {
        std::ptr::eq(self.index.as_ptr(), Arc::as_ptr(&piece.index))
    }
}

/// The stops of a log.
#[derive(Default)]
pub(super) struct Stops(Mutex<VecDeque<Stop>>);

impl Stops {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Stop>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last stop in this file behind which no record before a seq stands.
    pub(super) fn before(&self, piece: &Piece, seq: u64) -> Option<Stop> {
        let stops = self.lock();
        let of_piece = stops.iter().filter(|stop| stop.is_in(piece) && stop.tie.seq < seq);
        of_piece.max_by_key(|stop| stop.offset).cloned()
    }

    /// A reader stopped here.
    pub(super) fn put(&self, piece: &Piece, offset: u64, tie: Tie) {
        let mut stops = self.lock();
        // It is the newest now, and there once.
        stops.retain(|stop| !(stop.is_in(piece) && stop.offset == offset) && stop.index.strong_count() > 0);
        if stops.len() >= STOPS_MAX {
            stops.pop_front();
        }
        stops.push_back(Stop { index: Arc::downgrade(&piece.index), offset, tie });
    }
}
