//! Runs: making them, looking at them, and what can be asked of them.

use super::listing;
use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Json, Problem, invalid, json};
use crate::app::App;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json as object};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use windlass_api::run::Run;
use windlass_api::{List, step};
use windlass_core::canonical;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::id::{Name, RunId, Scoped, StepId};
use windlass_core::idempotency::{self, Source as KeySource};
use windlass_core::machine::Beats;
use windlass_core::run::{Initiator, Source, Status, Trigger};
use windlass_core::runbook::Runbook;
use windlass_core::step::Resolution;
use windlass_core::stream::StreamId;
use windlass_core::turn::View as _;
use windlass_core::turn::command::{Arrival, Command, Create, Home, Reply, Signal};
use windlass_core::turn::state::{Body, State as Known};
use windlass_core::wire::shorten;
use windlass_engine::port::Store as _;
use windlass_store::store::{self, Embedded, Listed, RunFilter};

/// Everything about runs.
pub(super) fn routes() -> Routes {
    const CREATE: &[Code] = &[
        Code::RunbookInvalid,
        Code::NotFound,
        Code::IdempotencyConflict,
        Code::IdempotencyExpired,
        Code::CapExceeded,
    ];
    const STEER: &[Code] = &[Code::NotFound, Code::RunInvalidTransition, Code::RunTerminalState];
    let listed = doc("List runs, newest first").query::<listing::Listing>().gives(200, "list run");
    let created = doc("Make a run")
        .header("Idempotency-Key", "One run per key, however often it is asked for", "^[!-~]{1,128}$")
        .body::<NewRun>()
        .gives(201, "run")
        .gives(200, "run")
        .gives(202, "run");
    let act = |text| doc(text).gives(200, "run").refuses(STEER);
    Routes::new()
        .get("/v1/runs", Scope::Read, listed, listing::list)
        .post("/v1/runs", Scope::Run, created.refuses(CREATE), create)
        .get(
            "/v1/runs/{id}",
            Scope::Read,
            doc("Show a run").gives(200, "run").refuses(&[Code::NotFound]),
            show,
        )
        .get(
            "/v1/runs/{id}/steps",
            Scope::Read,
            doc("List its steps").gives(200, "list step").refuses(&[Code::NotFound]),
            steps,
        )
        .get(
            "/v1/runs/{id}/checkpoints",
            Scope::Read,
            doc("List what its steps saved, and its messages")
                .gives(200, "list checkpoint")
                .refuses(&[Code::NotFound]),
            checkpoints,
        )
        .get(
            "/v1/runs/{id}/why",
            Scope::Read,
            doc("Say what it waits for").gives(200, "why").refuses(&[Code::NotFound]),
            super::why::why,
        )
        .post("/v1/runs/{id}/cancel", Scope::Run, act("Stop it").body::<Reason>(), cancel)
        .post("/v1/runs/{id}/suspend", Scope::Run, act("Lease nothing of it").body::<Reason>(), suspend)
        .post("/v1/runs/{id}/resume", Scope::Run, act("Let it go on").body::<Resume>(), resume)
        .post(
            "/v1/runs/{id}/retry",
            Scope::Run,
            doc("Go on from it in a new run; one that waits to be tried again is tried now")
                .gives(201, "run")
                .gives(200, "run")
                .refuses(STEER),
            retry,
        )
        .post(
            "/v1/runs/{id}/fork",
            Scope::Run,
            doc("Go on from a step in a new run").body::<Fork>().gives(201, "run").refuses(STEER),
            fork,
        )
        .post(
            "/v1/runs/{id}/signals/{name}",
            Scope::Run,
            doc("Deliver an event to it").body::<Data>().gives(200, "run").refuses(STEER),
            signal,
        )
        .post(
            "/v1/runs/{id}/steps/{step}/resolve",
            Scope::Approve,
            act("Settle an unknown outcome or an escalation").body::<Resolve>(),
            resolve,
        )
        .post(
            "/v1/signals/{name}",
            Scope::Run,
            doc("Deliver an event by its key").body::<Data>().gives(200, "delivered").refuses(STEER),
            signal_by_key,
        )
}

/// Where an idempotency key may stand, the first that does wins.
const KEY_HEADERS: [&str; 3] = ["idempotency-key", "x-idempotency-key", "x-request-id"];

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewRun {
    #[serde(default)]
    pipeline: Option<String>,
    /// A hash, or the name of a deployed runbook.
    #[serde(default)]
    runbook: Option<String>,
    #[serde(default)]
    vars: Map<String, Value>,
    /// Runs that must be completed first.
    #[serde(default)]
    after: Vec<String>,
    /// Where steps run that name no directory.
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    correlation_id: Option<String>,
    /// `cli` where the command line asks, `ui` where the page does; `api` where absent.
    #[serde(default)]
    source: Option<String>,
}

/// A runbook that a run is to be made of.
pub(super) struct ToRun {
    pub(super) hash: Digest,
    pub(super) runbook: Arc<Runbook>,
    /// Where its steps run: the directory it was deployed from.
    pub(super) home: String,
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    Json(body): Json<NewRun>,
) -> Answer {
    let given = idempotency_key(&headers)?;
    let Some(given) = given else {
        let create = wish(&app, &caller, &headers, body, None).await?;
        let asked = app.ask(&caller, Command::Create(Box::new(create))).await?;
        return made(&app, asked).await;
    };
    // Keys belong to a tenant and to who uses them.
    let name = Name::new(&format!("api:{}:{given}", caller.client)).map_err(invalid)?;
    let key = Scoped::new(&caller.tenant, &Name::clean("_"), &name);
    let (source, request_hash) = (KeySource::Api, request_hash(&body));
    // A repeat gets its answer even where the request would not be taken any more.
    let known = match app.known_key(&key, source, request_hash).await? {
        Some(idempotency::Reply::Duplicate { run, .. }) => Some((run, false)),
        Some(idempotency::Reply::InFlight { run }) => Some((run, true)),
        // tidy: anything else may go on, and the claim itself decides.
        Some(_) | None => None,
    };
    if let Some((run, in_flight)) = known {
        return made(&app, Reply::Known { run, in_flight }).await;
    }
    let create = Box::new(wish(&app, &caller, &headers, body, Some(name)).await?);
    let deliver = Command::Deliver { key: key.clone(), source, request_hash, create };
    let asked = app.ask(&caller, deliver).await;
    app.count_key(source, &key, &asked);
    made(&app, asked?).await
}

/// The run that a request asks for.
async fn wish(
    app: &App,
    caller: &Caller,
    headers: &HeaderMap,
    body: NewRun,
    key: Option<Name>,
) -> Result<Create, Problem> {
    if body.cwd.is_some() && !caller.may(Scope::Deploy) {
        // A command line that is found relative to a directory is another one in another directory.
        let text =
            "to name the directory of a run, `cwd`, needs the scope `deploy`, which the caller does not have";
        return Err(Problem::new(Code::Forbidden, text));
    }
    if let Some(cwd) = &body.cwd {
        app.check_root(caller, cwd).await?;
    }
    let ToRun { hash, runbook, home } =
        app.runbook_to_run(caller, body.runbook.as_deref(), body.pipeline.as_deref()).await?;
    let pipeline = pick(&runbook, body.pipeline.as_deref())?;
    let def =
        runbook.pipelines.get(&pipeline).ok_or_else(|| Problem::missing("pipeline", pipeline.as_str()))?;
    windlass_runbook::fit_vars(def, &body.vars).map_err(invalid)?;
    let mut needs = Vec::new();
    for text in &body.after {
        needs.push(app.find_run(caller, text).await?);
    }
    let id = RunId(app.id());
    let source = match body.source.as_deref() {
        None | Some("api") => Source::Api,
        Some("cli") => Source::Cli,
        Some("ui") => Source::Ui,
        Some(other) => {
            return Err(invalid(format!("`source` is `cli`, `ui` or `api`, and `{other}` is none of them")));
        }
    };
    let policy = app.policy.for_run(id, &runbook, &pipeline);
    let name = Name::clean(&format!("{}/{pipeline}", runbook.name));
    let (tenant, namespace) = (caller.tenant.clone(), caller.namespace.clone());
    let home = Home { tenant, namespace, runbook: hash, cwd: body.cwd.unwrap_or(home) };
    let trigger = Trigger {
        key,
        user: Some(caller.user()),
        traceparent: super::hooks::traceparent(headers),
        ..Trigger::of(source)
    };
    Ok(Create {
        name,
        correlation_id: body.correlation_id.map(|id| Name::new(&id).map_err(invalid)).transpose()?,
        priority: body.priority,
        needs,
        policy,
        ..Create::new(id, home, pipeline, Value::Object(body.vars), trigger)
    })
}

/// The answer to a request for a run: the new one, or the one that was made before.
async fn made(app: &App, reply: Reply) -> Answer {
    let (run, status, replayed) = match reply {
        Reply::Created(run) => (run, StatusCode::CREATED, false),
        Reply::Known { run: Some(run), in_flight: true } => (run, StatusCode::ACCEPTED, false),
        Reply::Known { run: Some(run), in_flight: false } => (run, StatusCode::OK, true),
        other => {
            return Err(Problem::new(Code::Internal, format!("a run was asked for, and {other:?} came")));
        }
    };
    let mut response = match one(app, run).await {
        // The request made this run, and it has left after its retention.
        Err(problem) if replayed && problem.code == Code::NotFound => json(status, &object!({ "id": run })),
        shown => json(status, &shown?),
    };
    if let Ok(place) = HeaderValue::from_str(&format!("/v1/runs/{run}")) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    if replayed {
        mark_replayed(&mut response);
    }
    Ok(response)
}

/// Says that an answer was given before.
pub(super) fn mark_replayed(response: &mut Response) {
    let name = HeaderName::from_static("idempotent-replayed");
    response.headers_mut().insert(name, HeaderValue::from_static("true"));
}

/// What tells two requests under one key apart.
fn request_hash(body: &NewRun) -> Digest {
    let what = object!({
        "pipeline": body.pipeline, "runbook": body.runbook, "vars": body.vars, "after": body.after,
    });
    Digest::of(&[&canonical::bytes(&what)])
}

pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<Name>, Problem> {
    let Some(value) = KEY_HEADERS.iter().find_map(|name| headers.get(*name)) else { return Ok(None) };
    let text = value.to_str().map_err(|_| invalid("the idempotency key is not plain text"))?;
    Name::new(text).map(Some).map_err(invalid)
}

/// The pipeline that is meant: the named one, the only one, or `default`.
pub(super) fn pick(runbook: &Runbook, wanted: Option<&str>) -> Result<Name, Problem> {
    let names = || runbook.pipelines.keys().map(Name::as_str).collect::<Vec<_>>().join(", ");
    match wanted {
        Some(wanted) => match runbook.pipelines.keys().find(|name| name.as_str() == wanted) {
            Some(name) => Ok(name.clone()),
            None => Err(Problem::new(
                Code::NotFound,
                format!("there is no pipeline `{}`; this runbook has {}", shorten(wanted), names()),
            )),
        },
        None => {
            let mut all = runbook.pipelines.keys();
            match (all.next(), all.next()) {
                (Some(only), None) => Ok(only.clone()),
                (_, _) => runbook
                    .pipelines
                    .keys()
                    .find(|name| name.as_str() == "default")
                    .cloned()
                    .ok_or_else(|| invalid(format!("say which pipeline: {}", names()))),
            }
        }
    }
}

impl App {
    /// A runbook by its hash or its deployed name; without either, the deployed one that has the pipeline.
    pub(super) async fn runbook(
        &self,
        caller: &Caller,
        wanted: Option<&str>,
        pipeline: Option<&str>,
    ) -> Result<(Digest, Arc<Runbook>), Problem> {
        let (caller, wanted, pipeline) =
            (caller.clone(), wanted.map(str::to_owned), pipeline.map(str::to_owned));
        self.look(move |store| find_runbook(store, &caller, wanted.as_deref(), pipeline.as_deref())).await?
    }

    /// The runbook that a run is to be made of. Without the scope `deploy` that is an active version of the caller's
    /// namespace: what was only stored is a command line of whoever stored it.
    pub(super) async fn runbook_to_run(
        &self,
        caller: &Caller,
        wanted: Option<&str>,
        pipeline: Option<&str>,
    ) -> Result<ToRun, Problem> {
        if let Some(hash) = wanted.and_then(Digest::parse) {
            // One that is about to leave stays for that. To look at it keeps none.
            let loaded = self.look(move |store| store.load(&[StreamId::Runbook(hash)])).await?;
            loaded.map_err(|fault| Problem::new(fault.code(), fault.to_string()))?;
        }
        let (hash, runbook) = self.runbook(caller, wanted, pipeline).await?;
        let who = caller.clone();
        let home = self.look(move |store| home_of(store, &who, hash)).await?;
        if caller.may(Scope::Deploy) || home.is_some() {
            let home = home.filter(|home| !home.is_empty()).unwrap_or_else(|| self.default_dir());
            return Ok(ToRun { hash, runbook, home });
        }
        let text = "this runbook is not deployed in the caller's namespace, and to bring one needs the scope `deploy`, \
                    which the caller does not have; name a deployed runbook";
        Err(Problem::new(Code::Forbidden, text))
    }

    /// A page of runs, and where the next begins. Where many are in memory, others get their turn in between.
    pub(super) async fn runs(&self, mut filter: RunFilter) -> Result<(Vec<Run>, Option<RunId>), Problem> {
        let (mut items, limit) = (Vec::new(), filter.limit);
        loop {
            filter.limit = limit - items.len();
            let asked = filter.clone();
            let look = move |store: &mut Embedded| {
                let (page, next) = store.list_runs(&asked, Run::listed)?;
                let name = |run: Listed<Run>| match run {
                    Listed::Live(id, mut run) => {
                        run.runbook = runbook_name(store.state(), run.runbook_hash);
                        Listed::Live(id, run)
                    }
                    left @ Listed::Left(_) => left,
                };
                let named: Vec<Listed<Run>> = page.into_iter().map(name).collect();
                Ok::<_, windlass_store::history::Error>((named, next))
            };
            let (page, next) = self.look(look).await??;
            items.extend(page);
            if items.len() == limit || next.is_none() {
                return self.read_back(items, next).await;
            }
            filter.before = next;
        }
    }

    /// Shows the runs of a page that have left memory as they were there: what is private of them stands in the log alone.
    /// That may cost more than one page should, and then the page ends early.
    async fn read_back(
        &self,
        items: Vec<Listed<Run>>,
        next: Option<RunId>,
    ) -> Result<(Vec<Run>, Option<RunId>), Problem> {
        let left = items.iter().filter(|item| matches!(item, Listed::Left(_)));
        let away: Vec<RunId> = left.map(Listed::id).collect();
        let (mut read, mut unread) = (BTreeMap::new(), None);
        if !away.is_empty() {
            let places = self.look(move |store| store.places_of(&away)).await??;
            let log = self.log.clone();
            let show = |run: &windlass_core::run::Run| Run::listed(run, &Beats::default());
            let back = tokio::task::spawn_blocking(move || store::read_back(&log, &places, show)).await;
            let back = back.map_err(|_| Problem::new(Code::Internal, "the runs could not be read"))?;
            (read, unread) = back.map_err(|error| Problem::new(error.code(), error.to_string()))?;
        }
        let cut = unread.and_then(|unread| items.iter().position(|item| item.id() == unread));
        let kept = cut.unwrap_or(items.len());
        let next = if cut.is_some() { items[..kept].last().map(Listed::id) } else { next };
        let shown = items.into_iter().take(kept).filter_map(|item| match item {
            Listed::Live(_, run) => Some(run),
            // One that has left the log meanwhile is shown by what its row keeps.
            Listed::Left(row) => read.remove(&row.id).or_else(|| serde_json::from_str(&row.json).ok()),
        });
        let mut shown: Vec<Run> = shown.collect();
        let unnamed: BTreeSet<Digest> =
            shown.iter().filter(|run| run.runbook.is_none()).map(|run| run.runbook_hash).collect();
        if !unnamed.is_empty() {
            let named = move |store: &mut Embedded| {
                let name = |hash: Digest| Some((hash, runbook_name(store.state(), hash)?));
                unnamed.into_iter().filter_map(name).collect::<BTreeMap<Digest, Name>>()
            };
            let names = self.look(named).await?;
            for run in shown.iter_mut().filter(|run| run.runbook.is_none()) {
                run.runbook = names.get(&run.runbook_hash).cloned();
            }
        }
        Ok((shown, next))
    }
}

/// The name of a runbook, as long as it is stored.
fn runbook_name(state: &Known, hash: Digest) -> Option<Name> {
    match &state.stream(&StreamId::Runbook(hash))?.body {
        Body::Runbook(runbook) => Some(runbook.name.clone()),
        // tidy: the stream of a runbook holds one.
        _ => None,
    }
}

/// The directory of a runbook that is the active version of its name.
fn home_of(store: &Embedded, caller: &Caller, hash: Digest) -> Option<String> {
    let state = store.state();
    let names = state.deployments(&caller.tenant, &caller.namespace);
    names.into_iter().find_map(|name| match &state.stream(&StreamId::Deployment(name))?.body {
        Body::Deployment(active) => {
            let active = active.as_ref().as_ref().filter(|active| active.hash == hash)?;
            Some(active.project_root.clone())
        }
        // tidy: the stream of a deployment holds one.
        _ => None,
    })
}

fn find_runbook(
    store: &mut Embedded,
    caller: &Caller,
    wanted: Option<&str>,
    pipeline: Option<&str>,
) -> Result<(Digest, Arc<Runbook>), Problem> {
    let state = store.state();
    let by_hash = |hash: Digest| match state.stream(&StreamId::Runbook(hash)) {
        Some(stream) if stream.tenant == caller.tenant => match &stream.body {
            Body::Runbook(runbook) => Some((hash, runbook.clone())),
            // tidy: the stream of a runbook holds one.
            _ => None,
        },
        Some(_) | None => None,
    };
    let deployed = || {
        let names = state.deployments(&caller.tenant, &caller.namespace).into_iter();
        names.filter_map(|name| match &state.stream(&StreamId::Deployment(name))?.body {
            Body::Deployment(active) => active.as_ref().as_ref().and_then(|active| by_hash(active.hash)),
            // tidy: the stream of a deployment holds one.
            _ => None,
        })
    };
    let found = match wanted {
        Some(text) => {
            let known = Digest::parse(text)
                .and_then(by_hash)
                .or_else(|| deployed().find(|(_, runbook)| runbook.name.as_str() == text));
            match known {
                Some(found) => Some(found),
                None => version(state, caller, text)?.and_then(by_hash),
            }
        }
        None => deployed().find(|(_, runbook)| {
            pipeline.is_none_or(|wanted| runbook.pipelines.keys().any(|name| name.as_str() == wanted))
        }),
    };
    found.ok_or_else(|| match wanted {
        Some(text) => Problem::missing("runbook", text),
        None => Problem::new(Code::NotFound, "no deployed runbook has that pipeline; say which `runbook`"),
    })
}

/// The stored versions that a text means: a hash, `NAME@HASH` with the beginning of a hash, or all of a name.
pub(super) fn versions(state: &Known, caller: &Caller, text: &str) -> Vec<Digest> {
    if let Some(hash) = Digest::parse(text) {
        return vec![hash];
    }
    let (name, begin) = text.rsplit_once('@').map_or((text, ""), |(name, begin)| (name, begin));
    let begin = begin.to_ascii_lowercase();
    let books = state.streams_from(StreamId::Runbook(Digest([0; 32])));
    let books = books.map_while(|(id, stream)| match (id, &stream.body) {
        (StreamId::Runbook(hash), Body::Runbook(runbook)) => Some((hash, runbook, stream)),
        // tidy: the next kind begins.
        _ => None,
    });
    let mine = books.filter(|(_, runbook, stream)| {
        stream.tenant == caller.tenant && [name, text].contains(&runbook.name.as_str())
    });
    // A name may have the sign in it.
    let begins = |hash: &Digest, runbook: &Runbook| {
        runbook.name.as_str() == text || hash.to_string().starts_with(&begin)
    };
    mine.filter(|(hash, runbook, _)| begins(hash, runbook)).map(|(hash, ..)| *hash).collect()
}

/// The one stored version that `NAME@HASH` means.
fn version(state: &Known, caller: &Caller, text: &str) -> Result<Option<Digest>, Problem> {
    if !text.contains('@') {
        return Ok(None);
    }
    match versions(state, caller, text).as_slice() {
        [] => Ok(None),
        [only] => Ok(Some(*only)),
        [_, _, ..] => Err(invalid(format!("`{}` begins several hashes; write more of it", shorten(text)))),
    }
}

/// A run as it is now, with its steps.
pub(super) async fn one(app: &App, id: RunId) -> Result<Run, Problem> {
    let look = move |store: &mut Embedded| {
        let run = store.show_run(id, Run::whole)?;
        Some(Run { runbook: runbook_name(store.state(), run.runbook_hash), ..run })
    };
    let found = app.look(look).await?;
    found.ok_or_else(|| Problem::missing("run", &id.to_string()))
}

pub(super) async fn show(State(app): State<Arc<App>>, caller: Caller, Path(id): Path<String>) -> Answer {
    let id = app.find_run(&caller, &id).await?;
    Ok(json(StatusCode::OK, &one(&app, id).await?))
}

pub(super) async fn steps(State(app): State<Arc<App>>, caller: Caller, Path(id): Path<String>) -> Answer {
    let id = app.find_run(&caller, &id).await?;
    let steps = one(&app, id).await?.steps.unwrap_or_default();
    Ok(json(StatusCode::OK, &List::from(steps)))
}

async fn checkpoints(State(app): State<Arc<App>>, caller: Caller, Path(id): Path<String>) -> Answer {
    let id = app.find_run(&caller, &id).await?;
    let found = app.look(move |store| store.show_run(id, |run, def, _| step::checkpoints(run, def))).await?;
    let found = found.ok_or_else(|| Problem::missing("run", &id.to_string()))?;
    Ok(json(StatusCode::OK, &List::from(found)))
}

/// Asks something of a run and answers with the run.
async fn on_run(app: &App, caller: &Caller, id: RunId, command: Command) -> Result<Response, Problem> {
    app.ask(caller, command).await?;
    Ok(json(StatusCode::OK, &one(app, id).await?))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Reason {
    #[serde(default)]
    reason: Option<String>,
}

pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    Json(body): Json<Reason>,
) -> Answer {
    let run = app.find_run(&caller, &id).await?;
    let (initiator, user) = (Initiator::User, Some(caller.user()));
    let answer =
        on_run(&app, &caller, run, Command::Cancel { run, initiator, user, reason: body.reason }).await;
    // What was leased just before may be about to begin: after the answer nothing is.
    app.settle(run).await;
    answer
}

pub(super) async fn suspend(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    Json(body): Json<Reason>,
) -> Answer {
    let run = app.find_run(&caller, &id).await?;
    on_run(&app, &caller, run, Command::Suspend { run, reason: body.reason }).await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Resume {
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    vars: Option<Value>,
}

pub(super) async fn resume(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    Json(body): Json<Resume>,
) -> Answer {
    let run = app.find_run(&caller, &id).await?;
    on_run(&app, &caller, run, Command::Resume { run, message: body.message, vars: body.vars }).await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Fork {
    from: String,
    #[serde(default)]
    runbook: Option<String>,
}

/// Makes a run that goes on from another.
async fn descend(
    app: &App,
    caller: &Caller,
    run: RunId,
    from: Option<StepId>,
    runbook: Option<Digest>,
) -> Result<Response, Problem> {
    let new = RunId(app.id());
    app.ask(caller, Command::Descend { run, new, from, runbook }).await?;
    Ok(json(StatusCode::CREATED, &one(app, new).await?))
}

pub(super) async fn retry(State(app): State<Arc<App>>, caller: Caller, Path(id): Path<String>) -> Answer {
    let run = app.find_run(&caller, &id).await?;
    let status = app.look(move |store| store.state().run(run).map(|run| run.status())).await?;
    if status == Some(Status::FailedRetryable) {
        // It will be tried again by itself; whoever asks does not want to wait for that.
        return on_run(&app, &caller, run, Command::Resume { run, message: None, vars: None }).await;
    }
    descend(&app, &caller, run, None, None).await
}

pub(super) async fn fork(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    Json(body): Json<Fork>,
) -> Answer {
    let run = app.find_run(&caller, &id).await?;
    let from = StepId::new(&body.from).map_err(invalid)?;
    let runbook = match body.runbook.as_deref() {
        Some(text) => Some(app.runbook_to_run(&caller, Some(text), None).await?.hash),
        None => None,
    };
    descend(&app, &caller, run, Some(from), runbook).await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Data {
    #[serde(default)]
    data: Value,
    #[serde(default)]
    key: Option<String>,
    /// The source's own id of the event: the same one is taken once.
    #[serde(default)]
    event_id: Option<String>,
}

pub(super) async fn signal(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, name)): Path<(String, String)>,
    Json(mut body): Json<Data>,
) -> Answer {
    let run = app.find_run(&caller, &id).await?;
    if caller.attempt.is_some() {
        let mask = app.mask_of(run).await;
        body.data = mask.value(&body.data);
    }
    let replayed = send(&app, &caller, &name, body, Some(run)).await?.1;
    let mut response = json(StatusCode::OK, &one(&app, run).await?);
    if replayed {
        mark_replayed(&mut response);
    }
    Ok(response)
}

/// Sends an event to whoever waits for its key; one that nobody waits for yet is kept.
pub(super) async fn signal_by_key(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Json(body): Json<Data>,
) -> Answer {
    let key = body.key.clone().ok_or_else(|| invalid("say for which `key`"))?;
    let (reply, replayed) = send(&app, &caller, &name, body, None).await?;
    let mut told = object!({ "name": name, "key": key });
    if let Reply::SignalKept = reply {
        told["kept"] = Value::Bool(true);
    }
    let mut response = json(StatusCode::OK, &told);
    if replayed {
        mark_replayed(&mut response);
    }
    Ok(response)
}

/// Sends an event, once where its source gave it an id; says whether it was sent before.
async fn send(
    app: &App,
    caller: &Caller,
    name: &str,
    body: Data,
    to: Option<RunId>,
) -> Result<(Reply, bool), Problem> {
    let name = Name::new(name).map_err(invalid)?;
    let key = body.key.as_deref().map(Name::new).transpose().map_err(invalid)?;
    let event_id = body.event_id.as_deref().map(Name::new).transpose().map_err(invalid)?;
    let (tenant, namespace) = (caller.tenant.clone(), caller.namespace.clone());
    let signal = Signal { tenant, namespace, name, key, data: body.data, event_id, user: None };
    let Some(event_id) = &signal.event_id else {
        let Signal { name, key, data, .. } = signal.clone();
        let command = match to {
            Some(run) => Command::Signal { run, name, key, data, event_id: None },
            None => Command::SignalKey(Box::new(signal)),
        };
        return Ok((app.ask(caller, command).await?, false));
    };
    // The event's own name may be long, so its place in the key is a hash.
    let what = object!([to, signal.namespace, signal.name, signal.key, event_id]);
    let own = format!("signal:{}", Digest::of(&[&canonical::bytes(&what)]));
    let own = idempotency::api(caller.client.as_str(), &own).map_err(invalid)?;
    let arrival = Arrival {
        key: Scoped::new(&caller.tenant, &Name::clean("_"), &own),
        source: KeySource::Api,
        request_hash: Digest::of(&[&canonical::bytes(&signal.data)]),
        creates: Vec::new(),
        signals: vec![signal],
        to,
        response: None,
        failure: None,
        event: None,
        also: Vec::new(),
    };
    let key = arrival.key.clone();
    let asked = app.ask(caller, Command::Arrive(Box::new(arrival))).await;
    app.count_key(KeySource::Api, &key, &asked);
    let reply = asked?;
    let known = matches!(reply, Reply::Known { .. });
    Ok((reply, known))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Resolve {
    resolution: String,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    output: Option<Value>,
}

pub(super) async fn resolve(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, step)): Path<(String, String)>,
    Json(body): Json<Resolve>,
) -> Answer {
    if !caller.is_human() {
        return Err(Problem::new(Code::Forbidden, "what became of a step is settled by a human"));
    }
    let run = app.find_run(&caller, &id).await?;
    let step = StepId::new(&step).map_err(invalid)?;
    let resolution =
        Resolution::parse(&body.resolution).ok_or_else(|| invalid("`resolution` is done, retry or fail"))?;
    if body.reason.as_deref().is_none_or(str::is_empty) {
        return Err(invalid("say why: `reason` stands in the record"));
    }
    if body.output.is_some() && resolution != Resolution::Done {
        return Err(invalid("`output` goes with the resolution `done` only"));
    }
    let (reason, output) = (body.reason, body.output);
    on_run(&app, &caller, run, Command::Resolve { run, step, resolution, probed: false, reason, output })
        .await
}
