//! The API: what can be asked over HTTP, in process, over the socket in the data directory, or over TCP.
//!
//! There is one router for all of them, and the command line is a client of it like any other, so nothing can be
//! done in one way that cannot be done in another. Errors are problems of RFC 9457, from the one table of codes.

mod approvals;
mod events;
pub(crate) mod evidence;
mod queues;
pub mod routes;
mod runbooks;
mod runs;
mod schedules;
mod things;
mod why;
mod workers;

use crate::app::App;
use crate::shape;
use crate::store::Embedded;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use routes::{Routes, Scope};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::Arc;
use windlass_core::code::Code;
use windlass_core::command::{Command, Refusal, Reply};
use windlass_core::id::{Name, RunId};
use windlass_core::run::{Actor, Initiator};
use windlass_core::time::Millis;

/// The most bytes of a body.
const BODY_MAX: usize = 1 << 20;

/// Why a request is refused.
#[derive(Debug)]
pub struct Problem {
    /// The stable code.
    pub code: Code,
    /// What happened, for people.
    pub detail: String,
    /// Further members of the problem.
    pub more: Option<Value>,
}

impl Problem {
    /// A problem with a text.
    pub fn new(code: Code, detail: impl Into<String>) -> Problem {
        Problem { code, detail: detail.into(), more: None }
    }

    /// What was asked for is not there, or is not the caller's: the same answer for both.
    #[must_use]
    pub fn missing(what: &str, id: &str) -> Problem {
        Problem::new(Code::NotFound, format!("there is no {what} `{}`", windlass_core::wire::shorten(id)))
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        match refusal {
            Refusal::Error { code, message, retry_at } => {
                Problem { more: retry_at.map(retry_after), ..Problem::new(code, message) }
            }
            Refusal::Need(_) => Problem::new(Code::Internal, refusal.to_string()),
        }
    }
}

/// When it is worth asking again: the time, and the whole seconds until then.
fn retry_after(at: Millis) -> Value {
    let wait = at.since(windlass_engine::port::Clock::now(&crate::clock::System));
    serde_json::json!({ "retry_at": shape::time(at), "retry_after": wait.0.div_ceil(1_000) })
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = shape::problem(self.code, &self.detail);
        if let (Value::Object(body), Some(Value::Object(more))) = (&mut body, self.more) {
            body.extend(more);
        }
        let status = StatusCode::from_u16(self.code.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if let Some(seconds) = body.get("retry_after").and_then(Value::as_u64) {
            let headers = [
                (header::CONTENT_TYPE, "application/problem+json".to_owned()),
                (header::RETRY_AFTER, seconds.to_string()),
            ];
            return (status, headers, body.to_string()).into_response();
        }
        (status, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
    }
}

/// An answer, or a problem.
pub type Answer = Result<Response, Problem>;

/// A JSON document.
pub fn json(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// A body of JSON. An empty one stands for `{}`.
pub struct Json<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|error| Problem::new(Code::InvalidInput, format!("the body cannot be read: {error}")))?;
        let bytes = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
        let value = serde_json::from_slice(&bytes)
            .map_err(|error| Problem::new(Code::InvalidInput, format!("the body is not valid: {error}")))?;
        Ok(Json(value))
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
}

impl Caller {
    /// The user who owns the data directory, on the machine it is on.
    #[must_use]
    pub fn owner(user: &str) -> Caller {
        let default = || Name::clean("default");
        let scopes = Scope::ALL.to_vec();
        Caller { actor: Actor::new(Initiator::User, user), tenant: default(), namespace: default(), scopes }
    }

    /// Whether it may use a route of this scope.
    #[must_use]
    pub fn may(&self, scope: Scope) -> bool {
        scope == Scope::Open || self.scopes.contains(&scope)
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
        parts
            .extensions
            .get::<Caller>()
            .cloned()
            .ok_or_else(|| Problem::new(Code::Unauthorized, "nobody says who is asking"))
    }
}

impl App {
    /// Asks the engine for something and waits until it is durable.
    pub(crate) async fn ask(&self, caller: &Caller, command: Command) -> Result<Reply, Problem> {
        let (send, receive) = tokio::sync::oneshot::channel();
        self.engine.ask(caller.actor.clone(), command, move |reply| {
            let _ = send.send(reply);
        });
        receive.await.map_err(|_| gone())?.map_err(Problem::from)
    }

    /// Looks at the store, between two turns.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Embedded) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let (send, receive) = tokio::sync::oneshot::channel();
        self.engine.read_then(look, move |seen| {
            let _ = send.send(seen);
        });
        receive.await.map_err(|_| gone())?.map_err(Problem::from)
    }

    /// The run that an id, or the beginning of one, means: one of the caller's.
    pub(crate) async fn find_run(&self, caller: &Caller, text: &str) -> Result<RunId, Problem> {
        let (tenant, wanted) = (caller.tenant.clone(), text.to_owned());
        let found = self.look(move |store| store.find_runs(&tenant, &wanted)).await?;
        match found.as_slice() {
            [] => Err(Problem::missing("run", text)),
            [only] => Ok(*only),
            [_, _, ..] => Err(Problem::new(
                Code::InvalidInput,
                format!("`{}` begins several ids; write more of it", windlass_core::wire::shorten(text)),
            )),
        }
    }
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
        .and(events::routes())
        .and(evidence::routes())
}

/// The router of every route.
pub fn router(app: Arc<App>) -> Router {
    let (router, _) = routes().into_parts();
    router
        .fallback(absent)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(app)
}

async fn absent(State(_): State<Arc<App>>) -> Problem {
    Problem::new(Code::NotFound, "there is no such address")
}

async fn wrong_method(State(_): State<Arc<App>>) -> Response {
    let body = shape::problem(Code::InvalidInput, "this address does not take that method");
    (StatusCode::METHOD_NOT_ALLOWED, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string())
        .into_response()
}
