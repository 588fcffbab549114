//! Who gets in: nobody over TCP without a credential, no page of a browser, nothing that a proxy passed on, and nobody with
//! `run` who brings a command line of their own.

use crate::http::Server;
use crate::support::{Project, text, until};
use serde_json::json;

const BOOK: &str = "name: deployed\npipelines: { main: { vars: { a: { default: b } }, steps: [ { run: touch deployed } ] } }\n";
const OWN: &str = "name: own\npipelines: { evil: { steps: [ { run: touch evil } ] } }\n";
const YAML: [(&str, &str); 1] = [("content-type", "application/yaml")];

fn deployed(words: &[&str]) -> Server {
    let server = Server::start_with(Project::with(BOOK), words);
    server.send("POST", "/v1/runbooks", Some(&server.owner()), &YAML, BOOK.as_bytes()).status(201);
    server
}

fn bearer(server: &Server, scopes: &[&str]) -> String {
    text(&server.token(&json!({ "scopes": scopes, "name": "mallory" })), "token").to_owned()
}

#[test]
fn over_tcp_nobody_gets_in_without_a_credential() {
    let server = deployed(&[]);
    let refused = [
        server.ask("GET", "/v1/runs", None, None),
        server.ask("GET", "/v1/me", None, None),
        server.ask("GET", "/v1/events?follow=false", None, None),
        server.ask("GET", "/metrics", None, None),
        server.ask("POST", "/v1/runs", None, Some(&json!({ "pipeline": "main" }))),
        server.send("POST", "/v1/runbooks?deploy=false", None, &YAML, OWN.as_bytes()),
        server.ask("POST", "/v1/plan", None, Some(&json!({ "runbook": "deployed" }))),
    ];
    for answer in refused {
        answer.problem(401, "UNAUTHORIZED");
    }
    server.ask("GET", "/healthz", None, None).status(200);
    server.ask("GET", "/readyz", None, None).status(200);
    assert!(server.ask("GET", "/v1/runs", Some(&server.owner()), None).items().is_empty());
    // The owner's command line needs no flags, by the socket or by the address.
    server.project.windlass(&["run", "book.yaml"]).code(0);
    server.project.windlass(&["run", "book.yaml", "--server", &server.url]).code(0);
    // Somebody else's does.
    let other = Project::with(BOOK);
    other.windlass(&["run", "book.yaml", "--server", &server.url]).code(7).warns("UNAUTHORIZED");
}

#[test]
fn trust_local_lets_this_machine_read_and_run_what_is_deployed() {
    let server = deployed(&["--trust-local"]);
    server.ask("GET", "/v1/runs", None, None).status(200);
    let made = server.ask("POST", "/v1/runs", None, Some(&json!({ "pipeline": "main" }))).status(201).json();
    assert_eq!(made["trigger"]["user"], "local");
    server.send("POST", "/v1/runbooks?deploy=false", None, &YAML, OWN.as_bytes()).problem(403, "FORBIDDEN");
    server.ask("GET", "/v1/tokens", None, None).problem(403, "FORBIDDEN");
    // A token that is not good is worse than none.
    server.ask("GET", "/v1/runs", Some("wl_nobody"), None).problem(401, "UNAUTHORIZED");
    let project = Project::new();
    project.windlass(&["serve", "--trust-local", "--behind-proxy"]).code(2);
}

#[test]
fn run_is_for_deployed_runbooks_and_deploy_for_ones_own() {
    let server = deployed(&[]);
    let (owner, runs) = (server.owner(), bearer(&server, &["read", "run"]));
    let brings = bearer(&server, &["read", "run", "deploy"]);
    for path in ["/v1/runbooks", "/v1/runbooks?deploy=false"] {
        let refused = server.send("POST", path, Some(&runs), &YAML, OWN.as_bytes()).problem(403, "FORBIDDEN");
        assert!(refused.text().contains("deploy"), "{}", refused.text());
    }
    // What somebody else stored and nobody deployed is not there for `run` either.
    let stored = server.send("POST", "/v1/runbooks?deploy=false", Some(&brings), &YAML, OWN.as_bytes());
    let hash = text(&stored.status(201).json(), "hash").to_owned();
    let own = json!({ "runbook": hash, "pipeline": "evil" });
    server.ask("POST", "/v1/runs", Some(&runs), Some(&own)).problem(403, "FORBIDDEN");
    let batch = json!({ "runbook": hash, "pipeline": "evil", "items": [{}] });
    server.ask("POST", "/v1/runs/batch", Some(&runs), Some(&batch)).problem(403, "FORBIDDEN");
    // Nor is another directory, in which the same words are another command.
    let elsewhere = json!({ "pipeline": "main", "cwd": "/" });
    server.ask("POST", "/v1/runs", Some(&runs), Some(&elsewhere)).problem(403, "FORBIDDEN");
    let main = json!({ "pipeline": "main" });
    let made = server.ask("POST", "/v1/runs", Some(&runs), Some(&main)).status(201).json();
    let path = format!("/v1/runs/{}", text(&made, "id"));
    let over = until("the run to be over", || {
        let shown = server.ask("GET", &path, Some(&runs), None).status(200).json();
        (shown["status"] == "completed").then_some(shown)
    });
    let from = text(&over["steps"][0], "id").to_owned();
    let fork = json!({ "from": from, "runbook": hash });
    server.ask("POST", &format!("{path}/fork"), Some(&runs), Some(&fork)).problem(403, "FORBIDDEN");
    server.ask("POST", &format!("{path}/fork"), Some(&runs), Some(&json!({ "from": from }))).status(201);
    server.ask("POST", &format!("{path}/retry"), Some(&runs), None);
    let words = ["run", "book.yaml", "--server", &server.url, "--token", &runs];
    server.project.windlass(&words).code(7).warns("FORBIDDEN");
    assert!(!server.project.has("evil"));
    server.ask("POST", "/v1/runs", Some(&brings), Some(&own)).status(201);
    server.ask("GET", "/v1/runs", Some(&owner), None).status(200);
    server.project.await_exists("evil");
}

/// Everything a page may try, with and without what a browser says of it.
fn pages(port: &str) -> Vec<Vec<(&'static str, String)>> {
    let own = format!("127.0.0.1:{port}");
    let rebound = format!("rebound.example:{port}");
    let from = |host: &str, more: &[(&'static str, &str)]| {
        let more = more.iter().map(|(name, value)| (*name, (*value).to_owned()));
        [("host", host.to_owned())].into_iter().chain(more).collect::<Vec<_>>()
    };
    let same = format!("http://rebound.example:{port}");
    vec![
        from(&own, &[("origin", "http://evil.example")]),
        from(&own, &[("origin", "null")]),
        from(&own, &[("origin", "http://127.0.0.1:1")]),
        from(&own, &[("origin", "http://localhost.evil.example")]),
        from(&own, &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")]),
        from(&own, &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")]),
        from(
            &own,
            &[
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "navigate"),
                ("sec-fetch-dest", "document"),
            ],
        ),
        from(&rebound, &[]),
        from(&rebound, &[("origin", &same)]),
        from(&rebound, &[("sec-fetch-site", "same-origin")]),
    ]
}

#[test]
fn a_page_reaches_nothing_even_where_this_machine_is_trusted() {
    for words in [&[][..], &["--trust-local"]] {
        let server = deployed(words);
        let port = server.address().rsplit(':').next().unwrap().to_owned();
        let before = server.project.events("*").len();
        for page in pages(&port) {
            let headers: Vec<(&str, &str)> =
                page.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let simple = [&headers[..], &[("content-type", "text/plain")]].concat();
            for (method, path, body) in [
                ("GET", "/v1/runs", ""),
                ("GET", "/v1/events?follow=false", ""),
                ("POST", "/v1/runs", r#"{"pipeline":"main"}"#),
                ("POST", "/v1/runbooks?deploy=false", OWN),
                ("POST", "/v1/signals/x", r#"{"key":"k"}"#),
                ("POST", "/hooks/github", "{}"),
                ("OPTIONS", "/v1/runs", ""),
            ] {
                for token in [None, Some(server.owner())] {
                    let answer = server.send(method, path, token.as_deref(), &simple, body.as_bytes());
                    let answer = answer.problem(403, "FORBIDDEN");
                    assert!(!answer.head.contains("access-control-"), "{}", answer.head);
                }
            }
        }
        assert_eq!(server.project.events("*").len(), before, "a page left a trace");
    }
}

#[test]
fn what_a_proxy_passed_on_is_refused_unless_there_is_said_to_be_one() {
    const PASSED: [(&str, &str); 4] = [
        ("x-forwarded-for", "203.0.113.9"),
        ("forwarded", "for=203.0.113.9"),
        ("via", "1.1 proxy"),
        ("x-real-ip", "203.0.113.9"),
    ];
    let asks = |server: &Server, token: Option<&str>, header: (&str, &str)| {
        server.send("GET", "/v1/runs", token, &[header], b"")
    };
    for words in [&[][..], &["--trust-local"]] {
        let server = deployed(words);
        for header in PASSED {
            for token in [None, Some(server.owner())] {
                let refused = asks(&server, token.as_deref(), header).problem(403, "FORBIDDEN");
                assert!(refused.text().contains("--behind-proxy"), "{}", refused.text());
            }
        }
        // A proxy in front of the socket would be the owner.
        let socket = std::os::unix::net::UnixStream::connect(server.project.path("data/windlass.sock"));
        let mut socket = socket.unwrap();
        let asked = server.request("GET", "/v1/runs", None, &PASSED[..1], b"");
        std::io::Write::write_all(&mut socket, &asked).unwrap();
        crate::http::Answer::read(&mut socket).problem(403, "FORBIDDEN");
    }
    let server = deployed(&["--behind-proxy"]);
    for header in PASSED {
        asks(&server, Some(&server.owner()), header).status(200);
        asks(&server, None, header).problem(401, "UNAUTHORIZED");
    }
}
