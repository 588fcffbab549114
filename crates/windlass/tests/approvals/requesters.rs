//! Who counts as having asked, with a real server and a token for each person: whichever way somebody asks, what comes of
//! it is theirs, and somebody else has to agree.

use crate::http::{Answer, Server};
use crate::support::{Project, text, until};
use serde_json::{Value, json};

const WINDLASS: &str = env!("CARGO_BIN_EXE_windlass");

const BOOK: &str = "
name: ops
queues: { jobs: {} }
workers: { w: { queue: jobs, pipeline: act } }
schedules: { sc: { every: 1000h, pipeline: act } }
triggers:
  told: { on: custom:a:b, pipeline: act }
pipelines:
  act: { steps: [ { id: send, run: 'echo sent >> sent' } ] }
  tells: { steps: [ { id: c, run: '\"WINDLASS\" --server \"$WL_SERVER\" --token \"$WL_TOKEN\" emit a:b' } ] }
  emits: { steps: [ { id: e, emit: { type: 'a:b' } } ] }
  hears: { steps: [ { id: hear, wait: { event: go } }, { id: send, env: { X: '${{ steps.hear.output.x }}' }, run: 'echo \"$X\" >> sent' } ] }
";

/// A server whose policy wants one human for `send`, and people with tokens of their own who read, run and approve.
struct Place {
    server: Server,
    ann: String,
    bob: String,
}

impl Place {
    fn open() -> Place {
        let project = Project::with(&BOOK.replace("WINDLASS", WINDLASS));
        project.write(
            "policy/a.cedar",
            "permit (principal, action, resource);
             @approval(\"count: 1\")
             forbid (principal, action == Windlass::Action::\"shell\", resource)
             when { context.pipeline == \"act\" || context.pipeline == \"hears\" } unless { context.approvals >= 1 };",
        );
        let server = Server::start_with(project, &[]);
        server.project.windlass(&["deploy", "book.yaml"]).code(0);
        let scopes = ["read", "run", "approve"];
        let token =
            |who: &str| text(&server.token(&json!({ "name": who, "scopes": scopes })), "token").to_owned();
        let (ann, bob) = (token("ann"), token("bob"));
        Place { server, ann, bob }
    }

    fn post(&self, who: &str, path: &str, body: &Value) -> Answer {
        self.server.ask("POST", path, Some(who), Some(body))
    }

    fn asked(&self) -> Value {
        until("a question", || {
            self.server.ask("GET", "/v1/approvals?status=requested", Some(&self.bob), None).items().pop()
        })
    }

    fn approve(&self, who: &str, approval: &Value) -> Answer {
        let path = format!("/v1/approvals/{}/decision", text(approval, "id"));
        self.post(who, &path, &json!({ "decision": "approved", "action_hash": approval["action_hash"] }))
    }

    /// Ann asked: she may not agree, which is on record, and bob may.
    fn is_anns(&self, first: &str) {
        let open = self.asked();
        let names: Vec<&str> =
            open["requesters"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(names.contains(&"ann") && !names.contains(&"bob"), "{open}");
        assert_eq!(text(&open, "requested_by"), names[0]);
        assert!(names[0].starts_with(first), "{open}");
        let path = format!("/v1/approvals/{}/card", text(&open, "id"));
        let card = self.server.ask("GET", &path, Some(&self.bob), None).status(200).text();
        assert!(card.contains("ann"), "{card}");
        self.approve(&self.ann, &open).problem(403, "FORBIDDEN");
        let refused = self.server.project.events("approval:refused").pop().unwrap();
        assert_eq!((text(&refused, "decided_by"), text(&refused, "refusal")), ("ann", "own_request"));
        assert!(!self.server.project.has("sent"));
        self.approve(&self.bob, &open).status(200);
        self.server.project.await_file("sent");
    }
}

#[test]
fn an_item_that_is_pushed_asks_in_the_name_of_who_pushed_it() {
    let place = Place::open();
    place.post(&place.ann, "/v1/queues/jobs/items", &json!({ "data": {} })).status(201);
    place.is_anns("ann");
}

#[test]
fn a_run_of_a_schedule_by_hand_asks_in_the_name_of_who_wanted_it() {
    let place = Place::open();
    place.post(&place.ann, "/v1/schedules/sc/run", &json!({})).status(201);
    place.is_anns("ann");
}

#[test]
fn an_event_by_the_token_of_a_step_asks_in_the_name_of_who_asked_for_its_run() {
    let place = Place::open();
    place.post(&place.ann, "/v1/runs", &json!({ "pipeline": "tells" })).status(201);
    place.is_anns("run_");
}

#[test]
fn an_event_that_a_step_emits_asks_in_the_name_of_who_asked_for_its_run() {
    let place = Place::open();
    place.post(&place.ann, "/v1/runs", &json!({ "pipeline": "emits" })).status(201);
    place.is_anns("run_");
}

#[test]
fn whoever_brings_what_an_action_is_made_of_does_not_agree_to_it() {
    let place = Place::open();
    let scopes = ["read", "run"];
    let eve = place.server.token(&json!({ "name": "eve", "scopes": scopes }));
    let made =
        place.post(text(&eve, "token"), "/v1/runs", &json!({ "pipeline": "hears" })).status(201).json();
    let path = format!("/v1/runs/{}/signals/go", text(&made, "id"));
    place.post(&place.ann, &path, &json!({ "data": { "x": "evil" } })).status(200);
    place.is_anns("eve");
}
