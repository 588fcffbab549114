//! Runs that call runs: holds along a chain of calls, and what is taken back of it.

use crate::support::{Project, text, until};

/// Coverage: 002 Lock operations, "reclaim prevents deadlock from crashed processes": a called run has its caller's locks.
#[test]
fn what_a_caller_holds_its_callee_has() {
    let project = Project::with(
        "
name: chain
semaphores: { builders: { capacity: 2 } }
pipelines:
  leaf: { steps: [ { id: s, lock: L, run: echo leaf >> trace } ] }
  locked: { lock: L, steps: [ { id: s, run: echo locked >> trace } ] }
  ousts: { lock: { name: L, overlap: cancel }, steps: [ { id: s, run: echo ousts >> trace } ] }
  skips: { lock: { name: L, overlap: skip }, steps: [ { id: s, run: echo skips >> trace } ] }
  middle: { steps: [ { id: m, call: leaf } ] }
  builds: { steps: [ { id: s, semaphore: { name: builders, weight: 2 }, run: echo builds >> trace } ] }
  by-run: { lock: L, deadline: 1m, steps: [ { id: c, call: middle }, { id: d, call: locked } ] }
  by-step: { deadline: 1m, steps: [ { id: c, lock: L, call: locked }, { id: d, lock: L, call: middle } ] }
  by-group:
    deadline: 1m
    steps: [ { id: g, lock: L, steps: [ { id: c, call: ousts }, { id: d, call: skips } ] } ]
  by-slots: { deadline: 1m, steps: [ { id: c, semaphore: { name: builders, weight: 2 }, call: builds } ] }
",
    );
    let cases = [
        ("by-run", "leaf\nlocked\n"),
        ("by-step", "locked\nleaf\n"),
        ("by-group", "ousts\nskips\n"),
        ("by-slots", "builds\n"),
    ];
    for (pipeline, trace) in cases {
        project.remove("trace");
        project.run(&[pipeline], 0);
        assert_eq!(project.read("trace"), trace, "{pipeline}");
    }
    // Each lock was taken and given back by its real owner alone, so it is free for everybody afterwards.
    let (taken, given) = (project.events("lock:acquired"), project.events("lock:released"));
    assert_eq!((taken.len(), given.len()), (4, 4), "{taken:?} {given:?}");
    for (taken, given) in taken.iter().zip(&given) {
        assert_eq!(text(taken, "holder"), text(given, "holder"));
    }
    let slots = project.windlass(&["semaphore", "show", "builders", "--json"]);
    assert!(slots.status.code() != Some(0) || slots.json()["available"] != 0, "{}", slots.out);
}

/// Coverage: 000 Pipeline transitions, "(Init,Start) unmet dependencies → Blocked, emit pipeline:blocked".
#[test]
fn a_run_that_needs_a_pipeline_that_never_ran_waits_until_it_has() {
    let project = Project::with(
        "
name: needy
pipelines:
  base: { steps: [ { run: echo base >> trace } ] }
  other: { steps: [ { run: echo other >> trace } ] }
  locked: { lock: L, needs: [base, other], steps: [ { run: echo locked >> trace } ] }
",
    );
    let mut waits = project.start(&["run", "book.yaml", "locked", "--json"]);
    let run = waits.await_run();
    until("the run to be blocked", || (project.show(&run)["status"] == "blocked").then_some(()));
    assert_eq!(text(&project.show(&run), "reason"), "pipeline base, other");
    project.windlass(&["why", &run]).code(0).says("`base`").says("none has run yet");
    // Each of them has to come; a restart in between loses nothing.
    project.windlass(&["run", "book.yaml", "base"]).code(0);
    until("the next one", || (project.show(&run)["reason"] == "pipeline other").then_some(()));
    waits.kill();
    project.windlass(&["run", "book.yaml", "other"]).code(0);
    // The process above may have carried it out to its end already.
    project.windlass(&["resume", &run]);
    assert_eq!(text(&project.show(&run), "status"), "completed");
    assert_eq!(project.read("trace"), "base\nother\nlocked\n");
    let on: Vec<_> =
        project.events("pipeline:blocked").into_iter().map(|event| event["on"].clone()).collect();
    let on = on.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    assert_eq!(on, r#"{"pipelines":["base","other"]} {"pipelines":["other"]} {"lock":"L"}"#);
}
