//! Locks: one holder at a time, and a line of those who wait.
//!
//! At most one holder has the lock, under an epoch higher than any before it. Whoever must wait stands in
//! line and is served first come, first served; when a hold ends, the next one has the lock in the same
//! decision, so a free lock never has a line. Nobody is lost: a waiter is granted, leaves, or gives up.
//!
//! ```text
//!            acquire                      acquire (another)
//!   free ──────────────▶ held ◀──────────────────────────────▶ contended
//!     ▲                   │     release, reclaim, break: the     │
//!     └───────────────────┘     first in line has it at once     │
//!     └──────────────────────── … and everybody gave up ─────────┘
//! ```
//!
//! A hold ends when it is released, when an operator breaks it, when an outside holder stops beating, or
//! when it lasts longer than `max_hold_duration`. Runs and their steps do not beat, because their own facts
//! release what they hold; the longest hold applies to them as to everybody. Asking again neither makes a
//! new grant nor restarts `max_hold_duration`: a step keeps its hold, and its epoch, across its attempts.

use crate::event::{
    Event, LockAbandoned, LockAcquired, LockConfigured, LockQueued, LockReclaimed, LockReleased,
};
use crate::follow::{Follow, Told};
use crate::id::{Holder, Name, Scoped, StepId};
use crate::machine::{Beats, Decision, Row, table};
use crate::private::Private;
use crate::time::{Millis, Span};
use alloc::collections::VecDeque;
use serde::{Deserialize, Serialize};
use serde_json::Value;

mod message;
pub use message::{Ask, Error, Input, Reply};

/// What leads where. A heartbeat for a free lock has no row: the grant it names is gone.
pub const TABLE: &[Row] = table! {
    "free": "configure" => "free";
    "free": "acquire" => "held";
    "free": "release" => "free";
    "free": "break" => "free";
    "free": "abandon" => "free";
    "free": "maintain" => "free";
    "held": "configure" => "held";
    "held": "acquire" => "held" | "contended";
    "held": "release" => "free" | "held";
    "held": "heartbeat" => "held";
    "held": "break" => "free";
    "held": "abandon" => "held";
    "held": "maintain" => "free" | "held";
    "contended": "configure" => "contended";
    "contended": "acquire" => "held" | "contended";
    "contended": "release" => "free" | "held" | "contended";
    "contended": "heartbeat" => "contended";
    "contended": "break" => "free" | "held" | "contended";
    "contended": "abandon" => "held" | "contended";
    "contended": "maintain" => "free" | "held" | "contended";
};

/// How many may stand in line for one lock or semaphore.
pub const WAITERS_MAX: usize = 4_096;

/// How many bytes of JSON a holder may attach to its hold.
pub const METADATA_LEN_MAX: usize = 4_096;

/// After how long without a heartbeat an outside holder is taken for dead, where nothing else is declared.
pub const HEARTBEAT_TIMEOUT: Span = Span::secs(60);

/// A lock's time-outs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// After how long without a heartbeat an outside holder loses the lock.
    pub heartbeat_timeout: Span,
    /// After how long any holder loses it, beating or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_hold_duration: Option<Span>,
}

impl Default for Config {
    fn default() -> Self {
        Config { heartbeat_timeout: HEARTBEAT_TIMEOUT, max_hold_duration: None }
    }
}

/// A lock: who has it, and who is next.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lock {
    /// Which lock.
    pub name: Scoped,
    /// Its time-outs.
    pub config: Config,
    /// The epoch given last; the next grant has a higher one.
    pub epoch: u64,
    /// Whether somebody has it.
    pub state: State,
    /// Who waits, the next one first.
    pub waiters: VecDeque<Waiter>,
}

/// Whether somebody has the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum State {
    /// Nobody has it. An acquire moves it on.
    Free,
    /// Somebody has it. A release, an operator or `maintain` moves it on.
    Held(Hold),
}

/// A grant of the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    /// Who has it.
    pub holder: Holder,
    /// Since when.
    pub acquired_at: Millis,
    /// The fence of this grant.
    pub epoch: u64,
    /// What the holder says about itself; decides nothing. Kept without its salt, so that a state that was
    /// lived through equals one that was read back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

/// Somebody in line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Waiter {
    /// Who waits.
    pub holder: Holder,
    /// What it will say about itself when it has the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// Since when it waits.
    pub queued_at: Millis,
    /// When it stops waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub give_up_at: Option<Millis>,
}

impl Lock {
    /// A lock that nobody ever took.
    #[must_use]
    pub fn new(name: Scoped) -> Lock {
        Lock { name, config: Config::default(), epoch: 0, state: State::Free, waiters: VecDeque::new() }
    }

    /// The state's name in the table.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match (&self.state, self.waiters.is_empty()) {
            (State::Free, _) => "free",
            (State::Held(_), true) => "held",
            (State::Held(_), false) => "contended",
        }
    }

    /// A free lock of which nothing is known but that every epoch it had was at most this one.
    #[must_use]
    pub fn above(name: Scoped, epoch: u64) -> Lock {
        Lock { epoch, ..Lock::new(name) }
    }

    /// The present hold.
    #[must_use]
    pub fn hold(&self) -> Option<&Hold> {
        match &self.state {
            State::Free => None,
            State::Held(hold) => Some(hold),
        }
    }

    /// Who has it.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        self.hold().map(|hold| &hold.holder)
    }

    /// Where somebody stands in line; 1 is next.
    #[must_use]
    pub fn position(&self, holder: &Holder) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.holder == *holder).map(|index| index + 1)
    }

    /// When the present holder was last heard of; none where it does not beat, because its run says when it ends.
    #[must_use]
    pub fn last_heartbeat(&self, beats: &Beats) -> Option<Millis> {
        self.hold().and_then(|hold| last_seen(&hold.holder, hold.acquired_at, beats))
    }

    /// When the present hold ends unless the holder beats: what `expires_at` is in answers.
    #[must_use]
    pub fn expires_at(&self, beats: &Beats) -> Option<Millis> {
        let hold = self.hold()?;
        let beat_by =
            last_seen(&hold.holder, hold.acquired_at, beats).map(|seen| seen + self.config.heartbeat_timeout);
        let done_by = self.config.max_hold_duration.map(|max| hold.acquired_at + max);
        beat_by.into_iter().chain(done_by).min()
    }

    /// When it next wants to be maintained.
    #[must_use]
    pub fn due(&self, beats: &Beats) -> Option<Millis> {
        let give_up = self.waiters.iter().filter_map(|waiter| waiter.give_up_at).min();
        self.expires_at(beats).into_iter().chain(give_up).min()
    }

    /// What an input leads to. Changes nothing.
    ///
    /// # Errors
    /// What the table has no row for, and what is out of bounds.
    pub fn decide(&self, input: &Input, beats: &Beats, at: Millis) -> Result<Decision<Reply>, Error> {
        match (&self.state, input) {
            (State::Free | State::Held(_), Input::Configure(config)) => self.configure(*config),

            (State::Free, Input::Acquire(ask)) => {
                check_metadata(ask)?;
                Ok(self.grant(Decision::reply(Reply::Acquired { epoch: self.next_epoch() }), ask, false))
            }
            (State::Held(hold), Input::Acquire(ask)) if hold.holder == ask.holder => {
                // Asking again is a sign of life even after the time-out, as long as nobody took the lock. A
                // step is told again: it may be a new attempt of it that asks.
                let told = self.granted(&hold.holder, hold.epoch);
                Ok(Decision::reply(Reply::Extended { epoch: hold.epoch }).then(told))
            }
            (State::Held(hold), Input::Acquire(ask)) => {
                check_metadata(ask)?;
                match self.lost(hold, beats, at) {
                    None => self.stand_in_line(ask, hold, at),
                    Some(lost) => self.take_over(ask, hold, lost, at),
                }
            }

            // A release that comes twice finds the lock free, or with the next holder; neither is an error.
            (State::Free, Input::Release { .. }) => Ok(Decision::reply(Reply::AlreadyFree)),
            (State::Held(hold), Input::Release { holder, epoch }) => {
                if hold.holder != *holder {
                    return Ok(Decision::reply(Reply::NotOwner { holder: hold.holder.clone() }));
                }
                self.check_epoch(hold, *epoch)?;
                Ok(self.end(hold, false, at))
            }

            (State::Free, Input::Heartbeat { epoch, .. }) => Err(self.stale(*epoch)),
            (State::Held(hold), Input::Heartbeat { holder, epoch }) => {
                if hold.holder != *holder {
                    let (given, holder) = (holder.clone(), hold.holder.clone());
                    return Err(Error::Others { lock: self.name.clone(), given, holder });
                }
                self.check_epoch(hold, Some(*epoch))?;
                Ok(Decision::reply(Reply::Extended { epoch: hold.epoch }))
            }

            // The hold that the operator wanted gone is gone.
            (State::Free, Input::Break { .. }) => Ok(Decision::reply(Reply::AlreadyFree)),
            (State::Held(hold), Input::Break { epoch }) => {
                self.check_epoch(hold, *epoch)?;
                let lost = self.hold_lost(&hold.holder, true);
                Ok(self.end(hold, true, at).then(lost))
            }

            // A free lock has no line to leave.
            (State::Free, Input::Abandon { .. }) => Ok(Decision::reply(Reply::NotWaiting)),
            (State::Held(_), Input::Abandon { holder }) => Ok(match self.position(holder) {
                Some(_) => Decision::reply(Reply::Abandoned).fact(self.abandoned(holder)),
                None => Decision::reply(Reply::NotWaiting),
            }),

            // A free lock has no line and no holder, so time changes nothing.
            (State::Free, Input::Maintain) => Ok(Decision::reply(Reply::Maintained)),
            (State::Held(hold), Input::Maintain) => {
                let decision = Decision::reply(Reply::Maintained);
                Ok(match self.lost(hold, beats, at) {
                    Some(lost) => self.reclaim(decision, hold, lost, None, at),
                    None => self.drop_expired(decision, None, at),
                })
            }
        }
    }

    /// What a fact does. `at` is the record's time. The caller hands it the facts of this lock's stream.
    #[must_use]
    pub fn apply(mut self, event: &Event, at: Millis) -> Lock {
        match event {
            Event::LockConfigured(e) => {
                self.config = Config {
                    heartbeat_timeout: Span(e.heartbeat_timeout_ms),
                    max_hold_duration: e.max_hold_ms.map(Span),
                };
            }
            Event::LockQueued(e) => {
                let metadata = e.metadata.as_ref().and_then(Private::get);
                // Who stands in line already keeps its place; only what it said about itself changes.
                if let Some(waiter) = self.waiters.iter_mut().find(|waiter| waiter.holder == e.holder) {
                    waiter.metadata = metadata;
                    waiter.give_up_at = e.give_up_at;
                } else {
                    let (holder, give_up_at) = (e.holder.clone(), e.give_up_at);
                    self.waiters.push_back(Waiter { holder, metadata, queued_at: at, give_up_at });
                }
            }
            Event::LockAcquired(e) => {
                self.leave_line(&e.holder);
                self.epoch = self.epoch.max(e.epoch);
                self.state = State::Held(Hold {
                    holder: e.holder.clone(),
                    acquired_at: at,
                    epoch: e.epoch,
                    metadata: e.metadata.as_ref().and_then(Private::get),
                });
            }
            Event::LockReclaimed(_) | Event::LockReleased(_) => self.state = State::Free,
            Event::LockAbandoned(e) => self.leave_line(&e.holder),
            // Facts of other machines are none of a lock's business.
            _ => {}
        }
        self
    }

    fn leave_line(&mut self, holder: &Holder) {
        // Nearly always it is the first who leaves.
        if let Some(index) = self.waiters.iter().position(|waiter| waiter.holder == *holder) {
            self.waiters.remove(index);
        }
    }

    fn configure(&self, config: Config) -> Result<Decision<Reply>, Error> {
        if config.heartbeat_timeout == Span::ZERO || config.max_hold_duration == Some(Span::ZERO) {
            return Err(Error::Config(self.name.clone()));
        }
        let decision = Decision::reply(Reply::Configured);
        if config == self.config {
            return Ok(decision);
        }
        Ok(decision.fact(LockConfigured {
            lock: self.local_name(),
            heartbeat_timeout_ms: config.heartbeat_timeout.0,
            max_hold_ms: config.max_hold_duration.map(|max| max.0),
        }))
    }

    /// Another has the lock: the asker stands in line, or goes away.
    fn stand_in_line(&self, ask: &Ask, hold: &Hold, at: Millis) -> Result<Decision<Reply>, Error> {
        let waits = ask.wait && ask.give_up_at.is_none_or(|give_up_at| give_up_at > at);
        let queued = || LockQueued {
            lock: self.local_name(),
            holder: ask.holder.clone(),
            metadata: ask.metadata.clone().map(Private::New),
            give_up_at: ask.give_up_at,
        };
        if let Some(position) = self.position(&ask.holder) {
            // It keeps its place, and may wait longer than it first said. One that asks without wanting to
            // wait still stands there: only `abandon` leaves the line.
            let decision = Decision::reply(Reply::Queued { position });
            let waiter = &self.waiters[position - 1];
            let same = waiter.give_up_at == ask.give_up_at && waiter.metadata == ask.metadata;
            return Ok(if same || !waits { decision } else { decision.fact(queued()) });
        }
        if !waits {
            let decision = Decision::reply(Reply::Busy { holder: hold.holder.clone() });
            return Ok(decision.then(self.busy(&ask.holder)));
        }
        if self.waiters.len() >= WAITERS_MAX {
            return Err(Error::LineFull(self.name.clone()));
        }
        Ok(Decision::reply(Reply::Queued { position: self.waiters.len() + 1 }).fact(queued()))
    }

    /// The holder is stale or overdue. The first in line gets the lock, which is the asker only when it is
    /// first itself or nobody waits; otherwise the asker finds the lock held by another, as ever.
    fn take_over(&self, ask: &Ask, hold: &Hold, lost: Lost, at: Millis) -> Result<Decision<Reply>, Error> {
        let epoch = self.next_epoch();
        let decision = self.reclaim(Decision::reply(Reply::Reclaimed { epoch }), hold, lost, Some(ask), at);
        let after = decision.facts.iter().fold(self.clone(), |lock, fact| lock.apply(fact, at));
        match &after.state {
            State::Held(next) if next.holder != ask.holder => {
                let (queued, reply) = after.stand_in_line(ask, next, at)?.answer(());
                let (mut decision, _) = decision.answer(reply);
                decision.join(queued);
                Ok(decision)
            }
            State::Held(_) | State::Free => Ok(decision),
        }
    }

    /// Takes the lock from its holder and hands it on.
    fn reclaim(
        &self,
        decision: Decision<Reply>,
        hold: &Hold,
        lost: Lost,
        asker: Option<&Ask>,
        at: Millis,
    ) -> Decision<Reply> {
        let decision = decision.fact(LockReclaimed {
            lock: self.local_name(),
            holder: hold.holder.clone(),
            epoch: hold.epoch,
            last_seen: lost.last_seen,
            overdue: lost.overdue,
        });
        self.hand_over(decision.then(self.hold_lost(&hold.holder, false)), asker, at)
    }

    /// Ends a hold by release or break, and hands the lock on.
    fn end(&self, hold: &Hold, broken: bool, at: Millis) -> Decision<Reply> {
        let decision = Decision::reply(Reply::Released).fact(LockReleased {
            lock: self.local_name(),
            holder: hold.holder.clone(),
            epoch: hold.epoch,
            broken,
        });
        self.hand_over(decision, None, at)
    }

    /// Gives a lock that has just become free to the first in line who still waits, or else to the asker.
    fn hand_over(&self, decision: Decision<Reply>, asker: Option<&Ask>, at: Millis) -> Decision<Reply> {
        let asks = |waiter: &Waiter| asker.is_some_and(|ask| ask.holder == waiter.holder);
        let next = self.waiters.iter().find(|waiter| asks(waiter) || !waiter.gave_up(at));
        let decision = self.drop_expired(decision, asker.map(|ask| &ask.holder), at);
        match (next, asker) {
            (Some(waiter), _) => {
                let (holder, metadata) = (waiter.holder.clone(), waiter.metadata.clone());
                self.grant(decision, &Ask { holder, metadata, wait: true, give_up_at: None }, true)
            }
            (None, Some(ask)) => self.grant(decision, ask, false),
            (None, None) => decision,
        }
    }

    /// Drops who gave up, except for one who is asking at this moment.
    fn drop_expired(
        &self,
        mut decision: Decision<Reply>,
        asker: Option<&Holder>,
        at: Millis,
    ) -> Decision<Reply> {
        for waiter in self.waiters.iter().filter(|waiter| waiter.gave_up(at) && asker != Some(&waiter.holder))
        {
            // A whole run gives up at its deadline, which ends it by itself.
            let whole = matches!(waiter.holder, Holder::Run(_));
            let told = if whole { None } else { self.busy(&waiter.holder) };
            decision = decision.fact(self.abandoned(&waiter.holder)).then(told);
        }
        decision
    }

    fn grant(&self, decision: Decision<Reply>, to: &Ask, queued: bool) -> Decision<Reply> {
        let epoch = self.next_epoch();
        let decision = decision.fact(LockAcquired {
            lock: self.local_name(),
            holder: to.holder.clone(),
            epoch,
            queued,
            metadata: to.metadata.clone().map(Private::New),
        });
        decision.then(self.granted(&to.holder, epoch))
    }

    /// Whether a holder has lost its claim to the lock, and why.
    fn lost(&self, hold: &Hold, beats: &Beats, at: Millis) -> Option<Lost> {
        let last_seen = last_seen(&hold.holder, hold.acquired_at, beats);
        let stale = last_seen.is_some_and(|seen| at.since(seen) >= self.config.heartbeat_timeout);
        let overdue = self.config.max_hold_duration.is_some_and(|max| at.since(hold.acquired_at) >= max);
        (stale || overdue).then_some(Lost { last_seen, overdue })
    }

    fn check_epoch(&self, hold: &Hold, epoch: Option<u64>) -> Result<(), Error> {
        match epoch {
            Some(given) if given != hold.epoch => Err(self.stale(given)),
            Some(_) | None => Ok(()),
        }
    }

    fn stale(&self, given: u64) -> Error {
        Error::StaleEpoch { lock: self.name.clone(), given, last: self.epoch }
    }

    fn next_epoch(&self) -> u64 {
        self.epoch.saturating_add(1)
    }

    fn abandoned(&self, holder: &Holder) -> LockAbandoned {
        LockAbandoned { lock: self.local_name(), holder: holder.clone() }
    }

    /// The name as facts and runs know it: without tenant and namespace, which are those of the stream.
    fn local_name(&self) -> Name {
        Name::clean(self.name.name())
    }

    fn granted(&self, holder: &Holder, epoch: u64) -> Option<Follow> {
        tell(holder, |step| Some(Told::LockGranted { step, lock: self.local_name(), epoch }))
    }

    fn hold_lost(&self, holder: &Holder, broken: bool) -> Option<Follow> {
        tell(holder, |step| Some(Told::HoldLost { step, name: self.local_name(), broken }))
    }

    /// Whoever does not wait hears that it does not get the lock.
    fn busy(&self, holder: &Holder) -> Option<Follow> {
        tell(holder, |step| Some(Told::LockBusy { step, lock: self.local_name() }))
    }
}

impl Waiter {
    fn gave_up(&self, at: Millis) -> bool {
        self.give_up_at.is_some_and(|give_up_at| give_up_at <= at)
    }
}

/// Why a holder loses the lock.
#[derive(Clone, Copy)]
struct Lost {
    last_seen: Option<Millis>,
    overdue: bool,
}

/// When a holder that must beat was last known to live; runs and steps need not.
pub(crate) fn last_seen(holder: &Holder, granted_at: Millis, beats: &Beats) -> Option<Millis> {
    (!holder.is_inside()).then(|| beats.last_seen(holder, granted_at))
}

/// Tells the run behind a holder, where there is one.
pub(crate) fn tell(holder: &Holder, told: impl FnOnce(Option<StepId>) -> Option<Told>) -> Option<Follow> {
    let (run, step) = match holder {
        Holder::Run(run) => (*run, None),
        Holder::Step(run, step) => (*run, Some(step.clone())),
        Holder::Worker(_) | Holder::Outside(_) => return None,
    };
    told(step).map(|told| Follow::Tell { run, told })
}

fn check_metadata(ask: &Ask) -> Result<(), Error> {
    // Writing a JSON value to memory cannot fail; if it did, it would count as empty.
    let len =
        ask.metadata.as_ref().map_or(0, |value| serde_json::to_vec(value).map_or(0, |bytes| bytes.len()));
    if len > METADATA_LEN_MAX { Err(Error::Metadata(len)) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
