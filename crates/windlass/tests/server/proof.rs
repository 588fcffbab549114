//! Evidence for those who may only read: it proves their run, tells nothing of others, and reading it changes nothing.

use crate::http::Server;
use crate::support::text;
use serde_json::json;

const BOOK: &str = "name: p\npipelines:\n  p:\n    steps:\n      - { id: a, run: 'true' }\n";

/// Makes a run and waits for its end.
fn run(server: &Server) -> String {
    let wish = json!({ "pipeline": "p" });
    let made = server.ask("POST", "/v1/runs", Some(&server.owner()), Some(&wish)).status(201).json();
    let id = text(&made, "id").to_owned();
    let path = format!("/v1/runs/{id}");
    crate::support::until("the run to end", || {
        let run = server.ask("GET", &path, Some(&server.owner()), None).json();
        (run["status"] == "completed").then_some(())
    });
    id
}

fn begin() -> Server {
    let server = Server::start();
    let yaml = [("content-type", "application/yaml")];
    server.send("POST", "/v1/runbooks", Some(&server.owner()), &yaml, BOOK.as_bytes()).status(201);
    server
}

#[test]
fn a_bundle_for_a_reader_names_no_other_token_and_verifies() {
    let server = begin();
    let token = |name: &str, scopes: &[&str], group: &str| {
        server.token(&json!({ "name": name, "scopes": scopes, "groups": [group] }))
    };
    let reader = text(&token("reader", &["read"], "watchers"), "token").to_owned();
    let other = token("melchior", &["read", "approve", "admin"], "wizards");
    let id = run(&server);
    let revoke = format!("/v1/tokens/{}/revoke", text(&other, "id"));
    let reason = json!({ "reason": "balthasar took it" });
    server.ask("POST", &revoke, Some(&server.owner()), Some(&reason)).status(200);
    let keys = server.ask("GET", "/v1/keys", Some(&reader), None).status(200).json();
    server.project.write("keys.txt", text(&keys, "text"));
    for values in ["false", "true"] {
        let path = format!("/v1/runs/{id}/evidence?values={values}");
        let bundle = server.ask("GET", &path, Some(&reader), None).status(200);
        let told = bundle.text();
        for secret in ["melchior", "wizards", "watchers", "balthasar", "token:", text(&other, "id")] {
            assert!(!told.contains(secret), "{secret} is in the bundle");
        }
        let file = format!("{values}.tar");
        std::fs::write(server.project.path(&file), &bundle.body).unwrap();
        let words = ["evidence", "verify", &file, "--pubkey", "keys.txt", "--json"];
        let verdict = server.project.windlass(&words).code(0).json();
        assert_eq!(verdict["verdict"]["run"], id.as_str());
    }
    // They are on record for those who look after them.
    assert_eq!(server.project.events("token:created").len(), 2);
    assert_eq!(server.project.events("token:created")[0]["stream"], "tokens/default");
    let of_reader =
        server.ask("GET", "/v1/events?follow=false&type=token:*", Some(&reader), None).status(200);
    assert!(!of_reader.text().contains("melchior"), "{}", of_reader.text());
}

#[test]
fn reading_evidence_again_leaves_no_record_and_makes_no_seals() {
    let server = begin();
    let reader = |name: &str| {
        let made = server.token(&json!({ "name": name, "scopes": ["read"] }));
        text(&made, "token").to_owned()
    };
    let (ann, bob) = (reader("ann"), reader("bob"));
    let read = |token: &str, id: &str| {
        server.ask("GET", &format!("/v1/runs/{id}/evidence"), Some(token), None).status(200)
    };
    let first = run(&server);
    let bundle = read(&ann, &first);
    let exported = || {
        let events = server.project.events("evidence:exported");
        events.iter().filter(|event| event["location"] == "export").count()
    };
    assert_eq!(exported(), 1);
    for _ in 0..10 {
        assert_eq!(read(&ann, &first).body, bundle.body, "nothing changed");
    }
    assert_eq!(exported(), 1, "reading the same again is nothing new");
    assert_eq!(read(&bob, &first).body, bundle.body);
    assert_eq!(exported(), 2, "it is to somebody else");
    // Readers of runs that are not sealed yet wait for the seal that comes anyway.
    let seals = || server.project.events("seal:created").len();
    let fresh: Vec<String> = (0..6).map(|_| run(&server)).collect();
    let (before, began) = (seals(), std::time::Instant::now());
    std::thread::scope(|scope| {
        for id in &fresh {
            scope.spawn(|| read(&ann, id));
        }
    });
    let made = seals() - before;
    // One may be due at once, and then one in ten seconds.
    let most = 2 + usize::try_from(began.elapsed().as_secs() / 10).unwrap();
    assert!(made <= most, "{made} seals were made");
}
