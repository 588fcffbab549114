//! The ports: what the loop needs from outside, as small traits.

use crate::release::Released;
use std::sync::Arc;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::effect::Effect;
use windlass_core::id::{Name, RunId, StepId};
use windlass_core::run::Actor;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::Overlay;
use windlass_core::turn::command::{Command, Fact};
use windlass_core::turn::index::Taker;

/// Why a store could not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// There is no room. Nothing of the batch is there; reads go on, and writes will when there is room again.
    #[error("the store is full: {0}")]
    Full(String),
    /// The batch has more bytes than one may, which the bounds on decisions and turns keep from happening. Nothing of it is
    /// there.
    #[error("{0}")]
    TooLarge(String),
    /// It builds on a batch that did not last.
    #[error("{0}: try again")]
    Undone(String),
    /// What was written may or may not last. The process must end: only a restart can tell.
    #[error("the store cannot promise what it wrote: {0}")]
    Lost(String),
    /// What is stored cannot be read.
    #[error("the store is damaged: {0}")]
    Corrupt(String),
}

impl Fault {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Fault::Full(_) => Code::StoreFull,
            Fault::TooLarge(_) => Code::CapExceeded,
            Fault::Undone(_) => Code::Unavailable,
            Fault::Lost(_) => Code::Internal,
            Fault::Corrupt(_) => Code::StoreCorrupt,
        }
    }
}

/// A fact with who caused it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// What becomes true.
    pub fact: Fact,
    /// Who or what caused it.
    pub by: Actor,
    /// The time of its record: that of the turn that decided it.
    pub at: Millis,
}

/// Called once, when a batch is durable or has failed. It is called on whichever thread knows first.
pub type Done = Box<dyn FnOnce(Result<(), Fault>) + Send>;

/// Everything that one turn decided. It becomes true as a whole or not at all.
pub struct Batch {
    /// The time of the turn; some of its facts may be of an earlier one.
    pub at: Millis,
    /// The facts, in the order they were decided. None of them: the batch only waits for those before it.
    pub facts: Vec<Decided>,
    /// Whom to tell.
    pub done: Done,
}

/// A step that an executor has leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    /// The run.
    pub run: RunId,
    /// The step.
    pub step: StepId,
    /// The fence.
    pub epoch: u64,
    /// Who.
    pub owner: Name,
    /// When it was leased.
    pub since: Millis,
}

/// What a store finds after a start: all of it derived from the state, none of it remembered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// What a bounded turn left over.
    pub commands: Vec<Command>,
    /// What is outstanding outside.
    pub effects: Vec<Effect>,
    /// Attempts under way when the process ended.
    pub leases: Vec<Leased>,
    /// The time of the newest record: the last sign of life of the process before.
    pub last_at: Option<Millis>,
}

/// Where streams are kept.
///
/// The view holds at least what was loaded. Picks are hints from the indexes that the core derives, with what this
/// turn decided in them; a decision on the loaded streams has the last word. Batches become durable in the order they were committed.
pub trait Store {
    /// What decisions look at and apply their facts to.
    fn view(&mut self) -> &mut dyn Overlay;

    /// Brings streams into the view, or the knowledge that they are not there.
    ///
    /// # Errors
    /// What is stored cannot be read.
    fn load(&mut self, streams: &[StreamId]) -> Result<(), Fault>;

    /// Takes over a batch whose facts the view has already. `soon` says that nothing else is waiting, so that it
    /// pays to write it here and now.
    fn commit(&mut self, batch: Batch, soon: bool);

    /// Throws away what was decided and could not be committed: the view is again what is durable.
    ///
    /// # Errors
    /// What is stored cannot be read.
    fn reload(&mut self) -> Result<(), Fault>;

    /// Whether there is room again after [`Fault::Full`].
    fn has_room(&mut self) -> bool;

    /// The run whose turn it is to get a step leased by this executor, with the steps that can be.
    fn pick_ready(&mut self, taker: &Taker<'_>) -> Option<(RunId, Vec<StepId>)>;

    /// Puts a picked run back in line: nothing of it was leased.
    fn put_back(&mut self, run: RunId);

    /// Streams that want a tick by `at`, at most so many.
    fn pick_due(&mut self, at: Millis, max: usize) -> Vec<StreamId>;

    /// When the next stream wants a tick.
    fn next_due(&mut self) -> Option<Millis>;

    /// Leases that ended by `at` unless somebody extended them.
    fn pick_expired(&mut self, at: Millis) -> Vec<Leased>;

    /// A heartbeat of a holder from outside.
    fn beat(&mut self, holder: windlass_core::id::Holder, at: Millis);

    /// The time of the newest record and of the newest id that is known at a start. Time and ids go on from there.
    fn newest(&self) -> Option<Millis>;

    /// What is to be taken up after a start.
    ///
    /// # Errors
    /// What is stored cannot be read.
    fn recover(&mut self, at: Millis) -> Result<Found, Fault>;

    /// Called between turns, for work that the store spreads over time. Says whether there is more of it.
    fn idle(&mut self, at: Millis) -> bool;
}

/// Where the time comes from.
pub trait Clock: Send + Sync {
    /// Milliseconds since the epoch. It never decreases.
    fn now(&self) -> Millis;

    /// From now on it is at least this time: something was recorded then. A clock that is behind goes on from there.
    fn not_before(&self, at: Millis);
}

/// Where ids come from: unique, sorted by time, unguessable.
pub trait Ids: Send {
    /// A fresh one.
    fn next(&mut self) -> u128;
}

/// Which policy is in force. Its answers come as commands, because they are made outside the loop.
pub trait Policy: Send + Sync {
    /// The version in force.
    fn version(&self) -> Digest;
}

/// Where effects go once they may happen.
pub trait Outside: Send + Sync {
    /// Starts an effect. It must not block: it is called where batches become durable.
    fn start(&self, released: Released);
    /// Tells several callers what became of what they asked for. Where they wait on threads of their own, one of those can
    /// tell the others, and only that one has to be woken.
    fn tell(&self, several: Box<dyn FnOnce() + Send>) {
        several();
    }
    /// The store cannot promise what it wrote. The process must end here.
    fn fatal(&self, fault: &Fault);
}

impl<T: Outside + ?Sized> Outside for Arc<T> {
    fn start(&self, released: Released) {
        (**self).start(released);
    }
    fn tell(&self, several: Box<dyn FnOnce() + Send>) {
        (**self).tell(several);
    }
    fn fatal(&self, fault: &Fault) {
        (**self).fatal(fault);
    }
}
