//! The lease protocol, spoken by hand.

use crate::server::{Asker, How, Server};
use crate::support::until;
use serde_json::{Value, json};
use std::sync::mpsc::channel;
use windlass_core::code::Code;

pub(crate) const GPU: &str =
    "name: gpu\npipelines:\n  p:\n    steps:\n      - { id: train, run: 'true', runs_on: [gpu] }\n";

fn server(how: How) -> (tempfile::TempDir, Server, Asker) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), how);
    let client = server.client();
    (dir, server, client)
}

#[test]
fn a_lease_has_everything_and_a_report_ends_the_step() {
    let (_dir, _server, client) = server(How::default());
    let yaml = "
name: whole
pipelines:
  p:
    vars: { who: { default: ann } }
    steps:
      - id: train
        run: ./train
        runs_on: [gpu]
        timeout: 5m
        shell: sh
        dir: work
        env: { MODE: fast, KEY: '${{ secrets.api }}' }
        outputs: { loss: number }
";
    let run = client.run(yaml);
    let leases = client.lease("e1", &["gpu", "linux"], 10);
    assert_eq!(leases.len(), 1, "{leases:?}");
    let lease = &leases[0];
    assert_eq!((&lease["run"], &lease["step"], &lease["epoch"]), (&json!(run), &json!("train"), &json!(1)));
    assert_eq!((&lease["command"], &lease["shell"]), (&json!("./train"), &json!("sh")));
    assert_eq!((&lease["dir"], &lease["timeout_ms"]), (&json!("work"), &json!(300_000)));
    assert_eq!(
        lease["env"],
        json!({ "MODE": "fast", "KEY": { "$secret": "api" } }),
        "a secret is a reference"
    );
    assert_eq!((&lease["vars"], &lease["tool"]), (&json!({ "who": "ann" }), &json!("shell")));
    assert!(lease["idempotency_key"].as_str().unwrap().contains("train"), "{lease}");
    assert!(lease["expires_at"].is_string() && lease["traceparent"].as_str().unwrap().starts_with("00-"));
    // The lease was durable before anybody heard of it.
    assert!(client.types(&run).contains(&"step:started".to_owned()));
    assert_eq!(client.show(&run)["steps"][0]["lease_owner"], "e1");
    assert_eq!(client.report("heartbeat", lease, json!({}))["cancel"], false);
    let answer = client.report("complete", lease, json!({ "output": { "loss": 0.5 }, "exit_code": 0 }));
    assert!(answer.get("code").is_none(), "{answer}");
    let ended = client.until(&run, "completed");
    assert_eq!(ended["steps"][0]["output"]["loss"], 0.5);
    // What comes again changes nothing and is answered as it was; another report is refused.
    let again = client.report("complete", lease, json!({ "output": { "loss": 0.1 } }));
    assert!(again.get("code").is_none(), "{again}");
    assert_eq!(client.show(&run)["steps"][0]["output"]["loss"], 0.5);
    let other = client.report("fail", lease, json!({ "error": { "message": "no" } }));
    assert_eq!(other["code"], Code::RunTerminalState.as_str());
}

#[test]
fn only_an_executor_with_every_label_gets_the_step_and_plain_steps_stay_here() {
    let (_dir, _server, client) = server(How { slots: 0, ..How::default() });
    let two =
        "name: two\npipelines:\n  p:\n    steps:\n      - { id: a, run: 'true', runs_on: [gpu, linux] }\n";
    let plain = "name: plain\npipelines:\n  p:\n    steps:\n      - { id: a, run: 'true' }\n";
    let (labelled, free) = (client.run(two), client.run(plain));
    assert!(client.lease("one", &["gpu"], 10).iter().all(|lease| lease["run"] != labelled));
    // Without executors of its own the server gives plain steps away, and that one was just given.
    assert_eq!(client.show(&free)["steps"][0]["lease_owner"], "one");
    assert_eq!(client.lease("both", &["linux", "gpu", "x"], 10)[0]["run"], labelled);

    let (_dir, _server, client) = server(How { slots: 1, ..How::default() });
    let slow = "name: slow\npipelines:\n  p:\n    steps:\n      - { id: a, run: 'exec sleep 600' }\n";
    let run = client.run(slow);
    client.until(&run, "running");
    // The one slot is taken: what waits for it is still not for others.
    let waits = client.run(plain);
    assert!(client.lease("e", &["gpu"], 10).is_empty());
    assert_eq!(client.show(&waits)["steps"][0]["status"], "ready");
    client.post(&format!("/v1/runs/{run}/cancel"), &json!({}));
    client.until(&waits, "completed");
}

#[test]
fn who_waits_is_woken_by_the_step_that_becomes_ready() {
    let (_dir, server, client) = server(How::default());
    let (tell, told) = channel();
    let address = server.address;
    let waiter = std::thread::spawn(move || {
        let asker = Asker::new(address);
        tell.send(()).unwrap();
        asker.post("/v1/leases", &json!({ "executor": "w", "labels": ["gpu"], "wait_ms": 60_000 }))
    });
    told.recv().unwrap();
    let run = client.run(GPU);
    // Nothing here asks again: if nobody woke it, this would be answered after a minute, and empty.
    let answer = waiter.join().unwrap();
    assert_eq!(answer["items"][0]["run"], run);
}

#[test]
fn a_burst_is_shared_among_those_who_wait() {
    let (_dir, server, client) = server(How::default());
    let address = server.address;
    let waiters: Vec<_> = ["a", "b"]
        .into_iter()
        .map(|name| {
            std::thread::spawn(move || {
                let body = json!({ "executor": name, "labels": ["gpu"], "wait_ms": 60_000, "max": 100 });
                Asker::new(address).post("/v1/leases", &body)["items"].as_array().unwrap().len()
            })
        })
        .collect();
    let yaml = "
name: burst
pipelines:
  p:
    steps:
      - id: all
        parallel:
          - { id: a, run: 'true', runs_on: [gpu] }
          - { id: b, run: 'true', runs_on: [gpu] }
";
    let runs: Vec<String> = (0..4).map(|_| client.run(yaml)).collect();
    let mut got: Vec<usize> = waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect();
    // Whoever came first got something, and the other got something too; the rest is there for whoever asks next.
    got.push(client.lease("c", &["gpu"], 100).len());
    assert_eq!(got.iter().sum::<usize>(), runs.len() * 2, "{got:?}");
    assert!(got[0] > 0 && got[1] > 0, "{got:?}");
}

#[test]
fn a_lease_that_nobody_extends_is_given_to_the_next_and_the_first_is_told_so() {
    let (_dir, _server, client) = server(How { ttl_ms: 300, ..How::default() });
    let run = client.run(GPU);
    let first = client.lease("dead", &["gpu"], 1)[0].clone();
    // A heartbeat keeps it.
    let kept = client.report("heartbeat", &first, json!({}));
    assert!(kept.get("code").is_none(), "{kept}");
    let answer =
        client.post("/v1/leases", &json!({ "executor": "alive", "labels": ["gpu"], "wait_ms": 60_000 }));
    let second = answer["items"][0].clone();
    assert_eq!((&second["run"], &second["epoch"], &second["attempt"]), (&json!(run), &json!(2), &json!(2)));
    for verb in ["heartbeat", "complete", "return"] {
        let answer = client.report(verb, &first, json!({}));
        assert_eq!(answer["code"], Code::LeaseStaleEpoch.as_str(), "{verb}: {answer}");
    }
    let failed = client.report("fail", &first, json!({ "error": "late" }));
    assert_eq!(failed["code"], Code::LeaseStaleEpoch.as_str());
    assert!(client.report("complete", &second, json!({})).get("code").is_none());
    client.until(&run, "completed");
    let expired: Vec<Value> =
        client.records(&run).into_iter().filter(|record| record["type"] == "step:expired").collect();
    assert_eq!((expired.len(), &expired[0]["lease_owner"]), (1, &json!("dead")));
    assert!(expired[0]["last_seen"].is_u64(), "{expired:?}");
}

#[test]
fn what_is_handed_back_is_ready_at_once_and_a_failure_counts() {
    let (_dir, _server, client) = server(How::default());
    let run = client.run(GPU);
    let first = client.lease("a", &["gpu"], 1)[0].clone();
    client.report("return", &first, json!({ "reason": "going home" }));
    let second = client.lease("b", &["gpu"], 1)[0].clone();
    assert_eq!(second["epoch"], 2);
    let error = json!({ "error": { "code": "STEP_FAILED", "message": "no such file" }, "exit_code": 3 });
    client.report("fail", &second, error);
    let ended = client.until(&run, "failed");
    assert_eq!(ended["steps"][0]["error"]["message"], "no such file");
}

#[test]
fn a_cancel_reaches_a_waiting_heartbeat_at_once() {
    let (_dir, server, client) = server(How::default());
    let run = client.run(GPU);
    let lease = client.lease("e", &["gpu"], 1)[0].clone();
    let (address, beat) = (server.address, lease.clone());
    let waiter = std::thread::spawn(move || {
        let item = json!({ "run": beat["run"], "step": beat["step"], "epoch": beat["epoch"] });
        let body = json!({ "items": [item], "wait_ms": 60_000 });
        Asker::new(address).post("/v1/leases/heartbeat", &body)["items"][0].clone()
    });
    client.post(&format!("/v1/runs/{run}/cancel"), &json!({ "reason": "enough" }));
    let news = waiter.join().unwrap();
    assert_eq!((&news["cancel"], &news["grace_ms"]), (&json!(true), &json!(10_000)));
    client.report("fail", &lease, json!({ "error": { "code": "CANCELLED", "message": "stopped" } }));
    client.until(&run, "cancelled");
}

/// What an item of a report needs beside its place.
fn more(verb: &str) -> Value {
    match verb {
        "secrets" => json!({ "secrets": [{ "name": "key", "version": "1" }] }),
        _ => json!({}),
    }
}

/// Whatever is told of a lease by somebody who does not have it is refused and changes nothing.
#[track_caller]
fn has_no_lease(client: &Asker, lease: &Value) {
    let (run, step) = (lease["run"].as_str().unwrap(), lease["step"].as_str().unwrap());
    let before = (client.show(run), client.records(run).len());
    for verb in ["heartbeat", "complete", "fail", "return", "secrets"] {
        let answer = client.report(verb, lease, more(verb));
        assert_eq!(answer["code"], Code::LeaseStaleEpoch.as_str(), "{verb}: {answer}");
    }
    let checkpoint = json!({ "epoch": lease["epoch"], "resumable": true, "data": { "loss": 0 } });
    client.refused(&format!("/v1/runs/{run}/steps/{step}/checkpoint"), &checkpoint, Code::LeaseStaleEpoch);
    assert_eq!((client.show(run), client.records(run).len()), before);
}

#[test]
fn a_lease_is_spoken_for_by_the_token_that_asked_for_it_and_no_other() {
    let (_dir, server, owner) = server(How::default());
    let (own, other) = (server.also_for_token("tok_1", "default"), server.also_for_token("tok_2", "default"));
    let run = owner.run(GPU);
    let lease = Asker::new(own).lease("e", &["gpu"], 1)[0].clone();
    assert_eq!(owner.show(&run)["steps"][0]["lease_owner"], "e@tok_1");
    let (own, other) = (Asker::new(own), Asker::new(other));
    assert!(other.lease("e", &["gpu"], 1).is_empty());
    has_no_lease(&other, &lease);
    has_no_lease(&owner, &lease);
    let piece = json!({ "epoch": 1, "lines": [] });
    other.refused(&format!("/v1/runs/{run}/steps/train/output"), &piece, Code::LeaseStaleEpoch);
    for name in ["e@tok_1", "e@tok_2"] {
        let body = json!({ "executor": name, "labels": ["gpu"] });
        other.refused("/v1/leases", &body, Code::InvalidInput);
        owner.refused("/v1/leases", &body, Code::InvalidInput);
    }
    own.post(&format!("/v1/runs/{run}/steps/train/output"), &piece);
    assert!(own.report("heartbeat", &lease, json!({})).get("code").is_none());
    assert!(own.report("complete", &lease, json!({})).get("code").is_none());
    owner.until(&run, "completed");
}

#[test]
fn what_the_server_carries_out_itself_is_reported_on_by_nobody_else() {
    let (_dir, server, owner) = server(How::default());
    let slow = "name: slow\npipelines:\n  p:\n    steps:\n      - { id: a, run: 'exec sleep 600' }\n";
    let run = owner.run(slow);
    until("the step runs", || {
        Some(owner.show(&run)).filter(|shown| shown["steps"][0]["lease_owner"] == "local")
    });
    let lease = json!({ "run": run, "step": "a", "epoch": 1 });
    has_no_lease(&Asker::new(server.also_for_token("tok_1", "default")), &lease);
    has_no_lease(&owner, &lease);
    owner.post(&format!("/v1/runs/{run}/cancel"), &json!({}));
    owner.until(&run, "cancelled");
}

#[test]
fn what_became_of_a_lost_attempt_is_told_by_who_had_it() {
    let (_dir, server, owner) = server(How { ttl_ms: 300, ..How::default() });
    let yaml = "
name: once
pipelines:
  p:
    steps:
      - { id: train, run: 'true', runs_on: [gpu], effect: at_most_once }
";
    let run = owner.run(yaml);
    let own = Asker::new(server.also_for_token("tok_1", "default"));
    let lease = own.lease("e", &["gpu"], 1)[0].clone();
    until("the lease runs out", || {
        Some(owner.show(&run)).filter(|shown| shown["steps"][0]["status"] == "outcome_unknown")
    });
    // People are told of it, and that is on record too: from here on nothing happens by itself.
    until("the notice is on record", || {
        owner.records(&run).iter().any(|record| record["type"] == "notice:sent").then_some(())
    });
    has_no_lease(&Asker::new(server.also_for_token("tok_2", "default")), &lease);
    assert!(own.report("complete", &lease, json!({})).get("code").is_none());
    owner.until(&run, "completed");
}

#[test]
fn another_namespaces_run_is_not_there() {
    let (_dir, server, owner) = server(How::default());
    let other = Asker::new(server.also_for_token("tok_2", "other"));
    let run = owner.run(GPU);
    assert!(other.lease("spy", &["gpu"], 10).is_empty());
    let theirs = other.run(GPU);
    let lease = owner.lease("own", &["gpu"], 10);
    assert_eq!((lease.len(), &lease[0]["run"]), (1, &json!(run)));
    let before = owner.records(&run).len();
    for verb in ["heartbeat", "complete", "fail", "return", "secrets"] {
        assert_eq!(other.report(verb, &lease[0], more(verb))["code"], "NOT_FOUND", "{verb}");
    }
    assert_eq!(owner.records(&run).len(), before);
    assert_eq!(other.lease("own", &["gpu"], 10)[0]["run"], theirs);
}

#[test]
fn another_tenants_run_is_not_there() {
    let (_dir, server, client) = server(How::default());
    let other = Asker::new(server.also_for("acme"));
    let run = client.run(GPU);
    assert!(other.lease("spy", &["gpu"], 10).is_empty());
    let lease = client.lease("own", &["gpu"], 1)[0].clone();
    let absent = json!({ "run": "run_00000000000000000000000000", "step": "train", "epoch": 1 });
    let before = client.records(&run).len();
    for verb in ["heartbeat", "complete", "fail", "return", "secrets"] {
        let more = more(verb);
        let foreign = other.report(verb, &lease, more.clone());
        let missing = other.report(verb, &absent, more);
        assert_eq!(
            (&foreign["code"], &missing["code"]),
            (&json!("NOT_FOUND"), &json!("NOT_FOUND")),
            "{verb}"
        );
        let text = |answer: &Value| {
            let run = answer["run"].as_str().unwrap().to_owned();
            answer["detail"].as_str().unwrap().replace(&run, "RUN")
        };
        assert_eq!(text(&foreign), text(&missing), "{verb}: the answers differ");
    }
    let checkpoint = json!({ "epoch": 1, "data": {} });
    other.refused(&format!("/v1/runs/{run}/steps/train/checkpoint"), &checkpoint, Code::NotFound);
    let piece = json!({ "epoch": 1, "lines": [] });
    other.refused(&format!("/v1/runs/{run}/steps/train/output"), &piece, Code::NotFound);
    assert_eq!(client.records(&run).len(), before, "nothing was written");
    assert!(client.report("complete", &lease, json!({})).get("code").is_none());
}

#[test]
fn bad_requests_are_refused_and_one_bad_item_does_not_spoil_the_rest() {
    let (_dir, _server, client) = server(How::default());
    for body in [
        json!({}),
        json!({ "executor": "local" }),
        json!({ "executor": "" }),
        json!({ "executor": "e", "max": 0 }),
        json!({ "executor": "e", "max": 1_001 }),
        json!({ "executor": "e", "labels": vec!["x"; 65] }),
        json!({ "executor": "e", "unknown": 1 }),
    ] {
        client.refused("/v1/leases", &body, Code::InvalidInput);
    }
    let run = client.run(GPU);
    let lease = client.lease("e", &["gpu"], 1)[0].clone();
    let good = json!({ "run": lease["run"], "step": "train", "epoch": 1 });
    let items = json!([
        { "run": "nonsense", "step": "train", "epoch": 1 },
        { "run": lease["run"], "step": "absent", "epoch": 1 },
        { "run": lease["run"], "step": "train", "epoch": 9 },
        { "run": lease["run"], "step": "train", "epoch": 1, "output": [1] },
        good,
    ]);
    let answer = client.post("/v1/leases/complete", &json!({ "items": items }));
    let codes: Vec<&Value> = answer["items"].as_array().unwrap().iter().map(|item| &item["code"]).collect();
    assert_eq!(codes.len(), 5);
    assert_eq!((codes[0], codes[1]), (&json!("NOT_FOUND"), &json!("NOT_FOUND")));
    assert_eq!((codes[2], codes[3]), (&json!("LEASE_STALE_EPOCH"), &json!("INVALID_INPUT")));
    assert!(codes[4].is_null());
    client.until(&run, "completed");
    let many = json!({ "items": vec![good; 1_001] });
    client.refused("/v1/leases/heartbeat", &many, Code::InvalidInput);
}

#[test]
fn an_executor_that_hung_up_leaves_its_steps_to_others() {
    let (_dir, server, client) = server(How::default());
    // It asks, waits and goes away without reading.
    let text = json!({ "executor": "gone", "labels": ["gpu"], "wait_ms": 60_000 }).to_string();
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    let head = format!(
        "POST /v1/leases HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        text.len()
    );
    std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
    std::io::Write::write_all(&mut stream, text.as_bytes()).unwrap();
    drop(stream);
    let run = client.run(GPU);
    // The time-out is ten minutes: only a step that was not given away, or came back, is there now.
    until("the step to be there", || client.lease("here", &["gpu"], 1).pop());
    assert_eq!(client.show(&run)["steps"][0]["lease_owner"], "here");
}
