//! Workers: what they work on, and starting, stopping and resizing them.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Json, Problem, json, scoped};
use crate::app::App;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use std::sync::Arc;
use windlass_api::List;
use windlass_api::worker::{Resize, Stop, Worker as Shown};
use windlass_core::code::Code;
use windlass_core::id::{Name, Scoped};
use windlass_core::stream::StreamId;
use windlass_core::turn::command::Command;
use windlass_core::turn::state::{Body, State as Streams};
use windlass_core::worker::{self, Worker};

/// Everything about workers.
pub(super) fn routes() -> Routes {
    const STEER: &[Code] = &[Code::NotFound, Code::RunTerminalState];
    let worker = |text| doc(text).gives(200, "worker").refuses(STEER);
    Routes::new()
        .get("/v1/workers", Scope::Read, doc("List workers").gives(200, "list worker"), list)
        .get("/v1/workers/{name}", Scope::Read, worker("Show a worker"), show)
        .post("/v1/workers/{name}/start", Scope::Run, worker("Let it take items"), start)
        .post("/v1/workers/{name}/stop", Scope::Run, worker("Let it take nothing more").body::<Stop>(), stop)
        .post(
            "/v1/workers/{name}/resize",
            Scope::Run,
            worker("Let it have so many runs").body::<Resize>(),
            resize,
        )
}

fn find<'a>(state: &'a Streams, name: &Scoped) -> Option<&'a Worker> {
    match &state.stream(&StreamId::Worker(name.clone()))?.body {
        Body::Worker(worker) => Some(worker),
        // tidy: the stream of a worker holds one.
        _ => None,
    }
}

async fn list(State(app): State<Arc<App>>, caller: Caller) -> Answer {
    let items = app
        .look(move |store| {
            let mine = |name: &Scoped| {
                name.tenant() == caller.tenant.as_str() && name.namespace() == caller.namespace.as_str()
            };
            let workers = store.state().workers().filter(|worker| mine(&worker.id)).map(Shown::from);
            workers.collect::<Vec<_>>()
        })
        .await?;
    Ok(json(StatusCode::OK, &List::page(items, None)))
}

async fn shown(app: &App, worker: Scoped) -> Answer {
    let name = worker.name().to_owned();
    let found = app.look(move |store| find(store.state(), &worker).map(Shown::from)).await?;
    found.map(|value| json(StatusCode::OK, &value)).ok_or_else(|| Problem::missing("worker", &name))
}

async fn steer(app: &App, caller: &Caller, worker: Scoped, input: worker::Input) -> Answer {
    app.ask(caller, Command::Worker { worker: worker.clone(), input }).await?;
    shown(app, worker).await
}

async fn show(State(app): State<Arc<App>>, caller: Caller, Path(name): Path<String>) -> Answer {
    shown(&app, scoped(&caller, &name)?).await
}

/// Whether the active version of a runbook declares a worker. One that none declares any more is only remembered.
fn is_declared(state: &Streams, worker: &Scoped) -> bool {
    let [tenant, namespace] = [worker.tenant(), worker.namespace()].map(Name::clean);
    let declares = |deployment: Scoped| {
        let Some(Body::Deployment(active)) = state.stream(&StreamId::Deployment(deployment)).map(|s| &s.body)
        else {
            return false;
        };
        let hash = active.as_ref().as_ref().map(|active| active.hash);
        let book = hash.and_then(|hash| state.stream(&StreamId::Runbook(hash)));
        matches!(book.map(|stream| &stream.body),
            Some(Body::Runbook(book)) if book.workers.contains_key(worker.name()))
    };
    state.indexes().deployments(&tenant, &namespace).into_iter().any(declares)
}

/// Starts a worker with the settings it was deployed with.
async fn start(State(app): State<Arc<App>>, caller: Caller, Path(name): Path<String>) -> Answer {
    let worker = scoped(&caller, &name)?;
    let asked = worker.clone();
    let settings = app
        .look(move |store| {
            let state = store.state();
            find(state, &asked).filter(|_| is_declared(state, &asked)).and_then(Worker::settings).cloned()
        })
        .await?;
    let settings = settings.ok_or_else(|| Problem::missing("worker", &name))?;
    steer(&app, &caller, worker, worker::Input::Start(settings)).await
}

async fn stop(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Json(body): Json<Stop>,
) -> Answer {
    let worker = scoped(&caller, &name)?;
    steer(&app, &caller, worker, worker::Input::Stop { reason: body.reason }).await
}

async fn resize(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Json(size): Json<Resize>,
) -> Answer {
    let worker = scoped(&caller, &name)?;
    steer(&app, &caller, worker, worker::Input::Resize { concurrency: size.concurrency }).await
}
