//! Runbooks: loading them under their hash, and planning a run without making one.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Json, Problem, Query, Raw, json, runs};
use crate::app::App;
use crate::policy::About;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json as object};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use windlass_api::{List, time};
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::event::Event;
use windlass_core::id::{Name, Scoped};
use windlass_core::private::Private;
use windlass_core::runbook::{Pipeline, Runbook};
use windlass_core::schedule;
use windlass_core::small;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::View as _;
use windlass_core::turn::command::{Command, Deploy};
use windlass_core::turn::deployment::Active;
use windlass_core::turn::state::Body;
use windlass_core::wire::shorten;
use windlass_engine::port::Clock;
use windlass_runbook::cron;
use windlass_runbook::{self, Described, Loaded, Problems};
use windlass_store::log::Seqs;
use windlass_store::store::Embedded;

/// Everything about runbooks.
pub(super) fn routes() -> Routes {
    let load_doc = doc("Store a runbook and make it the active version of its name")
        .query::<How>()
        .body::<Files>()
        .or_text("application/yaml");
    let plan_doc = doc("Say what a run would do; nothing is executed").body::<Plan>().gives(200, "plan");
    const REFUSED: &[Code] = &[Code::RunbookInvalid, Code::NotFound];
    const DEPLOY: &[Code] = &[Code::RunbookInvalid, Code::DeployConflict, Code::Forbidden, Code::CapExceeded];
    const BACK: &[Code] = &[Code::RunbookInvalid, Code::DeployConflict, Code::NotFound];
    Routes::new()
        .get("/v1/runbooks", Scope::Read, doc("List runbooks").gives(200, "list runbook"), list)
        .post("/v1/runbooks", Scope::Deploy, load_doc.gives(201, "runbook").refuses(DEPLOY).aside(), load)
        .get(
            "/v1/runbooks/{runbook}",
            Scope::Read,
            doc("Show a runbook: by its hash, by its deployed name, or as NAME@HASH with the beginning of a hash")
                .gives(200, "runbook")
                .refuses(REFUSED),
            show,
        )
        .post(
            "/v1/runbooks/{runbook}/rollback",
            Scope::Deploy,
            doc("Make an earlier version of a name the active one again")
                .body::<Rollback>()
                .gives(200, "runbook")
                .refuses(BACK),
            rollback,
        )
        .post(
            "/v1/runbooks/{runbook}/undeploy",
            Scope::Deploy,
            doc("Leave a name without an active version").gives(200, "runbook").refuses(BACK),
            undeploy,
        )
        .post("/v1/plan", Scope::Read, plan_doc.refuses(REFUSED).aside(), plan)
}

/// Files as a client sends them: a runbook with its includes, or those of a policy.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Files {
    /// Of a runbook, the first is the runbook; the others are what it includes.
    pub(super) files: Vec<File>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) name: String,
    pub(super) text: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct How {
    #[serde(default)]
    deploy: Option<bool>,
    /// Where the runs of its workers and schedules run; the server's own directory where absent.
    #[serde(default)]
    project_root: Option<String>,
}

/// Included files that came with the runbook.
struct Sent(BTreeMap<PathBuf, String>);

impl windlass_runbook::Files for Sent {
    fn text(&self, name: &std::path::Path) -> Result<String, windlass_runbook::Problem> {
        let missing = || windlass_runbook::Problem::whole(format!("`{}` was not sent along", name.display()));
        self.0.get(name).cloned().ok_or_else(missing)
    }
}

fn invalid(problems: &Problems) -> Problem {
    let more = Some(object!({ "problems": problems.json() }));
    Problem { more, ..Problem::new(Code::RunbookInvalid, problems.render(false)) }
}

fn read(headers: &HeaderMap, body: &Bytes, described: &Described) -> Result<Loaded, Problem> {
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
    windlass_runbook::parse(&first.name, &first.text, &included, described)
        .map_err(|problems| invalid(&problems))
}

pub(super) async fn load(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(how): Query<How>,
    headers: HeaderMap,
    Raw(body): Raw,
) -> Answer {
    let loaded = read(&headers, &body, app.tools.registry.signatures())?;
    let (hash, runbook) = (own_hash(&caller.tenant, loaded.hash), loaded.runbook);
    let tenant = caller.tenant.clone();
    let command =
        Command::Load { hash, tenant, runbook: Box::new(runbook.clone()), source: Some(loaded.source) };
    app.ask(&caller, command).await?;
    let (tenant, namespace) = (caller.tenant.clone(), caller.namespace.clone());
    if !how.deploy.unwrap_or(true) {
        app.ask(&caller, Command::Declare { tenant, namespace, hash }).await?;
        return Ok(json(StatusCode::CREATED, &describe(hash, &runbook)));
    }
    let project_root = how.project_root.unwrap_or_else(|| app.default_dir());
    let item = deploy(&app, &caller, (hash, &runbook), project_root).await?;
    Ok(json(StatusCode::CREATED, &item))
}

/// Makes a stored runbook the active version of its name.
async fn deploy(
    app: &App,
    caller: &Caller,
    (hash, runbook): (Digest, &Runbook),
    project_root: String,
) -> Result<Value, Problem> {
    let deployment = Scoped::new(&caller.tenant, &caller.namespace, &runbook.name);
    // In the server's own directory, which is what those have who name none, steps are refused where they begin.
    if project_root != app.default_dir() {
        app.check_root(caller, &project_root).await?;
    }
    let next = first_slots(caller, runbook, hash)?;
    let deploy = Deploy { deployment: deployment.clone(), hash, project_root, next };
    let asked = app.ask(caller, Command::Deploy(Box::new(deploy))).await;
    learn_roots(app).await?;
    asked?;
    let mut item = describe(hash, runbook);
    if let Some(active) = app.look(move |store| active(store, &deployment).cloned()).await? {
        tell_active(&mut item, Some(&active));
    }
    Ok(item)
}

/// From now on, directories are whose they are by what is deployed.
async fn learn_roots(app: &App) -> Result<(), Problem> {
    if let Some(roots) = app.roots.clone() {
        app.look(move |store| roots.learn(store.state())).await?;
    }
    Ok(())
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Rollback {
    /// The hash of the version, or its beginning; the version that was active before where absent.
    #[serde(default)]
    to: Option<String>,
}

/// A version of a name that was active once.
struct Version {
    hash: Digest,
    project_root: String,
}

pub(super) async fn rollback(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Json(asked): Json<Rollback>,
) -> Answer {
    let deployment = deployment_of(&caller, &name)?;
    let earlier = versions(&app, &deployment).await?;
    let of = deployment.clone();
    let now = app.look(move |store| active(store, &of).map(|active| active.hash)).await?;
    let mut others = earlier.into_iter().rev().filter(|version| Some(version.hash) != now);
    let found = match &asked.to {
        None => others.next(),
        Some(text) if text.is_empty() => None,
        Some(text) => {
            let mut begins = others.filter(|version| version.hash.to_string().starts_with(text.as_str()));
            let found = begins.next();
            if found.as_ref().is_some_and(|found| begins.any(|other| other.hash != found.hash)) {
                let text =
                    format!("`{}` begins the hash of several versions; write more of it", shorten(text));
                return Err(Problem::new(Code::InvalidInput, text));
            }
            found
        }
    };
    let version = found.ok_or_else(|| {
        let which =
            asked.to.as_deref().map_or_else(|| "other".to_owned(), |to| format!("other `{}`", shorten(to)));
        let text = format!("no {which} version of `{}` was ever active", shorten(&name));
        Problem::new(Code::NotFound, text)
    })?;
    let (hash, runbook) = app.runbook(&caller, Some(&version.hash.to_string()), None).await?;
    let item = deploy(&app, &caller, (hash, &runbook), version.project_root).await?;
    Ok(json(StatusCode::OK, &item))
}

pub(super) async fn undeploy(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
) -> Answer {
    let deployment = deployment_of(&caller, &name)?;
    let of = deployment.clone();
    let last = app.look(move |store| active(store, &of).map(|active| active.hash)).await?;
    let last = last.ok_or_else(|| Problem::missing("deployed runbook", &name))?;
    let (hash, runbook) = app.runbook(&caller, Some(&last.to_string()), None).await?;
    app.ask(&caller, Command::Withdraw { deployment }).await?;
    learn_roots(&app).await?;
    let mut item = describe(hash, &runbook);
    tell_active(&mut item, None);
    Ok(json(StatusCode::OK, &item))
}

fn deployment_of(caller: &Caller, name: &str) -> Result<Scoped, Problem> {
    let name = Name::new(name).map_err(|error| Problem::new(Code::InvalidInput, error.to_string()))?;
    Ok(Scoped::new(&caller.tenant, &caller.namespace, &name))
}

/// The versions that a name had, as its records have them: the first one first.
async fn versions(app: &App, deployment: &Scoped) -> Result<Vec<Version>, Problem> {
    let (log, stream) = (app.log.clone(), StreamId::Deployment(deployment.clone()));
    let read = move || {
        let mut found = Vec::new();
        let read = log.scan(&[stream], Seqs::ALL, &mut |record, _| {
            if let Event::RunbookDeployed(deployed) = &record.event {
                let project_root = deployed.project_root.clone().unwrap_or_default();
                found.push(Version { hash: deployed.hash, project_root });
            }
            ControlFlow::Continue(())
        });
        read.map(|_| found)
    };
    scanned(read).await
}

/// What somebody reads from the log, apart from those who wait for nothing.
async fn scanned<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, windlass_store::log::Error> + Send + 'static,
) -> Result<T, Problem> {
    let scanned = tokio::task::spawn_blocking(read).await;
    let scanned = scanned.map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
    scanned.map_err(|error| Problem::new(error.code(), error.to_string()))
}

/// The same file of two tenants is two runbooks, so that nobody meets what is another's, not even by having written it
/// too. The first tenant's is known by its content alone.
fn own_hash(tenant: &Name, content: Digest) -> Digest {
    match tenant.as_str() {
        "default" => content,
        tenant => Digest::of(&[b"tenant:", tenant.as_bytes(), b"\n", &content.0]),
    }
}

/// When each schedule of a runbook is first due. One that has no slots keeps the runbook from being deployed.
fn first_slots(
    caller: &Caller,
    runbook: &Runbook,
    hash: Digest,
) -> Result<small::Map<Name, Millis>, Problem> {
    let now = Clock::now(&windlass_executor::clock::System);
    let mut next = small::Map::new();
    for (name, def) in &runbook.schedules {
        let scoped = Scoped::new(&caller.tenant, &caller.namespace, name);
        let settings = schedule::Settings {
            spec: def.spec.clone(),
            timezone: def.timezone.clone(),
            jitter: def.jitter,
            catch_up: def.catch_up,
            overlap: def.overlap,
            pipeline: def.pipeline.clone(),
            runbook_hash: hash,
            vars: Value::Null,
            project_root: String::new(),
        };
        let first = cron::first(&scoped, &settings, now)
            .map_err(|error| Problem::new(error.code(), format!("schedule `{name}`: {error}")))?;
        next.extend(first.map(|at| (name.clone(), at)));
    }
    Ok(next)
}

/// The active version of a name.
fn active<'a>(store: &'a Embedded, deployment: &Scoped) -> Option<&'a Active> {
    match &store.state().stream(&StreamId::Deployment(deployment.clone()))?.body {
        Body::Deployment(active) => active.as_ref().as_ref(),
        // tidy: the stream of a deployment holds one.
        _ => None,
    }
}

/// Who made a version active, when, and instead of which.
fn tell_active(item: &mut Value, active: Option<&Active>) {
    item["deployed"] = Value::Bool(active.is_some());
    let Some(active) = active else { return };
    item["deployed_at"] = Value::String(time::text(active.at));
    if let Some(by) = &active.by {
        item["deployed_by"] = object!(by);
    }
    if let Some(replaces) = &active.replaces {
        item["replaces"] = Value::String(replaces.to_string());
    }
    if !active.project_root.is_empty() {
        item["project_root"] = object!(active.project_root);
    }
}

fn describe(hash: Digest, runbook: &Runbook) -> Value {
    let pipelines: Vec<&str> = runbook.pipelines.keys().map(Name::as_str).collect();
    object!({ "hash": hash.to_string(), "name": runbook.name, "pipelines": pipelines })
}

pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller) -> Answer {
    let items = app
        .look(move |store| {
            let state = store.state();
            let deployed = state.deployments(&caller.tenant, &caller.namespace);
            let active: BTreeMap<Digest, &Active> =
                deployed.iter().filter_map(|name| active(store, name)).map(|one| (one.hash, one)).collect();
            let books = state.streams_from(StreamId::Runbook(Digest([0; 32])));
            let books = books.map_while(|(id, stream)| match (id, &stream.body) {
                (StreamId::Runbook(hash), Body::Runbook(runbook)) => Some((hash, runbook, stream)),
                // tidy: the next kind begins.
                _ => None,
            });
            let mine = books.filter(|(.., stream)| stream.tenant == caller.tenant);
            mine.map(|(hash, runbook, stream)| {
                let mut item = describe(*hash, runbook);
                tell_active(&mut item, active.get(hash).copied());
                item["loaded_at"] = Value::String(time::text(stream.at));
                item
            })
            .collect::<Vec<_>>()
        })
        .await?;
    Ok(json(StatusCode::OK, &List::page(items, None)))
}

pub(super) async fn show(State(app): State<Arc<App>>, caller: Caller, Path(hash): Path<String>) -> Answer {
    let (hash, runbook) = app.runbook(&caller, Some(&hash), None).await?;
    let mut item = describe(hash, &runbook);
    item["runbook"] = object!(*runbook);
    let deployment = Scoped::new(&caller.tenant, &caller.namespace, &runbook.name);
    let active = app.look(move |store| active(store, &deployment).cloned()).await?;
    tell_active(&mut item, active.as_ref().filter(|active| active.hash == hash));
    if let Some(source) = source(&app, hash).await? {
        item["source"] = Value::String(source);
    }
    Ok(json(StatusCode::OK, &item))
}

/// The text that a runbook was loaded from, as its record has it.
async fn source(app: &App, hash: Digest) -> Result<Option<String>, Problem> {
    let log = app.log.clone();
    let read = move || {
        let mut found = None;
        let read = log.scan(&[StreamId::Runbook(hash)], Seqs::ALL, &mut |record, _| {
            if let Event::RunbookLoaded(loaded) = &record.event {
                found = loaded.source.as_ref().and_then(Private::get);
            }
            ControlFlow::Break(())
        });
        read.map(|_| found)
    };
    scanned(read).await
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
    let vars = windlass_runbook::check_vars(def, &asked.vars)
        .map_err(|error| Problem::new(Code::InvalidInput, error.to_string()))?;
    let about = About {
        tenant: caller.tenant.clone(),
        namespace: caller.namespace.clone(),
        pipeline: pipeline.clone(),
        undoes: Vec::new(),
        runbook: runbook.name.clone(),
        runbook_hash: hash,
        source: windlass_core::run::Source::Api,
        requester: Some(caller.user()),
        parent: None,
        at: Clock::now(&windlass_executor::clock::System),
        spent: windlass_core::budget::Amount::default(),
    };
    let steps = crate::plan::steps(&app, about, def, &vars);
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
