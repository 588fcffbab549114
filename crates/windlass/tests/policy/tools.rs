//! Every tool under every answer of policy, one execution each: what happens is what was allowed, and nothing else happens.
//!
//! The tools are those of the code: one without a row here fails the test.

use crate::ALL;
use crate::matrix::Executions;
use crate::outside::{Request, Server, World, say};
use crate::support::{Project, text};
use serde_json::{Value, json};
use windlass_runbook::tools::{TOOLS, Writes};

/// How a tool is called here.
enum Row {
    /// It speaks to the other side, or starts a command that leaves a trace.
    Outside(&'static str),
    /// It acts in the process alone: what is seen of it is that its step came to its end.
    Inside(&'static str),
    /// It is not carried out in this version: a step that calls it ends without having done anything.
    Later(&'static str),
}

fn row(tool: &str) -> Row {
    use Row::{Inside, Later, Outside};
    match tool {
        "http" => Outside("{ url: 'URL/plain', method: POST, json: { a: 1 } }"),
        "slack.post" => Outside("{ channel: C1, text: hi }"),
        "slack.update" => Outside("{ channel: C1, ts: '1.000100', text: hi }"),
        "slack.delete" => Outside("{ channel: C1, ts: '1.000100' }"),
        "github.comment" => Outside("{ repo: o/r, number: 1, body: hi }"),
        "github.label" => Outside("{ repo: o/r, number: 1, add: bug }"),
        "github.status" => Outside("{ repo: o/r, sha: abc, state: success }"),
        "github.create_pr" => Outside("{ repo: o/r, title: t, head: h, base: main }"),
        "github.merge" => Outside("{ repo: o/r, number: 1 }"),
        "github.delete_comment" => Outside("{ repo: o/r, comment_id: 1 }"),
        "github.close_pr" => Outside("{ repo: o/r, number: 1 }"),
        "servicenow.get" => Outside("{ table: incident, sys_id: RECORD }"),
        "servicenow.create" => Outside("{ table: incident, fields: { a: '1' } }"),
        "servicenow.update" => Outside("{ table: incident, sys_id: RECORD, fields: { state: done } }"),
        "servicenow.assign" => Outside("{ table: incident, sys_id: RECORD, user: ann }"),
        "servicenow.work_note" => Outside("{ table: incident, sys_id: RECORD, text: hi }"),
        "servicenow.delete" => Outside("{ table: incident, sys_id: RECORD }"),
        "model" => Outside("{ prompt: hi }"),
        "transform" => Inside("{ value: 1 }"),
        "emit" => Inside("{ type: 'a:b', data: 1 }"),
        "git.status" | "git.log" | "git.diff" | "git.add" | "git.push" | "git.fetch" => Later("{}"),
        "git.commit" => Later("{ message: hi }"),
        "git.branch" => Later("{ name: b }"),
        "git.checkout" => Later("{ ref: main }"),
        "git.merge" => Later("{ into: main }"),
        "git.rebase" => Later("{ onto: main }"),
        "git.worktree" => Later("{ path: ../there }"),
        DESCRIBED => Outside("{ service: db }"),
        other => {
            panic!("the tool `{other}` has no row: say how it is called, so that policy's answers are tried")
        }
    }
}

/// A tool that a file describes.
const DESCRIBED: &str = "pager.page";
const RECORD: &str = "0123456789abcdef0123456789abcdef";

struct Scene {
    project: Project,
    server: Server,
}

/// What policy may answer, as the word on record and the rules beside the one that allows everything.
const ANSWERS: [(&str, &str); 4] = [
    ("allow", ""),
    ("deny", "@id(\"no\") @reason(\"no\")\nforbid (principal, action, resource);\n"),
    (
        "needs_approval",
        "@id(\"ask\") @reason(\"ask\") @approval(\"count: 1\")
         forbid (principal, action, resource) unless { context.approvals >= 1 };\n",
    ),
    ("deny", "this is no policy\n"),
];

fn scene(tool: &str, with: &str, rules: &str) -> Scene {
    let world = World::default();
    let record = json!({ "state": "new", "sys_mod_count": "0" });
    world.things().records.insert(("incident".into(), RECORD.into()), record);
    let answers = world.clone();
    let server = Server::start(move |request: &Request| match request.path.as_str() {
        "/plain" => say(200, &json!({ "ok": true })),
        "/messages" => say(
            200,
            &json!({ "content": [{ "type": "text", "text": "hi" }], "stop_reason": "end_turn",
                "usage": { "input_tokens": 1, "output_tokens": 1 } }),
        ),
        _ => answers.answer(request),
    });
    let with = with.replace("URL", &server.url()).replace("RECORD", RECORD);
    let book = format!("name: book\npipelines:\n  p:\n    steps:\n      - id: a\n        {tool}: {with}\n");
    let mut project = Project::with(&book).env("WINDLASS_HTTP_ALLOW_PRIVATE", "127.0.0.1");
    for url in
        ["WINDLASS_SERVICENOW_URL", "WINDLASS_SLACK_API_URL", "WINDLASS_GITHUB_API_URL", "ANTHROPIC_BASE_URL"]
    {
        project = project.env(url, &server.url());
    }
    for secret in ["SERVICENOW_TOKEN", "SLACK_BOT_TOKEN", "GITHUB_TOKEN", "ANTHROPIC_API_KEY"] {
        project = project.env(&format!("WINDLASS_SECRET_{secret}"), "tok-1234567890");
    }
    // Whoever starts git leaves a trace.
    let path = format!("{}:{}", project.path("bin").display(), std::env::var("PATH").unwrap_or_default());
    project = project.env("PATH", &path);
    project.script("bin/git", &format!("echo git >> {}\n", project.path("trace").display()));
    project.script("tools/page", "echo page >> ../trace\necho '{\"ok\": true, \"output\": 1}'\n");
    let file = format!(
        "name: {DESCRIBED}\ncommand: ./page\ntarget: [service]\nfields:\n  service: {{ type: string, required: true }}\n"
    );
    project.write("tools/pager.yaml", file);
    project.write("windlass.yaml", "tools: ./tools\nmodels: { provider: anthropic, default: m }\n");
    project.write(
        "policy/a.cedar",
        if rules.starts_with("this") { rules.to_owned() } else { format!("{ALL}{rules}") },
    );
    Scene { project, server }
}

#[test]
fn every_tool_acts_with_an_allow_of_its_own_and_not_without() {
    let all = TOOLS.iter().map(|tool| (tool.name, tool.writes)).chain([(DESCRIBED, Writes::Yes)]);
    for (tool, writes) in all {
        let row = row(tool);
        let (Row::Outside(with) | Row::Inside(with) | Row::Later(with)) = row;
        // What no answer lets act is tried with the one that lets everything act.
        let answers = if matches!(row, Row::Later(_)) { &ANSWERS[..1] } else { &ANSWERS };
        for (verdict, rules) in answers {
            let about = || format!("{tool} under `{verdict}` {rules}");
            let Scene { project, server } = scene(tool, with, rules);
            project.windlass(&["run", "book.yaml", "p", "--no-wait", "--json"]);
            let events = project.windlass(&["events"]).code(0).lines();
            let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
            let acted = project.read("trace").lines().count() + server.seen().len();
            let ended = of("step:completed");
            let emitted = events.iter().filter(|event| text(event, "type").starts_with("custom:")).count();
            let decided: Vec<&Value> =
                events.iter().filter(|event| event["type"] == "policy:decided").collect();
            if matches!(row, Row::Later(_)) {
                assert_eq!((acted, ended), (0, 0), "{}", about());
                continue;
            }
            assert_eq!(decided.len(), 1, "{}: {decided:?}", about());
            let of_it = |event: &Value| {
                event["tool"] == tool && event["step"] == "a" && event["action_hash"].is_string()
            };
            assert!(decided[0]["verdict"] == *verdict && of_it(decided[0]), "{}: {decided:?}", about());
            if *verdict != "allow" {
                assert_eq!((acted, ended, emitted, of("step:started")), (0, 0, 0, 0), "{}", about());
                continue;
            }
            assert_eq!(of("step:started"), 1, "{}", about());
            match row {
                Row::Outside(_) => {
                    assert_eq!(Executions::of(&events).attempts, 1, "{}", about());
                    assert!(acted > 0, "{} does not happen at all", about());
                    let changed = server.seen().iter().filter(|request| request.method != "GET").count();
                    assert!(writes == Writes::No || changed <= 1, "{} changed {changed} things", about());
                }
                Row::Inside(_) | Row::Later(_) => {
                    assert_eq!((acted, ended, emitted), (0, 1, usize::from(tool == "emit")), "{}", about());
                }
            }
        }
    }
}
