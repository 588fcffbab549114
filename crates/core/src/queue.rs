//! A queue: its settings, and whether anything is taken from it. Its items are streams of their own.
//!
//! ```text
//!  configure ──▶ active ◀── resume ── paused
//!                  │ └───── pause ──────▲ │
//!                  └── withdraw ─▶ withdrawn ◀┘ ── configure ──▶ active
//! ```
//!
//! The queue admits pushes while it is active or paused, takes unless it is paused, and never holds its items: where
//! they are is what [`Index`] derives from them. One that no deployed runbook declares any more can be emptied. A change of settings is for the items pushed after it.

pub mod index;
pub use index::{Counts, Index, Spot};

use crate::code::Code;
use crate::digest::Digest;
use crate::event::{Event, QueueCreated, QueuePaused, QueueResumed, QueueWithdrawn};
use crate::id::{ItemId, Name, Scoped};
use crate::item::Terms;
use crate::machine::{Decision, Row, table};
use crate::time::{Millis, Span};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most items that may wait in a queue, whatever its settings say.
pub const DEPTH_MAX: u64 = 10_000_000;
/// The most tries an item may have.
pub const ATTEMPTS_MAX: u32 = 1_000;
/// The longest visibility time-out and cool-down.
pub const SPAN_MAX: Span = Span::hours(24 * 30);

/// What can happen to a queue.
pub const TABLE: &[Row] = table! {
    "absent": "configure" => "active";
    "active": "configure" => "active";
    "active": "pause" => "paused";
    "active": "resume" => "active";
    "active": "push" => "active";
    "active": "put_back" => "active";
    "active": "take" => "active";
    "paused": "configure" => "paused";
    "paused": "pause" => "paused";
    "paused": "resume" => "active";
    "paused": "push" => "paused";
    "paused": "put_back" => "paused";
    "active": "withdraw" => "withdrawn";
    "paused": "withdraw" => "withdrawn";
    "withdrawn": "withdraw" => "withdrawn";
    "withdrawn": "configure" => "active";
    "withdrawn": "put_back" => "withdrawn";
    "withdrawn": "take" => "withdrawn";
};

/// What a runbook says about a queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// What its items take over.
    pub terms: Terms,
    /// How many items may wait; [`DEPTH_MAX`] where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<u64>,
    /// Whether a push without a key is known by its data.
    pub dedupe: bool,
}

impl Default for Settings {
    /// What holds where the runbook is silent: one try, and 30 seconds of silence.
    fn default() -> Self {
        let terms = Terms {
            max_attempts: 1,
            cooldown: Span::ZERO,
            visibility_timeout: Span::secs(30),
            dead_letter: None,
        };
        Settings { terms, max_depth: None, dedupe: false }
    }
}

impl Settings {
    fn check(&self, name: &str) -> Result<(), Error> {
        let Terms { max_attempts, cooldown, visibility_timeout, dead_letter } = &self.terms;
        if !(1..=ATTEMPTS_MAX).contains(max_attempts) {
            return Err(Error::Invalid("max_attempts is not between 1 and 1000"));
        }
        if *visibility_timeout == Span::ZERO || *visibility_timeout > SPAN_MAX {
            return Err(Error::Invalid("visibility_timeout is not between 1ms and 30d"));
        }
        if *cooldown > SPAN_MAX {
            return Err(Error::Invalid("cooldown is longer than 30d"));
        }
        if self.max_depth.is_some_and(|depth| !(1..=DEPTH_MAX).contains(&depth)) {
            return Err(Error::Invalid("max_depth is not between 1 and 10000000"));
        }
        if dead_letter.as_ref().is_some_and(|queue| queue.as_str() == name) {
            // An item would die into the queue it died in, for ever.
            return Err(Error::Invalid("dead_letter names the queue itself"));
        }
        Ok(())
    }
}

/// Where a queue stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum State {
    /// No runbook declared it. A deployment moves it on.
    #[default]
    Absent,
    /// Items are pushed and taken. Somebody may pause it.
    Active(Settings),
    /// Items are pushed and wait. Somebody may resume it.
    Paused(Settings),
    /// No deployed runbook declares it any more: items are taken and none are pushed. A deployment moves it on.
    Withdrawn(Settings),
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// Its name, in its tenant and namespace.
    pub id: Scoped,
    /// Where it stands.
    pub state: State,
}

/// What a queue is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Exist, with these settings.
    Configure(Settings),
    /// Give nothing out.
    Pause,
    /// Give out again.
    Resume,
    /// No deployed runbook declares it any more.
    Withdraw,
    /// May an item be pushed? `depth` and `known` are gathered from the index: how many wait, and who has the
    /// push's [`Queue::key`]. A dead item that is `forwarded` here is not held back by the queue's own bound: that is
    /// for those who could push later.
    Push { depth: u64, known: Option<ItemId>, forwarded: bool },
    /// May an item that failed or died here wait again? As with a push.
    PutBack { depth: u64, known: Option<ItemId> },
    /// May an item be taken?
    Take,
}

/// A queue's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is as asked.
    Done,
    /// It was so before; nothing changed.
    AlreadyDone,
    /// The item may be pushed, under these terms.
    Admitted(Terms),
    /// An item with that key waits or is worked on: it is the answer.
    Known(ItemId),
    /// Items may be taken.
    Open,
}

/// Why a queue refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No runbook declared it.
    #[error("there is no such queue: deploy a runbook that declares it")]
    NotFound,
    /// No deployed runbook declares it any more.
    #[error(
        "no deployed runbook declares the queue any more: what it holds can be taken, and nothing is pushed"
    )]
    Withdrawn,
    /// As many items wait as may.
    #[error("the queue is full: {max} items may wait, and with what is pushed it would be more")]
    Full { max: u64 },
    /// An item with the same key waits or is worked on.
    #[error("item {0} has the same dedupe key, and is not done")]
    Known(ItemId),
    /// Nothing is given out.
    #[error("the queue is paused")]
    Paused,
    /// A setting is out of its bounds.
    #[error("{0}")]
    Invalid(&'static str),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Error::NotFound | Error::Withdrawn => Code::NotFound,
            Error::Full { .. } => Code::QueueFull,
            Error::Known(_) => Code::LockBusy,
            Error::Paused => Code::RunInvalidTransition,
            Error::Invalid(_) => Code::InvalidInput,
        }
    }
}

impl Queue {
    /// A queue that nobody declared yet.
    #[must_use]
    pub const fn new(id: Scoped) -> Queue {
        Queue { id, state: State::Absent }
    }

    /// Its state, as the table names it.
    #[must_use]
    pub const fn state_name(&self) -> &'static str {
        match self.state {
            State::Absent => "absent",
            State::Active(_) => "active",
            State::Paused(_) => "paused",
            State::Withdrawn(_) => "withdrawn",
        }
    }

    /// Its settings, once it was declared.
    #[must_use]
    pub const fn settings(&self) -> Option<&Settings> {
        match &self.state {
            State::Absent => None,
            State::Active(settings) | State::Paused(settings) | State::Withdrawn(settings) => Some(settings),
        }
    }

    /// The key that a push is known by: the caller's own, or in a queue with `dedupe` the digest of its data.
    #[must_use]
    pub fn key(&self, given: Option<&Name>, data: &Value) -> Option<Name> {
        let by_data = || {
            let digest = Digest::of(&[&crate::canonical::bytes(data)]);
            Name::clean(&alloc::format!("sha256:{digest}"))
        };
        let derives = self.settings().is_some_and(|settings| settings.dedupe);
        given.cloned().or_else(|| derives.then(by_data))
    }

    /// What would come of an input.
    ///
    /// # Errors
    /// A queue that is not declared, full or paused, and settings out of their bounds.
    pub fn decide(&self, input: &Input, _at: Millis) -> Result<Decision<Reply>, Error> {
        use State::{Absent, Active, Paused, Withdrawn};
        let done = Decision::reply(Reply::Done);
        match (&self.state, input) {
            (Absent | Withdrawn(_), Input::Configure(new)) => {
                new.check(self.id.name())?;
                Ok(done.fact(self.created(new)))
            }
            (Active(old) | Paused(old), Input::Configure(new)) => {
                new.check(self.id.name())?;
                // A deployment says again what holds already.
                Ok(if old == new { self.unchanged() } else { done.fact(self.created(new)) })
            }
            (
                Absent,
                Input::Pause
                | Input::Resume
                | Input::Withdraw
                | Input::Push { .. }
                | Input::PutBack { .. }
                | Input::Take,
            ) => Err(Error::NotFound),
            (Withdrawn(_), Input::Pause | Input::Resume | Input::Push { .. }) => Err(Error::Withdrawn),
            (Active(_) | Paused(_), Input::Withdraw) => {
                Ok(done.fact(QueueWithdrawn { queue_name: self.name(), namespace: self.namespace() }))
            }
            (Withdrawn(_), Input::Withdraw) => Ok(self.unchanged()),

            (Active(_), Input::Pause) => {
                Ok(done.fact(QueuePaused { queue_name: self.name(), namespace: self.namespace() }))
            }
            (Paused(_), Input::Resume) => {
                Ok(done.fact(QueueResumed { queue_name: self.name(), namespace: self.namespace() }))
            }
            // Two people may pause at once, and both are right.
            (Paused(_), Input::Pause) | (Active(_), Input::Resume) => Ok(self.unchanged()),

            // The duplicate comes first: a full queue still answers for what it holds.
            (Active(_) | Paused(_), Input::Push { known: Some(item), .. }) => {
                Ok(Decision::reply(Reply::Known(*item)))
            }
            (Active(settings) | Paused(settings), Input::Push { depth, known: None, forwarded }) => {
                let own = settings.max_depth.filter(|_| !forwarded);
                room(*depth, own)?;
                Ok(Decision::reply(Reply::Admitted(settings.terms.clone())))
            }
            (Active(_) | Paused(_) | Withdrawn(_), Input::PutBack { known: Some(item), .. }) => {
                Err(Error::Known(*item))
            }
            (
                Active(settings) | Paused(settings) | Withdrawn(settings),
                Input::PutBack { depth, known: None },
            ) => {
                room(*depth, settings.max_depth)?;
                Ok(done)
            }
            (Active(_) | Withdrawn(_), Input::Take) => Ok(Decision::reply(Reply::Open)),
            (Paused(_), Input::Take) => Err(Error::Paused),
        }
    }

    /// What a fact makes of it.
    #[must_use]
    pub fn apply(self, event: &Event, _at: Millis) -> Queue {
        let id = self.id;
        let state = match (self.state, event) {
            (State::Absent | State::Active(_) | State::Withdrawn(_), Event::QueueCreated(e)) => {
                State::Active(settings_of(e))
            }
            (State::Active(settings) | State::Paused(settings), Event::QueueWithdrawn(_)) => {
                State::Withdrawn(settings)
            }
            (State::Paused(_), Event::QueueCreated(e)) => State::Paused(settings_of(e)),
            (State::Active(settings), Event::QueuePaused(_)) => State::Paused(settings),
            (State::Paused(settings), Event::QueueResumed(_)) => State::Active(settings),
            // Everything else belongs to other streams, or says what is so already.
            (state, _) => state,
        };
        Queue { id, state }
    }

    fn unchanged(&self) -> Decision<Reply> {
        Decision::reply(Reply::AlreadyDone)
    }

    fn name(&self) -> Name {
        Name::clean(self.id.name())
    }

    fn namespace(&self) -> Name {
        Name::clean(self.id.namespace())
    }

    fn created(&self, settings: &Settings) -> QueueCreated {
        QueueCreated {
            queue_name: self.name(),
            namespace: self.namespace(),
            visibility_timeout_ms: settings.terms.visibility_timeout.0,
            max_attempts: settings.terms.max_attempts,
            cooldown_ms: settings.terms.cooldown.0,
            max_depth: settings.max_depth,
            dead_letter: settings.terms.dead_letter.clone(),
            dedupe: settings.dedupe,
        }
    }
}

/// Whether one more may wait.
fn room(depth: u64, max: Option<u64>) -> Result<(), Error> {
    let max = max.unwrap_or(DEPTH_MAX);
    if depth >= max { Err(Error::Full { max }) } else { Ok(()) }
}

fn settings_of(e: &QueueCreated) -> Settings {
    Settings {
        terms: Terms {
            max_attempts: e.max_attempts,
            cooldown: Span(e.cooldown_ms),
            visibility_timeout: Span(e.visibility_timeout_ms),
            dead_letter: e.dead_letter.clone(),
        },
        max_depth: e.max_depth,
        dedupe: e.dedupe,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Proof, name};
    use proptest::prelude::*;
    use serde_json::json;
    use std::vec;
    use std::vec::Vec;

    const AT: Millis = Millis(1_000);

    fn queue() -> Queue {
        Queue::new(Scoped::parse("acme/prod/bugs").unwrap())
    }

    fn step(queue: &Queue, input: &Input) -> Result<Queue, Error> {
        let decision = queue.decide(input, AT)?;
        Ok(decision.facts.iter().fold(queue.clone(), |queue, fact| queue.apply(fact, AT)))
    }

    fn after(inputs: &[Input]) -> Queue {
        inputs.iter().fold(queue(), |queue, input| step(&queue, input).unwrap())
    }

    fn push(depth: u64, known: Option<ItemId>) -> Input {
        Input::Push { depth, known, forwarded: false }
    }

    fn small() -> Settings {
        Settings { max_depth: Some(2), dedupe: true, ..Settings::default() }
    }

    #[test]
    fn the_table_holds() {
        Proof {
            name: "queue",
            about: "A queue admits pushes always and gives items out while it is active.",
            table: TABLE,
            states: vec![
                ("absent", queue()),
                ("active", after(&[Input::Configure(small())])),
                ("paused", after(&[Input::Configure(small()), Input::Pause])),
                ("withdrawn", after(&[Input::Configure(small()), Input::Withdraw])),
            ],
            inputs: vec![
                ("configure", Input::Configure(small())),
                ("configure", Input::Configure(Settings::default())),
                ("pause", Input::Pause),
                ("resume", Input::Resume),
                ("withdraw", Input::Withdraw),
                ("push", push(1, None)),
                ("push", push(2, None)),
                ("push", push(2, Some(ItemId(1)))),
                ("push", Input::Push { depth: 2, known: None, forwarded: true }),
                ("put_back", Input::PutBack { depth: 1, known: None }),
                ("put_back", Input::PutBack { depth: 2, known: None }),
                ("put_back", Input::PutBack { depth: 1, known: Some(ItemId(1)) }),
                ("take", Input::Take),
            ],
        }
        .check(|queue, input| step(queue, input).map(|q| q.state_name()).map_err(|e| e.code()));
    }

    #[test]
    fn depth_is_bounded_with_and_without_a_setting() {
        let full = |queue: &Queue, depth| queue.decide(&push(depth, None), AT);
        let queue = after(&[Input::Configure(small())]);
        assert!(full(&queue, 1).is_ok());
        assert_eq!(full(&queue, 2), Err(Error::Full { max: 2 }));
        let back = |known| queue.decide(&Input::PutBack { depth: 2, known }, AT).unwrap_err().code();
        assert_eq!((back(None), back(Some(ItemId(1)))), (Code::QueueFull, Code::LockBusy));
        // A dead item comes in nevertheless, unless the queue is as full as any may be.
        let forward = |depth| queue.decide(&Input::Push { depth, known: None, forwarded: true }, AT);
        assert!(forward(DEPTH_MAX - 1).is_ok());
        assert_eq!(forward(DEPTH_MAX), Err(Error::Full { max: DEPTH_MAX }));
        let open = after(&[Input::Configure(Settings::default())]);
        assert!(full(&open, DEPTH_MAX - 1).is_ok());
        assert_eq!(full(&open, DEPTH_MAX).unwrap_err().code(), Code::QueueFull);
    }

    #[test]
    fn a_known_key_answers_with_its_item_even_when_the_queue_is_full() {
        let queue = after(&[Input::Configure(small())]);
        let known = queue.decide(&push(9, Some(ItemId(7))), AT).unwrap();
        assert_eq!(known.reply, Reply::Known(ItemId(7)));
    }

    #[test]
    fn a_key_is_the_callers_own_or_the_datas_where_the_queue_says_so() {
        let dedupes = after(&[Input::Configure(small())]);
        let plain = after(&[Input::Configure(Settings::default())]);
        let own = name("BUG-1");
        assert_eq!(plain.key(Some(&own), &json!(1)), Some(own.clone()));
        assert_eq!(plain.key(None, &json!(1)), None);
        assert_eq!(dedupes.key(Some(&own), &json!(1)), Some(own));
        let key = dedupes.key(None, &json!({"a": 1, "b": 2}));
        assert_eq!(key, dedupes.key(None, &json!({"b": 2, "a": 1})));
        assert_ne!(key, dedupes.key(None, &json!({"a": 2})));
    }

    #[test]
    fn settings_out_of_bounds_are_refused() {
        let with = |change: &dyn Fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            queue().decide(&Input::Configure(settings), AT).map_err(|e| e.code())
        };
        assert!(with(&|_| {}).is_ok());
        for change in [
            &|s: &mut Settings| s.terms.max_attempts = 0,
            &|s: &mut Settings| s.terms.max_attempts = ATTEMPTS_MAX + 1,
            &|s: &mut Settings| s.terms.visibility_timeout = Span::ZERO,
            &|s: &mut Settings| s.terms.cooldown = Span(SPAN_MAX.0 + 1),
            &|s: &mut Settings| s.max_depth = Some(0),
            &|s: &mut Settings| s.max_depth = Some(DEPTH_MAX + 1),
            &|s: &mut Settings| s.terms.dead_letter = Some(name("bugs")),
        ] as [&dyn Fn(&mut Settings); 7]
        {
            assert_eq!(with(change), Err(Code::InvalidInput));
        }
    }

    fn any_input() -> impl Strategy<Value = Input> {
        prop_oneof![
            (0..4u32, any::<bool>()).prop_map(|(max_attempts, dedupe)| {
                let mut settings = Settings { dedupe, ..Settings::default() };
                settings.terms.max_attempts = max_attempts;
                Input::Configure(settings)
            }),
            Just(Input::Pause),
            Just(Input::Resume),
            (0..3u64, any::<Option<u8>>())
                .prop_map(|(depth, known)| push(depth, known.map(|n| ItemId(n.into())))),
            Just(Input::Take),
        ]
    }

    proptest! {
        #[test]
        fn any_prefix_and_suffix_fold_alike(inputs in prop::collection::vec(any_input(), 0..40), cut in any::<prop::sample::Index>()) {
            let mut queue = queue();
            let mut facts = Vec::new();
            for input in &inputs {
                if let Ok(decision) = queue.decide(input, AT) {
                    queue = decision.facts.iter().fold(queue, |queue, fact| queue.apply(fact, AT));
                    facts.extend(decision.facts);
                }
            }
            let (head, tail) = facts.split_at(cut.index(facts.len() + 1));
            let half = head.iter().fold(self::queue(), |queue, fact| queue.apply(fact, AT));
            let kept: Queue = serde_json::from_str(&serde_json::to_string(&half).unwrap()).unwrap();
            let whole = tail.iter().fold(kept, |queue, fact| queue.apply(fact, AT));
            prop_assert_eq!(whole, queue);
        }
    }
}
