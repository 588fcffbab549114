//! Slack, GitHub, ServiceNow and models: what is sent, how an effect is found again, and how it is taken back.

use super::outside::{Answer, Server, World, say, say_with};
use super::*;

/// A world behind a server, and tools that know it as every service.
fn world() -> (World, Server, Bench) {
    let world = World::default();
    let answers = world.clone();
    let server = Server::start(move |request| answers.answer(request));
    let bench = bench(services(&server));
    (world, server, bench)
}

fn services(server: &Server) -> Settings {
    Settings {
        slack_url: server.url(),
        github_url: server.url(),
        servicenow_url: Some(server.url()),
        openai_url: server.url(),
        anthropic_url: server.url(),
        ..Settings::default()
    }
}

/// The call that takes something back, as an undo makes it.
fn back(bench: &Bench, done: &Success) -> Call {
    let reverse = done.reverse.clone().expect("a way back");
    bench.call(reverse.tool.as_str(), reverse.operation.as_str(), reverse.fields)
}

#[tokio::test]
async fn a_comment_is_found_by_its_mark_and_taken_back() {
    let (world, server, bench) = world();
    let call =
        bench.call("github.comment", "comment", json!({ "repo": "o/r", "number": 5, "body": "Hello" }));
    assert_eq!(bench.tools.probe(&call, &bench.session(), None).await, Seen::Absent);
    let done = bench.perform(&call).await.unwrap();
    assert_eq!(server.seen()[1].header("authorization"), format!("Bearer {TOKEN}"));
    assert!(world.things().comments[0]["body"].as_str().unwrap().starts_with("Hello\n\n<!-- windlass-"));
    let Seen::There(again) = bench.tools.probe(&call, &bench.session(), None).await else { panic!() };
    assert_eq!(again, done, "what is found is what was done");
    let other = Call { key: "run_2/step".into(), ..call.clone() };
    assert_eq!(bench.tools.probe(&other, &bench.session(), None).await, Seen::Absent);
    let back = back(&bench, &done);
    assert_eq!(bench.tools.current(&back, &done.output, &bench.session()).await, Current::Unchanged);
    world.things().comments[0]["body"] = json!("edited");
    let Current::Changed(_) = bench.tools.current(&back, &done.output, &bench.session()).await else {
        panic!()
    };
    bench.perform(&back).await.unwrap();
    bench.perform(&back).await.unwrap();
    assert!(world.things().comments.is_empty());
}

#[tokio::test]
async fn labels_that_stood_there_before_stay_when_it_is_taken_back() {
    let (world, _server, bench) = world();
    world.things().labels = vec!["old".into(), "both".into()];
    let fields = json!({ "repo": "o/r", "number": 5, "add": ["new", "both"], "remove": ["old", "never"] });
    let call = bench.call("github.label", "label", fields);
    let done = bench.perform(&call).await.unwrap();
    assert_eq!(world.things().labels, ["both", "new"]);
    let back = back(&bench, &done);
    assert_eq!(bench.tools.current(&back, &done.output, &bench.session()).await, Current::Unchanged);
    bench.perform(&back).await.unwrap();
    world.things().labels.sort();
    assert_eq!(world.things().labels, ["both", "old"]);
    let Current::Changed(_) = bench.tools.current(&back, &done.output, &bench.session()).await else {
        panic!()
    };
}

#[tokio::test]
async fn a_pull_request_is_found_closed_and_merged() {
    let (world, _server, bench) = world();
    let fields = json!({ "repo": "o/r", "title": "T", "head": "fix", "base": "main" });
    let call = bench.call("github.create_pr", "create_pr", fields);
    assert_eq!(bench.tools.probe(&call, &bench.session(), None).await, Seen::Absent);
    let done = bench.perform(&call).await.unwrap();
    let Seen::There(again) = bench.tools.probe(&call, &bench.session(), None).await else { panic!() };
    assert_eq!(again.output["number"], done.output["number"]);
    let merge = bench.call(
        "github.merge",
        "merge",
        json!({ "repo": "o/r", "number": done.output["number"], "sha": "abc" }),
    );
    assert_eq!(bench.tools.probe(&merge, &bench.session(), None).await, Seen::Absent);
    bench.perform(&merge).await.unwrap();
    assert!(matches!(bench.tools.probe(&merge, &bench.session(), None).await, Seen::There(_)));
    let back = back(&bench, &done);
    let Current::Changed(why) = bench.tools.current(&back, &done.output, &bench.session()).await else {
        panic!()
    };
    assert!(why.contains("merged"));
    world.things().pulls[0]["merged"] = json!(false);
    bench.perform(&back).await.unwrap();
    assert_eq!(world.things().pulls[0]["state"], "closed");
}

#[tokio::test]
async fn nothing_in_a_field_leads_to_another_address() {
    let (_world, server, bench) = world();
    for repo in ["o", "o/r/../x", "../..", "o/..", "o/r?x", "o/r#", "o r/x"] {
        let call = bench.call("github.comment", "comment", json!({ "repo": repo, "number": 1, "body": "x" }));
        assert_eq!(bench.perform(&call).await.unwrap_err().code, Code::InvalidInput, "{repo}");
    }
    for (table, id) in [("incident/../x", "1"), ("incident", "../x"), ("incident", "a?b"), ("", "1")] {
        let call = bench.call("servicenow.delete", "delete", json!({ "table": table, "sys_id": id }));
        assert_eq!(bench.perform(&call).await.unwrap_err().code, Code::InvalidInput, "{table} {id}");
    }
    assert_eq!(server.seen().len(), 0);
    let call = bench.call(
        "github.label",
        "label",
        json!({ "repo": "o/r", "number": 1, "remove": "../../comments/1" }),
    );
    bench.perform(&call).await.unwrap();
    assert_eq!(
        server.seen()[1].path,
        "/repos/o/r/issues/1/labels/../../comments/1",
        "it came as one escaped part"
    );
}

#[tokio::test]
async fn github_asks_for_patience_with_a_403() {
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap();
    let server = Server::start(move |request| match request.header("authorization").len() {
        0 => say(401, &json!({})),
        _ if request.path.contains("limited") => Answer::Say(
            403,
            vec![
                ("x-ratelimit-remaining".into(), "0".into()),
                ("x-ratelimit-reset".into(), (now + 100).to_string()),
            ],
            b"{}".to_vec(),
        ),
        _ if request.path.contains("second") => say_with(403, "retry-after", "30", &json!({})),
        _ => say(403, &json!({ "message": "Resource not accessible" })),
    });
    let bench = bench(services(&server));
    let of = |repo: &str| {
        bench.call("github.status", "status", json!({ "repo": repo, "sha": "abc", "state": "success" }))
    };
    let trouble = bench.perform(&of("o/limited")).await.unwrap_err();
    assert!(matches!(trouble.again, Again::After(wait) if wait.as_secs() > 60), "{trouble:?}");
    let trouble = bench.perform(&of("o/second")).await.unwrap_err();
    assert_eq!((trouble.again, trouble.happened), (Again::After(Duration::from_secs(30)), Happened::No));
    assert_eq!(bench.perform(&of("o/r")).await.unwrap_err().again, Again::Never);
}

#[tokio::test]
async fn a_record_is_created_once_updated_and_put_back() {
    let (world, _server, bench) = world();
    let fields = json!({ "table": "incident", "fields": { "short_description": "down" } });
    let create = bench.call("servicenow.create", "create", fields);
    assert_eq!(bench.tools.probe(&create, &bench.session(), None).await, Seen::Absent);
    let made = bench.perform(&create).await.unwrap();
    let Seen::There(again) = bench.tools.probe(&create, &bench.session(), None).await else { panic!() };
    assert_eq!(again, made);
    let id = made.output["sys_id"].as_str().unwrap().to_owned();
    let key = ("incident".to_owned(), id.clone());
    world.things().records.get_mut(&key).unwrap()["state"] = json!("1");
    let update =
        json!({ "table": "incident", "sys_id": id, "fields": { "state": "6", "close_notes": "done" } });
    let update = bench.call("servicenow.update", "update", update);
    let done = bench.perform(&update).await.unwrap();
    let undo = back(&bench, &done);
    assert_eq!(undo.fields["fields"], json!({ "state": "1", "close_notes": "" }));
    assert_eq!(bench.tools.current(&undo, &done.output, &bench.session()).await, Current::Unchanged);
    // A second try that finds its own values there knows nothing of what was before.
    let second = bench.perform(&Call { attempt: 2, ..update.clone() }).await.unwrap();
    assert_eq!(second.reverse, None);
    world.things().records.get_mut(&key).unwrap()["state"] = json!("7");
    let Current::Changed(why) = bench.tools.current(&undo, &done.output, &bench.session()).await else {
        panic!()
    };
    assert!(why.contains("state"));
    bench.perform(&undo).await.unwrap();
    assert_eq!(world.things().records[&key]["state"], "1");
    let assign = bench.call(
        "servicenow.assign",
        "assign",
        json!({ "table": "incident", "sys_id": id, "group": "g1" }),
    );
    bench.perform(&assign).await.unwrap();
    assert_eq!(world.things().records[&key]["assignment_group"], "g1");
    let got = bench.call("servicenow.get", "get", json!({ "table": "incident", "sys_id": id }));
    assert_eq!(bench.perform(&got).await.unwrap().output["record"]["state"], "1");
    let gone = back(&bench, &made);
    let Current::Changed(_) = bench.tools.current(&gone, &made.output, &bench.session()).await else {
        panic!()
    };
    bench.perform(&gone).await.unwrap();
    bench.perform(&gone).await.unwrap();
    assert!(world.things().records.is_empty());
}

#[tokio::test]
async fn a_note_is_found_in_the_journal() {
    let (world, _server, bench) = world();
    world.things().records.insert(("incident".into(), "a1".into()), json!({}));
    let call = bench.call(
        "servicenow.work_note",
        "work_note",
        json!({ "table": "incident", "sys_id": "a1", "text": "Looked" }),
    );
    assert_eq!(bench.tools.probe(&call, &bench.session(), None).await, Seen::Absent);
    bench.perform(&call).await.unwrap();
    assert!(matches!(bench.tools.probe(&call, &bench.session(), None).await, Seen::There(_)));
    let other = Call { key: "other".into(), ..call };
    assert_eq!(bench.tools.probe(&other, &bench.session(), None).await, Seen::Absent);
}

#[tokio::test]
async fn a_message_is_found_changed_and_deleted() {
    let (world, _server, bench) = world();
    let call = bench.call("slack.post", "post", json!({ "channel": "#oncall", "text": "Hello" }));
    assert_eq!(bench.tools.probe(&call, &bench.session(), None).await, Seen::Absent);
    let done = bench.perform(&call).await.unwrap();
    assert!(matches!(bench.tools.probe(&call, &bench.session(), None).await, Seen::There(_)));
    let ts = done.output["ts"].clone();
    let update = bench.call("slack.update", "update", json!({ "channel": "C1", "ts": ts, "text": "Bye" }));
    let updated = bench.perform(&update).await.unwrap();
    assert_eq!(world.things().messages[0]["text"], "Bye");
    let undo = back(&bench, &updated);
    assert_eq!(bench.tools.current(&undo, &updated.output, &bench.session()).await, Current::Unchanged);
    bench.perform(&undo).await.unwrap();
    assert_eq!(world.things().messages[0]["text"], "Hello");
    let gone = back(&bench, &done);
    assert_eq!(bench.tools.current(&gone, &done.output, &bench.session()).await, Current::Unchanged);
    bench.perform(&gone).await.unwrap();
    bench.perform(&gone).await.unwrap();
    assert!(world.things().messages.is_empty());
}

#[tokio::test]
async fn slack_refuses_with_a_status_of_success() {
    let server = Server::start(|request| match request.json()["channel"].as_str() {
        Some("busy") => say_with(200, "retry-after", "5", &json!({ "ok": false, "error": "ratelimited" })),
        Some("many") => say_with(429, "retry-after", "7", &json!({ "ok": false, "error": "ratelimited" })),
        _ => say(200, &json!({ "ok": false, "error": "channel_not_found" })),
    });
    let bench = bench(services(&server));
    let to = |channel: &str| bench.call("slack.post", "post", json!({ "channel": channel, "text": "x" }));
    let trouble = bench.perform(&to("none")).await.unwrap_err();
    assert_eq!((trouble.again, trouble.happened), (Again::Never, Happened::No));
    assert_eq!(bench.perform(&to("busy")).await.unwrap_err().again, Again::After(Duration::from_secs(5)));
    assert_eq!(bench.perform(&to("many")).await.unwrap_err().again, Again::After(Duration::from_secs(7)));
}

#[tokio::test]
async fn models_are_asked_as_they_like_it_and_tell_what_they_cost() {
    let server = Server::start(|request| match request.path.as_str() {
        "/chat/completions" => say(
            200,
            &json!({ "choices": [{ "message": { "content": "disk" }, "finish_reason": "stop" }],
                "usage": { "prompt_tokens": 1000, "completion_tokens": 10 } }),
        ),
        "/messages" => say(
            200,
            &json!({ "content": [{ "type": "text", "text": "di" }, { "type": "text", "text": "sk" }], "stop_reason": "end_turn",
                "usage": { "input_tokens": 2000, "output_tokens": 20 } }),
        ),
        _ => say(404, &json!({})),
    });
    let mut settings = services(&server);
    settings.prices.insert("m".into(), settings::Price { input: 3_000_000, output: 15_000_000 });
    settings.model = Some(("anthropic".into(), "m".into()));
    let bench = bench(settings);
    let fields =
        json!({ "prompt": "Cause?", "system": "Short.", "data": ["a", { "b": 1 }], "max_tokens": 50 });
    let done = bench.perform(&bench.call("model", "complete", fields.clone())).await.unwrap();
    assert_eq!(done.output["text"], "disk");
    assert_eq!(done.output["usage"], json!({ "input_tokens": 2000, "output_tokens": 20 }));
    let cost = &done.costs[0];
    assert_eq!((cost.provider.as_str(), cost.total.usd_micros), ("anthropic", 6_000 + 300));
    let seen = &server.seen()[0];
    assert_eq!((seen.header("x-api-key"), seen.header("anthropic-version")), (TOKEN, "2023-06-01"));
    assert_eq!((&seen.json()["max_tokens"], &seen.json()["system"]), (&json!(50), &json!("Short.")));
    let mut fields = fields;
    fields["provider"] = json!("openai");
    let done = bench.perform(&bench.call("model", "complete", fields)).await.unwrap();
    assert_eq!((&done.output["text"], done.costs[0].total.tokens_input), (&json!("disk"), 1000));
    let sent = server.seen()[1].json();
    assert_eq!((&sent["messages"][0]["role"], &sent["model"]), (&json!("system"), &json!("m")));
    let nobody = bench.call("model", "complete", json!({ "prompt": "x", "provider": "acme" }));
    assert_eq!(bench.perform(&nobody).await.unwrap_err().code, Code::InvalidInput);
}
