//! The figures of the process, for whoever watches it.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Problem};
use crate::app::App;
use crate::metrics::expose::MEDIA_TYPE;
use crate::metrics::{Gauges, Hit, OTHER};
use crate::telemetry;
use axum::extract::State;
use axum::http::{Method, header};
use axum::response::IntoResponse as _;
use std::path::Path;
use std::sync::Arc;
use windlass_core::code::Code;
use windlass_core::id::{RunId, Scoped};
use windlass_core::idempotency::Source as KeySource;
use windlass_core::turn::command::Reply;

/// The figures.
pub(super) fn routes() -> Routes {
    let shown =
        doc("Show the figures of the process").gives_as(200, "application/openmetrics-text", "figures");
    Routes::new().get("/metrics", Scope::Read, shown, figures)
}

/// The figures as text. The installation's owner sees every tenant; anybody else their own.
async fn figures(State(app): State<Arc<App>>, caller: Caller) -> Answer {
    let active = app
        .look(|store| {
            let all = store.state().indexes().statuses();
            all.filter(|(_, status, _)| !status.is_terminal())
                .map(|(tenant, status, n)| (tenant.clone(), status, n))
                .collect::<Vec<_>>()
        })
        .await?;
    let (log, root) = (app.log.clone(), app.home.root().to_path_buf());
    let looked = tokio::task::spawn_blocking(move || Gauges {
        active,
        store_bytes: store_bytes(&root),
        syncs: log.syncs(),
        resident_bytes: resident_bytes(),
        streams: log.live_streams() as u64,
    });
    let defect = |_| Problem::new(Code::Internal, "the figures cannot be put together");
    let gauges =
        looked.await.map_err(|_| Problem::new(Code::Internal, "the figures cannot be put together"))?;
    let only = Some(&caller.tenant).filter(|_| !caller.owns);
    let text = app.metrics.text(&gauges, only).map_err(defect)?;
    Ok(([(header::CONTENT_TYPE, MEDIA_TYPE)], text).into_response())
}

impl App {
    /// Counts what became of an ingress key, and tells of one that was known.
    pub(super) fn count_key(&self, source: KeySource, key: &Scoped, asked: &Result<Reply, Problem>) {
        let hit = match asked {
            Ok(Reply::Known { in_flight: true, .. }) => Hit::InFlight,
            Ok(Reply::Known { .. }) => Hit::Duplicate,
            // tidy: every other answer is that of a delivery that was taken in.
            Ok(_) => Hit::New,
            Err(problem) if problem.code == Code::IdempotencyConflict => Hit::Conflict,
            Err(_) => Hit::Failed,
        };
        self.metrics.key(source, hit);
        if let Ok(Reply::Known { run, .. }) = asked {
            self.tell_hit(key.name(), *run);
        }
    }

    /// Tells of a key that was known, with the trace of its run where that is in memory still.
    pub(super) fn tell_hit(&self, key: &str, run: Option<RunId>) {
        let key = key.to_owned();
        let look = move |store: &mut windlass_store::store::Embedded| {
            run.and_then(|run| store.state().run(run)).map(|run| run.born.trace())
        };
        self.engine.read_then(look, move |seen| {
            telemetry::idempotency_hit(&key, run, seen.ok().flatten());
        });
    }
}

/// Bytes of the log, the snapshots and the history.
fn store_bytes(root: &Path) -> u64 {
    let files = |dir: &Path| -> u64 {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.metadata().ok())
            .filter(std::fs::Metadata::is_file)
            .map(|meta| meta.len())
            .sum()
    };
    [root.to_path_buf(), root.join("log"), root.join("snapshot")].iter().map(|dir| files(dir)).sum()
}

/// Memory of this process. Where the system does not say, nought.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1_024
}

/// A method by its word. Methods are the caller's words, and could be any.
pub(super) fn method(of: &Method) -> &'static str {
    match of.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "HEAD" => "HEAD",
        "OPTIONS" => "OPTIONS",
        "PATCH" => "PATCH",
        _ => OTHER,
    }
}
