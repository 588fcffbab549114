//! Attempts: who carries a step out, under which lease, and what they report.
//!
//! A lease is the permission to act. It is given only for a step that has passed its gates, under the policy in
//! force, and it is one commit with the intent. Whatever comes back is checked against the epoch: of two who
//! believe to have the step, one is right.

use crate::budget::{self, Amount, Cost, Limits};
use crate::code::Code;
use crate::effect::{Effect, Lease};
use crate::event::{CheckpointSaved, CostRecorded, Event, SecretUsed, ShellExited};
use crate::gate;
use crate::id::{AgentId, Name, RunId, StepId};
use crate::machine::{Decision, Given};
use crate::pipeline;
use crate::receipt;
use crate::reversal;
use crate::run::{Error, Run, Section};
use crate::runbook::{KeyScope, Kind, Pipeline, StepDef};
use crate::scope;
use crate::step::{self, Failure, Resolution, Status, Step, Wait};
use crate::task;
use crate::time::{Millis, Span};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde_json::Value;

/// How long to wait after the first, second, third and every later failure, where nobody says otherwise.
pub const BACKOFF: [Span; 4] = [Span::secs(5), Span::secs(30), Span::mins(2), Span::mins(10)];
/// How often a tool is tried where nobody says otherwise. A shell command is tried once.
pub const TOOL_TRIES: u32 = 5;
/// How long a step of `on_failure`, `compensate` or `finally` may take where nobody says otherwise.
pub const ENDING_MAX: Span = Span::hours(1);
/// The tool that is paid by tokens.
const MODEL: &str = "model";

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code.
    pub code: i32,
    /// What kept it apart from its server or executor, as that says.
    pub wall: Option<Name>,
}

impl From<i32> for Exit {
    fn from(code: i32) -> Exit {
        Exit { code, wall: None }
    }
}

/// What an executor says of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// It is done.
    Done { output: Option<Value>, exit_code: Option<Exit> },
    /// It failed. `retryable` is what the tool knows; `timed_out` that its time was up.
    Failed { failure: Failure, retryable: bool, exit_code: Option<Exit>, signal: Option<i32> },
    /// It failed and may be tried again, but the other side asked not to be bothered for this long.
    Deferred { failure: Failure, after: Span },
    /// It was stopped as asked.
    Stopped,
    /// It was not begun.
    Returned { reason: Option<String> },
    /// It could not be begun for lack of room where it was leased, and is to be tried again after this long.
    Postponed { reason: String, after: Span },
    /// The executor is gone: `last_seen` is its last heartbeat.
    Lost { last_seen: Option<Millis> },
}

/// The longest that another side can make a step wait; who asks for more is asked again after this.
pub const DEFER_MAX: Span = Span::hours(1);

/// How many tries a step has in all.
#[must_use]
pub fn tries(node: &StepDef) -> u32 {
    node.retry.max_attempts.unwrap_or(match &node.kind {
        Kind::Tool { .. } => TOOL_TRIES,
        Kind::Run { .. }
        | Kind::Agent { .. }
        | Kind::Parallel { .. }
        | Kind::Steps { .. }
        | Kind::Strategy { .. }
        | Kind::Call { .. }
        | Kind::Approve { .. }
        | Kind::Wait { .. } => 1,
    })
}

/// When a failed attempt is tried again, if it is: never after a deny, a rejection or an unknown outcome.
pub fn retry_at(
    run: &Run,
    node: &StepDef,
    step: &Step,
    failure: &Failure,
    retryable: bool,
    given: &mut Given<'_>,
) -> Option<Millis> {
    let final_codes = [
        Code::PolicyDenied,
        Code::ApprovalRejected,
        Code::ApprovalExpired,
        Code::OutcomeUnknown,
        Code::Cancelled,
    ];
    let is_final = final_codes.iter().any(|code| code.as_str() == failure.code.as_str());
    if is_final || run.stops(step.section) || step.failures + 1 >= step.max_attempts {
        return None;
    }
    let listed = node.retry.on.iter().any(|text| failure.message.contains(text.as_str()));
    // A step that asks for tries means any failure, unless it says which. A tool knows which of its failures are final.
    let knows = matches!(node.kind, Kind::Tool { .. });
    let asked = node.retry.max_attempts.is_some() && node.retry.on.is_empty() && !knows;
    if !(retryable && node.retry.on.is_empty() || listed || asked) {
        return None;
    }
    let list = if node.retry.backoff.is_empty() { &BACKOFF[..] } else { &node.retry.backoff[..] };
    let span = *list.get(step.failures as usize).or(list.last())?;
    let at = given.at + given.jitter(span);
    // There is no point in waiting past the deadline, but what cleans up after it is not bound by it.
    let deadline = run.born.deadline_at.filter(|_| step.section == Section::Main);
    deadline.is_none_or(|deadline| at < deadline).then_some(at)
}

/// What an executor asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// Who it is.
    pub owner: &'a Name,
    /// The agent that will work, where one does.
    pub agent: Option<AgentId>,
    /// What the attempt may cost.
    pub reserve: Amount,
}

/// Leases a step: facts and the permission to act, which is released after the commit. Where the budget does not
/// reach, or policy has to be asked again, the step waits and there is no lease.
///
/// # Errors
/// The run has ended or is stopped, policy has not allowed the step, a gate is closed, or it is leased already.
pub fn lease(
    run: &Run,
    def: &Pipeline,
    node: &StepDef,
    step: &Step,
    wish: &Wish<'_>,
    given: &mut Given<'_>,
) -> Result<Decision<Option<Lease>>, Error> {
    run.must_live()?;
    // A group that is being stopped may not have been told so yet: that can be a later turn's.
    let stopped = run.stops(step.section) || pipeline::halted(run, step, given);
    if run.suspended || stopped || pipeline::is_kept_out(run, step) {
        return Err(run.refuse("start a step"));
    }
    let settled = !run.is_stale(step) && !run.is_unsettled() && run.is_answered(step);
    let free = settled && run.allowed(step, Some(&given.policy)) && run.released(step);
    if step.status == Status::Ready && !free {
        // Policy moved since it was asked, or the variables did: what is to be asked again is, and the step waits.
        let passed = gate::pass(run, def, node, step, given);
        let Some(passed) = passed else { return Err(Error::Policy(step.id.clone())) };
        return Ok(passed.answer(None).0);
    }
    let (ttl, owner) = (given.lease_ttl, wish.owner);
    let timeout = timeout(node, step);
    let input =
        step::Input::Lease { owner: Some(owner.clone()), ttl, timeout, agent: wish.agent, child: None };
    let started = step.decide(run.id(), &input, given.at)?;
    let mut facts = Vec::new();
    if run.budget().limits != Limits::default() {
        let amount = wish.reserve.plus(needs(run, node, step));
        let reserve = budget::Input::Reserve { step: step.id.clone(), epoch: step.epoch, amount };
        let reserved = run.budget().decide(&reserve, given.at)?;
        facts = reserved.facts;
        if let budget::Reply::Exceeded(excess) = reserved.reply {
            let on = Some(Name::clean(excess.dimension.as_str()));
            let input = step::Input::Wait { reason: Wait::Budget, on, key: None, until: None, output: None };
            facts.extend(step.decide(run.id(), &input, given.at)?.facts);
            let waits = Decision { facts, ..Decision::reply(None) };
            return Ok(waits.then(gate::release(run, step)));
        }
    }
    let lease = Lease {
        run: run.id(),
        step: step.id.clone(),
        attempt: step.attempt,
        epoch: step.epoch,
        tool: step.tool.clone(),
        input: step.input(),
        vars: run.vars_of(step).clone(),
        idempotency_key: key(run, node, step),
        // Steps that an older version has prepared do not say.
        semantics: step.semantics.or_else(|| scope::semantics(node, false)),
        expires_at: given.at + ttl,
        timeout_at: timeout.map(|span| given.at + span),
        owner: owner.clone(),
        node: step.node,
    };
    let effect = Effect::Execute(Box::new(lease.clone()));
    let mut out = Decision { facts, ..Decision::reply(Some(lease)) };
    out.join(started);
    Ok(out.effect(effect))
}

/// How long an attempt may take. What runs at the end of a run is bounded also where nobody says how, because the run's
/// deadline and a cancel do not stop it.
#[must_use]
pub fn timeout(node: &StepDef, step: &Step) -> Option<Span> {
    node.timeout.or_else(|| ending_max(step))
}

/// The longest that a step which runs at the end of a run may take, or wait, where nobody says how long.
pub(crate) fn ending_max(step: &Step) -> Option<Span> {
    match step.section {
        Section::Main => None,
        Section::OnFailure | Section::Compensate | Section::Finally => Some(ENDING_MAX),
    }
}

/// What an attempt at the step is known to need before it begins, in the dimensions that the run's budget limits. What can
/// cost something and does not say how much needs the least there is: it begins as long as anything is left.
fn needs(run: &Run, node: &StepDef, step: &Step) -> Amount {
    let limits = run.budget().limits;
    let thinks = matches!(&node.kind, Kind::Agent { .. }) || step.tool.as_str() == MODEL;
    let asked = || Some(step.input()?.get("fields")?.get("max_tokens")?.as_u64()?.max(1));
    let least =
        |limit: Option<u64>, needs: bool, amount: u64| if limit.is_some() && needs { amount } else { 0 };
    Amount {
        usd_micros: least(limits.usd_micros, thinks, 1),
        tokens: least(limits.tokens, thinks, asked().unwrap_or(1)),
        time_ms: least(limits.time_ms, true, node.timeout.map_or(1, |span| span.0.max(1))),
        writes: least(limits.writes, writes(node), 1),
    }
}

/// Whether the step writes to the outside.
fn writes(node: &StepDef) -> bool {
    matches!(&node.kind, Kind::Tool { writes: true, .. })
}

/// What an attempt that is over took of the run's time and writes, where the budget limits them. Money and tokens are
/// reported by who knows them.
fn own_cost(
    run: &Run,
    node: &StepDef,
    step: &Step,
    input: &step::Input,
    given: &Given<'_>,
) -> Option<CostRecorded> {
    if !matches!(&node.kind, Kind::Run { .. } | Kind::Tool { .. } | Kind::Agent { .. }) {
        return None;
    }
    let limits = run.budget().limits;
    // Tokens that a command saved with its progress are spent by it; agents and models report their own.
    let saved = run.rare().checkpoints.get(&step.id).filter(|saved| saved.epoch == Some(step.epoch));
    let saved = saved.filter(|_| matches!(&node.kind, Kind::Run { .. }));
    let (tokens_input, tokens_output) = saved.and_then(|saved| saved.tokens).unwrap_or_default();
    let lease = step.lease.as_ref().filter(|_| step.status == Status::Running)?;
    // Heartbeats move no fact, so a lease still says when it was given.
    let begun = Millis(lease.expires_at.0.saturating_sub(given.lease_ttl.0));
    let time_ms = limits.time_ms.map(|_| given.at.since(begun).0).filter(|&took| took > 0);
    // What was refused or never begun has not written; of what is lost or stopped nobody knows.
    let wrote = !matches!(input, step::Input::Fail { .. } | step::Input::Return { .. });
    let writes = limits.writes.filter(|_| wrote && writes(node)).map(|_| 1);
    if time_ms.is_none() && writes.is_none() && tokens_input + tokens_output == 0 {
        return None;
    }
    Some(CostRecorded {
        pipeline_id: run.id(),
        step: step.id.clone(),
        epoch: step.epoch,
        provider: Name::clean(budget::OWN),
        model: step.tool.clone(),
        usd_micros: 0,
        tokens_input,
        tokens_output,
        time_ms,
        writes,
    })
}

/// What identifies the step's side effect: what the tool is given, the intent stands under and a probe asks for.
#[must_use]
pub fn key(run: &Run, node: &StepDef, step: &Step) -> Name {
    let lineage = reversal::lineage(run, step);
    // A tool's call that reaches over the whole tenant is known by what it does to what, and with which values.
    let own = match (&step.key, node.key_scope, &node.kind) {
        (None, KeyScope::Tenant, Kind::Tool { .. }) => Some(scope::action(run, node, step).key()),
        (None | Some(_), _, _) => None,
    };
    let declared = step.key.as_ref().or(own.as_ref()).map(Name::as_str);
    let reach = match node.key_scope {
        KeyScope::Tenant if declared.is_some() => receipt::KeyScope::Tenant,
        KeyScope::Tenant | KeyScope::Lineage => receipt::KeyScope::Lineage(&lineage),
    };
    // Only a tenant's key that nobody declared cannot be made, and that is not asked for here.
    let scoped = receipt::scoped_key(reach, &step.id, step.item, declared);
    scoped.unwrap_or_else(|_| Name::clean(&alloc::format!("{}/{}", lineage.root_run, step.id)))
}

/// Whether a report says once more what the step came to under this epoch. It is answered as the first one was.
#[must_use]
pub fn is_repeat(step: &Step, epoch: u64, report: &Report) -> bool {
    let came_to = match report {
        Report::Done { .. } => step.status == Status::Succeeded,
        Report::Failed { .. } => matches!(step.status, Status::Failed | Status::FailedRetryable),
        Report::Stopped => step.status == Status::Cancelled,
        Report::Deferred { .. } => step.status == Status::FailedRetryable,
        // What was handed back, or lost, is another attempt's by now.
        Report::Returned { .. } | Report::Postponed { .. } | Report::Lost { .. } => false,
    };
    came_to && step.epoch == epoch
}

/// Takes an executor's report.
///
/// # Errors
/// The epoch is stale, nobody carries the step out, or the run has ended.
pub fn report(
    run: &Run,
    node: &StepDef,
    step: &Step,
    epoch: u64,
    report: &Report,
    given: &mut Given<'_>,
) -> Result<Decision, Error> {
    step.must_be_attempted(epoch)?;
    let mut out = Decision::new();
    let exited = |exit: &Option<Exit>, signal: Option<i32>, out: &mut Decision| {
        if let Some(Exit { code: exit_code, wall }) = exit.clone() {
            let (pipeline_id, step) = (run.id(), step.id.clone());
            out.facts.push(ShellExited { pipeline_id, step, exit_code, epoch, signal, wall }.into());
        }
    };
    let stopping = run.stops(step.section);
    let input = match report {
        Report::Done { output, exit_code } => {
            exited(exit_code, None, &mut out);
            done(run, node, step, epoch, output.clone(), given)?
        }
        Report::Failed { failure, retryable, exit_code, signal } => {
            exited(exit_code, *signal, &mut out);
            if stopping {
                fence(step, epoch)?;
                step::Input::Cancel { reason: Some(failure.message.clone()) }
            } else {
                failing(run, node, step, epoch, failure.clone(), *retryable, given)
            }
        }
        Report::Deferred { failure, .. } if stopping => {
            fence(step, epoch)?;
            step::Input::Cancel { reason: Some(failure.message.clone()) }
        }
        Report::Deferred { failure, after } => {
            let input = failing(run, node, step, epoch, failure.clone(), true, given);
            deferred(run, step, input, given.at + (*after).min(DEFER_MAX))
        }
        Report::Stopped => {
            fence(step, epoch)?;
            match timed_out(step, given.at) {
                Some(failure) if !stopping => failing(run, node, step, epoch, failure, true, given),
                Some(_) | None => step::Input::Cancel { reason: None },
            }
        }
        // The executor is gone, but what it saved serves instead of a repeat.
        Report::Lost { .. } if is_saved(run, node, step) => {
            fence(step, epoch)?;
            let saved = run.rare().checkpoints.get(&step.id);
            done(run, node, step, epoch, saved.and_then(|saved| saved.data.clone()), given)?
        }
        Report::Returned { reason } if !stopping => step::Input::Return { epoch, reason: reason.clone() },
        Report::Postponed { reason, after } if !stopping => {
            let input = step::Input::Return { epoch, reason: Some(reason.clone()) };
            let out = settle(run, node, step, &input, out, given)?;
            return postponed(run, step, (reason, *after), out, given);
        }
        Report::Lost { last_seen } if !stopping || step.semantics.is_some() => {
            // Of an outside write the effect key decides, which knows nothing of checkpoints.
            let again = !step.writes() && resume(run, Some(node), step) == Resume::Replay;
            step::Input::Lose { epoch, last_seen: *last_seen, again }
        }
        Report::Returned { .. } | Report::Postponed { .. } | Report::Lost { .. } => {
            fence(step, epoch)?;
            step::Input::Cancel { reason: None }
        }
    };
    settle(run, node, step, &input, out, given)
}

/// A step that was handed back waits before it is leased again: where it could not be begun, it could not at once either.
fn postponed(
    run: &Run,
    step: &Step,
    (reason, after): (&str, Span),
    mut out: Decision,
    given: &Given<'_>,
) -> Result<Decision, Error> {
    let ready = out.facts.iter().fold(step.clone(), |step, fact| step.apply(fact, given.at));
    let until = Some(given.at + after.min(DEFER_MAX));
    let on = Some(Name::clean(reason));
    let input = step::Input::Wait { reason: Wait::Executor, on, key: None, until, output: None };
    out.facts.extend(ready.decide(run.id(), &input, given.at)?.facts);
    Ok(out)
}

/// What an attempt that is done comes to: its declared outputs must be there, and its guards after are asked.
pub(crate) fn done(
    run: &Run,
    node: &StepDef,
    step: &Step,
    epoch: u64,
    output: Option<Value>,
    given: &mut Given<'_>,
) -> Result<step::Input, step::Error> {
    if let Some(missing) = missing_output(node, output.as_ref()) {
        return Ok(failing(run, node, step, epoch, Failure::new(Code::StepFailed, missing), false, given));
    }
    // A late success of a run that is being stopped counts as it is.
    if node.after.is_empty() || step.status != Status::Running || run.stops(step.section) {
        return Ok(step::Input::Succeed { epoch, output, reused_from: None });
    }
    fence(step, epoch)?;
    Ok(step::Input::Wait { reason: Wait::GuardAfter, on: None, key: None, until: None, output })
}

/// Feeds what became of an attempt, with all that follows: what has ended leaves, and what is unknown is looked into.
pub(crate) fn settle(
    run: &Run,
    node: &StepDef,
    step: &Step,
    input: &step::Input,
    mut out: Decision,
    given: &mut Given<'_>,
) -> Result<Decision, Error> {
    let decided = step.decide(run.id(), input, given.at)?;
    let after = decided.facts.iter().fold(step.clone(), |step, fact| step.apply(fact, given.at));
    out.facts.extend(decided.facts);
    let over = after.status != Status::Running || after.epoch != step.epoch;
    out.facts.extend(own_cost(run, node, step, input, given).filter(|_| over).map(Event::from));
    if after.status.is_terminal() {
        gate::leave(run, step, given, &mut out);
    } else if after.epoch != step.epoch {
        let release = budget::Input::Release { step: step.id.clone(), epoch: step.epoch };
        out.facts.extend(run.budget().decide(&release, given.at)?.facts);
    }
    if after.status == Status::OutcomeUnknown {
        return Ok(unknown(run, node, step, &after, out, given));
    }
    if after.waiting.as_ref().is_some_and(|w| w.reason == Wait::GuardAfter) {
        let (run, step, node) = (run.id(), step.id.clone(), step.node);
        return Ok(out.effect(Effect::GatherGuard { run, step, node, after: true }));
    }
    Ok(out)
}

/// Nobody knows whether the effect happened: ask the other side where it can be asked, else a human.
fn unknown(
    run: &Run,
    node: &StepDef,
    step: &Step,
    after: &Step,
    out: Decision,
    given: &mut Given<'_>,
) -> Decision {
    if after.waiting.as_ref().is_some_and(|w| w.on.is_some()) {
        let key = key(run, node, step);
        return out.effect(Effect::Probe { run: run.id(), step: step.id.clone(), epoch: step.epoch, key });
    }
    let message = alloc::format!(
        "Step {} of {} lost its executor between intent and receipt. Find out whether it happened, then: windlass resolve {} {} done|retry|fail",
        step.id,
        run.id(),
        run.id(),
        step.id
    );
    let notice = gate::notice(run, Some(step), crate::effect::Notice::Notify, &message, given);
    let title = crate::notice::title(crate::effect::Notice::Notify, Some(&step.id));
    let effect = Effect::Notify { notice: notice.notice, title, message, sound: true };
    out.fact(notice).effect(effect)
}

fn fence(step: &Step, reported: u64) -> Result<(), step::Error> {
    if reported == step.epoch {
        return Ok(());
    }
    Err(step::Error::StaleEpoch { step: step.id.clone(), current: step.epoch, reported })
}

pub(crate) fn timed_out(step: &Step, at: Millis) -> Option<Failure> {
    let overdue = step.timeout_at.is_some_and(|timeout| timeout <= at);
    overdue.then(|| Failure::new(Code::TimedOut, "the attempt took longer than its `timeout`"))
}

/// What a failed attempt comes to: another try, or the end.
pub(crate) fn failing(
    run: &Run,
    node: &StepDef,
    step: &Step,
    epoch: u64,
    failure: Failure,
    retryable: bool,
    given: &mut Given<'_>,
) -> step::Input {
    let retry_at =
        retry_at(run, node, step, &failure, retryable, given).filter(|_| step.status == Status::Running);
    step::Input::Fail { epoch, failure, retry_at }
}

/// A failed attempt that is tried again, but not before the other side said; there is no point in waiting past the
/// deadline.
fn deferred(run: &Run, step: &Step, input: step::Input, not_before: Millis) -> step::Input {
    let step::Input::Fail { epoch, failure, retry_at: Some(at) } = input else { return input };
    let deadline = run.born.deadline_at.filter(|_| step.section == Section::Main);
    let at = at.max(not_before);
    step::Input::Fail { epoch, failure, retry_at: Some(at).filter(|at| deadline.is_none_or(|end| *at < end)) }
}

/// The first declared output that is missing or of another type.
pub(crate) fn missing_output(node: &StepDef, output: Option<&Value>) -> Option<String> {
    node.outputs.iter().find_map(|(name, kind)| match output.and_then(|o| o.get(name.as_str())) {
        None => Some(alloc::format!("the output `{name}` is missing")),
        Some(value) if !kind.fits(value) => {
            Some(alloc::format!("the output `{name}` is not {}", kind.noun()))
        }
        Some(_) => None,
    })
}

/// A human or a probe settles an unknown outcome, or a human settles an escalation.
///
/// # Errors
/// The step is neither, or the run has ended.
pub fn resolve(
    run: &Run,
    step: &Step,
    resolution: Resolution,
    probed: bool,
    reason: Option<String>,
    output: Option<Value>,
    given: &mut Given<'_>,
) -> Result<Decision, Error> {
    run.must_live()?;
    let mut out = Decision::new();
    if step.status == Status::OutcomeUnknown {
        let input = step::Input::Resolve { epoch: step.epoch, resolution, probed, output, reason };
        let decided = step.decide(run.id(), &input, given.at)?;
        out.facts.extend(decided.facts);
        if resolution != Resolution::Retry {
            gate::leave(run, step, given, &mut out);
        }
        return Ok(out);
    }
    if step.status == Status::Running {
        return Err(Error::UnderWay(run.id(), step.id.clone()));
    }
    let human = |w: &step::Waiting| matches!(w.reason, Wait::Escalation | Wait::Budget);
    if step.status != Status::WaitingApproval || !step.waiting.as_deref().is_some_and(human) {
        return Err(run.refuse("settle that step"));
    }
    if let Some(task) = run.rare().tasks.get(&step.id).filter(|task| task.state == task::State::Escalated) {
        // The human's word is for the task and its session first.
        let settled = task.decide(&task::Input::Resolve { resolution, reason: reason.clone() }, given.at)?;
        let moved = settled.facts.iter().fold(run.clone(), |run, fact| run.apply(fact, given.at));
        let then = resolve(&moved, step, resolution, probed, reason, output, given)?;
        out = settled;
        out.join(then);
        return Ok(out);
    }
    let after = step.waiting.as_ref().map_or(Wait::Escalation, |w| w.reason);
    match resolution {
        Resolution::Retry => {
            out.facts.extend(
                step.decide(run.id(), &step::Input::Open { after, on: None, epoch: None }, given.at)?.facts,
            );
        }
        Resolution::Fail => {
            let message = reason.unwrap_or_else(|| "given up by a human".to_string());
            let failure = Failure::new(Code::TaskStuck, message);
            pipeline::end(
                run,
                step,
                step::Input::Fail { epoch: step.epoch, failure, retry_at: None },
                given,
                &mut out,
            );
        }
        Resolution::Done => {
            // What a human did by hand still goes the way of every step: ready, running, succeeded.
            let opened =
                step.decide(run.id(), &step::Input::Open { after, on: None, epoch: None }, given.at)?;
            let mut now = opened.facts.iter().fold(step.clone(), |step, fact| step.apply(fact, given.at));
            now.gates = Box::default();
            let owner = given.by.id.clone().or_else(|| Some(Name::clean(pipeline::OWN)));
            let input =
                step::Input::Lease { owner, ttl: Span::ZERO, timeout: None, agent: None, child: None };
            let started = now.decide(run.id(), &input, given.at)?;
            now = started.facts.iter().fold(now, |step, fact| step.apply(fact, given.at));
            out.facts.extend(opened.facts);
            out.facts.extend(started.facts);
            pipeline::end(
                run,
                &now,
                step::Input::Succeed { epoch: now.epoch, output, reused_from: None },
                given,
                &mut out,
            );
        }
    }
    Ok(out)
}

/// A step saves its progress, or a message is put on the run.
///
/// # Errors
/// The epoch is stale, the step is not running, or the run has ended.
pub fn checkpoint(run: &Run, saved: &CheckpointSaved) -> Result<Decision, Error> {
    run.must_live()?;
    if let Some(id) = &saved.step {
        let step = run.need(id)?;
        fence(step, saved.epoch.unwrap_or(0))?;
        if step.status != Status::Running {
            return Err(run.refuse("save a checkpoint"));
        }
    }
    Ok(Decision::new().fact(saved.clone()))
}

/// What the resume tree says of a step that was under way when its run is resumed elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// Its checkpoint's output serves.
    Reuse,
    /// It is run again.
    Replay,
    /// Nobody may decide but a human.
    Ask,
}

/// The resume tree: resumable → its saved output; idempotent or plain → again; else a human. A checkpoint is resumable
/// where it says so, or where the runbook says so of what the step saves.
#[must_use]
pub fn resume(run: &Run, node: Option<&StepDef>, step: &Step) -> Resume {
    let saved = run.rare().checkpoints.get(&step.id);
    let declared = node.and_then(|node| node.checkpoint.as_ref()).is_some_and(|def| def.resumable);
    match (saved, step.semantics) {
        (Some(checkpoint), _) if checkpoint.resumable || declared && checkpoint.data.is_some() => {
            Resume::Reuse
        }
        (Some(checkpoint), _) if checkpoint.idempotent => Resume::Replay,
        (_, None | Some(receipt::Semantics::Idempotent)) => Resume::Replay,
        (_, Some(receipt::Semantics::AtMostOnce | receipt::Semantics::Reconcile)) => Resume::Ask,
    }
}

/// Whether what a lost attempt saved serves instead of a repeat.
pub(crate) fn is_saved(run: &Run, node: &StepDef, step: &Step) -> bool {
    !run.stops(step.section)
        && step.status == Status::Running
        && !step.writes()
        && resume(run, Some(node), step) == Resume::Reuse
}

/// An attempt cost something. It counts even after the run's end: the money is spent.
///
/// # Errors
/// There is no such step, or a later attempt was settled already.
pub fn cost(
    run: &Run,
    step: &StepId,
    epoch: u64,
    costs: &[Cost],
    given: &Given<'_>,
) -> Result<Decision, Error> {
    run.need(step)?;
    let settle = budget::Input::Settle { step: step.clone(), epoch, costs: costs.to_vec() };
    Ok(run.budget().decide(&settle, given.at)?.answer(()).0)
}

/// An attempt, or a probe for what became of one, is about to use secrets.
///
/// # Errors
/// There is no such step, the epoch is stale, or the run has ended.
pub fn secrets(run: &Run, step: &StepId, epoch: u64, used: &[(Name, Name)]) -> Result<Decision, Error> {
    run.must_live()?;
    let step = run.need(step)?;
    fence(step, epoch)?;
    let fact = |(secret, version): &(Name, Name)| SecretUsed {
        pipeline_id: run.id(),
        step: step.id.clone(),
        epoch,
        secret: secret.clone(),
        version: version.clone(),
    };
    Ok(used.iter().map(fact).fold(Decision::default(), Decision::fact))
}

/// A human raises the budget: what waited for it goes on.
///
/// # Errors
/// The run has ended.
pub fn raise(run: &Run, to: Amount, given: &Given<'_>) -> Result<Decision, Error> {
    run.must_live()?;
    let (mut out, _) = run.budget().decide(&budget::Input::Raise { to }, given.at)?.answer(());
    let waits = |step: &&Step| step.waiting.as_ref().is_some_and(|w| w.reason == Wait::Budget);
    for step in run.live().filter(waits) {
        let input = step::Input::Open { after: Wait::Budget, on: None, epoch: None };
        out.facts.extend(step.decide(run.id(), &input, given.at)?.facts);
    }
    Ok(out)
}

/// Which steps of a run an executor's loss concerns.
pub fn held_by<'a>(run: &'a Run, owner: &'a Name) -> impl Iterator<Item = (RunId, &'a StepId, u64)> {
    run.live().filter(|step| step.is_executing()).filter_map(move |step| {
        let lease = step.lease.as_ref()?;
        (lease.owner == *owner).then_some((run.id(), &step.id, step.epoch))
    })
}
