//! Receipts: reused under their key, shown, and taken back.

use crate::holder::hold;
use crate::outside::{Request, Server, World, say, say_with};
use crate::support::{Project, status_of, text};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

fn project(server: &Server, steps: &str) -> Project {
    Project::with(&format!("name: t\npipelines:\n  p:\n    steps:\n{}", steps.replace("URL", &server.url())))
        .env("WINDLASS_GITHUB_API_URL", &server.url())
        .env("WINDLASS_SERVICENOW_URL", &server.url())
        .env("WINDLASS_SLACK_API_URL", &server.url())
        .env("WINDLASS_SECRET_GITHUB_TOKEN", "tok-1234567890")
        .env("WINDLASS_SECRET_SERVICENOW_TOKEN", "tok-1234567890")
        .env("WINDLASS_SECRET_SLACK_BOT_TOKEN", "tok-1234567890")
        .env("WINDLASS_HTTP_ALLOW_PRIVATE", "127.0.0.1")
}

fn world() -> (World, Server) {
    let world = World::default();
    world
        .things()
        .records
        .insert(("incident".into(), "a1".into()), json!({ "state": "1", "sys_mod_count": "0" }));
    let answers = world.clone();
    (world, Server::start(move |request: &Request| answers.answer(request)))
}

#[test]
fn without_a_policy_every_write_is_denied_and_reads_are_not() {
    let (world, server) = world();
    let project = project(
        &server,
        "      - { id: r, servicenow.get: { table: incident, sys_id: a1 } }\n      - { id: w, github.comment: { repo: o/r, number: 1, body: x } }\n",
    );
    let run = project.run(&[], 1);
    assert_eq!((status_of(&run, "r"), status_of(&run, "w")), ("succeeded", "failed"));
    assert_eq!(run["error"]["code"], "POLICY_DENIED");
    assert!(world.things().comments.is_empty());
}

#[test]
fn a_receipt_of_another_run_serves_under_a_key_of_the_tenant() {
    let (world, server) = world();
    let steps = "      - { id: w, github.comment: { repo: o/r, number: 1, body: x }, idempotency_key: once, key_scope: tenant }\n";
    let project = project(&server, steps);
    let _holder = hold(&project);
    let first = project.run(&[], 0);
    let second = project.run(&[], 0);
    assert_eq!(world.things().comments.len(), 1);
    assert_eq!(first["steps"][0]["output"], second["steps"][0]["output"]);
    let completed = project.events("step:completed");
    assert_eq!(completed[1]["reused_from"], first["id"]);
    let undone = project.windlass(&["undo", text(&second, "id"), "--dry-run", "--json"]).code(0).json();
    assert_eq!(undone["items"][0]["state"], "irreversible", "it was the first run that did it: {undone}");
}

#[test]
fn what_a_run_did_is_taken_back_latest_first_by_a_run_of_its_own() {
    let (world, _) = world();
    world.things().labels = vec!["old".into()];
    let steps = "      - { id: note, github.comment: { repo: o/r, number: 1, body: x } }\n      - { id: tag, github.label: { repo: o/r, number: 1, add: [new], remove: [old] } }\n      - { id: close, servicenow.update: { table: incident, sys_id: a1, fields: { state: '6' } } }\n      - { id: tell, slack.post: { channel: '#a', text: done } }\n      - { id: hook, http: { url: 'URL/effect', method: PUT } }\n      - { id: made, run: 'echo made > made', compensate: { run: 'rm made' } }\n      - { id: kept, github.comment: { repo: o/r, number: 1, body: y }, compensate: false }\n";
    let answers = world.clone();
    let server = Server::start(move |request: &Request| match request.path.as_str() {
        "/effect" => say(200, &json!({})),
        _ => answers.answer(request),
    });
    let project = project(&server, steps);
    let _holder = hold(&project);
    let run = text(&project.run(&[], 0), "id").to_owned();
    assert!(project.has("made"));
    let receipts = project.windlass(&["show", &run, "--receipts", "--json"]).code(0).json();
    assert_eq!(receipts["items"].as_array().unwrap().len(), 6);
    assert_eq!(receipts["items"][2]["reverse"]["fields"]["fields"], json!({ "state": "1" }));

    let plan = project.windlass(&["undo", &run, "--dry-run", "--json"]).code(0).json();
    let shown: Vec<(&str, &str)> = plan["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| (text(item, "step"), text(item, "state")))
        .collect();
    assert_eq!(
        shown,
        [
            ("kept", "irreversible"),
            ("made", "ready"),
            ("hook", "irreversible"),
            ("tell", "ready"),
            ("close", "ready"),
            ("tag", "ready"),
            ("note", "ready"),
        ]
    );
    assert!(project.has("made") && world.things().messages.len() == 1, "a dry run does nothing");

    // Somebody else has moved the record on: that is left alone.
    world.things().records.get_mut(&("incident".to_owned(), "a1".to_owned())).unwrap()["state"] = json!("7");
    let undo = {
        // Without a terminal nobody can be asked.
        project.windlass(&["undo", &run]).code(2).warns("--yes");
        assert!(project.has("made"), "nothing was done");
        project.windlass(&["undo", &run, "--yes", "--json"]).code(0).last()
    };
    assert_eq!((text(&undo, "status"), text(&undo, "correlation_id")), ("completed", run.as_str()));
    assert_eq!(undo["vars"]["run"], Value::String(run.clone()));
    let done: Vec<&str> = undo["steps"].as_array().unwrap().iter().map(|step| text(step, "tool")).collect();
    assert_eq!(done, ["shell", "slack.delete", "github.label", "github.delete_comment"]);
    {
        let things = world.things();
        assert!(!project.has("made") && things.messages.is_empty());
        assert_eq!((things.labels.as_slice(), things.comments.len()), (["old".to_owned()].as_slice(), 1));
        assert_eq!(things.records[&("incident".to_owned(), "a1".to_owned())]["state"], "7");
    }
    let own = project.windlass(&["show", text(&undo, "id"), "--receipts", "--json"]).code(0).json();
    assert_eq!(
        own["items"].as_array().unwrap().len(),
        4,
        "an undo has receipts of its own, its commands too"
    );
    let receipts = project.windlass(&["show", &run, "--receipts", "--json"]).code(0).json();
    assert_eq!(receipts["items"][0]["reversed_by"], undo["id"]);

    // What is left is the conflict, which is taken back only where that is forced.
    let rest = project.windlass(&["undo", &run, "--json"]).code(0).json();
    let close = rest["items"].as_array().unwrap().iter().find(|item| item["step"] == "close").unwrap();
    assert_eq!((text(close, "state"), &rest["run"]), ("conflict", &Value::Null));
    project.windlass(&["undo", &run, "--force", "--yes", "--json"]).code(0);
    assert_eq!(world.things().records[&("incident".to_owned(), "a1".to_owned())]["state"], "1");
}

#[test]
fn what_a_called_run_did_is_not_done_again_when_its_caller_or_the_call_is_tried_again() {
    let (world, server) = world();
    let called = "  q:\n    steps:\n      - { id: w, github.comment: { repo: o/r, number: 1, body: x } }\n      - { id: y, run: 'test -f ok' }\n";
    let steps = format!("      - {{ id: c, call: q, retry: {{ max_attempts: 2, backoff: 1ms }} }}\n{called}");
    let project = project(&server, &steps);
    let _holder = hold(&project);
    let failed = project.windlass(&["run", "book.yaml", "p", "--json"]).code(1).last();
    assert_eq!(world.things().comments.len(), 1, "the call was tried twice");
    project.write("ok", "");
    project.windlass(&["retry", text(&failed, "id"), "--json"]).code(0);
    assert_eq!(world.things().comments.len(), 1);
    // Another run is another matter, and so is another step that calls.
    project.windlass(&["run", "book.yaml", "p", "--json"]).code(0);
    assert_eq!(world.things().comments.len(), 2);
}

#[test]
fn two_steps_that_call_the_same_pipeline_do_two_things() {
    let (world, server) = world();
    let steps = "      - { id: a, call: q }\n      - { id: b, foreach: [1, 2], call: q }\n  q:\n    steps:\n      - { id: w, github.comment: { repo: o/r, number: 1, body: x } }\n";
    let project = project(&server, steps);
    let _holder = hold(&project);
    project.windlass(&["run", "book.yaml", "p", "--json"]).code(0);
    assert_eq!(world.things().comments.len(), 3);
}

#[test]
fn what_a_group_did_is_not_done_again_when_the_group_is_tried_again() {
    let (world, server) = world();
    let steps = "      - id: g\n        retry: { max_attempts: 3, backoff: 1ms }\n        steps:\n          - { id: w, github.comment: { repo: o/r, number: 1, body: x } }\n          - { id: y, run: 'exit 1' }\n";
    let project = project(&server, steps);
    let _holder = hold(&project);
    let run = project.run(&[], 1);
    assert_eq!(world.things().comments.len(), 1);
    assert_eq!(status_of(&run, "w#3"), "succeeded", "its result serves in every round");
}

#[test]
fn what_a_compensation_took_back_is_done_again_by_a_retry() {
    let (world, server) = world();
    let steps = "      - id: note\n        github.comment: { repo: o/r, number: 1, body: x }\n        compensate: { github.delete_comment: { repo: o/r, comment_id: '${{ output.id }}' } }\n      - { id: x, run: 'test -f ok' }\n";
    let project = project(&server, steps);
    let _holder = hold(&project);
    let run = project.run(&[], 1);
    assert!(world.things().comments.is_empty(), "the failed run took it back");
    let receipts = project.windlass(&["show", text(&run, "id"), "--receipts", "--json"]).code(0).json();
    let tools: Vec<&str> =
        receipts["items"].as_array().unwrap().iter().map(|item| text(item, "tool")).collect();
    assert_eq!(tools, ["github.comment", "github.delete_comment"], "compensations have receipts");
    project.write("ok", "");
    project.windlass(&["retry", text(&run, "id"), "--json"]).code(0);
    assert_eq!(world.things().comments.len(), 1);
}

#[test]
fn what_is_refused_for_a_while_is_tried_again_when_it_said_and_errors_of_the_call_are_final() {
    let tries = AtomicUsize::new(0);
    let server = Server::start(move |request: &Request| match request.path.as_str() {
        "/bad" => say(422, &json!({ "message": "no such field" })),
        _ if tries.fetch_add(1, Ordering::SeqCst) == 0 => say_with(429, "retry-after", "1", &json!({})),
        _ => say(200, &json!({ "ok": 1 })),
    });
    let steps = "      - { id: w, http: { url: 'URL/x', method: POST }, retry: { backoff: 10ms } }\n      - { id: bad, http: { url: 'URL/bad', method: POST }, retry: 3 }\n";
    let project = project(&server, steps);
    let _holder = hold(&project);
    let run = project.run(&[], 1);
    assert_eq!((status_of(&run, "w"), status_of(&run, "bad")), ("succeeded", "failed"));
    assert!(text(&run["error"], "message").contains("no such field"), "{run}");
    let retrying = &project.events("step:retrying")[0];
    let wait = retrying["next_eligible_at"].as_u64().unwrap() - retrying["at"].as_u64().unwrap();
    assert!(wait >= 1_000, "{wait}");
    assert_eq!(server.count("POST"), 3);
    // Reads too; and what `on` names is tried again.
    let gone = Server::start(|_: &Request| say(404, &json!({})));
    for (retry, tries) in [("3", 1), ("{ max_attempts: 3, backoff: 10ms, on: [' 404 '] }", 4)] {
        let step = format!("      - {{ id: r, http: {{ url: 'URL/gone' }}, retry: {retry} }}\n");
        self::project(&gone, &step).run(&[], 1);
        assert_eq!(gone.count("GET"), tries, "{retry}");
    }
}

#[test]
fn an_answer_that_leaves_it_open_is_looked_into_before_another_try() {
    let answers = World::default();
    let shown = answers.clone();
    let tries = AtomicUsize::new(0);
    // The first try has its effect and answers 500; the second, of the other step, has none.
    let server = Server::start(move |request: &Request| match request.method.as_str() {
        "POST" => match tries.fetch_add(1, Ordering::SeqCst) {
            0 => {
                answers.answer(request);
                say(500, &json!({}))
            }
            1 => say(502, &json!({})),
            _ => answers.answer(request),
        },
        _ => answers.answer(request),
    });
    let steps = "      - { id: a, github.comment: { repo: o/r, number: 1, body: x } }\n      - { id: b, github.comment: { repo: o/r, number: 1, body: y }, retry: { max_attempts: 3, backoff: 10ms } }\n";
    let project = project(&server, steps);
    let _holder = hold(&project);
    project.run(&[], 0);
    assert_eq!((shown.things().comments.len(), server.count("POST")), (2, 3));
}

#[test]
fn a_tool_can_be_an_executable_that_speaks_json() {
    let (_world, server) = world();
    let steps = "      - { id: w, pager.page: { service: db, token: '${{ secrets.PAGER }}' } }\n";
    let project = project(&server, steps)
        .env("WINDLASS_TOOLS", "tools")
        .env("WINDLASS_SECRET_PAGER", "pager-secret-123");
    project.write("tools/page.yaml", "name: pager.page\ncommand: ./page\nsemantics: idempotent\ntarget: [service]\nfields:\n  service: { type: string, required: true }\n  token: { type: string, secret: true }\nreverse: pager.resolve\n");
    project.write(
        "tools/resolve.yaml",
        "name: pager.resolve\ncommand: ./resolve\nsemantics: idempotent\nfields:\n  id: { type: string }\n",
    );
    project.script("tools/page", "input=$(cat)\nenv | grep -c TOOL_INPUT > leaked || true\ncase \"$input\" in *pager-secret-123*) ;; *) exit 9;; esac\necho \"the token is pager-secret-123\"\necho '{\"ok\": true, \"output\": {\"id\": \"p1\"}, \"reverse\": {\"id\": \"p1\"}}'\n");
    project.script("tools/resolve", "cat > ../resolved\necho '{\"ok\": true, \"output\": {}}'\n");
    let _holder = hold(&project);
    let run = project.run(&[], 0);
    assert_eq!(run["steps"][0]["output"], json!({ "id": "p1" }));
    assert_eq!(project.read("tools/leaked").trim(), "0");
    project.windlass(&["undo", text(&run, "id"), "--yes", "--json"]).code(0);
    assert!(project.read("resolved").contains("\"id\":\"p1\""));
    let wrong = project.read("book.yaml").replace("service: db", "servicee: db");
    project.write("book.yaml", wrong);
    project.windlass(&["check", "book.yaml"]).code(2).warns("service");
}
