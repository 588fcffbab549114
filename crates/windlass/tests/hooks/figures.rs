//! Figures, and the trace that steps are handed.

use crate::support::{Project, text, until};
use crate::wire::Serving;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;

const BOOK: &str = r#"
name: book
pipelines:
  outer:
    steps:
      - { id: own, run: 'echo "{\"parent\": \"$TRACEPARENT\"}" > "$WL_OUTPUT"' }
      - { id: call, call: inner }
  stay: { steps: [{ wait: { event: never } }] }
  inner:
    outputs: { parent: '${{ steps.own.output.parent }}' }
    steps: [{ id: own, run: 'echo "{\"parent\": \"$TRACEPARENT\"}" > "$WL_OUTPUT"' }]
"#;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

#[test]
fn what_happens_is_counted_and_shown() {
    let serving = Serving::new(Project::new(), &[BOOK]);
    serving.post("/v1/runs", &[], br#"{"pipeline":"stay"}"#).is(201);
    let body = json!({ "pipeline": "inner" }).to_string();
    let key = [("idempotency-key", "k1")];
    let run = serving.post("/v1/runs", &key, body.as_bytes()).is(201).json();
    serving.post("/v1/runs", &key, body.as_bytes()).is(200);
    serving.await_status(text(&run, "id"), "completed");
    let expected = [
        r#"windlass_run_transitions_total{from_state="running",to_state="completed",tenant_id="default"} 1"#,
        r#"windlass_run_duration_seconds_count{type="inner",status="completed",tenant_id="default"} 1"#,
        r#"windlass_run_active_gauge{status="waiting_external",tenant_id="default"} 1"#,
        r#"windlass_idempotency_hits_total{source="api",result="new"} "#,
        r#"windlass_idempotency_hits_total{source="api",result="duplicate"} 1"#,
        r#"windlass_http_requests_total{route="/v1/runs/{id}",method="GET",status="200"} "#,
        "windlass_step_queue_seconds_count ",
        "windlass_lease_seconds_count 1",
        "windlass_commit_seconds_bucket",
        "windlass_log_syncs_total ",
        "windlass_store_bytes ",
        "process_resident_memory_bytes ",
        "# EOF",
    ];
    // Figures follow what is durable by a moment.
    until("every figure", || {
        let shown = serving.get("/metrics").is(200);
        assert!(shown.head.contains("application/openmetrics-text"), "{}", shown.head);
        expected.iter().all(|start| shown.text.lines().any(|line| line.starts_with(start))).then_some(())
    });
}

#[test]
fn a_trace_is_taken_in_and_handed_on() {
    let serving = Serving::new(Project::new(), &[BOOK]);
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let body = json!({ "pipeline": "outer" }).to_string();
    let run = serving.post("/v1/runs", &[("traceparent", &parent)], body.as_bytes()).is(201).json();
    let shown = serving.await_status(text(&run, "id"), "completed");
    let own = text(&shown["steps"][0]["output"], "parent").to_owned();
    let called = text(&shown["steps"][1]["output"], "parent").to_owned();
    for handed in [&own, &called] {
        assert!(handed.starts_with(&format!("00-{TRACE}-")) && handed.len() == parent.len(), "{handed}");
    }
    assert_ne!(own, called, "every attempt is a span of its own");
    assert_ne!(own, parent);
    let run = serving.post("/v1/runs", &[("traceparent", "nonsense")], body.as_bytes()).is(201).json();
    let shown = serving.await_status(text(&run, "id"), "completed");
    let own = text(&shown["steps"][0]["output"], "parent");
    let called = text(&shown["steps"][1]["output"], "parent");
    assert_eq!(own[..36], called[..36], "a run without a trace has its own, and so have those it calls");
}

#[test]
fn what_happens_to_runs_is_told_as_json_lines() {
    let project = Project::with("name: b\npipelines: { p: { steps: [{ run: 'true' }] } }\n")
        .env("WINDLASS_LOG", "info");
    let done = project.windlass(&["run", "book.yaml", "--json", "--idempotency-key", "k1"]).code(0);
    let lines: Vec<Value> = done.err.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let run = done.last();
    let told = |event: &str| lines.iter().filter(|line| line["event"] == event).collect::<Vec<_>>();
    let moves: Vec<(&str, &str)> =
        told("run_transition").iter().map(|line| (text(line, "from"), text(line, "to"))).collect();
    assert_eq!(moves, [("pending", "running"), ("running", "completed")], "{}", done.err);
    let (created, completed) = (told("run_created"), told("run_completed"));
    assert_eq!((created.len(), completed.len()), (1, 1), "{}", done.err);
    assert_eq!((&created[0]["type"], &created[0]["idempotency_key"]), (&json!("p"), &json!("api:local:k1")));
    assert_eq!(completed[0]["status"], "completed");
    assert!(completed[0]["duration_ms"].is_u64());
    for line in created.iter().chain(&completed).chain(&told("run_transition")) {
        assert_eq!(line["run_id"], run["id"], "{line}");
        assert_eq!(text(line, "trace_id").len(), 32, "{line}");
    }
    let again = project.windlass(&["run", "book.yaml", "--json", "--idempotency-key", "k1"]).code(0);
    let mut hits = again.err.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let hit = hits.find(|line| line["event"] == "idempotency_hit").expect("a key that is known is told of");
    assert_eq!((&hit["cached_run_id"], &hit["run_id"]), (&run["id"], &run["id"]), "{hit}");
    assert_eq!(hit["trace_id"], created[0]["trace_id"], "{hit}");
    assert_eq!(hit["key"], "api:local:k1", "{hit}");
}

#[test]
fn a_key_that_comes_with_another_request_is_told_of_in_the_log() {
    let serving = Serving::new(Project::new(), &[BOOK]);
    let key = [("idempotency-key", "k1")];
    let send = |body: &Value| serving.post("/v1/runs", &key, body.to_string().as_bytes());
    send(&json!({ "pipeline": "inner" })).is(201);
    assert!(serving.told("idempotency_conflict").is_empty());
    let refused = send(&json!({ "pipeline": "stay" })).is(409);
    assert_eq!(refused.json()["code"], "IDEMPOTENCY_CONFLICT");
    let lines =
        until("the line", || Some(serving.told("idempotency_conflict")).filter(|all| !all.is_empty()));
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line = &lines[0];
    assert_eq!(
        (&line["key"], &line["source"], &line["level"]),
        (&json!("api:local:k1"), &json!("api"), &json!("WARN")),
        "{line}"
    );
}

/// A collector that gathers the spans of every request until it has so many.
fn collector(wanted: usize) -> (String, std::thread::JoinHandle<Vec<Value>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let gather = move || {
        let mut spans = Vec::new();
        while spans.len() < wanted {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut len = 0;
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    len = value.trim().parse().unwrap();
                }
                if line == "\r\n" || line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; len];
            reader.read_exact(&mut body).unwrap();
            (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap();
            spans.extend(body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone());
        }
        spans
    };
    (address, std::thread::spawn(gather))
}

#[test]
fn a_run_is_a_span_and_so_is_every_attempt() {
    let (address, collected) = collector(5);
    let project = Project::with(BOOK).env("OTEL_EXPORTER_OTLP_ENDPOINT", &address);
    let run = project.run(&["outer"], 0);
    let spans = collected.join().unwrap();
    let named = |name: &str| {
        let found: Vec<&Value> = spans.iter().filter(|span| span["name"] == name).collect();
        assert!(!found.is_empty(), "no span `{name}` in {spans:?}");
        found
    };
    let (outer, inner, call) = (named("run outer")[0], named("run inner")[0], named("step call")[0]);
    assert!(spans.iter().all(|span| span["traceId"] == outer["traceId"]), "one trace: {spans:?}");
    assert!(outer.get("parentSpanId").is_none());
    assert_eq!((&call["parentSpanId"], &inner["parentSpanId"]), (&outer["spanId"], &call["spanId"]));
    let handed = text(&run["steps"][0]["output"], "parent").split('-').nth(2).unwrap().to_owned();
    assert!(named("step own").iter().any(|span| span["spanId"] == handed.as_str()), "the step knew its span");
}
