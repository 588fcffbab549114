//! What a card shows, and that nothing in it can be taken for something else.

use super::blocks::{BLOCKS_MAX, Form, Message, TEXT_UNITS_MAX, message, notice, reminder};
use super::text::{is_hidden, units, visible};
use super::*;
use proptest::prelude::*;
use serde_json::json;
use windlass_core::approval::{Decided, Status, Verdict};
use windlass_core::digest::Digest;
use windlass_core::id::RunId;
use windlass_core::receipt::Action;
use windlass_core::time::Millis;

const AT: Millis = Millis(1_763_245_800_000);

fn facts(action: Action) -> Facts {
    let approval = Approval {
        id: ApprovalId(1),
        run: RunId(2),
        step: Name::clean("resolve"),
        status: Status::Requested,
        tier: Tier::Medium,
        two_person: true,
        count: 2,
        approvers: vec![Name::clean("sre")],
        action_hash: action.hash(),
        action: Some(action),
        policy_version: Digest([7; 32]),
        reasons: vec!["tickets are closed by two".to_owned()],
        requested_by: Name::clean("ann"),
        requested_at: AT,
        expires_at: Millis(AT.0 + 3_600_000),
        self_approval: false,
        message: Some("the agent says: trivial".to_owned()),
        reminders: 0,
        refusals: 0,
        decisions: Vec::new(),
        by_step: None,
        shown: Vec::new(),
        showings: 0,
        voided: None,
        changed_by: Vec::new(),
    };
    Facts {
        approval,
        tenant: Name::clean("default"),
        pipeline: Name::clean("triage"),
        rules: vec!["a.cedar#1".to_owned()],
        spent: Amount { usd_micros: 420_000, tokens: 1_234, ..Amount::default() },
        limits: Limits { usd_micros: Some(10_000_000), ..Limits::default() },
        before: BTreeMap::new(),
    }
}

fn action(fields: Value) -> Action {
    Action {
        tool: Name::clean("servicenow.update"),
        operation: Name::clean("update"),
        target: Name::clean("incident/17"),
        fields,
        risk: Risk::High,
    }
}

fn update() -> Facts {
    let fields = json!({ "table": "incident", "sys_id": "17",
        "fields": { "state": "resolved", "priority": "1", "notes": "first\nsecond" } });
    let read =
        json!({ "record": { "state": "new", "priority": "1", "owner": { "value": "x", "link": "y" } } });
    Facts { before: diff::record(&read), ..facts(action(fields)) }
}

fn blocks_of(facts: &Facts, form: &Form) -> Message {
    message(&Card::new(facts), &facts.approval, form)
}

/// All texts of a message.
fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().flat_map(texts).collect(),
        Value::Object(fields) => fields.values().flat_map(texts).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}

#[test]
fn the_text_says_everything_that_a_human_needs_and_is_always_the_same() {
    let facts = update();
    let hash = facts.approval.action_hash.to_string();
    let expected = format!(
        "approval apr_00000000000000000000000001
summary   servicenow.update on incident/17, with 5 values, compared with what the run read before
tool      servicenow.update (update)
target    incident/17
risk      high, tier medium
changes   + fields.notes:
            + | first
            + | second
          = fields.priority: \"1\"
          ~ fields.state: \"new\" → \"resolved\"
          + sys_id: \"17\"
          + table: \"incident\"
because   | tickets are closed by two
rules     a.cedar#1
says      | the agent says: trivial
needs     2 humans among sre, not the one who asked
cost      $0.42 of $10.00, 1234 tokens so far
asked     by ann at 2025-11-15T22:30:00.000Z
run       run_00000000000000000000000002 (triage)
step      resolve
expires   2025-11-15T23:30:00.000Z
policy    {policy}
hash      {short}
          {hash}
",
        policy = "07".repeat(32),
        short = &hash[..12],
    );
    assert_eq!(Card::new(&facts).text(), expected);
}

#[test]
fn slack_shows_the_same_lines_and_two_buttons_that_hold_the_action() {
    let facts = update();
    let message = blocks_of(&facts, &Form::default());
    assert!(message.decides && !message.cut);
    let shown = texts(&json!(message.blocks)).join("\n");
    for (_, row) in &Card::new(&facts).rows {
        for line in &row.lines {
            assert!(shown.contains(&text::mrkdwn(line)), "{line}\n{shown}");
        }
    }
    let buttons = message.blocks.last().unwrap();
    let value = format!("{}:{}", facts.approval.id, facts.approval.action_hash);
    for (n, action) in ["windlass:approve", "windlass:reject"].iter().enumerate() {
        let button = &buttons["elements"][n];
        assert_eq!((&button["action_id"], &button["value"]), (&json!(action), &json!(value)));
    }
    assert_eq!(serde_json::from_str::<Value>(&message.bytes()).unwrap()["blocks"], json!(message.blocks));
}

#[test]
fn who_decided_stands_there_and_what_is_over_has_no_buttons() {
    let mut facts = update();
    let decided = |by: &str, decision| Decided {
        by: Name::clean(by),
        decision,
        at: AT,
        reason: Some("why <!here>".to_owned()),
        channel: Channel::Slack,
        own_request: false,
    };
    facts.approval.decisions.push(decided("bob", Verdict::Approved));
    let open = blocks_of(&facts, &Form::default());
    let said = texts(&json!(open.blocks)).join("\n");
    assert!(open.decides && said.contains("approved by bob at 2025") && said.contains("1 more needed"));
    assert!(said.contains("why &lt;!here&gt;") && !said.contains("<!here>"));
    facts.approval.decisions.push(decided("cy", Verdict::Rejected));
    for (status, word) in [
        (Status::Rejected, "rejected by cy"),
        (Status::Approved, "Approved"),
        (Status::Expired, "expired at"),
        (Status::Cancelled, "withdrawn"),
    ] {
        facts.approval.status = status;
        let over = blocks_of(&facts, &Form::default());
        assert!(!over.decides && !over.bytes().contains("windlass:approve"), "{status}");
        assert!(texts(&json!(over.blocks)).join("\n").contains(word), "{status}");
    }
}

#[test]
fn what_is_decided_elsewhere_says_how_and_links_to_the_full_text() {
    let facts = update();
    let url = "https://windlass.example.com".to_owned();
    let form = Form { link_only: vec![Tier::Medium], public_url: Some(url.clone()), ..Form::default() };
    let linked = blocks_of(&facts, &form);
    assert!(!linked.decides && !linked.cut);
    let said = texts(linked.blocks.last().unwrap()).join("\n");
    let id = facts.approval.id;
    assert!(said.contains(&format!("<{url}/v1/approvals/{id}/card|The full text>")), "{said}");
    assert!(said.contains(&format!("windlass approve {id}")), "{said}");
    let high = Form { link_only: vec![Tier::High], ..form };
    assert!(blocks_of(&facts, &high).decides, "another tier");
}

/// Everything that Slack would refuse, or read as something else than text.
fn check_harmless(message: &Message) {
    assert!(message.blocks.len() <= BLOCKS_MAX, "{} blocks", message.blocks.len());
    let all = json!([message.text, message.blocks]);
    for text in texts(&all) {
        assert!(units(text) <= TEXT_UNITS_MAX, "{} units", units(text));
        assert!(!text.contains(['<', '>']), "{text}");
        assert!(!text.chars().any(|c| is_hidden(c) && c != '\n'), "{text:?}");
        for (at, _) in text.match_indices('&') {
            let rest = &text[at..];
            assert!(["&amp;", "&lt;", "&gt;"].iter().any(|known| rest.starts_with(known)), "{rest}");
        }
        if text.contains("```") {
            assert_eq!(text.matches('`').count(), 6, "a quotation ends where it should: {text}");
        }
    }
}

fn hostile(text: &str) -> Facts {
    let name = Name::clean(text);
    let mut facts = facts(Action {
        tool: name.clone(),
        operation: name.clone(),
        target: name.clone(),
        fields: json!({ text: text, "list": [text], "fields": { "state": text, text: { "x": text } } }),
        risk: Risk::Low,
    });
    facts.before = diff::record(&json!({ "record": { "state": text.repeat(2), "x": 1 } }));
    let approval = &mut facts.approval;
    approval.step = name.clone();
    approval.by_step = Some(name.clone());
    approval.approvers = vec![name.clone()];
    approval.requested_by = name.clone();
    approval.reasons = vec![text.to_owned()];
    approval.message = Some(text.to_owned());
    facts.pipeline = name;
    facts.rules = vec![text.to_owned()];
    facts
}

#[test]
fn hostile_texts_come_out_harmless() {
    for text in [
        "<!channel> <@U123> <https://evil.example|click>",
        "``` *Approved by the boss* ```",
        "`code` & <b>",
        "safe\u{202e}txt.exe\u{2066}\u{200b}",
        "line\r\nhash      000000000000\nrisk      low, tier low",
        "\u{1b}[2K\u{7}\u{0}\u{85}\u{2028}",
        "&lt;!everyone&gt;",
        "\\u{202e}",
        "\u{e0041}\u{e0042}\u{fe0f}",
    ] {
        let facts = hostile(text);
        let message = blocks_of(&facts, &Form::default());
        check_harmless(&message);
        check_harmless(&reminder(&Card::new(&facts), &facts.approval));
        let plain = Card::new(&facts).text();
        assert!(!plain.chars().any(|c| is_hidden(c) && c != '\n'), "{plain:?}");
        // No line of data begins as one of ours does.
        let risks = plain.lines().filter(|line| line.starts_with("risk")).count();
        let hashes = plain.lines().filter(|line| line.starts_with("hash")).count();
        assert_eq!((risks, hashes), (1, 1), "{plain}");
    }
    assert_eq!(visible("a\u{202e}b\tc\nd\u{0}"), "a\\u{202e}b\\tc\\nd\\u{0}");
}

#[test]
fn what_is_too_long_is_cut_says_so_and_is_not_decided_there() {
    for text in
        ["x".repeat(1 << 20), "<&`".repeat(1 << 18), "a\n".repeat(1 << 19), "\u{202e}".repeat(1 << 17)]
    {
        let facts = facts(action(json!({ "fields": { "notes": text } })));
        let message = blocks_of(&facts, &Form::default());
        check_harmless(&message);
        assert!(message.cut && !message.decides);
        let said = texts(&json!(message.blocks)).join("\n");
        assert!(said.contains("too long to be shown here") && said.contains("windlass approve"));
        let plain = Card::new(&facts).text();
        assert!(plain.len() <= windlass_core::approval::CARD_LEN_MAX, "{}", plain.len());
        assert!(plain.contains("not shown here"));
    }
    let many: serde_json::Map<String, Value> = (0..100_000).map(|n| (n.to_string(), json!(n))).collect();
    check_harmless(&blocks_of(&facts(action(Value::Object(many))), &Form::default()));
    // What an action may have at most is whole in the text.
    let largest = action(json!({ "notes": "x".repeat(windlass_core::receipt::FIELDS_LEN_MAX - 64) }));
    let plain = Card::new(&facts(largest)).text();
    assert!(!plain.contains("not shown here") && plain.contains(&"x".repeat(65_000)));
}

#[test]
fn many_and_long_decisions_fit() {
    let mut facts = hostile("<>&`");
    facts.approval.reasons = vec!["&".repeat(4_096); 64];
    facts.approval.status = Status::Approved;
    facts.approval.decisions = (0..16)
        .map(|n| Decided {
            by: Name::clean(&format!("u{n}")),
            decision: Verdict::Approved,
            at: AT,
            reason: Some("<".repeat(4_096)),
            channel: Channel::Cli,
            own_request: false,
        })
        .collect();
    check_harmless(&blocks_of(&facts, &Form::default()));
}

#[test]
fn a_redacted_action_is_said_to_be_redacted() {
    let mut facts = update();
    facts.approval.action = None;
    assert!(Card::new(&facts).text().contains("the action was redacted"));
    check_harmless(&blocks_of(&facts, &Form::default()));
}

#[test]
fn a_change_is_shown_beside_what_was_there() {
    let before =
        diff::record(&json!({ "json": { "result": { "a": 1, "b": { "value": "x" }, "c": "1\n2" } } }));
    let lines =
        diff::lines(&json!({ "fields": { "a": 2, "b": "x", "c": "1\n3", "d": [1], "e": {} } }), &before);
    let expected = [
        "~ fields.a: 1 → 2",
        "= fields.b: \"x\"",
        "~ fields.c:",
        "  - | 1",
        "  - | 2",
        "  + | 1",
        "  + | 3",
        "+ fields.d: [1]",
        "+ fields.e: {}",
    ];
    assert_eq!(lines, expected);
    // A name with a dot is not taken for a path, and one with quotes not for two.
    assert_eq!(
        diff::lines(&json!({ "a.b": 1, "c\": 2": 3 }), &before),
        ["+ \"a.b\": 1", "+ \"c\\\": 2\": 3"]
    );
    assert_eq!(diff::lines(&json!("text"), &before), ["+ \"text\""]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn nothing_of_the_data_is_read_by_slack(text in any_text()) {
        let facts = hostile(&text);
        check_harmless(&blocks_of(&facts, &Form::default()));
        check_harmless(&reminder(&Card::new(&facts), &facts.approval));
        check_harmless(&notice(&text, RunId(1), &text));
    }

    #[test]
    fn what_is_visible_has_nothing_hidden_and_what_was_visible_stays(text in any::<String>()) {
        let shown = visible(&text);
        prop_assert!(!shown.chars().any(is_hidden));
        if !text.chars().any(is_hidden) {
            prop_assert_eq!(shown, text);
        }
    }
}

/// Texts of what is dangerous, and of anything, of any length around the limits.
fn any_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("<!channel>".to_owned()),
        Just("```".to_owned()),
        Just("&".to_owned()),
        Just("\u{202e}".to_owned()),
        Just("\n".to_owned()),
        Just("😀".to_owned()),
        any::<String>(),
    ];
    (prop::collection::vec(piece, 0..6), 0..700_usize)
        .prop_map(|(pieces, times)| pieces.concat().repeat(times % 7 * (times / 50 + 1)))
}
