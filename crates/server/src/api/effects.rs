//! What a run did outside: its receipts, and taking it back.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Json, Problem, json, runs};
use crate::app::App;
use crate::{shape, undo};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json as object};
use std::sync::Arc;
use windlass_core::code::Code;
use windlass_core::command::{Command, Create, Reply};
use windlass_core::id::{Name, RunId};
use windlass_core::run::{Source, Trigger};

/// Everything about receipts and undo.
pub(super) fn routes() -> Routes {
    const REFUSED: &[Code] = &[Code::NotFound, Code::RunInvalidTransition, Code::RunTerminalState];
    Routes::new()
        .get(
            "/v1/runs/{id}/receipts",
            Scope::Read,
            doc("List its receipts").gives(200, "list receipt").refuses(&[Code::NotFound]),
            receipts,
        )
        .post(
            "/v1/runs/{id}/undo",
            Scope::Run,
            doc("Take back what it did outside, in a new run")
                .body::<Wish>()
                .gives(200, "undo")
                .gives(201, "undo")
                .refuses(REFUSED),
            take_back,
        )
}

async fn receipts(State(app): State<Arc<App>>, caller: Caller, Path(id): Path<String>) -> Answer {
    let run = app.find_run(&caller, &id).await?;
    let found = app.look(move |store| undo::receipts(store, run)).await?;
    let found = found.ok_or_else(|| Problem::missing("run", &id))?;
    let items = found.iter().map(|(_, receipt)| shape::receipt(receipt)).collect();
    Ok(json(StatusCode::OK, &shape::list(items, None)))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Wish {
    /// Only say what would be done.
    #[serde(default)]
    dry_run: bool,
    /// Take back also what others changed since.
    #[serde(default)]
    force: bool,
}

async fn take_back(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    Json(wish): Json<Wish>,
) -> Answer {
    let run = app.find_run(&caller, &id).await?;
    let items = undo::plan(&app, run).await.map_err(|(code, detail)| Problem::new(code, detail))?;
    let shown: Vec<Value> = items.iter().map(undo::Item::json).collect();
    let made = undo::runbook(run, &items, wish.force);
    let (Some(made), false) = (made, wish.dry_run) else {
        return Ok(json(StatusCode::OK, &object!({ "of": run.to_string(), "items": shown })));
    };
    let new = begin(&app, &caller, run, made).await?;
    let body = object!({ "of": run.to_string(), "items": shown, "run": runs::one(&app, new, true).await? });
    Ok(json(StatusCode::CREATED, &body))
}

/// Makes the run that takes another one's effects back.
async fn begin(app: &Arc<App>, caller: &Caller, of: RunId, made: undo::Undo) -> Result<RunId, Problem> {
    let (hash, tenant) = (made.hash, caller.tenant.clone());
    let load = Command::Load { hash, tenant, runbook: Box::new(made.runbook.clone()), source: None };
    app.ask(caller, load).await?;
    let cwd = app.look(move |store| store.state().run(of).map(|run| run.born.home.cwd.clone())).await?;
    let id = RunId(app.id());
    let create = Create {
        id,
        tenant: caller.tenant.clone(),
        namespace: caller.namespace.clone(),
        runbook: hash,
        policy: app.policy.for_run(id, &made.runbook, &made.pipeline),
        pipeline: made.pipeline,
        name: Name::clean(&format!("undo of {of}")),
        cwd: cwd.unwrap_or_else(|| app.default_dir()),
        vars: made.vars,
        trigger: Trigger {
            source: Source::Api,
            key: None,
            user: Some(caller.user()),
            event_id: None,
            traceparent: None,
        },
        subject: None,
        // What ties the two runs together.
        correlation_id: Some(Name::clean(&of.to_string())),
        priority: 0,
        needs: Vec::new(),
        parent: None,
        depth: 0,
        deadline_at: None,
        workspace: None,
    };
    match app.ask(caller, Command::Create(Box::new(create))).await? {
        Reply::Created(run) => Ok(run),
        other => Err(Problem::new(Code::Internal, format!("a run was asked for, and {other:?} came"))),
    }
}
