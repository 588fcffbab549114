//! Evidence of runs, and the public keys that it is checked with.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Problem, Query, json};
use crate::app::App;
use crate::evidence::{self, archive, bundle, keys, period};
use axum::extract::{Path, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::IntoResponse as _;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use windlass_api::evidence::{Key, PublicKey, PublicKeys};
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::event::EvidenceExported;
use windlass_core::evidence::{About, Period};
use windlass_core::id::RunId;
use windlass_core::time::Millis;
use windlass_core::turn::command::Command;
use windlass_engine::port::Clock as _;
use windlass_store::store::Embedded;

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
            "/v1/evidence",
            Scope::Owner,
            doc("Prove a period: all runs that began in it, in an archive that verifies offline")
                .query::<Stretch>()
                .gives_as(200, TAR, "evidence")
                .refuses(&[Code::RunInvalidTransition]),
            export_period,
        )
        .get(
            "/v1/keys",
            Scope::Read,
            doc("List the public keys that seals are checked with").gives(200, "keys"),
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

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Stretch {
    /// The first moment, as RFC 3339.
    from: String,
    /// The first moment after it.
    to: String,
    /// Whether variables, outputs, requests and responses are in it as values.
    #[serde(default)]
    values: bool,
}

impl From<evidence::Error> for Problem {
    fn from(error: evidence::Error) -> Problem {
        Problem::new(error.code(), error.to_string())
    }
}

/// A bundle of a run, sealed through its last record. Only the owner has a seal made for it at once: those who read wait for
/// the next, and where the run is sealed already nobody needs one.
///
/// # Errors
/// As [`bundle::gather`] says.
fn make(app: &App, run: RunId, values: bool, owns: bool) -> Result<Vec<u8>, evidence::Error> {
    let gone = |refusal: windlass_core::turn::command::Refusal| evidence::Error::Engine(refusal.to_string());
    let look = move |store: &mut Embedded| (store.place_of(run).first, evidence::seal::sealed_through(store));
    let (first_seq, mut through) = app.engine.read(look).map_err(gone)?;
    if !bundle::is_sealed(&app.log, run, first_seq, through)? {
        if owns {
            app.sealing.now()?;
        } else {
            app.sealing.soon()?;
        }
        through = app.engine.read(|store| evidence::seal::sealed_through(store)).map_err(gone)?;
    }
    let key = key(app)?;
    let what = bundle::What { run, first_seq, through, values };
    match bundle::gather(&app.log, &app.proofs, what, &key) {
        Ok(made) => archive::write(&made),
        // What was kept when it ended proves it still, when the log does not hold all of the proof any more.
        Err(evidence::Error::Unprovable(why)) if !values => {
            app.shelf.get(run)?.ok_or(evidence::Error::Unprovable(why))
        }
        Err(error) => Err(error),
    }
}

/// The key that signs bundles.
fn key(app: &App) -> Result<keys::Key, evidence::Error> {
    let gone = |refusal: windlass_core::turn::command::Refusal| evidence::Error::Engine(refusal.to_string());
    let id = app.engine.read(|store| evidence::seal::key_in_force(store)).map_err(gone)?;
    app.keys.load(&id.ok_or_else(|| evidence::Error::Unprovable("nothing was sealed yet".to_owned()))?)
}

async fn export(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    Query(wanted): Query<Wanted>,
) -> Answer {
    let run = app.find_run(&caller, &id).await?;
    let maker = app.clone();
    let owns = caller.may(Scope::Owner);
    let made = tokio::task::spawn_blocking(move || make(&maker, run, wanted.values, owns)).await;
    let bytes = made.map_err(|_| Problem::new(Code::Internal, "the bundle could not be made"))??;
    exported(&app, &caller, About::Run(run), bytes).await
}

/// A bundle is handed out, and that is on record: once for the same bundle and caller.
async fn exported(app: &App, caller: &Caller, about: About, archive: Vec<u8>) -> Answer {
    let (sha256, bytes) = (Digest::of(&[&archive]), archive.len() as u64);
    let (name, pipeline_id, period) = match about {
        About::Run(run) => (format!("{run}.evidence.tar"), Some(run), None),
        About::Period(period) => ("period.evidence.tar".to_owned(), None, Some(period)),
    };
    let (from, to) = period.map(|Period { from, to }| (from, to)).unzip();
    let fact = EvidenceExported { pipeline_id, sha256, bytes, location: "export".into(), from, to };
    let who = format!("{}/{}/{}", caller.tenant, caller.actor, caller.client);
    if !app.handed_out.has(&sha256, &who) {
        app.ask(caller, Command::Exported(Box::new(fact))).await?;
        app.handed_out.put(&sha256, &who);
    }
    Ok(attached(&name, sha256, archive))
}

async fn export_period(State(app): State<Arc<App>>, caller: Caller, Query(wanted): Query<Stretch>) -> Answer {
    let moment = |name: &str, text: &str| {
        let stamp: jiff::Timestamp =
            text.parse().map_err(|error| Problem::new(Code::InvalidInput, format!("`{name}`: {error}")))?;
        Ok::<_, Problem>(Millis(u64::try_from(stamp.as_millisecond()).unwrap_or(0)))
    };
    let asked = Period { from: moment("from", &wanted.from)?, to: moment("to", &wanted.to)? };
    if asked.from >= asked.to {
        return Err(Problem::new(Code::InvalidInput, "the period ends before it begins"));
    }
    let maker = app.clone();
    let made = tokio::task::spawn_blocking(move || {
        maker.sealing.now()?;
        let at = windlass_executor::clock::System.now();
        archive::write(&period::gather(&maker.log, asked, wanted.values, &key(&maker)?, at)?)
    });
    let bytes = made.await.map_err(|_| Problem::new(Code::Internal, "the bundle could not be made"))??;
    exported(&app, &caller, About::Period(asked), bytes).await
}

/// An archive as an answer.
fn attached(name: &str, sha256: Digest, bytes: Vec<u8>) -> axum::response::Response {
    let name = format!("attachment; filename=\"{name}\"");
    let mut response = (StatusCode::OK, [(header::CONTENT_TYPE, "application/x-tar")], bytes).into_response();
    let headers =
        [(header::CONTENT_DISPOSITION, name), (HeaderName::from_static("x-sha256"), sha256.to_string())];
    for (header, value) in headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(header, value);
        }
    }
    response
}

async fn list(State(app): State<Arc<App>>, _: Caller) -> Answer {
    let mut known = app.look(|store| evidence::seal::public_keys(store)).await?;
    if known.is_empty() {
        // The first seal makes the first key.
        let sealer = app.clone();
        let sealed = tokio::task::spawn_blocking(move || sealer.sealing.soon()).await;
        sealed.map_err(|_| Problem::new(Code::Internal, "nothing was sealed"))??;
        known = app.look(|store| evidence::seal::public_keys(store)).await?;
    }
    let text = keys::public_text(&known);
    let items = known.into_iter().map(|(id, public_key)| PublicKey { id, public_key }).collect();
    Ok(json(StatusCode::OK, &PublicKeys { items, text }))
}

async fn rotate(State(app): State<Arc<App>>, _: Caller) -> Answer {
    let sealer = app.clone();
    let rotated = tokio::task::spawn_blocking(move || sealer.sealing.rotate()).await;
    let id = rotated.map_err(|_| Problem::new(Code::Internal, "no key was made"))??;
    Ok(json(StatusCode::CREATED, &Key { id }))
}
