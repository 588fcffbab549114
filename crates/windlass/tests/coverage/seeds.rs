//! Statements of the sources that no other test shows by driving the binary.

use crate::outside::{Request, Server, say};
use crate::support::{Project, step, text, until};
use crate::wire::Serving;
use serde_json::{Value, json};

/// The guard `issues_complete`: what matches its filter is done, all of it, and other issues do not count.
#[test]
fn issues_are_complete_when_all_that_match_are_done() {
    let project = Project::with(
        "name: book
pipelines:
  labels:
    steps: [ { id: s, run: echo passed, guard: [ { issues_complete: { labels: [a, b] }, on_failure: fail } ] } ]
  ids:
    steps: [ { id: s, run: echo passed, guard: [ { issues_complete: { ids: ['2', '3'] }, on_failure: fail } ] } ]
  milestone:
    steps: [ { id: s, run: echo passed, guard: [ { issues_complete: { milestone: m }, on_failure: fail } ] } ]
",
    );
    let fails = |pipeline: &str| {
        let run = project.run(&[pipeline], 1);
        assert_eq!(run["error"]["code"], "GUARD_FAILED", "{run}");
    };
    // Nobody can be asked about issues: that is unknown, and not passed.
    fails("labels");
    project
        .write("windlass.yaml", "issues: { command: 'cat issues; echo \"$WL_ISSUES_FILTER\" >> asked' }\n");
    let issues = |second: &str, third: &str| {
        let all = json!([
            { "id": "1", "status": "open", "labels": ["a"], "milestone": "other" },
            { "id": "2", "status": second, "labels": ["a", "b"], "milestone": "m" },
            { "id": "3", "status": third, "labels": ["b", "c", "a"], "milestone": "m" },
        ]);
        project.write("issues", all.to_string());
    };
    for pipeline in ["labels", "ids", "milestone"] {
        for (second, third, passes) in
            [("open", "done", false), ("done", "blocked", false), ("done", "done", true)]
        {
            issues(second, third);
            if passes {
                project.run(&[pipeline], 0);
            } else {
                fails(pipeline);
            }
        }
    }
    let asked = project.read("asked");
    assert!(asked.contains("\"labels\":[\"a\",\"b\"]") && asked.contains("\"milestone\":\"m\""), "{asked}");
}

#[test]
fn guards_see_locks_and_slots_as_they_are_and_what_nobody_took_is_free() {
    let book = "
name: book
semaphores: { room: { capacity: 2 } }
pipelines:
  free: { steps: [ { id: s, run: 'true', guard: [ { lock_free: merge, on_failure: fail } ] } ] }
  held: { steps: [ { id: s, run: 'true', guard: [ { lock_held: { lock: merge }, on_failure: fail } ] } ] }
  two: { steps: [ { id: s, run: 'true', guard: [ { semaphore_available: { semaphore: room, slots: 2 }, on_failure: fail } ] } ] }
  one: { steps: [ { id: s, run: 'true', guard: [ { semaphore_available: { semaphore: room, slots: 1 }, on_failure: fail } ] } ] }
";
    let serving = Serving::new(Project::new(), &[book]);
    let check = |expected: [(&str, bool); 4]| {
        for (pipeline, passes) in expected {
            let body = json!({ "pipeline": pipeline }).to_string();
            let run = serving.post("/v1/runs", &[], body.as_bytes()).is(201).json();
            let ended = serving.await_status(text(&run, "id"), if passes { "completed" } else { "failed" });
            assert!(passes || ended["error"]["code"] == "GUARD_FAILED", "{pipeline}: {ended}");
        }
    };
    let ask = |path: &str, body: &Value| serving.post(path, &[], body.to_string().as_bytes()).is(200).json();
    // Nobody ever took the lock.
    check([("free", true), ("held", false), ("two", true), ("one", true)]);
    ask("/v1/locks/merge/acquire", &json!({ "holder": "somebody" }));
    ask("/v1/semaphores/room/acquire", &json!({ "holder": "somebody", "weight": 1 }));
    check([("free", false), ("held", true), ("two", false), ("one", true)]);
    ask("/v1/locks/merge/release", &json!({ "holder": "somebody" }));
    ask("/v1/semaphores/room/release", &json!({ "holder": "somebody" }));
    check([("free", true), ("held", false), ("two", true), ("one", true)]);
}

/// A tool's retryable error is tried five times in all, after 5 s, 30 s, 2 min and 10 min with a fifth to either side.
/// Nobody waits for that here: what is recorded is when each try is due, and a human brings it on.
#[test]
fn the_back_off_of_a_tool_is_five_and_thirty_seconds_two_and_ten_minutes() {
    let outside = Server::start(|_: &Request| say(503, &json!({})));
    let project = Project::new().env("WINDLASS_HTTP_ALLOW_PRIVATE", "127.0.0.1");
    let book = format!(
        "name: book\npipelines:\n  p: {{ steps: [ {{ id: s, http: {{ url: '{}/x' }} }} ] }}\n",
        outside.url()
    );
    let serving = Serving::new(project, &[&book]);
    let run = serving.post("/v1/runs", &[], br#"{"pipeline":"p"}"#).is(201).json();
    let run = text(&run, "id");
    for (n, secs) in [5, 30, 120, 600].into_iter().enumerate() {
        let retrying = until("another try to be due", || {
            let all = serving.project.events("step:retrying");
            assert!(all.len() <= n + 1, "nobody tried: {all:?}");
            all.get(n).cloned()
        });
        let (at, due) = (retrying["at"].as_u64().unwrap(), retrying["next_eligible_at"].as_u64().unwrap());
        let wait = due - at;
        assert!((secs * 800..=secs * 1_200).contains(&wait), "after try {}: {wait} ms", n + 1);
        serving.await_status(run, "failed_retryable");
        serving.post(&format!("/v1/runs/{run}/retry"), &[], b"{}");
    }
    let ended = serving.await_status(run, "failed");
    assert_eq!((outside.seen().len(), &step(&ended, "s")["attempt"]), (5, &json!(5)));
}

#[test]
fn a_run_has_its_schema_its_place_and_its_last_sign_of_life() {
    let book = "
name: book
pipelines:
  p:
    steps:
      - { id: first, run: 'true' }
      - { id: second, run: 'touch began; while [ ! -e go ]; do sleep 0.05; done' }
      - { id: third, run: 'true' }
";
    let serving = Serving::new(Project::new(), &[book]);
    let body = json!({ "pipeline": "p", "source": "ui", "cwd": serving.project.root() }).to_string();
    let made = serving.post("/v1/runs", &[], body.as_bytes()).is(201).json();
    serving.project.await_exists("began");
    let shown = serving.get(&format!("/v1/runs/{}", text(&made, "id"))).is(200).json();
    assert_eq!((&shown["schema_version"], &shown["current_step"]), (&json!(1), &json!("second")));
    let steps: Vec<(&str, u64)> = shown["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| (text(step, "id"), step["index"].as_u64().unwrap()))
        .collect();
    assert_eq!(steps, [("first", 0), ("second", 1)]);
    let sign = text(&shown, "last_heartbeat_at");
    assert!(sign >= text(&shown, "created_at"), "{shown}");
    assert_eq!(step(&shown, "second")["last_heartbeat_at"], sign);
    serving.project.write("go", "");
    let ended = serving.await_status(text(&made, "id"), "completed");
    assert_eq!(step(&ended, "third")["index"], 2);
    assert!(ended["last_heartbeat_at"].is_null(), "nobody works on it any more: {ended}");
}

/// The page says that it is the page; what nobody knows is refused.
#[test]
fn a_run_that_the_page_asks_for_has_the_page_as_its_source() {
    let serving =
        Serving::new(Project::new(), &["name: b\npipelines: { p: { steps: [ { run: 'true' } ] } }\n"]);
    let post = |source: Value| {
        let body = json!({ "pipeline": "p", "source": source }).to_string();
        serving.post("/v1/runs", &[], body.as_bytes())
    };
    for (source, recorded) in
        [(json!("ui"), "ui"), (json!("cli"), "cli"), (json!("api"), "api"), (json!(null), "api")]
    {
        assert_eq!(post(source).is(201).json()["trigger"]["source"], recorded);
    }
    assert_eq!(post(json!("webhook")).is(400).json()["code"], "INVALID_INPUT");
    let sources: Vec<String> =
        serving.runs("p").iter().map(|run| text(&run["trigger"], "source").to_owned()).collect();
    assert_eq!(sources.iter().filter(|source| *source == "ui").count(), 1, "{sources:?}");
}

#[test]
fn a_receipt_keeps_what_was_asked() {
    let outside = Server::start(|_: &Request| say(200, &json!({ "made": 1 })));
    let project = Project::new().env("WINDLASS_HTTP_ALLOW_PRIVATE", "127.0.0.1");
    project.write("policy/a.cedar", "@id(\"all\")\npermit (principal, action, resource);\n");
    let book = format!(
        "name: book\npipelines:\n  p: {{ steps: [ {{ id: s, http: {{ url: '{}/made', method: POST, json: {{ a: 1 }} }} }} ] }}\n",
        outside.url()
    );
    let serving = Serving::new(project, &[&book]);
    let run = serving.post("/v1/runs", &[], br#"{"pipeline":"p"}"#).is(201).json();
    serving.await_status(text(&run, "id"), "completed");
    let receipts = serving.get(&format!("/v1/runs/{}/receipts", text(&run, "id"))).is(200).json();
    let receipt = &receipts["items"][0];
    assert_eq!((&receipt["step"], &receipt["status"]), (&json!("s"), &json!("succeeded")));
    let request = receipt["request"].to_string();
    assert!(
        request.contains("/made") && request.contains("POST") && request.contains("\"a\":1"),
        "{receipt}"
    );
}

/// Who moved a run stands in the log line of the move, too.
#[test]
fn the_log_says_who_moved_a_run() {
    let serving = Serving::new(
        Project::new(),
        &["name: b\npipelines: { p: { steps: [ { wait: { event: never } } ] } }\n"],
    );
    let run = serving.post("/v1/runs", &[], br#"{"pipeline":"p"}"#).is(201).json();
    let run = text(&run, "id");
    serving.await_status(run, "waiting_external");
    serving.post(&format!("/v1/runs/{run}/cancel"), &[], b"{}").is(200);
    let moves = until("the end in the log", || {
        Some(serving.told("run_transition"))
            .filter(|all| all.last().is_some_and(|line| line["to"] == "cancelled"))
    });
    let of = |line: &Value| json!([line["from"], line["to"], line["initiator"]]);
    assert_eq!(of(&moves[0]), json!(["pending", "running", "user"]));
    assert_eq!(of(&moves[1]), json!(["running", "waiting_external", "user"]));
    assert!(moves.iter().all(|line| line["initiator"] == "user" && line["run_id"] == run), "{moves:?}");
}

/// A lock and a semaphore whose holder is not heard of for their own time-out are given to the next in line.
#[test]
fn locks_and_semaphores_have_a_heartbeat_timeout_of_their_own() {
    let book = "
name: book
locks: { l: { heartbeat_timeout: 300ms } }
semaphores: { s: { capacity: 1, heartbeat_timeout: 300ms } }
pipelines: { p: { steps: [ { run: 'true' } ] } }
";
    let serving = Serving::new(Project::new(), &[book]);
    for (path, more) in [("/v1/locks/l", json!({})), ("/v1/semaphores/s", json!({ "weight": 1 }))] {
        let ask = |holder: &str, wait_ms: u64| {
            let mut body = more.clone();
            (body["holder"], body["wait_ms"]) = (json!(holder), json!(wait_ms));
            serving.post(&format!("{path}/acquire"), &[], body.to_string().as_bytes())
        };
        let first = ask("first", 0).is(200).json();
        // The one before never says a word, and an hour is the most that the second would wait.
        let second = ask("second", 60_000).is(200).json();
        assert!(second["epoch"].as_u64() > first["epoch"].as_u64(), "{first} {second}");
        assert_eq!(second["holder"], "second");
    }
    assert!(!serving.project.events("lock:reclaimed").is_empty(), "it is on record");
}

/// A guard that retries asks again after its delay.
#[test]
fn a_guard_that_retries_waits_for_its_delay() {
    let project = Project::with(
        "name: book
pipelines:
  p: { steps: [ { id: s, run: 'true', guard: [ { file_exists: late, on_failure: { retry: 700ms, for: 1m } } ] } ] }
",
    );
    let mut process = project.start(&["run", "book.yaml", "--json"]);
    process.await_run();
    process.await_line("\"guard:blocked\"");
    project.write("late", "");
    process.wait().code(0);
    let blocked = &project.events("guard:blocked")[0];
    let (at, retry_at) = (blocked["at"].as_u64().unwrap(), blocked["retry_at"].as_u64().unwrap());
    assert_eq!(retry_at - at, 700, "{blocked}");
    // It gives up a minute after it was first asked.
    let left = blocked["give_up_at"].as_u64().unwrap() - at;
    assert!((50_000..=60_000).contains(&left), "{blocked}");
    let passed = project.events("guard:passed")[0]["at"].as_u64().unwrap();
    assert!(passed >= retry_at, "it asked {} ms too early", retry_at - passed);
}
