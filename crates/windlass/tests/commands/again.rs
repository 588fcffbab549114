//! Again: what a retry, a fork and an undo do with what was done, or taken back, before.

use crate::support::{Process, Project, status_of, text};
use serde_json::Value;
use std::collections::BTreeSet;

fn id(run: &Value) -> String {
    text(run, "id").to_owned()
}

/// The run that a command made, which it waited for.
fn made(project: &Project, words: &[&str], code: i32) -> String {
    project.windlass(&[words, &["--json"]].concat()).code(code);
    project.newest()
}

#[test]
fn a_retry_and_a_fork_take_over_a_strategy_and_a_retried_group_as_they_stood() {
    let project = Project::with(
        r#"
name: s
pipelines:
  st:
    steps:
      - id: s
        strategy:
          - { id: fast, run: 'test -e calm; echo fast-lane >> trace; echo "{\"via\":\"fast\"}"', fallback_on: any }
          - { id: slow, run: 'echo slow-lane >> trace; echo "{\"via\":\"slow\"}"', compensate: { run: 'echo unslow >> trace; test -e fixed' } }
      - { id: t, run: 'echo "tell $V" >> trace; test -e fixed', env: { V: '${{ steps.s.output.via }}' } }
  gr:
    steps:
      - id: g
        retry: { max_attempts: 2, backoff: 50ms }
        steps: [ { id: x, run: 'echo x >> trace' }, { id: y, run: 'echo y >> trace; test -e yf || { touch yf; exit 1; }' } ]
      - { id: e, run: 'test -e fixed' }
"#,
    );
    let run = id(&project.run(&["st"], 1));
    assert_eq!(project.read("trace"), "slow-lane\ntell slow\nunslow\n");
    project.write("calm", "");
    project.write("fixed", "");
    for words in [&["retry", &run][..], &["fork", &run, "--from", "t"]] {
        project.remove("trace");
        let again = made(&project, words, 0);
        assert_eq!(project.read("trace"), "tell slow\n", "{words:?}");
        let shown = project.show(&again);
        assert_eq!((status_of(&shown, "fast"), status_of(&shown, "slow")), ("skipped", "succeeded"));
    }
    project.remove("trace");
    project.remove("fixed");
    let run = id(&project.run(&["gr"], 1));
    assert_eq!(project.read("trace"), "x\ny\nx\ny\n");
    project.write("fixed", "");
    made(&project, &["retry", &run], 0);
    assert_eq!(project.read("trace"), "x\ny\nx\ny\n");
}

#[test]
fn an_undo_that_is_asked_for_twice_is_one() {
    let project = Project::with(
        "
name: twice
pipelines:
  p:
    steps:
      - id: a
        run: echo a >> trace
        compensate: { run: 'echo undo-begin >> trace; touch began; until test -e go; do sleep 0.05; done; echo undo-end >> trace' }
      - { id: b, run: echo b >> trace }
",
    );
    let run = id(&project.run(&[], 0));
    let undo = ["undo", &run, "--yes", "--json"];
    let first = project.start(&undo);
    project.await_exists("began");
    // The owner of the directory is at work, and it answers both.
    let by = project.newest();
    let mut others: Vec<_> = (0..3).map(|_| project.start(&undo)).collect();
    for other in &mut others {
        assert_eq!(other.await_run(), by, "each follows the one that is under way");
    }
    let planned = project.windlass(&["undo", &run, "--dry-run", "--json"]).code(0).json();
    let why = text(&planned["items"][0], "reason");
    assert!(why.contains(&by) && why.contains("is taking it back"), "{planned}");
    // What it would take over may be gone a moment later.
    let refused = project.windlass(&["fork", &run, "--from", "b", "--json"]);
    assert!(refused.err.contains("RUN_INVALID_TRANSITION") && refused.err.contains(&by), "{}", refused.err);
    project.write("go", "");
    first.wait().code(0);
    for other in others {
        other.wait().code(0);
    }
    assert_eq!(project.read("trace"), "a\nb\nundo-begin\nundo-end\n");
    assert_eq!(project.newest(), by, "no other run was made");
    // Four at once: none of them finds one that is under way when it begins.
    let run = id(&project.run(&[], 0));
    project.remove("trace");
    project.remove("go");
    let undo = ["undo", &run, "--yes", "--json"];
    let mut four: Vec<_> = (0..4).map(|_| project.start(&undo)).collect();
    let by: BTreeSet<String> = four.iter_mut().map(Process::await_run).collect();
    assert_eq!(by.len(), 1, "{by:?}");
    project.write("go", "");
    for one in four {
        one.wait().code(0);
    }
    assert_eq!(project.read("trace"), "undo-begin\nundo-end\n");
}

#[test]
fn what_an_undo_took_back_is_made_again_by_a_retry_and_a_fork() {
    let project = Project::with(
        "
name: again
pipelines:
  p:
    steps:
      - { id: a, run: echo a >> trace, compensate: { run: 'echo ua >> trace; test -e uok' } }
      - { id: b, run: 'test -e ok' }
      - { id: c, run: echo c >> trace }
",
    );
    let run = id(&project.run(&[], 1));
    project.write("uok", "");
    project.windlass(&["undo", &run, "--yes", "--json"]).code(0);
    project.write("ok", "");
    let again = made(&project, &["retry", &run], 0);
    assert_eq!(project.read("trace"), "a\nua\nua\na\nc\n");
    project.remove("trace");
    project.windlass(&["undo", &again, "--yes", "--json"]).code(0);
    made(&project, &["fork", &again, "--from", "c"], 0);
    assert_eq!(project.read("trace"), "ua\na\nc\n");
}

#[test]
fn what_was_taken_back_once_is_not_taken_back_from_another_run() {
    let project = Project::with(
        "
name: once
pipelines:
  caller: { steps: [ { id: k, call: called } ] }
  called: { steps: [ { id: s, run: echo s >> trace, compensate: { run: echo us >> trace } } ] }
  p:
    steps:
      - { id: a, run: echo a >> trace, compensate: { run: echo ua >> trace } }
      - { id: b, run: echo b >> trace, compensate: { run: echo ub >> trace } }
",
    );
    for child_first in [true, false] {
        project.remove("trace");
        let caller = project.run(&["caller"], 0);
        let child = text(&caller["steps"][0], "child_run").to_owned();
        let caller = id(&caller);
        let both = if child_first { [&child, &caller] } else { [&caller, &child] };
        for run in both {
            project.windlass(&["undo", run, "--yes", "--json"]).code(0);
        }
        assert_eq!(project.read("trace"), "s\nus\n", "the called run first: {child_first}");
    }
    for fork_first in [true, false] {
        project.remove("trace");
        let origin = id(&project.run(&["p"], 0));
        let fork = made(&project, &["fork", &origin, "--from", "b"], 0);
        let plan = project.windlass(&["undo", &fork, "--dry-run", "--json"]).code(0).json();
        let reused = plan["items"].as_array().unwrap().iter().find(|item| item["step"] == "a").unwrap();
        assert_eq!(reused["state"], "irreversible", "{plan}");
        assert!(text(reused, "reason").contains(&origin), "{plan}");
        let both = if fork_first { [&fork, &origin] } else { [&origin, &fork] };
        for run in both {
            project.windlass(&["undo", run, "--yes", "--json"]).code(0);
        }
        let trace = project.read("trace");
        let count = |line: &str| trace.lines().filter(|found| *found == line).count();
        assert_eq!((count("ua"), count("ub")), (1, 2), "{trace}");
    }
}

#[test]
fn a_fork_from_a_call_makes_the_call_again_and_a_call_that_is_tried_again_goes_on() {
    let project = Project::with(
        "
name: calls
pipelines:
  forked: { steps: [ { id: k, call: ch }, { id: z, run: echo z >> trace } ] }
  ch: { steps: [ { id: c, run: echo c >> trace } ] }
  tried: { steps: [ { id: k, call: half, retry: { max_attempts: 2, backoff: 50ms } } ] }
  half:
    steps:
      - { id: p, run: echo p >> trace }
      - { id: q, run: 'echo q >> trace; test -e qf || { touch qf; exit 1; }' }
",
    );
    let run = id(&project.run(&["forked"], 0));
    made(&project, &["fork", &run, "--from", "k"], 0);
    assert_eq!(project.read("trace"), "c\nz\nc\nz\n");
    project.remove("trace");
    project.run(&["tried"], 0);
    assert_eq!(project.read("trace"), "p\nq\nq\n", "what stands in the called run is not run again");
}
