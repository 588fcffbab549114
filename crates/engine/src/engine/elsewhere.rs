//! The loop's dealings with executors and holders elsewhere.
//!
//! Work is dealt out a run at a time to those who wait for it, first come first served, so that a burst is shared. A lease
//! and its facts are in the batch of the turn; the executor hears of it when that is durable.
//!
//! **Which steps go where.** A step with `runs_on` goes to an executor that has every label it asks for, wherever that is.
//! A step without goes to the executor in this process, and elsewhere only where this process was started without one.

use super::later::{Several, Task};
use super::{Engine, Turning, refusal};
use crate::handle::Answers;
use crate::hold::{self, Held, HoldAnswer, Leaving};
use crate::port::{Fault, Store};
use crate::release::Due;
use crate::remote::{Client, Lives, Stop, Watch, Wish};
use std::collections::VecDeque;
use std::sync::Arc;
use windlass_core::attempt::{self, Report};
use windlass_core::budget::Amount;
use windlass_core::code::Code;
use windlass_core::gate;
use windlass_core::id::{AttemptId, Holder, RunId, StepId};
use windlass_core::run::{Actor, Initiator, ORPHAN_AFTER, Run};
use windlass_core::stream::StreamId;
use windlass_core::time::{Millis, Span};
use windlass_core::turn;
use windlass_core::turn::command::{Command, Refusal};
use windlass_core::turn::index::Taker;

/// How many runs are looked at in vain for one executor in one turn.
const VAIN_MAX: usize = 256;

/// One that waits for work, and what it gets.
struct Hand {
    wish: Wish,
    leases: Vec<Due>,
    vain: usize,
}

impl<S: Store + 'static> Engine<S> {
    /// Decides several commands, each for itself.
    pub(super) fn ask_many(
        &mut self,
        by: &Actor,
        client: Option<Client>,
        commands: Vec<Command>,
        answer: Answers,
        turn: &mut Turning,
    ) -> Result<(), Fault> {
        if commands.is_empty() {
            turn.waiting.answers.push(Box::new(move |_| answer(Vec::new())));
            return Ok(());
        }
        self.go_on_several(Several::new(by, client, commands, answer), turn)
    }

    /// Decides at least one of several commands, and as many as there is time for. The others are decided later.
    pub(super) fn go_on_several(&mut self, mut several: Several, turn: &mut Turning) -> Result<(), Fault> {
        let first = several.next_place(several.commands.len());
        let mut decided = Vec::new();
        for command in several.commands.by_ref() {
            if let Some(full) = &self.full {
                decided.push(Err(refusal(&full.fault)));
                continue;
            }
            decided.push(match self.is_theirs(several.client.as_ref(), &command)? {
                Ok(()) => self.decide_one(&several.by, command, turn)?,
                Err(refusal) => Err(refusal),
            });
            if !turn.slice.is_time() || turn.is_full() {
                break;
            }
        }
        let gathered = several.decided.clone();
        turn.waiting.answers.push(Box::new(move |durable| {
            gathered.put(
                first,
                match durable {
                    Ok(()) => decided,
                    Err(fault) => decided.iter().map(|_| Err(refusal(fault))).collect(),
                },
            );
        }));
        if several.commands.len() > 0 {
            self.later.push(Task::Several(several));
        }
        Ok(())
    }

    /// Whether a client may tell this: of attempts it may only tell what becomes of its own.
    fn is_theirs(
        &mut self,
        client: Option<&Client>,
        command: &Command,
    ) -> Result<Result<(), Refusal>, Fault> {
        let (Some(client), Some(place)) = (client, place_of(command)) else { return Ok(Ok(())) };
        self.parts.store.load(&[StreamId::Run(place.run)])?;
        if let Command::Report { epoch, report, receipt: None, .. } = command
            && let Some(run) = self.run(place.run).filter(|run| client.is_home(&run.born.home))
            && run.step(&place.step).is_some_and(|step| attempt::is_repeat(step, *epoch, report))
        {
            // Nothing comes of it: whoever did not hear the first answer gets it again.
            return Ok(Ok(()));
        }
        Ok(self.attempted(client, &place).map(|_| ()))
    }

    /// The run of an attempt that is a client's own. A run that belongs elsewhere is one that is not there; a lease that
    /// somebody else has, above all the executor in this process, is none of the client's.
    fn attempted(&mut self, client: &Client, place: &AttemptId) -> Result<&Run, Refusal> {
        let here = self.options.executor.clone();
        let run = self.run(place.run).filter(|run| client.is_home(&run.born.home));
        let run = run.ok_or_else(|| absent_run(place.run))?;
        let step = run.step(&place.step).ok_or_else(|| {
            Refusal::new(Code::NotFound, format!("step `{}` of `{}` is not there", place.step, place.run))
        })?;
        step.must_be_attempted(place.epoch)?;
        if step.lease.as_ref().is_some_and(|lease| lease.owner != here && client.has(&lease.owner)) {
            return Ok(run);
        }
        let text = format!("the lease on step `{}` of `{}` is somebody else's", place.step, place.run);
        Err(Refusal::new(Code::LeaseStaleEpoch, text))
    }

    /// An executor elsewhere wants work. It is dealt with at the end of the turn.
    pub(super) fn wish(&mut self, wish: Wish, turn: &mut Turning) {
        if self.is_stopping() || !self.remote.may_wait() {
            let text = "too many executors wait, or the engine is shutting down: try again in a second";
            turn.waiting.answers.push(Box::new(move |_| {
                (wish.answer)(Err(Refusal::new(Code::Unavailable, text)));
            }));
            return;
        }
        self.remote.wishes.push_back(wish);
    }

    /// Deals out what is ready to the executors that wait.
    pub(super) fn deal(&mut self, turn: &mut Turning) -> Result<(), Fault> {
        self.remote.sweep();
        if self.remote.wishes.is_empty() {
            return Ok(());
        }
        let wishes = std::mem::take(&mut self.remote.wishes);
        let mut hands: Vec<Hand> =
            wishes.into_iter().map(|wish| Hand { wish, leases: Vec::new(), vain: 0 }).collect();
        let mut open: VecDeque<usize> = (0..hands.len()).collect();
        let mut refused = Vec::new();
        while let Some(next) = open.pop_front() {
            let hand = &mut hands[next];
            if hand.leases.len() >= hand.wish.max || hand.vain >= VAIN_MAX {
                continue;
            }
            let (labels, client) = (hand.wish.labels.clone(), hand.wish.client.clone());
            let home = Some((&client.tenant, &client.namespace));
            let taker = Taker { home, labels: &labels, plain: self.plain_elsewhere };
            let Some((run, steps)) = self.parts.store.pick_ready(&taker) else { continue };
            if !self.lease_to(hand, &taker, (run, steps), turn)? {
                hand.vain += 1;
                refused.push(run);
            }
            open.push_back(next);
        }
        refused.into_iter().for_each(|run| self.parts.store.put_back(run));
        for Hand { wish, leases, .. } in hands {
            if leases.is_empty() && wish.until > self.at {
                self.remote.wishes.push_back(wish);
            } else {
                turn.waiting.grants.push((leases, wish.answer));
            }
        }
        Ok(())
    }

    /// Leases what it can of a run; says whether anything came of it.
    fn lease_to(
        &mut self,
        hand: &mut Hand,
        taker: &Taker<'_>,
        (run, steps): (RunId, Vec<StepId>),
        turn: &mut Turning,
    ) -> Result<bool, Fault> {
        let by = Actor { initiator: Initiator::Executor, id: Some(hand.wish.executor.clone()) };
        let before = turn.facts.len();
        for step in steps {
            if !self.may_take(run, &step, taker, Some(&hand.wish.tools)) {
                continue;
            }
            let owner = hand.wish.executor.clone();
            let command = Command::Lease { run, step, owner, agent: None, reserve: Amount::default() };
            self.leased.clear();
            self.follow(&by, command, turn)?;
            for lease in std::mem::take(&mut self.leased) {
                self.remote.note(lease.run, &lease.step, lease.epoch, self.at, lease.expires_at);
                if let Some(work) = self.work(lease.run) {
                    hand.leases.push((lease, Arc::new(work)));
                }
            }
            if turn.facts.len() > before {
                // Its next step is for its next turn: runs take turns step by step.
                self.parts.store.put_back(run);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// An executor elsewhere says that it works on something, and may wait for news of it.
    pub(super) fn extend(&mut self, watch: Watch, turn: &mut Turning) -> Result<(), Fault> {
        let until = self.at + self.options.lease_ttl;
        for place in &watch.places {
            self.parts.store.load(&[StreamId::Run(place.run)])?;
            if let Ok(stop) = self.goes_on(&watch.client, place) {
                self.remote.beat(place, self.at, until, stop);
                self.parts.store.beat(Holder::Step(place.run, place.step.clone()), self.at);
            }
        }
        let news = self.news(&watch)?;
        let calm = news.iter().all(|news| matches!(news, Ok(Lives { stop: None, .. })));
        if calm && watch.until > self.at && !self.is_stopping() && self.remote.may_wait() {
            self.remote.watches.push(watch);
        } else {
            turn.waiting.answers.push(Box::new(move |_| (watch.answer)(news)));
        }
        Ok(())
    }

    fn news(&mut self, watch: &Watch) -> Result<Vec<Result<Lives, Refusal>>, Fault> {
        let mut news = Vec::with_capacity(watch.places.len());
        for place in &watch.places {
            self.parts.store.load(&[StreamId::Run(place.run)])?;
            let stop = self.goes_on(&watch.client, place);
            let expires_at = self.remote.until(place).unwrap_or(self.at);
            news.push(stop.map(|stop| Lives { expires_at, stop: stop.map(|stop| stop.grace) }));
        }
        Ok(news)
    }

    /// Whether an attempt goes on, and whether it is to be stopped.
    fn goes_on(&mut self, client: &Client, place: &AttemptId) -> Result<Option<Stop>, Refusal> {
        let (at, told) = (self.at, self.remote.stopping(place));
        let run = self.attempted(client, place)?;
        let Some(step) = run.step(&place.step).filter(|step| step.is_executing()) else {
            // It was lost and may be reported on; what it does cannot be watched any more.
            let text = format!("the lease on step `{}` of `{}` ran out", place.step, place.run);
            return Err(Refusal::new(Code::LeaseStaleEpoch, text));
        };
        // The process before may have been the one that told it to stop: then its time begins with this one.
        let since = step.timeout_at.filter(|timeout| *timeout <= at);
        let since = since.or_else(|| run.stops(step.section).then_some(at));
        Ok(told.or_else(|| since.map(|since| Stop::new(since, gate::GRACE))))
    }

    /// Takes leases back from executors of which nothing was heard for a whole time-out.
    pub(super) fn expire(&mut self, at: Millis, turn: &mut Turning) -> Result<(), Fault> {
        for silent in self.remote.silent(at) {
            self.lose(silent.place, (silent.last_seen, silent.last_seen), turn)?;
        }
        if at < self.adopt_at {
            return Ok(());
        }
        // Leases that another process gave have their whole time-out from here on.
        self.adopt_at = at + Span(self.options.lease_ttl.0 / 3);
        // The executor in this process lives as long as the process: what it has is leased on before it looks stale.
        for lease in self.parts.store.pick_expired(self.adopt_at) {
            if lease.owner == self.options.executor {
                self.parts.store.beat(Holder::Step(lease.run, lease.step), at);
            }
        }
        for lease in self.parts.store.pick_expired(at) {
            let own = lease.owner == self.options.executor;
            if !own && !self.remote.knows(lease.run, &lease.step, lease.epoch) {
                let until = at + self.options.lease_ttl;
                self.remote.note(lease.run, &lease.step, lease.epoch, lease.since, until);
            }
        }
        Ok(())
    }

    /// Nobody knows what became of an attempt. One whose executor has been silent for long makes its run an orphan.
    pub(super) fn lose(
        &mut self,
        place: AttemptId,
        (seen, last_sign): (Millis, Millis),
        turn: &mut Turning,
    ) -> Result<(), Fault> {
        let AttemptId { run, step, epoch } = place;
        if last_sign + ORPHAN_AFTER <= self.at && self.is_under_way(run, &step, epoch) {
            let last_heartbeat_at = Some(last_sign);
            self.follow(&Actor::SYSTEM, Command::Orphan { run, last_heartbeat_at }, turn)?;
        }
        let report = Report::Lost { last_seen: Some(seen) };
        self.follow(&Actor::SYSTEM, Command::Report { run, step, epoch, report, receipt: None }, turn)
    }

    /// A command about a lock or a semaphore.
    pub(super) fn hold(
        &mut self,
        by: &Actor,
        command: Command,
        id: u64,
        answer: HoldAnswer,
        turn: &mut Turning,
    ) -> Result<(), Fault> {
        if let Some(full) = &self.full {
            let refusal = refusal(&full.fault);
            turn.waiting.answers.push(Box::new(move |_| answer(Err(refusal))));
            return Ok(());
        }
        let subject = hold::subject(&command);
        let given_up = match subject.as_ref().filter(|_| hold::gives_up(&command)) {
            Some((stream, holder)) => {
                self.parts.store.load(std::slice::from_ref(stream))?;
                self.grant(stream, holder).map(|grant| hold::Grant { expires_at: None, ..grant })
            }
            None => None,
        };
        let decided = self.decide(by, command, turn)?;
        if let (Ok(reply), Some(subject)) = (&decided, &subject) {
            if hold::is_queued(reply) {
                if let Some(older) = self.holds.wait(subject.clone(), id, answer) {
                    turn.waiting.answers.push(Box::new(move |_| older(Err(hold::superseded()))));
                }
                return Ok(());
            }
            if hold::lives(reply) && !subject.1.is_inside() {
                self.parts.store.beat(subject.1.clone(), self.at);
            }
        }
        let held = decided.map(|reply| {
            // What was given up is nobody's any more; who has the lock now is not the asker's to know.
            let grant = match hold::is_given_up(&reply) {
                true => given_up,
                false => subject.and_then(|(stream, holder)| self.grant(&stream, &holder)),
            };
            Held { reply, grant }
        });
        turn.waiting.answers.push(Box::new(move |durable| {
            answer(match durable {
                Ok(()) => held,
                Err(fault) => Err(refusal(fault)),
            });
        }));
        Ok(())
    }

    fn grant(&mut self, stream: &StreamId, holder: &Holder) -> Option<hold::Grant> {
        let view = self.parts.store.view();
        match view.find(stream) {
            turn::Found::Here(body) => hold::grant(body, holder, view.beats()),
            turn::Found::Absent | turn::Found::Unloaded => None,
        }
    }

    /// Whoever stood in line is gone, and leaves it.
    pub(super) fn leave(&mut self, leaving: &Leaving, turn: &mut Turning) -> Result<(), Fault> {
        if !self.holds.leave(leaving) {
            return Ok(());
        }
        match hold::abandon(leaving) {
            Some(command) if self.full.is_none() => self.follow(&Actor::SYSTEM, command, turn),
            Some(_) | None => Ok(()),
        }
    }

    /// Tells those elsewhere what this turn means for them.
    pub(super) fn tell_elsewhere(&mut self, turn: &mut Turning) -> Result<(), Fault> {
        for over in std::mem::take(&mut self.over) {
            let grant = self.grant(&over.stream, &over.holder);
            let (answer, held) = (over.answer, Held { reply: over.reply, grant });
            turn.waiting.answers.push(Box::new(move |durable| {
                answer(match durable {
                    Ok(()) => Ok(held),
                    Err(fault) => Err(refusal(fault)),
                });
            }));
        }
        let (at, stopping) = (self.at, self.is_stopping());
        if stopping {
            self.dismiss(turn);
        }
        // Nothing is dealt while the store is full, and still nobody waits for longer than it said.
        let wishes = std::mem::take(&mut self.remote.wishes);
        let (over, waiting): (VecDeque<Wish>, VecDeque<Wish>) =
            wishes.into_iter().partition(|w| w.until <= at);
        self.remote.wishes = waiting;
        turn.waiting.grants.extend(over.into_iter().map(|wish| (Vec::new(), wish.answer)));
        let due = self.remote.watches.iter().any(|watch| watch.until <= at);
        if !(std::mem::take(&mut self.remote.alarmed) || due || stopping) {
            return Ok(());
        }
        for watch in std::mem::take(&mut self.remote.watches) {
            let news = self.news(&watch)?;
            let calm = news.iter().all(|news| matches!(news, Ok(Lives { stop: None, .. })));
            if calm && watch.until > at && !stopping {
                self.remote.watches.push(watch);
            } else {
                turn.waiting.answers.push(Box::new(move |_| (watch.answer)(news)));
            }
        }
        Ok(())
    }

    /// The loop ends: nobody waits any longer.
    fn dismiss(&mut self, turn: &mut Turning) {
        for wish in std::mem::take(&mut self.remote.wishes) {
            turn.waiting.grants.push((Vec::new(), wish.answer));
        }
        for answer in self.holds.drain() {
            let text = "the engine is shutting down: ask again when it runs; the place in line is kept";
            turn.waiting.answers.push(Box::new(move |_| {
                answer(Err(Refusal::new(Code::Unavailable, text)));
            }));
        }
    }
}

/// The attempt that a command tells of.
fn place_of(command: &Command) -> Option<AttemptId> {
    match command {
        Command::Report { run, step, epoch, .. }
        | Command::Secrets { run, step, epoch, .. }
        | Command::Cost { run, step, epoch, .. } => {
            Some(AttemptId { run: *run, step: step.clone(), epoch: *epoch })
        }
        Command::Checkpoint(saved) => {
            Some(AttemptId { run: saved.pipeline_id, step: saved.step.clone()?, epoch: saved.epoch? })
        }
        // tidy: nothing else is told of an attempt by whoever carries it out elsewhere.
        _ => None,
    }
}

fn absent_run(run: RunId) -> Refusal {
    Refusal::new(Code::NotFound, format!("run `{run}` is not there"))
}
