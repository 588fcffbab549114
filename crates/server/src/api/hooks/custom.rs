//! Custom events: emitted by people, programs and steps, for workers that wake on them and triggers that match them.
//!
//! An event, the runs and signals that triggers make of it, and the answer are one commit under one ingress key. A key
//! that comes again gets the first answer, so a step that is tried again emits its event once.

use super::triggers::{self, Answered};
use super::{Delivery, Emitted, answer};
use crate::api::{Answer, Caller, Json, Problem, invalid, runs};
use crate::app::App;
use axum::extract::State;
use axum::http::HeaderMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use windlass_core::canonical;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::event::Custom;
use windlass_core::id::{Name, RunId};
use windlass_core::idempotency::{self, Source as KeySource};
use windlass_core::pattern;
use windlass_core::run::{Actor, Source};
use windlass_core::runbook::CALLS_MAX;
use windlass_executor::clock::fresh;

/// The source that triggers on custom events name.
pub(super) const SOURCE: &str = "custom";
/// The most bytes of the data of an event.
const DATA_LEN_MAX: usize = 64 * 1024;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewEvent {
    /// `category:action`.
    #[serde(rename = "type")]
    kind: String,
    /// What it brings, up to 64 KiB.
    #[serde(default)]
    data: Value,
}

/// An event that is to be emitted.
pub(crate) struct Emission {
    pub(crate) tenant: Name,
    pub(crate) namespace: Name,
    /// Who emits it.
    pub(crate) by: Actor,
    /// The run that emits it, where one does.
    pub(crate) run: Option<RunId>,
    /// Whose the key is: a client, or the steps.
    pub(crate) client: Name,
    /// The key that the client gave it.
    pub(crate) key: String,
    /// `category:action`.
    pub(crate) kind: String,
    pub(crate) data: Value,
    pub(crate) traceparent: Option<Name>,
}

/// Emits an event.
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    Json(body): Json<NewEvent>,
) -> Answer {
    let given = runs::idempotency_key(&headers)?;
    let emission = Emission {
        tenant: caller.tenant.clone(),
        namespace: caller.namespace.clone(),
        by: caller.actor.clone(),
        run: caller.attempt.as_ref().map(|place| place.run),
        client: caller.client.clone(),
        key: given.map_or_else(|| format!("event:{:032x}", fresh()), |given| given.to_string()),
        kind: body.kind,
        data: body.data,
        traceparent: super::traceparent(&headers),
    };
    answer(&emit(&app, emission).await?)
}

/// Puts an event on record, with all that it sets going.
pub(crate) async fn emit(app: &Arc<App>, emission: Emission) -> Result<Answered, Problem> {
    let Emission { tenant, namespace, by, run, client, key, kind, data, traceparent } = emission;
    let (category, action) = pattern::custom_type(&kind).map_err(invalid)?;
    let bytes = canonical::bytes(&data);
    if bytes.len() > DATA_LEN_MAX {
        let text =
            format!("the data of an event has {DATA_LEN_MAX} bytes at most, and this has {}", bytes.len());
        return Err(Problem::new(Code::PayloadTooLarge, text));
    }
    let depth = match run {
        Some(run) => app.look(move |store| store.state().run(run).map_or(0, |run| run.born.depth)).await?,
        None => 0,
    };
    let key = idempotency::api(client.as_str(), &key).map_err(invalid)?;
    let event = Custom {
        category: category.clone(),
        action: action.clone(),
        pipeline_id: run,
        data: data.clone().into(),
    };
    let delivery = Delivery {
        tenant,
        source: Name::clean(SOURCE),
        event: Some(category.to_string()),
        action: Some(action.to_string()),
        id: event.kind(),
        key,
        key_source: KeySource::Api,
        request_hash: Digest::of(&[kind.as_bytes(), b"\n", &bytes]),
        payload: data,
        headers: Map::new(),
        user: by.id.clone(),
        by,
        run_source: Source::Event,
        subject: None,
        traceparent,
        emitted: Some(Emitted { namespace, event, depth }),
        also: Vec::new(),
    };
    triggers::fire(app, delivery).await
}

/// Why a trigger makes no run of an event: runs that make each other by events would never end.
pub(super) fn too_deep(emitted: Option<&Emitted>) -> Result<u32, (Code, String)> {
    let depth = match emitted {
        Some(Emitted { event: Custom { pipeline_id: Some(_), .. }, depth, .. }) => depth + 1,
        Some(_) | None => 0,
    };
    if depth <= CALLS_MAX {
        return Ok(depth);
    }
    let text = format!("runs that make each other by events or calls go {CALLS_MAX} deep at most");
    Err((Code::CapExceeded, text))
}

/// The beginning of the answer to an event.
pub(super) fn told(event: &Custom, key: &Name) -> Value {
    json!({ "type": event.kind(), "key": key })
}
