//! Stopping: cancel, suspend, Ctrl-C.

use crate::support::{Project, is_alive, status_of, text, until};
use rustix::process::Signal;

const LONG: &str = "
name: long
pipelines:
  p:
    steps:
      - { id: first, run: echo first >> trace, compensate: { run: echo undo-first >> trace } }
      - id: hang
        run: |
          setsid sleep 1000 &
          echo $! > detached
          sleep 1000 &
          echo $! > child
          echo $$ > began
          wait
      - { id: never, run: echo never >> trace }
    finally:
      - { id: last, run: echo finally >> trace }
  steps:
    steps:
      - { id: one, run: 'echo one >> trace; echo > began; until [ -e go ]; do sleep 0.02; done' }
      - { id: two, run: echo two >> trace }
";

/// A run in the middle of its second step, and the processes of that step.
fn hanging(project: &Project) -> (crate::support::Process, String, Vec<String>) {
    let mut process = project.start(&["run", "book.yaml", "p", "--json"]);
    let run = process.await_run();
    let shell = project.await_file("began");
    let pids = vec![shell, project.await_file("child"), project.await_file("detached")];
    assert!(pids.iter().all(|pid| is_alive(pid)));
    (process, run, pids)
}

#[test]
fn cancelling_ends_the_tree_and_runs_compensations_and_finally() {
    let project = Project::with(LONG);
    let (process, run, pids) = hanging(&project);
    let cancelled = project.windlass(&["cancel", &run, "--reason", "wrong version", "--json"]).code(0).json();
    assert_eq!(cancelled["status"], "cancelled");
    assert!(pids.iter().all(|pid| !is_alive(pid)), "{pids:?} live");
    let ended = process.wait().code(3).last();
    assert_eq!(status_of(&ended, "hang"), "cancelled");
    assert!(ended["cancellation"].to_string().contains("wrong version"), "{ended}");
    assert_eq!(project.read("trace"), "first\nundo-first\nfinally\n");
    project.windlass(&["show", &run, "--exit-status"]).code(3);
    project.windlass(&["cancel", &run]).code(6).warns("RUN_TERMINAL_STATE");
}

#[test]
fn a_run_that_nobody_executes_can_be_cancelled() {
    let project = Project::with(LONG);
    let (process, run, pids) = hanging(&project);
    process.kill();
    let cancelled = project.windlass(&["cancel", &run, "--json"]).code(0).json();
    assert_eq!(cancelled["status"], "cancelled");
    assert!(pids.iter().all(|pid| !is_alive(pid)), "{pids:?} live");
    assert_eq!(project.read("trace"), "first\nundo-first\nfinally\n");
}

#[test]
fn cancelling_reaches_what_was_called() {
    let project = Project::with(
        "
name: family
pipelines:
  parent:
    steps: [ { id: child, call: child } ]
    finally: [ { run: echo parent >> trace } ]
  child:
    steps: [ { run: 'echo $$ > began; sleep 1000' } ]
    finally: [ { run: echo child >> trace } ]
",
    );
    let mut process = project.start(&["run", "book.yaml", "parent", "--json"]);
    let run = process.await_run();
    let pid = project.await_file("began");
    project.windlass(&["cancel", &run]).code(0);
    process.wait().code(3);
    assert!(!is_alive(&pid));
    assert_eq!(project.read("trace"), "child\nparent\n");
    let all = project.windlass(&["runs", "--status", "cancelled", "--json"]).code(0).json();
    assert_eq!(all["items"].as_array().unwrap().len(), 2);
}

#[test]
fn a_suspended_run_starts_nothing_until_it_is_resumed() {
    let project = Project::with(LONG);
    let mut process = project.start(&["run", "book.yaml", "steps", "--json"]);
    let run = process.await_run();
    project.await_file("began");
    project.windlass(&["suspend", &run]).code(0).says("windlass resume");
    project.write("go", "");
    until("the first step to be done", || {
        (status_of(&project.show(&run), "one") == "succeeded").then_some(())
    });
    let shown = project.show(&run);
    assert_eq!((&shown["suspended"], text(&shown, "status")), (&true.into(), "waiting_external"));
    project.windlass(&["why", &run]).code(0).says("it is suspended");
    assert_eq!(project.read("trace"), "one\n");
    project.windlass(&["resume", &run, "--message", "go on"]).code(0);
    process.wait().code(0);
    assert_eq!(project.read("trace"), "one\ntwo\n");
}

#[test]
fn the_first_interrupt_suspends_and_a_resume_goes_on() {
    let project = Project::with(LONG);
    let mut process = project.start(&["run", "book.yaml", "steps", "--json"]);
    let run = process.await_run();
    project.await_file("began");
    process.signal(Signal::INT);
    process.wait().code(130).warns(&format!("windlass resume {run}"));
    let shown = project.show(&run);
    assert_eq!((&shown["suspended"], text(&shown, "status")), (&true.into(), "waiting_external"));
    project.write("go", "");
    assert_eq!(project.windlass(&["resume", "--json"]).code(0).last()["status"], "completed");
    assert_eq!(project.read("trace"), "one\none\ntwo\n");
}

#[test]
fn the_second_interrupt_ends_at_once_and_nothing_stays_behind() {
    let project = Project::with(
        "
name: stubborn
pipelines:
  p: { steps: [ { run: \"trap 'echo asked > asked' TERM INT; echo $$ > began; while :; do sleep 0.05; done\" } ] }
",
    );
    let mut process = project.start(&["run", "book.yaml", "--json"]);
    process.await_run();
    let pid = project.await_file("began");
    process.signal(Signal::INT);
    project.await_file("asked");
    process.signal(Signal::INT);
    process.wait().code(130);
    until("the stubborn step to be gone", || (!is_alive(&pid)).then_some(()));
}

#[test]
fn an_interrupted_step_that_must_not_be_repeated_is_not() {
    let project = Project::with(
        "
name: charge
pipelines:
  p:
    steps:
      - { id: charge, effect: at_most_once, run: 'echo charged >> trace; echo > began; sleep 1000' }
",
    );
    let mut process = project.start(&["run", "book.yaml", "--json"]);
    let run = process.await_run();
    project.await_file("began");
    process.signal(Signal::INT);
    process.wait().code(130);
    let resumed = project.start(&["resume", &run, "--json"]);
    until("the outcome to be unknown", || {
        (status_of(&project.show(&run), "charge") == "outcome_unknown").then_some(())
    });
    resumed.kill();
    assert_eq!(project.read("trace"), "charged\n");
}

#[test]
fn a_run_that_has_ended_is_not_resumed() {
    let project = Project::with("\nname: over\npipelines:\n  p: { steps: [ { run: exit 3 } ] }\n");
    let run = project.run(&[], 1);
    let refused = project.windlass(&["resume", text(&run, "id"), "--json"]).code(6);
    let problem: serde_json::Value = serde_json::from_str(&refused.err).unwrap();
    assert_eq!(
        (&problem["code"], &problem["status"]),
        (&"RUN_TERMINAL_STATE".into(), &409.into()),
        "{problem}"
    );
    assert!(text(&problem, "detail").contains("windlass retry"), "{problem}");
}

#[test]
fn a_variable_is_changed_in_the_type_that_is_declared() {
    let project = Project::with(
        "
name: typed
pipelines:
  p:
    vars: { s: { type: string, default: a }, n: { type: number, default: 1 } }
    steps:
      - { id: wait, run: 'echo out; echo > began; until [ -e go ]; do sleep 0.02; done' }
      - { id: show, run: 'echo \"$WL_VAR_S\" > trace' }
",
    );
    let mut process = project.start(&["run", "book.yaml", "--json"]);
    let run = process.await_run();
    project.await_file("began");
    process.kill();
    project.windlass(&["why", &run]).code(0).says("interrupted").says("windlass resume");
    for wrong in ["n=x", "m=1"] {
        project.windlass(&["resume", &run, "--var", wrong]).code(2);
    }
    project.write("go", "");
    project.windlass(&["resume", &run, "--var", "s=1.10", "--var", "n=2"]).code(0);
    assert_eq!(project.read("trace"), "1.10\n");
    let shown = project.show(&run);
    assert_eq!((&shown["vars"]["s"], &shown["vars"]["n"]), (&"1.10".into(), &2.into()), "{shown}");
    let lines = project.windlass(&["logs", &run, "--json"]).code(0).lines();
    assert!(!lines.is_empty() && lines.iter().all(|line| text(line, "at").ends_with('Z')), "{lines:?}");
}

#[test]
fn a_command_that_ends_with_0_although_it_was_stopped_is_taken_back() {
    let project = Project::with(
        "
name: book
pipelines:
  asked:
    steps:
      - id: b
        run: \"trap 'echo booked >> trace; exit 0' TERM; echo > began; while :; do sleep 0.05; done\"
        compensate: { run: echo unbook >> trace }
  once:
    steps:
      - id: b
        effect: at_most_once
        run: \"trap 'echo booked >> trace; exit 0' TERM; echo > began; while :; do sleep 0.05; done\"
        compensate: { run: echo unbook >> trace }
  killed:
    steps:
      - id: both
        fail_fast: kill
        parallel:
          - id: b
            run: \"trap 'echo booked >> trace; exit 0' TERM; echo > began; while :; do sleep 0.05; done\"
            compensate: { run: echo unbook >> trace }
          - { id: breaks, run: 'until test -e began; do sleep 0.05; done; exit 3' }
",
    );
    for (pipeline, ends) in [("asked", "cancelled"), ("once", "cancelled"), ("killed", "failed")] {
        let mut process = project.start(&["run", "book.yaml", pipeline, "--json"]);
        let run = process.await_run();
        project.await_exists("began");
        if ends == "cancelled" {
            project.windlass(&["cancel", &run, "--json"]);
        }
        process.wait();
        let shown = project.show(&run);
        assert_eq!((text(&shown, "status"), status_of(&shown, "b")), (ends, "succeeded"), "{pipeline}");
        assert_eq!(project.read("trace"), "booked\nunbook\n", "{pipeline}");
        let exits = project.events("shell:exited");
        let code = exits.iter().find(|exit| exit["pipeline_id"] == run.as_str() && exit["step"] == "b");
        assert_eq!(code.map(|exit| &exit["exit_code"]), Some(&0.into()), "{pipeline}");
        project.remove("trace");
        project.remove("began");
    }
}
