//! The first example of the runbook language, as written, against services that speak as the real ones do.

use crate::holder::hold;
use crate::outside::{Request, Server, World, say};
use crate::support::{Project, status_of, step, text};
use serde_json::json;

const TRIAGE: &str = r#"
name: triage
triggers:
  p1:
    hook: servicenow
    when: event.priority in ["1", "2"]
    vars: { ticket: '${{ event.sys_id }}', host: '${{ event.ci }}' }
    pipeline: triage
pipelines:
  triage:
    vars:
      ticket: { required: true, pattern: '^[0-9a-f]{32}$' }
      host: { required: true, pattern: '^[a-z0-9][a-z0-9.-]*$' }
    lock: incident-${{ vars.ticket }}
    steps:
      - parallel:
          - { id: disk, run: './probe disk "$WL_VAR_HOST"', timeout: 1m }
          - { id: log, run: './probe log "$WL_VAR_HOST"', timeout: 1m }
      - id: cause
        model: { prompt: 'Likely cause?', data: ['${{ steps.disk.output }}', '${{ steps.log.output }}'] }
      - id: resolve                     # policy asks the sre group
        servicenow.update:
          table: incident
          sys_id: ${{ vars.ticket }}
          fields: { state: resolved, close_notes: '${{ steps.cause.output.text }}' }
        idempotency_key: sn:resolve:${{ vars.ticket }}
        key_scope: tenant
    on_failure:
      - slack.post: { channel: '#oncall', text: 'Triage failed: ${{ error.message }}' }
"#;

const TICKET: &str = "0123456789abcdef0123456789abcdef";

fn scene() -> (Project, World, Server) {
    let world = World::default();
    world
        .things()
        .records
        .insert(("incident".into(), TICKET.into()), json!({ "state": "new", "sys_mod_count": "0" }));
    let answers = world.clone();
    let server = Server::start(move |request: &Request| match request.path.as_str() {
        "/messages" => say(
            200,
            &json!({ "content": [{ "type": "text", "text": "disk full" }], "stop_reason": "end_turn",
                "usage": { "input_tokens": 100, "output_tokens": 5 } }),
        ),
        _ => answers.answer(request),
    });
    let project = Project::with(TRIAGE)
        .env("WINDLASS_SERVICENOW_URL", &server.url())
        .env("WINDLASS_SLACK_API_URL", &server.url())
        .env("ANTHROPIC_BASE_URL", &server.url())
        .env("WINDLASS_SECRET_SERVICENOW_TOKEN", "tok-1234567890")
        .env("WINDLASS_SECRET_SLACK_BOT_TOKEN", "tok-1234567890")
        .env("WINDLASS_SECRET_ANTHROPIC_API_KEY", "key-1234567890");
    project.script("probe", "echo \"{\\\"$1\\\": \\\"$2\\\"}\"\n");
    project.write(
        "windlass.yaml",
        "models: { provider: anthropic, default: m, prices: { m: { input_usd: 3, output_usd: 15 } } }\n",
    );
    (project, world, server)
}

#[test]
fn a_ticket_is_looked_into_and_resolved_once() {
    let (project, world, server) = scene();
    let _holder = hold(&project);
    let vars = ["--var", &format!("ticket={TICKET}"), "--var", "host=db1"];
    let run = project.run(&vars, 0);
    assert_eq!(step(&run, "cause")["output"]["text"], "disk full");
    let asked = server.seen().iter().find(|request| request.path == "/messages").unwrap().json();
    let prompt = asked["messages"][0]["content"].as_str().unwrap();
    assert!(prompt.starts_with("Likely cause?") && prompt.contains("{\"disk\":\"db1\"}"), "{prompt}");
    let record = world.things().records[&("incident".to_owned(), TICKET.to_owned())].clone();
    assert_eq!((&record["state"], &record["close_notes"]), (&json!("resolved"), &json!("disk full")));
    let cost = &project.events("cost:recorded")[0];
    assert_eq!((text(cost, "provider"), text(cost, "model")), ("anthropic", "m"), "{cost}");
    project.run(&vars, 0);
    assert_eq!(server.count("PATCH"), 1, "the same ticket is resolved once");
}

#[test]
fn a_triage_that_fails_is_told_of() {
    let (project, world, _server) = scene();
    project.script("probe", "echo 'no route to host' >&2; exit 3\n");
    let _holder = hold(&project);
    let run = project.run(&["--var", &format!("ticket={TICKET}"), "--var", "host=db1"], 1);
    assert_eq!(status_of(&run, "slack.post"), "succeeded");
    assert!(text(&world.things().messages[0], "text").contains("no route to host"));
}
