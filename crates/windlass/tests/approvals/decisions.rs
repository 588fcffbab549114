//! Deciding in Slack: the window that asks why, several humans, and a race.

use crate::office::{BOOK, Office, click, events, start, submit};
use crate::support::{text, until};
use crate::wire::Serving;
use serde_json::{Value, json};

/// Who was refused, why, and where.
fn refusals(serving: &Serving) -> Vec<Value> {
    let all = events(serving, "approval:refused");
    all.iter().map(|e| json!([e["decided_by"], e["refusal"], e["channel"]])).collect()
}

#[test]
fn a_rejection_asks_why_in_a_window() {
    let office = Office::open();
    let serving = office.serve("channel: C9");
    let run = start(&serving, "ask");
    let card = office.await_card("C9", "windlass:reject");
    // Whoever is nobody here gets no window, an answer of their own, and stands in the audit.
    let nobody = click(&serving, &card, "windlass:reject", "U9");
    assert!(nobody.contains("nobody here"), "{nobody}");
    until("the answer to nobody", || {
        office.room().whispers.iter().any(|w| w["user"] == "U9" && w["channel"] == "C9").then_some(())
    });
    assert!(office.room().views.is_empty());
    click(&serving, &card, "windlass:reject", "U2");
    let opened = office.room().views[0].clone();
    assert_eq!((&opened["view"]["type"], opened["trigger_id"].is_string()), (&json!("modal"), true));
    let view = &opened["view"];
    assert_eq!(serving.await_status(&run, "awaiting_approval")["status"], "awaiting_approval");
    // Somebody else's hash, and somebody who is nobody: the window stays and says why.
    let mut other = view.clone();
    let held = text(view, "private_metadata").to_owned();
    let hash = held.split(':').nth(1).unwrap().to_owned();
    other["private_metadata"] = json!(held.replace(&hash, &"0".repeat(64)));
    for (view, user, word) in [(&other, "U2", "hash_mismatch"), (view, "U9", "nobody here")] {
        let said = submit(&serving, view, user, "no");
        assert_eq!(said["response_action"], "errors", "{said}");
        assert!(text(&said["errors"], "reason").contains(word), "{said}");
    }
    let said = submit(&serving, view, "U2", "not on a <Friday>");
    assert_eq!(said, json!({ "response_action": "clear" }));
    let failed = serving.await_status(&run, "failed");
    assert!(failed["error"]["message"].as_str().unwrap().contains("not on a <Friday>"), "{failed}");
    let over = office.await_card("C9", "rejected by bob");
    assert!(over["blocks"].to_string().contains("not on a &lt;Friday&gt;"), "{over}");
    let expected = [
        json!(["slack:U9", "not_human", "slack"]),
        json!(["bob", "hash_mismatch", "slack"]),
        json!(["slack:U9", "not_human", "slack"]),
    ];
    assert_eq!(refusals(&serving), expected);
    let decided = &events(&serving, "approval:decided")[0];
    assert!(decided["card"].is_string(), "a window knows the card it was opened from: {decided}");
}

fn two_persons(office: &Office) -> Serving {
    let project = office.project("channel: C9");
    let rules = "permit (principal, action, resource);
        @approval(\"two_person, approvers: tester or ann or bob\")
        forbid (principal, action == Windlass::Action::\"transform\", resource) unless { context.approvals >= 2 };";
    project.write("policy/a.cedar", rules);
    Serving::new(project, &[BOOK])
}

#[test]
fn two_humans_are_two_and_the_card_says_who_is_missing() {
    let office = Office::open();
    let serving = two_persons(&office);
    let run = start(&serving, "act");
    let card = office.await_card("C9", "windlass:approve");
    assert!(click(&serving, &card, "windlass:approve", "U3").contains("own_request"), "who asked may not");
    assert!(click(&serving, &card, "windlass:approve", "U1").contains("1 more needed"));
    let card = office.await_card("C9", "1 more needed");
    assert!(card["blocks"].to_string().contains("approved by ann"));
    let again = click(&serving, &card, "windlass:approve", "U1");
    assert!(again.contains("same_human"), "{again}");
    assert!(click(&serving, &card, "windlass:approve", "U2").contains("approved"));
    serving.await_status(&run, "completed");
    office.await_card("C9", "approved by bob");
    let expected = [json!(["tester", "own_request", "slack"]), json!(["ann", "same_human", "slack"])];
    assert_eq!(refusals(&serving), expected);
}

#[test]
fn of_a_click_and_a_command_at_once_the_first_holds() {
    let office = Office::open();
    let serving = office.serve("channel: C9");
    for _ in 0..4 {
        let run = start(&serving, "ask");
        let card = until("the card of this run", || {
            office.cards("C9").into_iter().find(|card| {
                let all = card["blocks"].to_string();
                all.contains(&run) && all.contains("windlass:approve")
            })
        });
        let page = serving.get("/v1/approvals?status=requested").is(200).json();
        let id = text(&page["items"][0], "id").to_owned();
        let (clicked, rejected) = std::thread::scope(|scope| {
            let clicked = scope.spawn(|| click(&serving, &card, "windlass:approve", "U1"));
            let words = ["reject", &id, "--reason", "no"];
            let rejected = serving.project.windlass(&words).status.success();
            (clicked.join().unwrap(), rejected)
        });
        let approved = !clicked.contains("does not count");
        assert_ne!(approved, rejected, "{clicked}");
        serving.await_status(&run, if approved { "completed" } else { "failed" });
        assert_eq!(
            events(&serving, "approval:decided").iter().filter(|e| e["pipeline_id"] == run.as_str()).count(),
            1
        );
        let refused = events(&serving, "approval:refused");
        assert_eq!(refused.iter().filter(|e| e["pipeline_id"] == run.as_str()).count(), 1);
    }
}
