//! Custom events: emitted by people, programs and steps; heard by triggers and workers of their namespace.

use crate::support::{Project, step, text, until};
use crate::wire::Serving;
use serde_json::{Value, json};

const BOOK: &str = r#"
name: book
triggers:
  staged:
    on: custom:deploy:done
    when: event.env == "staging"
    vars: { env: '${{ event.env }}' }
    pipeline: check
  strict: { on: 'custom:deploy:*', when: 'has(event.broken)', vars: { env: '${{ event.nowhere }}' }, pipeline: check }
pipelines:
  check: { vars: { env: { required: true } }, steps: [ { run: 'true' } ] }
"#;

fn emit(serving: &Serving, headers: &[(&str, &str)], kind: &str, data: &Value) -> crate::wire::Answer {
    let body = json!({ "type": kind, "data": data }).to_string();
    serving.post("/v1/events", headers, body.as_bytes())
}

#[test]
fn an_event_makes_the_run_of_each_trigger_that_matches() {
    let serving = Serving::new(Project::new(), &[BOOK]);
    let project = &serving.project;
    let told =
        project.windlass(&["emit", "deploy:done", "--data", r#"{"env":"staging"}"#, "--json"]).code(0).json();
    assert_eq!(
        (text(&told, "type"), text(&told["runs"][0], "trigger")),
        ("custom:deploy:done", "book/staged")
    );
    let run = serving.await_status(text(&told["runs"][0], "id"), "completed");
    assert_eq!((&run["vars"], &run["trigger"]["source"]), (&json!({ "env": "staging" }), &json!("event")));
    assert_eq!(run["trigger"]["key"], told["key"]);
    // Others are on record, and nothing comes of them.
    for (kind, data) in
        [("deploy:done", json!({ "env": "production" })), ("deploy:begun", json!({ "env": "staging" }))]
    {
        let told = emit(&serving, &[], kind, &data).is(201).json();
        assert_eq!(told["runs"], json!([]), "{told}");
    }
    // A trigger that fails is told of, and the event stays.
    let told = emit(&serving, &[], "deploy:begun", &json!({ "env": "x", "broken": 1 })).is(201).json();
    assert_eq!(
        (text(&told["errors"][0], "trigger"), text(&told["errors"][0], "code")),
        ("book/strict", "EXPRESSION_FAILED")
    );
    assert_eq!(serving.runs("check").len(), 1);
    let kinds = |pattern: &str| -> Vec<String> {
        project.events(pattern).iter().map(|event| text(event, "type").to_owned()).collect()
    };
    assert_eq!(
        kinds("custom:deploy"),
        ["custom:deploy:done", "custom:deploy:done", "custom:deploy:begun", "custom:deploy:begun"]
    );
    assert_eq!(kinds("custom:deploy:begun").len(), 2);
    let first = &project.events("custom:*")[0];
    assert_eq!((&first["data"], text(first, "by")), (&json!({ "env": "staging" }), "user:tester"));
}

#[test]
fn an_event_with_a_key_is_emitted_once() {
    let mut serving = Serving::new(Project::new(), &[BOOK]);
    let data = json!({ "env": "staging" });
    let keyed = [("idempotency-key", "k1")];
    let first = emit(&serving, &keyed, "deploy:done", &data).is(201).json();
    serving.restart();
    let again = emit(&serving, &keyed, "deploy:done", &data).is(200);
    assert!(again.replayed());
    assert_eq!(again.json(), first);
    emit(&serving, &keyed, "deploy:done", &json!({ "env": "other" })).is(409);
    assert_eq!((serving.project.events("custom:*").len(), serving.runs("check").len()), (1, 1));
}

#[test]
fn a_step_emits_its_event_once_however_often_it_is_tried() {
    let project = Project::with(
        "name: x
triggers: { heard: { on: custom:build:made, vars: { n: '${{ event.n }}' }, pipeline: hear } }
pipelines:
  main:
    vars: { n: { default: 7 } }
    steps:
      - id: both
        retry: { max_attempts: 2, backoff: 1ms }
        steps:
          - { id: tell, emit: { type: build:made, data: { n: '${{ vars.n }}' } } }
          - { id: flaky, run: 'if [ ! -e once ]; then touch once; exit 1; fi' }
  hear: { vars: { n: {} }, steps: [ { run: 'echo \"heard $WL_VAR_N\" >> heard' } ] }
",
    );
    let serving = Serving::new(project, &[]);
    let project = &serving.project;
    project.windlass(&["deploy", "book.yaml"]).code(0);
    let made = serving.post("/v1/runs", &[], br#"{ "pipeline": "main" }"#).is(201).json();
    let run = serving.await_status(text(&made, "id"), "completed");
    assert_eq!(project.await_file("heard"), "heard 7\n");
    let events = project.events("custom:build:made");
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!((&events[0]["pipeline_id"], &events[0]["data"]), (&run["id"], &json!({ "n": 7 })));
    assert_eq!(serving.runs("hear").len(), 1);
    let output = &step(&run, "tell")["output"];
    assert_eq!(
        (text(output, "type"), &output["runs"][0]["id"]),
        ("custom:build:made", &serving.runs("hear")[0]["id"])
    );
}

#[test]
fn an_event_wakes_the_workers_that_listen_to_it() {
    let project = Project::new();
    project.write("open", "[]");
    let book = "name: x
queues: { issues: { external: { list: 'cat open', take: 'true', poll: 1h } } }
workers: { fixer: { queue: issues, pipeline: fix, wake_on: ['custom:door:knock'], vars: { id: '${{ item.id }}' } } }
pipelines: { fix: { vars: { id: {} }, steps: [ { run: 'echo \"$WL_VAR_ID\" >> done' } ] } }
";
    project.write("book.yaml", book);
    let serving = Serving::new(project, &[]);
    let project = &serving.project;
    project.windlass(&["deploy", "book.yaml"]).code(0);
    until("the first list", || Some(project.events("worker:polled")).filter(|polled| !polled.is_empty()));
    project.write("open", r#"[{ "id": "7" }]"#);
    emit(&serving, &[], "door:ring", &Value::Null).is(201);
    project.windlass(&["emit", "door:knock"]).code(0).says("is emitted");
    assert_eq!(project.await_file("done"), "7\n");
}

#[test]
fn an_event_is_heard_in_its_tenant_and_namespace_alone() {
    let serving = Serving::new(Project::new(), &[BOOK]);
    let data = json!({ "env": "staging" });
    for (tenant, namespace) in [("default", "other"), ("acme", "default")] {
        let wish = json!({ "scopes": ["read", "run"], "tenant": tenant, "namespace": namespace }).to_string();
        let token = serving.post("/v1/tokens", &[], wish.as_bytes()).is(201).json();
        let bearer = format!("Bearer {}", text(&token, "token"));
        let told = emit(&serving, &[("authorization", &bearer)], "deploy:done", &data).is(201).json();
        assert_eq!(told["runs"], json!([]), "{tenant}/{namespace}");
    }
    assert!(serving.project.events("custom:*").is_empty(), "what others emit is not shown");
    let wish = json!({ "scopes": ["read"] }).to_string();
    let token = serving.post("/v1/tokens", &[], wish.as_bytes()).is(201).json();
    let bearer = format!("Bearer {}", text(&token, "token"));
    emit(&serving, &[("authorization", &bearer)], "deploy:done", &data).is(403);
}

#[test]
fn events_are_bounded_and_runs_that_make_each_other_end() {
    let book = "name: x
triggers: { again: { on: custom:loop:turn, pipeline: main } }
pipelines: { main: { steps: [ { id: tell, emit: { type: loop:turn } } ] } }
";
    let serving = Serving::new(Project::new(), &[book]);
    let long = "x".repeat(65);
    for kind in
        ["", "a", "a:", ":b", "a:b:c", "custom:a", "a b:c", "ä:b", &format!("{long}:a"), &format!("a:{long}")]
    {
        emit(&serving, &[], kind, &Value::Null).is(400);
    }
    emit(&serving, &[], "a:b", &json!("x".repeat(65 * 1024))).is(413);
    assert!(serving.project.events("custom:*").is_empty());
    emit(&serving, &[], "loop:turn", &Value::Null).is(201);
    let last = until("a run of which no other is made", || {
        let runs = serving.runs("main");
        let shown = |run: &Value| serving.get(&format!("/v1/runs/{}", text(run, "id"))).is(200).json();
        let ended =
            |run: &Value| run["status"] == "completed" && !step(run, "tell")["output"]["errors"].is_null();
        runs.iter().map(shown).find(ended)
    });
    assert_eq!(step(&last, "tell")["output"]["errors"][0]["code"], "CAP_EXCEEDED", "{last}");
    assert_eq!(serving.runs("main").len(), 9);
}

#[test]
fn a_file_with_a_wrong_type_or_pattern_is_refused() {
    for (part, said) in [
        ("pipelines: { main: { steps: [ { emit: { type: nothing } } ] } }", "category:action"),
        (
            "triggers: { t: { on: 'step:failed', pipeline: main } }\npipelines: { main: { steps: [ { run: 'true' } ] } }",
            "custom:category:action",
        ),
        (
            "triggers: { t: { hook: custom, pipeline: main } }\npipelines: { main: { steps: [ { run: 'true' } ] } }",
            "use the key `on`",
        ),
    ] {
        let project = Project::with(&format!("name: x\n{part}\n"));
        project.windlass(&["check", "book.yaml"]).code(2).warns(said);
    }
}

#[test]
fn the_token_of_a_step_emits_for_its_run() {
    let windlass = env!("CARGO_BIN_EXE_windlass");
    let project = Project::with(&format!(
        "name: x\npipelines: {{ main: {{ steps: [ {{ run: '{windlass} --server \"$WL_SERVER\" --token \"$WL_TOKEN\" emit a:b --data 7' }} ] }} }}\n"
    ));
    let serving = Serving::new(project, &[]);
    let project = &serving.project;
    project.windlass(&["deploy", "book.yaml"]).code(0);
    let made = serving.post("/v1/runs", &[], br#"{ "pipeline": "main" }"#).is(201).json();
    serving.await_status(text(&made, "id"), "completed");
    let events = project.events("custom:a:b");
    assert_eq!((events.len(), &events[0]["pipeline_id"], &events[0]["data"]), (1, &made["id"], &json!(7)));
    assert!(text(&events[0], "by").starts_with("executor:"), "{events:?}");
}
