//! Slack: commands that start runs, and the buttons of an approval.
//!
//! Requests are signed `v0` over their time and raw bytes, and are good for five minutes. Slack waits three seconds for
//! an answer and shows people only what comes with status 200, so once a signature holds, what went wrong is said in
//! words. A command is answered once per `trigger_id`; a decision counts once per approval and human.

use super::generic::is_fresh;
use super::{Delivery, Raw, bad, signature, tenant_name, triggers, unknown};
use crate::api::{Answer, Caller, Problem, json};
use crate::app::App;
use crate::clock::System;
use crate::config::{Algorithm, Encoding, Slack};
use axum::http::StatusCode;
use serde_json::{Map, Value, json as object};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use windlass_core::approval::{self, Approval, Attempt, Channel, Verdict};
use windlass_core::command::{Command, Reply};
use windlass_core::digest::Digest;
use windlass_core::id::{ApprovalId, Name, RunId};
use windlass_core::idempotency::{self, Source as KeySource};
use windlass_core::run::{Actor, Initiator, Source};
use windlass_core::time::{Millis, Span};
use windlass_engine::port::Clock as _;

/// How old, or how far ahead, a request may be.
const WINDOW: Span = Span::mins(5);
/// Slack gives up after three seconds; what takes longer goes on, and people are told so before.
const PATIENCE: Duration = Duration::from_millis(2_500);
/// How many requests are remembered to tell a replay.
const SEEN_MAX: usize = 4_096;
/// The most bytes of a reason that somebody typed.
const REASON_LEN_MAX: usize = 1_000;

/// What a button of an approval holds: which approval, and exactly which action was shown.
#[must_use]
pub fn button_value(approval: &Approval) -> String {
    format!("{}:{}", approval.id, approval.action_hash)
}

/// Checks the signature and gives the form.
fn verify(app: &App, raw: &Raw, now: Millis) -> Result<BTreeMap<String, String>, Problem> {
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
fn say(text: &str) -> Answer {
    Ok(json(StatusCode::OK, &object!({ "response_type": "ephemeral", "text": text })))
}

/// Waits for an answer as long as Slack does; what takes longer goes on.
async fn in_time(work: impl Future<Output = String> + Send + 'static) -> Answer {
    let mut task = tokio::spawn(work);
    match tokio::time::timeout(PATIENCE, &mut task).await {
        Ok(Ok(text)) => say(&text),
        Ok(Err(_)) => say("Something went wrong inside of Windlass; its log says what."),
        Err(_) => say("This takes a little longer. It goes on, and `windlass runs` shows what comes of it."),
    }
}

fn need<'a>(fields: &'a BTreeMap<String, String>, name: &str) -> Result<&'a str, Problem> {
    let value = fields.get(name).map(String::as_str).filter(|value| !value.is_empty());
    value.ok_or_else(|| bad(format!("the request has no `{name}`")))
}

/// A request of another workspace is as if it were signed by nobody.
fn of_team(slack: &Slack, team: &str) -> Result<(), Problem> {
    if slack.team.as_ref().is_none_or(|known| known.as_str() == team) { Ok(()) } else { Err(unknown()) }
}

/// Who a Slack user is here.
fn user_of(slack: &Slack, id: &str) -> Option<Name> {
    slack.users.get(id).cloned()
}

/// Takes a command.
pub(super) async fn command(app: Arc<App>, raw: Raw) -> Answer {
    let mut fields = verify(&app, &raw, System.now())?;
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

/// Requests that came within the window, and what was said to each.
#[derive(Default)]
struct Seen {
    by: HashMap<Digest, Option<String>>,
    order: VecDeque<(Millis, Digest)>,
}

static SEEN: Mutex<Option<Seen>> = Mutex::new(None);

/// Whether a request came before: then what was said to it, as far as it was answered.
fn seen(request: Digest, now: Millis) -> Option<Option<String>> {
    let mut held = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let seen = held.get_or_insert_default();
    while let Some((at, old)) = seen.order.front().copied()
        && (at + WINDOW + WINDOW < now || seen.order.len() >= SEEN_MAX)
    {
        seen.order.pop_front();
        seen.by.remove(&old);
    }
    if let Some(known) = seen.by.get(&request) {
        return Some(known.clone());
    }
    seen.by.insert(request, None);
    seen.order.push_back((now, request));
    None
}

fn answered(request: Digest, text: &str) {
    let mut held = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = held.get_or_insert_default().by.get_mut(&request) {
        *known = Some(text.to_owned());
    }
}

/// A click on a button of an approval.
struct Click {
    caller: Caller,
    /// Whether the one who clicked is somebody here.
    mapped: bool,
    groups: Vec<Name>,
    approval: ApprovalId,
    action_hash: Digest,
    decision: Verdict,
    reason: Option<String>,
}

/// Takes a click.
pub(super) async fn action(app: Arc<App>, raw: Raw) -> Answer {
    let now = System.now();
    let fields = verify(&app, &raw, now)?;
    let slack = app.config.slack(&raw.tenant);
    let payload = super::payload(need(&fields, "payload")?.as_bytes())?;
    let time = raw.header("x-slack-request-timestamp").unwrap_or_default();
    let request = Digest::of(&[raw.tenant.as_bytes(), b"\n", time.as_bytes(), b"\n", &raw.bytes]);
    let text = |pointer: &str| payload.pointer(pointer).and_then(Value::as_str);
    of_team(&slack, text("/team/id").or_else(|| text("/user/team_id")).unwrap_or_default())?;
    if text("/type") != Some("block_actions") {
        return say("Windlass has nothing to do with that.");
    }
    let Some(click) = click(&app, &raw, &slack, &payload)? else {
        return say("Windlass has nothing to do with that button.");
    };
    drop(raw);
    match seen(request, now) {
        Some(Some(text)) => return say(&text),
        Some(None) => return say("This click is being worked on."),
        None => {}
    }
    in_time(async move {
        let text = match decide(&app, click).await {
            Ok(text) => text,
            Err(problem) => format!("The decision does not count: {}", problem.detail),
        };
        answered(request, &text);
        text
    })
    .await
}

/// What was clicked; none where it is no button of ours.
fn click(app: &App, raw: &Raw, slack: &Slack, payload: &Value) -> Result<Option<Click>, Problem> {
    let Some(button) = payload.pointer("/actions/0") else { return Ok(None) };
    let text = |key: &str| button.get(key).and_then(Value::as_str).unwrap_or_default();
    let decision = match text("action_id").trim_start_matches("windlass:") {
        "approve" => Verdict::Approved,
        "reject" => Verdict::Rejected,
        _ => return Ok(None),
    };
    let (approval, hash) =
        text("value").split_once(':').ok_or_else(|| bad("the button holds no approval"))?;
    let approval = ApprovalId::parse(approval).map_err(|error| bad(error.to_string()))?;
    let action_hash = Digest::parse(hash).ok_or_else(|| bad("the button holds no hash of an action"))?;
    let id = payload.pointer("/user/id").and_then(Value::as_str).ok_or_else(|| bad("nobody clicked"))?;
    let user = user_of(slack, id);
    let mapped = user.is_some();
    let user = user.unwrap_or_else(|| Name::clean(&format!("slack:{id}")));
    let initiator = if mapped { Initiator::User } else { Initiator::Webhook };
    let caller = Caller {
        actor: Actor { initiator, id: Some(user.clone()) },
        tenant: tenant_name(raw)?,
        scopes: Vec::new(),
        ..Caller::local()
    };
    let groups = if mapped { app.config.groups_of(&user) } else { Vec::new() };
    let reason =
        reason(payload).or_else(|| (decision == Verdict::Rejected).then(|| "rejected in Slack".to_owned()));
    Ok(Some(Click { caller, mapped, groups, approval, action_hash, decision, reason }))
}

/// What was typed into a field `reason` of the message.
fn reason(payload: &Value) -> Option<String> {
    let blocks = payload.pointer("/state/values")?.as_object()?;
    let typed = blocks.values().find_map(|block| block.pointer("/reason/value")?.as_str())?;
    let text: String = typed.chars().take(REASON_LEN_MAX).collect();
    Some(text).filter(|text| !text.trim().is_empty())
}

/// The tenant's run that an approval is of, whichever namespace it belongs to.
async fn run_of(app: &App, click: &Click) -> Result<RunId, Problem> {
    let (tenant, approval) = (click.caller.tenant.clone(), click.approval);
    let found = app
        .look(move |store| {
            let Some(run) = store.approval_run(approval)? else { return Ok(None) };
            // A click may come long after the run's end, and is still for the audit.
            let mine = store.tenant_of(run)? == Some(tenant);
            Ok::<_, crate::history::Error>(Some(run).filter(|_| mine))
        })
        .await??;
    found.ok_or_else(|| Problem::missing("approval", &approval.to_string()))
}

async fn decide(app: &App, click: Click) -> Result<String, Problem> {
    let run = run_of(app, &click).await?;
    let attempt = Attempt {
        decision: click.decision,
        by: click.caller.user(),
        // Whoever is nobody here is refused, and the refusal stands in the audit.
        human: click.mapped,
        groups: click.groups,
        action_hash: click.action_hash,
        channel: Channel::Slack,
        reason: click.reason,
    };
    let command = Command::Decide { run, approval: click.approval, input: approval::Input::Decide(attempt) };
    let Reply::Approval(reply) = app.ask(&click.caller, command).await? else {
        return Ok("The decision is recorded.".to_owned());
    };
    Ok(match reply {
        approval::Reply::Counted { missing } => format!("Your approval counts; {missing} more needed."),
        approval::Reply::Settled(status) => format!("The action is {status}."),
        approval::Reply::Standing(status) => format!("The action was {status} already."),
        approval::Reply::Refused { .. } if !click.mapped => {
            "The decision does not count: your Slack user is nobody here. An administrator adds it to the configuration.".to_owned()
        }
        approval::Reply::Refused { refusal, .. } => format!("The decision does not count: {refusal}."),
        approval::Reply::Reminded => "Somebody is reminded.".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_came_before_is_known_and_what_is_remembered_is_bounded() {
        let of = |n: usize| Digest::of(&[b"slack test", &n.to_be_bytes()]);
        let now = Millis(1_000_000_000);
        assert_eq!(seen(of(0), now), None);
        assert_eq!(seen(of(0), now), Some(None), "still at work");
        answered(of(0), "done");
        assert_eq!(seen(of(0), now + WINDOW), Some(Some("done".to_owned())));
        for n in 1..=SEEN_MAX {
            seen(of(n), now);
        }
        assert_eq!(seen(of(0), now), None, "the oldest made room");
        let held = SEEN.lock().unwrap();
        let kept = held.as_ref().unwrap();
        assert!(kept.by.len() <= SEEN_MAX && kept.order.len() <= SEEN_MAX);
    }

    #[test]
    fn a_reason_is_what_was_typed() {
        let typed =
            |text: &str| object!({ "state": { "values": { "b1": { "reason": { "value": text } } } } });
        assert_eq!(reason(&typed("too risky")), Some("too risky".to_owned()));
        assert_eq!(reason(&typed("  ")), None);
        assert_eq!(reason(&typed(&"x".repeat(5_000))).map(|text| text.len()), Some(REASON_LEN_MAX));
        assert_eq!(reason(&object!({})), None);
    }

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
