//! What a tenant keeps, up to a bound: runbooks that it stores, and variables of runs that wait.

use crate::http::{Answer, Server};
use crate::support::{Project, text, until};
use serde_json::json;

const YAML: [(&str, &str); 1] = [("content-type", "application/yaml")];

/// A runbook of many steps, and never the same twice.
fn book(n: usize) -> String {
    let steps: String = (0..1_000).map(|i| format!("\n      - {{ id: s{i}, run: 'echo {n}' }}")).collect();
    format!("name: b{n}\npipelines:\n  p:\n    steps:{steps}\n")
}

fn store(server: &Server, token: &str, n: usize, deploy: bool) -> Answer {
    let path = format!("/v1/runbooks?deploy={deploy}");
    server.send("POST", &path, Some(token), &YAML, book(n).as_bytes())
}

#[test]
fn runbooks_are_stored_up_to_a_bound_and_those_that_nobody_uses_leave() {
    let project = Project::new();
    project.write(
        "windlass.yaml",
        "retention: { runs: 2s }\ntenants:\n  small: { caps: { max_runbooks: 6 } }\n  tight: { caps: { max_runbook_bytes: 500000 } }\n",
    );
    let server = Server::start_with(project, &[]);
    let (small, tight, free) =
        (server.of("small", "default"), server.of("tight", "default"), server.of("free", "default"));
    let deployed = text(&store(&server, &small, 0, true).status(201).json(), "hash").to_owned();
    let wait = "name: w\npipelines:\n  w:\n    steps:\n      - { id: w, wait: { event: go } }\n";
    let wait = server.send("POST", "/v1/runbooks?deploy=false", Some(&small), &YAML, wait.as_bytes());
    let running = text(&wait.status(201).json(), "hash").to_owned();
    let wish = json!({ "pipeline": "w", "runbook": running });
    server.ask("POST", "/v1/runs", Some(&small), Some(&wish)).status(201);
    // Six are stored before the first can leave, or some left already; either way there is a bound.
    let mut stored = Vec::new();
    let refused = loop {
        let answer = store(&server, &small, stored.len() + 1, false);
        if answer.status != 201 {
            break answer;
        }
        stored.push(text(&answer.json(), "hash").to_owned());
        assert!(stored.len() < 100, "there is no bound");
    };
    assert!(refused.problem(429, "CAP_EXCEEDED").text().contains("max_runbooks"));
    store(&server, &small, 0, false).status(201);
    store(&server, &free, 1, false).status(201);
    let refused = (0..100).map(|n| store(&server, &tight, n, false)).find(|answer| answer.status != 201);
    let refused = refused.expect("a bound").problem(429, "CAP_EXCEEDED");
    assert!(refused.text().contains("max_runbook_bytes"), "{}", refused.text());
    // What nobody uses leaves, and makes room.
    until("room for another runbook", || (store(&server, &small, 200, false).status == 201).then_some(()));
    until("the runbooks to leave", || {
        let show = |hash: &str| server.ask("GET", &format!("/v1/runbooks/{hash}"), Some(&small), None).status;
        stored.iter().all(|hash| show(hash) == 404).then_some(())
    });
    for used in [&deployed, &running] {
        server.ask("GET", &format!("/v1/runbooks/{used}"), Some(&small), None).status(200);
    }
    let applied = server.project.events("retention:applied");
    let left: u64 = applied.iter().filter_map(|event| event["runbooks"].as_u64()).sum();
    assert!(left >= stored.len() as u64, "{applied:?}");
    // The run goes on with its own after a restart, from what the log has left.
    let mut server = server;
    server.restart();
    server.ask("GET", &format!("/v1/runbooks/{running}"), Some(&small), None).status(200);
    assert_eq!(server.ask("GET", "/v1/runs", Some(&small), None).items().len(), 1);
}

#[test]
fn variables_of_runs_that_wait_are_kept_up_to_a_bound() {
    let server = Server::start();
    let (big, other) = (server.of("big", "default"), server.of("small", "default"));
    let wait = "name: w\npipelines:\n  w:\n    vars: { text: {} }\n    steps:\n      - { id: w, wait: { event: go } }\n";
    for token in [&big, &other] {
        server.send("POST", "/v1/runbooks", Some(token), &YAML, wait.as_bytes()).status(201);
    }
    let wish = |len: usize| json!({ "pipeline": "w", "vars": { "text": "x".repeat(len) } });
    let (large, tiny) = (wish(900_000), wish(1));
    let send = |token: &str, wish| server.ask("POST", "/v1/runs", Some(token), Some(wish));
    let mut made = Vec::new();
    let refused = loop {
        let answer = send(&big, &large);
        if answer.status != 201 {
            break answer;
        }
        made.push(text(&answer.json(), "id").to_owned());
        assert!(made.len() < 320, "there is no bound");
    };
    refused.problem(429, "CAP_EXCEEDED");
    assert_eq!(made.len(), 298, "256 MiB of a tenant");
    send(&big, &tiny).status(201);
    send(&other, &large).status(201);
    // Where a run ends, there is room again.
    let path = format!("/v1/runs/{}/cancel", made[0]);
    server.ask("POST", &path, Some(&big), Some(&json!({}))).status(200);
    send(&big, &large).status(201);
}

#[test]
fn a_repeat_under_a_key_names_its_run_also_after_that_has_left_the_log() {
    let book = "\nname: book\npipelines:\n  p: { steps: [ { id: t, transform: { value: 1 } } ] }\n";
    let project = Project::with(book);
    project.write("windlass.yaml", "retention: { runs: 1s }\n");
    let server = Server::start_with(project, &[]);
    let owner = server.owner();
    server.send("POST", "/v1/runbooks", Some(&owner), &YAML, book.as_bytes()).status(201);
    let keyed = || {
        let head = [("content-type", "application/json"), ("idempotency-key", "kx")];
        server.send("POST", "/v1/runs", Some(&owner), &head, br#"{"pipeline":"p"}"#)
    };
    let run = keyed().status(201).json()["id"].clone();
    assert_eq!(keyed().status(200).json()["pipeline"], "p");
    // So many have ended that the first of them leaves memory at once, and then the log.
    for _ in 0..2 {
        let items = vec![json!({ "vars": {} }); 1_000];
        let batch = json!({ "pipeline": "p", "items": items });
        server.ask("POST", "/v1/runs/batch", Some(&owner), Some(&batch)).status(201);
    }
    // To ask for the run would bring it back.
    until("the run to leave", || {
        let applied = server.project.events("retention:applied");
        let gone: u64 = applied.iter().filter_map(|done| done["runs"].as_u64()).sum();
        (gone > 1_000).then_some(())
    });
    let path = format!("/v1/runs/{}", run.as_str().unwrap());
    server.ask("GET", &path, Some(&owner), None).status(404);
    assert_eq!(keyed().status(200).json(), json!({ "id": run }));
}
