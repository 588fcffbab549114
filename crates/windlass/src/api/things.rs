//! Locks and semaphores.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Json, Problem, json};
use crate::app::App;
use crate::shape;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use windlass_core::code::Code;
use windlass_core::command::Command;
use windlass_core::id::{Holder, Name, RunId, Scoped};
use windlass_core::state::Body;
use windlass_core::stream::StreamId;
use windlass_core::{lock, semaphore};

/// Locks and semaphores.
pub(super) fn routes() -> Routes {
    const REFUSED: &[Code] = &[Code::NotFound, Code::LeaseStaleEpoch];
    let lock_doc = |text| doc(text).gives(200, "lock").refuses(REFUSED);
    let semaphore_doc = |text| doc(text).gives(200, "semaphore").refuses(REFUSED);
    Routes::new()
        .get("/v1/locks", Scope::Read, doc("List locks").gives(200, "list lock"), locks)
        .get("/v1/locks/{name}", Scope::Read, lock_doc("Show a lock"), lock)
        .post(
            "/v1/locks/{name}/break",
            Scope::Admin,
            lock_doc("Take a lock away").body::<Break>(),
            break_lock,
        )
        .get("/v1/semaphores", Scope::Read, doc("List semaphores").gives(200, "list semaphore"), semaphores)
        .get("/v1/semaphores/{name}", Scope::Read, semaphore_doc("Show a semaphore"), semaphore)
        .post(
            "/v1/semaphores/{name}/break",
            Scope::Admin,
            semaphore_doc("Take slots away").body::<Break>(),
            break_semaphore,
        )
}

/// The caller's things of one kind.
async fn every(
    app: &App,
    caller: &Caller,
    of: fn(&StreamId, &Body) -> Option<(Scoped, Value)>,
) -> Result<Vec<Value>, Problem> {
    let caller = caller.clone();
    app.look(move |store| {
        // Runs come first among streams, and there are many of them.
        let streams = store.state().streams_after(Some(&StreamId::Run(RunId(u128::MAX))));
        let all = streams.filter_map(|(id, stream)| of(&id, &stream.body));
        let mine = |name: &Scoped| {
            name.tenant() == caller.tenant.as_str() && name.namespace() == caller.namespace.as_str()
        };
        all.filter(|(name, _)| mine(name)).map(|(_, value)| value).collect()
    })
    .await
}

fn as_lock(id: &StreamId, body: &Body) -> Option<(Scoped, Value)> {
    match (id, body) {
        (StreamId::Lock(name), Body::Lock(lock)) => Some((name.clone(), shape::lock(name, lock))),
        // tidy: only locks are wanted.
        _ => None,
    }
}

fn as_semaphore(id: &StreamId, body: &Body) -> Option<(Scoped, Value)> {
    match (id, body) {
        (StreamId::Semaphore(name), Body::Semaphore(held)) => {
            Some((name.clone(), shape::semaphore(name, held)))
        }
        // tidy: only semaphores are wanted.
        _ => None,
    }
}

pub(super) async fn locks(State(app): State<Arc<App>>, caller: Caller) -> Answer {
    Ok(json(StatusCode::OK, &shape::list(every(&app, &caller, as_lock).await?, None)))
}

pub(super) async fn semaphores(State(app): State<Arc<App>>, caller: Caller) -> Answer {
    Ok(json(StatusCode::OK, &shape::list(every(&app, &caller, as_semaphore).await?, None)))
}

fn scoped(caller: &Caller, name: &str) -> Result<Scoped, Problem> {
    let name = Name::new(name).map_err(|error| Problem::new(Code::InvalidInput, error.to_string()))?;
    Ok(Scoped::new(&caller.tenant, &caller.namespace, &name))
}

async fn one(app: &App, stream: StreamId, what: &'static str, name: &str) -> Answer {
    let found = app
        .look(move |store| {
            let body = &store.state().stream(&stream)?.body;
            as_lock(&stream, body).or_else(|| as_semaphore(&stream, body)).map(|(_, value)| value)
        })
        .await?;
    found.map(|value| json(StatusCode::OK, &value)).ok_or_else(|| Problem::missing(what, name))
}

pub(super) async fn lock(State(app): State<Arc<App>>, caller: Caller, Path(name): Path<String>) -> Answer {
    one(&app, StreamId::Lock(scoped(&caller, &name)?), "lock", &name).await
}

pub(super) async fn semaphore(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
) -> Answer {
    one(&app, StreamId::Semaphore(scoped(&caller, &name)?), "semaphore", &name).await
}

/// What an operator saw before taking something away.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Break {
    #[serde(default)]
    epoch: Option<u64>,
    #[serde(default)]
    holder: Option<String>,
}

pub(super) async fn break_lock(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Json(seen): Json<Break>,
) -> Answer {
    let lock = scoped(&caller, &name)?;
    let input = lock::Input::Break { epoch: seen.epoch };
    app.ask(&caller, Command::Lock { lock: lock.clone(), input }).await?;
    one(&app, StreamId::Lock(lock), "lock", &name).await
}

pub(super) async fn break_semaphore(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Json(seen): Json<Break>,
) -> Answer {
    let semaphore = scoped(&caller, &name)?;
    let holder = seen.holder.ok_or_else(|| Problem::new(Code::InvalidInput, "say whose slots: `holder`"))?;
    let holder =
        Holder::parse(&holder).map_err(|error| Problem::new(Code::InvalidInput, error.to_string()))?;
    let input = semaphore::Input::Break { holder, epoch: seen.epoch };
    app.ask(&caller, Command::Semaphore { semaphore: semaphore.clone(), input }).await?;
    one(&app, StreamId::Semaphore(semaphore), "semaphore", &name).await
}
