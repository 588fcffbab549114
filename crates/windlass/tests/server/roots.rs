//! Whose directories are whose: no step works in, above or below those of another tenant, the owner's own commands work,
//! and the data directory stays the owner's.

use crate::http::{Answer, Server};
use crate::support::{Project, text, until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::Path;

/// A server that keeps steps apart, and the directories of two tenants beside its own.
fn server(config: &str, words: &[&str]) -> Server {
    let project = Project::new().env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
    if !config.is_empty() {
        project.write("windlass.yaml", config.replace("ROOT", &project.root().display().to_string()));
    }
    let dirs = ["acme", "acme/sub", "evil"];
    for dir in dirs {
        std::fs::create_dir_all(project.path(dir)).unwrap();
    }
    std::os::unix::fs::symlink(project.path("acme"), project.path("evil/link")).unwrap();
    project.write("acme/build.sh", "echo built > out\n");
    if rustix::process::geteuid().is_root() {
        std::fs::set_permissions(project.root(), PermissionsExt::from_mode(0o755)).unwrap();
        for dir in dirs {
            std::os::unix::fs::chown(project.path(dir), Some(65534), Some(65534)).unwrap();
        }
    }
    Server::start_with(project, words)
}

/// Brings a runbook with one pipeline of its own name.
fn bring(server: &Server, token: &str, (name, root): (&str, Option<&Path>), step: &Value) -> Answer {
    let book = json!({ "name": name, "pipelines": { name: { "steps": [step] } } }).to_string();
    let root = root.map(|root| format!("?project_root={}", root.display())).unwrap_or_default();
    let kind = [("content-type", "application/yaml")];
    server.send("POST", &format!("/v1/runbooks{root}"), Some(token), &kind, book.as_bytes())
}

fn begin(server: &Server, token: &str, wish: &Value) -> String {
    text(&server.ask("POST", "/v1/runs", Some(token), Some(wish)).status(201).json(), "id").to_owned()
}

fn ended(server: &Server, token: &str, run: &str) -> Value {
    until("the end of the run", || {
        let run = server.ask("GET", &format!("/v1/runs/{run}"), Some(token), None).status(200).json();
        ["completed", "failed"].contains(&text(&run, "status")).then_some(run)
    })
}

fn run(server: &Server, token: &str, pipeline: &str) -> Value {
    ended(server, token, &begin(server, token, &json!({ "pipeline": pipeline })))
}

/// A token that brings and runs what it likes in its tenant.
fn of(server: &Server, tenant: &str) -> String {
    let made = server.token(&json!({ "tenant": tenant, "scopes": ["read", "run", "deploy"] }));
    text(&made, "token").to_owned()
}

fn refused(run: &Value) -> bool {
    text(run, "status") == "failed" && run["error"]["code"] == "FORBIDDEN"
}

const PLANT: &str = "echo 'echo $K | rev > out' > \"$ACME/build.sh\"";

#[test]
fn no_step_works_in_above_or_below_the_directory_of_another_tenants_deployment() {
    let ways: &[&[&str]] = &[&["--apart"], &["--run-as", "nobody"]];
    for words in ways.iter().take(if crate::wall::can_be_others() { 2 } else { 1 }) {
        let server = server("", words);
        let path = |name: &str| server.project.path(name);
        let (acme, evil) = (of(&server, "acme"), of(&server, "evil"));
        let build = json!({ "id": "build", "run": "bash build.sh" });
        bring(&server, &acme, ("build", Some(&path("acme"))), &build).status(201);
        // By the directory of a deployment or of a run.
        for root in ["acme", "acme/sub", "evil/link", "evil/../acme"] {
            let answer =
                bring(&server, &evil, ("plant", Some(&path(root))), &json!({ "id": "p", "run": PLANT }));
            answer.problem(403, "FORBIDDEN");
        }
        bring(&server, &evil, ("own", Some(&path("evil"))), &json!({ "id": "p", "run": "touch made" }))
            .status(201);
        let wish = json!({ "pipeline": "own", "cwd": path("acme") });
        server.ask("POST", "/v1/runs", Some(&evil), Some(&wish)).problem(403, "FORBIDDEN");
        // By that of a step.
        let acmes = path("acme").display().to_string();
        for (n, dir) in [acmes.as_str(), "../acme/sub", "link", ".."].into_iter().enumerate() {
            let name = format!("plant{n}");
            let step = json!({ "id": "p", "dir": dir, "run": PLANT, "env": { "ACME": acmes } });
            bring(&server, &evil, (&name, Some(&path("evil"))), &step).status(201);
            let run = run(&server, &evil, &name);
            assert!(refused(&run), "{words:?} {dir}: {run}");
        }
        assert_eq!(server.project.read("acme/build.sh"), "echo built > out\n");
        // Both work in their own.
        for (token, name) in [(&acme, "build"), (&evil, "own")] {
            let run = run(&server, token, name);
            assert_eq!(text(&run, "status"), "completed", "{words:?} {run}");
        }
        assert!(server.project.has("acme/out") && server.project.has("evil/made"));
        // What is not deployed any more is free, and the owner deploys where they like.
        server.ask("POST", "/v1/runbooks/build/undeploy", Some(&acme), None).status(200);
        bring(&server, &evil, ("free", Some(&path("acme/sub"))), &json!({ "id": "p", "run": "touch made" }))
            .status(201);
        bring(&server, &acme, ("build", Some(&path("acme"))), &build).problem(403, "FORBIDDEN");
        bring(&server, &server.owner(), ("owns", Some(&path("acme"))), &build).status(201);
        assert_eq!(text(&run(&server, &server.owner(), "owns"), "status"), "completed");
        assert!(refused(&run(&server, &evil, "free")));
    }
}

#[test]
fn the_directory_of_a_live_run_is_its_tenants_until_it_ends() {
    let server = server("", &["--apart"]);
    let (acme, evil) = (of(&server, "acme"), of(&server, "evil"));
    let path = |name: &str| server.project.path(name);
    let wait = json!({ "id": "w", "run": "touch begun; until test -e go; do sleep 0.05; done" });
    bring(&server, &acme, ("waits", None), &wait).status(201);
    let other = json!({ "id": "p", "dir": path("acme"), "run": "touch planted" });
    bring(&server, &evil, ("plant", Some(&path("evil"))), &other).status(201);
    let live = begin(&server, &acme, &json!({ "pipeline": "waits", "cwd": path("acme") }));
    server.project.await_exists("acme/begun");
    assert!(refused(&run(&server, &evil, "plant")));
    assert!(!server.project.has("acme/planted"));
    server.project.write("acme/go", "");
    assert_eq!(text(&ended(&server, &acme, &live), "status"), "completed");
    let free = run(&server, &evil, "plant");
    assert_eq!(text(&free, "status"), "completed", "{free}");
}

#[test]
fn what_the_sandbox_gives_to_read_is_without_the_directories_of_other_tenants() {
    let server = server("sandbox: { read: [ROOT/acme] }\n", &["--apart"]);
    server.project.write("acme/sub/kept", "acme's\n");
    let (acme, evil) = (of(&server, "acme"), of(&server, "evil"));
    let path = |name: &str| server.project.path(name);
    let read =
        |id: &str| json!({ "id": id, "run": format!("cat {} > read", path("acme/sub/kept").display()) });
    bring(&server, &acme, ("own", Some(&path("acme/sub"))), &read("a")).status(201);
    let common = json!({ "id": "c", "run": format!("cat {} > common", path("acme/build.sh").display()) });
    bring(&server, &evil, ("common", Some(&path("evil"))), &common).status(201);
    bring(&server, &evil, ("others", Some(&path("evil"))), &read("b")).status(201);
    assert_eq!(text(&run(&server, &acme, "own"), "status"), "completed");
    assert_eq!(text(&run(&server, &evil, "common"), "status"), "completed");
    let others = run(&server, &evil, "others");
    assert_eq!(
        (text(&others, "status"), server.project.read("evil/read").as_str()),
        ("failed", ""),
        "{others}"
    );
}

#[test]
fn a_guard_looks_at_no_file_where_its_steps_could_not() {
    let server = server("", &["--apart"]);
    let evil = of(&server, "evil");
    server.project.write("evil/own", "wl_\n");
    let credential = server.project.path("data/credential.json").display().to_string();
    std::os::unix::fs::symlink(&credential, server.project.path("evil/by-link")).unwrap();
    for (n, (file, passes)) in
        [("own", true), (credential.as_str(), false), ("by-link", false), ("../data/credential.json", false)]
            .into_iter()
            .enumerate()
    {
        let guard = json!({ "file_contains": { "path": file, "pattern": "wl_" }, "on_failure": "fail" });
        let step = json!({ "id": "g", "run": "true", "guard": [guard] });
        let name = format!("look{n}");
        bring(&server, &evil, (&name, Some(&server.project.path("evil"))), &step).status(201);
        let looked = run(&server, &evil, &name);
        assert_eq!(text(&looked, "status") == "completed", passes, "{file}: {looked}");
    }
}

#[test]
fn a_command_of_the_configuration_tells_people_where_others_have_tokens() {
    let config = "notices: { command: ./tell, on: [failed] }\n";
    let server = server(config, &["--apart"]);
    server.project.script("tell", "echo \"$WL_NOTICE_KIND\" > told\n");
    server.of("default", "default");
    let step = json!({ "id": "s", "run": "false" });
    bring(&server, &server.owner(), ("falls", Some(&server.project.path("acme"))), &step).status(201);
    assert_eq!(text(&run(&server, &server.owner(), "falls"), "status"), "failed");
    assert_eq!(server.project.await_file("told"), "failed\n");
    let sent = until("the notice", || server.project.events("notice:sent").pop());
    assert_eq!(sent["delivered"], true, "{sent}");
}

#[test]
fn a_data_directory_that_a_step_opened_to_others_is_closed_again_and_that_is_said() {
    let server = server("", &["--apart"]);
    let acme = of(&server, "acme");
    let data = server.project.path("data").display().to_string();
    let open = format!("chmod 777 '{data}' '{data}/credential.json' '{data}/keys'");
    bring(&server, &acme, ("opens", Some(&server.project.path("acme"))), &json!({ "id": "o", "run": open }))
        .status(201);
    let opened = run(&server, &acme, "opens");
    assert_eq!(text(&opened, "status"), "completed", "{opened}");
    for (name, wanted) in [("data", 0o700), ("data/credential.json", 0o600), ("data/keys", 0o700)] {
        let path = server.project.path(name);
        until(name, || (std::fs::metadata(&path).unwrap().mode() & 0o7777 == wanted).then_some(()));
        let process = server.process.as_ref().unwrap();
        let said = format!("{} had the mode 0777", path.display());
        until(&said, || process.err().contains(&said).then_some(()));
    }
    let mut server = server;
    let process = server.process.take().unwrap();
    process.signal(Signal::TERM);
    process.wait().code(0);
}
