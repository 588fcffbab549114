//! Caps: what waits, what is refused with a time to come back, and who gets on meanwhile.

use crate::served::Served;
use crate::support::{Project, until};
use serde_json::json;
use windlass_core::caps::Caps;
use windlass_core::id::Name;

const BOOK: &str = "
name: capped
queues: { jobs: {} }
workers: { w: { queue: jobs, pipeline: p, concurrency: 10 } }
pipelines:
  p: { steps: [ { run: 'true' } ] }
  slow:
    steps:
      - { id: s, run: 'echo go >> began; while [ ! -e go ]; do read -rt 0.05 <> <(:) || :; done' }
";

fn default() -> Name {
    Name::clean("default")
}

#[test]
fn a_rate_is_refused_with_a_time_and_a_worker_comes_back_by_itself() {
    let project = Project::with(BOOK);
    let served = Served::open(&project.path("data"));
    served.deploy(BOOK, project.root()).is(201);
    let rate = |max| Caps { max_runs_per_min: Some(max), ..Caps::default() };
    served.app.configure_tenant(&default(), rate(1), 1, Vec::new()).unwrap();
    let run = || served.post("/v1/runs", &json!({ "pipeline": "p" }));
    run().is(201);
    let refused = run();
    let after: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&after), "{after}");
    assert!(refused.refuses(429, "CAP_EXCEEDED").contains("max_runs_per_min"));
    served.post("/v1/queues/jobs/items", &json!({ "data": null })).is(201);
    let worker = served.get("/v1/workers/w").is(200);
    assert!(worker["delayed_until"].is_string(), "{worker}");
    assert_eq!(served.get("/v1/queues/jobs").is(200)["ready"], 1, "the item waits");
    // There is room now: what waits goes on with the next look.
    served.app.configure_tenant(&default(), rate(100), 1, Vec::new()).unwrap();
    run().is(201);
    served.post("/v1/queues/jobs/items", &json!({ "data": null })).is(201);
    until("both items to be done", || {
        (served.get("/v1/queues/jobs").is(200)["completed"] == 2).then_some(())
    });
    served.close();
}

#[test]
fn a_concurrency_waits_and_is_per_name_not_per_version() {
    let project = Project::with(BOOK);
    let served = Served::open(&project.path("data"));
    let capped = format!("{BOOK}caps: {{ max_concurrency: 1 }}\n");
    served.deploy(&capped, project.root()).is(201);
    let run = |served: &Served| {
        let run = served.post("/v1/runs", &json!({ "pipeline": "slow", "cwd": project.root() })).is(201);
        run["id"].as_str().unwrap().to_owned()
    };
    let first = run(&served);
    project.await_file("began");
    // Another version of the same name does not begin anew.
    served.deploy(&format!("{capped}# changed\n"), project.root()).is(201);
    let second = run(&served);
    let status = |id: &str| served.get(&format!("/v1/runs/{id}")).is(200)["steps"][0]["status"].clone();
    assert_eq!((status(&first), status(&second)), (json!("running"), json!("ready")));
    let why = served.get(&format!("/v1/runs/{second}/why")).is(200);
    assert_eq!(why["because"][0]["kind"], "cap", "{why}");
    project.write("go", "");
    for id in [first, second] {
        until("the run to end", || {
            (served.get(&format!("/v1/runs/{id}")).is(200)["status"] == "completed").then_some(())
        });
    }
    assert_eq!(project.read("began").lines().count(), 2);
    served.close();
}
