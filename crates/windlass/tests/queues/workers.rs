//! Workers: one run per item, woken at once, within their concurrency.

use crate::served::Served;
use crate::support::{Project, text, until};
use serde_json::{Value, json};

const BOOK: &str = r#"
name: bugs
queues:
  bugs: { retry: { max_attempts: 2 } }
workers:
  fixer: { queue: bugs, pipeline: fix, concurrency: 2, vars: { bug: '${{ item.key }}' } }
pipelines:
  fix:
    vars: { bug: { required: true, pattern: '^BUG-\d+$' } }
    steps: [ { run: 'echo "$WL_VAR_BUG" >> done; test "$WL_VAR_BUG" != BUG-13' } ]
"#;

fn item(served: &Served, id: &str) -> Value {
    served.get(&format!("/v1/queues/bugs/items/{id}")).is(200)
}

fn ends(served: &Served, id: &str, status: &str) -> Value {
    until(&format!("{id} to be {status}"), || Some(item(served, id)).filter(|item| item["status"] == status))
}

#[test]
fn an_item_becomes_a_run_with_its_variables_and_ends_with_it() {
    let project = Project::with(BOOK);
    let served = Served::open(&project.path("data"));
    served.deploy(BOOK, project.root()).is(201);
    let push = |key: Value| {
        let pushed = served.post("/v1/queues/bugs/items", &json!({ "data": { "key": key } })).is(201);
        text(&pushed, "id").to_owned()
    };
    let (good, bad) = (push(json!("BUG-7")), push(json!("BUG-13")));
    ends(&served, &good, "completed");
    let dead = ends(&served, &bad, "dead");
    assert_eq!(dead["attempts"], 2, "a failed run is tried again");
    assert_eq!(project.read("done").lines().filter(|line| *line == "BUG-13").count(), 2);
    assert!(project.read("done").contains("BUG-7\n"));
    let run = served.runs().into_iter().find(|run| run["vars"]["bug"] == "BUG-7").unwrap();
    assert_eq!((&run["trigger"]["source"], &run["trigger"]["of"]), (&json!("queue"), &json!("fixer")));
    assert_eq!(run["trigger"]["key"], format!("queue:{good}:1"));
    assert_eq!(run["trigger"]["event_id"], json!(good));
    // What cannot become variables fails by itself, once, and the next one has its turn.
    let wrong = [push(json!("no bug")), push(json!(7)), push(json!(null))];
    let next = push(json!("BUG-8"));
    ends(&served, &next, "completed");
    for id in &wrong {
        let failed = ends(&served, id, "failed");
        assert!(text(&failed, "error").contains("bug"), "{failed}");
    }
    assert_eq!(served.runs().len(), 4, "no run was made for them");
    served.close();
}

#[test]
fn a_worker_is_stopped_resized_and_started_and_the_log_holds_one_run_per_item() {
    let project = Project::with(BOOK);
    let served = Served::open(&project.path("data"));
    served.deploy(BOOK, project.root()).is(201);
    project.windlass(&["worker", "stop", "fixer"]).code(0).says("stopped");
    let items: Vec<Value> = (1..=6).map(|n| json!({ "data": { "key": format!("BUG-{n}") } })).collect();
    let pushed = served.post("/v1/queues/bugs/items", &json!(items)).is(201);
    assert_eq!(served.get("/v1/queues/bugs").is(200)["ready"], 6, "nobody takes them");
    project.windlass(&["worker", "resize", "fixer", "4"]).code(6);
    project.windlass(&["worker", "start", "fixer"]).code(0).says("started");
    project.windlass(&["worker", "resize", "fixer", "4"]).code(0).says("4");
    project.windlass(&["worker", "stop", "nobody"]).code(5).warns("NOT_FOUND");
    for item in pushed["items"].as_array().unwrap() {
        ends(&served, text(item, "id"), "completed");
    }
    served.close();
    let served = Served::open(&project.path("data"));
    assert_eq!(served.runs().len(), 6);
    let created = project.events("pipeline:created");
    let mut sources: Vec<&str> = created.iter().map(|e| text(&e["trigger"], "event_id")).collect();
    sources.sort_unstable();
    sources.dedup();
    assert_eq!(sources.len(), 6, "one run per item");
    assert_eq!(served.get("/v1/workers/fixer").is(200)["concurrency"], 4);
    served.close();
}

const SLOW: &str = r#"
name: slow
queues:
  bugs: { retry: { max_attempts: 3 } }
workers:
  fixer: { queue: bugs, pipeline: fix }
pipelines:
  fix:
    vars: { n: {} }
    steps: [ { run: 'until [ -e "go$WL_VAR_N" ]; do sleep 0.02; done' } ]
"#;

#[test]
fn a_workers_claim_is_its_runs_and_nobody_ends_it_from_outside() {
    let project = Project::with(SLOW);
    let served = Served::open(&project.path("data"));
    served.deploy(SLOW, project.root()).is(201);
    let items = json!([{ "data": { "n": 1 } }, { "data": { "n": 2 } }]);
    let pushed = served.post("/v1/queues/bugs/items", &items).is(201);
    let [first, second] = [0, 1].map(|n| text(&pushed["items"][n], "id").to_owned());
    let held = item(&served, &first);
    assert_eq!((&held["status"], &held["epoch"]), (&json!("processing"), &json!(1)));
    for verb in ["heartbeat", "complete", "fail", "return"] {
        let told = served.post(&format!("/v1/queues/bugs/{verb}"), &json!({ "item": first, "epoch": 1 }));
        assert_eq!(told.is(200)["items"][0]["code"], "LOCK_BUSY", "{verb}");
        assert_eq!(item(&served, &first), held, "{verb}");
    }
    project.write("go1", "");
    project.write("go2", "");
    for id in [&first, &second] {
        assert_eq!(ends(&served, id, "completed")["attempts"], 1);
    }
    assert_eq!(served.runs().len(), 2);
    served.close();
}

#[test]
fn a_run_that_somebody_cancels_fails_its_item_and_is_not_begun_anew() {
    let project = Project::with(SLOW);
    let served = Served::open(&project.path("data"));
    served.deploy(SLOW, project.root()).is(201);
    let pushed = served.post("/v1/queues/bugs/items", &json!({ "data": { "n": 1 } })).is(201);
    let id = text(&pushed, "id");
    let run = text(&item(&served, id), "run").to_owned();
    served.post(&format!("/v1/runs/{run}/cancel"), &json!({ "reason": "enough" })).is(200);
    let failed = ends(&served, id, "failed");
    assert_eq!((&failed["attempts"], &failed["error"]), (&json!(1), &json!("cancelled")));
    assert_eq!(served.runs().len(), 1);
    let shown = served.get(&format!("/v1/runs/{run}")).is(200);
    let cancellation = &shown["cancellation"];
    assert_eq!((&cancellation["initiator"], &cancellation["reason"]), (&json!("user"), &json!("enough")));
    assert!(text(cancellation, "at").ends_with('Z'), "{cancellation}");
    served.close();
}

const NEEDS: &str = r#"
name: needy
queues: { q: {} }
workers: { w: { queue: q, pipeline: needy } }
schedules: { s: { every: 10h, pipeline: needy } }
pipelines:
  base: { steps: [ { run: 'test -e ok' } ] }
  needy: { needs: base, steps: [ { run: echo >> ran } ] }
  caller: { steps: [ { id: c, call: needy } ] }
"#;

/// Coverage: 000 Pipeline transitions, "(Init,Start) unmet dependencies → Blocked, emit pipeline:blocked".
#[test]
fn what_a_pipeline_needs_is_waited_for_whoever_makes_its_run() {
    let project = Project::with(NEEDS);
    let served = Served::open(&project.path("data"));
    served.deploy(NEEDS, project.root()).is(201);
    let start = |pipeline: &str| {
        let made = served.post("/v1/runs", &json!({ "pipeline": pipeline, "cwd": project.root() })).is(201);
        text(&made, "id").to_owned()
    };
    let over = |run: &str| {
        until(&format!("{run} to end"), || {
            let run = served.get(&format!("/v1/runs/{run}")).is(200);
            Some(text(&run, "status").to_owned())
                .filter(|status| ["completed", "failed"].contains(&&**status))
        })
    };
    let settled = |status: &str| {
        let item = served.post("/v1/queues/q/items", &json!({ "data": {} })).is(201);
        until(&format!("the item to be {status}"), || {
            let item = served.get(&format!("/v1/queues/q/items/{}", text(&item, "id"))).is(200);
            Some(item.clone()).filter(|item| item["status"] == status)
        })
    };
    // It never ran: all wait. Its first run fails, and so do they.
    let called = start("caller");
    let slot = served.post("/v1/schedules/s/run", &json!({})).is(201);
    let item = served.post("/v1/queues/q/items", &json!({ "data": {} })).is(201);
    let blocked = || {
        let runs = served.get("/v1/runs?pipeline=needy").is(200)["items"].as_array().unwrap().clone();
        runs.into_iter().filter(|run| run["status"] == "blocked" && run["reason"] == "pipeline base").count()
    };
    until("three runs that wait", || (blocked() == 3).then_some(()));
    assert_eq!(over(&start("base")), "failed");
    assert_eq!((&*over(&called), &*over(text(&slot, "id"))), ("failed", "failed"));
    until("the item to fail", || {
        let item = served.get(&format!("/v1/queues/q/items/{}", text(&item, "id"))).is(200);
        Some(item).filter(|item| item["status"] == "failed" || item["status"] == "dead")
    });
    // It failed before.
    assert_eq!(over(&start("caller")), "failed");
    assert!(!project.has("ran"));
    // It is done.
    project.write("ok", "");
    assert_eq!(over(&start("base")), "completed");
    assert_eq!(over(&start("caller")), "completed");
    settled("completed");
    let slot = served.post("/v1/schedules/s/run", &json!({})).is(201);
    assert_eq!(over(text(&slot, "id")), "completed");
    assert_eq!(project.read("ran").lines().count(), 3);
    served.close();
}

#[test]
fn runs_are_found_by_runbook_queue_and_item() {
    let project = Project::with(BOOK);
    let served = Served::open(&project.path("data"));
    served.deploy(BOOK, project.root()).is(201);
    let push = |key: &str| {
        let pushed = served.post("/v1/queues/bugs/items", &json!({ "data": { "key": key } })).is(201);
        text(&pushed, "id").to_owned()
    };
    let (good, bad) = (push("BUG-7"), push("BUG-13"));
    ends(&served, &good, "completed");
    ends(&served, &bad, "dead");
    project.write("other.yaml", "name: other\npipelines: { p: { steps: [ { run: 'false' } ] } }\n");
    project.windlass(&["run", "other.yaml"]).code(1);
    let found = |words: &[&str]| {
        let page = project.windlass(&[&["runs", "--json"], words].concat()).code(0).json();
        let runs = page["items"].as_array().unwrap().clone();
        let mut items: Vec<String> =
            runs.iter().map(|run| run["trigger"]["event_id"].as_str().unwrap_or("").to_owned()).collect();
        items.sort_unstable();
        items
    };
    let mut both = vec![good.clone(), bad.clone(), bad.clone()];
    both.sort_unstable();
    let all = |served: &Served| {
        assert_eq!(found(&["--queue", "bugs"]), both);
        assert_eq!(found(&["--item", &bad]), [bad.as_str(), &bad], "each try is a run");
        assert_eq!(found(&["--queue", "bugs", "--item", &good[..good.len() - 1]]), [good.as_str()]);
        assert_eq!(found(&["--runbook", "bugs"]), both);
        assert_eq!(found(&["--runbook", "other"]), [""]);
        assert_eq!(found(&["--failed"]), ["", bad.as_str(), &bad]);
        assert_eq!(found(&["--failed", "--queue", "bugs", "--limit", "1"]).len(), 1);
        assert!(found(&["--queue", "none"]).is_empty() && found(&["--runbook", "none"]).is_empty());
        assert_eq!(served.runs().len(), 4);
    };
    all(&served);
    served.close();
    // Those that have left memory, too.
    let served = Served::open(&project.path("data"));
    all(&served);
    project.windlass(&["runs", "--item", "nothing"]).code(2);
    project.windlass(&["runs"]).code(0).says("RUNBOOK").says("other ");
    // What an item brought stands in the list, shortened there and whole as JSON.
    let long = "x".repeat(200);
    served.post("/v1/queues/bugs/items", &json!({ "data": { "key": long }, "delay_ms": 3_600_000 })).is(201);
    let listed = project.windlass(&["queue", "list", "bugs"]).code(0).says("{\"key\":\"BUG-13\"}").says("…");
    assert!(!listed.out.contains(&long), "{}", listed.out);
    project.windlass(&["queue", "list", "bugs", "--json"]).code(0).says(&long);
    served.close();
}
