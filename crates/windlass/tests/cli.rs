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

#[test]
fn it_tells_its_version_and_its_commands() {
    assert_eq!(stdout(&["--version"]), format!("windlass {}\n", env!("CARGO_PKG_VERSION")));
    let help = stdout(&["--help"]);
    for command in ["codes", "events --types"] {
        assert!(help.contains(command), "{command}");
    }
}

#[test]
fn it_prints_the_codes() {
    let codes = stdout(&["codes"]);
    assert!(
        codes.lines().any(|line| line.starts_with("LEASE_STALE_EPOCH") && line.contains(" 409 ")),
        "{codes}"
    );
    let json = stdout(&["codes", "--json"]);
    assert!(json.starts_with(r#"{"items":[{"code":"#) && json.ends_with("}]}\n"));
    assert!(json.contains(r#""code":"LEASE_STALE_EPOCH","http":409,"exit":6,"#), "{json}");
}

#[test]
fn it_prints_the_kinds_of_events() {
    let types = stdout(&["events", "--types"]);
    assert!(
        types.lines().any(|line| line.starts_with("step:completed") && line.contains(" fact ")),
        "{types}"
    );
    let json = stdout(&["events", "--types", "--json"]);
    assert!(json.contains(r#"{"type":"system:shutdown","category":"signal","stream":"system","fields":{}}"#));
}

#[test]
fn what_it_does_not_know_is_refused_with_a_code() {
    for words in [&[][..], &["run"], &["events"], &["codes", "--yaml"]] {
        let output = windlass(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(output.stdout.is_empty());
        assert!(String::from_utf8(output.stderr).unwrap().contains("INVALID_INPUT"), "{words:?}");
    }
}
