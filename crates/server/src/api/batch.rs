//! Many runs in one request: what would be a request for each is one turn of the loop and one sync of the disk.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Json, Problem, gone, json, runs};
use crate::app::App;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json as object};
use std::sync::Arc;
use windlass_core::canonical;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::id::{Name, RunId, Scoped};
use windlass_core::idempotency::{Input, RESPONSE_LEN_MAX, Reply, Source as KeySource};
use windlass_core::run::{Source, Trigger};
use windlass_core::turn::command::{self as core, Command, Create, Home, Refusal};
use windlass_core::turn::creation;

/// How many runs one request makes.
const RUNS_MAX: usize = 1_000;

/// Runs in batches.
pub(super) fn routes() -> Routes {
    Routes::new().post(
        "/v1/runs/batch",
        Scope::Run,
        doc("Make many runs of one pipeline")
            .header(
                "Idempotency-Key",
                "One set of runs per key, however often it is asked for",
                "^[!-~]{1,128}$",
            )
            .body::<Batch>()
            .gives(201, "list")
            .gives(200, "list")
            .refuses(&[
                Code::RunbookInvalid,
                Code::NotFound,
                Code::CapExceeded,
                Code::IdempotencyConflict,
                Code::IdempotencyExpired,
            ])
            .aside(),
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

/// Makes the runs, and answers with the id of each, or with the code of why not. Under an idempotency key each run has a key
/// of its own as well: where the process ends in between, a repeat finds the runs that were made and makes the others.
async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    Json(body): Json<Batch>,
) -> Answer {
    if body.items.is_empty() || body.items.len() > RUNS_MAX {
        return Err(invalid(format!("a batch has 1 to {RUNS_MAX} items")));
    }
    let given =
        runs::idempotency_key(&headers)?.map(|given| Keyed::new(&caller, &given, &body)).transpose()?;
    let Some(keyed) = given else {
        let commands = wished(&app, &caller, body, None).await?;
        return Ok(json(StatusCode::CREATED, &made(&app, &caller, commands).await?));
    };
    // A repeat gets its answer even where the request would not be taken any more.
    if let Some(Reply::Duplicate { response: Some(response), .. }) =
        app.known_key(&keyed.whole, KeySource::Api, keyed.hash).await?
    {
        let mut answer = json(StatusCode::OK, &response);
        runs::mark_replayed(&mut answer);
        return Ok(answer);
    }
    let commands = wished(&app, &caller, body, Some(&keyed)).await?;
    let claim = Input::Claim { source: KeySource::Api, request_hash: keyed.hash, run: None };
    let claimed = app.ask(&caller, Command::Key { key: keyed.whole.clone(), input: claim }).await;
    app.count_key(KeySource::Api, &keyed.whole, &claimed);
    let attempt = match claimed? {
        core::Reply::Key(Reply::New { attempt } | Reply::Retry { attempt, .. }) => Some(attempt),
        // tidy: the first request is being answered, and this one finds the same runs.
        _ => None,
    };
    let answer = made(&app, &caller, commands).await?;
    if let Some(attempt) = attempt {
        let response = Some(kept(&answer));
        let complete = Input::Complete { attempt, run: None, response, ttl: None };
        app.ask(&caller, Command::Key { key: keyed.whole, input: complete }).await?;
    }
    Ok(json(StatusCode::CREATED, &answer))
}

fn invalid(text: impl std::fmt::Display) -> Problem {
    Problem::new(Code::InvalidInput, text.to_string())
}

/// A batch under an idempotency key.
struct Keyed {
    whole: Scoped,
    /// What tells two requests under one key apart.
    hash: Digest,
}

impl Keyed {
    fn new(caller: &Caller, given: &Name, body: &Batch) -> Result<Keyed, Problem> {
        // Keys belong to a tenant and to who uses them.
        let name = Name::new(&format!("api:{}:{given}", caller.client)).map_err(invalid)?;
        let items: Vec<Value> =
            body.items.iter().map(|item| object!({ "vars": item.vars, "priority": item.priority })).collect();
        let what = object!({ "pipeline": body.pipeline, "runbook": body.runbook, "items": items });
        let whole = Scoped::new(&caller.tenant, &Name::clean("_"), &name);
        Ok(Keyed { whole, hash: Digest::of(&[&canonical::bytes(&what)]) })
    }

    /// The key of one of its runs.
    fn item(&self, n: usize) -> Result<(Name, Scoped), Problem> {
        let name = Name::new(&format!("{}#{n}", self.whole.name())).map_err(invalid)?;
        let scoped = Scoped::new(&Name::clean(self.whole.tenant()), &Name::clean("_"), &name);
        Ok((name, scoped))
    }
}

/// The runs that a request asks for.
async fn wished(
    app: &App,
    caller: &Caller,
    body: Batch,
    keyed: Option<&Keyed>,
) -> Result<Vec<Command>, Problem> {
    let runs::ToRun { hash, runbook, home: cwd } =
        app.runbook_to_run(caller, body.runbook.as_deref(), body.pipeline.as_deref()).await?;
    let pipeline = runs::pick(&runbook, body.pipeline.as_deref())?;
    let def =
        runbook.pipelines.get(&pipeline).ok_or_else(|| Problem::missing("pipeline", pipeline.as_str()))?;
    creation::has_place(def, None).map_err(|(code, text)| Problem::new(code, text))?;
    // What all of them come to is known before any is made.
    let vars: Vec<&Map<String, Value>> = body.items.iter().map(|item| &item.vars).collect();
    windlass_runbook::admit_vars(def, &vars)
        .map_err(|error| Problem::new(error.code(), error.to_string()))?;
    let name = Name::clean(&format!("{}/{pipeline}", runbook.name));
    let mut commands = Vec::with_capacity(body.items.len());
    for (n, item) in body.items.into_iter().enumerate() {
        let fit = windlass_runbook::fit_vars(def, &item.vars);
        fit.map_err(|error| invalid(format!("item {n}: {error}")))?;
        let id = RunId(app.id());
        let (name_of_key, key) = keyed.map(|keyed| keyed.item(n)).transpose()?.unzip();
        let (tenant, namespace) = (caller.tenant.clone(), caller.namespace.clone());
        let home = Home { tenant, namespace, runbook: hash, cwd: cwd.clone() };
        let trigger = Trigger { key: name_of_key, user: Some(caller.user()), ..Trigger::of(Source::Api) };
        let create = Box::new(Create {
            name: name.clone(),
            priority: item.priority,
            policy: app.policy.for_run(id, &runbook, &pipeline),
            // The defaults join the variables where the run is decided, one at a time.
            ..Create::new(id, home, pipeline.clone(), Value::Object(item.vars), trigger)
        });
        let source = KeySource::Api;
        commands.push(match (key, keyed) {
            (Some(key), Some(Keyed { hash, .. })) => {
                Command::Deliver { key, source, request_hash: *hash, create }
            }
            (Some(_) | None, _) => Command::Create(create),
        });
    }
    Ok(commands)
}

/// Makes the runs: the answer.
async fn made(app: &App, caller: &Caller, commands: Vec<Command>) -> Result<Value, Problem> {
    let (send, receive) = tokio::sync::oneshot::channel();
    app.engine.ask_many(caller.actor.clone(), None, commands, move |made| {
        let _ = send.send(made);
    });
    let made = receive.await.map_err(|_| gone())?;
    let answer = |made: Result<core::Reply, Refusal>| match made {
        Ok(core::Reply::Created(id) | core::Reply::Known { run: Some(id), .. }) => {
            object!({ "id": id.to_string() })
        }
        Ok(other) => object!({ "code": Code::Internal.as_str(), "detail": format!("{other:?} came") }),
        Err(refusal) => {
            let code = refusal.code().unwrap_or(Code::Internal).as_str();
            object!({ "code": code, "detail": refusal.to_string() })
        }
    };
    let items: Vec<Value> = made.into_iter().map(answer).collect();
    Ok(object!({ "items": items }))
}

/// The answer as it is kept for repeats: where it is too long, without the texts of refusals.
fn kept(answer: &Value) -> Value {
    let mut kept = answer.clone();
    if canonical::bytes(&kept).len() > RESPONSE_LEN_MAX {
        for item in kept["items"].as_array_mut().into_iter().flatten() {
            item.as_object_mut().map(|item| item.remove("detail"));
        }
    }
    kept
}
