//! `slack.*`: messages, by the Web API.
//!
//! A message carries a mark of its key as metadata, so the channel's history tells whether it was posted.

use super::session::Session;
use super::wire::{Ask, Reply, Wire};
use super::{Again, Call, Current, Outcome, Seen, Success, Tools, Trouble};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Url};
use serde_json::{Value, json};
use std::time::Duration;
use windlass_engine::Leave;

/// The kind of metadata by which our messages are found.
const EVENT: &str = "windlass";
/// How many messages of a channel are looked through.
const LOOK_MAX: usize = 200;
/// Errors that pass.
const PASSING: &[&str] = &[
    "ratelimited",
    "rate_limited",
    "internal_error",
    "fatal_error",
    "service_unavailable",
    "request_timeout",
];

pub(super) async fn perform(tools: &Tools, call: &Call, session: &Session) -> Outcome {
    let channel = call.text("channel")?;
    match call.operation.as_str() {
        "post" => {
            let mut body = message(call);
            body["metadata"] = json!({ "event_type": EVENT, "event_payload": { "key": call.mark() } });
            if let Some(thread) = call.maybe("thread_ts") {
                body["thread_ts"] = json!(thread);
            }
            let said = api(tools, call, session, Method::POST, "chat.postMessage", body).await?;
            Ok(posted(call, &said))
        }
        "update" => {
            let ts = call.text("ts")?;
            let before = find(tools, call, session, ts).await.map_err(Trouble::before)?;
            let mut body = message(call);
            body["ts"] = json!(ts);
            let said = api(tools, call, session, Method::POST, "chat.update", body).await?;
            let text = call.text("text")?;
            let output = json!({ "channel": said["channel"], "ts": said["ts"], "text": text });
            let done = Success::of(output);
            // What an earlier try may have changed is not what stood there before.
            let known = before.filter(|before| call.attempt == 1 || before["text"] != json!(text));
            let Some(before) = known else { return Ok(done) };
            let mut fields = json!({ "channel": channel, "ts": ts, "text": before["text"] });
            if before["blocks"].is_array() {
                fields["blocks"] = before["blocks"].clone();
            }
            Ok(done.reversible("slack.update", &call.target, fields))
        }
        "delete" => {
            let body = json!({ "channel": channel, "ts": call.text("ts")? });
            match api(tools, call, session, Method::POST, "chat.delete", body).await {
                Ok(said) => Ok(Success::of(json!({ "channel": said["channel"], "ts": said["ts"] }))),
                // It is gone, and that is what was wanted.
                Err(trouble) if trouble.message.contains("message_not_found") => {
                    Ok(Success::of(json!({ "channel": channel, "ts": call.text("ts")? })))
                }
                Err(trouble) => Err(trouble),
            }
        }
        other => Err(Trouble::input(format!("slack has no `{other}`"))),
    }
}

fn message(call: &Call) -> Value {
    let mut body = json!({ "channel": call.fields.get("channel"), "text": call.fields.get("text") });
    if let Some(blocks) = call.fields.get("blocks") {
        body["blocks"] = blocks.clone();
    }
    body
}

fn posted(call: &Call, said: &Value) -> Success {
    let (channel, ts) = (&said["channel"], &said["ts"]);
    let target = format!("{}/{}", channel.as_str().unwrap_or_default(), ts.as_str().unwrap_or_default());
    let text = call.fields.get("text").cloned().unwrap_or(Value::Null);
    let done = Success::of(json!({ "channel": channel, "ts": ts, "text": text }));
    done.reversible("slack.delete", &target, json!({ "channel": channel, "ts": ts }))
}

pub(super) async fn probe(tools: &Tools, call: &Call, session: &Session) -> Result<Seen, Trouble> {
    if call.operation != "post" {
        return Ok(Seen::Unsure(format!("`{}` leaves nothing that could be looked for", call.tool)));
    }
    let (method, mut body) = (
        "conversations.history",
        json!({
            "channel": call.text("channel")?, "limit": LOOK_MAX, "include_all_metadata": true
        }),
    );
    let method = match call.maybe("thread_ts") {
        Some(thread) => {
            body["ts"] = json!(thread);
            "conversations.replies"
        }
        None => method,
    };
    let said = api(tools, call, session, Method::GET, method, body).await?;
    let mark = call.mark();
    let ours = |message: &&Value| {
        let about = &message["metadata"];
        about["event_type"] == EVENT && about["event_payload"]["key"].as_str() == Some(&mark)
    };
    let messages = said["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(match messages.iter().find(ours) {
        Some(found) => {
            let channel = said["channel"].as_str().or(call.maybe("channel")).unwrap_or_default();
            Seen::There(posted(call, &json!({ "channel": channel, "ts": found["ts"] })))
        }
        // Older ones than were looked through may be there.
        None if said["has_more"] == true => {
            Seen::Unsure("the channel has more messages than are looked at".into())
        }
        None => Seen::Absent,
    })
}

pub(super) async fn current(
    tools: &Tools,
    reversal: &Call,
    left: &Value,
    session: &Session,
) -> Result<Current, Trouble> {
    let now = find(tools, reversal, session, reversal.text("ts")?).await?;
    Ok(match now {
        None => Current::Changed("the message is gone".to_owned()),
        Some(now) if now["text"] != left["text"] => {
            Current::Changed("the message was changed since".to_owned())
        }
        Some(_) => Current::Unchanged,
    })
}

/// A message by its time stamp.
async fn find(tools: &Tools, call: &Call, session: &Session, ts: &str) -> Result<Option<Value>, Trouble> {
    let query = json!({ "channel": call.text("channel")?, "latest": ts, "oldest": ts, "inclusive": true, "limit": 1 });
    let said = api(tools, call, session, Method::GET, "conversations.history", query).await?;
    let messages = said["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(messages.iter().find(|message| message["ts"] == ts).cloned())
}

/// Calls a method. Slack answers 200 with `ok: false` where it refuses.
async fn api(
    tools: &Tools,
    call: &Call,
    session: &Session,
    method: Method,
    name: &str,
    body: Value,
) -> Result<Value, Trouble> {
    let token = match call.fields.get("token") {
        Some(token) => token.as_str().unwrap_or_default().to_owned(),
        None => session.credential("SLACK_BOT_TOKEN", &["WINDLASS_SLACK_BOT_TOKEN"])?,
    };
    send((&call.leave, &tools.wire), &tools.settings.slack_url, &token, call.timeout, (method, name), body)
        .await
}

/// The same for whoever has a token.
pub async fn send(
    (leave, wire): (&Leave, &Wire),
    base: &str,
    token: &str,
    timeout: Duration,
    (method, name): (Method, &str),
    body: Value,
) -> Result<Value, Trouble> {
    let wrong = |_| Trouble::input("the address or the token of Slack cannot be used");
    let mut url: Url =
        format!("{base}/{name}").parse().map_err(|_| Trouble::input("the address of Slack"))?;
    let reads = method == Method::GET;
    if reads {
        let mut pairs = url.query_pairs_mut();
        for (key, value) in body.as_object().into_iter().flatten() {
            pairs.append_pair(key, &value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        }
    }
    let mut ask = Ask::to_service(method, url, timeout);
    ask.headers.insert(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}")).map_err(wrong)?);
    if !reads {
        ask.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8"));
        ask.body = Some(body.to_string().into_bytes());
    }
    let reply = wire.send(leave, ask).await?;
    answer(&reply, name)
}

fn answer(reply: &Reply, name: &str) -> Result<Value, Trouble> {
    let who = format!("slack {name}");
    if !reply.is_success() {
        return Err(reply.trouble(&who));
    }
    let said = reply.expect_json(&who)?;
    if said["ok"] == true {
        return Ok(said);
    }
    let error = said["error"].as_str().unwrap_or("no reason");
    let message = format!("{who} refused: {error}");
    if PASSING.contains(&error) {
        let again = reply.retry_after().map_or(Again::Soon, Again::After);
        return Err(Trouble { again, ..Trouble::not_now(message) });
    }
    Err(Trouble::refused(message))
}
