//! What a semaphore is asked, and what it answers.

use super::{CAPACITY_MAX, Config};
use crate::code::Code;
use crate::id::{Holder, Scoped};
use crate::lock::WAITERS_MAX;
use crate::time::Millis;

/// Somebody who wants slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Who.
    pub holder: Holder,
    /// How many it wants to have in all.
    pub weight: u32,
    /// Whether it stands in line when there are too few.
    pub wait: bool,
    /// When it stops waiting.
    pub give_up_at: Option<Millis>,
}

impl Ask {
    /// Whether it stands in line: it wants to, and its time is not over.
    pub(super) fn waits(&self, at: Millis) -> bool {
        self.wait && self.give_up_at.is_none_or(|give_up_at| give_up_at > at)
    }
}

/// What can happen to a semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A runbook declares it.
    Configure(Config),
    /// Somebody wants slots.
    Acquire(Ask),
    /// A holder gives all its slots back; `epoch` says which grant, where the holder knows.
    Release { holder: Holder, epoch: Option<u64> },
    /// A holder lives. Nothing is recorded: the engine notes it in [`Beats`](crate::machine::Beats).
    Heartbeat { holder: Holder, epoch: u64 },
    /// An operator takes a holder's slots; `epoch` says which grant the operator saw.
    Break { holder: Holder, epoch: Option<u64> },
    /// A waiter leaves the line.
    Abandon { holder: Holder },
    /// Time passed: take the slots of who is stale, drop who gave up.
    Maintain,
}

/// The answer to an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Size and time-out stand.
    Configured,
    /// The asker has its slots.
    Acquired { epoch: u64 },
    /// The asker has had as many all the while. The engine notes that it lives, as for a heartbeat.
    AlreadyHeld { epoch: u64 },
    /// The asker has more than before, under the same epoch.
    Increased { epoch: u64 },
    /// There are too few, and the asker does not wait. It keeps what it has.
    Full { available: u32 },
    /// The asker stands in line; 1 is next.
    Queued { position: usize },
    /// The holder lives.
    Extended { epoch: u64 },
    /// The hold has ended.
    Released,
    /// It holds nothing.
    NotHolder,
    /// The waiter left the line.
    Abandoned,
    /// It does not stand in line.
    NotWaiting,
    /// What was due is done.
    Maintained,
}

impl Reply {
    /// The word for it in answers to callers.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Reply::Configured => "configured",
            Reply::Acquired { .. } => "acquired",
            Reply::AlreadyHeld { .. } => "already_held",
            Reply::Increased { .. } => "increased",
            Reply::Full { .. } => "full",
            Reply::Queued { .. } => "queued",
            Reply::Extended { .. } => "extended",
            Reply::Released => "released",
            Reply::NotHolder => "not_holder",
            Reply::Abandoned => "abandoned",
            Reply::NotWaiting => "not_waiting",
            Reply::Maintained => "maintained",
        }
    }
}

/// Why an input is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nobody said how many slots it has.
    #[error("semaphore `{0}` is not declared: no deployed runbook gives it a capacity")]
    Undeclared(Scoped),
    /// A weight that can never be granted.
    #[error("a weight of {weight} is not between 1 and the capacity of {capacity}")]
    Weight {
        /// The weight that was asked for.
        weight: u32,
        /// The capacity.
        capacity: u32,
    },
    /// A size or time-out that makes no sense.
    #[error("semaphore `{0}` needs a capacity from 1 to {CAPACITY_MAX} and a time-out longer than 0s")]
    Config(Scoped),
    /// The epoch is not the one of the holder's present grant.
    #[error("epoch {given} of semaphore `{semaphore}` is over; the last one given is {last}")]
    StaleEpoch {
        /// Which semaphore.
        semaphore: Scoped,
        /// The epoch that came.
        given: u64,
        /// The last epoch given.
        last: u64,
    },
    /// Who beats has none of its slots.
    #[error("`{holder}` has no slots of semaphore `{semaphore}`")]
    Without {
        /// Which semaphore.
        semaphore: Scoped,
        /// Who says that it has some.
        holder: Holder,
    },
    /// The line is as long as it may be.
    #[error("{WAITERS_MAX} wait for semaphore `{0}` already")]
    LineFull(Scoped),
}

impl Error {
    /// Its stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Error::Undeclared(_) => Code::NotFound,
            Error::Weight { .. } | Error::Config(_) => Code::InvalidInput,
            Error::StaleEpoch { .. } | Error::Without { .. } => Code::LeaseStaleEpoch,
            Error::LineFull(_) => Code::CapExceeded,
        }
    }
}
