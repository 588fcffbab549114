//! Going back over a run: what a failed guard after takes back, what `resume` and `retry` say, how long a run took.

use crate::support::{Project, status_of, text, until};
use serde_json::Value;

#[test]
fn a_step_that_fails_its_guard_after_is_taken_back_too() {
    let project = Project::with(
        "
name: after
pipelines:
  after:
    steps:
      - { id: a, run: echo did-a >> trace, compensate: { run: echo undo-a >> trace } }
      - id: b
        run: echo did-b >> trace
        guard: { after: [ { file_exists: absent, on_failure: fail } ] }
        compensate: { run: echo undo-b >> trace }
  before:
    steps:
      - id: b
        run: echo did-b >> trace
        guard: { before: [ { file_exists: absent, on_failure: fail } ] }
        compensate: { run: echo undo-b >> trace }
",
    );
    let run = project.run(&["after"], 1);
    assert_eq!(project.read("trace"), "did-a\ndid-b\nundo-b\nundo-a\n");
    let log = run["compensation_log"].as_array().expect("a compensation log");
    let undone: Vec<&str> = log.iter().map(|entry| text(entry, "compensates")).collect();
    assert_eq!(undone, ["b", "a"]);
    // One that never began has nothing to take back.
    project.remove("trace");
    project.run(&["before"], 1);
    assert!(!project.has("trace"));
}

#[test]
fn a_run_whose_outcome_is_unknown_is_not_resumed_and_says_what_to_do() {
    let project = Project::with(
        "
name: charge
pipelines:
  p: { steps: [ { id: charge, effect: at_most_once, run: 'echo > began; sleep 1000' } ] }
",
    );
    let mut process = project.start(&["run", "book.yaml", "--json"]);
    let run = process.await_run();
    project.await_file("began");
    process.kill();
    let waits = project.start(&["resume", &run, "--json"]);
    until("the outcome to be unknown", || {
        (status_of(&project.show(&run), "charge") == "outcome_unknown").then_some(())
    });
    let refused = project.windlass(&["resume", &run, "--json"]);
    let problem: Value = serde_json::from_str(&refused.err).unwrap();
    assert_eq!(problem["code"], "RUN_RESUME_FAILED", "{problem}");
    assert!(text(&problem, "detail").contains(&format!("windlass resolve {run} charge")), "{problem}");
    waits.kill();
}

#[test]
fn a_retry_in_back_off_names_the_run_and_durations_count_from_the_creation() {
    let project = Project::with(
        "
name: again
pipelines:
  p: { steps: [ { id: s, retry: { max_attempts: 2, backoff: [1h] }, run: 'test -e fixed' } ] }
",
    );
    let mut process = project.start(&["run", "book.yaml", "--json"]);
    let run = process.await_run();
    until("the back-off", || (project.show(&run)["status"] == "failed_retryable").then_some(()));
    project.write("fixed", "");
    let retried = project.windlass(&["retry", &run]).code(0);
    assert!(retried.err.contains(&format!("{run} is retried now")), "{} {}", retried.out, retried.err);
    process.wait().code(0);
    let shown = project.show(&run);
    let ended = &project.events("pipeline:completed")[0];
    assert_eq!(shown["duration_ms"], ended["duration_ms"]);
}
