//! The loop: gathers what waits, decides it, commits it as one batch, and goes on while the batch becomes durable.
//!
//! What is decided is on the view at once, so the next decision sees it; nobody outside does before it is durable.
//! Answers, reads included, wait for the batch of their turn. A batch that finds no room is as if it had never been:
//! the view is loaded again, callers hear that the store is full, and what has happened outside and must be recorded
//! is kept and decided again when there is room.
//!
//! Leases of the executor in this process need no heartbeats: it is there as long as the loop is. After a start the
//! attempts of the process before are lost, and are told so; those of others have one whole time-out to be heard of.

mod elsewhere;
mod later;

use crate::fast::Map;
use crate::handle::{Answer, Handle, Inbox, Message};
use crate::hold::{Holds, Over};
use crate::port::{Batch, Clock, Decided, Fault, Ids, Outside, Policy, Store};
use crate::release::{Waiting, Work};
use crate::remote::{Remote, Stop};
use later::{Later, Rest, Slice};
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use windlass_core::budget::Amount;
use windlass_core::caps::TURN_LEN_MAX;
use windlass_core::cause::Causes;
use windlass_core::effect::{Effect, Lease};
use windlass_core::event::{Event, SystemRecovered};
use windlass_core::id::{AttemptId, Name, RunId, StepId};
use windlass_core::run::{Actor, Initiator, Run};
use windlass_core::stream::StreamId;
use windlass_core::template::Evaluate;
use windlass_core::time::{Millis, Span};
use windlass_core::turn::command::{Command, Refusal, Reply};
use windlass_core::turn::index::Taker;
use windlass_core::turn::state::Body;
use windlass_core::turn::{self, Turn};

/// How many messages one turn takes at most. Turns of thousands fill vectors so large that the system gives and takes
/// their pages each time, which costs more than a turn does.
const GATHER_MAX: usize = 512;
/// How many streams one turn looks at the clock for.
const TICKS_MAX: usize = 1_024;
/// How many batches may be on their way before the loop waits for the first.
const FLIGHT_MAX: usize = 8;
/// How many times one command may ask for further streams. Each of its follow-ups may name a lock or a key of its own that
/// has left memory, or that nobody ever had.
const LOADS_MAX: usize = 2 * turn::FOLLOW_MAX;
/// How many reports are kept while the store is full. An executor has no more attempts than slots.
const KEPT_MAX: usize = 100_000;
/// How long to wait for a batch to land before looking again.
const CROWDED: Duration = Duration::from_millis(100);
/// How long to look out for the next message after a turn before going to sleep; and how long where that was worth it the
/// last time, as when one caller's answer is what the next one waits for.
const EAGER: Duration = Duration::from_micros(100);
const EAGER_MAX: Duration = Duration::from_micros(400);
/// How long facts that nobody waits for may wait for a batch to go with, and how many of them.
const HOLD_MAX: Span = Span(5);
const HELD_MAX: usize = 4_096;
/// How many bytes.
const HELD_LEN_MAX: usize = 1 << 20;
/// For how many slices a turn takes messages, and looks at the clock for streams.
const TURN_SLICES: u32 = 2;
/// How often to look whether a full store has room again.
const PROBE: Span = Span(1_000);

/// How the loop behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of the executor in this process.
    pub executor: Name,
    /// How many attempts it carries out at once. With none from the start, steps that ask for no label go to executors
    /// elsewhere.
    pub slots: usize,
    /// Which steps with `runs_on` it takes.
    pub labels: Vec<Name>,
    /// How long a lease lasts without a heartbeat.
    pub lease_ttl: Span,
    /// How long one command may keep the loop: what follows from it after that is decided in later turns.
    pub slice: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            executor: Name::clean("local"),
            slots: 16,
            labels: Vec::new(),
            lease_ttl: Span::secs(30),
            slice: Duration::from_millis(5),
        }
    }
}

/// What the loop is made of.
pub struct Parts<S> {
    /// The store.
    pub store: S,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Where ids come from.
    pub ids: Box<dyn Ids>,
    /// What evaluates expressions.
    pub evaluate: Arc<dyn Evaluate + Send + Sync>,
    /// Which policy is in force.
    pub policy: Arc<dyn Policy>,
    /// Where effects go.
    pub outside: Arc<dyn Outside>,
}

/// The loop.
pub struct Engine<S> {
    parts: Parts<S>,
    options: Options,
    handle: Handle<S>,
    /// The time of the last turn: time never decreases.
    at: Millis,
    /// Attempts that the executor in this process has, with their epochs.
    executing: Map<(RunId, StepId), u64>,
    /// How many facts the last turn came to.
    facts_last: usize,
    /// Executors elsewhere, and the attempts that they have.
    remote: Remote,
    /// Whether they get steps that ask for no label.
    plain_elsewhere: bool,
    /// Leases of theirs that were decided just now.
    leased: Vec<Lease>,
    /// When leases are looked for that this process did not give.
    adopt_at: Millis,
    /// Programs elsewhere that stand in line for locks and slots.
    holds: Holds,
    /// Those of them whose waiting is over by what was decided just now.
    over: Vec<Over>,
    flight: Arc<Flight>,
    full: Option<Full>,
    /// Facts that nobody waits for, until there is something to commit with them.
    held: Vec<Decided>,
    /// About how many bytes they come to.
    held_weight: usize,
    /// Since when.
    held_since: Millis,
    /// Whether the loop turns by itself, and so comes back for them.
    turns: bool,
    /// The store has work of its own left.
    unfinished: bool,
    /// Commands whose slice ended before they did.
    later: Later,
}

/// Batches on their way.
#[derive(Default)]
struct Flight {
    batches: AtomicUsize,
    /// The loop ends when the last of them has landed.
    stopping: AtomicBool,
    /// Why one of them failed, until the loop has gone back. It is known before the batch counts as landed, so what the
    /// view shows meanwhile is shown to nobody.
    failed: Mutex<Option<Fault>>,
}

impl Flight {
    fn failed(&self) -> MutexGuard<'_, Option<Fault>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The store found no room.
struct Full {
    fault: Fault,
    probe_at: Millis,
    kept: Vec<(Actor, Command)>,
}

/// One turn under way.
#[derive(Default)]
struct Turning {
    facts: Vec<Decided>,
    waiting: Waiting,
    /// Reports, in case the batch finds no room.
    must: Vec<(Actor, Command)>,
    /// How many commands were decided.
    decided: usize,
    /// About how many bytes the facts come to.
    weight: usize,
    /// The time for the message or the look at the clock that it is at.
    slice: Slice,
    /// Whether what was decided last goes on later.
    paused: bool,
}

impl Turning {
    /// Whether it comes to so many bytes that the rest is the next turn's.
    fn is_full(&self) -> bool {
        self.weight >= TURN_LEN_MAX
    }
}

impl<S: Store + 'static> Engine<S> {
    /// A loop that has not begun.
    pub fn new(parts: Parts<S>, options: Options, handle: Handle<S>) -> Engine<S> {
        let at = parts.clock.now();
        let plain_elsewhere = options.slots == 0;
        Engine {
            parts,
            options,
            handle,
            at,
            executing: Map::default(),
            facts_last: 0,
            remote: Remote::default(),
            plain_elsewhere,
            leased: Vec::new(),
            adopt_at: at,
            holds: Holds::default(),
            over: Vec::new(),
            flight: Arc::default(),
            full: None,
            held: Vec::new(),
            held_weight: 0,
            held_since: at,
            turns: false,
            unfinished: false,
            later: Later::default(),
        }
    }

    /// Takes up what the process before left: what did not fit into its last turn, what is outstanding, and attempts
    /// of which nobody knows any more.
    ///
    /// # Errors
    /// What is stored cannot be read.
    pub fn recover(&mut self) -> Result<(), Fault> {
        if let Some(newest) = self.parts.store.newest() {
            self.parts.clock.not_before(newest);
        }
        let at = self.tick_clock();
        let found = self.parts.store.recover(at)?;
        let mut turn = Turning::default();
        let leases = found.leases.len() as u64;
        let runs = found.leases.iter().map(|lease| lease.run).collect::<BTreeSet<_>>().len() as u64;
        for command in found.commands {
            self.follow(&Actor::SYSTEM, command, &mut turn)?;
        }
        let quiet_since = found.last_at.unwrap_or(at);
        for lease in found.leases {
            let place = AttemptId { run: lease.run, step: lease.step, epoch: lease.epoch };
            if lease.owner == self.options.executor {
                // The executor in that process lived as long as the process did.
                self.lose(place, (lease.since, quiet_since.max(lease.since)), &mut turn)?;
            } else {
                // Nobody could be heard while nobody listened.
                let seen = quiet_since.max(lease.since).min(at);
                self.remote.note(place.run, &place.step, place.epoch, seen, at + self.options.lease_ttl);
            }
        }
        if leases > 0 {
            let count =
                |of: fn(&Event) -> bool| turn.facts.iter().filter(|fact| of(&fact.fact.event)).count() as u64;
            let unknown = count(|event| matches!(event, Event::StepUnknown(_)));
            let orphans = count(|event| matches!(event, Event::PipelineOrphaned(_)));
            let told = SystemRecovered { runs, leases, unknown, orphans };
            self.follow(&Actor::SYSTEM, Command::Recovered(Box::new(told)), &mut turn)?;
        }
        turn.waiting.effects.extend(found.effects);
        self.lease(&mut turn)?;
        self.commit(turn, false);
        Ok(())
    }

    /// Serves the inbox until it is told to stop, or nobody is left who could.
    ///
    /// # Errors
    /// What is stored cannot be read.
    pub fn serve(&mut self, inbox: &Inbox<S>) -> Result<(), Fault> {
        let mut messages = VecDeque::new();
        let (mut eager, mut near) = (false, false);
        self.turns = true;
        loop {
            let crowded = self.flying() >= FLIGHT_MAX && messages.len() < GATHER_MAX;
            let wait = if crowded { CROWDED } else { self.wait() };
            let first = if !crowded && !messages.is_empty() {
                None
            } else if eager && !crowded && self.later.is_empty() {
                let first = await_eagerly(inbox, if near { EAGER_MAX } else { EAGER });
                near = first.is_some();
                first
            } else {
                None
            };
            // What the last turn had no time for goes first; there is nothing to wait for.
            let wait = if messages.is_empty() || crowded { wait } else { Duration::ZERO };
            match first.map_or_else(|| inbox.receiver.recv_timeout(wait), Ok) {
                Ok(message) => messages.push_back(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            while messages.len() < GATHER_MAX
                && let Ok(message) = inbox.receiver.try_recv()
            {
                messages.push_back(message);
            }
            if self.flying() >= FLIGHT_MAX {
                // More is decided when there is something to show for what was decided before.
                continue;
            }
            eager = !messages.is_empty();
            let soon = messages.len() <= 8;
            let next = || messages.pop_front().inspect(|message| inbox.took(message));
            self.turn(std::iter::from_fn(next), soon)?;
            if self.is_stopping() && self.flying() == 0 {
                return Ok(());
            }
        }
    }

    fn flying(&self) -> usize {
        self.flight.batches.load(Ordering::Acquire)
    }

    fn is_stopping(&self) -> bool {
        self.flight.stopping.load(Ordering::Acquire)
    }

    /// How long nothing is to be done unless somebody asks.
    fn wait(&mut self) -> Duration {
        // A wall clock that jumps ahead wakes nobody, so somebody has to look.
        const LONGEST: Span = Span(500);
        const SOON: Duration = Duration::from_millis(5);
        if !self.later.is_empty() && self.full.is_none() {
            return Duration::ZERO;
        }
        let now = self.parts.clock.now();
        let mut next = now + LONGEST;
        if let Some(full) = &self.full {
            next = next.min(full.probe_at);
        } else if let Some(due) = self.parts.store.next_due() {
            next = next.min(due);
        }
        if let Some(due) = self.remote.next() {
            next = next.min(due);
        }
        if !self.held.is_empty() {
            next = next.min(self.held_since + HOLD_MAX);
        }
        let wait = Duration::from_millis(next.since(now).0);
        if self.unfinished { wait.min(SOON) } else { wait }
    }

    fn tick_clock(&mut self) -> Millis {
        self.at = self.parts.clock.now().never_before(self.at);
        self.at
    }

    /// One turn: decides these messages, what is due and what can be leased, and commits all of it together. When it has
    /// taken its time it takes no more messages: the rest is the next turn's.
    ///
    /// # Errors
    /// What is stored cannot be read.
    pub fn turn(&mut self, messages: impl Iterator<Item = Message<S>>, soon: bool) -> Result<(), Fault> {
        let at = self.tick_clock();
        if self.flight.failed().is_some() {
            self.go_back()?;
        }
        // A turn is mostly as large as the one before.
        let mut turn = Turning { facts: Vec::with_capacity(self.facts_last), ..Turning::default() };
        let slice = Slice::begin(self.options.slice.saturating_mul(TURN_SLICES));
        for message in messages {
            self.take(message, &mut turn)?;
            if !slice.is_time() || turn.is_full() {
                break;
            }
        }
        if self.full.is_some() {
            self.probe(&mut turn)?;
        }
        if self.full.is_none() && !self.is_stopping() {
            if !turn.is_full() {
                self.go_on(&mut turn)?;
            }
            if !turn.is_full() {
                self.due(at, &mut turn)?;
            }
            self.expire(at, &mut turn)?;
            self.lease(&mut turn)?;
            self.deal(&mut turn)?;
        }
        self.tell_elsewhere(&mut turn)?;
        let soon = soon && turn.decided <= 8;
        self.facts_last = turn.facts.len();
        self.commit(turn, soon);
        // What the store does by itself is about what was handed over to it.
        self.unfinished = self.held.is_empty() && self.parts.store.idle(at);
        Ok(())
    }

    fn take(&mut self, message: Message<S>, turn: &mut Turning) -> Result<(), Fault> {
        turn.slice = Slice::begin(self.options.slice);
        match message {
            Message::Ask { by, command, answer } => self.ask(&by, command, answer, turn),
            Message::Report { by, command } => self.report(by, command, turn),
            Message::Read(look) => {
                let then = look(&mut self.parts.store);
                turn.waiting.answers.push(then);
                Ok(())
            }
            Message::Many { by, client, commands, answer } => {
                self.ask_many(&by, client, commands, answer, turn)
            }
            Message::Wish(wish) => {
                self.wish(wish, turn);
                Ok(())
            }
            Message::Extend(watch) => self.extend(watch, turn),
            Message::Hold { by, command, id, answer } => self.hold(&by, command, id, answer, turn),
            Message::Leave(leaving) => self.leave(&leaving, turn),
            Message::Beat(holder) => {
                self.parts.store.beat(holder, self.at);
                Ok(())
            }
            Message::Slots(slots) => {
                self.options.slots = slots;
                Ok(())
            }
            Message::Nudge => Ok(()),
            Message::Stop => {
                self.flight.stopping.store(true, Ordering::Release);
                Ok(())
            }
        }
    }

    fn ask(&mut self, by: &Actor, command: Command, answer: Answer, turn: &mut Turning) -> Result<(), Fault> {
        if let Some(full) = &self.full {
            let refusal = refusal(&full.fault);
            turn.waiting.answers.push(Box::new(move |_| answer(Err(refusal))));
            return Ok(());
        }
        // Who is told that a run is stopped may rely on that, for the runs that it called too.
        let whole = matches!(&command, Command::Cancel { .. });
        turn.paused = false;
        let decided = self.decide_one(by, command, turn)?;
        let answer = Box::new(move |durable: Result<(), &Fault>| {
            answer(match durable {
                Ok(()) => decided,
                Err(fault) => Err(refusal(fault)),
            });
        });
        if whole && turn.paused {
            self.later.hold(answer);
        } else {
            turn.waiting.answers.push(answer);
        }
        Ok(())
    }

    /// Takes what has happened outside. A refusal means that it came too late.
    fn report(&mut self, by: Actor, command: Command, turn: &mut Turning) -> Result<(), Fault> {
        if let Some(full) = &mut self.full {
            if full.kept.len() < KEPT_MAX {
                full.kept.push((by, command));
            }
            return Ok(());
        }
        // One that is too late by what was decided before it is not, should that find no room.
        let _ = self.decide_one(&by, command.clone(), turn)?;
        turn.must.push((by, command));
        Ok(())
    }

    /// Decides what somebody asked for, and takes note of an attempt that is over by it.
    fn decide_one(
        &mut self,
        by: &Actor,
        command: Command,
        turn: &mut Turning,
    ) -> Result<Result<Reply, Refusal>, Fault> {
        let ended = match &command {
            Command::Report { run, step, epoch, .. } => Some((*run, step.clone(), *epoch)),
            // tidy: nothing else ends an attempt.
            _ => None,
        };
        let decided = self.decide(by, command, turn)?;
        if let Some((run, step, epoch)) = ended {
            self.ended(run, step, epoch);
        }
        Ok(decided)
    }

    /// An attempt is over, whatever became of its report.
    fn ended(&mut self, run: RunId, step: StepId, epoch: u64) {
        self.remote.end(run, &step, epoch);
        if let std::collections::hash_map::Entry::Occupied(entry) = self.executing.entry((run, step))
            && *entry.get() == epoch
        {
            entry.remove();
        }
    }

    /// Decides a command with all that follows; its facts and effects join the turn.
    fn decide(
        &mut self,
        by: &Actor,
        command: Command,
        turn: &mut Turning,
    ) -> Result<Result<Reply, Refusal>, Fault> {
        turn.decided += 1;
        self.drive(Rest::new(by, command), turn)
    }

    fn done(&mut self, causes: &mut Causes, done: Turn, turn: &mut Turning) -> Reply {
        turn.weight += done.weight;
        self.over.extend(self.holds.over(&done.facts));
        let at = self.at;
        turn.facts.extend(done.facts.into_iter().map(|fact| {
            let by = causes.of(&fact.event);
            Decided { fact, by, at }
        }));
        for effect in done.effects {
            match effect {
                Effect::Execute(lease) if lease.owner == self.options.executor => {
                    self.attempt(*lease, turn);
                }
                // Another executor gets its lease as the answer to its question.
                Effect::Execute(lease) => self.leased.push(*lease),
                Effect::Stop { run, ref step, epoch, grace } => {
                    // An executor elsewhere hears of it when it next says that it lives, or at once where it listens.
                    if !self.remote.stop(run, step, epoch, Stop::new(self.at, grace)) {
                        turn.waiting.effects.push(effect);
                    }
                }
                effect @ (Effect::EvaluatePolicy { .. }
                | Effect::GatherGuard { .. }
                | Effect::Probe { .. }
                | Effect::ComputeSlots { .. }
                | Effect::ListItems { .. }
                | Effect::TakeItem { .. }
                | Effect::Send { .. }
                | Effect::Kill { .. }
                | Effect::Nudge { .. }
                | Effect::WorktreeAdd { .. }
                | Effect::WorktreeRemove { .. }
                | Effect::Notify { .. }
                | Effect::ShowApproval { .. }) => turn.waiting.effects.push(effect),
            }
        }
        done.reply
    }

    /// A lease of the executor here: it begins when the batch is durable.
    fn attempt(&mut self, lease: Lease, turn: &mut Turning) {
        self.executing.insert((lease.run, lease.step.clone()), lease.epoch);
        if let Some(work) = self.work(lease.run) {
            turn.waiting.attempts.push((lease, Arc::new(work)));
        }
    }

    fn run(&mut self, id: RunId) -> Option<&Run> {
        match self.parts.store.view().find(&StreamId::Run(id)) {
            turn::Found::Here(Body::Run(run)) => Some(run),
            turn::Found::Here(_) | turn::Found::Absent | turn::Found::Unloaded => None,
        }
    }

    fn work(&mut self, id: RunId) -> Option<Work> {
        let run = self.run(id)?;
        let (hash, pipeline) = (run.born.home.runbook, run.born.home.pipeline.clone());
        let (cwd, tenant, namespace) =
            (run.born.home.cwd.clone(), run.born.home.tenant.clone(), run.born.home.namespace.clone());
        let (trace, began) = (run.born.trace(), run.born.began());
        let runbook = match self.parts.store.view().find(&StreamId::Runbook(hash)) {
            turn::Found::Here(Body::Runbook(runbook)) => runbook.clone(),
            turn::Found::Here(_) | turn::Found::Absent | turn::Found::Unloaded => return None,
        };
        Some(Work { runbook, pipeline, cwd, tenant, namespace, trace, began })
    }

    /// Decides something that nobody waits for. A refusal means that it came too late.
    fn follow(&mut self, by: &Actor, command: Command, turn: &mut Turning) -> Result<(), Fault> {
        turn.slice = Slice::begin(self.options.slice);
        self.decide(by, command, turn).map(|_| ())
    }

    /// Looks at the clock for the streams that are due. One that had nothing to say is not offered again.
    fn due(&mut self, at: Millis, turn: &mut Turning) -> Result<(), Fault> {
        let slice = Slice::begin(self.options.slice.saturating_mul(TURN_SLICES));
        for stream in self.parts.store.pick_due(at, TICKS_MAX) {
            let by = windlass_core::cause::of_tick(&stream);
            self.follow(&by, Command::Tick(stream), turn)?;
            if !slice.is_time() || turn.is_full() {
                // The others stay due.
                break;
            }
        }
        Ok(())
    }

    /// Leases what is ready to the executor here, as far as it has slots.
    fn lease(&mut self, turn: &mut Turning) -> Result<(), Fault> {
        let by = Actor { initiator: Initiator::Executor, id: Some(self.options.executor.clone()) };
        // Runs of which nothing could be leased; they go back in line afterwards, or they would come up at once.
        let mut refused = Vec::new();
        let labels = self.options.labels.clone();
        let taker = Taker { home: None, labels: &labels, plain: true };
        while self.executing.len() < self.options.slots && !turn.is_full() {
            let Some((run, steps)) = self.parts.store.pick_ready(&taker) else { break };
            let mut leased = false;
            for step in steps {
                if !self.may_take(run, &step, &taker, None) {
                    continue;
                }
                let owner = self.options.executor.clone();
                let command = Command::Lease { run, step, owner, agent: None, reserve: Amount::default() };
                let before = turn.facts.len();
                self.follow(&by, command, turn)?;
                leased = turn.facts.len() > before;
                if leased {
                    break;
                }
            }
            if leased {
                // Its next step is for its next turn: runs take turns step by step.
                self.parts.store.put_back(run);
            }
            if !leased {
                refused.push(run);
            }
        }
        refused.into_iter().for_each(|run| self.parts.store.put_back(run));
        Ok(())
    }

    /// Whether an executor has every label that the step asks for, and can carry it out.
    fn may_take(&mut self, run: RunId, step: &StepId, taker: &Taker<'_>, tools: Option<&[Name]>) -> bool {
        let view = self.parts.store.view();
        let turn::Found::Here(Body::Run(run)) = view.find(&StreamId::Run(run)) else { return true };
        let turn::Found::Here(Body::Runbook(runbook)) = view.find(&StreamId::Runbook(run.born.home.runbook))
        else {
            return true;
        };
        let node =
            run.step(step).and_then(|step| runbook.pipelines.get(&run.born.home.pipeline)?.node(step.node));
        node.is_none_or(|node| {
            taker.takes(&node.runs_on)
                && tools.is_none_or(|tools| tools.iter().any(|tool| tool.as_str() == node.kind.tool()))
        })
    }

    fn commit(&mut self, turn: Turning, soon: bool) {
        let Turning { mut facts, waiting, must, weight, .. } = turn;
        let patient = self.turns && waiting.is_empty() && must.is_empty() && !self.is_stopping();
        if patient && self.hold_back(&mut facts, weight) {
            return;
        }
        if !self.held.is_empty() {
            let mut all = std::mem::take(&mut self.held);
            self.held_weight = 0;
            all.append(&mut facts);
            facts = all;
        }
        if facts.is_empty() && waiting.is_empty() {
            return;
        }
        let (outside, handle, flight) =
            (self.parts.outside.clone(), self.handle.clone(), self.flight.clone());
        let idle = self.flying() == 0;
        if facts.is_empty() && idle {
            // Everything that was looked at is durable, unless a batch has just failed.
            let failed = self.flight.failed().clone();
            return waiting.release(failed.as_ref().map_or(Ok(()), Err), &*outside);
        }
        self.flight.batches.fetch_add(1, Ordering::AcqRel);
        let done = Box::new(move |result: Result<(), Fault>| {
            if let Err(fault @ (Fault::Lost(_) | Fault::Corrupt(_))) = &result {
                outside.fatal(fault);
            }
            if let Err(fault) = &result {
                flight.failed().get_or_insert_with(|| fault.clone());
            }
            waiting.release(result.as_ref().map(|&()| ()), &*outside);
            let landed = flight.batches.fetch_sub(1, Ordering::AcqRel);
            if result.is_err() {
                handle.tell(Message::Nudge);
                for (by, command) in must {
                    handle.report(by, command);
                }
            } else if landed >= FLIGHT_MAX || flight.stopping.load(Ordering::Acquire) {
                handle.tell(Message::Nudge);
            }
        });
        self.parts.store.commit(Batch { at: self.at, facts, done }, soon && idle);
    }

    /// Keeps facts that nobody waits for: somebody who stands in line, for example, hears nothing of it. They go with the
    /// next batch that somebody does wait for, and alone after a moment; so they cost no sync of their own.
    fn hold_back(&mut self, facts: &mut Vec<Decided>, weight: usize) -> bool {
        if self.held.is_empty() {
            self.held_since = self.at;
        }
        let many = facts.len() + self.held.len() > HELD_MAX || self.held_weight + weight > HELD_LEN_MAX;
        if many || self.held_since + HOLD_MAX <= self.parts.clock.now() {
            return false;
        }
        self.held_weight += weight;
        self.held.append(facts);
        true
    }

    /// A batch found no room: what was decided since is as if it had never been.
    fn go_back(&mut self) -> Result<(), Fault> {
        // The store refuses what was decided after the batch that failed, so this does not take long.
        while self.flying() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.held.clear();
        self.held_weight = 0;
        self.parts.store.reload()?;
        let Some(fault) = self.flight.failed().take() else { return Ok(()) };
        // Whoever stands in line may do so by a fact that did not last, and would wait for nothing. Asking again is
        // harmless: who is in line keeps its place.
        self.later.refuse(&fault);
        self.holds.drain().into_iter().for_each(|answer| answer(Err(refusal(&fault))));
        // Only what was released is under way; a lease that did not last was never given.
        let executing = std::mem::take(&mut self.executing);
        for ((run, step), epoch) in executing {
            if self.is_under_way(run, &step, epoch) {
                self.executing.insert((run, step), epoch);
            }
        }
        let mut remote = std::mem::take(&mut self.remote);
        remote.retain(|run, step, epoch| self.is_under_way(run, step, epoch));
        self.remote = remote;
        if let Fault::Full(_) = fault {
            self.full = Some(Full { fault, probe_at: self.at + PROBE, kept: Vec::new() });
        }
        Ok(())
    }

    /// Whether an attempt is under way by what is durable.
    fn is_under_way(&mut self, run: RunId, step: &StepId, epoch: u64) -> bool {
        let step = self.run(run).and_then(|run| run.step(step));
        step.is_some_and(|step| step.epoch == epoch && step.is_executing())
    }

    /// Looks whether there is room again; if so, what was kept is decided now.
    fn probe(&mut self, turn: &mut Turning) -> Result<(), Fault> {
        let Some(full) = &mut self.full else { return Ok(()) };
        if self.at < full.probe_at {
            return Ok(());
        }
        full.probe_at = self.at + PROBE;
        if !self.parts.store.has_room() {
            return Ok(());
        }
        let kept = self.full.take().map(|full| full.kept).unwrap_or_default();
        for (by, command) in kept {
            if turn.is_full() {
                self.handle.report(by, command);
            } else {
                self.report(by, command, turn)?;
            }
        }
        Ok(())
    }

    /// Whether everything that was decided is durable, or has failed.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.flying() == 0
    }

    /// The store, when the loop is over.
    pub fn into_store(self) -> S {
        self.parts.store
    }

    /// The store, for whoever drives the loop by hand.
    pub fn store(&mut self) -> &mut S {
        &mut self.parts.store
    }
}

/// Looks out for a message for a moment without going to sleep: after a turn the next one is often near, and to be woken
/// takes longer than most turns do. Whoever else could use the processor gets it meanwhile.
fn await_eagerly<S>(inbox: &Inbox<S>, time: Duration) -> Option<Message<S>> {
    let since = Instant::now();
    while since.elapsed() < time {
        if let Ok(message) = inbox.receiver.try_recv() {
            return Some(message);
        }
        std::thread::yield_now();
    }
    None
}

/// What a caller hears of a store that could not do what it was asked.
fn refusal(fault: &Fault) -> Refusal {
    Refusal::new(fault.code(), fault.to_string())
}
