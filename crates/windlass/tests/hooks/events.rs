//! External events over the API: waited for, kept, taken once, and timed out.

use crate::support::{Project, text};
use crate::wire::Serving;
use serde_json::{Value, json};

const BOOK: &str = r#"
name: book
pipelines:
  one: { steps: [{ id: w, wait: { event: merged, key: '17' } }] }
  two:
    steps:
      - { id: a, wait: { event: ok } }
      - { id: b, wait: { event: ok } }
  late: { steps: [{ id: w, wait: { event: never, timeout: 1ms } }] }
  lenient: { steps: [{ id: w, wait: { event: never, timeout: 1ms, on_timeout: continue } }, { run: 'true' }] }
"#;

fn start(serving: &Serving, pipeline: &str) -> String {
    let body = json!({ "pipeline": pipeline }).to_string();
    text(&serving.post("/v1/runs", &[], body.as_bytes()).is(201).json(), "id").to_owned()
}

fn send(serving: &Serving, path: &str, body: &Value) -> crate::wire::Answer {
    serving.post(path, &[], body.to_string().as_bytes())
}

#[test]
fn an_event_before_its_wait_is_kept_and_taken_once() {
    let mut serving = Serving::new(Project::new(), &[BOOK]);
    let kept =
        send(&serving, "/v1/signals/merged", &json!({ "key": "17", "data": { "n": 1 } })).is(200).json();
    assert_eq!(kept["kept"], true, "{kept}");
    serving.restart();
    let first = start(&serving, "one");
    assert_eq!(serving.await_status(&first, "completed")["steps"][0]["output"], json!({ "n": 1 }));
    let second = start(&serving, "one");
    serving.await_status(&second, "waiting_external");
    send(&serving, "/v1/signals/merged", &json!({ "key": "18", "data": 1 })).is(200);
    serving.await_status(&second, "waiting_external");
    let sent =
        send(&serving, "/v1/signals/merged", &json!({ "key": "17", "data": { "n": 2 } })).is(200).json();
    assert!(sent.get("kept").is_none(), "somebody waited for it: {sent}");
    serving.await_status(&second, "completed");
}

#[test]
fn an_event_that_its_source_sends_twice_is_one() {
    let mut serving = Serving::new(Project::new(), &[BOOK]);
    let run = start(&serving, "two");
    let path = format!("/v1/runs/{run}/signals/ok");
    let one = json!({ "event_id": "e1", "data": 1 });
    assert!(!send(&serving, &path, &one).is(200).replayed());
    assert!(send(&serving, &path, &one).is(200).replayed());
    serving.restart();
    assert!(send(&serving, &path, &one).is(200).replayed());
    let shown = serving.await_status(&run, "waiting_external");
    assert_eq!(
        (&shown["steps"][0]["status"], &shown["steps"][1]["status"]),
        (&json!("succeeded"), &json!("waiting_external"))
    );
    send(&serving, &path, &json!({ "event_id": "e1", "data": 2 })).is(409);
    send(&serving, &path, &json!({ "event_id": "e2", "data": 2 })).is(200);
    serving.await_status(&run, "completed");
    // By its key, and the first of it taken by a run that waited.
    let waiting = start(&serving, "one");
    serving.await_status(&waiting, "waiting_external");
    let by_key = json!({ "key": "17", "event_id": "e1", "data": 1 });
    send(&serving, "/v1/signals/merged", &by_key).is(200);
    serving.await_status(&waiting, "completed");
    assert!(send(&serving, "/v1/signals/merged", &by_key).is(200).replayed());
    let next = start(&serving, "one");
    serving.await_status(&next, "waiting_external");
}

#[test]
fn a_run_that_is_named_hears_the_event_whatever_the_key_of_its_wait() {
    let serving = Serving::new(Project::new(), &[BOOK]);
    let run = start(&serving, "one");
    serving.await_status(&run, "waiting_external");
    let path = format!("/v1/runs/{run}/signals/merged");
    let other = send(&serving, &path, &json!({ "key": "18", "data": 1 })).is(200).json();
    assert_eq!(other["status"], "waiting_external", "another key is another event");
    send(&serving, &path, &json!({ "data": { "n": 2 } })).is(200);
    assert_eq!(serving.await_status(&run, "completed")["steps"][0]["output"], json!({ "n": 2 }));
}

#[test]
fn a_wait_ends_with_its_time() {
    let serving = Serving::new(Project::new(), &[BOOK]);
    let run = start(&serving, "late");
    let shown = serving.await_status(&run, "failed");
    assert_eq!(shown["error"]["code"], "TIMED_OUT");
    let run = start(&serving, "lenient");
    serving.await_status(&run, "completed");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let serving = Serving::new(Project::new(), &[BOOK]);
    let run = start(&serving, "two");
    send(&serving, "/v1/signals/merged", &json!({ "data": 1 })).is(400);
    send(&serving, "/v1/signals/merged", &json!({ "key": "17", "surprise": 1 })).is(400);
    send(&serving, "/v1/signals/merged", &json!({ "key": "", "data": 1 })).is(400);
    send(&serving, &format!("/v1/runs/{run}/signals/ok"), &json!({ "event_id": "x".repeat(600) })).is(400);
    send(&serving, "/v1/runs/run_00000000000000000000000000/signals/ok", &json!({})).is(404);
}
