//! `windlass secret`: values in, never out.

use crate::canaries::{base64, files};
use crate::holder::hold;
use crate::support::{Project, text, until};
use serde_json::json;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

/// Sets a secret through the standard input.
pub(crate) fn set(project: &Project, name: &str, value: &str) -> std::process::Output {
    let mut command = project.command(&["secret", "set", name, "--json"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(value.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn secrets_are_set_listed_used_and_removed() {
    let book = "name: t\npipelines:\n  p:\n    steps:\n      - { id: a, run: 'test \"$T\" = second-value && echo \"$T\"', env: { T: '${{ secrets.TOKEN }}' } }\n";
    let project = Project::with(book);
    assert!(set(&project, "TOKEN", "first-value\n").status.success());
    let answer = set(&project, "TOKEN", "second-value\n");
    let answer: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    assert_eq!(answer, json!({ "name": "TOKEN", "version": 2 }));
    let key = project.path(".config/windlass/key");
    assert_eq!(std::fs::metadata(key).unwrap().permissions().mode() & 0o777, 0o600);
    let listed = project.windlass(&["secret", "list", "--json"]).code(0).json();
    assert_eq!((&listed["items"][0]["name"], &listed["items"][0]["version"]), (&json!("TOKEN"), &json!(2)));
    let run = project.run(&[], 0);
    assert!(!run.to_string().contains("second-value"));
    project.windlass(&["secret", "rm", "TOKEN"]).code(2);
    project.windlass(&["secret", "rm", "TOKEN", "--yes"]).code(0);
    project.windlass(&["secret", "rm", "TOKEN", "--yes"]).code(5);
    let run = project.run(&[], 1);
    assert!(run["error"]["message"].as_str().unwrap().contains("windlass secret set TOKEN"), "{run}");
}

#[test]
fn a_variable_cannot_ask_for_a_secret() {
    let book = "name: t\npipelines:\n  p:\n    vars: { x: {} }\n    steps:\n      - { id: a, run: 'printf %s \"$X\" > out', env: { X: '${{ vars.x }}' } }\n";
    let project = Project::with(book).env("WINDLASS_SECRET_TOKEN", "the-real-value");
    project.run(&["--var", "x={\"$secret\":\"TOKEN\"}"], 0);
    assert!(project.read("out").contains("$secret"), "{}", project.read("out"));
}

#[test]
fn a_value_that_cannot_be_masked_is_refused() {
    let project = Project::new();
    assert_eq!(set(&project, "TOKEN", "abc").status.code(), Some(2));
    assert_eq!(set(&project, "a/b", "long-enough").status.code(), Some(2));
}

#[test]
fn files_serve_where_the_vault_has_nothing() {
    let book = "name: t\npipelines:\n  p:\n    steps:\n      - { id: a, run: 'test \"$T\" = from-a-file', env: { T: '${{ secrets.TOKEN }}' } }\n";
    let project = Project::with(book);
    project.write("secrets/TOKEN", "from-a-file\n");
    let dir = project.path("secrets").display().to_string();
    let project = project.env("WINDLASS_SECRETS_DIR", &dir);
    project.run(&[], 0);
}

/// What a step says of a secret that another one left in a file: to its outputs, as its typed output, as its progress and
/// in a signal.
const SAY: &str = r#"
cat kept; echo; cat kept >&2
printf 'user:%s' "$(cat kept)" | base64 -w 10 | sed 's/^/    /'
python3 - <<'P'
import json, os, urllib.request
kept = open('kept').read()
base = os.environ['WL_SERVER'] + '/v1/runs/' + os.environ['WL_RUN_ID']
def post(path, body):
    head = {'authorization': 'Bearer ' + os.environ['WL_TOKEN'], 'content-type': 'application/json'}
    urllib.request.urlopen(urllib.request.Request(base + path, json.dumps(body).encode(), head)).read()
post('/steps/' + os.environ['WL_STEP_ID'] + '/checkpoint',
     {'epoch': int(os.environ['WL_EPOCH']), 'message': 'got ' + kept, 'data': {'kept': [kept]}})
post('/signals/told', {'data': {kept: kept}, 'key': os.environ['WL_STEP_ID']})
open(os.environ['WL_OUTPUT'], 'w').write(json.dumps({'kept': kept}))
P
"#;

#[test]
fn a_secret_is_masked_in_all_that_its_run_puts_out_and_after_a_restart() {
    let canary = "k7Qz-vault/canary+0123456789&xyz";
    let project = Project::with(
        "
name: t
pipelines:
  p:
    steps:
      - { id: use, run: 'printf %s \"$C\" > kept', env: { C: '${{ secrets.C }}' } }
      - { id: before, run: ./say, compensate: { run: 'cat kept; echo undone >> trace' } }
      - { id: gate, wait: { event: go, timeout: 10m } }
      - { id: after, run: ./say }
      - { id: fails, run: 'cat kept >&2; exit 3' }
    finally:
      - { id: last, run: 'cat kept; echo last >> trace' }
",
    );
    project.script("say", SAY);
    assert!(set(&project, "C", canary).status.success());
    let mut holder = hold(&project);
    let run =
        text(&project.windlass(&["run", "book.yaml", "--detach", "--json"]).code(0).last(), "id").to_owned();
    let waits = |status: &str| {
        until(status, || Some(project.show(&run)).filter(|run| run["status"] == status));
    };
    waits("waiting_external");
    // A process that has just started saw nobody use the secret.
    holder.kill();
    holder = hold(&project);
    project.windlass(&["signal", &run, "go"]).code(0);
    waits("failed");
    assert_eq!(project.read("trace"), "undone\nlast\n");
    let mut found = Vec::new();
    for words in [
        &["show", &run, "--json"][..],
        &["show", &run, "--events"],
        &["logs", &run],
        &["events"],
        &["why", &run],
    ] {
        found.push((words.join(" "), project.windlass(words).out.into_bytes()));
    }
    holder.signal(rustix::process::Signal::TERM);
    holder.wait().code(0);
    files(&project.path("data"), &mut found);
    let holds = |text: &[u8], part: &str| memchr::memmem::find(text, part.as_bytes()).is_some();
    assert!(
        found.iter().filter(|(_, bytes)| holds(bytes, "***")).count() > 5,
        "there was something to be masked"
    );
    // The digits of `user:` and the first of the secret share a line; all others are the secret's alone.
    let digits = base64(format!("user:{canary}").as_bytes());
    let broken = digits.as_bytes().chunks(10).skip(1).map(|line| String::from_utf8(line.to_vec()).unwrap());
    for part in broken.filter(|line| line.len() == 10).chain([canary.to_owned()]) {
        let leaks: Vec<&String> =
            found.iter().filter(|(_, bytes)| holds(bytes, &part)).map(|(name, _)| name).collect();
        assert!(leaks.is_empty(), "`{part}` is in {leaks:?}");
    }
}

/// A step leaves a secret in a file; a later one, and a retry, print it.
const LEAVES: &str = r#"
name: leaves
pipelines:
  default:
    steps:
      - { id: use, run: 'printf "%s" "$T" > app.conf', env: { T: '${{ secrets.TOK }}' } }
      - { id: gate, wait: { event: go } }
      - { id: breaks, run: 'test -e mended' }
      - { id: show, run: 'cat app.conf; echo; echo "v=$(cat app.conf)" > $WL_OUTPUT' }
    finally:
      - { id: last, run: 'cat app.conf' }
"#;

/// Runs to the gate, changes the secret, and goes on in other processes: a resume and a retry.
fn changed(project: &Project, first: &str, change: impl FnOnce()) {
    let mut process = project.start(&["run", "book.yaml", "--json"]);
    let run = process.await_run();
    until("the gate", || (project.show(&run)["status"] == "waiting_external").then_some(()));
    process.kill();
    change();
    project.windlass(&["signal", &run, "go"]).code(0);
    // It may have gone on to its end with the signal.
    project.windlass(&["resume", &run, "--json"]);
    assert_eq!(project.show(&run)["status"], "failed");
    project.write("mended", "");
    let retried = project.windlass(&["retry", &run, "--json"]).code(0).last();
    assert!(retried["steps"].to_string().contains("***"), "{retried}");
    assert_eq!(project.read("app.conf"), first, "the file still has it");
    let mut all = Vec::new();
    files(&project.path("data"), &mut all);
    for (path, bytes) in all {
        assert!(!bytes.windows(first.len()).any(|window| window == first.as_bytes()), "{path}");
    }
}

#[test]
fn a_secret_that_was_changed_is_masked_in_the_run_that_has_it_and_its_retry_after_a_restart() {
    let project = Project::with(LEAVES);
    set(&project, "TOK", "first-vault-value-Aq9Zt");
    changed(&project, "first-vault-value-Aq9Zt", || drop(set(&project, "TOK", "second-vault-value-Bx8Yw")));
    let project = Project::with(LEAVES);
    set(&project, "TOK", "first-vault-value-Aq9Zt");
    changed(&project, "first-vault-value-Aq9Zt", || {
        project.windlass(&["secret", "rm", "TOK", "--yes"]).code(0);
        set(&project, "TOK", "third-vault-value-Bx8Yw");
    });
}

#[test]
fn a_file_that_was_changed_is_masked_in_the_run_that_has_its_first_content() {
    let project = Project::with(LEAVES);
    project.write("secrets/TOK", "first-file-value-Aq9Zt\n");
    let dir = project.path("secrets").display().to_string();
    let project = project.env("WINDLASS_SECRETS_DIR", &dir);
    changed(&project, "first-file-value-Aq9Zt", || {
        project.write("secrets/TOK", "second-file-value-Bx8Yw\n");
    });
}
