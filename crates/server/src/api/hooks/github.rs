//! Deliveries of GitHub: `X-Hub-Signature-256` over the raw bytes; the older SHA-1 signature counts for nothing.

use super::triggers::{self, Answered};
use super::{Delivery, Raw, answer, bad, payload, signature, tenant_name, unknown};
use crate::api::{Answer, Problem};
use crate::app::App;
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;
use windlass_core::digest::Digest;
use windlass_core::id::Name;
use windlass_core::idempotency::{self, Source as KeySource};
use windlass_core::run::{Actor, Initiator, Source, Subject};
use windlass_executor::config::{Algorithm, Encoding};

/// Takes a delivery.
pub(super) async fn take(app: &Arc<App>, raw: Raw) -> Answer {
    verify(app, &raw)?;
    let event = raw.need("x-github-event")?.to_owned();
    let id = raw.need("x-github-delivery")?.to_owned();
    let payload = read(&raw)?;
    if event == "ping" {
        let body = json!({ "delivery": id, "pong": payload.get("zen") });
        return answer(&Answered { status: StatusCode::OK, body, replayed: false });
    }
    let key = idempotency::github(&id).map_err(|error| bad(error.to_string()))?;
    let login = payload.pointer("/sender/login").and_then(Value::as_str);
    let delivery = Delivery {
        tenant: tenant_name(&raw)?,
        source: Name::clean("github"),
        action: payload.get("action").and_then(Value::as_str).map(str::to_owned),
        key,
        key_source: KeySource::Github,
        request_hash: Digest::of(&[event.as_bytes(), b"\n", &raw.bytes]),
        headers: raw.visible_headers(),
        by: Actor::new(Initiator::Webhook, "github"),
        run_source: Source::Webhook,
        user: login.map(|login| Name::clean(&format!("github:{login}"))),
        subject: subject(&payload),
        traceparent: raw.traceparent(),
        emitted: None,
        also: Vec::new(),
        event: Some(event),
        id,
        payload,
    };
    // The bytes are verified and read: their room is free for the next.
    drop(raw);
    answer(&triggers::fire(app, delivery).await?)
}

fn verify(app: &App, raw: &Raw) -> Result<(), Problem> {
    let secrets = app.config.github_secrets(&raw.tenant);
    let given = raw.header("x-hub-signature-256").and_then(|text| text.strip_prefix("sha256="));
    let given = given.and_then(|text| signature::decode(Encoding::Hex, text)).unwrap_or_default();
    if signature::holds(Algorithm::Sha256, &secrets, &[&raw.bytes], &given) { Ok(()) } else { Err(unknown()) }
}

/// GitHub sends JSON, or a form with JSON in its field `payload`, as the webhook is set up.
fn read(raw: &Raw) -> Result<Value, Problem> {
    let kind = raw.header("content-type").unwrap_or_default();
    if !kind.starts_with("application/x-www-form-urlencoded") {
        return payload(&raw.bytes);
    }
    let fields = signature::form(&raw.bytes).ok_or_else(|| bad("the body is not a form"))?;
    // JSON with `&payload=` in one of its texts is a form too, under the same signature.
    match fields.as_slice() {
        [(name, value)] if name == "payload" => payload(value.as_bytes()),
        _ => Err(bad("the form has another field than `payload`, or no field")),
    }
}

/// What the event is about, as far as the payload says.
fn subject(payload: &Value) -> Option<Subject> {
    const LEN_MAX: usize = 512;
    let text = |pointer: &str| {
        let found = payload.pointer(pointer)?;
        let text = found.as_str().map(str::to_owned).or_else(|| found.as_u64().map(|n| n.to_string()))?;
        Some(text).filter(|text| text.len() <= LEN_MAX)
    };
    let repo = text("/repository/full_name");
    let of_pr = payload.pointer("/issue/pull_request").is_some();
    let pr = text("/pull_request/number").or_else(|| text("/issue/number").filter(|_| of_pr));
    let pr = pr
        .or_else(|| text("/check_run/pull_requests/0/number"))
        .or_else(|| text("/workflow_run/pull_requests/0/number"));
    let urls = [
        "/pull_request/html_url",
        "/issue/html_url",
        "/check_run/html_url",
        "/workflow_run/html_url",
        "/release/html_url",
        "/compare",
        "/repository/html_url",
    ];
    let url = urls.iter().find_map(|pointer| text(pointer));
    (repo.is_some() || pr.is_some() || url.is_some()).then_some(Subject { repo, pr, url })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_what_the_payload_is_about() {
        let of = |payload: Value| subject(&payload).map(|s| (s.repo, s.pr, s.url));
        let text = |text: &str| Some(text.to_owned());
        let pull = json!({ "repository": { "full_name": "a/b", "html_url": "h" }, "pull_request": { "number": 7, "html_url": "u" } });
        assert_eq!(of(pull), Some((text("a/b"), text("7"), text("u"))));
        let comment = |issue: Value| json!({ "repository": { "full_name": "a/b" }, "issue": issue });
        assert_eq!(
            of(comment(json!({ "number": 3, "pull_request": {} }))),
            Some((text("a/b"), text("3"), None))
        );
        assert_eq!(
            of(comment(json!({ "number": 3 }))),
            Some((text("a/b"), None, None)),
            "an issue is no pull request"
        );
        assert_eq!(of(json!({ "action": "x", "pull_request": "?" })), None);
        assert_eq!(of(json!({ "repository": { "full_name": "x".repeat(600) } })), None);
    }
}
