//! External queues: a command lists, a command takes, and each item is worked on once.

use crate::served::Served;
use crate::support::{Project, until};
use serde_json::json;

#[test]
fn what_is_listed_is_taken_and_run_once() {
    let project = Project::with(
        r#"
name: tracker
queues:
  issues: { external: { list: ./list, take: './take', poll: 1s } }
workers:
  fixer: { queue: issues, pipeline: fix, vars: { id: '${{ item.id }}' } }
pipelines:
  fix:
    vars: { id: {} }
    steps: [ { run: 'echo "$WL_VAR_ID" >> done' } ]
"#,
    );
    // What is open is a file each; to take one is to move it, which only one can.
    project.write("open/1", "");
    project.write("open/2", "");
    project.script(
        "take",
        "id=$(echo \"$WL_ITEM\" | sed 's/.*\"id\":\"\\([^\"]*\\)\".*/\\1/'); mv \"open/$id\" taken/",
    );
    project.script(
        "list",
        "out=''; for f in open/*; do [ -e \"$f\" ] || continue; out=\"$out,{\\\"id\\\":\\\"${f#open/}\\\"}\"; done; echo \"[${out#,}]\"",
    );
    project.write("taken/keep", "");
    let served = Served::open(&project.path("data"));
    served.deploy(&project.read("book.yaml"), project.root()).is(201);
    let done = |n: usize| {
        until("the items to be done", || Some(project.read("done")).filter(|text| text.lines().count() >= n))
    };
    done(2);
    project.write("open/3", "");
    let mut lines: Vec<String> = done(3).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["1", "2", "3"]);
    assert_eq!(served.runs().len(), 3);
    assert!(project.has("taken/1") && project.has("taken/3"));
    let worker = served.get("/v1/workers/fixer").is(200);
    assert_ne!(worker["next_poll_at"], json!(null));
    served.close();
    let polled = project.events("worker:polled");
    assert!(polled.iter().all(|poll| poll["error"].is_null()), "{polled:?}");
}

#[test]
fn an_item_that_cannot_be_taken_says_why_and_names_no_run() {
    let project = Project::with(
        r#"
name: tracker
queues:
  issues: { external: { list: 'echo "[{\"id\": \"1\"}]"', take: 'exit 3', poll: 1h } }
workers:
  fixer: { queue: issues, pipeline: fix, vars: { id: '${{ item.id }}' } }
pipelines:
  fix:
    vars: { id: {} }
    steps: [ { run: 'true' } ]
"#,
    );
    let served = Served::open(&project.path("data"));
    served.deploy(&project.read("book.yaml"), project.root()).is(201);
    let item = until("the item to be given up", || {
        let items = served.get("/v1/queues/issues/items?status=failed").is(200);
        items["items"].get(0).cloned()
    });
    assert_eq!(
        item["error"],
        "it could not be taken: the command failed: exit code 3, and nothing on its standard error"
    );
    assert!(item["run"].is_null(), "none was made: {item}");
    served.close();
}

#[test]
fn an_event_that_wakes_the_worker_has_the_queue_listed_long_before_its_time() {
    let project = Project::with(
        r#"
name: tracker
queues:
  issues: { external: { list: 'cat open', take: 'true', poll: 1h } }
workers:
  fixer: { queue: issues, pipeline: fix, wake_on: ['lock:acquired(door)'], vars: { id: '${{ item.id }}' } }
pipelines:
  fix:
    vars: { id: {} }
    steps: [ { run: 'echo "$WL_VAR_ID" >> done' } ]
  knock:
    lock: door
    steps: [ { run: 'true' } ]
"#,
    );
    project.write("open", "[]");
    let served = Served::open(&project.path("data"));
    served.deploy(&project.read("book.yaml"), project.root()).is(201);
    until("the first list", || Some(project.events("worker:polled")).filter(|polled| !polled.is_empty()));
    project.write("open", r#"[{ "id": "7" }]"#);
    served.post("/v1/runs", &json!({ "pipeline": "knock" })).is(201);
    until("the item to be done", || project.has("done").then(|| project.read("done")));
    served.close();
}
