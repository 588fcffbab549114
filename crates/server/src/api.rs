//! The API: what can be asked over HTTP, in process, over the socket in the data directory, or over TCP.
//!
//! There is one router for all of them, and the command line is a client of it like any other, so nothing can be
//! done in one way that cannot be done in another. Errors are problems of RFC 9457, from the one table of codes.

mod approvals;
mod batch;
pub mod body;
mod budgets;
pub mod care;
mod coordination;
mod decision;
mod effects;
mod events;
pub(crate) mod evidence;
mod figures;
mod health;
pub mod hooks;
mod ingress;
mod keys;
mod leases;
mod listing;
pub mod openapi;
mod output;
mod policies;
mod queues;
pub mod routes;
mod runbooks;
mod runs;
mod schedules;
#[cfg(test)]
mod tests;
mod things;
mod tokens;
mod why;
mod workers;

use crate::app::App;
use crate::metrics::OTHER;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use body::{Late, Peer, patient};
use routes::{Routes, Scope};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tower::Service as _;
use windlass_core::code::Code;
use windlass_core::id::{AttemptId, Holder, Name, RunId, Scoped};
use windlass_core::run::{Actor, Initiator};
use windlass_core::time::Millis;
use windlass_core::turn::command::{Command, Refusal, Reply};
use windlass_engine::remote::Client;
use windlass_store::history;
use windlass_store::store::{Embedded, Listed, Lookup, RunFilter};

/// The media type of a problem.
const PROBLEM: &str = "application/problem+json";
/// How long a body may take to come.
const BODY_PATIENCE: Duration = Duration::from_secs(20);
/// The most bytes of what somebody else said about a request that is passed on.
const SAID_MAX: usize = 1_024;

/// Why a request is refused.
#[derive(Debug)]
pub struct Problem {
    /// The stable code.
    pub code: Code,
    /// What happened, for people.
    pub detail: String,
    /// Further members of the problem.
    pub more: Option<Value>,
    /// When it is worth asking again.
    pub retry_at: Option<Millis>,
}

impl Problem {
    /// A problem with a text.
    pub fn new(code: Code, detail: impl Into<String>) -> Problem {
        Problem { code, detail: detail.into(), more: None, retry_at: None }
    }

    /// What was asked for is not there, or is not the caller's: the same answer for both.
    #[must_use]
    pub fn missing(what: &str, id: &str) -> Problem {
        Problem::new(Code::NotFound, format!("there is no {what} `{}`", windlass_core::wire::shorten(id)))
    }
}

impl From<history::Error> for Problem {
    /// Where the index lies is the operator's business; whoever asks learns that it is not their fault.
    fn from(error: history::Error) -> Problem {
        tracing::error!(event = "history_failed", problem = %error);
        Problem::new(
            error.code(),
            "the index of ended runs cannot be read now; the server's own log says why",
        )
    }
}

impl From<Lookup> for Problem {
    fn from(error: Lookup) -> Problem {
        match error {
            Lookup::History(error) => error.into(),
            Lookup::Log(fault) => {
                tracing::error!(event = "read_back_failed", problem = %fault);
                let text = "a run that has left memory cannot be read now; the server's own log says why";
                Problem::new(Code::Unavailable, text)
            }
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        match refusal {
            Refusal::Error { code, message, retry_at } => Problem { retry_at, ..Problem::new(code, message) },
            Refusal::Need(_) => Problem::new(Code::Internal, refusal.to_string()),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = windlass_api::Problem::new(self.code, self.detail);
        if let Some(Value::Object(more)) = self.more {
            body.more = more;
        }
        if let Some(at) = self.retry_at {
            let wait = at.since(windlass_engine::port::Clock::now(&windlass_executor::clock::System));
            (body.retry_at, body.retry_after) = (Some(at.into()), Some(wait.0.div_ceil(1_000)));
        }
        let status = StatusCode::from_u16(self.code.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let kind = [(header::CONTENT_TYPE, PROBLEM)];
        // It always can be written: its keys are text.
        let text = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = (status, kind, text).into_response();
        if let Some(seconds) = body.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.code == Code::Unauthorized {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// An answer, or a problem.
pub type Answer = Result<Response, Problem>;

/// A JSON document.
pub fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let kind = HeaderValue::from_static("application/json");
    match serde_json::to_vec(body) {
        Ok(bytes) => {
            let mut response = Response::new(bytes.into());
            *response.status_mut() = status;
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        }
        // Nothing that is answered has keys that are no text.
        Err(error) => Problem::new(Code::Internal, error.to_string()).into_response(),
    }
}

/// A body as it came, within the bound of its route and in time.
pub struct Raw(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for Raw {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let peer = request.extensions().get::<Peer>().copied();
        match patient(Bytes::from_request(request, state), BODY_PATIENCE, peer).await {
            Ok(Ok(bytes)) => Ok(Raw(bytes)),
            Ok(Err(error)) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                Err(Problem::new(Code::PayloadTooLarge, "the body has more bytes than this address takes"))
            }
            Ok(Err(error)) => {
                Err(Problem::new(Code::InvalidInput, format!("the body cannot be read: {error}")))
            }
            Err(Late::Over) => Err(Problem::new(
                Code::RequestTimeout,
                format!("the body was not there after {} seconds", BODY_PATIENCE.as_secs()),
            )),
            Err(Late::Crowded) => Err(crowded()),
        }
    }
}

/// A body of JSON. An empty one stands for `{}`.
pub struct Json<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let Raw(bytes) = Raw::from_request(request, state).await?;
        let bytes = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
        // A list would be read as the fields of an object in their order.
        if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
            return Err(Problem::new(Code::InvalidInput, "the body is not valid: expected an object"));
        }
        let value = serde_json::from_slice(&bytes)
            .map_err(|error| Problem::new(Code::InvalidInput, format!("the body is not valid: {error}")))?;
        Ok(Json(value))
    }
}

/// A body of any JSON.
pub struct Document(pub Value);

impl<S: Send + Sync> FromRequest<S> for Document {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let Raw(bytes) = Raw::from_request(request, state).await?;
        let value = serde_json::from_slice(&bytes)
            .map_err(|error| Problem::new(Code::InvalidInput, format!("the body is not valid: {error}")))?;
        Ok(Document(value))
    }
}

/// The parameters after `?`.
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        axum::extract::Query::try_from_uri(&parts.uri)
            .map(|query| Query(query.0))
            .map_err(|error| Problem::new(Code::InvalidInput, format!("the query is not valid: {error}")))
    }
}

/// Who asks. Tenant and namespace come from here, never from the request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// As it stands in records.
    pub actor: Actor,
    /// Whose things it sees.
    pub tenant: Name,
    /// The subdivision.
    pub namespace: Name,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// What it belongs to.
    pub groups: Vec<Name>,
    /// What it shows for itself: a token's id, or `local`. Idempotency keys belong to it.
    pub client: Name,
    /// Whether the whole installation is its own, every tenant included.
    pub owns: bool,
    /// The attempt that asks, where one does: it reaches its own run only.
    pub attempt: Option<AttemptId>,
}

impl Caller {
    /// The user who owns the data directory, on the machine it is on.
    #[must_use]
    pub fn owner(user: &str) -> Caller {
        Caller { scopes: Scope::ALL.to_vec(), owns: true, ..Caller::on_this_machine(user) }
    }

    /// A caller on this machine without a credential, where `--trust-local` lets them in.
    #[must_use]
    pub fn local() -> Caller {
        Caller { scopes: vec![Scope::Read, Scope::Run], ..Caller::on_this_machine("local") }
    }

    fn on_this_machine(user: &str) -> Caller {
        let default = || Name::clean("default");
        Caller {
            actor: Actor::new(Initiator::User, user),
            tenant: default(),
            namespace: default(),
            scopes: Vec::new(),
            groups: Vec::new(),
            client: Name::clean("local"),
            owns: false,
            attempt: None,
        }
    }

    /// Whether it may use a route of this scope.
    #[must_use]
    pub fn may(&self, scope: Scope) -> bool {
        match scope {
            Scope::Open | Scope::Known => true,
            Scope::Owner => self.owns,
            Scope::Read | Scope::Run | Scope::Deploy | Scope::Approve | Scope::Execute | Scope::Admin => {
                self.scopes.contains(&scope)
            }
        }
    }

    /// Whether it is a human. Only humans decide on approvals.
    #[must_use]
    pub fn is_human(&self) -> bool {
        self.actor.initiator == Initiator::User
    }

    /// As it speaks for executors elsewhere: the owner under the names they have, others with their token as well.
    #[must_use]
    pub fn elsewhere(&self) -> Client {
        let token = (!self.owns).then(|| self.client.clone());
        Client { tenant: self.tenant.clone(), namespace: self.namespace.clone(), token }
    }

    /// The caller's name.
    #[must_use]
    pub fn user(&self) -> Name {
        self.actor.id.clone().unwrap_or_else(|| Name::clean("local"))
    }
}

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Problem> {
        // Whoever serves a connection says who is at the other end of it. Nobody said: nobody gets in.
        parts.extensions.get::<Caller>().cloned().ok_or_else(stranger)
    }
}

impl App {
    /// Asks the engine for something and waits until it is durable.
    ///
    /// # Errors
    /// It was refused, or the engine has ended.
    pub async fn ask(&self, caller: &Caller, command: Command) -> Result<Reply, Problem> {
        let (send, receive) = tokio::sync::oneshot::channel();
        self.engine.ask(caller.actor.clone(), command, move |reply| {
            let _ = send.send(reply);
        });
        receive.await.map_err(|_| gone())?.map_err(Problem::from)
    }

    /// Looks at the store, between two turns.
    ///
    /// # Errors
    /// What was seen did not last, or the engine has ended.
    pub async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Embedded) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        // What is seen has a place of its own, so there is one kind of waiting and not one for everything that is seen.
        let place = Arc::new(Mutex::new(None));
        let put = place.clone();
        let look = move |store: &mut Embedded| {
            let seen = look(store);
            *put.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
        };
        self.looked(Box::new(look)).await?;
        let seen = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        seen.ok_or_else(gone)
    }

    async fn looked(&self, look: Box<dyn FnOnce(&mut Embedded) + Send>) -> Result<(), Problem> {
        let (send, receive) = tokio::sync::oneshot::channel();
        self.engine.read_then(look, move |seen| {
            let _ = send.send(seen);
        });
        receive.await.map_err(|_| gone())?.map_err(Problem::from)
    }

    /// The run that a text means: an id, the beginning or the last characters of one, or `last` for the newest run. One of
    /// the caller's.
    ///
    /// # Errors
    /// None is meant, or several are.
    pub async fn find_run(&self, caller: &Caller, text: &str) -> Result<RunId, Problem> {
        let (who, wanted) = (caller.clone(), text.to_owned());
        let begins = self.look(move |store| store.find_runs(&who.tenant, &who.namespace, &wanted)).await??;
        let found = match begins.as_slice() {
            [] if text == "last" => self.newest_runs(caller, 1, |_| true).await?,
            [] if text.len() >= ENDS_MIN => {
                let ends = text.to_ascii_lowercase();
                self.newest_runs(caller, PAGE_MAX, move |id| id.to_ascii_lowercase().ends_with(&ends)).await?
            }
            _ => begins,
        };
        match found.as_slice() {
            [] => Err(Problem::missing("run", text)),
            [only] => Ok(*only),
            [_, _, ..] => {
                let ids: Vec<String> = found.iter().take(MEANT_MAX).map(ToString::to_string).collect();
                let text = windlass_core::wire::shorten(text);
                let text =
                    format!("`{text}` means several runs, such as {}; write more of it", ids.join(", "));
                Err(Problem::new(Code::InvalidInput, text))
            }
        }
    }

    /// Those of the caller's newest runs whose ids are wanted.
    async fn newest_runs(
        &self,
        caller: &Caller,
        limit: usize,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<RunId>, Problem> {
        let mut filter = RunFilter { limit, ..RunFilter::of(&caller.tenant, &caller.namespace) };
        for _ in 0..PAGES_MAX {
            let look = filter.clone();
            let (page, next) = self.look(move |store| store.list_runs(&look, |_, _| ())).await??;
            let ids = page.iter().map(Listed::id);
            let found: Vec<RunId> = ids.filter(|id| wanted(&id.to_string())).collect();
            // A page may be short, or have none of the caller's, and still not be the last.
            if !page.is_empty() || next.is_none() {
                return Ok(found);
            }
            filter.before = next;
        }
        Ok(Vec::new())
    }
}

/// The fewest last characters that mean a run.
const ENDS_MIN: usize = 4;
/// So many of the runs that a text means are named.
const MEANT_MAX: usize = 5;
/// How many pages are looked at for the newest runs.
const PAGES_MAX: usize = 100;

/// The most things on a page.
const PAGE_MAX: usize = 500;

/// How many things a page has, where somebody asked for so many.
fn page_limit(asked: Option<usize>, usual: usize) -> usize {
    asked.unwrap_or(usual).clamp(1, PAGE_MAX)
}

fn invalid(error: impl std::fmt::Display) -> Problem {
    Problem::new(Code::InvalidInput, error.to_string())
}

/// A thing of the caller's by its name.
fn scoped(caller: &Caller, name: &str) -> Result<Scoped, Problem> {
    Ok(Scoped::new(&caller.tenant, &caller.namespace, &Name::new(name).map_err(invalid)?))
}

/// A holder by the name that the caller knows it by. Heartbeats are counted by holder, so the same name in another tenant
/// or namespace must be another holder: only names without a slash, of the first namespace, stand for themselves.
fn holder_of(caller: &Caller, text: &str) -> Result<Holder, Problem> {
    let holder = Holder::parse(text).map_err(invalid)?;
    let (tenant, namespace) = (caller.tenant.as_str(), caller.namespace.as_str());
    match &holder {
        Holder::Run(_) | Holder::Step(..) | Holder::Worker(_) => Ok(holder),
        Holder::Outside(_) if (tenant, namespace) == ("default", "default") && !text.contains('/') => {
            Ok(holder)
        }
        Holder::Outside(name) => {
            let whole = Name::new(&format!("{tenant}/{namespace}/{name}"));
            whole.map(Holder::Outside).map_err(invalid)
        }
    }
}

/// A holder from outside. The names of runs and workers are theirs.
fn outsider(caller: &Caller, text: &str) -> Result<Holder, Problem> {
    match holder_of(caller, text)? {
        holder @ Holder::Outside(_) => Ok(holder),
        Holder::Run(_) | Holder::Step(..) | Holder::Worker(_) => {
            Err(invalid("a `holder` is any name but one that begins with `pipeline:` or `worker:`"))
        }
    }
}

/// What is said to whoever shows nothing, or nothing that is good: the same in each case.
fn stranger() -> Problem {
    let text = "a token is needed: none was sent, or it is not known, has expired or was revoked; \
                `windlass token create` makes one";
    Problem::new(Code::Unauthorized, text)
}

/// What is said where so many bodies are slow that no further one is waited for.
fn crowded() -> Problem {
    Problem::new(Code::RequestTimeout, "the body comes slowly, as many others do: send it again, and at once")
}

fn gone() -> Problem {
    Problem::new(Code::Unavailable, "the engine is shutting down: try again when it runs")
}

/// Every route.
pub fn routes() -> Routes {
    runs::routes()
        .and(runbooks::routes())
        .and(approvals::routes())
        .and(things::routes())
        .and(queues::routes())
        .and(workers::routes())
        .and(schedules::routes())
        .and(batch::routes())
        .and(coordination::routes())
        .and(ingress::routes())
        .and(leases::routes())
        .and(output::routes())
        .and(events::routes())
        .and(evidence::routes())
        .and(care::routes())
        .and(tokens::routes())
        .and(health::routes())
        .and(openapi::routes())
        .and(hooks::routes())
        .and(figures::routes())
        .and(effects::routes())
        .and(policies::routes())
        .and(budgets::routes())
}

/// The API of an application: every route, and what stands around all of them.
#[derive(Clone)]
pub struct Api {
    app: Arc<App>,
    router: Router,
}

impl Api {
    /// The API of an application.
    #[must_use]
    pub fn new(app: Arc<App>) -> Api {
        Api::of(routes(), app)
    }

    fn of(routes: Routes, app: Arc<App>) -> Api {
        let (router, _) = routes.into_parts();
        let router =
            router.fallback(absent).method_not_allowed_fallback(wrong_method).with_state(app.clone());
        Api { app, router }
    }

    /// Answers a request of a caller, as far as it is known who that is.
    pub async fn answer(&self, caller: Option<Caller>, mut request: Request) -> Response {
        approvals::audit(&self.app, caller.as_ref(), request.method(), request.uri()).await;
        if let Some(caller) = caller {
            request.extensions_mut().insert(caller);
        }
        let mut response = match self.router.clone().call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let headers = response.headers_mut();
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        response
    }
}

async fn absent(State(app): State<Arc<App>>, method: Method) -> Problem {
    refuse(&app, &method, Problem::new(Code::NotFound, "there is no such address"))
}

async fn wrong_method(State(app): State<Arc<App>>, method: Method) -> Problem {
    refuse(&app, &method, Problem::new(Code::MethodNotAllowed, "this address does not take that method"))
}

/// Counts a request that no route takes.
fn refuse(app: &App, method: &Method, problem: Problem) -> Problem {
    app.metrics.request(OTHER, figures::method(method), problem.code.http(), Duration::ZERO);
    problem
}

/// What a library refused, in our words: an escape that is none, a part of a path that does not parse.
async fn as_problem(response: Response) -> Response {
    let status = response.status();
    let ours = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes() == PROBLEM.as_bytes());
    if ours || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let code = match status {
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::METHOD_NOT_ALLOWED => Code::MethodNotAllowed,
        StatusCode::PAYLOAD_TOO_LARGE => Code::PayloadTooLarge,
        StatusCode::REQUEST_TIMEOUT => Code::RequestTimeout,
        _ if status.is_client_error() => Code::InvalidInput,
        _ => return Problem::new(Code::Internal, "something went wrong inside").into_response(),
    };
    let said = axum::body::to_bytes(response.into_body(), SAID_MAX).await.unwrap_or_default();
    let said = String::from_utf8_lossy(&said).into_owned();
    Problem::new(code, if said.is_empty() { code.title().to_owned() } else { said }).into_response()
}
