//! Slack: its signature, and commands that start runs. What people click is in [`super::clicks`].
//!
//! Requests are signed `v0` over their time and raw bytes, and are good for five minutes. Slack waits three seconds for
//! an answer and shows people only what comes with status 200, so once a signature holds, what went wrong is said in
//! words. A command is answered once per `trigger_id`; a decision counts once per approval and human.

use super::generic::is_fresh;
use super::{Delivery, Raw, bad, signature, tenant_name, triggers, unknown};
use crate::api::{Answer, Problem, json};
use crate::app::App;
use axum::http::StatusCode;
use serde_json::{Map, Value, json as object};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use windlass_core::digest::Digest;
use windlass_core::id::Name;
use windlass_core::idempotency::{self, Source as KeySource};
use windlass_core::run::{Actor, Initiator, Source};
use windlass_core::time::{Millis, Span};
use windlass_executor::clock::wall;
use windlass_executor::config::{Algorithm, Encoding, Slack};

/// How old, or how far ahead, a request may be.
pub(super) const WINDOW: Span = Span::mins(5);
/// Slack gives up after three seconds; what takes longer goes on, and people are told so before.
const PATIENCE: Duration = Duration::from_millis(2_500);
/// Checks the signature and gives the form.
pub(super) fn verify(app: &App, raw: &Raw, now: Millis) -> Result<BTreeMap<String, String>, Problem> {
    let secrets = app.config.slack_secrets(&raw.tenant);
    let time = raw.header("x-slack-request-timestamp").unwrap_or_default();
    let given = raw.header("x-slack-signature").and_then(|text| text.strip_prefix("v0="));
    let given = given.and_then(|text| signature::decode(Encoding::Hex, text)).unwrap_or_default();
    let parts: [&[u8]; 4] = [b"v0:", time.as_bytes(), b":", &raw.bytes];
    let holds = signature::holds(Algorithm::Sha256, &secrets, &parts, &given);
    if !(holds && is_fresh(time, WINDOW, now)) {
        return Err(unknown());
    }
    let fields = signature::form(&raw.bytes).ok_or_else(|| bad("the body is not a form"))?;
    Ok(fields.into_iter().collect())
}

/// Says something to the one who asked, and to nobody else.
pub(super) fn say(text: &str) -> Answer {
    Ok(json(StatusCode::OK, &object!({ "response_type": "ephemeral", "text": text })))
}

/// Waits for an answer as long as Slack does; what takes longer goes on.
pub(super) async fn in_time(work: impl Future<Output = String> + Send + 'static) -> Answer {
    let mut task = tokio::spawn(work);
    match tokio::time::timeout(PATIENCE, &mut task).await {
        Ok(Ok(text)) => say(&text),
        Ok(Err(_)) => say("Something went wrong inside of Windlass; its log says what."),
        Err(_) => say("This takes a little longer. It goes on, and `windlass runs` shows what comes of it."),
    }
}

pub(super) fn need<'a>(fields: &'a BTreeMap<String, String>, name: &str) -> Result<&'a str, Problem> {
    let value = fields.get(name).map(String::as_str).filter(|value| !value.is_empty());
    value.ok_or_else(|| bad(format!("the request has no `{name}`")))
}

/// A request of another workspace is as if it were signed by nobody.
pub(super) fn of_team(slack: &Slack, team: &str) -> Result<(), Problem> {
    if slack.team.as_ref().is_none_or(|known| known.as_str() == team) { Ok(()) } else { Err(unknown()) }
}

/// Who a Slack user is here.
pub(super) fn user_of(slack: &Slack, id: &str) -> Option<Name> {
    slack.users.get(id).cloned()
}

/// Takes a command.
pub(super) async fn command(app: Arc<App>, raw: Raw) -> Answer {
    let mut fields = verify(&app, &raw, wall())?;
    if fields.contains_key("ssl_check") {
        return say("ok");
    }
    // An older way to prove where a request comes from: a secret, and nobody's business.
    fields.remove("token");
    let slack = app.config.slack(&raw.tenant);
    let (team, trigger_id) = (need(&fields, "team_id")?, need(&fields, "trigger_id")?);
    of_team(&slack, team)?;
    let (name, user_id) = (need(&fields, "command")?.to_owned(), need(&fields, "user_id")?);
    let key = idempotency::slack(team, trigger_id).map_err(|error| bad(error.to_string()))?;
    let unmapped = || Name::clean(&format!("slack:{user_id}"));
    let user = user_of(&slack, user_id).unwrap_or_else(unmapped);
    let delivery = Delivery {
        tenant: tenant_name(&raw)?,
        source: Name::clean("slack"),
        event: Some(name.clone()),
        action: None,
        id: trigger_id.to_owned(),
        key,
        key_source: KeySource::Slack,
        request_hash: Digest::of(&[&raw.bytes]),
        headers: Map::new(),
        by: Actor::new(Initiator::Webhook, "slack"),
        run_source: Source::Slack,
        user: Some(user),
        subject: None,
        traceparent: raw.traceparent(),
        emitted: None,
        also: Vec::new(),
        payload: fields.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect(),
    };
    drop(raw);
    in_time(async move {
        match triggers::fire(&app, delivery).await {
            Ok(answered) => told(&name, &answered.body),
            Err(problem) => format!("`{name}` did not work: {}", problem.detail),
        }
    })
    .await
}

/// What a command came to, in words.
fn told(command: &str, body: &Value) -> String {
    let list = |key: &str| body[key].as_array().cloned().unwrap_or_default();
    let runs = list("runs").into_iter().map(|run| {
        let text = |key: &str| run[key].as_str().unwrap_or_default().to_owned();
        format!("Started `{}`: {}", text("pipeline"), text("id"))
    });
    let signals = list("signals").into_iter().map(|sent| {
        format!(
            "Sent `{}` for `{}`",
            sent["signal"].as_str().unwrap_or_default(),
            sent["key"].as_str().unwrap_or_default()
        )
    });
    let errors = list("errors").into_iter().map(|error| {
        format!(
            "`{}`: {}",
            error["trigger"].as_str().unwrap_or_default(),
            error["message"].as_str().unwrap_or_default()
        )
    });
    let lines: Vec<String> = runs.chain(signals).chain(errors).collect();
    match (lines.is_empty(), body["in_flight"] == true) {
        (true, true) => format!("`{command}` is being worked on."),
        (true, false) => format!("No deployed runbook listens to `{command}` here."),
        (false, _) => lines.join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_came_to_is_said_in_words() {
        let ran = object!({ "runs": [{ "pipeline": "deploy", "id": "run_1" }] });
        assert_eq!(told("/deploy", &ran), "Started `deploy`: run_1");
        assert!(told("/deploy", &object!({ "runs": [] })).contains("No deployed runbook"));
        assert!(told("/deploy", &object!({ "in_flight": true })).contains("worked on"));
        let failed = object!({ "runs": [], "errors": [{ "trigger": "b/t", "message": "no" }] });
        assert_eq!(told("/deploy", &failed), "`b/t`: no");
    }
}
