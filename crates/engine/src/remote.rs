//! Executors elsewhere: who waits for work, which attempts they have, and when each was last heard of.
//!
//! None of it is a fact. What is leased is in the runs; after a start each attempt has one whole time-out to be heard
//! of. An executor that waits costs nothing until there is something for it.

use crate::fast::Map;
use crate::release::Granted;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use windlass_core::code::Code;
use windlass_core::id::{AttemptId, Name, RunId, StepId};
use windlass_core::run::Home;
use windlass_core::time::{Millis, Span};
use windlass_core::turn::command::Refusal;

/// How many executors may wait for work, and how many for news, before further ones are answered at once.
const WAITING_MAX: usize = 10_000;

/// Set where whoever asked is gone.
pub type Gone = Arc<AtomicBool>;

/// Who speaks for executors elsewhere: whose steps they carry out, and what was shown for it.
///
/// A lease is on record under the name of its executor and the token that leased it, so nobody can speak for what
/// another has, whatever name they give themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Whose steps.
    pub tenant: Name,
    /// The subdivision.
    pub namespace: Name,
    /// The token; none where it is the owner of the installation.
    pub token: Option<Name>,
}

impl Client {
    /// What stands between an executor's own name and the token, and in neither.
    const BETWEEN: char = '@';

    /// The name that leases of an executor are under.
    ///
    /// # Errors
    /// The executor cannot have that name.
    pub fn owner(&self, executor: &str) -> Result<Name, Refusal> {
        let refuse = |text: String| Refusal::new(Code::InvalidInput, text);
        if executor.contains(Client::BETWEEN) {
            return Err(refuse(format!("the name of an executor has no `{}` in it", Client::BETWEEN)));
        }
        let name = Name::new(executor).map_err(|error| refuse(error.to_string()))?;
        match &self.token {
            None => Ok(name),
            Some(token) => Name::new(&format!("{name}{}{token}", Client::BETWEEN))
                .map_err(|error| refuse(error.to_string())),
        }
    }

    /// Whether leases under this name are its own.
    #[must_use]
    pub fn has(&self, owner: &Name) -> bool {
        let token = owner.as_str().rsplit_once(Client::BETWEEN).map(|(_, token)| token);
        token == self.token.as_ref().map(Name::as_str)
    }

    /// Whether this is where a run belongs.
    pub(crate) fn is_home(&self, home: &Home) -> bool {
        home.tenant == self.tenant && home.namespace == self.namespace
    }
}

/// An executor elsewhere that wants work.
pub struct Wish {
    /// The name that its leases are under.
    pub executor: Name,
    /// Who asks for it.
    pub client: Client,
    /// Its labels.
    pub labels: Vec<Name>,
    /// What it can carry out.
    pub tools: Vec<Name>,
    /// How many attempts it takes at most.
    pub max: usize,
    /// How long it waits for the first.
    pub until: Millis,
    /// Whether it is gone.
    pub gone: Gone,
    /// Whom to tell.
    pub answer: Granted,
}

/// An attempt that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lives {
    /// When its lease ends unless it is heard of again.
    pub expires_at: Millis,
    /// It is to be stopped, within this time.
    pub stop: Option<Span>,
}

/// What an executor hears of its attempts, one answer for each.
pub type News = Box<dyn FnOnce(Vec<Result<Lives, Refusal>>) + Send>;

/// An executor elsewhere that lives, and waits for news of its attempts.
pub struct Watch {
    /// Who speaks for it.
    pub client: Client,
    /// Its attempts.
    pub places: Vec<AttemptId>,
    /// How long it waits, unless there is something that it must know.
    pub until: Millis,
    /// Whether it is gone.
    pub gone: Gone,
    /// Whom to tell.
    pub answer: News,
}

/// An attempt whose executor was not heard of in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Silent {
    pub(crate) place: AttemptId,
    /// When it was last heard of, by this process or the one before.
    pub(crate) last_seen: Millis,
}

/// That an attempt is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// How long it has for that.
    pub(crate) grace: Span,
    /// When that is over. Heartbeats extend its lease no further then, so one that will not end is lost.
    by: Millis,
}

impl Stop {
    pub(crate) fn new(since: Millis, grace: Span) -> Stop {
        Stop { grace, by: since + grace }
    }
}

#[derive(Clone, Copy, Debug)]
struct Attempt {
    epoch: u64,
    /// The last sign of life that is known.
    seen: Millis,
    /// When it counts as lost.
    until: Millis,
    /// Whether it is to be stopped.
    stop: Option<Stop>,
}

/// All executors elsewhere.
#[derive(Default)]
pub(crate) struct Remote {
    pub(crate) wishes: VecDeque<Wish>,
    pub(crate) watches: Vec<Watch>,
    attempts: Map<(RunId, StepId), Attempt>,
    ends: BTreeSet<(Millis, RunId, StepId)>,
    /// Something happened that one of those who watch must know.
    pub(crate) alarmed: bool,
}

impl Remote {
    /// An attempt is under way: it was leased or heard of at `seen`, and is lost at `until`.
    pub(crate) fn note(&mut self, run: RunId, step: &StepId, epoch: u64, seen: Millis, until: Millis) {
        let stop = self.known(run, step, epoch).and_then(|known| known.stop);
        self.put((run, step.clone()), Attempt { epoch, seen, until, stop });
    }

    /// An executor says that an attempt goes on, which may have to stop. It has its lease until then, unless it had its
    /// time to stop: then as long as before.
    pub(crate) fn beat(&mut self, place: &AttemptId, at: Millis, until: Millis, stop: Option<Stop>) {
        let known = self.known(place.run, &place.step, place.epoch);
        let until = match (known, stop) {
            (Some(known), Some(stop)) if stop.by <= at => known.until,
            (Some(_) | None, _) => until,
        };
        self.put((place.run, place.step.clone()), Attempt { epoch: place.epoch, seen: at, until, stop });
    }

    fn put(&mut self, key: (RunId, StepId), attempt: Attempt) {
        let (run, step) = key.clone();
        if let Some(old) = self.attempts.insert(key, attempt) {
            self.ends.remove(&(old.until, run, step.clone()));
        }
        self.ends.insert((attempt.until, run, step));
    }

    fn known(&self, run: RunId, step: &StepId, epoch: u64) -> Option<&Attempt> {
        self.attempts.get(&(run, step.clone())).filter(|attempt| attempt.epoch == epoch)
    }

    /// When an attempt counts as lost.
    pub(crate) fn until(&self, place: &AttemptId) -> Option<Millis> {
        self.known(place.run, &place.step, place.epoch).map(|attempt| attempt.until)
    }

    /// Whether this attempt is known.
    pub(crate) fn knows(&self, run: RunId, step: &StepId, epoch: u64) -> bool {
        self.known(run, step, epoch).is_some()
    }

    /// An attempt is over, whatever became of it.
    pub(crate) fn end(&mut self, run: RunId, step: &StepId, epoch: u64) {
        if self.attempts.is_empty() || !self.knows(run, step, epoch) {
            return;
        }
        if let Some(attempt) = self.attempts.remove(&(run, step.clone())) {
            self.ends.remove(&(attempt.until, run, step.clone()));
            self.alarmed = true;
        }
    }

    /// An attempt is to be stopped. Says whether it is one of these.
    pub(crate) fn stop(&mut self, run: RunId, step: &StepId, epoch: u64, stop: Stop) -> bool {
        let attempt = self.attempts.get_mut(&(run, step.clone())).filter(|attempt| attempt.epoch == epoch);
        let Some(attempt) = attempt else { return false };
        attempt.stop.get_or_insert(stop);
        self.alarmed = true;
        true
    }

    /// Whether an attempt was told to stop.
    pub(crate) fn stopping(&self, place: &AttemptId) -> Option<Stop> {
        self.known(place.run, &place.step, place.epoch).and_then(|attempt| attempt.stop)
    }

    /// Attempts that were not heard of in time; they are known no longer.
    pub(crate) fn silent(&mut self, at: Millis) -> Vec<Silent> {
        let mut silent = Vec::new();
        while let Some((until, run, step)) = self.ends.first().cloned()
            && until <= at
        {
            self.ends.pop_first();
            if let Some(attempt) = self.attempts.remove(&(run, step.clone())) {
                let place = AttemptId { run, step, epoch: attempt.epoch };
                silent.push(Silent { place, last_seen: attempt.seen });
                self.alarmed = true;
            }
        }
        silent
    }

    /// Keeps only those that still are under way: after what was decided last did not last.
    pub(crate) fn retain(&mut self, mut lasts: impl FnMut(RunId, &StepId, u64) -> bool) {
        let ends = &mut self.ends;
        self.attempts.retain(|(run, step), attempt| {
            let keep = lasts(*run, step, attempt.epoch);
            if !keep {
                ends.remove(&(attempt.until, *run, step.clone()));
            }
            keep
        });
    }

    /// Takes one more who waits for work; says whether there is room.
    pub(crate) fn may_wait(&self) -> bool {
        self.wishes.len() + self.watches.len() < WAITING_MAX
    }

    /// When something is to be done next.
    pub(crate) fn next(&self) -> Option<Millis> {
        let wishes = self.wishes.iter().map(|wish| wish.until);
        let watches = self.watches.iter().map(|watch| watch.until);
        wishes.chain(watches).chain(self.ends.first().map(|end| end.0)).min()
    }

    /// Forgets those who are gone.
    pub(crate) fn sweep(&mut self) {
        self.wishes.retain(|wish| !wish.gone.load(Ordering::Acquire));
        self.watches.retain(|watch| !watch.gone.load(Ordering::Acquire));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step() -> StepId {
        Name::clean("s")
    }

    #[test]
    fn an_attempt_is_silent_at_its_last_deadline_and_once() {
        let mut remote = Remote::default();
        remote.note(RunId(1), &step(), 3, Millis(0), Millis(30));
        remote.note(RunId(1), &step(), 3, Millis(10), Millis(40));
        assert_eq!(remote.next(), Some(Millis(40)));
        assert!(remote.silent(Millis(39)).is_empty());
        let silent = remote.silent(Millis(40));
        assert_eq!((silent.len(), silent[0].last_seen), (1, Millis(10)));
        assert!(remote.silent(Millis(99)).is_empty() && !remote.knows(RunId(1), &step(), 3));
    }

    #[test]
    fn a_heartbeat_extends_until_the_time_to_stop_is_over() {
        let mut remote = Remote::default();
        let place = AttemptId { run: RunId(1), step: step(), epoch: 3 };
        remote.note(RunId(1), &step(), 3, Millis(0), Millis(30));
        let stop = Some(Stop::new(Millis(10), Span(5)));
        remote.beat(&place, Millis(14), Millis(44), stop);
        assert_eq!(remote.until(&place), Some(Millis(44)));
        remote.beat(&place, Millis(15), Millis(45), stop);
        assert_eq!((remote.until(&place), remote.next()), (Some(Millis(44)), Some(Millis(44))));
        assert_eq!(remote.silent(Millis(44))[0].last_seen, Millis(15), "it was heard all the same");
    }

    #[test]
    fn a_client_has_the_leases_of_its_own_token_whatever_the_executors_are_called() {
        let client = |token: Option<&str>| Client {
            tenant: Name::clean("acme"),
            namespace: Name::clean("default"),
            token: token.map(Name::clean),
        };
        let (owner, one, two) = (client(None), client(Some("tok_1")), client(Some("tok_2")));
        let name = one.owner("e").unwrap();
        assert_eq!((name.as_str(), owner.owner("e").unwrap().as_str()), ("e@tok_1", "e"));
        assert!(one.has(&name) && !two.has(&name) && !owner.has(&name));
        assert!(owner.has(&owner.owner("e").unwrap()) && !one.has(&owner.owner("e").unwrap()));
        for client in [&owner, &one] {
            assert!(client.owner("e@tok_2").is_err() && client.owner("").is_err());
        }
    }

    #[test]
    fn a_stop_is_for_one_epoch_and_a_heartbeat_does_not_take_it_back() {
        let mut remote = Remote::default();
        remote.note(RunId(1), &step(), 3, Millis(0), Millis(30));
        let stop = Stop::new(Millis(0), Span(5));
        assert!(!remote.stop(RunId(1), &step(), 2, stop));
        assert!(remote.stop(RunId(1), &step(), 3, stop) && remote.alarmed);
        assert!(remote.stop(RunId(1), &step(), 3, Stop::new(Millis(3), Span(5))), "and again");
        remote.note(RunId(1), &step(), 3, Millis(1), Millis(31));
        let place = |epoch| AttemptId { run: RunId(1), step: step(), epoch };
        assert_eq!((remote.stopping(&place(3)), remote.stopping(&place(2))), (Some(stop), None));
        remote.note(RunId(1), &step(), 4, Millis(2), Millis(32));
        assert_eq!(remote.stopping(&place(4)), None, "the next attempt is another");
        remote.end(RunId(1), &step(), 3);
        assert!(remote.knows(RunId(1), &step(), 4), "a late end of an earlier attempt changes nothing");
        remote.retain(|_, _, _| false);
        assert_eq!(remote.next(), None);
    }
}
