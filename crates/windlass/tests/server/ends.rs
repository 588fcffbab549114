//! How a server begins and how it ends: addresses, one process a directory, and a drain that loses nothing.

use crate::http::{Answer, Server};
use crate::support::{Project, is_alive, text, until};
use rustix::process::Signal;
use serde_json::json;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

#[test]
fn an_address_that_others_can_reach_needs_tls() {
    let project = Project::new();
    for address in ["0.0.0.0:0", "[::]:0"] {
        let done = project.windlass(&["serve", "--listen", address]).code(2);
        done.warns("--tls-cert").warns("--behind-proxy");
    }
    assert!(!project.has("data"), "nothing is made for a server that may not be");
    for bad in ["nonsense", "127.0.0.1", "127.0.0.1:99999", ""] {
        project.windlass(&["serve", "--listen", bad]).code(2).warns("127.0.0.1:7433");
    }
    project.windlass(&["serve", "--tls-cert", "x.pem"]).code(2);
    let both = ["serve", "--behind-proxy", "--tls-cert", "x.pem", "--tls-key", "y.pem"];
    project.windlass(&both).code(2);
    let absent = ["serve", "--listen", "127.0.0.1:0", "--tls-cert", "x.pem", "--tls-key", "y.pem"];
    project.windlass(&absent).code(2).warns("x.pem");
}

#[test]
fn an_address_or_a_directory_that_is_taken_is_said_to_be() {
    let server = Server::start();
    let other = Project::new();
    other.windlass(&["serve", "--listen", server.address()]).code(75).warns(server.address());
    server.project.windlass(&["serve", "--listen", "127.0.0.1:0"]).code(75).warns("data directory");
    server.ask("GET", "/healthz", None, None).status(200);
}

/// A step that runs until it is told to stop, and says when it began.
const LONG: &str = "
name: long
pipelines:
  main:
    steps:
      - id: sleep
        run: |
          echo $$ > pid
          exec sleep 600
";

#[test]
fn a_drain_hands_back_what_is_under_way_and_the_next_process_takes_it_up() {
    let mut server = Server::start_with(Project::with(LONG), &[]);
    let made = server.project.windlass(&["run", "book.yaml", "--detach", "--json"]).code(0).json();
    let run = text(&made, "id").to_owned();
    let pid = server.project.await_file("pid");
    std::fs::remove_file(server.project.path("pid")).unwrap();
    server.restart();
    assert!(!is_alive(&pid));
    let returned = server.project.events("step:returned");
    assert_eq!(returned.len(), 1, "{returned:?}");
    let again = server.project.await_file("pid");
    assert_ne!(pid, again);
    let shown = server.project.show(&run);
    assert_eq!(shown["steps"][0]["epoch"], json!(2), "{shown}");
}

#[test]
fn a_request_under_way_is_answered_before_the_end() {
    let mut server = Server::start();
    let mut stream = server.connect();
    // Its head is there, its body is not: the server has begun to read it.
    let body = json!({ "scopes": ["read"] }).to_string();
    let head = format!(
        "POST /v1/tokens HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\
         expect: 100-continue\r\n\r\n",
        server.address(),
        server.owner(),
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    Answer::head(&mut stream).status(100);
    let process = server.process.take().unwrap();
    process.signal(Signal::TERM);
    until("the server to accept nobody", || std::net::TcpStream::connect(server.address()).err());
    stream.write_all(body.as_bytes()).unwrap();
    Answer::read(&mut stream).status(201);
    process.wait().code(0);
}

#[test]
fn the_second_signal_ends_it_at_once() {
    // A step that does not want to stop keeps the first signal busy.
    let stubborn = LONG.replace("exec sleep 600", "trap '' TERM; while :; do sleep 1; done");
    let mut server = Server::start_with(Project::with(&stubborn), &[]);
    server.project.windlass(&["run", "book.yaml", "--detach"]).code(0);
    let pid = server.project.await_file("pid");
    let process = server.process.take().unwrap();
    process.signal(Signal::TERM);
    until("the server to accept nobody", || std::net::TcpStream::connect(server.address()).err());
    process.signal(Signal::TERM);
    process.wait().code(130);
    until("the step to be gone", || (!is_alive(&pid)).then_some(()));
}

#[test]
fn a_server_whose_log_nobody_reads_serves_and_ends() {
    let project = Project::new();
    // A pipe that is full before the first line.
    let (_unread, full) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    while rustix::io::write(&full, &[b'x'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&full, false).unwrap();
    let words = ["serve", "--listen", "127.0.0.1:0", "--json"];
    let mut child = project.command(&words).stdout(Stdio::piped()).stderr(full).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("serving"), "{line}");
    project.write("book.yaml", "name: x\npipelines: { main: { steps: [ { run: 'true' } ] } }\n");
    project.run(&[], 0);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    let end = until("the server to end", || child.try_wait().unwrap());
    assert_eq!(end.code(), Some(0));
}

#[test]
fn a_start_says_what_it_found() {
    let mut server = Server::start();
    server.restart();
    let process = server.process.take().unwrap();
    process.signal(Signal::TERM);
    process.wait().code(0).warns("\"event\":\"store_recovered\"").warns("\"torn_bytes\":0");
}

#[test]
fn without_executors_steps_wait() {
    let server = Server::start_with(
        Project::with("name: x\npipelines: { main: { steps: [ { run: touch trace } ] } }\n"),
        &["--executors", "0"],
    );
    let made = server.project.windlass(&["run", "book.yaml", "--detach", "--json"]).code(0).json();
    let path = format!("/v1/runs/{}", text(&made, "id"));
    let shown = server.ask("GET", &path, Some(&server.owner()), None).status(200).json();
    assert_eq!(text(&shown, "status"), "running");
    assert_eq!(text(&shown["steps"][0], "status"), "ready");
    assert!(!server.project.has("trace"));
}

#[test]
fn starts_and_ends_are_on_record_for_the_owner_alone() {
    let mut server = Server::start();
    server.restart();
    let owner = server.owner();
    let lines = [("accept", "application/x-ndjson")];
    let seen = |token: &str| {
        server
            .send("GET", "/v1/events?follow=false&type=system:*", Some(token), &lines, b"")
            .status(200)
            .text()
    };
    let tags: Vec<String> = seen(&owner)
        .lines()
        .map(|line| text(&serde_json::from_str(line).unwrap(), "type").to_owned())
        .filter(|tag| tag != "system:recovered")
        .collect();
    assert_eq!(tags, ["system:started", "system:shutdown", "system:started"]);
    assert!(seen(&owner).contains(concat!("\"version\":\"", env!("CARGO_PKG_VERSION"), "\"")));
    let asked = json!({ "scopes": ["read", "admin"], "name": "admin" });
    let made = server.ask("POST", "/v1/tokens", Some(&owner), Some(&asked)).status(201).json();
    assert_eq!(seen(text(&made, "token")), "");
}
