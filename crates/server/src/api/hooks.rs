//! Deliveries from outside: verified over their raw bytes, and each of them answered once.
//!
//! ```text
//!  bytes ─▶ signature ─▶ delivery (key, event, payload) ─▶ triggers ─▶ one commit: key, runs, signals, answer
//! ```
//!
//! Nothing is read from a delivery, and nothing of it is kept, before its signature holds. Whatever is wrong with that
//! (no signature, a bad one, an unknown tenant or source, a hook that has no secret) is answered with the same words.

mod clicks;
mod custom;
mod generic;
mod github;
pub(in crate::api) mod signature;
mod slack;
mod triggers;

pub(crate) use custom::{Emission, emit};

use super::body::{Late, Peer, Room, patient};
use super::routes::{Doc, Routes, Scope, doc};
use super::{Answer, Problem, json};
use crate::app::App;
use crate::aside::{self, LARGE};
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::event::Custom;
use windlass_core::id::{Name, Scoped};
use windlass_core::idempotency::Source as KeySource;
use windlass_core::run::{Actor, Source, Subject};
use windlass_core::time::Span;
use windlass_core::trace;

/// The most bytes of a delivery: what GitHub sends at most.
pub const DELIVERY_LEN_MAX: usize = 25 << 20;
/// How long the bytes of a delivery may take to come.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Everything that comes from outside.
pub(super) fn routes() -> Routes {
    const REFUSED: &[Code] = &[
        Code::Unauthorized,
        Code::IdempotencyConflict,
        Code::ExpressionFailed,
        Code::CapExceeded,
        Code::NotFound,
    ];
    let delivered = |text| -> Doc {
        let gives = doc(text).gives(201, "delivery").gives(200, "delivery").gives(202, "delivery");
        gives.body::<Map<String, Value>>().refuses(REFUSED).takes_bytes(DELIVERY_LEN_MAX)
    };
    let said = |text| -> Doc {
        doc(text)
            .gives(200, "slack")
            .refuses(&[Code::Unauthorized, Code::CapExceeded])
            .takes_bytes(DELIVERY_LEN_MAX)
    };
    let emitted = doc("Emit a custom event: workers wake on it, and triggers match it")
        .header("Idempotency-Key", "One event per key, however often it is asked for", "^[!-~]{1,128}$")
        .body::<custom::NewEvent>()
        .gives(201, "emitted")
        .gives(200, "emitted")
        .refuses(&[Code::IdempotencyConflict, Code::ExpressionFailed, Code::CapExceeded]);
    Routes::new()
        .post("/v1/events", Scope::Run, emitted, custom::create)
        .post("/hooks/github", Scope::Open, delivered("Take a delivery of GitHub"), github)
        .post("/hooks/github/{tenant}", Scope::Open, delivered("Take a tenant's delivery of GitHub"), github)
        .post("/hooks/slack/commands", Scope::Open, said("Take a command of Slack"), slack_commands)
        .post(
            "/hooks/slack/commands/{tenant}",
            Scope::Open,
            said("Take a tenant's command of Slack"),
            slack_commands,
        )
        .post("/hooks/slack/actions", Scope::Open, said("Take a decision made in Slack"), slack_actions)
        .post(
            "/hooks/slack/actions/{tenant}",
            Scope::Open,
            said("Take a tenant's decision made in Slack"),
            slack_actions,
        )
        .post("/hooks/in/{source}", Scope::Open, delivered("Take a signed delivery"), generic)
        .post(
            "/hooks/in/{source}/{tenant}",
            Scope::Open,
            delivered("Take a tenant's signed delivery"),
            generic,
        )
}

/// A delivery whose signature holds.
struct Delivery {
    tenant: Name,
    /// `github`, `slack`, or the name of a hook.
    source: Name,
    /// The event or the command.
    event: Option<String>,
    /// The event's action.
    action: Option<String>,
    /// The sender's own name of it.
    id: String,
    key: Name,
    key_source: KeySource,
    /// What tells two requests under one key apart.
    request_hash: Digest,
    payload: Value,
    headers: Map<String, Value>,
    by: Actor,
    run_source: Source,
    user: Option<Name>,
    subject: Option<Subject>,
    traceparent: Option<Name>,
    /// The custom event that it is, where it is one.
    emitted: Option<Emitted>,
    /// What else names it, each for so long: a delivery that is known by one of these is a repeat.
    also: Vec<(Scoped, Span)>,
}

/// A custom event on its way.
struct Emitted {
    /// Only triggers of this namespace hear of it.
    namespace: Name,
    /// What goes on record.
    event: Custom,
    /// How many runs made each other by events, up to the one that emits it.
    depth: u32,
}

/// The one answer to whatever is wrong before a signature holds.
fn unknown() -> Problem {
    Problem::new(Code::Unauthorized, "the delivery is not signed with a secret that is known here")
}

fn bad(text: impl Into<String>) -> Problem {
    Problem::new(Code::InvalidInput, text)
}

/// A request as it came.
struct Raw {
    tenant: String,
    source: String,
    head: HeaderMap,
    bytes: Bytes,
    /// Its part of the memory for deliveries.
    _room: Room,
}

impl Raw {
    /// A header that is there exactly once, as text.
    fn header(&self, name: &str) -> Option<&str> {
        one_header(&self.head, name)
    }

    /// A header that must be there, once the signature holds.
    fn need(&self, name: &str) -> Result<&str, Problem> {
        self.header(name).ok_or_else(|| bad(format!("the header `{name}` must be there once")))
    }

    /// The lane of a large delivery. It is apart from that of what the tenant's own callers ask for: whose it is, its
    /// signature has not shown yet.
    fn lane(&self) -> Option<Name> {
        (self.bytes.len() >= LARGE).then(|| Name::clean(&format!("hooks of {}", self.tenant)))
    }

    fn traceparent(&self) -> Option<Name> {
        traceparent(&self.head)
    }

    /// The headers that triggers may look at: none that could hold a credential.
    fn visible_headers(&self) -> Map<String, Value> {
        const VISIBLE_MAX: usize = 32;
        const LEN_MAX: usize = 1_024;
        const HIDDEN: [&str; 6] = ["signature", "token", "secret", "key", "auth", "cookie"];
        let shown = |name: &str| {
            let plain = name.starts_with("x-") || matches!(name, "content-type" | "user-agent");
            plain && HIDDEN.iter().all(|word| !name.contains(word))
        };
        let named = self.head.iter().filter(|(name, value)| shown(name.as_str()) && value.len() <= LEN_MAX);
        let text =
            named.filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.into())));
        text.take(VISIBLE_MAX).collect()
    }
}

fn one_header<'a>(head: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = head.get_all(name).iter();
    let first = values.next()?;
    // Two of them mean something else to everybody who reads only one.
    values.next().is_none().then_some(())?;
    first.to_str().ok()
}

/// The trace that a request belongs to.
pub(super) fn traceparent(head: &HeaderMap) -> Option<Name> {
    let text = one_header(head, "traceparent").filter(|text| trace::parse(text).is_some())?;
    Name::new(text).ok()
}

/// Who a delivery is said to be for.
type Place = Path<BTreeMap<String, String>>;

/// Reads a request whole, within its bounds.
async fn read(place: Option<Place>, request: Request) -> Result<Raw, Response> {
    let place = place.map(|Path(place)| place).unwrap_or_default();
    let word = |key: &str| place.get(key).cloned();
    let (Parts { headers: head, extensions, .. }, body) = request.into_parts();
    let peer = extensions.get::<Peer>().copied();
    let too_large = || {
        let detail = format!("a delivery has {DELIVERY_LEN_MAX} bytes at most");
        Problem::new(Code::PayloadTooLarge, detail).into_response()
    };
    let said = one_header(&head, "content-length").and_then(|len| len.parse::<usize>().ok());
    if said.is_some_and(|len| len > DELIVERY_LEN_MAX) {
        return Err(too_large());
    }
    let mut room = Room::none(peer);
    let bytes = match patient(collect(body, &mut room), READ_TIMEOUT, peer).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(Unread::TooLarge)) => return Err(too_large()),
        Ok(Err(Unread::Broken)) => return Err(bad("the body broke off: send it whole").into_response()),
        Ok(Err(Unread::Share)) => {
            let text =
                "deliveries of this machine take as much memory as they may: send it again in a second";
            return Err(Problem::new(Code::CapExceeded, text).into_response());
        }
        Err(Late::Over) => {
            let text = "the delivery took too long to come: send it again";
            return Err(Problem::new(Code::RequestTimeout, text).into_response());
        }
        Err(Late::Crowded) => return Err(super::crowded().into_response()),
    };
    let tenant = word("tenant").unwrap_or_else(|| windlass_executor::config::DEFAULT_TENANT.to_owned());
    Ok(Raw { tenant, source: word("source").unwrap_or_default(), head, bytes, _room: room })
}

enum Unread {
    TooLarge,
    Broken,
    /// Its machine has as much room as it may.
    Share,
}

/// The bytes of a body, as long as they are not too many, with room for each as it comes.
async fn collect(mut body: Body, room: &mut Room) -> Result<Bytes, Unread> {
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Unread::Broken)?.into_data() else { continue };
        if all.len() + data.len() > DELIVERY_LEN_MAX {
            return Err(Unread::TooLarge);
        }
        if !room.grow(all.len() + data.len()).await {
            return Err(Unread::Share);
        }
        all.extend_from_slice(&data);
    }
    Ok(all.into())
}

async fn github(State(app): State<Arc<App>>, place: Option<Place>, request: Request) -> Response {
    match read(place, request).await {
        Ok(raw) => taken(&raw.lane(), async move { github::take(&app, raw).await.into_response() }).await,
        Err(response) => response,
    }
}

async fn generic(State(app): State<Arc<App>>, place: Option<Place>, request: Request) -> Response {
    match read(place, request).await {
        Ok(raw) => taken(&raw.lane(), async move { generic::take(&app, raw).await.into_response() }).await,
        Err(response) => response,
    }
}

async fn slack_commands(State(app): State<Arc<App>>, place: Option<Place>, request: Request) -> Response {
    match read(place, request).await {
        Ok(raw) => taken(&raw.lane(), async move { slack::command(app, raw).await.into_response() }).await,
        Err(response) => response,
    }
}

async fn slack_actions(State(app): State<Arc<App>>, place: Option<Place>, request: Request) -> Response {
    match read(place, request).await {
        Ok(raw) => taken(&raw.lane(), async move { clicks::action(app, raw).await.into_response() }).await,
        Err(response) => response,
    }
}

/// Has a delivery taken: a large one where it is in nobody's way.
async fn taken(lane: &Option<Name>, take: impl Future<Output = Response> + Send + 'static) -> Response {
    match lane {
        Some(lane) => aside::run(lane, take).await,
        None => take.await,
    }
}

/// What a delivery came to, as an answer.
fn answer(answered: &triggers::Answered) -> Answer {
    let mut response = json(answered.status, &answered.body);
    if answered.replayed {
        super::runs::mark_replayed(&mut response);
    }
    Ok(response)
}

/// A JSON object; anything else is no payload.
fn payload(bytes: &[u8]) -> Result<Value, Problem> {
    let value: Value =
        serde_json::from_slice(bytes).map_err(|error| bad(format!("the payload is not valid: {error}")))?;
    if value.is_object() { Ok(value) } else { Err(bad("the payload is not a JSON object")) }
}

/// A tenant by its name. One whose name is none has no secrets, and no delivery comes this far for it.
fn tenant_name(raw: &Raw) -> Result<Name, Problem> {
    Name::new(&raw.tenant).map_err(|_| unknown())
}
