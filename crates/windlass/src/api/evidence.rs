//! Evidence of runs, and the public keys that it is checked with.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Problem, Query, json};
use crate::app::App;
use crate::evidence::{self, archive, bundle, keys};
use axum::extract::{Path, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::IntoResponse as _;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json as object;
use std::sync::Arc;
use windlass_core::code::Code;
use windlass_core::command::Command;
use windlass_core::digest::Digest;
use windlass_core::event::EvidenceExported;
use windlass_core::id::RunId;
use windlass_engine::port::Clock as _;

/// Everything about evidence.
pub(super) fn routes() -> Routes {
    const TAR: &str = "application/x-tar";
    const REFUSED: &[Code] = &[Code::NotFound, Code::RunInvalidTransition];
    let exported = doc("Prove a run: an archive that verifies offline").query::<Wanted>();
    Routes::new()
        .get(
            "/v1/runs/{id}/evidence",
            Scope::Read,
            exported.gives_as(200, TAR, "evidence").refuses(REFUSED),
            export,
        )
        .get(
            "/v1/keys",
            Scope::Read,
            doc("List the public keys that seals are checked with").gives(200, "list"),
            list,
        )
        .post(
            "/v1/keys/rotate",
            Scope::Owner,
            doc("Seal with a new key from now on").gives(201, "key"),
            rotate,
        )
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    /// Whether variables, outputs, requests and responses are in it as values.
    #[serde(default)]
    values: bool,
}

impl From<evidence::Error> for Problem {
    fn from(error: evidence::Error) -> Problem {
        Problem::new(error.code(), error.to_string())
    }
}

/// A bundle of a run, sealed through its last record.
///
/// # Errors
/// As [`bundle::gather`] says.
pub(crate) fn make(app: &App, run: RunId, values: bool) -> Result<Vec<u8>, evidence::Error> {
    app.sealing.now()?;
    let gone = |refusal: windlass_core::command::Refusal| evidence::Error::Engine(refusal.to_string());
    let (first_seq, key) = app
        .engine
        .read(move |store| (store.first_seq(run), evidence::seal::key_in_force(store)))
        .map_err(gone)?;
    let id = key.ok_or_else(|| evidence::Error::Unprovable("nothing was sealed yet".to_owned()))?;
    let key = app.keys.load(&id)?;
    let what = bundle::What { run, first_seq, values };
    let made = bundle::gather(&app.log, what, &key, crate::clock::System.now())?;
    archive::write(&made)
}

async fn export(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    Query(wanted): Query<Wanted>,
) -> Answer {
    let run = app.find_run(&caller, &id).await?;
    let maker = app.clone();
    let made = tokio::task::spawn_blocking(move || make(&maker, run, wanted.values)).await;
    let bytes = made.map_err(|_| Problem::new(Code::Internal, "the bundle could not be made"))??;
    let sha256 = Digest::of(&[&bytes]);
    let fact =
        EvidenceExported { pipeline_id: run, sha256, bytes: bytes.len() as u64, location: "export".into() };
    app.ask(&caller, Command::Exported(Box::new(fact))).await?;
    let name = format!("attachment; filename=\"{run}.evidence.tar\"");
    let mut response = (StatusCode::OK, [(header::CONTENT_TYPE, "application/x-tar")], bytes).into_response();
    let headers =
        [(header::CONTENT_DISPOSITION, name), (HeaderName::from_static("x-sha256"), sha256.to_string())];
    for (header, value) in headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(header, value);
        }
    }
    Ok(response)
}

async fn list(State(app): State<Arc<App>>, _: Caller) -> Answer {
    let sealer = app.clone();
    let sealed = tokio::task::spawn_blocking(move || sealer.sealing.now()).await;
    sealed.map_err(|_| Problem::new(Code::Internal, "nothing was sealed"))??;
    let known = app.look(|store| evidence::seal::public_keys(store)).await?;
    let items = known.iter().map(|(id, public)| object!({ "id": id, "public_key": public })).collect();
    let mut body = crate::shape::list(items, None);
    body["text"] = keys::public_text(&known).into();
    Ok(json(StatusCode::OK, &body))
}

async fn rotate(State(app): State<Arc<App>>, _: Caller) -> Answer {
    let sealer = app.clone();
    let rotated = tokio::task::spawn_blocking(move || sealer.sealing.rotate()).await;
    let id = rotated.map_err(|_| Problem::new(Code::Internal, "no key was made"))??;
    Ok(json(StatusCode::CREATED, &object!({ "id": id })))
}
