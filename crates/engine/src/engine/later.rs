//! Later: commands whose slice of a turn ended before all was decided that follows from them.
//!
//! They go on in the turns after it, tenants in turn and each tenant's in the order in which they came up, so a command
//! with very much to decide delays others by a slice and not by all of it. Nothing of this is kept: after a crash it
//! follows from the committed state.

use super::{Engine, LOADS_MAX, Parts, Turning, refusal};
use crate::handle::Answers;
use crate::port::{Fault, Store};
use crate::remote::Client;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use windlass_core::caps::TURN_LEN_MAX;
use windlass_core::cause::Causes;
use windlass_core::code::Code;
use windlass_core::id::Name;
use windlass_core::machine::Given;
use windlass_core::run::Actor;
use windlass_core::turn::command::{Command, Refusal, Reply};
use windlass_core::turn::{Driven, Driver};

/// A span of real time that work is done in; without end where nothing else is said.
#[derive(Default)]
pub(super) struct Slice(Option<Instant>);

impl Slice {
    pub(super) fn begin(length: Duration) -> Slice {
        Slice(Instant::now().checked_add(length))
    }

    /// Whether it is not over.
    pub(super) fn is_time(&self) -> bool {
        self.0.is_none_or(|end| Instant::now() < end)
    }
}

/// An answer that waits until all is decided that follows from its command.
pub(super) type Held = Box<dyn FnOnce(Result<(), &Fault>) + Send>;

/// Several commands under way, each decided for itself.
pub(super) struct Several {
    /// Whose they are, where that is known.
    pub(super) tenant: Option<Name>,
    /// Who asked.
    pub(super) by: Actor,
    /// Where a client elsewhere asks.
    pub(super) client: Option<Client>,
    /// What is not decided yet.
    pub(super) commands: std::vec::IntoIter<Command>,
    /// What became of the others.
    pub(super) decided: Gathered,
}

/// What goes on later.
pub(super) enum Task {
    One(Box<Rest>),
    Several(Several),
}

impl Task {
    fn tenant(&self) -> &Option<Name> {
        match self {
            Task::One(rest) => &rest.tenant,
            Task::Several(several) => &several.tenant,
        }
    }
}

/// The answers to several commands. Parts of them become durable one after the other; when the last one has, whoever asked
/// hears of all.
#[derive(Clone)]
pub(super) struct Gathered(Arc<Mutex<Gathering>>);

struct Gathering {
    answers: Vec<Option<Result<Reply, Refusal>>>,
    open: usize,
    tell: Option<Answers>,
}

impl Gathered {
    pub(super) fn new(count: usize, tell: Answers) -> Gathered {
        let answers = vec![None; count];
        Gathered(Arc::new(Mutex::new(Gathering { answers, open: count, tell: Some(tell) })))
    }

    /// Takes the answers to those from `first` on. With the last of them, all are told.
    pub(super) fn put(&self, first: usize, answers: Vec<Result<Reply, Refusal>>) {
        let mut gathering = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gathering.open = gathering.open.saturating_sub(answers.len());
        let places = gathering.answers.iter_mut().skip(first);
        places.zip(answers).for_each(|(place, answer)| *place = Some(answer));
        if gathering.open > 0 {
            return;
        }
        let Some(tell) = gathering.tell.take() else { return };
        let all = std::mem::take(&mut gathering.answers);
        drop(gathering);
        tell(all.into_iter().flatten().collect());
    }
}

/// A command under way.
pub(super) struct Rest {
    /// Whose it is, where that is known.
    pub(super) tenant: Option<Name>,
    /// Who asked.
    pub(super) by: Actor,
    /// Whom its facts are put down to.
    pub(super) causes: Causes,
    /// How far it came.
    pub(super) driver: Driver,
    /// Who waits until it is at its end.
    pub(super) held: Option<Held>,
}

impl Rest {
    /// Nothing of it is decided.
    pub(super) fn new(by: &Actor, command: Command) -> Rest {
        let (causes, driver) = (Causes::new(by), Driver::new(command));
        Rest { tenant: None, by: by.clone(), causes, driver, held: None }
    }
}

/// What goes on later. No tenant is kept without a command.
#[derive(Default)]
pub(super) struct Later {
    tenants: VecDeque<(Option<Name>, VecDeque<Task>)>,
    /// The tenant whose command came last.
    newest: Option<Name>,
}

impl Later {
    pub(super) fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// Puts a command in line behind the others of its tenant.
    pub(super) fn push(&mut self, task: Task) {
        self.newest.clone_from(task.tenant());
        match self.tenants.iter_mut().find(|(known, _)| known == task.tenant()) {
            Some((_, line)) => line.push_back(task),
            None => self.tenants.push_back((task.tenant().clone(), VecDeque::from([task]))),
        }
    }

    /// The command that came last is answered when it is at its end.
    pub(super) fn hold(&mut self, answer: Held) {
        let newest = self.tenants.iter_mut().find(|(tenant, _)| *tenant == self.newest);
        if let Some(Task::One(rest)) = newest.and_then(|(_, line)| line.back_mut()) {
            rest.held = Some(answer);
        }
    }

    /// What was decided so far did not last: whoever waits for the end of a command asks again.
    pub(super) fn refuse(&mut self, fault: &Fault) {
        for task in self.tenants.iter_mut().flat_map(|(_, line)| line) {
            match task {
                Task::One(rest) => rest.held.take().into_iter().for_each(|answer| answer(Err(fault))),
                Task::Several(several) => several.refuse(&refusal(fault)),
            }
        }
    }

    /// The next command of the tenant whose turn it is.
    pub(super) fn next(&mut self) -> Option<Task> {
        let (tenant, mut line) = self.tenants.pop_front()?;
        let next = line.pop_front();
        if !line.is_empty() {
            self.tenants.push_back((tenant, line));
        }
        next
    }
}

impl Several {
    /// All of them, in line.
    pub(super) fn new(
        by: &Actor,
        client: Option<Client>,
        commands: Vec<Command>,
        answer: Answers,
    ) -> Several {
        let tenant = match commands.first() {
            Some(Command::Create(create)) => Some(create.tenant.clone()),
            // tidy: of others the client is known, or they are the system's own.
            _ => client.as_ref().map(|client| client.tenant.clone()),
        };
        let decided = Gathered::new(commands.len(), answer);
        Several { tenant, by: by.clone(), client, commands: commands.into_iter(), decided }
    }

    /// What is left of them is not decided any more.
    fn refuse(&mut self, refusal: &Refusal) {
        let left = std::mem::take(&mut self.commands);
        let (count, first) = (left.len(), self.next_place(left.len()));
        self.decided.put(first, vec![Err(refusal.clone()); count]);
    }

    /// The place of the first of so many that are left.
    pub(super) fn next_place(&self, left: usize) -> usize {
        let gathering = self.decided.0.lock().unwrap_or_else(PoisonError::into_inner);
        gathering.answers.len().saturating_sub(left)
    }
}

impl<S: Store + 'static> Engine<S> {
    /// Decides as far as there is time. What it does not come to is decided later.
    pub(super) fn drive(&mut self, rest: Rest, turn: &mut Turning) -> Result<Result<Reply, Refusal>, Fault> {
        let Rest { mut tenant, by, mut causes, mut driver, held } = rest;
        for _ in 0..LOADS_MAX {
            let Parts { store, ids, evaluate, policy, .. } = &mut self.parts;
            let mut fresh = || ids.next();
            let mut given = Given {
                at: self.at,
                by: &by,
                policy: policy.version(),
                lease_ttl: self.options.lease_ttl,
                evaluate: &**evaluate,
                ids: &mut fresh,
            };
            match driver.go_while(store.view(), &mut given, &|weight| {
                turn.weight + weight < TURN_LEN_MAX && turn.slice.is_time()
            }) {
                Ok(Driven::Done(done)) => {
                    turn.waiting.answers.extend(held);
                    return Ok(Ok(self.done(&mut causes, done, turn)));
                }
                Ok(Driven::Needs(next, streams)) => {
                    driver = *next;
                    self.parts.store.load(&streams)?;
                }
                Ok(Driven::Paused(done, rest)) => {
                    tenant = tenant.or_else(|| done.facts.first().map(|fact| fact.tenant.clone()));
                    let reply = self.done(&mut causes, done, turn);
                    self.later.push(Task::One(Box::new(Rest { tenant, by, causes, driver: *rest, held })));
                    turn.paused = true;
                    return Ok(Ok(reply));
                }
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
        Ok(Err(Refusal::new(Code::Internal, "a command asked for ever more streams")))
    }

    /// Goes on with what earlier turns had no time for, one tenant's command after another's.
    pub(super) fn go_on(&mut self, turn: &mut Turning) -> Result<(), Fault> {
        turn.slice = Slice::begin(self.options.slice);
        while let Some(task) = self.later.next() {
            match task {
                Task::One(rest) => drop(self.drive(*rest, turn)?),
                Task::Several(several) => self.go_on_several(several, turn)?,
            }
            if !turn.slice.is_time() || turn.is_full() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::id::RunId;

    #[test]
    fn a_tenant_waits_for_one_slice_of_each_other_however_much_they_have_in_line() {
        let mut later = Later::default();
        let mut push = |tenant: &str, n: u128| {
            let by = Actor { id: Some(Name::clean(&format!("{tenant}{n}"))), ..Actor::SYSTEM };
            let rest = Rest::new(&by, Command::Advance(RunId(n)));
            later.push(Task::One(Box::new(Rest { tenant: Some(Name::clean(tenant)), ..rest })));
        };
        (0..3).for_each(|n| push("big", n));
        push("small", 9);
        let order: Vec<String> = std::iter::from_fn(|| later.next())
            .map(|task| match task {
                Task::One(rest) => rest.by.id.map(|id| id.to_string()).unwrap_or_default(),
                Task::Several(_) => String::new(),
            })
            .collect();
        assert_eq!(order, ["big0", "small9", "big1", "big2"]);
        assert!(later.is_empty());
    }
}
