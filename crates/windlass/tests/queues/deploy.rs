//! `deploy`: what follows the active version, what is refused, what is recorded.

use crate::served::Served;
use crate::support::{Project, text};
use serde_json::{Value, json};

const FIRST: &str = "
name: bugs
queues: { bugs: { retry: { max_attempts: 2 } } }
workers: { fixer: { queue: bugs, pipeline: fix } }
schedules: { hourly: { every: 1h, pipeline: sweep } }
locks: { merge: { max_hold_duration: 1h } }
pipelines:
  fix: { vars: { n: {} }, steps: [ { run: 'true' } ] }
  sweep: { steps: [ { run: 'true' } ] }
";

fn named<'a>(page: &'a Value, name: &str) -> Option<&'a Value> {
    page["items"].as_array().unwrap().iter().find(|item| item["name"] == name)
}

#[test]
fn queues_workers_and_schedules_follow_the_active_version() {
    let project = Project::with(FIRST);
    let served = Served::open(&project.path("data"));
    let out = project.windlass(&["deploy", "book.yaml", "--json"]).code(0).json();
    assert_eq!((text(&out, "name"), text(&out, "deployed_by")), ("bugs", "tester"));
    assert!(out["replaces"].is_null());
    let first = text(&out, "hash").to_owned();
    assert_eq!(named(&served.get("/v1/queues").is(200), "bugs").unwrap()["state"], "active");
    assert_eq!(named(&served.get("/v1/workers").is(200), "fixer").unwrap()["state"], "started");
    let schedules = served.get("/v1/schedules").is(200);
    assert_eq!(named(&schedules, "hourly").unwrap()["next"].as_array().unwrap().len(), 5);

    let second = FIRST
        .replace("schedules: { hourly: { every: 1h, pipeline: sweep } }\n", "")
        .replace("fixer", "mender");
    project.write("book.yaml", &second);
    let diff = project.windlass(&["deploy", "book.yaml", "--diff"]).code(0);
    let diff = diff.says("+ worker `mender`").says("- worker `fixer`").says("- schedule `hourly`");
    diff.says("- schedules: { hourly: { every: 1h, pipeline: sweep } }");
    assert_eq!(named(&served.get("/v1/workers").is(200), "mender"), None, "nothing is deployed by a diff");

    let out = project.windlass(&["deploy", "book.yaml", "--json"]).code(0).json();
    assert_eq!(text(&out, "replaces"), first);
    let workers = served.get("/v1/workers").is(200);
    assert_eq!(named(&workers, "fixer").unwrap()["state"], "stopped");
    assert_eq!(named(&workers, "mender").unwrap()["state"], "started");
    served.post("/v1/workers/fixer/start", &json!({})).refuses(404, "NOT_FOUND");
    assert_eq!(served.get("/v1/workers/fixer").is(200)["state"], "stopped", "nobody declares it");
    served.post("/v1/workers/mender/start", &json!({})).is(200);
    assert_eq!(named(&served.get("/v1/schedules").is(200), "hourly"), None);
    let books = project.windlass(&["runbooks", "--json"]).code(0).json();
    let deployed: Vec<&Value> =
        books["items"].as_array().unwrap().iter().filter(|book| book["deployed"] == true).collect();
    assert_eq!(deployed.len(), 1);
    assert_eq!((text(deployed[0], "replaces"), text(deployed[0], "deployed_by")), (first.as_str(), "tester"));
    assert!(text(deployed[0], "deployed_at").ends_with('Z'));
    project.windlass(&["deploy", "book.yaml", "--diff"]).code(0).says("nothing changes");
    served.close();
}

#[test]
fn another_runbooks_declaration_is_refused_and_the_owner_named() {
    let project = Project::with(FIRST);
    let served = Served::open(&project.path("data"));
    served.deploy(FIRST, project.root()).is(201);
    let other = "
name: other
queues: { bugs: { retry: { max_attempts: 9 } }, fresh: {} }
pipelines: { p: { steps: [ { run: 'true' } ] } }
";
    project.write("other.yaml", other);
    project.windlass(&["deploy", "other.yaml"]).code(6).warns("DEPLOY_CONFLICT").warns("`bugs`");
    let detail = served.deploy(other, project.root()).refuses(409, "DEPLOY_CONFLICT");
    assert!(detail.contains("queue `bugs` belongs to the deployed runbook `bugs`"), "{detail}");
    assert_eq!(named(&served.get("/v1/queues").is(200), "fresh"), None, "nothing of it was done");
    let stored = project.windlass(&["runbooks", "--json"]).code(0).out;
    assert!(!stored.contains("other"), "it is not stored either: {stored}");
    // The same words are no conflict; another tenant has names of its own.
    served.deploy(&other.replace("max_attempts: 9", "max_attempts: 2"), project.root()).is(201);
    served.deploy_as(Some("acme"), other, project.root()).is(201);
    served.close();
}

#[test]
fn a_schedule_without_slots_keeps_a_runbook_from_being_deployed() {
    let project = Project::with(FIRST);
    let served = Served::open(&project.path("data"));
    let wrong = FIRST.replace("every: 1h", "cron: '0 0 30 2 *'");
    assert!(served.deploy(&wrong, project.root()).refuses(422, "RUNBOOK_INVALID").contains("never comes"));
    let wrong = FIRST.replace("every: 1h", "cron: '0 0 * * *', timezone: Mars/Olympus");
    assert!(served.deploy(&wrong, project.root()).refuses(422, "RUNBOOK_INVALID").contains("time zone"));
    assert_eq!(served.get("/v1/queues").is(200)["items"].as_array().unwrap().len(), 0);
    served.close();
}

#[test]
fn a_file_that_is_only_run_may_use_its_own_semaphores() {
    let project = Project::with(
        "
name: alone
semaphores: { builders: { capacity: 1 } }
pipelines: { p: { steps: [ { run: 'true', semaphore: builders } ] } }
",
    );
    project.run(&[], 0);
    assert_eq!(project.windlass(&["queues"]).code(0).out.trim(), "no queues");
}

const VERSION: &str = "
name: shop
queues: { bugs: {} }
workers: { fixer: { queue: bugs, pipeline: fix } }
schedules: { hourly: { every: 1h, pipeline: sweep } }
triggers: { told: { on: 'custom:shop:told', pipeline: sweep } }
pipelines:
  fix: { vars: { n: {} }, steps: [ { run: 'true' } ] }
  sweep: { steps: [ { id: w, wait: { event: go, timeout: 1h } }, { run: 'echo first >> trace' } ] }
";

/// Two versions of a runbook, deployed one after the other.
fn two_versions(project: &Project) -> (String, String) {
    let deploy = || {
        let out = project.windlass(&["deploy", "book.yaml", "--json"]).code(0).json();
        text(&out, "hash").to_owned()
    };
    let first = deploy();
    let second = VERSION
        .replace("first", "second")
        .replace("schedules: { hourly: { every: 1h, pipeline: sweep } }\n", "");
    project.write("book.yaml", second);
    (first, deploy())
}

#[test]
fn an_earlier_version_is_shown_compared_and_active_again_and_runs_keep_theirs() {
    let project = Project::with(VERSION);
    let (first, second) = two_versions(&project);
    let shown = |wanted: &str| project.windlass(&["runbooks", "show", wanted]).code(0);
    shown("shop").says("echo second").says(&second).says("deployed");
    shown(&format!("shop@{}", &first[..8])).says("echo first").says("not deployed");
    assert_eq!(
        project.windlass(&["runbooks", "show", &first, "--json"]).code(0).json()["hash"],
        first.as_str()
    );
    project.windlass(&["runbooks", "show", "shop@ffffffffffff"]).code(5);
    project.windlass(&["runbooks", "show", "nothing"]).code(5);
    let diff = project.windlass(&["runbooks", "diff", "shop"]).code(0);
    diff.says("- schedule `hourly`").says("+   sweep:").says("echo second");
    let back = format!("shop@{}", &second[..12]);
    let diff = project
        .windlass(&["runbooks", "diff", &back, &format!("shop@{}", &first[..12]), "--json"])
        .code(0)
        .json();
    assert_eq!((text(&diff, "from"), text(&diff, "to")), (second.as_str(), first.as_str()));

    let served = Served::open(&project.path("data"));
    // A run of the second version, under way.
    let run = served.post("/v1/runs", &json!({ "runbook": "shop", "pipeline": "sweep" })).is(201);
    let run = text(&run, "id").to_owned();
    let out = project.windlass(&["runbooks", "rollback", "shop", "--json"]).code(0).json();
    assert_eq!((text(&out, "hash"), text(&out, "replaces")), (first.as_str(), second.as_str()));
    assert_eq!(text(&out, "deployed_by"), "tester");
    let root = project.root().canonicalize().unwrap();
    assert_eq!(text(&out, "project_root"), root.to_str().unwrap());
    assert!(named(&served.get("/v1/schedules").is(200), "hourly").is_some());
    project.windlass(&["signal", &run, "go"]).code(0);
    assert_eq!(project.windlass(&["watch", &run, "--json"]).code(0).last()["runbook_hash"], second.as_str());
    assert_eq!(project.read("trace"), "second\n");
    // Back again, by name and by the beginning of a hash.
    let out = project.windlass(&["runbooks", "rollback", "shop"]).code(0);
    out.says(&format!("deployed `shop` as {}, replaces {}", &second[..12], &first[..12]));
    project.windlass(&["runbooks", "rollback", "shop", "--to", &first[..8]]).code(0);
    project.windlass(&["runbooks", "rollback", "shop", "--to", "ffff"]).code(5).warns("ffff");
    project.windlass(&["runbooks", "rollback", "nothing"]).code(5);
    let deployed = project.events("runbook:deployed");
    assert_eq!(deployed.len(), 5);
    assert!(deployed.iter().all(|event| event["by"] == "user:tester"), "{deployed:?}");
    // Another tenant has none of it.
    let other = served.post_as(Some("acme"), "/v1/runbooks/shop/rollback", &json!({}));
    other.refuses(404, "NOT_FOUND");
    served.close();
}

#[test]
fn what_an_undeployed_runbook_declared_ends_and_runs_under_way_go_on() {
    let project = Project::with(VERSION);
    let (first, second) = two_versions(&project);
    let served = Served::open(&project.path("data"));
    project.windlass(&["runbooks", "rollback", "shop"]).code(0);
    project.windlass(&["emit", "shop:told"]).code(0).says("made the run");
    let run = text(&served.runs()[0], "id").to_owned();
    served.post_as(Some("acme"), "/v1/runbooks/shop/undeploy", &json!({})).refuses(404, "NOT_FOUND");
    project.windlass(&["runbooks", "undeploy", "shop"]).code(2).warns("--yes");
    project.windlass(&["runbooks", "undeploy", "shop", "--yes"]).code(0).says("undeployed");
    assert_eq!(named(&served.get("/v1/schedules").is(200), "hourly"), None);
    assert_eq!(named(&served.get("/v1/workers").is(200), "fixer").unwrap()["state"], "stopped");
    assert_eq!(named(&served.get("/v1/queues").is(200), "bugs").unwrap()["state"], "withdrawn");
    let emitted = project.windlass(&["emit", "shop:told", "--json"]).code(0).json();
    assert_eq!(emitted["runs"].as_array().map_or(0, Vec::len), 0, "{emitted}");
    project.windlass(&["run", "shop", "sweep"]).code(5);
    project.windlass(&["runbooks", "undeploy", "shop", "--yes"]).code(5);
    let withdrawn = project.events("runbook:withdrawn");
    assert_eq!(withdrawn.len(), 1);
    assert_eq!((text(&withdrawn[0], "hash"), text(&withdrawn[0], "by")), (first.as_str(), "user:tester"));
    // The run that was under way is of its version.
    project.windlass(&["signal", &run, "go"]).code(0);
    assert_eq!(project.windlass(&["watch", &run, "--json"]).code(0).last()["runbook_hash"], first.as_str());
    // It stays so through a restart, and what was there comes back.
    served.close();
    let served = Served::open(&project.path("data"));
    assert_eq!(named(&served.get("/v1/workers").is(200), "fixer").unwrap()["state"], "stopped");
    project.windlass(&["runbooks", "rollback", "shop", "--to", &second]).code(0);
    assert_eq!(named(&served.get("/v1/workers").is(200), "fixer").unwrap()["state"], "started");
    assert_eq!(named(&served.get("/v1/queues").is(200), "bugs").unwrap()["state"], "active");
    // What another deployed runbook declares, too, stays.
    let other = "name: other\nqueues: { bugs: {} }\npipelines: { p: { steps: [ { run: 'true' } ] } }\n";
    served.deploy(other, project.root()).is(201);
    project.windlass(&["runbooks", "undeploy", "shop", "--yes"]).code(0);
    assert_eq!(named(&served.get("/v1/queues").is(200), "bugs").unwrap()["state"], "active");
    served.close();
}
