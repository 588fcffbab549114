//! The card in its channel: posted, kept up to date, and on record exactly as it was shown.

use crate::office::{Office, click, events, start};
use crate::support::{text, until};
use serde_json::{Value, json};

/// The records of what was shown in Slack.
fn shown(serving: &crate::wire::Serving) -> Vec<Value> {
    events(serving, "approval:shown").into_iter().filter(|event| event["channel"] == "slack").collect()
}

#[test]
fn a_card_is_posted_decided_and_brought_up_to_date_and_its_bytes_are_on_record() {
    let office = Office::open();
    let serving = office.serve("channel: C9");
    let run = start(&serving, "ask");
    let card = office.await_card("C9", "windlass:approve");
    assert!(text(&card, "text").starts_with("Approval needed: "), "{card}");
    assert!(card["blocks"].to_string().contains("Really?"), "{card}");
    let told = click(&serving, &card, "windlass:approve", "U1");
    assert!(told.contains("approved"), "{told}");
    serving.await_status(&run, "completed");
    let over = office.await_card("C9", "approved by ann");
    assert_eq!(over["ts"], card["ts"], "the same message");
    assert!(!over["blocks"].to_string().contains("windlass:approve"), "no buttons are left");
    until("the answer to the one who clicked", || {
        let room = office.room();
        room.whispers.iter().any(|w| w["user"] == "U1" && w["text"] == told.as_str()).then_some(())
    });
    let on_record = until("both forms on record", || Some(shown(&serving)).filter(|all| all.len() == 2));
    for (event, message) in on_record.iter().zip([&card, &over]) {
        let exact = json!({ "text": message["text"], "blocks": message["blocks"] }).to_string();
        assert_eq!(text(event, "card"), exact, "exactly what was shown");
        assert_eq!(text(event, "place"), format!("C9/{}", text(&card, "ts")));
    }
    let decided = &events(&serving, "approval:decided")[0];
    assert_eq!(decided["card"], on_record[0]["card_hash"], "the decision names the card it was made on");
    assert_eq!(office.cards("C9").len(), 1);
}

#[test]
fn a_card_that_nobody_decided_says_how_it_ended() {
    let office = Office::open();
    let serving = office.serve("channel: C9");
    start(&serving, "soon");
    let card = office.await_card("C9", "Now?");
    let expired = office.await_card("C9", "Expired: nobody decided in time");
    assert_eq!((&card["ts"], office.count("chat.postMessage")), (&expired["ts"], 1));
    // The button is gone; a click on the old one is too late, and on record.
    let told = click(&serving, &card, "windlass:approve", "U1");
    assert!(told.contains("does not count") && told.contains("expired"), "{told}");
    let run = start(&serving, "ask");
    let open = office.await_card("C9", "Really?");
    serving.post(&format!("/v1/runs/{run}/cancel"), &[], b"{}");
    office.await_card("C9", "Withdrawn");
    let told = click(&serving, &open, "windlass:approve", "U1");
    assert!(told.contains("does not count") && told.contains("already_decided"), "{told}");
    let refused = events(&serving, "approval:refused");
    let refused: Vec<Value> =
        refused.iter().map(|e| json!([e["decided_by"], e["refusal"], e["channel"]])).collect();
    assert_eq!(refused, [json!(["ann", "expired", "slack"]), json!(["ann", "already_decided", "slack"])]);
}

#[test]
fn nothing_in_an_action_speaks_to_slack_and_policys_rule_stands_there() {
    let office = Office::open();
    let project = office.project("channel: C9");
    let rules = "permit (principal, action, resource);
        @id(\"two-eyes\") @approval(\"tier: high\") @reason(\"look <!here> first\")
        forbid (principal, action == Windlass::Action::\"transform\", resource) unless { context.approvals >= 1 };";
    project.write("policy/a.cedar", rules);
    let serving = crate::wire::Serving::new(project, &[crate::office::BOOK]);
    start(&serving, "act");
    let card = office.await_card("C9", "two-eyes");
    let all = card["blocks"].to_string();
    assert!(all.contains("look &lt;!here&gt; first") && all.contains("&lt;!channel&gt; &amp;"), "{all}");
    assert!(!all.contains("<!") && all.contains("high tier"), "{all}");
}

#[test]
fn a_tier_that_is_not_decided_in_slack_has_a_link_and_no_buttons() {
    let office = Office::open();
    let serving = office.serve("channel: C9, link_only: [low, medium, high]");
    start(&serving, "ask");
    let card = office.await_card("C9", "This is not decided here");
    let all = card["blocks"].to_string();
    assert!(!all.contains("windlass:approve") && all.contains("windlass approve apr_"), "{all}");
    let link = all.split("<https://w.example").nth(1).unwrap().split('|').next().unwrap();
    let full = serving.get(link).is(200).text;
    assert!(full.contains("Really?") && full.starts_with("approval apr_"), "{full}");
}

/// The tier of an `approve … for:` is the highest risk of what it is for, and Slack's setting goes by it.
#[test]
fn an_approval_for_a_step_of_high_risk_is_not_decided_where_high_is_not() {
    let office = Office::open();
    let project = office.project("channel: C9, link_only: [high]");
    let book = "
name: for
pipelines:
  risky:
    steps:
      - { id: gate, approve: { message: 'Risky?', for: [first, switch] } }
      - { id: first, run: 'true' }
      - { id: switch, run: 'true', risk: high }
  calm:
    steps:
      - { id: gate, approve: { message: 'Calm?', for: [switch] } }
      - { id: switch, run: 'true', risk: medium }
";
    let serving = crate::wire::Serving::new(project, &[book]);
    start(&serving, "risky");
    let card = office.await_card("C9", "Risky?");
    let all = card["blocks"].to_string();
    assert!(all.contains("high tier") && all.contains("This is not decided here"), "{all}");
    assert!(!all.contains("windlass:approve"), "{all}");
    start(&serving, "calm");
    let card = office.await_card("C9", "Calm?");
    let all = card["blocks"].to_string();
    assert!(all.contains("medium tier") && all.contains("windlass:approve"), "{all}");
}

#[test]
fn people_are_reminded_then_others_are_asked_and_every_card_is_brought_up_to_date() {
    let office = Office::open();
    let slack = "channel: C9, channels: { sre: C7 }, remind: 1s, escalate: { after: 1s, channel: C8 }";
    let serving = office.serve(slack);
    let run = start(&serving, "ask");
    let first = office.await_card("C9", "windlass:approve");
    let second = office.await_card("C8", "Nobody decided yet");
    until("a reminder below the card", || {
        let room = office.room();
        let reminds = |m: &Value| m["thread_ts"] == first["ts"] && text(m, "text").starts_with("Still waits");
        room.messages.iter().any(reminds).then_some(())
    });
    assert!(!events(&serving, "approval:reminded").is_empty());
    let told = click(&serving, &second, "windlass:approve", "U2");
    assert!(told.contains("approved"), "{told}");
    serving.await_status(&run, "completed");
    for channel in ["C9", "C8"] {
        office.await_card(channel, "approved by bob");
    }
    assert_eq!((office.cards("C9").len(), office.cards("C8").len(), office.cards("C7").len()), (1, 1, 0));
    let kinds: Vec<String> = shown(&serving).iter().map(|e| text(e, "showing").to_owned()).collect();
    assert!(
        ["requested", "escalated", "reminded"].iter().all(|kind| kinds.iter().any(|k| k == kind)),
        "{kinds:?}"
    );
}

#[test]
fn a_group_has_a_channel_of_its_own() {
    let office = Office::open();
    let project = office.project("channel: C9, channels: { sre: C7 }");
    let serving = crate::wire::Serving::new(
        project,
        &[
            "name: own\npipelines: { own: { steps: [{ id: ok, approve: { message: Ok?, approvers: [sre] } }] } }\n",
        ],
    );
    start(&serving, "own");
    office.await_card("C7", "Ok?");
    assert!(office.cards("C9").is_empty());
}
