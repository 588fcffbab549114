//! The table of routes: who may use each, what it takes and what it answers.
//!
//! A route cannot be added without saying which scope it needs, and the check stands in front of the handler, put there
//! by the same call: this is the one place where authorization happens. What the table knows is also the source of the
//! OpenAPI document, so neither can be forgotten.

use super::figures::method;
use super::{Caller, Json, Problem, Raw, as_problem, stranger};
use crate::app::App;
use crate::aside::{self, LARGE};
use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, FromRequest as _, Request};
use axum::handler::Handler;
use axum::http::{Method, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodFilter, on};
use futures_util::FutureExt as _;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windlass_core::code::Code;
use windlass_core::id::Name;

/// What a caller must be allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Nothing: whoever reaches the address. A signature may be asked for by the handler itself.
    Open,
    /// To be known: any good token, whatever it allows.
    Known,
    /// Look.
    Read,
    /// Start, resume and cancel runs of deployed runbooks.
    Run,
    /// Bring runbooks. Their steps are commands that the server runs, so this is a shell on the server.
    Deploy,
    /// Decide on approvals and settle what is unknown.
    Approve,
    /// Lease steps and report on them.
    Execute,
    /// Everything else: break holds, hand out tokens.
    Admin,
    /// What is of the whole installation and of no tenant. No token has it.
    Owner,
}

impl Scope {
    /// Those that a token can have.
    pub const ALL: [Scope; 6] =
        [Scope::Read, Scope::Run, Scope::Deploy, Scope::Approve, Scope::Execute, Scope::Admin];

    /// As it is written.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Scope::Open => "open",
            Scope::Known => "known",
            Scope::Read => "read",
            Scope::Run => "run",
            Scope::Deploy => "deploy",
            Scope::Approve => "approve",
            Scope::Execute => "execute",
            Scope::Admin => "admin",
            Scope::Owner => "owner",
        }
    }

    /// The scope that a word means.
    #[must_use]
    pub fn parse(word: &str) -> Option<Scope> {
        Scope::ALL.into_iter().find(|scope| scope.word() == word)
    }
}

/// The most bytes of a body, where a route does not say otherwise.
const BODY_MAX: usize = 1 << 20;
/// How long an answer may take, where a route does not say otherwise.
const PATIENCE: Duration = Duration::from_secs(30);

/// A schema, made when the document is.
type Shape = fn(&mut SchemaGenerator) -> Schema;

/// What the document says of a route.
#[derive(Clone, Debug)]
pub struct Doc {
    /// What it does, in a line.
    pub summary: &'static str,
    /// What stands after `?`.
    pub query: Option<Shape>,
    /// Which headers mean something to it: the name, what it means, and the form of its value.
    pub headers: Vec<(&'static str, &'static str, &'static str)>,
    /// What it takes, and as which media type.
    pub body: Option<(&'static str, Shape)>,
    /// As which other media types it takes text instead.
    pub also: Vec<&'static str>,
    /// What it answers when all is well: status, media type, and the name of the shape where it is JSON.
    pub answers: Vec<(u16, &'static str, &'static str)>,
    /// With which codes it refuses, beside those that any route may.
    pub refuses: Vec<Code>,
    /// The most bytes of its body.
    pub body_max: usize,
    /// How long an answer may take before whoever waits is told that it does.
    pub patience: Duration,
    /// Whether it is handled aside however small its body is.
    pub aside: bool,
}

/// A route that does what the line says.
#[must_use]
pub fn doc(summary: &'static str) -> Doc {
    Doc {
        summary,
        query: None,
        headers: Vec::new(),
        body: None,
        also: Vec::new(),
        answers: Vec::new(),
        refuses: Vec::new(),
        body_max: BODY_MAX,
        patience: PATIENCE,
        aside: false,
    }
}

impl Doc {
    /// It takes parameters.
    #[must_use]
    pub fn query<T: JsonSchema>(self) -> Doc {
        Doc { query: Some(T::json_schema), ..self }
    }

    /// A header means something to it; `form` is a pattern of its value.
    #[must_use]
    pub fn header(mut self, name: &'static str, meaning: &'static str, form: &'static str) -> Doc {
        self.headers.push((name, meaning, form));
        self
    }

    /// It takes a body of JSON.
    #[must_use]
    pub fn body<T: JsonSchema>(self) -> Doc {
        Doc { body: Some(("application/json", T::json_schema)), ..self }
    }

    /// It takes text of this media type too.
    #[must_use]
    pub fn or_text(mut self, kind: &'static str) -> Doc {
        self.also.push(kind);
        self
    }

    /// It answers with JSON of a named shape; `list run` is a page of runs.
    #[must_use]
    pub fn gives(self, status: u16, shape: &'static str) -> Doc {
        self.gives_as(status, "application/json", shape)
    }

    /// It answers with something of a media type.
    #[must_use]
    pub fn gives_as(mut self, status: u16, kind: &'static str, shape: &'static str) -> Doc {
        self.answers.push((status, kind, shape));
        self
    }

    /// It takes bodies of so many bytes.
    #[must_use]
    pub fn takes_bytes(self, body_max: usize) -> Doc {
        Doc { body_max, ..self }
    }

    /// It may wait for so long before it answers, because somebody asked it to.
    #[must_use]
    pub fn waits(self, longest: Duration) -> Doc {
        Doc { patience: PATIENCE + longest, ..self }
    }

    /// What it has to do may be much, however small its body is.
    #[must_use]
    pub fn aside(self) -> Doc {
        Doc { aside: true, ..self }
    }

    /// It may refuse with this code.
    #[must_use]
    pub fn refuses(mut self, codes: &[Code]) -> Doc {
        self.refuses.extend_from_slice(codes);
        self
    }
}

/// One route.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its method.
    pub method: Method,
    /// Its path.
    pub path: &'static str,
    /// Who may use it.
    pub scope: Scope,
    /// What the document says of it.
    pub doc: Doc,
}

/// Routes, with what is known about each.
#[derive(Default)]
pub struct Routes {
    router: Router<Arc<App>>,
    list: Vec<Route>,
}

impl Routes {
    /// None yet.
    #[must_use]
    pub fn new() -> Routes {
        Routes::default()
    }

    /// Adds a route that looks.
    #[must_use]
    pub fn get<H, T>(self, path: &'static str, scope: Scope, doc: Doc, handler: H) -> Routes
    where
        H: Handler<T, Arc<App>, Future = Answering> + Sync,
        T: 'static,
    {
        self.add(Method::GET, MethodFilter::GET, (path, scope, doc), handler)
    }

    /// Adds a route that does something.
    #[must_use]
    pub fn post<H, T>(self, path: &'static str, scope: Scope, doc: Doc, handler: H) -> Routes
    where
        H: Handler<T, Arc<App>, Future = Answering> + Sync,
        T: 'static,
    {
        self.add(Method::POST, MethodFilter::POST, (path, scope, doc), handler)
    }

    /// Adds a route that takes something away.
    #[must_use]
    pub fn delete<H, T>(self, path: &'static str, scope: Scope, doc: Doc, handler: H) -> Routes
    where
        H: Handler<T, Arc<App>, Future = Answering> + Sync,
        T: 'static,
    {
        self.add(Method::DELETE, MethodFilter::DELETE, (path, scope, doc), handler)
    }

    fn add<H, T>(
        mut self,
        method: Method,
        filter: MethodFilter,
        (path, scope, doc): (&'static str, Scope, Doc),
        handler: H,
    ) -> Routes
    where
        H: Handler<T, Arc<App>, Future = Answering> + Sync,
        T: 'static,
    {
        // What is open reads deliveries as they are signed, and says itself what it takes.
        let bare = method == Method::POST && doc.body.is_none() && scope != Scope::Open;
        let (body_max, patience, aside) = (doc.body_max, doc.patience, doc.aside);
        let check = Check { path, scope, bare, body_max, patience, aside };
        let handler: Handling = Arc::new(move |request, app| handler.clone().call(request, app));
        self.router = self.router.route(path, on(filter, Guarded { check, handler }));
        self.list.push(Route { method, path, scope, doc });
        self
    }

    /// All of these and those.
    #[must_use]
    pub fn and(mut self, other: Routes) -> Routes {
        self.router = self.router.merge(other.router);
        self.list.extend(other.list);
        self
    }

    /// What is known about each.
    #[must_use]
    pub fn list(&self) -> &[Route] {
        &self.list
    }

    /// The router, and what is known about each route.
    pub fn into_parts(self) -> (Router<Arc<App>>, Vec<Route>) {
        (self.router, self.list)
    }
}

/// An answer on its way.
type Answering = Pin<Box<dyn Future<Output = Response> + Send>>;

/// A handler behind its check. All of them are of one type, so that what stands around a handler is compiled once and not
/// once for each.
#[derive(Clone)]
struct Guarded {
    check: Check,
    handler: Handling,
}

/// Waits for the body of a request here, where that takes no thread, and has it handled where large ones are.
fn aside(tenant: Name, handler: Handling, request: Request, app: Arc<App>) -> Answering {
    Box::pin(async move {
        let (parts, body) = request.into_parts();
        let read = Raw::from_request(Request::from_parts(parts.clone(), body), &()).await;
        match read {
            Ok(Raw(bytes)) => {
                let request = Request::from_parts(parts, Body::from(bytes));
                aside::run(&tenant, async move { handler(request, app).await }).await
            }
            Err(problem) => problem.into_response(),
        }
    })
}

type Handling = Arc<dyn Fn(Request, Arc<App>) -> Answering + Send + Sync>;

impl Handler<(), Arc<App>> for Guarded {
    type Future = Answering;

    fn call(self, mut request: Request, app: Arc<App>) -> Answering {
        let (method, began) = (method(request.method()), Instant::now());
        let answer = self.check.admit(&mut request).map(|()| match self.check.lane(&request) {
            // Nothing of a body is wanted here, so there is none that is large.
            _ if self.check.bare => bare(self.handler.clone(), request, app.clone()),
            None => (self.handler)(request, app.clone()),
            Some(tenant) => aside(tenant, self.handler.clone(), request, app.clone()),
        });
        Box::pin(async move {
            let response = self.check.answer(answer).await;
            app.metrics.request(self.check.path, method, response.status().as_u16(), began.elapsed());
            response
        })
    }
}

/// A body without fields: nothing, `{}` or `null`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// Lets a handler that takes no body answer, once it is known that the request has none: what a caller sends and nobody
/// reads is a mistake that the caller should hear of.
fn bare(handler: Handling, request: Request, app: Arc<App>) -> Answering {
    Box::pin(async move {
        let (parts, body) = request.into_parts();
        let whole = Request::from_parts(parts.clone(), body);
        match Json::<Option<Nothing>>::from_request(whole, &()).await {
            Ok(Json(None | Some(Nothing {}))) => {
                handler(Request::from_parts(parts, Body::empty()), app).await
            }
            Err(problem) => problem.into_response(),
        }
    })
}

/// What is asked of a request before its handler sees it, and of its answer.
#[derive(Clone, Copy)]
struct Check {
    path: &'static str,
    scope: Scope,
    /// It takes no body.
    bare: bool,
    body_max: usize,
    patience: Duration,
    aside: bool,
}

impl Check {
    /// Whose lane a request is handled in, where it is large. Deliveries of hooks are read by their handlers, which look to
    /// it themselves.
    fn lane(&self, request: &Request) -> Option<Name> {
        let caller = request.extensions().get::<Caller>()?;
        let large = match request.headers().get(header::CONTENT_LENGTH) {
            Some(length) => {
                length.to_str().ok().and_then(|text| text.parse::<usize>().ok()).is_none_or(|n| n >= LARGE)
            }
            // One that does not say how long it is may be.
            None => request.headers().contains_key(header::TRANSFER_ENCODING),
        };
        (self.scope != Scope::Open && (large || self.aside)).then(|| caller.tenant.clone())
    }

    /// Lets a request through to its handler, or not.
    fn admit(&self, request: &mut Request) -> Result<(), Problem> {
        if self.scope != Scope::Open {
            match request.extensions().get::<Caller>() {
                // Whoever serves a connection says who is at the other end of it. Nobody said: nobody gets in.
                None => return Err(stranger()),
                Some(Caller { attempt: Some(place), .. })
                    if !crate::attempts::may(place, request.method(), request.uri().path()) =>
                {
                    let detail = "the token of an attempt is for its own run, and decides nothing";
                    return Err(Problem::new(Code::Forbidden, detail));
                }
                Some(caller) if caller.may(self.scope) => {}
                Some(_) => {
                    let word = self.scope.word();
                    let detail = format!("this needs the scope `{word}`, which the caller does not have");
                    return Err(Problem::new(Code::Forbidden, detail));
                }
            }
        }
        // A body that says how long it is need not come first to be refused.
        let length =
            request.headers().get(header::CONTENT_LENGTH).and_then(|text| text.to_str().ok()?.parse().ok());
        if length.is_some_and(|bytes: u64| bytes > self.body_max as u64) {
            let detail =
                format!("the body is larger than the {} bytes that this address takes", self.body_max);
            return Err(Problem::new(Code::PayloadTooLarge, detail));
        }
        DefaultBodyLimit::max(self.body_max).apply(request);
        Ok(())
    }

    /// Waits for the answer, and sees to it that it is one of ours: what went wrong in a handler or before it is a
    /// problem too.
    async fn answer(&self, answer: Result<Answering, Problem>) -> Response {
        let answer = match answer {
            Ok(answer) => AssertUnwindSafe(answer).catch_unwind(),
            Err(problem) => return problem.into_response(),
        };
        match tokio::time::timeout(self.patience, answer).await {
            Ok(Ok(response)) => as_problem(response).await,
            // The panic itself was written to stderr when it happened, and is nobody's business outside.
            Ok(Err(_)) => {
                let text = "something went wrong inside; the server's own log says what";
                Problem::new(Code::Internal, text).into_response()
            }
            Err(_) => {
                let text = "the answer took too long; what was asked for may have happened: look before asking again";
                Problem::new(Code::Unavailable, text).into_response()
            }
        }
    }
}
