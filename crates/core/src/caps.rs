//! Caps: how much of everything a tenant may have at once, and whose turn it is.
//!
//! A tenant has caps; a runbook may have its own, which only tighten them. Three questions are asked of them,
//! and each is answered before anything starts: may a run be made ([`Caps::admit_run`], over the sliding
//! minute of a [`Window`]), may a step be leased ([`Caps::admit_step`]), may a run write outside once more
//! ([`Caps::admit_write`]). What is not capped is admitted. Whose turn it is among those admitted is [`Fair`]'s.

mod fair;
mod kept;
pub use fair::{Entry, Fair, WEIGHT_MAX};
pub use kept::{
    DECISION_LEN_MAX, FAN_OUT_LEN_MAX, Kept, NAMES_MAX, REQUEST_VARS_LEN_MAX, RUNBOOKS_LEN_MAX, RUNBOOKS_MAX,
    SIGNALS_LEN_MAX, SIGNALS_MAX, TURN_LEN_MAX, VARS_LEN_MAX,
};

use crate::code::Code;
use crate::event::TenantConfigured;
use crate::time::{Millis, Span};
use alloc::collections::VecDeque;
use serde::{Deserialize, Serialize};

/// How far back run starts are counted.
pub const MINUTE: Span = Span::mins(1);

/// The caps of a tenant, or of a runbook within it. What is absent is not capped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Caps {
    /// How many steps may run at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<u32>,
    /// How many runs may be made within any minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_runs_per_min: Option<u32>,
    /// How many times a run may write outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_writes_per_run: Option<u32>,
    /// How many runbooks may be stored; [`RUNBOOKS_MAX`] where absent. Only a tenant has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_runbooks: Option<u32>,
    /// How many bytes they may have; [`RUNBOOKS_LEN_MAX`] where absent. Only a tenant has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_runbook_bytes: Option<u32>,
}

/// Which cap is reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// As many steps run as may.
    #[error("max_concurrency: {max} steps run already")]
    Concurrency { max: u32 },
    /// As many runs were made within the last minute as may. It is worth coming back at `retry_at`, if ever.
    #[error("max_runs_per_min: {max} runs were made within the last minute")]
    Rate { max: u32, retry_at: Option<Millis> },
    /// The run wrote outside as many times as it may.
    #[error("max_writes_per_run: the run wrote {max} times already")]
    Writes { max: u32 },
    /// As much is kept of a kind as may be.
    #[error("{what}: {max} is the most of a tenant")]
    Kept { what: &'static str, max: u64 },
}

impl Error {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Error::Concurrency { .. } | Error::Rate { .. } | Error::Writes { .. } | Error::Kept { .. } => {
                Code::CapExceeded
            }
        }
    }

    /// When it is worth trying again, where time alone helps.
    #[must_use]
    pub const fn retry_at(&self) -> Option<Millis> {
        match self {
            Error::Rate { retry_at, .. } => *retry_at,
            Error::Concurrency { .. } | Error::Writes { .. } | Error::Kept { .. } => None,
        }
    }
}

impl From<&TenantConfigured> for Caps {
    fn from(e: &TenantConfigured) -> Caps {
        Caps {
            max_concurrency: e.max_concurrency,
            max_runs_per_min: e.max_runs_per_min,
            max_writes_per_run: e.max_writes_per_run,
            max_runbooks: e.max_runbooks,
            max_runbook_bytes: e.max_runbook_bytes,
        }
    }
}

impl Caps {
    /// Both caps at once: of each the lower. So a file can tighten what its tenant has, and never loosen it.
    #[must_use]
    pub fn tighten(self, other: Caps) -> Caps {
        let lower = |a: Option<u32>, b: Option<u32>| a.into_iter().chain(b).min();
        Caps {
            max_concurrency: lower(self.max_concurrency, other.max_concurrency),
            max_runs_per_min: lower(self.max_runs_per_min, other.max_runs_per_min),
            max_writes_per_run: lower(self.max_writes_per_run, other.max_writes_per_run),
            max_runbooks: lower(self.max_runbooks, other.max_runbooks),
            max_runbook_bytes: lower(self.max_runbook_bytes, other.max_runbook_bytes),
        }
    }

    /// Whether a run may be made, beside so many that the same commit makes before it. The caller records it in the window
    /// when it is.
    ///
    /// # Errors
    /// [`Error::Rate`] with the time when the window has room again; never where the commit alone is too much.
    pub fn admit_run(&self, window: &Window, beside: usize, at: Millis) -> Result<(), Error> {
        match self.max_runs_per_min {
            Some(max) => {
                let left = max.saturating_sub(u32::try_from(beside).unwrap_or(u32::MAX));
                if window.count(at) < u64::from(left) {
                    return Ok(());
                }
                Err(Error::Rate { max, retry_at: window.room_at(left, at) })
            }
            None => Ok(()),
        }
    }

    /// Whether a step may be leased while `active` run.
    ///
    /// # Errors
    /// [`Error::Concurrency`] when as many run as may.
    pub fn admit_step(&self, active: u32) -> Result<(), Error> {
        match self.max_concurrency {
            Some(max) if active >= max => Err(Error::Concurrency { max }),
            Some(_) | None => Ok(()),
        }
    }

    /// Whether a run that wrote outside `writes` times may do so again.
    ///
    /// # Errors
    /// [`Error::Writes`] when it wrote as many times as it may.
    pub fn admit_write(&self, writes: u32) -> Result<(), Error> {
        match self.max_writes_per_run {
            Some(max) if writes >= max => Err(Error::Writes { max }),
            Some(_) | None => Ok(()),
        }
    }
}

/// The run starts of a tenant within the last minute, exact to the millisecond.
///
/// Starts of one millisecond share an entry, so there are at most as many entries as a minute has
/// milliseconds, however many runs are made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    starts: VecDeque<(Millis, u64)>,
    total: u64,
}

impl Window {
    /// The most entries it ever has.
    pub const LEN_MAX: usize = MINUTE.0 as usize;

    /// A run was made. A time before the last one counts as the last one: history does not run backwards.
    pub fn record(&mut self, at: Millis) {
        let last = self.starts.back().map_or(at, |(last, _)| *last);
        let at = at.never_before(last);
        while let Some((start, runs)) = self.starts.front()
            && is_over(*start, at)
        {
            self.total = self.total.saturating_sub(*runs);
            self.starts.pop_front();
        }
        match self.starts.back_mut() {
            Some((last, runs)) if *last == at => *runs = runs.saturating_add(1),
            Some(_) | None => self.starts.push_back((at, 1)),
        }
        self.total = self.total.saturating_add(1);
    }

    /// How many runs were made within the minute before `at`.
    #[must_use]
    pub fn count(&self, at: Millis) -> u64 {
        let over = self.starts.iter().take_while(|(start, _)| is_over(*start, at));
        self.total.saturating_sub(over.map(|(_, runs)| runs).sum())
    }

    /// When fewer than `max` runs lie within the minute; never where `max` is nought.
    #[must_use]
    pub fn room_at(&self, max: u32, at: Millis) -> Option<Millis> {
        if max == 0 {
            return None;
        }
        let mut left = self.total;
        for (start, runs) in &self.starts {
            if left < u64::from(max) {
                break;
            }
            left = left.saturating_sub(*runs);
            if left < u64::from(max) {
                return Some((*start + MINUTE).max(at));
            }
        }
        Some(at)
    }
}

fn is_over(start: Millis, at: Millis) -> bool {
    start + MINUTE <= at
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn rate(max: u32) -> Caps {
        Caps { max_runs_per_min: Some(max), ..Caps::default() }
    }

    #[test]
    fn the_minute_slides() {
        let mut window = Window::default();
        for at in [0, 10, 10] {
            assert_eq!(rate(3).admit_run(&window, 0, Millis(at)), Ok(()));
            window.record(Millis(at));
        }
        let full = |at, back| {
            let refused = rate(3).admit_run(&window, 0, Millis(at)).unwrap_err();
            assert_eq!((refused.code(), refused.retry_at()), (Code::CapExceeded, back));
        };
        full(20, Some(Millis(60_000)));
        full(59_999, Some(Millis(60_000)));
        assert_eq!(rate(3).admit_run(&window, 0, Millis(60_000)), Ok(()));
        assert_eq!(
            rate(2).admit_run(&window, 0, Millis(60_000)).unwrap_err().retry_at(),
            Some(Millis(60_010))
        );
        assert_eq!(rate(0).admit_run(&window, 0, Millis(90_000)).unwrap_err().retry_at(), None);
        assert_eq!(Caps::default().admit_run(&window, 0, Millis(20)), Ok(()));
        // Those of the same commit count, and what alone is too much has no time.
        let beside = |max, n| rate(max).admit_run(&window, n, Millis(60_000)).map_err(|e| e.retry_at());
        assert_eq!((beside(4, 1), beside(3, 1)), (Ok(()), Err(Some(Millis(60_010)))));
        assert_eq!(beside(3, 3), Err(None));
    }

    #[test]
    fn a_window_never_grows_beyond_a_minute_of_milliseconds() {
        let mut window = Window::default();
        for at in 0..2 * MINUTE.0 {
            window.record(Millis(at));
            window.record(Millis(at));
        }
        assert_eq!(window.starts.len(), Window::LEN_MAX);
        assert_eq!(window.total, 2 * MINUTE.0);
    }

    #[test]
    fn steps_and_writes_stop_at_their_caps() {
        let caps = Caps { max_concurrency: Some(2), max_writes_per_run: Some(1), ..Caps::default() };
        assert_eq!(caps.admit_step(1), Ok(()));
        assert_eq!(caps.admit_step(2), Err(Error::Concurrency { max: 2 }));
        assert_eq!(caps.admit_write(0), Ok(()));
        assert_eq!(caps.admit_write(1), Err(Error::Writes { max: 1 }));
        assert_eq!((Caps::default().admit_step(9), Caps::default().admit_write(9)), (Ok(()), Ok(())));
    }

    fn any_caps() -> impl Strategy<Value = Caps> {
        let cap = || prop::option::of(0..9u32);
        (cap(), cap(), cap()).prop_map(|(max_concurrency, max_runs_per_min, max_writes_per_run)| Caps {
            max_concurrency,
            max_runs_per_min,
            max_writes_per_run,
            ..Caps::default()
        })
    }

    proptest! {
        #[test]
        fn tightening_never_loosens(a in any_caps(), b in any_caps(), used in 0..10u32) {
            let both = a.tighten(b);
            prop_assert_eq!(both, b.tighten(a));
            prop_assert_eq!(both.admit_step(used).is_ok(), a.admit_step(used).and(b.admit_step(used)).is_ok());
            prop_assert_eq!(both.admit_write(used).is_ok(), a.admit_write(used).and(b.admit_write(used)).is_ok());
        }

        #[test]
        fn no_minute_ever_has_more_runs_than_the_cap(
            max in 1..6u32,
            waits in prop::collection::vec(prop_oneof![0..50u64, 0..40_000u64], 1..120),
        ) {
            let mut window = Window::default();
            let mut made: Vec<Millis> = Vec::new();
            let mut at = Millis(7);
            for wait in waits {
                at = at + Span(wait);
                let within = made.iter().filter(|start| !is_over(**start, at)).count() as u64;
                prop_assert_eq!(window.count(at), within);
                match rate(max).admit_run(&window, 0, at) {
                    Ok(()) => {
                        prop_assert!(within < u64::from(max));
                        window.record(at);
                        made.push(at);
                    }
                    Err(refused) => {
                        prop_assert!(within >= u64::from(max));
                        let back = refused.retry_at().unwrap();
                        prop_assert!(rate(max).admit_run(&window, 0, back).is_ok());
                        prop_assert!(back > at && rate(max).admit_run(&window, 0, back - Span(1)).is_err());
                    }
                }
            }
            let kept = serde_json::to_string(&window).unwrap();
            prop_assert_eq!(serde_json::from_str::<Window>(&kept).unwrap(), window);
        }
    }
}
