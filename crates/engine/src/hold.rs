//! Holds of programs elsewhere: who stands in line for a lock or a semaphore, and how each hears of its grant.
//!
//! The line itself is in the stream, so it outlasts everybody. Here is only whom to tell. A grant is told when the batch
//! that made it is durable; whoever is gone by then gives it back.

use crate::fast::Map;
use windlass_core::code::Code;
use windlass_core::event::Event;
use windlass_core::id::Holder;
use windlass_core::machine::Beats;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::command::{Command, Fact, Refusal, Reply};
use windlass_core::turn::state::Body;
use windlass_core::{lock, semaphore};

/// What a holder has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Who.
    pub holder: Holder,
    /// The fence.
    pub epoch: u64,
    /// How many slots; none for a lock.
    pub weight: Option<u32>,
    /// Since when.
    pub acquired_at: Millis,
    /// When it ends unless the holder beats.
    pub expires_at: Option<Millis>,
}

/// What a lock or a semaphore answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// Its own words.
    pub reply: Reply,
    /// What the asker has now, or gave back, or who has the lock instead.
    pub grant: Option<Grant>,
}

/// Whom to tell.
pub type HoldAnswer = Box<dyn FnOnce(Result<Held, Refusal>) + Send>;

/// Somebody who stood in line and is gone.
#[derive(Clone, Debug)]
pub struct Leaving {
    /// The lock or semaphore.
    pub stream: StreamId,
    /// Who.
    pub holder: Holder,
    /// Which asker of that holder.
    pub id: u64,
}

struct Waiter {
    id: u64,
    answer: HoldAnswer,
}

/// Everybody who waits to hear of a grant.
#[derive(Default)]
pub(crate) struct Holds {
    waiting: Map<(StreamId, Holder), Waiter>,
}

/// A waiter whose waiting is over.
pub(crate) struct Over {
    pub(crate) stream: StreamId,
    pub(crate) holder: Holder,
    pub(crate) reply: Reply,
    pub(crate) answer: HoldAnswer,
}

impl Holds {
    /// Notes a waiter. An older one of the same holder hears that another asks in its place.
    pub(crate) fn wait(
        &mut self,
        (stream, holder): (StreamId, Holder),
        id: u64,
        answer: HoldAnswer,
    ) -> Option<HoldAnswer> {
        self.waiting.insert((stream, holder), Waiter { id, answer }).map(|old| old.answer)
    }

    /// Forgets a waiter that is gone. Says whether it was there: if not, it was answered, or another asks in its place.
    pub(crate) fn leave(&mut self, leaving: &Leaving) -> bool {
        let key = (leaving.stream.clone(), leaving.holder.clone());
        let there = self.waiting.get(&key).is_some_and(|waiter| waiter.id == leaving.id);
        if there {
            self.waiting.remove(&key);
        }
        there
    }

    /// Those who were granted something, or left the line, by these facts.
    pub(crate) fn over(&mut self, facts: &[Fact]) -> Vec<Over> {
        let mut over = Vec::new();
        if self.waiting.is_empty() {
            return over;
        }
        for fact in facts {
            let Some((holder, reply)) = ends_waiting(&fact.event) else { continue };
            if let Some(waiter) = self.waiting.remove(&(fact.stream.clone(), holder.clone())) {
                let (stream, holder) = (fact.stream.clone(), holder.clone());
                over.push(Over { stream, holder, reply, answer: waiter.answer });
            }
        }
        over
    }

    /// Everybody, when nobody is going to be told any more.
    pub(crate) fn drain(&mut self) -> Vec<HoldAnswer> {
        self.waiting.drain().map(|(_, waiter)| waiter.answer).collect()
    }
}

fn ends_waiting(event: &Event) -> Option<(&Holder, Reply)> {
    match event {
        Event::LockAcquired(e) => Some((&e.holder, Reply::Lock(lock::Reply::Acquired { epoch: e.epoch }))),
        Event::LockAbandoned(e) => Some((&e.holder, Reply::Lock(lock::Reply::Abandoned))),
        Event::SemaphoreAcquired(e) => {
            Some((&e.holder, Reply::Semaphore(semaphore::Reply::Acquired { epoch: e.epoch })))
        }
        Event::SemaphoreIncreased(e) => {
            Some((&e.holder, Reply::Semaphore(semaphore::Reply::Increased { epoch: e.epoch })))
        }
        Event::SemaphoreAbandoned(e) => Some((&e.holder, Reply::Semaphore(semaphore::Reply::Abandoned))),
        // tidy: every other fact leaves the lines as they are.
        _ => None,
    }
}

/// What a command is about: the lock or semaphore, and who asks.
pub(crate) fn subject(command: &Command) -> Option<(StreamId, Holder)> {
    match command {
        Command::Lock { lock, input } => {
            let holder = match input {
                lock::Input::Acquire(ask) => &ask.holder,
                lock::Input::Release { holder, .. }
                | lock::Input::Heartbeat { holder, .. }
                | lock::Input::Abandon { holder } => holder,
                lock::Input::Configure(_) | lock::Input::Break { .. } | lock::Input::Maintain => return None,
            };
            Some((StreamId::Lock(lock.clone()), holder.clone()))
        }
        Command::Semaphore { semaphore, input } => {
            let holder = match input {
                semaphore::Input::Acquire(ask) => &ask.holder,
                semaphore::Input::Release { holder, .. }
                | semaphore::Input::Heartbeat { holder, .. }
                | semaphore::Input::Break { holder, .. }
                | semaphore::Input::Abandon { holder } => holder,
                semaphore::Input::Configure(_) | semaphore::Input::Maintain => return None,
            };
            Some((StreamId::Semaphore(semaphore.clone()), holder.clone()))
        }
        // tidy: nothing else is held.
        _ => None,
    }
}

/// How somebody who stands in line leaves it.
pub(crate) fn abandon(leaving: &Leaving) -> Option<Command> {
    let holder = leaving.holder.clone();
    match &leaving.stream {
        StreamId::Lock(lock) => {
            Some(Command::Lock { lock: lock.clone(), input: lock::Input::Abandon { holder } })
        }
        StreamId::Semaphore(semaphore) => {
            let input = semaphore::Input::Abandon { holder };
            Some(Command::Semaphore { semaphore: semaphore.clone(), input })
        }
        // tidy: nothing else has a line.
        _ => None,
    }
}

/// Whether an answer says that the asker lives and has what it asked for.
pub(crate) fn lives(reply: &Reply) -> bool {
    matches!(
        reply,
        Reply::Lock(
            lock::Reply::Extended { .. } | lock::Reply::Acquired { .. } | lock::Reply::Reclaimed { .. }
        ) | Reply::Semaphore(
            semaphore::Reply::Extended { .. }
                | semaphore::Reply::AlreadyHeld { .. }
                | semaphore::Reply::Increased { .. }
                | semaphore::Reply::Acquired { .. }
        )
    )
}

/// Whether a command gives something back.
pub(crate) fn gives_up(command: &Command) -> bool {
    matches!(
        command,
        Command::Lock { input: lock::Input::Release { .. }, .. }
            | Command::Semaphore { input: semaphore::Input::Release { .. }, .. }
    )
}

/// Whether an answer says that it was given back.
pub(crate) fn is_given_up(reply: &Reply) -> bool {
    matches!(reply, Reply::Lock(lock::Reply::Released) | Reply::Semaphore(semaphore::Reply::Released))
}

/// Whether an answer says that the asker stands in line.
pub(crate) fn is_queued(reply: &Reply) -> bool {
    matches!(
        reply,
        Reply::Lock(lock::Reply::Queued { .. }) | Reply::Semaphore(semaphore::Reply::Queued { .. })
    )
}

/// What a holder has of a stream. Of a lock that another has, what that one has.
pub(crate) fn grant(body: &Body, holder: &Holder, beats: &Beats) -> Option<Grant> {
    match body {
        Body::Lock(lock) => lock.hold().map(|hold| Grant {
            holder: hold.holder.clone(),
            epoch: hold.epoch,
            weight: None,
            acquired_at: hold.acquired_at,
            expires_at: lock.expires_at(beats),
        }),
        Body::Semaphore(semaphore) => semaphore.holders.get(holder).map(|hold| Grant {
            holder: holder.clone(),
            epoch: hold.epoch,
            weight: Some(hold.weight),
            acquired_at: hold.acquired_at,
            expires_at: semaphore.expires_at(holder, beats),
        }),
        // tidy: nothing else is held.
        _ => None,
    }
}

/// What an older asker hears when a newer one of the same holder stands in its place.
pub(crate) fn superseded() -> Refusal {
    Refusal::new(Code::LockBusy, "the same holder has asked again since, and that one is answered")
}
