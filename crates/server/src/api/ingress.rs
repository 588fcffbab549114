//! Ingress keys: what became of a delivery, by the key that names it.
//!
//! A key of another tenant, and one whose run is in another namespace, is answered like one that nobody ever used.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Problem, json};
use crate::app::App;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Map, Value, json as object};
use std::sync::Arc;
use windlass_api::time;
use windlass_core::code::Code;
use windlass_core::id::{Name, RunId, Scoped};
use windlass_core::idempotency::{self, Input, Key};
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::state::Body;
use windlass_engine::port::Clock as _;
use windlass_executor::clock::System;
use windlass_store::store::Embedded;

/// Looking at keys.
pub(super) fn routes() -> Routes {
    let shown = doc("Show what became of a delivery, by its ingress key").gives(200, "ingress");
    Routes::new().get(
        "/v1/ingress/{key}",
        Scope::Read,
        shown.refuses(&[Code::NotFound, Code::IdempotencyExpired]),
        show,
    )
}

async fn show(State(app): State<Arc<App>>, caller: Caller, Path(text): Path<String>) -> Answer {
    let missing = || Problem::missing("ingress key", &text);
    let key = Name::new(&text).map_err(|_| missing())?;
    let now = System.now();
    let seen = app.look(move |store| look(store, &caller, &key, now)).await?;
    let (stored, at) = seen.ok_or_else(missing)?;
    stored.map(|shown| json(StatusCode::OK, &with_time(shown, at))).map_err(|error| match error.code() {
        Code::NotFound => missing(),
        code => Problem::new(code, error.to_string()),
    })
}

/// Whose the key is must be the caller's tenant, and whose run it made the caller's namespace.
type Seen = (Result<Value, idempotency::Error>, Millis);

fn look(store: &Embedded, caller: &Caller, key: &Name, now: Millis) -> Option<Seen> {
    // A delivery is for a whole tenant; a custom event is for its namespace.
    let own = [Name::clean("_"), caller.namespace.clone()];
    own.iter().find_map(|namespace| {
        let stream = StreamId::Trigger(Scoped::new(&caller.tenant, namespace, key));
        let stream = store.state().stream(&stream)?;
        let Body::Trigger(key) = &stream.body else { return None };
        let run = key.delivery().and_then(|delivery| delivery.run);
        let is_mine = |run: RunId| store.namespace_of(&StreamId::Run(run)) == Some(caller.namespace.clone());
        // A client's key that says of no run, or not any more, is the client's own.
        let is_foreign = || namespace.as_str() == "_" && is_of_other_client(key.key.as_str(), caller);
        if run.map_or_else(is_foreign, |run| !is_mine(run)) {
            return None;
        }
        let answer = key.decide(&Input::Refer, now).map(|_| shown(key, caller, is_mine));
        Some((answer, stream.at))
    })
}

fn is_of_other_client(key: &str, caller: &Caller) -> bool {
    let own = idempotency::api(caller.client.as_str(), "_").ok();
    let own = own.as_ref().and_then(|own| own.as_str().strip_suffix('_'));
    key.starts_with("api:") && !caller.owns && own.is_none_or(|own| !key.starts_with(own))
}

fn with_time(mut shown: Value, at: Millis) -> Value {
    shown["updated_at"] = Value::String(time::text(at));
    shown
}

fn shown(key: &Key, caller: &Caller, is_mine: impl Fn(RunId) -> bool) -> Value {
    let mut out = Map::new();
    let mut put = |name: &str, value: Value| {
        if !value.is_null() {
            out.insert(name.to_owned(), value);
        }
    };
    put("key", object!(key.key));
    put("tenant", object!(caller.tenant));
    put("status", object!(key.state_name()));
    if let Some(delivery) = key.delivery() {
        put("source", object!(delivery.source.as_str()));
        put("run", object!(delivery.run));
        put("request_hash", object!(delivery.request_hash));
        put("attempts", object!(delivery.attempts));
        put("created_at", object!(delivery.created_at.map(time::text)));
        put("expires_at", object!(time::text(delivery.expires_at)));
    }
    match &key.state {
        idempotency::State::Processing { lock_expires_at, .. } => {
            put("lock_expires_at", object!(time::text(*lock_expires_at)));
        }
        idempotency::State::Completed { response: Some(response), .. } => {
            let mut response = response.clone();
            // One delivery may make runs of several namespaces.
            if let Some(Value::Array(runs)) = response.get_mut("runs") {
                let of = |run: &Value| run["id"].as_str().and_then(|id| RunId::parse(id).ok());
                runs.retain(|run| of(run).is_some_and(&is_mine));
            }
            put("response", response);
        }
        idempotency::State::Failed { error, .. } => put("error", object!(error)),
        idempotency::State::Completed { response: None, .. }
        | idempotency::State::Absent
        | idempotency::State::Expired => {}
    }
    Value::Object(out)
}
