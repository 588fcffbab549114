//! What policy lets happen: nothing without a recorded allow, and what it asks for is asked for.

use crate::ALL;
use crate::support::{Project, status_of, step, text, until};
use serde_json::Value;
use std::collections::{HashMap, HashSet};

const BOOK: &str = "
name: book
pipelines:
  p:
    steps:
      - { id: a, run: echo a >> trace }
      - { id: b, run: echo b >> trace }
      - { id: t, transform: { value: { x: 1 } } }
      - { id: c, run: echo c >> trace }
    on_failure:
      - { id: f, transform: { value: '${{ error.code }}' } }
";

fn ask(action: &str, with: &str, count: u32) -> String {
    format!(
        "@id(\"ask\") @reason(\"it is asked for\") @approval(\"{with}\")
        forbid (principal, action == Windlass::Action::\"{action}\", resource)
        unless {{ context.approvals >= {count} }};\n"
    )
}

fn project(rules: &str) -> Project {
    let project = Project::with(BOOK);
    project.write("policy/a.cedar", format!("{ALL}{rules}"));
    project
}

/// E3: whatever was leased had an allow on record before, or an approval that policy asked for.
fn nothing_began_without_a_yes(project: &Project) {
    let mut tools: HashSet<(String, String)> = HashSet::new();
    let mut steps: HashSet<(String, String)> = HashSet::new();
    let mut tool_of: HashMap<(String, String), String> = HashMap::new();
    let mut leased = 0;
    for event in project.windlass(&["events"]).code(0).lines() {
        let of = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let place = (of("pipeline_id"), of("step"));
        match event["type"].as_str().unwrap() {
            "pipeline:advanced" => {
                tool_of.insert((of("id"), of("step")), of("tool"));
            }
            "policy:decided" if event["verdict"] == "allow" => {
                let known = if event["step"].is_string() {
                    steps.insert(place)
                } else {
                    tools.insert((of("pipeline_id"), of("tool")))
                };
                assert!(known, "{event} was asked twice");
            }
            "approval:decided" if event["settled"] == true && event["decision"] == "approved" => {
                steps.insert(place);
            }
            "step:started" if event["lease_owner"].is_string() => {
                let tool = (of("pipeline_id"), tool_of[&place].clone());
                assert!(steps.contains(&place) || tools.contains(&tool), "{event} began without a yes");
                leased += 1;
            }
            _ => {}
        }
    }
    assert!(leased > 0, "nothing began at all");
}

#[test]
fn what_is_allowed_happens_and_shell_is_asked_about_once_a_run() {
    let project = project("");
    assert_eq!(project.run(&[], 0)["status"], "completed");
    assert_eq!(project.read("trace"), "a\nb\nc\n");
    let decided = project.events("policy:decided");
    let of = |tool: &str| decided.iter().filter(|event| event["tool"] == tool).collect::<Vec<&Value>>();
    assert_eq!((of("shell").len(), of("transform").len()), (1, 1), "{decided:?}");
    assert_eq!((&of("shell")[0]["verdict"], &of("shell")[0]["rules"][0]), (&"allow".into(), &"all".into()));
    assert!(of("transform")[0]["action_hash"].is_string());
    nothing_began_without_a_yes(&project);
}

#[test]
fn what_is_denied_does_not_happen_and_the_run_follows() {
    let project = project(
        "@id(\"no\") @reason(\"values are not for you\")
        forbid (principal, action == Windlass::Action::\"transform\", resource)
        when { resource.hasTag(\"value.x\") };",
    );
    let run = project.run(&[], 1);
    assert_eq!((text(&run, "status"), text(&run["error"], "code")), ("failed", "POLICY_DENIED"));
    assert!(text(&run["error"], "message").contains("values are not for you"), "{run}");
    let shown = project.show(text(&run, "id"));
    assert_eq!((status_of(&shown, "t"), &step(&shown, "t")["attempt"]), ("failed", &1.into()));
    // What handles the failure is another action, which nothing forbids.
    assert_eq!(step(&shown, "f")["output"]["value"], "POLICY_DENIED");
    assert_eq!(project.read("trace"), "a\nb\n");
    nothing_began_without_a_yes(&project);
}

#[test]
fn what_needs_approval_waits_with_what_policy_asks_for() {
    let project = project(&ask("transform", "tier: high, approvers: tester or sre, expires: 30m", 1));
    let run = project.run(&["--no-wait"], 4);
    assert_eq!(run["status"], "awaiting_approval");
    let page = project.windlass(&["approvals", "--json"]).code(0).json();
    let approval = &page["items"][0];
    assert_eq!(
        (text(approval, "step"), text(approval, "tier"), &approval["count"]),
        ("t", "high", &1.into())
    );
    assert_eq!(approval["approvers"], serde_json::json!(["tester", "sre"]));
    assert_eq!(
        (&approval["two_person"], &approval["reasons"][0]),
        (&false.into(), &"it is asked for".into())
    );
    assert_eq!(approval["action"]["fields"]["value"]["x"], 1);
    let words = ["approve", text(approval, "id"), "--hash", text(approval, "action_hash")];
    project.windlass(&words).code(0);
    project.windlass(&["resume", text(&run, "id")]).code(0);
    assert_eq!(project.read("trace"), "a\nb\nc\n");
    nothing_began_without_a_yes(&project);
}

#[test]
fn who_is_not_asked_and_who_asks_cannot_approve() {
    let project = project(&ask("transform", "approvers: sre", 1));
    project.run(&["--no-wait"], 4);
    let page = project.windlass(&["approvals", "--json"]).code(0).json();
    let words = ["approve", text(&page["items"][0], "id"), "--hash", text(&page["items"][0], "action_hash")];
    project.windlass(&words).code(7).warns("not_approver");
    let refused = project.events("approval:refused");
    assert_eq!(
        (&refused[0]["refusal"], &refused[0]["decided_by"]),
        (&"not_approver".into(), &"tester".into())
    );

    let project = self::project(&ask("transform", "two_person", 2));
    project.run(&["--no-wait"], 4);
    let page = project.windlass(&["approvals", "--json"]).code(0).json();
    assert_eq!((&page["items"][0]["count"], &page["items"][0]["two_person"]), (&2.into(), &true.into()));
    let words = ["approve", text(&page["items"][0], "id"), "--hash", text(&page["items"][0], "action_hash")];
    project.windlass(&words).code(7).warns("own_request");
    assert_eq!(project.events("approval:refused").len(), 1);
}

#[test]
fn a_policy_that_moves_between_the_approval_and_the_lease_is_asked_again() {
    let project = project(&ask("transform", "", 1));
    let run = project.run(&["--no-wait"], 4);
    let approve = || {
        let page = project.windlass(&["approvals", "--json"]).code(0).json();
        let (id, hash) = (text(&page["items"][0], "id"), text(&page["items"][0], "action_hash"));
        project.windlass(&["approve", id, "--hash", hash]).code(0);
        text(&page["items"][0], "policy_version").to_owned()
    };
    let before = approve();
    // The same rule in other words is another policy: those who agreed were asked by the old one.
    project.write("policy/a.cedar", format!("{ALL}{}", ask("transform", "tier: low", 1)));
    let process = project.start(&["resume", text(&run, "id"), "--json"]);
    until("a new approval", || {
        let page = project.windlass(&["approvals", "--json"]).code(0).json();
        page["items"][0]["policy_version"].as_str().filter(|version| *version != before).map(|_| ())
    });
    process.kill();
    assert_ne!(approve(), before);
    project.write("policy/a.cedar", "@reason(\"closed\") forbid (principal, action, resource);");
    let ended = project.windlass(&["resume", text(&run, "id"), "--json"]).code(1).last();
    assert_eq!(
        (text(&ended["error"], "code"), text(&ended["error"], "message")),
        ("POLICY_DENIED", "closed")
    );
    assert_eq!(project.read("trace"), "a\nb\n");
    nothing_began_without_a_yes(&project);
}

#[test]
fn a_rule_that_fails_denies() {
    let project = project(
        "forbid (principal, action == Windlass::Action::\"transform\", resource)
        when { context.time.at_ms * 9223372036854775807 > 0 };",
    );
    let run = project.run(&[], 1);
    assert_eq!(run["error"]["code"], "POLICY_DENIED");
    assert!(text(&run["error"], "message").contains("could not be evaluated"), "{run}");
}

#[test]
fn a_called_run_asks_for_itself() {
    let project = Project::with(
        "
name: book
pipelines:
  p:
    steps:
      - { id: a, run: echo a >> trace }
      - { id: child, call: q }
  q:
    steps:
      - { id: b, run: echo b >> trace }
",
    );
    let no =
        "@reason(\"not there\") forbid (principal, action, resource) when { context.pipeline == \"q\" };";
    project.write("policy/a.cedar", format!("{ALL}{no}"));
    let run = project.windlass(&["run", "book.yaml", "p", "--json"]).code(1).last();
    assert!(text(&run["error"], "message").contains("not there"), "{run}");
    assert_eq!(project.read("trace"), "a\n");
}

#[test]
fn a_dry_run_shows_what_policy_would_say() {
    let project = Project::with(
        "
name: book
pipelines:
  p:
    vars: { x: { default: one } }
    steps:
      - { id: a, run: 'echo a' }
      - { id: t, transform: { value: '${{ vars.x }}' } }
      - { id: u, transform: { value: '${{ steps.a.output }}' } }
",
    );
    project.write(
        "policy/a.cedar",
        "@id(\"ok\") permit (principal == Windlass::User::\"tester\", action, resource);
        @id(\"no\") forbid (principal, action == Windlass::Action::\"transform\", resource)
        when { resource.hasTag(\"value\") && resource.getTag(\"value\") == \"one\" };",
    );
    let verdicts = |words: &[&str]| {
        let words = [&["run", "book.yaml", "--dry-run", "--json"], words].concat();
        let plan = project.windlass(&words).code(0).json();
        plan["steps"]
            .as_array()
            .unwrap()
            .iter()
            .map(|step| text(step, "policy").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(verdicts(&[]), ["allow", "deny", "later"]);
    assert_eq!(verdicts(&["--var", "x=two"]), ["allow", "allow", "later"]);
    assert!(project.events("policy:decided").is_empty());
}
