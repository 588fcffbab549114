//! Why a run is where it is: the chain of what it waits for, followed from run to lock to holder, as far as it goes.

use super::leases::LOCAL;
use super::{Answer, Caller, json};
use crate::app::App;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use std::collections::BTreeSet;
use std::sync::Arc;
use windlass_api::time;
use windlass_api::why::{Link, Why};
use windlass_core::code::Code;
use windlass_core::id::{Holder, Name, RunId, StepId};
use windlass_core::lock;
use windlass_core::run::{BlockedOn, Run, Status};
use windlass_core::step::{self, Step, Wait};
use windlass_core::stream::StreamId;
use windlass_core::turn::state::{Body, State as Whole};

/// How many links the chain has at most.
const LINKS_MAX: usize = 32;

pub(super) async fn why(State(app): State<Arc<App>>, caller: Caller, Path(id): Path<String>) -> Answer {
    let id = app.find_run(&caller, &id).await?;
    let executes = app.executes();
    let found = app
        .look(move |store| {
            let status = store.show_run(id, |run, _, _| run.status());
            let mut chain =
                Chain { state: store.state(), executes, seen: BTreeSet::new(), links: Vec::new() };
            chain.run(id);
            (status, chain.links)
        })
        .await?;
    Ok(json(StatusCode::OK, &Why { run: id, status: found.0, because: found.1 }))
}

struct Chain<'a> {
    state: &'a Whole,
    /// Whether this process carries out steps. Where it does not, nobody does what was begun here.
    executes: bool,
    seen: BTreeSet<RunId>,
    links: Vec<Link>,
}

impl Chain<'_> {
    fn link(&mut self, run: RunId, step: Option<&StepId>, kind: &str, text: impl Into<String>) -> &mut Link {
        let (kind, text) = (kind.to_owned(), text.into());
        self.links.push(Link { run, step: step.cloned(), kind, text, holder: None, code: None });
        let last = self.links.len() - 1;
        &mut self.links[last]
    }

    /// Follows a run, once.
    fn run(&mut self, id: RunId) {
        if self.links.len() >= LINKS_MAX || !self.seen.insert(id) {
            return;
        }
        let Some(run) = self.state.run(id) else { return };
        match run.status() {
            Status::Completed | Status::Failed | Status::Cancelled => self.ended(id, run),
            Status::Pending if run.blocked.is_none() => {
                self.link(id, None, "begin", "it has not begun: it waits for its turn");
            }
            Status::Pending | Status::Blocked => {
                self.held_up(id, run);
                self.blocked(id, run);
            }
            Status::Running
            | Status::AwaitingApproval
            | Status::WaitingExternal
            | Status::FailedRetryable => {
                self.held_up(id, run);
                for step in run.live().filter(|step| step.group.is_none()) {
                    self.step(id, run, step);
                }
            }
        }
    }

    /// What keeps all of a run: it is suspended, or being stopped.
    fn held_up(&mut self, id: RunId, run: &Run) {
        if run.suspended {
            let caller = run.born.parent.as_deref().and_then(|(caller, _)| self.state.run(*caller));
            let of = caller.filter(|caller| caller.suspended).map_or(id, Run::id);
            let text = format!("it is suspended: `windlass resume {of}` lets it go on");
            self.link(id, None, "suspended", text);
        }
        if let Some(stop) = &run.stopping {
            let why = stop.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
            self.link(id, None, "stopping", format!("it is being stopped{why}"));
        }
    }

    fn ended(&mut self, id: RunId, run: &Run) {
        let text = match &run.failure {
            Some(failure) => {
                let step = failure.0.as_ref().map_or(String::new(), |step| format!(" in step `{step}`"));
                format!("it ended as {}{step}: {}", run.status(), failure.1.message)
            }
            None => format!("it ended as {}", run.status()),
        };
        self.link(id, None, "ended", text);
    }

    /// What a step that is ready waits for: where it names labels, not any executor will do.
    fn executor(&self, run: &Run, step: &Step) -> String {
        let labels = self.labels(run, step);
        if labels.is_empty() {
            return "it is ready and waits for a free executor".to_owned();
        }
        let labels = labels.join(", ");
        format!(
            "it is ready and waits for a free executor with the labels {labels}: `windlass executor --labels {labels}`"
        )
    }

    fn labels(&self, run: &Run, step: &Step) -> Vec<String> {
        let home = &run.born.home;
        let book = self.state.stream(&StreamId::Runbook(home.runbook)).map(|stream| &stream.body);
        let Some(Body::Runbook(book)) = book else { return Vec::new() };
        let node = book.pipelines.get(&home.pipeline).and_then(|def| def.node(step.node));
        node.map(|node| node.runs_on.iter().map(ToString::to_string).collect()).unwrap_or_default()
    }

    fn blocked(&mut self, id: RunId, run: &Run) {
        match run.blocked.as_deref() {
            Some(BlockedOn::Runs(runs)) => {
                for other in runs {
                    self.link(id, None, "run", format!("it waits until run {other} is completed"));
                    self.run(*other);
                }
            }
            Some(BlockedOn::Pipelines(names)) => {
                for name in names {
                    let text = format!(
                        "it waits until a run of the pipeline `{name}` is completed: none has run yet"
                    );
                    self.link(id, None, "pipeline", text);
                }
            }
            Some(BlockedOn::Lock(name)) => self.lock(id, None, run, name),
            Some(BlockedOn::Cap(cap)) => {
                self.link(id, None, "cap", format!("a cap is reached: {cap}"));
            }
            None => {}
        }
    }

    fn step(&mut self, id: RunId, run: &Run, step: &Step) {
        let name = &step.id;
        let until = step.waiting.as_ref().and_then(|waiting| waiting.until).or(step.next_eligible_at);
        let till = until.map_or(String::new(), |at| format!(" until {}", time::text(at)));
        match (step.status, step.waiting.as_ref()) {
            (step::Status::Running, _) => match step.child() {
                Some(child) => {
                    self.link(id, Some(name), "call", format!("it waits for run {child}, which it called"));
                    self.run(child);
                }
                None if !self.executes
                    && step.lease.as_ref().is_some_and(|lease| lease.owner.as_str() == LOCAL) =>
                {
                    let text = format!("it was interrupted: `windlass resume {id}` lets it go on");
                    self.link(id, Some(name), "interrupted", text);
                }
                None => {
                    let owner = step.lease.as_ref().map_or("nobody", |lease| lease.owner.as_str());
                    let text = format!("it is being carried out by `{owner}`, attempt {}", step.attempt);
                    self.link(id, Some(name), "running", text);
                }
            },
            (step::Status::Ready, _) => {
                let home = &run.born.home;
                match self.state.indexes().admit_step(&home.tenant, &home.runbook) {
                    Ok(()) => self.link(id, Some(name), "ready", self.executor(run, step)),
                    Err(cap) => self.link(id, Some(name), "cap", format!("a cap is reached: {cap}")),
                };
            }
            (_, Some(waiting)) => self.waiting(id, run, step, waiting, &till),
            (status, None) => {
                self.link(id, Some(name), status.as_str(), format!("it is {status}{till}"));
            }
        }
    }

    fn waiting(&mut self, id: RunId, run: &Run, step: &Step, waiting: &step::Waiting, till: &str) {
        let name = Some(&step.id);
        let on = waiting.on.as_ref().map_or(String::new(), |on| format!(" `{on}`"));
        match waiting.reason {
            Wait::Lock => match &waiting.on {
                Some(lock) => self.lock(id, name, run, lock),
                None => {
                    self.link(id, name, "lock", "it waits for a lock");
                }
            },
            Wait::Semaphore => self.semaphore(id, name, run, waiting.on.as_ref()),
            Wait::Approval => {
                // Several steps may wait for one answer.
                let open = run.rare().approvals.values().find(|a| {
                    a.status == windlass_core::approval::Status::Requested
                        && waiting.on.as_ref().is_some_and(|on| on.as_str() == a.id.to_string())
                });
                let what = open.map_or(String::new(), |a| {
                    let again = a.reasons.iter().find(|reason| reason.starts_with("asked again"));
                    let again = again.map_or(String::new(), |again| format!(" ({again})"));
                    format!("{again}: `windlass approve {}` or `windlass reject {} --reason …`", a.id, a.id)
                });
                self.link(id, name, "approval", format!("a human has to decide{what}"));
            }
            Wait::Outcome => {
                let text = format!(
                    "nobody knows whether its effect happened: `windlass resolve {id} {} done|retry|fail --reason …`",
                    step.id
                );
                self.link(id, name, "outcome", text);
            }
            Wait::Event => {
                let key = waiting.key.as_ref().map_or(String::new(), |key| format!(" with key `{key}`"));
                let text =
                    format!("it waits for the event{on}{key}{till}: `windlass signal {id} …` sends it");
                self.link(id, name, "event", text);
            }
            Wait::Timer => {
                self.link(id, name, "timer", format!("it waits{till}"));
            }
            Wait::Executor => {
                let why = waiting.on.as_ref().map_or(String::new(), |on| format!(": {on}"));
                let text = format!(
                    "nothing of it could be begun, and it is tried again{}{why}",
                    till.replacen(" until", " at", 1)
                );
                self.link(id, name, "executor", text);
            }
            Wait::Backoff => {
                let error = step.error.as_ref().map_or(String::new(), |error| format!(": {}", error.message));
                self.link(
                    id,
                    name,
                    "backoff",
                    format!("attempt {} failed and it waits{till}{error}", step.failures),
                );
            }
            Wait::Guard | Wait::GuardAfter => {
                self.link(id, name, "guard", format!("its guard{on} does not hold yet{till}"));
            }
            Wait::Policy => {
                self.link(id, name, "policy", "policy is being asked");
            }
            Wait::Budget => {
                let budget = run.budget();
                let flag = waiting.on.as_ref().map_or("usd", |on| on.as_str());
                let text = match budget.exceeded.get(&step.id) {
                    Some(excess) => {
                        let amount = |n: u64| crate::api::budgets::amount(excess.dimension, n);
                        format!(
                            "the budget of {} is used up and it needs {}: `windlass raise {id} --{flag} …` lets it go on, \
                             `windlass resolve {id} {} fail --reason …` gives up",
                            amount(excess.limit),
                            amount(excess.needed),
                            step.id
                        )
                    }
                    None => {
                        format!("the budget{on} is used up: `windlass raise {id} --{flag} …` lets it go on")
                    }
                };
                self.link(id, name, "budget", text).code = Some(Code::BudgetExceeded);
            }
            Wait::Escalation => {
                self.link(id, name, "escalation", "an agent needs a human");
            }
        }
    }

    fn lock(&mut self, id: RunId, step: Option<&StepId>, run: &Run, name: &Name) {
        let stream = StreamId::Lock(run.scoped(name));
        let holder = match self.state.stream(&stream).map(|stream| &stream.body) {
            Some(Body::Lock(lock)) => match &lock.state {
                lock::State::Held(hold) => Some((hold.holder.clone(), hold.acquired_at)),
                lock::State::Free => None,
            },
            Some(_) | None => None,
        };
        match holder {
            Some((holder, since)) => {
                let text =
                    format!("it waits for the lock `{name}`, held by {holder} since {}", time::text(since));
                self.link(id, step, "lock", text).holder = Some(holder.to_string());
                self.holder(&holder);
            }
            None => {
                self.link(id, step, "lock", format!("it waits for the lock `{name}`"));
            }
        }
    }

    fn semaphore(&mut self, id: RunId, step: Option<&StepId>, run: &Run, name: Option<&Name>) {
        let Some(name) = name else { return };
        let stream = StreamId::Semaphore(run.scoped(name));
        let holders: Vec<(Holder, u32)> = match self.state.stream(&stream).map(|stream| &stream.body) {
            Some(Body::Semaphore(held)) => {
                held.holders.iter().map(|(holder, hold)| (holder.clone(), hold.weight)).collect()
            }
            Some(_) | None => Vec::new(),
        };
        let list: Vec<String> =
            holders.iter().map(|(holder, weight)| format!("{holder} ({weight})")).collect();
        let text = format!("it waits for slots of the semaphore `{name}`, held by {}", list.join(", "));
        self.link(id, step, "semaphore", text);
        holders.iter().for_each(|(holder, _)| self.holder(holder));
    }

    fn holder(&mut self, holder: &Holder) {
        if let Some(run) = holder.run() {
            self.run(run);
        }
    }
}
