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
