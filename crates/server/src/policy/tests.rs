//! What rules are taken, what is refused, and what they say.

use super::question::{About, Question};
use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use windlass_core::approval::Tier;
use windlass_core::budget::Amount;
use windlass_core::policy::{Risk, Verdict};
use windlass_core::receipt::Action;
use windlass_core::run::Source as Trigger;
use windlass_core::time::{Millis, Span};
use windlass_engine::port::Policy as _;
use windlass_runbook::problem::Source;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn rules(text: &str) -> Rules {
    Rules::of(vec![Source { name: "a.cedar".into(), text: text.into() }])
        .unwrap_or_else(|problems| panic!("{problems}"))
}

/// What is wrong with a text, as a user reads it.
fn refused(text: &str) -> String {
    match Rules::of(vec![Source { name: "a.cedar".into(), text: text.into() }]) {
        Ok(_) => panic!("this is taken: {text}"),
        Err(problems) => problems.to_string(),
    }
}

fn question(tool: &str, target: &str, fields: Value, risk: Risk) -> Question {
    let method = fields["method"].as_str().unwrap_or("GET").to_lowercase();
    let operation = if tool == "http" { name(&method) } else { name(tool.rsplit('.').next().unwrap()) };
    let writes = windlass_runbook::tools::Tools::OWN.writes(tool, operation.as_str());
    let action = Action::new(name(tool), operation, name(target), fields, risk).unwrap();
    Question {
        purpose: None,
        run: RunId(1),
        step: Some(name("s")),
        tool: name(tool),
        action_hash: Some(action.hash()),
        action: Some(action),
        writes,
        agreed: Vec::new(),
        about: About {
            tenant: name("default"),
            namespace: name("default"),
            pipeline: name("triage"),
            undoes: Vec::new(),
            runbook: name("ops"),
            runbook_hash: Digest([3; 32]),
            source: Trigger::Cli,
            requester: Some(name("ann")),
            parent: None,
            at: Millis(1_763_380_800_000),
            spent: Amount::default(),
        },
    }
}

fn post(channel: &str) -> Question {
    question("slack.post", channel, json!({ "channel": channel, "text": "hello" }), Risk::Low)
}

const ALL: &str = "@id(\"all\") permit (principal, action, resource);\n";
const TWO: &str = "
@id(\"two\") @reason(\"production needs two people\")
@approval(\"tier: high, approvers: sre or ops, two_person, expires: 30m\")
forbid (principal, action in Windlass::Action::\"write\", resource)
when { context.risk == \"high\" }
unless { context.approvals >= 2 };
";

#[test]
fn what_no_rule_permits_is_denied() {
    let rules = rules("permit (principal, action == Windlass::Action::\"slack.post\", resource);");
    assert_eq!(rules.decide(&post("#a")).verdict, Verdict::Allow);
    assert_eq!(rules.decide(&post("#a")).rules, ["a.cedar:1"]);
    let merge =
        question("github.merge", "acme/shop/7", json!({ "repo": "acme/shop", "number": 7 }), Risk::High);
    let no = rules.decide(&merge);
    assert_eq!(no.verdict, Verdict::Deny);
    assert_eq!(no.reasons, ["no rule permits `github.merge` on `acme/shop/7`"]);
    assert_eq!((no.policy_version, no.action_hash), (rules.version, merge.action_hash));
}

#[test]
fn a_forbid_wins_and_says_why() {
    let text = format!(
        "{ALL}@id(\"quiet\") @reason(\"#prod is quiet\")
        forbid (principal, action == Windlass::Action::\"slack.post\", resource)
        when {{ context.fields.channel == \"#prod\" }};"
    );
    let rules = rules(&text);
    let no = rules.decide(&post("#prod"));
    assert_eq!(
        (no.verdict, no.rules, no.reasons),
        (Verdict::Deny, vec!["quiet".into()], vec!["#prod is quiet".into()])
    );
    assert_eq!(rules.decide(&post("#dev")).verdict, Verdict::Allow);
}

#[test]
fn a_rule_with_approval_asks_humans_and_is_content_when_they_agreed() {
    let rules = rules(&format!("{ALL}{TWO}"));
    let mut risky = post("#a");
    risky.action.as_mut().unwrap().risk = Risk::High;
    let asks = rules.decide(&risky);
    assert_eq!((asks.verdict, asks.approvals), (Verdict::NeedsApproval, 0));
    assert_eq!((asks.tier, asks.count, asks.two_person), (Some(Tier::High), Some(2), Some(true)));
    assert_eq!(asks.approvers, Some(vec![name("sre"), name("ops")]));
    assert_eq!(asks.expires, Some(Span::mins(30)));
    assert_eq!((asks.rules, asks.reasons), (vec!["two".into()], vec!["production needs two people".into()]));
    // One human is not two, nor is the same one twice, nor one who was asked by another policy.
    risky.agreed =
        vec![(name("bob"), rules.version), (name("bob"), rules.version), (name("cy"), Digest([9; 32]))];
    assert_eq!((rules.decide(&risky).verdict, rules.decide(&risky).approvals), (Verdict::NeedsApproval, 1));
    risky.agreed.push((name("cy"), rules.version));
    let yes = rules.decide(&risky);
    assert_eq!((yes.verdict, yes.approvals, yes.rules), (Verdict::Allow, 2, vec!["all".into()]));
}

#[test]
fn nobody_is_asked_about_what_is_denied_anyway() {
    let mut risky = post("#a");
    risky.action.as_mut().unwrap().risk = Risk::High;
    assert_eq!(rules(TWO).decide(&risky).verdict, Verdict::Deny, "nothing permits it");
    let no = "forbid (principal, action, resource) when { context.tool == \"slack.post\" };";
    assert_eq!(rules(&format!("{ALL}{TWO}{no}")).decide(&risky).verdict, Verdict::Deny);
}

#[test]
fn several_rules_that_ask_come_to_the_strictest() {
    let ask = |id: &str, with: &str, count: u32| {
        format!(
            "@id(\"{id}\") @approval(\"{with}\") forbid (principal, action, resource) unless {{ context.approvals >= {count} }};\n"
        )
    };
    let both = rules(&format!(
        "{ALL}{}{}",
        ask("x", "tier: low, expires: 1h", 3),
        ask("y", "tier: high, approvers: sre", 1)
    ));
    let asks = both.decide(&post("#a"));
    assert_eq!((asks.tier, asks.count, asks.approvers), (Some(Tier::High), Some(3), Some(vec![name("sre")])));
    // Approvers that exclude each other are nobody, and nobody must not mean anybody.
    let apart = rules(&format!("{ALL}{}{}", ask("x", "approvers: dev", 1), ask("y", "approvers: sre", 1)));
    let no = apart.decide(&post("#a"));
    assert_eq!(no.verdict, Verdict::Deny);
    assert!(no.reasons[0].contains("x, y"), "{:?}", no.reasons);
}

#[test]
fn a_rule_that_fails_is_a_no_and_not_skipped() {
    // Cedar alone would skip the rule that overflows, and allow.
    let text = format!(
        "{ALL}forbid (principal, action, resource) when {{ context.budget.tokens * 9223372036854775807 > 1 }};"
    );
    let rules = rules(&text);
    let mut asked = post("#a");
    assert_eq!(rules.decide(&asked).verdict, Verdict::Allow);
    asked.about.spent.tokens = 2;
    let no = rules.decide(&asked);
    assert_eq!(no.verdict, Verdict::Deny);
    assert!(no.reasons[0].contains("could not be evaluated"), "{:?}", no.reasons);
    // The same in a rule that asks humans.
    let text = format!(
        "{ALL}@approval(\"\") forbid (principal, action, resource) when {{ context.budget.tokens * 9223372036854775807 > 1 }} unless {{ context.approvals >= 1 }};"
    );
    assert_eq!(self::rules(&text).decide(&asked).verdict, Verdict::Deny);
}

#[test]
fn an_action_that_does_not_fit_the_schema_is_a_no() {
    let rules = rules(ALL);
    let odd = |fields| question("github.create_pr", "acme/shop/x", fields, Risk::Low);
    let good = json!({ "repo": "a/b", "title": "t", "head": "h", "base": "main", "draft": true });
    assert_eq!(rules.decide(&odd(good)).verdict, Verdict::Allow);
    for fields in [
        json!({ "repo": "a/b", "title": "t", "head": "h", "base": "main", "draft": "yes" }),
        json!({ "repo": "a/b", "title": "t", "head": "h" }),
        json!({}),
        json!(null),
    ] {
        assert_eq!(rules.decide(&odd(fields.clone())).verdict, Verdict::Deny, "{fields}");
    }
}

#[test]
fn deep_values_are_tags_of_the_target_and_secrets_are_shown_by_name() {
    let text = format!(
        "{ALL}forbid (principal, action == Windlass::Action::\"servicenow.update\", resource)
        when {{ resource.hasTag(\"fields.state\") && resource.getTag(\"fields.state\") == \"resolved\" }};
        forbid (principal, action == Windlass::Action::\"http\", resource)
        unless {{ context.fields has bearer && context.fields.bearer == \"${{{{ secrets.DEPLOY }}}}\" }};"
    );
    let rules = rules(&text);
    let update = |state: &str| {
        let fields = json!({ "table": "incident", "sys_id": "42", "fields": { "state": state } });
        rules.decide(&question("servicenow.update", "incident/42", fields, Risk::Medium)).verdict
    };
    assert_eq!((update("resolved"), update("open")), (Verdict::Deny, Verdict::Allow));
    let call = |bearer| {
        let fields = json!({ "url": "https://x", "method": "POST", "bearer": bearer });
        rules.decide(&question("http", "https://x", fields, Risk::Medium)).verdict
    };
    assert_eq!(call(json!({ "$secret": "DEPLOY" })), Verdict::Allow);
    assert_eq!(call(json!({ "$secret": "OTHER" })), Verdict::Deny);
}

#[test]
fn reads_writes_and_what_stays_here_are_groups() {
    let rules = rules(
        "permit (principal, action in [Windlass::Action::\"read\", Windlass::Action::\"local\"], resource);",
    );
    let http =
        |method| question("http", "https://x", json!({ "url": "https://x", "method": method }), Risk::Low);
    assert_eq!(rules.decide(&http("GET")).verdict, Verdict::Allow);
    assert_eq!(rules.decide(&http("DELETE")).verdict, Verdict::Deny);
    let push = question("git.push", "origin/main", json!({}), Risk::High);
    assert_eq!(rules.decide(&push).verdict, Verdict::Deny);
    let commit = question("git.commit", ".", json!({ "message": "m" }), Risk::Low);
    assert_eq!(rules.decide(&commit).verdict, Verdict::Allow);
    let unknown = question("own.tool", "x", json!({ "a": 1 }), Risk::Low);
    assert_eq!(rules.decide(&unknown).verdict, Verdict::Deny, "what nobody knows writes");
    let shell = Question { step: None, action: None, action_hash: None, tool: name("shell"), ..post("#a") };
    assert_eq!(rules.decide(&shell).verdict, Verdict::Allow);
}

#[test]
fn an_action_is_asked_of_the_rules_that_name_it_its_groups_or_none() {
    let of = |id: &str, head: &str| format!("@id(\"{id}\") forbid (principal, {head}, resource);\n");
    let action = |name: &str| format!("Windlass::Action::\"{name}\"");
    let text = [
        of("any", "action"),
        of("own", &format!("action == {}", action("slack.post"))),
        of("other", &format!("action == {}", action("slack.update"))),
        of("family", &format!("action in {}", action("slack"))),
        of("group", &format!("action in [{}, {}]", action("github"), action("write"))),
        of("listed", &format!("action in [{}, {}]", action("github.merge"), action("slack.post"))),
        of("elsewhere", &format!("action in [{}, {}]", action("read"), action("github"))),
        ALL.to_owned(),
    ];
    let rules = rules(&text.concat());
    assert_eq!(rules.decide(&post("#a")).rules, ["any", "family", "group", "listed", "own"]);
    let merge =
        question("github.merge", "acme/shop/7", json!({ "repo": "acme/shop", "number": 7 }), Risk::High);
    assert_eq!(rules.decide(&merge).rules, ["any", "elsewhere", "group", "listed"]);
    // Asked again, of what was remembered.
    assert_eq!(rules.decide(&post("#a")).rules, ["any", "family", "group", "listed", "own"]);
}

#[test]
fn rules_can_look_at_who_asks_and_when() {
    let rules = rules(
        "permit (principal == Windlass::User::\"ann\", action, resource)
        when { context.time.hour == 12 && context.time.weekday == \"monday\" && context.time.date == \"2025-11-17\" };
        permit (principal == Windlass::Service::\"scheduled\", action, resource);
        permit (principal is Windlass::Run, action, resource);",
    );
    let mut asked = post("#a");
    assert_eq!(rules.decide(&asked).verdict, Verdict::Allow);
    asked.about.at = Millis(asked.about.at.0 + 3_600_000);
    assert_eq!(rules.decide(&asked).verdict, Verdict::Deny);
    asked.about.requester = None;
    assert_eq!(rules.decide(&asked).verdict, Verdict::Deny);
    asked.about.source = Trigger::Scheduled;
    assert_eq!(rules.decide(&asked).verdict, Verdict::Allow);
    asked.about = About { source: Trigger::Call, parent: Some(RunId(7)), ..asked.about };
    assert_eq!(rules.decide(&asked).verdict, Verdict::Allow);
}

#[test]
fn mistakes_are_refused_with_file_line_and_caret() {
    let bad = refused("permit (principal, action, resource);\npermit (principal, action resource);");
    assert!(bad.contains("a.cedar:2") && bad.contains('^'), "{bad}");
    for (text, said) in [
        ("@note(\"x\") permit (principal, action, resource);", "`@note` is not known"),
        ("@reson(\"x\") permit (principal, action, resource);", "did you mean `reason`?"),
        ("@reason(\"\") permit (principal, action, resource);", "is empty"),
        (
            "@id(\"a\") permit (principal, action, resource); @id(\"a\") forbid (principal, action, resource);",
            "two rules are called `a`",
        ),
        ("permit (principal == ?principal, action, resource);", "templates"),
        ("permit (principal, action == Windlass::Action::\"slak.post\", resource);", "slak.post"),
        ("permit (principal, action, resource) when { context.fields.channel == \"x\" };", "channel"),
        ("permit (principal, action, resource) when { context.rsik == \"x\" };", "rsik"),
        ("permit (principal, action, resource) when { context.risk == 1 };", "type"),
        ("permit (principal, action, resource) when { resource.getTag(\"x\") == \"y\" };", "tag"),
        ("permit (principal, action, resource) when { false };", "impossible"),
        ("permit (principal, action, resource) when { context.approvals >= 1 };", "nobody would be asked"),
        ("@approval(\"\") permit (principal, action, resource);", "is for `forbid`"),
        ("@approval(\"\") forbid (principal, action, resource);", "ends in `unless"),
        (
            "@approval(\"\") forbid (principal, action, resource) unless { context.approvals > 1 };",
            "ends in `unless",
        ),
        (
            "@approval(\"\") forbid (principal, action, resource) unless { context.approvals >= 0 };",
            "ends in `unless",
        ),
        (
            "@approval(\"\") forbid (principal, action, resource) unless { context.approvals >= 17 };",
            "ends in `unless",
        ),
        (
            "@approval(\"\") forbid (principal, action, resource) when { context.approvals >= 1 };",
            "ends in `unless",
        ),
        (
            "@approval(\"\") forbid (principal, action, resource) when { context.approvals < 9 } unless { context.approvals >= 1 };",
            "ends in `unless",
        ),
        (
            "@approval(\"count: 2\") forbid (principal, action, resource) unless { context.approvals >= 1 };",
            "says count 2",
        ),
        (
            "@approval(\"two_person\") forbid (principal, action, resource) unless { context.approvals >= 1 };",
            ">= 2",
        ),
        (
            "@approval(\"tire: low\") forbid (principal, action, resource) unless { context.approvals >= 1 };",
            "did you mean `tier`?",
        ),
    ] {
        let bad = refused(text);
        assert!(bad.contains(said) && bad.contains("a.cedar:1"), "{text}\n{bad}");
    }
}

#[test]
fn hostile_text_is_refused_and_bounded() {
    let deep = format!(
        "permit (principal, action, resource) when {{ {}true{} }};",
        "(".repeat(50_000),
        ")".repeat(50_000)
    );
    let nots = format!("permit (principal, action, resource) when {{ {}true }};", "! ".repeat(50_000));
    let ifs = format!(
        "permit (principal, action, resource) when {{ {}true }};",
        "if true then false else ".repeat(5_000)
    );
    for text in [deep, nots, ifs] {
        let shown = refused(&text);
        assert!(shown.contains("levels deep") && shown.len() < 10_000, "{shown}");
    }
    // A chain is as deep as it is long. What is allowed of each kind is read on a thread like any other.
    let rule = |what: String| format!("permit (principal, action, resource) when {{ {what} }};\n");
    let chain = |first: &str, link: &str, n: usize| rule(format!("{first}{}", link.repeat(n)));
    for (first, link) in [
        ("context", ".a"),
        ("context", "[\"a\"]"),
        ("true", " && true"),
        ("true", " || true"),
        ("1", " + 1"),
        ("1", " - 1"),
        ("1", " * 1"),
    ] {
        let shown = refused(&chain(first, link, 5_000));
        assert!(shown.contains("operators") && shown.len() < 10_000, "{link}: {shown}");
        // It may be wrong for another reason: what matters is that it is read to its end.
        let long = chain(first, link, rules::CHAIN_MAX - 8);
        let many = Rules::of(vec![Source { name: "a.cedar".into(), text: long.repeat(3) }]);
        assert!(!many.err().is_some_and(|problems| problems.to_string().contains("operators")), "{link}");
    }
    // Brackets that are text are none, and prefixes apart are not in a row.
    let quoted = format!(
        "// {}\npermit (principal, action, resource) when {{ resource.id != \"\\\"{}\" }};",
        "(".repeat(100),
        "[".repeat(100)
    );
    assert!(
        !Rules::of(vec![Source { name: "a.cedar".into(), text: quoted }])
            .err()
            .is_some_and(|problems| problems.to_string().contains("levels deep"))
    );
    let many = ALL.replace("@id(\"all\") ", "").repeat(rules::RULES_MAX + 1);
    assert!(refused(&many).contains("more than 2000 rules"));
    let long = format!("@reason(\"{}\") permit (principal, action, resource);", "x".repeat(600));
    assert!(refused(&long).contains("at most 512"));
}

#[test]
fn an_action_beyond_the_bounds_is_a_no() {
    let rules = rules(ALL);
    let wide = json!({ "value": vec![1; evaluate::VALUES_MAX + 1] });
    assert_eq!(rules.decide(&question("transform", "value", wide, Risk::Low)).verdict, Verdict::Deny);
    let mut deep = json!(1);
    for _ in 0..40 {
        deep = json!([deep]);
    }
    assert_eq!(
        rules.decide(&question("transform", "value", json!({ "value": deep }), Risk::Low)).verdict,
        Verdict::Deny
    );
    let twice = json!({ "value": { "a.b": 1, "a": { "b": 2 } } });
    assert_eq!(rules.decide(&question("transform", "value", twice, Risk::Low)).verdict, Verdict::Deny);
}

#[test]
fn a_folder_that_is_configured_and_broken_denies_everything_until_it_is_mended() {
    let dir = tempfile::tempdir().unwrap();
    let policy = InForce::of(&dir.path().join("absent"));
    let no = policy.decide(&post("#a"));
    assert_eq!((no.verdict, no.policy_version), (Verdict::Deny, policy.version()));
    assert!(no.reasons[0].contains("cannot be read"), "{:?}", no.reasons);

    let file = dir.path().join("a.cedar");
    std::fs::write(&file, "permit (principal, action resource);").unwrap();
    let policy = InForce::of(dir.path());
    let broken = policy.version();
    let no = policy.decide(&post("#a"));
    assert!(no.verdict == Verdict::Deny && no.reasons[0].contains("a.cedar:1"), "{:?}", no.reasons);
    assert!(policy.problem().is_some() && policy.shown().error.is_some());
    assert!(!policy.reload(), "nothing changed");

    std::fs::write(&file, ALL).unwrap();
    assert!(policy.reload() && policy.version() != broken);
    assert_eq!(policy.decide(&post("#a")).verdict, Verdict::Allow);
    let good = policy.version();
    std::fs::remove_file(&file).unwrap();
    assert!(policy.reload());
    assert_eq!(policy.decide(&post("#a")).verdict, Verdict::Deny);
    std::fs::write(&file, ALL).unwrap();
    assert!(policy.reload() && policy.version() == good, "the same text is the same version");
}

#[test]
fn a_folder_is_found_only_where_it_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let places = [dir.path().to_path_buf()];
    let version = |named| InForce::find(named, &places).version();
    assert_eq!(version(None), builtin::VERSION);
    let folder = dir.path().join(FOLDER);
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("README.md"), "nothing yet").unwrap();
    assert_eq!(version(None), builtin::VERSION);
    // Whoever names a folder means it, whatever is in it.
    assert_ne!(version(Some(folder.as_path())), builtin::VERSION);
    std::fs::write(folder.join(schema::FILE), schema::text()).unwrap();
    assert!(InForce::find(None, &places).problem().unwrap().contains("has no policies"));
    std::fs::write(folder.join("a.cedar"), ALL).unwrap();
    assert!(InForce::find(None, &places).problem().is_none());
}

#[test]
fn the_built_in_policy_allows_what_reads_or_stays_here() {
    let policy = InForce::builtin();
    let verdict = |tool: &str, fields| policy.decide(&question(tool, "x", fields, Risk::Low)).verdict;
    assert_eq!(verdict("slack.post", json!({})), Verdict::Deny);
    assert_eq!(verdict("http", json!({ "method": "POST" })), Verdict::Deny);
    assert_eq!(verdict("http", json!({})), Verdict::Allow);
    assert_eq!(verdict("servicenow.get", json!({})), Verdict::Allow);
    assert_eq!(verdict("git.commit", json!({})), Verdict::Allow);
    assert_eq!(verdict("own.tool", json!({})), Verdict::Deny);
}

#[test]
fn what_windlass_init_makes_is_taken_and_says_what_the_built_in_policy_says() {
    let files = [("base.cedar", STARTER)];
    let sources = files.map(|(name, text)| Source { name: name.into(), text: text.into() });
    let rules = Rules::of(sources.to_vec()).unwrap_or_else(|problems| panic!("{problems}"));
    for tool in windlass_runbook::tools::TOOLS {
        let fields: serde_json::Map<_, _> = (tool.fields.keys.iter())
            .filter(|key| key.required)
            .map(|key| (key.name.to_owned(), json!("x")))
            .collect();
        let asked = question(tool.name, "x", json!(fields), tool.risk);
        let same = rules.decide(&asked).verdict == builtin::decide(&asked).verdict;
        assert!(same, "{}: {:?}", tool.name, rules.decide(&asked).reasons);
    }
}

#[test]
fn cases_say_what_is_not_as_expected() {
    let rules = Edition::Rules(Box::new(rules(&format!("{ALL}{TWO}"))));
    let text = "
cases:
  - name: low risk goes
    action: { tool: slack.post, fields: { channel: '#a', text: hi } }
    expect: allow
  - name: merges need two
    action: { tool: github.merge, fields: { repo: acme/shop, number: 7 } }
    run: { requester: ann, at: '2026-11-16T10:00:00Z' }
    expect: { verdict: needs_approval, tier: high, count: 2, two_person: true, approvers: [ops, sre], rules: [two], reasons: [two people] }
  - name: two agreed
    action: { tool: github.merge, fields: { repo: acme/shop, number: 7 } }
    approved_by: [bob, cy]
    expect: allow
  - name: wrong
    action: { tool: slack.post, fields: { channel: '#a', text: hi } }
    expect: { verdict: deny, reasons: [because] }
";
    let cases = cases::parse("cases.yaml", text).unwrap_or_else(|problems| panic!("{problems}"));
    let wrong: Vec<Vec<String>> = cases.iter().map(|case| case.run(&rules).1).collect();
    assert!(wrong[..3].iter().all(Vec::is_empty), "{wrong:?}");
    assert_eq!(wrong[3].len(), 2, "{wrong:?}");
    for (text, said) in [
        ("cases: []", "1 to"),
        ("case: []", "not known"),
        ("cases: [{ name: a }]", "missing field"),
        ("cases: [{ name: a, action: { tool: x, feilds: {} }, expect: allow }]", "feilds"),
        ("cases: [{ name: a, action: { tool: x }, expect: perhaps }]", "perhaps"),
    ] {
        let bad = cases::parse("cases.yaml", text).unwrap_err().to_string();
        assert!(bad.contains(said) && bad.contains("cases.yaml:1"), "{text}: {bad}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever an action holds, the answer is one of the three, and rules that forbid everything allow nothing.
    #[test]
    fn no_action_gets_past_a_rule_that_forbids_everything(
        tool in "(slack\\.post|http|github\\.merge|own\\.tool|transform|model|git\\.push)",
        target in "\\PC{1,40}", key in "\\PC{0,12}", text in "\\PC{0,40}", number in any::<i64>(), flag in any::<bool>(),
    ) {
        let fields = json!({ "channel": text, key: [number, flag, null, { "$secret": text }], "url": target, "method": "POST" });
        let Ok(target) = Name::new(&target) else { return Ok(()) };
        let asked = question(&tool, target.as_str(), fields, Risk::Low);
        let forbid = rules("permit (principal, action, resource);\nforbid (principal, action, resource);");
        prop_assert_eq!(forbid.decide(&asked).verdict, Verdict::Deny);
        let decision = rules(ALL).decide(&asked);
        prop_assert!(decision.action_hash == asked.action_hash && !decision.reasons.is_empty());
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "\\PC{0,120}") {
        let _ = Rules::of(vec![Source { name: "a.cedar".into(), text }]);
    }
}
