//! The life of a run: how it is created, begins, waits, is stopped and goes on in another.
//!
//! | status | input | comes to |
//! |---|---|---|
//! | pending | begin | running, or blocked on runs, then on pipelines that never ran, then on its lock |
//! | pending | begin while another has its lock, `overlap: skip` | cancelled, with the reason `overlap` |
//! | pending | begin while another has its lock, `overlap: cancel` | blocked, and the other one is cancelled |
//! | blocked | what it waits for is there | running |
//! | blocked | a needed run did not complete | failed |
//! | any but ended | suspend, resume | a flag: nothing is leased |
//! | any but ended | cancel | a flag: nothing new starts forward; compensations and `finally` run |
//! | failed | retry | a linked run that takes over what succeeded |
//! | any | fork | a linked run that takes over what came before a step |

use crate::attempt;
use crate::binding;
use crate::code::Code;
use crate::effect::Effect;
use crate::event::{
    CheckpointSaved, Event, PipelineBlocked, PipelineCancel, PipelineCancelling, PipelineCreated,
    PipelineInherited, PipelineOrphaned, PipelineResume, PipelineResumed, PipelineStarted, PipelineSuspend,
    PipelineSuspended, PipelineUnblocked, PipelineUpdated, SignalConsumed, SignalReceived, TimerStart,
};
use crate::follow::Follow;
use crate::gate;
use crate::id::{Name, RunId, StepId};
use crate::items;
use crate::machine::{Decision, Given, Row, table};
use crate::pipeline;
use crate::private::Private;
use crate::requesters;
use crate::run::{
    BlockedOn, Error, Inherited, Initiator, Lineage, ORPHAN_AFTER, Run, SIGNALS_MAX, Section, Status,
};
use crate::runbook::{Kind, Pipeline, WaitFor};
use crate::schedule::Overlap;
use crate::scope;
use crate::step::{self, Failure, Step, Wait, Waiting};
use crate::time::Millis;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use serde_json::Value;

/// Where a run stands after the turn that an input made. Its status follows from its steps, so the way there may lead
/// through `running`. What is not here is `RUN_INVALID_TRANSITION`, or `RUN_TERMINAL_STATE`.
///
/// Some rows lead nowhere on purpose. Whoever told the run something, or looked at the clock for it, could not know that
/// it does not concern the run any more. A fork leaves its origin as it is. A decision that comes after the end is
/// refused by the approval itself and stands in the audit.
pub const TABLE: &[Row] = table! {
    "pending": "begin" => "running" | "blocked" | "waiting_external" | "cancelled";
    "pending": "cancel" => "cancelled";
    "pending": "suspend" => "pending";
    "pending": "resume" => "pending";
    "pending": "signal" => "pending";
    "pending": "due" => "pending" | "failed";
    "pending": "needed_ended" => "pending";
    "pending": "lock_granted" => "pending";
    "blocked": "begin" => "blocked";
    "blocked": "cancel" => "cancelled";
    "blocked": "suspend" => "blocked";
    "blocked": "resume" => "blocked";
    "blocked": "signal" => "blocked";
    "blocked": "due" => "blocked" | "failed";
    "blocked": "needed_ended" => "running" | "blocked" | "failed" | "waiting_external";
    "blocked": "lock_granted" => "running" | "blocked";
    "running": "cancel" => "running" | "cancelled";
    "running": "suspend" => "running" | "waiting_external";
    "running": "resume" => "running";
    "running": "fork" => "running";
    "running": "signal" => "running";
    "running": "lease" => "running";
    "running": "done" => "completed" | "cancelled" | "waiting_external";
    "running": "failed" => "failed" | "cancelled" | "failed_retryable" | "waiting_external" | "awaiting_approval";
    "running": "lost" => "running" | "awaiting_approval" | "cancelled" | "waiting_external";
    "running": "due" => "running";
    "running": "child_ended" => "running" | "completed" | "failed";
    "running": "needed_ended" => "running";
    "running": "lock_granted" => "running";
    "awaiting_approval": "cancel" => "awaiting_approval" | "cancelled";
    "awaiting_approval": "suspend" => "awaiting_approval";
    "awaiting_approval": "resume" => "awaiting_approval";
    "awaiting_approval": "fork" => "awaiting_approval";
    "awaiting_approval": "signal" => "awaiting_approval";
    "awaiting_approval": "done" => "completed";
    "awaiting_approval": "approve" => "running" | "completed" | "waiting_external";
    "awaiting_approval": "reject" => "failed" | "waiting_external";
    "awaiting_approval": "due" => "awaiting_approval" | "failed" | "waiting_external";
    "awaiting_approval": "resolve" => "running" | "completed" | "failed";
    "awaiting_approval": "child_ended" => "awaiting_approval";
    "awaiting_approval": "needed_ended" => "awaiting_approval";
    "awaiting_approval": "lock_granted" => "awaiting_approval";
    "waiting_external": "cancel" => "cancelled";
    "waiting_external": "suspend" => "waiting_external";
    "waiting_external": "resume" => "running";
    "waiting_external": "fork" => "waiting_external";
    "waiting_external": "signal" => "running" | "completed" | "waiting_external";
    "waiting_external": "due" => "completed" | "failed" | "waiting_external";
    "waiting_external": "child_ended" => "waiting_external";
    "waiting_external": "needed_ended" => "waiting_external";
    "waiting_external": "lock_granted" => "waiting_external";
    "failed_retryable": "cancel" => "cancelled";
    "failed_retryable": "suspend" => "waiting_external";
    "failed_retryable": "resume" => "running";
    "failed_retryable": "fork" => "failed_retryable";
    "failed_retryable": "signal" => "failed_retryable";
    "failed_retryable": "failed" => "failed_retryable";
    "failed_retryable": "due" => "running";
    "failed_retryable": "child_ended" => "failed_retryable";
    "failed_retryable": "needed_ended" => "failed_retryable";
    "failed_retryable": "lock_granted" => "failed_retryable";
    "completed": "fork" => "completed";
    "completed": "done" => "completed";
    "completed": "approve" => "completed";
    "completed": "reject" => "completed";
    "completed": "due" => "completed";
    "completed": "child_ended" => "completed";
    "completed": "lock_granted" => "completed";
    "failed": "retry" => "failed";
    "failed": "fork" => "failed";
    "failed": "failed" => "failed";
    "failed": "due" => "failed";
    "failed": "child_ended" => "failed";
    "failed": "lock_granted" => "failed";
    "cancelled": "fork" => "cancelled";
    "cancelled": "approve" => "cancelled";
    "cancelled": "reject" => "cancelled";
    "cancelled": "due" => "cancelled";
    "cancelled": "child_ended" => "cancelled";
    "cancelled": "lock_granted" => "cancelled";
};

impl Run {
    /// Refuses what an ended run cannot take.
    ///
    /// # Errors
    /// [`Error::Terminal`].
    pub fn must_live(&self) -> Result<(), Error> {
        match &self.ending {
            Some(ending) => Err(Error::Terminal { run: self.id(), status: ending.status }),
            None => Ok(()),
        }
    }

    /// The refusal of something that cannot happen now.
    #[must_use]
    pub fn refuse(&self, input: &'static str) -> Error {
        match &self.ending {
            Some(ending) => Error::Terminal { run: self.id(), status: ending.status },
            None => Error::Transition { run: self.id(), status: self.status(), input },
        }
    }
}

/// Begins a run, or says what it waits for: `needs` are the runs or pipelines that are not completed yet.
///
/// # Errors
/// It has begun already, or has ended.
pub fn begin(run: &Run, def: &Pipeline, needs: Option<BlockedOn>) -> Result<Decision, Error> {
    run.must_live()?;
    if run.started_at.is_some() {
        return Err(run.refuse("begin"));
    }
    let Some(on) = needs.or_else(|| run.born.lock.clone().map(BlockedOn::Lock)) else {
        return Ok(Decision::new().fact(start(run, def)));
    };
    let mut out = Decision::new();
    if run.blocked.as_deref() != Some(&on) {
        out = out.fact(PipelineBlocked { id: run.id(), on: on.clone() });
    }
    // Only the grant begins a run that has a lock. To ask again is safe: whoever stands in line keeps its place. A
    // suspended run asks when it is resumed.
    if let BlockedOn::Lock(lock) = on
        && !run.suspended
    {
        out.follow.push(stand_in_line(run, def, &lock));
    }
    Ok(out)
}

/// Asks for the lock that a run begins with. While another has it, `overlap` says what happens: this run waits, is
/// cancelled, or has the other one cancelled and waits.
fn stand_in_line(run: &Run, def: &Pipeline, lock: &Name) -> Follow {
    let overlap = def.lock.as_ref().map_or(Overlap::Queue, |lock| lock.overlap);
    Follow::TakeLock {
        lock: run.scoped(lock),
        holder: run.holder(),
        wait: overlap != Overlap::Skip,
        oust: overlap == Overlap::Cancel,
        give_up_at: run.born.deadline_at,
    }
}

fn start(run: &Run, def: &Pipeline) -> PipelineStarted {
    let approvers = Some(binding::approvers(def)).filter(|list| !list.is_empty());
    // What takes another run back has nothing to do forward.
    let steps = if run.born.takes_back.is_some() { 0 } else { def.steps.len() as u32 };
    PipelineStarted { id: run.id(), steps, approvers }
}

/// A lock was granted to a blocked run: it begins.
///
/// # Errors
/// It is not blocked.
pub fn unblocked(run: &Run, def: &Pipeline, epoch: Option<u64>) -> Result<Decision, Error> {
    run.must_live()?;
    if run.blocked.is_none() || run.started_at.is_some() {
        return Err(run.refuse("be unblocked"));
    }
    Ok(Decision::new().fact(PipelineUnblocked { id: run.id(), epoch }).fact(start(run, def)))
}

/// A run that this one may need has ended: by its id, or as one of its pipeline.
///
/// # Errors
/// This run has ended.
pub fn needed_ended(
    run: &Run,
    (other, pipeline): (RunId, Option<&Name>),
    status: Status,
    given: &Given<'_>,
) -> Result<Decision, Error> {
    run.must_live()?;
    let left = match run.blocked.as_deref() {
        Some(BlockedOn::Runs(unmet)) if unmet.contains(&other) => {
            BlockedOn::Runs(unmet.iter().copied().filter(|id| *id != other).collect())
        }
        Some(BlockedOn::Pipelines(unmet)) if pipeline.is_some_and(|ended| unmet.contains(ended)) => {
            BlockedOn::Pipelines(unmet.iter().filter(|name| Some(*name) != pipeline).cloned().collect())
        }
        Some(BlockedOn::Runs(_) | BlockedOn::Pipelines(_) | BlockedOn::Lock(_) | BlockedOn::Cap(_))
        | None => return Ok(Decision::new()),
    };
    if status != Status::Completed {
        return Ok(needed_failed(run, other, status, given));
    }
    let met = match &left {
        BlockedOn::Runs(left) => left.is_empty(),
        BlockedOn::Pipelines(left) => left.is_empty(),
        BlockedOn::Lock(_) | BlockedOn::Cap(_) => false,
    };
    Ok(match met {
        true => Decision::new().fact(PipelineUnblocked { id: run.id(), epoch: None }),
        false => Decision::new().fact(PipelineBlocked { id: run.id(), on: left }),
    })
}

/// A run that needs one that did not complete fails, before it has begun.
#[must_use]
pub fn needed_failed(run: &Run, other: RunId, status: Status, given: &Given<'_>) -> Decision {
    let message = alloc::format!("run {other}, which it needs, ended as {status}");
    let duration_ms = given.at.since(run.born.created_at).0;
    pipeline::failed(run, duration_ms, None, Failure::new(Code::StepFailed, message))
}

/// Nothing of the run is leased until it is resumed, and nothing of the runs that it called. What is under way, goes on.
/// It leaves the lines in which it waits for locks and slots, so that it keeps nobody waiting; what it holds, it keeps.
///
/// # Errors
/// It has ended, is suspended, or is being cancelled.
pub fn suspend(run: &Run, reason: Option<String>) -> Result<Decision, Error> {
    run.must_live()?;
    if run.suspended || run.stopping.is_some() {
        return Err(run.refuse("be suspended"));
    }
    let asked = PipelineSuspend { id: run.id(), reason: reason.clone() };
    let mut out = Decision::new().fact(asked).fact(PipelineSuspended { id: run.id(), reason });
    if let Some(BlockedOn::Lock(lock)) = run.blocked.as_deref() {
        out.follow.push(Follow::LetGoLock { lock: run.scoped(lock), holder: run.holder() });
    }
    out.follow.extend(run.live().filter_map(|step| gate::leave_line(run, step)));
    Ok(out)
}

/// The runs that a run has called and that have not ended, as far as it knows.
pub(crate) fn called(run: &Run) -> impl Iterator<Item = RunId> {
    run.live().filter(|step| step.status == step::Status::Running).filter_map(Step::child)
}

/// A suspended run goes on; variables and a message may be changed on the way. A run that waits out a back-off is
/// tried at once. What changed variables mean for steps and approvals is `renewal`'s, in the same turn.
///
/// # Errors
/// It has ended, or there is nothing to resume.
pub fn resume(
    run: &Run,
    def: &Pipeline,
    message: Option<String>,
    vars: Option<Value>,
    given: &Given<'_>,
) -> Result<Decision, Error> {
    run.must_live()?;
    let delayed = |step: &&Step| {
        step.status == step::Status::FailedRetryable
            || step.waiting.as_ref().is_some_and(|waiting| waiting.reason == Wait::Executor)
    };
    let backoff: Vec<&Step> = run.live().filter(delayed).collect();
    if !run.suspended && backoff.is_empty() && vars.is_none() && message.is_none() {
        let unknown = run.live().find(|step| step.status == step::Status::OutcomeUnknown);
        return Err(match unknown {
            Some(step) => Error::Unknown(run.id(), step.id.clone()),
            None => run.refuse("be resumed"),
        });
    }
    let mut out = Decision::new().fact(PipelineResume {
        id: run.id(),
        message: message.clone().map(Private::New),
        vars: Private::New(vars.clone().unwrap_or_else(|| Value::Object(serde_json::Map::new()))),
    });
    if let Some(vars) = vars {
        // Those of a called run are part of what was approved of its caller.
        if run.born.parent.is_some() {
            return Err(Error::Called(run.id()));
        }
        out = out.fact(PipelineUpdated {
            id: run.id(),
            vars: Private::New(vars),
            message: None,
            user: given.by.asker(),
        });
    }
    if run.suspended {
        out = out.fact(PipelineResumed { id: run.id(), message: message.map(Private::New) });
        if let Some(BlockedOn::Lock(lock)) = run.blocked.as_deref() {
            out.follow.push(stand_in_line(run, def, lock));
        }
        out.follow.extend(run.live().filter_map(|step| gate::line_up(run, step)));
    } else if let Some(message) = message {
        out = out.fact(checkpoint_message(run, message));
    }
    for step in backoff {
        let after = step.waiting.as_ref().map_or(Wait::Backoff, |waiting| waiting.reason);
        let input = step::Input::Open { after, on: None, epoch: None };
        out.facts.extend(step.decide(run.id(), &input, given.at)?.facts);
    }
    Ok(out)
}

/// A message on the run.
#[must_use]
pub fn checkpoint_message(run: &Run, message: String) -> CheckpointSaved {
    CheckpointSaved {
        pipeline_id: run.id(),
        step: None,
        epoch: None,
        resumable: false,
        idempotent: false,
        tokens_input: None,
        tokens_output: None,
        message: Some(Private::New(message)),
        data: None,
    }
}

/// Cancels a run: nothing new starts forward, executors are told to stop, and the flow ends what need not be waited
/// for, open approvals with it. A run that has not begun is over at once.
///
/// # Errors
/// It has ended. A second cancel is tolerated and changes nothing: people press twice. After a deadline or the loss of
/// a lock the first one counts, because only a wish stops what handles the failure.
pub fn cancel(
    run: &Run,
    initiator: Initiator,
    user: Option<Name>,
    reason: Option<String>,
    given: &mut Given<'_>,
) -> Result<Decision, Error> {
    run.must_live()?;
    if run.stopping.is_some() && !run.stop_fails() {
        return Ok(Decision::new());
    }
    let mut out = Decision::new();
    if initiator.asks() {
        out = out.fact(PipelineCancel { id: run.id(), reason: reason.clone() });
    }
    out = out.fact(PipelineCancelling { id: run.id(), initiator, user, reason });
    if run.started_at.is_none() {
        let duration_ms = given.at.since(run.born.created_at).0;
        out =
            out.fact(crate::event::PipelineCancelled { id: run.id(), duration_ms, compensated: Vec::new() });
        if let Some(lock) = &run.born.lock {
            out.follow.push(Follow::LetGoLock { lock: run.scoped(lock), holder: run.holder() });
        }
        return Ok(out);
    }
    for step in run.live() {
        let under_way = step.status == step::Status::Running && step.group.is_none();
        if under_way && step.section.stopped_by(initiator) {
            gate::stop(run, step, &mut out);
        }
    }
    Ok(out)
}

/// Looks at the clock: the first of what is due by now and changes something, or else all that is to be done about the
/// rest. One change may end what is due beside it, as when a group and its member run out of time together, so the turn
/// looks again after each.
///
/// # Errors
/// None that a tick on an ended run would be worth: that is an empty decision.
pub fn tick(run: &Run, def: &Pipeline, given: &mut Given<'_>) -> Result<Decision, Error> {
    if run.is_terminal() {
        return Ok(Decision::new());
    }
    if run.stopping.is_none() && run.born.deadline_at.is_some_and(|deadline| deadline <= given.at) {
        let reason = Some(String::from("its deadline passed"));
        if run.started_at.is_none() {
            let duration_ms = given.at.since(run.born.created_at).0;
            let failure = Failure::new(Code::TimedOut, "its deadline passed before it began");
            let mut out = pipeline::failed(run, duration_ms, None, failure);
            if let Some(lock) = &run.born.lock {
                out.follow.push(Follow::LetGoLock { lock: run.scoped(lock), holder: run.holder() });
            }
            return Ok(out);
        }
        return cancel(run, Initiator::Timeout, None, reason, given);
    }
    if let Some(since) = run.silent_since().filter(|_| run.rare().orphaned_at.is_none())
        && since + ORPHAN_AFTER <= given.at
    {
        return Ok(orphaned(run, def, Some(since)));
    }
    for (id, approval) in &run.rare().approvals {
        if approval.due().is_some_and(|due| due <= given.at) {
            let expired = gate::decide_approval(run, *id, &crate::approval::Input::Expire, false, given)?;
            return Ok(expired.answer(()).0);
        }
    }
    let (mut out, at) = (Decision::new(), given.at);
    for step in run.live().filter(|step| step.due().is_some_and(|due| due <= at)) {
        let moved = step_due(run, def, step, given)?;
        if !moved.facts.is_empty() {
            return Ok(moved);
        }
        out.join(moved);
    }
    Ok(out)
}

/// Whether a `wait` whose event did not come goes on all the same.
fn continues_on_timeout(def: &Pipeline, step: &Step) -> bool {
    def.node(step.node).is_some_and(|node| {
        matches!(&node.kind, Kind::Wait { wait: WaitFor::Event { continue_on_timeout: true, .. } })
    })
}

fn step_due(run: &Run, def: &Pipeline, step: &Step, given: &mut Given<'_>) -> Result<Decision, Error> {
    let epoch = step.epoch;
    let mut out = Decision::new();
    match (step.status, step.waiting.as_ref().map(|w| w.reason)) {
        (step::Status::Running, _) if step.group.is_some() => {
            out = pipeline::group_overdue(run, def, step, given);
        }
        // The executor is told to stop, and what it reports counts as timed out.
        (step::Status::Running, _) => gate::stop(run, step, &mut out),
        (step::Status::FailedRetryable, _) if !run.suspended => {
            let input = step::Input::Open { after: Wait::Backoff, on: None, epoch: None };
            out.facts.extend(step.decide(run.id(), &input, given.at)?.facts);
        }
        (step::Status::WaitingExternal, Some(Wait::Executor)) => {
            let input = step::Input::Open { after: Wait::Executor, on: None, epoch: None };
            out.facts.extend(step.decide(run.id(), &input, given.at)?.facts);
        }
        (step::Status::WaitingExternal, Some(Wait::Timer)) => {
            pipeline::end(
                run,
                step,
                step::Input::Succeed { epoch, output: None, reused_from: None },
                given,
                &mut out,
            );
        }
        (step::Status::WaitingExternal, Some(Wait::Event)) => {
            let goes_on = continues_on_timeout(def, step);
            let input = if goes_on {
                let output = Some(serde_json::json!({ "timed_out": true }));
                step::Input::Succeed { epoch, output, reused_from: None }
            } else {
                let failure = Failure::new(Code::TimedOut, "the event did not come in time");
                step::Input::Fail { epoch, failure, retry_at: None }
            };
            pipeline::end(run, step, input, given, &mut out);
        }
        (step::Status::WaitingExternal, Some(Wait::Guard | Wait::GuardAfter)) => {
            let after = step.waiting.as_ref().is_some_and(|w| w.reason == Wait::GuardAfter);
            let node = step.node;
            out.effects.push(Effect::GatherGuard { run: run.id(), step: step.id.clone(), node, after });
        }
        // An approval's own expiry ends its step; the others have no time of their own.
        (
            step::Status::FailedRetryable
            | step::Status::WaitingApproval
            | step::Status::WaitingExternal
            | step::Status::Pending
            | step::Status::Ready
            | step::Status::OutcomeUnknown
            | step::Status::Succeeded
            | step::Status::Skipped
            | step::Status::Failed
            | step::Status::Cancelled,
            _,
        ) => {}
    }
    Ok(out)
}

/// The facts of a run, each wait and each back-off among them with the timer that it begins.
pub(crate) fn with_timers(run: RunId, facts: Vec<Event>) -> Vec<Event> {
    let timer = |fact: &Event| {
        let (step, until) = match fact {
            Event::StepWaiting(e) if matches!(e.reason, Some(Wait::Timer | Wait::Event | Wait::Executor)) => {
                (&e.step, e.until?)
            }
            Event::StepRetrying(e) => (&e.step, e.next_eligible_at),
            // tidy: nothing else of a run begins a timer.
            _ => return None,
        };
        let id = Name::clean(&alloc::format!("{run}/{step}"));
        let (pipeline_id, step) = (Some(run), Some(step.clone()));
        Some(Event::from(TimerStart { id, pipeline_id, step, until: Some(until) }))
    };
    if !facts.iter().any(|fact| timer(fact).is_some()) {
        return facts;
    }
    let both = facts.into_iter().flat_map(|fact| {
        let timer = timer(&fact);
        core::iter::once(fact).chain(timer)
    });
    both.collect()
}

/// An external event arrives: for the step that waits for it, or kept until one does. A key must be the wait's own;
/// without one the run is all that was named, and any wait of it for the event is meant.
///
/// # Errors
/// The run has ended, or keeps too many already.
pub fn signal(
    run: &Run,
    name: &Name,
    key: Option<&Name>,
    data: &Value,
    (event_id, source, asked_by): (Option<&Name>, Option<&Name>, Vec<Name>),
    given: &Given<'_>,
) -> Result<Decision, Error> {
    run.must_live()?;
    let waits = |wanted: Option<Option<&Name>>| {
        let for_it = move |w: &Waiting| {
            w.reason == Wait::Event
                && w.on.as_ref() == Some(name)
                && wanted.is_none_or(|key| w.key.as_ref() == key)
        };
        run.live().find(|step| step.waiting.as_deref().is_some_and(for_it))
    };
    let waiting = waits(Some(key)).or_else(|| if key.is_none() { waits(None) } else { None });
    if waiting.is_none() && run.rare().signals.len() >= SIGNALS_MAX {
        return Err(Error::TooMany(run.id(), SIGNALS_MAX, "early events"));
    }
    let mut out = Decision::new().fact(SignalReceived {
        pipeline_id: run.id(),
        name: name.clone(),
        key: key.cloned(),
        source: source.cloned(),
        event_id: event_id.cloned(),
        data: Private::New(data.clone()),
        asked_by: run.new_requesters(asked_by),
    });
    if let Some(step) = waiting {
        let (pipeline_id, id) = (run.id(), step.id.clone());
        out = out.fact(SignalConsumed { pipeline_id, step: id, name: name.clone(), key: key.cloned() });
        let input = step::Input::Succeed { epoch: step.epoch, output: Some(data.clone()), reused_from: None };
        pipeline::end(run, step, input, given, &mut out);
    }
    Ok(out)
}

/// The run's executor has been silent for longer than an orphan may be: recovery found it so, or nobody took its step since.
#[must_use]
pub fn orphaned(run: &Run, def: &Pipeline, last_heartbeat_at: Option<Millis>) -> Decision {
    let asks = |step: &Step| attempt::resume(run, def.node(step.node), step) == attempt::Resume::Ask;
    let resumed = !run.live().any(asks);
    Decision::new().fact(PipelineOrphaned { id: run.id(), last_heartbeat_at, resumed })
}

/// The facts of a run that goes on from another of its lineage: `from` absent retries what did not succeed, present
/// goes on from that step. What succeeded before is taken over; of an item's result, where the new run has the same item.
/// `back` are the steps that undos took back.
///
/// # Errors
/// A retry of a run that is not `failed`, or a step that is not there.
pub fn descend(
    run: &Run,
    def: &Pipeline,
    new: RunId,
    from: Option<&StepId>,
    back: &BTreeSet<u32>,
    created: PipelineCreated,
    by: Vec<Name>,
) -> Result<Decision, Error> {
    if from.is_none() && run.status() != Status::Failed {
        return Err(run.refuse("be retried"));
    }
    let cut = match from {
        Some(step) => Some(
            run.place(step)
                .ok_or_else(|| Error::Missing("step", alloc::string::ToString::to_string(step)))?,
        ),
        None => None,
    };
    let steps = kept(run, def, (cut, back), created.runbook_hash == run.born.home.runbook);
    let before = run.born.lineage();
    let lineage = Lineage {
        resumed_from: Some(run.id()),
        resume_count: before.resume_count + 1,
        forked_at: from.cloned(),
        ..before
    };
    // Whoever made the earlier run what it is, and whoever goes on from it.
    let mut asked_by = run.rare().changed_by.clone();
    requesters::add(&mut asked_by, by);
    let asked_by = Some(asked_by).filter(|names| !names.is_empty());
    let created = PipelineCreated { id: new, lineage, asked_by, ..created };
    let out = Decision::new().fact(created);
    if steps.is_empty() {
        return Ok(out);
    }
    Ok(out.fact(PipelineInherited { id: new, from: run.id(), steps: Private::New(steps) }))
}

/// What a run that goes on from this one takes over: what succeeded before the cut and was not taken back, by the run itself
/// or by an undo (`back`). A group of which nothing is missing is taken over whole. `same` says that it has the same runbook.
pub(crate) fn kept(
    run: &Run,
    def: &Pipeline,
    (cut, back): (Option<u32>, &BTreeSet<u32>),
    same: bool,
) -> Vec<Inherited> {
    let succeeded = |step: &&Step| step.status == step::Status::Succeeded;
    // What was taken back has to be done again, and so has what stands in a group that was.
    let mut undone: BTreeSet<u32> =
        run.steps.iter().filter(succeeded).filter_map(|step| step.compensates).collect();
    undone.extend(back);
    let stands = |place: u32, step: &Step| {
        cut.is_none_or(|cut| place < cut)
            && !undone.contains(&place)
            && !pipeline::around(run, step).any(|(group, _)| undone.contains(&group))
            // Who approved was shown the steps of one runbook; another one asks again.
            && (same && !run.asks_again(step) || step.tool.as_str() != "approve")
    };
    let each = || (0..).zip(&run.steps).filter(|(_, step)| step.section == Section::Main);
    let missing =
        |(place, step): &(u32, &Step)| cut == Some(*place) || succeeded(step) && !stands(*place, step);
    // Of these groups something has to be done again.
    let mut parts: BTreeSet<u32> = BTreeSet::new();
    for (_, step) in each().filter(missing) {
        parts.extend(pipeline::around(run, step).map(|(group, _)| group));
    }
    let mut items = items::Known::default();
    let mut kept = |(place, step): (u32, &Step)| {
        let worth = succeeded(&step) && stands(place, step) && !parts.contains(&place);
        let of = worth.then(|| items.of(run, step))?;
        // An item that is no longer known is nobody's: its step is carried out again.
        let of = of.ok()?;
        let made_of = || Some(items::made_of(def, def.node(step.node)?, step.item, step.input.as_ref()));
        Some(Inherited {
            step: step.id.clone(),
            from: items::inherited(run, &step.id, of).map_or(run.id(), |earlier| earlier.from),
            // A group gives what its members give.
            output: step.output().filter(|_| step.group.is_none()),
            items: of,
            question: match step.group {
                Some(_) => made_of(),
                None => scope::question(run, def, step),
            },
            child: step.child(),
            attempt: step.group.map(|_| step.attempt),
        })
    };
    each().filter_map(&mut kept).collect()
}
