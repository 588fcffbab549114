//! Stopping: a read is broken off, a write under way is waited for, so that what happened is known.

use crate::holder::hold;
use crate::outside::{Answer, Request, Server, say};
use crate::support::{Project, status_of, text, until};
use serde_json::json;
use std::sync::{Arc, Condvar, Mutex};

/// A door that the other side waits at.
#[derive(Clone, Default)]
struct Door(Arc<(Mutex<bool>, Condvar)>);

impl Door {
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        let open = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(open, |open| !*open).unwrap());
    }
}

fn project(server: &Server, step: &str) -> Project {
    let book = format!(
        "name: t\npipelines:\n  p:\n    steps:\n      - {{ id: w, {} }}\n",
        step.replace("URL", &server.url())
    );
    Project::with(&book).env("WINDLASS_HTTP_ALLOW_PRIVATE", "127.0.0.1")
}

/// Starts the run and waits until the other side has its request.
fn started(project: &Project, server: &Server) -> String {
    let run = project.windlass(&["run", "book.yaml", "--detach", "--json"]).code(0).json();
    until("the request", || (!server.seen().is_empty()).then_some(()));
    text(&run, "id").to_owned()
}

#[test]
fn a_read_that_nobody_needs_any_more_is_broken_off() {
    let server = Server::start(|_: &Request| Answer::Silence);
    let project = project(&server, "http: { url: 'URL/x' }");
    let _holder = hold(&project);
    let run = started(&project, &server);
    project.windlass(&["cancel", &run]);
    let shown = until("the end", || Some(project.show(&run)).filter(|run| run["status"] == "cancelled"));
    assert_eq!(status_of(&shown, "w"), "cancelled");
}

#[test]
fn a_write_under_way_is_waited_for_and_its_receipt_is_kept() {
    let door = Door::default();
    let held = door.clone();
    let server = Server::start(move |_: &Request| {
        held.wait();
        say(200, &json!({ "id": 1 }))
    });
    let project = project(&server, "http: { url: 'URL/x', method: POST }");
    let _holder = hold(&project);
    let run = started(&project, &server);
    let cancel = project.start(&["cancel", &run, "--json"]);
    until("the wish", || Some(project.events("pipeline:cancelling")).filter(|events| !events.is_empty()));
    door.open();
    cancel.wait();
    until("the end", || Some(project.show(&run)).filter(|run| run["status"] == "cancelled"));
    let receipts = project.windlass(&["show", &run, "--receipts", "--json"]).code(0).json();
    assert_eq!(receipts["items"][0]["status"], "succeeded", "what happened is known: {receipts}");
}

#[test]
fn what_takes_too_long_is_unknown_where_it_may_have_happened() {
    let server = Server::start(|_: &Request| Answer::Silence);
    let project = project(&server, "http: { url: 'URL/x', method: POST }, timeout: 300ms");
    let _holder = hold(&project);
    let run = started(&project, &server);
    let shown =
        until("a human", || Some(project.show(&run)).filter(|run| run["status"] == "awaiting_approval"));
    assert_eq!(status_of(&shown, "w"), "outcome_unknown");
    assert_eq!(server.count("POST"), 1);
}
