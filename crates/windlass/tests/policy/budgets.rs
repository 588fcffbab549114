//! Budgets from outside: what is used up waits for a human, and the work is kept.

use crate::support::{Project, status_of, text};

#[test]
fn a_budget_that_is_used_up_waits_until_a_human_raises_it() {
    let project = Project::with(
        "
name: book
pipelines:
  p:
    budget: { time: 1ms }
    steps:
      - { id: a, run: 'sleep 0.05; echo a >> trace' }
      - { id: b, run: echo b >> trace }
",
    );
    let run = project.run(&["--no-wait"], 4);
    let id = text(&run, "id");
    assert_eq!((text(&run, "status"), status_of(&run, "a")), ("awaiting_approval", "succeeded"));
    assert_eq!(run["budget"]["limits"]["time_ms"], 1);
    assert!(run["budget"]["spent"]["time_ms"].as_u64().unwrap() >= 50, "{run}");
    assert_eq!(
        (&run["budget"]["exceeded"][0]["step"], &run["budget"]["exceeded"][0]["dimension"]),
        (&"b".into(), &"time".into())
    );
    project.windlass(&["why", id]).code(0).says("is used up").says("windlass raise");
    project.windlass(&["why", id, "--json"]).code(0).says("BUDGET_EXCEEDED");
    project.windlass(&["raise", id]).code(2).warns("say to what");
    project.windlass(&["raise", id, "--time", "soon"]).code(2);
    let raised = project.windlass(&["raise", id, "--time", "1h", "--json"]).code(0).json();
    assert_eq!(raised["budget"]["limits"]["time_ms"], 3_600_000);
    project.windlass(&["resume", id]).code(0);
    assert_eq!(project.read("trace"), "a\nb\n");
    let events = project.events("budget:*");
    let by: Vec<&str> =
        events.iter().filter(|e| e["type"] == "budget:raised").map(|e| text(e, "by")).collect();
    assert_eq!(by, ["user:tester"]);
    project.windlass(&["raise", id, "--time", "2h"]).code(6);
}
