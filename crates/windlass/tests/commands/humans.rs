//! Where a human decides: approvals, unknown outcomes, events from outside.

use crate::support::{Project, status_of, text, until};
use serde_json::Value;

const RELEASE: &str = "
name: release
pipelines:
  p:
    steps:
      - { id: build, run: echo build >> trace }
      - { id: gate, approve: { message: 'Release?' } }
      - { id: ship, run: echo ship >> trace }
    finally:
      - { id: last, run: echo last >> trace }
";

/// Runs to the approval; returns the run's id and the approval.
fn waiting(project: &Project) -> (String, Value) {
    let run = project.run(&["--no-wait"], 4);
    assert_eq!(run["status"], "awaiting_approval");
    let page = project.windlass(&["approvals", "--json"]).code(0).json();
    let approval = page["items"][0].clone();
    assert_eq!((&approval["run"], &approval["status"]), (&run["id"], &Value::from("requested")));
    (text(&run, "id").to_owned(), approval)
}

#[test]
fn an_approved_run_goes_on_when_it_is_resumed() {
    let project = Project::with(RELEASE);
    let (run, approval) = waiting(&project);
    let (id, hash) = (text(&approval, "id"), text(&approval, "action_hash"));
    project.windlass(&["why", &run]).code(0).says("a human has to decide").says(id);
    // Without a terminal the hash says what was seen, and another one approves nothing.
    project.windlass(&["approve", id]).code(2).warns("--hash").warns(hash);
    let other = "0".repeat(hash.len());
    project.windlass(&["approve", id, "--hash", &other]).code(6).warns("APPROVAL_HASH_MISMATCH");
    assert_eq!(project.windlass(&["approvals", "--json"]).code(0).json()["items"][0]["id"], id);
    project.windlass(&["approve", id, "--hash", hash]).code(0).says("Release?").says("approved");
    let decided = &project.windlass(&["approvals", "--status", "all", "--json"]).code(0).json()["items"][0];
    assert_eq!((&decided["status"], &decided["decisions"][0]["by"]), (&"approved".into(), &"tester".into()));
    assert_eq!(project.windlass(&["resume", &run, "--json"]).code(0).last()["status"], "completed");
    assert_eq!(project.read("trace"), "build\nship\nlast\n");
    // The same decision again changes nothing, and another one comes too late.
    project.windlass(&["approve", id, "--hash", hash]).code(0);
    project.windlass(&["reject", id, "--reason", "too late"]).code(6);
    let page = project.windlass(&["approvals", "--status", "all", "--json"]).code(0).json();
    assert_eq!(page["items"][0]["decisions"].as_array().unwrap().len(), 1, "{page}");
}

const DEPLOY: &str = "
name: deploy
pipelines:
  p:
    vars: { version: { required: true } }
    steps:
      - { id: gate, approve: { message: 'Deploy ${{ vars.version }}?', for: [switch] } }
      - { id: switch, run: 'echo \"$WL_VAR_VERSION\" > deployed', risk: high }
";

#[test]
fn what_was_approved_is_what_runs_whatever_is_resumed_with() {
    let project = Project::with(DEPLOY);
    let run = text(&project.run(&["--no-wait", "--var", "version=good"], 4), "id").to_owned();
    let open = |project: &Project, before: &[&Value]| {
        until("a question", || {
            let page = project.windlass(&["approvals", "--json"]).code(0).json();
            let open = page["items"].as_array().unwrap().iter();
            open.clone().find(|a| before.iter().all(|b| b["id"] != a["id"])).cloned()
        })
    };
    let first = open(&project, &[]);
    assert_eq!(first["tier"], "high");
    // Given, while nothing serves the directory: what `resume` is told is in force before the run goes on.
    let words = ["approve", text(&first, "id"), "--hash", text(&first, "action_hash")];
    project.windlass(&words).code(0).says("Deploy good?");
    let resumed = project.start(&["resume", &run, "--var", "version=evil", "--json"]);
    let second = open(&project, &[&first]);
    assert!(!project.has("deployed"));
    project.windlass(&["why", &run]).code(0).says("asked again: the variable `version` was changed");
    // Open: it is withdrawn, and asked again.
    let other = project.start(&["resume", &run, "--var", "version=v3", "--json"]);
    let third = open(&project, &[&first, &second]);
    let words = ["approve", text(&second, "id"), "--hash", text(&second, "action_hash")];
    project.windlass(&words).code(3).warns("it was withdrawn: the variable `version` was changed");
    assert!(third["action"].to_string().contains("v3"), "{third}");
    let words = ["approve", text(&third, "id"), "--hash", &text(&third, "action_hash")[..12]];
    project.windlass(&words).code(0);
    assert_eq!(resumed.wait().code(0).last()["status"], "completed");
    other.wait().code(0);
    assert_eq!(project.read("deployed"), "v3\n");
    assert_eq!(project.show(&run)["vars"]["version"], "v3");
}

#[test]
fn a_fork_with_another_runbook_asks_again() {
    let project = Project::with(RELEASE);
    let (run, approval) = waiting(&project);
    let words = ["approve", text(&approval, "id"), "--hash", text(&approval, "action_hash")];
    project.windlass(&words).code(0);
    project.windlass(&["resume", &run]).code(0);
    project.write("other.yaml", RELEASE.replace("echo ship", "echo evil"));
    // An unchanged runbook keeps the yes, another one does not.
    project.windlass(&["fork", &run, "--from", "ship"]).code(0);
    assert_eq!(project.read("trace"), "build\nship\nlast\nship\nlast\n");
    let fork = project.start(&["fork", &run, "--from", "ship", "--runbook", "other.yaml"]);
    until("the fork to ask", || {
        let page = project.windlass(&["approvals", "--json"]).code(0).json();
        page["items"].as_array().unwrap().iter().any(|one| one["run"] != run.as_str()).then_some(())
    });
    fork.kill();
    assert!(!project.read("trace").contains("evil"), "{}", project.read("trace"));
}

#[test]
fn a_rejected_run_fails_and_nothing_behind_the_gate_happens() {
    let project = Project::with(RELEASE);
    let (run, approval) = waiting(&project);
    let words = ["reject", text(&approval, "id"), "--reason", "not on a Friday", "--json"];
    project.windlass(&words).code(0);
    let ended = project.windlass(&["resume", "--all", "--json"]).code(1).last();
    assert_eq!((text(&ended, "id"), text(&ended, "status")), (run.as_str(), "failed"));
    assert_eq!(ended["error"]["code"], "APPROVAL_REJECTED");
    assert!(ended["error"]["message"].as_str().unwrap().contains("not on a Friday"), "{ended}");
    assert_eq!(project.read("trace"), "build\nlast\n");
}

#[test]
fn an_approval_reaches_a_process_that_waits_for_it() {
    let project = Project::with(RELEASE);
    let mut process = project.start(&["run", "book.yaml", "--json"]);
    process.await_line("\"approval:requested\"");
    let page = project.windlass(&["approvals", "--json"]).code(0).json();
    let approval = &page["items"][0];
    let words = ["approve", text(approval, "id"), "--hash", text(approval, "action_hash")];
    project.windlass(&words).code(0);
    assert_eq!(process.wait().code(0).last()["status"], "completed");
}

#[test]
fn an_approval_that_expires_never_approves() {
    let project = Project::with(
        "
name: late
pipelines:
  p:
    steps:
      - { id: gate, approve: { message: Now?, expires: 300ms } }
      - { id: ship, run: touch never }
",
    );
    let run = project.run(&[], 1);
    assert_eq!(run["error"]["code"], "APPROVAL_EXPIRED", "{run}");
    assert!(!project.has("never"));
}

#[test]
fn an_event_lets_a_waiting_run_go_on_and_brings_data() {
    let project = Project::with(
        "
name: wait
pipelines:
  p:
    steps:
      - { id: merged, wait: { event: merged, key: pr-17 } }
      - { id: after, run: 'echo \"$BY\" > trace', env: { BY: '${{ steps.merged.output.by }}' } }
  late:
    steps:
      - { id: never, wait: { event: never, timeout: 200ms, on_timeout: continue } }
      - { id: soon, wait: 50ms }
      - { id: fails, wait: { event: never, timeout: 200ms } }
",
    );
    let mut process = project.start(&["run", "book.yaml", "p", "--json"]);
    let run = process.await_run();
    until("the run to wait", || (project.show(&run)["status"] == "waiting_external").then_some(()));
    project.windlass(&["why", &run]).code(0).says("waits for the event `merged` with key `pr-17`");
    project
        .windlass(&["signal", "--key", "pr-17", "merged", "--data", r#"{"by":"ann"}"#])
        .code(0)
        .says("delivered");
    assert_eq!(process.wait().code(0).last()["status"], "completed");
    assert_eq!(project.read("trace"), "ann\n");
    let run = project.run(&["late"], 1);
    assert_eq!((status_of(&run, "soon"), status_of(&run, "fails")), ("succeeded", "failed"));
}

#[test]
fn an_event_for_a_run_that_nobody_executes_is_kept() {
    let project = Project::with(
        "
name: early
pipelines:
  p:
    steps:
      - { id: go, wait: { event: go } }
      - { id: after, run: echo \"$N\" > trace, env: { N: '${{ steps.go.output.n }}' } }
",
    );
    let mut process = project.start(&["run", "book.yaml", "--json"]);
    let run = process.await_run();
    until("the run to wait", || (project.show(&run)["status"] == "waiting_external").then_some(()));
    process.kill();
    project.windlass(&["signal", &run, "go", "--data", r#"{"n":5}"#]).code(0);
    project.windlass(&["resume", &run]).code(0);
    assert_eq!(project.read("trace"), "5\n");
}

/// A step that must not be repeated, killed while it runs.
fn lost(project: &Project) -> String {
    project.write(
        "book.yaml",
        "
name: charge
pipelines:
  p:
    steps:
      - id: charge
        effect: at_most_once
        run: 'echo charged >> trace; echo > began; until [ -e go ]; do sleep 0.02; done'
      - { id: after, run: echo after >> trace }
",
    );
    let mut process = project.start(&["run", "book.yaml", "--json"]);
    let run = process.await_run();
    project.await_file("began");
    process.kill();
    let resumed = project.start(&["resume", &run, "--json"]);
    until("the outcome to be unknown", || {
        (status_of(&project.show(&run), "charge") == "outcome_unknown").then_some(())
    });
    assert_eq!(project.show(&run)["status"], "awaiting_approval");
    project.windlass(&["why", &run]).code(0).says("nobody knows").says("windlass resolve");
    resumed.kill();
    // Nothing is repeated however often somebody resumes.
    assert_eq!(project.read("trace"), "charged\n");
    project.write("go", "");
    run
}

#[test]
fn a_lost_attempt_that_must_not_be_repeated_is_settled_as_done() {
    let project = Project::new();
    let run = lost(&project);
    project.windlass(&["resolve", &run, "charge", "done", "--reason", "seen in the ledger"]).code(0);
    project.windlass(&["resume", &run]).code(0);
    assert_eq!(project.read("trace"), "charged\nafter\n");
}

/// Later steps need what a step declares, and so does what takes its effect back.
#[test]
fn what_is_resolved_as_done_has_the_outputs_that_its_step_declares() {
    let project = Project::with(
        "
name: pay
pipelines:
  p:
    steps:
      - id: pay
        effect: at_most_once
        run: 'echo paid >> trace; echo > began; sleep 600'
        outputs: { ref: string }
        compensate: { run: 'echo \"refunded $REF\" >> trace', env: { REF: '${{ output.ref }}' } }
      - { id: after, run: 'echo \"after $REF\" >> trace; exit 1', env: { REF: '${{ steps.pay.output.ref }}' } }
",
    );
    let mut process = project.start(&["run", "book.yaml", "--json"]);
    let run = process.await_run();
    project.await_file("began");
    process.kill();
    let words = ["resolve", &run, "pay", "done", "--reason", "seen in the ledger"];
    // Nobody has looked yet what became of the attempt: it is said how that is found out.
    project.windlass(&words).code(6).warns(&format!("windlass resume {run}"));
    let resumed = project.start(&["resume", &run, "--json"]);
    let unknown = || (status_of(&project.show(&run), "pay") == "outcome_unknown").then_some(());
    until("the outcome to be unknown", unknown);
    resumed.kill();
    project.windlass(&words).code(2).warns("the output `ref` is missing").warns("--output JSON");
    project.windlass(&[&words[..], &["--output", "{\"ref\": 7}"]].concat()).code(2).warns("`ref` is not");
    project.windlass(&[&words[..], &["--output", "p-7"]].concat()).code(2).warns("--output is no JSON");
    assert!(unknown().is_some());
    let output = ["--output", "{\"ref\": \"p-7\"}"];
    let retry = ["resolve", &run, "pay", "retry", "--reason", "x"];
    project.windlass(&[&retry[..], &output].concat()).code(2).warns("`done` only");
    project.windlass(&[&words[..], &output].concat()).code(0);
    project.windlass(&["resume", &run]).code(1);
    assert_eq!(project.read("trace"), "paid\nafter p-7\nrefunded p-7\n");
}

#[test]
fn a_lost_attempt_that_must_not_be_repeated_is_repeated_on_request() {
    let project = Project::new();
    let run = lost(&project);
    project.windlass(&["resolve", &run, "charge", "retry", "--reason", "not in the ledger"]).code(0);
    project.windlass(&["resume", &run]).code(0);
    assert_eq!(project.read("trace"), "charged\ncharged\nafter\n");
}

#[test]
fn a_lost_attempt_that_must_not_be_repeated_is_settled_as_failed() {
    let project = Project::new();
    let run = lost(&project);
    project.windlass(&["resolve", &run, "charge", "fail", "--reason", "refunded"]).code(0);
    project.windlass(&["show", &run, "--exit-status"]).code(1);
    assert_eq!(
        (project.show(&run)["status"].as_str(), project.read("trace").as_str()),
        (Some("failed"), "charged\n")
    );
    project.windlass(&["resolve", &run, "charge", "done", "--reason", "again"]).code(6);
}
