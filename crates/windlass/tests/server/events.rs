//! Events over TCP: as they come, from where one was cut off, and to the end.

use crate::http::{Answer, Server};
use crate::support::text;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

const BOOK: &str = "name: x\npipelines: { main: { steps: [ { id: one, run: echo hello } ] } }\n";

/// A stream of events that was asked for.
struct Events {
    reader: BufReader<TcpStream>,
}

impl Events {
    fn open(server: &Server, path: &str, headers: &[(&str, &str)]) -> Events {
        let mut stream = server.connect();
        stream.write_all(&server.request("GET", path, None, headers, b"")).unwrap();
        let head = Answer::head(&mut stream).status(200).head;
        assert!(head.contains("content-type: text/event-stream"), "{head}");
        Events { reader: BufReader::new(stream) }
    }

    /// The next event: its id, its type and its record. Nothing at the end.
    fn next(&mut self) -> Option<(u64, String, Value)> {
        let (mut id, mut kind) = (0, String::new());
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            match line.trim_end().split_once(": ") {
                Some(("id", number)) => id = number.parse().unwrap(),
                Some(("event", word)) => kind = word.to_owned(),
                Some(("data", data)) => return Some((id, kind, serde_json::from_str(data).unwrap())),
                // The sizes of chunks, comments, and the ends of events.
                Some(_) | None => {}
            }
        }
    }

    fn until(&mut self, wanted: &str) -> Vec<(u64, String, Value)> {
        let mut seen = Vec::new();
        loop {
            let event = self.next().unwrap_or_else(|| panic!("the end came before {wanted}: {seen:?}"));
            let found = event.1 == wanted;
            seen.push(event);
            if found {
                return seen;
            }
        }
    }
}

fn run(server: &Server) -> String {
    let yaml = [("content-type", "application/yaml")];
    server.send("POST", "/v1/runbooks", Some(&server.owner()), &yaml, BOOK.as_bytes()).status(201);
    let made = server.ask("POST", "/v1/runs", None, Some(&json!({ "pipeline": "main" }))).status(201).json();
    text(&made, "id").to_owned()
}

#[test]
fn events_come_as_they_happen_and_go_on_after_the_last_one_seen() {
    let server = Server::trusting();
    let mut events = Events::open(&server, "/v1/events", &[]);
    let run = run(&server);
    let seen = events.until("pipeline:completed");
    let mut ids: Vec<u64> = seen.iter().map(|(id, _, _)| *id).collect();
    assert!(seen.iter().all(|(id, kind, record)| record["seq"] == json!(id) && text(record, "type") == kind));
    // Cut off in the middle: what follows is exactly the rest, whatever was asked for in the beginning.
    let (first, rest) = seen.split_at(seen.len() / 2);
    let last = first.last().unwrap().0.to_string();
    drop(events);
    let mut again = Events::open(&server, "/v1/events?from=0", &[("last-event-id", &last)]);
    assert_eq!(again.until("pipeline:completed"), rest);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), seen.len(), "no event came twice");
    // A run's own end with it.
    let path = format!("/v1/runs/{run}/events?follow=true");
    let mut own = Events::open(&server, &path, &[]);
    let all = own.until("pipeline:completed");
    assert!(all.iter().all(|(_, _, record)| text(record, "stream") == format!("run/{run}")));
    assert_eq!(own.next(), None);
    let mut picked = Events::open(&server, "/v1/events?type=step:*&follow=false", &[]);
    let kinds: Vec<String> = std::iter::from_fn(|| picked.next()).map(|(_, kind, _)| kind).collect();
    assert!(!kinds.is_empty() && kinds.iter().all(|kind| kind.starts_with("step:")), "{kinds:?}");
}

#[test]
fn a_drain_ends_the_streams_and_the_next_process_goes_on() {
    let mut server = Server::trusting();
    let mut events = Events::open(&server, "/v1/events", &[]);
    run(&server);
    let last = events.until("pipeline:completed").pop().unwrap().0;
    let process = server.process.take().unwrap();
    process.signal(Signal::TERM);
    assert_eq!(events.next(), None, "it ends, and is not cut off");
    process.wait().code(0);
    let mut server = Server::start_with(server.project, &["--trust-local"]);
    let mut events = Events::open(&server, "/v1/events", &[("last-event-id", &last.to_string())]);
    run(&server);
    let seen = events.until("pipeline:completed");
    assert!(seen.iter().all(|(id, _, _)| *id > last));
    server.process.take().unwrap().signal(Signal::KILL);
}

#[test]
fn a_reader_that_takes_nothing_holds_nobody_up() {
    let server = Server::trusting();
    let mut deaf = server.connect();
    deaf.write_all(&server.request("GET", "/v1/events", None, &[], b"")).unwrap();
    // More than fits into what lies between the two.
    let large = "x".repeat(200_000);
    for n in 0..40 {
        let body = json!({ "key": format!("k{n}"), "data": large });
        server.ask("POST", "/v1/signals/large", None, Some(&body)).status(200);
    }
    let mut events = Events::open(&server, "/v1/events?type=signal:*&follow=false", &[]);
    assert_eq!(std::iter::from_fn(|| events.next()).count(), 40);
    // It gets all of it, late.
    drop(events);
    Answer::head(&mut deaf).status(200);
    let mut events = Events { reader: BufReader::new(deaf) };
    for _ in 0..40 {
        events.until("signal:kept");
    }
}

#[test]
fn what_is_asked_for_wrongly_is_refused() {
    let server = Server::trusting();
    for path in ["/v1/events?from=x", "/v1/events?from=-1", "/v1/events?type=%00", "/v1/events?nonsense=1"] {
        server.ask("GET", path, None, None).problem(400, "INVALID_INPUT");
    }
    let strange = [("last-event-id", "x")];
    server.send("GET", "/v1/events", None, &strange, b"").problem(400, "INVALID_INPUT");
    server.ask("GET", "/v1/runs/run_1/events", None, None).problem(404, "NOT_FOUND");
    // Beyond everything there is.
    let far = [("last-event-id", "18446744073709551615")];
    let answer = server.send("GET", "/v1/events?follow=false", None, &far, b"").status(200);
    assert!(answer.body.is_empty());
}
