//! The loop of a turn: decides a command, applies what it comes to, and decides what follows, until nothing does.
//!
//! A turn can stop in three places and lose nothing. Where a decision needs streams that nobody loaded, the driver is
//! handed back with their names: whoever drives loads them into the overlay and goes on. Where its time is over, the
//! driver is handed back with what it came to, and goes on in a later turn. Where the bound is reached, what is left
//! follows from the committed state and is found there again by [`State::left_over`](crate::turn::state::State::left_over).

use super::{View, decide};
use crate::caps::DECISION_LEN_MAX;
use crate::code::Code;
use crate::effect::Effect;
use crate::id::Scoped;
use crate::machine::Given;
use crate::stream::StreamId;
use crate::template::Metered;
use crate::time::Millis;
use crate::turn::command::{Command, Fact, Outcome, Refusal, Reply};
use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

/// The most decisions of one turn that follow from one command.
pub const FOLLOW_MAX: usize = 10_000;

/// Where a turn keeps what it has decided so far.
pub trait Overlay: View {
    /// A turn begins: hints that depend on the time are brought up to it.
    fn open(&mut self, at: Millis);
    /// Workers whose queues have items that came due, once: the turn lets them look.
    fn woken(&mut self) -> Vec<Scoped>;
    /// Started workers whose `wake_on` means one of the facts.
    fn woken_by(&self, facts: &[Fact]) -> Vec<Scoped>;
    /// The clock was looked at for a stream, and nothing came of it. It is not offered again for that.
    fn looked(&mut self, stream: &StreamId, at: Millis);
    /// Applies facts, so that the next decision sees them.
    fn apply(&mut self, facts: &[Fact], at: Millis);
}

/// Everything that came of a command.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// What becomes true, in order: one commit.
    pub facts: Vec<Fact>,
    /// What is released after the commit.
    pub effects: Vec<Effect>,
    /// The answer.
    pub reply: Reply,
    /// What did not fit. It need not be kept: the committed state implies it.
    pub left: Vec<Command>,
    /// About how many bytes the facts come to.
    pub weight: usize,
}

impl Turn {
    /// Nothing but an answer.
    fn after(reply: Reply) -> Turn {
        Turn { facts: Vec::new(), effects: Vec::new(), reply, left: Vec::new(), weight: 0 }
    }
}

/// A turn under way.
#[derive(Clone, Debug)]
pub struct Driver {
    command: Command,
    /// What came of it so far; nothing until the command itself is decided.
    turn: Option<Turn>,
    waiting: VecDeque<Command>,
    room: usize,
    /// Ids that the decision under way has drawn. It may need a stream that one of them names, and gets the same ones
    /// when it is decided again.
    drawn: Vec<u128>,
    /// Workers that facts of the turn woke: each looks once, when all else is decided. What comes of that wakes nobody,
    /// or a worker that listens to its own runs would never come to an end.
    woken: Option<BTreeSet<Scoped>>,
}

/// How far a driver came.
#[derive(Clone, Debug)]
pub enum Driven {
    /// To the end.
    Done(Turn),
    /// To a decision that needs these streams. With them in the overlay, it goes on.
    Needs(Box<Driver>, Vec<StreamId>),
    /// To where its slice ended. What it came to is a turn; the driver goes on in another one.
    Paused(Turn, Box<Driver>),
}

impl Driver {
    /// The turn of a command.
    #[must_use]
    pub fn new(command: Command) -> Driver {
        Driver {
            command,
            turn: None,
            waiting: VecDeque::new(),
            room: FOLLOW_MAX,
            drawn: Vec::new(),
            woken: Some(BTreeSet::new()),
        }
    }

    /// Decides at most so many commands that follow.
    #[must_use]
    pub fn at_most(mut self, follow_max: usize) -> Driver {
        self.room = follow_max;
        self
    }

    /// Decides as far as the overlay's streams reach.
    ///
    /// # Errors
    /// The command's own refusal. What follows cannot refuse the command any more: a follow-up that comes too late, as
    /// when it tells an ended run that its lock is free, is dropped.
    pub fn go(self, overlay: &mut dyn Overlay, given: &mut Given<'_>) -> Result<Driven, Refusal> {
        self.slice(overlay, given, None)
    }

    /// Decides for as long as there is time, at least one command that follows. `is_time` is told about how many bytes there
    /// are by now. Then it pauses: whoever drives commits
    /// what there is, serves others, and lets it go on. Were the process to end meanwhile, what is left follows from the
    /// committed state, as where the bound is reached.
    ///
    /// # Errors
    /// The command's own refusal.
    pub fn go_while(
        self,
        overlay: &mut dyn Overlay,
        given: &mut Given<'_>,
        is_time: &dyn Fn(usize) -> bool,
    ) -> Result<Driven, Refusal> {
        self.slice(overlay, given, Some(is_time))
    }

    fn slice(
        mut self,
        overlay: &mut dyn Overlay,
        given: &mut Given<'_>,
        is_time: Option<&dyn Fn(usize) -> bool>,
    ) -> Result<Driven, Refusal> {
        let (mut turn, mut decided) = match self.turn.take() {
            Some(turn) => (turn, false),
            None => match self.begin(overlay, given)? {
                Ok(turn) => (turn, true),
                Err(streams) => return Ok(Driven::Needs(Box::new(self), streams)),
            },
        };
        while let Some(next) = self.next() {
            if let Some(is_time) = is_time
                && (self.room == 0 || decided && !is_time(turn.weight))
            {
                self.waiting.push_front(next);
                self.room = FOLLOW_MAX;
                self.turn = Some(Turn::after(Reply::Done));
                return Ok(Driven::Paused(turn, Box::new(self)));
            }
            if self.room == 0 {
                turn.left.push(next);
                continue;
            }
            decided = true;
            let outcome = again(&mut self.drawn, overlay, &next, given);
            match outcome.and_then(|outcome| Ok((admitted(&outcome.facts)?, outcome))) {
                Ok((weight, outcome)) => {
                    self.room -= 1;
                    overlay.apply(&outcome.facts, given.at);
                    if let (Command::Tick(stream), true) = (&next, outcome.facts.is_empty()) {
                        overlay.looked(stream, given.at);
                    }
                    self.listen(overlay, &outcome.facts);
                    turn.weight += weight;
                    turn.facts.extend(outcome.facts);
                    turn.effects.extend(outcome.effects);
                    self.waiting.extend(outcome.follow);
                }
                Err(Refusal::Need(streams)) => {
                    self.waiting.push_front(next);
                    self.turn = Some(turn);
                    return Ok(Driven::Needs(Box::new(self), streams));
                }
                Err(Refusal::Error { .. }) => self.room -= 1,
            }
        }
        Ok(Driven::Done(turn))
    }

    /// The next command that follows; the workers that were woken come last.
    fn next(&mut self) -> Option<Command> {
        if self.waiting.is_empty() {
            let woken = self.woken.take().unwrap_or_default();
            // A list that came wakes its worker to look at the queue and not to list it again, or a worker that listens to
            // that would never stop.
            let listed = match &self.command {
                Command::Polled { worker, .. } => Some(worker),
                // tidy: nothing else is a list.
                _ => None,
            };
            self.waiting.extend(woken.into_iter().map(|worker| {
                if listed == Some(&worker) { Command::Dispatch { worker } } else { Command::Wake { worker } }
            }));
        }
        self.waiting.pop_front()
    }

    fn listen(&mut self, overlay: &dyn Overlay, facts: &[Fact]) {
        if let Some(woken) = &mut self.woken {
            woken.extend(overlay.woken_by(facts));
        }
    }

    /// Decides the command itself; the inner error names the streams it needs.
    fn begin(
        &mut self,
        overlay: &mut dyn Overlay,
        given: &mut Given<'_>,
    ) -> Result<Result<Turn, Vec<StreamId>>, Refusal> {
        overlay.open(given.at);
        let Outcome { facts, effects, follow, reply } =
            match again(&mut self.drawn, overlay, &self.command, given) {
                Ok(outcome) => outcome,
                Err(Refusal::Need(streams)) => return Ok(Err(streams)),
                Err(refusal @ Refusal::Error { .. }) => return Err(refusal),
            };
        let weight = admitted(&facts)?;
        overlay.apply(&facts, given.at);
        if let (Command::Tick(stream), true) = (&self.command, facts.is_empty()) {
            overlay.looked(stream, given.at);
        }
        self.listen(overlay, &facts);
        self.waiting = follow.into();
        let woken = overlay.woken().into_iter();
        let look = |worker| Command::Worker { worker, input: crate::worker::Input::Wake { cause: None } };
        self.waiting.extend(woken.map(look));
        Ok(Ok(Turn { facts, effects, weight, ..Turn::after(reply) }))
    }

    /// Stops here: what was decided is the turn, the rest is left.
    fn stop(mut self, streams: Vec<StreamId>) -> Result<Turn, Refusal> {
        let Some(mut turn) = self.turn.take() else { return Err(Refusal::Need(streams)) };
        turn.left.extend(self.waiting);
        Ok(turn)
    }
}

fn weight(facts: &[Fact]) -> usize {
    facts.iter().map(|fact| fact.event.weight()).sum()
}

/// About how many bytes the facts of one decision come to.
///
/// # Errors
/// More than one may.
pub(crate) fn admitted(facts: &[Fact]) -> Result<usize, Refusal> {
    let weight = weight(facts);
    if weight <= DECISION_LEN_MAX {
        return Ok(weight);
    }
    let text =
        alloc::format!("this comes to {weight} bytes, and {DECISION_LEN_MAX} is the most for one command");
    Err(Refusal::new(Code::CapExceeded, text))
}

/// Decides a command, with the ids that it drew before it turned out that it needs more streams.
fn again(
    drawn: &mut Vec<u128>,
    view: &dyn View,
    command: &Command,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let Given { at, by, policy, lease_ttl, evaluate, ids } = given;
    let mut used = 0;
    let mut next = || {
        if used == drawn.len() {
            drawn.push(ids());
        }
        used += 1;
        drawn[used - 1]
    };
    let metered = Metered::new(*evaluate);
    let mut given =
        Given { at: *at, by, policy: *policy, lease_ttl: *lease_ttl, evaluate: &metered, ids: &mut next };
    let decided = decide(view, command, &mut given);
    if !matches!(decided, Err(Refusal::Need(_))) {
        drawn.clear();
    }
    decided
}

/// Decides a command and all that follows from it, on an overlay that has every stream.
///
/// # Errors
/// The command's own refusal.
pub fn drive(overlay: &mut dyn Overlay, command: &Command, given: &mut Given<'_>) -> Result<Turn, Refusal> {
    match Driver::new(command.clone()).go(overlay, given)? {
        Driven::Done(turn) | Driven::Paused(turn, _) => Ok(turn),
        Driven::Needs(driver, streams) => driver.stop(streams),
    }
}
