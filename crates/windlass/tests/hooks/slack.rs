//! Commands and buttons of Slack.

use crate::support::{Project, text, until};
use crate::wire::{Answer, Serving, now, sign};
use serde_json::{Value, json};

const SECRET: &str = "8f742231b10e8888abcd99yyyzzz85a5";

const BOOK: &str = r#"
name: ops
triggers:
  deploy:
    slack: { command: /deploy }
    when: event.channel_name == "ops"
    vars: { version: '${{ event.text }}' }
    pipeline: deploy
pipelines:
  deploy:
    vars: { version: { required: true, pattern: '^\d+\.\d+$' } }
    steps: [{ run: 'true' }]
  ask:
    steps: [{ id: ok, approve: { message: 'Really?' } }]
"#;

const CONFIG: &str = "
slack: { team: T1, users: { U1: ann, U2: bob } }
groups: { sre: [ann] }
";

fn serve() -> Serving {
    let project = Project::new().env("WINDLASS_SLACK_SIGNING_SECRET", SECRET);
    project.write("windlass.yaml", CONFIG);
    Serving::new(project, &[BOOK])
}

fn send_at(serving: &Serving, path: &str, time: u64, secret: &str, body: &str) -> Answer {
    let time = time.to_string();
    let signature = format!("v0={}", sign(secret, &[b"v0:", time.as_bytes(), b":", body.as_bytes()]));
    let headers = [
        ("x-slack-signature", signature.as_str()),
        ("x-slack-request-timestamp", time.as_str()),
        ("content-type", "application/x-www-form-urlencoded"),
    ];
    serving.post(path, &headers, body.as_bytes())
}

fn command(text: &str, trigger: &str, user: &str, team: &str) -> String {
    format!(
        "token=legacy&team_id={team}&channel_name=ops&user_id={user}&command=%2Fdeploy&text={text}&trigger_id={trigger}\
         &response_url=https%3A%2F%2Fslack.test%2F1"
    )
}

fn said(answer: &Answer) -> String {
    let body = answer.json();
    assert_eq!(body["response_type"], "ephemeral", "{body}");
    text(&body, "text").to_owned()
}

#[test]
fn a_command_starts_a_run_once_and_says_so_to_the_one_who_asked() {
    let serving = serve();
    let send = |body: &str| send_at(&serving, "/hooks/slack/commands", now(), SECRET, body).is(200);
    let body = command("1.2", "13345224609.8534564800", "U1", "T1");
    let first = said(&send(&body));
    assert!(first.starts_with("Started `deploy`: run_"), "{first}");
    assert_eq!(said(&send(&body)), first, "a second click is the first one");
    // Fifty at once are one too. Slack shows each of them an answer, so each is a plain 200.
    let fresh = command("1.3", "13345224609.99", "U1", "T1");
    let answers: Vec<String> = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..50).map(|_| scope.spawn(|| said(&send(&fresh)))).collect();
        senders.into_iter().map(|sender| sender.join().unwrap()).collect()
    });
    assert!(answers.iter().any(|answer| answer.starts_with("Started `deploy`: run_")), "{answers:?}");
    let runs = serving.runs("deploy");
    assert_eq!(runs.len(), 2, "{answers:?}");
    let runs = &runs[1..];
    let run = serving.get(&format!("/v1/runs/{}", text(&runs[0], "id"))).json();
    assert_eq!((&run["trigger"]["source"], &run["trigger"]["user"]), (&json!("slack"), &json!("ann")));
    assert_eq!(run["trigger"]["key"], "slack:T1:13345224609.8534564800");
    let wrong = said(&send(&command("latest", "2", "U9", "T1")));
    assert!(wrong.contains("must match"), "{wrong}");
    let other = said(&send(&command("1.2", "3", "U1", "T1").replace("ops", "random")));
    assert!(other.contains("No deployed runbook"), "{other}");
    assert!(!serving.is_stored("legacy"), "the old token is nobody's business");
}

#[test]
fn what_is_forged_stale_or_from_elsewhere_is_refused() {
    let serving = serve();
    let body = command("1.2", "1", "U1", "T1");
    let send =
        |time: u64, secret: &str, body: &str| send_at(&serving, "/hooks/slack/commands", time, secret, body);
    send(now(), "other", &body).is(401);
    send(now() - 301, SECRET, &body).is(401);
    send(now() + 302, SECRET, &body).is(401);
    send(now(), SECRET, &command("1.2", "1", "U1", "T2")).is(401);
    send_at(&serving, "/hooks/slack/commands/acme", now(), SECRET, &body).is(401);
    // A signature does not travel to another time.
    let old = (now() - 600).to_string();
    let signature = format!("v0={}", sign(SECRET, &[b"v0:", old.as_bytes(), b":", body.as_bytes()]));
    let time = now().to_string();
    let headers = [("x-slack-signature", signature.as_str()), ("x-slack-request-timestamp", time.as_str())];
    serving.post("/hooks/slack/commands", &headers, body.as_bytes()).is(401);
    send(now(), SECRET, "command=%2Fdeploy").is(400);
    send(now(), SECRET, &format!("{body}&command=%2Fother")).is(400);
    assert!(serving.runs("deploy").is_empty());
    send(now() - 299, SECRET, &body).is(200);
    assert_eq!(serving.runs("deploy").len(), 1);
}

fn approval(serving: &Serving) -> Value {
    serving.post("/v1/runs", &[], br#"{"pipeline":"ask"}"#).is(201);
    until("an approval", || {
        let page = serving.get("/v1/approvals?status=requested").is(200).json();
        page["items"].get(0).cloned()
    })
}

fn click(serving: &Serving, action: &str, value: &str, user: &str) -> Answer {
    let payload = json!({
        "type": "block_actions", "team": { "id": "T1" }, "user": { "id": user }, "trigger_id": "1.2",
        "actions": [{ "action_id": action, "value": value }],
        "state": { "values": { "b": { "reason": { "type": "plain_text_input", "value": "not today" } } } },
    });
    let escaped: String = payload.to_string().bytes().map(|byte| format!("%{byte:02x}")).collect();
    send_at(serving, "/hooks/slack/actions", now(), SECRET, &format!("payload={escaped}"))
}

#[test]
fn a_button_decides_for_the_human_behind_it() {
    let serving = serve();
    let open = approval(&serving);
    let (id, hash) = (text(&open, "id"), text(&open, "action_hash"));
    let nobody = said(&click(&serving, "windlass:approve", &format!("{id}:{hash}"), "U9").is(200));
    assert!(nobody.contains("nobody here"), "{nobody}");
    let changed = format!("{id}:{}", "0".repeat(64));
    let other = said(&click(&serving, "windlass:approve", &changed, "U1").is(200));
    assert!(other.contains("hash_mismatch"), "{other}");
    let refused = serving.project.events("approval:refused");
    let by: Vec<&str> = refused.iter().map(|event| text(event, "decided_by")).collect();
    assert_eq!(by, ["slack:U9", "ann"], "who tried stands in the audit");
    let good = said(&click(&serving, "windlass:approve", &format!("{id}:{hash}"), "U1").is(200));
    assert!(good.contains("approved"), "{good}");
    serving.await_status(text(&open, "run"), "completed");
    let shown = serving.get(&format!("/v1/approvals/{id}")).is(200).json();
    assert_eq!(
        (&shown["decisions"][0]["by"], &shown["decisions"][0]["channel"]),
        (&json!("ann"), &json!("slack"))
    );
    let late = said(&click(&serving, "windlass:reject", &format!("{id}:{hash}"), "U2").is(200));
    assert!(late.contains("does not count"), "{late}");
}

#[test]
fn a_rejection_ends_the_run_with_its_reason_and_foreign_buttons_do_nothing() {
    let serving = serve();
    let open = approval(&serving);
    let (id, hash) = (text(&open, "id"), text(&open, "action_hash"));
    let value = format!("{id}:{hash}");
    assert!(said(&click(&serving, "menu", &value, "U1").is(200)).contains("nothing to do"));
    click(&serving, "windlass:approve", "nonsense", "U1").is(400);
    click(&serving, "windlass:approve", &format!("apr_x:{hash}"), "U1").is(400);
    let absent = format!("apr_00000000000000000000000007:{hash}");
    assert!(said(&click(&serving, "windlass:approve", &absent, "U1").is(200)).contains("no approval"));
    let payload = "payload=%7B%22type%22%3A%22view_submission%22%2C%22team%22%3A%7B%22id%22%3A%22T1%22%7D%7D";
    send_at(&serving, "/hooks/slack/actions", now(), SECRET, payload).is(200);
    send_at(&serving, "/hooks/slack/actions", now(), "other", payload).is(401);
    let first = said(&click(&serving, "windlass:reject", &value, "U2").is(200));
    assert!(first.contains("rejected"), "{first}");
    serving.await_status(text(&open, "run"), "failed");
    let shown = serving.get(&format!("/v1/approvals/{id}")).is(200).json();
    assert_eq!(shown["decisions"][0]["reason"], "not today");
}
