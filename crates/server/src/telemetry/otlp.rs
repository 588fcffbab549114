//! Spans for a collector of traces, as OTLP over HTTP with JSON.
//!
//! A run is a span; the attempts at its steps are its children. A span is sent when it has ended. A collector that does
//! not answer costs spans and nothing else: they are counted in a warning and dropped.

use super::story::{Line, What};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;
use windlass_core::id::{AttemptId, StepId};
use windlass_core::run::Status;
use windlass_core::time::{Millis, Span as Length};
use windlass_core::trace;
use windlass_executor::config::Config;

/// How many spans are sent at once.
const SPANS_MAX: usize = 512;
/// How many attempts under way are remembered.
const OPEN_MAX: usize = 100_000;
/// How long a collector may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes of the collector's answer that are read.
const ANSWER_MAX: usize = 64 * 1024;

/// Where spans go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    authority: String,
    path: String,
    headers: Vec<(String, String)>,
    service: String,
}

impl Endpoint {
    /// The collector that the environment names, by OpenTelemetry's variables.
    #[must_use]
    pub fn find(config: &Config) -> Option<Result<Endpoint, String>> {
        let whole = config.var("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
        let base = config.var("OTEL_EXPORTER_OTLP_ENDPOINT");
        let url = whole.or_else(|| base.map(|base| format!("{}/v1/traces", base.trim_end_matches('/'))))?;
        Some(Endpoint::parse(&url).map(|endpoint| {
            let headers = config.var("OTEL_EXPORTER_OTLP_HEADERS").unwrap_or_default();
            let pairs = headers.split(',').filter_map(|pair| pair.split_once('='));
            let headers =
                pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect();
            let service = config.var("OTEL_SERVICE_NAME").unwrap_or_else(|| "windlass".to_owned());
            Endpoint { headers, service, ..endpoint }
        }))
    }

    fn parse(url: &str) -> Result<Endpoint, String> {
        let Some(rest) = url.strip_prefix("http://") else {
            return Err(format!(
                "`{}` is no address that traces can be sent to: name a collector on this machine by http://",
                windlass_core::wire::shorten(url)
            ));
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.is_empty() || authority.contains('@') {
            return Err("the address of the collector has no host, or a user".to_owned());
        }
        let authority =
            if authority.contains(':') { authority.to_owned() } else { format!("{authority}:80") };
        let (headers, service) = (Vec::new(), String::new());
        Ok(Endpoint { authority, path: format!("/{path}"), headers, service })
    }
}

/// Gathers spans and sends them.
pub(super) struct Exporter {
    endpoint: Endpoint,
    runtime: tokio::runtime::Runtime,
    spans: Vec<Value>,
    /// When attempts under way began.
    open: HashMap<AttemptId, Millis>,
}

impl Exporter {
    pub(super) fn new(endpoint: Endpoint) -> io::Result<Exporter> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Exporter { endpoint, runtime, spans: Vec::new(), open: HashMap::new() })
    }

    /// Takes what a line says about spans.
    pub(super) fn see(&mut self, line: &Line) {
        match &line.what {
            What::AttemptBegan { step, epoch } => {
                if self.open.len() < OPEN_MAX {
                    self.open.insert(AttemptId::new(line.run, step, *epoch), line.at);
                }
            }
            What::AttemptEnded { step, epoch, outcome, duration_ms } => {
                let began = self.open.remove(&AttemptId::new(line.run, step, *epoch));
                // One that began before this process is known by how long it took.
                let known = duration_ms.filter(|ms| *ms > 0).map(|ms| Millis(line.at.0.saturating_sub(ms)));
                if let Some(began) = began.or(known) {
                    let span = attempt(line, step, *epoch, outcome, began);
                    self.spans.push(span);
                }
            }
            What::Ended { status, created_at, .. } => self.spans.push(run(line, *status, *created_at)),
            What::Created { .. } | What::Moved { .. } | What::Checkpoint { .. } | What::Orphaned { .. } => {}
        }
        if self.spans.len() >= SPANS_MAX {
            self.flush();
        }
    }

    /// Sends what was gathered.
    pub(super) fn flush(&mut self) {
        if self.spans.is_empty() {
            return;
        }
        let spans = std::mem::take(&mut self.spans);
        let (count, body) = (spans.len(), document(&self.endpoint.service, &spans));
        let sent = self.runtime.block_on(async {
            match tokio::time::timeout(TIMEOUT, post(&self.endpoint, body.to_string())).await {
                Ok(sent) => sent,
                Err(_) => Err("it took too long".to_owned()),
            }
        });
        if let Err(problem) = sent {
            tracing::warn!(event = "spans_lost", count, collector = self.endpoint.authority, problem);
        }
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn nanos(at: Millis) -> String {
    (u128::from(at.0) * 1_000_000).to_string()
}

fn ids(line: &Line, span: u64, parent: Option<u64>) -> Value {
    let mut value =
        json!({ "traceId": trace::id_text(line.trace), "spanId": format!("{span:016x}"), "kind": 1 });
    if let Some(parent) = parent {
        value["parentSpanId"] = json!(format!("{parent:016x}"));
    }
    value
}

fn timed(
    mut span: Value,
    name: &str,
    (from, to): (Millis, Millis),
    good: bool,
    attributes: &[Value],
) -> Value {
    span["name"] = json!(name);
    span["startTimeUnixNano"] = json!(nanos(from));
    // A span that took no time would be hidden by many viewers.
    span["endTimeUnixNano"] = json!(nanos(to.max(from + Length(1))));
    span["attributes"] = json!(attributes);
    span["status"] = json!({ "code": if good { 1 } else { 2 } });
    span
}

fn run(line: &Line, status: Status, created_at: Millis) -> Value {
    let span = ids(line, trace::run_span(line.run), line.trace.parent);
    let attributes = [
        text("windlass.run_id", &line.run.to_string()),
        text("windlass.pipeline", line.home.pipeline.as_str()),
        text("windlass.tenant", line.home.tenant.as_str()),
        text("windlass.status", status.as_str()),
    ];
    let name = format!("run {}", line.home.pipeline);
    timed(span, &name, (created_at, line.at), status == Status::Completed, &attributes)
}

fn attempt(line: &Line, step: &StepId, epoch: u64, outcome: &str, began: Millis) -> Value {
    let own = trace::attempt_span(line.run, step, epoch);
    let span = ids(line, own, Some(trace::run_span(line.run)));
    let attributes = [
        text("windlass.run_id", &line.run.to_string()),
        text("windlass.step", step.as_str()),
        text("windlass.epoch", &epoch.to_string()),
        text("windlass.outcome", outcome),
    ];
    timed(span, &format!("step {step}"), (began, line.at), outcome == "succeeded", &attributes)
}

fn document(service: &str, spans: &[Value]) -> Value {
    let resource = json!({ "attributes": [text("service.name", service)] });
    let scope = json!({ "name": "windlass", "version": env!("CARGO_PKG_VERSION") });
    json!({ "resourceSpans": [{ "resource": resource, "scopeSpans": [{ "scope": scope, "spans": spans }] }] })
}

async fn post(endpoint: &Endpoint, body: String) -> Result<(), String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let stream = TcpStream::connect(&endpoint.authority).await.map_err(|error| said(&error))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| said(&error))?;
    let driving = tokio::spawn(connection);
    let mut request = Request::post(&endpoint.path)
        .header(header::HOST, &endpoint.authority)
        .header(header::CONTENT_TYPE, "application/json");
    for (name, value) in &endpoint.headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(Bytes::from(body))).map_err(|error| said(&error))?;
    let answer = sender.send_request(request).await.map_err(|error| said(&error))?;
    let status = answer.status();
    let _ = http_body_util::Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
    driving.abort();
    if status.is_success() { Ok(()) } else { Err(format!("it answered {status}")) }
}
