//! Causes: which person, decision, time-out or policy each transition is put down to.

use crate::support::{Project, text, until};
use crate::wire::Serving;
use serde_json::{Value, json};

fn by(records: &[Value], kind: &str) -> String {
    let found = records.iter().find(|record| record["type"] == kind);
    text(found.unwrap_or_else(|| panic!("no {kind} in {records:?}")), "by").to_owned()
}

#[test]
fn what_follows_from_a_denial_is_put_down_to_policy() {
    let project =
        Project::with("name: x\npipelines: { main: { steps: [ { id: go, run: 'touch ran' } ] } }\n");
    project.write("policy/none.cedar", "forbid (principal, action, resource);\n");
    let run = project.windlass(&["run", "book.yaml", "--json", "--policy", "policy"]).code(1).last();
    assert_eq!(run["error"]["code"], "POLICY_DENIED", "{run}");
    let records = project.windlass(&["events"]).code(0).lines();
    assert_eq!(by(&records, "step:failed"), "policy");
    assert_eq!(by(&records, "pipeline:failed"), "policy");
    assert_ne!(by(&records, "pipeline:started"), "policy");
}

#[test]
fn what_follows_from_a_decision_is_put_down_to_the_approval() {
    let serving = Serving::new(
        Project::new(),
        &[
            "name: x\npipelines: { main: { steps: [ { id: ask, approve: { message: Go? } }, { id: go, run: 'true' } ] } }\n",
        ],
    );
    let made = serving.post("/v1/runs", &[], br#"{ "pipeline": "main" }"#).is(201).json();
    let run = text(&made, "id").to_owned();
    serving.await_status(&run, "awaiting_approval");
    let open = until("an approval", || {
        let page = serving.get("/v1/approvals?status=requested").is(200).json();
        page["items"].as_array().unwrap().first().cloned()
    });
    let decision = json!({ "decision": "approved", "action_hash": open["action_hash"] });
    let path = format!("/v1/approvals/{}/decision", text(&open, "id"));
    serving.post(&path, &[], decision.to_string().as_bytes()).is(200);
    serving.await_status(&run, "completed");
    let records = serving.project.windlass(&["events"]).code(0).lines();
    assert!(by(&records, "approval:decided").starts_with("user:"), "a person decided: {records:?}");
    let went_on =
        records.iter().find(|record| record["type"] == "pipeline:advanced" && record["step"] == "go");
    assert_eq!(text(went_on.unwrap(), "by"), format!("approval:{}", text(&open, "id")));
}

#[test]
fn what_follows_from_a_time_limit_is_put_down_to_it() {
    let project = Project::with(
        "name: x\npipelines: { main: { steps: [ { id: w, wait: { event: never, timeout: 1ms } } ] } }\n",
    );
    project.run(&[], 1);
    let records = project.windlass(&["events"]).code(0).lines();
    assert_eq!(by(&records, "step:failed"), "timeout");
    assert_eq!(by(&records, "pipeline:failed"), "timeout");
}
