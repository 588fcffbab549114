//! Notices: of what people are told, by which channel, and what counts as delivered.

use crate::outside::{Server, say};
use crate::support::{Project, text, until};
use crate::wire::Serving;
use serde_json::{Value, json};

const BOOK: &str = "name: x
pipelines:
  ask: { steps: [ { id: gate, approve: { message: Go? } } ] }
  bad: { steps: [ { id: fall, run: 'echo why; exit 3' } ] }
";

/// Waits until a notice of this kind is settled; returns it with what became of it.
fn settled(project: &Project, kind: &str) -> (Value, bool) {
    until(&format!("a notice of {kind}"), || {
        let asked = project.events("notice:requested").into_iter().find(|notice| notice["kind"] == kind)?;
        let sent =
            project.events("notice:sent").into_iter().find(|sent| sent["notice"] == asked["notice"])?;
        let delivered = sent["delivered"].as_bool().unwrap();
        Some((asked, delivered))
    })
}

fn start(serving: &Serving, pipeline: &str) -> String {
    let body = json!({ "pipeline": pipeline }).to_string();
    text(&serving.post("/v1/runs", &[], body.as_bytes()).is(201).json(), "id").to_owned()
}

#[test]
fn a_command_is_told_of_approvals_and_of_failed_runs() {
    let project = Project::new();
    project.script(
        "tell",
        "echo \"$WL_NOTICE_KIND|$WL_NOTICE_TITLE|$WL_NOTICE_SOUND|$WL_RUN_ID|$WL_NOTICE_MESSAGE\" >> told\n",
    );
    project.write("windlass.yaml", "notices: { command: ./tell, sound: false, on: [approval, failed] }\n");
    let serving = Serving::new(project, &[BOOK]);
    let project = &serving.project;
    let asked = start(&serving, "ask");
    let (notice, delivered) = settled(project, "approval");
    assert!(delivered, "the command took it: {notice}");
    let told = project.await_file("told");
    assert!(told.starts_with(&format!("approval|gate waits for an approval|false|{asked}|")), "{told}");
    let failed = start(&serving, "bad");
    assert!(settled(project, "failed").1);
    let told = project.read("told");
    assert!(told.contains(&format!("failed|Run failed|false|{failed}|bad")), "{told}");
    // It was asked of policy like any other command.
    let decided = project.events("policy:decided");
    let notices = decided.iter().filter(|decided| decided["purpose"] == "notice").count();
    assert_eq!(notices, 2, "{decided:?}");
}

#[test]
fn a_webhook_gets_each_notice_as_json() {
    let server = Server::start(|_| say(200, &json!({})));
    let project = Project::new();
    project
        .write("windlass.yaml", format!("notices: {{ webhook: '{}/hook', on: [failed] }}\n", server.url()));
    let serving = Serving::new(project, &[BOOK]);
    let run = start(&serving, "bad");
    let (notice, delivered) = settled(&serving.project, "failed");
    assert!(delivered);
    let seen = server.seen();
    assert_eq!(seen.len(), 1, "{seen:?}");
    let body = seen[0].json();
    assert_eq!((&body["run"], &body["kind"], &body["sound"]), (&json!(run), &json!("failed"), &json!(true)));
    assert_eq!((text(&body, "pipeline"), text(&body, "tenant")), ("bad", "default"));
    assert_eq!(seen[0].header("idempotency-key"), text(&notice, "notice"));
}

#[test]
fn history_asked_again_of_a_webhook_says_what_it_said() {
    let server = Server::start(|_| say(200, &json!({})));
    let project = Project::new();
    project
        .write("windlass.yaml", format!("notices: {{ webhook: '{}/hook', on: [failed] }}\n", server.url()));
    project.write("policy/a.cedar", "permit (principal, action, resource);");
    project.write("new/a.cedar", "// The same.\npermit (principal, action, resource);");
    let serving = Serving::new(project, &[BOOK]);
    start(&serving, "bad");
    assert!(settled(&serving.project, "failed").1);
    let replayed = |words: &[&str]| {
        let words = [&["policy", "test", "--against-history", "--json"], words].concat();
        let done = serving.project.windlass(&words).code(0).json();
        [&done["decisions"], &done["flipped"], &done["skipped"]].map(|n| n.as_u64().unwrap())
    };
    // The step's command, and the webhook: what that sent is not kept.
    assert_eq!(replayed(&[]), [2, 0, 0]);
    assert_eq!(replayed(&["--policy", "new"]), [1, 0, 1]);
}

#[test]
fn what_no_channel_took_is_not_delivered() {
    let server = Server::start(|_| say(500, &json!({})));
    let project = Project::new();
    project.script("tell", "exit 1\n");
    let channels = format!("command: ./tell, webhook: '{}'", server.url());
    project.write("windlass.yaml", format!("notices: {{ {channels}, on: [failed] }}\n"));
    let serving = Serving::new(project, &[BOOK]);
    start(&serving, "bad");
    assert!(!settled(&serving.project, "failed").1);
    assert!(server.count("POST") > 1, "it is tried a few times");
}

#[test]
fn without_a_channel_an_unknown_outcome_is_not_delivered_and_nobody_is_told_of_failures() {
    let project = Project::with(
        "name: y\npipelines: { main: { steps: [ { id: once, effect: at_most_once, run: 'touch begun; sleep 600' } ] } }\n",
    );
    let mut serving = Serving::new(project, &[BOOK]);
    start(&serving, "bad");
    serving.project.windlass(&["deploy", "book.yaml"]).code(0);
    start(&serving, "main");
    serving.project.await_exists("begun");
    serving.restart();
    let (_, delivered) = settled(&serving.project, "notify");
    assert!(!delivered, "there is no channel");
    let asked = serving.project.events("notice:requested");
    assert!(asked.iter().all(|notice| notice["kind"] == "notify"), "{asked:?}");
}

#[test]
fn the_desktop_shows_a_notice() {
    let project = Project::new();
    project.write("windlass.yaml", "notices: { desktop: true, on: [failed] }\n");
    project.script("bin/notify-send", "printf '%s\\n' \"$@\" > \"$HOME/shown\"\n");
    let path = format!("{}:{}", project.path("bin").display(), std::env::var("PATH").unwrap());
    let serving = Serving::new(project.env("PATH", &path), &[BOOK]);
    start(&serving, "bad");
    assert!(settled(&serving.project, "failed").1);
    let shown = serving.project.await_file("shown");
    assert!(shown.contains("Run failed") && shown.contains("sound-name"), "{shown}");
}

#[test]
fn a_policy_that_forbids_it_keeps_the_command_from_running() {
    let project = Project::new();
    project.script("tell", "touch told\n");
    project.write("windlass.yaml", "policy: policy\nnotices: { command: ./tell, on: [failed] }\n");
    project.write(
        "policy/a.cedar",
        "permit (principal, action, resource);\nforbid (principal, action == Windlass::Action::\"shell\", resource);\n",
    );
    let serving = Serving::new(project, &[BOOK]);
    start(&serving, "bad");
    assert!(!settled(&serving.project, "failed").1);
    assert!(!serving.project.has("told"));
}
