//! Deliveries of sources that the configuration file describes.

use crate::support::Project;
use crate::wire::{Answer, Serving, now, sign};
use serde_json::json;

const BOOK: &str = r#"
name: triage
triggers:
  p1:
    hook: servicenow
    when: event.priority in ["1", "2"] && headers["x-instance"] == "prod"
    vars: { ticket: '${{ event.sys_id }}' }
    pipeline: triage
  plain: { hook: plain, pipeline: any }
pipelines:
  triage:
    vars: { ticket: { required: true, pattern: '^[0-9a-f]{32}$' } }
    steps: [{ run: 'true' }]
  any: { steps: [{ run: 'true' }] }
"#;

const CONFIG: &str = "
hooks:
  servicenow:
    header: X-Signature
    prefix: 'sha256='
    secrets: [SN]
    timestamp: { header: X-Time, tolerance: 1m }
    signed: '{timestamp}.{body}'
    delivery: { header: X-Delivery }
  plain: { header: X-Sig, secrets: [PLAIN_NEW, PLAIN_OLD], delivery: { field: meta.id } }
tenants:
  acme: { hooks: { plain: ACME } }
";

fn serve() -> Serving {
    let project = Project::new()
        .env("WINDLASS_SECRET_SN", "s1")
        .env("WINDLASS_SECRET_PLAIN_OLD", "p-old")
        .env("WINDLASS_SECRET_ACME", "a1");
    project.write("windlass.yaml", CONFIG);
    Serving::new(project, &[BOOK])
}

#[test]
fn a_signed_time_and_a_delivery_header_make_one_run() {
    let serving = serve();
    let ticket = "0123456789abcdef0123456789abcdef";
    let body = json!({ "sys_id": ticket, "priority": "1", "ci": "web-1" }).to_string();
    let send = |time: u64, id: &str, instance: &str, secret: &str| {
        let time = time.to_string();
        let signature = format!("sha256={}", sign(secret, &[time.as_bytes(), b".", body.as_bytes()]));
        let headers = [
            ("x-signature", signature.as_str()),
            ("x-time", &time),
            ("x-delivery", id),
            ("x-instance", instance),
        ];
        serving.post("/hooks/in/servicenow", &headers, body.as_bytes())
    };
    let first = send(now(), "e1", "prod", "s1").is(201);
    let again = send(now(), "e1", "prod", "s1").is(200);
    assert!(again.replayed() && again.text == first.text);
    assert_eq!(send(now() - 9, "e2", "test", "s1").is(200).json()["runs"], json!([]));
    send(now() - 62, "e3", "prod", "s1").is(401);
    send(now(), "e3", "prod", "s2").is(401);
    send(now(), "", "prod", "s1").is(400);
    let runs = serving.runs("triage");
    assert_eq!(runs.len(), 1);
    assert_eq!(
        (&runs[0]["trigger"]["key"], &runs[0]["trigger"]["user"]),
        (&json!("hook:servicenow:e1"), &json!("hook:servicenow"))
    );
}

#[test]
fn the_same_delivery_or_key_fifty_times_at_once_makes_one_run() {
    let serving = serve();
    let body = json!({ "meta": { "id": 17 } }).to_string();
    let signature = sign("p-old", &[body.as_bytes()]);
    let send = |serving: &Serving| {
        serving.post("/hooks/in/plain", &[("x-sig", signature.as_str())], body.as_bytes())
    };
    serving.fifty(send, Answer::json);
    assert_eq!(serving.runs("any").len(), 1);
    // The same of whoever asks for a run with a key of their own, under each name that a key may have.
    let body = json!({ "pipeline": "any" }).to_string();
    for (n, header) in ["idempotency-key", "x-idempotency-key", "x-request-id"].into_iter().enumerate() {
        let key = format!("key-{n}");
        let headers = [(header, key.as_str()), ("content-type", "application/json")];
        let send = |serving: &Serving| serving.post("/v1/runs", &headers, body.as_bytes());
        let first = serving.fifty(send, |answer| answer.json()["id"].clone());
        assert_eq!(serving.runs("any").len(), 2 + n);
        assert_eq!(serving.runs("any")[0]["id"], first.json()["id"]);
    }
}

#[test]
fn the_secret_is_the_tenants_and_what_it_starts_is_too() {
    let serving = serve();
    let body = json!({ "meta": { "id": 17 } }).to_string();
    let send = |path: &str, secret: &str| {
        serving.post(path, &[("x-sig", &sign(secret, &[body.as_bytes()]))], body.as_bytes())
    };
    send("/hooks/in/plain", "a1").is(401);
    send("/hooks/in/plain/acme", "p-old").is(401);
    send("/hooks/in/servicenow/acme", "a1").is(401);
    send("/hooks/in/plain/nobody", "a1").is(401);
    // The new secret is not set yet, and the old one is still good.
    send("/hooks/in/plain", "p-old").is(201);
    let answer = send("/hooks/in/plain/acme", "a1").is(200).json();
    assert_eq!(answer["runs"], json!([]), "acme has deployed nothing");
    assert_eq!(serving.runs("any").len(), 1);
    let nameless = json!({ "meta": {} }).to_string();
    serving
        .post("/hooks/in/plain", &[("x-sig", &sign("p-old", &[nameless.as_bytes()]))], nameless.as_bytes())
        .is(400);
}

#[test]
fn a_configuration_that_is_wrong_is_shown_with_its_place() {
    let project = Project::with("name: b\npipelines: { p: { steps: [{ run: 'true' }] } }\n");
    project.write("windlass.yaml", "hooks:\n  sn: { header: X, delivry: body }\n");
    let done = project.windlass(&["run", "book.yaml"]).code(2);
    assert!(
        done.err.contains("windlass.yaml:2") && done.err.contains("did you mean `delivery`?"),
        "{}",
        done.err
    );
    project.windlass(&["--config", "absent.yaml", "run", "book.yaml"]).code(2).warns("absent.yaml");
    project.write("other.yaml", "groups: { a: b }\n");
    project.windlass(&["--config", "other.yaml", "run", "book.yaml"]).code(0);
}

#[test]
fn a_delivery_is_known_by_what_is_signed_too_where_its_id_is_not() {
    let mut serving = serve();
    let ticket = "0123456789abcdef0123456789abcdef";
    let body = json!({ "sys_id": ticket, "priority": "1" }).to_string();
    let send = |serving: &Serving, time: u64, id: &str| {
        let time = time.to_string();
        let signature = format!("sha256={}", sign("s1", &[time.as_bytes(), b".", body.as_bytes()]));
        let headers = [
            ("x-signature", signature.as_str()),
            ("x-time", &time),
            ("x-delivery", id),
            ("x-instance", "prod"),
        ];
        serving.post("/hooks/in/servicenow", &headers, body.as_bytes())
    };
    let time = now();
    let first = send(&serving, time, "e1").is(201);
    serving.restart();
    for id in ["e2", "e3"] {
        let replay = send(&serving, time, id).is(200);
        assert!(replay.replayed() && replay.text == first.text, "{replay:?}");
    }
    assert_eq!(serving.runs("triage").len(), 1);
    // The source says the same again: it signs another time.
    send(&serving, time - 1, "e4").is(201);
    assert_eq!(serving.runs("triage").len(), 2);
}
