//! Guards that ask about what only the run knows, and about runs that have ended.

use crate::support::{Project, text};

const BOOK: &str = "
name: guards
pipelines:
  base: { steps: [ { run: 'test ! -e broken' } ] }
  file:
    vars: { name: { required: true } }
    steps:
      - { id: ask, run: echo ran >> trace, guard: [ { file_exists: 'out/${{ vars.name }}', on_failure: fail } ] }
  content:
    vars: { word: { required: true } }
    steps:
      - { id: made, run: 'echo \"path=notes\" > \"$WL_OUTPUT\"' }
      - id: ask
        run: echo ran >> trace
        guard: [ { not: { file_contains: { path: '${{ steps.made.output.path }}', pattern: '${{ vars.word }}' } }, on_failure: fail } ]
  latest: { steps: [ { id: ask, run: echo ran >> trace, guard: [ { pipeline_complete: { pipeline: base, latest: true }, on_failure: fail } ] } ] }
  phase: { steps: [ { id: ask, run: echo ran >> trace, guard: [ { pipeline_in_phase: { pipeline: base, phase: failed, latest: true }, on_failure: fail } ] } ] }
  one:
    vars: { of: { required: true } }
    steps: [ { id: ask, run: echo ran >> trace, guard: [ { pipeline_complete: '${{ vars.of }}', on_failure: fail } ] } ]
  after: { steps: [ { id: ask, run: echo ran >> trace, guard: { after: [ { file_exists: absent, on_failure: fail } ] } } ] }
";

fn error(run: &serde_json::Value) -> String {
    text(&run["error"], "message").to_owned()
}

#[test]
fn paths_and_patterns_are_expressions_that_are_recorded_as_they_were_asked() {
    let project = Project::with(BOOK);
    let failed = project.run(&["file", "--var", "name=a"], 1);
    assert!(error(&failed).contains("`out/a`"), "{failed}");
    project.write("out/a", "x");
    project.run(&["file", "--var", "name=a"], 0);
    let passed = project.events("guard:passed");
    assert_eq!(passed[0]["asked"], serde_json::json!(["file `out/a` exists"]));
    project.write("notes", "done");
    let failed = project.run(&["content", "--var", "word=done"], 1);
    assert!(error(&failed).contains("`notes`"), "{failed}");
    project.run(&["content", "--var", "word=todo"], 0);
}

#[test]
fn a_run_that_has_ended_is_found_by_its_id_and_as_the_newest_of_its_pipeline() {
    let project = Project::with(BOOK);
    let unknown = project.run(&["latest"], 1);
    assert!(error(&unknown).contains("nobody can say whether the newest run of `base`"), "{unknown}");
    let base = text(&project.run(&["base"], 0), "id").to_owned();
    project.run(&["latest"], 0);
    project.run(&["one", "--var", &format!("of={base}")], 0);
    project.run(&["phase"], 1);
    project.write("broken", "");
    project.run(&["base"], 1);
    let failed = project.run(&["latest"], 1);
    assert!(
        error(&failed).contains("it does not hold that the newest run of `base` is completed"),
        "{failed}"
    );
    project.run(&["phase"], 0);
    let wrong = project.run(&["one", "--var", "of=nonsense"], 1);
    assert!(error(&wrong).contains("cannot be asked with these values"), "{wrong}");
}

#[test]
fn a_guard_after_says_which_file_it_missed() {
    let project = Project::with(BOOK);
    let failed = project.run(&["after"], 1);
    assert_eq!(
        error(&failed),
        "the guard `file_exists` does not hold: it does not hold that file `absent` exists"
    );
}

#[test]
fn why_says_what_a_guard_misses_and_that_it_cannot_be_answered() {
    let project = Project::with(
        "
name: waits
issues: { command: \"echo '[{\\\"id\\\": \\\"A-1\\\", \\\"status\\\": \\\"Done\\\"}]'\" }
pipelines:
  unknown: { steps: [ { id: s, run: 'true', guard: [ { issues_complete: { ids: [A-1] } } ] } ] }
  missing: { steps: [ { id: s, run: 'true', guard: [ { file_exists: absent, on_failure: { retry: 1h, for: 2h } } ] } ] }
",
    );
    for (pipeline, says) in [
        ("unknown", &["nobody can say whether", "unknown word `Done`", "It is asked again at"][..]),
        (
            "missing",
            &["it does not hold that file `absent` exists", "the step fails where it does not hold by"],
        ),
    ] {
        let mut process = project.start(&["run", "book.yaml", pipeline, "--json"]);
        let run = process.await_run();
        process.await_line("\"guard:blocked\"");
        let why = project.windlass(&["why", &run]).code(0);
        for text in says {
            assert!(why.out.contains(text), "{text}: {}", why.out);
        }
        process.kill();
    }
}

#[test]
fn a_runbook_lists_issues_by_its_own_command_in_its_own_directory() {
    let book = "
name: listed
issues: { command: ./list }
pipelines:
  p: { steps: [ { id: s, run: 'true', guard: [ { issues_complete: { ids: [A-1] }, on_failure: fail } ] } ] }
";
    let project = Project::new();
    project.write("ops/book.yaml", book);
    project.write("windlass.yaml", "issues: { command: 'echo []' }\n");
    project.script("ops/list", r#"echo '[{"id":"A-1","status":"done","labels":[]}]'"#);
    // The configuration's command knows no such issue: without the runbook's own, the guard would not hold.
    project.windlass(&["run", "ops/book.yaml"]).code(0);
    let decided = project.events("policy:decided");
    assert!(
        decided.iter().any(|event| event["purpose"] == "issues" && event["verdict"] == "allow"),
        "{decided:?}"
    );
    // Policy sees the command.
    let rules =
        "permit (principal, action, resource);\n@reason(\"no lists\") forbid (principal, action, resource)
        when { resource.hasTag(\"command\") && resource.getTag(\"command\") like \"*list*\" };";
    project.write("policy/a.cedar", rules);
    project.windlass(&["run", "ops/book.yaml"]).code(1).says("policy does not allow the command");
    let mut denied = project.events("policy:decided").into_iter().filter(|event| event["verdict"] == "deny");
    assert_eq!(denied.next_back().unwrap()["reasons"][0], "no lists");
    project.write("ops/book.yaml", book.replace("{ command: ./list }", "{ command: '' }"));
    project.windlass(&["check", "ops/book.yaml"]).code(2).warns("`command` is empty");
    project.write("ops/book.yaml", book.replace("{ command: ./list }", "./list"));
    project.windlass(&["check", "ops/book.yaml"]).code(2).warns("issues");
}
