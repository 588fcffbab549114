//! Holds: locks and semaphores, and what is granted of them.

use crate::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::id::{Holder, Scoped};
use windlass_core::lock;
use windlass_core::machine::Beats;
use windlass_core::semaphore;

/// A holder as its own tenant knows it.
#[must_use]
pub fn holder(name: &Scoped, holder: &Holder) -> String {
    let text = holder.to_string();
    let own = format!("{}/{}/", name.tenant(), name.namespace());
    text.strip_prefix(&own).map(str::to_owned).unwrap_or(text)
}

/// A holder that waits for a lock or for slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Waiter {
    /// Who.
    pub holder: String,
    /// Since when.
    pub since: Time,
    /// For how many slots of a semaphore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// A lock, and who waits for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Lock {
    /// Its name.
    pub name: String,
    /// Whether it is held.
    pub state: LockState,
    /// Who.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// The fence of the last hold.
    pub epoch: u64,
    /// Since when it is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquired_at: Option<Time>,
    /// When the holder was last heard of, where it sends heartbeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat: Option<Time>,
    /// Until when it is held, unless a heartbeat comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// What the holder says about itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// Who waits, in their order.
    pub waiters: Vec<Waiter>,
}

/// Whether a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LockState {
    /// It is free.
    Free,
    /// It is held.
    Held,
}

impl Lock {
    /// A lock by its name.
    #[must_use]
    pub fn of(name: &Scoped, lock: &lock::Lock, beats: &Beats) -> Lock {
        let hold = match &lock.state {
            lock::State::Held(hold) => Some(hold),
            lock::State::Free => None,
        };
        let waiter = |w: &lock::Waiter| Waiter {
            holder: holder(name, &w.holder),
            since: w.queued_at.into(),
            weight: None,
        };
        Lock {
            name: name.name().to_owned(),
            state: if hold.is_some() { LockState::Held } else { LockState::Free },
            holder: hold.map(|hold| holder(name, &hold.holder)),
            epoch: lock.epoch,
            acquired_at: hold.map(|hold| hold.acquired_at.into()),
            last_heartbeat: lock.last_heartbeat(beats).map(Time),
            expires_at: lock.expires_at(beats).map(Time),
            metadata: hold.and_then(|hold| hold.metadata.clone()),
            waiters: lock.waiters.iter().map(waiter).collect(),
        }
    }
}

/// A semaphore, and who waits for its slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Semaphore {
    /// Its name.
    pub name: String,
    /// How many slots there are.
    pub capacity: u32,
    /// How many are used.
    pub used: u32,
    /// How many are free.
    pub available: u32,
    /// Who has slots.
    pub holders: Vec<Slots>,
    /// Who waits, in their order.
    pub waiters: Vec<Waiter>,
}

/// Slots that are held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Slots {
    /// Who.
    pub holder: String,
    /// How many.
    pub weight: u32,
    /// The fence of the grant.
    pub epoch: u64,
    /// Since when.
    pub acquired_at: Time,
    /// When the holder was last heard of, where it sends heartbeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat: Option<Time>,
    /// Until when, unless a heartbeat comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

impl Semaphore {
    /// A semaphore by its name.
    #[must_use]
    pub fn of(name: &Scoped, semaphore: &semaphore::Semaphore, beats: &Beats) -> Semaphore {
        let holders = semaphore.holders.iter().map(|(who, hold)| Slots {
            holder: holder(name, who),
            weight: hold.weight,
            epoch: hold.epoch,
            acquired_at: hold.acquired_at.into(),
            last_heartbeat: semaphore.last_heartbeat(who, beats).map(Time),
            expires_at: semaphore.expires_at(who, beats).map(Time),
        });
        let waiters = semaphore.waiters.iter().map(|w| Waiter {
            holder: holder(name, &w.holder),
            since: w.queued_at.into(),
            weight: Some(w.weight),
        });
        Semaphore {
            name: name.name().to_owned(),
            capacity: semaphore.config.capacity,
            used: semaphore.holders.values().map(|hold| hold.weight).sum(),
            available: semaphore.available(),
            holders: holders.collect(),
            waiters: waiters.collect(),
        }
    }
}

/// What became of a request for a lock or for slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Grant {
    /// The lock or the semaphore.
    pub name: String,
    /// Who has it: the caller, or another.
    pub holder: String,
    /// acquired, extended, reclaimed, busy, full, released, not_owner and the like.
    pub result: String,
    /// The fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquired_at: Option<Time>,
    /// Until when, unless a heartbeat comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// How many slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// How many slots are free, where there are too few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<u32>,
}

/// What an operator saw before taking a hold away.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Break {
    /// The fence of the hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Whose slots of a semaphore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
}
