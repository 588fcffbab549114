//! The examples: each is checked, and each runs.

use crate::support::{Project, status_of, text};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// A project with a copy of an example as `book.yaml`.
fn example(name: &str) -> Project {
    Project::with(&std::fs::read_to_string(folder().join(name)).unwrap())
}

#[test]
fn every_example_holds_together() {
    let project = Project::new();
    let mut seen = 0;
    for entry in std::fs::read_dir(folder()).unwrap().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "yaml") {
            project.windlass(&["check", entry.path().to_str().unwrap()]).code(0);
            seen += 1;
        }
    }
    assert!(seen >= 4, "{seen} examples");
}

#[test]
fn hello_greets() {
    let project = example("hello.yaml");
    project.windlass(&["run", "book.yaml", "--var", "who=you"]).code(0).says("Once more, Hello, you.");
}

#[test]
fn fan_out_looks_at_every_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Two requests are answered, each as its path asks.
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let len = stream.read(&mut request).unwrap();
            let missing = request[..len].starts_with(b"GET /missing");
            let line = if missing { "404 Not Found" } else { "200 OK" };
            write!(stream, "HTTP/1.1 {line}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
        }
    });
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let urls = format!(r#"urls=["http://{address}/", "http://{address}/missing", "http://{closed}/"]"#);
    let project = example("fan-out.yaml");
    let run = project.run(&["--var", &urls], 0);
    server.join().unwrap();
    let wanted = format!("000 http://{closed}/ 200 http://{address}/ 404 http://{address}/missing");
    assert_eq!(run["result"]["report"].as_str().map(str::trim), Some(wanted.as_str()));
}

#[test]
fn approval_puts_nothing_in_place_before_a_human_says_so() {
    let project = example("approval.yaml");
    let run = project.run(&["--no-wait", "--var", "version=1.2.3"], 4);
    assert!(!project.has("site"));
    let page = project.windlass(&["approvals", "--json"]).code(0).json();
    let approval = &page["items"][0];
    assert!(text(&approval["action"]["fields"], "message").contains("1.2.3"), "{approval}");
    project.windlass(&["approve", text(approval, "id"), "--hash", text(approval, "action_hash")]).code(0);
    project.windlass(&["resume", text(&run, "id")]).code(0);
    assert_eq!(project.read("site/index.html"), "version 1.2.3\n");
    assert!(!project.has("build"));
}

#[test]
fn booking_gives_back_what_is_not_wanted_without_the_rest() {
    let project = example("booking.yaml");
    project.run(&[], 0);
    assert_eq!(project.read("bookings.txt").lines().count(), 3);
    std::fs::remove_file(project.path("bookings.txt")).unwrap();
    let run = project.run(&["--var", "sold_out=car"], 1);
    let ledger = project.read("bookings.txt");
    let lines: Vec<&str> = ledger.lines().collect();
    assert_eq!(lines[2..], ["hotel given back", "flight F-17 given back"], "{ledger}");
    assert_eq!((status_of(&run, "car"), status_of(&run, "tell")), ("failed", "succeeded"));
}
