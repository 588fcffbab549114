//! `http`: a request to an address that the runbook names.

use super::wire::{Ask, BODY_LEN_MAX, Reply, place};
use super::{Call, OUTPUT_LEN_MAX, Outcome, Success, Tools, Trouble};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Headers of an answer that a step gets to see: those that say what it is, never what sets cookies.
const SHOWN: &[&str] = &[
    "content-type",
    "content-length",
    "etag",
    "last-modified",
    "location",
    "date",
    "retry-after",
    "link",
    "x-request-id",
    "x-correlation-id",
    "cache-control",
];
/// The most headers that a request may bring.
const HEADERS_MAX: usize = 64;
/// The name under which the key is passed on.
const KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");

pub(super) async fn request(tools: &Tools, call: &Call) -> Outcome {
    let ask = ask(call)?;
    let (method, url) = (ask.method.clone(), ask.url.clone());
    let reply = tools.wire.send(&call.leave, ask).await?;
    let expected = call.fields.get("expect").map(expected).unwrap_or_default();
    let good = match expected.as_slice() {
        [] => reply.is_success(),
        listed => listed.contains(&reply.status.as_u16()),
    };
    if !good && reply.status.is_redirection() {
        let to = reply.headers.get("location").and_then(|to| to.to_str().ok()).unwrap_or("nowhere");
        let message = format!(
            "{method} {} redirects to {to}: a write is not sent elsewhere; name that address",
            place(&url)
        );
        return Err(Trouble::refused(message));
    }
    if !good {
        return Err(reply.trouble(&format!("{method} {}", place(&url))));
    }
    Ok(Success::of(output(&reply)))
}

fn ask(call: &Call) -> Result<Ask, Trouble> {
    let name = call.maybe("method").unwrap_or("GET");
    let method = Method::from_bytes(name.as_bytes())
        .map_err(|_| Trouble::input(format!("`{name}` is not a method")))?;
    let mut url: Url = call
        .text("url")?
        .parse()
        .map_err(|error| Trouble::input(format!("`url` is not an address: {error}")))?;
    let fields = |name: &str| call.fields.get(name).and_then(Value::as_object);
    if let Some(query) = fields("query") {
        let mut pairs = url.query_pairs_mut();
        for (key, value) in query {
            pairs.append_pair(key, &text(value));
        }
    }
    let mut headers = HeaderMap::new();
    let mut private = Vec::new();
    let given = fields("headers").into_iter().flatten();
    for (key, value) in given.take(HEADERS_MAX) {
        let name = HeaderName::from_bytes(key.as_bytes())
            .map_err(|_| Trouble::input(format!("`{key}` cannot be the name of a header")))?;
        if matches!(name.as_str(), "host" | "content-length" | "transfer-encoding" | "connection" | "upgrade")
        {
            return Err(Trouble::input(format!("the header `{key}` is not the runbook's to set")));
        }
        if call.is_secret(&format!("headers/{key}")) {
            private.push(name.clone());
        }
        let value = HeaderValue::from_str(&text(value))
            .map_err(|_| Trouble::input(format!("the value of the header `{key}` cannot be sent")))?;
        headers.append(name, value);
    }
    if let Some(bearer) = call.fields.get("bearer") {
        let token = text(bearer);
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| Trouble::input("`bearer` cannot be sent in a header"))?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    let writes = !matches!(method, Method::GET | Method::HEAD | Method::OPTIONS);
    if writes && let Ok(key) = HeaderValue::from_str(&call.key) {
        headers.entry(KEY_HEADER).or_insert(key);
    }
    let body = match (call.fields.get("json"), call.fields.get("body")) {
        (Some(_), Some(_)) => return Err(Trouble::input("a request has a `json` or a `body`, not both")),
        (Some(value), None) => {
            headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
            Some(value.to_string().into_bytes())
        }
        (None, Some(body)) => Some(text(body).into_bytes()),
        (None, None) => None,
    };
    if body.as_ref().is_some_and(|body| body.len() > BODY_LEN_MAX) {
        return Err(Trouble::input(format!("the body has more than {BODY_LEN_MAX} bytes")));
    }
    let own = call.maybe("timeout").and_then(|text| windlass_runbook::span::parse(text).ok());
    let timeout = own.map_or(call.timeout, |span| Duration::from_millis(span.0).min(call.timeout));
    Ok(Ask { method, url, headers, private, body, timeout, guarded: true })
}

/// A value as it stands in a header, a query or a body of text.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The statuses that a step takes for a success.
fn expected(value: &Value) -> Vec<u16> {
    let one = |value: &Value| match value {
        Value::Number(number) => number.as_u64().and_then(|status| u16::try_from(status).ok()),
        Value::String(text) => text.parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    match value {
        Value::Array(items) => items.iter().filter_map(one).collect(),
        other => one(other).into_iter().collect(),
    }
}

/// What a step gets of an answer: its status, the headers that say what it is, and the body as JSON or as text.
fn output(reply: &Reply) -> Value {
    let shown = |name: &&str| {
        let value = reply.headers.get(*name)?.to_str().ok()?;
        Some(((*name).to_owned(), Value::String(value.to_owned())))
    };
    let headers: Map<String, Value> = SHOWN.iter().filter_map(shown).collect();
    let mut output = json!({ "status": reply.status.as_u16(), "headers": headers });
    match reply.json().filter(|_| reply.body.len() <= OUTPUT_LEN_MAX) {
        Some(body) => output["json"] = body,
        None => {
            let text = String::from_utf8_lossy(&reply.body[..reply.body.len().min(OUTPUT_LEN_MAX)]);
            output["body"] = Value::String(text.into_owned());
            if reply.cut || reply.body.len() > OUTPUT_LEN_MAX {
                output["truncated"] = Value::Bool(true);
            }
        }
    }
    output
}
