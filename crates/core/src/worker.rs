//! A worker: consumes a queue by making one run per item, up to a number of runs at once.
//!
//! ```text
//!  start, declare ──▶ started ── stop ──▶ stopped ── start ──▶ started
//!             dispatch: a place is taken    settle: a place is free, in both states
//! ```
//!
//! What counts are runs that are not terminal, however long they wait. Nothing is dispatched beyond the
//! concurrency; lowering it, or stopping, lets what runs go on. A deployment declares it: one that a human stopped gets
//! the new settings and stays stopped until a human starts it. Whenever there is room and there may be
//! something to take, the worker asks to be let look at its queue ([`Follow::WakeWorker`]); it never looks itself.

use crate::code::Code;
use crate::digest::Digest;
use crate::event::{
    Event, PolicyDecided, WorkerConfigured, WorkerDelayed, WorkerItemDispatched, WorkerItemSettled,
    WorkerPolled, WorkerResized, WorkerStarted, WorkerStopped, WorkerWake,
};
use crate::follow::Follow;
use crate::id::{ItemId, Name, RunId, Scoped};
use crate::machine::{Decision, Row, table};
use crate::pattern::Pattern;
use crate::policy::{self, Purpose};
use crate::private::Private;
use crate::small::Map;
use crate::time::{Millis, Span};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The most runs a worker may have at once.
pub const CONCURRENCY_MAX: u32 = 1_000;
/// The most patterns a worker may wake on.
pub const WAKE_ON_MAX: usize = 32;

/// A fact that says what a worker's settings are. Two facts do, in the same words.
macro_rules! told {
    ($fact:ident, $worker:expr, $settings:expr) => {
        $fact {
            worker_name: $worker.name(),
            project_root: $settings.project_root.clone(),
            runbook_hash: $settings.runbook_hash,
            queue_name: $settings.queue.clone(),
            concurrency: $settings.concurrency,
            namespace: Name::clean($worker.id.namespace()),
            pipeline: $settings.pipeline.clone(),
            wake_on: $settings.wake_on.iter().map(Pattern::to_string).collect(),
            poll_ms: $settings.poll.map(|poll| poll.0),
        }
    };
}

/// The settings that such a fact says.
macro_rules! heard {
    ($fact:expr) => {
        Settings {
            queue: $fact.queue_name.clone(),
            pipeline: $fact.pipeline.clone(),
            runbook_hash: $fact.runbook_hash,
            project_root: $fact.project_root.clone(),
            concurrency: $fact.concurrency,
            // What was recorded was parsed before; a pattern that this version does not know any more wakes nobody.
            wake_on: $fact.wake_on.iter().filter_map(|text| Pattern::parse(text).ok()).collect(),
            poll: $fact.poll_ms.map(Span),
        }
    };
}

/// What can happen to a worker.
pub const TABLE: &[Row] = table! {
    "absent": "start" => "started";
    "absent": "declare" => "started";
    "started": "start" => "started";
    "started": "declare" => "started";
    "started": "wake" => "started";
    "started": "dispatch" => "started";
    "started": "settle" => "started";
    "started": "resize" => "started";
    "started": "delay" => "started";
    "started": "polled" => "started";
    "started": "decided" => "started";
    "started": "stop" => "stopped";
    "stopped": "start" => "started";
    "stopped": "declare" => "stopped";
    "stopped": "wake" => "stopped";
    "stopped": "settle" => "stopped";
    "stopped": "polled" => "stopped";
    "stopped": "stop" => "stopped";
};

/// What a runbook says about a worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The queue it consumes, in its own namespace.
    pub queue: Name,
    /// The pipeline it runs for each item.
    pub pipeline: Name,
    /// The runbook that the runs are pinned to.
    pub runbook_hash: Digest,
    /// Where the runbook lies.
    pub project_root: String,
    /// How many runs it may have that are not terminal.
    pub concurrency: u32,
    /// The events that make it look at its queue, beside those of the queue.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wake_on: Vec<Pattern>,
    /// How often its queue is listed, where the items live elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll: Option<Span>,
}

/// Where a worker stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum State {
    /// Nobody started it. A deployment or a human moves it on.
    #[default]
    Absent,
    /// Takes items. A human or another deployment stops it.
    Started(Settings),
    /// Takes nothing more; what runs, goes on. A start moves it on.
    Stopped(Settings),
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worker {
    /// Its name, in its tenant and namespace.
    pub id: Scoped,
    /// Where it stands.
    pub state: State,
    /// The items it works on, and the run of each. At most [`CONCURRENCY_MAX`].
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub active: Map<ItemId, RunId>,
    /// A cap lets it make no run before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed_until: Option<Millis>,
    /// When its external queue is listed next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_at: Option<Millis>,
    /// What policy said last of the command that lists its queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Box<policy::Decision>>,
}

/// What a worker is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Consume the queue, with these settings from now on.
    Start(Settings),
    /// The next version of the runbook says this: consume the queue with these settings, unless somebody stopped it.
    Declare(Settings),
    /// Look at the queue.
    Wake { cause: Option<Name> },
    /// Take an item, for which a run is made in the same commit.
    Dispatch { item: ItemId, run: RunId, epoch: u64 },
    /// An item's run is terminal.
    Settle { item: ItemId, run: RunId, succeeded: bool },
    /// Have more or fewer runs at once.
    Resize { concurrency: u32 },
    /// A cap lets it make no run before a time.
    Delay { until: Millis, reason: String },
    /// Its external queue was listed, or could not be.
    Polled { listed: u32, error: Option<String> },
    /// Policy was asked about a command of its external queue.
    Decided(Box<PolicyDecided>),
    /// Take nothing more.
    Stop { reason: Option<String> },
}

/// A worker's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is as asked.
    Done,
    /// It was so before; nothing changed.
    AlreadyDone,
    /// There is nothing to look for: every place is taken, or the worker is stopped.
    Idle,
}

/// Why a worker refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nobody started it.
    #[error("there is no such worker")]
    NotFound,
    /// Every place is taken.
    #[error("the worker has {active} runs of {max}")]
    Full { active: u32, max: u32 },
    /// The item has another run, or the run another item.
    #[error("item {item} and run {run} do not belong together")]
    Conflict { item: ItemId, run: RunId },
    /// It takes nothing more.
    #[error("the worker is stopped")]
    Stopped,
    /// A setting is out of its bounds.
    #[error("{0}")]
    Invalid(&'static str),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Error::NotFound => Code::NotFound,
            Error::Full { .. } => Code::CapExceeded,
            Error::Conflict { .. } => Code::RunInvalidTransition,
            Error::Stopped => Code::RunTerminalState,
            Error::Invalid(_) => Code::InvalidInput,
        }
    }
}

impl Worker {
    /// A worker that nobody started yet.
    #[must_use]
    pub const fn new(id: Scoped) -> Worker {
        Worker {
            id,
            state: State::Absent,
            active: Map::new(),
            delayed_until: None,
            poll_at: None,
            policy: None,
        }
    }

    /// Its state, as the table names it.
    #[must_use]
    pub const fn state_name(&self) -> &'static str {
        match self.state {
            State::Absent => "absent",
            State::Started(_) => "started",
            State::Stopped(_) => "stopped",
        }
    }

    /// Its settings, once it was started.
    #[must_use]
    pub const fn settings(&self) -> Option<&Settings> {
        match &self.state {
            State::Absent => None,
            State::Started(settings) | State::Stopped(settings) => Some(settings),
        }
    }

    /// The queue it consumes while it is started.
    #[must_use]
    pub fn queue(&self) -> Option<Scoped> {
        match &self.state {
            State::Started(settings) => {
                let [tenant, namespace] = [self.id.tenant(), self.id.namespace()].map(Name::clean);
                Some(Scoped::new(&tenant, &namespace, &settings.queue))
            }
            State::Absent | State::Stopped(_) => None,
        }
    }

    /// How many items it could take now.
    #[must_use]
    pub fn capacity_left(&self) -> u32 {
        match &self.state {
            State::Started(settings) => settings.concurrency.saturating_sub(self.running()),
            State::Absent | State::Stopped(_) => 0,
        }
    }

    /// When it next wants to be looked at, after a time: a cap has room again, or its external queue is to be listed.
    #[must_use]
    pub fn due_after(&self, at: Option<Millis>) -> Option<Millis> {
        let started = matches!(self.state, State::Started(_));
        let times = [self.delayed_until, self.poll_at].into_iter().flatten();
        times.filter(|due| started && at.is_none_or(|at| *due > at)).min()
    }

    /// What would come of an input.
    ///
    /// # Errors
    /// What the table has no row for, a dispatch without a place for it, settings out of their bounds.
    pub fn decide(&self, input: &Input, at: Millis) -> Result<Decision<Reply>, Error> {
        use State::{Absent, Started, Stopped};
        let done = Decision::reply(Reply::Done);
        match (&self.state, input) {
            (Absent | Stopped(_), Input::Start(new)) | (Absent, Input::Declare(new)) => {
                check(new)?;
                Ok(self.wake_if(self.running() < new.concurrency, done.fact(told!(WorkerStarted, self, new))))
            }
            (Started(old), Input::Start(new) | Input::Declare(new)) => {
                check(new)?;
                // A deployment says again what holds already.
                let decision = if old == new {
                    Decision::reply(Reply::AlreadyDone)
                } else {
                    done.fact(told!(WorkerStarted, self, new))
                };
                Ok(self.wake_if(self.running() < new.concurrency, decision))
            }
            // Whoever stopped it had a reason that a deployment does not know.
            (Stopped(old), Input::Declare(new)) => {
                check(new)?;
                let unchanged = Decision::reply(Reply::AlreadyDone);
                Ok(if old == new { unchanged } else { done.fact(told!(WorkerConfigured, self, new)) })
            }
            (
                Absent,
                Input::Wake { .. }
                | Input::Dispatch { .. }
                | Input::Settle { .. }
                | Input::Resize { .. }
                | Input::Delay { .. }
                | Input::Polled { .. }
                | Input::Decided(_)
                | Input::Stop { .. },
            ) => Err(Error::NotFound),

            (Started(_), Input::Wake { cause }) => {
                if self.capacity_left() == 0 {
                    return Ok(Decision::reply(Reply::Idle));
                }
                // Who works already looks again when it has room: only an idle worker is woken.
                let wake = WorkerWake { worker_name: self.name(), cause: cause.clone() };
                let woken = if self.active.is_empty() { done.fact(wake) } else { done };
                Ok(self.wake_if(true, woken))
            }
            // Events go on arriving after a stop, and none of them is at fault.
            (Stopped(_), Input::Wake { .. }) => Ok(Decision::reply(Reply::Idle)),

            (Started(settings), Input::Dispatch { item, run, epoch }) => {
                self.dispatch(settings, *item, *run, *epoch)
            }
            (Stopped(_), Input::Dispatch { .. }) => Err(Error::Stopped),

            (Started(_) | Stopped(_), Input::Settle { item, run, succeeded }) => {
                if self.active.get(item) != Some(run) {
                    // Settled before: the run's end was delivered again.
                    return Ok(Decision::reply(Reply::AlreadyDone));
                }
                let fact = WorkerItemSettled {
                    worker_name: self.name(),
                    item_id: *item,
                    pipeline_id: *run,
                    succeeded: *succeeded,
                };
                // A place is free now, unless the worker was made smaller meanwhile.
                let has_room = matches!(&self.state, Started(s) if self.running() <= s.concurrency);
                Ok(self.wake_if(has_room, done.fact(fact)))
            }

            (Started(settings), Input::Resize { concurrency }) => {
                check_concurrency(*concurrency)?;
                if *concurrency == settings.concurrency {
                    return Ok(Decision::reply(Reply::AlreadyDone));
                }
                let grows = *concurrency > settings.concurrency && self.running() < *concurrency;
                let fact = WorkerResized { worker_name: self.name(), concurrency: *concurrency };
                Ok(self.wake_if(grows, done.fact(fact)))
            }
            (Stopped(_), Input::Resize { .. } | Input::Delay { .. }) => Err(Error::Stopped),

            (Started(_), Input::Delay { until, reason }) => {
                // It has a time to come back already; when that is there, it is told anew.
                if self.delayed_until.is_some_and(|due| due > at) {
                    return Ok(Decision::reply(Reply::AlreadyDone));
                }
                let (worker_name, until, reason) = (self.name(), *until, reason.clone());
                Ok(done.fact(WorkerDelayed { worker_name, until, reason }))
            }

            (Started(settings), Input::Polled { listed, error }) => match settings.poll {
                None => Ok(Decision::reply(Reply::AlreadyDone)),
                Some(poll) => Ok(done.fact(WorkerPolled {
                    worker_name: self.name(),
                    listed: *listed,
                    next_at: at + poll,
                    error: error.clone().map(Private::New),
                })),
            },
            // It was stopped while somebody listed.
            (Stopped(_), Input::Polled { .. }) => Ok(Decision::reply(Reply::Idle)),

            (Started(_), Input::Decided(decided)) => {
                // A queue is listed every few seconds, and the same answer need not be told each time.
                let known = decided.purpose == Some(Purpose::List)
                    && self.policy.as_deref() == Some(&policy::Decision::from(&**decided));
                Ok(if known { Decision::reply(Reply::AlreadyDone) } else { done.fact((**decided).clone()) })
            }
            // It was stopped while policy was asked: nothing is listed or taken any more.
            (Stopped(_), Input::Decided(_)) => Err(Error::Stopped),

            (Started(_), Input::Stop { reason }) => {
                Ok(done.fact(WorkerStopped { worker_name: self.name(), reason: reason.clone() }))
            }
            // Two people may stop it at once, and both are right.
            (Stopped(_), Input::Stop { .. }) => Ok(Decision::reply(Reply::AlreadyDone)),
        }
    }

    /// What a fact makes of it.
    #[must_use]
    pub fn apply(mut self, event: &Event, at: Millis) -> Worker {
        match event {
            Event::WorkerStarted(e) => {
                let settings = heard!(e);
                (self.delayed_until, self.poll_at) = (None, settings.poll.map(|_| at));
                self.state = State::Started(settings);
            }
            Event::WorkerConfigured(e) => {
                if let State::Stopped(settings) = &mut self.state {
                    *settings = heard!(e);
                }
            }
            Event::WorkerItemDispatched(e) => {
                self.delayed_until = None;
                self.active.insert(e.item_id, e.pipeline_id);
            }
            Event::WorkerDelayed(e) => self.delayed_until = Some(e.until),
            Event::PolicyDecided(e) if e.purpose == Some(Purpose::List) => {
                self.policy = Some(Box::new(policy::Decision::from(&**e)));
            }
            Event::WorkerPolled(e) => self.poll_at = Some(e.next_at),
            Event::WorkerItemSettled(e) => {
                self.active.remove(&e.item_id);
            }
            Event::WorkerResized(e) => {
                if let State::Started(settings) | State::Stopped(settings) = &mut self.state {
                    settings.concurrency = e.concurrency;
                }
            }
            Event::WorkerStopped(_) => {
                (self.delayed_until, self.poll_at) = (None, None);
                self.state = match self.state {
                    State::Started(settings) => State::Stopped(settings),
                    state @ (State::Absent | State::Stopped(_)) => state,
                };
            }
            // Signals change nothing, and everything else belongs to other streams.
            _ => {}
        }
        self
    }

    fn dispatch(
        &self,
        settings: &Settings,
        item: ItemId,
        run: RunId,
        epoch: u64,
    ) -> Result<Decision<Reply>, Error> {
        if self.active.get(&item) == Some(&run) {
            // The same dispatch delivered again.
            return Ok(Decision::reply(Reply::AlreadyDone));
        }
        if self.active.contains_key(&item) || self.active.values().any(|active| *active == run) {
            return Err(Error::Conflict { item, run });
        }
        if self.capacity_left() == 0 {
            return Err(Error::Full { active: self.running(), max: settings.concurrency });
        }
        let (worker_name, item_id, pipeline_id) = (self.name(), item, run);
        Ok(Decision::reply(Reply::Done).fact(WorkerItemDispatched {
            worker_name,
            item_id,
            pipeline_id,
            epoch,
        }))
    }

    fn running(&self) -> u32 {
        // Bounded by the concurrency, which is a u32 itself.
        u32::try_from(self.active.len()).unwrap_or(u32::MAX)
    }

    fn wake_if(&self, has_room: bool, decision: Decision<Reply>) -> Decision<Reply> {
        if has_room { decision.then([Follow::WakeWorker { worker: self.id.clone() }]) } else { decision }
    }

    fn name(&self) -> Name {
        Name::clean(self.id.name())
    }
}

fn check(settings: &Settings) -> Result<(), Error> {
    check_concurrency(settings.concurrency)?;
    if settings.wake_on.len() > WAKE_ON_MAX {
        return Err(Error::Invalid("wake_on has more than 32 patterns"));
    }
    Ok(())
}

fn check_concurrency(concurrency: u32) -> Result<(), Error> {
    if (1..=CONCURRENCY_MAX).contains(&concurrency) {
        Ok(())
    } else {
        Err(Error::Invalid("concurrency is not between 1 and 1000"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Proof, name};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec;

    const AT: Millis = Millis(1_000);

    fn worker() -> Worker {
        Worker::new(Scoped::parse("acme/prod/fixer").unwrap())
    }

    fn settings(concurrency: u32) -> Settings {
        Settings {
            queue: name("bugs"),
            pipeline: name("fix"),
            runbook_hash: Digest([7; 32]),
            project_root: "/srv".into(),
            concurrency,
            wake_on: vec![Pattern::parse("pipeline:advanced(merge)").unwrap()],
            poll: Some(Span::mins(1)),
        }
    }

    fn delay(until: u64) -> Input {
        Input::Delay { until: Millis(until), reason: "max_runs_per_min".into() }
    }

    fn decided() -> Input {
        let question = policy::Question {
            policy_version: Digest([1; 32]),
            action_hash: Some(Digest([2; 32])),
            approvals: 0,
            risk: policy::Risk::Low,
        };
        let event = policy::Outcome::TimedOut.settle(&question).event(RunId(0), None, name("shell"));
        Input::Decided(Box::new(PolicyDecided { purpose: Some(Purpose::List), ..event }))
    }

    #[test]
    fn the_same_answer_about_a_list_is_recorded_once() {
        let (told, first) = step(&after(&[Input::Start(settings(1))]), &decided()).unwrap();
        let (_, again) = step(&told, &decided()).unwrap();
        assert_eq!((first.facts.len(), again.facts.len()), (1, 0));
    }

    fn polled() -> Input {
        Input::Polled { listed: 3, error: None }
    }

    fn dispatch(n: u128) -> Input {
        Input::Dispatch { item: ItemId(n), run: RunId(n), epoch: 1 }
    }

    fn settle(n: u128) -> Input {
        Input::Settle { item: ItemId(n), run: RunId(n), succeeded: true }
    }

    fn stop() -> Input {
        Input::Stop { reason: None }
    }

    fn step(worker: &Worker, input: &Input) -> Result<(Worker, Decision<Reply>), Error> {
        let decision = worker.decide(input, AT)?;
        let next = decision.facts.iter().fold(worker.clone(), |worker, fact| worker.apply(fact, AT));
        Ok((next, decision))
    }

    fn after(inputs: &[Input]) -> Worker {
        inputs.iter().fold(worker(), |worker, input| step(&worker, input).unwrap().0)
    }

    fn wakes(worker: &Worker, input: &Input) -> bool {
        let follow = step(worker, input).unwrap().1.follow;
        assert!(follow.iter().all(|follow| matches!(follow, Follow::WakeWorker { .. })));
        !follow.is_empty()
    }

    #[test]
    fn the_table_holds() {
        let started = || Input::Start(settings(2));
        Proof {
            name: "worker",
            about: "A worker makes one run per item of its queue, up to its concurrency.",
            table: TABLE,
            states: vec![
                ("absent", worker()),
                ("started", after(&[started()])),
                ("started", after(&[started(), dispatch(1), dispatch(2)])),
                ("stopped", after(&[started(), dispatch(1), stop()])),
            ],
            inputs: vec![
                ("start", started()),
                ("start", Input::Start(settings(3))),
                ("declare", Input::Declare(settings(2))),
                ("declare", Input::Declare(settings(3))),
                ("wake", Input::Wake { cause: Some(name("queue:pushed")) }),
                ("dispatch", dispatch(3)),
                ("dispatch", dispatch(1)),
                ("settle", settle(1)),
                ("settle", settle(9)),
                ("resize", Input::Resize { concurrency: 1 }),
                ("resize", Input::Resize { concurrency: 5 }),
                ("delay", delay(2_000)),
                ("polled", polled()),
                ("decided", decided()),
                ("stop", stop()),
            ],
        }
        .check(|worker, input| {
            step(worker, input).map(|(next, _)| next.state_name()).map_err(|error| error.code())
        });
    }

    #[test]
    fn a_stopped_worker_takes_what_a_deployment_says_and_stays_stopped() {
        let stopped = after(&[Input::Start(settings(2)), stop()]);
        let (declared, decision) = step(&stopped, &Input::Declare(settings(5))).unwrap();
        assert_eq!((declared.state_name(), decision.follow.len()), ("stopped", 0));
        assert_eq!(declared.settings(), Some(&settings(5)), "it is started with the new ones");
        assert!(step(&declared, &Input::Declare(settings(5))).unwrap().1.facts.is_empty());
        assert_eq!(step(&worker(), &Input::Declare(settings(1))).unwrap().0.state_name(), "started");
    }

    #[test]
    fn a_delayed_worker_has_one_time_to_come_back_and_a_run_ends_the_wait() {
        let start = Input::Start(Settings { poll: None, ..settings(2) });
        let delayed = after(&[start.clone(), delay(2_000)]);
        assert_eq!(delayed.due_after(None), Some(Millis(2_000)));
        assert!(step(&delayed, &delay(3_000)).unwrap().1.facts.is_empty(), "it comes back before that");
        let late = delayed.decide(&delay(3_000), Millis(2_000)).unwrap();
        assert_eq!(late.facts.len(), 1, "the cap has no room even then");
        assert_eq!(step(&delayed, &dispatch(1)).unwrap().0.due_after(None), None);
        assert_eq!(step(&delayed, &stop()).unwrap().0.due_after(None), None);
    }

    #[test]
    fn an_external_queue_is_listed_at_once_and_then_now_and_again() {
        let started = after(&[Input::Start(settings(2))]);
        assert_eq!(started.due_after(None), Some(AT));
        let again = step(&started, &polled()).unwrap().0;
        assert_eq!(again.due_after(None), Some(AT + Span::mins(1)));
        // A cap's time is not hidden by a list that is under way.
        let both = step(&started, &delay(5_000)).unwrap().0;
        assert_eq!((both.due_after(None), both.due_after(Some(AT))), (Some(AT), Some(Millis(5_000))));
        let plain = after(&[Input::Start(Settings { poll: None, ..settings(2) })]);
        assert!(step(&plain, &polled()).unwrap().1.facts.is_empty(), "it has nothing to list");
    }

    #[test]
    fn a_worker_asks_to_look_where_there_is_room_and_only_there() {
        let start = Input::Start(settings(2));
        let wake = Input::Wake { cause: None };
        assert!(wakes(&worker(), &start));
        let full = after(&[start.clone(), dispatch(1), dispatch(2)]);
        assert!(!wakes(&full, &wake) && !wakes(&full, &start));
        assert!(wakes(&full, &settle(1)) && !wakes(&full, &settle(9)));
        assert!(wakes(&full, &Input::Resize { concurrency: 3 }));
        let small = step(&full, &Input::Resize { concurrency: 1 }).unwrap().0;
        assert_eq!((small.active.len(), small.capacity_left()), (2, 0));
        assert!(!wakes(&small, &settle(1)), "one still runs, and one may");
        let stopped = step(&full, &stop()).unwrap().0;
        assert!(!wakes(&stopped, &settle(1)) && !wakes(&stopped, &wake));
        assert!(!wakes(&stopped, &start), "what ran before the stop still has its places");
    }

    #[test]
    fn a_full_or_stopped_worker_takes_nothing() {
        let full = after(&[Input::Start(settings(1)), dispatch(1)]);
        assert_eq!(full.decide(&dispatch(2), AT).unwrap_err().code(), Code::CapExceeded);
        assert_eq!(full.decide(&dispatch(1), AT).unwrap(), Decision::reply(Reply::AlreadyDone));
        let twice = Input::Dispatch { item: ItemId(2), run: RunId(1), epoch: 1 };
        assert!(matches!(full.decide(&twice, AT), Err(Error::Conflict { .. })));
        let stopped = step(&full, &stop()).unwrap().0;
        assert_eq!(stopped.decide(&dispatch(2), AT).unwrap_err().code(), Code::RunTerminalState);
    }

    #[test]
    fn no_worker_has_more_than_a_thousand_runs() {
        let mut worker = after(&[Input::Start(settings(CONCURRENCY_MAX))]);
        for n in 0..u128::from(CONCURRENCY_MAX) {
            worker = step(&worker, &dispatch(n)).unwrap().0;
        }
        assert_eq!(worker.decide(&dispatch(5_000), AT).unwrap_err().code(), Code::CapExceeded);
        assert!(worker.decide(&Input::Resize { concurrency: CONCURRENCY_MAX + 1 }, AT).is_err());
    }

    #[test]
    fn settings_have_bounds() {
        let start = |settings| worker().decide(&Input::Start(settings), AT).map_err(|error| error.code());
        assert!(start(settings(CONCURRENCY_MAX)).is_ok());
        assert_eq!(start(settings(CONCURRENCY_MAX + 1)), Err(Code::InvalidInput));
        assert_eq!(start(settings(0)), Err(Code::InvalidInput));
        let wake_on = |n| Settings { wake_on: vec![Pattern::Every; n], ..settings(1) };
        assert!(start(wake_on(WAKE_ON_MAX)).is_ok());
        assert_eq!(start(wake_on(WAKE_ON_MAX + 1)), Err(Code::InvalidInput));
    }

    fn any_input() -> impl Strategy<Value = Input> {
        let id = 0..6u128;
        prop_oneof![
            2 => (0..4u32).prop_map(|n| Input::Start(settings(n))),
            1 => Just(Input::Wake { cause: None }),
            6 => (id.clone(), id.clone()).prop_map(|(item, run)| {
                Input::Dispatch { item: ItemId(item), run: RunId(run), epoch: 1 }
            }),
            4 => (id.clone(), id, any::<bool>()).prop_map(|(item, run, succeeded)| {
                Input::Settle { item: ItemId(item), run: RunId(run), succeeded }
            }),
            1 => (0..4u32).prop_map(|concurrency| Input::Resize { concurrency }),
            1 => Just(stop()),
        ]
    }

    proptest! {
        #[test]
        fn places_are_never_overbooked_and_a_run_has_one_item(
            inputs in prop::collection::vec(any_input(), 0..80),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut worker = worker();
            let mut facts = Vec::new();
            for input in &inputs {
                let Ok((next, decision)) = step(&worker, input) else { continue };
                if let Input::Dispatch { item, run, .. } = input {
                    prop_assert_eq!(next.active.get(item), Some(run));
                    if !decision.facts.is_empty() {
                        prop_assert!(next.active.len() <= next.settings().unwrap().concurrency as usize);
                    }
                }
                if !decision.follow.is_empty() {
                    prop_assert!(next.capacity_left() > 0, "woken for nothing by {:?}", input);
                }
                let runs: BTreeSet<_> = next.active.values().collect();
                prop_assert_eq!(runs.len(), next.active.len());
                facts.extend(decision.facts);
                worker = next;
            }
            let fold = |worker, facts: &[Event]| facts.iter().fold(worker, |worker: Worker, fact| worker.apply(fact, AT));
            let (head, tail) = facts.split_at(cut.index(facts.len() + 1));
            let kept = serde_json::to_string(&fold(self::worker(), head)).unwrap();
            prop_assert_eq!(fold(serde_json::from_str(&kept).unwrap(), tail), worker);
        }
    }
}
