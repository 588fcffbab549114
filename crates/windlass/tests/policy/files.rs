//! Policy folders: checking them, testing them with cases and with history, and what a broken one means.

use crate::ALL;
use crate::support::{Project, text, until};

const BOOK: &str = "
name: book
pipelines:
  p:
    steps:
      - { id: a, run: echo a >> trace }
      - { id: b, run: echo b >> trace }
      - { id: t, transform: { value: { x: 1 } } }
";

#[test]
fn init_makes_a_policy_that_is_taken_and_tested() {
    let project = Project::new();
    project.windlass(&["init"]).code(0).says("base.cedar");
    let checked = project.windlass(&["policy", "check", "--json"]).code(0).json();
    assert_eq!((&checked["valid"], &checked["schema_current"]), (&true.into(), &true.into()));
    assert_eq!(checked["rules"][0]["id"], "stays-here");
    project.windlass(&["policy", "test", "policy/cases.yaml"]).code(0).says("2 of 2");
    // It is in force, and the first runbook runs under it.
    project.windlass(&["run"]).code(0);
    let policies = project.windlass(&["policies", "--json"]).code(0).json();
    assert_eq!(policies["items"][0]["version"], checked["version"]);
    // Its text is on record, once, before anything was decided by it.
    let loaded = project.events("policy:loaded");
    assert_eq!((loaded.len(), &loaded[0]["policy_version"]), (1, &checked["version"]));
    assert!(text(&loaded[0], "text").contains("stays-here"));
    let decided = project.events("policy:decided");
    assert!(loaded[0]["seq"].as_u64() < decided[0]["seq"].as_u64());
    assert_eq!(decided[0]["policy_version"], checked["version"]);
    assert_eq!(decided[0]["rules"][0], "stays-here");
}

#[test]
fn a_mistake_is_shown_with_its_place() {
    let project = Project::new();
    project.write(
        "policy/a.cedar",
        "permit (principal, action, resource);\npermit (principal, acton, resource);\n",
    );
    let done = project.windlass(&["policy", "check", "policy"]).code(2).warns("a.cedar:2").warns("^");
    drop(done);
    let done = project.windlass(&["policy", "check", "policy", "--json"]).code(2);
    let problem: serde_json::Value = serde_json::from_str(&done.err).unwrap();
    assert_eq!(
        (&problem["problems"][0]["file"], &problem["problems"][0]["line"]),
        (&"a.cedar".into(), &2.into())
    );
    project.windlass(&["policy", "check", "absent"]).code(2).warns("cannot be read");
    project.write("policy/a.cedar", "@tier(\"x\") permit (principal, action, resource);");
    project.windlass(&["policy", "check"]).code(2).warns("`@tier` is not known");
}

#[test]
fn a_configured_folder_that_cannot_be_used_denies_everything() {
    let project = Project::with(BOOK).env("WINDLASS_POLICY", "absent");
    let run = project.run(&[], 1);
    assert_eq!(run["error"]["code"], "POLICY_DENIED");
    assert!(text(&run["error"], "message").contains("absent"), "{run}");
    assert!(!project.has("trace"));
    project.windlass(&["doctor"]).code(1).says("everything is denied");
    project.windlass(&["policies"]).code(0).says("everything is denied");

    let project = Project::with(BOOK);
    project.write("policy/a.cedar", "permit (principal, action, resource)");
    let run = project.run(&[], 1);
    assert!(text(&run["error"], "message").contains("a.cedar:1"), "{run}");
    assert!(!project.has("trace"));
}

#[test]
fn cases_fail_with_what_is_different() {
    let project = Project::new();
    project.write("policy/a.cedar", ALL);
    let cases = "cases:\n  - { name: one, action: { tool: slack.post, fields: { channel: c, text: t } }, expect: deny }\n";
    project.write("policy/cases.yaml", cases);
    let done = project.windlass(&["policy", "test", "policy/cases.yaml"]).code(1);
    done.says("✘ one").says("the verdict is \"allow\"").says("0 of 1");
    let done = project.windlass(&["policy", "test", "policy/cases.yaml", "--json"]).code(1).json();
    assert_eq!((&done["failed"], &done["results"][0]["verdict"]), (&1.into(), &"allow".into()));
    project.write("policy/cases.yaml", "cases:\n  - { name: one, acton: {} }\n");
    project.windlass(&["policy", "test", "policy/cases.yaml"]).code(2).warns("cases.yaml:2").warns("acton");
    project.windlass(&["policy", "test"]).code(2).warns("--against-history");
}

#[test]
fn history_is_asked_again_and_says_what_would_flip() {
    let project = Project::with(BOOK);
    project.write("policy/a.cedar", ALL);
    project.run(&[], 0);
    project.run(&[], 0);
    // Of each run, one decision was about its shell steps and one about the value.
    let same = project.windlass(&["policy", "test", "--against-history", "--json"]).code(0).json();
    assert_eq!(
        (&same["decisions"], &same["flipped"], &same["skipped"]),
        (&4.into(), &0.into(), &0.into()),
        "{same}"
    );
    let other = "
        permit (principal, action, resource);
        @id(\"x\") @reason(\"x is looked at\") @approval(\"\")
        forbid (principal, action == Windlass::Action::\"transform\", resource)
        when { resource.hasTag(\"value.x\") && resource.getTag(\"value.x\") == \"1\" && principal == Windlass::User::\"tester\" }
        unless { context.approvals >= 1 };
        forbid (principal, action == Windlass::Action::\"shell\", resource) when { context.pipeline == \"other\" };";
    project.write("new/a.cedar", other);
    let words = ["policy", "test", "--against-history", "--policy", "new", "--json"];
    let flips = project.windlass(&words).code(0).json();
    assert_eq!((&flips["decisions"], &flips["flipped"]), (&4.into(), &2.into()), "{flips}");
    let flip = &flips["flips"][0];
    assert_eq!(
        (&flip["was"], &flip["would_be"], &flip["count"]),
        (&"allow".into(), &"needs_approval".into(), &2.into())
    );
    assert_eq!(flips["examples"][0]["would_be_because"][0], "x is looked at");
    project
        .windlass(&words[..words.len() - 1])
        .code(0)
        .says("2 would flip")
        .says("2 × allow would be needs_approval");
    // Nothing was written: the log holds what it held.
    assert_eq!(project.events("policy:decided").len(), 4);
}

#[test]
fn a_folder_that_changes_is_in_force_without_a_restart() {
    let project = Project::with(
        "
name: moves
pipelines:
  p:
    steps:
      - { id: a, run: echo a >> trace }
      - { id: gate, wait: { event: go, timeout: 10m } }
      - { id: b, run: echo b >> trace }
",
    );
    project.write("policy/a.cedar", ALL);
    let mut process = project.start(&["run", "book.yaml", "--json"]);
    let run = process.await_run();
    project.await_file("trace");
    let version = || {
        let page = project.windlass(&["policies", "--json"]).code(0).json();
        text(&page["items"][0], "version").to_owned()
    };
    let before = version();
    project.write("policy/a.cedar", "@reason(\"closed\") forbid (principal, action, resource);");
    until("the new policy", || Some(version()).filter(|now| *now != before));
    project.windlass(&["signal", &run, "go"]).code(0);
    let ended = process.wait().code(1).last();
    assert_eq!(
        (text(&ended["error"], "code"), text(&ended["error"], "message")),
        ("POLICY_DENIED", "closed")
    );
    assert_eq!(project.read("trace"), "a\n");
}

#[test]
fn a_folder_that_is_made_while_serving_is_in_force_and_one_that_is_taken_away_denies() {
    let project = Project::with(BOOK);
    let mut serving = project.start(&["serve", "--listen", "127.0.0.1:0", "--json"]);
    serving.await_line("serving");
    let policy = || project.windlass(&["policies", "--json"]).code(0).json()["items"][0].clone();
    assert_eq!(policy()["builtin"], true);
    project.run(&[], 0);
    // A folder without policies is none yet.
    std::fs::create_dir(project.path("policy")).unwrap();
    project.write("policy/a.cedar", "@reason(\"closed\") forbid (principal, action, resource);");
    until("the folder's policy", || (policy()["builtin"] == false).then_some(()));
    let run = project.run(&[], 1);
    assert_eq!((text(&run["error"], "code"), text(&run["error"], "message")), ("POLICY_DENIED", "closed"));
    // From now on there is a policy, and to take it away is no way around it.
    project.write("policy/a.cedar", ALL);
    until("the change", || (policy()["rules"][0]["id"] == "all").then_some(()));
    project.run(&[], 0);
    std::fs::remove_dir_all(project.path("policy")).unwrap();
    until("the folder's end", || policy().get("error").map(drop));
    let run = project.run(&[], 1);
    assert_eq!(run["error"]["code"], "POLICY_DENIED");
    assert!(text(&run["error"], "message").contains("cannot be read"), "{run}");
    assert_eq!(project.read("trace"), "a\nb\na\nb\n");
}

#[test]
fn serve_refuses_to_start_with_a_policy_that_cannot_be_used() {
    let project = Project::with(BOOK);
    project.write("policy/a.cedar", "permit (principal, action, resource)");
    project.windlass(&["serve", "--listen", "127.0.0.1:0"]).code(2).warns("a.cedar:1");
}

#[test]
fn a_hang_up_makes_serve_read_the_folder_again() {
    let project = Project::with(BOOK);
    project.write("policy/a.cedar", ALL);
    let mut serving = project.start(&["serve", "--listen", "127.0.0.1:0", "--json"]);
    serving.await_line("serving");
    let version = || {
        let page = project.windlass(&["policies", "--json"]).code(0).json();
        text(&page["items"][0], "version").to_owned()
    };
    let before = version();
    project.write("policy/b.cedar", "@id(\"more\") permit (principal, action, resource);\n");
    serving.signal(rustix::process::Signal::HUP);
    until("the new policy", || Some(version()).filter(|now| *now != before));
    serving.signal(rustix::process::Signal::TERM);
    serving.wait().code(0);
}
