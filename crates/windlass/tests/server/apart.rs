//! Where a step is kept apart: as soon as anybody but the owner can act, at remote executors, and from other steps.

use crate::http::Server;
use crate::support::{Process, Project, text, until};
use crate::wall::{besieged_in, run_in, tried_by};
use serde_json::{Value, json};

/// Waits for the end of a run, as the owner sees it.
fn ended(server: &Server, run: &str) -> Value {
    until("the end of the run", || {
        let run = server.ask("GET", &format!("/v1/runs/{run}"), Some(&server.owner()), None).json();
        ["completed", "failed"].contains(&text(&run, "status")).then_some(run)
    })
}

#[test]
fn people_in_slack_and_senders_of_hooks_are_others_without_any_token() {
    let hook = "{ header: X-Sig, delivery: body, secrets: HOOK }";
    for config in [
        "slack: { users: { U1: ann } }\n".to_owned(),
        "github: { secrets: HOOK }\n".to_owned(),
        format!("hooks: {{ servicenow: {hook} }}\n"),
        "tenants: { acme: { github: { secrets: HOOK } } }\n".to_owned(),
    ] {
        let project = Project::new();
        project.write("windlass.yaml", &config);
        let (server, data) = besieged_in(project, &["--apart"]);
        // Only the owner has a credential.
        let (reached, run) = tried_by(&server, &data, &server.owner(), ("owner", "run_none"), &json!({}));
        assert_eq!((text(&run, "status"), reached.as_str()), ("completed", "tried\n"), "{config} {run}");
        assert_eq!(server.project.events("shell:exited")[0]["wall"], "sandbox");
    }
}

#[test]
fn who_asked_does_not_approve_where_people_in_slack_decide_unless_the_configuration_says_so() {
    for (config, status) in [
        ("{}\n", 200),
        ("slack: { users: { U1: ann } }\n", 403),
        ("slack: { users: { U1: ann } }\napprovals: { self: allow }\n", 200),
    ] {
        let project = Project::new();
        project.write("windlass.yaml", config);
        let server = Server::start_with(project, &[]);
        let step = json!({ "id": "ask", "approve": { "message": "go?" } });
        let book = json!({ "name": "asks", "pipelines": { "main": { "steps": [step] } } }).to_string();
        let (owner, kind) = (server.owner(), [("content-type", "application/yaml")]);
        server.send("POST", "/v1/runbooks", Some(&owner), &kind, book.as_bytes()).status(201);
        server.ask("POST", "/v1/runs", Some(&owner), Some(&json!({ "pipeline": "main" }))).status(201);
        let approval = until("the approval", || {
            let list = server.ask("GET", "/v1/approvals", Some(&owner), None).items();
            list.first().cloned()
        });
        let path = format!("/v1/approvals/{}/decision", text(&approval, "id"));
        let body = json!({ "decision": "approved", "action_hash": approval["action_hash"] });
        let answer = server.ask("POST", &path, Some(&owner), Some(&body));
        assert_eq!(answer.status, status, "{config} {}", answer.text());
    }
}

/// An executor on the server's own machine, as the server's own user, with its token as a word or in the environment.
fn executor(server: &Server, scratch: &str, words: &[&str], token: Option<&str>) -> Process {
    let mut all =
        vec!["executor", "--server", &server.url, "--labels", "gpu", "--name", "e", "--scratch", scratch];
    all.extend(token.iter().flat_map(|token| ["--token", token]));
    all.extend(words);
    let mut process = server.project.command(&all);
    process.env("WINDLASS_SECRET_own", "the-executors-own-secret");
    Process::spawn(process, &all)
}

/// Nothing of server and executor is reached from a step that an executor runs, and such steps can do their work.
fn holds_at_an_executor(words: &[&str], wall: &str) {
    let (server, data) = besieged_in(Project::new(), &["--apart"]);
    let other = run_in(&server, "work");
    let made = server.token(&json!({ "scopes": ["execute"], "service": true, "name": "e" }));
    let scratch = server.project.path("scratch").display().to_string();
    let executor = executor(&server, &scratch, words, Some(text(&made, "token")));
    until("its keeper", || server.project.has("scratch/keeper.lock").then_some(()));
    let targets = json!({
        "runs_on": "gpu",
        "env": { "EXECUTOR": executor.id().to_string(), "SCRATCH": scratch },
    });
    let bearer = server.of("default", "default");
    let (reached, run) = tried_by(&server, &data, &bearer, ("far", &other), &targets);
    assert_eq!((text(&run, "status"), reached.as_str()), ("completed", "tried\n"), "{run}");
    let started = server.project.events("step:started");
    assert!(text(started.last().unwrap(), "lease_owner").starts_with("e@"), "{started:?}");
    assert_eq!(run["steps"][0]["output"], json!({ "got": "it" }), "{run}");
    assert!(!server.project.has("scratch/planted"));
    let exits = server.project.events("shell:exited");
    assert_eq!(exits.last().unwrap()["wall"], wall, "{exits:?}");
}

#[test]
fn in_the_sandbox_of_an_executor_a_step_reaches_nothing_of_it_or_its_server() {
    holds_at_an_executor(&[], "sandbox");
}

/// As the example in its help starts it: in a directory of its own, with nothing in or above it that is Windlass's.
#[test]
fn an_executor_in_an_empty_directory_carries_out_steps_there() {
    let (server, _) = besieged_in(Project::new(), &["--apart"]);
    let made = server.token(&json!({ "scopes": ["execute"], "service": true, "name": "e" }));
    let far = Project::new();
    far.write("work/x", "");
    let start = |words: &[&str]| {
        let all = [&["executor", "--server", &server.url, "--labels", "gpu"], words].concat();
        let mut command = far.command(&all);
        command.current_dir(far.path("work"));
        command.env("WINDLASS_TOKEN", text(&made, "token")).env_remove("WINDLASS_DATA");
        Process::spawn(command, &all)
    };
    let scratch = server.project.path("scratch").display().to_string();
    let executor = start(&["--scratch", &scratch]);
    let step = json!({ "id": "s", "run": "echo '{}' > windlass.yaml", "runs_on": "gpu" });
    let book = json!({ "name": "far", "pipelines": { "main": { "steps": [step] } } }).to_string();
    let (owner, kind) = (server.owner(), [("content-type", "application/yaml")]);
    server.send("POST", "/v1/runbooks", Some(&owner), &kind, book.as_bytes()).status(201);
    let made = server.ask("POST", "/v1/runs", Some(&owner), Some(&json!({ "pipeline": "main" })));
    let run = ended(&server, text(&made.status(201).json(), "id"));
    assert_eq!(text(&run, "status"), "completed", "{run}");
    executor.signal(rustix::process::Signal::TERM);
    executor.wait().code(0);
    // What a step left there is not the next start's configuration.
    assert!(far.has("work/windlass.yaml"));
    start(&["--scratch", &scratch]).wait().code(7).warns("a step may have written");
}

#[test]
fn as_another_user_at_an_executor_a_step_reaches_nothing_of_it_or_its_server() {
    if crate::wall::can_be_others() {
        holds_at_an_executor(&["--run-as", "nobody"], "user nobody");
    }
}

#[test]
fn an_executor_that_keeps_no_step_apart_says_so_and_its_steps_are_not_the_owner_at_the_socket() {
    let (server, data) = besieged_in(Project::new(), &["--apart"]);
    let bearer = server.of("default", "default");
    // It comes with the owner's credential, as nobody gave it a token.
    let scratch = server.project.path("scratch").display().to_string();
    let executor = executor(&server, &scratch, &["--shared-user"], None);
    let tries = "( ./windlass --data \"$DATA\" token list ) > /dev/null 2>&1 && echo socket
        ( cat \"$DATA/credential.json\" ) > /dev/null && echo credential
        (setsid env -i PATH=\"$PATH\" DATA=\"$DATA\" bash -c './windlass --data \"$DATA\" token list > left 2>&1; echo $? > left.code' &)
        until test -s left.code; do sleep 0.05; done";
    server.project.script("work/try", &format!("set +e\n{tries}\n"));
    let more = json!({ "runs_on": "gpu" });
    let (reached, run) = tried_by(&server, &data, &bearer, ("far", "run_none"), &more);
    assert_eq!((text(&run, "status"), reached.as_str()), ("completed", "credential\n"), "{run}");
    assert_eq!(server.project.read("work/left.code"), "7\n", "{}", server.project.read("work/left"));
    assert_eq!(server.project.events("shell:exited").last().unwrap()["wall"], "none");
    executor.signal(rustix::process::Signal::TERM);
    executor.wait().code(0).warns("--shared-user: steps run as");
}

#[test]
fn steps_reach_nothing_of_each_other() {
    let ways: &[(&[&str], &str)] = &[(&["--apart"], "sandbox"), (&["--run-as", "nobody"], "user nobody")];
    for (words, wall) in ways.iter().take(if crate::wall::can_be_others() { 2 } else { 1 }) {
        let (server, _) = besieged_in(Project::new(), words);
        server.of("default", "default");
        let victim = "echo $$ > victim; until test -s tried; do sleep 0.05; done";
        let attacker = "until test -s victim; do sleep 0.05; done
            set +e
            { kill -0 \"$(cat victim)\" && echo signal
              cat \"/proc/$(cat victim)/environ\" && echo environment
              head -c 1 \"/proc/$(cat victim)/mem\" && echo memory
              ls -l \"/proc/$(cat victim)/cwd/\" && echo cwd
              echo end; } > said 2> /dev/null
            mv said tried";
        let step = |id: &str, run: &str| json!({ "id": id, "run": run, "dir": "work", "timeout": "60s" });
        let steps = json!([{ "parallel": [step("v", victim), step("a", attacker)] }]);
        let book = json!({ "name": "two", "pipelines": { "main": { "steps": steps } } }).to_string();
        let (owner, kind) = (server.owner(), [("content-type", "application/yaml")]);
        server.send("POST", "/v1/runbooks", Some(&owner), &kind, book.as_bytes()).status(201);
        let made = server.ask("POST", "/v1/runs", Some(&owner), Some(&json!({ "pipeline": "main" })));
        let run = ended(&server, text(&made.status(201).json(), "id"));
        assert_eq!(text(&run, "status"), "completed", "{run}");
        assert_eq!(server.project.read("work/tried"), "end\n", "{wall}");
    }
}

#[test]
fn a_step_works_neither_where_the_next_start_looks_for_settings_nor_where_the_system_starts_from() {
    let project = Project::new();
    project.write("work/x", "");
    project.write("policies/a.cedar", "permit(principal, action, resource);\n");
    project.write("named.yaml", "{}\n");
    let serve = |words: &[&str]| {
        let words = [&["serve", "--listen", "127.0.0.1:0", "--json"], words].concat();
        let mut command = project.command(&words);
        // The data directory is elsewhere, and nothing that could be read at the next start is here yet.
        command.current_dir(project.path("work"));
        let mut process = Process::spawn(command, &words);
        process.await_line("\"serving\"");
        process
    };
    let run = |dir: &str| {
        let step = json!({ "id": "s", "run": "touch windlass.yaml", "dir": dir });
        let book = json!({ "name": "plants", "pipelines": { "main": { "steps": [step] } } });
        project.write("book.yaml", book.to_string());
        let done = project.windlass(&["run", "book.yaml", "--json"]);
        (done.status.code(), done.out)
    };
    let work = project.path("work").display().to_string();
    let mut server = serve(&[]);
    project.windlass(&["token", "create", "--scopes", "run", "--name", "ann"]).code(0);
    for dir in [work.as_str(), "/etc", "/usr/local/bin"] {
        let (code, out) = run(dir);
        assert_eq!(code, Some(1), "{dir}: {out}");
        assert!(out.contains("FORBIDDEN") && out.contains("another `dir:`"), "{dir}: {out}");
    }
    assert!(!project.has("work/windlass.yaml"));
    assert!(!server.has_ended());
    server.signal(rustix::process::Signal::TERM);
    server.wait().code(0);
    let (config, policies) = (project.path("named.yaml"), project.path("policies"));
    let _server = serve(&["--config", config.to_str().unwrap(), "--policy", policies.to_str().unwrap()]);
    let (code, out) = run(&work);
    assert_eq!(code, Some(0), "{out}");
}
