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
