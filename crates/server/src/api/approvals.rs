//! Approvals: what waits for a human, shown exactly, and decided for exactly what was shown.

use super::decision::{self, Seen, Wish};
use super::hooks::signature;
use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Json, PAGE_MAX, Problem, Query, invalid, json, page_limit};
use crate::app::App;
use axum::extract::{Path, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::IntoResponse as _;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use windlass_api::List;
use windlass_api::approval::{Approval as Shown, Decide};
use windlass_core::approval::{self, Approval, Attempt, Channel, Status, Verdict};
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::id::ApprovalId;
use windlass_core::turn::command::Command;
use windlass_store::store::ApprovalFilter;

/// Everything about approvals.
pub(super) fn routes() -> Routes {
    const REFUSED: &[Code] = &[
        Code::NotFound,
        Code::ApprovalExpired,
        Code::ApprovalHashMismatch,
        Code::ApprovalRejected,
        Code::Forbidden,
    ];
    let listed = doc("List approvals").query::<Filter>().gives(200, "list approval");
    let decided = doc("Decide on exactly the action that was shown").body::<Decide>().gives(200, "approval");
    Routes::new()
        .get("/v1/approvals", Scope::Read, listed, list)
        .get(
            "/v1/approvals/{id}",
            Scope::Read,
            doc("Show an approval").gives(200, "approval").refuses(REFUSED),
            show,
        )
        .get(
            "/v1/approvals/{id}/card",
            Scope::Read,
            doc("Show an approval as people are shown it")
                .gives_as(200, "text/plain", "card")
                .refuses(&[Code::NotFound]),
            card,
        )
        .post("/v1/approvals/{id}/decision", Scope::Approve, decided.refuses(REFUSED), decide)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Filter {
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    cursor: Option<String>,
    #[serde(default)]
    limit: Option<usize>,
}

/// Approvals of runs that are under way or ended lately, in the order in which they were asked for. Older ones are found
/// by their ids.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(filter): Query<Filter>,
) -> Answer {
    let status = match filter.status.as_deref() {
        None | Some("all") => None,
        Some(word) => Some(Status::parse(word).ok_or_else(|| {
            invalid("`status` is requested, approved, rejected, expired, cancelled or all")
        })?),
    };
    let cursor = |text: String| ApprovalId::parse(&text).map_err(|_| invalid("that is no cursor"));
    let limit = page_limit(filter.limit, PAGE_MAX);
    let (mut items, mut after) = (Vec::new(), filter.cursor.map(cursor).transpose()?);
    loop {
        let wanted = ApprovalFilter {
            tenant: caller.tenant.clone(),
            namespace: caller.namespace.clone(),
            status,
            after,
            limit: limit - items.len(),
        };
        // Others get their turn between two looks.
        let (page, next) = app.look(move |store| store.list_approvals(&wanted)).await?;
        items.extend(page.iter().map(Shown::from));
        if items.len() == limit || next.is_none() {
            return Ok(json(StatusCode::OK, &List::page(items, next.map(|id| id.to_string()))));
        }
        after = next;
    }
}

/// The approval of the caller that an id, or the beginning of one, means; also one whose run has left memory.
async fn find(app: &App, caller: &Caller, text: &str) -> Result<Approval, Problem> {
    let (who, wanted) = (caller.clone(), text.to_owned());
    let mut found =
        app.look(move |store| store.find_approvals((&who.tenant, &who.namespace), &wanted)).await??;
    match found.len() {
        0 => Err(Problem::missing("approval", text)),
        1 => Ok(found.remove(0)),
        _ => Err(invalid("that begins several ids; write more of it")),
    }
}

pub(super) async fn show(State(app): State<Arc<App>>, caller: Caller, Path(id): Path<String>) -> Answer {
    let approval = find(&app, &caller, &id).await?;
    let card = decision::text(&app, approval.run, approval.id).await?;
    let card_hash = card.as_deref().map(decision::hash);
    let shown = Shown { card, card_hash, ..Shown::from(&approval) };
    Ok(json(StatusCode::OK, &shown))
}

/// The card alone, as people read it.
pub(super) async fn card(State(app): State<Arc<App>>, caller: Caller, Path(id): Path<String>) -> Answer {
    let approval = find(&app, &caller, &id).await?;
    let text = decision::text(&app, approval.run, approval.id).await?;
    let text = text.ok_or_else(|| Problem::missing("approval", &id))?;
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response())
}

/// How many refused attempts there may be on record before another one of this caller is left out: those who may decide have
/// the last ones to themselves, and those who show nothing do not use up what is there for tokens.
fn refusals_of(caller: &Caller) -> u32 {
    let anonymous = caller.attempt.is_none() && !caller.owns && caller.client.as_str() == "local";
    approval::REFUSALS_MAX / if anonymous { 4 } else { 2 }
}

/// Puts it on the record when somebody tries to decide who may not: a step's own token, or a caller without one. The
/// table of routes refuses them afterwards.
pub(super) async fn audit(app: &Arc<App>, caller: Option<&Caller>, method: &Method, uri: &Uri) {
    let id = uri.path().strip_prefix("/v1/approvals/").and_then(|rest| rest.strip_suffix("/decision"));
    // As the router reads it: an id can be spelled with escapes.
    let id = id.filter(|_| method == Method::POST).and_then(signature::unescape_path);
    let caller = caller.filter(|caller| !caller.may(Scope::Approve));
    if let (Some(id), Some(caller)) = (id, caller)
        && let Ok(approval) = find(app, caller, &id).await
        && approval.refusals < refusals_of(caller)
    {
        let attempt = Attempt {
            // What was wanted is not looked at: nothing of it counts.
            decision: Verdict::Approved,
            by: caller.user(),
            human: false,
            groups: Vec::new(),
            action_hash: approval.action_hash,
            channel: Channel::Api,
            reason: None,
            card: None,
        };
        let input = approval::Input::Decide(attempt);
        // The answer is the refusal that follows in any case.
        let _ = app.ask(caller, Command::Decide { run: approval.run, approval: approval.id, input }).await;
    }
}

pub(super) async fn decide(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    Json(body): Json<Decide>,
) -> Answer {
    let approval = find(&app, &caller, &id).await?;
    let decision =
        Verdict::parse(&body.decision).ok_or_else(|| invalid("`decision` is approved or rejected"))?;
    let action_hash =
        Digest::parse(&body.action_hash).ok_or_else(|| invalid("`action_hash` is 64 hexadecimal digits"))?;
    if decision == Verdict::Rejected && body.reason.as_deref().is_none_or(str::is_empty) {
        return Err(invalid("a rejection needs a `reason`"));
    }
    let channel = match body.channel.as_deref() {
        Some("cli") => Channel::Cli,
        None | Some(_) => Channel::Api,
    };
    let seen = match &body.card_hash {
        Some(text) => Seen::Text(
            Digest::parse(text)
                .ok_or_else(|| Problem::new(Code::InvalidInput, "`card_hash` is 64 hexadecimal digits"))?,
        ),
        None => Seen::Unsaid,
    };
    let wish = Wish {
        decision,
        human: caller.is_human(),
        groups: caller.groups.clone(),
        action_hash,
        channel,
        reason: body.reason,
        seen,
    };
    let reply = decision::decide(&app, &caller, (approval.run, approval.id), wish).await?;
    if let Some(approval::Reply::Refused { refusal, code }) = reply {
        let why = decision::refused(&app, &caller, (approval.run, approval.id), refusal).await?;
        return Err(Problem::new(code, format!("the decision does not count: {why}")));
    }
    Ok(json(StatusCode::OK, &Shown::from(&find(&app, &caller, &approval.id.to_string()).await?)))
}
