//! Tools on another machine: policy, intent and receipt are the server's, the secret and the call the executor's.

use crate::outside::{Server as Other, World};
use crate::process::{executor, server};
use crate::server::How;
use crate::support::{Project, until};
use serde_json::{Value, json};

const COMMENTS: &str = "
name: comments
pipelines:
  p:
    steps:
      - { id: say, runs_on: [gpu], github.comment: { repo: o/r, number: 7, body: done } }
";

/// Everything is allowed, and a comment once a human agrees.
const POLICY: &str = "permit (principal, action, resource);
@approval(\"\") forbid (principal, action == Windlass::Action::\"github.comment\", resource)
unless { context.approvals >= 1 };
";

/// Agrees to what a run waits for.
fn agree(client: &crate::server::Asker) {
    let approval: Value = until("an approval", || {
        client.get("/v1/approvals?status=requested")["items"].as_array()?.first().cloned()
    });
    let yes = json!({ "decision": "approved", "action_hash": approval["action_hash"] });
    client.post(&format!("/v1/approvals/{}/decision", approval["id"].as_str().unwrap()), &yes);
}

#[test]
fn a_tool_is_called_elsewhere_under_an_approval_and_its_receipt_is_on_record() {
    let world = World::default();
    let answers = world.clone();
    let other = Other::start(move |request| answers.answer(request));
    let project = Project::new()
        .env("WINDLASS_GITHUB_API_URL", &other.url())
        .env("WINDLASS_SECRET_GITHUB_TOKEN", "tell-nobody-7");
    project.write("policy/all.cedar", POLICY);
    let server = server(&project, How::default());
    let client = server.client();
    let run = client.run(COMMENTS);
    client.until(&run, "awaiting_approval");
    let _executor = executor(&project, &server.url(), "e1");
    assert_eq!(other.count("POST"), 0, "nothing is done before a human agrees");
    agree(&client);
    client.until(&run, "completed");
    assert_eq!((other.count("POST"), world.things().comments.len()), (1, 1));
    let records = client.records(&run);
    let at = |tag: &str| records.iter().position(|record| record["type"] == tag).unwrap();
    assert!(at("step:started") < at("secret:used"));
    assert_eq!(records[at("secret:used")]["version"], "environment of the executor");
    let receipts = client.get(&format!("/v1/runs/{run}/receipts"));
    let receipt = &receipts["items"][0];
    assert_eq!((&receipt["tool"], &receipt["status"]), (&json!("github.comment"), &json!("succeeded")));
    assert_eq!(receipt["reverse"]["tool"], "github.delete_comment");
    assert!(!records.iter().chain([&receipts]).any(|record| record.to_string().contains("tell-nobody-7")));
}

#[test]
fn a_lease_of_a_tool_names_its_semantics_and_only_references_to_its_secrets() {
    let project = Project::new();
    let server = server(&project, How::default());
    let client = server.client();
    let yaml = "
name: asks
pipelines:
  p:
    steps:
      - id: ask
        runs_on: [gpu]
        http: { url: 'http://10.0.0.1/x', bearer: '${{ secrets.api }}', headers: { X-Plain: text } }
";
    client.run(yaml);
    let wish = json!({ "executor": "e1", "labels": ["gpu"], "tools": ["shell"] });
    assert!(client.post("/v1/leases", &wish)["items"].as_array().unwrap().is_empty(), "it cannot do that");
    let wish = json!({ "executor": "e1", "labels": ["gpu"], "tools": ["http"] });
    let lease: Value =
        until("a lease", || client.post("/v1/leases", &wish)["items"].as_array()?.first().cloned());
    assert_eq!((&lease["tool"], &lease["semantics"]), (&json!("http"), &Value::Null), "it only reads");
    assert_eq!(lease["input"]["fields"]["bearer"], json!({ "$secret": "api" }));
    assert!(lease["with"].is_object() && lease["repeatable"] == true);
    // What it got back, and what that cost, is checked like everything else that comes from elsewhere.
    for wrong in [
        json!({ "output": {}, "receipt": { "id": "x", "status": "succeeded" } }),
        json!({ "output": {}, "costs": [{ "provider": "p", "model": "m", "total": { "usd": 1 } }] }),
    ] {
        assert_eq!(client.report("complete", &lease, wrong)["code"], "INVALID_INPUT");
    }
    assert_eq!(
        client.report("complete", &lease, json!({ "output": { "status": 200 } }))["code"],
        Value::Null
    );
}
