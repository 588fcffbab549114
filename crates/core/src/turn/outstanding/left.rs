//! What a bounded turn left over: follow-ups that the committed state implies and does not show as done.
//!
//! One stream says what another has not heard: a lock is granted to a step that still waits for it, a run has ended
//! and its caller does not know. Each row compares two streams and gives the command that makes them agree. A command
//! that comes twice changes nothing, so it does no harm to find one that is on its way.

use crate::follow::{Follow, Told};
use crate::gate;
use crate::id::{Holder, Name, RunId, Scoped};
use crate::lock::{self, Lock};
use crate::run::{BlockedOn, Run, Section, Status};
use crate::runbook::Kind;
use crate::schedule::{self, Overlap, Schedule};
use crate::semaphore::Semaphore;
use crate::step::{self, Failure, Gate, Step, Wait, Waiting};
use crate::stream::StreamId;
use crate::turn::View;
use crate::turn::calls;
use crate::turn::command::{Command, Outcome, Reply};
use crate::turn::route;
use crate::turn::state::{Body, State};
use crate::worker::Worker;
use crate::{item::Item, queue, workspace};
use alloc::string::ToString;
use alloc::vec::Vec;
use serde_json::Value;

impl State {
    /// The commands that follow from the state and were not decided yet. Empty where nothing was left over, except
    /// for what is refused for now (a cap) or has nothing to say.
    #[must_use]
    pub fn left_over(&self) -> Vec<Command> {
        let mut out = Outcome::reply(Reply::Done);
        for (_, stream) in self.streams() {
            match &stream.body {
                Body::Run(run) if run.is_terminal() => self.ended(run, &mut out),
                Body::Run(run) if run.started_at.is_none() => self.unbegun(run, &mut out),
                Body::Run(run) => {
                    if wants_to_advance(run) {
                        out.follow.push(Command::Advance(run.id()));
                    }
                    self.lock_lost(run, &mut out);
                    run.live().for_each(|step| self.step_left(run, step, &mut out));
                }
                Body::Lock(lock) => self.lock_left(lock, &mut out),
                Body::Semaphore(semaphore) => self.semaphore_left(semaphore, &mut out),
                Body::Worker(worker) => self.worker_left(worker, &mut out),
                Body::Schedule(schedule) => self.schedule_left(schedule, &mut out),
                Body::Queue(_)
                | Body::Item(_)
                | Body::Trigger(_)
                | Body::Effect(_)
                | Body::Runbook(_)
                | Body::Deployment(_)
                | Body::Workspace(_)
                | Body::Session(_)
                | Body::Tenant(_)
                | Body::Tokens(_)
                | Body::Signal(_)
                | Body::Retired(_)
                | Body::System(_) => {}
            }
        }
        out.follow
    }

    /// A run that has ended tells its workspace. Its caller, its dependents, its worker and its schedule are found
    /// from their side.
    fn ended(&self, run: &Run, out: &mut Outcome) {
        let Some(id) = run.born.workspace().filter(|_| run.born.parent.is_none()) else { return };
        let Some(Body::Workspace(place)) = self.body(&StreamId::Workspace(id)) else { return };
        let (workspace::State::Creating(spec) | workspace::State::Ready(spec)) = &place.state else { return };
        if !spec.keep.decide(run.status()) {
            let (tenant, input) = (run.born.home.tenant.clone(), workspace::Input::End(run.status()));
            out.follow.push(Command::Workspace { workspace: id, tenant, input });
        }
    }

    fn unbegun(&self, run: &Run, out: &mut Outcome) {
        match run.blocked.as_deref() {
            None => out.follow.push(Command::Begin(run.id())),
            Some(BlockedOn::Runs(unmet)) => {
                for other in unmet {
                    if let Some(status) = self.ending_of(*other) {
                        let told =
                            Told::RunEnded { run: *other, step: None, status, outputs: None, error: None };
                        out.follow.push(Command::Tell { run: run.id(), told });
                    }
                }
            }
            Some(BlockedOn::Pipelines(names)) => {
                for name in names {
                    let newest = self.newest_run(&run.born.home.tenant, &run.born.home.namespace, name);
                    if let Some((newest, status)) = newest.and_then(|id| Some((id, self.ending_of(id)?))) {
                        let told =
                            Told::RunEnded { run: newest, step: None, status, outputs: None, error: None };
                        out.follow.push(Command::Tell { run: run.id(), told });
                    }
                }
            }
            Some(BlockedOn::Lock(name)) => {
                let known = self.lock(&run.scoped(name));
                match known.and_then(Lock::hold).filter(|hold| hold.holder == run.holder()) {
                    Some(hold) => {
                        let told = Told::LockGranted { step: None, lock: name.clone(), epoch: hold.epoch };
                        out.follow.push(Command::Tell { run: run.id(), told });
                    }
                    // It stands in line again when it is resumed.
                    None if run.suspended => {
                        let in_line = known.filter(|lock| lock.position(&run.holder()).is_some());
                        out.follow.extend(in_line.map(|lock| Command::LetGoLock {
                            lock: lock.name.clone(),
                            holder: run.holder(),
                        }));
                    }
                    None if known.is_none_or(|lock| lock.position(&run.holder()).is_none()) => {
                        out.follow.push(Command::Begin(run.id()));
                    }
                    None => {}
                }
            }
            Some(BlockedOn::Cap(_)) => {}
        }
    }

    /// A run that began with a lock has it no more, and was not stopped for it.
    fn lock_lost(&self, run: &Run, out: &mut Outcome) {
        let Some(name) = run.born.lock.as_ref().filter(|_| run.stopping.is_none()) else { return };
        let own = |lock: &Lock| lock.holder() == Some(&run.holder());
        let above = || calls::above_in(|id| self.run(id), run);
        let has = |lock: &Lock| own(lock) || calls::lock(lock, &above()).is_some();
        if !self.lock(&run.scoped(name)).is_some_and(has) {
            let told = Told::HoldLost { step: None, name: name.clone(), broken: false };
            out.follow.push(Command::Tell { run: run.id(), told });
        }
    }

    /// How a run ended. One that is not there any more has ended well: only those are forgotten while others wait.
    fn ending_of(&self, run: RunId) -> Option<Status> {
        match self.run(run) {
            Some(run) => run.ending.as_ref().map(|ending| ending.status),
            None => Some(Status::Completed),
        }
    }

    fn step_left(&self, run: &Run, step: &Step, out: &mut Outcome) {
        let holder = step.holder(run.id());
        let waits_at = step.waiting.as_ref().and_then(|waiting| match waiting.reason {
            Wait::Lock | Wait::Semaphore => step.next_gate(),
            Wait::Approval
            | Wait::Policy
            | Wait::Guard
            | Wait::GuardAfter
            | Wait::Event
            | Wait::Timer
            | Wait::Budget
            | Wait::Escalation
            | Wait::Backoff
            | Wait::Executor
            | Wait::Outcome => None,
        });
        if let Some(gate) = waits_at {
            self.gate_left(run, step, gate, out);
        }
        // What a run above holds, this one has.
        let above = || calls::above_in(|id| self.run(id), run);
        for gate in step.held().iter().filter(|_| step.status != step::Status::OutcomeUnknown) {
            let (held, name) = match gate {
                Gate::Lock { name, .. } => {
                    let own = |lock: &Lock| lock.holder() == Some(&holder);
                    let has = |lock: &Lock| own(lock) || calls::lock(lock, &above()).is_some();
                    (self.lock(&run.scoped(name)).is_some_and(has), name)
                }
                Gate::Slots { name, slots } => {
                    let own = |known: &Semaphore| known.holders.contains_key(&holder);
                    let has =
                        |known: &Semaphore| own(known) || calls::slots(known, *slots, &above()).is_some();
                    (self.semaphore(&run.scoped(name)).is_some_and(has), name)
                }
                Gate::Guard => continue,
            };
            if !held {
                let told = Told::HoldLost { step: Some(step.id.clone()), name: name.clone(), broken: false };
                out.follow.push(Command::Tell { run: run.id(), told });
            }
        }
        if self.has_signal(run, step) {
            out.follow.push(Command::TakeSignal { run: run.id(), step: step.id.clone() });
        }
        if let (Some(child), step::Status::Running) = (step.child(), step.status) {
            self.child_left(run, step, child, out);
        }
    }

    /// Whether an event that the step waits for is kept.
    fn has_signal(&self, run: &Run, step: &Step) -> bool {
        let Some(stream) = crate::signal::awaited(run, step) else { return false };
        match (self.body(&StreamId::Signal(stream)), step.waiting.as_deref()) {
            (Some(Body::Signal(kept)), Some(Waiting { on: Some(on), key, .. })) => {
                kept.first(on, key.as_ref(), run.updated_at).is_some()
            }
            // tidy: nothing is kept, or the step does not wait for an event.
            _ => false,
        }
    }

    /// A step waits for a lock or slots: it has them and was not told, or it does not even stand in line.
    fn gate_left(&self, run: &Run, step: &Step, gate: &Gate, out: &mut Outcome) {
        let holder = step.holder(run.id());
        let (told, in_line) = match gate {
            Gate::Lock { name, .. } => {
                let known = self.lock(&run.scoped(name));
                let has = known.and_then(Lock::hold).filter(|hold| hold.holder == holder);
                let granted = |hold: &lock::Hold| Told::LockGranted {
                    step: Some(step.id.clone()),
                    lock: name.clone(),
                    epoch: hold.epoch,
                };
                (has.map(granted), known.is_some_and(|lock| lock.position(&holder).is_some()))
            }
            Gate::Slots { name, .. } => {
                let known = self.semaphore(&run.scoped(name));
                let has = known.and_then(|semaphore| semaphore.holders.get(&holder));
                let told = has.map(|hold| Told::SlotsGranted {
                    step: step.id.clone(),
                    semaphore: name.clone(),
                    epoch: hold.epoch,
                });
                (told, known.is_some_and(|semaphore| semaphore.position(&holder).is_some()))
            }
            Gate::Guard => return,
        };
        match told {
            Some(told) => out.follow.push(Command::Tell { run: run.id(), told }),
            // It stands in line again when its run is resumed.
            None if run.suspended => {
                let leaves = gate::leave_line(run, step).filter(|_| in_line);
                out.follows(leaves);
            }
            None if !in_line => out.follows(gate::ask(run, step, gate)),
            None => {}
        }
    }

    /// A call: its run was not made, has ended, or does not stop although its caller does.
    fn child_left(&self, run: &Run, step: &Step, id: RunId, out: &mut Outcome) {
        match self.run(id) {
            None => {
                let def = self
                    .runbook(&run.born.home.runbook)
                    .and_then(|b| b.pipelines.get(&run.born.home.pipeline));
                let node = def.and_then(|def| def.node(step.node));
                if let Some(Kind::Call { pipeline, .. }) = node.map(|node| &node.kind) {
                    let call = Follow::Call {
                        run: id,
                        parent: run.id(),
                        step: step.id.clone(),
                        pipeline: pipeline.clone(),
                        vars: step.input().unwrap_or(Value::Null),
                    };
                    out.follows([call]);
                }
            }
            Some(child) => match &child.ending {
                Some(ending) => {
                    let told = Told::RunEnded {
                        run: id,
                        step: Some(step.id.clone()),
                        status: ending.status,
                        outputs: ending.outputs.clone(),
                        error: error_of(child),
                    };
                    out.follow.push(Command::Tell { run: run.id(), told });
                }
                None if run.stops(step.section) && child.stopping.is_none() => {
                    out.follows([gate::stop_called(run, id)]);
                }
                None if run.suspended && !child.suspended && child.stopping.is_none() => {
                    out.follow.push(crate::turn::suspend_called(run.id(), id));
                }
                None => {}
            },
        }
    }

    fn lock_left(&self, lock: &Lock, out: &mut Outcome) {
        let name = Name::clean(lock.name.name());
        let holders = lock.holder().into_iter().map(|holder| (holder, true));
        let waiters = lock.waiters.iter().map(|waiter| (&waiter.holder, false));
        let lost = holders.chain(waiters).filter(|(holder, has)| !self.wants(holder, &name, false, *has));
        out.follow.extend(
            lost.map(|(holder, _)| Command::LetGoLock { lock: lock.name.clone(), holder: holder.clone() }),
        );
    }

    fn semaphore_left(&self, semaphore: &Semaphore, out: &mut Outcome) {
        let name = Name::clean(semaphore.name.name());
        let holders = semaphore.holders.keys().map(|holder| (holder, true));
        let waiters = semaphore.waiters.iter().map(|waiter| (&waiter.holder, false));
        let lost = holders.chain(waiters).filter(|(holder, has)| !self.wants(holder, &name, true, *has));
        let let_go = |(holder, _): (&Holder, bool)| Command::LetGoSlots {
            semaphore: semaphore.name.clone(),
            holder: holder.clone(),
        };
        out.follow.extend(lost.map(let_go));
    }

    /// Whether somebody who has a lock or slots, or stands in line for them, still wants them.
    fn wants(&self, holder: &Holder, name: &Name, slots: bool, has: bool) -> bool {
        let is_it = |gate: &Gate| match gate {
            Gate::Lock { name: lock, .. } => !slots && lock == name,
            Gate::Slots { name: semaphore, .. } => slots && semaphore == name,
            Gate::Guard => false,
        };
        match holder {
            Holder::Run(id) => self.run(*id).is_some_and(|run| {
                !run.is_terminal()
                    && run.born.lock.as_ref() == Some(name)
                    && (has || run.started_at.is_none())
            }),
            Holder::Step(id, step) => {
                let run = self.run(*id).filter(|run| !run.is_terminal());
                let step = run.and_then(|run| run.step(step)).filter(|step| !step.status.is_terminal());
                step.is_some_and(|step| {
                    let waits = step
                        .waiting
                        .as_ref()
                        .is_some_and(|w| matches!(w.reason, Wait::Lock | Wait::Semaphore));
                    let next = step.next_gate().filter(|_| waits).is_some_and(is_it);
                    next || has && step.held().iter().any(is_it)
                })
            }
            Holder::Worker(_) | Holder::Outside(_) => true,
        }
    }

    fn worker_left(&self, worker: &Worker, out: &mut Outcome) {
        for (&item, &id) in &worker.active {
            let Some(run) = self.run(id) else { continue };
            if run.is_terminal() {
                let (status, error) = (run.status(), error_of(run).map(|failure| failure.message));
                let worker = worker.id.clone();
                out.follow.push(Command::SettleItem { item, worker, run: id, status, error });
            } else if let Some(Body::Item(known)) = self.body(&StreamId::Item(item))
                && matches!(&**known, Item::Dropped { .. })
                && run.stopping.is_none()
            {
                let reason = alloc::format!("item {item} was dropped");
                out.follows([Follow::Cancel { run: id, reason }]);
            }
        }
        let Some(queue) = worker.queue().filter(|_| worker.capacity_left() > 0) else { return };
        let open = matches!(self.body(&StreamId::Queue(queue.clone())),
            Some(Body::Queue(known)) if matches!(known.state, queue::State::Active(_) | queue::State::Withdrawn(_)));
        if open && !self.indexes().best(&queue, 1).is_empty() {
            out.follow.push(Command::Dispatch { worker: worker.id.clone() });
        }
    }

    fn schedule_left(&self, schedule: &Schedule, out: &mut Outcome) {
        for &id in &schedule.live {
            if self.run(id).is_none_or(Run::is_terminal) {
                let input = schedule::Input::Settle { run: id };
                out.follow.push(Command::Schedule { schedule: schedule.id.clone(), input });
            }
        }
        let schedule::State::Active(settings) = &schedule.state else { return };
        if settings.overlap != Overlap::Cancel {
            return;
        }
        // Ids are made in the order of time, so the last one is the slot that cancelled the others.
        for &id in schedule.live.iter().rev().skip(1) {
            if self.run(id).is_some_and(|run| !run.is_terminal() && run.stopping.is_none()) {
                let reason = schedule::NEXT_IS_DUE.to_string();
                out.follows([Follow::Cancel { run: id, reason }]);
            }
        }
    }

    fn body(&self, id: &StreamId) -> Option<&Body> {
        self.stream(id).map(|stream| &stream.body)
    }

    fn lock(&self, id: &Scoped) -> Option<&Lock> {
        match self.body(&StreamId::Lock(id.clone())) {
            Some(Body::Lock(lock)) => Some(lock),
            Some(_) | None => None,
        }
    }

    fn semaphore(&self, id: &Scoped) -> Option<&Semaphore> {
        match self.body(&StreamId::Semaphore(id.clone())) {
            Some(Body::Semaphore(semaphore)) => Some(semaphore),
            Some(_) | None => None,
        }
    }
}

/// Why a run did not complete, as those who wait for it hear it.
fn error_of(run: &Run) -> Option<Failure> {
    match run.status() {
        Status::Failed => run.failure.as_ref().map(|failure| failure.1.clone()),
        Status::Cancelled => Some(route::cancelled()),
        Status::Completed
        | Status::Pending
        | Status::Blocked
        | Status::Running
        | Status::AwaitingApproval
        | Status::WaitingExternal
        | Status::FailedRetryable => None,
    }
}

/// Whether the flow may have a move to make.
fn wants_to_advance(run: &Run) -> bool {
    if run.root.open == 0 {
        return !run.suspended;
    }
    if run.stopping.is_some() && matches!(run.section, Section::Main | Section::OnFailure) {
        let idle = |step: &Step| match step.group {
            Some(group) => group.open == 0,
            None => !matches!(step.status, step::Status::Running | step::Status::OutcomeUnknown),
        };
        return run.live().any(idle);
    }
    !run.suspended && !run.flow().is_empty()
}
