//! Signals and actions: what was asked for, and what began to run by itself, stands in the log beside the facts.

use crate::support::{Project, text, until};
use crate::wire::Serving;
use serde_json::{Value, json};

/// The records of a run, in their order.
fn records(project: &Project, run: &str) -> Vec<Value> {
    let all = project.windlass(&["events"]).code(0).lines();
    all.into_iter().filter(|record| record["stream"] == format!("run/{run}")).collect()
}

/// Where the first record of a type stands.
#[track_caller]
fn place(records: &[Value], kind: &str) -> usize {
    let found = records.iter().position(|record| record["type"] == kind);
    found.unwrap_or_else(|| panic!("no {kind} in {records:?}"))
}

#[test]
fn a_run_that_was_asked_for_says_with_what_command_and_where() {
    let project = Project::with(
        "name: x\npipelines:\n  main: { vars: { who: {} }, steps: [ { call: other } ] }\n  other: { steps: [ { run: 'true' } ] }\n",
    );
    let run = project.run(&["main", "--var", "who=ann"], 0);
    let asked = project.events("command:run");
    assert_eq!(asked.len(), 1, "the called run was asked for by no person or program: {asked:?}");
    let asked = &asked[0];
    assert_eq!((&asked["pipeline_id"], &asked["pipeline_name"]), (&run["id"], &json!("main")));
    assert_eq!(asked["args"], json!({ "who": "ann" }));
    assert_eq!(text(asked, "command"), "windlass run main");
    let root = project.root().canonicalize().unwrap();
    assert_eq!(text(asked, "project_root"), root.to_str().unwrap());
    assert_eq!(text(asked, "invoke_dir"), root.to_str().unwrap());
    assert!(text(asked, "by").starts_with("user:"), "{asked}");
}

#[test]
fn what_was_asked_of_a_run_stands_before_what_came_of_it() {
    let serving = Serving::new(
        Project::new(),
        &[
            "name: x\npipelines: { main: { vars: { n: { default: '1' } }, steps: [ { wait: { event: go } } ] } }\n",
        ],
    );
    let made = serving.post("/v1/runs", &[], br#"{ "pipeline": "main" }"#).is(201).json();
    let run = text(&made, "id").to_owned();
    serving.await_status(&run, "waiting_external");
    let project = &serving.project;
    project.windlass(&["suspend", &run]).code(0);
    let go_on = json!({ "message": "go on", "vars": { "n": "2" } }).to_string();
    serving.post(&format!("/v1/runs/{run}/resume"), &[], go_on.as_bytes()).is(200);
    project.windlass(&["cancel", &run, "--reason", "enough"]).code(0);
    serving.await_status(&run, "cancelled");
    let records = records(project, &run);
    for (action, fact) in [
        ("pipeline:suspend", "pipeline:suspended"),
        ("pipeline:resume", "pipeline:updated"),
        ("pipeline:resume", "pipeline:resumed"),
        ("pipeline:cancel", "pipeline:cancelling"),
    ] {
        let (asked, became) = (place(&records, action), place(&records, fact));
        assert!(asked < became, "{action} stands before {fact}: {records:?}");
        assert_eq!(records[asked]["by"], "user:tester", "{}", records[asked]);
        assert_eq!(records[asked]["id"], json!(run));
    }
    let resume = &records[place(&records, "pipeline:resume")];
    assert_eq!((&resume["message"], &resume["vars"]["n"]), (&json!("go on"), &json!("2")), "{resume}");
    assert_eq!(records[place(&records, "pipeline:cancel")]["reason"], "enough");
}

#[test]
fn a_wait_and_a_back_off_begin_a_timer() {
    let project = Project::with(
        "name: x
pipelines:
  main:
    steps:
      - { id: pause, wait: 1ms }
      - { id: ask, wait: { event: never, timeout: 1ms, on_timeout: continue } }
      - { id: twice, run: '[ \"$WL_ATTEMPT\" = 2 ]', retry: { max_attempts: 2, backoff: 1ms } }
",
    );
    let run = project.run(&[], 0);
    let timers = project.events("timer:start");
    let steps: Vec<&str> = timers.iter().map(|timer| text(timer, "step")).collect();
    assert_eq!(steps, ["pause", "ask", "twice"]);
    for timer in &timers {
        assert_eq!(timer["pipeline_id"], run["id"]);
        assert_eq!(text(timer, "id"), format!("{}/{}", text(&run, "id"), text(timer, "step")));
        assert!(timer["until"].as_u64() > timer["at"].as_u64(), "{timer}");
    }
}

#[test]
fn an_idle_worker_is_woken_once_however_many_items_come() {
    let serving = Serving::new(
        Project::new(),
        &["name: x
queues: { work: {} }
workers: { one: { queue: work, pipeline: main } }
pipelines: { main: { vars: { n: {} }, steps: [ { run: 'true' } ] } }
"],
    );
    let items: Vec<Value> = (0..5).map(|n| json!({ "data": { "n": n } })).collect();
    serving.post("/v1/queues/work/items", &[], json!(items).to_string().as_bytes()).is(201);
    let project = &serving.project;
    until("five runs", || {
        (serving.runs("main").iter().filter(|run| run["status"] == "completed").count() == 5).then_some(())
    });
    let woken = project.events("worker:wake");
    assert_eq!(woken.len(), 1, "who works already is not woken: {woken:?}");
    assert_eq!((&woken[0]["worker_name"], &woken[0]["cause"]), (&json!("one"), &json!("queue:pushed")));
    assert_eq!(project.events("worker:item_dispatched").len(), 5);
}

#[test]
fn a_look_that_found_something_says_what() {
    let project = Project::new();
    project.write("open", "[]");
    let book = "name: x
queues: { issues: { external: { list: 'cat open', take: 'true', poll: 1s } } }
workers: { fixer: { queue: issues, pipeline: fix, vars: { id: '${{ item.id }}' } } }
pipelines: { fix: { vars: { id: {} }, steps: [ { run: 'true' } ] } }
";
    project.write("book.yaml", book);
    let serving = Serving::new(project, &[]);
    let project = &serving.project;
    project.windlass(&["deploy", "book.yaml"]).code(0);
    until("the first look", || Some(project.events("worker:polled")).filter(|polled| !polled.is_empty()));
    assert!(project.events("worker:poll_complete").is_empty(), "nothing was found yet");
    project.write("open", r#"[{ "id": "7" }, { "id": "8" }]"#);
    let found = until("what was found", || {
        Some(project.events("worker:poll_complete")).filter(|found| !found.is_empty())
    });
    assert_eq!(found[0]["items"], json!([{ "id": "7" }, { "id": "8" }]));
    assert_eq!(found[0]["worker_name"], "fixer");
}
