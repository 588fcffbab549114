//! The binary from outside: what it prints and how it ends.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::process::{Command, Output};

fn windlass(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_windlass")).args(words).output().unwrap()
}

fn stdout(words: &[&str]) -> String {
    let output = windlass(words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(words: &[&str]) -> serde_json::Value {
    serde_json::from_str(&stdout(words)).unwrap()
}

#[test]
fn it_tells_its_version_and_its_commands() {
    assert_eq!(stdout(&["--version"]), format!("windlass {}\n", env!("CARGO_PKG_VERSION")));
    let help = stdout(&["--help"]);
    let commands = [
        "init",
        "run",
        "check",
        "runs",
        "runbooks",
        "show",
        "watch",
        "logs",
        "why",
        "resume",
        "cancel",
        "suspend",
        "retry",
        "fork",
        "signal",
        "resolve",
        "approvals",
        "approve",
        "reject",
        "locks",
        "lock",
        "semaphores",
        "semaphore",
        "events",
        "store",
        "doctor",
        "bench",
        "codes",
        "completions",
    ];
    for command in commands {
        assert!(
            help.lines().any(|line| line.split_whitespace().next() == Some(command)),
            "{command}\n{help}"
        );
        let own = stdout(&[command, "--help"]);
        assert!(own.contains("Usage: windlass"), "{command}: {own}");
        assert!(own.contains("examples:"), "{command} shows no examples:\n{own}");
    }
}

#[test]
fn it_prints_the_codes() {
    let codes = stdout(&["codes"]);
    assert!(
        codes.lines().any(|line| line.starts_with("LEASE_STALE_EPOCH") && line.contains(" 409 ")),
        "{codes}"
    );
    let json = json(&["codes", "--json"]);
    let stale =
        json["items"].as_array().unwrap().iter().find(|item| item["code"] == "LEASE_STALE_EPOCH").unwrap();
    assert_eq!((&stale["http"], &stale["exit"]), (&409.into(), &6.into()), "{stale}");
}

#[test]
fn it_prints_the_kinds_of_events() {
    let types = stdout(&["events", "--types"]);
    assert!(
        types.lines().any(|line| line.starts_with("step:completed") && line.contains(" fact ")),
        "{types}"
    );
    let json = json(&["events", "--types", "--json"]);
    let kind =
        json["items"].as_array().unwrap().iter().find(|item| item["type"] == "system:shutdown").unwrap();
    assert_eq!((&kind["category"], &kind["stream"]), (&"signal".into(), &"system".into()), "{kind}");
}

#[test]
fn what_it_does_not_know_is_refused_with_a_code() {
    for words in
        [&[][..], &["runn"], &["run", "--yaml"], &["show"], &["resolve", "a", "b", "maybe", "--reason", "c"]]
    {
        let output = windlass(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(output.stdout.is_empty(), "{words:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with("windlass: INVALID_INPUT: "), "{words:?}: {error}");
        assert!(error.contains("--help"), "{words:?}: {error}");
    }
    let output = windlass(&["runn", "--json"]);
    let problem: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(problem["code"], "INVALID_INPUT", "{problem}");
    assert_eq!(
        (&problem["status"], &problem["type"]),
        (&400.into(), &"urn:windlass:error:INVALID_INPUT".into())
    );
    assert!(problem["title"].is_string() && problem["detail"].is_string(), "{problem}");
}

/// The words of a help text under `Commands:`.
fn commands(help: &str) -> Vec<String> {
    let below = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let named = below.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    named.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn every_command_shows_examples() {
    let mut open: Vec<Vec<String>> = vec![Vec::new()];
    let mut seen = 0;
    while let Some(words) = open.pop() {
        let asked: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
        let help = stdout(&asked);
        assert!(help.contains("examples:"), "{asked:?} shows no examples:\n{help}");
        seen += 1;
        for word in commands(&help).into_iter().filter(|word| word != "help") {
            open.push(words.iter().cloned().chain([word]).collect());
        }
    }
    assert!(seen > 80, "only {seen} commands were found");
}

#[test]
fn a_code_has_a_page() {
    let page = stdout(&["codes", "lock_busy"]);
    assert!(page.contains("LOCK_BUSY") && page.lines().count() > 3, "{page}");
    assert_eq!(json(&["codes", "LOCK_BUSY", "--json"])["exit"], 75);
    assert_eq!(windlass(&["codes", "NO_SUCH"]).status.code(), Some(5));
}

#[test]
fn a_list_of_none_is_refused() {
    assert_eq!(windlass(&["runs", "--limit", "0"]).status.code(), Some(2));
}
