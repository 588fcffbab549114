//! Coordination: all locks and semaphores behind one door.
//!
//! This machine decides nothing of its own. It finds the lock or semaphore that a command names, lets it
//! decide, and says which stream each fact belongs to. A lock that nobody named before is free; a semaphore
//! that nobody named before is undeclared. `maintain` looks after both kinds, and only after those whose
//! time has come.
//!
//! ```text
//!   command ──▶ handle ──▶ lock.decide │ semaphore.decide ──▶ (stream, fact)… ──▶ apply
//!   time    ──▶ maintain ──────────┘
//! ```

use crate::code::Code;
use crate::effect::Effect;
use crate::event::Event;
use crate::id::{Holder, Scoped};
use crate::lock::{self, Lock};
use crate::machine::{Beats, Decision};
use crate::semaphore::{self, Semaphore};
use crate::stream::StreamId;
use crate::time::Millis;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How many locks, and how many semaphores, may be known at a time.
pub const NAMES_MAX: usize = 100_000;

/// Every lock and every semaphore.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoordinationState {
    /// The locks that anybody ever named.
    pub locks: BTreeMap<Scoped, Lock>,
    /// The semaphores that anybody ever named.
    pub semaphores: BTreeMap<Scoped, Semaphore>,
}

/// What can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Take a lock, or stand in line for it.
    AcquireLock {
        name: Scoped,
        holder: Holder,
        metadata: Option<Value>,
        wait: bool,
        give_up_at: Option<Millis>,
    },
    /// Give a lock back, or leave its line.
    ReleaseLock { name: Scoped, holder: Holder },
    /// Take slots of a semaphore, or stand in line for them.
    AcquireSemaphore { name: Scoped, holder: Holder, slots: u32, wait: bool, give_up_at: Option<Millis> },
    /// Give slots back, or leave the line.
    ReleaseSemaphore { name: Scoped, holder: Holder },
    /// Anything else that a lock understands: heartbeats, a break, time-outs.
    Lock { name: Scoped, input: lock::Input },
    /// Anything else that a semaphore understands.
    Semaphore { name: Scoped, input: semaphore::Input },
}

impl Command {
    /// The command behind an effect of another machine, where it is one for locks and semaphores.
    #[must_use]
    pub fn from_effect(effect: &Effect) -> Option<Command> {
        match effect.clone() {
            Effect::AcquireLock { lock: name, holder, wait, give_up_at, .. } => {
                Some(Command::AcquireLock { name, holder, metadata: None, wait, give_up_at })
            }
            Effect::ReleaseLock { lock: name, holder } => Some(Command::ReleaseLock { name, holder }),
            Effect::AcquireSemaphore { semaphore: name, holder, slots, give_up_at } => {
                Some(Command::AcquireSemaphore { name, holder, slots, wait: true, give_up_at })
            }
            Effect::ReleaseSemaphore { semaphore: name, holder } => {
                Some(Command::ReleaseSemaphore { name, holder })
            }
            // tidy: every other effect is for somebody else.
            _ => None,
        }
    }
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A lock's answer.
    Lock(lock::Reply),
    /// A semaphore's answer.
    Semaphore(semaphore::Reply),
    /// What was due is done.
    Maintained,
}

/// What was decided: a [`Decision`] over several streams.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What becomes true, with the stream it belongs to.
    pub facts: Vec<(StreamId, Event)>,
    /// What follows from it.
    pub effects: Vec<Effect>,
    /// The answer to whoever asked.
    pub reply: Reply,
}

impl Outcome {
    fn of<R>(stream: &StreamId, decision: Decision<R>, reply: impl FnOnce(R) -> Reply) -> Outcome {
        let facts = decision.facts.into_iter().map(|fact| (stream.clone(), fact)).collect();
        Outcome { facts, effects: decision.effects, reply: reply(decision.reply) }
    }
}

/// Why a command is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The lock refuses.
    #[error(transparent)]
    Lock(#[from] lock::Error),
    /// The semaphore refuses.
    #[error(transparent)]
    Semaphore(#[from] semaphore::Error),
    /// There are as many names as there may be.
    #[error("{NAMES_MAX} locks or semaphores are known already; `{0}` would be one more")]
    NamesFull(Scoped),
}

impl Error {
    /// Its stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Error::Lock(error) => error.code(),
            Error::Semaphore(error) => error.code(),
            Error::NamesFull(_) => Code::CapExceeded,
        }
    }
}

impl CoordinationState {
    /// Nothing is named yet.
    #[must_use]
    pub fn new() -> CoordinationState {
        CoordinationState::default()
    }

    /// What a command leads to. Changes nothing.
    ///
    /// # Errors
    /// What the lock or semaphore refuses, and one name too many.
    pub fn handle(&self, command: &Command, beats: &Beats, at: Millis) -> Result<Outcome, Error> {
        match command {
            Command::AcquireLock { name, holder, metadata, wait, give_up_at } => {
                let (holder, metadata) = (holder.clone(), metadata.clone());
                let ask = lock::Ask { holder, metadata, wait: *wait, give_up_at: *give_up_at };
                self.lock(name, &lock::Input::Acquire(ask), beats, at)
            }
            Command::ReleaseLock { name, holder } => {
                let waits = self.locks.get(name).is_some_and(|lock| lock.position(holder).is_some());
                let holder = holder.clone();
                let input = if waits {
                    lock::Input::Abandon { holder }
                } else {
                    lock::Input::Release { holder, epoch: None }
                };
                self.lock(name, &input, beats, at)
            }
            Command::AcquireSemaphore { name, holder, slots, wait, give_up_at } => {
                let (holder, weight) = (holder.clone(), *slots);
                let ask = semaphore::Ask { holder, weight, wait: *wait, give_up_at: *give_up_at };
                self.semaphore(name, &semaphore::Input::Acquire(ask), beats, at)
            }
            Command::ReleaseSemaphore { name, holder } => {
                let waits = self.semaphores.get(name).is_some_and(|one| one.position(holder).is_some());
                let holder = holder.clone();
                let input = if waits {
                    semaphore::Input::Abandon { holder }
                } else {
                    semaphore::Input::Release { holder, epoch: None }
                };
                self.semaphore(name, &input, beats, at)
            }
            Command::Lock { name, input } => self.lock(name, input, beats, at),
            Command::Semaphore { name, input } => self.semaphore(name, input, beats, at),
        }
    }

    /// Takes back what is stale or overdue, and drops who gave up, in both kinds.
    ///
    /// # Errors
    /// None in practice: neither kind refuses to be maintained.
    pub fn maintain(&self, beats: &Beats, at: Millis) -> Result<Outcome, Error> {
        let mut all = Outcome { facts: Vec::new(), effects: Vec::new(), reply: Reply::Maintained };
        let mut add = |outcome: Outcome| {
            all.facts.extend(outcome.facts);
            all.effects.extend(outcome.effects);
        };
        for lock in self.locks.values().filter(|lock| is_due(lock.due(beats), at)) {
            add(self.lock(&lock.name, &lock::Input::Maintain, beats, at)?);
        }
        for one in self.semaphores.values().filter(|one| is_due(one.due(beats), at)) {
            add(self.semaphore(&one.name, &semaphore::Input::Maintain, beats, at)?);
        }
        Ok(all)
    }

    /// When something next wants to be maintained.
    #[must_use]
    pub fn due(&self, beats: &Beats) -> Option<Millis> {
        let locks = self.locks.values().filter_map(|lock| lock.due(beats));
        locks.chain(self.semaphores.values().filter_map(|one| one.due(beats))).min()
    }

    /// What a fact does. `at` is the record's time. Facts of other streams leave everything as it is.
    #[must_use]
    pub fn apply(mut self, stream: &StreamId, event: &Event, at: Millis) -> CoordinationState {
        match stream {
            StreamId::Lock(name) => {
                let lock = self.locks.remove(name).unwrap_or_else(|| Lock::new(name.clone()));
                self.locks.insert(name.clone(), lock.apply(event, at));
            }
            StreamId::Semaphore(name) => {
                let one = self.semaphores.remove(name).unwrap_or_else(|| Semaphore::new(name.clone()));
                self.semaphores.insert(name.clone(), one.apply(event, at));
            }
            StreamId::Run(_)
            | StreamId::Queue(_)
            | StreamId::Item(_)
            | StreamId::Worker(_)
            | StreamId::Schedule(_)
            | StreamId::Trigger(_)
            | StreamId::Effect(_)
            | StreamId::Runbook(_)
            | StreamId::Deployment(_)
            | StreamId::Workspace(_)
            | StreamId::Session(_)
            | StreamId::Tenant(_)
            | StreamId::Tokens(_)
            | StreamId::System
            | StreamId::Signal(_)
            | StreamId::Retired(_) => {}
        }
        self
    }

    fn lock(&self, name: &Scoped, input: &lock::Input, beats: &Beats, at: Millis) -> Result<Outcome, Error> {
        let decision = match self.locks.get(name) {
            Some(lock) => lock.decide(input, beats, at)?,
            None => Lock::new(name.clone()).decide(input, beats, at)?,
        };
        check_room(&self.locks, name, &decision.facts)?;
        Ok(Outcome::of(&StreamId::Lock(name.clone()), decision, Reply::Lock))
    }

    fn semaphore(
        &self,
        name: &Scoped,
        input: &semaphore::Input,
        beats: &Beats,
        at: Millis,
    ) -> Result<Outcome, Error> {
        let decision = match self.semaphores.get(name) {
            Some(one) => one.decide(input, beats, at)?,
            None => Semaphore::new(name.clone()).decide(input, beats, at)?,
        };
        check_room(&self.semaphores, name, &decision.facts)?;
        Ok(Outcome::of(&StreamId::Semaphore(name.clone()), decision, Reply::Semaphore))
    }
}

fn is_due(due: Option<Millis>, at: Millis) -> bool {
    due.is_some_and(|due| due <= at)
}

/// Only what is recorded makes a name known; a question about an unknown one does not.
fn check_room<T>(known: &BTreeMap<Scoped, T>, name: &Scoped, facts: &[Event]) -> Result<(), Error> {
    let one_more = !facts.is_empty() && !known.contains_key(name);
    if one_more && known.len() >= NAMES_MAX { Err(Error::NamesFull(name.clone())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::Told;
    use crate::id::RunId;
    use crate::lock::Config;
    use crate::testing::name;
    use crate::time::Span;
    use alloc::format;
    use alloc::string::ToString;
    use alloc::vec;

    fn scoped(text: &str) -> Scoped {
        Scoped::parse(&format!("acme/prod/{text}")).unwrap()
    }

    fn outside(text: &str) -> Holder {
        Holder::Outside(name(text))
    }

    fn step(run: u128) -> Holder {
        Holder::Step(RunId(run), name("land"))
    }

    fn acquire(lock: &str, holder: Holder) -> Command {
        Command::AcquireLock { name: scoped(lock), holder, metadata: None, wait: true, give_up_at: None }
    }

    fn take(semaphore: &str, holder: Holder, slots: u32) -> Command {
        Command::AcquireSemaphore { name: scoped(semaphore), holder, slots, wait: true, give_up_at: None }
    }

    fn declare(semaphore: &str, capacity: u32) -> Command {
        let config = semaphore::Config { capacity, heartbeat_timeout: Span::secs(60) };
        Command::Semaphore { name: scoped(semaphore), input: semaphore::Input::Configure(config) }
    }

    /// Handles a command and applies what comes of it.
    fn run(state: &mut CoordinationState, command: &Command, at: u64) -> Outcome {
        let outcome = state.handle(command, &Beats::default(), Millis(at)).unwrap();
        apply(state, &outcome, at);
        outcome
    }

    fn apply(state: &mut CoordinationState, outcome: &Outcome, at: u64) {
        *state = outcome
            .facts
            .iter()
            .fold(core::mem::take(state), |state, (stream, fact)| state.apply(stream, fact, Millis(at)));
    }

    #[test]
    fn commands_reach_the_one_they_name_and_facts_their_stream() {
        let mut state = CoordinationState::new();
        let outcome = run(&mut state, &acquire("merge", outside("a")), 1);
        assert_eq!(outcome.reply, Reply::Lock(lock::Reply::Acquired { epoch: 1 }));
        assert_eq!(outcome.facts[0].0, StreamId::Lock(scoped("merge")));
        run(&mut state, &declare("builders", 2), 1);
        let outcome = run(&mut state, &take("builders", step(1), 2), 2);
        assert_eq!(outcome.reply, Reply::Semaphore(semaphore::Reply::Acquired { epoch: 1 }));
        assert_eq!(outcome.facts[0].0, StreamId::Semaphore(scoped("builders")));
        assert_eq!((state.locks.len(), state.semaphores.len()), (1, 1));
        // The same name in another namespace is another lock.
        let other = Scoped::parse("acme/test/merge").unwrap();
        let command = Command::AcquireLock {
            name: other,
            holder: outside("b"),
            metadata: None,
            wait: false,
            give_up_at: None,
        };
        assert_eq!(run(&mut state, &command, 3).reply, Reply::Lock(lock::Reply::Acquired { epoch: 1 }));
    }

    #[test]
    fn a_release_leaves_the_line_as_well() {
        let mut state = CoordinationState::new();
        run(&mut state, &declare("builders", 1), 1);
        for holder in [step(1), step(2)] {
            run(&mut state, &acquire("merge", holder.clone()), 1);
            run(&mut state, &take("builders", holder, 1), 1);
        }
        let release = |holder| Command::ReleaseLock { name: scoped("merge"), holder };
        assert_eq!(run(&mut state, &release(step(2)), 2).reply, Reply::Lock(lock::Reply::Abandoned));
        assert_eq!(run(&mut state, &release(step(1)), 2).reply, Reply::Lock(lock::Reply::Released));
        assert_eq!(run(&mut state, &release(step(1)), 2).reply, Reply::Lock(lock::Reply::AlreadyFree));
        let release = |holder| Command::ReleaseSemaphore { name: scoped("builders"), holder };
        let reply = |state: &mut _, holder| run(state, &release(holder), 2).reply;
        assert_eq!(reply(&mut state, step(2)), Reply::Semaphore(semaphore::Reply::Abandoned));
        assert_eq!(reply(&mut state, step(1)), Reply::Semaphore(semaphore::Reply::Released));
        assert_eq!(reply(&mut state, step(1)), Reply::Semaphore(semaphore::Reply::NotHolder));
    }

    #[test]
    fn maintain_reclaims_both_kinds_when_they_are_due() {
        let (mut state, beats) = (CoordinationState::new(), Beats::default());
        assert_eq!(state.due(&beats), None);
        run(&mut state, &declare("builders", 1), 0);
        run(&mut state, &acquire("merge", outside("a")), 0);
        run(&mut state, &take("builders", outside("a"), 1), 1_000);
        run(&mut state, &acquire("merge", step(1)), 2_000);
        assert_eq!(state.due(&beats), Some(Millis(60_000)));
        assert!(state.maintain(&beats, Millis(59_999)).unwrap().facts.is_empty());
        let outcome = state.maintain(&beats, Millis(61_000)).unwrap();
        let tags: Vec<_> = outcome.facts.iter().map(|(_, fact)| fact.tag()).collect();
        assert_eq!(tags, ["lock:reclaimed", "lock:acquired", "semaphore:reclaimed"]);
        let told = Told::LockGranted { step: Some(name("land")), lock: name("merge"), epoch: 2 };
        assert_eq!(outcome.effects, vec![Effect::Tell { run: RunId(1), told }]);
        apply(&mut state, &outcome, 61_000);
        assert_eq!(state.due(&beats), None, "a step does not beat");
    }

    #[test]
    fn effects_of_runs_become_commands() {
        let (lock, holder) = (scoped("merge"), step(1));
        let effect = Effect::AcquireLock {
            lock: lock.clone(),
            holder: holder.clone(),
            wait: true,
            oust: false,
            give_up_at: None,
        };
        assert_eq!(Command::from_effect(&effect), Some(acquire("merge", step(1))));
        let effect = Effect::ReleaseLock { lock, holder };
        let expected = Command::ReleaseLock { name: scoped("merge"), holder: step(1) };
        assert_eq!(Command::from_effect(&effect), Some(expected));
        let semaphore = scoped("builders");
        let effect = Effect::AcquireSemaphore {
            semaphore: semaphore.clone(),
            holder: step(1),
            slots: 2,
            give_up_at: None,
        };
        assert_eq!(Command::from_effect(&effect), Some(take("builders", step(1), 2)));
        let effect = Effect::ReleaseSemaphore { semaphore: semaphore.clone(), holder: step(1) };
        let expected = Command::ReleaseSemaphore { name: semaphore, holder: step(1) };
        assert_eq!(Command::from_effect(&effect), Some(expected));
        assert_eq!(Command::from_effect(&Effect::CancelRun { run: RunId(1), reason: "".to_string() }), None);
    }

    #[test]
    fn the_number_of_names_is_bounded_but_known_ones_go_on() {
        let mut state = CoordinationState::new();
        for number in 0..NAMES_MAX {
            let name = scoped(&number.to_string());
            state.locks.insert(name.clone(), Lock::new(name));
        }
        let beats = Beats::default();
        let refused = state.handle(&acquire("one more", outside("a")), &beats, Millis(1)).unwrap_err();
        assert_eq!(refused.code(), Code::CapExceeded);
        let command = Command::ReleaseLock { name: scoped("one more"), holder: outside("a") };
        assert!(state.handle(&command, &beats, Millis(1)).is_ok(), "nothing is recorded");
        run(&mut state, &acquire("7", outside("a")), 1);
    }

    #[test]
    fn refusals_keep_their_codes_and_snapshots_read_back() {
        let mut state = CoordinationState::new();
        let beats = Beats::default();
        let refused = state.handle(&take("ghost", outside("a"), 1), &beats, Millis(1)).unwrap_err();
        assert_eq!(refused.code(), Code::NotFound);
        let input = lock::Input::Heartbeat { holder: outside("a"), epoch: 1 };
        let refused = state.handle(&Command::Lock { name: scoped("merge"), input }, &beats, Millis(1));
        assert_eq!(refused.unwrap_err().code(), Code::LeaseStaleEpoch);
        run(&mut state, &declare("builders", 3), 1);
        run(&mut state, &take("builders", step(1), 2), 2);
        run(&mut state, &take("builders", outside("b"), 2), 3);
        let input =
            lock::Input::Configure(Config { max_hold_duration: Some(Span::mins(1)), ..Config::default() });
        run(&mut state, &Command::Lock { name: scoped("merge"), input }, 3);
        run(&mut state, &acquire("merge", step(1)), 4);
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<CoordinationState>(&text).unwrap(), state);
        // Facts of other streams change nothing.
        let fact = crate::event::PipelineStarted { id: RunId(1), steps: 1, approvers: None }.into();
        assert_eq!(state.clone().apply(&StreamId::Run(RunId(1)), &fact, Millis(9)), state);
    }
}
