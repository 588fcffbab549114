//! Spans reach a collector, and where none is named nobody is told.

use super::story::What;
use super::*;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use windlass_core::digest::Digest;
use windlass_core::id::{Name, RunId};
use windlass_core::run::{Home, Status};
use windlass_core::time::Millis;
use windlass_executor::config::Env;

fn config(pairs: &'static [(&'static str, &'static str)], endpoint: Option<String>) -> Config {
    let env: Env = Arc::new(move |name: &str| match (name, &endpoint) {
        ("OTEL_EXPORTER_OTLP_ENDPOINT", Some(endpoint)) => Some(endpoint.clone()),
        _ => pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()),
    });
    Config::default().with_env(env)
}

fn line(at: u64, what: What) -> Line {
    let home = Home {
        tenant: Name::clean("acme"),
        namespace: Name::clean("default"),
        runbook: Digest([0; 32]),
        pipeline: Name::clean("deploy"),
        cwd: String::new(),
        writes_max: None,
    };
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let trace = trace::of(RunId(1), Some(parent));
    Line { at: Millis(at), run: RunId(1), trace, home: Arc::new(home), what }
}

/// A collector that takes one request and gives its head and body.
fn collector() -> (String, JoinHandle<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let (mut head, mut len) = (String::new(), 0);
        loop {
            let mut one = String::new();
            reader.read_line(&mut one).unwrap();
            if let Some(value) = one.to_ascii_lowercase().strip_prefix("content-length:") {
                len = value.trim().parse().unwrap();
            }
            if one == "\r\n" {
                break;
            }
            head.push_str(&one);
        }
        let mut body = vec![0; len];
        reader.read_exact(&mut body).unwrap();
        (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
        (head, serde_json::from_slice(&body).unwrap())
    });
    (address, thread)
}

#[test]
fn a_run_and_its_attempts_become_spans_of_the_trace_it_came_with() {
    let (address, collected) = collector();
    let pairs = &[("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=k1, x-b = c"), ("OTEL_SERVICE_NAME", "ops")];
    let config = config(pairs, Some(address));
    let (teller, thread) = start(&config, Arc::default()).unwrap();
    let step = Name::clean("build");
    teller.tell(vec![
        line(1_000, What::AttemptBegan { step: step.clone(), epoch: 1 }),
        line(
            1_500,
            What::AttemptEnded { step: step.clone(), epoch: 1, outcome: "failed", duration_ms: Some(500) },
        ),
        line(
            1_500,
            What::AttemptEnded { step: step.clone(), epoch: 2, outcome: "succeeded", duration_ms: Some(0) },
        ),
        line(2_000, What::Ended { status: Status::Failed, duration_ms: 900, created_at: Millis(900) }),
    ]);
    // What was told is sent when nobody tells any more.
    drop(teller);
    thread.join().unwrap();
    let (head, body) = collected.join().unwrap();
    assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("x-api-key: k1") && head.contains("x-b: c"), "{head}");
    let resource = &body["resourceSpans"][0];
    assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "ops");
    let spans = resource["scopeSpans"][0]["spans"].as_array().unwrap();
    assert_eq!(spans.len(), 2, "what never began is no span: {spans:?}");
    let (attempt, run) = (&spans[0], &spans[1]);
    for span in spans {
        assert_eq!(span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(span["status"]["code"], 2);
    }
    assert_eq!((&attempt["name"], &run["name"]), (&"step build".into(), &"run deploy".into()));
    assert_eq!(attempt["parentSpanId"], run["spanId"]);
    assert_eq!(run["parentSpanId"], "00f067aa0ba902b7");
    assert_eq!(
        (&attempt["startTimeUnixNano"], &attempt["endTimeUnixNano"]),
        (&"1000000000".into(), &"1500000000".into())
    );
    assert_eq!(run["startTimeUnixNano"], "900000000");
}

#[test]
fn a_collector_that_is_not_there_costs_nothing_but_spans() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = config(&[], Some(format!("http://127.0.0.1:{port}")));
    let (teller, thread) = start(&config, Arc::default()).unwrap();
    teller.tell(vec![line(
        2,
        What::Ended { status: Status::Completed, duration_ms: 1, created_at: Millis(1) },
    )]);
    drop(teller);
    thread.join().unwrap();
}

#[test]
fn lines_that_come_too_fast_are_dropped_and_counted() {
    let metrics = Arc::<Metrics>::default();
    let (sender, receiver) = sync_channel(1);
    let teller = Teller { sender, metrics: metrics.clone() };
    for _ in 0..3 {
        teller.tell(vec![line(1, What::Orphaned { last_heartbeat: None })]);
    }
    drop(receiver);
    let text = metrics.text(&crate::metrics::Gauges::default(), None).unwrap();
    assert!(text.contains("windlass_log_lines_lost_total 2"), "{text}");
}

#[test]
fn the_environment_says_where_spans_go() {
    let find = |pairs: &'static [(&'static str, &'static str)]| Endpoint::find(&config(pairs, None));
    assert!(find(&[]).is_none());
    assert!(find(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/base/")]).unwrap().is_ok());
    assert!(find(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c/v1/traces")]).unwrap().is_ok());
    for bad in [
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c:4318")],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://")],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:p@c")],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4318")],
    ] {
        assert!(find(bad).unwrap().is_err(), "{bad:?}");
    }
}
