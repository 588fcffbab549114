//! Looking after the data directory of a process that serves: checking it, and copying it elsewhere.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Json, Problem, json};
use crate::app::App;
use crate::backup;
use axum::extract::State;
use axum::http::StatusCode;
use std::sync::Arc;
use std::time::Duration;
use windlass_api::care::{Backup, Verified};
use windlass_core::code::Code;
use windlass_store::log;

/// How long reading a whole log may take before whoever waits is told that it does.
pub const PATIENCE: Duration = Duration::from_secs(3_600);

/// What is done with the data directory as a whole.
pub(super) fn routes() -> Routes {
    const REFUSED: &[Code] = &[Code::StoreCorrupt, Code::StoreFull];
    Routes::new()
        .post(
            "/v1/store/verify",
            Scope::Owner,
            doc("Read the log from end to end and check it")
                .gives(200, "verified")
                .refuses(REFUSED)
                .waits(PATIENCE),
            verify,
        )
        .post(
            "/v1/store/backup",
            Scope::Owner,
            doc("Copy the data directory to another on the server's machine, and check the copy")
                .body::<Backup>()
                .gives(201, "verified")
                .refuses(REFUSED)
                .waits(PATIENCE),
            copy,
        )
}

/// What checking a log came to.
#[must_use]
pub fn verified(found: &log::Verified) -> Verified {
    let log::Verified { records, streams, last_seq: _, warnings } = found.clone();
    Verified { valid: true, records, streams, warnings }
}

async fn verify(State(app): State<Arc<App>>, _: Caller) -> Answer {
    let found = tokio::task::spawn_blocking(move || app.log.verify()).await;
    let found = found
        .map_err(|_| Problem::new(Code::Internal, "the log could not be read"))?
        .map_err(|error| Problem::new(error.code(), error.to_string()))?;
    Ok(json(StatusCode::OK, &verified(&found)))
}

async fn copy(State(app): State<Arc<App>>, _: Caller, Json(wanted): Json<Backup>) -> Answer {
    if !wanted.to.is_absolute() {
        return Err(Problem::new(Code::InvalidInput, "`to` is not an absolute path"));
    }
    let copied =
        tokio::task::spawn_blocking(move || backup::make(&app.log, app.home.root(), &wanted.to)).await;
    let copied = copied
        .map_err(|_| Problem::new(Code::Internal, "the copy could not be made"))?
        .map_err(|error| Problem::new(error.code(), error.to_string()))?;
    Ok(json(StatusCode::CREATED, &verified(&copied)))
}
