//! A card as a message in Slack: Block Kit, within Slack's limits.
//!
//! All data is escaped and put between back-ticks, in texts that Slack does not format. So nothing in it can mention a
//! person, make a link, or imitate a part of the card. A card that does not fit is cut, says so, and has no
//! buttons: a person must not decide about what the card does not show.

use super::text::{mrkdwn, split, units, visible};
use super::{Card, Part};
use serde_json::{Value, json};
use windlass_api::time;
use windlass_core::approval::{Approval, Decided, Status, Tier};
use windlass_core::id::RunId;

/// The most blocks of a message.
pub const BLOCKS_MAX: usize = 50;
/// The most units of a text in a block.
pub const TEXT_UNITS_MAX: usize = 3_000;
/// The most units of the text beside the blocks: what a notification shows.
const FALLBACK_UNITS_MAX: usize = 300;
/// The most sections of the parts, and of the decisions. With a beginning and an end they are below [`BLOCKS_MAX`].
const PARTS: [(Part, &str, usize); 4] = [
    (Part::What, "What is asked", 4),
    (Part::Changes, "What would change", 20),
    (Part::Why, "Why", 8),
    (Part::Details, "Details", 6),
];
const DECISIONS_SECTIONS_MAX: usize = 6;
/// The most units of the quoted lines in a section: there is room for a title and the back-ticks.
const QUOTED_UNITS_MAX: usize = 2_900;

/// What a card in Slack may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// Tiers of approvals that cannot be decided in Slack.
    pub link_only: Vec<Tier>,
    /// The address under which this server is reached by people.
    pub public_url: Option<String>,
    /// Whether this is the escalation after no decision was made.
    pub escalated: bool,
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// What a notification shows.
    pub text: String,
    /// What the message shows.
    pub blocks: Vec<Value>,
    /// Whether something of the action is not shown.
    pub cut: bool,
    /// Whether it has buttons.
    pub decides: bool,
}

impl Message {
    /// Exactly what is shown, as it is sent and recorded.
    #[must_use]
    pub fn bytes(&self) -> String {
        json!({ "text": self.text, "blocks": self.blocks }).to_string()
    }
}

/// What a button of an approval holds: which approval, and exactly which action was shown.
#[must_use]
pub fn button_value(approval: &Approval) -> String {
    format!("{}:{}", approval.id, approval.action_hash)
}

/// The message of a card, as the approval stands.
#[must_use]
pub fn message(card: &Card, approval: &Approval, form: &Form) -> Message {
    let open = approval.status == Status::Requested;
    let mut blocks = vec![header(approval, form.escalated && open)];
    let mut cut = false;
    for (part, title, sections_max) in PARTS {
        let (sections, whole) = sections(title, &card.part(part), sections_max);
        blocks.extend(sections);
        cut |= !whole;
    }
    blocks.extend(outcome(approval));
    let decides = open && !cut && !form.link_only.contains(&approval.tier);
    if decides {
        blocks.push(buttons(approval));
    } else if open {
        blocks.push(elsewhere(approval, cut, form));
    }
    debug_assert!(blocks.len() <= BLOCKS_MAX);
    Message { text: fallback(card, approval), blocks, cut, decides }
}

fn header(approval: &Approval, escalated: bool) -> Value {
    let text = match approval.status {
        Status::Requested if escalated => format!("Nobody decided yet: {} tier", approval.tier),
        Status::Requested => format!("Approval needed: {} tier", approval.tier),
        Status::Approved => "Approved".to_owned(),
        Status::Rejected => "Rejected".to_owned(),
        Status::Expired => "Expired: nobody decided in time".to_owned(),
        Status::Cancelled => "Withdrawn: nothing is to be decided any more".to_owned(),
    };
    json!({ "type": "header", "text": { "type": "plain_text", "text": text, "emoji": false } })
}

fn section(text: &str) -> Value {
    json!({ "type": "section", "text": { "type": "mrkdwn", "text": text, "verbatim": true } })
}

/// Lines between back-ticks, in as many sections as they need, and whether that was enough.
fn sections(title: &str, lines: &[String], sections_max: usize) -> (Vec<Value>, bool) {
    let (pieces, whole) = pieces(lines, sections_max);
    let last = pieces.len().saturating_sub(1);
    let block = |(n, piece): (usize, String)| {
        let title = if n == 0 { format!("*{title}*\n") } else { String::new() };
        let end = if n == last && !whole { "\n_…and more that does not fit here_" } else { "" };
        section(&format!("{title}```\n{piece}```{end}"))
    };
    (pieces.into_iter().enumerate().map(block).collect(), whole)
}

/// Lines, escaped, in pieces that a section has room for, and whether so many are enough.
fn pieces(lines: &[String], pieces_max: usize) -> (Vec<String>, bool) {
    let (mut pieces, mut quoted) = (Vec::new(), String::new());
    for line in lines {
        let escaped = mrkdwn(line);
        let mut rest = escaped.as_str();
        while units(&quoted) + units(rest) >= QUOTED_UNITS_MAX {
            if quoted.is_empty() {
                // A line that is longer than a section goes on in the next one.
                let (first, more) = whole_escapes(rest);
                (quoted, rest) = (format!("{first}\n"), more);
            }
            pieces.push(std::mem::take(&mut quoted));
            if pieces.len() >= pieces_max {
                return (pieces, false);
            }
        }
        quoted.push_str(rest);
        quoted.push('\n');
    }
    if !quoted.is_empty() {
        pieces.push(quoted);
    }
    (pieces, true)
}

/// The longest beginning that fits, cut where no escape is cut through.
fn whole_escapes(text: &str) -> (&str, &str) {
    let (first, _) = split(text, QUOTED_UNITS_MAX - 1);
    // The longest escape is `&amp;`, or `\u{e0fff}`.
    let near = first.char_indices().rev().take(9);
    let open = near.into_iter().find(|(_, c)| matches!(c, '&' | '\\')).map(|(at, _)| at);
    let end = match open {
        Some(at) if at > 0 && !first[at..].contains([';', '}']) => at,
        Some(_) | None => first.len(),
    };
    text.split_at(end)
}

/// Who decided, and how it came out.
fn outcome(approval: &Approval) -> Vec<Value> {
    let told = |decided: &Decided| {
        let own = if decided.own_request { ", who asked for it" } else { "" };
        let mut line = format!(
            "{} by {}{own} at {} ({})",
            decided.decision,
            visible(decided.by.as_str()),
            time::text(decided.at),
            decided.channel
        );
        if let Some(reason) = &decided.reason {
            line.push_str(": ");
            line.push_str(&visible(reason));
        }
        line
    };
    let mut lines: Vec<String> = approval.decisions.iter().map(told).collect();
    match approval.status {
        Status::Requested if !lines.is_empty() => lines.push(format!("{} more needed", approval.missing())),
        Status::Requested | Status::Approved | Status::Rejected => {}
        Status::Expired => lines.push(format!("expired at {}", time::text(approval.expires_at))),
        Status::Cancelled => {
            let why = approval.voided.as_deref().unwrap_or("its step has ended, or the action changed");
            lines.push(format!("withdrawn: {}", visible(why)));
        }
    }
    sections("Decisions", &lines, DECISIONS_SECTIONS_MAX).0
}

fn buttons(approval: &Approval) -> Value {
    let button = |action: &str, text: &str, style: &str| {
        json!({
            "type": "button", "action_id": format!("windlass:{action}"), "style": style,
            "text": { "type": "plain_text", "text": text, "emoji": false }, "value": button_value(approval),
        })
    };
    json!({
        "type": "actions", "block_id": "windlass:decide",
        "elements": [button("approve", "Approve", "primary"), button("reject", "Reject…", "danger")],
    })
}

/// How to decide where there are no buttons.
fn elsewhere(approval: &Approval, cut: bool, form: &Form) -> Value {
    let id = approval.id;
    let why = match cut {
        true => "This is too long to be shown here, so it is not decided here.",
        false => "This is not decided here.",
    };
    let link = link(approval, form).map(|link| format!(" <{link}|The full text>.")).unwrap_or_default();
    section(&format!(
        "{why}{link}\nSee all of it and decide: `windlass approve {id}` or `windlass reject {id} --reason …`"
    ))
}

/// The address of the full text.
#[must_use]
pub fn link(approval: &Approval, form: &Form) -> Option<String> {
    let base = form.public_url.as_ref()?.trim_end_matches('/');
    Some(format!("{base}/v1/approvals/{}/card", approval.id))
}

fn fallback(card: &Card, approval: &Approval) -> String {
    let word = match approval.status {
        Status::Requested => "Approval needed",
        Status::Approved => "Approved",
        Status::Rejected => "Rejected",
        Status::Expired => "Expired",
        Status::Cancelled => "Withdrawn",
    };
    let (summary, more) = split(&card.summary, FALLBACK_UNITS_MAX);
    let more = if more.is_empty() { "" } else { "…" };
    // Escaped, it is longer: at most five times.
    format!("{word}: {}{more}", mrkdwn(summary))
}

/// What reminds people of a card that still waits.
#[must_use]
pub fn reminder(card: &Card, approval: &Approval) -> Message {
    let (summary, _) = split(&card.summary, FALLBACK_UNITS_MAX);
    let missing = match approval.missing() {
        1 => "1 human".to_owned(),
        n => format!("{n} humans"),
    };
    let text = format!(
        "Still waits for {missing}, until {}: `{}`",
        time::text(approval.expires_at),
        mrkdwn(summary)
    );
    Message { blocks: vec![section(&text)], text, cut: false, decides: false }
}

/// A message to people that is about a run.
#[must_use]
pub fn notice(title: &str, run: RunId, said: &str) -> Message {
    let title = visible(title);
    let (title, _) = split(&title, FALLBACK_UNITS_MAX);
    let text = format!("`{}` of `{run}`", mrkdwn(title));
    let lines: Vec<String> = said.lines().map(visible).collect();
    let (said, whole) = sections("Message", &lines, DECISIONS_SECTIONS_MAX);
    let blocks = [vec![section(&text)], said].concat();
    Message { text, blocks, cut: !whole, decides: false }
}

/// The window that asks for the reason of a rejection.
#[must_use]
pub fn reason_view(value: &str, place: &str) -> Value {
    let plain = |text: &str| json!({ "type": "plain_text", "text": text, "emoji": false });
    json!({
        "type": "modal", "callback_id": "windlass:reject", "private_metadata": format!("{value}:{place}"),
        "title": plain("Reject"), "submit": plain("Reject"), "close": plain("Back"),
        "blocks": [{
            "type": "input", "block_id": "reason", "label": plain("Why?"),
            "element": {
                "type": "plain_text_input", "action_id": "reason", "multiline": true, "min_length": 1,
                "max_length": 1_000,
            },
        }],
    })
}
