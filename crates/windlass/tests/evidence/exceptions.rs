//! What a verdict names beside the effects: the secrets that were used, what was broken by hand, and who took bundles away.

use crate::support::{Process, Project};
use crate::verify;
use serde_json::{Value, json};

const BOOK: &str = "
name: named
pipelines:
  use:
    steps:
      - { id: say, run: 'test -n \"$KEY\"', env: { KEY: '${{ secrets.api }}' } }
      - { id: again, run: 'test -n \"$KEY\"', env: { KEY: '${{ secrets.api }}', OWN: '${{ secrets.own }}' } }
      - { id: never, when: 'false', run: 'true', env: { KEY: '${{ secrets.other }}' } }
  hold:
    lock: everything
    steps: [ { id: ask, approve: { message: 'Go on?' } } ]
";

/// Exports a run and returns what its bundle proves, and the report.
fn proved(project: &Project, run: &str) -> (Value, String) {
    let (bundle, page) = (format!("{run}.tar"), format!("{run}.html"));
    project.windlass(&["evidence", "export", run, "-o", &bundle]).code(0);
    project.write("keys.txt", project.windlass(&["evidence", "pubkey"]).code(0).out);
    let words = [bundle.as_str(), "--pubkey", "keys.txt", "--html", &page, "--json"];
    let verdict = verify(project, &words).code(0).json()["verdict"].take();
    (verdict, project.read(&page))
}

fn set(project: &Project, value: &str) {
    let mut command = project.command(&["secret", "set", "api"]);
    command.stdin(std::fs::File::open(project.write("value", value)).unwrap());
    Process::spawn(command, &["secret", "set"]).wait().code(0);
}

#[test]
fn secrets_are_named_with_the_version_that_was_used() {
    let project = Project::with(BOOK).env("WINDLASS_SECRET_own", "from-outside-1");
    let run = || {
        project.windlass(&["run", "book.yaml", "use"]).code(0);
        let (verdict, page) = proved(&project, &project.newest());
        let used = verdict["secrets"].as_array().unwrap().iter();
        let used: Vec<Value> = used.map(|one| json!([one["name"], one["version"], one["step"]])).collect();
        (used, page)
    };
    set(&project, "the-first-value");
    let (used, page) = run();
    let own = json!(["own", "environment", "again"]);
    assert_eq!(used, [json!(["api", "1", "say"]), json!(["api", "1", "again"]), own.clone()]);
    assert!(
        page.contains("version 1, step say (epoch 1)") && page.contains("from the environment"),
        "{page}"
    );
    assert!(!page.contains("the-first-value") && !page.contains("from-outside-1"), "{page}");
    set(&project, "the-second-value");
    let (used, _) = run();
    assert_eq!(used, [json!(["api", "2", "say"]), json!(["api", "2", "again"]), own]);
}

#[test]
fn a_hold_that_was_broken_by_hand_is_an_exception() {
    let project = Project::with(BOOK);
    project.windlass(&["run", "book.yaml", "hold", "--no-wait"]).code(4);
    let run = project.newest();
    let locks = project.windlass(&["locks", "--json"]).code(0).json();
    let lock = locks["items"].as_array().unwrap().iter().find(|lock| lock["name"] == "everything").unwrap();
    assert!(lock["holder"].to_string().contains(&run), "{lock}");
    project.windlass(&["lock", "break", "everything", "--yes"]).code(0);
    let shown = project.show(&run);
    assert_eq!(
        (&shown["status"], &shown["error"]["code"]),
        (&json!("failed"), &json!("LOCK_BUSY")),
        "{shown}"
    );
    let (verdict, page) = proved(&project, &run);
    let broken = &verdict["exceptions"]["overrides"][0];
    assert_eq!((&broken["what"], &broken["hold"]), (&json!("broken"), &json!("everything")), "{verdict:#}");
    assert!(page.contains("the hold of the run on everything was broken"), "{page}");
}

#[test]
fn whoever_takes_a_bundle_away_is_on_record() {
    let project = Project::with(BOOK);
    project.windlass(&["run", "book.yaml", "hold", "--no-wait"]).code(4);
    let run = project.newest();
    project.windlass(&["evidence", "export", &run, "-o", "run.tar"]).code(0);
    let words = ["evidence", "export", "--from", "1h", "--to", "2100-01-01T00:00:00Z", "-o", "period.tar"];
    project.windlass(&words).code(0);
    let exported = project.events("evidence:exported");
    assert_eq!(exported.len(), 2, "{exported:?}");
    assert_eq!(exported[0]["pipeline_id"], run.as_str());
    let period = &exported[1];
    assert!(period.get("pipeline_id").is_none(), "{period}");
    assert!(period["from"].is_number() && period["to"] == 4_102_444_800_000_u64, "{period}");
    let sum = windlass_core::digest::Digest::of(&[&std::fs::read(project.path("period.tar")).unwrap()]);
    assert_eq!(period["sha256"], sum.to_string());
}
