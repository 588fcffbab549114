//! The executor's own program against a server: what it runs, and what becomes of it when one of the two goes.

use crate::server::{How, Server};
use crate::support::{Process, Project, is_alive, until};
use rustix::process::Signal;
use serde_json::{Value, json};

pub(crate) fn executor(project: &Project, server: &str, name: &str) -> Process {
    let scratch = project.path(name);
    let scratch = scratch.to_str().unwrap();
    // What keeps steps apart from it has tests of its own.
    let words = ["--labels", "gpu", "--name", name, "--scratch", scratch, "--shared-user"];
    project.start(&[&["executor", "--server", server], &words[..]].concat())
}

pub(crate) fn server(project: &Project, how: How) -> Server {
    Server::start(&project.path("server"), how)
}

#[test]
fn it_carries_out_steps_and_sends_what_they_write_without_secrets() {
    let project = Project::new().env("WINDLASS_SECRET_api", "tell-nobody-7");
    let server = server(&project, How::default());
    let client = server.client();
    let _executor = executor(&project, &server.url(), "e1");
    let yaml = "
name: work
pipelines:
  p:
    vars: { who: { default: ann } }
    steps:
      - id: train
        runs_on: [gpu]
        env: { KEY: '${{ secrets.api }}' }
        outputs: { loss: number }
        run: |
          echo \"hello $WL_VAR_WHO from attempt $WL_ATTEMPT epoch $WL_EPOCH\"
          echo \"the key is $KEY\" >&2
          pwd
          test -n \"$WL_TOKEN\" -a -n \"$WL_SERVER\" -a -n \"$WL_IDEMPOTENCY_KEY\"
          env | grep -c WINDLASS_ || true
          echo '{\"loss\": 0.25}' > \"$WL_OUTPUT\"
      - { id: after, run: 'true' }
";
    let run = client.run(yaml);
    let ended = client.until(&run, "completed");
    assert_eq!(ended["steps"][0]["output"], json!({ "loss": 0.25 }));
    let logs = client.logs(&run);
    assert!(logs.contains("hello ann from attempt 1 epoch 1\n"), "{logs}");
    assert!(logs.contains("the key is ") && !logs.contains("tell-nobody-7"), "{logs}");
    assert!(
        logs.contains(project.root().file_name().unwrap().to_str().unwrap()),
        "its own directory: {logs}"
    );
    assert!(logs.lines().any(|line| line == "0"), "a step sees no WINDLASS_ variable: {logs}");
    let records = client.records(&run);
    assert!(records.iter().all(|record| !record.to_string().contains("tell-nobody-7")));
    // That it was used is on record before it was.
    let at = |tag: &str| records.iter().position(|record| record["type"] == tag).unwrap();
    let used = &records[at("secret:used")];
    assert_eq!((&used["secret"], &used["step"]), (&json!("api"), &json!("train")));
    assert!(at("step:started") < at("secret:used") && at("secret:used") < at("shell:exited"));
}

#[test]
fn a_failure_comes_with_its_last_words() {
    let project = Project::new();
    let server = server(&project, How::default());
    let client = server.client();
    let _executor = executor(&project, &server.url(), "e1");
    let yaml = "
name: fails
pipelines:
  p:
    steps:
      - { id: train, runs_on: [gpu], run: 'echo out of memory >&2; exit 3' }
";
    let ended = client.run(yaml);
    let ended = client.until(&ended, "failed");
    let message = ended["steps"][0]["error"]["message"].as_str().unwrap();
    assert!(message.contains("exit code 3") && message.contains("out of memory"), "{message}");
}

/// A step that says that it runs, and then waits to be ended.
const WAITS: &str = "
name: waits
pipelines:
  p:
    steps:
      - { id: train, runs_on: [gpu], run: 'echo $$ >> pids; echo $WL_EPOCH >> epochs; exec sleep 600' }
";

#[test]
fn a_cancel_ends_the_tree_on_the_other_machine() {
    let project = Project::new();
    let server = server(&project, How::default());
    let client = server.client();
    let _executor = executor(&project, &server.url(), "e1");
    let run = client.run(WAITS);
    let pid = project.await_file("pids");
    client.post(&format!("/v1/runs/{run}/cancel"), &json!({}));
    client.until(&run, "cancelled");
    assert!(!is_alive(&pid), "the process is gone before the run is over");
}

#[test]
fn a_killed_executors_step_is_given_to_another_and_never_runs_beside_itself() {
    let project = Project::new();
    let server = server(&project, How { ttl_ms: 1_500, ..How::default() });
    let client = server.client();
    let first = executor(&project, &server.url(), "e1");
    let run = client.run(WAITS);
    let pid = project.await_file("pids");
    first.kill();
    // Its keeper ends the tree although nobody is there to tell it.
    until("the tree to be gone", || (!is_alive(&pid)).then_some(()));
    let _second = executor(&project, &server.url(), "e2");
    until("the second attempt", || project.read("epochs").contains("2\n").then_some(()));
    let shown = client.show(&run);
    assert_eq!((&shown["steps"][0]["epoch"], &shown["steps"][0]["lease_owner"]), (&json!(2), &json!("e2")));
    assert!(client.types(&run).contains(&"step:expired".to_owned()));
    client.post(&format!("/v1/runs/{run}/cancel"), &json!({}));
    client.until(&run, "cancelled");
}

#[test]
fn a_stopped_executor_hands_back_at_once() {
    let project = Project::new();
    // Nothing runs out here: only a hand-back explains a second attempt.
    let server = server(&project, How::default());
    let client = server.client();
    let first = executor(&project, &server.url(), "e1");
    let run = client.run(WAITS);
    let pid = project.await_file("pids");
    first.signal(Signal::TERM);
    first.wait().code(0).warns("every attempt was returned");
    assert!(!is_alive(&pid));
    let _second = executor(&project, &server.url(), "e2");
    until("the second attempt", || project.read("epochs").contains("2\n").then_some(()));
    client.post(&format!("/v1/runs/{run}/cancel"), &json!({}));
    client.until(&run, "cancelled");
    assert!(client.types(&run).contains(&"step:returned".to_owned()), "{:?}", client.types(&run));
}

#[test]
fn an_attempt_goes_on_while_the_server_restarts_and_is_reported_to_the_next() {
    let project = Project::new();
    let server = server(&project, How { ttl_ms: 20_000, ..How::default() });
    let client = server.client();
    let _executor = executor(&project, &server.url(), "e1");
    let run = client.run(GOES_ON);
    project.await_file("starts");
    let server = server.restart();
    let client = server.client();
    assert_eq!(client.show(&run)["steps"][0]["status"], "running");
    project.write("go", "");
    let ended = client.until(&run, "completed");
    assert_eq!(ended["steps"][0]["epoch"], 1, "it was not done again");
    assert_eq!(project.read("starts"), "started\n");
    assert!(client.logs(&run).contains("done in epoch 1"));
}

#[test]
fn a_killed_server_finds_its_remote_attempts_where_they_are() {
    let project = Project::with(GOES_ON).env("WINDLASS_LEASE_TTL", "20s");
    let serve = |listen: &str| {
        let mut process = project.start(&["serve", "--listen", listen, "--json"]);
        let line: Value = serde_json::from_str(&process.await_line("\"serving\"")).unwrap();
        (process, line["serving"].as_str().unwrap().to_owned())
    };
    let (server, url) = serve("127.0.0.1:0");
    let token = |project: &Project| {
        let words = ["token", "create", "--scopes", "execute", "--name", "e1", "--service", "--json"];
        project.windlass(&words).code(0).json()["token"].as_str().unwrap().to_owned()
    };
    let (token, scratch) = (token(&project), project.path("e1"));
    let words = ["--labels", "gpu", "--name", "e1", "--shared-user", "--scratch", scratch.to_str().unwrap()];
    let _executor = project.start(&[&["executor", "--server", &url, "--token", &token], &words[..]].concat());
    let made = project.windlass(&["run", "book.yaml", "--detach", "--json"]).code(0);
    let run = made.lines()[0]["id"].as_str().unwrap().to_owned();
    project.await_file("starts");
    server.kill();
    project.write("go", "");
    let (_server, _) = serve(url.strip_prefix("http://").unwrap());
    until("the run to be over", || Some(project.show(&run)).filter(|run| run["status"] == "completed"));
    let shown = project.show(&run);
    assert_eq!(shown["steps"][0]["epoch"], 1, "the attempt was not done again");
    assert_eq!(project.read("starts"), "started\n");
}

/// A step that says that it has begun, and waits for a file.
const GOES_ON: &str = "
name: goes-on
pipelines:
  p:
    steps:
      - id: train
        runs_on: [gpu]
        run: 'echo started >> starts; until test -e go; do sleep 0.05; done; echo \"done in epoch $WL_EPOCH\"'
";

#[test]
fn a_stale_attempt_is_ended_when_its_executor_hears_of_it() {
    let project = Project::new();
    let server = server(&project, How { ttl_ms: 1_500, ..How::default() });
    let client = server.client();
    let first = executor(&project, &server.url(), "e1");
    let run = client.run(WAITS);
    let pid = project.await_file("pids");
    // It is frozen until its lease has run out, as a machine may be.
    first.signal(Signal::STOP);
    let answer =
        client.post("/v1/leases", &json!({ "executor": "by-hand", "labels": ["gpu"], "wait_ms": 60_000 }));
    let lease = &answer["items"][0];
    // The frozen one may have waited for more when it froze, and was then given the next epoch in vain.
    assert!(lease["epoch"].as_u64() > Some(1), "{lease}");
    first.signal(Signal::CONT);
    until("the stale tree to be gone", || {
        client.report("heartbeat", lease, json!({}));
        (!is_alive(&pid)).then_some(())
    });
    assert!(client.report("complete", lease, json!({})).get("code").is_none());
    client.until(&run, "completed");
    assert_eq!(project.read("epochs"), "1\n", "the frozen executor got nothing more");
}

#[test]
fn a_step_reaches_the_server_with_its_own_token_and_no_further() {
    let project = Project::new();
    let server = server(&project, How::default());
    let client = server.client();
    let _executor = executor(&project, &server.url(), "e1");
    let yaml = "
name: token
pipelines:
  p:
    steps:
      - { id: train, runs_on: [gpu], run: 'echo \"$WL_TOKEN\" > token; until test -e go; do sleep 0.05; done' }
";
    let run = client.run(yaml);
    let token = project.await_file("token").trim().to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let caller = runtime.block_on(server.app.attempt_caller(&token)).expect("the attempt is under way");
    assert_eq!(caller.attempt.as_ref().map(|place| place.run.to_string()), Some(run.clone()));
    assert!(
        !caller.may(windlass_server::api::routes::Scope::Approve)
            && !caller.may(windlass_server::api::routes::Scope::Admin)
    );
    project.write("go", "");
    client.until(&run, "completed");
    assert!(runtime.block_on(server.app.attempt_caller(&token)).is_none(), "it dies with the lease");
}

#[test]
fn a_step_that_an_executor_has_no_room_for_is_handed_back_and_tried_later() {
    let project = Project::new();
    let server = server(&project, How::default());
    let client = server.client();
    let executor = executor(&project, &server.url(), "e1");
    let keeper = until("the keeper", || keeper_of(executor.id()));
    // It has opened what it needs by then.
    until("its lock", || (!project.read("e1/keeper.lock").is_empty()).then_some(()));
    let open = std::fs::read_dir(format!("/proc/{keeper}/fd")).unwrap().count();
    let limit = |files: usize| {
        let done = std::process::Command::new("prlimit")
            .args(["--pid", &keeper, &format!("--nofile={files}:")])
            .status()
            .unwrap();
        assert!(done.success());
    };
    limit(open + 4);
    let run = client.run(
        "
name: room
pipelines:
  p: { steps: [ { id: train, runs_on: [gpu], run: 'echo x >> ended' } ] }
",
    );
    until("a wait", || (client.show(&run)["status"] == "waiting_external").then_some(()));
    limit(1_024);
    client.until(&run, "completed");
    assert_eq!(project.read("ended"), "x\n");
    let records = client.records(&run);
    let returned = records.iter().find(|record| record["type"] == "step:returned").unwrap();
    assert!(returned["reason"].as_str().unwrap().contains("Too many open files"), "{returned}");
}

/// The keeper among the children of a process.
fn keeper_of(pid: u32) -> Option<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let lists: Vec<String> = tasks
        .flatten()
        .map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default())
        .collect();
    let is_keeper = |pid: &&str| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().contains("__keeper")
    };
    lists.iter().flat_map(|list| list.split_whitespace()).find(is_keeper).map(str::to_owned)
}
