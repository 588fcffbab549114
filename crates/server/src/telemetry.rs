//! What is told of runs while the process serves: log lines as JSON on stderr, and spans for a collector of traces.
//!
//! ```text
//!  loop: facts ─▶ [Story: lines] ─▶ durable ─▶ Teller ─▶ (bounded) ─▶ a thread ─▶ stderr, collector
//! ```
//!
//! Only what is durable is told. Whoever tells never waits: where lines come faster than they can be written, they are
//! dropped and counted. Every line has the run's id and its trace's.

mod lines;
mod otlp;
mod story;
#[cfg(test)]
mod tests;

pub use lines::flush_logs;
pub(crate) use lines::lost;
pub use otlp::Endpoint;
pub use story::{Line, Story};

use crate::metrics::Metrics;
use lines::Lines;
use otlp::Exporter;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use story::What;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use windlass_core::trace;
use windlass_executor::config::Config;
use windlass_store::log::Recovery;

/// How many batches of lines may wait for the thread that writes them.
const WAITING_MAX: usize = 4_096;
/// How long spans wait for others to go with.
const GATHER: Duration = Duration::from_secs(1);

/// Where the loop's lines go. It never waits.
#[derive(Clone)]
pub struct Teller {
    sender: SyncSender<Vec<Line>>,
    metrics: Arc<Metrics>,
}

impl Teller {
    /// Hands lines on.
    pub fn tell(&self, lines: Vec<Line>) {
        if !lines.is_empty() && self.sender.try_send(lines).is_err() {
            self.metrics.lost_line();
        }
    }
}

/// Begins to write log lines of this process to stderr, one JSON object each. `WINDLASS_LOG` says how much (`info` where
/// absent, `off` for nothing). Only the first call does anything.
///
/// # Errors
/// The system gives no thread.
pub fn write_logs() -> std::io::Result<()> {
    let asked = std::env::var("WINDLASS_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let filter = asked.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines = tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_writer(Lines::to_stderr()?)
        .with_filter(filter);
    // A second one changes nothing: a process has one place for its lines.
    let _ = tracing_subscriber::registry().with(lines).try_init();
    Ok(())
}

/// Whether somebody wants to be told by a command that does not serve: the environment says how much is logged, or
/// names a collector. Then log lines are written from here on.
///
/// # Errors
/// The system gives no thread.
pub fn is_asked_for(config: &Config) -> std::io::Result<bool> {
    let logs = config.var("WINDLASS_LOG").is_some();
    if logs {
        write_logs()?;
    }
    Ok(logs || Endpoint::find(config).is_some())
}

/// Begins to tell: to the log, where somebody listens to it, and to the collector that the environment names.
///
/// # Errors
/// The system gives no thread.
pub fn start(config: &Config, metrics: Arc<Metrics>) -> std::io::Result<(Teller, JoinHandle<()>)> {
    let exporter = match Endpoint::find(config) {
        None => None,
        Some(Ok(endpoint)) => Some(Exporter::new(endpoint)?),
        Some(Err(problem)) => {
            tracing::warn!(event = "traces_off", problem);
            None
        }
    };
    let (sender, receiver) = sync_channel(WAITING_MAX);
    let thread =
        std::thread::Builder::new().name("telemetry".into()).spawn(move || serve(&receiver, exporter))?;
    Ok((Teller { sender, metrics }, thread))
}

fn serve(lines: &Receiver<Vec<Line>>, mut exporter: Option<Exporter>) {
    loop {
        match lines.recv_timeout(GATHER) {
            Ok(lines) => {
                for line in lines {
                    write(&line);
                    if let Some(exporter) = &mut exporter {
                        exporter.see(&line);
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some(exporter) = &mut exporter {
                    exporter.flush();
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                if let Some(exporter) = &mut exporter {
                    exporter.flush();
                }
                return;
            }
        }
    }
}

/// Writes a line to the log.
fn write(line: &Line) {
    let (run_id, trace_id) = (line.run.to_string(), trace::id_text(line.trace));
    let (pipeline, tenant) = (line.home.pipeline.as_str(), line.home.tenant.as_str());
    match &line.what {
        What::Created { idempotency_key, source } => {
            let idempotency_key = idempotency_key.as_ref().map(|key| key.as_str());
            tracing::info!(
                event = "run_created",
                run_id,
                trace_id,
                "type" = pipeline,
                tenant,
                source,
                idempotency_key
            );
        }
        What::Moved { from, to, initiator } => {
            let (from, to) = (from.as_str(), to.as_str());
            tracing::info!(event = "run_transition", run_id, trace_id, tenant, from, to, initiator);
        }
        What::Checkpoint { step, resumable } => {
            let step_id = step.as_ref().map(|step| step.as_str());
            tracing::info!(event = "run_checkpoint", run_id, trace_id, step_id, resumable);
        }
        What::Ended { status, duration_ms, .. } => {
            let status = status.as_str();
            tracing::info!(
                event = "run_completed",
                run_id,
                trace_id,
                "type" = pipeline,
                tenant,
                duration_ms,
                status
            );
        }
        What::Orphaned { last_heartbeat } => {
            let last_heartbeat = last_heartbeat.map(windlass_api::time::text);
            tracing::warn!(event = "orphan_detected", run_id, trace_id, last_heartbeat);
        }
        What::AttemptBegan { step, epoch } => {
            tracing::debug!(event = "step_started", run_id, trace_id, step_id = step.as_str(), epoch);
        }
        What::AttemptEnded { step, epoch, outcome, .. } => {
            tracing::debug!(event = "step_ended", run_id, trace_id, step_id = step.as_str(), epoch, outcome);
        }
    }
}

/// What a start found in the log.
pub fn recovered(found: &Recovery) {
    let Recovery { snapshot, streams, records, last_seq, torn_bytes, .. } = found;
    tracing::info!(event = "store_recovered", snapshot, streams, records, last_seq, torn_bytes);
    for problem in &found.warnings {
        tracing::warn!(event = "store_warning", problem);
    }
}

/// A request came with the key of another request, and was refused.
pub fn idempotency_conflict(key: &str, source: &str) {
    tracing::warn!(event = "idempotency_conflict", key, source);
}

/// A request came with a key that was known, and got the answer of a run of this trace.
pub fn idempotency_hit(key: &str, run: Option<windlass_core::id::RunId>, trace: Option<trace::Trace>) {
    let (cached_run_id, trace_id) = (run.map(|run| run.to_string()), trace.map(trace::id_text));
    tracing::info!(event = "idempotency_hit", key, run_id = cached_run_id, trace_id, cached_run_id);
}
