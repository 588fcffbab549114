//! Queues from the command line, as somebody uses them every day.

use crate::served::Served;
use crate::support::{Project, text};
use serde_json::Value;

const BOOK: &str = "
name: daily
queues: { jobs: {} }
workers: { w: { queue: jobs, pipeline: p } }
schedules: { s: { every: 1h, pipeline: p } }
pipelines:
  p: { vars: { n: {} }, steps: [ { id: s, run: 'true' } ] }
";

fn items(project: &Project) -> Vec<Value> {
    let list = project.windlass(&["queue", "list", "jobs", "--json"]).code(0).json();
    list["items"].as_array().unwrap().clone()
}

#[test]
fn an_array_or_lines_from_stdin_are_as_many_items() {
    let project = Project::with(BOOK);
    project.windlass(&["deploy", "book.yaml"]).code(0);
    let pushed = project
        .windlass(&["queue", "push", "jobs", "--data", r#"[{"n":1},{"n":2}]"#, "--json"])
        .code(0)
        .json();
    assert_eq!(pushed["items"].as_array().unwrap().len(), 2, "{pushed}");
    let one = project.windlass(&["queue", "push", "jobs", "--data", r#"{"n":3}"#, "--json"]).code(0).json();
    assert_eq!(one["data"], serde_json::json!({ "n": 3 }));
    project.write("lines", "{\"n\":4}\n{\"n\":5}\n\n{\"n\":6}\n");
    let mut command = project.command(&["queue", "push", "jobs", "--data", "-", "--priority", "7"]);
    command.stdin(std::fs::File::open(project.path("lines")).unwrap());
    let done = command.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    assert_eq!(String::from_utf8_lossy(&done.stdout).lines().count(), 3);
    let all = items(&project);
    let mut numbers: Vec<i64> = all.iter().map(|item| item["data"]["n"].as_i64().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    assert_eq!(all.iter().filter(|item| item["priority"] == 7).count(), 3);
    project.windlass(&["queue", "push", "jobs", "--data", "[]"]).code(2).warns("no item");
    project
        .windlass(&["queue", "push", "jobs", "--data", "[1,2]", "--dedupe", "k"])
        .code(2)
        .warns("one item");
    project.windlass(&["queue", "push", "jobs", "--data", "{\"n\":1} x"]).code(2).warns("not JSON");
    assert_eq!(items(&project).len(), 6, "nothing of what was refused is there");
}

#[test]
fn what_needs_a_server_says_that_there_is_none() {
    let project = Project::with(BOOK);
    project.windlass(&["runs"]).code(0).silent("windlass serve");
    let note = "nothing serves this data directory";
    project.windlass(&["deploy", "book.yaml"]).code(0).warns(note).warns("windlass serve");
    project.windlass(&["queue", "push", "jobs", "--data", r#"{"n":1}"#]).code(0).warns(note);
    for look in ["queues", "workers", "schedules", "runs"] {
        project.windlass(&[look]).code(0).warns(note);
    }
    let run = project.windlass(&["schedule", "run", "s", "--json"]).code(0).warns(note).json();
    project.windlass(&["why", text(&run, "id")]).code(0).warns(note);
    let served = Served::open(&project.path("data"));
    project.windlass(&["schedules"]).code(0).silent(note);
    project.windlass(&["queue", "push", "jobs", "--data", r#"{"n":2}"#]).code(0).silent(note);
    served.close();
}
