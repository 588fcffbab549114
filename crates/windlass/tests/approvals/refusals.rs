//! Who may not decide, with real processes: a step's own token, a caller without one, a card that was never shown, and an
//! approval of something that changed.

use crate::http::Server;
use crate::office::BOOK;
use crate::support::{Project, text, until};
use crate::wire::Serving;
use serde_json::{Value, json};

/// A step that shows its own token while a human is asked.
const SNEAKY: &str = "
name: sneaky
pipelines:
  p:
    steps:
      - parallel:
          - { id: ok, approve: { message: 'Really?' } }
          - { id: sneak, run: 'echo \"$WL_TOKEN\" > token; until [ -e go ]; do sleep 0.02; done' }
";

fn open(look: impl Fn() -> Value) -> Value {
    until("an approval", || look()["items"].get(0).cloned())
}

/// A server with a runbook, and its owner's credential.
fn serve(book: &str) -> (Server, String) {
    let server = Server::trusting();
    let owner = server.owner();
    let kind = [("content-type", "application/yaml")];
    server.send("POST", "/v1/runbooks", Some(&owner), &kind, book.as_bytes()).status(201);
    (server, owner)
}

fn requested(server: &Server, owner: &str) -> Value {
    server.ask("GET", "/v1/approvals?status=requested", Some(owner), None).status(200).json()
}

#[test]
fn a_caller_without_a_token_and_a_card_that_was_never_shown_are_refused_and_on_record() {
    let (server, owner) = serve(BOOK);
    server.ask("POST", "/v1/runs", Some(&owner), Some(&json!({ "pipeline": "ask" }))).status(201);
    let open = open(|| requested(&server, &owner));
    let path = format!("/v1/approvals/{}", text(&open, "id"));
    let decision = format!("{path}/decision");
    let mut body = json!({ "decision": "approved", "action_hash": open["action_hash"] });
    server.ask("POST", &decision, None, Some(&body)).problem(403, "FORBIDDEN");
    body["card_hash"] = json!("0".repeat(64));
    server.ask("POST", &decision, Some(&owner), Some(&body)).problem(409, "APPROVAL_HASH_MISMATCH");
    let refused = server.project.events("approval:refused");
    let refused: Vec<Value> = refused.iter().map(|e| json!([e["decided_by"], e["refusal"]])).collect();
    assert_eq!(refused, [json!(["local", "not_human"]), json!(["tester", "hash_mismatch"])]);
    // With the card that is shown it counts.
    let shown = server.ask("GET", &path, Some(&owner), None).status(200).json();
    let card = server.ask("GET", &format!("{path}/card"), Some(&owner), None).status(200);
    assert_eq!(card.text(), text(&shown, "card"));
    body["card_hash"] = shown["card_hash"].clone();
    server.ask("POST", &decision, Some(&owner), Some(&body)).status(200);
    assert_eq!(server.project.events("approval:decided")[0]["card"], shown["card_hash"]);
}

#[test]
fn the_token_of_an_attempt_decides_nothing() {
    let (server, owner) = serve(SNEAKY);
    let run =
        server.ask("POST", "/v1/runs", Some(&owner), Some(&json!({ "pipeline": "p" }))).status(201).json();
    let open = open(|| requested(&server, &owner));
    let token = server.project.await_file("token").trim().to_owned();
    let decision = format!("/v1/approvals/{}/decision", text(&open, "id"));
    let body = json!({ "decision": "approved", "action_hash": open["action_hash"] });
    server.ask("POST", &decision, Some(&token), Some(&body)).problem(403, "FORBIDDEN");
    let refused = server.project.events("approval:refused");
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!(text(&refused[0], "refusal"), "not_human");
    assert!(text(&refused[0], "decided_by").contains("sneak"), "{refused:?}");
    let path = format!("/v1/runs/{}", text(&run, "id"));
    let status = || server.ask("GET", &path, Some(&owner), None).status(200).json()["status"].clone();
    assert_eq!(status(), "running", "nothing was decided");
    server.ask("POST", &decision, Some(&owner), Some(&body)).status(200);
    server.project.write("go", "");
    until("the end of the run", || (status() == "completed").then_some(()));
}

/// The socket is the owner's; a step runs as the same user, but what it shows there says who it is.
#[test]
fn the_token_of_an_attempt_decides_nothing_at_the_socket_either() {
    let serving = Serving::new(Project::new(), &[SNEAKY]);
    let run = crate::office::start(&serving, "p");
    let open = open(|| serving.get("/v1/approvals?status=requested").is(200).json());
    let token = serving.project.await_file("token").trim().to_owned();
    let body = json!({ "decision": "approved", "action_hash": open["action_hash"] }).to_string();
    let path = format!("/v1/approvals/{}/decision", text(&open, "id"));
    for (shown, status) in [(token, 403), ("wl_nobody".to_owned(), 401)] {
        let bearer = format!("Bearer {shown}");
        serving.post(&path, &[("authorization", &bearer)], body.as_bytes()).is(status);
    }
    serving.post(&path, &[], body.as_bytes()).is(200);
    serving.project.write("go", "");
    serving.await_status(&run, "completed");
}

#[test]
fn an_action_that_changed_after_it_was_approved_is_asked_about_again() {
    let book = "
name: ship
pipelines:
  p:
    vars: { to: { default: one } }
    steps:
      - { id: gate, approve: { message: 'Ship?', for: [ship] } }
      - { id: hold, wait: { event: go } }
      - { id: ship, transform: { value: { to: '${{ vars.to }}' } } }
";
    let serving = Serving::new(Project::new(), &[book]);
    let run = crate::office::start(&serving, "p");
    let requested = || serving.get("/v1/approvals?status=requested").is(200).json();
    let first = open(requested);
    let body = json!({ "decision": "approved", "action_hash": first["action_hash"] }).to_string();
    serving.post(&format!("/v1/approvals/{}/decision", text(&first, "id")), &[], body.as_bytes()).is(200);
    serving.await_status(&run, "waiting_external");
    serving.post(&format!("/v1/runs/{run}/suspend"), &[], b"{}").is(200);
    serving.post(&format!("/v1/runs/{run}/resume"), &[], br#"{"vars":{"to":"two"}}"#).is(200);
    serving.post(&format!("/v1/runs/{run}/signals/go"), &[], b"{}").is(200);
    let second = open(requested);
    assert_eq!((text(&second, "step"), &second["action"]["fields"]["value"]["to"]), ("ship", &json!("two")));
    // Nor does the hash of the first one open the second.
    let path = format!("/v1/approvals/{}/decision", text(&second, "id"));
    serving.post(&path, &[], body.as_bytes()).is(409);
    let body = json!({ "decision": "approved", "action_hash": second["action_hash"] }).to_string();
    serving.post(&path, &[], body.as_bytes()).is(200);
    serving.await_status(&run, "completed");
}
