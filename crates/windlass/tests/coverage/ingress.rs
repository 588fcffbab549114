//! Ingress keys: what became of a delivery, and which key a run was made under.

use crate::support::{Project, text, until};
use crate::wire::Serving;
use serde_json::json;

const BOOK: &str = "name: x
queues: { work: {} }
workers: { one: { queue: work, pipeline: main } }
schedules: { tick: { every: 1s, pipeline: beat } }
pipelines:
  main: { vars: { n: { default: 1 } }, steps: [ { run: 'true' } ] }
  beat: { steps: [ { run: 'true' } ] }
";

#[test]
fn a_key_shows_what_became_of_its_delivery() {
    let serving = Serving::new(Project::new(), &[BOOK]);
    let keyed = [("idempotency-key", "r1")];
    let made = serving.post("/v1/runs", &keyed, br#"{ "pipeline": "main" }"#).is(201).json();
    let key = text(&made["trigger"], "key").to_owned();
    assert!(key.starts_with("api:") && key.ends_with(":r1"), "a run shows its whole key: {key}");
    let shown = serving.project.windlass(&["ingress", &key, "--json"]).code(0).json();
    for (field, value) in [
        ("key", json!(key)),
        ("source", json!("api")),
        ("tenant", json!("default")),
        ("run", made["id"].clone()),
        ("status", json!("completed")),
        ("attempts", json!(1)),
        ("response", json!({ "id": made["id"] })),
    ] {
        assert_eq!(shown[field], value, "{field}: {shown}");
    }
    for field in ["request_hash", "created_at", "updated_at", "expires_at"] {
        assert!(shown[field].is_string(), "{field}: {shown}");
    }
    serving.project.windlass(&["ingress", &key]).code(0).says("completed");
    serving.project.windlass(&["ingress", "api:nobody:r1"]).code(5);
}

#[test]
fn the_key_of_another_tenant_or_namespace_is_like_one_that_nobody_used() {
    let serving = Serving::new(Project::new(), &[BOOK]);
    let made =
        serving.post("/v1/runs", &[("idempotency-key", "r1")], br#"{ "pipeline": "main" }"#).is(201).json();
    let key = text(&made["trigger"], "key").to_owned();
    for (tenant, namespace) in [("acme", "default"), ("default", "other")] {
        let wish = json!({ "scopes": ["read"], "tenant": tenant, "namespace": namespace }).to_string();
        let token = serving.post("/v1/tokens", &[], wish.as_bytes()).is(201).json();
        let bearer = format!("Bearer {}", text(&token, "token"));
        let get = |key: &str| {
            let head = format!(
                "GET /v1/ingress/{key} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: {bearer}\r\n\r\n"
            );
            let answer = serving.raw(head.as_bytes(), b"").is(404);
            answer.text.replace(key, "KEY")
        };
        assert_eq!(get(&key), get("api:nobody:r9"), "{tenant}/{namespace}");
    }
}

#[test]
fn runs_of_schedules_and_queues_show_the_keys_of_their_slots_and_items() {
    let serving = Serving::new(Project::new(), &[BOOK]);
    let pushed = serving.post("/v1/queues/work/items", &[], br#"{ "data": {} }"#).is(201).json();
    let item = text(&pushed, "id").to_owned();
    let of = |pipeline: &str| {
        until(&format!("a run of {pipeline}"), || {
            serving.runs(pipeline).pop().filter(|run| run["status"] == "completed")
        })
    };
    let run = of("main");
    assert_eq!(run["trigger"]["key"], format!("queue:{item}:1"), "{run}");
    assert_eq!((text(&run["trigger"], "source"), text(&run["trigger"], "of")), ("queue", "one"));
    let settled = || serving.get(&format!("/v1/queues/work/items/{item}")).is(200).json();
    until("the item to be done", || Some(settled()).filter(|item| item["status"] == "completed"));
    let run = of("beat");
    let key = text(&run["trigger"], "key");
    assert!(key.starts_with("scheduler:tick:2") && key.ends_with('Z'), "{run}");
    assert_eq!(text(&run["trigger"], "of"), "tick");
}

#[test]
fn an_events_source_is_on_record() {
    let book = "name: y
triggers: { merged: { github: { event: push }, signal: merged, key: '1' } }
pipelines:
  wait: { steps: [ { id: w, wait: { event: merged, key: '1' } } ] }
  other: { steps: [ { id: w, wait: { event: ok } } ] }
";
    let project = Project::new().env("WINDLASS_GITHUB_WEBHOOK_SECRET", "s");
    let serving = Serving::new(project, &[book]);
    let start = |pipeline: &str| {
        let body = json!({ "pipeline": pipeline }).to_string();
        let made = serving.post("/v1/runs", &[], body.as_bytes()).is(201).json();
        let run = text(&made, "id").to_owned();
        serving.await_status(&run, "waiting_external");
        run
    };
    let (first, second) = (start("wait"), start("other"));
    let mut waiting = serving.project.events("step:waiting");
    waiting.retain(|wait| wait["reason"] == "event");
    let sources: Vec<&serde_json::Value> = waiting.iter().map(|wait| &wait["source"]).collect();
    assert_eq!(sources, [&json!("github"), &json!(null)], "the runbook says where the one comes from");
    let body = b"{}";
    let signature = format!("sha256={}", crate::wire::sign("s", &[body]));
    let headers = [
        ("x-hub-signature-256", signature.as_str()),
        ("x-github-event", "push"),
        ("x-github-delivery", "d-1"),
    ];
    serving.post("/hooks/github", &headers, body).is(201);
    serving.post(&format!("/v1/runs/{second}/signals/ok"), &[], b"{}").is(200);
    serving.await_status(&first, "completed");
    serving.await_status(&second, "completed");
    // One that comes before its wait keeps its source.
    let headers = [
        ("x-hub-signature-256", signature.as_str()),
        ("x-github-event", "push"),
        ("x-github-delivery", "d-2"),
    ];
    serving.post("/hooks/github", &headers, body).is(201);
    let body = json!({ "pipeline": "wait" }).to_string();
    let made = serving.post("/v1/runs", &[], body.as_bytes()).is(201).json();
    serving.await_status(text(&made, "id"), "completed");
    let received = serving.project.events("signal:received");
    let sources: Vec<&str> = received.iter().map(|event| text(event, "source")).collect();
    assert_eq!(sources, ["github", "api", "github"]);
    assert_eq!(serving.project.events("signal:kept")[0]["source"], "github");
}
