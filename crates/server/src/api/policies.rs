//! Policies: what is in force, and what other rules would have said of everything that was decided.

use super::routes::{Routes, Scope, doc};
use super::runbooks::Files;
use super::{Answer, Caller, Json, Problem, json};
use crate::app::App;
use crate::policy::{Edition, Rules, folder, past};
use axum::extract::State;
use axum::http::StatusCode;
use std::sync::Arc;
use windlass_api::policy::Policies;
use windlass_core::code::Code;
use windlass_runbook::problem::Source;

/// Everything about policies.
pub(super) fn routes() -> Routes {
    let listed = doc("Show the policy in force").gives(200, "policies");
    let replayed = doc("Ask everything that was decided again, with other rules")
        .body::<Files>()
        .gives(200, "comparison")
        .refuses(&[Code::InvalidInput]);
    Routes::new().get("/v1/policies", Scope::Read, listed, list).post(
        "/v1/policies/replay",
        Scope::Admin,
        replayed,
        replay,
    )
}

pub(super) async fn list(State(app): State<Arc<App>>, _: Caller) -> Answer {
    // Whoever names another one is to learn that it is not this one that is in force.
    let config = app.config.path.as_ref().map(|path| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        path.display().to_string()
    });
    Ok(json(StatusCode::OK, &Policies { items: vec![app.policy.shown()], config }))
}

pub(super) async fn replay(State(app): State<Arc<App>>, caller: Caller, Json(body): Json<Files>) -> Answer {
    if body.files.is_empty() || body.files.len() > folder::FILES_MAX {
        let text = format!("`files` are 1 to {} policy files", folder::FILES_MAX);
        return Err(Problem::new(Code::InvalidInput, text));
    }
    let sources = body.files.into_iter().map(|file| Source { name: file.name, text: file.text }).collect();
    // Reading all of history takes a while and would keep others waiting here.
    let compared = tokio::task::spawn_blocking(move || {
        let rules =
            Rules::of(sources).map_err(|problems| Problem::new(Code::InvalidInput, problems.to_string()))?;
        past::compare(&app.log, &caller.tenant, &Edition::Rules(Box::new(rules)))
            .map_err(|error| Problem::new(error.code(), error.to_string()))
    });
    let compared = compared.await.map_err(|error| Problem::new(Code::Internal, error.to_string()))??;
    Ok(json(StatusCode::OK, &compared.json()))
}
