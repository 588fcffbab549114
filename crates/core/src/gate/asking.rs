//! Asking: how a human is asked about an action, what a decision means for the steps that wait for it, and when it has
//! to be asked again.

use super::{APPROVAL_EXPIRES, release, wait};
use crate::approval::{self, Approval, Tier};
use crate::binding;
use crate::code::Code;
use crate::effect::Effect;
use crate::event::ApprovalRequested;
use crate::id::{ApprovalId, Name, StepId};
use crate::machine::{Decision, Given};
use crate::pipeline;
use crate::policy::{self, Risk};
use crate::private::Private;
use crate::requesters;
use crate::run::{Error, Run};
use crate::runbook::{Kind, Pipeline, StepDef};
use crate::scope;
use crate::step::{self, Failure, Step, Wait};
use crate::time::Span;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// A step that an `approve` step names, and whose action nobody approved there, asks for itself.
pub(super) fn release_bound(
    run: &Run,
    def: &Pipeline,
    node: &StepDef,
    step: &Step,
    given: &mut Given<'_>,
) -> Option<Decision> {
    let bound = step.bound()?;
    let by = bound.by.iter().find(|by| !run.covers(by, step, bound))?;
    let refused = |s: &Step| matches!(s.status, step::Status::Failed | step::Status::Cancelled);
    if run.step(by).is_some_and(refused) {
        let message = alloc::format!("`{by}`, which must approve it, did not");
        return Some(pipeline::refuse(run, step, Code::ApprovalRejected, &message, given));
    }
    let approver = binding::definition(run, def, by);
    match approver.and_then(|approver| Asked::by_runbook(approver, binding::reason(run, by, step))) {
        Some(asked) => {
            let asked = Asked { by_step: Some(by.clone()), ..asked };
            Some(request(run, node, step, &asked, given))
        }
        None => Some(pipeline::refuse(run, step, Code::Internal, "its approval is not defined", given)),
    }
}

/// An `approve` step before this one was answered, and would ask something else now: whoever is next asks that.
pub(super) fn ask_again(
    run: &Run,
    def: &Pipeline,
    step: &Step,
    by: &StepId,
    given: &mut Given<'_>,
) -> Decision {
    let asker = run.step(by).and_then(|asker| Some((asker, def.node(asker.node)?)));
    let reason = alloc::format!("`{by}` was answered, and what it asks about has changed since");
    match asker.and_then(|(asker, node)| Some((asker, node, Asked::by_runbook(node, reason)?))) {
        Some((asker, node, asked)) => {
            let asked = Asked { by_step: Some(by.clone()), ..asked };
            request_about(run, step, (node, asker), &asked, given)
        }
        None => pipeline::refuse(run, step, Code::Internal, "its approval is not defined", given),
    }
}

/// What an approval must meet.
pub(super) struct Asked {
    tier: Tier,
    two_person: bool,
    count: u32,
    approvers: Vec<Name>,
    reasons: Vec<String>,
    expires: Span,
    /// How risky it is at least; none where policy says what is at stake.
    risk: Option<Risk>,
    /// The `approve` step on whose behalf it is asked for.
    by_step: Option<StepId>,
}

impl Asked {
    pub(super) fn by_policy(decision: &policy::Decision) -> Asked {
        Asked {
            tier: decision.stake(),
            two_person: decision.two_person.unwrap_or(false),
            count: decision.count.unwrap_or(1).max(1),
            approvers: decision.approvers.clone().unwrap_or_default(),
            reasons: decision.reasons.clone(),
            expires: decision.expires.unwrap_or(APPROVAL_EXPIRES),
            risk: decision.tier.is_none().then_some(decision.risk),
            by_step: None,
        }
    }

    /// What an `approve` step asks for.
    pub(super) fn by_runbook(node: &StepDef, reason: String) -> Option<Asked> {
        let Kind::Approve { approvers, count, tier, expires, .. } = &node.kind else { return None };
        Some(Asked {
            tier: *tier,
            two_person: false,
            count: (*count).max(1),
            approvers: approvers.clone(),
            reasons: alloc::vec![reason],
            expires: *expires,
            risk: Some(Risk::Low),
            by_step: None,
        })
    }
}

/// Asks a human about a step's own action.
pub(super) fn request(
    run: &Run,
    node: &StepDef,
    step: &Step,
    asked: &Asked,
    given: &mut Given<'_>,
) -> Decision {
    request_about(run, step, (node, step), asked, given)
}

/// Asks a human about an action before a step goes on: what the step holds goes back first. What was asked already and is
/// open is not asked twice.
fn request_about(
    run: &Run,
    step: &Step,
    (node, about): (&StepDef, &Step),
    asked: &Asked,
    given: &mut Given<'_>,
) -> Decision {
    let action_hash = scope::action_hash(run, node, about);
    let own = about.id == step.id;
    let open = |a: &&Approval| {
        a.status == approval::Status::Requested
            && a.action_hash == action_hash
            && a.by_step == asked.by_step
            && (a.step == step.id && a.policy_version == given.policy || !own)
    };
    if let Some(open) = run.rare().approvals.values().find(open) {
        let on = Some(Name::clean(&open.id.to_string()));
        let mut out = wait(run, step, Wait::Approval, on, Some(open.expires_at), given);
        out.follow.extend(release(run, step));
        return out;
    }
    let action = scope::action(run, node, about);
    let id = ApprovalId(given.id());
    let requesters = run.requesters();
    let unnamed = asked.two_person && requesters.iter().any(approval::is_unnamed);
    let user = run.born.trigger.user.as_ref();
    let first = user.or_else(|| requesters.iter().find(|name| name.as_str() != requesters::UNNAMED));
    let requested_by = first.cloned().unwrap_or_else(|| Name::clean("system"));
    let others = requesters.into_iter().filter(|name| *name != requested_by);
    let others = Some(others.collect::<Vec<Name>>()).filter(|names| !names.is_empty());
    let expires_at = given.at + asked.expires;
    let mut out = Decision::new().fact(ApprovalRequested {
        approval_id: id,
        pipeline_id: run.id(),
        step: step.id.clone(),
        tier: asked.tier.max(asked.risk.map_or(Tier::Low, |risk| Tier::from(risk.higher(action.risk)))),
        two_person: asked.two_person,
        count: if asked.two_person { asked.count.max(2) + u32::from(unnamed) } else { asked.count },
        approvers: asked.approvers.clone(),
        action_hash,
        policy_version: given.policy,
        reasons: reasons(run, step, asked, unnamed),
        requested_by,
        expires_at,
        self_approval: !asked.two_person,
        message: None,
        action: Private::New(action),
        by_step: asked.by_step.clone(),
        changed_by: others,
    });
    let waits = wait(run, step, Wait::Approval, Some(Name::clean(&id.to_string())), Some(expires_at), given);
    out.facts.extend(waits.facts);
    out.follow.extend(release(run, step));
    out.effect(Effect::ShowApproval { approval: id, run: run.id(), reminder: false })
}

/// Why it is asked; and why again, where it was asked before.
fn reasons(run: &Run, step: &Step, asked: &Asked, unnamed: bool) -> Vec<String> {
    let before = |a: &&Approval| {
        let own = a.step == step.id && a.by_step == asked.by_step;
        a.voided.is_some() && (own || a.by_step.is_none() && asked.by_step.as_ref() == Some(&a.step))
    };
    let last = run.rare().approvals.values().rfind(before);
    let again = last.and_then(|a| a.voided.as_ref()).map(|why| alloc::format!("asked again: {why}"));
    let anybody = "whoever asked for the run is not known by a name of their own and may be one of those who agree, so one \
                   more has to: ask with a token to be known";
    let anybody = unnamed.then(|| String::from(anybody));
    asked.reasons.iter().cloned().chain(again).chain(anybody).collect()
}

/// A human decides on an approval of this run. `own` says whether whoever asked may approve here at all.
///
/// # Errors
/// There is no such approval, the run has ended, or the approval's table does not have it.
pub fn decide_approval(
    run: &Run,
    id: ApprovalId,
    input: &approval::Input,
    own: bool,
    given: &mut Given<'_>,
) -> Result<Decision<approval::Reply>, Error> {
    let approval = run.rare().approvals.get(&id).ok_or_else(|| Error::Missing("approval", id.to_string()))?;
    // Who may approve what they asked for is said when they do: credentials come and go while a human thinks.
    let approval = &Approval { self_approval: approval.self_approval && own, ..approval.clone() };
    let mut out = approval.decide(input, given.at)?;
    if run.is_terminal() {
        // What came too late is in the audit; it moves nothing.
        return Ok(out);
    }
    let after = out.facts.iter().fold(approval.clone(), |approval, fact| approval.apply(fact, given.at));
    // A late word on an approval that the step has left behind moves nothing.
    for step in waiting_for(run, id) {
        let code = match after.status {
            approval::Status::Requested => continue,
            // Void: the step is looked at again, and asks anew if it must.
            approval::Status::Approved | approval::Status::Cancelled => {
                let input = step::Input::Open { after: Wait::Approval, on: None, epoch: None };
                out.facts.extend(step.decide(run.id(), &input, given.at)?.facts);
                continue;
            }
            approval::Status::Rejected => Code::ApprovalRejected,
            approval::Status::Expired => Code::ApprovalExpired,
        };
        let why = after.decisions.last().and_then(|decided| decided.reason.clone());
        let failure = Failure::new(code, why.unwrap_or_else(|| code.title().to_string()));
        // It holds nothing: no lock is held while a human sleeps.
        let input = step::Input::Fail { epoch: step.epoch, failure, retry_at: None };
        out.facts.extend(step.decide(run.id(), &input, given.at)?.facts);
    }
    Ok(out)
}

/// The steps that wait for an approval: its own, and those that would ask the same.
pub(crate) fn waiting_for(run: &Run, id: ApprovalId) -> impl Iterator<Item = &Step> {
    let on = Name::clean(&id.to_string());
    run.live().filter(move |step| {
        step.waiting.as_ref().is_some_and(|w| w.reason == Wait::Approval && w.on.as_ref() == Some(&on))
    })
}
