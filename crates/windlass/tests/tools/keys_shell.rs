//! A command that declares an effect or a key, as a user sees it: tried again at once, from another run, in another
//! try at its group, and after a kill. Its executions are counted by what it writes.

use crate::holder::hold;
use crate::support::{Project, status_of, step, text, until};
use serde_json::Value;

/// A command that says that it runs, fails until it is mended, and then takes as long as it is let.
const ACT: &str = r#"
echo "$WL_IDEMPOTENCY_KEY" >> trace
test -e fixed || exit 1
echo > began
until test -e go; do sleep 0.02; done
echo '{"n": 7}' > "$WL_OUTPUT"
"#;

fn project(steps: &str) -> Project {
    let project = Project::with(&format!("name: t\npipelines:\n  p:\n    steps:\n{steps}"));
    project.script("act", ACT);
    project
}

fn tries(project: &Project) -> usize {
    project.read("trace").lines().count()
}

fn start(project: &Project) -> String {
    let started = project.windlass(&["run", "book.yaml", "p", "--detach", "--json"]).code(0);
    text(&started.json(), "id").to_owned()
}

fn ended(project: &Project, run: &str, status: &str) -> Value {
    until(status, || Some(project.show(run)).filter(|shown| shown["status"] == status))
}

#[test]
fn of_two_retries_side_by_side_one_runs_the_command_and_a_later_one_reuses_its_output() {
    let project = project("      - { id: s, run: ./act, effect: at_most_once }\n");
    let _holder = hold(&project);
    let first = text(&project.run(&[], 1), "id").to_owned();
    project.write("fixed", "");
    let one = project.start(&["retry", &first, "--json"]);
    project.await_exists("began");
    project.windlass(&["retry", &first, "--json"]).code(1);
    let refused = project.show(&project.newest());
    assert_eq!(text(&refused["error"], "code"), "IDEMPOTENCY_CONFLICT", "{refused}");
    project.write("go", "");
    one.wait().code(0);
    project.windlass(&["retry", &first, "--json"]).code(0);
    let reused = project.show(&project.newest());
    assert_eq!((status_of(&reused, "s"), &step(&reused, "s")["output"]["n"]), ("succeeded", &7.into()));
    assert_eq!(project.read("trace"), format!("{first}/s\n").repeat(2));
}

#[test]
fn a_tenants_key_is_one_execution_also_where_the_server_is_killed_in_the_middle() {
    let own = ", effect: at_most_once, idempotency_key: deploy-1, key_scope: tenant";
    let other = "  q:\n    steps:\n      - { id: s, run: ./act other, idempotency_key: deploy-1, key_scope: tenant }\n";
    let project = project(&format!("      - {{ id: s, run: ./act{own} }}\n{other}"));
    project.write("fixed", "");
    let holder = hold(&project);
    let first = start(&project);
    project.await_exists("began");
    let beside = project.run(&["p"], 1);
    assert_eq!(text(&beside["error"], "code"), "IDEMPOTENCY_CONFLICT");
    holder.kill();
    let _again = hold(&project);
    until("the outcome to be unknown", || {
        (status_of(&project.show(&first), "s") == "outcome_unknown").then_some(())
    });
    // Nobody knows, so no other run does it either.
    let unknown = project.run(&["p"], 1);
    assert_eq!(text(&unknown["error"], "code"), "OUTCOME_UNKNOWN");
    project.write("go", "");
    project.windlass(&["resolve", &first, "s", "retry", "--reason", "looked"]).code(0);
    ended(&project, &first, "completed");
    let reused = project.run(&["p"], 0);
    assert_eq!(&step(&reused, "s")["output"]["n"], &7);
    let conflict = project.run(&["q"], 1);
    assert_eq!(text(&conflict["error"], "code"), "IDEMPOTENCY_CONFLICT");
    assert_eq!(project.read("trace"), "tenant/deploy-1\n".repeat(2), "killed once, and done once");
}

#[test]
fn another_try_at_a_group_does_not_run_again_what_succeeded() {
    let steps = "      - id: g\n        retry: { max_attempts: 3, backoff: 1ms }\n        steps:\n          - { id: s, run: ./act, effect: at_most_once }\n          - { id: y, run: 'exit 1' }\n";
    let project = project(steps);
    project.write("fixed", "");
    project.write("go", "");
    let run = project.run(&[], 1);
    assert_eq!((tries(&project), status_of(&run, "s#3")), (1, "succeeded"));
}

#[test]
fn what_a_command_did_has_a_receipt_and_is_in_the_evidence() {
    let project = project(
        "      - { id: s, run: ./act, effect: at_most_once, compensate: { run: 'echo >> undone' } }\n      - { id: x, run: 'test -e ok' }\n",
    );
    project.write("fixed", "");
    project.write("go", "");
    let holder = hold(&project);
    let run = text(&project.run(&[], 1), "id").to_owned();
    let receipts = project.windlass(&["show", &run, "--receipts", "--json"]).code(0).json();
    let receipt = &receipts["items"][0];
    assert_eq!((text(receipt, "tool"), text(receipt, "status")), ("shell", "succeeded"), "{receipts}");
    assert!(project.has("undone"));
    // What was taken back is done again.
    project.write("ok", "");
    project.windlass(&["retry", &run, "--json"]).code(0);
    assert_eq!(tries(&project), 2);
    project.windlass(&["evidence", "export", &run, "-o", "bundle.tar"]).code(0);
    project.write("keys.txt", project.windlass(&["evidence", "pubkey"]).code(0).out);
    let words = ["evidence", "verify", "bundle.tar", "--pubkey", "keys.txt", "--json"];
    let verdict = project.windlass(&words).code(0).json();
    let effect = &verdict["verdict"]["effects"][0];
    assert_eq!(
        (text(effect, "tool"), &effect["receipt"]["status"]),
        ("shell", &"succeeded".into()),
        "{effect}"
    );
    assert!(effect["decision"].is_object(), "the allow that it was done under is named: {effect}");
    assert_eq!(effect["reversed_by"], run.as_str());
    drop(holder);
}
