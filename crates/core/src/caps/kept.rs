//! What a tenant keeps in memory: events that no run took yet, the variables of runs that have not ended, runbooks, and
//! locks and semaphores.
//!
//! Each has a bound, and whoever would go over it is refused: with runs and events that wait, or with versions of a runbook,
//! one tenant could otherwise take all of the memory.

use super::{Caps, Error};
use crate::runbook::Runbook;

/// The most events that nobody took.
pub const SIGNALS_MAX: u64 = 10_000;
/// The most bytes of their data.
pub const SIGNALS_LEN_MAX: u64 = 32 * 1024 * 1024;
/// The most bytes of variables of runs that have not ended.
pub const VARS_LEN_MAX: u64 = 256 * 1024 * 1024;
/// The most runbooks, where a tenant's caps say nothing else. Every version of a file that is run is one.
pub const RUNBOOKS_MAX: u32 = 10_000;
/// The most bytes of them as they are recorded, where a tenant's caps say nothing else.
pub const RUNBOOKS_LEN_MAX: u32 = 64 * 1024 * 1024;
/// The most locks, and the most semaphores, that are in memory: those that are held, waited for or declared, and a few
/// that came to rest lately. Those that exist already may still be used.
pub const NAMES_MAX: u64 = 100_000;
/// The most bytes that one event comes to where several runs wait for it: each gets its data.
pub const FAN_OUT_LEN_MAX: u64 = 16 * 1024 * 1024;

/// The most bytes that one decision comes to. With what else is in its batch it stays far below what a batch may have.
pub const DECISION_LEN_MAX: usize = 32 * 1024 * 1024;
/// From how many bytes on a batch takes no further decision.
pub const TURN_LEN_MAX: usize = 8 * 1024 * 1024;
/// The most bytes of variables that the runs of one request have together, defaults included.
pub const REQUEST_VARS_LEN_MAX: usize = 16 * 1024 * 1024;

/// How much a tenant keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Events that nobody took.
    pub signals: u64,
    /// The bytes of their data.
    pub signals_len: u64,
    /// The bytes of variables of runs that have not ended.
    pub vars_len: u64,
    /// Stored runbooks.
    pub runbooks: u64,
    /// Their bytes as they are recorded.
    pub runbooks_len: u64,
    /// Locks.
    pub locks: u64,
    /// Semaphores.
    pub semaphores: u64,
}

impl Kept {
    /// What one runbook comes to.
    #[must_use]
    pub fn of_runbook(runbook: &Runbook) -> Kept {
        // What cannot be written is not stored.
        let len = serde_json::to_vec(runbook).map_or(0, |bytes| bytes.len() as u64);
        Kept { runbooks: 1, runbooks_len: len, ..Kept::default() }
    }

    /// Whether another runbook may be stored.
    ///
    /// # Errors
    /// [`Error::Kept`].
    pub fn admit_runbook(&self, runbook: &Runbook, caps: &Caps) -> Result<(), Error> {
        let (max, len_max) = (
            u64::from(caps.max_runbooks.unwrap_or(RUNBOOKS_MAX)),
            u64::from(caps.max_runbook_bytes.unwrap_or(RUNBOOKS_LEN_MAX)),
        );
        if self.runbooks >= max {
            return Err(Error::Kept { what: "max_runbooks", max });
        }
        if self.runbooks_len.saturating_add(Kept::of_runbook(runbook).runbooks_len) > len_max {
            return Err(Error::Kept { what: "max_runbook_bytes", max: len_max });
        }
        Ok(())
    }

    /// Whether another event with so much data may be kept.
    ///
    /// # Errors
    /// [`Error::Kept`].
    pub fn admit_signal(&self, len: u64) -> Result<(), Error> {
        if self.signals >= SIGNALS_MAX {
            return Err(Error::Kept { what: "events that nobody waits for yet", max: SIGNALS_MAX });
        }
        if self.signals_len.saturating_add(len) > SIGNALS_LEN_MAX {
            return Err(Error::Kept {
                what: "bytes of events that nobody waits for yet",
                max: SIGNALS_LEN_MAX,
            });
        }
        Ok(())
    }

    /// Whether another lock may be named.
    ///
    /// # Errors
    /// [`Error::Kept`].
    pub fn admit_lock(&self) -> Result<(), Error> {
        if self.locks >= NAMES_MAX {
            return Err(Error::Kept { what: "locks", max: NAMES_MAX });
        }
        Ok(())
    }

    /// Whether another semaphore may be named.
    ///
    /// # Errors
    /// [`Error::Kept`].
    pub fn admit_semaphore(&self) -> Result<(), Error> {
        if self.semaphores >= NAMES_MAX {
            return Err(Error::Kept { what: "semaphores", max: NAMES_MAX });
        }
        Ok(())
    }

    /// Whether another run with so much in its variables may be made.
    ///
    /// # Errors
    /// [`Error::Kept`].
    pub fn admit_vars(&self, len: u64) -> Result<(), Error> {
        if self.vars_len.saturating_add(len) > VARS_LEN_MAX {
            return Err(Error::Kept {
                what: "bytes of variables of runs that have not ended",
                max: VARS_LEN_MAX,
            });
        }
        Ok(())
    }
}

impl core::ops::AddAssign for Kept {
    fn add_assign(&mut self, other: Kept) {
        self.signals += other.signals;
        self.signals_len += other.signals_len;
        self.vars_len += other.vars_len;
        self.runbooks += other.runbooks;
        self.runbooks_len += other.runbooks_len;
        self.locks += other.locks;
        self.semaphores += other.semaphores;
    }
}

impl core::ops::SubAssign for Kept {
    fn sub_assign(&mut self, other: Kept) {
        self.signals -= other.signals;
        self.signals_len -= other.signals_len;
        self.vars_len -= other.vars_len;
        self.runbooks -= other.runbooks;
        self.runbooks_len -= other.runbooks_len;
        self.locks -= other.locks;
        self.semaphores -= other.semaphores;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_stops_at_its_bounds() {
        let of = |signals, signals_len, vars_len| Kept { signals, signals_len, vars_len, ..Kept::default() };
        assert!(of(SIGNALS_MAX - 1, 0, 0).admit_signal(1).is_ok());
        assert!(of(SIGNALS_MAX, 0, 0).admit_signal(0).is_err());
        assert!(of(0, SIGNALS_LEN_MAX - 7, 0).admit_signal(7).is_ok());
        assert!(of(0, SIGNALS_LEN_MAX - 7, 0).admit_signal(8).is_err());
        assert!(of(0, 0, VARS_LEN_MAX - 7).admit_vars(7).is_ok());
        let refused = of(0, 0, VARS_LEN_MAX - 7).admit_vars(8).unwrap_err();
        assert_eq!((refused.code(), refused.retry_at()), (crate::code::Code::CapExceeded, None));
        let named = |locks, semaphores| Kept { locks, semaphores, ..Kept::default() };
        let (below, full) = (named(NAMES_MAX - 1, NAMES_MAX), named(NAMES_MAX, NAMES_MAX - 1));
        assert!(below.admit_lock().is_ok() && full.admit_lock().is_err());
        assert!(full.admit_semaphore().is_ok() && below.admit_semaphore().is_err());
        let book: Runbook =
            serde_json::from_value(serde_json::json!({ "name": "b", "version": 1, "pipelines": {} }))
                .unwrap();
        let one = Kept::of_runbook(&book);
        let caps = Caps { max_runbooks: Some(2), ..Caps::default() };
        assert!(one.admit_runbook(&book, &caps).is_ok());
        let two = Kept { runbooks: 2, ..one };
        assert!(
            two.admit_runbook(&book, &caps).is_err() && two.admit_runbook(&book, &Caps::default()).is_ok()
        );
        let len = |len: u64| Caps { max_runbook_bytes: u32::try_from(len).ok(), ..Caps::default() };
        assert!(one.admit_runbook(&book, &len(2 * one.runbooks_len)).is_ok());
        assert!(one.admit_runbook(&book, &len(2 * one.runbooks_len - 1)).is_err());
    }
}
