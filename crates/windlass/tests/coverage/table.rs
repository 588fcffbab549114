//! The tables themselves: every row of docs/coverage.md and docs/promises.md names a test that exists, a reason, or what it
//! waits for.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The names of all tests, as `file::function`. A file `main.rs` or `tests.rs` has the name of its folder.
fn tests(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            tests(&path, found);
            continue;
        }
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let file = match stem {
            "main" | "tests" | "mod" => dir.file_name().unwrap().to_str().unwrap(),
            stem => stem,
        };
        let text = fs::read_to_string(&path).unwrap();
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                is_test = true;
            } else if let Some(rest) = line.strip_prefix("fn ").or_else(|| line.strip_prefix("async fn ")) {
                // A property test stands in its macro, where a parameter is drawn: `fn name(x in …)`.
                if is_test {
                    found.insert(format!("{file}::{}", rest.split('(').next().unwrap()));
                }
                is_test = false;
            }
        }
    }
}

/// A row: its statement, and what shows it.
struct Row {
    line: usize,
    statement: String,
    shown: String,
}

fn rows(text: &str) -> Vec<Row> {
    let lines = text.lines().enumerate().filter(|(_, line)| line.starts_with("| ")).map(|(n, line)| {
        let cells: Vec<&str> = line.trim().trim_matches('|').split(" | ").map(str::trim).collect();
        assert!((2..=3).contains(&cells.len()), "line {}: a row ends with what shows it: {line}", n + 1);
        Row { line: n + 1, statement: cells[0].to_owned(), shown: cells[cells.len() - 1].to_owned() }
    });
    lines.filter(|row| !["statement", "promise"].contains(&row.statement.as_str())).collect()
}

#[test]
fn every_statement_names_the_test_that_shows_it() {
    let root = root();
    let mut known = BTreeSet::new();
    for entry in fs::read_dir(root.join("crates")).unwrap().flatten() {
        for part in ["src", "tests"].map(|part| entry.path().join(part)) {
            if part.is_dir() {
                tests(&part, &mut known);
            }
        }
    }
    let mut wrong = Vec::new();
    let of = |file: &str| {
        let rows = rows(&fs::read_to_string(root.join("docs").join(file)).unwrap());
        assert!(!rows.is_empty(), "{file} has no rows");
        rows.into_iter().map(|row| (file.to_owned(), row)).collect::<Vec<_>>()
    };
    for (file, Row { line, statement, shown }) in of("coverage.md").iter().chain(&of("promises.md")) {
        let words: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        let reason = ["by design: ", "later: "].iter().find_map(|word| shown.strip_prefix(word));
        match reason {
            Some(reason) if reason.len() < 10 => {
                wrong.push(format!("{file}, line {line}: no reason: {statement}"));
            }
            Some(_) => {}
            None if words.is_empty() => {
                wrong.push(format!("{file}, line {line}: nothing shows it: {statement}"));
            }
            None => {
                let absent = words.iter().filter(|word| !known.contains(**word));
                wrong.extend(absent.map(|word| format!("{file}, line {line}: there is no test {word}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn later_are_agents_sessions_and_workspaces_only() {
    let table = fs::read_to_string(root().join("docs/coverage.md")).unwrap();
    for Row { line, statement, shown } in rows(&table) {
        if let Some(what) = shown.strip_prefix("later: ") {
            let meant = ["agent", "session", "workspace", "git merge", "page"];
            assert!(meant.iter().any(|word| what.contains(word)), "line {line}: {statement}: {what}");
        }
    }
}
