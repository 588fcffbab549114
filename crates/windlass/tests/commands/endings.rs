//! How runs end: retries, timeouts, deadlines, compensations, `on_failure` and `finally`.

use crate::support::{Project, status_of, step, text};

#[test]
fn a_step_is_tried_again_as_often_as_it_says() {
    let project = Project::with(
        "
name: retry
pipelines:
  works:
    steps:
      - { id: s, run: 'echo x >> tries; [ $(wc -l < tries) -ge 3 ]', retry: { max_attempts: 3, backoff: 10ms } }
  gives_up:
    steps:
      - { id: s, run: 'echo x >> given; exit 1', retry: { max_attempts: 2, backoff: 10ms } }
",
    );
    let run = project.run(&["works"], 0);
    assert_eq!(step(&run, "s")["attempt"], 3);
    let run = project.run(&["gives_up"], 1);
    assert_eq!((step(&run, "s")["attempt"].as_u64(), project.read("given").lines().count()), (Some(2), 2));
}

#[test]
fn a_run_that_waits_to_be_tried_again_can_be_tried_at_once() {
    let project = Project::with(
        "
name: retry
pipelines:
  p: { steps: [ { id: s, run: 'test -e ok', retry: { max_attempts: 2, backoff: 1h } } ] }
",
    );
    let mut process = project.start(&["run", "book.yaml", "--json"]);
    let run = process.await_run();
    process.await_line("\"step:retrying\"");
    assert_eq!(text(&project.show(&run), "status"), "failed_retryable");
    project.write("ok", "");
    let same = project.windlass(&["retry", &run, "--json"]).code(0).last();
    assert_eq!((text(&same, "id"), text(&same, "status")), (run.as_str(), "completed"));
    process.wait().code(0);
}

#[test]
fn a_timeout_ends_the_whole_tree_of_the_attempt() {
    let project = Project::with(
        "
name: timeout
pipelines:
  p:
    steps:
      - { id: s, timeout: 300ms, run: 'setsid sleep 1000 & echo $! > pid; sleep 1000' }
",
    );
    let run = project.run(&[], 1);
    assert_eq!(step(&run, "s")["error"]["code"], "TIMED_OUT");
    let pid = project.await_file("pid");
    assert!(!crate::support::is_alive(&pid), "{pid} lives");
}

#[test]
fn a_deadline_ends_the_run_waits_included() {
    let project = Project::with(
        "
name: deadline
pipelines:
  works:
    deadline: 400ms
    steps:
      - { id: s, run: 'echo $$ > pid; sleep 1000' }
      - { id: never, run: touch never }
    finally: [ { run: echo finally >> trace } ]
  waits:
    deadline: 400ms
    steps: [ { id: s, wait: { event: never } } ]
    finally: [ { run: echo finally >> trace } ]
",
    );
    let run = project.run(&["works"], 1);
    assert_eq!(run["error"]["code"], "TIMED_OUT", "{run}");
    assert!(!project.has("never") && !crate::support::is_alive(&project.await_file("pid")));
    let run = project.run(&["waits"], 1);
    assert_eq!(run["error"]["code"], "TIMED_OUT", "{run}");
    assert_eq!(project.read("trace"), "finally\nfinally\n");
}

#[test]
fn after_a_failure_come_on_failure_compensations_in_reverse_and_finally() {
    let project = Project::with(
        r#"
name: saga
pipelines:
  p:
    steps:
      - id: one
        run: 'echo do-one >> trace; echo "key=k1" > "$WL_OUTPUT"'
        outputs: { key: string }
        compensate: { run: 'echo "undo-one $KEY" >> trace', env: { KEY: '${{ output.key }}' } }
      - id: two
        run: echo do-two >> trace
        compensate: { run: echo undo-two >> trace }
      - { id: kept, run: echo kept >> trace, compensate: false }
      - id: side
        parallel:
          - { id: left, run: echo left >> left, compensate: { run: echo undo-left >> trace } }
      - { id: bad, run: exit 5, compensate: { run: echo undo-bad >> trace } }
      - { id: never, run: touch never, compensate: { run: echo undo-never >> trace } }
    on_failure:
      - { run: 'echo "failed $STEP" >> trace', env: { STEP: '${{ error.step }}' } }
    finally:
      - { run: echo finally >> trace }
"#,
    );
    let run = project.run(&[], 1);
    let wanted = "do-one\ndo-two\nkept\nfailed bad\nundo-left\nundo-two\nundo-one k1\nfinally\n";
    assert_eq!(project.read("trace"), wanted, "{run}");
    assert!(!project.has("never"));
    assert_eq!((status_of(&run, "undo-one"), text(&run, "status")), ("succeeded", "failed"));
}

#[test]
fn finally_runs_after_success_too_and_compensations_do_not() {
    let project = Project::with(
        "
name: fine
pipelines:
  p:
    steps: [ { run: echo do >> trace, compensate: { run: echo undo >> trace } } ]
    on_failure: [ { run: echo on_failure >> trace } ]
    finally: [ { run: echo finally >> trace } ]
",
    );
    project.run(&[], 0);
    assert_eq!(project.read("trace"), "do\nfinally\n");
}

#[test]
fn outputs_that_cannot_be_made_are_a_failure_like_any_other() {
    let book = "
name: outputs
pipelines:
  p:
    outputs: { o: '${{ steps.a.output.nope }}' }
    steps: [ { id: a, run: 'echo \"{}\"', compensate: { run: echo undo >> trace } } ]
    on_failure: [ { run: 'echo \"$CODE\" >> trace', env: { CODE: '${{ error.code }}' } } ]
    finally: [ { id: f, run: echo finally >> trace } ]
";
    let project = Project::with(book);
    let run = project.run(&[], 1);
    assert_eq!(run["error"]["code"], "EXPRESSION_FAILED", "{run}");
    assert_eq!(project.read("trace"), "EXPRESSION_FAILED\nundo\nfinally\n");
    project.write("book.yaml", book.replace("steps.a.output.nope", "steps.f.output"));
    project
        .windlass(&["check", "book.yaml"])
        .code(2)
        .warns("`f` comes after the pipeline's outputs are taken");
}

#[test]
fn in_a_parallel_group_running_steps_finish_unless_they_are_to_be_killed() {
    let project = Project::with(
        "
name: parallel
pipelines:
  gentle:
    steps:
      - parallel:
          - { id: bad, run: 'until [ -e began ]; do sleep 0.02; done; echo > failed; exit 1' }
          - { id: slow, run: 'echo > began; until [ -e failed ]; do sleep 0.02; done; sleep 0.2; echo > finished' }
  harsh:
    steps:
      - fail_fast: kill
        parallel:
          - { id: bad, run: 'until [ -e started ]; do sleep 0.02; done; exit 1' }
          - { id: slow, run: 'echo $$ > pid; echo > started; sleep 1000; echo > never' }
",
    );
    let run = project.run(&["gentle"], 1);
    assert!(project.has("finished"), "{run}");
    assert_eq!((status_of(&run, "bad"), status_of(&run, "slow")), ("failed", "succeeded"));
    let run = project.run(&["harsh"], 1);
    assert_eq!((status_of(&run, "slow"), project.has("never")), ("cancelled", false), "{run}");
    assert!(!crate::support::is_alive(&project.await_file("pid")));
}

#[test]
fn retrying_a_failed_run_reuses_what_succeeded() {
    let project = Project::with(
        r#"
name: again
pipelines:
  p:
    steps:
      - { id: first, run: 'echo first >> trace; echo "v=1" > "$WL_OUTPUT"', outputs: { v: string } }
      - { id: second, run: '[ -e fixed ]; echo "second $V" >> trace', env: { V: '${{ steps.first.output.v }}' } }
      - { id: third, run: echo third >> trace }
"#,
    );
    let failed = project.run(&[], 1);
    project.windlass(&["retry", text(&failed, "id"), "--json"]).code(1);
    project.write("fixed", "");
    let retried = project.windlass(&["retry", text(&failed, "id"), "--json"]).code(0).last();
    assert_eq!(project.read("trace"), "first\nsecond 1\nthird\n");
    assert_eq!((&retried["resumed_from"], &retried["root_run"]), (&failed["id"], &failed["id"]));
    assert_eq!(retried["resume_count"], 1);
    // That it is retried stands in the stream of the run that failed, with the run that goes on.
    let asked = project.events("pipeline:retry");
    let last = asked.last().expect("a record");
    assert_eq!((&last["id"], &last["new"]), (&failed["id"], &retried["id"]));
    assert_eq!(text(last, "stream"), format!("run/{}", text(&failed, "id")));
    // What is completed is not retried.
    project.windlass(&["retry", text(&retried, "id")]).code(6).warns("RUN_");
}

#[test]
fn a_fork_goes_on_from_a_step_also_with_another_runbook() {
    let project = Project::with(
        "
name: fork
pipelines:
  p:
    steps:
      - { id: build, run: echo build >> trace }
      - { id: test, run: echo test >> trace }
      - { id: ship, run: echo ship >> trace }
",
    );
    let run = project.run(&[], 0);
    let forked = project.windlass(&["fork", text(&run, "id"), "--from", "test", "--json"]).code(0).last();
    assert_eq!(project.read("trace"), "build\ntest\nship\ntest\nship\n");
    assert_eq!(forked["resumed_from"], run["id"]);
    project.windlass(&["fork", text(&run, "id"), "--from", "nowhere"]).code(5).warns("nowhere");
    let fixed = project.read("book.yaml").replace("echo ship", "echo shipped");
    project.write("fixed.yaml", fixed);
    let words = ["fork", text(&run, "id"), "--from", "ship", "--runbook", "fixed.yaml", "--json"];
    project.windlass(&words).code(0);
    assert_eq!(project.read("trace"), "build\ntest\nship\ntest\nship\nshipped\n");
}

#[test]
fn what_goes_outside_is_denied_without_a_policy() {
    let project = Project::with(
        "
name: outside
pipelines:
  p:
    steps:
      - { id: post, http: { url: 'http://127.0.0.1:9/', method: POST } }
",
    );
    let run = project.run(&[], 1);
    assert_eq!(run["error"]["code"], "POLICY_DENIED", "{run}");
}
