//! Gates: what stands between a ready step and its lease.
//!
//! ```text
//! ready ─▶ policy ─▶ approval ─▶ lock ─▶ slots ─▶ guards ─▶ lease
//! ```
//!
//! Policy is asked outside and answers with a fact; a human is asked only for what policy or the runbook wants
//! approved; holds are taken after that, so no lock is held while a human sleeps; guards look last, at the world
//! in which the step will act.

mod asking;
pub use asking::decide_approval;
pub(crate) use asking::waiting_for;
use asking::{Asked, ask_again, release_bound, request};

use crate::approval::{self, Approval};
use crate::attempt;
use crate::budget;
use crate::code::Code;
use crate::effect::{Effect, Notice};
use crate::event::{
    GuardBlocked, GuardFailed, GuardPassed, GuardWarned, HoldBroken, HoldLost, NoticeRequested,
    PolicyDecided, StepSkipped,
};
use crate::follow::{Follow, Told};
use crate::guard::{self, GuardInputs, GuardResult, OnFailure};
use crate::id::{Name, NoticeId, RunId};
use crate::machine::{Decision, Given};
use crate::pipeline;
use crate::policy::{self, Purpose, Verdict};
use crate::private::Private;
use crate::renewal;
use crate::reversal;
use crate::run::{BlockedOn, Error, Initiator, Run, Status};
use crate::runbook::{Kind, Pipeline, StepDef};
use crate::schedule::Overlap;
use crate::scope;
use crate::step::{self, Failure, Gate, Skip, Step, Wait};
use crate::task;
use crate::time::Span;
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;

/// How long a cancelled attempt has to end by itself.
pub const GRACE: Span = Span::secs(10);
/// How long an approval waits where nobody says otherwise.
pub const APPROVAL_EXPIRES: Span = Span::hours(1);
/// Why a run is cancelled whose pipeline's lock another run has, and whose `overlap` says skip.
pub const OVERLAP: &str = "overlap";
/// How often a blocking guard is asked again.
pub const GUARD_EVERY: Span = Span::secs(5);

/// What the step's next gate asks for; none where it has passed them all.
pub(crate) fn pass(
    run: &Run,
    def: &Pipeline,
    node: &StepDef,
    step: &Step,
    given: &mut Given<'_>,
) -> Option<Decision> {
    if run.is_stale(step) {
        return Some(renewal::renew(run, def, node, step, given));
    }
    if run.is_unsettled() {
        // The flow looks at what was answered first.
        return Some(Decision::new());
    }
    if let Some((by, _)) = run.unanswered(step) {
        return Some(ask_again(run, def, step, by, given));
    }
    let asks_policy = step.group.is_none()
        && matches!(node.kind, Kind::Run { .. } | Kind::Tool { .. } | Kind::Agent { .. });
    if asks_policy {
        match run.policy().standing(&step.id, &step.tool, step.action_hash(), &given.policy) {
            None => return Some(ask_policy(run, node, step, given)),
            Some(decision) => match decision.verdict {
                Verdict::Allow => {}
                Verdict::Deny => {
                    let why = decision.reasons.join("; ");
                    return Some(pipeline::refuse(run, step, Code::PolicyDenied, &why, given));
                }
                Verdict::NeedsApproval if run.approved(step, &decision.policy_version) => {}
                Verdict::NeedsApproval => {
                    let decision = decision.clone();
                    return Some(request(run, node, step, &Asked::by_policy(&decision), given));
                }
            },
        }
    }
    if matches!(node.kind, Kind::Approve { .. })
        && step.group.is_none()
        && !run
            .rare()
            .approvals
            .values()
            .any(|a| a.step == step.id && a.by_step.is_none() && a.status == approval::Status::Approved)
    {
        let asked = Asked::by_runbook(node, "the runbook asks for it".to_string())?;
        return Some(request(run, node, step, &asked, given));
    }
    if let Some(unreleased) = release_bound(run, def, node, step, given) {
        return Some(unreleased);
    }
    let gate = step.next_gate()?;
    if let Some(own) = own_hold(run, step, gate) {
        return Some(pipeline::refuse(run, step, Code::LockBusy, &own, given));
    }
    Some(take(run, step, gate, given))
}

/// Why a step must not stand in line for a lock: what has it ends only after the step.
fn own_hold(run: &Run, step: &Step, gate: &Gate) -> Option<alloc::string::String> {
    let Gate::Lock { name, .. } = gate else { return None };
    if run.born.lock.as_ref() == Some(name) {
        return Some(alloc::format!("the run itself holds the lock `{name}`, so it would wait for ever"));
    }
    let same = |gate: &Gate| matches!(gate, Gate::Lock { name: held, .. } if held == name);
    let (_, group) = pipeline::around(run, step).find(|(_, group)| group.held().iter().any(same))?;
    Some(alloc::format!("`{}` around it holds the lock `{name}`, so it would wait for ever", group.id))
}

/// The step stands before a gate, and what lets it through is asked for.
fn take(run: &Run, step: &Step, gate: &Gate, given: &Given<'_>) -> Decision {
    let (reason, on) = gate.waits();
    let mut out = wait(run, step, reason, on.cloned(), None, given).then(ask(run, step, gate));
    if matches!(gate, Gate::Guard) {
        let (run, step, node) = (run.id(), step.id.clone(), step.node);
        out.effects.push(Effect::GatherGuard { run, step, node, after: false });
    }
    out
}

/// The hold that a step asks for at a gate, where that is a lock or slots.
pub(crate) fn ask(run: &Run, step: &Step, gate: &Gate) -> Option<Follow> {
    let holder = step.holder(run.id());
    match gate {
        Gate::Lock { name, overlap } => Some(Follow::TakeLock {
            lock: run.scoped(name),
            holder,
            wait: *overlap != Overlap::Skip,
            oust: *overlap == Overlap::Cancel,
            give_up_at: None,
        }),
        Gate::Slots { name, slots } => {
            Some(Follow::TakeSlots { semaphore: run.scoped(name), holder, slots: *slots, give_up_at: None })
        }
        Gate::Guard => None,
    }
}

/// A hold was taken from a step that does not act: it stands before that gate again. What it holds beyond goes back, so
/// that holds are always taken in their order.
pub(crate) fn take_again(run: &Run, step: &Step, lost: &Gate, given: &Given<'_>) -> Decision {
    let beyond = step.held().iter().skip_while(|gate| *gate != lost).skip(1);
    let mut out = Decision::new().then(beyond.filter_map(|gate| give_back(run, step, gate)));
    out.join(take(run, step, lost, given));
    out
}

fn wait(
    run: &Run,
    step: &Step,
    reason: Wait,
    on: Option<Name>,
    until: Option<crate::time::Millis>,
    given: &Given<'_>,
) -> Decision {
    let input = step::Input::Wait { reason, on, key: None, until, output: None };
    step.decide(run.id(), &input, given.at).unwrap_or_default()
}

fn ask_policy(run: &Run, node: &StepDef, step: &Step, given: &Given<'_>) -> Decision {
    let waits = wait(run, step, Wait::Policy, None, None, given);
    // What is decided once for the run is asked once: the answer is for all who wait for it.
    if run.live().any(|other| waits_for_policy(other) && shares_policy(other, step)) {
        return waits;
    }
    waits.effect(evaluate_policy(run, node, step))
}

/// Whether a step waits for policy's answer.
pub(crate) fn waits_for_policy(step: &Step) -> bool {
    step.waiting.as_ref().is_some_and(|w| w.reason == Wait::Policy)
}

/// Whether one answer of policy is for both steps.
pub(crate) fn shares_policy(one: &Step, other: &Step) -> bool {
    one.tool == other.tool && policy::scope(one.tool.as_str()) == policy::Scope::PerRun
}

/// The question to policy about a step.
#[must_use]
pub fn evaluate_policy(run: &Run, node: &StepDef, step: &Step) -> Effect {
    let own = policy::scope(step.tool.as_str()) == policy::Scope::PerStep;
    let agreed = |a: &Approval| a.needed() - a.missing().min(a.needed());
    let counts = |a: &&Approval| a.step == step.id && a.status != approval::Status::Cancelled;
    let approvals = run.rare().approvals.values().filter(counts).map(agreed).sum();
    Effect::EvaluatePolicy {
        run: run.id(),
        step: step.id.clone(),
        tool: step.tool.clone(),
        action: own.then(|| Box::new(scope::action(run, node, step))),
        action_hash: step.action_hash().copied(),
        approvals,
    }
}

/// What gives back everything a step holds, and leaves the lines it stands in.
#[must_use]
pub fn release(run: &Run, step: &Step) -> Vec<Follow> {
    step.held().iter().chain(in_line(step)).filter_map(|gate| give_back(run, step, gate)).collect()
}

/// The gate in whose line a step stands.
fn in_line(step: &Step) -> Option<&Gate> {
    let waits = step.waiting.as_ref().is_some_and(|w| matches!(w.reason, Wait::Lock | Wait::Semaphore));
    if waits { step.next_gate() } else { None }
}

/// A step of a run that is suspended leaves the line it stands in, and still waits.
pub(crate) fn leave_line(run: &Run, step: &Step) -> Option<Follow> {
    give_back(run, step, in_line(step)?)
}

/// A step of a run that is resumed stands in its line again, behind those who came meanwhile.
pub(crate) fn line_up(run: &Run, step: &Step) -> Option<Follow> {
    ask(run, step, in_line(step)?)
}

fn give_back(run: &Run, step: &Step, gate: &Gate) -> Option<Follow> {
    let holder = step.holder(run.id());
    match gate {
        Gate::Lock { name, .. } => Some(Follow::LetGoLock { lock: run.scoped(name), holder }),
        Gate::Slots { name, .. } => Some(Follow::LetGoSlots { semaphore: run.scoped(name), holder }),
        Gate::Guard => None,
    }
}

/// What ends leaves nothing behind: its holds go back, what was set aside for it is free, a human is not asked any
/// more, and its session does not outlive it.
pub(crate) fn leave(run: &Run, step: &Step, given: &Given<'_>, out: &mut Decision) {
    out.follow.extend(release(run, step));
    if waits_for_guard(step) {
        // Its guards' commands do not outlive it.
        stop(run, step, out);
    }
    let reserved = budget::Input::Release { step: step.id.clone(), epoch: step.epoch };
    out.facts.extend(run.budget().decide(&reserved, given.at).map(|d| d.facts).unwrap_or_default());
    let open = |a: &&Approval| a.step == step.id && a.status == approval::Status::Requested;
    for approval in run.rare().approvals.values().filter(open) {
        let void = approval::Input::Void { reason: "its step has ended".to_string() };
        if let Ok(voided) = approval.decide(&void, given.at) {
            out.join(voided);
        }
        // Others that wait for the same answer ask for themselves.
        for other in waiting_for(run, approval.id).filter(|other| other.id != step.id) {
            let input = step::Input::Open { after: Wait::Approval, on: None, epoch: None };
            out.facts.extend(other.decide(run.id(), &input, given.at).unwrap_or_default().facts);
        }
    }
    if let Some(task) = run.rare().tasks.get(&step.id)
        && let Ok(ended) = task.decide(&task::Input::Cancel { reason: None }, given.at)
    {
        out.join(ended);
    }
}

/// Stops an attempt, or the child run behind it.
pub(crate) fn stop(run: &Run, step: &Step, out: &mut Decision) {
    match step.child() {
        Some(child) => out.follow.push(stop_called(run, child)),
        None => out.effects.push(stop_attempt(run, step)),
    }
}

/// Stops the run that a step called.
pub(crate) fn stop_called(run: &Run, called: RunId) -> Follow {
    Follow::Cancel { run: called, reason: alloc::format!("its caller {} stops", run.id()) }
}

/// Tells the executor of an attempt to stop it.
#[must_use]
pub fn stop_attempt(run: &Run, step: &Step) -> Effect {
    Effect::Stop { run: run.id(), step: step.id.clone(), epoch: step.epoch, grace: GRACE }
}

/// Policy answered. What moved meanwhile makes the answer void, and it is asked again.
///
/// # Errors
/// The run has ended, or the step is not there.
pub fn policy_decided(
    run: &Run,
    def: &Pipeline,
    decided: &PolicyDecided,
    given: &mut Given<'_>,
) -> Result<Decision, Error> {
    match decided.purpose {
        Some(Purpose::Notice) => return notice_decided(run, decided, given),
        Some(Purpose::Undo) => return look_decided(run, decided, given),
        Some(Purpose::Guard | Purpose::Issues | Purpose::Reconcile | Purpose::List | Purpose::Take)
        | None => {}
    }
    run.must_live()?;
    if let Some(purpose) = decided.purpose {
        return aside_decided(run, decided, purpose, given);
    }
    let stands = decided.policy_version == given.policy;
    let mut out = if stands { Decision::new().fact(decided.clone()) } else { Decision::new() };
    let concerned = |step: &&Step| {
        step.waiting.as_ref().is_some_and(|w| w.reason == Wait::Policy)
            && match &decided.step {
                Some(id) => *id == step.id,
                None => decided.tool == step.tool,
            }
    };
    for step in run.live().filter(concerned) {
        if !stands {
            out.effects.extend(def.node(step.node).map(|node| evaluate_policy(run, node, step)));
        } else if decided.verdict == Verdict::Deny {
            let failure = Failure::new(Code::PolicyDenied, decided.reasons.join("; "));
            let input = step::Input::Fail { epoch: step.epoch, failure, retry_at: None };
            pipeline::end(run, step, input, given, &mut out);
        } else {
            let input = step::Input::Open { after: Wait::Policy, on: None, epoch: None };
            out.facts.extend(step.decide(run.id(), &input, given.at)?.facts);
        }
    }
    Ok(out)
}

/// Policy answered about a command or a read beside a step. It is put on record while the step waits for what the command
/// finds out; later, or under another policy, nothing may be done any more, and that is the answer.
fn aside_decided(
    run: &Run,
    decided: &PolicyDecided,
    purpose: Purpose,
    given: &Given<'_>,
) -> Result<Decision, Error> {
    if decided.policy_version != given.policy {
        return Err(run.refuse("act on the answer of a policy that is no longer in force"));
    }
    let id = decided.step.as_ref().ok_or_else(|| run.refuse("run a command beside no step"))?;
    let step = run.need(id)?;
    let waits = match purpose {
        Purpose::Guard | Purpose::Issues => waits_for_guard(step),
        Purpose::Reconcile => step.status == step::Status::OutcomeUnknown,
        // A worker's are in the worker's stream.
        Purpose::List | Purpose::Take => false,
        // Both were decided above.
        Purpose::Notice | Purpose::Undo => false,
    };
    if !waits {
        return Err(run.refuse("run a command that its step does not wait for"));
    }
    // A guard that blocks asks every few seconds, and the same answer need not be told each time.
    if run.policy().has_aside(decided) {
        return Ok(Decision::new());
    }
    Ok(Decision::new().fact(decided.clone()))
}

/// Policy answered about a look at what is left of an effect, before it is taken back. Only what a run did that is over is
/// taken back, and the same answer is told once.
fn look_decided(run: &Run, decided: &PolicyDecided, given: &Given<'_>) -> Result<Decision, Error> {
    if decided.policy_version != given.policy {
        return Err(run.refuse("act on the answer of a policy that is no longer in force"));
    }
    let id = decided.step.as_ref().ok_or_else(|| run.refuse("look at the effect of no step"))?;
    if !run.is_terminal() || run.need(id)?.status != step::Status::Succeeded {
        return Err(run.refuse("look at an effect that cannot be taken back yet"));
    }
    if run.policy().has_aside(decided) {
        return Ok(Decision::new());
    }
    Ok(Decision::new().fact(decided.clone()))
}

/// Policy answered about telling people something. People are told of a run's end after it, too.
fn notice_decided(run: &Run, decided: &PolicyDecided, given: &Given<'_>) -> Result<Decision, Error> {
    if decided.policy_version != given.policy {
        return Err(run.refuse("act on the answer of a policy that is no longer in force"));
    }
    if run.rare().notices.is_empty() {
        return Err(run.refuse("tell people something that nobody asked for"));
    }
    Ok(Decision::new().fact(decided.clone()))
}

/// Whether a step waits for what its guards find.
fn waits_for_guard(step: &Step) -> bool {
    step.waiting.as_ref().is_some_and(|w| matches!(w.reason, Wait::Guard | Wait::GuardAfter))
}

/// The outside told what a step's guards need.
///
/// # Errors
/// The run has ended, or the step does not wait for its guards.
pub fn guard_gathered(
    run: &Run,
    def: &Pipeline,
    step: &Step,
    inputs: &GuardInputs,
    given: &mut Given<'_>,
) -> Result<Decision, Error> {
    run.must_live()?;
    let after = match step.waiting.as_ref().map(|w| w.reason) {
        Some(Wait::Guard) => false,
        Some(Wait::GuardAfter) => true,
        Some(_) | None => return Err(run.refuse("take what its guards need")),
    };
    let mut out = Decision::new();
    let (pipeline_id, id) = (run.id(), step.id.clone());
    let guards = match scope::guards(run, def, step, after, given.evaluate) {
        Ok(guards) => guards,
        Err(message) => {
            fail_guard(run, step, message, given, &mut out);
            return Ok(out);
        }
    };
    let evaluated = guard::evaluate_all(&guards, inputs);
    for warning in evaluated.warnings {
        if let GuardResult::Failed { guard, unknown, detail, .. } = warning {
            out = out.fact(GuardWarned { pipeline_id, step: id.clone(), after, guard, unknown, detail });
        }
    }
    let GuardResult::Failed { guard, action, unknown, detail } = evaluated.result else {
        // What stands in the runbook says what was asked, unless an expression did.
        let made = def.node(step.node).is_some_and(|node| {
            let guards = if after { &node.after } else { &node.before };
            guards.iter().any(|guard| guard.condition.is_made())
        });
        let asked = made.then(|| guards.iter().map(|guard| guard.condition.to_string()).collect());
        out = out.fact(GuardPassed { pipeline_id, step: id, after, asked });
        if after {
            let input = step::Input::Succeed { epoch: step.epoch, output: None, reused_from: None };
            pipeline::end(run, step, input, given, &mut out);
        } else {
            let input = step::Input::Open { after: Wait::Guard, on: None, epoch: None };
            out.facts.extend(step.decide(run.id(), &input, given.at)?.facts);
        }
        return Ok(out);
    };
    let since = step.waiting.as_ref().map_or(given.at, |w| w.since);
    let (delay, give_up) = match action {
        OnFailure::Block | OnFailure::Warn => (Some(GUARD_EVERY), None),
        OnFailure::Retry { delay, give_up } => (Some(delay), give_up.map(|span| since + span)),
        OnFailure::Fail { message } => {
            let named = guard.clone();
            out = out.fact(GuardFailed {
                pipeline_id,
                step: id,
                after,
                guard,
                unknown,
                detail: detail.clone(),
            });
            let said = || alloc::format!("the guard `{}` does not hold: {detail}", named);
            let text = if message.is_empty() { said() } else { message };
            fail_guard(run, step, text, given, &mut out);
            return Ok(out);
        }
    };
    let give_up_at = run.rare().guards.get(&step.id).copied().or(give_up);
    if give_up_at.is_some_and(|give_up| give_up <= given.at) {
        out = out.fact(GuardFailed { pipeline_id, step: id, after, guard, unknown, detail: detail.clone() });
        fail_guard(run, step, detail, given, &mut out);
        return Ok(out);
    }
    let retry_at = given.at + delay.unwrap_or(GUARD_EVERY);
    Ok(out.fact(GuardBlocked { pipeline_id, step: id, after, guard, unknown, retry_at, give_up_at, detail }))
}

fn fail_guard(run: &Run, step: &Step, message: alloc::string::String, given: &Given<'_>, out: &mut Decision) {
    let failure = Failure::new(Code::GuardFailed, message);
    pipeline::end(run, step, step::Input::Fail { epoch: step.epoch, failure, retry_at: None }, given, out);
}

/// What a run hears from locks, semaphores and other runs.
///
/// # Errors
/// The run has ended, or does not wait for it: what was granted goes back.
pub fn told(run: &Run, def: &Pipeline, told: &Told, given: &mut Given<'_>) -> Result<Decision, Error> {
    match told {
        // A run that waits for its lock begins with it; that is the turn's. One that has ended gives it back, and so does
        // one that is suspended before it began: it asks again when it is resumed.
        Told::LockGranted { step: None, lock, .. }
            if run.is_terminal() || run.suspended && run.started_at.is_none() =>
        {
            Ok(Decision::new().then([Follow::LetGoLock { lock: run.scoped(lock), holder: run.holder() }]))
        }
        Told::LockGranted { step: None, .. } => Ok(Decision::new()),
        Told::LockGranted { step: Some(step), lock, epoch } => granted(
            run,
            step,
            Wait::Lock,
            lock,
            *epoch,
            Follow::LetGoLock {
                lock: run.scoped(lock),
                holder: crate::id::Holder::Step(run.id(), step.clone()),
            },
            given,
        ),
        Told::SlotsGranted { step, semaphore, epoch } => granted(
            run,
            step,
            Wait::Semaphore,
            semaphore,
            *epoch,
            Follow::LetGoSlots {
                semaphore: run.scoped(semaphore),
                holder: crate::id::Holder::Step(run.id(), step.clone()),
            },
            given,
        ),
        Told::LockBusy { step: None, lock } => {
            let waits = matches!(run.blocked.as_deref(), Some(BlockedOn::Lock(on)) if on == lock);
            if !waits || run.started_at.is_some() {
                return Ok(Decision::new());
            }
            crate::lifecycle::cancel(run, Initiator::System, None, Some(OVERLAP.to_string()), given)
        }
        Told::LockBusy { step: Some(step), lock } => {
            let step = run.need(step)?;
            if step.waiting.as_ref().is_none_or(|w| w.reason != Wait::Lock || w.on.as_ref() != Some(lock)) {
                return Ok(Decision::new());
            }
            let skipped = StepSkipped {
                pipeline_id: run.id(),
                step: step.id.clone(),
                node: step.node,
                parent: None,
                section: None,
                reason: Skip::Overlap,
                tool: step.tool.clone(),
                item: step.item,
            };
            let mut out = Decision::new();
            pipeline::end(run, step, step::Input::Skip(Box::new(skipped)), given, &mut out);
            Ok(out)
        }
        Told::HoldRefused { step: Some(step), code, message } => {
            let step = run.need(step)?;
            let mut out = Decision::new();
            if step.status == step::Status::WaitingExternal {
                let failure = Failure::new(*code, message.clone());
                pipeline::end(
                    run,
                    step,
                    step::Input::Fail { epoch: step.epoch, failure, retry_at: None },
                    given,
                    &mut out,
                );
            }
            Ok(out)
        }
        Told::HoldRefused { step: None, code, message } => {
            run.must_live()?;
            let duration_ms = given.at.since(run.born.created_at).0;
            Ok(pipeline::failed(run, duration_ms, None, Failure::new(*code, message.clone())))
        }
        Told::HoldLost { step: None, name, broken } => {
            let mut out = broken_hold(run, None, name, *broken);
            let acts = run.started_at.is_some() && !run.is_terminal() && run.stopping.is_none();
            if acts && run.born.lock.as_ref() == Some(name) {
                let reason = Some(Failure::hold_lost(name).message);
                let stopped = crate::lifecycle::cancel(run, Initiator::Hold, None, reason, given)?;
                out.join(stopped);
            }
            Ok(out)
        }
        Told::HoldLost { step: Some(step), name, broken } => {
            let step = run.need(step)?;
            if !step.held().iter().any(|gate| gate_name(gate) == Some(name)) {
                return Ok(Decision::new());
            }
            let mut out = broken_hold(run, Some(step), name, *broken);
            out.join(hold_lost(run, step, name, given));
            Ok(out)
        }
        // What a run needs before it begins is the turn's.
        Told::RunEnded { step: None, .. } => Ok(Decision::new()),
        Told::RunEnded { run: child, step: Some(step), status, outputs, error } => {
            let step = run.need(step)?;
            let node = def.node(step.node);
            let node = node.ok_or_else(|| Error::Missing("definition of step", step.id.to_string()))?;
            if step.child() != Some(*child) || step.status != step::Status::Running {
                // The call was given up on; what its child came to stands in the child.
                return Ok(Decision::new());
            }
            let input = child_ended(run, node, step, *status, outputs.clone(), error.clone(), given)?;
            attempt::settle(run, node, step, &input, Decision::new(), given)
        }
    }
}

/// A step that lost what it held fails wherever it is on its way. An unknown outcome stays one: nothing acts there.
fn hold_lost(run: &Run, step: &Step, name: &Name, given: &mut Given<'_>) -> Decision {
    let failure = Failure::hold_lost(name);
    let mut out = Decision::new();
    match step.status {
        step::Status::Ready => return pipeline::refuse(run, step, Code::LockBusy, &failure.message, given),
        // It ends when its members have. The flow stops them.
        step::Status::Running if step.group.is_some() && step.lost_hold().is_none() => {
            let (pipeline_id, step) = (run.id(), step.id.clone());
            return out.fact(HoldLost { pipeline_id, step, hold: name.clone() });
        }
        step::Status::Running if step.group.is_some() => return out,
        step::Status::Running => stop(run, step, &mut out),
        step::Status::WaitingApproval | step::Status::WaitingExternal | step::Status::FailedRetryable => {}
        step::Status::Pending
        | step::Status::OutcomeUnknown
        | step::Status::Succeeded
        | step::Status::Skipped
        | step::Status::Failed
        | step::Status::Cancelled => return out,
    }
    pipeline::end(
        run,
        step,
        step::Input::Fail { epoch: step.epoch, failure, retry_at: None },
        given,
        &mut out,
    );
    out
}

/// That a hold was broken by hand is told in the run's own stream: it is an exception that its proof has to name.
fn broken_hold(run: &Run, step: Option<&Step>, name: &Name, broken: bool) -> Decision {
    if !broken || run.is_terminal() {
        return Decision::new();
    }
    let step = step.map(|step| step.id.clone());
    Decision::new().fact(HoldBroken { pipeline_id: run.id(), step, hold: name.clone() })
}

fn gate_name(gate: &Gate) -> Option<&Name> {
    match gate {
        Gate::Lock { name, .. } | Gate::Slots { name, .. } => Some(name),
        Gate::Guard => None,
    }
}

/// A hold was granted. A step that does not wait for it any more gives it back, and so does one whose run is suspended: it
/// asks again when the run is resumed.
fn granted(
    run: &Run,
    id: &crate::id::StepId,
    reason: Wait,
    name: &Name,
    epoch: u64,
    back: Follow,
    given: &Given<'_>,
) -> Result<Decision, Error> {
    let waits = |step: &&Step| {
        step.waiting.as_ref().is_some_and(|w| w.reason == reason && w.on.as_ref() == Some(name))
    };
    let Some(step) = run.step(id).filter(waits).filter(|_| !run.is_terminal() && !run.suspended) else {
        return Ok(Decision::new().then([back]));
    };
    let input = step::Input::Open { after: reason, on: Some(name.clone()), epoch: Some(epoch) };
    Ok(step.decide(run.id(), &input, given.at)?)
}

/// What the end of the called run means for the step that called it.
fn child_ended(
    run: &Run,
    node: &StepDef,
    step: &Step,
    status: Status,
    outputs: Option<serde_json::Value>,
    error: Option<Failure>,
    given: &mut Given<'_>,
) -> Result<step::Input, Error> {
    let failure = match status {
        // Guards, outputs and tries are those of the call, which is over.
        Status::Completed if reversal::takes_back(run, step).is_some() => {
            return Ok(step::Input::Succeed { epoch: step.epoch, output: None, reused_from: None });
        }
        Status::Completed => return Ok(attempt::done(run, node, step, step.epoch, outputs, given)?),
        // It was asked to stop, by the run or by a group around the step: that is no failure of its own.
        Status::Cancelled if run.stops(step.section) || pipeline::halted(run, step, given) => {
            return Ok(step::Input::Cancel { reason: error.map(|failure| failure.message) });
        }
        Status::Cancelled => attempt::timed_out(step, given.at)
            .unwrap_or_else(|| Failure::new(Code::Cancelled, "the called run was cancelled")),
        Status::Failed
        | Status::Pending
        | Status::Blocked
        | Status::Running
        | Status::AwaitingApproval
        | Status::WaitingExternal
        | Status::FailedRetryable => {
            let unsaid =
                || Failure::new(Code::StepFailed, alloc::format!("the called run ended as {status}"));
            error.unwrap_or_else(unsaid)
        }
    };
    if reversal::takes_back(run, step).is_some() {
        return Ok(step::Input::Fail { epoch: step.epoch, failure, retry_at: None });
    }
    Ok(attempt::failing(run, node, step, step.epoch, failure, false, given))
}

/// Asks for a message to somebody: recorded as requested now, and as sent afterwards.
pub(crate) fn notice(
    run: &Run,
    step: Option<&Step>,
    kind: Notice,
    message: &str,
    given: &mut Given<'_>,
) -> NoticeRequested {
    NoticeRequested {
        notice: NoticeId(given.id()),
        pipeline_id: run.id(),
        step: step.map(|step| step.id.clone()),
        kind,
        message: Private::New(message.to_string()),
    }
}
