//! What a lock is asked, and what it answers.

use super::{Config, METADATA_LEN_MAX, WAITERS_MAX};
use crate::code::Code;
use crate::id::{Holder, Scoped};
use crate::time::Millis;
use serde_json::Value;

/// Somebody who wants the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Who.
    pub holder: Holder,
    /// What it says about itself.
    pub metadata: Option<Value>,
    /// Whether it stands in line when another has the lock.
    pub wait: bool,
    /// When it stops waiting.
    pub give_up_at: Option<Millis>,
}

/// What can happen to a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A runbook declares it with these time-outs; they hold for the present holder too.
    Configure(Config),
    /// Somebody wants it.
    Acquire(Ask),
    /// The holder gives it back; `epoch` says which grant, where the holder knows.
    Release { holder: Holder, epoch: Option<u64> },
    /// The holder lives. Nothing is recorded: the engine notes it in [`Beats`](crate::machine::Beats).
    Heartbeat { holder: Holder, epoch: u64 },
    /// An operator takes it from whoever has it; `epoch` says which grant the operator saw. Who did it stands
    /// in the record.
    Break { epoch: Option<u64> },
    /// A waiter leaves the line.
    Abandon { holder: Holder },
    /// Time passed: take the lock from who is stale or overdue, drop who gave up.
    Maintain,
}

/// The answer to an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The time-outs stand.
    Configured,
    /// The asker has the lock.
    Acquired { epoch: u64 },
    /// The asker has had it all the while, under the same epoch. It lives: the engine notes that in
    /// [`Beats`](crate::machine::Beats), whether it beat or asked again.
    Extended { epoch: u64 },
    /// The asker has it, taken from a holder that was stale or overdue.
    Reclaimed { epoch: u64 },
    /// Another has it, and the asker does not wait.
    Busy { holder: Holder },
    /// The asker stands in line; 1 is next.
    Queued { position: usize },
    /// The hold has ended.
    Released,
    /// Another has it: nothing was released.
    NotOwner { holder: Holder },
    /// Nobody had it.
    AlreadyFree,
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
            Reply::Extended { .. } => "extended",
            Reply::Reclaimed { .. } => "reclaimed",
            Reply::Busy { .. } => "busy",
            Reply::Queued { .. } => "queued",
            Reply::Released => "released",
            Reply::NotOwner { .. } => "not_owner",
            Reply::AlreadyFree => "already_free",
            Reply::Abandoned => "abandoned",
            Reply::NotWaiting => "not_waiting",
            Reply::Maintained => "maintained",
        }
    }
}

/// Why an input is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The epoch is not the one of the present hold.
    #[error("epoch {given} of lock `{lock}` is over; the last one given is {last}")]
    StaleEpoch {
        /// Which lock.
        lock: Scoped,
        /// The epoch that came.
        given: u64,
        /// The last epoch given.
        last: u64,
    },
    /// Another one holds it.
    #[error("lock `{lock}` is held by `{holder}`, and not by `{given}`")]
    Others {
        /// Which lock.
        lock: Scoped,
        /// Who says that it holds it.
        given: Holder,
        /// Who does.
        holder: Holder,
    },
    /// The line is as long as it may be.
    #[error("{WAITERS_MAX} wait for lock `{0}` already")]
    LineFull(Scoped),
    /// The metadata is too large.
    #[error("the metadata has {0} bytes of JSON; {METADATA_LEN_MAX} are allowed")]
    Metadata(usize),
    /// A time-out of nothing would take the lock from everybody at once.
    #[error("the time-outs of lock `{0}` must be longer than 0s")]
    Config(Scoped),
}

impl Error {
    /// Its stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Error::StaleEpoch { .. } | Error::Others { .. } => Code::LeaseStaleEpoch,
            Error::LineFull(_) => Code::CapExceeded,
            Error::Metadata(_) | Error::Config(_) => Code::InvalidInput,
        }
    }
}
