//! Items over HTTP: pushed in one commit, taken under an epoch, tried again, given up, put back.

use crate::served::Served;
use crate::support::{Project, text, until};
use serde_json::{Value, json};
use std::thread;

const BOOK: &str = "
name: jobs
queues:
  jobs: { visibility_timeout: 30s, retry: { max_attempts: 2 }, max_depth: 5, dead_letter: graves }
  graves: {}
  keyed: { dedupe: true, retry: { max_attempts: 3, cooldown: 1h } }
pipelines: { p: { steps: [ { run: 'true' } ] } }
";

fn served() -> (Project, Served) {
    let project = Project::with(BOOK);
    let served = Served::open(&project.path("data"));
    served.deploy(BOOK, project.root()).is(201);
    (project, served)
}

fn take(served: &Served, body: &Value) -> Vec<Value> {
    served.post("/v1/queues/jobs/take", body).is(200)["items"].as_array().unwrap().clone()
}

fn report(served: &Served, verb: &str, item: &Value) -> Value {
    let body = json!({ "items": [{ "item": item["id"], "epoch": item["epoch"], "error": item["error"] }] });
    let body = if verb == "fail" { body } else { json!({ "item": item["id"], "epoch": item["epoch"] }) };
    served.post(&format!("/v1/queues/jobs/{verb}"), &body).is(200)["items"][0].clone()
}

#[test]
fn an_array_is_one_commit_and_all_of_it_or_nothing() {
    let (_project, served) = served();
    let push = |n: usize| {
        let items: Vec<Value> = (0..n).map(|n| json!({ "data": { "n": n } })).collect();
        served.post("/v1/queues/jobs/items", &json!(items))
    };
    assert_eq!(push(4).is(201)["items"].as_array().unwrap().len(), 4);
    let detail = push(2).refuses(429, "QUEUE_FULL");
    assert!(detail.contains('5'), "{detail}");
    assert_eq!(served.get("/v1/queues/jobs").is(200)["depth"], 4, "not even one of them");
    push(1).is(201);
    push(0).refuses(400, "INVALID_INPUT");
    push(1_001).refuses(400, "INVALID_INPUT");
    let unknown = served.post("/v1/queues/nowhere/items", &json!({ "data": 1 }));
    assert!(unknown.refuses(404, "NOT_FOUND").contains("deploy a runbook that declares it"));
    served.post_as(Some("acme"), "/v1/queues/jobs/items", &json!({ "data": 1 })).refuses(404, "NOT_FOUND");
    served.close();
}

#[test]
fn priority_delay_and_dedupe_mean_what_they_say() {
    let (project, served) = served();
    let push = |words: &[&str]| {
        let words = [&["queue", "push", "jobs", "--json"], words].concat();
        project.windlass(&words).code(0).json()
    };
    push(&["--data", "{\"n\":1}"]);
    push(&["--data", "{\"n\":2}", "--priority", "5"]);
    let late = push(&["--data", "{\"n\":3}", "--delay", "1h", "--dedupe", "k"]);
    assert!(late["next_eligible_at"].is_string());
    let again = push(&["--data", "{\"n\":4}", "--dedupe", "k"]);
    assert_eq!((&again["id"], &again["known"]), (&late["id"], &json!(true)));
    let taken = take(&served, &json!({ "max": 10, "holder": "c1" }));
    let numbers: Vec<&Value> = taken.iter().map(|item| &item["data"]["n"]).collect();
    assert_eq!(numbers, [&json!(2), &json!(1)], "the delayed one waits");
    let keyed = |n: u32| served.post("/v1/queues/keyed/items", &json!({ "data": { "n": n } }));
    let first = keyed(1).is(201);
    assert_eq!(keyed(1).is(200)["id"], first["id"], "known by its data");
    keyed(2).is(201);
    let both = json!([{ "data": "x" }, { "data": "x" }]);
    let both = served.post("/v1/queues/keyed/items", &both).is(201);
    assert_eq!(both["items"][0]["id"], both["items"][1]["id"], "also within one push");
    served.close();
}

#[test]
fn claims_are_fenced_and_tries_are_counted() {
    let (_project, served) = served();
    served.post("/v1/queues/jobs/items", &json!({ "data": 1 })).is(201);
    let first = take(&served, &json!({})).remove(0);
    assert_eq!(
        (&first["status"], &first["attempts"], &first["epoch"]),
        (&json!("processing"), &json!(1), &json!(1))
    );
    assert!(report(&served, "heartbeat", &first)["code"].is_null());
    assert!(report(&served, "fail", &first)["code"].is_null());
    let second = take(&served, &json!({})).remove(0);
    assert_eq!(second["epoch"], 2);
    for verb in ["heartbeat", "complete"] {
        assert_eq!(report(&served, verb, &first)["code"], "LEASE_STALE_EPOCH", "{verb}");
    }
    assert!(report(&served, "fail", &second)["code"].is_null());
    let path = format!("/v1/queues/jobs/items/{}", text(&first, "id"));
    let dead = served.get(&path).is(200);
    assert_eq!(dead["status"], "dead", "two tries in all");
    assert!(!text(&dead, "error").is_empty(), "it says why: {dead}");
    // It stays in place and is forwarded too.
    let graves = served.get("/v1/queues/graves/items").is(200);
    assert_eq!(graves["items"][0]["from"], first["id"]);
    let back = served.post(&format!("{path}/retry"), &json!({ "data": 2 })).is(200);
    assert_eq!(
        (&back["status"], &back["attempts"], &back["data"]),
        (&json!("pending"), &json!(0), &json!(2))
    );
    let third = take(&served, &json!({})).remove(0);
    assert!(report(&served, "complete", &third)["code"].is_null());
    assert!(report(&served, "complete", &third)["code"].is_null(), "told twice");
    served.post(&format!("{path}/cancel"), &json!({})).refuses(409, "RUN_TERMINAL_STATE");
    let missing = json!({ "item": "itm_00000000000000000000000009", "epoch": 1 });
    assert_eq!(served.post("/v1/queues/jobs/complete", &missing).is(200)["items"][0]["code"], "NOT_FOUND");
    served.close();
}

#[test]
fn dead_items_are_listed_by_status_and_put_back_together() {
    let (project, served) = served();
    let items: Vec<Value> = (0..3).map(|n| json!({ "data": n })).collect();
    served.post("/v1/queues/jobs/items", &json!(items)).is(201);
    for _ in 0..2 {
        for item in take(&served, &json!({ "max": 3 })) {
            assert!(report(&served, "fail", &item)["code"].is_null());
        }
    }
    let dead = project.windlass(&["queue", "list", "jobs", "--status", "dead", "--limit", "2", "--json"]);
    let dead = dead.code(0).json();
    assert_eq!(dead["items"].as_array().unwrap().len(), 2);
    let rest =
        served.get(&format!("/v1/queues/jobs/items?status=dead&cursor={}", text(&dead, "next_cursor")));
    assert_eq!(rest.is(200)["items"].as_array().unwrap().len(), 1);
    project.windlass(&["queue", "retry", "jobs", "--status", "dead"]).code(0).says("3 items");
    assert_eq!(served.get("/v1/queues/jobs").is(200)["ready"], 3);
    served.get("/v1/queues/jobs/items?status=lost").refuses(400, "INVALID_INPUT");
    let first = text(&dead["items"][0], "id");
    project.windlass(&["queue", "cancel", "jobs", first, "--reason", "wrong"]).code(0);
    let shown = project.windlass(&["queue", "show", "jobs", first, "--json"]).code(0).json();
    assert_eq!((&shown["status"], &shown["error"]), (&json!("failed"), &json!("wrong")));
    let again = served.post(&format!("/v1/queues/jobs/items/{first}/retry"), &json!({}));
    assert!(again.refuses(409, "RUN_TERMINAL_STATE").contains("cancelled"));
    served.close();
}

#[test]
fn what_is_put_back_needs_room_and_its_key() {
    let (_project, served) = served();
    let push = |body: &Value| served.post("/v1/queues/jobs/items", body);
    let item = |n: u32, key: &str| json!({ "data": n, "dedupe": key });
    // Three die, and others take their places and the key of the first.
    push(&json!([item(1, "a"), item(2, "b"), item(3, "c")])).is(201);
    let mut dead = Vec::new();
    for _ in 0..2 {
        dead = take(&served, &json!({ "max": 3 }));
        dead.iter().for_each(|item| assert!(report(&served, "fail", item)["code"].is_null()));
    }
    push(&json!([item(4, "a"), item(5, "d"), item(6, "e"), item(7, "f")])).is(201);
    let retry =
        |item: &Value| served.post(&format!("/v1/queues/jobs/items/{}/retry", text(item, "id")), &json!({}));
    assert!(retry(&dead[0]).refuses(409, "LOCK_BUSY").contains("dedupe key"));
    let bulk = |limit: u32| served.post("/v1/queues/jobs/retry", &json!({ "limit": limit }));
    let done = bulk(1).is(200);
    assert_eq!((&done["retried"], &done["more"]), (&json!(1), &json!(true)), "the second is put back");
    assert_eq!(served.get("/v1/queues/jobs").is(200)["depth"], 5);
    retry(&dead[2]).refuses(429, "QUEUE_FULL");
    bulk(10).refuses(429, "QUEUE_FULL");
    assert_eq!(served.get("/v1/queues/jobs").is(200)["dead"], 2);
    served.close();
}

#[test]
fn a_list_is_not_read_as_the_fields_of_an_item_or_a_report() {
    let (_project, served) = served();
    let items = "/v1/queues/jobs/items";
    for body in [json!([["d", 5, null, "key"]]), json!([{ "data": 1 }, ["d", 5, null, "key"]]), json!("d")] {
        served.post(items, &body).refuses(400, "INVALID_INPUT");
    }
    assert_eq!(served.get("/v1/queues/jobs").is(200)["depth"], 0);
    let pushed = served.post(items, &json!({ "data": 1 })).is(201);
    take(&served, &json!({}));
    for body in [json!([[pushed["id"], 1]]), json!({ "items": [[pushed["id"], 1]] })] {
        served.post("/v1/queues/jobs/complete", &body).refuses(400, "INVALID_INPUT");
    }
    served.close();
}

#[test]
fn the_beginning_of_an_id_names_an_item_and_its_error_is_shown_harmlessly() {
    let (project, served) = served();
    let push = || text(&served.post("/v1/queues/jobs/items", &json!({ "data": 1 })).is(201), "id").to_owned();
    let (first, second) = (push(), push());
    let differ = first.bytes().zip(second.bytes()).position(|(a, b)| a != b).unwrap();
    let shown = project.windlass(&["queue", "show", "jobs", &first[..=differ], "--json"]).code(0).json();
    assert_eq!(shown["id"], *first);
    project.windlass(&["queue", "cancel", "jobs", &first[..differ]]).code(2).warns("several");
    project.windlass(&["queue", "cancel", "jobs", "itm_zz"]).code(5);
    project.windlass(&["queue", "cancel", "jobs", &first[..=differ]]).code(0).says(&first);
    let evil = "\u{1b}[2J\u{9b}2J\u{202e}evil";
    let mut item = take(&served, &json!({})).remove(0);
    item["error"] = json!(evil);
    report(&served, "fail", &item);
    let listed = project.windlass(&["queue", "list", "jobs"]).code(0).says("evil");
    assert!(!listed.out.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{:?}", listed.out);
    served.close();
}

#[test]
fn a_consumer_that_waits_gets_what_is_pushed_meanwhile() {
    let (project, served) = served();
    thread::scope(|scope| {
        let waits = scope.spawn(|| take(&served, &json!({ "wait_ms": 60_000, "holder": "patient" })));
        // It waits once its first question was answered; a push before that is found at once, so either order is right.
        served.post("/v1/queues/jobs/items", &json!({ "data": "news" })).is(201);
        let got = waits.join().unwrap();
        assert_eq!((&got[0]["data"], &got[0]["holder"]), (&json!("news"), &json!("patient")));
        // One whose time comes while somebody waits.
        let waits = scope.spawn(|| take(&served, &json!({ "wait_ms": 60_000 })));
        served.post("/v1/queues/jobs/items", &json!({ "data": "later", "delay_ms": 300 })).is(201);
        assert_eq!(waits.join().unwrap()[0]["data"], "later");
    });
    project.windlass(&["queue", "pause", "jobs"]).code(0).says("paused");
    served.post("/v1/queues/jobs/items", &json!({ "data": 3 })).is(201);
    assert!(take(&served, &json!({ "max": 5 })).is_empty(), "a paused queue gives nothing out");
    project.windlass(&["queue", "resume", "jobs"]).code(0);
    assert_eq!(take(&served, &json!({ "max": 5 })).len(), 1);
    served.close();
}

#[test]
fn silence_ends_a_claim_and_a_restart_forgets_nothing() {
    let project = Project::with(&BOOK.replace("visibility_timeout: 30s", "visibility_timeout: 200ms"));
    let served = Served::open(&project.path("data"));
    served.deploy(&project.read("book.yaml"), project.root()).is(201);
    served.post("/v1/queues/jobs/items", &json!({ "data": 1 })).is(201);
    let first = take(&served, &json!({})).remove(0);
    let path = format!("/v1/queues/jobs/items/{}", text(&first, "id"));
    until("the claim to end", || (served.get(&path).is(200)["status"] == "pending").then_some(()));
    served.close();
    let served = Served::open(&project.path("data"));
    let again = take(&served, &json!({})).remove(0);
    assert_eq!((&again["id"], &again["epoch"], &again["attempts"]), (&first["id"], &json!(2), &json!(2)));
    served.close();
}

#[test]
fn without_a_retry_a_failure_is_final_and_the_item_says_when_and_by_whom() {
    const PLAIN: &str = "
name: plain
queues: { plain: {}, work: { retry: { max_attempts: 2 } } }
workers: { w: { queue: work, pipeline: p } }
pipelines: { p: { vars: { n: { required: true } }, steps: [ { run: 'test \"$WL_VAR_N\" = 1' } ] } }
";
    let project = Project::with(PLAIN);
    let served = Served::open(&project.path("data"));
    served.deploy(PLAIN, project.root()).is(201);
    let pushed = served.post("/v1/queues/plain/items", &json!({ "data": 1 })).is(201);
    let path = format!("/v1/queues/plain/items/{}", text(&pushed, "id"));
    assert!(served.get(&path).is(200).get("taken_at").is_none());
    let taken = served.post("/v1/queues/plain/take", &json!({})).is(200)["items"][0].clone();
    let fail = json!({ "items": [{ "item": taken["id"], "epoch": taken["epoch"], "error": "no" }] });
    served.post("/v1/queues/plain/fail", &fail).is(200);
    let failed = served.get(&path).is(200);
    assert_eq!((&failed["status"], &failed["error"]), (&json!("failed"), &json!("no")));
    assert!(failed["taken_at"].is_string() && failed["completed_at"].is_string(), "{failed}");
    served.post(&format!("{path}/retry"), &json!({})).is(200);
    for (n, status) in [(1, "completed"), (2, "dead")] {
        let pushed = served.post("/v1/queues/work/items", &json!({ "data": { "n": n } })).is(201);
        let path = format!("/v1/queues/work/items/{}", text(&pushed, "id"));
        let ended = until(&format!("{n} to be {status}"), || {
            Some(served.get(&path).is(200)).filter(|item| item["status"] == status)
        });
        let run = served.get(&format!("/v1/runs/{}", text(&ended, "run"))).is(200);
        assert_eq!(run["trigger"]["event_id"], ended["id"], "it keeps the run that worked on it");
        assert!(ended["taken_at"].as_str() <= ended["completed_at"].as_str(), "{ended}");
    }
    served.close();
}
