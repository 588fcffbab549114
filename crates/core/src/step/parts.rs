//! What a step may have beside its status: a wait, a lease, gates to pass, members to run.

use crate::event::words::step::{Binding, Bound, FailFast, GroupKind, Shape, Wait};
use crate::id::{Holder, Name};
use crate::machine::Beats;
use crate::time::{Millis, Span};
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// What a step waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Waiting {
    /// What kind of thing.
    pub reason: Wait,
    /// Which one: a lock, a semaphore, an event, a guard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<Name>,
    /// The event's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Name>,
    /// When something happens by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Millis>,
    /// Since when.
    pub since: Millis,
}

/// Output of an attempt that could not be kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputLost {
    /// Which attempt, by its fence.
    pub epoch: u64,
    /// How many bytes of it, at least.
    pub bytes: u64,
    /// Why.
    pub reason: String,
    /// When that was known.
    pub at: Millis,
}

/// What binds a step to approvals: as one that speaks for others, or as one of those.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ties {
    pub(super) bindings: Vec<Binding>,
    pub(super) bound: Option<Bound>,
}

/// Whether an edition of variables is the first, as most are.
#[allow(clippy::trivially_copy_pass_by_ref)] // Serde asks like this.
pub(super) fn is_first(edition: &u32) -> bool {
    *edition == 0
}

/// A lease in force.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leased {
    /// Who has it.
    pub owner: Name,
    /// When it ends unless it is extended.
    pub expires_at: Millis,
    /// When it was given.
    pub granted_at: Millis,
}

impl Leased {
    /// When its executor was last known to live.
    #[must_use]
    pub fn last_seen(&self, holder: &Holder, beats: &Beats) -> Millis {
        beats.last_seen(holder, self.granted_at)
    }

    /// When it ends unless its executor is heard of again: heartbeats are no facts, so no record says so.
    #[must_use]
    pub fn lives_until(&self, holder: &Holder, beats: &Beats) -> Millis {
        self.last_seen(holder, beats) + Span(self.expires_at.since(self.granted_at).0)
    }
}

/// How far a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// What was fixed when it was reached.
    pub shape: Shape,
    /// The member that is next.
    pub next: u32,
    /// How many are under way.
    pub open: u32,
    /// How many failed or were cancelled.
    pub failed: u32,
}

impl Group {
    /// A group of which nothing has begun.
    #[must_use]
    pub fn new(shape: Shape) -> Group {
        Group { shape, next: 0, open: 0, failed: 0 }
    }

    /// Whether another member may begin.
    #[must_use]
    pub fn may_open(&self) -> bool {
        let room = self.next < self.shape.total && self.open < self.shape.width;
        room && !self.is_closed()
    }

    /// Whether a member failed, so that none begins any more. A strategy tries its next approach.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.failed > 0 && self.shape.fail_fast != FailFast::No && self.shape.kind != GroupKind::Strategy
    }

    /// Whether the flow has something to do here: begin a member, keep or stop the others, or end the group.
    #[must_use]
    pub fn wants_attention(&self) -> bool {
        let kill = self.failed > 0 && self.shape.fail_fast == FailFast::Kill;
        self.open == 0 || kill || self.is_closed() || self.may_open()
    }
}
