//! Who asks: tokens, the owner's credential, and callers of this machine who show nothing.

use crate::http::{Answer, Server};
use crate::support::{Project, text, until};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn a_token_is_shown_once_and_only_its_hash_is_kept() {
    let server = Server::start();
    let made = server.token(&json!({ "scopes": ["read"], "name": "ann", "groups": ["sre"] }));
    let token = text(&made, "token").to_owned();
    assert!(token.starts_with("wl_") && token.len() == 67, "{token}");
    let me = server.ask("GET", "/v1/me", Some(&token), None).status(200).json();
    assert_eq!((text(&me, "name"), &me["human"], &me["groups"]), ("ann", &json!(true), &json!(["sre"])));
    assert_eq!((text(&me, "tenant"), text(&me, "namespace")), ("default", "default"));
    assert_eq!(me["scopes"], json!(["read"]));
    let listed = server.ask("GET", "/v1/tokens", Some(&server.owner()), None).status(200).text();
    assert!(!listed.contains(&token) && listed.contains(text(&made, "id")), "{listed}");
    // Nothing on the disk holds it.
    let secret = token.trim_start_matches("wl_");
    for entry in walk(&server.project.path("data")) {
        let bytes = std::fs::read(&entry).unwrap_or_default();
        let found = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
        assert!(!found, "{}", entry.display());
    }
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() { all.extend(walk(&path)) } else { all.push(path) }
    }
    all
}

#[test]
fn what_is_revoked_or_unknown_answers_alike_and_survives_a_restart() {
    let mut server = Server::start();
    let made = server.token(&json!({ "scopes": ["read", "run"] }));
    let token = text(&made, "token").to_owned();
    let kept = text(&server.token(&json!({ "scopes": ["read"] })), "token").to_owned();
    server.ask("GET", "/v1/runs", Some(&token), None).status(200);
    let path = format!("/v1/tokens/{}/revoke", text(&made, "id"));
    let revoked = server.ask("POST", &path, Some(&server.owner()), Some(&json!({ "reason": "lost" })));
    assert!(revoked.status(200).json().get("revoked_at").is_some());
    let refused = server.ask("GET", "/v1/runs", Some(&token), None).problem(401, "UNAUTHORIZED");
    assert!(refused.head.contains("www-authenticate: bearer"), "{}", refused.head);
    let unknown = server.ask("GET", "/v1/runs", Some("wl_nobody"), None).problem(401, "UNAUTHORIZED");
    assert_eq!(refused.text(), unknown.text());
    let before = server.owner();
    server.restart();
    server.ask("GET", "/v1/runs", Some(&token), None).problem(401, "UNAUTHORIZED");
    server.ask("GET", "/v1/runs", Some(&kept), None).status(200);
    // The owner's credential is made anew by every process.
    server.ask("GET", "/v1/tokens", Some(&before), None).problem(401, "UNAUTHORIZED");
    server.ask("GET", "/v1/tokens", Some(&server.owner()), None).status(200);
}

#[test]
fn nobody_hands_out_more_than_they_have() {
    let server = Server::start();
    let admin = server.token(&json!({ "scopes": ["admin", "read"], "tenant": "acme" }));
    let admin = Some(text(&admin, "token").to_owned());
    let ask = |wish| server.ask("POST", "/v1/tokens", admin.as_deref(), Some(&wish));
    ask(json!({ "scopes": ["approve"] })).problem(403, "FORBIDDEN");
    ask(json!({ "scopes": ["read"], "tenant": "default" })).problem(403, "FORBIDDEN");
    ask(json!({ "scopes": ["read"], "namespace": "elsewhere" })).problem(403, "FORBIDDEN");
    let made = ask(json!({ "scopes": ["read"], "tenant": "acme" })).status(201).json();
    assert_eq!(text(&made, "tenant"), "acme");
    for bad in [
        json!({}),
        json!({ "scopes": [] }),
        json!({ "scopes": ["root"] }),
        json!({ "scopes": ["read"], "expires_at": "2001-01-01T00:00:00Z" }),
        json!({ "scopes": ["read"], "expires_at": "soon" }),
        json!({ "scopes": ["read"], "name": "" }),
        json!({ "scopes": ["read"], "groups": vec!["g"; 65] }),
        json!({ "scopes": ["read"], "owner": true }),
    ] {
        ask(bad).problem(400, "INVALID_INPUT");
    }
    let owner = server.owner();
    for place in ["a/b", "_", "", "a b", "../x"] {
        let wish = json!({ "scopes": ["read"], "tenant": place });
        server.ask("POST", "/v1/tokens", Some(&owner), Some(&wish)).problem(400, "INVALID_INPUT");
    }
}

#[test]
fn a_program_decides_on_no_approval_and_a_human_does() {
    let server = Server::trusting();
    let book = "name: x\npipelines: { main: { steps: [ { id: ask, approve: { message: ok } } ] } }\n";
    let owner = server.owner();
    let yaml = [("content-type", "application/yaml")];
    server.send("POST", "/v1/runbooks", Some(&owner), &yaml, book.as_bytes()).status(201);
    let made = server.ask("POST", "/v1/runs", None, Some(&json!({ "pipeline": "main" }))).status(201).json();
    assert_eq!(made["trigger"]["user"], "local");
    let approval = until("the approval", || {
        server.ask("GET", "/v1/approvals?status=requested", None, None).items().first().cloned()
    });
    let path = format!("/v1/approvals/{}/decision", text(&approval, "id"));
    let yes = json!({ "decision": "approved", "action_hash": text(&approval, "action_hash") });
    let bearer = |wish| text(&server.token(&wish), "token").to_owned();
    server.ask("POST", &path, None, Some(&yes)).problem(403, "FORBIDDEN");
    let program = bearer(json!({ "scopes": ["approve"], "service": true, "name": "bot" }));
    server.ask("POST", &path, Some(&program), Some(&yes)).problem(403, "FORBIDDEN");
    let human = bearer(json!({ "scopes": ["approve", "read"], "name": "ann" }));
    // So it is with a step of which nobody knows what became.
    let settle = format!("/v1/runs/{}/steps/ask/resolve", text(&made, "id"));
    let done = json!({ "resolution": "done", "reason": "seen" });
    server.ask("POST", &settle, Some(&program), Some(&done)).problem(403, "FORBIDDEN");
    server.ask("POST", &settle, Some(&human), Some(&done)).problem(409, "RUN_INVALID_TRANSITION");
    let decided = server.ask("POST", &path, Some(&human), Some(&yes)).status(200).json();
    assert_eq!(text(&decided["decisions"][0], "by"), "ann");
}

const WAITS: &str = "
name: waits
queues: { jobs: {} }
pipelines: { main: { steps: [ { id: train, run: 'true', runs_on: [gpu] } ] } }
";

#[test]
fn what_waits_ends_when_its_token_is_revoked() {
    let server = Server::start();
    let made = server.token(&json!({ "scopes": ["read", "run"] }));
    let (token, owner) = (text(&made, "token").to_owned(), server.owner());
    // A stream that has begun, and one who stands in line.
    let mut stream = server.connect();
    let request = server.request("GET", "/v1/events", Some(&token), &[], b"");
    stream.write_all(&request).unwrap();
    Answer::head(&mut stream).status(200);
    let hold = |holder: &str| json!({ "holder": holder, "wait_ms": 600_000 });
    server.ask("POST", "/v1/locks/l/acquire", Some(&owner), Some(&hold("owner"))).status(200);
    std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| server.ask("POST", "/v1/locks/l/acquire", Some(&token), Some(&hold("w"))));
        let line =
            || server.ask("GET", "/v1/locks/l", Some(&owner), None).status(200).json()["waiters"].clone();
        until("somebody in line", || (line() != json!([])).then_some(()));
        let path = format!("/v1/tokens/{}/revoke", text(&made, "id"));
        server.ask("POST", &path, Some(&owner), Some(&json!({ "reason": "lost" }))).status(200);
        waiter.join().unwrap().problem(401, "UNAUTHORIZED");
        until("nobody in line", || (line() == json!([])).then_some(()));
    });
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    let release = json!({ "holder": "owner" });
    server.ask("POST", "/v1/locks/l/release", Some(&owner), Some(&release)).status(200);
}

#[test]
fn what_waits_ends_when_its_token_expires() {
    let server = Server::start();
    let owner = server.owner();
    let yaml = [("content-type", "application/yaml")];
    server.send("POST", "/v1/runbooks", Some(&owner), &yaml, WAITS.as_bytes()).status(201);
    let words = ["token", "create", "--scopes", "read,run,execute", "--expires", "3s", "--json"];
    let made = server.project.windlass(&[&words[..], &["--server", &server.url]].concat()).code(0).json();
    let token = Some(text(&made, "token"));
    let wait = |more: Value| {
        let mut body = json!({ "wait_ms": 60_000 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let lease = |labels: Value| json!({ "executor": "e", "labels": labels });
    server.ask("POST", "/v1/runs", Some(&owner), Some(&json!({ "pipeline": "main" }))).status(201);
    let got = server.ask("POST", "/v1/leases", token, Some(&wait(lease(json!(["gpu"])))));
    let item = got.items()[0].clone();
    let beat = json!({ "items": [{ "run": item["run"], "step": item["step"], "epoch": item["epoch"] }] });
    std::thread::scope(|scope| {
        let waits = [
            ("/v1/leases", lease(json!([]))),
            ("/v1/leases/heartbeat", beat),
            ("/v1/queues/jobs/take", json!({})),
        ];
        let asked: Vec<_> = waits
            .into_iter()
            .map(|(path, more)| {
                let (server, body) = (&server, wait(more));
                scope.spawn(move || server.ask("POST", path, token, Some(&body)))
            })
            .collect();
        for answer in asked {
            answer.join().unwrap().problem(401, "UNAUTHORIZED");
        }
    });
}

#[test]
fn the_credential_is_the_owners_alone_and_goes_with_the_process() {
    let mut server = Server::start();
    let path = server.project.path("data/credential.json");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let process = server.process.take().unwrap();
    process.signal(rustix::process::Signal::TERM);
    process.wait().code(0);
    assert!(!path.exists() && !server.project.has("data/windlass.sock"));
}

#[test]
fn the_command_line_hands_out_tokens_and_finds_the_owners_credential() {
    let server = Server::start();
    let project = &server.project;
    let there = ["--server", server.url.as_str()];
    let words = [
        "token",
        "create",
        "--scopes",
        "read,run",
        "--name",
        "ci",
        "--service",
        "--expires",
        "30d",
        "--json",
    ];
    let made = project.windlass(&[&words[..], &there].concat()).code(0).json();
    let token = text(&made, "token").to_owned();
    assert!(made.get("expires_at").is_some() && made["human"] == json!(false), "{made}");
    // A token that is named wins over the credential.
    let words = ["token", "list", "--token", &token];
    project.windlass(&[&words[..], &there].concat()).code(7).warns("FORBIDDEN");
    project.windlass(&[&["token", "list"][..], &there].concat()).code(0).says("ci (service)");
    // Beside the process, without naming it.
    project.windlass(&["token", "revoke", text(&made, "id"), "--yes"]).code(0);
    let words = ["runs", "--token", &token];
    project.windlass(&[&words[..], &there].concat()).code(7).warns("UNAUTHORIZED");
    // Another project's owner is nobody here.
    let other = Project::new();
    other.windlass(&[&["token", "list"][..], &there].concat()).code(7).warns("UNAUTHORIZED");
    other.windlass(&[&["runs"][..], &there].concat()).code(7).warns("UNAUTHORIZED");
}

#[test]
fn pages_of_other_sites_and_foreign_names_are_refused() {
    let server = Server::trusting();
    let own = format!("http://{}", server.address());
    let good = server.send("GET", "/v1/runs", None, &[("origin", &own)], b"");
    good.status(200);
    let port = server.address().rsplit(':').next().unwrap().to_owned();
    let named = format!("localhost:{port}");
    server.send("GET", "/v1/runs", None, &[("host", &named)], b"").status(200);
    for origin in ["http://evil.example", "null", "http://localhost:1", "file://"] {
        let headers = [("origin", origin), ("content-type", "text/plain")];
        server.send("POST", "/v1/runs", None, &headers, b"{}").problem(403, "FORBIDDEN");
        let owner = server.owner();
        server.send("GET", "/v1/runs", Some(&owner), &headers, b"").problem(403, "FORBIDDEN");
    }
    let rebound = format!("evil.example:{port}");
    for host in [rebound.as_str(), "evil.example", "127.0.0.1.evil.example", ""] {
        server.send("GET", "/v1/runs", None, &[("host", host)], b"").problem(403, "FORBIDDEN");
        server.send("GET", "/healthz", None, &[("host", host)], b"").problem(403, "FORBIDDEN");
    }
    // Behind a proxy any name is right, and a page has to come from the same.
    let server = Server::start_with(Project::new(), &["--behind-proxy"]);
    let token = server.of("default", "default");
    let outside = ("host", "windlass.example");
    server.send("GET", "/v1/runs", Some(&token), &[outside], b"").status(200);
    let page = ("origin", "https://windlass.example");
    server.send("GET", "/v1/runs", Some(&token), &[outside, page], b"").status(200);
    let other = ("origin", "https://evil.example");
    server.send("GET", "/v1/runs", Some(&token), &[outside, other], b"").problem(403, "FORBIDDEN");
}

/// A server with an approval that waits, and the path that decides on it.
fn asking(words: &[&str]) -> (Server, String, Value) {
    let server = Server::start_with(Project::new(), words);
    let book = "name: x\npipelines: { main: { steps: [ { id: ask, approve: { message: ok } } ] } }\n";
    let (owner, yaml) = (server.owner(), [("content-type", "application/yaml")]);
    server.send("POST", "/v1/runbooks", Some(&owner), &yaml, book.as_bytes()).status(201);
    server.ask("POST", "/v1/runs", Some(&owner), Some(&json!({ "pipeline": "main" }))).status(201);
    let approval = until("the approval", || {
        server.ask("GET", "/v1/approvals?status=requested", Some(&owner), None).items().first().cloned()
    });
    let yes = json!({ "decision": "approved", "action_hash": text(&approval, "action_hash") });
    (server, text(&approval, "id").to_owned(), yes)
}

/// Who was refused, in order.
fn refused(server: &Server) -> Vec<String> {
    let lines = [("accept", "application/x-ndjson")];
    let path = "/v1/events?follow=false&type=approval:refused";
    let said = server.send("GET", path, Some(&server.owner()), &lines, b"").status(200).text();
    let all = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.map(|record| {
        record["decision_by"].as_str().or(record["by"]["id"].as_str()).unwrap_or_default().to_owned()
    })
    .collect()
}

#[test]
fn what_is_refused_is_on_record_however_it_is_spelled_and_nobody_uses_the_record_up() {
    let (server, id, yes) = asking(&["--trust-local"]);
    let escaped = format!("/v1/approvals/{}/decision", id.replace('_', "%5F"));
    server.ask("POST", &escaped, None, Some(&yes)).problem(403, "FORBIDDEN");
    assert_eq!(refused(&server).len(), 1, "an escaped path is on record too");
    let plain = format!("/v1/approvals/{id}/decision");
    for _ in 0..40 {
        server.ask("POST", &plain, None, Some(&yes)).problem(403, "FORBIDDEN");
    }
    let anonymous = refused(&server).len();
    assert!(anonymous < 32, "{anonymous}");
    // A program with a token is still seen, and a human who may decide and shows another hash.
    let token = |wish| text(&server.token(&wish), "token").to_owned();
    let reader = token(json!({ "scopes": ["read"], "service": true, "name": "bot" }));
    server.ask("POST", &plain, Some(&reader), Some(&yes)).problem(403, "FORBIDDEN");
    assert_eq!(refused(&server).len(), anonymous + 1);
    let human = token(json!({ "scopes": ["read", "approve"], "name": "ann" }));
    let other = json!({ "decision": "approved", "action_hash": "0".repeat(64) });
    server.ask("POST", &plain, Some(&human), Some(&other)).problem(409, "APPROVAL_HASH_MISMATCH");
    assert_eq!(refused(&server).len(), anonymous + 2);
}

#[test]
fn ingress_keys_of_another_namespace_are_not_in_ones_events() {
    let server = Server::start();
    let book = "name: x\npipelines: { main: { steps: [ { run: 'true' } ] } }\n";
    let yaml = [("content-type", "application/yaml")];
    let (red, blue) = (server.of("acme", "red"), server.of("acme", "blue"));
    for (token, key) in [(&red, "red-key"), (&blue, "blue-key")] {
        server.send("POST", "/v1/runbooks", Some(token), &yaml, book.as_bytes()).status(201);
        let head = [("content-type", "application/json"), ("idempotency-key", key)];
        server.send("POST", "/v1/runs", Some(token), &head, br#"{"pipeline":"main"}"#).status(201);
    }
    let events = |token: &str| {
        let lines = [("accept", "application/x-ndjson")];
        server.send("GET", "/v1/events?follow=false", Some(token), &lines, b"").status(200).text()
    };
    for (token, own, other) in [(&red, "red-key", "blue-key"), (&blue, "blue-key", "red-key")] {
        let seen = events(token);
        assert!(seen.contains(own) && !seen.contains(other), "{seen}");
    }
    let all = events(&server.owner());
    assert!(!all.contains("red-key"), "the owner's own tenant is another");
}
