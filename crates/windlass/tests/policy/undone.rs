//! Rules about what an undo takes back.

use crate::support::{Project, text};

const BOOK: &str = "
name: book
pipelines:
  prod:
    steps: [{ id: a, run: echo do >> led, compensate: { run: echo undo >> led } }]
  all:
    steps: [{ id: c, call: prod }]
";

const RULES: &str = "permit (principal, action, resource);
@id(\"noprod\") forbid (principal, action == Windlass::Action::\"shell\", resource)
when { context.pipeline == \"prod\" || context.undoes.contains(\"prod\") };
";

const EVERYTHING: &str = "permit (principal, action, resource);";

/// What the ledger says.
fn ledger(project: &Project) -> String {
    std::fs::read_to_string(project.path("led")).unwrap_or_default()
}

#[test]
fn a_rule_about_a_pipeline_holds_for_its_undo_also_through_a_caller() {
    for pipeline in ["prod", "all"] {
        let project = Project::with(BOOK);
        project.write("policy/a.cedar", EVERYTHING);
        let run = project.run(&[pipeline], 0);
        assert_eq!(ledger(&project), "do\n");
        project.write("policy/a.cedar", RULES);
        project.windlass(&["policy", "check"]).code(0);
        project.windlass(&["undo", text(&run, "id"), "--yes"]).code(1);
        assert_eq!(ledger(&project), "do\n", "the undo of `{pipeline}` was denied");
        let denied = project.events("policy:decided");
        assert!(denied.iter().any(|decided| decided["rules"][0] == "noprod"), "{denied:?}");
        // Where nothing forbids it, it is taken back.
        project.write("policy/a.cedar", EVERYTHING);
        project.windlass(&["undo", text(&run, "id"), "--yes"]).code(0);
        assert_eq!(ledger(&project), "do\nundo\n", "{pipeline}");
    }
}

#[test]
fn a_run_that_takes_nothing_back_undoes_nothing() {
    let project = Project::with(BOOK);
    project.write("policy/a.cedar", RULES.replace("context.pipeline == \"prod\" || ", ""));
    project.run(&["prod"], 0);
    assert_eq!(ledger(&project), "do\n");
}
