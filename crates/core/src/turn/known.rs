//! What facts of a run say of things that the run itself does not know: its tenant's credentials, its runbook's triggers.

use super::{View, runbook_of, tenant_state_of, token_map_of};
use crate::event::Event;
use crate::id::{Name, TokenId};
use crate::run::Run;
use crate::step::Wait;
use crate::token::{Known, Token};
use crate::turn::command::Refusal;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Waits for events, with the source that each is expected from.
pub(super) fn expecting(view: &dyn View, run: &Run, mut facts: Vec<Event>) -> Vec<Event> {
    for fact in &mut facts {
        if let Event::StepWaiting(e) = fact
            && e.reason == Some(Wait::Event)
            && let Some(on) = &e.on
            && let Ok(Some(runbook)) = runbook_of(view, &run.born.home.runbook)
        {
            e.source = crate::signal::expected(runbook, on);
        }
    }
    facts
}

/// What is asked of humans says whether the one who asked may agree, as things are now.
pub(super) fn own_requests(view: &dyn View, run: &Run, mut facts: Vec<Event>) -> Vec<Event> {
    for fact in &mut facts {
        if let Event::ApprovalRequested(request) = fact {
            let known = tokens_of(view, &run.born.home.tenant);
            // The decision asks again, when it is known for certain.
            let at = run.updated_at;
            request.self_approval &= known.is_ok_and(|known| known.own_allowed(at));
        }
    }
    facts
}

/// The tokens of a tenant, by what they are called.
pub(crate) type TokenMap = BTreeMap<TokenId, Token>;

/// What is known of the tokens of a tenant.
pub(crate) fn tokens_of<'a>(view: &'a dyn View, tenant: &Name) -> Result<Known<'a>, Refusal> {
    let (tokens, earlier) = (token_map_of(view, tenant)?, tenant_state_of(view, tenant)?);
    Ok(Known::new(tokens, earlier))
}
