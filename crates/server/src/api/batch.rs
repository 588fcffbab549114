//! Many runs in one request: what would be a request for each is one turn of the loop and one sync of the disk.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Json, Problem, gone, json, runs};
use crate::app::App;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json as object};
use std::sync::Arc;
use windlass_core::code::Code;
use windlass_core::command::{Command, Create, Refusal};
use windlass_core::id::{Name, RunId};
use windlass_core::run::{Source, Trigger};

/// How many runs one request makes.
const RUNS_MAX: usize = 1_000;

/// Runs in batches.
pub(super) fn routes() -> Routes {
    Routes::new().post(
        "/v1/runs/batch",
        Scope::Run,
        doc("Make many runs of one pipeline").body::<Batch>().gives(201, "list").refuses(&[
            Code::RunbookInvalid,
            Code::NotFound,
            Code::CapExceeded,
        ]),
        create,
    )
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Batch {
    #[serde(default)]
    pipeline: Option<String>,
    /// A hash, or the name of a deployed runbook.
    #[serde(default)]
    runbook: Option<String>,
    items: Vec<Item>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Item {
    #[serde(default)]
    vars: Map<String, Value>,
    #[serde(default)]
    priority: i32,
}

/// Makes the runs, and answers with the id of each, or with the code of why not.
async fn create(State(app): State<Arc<App>>, caller: Caller, Json(body): Json<Batch>) -> Answer {
    let invalid = |text: String| Problem::new(Code::InvalidInput, text);
    if body.items.is_empty() || body.items.len() > RUNS_MAX {
        return Err(invalid(format!("a batch has 1 to {RUNS_MAX} items")));
    }
    let (hash, runbook) =
        app.runbook_to_run(&caller, body.runbook.as_deref(), body.pipeline.as_deref()).await?;
    let pipeline = runs::pick(&runbook, body.pipeline.as_deref())?;
    let def =
        runbook.pipelines.get(&pipeline).ok_or_else(|| Problem::missing("pipeline", pipeline.as_str()))?;
    if def.workspace.is_some() || !def.needs.is_empty() {
        return Err(invalid("a pipeline with `workspace` or `needs` is run one at a time".to_owned()));
    }
    let (name, cwd) = (Name::clean(&format!("{}/{pipeline}", runbook.name)), app.default_dir());
    let mut commands = Vec::with_capacity(body.items.len());
    for (n, item) in body.items.into_iter().enumerate() {
        let vars = crate::runbook::check_vars(def, &item.vars);
        let vars = vars.map_err(|error| invalid(format!("item {n}: {error}")))?;
        let id = RunId(app.id());
        commands.push(Command::Create(Box::new(Create {
            id,
            tenant: caller.tenant.clone(),
            namespace: caller.namespace.clone(),
            runbook: hash,
            pipeline: pipeline.clone(),
            name: name.clone(),
            cwd: cwd.clone(),
            vars,
            trigger: Trigger {
                source: Source::Api,
                key: None,
                user: Some(caller.user()),
                event_id: None,
                traceparent: None,
            },
            subject: None,
            correlation_id: None,
            priority: item.priority,
            needs: Vec::new(),
            parent: None,
            depth: 0,
            deadline_at: None,
            workspace: None,
            policy: app.policy.for_run(id, &runbook, &pipeline),
        })));
    }
    let ids: Vec<Option<RunId>> = commands.iter().map(id_of).collect();
    let (send, receive) = tokio::sync::oneshot::channel();
    app.engine.ask_many(caller.actor.clone(), None, commands, move |made| {
        let _ = send.send(made);
    });
    let made = receive.await.map_err(|_| gone())?;
    let answer = |(id, made): (Option<RunId>, Result<_, Refusal>)| match made {
        Ok(_) => object!({ "id": id.map(|id| id.to_string()) }),
        Err(refusal) => {
            let code = refusal.code().unwrap_or(Code::Internal).as_str();
            object!({ "code": code, "detail": refusal.to_string() })
        }
    };
    let items: Vec<Value> = ids.into_iter().zip(made).map(answer).collect();
    Ok(json(StatusCode::CREATED, &object!({ "items": items })))
}

fn id_of(command: &Command) -> Option<RunId> {
    match command {
        Command::Create(create) => Some(create.id),
        // tidy: a batch makes runs and does nothing else.
        _ => None,
    }
}
