//! The installation's own stream: seals, the keys that make them, what was exported, and what starts found.
//!
//! Which heads a seal covers is known to whoever follows the log, because only committed records have heads. Here it is
//! checked that a seal follows from the one before and is made with the key that is in force, so two of them can never
//! stand side by side.

use crate::audit::{Input, Rotation, Sealer};
use crate::code::Code;
use crate::digest::Digest;
use crate::event::{EpochsRaised, Event, KeyRotated, SealCreated, StreamCarried};
use crate::id::Name;
use crate::stream::StreamId;
use crate::time::Millis;
use crate::turn::command::{Outcome, Refusal, Reply};
use crate::turn::state::Body;
use crate::turn::{Found, View, of_stream};
use alloc::vec;
use alloc::vec::Vec;
use serde_json::Value;

/// Whose the facts of the installation are: nobody's.
#[must_use]
pub(crate) fn owner() -> Name {
    Name::clean("system")
}

fn sealer(view: &dyn View) -> Result<Sealer, Refusal> {
    match view.find(&StreamId::System) {
        Found::Here(Body::System(sealer)) => Ok((**sealer).clone()),
        Found::Here(_) | Found::Absent => Ok(Sealer::default()),
        Found::Unloaded => Err(Refusal::Need(vec![StreamId::System])),
    }
}

fn facts(facts: Vec<Event>) -> Outcome {
    of_stream(StreamId::System, &owner(), facts, Reply::Done)
}

/// Records a seal that was signed outside.
pub(crate) fn seal(view: &dyn View, new: &SealCreated) -> Result<Outcome, Refusal> {
    let last = sealer(view)?;
    let follows = Some(new.number) == last.number.checked_add(1) && new.previous == last.previous;
    let goes_on = new.through.is_some_and(|through| through >= last.through);
    if !follows || !goes_on || Some(&new.key_id) != last.key_id.as_ref() {
        let text = alloc::format!("seal {} does not follow from the last one", new.number);
        return Err(Refusal::new(Code::RunInvalidTransition, text));
    }
    Ok(facts(vec![new.clone().into()]))
}

/// Another key takes over.
pub(crate) fn rotate(view: &dyn View, new: &KeyRotated, at: Millis) -> Result<Outcome, Refusal> {
    let decided = sealer(view)?.decide(&Input::Rotate(Rotation::recorded(new)), at);
    let decision = decided.map_err(|error| Refusal::new(error.code(), alloc::format!("{error}")))?;
    Ok(facts(decision.facts))
}

/// The epoch that a lock or semaphore of which nothing is known must be above.
pub(crate) fn epochs(view: &dyn View) -> Result<u64, Refusal> {
    match view.find(&StreamId::System) {
        Found::Here(Body::System(sealer)) => Ok(sealer.epochs),
        Found::Here(_) | Found::Absent => Ok(0),
        Found::Unloaded => Err(Refusal::Need(vec![StreamId::System])),
    }
}

/// Locks and semaphores with epochs up to this one are about to leave the log.
pub(crate) fn raise_epochs(view: &dyn View, floor: u64) -> Result<Outcome, Refusal> {
    if floor <= epochs(view)? {
        return Ok(Outcome::reply(Reply::Done));
    }
    Ok(facts(vec![EpochsRaised { floor }.into()]))
}

/// Says what a stream came to, so that its earlier records may leave the log. The log adds the chain value before.
pub(crate) fn carry(view: &dyn View, stream: &StreamId) -> Result<Outcome, Refusal> {
    let state = match view.find(stream) {
        Found::Here(body) => body.carried(),
        Found::Absent => None,
        Found::Unloaded => return Err(Refusal::Need(vec![stream.clone()])),
    };
    Ok(match (state, stream.owner()) {
        (Some(state), Some(tenant)) => of_stream(stream.clone(), &tenant, vec![carried(state)], Reply::Done),
        (_, _) => Outcome::reply(Reply::Done),
    })
}

/// A stream goes on, or begins, with this.
pub(crate) fn carried(state: Value) -> Event {
    StreamCarried { prior: Digest::default(), state }.into()
}

/// Notes what the installation itself did or found.
pub(crate) fn note(view: &dyn View, fact: impl Into<Event>) -> Result<Outcome, Refusal> {
    sealer(view)?;
    Ok(facts(vec![fact.into()]))
}
