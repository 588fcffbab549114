//! Signs of life: when an executor of a run was last heard of, and what it means that none is.
//!
//! Heartbeats are no facts. What is known of them is kept beside the state, so it is asked for here.

use super::Run;
use crate::code::Code;
use crate::machine::Beats;
use crate::step::{self, Failure, Step};
use crate::time::{Millis, Span};

/// After how long without a sign of life of its executor a run counts as orphaned.
pub const ORPHAN_AFTER: Span = Span::mins(5);

impl Run {
    /// When an executor of one of its steps was last known to live; where none has one, when the one that lost it was.
    /// None where no executor had anything to do.
    #[must_use]
    pub fn last_heartbeat_at(&self, beats: &Beats) -> Option<Millis> {
        let executing = self.live().filter(|step| step.is_executing());
        let seen = |step: &Step| Some(step.lease.as_ref()?.last_seen(&step.holder(self.id()), beats));
        executing.filter_map(seen).max().or_else(|| self.silent_since())
    }

    /// Since when nothing was heard of an executor that had a step of it, and no other has the step.
    #[must_use]
    pub fn silent_since(&self) -> Option<Millis> {
        let lost = |step: &Step| step.lost_at.filter(|_| step.status == step::Status::Ready);
        self.leasable().filter_map(lost).min()
    }

    /// What is wrong with it while it has no executor for too long.
    #[must_use]
    pub fn orphaned(&self) -> Option<Failure> {
        self.rare().orphaned_at?;
        self.silent_since()?;
        let message =
            "nothing was heard of its step's executor for five minutes, and no other has taken the step";
        Some(Failure::new(Code::RunOrphaned, message))
    }
}
