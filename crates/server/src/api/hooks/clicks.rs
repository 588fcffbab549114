//! What people click in Slack: the buttons of an approval's card, and the window that asks why.
//!
//! ```text
//!  Approve ─────────────▶ the door ─▶ an answer to the one who clicked
//!  Reject… ─▶ a window ─▶ the door ─▶ the window closes, or says why not
//! ```
//!
//! Slack does not show what a click is answered with, so the answer is also said to the one who clicked. A window shows
//! its answer itself. Whoever is nobody here gets no window: their attempt is refused, and on record, at once.

use super::slack::{WINDOW, in_time, need, of_team, say, user_of, verify};
use super::{Raw, bad, tenant_name};
use crate::api::decision::{self, Seen as SeenCard, Wish};
use crate::api::{Answer, Caller, Problem, json};
use crate::app::App;
use crate::cards::{blocks, slack as places};
use axum::http::StatusCode;
use serde_json::{Value, json as object};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use windlass_core::approval::{self, Channel, Verdict};
use windlass_core::digest::Digest;
use windlass_core::id::{ApprovalId, Name, RunId};
use windlass_core::run::{Actor, Initiator};
use windlass_core::time::Millis;
use windlass_executor::clock::wall;
use windlass_executor::config::Slack;

/// How many requests are remembered to tell a replay.
const SEEN_MAX: usize = 4_096;
/// The most characters of a reason that somebody typed.
const REASON_LEN_MAX: usize = 1_000;

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

/// Somebody's decision, as it was clicked.
struct Click {
    caller: Caller,
    /// The one who clicked, as Slack knows them.
    user: String,
    /// Whether the one who clicked is somebody here.
    mapped: bool,
    approval: ApprovalId,
    action_hash: Digest,
    decision: Verdict,
    reason: Option<String>,
    /// Where the card stands that was clicked.
    place: Option<Name>,
}

/// Takes a click.
pub(super) async fn action(app: Arc<App>, raw: Raw) -> Answer {
    let now = wall();
    let fields = verify(&app, &raw, now)?;
    let slack = app.config.slack(&raw.tenant);
    let payload = super::payload(need(&fields, "payload")?.as_bytes())?;
    let time = raw.header("x-slack-request-timestamp").unwrap_or_default();
    let request = Digest::of(&[raw.tenant.as_bytes(), b"\n", time.as_bytes(), b"\n", &raw.bytes]);
    let text = |pointer: &str| payload.pointer(pointer).and_then(Value::as_str);
    of_team(&slack, text("/team/id").or_else(|| text("/user/team_id")).unwrap_or_default())?;
    let (click, window) = match text("/type") {
        Some("block_actions") => (button(&raw, &slack, &payload)?, false),
        Some("view_submission") => (submitted(&raw, &slack, &payload)?, true),
        Some(_) | None => return say("Windlass has nothing to do with that."),
    };
    let Some(click) = click else {
        return say("Windlass has nothing to do with that.");
    };
    drop(raw);
    let trigger = text("/trigger_id").map(str::to_owned);
    match seen(request, now) {
        Some(Some(text)) if window => return window_answer(&text),
        Some(Some(text)) => return say(&text),
        Some(None) => return say("This click is being worked on."),
        None => {}
    }
    if !window && let Some(answer) = ask_why(&app, &click, trigger.as_deref()).await {
        answered(request, answer);
        return say(answer);
    }
    if window {
        let (_, text) = decide(&app, &click).await;
        answered(request, &text);
        return window_answer(&text);
    }
    in_time(async move {
        let (_, text) = decide(&app, &click).await;
        answered(request, &text);
        whisper(&app, &click, &text);
        text
    })
    .await
}

/// A window closes when the decision counts; otherwise it stays, and says why not.
fn window_answer(text: &str) -> Answer {
    let body = match text.starts_with(REFUSED) {
        true => object!({ "response_action": "errors", "errors": { "reason": text } }),
        false => object!({ "response_action": "clear" }),
    };
    Ok(json(StatusCode::OK, &body))
}

/// Asks for the reason of a rejection that came without one. None where the click is decided as it is.
async fn ask_why(app: &App, click: &Click, trigger: Option<&str>) -> Option<&'static str> {
    let cards = app.cards.as_ref().filter(|_| click.decision == Verdict::Rejected && click.mapped)?;
    let trigger = trigger.filter(|_| click.reason.is_none())?;
    let slack = cards.slack();
    if !slack.has_token(&click.caller.tenant) {
        return None;
    }
    let value = format!("{}:{}", click.approval, click.action_hash);
    let view = blocks::reason_view(&value, click.place.as_ref().map_or("", Name::as_str));
    Some(match slack.open(&click.caller.tenant, trigger, &view).await {
        Ok(()) => "Say why in the window.",
        Err(trouble) => {
            eprintln!("windlass: the window for a reason did not open: {trouble}");
            let text = "The window for the reason did not open. Click again, or use `windlass reject`.";
            whisper(app, click, text);
            text
        }
    })
}

/// Says something to the one who clicked, where the card stands. Nobody waits for it.
fn whisper(app: &App, click: &Click, text: &str) {
    let Some(cards) = &app.cards else { return };
    let Some((channel, _)) = click.place.as_ref().and_then(|place| place.as_str().split_once('/')) else {
        return;
    };
    let (slack, tenant) = (cards.slack().clone(), click.caller.tenant.clone());
    let (channel, user, text) = (channel.to_owned(), click.user.clone(), text.to_owned());
    tokio::spawn(async move {
        if slack.has_token(&tenant)
            && let Err(trouble) = slack.whisper(&tenant, &channel, &user, &text).await
        {
            eprintln!("windlass: an answer to a click in Slack could not be said: {trouble}");
        }
    });
}

/// What was clicked; none where it is no button of ours.
fn button(raw: &Raw, slack: &Slack, payload: &Value) -> Result<Option<Click>, Problem> {
    let Some(button) = payload.pointer("/actions/0") else { return Ok(None) };
    let text = |key: &str| button.get(key).and_then(Value::as_str).unwrap_or_default();
    let decision = match text("action_id").trim_start_matches("windlass:") {
        "approve" => Verdict::Approved,
        "reject" => Verdict::Rejected,
        _ => return Ok(None),
    };
    let found = |paths: [&str; 2]| paths.iter().find_map(|path| payload.pointer(path)?.as_str());
    let channel = found(["/channel/id", "/container/channel_id"]);
    let ts = found(["/message/ts", "/container/message_ts"]);
    let place = channel.zip(ts).and_then(|(channel, ts)| places::place(channel, ts));
    click(raw, slack, payload, (text("value"), decision, place)).map(Some)
}

/// What was typed into the window; none where it is no window of ours.
fn submitted(raw: &Raw, slack: &Slack, payload: &Value) -> Result<Option<Click>, Problem> {
    let text = |path: &str| payload.pointer(path).and_then(Value::as_str);
    if text("/view/callback_id") != Some("windlass:reject") {
        return Ok(None);
    }
    let held = text("/view/private_metadata").unwrap_or_default();
    let parts: Vec<&str> = held.splitn(3, ':').collect();
    let [approval, hash, place] = parts.as_slice() else { return Err(bad("the window holds no approval")) };
    let place = place.split_once('/').and_then(|(channel, ts)| places::place(channel, ts));
    click(raw, slack, payload, (&format!("{approval}:{hash}"), Verdict::Rejected, place)).map(Some)
}

fn click(
    raw: &Raw,
    slack: &Slack,
    payload: &Value,
    (value, decision, place): (&str, Verdict, Option<Name>),
) -> Result<Click, Problem> {
    let (approval, hash) = value.split_once(':').ok_or_else(|| bad("the button holds no approval"))?;
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
    let (user, reason) = (id.to_owned(), reason(payload));
    Ok(Click { caller, user, mapped, approval, action_hash, decision, reason, place })
}

/// What was typed into a field `reason` of the message or the window.
fn reason(payload: &Value) -> Option<String> {
    let values = ["/state/values", "/view/state/values"].iter().find_map(|path| payload.pointer(path));
    let typed = values?.as_object()?.values().find_map(|block| block.pointer("/reason/value")?.as_str())?;
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
            Ok::<_, windlass_store::history::Error>(Some(run).filter(|_| mine))
        })
        .await??;
    found.ok_or_else(|| Problem::missing("approval", &approval.to_string()))
}

/// How every answer begins that says that a decision does not count.
const REFUSED: &str = "The decision does not count";

/// Decides, and says in words what came of it.
async fn decide(app: &App, click: &Click) -> (bool, String) {
    match try_decide(app, click).await {
        Ok(text) => (!text.starts_with(REFUSED), text),
        Err(problem) => (false, format!("{REFUSED}: {}", problem.detail)),
    }
}

async fn try_decide(app: &App, click: &Click) -> Result<String, Problem> {
    let run = run_of(app, click).await?;
    let unsaid = || (click.decision == Verdict::Rejected).then(|| "rejected in Slack".to_owned());
    let wish = Wish {
        decision: click.decision,
        // Whoever is nobody here is refused, and the refusal stands in the audit.
        human: click.mapped,
        groups: Vec::new(),
        action_hash: click.action_hash,
        channel: Channel::Slack,
        reason: click.reason.clone().or_else(unsaid),
        seen: click.place.clone().map_or(SeenCard::Unsaid, SeenCard::At),
    };
    Ok(match decision::decide(app, &click.caller, (run, click.approval), wish).await? {
        Some(approval::Reply::Counted { missing }) => format!("Your approval counts; {missing} more needed."),
        Some(approval::Reply::Settled(status)) => format!("The action is {status}."),
        Some(approval::Reply::Standing(status)) => format!("The action was {status} already."),
        Some(approval::Reply::Refused { .. }) if !click.mapped => format!(
            "{REFUSED}: your Slack user is nobody here. An administrator adds it to the configuration."
        ),
        Some(approval::Reply::Refused { refusal, .. }) => {
            format!(
                "{REFUSED}: {}.",
                decision::refused(app, &click.caller, (run, click.approval), refusal).await?
            )
        }
        Some(approval::Reply::Reminded | approval::Reply::Shown) | None => {
            "The decision is recorded.".to_owned()
        }
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
}
