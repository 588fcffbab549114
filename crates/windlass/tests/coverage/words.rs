//! Guards, queues and semaphores as they are seen from outside: the words of their records, conditions and answers.

use crate::support::{Project, text};
use crate::wire::Serving;
use serde_json::{Value, json};

/// Conditions in groups, commands that must fail, names and messages of guards.
#[test]
fn guards_combine_conditions_and_fail_with_their_name_and_message() {
    let guard = |name: &str, guard: &str| {
        format!("  {name}: {{ steps: [ {{ id: s, run: 'true', guard: [ {guard} ] }} ] }}\n")
    };
    let book = [
        "name: book\npipelines:\n".to_owned(),
        guard("all", "{ all: [ { file_exists: a }, { file_exists: b } ], on_failure: fail }"),
        guard("any", "{ any: [ { file_exists: a }, { file_exists: b } ], on_failure: fail }"),
        guard("not", "{ not: { file_exists: a }, on_failure: fail }"),
        guard("deep", "{ all: [ { any: [ { file_exists: b }, { not: { file_exists: a } } ] } ], on_failure: fail }"),
        guard("fails", "{ command: { cmd: 'test -e a', expect_success: false }, on_failure: fail }"),
        guard("named", "{ file_exists: a, name: first, on_failure: fail }, { file_exists: b, name: second, on_failure: { fail: 'no b today' } }"),
        guard("blocks", "{ file_exists: a, on_failure: block }"),
    ]
    .concat();
    let project = Project::with(&book);
    let check = |expected: &[(&str, bool)]| {
        for (pipeline, passes) in expected {
            let run = project.run(&[pipeline], i32::from(!passes));
            assert!(*passes || run["error"]["code"] == "GUARD_FAILED", "{pipeline}: {run}");
        }
    };
    check(&[
        ("all", false),
        ("any", false),
        ("not", true),
        ("deep", true),
        ("fails", true),
        ("named", false),
    ]);
    // One that blocks is asked until it holds.
    let mut blocked = project.start(&["run", "book.yaml", "blocks", "--json"]);
    let run = blocked.await_run();
    blocked.await_line("\"guard:blocked\"");
    assert_eq!(project.show(&run)["status"], "waiting_external");
    project.write("a", "");
    blocked.wait().code(0);
    check(&[
        ("all", false),
        ("any", true),
        ("not", false),
        ("deep", false),
        ("fails", false),
        ("named", false),
    ]);
    let failed = project.events("guard:failed");
    let last = failed.last().expect("a record");
    assert_eq!(last["guard"], "second", "the first that does not hold: {last}");
    let run = project.show(&project.newest());
    assert!(text(&run["error"], "message").contains("no b today"), "{run}");
    project.write("b", "");
    check(&[("all", true), ("any", true), ("not", false), ("deep", true), ("fails", false), ("named", true)]);
}

/// What is done with an item stands in the log: asked for, and become true, each with its fields.
#[test]
fn an_items_way_is_on_record() {
    let book = "
name: jobs
queues: { jobs: { retry: { max_attempts: 2 } } }
workers: { w: { queue: jobs, pipeline: p, concurrency: 2 } }
pipelines: { p: { vars: { n: {} }, steps: [ { run: '[ \"$WL_VAR_N\" = 1 ]' } ] } }
";
    let serving = Serving::new(Project::new(), &[book]);
    let started = &serving.project.events("worker:started")[0];
    assert_eq!((&started["worker_name"], &started["queue_name"]), (&json!("w"), &json!("jobs")), "{started}");
    assert_eq!((&started["concurrency"], &started["namespace"]), (&json!(2), &json!("default")), "{started}");
    assert!(started["runbook_hash"].is_string() && started["project_root"].is_string(), "{started}");
    let push = |n: u32| {
        let body = json!({ "data": { "n": n }, "priority": n }).to_string();
        let item = serving.post("/v1/queues/jobs/items", &[], body.as_bytes()).is(201).json();
        assert!(item["pushed_at"].is_string(), "{item}");
        text(&item, "id").to_owned()
    };
    let (good, bad) = (push(1), push(2));
    let ends = |item: &str, status: &str| {
        crate::support::until(status, || {
            let shown = serving.get(&format!("/v1/queues/jobs/items/{item}")).is(200).json();
            (shown["status"] == status).then_some(shown)
        })
    };
    ends(&good, "completed");
    let dead = ends(&bad, "dead");
    assert!(!text(&dead, "error").is_empty(), "{dead}");
    let of = |item: &str| {
        let all = serving.project.windlass(&["events"]).code(0).lines();
        let mine = all.into_iter().filter(|event| event["stream"] == format!("item/{item}"));
        mine.map(|event| text(&event, "type").to_owned()).collect::<Vec<String>>()
    };
    assert_eq!(of(&good), ["queue:pushed", "queue:taken", "queue:completed"]);
    let tries = [
        "queue:taken",
        "queue:failed",
        "queue:item_retried",
        "queue:taken",
        "queue:failed",
        "queue:item_dead",
    ];
    assert_eq!(of(&bad), [&["queue:pushed"], &tries[..]].concat());
    let pushed = &serving.project.events("queue:pushed")[1];
    assert_eq!(
        (&pushed["queue_name"], &pushed["data"], &pushed["priority"]),
        (&json!("jobs"), &json!({ "n": 2 }), &json!(2))
    );
}

/// A holder asks again for less, as much or more; gives back what it has and nothing of others.
#[test]
fn a_semaphore_says_what_became_of_every_request() {
    let book = "
name: book
semaphores: { room: { capacity: 3 } }
pipelines: { p: { steps: [ { run: 'true' } ] } }
";
    let serving = Serving::new(Project::new(), &[book]);
    let ask = |verb: &str, holder: &str, weight: u32| {
        let mut body = json!({ "holder": holder });
        if verb == "acquire" {
            body["weight"] = json!(weight);
        }
        let answer = serving.post(&format!("/v1/semaphores/room/{verb}"), &[], body.to_string().as_bytes());
        text(&answer.json(), "result").to_owned()
    };
    let used = || serving.get("/v1/semaphores/room").is(200).json();
    assert_eq!(ask("acquire", "a", 1), "acquired");
    assert_eq!((ask("acquire", "a", 1), used()["used"].clone()), ("already_held".to_owned(), json!(1)));
    assert_eq!((ask("acquire", "a", 2), used()["used"].clone()), ("increased".to_owned(), json!(2)));
    assert_eq!((ask("acquire", "b", 2), used()["used"].clone()), ("full".to_owned(), json!(2)));
    assert_eq!((ask("acquire", "b", 1), used()["available"].clone()), ("acquired".to_owned(), json!(0)));
    let shown = used();
    let holders = shown["holders"].as_array().unwrap();
    assert!(holders.iter().all(|holder| holder["acquired_at"].is_string()), "{shown}");
    assert_eq!(ask("release", "nobody", 0), "not_holder");
    assert_eq!((ask("release", "a", 0), used()["used"].clone()), ("released".to_owned(), json!(1)));
    assert_eq!(serving.project.events("semaphore:released").len(), 1);
    // A lock that nobody holds is free already.
    let body = json!({ "holder": "a" }).to_string();
    serving.post("/v1/locks/l/acquire", &[], body.as_bytes()).is(200);
    let release = || serving.post("/v1/locks/l/release", &[], body.as_bytes()).is(200).json();
    let results: Vec<Value> = (0..2).map(|_| release()["result"].clone()).collect();
    assert_eq!(results, ["released", "already_free"]);
}
