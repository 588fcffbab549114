//! `windlass secret`: values in, never out.

use crate::support::Project;
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
