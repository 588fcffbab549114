//! Whether the process is well, and whether it can take work.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Problem, json};
use crate::app::App;
use axum::extract::State;
use axum::http::StatusCode;
use std::sync::Arc;
use std::time::Duration;
use windlass_api::token::Health;
use windlass_core::code::Code;
use windlass_engine::port::Store as _;

/// How long a loop that turns may take for a turn.
const TURN: Duration = Duration::from_secs(5);

/// Health and readiness.
pub(super) fn routes() -> Routes {
    Routes::new()
        .get("/healthz", Scope::Open, doc("Say whether the loop turns").gives(200, "health"), health)
        .get(
            "/readyz",
            Scope::Open,
            doc("Say whether work is taken").gives(200, "health").refuses(&[Code::StoreFull]),
            ready,
        )
}

async fn look<T: Send + 'static>(
    app: &App,
    look: impl FnOnce(&mut windlass_store::store::Embedded) -> T + Send + 'static,
) -> Result<T, Problem> {
    let stuck = || Problem::new(Code::Unavailable, "the loop does not turn: commands wait for their turn");
    tokio::time::timeout(TURN, app.look(look)).await.map_err(|_| stuck())?
}

/// The loop turns: a look went through it.
async fn health(State(app): State<Arc<App>>) -> Answer {
    look(&app, |_| ()).await?;
    Ok(json(StatusCode::OK, &Health { status: "ok".to_owned(), stays: app.stays() }))
}

/// What was left is taken up (nobody is served before it is), steps can be begun, there is room to write, and the process
/// is not on its way out.
async fn ready(State(app): State<Arc<App>>) -> Answer {
    if app.is_draining() {
        return Err(Problem::new(Code::Unavailable, "the process is shutting down"));
    }
    if !app.can_begin() {
        let why =
            "the keeper of shell steps ended and is being started again: nothing is begun until it runs";
        return Err(Problem::new(Code::Unavailable, why));
    }
    if !look(&app, |store| store.has_room()).await? {
        return Err(Problem::new(
            Code::StoreFull,
            "the disk is full: nothing can be recorded until there is room",
        ));
    }
    Ok(json(StatusCode::OK, &Health { status: "ok".to_owned(), stays: app.stays() }))
}
