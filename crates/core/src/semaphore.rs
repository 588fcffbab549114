//! Semaphores: a number of slots, holders with weights, and a line of those who wait.
//!
//! A grant is made only while the weights of all holders, the new one included, fit the capacity. The
//! line is strict: a light waiter does not overtake a heavy one before it, and neither does somebody who
//! has just come, so nobody starves. One exception keeps the line moving: a waiter heavier than a capacity
//! that was lowered since cannot be served by anybody's leaving. It keeps its place for the day the
//! capacity is raised, and those behind it are served meanwhile.
//!
//! ```text
//!                   configure            acquire            acquire (no room)
//!   undeclared ───────────────▶ idle ◀──────────▶ shared ◀───────────────────▶ contended
//!                                       release              release: the line is served at once
//! ```
//!
//! Lowering the capacity takes nothing from anybody; it only stops new grants. A holder may ask for more
//! slots than it has: it gets them when there is room and nobody is waiting that could use it, and
//! otherwise keeps what it has. It never waits for more, because two holders that wait for each other's
//! slots wait for ever. Outside holders beat; runs and their steps do not, as with locks.

use crate::event::{
    Event, SemaphoreAbandoned, SemaphoreAcquired, SemaphoreConfigured, SemaphoreIncreased, SemaphoreQueued,
    SemaphoreReclaimed, SemaphoreReleased,
};
use crate::follow::{Follow, Told};
use crate::id::{Holder, Name, Scoped};
use crate::lock::{HEARTBEAT_TIMEOUT, WAITERS_MAX, last_seen, tell};
use crate::machine::{Beats, Decision, Row, table};
use crate::small::Map;
use crate::time::{Millis, Span};
use alloc::collections::VecDeque;
use serde::{Deserialize, Serialize};

mod message;
pub use message::{Ask, Error, Input, Reply};

/// What leads where. An undeclared semaphore has no capacity, so nobody can take anything from it; a
/// heartbeat where nobody holds anything names a grant that is gone.
pub const TABLE: &[Row] = table! {
    "undeclared": "configure" => "idle";
    "undeclared": "release" => "undeclared";
    "undeclared": "break" => "undeclared";
    "undeclared": "abandon" => "undeclared";
    "undeclared": "maintain" => "undeclared";
    "idle": "configure" => "idle";
    "idle": "acquire" => "shared";
    "idle": "release" => "idle";
    "idle": "break" => "idle";
    "idle": "abandon" => "idle";
    "idle": "maintain" => "idle";
    "shared": "configure" => "shared";
    "shared": "acquire" => "shared" | "contended";
    "shared": "release" => "idle" | "shared";
    "shared": "heartbeat" => "shared";
    "shared": "break" => "idle" | "shared";
    "shared": "abandon" => "shared";
    "shared": "maintain" => "idle" | "shared";
    "contended": "configure" => "shared" | "contended";
    "contended": "acquire" => "shared" | "contended";
    "contended": "release" => "idle" | "shared" | "contended";
    "contended": "heartbeat" => "contended";
    "contended": "break" => "idle" | "shared" | "contended";
    "contended": "abandon" => "idle" | "shared" | "contended";
    "contended": "maintain" => "idle" | "shared" | "contended";
};

/// The largest capacity; it bounds the number of holders too, as each has at least one slot.
pub const CAPACITY_MAX: u32 = 10_000;

/// A semaphore's size and time-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// How many slots there are. 0 until somebody declares it.
    pub capacity: u32,
    /// After how long without a heartbeat an outside holder loses its slots.
    pub heartbeat_timeout: Span,
}

impl Default for Config {
    fn default() -> Self {
        Config { capacity: 0, heartbeat_timeout: HEARTBEAT_TIMEOUT }
    }
}

/// A semaphore: who has how much of it, and who is next.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Semaphore {
    /// Which semaphore.
    pub name: Scoped,
    /// Its size and time-out.
    pub config: Config,
    /// The epoch given last; the next grant has a higher one.
    pub epoch: u64,
    /// Who has slots.
    pub holders: Map<Holder, Hold>,
    /// Who waits, the next one first.
    pub waiters: VecDeque<Waiter>,
}

/// A grant of slots.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    /// How many.
    pub weight: u32,
    /// The fence of this grant. More slots for the same holder are the same grant.
    pub epoch: u64,
    /// Since when.
    pub acquired_at: Millis,
}

/// Somebody in line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Waiter {
    /// Who waits.
    pub holder: Holder,
    /// For how many slots.
    pub weight: u32,
    /// Since when.
    pub queued_at: Millis,
    /// When it stops waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub give_up_at: Option<Millis>,
}

/// What a semaphore is doing: derived from who holds and who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Undeclared,
    Idle,
    Shared,
    Contended,
}

/// How full a semaphore is in the course of a decision.
#[derive(Clone, Copy)]
struct Room {
    capacity: u32,
    used: u32,
}

impl Room {
    fn available(self) -> u32 {
        self.capacity.saturating_sub(self.used)
    }
}

impl Semaphore {
    /// A semaphore that nobody declared yet.
    #[must_use]
    pub fn new(name: Scoped) -> Semaphore {
        let (holders, waiters) = (Map::new(), VecDeque::new());
        Semaphore { name, config: Config::default(), epoch: 0, holders, waiters }
    }

    /// One of which nothing is known but that every epoch it had was at most this one.
    #[must_use]
    pub fn above(name: Scoped, epoch: u64) -> Semaphore {
        Semaphore { epoch, ..Semaphore::new(name) }
    }

    fn phase(&self) -> Phase {
        match (self.waiters.is_empty(), self.holders.is_empty(), self.config.capacity) {
            (false, _, _) => Phase::Contended,
            (true, false, _) => Phase::Shared,
            (true, true, 0) => Phase::Undeclared,
            (true, true, 1..) => Phase::Idle,
        }
    }

    /// The state's name in the table.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match self.phase() {
            Phase::Undeclared => "undeclared",
            Phase::Idle => "idle",
            Phase::Shared => "shared",
            Phase::Contended => "contended",
        }
    }

    /// How many slots are taken. After the capacity was lowered that may be more than there are.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.holders.values().fold(0, |sum, hold| sum.saturating_add(hold.weight))
    }

    /// How many slots nobody has. Whether one can have them also depends on the line.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.room().available()
    }

    /// Where somebody stands in line; 1 is next.
    #[must_use]
    pub fn position(&self, holder: &Holder) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.holder == *holder).map(|index| index + 1)
    }

    /// When a holder was last heard of; none where it does not beat, because its run says when it ends.
    #[must_use]
    pub fn last_heartbeat(&self, holder: &Holder, beats: &Beats) -> Option<Millis> {
        self.holders.get(holder).and_then(|hold| last_seen(holder, hold.acquired_at, beats))
    }

    /// When a holder loses its slots unless it beats: what `expires_at` is in answers.
    #[must_use]
    pub fn expires_at(&self, holder: &Holder, beats: &Beats) -> Option<Millis> {
        let hold = self.holders.get(holder)?;
        last_seen(holder, hold.acquired_at, beats).map(|seen| seen + self.config.heartbeat_timeout)
    }

    /// When it next wants to be maintained.
    #[must_use]
    pub fn due(&self, beats: &Beats) -> Option<Millis> {
        let stale = self.holders.keys().filter_map(|holder| self.expires_at(holder, beats));
        stale.chain(self.waiters.iter().filter_map(|waiter| waiter.give_up_at)).min()
    }

    /// What an input leads to. Changes nothing.
    ///
    /// # Errors
    /// What the table has no row for, and what is out of bounds.
    pub fn decide(&self, input: &Input, beats: &Beats, at: Millis) -> Result<Decision<Reply>, Error> {
        match (self.phase(), input) {
            (
                Phase::Undeclared | Phase::Idle | Phase::Shared | Phase::Contended,
                Input::Configure(config),
            ) => self.configure(*config, at),

            (Phase::Undeclared, Input::Acquire(_)) => Err(Error::Undeclared(self.name.clone())),
            (Phase::Idle, Input::Acquire(ask)) => self.acquire(ask),
            (Phase::Shared | Phase::Contended, Input::Acquire(ask)) => self.acquire_after(ask, beats, at),

            // Where nobody holds anything, a release or break is the repeat of one, or comes too late.
            (Phase::Undeclared | Phase::Idle, Input::Release { .. } | Input::Break { .. }) => {
                Ok(Decision::reply(Reply::NotHolder))
            }
            (Phase::Shared | Phase::Contended, Input::Release { holder, epoch }) => {
                self.end(holder, *epoch, false, at)
            }
            (Phase::Shared | Phase::Contended, Input::Break { holder, epoch }) => {
                self.end(holder, *epoch, true, at)
            }

            (Phase::Undeclared | Phase::Idle, Input::Heartbeat { epoch, .. }) => Err(self.stale(*epoch)),
            (Phase::Shared | Phase::Contended, Input::Heartbeat { holder, epoch }) => {
                match self.holders.get(holder) {
                    Some(hold) if hold.epoch == *epoch => {
                        Ok(Decision::reply(Reply::Extended { epoch: hold.epoch }))
                    }
                    Some(_) => Err(self.stale(*epoch)),
                    None => Err(Error::Without { semaphore: self.name.clone(), holder: holder.clone() }),
                }
            }

            // There is no line to leave.
            (Phase::Undeclared | Phase::Idle | Phase::Shared, Input::Abandon { .. }) => {
                Ok(Decision::reply(Reply::NotWaiting))
            }
            (Phase::Contended, Input::Abandon { holder }) => Ok(self.abandon(holder, at)),

            // Nobody holds and nobody waits, so time changes nothing.
            (Phase::Undeclared | Phase::Idle, Input::Maintain) => Ok(Decision::reply(Reply::Maintained)),
            (Phase::Shared | Phase::Contended, Input::Maintain) => {
                Ok(self.maintain(Decision::reply(Reply::Maintained), None, beats, at))
            }
        }
    }

    /// What a fact does. `at` is the record's time. The caller hands it the facts of this semaphore's stream.
    #[must_use]
    pub fn apply(mut self, event: &Event, at: Millis) -> Semaphore {
        match event {
            Event::SemaphoreConfigured(e) => {
                self.config =
                    Config { capacity: e.capacity, heartbeat_timeout: Span(e.heartbeat_timeout_ms) };
            }
            Event::SemaphoreQueued(e) => {
                // Who stands in line already keeps its place; only what it asks for changes.
                if let Some(waiter) = self.waiters.iter_mut().find(|waiter| waiter.holder == e.holder) {
                    waiter.weight = e.weight;
                    waiter.give_up_at = e.give_up_at;
                } else {
                    let (holder, weight, give_up_at) = (e.holder.clone(), e.weight, e.give_up_at);
                    self.waiters.push_back(Waiter { holder, weight, queued_at: at, give_up_at });
                }
            }
            Event::SemaphoreAcquired(e) => {
                self.leave_line(&e.holder);
                self.epoch = self.epoch.max(e.epoch);
                let hold = Hold { weight: e.weight, epoch: e.epoch, acquired_at: at };
                self.holders.insert(e.holder.clone(), hold);
            }
            Event::SemaphoreIncreased(e) => {
                if let Some(hold) = self.holders.get_mut(&e.holder) {
                    hold.weight = e.weight;
                }
            }
            Event::SemaphoreReclaimed(e) => {
                self.holders.remove(&e.holder);
            }
            Event::SemaphoreReleased(e) => {
                self.holders.remove(&e.holder);
            }
            Event::SemaphoreAbandoned(e) => self.leave_line(&e.holder),
            // Facts of other machines are none of a semaphore's business.
            _ => {}
        }
        self
    }

    fn leave_line(&mut self, holder: &Holder) {
        if let Some(index) = self.waiters.iter().position(|waiter| waiter.holder == *holder) {
            self.waiters.remove(index);
        }
    }

    fn configure(&self, config: Config, at: Millis) -> Result<Decision<Reply>, Error> {
        if !(1..=CAPACITY_MAX).contains(&config.capacity) || config.heartbeat_timeout == Span::ZERO {
            return Err(Error::Config(self.name.clone()));
        }
        let decision = Decision::reply(Reply::Configured);
        if config == self.config {
            return Ok(decision);
        }
        let decision = decision.fact(SemaphoreConfigured {
            semaphore: self.local_name(),
            capacity: config.capacity,
            heartbeat_timeout_ms: config.heartbeat_timeout.0,
        });
        // More room serves the line; less may free those behind a waiter that does not fit any more.
        Ok(self.serve(decision, Room { capacity: config.capacity, used: self.used() }, None, at))
    }

    /// An acquire sees the semaphore as `maintain` would leave it, except that the asker itself, who lives
    /// evidently, neither loses its slots nor its place.
    fn acquire_after(&self, ask: &Ask, beats: &Beats, at: Millis) -> Result<Decision<Reply>, Error> {
        let maintained = self.maintain(Decision::reply(Reply::Maintained), Some(&ask.holder), beats, at);
        if maintained.facts.is_empty() {
            return self.ask(ask, at);
        }
        let after = maintained.facts.iter().fold(self.clone(), |semaphore, fact| semaphore.apply(fact, at));
        // Standing first in line, the asker may have been served just now.
        let was_waiting = self.position(&ask.holder).is_some();
        let served = after.holders.get(&ask.holder).filter(|_| was_waiting);
        let decision = match served {
            Some(hold) => Decision::reply(Reply::Acquired { epoch: hold.epoch }),
            None => after.ask(ask, at)?,
        };
        let (mut all, _) = maintained.answer(decision.reply.clone());
        all.join(decision);
        Ok(all)
    }

    fn acquire(&self, ask: &Ask) -> Result<Decision<Reply>, Error> {
        self.check_weight(ask.weight)?;
        let decision = Decision::reply(Reply::Acquired { epoch: self.next_epoch() });
        Ok(self.grant(decision, &ask.holder, ask.weight, self.next_epoch(), false))
    }

    fn ask(&self, ask: &Ask, at: Millis) -> Result<Decision<Reply>, Error> {
        let available = self.available();
        if let Some(hold) = self.holders.get(&ask.holder) {
            return self.ask_again(ask, hold, available);
        }
        if let Some(position) = self.position(&ask.holder) {
            return Ok(self.wait_again(ask, position, at));
        }
        self.check_weight(ask.weight)?;
        if ask.weight <= available && !self.somebody_waits() {
            return self.acquire(ask);
        }
        if !ask.waits(at) {
            return Ok(Decision::reply(Reply::Full { available }));
        }
        if self.waiters.len() >= WAITERS_MAX {
            return Err(Error::LineFull(self.name.clone()));
        }
        let position = self.waiters.len() + 1;
        Ok(Decision::reply(Reply::Queued { position }).fact(self.queued(ask)))
    }

    /// A holder asks again: for what it has, or for more.
    fn ask_again(&self, ask: &Ask, hold: &Hold, available: u32) -> Result<Decision<Reply>, Error> {
        let epoch = hold.epoch;
        if (1..=hold.weight).contains(&ask.weight) {
            // It may be a new attempt of a step that asks, so it is told again.
            let told = self.granted(&ask.holder, epoch);
            return Ok(Decision::reply(Reply::AlreadyHeld { epoch }).then(told));
        }
        self.check_weight(ask.weight)?;
        if ask.weight - hold.weight > available || self.somebody_waits() {
            return Ok(Decision::reply(Reply::Full { available }));
        }
        let decision = Decision::reply(Reply::Increased { epoch }).fact(SemaphoreIncreased {
            semaphore: self.local_name(),
            holder: ask.holder.clone(),
            weight: ask.weight,
            epoch,
        });
        Ok(decision.then(self.granted(&ask.holder, epoch)))
    }

    /// Somebody in line asks again. It keeps its place and may wait longer than it first said; another
    /// weight it can only have by leaving the line and standing at its end.
    fn wait_again(&self, ask: &Ask, position: usize, at: Millis) -> Decision<Reply> {
        let decision = Decision::reply(Reply::Queued { position });
        let waiter = &self.waiters[position - 1];
        if !ask.waits(at) || waiter.give_up_at == ask.give_up_at {
            return decision;
        }
        decision.fact(SemaphoreQueued { weight: waiter.weight, ..self.queued(ask) })
    }

    fn end(
        &self,
        holder: &Holder,
        epoch: Option<u64>,
        broken: bool,
        at: Millis,
    ) -> Result<Decision<Reply>, Error> {
        let Some(hold) = self.holders.get(holder) else {
            return Ok(Decision::reply(Reply::NotHolder));
        };
        if let Some(given) = epoch
            && given != hold.epoch
        {
            return Err(self.stale(given));
        }
        let decision = Decision::reply(Reply::Released).fact(SemaphoreReleased {
            semaphore: self.local_name(),
            holder: holder.clone(),
            weight: hold.weight,
            epoch: hold.epoch,
            broken,
        });
        let decision = decision.then(if broken { self.hold_lost(holder) } else { None });
        let used = self.used().saturating_sub(hold.weight);
        Ok(self.serve(decision, Room { used, ..self.room() }, None, at))
    }

    fn abandon(&self, holder: &Holder, at: Millis) -> Decision<Reply> {
        let Some(position) = self.position(holder) else {
            return Decision::reply(Reply::NotWaiting);
        };
        let decision = Decision::reply(Reply::Abandoned).fact(self.abandoned(holder));
        // The one that left may have been what the others waited behind.
        let rest = self.waiters.iter().enumerate().filter(|(index, _)| index + 1 != position);
        self.serve_line(decision, rest.map(|(_, waiter)| waiter), self.room(), None, at)
    }

    /// Takes the slots of who is stale, drops who gave up, serves the line. `spare` is left alone.
    fn maintain(
        &self,
        mut decision: Decision<Reply>,
        spare: Option<&Holder>,
        beats: &Beats,
        at: Millis,
    ) -> Decision<Reply> {
        let mut room = self.room();
        for (holder, hold) in self.holders.iter().filter(|(holder, _)| spare != Some(*holder)) {
            let seen = last_seen(holder, hold.acquired_at, beats);
            if seen.is_none_or(|seen| at.since(seen) < self.config.heartbeat_timeout) {
                continue;
            }
            // Only those who beat come here, and they are outside: there is no run to tell.
            decision = decision.fact(SemaphoreReclaimed {
                semaphore: self.local_name(),
                holder: holder.clone(),
                weight: hold.weight,
                epoch: hold.epoch,
                last_seen: seen,
            });
            room.used = room.used.saturating_sub(hold.weight);
        }
        self.serve(decision, room, spare, at)
    }

    fn serve(
        &self,
        decision: Decision<Reply>,
        room: Room,
        spare: Option<&Holder>,
        at: Millis,
    ) -> Decision<Reply> {
        self.serve_line(decision, self.waiters.iter(), room, spare, at)
    }

    /// Drops who gave up, and grants from the front until somebody does not fit.
    fn serve_line<'a>(
        &self,
        mut decision: Decision<Reply>,
        line: impl Iterator<Item = &'a Waiter>,
        mut room: Room,
        spare: Option<&Holder>,
        at: Millis,
    ) -> Decision<Reply> {
        let mut epoch = self.epoch;
        let mut open = true;
        for waiter in line {
            let gave_up = waiter.give_up_at.is_some_and(|give_up_at| give_up_at <= at);
            if gave_up && spare != Some(&waiter.holder) {
                decision = decision.fact(self.abandoned(&waiter.holder));
            } else if open && waiter.weight <= room.available() {
                epoch = epoch.saturating_add(1);
                room.used = room.used.saturating_add(waiter.weight);
                decision = self.grant(decision, &waiter.holder, waiter.weight, epoch, true);
            } else if waiter.weight <= room.capacity {
                open = false;
            }
        }
        decision
    }

    fn grant(
        &self,
        decision: Decision<Reply>,
        holder: &Holder,
        weight: u32,
        epoch: u64,
        queued: bool,
    ) -> Decision<Reply> {
        let semaphore = self.local_name();
        let decision =
            decision.fact(SemaphoreAcquired { semaphore, holder: holder.clone(), weight, epoch, queued });
        decision.then(self.granted(holder, epoch))
    }

    /// Whether anybody in line could be served by somebody's leaving.
    fn somebody_waits(&self) -> bool {
        self.waiters.iter().any(|waiter| waiter.weight <= self.config.capacity)
    }

    fn check_weight(&self, weight: u32) -> Result<(), Error> {
        let capacity = self.config.capacity;
        if (1..=capacity).contains(&weight) { Ok(()) } else { Err(Error::Weight { weight, capacity }) }
    }

    fn room(&self) -> Room {
        Room { capacity: self.config.capacity, used: self.used() }
    }

    fn stale(&self, given: u64) -> Error {
        Error::StaleEpoch { semaphore: self.name.clone(), given, last: self.epoch }
    }

    fn next_epoch(&self) -> u64 {
        self.epoch.saturating_add(1)
    }

    fn queued(&self, ask: &Ask) -> SemaphoreQueued {
        let (holder, weight, give_up_at) = (ask.holder.clone(), ask.weight, ask.give_up_at);
        SemaphoreQueued { semaphore: self.local_name(), holder, weight, give_up_at }
    }

    fn abandoned(&self, holder: &Holder) -> SemaphoreAbandoned {
        SemaphoreAbandoned { semaphore: self.local_name(), holder: holder.clone() }
    }

    /// The name as facts and runs know it: without tenant and namespace, which are those of the stream.
    fn local_name(&self) -> Name {
        Name::clean(self.name.name())
    }

    /// A step hears that it has its slots; whole runs do not take slots, only their steps do.
    fn granted(&self, holder: &Holder, epoch: u64) -> Option<Follow> {
        tell(holder, |step| step.map(|step| Told::SlotsGranted { step, semaphore: self.local_name(), epoch }))
    }

    fn hold_lost(&self, holder: &Holder) -> Option<Follow> {
        tell(holder, |step| Some(Told::HoldLost { step, name: self.local_name(), broken: true }))
    }
}

#[cfg(test)]
mod tests;
