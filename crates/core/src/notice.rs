//! Notices: what people are told of by themselves, and with which words.
//!
//! That an outcome is unknown or an agent needs somebody is always told. That an approval waits, or a run has failed, is
//! told where the tenant wants it. Each notice is recorded as requested with the fact that it is about, in the same
//! commit, and as sent once a channel took it or all gave up.

use crate::effect::{Effect, Notice};
use crate::event::{Event, NoticeRequested};
use crate::id::{Name, NoticeId, StepId};
use crate::machine::Decision;
use crate::private::Private;
use crate::run::Run;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

/// Of what a tenant can want to be told, beside what all are told of.
pub const WANTED: [Notice; 2] = [Notice::Approval, Notice::Failed];

/// A decision about a run, with the notices that its tenant wants of it.
pub(crate) fn told<'a>(run: &Run, mut decision: Decision, wanted: impl FnOnce() -> &'a [Notice]) -> Decision {
    let about: Vec<NoticeRequested> = decision.facts.iter().filter_map(|fact| of_fact(run, fact)).collect();
    if about.is_empty() {
        return decision;
    }
    let wanted = wanted();
    for notice in about.into_iter().filter(|notice| wanted.contains(&notice.kind)) {
        decision.effects.push(Effect::Notify {
            notice: notice.notice,
            title: title(notice.kind, notice.step.as_ref()),
            message: notice.message.get().unwrap_or_default(),
            sound: true,
        });
        // Nothing but what became of it follows the end of a run.
        let at = if notice.kind == Notice::Failed { 0 } else { decision.facts.len() };
        decision.facts.insert(at, notice.into());
    }
    decision
}

/// The notice of a fact. Its id follows from what it is about: there is one of each.
fn of_fact(run: &Run, fact: &Event) -> Option<NoticeRequested> {
    let requested = |id: u128, step: Option<Name>, kind: Notice, message: String| NoticeRequested {
        notice: NoticeId(id),
        pipeline_id: run.id(),
        step,
        kind,
        message: Private::New(message),
    };
    match fact {
        Event::ApprovalRequested(e) => {
            let message = format!(
                "Step {} of {} waits for an approval. Look at it and decide: windlass approve {}",
                e.step,
                run.id(),
                e.approval_id
            );
            Some(requested(e.approval_id.0, Some(e.step.clone()), Notice::Approval, message))
        }
        // The failure of a called run is its caller's to tell.
        Event::PipelineFailed(e) if run.born.parent.is_none() => {
            let why = e.error.get().unwrap_or_default();
            let message =
                format!("{} ({}) failed: {}: {why}", run.born.home.pipeline, run.id(), e.code.as_str());
            Some(requested(run.id().0, e.step.clone(), Notice::Failed, message))
        }
        // tidy: nobody asks to be told of anything else.
        _ => None,
    }
}

/// The title of a message to people.
#[must_use]
pub fn title(kind: Notice, step: Option<&StepId>) -> String {
    match (kind, step) {
        (Notice::Escalation, Some(step)) => format!("{step} needs a human"),
        (Notice::Approval | Notice::Reminder, Some(step)) => format!("{step} waits for an approval"),
        (Notice::Notify, _) => "Outcome unknown".to_string(),
        (Notice::Failed, _) => "Run failed".to_string(),
        (Notice::Escalation | Notice::Approval | Notice::Reminder, None)
        | (Notice::Nudge | Notice::Send, None | Some(_)) => "Windlass".to_string(),
    }
}
