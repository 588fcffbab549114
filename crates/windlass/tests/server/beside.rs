//! The command line beside a server: it finds the process that holds the data directory, or asks the one it is told of.

use crate::http::Server;
use crate::support::{Project, text};
use serde_json::{Value, json};

const BOOK: &str = "
name: beside
pipelines:
  main:
    steps:
      - { id: hello, run: 'echo hello from $$' }
      - { id: ask, approve: { message: 'Go on?' } }
      - { id: done, run: touch done }
";

/// Goes through a run with one way to the server.
fn story(server: &Server, there: &[&str]) {
    let project = &server.project;
    let windlass = |words: &[&str]| project.windlass(&[words, there].concat());
    let run = windlass(&["run", "book.yaml", "--no-wait", "--json"]).code(4).last();
    let run = text(&run, "id").to_owned();
    windlass(&["runs"]).code(0).says(&run);
    windlass(&["logs", &run]).code(0).says("hello from");
    windlass(&["why", &run]).code(0).says("a human has to decide");
    let approvals = windlass(&["approvals", "--json"]).code(0).json();
    let approval = &approvals["items"][0];
    let follow = project.start(&[&["logs", &run, "-f"], there].concat());
    let words = ["approve", text(approval, "id"), "--hash", text(approval, "action_hash")];
    windlass(&words).code(0);
    windlass(&["watch", &run]).code(0);
    follow.wait().code(0).says("hello from");
    let shown = windlass(&["show", &run, "--json"]).code(0).json();
    assert_eq!(text(&shown, "status"), "completed");
    assert!(project.has("done"));
    windlass(&["events", "--type", "pipeline:completed"]).code(0).says(&run);
    // The server did it, and not the command.
    server.ask("GET", &format!("/v1/runs/{run}"), Some(&server.owner()), None).status(200);
}

#[test]
fn commands_go_to_whoever_holds_the_directory() {
    let server = Server::start_with(Project::with(BOOK), &[]);
    story(&server, &[]);
}

#[test]
fn commands_go_to_a_server_that_is_named() {
    let server = Server::start_with(Project::with(BOOK), &[]);
    story(&server, &["--server", &server.url]);
}

#[test]
fn commands_go_to_a_server_elsewhere_with_a_token() {
    let server = Server::start_with(Project::with(BOOK), &["--behind-proxy"]);
    let token = server.of("default", "default");
    let there = ["--server", server.url.as_str(), "--token", token.as_str()];
    let run: Value = server
        .project
        .windlass(&[&["run", "book.yaml", "--no-wait", "--json"], &there[..]].concat())
        .code(4)
        .last();
    let other = Project::new();
    other.windlass(&["runs", "--server", &server.url]).code(7).warns("UNAUTHORIZED");
    other.windlass(&[&["show", text(&run, "id")], &there[..]].concat()).code(0);
}

#[test]
fn a_server_that_is_not_there_is_said_to_be() {
    let project = Project::with(BOOK);
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{free}");
    project.windlass(&["runs", "--server", &url]).code(75).warns("no server answers");
    for bad in [
        "127.0.0.1:7433",
        "ftp://127.0.0.1",
        "http://",
        "http://a/b",
        "http://user@127.0.0.1",
        "https://[::1",
    ] {
        project.windlass(&["runs", "--server", bad]).code(2).warns("http://127.0.0.1:7433");
    }
}

#[test]
fn the_same_key_makes_one_run_and_another_client_has_keys_of_its_own() {
    let server = Server::start_with(Project::with(BOOK), &["--trust-local"]);
    let yaml = [("content-type", "application/yaml")];
    server.send("POST", "/v1/runbooks", Some(&server.owner()), &yaml, BOOK.as_bytes()).status(201);
    let key = [("idempotency-key", "k"), ("content-type", "application/json")];
    let body = json!({ "pipeline": "main" }).to_string();
    let ask = |token: Option<&str>, body: &str| server.send("POST", "/v1/runs", token, &key, body.as_bytes());
    let first = ask(None, &body).status(201).json();
    let again = ask(None, &body);
    assert!([200, 202].contains(&again.status), "{}", again.head);
    assert_eq!(again.json()["id"], first["id"]);
    ask(None, &json!({ "pipeline": "main", "vars": { "a": 1 } }).to_string())
        .problem(409, "IDEMPOTENCY_CONFLICT");
    let (one, two) = (server.of("default", "default"), server.of("default", "elsewhere"));
    assert_ne!(ask(Some(&one), &body).status(201).json()["id"], first["id"]);
    // Nothing is deployed there.
    ask(Some(&two), &body).problem(404, "NOT_FOUND");
}

#[test]
fn a_repeat_gets_its_answer_although_the_request_would_not_be_taken_any_more() {
    let server = Server::start_with(Project::with(BOOK), &["--trust-local"]);
    let yaml = [("content-type", "application/yaml")];
    let deploy =
        |book: &str| server.send("POST", "/v1/runbooks", Some(&server.owner()), &yaml, book.as_bytes());
    let key = [("idempotency-key", "k"), ("content-type", "application/json")];
    let ask = |body: &Value| server.send("POST", "/v1/runs", None, &key, body.to_string().as_bytes());
    deploy(BOOK).status(201);
    let body = json!({ "pipeline": "main" });
    let first = ask(&body).status(201).json();
    // The pipeline is gone, and then wants what the first request did not say.
    for book in [
        BOOK.replace("main", "other"),
        BOOK.replace("main:", "main:\n    vars: { must: { required: true } }"),
    ] {
        assert_ne!(book, BOOK);
        deploy(&book).status(201);
        let again = ask(&body).status(200);
        assert!(again.head.to_ascii_lowercase().contains("idempotent-replayed: true"), "{}", again.head);
        assert_eq!(again.json()["id"], first["id"]);
        ask(&json!({ "pipeline": "main", "vars": { "must": 1 } })).problem(409, "IDEMPOTENCY_CONFLICT");
    }
}

#[test]
fn a_batch_under_a_key_makes_one_set_of_runs() {
    let server = Server::start_with(Project::with(BOOK), &["--trust-local"]);
    let yaml = [("content-type", "application/yaml")];
    let book = BOOK.replace("main:", "main:\n    vars: { n: {} }");
    server.send("POST", "/v1/runbooks", Some(&server.owner()), &yaml, book.as_bytes()).status(201);
    let key = [("idempotency-key", "k"), ("content-type", "application/json")];
    let ask = |body: &Value| server.send("POST", "/v1/runs/batch", None, &key, body.to_string().as_bytes());
    let body = json!({ "items": [{ "vars": { "n": 1 } }, { "vars": { "n": 2 } }] });
    let first = ask(&body).status(201).json();
    assert_eq!(first["items"].as_array().map(Vec::len), Some(2));
    let again = ask(&body).status(200);
    assert!(again.head.to_ascii_lowercase().contains("idempotent-replayed: true"), "{}", again.head);
    assert_eq!(again.json(), first);
    for other in [json!({ "items": [{ "vars": { "n": 1 } }] }), json!({ "items": [{}, {}, {}] })] {
        ask(&other).problem(409, "IDEMPOTENCY_CONFLICT");
    }
    let runs = server.ask("GET", "/v1/runs", None, None).status(200).json();
    assert_eq!(runs["items"].as_array().map(Vec::len), Some(2), "{runs}");
}
