//! Called runs: what they did is taken back with their caller, by hand and after a kill too, and a retry goes on in them.

use crate::support::{Project, text, until};
use serde_json::Value;

const BOOK: &str = "
name: callers
pipelines:
  fails:
    steps:
      - { id: first, run: echo did-first >> trace, compensate: { run: echo undo-first >> trace } }
      - { id: c, call: mid }
      - { id: kept, call: leaf, vars: { n: kept }, compensate: false }
      - { id: breaks, run: 'exit 3' }
  waits:
    steps:
      - { id: c, call: mid }
      - { id: hold, run: 'touch holds; sleep 1000' }
  works:
    steps:
      - { id: first, run: echo did-first >> trace, compensate: { run: echo undo-first >> trace } }
      - { id: each, foreach: [one, two], call: leaf, vars: { n: '${{ item }}' } }
  mid:
    steps:
      - { id: down, call: leaf, vars: { n: one } }
      - { id: m, run: echo did-m >> trace, compensate: { run: echo undo-m >> trace } }
  leaf:
    vars: { n: { required: true } }
    steps:
      - id: l
        run: 'echo did-$WL_VAR_N >> trace'
        compensate: { run: 'test ! -e slow || { touch began; sleep 1000; }; echo undo-$WL_VAR_N >> trace' }
  gated:
    steps:
      - { id: c, call: leaf, vars: { n: one } }
      - { id: gate, wait: { event: go } }
      - { id: breaks, run: 'exit 3' }
  again:
    steps:
      - { id: c, call: halves }
  halves:
    steps:
      - { id: one, run: echo one >> trace }
      - { id: two, run: 'echo two >> trace; test -e mended' }
";

fn undone(run: &Value) -> Vec<(String, String)> {
    let log = run["compensation_log"].as_array().expect("a compensation log");
    log.iter().map(|entry| (text(entry, "compensates").into(), text(entry, "status").into())).collect()
}

#[test]
fn a_failed_caller_takes_its_called_runs_back_in_reverse_order() {
    let project = Project::with(BOOK);
    let run = project.run(&["fails"], 1);
    let expected = "did-first\ndid-one\ndid-m\ndid-kept\nundo-m\nundo-one\nundo-first\n";
    assert_eq!(project.read("trace"), expected, "`compensate: false` leaves what it called as it is");
    let taken = |of: &str| (of.to_owned(), "succeeded".to_owned());
    assert_eq!(undone(&run), [taken("c"), taken("first")]);
    let back = project.show(text(&run["compensation_log"][0], "run"));
    let called = run["steps"].as_array().unwrap().iter().find(|step| step["id"] == "c").unwrap();
    assert_eq!(back["takes_back"], called["child_run"]);
    assert_eq!(undone(&back), [taken("m"), taken("down")]);
}

#[test]
fn a_cancelled_caller_that_is_killed_meanwhile_takes_each_called_run_back_once() {
    let project = Project::with(BOOK);
    project.write("slow", "");
    let mut process = project.start(&["run", "book.yaml", "waits", "--json"]);
    let run = process.await_run();
    project.await_exists("holds");
    // The command waits for the end, which its server does not live to see.
    let cancel = project.start(&["cancel", &run]);
    project.await_exists("began");
    process.kill();
    cancel.kill();
    project.remove("slow");
    project.windlass(&["resume", "--all", "--json"]);
    until("the run to be cancelled", || (project.show(&run)["status"] == "cancelled").then_some(()));
    let trace = project.read("trace");
    assert_eq!(trace, "did-one\ndid-m\nundo-m\nundo-one\n");
}

#[test]
fn an_undo_of_a_caller_takes_back_what_it_called_and_a_second_one_finds_it_done() {
    let project = Project::with(BOOK);
    let run = text(&project.run(&["works"], 0), "id").to_owned();
    let plan = project.windlass(&["undo", &run, "--dry-run", "--json"]).code(0).json();
    let steps: Vec<&str> = plan["items"].as_array().unwrap().iter().map(|item| text(item, "step")).collect();
    assert_eq!(steps, ["each[1]/l", "each[0]/l", "first"]);
    project.windlass(&["undo", &run, "--yes", "--json"]).code(0);
    let expected = "did-first\ndid-one\ndid-two\nundo-two\nundo-one\nundo-first\n";
    assert_eq!(project.read("trace"), expected);
    project.windlass(&["undo", &run, "--yes", "--json"]).code(0);
    assert_eq!(project.read("trace"), expected);
    // What failed and took back its calls itself has nothing left to undo but what it kept.
    project.remove("trace");
    let failed = text(&project.run(&["fails"], 1), "id").to_owned();
    let rest = project.windlass(&["undo", &failed, "--dry-run", "--json"]).code(0).json();
    assert_eq!(rest["items"], serde_json::json!([]));
}

/// Lets everything that has ended leave the log.
fn retain_nothing(project: &Project) {
    project.windlass(&["store", "compact", "--retention", "1ms", "--yes"]).code(0);
}

#[test]
fn a_called_run_stays_as_long_as_its_caller_is_under_way_and_is_taken_back_with_it() {
    let project = Project::with(BOOK);
    let mut process = project.start(&["run", "book.yaml", "gated", "--json"]);
    let run = process.await_run();
    project.await_file("trace");
    until("the gate", || (project.show(&run)["status"] == "waiting_external").then_some(()));
    process.kill();
    let other = text(&project.run(&["works"], 0), "id").to_owned();
    project.remove("trace");
    retain_nothing(&project);
    project.windlass(&["show", &other]).code(5);
    project.windlass(&["signal", &run, "go"]).code(0);
    project.windlass(&["resume", &run, "--json"]);
    let run = project.show(&run);
    assert_eq!(undone(&run), [("c".to_owned(), "succeeded".to_owned())], "{run}");
    assert_eq!(project.read("trace"), "undo-one\n");
    // It is over, and so it leaves with the run that it called.
    retain_nothing(&project);
    assert_eq!(project.windlass(&["runs", "--json"]).code(0).json()["items"], serde_json::json!([]));
}

#[test]
fn a_run_stays_as_long_as_a_retry_of_it_is_under_way() {
    let project = Project::with(
        "
name: retried
pipelines:
  default:
    steps:
      - { id: did, run: echo did >> trace, compensate: { run: echo undo >> trace } }
      - { id: mended, run: test -e mended, compensate: false }
      - { id: gate, wait: { event: go } }
",
    );
    let failed = text(&project.run(&[], 1), "id").to_owned();
    project.write("mended", "");
    let mut process = project.start(&["retry", &failed, "--json"]);
    let run = process.await_run();
    until("the gate", || (project.show(&run)["status"] == "waiting_external").then_some(()));
    process.kill();
    retain_nothing(&project);
    assert_eq!(project.show(&failed)["status"], "failed");
    project.windlass(&["signal", &run, "go"]).code(0);
    // It may have gone on to its end with the signal.
    project.windlass(&["resume", &run, "--json"]);
    assert_eq!(project.show(&run)["status"], "completed");
    project.windlass(&["undo", &run, "--yes", "--json"]).code(0);
    // The first one took back what it did when it failed.
    assert_eq!(project.read("trace"), "did\nundo\ndid\nundo\n");
}

#[test]
fn a_retried_caller_goes_on_in_the_run_that_it_called() {
    let project = Project::with(BOOK);
    let failed = project.run(&["again"], 1);
    project.write("mended", "");
    project.windlass(&["retry", text(&failed, "id"), "--json"]).code(0);
    assert_eq!(project.read("trace"), "one\ntwo\ntwo\n", "the step that succeeded is not run again");
}

#[test]
fn the_commands_of_an_undo_have_the_variables_of_the_run_that_it_takes_back() {
    let project = Project::with(
        "
name: publish
pipelines:
  p:
    vars: { version: { required: true } }
    steps:
      - { id: out, run: 'echo published-$WL_VAR_VERSION >> trace', compensate: { run: 'echo unpublished-$WL_VAR_VERSION >> trace' } }
",
    );
    let run = text(&project.run(&["--var", "version=1.2"], 0), "id").to_owned();
    project.windlass(&["undo", &run, "--yes", "--json"]).code(0);
    assert_eq!(project.read("trace"), "published-1.2\nunpublished-1.2\n");
}
