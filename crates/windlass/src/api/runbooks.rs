//! Runbooks: loading them under their hash, and planning a run without making one.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Json, Problem, Query, json, runs};
use crate::app::App;
use crate::runbook::{self, Loaded, Problems};
use crate::shape;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json as object};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use windlass_core::code::Code;
use windlass_core::command::Command;
use windlass_core::digest::Digest;
use windlass_core::id::{Name, Scoped};
use windlass_core::runbook::{Pipeline, Runbook};
use windlass_core::state::Body;
use windlass_core::stream::StreamId;
use windlass_core::{lock, semaphore};

/// A runbook with its includes, as a client sends them.
/// Everything about runbooks.
pub(super) fn routes() -> Routes {
    let load_doc =
        doc("Store a runbook and make it the active version of its name").query::<How>().body::<Files>();
    let plan_doc = doc("Say what a run would do; nothing is executed").body::<Plan>().gives(200, "plan");
    const REFUSED: &[Code] = &[Code::RunbookInvalid, Code::NotFound];
    Routes::new()
        .get("/v1/runbooks", Scope::Read, doc("List runbooks").gives(200, "list"), list)
        .post("/v1/runbooks", Scope::Run, load_doc.gives(201, "runbook").refuses(REFUSED), load)
        .get(
            "/v1/runbooks/{hash}",
            Scope::Read,
            doc("Show a runbook").gives(200, "runbook").refuses(REFUSED),
            show,
        )
        .post("/v1/plan", Scope::Read, plan_doc.refuses(REFUSED), plan)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Files {
    /// The first is the runbook; the others are what it includes.
    files: Vec<File>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    text: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct How {
    #[serde(default)]
    deploy: Option<bool>,
}

/// Included files that came with the runbook.
struct Sent(BTreeMap<PathBuf, String>);

impl runbook::Files for Sent {
    fn text(&self, name: &std::path::Path) -> Result<String, runbook::Problem> {
        let missing = || runbook::Problem::whole(format!("`{}` was not sent along", name.display()));
        self.0.get(name).cloned().ok_or_else(missing)
    }
}

fn invalid(problems: &Problems) -> Problem {
    let more = Some(object!({ "problems": problems.json() }));
    Problem { code: Code::RunbookInvalid, detail: problems.render(false), more }
}

fn read(headers: &HeaderMap, body: &Bytes) -> Result<Loaded, Problem> {
    let plain = || {
        let text = String::from_utf8(body.to_vec())
            .map_err(|_| Problem::new(Code::RunbookInvalid, "the runbook is not UTF-8"))?;
        Ok::<_, Problem>(vec![File { name: "runbook.yaml".into(), text }])
    };
    let is_json = headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let files = if is_json {
        let sent: Files = serde_json::from_slice(body)
            .map_err(|error| Problem::new(Code::InvalidInput, format!("the body is not valid: {error}")))?;
        sent.files
    } else {
        plain()?
    };
    let mut files = files.into_iter();
    let first = files.next().ok_or_else(|| Problem::new(Code::InvalidInput, "there is no file"))?;
    let included = Sent(files.map(|file| (PathBuf::from(file.name), file.text)).collect());
    runbook::parse(&first.name, &first.text, &included).map_err(|problems| invalid(&problems))
}

pub(super) async fn load(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(how): Query<How>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    let loaded = read(&headers, &body)?;
    let (hash, runbook) = (loaded.hash, loaded.runbook);
    let tenant = caller.tenant.clone();
    let command =
        Command::Load { hash, tenant, runbook: Box::new(runbook.clone()), source: Some(loaded.source) };
    app.ask(&caller, command).await?;
    declare(&app, &caller, &runbook).await?;
    if how.deploy.unwrap_or(true) {
        let deployment = Scoped::new(&caller.tenant, &caller.namespace, &runbook.name);
        app.ask(&caller, Command::Deploy { deployment, hash }).await?;
    }
    Ok(json(StatusCode::CREATED, &describe(hash, &runbook)))
}

/// Locks and semaphores have the time-outs and sizes that the runbook declares.
async fn declare(app: &App, caller: &Caller, runbook: &Runbook) -> Result<(), Problem> {
    let scoped = |name: &Name| Scoped::new(&caller.tenant, &caller.namespace, name);
    for (name, def) in &runbook.locks {
        let config = lock::Config {
            heartbeat_timeout: def.heartbeat_timeout,
            max_hold_duration: def.max_hold_duration,
        };
        let input = lock::Input::Configure(config);
        app.ask(caller, Command::Lock { lock: scoped(name), input }).await?;
    }
    for (name, def) in &runbook.semaphores {
        let config = semaphore::Config { capacity: def.capacity, heartbeat_timeout: def.heartbeat_timeout };
        let input = semaphore::Input::Configure(config);
        app.ask(caller, Command::Semaphore { semaphore: scoped(name), input }).await?;
    }
    Ok(())
}

fn describe(hash: Digest, runbook: &Runbook) -> Value {
    let pipelines: Vec<&str> = runbook.pipelines.keys().map(Name::as_str).collect();
    object!({ "hash": hash.to_string(), "name": runbook.name, "pipelines": pipelines })
}

pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller) -> Answer {
    let items = app
        .look(move |store| {
            let state = store.state();
            let active: Vec<Digest> = state
                .streams()
                .filter_map(|(_, stream)| match &stream.body {
                    Body::Deployment(hash) => **hash,
                    // tidy: only what is deployed is wanted.
                    _ => None,
                })
                .collect();
            let mine = state.streams().filter(|(_, stream)| stream.tenant == caller.tenant);
            mine.filter_map(|(id, stream)| match (id, &stream.body) {
                (StreamId::Runbook(hash), Body::Runbook(runbook)) => {
                    let mut item = describe(hash, runbook);
                    item["deployed"] = Value::Bool(active.contains(&hash));
                    item["loaded_at"] = Value::String(shape::time(stream.at));
                    Some(item)
                }
                // tidy: only runbooks are wanted.
                _ => None,
            })
            .collect::<Vec<_>>()
        })
        .await?;
    Ok(json(StatusCode::OK, &shape::list(items, None)))
}

pub(super) async fn show(State(app): State<Arc<App>>, caller: Caller, Path(hash): Path<String>) -> Answer {
    let (hash, runbook) = app.runbook(&caller, Some(&hash), None).await?;
    let mut item = describe(hash, &runbook);
    item["runbook"] = object!(*runbook);
    Ok(json(StatusCode::OK, &item))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan {
    runbook: String,
    #[serde(default)]
    pipeline: Option<String>,
    #[serde(default)]
    vars: Map<String, Value>,
}

/// What a run would do: its steps, what policy says of each, and which secrets they name. Nothing is executed.
pub(super) async fn plan(State(app): State<Arc<App>>, caller: Caller, Json(asked): Json<Plan>) -> Answer {
    let (hash, runbook) = app.runbook(&caller, Some(&asked.runbook), None).await?;
    let pipeline = runs::pick(&runbook, asked.pipeline.as_deref())?;
    let def =
        runbook.pipelines.get(&pipeline).ok_or_else(|| Problem::missing("pipeline", pipeline.as_str()))?;
    let vars = runbook::check_vars(def, &asked.vars)
        .map_err(|error| Problem::new(Code::InvalidInput, error.to_string()))?;
    let steps = crate::plan::steps(&app, def, &vars);
    let body = object!({
        "runbook_hash": hash.to_string(),
        "pipeline": pipeline,
        "vars": vars,
        "steps": steps,
        "sections": sections(def),
    });
    Ok(json(StatusCode::OK, &body))
}

fn sections(def: &Pipeline) -> Value {
    object!({ "steps": def.steps.len(), "on_failure": def.on_failure.len(), "finally": def.finally.len() })
}
