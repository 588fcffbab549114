//! Commands beside the steps: no guard's command is run without policy's recorded yes, and none outlives its step.

use crate::ALL;
use crate::support::{Project, is_alive, text, until};

const NO_SHELL: &str = "@id(\"no-shell\") @reason(\"no shell here\")\nforbid (principal, action == Windlass::Action::\"shell\", resource);\n";
const ASK_SHELL: &str = "@id(\"ask\") @reason(\"ask first\") @approval(\"count: 1\")
forbid (principal, action == Windlass::Action::\"shell\", resource) unless { context.approvals >= 1 };\n";

/// A step that executes nothing itself, so that all that could run is its guard's command.
fn book(guard: &str) -> String {
    format!(
        "
name: book
pipelines:
  p:
    steps:
      - {{ id: t, transform: {{ value: {{ x: 1 }} }}, guard: {guard} }}
"
    )
}

#[test]
fn a_guards_command_is_run_only_with_a_recorded_yes() {
    let command = "[ { command: 'echo ran >> trace', on_failure: fail } ]";
    for (guard, place) in [(command.to_owned(), "before"), (format!("{{ after: {command} }}"), "after")] {
        for (rules, verdict) in
            [("", "allow"), (NO_SHELL, "deny"), (ASK_SHELL, "needs_approval"), ("this is no policy", "deny")]
        {
            let project = Project::with(&book(&guard));
            project.write("policy/a.cedar", format!("{ALL}{rules}"));
            let done = project.windlass(&["run", "book.yaml", "--json"]);
            let decided = project.events("policy:decided");
            let asked: Vec<_> = decided.iter().filter(|event| event["purpose"] == "guard").collect();
            let ran = project.read("trace");
            assert_eq!(ran.is_empty(), verdict != "allow", "{place} {verdict}: {} {decided:?}", done.err);
            // A policy that cannot be read refuses the step itself, so its guard is never reached.
            if !rules.starts_with("this") {
                assert_eq!(asked.len(), 1, "{place} {verdict}: {decided:?}");
                assert_eq!(asked[0]["verdict"], verdict, "{place}");
            }
            if rules == NO_SHELL {
                let failed = project.events("guard:failed");
                let detail = text(&failed[0], "detail");
                assert!(detail.contains("policy does not allow the command"), "{detail}");
                assert!(failed[0]["unknown"] == true && detail.contains("no shell here"), "{failed:?}");
            }
        }
    }
}

#[test]
fn a_guards_command_ends_with_a_cancel() {
    let project = Project::with(&book("[ { command: 'echo $$ > pid; sleep 1000' } ]"));
    let run = project.start(&["run", "book.yaml"]);
    let pid = project.await_file("pid").trim().to_owned();
    assert!(is_alive(&pid));
    project.windlass(&["cancel", &project.newest()]).code(0);
    until("the command to end", || (!is_alive(&pid)).then_some(()));
    run.wait();
}

#[test]
fn a_guards_command_ends_when_the_server_is_killed() {
    let project = Project::with(&book("[ { command: 'echo $$ > pid; sleep 1000' } ]"));
    let run = project.start(&["run", "book.yaml"]);
    let pid = project.await_file("pid").trim().to_owned();
    assert!(is_alive(&pid));
    run.kill();
    until("the command to end", || (!is_alive(&pid)).then_some(()));
}
