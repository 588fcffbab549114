//! Notices of a turn: what the people of a tenant want to be told of a run's facts.
//!
//! That an outcome is unknown or an agent needs somebody is always told. That an approval waits, or a run has failed, is
//! told where the tenant wants it. Each notice is recorded as requested with the fact that it is about, in the same
//! commit, and as sent once a channel took it or all gave up.

use super::state::Body;
use super::{Found, View};
use crate::effect::Effect;
use crate::event::words::Notice;
use crate::event::{Event, NoticeRequested};
use crate::id::{Name, NoticeId};
use crate::machine::Decision;
use crate::notice::title;
use crate::private::Private;
use crate::run::Run;
use crate::stream::StreamId;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// A decision about a run, with the notices that its tenant wants of it.
pub(crate) fn told(view: &dyn View, run: &Run, mut decision: Decision) -> Decision {
    let about: Vec<NoticeRequested> = decision.facts.iter().filter_map(|fact| of_fact(run, fact)).collect();
    if about.is_empty() {
        return decision;
    }
    let wanted = match view.find(&StreamId::Tenant(run.born.home.tenant.clone())) {
        Found::Here(Body::Tenant(tenant)) => tenant.notices.as_slice(),
        Found::Here(_) | Found::Absent | Found::Unloaded => &[],
    };
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
