//! What a restart finds: leases of executors elsewhere, saved progress, orphans.

use crate::leases::GPU;
use crate::server::{How, Server};
use serde_json::json;
use windlass_core::code::Code;

#[test]
fn a_lease_has_one_whole_time_out_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), How { ttl_ms: 2_000, ..How::default() });
    let client = server.client();
    let run = client.run(GPU);
    let lease = client.lease("e", &["gpu"], 1)[0].clone();
    let server = server.restart();
    let client = server.client();
    // Under the same epoch it is still this executor's.
    let kept = client.report("heartbeat", &lease, json!({}));
    assert!(kept.get("code").is_none(), "{kept}");
    // Nobody is heard of any more: it is taken back although nobody asks for anything meanwhile.
    let answer = client.post("/v1/leases", &json!({ "executor": "f", "labels": ["gpu"], "wait_ms": 60_000 }));
    assert_eq!(answer["items"][0]["epoch"], 2);
    client.report("complete", &answer["items"][0], json!({}));
    client.until(&run, "completed");
}

#[test]
fn a_lost_attempt_that_saved_a_result_is_not_done_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), How { ttl_ms: 500, ..How::default() });
    let client = server.client();
    let run = client.run(GPU);
    let lease = client.lease("e", &["gpu"], 1)[0].clone();
    let path = format!("/v1/runs/{run}/steps/train/checkpoint");
    client.refused(&path, &json!({ "epoch": 7, "data": {} }), Code::LeaseStaleEpoch);
    let saved =
        json!({ "epoch": lease["epoch"], "resumable": true, "data": { "loss": 0.1 }, "message": "done" });
    client.post(&path, &saved);
    let ended = client.until(&run, "completed");
    assert_eq!(
        (&ended["steps"][0]["epoch"], &ended["steps"][0]["output"]),
        (&json!(1), &json!({ "loss": 0.1 }))
    );
    client.refused(&path, &saved, Code::RunTerminalState);
}

#[test]
fn progress_that_cannot_stand_for_the_result_is_done_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), How { ttl_ms: 500, ..How::default() });
    let client = server.client();
    let run = client.run(GPU);
    let lease = client.lease("e", &["gpu"], 1)[0].clone();
    let saved = json!({ "epoch": lease["epoch"], "data": { "epochs": 3 } });
    client.post(&format!("/v1/runs/{run}/steps/train/checkpoint"), &saved);
    let answer = client.post("/v1/leases", &json!({ "executor": "f", "labels": ["gpu"], "wait_ms": 60_000 }));
    assert_eq!(answer["items"][0]["epoch"], 2);
}

#[test]
fn what_steps_saved_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), How::default());
    let client = server.client();
    let run = client.run(GPU);
    let lease = client.lease("e", &["gpu"], 1)[0].clone();
    let path = format!("/v1/runs/{run}/checkpoints");
    assert_eq!(client.get(&path)["items"], json!([]));
    let saved = json!({ "epoch": lease["epoch"], "resumable": true, "data": { "loss": 0.1 }, "message": "half",
        "tokens_input": 7, "tokens_output": 2 });
    client.post(&format!("/v1/runs/{run}/steps/train/checkpoint"), &saved);
    client.post(&format!("/v1/runs/{run}/resume"), &json!({ "message": "looks good" }));
    let items = client.get(&path)["items"].clone();
    let shown = &items[0];
    assert_eq!(
        (&shown["step"], &shown["agent"], &shown["status"]),
        (&json!("train"), &json!("shell"), &json!("running"))
    );
    assert_eq!(
        (&shown["output"], &shown["resumable"], &shown["idempotent"]),
        (&json!({ "loss": 0.1 }), &json!(true), &json!(false))
    );
    assert_eq!(
        (&shown["tokens_used"], &shown["message"]),
        (&json!({ "input": 7, "output": 2 }), &json!("half"))
    );
    assert!(
        shown["at"].is_string() && shown["duration_ms"].is_u64() && shown["epoch"] == lease["epoch"],
        "{shown}"
    );
    assert_eq!(items[1]["message"], "looks good");
}

#[test]
fn a_lease_that_is_kept_alive_does_not_end_in_the_past() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), How { ttl_ms: 1_000, ..How::default() });
    let client = server.client();
    let run = client.run(GPU);
    let lease = client.lease("e", &["gpu"], 1)[0].clone();
    let first = client.show(&run)["steps"][0]["lease_expires_at"].clone();
    // Heartbeats come until the time that the record says is over.
    let shown = crate::support::until("the recorded time to be over", || {
        let kept = client.report("heartbeat", &lease, json!({}));
        assert!(kept.get("code").is_none(), "{kept}");
        let shown = client.show(&run);
        (shown["last_heartbeat_at"].as_str() > first.as_str()).then_some(shown)
    });
    let step = &shown["steps"][0];
    assert_eq!((&step["status"], &step["epoch"]), (&json!("running"), &json!(1)));
    assert!(step["lease_expires_at"].as_str() > step["last_heartbeat_at"].as_str(), "{step}");
    assert_eq!(step["last_heartbeat_at"], shown["last_heartbeat_at"]);
}
