//! The figures as text: OpenMetrics, which Prometheus reads.

use super::counts::{BOUNDS_MICROS, Counts, Histogram};
use super::{Gauges, Http, Metrics, lock};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use windlass_core::id::Name;
use windlass_core::run::Status;

/// The media type of the text.
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Label = (&'static str, String);
type Family<T> = Vec<(Vec<Label>, T)>;

/// One family of figures.
#[derive(Debug)]
enum Figures {
    Counter(Family<u64>),
    Gauge(Family<u64>),
    Histogram(Family<Histogram>),
}

/// What is shown at one time.
#[derive(Debug)]
struct Shown(Vec<(&'static str, &'static str, Figures)>);

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, help, figures) in &self.0 {
            let kind = match figures {
                Figures::Counter(_) => MetricType::Counter,
                Figures::Gauge(_) => MetricType::Gauge,
                Figures::Histogram(_) => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            match figures {
                Figures::Counter(family) => each(&mut metric, family, |metric, value| {
                    metric.encode_counter::<NoLabelSet, _, f64>(value, None)
                })?,
                Figures::Gauge(family) => each(&mut metric, family, |metric, value| {
                    metric.encode_gauge(&i64::try_from(*value).unwrap_or(i64::MAX))
                })?,
                Figures::Histogram(family) => each(&mut metric, family, |metric, value| {
                    let sum = value.sum_micros as f64 / 1e6;
                    metric.encode_histogram::<NoLabelSet>(sum, value.count, &buckets(value), None)
                })?,
            }
        }
        Ok(())
    }
}

/// Writes every figure of a family; one without labels stands alone.
fn each<T>(
    metric: &mut MetricEncoder<'_>,
    family: &Family<T>,
    write: impl Fn(&mut MetricEncoder<'_>, &T) -> Result<(), fmt::Error>,
) -> Result<(), fmt::Error> {
    for (labels, value) in family {
        if labels.is_empty() {
            write(metric, value)?;
        } else {
            write(&mut metric.encode_family(labels)?, value)?;
        }
    }
    Ok(())
}

fn buckets(histogram: &Histogram) -> Vec<(f64, u64)> {
    let bounds = BOUNDS_MICROS.iter().map(|micros| *micros as f64 / 1e6).chain([f64::INFINITY]);
    bounds.zip(histogram.buckets).collect()
}

fn alone<T>(value: T) -> Family<T> {
    vec![(Vec::new(), value)]
}

fn state(status: Option<Status>) -> String {
    status.map_or("none", Status::as_str).to_owned()
}

impl Metrics {
    /// The figures as text. A caller who may not see every tenant sees those of one.
    ///
    /// # Errors
    /// The text cannot be put together, which is a defect.
    pub fn text(&self, gauges: &Gauges, only: Option<&Name>) -> Result<String, fmt::Error> {
        let mine = |tenant: &Name| only.is_none_or(|only| only == tenant);
        let mut shown = of_runs(&lock(&self.counts), gauges, &mine);
        let mut keys: Family<u64> = Vec::new();
        for ((source, hit), n) in lock(&self.keys).iter() {
            let labels = vec![("source", source.as_str().to_owned()), ("result", hit.word().to_owned())];
            keys.push((labels, *n));
        }
        shown.push((
            "windlass_idempotency_hits",
            "Ingress keys that came, by what became of them",
            Figures::Counter(keys),
        ));
        shown.extend(of_http(&lock(&self.http)));
        let lost = self.lost_lines.load(Ordering::Relaxed) + crate::telemetry::lost();
        let counter = |value| Figures::Counter(alone(value));
        let gauge = |value| Figures::Gauge(alone(value));
        shown.push((
            "windlass_log_lines_lost",
            "Log lines that came faster than they could be written",
            counter(lost),
        ));
        shown.push(("windlass_log_syncs", "Syncs of the log", counter(gauges.syncs)));
        shown.push((
            "windlass_store_bytes",
            "Bytes of the files of the data directory",
            gauge(gauges.store_bytes),
        ));
        shown.push(("windlass_streams", "Streams in memory", gauge(gauges.streams)));
        shown.push(("process_resident_memory_bytes", "Memory of the process", gauge(gauges.resident_bytes)));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Shown(shown)));
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }
}

fn of_runs(
    counts: &Counts,
    gauges: &Gauges,
    mine: &dyn Fn(&Name) -> bool,
) -> Vec<(&'static str, &'static str, Figures)> {
    let transitions =
        counts.transitions.iter().filter(|((tenant, ..), _)| mine(tenant)).map(|((tenant, from, to), n)| {
            let labels = vec![
                ("from_state", state(*from)),
                ("to_state", to.as_str().to_owned()),
                ("tenant_id", tenant.to_string()),
            ];
            (labels, *n)
        });
    let durations = counts.durations.iter().filter(|((_, tenant, _), _)| mine(tenant)).map(
        |((pipeline, tenant, status), histogram)| {
            let labels = vec![
                ("type", pipeline.to_string()),
                ("status", status.as_str().to_owned()),
                ("tenant_id", tenant.to_string()),
            ];
            (labels, histogram.clone())
        },
    );
    let mut active: BTreeMap<(Name, Status), u64> = BTreeMap::new();
    for (tenant, status, n) in gauges.active.iter().filter(|(tenant, ..)| mine(tenant)) {
        *active.entry((counts.tenants.known(tenant), *status)).or_default() += n;
    }
    let active = active.into_iter().map(|((tenant, status), n)| {
        (vec![("status", status.as_str().to_owned()), ("tenant_id", tenant.to_string())], n)
    });
    vec![
        (
            "windlass_run_transitions",
            "Changes of runs from one status to another",
            Figures::Counter(transitions.collect()),
        ),
        ("windlass_run_duration_seconds", "How long runs took", Figures::Histogram(durations.collect())),
        ("windlass_run_active_gauge", "Runs that have not ended", Figures::Gauge(active.collect())),
        (
            "windlass_step_queue_seconds",
            "From when a step can be leased until it is",
            Figures::Histogram(alone(counts.queued.clone())),
        ),
        (
            "windlass_lease_seconds",
            "How long steps were leased",
            Figures::Histogram(alone(counts.held.clone())),
        ),
        (
            "windlass_commit_seconds",
            "From when a batch is decided until it is durable",
            Figures::Histogram(alone(counts.commits.clone())),
        ),
        ("windlass_facts", "Facts that became durable", Figures::Counter(alone(counts.facts))),
    ]
}

fn of_http(http: &Http) -> Vec<(&'static str, &'static str, Figures)> {
    let requests = http.requests.iter().map(|((route, method, status), n)| {
        let labels = vec![
            ("route", (*route).to_owned()),
            ("method", (*method).to_owned()),
            ("status", status.to_string()),
        ];
        (labels, *n)
    });
    let seconds = http
        .seconds
        .iter()
        .map(|(route, histogram)| (vec![("route", (*route).to_owned())], histogram.clone()));
    vec![
        ("windlass_http_requests", "Requests that were answered", Figures::Counter(requests.collect())),
        ("windlass_http_request_seconds", "How long requests took", Figures::Histogram(seconds.collect())),
    ]
}
