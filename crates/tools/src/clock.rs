//! The time of this machine, and ids made of it.

use std::time::{SystemTime, UNIX_EPOCH};
use windlass_core::time::Millis;
use windlass_engine::port::{Clock, Ids};

/// The clock of this machine.
#[derive(Debug, Default)]
pub struct System;

impl Clock for System {
    fn now(&self) -> Millis {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Version 7 UUIDs: sorted by time, also within a millisecond, and unguessable.
#[derive(Debug, Default)]
pub struct Sorted;

impl Ids for Sorted {
    fn next(&mut self) -> u128 {
        fresh()
    }
}

/// A fresh id.
#[must_use]
pub fn fresh() -> u128 {
    uuid::Uuid::now_v7().as_u128()
}
