//! Locks and semaphores.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Json, PAGE_MAX, Problem, Query, holder_of, invalid, json, page_limit, scoped};
use crate::app::App;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use windlass_api::List;
use windlass_api::hold::{Break, Lock, Semaphore};
use windlass_core::code::Code;
use windlass_core::id::Scoped;
use windlass_core::machine::Beats;
use windlass_core::stream::StreamId;
use windlass_core::turn::View as _;
use windlass_core::turn::command::Command;
use windlass_core::turn::state::Body;
use windlass_core::{lock, semaphore};

/// Locks and semaphores.
pub(super) fn routes() -> Routes {
    const REFUSED: &[Code] = &[Code::NotFound, Code::LeaseStaleEpoch];
    let lock_doc = |text| doc(text).gives(200, "lock").refuses(REFUSED);
    let semaphore_doc = |text| doc(text).gives(200, "semaphore").refuses(REFUSED);
    let listed = |text, what| doc(text).query::<Page>().gives(200, what);
    Routes::new()
        .get("/v1/locks", Scope::Read, listed("List locks", "list lock"), locks)
        .get("/v1/locks/{name}", Scope::Read, lock_doc("Show a lock"), lock)
        .post(
            "/v1/locks/{name}/break",
            Scope::Admin,
            lock_doc("Take a lock away").body::<Break>(),
            break_lock,
        )
        .get("/v1/semaphores", Scope::Read, listed("List semaphores", "list semaphore"), semaphores)
        .get("/v1/semaphores/{name}", Scope::Read, semaphore_doc("Show a semaphore"), semaphore)
        .post(
            "/v1/semaphores/{name}/break",
            Scope::Admin,
            semaphore_doc("Take slots away").body::<Break>(),
            break_semaphore,
        )
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Page {
    /// The name after which the page begins: where the one before ended.
    #[serde(default)]
    cursor: Option<String>,
    #[serde(default)]
    limit: Option<usize>,
}

/// A page of the caller's things of one kind, by their names. Those of a namespace stand side by side among the streams, so
/// nothing else is looked at.
async fn page<T: Serialize + Send + 'static>(
    app: &App,
    caller: &Caller,
    asked: Page,
    kind: fn(Scoped) -> StreamId,
    of: fn(&StreamId, &Body, &Beats) -> Option<(Scoped, T)>,
) -> Answer {
    let home = Scoped::first_of(&caller.tenant, &caller.namespace);
    let after = asked.cursor.map(|name| scoped(caller, &name)).transpose()?;
    let limit = page_limit(asked.limit, PAGE_MAX);
    let mut items = app
        .look(move |store| {
            let streams = store.state().streams_from(kind(after.clone().unwrap_or_else(|| home.clone())));
            let beats = store.state().beats();
            let things = streams.map_while(|(id, stream)| of(id, &stream.body, beats));
            let mine = things.take_while(|(name, _)| {
                (name.tenant(), name.namespace()) == (home.tenant(), home.namespace())
            });
            let rest = mine.filter(|(name, _)| after.as_ref() != Some(name));
            rest.take(limit + 1).map(|(name, value)| (name.name().to_owned(), value)).collect::<Vec<_>>()
        })
        .await?;
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(|(name, _)| name.clone());
    Ok(json(StatusCode::OK, &List::page(items.into_iter().map(|(_, value)| value).collect(), next)))
}

fn as_lock(id: &StreamId, body: &Body, beats: &Beats) -> Option<(Scoped, Lock)> {
    match (id, body) {
        (StreamId::Lock(name), Body::Lock(lock)) => Some((name.clone(), Lock::of(name, lock, beats))),
        // tidy: only locks are wanted.
        _ => None,
    }
}

fn as_semaphore(id: &StreamId, body: &Body, beats: &Beats) -> Option<(Scoped, Semaphore)> {
    match (id, body) {
        (StreamId::Semaphore(name), Body::Semaphore(held)) => {
            Some((name.clone(), Semaphore::of(name, held, beats)))
        }
        // tidy: only semaphores are wanted.
        _ => None,
    }
}

pub(super) async fn locks(State(app): State<Arc<App>>, caller: Caller, Query(asked): Query<Page>) -> Answer {
    page(&app, &caller, asked, StreamId::Lock, as_lock).await
}

pub(super) async fn semaphores(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(asked): Query<Page>,
) -> Answer {
    page(&app, &caller, asked, StreamId::Semaphore, as_semaphore).await
}

async fn one<T: Serialize + Send + 'static>(
    app: &App,
    stream: StreamId,
    of: fn(&StreamId, &Body, &Beats) -> Option<(Scoped, T)>,
    (what, name): (&str, &str),
) -> Answer {
    let found = app
        .look(move |store| {
            // One at rest is read back.
            windlass_engine::port::Store::load(store, std::slice::from_ref(&stream)).ok()?;
            let body = &store.state().stream(&stream)?.body;
            of(&stream, body, store.state().beats()).map(|(_, value)| value)
        })
        .await?;
    found.map(|value| json(StatusCode::OK, &value)).ok_or_else(|| Problem::missing(what, name))
}

pub(super) async fn lock(State(app): State<Arc<App>>, caller: Caller, Path(name): Path<String>) -> Answer {
    one(&app, StreamId::Lock(scoped(&caller, &name)?), as_lock, ("lock", &name)).await
}

pub(super) async fn semaphore(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
) -> Answer {
    one(&app, StreamId::Semaphore(scoped(&caller, &name)?), as_semaphore, ("semaphore", &name)).await
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
    one(&app, StreamId::Lock(lock), as_lock, ("lock", &name)).await
}

pub(super) async fn break_semaphore(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Json(seen): Json<Break>,
) -> Answer {
    let semaphore = scoped(&caller, &name)?;
    let holder = seen.holder.ok_or_else(|| invalid("say whose slots: `holder`"))?;
    let holder = holder_of(&caller, &holder)?;
    let input = semaphore::Input::Break { holder, epoch: seen.epoch };
    app.ask(&caller, Command::Semaphore { semaphore: semaphore.clone(), input }).await?;
    one(&app, StreamId::Semaphore(semaphore), as_semaphore, ("semaphore", &name)).await
}
