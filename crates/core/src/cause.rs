//! Causes: who or what each fact of a turn is put down to.
//!
//! A turn begins with a command, and its facts are put down to the actor who sent that. Two facts are causes of their own:
//! what follows from a human's decision on an approval is put down to the approval, and what follows from policy's answer
//! to policy, unless policy allows. The decision itself stays with the one who made it.

use crate::event::Event;
use crate::origin::{Actor, Initiator};
use crate::policy::Verdict;
use crate::stream::StreamId;
use alloc::string::ToString as _;

/// The actor of a look at the clock for a stream. What becomes due there is a time-out, a back-off or an expiry; a
/// schedule's slots and a worker's look at its queue are the engine's own work.
#[must_use]
pub const fn of_tick(stream: &StreamId) -> Actor {
    match stream {
        StreamId::Run(_)
        | StreamId::Item(_)
        | StreamId::Lock(_)
        | StreamId::Semaphore(_)
        | StreamId::Signal(_)
        | StreamId::Retired(_)
        | StreamId::Trigger(_) => Actor { initiator: Initiator::Timeout, id: None },
        StreamId::Queue(_)
        | StreamId::Worker(_)
        | StreamId::Schedule(_)
        | StreamId::Effect(_)
        | StreamId::Runbook(_)
        | StreamId::Deployment(_)
        | StreamId::Workspace(_)
        | StreamId::Session(_)
        | StreamId::Tenant(_)
        | StreamId::Tokens(_)
        | StreamId::System => Actor::SYSTEM,
    }
}

/// Follows the facts of one turn, in their order, and says for each who or what caused it.
#[derive(Clone, Debug)]
pub struct Causes {
    now: Actor,
    asked: Actor,
}

impl Causes {
    /// The facts of a command that this actor sent.
    #[must_use]
    pub fn new(asked: &Actor) -> Causes {
        Causes { now: asked.clone(), asked: asked.clone() }
    }

    /// The cause of the turn's next fact.
    pub fn of(&mut self, event: &Event) -> Actor {
        match event {
            Event::ApprovalDecided(e) => {
                self.now = Actor::new(Initiator::Approval, &e.approval_id.to_string());
                self.asked.clone()
            }
            Event::PolicyDecided(e) => {
                if e.verdict != Verdict::Allow {
                    self.now = Actor { initiator: Initiator::Policy, id: None };
                }
                self.asked.clone()
            }
            // tidy: nothing else is a cause of its own.
            _ => self.now.clone(),
        }
    }
}
