//! What is said to people: enough to go on with, once, and nothing that nobody asked for.

use crate::support::{Project, text};

const BOOK: &str = "
name: said
pipelines:
  plain:
    vars: { version: { default: one } }
    steps:
      - { id: first, when: 'vars.version == \"one\"', timeout: 5s, retry: 3, run: echo first, effect: at_most_once, compensate: { run: echo back } }
      - { id: ask, approve: { message: 'Deploy ${{ steps.first.output.tag }} of ${{ vars.version }}?' } }
    finally: [ { id: last, run: 'true' } ]
  done: { steps: [ { id: d, run: 'true', effect: at_most_once, compensate: { run: echo back } } ] }
  each: { steps: [ { id: e, foreach: [a, b], env: { IT: '${{ item }}' }, run: echo it-$IT } ] }
  waits: { steps: [ { id: w, wait: { event: go, timeout: 1h } } ] }
  gpu: { steps: [ { id: g, runs_on: [gpu, big], run: 'true' } ] }
";

#[test]
fn a_dry_run_shows_the_terms_of_each_step_and_what_is_not_known_yet_as_it_is_written() {
    let project = Project::with(BOOK);
    project.write("policy/a.cedar", "permit (principal, action, resource);\n@reason(\"not here\") forbid (principal, action == Windlass::Action::\"shell\", resource);");
    let done = project.windlass(&["run", "book.yaml", "plain", "--dry-run"]).code(0);
    let done = done.says("first [shell]  policy: deny (not here)  (`when` is true)");
    let done = done.says("timeout 5.0 s, 3 attempts, effect at_most_once, compensated by");
    let done = done.says("last [shell]  in finally");
    let done = done.says("Deploy ${{ steps.first.output.tag }} of ${{ vars.version }}?");
    assert!(!done.out.contains("literal"), "{}", done.out);
}

#[test]
fn a_refusal_says_what_there_is_and_its_code_once() {
    let project = Project::with(BOOK);
    project.windlass(&["runs", "--status", "bogus"]).code(2).warns("there are pending, blocked, running");
    for _ in 0..2 {
        project.windlass(&["run", "book.yaml", "waits", "--detach"]).code(0);
    }
    let runs = project.windlass(&["runs", "--json"]).code(0).json();
    let refused = project.windlass(&["resume"]).code(2).warns("2 runs can be resumed");
    for run in runs["items"].as_array().unwrap() {
        assert!(refused.err.contains(text(run, "id")), "{}", refused.err);
    }
    project.write("bad.yaml", "name: bad\npipelines: { p: { steps: [] } }\n");
    let refused = project.windlass(&["check", "bad.yaml"]).code(2);
    assert_eq!(
        refused.err.matches("RUNBOOK_INVALID").count(),
        2,
        "in the title and in its page: {}",
        refused.err
    );
    // A rule that is wrong for many actions is told once, with what is nearest to it.
    project.write(
        "rules/a.cedar",
        "permit (principal, action, resource) when { context.fields.chanel == \"x\" };",
    );
    let refused = project.windlass(&["policy", "check", "rules"]).code(2).warns("did you mean `channel`?");
    assert_eq!(refused.err.matches("fields.chanel`").count(), 1, "{}", refused.err);
}

#[test]
fn what_somebody_did_and_waits_for_is_said() {
    let project = Project::with(BOOK);
    let waits = project.windlass(&["run", "book.yaml", "waits", "--detach"]).code(0).out;
    project.windlass(&["cancel", waits.trim(), "--reason", "wrong one"]).code(0);
    project.windlass(&["show", waits.trim()]).code(0).says("cancelled  by ").says("wrong one");
    let gpu = project.windlass(&["run", "book.yaml", "gpu", "--detach"]).code(0).out;
    project.windlass(&["why", gpu.trim()]).code(0).says("with the labels gpu, big");
    project.windlass(&["cancel", gpu.trim()]).code(0);
    // The output of a step is that of all its items.
    project.windlass(&["run", "book.yaml", "each", "--quiet"]).code(0);
    project.windlass(&["logs", &project.newest(), "e"]).code(0).says("it-a").says("it-b");
    let tail = project.windlass(&["logs", &project.newest(), "--tail", "1"]).code(0).out;
    assert_eq!(tail.lines().count(), 1, "{tail}");
    let timed =
        project.windlass(&["logs", &project.newest(), "e", "--timestamps", "--since", "1h"]).code(0).out;
    let began = timed.lines().all(|line| line.starts_with("20") && line.contains("Z it-"));
    assert!(began && timed.lines().count() == 2, "{timed}");
    let none = project.windlass(&["logs", &project.newest(), "--since", "2999-01-01T00:00:00Z"]).code(0).out;
    assert_eq!(none, "");
    // What was undone is not said to have done nothing.
    project.windlass(&["run", "book.yaml", "done", "--quiet"]).code(0);
    let done = project.newest();
    project.windlass(&["undo", &done, "--yes"]).code(0);
    let undo = project.newest();
    project.windlass(&["undo", &done, "--yes"]).code(0).says(&format!("undone by {undo}"));
}

#[test]
fn quiet_is_quiet_and_json_is_json() {
    let project = Project::with(BOOK);
    for _ in 0..2 {
        project.windlass(&["run", "book.yaml", "each", "--quiet"]).code(0);
    }
    let listed = project.windlass(&["runs", "--quiet", "--limit", "1"]).code(0).out;
    assert_eq!(listed.lines().count(), 1, "{listed}");
    project.windlass(&["runs", "--limit", "1"]).code(0).says("RUNBOOK").says("more: --cursor");
    let schema = project.windlass(&["policy", "schema", "--json"]).code(0).json();
    assert!(text(&schema, "schema").contains("\n      tool: String"), "{schema}");
}
