//! What every machine has in common.
//!
//! A machine is a value with two functions. `decide(&self, input, at)` says what would happen: facts for
//! its own stream, what follows for other streams, effects on the outside, an answer for the caller; it changes nothing. `apply(self,
//! &Event, at)` is what a fact does to it; it decides nothing and cannot fail, because what is in the log has
//! happened. Replay only applies.
//!
//! ```text
//!   input ──▶ decide ──▶ facts ──▶ commit ──▶ apply ──▶ next state
//!                    └─▶ effects ────┴──▶ released only after the commit
//! ```

use crate::digest::Digest;
use crate::effect::Effect;
use crate::event::Event;
use crate::follow::Follow;
use crate::id::Holder;
use crate::origin::Actor;
use crate::template::Evaluate;
use crate::time::{Millis, Span};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// What a machine decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision<Reply = ()> {
    /// What becomes true, in order. All of it is committed together, or none.
    pub facts: Vec<Event>,
    /// What follows from it for other streams, in the same commit.
    pub follow: Vec<Follow>,
    /// What is asked of the outside, after the commit.
    pub effects: Vec<Effect>,
    /// The answer to whoever asked.
    pub reply: Reply,
}

impl<Reply> Decision<Reply> {
    /// An answer that changes nothing.
    pub fn reply(reply: Reply) -> Self {
        Decision { facts: Vec::new(), follow: Vec::new(), effects: Vec::new(), reply }
    }

    /// Adds a fact.
    #[must_use]
    pub fn fact(mut self, fact: impl Into<Event>) -> Self {
        // Most decisions come to one fact. Events are large, and a list that grows by itself begins with four.
        if self.facts.is_empty() {
            self.facts.reserve_exact(1);
        }
        self.facts.push(fact.into());
        self
    }

    /// Adds what follows for another stream.
    #[must_use]
    pub fn then(mut self, follow: impl IntoIterator<Item = Follow>) -> Self {
        self.follow.extend(follow);
        self
    }

    /// Adds an effect.
    #[must_use]
    pub fn effect(mut self, effect: Effect) -> Self {
        self.effects.push(effect);
        self
    }
}

impl<Reply> Decision<Reply> {
    /// Adds all that another decision came to, but for its answer.
    pub fn join<Other>(&mut self, more: Decision<Other>) {
        let Decision { facts, follow, effects, reply: _ } = more;
        // Most are joined to one that has no facts yet, and need not be copied.
        if self.facts.is_empty() {
            self.facts = facts;
        } else {
            self.facts.extend(facts);
        }
        self.follow.extend(follow);
        self.effects.extend(effects);
    }

    /// The decision with another answer, and the answer that it had.
    pub fn answer<Other>(self, reply: Other) -> (Decision<Other>, Reply) {
        let Decision { facts, follow, effects, reply: had } = self;
        (Decision { facts, follow, effects, reply }, had)
    }
}

impl Decision {
    /// A decision without an answer of its own.
    #[must_use]
    pub fn new() -> Self {
        Decision::reply(())
    }
}

impl Default for Decision {
    fn default() -> Self {
        Decision::new()
    }
}

/// What a decision is given from outside, because the core can make none of it.
pub struct Given<'a> {
    /// The time of the records it makes.
    pub at: Millis,
    /// Who or what asks.
    pub by: &'a Actor,
    /// The policy in force.
    pub policy: Digest,
    /// How long a lease lasts without a heartbeat.
    pub lease_ttl: Span,
    /// Evaluates expressions.
    pub evaluate: &'a dyn Evaluate,
    /// Makes ids: unique, sorted by time, unguessable.
    pub ids: &'a mut dyn FnMut() -> u128,
}

impl Given<'_> {
    /// A fresh id.
    pub fn id(&mut self) -> u128 {
        (self.ids)()
    }

    /// A span moved by up to a fifth in either direction, so that what failed together does not return together.
    pub fn jitter(&mut self, span: Span) -> Span {
        const STEPS: u64 = 4_096;
        let step = (self.id() % u128::from(STEPS + 1)) as u64;
        let fifth = span.0 / 5;
        Span(span.0 - fifth + (fifth * 2).saturating_mul(step) / STEPS)
    }
}

/// The last heartbeats of grants. They are kept outside log and snapshot; after a restart every grant gets
/// one whole time-out, because nobody could beat while nobody listened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beats {
    /// Since when heartbeats are heard: the start of the process.
    pub since: Millis,
    /// The last heartbeat of each holder.
    pub seen: BTreeMap<Holder, Millis>,
}

impl Beats {
    /// When the holder of a grant was last known to live.
    #[must_use]
    pub fn last_seen(&self, holder: &Holder, granted_at: Millis) -> Millis {
        let beat = self.seen.get(holder).copied().unwrap_or_default();
        granted_at.max(self.since).max(beat)
    }
}

/// A row of a machine's table: in `from`, `input` leads to one of `to`. What has no row is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The state before.
    pub from: &'static str,
    /// The input.
    pub input: &'static str,
    /// The states it can lead to.
    pub to: &'static [&'static str],
}

/// Writes a machine's table the way it is read: `table! { "from": "input" => "to" | "other"; … }`.
#[allow(unused_macros)]
macro_rules! table {
    ($( $from:literal : $input:literal => $( $to:literal )|+ );+ $(;)?) => {
        &[$( $crate::machine::Row { from: $from, input: $input, to: &[$( $to ),+] } ),+]
    };
}
#[allow(unused_imports)]
pub(crate) use table;
