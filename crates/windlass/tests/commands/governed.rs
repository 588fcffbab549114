//! Which policy and which configuration are in force, wherever a run goes on.

use crate::support::{Project, text, until};

const BOOK: &str = "
name: governed
pipelines:
  p: { steps: [ { run: echo > ran } ] }
  long: { steps: [ { run: 'echo > began; until [ -e go ]; do sleep 0.02; done' } ] }
";
const CLOSED: &str = "@reason(\"closed\") forbid (principal, action, resource);";

#[test]
fn a_run_in_the_background_is_under_the_policy_of_the_configuration() {
    let project = Project::with(BOOK);
    project.write("rules/a.cedar", CLOSED);
    project.write("conf/closed.yaml", "policy: ../rules\n");
    let words = ["run", "book.yaml", "p", "--detach", "--config", "conf/closed.yaml", "--json"];
    let run = project.windlass(&words).code(0).json();
    let ended = until("the end of the run", || {
        Some(project.show(text(&run, "id"))).filter(|run| run.get("completed_at").is_some())
    });
    assert_eq!(ended["error"]["code"], "POLICY_DENIED", "{ended}");
    assert!(!project.has("ran"));
}

#[test]
fn a_policy_that_the_holder_does_not_use_is_refused() {
    let project = Project::with(BOOK);
    project.write("rules/a.cedar", CLOSED);
    project.write("empty.yaml", "{}\n");
    let holder = project.start(&["run", "book.yaml", "long"]);
    project.await_file("began");
    for flag in [["--policy", "rules"], ["--config", "empty.yaml"]] {
        let words = [&["run", "book.yaml", "p"][..], &flag].concat();
        project.windlass(&words).code(2).warns("holds the data directory").warns(flag[0]);
        // Who only looks is told, and sees what there is.
        project.windlass(&[&["runs"][..], &flag].concat()).code(0).says("running").warns(flag[0]);
    }
    assert!(!project.has("ran"));
    project.write("go", "");
    holder.wait().code(0);
}

#[test]
fn a_policy_that_the_holder_uses_may_be_named() {
    let project = Project::with(BOOK);
    project.write("rules/a.cedar", "permit (principal, action, resource);");
    project.write("conf.yaml", "policy: rules\n");
    let flags = ["--policy", "rules", "--config", "conf.yaml"];
    let holder = project.start(&[&["run", "book.yaml", "long"][..], &flags].concat());
    project.await_file("began");
    project.windlass(&[&["run", "book.yaml", "p"][..], &flags].concat()).code(0);
    assert!(project.has("ran"));
    project.write("go", "");
    holder.wait().code(0);
}

#[test]
fn secrets_are_not_set_on_another_machine() {
    let project = Project::new();
    for words in [&["secret", "set", "TOKEN"][..], &["secret", "list"], &["secret", "rm", "TOKEN", "--yes"]] {
        let words = [words, &["--server", "http://127.0.0.1:1"]].concat();
        project.windlass(&words).code(2).warns("on the machine that uses them");
    }
    assert!(!project.has("data/secrets.json"));
}
